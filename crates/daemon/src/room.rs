//! Requests for which this daemon's target has no room: before one is refused, what is on its way back
//! comes back.
//!
//! For who removed a file its space is free. But the file may still be in a post, with those that are
//! gathered (`removals`), or kept for a moment by its metadata service. So the request is held here, and
//! all services are asked to give back what they have (`Request::GiveBack`). As long as one says that
//! there is more for this target, the request is tried again; when none does, once more, and then it is
//! refused. What was removed before the request came is found only by a round of questions that began
//! after that: so it waits for the next one, if one is under way.

use crate::reply::ReplyTo;
use crate::shared::{Guest, Shared};
use crate::target::{Final, TargetLoop};
use placement::map::worker_of_shard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::SHARD_COUNT;
use wire::{Inode, Reply, Request, ShardIndex};

/// How long a request is held at most, whoever does not answer or does not get to its end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two rounds, while something is on its way.
const PAUSE: Duration = Duration::from_millis(1);

/// A request without its answer.
struct Held {
    inode: Inode,
    request: Vec<u8>,
    to: ReplyTo,
    /// The round that decides.
    round: u64,
    until: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Room {
    held: Vec<Held>,
    /// Rounds that began.
    round: u64,
    /// Those who did not answer in this one, each by one of its shards, and till when they may.
    left: BTreeSet<ShardIndex>,
    left_until: Option<Instant>,
    is_freeing: bool,
    /// When the next one begins, if none is under way.
    again_at: Option<Instant>,
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
    /// There is no room for a request. `until`: it was held before, till then at most.
    pub(crate) fn hold_for_room(
        &mut self,
        shared: &Shared,
        (inode, request): (Inode, Vec<u8>),
        to: ReplyTo,
        until: Option<Instant>,
    ) {
        let until = until.unwrap_or_else(|| Instant::now() + PATIENCE);
        let round = self.room.round + 1;
        self.room.held.push(Held { inode, request, to, round, until });
        if self.room.left.is_empty() && self.room.again_at.is_none() {
            self.begin_round(shared);
        }
    }

    fn begin_round(&mut self, shared: &Shared) {
        let room = &mut self.room;
        room.round += 1;
        (room.left, room.is_freeing, room.again_at) = (services(shared), false, None);
        room.left_until = Some(Instant::now() + PATIENCE);
        let request = Request::GiveBack { target: shared.router.me.0 };
        for &shard in &room.left {
            let to = ReplyTo::Room { round: room.round, shard };
            shared.hand_in(&shared.own_header(shard), &request, to);
        }
    }

    /// A service has given back what it could. One that can not be asked now gives nothing.
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
        let more = Reply::decode(&mut Reader::new(answer));
        self.room.is_freeing |= matches!(more, Ok(Reply::Number { value: 1.. }));
        if self.room.left.is_empty() {
            self.end_round(shared, guests);
        }
    }

    fn end_round(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        let (round, is_freeing) = (self.room.round, self.room.is_freeing);
        self.room.again_at = is_freeing.then(|| Instant::now() + PAUSE);
        let is_judged = |held: &Held| held.round <= round;
        for held in self.take_held(is_judged) {
            let last = if is_freeing { Final::At(held.until) } else { Final::Room };
            self.try_held(shared, guests, held, last);
        }
        if self.room.held.is_empty() {
            self.room.again_at = None;
        } else if self.room.again_at.is_none() {
            self.begin_round(shared);
        }
    }

    /// True if something is to be done for those who are held before long.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.room.held.is_empty()
    }

    fn take_held(&mut self, is_it: impl Fn(&Held) -> bool) -> Vec<Held> {
        let (taken, rest) = std::mem::take(&mut self.room.held).into_iter().partition(is_it);
        self.room.held = rest;
        taken
    }

    fn try_held(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        held: Held,
        last: Final,
    ) {
        match Request::decode(&mut Reader::new(&held.request)) {
            Ok(request) => self.carry_out_now(shared, guests, &request, held.to, last),
            Err(_) => shared.refuse(held.to, Errno::EPROTO),
        }
    }

    /// Files are removed: nobody has them open, so whoever asked for pieces of them is gone.
    pub(crate) fn refuse_removed(&mut self, shared: &Shared, inodes: &[u8]) {
        if !self.room.held.is_empty() {
            let gone: BTreeSet<Inode> = wire::request::removed(inodes).collect();
            for held in self.take_held(|held| gone.contains(&held.inode)) {
                shared.refuse(held.to, Errno::ESTALE);
            }
        }
    }

    /// Does what is due. How long nothing will be, in microseconds.
    pub(crate) fn keep_room(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        if self.room.held.is_empty() {
            return None;
        }
        let now = Instant::now();
        if self.room.again_at.is_some_and(|at| at <= now) {
            self.begin_round(shared);
        }
        for held in self.take_held(|held| held.until <= now) {
            self.try_held(shared, guests, held, Final::Room);
        }
        if !self.room.left.is_empty() && self.room.left_until.is_some_and(|until| until <= now) {
            // The answers of those who stand still are lost, or come too late.
            self.room.left.clear();
            self.end_round(shared, guests);
        }
        let until = self.room.held.iter().map(|held| held.until).min()?;
        let next = self.room.again_at.or(self.room.left_until).map_or(until, |at| at.min(until));
        let left = next.saturating_duration_since(Instant::now());
        Some(u64::try_from(left.as_micros()).unwrap_or(u64::MAX))
    }
}
