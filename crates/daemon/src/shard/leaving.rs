//! A service leaves the host of its first owner for good: it gets another home. Before, and in the same
//! log, it says as any other host would what the memory of this one knows alone: the files that are open
//! here, which programs may write to them, and which of them kernels behind mounts cache. Locks are in
//! the log, and sizes that are not reported come with the closes, or when they are asked for.
//!
//! No client completes anything in memory then: the lease has ended for them, so the gate is closed for
//! good, and a file that is opened from now on is registered by its opener (`shm::local_ops::served`).
//!
//! Mounts drop all pages: notices that were queued for them here come no more. Names and attributes that
//! kernels remember are waited for by the next owner, as after a takeover.

use crate::shard::Shard;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use metadata::Input;
use placement::map::WORKER_OF_TARGET;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use store::For;
use wire::Inode;
use wire::watch::MOUNT_COUNT_MAX;

/// Files in one step: their records fit the reservation of a step.
const STEP_FILES_MAX: usize = 1024;
/// Bytes of the record of a file whose openings change.
const OPENINGS_BYTES: u64 = 128;

impl Shard {
    /// Logs what the next owner has to know, while nobody may use the service. False: something waits for
    /// its next steps, or there is no space.
    pub(crate) fn leave(&mut self, shared: &Shared) -> bool {
        if self.reserve_step(For::Freeing).is_err() {
            return false;
        }
        self.close_gate(shared);
        if shared.host.op_log.has_any(self.worker) {
            // Closes of files that wait for targets.
            return false;
        }
        let host = &shared.host.segment;
        let open_sequence = host.next_open_sequence();
        // A program that does not find its file here found that the lease has ended.
        fence(SeqCst);
        let mut open = Vec::new();
        host.open_files(&mut |inode| open.push(inode));
        open.retain(|&inode| self.service.owns(inode));
        open.sort_unstable();
        open.dedup();
        let all: Vec<&[Inode]> = match open.is_empty() {
            true => vec![&[]],
            false => open.chunks(STEP_FILES_MAX).collect(),
        };
        for files in all {
            if self.reserve_step(For::Freeing).is_err() {
                return false;
            }
            self.step_closed(shared, Input::Leave { files, open_sequence });
        }
        self.leave_mounts(shared);
        true
    }

    /// The first service of this daemon has the mounts of this host drop what they may not be told of.
    fn leave_mounts(&self, shared: &Shared) {
        let (host, own) = (&shared.host.segment, self.service.number());
        if !host.has_mounts() || self.worker == WORKER_OF_TARGET {
            return;
        }
        host.doubt_pages(own - self.worker, 0);
        (1..=MOUNT_COUNT_MAX as u8).for_each(|mount| host.set_behind(mount, own, false));
        shared.inboxes.send_to_worker(WORKER_OF_TARGET, WorkerMessage::DoubtNotices);
    }

    /// It stays after all.
    pub(crate) fn stay(&mut self, shared: &Shared) {
        let mut count = 0;
        shared.host.segment.open_files(&mut |_| count += 1);
        if let Err(errno) = self.reserve_more(count * OPENINGS_BYTES, For::Freeing) {
            // Files that are closed here stay open in the log, until the next start of the service.
            return tracing::error!(worker = self.worker, %errno, "log is full");
        }
        self.close_gate(shared);
        self.step_closed(shared, Input::Stay);
        self.open_gate(shared);
    }
}
