//! Sessions: one for each attached client process, by its place in the doorbells.

use wire::errno::{Errno, Result};
use wire::{Credentials, DaemonIndex, origin};

/// What the kernel said of the process behind a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Believed {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its number.
    pub pid: u32,
}

impl Believed {
    /// The credentials that a request may act with. Root may act as anyone (a process that called
    /// `setfsuid`); everyone else as himself, with the supplementary groups that he names: only the
    /// instance's owner gets a session, and all that he could reach by a lie is his own. So his mount is
    /// believed whose a file that it makes is.
    #[must_use]
    pub fn credentials(&self, claimed: &Credentials) -> Credentials {
        if self.uid == 0 || claimed.is_checked {
            return *claimed;
        }
        let gid = if claimed.is_in_group(self.gid) { claimed.gid } else { self.gid };
        Credentials { uid: self.uid, gid, ..*claimed }
    }
}

/// A session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its place in the doorbells.
    pub index: u16,
    /// Origin of its first slot (`wire::origin`); unique in the instance's life.
    pub origin: u64,
    /// Who it is.
    pub believed: Believed,
}

/// All sessions of a daemon.
#[derive(Debug)]
pub struct Sessions {
    rows: Vec<Option<Session>>,
    most: usize,
    /// Daemon and start of the daemon, the upper part of every origin.
    prefix: u64,
    made: u64,
    open: usize,
}

impl Sessions {
    /// None yet, at most `most`. `start` counts the starts of this daemon.
    #[must_use]
    pub fn new(daemon: DaemonIndex, start: u64, most: usize) -> Sessions {
        let prefix = origin::first(daemon, start);
        Sessions { rows: Vec::new(), most, prefix, made: 0, open: 0 }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.open
    }

    /// A new session.
    ///
    /// # Errors
    /// `ENFILE` if there are too many, or were in this start of the daemon.
    pub fn open(&mut self, believed: Believed) -> Result<Session> {
        let index = match self.rows.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.rows.len() < self.most => {
                self.rows.push(None);
                self.rows.len() - 1
            }
            None => return Err(Errno::ENFILE),
        };
        if self.made >= origin::SESSIONS_MAX {
            return Err(Errno::ENFILE);
        }
        let origin = self.prefix + self.made * origin::PER_SESSION;
        self.made += 1;
        let number = u16::try_from(index).map_err(|_| Errno::ENFILE)?;
        let session = Session { index: number, origin, believed };
        let row = self.rows.get_mut(index).ok_or(Errno::ENFILE)?;
        *row = Some(session);
        self.open += 1;
        Ok(session)
    }

    /// The session is over; its place is free.
    pub fn close(&mut self, index: u16) -> Option<Session> {
        let session = self.rows.get_mut(usize::from(index))?.take()?;
        self.open -= 1;
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_himself_and_root_is_anyone() {
        let mut claimed = Credentials::of(5, 6);
        claimed.group_count = 1;
        claimed.groups[0] = 100;
        let user = Believed { uid: 1000, gid: 100, pid: 1 };
        let who = user.credentials(&claimed);
        assert_eq!((who.uid, who.gid, who.is_in_group(100)), (1000, 6, true));
        let stranger = Credentials::of(5, 6);
        assert_eq!(user.credentials(&stranger), Credentials::of(1000, 100));
        let root = Believed { uid: 0, gid: 0, pid: 1 };
        assert_eq!(root.credentials(&claimed), claimed);
        // His mount says whose a file is.
        let checked = Credentials::checked(5, 6);
        assert_eq!(user.credentials(&checked), checked);
    }

    #[test]
    fn places_are_used_again_and_origins_never() {
        let mut sessions = Sessions::new(DaemonIndex(3), 2, 2);
        let who = Believed { uid: 1, gid: 1, pid: 1 };
        let first = sessions.open(who).expect("room");
        let second = sessions.open(who).expect("room");
        assert_eq!(sessions.open(who), Err(Errno::ENFILE));
        assert_eq!(first.origin, (3 << 16 | 2) << 38);
        assert_eq!(second.origin, first.origin + origin::PER_SESSION);
        assert_eq!(sessions.close(first.index), Some(first));
        assert_eq!(sessions.close(first.index), None);
        let third = sessions.open(who).expect("room");
        assert_eq!((third.index, sessions.count()), (first.index, 2));
        assert_eq!(third.origin, second.origin + origin::PER_SESSION);
    }
}
