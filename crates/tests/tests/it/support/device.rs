//! A block device for the SSD file of a daemon, which can be frozen and made to fail: a file system
//! on a loop device. That needs root; without it the tests are skipped.

use super::{Instance, skip, text};
use std::path::PathBuf;
use std::process::Command;

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
        std::fs::create_dir(&at).expect("a directory");
        let file = std::fs::File::create(&image).expect("a file");
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

    fn at(&self) -> String {
        self.path("at").to_string_lossy().into_owned()
    }

    /// An instance of one daemon whose SSD file is on this device. The daemon keeps the file open,
    /// so it does not look up its name again until it ends.
    pub(crate) fn start(&self, name: &str, options: &[&str]) -> Instance {
        let instance = Instance::start(name, options);
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        let here = self.path("at").join("ssd");
        let (here, file) = (here.to_string_lossy(), instance.data(0).join("ssd"));
        let file = file.to_string_lossy();
        // With what says that it is of this instance.
        assert!(done("cp", &["--sparse=always", &file, &here]), "{here}");
        assert!(done("mount", &["--bind", &here, &file]), "{file}");
        let output = instance.try_start();
        assert!(done("umount", &["-l", &file]), "{file}");
        assert!(output.status.success(), "start: {}", text(&output.stderr));
        instance
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
