//! Set of open sessions, for scans of their hazard pointers. A client may set a hazard pointer as
//! soon as it has its welcome, but the worker learns of the session later. So the main thread
//! enters a session here before it sends the welcome.

use shm::session::SESSION_COUNT_MAX;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const WORDS: usize = SESSION_COUNT_MAX.div_ceil(64);

/// One bit per session.
pub(crate) struct OpenSessions {
    words: Box<[AtomicU64]>,
}

impl OpenSessions {
    pub(crate) fn new() -> OpenSessions {
        OpenSessions { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn bit_of(&self, session: u16) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get(usize::from(session) / 64)?, 1 << (session % 64)))
    }

    /// Adds a session. Call before its welcome is sent.
    pub(crate) fn note_open(&self, session: u16) {
        if let Some((word, bit)) = self.bit_of(session) {
            word.fetch_or(bit, SeqCst);
        }
    }

    /// Removes a session whose process has ended.
    pub(crate) fn note_closed(&self, session: u16) {
        if let Some((word, bit)) = self.bit_of(session) {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// Calls `each` with the open sessions from `first` on.
    pub(crate) fn each_open(&self, first: u16, each: &mut dyn FnMut(u16)) {
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
    fn open_sessions_are_listed_until_they_are_forgotten() {
        let open = OpenSessions::new();
        let all = |first| {
            let mut found = Vec::new();
            open.each_open(first, &mut |session| found.push(session));
            found
        };
        let last = SESSION_COUNT_MAX as u16 - 1;
        for session in [0, 63, 64, last, last + 1, u16::MAX] {
            open.note_open(session);
        }
        open.note_closed(63);
        // Numbers that no session has may be listed: they have no hazard pointers.
        let found: Vec<_> = all(0).into_iter().filter(|&session| session <= last).collect();
        assert_eq!(found, [0, 64, last]);
        assert_eq!(all(64).first(), Some(&64));
        open.note_closed(last);
        assert!(!all(0).contains(&last));
    }
}
