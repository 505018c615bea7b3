//! The sums that are kept for each job: its processes, and the transfers of each in each file (`files`).
//!
//! Invariant: what is counted is in exactly one place: in a block, or here. Where there is no room
//! for a process or a file of its own, its counts are added to an entry for several.

use crate::host::activity::files::{
    CountedFiles, FILE_BYTES_MAX, FileCounts, place_behind, push_tightly,
};
use config::activity::{
    Counter, DirectoryOperations, JobProfile, OperationClasses, Operations, ProcessProfile,
    Transfers, WaitNanos,
};
use shm::activity::blocks::{JOB_BYTES, Label, PROGRAM_BYTES};
use shm::activity::calls::CLASS_COUNT;
use shm::activity::{CallSample, RecordSample, Taken};
use std::collections::HashMap;
use wire::Inode;
use wire::welcome::job_word;

/// Processes, of all jobs together, that have entries of their own: 2 MiB.
const PROCESSES_MAX: usize = 2048;
/// Files by process, of all jobs together: 5 MiB, or 3 if each is only read or only written.
const FILES_MAX: usize = 12_288;
const _: () = assert!(PROCESSES_MAX * size_of::<ProcessProfile>() <= 2 << 20);
const _: () = assert!(FILES_MAX * FILE_BYTES_MAX <= 5 << 20);
const _: () = assert!(FILES_MAX * (FILE_BYTES_MAX - size_of::<Transfers>()) <= 3 << 20);
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
    began: u64,
    processes: Vec<ProcessProfile>,
    files: CountedFiles,
    directories: Vec<DirectoryOperations>,
    /// Places in `processes`.
    places: HashMap<ProcessKey, u32>,
}

/// For how many there is room to have entries of their own.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    processes: usize,
    files: usize,
}

/// Which files a copy of a job has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopiedFiles {
    /// Each of those that the job has.
    Each,
    /// None: their transfers are among those of its processes in files without an entry.
    Merged,
}

/// All jobs.
#[derive(Default)]
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
        let mut room = self.room(CopiedFiles::Each);
        if let Some(job) = self.jobs.get_mut(at) {
            job.add(block, ended, &mut room);
        }
    }

    /// The jobs, in the order in which they were first kept.
    pub(crate) fn all(&self) -> &[CountedJob] {
        &self.jobs
    }

    /// Whether something is kept of a job.
    pub(crate) fn has(&self, job: &Label<JOB_BYTES>) -> bool {
        self.jobs.iter().any(|one| one.name == *job)
    }

    /// The room that is left, for a job with these files.
    pub(crate) fn room(&self, files: CopiedFiles) -> Room {
        let processes: usize = self.jobs.iter().map(|job| job.processes.len()).sum();
        let files_max = if files == CopiedFiles::Merged { 0 } else { FILES_MAX };
        let files: usize = self.jobs.iter().map(|job| job.files.count()).sum();
        Room {
            processes: PROCESSES_MAX.saturating_sub(processes),
            files: files_max.saturating_sub(files),
        }
    }

    /// Forgets the job that ended first, or began first.
    fn forget(&mut self) {
        let first = self.jobs.iter().enumerate().min_by_key(|(_, job)| {
            let ended = job.ended();
            (ended.is_none(), ended.unwrap_or(job.began))
        });
        if let Some((at, _)) = first {
            self.jobs.remove(at);
            self.forgotten += 1;
        }
    }
}

impl CountedJob {
    /// Nothing of a job yet.
    pub(crate) fn new(name: Label<JOB_BYTES>, began: u64) -> CountedJob {
        CountedJob {
            name,
            began,
            processes: Vec::new(),
            files: CountedFiles::default(),
            directories: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Its name.
    pub(crate) const fn name(&self) -> &Label<JOB_BYTES> {
        &self.name
    }

    /// Whether it has this `job_word`.
    pub(crate) fn is_of(&self, word: u32) -> bool {
        job_word(text(&self.name).as_bytes()) == word
    }

    /// Whether nothing was added yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Its processes.
    pub(crate) fn processes(&self) -> &[ProcessProfile] {
        &self.processes
    }

    /// Its transfers in files with an entry, by process, file and direction.
    pub(crate) fn transfers(&self) -> &[Transfers] {
        self.files.transfers()
    }

    /// A copy.
    pub(crate) fn copy(&self, files: CopiedFiles) -> CountedJob {
        match files {
            CopiedFiles::Each => self.clone(),
            CopiedFiles::Merged => {
                let (processes, places) = (self.processes.clone(), self.places.clone());
                let new = CountedJob::new(self.name, self.began);
                let directories = self.directories.clone();
                let mut job = CountedJob { processes, places, directories, ..new };
                self.files.merge_into(&mut job.processes);
                job
            }
        }
    }

    /// Its profile, without names of files.
    pub(crate) fn profile(&self) -> JobProfile {
        JobProfile {
            job: text(&self.name),
            began: self.began,
            ended: self.ended(),
            files: self.files.profiles(),
            processes: self.processes.clone(),
            directories: self.directories.clone(),
            ..JobProfile::default()
        }
    }

    /// When its last process ended.
    fn ended(&self) -> Option<u64> {
        let ends = self.processes.iter().map(|process| process.ended);
        ends.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Adds the counters of a block. New entries take what they need from `room`.
    pub(crate) fn add(&mut self, block: &BlockSample, ended: Option<u64>, room: &mut Room) {
        let place = self.place_of(block, ended, room);
        self.began = self.began.min(block.taken.began);
        let Some(process) = self.processes.get_mut(place as usize) else { return };
        process.ended = ended;
        process.began = process.began.min(block.taken.began);
        add_calls(&mut process.operations, &block.calls);
        process.other_files += block.merged;
        process.waits.add(block.waits);
        for &(inode, operations) in &block.directories {
            add_directory(&mut self.directories, inode, operations);
        }
        for record in &block.records {
            let counts = FileCounts::of(record);
            let as_operations = |of: &Transfers| Operations {
                number: of.number,
                nanos: of.nanos,
                ..Default::default()
            };
            process.operations.read.add(&as_operations(&counts.reads));
            process.operations.write.add(&as_operations(&counts.writes));
            // Record 0 belongs to no file.
            let is_file = record.slot != 0;
            if !is_file || !self.files.add(place, record, &counts, &mut room.files) {
                counts.merge_into(process);
                process.other_files += u64::from(is_file);
            }
        }
    }

    /// Place of the process of a block among the processes of the job.
    fn place_of(&mut self, block: &BlockSample, ended: Option<u64>, room: &mut Room) -> u32 {
        let Taken { owner, began, .. } = &block.taken;
        let by = if owner.is_by_mount { Counter::Mount } else { Counter::Preload };
        let own =
            ProcessKey { pid: owner.pid, started: owner.started, program: owner.tags.program, by };
        if let Some(place) = self.places.get(&own) {
            return *place;
        }
        let is_merged = room.processes == 0 || own == MERGED;
        let key = if is_merged { MERGED } else { own };
        let next = place_behind(&self.processes);
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            room.processes = room.processes.saturating_sub(1);
            let process = ProcessProfile {
                pid: key.pid,
                uid: block.uid,
                program: text(&key.program),
                rank: owner.tags.rank.filter(|_| !is_merged),
                by,
                began: *began,
                ..ProcessProfile::default()
            };
            push_tightly(&mut self.processes, process);
        }
        // Of merged processes each counts when it ends.
        if let Some(process) = self.processes.get_mut(place as usize) {
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
    use config::activity::{JobSummary, SlowBytes};
    use shm::activity::blocks::label;
    use shm::activity::{BlockIndex, DirectionSample, Owner, Tags};

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

    fn profiles(jobs: &CountedJobs) -> Vec<JobProfile> {
        jobs.all().iter().map(CountedJob::profile).collect()
    }

    #[test]
    fn blocks_of_a_process_are_summed_by_file() {
        let mut jobs = CountedJobs::default();
        jobs.add(&block(b"a", 1, &[5, 6]), Some(20));
        jobs.add(&block(b"b", 2, &[5]), None);
        jobs.add(&block(b"a", 1, &[6]), Some(30));
        let profiles = profiles(&jobs);
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
        let room = jobs.room(CopiedFiles::Each);
        assert_eq!((room.files, room.processes), (0, 0));
        let profiles = profiles(&jobs);
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
        let names: Vec<_> = profiles(&jobs).into_iter().map(|profile| profile.job).collect();
        assert_eq!((names.len(), names[0].as_str(), names[1].as_str()), (JOBS_MAX, "j0", "j4"));
    }

    #[test]
    fn a_copy_with_merged_files_has_the_same_sums() {
        let mut jobs = CountedJobs::default();
        jobs.add(&block(b"a", 1, &[5, 6]), Some(20));
        jobs.add(&block(b"a", 2, &[5]), None);
        let [job] = jobs.all() else { panic!("one job") };
        let mut copies = [CopiedFiles::Each, CopiedFiles::Merged].map(|files| job.copy(files));
        for (copy, files) in copies.iter_mut().zip([CopiedFiles::Each, CopiedFiles::Merged]) {
            // A block that is still in use.
            copy.add(&block(b"a", 2, &[5, 7]), None, &mut jobs.room(files));
        }
        let [each, merged] = copies.each_ref().map(CountedJob::profile);
        assert_eq!((each.files.len(), merged.files.len()), (4, 0));
        let summary = JobSummary::of(&each);
        assert_eq!(JobSummary::of(&merged), summary);
        assert_eq!((summary.bytes_read, summary.processes, summary.running), (50, 2, 1));
        let slow = |process: &ProcessProfile| process.other_slow;
        let sums = [
            SlowBytes { ssd: 2, remote: 4, backing: 6 },
            SlowBytes { ssd: 3, remote: 6, backing: 9 },
        ];
        assert_eq!(merged.processes.iter().map(slow).collect::<Vec<_>>(), sums);
        assert_eq!(jobs.all()[0].files.count(), 3, "the job is as it was");
    }

    #[test]
    fn a_file_has_an_entry_for_each_direction_that_was_used() {
        let mut jobs = CountedJobs::default();
        jobs.add(&block(b"a", 1, &[5, 6]), None);
        let mut written = block(b"a", 1, &[5]);
        written.records[0].writes =
            DirectionSample { number: 1, bytes: 7, lowest: 3, ..Default::default() };
        jobs.add(&written, None);
        assert_eq!(jobs.all()[0].transfers().len(), 3);
        let files = &profiles(&jobs)[0].files;
        let bytes = |file: &config::activity::FileProfile| (file.reads.bytes, file.writes.bytes);
        assert_eq!(files.iter().map(bytes).collect::<Vec<_>>(), [(20, 7), (10, 0)]);
        assert_eq!((files[0].writes.lowest, files[1].writes.lowest), (Some(3), None));
    }
}
