//! The audit log of this daemon: which user and process attached, pinned, set quotas, pools and rules,
//! changed the lent memory or the daemons, and salvaged. A file of the run directory for its owner alone,
//! bounded as the log is. A request is noted where its process is attached, as it arrives; whether it was
//! allowed is not known then. Lines of other users are limited, so that none pushes out the rest.

use config::audit;
use gateway::PeerCredentials;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, rename};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::Request;
use wire::request::set;

/// Size at which the file becomes the old one: with that, 100,000 lines.
const BYTES_MAX: u64 = 4 << 20;

/// Lines of a user in a minute, of those that are neither the owner nor root.
const LINES_PER_MINUTE_MAX: u32 = 60;
/// Such users in a minute; those beyond it share one limit.
const USERS_MAX: usize = 1024;

/// The audit log.
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<Option<File>>,
    bytes_max: u64,
    others: Mutex<OtherUsers>,
}

/// Lines of users that are neither the owner nor root.
#[derive(Default)]
struct OtherUsers {
    minute: u64,
    lines: BTreeMap<u32, u32>,
}

impl OtherUsers {
    /// Counts a line. Whether it is written, and the users of an earlier minute with the number of lines
    /// that were left out.
    fn count(&mut self, minute: u64, uid: u32) -> (bool, Vec<(u32, u32)>) {
        let mut left_out = Vec::new();
        if self.minute != minute {
            self.minute = minute;
            let lines = std::mem::take(&mut self.lines).into_iter();
            let beyond =
                lines.map(|(uid, lines)| (uid, lines.saturating_sub(LINES_PER_MINUTE_MAX)));
            left_out.extend(beyond.filter(|it| it.1 > 0));
        }
        let is_known = self.lines.contains_key(&uid) || self.lines.len() < USERS_MAX;
        let lines = self.lines.entry(if is_known { uid } else { u32::MAX }).or_default();
        *lines = lines.saturating_add(1);
        (*lines <= LINES_PER_MINUTE_MAX, left_out)
    }
}

impl Audit {
    /// A log in the file `path`, which is made by the first line.
    pub(crate) const fn new(path: PathBuf) -> Audit {
        let others = Mutex::new(OtherUsers { minute: 0, lines: BTreeMap::new() });
        Audit { path, file: Mutex::new(None), bytes_max: BYTES_MAX, others }
    }

    /// Notes an event. An error is in the daemon's log, and nothing waits for it.
    pub(crate) fn note(&self, event: &str, user: (u32, u32), what: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let uid = user.0;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let (is_written, left_out) = others.count(now.as_secs() / 60, uid);
            drop(others);
            for (uid, lines) in left_out {
                self.write(&audit::line(now, "left-out", (uid, 0), &format!("lines={lines}")));
            }
            if !is_written {
                return;
            }
        }
        self.write(&audit::line(now, event, user, what));
    }

    fn write(&self, line: &str) {
        if let Err(error) = self.append(line.as_bytes()) {
            let path = self.path.display();
            tracing::warn!(%error, %path, line = line.trim_end(), "cannot write the audit log");
        }
    }

    /// Notes a request of a session if it is one of those that an administrator may ask about.
    pub(crate) fn note_request(&self, request: &Request<'_>, uid: u32, peer: &PeerCredentials) {
        let user = (uid, peer.pid);
        match *request {
            Request::SetAttributes { inode, mask, .. } if mask & set::PINNED != 0 => {
                self.note("pin", user, &format!("inode={}", inode.0));
            }
            Request::SetAttributes { inode, mask, .. } if mask & set::UNPINNED != 0 => {
                self.note("unpin", user, &format!("inode={}", inode.0));
            }
            Request::SetAttributes { inode, mask, .. } if mask & set::PROJECT != 0 => {
                self.note("set-project", user, &format!("inode={}", inode.0));
            }
            Request::SetQuota { account, space_hard, inodes_hard, .. } => {
                let what =
                    format!("account={account} space-hard={space_hard} inodes-hard={inodes_hard}");
                self.note("set-quota", user, &what);
            }
            Request::SetPool { name, targets } => {
                let count = wire::pool::targets(targets).count();
                let name = name.escape_ascii();
                self.note("set-pool", user, &format!("name={name} targets={count}"));
            }
            _ => {}
        }
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut place = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // The run directory may be removed, and made again.
        let known = place.take().and_then(|file| file.metadata().ok().map(|it| (file, it)));
        let known = known.filter(|(_, found)| found.nlink() > 0).map(|(file, _)| file);
        let mut file = match known {
            Some(file) => file,
            None => self.open()?,
        };
        if file.metadata()?.len() >= self.bytes_max {
            rename(&self.path, self.path.with_extension("audit.old"))?;
            file = self.open()?;
        }
        file.write_all(line)?;
        *place = Some(file);
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_lines_in_a_minute_and_pushes_out_nobody_elses() {
        let mut others = OtherUsers::default();
        let written = (0..1000).filter(|_| others.count(7, 1001).0).count();
        assert_eq!(written, LINES_PER_MINUTE_MAX as usize);
        assert_eq!(others.count(7, 1002), (true, Vec::new()), "another one has its own");
        let left_out = vec![(1001, 1000 - LINES_PER_MINUTE_MAX)];
        assert_eq!(others.count(8, 1002), (true, left_out));
        assert_eq!(others.count(8, 1001), (true, Vec::new()), "it begins anew");
        let mut others = OtherUsers::default();
        let many = (0..10 * USERS_MAX as u32).filter(|uid| others.count(1, *uid).0).count();
        assert_eq!(many, USERS_MAX + LINES_PER_MINUTE_MAX as usize);
        assert!(others.lines.len() <= USERS_MAX + 1);
    }

    #[test]
    fn the_log_is_bounded_and_for_its_owner_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("d0.audit");
        let audit = Audit { bytes_max: 1000, ..Audit::new(path.clone()) };
        for pid in 0..100 {
            audit.note("attach", (0, pid), "");
        }
        let old = path.with_extension("audit.old");
        let text = [&old, &path].map(|path| std::fs::read_to_string(path).expect("read"));
        assert!(text.iter().all(|text| text.len() < 1100), "{text:?}");
        let last = text.concat();
        assert!(last.ends_with("attach uid=0 pid=99\n"), "{last}");
        let pids: Vec<&str> = last.lines().filter_map(|line| line.split("pid=").nth(1)).collect();
        let expected: Vec<String> = (100 - pids.len()..100).map(|pid| pid.to_string()).collect();
        assert_eq!(pids, expected, "no line is missing");
        for path in [&old, &path] {
            assert_eq!(std::fs::metadata(path).expect("a file").mode() & 0o777, 0o600);
        }
        // A directory that was removed and made again.
        std::fs::remove_file(&path).expect("removed");
        audit.note("attach", (0, 100), "");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
