//! One question to a daemon over its socket: its state, as one line of JSON.

use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use wire::codec::Writer;
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{HELLO_BYTES, LEND_MAGIC, STATUS_MAGIC};

/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// What a daemon says of itself. Fields that it does not know are not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Bytes of its arena.
    pub(crate) memory_total: Option<u64>,
    /// Of these, free.
    pub(crate) memory_free: Option<u64>,
    /// Bytes of its SSD file.
    pub(crate) ssd_total: Option<u64>,
    /// Of these, free.
    pub(crate) ssd_free: Option<u64>,
    /// Bytes that moved from memory to the SSD since its start.
    pub(crate) bytes_sunk: Option<u64>,
    /// Bytes of parts of files that were made since its start, and of these those for which memory had no
    /// room.
    pub(crate) bytes_made: Option<u64>,
    pub(crate) bytes_missed: Option<u64>,
    /// Bytes that moved down and were wanted in memory again.
    pub(crate) bytes_returned: Option<u64>,
    /// With less memory free than this, what is idle moves down; with less than that, anything.
    pub(crate) room_below: Option<u64>,
    pub(crate) reserve_below: Option<u64>,
    /// Why: given, default, bandwidths, missed, returned, unused.
    pub(crate) room_reason: Option<String>,
    /// Bytes that moved from the SSD to memory since its start.
    pub(crate) bytes_risen: Option<u64>,
    /// Bytes of its files in the memory of other nodes, and of other nodes' files here.
    pub(crate) bytes_abroad: Option<u64>,
    pub(crate) bytes_kept: Option<u64>,
    /// Bytes of memory in pinned files.
    pub(crate) bytes_pinned: Option<u64>,
    /// Such moves, either way, that were ended by use.
    pub(crate) moves_cancelled: Option<u64>,
    /// Users who have files in its memory, where it is known whose they are.
    pub(crate) memory_users: Option<u64>,
    /// Writes that wait for room now.
    pub(crate) writers_waiting: Option<u64>,
    /// Writes that waited since its start, for how many microseconds together, and at most.
    pub(crate) write_waits: Option<u64>,
    pub(crate) write_wait_us: Option<u64>,
    pub(crate) write_wait_us_max: Option<u64>,
    /// Bytes that were dropped, as they lie in the backing directory.
    pub(crate) bytes_dropped: Option<u64>,
    /// Files of which it noted that they are read; that the history which is followed names; that were
    /// read and that it names, or not; and 1 if it is not followed any more.
    pub(crate) history_noted: Option<u64>,
    pub(crate) history_named: Option<u64>,
    pub(crate) history_right: Option<u64>,
    pub(crate) history_wrong: Option<u64>,
    pub(crate) history_given_up: Option<u64>,
    /// Bytes that the arena may hold now, that it holds, and of these in files.
    pub(crate) memory_allowance: Option<u64>,
    pub(crate) memory_held: Option<u64>,
    pub(crate) memory_used: Option<u64>,
    /// Bytes that were given back to the system since its start, and microseconds that this took.
    pub(crate) memory_given_back: Option<u64>,
    pub(crate) memory_given_back_us: Option<u64>,
    /// What was agreed on: `{"fixed":BYTES}`, or `{"least":BYTES,"most":BYTES}`.
    pub(crate) memory_terms: Option<serde_json::Value>,
    /// Why it may hold what it may: set, most, node, cgroup, pressure, short, unknown.
    pub(crate) memory_reason: Option<String>,
    /// Files whose inodes live there.
    pub(crate) files: Option<u64>,
    /// Slots of sessions of which it remembers what came of their last request.
    pub(crate) outcomes: Option<u64>,
    /// Programs that are attached.
    pub(crate) sessions: Option<u64>,
    /// Requests since its start.
    pub(crate) requests: Option<u64>,
    /// Seconds since its start.
    pub(crate) uptime_s: Option<u64>,
    /// Bytes of memory that it holds, shared ones included.
    pub(crate) rss: Option<u64>,
}

/// Asks the daemon behind `socket`. `None`: it does not answer in `timeout`.
pub(crate) fn daemon_query(socket: &Path, timeout: Duration) -> Option<State> {
    ask(socket, (STATUS_MAGIC, 0), timeout)
}

/// Has it hold so many steps of memory (`wire::welcome::LEND_IDLE`); its state then.
pub(crate) fn daemon_lend(socket: &Path, steps: u32, timeout: Duration) -> Option<State> {
    ask(socket, (LEND_MAGIC, steps), timeout)
}

fn ask(socket: &Path, (magic, word): ([u8; 8], u32), timeout: Duration) -> Option<State> {
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
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_answer_of_a_daemon_is_read() {
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
        assert_eq!((state.files, state.rss), (Some(3), None));
        let hello = daemon.join().expect("the daemon");
        assert!(hello.starts_with(b"FOREBAYS"));
    }
}
