//! Mounts of instances for end-to-end tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use super::{Instance, TIMEOUT, skip, text};

/// A mount of an instance; unmounted when dropped.
pub(crate) struct Mounted<'a> {
    instance: &'a Instance,
    pub(crate) at: PathBuf,
    pub(crate) pid: i32,
}

/// True if `/dev/fuse` exists; else the test is noted as skipped.
pub(crate) fn has_fuse() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        skip("/dev/fuse is missing");
    }
    has
}

/// True if this kernel certainly has FUSE 7.44 or later: a mount can then make it look up all names
/// again.
pub(crate) fn has_epochs() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 17)
}

impl<'a> Mounted<'a> {
    pub(crate) fn new(instance: &'a Instance, name: &str) -> Mounted<'a> {
        Mounted::by(instance, name, "auto")
    }

    /// With this request transport; `rings` where the kernel can offer FUSE over io_uring.
    pub(crate) fn by(instance: &'a Instance, name: &str, transport: &str) -> Mounted<'a> {
        let at = instance.dir.path().join(name);
        std::fs::create_dir_all(&at).expect("a directory");
        if let Some((user, group)) = instance.owner {
            std::os::unix::fs::chown(&at, Some(user), Some(group)).expect("root may");
        }
        let offered = (transport == "rings").then(UringEnabled::new);
        let mut command = mount_command(instance, &at);
        let output = command.env("FOREBAY_REQUESTS", transport).output().expect("forebay runs");
        drop(offered);
        assert!(output.status.success(), "mount: {}", text(&output.stderr));
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let pid = printed["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        Mounted { instance, at, pid }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = umount(self.instance, &self.at, &["--lazy"]);
    }
}

pub(crate) fn try_mount(instance: &Instance, at: &Path) -> Output {
    mount_command(instance, at).output().expect("forebay runs")
}

fn mount_command(instance: &Instance, at: &Path) -> Command {
    let mut command = instance.command("mount");
    if rustix::process::geteuid().is_root() && instance.owner.is_none() {
        command.arg("--for-all");
    }
    command.arg("--json").arg(at);
    command
}

pub(crate) fn umount(instance: &Instance, at: &Path, options: &[&str]) -> Output {
    Command::new(super::profile().join("forebay"))
        .arg("umount")
        .args(options)
        .arg(at)
        .env("XDG_RUNTIME_DIR", instance.dir.path())
        .output()
        .expect("forebay runs")
}

/// Unmounts a mount that no test uses. Children of concurrent tests may have copies of its open
/// files for a moment, between fork and exec.
pub(crate) fn umount_idle(instance: &Instance, at: &Path) -> Output {
    let since = Instant::now();
    loop {
        let output = umount(instance, at, &[]);
        if output.status.success() || since.elapsed() > TIMEOUT {
            return output;
        }
    }
}

/// True if a process is gone or a zombie.
pub(crate) fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.as_deref().unwrap_or(") Z").rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

/// True if all threads of a process are stopped.
pub(crate) fn is_stopped(pid: i32) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    threads.all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// True if an instance is mounted there.
pub(crate) fn is_mounted(at: &Path) -> bool {
    let at = at.canonicalize().unwrap_or_else(|_| at.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the table of mounts");
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == at.to_str() && words.next() == Some("fuse.forebay")
    })
}

/// True if the mount has no server.
pub(crate) fn is_dead(at: &Path) -> bool {
    const NOT_CONNECTED: i32 = 107;
    // The kernel may have cached attributes; a listing needs a request.
    std::fs::read_dir(at).is_err_and(|error| error.raw_os_error() == Some(NOT_CONNECTED))
}

/// Whether the kernel offers FUSE over io_uring; read when a mount begins.
const OFFERS: &str = "/sys/module/fuse/parameters/enable_uring";

/// Enables FUSE over io_uring in the kernel; the old setting is restored on drop.
pub(crate) struct UringEnabled {
    switch: Option<std::fs::File>,
}

impl UringEnabled {
    pub(crate) fn new() -> UringEnabled {
        let is_on = |word: &str| word.trim() == "Y";
        let switch = std::fs::File::options().read(true).write(true).open(OFFERS).ok();
        let switch = switch.filter(|switch| {
            // Concurrent tests do the same.
            switch.lock().expect("locked");
            !is_on(&std::fs::read_to_string(OFFERS).expect("read"))
        });
        if switch.is_some() {
            std::fs::write(OFFERS, "Y").expect("root may");
        }
        UringEnabled { switch }
    }

    /// True if it can be enabled; else the test is noted as skipped.
    pub(crate) fn is_available() -> bool {
        let offered = UringEnabled::new();
        let now = std::fs::read_to_string(OFFERS).unwrap_or_default();
        drop(offered);
        let can = now.trim() == "Y";
        if !can {
            skip("the kernel offers no FUSE over io_uring: requests by rings");
        }
        can
    }
}

impl Drop for UringEnabled {
    fn drop(&mut self) {
        if let Some(switch) = self.switch.take() {
            std::fs::write(OFFERS, "N").expect("root may");
            drop(switch);
        }
    }
}
