//! Applies a function to many items with several threads, for calls that wait for a remote store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Applies `with` to each item, several at a time; returns the results in the order of the items.
pub fn parallel_map<T: Sync, U: Send>(
    threads: usize,
    all: &[T],
    with: impl Fn(&T) -> U + Sync,
) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(all.len()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(number) else { return };
            let one = with(one);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, one));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(all.len()) {
            // Where no thread can be started, the others do all of it.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// As `parallel_map`, but starts no further item after one has failed.
///
/// # Errors
/// The error of the first item, in their order, that failed.
pub fn try_parallel_map<T: Sync, U: Send, E: Send>(
    threads: usize,
    all: &[T],
    with: impl Fn(&T) -> Result<U, E> + Sync,
) -> Result<Vec<U>, E> {
    let has_failed = AtomicBool::new(false);
    let done = parallel_map(threads, all, |one| {
        if has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let done = with(one);
        has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
        Some(done)
    });
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_processed_once_and_results_are_in_order() {
        for threads in [0, 1, 3, 200] {
            let all: Vec<u32> = (0..100).collect();
            assert_eq!(
                parallel_map(threads, &all, |one| one * 2),
                (0..200).step_by(2).collect::<Vec<_>>()
            );
        }
        assert_eq!(parallel_map(4, &[], |(): &()| 0), Vec::<i32>::new());
    }

    #[test]
    fn no_item_is_started_after_a_failure() {
        let begun = AtomicUsize::new(0);
        let all: Vec<usize> = (0..100).collect();
        let with = |one: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *one >= 7 { Err(*one) } else { Ok(*one) }
        };
        assert_eq!(try_parallel_map(1, &all, with), Err(7));
        assert_eq!(begun.load(Ordering::Relaxed), 8);
        assert_eq!(try_parallel_map(3, &all[..7], with), Ok((0..7).collect()));
        // Several items fail, and the error is that of one of them.
        assert!(try_parallel_map(5, &all, with).is_err());
    }
}
