//! Bytes over time: of each process (`config::activity::timeline`), and of each job, whose spans tell
//! which jobs disturb one another (`insight::interference`).
//!
//! Each pass takes the differences of all counters since the one before, however long ago that was on
//! a busy machine: the bytes were moved at some time between the two. Bytes that a process moves
//! between its last pass and its end are found by the pass that frees its blocks.

use config::activity::timeline::Timeline;
use config::activity::{Counter, Disturbance, JobProfile, ProcessProfile};
use insight::interference::{InterferenceWatch, Moved};
use shm::activity::blocks::{JOB_BYTES, Label};
use shm::activity::{ActivitySegment, RecordSample, Taken};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Processes whose bytes over time are kept: 2 MiB.
const PROCESSES_MAX: usize = 2048;
/// Jobs of which disturbances are kept.
const JOBS_MAX: usize = 256;
/// Other jobs that are named for a job, those that disturb most.
const OTHERS_MAX: usize = 8;
/// A span of jobs lasts at least this long.
const SPAN_SECONDS: f64 = 0.9;

/// Counters of a record at the last pass.
#[derive(Clone, Copy)]
struct SeenRecord {
    word: u64,
    inode: u64,
    bytes: [u64; 2],
    nanos: u64,
}

/// A process as answers name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessLine {
    job: Label<JOB_BYTES>,
    pid: u32,
    is_by_mount: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ActivitySpans {
    seen: HashMap<(u32, u32), SeenRecord>,
    lines: BTreeMap<ProcessLine, Timeline>,
    watch: InterferenceWatch,
    /// Bytes of jobs since `since`.
    moved: BTreeMap<String, Moved>,
    since: Option<Instant>,
    /// When the last pass was, in milliseconds since 1970.
    looked_ms: u64,
    /// By job, then by the other.
    disturbances: BTreeMap<String, BTreeMap<String, Disturbance>>,
}

fn text<const N: usize>(label: &Label<N>) -> String {
    let length = label.iter().position(|&byte| byte == 0).unwrap_or(N);
    String::from_utf8_lossy(label.get(..length).unwrap_or_default()).into_owned()
}

impl ActivitySpans {
    /// A pass: looks at all blocks in use, those included whose process has ended.
    pub(super) fn look(&mut self, segment: &ActivitySegment, blocks: &[Taken], now_ms: u64) {
        let mut seen = HashMap::with_capacity(self.seen.len());
        for taken in blocks.iter().filter(|taken| taken.began != 0) {
            let mut block = ([0_u64; 2], 0_u64);
            segment.each_record(taken.block, &mut |record| {
                self.add_record(taken, &record, &mut seen, &mut block);
            });
            self.add_block(taken, block, now_ms);
        }
        self.seen = seen;
        self.looked_ms = now_ms;
        self.end_span(Instant::now());
    }

    /// Adds what a record counted since the last pass.
    fn add_record(
        &self,
        taken: &Taken,
        record: &RecordSample,
        seen: &mut HashMap<(u32, u32), SeenRecord>,
        (bytes, nanos): &mut ([u64; 2], u64),
    ) {
        let key = (taken.block.0, record.slot);
        let now = SeenRecord {
            word: taken.word,
            inode: record.inode.0,
            bytes: [record.reads.bytes, record.writes.bytes],
            nanos: record.reads.nanos.wrapping_add(record.writes.nanos),
        };
        let is_same = |before: &&SeenRecord| (before.word, before.inode) == (now.word, now.inode);
        let before = self.seen.get(&key).filter(is_same);
        let zero = SeenRecord { word: 0, inode: 0, bytes: [0; 2], nanos: 0 };
        let before = before.copied().unwrap_or(zero);
        for (sum, (now, before)) in bytes.iter_mut().zip(now.bytes.into_iter().zip(before.bytes)) {
            // A record that was freed and taken again for the same file began anew.
            *sum = sum.saturating_add(if now >= before { now - before } else { now });
        }
        *nanos = nanos.saturating_add(now.nanos.saturating_sub(before.nanos));
        seen.insert(key, now);
    }

    fn add_block(&mut self, taken: &Taken, (bytes, nanos): ([u64; 2], u64), now_ms: u64) {
        if bytes == [0; 2] && nanos == 0 {
            return;
        }
        let job = taken.owner.tags.job;
        let is_by_mount = taken.owner.is_by_mount;
        let key = ProcessLine { job, pid: taken.owner.pid, is_by_mount };
        if self.lines.len() < PROCESSES_MAX || self.lines.contains_key(&key) {
            let began_ms = taken.began / 1_000_000;
            let line = self.lines.entry(key).or_insert_with(|| Timeline::new(began_ms));
            line.add_between((self.looked_ms, now_ms), bytes);
        }
        let job = text(&job);
        if !job.is_empty() {
            let moved = self.moved.entry(job).or_default();
            moved.bytes += bytes.iter().map(|&one| one as f64).sum::<f64>();
            moved.seconds += nanos as f64 / 1e9;
        }
    }

    fn end_span(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if seconds < SPAN_SECONDS {
            return;
        }
        self.since = Some(now);
        // A job that moved nothing in this span is known on, as long as its bytes over time are.
        let mut jobs: Vec<_> = self.lines.keys().map(|line| &line.job).collect();
        jobs.dedup();
        for job in jobs.into_iter().map(text) {
            if !job.is_empty() {
                self.moved.entry(job).or_default();
            }
        }
        let moved = std::mem::take(&mut self.moved);
        self.watch.add_span("", seconds, &moved);
        self.note_disturbances(seconds);
    }

    fn note_disturbances(&mut self, seconds: f64) {
        for found in self.watch.found() {
            if !self.disturbances.contains_key(&found.job) && self.disturbances.len() >= JOBS_MAX {
                self.disturbances.pop_first();
            }
            let others = self.disturbances.entry(found.job).or_default();
            if !others.contains_key(&found.by) && others.len() >= OTHERS_MAX {
                continue;
            }
            let one = others
                .entry(found.by.clone())
                .or_insert_with(|| Disturbance { by: found.by.clone(), ..Disturbance::default() });
            one.slowdown = one.slowdown.max(found.slowdown);
            one.by_bytes_per_second = one.by_bytes_per_second.max(found.by_bytes_per_second);
            one.seconds += seconds;
        }
    }

    /// Adds what is known to a profile.
    pub(super) fn complete(&self, profile: &mut JobProfile) {
        let lines = self.lines.iter().filter(|(key, _)| text(&key.job) == profile.job);
        for (key, line) in lines {
            let is_it = |one: &&mut ProcessProfile| {
                one.pid == key.pid && (one.by == Counter::Mount) == key.is_by_mount
            };
            // Of programs that replaced one another by exec the last has the bytes of all.
            if let Some(process) = profile.processes.iter_mut().rev().find(is_it) {
                process.timeline = line.clone();
            }
        }
        let others = self.disturbances.get(&profile.job).into_iter().flatten();
        profile.disturbances = others.map(|(_, one)| one.clone()).collect();
    }

    /// Forgets processes of jobs of which nothing else is known any more, once there are many.
    pub(super) fn forget(&mut self, is_known: impl Fn(&Label<JOB_BYTES>) -> bool) {
        if self.lines.len() >= PROCESSES_MAX {
            self.lines.retain(|line, _| is_known(&line.job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::activity::blocks::label;
    use shm::activity::{ACTIVITY_BYTES, Lane, OpenWords, Owner, Tags, Transfer};
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::Duration;
    use wire::Inode;

    struct WatchedHost {
        segment: ActivitySegment,
        spans: ActivitySpans,
        now: Instant,
    }

    impl WatchedHost {
        fn new() -> WatchedHost {
            let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
            let segment = ActivitySegment::new(segment).expect("a segment");
            let mut host =
                WatchedHost { segment, spans: ActivitySpans::default(), now: Instant::now() };
            host.spans.end_span(host.now);
            host
        }

        fn process(&self, pid: u32, job: &[u8]) -> Lane {
            let tags = Tags {
                job: label(job),
                program: label(b"b"),
                tag: label(b""),
                rank: None,
                uid: 1,
                gid: 2,
            };
            let owner = Owner { pid, started: 0, tags, is_by_mount: false };
            Lane { block: self.segment.take(&owner, 0).expect("a block"), is_shared: false }
        }

        /// A write of so many bytes, all of them timed.
        fn write(&self, lane: Lane, bytes: u64, nanos: u64) {
            let (place, parent) = (AtomicU32::new(0), AtomicU64::new(1));
            let open = OpenWords { place: &place, inode: Inode(7), parent: &parent };
            let counter = self.segment.begin_transfer(lane, open, Transfer::Write).expect("room");
            counter.count(0, bytes);
            counter.count_time(nanos, bytes);
        }

        /// A pass a second after the one before.
        fn pass(&mut self) {
            let mut all = Vec::new();
            self.segment.each_taken(&mut |taken| all.push(taken));
            all.retain(|taken| taken.block != Lane::NOBODY.block);
            let first = all.iter().map(|taken| taken.began).min().unwrap_or(0) / 1_000_000;
            let seconds = self.spans.lines.values().map(|line| line.spans.len()).max().unwrap_or(0);
            let until = self.spans.since;
            self.spans.since = None;
            self.spans.look(&self.segment, &all, first + seconds as u64 * 1000);
            self.now += Duration::from_secs(1);
            self.spans.since = until;
            self.spans.end_span(self.now);
        }
    }

    #[test]
    fn a_job_that_is_slower_beside_another_has_it_in_its_profile() {
        let mut host = WatchedHost::new();
        let (a, b) = (host.process(1, b"a"), host.process(2, b"b"));
        for _ in 0..6 {
            host.write(a, 100 << 20, 1_000_000_000);
            host.pass();
        }
        for _ in 0..6 {
            host.write(a, 20 << 20, 1_000_000_000);
            host.write(b, 80 << 20, 1_000_000_000);
            host.pass();
        }
        let process = |pid| ProcessProfile { pid, ..ProcessProfile::default() };
        let mut profile = JobProfile { job: "a".into(), ..JobProfile::default() };
        profile.processes = vec![process(1)];
        host.spans.complete(&mut profile);
        let [one] = profile.disturbances.as_slice() else { panic!("{profile:?}") };
        assert_eq!(one.by, "b");
        assert!((one.slowdown - 5.0).abs() < 1e-6, "{one:?}");
        let written: Vec<u64> =
            profile.processes[0].timeline.spans.iter().map(|span| span[1] >> 20).collect();
        assert_eq!(written.iter().sum::<u64>(), 720, "{written:?}");
        let mut profile = JobProfile { job: "b".into(), ..JobProfile::default() };
        profile.processes = vec![process(2)];
        host.spans.complete(&mut profile);
        assert_eq!(profile.disturbances, [], "the one that disturbs");
        assert_eq!(profile.processes[0].timeline.between((0, u64::MAX)), [0, 480 << 20]);
    }

    #[test]
    fn processes_beyond_the_most_have_no_line_and_those_of_forgotten_jobs_go() {
        let mut host = WatchedHost::new();
        let taken = |pid: u32| {
            let tags = Tags { job: label(b"old"), ..Tags::NONE };
            let owner = Owner { pid, started: 0, tags, is_by_mount: false };
            let block = shm::activity::BlockIndex(1);
            Taken { block, word: 0, owner, began: 1, is_ended: false }
        };
        for pid in 0..PROCESSES_MAX as u32 + 10 {
            host.spans.add_block(&taken(pid), ([1, 0], 0), 5);
        }
        assert_eq!(host.spans.lines.len(), PROCESSES_MAX);
        host.spans.forget(|_| false);
        assert!(host.spans.lines.is_empty());
    }
}
