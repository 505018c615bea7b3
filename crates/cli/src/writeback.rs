//! The writer of a backing directory: `forebay-writeback`, on the first host of an instance. Started with
//! it, started again by the next command that finds it dead, asked how far it is, ended with the
//! instance.

use crate::failure::{Failure, Result};
use crate::host::{RECORD as HOST_RECORD, beside};
use crate::process::{self, Identity};
use crate::progress::Progress;
use crate::records::{self, Host, VERSION};
use crate::spawn::{Order, Spawned};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RECORD: &str = "writeback.json";
const SOCKET: &str = "writeback.sock";
const LOG: &str = "writeback.log";
/// Where it notes uploads to a bucket.
const UPLOADS: &str = "writeback.uploads";
/// Locked by who starts it.
const TURN: &str = "writeback.lock";
/// Locked by itself.
const ALONE: &str = "writeback.alone";
/// How often that is tried.
const TURN_PAUSE: Duration = Duration::from_millis(10);
/// Threads that copy: a file system of a site is seldom fast with one.
const THREADS: usize = 4;
/// A store takes longer for each, and none of it from others.
const THREADS_FAR: usize = 16;
/// Longest wait for one line: it says how far it is ten times a second.
const LINE_TIME: Duration = Duration::from_secs(5);
/// Failures that are said.
const SAID_MAX: usize = 5;

/// Its process.
#[derive(Serialize, Deserialize)]
struct Writer {
    version: u32,
    process: Identity,
}

/// What it says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Names and inodes that are not saved.
    pub(crate) unsaved: u64,
    /// Bytes of files that are not, as far as they are known.
    pub(crate) bytes_left: u64,
    /// Names and inodes that it saved.
    pub(crate) saved: u64,
    /// Bytes that it saved.
    pub(crate) bytes_saved: u64,
    /// Open to write, or not cool yet.
    pub(crate) waiting: u64,
    /// To be saved at the end, or never.
    pub(crate) held: u64,
    /// What failed, and the first of that.
    pub(crate) failed: u64,
    /// Path and reason.
    pub(crate) failures: Vec<(PathBuf, String)>,
    /// How often something was changed by others, and the first of that.
    pub(crate) conflicts: u64,
    /// Path and what became of it.
    pub(crate) conflicted: Vec<(PathBuf, String)>,
    /// Files of which not all attributes could be saved.
    pub(crate) lost: u64,
    /// Why nothing can be saved.
    pub(crate) error: Option<String>,
    /// Of a flush: how it ended.
    #[serde(default, skip_serializing)]
    pub(crate) done: Option<bool>,
    /// A path that can not be flushed, in hexadecimal, and why.
    #[serde(default, skip_serializing)]
    pub(crate) refused: Option<(String, String)>,
}

impl Told {
    /// What is not saved and why, for people.
    pub(crate) fn reasons(&self) -> String {
        let mut said: Vec<String> = self.error.iter().cloned().collect();
        let shown = self.failures.iter().take(SAID_MAX);
        said.extend(shown.map(|(path, why)| format!("{}: {why}", path.display())));
        let more = self.failed.saturating_sub(SAID_MAX as u64);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        said.join("; ")
    }
}

/// True if this host is the one where it runs.
fn is_here(host: &Host) -> bool {
    host.first == 0 && host.wanted.has_writer()
}

/// Starts it unless it runs, if the instance has one on this host.
///
/// # Errors
/// It can not be started, or says why it can not work.
pub(crate) fn ensure(run: &Path) -> Result<()> {
    let Some(host) = records::load::<Host>(run, HOST_RECORD)?.filter(is_here) else {
        return Ok(());
    };
    if is_alive(run)? {
        return Ok(());
    }
    let patience = Duration::from_micros(host.wanted.timeout);
    // Of several commands that find it dead one starts it: two would be in each other's way.
    let _alone = Turn::take(run, patience)?;
    if is_alive(run)? {
        return Ok(());
    }
    let backing = host.wanted.backing.clone().unwrap_or_default();
    let threads = if below::is_bucket(&backing) { THREADS_FAR } else { THREADS };
    let words = [
        ("--run", run.as_os_str().to_owned()),
        ("--home", host.first.to_string().into()),
        ("--idle", host.wanted.idle.to_string().into()),
        ("--rate", host.wanted.backing_rate.to_string().into()),
        ("--threads", threads.to_string().into()),
        // Then there is time left to say why it can not begin.
        ("--patience", (host.wanted.timeout / 2).to_string().into()),
        ("--backing", backing.into()),
    ];
    let words = words.into_iter().flat_map(|(name, value)| [name.into(), value]).collect();
    let variables = vec![("FOREBAY_LOG", host.wanted.log.clone())];
    let what = "the writer of what lies below".to_owned();
    let order = Order { index: 0, what, words, variables, log: run.join(LOG) };
    let mut spawned = Spawned::start(&beside("forebay-writeback")?, vec![order])?;
    let until = Instant::now() + patience;
    let ready = spawned.wait(until, &mut Progress::new(""))?;
    if let Some(ready) = ready.into_iter().next() {
        records::store(run, RECORD, &Writer { version: VERSION, process: ready.process })?;
    }
    spawned.finish();
    Ok(())
}

/// Nobody else starts it meanwhile. It ends with this value, or with the command.
struct Turn {
    _lock: std::fs::File,
}

impl Turn {
    fn take(run: &Path, patience: Duration) -> Result<Turn> {
        let path = run.join(TURN);
        let failed = |why: String| Failure::at("can not start the writer", path.display(), why);
        let mut options = std::fs::OpenOptions::new();
        let lock = options.create(true).append(true).open(&path);
        let lock = lock.map_err(|error| failed(error.to_string()))?;
        let until = Instant::now() + patience;
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= until {
                return Err(failed("another forebay command does: try again".to_owned()));
            }
            std::thread::sleep(TURN_PAUSE);
        }
        Ok(Turn { _lock: lock })
    }
}

fn is_alive(run: &Path) -> Result<bool> {
    match records::load::<Writer>(run, RECORD)? {
        Some(writer) => writer.process.is_alive(),
        None => Ok(false),
    }
}

/// Ends it, if it is on this host, and with the instance: what is left below under names of its own, and
/// nobody will ask for again, goes, if that can be done in a few seconds.
///
/// # Errors
/// It can not be looked at.
pub(crate) fn end(run: &Path, patience: Duration, progress: &mut Progress) -> Result<()> {
    if let Some(writer) = records::load::<Writer>(run, RECORD)? {
        let _ = ask(run, "leave", &mut |_| true);
        process::end(&[writer.process], patience, progress)?;
    }
    for name in [RECORD, SOCKET, LOG, TURN, ALONE, UPLOADS] {
        let _ = std::fs::remove_file(run.join(name));
    }
    Ok(())
}

/// What it says; `None`: it is not here, or does not answer.
pub(crate) fn status(run: &Path) -> Option<Told> {
    let mut last = None;
    ask(run, "status", &mut |told| {
        last = Some(told);
        true
    })
    .ok()?;
    last
}

/// Has everything saved that is to be, or what is by these paths in the instance (in hexadecimal) and
/// below; gives up when nothing was for `patience`.
///
/// # Errors
/// Not all is saved: what, and why.
pub(crate) fn flush(
    run: &Path,
    paths: &[String],
    patience: Duration,
    progress: &mut Progress,
) -> Result<Told> {
    ensure(run)?;
    let question = ["flush"].into_iter().chain(paths.iter().map(String::as_str));
    let question = question.collect::<Vec<_>>().join(" ");
    let mut last = Told::default();
    let (mut before, mut since) = ((0, 0, 0), Instant::now());
    let asked = ask(run, &question, &mut |told| {
        let now = (told.saved, told.unsaved, told.bytes_left);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        progress.show(format!(
            "saving: {} files and names, {} left ",
            told.unsaved,
            crate::commands::human(Some(told.bytes_left))
        ));
        last = told;
        since.elapsed() < patience
    });
    progress.hide();
    if let Some((path, why)) = &last.refused {
        let path = PathBuf::from(OsString::from_vec(unhex(path)));
        let path = path.strip_prefix(".").unwrap_or(&path);
        return Err(Failure::at("can not flush", path.display(), why));
    }
    let left = format!("{} files and names are not saved", last.unsaved);
    match (asked, last.done) {
        (Ok(()), Some(true)) => Ok(last),
        (Ok(()), Some(false)) => Err(Failure::at("not saved", left, last.reasons())),
        (Ok(()), None) => {
            let why = match last.reasons() {
                none if none.is_empty() => {
                    let seconds = patience.as_secs();
                    format!("nothing was saved for {seconds} s: does what lies below answer?")
                }
                reasons => reasons,
            };
            Err(Failure::at("not saved in time", left, why))
        }
        (Err(error), _) => Err(Failure::at("the writer does not answer", run.display(), error)),
    }
}

/// The bytes of a path for the writer.
pub(crate) fn hex(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

/// Asks, and hands each line to `with` until that has enough, or there are no more.
fn ask(run: &Path, word: &str, with: &mut dyn FnMut(Told) -> bool) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(run.join(SOCKET))?;
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.set_write_timeout(Some(LINE_TIME))?;
    stream.write_all(format!("{word}\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let told: Told = serde_json::from_str(&line?)?;
        let is_last = told.done.is_some();
        if !with(told) || is_last {
            return Ok(());
        }
    }
    Err(ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn bytes_of_paths_come_back() {
        let path = Path::new(OsStr::from_bytes(b"./a b\xff"));
        assert_eq!(hex(path), "2e2f612062ff");
        assert_eq!(unhex(&hex(path)), path.as_os_str().as_bytes());
    }

    #[test]
    fn what_is_not_saved_is_said_with_its_reasons() {
        let failures = (0..7).map(|number| (PathBuf::from(format!("f{number}")), "no".to_owned()));
        let told = Told { failed: 7, failures: failures.collect(), ..Told::default() };
        assert_eq!(told.reasons(), "f0: no; f1: no; f2: no; f3: no; f4: no; and 2 more");
    }
}
