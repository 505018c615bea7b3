//! What somebody waits for: files that are closed or synced where that is `through`, parts of the tree
//! that are flushed, and room, which is there when files are saved. A round of its own sees to them, and
//! to nothing else, as soon as the one that is going on comes to the end of a batch; those who came
//! meanwhile share the next.

use crate::round::{How, Memory};
use crate::scope::{Fates, Scope, errno_of};
use crate::watch::{Board, CONTENDED_ROUNDS, Part, TICK, VAIN_ROUNDS, Watch};
use client::{Client, WantedWait};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::below::Wanted;
use wire::errno::Errno;
use wire::{Inode, ShardIndex};

/// Rounds that are about it alone, and rounds after which who waits is refused: what is left by then
/// changes all the time.
const ROUNDS_ALONE: u32 = 6;
const ROUNDS_MAX: u32 = 8;
/// Pause before the next of them.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after a round for room in which there was nothing to save.
const REST: Duration = Duration::from_millis(100);
/// How long somebody who ends is not noticed.
const SLEEP_MICROS: u64 = 500_000;

/// Services, as far as somebody waits.
pub(crate) trait Waited: Sync {
    /// For what.
    fn wanted(&self) -> Vec<Wanted>;
    /// What came of it; `Errno(0)`: it is saved.
    fn settled(&self, wanted: Wanted, errno: Errno);
}

/// Wakes the thread that works when somebody waits, until it is over.
pub(crate) fn watch(client: &'static Client, services: &[ShardIndex], board: &Board) {
    let mut all: Vec<_> = services.iter().map(|&shard| WantedWait::new(client, shard)).collect();
    while !board.is_over() {
        let answered = client.answered_waits(true);
        let moved = board.counts.moved.load(Ordering::Relaxed);
        // All of them: each asks again.
        let new = all.iter_mut().filter_map(|one| one.poll(moved).then_some(())).count();
        if new > 0 {
            board.want();
        }
        client.sleep_long_for_waits(answered, SLEEP_MICROS);
    }
}

impl Watch<'_> {
    /// Saves what somebody waits for, and says what came of it.
    pub(crate) fn save_wanted(&self, memory: &mut Memory) {
        let all = self.waited.wanted();
        let mut left: BTreeMap<Inode, Wanted> = all.into_iter().map(|it| (it.inode, it)).collect();
        let is_hurried = left.remove(&Inode::NONE).is_some();
        self.save_files(left, memory);
        let rests = memory.rests_until.is_some_and(|until| Instant::now() < until);
        if is_hurried && !rests && !self.board.is_over() {
            // What fails is told by the next round of all.
            let done = self.round(How::Hurried, &Scope::default(), memory);
            let rest = match done {
                Ok(report) if report.saved > 0 || report.parts > 0 => None,
                Ok(report) if report.failed == 0 => Some(REST),
                _ => Some(TICK),
            };
            memory.rests_until = rest.map(|rest| Instant::now() + rest);
        }
    }

    fn save_files(&self, mut left: BTreeMap<Inode, Wanted>, memory: &mut Memory) {
        for number in 1..=ROUNDS_MAX {
            if left.is_empty() || self.board.is_over() {
                return;
            }
            let (files, trees) = (left.keys().copied().collect(), BTreeSet::new());
            let scope = Scope { files, trees, is_only: number <= ROUNDS_ALONE };
            match self.round(How::Plainly, &scope, memory) {
                Ok(report) => left.retain(|_, &mut one| !self.settle(one, &report.fates)),
                Err(trouble) => {
                    // A service that is away is asked again by who waits.
                    let errno = errno_of(&trouble);
                    let said = errno
                        .into_iter()
                        .flat_map(|errno| left.values().map(move |&it| (it, errno)));
                    said.for_each(|(one, errno)| self.waited.settled(one, errno));
                    return;
                }
            }
            std::thread::sleep(if left.is_empty() { Duration::ZERO } else { PAUSE });
        }
        left.into_values().for_each(|one| self.waited.settled(one, Errno::EIO));
    }

    /// True if who waits for it is told.
    fn settle(&self, one: Wanted, fates: &Fates) -> bool {
        let Some(fate) = fates.of(one.inode) else { return false };
        self.waited.settled(one, fate.err().unwrap_or(Errno(0)));
        true
    }

    /// Saves what is unsaved now of a part of the tree. What comes meanwhile is not waited for.
    pub(crate) fn flush_part(&self, part: &Part, memory: &mut Memory) {
        let scope = Scope { is_only: true, ..part.scope.clone() };
        let (mut targets, mut vain): (Option<BTreeSet<Inode>>, u32) = (None, 0);
        while vain < CONTENDED_ROUNDS && !self.board.is_over() {
            let done = self.round(How::Flush, &scope, memory);
            if self.board.take_wanted() {
                self.save_wanted(memory);
            }
            let Ok(report) = done else {
                vain += CONTENDED_ROUNDS / VAIN_ROUNDS;
                std::thread::sleep(PAUSE);
                continue;
            };
            let before = targets.as_ref().unwrap_or(&report.fates.seen);
            let left: BTreeSet<Inode> = before.intersection(&report.fates.left).copied().collect();
            self.board.tell_part(part.number, &report, left.len() as u64);
            if left.is_empty() {
                return self.board.end_part(part.number, true);
            }
            vain = if left.len() == before.len() { vain + 1 } else { 0 };
            if vain >= VAIN_ROUNDS && report.failed > 0 {
                break;
            }
            targets = Some(left);
            std::thread::sleep(PAUSE);
        }
        self.board.end_part(part.number, false);
    }
}
