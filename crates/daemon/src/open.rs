//! Which sessions are open, for who looks through their pins. A client may pin as soon as it is welcome;
//! the worker hears of its session a while later. So this is noted before it is welcome, by the thread
//! that welcomes it, and not by the workers' own account.

use shm::doorbell::SESSION_COUNT_MAX;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const WORDS: usize = SESSION_COUNT_MAX.div_ceil(64);

/// A bit for each session.
pub(crate) struct Open {
    words: Box<[AtomicU64]>,
}

impl Open {
    pub(crate) fn new() -> Open {
        Open { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, session: u16) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get(usize::from(session) / 64)?, 1 << (session % 64)))
    }

    /// A client is about to be welcome.
    pub(crate) fn note(&self, session: u16) {
        if let Some((word, bit)) = self.word(session) {
            word.fetch_or(bit, SeqCst);
        }
    }

    /// Its process has ended.
    pub(crate) fn forget(&self, session: u16) {
        if let Some((word, bit)) = self.word(session) {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// Calls `each` with the open sessions from `first` on.
    pub(crate) fn each(&self, first: u16, each: &mut dyn FnMut(u16)) {
        for (number, word) in (0u16..).zip(&self.words) {
            let mut rest = word.load(SeqCst);
            while rest != 0 {
                let session = number * 64 + rest.trailing_zeros() as u16;
                rest &= rest - 1;
                if session >= first {
                    each(session);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_told_until_it_is_forgotten() {
        let open = Open::new();
        let all = |first| {
            let mut found = Vec::new();
            open.each(first, &mut |session| found.push(session));
            found
        };
        let last = SESSION_COUNT_MAX as u16 - 1;
        for session in [0, 63, 64, last, last + 1, u16::MAX] {
            open.note(session);
        }
        open.forget(63);
        // A number that no session has may be told: its pins are nobody's.
        let found: Vec<_> = all(0).into_iter().filter(|&session| session <= last).collect();
        assert_eq!(found, [0, 64, last]);
        assert_eq!(all(64).first(), Some(&64));
        open.forget(last);
        assert!(!all(0).contains(&last));
    }
}
