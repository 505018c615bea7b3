//! Common code of the tests of all crates: random numbers that follow from a seed, the seed and the
//! length of random tests, contents of files, virtual worlds, and notes about skipped tests. Only
//! dev-dependencies name this crate, and the worker program of the tests.
#![forbid(unsafe_code)]

mod contents;
pub mod world;

pub use contents::{content, digest};

use std::io::Write as _;

/// Random numbers that follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Next number of the sequence; all 64 bits are random.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end - 1`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub const fn uniform(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Value of a variable of the environment, or the default where it is not set.
///
/// # Panics
/// If it is set and cannot be read: a mistyped seed must not run another one.
#[must_use]
pub fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
        Err(_) => default,
    }
}

/// Seed of a random test: `TEST_SEED` where it is set, to repeat a failure or to begin another series.
#[must_use]
pub fn seed(usual: u64) -> u64 {
    variable("TEST_SEED", usual)
}

/// How many rounds, steps or kills a random test makes: the usual number times `TEST_SCALE`, at least
/// one. `make soak` sets a large scale.
///
/// # Panics
/// If `TEST_SCALE` is no positive number.
#[must_use]
pub fn rounds(usual: u64) -> u64 {
    ((usual as f64 * scale()) as u64).max(1)
}

/// Whether this is a long run, as `make soak` makes them: `TEST_SCALE` is above 1. Tests that take a
/// sample of many cases take all of them then.
#[must_use]
pub fn is_long() -> bool {
    scale() > 1.0
}

fn scale() -> f64 {
    let scale: f64 = variable("TEST_SCALE", 1.0);
    assert!(scale > 0.0, "TEST_SCALE={scale}: not a positive number");
    scale
}

/// Notes that the running test, or a part of it, cannot run here, and why. The note goes to standard
/// error and, where `TEST_SKIPPED` names a file, to a line of it, so that the last lines of `make test`
/// count and name all skipped tests.
///
/// # Panics
/// If the file cannot be written.
#[expect(clippy::print_stderr, reason = "shown by `--nocapture` and where a test fails")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    append("TEST_SKIPPED", &line);
}

/// Shows a result of the running test: on standard output and, where `TEST_SHOWN` names a file, in it, so
/// that the last lines of `make soak` have it.
///
/// # Panics
/// If the file cannot be written.
#[expect(clippy::print_stdout, reason = "shown by `--nocapture` and where a test fails")]
pub fn show(text: &str) {
    println!("{text}");
    append("TEST_SHOWN", &format!("{text}\n"));
}

fn append(variable: &str, text: &str) {
    if let Some(path) = std::env::var_os(variable) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        // One write, so that lines of tests at the same time do not mix.
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn a_seed_repeats_its_numbers() {
    let numbers = |seed| {
        let mut random = Random::new(seed);
        [random.next(), random.next(), random.uniform(10)]
    };
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
    assert!(numbers(7)[2] < 10);
}
