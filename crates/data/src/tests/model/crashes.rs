//! A crash at each step of a run in turn: before each effect that the daemon performs, after each
//! page that it copies, and after each step of the recovery itself (`kills`). Unanswered clients
//! repeat their requests to the next daemon. Scripts are the model's acts, the same at each run.
#![expect(clippy::disallowed_methods, reason = "cases are tried on several threads")]

use super::{
    FILE_BYTES, ModelAct, ModelFiles, ModelWorld, STRIPE_LOG2, TIER_BYTES, act, check, finish,
    go_on,
};
use crate::effect::Answer;
use crate::tiering::moves::MoveCounts;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use wire::{Inode, Request};

const ROUNDS: usize = 2;
/// The script with spill hosts.
const SPILLED: u8 = 2;
/// The script with spill hosts, in which the target is slow.
const SLOW: u8 = 3;

/// Counts what happened, to prove that the run tested it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Observed {
    /// Requests in which the daemon was killed before it answered.
    pub(super) repeated: usize,
    /// Copies of which some pages were complete.
    pub(super) copies_broken: usize,
    /// Requests that waited for space and got it.
    pub(super) served: usize,
    /// Blocks of lent memory that were given back.
    pub(super) gave_back: usize,
    /// Extents spilled, and those fetched back.
    pub(super) spilled: usize,
    pub(super) fetched_back: usize,
    /// Reads of other hosts that were sent to a spill host.
    pub(super) redirected: usize,
    /// Copies that a device failed to make.
    pub(super) failed: usize,
}

/// A request during which the daemon may be killed.
#[derive(Clone)]
pub(super) struct Asking {
    before: ModelFiles,
    /// Bytes of these files in that range may be as before, or as requested: zeros, or the written
    /// bytes.
    files: Vec<u64>,
    from: u64,
    to: u64,
    bytes: Vec<u8>,
}

impl Asking {
    fn of(before: ModelFiles) -> Asking {
        Asking { before, files: Vec::new(), from: 0, to: 0, bytes: Vec::new() }
    }

    /// Checks that each byte is as before or, within the request's range, as requested.
    fn check_bytes(&self, file: u64, before: &[u8], bytes: &[u8]) {
        let end = before.len().min(self.to as usize);
        let (from, to) =
            if self.files.contains(&file) { (self.from as usize, end) } else { (0, 0) };
        let rest = |all: &[u8]| [&all[..from], &all[to..]].concat();
        assert!(rest(bytes) == rest(before), "file {file} changed beyond the requested range");
        for at in from..to {
            let requested = self.bytes.get(at - from).copied().unwrap_or(0);
            let is_right = bytes[at] == before[at] || bytes[at] == requested;
            assert!(is_right, "byte {at} of file {file} is {}, was {}", bytes[at], before[at]);
        }
    }
}

impl ModelWorld {
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

    /// After a kill, and before any client repeats its request.
    pub(super) fn check_after_kill(&mut self) {
        let Some(asking) = self.asking.take() else { return };
        for file in 1..5 {
            let length = (FILE_BYTES * 2) as u32;
            let (inode, stripe_log2, offset) = (Inode(file), STRIPE_LOG2, 0);
            let outcome = self.call(&Request::Read { inode, stripe_log2, offset, length });
            assert_eq!(outcome.answer, Answer::Bytes { length });
            let mut before = asking.before.get(&file).cloned().unwrap_or_default();
            before.resize(length as usize, 0);
            if outcome.bytes != before {
                asking.check_bytes(file, &before, &outcome.bytes);
            }
        }
    }
}

/// Acts between two steps of a copy, the same for the same number.
fn between(number: u8) -> impl Iterator<Item = ModelAct> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let next = move || act().new_tree(&mut runner).expect("an act").current();
    std::iter::repeat_with(next).filter(|act| {
        let moves = matches!(
            act,
            ModelAct::Look { .. } | ModelAct::CopyGoesOn { .. } | ModelAct::CopyEnds { .. }
        );
        !moves && !matches!(act, ModelAct::Kill | ModelAct::Lend { .. } | ModelAct::Remove { .. })
    })
}

/// Other hosts read files of a slow target, whose extents move, and are read, written and cut where they
/// are; then it is well.
fn slow_script(others: &mut impl Iterator<Item = ModelAct>) -> Vec<ModelAct> {
    let far = |file, offset| ModelAct::ReadFromAfar { file, offset, takes_long: file == 2 };
    let reads = || (1..4).flat_map(|file| [far(file, 70 << 10), far(file, 140 << 10)]);
    let ends =
        || (0..4).map(|which| ModelAct::CopyEnds { which, fails: which == 3, kill_at: None });
    let silence = |millis| ModelAct::Silence { millis, kill_at: None };
    let mut acts = vec![ModelAct::Slow];
    acts.extend(reads());
    acts.push(ModelAct::CopyGoesOn { which: 1, pages: 3 });
    acts.extend(reads());
    acts.extend(others.next());
    acts.extend(ends());
    acts.push(ModelAct::Unprotect);
    acts.extend(reads());
    acts.push(ModelAct::Write { file: 1, offset: 71 << 10, length: 300, with: 77 });
    acts.push(ModelAct::Truncate { file: 2, size: 75 << 10 });
    acts.push(ModelAct::Punch { file: 3, offset: 66 << 10, length: 200 });
    acts.extend([silence(11_000), far(1, 140 << 10), ModelAct::Slow]);
    acts.extend(reads());
    acts.extend(ends());
    acts.push(silence(200_000));
    acts.extend(reads());
    acts.extend(ends());
    acts
}

/// Files fill memory; extents are demoted and promoted, with other acts in the middle of the
/// copies; memory is wanted back; and a request waits for space that a stopped client protects.
fn script(number: u8) -> Vec<ModelAct> {
    let mut others = between(number);
    let write = |file, length| ModelAct::Write { file, offset: 0, length, with: 10 + file as u8 };
    let mut acts = vec![write(1, 160 << 10), write(2, 120 << 10), write(3, 150 << 10)];
    if number == SLOW {
        acts.extend(slow_script(&mut others));
    }
    for round in 0..ROUNDS {
        for up in [false, true] {
            let (millis, used) = if up { (100, u64::MAX) } else { (40, 0) };
            let look = || ModelAct::Look { up, millis, used, kill_at: None };
            let progresses = ModelAct::CopyGoesOn { which: round, pages: 3 };
            acts.extend([look(), look(), progresses.clone()]);
            acts.extend(others.next());
            acts.push(progresses);
            for which in 0..4 {
                acts.push(ModelAct::CopyEnds { which, fails: which == 3, kill_at: None });
            }
        }
        let bytes = if round % 2 == 0 { 128 << 10 } else { TIER_BYTES };
        acts.push(ModelAct::Lend { bytes, kill_at: None });
        acts.push(ModelAct::GiveBackEnds { which: round, fails: false });
    }
    acts.extend((1..4).map(|file| write(file, 250 << 10)));
    acts.extend((0..64).map(|slot| ModelAct::Protect { slot }));
    acts.push(ModelAct::Remove { files: vec![1, 2, 3] });
    // The first gets the space there is, the others wait.
    let want = |stripe: u64| ModelAct::Want {
        file: 4,
        offset: stripe << STRIPE_LOG2,
        length: 1 << STRIPE_LOG2,
    };
    acts.extend((1..6).map(want));
    acts.extend([ModelAct::Unprotect, ModelAct::Tick]);
    acts
}

/// Performs one act, in which the daemon is killed after this many steps.
fn go_on_killed(world: &mut ModelWorld, files: &mut ModelFiles, act: &ModelAct, steps: usize) {
    // A client that writes to a preallocated extent sends no message.
    let asks = !matches!(act, ModelAct::WritePreallocated { .. });
    world.asking = asks.then(|| Asking::of(files.clone()));
    world.kill_at = Some(steps);
    go_on(world, files, act);
    assert_eq!(world.kill_at, None, "it was not killed: {act:?}, steps={steps}");
    world.asking = None;
    check(world, files);
}

/// Runs a script once for each step at which it may be killed. Returns how many those were, what
/// happened in them, and what moved in the run without a crash.
fn crash_everywhere(number: u8) -> (usize, Observed, MoveCounts) {
    let (mut crashes, mut total) = (0, Observed::default());
    let acts = script(number);
    let mut world = ModelWorld::new(false);
    world.asks_again = true;
    world.waiting.defers = number % 2 == 1;
    if [SPILLED, SLOW].contains(&number) {
        world.set_spill_hosts();
    }
    let mut files = ModelFiles::new();
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
            total.repeated += world.seen.repeated;
            total.copies_broken += world.seen.copies_broken;
            total.served += world.seen.served;
            total.gave_back += world.seen.gave_back;
            total.spilled += world.seen.spilled;
            total.fetched_back += world.seen.fetched_back;
            total.redirected += world.seen.redirected;
        }
    }
    let moved = world.target.moved();
    finish(&mut world, &mut files);
    (crashes, total, moved)
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    let of_scripts = std::thread::scope(|scope| {
        let all = [0, 1, SPILLED, SLOW].map(|number| scope.spawn(move || crash_everywhere(number)));
        all.map(|one| one.join().expect("nothing is lost"))
    });
    for (number, (crashes, seen, moved)) in (0..).zip(of_scripts) {
        let Observed { repeated, copies_broken, served, gave_back, spilled, fetched_back, .. } =
            seen;
        assert_eq!(
            (spilled > 0, fetched_back > 0),
            (number >= SPILLED, number >= SPILLED),
            "{seen:?}"
        );
        assert_eq!(
            (seen.redirected > 0, moved.bytes_migrated > 0),
            (number == SLOW, number == SLOW)
        );
        let counts = [crashes, repeated, copies_broken, served, gave_back];
        assert!(counts.iter().all(|&count| count > 0), "{crashes} crashes, {seen:?}");
        let MoveCounts { bytes_demoted, bytes_promoted, cancelled, .. } = moved;
        assert!(bytes_demoted > 0 && bytes_promoted + cancelled > 0, "{moved:?}");
    }
}
