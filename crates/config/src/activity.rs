//! Operations of the processes of a job in an instance, as JSON: messages from a daemon to `forebay job`
//! and `forebay report`.
//!
//! Times of day are nanoseconds since 1970, durations nanoseconds. Numbers of operations and bytes
//! are exact; durations, and how transfers follow one another after the first 256 of a thread in a
//! file, come from a sample. Not here: the counters themselves (`shm::activity`), and what follows
//! from a profile.

pub mod access_times;

pub mod timeline;

use crate::activity::access_times::FileTimes;
use crate::activity::timeline::Timeline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use wire::job::SIZE_CLASSES;

/// Operations of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operations {
    /// How many there were.
    pub number: u64,
    /// Those that failed.
    pub failures: u64,
    /// Those of them that failed because there is no such file.
    pub absent: u64,
    /// Time in them.
    pub nanos: u64,
}

impl Operations {
    /// Adds others.
    pub fn add(&mut self, other: &Operations) {
        self.number = self.number.saturating_add(other.number);
        self.failures = self.failures.saturating_add(other.failures);
        self.absent = self.absent.saturating_add(other.absent);
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

/// Operations by class. Reads and writes are transfers too, so their numbers and times are those of
/// the transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationClasses {
    /// Opens of existing files.
    pub open: Operations,
    /// Opens with `O_CREAT`, and new directories, links and special files.
    pub create: Operations,
    /// Attributes of a file, look-ups, and access checks.
    pub stat: Operations,
    /// Listing directories.
    pub read_directory: Operations,
    /// Removing names.
    pub unlink: Operations,
    /// Renaming.
    pub rename: Operations,
    /// Reads.
    pub read: Operations,
    /// Writes.
    pub write: Operations,
    /// Making data durable.
    pub sync: Operations,
    /// Closes.
    pub close: Operations,
    /// Everything else.
    pub other: Operations,
}

impl OperationClasses {
    /// All classes, in the order of the numbers that clients count with.
    pub const fn all_mut(&mut self) -> [&mut Operations; 11] {
        [
            &mut self.open,
            &mut self.create,
            &mut self.stat,
            &mut self.read_directory,
            &mut self.unlink,
            &mut self.rename,
            &mut self.read,
            &mut self.write,
            &mut self.sync,
            &mut self.close,
            &mut self.other,
        ]
    }

    /// Adds others.
    pub fn add(&mut self, other: &OperationClasses) {
        let mut other = *other;
        for (to, from) in self.all_mut().into_iter().zip(other.all_mut()) {
            to.add(from);
        }
    }
}

/// Reads, or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transfers {
    /// How many there were.
    pub number: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that began where the one before them ended.
    pub consecutive: u64,
    /// Those that began at the end of the one before or behind it; the consecutive ones are among
    /// them.
    pub sequential: u64,
    /// Those that were as far from the one before as that one was.
    pub strided: u64,
    /// The last such distance in bytes.
    pub stride: i64,
    /// Those that did not begin at a multiple of 4096.
    pub misaligned: u64,
    /// By size, see `wire::job::size_class`.
    pub sizes: [u64; SIZE_CLASSES],
    /// Lowest offset, if there were any.
    pub lowest: Option<u64>,
    /// First byte behind all of them.
    pub highest: u64,
    /// Time in them.
    pub nanos: u64,
}

impl Transfers {
    /// True if there were none; then they are left out.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.number == 0
    }

    /// Adds others.
    pub fn add(&mut self, other: &Transfers) {
        if other.number == 0 {
            return;
        }
        self.number = self.number.saturating_add(other.number);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.consecutive = self.consecutive.saturating_add(other.consecutive);
        self.sequential = self.sequential.saturating_add(other.sequential);
        self.strided = self.strided.saturating_add(other.strided);
        self.stride = other.stride;
        self.misaligned = self.misaligned.saturating_add(other.misaligned);
        for (to, from) in self.sizes.iter_mut().zip(other.sizes) {
            *to = to.saturating_add(from);
        }
        self.lowest = match (self.lowest, other.lowest) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.highest = self.highest.max(other.highest);
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

/// Which part of the instance counted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Counter {
    /// The preload library, in the process itself.
    #[default]
    Preload,
    /// A mount, for requests of the kernel on behalf of the process: what the kernel's caches answer
    /// is not among them.
    Mount,
}

/// A process of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessProfile {
    /// Its host; empty: the host that was asked.
    pub host: String,
    /// Its pid; 0: several processes that were merged.
    pub pid: u32,
    /// How many processes these are.
    pub processes: u64,
    /// Its user.
    pub uid: u32,
    /// Its program, as the kernel names it.
    pub program: String,
    /// Its rank in the job.
    pub rank: Option<u32>,
    /// Which part counted.
    pub by: Counter,
    /// When it first used the instance.
    pub began: u64,
    /// When it was found to have ended; `None`: it runs.
    pub ended: Option<u64>,
    /// Its operations.
    pub operations: OperationClasses,
    /// Reads in files that have no entry of their own.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub other_reads: Transfers,
    /// Writes in such files.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub other_writes: Transfers,
    /// How many opens of such files there were, at least.
    pub other_files: u64,
    /// Bytes of such files from slow places.
    #[serde(skip_serializing_if = "SlowBytes::is_none")]
    pub other_slow: SlowBytes,
    /// The time that it waited, by cause.
    #[serde(skip_serializing_if = "WaitNanos::is_none")]
    pub waits: WaitNanos,
    /// Its bytes over time.
    #[serde(skip_serializing_if = "Timeline::is_none")]
    pub timeline: Timeline,
}

/// Another job beside which a job took longer for its bytes than before, on the host that counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disturbance {
    /// The host; empty: the host that was asked.
    pub host: String,
    /// The other job.
    pub by: String,
    /// How many times as long a byte took, at most.
    pub slowdown: f64,
    /// Bytes per second that the other moved, at most.
    pub by_bytes_per_second: f64,
    /// Seconds of this.
    pub seconds: f64,
}

/// Operations on names in a directory, from a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryOperations {
    /// Its inode number.
    pub inode: u64,
    /// Its path inside the instance; `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Operations on names in it, about.
    pub operations: u64,
}

/// Bytes read from places other than memory of the reader's host. They come in whole extents, which may
/// be more than was asked for, and bytes of the backing store that came through another host are in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowBytes {
    /// From an SSD of the host.
    pub ssd: u64,
    /// From other hosts.
    pub remote: u64,
    /// From the backing store.
    pub backing: u64,
}

impl SlowBytes {
    /// True if there are none; then they are left out.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.ssd | self.remote | self.backing == 0
    }

    /// Adds others.
    pub fn add(&mut self, other: SlowBytes) {
        self.ssd = self.ssd.saturating_add(other.ssd);
        self.remote = self.remote.saturating_add(other.remote);
        self.backing = self.backing.saturating_add(other.backing);
    }
}

/// Nanoseconds of waiting by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitNanos {
    /// For space to write.
    pub space: u64,
    /// For bytes of the backing store.
    pub backing: u64,
    /// For locks of files.
    pub locks: u64,
    /// For a share, or because of a limit.
    pub shares: u64,
}

impl WaitNanos {
    /// True if there were none; then they are left out.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.space | self.backing | self.locks | self.shares == 0
    }

    /// Adds others.
    pub fn add(&mut self, other: WaitNanos) {
        self.space = self.space.saturating_add(other.space);
        self.backing = self.backing.saturating_add(other.backing);
        self.locks = self.locks.saturating_add(other.locks);
        self.shares = self.shares.saturating_add(other.shares);
    }
}

/// For fields that are left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

/// Transfers of one process in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileProfile {
    /// The file's inode number, as `stat` shows it.
    pub inode: u64,
    /// Inode number of the directory in which it was opened; 0: unknown.
    pub directory: u64,
    /// Its path inside the instance, with control characters escaped as by `ls -b`; of a removed
    /// file that of its directory. `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// It has no name any more.
    #[serde(skip_serializing_if = "is_false")]
    pub is_removed: bool,
    /// It was written, and the backing store did not have it as it was when this was asked.
    #[serde(skip_serializing_if = "is_false")]
    pub is_dirty: bool,
    /// Place of the process in the list of processes.
    pub process: usize,
    /// When the first transfer began.
    pub began: u64,
    /// How many opens of it moved bytes.
    pub opens: u64,
    /// Bytes that it read from slow places.
    #[serde(skip_serializing_if = "SlowBytes::is_none")]
    pub slow: SlowBytes,
    /// Reads.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub reads: Transfers,
    /// Writes.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub writes: Transfers,
}

/// The operations of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobProfile {
    /// Its name; empty: processes of no known job.
    pub job: String,
    /// When its first process used the instance.
    pub began: u64,
    /// When its last process ended; `None`: one runs.
    pub ended: Option<u64>,
    /// Its processes.
    pub processes: Vec<ProcessProfile>,
    /// Its files, by process.
    pub files: Vec<FileProfile>,
    /// Jobs that disturbed it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<Disturbance>,
    /// Directories with most operations on names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<DirectoryOperations>,
    /// Accesses to the backing store for its files, by daemons.
    #[serde(skip_serializing_if = "FileTimes::is_none")]
    pub backing: FileTimes,
}

impl JobProfile {
    /// Adds accesses to the backing store for its files. Files of the instance that are not its own are
    /// passed over.
    pub fn add_backing(&mut self, all: &[FileTimes]) {
        let inodes: BTreeSet<u64> = self.files.iter().map(|file| file.inode).collect();
        for file in all.iter().filter(|file| inodes.contains(&file.inode)) {
            self.backing.reads.add(&file.reads);
            self.backing.writes.add(&file.writes);
        }
    }

    /// Adds what another host knows of the same job.
    pub fn add(&mut self, other: JobProfile) {
        if self.processes.is_empty() {
            *self = other;
            return;
        }
        let first = self.processes.len();
        self.began = self.began.min(other.began);
        self.ended = self.ended.zip(other.ended).map(|(one, other)| one.max(other));
        self.processes.extend(other.processes);
        self.disturbances.extend(other.disturbances);
        for directory in other.directories {
            let is_it = |one: &&mut DirectoryOperations| one.inode == directory.inode;
            match self.directories.iter_mut().find(is_it) {
                Some(known) => {
                    known.operations = known.operations.saturating_add(directory.operations);
                    known.path = known.path.take().or(directory.path);
                }
                None => self.directories.push(directory),
            }
        }
        self.files.extend(
            other
                .files
                .into_iter()
                .map(|file| FileProfile { process: first.saturating_add(file.process), ..file }),
        );
    }

    /// All operations of all processes.
    #[must_use]
    pub fn operations(&self) -> OperationClasses {
        let mut sum = OperationClasses::default();
        self.processes.iter().for_each(|process| sum.add(&process.operations));
        sum
    }

    /// All reads and all writes.
    #[must_use]
    pub fn transfers(&self) -> (Transfers, Transfers) {
        let (mut reads, mut writes) = (Transfers::default(), Transfers::default());
        for process in &self.processes {
            reads.add(&process.other_reads);
            writes.add(&process.other_writes);
        }
        for file in &self.files {
            reads.add(&file.reads);
            writes.add(&file.writes);
        }
        (reads, writes)
    }
}

/// One line of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSummary {
    /// Its name; empty: processes of no known job.
    pub job: String,
    /// When its first process used the instance.
    pub began: u64,
    /// When its last process ended; `None`: one runs.
    pub ended: Option<u64>,
    /// Its processes.
    pub processes: u64,
    /// Those that run.
    pub running: u64,
    /// All operations.
    pub operations: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Time in reads and writes, summed over its processes.
    pub transfer_nanos: u64,
}

impl JobSummary {
    /// The summary of a profile.
    #[must_use]
    pub fn of(profile: &JobProfile) -> JobSummary {
        let (reads, writes) = profile.transfers();
        let mut operations = profile.operations();
        let running = profile.processes.iter().filter(|process| process.ended.is_none());
        JobSummary {
            job: profile.job.clone(),
            began: profile.began,
            ended: profile.ended,
            processes: profile.processes.iter().map(|process| process.processes).sum(),
            running: running.count() as u64,
            operations: operations.all_mut().iter().map(|class| class.number).sum(),
            bytes_read: reads.bytes,
            bytes_written: writes.bytes,
            transfer_nanos: reads.nanos.saturating_add(writes.nanos),
        }
    }

    /// Adds what another host knows of the same job.
    pub fn add(&mut self, other: &JobSummary) {
        self.began = self.began.min(other.began);
        self.ended = self.ended.zip(other.ended).map(|(one, other)| one.max(other));
        self.processes += other.processes;
        self.running += other.running;
        self.operations += other.operations;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.transfer_nanos = self.transfer_nanos.saturating_add(other.transfer_nanos);
    }
}

/// Times of operations in an instance, measured of all jobs of a host; 0: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredRates {
    /// Bytes per second of one process by transfers of 1 MiB and more.
    pub bytes_per_second: f64,
    /// Nanoseconds of a small transfer besides its bytes.
    pub call_nanos: f64,
    /// Nanoseconds of one operation on a name.
    pub name_nanos: f64,
}

impl MeasuredRates {
    /// Of both, the better one of each that is measured.
    #[must_use]
    pub fn best(self, other: MeasuredRates) -> MeasuredRates {
        let least = |one: f64, other: f64| match one.min(other) > 0.0 {
            true => one.min(other),
            false => one.max(other),
        };
        MeasuredRates {
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
            call_nanos: least(self.call_nanos, other.call_nanos),
            name_nanos: least(self.name_nanos, other.name_nanos),
        }
    }
}

/// The answer of a daemon: a list of jobs, or the profiles of those that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityAnswer {
    /// All jobs, if they were asked for.
    pub jobs: Vec<JobSummary>,
    /// Profiles.
    pub profiles: Vec<JobProfile>,
    /// Times of operations there.
    pub rates: MeasuredRates,
    /// Jobs that were forgotten, because there were too many.
    pub forgotten: u64,
    /// Accesses to the backing store by file, of the daemon that was asked, if a job was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backing: Vec<FileTimes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_two_hosts_become_one() {
        let host = |began: u64, ended: Option<u64>, bytes: u64| {
            let reads = Transfers {
                number: 2,
                bytes,
                lowest: Some(began),
                highest: 9,
                ..Transfers::default()
            };
            let mut operations = OperationClasses::default();
            operations.read.number = 2;
            let process = ProcessProfile { processes: 1, operations, ended, ..Default::default() };
            let file = FileProfile { inode: 7, process: 0, reads, ..FileProfile::default() };
            JobProfile {
                job: "a".into(),
                began,
                ended,
                processes: vec![process],
                files: vec![file],
                ..JobProfile::default()
            }
        };
        let mut all = JobProfile::default();
        all.add(host(5, Some(8), 100));
        all.add(host(3, Some(9), 11));
        assert_eq!((all.began, all.ended, all.processes.len()), (3, Some(9), 2));
        assert_eq!(all.files.iter().map(|file| file.process).collect::<Vec<_>>(), [0, 1]);
        let (reads, writes) = all.transfers();
        assert_eq!((reads.number, reads.bytes, reads.lowest, writes.number), (4, 111, Some(3), 0));
        assert_eq!(all.operations().read.number, 4);
        let summary = JobSummary::of(&all);
        assert_eq!((summary.operations, summary.running, summary.processes), (4, 0, 2));
        all.add(host(1, None, 1));
        assert_eq!(all.ended, None, "a process runs");
        assert_eq!(JobSummary::of(&all).running, 1);
        let mut summed = summary.clone();
        summed.add(&summary);
        assert_eq!((summed.bytes_read, summed.processes), (222, 4));
    }

    #[test]
    fn accesses_count_for_the_job_whose_file_they_are_for() {
        let file = |inode| FileProfile { inode, ..FileProfile::default() };
        let mut job = JobProfile { files: vec![file(7), file(7), file(8)], ..Default::default() };
        let of = |inode| {
            let mut times = FileTimes { inode, ..FileTimes::default() };
            times.reads.note(100, true);
            times
        };
        job.add_backing(&[of(7), of(9)]);
        assert_eq!((job.backing.reads.number, job.backing.reads.failed), (1, 1));
        let text = serde_json::to_string(&JobProfile::default()).expect("json");
        assert!(!text.contains("backing"), "{text}");
    }

    #[test]
    fn a_profile_of_an_older_or_newer_release_is_read() {
        let text = r#"{"profiles":[{"job":"x","processes":[{"pid":3,"new":1}]}]}"#;
        let answer: ActivityAnswer = serde_json::from_str(text).expect("json");
        assert_eq!(
            (answer.profiles[0].job.as_str(), answer.profiles[0].processes[0].pid),
            ("x", 3)
        );
    }
}
