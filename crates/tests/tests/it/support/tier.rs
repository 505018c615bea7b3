//! Faulty backing directories: a small file system, and one that hangs; and the writer of an
//! instance over them.

use super::mounted::{Mounted, is_stopped};
use super::{Instance, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own, for the life of a test.
pub(crate) struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    /// `None` where mounting is not permitted.
    pub(crate) fn new(size: &str) -> Option<Small> {
        let dir = tempfile::tempdir().expect("a directory");
        let small = Small { dir };
        let options = format!("size={size},mode=755");
        small.mount(&["-t", "tmpfs", "-o", &options, "tmpfs"]).then_some(small)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn mount(&self, words: &[&str]) -> bool {
        let done = Command::new("mount").args(words).arg(self.path()).output();
        done.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// A file system that hangs: a mount of another instance whose server is stopped.
pub(crate) struct Hanging<'a> {
    mounted: &'a Mounted<'a>,
}

impl Hanging<'_> {
    pub(crate) fn new<'a>(mounted: &'a Mounted<'a>) -> Hanging<'a> {
        let hanging = Hanging { mounted };
        hanging.signal(Signal::STOP);
        wait_for("the server to stop", || is_stopped(mounted.pid));
        hanging
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.mounted.pid).expect("a pid");
        kill_process(pid, signal).expect("sent");
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

fn run_directory(instance: &Instance) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    instance.dir.path().join(format!("forebay-{user}/{}", instance.name))
}

/// The process id of the writer, from its record.
pub(crate) fn writer(instance: &Instance) -> i32 {
    let record = fs::read(run_directory(instance).join("writeback.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
    i32::try_from(record["process"]["pid"].as_i64().expect("a pid")).expect("a pid")
}

/// A file system of memory in a directory that is made, until this is dropped.
pub(crate) struct MountedAt(pub(crate) PathBuf);

impl MountedAt {
    /// `None` where mounting is not permitted.
    pub(crate) fn new(path: &Path, size: &str) -> Option<MountedAt> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).expect("made");
        let options = format!("size={size},mode=700");
        let words = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let done = Command::new("mount").args(words).arg(path).output();
        done.is_ok_and(|output| output.status.success()).then(|| MountedAt(path.to_owned()))
    }
}

impl Drop for MountedAt {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
