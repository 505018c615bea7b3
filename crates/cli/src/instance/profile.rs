//! Access profiles of periodic jobs: the files of the backing directory that the last run of a name
//! read, in order. When an instance stops, the notes of its daemons (`backing::profile`) are merged
//! into a profile; the next instance with that name prefetches an ordered list made from it, which
//! may be wrong (`wire::request::prefetch::SPECULATIVE`).
//!
//! Profiles are in `${XDG_STATE_HOME:-~/.local/state}/forebay/profiles`, one file per name. A
//! profile that is damaged or cannot be read is reported in one line; no job fails because of it.

use crate::commands::lifecycle::run::stage_worker;
use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::state::directories::{self, write_whole_by};
use crate::state::records::{HostEntry, InstanceRecord};
use backing::profile::{AccessProfile, BYTES_MAX, FILES_MAX};
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Stands for the name of the Slurm job.
const AUTO: &str = "auto";
/// The variable with the name of the Slurm job.
const JOB_NAME: &str = "SLURM_JOB_NAME";
/// Longest name of a profile.
const NAME_BYTES_MAX: usize = 48;
/// Bytes of notes that are read at a time from a daemon, perhaps on another host.
const PAGE_BYTES: usize = 32 << 10;
/// Pause between checks whether the worker has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// The name of the requested profile, if one is requested.
pub(crate) fn requested_name(text: Option<&str>) -> Option<String> {
    match text? {
        AUTO => std::env::var(JOB_NAME).ok().and_then(|job| name_of(&job)),
        name => Some(name.to_owned()),
    }
}

/// A valid profile name for a job with any name.
fn name_of(job: &str) -> Option<String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    let begins = job.starts_with(|one: char| one.is_ascii_alphanumeric());
    let before = if begins { "" } else { "job-" };
    let plain = job.chars().map(|one| if is_plain(one) { one } else { '_' });
    let name: String = before.chars().chain(plain).take(NAME_BYTES_MAX).collect();
    Some(name).filter(|name| !job.is_empty() && config::parse::is_name(name))
}

/// The directory of the profiles.
///
/// # Errors
/// Neither `HOME` nor `XDG_STATE_HOME` is set.
fn directory() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || variable("HOME").map(|home| home.join(".local/state"));
    let state = variable("XDG_STATE_HOME").or_else(home);
    let no_place = || Failure::new("no directory for profiles: set HOME or XDG_STATE_HOME");
    Ok(state.ok_or_else(no_place)?.join("forebay/profiles"))
}

fn path(name: &str) -> Result<PathBuf> {
    Ok(directory()?.join(name))
}

/// The profile of this name; `None` if there is none.
///
/// # Errors
/// It is damaged, or cannot be read.
pub(crate) fn load(name: &str) -> Result<Option<AccessProfile>> {
    load_file(&path(name)?)
}

/// As `load`, for a file.
///
/// # Errors
/// As `load`.
pub(crate) fn load_file(path: &Path) -> Result<Option<AccessProfile>> {
    let failed = |why: String| Failure::at("unreadable profile", path.display(), why);
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(failed("it is not a regular file".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(BYTES_MAX as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| failed(error.to_string()))?;
    AccessProfile::parse(&text).map(Some).map_err(|broken| failed(broken.to_string()))
}

/// The names of all profiles.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn names() -> Result<Vec<String>> {
    let directory = directory()?;
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::at("cannot list", directory.display(), error)),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| config::parse::is_name(name)).collect();
    names.sort();
    Ok(names)
}

/// Removes a profile. False if there is none.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn remove(name: &str) -> Result<bool> {
    let path = path(name)?;
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::at("cannot remove", path.display(), error)),
    }
}

fn store(name: &str, history: &AccessProfile) -> Result<()> {
    let directory = directory()?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| Failure::at("cannot make", directory.display(), error))?;
    // A profile name never begins with a dot.
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    write_whole_by(&directory.join(name), &temporary, &history.text())
}

fn report(instance: &InstanceRecord, name: &str, failure: &Failure) {
    errln!("forebay: instance {}: profile {name}: {}", instance.name, failure.text());
}

/// Prefetches, in a new instance, what the last run with its profile read.
pub(crate) fn follow(instance: &InstanceRecord) {
    let Some(name) = &instance.config.profile else { return };
    let outcome = match &instance.config.backing {
        Some(_) => try_follow(instance, name),
        None => Err(Failure::new("there is no backing directory: nothing is recorded")),
    };
    if let Err(failure) = outcome {
        report(instance, name, &failure);
    }
}

fn try_follow(instance: &InstanceRecord, name: &str) -> Result<()> {
    let path = path(name)?;
    // A damaged profile is reported here, where the user sees the message.
    let Some(history) = load_file(&path)?.filter(|history| !history.uses.is_empty()) else {
        return Ok(());
    };
    drop(history);
    let at = &instance.config.at;
    let mut command = stage_worker(&instance.name, at)?;
    command.arg("follow-profile").arg("--at").arg(at).arg(&path);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let failed = |error| Failure::at("cannot run", "the prefetch worker", error);
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + Duration::from_micros(instance.config.timeout);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(Failure::new(format!("the prefetch worker failed: {status}")));
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            outcome => {
                let _ = child.kill();
                let _ = child.wait();
                let why =
                    outcome.err().map_or_else(|| "it takes too long".into(), |it| it.to_string());
                return Err(Failure::new(format!("not all of it is prefetched: {why}")));
            }
        }
    }
}

/// Stores the profile of an instance that ends: what was read in it.
pub(crate) fn keep(instance: &InstanceRecord) {
    let Some(name) = &instance.config.profile else { return };
    let mut notes = Vec::new();
    for (entry, daemon) in instance.daemons() {
        match all_recorded(instance, entry, daemon.index) {
            Ok(text) => notes.push(text),
            Err(failure) => report(instance, name, &failure),
        }
    }
    let history = AccessProfile::of_notes(notes.iter().map(String::as_bytes));
    // A run that read nothing does not replace the profile.
    if history.uses.is_empty() {
        return;
    }
    if let Err(failure) = store(name, &history) {
        report(instance, name, &failure);
    }
}

fn all_recorded(instance: &InstanceRecord, entry: &HostEntry, index: u16) -> Result<String> {
    let mut text = String::new();
    while text.len() < BYTES_MAX {
        let more = cluster::recorded(instance, entry, index, text.len() as u64)?;
        if more.is_empty() {
            break;
        }
        text.push_str(&more);
    }
    Ok(text)
}

/// Complete lines of what a daemon of this host recorded, from a byte offset; empty at the end.
///
/// # Errors
/// They cannot be read.
pub(crate) fn recorded(name: &str, index: u16, from: u64) -> Result<String> {
    let path = directories::run(name)?.join(format!("d{index}.profile"));
    let failed = |error| Failure::at("cannot read", path.display(), error);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        // The daemon recorded nothing.
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

/// The work of the prefetch worker: passes the files of a profile to the instance under `at`. Files
/// that no longer exist, or are not regular files, are skipped. It ends early when the prefetch
/// queue is full or the instance is gone.
pub(crate) fn prefetch(at: &Path, history: &AccessProfile) {
    let (list, group) = (crate::stage::prefetch::new_list_number(), history.batch());
    for (index, one) in history.uses.iter().take(FILES_MAX).enumerate() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = at.join(std::ffi::OsStr::from_bytes(&one.path));
        // A symbolic link may point out of the instance.
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {}
            Err(error) if error.raw_os_error() == Some(EIO) => return,
            _ => continue,
        }
        let result =
            backing::prefetch::set_prefetch(&path, &format!("guess {list} {index} {group}"));
        let ends = |error: &std::io::Error| {
            error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(EIO)
        };
        if result.err().is_some_and(|error| ends(&error)) {
            return;
        }
    }
}

/// The error that programs get from an instance that is gone.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_job_name_becomes_a_valid_profile_name() {
        assert_eq!(name_of("forecast-06.h"), Some("forecast-06.h".to_owned()));
        assert_eq!(name_of("../../etc/a b"), Some("job-.._.._etc_a_b".to_owned()));
        assert_eq!(name_of(""), None);
        assert_eq!(name_of(&"ä".repeat(100)).map(|name| name.len()), Some(NAME_BYTES_MAX));
        assert_eq!(requested_name(Some("a")), Some("a".to_owned()));
        assert_eq!(requested_name(None), None);
    }

    #[test]
    fn a_damaged_profile_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a");
        assert_eq!(load_file(&path).expect("none"), None);
        assert!(
            load_file(place.path()).expect_err("a directory").text().contains("not a regular file")
        );
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(load_file(&path).expect_err("a link").text().contains("not a regular file"));
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "forebay-profile 1\n0 a\nend 2\n").expect("written");
        let text = load_file(&path).expect_err("broken").text().to_owned();
        assert!(
            text.contains("line 3: it has not so many files") && !text.contains('\n'),
            "{text}"
        );
    }
}
