//! Messages of other threads to the target, as inputs of the core.

use crate::backing::{EndedQuery, FetchOutcome};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::{LOST_MICROS, PartAnswer, ReplyTo};
use crate::target::driver::TargetLoop;
use crate::target::pending::RefuseFor;
use crate::target::space::admission::SpaceReport;
use crate::target::tiering::demotion::DemotionTimer;
use crate::target::tiering::lending::note_lent;
use crate::units::{StoreOrder, StripeBytes};
use data::Input;
use wire::errno::{Errno, Result};
use wire::limits::STRIPE_LOG2_MIN;
use wire::quota::{Account, Owner};
use wire::reply::Extent;
use wire::request::{ANY_TRUNCATE_EPOCH, prefetch};
use wire::{Inode, JobWord, Layout, Request};

impl TargetLoop {
    /// Handles a message for the target.
    pub(crate) fn take_target_message(&mut self, shared: &Shared, message: WorkerMessage) {
        match message {
            WorkerMessage::Provisioned(outcome) => {
                self.step(shared, Input::Provisioned { outcome });
            }
            WorkerMessage::Copied { ticket, outcome } => {
                self.step(shared, Input::Copied { ticket, outcome });
                self.timers.demotion.end_pause();
            }
            WorkerMessage::ReadSpilled { ticket, extent, outcome } => {
                self.read_spilled_ended(shared, ticket, &extent, outcome);
            }
            WorkerMessage::StoreCopy(StoreOrder { ticket, to, bytes }) => {
                let StripeBytes { inode, stripe_log2, offset, .. } = to;
                let (bytes, truncate_epoch) = (&*bytes, ANY_TRUNCATE_EPOCH);
                let write = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes };
                self.request(shared, (&write, JobWord::NONE), ReplyTo::StoredCopy { ticket });
            }
            WorkerMessage::Slow { others } => self.step(shared, Input::Slow { others: &others }),
            WorkerMessage::SpilledReleased { slot, answer } => {
                self.spill_release_answered(shared, slot, answer);
            }
            WorkerMessage::Lend { bytes, reason } => {
                self.act(shared, |target, effects| target.lend(bytes, effects));
                note_lent(&shared.lending, &shared.metrics, &self.target);
                shared.lending.note_reason(reason);
                self.timers.demotion = DemotionTimer::new();
            }
            WorkerMessage::GivenBack { place: location, length_log2, outcome } => {
                self.step(shared, Input::GivenBack { location, length_log2, outcome });
            }
            WorkerMessage::Evict { inode } => {
                // Only a query needs the file's own layout and size.
                let layout = Layout { stripe_log2: STRIPE_LOG2_MIN, ..Layout::default() }.word();
                let (what, size, list, index, group) = (prefetch::EVICT, 0, 0, 0, 1);
                let request = Request::Prefetch { inode, what, layout, size, list, index, group };
                self.request(shared, (&request, JobWord::NONE), ReplyTo::Nobody);
            }
            WorkerMessage::Count => self.begin_counting(shared),
            WorkerMessage::Owners { query, answer } => self.owners(shared, query, &answer),
            WorkerMessage::BackingLocated { inode, answer } => {
                let ended = self.performers.locations.note_answer(shared, inode, &answer);
                self.location_query_ended(shared, inode, ended);
            }
            WorkerMessage::IsClean { inode, number, is_clean } => {
                self.step(shared, Input::IsClean { inode, number, is_clean });
            }
            WorkerMessage::Fetched { ticket, outcome } => self.fetched(shared, ticket, outcome),
            WorkerMessage::GaveBack { by, answer } => {
                let has_backing = shared.backing.is_some();
                let report = self.performers.space_wait.note_freed(has_backing, by, &answer);
                self.space_round_ended(shared, report);
            }
            WorkerMessage::Allowed { account, denied } => self.allowed(shared, account, denied),
            _ => {}
        }
    }

    /// Starts counting space by account.
    fn begin_counting(&mut self, shared: &Shared) {
        self.target.count();
        shared.ledger.switch_on();
        self.performers.account_waits.update_ledger(shared, &self.target);
        self.performers.account_waits.ask_unknown(shared, &self.target);
    }

    /// A shard answered a query about owners.
    fn owners(&mut self, shared: &Shared, query: u64, answer: &[u8]) {
        let owners = self.performers.account_waits.owners_answered(query, answer);
        let Some(owners) = owners else { return };
        for (inode, owner, changed) in owners {
            self.target.set_owner(inode, owner, changed);
            let waits = self.performers.account_waits.waits_for_owner(inode);
            match owner {
                Owner::GONE if waits => {
                    self.performers.account_waits.refuse_held(shared, inode, Errno::ESTALE);
                }
                _ if waits => self.resume(shared, inode, RefuseFor::None),
                _ => {}
            }
        }
        self.performers.account_waits.update_ledger(shared, &self.target);
        self.performers.account_waits.ask_unknown(shared, &self.target);
    }

    /// An allowance has changed, or (`denied`) an increase was denied: held requests continue.
    fn allowed(&mut self, shared: &Shared, account: Account, denied: bool) {
        let first = if denied { RefuseFor::Limit } else { RefuseFor::None };
        let waiting = self.performers.account_waits.waiting_for(account);
        waiting.into_iter().for_each(|inode| self.resume(shared, inode, first));
    }

    /// A query for the backing location of a file has ended.
    pub(crate) fn location_query_ended(
        &mut self,
        shared: &Shared,
        inode: Inode,
        ended: Option<EndedQuery>,
    ) {
        let Some(EndedQuery { failed, located }) = ended else { return };
        for (ticket, outcome) in failed {
            self.fetched(shared, ticket, outcome);
        }
        if let Some(outcome) = located {
            self.step(shared, Input::BackingLocated { inode, outcome });
        }
    }

    /// A fetch has completed, failed, or found its file missing.
    fn fetched(&mut self, shared: &Shared, ticket: u64, outcome: FetchOutcome) {
        match outcome {
            FetchOutcome::Missing(fetch) => self.performers.locations.retry_missing(ticket, fetch),
            FetchOutcome::Filled(outcome) => self.step(shared, Input::Filled { ticket, outcome }),
            FetchOutcome::Read(outcome) => {
                self.performers.pending.answer_read(shared, ticket, outcome);
            }
        }
    }

    /// A round in which services were asked for space has ended.
    pub(crate) fn space_round_ended(&mut self, shared: &Shared, report: Option<SpaceReport>) {
        if let Some(SpaceReport { round, comes, progresses }) = report {
            self.step(shared, Input::SpaceReported { round, comes, progresses });
        }
    }

    /// Bytes of a spilled extent have arrived, or an error. If the extent has been moved back
    /// meanwhile, the reader retries.
    fn read_spilled_ended(
        &mut self,
        shared: &Shared,
        ticket: u64,
        extent: &Extent,
        outcome: Result<Vec<u8>>,
    ) {
        let pending = &mut self.performers.pending;
        if outcome.is_err() && !self.target.has_extent(extent) {
            if let Some(pending) = pending.take_request(ticket) {
                shared.busy(pending.to, LOST_MICROS);
            }
            return;
        }
        pending.answer_read(shared, ticket, outcome);
    }

    /// A spill host answered a release.
    fn spill_release_answered(&mut self, shared: &Shared, slot: u32, answer: PartAnswer) {
        if self.performers.spill_releases.note_answer(&shared.net, slot, answer) {
            self.step(shared, Input::SpilledReleased { slot });
        }
    }
}
