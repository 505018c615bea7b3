//! Migration: while this target is slow, what other hosts read of it moves to other targets, and they
//! read it there (S8, O19; the move itself is in `tiering::moves`, where the bytes are in
//! `tiering::spill`).
//!
//! Services of metadata find a slow target (`qos::slow`) and say so again and again (`Input::Slow`);
//! nobody says that it is well. An extent moves after a read of another host asked where it is: so data
//! moves that is read, that which is read most first, and data that only this host uses stays. This
//! target keeps the entry of an extent that moved, and tells readers where it is (`Work::Locate`);
//! others that need it, writers and processes of this host, get it back, and it stays for a while then.
//!
//!   well --a service says so--> slow       extents move, readers are sent to them
//!   slow --nobody says so--> recovering    readers are sent to them, nothing moves
//!   recovering --a service says so--> slow, and will recover for twice as long
//!   recovering --time--> well              what is needed returns
//!
//! Invariants:
//!  1. Nothing moves unless this target is slow.
//!  2. At most `MIGRATING_BYTES_MAX`, or one extent, are in flight.

use crate::effect::{CopyClass, Effect};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

/// A target is slow until nobody has said so for this time. A service says it once a second.
const SLOW_MILLIS: u32 = 10_000;
/// First time for which a target recovers: longer than it takes to find it slow again, once it has been
/// idle and is tried again (`qos::slow`).
const RECOVERY_MILLIS_MIN: u32 = 60_000;
/// Longest time for which a target recovers.
const RECOVERY_MILLIS_MAX: u32 = 32 * RECOVERY_MILLIS_MIN;
/// After this time a target that was slow is one that never was.
const FORGET_MILLIS: u32 = 2 * RECOVERY_MILLIS_MAX;
/// An extent that something else than a read of another host used stays for this time.
const STAY_MILLIS: u32 = 5_000;
/// Most bytes in flight, except for one longer extent: a slow link takes a second for them, and readers
/// share it.
const MIGRATING_BYTES_MAX: u64 = 4 << 20;
/// Most extents that are known to have been read, or to stay.
const KNOWN_MAX: usize = 4096;

const _: () = assert!(FORGET_MILLIS > RECOVERY_MILLIS_MAX + SLOW_MILLIS);

/// An extent: its file, and where it begins in it.
type Place = (Inode, u64);

/// Extents that move to other targets, and whether they do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Migration {
    /// Targets that are not slow, with the time when a service said so last.
    others: BTreeMap<DaemonIndex, u32>,
    /// When a service said last that this target is slow.
    told_at: Option<u32>,
    recovery_millis: u32,
    /// Extents that other hosts read, in order, and the same by place.
    requested: VecDeque<Place>,
    is_requested: BTreeSet<Place>,
    /// Extents that stay, with the time of their last use.
    staying: BTreeMap<Place, u32>,
    /// Reads of other hosts that were sent to another target.
    pub(crate) reads_redirected: u64,
}

impl Migration {
    fn silent_millis(&self, now: u32) -> Option<u32> {
        self.told_at.map(|at| now.wrapping_sub(at))
    }

    /// True while this target is slow.
    pub(crate) fn is_slow(&self, now: u32) -> bool {
        self.silent_millis(now).is_some_and(|silent| silent < SLOW_MILLIS)
    }

    /// True while readers of other hosts are sent to extents that have moved.
    pub(crate) fn redirects(&self, now: u32) -> bool {
        let end = SLOW_MILLIS.saturating_add(self.recovery_millis);
        self.silent_millis(now).is_some_and(|silent| silent < end)
    }

    /// A service says that this target is slow; these are not.
    pub(crate) fn note_slow(&mut self, now: u32, others: &[DaemonIndex]) {
        if !self.is_slow(now) {
            let twice = self.recovery_millis.saturating_mul(2);
            self.recovery_millis = twice.clamp(RECOVERY_MILLIS_MIN, RECOVERY_MILLIS_MAX);
        }
        self.others.retain(|_, at| now.wrapping_sub(*at) < SLOW_MILLIS);
        self.others.extend(others.iter().map(|other| (*other, now)));
        self.told_at = Some(now);
    }

    /// A read of another host asked for this extent.
    pub(crate) fn note_read(&mut self, now: u32, inode: Inode, extent: &Extent) {
        if extent.tier == Extent::SPILLED {
            self.reads_redirected += 1;
            return;
        }
        let place = (inode, extent.start);
        if self.is_slow(now) && self.requested.len() < KNOWN_MAX && self.is_requested.insert(place)
        {
            self.requested.push_back(place);
        }
    }

    /// A request that is no read of another host uses these extents of a file.
    pub(crate) fn note_use(
        &mut self,
        now: u32,
        inode: Inode,
        extents: impl Iterator<Item = Extent>,
    ) {
        if !self.is_slow(now) {
            return;
        }
        if self.staying.len() >= KNOWN_MAX {
            self.staying.retain(|_, since| now.wrapping_sub(*since) < STAY_MILLIS);
        }
        for extent in extents {
            if self.staying.len() < KNOWN_MAX {
                self.staying.insert((inode, extent.start), now);
            }
        }
    }

    /// Starts moving what was read, as far as may be in flight.
    pub(crate) fn begin_moves(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        out: &mut Vec<Effect>,
    ) {
        let now = pool.now;
        if self.silent_millis(now).is_some_and(|silent| silent >= FORGET_MILLIS) {
            let reads_redirected = self.reads_redirected;
            *self = Migration { reads_redirected, ..Migration::default() };
        }
        if !self.is_slow(now) {
            self.requested.clear();
            self.is_requested.clear();
            self.staying.clear();
            return;
        }
        while let Some(&(inode, start)) = self.requested.front() {
            let length = match pool.slots().at(inode, start) {
                Some(extent) if self.may_leave(pool, tiering, inode, &extent) => extent.length(),
                _ => {
                    self.drop_first();
                    continue;
                }
            };
            let in_flight = tiering.moves.migrating_bytes();
            let fits = in_flight == 0 || in_flight.saturating_add(length) <= MIGRATING_BYTES_MAX;
            let has_turn = tiering.moves.may_move_another(pool, CopyClass::Ahead)
                && tiering.moves.has_tokens(now);
            if !fits || !has_turn {
                return;
            }
            self.drop_first();
            if let Some(extent) = pool.slots().at(inode, start) {
                let is_well = |at: &u32| now.wrapping_sub(*at) < SLOW_MILLIS;
                let is_such = |target: DaemonIndex| self.others.get(&target).is_some_and(is_well);
                // If no target takes it now, a later read asks for it again.
                tiering.begin_migration(pool, (inode, extent), &is_such, out);
            }
        }
    }

    fn drop_first(&mut self) {
        if let Some(place) = self.requested.pop_front() {
            self.is_requested.remove(&place);
        }
    }

    fn may_leave(&self, pool: &Pool, tiering: &Tiering, inode: Inode, extent: &Extent) -> bool {
        let place = (inode, extent.start);
        let is_used = |since: &u32| pool.now.wrapping_sub(*since) < STAY_MILLIS;
        // The worker of the target reads what leaves the SSD, so that others wait for it.
        let is_movable = match extent.tier {
            Extent::MEMORY => true,
            Extent::SSD => extent.length() <= MIGRATING_BYTES_MAX,
            _ => false,
        };
        is_movable
            && !inode.is_spilled()
            && !self.staying.get(&place).is_some_and(is_used)
            && !tiering.order.pinned.contains(inode)
            && !tiering.moves.is_moving(inode, extent.start)
            && !tiering.order.clean.is_evicting(inode, extent.start)
            && !pool.preallocation().contains(inode, extent)
    }
}
