//! The peers file of an instance, a line `index address` for each daemon, and when daemons are dialled.
//!
//! It appears after all daemons have reported their addresses, and changes when one comes back at
//! another address, also on another host. So it is read before each dial of a daemon that was not reached
//! before, or was lost, and when it has changed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::DaemonIndex;

/// Longest peers file: 1024 daemons with a line of less than 64 bytes.
const PEERS_BYTES_MAX: u64 = 64 * 1024;

/// The address of `daemon`, `None` if the file has none.
pub(crate) fn address_of(file: &Path, daemon: DaemonIndex) -> Option<SocketAddr> {
    find(&read(file)?, daemon)
}

/// Cached contents of the file, for a caller that dials many daemons.
pub(crate) struct Addresses {
    file: PathBuf,
    cached: BTreeMap<u16, SocketAddr>,
    is_read: bool,
}

impl Addresses {
    pub(crate) const fn new(file: PathBuf) -> Addresses {
        Addresses { file, cached: BTreeMap::new(), is_read: false }
    }

    /// Allows one more read of the file.
    pub(crate) const fn may_read(&mut self) {
        self.is_read = false;
    }

    /// Reads the file now. Where it cannot be read, what is known stays.
    pub(crate) fn read_now(&mut self) {
        if let Some(text) = read(&self.file) {
            self.cached = all(&text).collect();
        }
    }

    /// The address of `daemon`, `None` if the file does not tell.
    pub(crate) fn of(&mut self, daemon: DaemonIndex) -> Option<SocketAddr> {
        if !self.cached.contains_key(&daemon.0) && !self.is_read {
            self.is_read = true;
            self.cached = read(&self.file).map_or_else(BTreeMap::new, |text| all(&text).collect());
        }
        self.cached.get(&daemon.0).copied()
    }

    /// `daemon` was lost or not reached: it may come back at another address.
    pub(crate) fn forget(&mut self, daemon: DaemonIndex) {
        self.cached.remove(&daemon.0);
    }
}

/// First pause between dials; it grows up to `DIAL_PAUSE_MAX`.
const DIAL_PAUSE: Duration = Duration::from_millis(10);
/// See `DIAL_PAUSE`.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);

/// When and where a daemon is dialled.
pub(crate) struct Dial {
    pub(crate) next: Instant,
    pause: Duration,
    /// When the dial in progress began.
    pub(crate) since: Option<Instant>,
    /// The address that was dialled last.
    pub(crate) at: Option<SocketAddr>,
    /// A failure has been logged; further ones are not, until the daemon is connected.
    pub(crate) is_logged: bool,
}

impl Dial {
    /// The next one is at this time.
    pub(crate) const fn at(next: Instant) -> Dial {
        Dial { next, pause: DIAL_PAUSE, since: None, at: None, is_logged: false }
    }

    /// The daemon is connected: the next one, if the connection is lost, is at once.
    pub(crate) fn connected(&mut self, now: Instant) {
        *self = Dial { at: self.at, ..Dial::at(now) };
    }

    /// It has failed: the next one is after a pause, which doubles.
    pub(crate) fn failed(&mut self, now: Instant) {
        (self.since, self.next) = (None, now + self.pause);
        self.pause = (self.pause * 2).min(DIAL_PAUSE_MAX);
    }

    /// Nobody knows the address yet. The pause grows slowly.
    pub(crate) fn wait_for_address(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (self.pause + self.pause / 16).min(DIAL_PAUSE_MAX);
    }
}

fn read(file: &Path) -> Option<String> {
    if std::fs::metadata(file).ok()?.len() > PEERS_BYTES_MAX {
        return None;
    }
    std::fs::read_to_string(file).ok()
}

fn all(text: &str) -> impl Iterator<Item = (u16, SocketAddr)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let index = words.next()?.parse().ok()?;
        Some((index, words.next()?.parse().ok()?))
    })
}

fn find(text: &str, daemon: DaemonIndex) -> Option<SocketAddr> {
    all(text).find_map(|(index, address)| (index == daemon.0).then_some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_are_skipped() {
        let text = "0 127.0.0.1:1\nx\n1\n\n2 [::1]:3 more\n";
        assert_eq!(find(text, DaemonIndex(0)), "127.0.0.1:1".parse().ok());
        assert_eq!(find(text, DaemonIndex(1)), None);
        assert_eq!(find(text, DaemonIndex(2)), "[::1]:3".parse().ok());
    }

    #[test]
    fn the_file_is_read_again_for_a_daemon_that_moved() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("peers");
        let mut addresses = Addresses::new(file.clone());
        assert_eq!(addresses.of(DaemonIndex(0)), None);
        std::fs::write(&file, "0 127.0.0.1:1\n1 127.0.0.1:2\n").expect("written");
        assert_eq!(addresses.of(DaemonIndex(0)), None, "once at a time");
        addresses.may_read();
        assert_eq!(addresses.of(DaemonIndex(0)), "127.0.0.1:1".parse().ok());
        std::fs::write(&file, "0 127.0.0.1:5\n1 127.0.0.1:6\n").expect("written");
        addresses.may_read();
        assert_eq!(addresses.of(DaemonIndex(0)), "127.0.0.1:1".parse().ok());
        addresses.forget(DaemonIndex(0));
        assert_eq!(addresses.of(DaemonIndex(0)), "127.0.0.1:5".parse().ok());
    }
}
