//! Histories of periodic jobs: which files of the backing directory the last run of a name read, in which
//! order. What daemons note while an instance runs (`below::history`) is brought together when it is
//! stopped; the next instance of that name begins with an ordered list made of it, which may be wrong
//! (`wire::request::rise::GUESS`).
//!
//! They lie in `${XDG_STATE_HOME:-~/.local/state}/forebay/history`, a file for each name. What is broken
//! there, or can not be had, is said in one line; no job fails for it.

use crate::commands::stage_worker;
use crate::directories::{self, write_whole_by};
use crate::failure::{Failure, Result};
use crate::instance;
use crate::records::Instance;
use below::history::{BYTES_MAX, FILES_MAX, History};
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The word for the job's own name.
const AUTO: &str = "auto";
/// Where a job's name is.
const JOB_NAME: &str = "SLURM_JOB_NAME";
/// Longest name.
const NAME_BYTES_MAX: usize = 48;
/// Bytes of notes that come at a time from another host.
const PAGE_BYTES: usize = 32 << 10;
/// Between two looks whether the worker has told all.
const PAUSE: Duration = Duration::from_millis(1);

/// The name that is asked for, if one is.
pub(crate) fn wanted(text: Option<&str>) -> Option<String> {
    match text? {
        AUTO => std::env::var(JOB_NAME).ok().and_then(|job| name_of(&job)),
        name => Some(name.to_owned()),
    }
}

/// A name for a job that may be called anything.
fn name_of(job: &str) -> Option<String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    let begins = job.starts_with(|one: char| one.is_ascii_alphanumeric());
    let before = if begins { "" } else { "job-" };
    let plain = job.chars().map(|one| if is_plain(one) { one } else { '_' });
    let name: String = before.chars().chain(plain).take(NAME_BYTES_MAX).collect();
    Some(name).filter(|name| !job.is_empty() && config::parse::is_name(name))
}

/// Where all are.
///
/// # Errors
/// Nobody says where the user's files are.
fn directory() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || variable("HOME").map(|home| home.join(".local/state"));
    let state = variable("XDG_STATE_HOME").or_else(home);
    let no_place = || Failure::new("no place for histories: set HOME or XDG_STATE_HOME");
    Ok(state.ok_or_else(no_place)?.join("forebay/history"))
}

fn path(name: &str) -> Result<PathBuf> {
    Ok(directory()?.join(name))
}

/// The history of a name; `None`: there is none.
///
/// # Errors
/// It is broken, or can not be read.
pub(crate) fn load(name: &str) -> Result<Option<History>> {
    load_file(&path(name)?)
}

/// As `load`, of a file.
///
/// # Errors
/// As `load`.
pub(crate) fn load_file(path: &Path) -> Result<Option<History>> {
    let failed = |why: String| Failure::at("no history", path.display(), why);
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(failed("it is no file".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(BYTES_MAX as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| failed(error.to_string()))?;
    History::parse(&text).map(Some).map_err(|broken| failed(broken.to_string()))
}

/// The names of all.
///
/// # Errors
/// They can not be listed.
pub(crate) fn names() -> Result<Vec<String>> {
    let directory = directory()?;
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::at("can not list", directory.display(), error)),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| config::parse::is_name(name)).collect();
    names.sort();
    Ok(names)
}

/// Forgets one. False if there is none.
///
/// # Errors
/// It can not be removed.
pub(crate) fn remove(name: &str) -> Result<bool> {
    let path = path(name)?;
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::at("can not remove", path.display(), error)),
    }
}

fn store(name: &str, history: &History) -> Result<()> {
    let directory = directory()?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| Failure::at("can not make", directory.display(), error))?;
    // No name of a history begins so.
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    write_whole_by(&directory.join(name), &temporary, &history.text())
}

fn say(instance: &Instance, name: &str, failure: &Failure) {
    eprintln!("forebay: instance {}: history {name}: {}", instance.name, failure.text());
}

/// An instance is new: what the last run of its name read is to come up before it is asked for.
pub(crate) fn follow(instance: &Instance) {
    let Some(name) = &instance.wanted.history else { return };
    let outcome = match &instance.wanted.backing {
        Some(_) => try_follow(instance, name),
        None => Err(Failure::new("there is no backing directory: nothing is noted")),
    };
    if let Err(failure) = outcome {
        say(instance, name, &failure);
    }
}

fn try_follow(instance: &Instance, name: &str) -> Result<()> {
    let path = path(name)?;
    // One that is broken is seen here, by whoever reads the line.
    let Some(history) = load_file(&path)?.filter(|history| !history.uses.is_empty()) else {
        return Ok(());
    };
    drop(history);
    let at = &instance.wanted.at;
    let mut command = stage_worker(&instance.name, at)?;
    command.arg("follow").arg("--below").arg(at).arg(&path);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let failed = |error| Failure::at("can not run", "its worker", error);
    let mut child = command.spawn().map_err(failed)?;
    let until = Instant::now() + Duration::from_micros(instance.wanted.timeout);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(Failure::new(format!("its worker ended: {status}"))),
            Ok(None) if Instant::now() < until => std::thread::sleep(PAUSE),
            outcome => {
                let _ = child.kill();
                let _ = child.wait();
                let why =
                    outcome.err().map_or_else(|| "it takes too long".into(), |it| it.to_string());
                return Err(Failure::new(format!("not all of it is followed: {why}")));
            }
        }
    }
}

/// An instance ends: what was read in it is its history from now on.
pub(crate) fn keep(instance: &Instance) {
    let Some(name) = &instance.wanted.history else { return };
    let mut notes = Vec::new();
    for (part, daemon) in instance.daemons() {
        match all_noted(instance, part, daemon.index) {
            Ok(text) => notes.push(text),
            Err(failure) => say(instance, name, &failure),
        }
    }
    let history = History::of_notes(notes.iter().map(String::as_bytes));
    // A run that read nothing says nothing about the next.
    if history.uses.is_empty() {
        return;
    }
    if let Err(failure) = store(name, &history) {
        say(instance, name, &failure);
    }
}

fn all_noted(instance: &Instance, part: &crate::records::Part, index: u16) -> Result<String> {
    let mut text = String::new();
    while text.len() < BYTES_MAX {
        let more = instance::noted(instance, part, index, text.len() as u64)?;
        if more.is_empty() {
            break;
        }
        text.push_str(&more);
    }
    Ok(text)
}

/// Whole lines of what a daemon of this host noted, from a byte on; none at the end.
///
/// # Errors
/// They can not be read.
pub(crate) fn noted(name: &str, index: u16, from: u64) -> Result<String> {
    let path = directories::run(name)?.join(format!("d{index}.history"));
    let failed = |error| Failure::at("can not read", path.display(), error);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        // It never started.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed(error)),
    };
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PAGE_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    bytes.truncate(end);
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

/// What the worker does: tells the instance which files come next. What is not there any more, or is no
/// file, is left out. Where an instance has enough, or is gone, the rest is.
pub(crate) fn tell(at: &Path, history: &History) {
    let (list, group) = (crate::stage::rise::fresh_number(), history.group());
    for (index, one) in history.uses.iter().take(FILES_MAX).enumerate() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = at.join(std::ffi::OsStr::from_bytes(&one.path));
        // A link may lead out of the instance.
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {}
            Err(error) if error.raw_os_error() == Some(libc_eio()) => return,
            _ => continue,
        }
        let told = below::rise::raise(&path, &format!("guess {list} {index} {group}"));
        let ends = |error: &std::io::Error| {
            error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc_eio())
        };
        if told.err().is_some_and(|error| ends(&error)) {
            return;
        }
    }
}

/// `EIO`, which is what programs get of an instance that is gone.
const fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_be_called_anything() {
        assert_eq!(name_of("forecast-06.h"), Some("forecast-06.h".to_owned()));
        assert_eq!(name_of("../../etc/a b"), Some("job-.._.._etc_a_b".to_owned()));
        assert_eq!(name_of(""), None);
        assert_eq!(name_of(&"ä".repeat(100)).map(|name| name.len()), Some(NAME_BYTES_MAX));
        assert_eq!(wanted(Some("a")), Some("a".to_owned()));
        assert_eq!(wanted(None), None);
    }

    #[test]
    fn what_is_no_history_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a");
        assert_eq!(load_file(&path).expect("none"), None);
        assert!(load_file(place.path()).expect_err("a directory").text().contains("no file"));
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(load_file(&path).expect_err("a link").text().contains("no file"));
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "forebay-history 1\n0 a\nend 2\n").expect("written");
        let text = load_file(&path).expect_err("broken").text().to_owned();
        assert!(
            text.contains("line 3: it has not so many files") && !text.contains('\n'),
            "{text}"
        );
    }
}
