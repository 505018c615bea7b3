//! The same done with many things by several threads at once, for calls that wait for something far.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does something with each of them, several at a time. What came of it, in their order.
pub fn each<T: Sync, U: Send>(threads: usize, all: &[T], with: impl Fn(&T) -> U + Sync) -> Vec<U> {
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
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// As `each`, until it fails for one of them: no other is begun after that.
///
/// # Errors
/// Of the first of them for which it failed.
pub fn each_until<T: Sync, U: Send, E: Send>(
    threads: usize,
    all: &[T],
    with: impl Fn(&T) -> Result<U, E> + Sync,
) -> Result<Vec<U>, E> {
    let has_failed = AtomicBool::new(false);
    let done = each(threads, all, |one| {
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
    fn all_are_done_once_and_in_order() {
        for threads in [0, 1, 3, 200] {
            let all: Vec<u32> = (0..100).collect();
            assert_eq!(each(threads, &all, |one| one * 2), (0..200).step_by(2).collect::<Vec<_>>());
        }
        assert_eq!(each(4, &[], |(): &()| 0), Vec::<i32>::new());
    }

    #[test]
    fn none_is_begun_after_one_failed() {
        let begun = AtomicUsize::new(0);
        let all: Vec<usize> = (0..100).collect();
        let with = |one: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *one >= 7 { Err(*one) } else { Ok(*one) }
        };
        assert_eq!(each_until(1, &all, with), Err(7));
        assert_eq!(begun.load(Ordering::Relaxed), 8);
        assert_eq!(each_until(3, &all[..7], with), Ok((0..7).collect()));
        // Whoever of several fails first: one of those is told.
        assert!(each_until(5, &all, with).is_err());
    }
}
