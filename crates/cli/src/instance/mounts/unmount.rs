//! Unmounting, by the system call or the helper program `fusermount3`, and the reasons why it
//! fails.

use super::{mount_table, users};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

/// The helper program with which ordinary users mount and unmount.
const HELPER: &str = "fusermount3";

/// Why the mount at `at` is in use, for people.
pub(super) fn in_use(at: &Path, device: &str) -> String {
    let inner = mount_table("self").into_iter().find(|row| {
        let row = Path::new(OsStr::from_bytes(&row.at));
        row != at && row.starts_with(at)
    });
    if let Some(inner) = inner {
        let inner = String::from_utf8_lossy(&inner.at).into_owned();
        return format!("{inner} is mounted in it: unmount that first");
    }
    format!("in use by {}: end it first, or give --lazy", users::of(at, device))
}

/// Why a mount cannot be unmounted.
#[derive(Debug)]
pub(super) enum UnmountError {
    /// It is in use.
    Busy,
    /// Another reason.
    Other(String),
}

impl UnmountError {
    /// The reason, for people.
    pub(super) fn text(self) -> String {
        match self {
            UnmountError::Busy => "it is in use".to_owned(),
            UnmountError::Other(why) => why,
        }
    }
}

/// Unmounts by the system call, or by the helper if the call is not permitted.
pub(super) fn unmount(at: &Path, flags: UnmountFlags) -> Result<(), UnmountError> {
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => return Err(UnmountError::Busy),
        Err(Errno::PERM) => {}
        Err(errno) => return Err(UnmountError::Other(errno.to_string())),
    }
    let mut command = Command::new(HELPER);
    command.env("LC_ALL", "C").arg("-u");
    command.args(flags.contains(UnmountFlags::DETACH).then_some("-z")).arg("--").arg(at);
    let output = command.output().map_err(|error| {
        UnmountError::Other(match error.kind() {
            ErrorKind::NotFound => format!("{HELPER} is missing (package fuse3)"),
            _ => format!("cannot run {HELPER}: {error}"),
        })
    })?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("busy") {
        return Err(UnmountError::Busy);
    }
    let errors = errors.trim().trim_start_matches(HELPER).trim_start_matches(": ");
    Err(UnmountError::Other(errors.lines().collect::<Vec<_>>().join("; ")))
}
