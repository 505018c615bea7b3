//! `forebay-mount --limits`: a command of a user of a mount on the rules by which it limits its own jobs,
//! for `forebay qos`, which has no unsafe code. Attaches to nothing, mounts nothing.
//!
//! Arguments: a directory on the mount, and the command. Prints the answer of the instance, a line of
//! JSON.

use crate::users::own_limits::{BYTES, CODE};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use wire::Errno;

/// Times that a command is repeated while others are in its way, and the pause before each.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// The reason, for people.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Result<String, String> {
    let words: Vec<OsString> = words.collect();
    let usage = || "--limits takes PATH COMMAND".to_owned();
    let [path, command] = words.as_slice() else { return Err(usage()) };
    let command = command.to_str().ok_or_else(usage)?;
    if command.len() >= BYTES {
        return Err(format!("a command has less than {BYTES} bytes"));
    }
    let mut tries = 0;
    loop {
        match ask(Path::new(path), command.as_bytes()) {
            Err(Errno::EBUSY) if tries < BUSY_TRIES => tries += 1,
            Ok(answer) => return Ok(answer),
            Err(errno) => return Err(said(errno)),
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

fn said(errno: Errno) -> String {
    match errno {
        Errno::ENOTTY => "it is on no mount of an instance".to_owned(),
        Errno::EPERM => "the mount takes you for nobody: it maps your user to no other".to_owned(),
        Errno::EINVAL => "a command is a text of at most 1,024 bytes".to_owned(),
        Errno::EBUSY => "others have too many commands there: try again".to_owned(),
        Errno::EIO => "the daemon of this host does not answer".to_owned(),
        Errno::E2BIG => "the answer is too long".to_owned(),
        other => other.text().to_owned(),
    }
}

#[expect(unsafe_code, reason = "a request of the mount that rustix does not know")]
fn ask(path: &Path, command: &[u8]) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty());
    let directory = directory.map_err(|errno| Errno(errno.raw_os_error() as u16))?;
    let mut bytes = vec![0u8; BYTES];
    bytes.get_mut(..command.len()).ok_or(Errno::EINVAL)?.copy_from_slice(command);
    // SAFETY: the kernel reads and writes the `BYTES` bytes that the number of the command names, and
    // nothing else; they are the vector's own.
    // WHY: there is no other call that has an answer and names its caller.
    let answer = unsafe { libc::ioctl(directory.as_raw_fd(), CODE.into(), bytes.as_mut_ptr()) };
    if answer != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno(errno as u16));
    }
    let length = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::EIO)?;
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| Errno::EIO)
}
