//! Measures what the shared-memory protocols cost, beside what bounds them: memcpy and one
//! hand-over between processors. `cargo run --release -p shm --example limits`.
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

use rustix::fd::AsFd;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers, PageSums,
    STATE_BYTES, Target, page_groups_bytes, page_sums_bytes,
};
use shm::index::{Index, Shape};
use shm::session::{DOORBELLS_BYTES, Doorbells, Interruptible, SESSION_BYTES, Session, Sleep};
use shm::wait::{Backoff, Next};
use shm::{Access, Segment};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use wire::attributes::Attributes;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::reply::Extent;
use wire::{Errno, Inode};

fn memory(length: usize) -> Segment {
    Segment::nameless(c"limits", length).expect("nameless memory").0
}

/// Median nanoseconds of one of `count` operations, over five rounds.
fn median(count: u64, mut operation: impl FnMut(u64)) -> f64 {
    let mut rounds: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(&mut operation);
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[2]
}

fn requests() {
    let bells = Doorbells::new(memory(DOORBELLS_BYTES)).expect("long enough");
    let session = Session::new(memory(SESSION_BYTES)).expect("long enough");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = [0; SLOT_BYTES];
            let mut backoff = Backoff::new();
            while !stop.load(Ordering::Relaxed) {
                let mut pending = 0;
                bells.take(0, |_| pending |= session.take_pending(0));
                if pending == 0 {
                    if backoff.pause() == Next::Sleep {
                        bells.sleep(0, 10_000, Sleep::Deep, || false);
                    }
                    continue;
                }
                backoff.reset();
                for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
                    if let Some(length) = session.request(slot, &mut message) {
                        session.reply(slot, &message[..length]);
                    }
                }
            }
        });
        let nanos = median(200_000, |_| {
            let mut slot = session.claim(1_000_000).expect("a slot");
            slot.write(|_| Ok::<usize, Errno>(64)).expect("fits");
            slot.submit(0, &bells, 0).expect("worker 0");
            slot.wait(1_000_000, Interruptible::No, || true).expect("answered");
        });
        println!("request of 64 bytes through a slot, worker awake: {nanos:.0} ns");
        stop.store(true, Ordering::Relaxed);
    });
}

fn index() {
    let shape = Shape::DEFAULT;
    let (segment, fd) = Segment::nameless(c"limits", shape.bytes()).expect("nameless memory");
    let writer = Index::create(segment, shape).expect("long enough");
    let count = 50_000u64;
    for inode in 1..=count {
        writer.put_entry(u128::from(inode) * 0x9e37_79b9_7f4a_7c15, Inode(inode), 1);
        writer.put_inode(&Attributes { inode: Inode(inode), ..Attributes::default() });
    }
    let reader = Segment::map(fd.as_fd(), shape.bytes(), Access::ReadOnly).expect("mapped");
    let reader = Index::open(reader).expect("same shape");
    let nanos = median(count, |round| {
        let inode = wire::hash::mix(round, 1) % count + 1;
        black_box(reader.entry(u128::from(inode) * 0x9e37_79b9_7f4a_7c15));
        black_box(reader.inode(Inode(inode)));
    });
    println!("index: an entry and its inode, at random of {count}: {nanos:.0} ns");
    let nanos = median(count, |inode| {
        let attributes = Attributes { inode: Inode(inode + 1), ..Attributes::default() };
        writer.put_inode(&attributes);
    });
    println!("index: storing an inode: {nanos:.0} ns");
}

fn copies() {
    let total = 256usize << 20;
    let stripe_log2 = 22u8;
    let count = total >> stripe_log2;
    let arena = Arena::new(memory(total));
    let table = ExtentTable::new(memory(HEADER_BYTES * count));
    let page_groups = memory(page_groups_bytes(total as u64) as usize);
    let states = ExtentStates::new(
        memory(STATE_BYTES * count),
        page_groups,
        PageSums::new(memory(page_sums_bytes(total as u64) as usize)),
    );
    let (_, ssd) = Segment::nameless(c"ssd", 4096).expect("nameless memory");
    let target = Target { arena: &arena, ssd: ssd.as_fd(), table: &table, states: &states };
    let hazards = HazardPointers::new(memory(HAZARDS_BYTES)).expect("long enough");
    hazards.note_session(0).expect("memory");
    let hazards = hazards.of_session(0, 1000);
    let extent = |number: usize| Extent {
        start: (number as u64) << stripe_log2,
        slot: number as u32,
        location: (number as u64) << stripe_log2,
        length_log2: stripe_log2,
        tier: Extent::MEMORY,
    };
    for number in 0..count {
        states.reset(&extent(number), 0).expect("a slot");
        table.publish(Inode(1), &extent(number)).expect("a slot");
    }
    let mut plain = vec![1u8; total];
    for block in [1usize << 20, 64 << 10, 8 << 10] {
        let mut buffer = vec![2u8; block];
        let each = (total / block) as u64;
        let per = (1usize << stripe_log2) / block;
        let at = |round: u64| {
            let round = round as usize;
            (round / per, ((round % per) * block) as u64)
        };
        let gibs = |nanos: f64| block as f64 / nanos * 1e9 / f64::from(1u32 << 30);
        let write = median(each, |round| {
            let (number, within) = at(round);
            let done = target.write(&hazards, Inode(1), &extent(number), within, &buffer);
            assert_eq!(done, Ok(Ok(())));
        });
        let read = median(each, |round| {
            let (number, within) = at(round);
            let done = target.read(&hazards, Inode(1), &extent(number), within, &mut buffer);
            assert_eq!(done, Ok(Ok(())));
        });
        let copy = median(each, |round| {
            let start = round as usize * block;
            plain[start..start + block].copy_from_slice(black_box(&buffer));
        });
        println!(
            "{:4} KiB: write {:.1} GiB/s, read {:.1} GiB/s; memcpy into private memory {:.1} GiB/s",
            block >> 10,
            gibs(write),
            gibs(read),
            gibs(copy)
        );
    }
    black_box(&plain);
}

fn main() {
    requests();
    index();
    copies();
}
