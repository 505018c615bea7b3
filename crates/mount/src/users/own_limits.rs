//! Rules by which users of a mount limit their own jobs (`qos::rules`): a command comes by an `ioctl` of
//! a directory, and goes to the daemon as one of the caller. Which user that is the kernel says, and the
//! maps of the mount; the command has no word on it. So a user of a mount may give itself limits, and
//! nobody else any. Its sender is `commands::limits`.
//!
//! ```text
//!   ioctl CODE, BYTES in and out:   the command, up to its NUL   ->   a line of JSON, up to its NUL
//! ```

use crate::ops::request::Request;
use crate::settings::Settings;
use crate::users::id_map::NOBODY;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{HELLO_BYTES, RULES_MAGIC};

/// Bytes of a command and of its answer: `OWN_RULES_MAX` rules, and some jobs.
pub(crate) const BYTES: usize = 15 << 10;
/// The `ioctl` command: it reads and writes so many bytes.
pub(crate) const CODE: u32 = 3 << 30 | (BYTES as u32) << 16 | 0xfb << 8 | 2;
const _: () = assert!(BYTES < 1 << 14);

/// Most commands of all users that wait here, each with a thread of the mount.
const WAITING_MAX: u32 = 4;
/// Longest wait for the daemon, which gives up before.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Longest answer of a daemon that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Longest command. The daemon says what is wrong with a shorter one.
const COMMAND_BYTES_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct OwnLimits {
    /// Of the daemon to which commands go.
    socket: PathBuf,
    /// One is carried out at a time: users cannot keep a daemon busy with them.
    turn: Mutex<()>,
    waiting: AtomicU32,
}

/// A command that waits or is carried out.
struct CountedCommand<'a>(&'a AtomicU32);

impl Drop for CountedCommand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl OwnLimits {
    /// Of a mount.
    pub(crate) fn of(settings: &Settings) -> OwnLimits {
        let socket = settings.run.join(format!("d{}.sock", settings.home));
        OwnLimits { socket, turn: Mutex::default(), waiting: AtomicU32::new(0) }
    }

    /// Carries out a command of the caller; the answer.
    ///
    /// # Errors
    /// `EPERM`: its user stands for several others. `EBUSY`: too many commands wait. `EINVAL`: it is no
    /// text. `EIO`: the daemon does not answer.
    pub(crate) fn answer(&self, request: &Request<'_>, data: &[u8]) -> Result<Vec<u8>> {
        let uid = request.header.uid;
        let user = request.server.owners.user_of_caller(uid);
        if user == NOBODY || uid == u32::MAX {
            return Err(Errno::EPERM);
        }
        let length = data.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
        let text = data.get(..length).and_then(|text| str::from_utf8(text).ok());
        let text = text.filter(|text| text.len() <= COMMAND_BYTES_MAX).ok_or(Errno::EINVAL)?;
        let counted = CountedCommand(&self.waiting);
        if self.waiting.fetch_add(1, Relaxed) >= WAITING_MAX {
            return Err(Errno::EBUSY);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(&self.socket, &format!("by {user} {text}"));
        drop((turn, counted));
        answer.map_err(|error| {
            tracing::warn!(%error, "the daemon does not answer a command on rules");
            Errno::EIO
        })
    }
}

/// The answer of a daemon to a command on rules.
fn ask(socket: &Path, command: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut hello = [0; HELLO_BYTES];
    let mut writer = Writer::new(&mut hello);
    writer.raw(&RULES_MAGIC);
    writer.u32(PROTOCOL_VERSION);
    writer.u32(command.len() as u32);
    writer.finish().map_err(std::io::Error::other)?;
    stream.write_all(&hello)?;
    stream.write_all(command.as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut line)?;
    if line.pop() == Some(b'\n') { Ok(line) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_command_goes_to_the_daemon_and_its_answer_comes_back() {
        let path = std::env::temp_dir().join(format!("forebay-own-limits-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(ask(&path, "by 7 show").is_err(), "nobody is there");
        let listener = UnixListener::bind(&path).expect("bound");
        let daemon = std::thread::spawn(move || {
            let mut said = Vec::new();
            for answer in ["{}\n", "{"] {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut bytes = [0; HELLO_BYTES + 9];
                stream.read_exact(&mut bytes).expect("a command");
                stream.write_all(answer.as_bytes()).expect("sent");
                said = bytes.to_vec();
            }
            said
        });
        assert_eq!(ask(&path, "by 7 show").ok().as_deref(), Some(&b"{}"[..]));
        assert!(ask(&path, "by 7 show").is_err(), "the answer has no end");
        let said = daemon.join().expect("the daemon");
        assert!(said.starts_with(&RULES_MAGIC) && said.ends_with(b"by 7 show"));
        let _ = std::fs::remove_file(&path);
    }
}
