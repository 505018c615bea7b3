//! Resources that an instance uses, and the check that nothing is left when all files are removed.

use super::{Instance, wait_for};
use shm::host::HostSegment;

impl Instance {
    /// Number of files as the daemons count them.
    pub(crate) fn files(&self) -> u64 {
        let status = self.status();
        let daemons = status["daemons"].as_array().expect("a list");
        daemons.iter().map(|daemon| daemon["state"]["files"].as_u64().expect("a number")).sum()
    }

    /// Process ids of its daemons.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let status = self.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let pid = |daemon: &serde_json::Value| daemon["pid"].as_i64().expect("a pid");
        daemons.iter().map(|daemon| i32::try_from(pid(daemon)).expect("a pid")).collect()
    }

    /// The segment of its first host.
    pub(crate) fn host(&self) -> HostSegment {
        let user = rustix::process::geteuid().as_raw();
        let path = format!("/dev/shm/forebay-{user}-{}/h0/host", self.name);
        let path = std::ffi::CString::new(path).expect("a path");
        HostSegment::create_or_open(&path).expect("the host segment").0
    }

    /// Entries of the host segment in use: open inodes, and open file descriptions.
    fn open_entries(&self) -> (usize, usize) {
        let (host, mut vnodes, mut files) = (self.host(), 0, 0);
        host.vnode_list(&mut |_, _| vnodes += 1);
        host.file_list(&mut |_, _| files += 1);
        (vnodes, files)
    }

    /// Waits until there are as many files as at first, and no space or entry is in use; no daemon
    /// may have met an error.
    pub(crate) fn assert_nothing_left(&self, files_at_first: u64, what: &str) {
        wait_for("the end of all files", || self.files() == files_at_first);
        wait_for("all space to be freed", || self.used() == 0);
        // An entry without a living owner is reclaimed when no process uses the instance.
        wait_for("the end of all open files", || self.open_entries() == (0, 0));
        for daemon in 0..self.pids().len() {
            let log = self.daemon_log(daemon);
            let bad = log.lines().find(|line| line.contains("ERROR") || line.contains("panicked"));
            assert_eq!(bad, None, "{what}: the log of daemon {daemon}");
        }
    }
}

/// A program of `programs/`, compiled.
pub(crate) fn compiled(name: &str, dir: &std::path::Path) -> std::path::PathBuf {
    let programs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let (source, program) = (programs.join(name).with_extension("c"), dir.join(name));
    let compiled = std::process::Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "{} does not compile", source.display());
    program
}
