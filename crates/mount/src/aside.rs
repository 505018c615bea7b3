//! Mounting so that the kernel remembers the access control lists of the instance's root.
//!
//! It never does of a directory that it made before `INIT` was answered, as it made its own root:
//! everyone but the owner would cost a request for each path. So the instance's root is a directory
//! in the kernel's (`nodes`), and only that is shown.
//!
//! 1. The file system is made and served, mounted nowhere.
//! 2. Before Linux 6.15 a directory can be taken only out of what is mounted in the own mount
//!    namespace. So a child has a namespace to itself, mounts it there, takes the directory, hands it
//!    back and ends. Nobody sees that mount, and whoever is killed leaves nothing.
//! 3. The directory is put where it is wanted.
//!
//! It is a child and no thread, since it looks a name up here: a program that was killed meanwhile
//! could not end before its request, nor that before the descriptors of the program are closed.
#![allow(unsafe_code, reason = "a namespace of its own")]

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
use crate::nodes::BELOW_NAME;

/// The word by which this program is the child.
pub(crate) const CHILD: &str = "--take";

/// A file system that is mounted nowhere; it is gone if this goes.
#[derive(Debug)]
pub(crate) struct Aside {
    whole: OwnedFd,
}

impl Aside {
    /// Makes it; the open device with it.
    ///
    /// # Errors
    /// One line: why it can not be had so.
    pub(crate) fn new(source: &str, rights: Rights) -> Result<(Aside, OwnedFd), String> {
        let device = device::open()?;
        let whole = unattached(&device, source, rights).map_err(|errno| errno.to_string())?;
        Ok((Aside { whole }, device))
    }

    /// Shows the instance's root at `at`, while others serve.
    ///
    /// # Errors
    /// One line: why it can not be had so.
    pub(crate) fn show(self, at: &Path) -> Result<(), String> {
        let root = self.taken()?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS
            | MoveMountFlags::MOVE_MOUNT_T_AUTOMOUNTS;
        move_mount(root, "", CWD, at, flags).map_err(|errno| errno.to_string())
    }

    /// The instance's root, which the child takes.
    fn taken(self) -> Result<OwnedFd, String> {
        let failed = |errno: Errno| errno.to_string();
        let (ours, theirs) = device::sockets().map_err(failed)?;
        device::hand_over(&ours, self.whole).map_err(failed)?;
        let mut child = Command::new("/proc/self/exe");
        let said = child.arg0("forebay-mount").arg(CHILD).stdin(Stdio::from(theirs)).output();
        let said = said.map_err(|error| error.to_string())?;
        if !said.status.success() {
            return Err(String::from_utf8_lossy(&said.stderr).trim().to_owned());
        }
        device::receive(&ours).map_err(failed)
    }
}

/// What the child does: standard input is the socket by which the file system comes, and its directory
/// goes.
///
/// # Errors
/// What the kernel says.
pub(crate) fn take() -> Result<(), Errno> {
    let socket = std::io::stdin();
    let whole = device::receive(&socket)?;
    hide(&whole)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    device::hand_over(&socket, open_tree(&whole, BELOW_NAME, flags)?)
}

/// The file system, as a mount that is nowhere.
fn unattached(device: &OwnedFd, source: &str, rights: Rights) -> Result<OwnedFd, Errno> {
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

/// Mounts it in a mount namespace that this process alone is in.
fn hide(whole: impl AsFd) -> Result<(), Errno> {
    // SAFETY: descriptors stay as they are. WHY: rustix has no other call for it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    // Others see nothing of it; what they unmount goes here, too.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    move_mount(whole, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}
