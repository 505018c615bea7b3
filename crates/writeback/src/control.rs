//! The control socket. A request is a line with the word `status`, `files` (a status with the accesses to
//! the backing store by file), `flush` or `leave`; the response
//! is lines of JSON, of which the last has a field `done`. After `flush` there may be paths in the
//! instance, in hexadecimal: then the flush covers only these files and subtrees. The daemon exits
//! after `leave`.

use crate::progress::{FlushStatus, Progress};
use crate::round::scope::Scope;
use config::control::{WritebackAnswer, WritebackReport, path_from_hex};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use wire::Inode;
use wire::errno::Errno;

/// Interval of the reports during a flush.
const TICK: Duration = Duration::from_millis(100);
/// Timeout of reads and writes of the socket.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a status waits for the count of what is dirty; after that it has the last one.
const COUNT_TIME: Duration = Duration::from_millis(500);
/// Maximum length of a request in bytes.
const QUESTION_BYTES_MAX: u64 = 1 << 20;

/// Looks up a path in the instance: its inode, and whether it is a directory.
pub(crate) type Find = dyn Fn(&[u8]) -> Result<(Inode, bool), Errno> + Send + Sync;

/// Counts what is dirty now; `None`: a daemon of the instance does not answer.
pub(crate) type CountDirty = dyn Fn() -> Option<u64> + Send + Sync;

/// Questions about the instance that an answer needs.
pub(crate) struct InstanceQueries {
    pub(crate) find: Box<Find>,
    pub(crate) count_dirty: Box<CountDirty>,
}

/// Binds the socket.
///
/// # Errors
/// As of `bind`.
pub(crate) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    // The socket of a daemon that was killed.
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path)
}

/// Answers each connection in a thread of its own.
pub(crate) fn serve(
    listener: &UnixListener,
    progress: &Arc<Progress>,
    queries: &Arc<InstanceQueries>,
) {
    for stream in listener.incoming().flatten() {
        let (progress, queries) = (Arc::clone(progress), Arc::clone(queries));
        let answer = move || drop(answer(stream, &progress, &queries));
        let _ = std::thread::Builder::new().name("tell".to_owned()).spawn(answer);
    }
}

fn answer(
    mut stream: UnixStream,
    progress: &Progress,
    queries: &Arc<InstanceQueries>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    match words.next().filter(|_| line.ends_with('\n')) {
        Some("flush") => {}
        Some("leave") => {
            let said = leave(&mut stream, progress);
            raise(SIGTERM)?;
            return said;
        }
        Some("files") => {
            let files = progress.counters.accesses();
            return say(&mut stream, WritebackReport { files, ..progress.report() }, Some(true));
        }
        _ => {
            if let Some(dirty) = count_dirty(queries) {
                progress.with_report(|report| report.metrics.dirty = dirty);
            }
            return say(&mut stream, progress.report(), Some(true));
        }
    }
    let paths: Vec<&str> = words.collect();
    if !paths.is_empty() {
        return match scope(&paths, &*queries.find) {
            Ok(scope) => flush_scope(&mut stream, progress, scope),
            Err(refused) => {
                let report = progress.report();
                write(
                    &mut stream,
                    &WritebackAnswer { report, done: Some(false), refused: Some(refused) },
                )
            }
        };
    }
    let number = progress.flush();
    loop {
        match progress.status(number) {
            FlushStatus::Busy => say(&mut stream, progress.report(), None)?,
            FlushStatus::Done => return say(&mut stream, progress.report(), Some(true)),
            FlushStatus::Failed => return say(&mut stream, progress.failed_report(), Some(false)),
        }
        std::thread::sleep(TICK);
    }
}

/// Removes private files from the backing store, for as long as the asking process waits for it.
fn leave(stream: &mut UnixStream, progress: &Progress) -> std::io::Result<()> {
    loop {
        let has_left = progress.leave(TICK);
        let is_over = has_left || progress.is_stopped();
        say(stream, progress.report(), is_over.then_some(has_left))?;
        if is_over {
            return Ok(());
        }
    }
}

/// Counts the dirty names and inodes; `None`: a daemon does not answer in time.
fn count_dirty(queries: &Arc<InstanceQueries>) -> Option<u64> {
    let (sender, counted) = mpsc::channel();
    let queries = Arc::clone(queries);
    let count = move || {
        let _ = sender.send((queries.count_dirty)());
    };
    std::thread::Builder::new().name("count".to_owned()).spawn(count).ok()?;
    counted.recv_timeout(COUNT_TIME).ok().flatten()
}

fn flush_scope(stream: &mut UnixStream, progress: &Progress, scope: Scope) -> std::io::Result<()> {
    let number = progress.flush_scope(scope);
    let sent = loop {
        let (status, report) = progress.scoped(number);
        let done = is_done(status);
        let sent = say(stream, report, done);
        if sent.is_err() || done.is_some() {
            break sent;
        }
        std::thread::sleep(TICK);
    };
    progress.forget_scoped(number);
    sent
}

const fn is_done(status: FlushStatus) -> Option<bool> {
    match status {
        FlushStatus::Busy => None,
        FlushStatus::Done => Some(true),
        FlushStatus::Failed => Some(false),
    }
}

/// The scope of these paths; or the path that does not exist, and why.
fn scope(paths: &[&str], find: &Find) -> Result<Scope, (String, String)> {
    let mut scope = Scope::default();
    for &path in paths {
        let refused = |why: &str| (path.to_owned(), why.to_owned());
        let found = path_from_hex(path).ok_or_else(|| refused("not a valid path"))?;
        let found = find(found.as_os_str().as_bytes());
        let (inode, is_directory) = found.map_err(|errno| refused(errno.text()))?;
        let to = if is_directory { &mut scope.trees } else { &mut scope.files };
        to.insert(inode);
    }
    Ok(scope)
}

fn say(
    stream: &mut UnixStream,
    report: WritebackReport,
    done: Option<bool>,
) -> std::io::Result<()> {
    write(stream, &WritebackAnswer { report, done, refused: None })
}

fn write(stream: &mut UnixStream, answer: &WritebackAnswer) -> std::io::Result<()> {
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
        let found = scope(&["2e2f64", "2e2f66ff"], &*find).expect("both are there");
        assert!(found.trees.contains(&Inode(7)) && found.files.contains(&Inode(8)));
        for (word, why) in [("2e", "no such file or directory"), ("2F", "not a valid path")] {
            let (named, said) = scope(&["2e2f64", word], &*find).expect_err("refused");
            assert_eq!((named.as_str(), said.as_str()), (word, why));
        }
    }
}
