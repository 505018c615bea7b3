//! Runs of one setup with many seeds.

use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the usual number of seeds, scaled, from `TEST_SEED` on, and adds up what each counts.
///
/// # Panics
/// If a run panics, after all of them: names each seed that fails.
pub fn campaign<T: Default + AddAssign>(name: &str, usual: u64, run: impl Fn(u64) -> T) -> T {
    let (mut all, mut failed) = (T::default(), Vec::new());
    let first = crate::seed(1);
    for seed in first..first + crate::rounds(usual) {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(counts) => all += counts,
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "{name}: fails with TEST_SEED of {failed:?}, see above");
    all
}
