//! The kernel's end: mounting and unmounting, and `/dev/fuse`, by which requests come and replies go.
//!
//! Root mounts by himself, as does the root of a user namespace; an ordinary user through `fusermount3`,
//! a set-uid program of the system, which hands the open device over on a socket.

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

/// Bytes of the largest request: a write, with its header and its part of fixed size.
pub(crate) const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES as usize + IN_HEADER_BYTES + 4096;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// What those who use a mount may.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rights {
    /// All users may use it, not only who mounts.
    pub(crate) is_for_all: bool,
    /// Set-id programs and devices that lie there work.
    pub(crate) is_trusted: bool,
}

/// A mount that this program made.
#[derive(Debug)]
pub(crate) struct Mount {
    at: PathBuf,
    /// The file system's number in the kernel's table.
    device: String,
}

/// Mounts; the open device with it. Tables of mounts, as of `df`, show `source`.
///
/// # Errors
/// One line: why it is refused.
pub(crate) fn mount(at: &Path, source: &str, rights: Rights) -> Result<(Mount, OwnedFd), String> {
    let device = match by_ourselves(at, source, rights)? {
        Some(device) => device,
        None if rights.is_trusted => {
            return Err("a trusted mount is for root alone".to_owned());
        }
        None => by_helper(at, source, rights)?,
    };
    Ok((Mount::seen(at)?, device))
}

/// What is mounted at `at`, seen from here.
fn top(at: &Path) -> Option<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    fuse::table::read(&table).rfind(|row| row.at == at.as_os_str().as_encoded_bytes())
}

/// The device, open for a new mount.
///
/// # Errors
/// One line: there is none.
pub(crate) fn open() -> Result<OwnedFd, String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            format!("there is no {DEVICE} here: load the module fuse, or let the container have it")
        }
        _ => format!("can not open {DEVICE}: {errno}"),
    })
}

/// What the kernel is told of a mount that we make.
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

/// As root, or as the root of a user namespace; `None`: the kernel does not let us.
fn by_ourselves(at: &Path, source: &str, rights: Rights) -> Result<Option<OwnedFd>, String> {
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
        Err(errno) => Err(format!("can not mount on {}: {errno}", at.display())),
    }
}

/// Asks the helper, and takes the device that it sends.
fn by_helper(at: &Path, source: &str, rights: Rights) -> Result<OwnedFd, String> {
    let failed = |error: &dyn std::fmt::Display| format!("can not run {HELPER}: {error}");
    let (ours, theirs) = sockets().map_err(|errno| failed(&errno))?;
    // For the helper, which is told its number.
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
                "can not mount on {}: that takes the rights of root, or {HELPER} (package fuse3), \
                 which is missing",
                at.display()
            ),
            _ => failed(&error),
        })?;
    drop(theirs);
    if !said.status.success() {
        return Err(refused(at, &String::from_utf8_lossy(&said.stderr)));
    }
    receive(&ours).map_err(|errno| failed(&errno))
}

/// Two sockets, for descriptors that go from one process to another.
///
/// # Errors
/// What the kernel says.
pub(crate) fn sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Sends a descriptor, which is the other's from then on.
///
/// # Errors
/// What the kernel says.
pub(crate) fn hand_over(socket: impl AsFd, descriptor: OwnedFd) -> Result<(), Errno> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    let all = [descriptor.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&all));
    let bytes = [IoSlice::new(&[0])];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::empty()).map(drop)
}

/// The one descriptor that comes on `socket`.
///
/// # Errors
/// What the kernel says; `EPROTO` if none comes.
pub(crate) fn receive(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
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

/// What the helper says, in one line.
fn refused(at: &Path, said: &str) -> String {
    let at = at.display();
    if said.contains("user_allow_other") {
        return format!(
            "can not mount on {at} for all: users may only if /etc/fuse.conf has the line \
             'user_allow_other'"
        );
    }
    let lines = said.lines().map(|line| line.trim_start_matches(HELPER).trim_start_matches(": "));
    format!("can not mount on {at}: {}", lines.collect::<Vec<_>>().join("; "))
}

impl Mount {
    /// What is to be seen at `at`.
    ///
    /// # Errors
    /// One line: nothing is.
    pub(crate) fn seen(at: &Path) -> Result<Mount, String> {
        let row = top(at).ok_or("it was unmounted at once")?;
        Ok(Mount { at: at.to_owned(), device: row.device })
    }

    /// Takes the mount away from all who look for it; who has a file or a directory of it goes on until
    /// he lets go. False: somebody has.
    pub(crate) fn end(&self) -> bool {
        // Another may be above it by now, and the kernel knows mounts by their path alone.
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

/// One more way to the same mount: a thread with its own finds its replies' requests without those
/// of others.
///
/// # Errors
/// What the kernel says.
#[expect(unsafe_code, reason = "a request of the device that rustix does not know")]
pub(crate) fn another(device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let other = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    let number = device.as_raw_fd().cast_unsigned();
    /// `FUSE_DEV_IOC_CLONE`.
    const CLONE: libc::c_ulong = 0x8004_e500;
    // SAFETY: the kernel reads the four bytes of `number` and nothing else. WHY: there is no other way
    // to a second descriptor of a mount.
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

/// Takes the next request; `None`: the mount is gone. Of no length: a signal came, or a request was given
/// up before anybody took it.
///
/// # Errors
/// What the kernel says.
pub(crate) fn receive_request(device: impl AsFd, room: &mut [u8]) -> Result<Option<&[u8]>, Errno> {
    match rustix::io::read(&device, &mut *room) {
        Ok(length) => Ok(room.get(..length)),
        Err(Errno::NODEV | Errno::CONNABORTED) => Ok(None),
        Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Ok(Some(&[])),
        Err(errno) => Err(errno),
    }
}

/// Says something to the kernel that it did not ask for.
///
/// # Errors
/// What the kernel says: `ENOENT` if it does not know what this is about.
pub(crate) fn send_notice(device: impl AsFd, notice: &[u8]) -> Result<(), Errno> {
    rustix::io::write(&device, notice).map(drop)
}

/// Sends a reply. That its request was given up is no failure.
///
/// # Errors
/// What the kernel says.
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
    fn what_the_helper_says_becomes_one_line() {
        let said = "fusermount3: user has no write access to mountpoint /mnt\n";
        let line = "can not mount on /mnt: user has no write access to mountpoint /mnt";
        assert_eq!(refused(Path::new("/mnt"), said), line);
        let said =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in ..\n";
        assert!(refused(Path::new("/mnt"), said).ends_with("has the line 'user_allow_other'"));
    }
}
