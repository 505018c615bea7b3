//! Sessions: one per attached client process, identified by its index in the doorbells.

use wire::errno::{Errno, Result};
use wire::{Credentials, DaemonIndex, client_id};

/// Credentials of the process behind a session, as reported by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCredentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id.
    pub pid: u32,
}

impl PeerCredentials {
    /// The credentials with which a request acts. Root may act as any user (a process that called
    /// `setfsuid`). Any other user acts as itself, with the supplementary groups that it claims:
    /// only the instance's owner gets a session, and everything that a false claim could reach is
    /// the owner's anyway. For the same reason its mount is trusted with the owner of a new file.
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
    /// Index in the doorbells.
    pub index: u16,
    /// Client id of its first slot (`wire::client_id`), unique over the life of the instance.
    pub client_id: u64,
    /// The attached process.
    pub peer: PeerCredentials,
}

/// All sessions of a daemon.
#[derive(Debug)]
pub struct Sessions {
    slots: Vec<Option<Session>>,
    count_max: usize,
    /// Daemon and number of its start: the upper part of every client id.
    prefix: u64,
    opened_total: u64,
    open_count: usize,
}

impl Sessions {
    /// Starts with no sessions; at most `count_max` can be open. `start` counts the starts of this
    /// daemon.
    #[must_use]
    pub fn new(daemon: DaemonIndex, start: u64, count_max: usize) -> Sessions {
        let prefix = client_id::first(daemon, start);
        Sessions { slots: Vec::new(), count_max, prefix, opened_total: 0, open_count: 0 }
    }

    /// Number of open sessions.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.open_count
    }

    /// Opens a session.
    ///
    /// # Errors
    /// `ENFILE` if too many are open, or if this start of the daemon has used up all client ids.
    pub fn open(&mut self, peer: PeerCredentials) -> Result<Session> {
        let index = match self.slots.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.slots.len() < self.count_max => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return Err(Errno::ENFILE),
        };
        if self.opened_total >= client_id::SESSIONS_MAX {
            return Err(Errno::ENFILE);
        }
        let client_id = self.prefix + self.opened_total * client_id::PER_SESSION;
        self.opened_total += 1;
        let number = u16::try_from(index).map_err(|_| Errno::ENFILE)?;
        let session = Session { index: number, client_id, peer };
        let slot = self.slots.get_mut(index).ok_or(Errno::ENFILE)?;
        *slot = Some(session);
        self.open_count += 1;
        Ok(session)
    }

    /// Closes a session and frees its index.
    pub fn close(&mut self, index: u16) -> Option<Session> {
        let session = self.slots.get_mut(usize::from(index))?.take()?;
        self.open_count -= 1;
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_acts_as_itself_and_root_as_anyone() {
        let mut claimed = Credentials::of(5, 6);
        claimed.group_count = 1;
        claimed.groups[0] = 100;
        let user = PeerCredentials { uid: 1000, gid: 100, pid: 1 };
        let caller = user.credentials(&claimed);
        assert_eq!((caller.uid, caller.gid, caller.is_in_group(100)), (1000, 6, true));
        let stranger = Credentials::of(5, 6);
        assert_eq!(user.credentials(&stranger), Credentials::of(1000, 100));
        let root = PeerCredentials { uid: 0, gid: 0, pid: 1 };
        assert_eq!(root.credentials(&claimed), claimed);
        // The owner's mount decides the owner of a file.
        let checked = Credentials::checked(5, 6);
        assert_eq!(user.credentials(&checked), checked);
    }

    #[test]
    fn indexes_are_reused_and_client_ids_never() {
        let mut sessions = Sessions::new(DaemonIndex(3), 2, 2);
        let caller = PeerCredentials { uid: 1, gid: 1, pid: 1 };
        let first = sessions.open(caller).expect("room");
        let second = sessions.open(caller).expect("room");
        assert_eq!(sessions.open(caller), Err(Errno::ENFILE));
        assert_eq!(first.client_id, (3 << 16 | 2) << 38);
        assert_eq!(second.client_id, first.client_id + client_id::PER_SESSION);
        assert_eq!(sessions.close(first.index), Some(first));
        assert_eq!(sessions.close(first.index), None);
        let third = sessions.open(caller).expect("room");
        assert_eq!((third.index, sessions.count()), (first.index, 2));
        assert_eq!(third.client_id, second.client_id + client_id::PER_SESSION);
    }
}
