//! A block device for the SSD file of a daemon, which can be frozen and made to fail: a file system
//! on a loop device. That needs root; without it the tests are skipped. A control group that limits what
//! its processes read from and write to a device: it needs the block I/O controller, version 1 or 2, too.

use super::{Instance, skip, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file system that exists until this is dropped.
pub(crate) struct Device {
    dir: tempfile::TempDir,
    is_still: bool,
}

/// Makes all later calls fail; without flushing its journal, which is impossible on a frozen file
/// system.
const SHUT_DOWN: &str = r"
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587d, 2
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack('I', NO_LOG_FLUSH))
";

fn done(program: &str, words: &[&str]) -> bool {
    let output = Command::new(program).args(words).output();
    output.is_ok_and(|output| output.status.success())
}

impl Device {
    /// A device of `mib` MiB; `None` after a skip note where that is impossible.
    pub(crate) fn new(mib: u64) -> Option<Device> {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Device { dir, is_still: false };
        let (image, at) = (device.path("image"), device.path("at"));
        fs::create_dir(&at).expect("a directory");
        let file = fs::File::create(&image).expect("a file");
        file.set_len(mib << 20).expect("a length");
        let (image, at) = (image.to_string_lossy(), at.to_string_lossy());
        if done("mkfs.ext4", &["-q", &image]) && done("mount", &["-o", "loop", &image, &at]) {
            return Some(device);
        }
        skip("loop devices are not permitted here (root is needed)");
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn at(&self) -> String {
        self.path("at").to_string_lossy().into_owned()
    }

    /// An instance of one daemon whose SSD file is on this device. The daemon keeps the file open,
    /// so it does not look up its name again until it ends.
    pub(crate) fn start(&self, name: &str, options: &[&str]) -> Instance {
        self.start_with(name, options, 0)
    }

    /// As `start`, of several daemons, of which this one has its SSD file on the device.
    pub(crate) fn start_with(&self, name: &str, options: &[&str], index: usize) -> Instance {
        let instance = Instance::start(name, options);
        let daemon = instance.daemon(index);
        daemon.kill();
        daemon.wait();
        let here = self.path("at").join("ssd");
        let (here, file) = (here.to_string_lossy(), instance.data(index).join("ssd"));
        let file = file.to_string_lossy();
        // With what says that it is of this instance.
        assert!(done("cp", &["--sparse=always", &file, &here]), "{here}");
        assert!(done("mount", &["--bind", &here, &file]), "{file}");
        let output = instance.try_start();
        assert!(done("umount", &["-l", &file]), "{file}");
        assert!(output.status.success(), "start: {}", text(&output.stderr));
        instance
    }

    /// Major and minor number, as cgroups name it.
    pub(crate) fn number(&self) -> String {
        use std::os::unix::fs::MetadataExt as _;
        let device = fs::metadata(self.path("at")).expect("its root").dev();
        format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
    }

    /// Writes wait from now on, until the device continues.
    pub(crate) fn freeze(&mut self) {
        assert!(done("fsfreeze", &["-f", &self.at()]), "it cannot be frozen");
        self.is_still = true;
    }

    pub(crate) fn go_on(&mut self) {
        if std::mem::take(&mut self.is_still) {
            assert!(done("fsfreeze", &["-u", &self.at()]), "it stays frozen");
        }
    }

    /// From now on each read and write fails.
    pub(crate) fn fail(&mut self) {
        let shut = Command::new("python3").args(["-c", SHUT_DOWN, &self.at()]).output();
        let shut = shut.expect("python3 runs");
        assert!(shut.status.success(), "{}", text(&shut.stderr));
        self.go_on();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.go_on();
        // A killed daemon may not be gone yet.
        let _ = done("umount", &["-l", &self.at()]);
    }
}

/// A group with a limit; it exists until this is dropped.
pub(crate) struct Throttle {
    group: PathBuf,
}

/// Limits of a device in the group, by the controller of this version.
fn limit(group: &Path, device: &str, rate: u64) -> bool {
    if group.join("io.max").exists() {
        let line = format!("{device} rbps={rate} wbps={rate}");
        return fs::write(group.join("io.max"), line).is_ok();
    }
    ["read", "write"].iter().all(|direction| {
        let file = group.join(format!("blkio.throttle.{direction}_bps_device"));
        fs::write(file, format!("{device} {rate}")).is_ok()
    })
}

impl Throttle {
    /// A group that moves so many bytes per second from and to a device, by its number; `None` after a
    /// skip note where that is impossible.
    pub(crate) fn new(device: &str, rate: u64) -> Option<Throttle> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-test-{}.{number}", std::process::id());
        for root in ["/sys/fs/cgroup/blkio", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let throttle = Throttle { group: Path::new(root).join(&name) };
            let is_made = fs::create_dir(&throttle.group).is_ok();
            if is_made && limit(&throttle.group, device, rate) {
                return Some(throttle);
            }
        }
        skip("devices cannot be throttled here (root and the block I/O controller are needed)");
        None
    }

    /// Has a command, and all that it starts, run in the group.
    pub(crate) fn hold(&self, command: &Command) -> Command {
        let mut held = Command::new("sh");
        let enter = "echo $$ >\"$0\" && exec \"$@\"";
        held.args(["-c", enter]).arg(self.group.join("cgroup.procs"));
        held.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => held.env(name, value),
                None => held.env_remove(name),
            };
        }
        held
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Processes of it may not be gone yet: then it stays, without members.
        let _ = fs::remove_dir(&self.group);
    }
}
