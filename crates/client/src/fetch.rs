//! Bytes of other hosts that are fetched before a reader asks for them (F4), where the instance is set
//! so.
//!
//! Who reads on from where he left off finds the next bytes in buffers of the stage, which the daemon
//! filled meanwhile. They are his open file description's alone, at most a second old, and of no use once
//! somebody on this host changed the file since they were asked for. What another host writes meanwhile
//! they do not show.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, fence};
use placement::piece;
use shm::host::Vnode;
use shm::stage::Buffer;
use shm::stage::ahead::{Ahead, Found};
use shm::wait::{self, Backoff, Next};
use wire::Request;
use wire::errno::{Errno, Result};
use wire::limits::{STAGE_BUFFER_BYTES, STAGE_BUFFER_COUNT};

use crate::Client;
use crate::attach::Attachment;
use crate::layout::File;
use crate::opened::Open;
use crate::request::To;

/// Buffers of the stage that may hold what nobody asked for.
const AHEAD_MAX: usize = STAGE_BUFFER_COUNT / 2;
/// Buffers ahead of one reader at most: 2 MiB, a millisecond of a fast network.
const WINDOW_MAX: u64 = 8;
/// How old bytes may be.
const AGE_MICROS_MAX: u64 = 1_000_000;
/// How long one sleep lasts before it is asked whether the daemon is still there.
const SLEEP_MICROS: u64 = 10_000;

/// A change of a file's bytes on this host, from before its beginning until after its end.
pub(crate) struct Changing<'a>(Option<&'a AtomicU64>);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.0 {
            changes.fetch_add(1, SeqCst);
        }
    }
}

impl Client {
    /// True if bytes of other hosts are fetched ahead of readers.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.reads_ahead.load(Relaxed)
    }

    /// Nothing that was fetched ahead before, or is meanwhile, is read any more.
    pub(crate) fn changing<'a>(&self, vnode: &'a Vnode) -> Changing<'a> {
        let changes = self.reads_ahead().then_some(&vnode.changes);
        if let Some(changes) = changes {
            changes.fetch_add(1, SeqCst);
        }
        Changing(changes)
    }

    /// Reads all of `to` at `offset`, which is within the file.
    ///
    /// # Errors
    /// `EIO`.
    #[inline]
    pub(crate) fn read_bytes(
        &self,
        open: &Open<'_>,
        file: &File,
        offset: u64,
        to: &mut [u8],
    ) -> Result<()> {
        if !self.reads_ahead() || file.is_posix() {
            return self.read_pieces(file, offset, to);
        }
        self.read_ahead(open, file, offset, to)
    }

    #[inline(never)]
    fn read_ahead(&self, open: &Open<'_>, file: &File, offset: u64, to: &mut [u8]) -> Result<()> {
        let home = self.home()?;
        let end = offset.saturating_add(to.len() as u64);
        let done = self.read_fetched(home, open, offset, to);
        let rest = to.get_mut(done..).unwrap_or_default();
        if !rest.is_empty() {
            self.read_pieces(file, offset.saturating_add(done as u64), rest)?;
        }
        self.fetch_on(home, open, file, (offset, end));
        Ok(())
    }

    /// Copies what is there already; how much that is.
    fn read_fetched(
        &self,
        home: &Attachment,
        open: &Open<'_>,
        offset: u64,
        to: &mut [u8],
    ) -> usize {
        let mut done = 0usize;
        while done < to.len() {
            let at = offset.saturating_add(done as u64);
            if at >= open.fetched_to() {
                break;
            }
            let Some((buffer, ahead, is_hole)) = self.fetched(home, open, at) else { break };
            let skip = usize::try_from(at.saturating_sub(ahead.offset)).unwrap_or(usize::MAX);
            let left = (ahead.length as usize).saturating_sub(skip);
            let count = left.min(to.len().saturating_sub(done));
            let Some(part) = to.get_mut(done..done.saturating_add(count)) else { break };
            if is_hole {
                part.fill(0);
            } else if buffer.copy_out_from(skip, part).is_err() {
                break;
            }
            done = done.saturating_add(count);
            if count < left {
                buffer.keep_ahead();
            }
        }
        done
    }

    /// The buffer with the byte at `at`; waits while it is on its way.
    fn fetched<'a>(
        &self,
        home: &'a Attachment,
        open: &Open<'_>,
        at: u64,
    ) -> Option<(Buffer<'a>, Ahead, bool)> {
        let (stage, generation) = (home.session.stage(), open.words.generation.load(Relaxed));
        let mut backoff = Backoff::new();
        let mut deadline = None;
        loop {
            match stage.find_ahead(open.index, generation, at) {
                Found::Nothing => return None,
                Found::Here { buffer, ahead, is_hole } => {
                    let age = wait::now_micros().saturating_sub(ahead.stamp);
                    let is_good = ahead.inode == open.inode
                        && ahead.changes == open.vnode.changes.load(SeqCst)
                        && age <= AGE_MICROS_MAX;
                    if !is_good {
                        // Nor is what was asked for with it.
                        stage.drop_ahead(open.index, generation);
                        open.set_fetched_to(0);
                    }
                    return is_good.then_some((buffer, ahead, is_hole));
                }
                Found::OnItsWay if backoff.pause() == Next::Look => {}
                Found::OnItsWay => {
                    let now = wait::now_micros();
                    let deadline =
                        *deadline.get_or_insert(now.saturating_add(self.timeout_micros()));
                    if now >= deadline || !home.is_there() {
                        return None;
                    }
                    stage.wait_ahead(open.index, generation, at, SLEEP_MICROS);
                    // Who shared the open file may have been killed before he asked for it.
                    stage.free_unasked();
                }
            }
        }
    }

    /// Asks for what comes next, if somebody reads on.
    fn fetch_on(&self, home: &Attachment, open: &Open<'_>, file: &File, (offset, end): (u64, u64)) {
        if open.read_to() != offset {
            self.drop_fetched(open);
            open.set_fetched_to(0);
            open.set_read_to(end, 0);
            return;
        }
        let window = open.window().saturating_mul(2).clamp(1, WINDOW_MAX);
        open.set_read_to(end, window);
        let step = STAGE_BUFFER_BYTES as u64;
        let size = open.size();
        let limit = end.saturating_add(window.saturating_mul(step));
        let mut at = open.fetched_to().max(end);
        // Pieces of this host may lie between: they are passed over, and so few at a time.
        for _ in 0..WINDOW_MAX.saturating_mul(2) {
            if at >= size {
                break;
            }
            let span = piece::at(at, file.chunk_log2());
            let cut = at.checked_div(step).unwrap_or(0).saturating_add(1).saturating_mul(step);
            let Ok(target) = self.target_of(file, at) else { break };
            if !matches!(self.mapped(target), Ok(None)) {
                at = span.end();
                continue;
            }
            let to = cut.min(span.end()).min(size);
            if to > limit || self.fetch(home, open, file, (at, to), To::Target(target)).is_err() {
                break;
            }
            at = to;
            open.set_fetched_to(at);
        }
    }

    /// Asks for a part. It may be refused and not come at all.
    fn fetch(
        &self,
        home: &Attachment,
        open: &Open<'_>,
        file: &File,
        (offset, end): (u64, u64),
        to: To,
    ) -> Result<()> {
        let (by, worker, owner) = self.route(to)?;
        let stage = home.session.stage();
        let now = wait::now_micros();
        let since = now.saturating_sub(AGE_MICROS_MAX);
        if !core::ptr::eq(by, home) || stage.count_ahead(since) >= AHEAD_MAX {
            return Err(Errno::EAGAIN);
        }
        let buffer = stage.try_take_old(since)?;
        let slot = home.session.claim(0)?;
        let changes = open.vnode.changes.load(SeqCst);
        fence(SeqCst);
        if open.vnode.has_pending() {
            // Of a write that is over and has not arrived.
            return Err(Errno::EAGAIN);
        }
        let (inode, chunk_log2) = (file.inode, file.chunk_word());
        let length = u32::try_from(end.saturating_sub(offset)).map_err(|_| Errno::EINVAL)?;
        let index = buffer.index();
        buffer.fetch_ahead(&Ahead {
            file: open.index,
            generation: open.words.generation.load(Relaxed),
            inode,
            changes,
            offset,
            length,
            stamp: now,
        })?;
        let request = Request::Fetch { inode, chunk_log2, offset, length, buffer: index };
        let asked = self.hand_in_detached(to, (by, worker, owner), slot, &request);
        if asked.is_err() {
            stage.fetched(index, None);
        }
        asked
    }

    /// An open file description is closed: nobody reads on.
    pub(crate) fn drop_fetched(&self, open: &Open<'_>) {
        if open.fetched_to() != 0
            && let Some(home) = self.home_now()
        {
            home.session.stage().drop_ahead(open.index, open.words.generation.load(Relaxed));
        }
    }
}
