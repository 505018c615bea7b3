//! The socket on which the commands ask: a line with a word, `status` or `flush`, is answered by lines of
//! JSON, of which the last has a `done`.

use crate::watch::{Board, Flush, Told};
use serde::Serialize;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often somebody who waits for a flush is told how far it is.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for somebody who does not read or write.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a question.
const QUESTION_BYTES_MAX: u64 = 64;

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    told: Told,
    /// True: all is saved that is to be. False: some can not be. Without it: it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<bool>,
}

/// Listens at a path.
///
/// # Errors
/// As of `bind`.
pub(crate) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    // Of one that was killed.
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path)
}

/// Answers everybody, each in a thread of his own.
pub(crate) fn serve(listener: &UnixListener, board: &Arc<Board>) {
    for stream in listener.incoming().flatten() {
        let board = Arc::clone(board);
        let answer = move || drop(answer(stream, &board));
        let _ = std::thread::Builder::new().name("tell".to_owned()).spawn(answer);
    }
}

fn answer(mut stream: UnixStream, board: &Board) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut word = String::new();
    BufReader::new((&stream).take(QUESTION_BYTES_MAX)).read_line(&mut word)?;
    if word.trim() != "flush" {
        return say(&mut stream, board.told(), Some(true));
    }
    let number = board.flush();
    loop {
        match board.stands(number) {
            Flush::Busy => say(&mut stream, board.told(), None)?,
            Flush::Done => return say(&mut stream, board.told(), Some(true)),
            Flush::Failed => return say(&mut stream, board.told_of_failed(), Some(false)),
        }
        std::thread::sleep(TICK);
    }
}

fn say(stream: &mut UnixStream, told: Told, done: Option<bool>) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(&Answer { told, done })?;
    line.push(b'\n');
    stream.write_all(&line)
}
