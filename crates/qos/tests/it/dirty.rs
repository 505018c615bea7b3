//! Bounds on dirty bytes: a memory that fills faster than a device takes its bytes, with jobs that come
//! and go, and a device that fails for a while; beside the same without bounds.

use proptest::prelude::*;
use qos::dirty::{DirtyAnswer, DirtyBounds, DirtyJob, JOBS_MAX, STALLED_MILLIS};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1024 * MIB;
/// Bytes that the device takes in a millisecond: 1 GB/s.
const DRAINED: u64 = MIB;
/// Bytes that a job writes in a millisecond if it may: 8 GB/s.
const WRITTEN: u64 = 8 * MIB;

/// A job is idle that did not write for so many milliseconds.
const IDLE: u32 = 100;

const fn job(number: u32) -> DirtyJob {
    DirtyJob { user: 1, number }
}

/// Jobs that write extents of a MiB into one memory.
struct Memory {
    bounds: DirtyBounds,
    has_bounds: bool,
    now: u32,
    /// Dirty bytes by job.
    held: Vec<u64>,
    /// When each last wrote.
    wrote_at: Vec<u32>,
    device_works: bool,
}

impl Memory {
    fn new(jobs: u32, has_bounds: bool) -> Memory {
        let mut bounds = DirtyBounds::new(MEMORY);
        (0..jobs).for_each(|number| assert_eq!(bounds.admit(job(number)), Some(job(number))));
        let (held, wrote_at) = (vec![0; jobs as usize], vec![0; jobs as usize]);
        Memory { bounds, has_bounds, now: 0, held, wrote_at, device_works: true }
    }

    fn used(&self) -> u64 {
        self.held.iter().sum()
    }

    /// Takes an extent. False: the job waits, for its bound or because all is used.
    fn write(&mut self, number: u32) -> bool {
        self.bounds.pass_time(self.now);
        let passes = !self.has_bounds || self.bounds.ask(job(number), MIB) == DirtyAnswer::Passes;
        let fits = self.used() + MIB <= MEMORY;
        if passes && fits {
            self.bounds.add(job(number), MIB);
            self.held[number as usize] += MIB;
            self.wrote_at[number as usize] = self.now;
        }
        passes && fits
    }

    /// A millisecond passes: bytes leave, by turns of the job that is furthest beyond its bound, and of
    /// the largest one that is idle, or else of the largest.
    fn pass(&mut self) {
        self.now += 1;
        if !self.device_works || self.used() == 0 {
            return;
        }
        let excess = |number: usize| self.bounds.excess(job(number as u32), MIB);
        let is_for_bound = self.has_bounds && self.now.is_multiple_of(2);
        let key = |&number: &usize| match is_for_bound && excess(number) > 0 {
            true => (u64::MAX, excess(number)),
            false => (u64::from(self.now - self.wrote_at[number] > IDLE), self.held[number]),
        };
        let held = (0..self.held.len()).filter(|&number| self.held[number] > 0);
        let Some(of) = held.max_by_key(key) else { return };
        let bytes = DRAINED.min(self.held[of]);
        self.held[of] -= bytes;
        self.bounds.remove(job(of as u32), bytes);
    }

    /// Writes as much as it can in a millisecond; the bytes written.
    fn stream(&mut self, number: u32) -> u64 {
        (0..WRITTEN / MIB).map(|_| if self.write(number) { MIB } else { 0 }).sum()
    }

    /// A burst of this many bytes beside a job that streams on; its milliseconds.
    fn burst(&mut self, number: u32, bytes: u64, streamer: u32) -> u32 {
        let (begun, mut left) = (self.now, bytes);
        while left > 0 {
            // Free memory goes to the job that asks next.
            if self.now.is_multiple_of(2) {
                self.stream(streamer);
            }
            left = left.saturating_sub(self.stream(number));
            if self.now % 2 == 1 {
                self.stream(streamer);
            }
            self.pass();
        }
        self.now - begun
    }
}

#[test]
fn one_job_alone_may_have_all_and_never_waits_for_a_bound() {
    let mut memory = Memory::new(2, true);
    while memory.used() < MEMORY {
        assert_eq!(memory.stream(0), WRITTEN);
    }
    assert_eq!(memory.bounds.bound(job(0)), None);
}

/// A job that comes while another fills the memory waits for the device once, until both are at their
/// bounds; its later bursts find memory. Without bounds each of its bursts has the device's rate.
#[test]
fn bursts_beside_a_streamer_find_memory() {
    let (burst, alone) = (MEMORY / 4, (MEMORY / 4 / WRITTEN) as u32);
    let times = |has_bounds: bool| {
        let mut memory = Memory::new(2, has_bounds);
        (0..2000).for_each(|_| {
            memory.stream(0);
            memory.pass();
        });
        let mut times = Vec::new();
        for _ in 0..4 {
            times.push(memory.burst(1, burst, 0));
            // It computes while the device takes what it wrote.
            for _ in 0..2 * burst / DRAINED {
                memory.stream(0);
                memory.pass();
            }
        }
        times
    };
    let (with, without) = (times(true), times(false));
    println!("ms of bursts with bounds {with:?}, without {without:?}, alone {alone}");
    assert!(with[1..].iter().all(|&millis| millis <= alone + alone / 10), "{with:?}");
    assert!(without[1..].iter().all(|&millis| millis >= 4 * alone), "{without:?}");
}

/// Bytes that an ended job left do not hold back others: they leave when memory is short.
#[test]
fn a_job_that_ended_bounds_no_other() {
    let mut memory = Memory::new(2, true);
    assert!((0..100).all(|_| memory.write(1)));
    memory.device_works = false;
    while memory.stream(0) > 0 {}
    assert_eq!(memory.held[0], MEMORY - 200 * MIB, "all but the claim of the other");
    memory.now += 31_000;
    assert_eq!(memory.stream(0), WRITTEN);
    assert_eq!(memory.bounds.bound(job(0)), None);
}

#[test]
fn a_rule_bounds_a_job_that_is_alone() {
    let mut memory = Memory::new(1, true);
    memory.bounds.set_bound(job(0), 64 * MIB);
    let mut written = 0;
    for _ in 0..1000 {
        written += memory.stream(0);
        assert!(memory.held[0] <= 64 * MIB);
        memory.pass();
    }
    // All that the device takes, and what is left in memory.
    assert_eq!(written, 999 * DRAINED + 64 * MIB);
    memory.bounds.set_bound(job(0), 0);
    assert_eq!(memory.stream(0), WRITTEN);
}

#[test]
fn a_job_whose_bytes_cannot_leave_passes_until_they_do() {
    let mut memory = Memory::new(1, true);
    memory.bounds.set_bound(job(0), 8 * MIB);
    assert_eq!(memory.stream(0), 8 * MIB);
    memory.device_works = false;
    for _ in 0..STALLED_MILLIS {
        assert_eq!(memory.stream(0), 0);
        memory.pass();
    }
    assert!(memory.write(0) && memory.write(0), "nothing leaves");
    memory.device_works = true;
    memory.pass();
    assert!(!memory.write(0), "some have left");
}

/// The files of a round of writeback leave together.
#[test]
fn a_bound_holds_where_bytes_leave_every_eight_seconds() {
    let mut memory = Memory::new(1, true);
    memory.bounds.set_bound(job(0), 8 * MIB);
    for millis in 0..40_000_u32 {
        memory.device_works = millis % 8000 == 7999;
        memory.stream(0);
        memory.pass();
        assert!(memory.held[0] <= 8 * MIB, "{} bytes after {millis} ms", memory.held[0]);
    }
}

#[test]
fn many_jobs_of_a_user_count_together() {
    let mut bounds = DirtyBounds::new(MEMORY);
    let own = DirtyJob { user: 7, number: 1 };
    assert_eq!(bounds.admit(own), Some(own));
    bounds.add(own, MIB);
    let take = |number: u32| {
        let found = bounds.admit(job(number));
        bounds.add(found?, MIB);
        found
    };
    let all: Vec<_> = (0..10_000).map(take).collect();
    assert_eq!(all[JOBS_MAX - 2], Some(job(JOBS_MAX as u32 - 2)));
    let others = all[JOBS_MAX].expect("the others of the user");
    assert!(all[JOBS_MAX..].iter().all(|&one| one == Some(others)));
    assert!(bounds.len() <= 2 * JOBS_MAX);
    // Another user's job is still its own.
    assert_eq!(
        (bounds.bytes(own), bounds.bytes(others)),
        (MIB, (10_000 - JOBS_MAX as u64 + 1) * MIB)
    );
}

proptest! {
    /// Each bound is the level at which the claims of the others, and all that the job may have, fill
    /// the memory, whatever happened before.
    #[test]
    fn bounds_fill_the_memory_by_claims(
        steps in proptest::collection::vec((0u32..6, 0u64..40, any::<bool>()), 1..200),
        sizes in proptest::collection::vec(1u64..2048, 1..4),
    ) {
        let mut bounds = DirtyBounds::new(MEMORY);
        let (mut held, mut peaks) = ([0u64; 6], [0u64; 6]);
        for number in 0..6 {
            bounds.admit(job(number));
        }
        for (at, (number, mib, adds)) in steps.into_iter().enumerate() {
            let (held, bytes) = (&mut held[number as usize], mib * MIB);
            if adds {
                *held += bytes;
                bounds.add(job(number), bytes);
            } else {
                *held = held.saturating_sub(bytes);
                bounds.remove(job(number), bytes);
            }
            if at % 16 == 15 {
                bounds.set_memory(sizes[at / 16 % sizes.len()] * MIB);
            }
            // Less than what has them counted anew, and then that.
            bounds.pass_time(at as u32);
        }
        bounds.set_memory(MEMORY);
        bounds.pass_time(1000);
        // From here on all counts are known.
        for (number, (held, peak)) in held.iter_mut().zip(&mut peaks).enumerate() {
            bounds.remove(job(number as u32), *held);
            bounds.pass_time(40_000);
            (*held, *peak) = (steps_of(number, &sizes) * MIB, steps_of(number, &sizes) * MIB);
        }
        for number in 0..6 {
            bounds.add(job(number), held[number as usize]);
        }
        bounds.pass_time(40_200);
        for number in 0..6usize {
            let claim = |peak: u64| if peak >= MEMORY / 64 { (2 * peak).min(MEMORY) } else { 0 };
            let claims = (0..6).filter(|&other| other != number).map(|other| claim(peaks[other]));
            let claims: Vec<u64> = claims.filter(|&claim| claim > 0).collect();
            let found = bounds.bound(job(number as u32));
            prop_assert_eq!(found.is_some(), !claims.is_empty());
            if let Some(level) = found {
                let filled = level + claims.iter().map(|&claim| claim.min(level)).sum::<u64>();
                // Whole bytes are divided.
                prop_assert!(filled <= MEMORY && filled + 6 > MEMORY, "{} {:?}", level, claims);
            }
        }
    }
}

/// An amount for a job, from 0 to 1,000 MiB.
fn steps_of(number: usize, sizes: &[u64]) -> u64 {
    sizes[number % sizes.len()].wrapping_mul(number as u64 * 37 + 1) % 1000
}
