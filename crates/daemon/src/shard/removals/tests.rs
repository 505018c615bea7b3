//! Removals against the messages that they send: chosen cases, and random ones in which targets
//! comply, are busy, or are down for a while.

use super::*;
use std::collections::BTreeSet;
use wire::attributes::{flag, placement};
use wire::errno::Errno;
use wire::request::removed;

const TARGETS: u16 = 4;

/// Of an instance that began with these targets.
const COUNTS: (u16, u16) = (TARGETS, TARGETS);

fn anywhere(inode: u64) -> (Inode, Layout) {
    (Inode(inode), Layout::default())
}

fn at(place: u16, inode: u64) -> (Inode, Layout) {
    (Inode(inode), Layout { placement: placement::LOCAL, place, ..Layout::default() })
}

/// A file striped over a group of two targets, and those targets.
fn grouped(inode: u64) -> (Vec<u16>, (Inode, Layout)) {
    let placement = placement::group(2).expect("a group");
    let layout = Layout { placement, ..Layout::default() };
    let targets = ::placement::locate::targets(&layout, Inode(inode), TARGETS);
    (targets.map(|target| target.0).collect(), (Inode(inode), layout))
}

/// A file of at most one stripe, and its target.
fn short(inode: u64) -> (u16, (Inode, Layout)) {
    let layout = Layout { flags: flag::SHORT, ..Layout::default() };
    (::placement::locate::target(&layout, Inode(inode), 0, TARGETS).0, (Inode(inode), layout))
}

/// Requests that are due now: place and files.
fn due_at(removals: &mut Removals, now: Instant) -> Vec<(RemovalPlace, Vec<u64>)> {
    let mut sent = Vec::new();
    removals.due(now, TARGETS, |place, inodes| {
        sent.push((place, removed(inodes).map(|inode| inode.0).collect()));
    });
    sent
}

/// The same by target.
fn due(removals: &mut Removals, now: Instant) -> Vec<(u16, Vec<u64>)> {
    let sent = due_at(removals, now).into_iter();
    sent.map(|(place, files)| (place.target.0, files)).collect()
}

/// Files of an instance without copies at a target, or those with copies.
const fn place(target: u16) -> RemovalPlace {
    RemovalPlace { target: DaemonIndex(target), copies: 0 }
}

const DONE: PartAnswer = PartAnswer::Ended(Ok(()));

#[test]
fn many_files_are_one_message_per_target() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    assert_eq!(removals.deadline(), None);
    assert!(!removals.gather(now, COUNTS, 7, &[anywhere(1), anywhere(2)]));
    assert!(!removals.gather(now + GATHER_TIME / 2, COUNTS, 8, &[anywhere(3), at(2, 4)]));
    assert_eq!(removals.deadline(), Some(now + GATHER_TIME), "it does not wait longer for more");
    assert_eq!(due(&mut removals, now + GATHER_TIME / 2), []);
    let all = vec![1, 2, 3];
    let expected = [(0, all.clone()), (1, all.clone()), (2, vec![4, 1, 2, 3]), (3, all)];
    assert_eq!(due(&mut removals, now + GATHER_TIME), expected);
    assert_eq!(removals.deadline(), None, "only answers are waited for");
    for target in 0..3 {
        assert_eq!(removals.answered(now, place(target), DONE), None);
    }
    assert_eq!(removals.answered(now, place(3), DONE), Some(vec![7, 8]));
    assert!(removals.targets.is_empty() && removals.batches.is_empty());
}

#[test]
fn a_short_file_concerns_only_its_first_target() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    for inode in 1..100 {
        let (target, file) = short(inode);
        removals.gather(now, COUNTS, inode, &[file]);
        assert_eq!(due(&mut removals, now + GATHER_TIME), [(target, vec![inode])]);
        assert_eq!(removals.answered(now, place(target), DONE), Some(vec![inode]));
    }
}

#[test]
fn a_file_concerns_only_targets_that_there_were_when_it_was_made() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    let new = Layout { place: TARGETS, ..Layout::default() };
    removals.gather(now, (2, TARGETS), 7, &[anywhere(1), (Inode(2), new)]);
    let expected = [(0, vec![1, 2]), (1, vec![1, 2]), (2, vec![2]), (3, vec![2])];
    assert_eq!(due(&mut removals, now + GATHER_TIME), expected);
    let answers = (0..TARGETS).map(|it| removals.answered(now, place(it), DONE));
    assert_eq!(answers.last(), Some(Some(vec![7])));
    // One at a target of which this daemon does not know yet.
    removals.gather(now, COUNTS, 8, &[at(TARGETS, 2), anywhere(3)]);
    let asked = due(&mut removals, now + GATHER_TIME);
    assert_eq!(asked.len(), usize::from(TARGETS) + 1, "{asked:?}");
    assert_eq!(asked.last(), Some(&(TARGETS, vec![2])));
    let answers = (0..=TARGETS).map(|it| removals.answered(now, place(it), DONE));
    assert_eq!(answers.last(), Some(Some(vec![8])));
}

#[test]
fn a_file_of_a_group_concerns_only_its_members() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    for inode in 1..100 {
        let (mut targets, file) = grouped(inode);
        targets.sort_unstable();
        removals.gather(now, COUNTS, inode, &[file]);
        let expected: Vec<_> = targets.iter().map(|&target| (target, vec![inode])).collect();
        assert_eq!(due(&mut removals, now + GATHER_TIME), expected);
        assert_eq!(removals.answered(now, place(targets[0]), DONE), None);
        assert_eq!(removals.answered(now, place(targets[1]), DONE), Some(vec![inode]));
    }
}

#[test]
fn a_full_batch_is_sent_at_once() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    let files: Vec<_> = (1..=256).map(anywhere).collect();
    let filled = (0..5).map(|token| removals.gather(now, COUNTS, token, &files));
    assert_eq!(filled.collect::<Vec<_>>(), [false, false, false, false, true]);
    let sent = due(&mut removals, now);
    assert_eq!(sent.len(), usize::from(TARGETS));
    assert!(sent.iter().all(|(_, files)| files.len() == REMOVE_COUNT_MAX));
    assert_eq!(due(&mut removals, now + GATHER_TIME), [], "one request per target is in flight");
    assert_eq!(removals.answered(now, place(1), DONE), None);
    assert_eq!(due(&mut removals, now), [(1, (1..=256).collect())]);
}

#[test]
fn a_target_that_is_down_delays_only_its_own_part() {
    let (mut removals, mut now) = (Removals::default(), Instant::now());
    let (here, gone) = (place(0), place(3));
    let (mut sent, mut pauses) = (0, Vec::new());
    for inode in 1..200 {
        removals.gather(now, COUNTS, inode, &[at(0, inode), at(3, 1000 + inode)]);
        now += GATHER_TIME;
        for (target, files) in due(&mut removals, now) {
            if target == gone.target.0 {
                assert_eq!(files, [1001], "the first until it is done");
                sent += 1;
                let before = removals.answered(now, gone, PartAnswer::Again(10));
                assert_eq!(before, None);
                pauses.extend(removals.deadline().map(|at| at - now));
            } else {
                assert_eq!(files, [inode]);
                assert_eq!(removals.answered(now, here, DONE), None);
            }
        }
    }
    assert!((3..20).contains(&sent), "sent {sent} times");
    assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= PAUSE_MAX), "{pauses:?}");
    now += PAUSE_MAX;
    for inode in 1..200 {
        assert_eq!(due(&mut removals, now), [(3, vec![1000 + inode])]);
        assert_eq!(removals.answered(now, gone, DONE), Some(vec![inode]));
    }
    assert_eq!((due(&mut removals, now), removals.deadline()), (vec![], None));
}

#[test]
fn files_of_which_there_is_one_copy_wait_for_their_target_alone() {
    let (mut removals, now) = (Removals::default(), Instant::now());
    let single = Inode(5).with_copies(1);
    let (_, layout) = at(1, 5);
    removals.gather(now, COUNTS, 7, &[at(1, 4), (single, layout)]);
    let alone = RemovalPlace { copies: 1, ..place(1) };
    let sent = due_at(&mut removals, now + GATHER_TIME);
    assert_eq!(sent, [(place(1), vec![4]), (alone, vec![single.0])]);
    assert_eq!(removals.answered(now, alone, PartAnswer::Again(10)), None);
    // Others that are removed meanwhile do not wait.
    assert_eq!(removals.answered(now, place(1), DONE), None, "the first removal is not over");
    removals.gather(now, COUNTS, 8, &[at(1, 6)]);
    let sent = due_at(&mut removals, now + GATHER_TIME);
    assert_eq!(sent, [(place(1), vec![6]), (alone, vec![single.0])], "once more");
    assert_eq!(removals.answered(now, alone, PartAnswer::Again(10)), None);
    assert_eq!(removals.answered(now, place(1), DONE), Some(vec![8]));
    assert!(removals.is_in_flight(DaemonIndex(1)));
    assert_eq!(due_at(&mut removals, now + PAUSE_MAX), [(alone, vec![single.0])]);
    assert_eq!(removals.answered(now, alone, DONE), Some(vec![7]));
    assert!(removals.targets.is_empty() && removals.batches.is_empty());
}

/// A weak random generator; only its repeatability matters.
struct Random(u64);

impl Random {
    fn uniform(&mut self, limit: u64) -> u64 {
        self.0 = wire::hash::mix(self.0, 1);
        self.0 % limit
    }
}

/// Files held by targets, and the files of each open token.
#[derive(Default)]
struct World {
    held: BTreeSet<(u16, u64)>,
    open: BTreeMap<u64, Vec<u64>>,
    /// Requests that are in flight.
    sent: Vec<(RemovalPlace, Vec<u64>)>,
}

impl World {
    fn remove(&mut self, random: &mut Random, removals: &mut Removals, now: Instant, token: u64) {
        let mut files = Vec::new();
        for inode in token * 300..=token * 300 + random.uniform(256) {
            // Of some there is one copy.
            let Inode(inode) = Inode(inode + 1).with_copies(random.uniform(4) as u8);
            let place = random.uniform(u64::from(TARGETS)) as u16;
            let (holders, file) = match random.uniform(4) {
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
        removals.gather(now, COUNTS, token, &files);
    }

    /// One target answers, with a random result.
    fn answer(&mut self, random: &mut Random, removals: &mut Removals, now: Instant) {
        if self.sent.is_empty() {
            return;
        }
        let next = random.uniform(self.sent.len() as u64) as usize;
        let (place, files) = self.sent.swap_remove(next);
        let target = place.target.0;
        let answer = match random.uniform(4) {
            0 => PartAnswer::Again(random.uniform(3) * 50_000),
            1 if random.uniform(4) == 0 => PartAnswer::Ended(Err(Errno::EIO)),
            // Done, but the answer is lost, so that the request is repeated.
            2 => {
                self.give_back(target, &files);
                PartAnswer::Again(10_000)
            }
            _ => {
                self.give_back(target, &files);
                DONE
            }
        };
        for token in removals.answered(now, place, answer).into_iter().flatten() {
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
fn all_space_is_freed_before_a_removal_is_done_whatever_targets_answer() {
    for seed in 0..200 {
        let (mut random, mut removals) = (Random(seed), Removals::default());
        let (mut world, mut now) = (World::default(), Instant::now());
        let mut token = 0;
        while token < 20 || !world.open.is_empty() {
            if token < 20 && random.uniform(3) == 0 {
                world.remove(&mut random, &mut removals, now, token);
                token += 1;
            }
            for (place, files) in due_at(&mut removals, now) {
                assert!(files.len() <= REMOVE_COUNT_MAX, "seed {seed}");
                let is_other = |sent: &(RemovalPlace, Vec<u64>)| sent.0 != place;
                assert!(world.sent.iter().all(is_other), "seed {seed}: two requests in flight");
                let is_its = |inode: &u64| Inode(*inode).copies() == place.copies;
                assert!(files.iter().all(is_its), "seed {seed}: files of both kinds");
                world.sent.push((place, files));
            }
            world.answer(&mut random, &mut removals, now);
            let waits = removals.deadline().map(|at| at.saturating_duration_since(now));
            now += waits.unwrap_or_default().min(Duration::from_millis(random.uniform(20)));
            now += Duration::from_micros(50);
        }
        assert!(world.held.is_empty(), "seed {seed}: leaked {:?}", world.held);
        assert!(removals.targets.is_empty() && removals.batches.is_empty(), "seed {seed}");
    }
}
