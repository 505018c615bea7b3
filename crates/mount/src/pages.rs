//! Pages that the kernel keeps of files: having them dropped, and knowing that they are gone.
//!
//! That the kernel may have pages of a file stands in the file's row (`client::Client::note_pages`), from
//! before it gets them. Who changes bytes looks there, and then has the pages dropped. So the mark goes
//! only when no page came since the kernel was told to drop them; and it stays until the kernel did, so
//! that who changes something meanwhile has them dropped once more.
//!
//! The kernel believes how short a file is that it reads only if it was told nothing of it since it
//! asked. So what is to be dropped behind a read is dropped when that is answered (`watches::Telling`).
//!
//! The kernel drops a page when it can lock it, and one that is being read or written is locked until
//! that is answered. So pages are dropped by a thread of their own (`watches`), never by one that serves.
//!
//! Bytes that a program writes past the pages may be in its kernel's pages as they were before: a read
//! that came between the kernel's own dropping and the write has put them there. So they are dropped
//! behind such a write, before it is answered.

use client::OfdIndex;
use fuse::abi::flag;
use fuse::notice::Notice;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;
use wire::errno::Result;

use crate::answer::Request;
use crate::serve::Server;

/// Counters of what fills pages; files share them.
const ROWS: usize = 1024;
/// How long an answer waits until pages are dropped. They are locked by requests that other threads
/// answer, unless all of these wait here, too.
const PATIENCE: Duration = Duration::from_millis(3);

/// What came into pages.
pub(crate) struct Pages {
    /// How often pages of files were filled.
    filled: Box<[Mutex<u64>]>,
}

/// What was to be dropped by the thread for that.
#[derive(Default)]
pub(crate) struct Drops {
    /// How many were asked for, and are done.
    count: Mutex<(u64, u64)>,
    done: Condvar,
}

/// Bytes of a file; a length of 0: to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) inode: Inode,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages { filled: (0..ROWS).map(|_| Mutex::default()).collect() }
    }

    fn filled(&self, inode: Inode) -> Option<MutexGuard<'_, u64>> {
        self.filled.get(wire::hash::mix(inode.0, 7) as usize % ROWS).map(guard)
    }
}

impl Drops {
    /// How many were asked for so far.
    fn asked(&self) -> u64 {
        guard(&self.count).0
    }

    /// One more is asked for; how many were.
    pub(crate) fn ask(&self) -> u64 {
        let mut count = guard(&self.count);
        count.0 += 1;
        count.0
    }

    /// One of them is done.
    pub(crate) fn is_done(&self) {
        guard(&self.count).1 += 1;
        self.done.notify_all();
    }

    /// Waits until as many are done as were asked for, but not for long.
    fn wait(&self, asked: u64) {
        let until = Instant::now() + PATIENCE;
        let mut count = guard(&self.count);
        while count.1 < asked {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.done.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Server {
    /// Has the kernel drop all pages of a file. What is being read it waits for.
    pub(crate) fn drop_pages(&self, inode: Inode) {
        let before = self.pages.filled(inode).map(|filled| *filled);
        self.notify(&Notice::Inode { node: inode.0, offset: 0, length: 0 });
        let filled = self.pages.filled(inode);
        if filled.as_deref().copied() == before {
            self.client.drop_pages(inode);
        }
    }

    /// By the thread that does so: what was asked for by `Watches::drop_soon`.
    pub(crate) fn drop_asked(&self, range: Range) {
        let Range { inode, offset, length } = range;
        if length == 0 {
            self.drop_pages(inode);
        } else {
            let (offset, length) = (offset.cast_signed(), length.cast_signed());
            self.notify(&Notice::Inode { node: inode.0, offset, length });
        }
        self.watches.drops.is_done();
    }
}

impl Request<'_> {
    fn whole(&self) -> Range {
        Range { inode: self.node(), offset: 0, length: 0 }
    }

    /// Before bytes are read into pages, or written that are there.
    fn fill_pages(&self, ofd: OfdIndex) -> Result<()> {
        let mut filled = self.server.pages.filled(self.node());
        if let Some(filled) = filled.as_deref_mut() {
            *filled += 1;
        }
        self.server.client.note_pages(ofd)
    }

    /// Reads by `read`, into pages unless `flags` say that it is for a program.
    pub(crate) fn read_pages<R>(
        &self,
        ofd: OfdIndex,
        flags: u32,
        read: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if flags & flag::LOCK_OWNER != 0 {
            return read();
        }
        self.fill_pages(ofd)?;
        let drop_if_shared = || {
            if self.server.client.shares_pages(ofd)? {
                self.telling.drop_behind(self.whole());
            }
            Ok(())
        };
        // Who writes meanwhile, by the same mount, is to know of it (`write_pages`).
        drop_if_shared()?;
        let done = read()?;
        drop_if_shared()?;
        Ok(done)
    }

    /// Writes by `write` what begins at `offset`, out of pages unless `flags` say that it is of a
    /// program.
    pub(crate) fn write_pages(
        &self,
        ofd: OfdIndex,
        (offset, flags): (u64, u32),
        write: impl FnOnce() -> Result<usize>,
    ) -> Result<usize> {
        let (server, client) = (self.server, self.server.client);
        if flags & flag::LOCK_OWNER != 0 {
            let count = write()?;
            if client.keeps_pages(ofd)? && count != 0 {
                let range = Range { inode: self.node(), offset, length: count as u64 };
                server.watches.drops.wait(server.watches.drop_soon(range));
            }
            return Ok(count);
        }
        self.fill_pages(ofd)?;
        let count = write()?;
        if client.shares_pages(ofd)? {
            self.telling.drop_behind(self.whole());
            if flags & flag::WRITE_CACHE == 0 {
                // What was read before these bytes came, and may be in pages since.
                server.watches.drops.wait(server.watches.drops.asked());
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_droppings_waits_for_those_of_before_and_not_for_ever() {
        let drops = Drops::default();
        assert_eq!((drops.ask(), drops.ask()), (1, 2));
        std::thread::scope(|scope| {
            scope.spawn(|| drops.is_done());
            let begun = Instant::now();
            drops.wait(2);
            assert!(begun.elapsed() >= PATIENCE, "one is missing");
        });
        drops.wait(1);
        drops.is_done();
        drops.wait(drops.asked());
    }
}
