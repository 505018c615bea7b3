//! Details of jobs: their processes, files and advice. They are asked for when a page shows them,
//! one job at a time, because the daemons gather them from all processes and look for names of
//! files.

use crate::failure::Result;
use crate::instance::jobs;
use config::activity::{JobProfile, OperationClasses};
use insight::profile as insights;
use insight::report::Report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long details are shown before they are asked for again.
const FRESH_TIME: Duration = Duration::from_secs(3);
/// Jobs whose details are kept.
const KEPT_MAX: usize = 8;
/// Processes that an answer lists.
const RANKS_MAX: usize = 100;
/// Files that an answer lists.
const FILES_MAX: usize = 50;
/// Directories, and endings of names, that an answer lists.
const GROUPS_MAX: usize = 20;

/// Details of the jobs that pages show.
pub(super) struct Details {
    name: String,
    timeout: Duration,
    kept: BTreeMap<String, (Instant, Value)>,
}

impl Details {
    pub(super) fn new(name: &str, timeout: Duration) -> Details {
        Details { name: name.to_owned(), timeout, kept: BTreeMap::new() }
    }

    /// The details of a job; `null` if there is no such job.
    ///
    /// # Errors
    /// A host does not answer.
    pub(super) fn of(&mut self, job: &str) -> Result<Value> {
        if let Some((at, value)) = self.kept.get(job).filter(|(at, _)| at.elapsed() < FRESH_TIME) {
            let mut value = value.clone();
            value["age_ms"] = json!(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
            return Ok(value);
        }
        let (found, _) = jobs::both(&self.name, job, self.timeout)?;
        let Some((counted, profile)) = found else { return Ok(Value::Null) };
        let value = as_json(&counted, Report::new(profile));
        let oldest = self.kept.iter().min_by_key(|(_, (at, _))| *at).map(|(job, _)| job.clone());
        if let Some(oldest) = oldest.filter(|_| self.kept.len() >= KEPT_MAX) {
            self.kept.remove(&oldest);
        }
        self.kept.insert(job.to_owned(), (Instant::now(), value.clone()));
        Ok(value)
    }
}

/// Reads and writes of a file, a directory, or a kind of files.
#[derive(Clone, Copy, Default)]
struct Traffic {
    files: u64,
    read: u64,
    written: u64,
    transfers: u64,
}

impl Traffic {
    fn of(file: &insights::FileProfile) -> Traffic {
        let [reads, writes] = file.transfers();
        let transfers = reads.number.saturating_add(writes.number);
        Traffic { files: 1, read: reads.bytes, written: writes.bytes, transfers }
    }

    fn add(&mut self, other: Traffic) {
        self.files += other.files;
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self.transfers = self.transfers.saturating_add(other.transfers);
    }

    /// The order of lists.
    fn mark(self) -> (u64, u64) {
        (self.read.saturating_add(self.written), self.transfers)
    }
}

fn as_json(counted: &JobProfile, report: Report) -> Value {
    let job = &report.profile;
    json!({
        "job": job.job,
        "command": job.command,
        "user": job.user,
        "begin_ms": job.begin_ms,
        "seconds": job.seconds,
        "is_complete": job.is_complete,
        "is_sampled": job.is_sampled,
        "hosts": job.hosts.len(),
        "read": job.reads().bytes,
        "written": job.writes().bytes,
        "read_pattern": report.read_pattern,
        "write_pattern": report.write_pattern,
        "findings": report.findings,
        "classes": classes(counted.operations()),
        "ranks": ranks(job),
        "ranks_total": job.ranks.len(),
        "files": files(job),
        "files_total": job.files.len() as u64 + job.other_files,
        "directories": groups(job, directory_of),
        "endings": groups(job, ending_of),
        "age_ms": 0,
    })
}

/// Operations by class, with their mean time where it was measured.
fn classes(mut of: OperationClasses) -> Value {
    const NAMES: [&str; 11] = [
        "open",
        "create",
        "stat",
        "read directory",
        "unlink",
        "rename",
        "read",
        "write",
        "sync",
        "close",
        "other",
    ];
    let all = NAMES.iter().zip(of.all_mut()).filter(|(_, class)| class.number > 0);
    let rows = all.map(|(name, class)| {
        let mean = (class.nanos > 0).then(|| class.nanos as f64 / class.number as f64);
        json!({
            "name": name,
            "number": class.number,
            "failures": class.failures,
            "absent": class.absent,
            "mean_nanos": mean,
        })
    });
    Value::Array(rows.collect())
}

/// The processes with the most bytes.
fn ranks(job: &insights::JobProfile) -> Value {
    let mut all: Vec<_> = job.ranks.iter().collect();
    let bytes = |one: &insights::RankProfile| one.reads.bytes.saturating_add(one.writes.bytes);
    all.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then(a.rank.cmp(&b.rank)));
    let rows = all.into_iter().take(RANKS_MAX).map(|rank| {
        let host = usize::try_from(rank.host).ok().and_then(|host| job.hosts.get(host));
        json!({
            "rank": rank.rank,
            "host": host,
            "program": rank.program,
            "operations": rank
                .metadata
                .number
                .saturating_add(rank.syncs.number)
                .saturating_add(rank.reads.number)
                .saturating_add(rank.writes.number),
            "read": rank.reads.bytes,
            "written": rank.writes.bytes,
        })
    });
    Value::Array(rows.collect())
}

/// The files with the most bytes.
fn files(job: &insights::JobProfile) -> Value {
    let mut all: Vec<_> = job.files.iter().map(|file| (Traffic::of(file), file)).collect();
    all.sort_by(|(a, one), (b, other)| b.mark().cmp(&a.mark()).then(one.path.cmp(&other.path)));
    let rows = all.into_iter().take(FILES_MAX).map(|(traffic, file)| {
        json!({
            "path": file.path,
            "size": file.size,
            "processes": file.uses.len(),
            "read": traffic.read,
            "written": traffic.written,
            "transfers": traffic.transfers,
        })
    });
    Value::Array(rows.collect())
}

/// Files that belong together, those with the most bytes first.
fn groups(job: &insights::JobProfile, of: fn(&str) -> Option<String>) -> Value {
    let mut all: BTreeMap<String, Traffic> = BTreeMap::new();
    for file in &job.files {
        if let Some(group) = of(&file.path) {
            all.entry(group).or_default().add(Traffic::of(file));
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(one, a), (other, b)| b.mark().cmp(&a.mark()).then(one.cmp(other)));
    let rows = all.into_iter().take(GROUPS_MAX).map(|(name, traffic)| {
        json!({
            "name": name,
            "files": traffic.files,
            "read": traffic.read,
            "written": traffic.written,
            "transfers": traffic.transfers,
        })
    });
    Value::Array(rows.collect())
}

/// The directory of a file; `None`: its name is not known.
fn directory_of(path: &str) -> Option<String> {
    let (directory, _) = path.rsplit_once('/').filter(|_| path.starts_with('/'))?;
    Some(if directory.is_empty() { "/".to_owned() } else { directory.to_owned() })
}

/// The ending of a file's name, such as `.h5`; `None`: its name is not known.
fn ending_of(path: &str) -> Option<String> {
    let (_, name) = path.rsplit_once('/').filter(|_| path.starts_with('/'))?;
    if name.starts_with('(') {
        return None;
    }
    let ending = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty());
    Some(ending.map_or_else(|| "none".to_owned(), |(_, ending)| format!(".{ending}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded_and_begin_with_the_most_bytes() {
        let mut job = insights::JobProfile { hosts: vec!["c1".into()], ..Default::default() };
        for number in 0..10_000_u32 {
            job.ranks.push(insights::RankProfile { rank: number, ..Default::default() });
            let bytes = u64::from(number);
            job.ranks[number as usize].reads.bytes = bytes;
            let reads = insights::Transfers { number: 1, bytes, ..Default::default() };
            let uses = vec![insights::FileUse { rank: number, reads, ..Default::default() }];
            let path = format!("/d{}/f.e{number}", number % 1000);
            job.files.push(insights::FileProfile { path, uses, ..Default::default() });
        }
        job.other_files = 990_000;
        let value = as_json(&JobProfile::default(), Report::new(job));
        let length = |key: &str| value[key].as_array().expect("a list").len();
        assert_eq!([length("ranks"), length("files")], [RANKS_MAX, FILES_MAX]);
        assert_eq!([length("directories"), length("endings")], [GROUPS_MAX, GROUPS_MAX]);
        assert_eq!(
            (&value["ranks_total"], &value["files_total"]),
            (&10_000.into(), &1_000_000.into())
        );
        assert_eq!(
            (&value["ranks"][0]["rank"], &value["files"][0]["path"]),
            (&9999.into(), &"/d999/f.e9999".into())
        );
        assert_eq!(value["directories"][0]["files"], 10);
        assert!(value.to_string().len() < 100 << 10);
    }

    #[test]
    fn files_belong_to_directories_and_endings() {
        let cases = [
            ("/a/b.tar.gz", Some("/a"), Some(".gz")),
            ("/top", Some("/"), Some("none")),
            ("/a/.hidden", Some("/a"), Some("none")),
            ("/a/(removed, inode 3)", Some("/a"), None),
            ("inode 7", None, None),
        ];
        for (path, directory, ending) in cases {
            assert_eq!(directory_of(path).as_deref(), directory, "{path}");
            assert_eq!(ending_of(path).as_deref(), ending, "{path}");
        }
    }
}
