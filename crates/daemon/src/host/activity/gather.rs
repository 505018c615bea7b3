//! Passes over the counters of the host's processes: about once a second, when many blocks were
//! taken, and before each answer.
//!
//! A pass keeps the counters of processes that have ended, and of programs that were replaced by
//! exec, and frees their blocks. In a block whose records are all in use it closes those that were
//! idle since the last pass, and frees them when their counters have not changed since. Everything
//! else stays in the blocks, where an answer reads it.

use crate::host::activity::HostActivity;
use crate::host::activity::jobs::{BlockSample, CopiedFiles, CountedJob, CountedJobs};
use crate::host::activity::spans::ActivitySpans;
use crate::host::activity::transfers::MovedFiles;
use crate::host::liveness::exists;
use crate::shared::Shared;
use config::activity::WaitNanos;
use shm::activity::blocks::{JOB_BYTES, Label};
use shm::activity::records::RECORD_COUNT;
use shm::activity::{ActivitySegment, Lane, RecordSample, Taken};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

const PAUSE_MICROS: u64 = 1_000_000;
/// Whether a pid still belongs to the same process is looked up in one of this many passes: it costs
/// 20 us, and the kernel reuses a pid late.
const IDENTIFIED_EACH: u32 = 8;
/// Transfers after which a record is closed, long before its counters of 32 bits wrap.
const TRANSFERS_MAX: u64 = 1 << 31;

/// The sums that are kept, and the records that the last pass saw.
#[derive(Default)]
pub(crate) struct Gatherer {
    jobs: CountedJobs,
    passes: u32,
    moved: MovedFiles,
    pub(super) spans: ActivitySpans,
    /// Transfers of records that may be closed or freed, by block and record.
    seen: HashMap<(u32, u32), Seen>,
}

/// A record at the last pass.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Word of its block.
    word: u64,
    reads: u64,
    writes: u64,
    is_closed: bool,
}

/// Gathers until the daemon ends.
pub(crate) fn run(shared: &Shared) {
    let Some(activity) = &shared.host.activity else { return };
    while !shared.stopping.load(Acquire) {
        activity.segment.sleep(PAUSE_MICROS);
        let reports = {
            let mut gatherer = activity.gatherer();
            gatherer.pass(activity, Check::Now);
            gatherer.moved.reports(&shared.net, now(), &mut activity.redirected())
        };
        for (to, bytes) in reports {
            shared.net.send_to_service(&shared.inboxes, to, bytes);
        }
    }
}

/// How to find out whether a process has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// By pid, now and then also by start time.
    Now,
    /// Also by start time, which finds processes whose parents have not waited for them.
    Thoroughly,
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl Gatherer {
    /// One pass.
    pub(crate) fn pass(&mut self, of: &HostActivity, check: Check) {
        self.passes = self.passes.wrapping_add(1);
        let is_thorough = check == Check::Thoroughly || self.passes.is_multiple_of(IDENTIFIED_EACH);
        let (mut gone, mut identified) = (Vec::new(), Vec::new());
        let all = blocks(&of.segment);
        self.moved.look(&of.segment, &all, of.reports.load(Relaxed));
        self.spans.look(&of.segment, &all, now() / 1_000_000);
        let runs = |job: &_| all.iter().any(|taken| taken.owner.tags.job == *job);
        self.spans.forget(|job| self.jobs.has(job) || runs(job));
        for taken in all {
            let (pid, started) = (taken.owner.pid, taken.owner.started);
            // First: whatever a process counted before it ended is read after this.
            let is_identified = is_thorough && started != 0;
            let is_gone = !exists(pid) || is_identified && !of.liveness.is_alive((pid, started));
            if is_identified {
                identified.push((pid, started));
            }
            if is_gone || taken.is_ended {
                self.keep(of, &taken);
                if is_gone {
                    gone.push(pid);
                }
                continue;
            }
            note_user_of(of, &taken);
            self.free_idle(of, &taken);
        }
        if !identified.is_empty() {
            of.liveness.identify(identified);
        }
        // Not before: threads of a process have blocks of their own.
        of.users().retain(|pid, _| !gone.contains(pid));
        of.ends().retain(|pid, _| !gone.contains(pid));
        let current: HashMap<u32, u64> =
            blocks(&of.segment).into_iter().map(|taken| (taken.block.0, taken.word)).collect();
        self.seen.retain(|(block, _), seen| current.get(block) == Some(&seen.word));
    }

    /// Keeps the counters of a block in which nobody counts any more, and frees it.
    fn keep(&mut self, of: &HostActivity, taken: &Taken) {
        let sample = read(of, taken);
        // If it changed, the next pass finds it again.
        if of.segment.free(taken) && !sample.is_empty() {
            let noted = of.ends().get(&taken.owner.pid).copied();
            // An earlier end is that of another program, or process, with the same pid.
            let ended = noted.filter(|ended| *ended > taken.began).unwrap_or_else(now);
            self.jobs.add(&sample, Some(ended));
        }
    }

    /// Makes room in a block of which three quarters of the records are in use: a file may not find the
    /// others.
    fn free_idle(&mut self, of: &HostActivity, taken: &Taken) {
        let mut records = Vec::new();
        of.segment.each_record(taken.block, &mut |record| records.push(record));
        // Record 0 belongs to no file.
        let is_full = records.len() * 4 >= RECORD_COUNT * 3;
        for record in records.into_iter().filter(|record| record.slot > 0) {
            let key = (taken.block.0, record.slot);
            let (reads, writes) = (record.reads.number, record.writes.number);
            let is_long = reads.max(writes) > TRANSFERS_MAX;
            let now = Seen { word: taken.word, reads, writes, is_closed: record.is_closed };
            if !is_full && !is_long && !record.is_closed {
                self.seen.remove(&key);
                continue;
            }
            let is_idle = self.seen.insert(key, now) == Some(now);
            if record.is_closed && is_idle {
                self.keep_record(of, taken, record);
                self.seen.remove(&key);
            } else if !record.is_closed && (is_idle || is_long) {
                of.segment.close_record(taken.block, &record);
            }
        }
    }

    /// Keeps the counters of a record, and frees it.
    fn keep_record(&mut self, of: &HostActivity, taken: &Taken, record: RecordSample) {
        of.segment.free_record(taken.block, &record);
        let calls = Default::default();
        let uid = user_of(of, taken);
        let waits = WaitNanos::default();
        let records = vec![record];
        let directories = Vec::new();
        let sample =
            BlockSample { taken: *taken, uid, calls, merged: 0, waits, directories, records };
        self.jobs.add(&sample, None);
    }

    /// Calls `each` with each job, and with what of it is still in blocks. Jobs are copied only where
    /// that is needed, and one at a time: a copy of all would double the memory of the daemon, and
    /// the allocator keeps much of what is freed.
    pub(crate) fn each_job(
        &self,
        of: &HostActivity,
        files: CopiedFiles,
        mut each: impl FnMut(&CountedJob),
    ) {
        let mut in_blocks = blocks_by_job(&of.segment);
        for kept in self.jobs.all() {
            let blocks = in_blocks.remove(kept.name()).unwrap_or_default();
            if blocks.is_empty() && files == CopiedFiles::Each {
                each(kept);
                continue;
            }
            let mut job = kept.copy(files);
            self.add_blocks(of, &mut job, files, &blocks);
            each(&job);
        }
        for (name, blocks) in in_blocks {
            let began = blocks.iter().map(|taken| taken.began).min().unwrap_or(0);
            let mut job = CountedJob::new(name, began);
            self.add_blocks(of, &mut job, files, &blocks);
            if !job.is_empty() {
                each(&job);
            }
        }
    }

    /// Adds what blocks have to a copy of their job.
    fn add_blocks(
        &self,
        of: &HostActivity,
        to: &mut CountedJob,
        files: CopiedFiles,
        blocks: &[Taken],
    ) {
        let mut room = self.jobs.room(files);
        for taken in blocks {
            let sample = read(of, taken);
            if !sample.is_empty() {
                to.add(&sample, None, &mut room);
            }
        }
    }

    /// Jobs that were forgotten.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.jobs.forgotten
    }
}

/// All blocks that were set up, by job.
fn blocks_by_job(segment: &ActivitySegment) -> BTreeMap<Label<JOB_BYTES>, Vec<Taken>> {
    let mut jobs: BTreeMap<_, Vec<Taken>> = BTreeMap::new();
    segment.each_taken(&mut |taken| {
        if taken.began != 0 || taken.owner.pid == 0 {
            jobs.entry(taken.owner.tags.job).or_default().push(taken);
        }
    });
    jobs
}

/// The blocks of processes.
fn blocks(segment: &ActivitySegment) -> Vec<Taken> {
    let mut all = Vec::new();
    segment.each_taken(&mut |taken| {
        if taken.block != Lane::NOBODY.block {
            all.push(taken);
        }
    });
    all
}

/// The counters of a block.
fn read(of: &HostActivity, taken: &Taken) -> BlockSample {
    let mut records = Vec::new();
    // Of a block that was never set up there is no memory.
    if taken.began != 0 || taken.block == Lane::NOBODY.block {
        of.segment.each_record(taken.block, &mut |record| records.push(record));
        let calls = of.segment.calls(taken.block);
        let merged = of.segment.merged(taken.block);
        let [space, backing, locks, shares] = of.segment.waits(taken.block);
        let waits = WaitNanos { space, backing, locks, shares };
        let uid = user_of(of, taken);
        let directories = of.segment.directories(taken.block);
        let directories = directories.into_iter().filter(|(inode, _)| !inode.is_none()).collect();
        return BlockSample { taken: *taken, uid, calls, merged, waits, directories, records };
    }
    let (calls, waits) = Default::default();
    let (uid, directories) = (u32::MAX, Vec::new());
    BlockSample { taken: *taken, uid, calls, merged: 0, waits, directories, records }
}

/// The user of a process. The word of the process itself is taken only if it ended before anybody
/// asked the kernel.
pub(super) fn user_of(of: &HostActivity, taken: &Taken) -> u32 {
    if taken.owner.is_by_mount {
        // The mount asked the kernel.
        return taken.owner.tags.uid;
    }
    of.users().get(&taken.owner.pid).copied().unwrap_or(taken.owner.tags.uid)
}

/// Remembers the user of a living process that has no session of its own: a forked child.
fn note_user_of(of: &HostActivity, taken: &Taken) {
    let pid = taken.owner.pid;
    if taken.owner.is_by_mount || of.users().contains_key(&pid) {
        return;
    }
    if let Ok(process) = std::fs::metadata(format!("/proc/{pid}")) {
        of.note_user(pid, process.uid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::activity::{JobProfile, JobSummary};
    use shm::Segment;
    use shm::activity::blocks::label;
    use shm::activity::{ACTIVITY_BYTES, OpClass, OpenWords, Owner, Tags, Transfer};
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use wire::Inode;

    fn activity() -> HostActivity {
        let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
        HostActivity::new(
            Arc::new(ActivitySegment::new(segment).expect("a segment")),
            Arc::default(),
        )
    }

    fn profiles(gatherer: &Gatherer, of: &HostActivity) -> Vec<JobProfile> {
        let mut all = Vec::new();
        gatherer.each_job(of, CopiedFiles::Each, |job| all.push(job.profile()));
        all
    }

    fn process() -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; true"]).stdin(Stdio::piped()).spawn().expect("a process")
    }

    fn lane(of: &HostActivity, pid: u32, job: &[u8]) -> Lane {
        let (job, program) = (label(job), label(b"app"));
        let tags = Tags { job, program, uid: 12_345, gid: 2, ..Tags::NONE };
        let owner = Owner { pid, started: 0, tags, is_by_mount: false };
        Lane { block: of.segment.take(&owner, 0).expect("a block"), is_shared: false }
    }

    fn write(of: &HostActivity, lane: Lane, inode: u64) {
        let place = AtomicU32::new(0);
        let (inode, parent) = (Inode(inode), AtomicU64::new(1));
        let open = OpenWords { place: &place, inode, parent: &parent };
        let counter = of.segment.begin_transfer(lane, open, Transfer::Write).expect("space");
        counter.count(0, 10);
    }

    #[test]
    fn counters_of_an_ended_process_are_kept_once_and_its_block_is_freed() {
        let of = activity();
        let mut child = process();
        let lane = lane(&of, child.id(), b"a");
        of.segment.count_call(lane, OpClass::Stat);
        write(&of, lane, 7);
        let check = |is_running: bool| {
            let mut gatherer = of.gatherer();
            gatherer.pass(&of, Check::Thoroughly);
            let profiles = profiles(&gatherer, &of);
            let [profile] = profiles.as_slice() else { panic!("one job") };
            assert_eq!(profile.operations().stat.number, 1);
            assert_eq!(profile.transfers().1.bytes, 10);
            assert_eq!((profile.ended.is_none(), profile.processes.len()), (is_running, 1));
            // This program's own child, so the kernel's word and not that of the process.
            let own = std::fs::metadata("/proc/self").expect("proc").uid();
            assert_eq!(profile.processes[0].uid, own);
        };
        check(true);
        check(true);
        child.kill().expect("killed");
        child.wait().expect("ended");
        check(false);
        check(false);
        assert!(blocks(&of.segment).is_empty());
    }

    #[test]
    fn records_of_idle_files_make_room_for_others() {
        let of = activity();
        let lane = lane(&of, std::process::id(), b"a");
        let mut expected = 0;
        for round in 0..10 {
            for file in 0..40 {
                write(&of, lane, 1 + round * 100 + file);
                expected += 1;
            }
            for _ in 0..4 {
                of.gatherer().pass(&of, Check::Now);
            }
            let profiles = profiles(&of.gatherer(), &of);
            let (_, writes) = profiles[0].transfers();
            assert_eq!((writes.number, writes.bytes), (expected, expected * 10));
        }
        let profiles = profiles(&of.gatherer(), &of);
        let own = RECORD_COUNT - 1;
        assert_eq!(profiles[0].files.len(), 10 * own, "those that had a record");
        let merged = (10 * (40 - own)) as u64;
        let process = &profiles[0].processes[0];
        assert_eq!((process.other_files, process.other_writes.number), (merged, merged));
    }

    #[test]
    fn a_process_ends_with_its_session_and_not_with_the_pass_that_finds_it() {
        let of = activity();
        let (mut first, mut second) = (process(), process());
        let began = now();
        let of_first = lane(&of, first.id(), b"a");
        of.segment.count_call(of_first, OpClass::Stat);
        of.note_end(first.id());
        // An end before its block was taken is that of an earlier program.
        of.note_end(second.id());
        let between = now();
        let of_second = lane(&of, second.id(), b"b");
        of.segment.count_call(of_second, OpClass::Stat);
        for child in [&mut first, &mut second] {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        let late = now();
        of.gatherer().pass(&of, Check::Now);
        let profiles = profiles(&of.gatherer(), &of);
        let ended = |job: usize| profiles[job].ended.expect("it ended");
        assert!((began..=between).contains(&ended(0)) && ended(1) >= late, "{profiles:?}");
        assert!(of.ends().is_empty());
    }

    #[test]
    fn a_job_that_runs_has_what_is_kept_and_what_is_in_blocks_with_and_without_its_files() {
        let of = activity();
        let mut child = process();
        write(&of, lane(&of, child.id(), b"a"), 7);
        child.kill().expect("killed");
        child.wait().expect("ended");
        of.gatherer().pass(&of, Check::Now);
        let own = std::process::id();
        for job in [b"a", b"b"] {
            write(&of, lane(&of, own, job), 7);
        }
        // Nothing was counted in this one.
        lane(&of, own, b"c");
        let gatherer = of.gatherer();
        let all = profiles(&gatherer, &of);
        let mut merged = Vec::new();
        gatherer.each_job(&of, CopiedFiles::Merged, |job| merged.push(job.profile()));
        let summaries = |all: &[JobProfile]| all.iter().map(JobSummary::of).collect::<Vec<_>>();
        assert_eq!(summaries(&all), summaries(&merged));
        let sums = summaries(&all).into_iter().map(|it| (it.job, it.processes, it.bytes_written));
        assert_eq!(sums.collect::<Vec<_>>(), [("a".to_owned(), 2, 20), ("b".to_owned(), 1, 10)]);
        assert_eq!(gatherer.jobs.all().len(), 1, "what is in blocks stays there");
    }

    #[test]
    fn users_are_taken_from_sessions() {
        let of = activity();
        let mut child = process();
        of.note_user(child.id(), 777);
        let lane = lane(&of, child.id(), b"a");
        of.segment.count_call(lane, OpClass::Stat);
        child.kill().expect("killed");
        child.wait().expect("ended");
        of.gatherer().pass(&of, Check::Now);
        let profiles = profiles(&of.gatherer(), &of);
        assert_eq!(profiles[0].processes[0].uid, 777);
        assert!(of.users().is_empty());
    }
}
