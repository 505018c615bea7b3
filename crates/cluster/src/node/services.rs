//! The services that this daemon owns, follows, or hands over.

use super::beats::Beats;
use super::messages::Message;
use super::{Action, StandbyStep};
use crate::REPEAT_NANOS;
use crate::change::{Change, Following, Tenure};
use crate::membership::{Follower, Membership, Seat, ServiceIndex};
use crate::shipping::follower::{FollowerOutput, Standby};
use crate::shipping::owner::{
    COPY_BYTES_MAX, JOIN_SILENCE_NANOS, LOG_BYTES_MAX, Lag, Owner, OwnerOutput,
};
use crate::shipping::{Lane, Parcel, Position, Receipt};
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;

/// Whether a daemon serves a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serving {
    /// It does.
    Yes,
    /// It owns the service, and will serve it or say that another does.
    Later,
    /// It does not own the service.
    Elsewhere,
}

/// A hand-over of a service that this daemon owns.
#[derive(Clone, Copy)]
struct Handover {
    following: Following,
    /// The daemon begins nothing any more, and has appended everything before.
    is_still: bool,
    /// When it was proposed: from then on the membership alone decides how it ends.
    proposed_at: Option<i64>,
    since: i64,
}

/// How long an owner stands still for a follower that does not get what is left. Each time that was too
/// short the next attempt has twice as long, so that on a busy machine one is the last.
const HANDOVER_NANOS: i64 = 1_000_000_000;
/// Attempts after which the time does not grow any more: clients wait as long.
const LONGER_ATTEMPTS_MAX: u32 = 3;

struct Owned {
    owner: Owner,
    handover: Option<Handover>,
    /// Hand-overs that took too long.
    attempts: u32,
    /// Epoch of the membership in which this daemon became the owner.
    in_epoch: u64,
    /// When the leases of earlier owners have ended.
    settles_at: Option<i64>,
    is_settled: bool,
    /// Epoch of the membership that the leader has to allow before anything is sent and served; 0: none.
    /// Until then another one that had all may become the owner, should this daemon die: see
    /// `Seat::successors`.
    needed: u64,
    /// Its log here is replayed.
    is_replayed: bool,
    /// This daemon cannot serve it, and never did in this epoch.
    is_unable: bool,
    /// It was proposed that this follower does, and when: this daemon does not try until that has become
    /// impossible.
    resigned: Option<(Following, i64)>,
}

impl Owned {
    /// Whether every follower that may become the owner has what this one had, and it did nothing since.
    fn has_given(&self) -> bool {
        let is_proposed = self.handover.is_some_and(|it| it.proposed_at.is_some());
        is_proposed && !self.is_unable
    }

    /// Ends the time in which nothing is sent, once that is replayed and allowed.
    const fn open(&mut self, allowed: u64) {
        if self.is_replayed && !self.is_unable && allowed >= self.needed {
            self.owner.replayed();
        }
    }
}

/// The epoch of `Owned::needed`.
fn needed(seat: &Seat) -> u64 {
    let others = seat.followers.iter().filter(|it| it.had_all);
    others.map(|it| it.since + 1).max().unwrap_or(0)
}

/// See the module.
pub(super) struct Services {
    owned: BTreeMap<ServiceIndex, Owned>,
    standbys: BTreeMap<ServiceIndex, Standby>,
    proposals: Vec<Change>,
    /// Bytes of records that an owner keeps.
    log_bytes_max: usize,
    /// See `Owner::set_copy_bytes_max`.
    copy_bytes_max: usize,
    /// See `Node::set_replays`.
    replays: bool,
    /// Epoch of the membership that the leader allowed.
    allowed: u64,
    /// Services of which this daemon takes no parcel now.
    refused: BTreeSet<ServiceIndex>,
    /// Services whose copies are lost: while the membership counts on them it is told so, since an owner
    /// that has nothing to ship would not notice.
    lost: BTreeSet<ServiceIndex>,
    told_at: i64,
    replaced_at: i64,
    /// Followers that got the delta.
    resumed: u64,
}

impl Services {
    pub(super) const fn new() -> Services {
        Services {
            owned: BTreeMap::new(),
            standbys: BTreeMap::new(),
            proposals: Vec::new(),
            log_bytes_max: LOG_BYTES_MAX,
            copy_bytes_max: COPY_BYTES_MAX,
            replays: false,
            allowed: 0,
            refused: BTreeSet::new(),
            lost: BTreeSet::new(),
            told_at: i64::MIN,
            replaced_at: i64::MIN,
            resumed: 0,
        }
    }

    pub(super) const fn set_log_bytes_max(&mut self, bytes: usize) {
        self.log_bytes_max = bytes;
    }

    pub(super) const fn set_copy_bytes_max(&mut self, bytes: usize) {
        self.copy_bytes_max = bytes;
    }

    pub(super) const fn set_replays(&mut self) {
        self.replays = true;
    }

    fn owned(&mut self, of: Tenure) -> Option<&mut Owned> {
        self.owned.get_mut(&of.service).filter(|it| it.owner.of() == of)
    }

    pub(super) fn replayed(&mut self, of: Tenure) {
        let allowed = self.allowed;
        if let Some(owned) = self.owned(of).filter(|it| !it.is_unable) {
            owned.is_replayed = true;
            owned.open(allowed);
        }
    }

    /// The leader allows an epoch of the membership.
    pub(super) fn allow(&mut self, epoch: u64) {
        let before = core::mem::replace(&mut self.allowed, epoch);
        if epoch > before {
            let waiting = self.owned.values_mut().filter(|it| it.needed > before);
            waiting.for_each(|it| it.open(epoch));
        }
    }

    pub(super) fn lost_copy(&mut self, service: ServiceIndex) {
        self.standbys.remove(&service);
        self.lost.insert(service);
    }

    pub(super) fn refuse_copy(&mut self, service: ServiceIndex) {
        self.lost_copy(service);
        self.refused.insert(service);
    }

    pub(super) fn accept_copy(&mut self, service: ServiceIndex) {
        self.refused.remove(&service);
    }

    pub(super) fn lags(&self, service: ServiceIndex) -> impl Iterator<Item = Lag> {
        self.owned.get(&service).into_iter().flat_map(|it| it.owner.lags())
    }

    pub(super) fn backlog(&self, lane: Lane) -> Option<usize> {
        self.owned.get(&lane.of.service).filter(|it| it.owner.of() == lane.of)?.owner.backlog(lane)
    }

    pub(super) fn backlog_max(&self, service: ServiceIndex) -> usize {
        self.owned.get(&service).map_or(0, |it| it.owner.backlog_max())
    }

    pub(super) const fn resumed(&self) -> u64 {
        self.resumed
    }

    pub(super) fn position(&self, service: ServiceIndex) -> Option<Position> {
        self.standbys.get(&service)?.position()
    }

    pub(super) fn has_copy(&mut self, service: ServiceIndex, position: Position) {
        self.lost.remove(&service);
        self.standbys.insert(service, Standby::returned(position));
    }

    pub(super) fn owns(&self, service: ServiceIndex) -> bool {
        self.owned.contains_key(&service)
    }

    pub(super) fn owns_any(&self) -> bool {
        !self.owned.is_empty()
    }

    pub(super) fn is_paused(&self, service: ServiceIndex) -> bool {
        let owned = self.owned.get(&service);
        owned.is_some_and(|it| it.handover.is_some() || it.owner.is_replaying())
    }

    pub(super) fn cannot_serve(&mut self, of: Tenure) {
        if let Some(owned) = self.owned(of) {
            // One that was replayed perhaps did something.
            owned.is_unable = owned.owner.is_replaying();
            owned.is_replayed &= !owned.is_unable;
        }
    }

    pub(super) fn may_try_again(&mut self, of: Tenure) -> bool {
        let owned = self.owned(of).filter(|it| it.resigned.is_none());
        let Some(owned) = owned else { return false };
        owned.is_unable = false;
        true
    }

    pub(super) fn is_settled(&self, service: ServiceIndex) -> bool {
        self.owned.get(&service).is_some_and(|it| it.is_settled)
    }

    pub(super) fn take_proposals(&mut self) -> Vec<Change> {
        core::mem::take(&mut self.proposals)
    }

    pub(super) fn append(&mut self, service: ServiceIndex, record: &[u8]) {
        if let Some(owned) = self.owned.get_mut(&service) {
            owned.owner.append(record);
        }
    }

    pub(super) fn lose(&mut self, service: ServiceIndex, now: i64) {
        if let Some(owned) = self.owned.get_mut(&service) {
            owned.owner.lose(now);
        }
    }

    pub(super) fn wait(
        &mut self,
        service: ServiceIndex,
        ticket: u64,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        if let Some(owned) = self.owned.get_mut(&service) {
            owned.owner.wait(ticket);
            let mut outputs = Vec::new();
            owned.owner.tick(now, &mut outputs);
            self.perform(service, outputs, out);
        }
    }

    pub(super) fn slice(
        &mut self,
        lane: Lane,
        batch: &[u8],
        is_last: bool,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        let service = lane.of.service;
        if let Some(owned) = self.owned.get_mut(&service)
            && owned.owner.of() == lane.of
        {
            owned.owner.slice(lane, batch, is_last);
            let mut outputs = Vec::new();
            owned.owner.tick(now, &mut outputs);
            self.perform(service, outputs, out);
        }
    }

    pub(super) fn receipt(
        &mut self,
        from: DaemonIndex,
        receipt: &Receipt,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        let service = receipt.lane.of.service;
        if let Some(owned) = self.owned.get_mut(&service) {
            let mut outputs = Vec::new();
            owned.owner.receipt(from, receipt, now, &mut outputs);
            self.perform(service, outputs, out);
            self.continue_handover(service, now, out);
        }
    }

    pub(super) fn parcel(
        &mut self,
        from: DaemonIndex,
        parcel: &Parcel<'_>,
        membership: &Membership,
        own: DaemonIndex,
        out: &mut Vec<Action>,
    ) {
        let service = parcel.lane.of.service;
        let Some(seat) = membership.seat(service) else { return };
        // An owner that this daemon does not know yet is ahead of it: the parcel comes again.
        let is_known = seat.owner == Some(from) && seat.epoch == parcel.lane.of.epoch;
        let is_refused = self.refused.contains(&service);
        if !is_known || seat.follower(own).is_none() || is_refused {
            return;
        }
        let standby = self.standbys.entry(service).or_default();
        let mut outputs = Vec::new();
        standby.receive(parcel, seat.epoch, &mut outputs);
        if standby.has_lane() {
            // From here on the owner knows what there is.
            self.lost.remove(&service);
        }
        for output in outputs {
            let step = match output {
                FollowerOutput::Begin => StandbyStep::Begin,
                FollowerOutput::Records(batch) => StandbyStep::Records(batch.to_vec()),
                FollowerOutput::Slice(batch) => StandbyStep::Slice(batch.to_vec()),
                FollowerOutput::Complete => StandbyStep::Complete,
                FollowerOutput::Receipt(receipt) => {
                    super::send(from, &Message::Receipt(receipt), out);
                    continue;
                }
            };
            out.push(Action::Store { service, step });
        }
    }

    /// The leader asks for a hand-over.
    pub(super) fn advise(
        &mut self,
        following: Following,
        membership: &Membership,
        own: DaemonIndex,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        let service = following.of.service;
        let Some(seat) = membership.seat(service) else { return };
        let Some(owned) = self.owned.get_mut(&service) else { return };
        // The next owner waits for no lease, so a successor waits for its end first.
        let is_served = seat.owner == Some(own) && (!seat.is_successor || owned.is_settled);
        let is_idle = owned.handover.is_none() && !owned.owner.is_replaying();
        let may = is_served && is_idle && owned.owner.of() == following.of;
        if may && membership.may_hand_over(following) {
            owned.handover =
                Some(Handover { following, is_still: false, proposed_at: None, since: now });
            out.push(Action::Pause(service));
            // Records appended before are sent at once.
            owned.owner.hurry();
            let mut outputs = Vec::new();
            owned.owner.tick(now, &mut outputs);
            self.perform(service, outputs, out);
        }
    }

    /// A service that was to pause does.
    pub(super) fn stands_still(&mut self, service: ServiceIndex, now: i64, out: &mut Vec<Action>) {
        let Some(owned) = self.owned.get_mut(&service) else { return };
        let Some(handover) = &mut owned.handover else { return };
        handover.is_still = true;
        // It appended its last records since it was asked.
        owned.owner.hurry();
        let mut outputs = Vec::new();
        owned.owner.tick(now, &mut outputs);
        self.perform(service, outputs, out);
        self.continue_handover(service, now, out);
    }

    /// A service that was to pause cannot now.
    pub(super) fn cannot_stand_still(&mut self, service: ServiceIndex, out: &mut Vec<Action>) {
        let Some(owned) = self.owned.get_mut(&service) else { return };
        if owned.handover.is_some_and(|it| it.proposed_at.is_none()) {
            owned.handover = None;
            out.push(Action::Resume(service));
        }
    }

    /// Owners and followers as the membership says.
    pub(super) fn adopt(
        &mut self,
        membership: &Membership,
        own: DaemonIndex,
        is_present: bool,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        for (service, seat) in membership.services() {
            let of = Tenure { service, epoch: seat.epoch };
            let is_owner = is_present && seat.owner == Some(own);
            let before = self.owned.get(&service).map(|it| it.owner.of());
            let stays = seat.owner.is_some() && seat.follower(own).is_some_and(|it| it.is_in_sync);
            if before.is_some() && (!is_owner || before != Some(of)) {
                self.release(of, stays && is_present, out);
            }
            if !is_owner {
                if let Some(standby) = self.standbys.get_mut(&service).filter(|_| stays) {
                    standby.stay(of.epoch);
                }
                continue;
            }
            if !self.owned.contains_key(&service) {
                let began_with = self.standbys.remove(&service).and_then(|it| it.position());
                self.refused.remove(&service);
                let log_bytes = if membership.followers > 0 { self.log_bytes_max } else { 0 };
                let mut owner = Owner::new(of, began_with, log_bytes, now);
                owner.set_copy_bytes_max(self.copy_bytes_max);
                let needed = needed(seat);
                if self.replays || needed > self.allowed {
                    owner.await_replay();
                }
                let owned = Owned {
                    owner,
                    handover: None,
                    attempts: 0,
                    in_epoch: membership.epoch,
                    settles_at: None,
                    is_settled: false,
                    needed,
                    is_replayed: !self.replays,
                    is_unable: false,
                    resigned: None,
                };
                self.owned.insert(service, owned);
                out.push(Action::Activate(of));
            }
            if let Some(owned) = self.owned.get_mut(&service) {
                let mut outputs = Vec::new();
                if owned.owner.follow(seat, now, &mut outputs) {
                    // A new follower is asked at once.
                    owned.owner.tick(now, &mut outputs);
                }
                self.perform(service, outputs, out);
            }
            self.end_handover(service, membership, out);
        }
    }

    /// This daemon is the owner no more. One that handed over, and counts as a follower in sync, has
    /// what the next owner began with: it follows from there, once its log is closed.
    fn release(&mut self, next: Tenure, stays: bool, out: &mut Vec<Action>) {
        let service = next.service;
        let Some(owned) = self.owned.remove(&service) else { return };
        if stays && owned.has_given() {
            self.standbys.insert(service, Standby::of_owner(next.epoch));
            self.refused.insert(service);
            out.push(Action::Keep(owned.owner.of()));
        } else {
            out.push(Action::Release(owned.owner.of()));
        }
    }

    /// A hand-over that has become impossible has ended.
    fn end_handover(
        &mut self,
        service: ServiceIndex,
        membership: &Membership,
        out: &mut Vec<Action>,
    ) {
        let Some(owned) = self.owned.get_mut(&service) else { return };
        if owned.handover.is_some_and(|it| !membership.may_hand_over(it.following)) {
            owned.handover = None;
            out.push(Action::Resume(service));
        }
    }

    /// Whether a service of this daemon waits for the end of an earlier owner's lease, and nobody knows
    /// when that is, or for what the leader allows.
    pub(super) fn has_waiting_successors(&self, membership: &Membership) -> bool {
        self.owned.iter().any(|(service, owned)| {
            let is_successor = membership.seat(*service).is_some_and(|it| it.is_successor);
            is_successor && owned.settles_at.is_none() || owned.needed > self.allowed
        })
    }

    /// A successor learns when it may serve.
    pub(super) fn settle(&mut self, membership: &Membership, beats: &Beats) {
        for (service, owned) in &mut self.owned {
            let is_successor = membership.seat(*service).is_some_and(|it| it.is_successor);
            if is_successor && owned.settles_at.is_none() {
                owned.settles_at = beats.leases_end(owned.in_epoch);
            }
        }
    }

    /// Proposes other followers for those that join and are silent.
    fn replace_silent(&mut self, now: i64, membership: &Membership) {
        if now.saturating_sub(self.replaced_at) < JOIN_SILENCE_NANOS / 2 {
            return;
        }
        self.replaced_at = now;
        for (&service, owned) in &self.owned {
            let Some(seat) = membership.seat(service) else { continue };
            let replaced =
                owned.owner.silent(now).filter(|of| membership.has_other_place(seat, of.follower));
            self.proposals.extend(replaced.map(|of| Change::DropFollower { of }));
        }
    }

    /// Proposes that the membership counts on lost copies no more, until it does not.
    fn tell_of_lost(&mut self, now: i64, membership: &Membership, own: DaemonIndex) {
        if self.lost.is_empty() || now.saturating_sub(self.told_at) < REPEAT_NANOS {
            return;
        }
        self.told_at = now;
        for &service in &self.lost {
            let Some(seat) = membership.seat(service) else { continue };
            let counts = |it: &&Follower| it.is_in_sync || it.had_all;
            let Some(follower) = seat.follower(own).filter(counts) else { continue };
            let of = Tenure { service, epoch: seat.epoch };
            let of = Following { of, follower: own, since: follower.since };
            self.proposals.push(Change::DropFollower { of });
        }
    }

    pub(super) fn tick(
        &mut self,
        now: i64,
        (membership, own): (&Membership, DaemonIndex),
        out: &mut Vec<Action>,
        beats: &mut Beats,
    ) {
        self.tell_of_lost(now, membership, own);
        self.replace_silent(now, membership);
        self.settle(membership, beats);
        let services: Vec<ServiceIndex> = self.owned.keys().copied().collect();
        for service in services {
            let Some(owned) = self.owned.get_mut(&service) else { continue };
            owned.is_settled |= owned.settles_at.is_some_and(|at| now >= at);
            let mut outputs = Vec::new();
            owned.owner.tick(now, &mut outputs);
            self.perform(service, outputs, out);
            self.continue_handover(service, now, out);
        }
        self.resign(now, membership);
    }

    /// Proposes that others serve what this daemon cannot, until the membership says so.
    fn resign(&mut self, now: i64, membership: &Membership) {
        for owned in self.owned.values_mut().filter(|it| it.is_unable) {
            let before = owned.resigned.filter(|it| membership.may_resign_to(it.0));
            let is_due = before.is_none_or(|(_, at)| now - at >= REPEAT_NANOS);
            let named = before.map(|it| it.0);
            owned.resigned = before;
            if is_due && let Some(of) = named.or_else(|| membership.instead_of(owned.owner.of())) {
                owned.resigned = Some((of, now));
                self.proposals.push(Change::Resign { of });
            }
        }
    }

    fn continue_handover(&mut self, service: ServiceIndex, now: i64, out: &mut Vec<Action>) {
        let Some(owned) = self.owned.get_mut(&service) else { return };
        let Some(handover) = &mut owned.handover else { return };
        let is_due = handover.proposed_at.is_none_or(|at| now - at >= REPEAT_NANOS);
        if is_due && handover.is_still && owned.owner.is_everywhere(handover.following.follower) {
            handover.proposed_at = Some(now);
            self.proposals.push(Change::HandOver { of: handover.following });
        } else if handover.proposed_at.is_none()
            && now - handover.since >= HANDOVER_NANOS << owned.attempts
        {
            owned.attempts = (owned.attempts + 1).min(LONGER_ATTEMPTS_MAX);
            owned.handover = None;
            out.push(Action::Resume(service));
        }
    }

    fn perform(&mut self, service: ServiceIndex, outputs: Vec<OwnerOutput>, out: &mut Vec<Action>) {
        for output in outputs {
            match output {
                OwnerOutput::Send { to, parcel } => {
                    out.push(Action::Send { to, message: Message::of_parcel(&parcel) });
                }
                OwnerOutput::Resumed => self.resumed += 1,
                OwnerOutput::Slice(lane) => out.push(Action::Slice(lane)),
                OwnerOutput::Replicated { ticket } => {
                    out.push(Action::Replicated { service, ticket });
                }
                OwnerOutput::Propose(change) => self.proposals.push(change),
            }
        }
    }
}
