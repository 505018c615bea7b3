//! Removals against the messages that they send: chosen cases, and random ones in which targets do
//! what they are asked, are too busy, or are gone for a while.

use super::*;
use std::collections::BTreeSet;
use wire::attributes::{flag, placement};
use wire::errno::Errno;
use wire::request::removed;

const TARGETS: u16 = 4;

fn anywhere(inode: u64) -> (Inode, Layout) {
    (Inode(inode), Layout::default())
}

fn at(place: u16, inode: u64) -> (Inode, Layout) {
    (Inode(inode), Layout { placement: placement::LOCAL, place, ..Layout::default() })
}

/// One in turn over two targets, and which those are.
fn grouped(inode: u64) -> (Vec<u16>, (Inode, Layout)) {
    let placement = placement::group(2).expect("a group");
    let layout = Layout { placement, ..Layout::default() };
    let targets = ::placement::locate::targets(&layout, Inode(inode), TARGETS);
    (targets.map(|target| target.0).collect(), (Inode(inode), layout))
}

/// One that has nothing beyond its first chunk, and where that is.
fn short(inode: u64) -> (u16, (Inode, Layout)) {
    let layout = Layout { flags: flag::SHORT, ..Layout::default() };
    (::placement::locate::target(&layout, Inode(inode), 0, TARGETS).0, (Inode(inode), layout))
}

/// What is asked now: of whom, and which files.
fn due(removals: &mut Removals, now: Instant) -> Vec<(u16, Vec<u64>)> {
    let mut asked = Vec::new();
    removals.due(now, TARGETS, |target, inodes| {
        asked.push((target.0, removed(inodes).map(|inode| inode.0).collect()));
    });
    asked
}

const DONE: PartAnswer = PartAnswer::Ended(Ok(()));

#[test]
fn many_files_are_one_message_for_each_target() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    assert_eq!(removals.deadline(), None);
    assert!(!removals.add(now, TARGETS, 7, &[anywhere(1), anywhere(2)]));
    assert!(!removals.add(now + GATHER_TIME / 2, TARGETS, 8, &[anywhere(3), at(2, 4)]));
    assert_eq!(removals.deadline(), Some(now + GATHER_TIME), "it does not wait longer for more");
    assert_eq!(due(&mut removals, now + GATHER_TIME / 2), []);
    let all = vec![1, 2, 3];
    let expected = [(0, all.clone()), (1, all.clone()), (2, vec![4, 1, 2, 3]), (3, all)];
    assert_eq!(due(&mut removals, now + GATHER_TIME), expected);
    assert_eq!(removals.deadline(), None, "only answers are waited for");
    for target in 0..3 {
        assert_eq!(removals.answered(now, DaemonIndex(target), DONE), None);
    }
    assert_eq!(removals.answered(now, DaemonIndex(3), DONE), Some(vec![7, 8]));
    assert!(removals.lines.is_empty() && removals.rounds.is_empty());
}

#[test]
fn a_short_file_is_asked_of_its_first_target_alone() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    for inode in 1..100 {
        let (target, file) = short(inode);
        removals.add(now, TARGETS, inode, &[file]);
        assert_eq!(due(&mut removals, now + GATHER_TIME), [(target, vec![inode])]);
        assert_eq!(removals.answered(now, DaemonIndex(target), DONE), Some(vec![inode]));
    }
}

#[test]
fn a_file_of_a_group_is_asked_of_its_members_alone() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    for inode in 1..100 {
        let (mut targets, file) = grouped(inode);
        targets.sort_unstable();
        removals.add(now, TARGETS, inode, &[file]);
        let expected: Vec<_> = targets.iter().map(|&target| (target, vec![inode])).collect();
        assert_eq!(due(&mut removals, now + GATHER_TIME), expected);
        assert_eq!(removals.answered(now, DaemonIndex(targets[0]), DONE), None);
        assert_eq!(removals.answered(now, DaemonIndex(targets[1]), DONE), Some(vec![inode]));
    }
}

#[test]
fn what_fills_a_message_does_not_wait() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    let files: Vec<_> = (1..=256).map(anywhere).collect();
    let filled = (0..5).map(|token| removals.add(now, TARGETS, token, &files));
    assert_eq!(filled.collect::<Vec<_>>(), [false, false, false, false, true]);
    let asked = due(&mut removals, now);
    assert_eq!(asked.len(), usize::from(TARGETS));
    assert!(asked.iter().all(|(_, files)| files.len() == REMOVE_COUNT_MAX));
    assert_eq!(due(&mut removals, now + GATHER_TIME), [], "a target is asked one thing at a time");
    assert_eq!(removals.answered(now, DaemonIndex(1), DONE), None);
    assert_eq!(due(&mut removals, now), [(1, (1..=256).collect())]);
}

#[test]
fn a_target_that_is_gone_holds_up_its_own_part_only() {
    let (mut removals, mut now) = (Removals::default(), Instant::now());
    let (here, gone) = (DaemonIndex(0), DaemonIndex(3));
    let (mut asked, mut pauses) = (0, Vec::new());
    for inode in 1..200 {
        removals.add(now, TARGETS, inode, &[at(0, inode), at(3, 1000 + inode)]);
        now += GATHER_TIME;
        for (target, files) in due(&mut removals, now) {
            if target == gone.0 {
                assert_eq!(files, [1001], "the first until it is done");
                asked += 1;
                let before = removals.answered(now, gone, PartAnswer::Again(10));
                assert_eq!(before, None);
                pauses.extend(removals.deadline().map(|at| at - now));
            } else {
                assert_eq!(files, [inode]);
                assert_eq!(removals.answered(now, here, DONE), None);
            }
        }
    }
    assert!((3..20).contains(&asked), "asked {asked} times");
    assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= PAUSE_MAX), "{pauses:?}");
    now += PAUSE_MAX;
    for inode in 1..200 {
        assert_eq!(due(&mut removals, now), [(3, vec![1000 + inode])]);
        assert_eq!(removals.answered(now, gone, DONE), Some(vec![inode]));
    }
    assert_eq!((due(&mut removals, now), removals.deadline()), (vec![], None));
}

/// A generator of `Math.random` quality: what matters is that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = wire::hash::mix(self.0, 1);
        self.0 % limit
    }
}

/// What targets hold, and which files each token stands for.
#[derive(Default)]
struct World {
    held: BTreeSet<(u16, u64)>,
    open: BTreeMap<u64, Vec<u64>>,
    /// On their way to a target, or with an answer on its way back.
    asked: Vec<(u16, Vec<u64>)>,
}

impl World {
    fn remove(&mut self, random: &mut Random, removals: &mut Removals, now: Instant, token: u64) {
        let mut files = Vec::new();
        for inode in token * 300..=token * 300 + random.below(256) {
            let (inode, place) = (inode + 1, random.below(u64::from(TARGETS)) as u16);
            let (holders, file) = match random.below(4) {
                0 => (vec![place], at(place, inode)),
                1 => ((0..TARGETS).collect(), anywhere(inode)),
                2 => grouped(inode),
                _ => {
                    let (place, file) = short(inode);
                    (vec![place], file)
                }
            };
            files.push(file);
            self.held.extend(holders.into_iter().map(|target| (target, inode)));
        }
        self.open.insert(token, files.iter().map(|(inode, _)| inode.0).collect());
        removals.add(now, TARGETS, token, &files);
    }

    /// One target answers, somehow.
    fn answer(&mut self, random: &mut Random, removals: &mut Removals, now: Instant) {
        if self.asked.is_empty() {
            return;
        }
        let next = random.below(self.asked.len() as u64) as usize;
        let (target, files) = self.asked.swap_remove(next);
        let answer = match random.below(4) {
            0 => PartAnswer::Again(random.below(3) * 50_000),
            1 if random.below(4) == 0 => PartAnswer::Ended(Err(Errno::EIO)),
            // Done, but the answer is lost: it is asked again.
            2 => {
                self.give_back(target, &files);
                PartAnswer::Again(10_000)
            }
            _ => {
                self.give_back(target, &files);
                DONE
            }
        };
        for token in removals.answered(now, DaemonIndex(target), answer).into_iter().flatten() {
            let files = self.open.remove(&token).expect("a token is done once");
            let is_held = |inode: &u64| (0..TARGETS).any(|one| self.held.contains(&(one, *inode)));
            assert!(!files.iter().any(is_held), "token {token} is done, its files are not gone");
        }
    }

    fn give_back(&mut self, target: u16, files: &[u64]) {
        for inode in files {
            self.held.remove(&(target, *inode));
        }
    }
}

#[test]
fn whatever_targets_answer_all_is_given_back_before_it_is_done() {
    for seed in 0..200 {
        let (mut random, mut removals) = (Random(seed), Removals::default());
        let (mut world, mut now) = (World::default(), Instant::now());
        let mut token = 0;
        while token < 20 || !world.open.is_empty() {
            if token < 20 && random.below(3) == 0 {
                world.remove(&mut random, &mut removals, now, token);
                token += 1;
            }
            for (target, files) in due(&mut removals, now) {
                assert!(files.len() <= REMOVE_COUNT_MAX, "seed {seed}");
                let is_other = |asked: &(u16, Vec<u64>)| asked.0 != target;
                assert!(world.asked.iter().all(is_other), "seed {seed}: asked two things at once");
                world.asked.push((target, files));
            }
            world.answer(&mut random, &mut removals, now);
            let waits = removals.deadline().map(|at| at.saturating_duration_since(now));
            now += waits.unwrap_or_default().min(Duration::from_millis(random.below(20)));
            now += Duration::from_micros(50);
        }
        assert!(world.held.is_empty(), "seed {seed}: leaked {:?}", world.held);
        assert!(removals.lines.is_empty() && removals.rounds.is_empty(), "seed {seed}");
    }
}
