//! Which session is that of the writeback daemon, whose requests are of no job, and urgent where it says
//! that writers wait for space.
//!
//! Nothing that a client sends says so. The kernel names the process at the other end of the socket, and
//! the program that it runs: that is the instance's own `forebay-writeback`, beside the program of this
//! daemon, run by the owner of the instance. A mount asks for other users, but runs another program.

use gateway::PeerCredentials;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Name of the program.
const PROGRAM: &str = "forebay-writeback";

/// Tells the writeback daemon from other clients.
pub(crate) struct WritebackProgram {
    /// `None`: the directory of this daemon's program is not known.
    path: Option<PathBuf>,
    owner: u32,
}

fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl WritebackProgram {
    /// That of an instance of this user.
    pub(crate) fn of(owner: u32) -> WritebackProgram {
        let own = std::env::current_exe().ok();
        let path = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
        WritebackProgram { path, owner }
    }

    /// True if a process that connects runs it.
    pub(crate) fn is_run_by(&self, peer: &PeerCredentials) -> bool {
        let runs = Path::new("/proc").join(peer.pid.to_string()).join("exe");
        let of = |path: &Path| std::fs::metadata(path).ok();
        let program = self.path.as_deref().and_then(of);
        let is_it = program.zip(of(&runs)).is_some_and(|(one, other)| is_same_file(&one, &other));
        peer.uid == self.owner && is_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_user_count_and_no_claim() {
        let own = std::env::current_exe().expect("a program");
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let peer = PeerCredentials { uid, gid, pid: std::process::id() };
        let program = |path: &Path| WritebackProgram { path: Some(path.to_owned()), owner: uid };
        assert!(program(&own).is_run_by(&peer));
        // Root has sessions, too, with which it acts for others.
        assert!(!program(&own).is_run_by(&PeerCredentials { uid: uid + 1, ..peer }));
        // A copy under the same name is another program.
        let dir = tempfile::tempdir().expect("a directory");
        let copy = dir.path().join(PROGRAM);
        std::fs::copy(&own, &copy).expect("a copy");
        assert!(!program(&copy).is_run_by(&peer));
        assert!(!program(&dir.path().join("missing")).is_run_by(&peer));
        assert!(!WritebackProgram { path: None, owner: uid }.is_run_by(&peer));
        assert!(!program(&own).is_run_by(&PeerCredentials { pid: u32::MAX, ..peer }), "no process");
    }
}
