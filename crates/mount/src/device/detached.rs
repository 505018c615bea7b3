//! Mounts so that the kernel caches the access control lists of the instance's root.
//!
//! The kernel never caches lists of a directory that it created before `INIT` was answered, such as
//! its own root: each path lookup of a user other than the owner would cost a request. So the
//! instance's root is a directory in the kernel's root (`node_ids`), and only that directory is
//! shown.
//!
//! 1. The file system is created and served without being mounted anywhere.
//! 2. Before Linux 6.15 a subdirectory can be detached only from a file system that is mounted in
//!    the mount namespace of the caller. So a child process with a mount namespace of its own
//!    mounts it there, detaches the directory, sends it back and exits. The mount is visible to no
//!    other process, and nothing is left if the child is killed.
//! 3. The directory is attached at the mount point.
//!
//! A child process and not a thread does this, because it looks up a name in the new file system: a
//! killed process would not exit before that request ends, and the request would not end before the
//! device is closed.
#![expect(unsafe_code, reason = "a namespace of its own")]

use fuse::table::{SUBTYPE, TYPE};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::device::{self, Rights};
use crate::server::node_ids::INSTANCE_NAME;

/// The argument by which this program runs as the child.
pub(crate) const CHILD: &str = "--take";

/// A file system that is not mounted anywhere; it is gone on drop.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    whole: OwnedFd,
}

impl DetachedMount {
    /// Creates it; also returns the open device.
    ///
    /// # Errors
    /// One line: why the kernel does not support this.
    pub(crate) fn new(source: &str, rights: Rights) -> Result<(DetachedMount, OwnedFd), String> {
        let device = device::open()?;
        let whole = new_mount(&device, source, rights).map_err(|errno| errno.to_string())?;
        Ok((DetachedMount { whole }, device))
    }

    /// Attaches the instance's root at `at`. Other threads must already serve requests.
    ///
    /// # Errors
    /// One line: why the kernel does not support this.
    pub(crate) fn show(self, at: &Path) -> Result<(), String> {
        let root = self.extract_root()?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS
            | MoveMountFlags::MOVE_MOUNT_T_AUTOMOUNTS;
        move_mount(root, "", CWD, at, flags).map_err(|errno| errno.to_string())
    }

    /// The instance's root, which the child detaches.
    fn extract_root(self) -> Result<OwnedFd, String> {
        let failed = |errno: Errno| errno.to_string();
        let (ours, theirs) = device::sockets().map_err(failed)?;
        device::send_descriptor(&ours, self.whole).map_err(failed)?;
        let mut child = Command::new("/proc/self/exe");
        let said = child.arg0("forebay-mount").arg(CHILD).stdin(Stdio::from(theirs)).output();
        let said = said.map_err(|error| error.to_string())?;
        if !said.status.success() {
            return Err(String::from_utf8_lossy(&said.stderr).trim().to_owned());
        }
        device::receive_descriptor(&ours).map_err(failed)
    }
}

/// Main function of the child: receives the file system from the socket on standard input and sends
/// back the directory.
///
/// # Errors
/// As of the system calls.
pub(crate) fn extract() -> Result<(), Errno> {
    let socket = std::io::stdin();
    let whole = device::receive_descriptor(&socket)?;
    mount_privately(&whole)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    device::send_descriptor(&socket, open_tree(&whole, INSTANCE_NAME, flags)?)
}

/// Creates the file system as a detached mount.
fn new_mount(device: &OwnedFd, source: &str, rights: Rights) -> Result<OwnedFd, Errno> {
    let made = fsopen(TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&made, "source", source)?;
    fsconfig_set_string(&made, "subtype", SUBTYPE)?;
    for (name, value) in device::options(device, rights) {
        match value {
            Some(value) => fsconfig_set_string(&made, name, value)?,
            None => fsconfig_set_flag(&made, name)?,
        }
    }
    fsconfig_create(&made)?;
    let flags = match rights.is_trusted {
        true => MountAttrFlags::empty(),
        false => MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    };
    fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Mounts it in a mount namespace that only this process is in.
fn mount_privately(whole: impl AsFd) -> Result<(), Errno> {
    // SAFETY: file descriptors are not unshared. WHY: rustix has no other call for it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    // Mounts do not propagate out of the namespace; unmounts by others propagate into it.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    move_mount(whole, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}
