//! Profiles of jobs that have ended: what `forebay report` shows after the instance is gone.
//!
//! They are in `${XDG_STATE_HOME:-~/.local/state}/forebay/jobs`, one JSON file for each run, named
//! `<begin in ms>-<job>.json`, of which the newest are kept. A job's name has any characters; those
//! that a file name should not have are written as `%xx`.

use crate::failure::{Failure, Result, USAGE};
use crate::state::directories::write_whole_by;
use insight::profile::JobProfile;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Runs that are kept.
const KEPT: usize = 200;
/// Largest profile that is read.
const BYTES_MAX: u64 = 64 << 20;
/// Longest name of a job in a file name, in bytes of the encoded form.
const NAME_BYTES_MAX: usize = 200;

/// A run whose profile is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SavedRun {
    /// Begin of the job, in milliseconds since 1970.
    pub(crate) begin_ms: u64,
    /// Encoded name of the job.
    name: String,
    /// Its file.
    path: PathBuf,
}

impl SavedRun {
    /// The name of the job.
    pub(crate) fn job(&self) -> String {
        decoded(&self.name)
    }
}

/// The directory of the profiles.
///
/// # Errors
/// Neither `HOME` nor `XDG_STATE_HOME` is set.
fn directory() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || variable("HOME").map(|home| home.join(".local/state"));
    let no_place = || Failure::new("no directory for reports: set HOME or XDG_STATE_HOME");
    Ok(variable("XDG_STATE_HOME").or_else(home).ok_or_else(no_place)?.join("forebay/jobs"))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.+,:=@".contains(&byte)
}

/// A job's name as a part of a file name.
fn encoded(job: &str) -> String {
    let mut name = String::new();
    for byte in job.bytes() {
        if name.len() + 3 > NAME_BYTES_MAX {
            break;
        }
        match is_plain(byte) {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

fn decoded(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte =
            code.filter(|_| *first == b'%').and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { behind.get(2..).unwrap_or_default() } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The begin and the encoded name in a file name.
fn parse(file: &str) -> Option<(u64, String)> {
    let (begin, name) = file.strip_suffix(".json")?.split_once('-')?;
    Some((begin.parse().ok()?, name.to_owned()))
}

/// All runs that are kept, the newest first.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn list() -> Result<Vec<SavedRun>> {
    list_in(&directory()?)
}

fn list_in(directory: &Path) -> Result<Vec<SavedRun>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::at("cannot list", directory.display(), error)),
    };
    let mut runs: Vec<SavedRun> = entries
        .flatten()
        .filter_map(|entry| {
            let (begin_ms, name) = parse(entry.file_name().to_str()?)?;
            Some(SavedRun { begin_ms, name, path: entry.path() })
        })
        .collect();
    runs.sort_by(|a, b| b.cmp(a));
    Ok(runs)
}

/// Keeps a profile, and removes the oldest ones beyond those that are kept. Returns its file.
///
/// # Errors
/// It cannot be written.
pub(crate) fn save(profile: &JobProfile) -> Result<PathBuf> {
    save_in(&directory()?, profile)
}

fn save_in(directory: &Path, profile: &JobProfile) -> Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| Failure::at("cannot make", directory.display(), error))?;
    let name = format!("{:013}-{}.json", profile.begin_ms, encoded(&profile.job));
    let path = directory.join(name);
    let text = serde_json::to_string(profile)
        .map_err(|error| Failure::at("cannot write a report", path.display(), error))?;
    write_whole_by(&path, &directory.join(format!(".{}", std::process::id())), &text)?;
    for old in list_in(directory)?.iter().skip(KEPT) {
        // Another command may have removed it.
        let _ = fs::remove_file(&old.path);
    }
    Ok(path)
}

/// The profile that a user names: `JOB`, its newest run; `JOB~2`, two runs before that; or the path of
/// a file, with a slash in it.
///
/// # Errors
/// There is no such run, or its file is damaged.
pub(crate) fn load(name: &str) -> Result<JobProfile> {
    match name.contains('/') {
        true => load_file(Path::new(name)),
        false => load_file(&find(&list()?, name)?.path),
    }
}

fn find(runs: &[SavedRun], name: &str) -> Result<SavedRun> {
    let back =
        name.rsplit_once('~').and_then(|(job, back)| Some((job, back.parse::<usize>().ok()?)));
    let (job, back) = back.unwrap_or((name, 0));
    let encoded = encoded(job);
    let mut found = runs.iter().filter(|run| run.name == encoded);
    found.nth(back).cloned().ok_or_else(|| {
        let text = format!("no report of job {name}: 'forebay report' lists those that are kept");
        Failure::with_code(USAGE, text)
    })
}

fn load_file(path: &Path) -> Result<JobProfile> {
    let failed = |why: String| Failure::at("unreadable report", path.display(), why);
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let kind = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !kind.is_file() {
        return Err(failed("it is not a regular file".to_owned()));
    }
    let mut text = Vec::new();
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(failed(format!("it has more than {BYTES_MAX} bytes")));
    }
    // Either a profile, or the output of `forebay report --json`, which has one in it.
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let inner = value.get("profile").cloned().unwrap_or(value);
    serde_json::from_value(inner).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile(job: &str, begin_ms: u64) -> JobProfile {
        JobProfile { job: job.to_owned(), begin_ms, ..JobProfile::default() }
    }

    #[test]
    fn the_newest_run_of_a_job_is_found_and_those_before_it() {
        let directory = tempfile::tempdir().unwrap();
        for (job, begin) in [("a", 1000), ("a", 3000), ("b", 2000), ("a", 2000)] {
            save_in(directory.path(), &profile(job, begin)).unwrap();
        }
        let runs = list_in(directory.path()).unwrap();
        let begins = |name: &str| find(&runs, name).map(|run| run.begin_ms).ok();
        assert_eq!(
            [begins("a"), begins("a~1"), begins("a~2"), begins("a~3"), begins("b~0"), begins("c")],
            [Some(3000), Some(2000), Some(1000), None, Some(2000), None]
        );
        assert_eq!(load_file(&find(&runs, "b").unwrap().path).unwrap(), profile("b", 2000));
    }

    #[test]
    fn old_runs_go() {
        let directory = tempfile::tempdir().unwrap();
        for begin in 0..KEPT as u64 + 3 {
            save_in(directory.path(), &profile("job", begin)).unwrap();
        }
        let runs = list_in(directory.path()).unwrap();
        assert_eq!((runs.len(), runs.last().map(|run| run.begin_ms)), (KEPT, Some(3)));
    }

    #[test]
    fn damaged_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0000000000001-a.json");
        for text in ["", "{", "[1, 2]", "{\"job\": 7}", "\0\u{1b}"] {
            fs::write(&path, text).unwrap();
            let failure = load_file(&path).unwrap_err();
            assert!(failure.text().starts_with("unreadable report: /"), "{}", failure.text());
        }
        assert!(load_file(directory.path()).unwrap_err().text().contains("not a regular file"));
        fs::write(&path, "{\"profile\": {\"job\": \"x\"}, \"findings\": []}").unwrap();
        assert_eq!(load_file(&path).unwrap().job, "x");
    }

    proptest! {
        #[test]
        fn names_of_jobs_are_names_of_files(job in "\\PC{0,60}") {
            let name = encoded(&job);
            prop_assert!(name.bytes().all(|byte| is_plain(byte) || byte == b'%'));
            prop_assert!(name.len() <= NAME_BYTES_MAX);
            if job.len() * 3 + 3 < NAME_BYTES_MAX {
                prop_assert_eq!(decoded(&name), job);
            }
        }
    }
}
