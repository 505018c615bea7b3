//! The sums that are kept for each job: its processes, and the transfers of each in each file.
//!
//! Invariant: what is counted is in exactly one place: in a block, or here. Where there is no room
//! for a process or a file of its own, its counts are added to an entry for several.

use config::activity::{
    Counter, DirectoryOperations, FileProfile, JobProfile, OperationClasses, Operations,
    ProcessProfile, SlowBytes, Transfers, WaitNanos,
};
use shm::activity::blocks::{JOB_BYTES, Label, PROGRAM_BYTES};
use shm::activity::calls::CLASS_COUNT;
use shm::activity::{CallSample, DirectionSample, RecordSample, Taken};
use std::collections::HashMap;
use wire::Inode;

/// Processes, of all jobs together, that have entries of their own: 2 MiB.
const PROCESSES_MAX: usize = 2048;
/// Files by process, of all jobs together: 5 MiB.
const FILES_MAX: usize = 12_288;
/// Directories of a job.
const DIRECTORIES_MAX: usize = 64;
/// Jobs that are remembered.
const JOBS_MAX: usize = 256;

/// The counters of a block as they were read.
pub(crate) struct BlockSample {
    /// The block and its owner.
    pub(crate) taken: Taken,
    /// The user of its process.
    pub(crate) uid: u32,
    /// Calls by class.
    pub(crate) calls: [CallSample; CLASS_COUNT],
    /// Opens of files without a record.
    pub(crate) merged: u64,
    /// The time that its threads waited.
    pub(crate) waits: WaitNanos,
    /// Directories with operations on names.
    pub(crate) directories: Vec<(Inode, u64)>,
    /// Records in use.
    pub(crate) records: Vec<RecordSample>,
}

impl BlockSample {
    /// True if nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        let is_unused = |record: &RecordSample| record.reads.number | record.writes.number == 0;
        self.waits.is_none()
            && self.calls.iter().all(|call| call.number | call.failures == 0)
            && self.records.iter().all(is_unused)
    }
}

/// One process, or several that are merged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessKey {
    pid: u32,
    started: u64,
    program: Label<PROGRAM_BYTES>,
    by: Counter,
}

/// Entry of merged processes.
const MERGED: ProcessKey =
    ProcessKey { pid: 0, started: 0, program: [0; PROGRAM_BYTES], by: Counter::Preload };

/// A job.
#[derive(Clone)]
pub(crate) struct CountedJob {
    name: Label<JOB_BYTES>,
    profile: JobProfile,
    processes: HashMap<ProcessKey, usize>,
    files: HashMap<(usize, u64), usize>,
}

/// Whether there is room for entries of their own.
#[derive(Clone, Copy)]
struct Room {
    processes: bool,
    files: usize,
}

/// All jobs.
#[derive(Clone, Default)]
pub(crate) struct CountedJobs {
    jobs: Vec<CountedJob>,
    /// Jobs that were forgotten.
    pub(crate) forgotten: u64,
}

/// The text of a label.
fn text<const N: usize>(label: &Label<N>) -> String {
    let length = label.iter().position(|&byte| byte == 0).unwrap_or(N);
    String::from_utf8_lossy(label.get(..length).unwrap_or_default()).into_owned()
}

fn transfers(of: &DirectionSample) -> Transfers {
    Transfers {
        number: of.number,
        bytes: of.bytes,
        consecutive: of.consecutive.into(),
        sequential: u64::from(of.consecutive) + u64::from(of.forward),
        strided: of.strided.into(),
        stride: of.stride.cast_signed(),
        misaligned: of.misaligned.into(),
        sizes: of.bins.map(u64::from),
        lowest: (of.number > 0).then_some(of.lowest),
        highest: of.highest,
        nanos: of.nanos,
    }
}

impl CountedJobs {
    /// Adds the counters of a block. `ended`: when its process was found to have ended.
    pub(crate) fn add(&mut self, block: &BlockSample, ended: Option<u64>) {
        let name = block.taken.owner.tags.job;
        let found = self.jobs.iter().position(|job| job.name == name);
        let at = found.unwrap_or_else(|| {
            if self.jobs.len() >= JOBS_MAX {
                self.forget();
            }
            self.jobs.push(CountedJob::new(name, block.taken.began));
            self.jobs.len() - 1
        });
        let room = self.room();
        if let Some(job) = self.jobs.get_mut(at) {
            job.add(block, ended, room);
        }
    }

    /// Whether something is kept of a job.
    pub(crate) fn has(&self, job: &Label<JOB_BYTES>) -> bool {
        self.jobs.iter().any(|one| one.name == *job)
    }

    fn room(&self) -> Room {
        let processes: usize = self.jobs.iter().map(|job| job.processes.len()).sum();
        let files: usize = self.jobs.iter().map(|job| job.files.len()).sum();
        Room { processes: processes < PROCESSES_MAX, files: FILES_MAX.saturating_sub(files) }
    }

    /// Forgets the job that ended first, or began first.
    fn forget(&mut self) {
        let first = self.jobs.iter().enumerate().min_by_key(|(_, job)| {
            let ended = job.ended();
            (ended.is_none(), ended.unwrap_or(job.profile.began))
        });
        if let Some((at, _)) = first {
            self.jobs.remove(at);
            self.forgotten += 1;
        }
    }

    /// The profiles of all jobs.
    pub(crate) fn profiles(self) -> Vec<JobProfile> {
        let profile = |job: CountedJob| JobProfile { ended: job.ended(), ..job.profile };
        self.jobs.into_iter().map(profile).collect()
    }
}

impl CountedJob {
    fn new(name: Label<JOB_BYTES>, began: u64) -> CountedJob {
        let profile = JobProfile { job: text(&name), began, ..JobProfile::default() };
        CountedJob { name, profile, processes: HashMap::new(), files: HashMap::new() }
    }

    /// When its last process ended.
    fn ended(&self) -> Option<u64> {
        let ends = self.profile.processes.iter().map(|process| process.ended);
        ends.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    fn add(&mut self, block: &BlockSample, ended: Option<u64>, room: Room) {
        let place = self.place_of(block, ended, room);
        self.profile.began = self.profile.began.min(block.taken.began);
        let CountedJob { profile, files, .. } = self;
        let Some(process) = profile.processes.get_mut(place) else { return };
        process.ended = ended;
        process.began = process.began.min(block.taken.began);
        add_calls(&mut process.operations, &block.calls);
        process.other_files += block.merged;
        process.waits.add(block.waits);
        for &(inode, operations) in &block.directories {
            add_directory(&mut profile.directories, inode, operations);
        }
        let mut room = room.files;
        for record in &block.records {
            let (reads, writes) = (transfers(&record.reads), transfers(&record.writes));
            let [ssd, remote, backing] = record.sources;
            let slow = SlowBytes { ssd, remote, backing };
            let as_operations = |of: &Transfers| Operations {
                number: of.number,
                nanos: of.nanos,
                ..Default::default()
            };
            process.operations.read.add(&as_operations(&reads));
            process.operations.write.add(&as_operations(&writes));
            let known = files.get(&(place, record.inode.0)).copied();
            if record.slot == 0 || known.is_none() && room == 0 {
                process.other_reads.add(&reads);
                process.other_writes.add(&writes);
                process.other_slow.add(slow);
                process.other_files += u64::from(record.slot != 0);
                continue;
            }
            let at = known.unwrap_or_else(|| {
                room -= 1;
                let (inode, began) = (record.inode.0, record.began);
                files.insert((place, inode), profile.files.len());
                let directory = record.parent.0;
                let file =
                    FileProfile { inode, directory, process: place, began, ..Default::default() };
                profile.files.push(file);
                profile.files.len() - 1
            });
            if let Some(file) = profile.files.get_mut(at) {
                file.began = file.began.min(record.began);
                file.opens += record.opens;
                file.slow.add(slow);
                file.reads.add(&reads);
                file.writes.add(&writes);
            }
        }
    }

    /// Place of the process of a block among the processes of the job.
    fn place_of(&mut self, block: &BlockSample, ended: Option<u64>, room: Room) -> usize {
        let Taken { owner, began, .. } = &block.taken;
        let by = if owner.is_by_mount { Counter::Mount } else { Counter::Preload };
        let own =
            ProcessKey { pid: owner.pid, started: owner.started, program: owner.tags.program, by };
        if let Some(place) = self.processes.get(&own) {
            return *place;
        }
        let is_merged = !room.processes || own == MERGED;
        let key = if is_merged { MERGED } else { own };
        let count = self.profile.processes.len();
        let place = *self.processes.entry(key).or_insert(count);
        if place == count {
            self.profile.processes.push(ProcessProfile {
                pid: key.pid,
                uid: block.uid,
                program: text(&key.program),
                rank: owner.tags.rank.filter(|_| !is_merged),
                by,
                began: *began,
                ..ProcessProfile::default()
            });
        }
        // Of merged processes each counts when it ends.
        if let Some(process) = self.profile.processes.get_mut(place) {
            process.processes += u64::from(!is_merged || ended.is_some());
        }
        place
    }
}

/// Adds operations on names in a directory. Beyond the most that are kept, it takes the place of the one
/// with fewest, and adds to its number (`shm::activity::directories`).
fn add_directory(to: &mut Vec<DirectoryOperations>, inode: Inode, operations: u64) {
    let known = to.iter().position(|one| one.inode == inode.0);
    let least = || (0..to.len()).min_by_key(|at| to.get(*at).map(|one| one.operations));
    let at = known.or_else(|| if to.len() < DIRECTORIES_MAX { None } else { least() });
    match at.and_then(|at| to.get_mut(at)) {
        Some(one) => {
            one.inode = inode.0;
            one.operations = one.operations.saturating_add(operations);
        }
        None => to.push(DirectoryOperations { inode: inode.0, operations, path: None }),
    }
}

fn add_calls(to: &mut OperationClasses, calls: &[CallSample; CLASS_COUNT]) {
    for (class, call) in to.all_mut().into_iter().zip(calls) {
        let CallSample { number, failures, absent, nanos } = *call;
        class.add(&Operations { number, failures, absent, nanos });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::activity::blocks::label;
    use shm::activity::{BlockIndex, Owner, Tags};

    fn block(job: &[u8], pid: u32, files: &[u64]) -> BlockSample {
        let (job, program) = (label(job), label(b"app"));
        let tags = Tags { job, program, rank: Some(pid), uid: 1, gid: 2, ..Tags::NONE };
        let owner = Owner { pid, started: 5, tags, is_by_mount: false };
        let taken = Taken { block: BlockIndex(1), word: 0, owner, began: 9, is_ended: false };
        let reads = DirectionSample { number: 2, bytes: 10, ..DirectionSample::default() };
        let record = |(slot, &inode): (usize, &u64)| RecordSample {
            slot: slot as u32 + 1,
            inode: Inode(inode),
            parent: Inode(1),
            began: 9,
            opens: 1,
            is_closed: false,
            sources: [1, 2, 3],
            reads,
            writes: DirectionSample::default(),
        };
        let mut calls = [CallSample::default(); CLASS_COUNT];
        calls[2] = CallSample { number: 3, failures: 1, absent: 1, nanos: 0 };
        let records = files.iter().enumerate().map(record).collect();
        let waits = WaitNanos { space: 5, ..WaitNanos::default() };
        let directories = vec![(Inode(77), 512), (Inode(1000 + u64::from(pid)), 64)];
        BlockSample { taken, uid: 7, calls, merged: 0, waits, directories, records }
    }

    #[test]
    fn blocks_of_a_process_are_summed_by_file() {
        let mut jobs = CountedJobs::default();
        jobs.add(&block(b"a", 1, &[5, 6]), Some(20));
        jobs.add(&block(b"b", 2, &[5]), None);
        jobs.add(&block(b"a", 1, &[6]), Some(30));
        let profiles = jobs.profiles();
        let [a, b] = profiles.as_slice() else { panic!("two jobs") };
        assert_eq!((a.job.as_str(), a.ended, b.job.as_str(), b.ended), ("a", Some(30), "b", None));
        let [process] = a.processes.as_slice() else { panic!("one process") };
        assert_eq!((process.uid, process.rank, process.program.as_str()), (7, Some(1), "app"));
        let classes = process.operations;
        assert_eq!((classes.stat.number, classes.stat.absent, classes.read.number), (6, 2, 6));
        let files = a.files.iter().map(|file| (file.inode, file.reads.number, file.opens));
        assert_eq!(files.collect::<Vec<_>>(), [(5, 2, 1), (6, 4, 2)]);
        assert_eq!(a.files[1].slow, SlowBytes { ssd: 2, remote: 4, backing: 6 });
        let directories = a.directories.iter().map(|one| (one.inode, one.operations));
        assert_eq!(directories.collect::<Vec<_>>(), [(77, 1024), (1001, 128)]);
        assert_eq!((process.waits.space, process.other_slow.is_none()), (10, true));
    }

    #[test]
    fn beyond_the_room_counts_are_merged_and_none_is_lost() {
        let mut jobs = CountedJobs::default();
        let files: Vec<u64> = (1..=20).collect();
        let count = PROCESSES_MAX as u32 + 100;
        for pid in 1..=count {
            jobs.add(&block(b"a", pid, &files), Some(1));
        }
        assert!(jobs.room().files == 0 && !jobs.room().processes);
        let profiles = jobs.profiles();
        let profile = &profiles[0];
        assert!(profile.processes.len() <= PROCESSES_MAX + 1 && profile.files.len() <= FILES_MAX);
        let processes: u64 = profile.processes.iter().map(|process| process.processes).sum();
        assert_eq!(processes, u64::from(count));
        assert_eq!(profile.operations().stat.number, 3 * u64::from(count));
        assert_eq!(profile.transfers().0.number, 40 * u64::from(count));
        let most = profile.directories.iter().max_by_key(|one| one.operations);
        assert_eq!(most.map(|one| (one.inode, one.operations)), Some((77, 512 * u64::from(count))));
        assert_eq!(profile.directories.len(), DIRECTORIES_MAX);
    }

    #[test]
    fn too_many_jobs_are_forgotten_oldest_first() {
        let mut jobs = CountedJobs::default();
        for number in 0..JOBS_MAX + 3 {
            let ended = (number != 0).then_some(number as u64);
            jobs.add(&block(format!("j{number}").as_bytes(), 1, &[]), ended);
        }
        assert_eq!(jobs.forgotten, 3);
        let names: Vec<_> = jobs.profiles().into_iter().map(|profile| profile.job).collect();
        assert_eq!((names.len(), names[0].as_str(), names[1].as_str()), (JOBS_MAX, "j0", "j4"));
    }
}
