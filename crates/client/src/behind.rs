//! Writes to other hosts that return before they have arrived, where the instance is set so.
//!
//! A buffer of the stage is filled and handed in, and the caller goes on; the daemon frees it when
//! it has arrived. Buffers bound what is on its way. How many of a file's are, and whether one
//! failed, is in the file's row of the host segment: whoever on this host reads the file, cuts it,
//! forces it to its devices or closes it waits until none is. If the daemon dies, whoever waits
//! hands in again what is in the buffers that he still maps.
//!
//! The piece is asked for before: so a full target refuses the write itself.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use placement::piece::Span;
use shm::host::{Vnode, VnodeIndex};
use shm::stage::Pushed;
use shm::wait;
use wire::errno::{Errno, Result};
use wire::limits::STAGE_BUFFER_COUNT;
use wire::request::ANY_CUTS;
use wire::{Inode, Layout, Request, origin};

use crate::Client;
use crate::attach::Attachment;
use crate::far::{Bytes, Part};
use crate::layout::File;
use crate::opened::{Open, o};
use crate::pieces::Want;
use crate::request::To;

/// How long one sleep lasts before it is asked whether the daemon is still there.
const SLEEP_MICROS: u64 = 50_000;

impl Client {
    /// True if writes through this open file return before they have arrived.
    pub(crate) fn writes_behind(&self, open: &Open<'_>) -> bool {
        let is_set = self.writes_behind.load(Relaxed);
        is_set && open.flags() & o::ANY_SYNC == 0 && !open.file().is_posix()
    }

    /// Hands a part in and does not wait for it.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`.
    pub(crate) fn push(
        &self,
        open: &Open<'_>,
        file: &File,
        span: &Span,
        part: Part,
        bytes: &Bytes<'_>,
    ) -> Result<()> {
        self.piece(part.target, file, span, Want::Write, 0)?;
        let vnode = VnodeIndex(open.words.vnode.load(Relaxed));
        let to = To::Target(part.target);
        let deadline = wait::now_micros().saturating_add(self.timeout_micros());
        let mut for_lost = self.patience_for_lost();
        loop {
            let Ok((by, worker, owner)) = self.route(to) else {
                self.back_off(&mut for_lost)?;
                continue;
            };
            let Ok(mut buffer) = by.session.stage().take(SLEEP_MICROS) else {
                if wait::now_micros() >= deadline {
                    return Err(Errno::EIO);
                }
                if !by.is_there() {
                    self.push_again();
                }
                continue;
            };
            let slot = by.session.claim(self.timeout_micros())?;
            bytes.fill(&part, &mut buffer)?;
            let pushed = Pushed {
                inode: file.inode,
                vnode,
                target: part.target,
                chunk_log2: file.chunk_word(),
                offset: part.offset,
                length: part.length as u32,
                stamp: wait::now_micros(),
            };
            buffer.describe(&pushed)?;
            let request = Request::Push { buffer: buffer.index() };
            // Daemon and start: what is on its way to one that died comes before what is new.
            if !open.vnode.begin_push(by.welcome.origin >> origin::START_SHIFT) {
                drop((slot, buffer));
                self.settle(open.vnode)?;
                continue;
            }
            // From here on the bytes arrive whatever becomes of this process.
            buffer.push()?;
            return self.hand_in_detached(to, (by, worker, owner), slot, &request);
        }
    }

    /// Waits until nothing of a file is on its way from this host.
    ///
    /// # Errors
    /// `EIO` if nothing arrives within the timeout; what is on its way is counted as lost then.
    pub(crate) fn settle(&self, vnode: &Vnode) -> Result<()> {
        if !vnode.has_pending() {
            return Ok(());
        }
        let deadline = wait::now_micros().saturating_add(self.timeout_micros());
        while !vnode.wait_pushed(SLEEP_MICROS) {
            self.push_again();
            if wait::now_micros() >= deadline {
                vnode.give_up_pushes();
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }

    /// As `settle`, and tells what did not arrive since it was told last; and kernels behind mounts of
    /// other hosts that something arrived.
    ///
    /// # Errors
    /// As `settle`; `ENOSPC`, `EIO`.
    pub(crate) fn settle_all(&self, open: &Open<'_>) -> Result<()> {
        let vnode = open.vnode;
        let is_behind = self.writes_behind.load(Relaxed);
        if is_behind && self.attachments.each().count() > 1 {
            // Whatever others think of it: what this process handed in is not lost.
            self.push_again();
        }
        self.settle(vnode)?;
        if is_behind {
            self.tell_of_arrived(open)?;
        }
        vnode.take_failure()
    }

    /// Hands in again what this process had handed in to daemons that are gone.
    fn push_again(&self) {
        for by in self.attachments.each() {
            if !by.is_there() {
                self.lose(by);
                (0..STAGE_BUFFER_COUNT).for_each(|index| self.push_again_one(by, index));
            }
        }
    }

    fn push_again_one(&self, by: &Attachment, index: usize) {
        let Some((buffer, pushed)) = by.session.stage().take_pushed(index) else { return };
        let layout = Layout { chunk_log2: pushed.chunk_log2, ..Layout::default() };
        let file = File { inode: pushed.inode, layout, good_for: ANY_CUTS };
        let (offset, length) = (pushed.offset, pushed.length as usize);
        let part = Part { target: pushed.target, offset, place: 0, length };
        let outcome = self.move_whole(&file, part, &mut Bytes::Staged(&buffer, length));
        let row = self.host().and_then(|host| host.vnode(pushed.vnode));
        if let Ok(row) = row
            && Inode(row.inode.load(SeqCst)) == pushed.inode
        {
            row.end_push(outcome);
        }
    }
}
