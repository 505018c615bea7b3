//! Requests that wait for room (`data::admission`): before one is refused, what is on its way back comes
//! back; who does not wait any more, or must not, makes way; and how long they waited.
//!
//! For who removed a file its space is free. But the file may still be in a post, with those that are
//! gathered (`removals`), or kept for a moment by its metadata service. So all services are asked to
//! give back what they have (`Request::GiveBack`), and say whether there is more for this target. Over a
//! backing directory they have saved what can be, which makes room as well; as long as that goes on
//! nobody is refused.
//!
//! What brings bytes from another host does not wait: they stand in the way of those behind them on their
//! stream, and a cut of the file waits until they arrived. Such a one is told to come again, and asks for
//! its pieces first (`client::far`): that question waits.

use crate::reply::{Asker, ReplyTo};
use crate::shared::{Guest, Shared};
use crate::target::{TargetLoop, micros_until};
use data::Input;
use placement::map::worker_of_shard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::limits::SHARD_COUNT;
use wire::request::coming;
use wire::{Reply, Request, ShardIndex};

/// How long a service may take that stands still.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Between two rounds, while something is on its way.
const PAUSE: Duration = Duration::from_millis(1);
/// The same while what is on its way is saved first.
const SAVING_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at those who wait.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Default)]
pub(crate) struct Room {
    /// The round that is wanted or under way.
    round: u64,
    /// When it begins, if it did not.
    begins_at: Option<Instant>,
    ended_at: Option<Instant>,
    /// Those who did not answer in this one, each by one of its shards, and till when they may.
    left: BTreeSet<ShardIndex>,
    left_until: Option<Instant>,
    is_freeing: bool,
    /// How far those are who save, together; 0: nobody does. Of this round and of the one before.
    saving: [u64; 2],
    /// When to look at those who wait.
    look_at: Option<Instant>,
    /// Requests that may not wait.
    impatient: Vec<u64>,
}

/// A shard of each service.
fn services(shared: &Shared) -> BTreeSet<ShardIndex> {
    let workers = shared.router.workers;
    let all = (0..SHARD_COUNT).map(ShardIndex).map(|shard| {
        let daemon = shared.router.map.owner(shard);
        ((daemon.0, worker_of_shard(shard, workers)), shard)
    });
    all.collect::<BTreeMap<_, _>>().into_values().collect()
}

impl TargetLoop {
    /// The target has no room for a request.
    pub(crate) fn begin_wait(&mut self, ticket: u64) {
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        match (&pending.to, &pending.again) {
            (ReplyTo::Visit(_), _) | (ReplyTo::Peer(..), Some((_, Request::Write { .. }))) => {
                self.room.impatient.push(ticket);
            }
            _ => drop(pending.waits_since.get_or_insert_with(Instant::now)),
        }
    }

    /// Those that may not wait are told to come again.
    pub(crate) fn send_impatient_away(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        while let Some(ticket) = self.room.impatient.pop() {
            self.step(shared, guests, Input::Withdraw { ticket });
        }
    }

    /// The target wants to know whether others have something to give back.
    pub(crate) fn ask_for_room(&mut self, shared: &Shared, round: u64) {
        self.room.round = round;
        let is_slow = self.room.saving[1] != 0 && !self.room.is_freeing;
        let pause = if is_slow { SAVING_PAUSE } else { PAUSE };
        match self.room.ended_at.map(|at| at + pause).filter(|&at| at > Instant::now()) {
            Some(at) => self.room.begins_at = Some(at),
            None => self.begin_round(shared),
        }
    }

    fn begin_round(&mut self, shared: &Shared) {
        let room = &mut self.room;
        (room.left, room.is_freeing, room.begins_at) = (services(shared), false, None);
        room.saving[0] = 0;
        room.left_until = Some(Instant::now() + ANSWER_TIME);
        let request = Request::GiveBack { target: shared.router.me.0 };
        for &shard in &room.left {
            let to = ReplyTo::Room { round: room.round, shard };
            shared.hand_in(&shared.own_header(shard), &request, to);
        }
    }

    /// A service has given back what it could. One that can not be asked now gives nothing, but may have
    /// something to save.
    pub(crate) fn gave_back(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        (round, shard): (u64, ShardIndex),
        answer: &[u8],
    ) {
        if round != self.room.round || !self.room.left.remove(&shard) {
            return;
        }
        match Reply::decode(&mut Reader::new(answer)) {
            Ok(Reply::Number { value }) => {
                self.room.is_freeing |= coming::is_freeing(value);
                if coming::is_saving(value) {
                    self.room.saving[0] = self.room.saving[0].saturating_add(value);
                }
            }
            _ => self.room.is_freeing |= shared.below.is_some(),
        }
        if self.room.left.is_empty() {
            self.end_round(shared, guests);
        }
    }

    fn end_round(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        let Room { round, is_freeing, saving: [saving, before], .. } = self.room;
        (self.room.ended_at, self.room.left_until) = (Some(Instant::now()), None);
        self.room.saving[1] = saving;
        let (comes, goes_on) = (is_freeing || saving != 0, saving != 0 && saving != before);
        self.step(shared, guests, Input::RoomAsked { round, comes, goes_on });
    }

    /// Notes how long a request waited.
    pub(crate) fn note_wait(&self, shared: &Shared, since: Instant) {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        shared.space.waits.fetch_add(1, Relaxed);
        shared.space.wait_micros.fetch_add(micros, Relaxed);
        shared.space.wait_micros_max.fetch_max(micros, Relaxed);
    }

    /// Does what is due. How long nothing will be, in microseconds.
    pub(crate) fn keep_room(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        let now = Instant::now();
        if self.room.begins_at.is_some_and(|at| at <= now) {
            self.begin_round(shared);
        }
        if self.room.left_until.is_some_and(|until| until <= now) {
            // The answers of those who stand still are lost, or come too late. Whether something is to be
            // saved one that is started again says soon.
            self.room.is_freeing |= shared.below.is_some();
            self.room.left.clear();
            self.end_round(shared, guests);
        }
        if !self.target.waits_for_room() {
            self.room.look_at = None;
        } else if self.room.look_at.is_none_or(|at| at <= now) {
            self.room.look_at = Some(now + LOOK_PAUSE);
            self.look_at_waiting(shared, guests);
        }
        let Room { begins_at, left_until, look_at, .. } = self.room;
        [begins_at, left_until, look_at].into_iter().flatten().min().map(micros_until)
    }

    /// Of other hosts some who sent requests wait no longer: their daemons say so. Those of this host are
    /// looked at.
    pub(crate) fn withdraw(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        is_gone: &dyn Fn(&Asker) -> bool,
    ) {
        let is_gone = |to: &ReplyTo| matches!(to, ReplyTo::Peer(_, asker) if is_gone(asker));
        self.withdraw_those(shared, guests, &is_gone);
    }

    fn withdraw_those(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        is_gone: &dyn Fn(&ReplyTo) -> bool,
    ) {
        let gone = self.pending.iter().filter(|(_, pending)| is_gone(&pending.to));
        let gone: Vec<u64> = gone.map(|(&ticket, _)| ticket).collect();
        for ticket in gone {
            self.step(shared, guests, Input::Withdraw { ticket });
        }
    }

    /// Whose client is dead waits no longer; who waits for too long is refused.
    fn look_at_waiting(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        self.withdraw_those(shared, guests, &|to| match to {
            ReplyTo::Slot { guest, slot } => !guest.slots.is_awaited(usize::from(*slot)),
            _ => false,
        });
        let (now, patience) = (shared.begun.elapsed().as_millis() as u32, shared.patience_millis);
        self.act(shared, guests, |target, effects| target.keep_writers(now, patience, effects));
    }
}
