//! The socket on which the commands ask: a line with a word, `status`, `flush` or `leave`, is answered
//! by lines of JSON, of which the last has a `done`. Behind `flush` there may be paths in the instance,
//! their bytes in hexadecimal: then only what is there, and below, is waited for. After `leave` the
//! writer ends.

use crate::scope::Scope;
use crate::watch::{Board, Flush, Told};
use serde::Serialize;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use wire::Inode;
use wire::errno::Errno;

/// How often somebody who waits for a flush is told how far it is.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for somebody who does not read or write.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of an instance waits for what goes with it.
const LEAVE_TIME: Duration = Duration::from_secs(3);
/// Bytes of a question.
const QUESTION_BYTES_MAX: u64 = 1 << 20;

/// What is by a path in the instance: which inode, and whether it is a directory.
pub(crate) type Find = dyn Fn(&[u8]) -> Result<(Inode, bool), Errno> + Send + Sync;

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    told: Told,
    /// True: all is saved that is to be. False: some can not be. Without it: it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<bool>,
    /// A path that can not be flushed, in hexadecimal, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<(String, String)>,
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
pub(crate) fn serve(listener: &UnixListener, board: &Arc<Board>, find: &Arc<Find>) {
    for stream in listener.incoming().flatten() {
        let (board, find) = (Arc::clone(board), Arc::clone(find));
        let answer = move || drop(answer(stream, &board, &*find));
        let _ = std::thread::Builder::new().name("tell".to_owned()).spawn(answer);
    }
}

fn answer(mut stream: UnixStream, board: &Board, find: &Find) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    match words.next().filter(|_| line.ends_with('\n')) {
        Some("flush") => {}
        Some("leave") => {
            let has_left = board.leave(LEAVE_TIME);
            let said = say(&mut stream, board.told(), Some(has_left));
            raise(SIGTERM)?;
            return said;
        }
        _ => return say(&mut stream, board.told(), Some(true)),
    }
    let paths: Vec<&str> = words.collect();
    if !paths.is_empty() {
        return match scope(&paths, find) {
            Ok(scope) => flush_part(&mut stream, board, scope),
            Err(refused) => {
                let told = board.told();
                write(&mut stream, &Answer { told, done: Some(false), refused: Some(refused) })
            }
        };
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

fn flush_part(stream: &mut UnixStream, board: &Board, scope: Scope) -> std::io::Result<()> {
    let number = board.flush_part(scope);
    let told = loop {
        let (stands, told) = board.part(number);
        let done = is_done(stands);
        let told = say(stream, told, done);
        if told.is_err() || done.is_some() {
            break told;
        }
        std::thread::sleep(TICK);
    };
    board.forget_part(number);
    told
}

const fn is_done(stands: Flush) -> Option<bool> {
    match stands {
        Flush::Busy => None,
        Flush::Done => Some(true),
        Flush::Failed => Some(false),
    }
}

/// What is by these paths; or which of them is nowhere.
fn scope(paths: &[&str], find: &Find) -> Result<Scope, (String, String)> {
    let mut scope = Scope::default();
    for &path in paths {
        let refused = |why: &str| (path.to_owned(), why.to_owned());
        let bytes = unhex(path).ok_or_else(|| refused("it is no path"))?;
        let (inode, is_directory) = find(&bytes).map_err(|errno| refused(errno.text()))?;
        let to = if is_directory { &mut scope.trees } else { &mut scope.files };
        to.insert(inode);
    }
    Ok(scope)
}

fn unhex(word: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = word.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

fn say(stream: &mut UnixStream, told: Told, done: Option<bool>) -> std::io::Result<()> {
    write(stream, &Answer { told, done, refused: None })
}

fn write(stream: &mut UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_or_refused() {
        let find: Box<Find> = Box::new(|path| match path {
            b"./d" => Ok((Inode(7), true)),
            b"./f\xff" => Ok((Inode(8), false)),
            _ => Err(Errno::ENOENT),
        });
        let found = scope(&["2e2f64", "2e2F66ff"], &*find).expect("both are there");
        assert!(found.trees.contains(&Inode(7)) && found.files.contains(&Inode(8)));
        for (word, why) in [("2e", "no such file or directory"), ("2", "it is no path")] {
            let (named, said) = scope(&["2e2f64", word], &*find).expect_err("refused");
            assert_eq!((named.as_str(), said.as_str()), (word, why));
        }
        assert!(scope(&["+1"], &*find).is_err());
    }
}
