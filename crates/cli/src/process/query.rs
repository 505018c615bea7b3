//! Queries a daemon over its socket: it replies with its status as one line of JSON.

use config::activity::ActivityAnswer;
use config::control::{DaemonStatus, LostFiles};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use wire::codec::Writer;
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{
    ACTIVITY_MAGIC, ADD_MAGIC, BALANCE_MAGIC, GONE_MAGIC, HELLO_BYTES, LEAVE_MAGIC, LEND_MAGIC,
    LOST_MAGIC, RULES_MAGIC, STATUS_MAGIC, job_word,
};

/// Longest reply: 12,288 files of a job's processes have up to 2 KiB each.
const REPLY_BYTES_MAX: u64 = 32 << 20;

/// Queries the daemon at `socket`. `None`: it does not answer within `timeout`.
pub(crate) fn daemon_query(socket: &Path, timeout: Duration) -> Option<DaemonStatus> {
    ask(socket, (STATUS_MAGIC, 0), timeout)
}

/// Sets its memory allowance in steps (or `wire::welcome::LEND_IDLE`); returns its status.
pub(crate) fn daemon_lend(socket: &Path, steps: u32, timeout: Duration) -> Option<DaemonStatus> {
    ask(socket, (LEND_MAGIC, steps), timeout)
}

/// Says that a host is gone, by the number of its first daemon, the `round`th time. Returns the services
/// that know it.
pub(crate) fn daemon_gone(
    socket: &Path,
    (host, round): (u16, u16),
    timeout: Duration,
) -> Option<Vec<u32>> {
    let word = u32::from(round) << 16 | u32::from(host);
    let status: Option<DaemonStatus> = ask(socket, (GONE_MAGIC, word), timeout);
    status.map(|status| status.gone_known)
}

/// Adds a daemon, the next one, of this failure domain. It is added when the membership shows it.
pub(crate) fn daemon_add(socket: &Path, (daemon, domain): (u16, u16), timeout: Duration) {
    let word = u32::from(domain) << 16 | u32::from(daemon);
    let _: Option<DaemonStatus> = ask(socket, (ADD_MAGIC, word), timeout);
}

/// Has a daemon leave the instance. It leaves when the membership shows it.
pub(crate) fn daemon_leave(socket: &Path, daemon: u16, timeout: Duration) {
    let _: Option<DaemonStatus> = ask(socket, (LEAVE_MAGIC, daemon.into()), timeout);
}

/// Says whether the loads of services are balanced, by a word as behind `BALANCE_MAGIC`. It is so when
/// the leader shows it.
pub(crate) fn daemon_balance(socket: &Path, word: u32, timeout: Duration) {
    let _: Option<DaemonStatus> = ask(socket, (BALANCE_MAGIC, word), timeout);
}

/// Queries what a job did, or with `None` all jobs in short, as this host's home daemon knows it.
/// `None`: it does not answer within `timeout`.
pub(crate) fn activity_query(
    socket: &Path,
    job: Option<&str>,
    timeout: Duration,
) -> Option<ActivityAnswer> {
    let word = job.map_or(0, |job| job_word(job.as_bytes()));
    ask(socket, (ACTIVITY_MAGIC, word), timeout)
}

/// Queries which files of the instance lost bytes with all their copies. `None`: it does not answer
/// within `timeout`.
pub(crate) fn lost_query(socket: &Path, timeout: Duration) -> Option<LostFiles> {
    ask(socket, (LOST_MAGIC, 0), timeout)
}

/// Has a command on rules carried out; the answer. `None`: it does not answer within `timeout`.
pub(crate) fn rules_query(socket: &Path, command: &str, timeout: Duration) -> Option<Value> {
    let length = u32::try_from(command.len()).ok()?;
    ask_with(socket, (RULES_MAGIC, length), command.as_bytes(), timeout)
}

fn ask<T: DeserializeOwned>(socket: &Path, hello: ([u8; 8], u32), timeout: Duration) -> Option<T> {
    ask_with(socket, hello, &[], timeout)
}

fn ask_with<T: DeserializeOwned>(
    socket: &Path,
    (magic, word): ([u8; 8], u32),
    more: &[u8],
    timeout: Duration,
) -> Option<T> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let mut hello = [0; HELLO_BYTES];
    let mut writer = Writer::new(&mut hello);
    writer.raw(&magic);
    writer.u32(PROTOCOL_VERSION);
    writer.u32(word);
    writer.finish().ok()?;
    stream.write_all(&hello).ok()?;
    stream.write_all(more).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(REPLY_BYTES_MAX)).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_reply_of_a_daemon_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        let socket = place.path().join("d0.sock");
        let limit = Duration::from_secs(5);
        assert_eq!(daemon_query(&socket, limit), None);
        let listener = UnixListener::bind(&socket).expect("bound");
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).expect("a hello");
            stream.write_all(b"{\"files\":3,\"unknown\":1}\n").expect("sent");
            hello
        });
        let state = daemon_query(&socket, limit).expect("an answer");
        assert_eq!((state.metrics.files, state.metrics.rss), (3, 0));
        let hello = daemon.join().expect("the daemon");
        assert!(hello.starts_with(b"FOREBAYS"));
    }
}
