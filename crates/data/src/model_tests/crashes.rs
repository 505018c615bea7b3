//! A crash at each step of a run in turn: before each effect that the daemon performs, after each page
//! that it copies, and after each step of the recovery itself (`kills`). Whoever was not answered asks
//! the next daemon again. Scripts are the model's acts, the same at each run.

use super::{Act, CHUNK_LOG2, FILE_BYTES, Files, TIER_BYTES, World, act, check, finish, go_on};
use crate::effect::Answer;
use crate::sink::Moved;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use wire::{Inode, Request};

const ROUNDS: usize = 2;
/// The script in which others keep pieces.
const ABROAD: u8 = 2;

/// What came about, so that nothing is believed to be tested that never happened.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    /// Requests in which the daemon was killed before it answered.
    pub(super) asked_again: usize,
    /// Copies of which some pages were there.
    pub(super) copies_broken: usize,
    /// Requests that waited for room and got it.
    pub(super) served: usize,
    /// Blocks of lent memory that were given back.
    pub(super) gave_back: usize,
    /// Pieces that went to others, and those that came back.
    pub(super) went: usize,
    pub(super) came: usize,
    /// Copies that a device failed to make.
    pub(super) failed: usize,
}

/// What is asked while the daemon may be killed.
#[derive(Clone)]
pub(super) struct Asking {
    before: Files,
    /// Bytes of these files in that range may be as before, or as asked for: zeros, or those.
    files: Vec<u64>,
    from: u64,
    to: u64,
    bytes: Vec<u8>,
}

impl Asking {
    fn of(before: Files) -> Asking {
        Asking { before, files: Vec::new(), from: 0, to: 0, bytes: Vec::new() }
    }

    /// Each byte is as before or, of what was asked for, that.
    fn check_bytes(&self, file: u64, before: &[u8], bytes: &[u8]) {
        let end = before.len().min(self.to as usize);
        let (from, to) =
            if self.files.contains(&file) { (self.from as usize, end) } else { (0, 0) };
        let rest = |all: &[u8]| [&all[..from], &all[to..]].concat();
        assert!(rest(bytes) == rest(before), "file {file} changed beyond what was asked for");
        for at in from..to {
            let asked_for = self.bytes.get(at - from).copied().unwrap_or(0);
            let is_right = bytes[at] == before[at] || bytes[at] == asked_for;
            assert!(is_right, "byte {at} of file {file} is {}, was {}", bytes[at], before[at]);
        }
    }
}

impl World {
    /// Notes what a request may change.
    pub(super) fn begin_to_ask(&mut self, request: &Request<'_>) {
        let Some(asking) = &mut self.asking else { return };
        let no_bytes = Vec::new();
        let (files, from, to, bytes) = match *request {
            Request::Write { inode, offset, bytes, .. } => {
                (vec![inode.0], offset, offset + bytes.len() as u64, bytes.to_vec())
            }
            Request::Truncate { inode, size, .. } => (vec![inode.0], size, u64::MAX, no_bytes),
            Request::Punch { inode, offset, length, .. } => {
                (vec![inode.0], offset, offset + length, no_bytes)
            }
            Request::Remove { inodes } => {
                let numbers = inodes.chunks_exact(8).map(|one| one.try_into().expect("8 bytes"));
                (numbers.map(u64::from_le_bytes).collect(), 0, u64::MAX, no_bytes)
            }
            _ => return,
        };
        let before = std::mem::take(&mut asking.before);
        *asking = Asking { before, files, from, to, bytes };
    }

    /// After a kill, and before anybody asks again.
    pub(super) fn check_after_kill(&mut self) {
        let Some(asking) = self.asking.take() else { return };
        for file in 1..5 {
            let length = (FILE_BYTES * 2) as u32;
            let (inode, chunk_log2, offset) = (Inode(file), CHUNK_LOG2, 0);
            let outcome = self.call(&Request::Read { inode, chunk_log2, offset, length });
            assert_eq!(outcome.answer, Answer::Bytes { length });
            let mut before = asking.before.get(&file).cloned().unwrap_or_default();
            before.resize(length as usize, 0);
            if outcome.bytes != before {
                asking.check_bytes(file, &before, &outcome.bytes);
            }
        }
    }
}

/// Acts that come between two steps of a copy, the same for the same number.
fn between(number: u8) -> impl Iterator<Item = Act> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let next = move || act().new_tree(&mut runner).expect("an act").current();
    std::iter::repeat_with(next).filter(|act| {
        let moves = matches!(act, Act::Look { .. } | Act::CopyGoesOn { .. } | Act::CopyEnds { .. });
        !moves && !matches!(act, Act::Kill | Act::Lend { .. } | Act::Remove { .. })
    })
}

/// Files fill memory; pieces sink and rise, with something else in the middle of the copies; memory is
/// wanted back; and somebody waits for room that a stopped client keeps.
fn script(number: u8) -> Vec<Act> {
    let mut others = between(number);
    let write = |file, length| Act::Write { file, offset: 0, length, with: 10 + file as u8 };
    let mut acts = vec![write(1, 160 << 10), write(2, 120 << 10), write(3, 150 << 10)];
    for round in 0..ROUNDS {
        for up in [false, true] {
            let (millis, used) = if up { (100, u64::MAX) } else { (40, 0) };
            let look = || Act::Look { up, millis, used, kill_at: None };
            let goes_on = Act::CopyGoesOn { which: round, pages: 3 };
            acts.extend([look(), look(), goes_on.clone()]);
            acts.extend(others.next());
            acts.push(goes_on);
            for which in 0..4 {
                acts.push(Act::CopyEnds { which, fails: which == 3, kill_at: None });
            }
        }
        let bytes = if round % 2 == 0 { 128 << 10 } else { TIER_BYTES };
        acts.push(Act::Lend { bytes, kill_at: None });
        acts.push(Act::GiveBackEnds { which: round, fails: false });
    }
    acts.extend((1..4).map(|file| write(file, 250 << 10)));
    acts.extend((0..64).map(|slot| Act::Pin { slot }));
    acts.push(Act::Remove { files: vec![1, 2, 3] });
    // The first gets what there is, the others wait.
    let want =
        |chunk: u64| Act::Want { file: 4, offset: chunk << CHUNK_LOG2, length: 1 << CHUNK_LOG2 };
    acts.extend((1..6).map(want));
    acts.extend([Act::Unpin, Act::Tick]);
    acts
}

/// One act, in which the daemon is killed once it made so many steps.
fn go_on_killed(world: &mut World, files: &mut Files, act: &Act, steps: usize) {
    // A client that writes to an early piece tells nobody.
    let asks = !matches!(act, Act::WriteEarly { .. });
    world.asking = asks.then(|| Asking::of(files.clone()));
    world.kill_at = Some(steps);
    go_on(world, files, act);
    assert_eq!(world.kill_at, None, "it was not killed: {act:?}, steps={steps}");
    world.asking = None;
    check(world, files);
}

/// Runs a script once for each step in which it may be killed. How many those were, what came about in
/// them, and what moved in the run without a crash.
fn crash_everywhere(number: u8) -> (usize, Seen, Moved) {
    let (mut crashes, mut total) = (0, Seen::default());
    let acts = script(number);
    let mut world = World::new(false);
    world.asks_again = true;
    world.waiting.defers = number % 2 == 1;
    if number == ABROAD {
        world.set_keepers();
    }
    let mut files = Files::new();
    for (at, act) in acts.iter().enumerate() {
        let before = (world.clone(), files.clone());
        world.kill_at = Some(usize::MAX);
        go_on(&mut world, &mut files, act);
        let steps = usize::MAX - world.kill_at.take().expect("it lives");
        for step in 0..=steps {
            let (mut world, mut files) = before.clone();
            go_on_killed(&mut world, &mut files, act, step);
            acts[at + 1..].iter().for_each(|act| go_on(&mut world, &mut files, act));
            finish(&mut world, &mut files);
            crashes += 1;
            total.asked_again += world.seen.asked_again;
            total.copies_broken += world.seen.copies_broken;
            total.served += world.seen.served;
            total.gave_back += world.seen.gave_back;
            total.went += world.seen.went;
            total.came += world.seen.came;
        }
    }
    let moved = world.target.moved();
    finish(&mut world, &mut files);
    (crashes, total, moved)
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    let of_scripts = std::thread::scope(|scope| {
        let all = [0, 1, ABROAD].map(|number| scope.spawn(move || crash_everywhere(number)));
        all.map(|one| one.join().expect("nothing is lost"))
    });
    for (number, (crashes, seen, moved)) in (0..).zip(of_scripts) {
        let Seen { asked_again, copies_broken, served, gave_back, went, came, .. } = seen;
        assert_eq!((went > 0, came > 0), (number == ABROAD, number == ABROAD), "{seen:?}");
        let counts = [crashes, asked_again, copies_broken, served, gave_back];
        assert!(counts.iter().all(|&count| count > 0), "{crashes} crashes, {seen:?}");
        let Moved { bytes_sunk, bytes_risen, cancelled, .. } = moved;
        assert!(bytes_sunk > 0 && bytes_risen + cancelled > 0, "{moved:?}");
    }
}
