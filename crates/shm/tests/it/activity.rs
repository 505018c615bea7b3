//! The activity segment: what is counted is what is read, and blocks and records are reused only when
//! nobody counts there.

use shm::Segment;
use shm::activity::blocks::label;
use shm::activity::pace::{HOLD_NANOS_MAX, NEW_HOLD_NANOS, PACE_NANOS_MAX};
use shm::activity::records::{EXACT_COUNT, RECORD_COUNT, TransferCounter};
use shm::activity::{
    ACTIVITY_BYTES, ActivitySegment, BLOCK_COUNT, Lane, OpClass, OpenWords, Owner, RecordSample,
    Tags, Taken, Transfer,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use wire::{Errno, Inode};

fn segment() -> ActivitySegment {
    let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
    ActivitySegment::new(segment).expect("a segment")
}

fn owner(pid: u32, job: &[u8]) -> Owner {
    let tags = Tags {
        job: label(job),
        program: label(b"app"),
        tag: label(b"first half"),
        rank: Some(3),
        uid: 9,
        gid: 2,
    };
    Owner { pid, started: 70, tags, is_by_mount: false }
}

fn lane(of: &ActivitySegment, pid: u32) -> Lane {
    Lane { block: of.take(&owner(pid, b"job"), pid).expect("a block"), is_shared: false }
}

fn all(of: &ActivitySegment) -> Vec<Taken> {
    let mut all = Vec::new();
    of.each_taken(&mut |taken| {
        if taken.block != Lane::NOBODY.block {
            all.push(taken);
        }
    });
    all
}

fn records(of: &ActivitySegment, lane: Lane) -> Vec<RecordSample> {
    let mut all = Vec::new();
    of.each_record(lane.block, &mut |record| all.push(record));
    all
}

/// An open file.
struct Open {
    place: AtomicU32,
    inode: Inode,
    parent: AtomicU64,
}

impl Open {
    fn of(inode: u64) -> Open {
        Open { place: AtomicU32::new(0), inode: Inode(inode), parent: AtomicU64::new(4) }
    }

    fn begin<'a>(&self, of: &'a ActivitySegment, lane: Lane, way: Transfer) -> TransferCounter<'a> {
        let Open { place, inode, parent } = self;
        let words = OpenWords { place, inode: *inode, parent };
        of.begin_transfer(lane, words, way).expect("counters")
    }
}

#[test]
fn a_block_has_the_tags_of_its_process_until_it_is_freed() {
    let of = segment();
    let first = lane(&of, 10);
    let [taken] = all(&of)[..] else { panic!("one block") };
    assert_eq!((taken.owner, taken.is_ended), (owner(10, b"job"), false));
    assert!(taken.began > 0);
    of.count_call(first, OpClass::Open);
    let mounts = Owner { is_by_mount: true, ..owner(10, b"job") };
    of.take(&mounts, 10).expect("a block");
    of.end_blocks_of(10);
    let ended: Vec<bool> = all(&of).iter().map(|taken| taken.is_ended).collect();
    assert_eq!(ended, [true, false], "not the one that the mount keeps");
    assert!(!of.free(&taken), "its word has changed");
    assert!(of.free(&all(&of)[0]));
    assert_eq!(all(&of).len(), 1);
    let again = lane(&of, 10);
    assert_eq!(of.calls(again.block)[0].number, 0, "zeros");
}

#[test]
fn blocks_run_out_and_come_back() {
    let of = segment();
    let count = (0..2 * BLOCK_COUNT as u32).map_while(|pid| of.take(&owner(pid, b""), pid)).count();
    assert_eq!(count, BLOCK_COUNT - 1, "all but that of nobody");
    assert!(all(&of).iter().all(|taken| of.free(taken)));
    assert_eq!(of.take(&owner(1, b""), 1).map(|block| block.0), Some(2));
}

#[test]
fn calls_are_counted_by_class_with_their_failures() {
    let of = segment();
    let own = lane(&of, 10);
    for lane in [own, Lane::NOBODY] {
        for class in OpClass::ALL {
            of.count_call(lane, class);
            of.count_failure(lane, class, Errno::EACCES);
            of.count_failure(lane, class, Errno::ENOENT);
            of.count_time(lane, class, 5);
        }
        for (class, call) in OpClass::ALL.into_iter().zip(of.calls(lane.block)) {
            let is_transfer = matches!(class, OpClass::Read | OpClass::Write);
            let number = if is_transfer { 1 } else { 3 };
            assert_eq!((call.number, call.failures, call.absent), (number, 2, 1), "{class:?}");
            assert!(call.nanos >= 5);
        }
    }
    let timed = (0..640)
        .filter(|_| {
            let is_timed = of.is_timed(own);
            of.count_call(own, OpClass::Stat);
            is_timed
        })
        .count();
    assert!((9..=11).contains(&timed), "one in 64: {timed} of 640");
}

/// Whatever the period of a program's loop, each of its calls and transfers is timed as often as others.
#[test]
fn each_call_of_a_loop_is_timed() {
    let of = segment();
    for period in [2, 3, 4, 8, 10, 16, 32, 64] {
        let own = lane(&of, 100 + period as u32);
        let file = Open::of(100 + period);
        let mut timed = vec![[0; 2]; period as usize];
        for round in 0..640 {
            for place in &mut timed {
                place[0] += u32::from(of.is_timed(own));
                of.count_call(own, OpClass::Stat);
                let transfer = file.begin(&of, own, Transfer::Write);
                place[1] += u32::from(transfer.is_timed(file.inode, 1));
                transfer.count(round, 1);
            }
        }
        let right = |of: &[u32; 2]| of.iter().all(|times| (8..=12).contains(times));
        assert!(timed.iter().all(right), "each of {period} calls, 10 of 640 times: {timed:?}");
    }
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 20) % most
    }
}

/// Transfers as they are counted one by one.
#[derive(Default)]
struct Model {
    number: u64,
    bytes: u64,
    consecutive: u32,
    forward: u32,
    misaligned: u32,
    bins: [u32; 10],
    last: Option<(u64, u64)>,
}

impl Model {
    fn count(&mut self, offset: u64, bytes: u64) {
        self.number += 1;
        self.bytes += bytes;
        self.misaligned += u32::from(!offset.is_multiple_of(4096));
        let most =
            [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30];
        self.bins[most.iter().filter(|&&most| bytes >= most).count()] += 1;
        if let Some((start, length)) = self.last {
            self.consecutive += u32::from(offset == start + length);
            self.forward += u32::from(offset > start + length);
        }
        self.last = Some((offset, bytes));
    }
}

#[test]
fn the_first_transfers_of_a_file_are_classified_exactly() {
    let mut random = Numbers(1);
    for _ in 0..50 {
        let of = segment();
        let own = lane(&of, 10);
        let files: Vec<Open> = (1..5).map(Open::of).collect();
        let mut models: BTreeMap<u64, Model> = BTreeMap::new();
        for _ in 0..EXACT_COUNT {
            let file = &files[random.below(4) as usize];
            let model = models.entry(file.inode.0).or_default();
            let bytes = 1 << random.below(31);
            let offset = match (random.below(3), model.last) {
                (0, Some((start, length))) => start + length,
                (1, Some((start, length))) => start + length + random.below(100_000),
                _ => random.below(1 << 40),
            };
            model.count(offset, bytes);
            file.begin(&of, own, Transfer::Write).count(offset, bytes);
        }
        let records = records(&of, own);
        assert_eq!(records.len(), 1 + models.len(), "one for each, and that of no file");
        for record in &records[1..] {
            let (model, writes) = (&models[&record.inode.0], record.writes);
            assert_eq!((writes.number, writes.bytes), (model.number, model.bytes));
            assert_eq!((writes.consecutive, writes.forward), (model.consecutive, model.forward));
            assert_eq!((writes.misaligned, writes.bins), (model.misaligned, model.bins));
            assert_eq!((record.reads.number, record.parent), (0, Inode(4)));
        }
    }
}

#[test]
fn strides_and_bounds_are_found() {
    let of = segment();
    let own = lane(&of, 10);
    let file = Open::of(5);
    for number in 0..20 {
        file.begin(&of, own, Transfer::Read).count(1000 + number * 5000, 10);
    }
    let reads = records(&of, own)[1].reads;
    assert_eq!((reads.strided, reads.stride, reads.forward), (18, 5000, 19));
    assert_eq!((reads.lowest, reads.highest), (1000, 1000 + 19 * 5000 + 10));
}

#[test]
fn later_transfers_are_sampled_and_their_sum_stays_true() {
    let of = segment();
    let own = lane(&of, 10);
    let file = Open::of(5);
    let count = 100_000;
    let mut end = 0;
    for number in 0..count {
        // Every fourth jumps: a sample with a period of four would find all or none of them.
        let jump = if number % 4 == 0 { 1 << 20 } else { 0 };
        file.begin(&of, own, Transfer::Read).count(end + jump, 4096);
        end += jump + 4096;
    }
    let reads = records(&of, own)[1].reads;
    assert_eq!((reads.number, reads.bytes), (count, count * 4096));
    let share = |number: u32| f64::from(number) / count as f64;
    assert!((share(reads.consecutive) - 0.75).abs() < 0.03, "{reads:?}");
    assert!((share(reads.forward) - 0.25).abs() < 0.03, "{reads:?}");
    assert!((share(reads.bins[2]) - 1.0).abs() < 0.001, "{reads:?}");
}

#[test]
fn opens_that_move_bytes_are_counted_once_each() {
    let of = segment();
    let own = lane(&of, 10);
    for _ in 0..5 {
        let file = Open::of(5);
        for number in 0..3 {
            file.begin(&of, own, Transfer::Read).count(number * 100, 100);
        }
    }
    let record = records(&of, own)[1];
    assert_eq!((record.opens, record.reads.number), (5, 15));
}

#[test]
fn a_read_that_finds_the_end_has_no_size() {
    let of = segment();
    let own = lane(&of, 10);
    let file = Open::of(5);
    file.begin(&of, own, Transfer::Read).count(0, 2_000_001);
    file.begin(&of, own, Transfer::Read).count(2_000_001, 0);
    let reads = records(&of, own)[1].reads;
    assert_eq!((reads.number, reads.consecutive, reads.misaligned), (2, 1, 0));
    assert_eq!(reads.bins.iter().sum::<u32>(), 1);
}

#[test]
fn files_beyond_the_records_are_counted_together() {
    let of = segment();
    let own = lane(&of, 10);
    let files: Vec<Open> = (1..=40).map(Open::of).collect();
    for _ in 0..3 {
        for file in &files {
            file.begin(&of, own, Transfer::Write).count(0, 7);
        }
    }
    let found = records(&of, own);
    assert_eq!(found.len(), RECORD_COUNT);
    let own_records = RECORD_COUNT as u64 - 1;
    assert!(found[1..].iter().all(|record| record.writes.number == 3));
    assert_eq!(found[0].writes.number, 3 * (40 - own_records));
    assert_eq!(of.merged(own.block), 40 - own_records, "each open file once");
    // Another process that uses the same open file has a record of its own.
    let other = lane(&of, 11);
    files[0].begin(&of, other, Transfer::Write).count(0, 9);
    files[0].begin(&of, own, Transfer::Write).count(0, 7);
    assert_eq!(records(&of, other)[1].writes.bytes, 9);
    let closed = found[1];
    of.close_record(own.block, &closed);
    assert!(records(&of, own)[1].is_closed);
    of.free_record(own.block, &closed);
    assert_eq!(records(&of, own).len(), RECORD_COUNT - 1);
    // A file uses the record if it is one of those in which the file is searched.
    let new = (99..999).find_map(|number| {
        Open::of(number).begin(&of, own, Transfer::Write).count(0, 1);
        records(&of, own).into_iter().find(|record| record.inode == Inode(number))
    });
    assert_eq!(new.map(|record| record.writes.number), Some(1), "zeros before");
}

#[test]
fn threads_that_share_a_block_lose_nothing() {
    let of = segment();
    let block = lane(&of, 10).block;
    let (shared, file) = (Lane { block, is_shared: true }, Open::of(5));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (of, file) = (&of, &file);
            scope.spawn(move || {
                for number in 0..20_000 {
                    of.count_call(shared, OpClass::Stat);
                    file.begin(of, shared, Transfer::Read).count(number * 8 + thread, 8);
                }
            });
        }
    });
    assert_eq!(of.calls(block)[OpClass::Stat as usize].number, 80_000);
    let reads = records(&of, shared)[1].reads;
    assert_eq!((reads.number, reads.bytes), (80_000, 640_000));
    let binned: u32 = reads.bins.iter().sum();
    assert!((79_980..=80_000).contains(&binned), "{reads:?}");
}

#[test]
fn a_block_keeps_its_pace_until_it_ends() {
    const SECOND: u64 = 1_000_000_000;
    let of = segment();
    let lane = lane(&of, 7);
    let held = |way, now| of.held_nanos(lane, way, now);
    of.note_begun(lane, Transfer::Write, 1 << 30, 5);
    assert_eq!(held(Transfer::Write, 5), 0, "no pace");
    // 10 MiB per second.
    of.set_pace(lane.block, SECOND / 10);
    of.note_begun(lane, Transfer::Write, 2 << 20, SECOND);
    of.note_begun(lane, Transfer::Write, 1 << 19, SECOND);
    assert_eq!(held(Transfer::Write, SECOND), SECOND / 4);
    assert_eq!(held(Transfer::Read, SECOND), 0);
    of.hold(lane.block, Transfer::Write, SECOND, 7);
    assert_eq!(held(Transfer::Write, SECOND), SECOND / 4, "a hold shortens nothing");
    of.note_begun(lane, Transfer::Read, 1 << 40, SECOND);
    assert_eq!(held(Transfer::Read, SECOND), PACE_NANOS_MAX);
    of.hold(lane.block, Transfer::Read, 2 * SECOND, u64::MAX);
    assert_eq!(held(Transfer::Read, 2 * SECOND), HOLD_NANOS_MAX);
    of.hold(lane.block, Transfer::Read, 2 * SECOND, 0);
    assert_eq!(held(Transfer::Read, 2 * SECOND), 0);
    of.set_free(lane.block);
    assert_eq!(held(Transfer::Write, 2 * SECOND), 0);
    of.hold_new(true);
    let new = Lane { block: of.take(&owner(8, b"job"), 8).expect("a block"), is_shared: false };
    assert!(of.held_nanos(new, Transfer::Read, 0) >= NEW_HOLD_NANOS);
    of.set_free(new.block);
    assert_eq!(of.held_nanos(new, Transfer::Read, 0), 0);
    // Nobody's block, and one that was freed.
    of.set_pace(Lane::NOBODY.block, SECOND);
    of.hold(Lane::NOBODY.block, Transfer::Read, 0, SECOND);
    assert_eq!(of.held_nanos(Lane::NOBODY, Transfer::Read, 0), 0);
    of.hold(lane.block, Transfer::Read, 0, SECOND);
    assert!(of.free(&all(&of)[0]));
    assert_eq!(held(Transfer::Read, 0), 0);
}
