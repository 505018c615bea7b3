//! One question to a daemon over its socket: its state, as one line of JSON.

use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use wire::codec::Writer;
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{HELLO_BYTES, STATUS_MAGIC};

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
    /// Files whose inodes live there.
    pub(crate) files: Option<u64>,
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
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let mut hello = [0; HELLO_BYTES];
    let mut writer = Writer::new(&mut hello);
    writer.raw(&STATUS_MAGIC);
    writer.u32(PROTOCOL_VERSION);
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
