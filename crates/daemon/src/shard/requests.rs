//! Requests for the shards of a worker, and messages of other threads to their service.

use crate::backing::{ListingPart, as_backing_entries};
use crate::shard::driver::Shard;
use crate::shard::local_ops::space_of_local_ops;
use crate::shared::Shared;
use crate::shared::gone_hosts::GoneHost;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::{FULL_MICROS, LOST_MICROS, PartAnswer, RemovalPlace, ReplyTo};
use metadata::{BackingDirPart, Input};
use std::ops::Range;
use std::time::Instant;
use store::For;
use wire::errno::Result;
use wire::limits::SHARD_COUNT;
use wire::quota::Account;
use wire::request::{coming, set};
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// Bytes of the log for other inode numbers in all shards.
const RENEWED_BYTES: u64 = 16 * SHARD_COUNT as u64;
/// Maximum number of tokens of finished removals in one step.
const TOKENS_MAX: usize = 1024;

impl Shard {
    /// Handles a request for a shard of this service.
    pub(crate) fn request(
        &mut self,
        shared: &Shared,
        header: &Header,
        request: Request<'_>,
        to: ReplyTo,
    ) {
        if shared.shipments().is_some_and(|it| it.is_behind(self.worker)) && comes_again(&to) {
            return shared.busy(to, FULL_MICROS);
        }
        if let Err(errno) = self.reserve_step(purpose(&request)) {
            return shared.refuse(to, errno);
        }
        if let Request::Replicate {} = request {
            // Operations that clients completed in shared memory are in the log then.
            self.take_local_ops(shared);
            return self.performers.answer_when_replicated(shared, to);
        }
        if let Request::Extend { inode, .. } = request
            && header.client_id == u64::MAX
            && header.host == shared.net.host_number
            && !self.service.is_quiet(inode)
        {
            // On behalf of a killed process of this host; it is repeated until the service accepts
            // it.
            return shared.busy(to, LOST_MICROS);
        }
        if let Request::GiveBack { target } = request {
            return self.free_removed_space(shared, DaemonIndex(target), to);
        }
        let ticket = match request {
            Request::Lock { .. } => self.performers.tickets.register_lock(to),
            _ => self.ticket(to),
        };
        self.note_operations(shared, 1);
        self.close_gate(shared);
        self.step_closed(shared, Input::Request { ticket, header, request });
        if let Request::Create { .. } = request {
            self.keep_numbers(shared, ShardIndex(header.shard));
        }
        self.open_gate(shared);
    }

    /// A target has run out of space: frees its extents of removed files now. Answers whether more
    /// space is to be freed.
    fn free_removed_space(&mut self, shared: &Shared, target: DaemonIndex, to: ReplyTo) {
        self.step_reserved(shared, Input::GiveBack);
        self.performers.removals.end_gathering(shared.net.router.daemon_count());
        self.performers.removals.send_due(shared, self.worker);
        let is_freeing = self.service.is_freeing() || self.performers.removals.is_in_flight(target);
        let (is_saving, saved) = self.service.writes_back_for_space();
        let is_saving = shared.report_sizes_for_space() || is_saving;
        let value = coming::value(is_freeing, is_saving, saved);
        shared.answer_with(to, &Reply::Number { value });
    }

    /// Handles a message of another service. It is dropped if the log is full; the sender repeats
    /// it.
    pub(crate) fn take_peer_message(&mut self, shared: &Shared, message: &[u8]) {
        self.step(shared, Input::Peer { message });
    }

    /// Takes an answer that the service or its followers wait for. Returns any other message.
    pub(crate) fn take_answer(
        &mut self,
        shared: &Shared,
        message: WorkerMessage,
    ) -> Option<WorkerMessage> {
        match message {
            WorkerMessage::Part { job, daemon, answer } => {
                self.part_answered(shared, job, daemon, answer);
            }
            WorkerMessage::Removals { place, answer } => {
                self.removals_answered(shared, place, answer);
            }
            WorkerMessage::ListingPart { directory, outcome } => {
                self.directory_listed(shared, directory, &outcome);
            }
            WorkerMessage::Looked { key, outcome } => self.name_probed(shared, key, outcome),
            WorkerMessage::UnitsLost { loss } => self.units_lost(shared, loss),
            WorkerMessage::Grown => self.step(shared, Input::Tick),
            WorkerMessage::DoubtNotices => self.step(shared, Input::DoubtNotices),
            WorkerMessage::Replicated { ticket } => self.replicated(shared, ticket),
            WorkerMessage::Slice { lane, cursor } => self.ship_slice(shared, lane, cursor),
            message => return Some(message),
        }
        None
    }

    /// Client ids that are gone.
    pub(crate) fn client_gone(&mut self, shared: &Shared, first: u64, count: u64) {
        self.step(shared, Input::ClientGone { first, count });
    }

    /// The host of the first owner is gone, with its open files and locks: nothing waits for it any more.
    pub(crate) fn host_gone(&mut self, shared: &Shared, host: u16) {
        self.step(shared, Input::HostGone { host });
        self.step(shared, Input::OpensKnown);
    }

    /// A host is gone, and another one comes in its place.
    pub(crate) fn host_lost(&mut self, shared: &Shared, gone: GoneHost) {
        // While it is known what its programs have open.
        let Range { start: first, end } = shared.gone_hosts.daemons_of(gone.host);
        self.step(shared, Input::TargetsLost { first, end });
        self.step(shared, Input::HostGone { host: gone.host });
        if shared.gone_hosts.note(self.worker, gone) {
            self.step(shared, Input::OpensKnown);
        }
    }

    /// Units of file data have lost all their copies: files that are made from now on are younger.
    pub(crate) fn units_lost(&mut self, shared: &Shared, loss: u64) {
        if let Err(errno) = self.reserve_more(RENEWED_BYTES, For::Freeing) {
            // They count as older: what is not written there is an error instead of zeros.
            return tracing::error!(%errno, loss, "no log space to note that data was lost");
        }
        self.step_closed(shared, Input::UnitsLost { loss });
    }

    /// The target of this daemon needs `requested` more bytes for an account.
    pub(crate) fn draw_space(&mut self, shared: &Shared, account: Account, requested: u64) {
        self.step(shared, Input::DrawSpace { account, more: requested });
    }

    /// Entries of a backing directory have arrived, or an error.
    fn directory_listed(
        &mut self,
        shared: &Shared,
        directory: Inode,
        outcome: &Result<ListingPart>,
    ) {
        // With a full log nothing is imported; a refusal needs no log space.
        let outcome = match (outcome, self.reserve_step(For::Any)) {
            (Ok(listed), Ok(())) => Ok((listed.as_backing_entries(), listed.is_last)),
            (Err(errno), _) => Err(*errno),
            (_, Err(errno)) => Err(errno),
        };
        let outcome = match &outcome {
            Ok((entries, is_last)) => Ok(BackingDirPart { entries, is_last: *is_last }),
            Err(errno) => Err(*errno),
        };
        self.step(shared, Input::BackingDirRead { directory, outcome });
    }

    /// A name was probed in the backing store.
    fn name_probed(
        &mut self,
        shared: &Shared,
        key: u128,
        outcome: Result<Box<Option<::backing::Entry>>>,
    ) {
        // As for entries of a directory.
        let outcome = match (outcome, self.reserve_step(For::Any)) {
            (Ok(entry), Ok(())) => Ok(entry),
            (Err(errno), _) | (_, Err(errno)) => Err(errno),
        };
        let outcome = match &outcome {
            Ok(entry) => Ok(entry.as_ref().as_ref().map(as_backing_entries)),
            Err(errno) => Err(*errno),
        };
        self.step(shared, Input::Probed { key, outcome });
    }

    /// The sender of a request is dead.
    pub(crate) fn withdrawn(&mut self, shared: &Shared, client_id: u64, sequence: u64) {
        self.step(shared, Input::Withdrawn { client_id, sequence });
    }

    /// A target answered its part of a job.
    fn part_answered(&mut self, shared: &Shared, job: u64, daemon: u16, answer: PartAnswer) {
        if let Some((token, result)) = self.performers.jobs.answered(job, daemon, answer) {
            self.step(shared, Input::DataDone { token, result });
        }
    }

    /// A target answered a request of `Removals::send_due`.
    fn removals_answered(&mut self, shared: &Shared, place: RemovalPlace, answer: PartAnswer) {
        let done = self.performers.removals.answered(Instant::now(), place, answer);
        for tokens in done.iter().flat_map(|tokens| tokens.chunks(TOKENS_MAX)) {
            self.step_beside_local_ops(shared, Input::Removed { tokens });
        }
        self.performers.removals.send_due(shared, self.worker);
        self.send_replies(shared);
    }

    pub(crate) fn step(&mut self, shared: &Shared, input: Input<'_>) {
        match self.reserve_step(For::Freeing) {
            Ok(()) => self.step_reserved(shared, input),
            Err(errno) => tracing::error!(worker = self.worker, %errno, "log is full"),
        }
    }

    fn step_reserved(&mut self, shared: &Shared, input: Input<'_>) {
        self.close_gate(shared);
        self.step_closed(shared, input);
        self.open_gate(shared);
    }

    /// A step that reads no name, so local operations may continue; the log space promised to them
    /// stays reserved.
    fn step_beside_local_ops(&mut self, shared: &Shared, input: Input<'_>) {
        match self.reserve_more(space_of_local_ops(shared), For::Any) {
            Ok(()) => self.step_closed(shared, input),
            Err(_) => self.step(shared, input),
        }
    }
}

/// Whether the sender of a request sends it again when it is told to.
fn comes_again(to: &ReplyTo) -> bool {
    match to {
        ReplyTo::Slot { client, slot } => !client.slots.is_detached(usize::from(*slot)),
        ReplyTo::Peer(..) => true,
        _ => false,
    }
}

/// Whether a request may use the last of the log's space, because it frees space or only reads.
const fn purpose(request: &Request<'_>) -> For {
    match request {
        Request::Lookup { .. }
        | Request::GetAttributes { .. }
        | Request::ReadDirectory { .. }
        | Request::ReadLink { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::ReadInline { .. }
        | Request::Open { .. }
        | Request::Walk { .. }
        | Request::Unwatch { .. }
        | Request::Notices { .. }
        | Request::LookupForMount { .. }
        | Request::Quotas { .. }
        | Request::Pools { .. }
        | Request::Owners { .. }
        | Request::Names { .. }
        | Request::LocateBacking { .. }
        | Request::SyncState { .. }
        | Request::DirtyNames { .. }
        | Request::DirtyInodes { .. }
        | Request::AwaitDirty { .. }
        | Request::AwaitClean { .. }
        | Request::AwaitCleanRequests { .. }
        | Request::CleanRequests { .. }
        | Request::IsClean { .. }
        | Request::KnownLoss { .. }
        | Request::LostFiles { .. }
        | Request::CopyState { .. }
        | Request::Replicate {} => For::Reading,
        // A truncation.
        Request::SetAttributes { mask, .. } if *mask & set::SIZE != 0 => For::Freeing,
        Request::Unlink { .. }
        | Request::RemoveDirectory { .. }
        | Request::Close { .. }
        | Request::Reap { .. }
        | Request::Release { .. }
        | Request::CancelLock { .. }
        | Request::GiveBack { .. }
        | Request::GiveUpCopies { .. }
        | Request::Wrote { .. }
        | Request::NotWritten { .. }
        | Request::Gone { .. }
        | Request::NameWritten { .. }
        | Request::RemoveXattr { .. } => For::Freeing,
        _ => For::Any,
    }
}
