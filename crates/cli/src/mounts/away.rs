//! Taking a mount away: by the kernel, or by the system's helper; and who is in the way of that.

use super::{seen_by, users};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

/// The system's program by which ordinary users mount and unmount.
const HELPER: &str = "fusermount3";

/// In use by whom.
pub(super) fn in_use(at: &Path, device: &str) -> String {
    let below = seen_by("self").into_iter().find(|row| {
        let row = Path::new(OsStr::from_bytes(&row.at));
        row != at && row.starts_with(at)
    });
    if let Some(below) = below {
        let below = String::from_utf8_lossy(&below.at).into_owned();
        return format!("{below} is mounted below it: unmount that first");
    }
    format!("in use by {}: end that first, or say --lazy", users::of(at, device))
}

/// Why something can not be unmounted.
#[derive(Debug)]
pub(super) enum Unmount {
    /// Somebody uses it.
    Busy,
    /// Whatever else.
    Other(String),
}

impl Unmount {
    /// The reason.
    pub(super) fn text(self) -> String {
        match self {
            Unmount::Busy => "it is in use".to_owned(),
            Unmount::Other(why) => why,
        }
    }
}

/// By the kernel, or the helper if that is for others than us.
pub(super) fn unmount(at: &Path, flags: UnmountFlags) -> Result<(), Unmount> {
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => return Err(Unmount::Busy),
        Err(Errno::PERM) => {}
        Err(errno) => return Err(Unmount::Other(errno.to_string())),
    }
    let mut command = Command::new(HELPER);
    command.env("LC_ALL", "C").arg("-u");
    command.args(flags.contains(UnmountFlags::DETACH).then_some("-z")).arg("--").arg(at);
    let said = command.output().map_err(|error| {
        Unmount::Other(match error.kind() {
            ErrorKind::NotFound => format!("{HELPER} is missing (package fuse3)"),
            _ => format!("can not run {HELPER}: {error}"),
        })
    })?;
    if said.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said.stderr);
    if said.contains("busy") {
        return Err(Unmount::Busy);
    }
    let said = said.trim().trim_start_matches(HELPER).trim_start_matches(": ");
    Err(Unmount::Other(said.lines().collect::<Vec<_>>().join("; ")))
}
