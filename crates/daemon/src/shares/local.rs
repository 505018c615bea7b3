//! Bytes that processes of this host move without a request: they copy them in shared memory, and count
//! them there (`shm::activity`). While a rule limits bytes, the home daemon looks at these counters, has
//! the accounts pay, and tells the threads their pace (`shm::activity::pace`).
//!
//! The pace alone would do if all threads of a job moved the same; the looks correct it.
//!
//! Here: which block counts for which account, and what it counted since the last look. Payment is in
//! `account_line`.

use crate::shares::accounts::JobAccount;
use crate::shares::device::AccountKey;
use qos::rules::Operation;
use shm::activity::pace::NEW_HOLD_NANOS;
use shm::activity::{ActivitySegment, BlockIndex, Lane, Taken, Transfer};
use shm::wait::now_nanos;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Time between looks while bytes move: what a thread moves before it has a pace.
const LOOK_NANOS: u64 = 5_000_000;
/// Time between looks while none do: new processes wait for the first look before large transfers.
const IDLE_LOOK_NANOS: u64 = NEW_HOLD_NANOS / 4;
/// A look takes at most one part in this many of the time.
const LOOK_PARTS: u64 = 20;
/// A thread that moved nothing for so long does not share in the rate.
const ACTIVE_NANOS: u64 = 1_000_000_000;
const WAYS: [(Transfer, Operation); 2] =
    [(Transfer::Read, Operation::Read), (Transfer::Write, Operation::Write)];

/// Counters of a record: the file, and the bytes read and written.
type RecordBytes = (u64, [u64; 2]);

/// A block of which some bytes are limited.
struct WatchedBlock {
    word: u64,
    /// Of reads and of writes; `None`: no limit.
    accounts: [Option<Arc<JobAccount>>; 2],
    records: HashMap<u32, RecordBytes>,
    /// `None`: it did not yet.
    moved_at: [Option<u64>; 2],
}

/// Bytes that an account's processes moved, and the blocks in which they counted.
pub(super) struct CountedBytes {
    pub(super) account: Arc<JobAccount>,
    pub(super) bytes: u64,
    blocks: Vec<(BlockIndex, Transfer)>,
    /// Those that moved bytes lately.
    active: u64,
}

/// Accounts of which bytes are counted together: those of the same rules.
type CountedKey = (AccountKey, Option<AccountKey>);

/// See the module.
#[derive(Default)]
pub(super) struct LocalBytes {
    generation: u32,
    blocks: BTreeMap<u32, WatchedBlock>,
    looked_at: u64,
    /// When to look next.
    pub(super) look_at: u64,
}

impl LocalBytes {
    /// Looks at the counters of all processes. `find`: the account of an operation of a process, if its
    /// bytes are limited.
    pub(super) fn look(
        &mut self,
        now: u64,
        segment: &ActivitySegment,
        generation: u32,
        find: &dyn Fn(&Taken, Operation) -> Option<Arc<JobAccount>>,
    ) -> Vec<CountedBytes> {
        let begun = now_nanos();
        segment.hold_new(true);
        if self.generation != generation {
            // Their limits may have ended.
            self.blocks.values_mut().for_each(|block| block.accounts = [None, None]);
        }
        let mut taken = Vec::new();
        segment.each_taken(&mut |one| {
            if one.block != Lane::NOBODY.block && one.began != 0 && !one.is_ended {
                taken.push(one);
            }
        });
        let mut before = std::mem::take(&mut self.blocks);
        let mut all: BTreeMap<CountedKey, CountedBytes> = BTreeMap::new();
        for one in &taken {
            let known = before.remove(&one.block.0).filter(|known| known.word == one.word);
            let was_limited = known.is_some();
            let is_current = self.generation == generation && was_limited;
            let mut block = known.unwrap_or_else(|| WatchedBlock {
                word: one.word,
                accounts: [None, None],
                records: HashMap::new(),
                moved_at: [None; 2],
            });
            if !is_current {
                block.accounts = WAYS.map(|(_, operation)| find(one, operation));
                // It waits for this look; what its account owes holds it back again.
                segment.set_free(one.block);
            }
            if block.accounts.iter().all(Option::is_none) {
                // Kept, so that its account is not looked for each time.
                self.blocks.insert(one.block.0, block);
                continue;
            }
            // Of a process that is older than the limit, bytes count from now on.
            let counts_all = one.began >= self.looked_at && self.looked_at > 0 && !was_limited;
            block.count(now, one.block, segment, counts_all, &mut all);
            self.blocks.insert(one.block.0, block);
        }
        (self.generation, self.looked_at) = (generation, now);
        let moves = all.values().any(|one| one.active > 0);
        let pause = if moves { LOOK_NANOS } else { IDLE_LOOK_NANOS };
        self.look_at = now + pause.max(now_nanos().saturating_sub(begun) * LOOK_PARTS);
        all.into_values().collect()
    }

    /// A daemon starts: an earlier one may have left paces.
    pub(super) fn begin(segment: &ActivitySegment) {
        segment.hold_new(false);
        segment.each_taken(&mut |taken| segment.set_free(taken.block));
    }

    /// No rule limits bytes any more.
    pub(super) fn end(&mut self, segment: &ActivitySegment) {
        segment.hold_new(false);
        for (&block, known) in &self.blocks {
            if segment.word_of(BlockIndex(block)) == known.word {
                segment.set_free(BlockIndex(block));
            }
        }
        *self = LocalBytes::default();
    }
}

impl WatchedBlock {
    /// Adds what its records counted since the last look.
    fn count(
        &mut self,
        now: u64,
        block: BlockIndex,
        segment: &ActivitySegment,
        counts_all: bool,
        all: &mut BTreeMap<CountedKey, CountedBytes>,
    ) {
        let mut moved = [0u64; 2];
        let mut seen = HashMap::with_capacity(self.records.len());
        let is_first = self.records.is_empty() && !counts_all;
        segment.each_record(block, &mut |record| {
            let bytes = [record.reads.bytes, record.writes.bytes];
            let before =
                self.records.get(&record.slot).filter(|(inode, _)| *inode == record.inode.0);
            let before = match before {
                Some((_, before)) => *before,
                None if is_first => bytes,
                None => [0; 2],
            };
            for ((moved, bytes), before) in moved.iter_mut().zip(bytes).zip(before) {
                // A record that was freed and taken again begins at zero.
                *moved += bytes.checked_sub(before).unwrap_or(bytes);
            }
            seen.insert(record.slot, (record.inode.0, bytes));
        });
        self.records = seen;
        for (((way, _), account), (moved, moved_at)) in
            WAYS.iter().zip(&self.accounts).zip(moved.into_iter().zip(&mut self.moved_at))
        {
            let Some(account) = account else { continue };
            if moved > 0 {
                *moved_at = Some(now);
            }
            let one = all.entry(account.keys()).or_insert_with(|| CountedBytes {
                account: Arc::clone(account),
                bytes: 0,
                blocks: Vec::new(),
                active: 0,
            });
            one.bytes += moved;
            one.blocks.push((block, *way));
            let is_active = moved_at.is_some_and(|at| now < at.saturating_add(ACTIVE_NANOS));
            one.active += u64::from(is_active);
        }
    }
}

/// Bytes that processes counted for an account, and the threads that moved some lately.
pub(super) struct CountedSum {
    pub(super) facts: Arc<JobAccount>,
    pub(super) bytes: u64,
    pub(super) active: u64,
}

/// The sums of each account, those of users' own included.
pub(super) fn sums_of(counted: &[CountedBytes]) -> BTreeMap<AccountKey, CountedSum> {
    let mut sums: BTreeMap<AccountKey, CountedSum> = BTreeMap::new();
    for one in counted {
        for facts in [Some(&one.account), one.account.own.as_ref()].into_iter().flatten() {
            let none = || CountedSum { facts: Arc::clone(facts), bytes: 0, active: 0 };
            let sum = sums.entry((facts.user, facts.number)).or_insert_with(none);
            sum.bytes = sum.bytes.saturating_add(one.bytes);
            sum.active = sum.active.saturating_add(one.active);
        }
    }
    sums
}

/// The time in which each of so many threads may move a MiB, if all together move so much; 0: any.
pub(super) fn nanos_of_mib(bytes_per_second: u64, threads: u64) -> u64 {
    let mib = 1u128 << 20;
    let each = mib * 1_000_000_000 * u128::from(threads.max(1));
    let each = each.checked_div(u128::from(bytes_per_second)).unwrap_or(0);
    u64::try_from(each).unwrap_or(u64::MAX)
}

impl CountedBytes {
    /// The same by the times and holds of accounts: the slower one of both.
    pub(super) fn pace_by(
        &self,
        segment: &ActivitySegment,
        paces: &BTreeMap<AccountKey, (u64, u64)>,
    ) {
        let (key, own) = self.account.keys();
        let both = [Some(key), own].into_iter().flatten().filter_map(|key| paces.get(&key));
        let slower = |slow: (u64, u64), pace: &(u64, u64)| (slow.0.max(pace.0), slow.1.max(pace.1));
        let (mib_nanos, held_nanos) = both.fold((0, 0), slower);
        self.pace(segment, mib_nanos, held_nanos);
    }

    /// Tells the threads of the account in which time they may move a MiB, and that they may move none
    /// for this time.
    fn pace(&self, segment: &ActivitySegment, mib_nanos: u64, held_nanos: u64) {
        let now = now_nanos();
        for &(block, way) in &self.blocks {
            segment.set_pace(block, mib_nanos);
            if held_nanos > 0 {
                segment.hold(block, way, now, held_nanos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::activity::blocks::label;
    use shm::activity::{ACTIVITY_BYTES, OpenWords, Owner, Tags};
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use wire::Inode;

    const MIB: u64 = 1 << 20;

    struct Processes {
        segment: ActivitySegment,
        local: LocalBytes,
    }

    impl Processes {
        fn new() -> Processes {
            let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
            let segment = ActivitySegment::new(segment).expect("a segment");
            Processes { segment, local: LocalBytes::default() }
        }

        fn process(&self, job: &[u8]) -> Lane {
            let tags = Tags { job: label(job), program: label(b"b"), ..Tags::NONE };
            let owner = Owner { pid: std::process::id(), started: 0, tags, is_by_mount: false };
            Lane { block: self.segment.take(&owner, 0).expect("a block"), is_shared: false }
        }

        fn moves(&self, lane: Lane, way: Transfer, bytes: u64) {
            let (place, parent) = (AtomicU32::new(0), AtomicU64::new(1));
            let open = OpenWords { place: &place, inode: Inode(7), parent: &parent };
            self.segment.begin_transfer(lane, open, way).expect("space").count(0, bytes);
        }

        /// Jobs whose names begin with `limited` are limited.
        fn look(&mut self, now: u64, generation: u32, limited: &[u8]) -> Vec<CountedBytes> {
            let find = |taken: &Taken, _: Operation| {
                let job = String::from_utf8_lossy(&taken.owner.tags.job);
                let job = job.trim_end_matches('\0').to_owned();
                let is_limited = job.as_bytes().starts_with(limited);
                let number = job.len() as u64;
                let account = JobAccount { number, ..JobAccount::under(1, job.as_bytes(), None) };
                is_limited.then(|| Arc::new(account))
            };
            self.local.look(now, &self.segment, generation, &find)
        }
    }

    fn bytes(counted: &[CountedBytes]) -> Vec<(String, u64, u64)> {
        counted.iter().map(|one| (one.account.job.clone(), one.bytes, one.active)).collect()
    }

    #[test]
    fn bytes_count_from_the_first_look_on_for_jobs_with_a_limit() {
        let mut world = Processes::new();
        let lanes = [world.process(b"ax"), world.process(b"ax"), world.process(b"b")];
        lanes.iter().for_each(|&lane| world.moves(lane, Transfer::Write, MIB));
        assert_eq!(bytes(&world.look(1, 1, b"a")), [("ax".to_owned(), 0, 0)], "they were before");
        lanes.iter().for_each(|&lane| world.moves(lane, Transfer::Read, 2 * MIB));
        assert_eq!(bytes(&world.look(2, 1, b"a")), [("ax".to_owned(), 4 * MIB, 2)]);
        // One of them rests, and no longer shares in the rate.
        world.moves(lanes[0], Transfer::Write, MIB);
        let later = 2 + ACTIVE_NANOS;
        assert_eq!(bytes(&world.look(later, 1, b"a")), [("ax".to_owned(), MIB, 1)]);
        // A process that begins after a look counts with all that it moved.
        let late = world.process(b"axy");
        world.moves(late, Transfer::Write, MIB);
        let found = bytes(&world.look(later + 1, 1, b"a"));
        assert_eq!(found[1], ("axy".to_owned(), MIB, 1));
    }

    #[test]
    fn a_pace_is_divided_and_ends_with_the_rule() {
        let mut world = Processes::new();
        let lanes = [world.process(b"a"), world.process(b"a")];
        world.look(1, 1, b"a");
        lanes.iter().for_each(|&lane| world.moves(lane, Transfer::Write, MIB));
        let counted = world.look(2, 1, b"a");
        counted[0].pace(&world.segment, nanos_of_mib(16 * MIB, counted[0].active), 0);
        let held = |world: &Processes, lane, way| {
            world.segment.note_begun(lane, way, MIB, 10);
            world.segment.held_nanos(lane, way, 10)
        };
        // Half of 16 MiB per second for each.
        assert_eq!(held(&world, lanes[0], Transfer::Write), 125_000_000);
        counted[0].pace(&world.segment, nanos_of_mib(16 * MIB, counted[0].active), 100);
        assert!(world.segment.held_nanos(lanes[1], Transfer::Read, now_nanos()) <= 100);
        world.look(3, 2, b"none");
        assert_eq!(held(&world, lanes[0], Transfer::Write), 0);
        world.look(4, 3, b"a")[0].pace(&world.segment, nanos_of_mib(16 * MIB, 2), 0);
        assert!(held(&world, lanes[1], Transfer::Write) > 0);
        world.local.end(&world.segment);
        assert_eq!(held(&world, lanes[1], Transfer::Write), 0);
    }
}
