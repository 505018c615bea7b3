//! Bytes that processes of this host moved since the last report, by file, for the services: they know
//! the targets of files of pools (`metadata::pools::rates`). Counted only while there are pools.
//!
//! Only transfers of `LARGE_BYTES` and more on average count: the rate of small ones says nothing of a
//! target.

use crate::shared::network::Network;
use metadata::HostMessage;
use placement::ServiceName;
use shm::activity::{ActivitySegment, Taken};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use wire::Inode;

/// Transfers of this length are all timed (`shm::activity::records`).
const LARGE_BYTES: u64 = 64 << 10;
/// Files in one report to a service: those with the most bytes.
const REPORTED_MAX: usize = 512;
/// A report covers at least this time.
const PAUSE: Duration = Duration::from_millis(900);

/// A file with its bytes, and nanoseconds in transfers.
type Moved = (Inode, u64, u64);

/// Counters of a record.
#[derive(Clone, Copy)]
struct Counted {
    word: u64,
    inode: Inode,
    number: u64,
    bytes: u64,
    nanos: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct MovedFiles {
    /// Since when transfers are counted; `None`: they are not.
    since: Option<Instant>,
    /// Counters at the last pass, by block and record.
    seen: HashMap<(u32, u32), Counted>,
    /// Bytes, and nanoseconds in transfers, since then.
    files: BTreeMap<Inode, (u64, u64)>,
}

impl MovedFiles {
    /// Looks at the blocks of all processes, those included that have just ended.
    pub(super) fn look(&mut self, segment: &ActivitySegment, blocks: &[Taken], is_requested: bool) {
        if !is_requested {
            *self = MovedFiles::default();
            return;
        }
        let is_first = self.since.is_none();
        self.since.get_or_insert_with(Instant::now);
        let mut seen = HashMap::new();
        for taken in blocks.iter().filter(|taken| taken.began != 0) {
            segment.each_record(taken.block, &mut |record| {
                // Record 0 belongs to no file.
                if record.slot == 0 {
                    return;
                }
                let (reads, writes) = (&record.reads, &record.writes);
                let now = Counted {
                    word: taken.word,
                    inode: record.inode,
                    number: reads.number.wrapping_add(writes.number),
                    bytes: reads.bytes.wrapping_add(writes.bytes),
                    nanos: reads.nanos.wrapping_add(writes.nanos),
                };
                let key = (taken.block.0, record.slot);
                if !is_first {
                    self.count(key, &now);
                }
                seen.insert(key, now);
            });
        }
        self.seen = seen;
    }

    fn count(&mut self, key: (u32, u32), now: &Counted) {
        let is_same = |before: &&Counted| {
            (before.word, before.inode) == (now.word, now.inode) && before.number <= now.number
        };
        let before = self.seen.get(&key).filter(is_same);
        let (number, bytes, nanos) = before.map_or((0, 0, 0), |it| (it.number, it.bytes, it.nanos));
        let number = now.number.wrapping_sub(number);
        let bytes = now.bytes.wrapping_sub(bytes);
        if number == 0 || bytes / number < LARGE_BYTES {
            return;
        }
        let file = self.files.entry(now.inode).or_default();
        file.0 = file.0.saturating_add(bytes);
        file.1 = file.1.saturating_add(now.nanos.wrapping_sub(nanos));
    }

    /// Takes what has moved since the last report. Files that were `redirected` are left out: it says
    /// nothing of their targets how fast others are.
    fn take_files(&mut self, redirected: &mut BTreeSet<Inode>) -> BTreeMap<Inode, (u64, u64)> {
        let redirected = std::mem::take(redirected);
        let mut files = std::mem::take(&mut self.files);
        files.retain(|inode, _| !redirected.contains(inode));
        files
    }

    /// Messages to services, if a report is due: receivers, and bytes. `number` is larger each time.
    pub(super) fn reports(
        &mut self,
        net: &Network,
        number: u64,
        redirected: &mut BTreeSet<Inode>,
    ) -> Vec<(ServiceName, Vec<u8>)> {
        let Some(since) = self.since.filter(|since| since.elapsed() >= PAUSE) else {
            return Vec::new();
        };
        self.since = Some(Instant::now());
        let millis = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
        let mut services: BTreeMap<ServiceName, Vec<Moved>> = BTreeMap::new();
        for (inode, (bytes, nanos)) in self.take_files(redirected) {
            let service = net.router.map.service(inode.shard(), net.router.workers);
            services.entry(service).or_default().push((inode, bytes, nanos));
        }
        let host = (net.host_number, net.host_count);
        let report = |(to, mut all): (ServiceName, Vec<Moved>)| {
            all.sort_unstable_by_key(|(inode, bytes, _)| (std::cmp::Reverse(*bytes), *inode));
            all.truncate(REPORTED_MAX);
            (to, HostMessage::transfers(host, number, millis, &all))
        };
        services.into_iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::activity::blocks::label;
    use shm::activity::{ACTIVITY_BYTES, Lane, OpenWords, Owner, Tags, Transfer};
    use std::sync::atomic::{AtomicU32, AtomicU64};

    struct Process {
        segment: ActivitySegment,
        lane: Lane,
    }

    impl Process {
        fn new() -> Process {
            let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
            let segment = ActivitySegment::new(segment).expect("a segment");
            let tags = Tags { job: label(b"a"), program: label(b"b"), ..Tags::NONE };
            let owner = Owner { pid: std::process::id(), started: 0, tags, is_by_mount: false };
            let block = segment.take(&owner, 0).expect("a block");
            Process { segment, lane: Lane { block, is_shared: false } }
        }

        fn write(&self, inode: u64, bytes: u64) {
            let (place, parent) = (AtomicU32::new(0), AtomicU64::new(1));
            let open = OpenWords { place: &place, inode: Inode(inode), parent: &parent };
            let counter =
                self.segment.begin_transfer(self.lane, open, Transfer::Write).expect("space");
            counter.count(0, bytes);
        }

        fn look(&self, moved: &mut MovedFiles, is_requested: bool) -> Vec<(u64, u64)> {
            let mut all = Vec::new();
            self.segment.each_taken(&mut |taken| {
                if taken.block == self.lane.block {
                    all.push(taken);
                }
            });
            moved.look(&self.segment, &all, is_requested);
            moved.files.iter().map(|(inode, (bytes, _))| (inode.0, *bytes)).collect()
        }
    }

    #[test]
    fn large_transfers_count_from_the_first_look_on() {
        let process = Process::new();
        let mut moved = MovedFiles::default();
        process.write(7, 1 << 20);
        assert_eq!(process.look(&mut moved, false), []);
        assert_eq!(process.look(&mut moved, true), [], "it was before");
        process.write(7, 3 << 20);
        // A new record counts from its begin, unless its transfers are small.
        process.write(8, 1 << 20);
        process.write(9, 100);
        assert_eq!(process.look(&mut moved, true), [(7, 3 << 20), (8, 1 << 20)]);
        process.write(8, 1 << 20);
        assert_eq!(process.look(&mut moved, true), [(7, 3 << 20), (8, 2 << 20)]);
        // It was read where it had migrated to.
        let mut redirected = BTreeSet::from([Inode(8)]);
        let reported = moved.take_files(&mut redirected);
        assert_eq!(reported.into_keys().collect::<Vec<_>>(), [Inode(7)]);
        process.write(8, 1 << 20);
        assert_eq!(process.look(&mut moved, true), [(8, 1 << 20)]);
        assert_eq!(moved.take_files(&mut redirected).len(), 1, "that was before");
        // Without a request nothing is kept.
        process.write(8, 1 << 20);
        assert_eq!(process.look(&mut moved, false), []);
        assert!(moved.seen.is_empty());
    }
}
