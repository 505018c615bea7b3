//! Files of directories that are saved `through`: who wrote one and closes or syncs it waits until it
//! lies below, without a slot of the session (`waits`), as that may take long.
//!
//! Which files these are the name says by which one is opened: its directory's layout is at hand there,
//! and the open file is marked. A mount, whose kernel opens files by number, marks them itself.
//!
//! The wait has an end: while nothing at all is saved below for the instance's timeout, it is EIO.

use shm::wait;
use wire::attributes::write_back;
use wire::errno::{Errno, Result};
use wire::{Inode, Layout, Request, ShardIndex};

use crate::errno::ignore_gone;
use crate::opened::{Open, mark};
use crate::request::To;
use crate::waits::Sending;
use crate::{Client, OfdIndex};

/// Pause before a service is asked again that could not be reached.
const PAUSE_MICROS: u64 = 100_000;

/// A file that somebody waits for until it is saved. Whoever lets go of it waits no longer; it is saved
/// all the same.
pub struct SaveWait<'a> {
    client: &'a Client,
    inode: Inode,
    sending: Sending<'a>,
    /// What was saved when it was asked last, and since when no more was.
    moved: Option<u64>,
    since: u64,
    is_interrupted: bool,
}

impl<'a> SaveWait<'a> {
    fn new(client: &'a Client, inode: Inode) -> SaveWait<'a> {
        let (sending, since) = (Sending::new(client), wait::now_micros());
        SaveWait { client, inode, sending, moved: None, since, is_interrupted: false }
    }

    /// What came of it, if it is over; hands in what is to be handed in.
    pub fn poll(&mut self) -> Option<Result<()>> {
        loop {
            if self.is_interrupted {
                return Some(Err(Errno::EINTR));
            }
            let (inode, client) = (self.inode, self.client);
            let asked = (To::Shard(inode.shard()), &Request::AwaitSaved { inode });
            let moved = match self.sending.poll(client, asked, true)? {
                Ok(Some(moved)) => moved,
                Ok(None) => return Some(Ok(())),
                // Too many wait.
                Err(Errno::ENOLCK) => return Some(Err(Errno::EIO)),
                Err(errno) => return Some(ignore_gone(Err(errno))),
            };
            let now = wait::now_micros();
            if self.moved != Some(moved) {
                (self.moved, self.since) = (Some(moved), now);
            } else if now.saturating_sub(self.since) >= client.timeout_micros() {
                return Some(Err(Errno::EIO));
            }
            self.sending = Sending::new(client);
        }
    }

    /// Who waits is to wait no longer.
    pub const fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    fn wait(mut self) -> Result<()> {
        loop {
            if let Some(outcome) = self.poll() {
                return outcome;
            }
            self.sending.sleep(self.client, false);
        }
    }
}

/// The writer's: it waits for those who wait for it, of one service.
pub struct WantedWait<'a> {
    client: &'a Client,
    shard: ShardIndex,
    sending: Sending<'a>,
    seen: u64,
}

impl<'a> WantedWait<'a> {
    /// Of the service that has this shard.
    #[must_use]
    pub fn new(client: &'a Client, shard: ShardIndex) -> WantedWait<'a> {
        WantedWait { client, shard, sending: Sending::new(client), seen: 0 }
    }

    /// True if there are new ones. `moved`: another number each time when something was saved.
    pub fn poll(&mut self, moved: u64) -> bool {
        let request = Request::AwaitWanted { seen: self.seen, moved };
        let asked = (To::Shard(self.shard), &request);
        let client = self.client;
        let (is_new, pause) = match self.sending.poll(client, asked, true) {
            None => return false,
            Some(Ok(number)) => {
                let number = number.unwrap_or(0);
                (core::mem::replace(&mut self.seen, number) != number, 0)
            }
            Some(Err(_)) => (false, PAUSE_MICROS),
        };
        self.sending = Sending::after(client, pause);
        is_new
    }
}

/// True for a directory whose files are saved before a close or sync of them returns.
#[must_use]
pub(crate) const fn is_through(directory: &Layout) -> bool {
    directory.write_back() == write_back::THROUGH
}

impl Client {
    /// An open file of such a directory.
    pub fn set_through(&self, ofd: OfdIndex) {
        if let Ok(open) = self.opened(ofd) {
            open.set(mark::THROUGH);
        }
    }

    /// True if a sync of it waits until it is saved.
    #[must_use]
    pub fn is_through(&self, ofd: OfdIndex) -> bool {
        self.opened(ofd).is_ok_and(|open| open.has(mark::THROUGH))
    }

    /// The same of a close.
    #[must_use]
    pub fn is_written_through(&self, ofd: OfdIndex) -> bool {
        self.opened(ofd).is_ok_and(|open| closes_through(&open))
    }

    /// Tells what was written to an open file, and then is to wait until it is saved.
    ///
    /// # Errors
    /// As `close`.
    pub fn begin_save(&self, ofd: OfdIndex) -> Result<SaveWait<'_>> {
        let open = self.opened(ofd)?;
        self.tell_all(&open)?;
        Ok(SaveWait::new(self, open.inode))
    }

    /// Waits until a file is saved.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT` or `EIO`: it can not be; `EIO` as well if that takes too long.
    pub(crate) fn await_saved(&self, inode: Inode) -> Result<()> {
        SaveWait::new(self, inode).wait()
    }
}

/// True if a close waits until the file is saved.
pub(crate) fn closes_through(open: &Open<'_>) -> bool {
    open.has(mark::THROUGH) && open.is_writable()
}
