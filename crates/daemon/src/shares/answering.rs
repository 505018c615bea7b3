//! The command `forebay qos`: its text comes behind the hello, and is answered with one line of JSON by a
//! thread of its own, because another daemon may have to be asked.

use crate::shared::Shared;
use crate::shares::dispatcher::shown::user_of_show;
use crate::shares::inbox::DispatcherMessage;
use crate::shares::rule_set::own_user_of;
use crate::shares::spread::COMMAND_NANOS;
use gateway::PeerCredentials;
use qos::rules::TEXT_BYTES_MAX;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Commands at the same time.
const COMMANDS_MAX: u32 = 16;
/// Longest wait for the text of a command, and for the reader of its answer.
const TEXT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the daemon that keeps the rules.
const ANSWER_TIMEOUT: Duration = Duration::from_nanos(COMMAND_NANOS);

/// Answers a command of so many bytes.
pub(crate) fn answer(shared: &Arc<Shared>, stream: UnixStream, peer: PeerCredentials, length: u32) {
    static COMMANDS: AtomicU32 = AtomicU32::new(0);
    let length = length as usize;
    if length > TEXT_BYTES_MAX || COMMANDS.fetch_add(1, Relaxed) >= COMMANDS_MAX {
        if length <= TEXT_BYTES_MAX {
            COMMANDS.fetch_sub(1, Relaxed);
        }
        return;
    }
    let in_thread = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("qos-answer".to_owned());
    let spawned = thread.spawn(move || {
        if let Err(error) = carry_out(&in_thread, stream, peer, length) {
            tracing::debug!(%error, "cannot answer a command on rules");
        }
        COMMANDS.fetch_sub(1, Relaxed);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot answer a command on rules");
        COMMANDS.fetch_sub(1, Relaxed);
    }
}

fn carry_out(
    shared: &Shared,
    mut stream: UnixStream,
    peer: PeerCredentials,
    length: usize,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TEXT_TIMEOUT))?;
    stream.set_write_timeout(Some(TEXT_TIMEOUT))?;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(std::io::Error::other)?;
    if text != "show" && user_of_show(&text).is_none() {
        // A mount names the user that asked it.
        let uid = own_user_of(&text).unwrap_or(peer.uid);
        shared.audit.note("set-rules", (uid, peer.pid), &config::printable::printable(&text));
    }
    let (waiting, answers) = sync_channel(1);
    shared.shares.inbox.put(DispatcherMessage::Asked(text, waiting));
    let line = answers.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|_| {
        serde_json::json!({ "error": "the daemon that keeps the rules does not answer" })
            .to_string()
    });
    stream.write_all((line + "\n").as_bytes())
}
