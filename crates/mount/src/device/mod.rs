//! The kernel's side: mounting and unmounting, and `/dev/fuse`, from which requests are read and to
//! which replies are written.
//!
//! Root mounts directly, also the root of a user namespace. Other users mount through
//! `fusermount3`, a set-uid program of the system, which sends the open device over a socket.

pub(crate) mod detached;

pub(crate) mod guard;

pub(crate) mod namespace;

use config::printable::without_os_error;
use fuse::abi::IN_HEADER_BYTES;
use fuse::init::TRANSFER_BYTES;
use fuse::table::{KIND, Mounted};
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of a request in bytes: a write, with its header and fixed part.
pub(crate) const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES as usize + IN_HEADER_BYTES + 4096;

const DEVICE: &str = "/dev/fuse";
/// Major and minor number of the device.
const NUMBER: (u32, u32) = (10, 229);
const HELPER: &str = "fusermount3";

/// Permissions of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rights {
    /// All users may use it, not only the mounting one.
    pub(crate) is_for_all: bool,
    /// Set-id programs and device files in it work.
    pub(crate) is_trusted: bool,
}

/// A mount that this program made.
#[derive(Debug)]
pub(crate) struct Mount {
    at: PathBuf,
    /// Device number of the file system in the mount table.
    device: String,
}

/// Mounts; also returns the open device. Mount tables such as the output of `df` show `source`.
///
/// # Errors
/// One line: why it is refused.
pub(crate) fn mount(at: &Path, source: &str, rights: Rights) -> Result<(Mount, OwnedFd), String> {
    let device = match mount_directly(at, source, rights)? {
        Some(device) => device,
        None if rights.is_trusted => {
            return Err("only root may mount with --trusted".to_owned());
        }
        None => mount_by_helper(at, source, rights)?,
    };
    Ok((Mount::find(at)?, device))
}

/// The topmost mount at `at` in this mount namespace.
fn top(at: &Path) -> Option<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    fuse::table::read(&table).rfind(|row| row.at == at.as_os_str().as_encoded_bytes())
}

/// Opens the device for a new mount.
///
/// # Errors
/// One line: why it cannot be opened.
pub(crate) fn open() -> Result<OwnedFd, String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            format!("there is no {DEVICE} here: load the module fuse, or let the container have it")
        }
        Errno::ACCESS | Errno::PERM => match rustix::fs::stat(DEVICE) {
            Ok(found) => refused(found.st_mode & 0o777),
            Err(_) => format!("cannot open {DEVICE}: {}", text(errno)),
        },
        _ => format!("cannot open {DEVICE}: {}", text(errno)),
    })?;
    let number = rustix::fs::fstat(&device).map(|found| found.st_rdev);
    match number.map(|found| (rustix::fs::major(found), rustix::fs::minor(found))) {
        Ok(NUMBER) | Err(_) => Ok(device),
        Ok(_) => Err(format!(
            "{DEVICE} is not the device of FUSE here (character device 10, 229): remove it and load \
             the module fuse again"
        )),
    }
}

/// The error where the mode of the device keeps this user out.
fn refused(mode: u32) -> String {
    format!(
        "cannot open {DEVICE}: permission denied: its mode is {mode:04o}, and usually 0666: ask the \
         administrator to set it (udev does so by default), or let the container have the device"
    )
}

/// The text of an error, without its number.
fn text(errno: Errno) -> String {
    without_os_error(&errno.to_string())
}

/// Mount options for the kernel.
pub(crate) fn options(
    device: &OwnedFd,
    rights: Rights,
) -> impl Iterator<Item = (&'static str, Option<String>)> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let all = rights.is_for_all.then_some(("allow_other", None));
    let options = [
        ("fd", Some(device.as_raw_fd().to_string())),
        ("rootmode", Some("40755".to_owned())),
        ("user_id", Some(user.as_raw().to_string())),
        ("group_id", Some(group.as_raw().to_string())),
        ("default_permissions", None),
    ];
    options.into_iter().chain(all)
}

/// Mounts as root or as the root of a user namespace; `None`: the kernel does not permit it.
fn mount_directly(at: &Path, source: &str, rights: Rights) -> Result<Option<OwnedFd>, String> {
    let device = open()?;
    let words = options(&device, rights).map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => name.to_owned(),
    });
    let options =
        CString::new(words.collect::<Vec<_>>().join(",")).map_err(|error| error.to_string())?;
    let flags = match rights.is_trusted {
        true => MountFlags::empty(),
        false => MountFlags::NOSUID | MountFlags::NODEV,
    };
    match rustix::mount::mount(source, at, KIND, flags, options.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(format!("cannot mount on {}: {}", at.display(), text(errno))),
    }
}

/// Runs the helper and receives the device that it sends.
fn mount_by_helper(at: &Path, source: &str, rights: Rights) -> Result<OwnedFd, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot run {HELPER}: {error}");
    let (ours, theirs) = sockets().map_err(|errno| failed(&errno))?;
    // The helper inherits this socket and gets its number in the environment.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|errno| failed(&errno))?;
    let all = if rights.is_for_all { ",allow_other" } else { "" };
    let options = format!("fsname={source},subtype=forebay,default_permissions{all}");
    let said = Command::new(HELPER)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(at)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "cannot mount on {}: that takes the rights of root, or {HELPER} (package fuse3), \
                 which is missing",
                at.display()
            ),
            _ => failed(&error),
        })?;
    drop(theirs);
    if !said.status.success() {
        return Err(helper_error(at, &String::from_utf8_lossy(&said.stderr)));
    }
    receive_descriptor(&ours).map_err(|errno| failed(&errno))
}

/// A pair of sockets for sending file descriptors between processes.
///
/// # Errors
/// As of `socketpair`.
pub(crate) fn sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Sends a file descriptor to another process.
///
/// # Errors
/// As of `sendmsg`.
pub(crate) fn send_descriptor(socket: impl AsFd, descriptor: OwnedFd) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut buffer);
    let all = [descriptor.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&all));
    let bytes = [IoSlice::new(&[0])];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::empty()).map(drop)
}

/// Receives one file descriptor.
///
/// # Errors
/// As of `recvmsg`; `EPROTO` if none arrives.
pub(crate) fn receive_descriptor(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut buffer = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut buffer);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or(Errno::PROTO)
}

/// The error output of the helper as one line.
fn helper_error(at: &Path, said: &str) -> String {
    let at = at.display();
    if said.contains("user_allow_other") {
        return format!(
            "cannot mount on {at} for all: users may only if /etc/fuse.conf has the line \
             'user_allow_other'"
        );
    }
    let lines = said.lines().map(|line| line.trim_start_matches(HELPER).trim_start_matches(": "));
    format!("cannot mount on {at}: {}", lines.collect::<Vec<_>>().join("; "))
}

impl Mount {
    /// The mount at `at`.
    ///
    /// # Errors
    /// One line: nothing is mounted there.
    pub(crate) fn find(at: &Path) -> Result<Mount, String> {
        let row = top(at).ok_or("nothing is mounted there: it was unmounted at once")?;
        Ok(Mount { at: at.to_owned(), device: row.device })
    }

    /// Unmounts. If a program has a file or directory of it open, the mount is detached from the
    /// tree and that program may continue until it closes them. False in that case.
    pub(crate) fn end(&self) -> bool {
        // Another file system may be mounted over it by now, and the kernel identifies mounts only
        // by path.
        if top(&self.at).is_none_or(|row| row.device != self.device) {
            return false;
        }
        let is_idle = self.unmount(UnmountFlags::empty());
        if !is_idle {
            self.unmount(UnmountFlags::DETACH);
        }
        is_idle
    }

    fn unmount(&self, flags: UnmountFlags) -> bool {
        match rustix::mount::unmount(&self.at, flags | UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => {
                let lazy = flags.contains(UnmountFlags::DETACH).then_some("-z");
                let mut helper = Command::new(HELPER);
                let done = helper.args(["-u", "-q"]).args(lazy).arg("--").arg(&self.at).status();
                done.is_ok_and(|status| status.success())
            }
            outcome => outcome.is_ok(),
        }
    }
}

/// Another descriptor of the same mount. With a descriptor of its own a thread finds the requests
/// of its replies without searching those of other threads.
///
/// # Errors
/// As of the system calls.
#[expect(unsafe_code, reason = "a request of the device that rustix does not know")]
pub(crate) fn clone_device(device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let other = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    let number = device.as_raw_fd().cast_unsigned();
    /// `FUSE_DEV_IOC_CLONE`.
    const CLONE: libc::c_ulong = 0x8004_e500;
    // SAFETY: the kernel reads the four bytes of `number` and nothing else.
    // WHY: there is no other way to a second descriptor of a mount.
    let answer = unsafe { libc::ioctl(other.as_raw_fd(), CLONE, &raw const number) };
    if answer == 0 {
        Ok(other)
    } else {
        Err(Errno::from_io_error(&last_error()).unwrap_or(Errno::IO))
    }
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// Reads the next request; `None`: the mount is gone. An empty request: a signal arrived, or a
/// request was aborted before it was read.
///
/// # Errors
/// As of `read`.
pub(crate) fn receive_request(
    device: impl AsFd,
    buffer: &mut [u8],
) -> Result<Option<&[u8]>, Errno> {
    match rustix::io::read(&device, &mut *buffer) {
        Ok(length) => Ok(buffer.get(..length)),
        Err(Errno::NODEV | Errno::CONNABORTED) => Ok(None),
        Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Ok(Some(&[])),
        Err(errno) => Err(errno),
    }
}

/// Sends a notification to the kernel.
///
/// # Errors
/// As of `write`: `ENOENT` if the kernel does not know the inode or name.
pub(crate) fn send_notice(device: impl AsFd, notice: &[u8]) -> Result<(), Errno> {
    rustix::io::write(&device, notice).map(drop)
}

/// Sends a reply. It is not an error if the request was aborted.
///
/// # Errors
/// As of `write`.
pub(crate) fn send_reply(device: impl AsFd, reply: &[u8]) -> Result<(), Errno> {
    match rustix::io::write(&device, reply) {
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_no_number_and_says_what_to_do() {
        assert_eq!(text(Errno::ACCESS), "Permission denied");
        assert!(refused(0o600).contains("its mode is 0600, and usually 0666"));
    }

    #[test]
    fn the_error_of_the_helper_becomes_one_line() {
        let said = "fusermount3: user has no write access to mountpoint /mnt\n";
        let line = "cannot mount on /mnt: user has no write access to mountpoint /mnt";
        assert_eq!(helper_error(Path::new("/mnt"), said), line);
        let said =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in ..\n";
        assert!(helper_error(Path::new("/mnt"), said).ends_with("has the line 'user_allow_other'"));
    }
}
