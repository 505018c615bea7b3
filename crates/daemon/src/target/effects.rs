//! Performs the effects of a `data::Target`. Each part of `Performers` owns the state of one kind of
//! effects; nothing here steps the core, so what an effect leads to later comes as an input
//! (`inputs`, `ticks`).

use crate::backing::{BackingLocations, FetchKind};
use crate::shared::Shared;
use crate::shared::reply::{ReplyTo, encode_extents, encode_reply};
use crate::target::devices::Devices;
use crate::target::pending::{PendingRequest, PendingRequests, RefuseFor, deliver_answer};
use crate::target::space::accounts::{AccountWaits, encode_held};
use crate::target::space::admission::SpaceWait;
use crate::target::space::preallocate::Preallocation;
use crate::target::space::prepare::{ProvisionOrder, ProvisionQueue};
use crate::target::space::slots::SlotMemory;
use crate::target::tiering::demotion::{CopyJob, CopyQueue, HiddenExtents, HideReason};
use crate::target::tiering::lending::BlockReleaseQueue;
use crate::target::tiering::spill::{SpillReleases, move_spilled, read_spilled};
use data::{Answer, Effect, Target, Validity};
use std::sync::Arc;
use wire::reply::Extent;
use wire::{Reply, Request};

/// Performers of the effects of a target.
pub(crate) struct Performers {
    /// Memory and SSD, and the extent table.
    pub(crate) devices: Arc<Devices>,
    /// Memory of the extent table.
    pub(crate) slot_memory: SlotMemory,
    /// Requests that are not answered yet.
    pub(crate) pending: PendingRequests,
    /// Requests that wait for an owner or an allowance.
    pub(crate) account_waits: AccountWaits,
    /// Requests that wait for space.
    pub(crate) space_wait: SpaceWait,
    /// Extents hidden since the last check of hazard pointers.
    pub(crate) hidden: HiddenExtents,
    /// Orders for the thread that copies extents.
    pub(crate) copies: CopyQueue,
    /// Orders for the thread that provisions space.
    pub(crate) provisions: ProvisionQueue,
    /// Orders for the thread that releases memory.
    pub(crate) block_releases: BlockReleaseQueue,
    /// Preallocated extents.
    pub(crate) preallocation: Preallocation,
    /// Locations of files in the backing store.
    pub(crate) locations: BackingLocations,
    /// Extents to be released on spill hosts.
    pub(crate) spill_releases: SpillReleases,
}

impl Performers {
    /// Performs one effect. A check of hazard pointers is returned instead, because its result is a
    /// separate input.
    pub(crate) fn perform(
        &mut self,
        shared: &Shared,
        target: &Target,
        effect: Effect,
    ) -> Option<u64> {
        match effect {
            Effect::CheckHazards { round } => return Some(round),
            Effect::Copy { ticket, class, job, from, to } => {
                let copy = CopyJob { ticket, from, to, class };
                if [from.tier, to.tier].contains(&Extent::SPILLED) {
                    move_spilled(shared, &self.devices, copy);
                } else {
                    self.copies.submit_copy(&shared.metrics.daemon, copy, job);
                }
            }
            Effect::ReleaseSpilled { slot, location } => {
                self.spill_releases.begin_release(slot, location);
            }
            Effect::ReadSpilled { ticket, extent, within, length } => {
                if let Err(errno) = read_spilled(shared, ticket, &extent, (within, length)) {
                    self.pending.answer_read(shared, ticket, Err(errno));
                }
            }
            Effect::Provision { tier, location: place, length, haste } => {
                let order = ProvisionOrder { tier, place, length, haste };
                self.provisions.submit_order(&shared.inboxes, order);
            }
            Effect::GiveBack { location, length_log2 } => {
                let block = (location, length_log2);
                self.block_releases.release_block(&shared.lending, &shared.inboxes, block);
            }
            Effect::LocateBacking { inode } => self.locations.locate_for_target(shared, inode),
            Effect::QueryClean { inode, number } => {
                let to = ReplyTo::IsClean { inode, number };
                shared.ask_shard_of(inode, &Request::IsClean { inode }, to);
            }
            Effect::Fill { ticket, inode, extent, length, haste, job } => {
                let kind = FetchKind::Fill { extent, length, haste };
                self.locations.fetch_bytes(shared, (ticket, inode, job), kind);
            }
            Effect::ReadBacking { ticket, inode, offset, length, backing, job } => {
                let kind = FetchKind::Read { offset, length, backing };
                self.locations.fetch_bytes(shared, (ticket, inode, job), kind);
            }
            Effect::Wait { ticket } => self.space_wait.begin_wait(&mut self.pending, ticket),
            Effect::RequestSpace { round } => self.space_wait.request_space(shared, round),
            Effect::Reply { ticket, answer } => self.reply(shared, ticket, answer),
            Effect::Zero { .. }
            | Effect::Read { .. }
            | Effect::Write { .. }
            | Effect::CountPages { .. }
            | Effect::Flush { .. } => self.perform_on_bytes(effect),
            effect => self.perform_on_entries(target, effect),
        }
        None
    }

    /// Effects on bytes of a request.
    fn perform_on_bytes(&mut self, effect: Effect) {
        let Performers { devices, pending, .. } = self;
        match effect {
            Effect::Zero { ticket, extent, within, length } => {
                pending.attempt(ticket, |_| devices.target().zero_stable(&extent, within, length));
            }
            Effect::Read { ticket, from, length } => {
                pending.attempt(ticket, |one| one.read_from(devices, from, length));
            }
            Effect::Write { ticket, extent, within, from, length } => {
                let to = (&extent, within);
                pending.attempt(ticket, |one| one.write_to(devices, to, from, length));
            }
            Effect::CountPages { ticket, extents, end } => pending.attempt(ticket, |one| {
                let bytes = |extent| devices.states.bytes_counted(extent, end);
                one.counted = extents.iter().map(bytes).sum();
                Ok(())
            }),
            Effect::Flush { ticket } => pending.attempt(ticket, |_| devices.ssd.sync()),
            other => tracing::error!(?other, "unhandled effect"),
        }
    }

    /// Effects on entries of the extent table, in order.
    fn perform_on_entries(&mut self, target: &Target, effect: Effect) {
        let devices = &*self.devices;
        match effect {
            Effect::Publish { inode, extent, .. } if extent.tier == Extent::SPILLED => {
                devices.publish_spilled(inode, &extent, target.is_pinned(inode));
            }
            Effect::Publish { inode, extent, valid } => {
                devices.publish_extent(inode, &extent, valid, target.is_pinned(inode));
                if valid == Validity::Preallocated {
                    self.preallocation.register_extent(inode, &extent);
                }
            }
            Effect::Hide { slot } => self.hidden.hide_extent(devices, slot, HideReason::Moving),
            Effect::HideToEvict { slot } => {
                self.hidden.hide_extent(devices, slot, HideReason::Evicting);
            }
            effect => devices.change_entry(effect),
        }
    }

    fn reply(&mut self, shared: &Shared, ticket: u64, answer: Answer) {
        let Some(pending) = self.pending.take_request(ticket) else { return };
        let PendingRequest {
            to,
            bytes: brought,
            answer: bytes,
            fetched_log2,
            counted,
            failed,
            again,
            job,
            waits_since,
            refuse_for,
        } = pending;
        let waited_micros =
            waits_since.map_or(0, |since| SpaceWait::note_duration(&shared.metrics, since));
        if let Some(errno) = failed {
            return shared.refuse(to, errno);
        }
        let again = again.map(|(inode, request)| match request {
            Request::Write { inode, stripe_log2, offset, truncate_epoch, .. } => (
                inode,
                Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes: &brought },
            ),
            request => (inode, request),
        });
        match (answer, again) {
            (Answer::Number(value), _) => {
                deliver_answer(shared, to, Answer::Number(value + counted), &bytes);
            }
            (Answer::OverLimit { account, requested }, Some((inode, request)))
                if refuse_for != RefuseFor::Limit =>
            {
                let held = (inode, encode_held(&request, job));
                let missing = (account, requested);
                self.account_waits.request_allowance(&shared.inboxes, held, missing, to);
            }
            (Answer::Extents(extents), _) => {
                let waited = u32::try_from(waited_micros).unwrap_or(u32::MAX);
                shared.answer(to, &encode_extents(&extents, waited));
            }
            (Answer::Bytes { .. }, _) if fetched_log2 > 0 => {
                let reply = Reply::FetchedBytes { fetched_log2, bytes: &bytes };
                shared.answer(to, &encode_reply(&reply, bytes.len()));
            }
            (answer, _) => deliver_answer(shared, to, answer, &bytes),
        }
    }
}
