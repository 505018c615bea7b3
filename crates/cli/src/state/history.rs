//! The history of this user: where it is, the runs of jobs in it, and what `forebay report` reads.
//!
//! The store itself is the crate `history`. A reader makes no file: without one there is no history.

use crate::failure::{Failure, Result, USAGE};
use config::{Key, Settings};
use history::error::HistoryError;
use history::postgres;
use history::record::{Advice, FIGURES, JobRun, LoadSample, Record};
use history::sqlite::SqliteStore;
use history::store::{Retention, Store};
use insight::profile::JobProfile;
use insight::report::Report;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Largest profile that is read from a file.
const BYTES_MAX: u64 = 64 << 20;
const DAY_MS: u64 = 86_400_000;

/// Where the history is, and how much of it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HistoryPlace {
    /// Its file, or the address of a PostgreSQL server.
    path: PathBuf,
    retention: Retention,
}

impl HistoryPlace {
    /// The place that the settings name.
    ///
    /// # Errors
    /// They name none, and neither `HOME` nor `XDG_DATA_HOME` is set; or an address has a password.
    pub(crate) fn of(settings: &Settings) -> Result<HistoryPlace> {
        let variable =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let home = || variable("HOME").map(|home| home.join(".local/share"));
        let default =
            || variable("XDG_DATA_HOME").or_else(home).map(|it| it.join("forebay/history.db"));
        let path = settings.text(Key::MonitorDb).map(PathBuf::from).or_else(default);
        let no_place = || {
            Failure::new(
                "no place for the history: set HOME or XDG_DATA_HOME, or give --monitor-db",
            )
        };
        let days = settings.number(Key::MonitorKeep).unwrap_or(1);
        let retention = Retention {
            keep_ms: days.saturating_mul(DAY_MS),
            bytes_max: settings.number(Key::MonitorSize).unwrap_or(0),
        };
        let place = HistoryPlace { path: path.ok_or_else(no_place)?, retention };
        if let Some(address) = place.address() {
            postgres::check(address)
                .map_err(|error| Failure::with_code(USAGE, format!("--monitor-db: {error}")))?;
        }
        Ok(place)
    }

    /// The address of the server, if it is one.
    fn address(&self) -> Option<&str> {
        self.path.to_str().filter(|text| postgres::is_address(text))
    }

    /// The store, which is made if there is none.
    ///
    /// # Errors
    /// It cannot be made, is damaged, or of a newer version.
    pub(crate) fn open(&self) -> std::result::Result<Box<dyn Store>, HistoryError> {
        match self.address() {
            Some(address) => Ok(Box::new(postgres::open(address, self.retention)?)),
            None => Ok(Box::new(SqliteStore::open(&self.path, self.retention)?)),
        }
    }

    /// The store for a reader; `None`: there is none.
    ///
    /// # Errors
    /// It is damaged, or of a newer version.
    pub(crate) fn open_existing(&self) -> Result<Option<Box<dyn Store>>> {
        if self.address().is_some() {
            return self.open().map(Some).map_err(|error| self.unreadable(&error));
        }
        match self.path.try_exists() {
            Ok(false) => Ok(None),
            _ => SqliteStore::open_to_read(&self.path, self.retention)
                .map(|store| Some(Box::new(store) as Box<dyn Store>))
                .map_err(|error| self.unreadable(&error)),
        }
    }

    /// The failure of a reader.
    pub(crate) fn unreadable(&self, error: &HistoryError) -> Failure {
        Failure::at("cannot read the history", self.text(), error)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        self.address().map_or_else(|| self.path.display().to_string(), postgres::shown)
    }

    /// Keeps the report of a run.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn keep(&self, instance: &str, report: &Report) -> Result<()> {
        let record = Record::Run(Box::new(run_of(instance, report)?));
        let written = self.open().and_then(|mut store| store.write(&[record]));
        written.map_err(|error| Failure::at("cannot keep it", self.text(), error))
    }

    /// The profile that a user names: `JOB`, its newest run; `JOB~2`, two runs before that; or the
    /// path of a file, with a slash in it.
    ///
    /// # Errors
    /// There is no such run, or it is damaged.
    pub(crate) fn load(&self, name: &str) -> Result<JobProfile> {
        if name.contains('/') {
            return load_file(Path::new(name));
        }
        let (job, back) = run_named(name);
        let mut store = self.open_existing()?;
        let found = match &mut store {
            Some(store) => store.profile(job, back).map_err(|error| self.unreadable(&error))?,
            None => None,
        };
        let text = found.ok_or_else(|| {
            let text =
                format!("no report of job {name}: 'forebay report' lists those that are kept");
            Failure::with_code(USAGE, text)
        })?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::at("unreadable report", self.text(), error))
    }
}

/// The job and how many runs before its newest one.
fn run_named(name: &str) -> (&str, usize) {
    let back =
        name.rsplit_once('~').and_then(|(job, back)| Some((job, back.parse::<usize>().ok()?)));
    back.unwrap_or((name, 0))
}

/// The record of a run.
///
/// # Errors
/// Its profile cannot be written as JSON.
pub(crate) fn run_of(instance: &str, report: &Report) -> Result<JobRun> {
    let job = &report.profile;
    let profile = serde_json::to_string(job)
        .map_err(|error| Failure::at("cannot write a report", &job.job, error))?;
    let [reads, writes] = [job.reads(), job.writes()];
    let advice = report.findings.iter().map(|finding| Advice {
        trigger: finding.trigger.to_owned(),
        severity: finding.severity.name().to_owned(),
        evidence: finding.evidence.clone(),
        change: finding.change.clone(),
        saves_seconds: finding.saves_seconds,
    });
    Ok(JobRun {
        instance: instance.to_owned(),
        job: job.job.clone(),
        user: job.user.clone(),
        command: job.command.clone(),
        begin_ms: job.begin_ms,
        seconds: job.seconds,
        is_complete: job.is_complete,
        is_sampled: job.is_sampled,
        hosts: job.hosts.len() as u64,
        ranks: job.ranks.len() as u64,
        operations: [reads.number, writes.number, job.metadata().number]
            .into_iter()
            .fold(0, u64::saturating_add),
        bytes_read: reads.bytes,
        bytes_written: writes.bytes,
        io_seconds: job.io_seconds(),
        advice: advice.collect(),
        profile,
    })
}

/// A load sample as JSON, with each figure under its name.
pub(crate) fn load_json(sample: &LoadSample) -> Value {
    let mut value = json!({
        "instance": sample.instance,
        "job": sample.job,
        "at_ms": sample.at_ms,
        "samples": sample.samples,
    });
    for (name, figure) in FIGURES.iter().zip(sample.figures) {
        value[*name] = json!(figure);
    }
    value
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
    let value: Value = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let inner = value.get("profile").cloned().unwrap_or(value);
    serde_json::from_value(inner).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn place(directory: &Path) -> HistoryPlace {
        let retention = Retention { keep_ms: DAY_MS, bytes_max: 0 };
        HistoryPlace { path: directory.join("history.db"), retention }
    }

    fn report(job: &str, begin_ms: u64) -> Report {
        let profile = JobProfile { job: job.to_owned(), begin_ms, ..JobProfile::default() };
        Report::new(profile)
    }

    #[test]
    fn the_newest_run_of_a_job_is_found_and_those_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        assert!(place.load("a").unwrap_err().text().contains("no report of job a"));
        assert!(!place.path.exists(), "a reader makes no file");
        for (job, begin) in [("a", 1000), ("a", 3000), ("b~x/%", 2000), ("a", 2000)] {
            place.keep("i", &report(job, begin)).unwrap();
        }
        let begins = |name: &str| place.load(name).map(|found| found.begin_ms).ok();
        assert_eq!(
            [begins("a"), begins("a~1"), begins("a~2"), begins("a~3"), begins("a~0"), begins("c")],
            [Some(3000), Some(2000), Some(1000), None, Some(3000), None]
        );
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        let mut sources = config::Sources::default();
        let address = "postgres://me:s3cret@db/history";
        sources.options.insert(Key::MonitorDb, address.to_owned());
        let settings = Settings::resolve(&sources).expect("a place");
        let failure = HistoryPlace::of(&settings).unwrap_err();
        assert_eq!(failure.code(), USAGE);
        assert!(failure.text().contains("~/.pgpass") && !failure.text().contains("s3cret"));
        sources.options.insert(Key::MonitorDb, "postgres://me@db/history".to_owned());
        let settings = Settings::resolve(&sources).expect("a place");
        assert_eq!(
            HistoryPlace::of(&settings).expect("a place").text(),
            "postgres://me@db/history"
        );
    }

    #[test]
    fn damaged_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        for text in ["", "{", "[1, 2]", "{\"job\": 7}", "\0\u{1b}"] {
            fs::write(&path, text).unwrap();
            let failure = load_file(&path).unwrap_err();
            assert!(failure.text().starts_with("unreadable report: /"), "{}", failure.text());
        }
        assert!(load_file(directory.path()).unwrap_err().text().contains("not a regular file"));
        fs::write(&path, "{\"profile\": {\"job\": \"x\"}, \"findings\": []}").unwrap();
        assert_eq!(load_file(&path).unwrap().job, "x");
        let place = place(directory.path());
        fs::write(&place.path, "no history at all. ".repeat(100)).unwrap();
        for failure in [place.load("a").unwrap_err(), place.keep("i", &report("a", 1)).unwrap_err()]
        {
            let text = failure.text();
            assert!(
                text.contains("history.db: it is damaged") && text.lines().count() == 1,
                "{text}"
            );
        }
    }
}
