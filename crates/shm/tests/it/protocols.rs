//! The shared-memory protocols between real threads: requests through slots, sleeping workers,
//! seqlocks, pages, open files. The death of a process is in `death.rs`.

use rustix::fd::AsFd;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers, PageSums,
    STATE_BYTES, Target, all_pages, page_groups_bytes, page_sums_bytes,
};
use shm::host::{HOST_BYTES, HostSegment, OfdIndex, VnodeIndex};
use shm::index::{Hit, Index, Shape};
use shm::segment::HUGE_PAGE;
use shm::session::{DOORBELLS_BYTES, Doorbells, Interruptible, SESSION_BYTES, Session, Sleep};
use shm::{Access, Segment};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use wire::attributes::{Attributes, mode};
use wire::limits::{ANSWER_SLOT_COUNT, REPLY_SLOT_COUNT, SLOT_BYTES, SLOT_COUNT};
use wire::reply::Extent;
use wire::{Errno, Inode};

fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
}

fn doorbells() -> Doorbells {
    Doorbells::new(memory(DOORBELLS_BYTES)).expect("long enough")
}

fn session() -> Session {
    Session::new(memory(SESSION_BYTES)).expect("long enough")
}

/// Answers every request with its bytes reversed until told to stop; sleeps when idle.
fn serve(bells: &Doorbells, session: &Session, stop: &AtomicBool) {
    let mut message = [0; SLOT_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let mut pending = 0;
        bells.take(0, |_| pending |= session.take_pending(0));
        if pending == 0 {
            bells.sleep(0, 1_000_000, Sleep::Deep, || false);
        }
        for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
            if let Some(length) = session.request(slot, &mut message) {
                message[..length].reverse();
                session.reply(slot, &message[..length]);
            }
        }
    }
}

#[test]
fn requests_of_many_threads_are_answered_each_to_its_own() {
    let (bells, session, stop) = (doorbells(), session(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&bells, &session, &stop));
        let clients: Vec<_> = (0..4u64)
            .map(|client| {
                let (bells, session) = (&bells, &session);
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let mut slot = session.claim(10_000_000).expect("a slot");
                        let word = (client << 32 | round).to_le_bytes();
                        slot.write(|to| {
                            to[..8].copy_from_slice(&word);
                            Ok::<usize, Errno>(8)
                        })
                        .expect("fits");
                        slot.submit(0, bells, 5).expect("worker 0");
                        slot.wait(10_000_000, Interruptible::No, || true).expect("answered");
                        let answer = slot.read(<[u8]>::to_vec).expect("a reply");
                        let mut expected = word;
                        expected.reverse();
                        assert_eq!(answer, expected);
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().expect("no panic");
        }
        stop.store(true, Ordering::Relaxed);
        bells.wake(0).expect("worker 0");
    });
}

/// True once the thread of this number waits in the kernel.
fn is_asleep(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
}

/// A ring for a worker that another thread watches for is that thread's; `wake` still wakes the
/// worker.
#[test]
fn rings_go_to_the_watcher_while_the_worker_sleeps() {
    let bells = doorbells();
    assert!(!bells.watch(0), "the worker is awake");
    let (thread, is_awake) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            thread.store(shm::wait::thread_id(), Ordering::SeqCst);
            bells.sleep(0, 60_000_000, Sleep::Deep, || false);
            is_awake.store(true, Ordering::SeqCst);
        });
        while thread.load(Ordering::SeqCst) == 0 || !is_asleep(thread.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        assert!(bells.watch(0));
        bells.ring(0, 9).expect("worker 0");
        assert!(bells.watch(0) && !is_awake.load(Ordering::SeqCst), "a ring woke the worker");
        assert!(!bells.unwatch(0), "a ring was left to nobody");
        assert!(bells.watch(0));
        let mut rung = Vec::new();
        assert!(bells.take(0, |session| rung.push(session)));
        assert_eq!(rung, [9]);
        assert!(!bells.take(0, |_| {}) && bells.watch(0));
        bells.wake(0).expect("worker 0");
    });
    assert!(!bells.watch(0) && is_awake.load(Ordering::SeqCst));
}

#[test]
fn a_request_nobody_answers_ends_in_time_and_its_slot_comes_back_with_the_answer() {
    let (bells, session) = (doorbells(), session());
    let mut slot = session.claim(1000).expect("a slot");
    let index = slot.index();
    slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
    slot.submit(0, &bells, 0).expect("worker 0");
    assert_eq!(slot.wait(1000, Interruptible::No, || true), Err(Errno::ETIMEDOUT));
    drop(slot);
    // The daemon still owns it: all others can be claimed, this one not.
    let others: Vec<_> = (1..SLOT_COUNT).map(|_| session.claim(1000).expect("a slot")).collect();
    assert_eq!(session.claim(1000).err(), Some(Errno::ETIMEDOUT));
    session.reply(index, b"late");
    assert_eq!(session.claim(1000).map(|slot| slot.index()), Ok(index));
    drop(others);
}

#[test]
fn a_reply_into_a_reply_slot_leaves_the_request_slot_to_others() {
    let (bells, session) = (doorbells(), session());
    let mut entries = Vec::new();
    for number in 0..2 * SLOT_COUNT {
        let mut entry = session.claim_reply_slot().expect("a row");
        let mut slot = session.claim(1000).expect("slots come back at once");
        slot.write(|_| Ok::<usize, Errno>(number + 1)).expect("fits");
        let index = slot.index();
        slot.submit_for(&mut entry, 0, &bells, 0).expect("worker 0");
        assert_eq!(session.take_pending(0), 1 << index);
        assert_eq!(session.request(index, &mut [0; SLOT_BYTES]), Some(number + 1));
        assert_eq!(session.reply_slot_of(index), Some(entry.index()));
        session.reply(index, &[]);
        entries.push(entry);
    }
    let mut slot = session.claim(1000).expect("a slot");
    slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
    assert_eq!(session.reply_slot_of(slot.index()), None, "it was another's");
    assert!(session.has_waiting());
    let before = session.answered().expect("a word");
    let last = entries.last_mut().expect("many");
    assert!(!last.is_answered());
    session.reply(last.index(), b"yes");
    assert_ne!(session.answered(), Ok(before), "a sleeper for all of them is woken");
    assert!(last.is_answered());
    assert_eq!(last.read(<[u8]>::to_vec), Ok(b"yes".to_vec()));
    // A waiter that gives up leaves the reply slot to the daemon until it answers.
    let given_up = entries.remove(0);
    let index = given_up.index();
    drop(given_up);
    assert_ne!(session.claim_reply_slot().expect("another").index(), index);
    session.reply(index, b"late");
    assert_eq!(session.claim_reply_slot().expect("the least").index(), index);
    // A reply that does not fit is no reply at all.
    let entry = &mut entries[0];
    session.reply(entry.index(), &[0; 64]);
    assert_eq!(entry.read(<[u8]>::len), Ok(0));
}

#[test]
fn reply_slots_are_bounded() {
    let session = session();
    let all: Vec<_> =
        (0..REPLY_SLOT_COUNT).map(|_| session.claim_reply_slot().expect("a row")).collect();
    assert_eq!(session.claim_reply_slot().err(), Some(Errno::ENOLCK));
    drop(all);
    assert!(session.claim_reply_slot().is_ok());
}

#[test]
fn a_daemon_that_is_gone_ends_the_wait() {
    let (bells, session) = (doorbells(), session());
    let mut slot = session.claim(1000).expect("a slot");
    slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
    slot.submit(0, &bells, 0).expect("worker 0");
    assert_eq!(slot.wait(60_000_000, Interruptible::No, || false), Err(Errno::EIO));
}

#[test]
fn garbage_in_a_session_ends_nothing_but_itself() {
    let (segment, fd) = Segment::nameless(c"test", SESSION_BYTES).expect("nameless memory");
    let session = Session::new(segment).expect("long enough");
    let evil = Segment::map(fd.as_fd(), SESSION_BYTES, Access::ReadWrite).expect("mapped");
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut message = [0; SLOT_BYTES];
    for _ in 0..2000 {
        for _ in 0..64 {
            state = wire::hash::mix(state, 3);
            let at = state as usize % (SESSION_BYTES / 8) * 8;
            evil.word64(at).expect("in range").store(state, Ordering::Relaxed);
        }
        for slot in 0..ANSWER_SLOT_COUNT {
            if let Some(length) = session.request(slot, &mut message) {
                assert!(length <= SLOT_BYTES);
            }
            if let Some(entry) = session.reply_slot_of(slot) {
                session.reply(entry, b"answer");
            }
            session.reply(slot, b"answer");
        }
    }
}

#[test]
fn the_index_never_shows_half_a_change() {
    let shape = Shape { entries_log2: 2, inodes_log2: 2 };
    let (segment, fd) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let writer = Index::create(segment, shape).expect("long enough");
    let reader = Segment::map(fd.as_fd(), shape.bytes(), Access::ReadOnly).expect("mapped");
    let reader = Index::open(reader).expect("same shape");
    let stop = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Some(found) = reader.inode(Inode(77)) {
                    assert_eq!(found.size, found.modified.cast_unsigned());
                    assert_eq!(found.size, u64::from(found.device));
                    seen.fetch_add(1, Ordering::Relaxed);
                }
                match reader.entry(9) {
                    Hit::Found(inode, mode) => assert_eq!(inode.0 as u32, mode),
                    Hit::Absent | Hit::Unknown => {}
                }
            }
        });
        let mut round = 1u64;
        while seen.load(Ordering::Relaxed) < 20_000 {
            round += 1;
            writer.put_inode(&Attributes {
                inode: Inode(77),
                size: round,
                modified: round.cast_signed(),
                device: round as u32,
                ..Attributes::default()
            });
            match round % 3 {
                0 => writer.put_absent(Inode(3), 9),
                _ => writer.put_entry(9, Inode(round), round as u32),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    writer.put_absent(Inode(3), 9);
    assert_eq!(reader.entry(9), Hit::Absent);
    writer.forget_inode(Inode(77));
    assert_eq!(reader.inode(Inode(77)), None);
}

#[test]
fn a_full_bucket_forgets_the_oldest_and_is_never_wrong() {
    let shape = Shape { entries_log2: 0, inodes_log2: 0 };
    let index = Index::create(memory(shape.bytes()), shape).expect("long enough");
    for key in 1..=100u64 {
        index.put_entry(u128::from(key), Inode(key), 1);
    }
    let mut known = 0;
    for key in 1..=100u64 {
        match index.entry(u128::from(key)) {
            Hit::Found(inode, _) => {
                assert_eq!(inode, Inode(key));
                known += 1;
            }
            Hit::Absent => unreachable!("nobody said that {key} is absent"),
            Hit::Unknown => {}
        }
    }
    assert_eq!(known, 8, "in its bucket and where it spills to");
}

struct OneTarget {
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    hazards: HazardPointers,
    ssd: rustix::fd::OwnedFd,
}

impl OneTarget {
    fn new(bytes: usize) -> OneTarget {
        let hazards = HazardPointers::new(memory(HAZARDS_BYTES)).expect("long enough");
        hazards.note_session(0).expect("memory");
        OneTarget {
            arena: Arena::new(memory(bytes)),
            table: ExtentTable::new(memory(HEADER_BYTES * 8)),
            states: ExtentStates::new(
                memory(STATE_BYTES * 8),
                memory(page_groups_bytes(bytes as u64) as usize),
                PageSums::new(memory(page_sums_bytes(bytes as u64) as usize)),
            ),
            hazards,
            ssd: Segment::nameless(c"ssd", bytes).expect("nameless memory").1,
        }
    }

    fn target(&self) -> Target<'_> {
        Target {
            arena: &self.arena,
            ssd: self.ssd.as_fd(),
            table: &self.table,
            states: &self.states,
        }
    }
}

/// Random writes and zeroings of short and long extents whose space holds old bytes: a read returns
/// the written bytes, and zeros elsewhere. Two extents have the same location in both tiers, a
/// third is behind.
#[test]
fn an_extent_reads_as_written_and_never_shows_old_bytes() {
    for (length_log2, longest) in [(16, 20_000), (18, 20_000), (20, 600_000)] {
        let length = 1usize << length_log2;
        let all = OneTarget::new(3 * length);
        let target = all.target();
        let old = vec![0xee; 2 * length];
        all.arena.copy_in(length as u64, &old).expect("fits");
        rustix::io::pwrite(&all.ssd, &old, length as u64).expect("written");
        let extents = [(1, Extent::MEMORY), (1, Extent::SSD), (2, Extent::SSD)];
        let mut slot = 2;
        let extents = extents.map(|(place, tier)| {
            slot += 1;
            Extent { start: 0, slot, location: place * length as u64, length_log2, tier }
        });
        for extent in &extents {
            all.states.reset(extent, 0).expect("a slot");
            all.table.publish(Inode(5), extent).expect("a slot");
            assert!(all.states.is_hole(extent));
        }
        let hazards = all.hazards.of_session(0, 1000);
        let mut models = [vec![0u8; length], vec![0u8; length], vec![0u8; length]];
        let mut state = u64::from(length_log2) + 99;
        for round in 0..600u64 {
            state = wire::hash::mix(state, round);
            let at = state as usize % length;
            let count = (state >> 32) as usize % (length - at).min(longest);
            let number = round as usize % extents.len();
            let (extent, model) = (&extents[number], &mut models[number]);
            if round % 5 == 4 {
                target.zero_stable(extent, at as u64, count as u64).expect("zeroed");
                model[at..at + count].fill(0);
            } else {
                let bytes = vec![round as u8 | 1; count];
                let done = target.write(&hazards, Inode(5), extent, at as u64, &bytes);
                assert_eq!(done, Ok(Ok(())));
                model[at..at + count].copy_from_slice(&bytes);
            }
            for (extent, model) in extents.iter().zip(&models) {
                let mut read = vec![1; length];
                assert_eq!(target.read(&hazards, Inode(5), extent, 0, &mut read), Ok(Ok(())));
                assert!(read == *model, "{extent:?} round {round}");
            }
        }
        assert!(extents.iter().all(|extent| !all.states.is_hole(extent)));
        all.table.unpublish(3).expect("slot 3");
        let gone = target.read(&hazards, Inode(5), &extents[0], 0, &mut [0; 8]);
        assert_eq!(gone, Ok(Err(shm::extents::Moved)));
    }
}

/// A copy that was ordered for an extent which is gone by now finds its slot in use for a longer
/// one: it writes to its destination, and not into the neighbours.
#[test]
#[expect(clippy::large_stack_arrays, reason = "constants, which the compiler makes static")]
fn a_late_copy_stays_within_its_destination() {
    for taken_log2 in 13..=18 {
        let all = OneTarget::new(1 << 20);
        let extent =
            |length_log2, tier| Extent { start: 0, slot: 3, location: 1 << 18, length_log2, tier };
        let (from, to) = (extent(12, Extent::MEMORY), extent(12, Extent::SSD));
        all.arena.copy_in(from.location, &[7; 1 << 18]).expect("fits");
        rustix::io::pwrite(&all.ssd, &[9; 1 << 18], to.location).expect("written");
        let taken = Extent { location: 1 << 19, ..extent(taken_log2, Extent::SSD) };
        all.states.reset(&taken, all_pages(taken_log2)).expect("a slot");
        all.target().copy(&from, &to, &mut [0; 4096]).expect("copied");
        let mut found = vec![0; 1 << 18];
        rustix::io::pread(&all.ssd, &mut found[..], to.location).expect("read");
        assert!(found[4096..].iter().all(|&byte| byte == 9), "2^{taken_log2}: a neighbour's bytes");
        assert_eq!(found[..4096], [7; 4096]);
    }
}

/// A long extent that does not begin at a page group would share words with others.
#[test]
fn a_misaligned_extent_is_refused() {
    let all = OneTarget::new(4 << 20);
    let extent = |place, length_log2| Extent {
        start: 0,
        slot: 0,
        location: place,
        length_log2,
        tier: Extent::MEMORY,
    };
    for (place, length_log2, is_right) in [
        (4096, 12, true),
        (2048, 12, false),
        (3 << 18, 20, true),
        (3 << 18 | 4096, 20, false),
        (64 << 20, 20, false),
    ] {
        let outcome = all.states.reset(&extent(place, length_log2), 0);
        assert_eq!(outcome.is_ok(), is_right, "{place} {length_log2}");
    }
}

/// Two threads write the halves of new pages at once: no byte of either is lost, and no old byte
/// shows.
#[test]
fn writers_of_one_page_keep_each_others_bytes() {
    let length = 64 * 1024usize;
    let all = OneTarget::new(length);
    let target = all.target();
    let hazards = all.hazards.of_session(0, 1_000_000);
    let extent = Extent { start: 0, slot: 0, location: 0, length_log2: 16, tier: Extent::MEMORY };
    for _ in 0..300 {
        all.arena.copy_in(0, &vec![0xee; length]).expect("fits");
        all.states.reset(&extent, 0).expect("slot 0");
        all.table.publish(Inode(5), &extent).expect("slot 0");
        std::thread::scope(|scope| {
            for half in 0..2u64 {
                let (target, hazards) = (&target, &hazards);
                scope.spawn(move || {
                    for page in 0..16u64 {
                        let at = page * 4096 + half * 2048;
                        let bytes = [half as u8 + 1; 1024];
                        let done = target.write(hazards, Inode(5), &extent, at, &bytes);
                        assert_eq!(done, Ok(Ok(())));
                    }
                });
            }
        });
        let mut read = vec![9; length];
        target.read_stable(&extent, 0, &mut read).expect("read");
        for (at, &byte) in read.iter().enumerate() {
            let expected = if at % 2048 >= 1024 { 0 } else { (at / 2048 % 2) as u8 + 1 };
            assert_eq!(byte, expected, "at {at}");
        }
    }
    assert_eq!(all_pages(16), 0xffff);
}

/// One thread writes whole pages while another writes a part of each: the whole ones keep the bytes
/// that the other did not touch.
#[test]
fn a_whole_page_is_not_zeroed_by_a_writer_of_a_part() {
    let length = 64 * 1024usize;
    let all = OneTarget::new(length);
    let target = all.target();
    let hazards = all.hazards.of_session(0, 1_000_000);
    let extent = Extent { start: 0, slot: 0, location: 0, length_log2: 16, tier: Extent::MEMORY };
    for _ in 0..500 {
        all.states.reset(&extent, 0).expect("slot 0");
        all.table.publish(Inode(5), &extent).expect("slot 0");
        std::thread::scope(|scope| {
            for whole in [true, false] {
                let (target, hazards) = (&target, &hazards);
                scope.spawn(move || {
                    for page in 0..16u64 {
                        let bytes = [7; 4096];
                        let part = if whole { &bytes[..] } else { &bytes[..100] };
                        let done = target.write(hazards, Inode(5), &extent, page * 4096, part);
                        assert_eq!(done, Ok(Ok(())));
                    }
                });
            }
        });
        let mut read = vec![9; length];
        target.read_stable(&extent, 0, &mut read).expect("read");
        assert!(read.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_torn_header_is_no_extent() {
    let (segment, fd) = Segment::nameless(c"test", HEADER_BYTES * 2).expect("nameless memory");
    let table = ExtentTable::new(segment);
    let extent =
        Extent { start: 1 << 22, slot: 1, location: 8192, length_log2: 22, tier: Extent::SSD };
    table.publish(Inode(5), &extent).expect("slot 1");
    assert_eq!(table.get(1), Some((Inode(5), extent)));
    let raw = Segment::map(fd.as_fd(), HEADER_BYTES * 2, Access::ReadWrite).expect("mapped");
    raw.word64(HEADER_BYTES + 16).expect("in range").store(4096, Ordering::Relaxed);
    assert_eq!(table.get(1), None);
    assert_eq!(table.get(2), None);
}

/// Page faults of the calling thread until now.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("proc");
    // The name in the second field may hold spaces; the tenth is the eighth behind it.
    let behind = stat.rsplit_once(')').expect("a name").1;
    behind.split_whitespace().nth(7).and_then(|count| count.parse().ok()).expect("a number")
}

/// Pages that are present are mapped by a few faults, not one each, before they are written.
#[test]
fn a_first_write_to_pages_that_are_there_takes_few_faults() {
    const LENGTH: usize = 1 << 20;
    let (filled, file) = Segment::nameless(c"test", LENGTH).expect("memory");
    filled.zero(0, LENGTH).expect("fits");
    let count = |with: &dyn Fn(&Segment)| {
        let segment = Segment::map(&file, LENGTH, Access::ReadWrite).expect("mapped");
        with(&segment);
        let before = faults();
        segment.zero(1, LENGTH - 2).expect("fits");
        faults() - before
    };
    // A range outside is left alone.
    let odd = [(LENGTH, 1), (usize::MAX, 2), (0, LENGTH + 1), (7, 0)];
    let unmapped = count(&|segment| odd.iter().for_each(|&(at, all)| segment.map_present(at, all)));
    let mapped = count(&|segment| segment.map_present(1, LENGTH - 2));
    println!("{unmapped} faults without, {mapped} with");
    assert!(unmapped > 100, "{unmapped}");
    // The measurement costs one or two itself.
    assert!(mapped < unmapped / 10, "{mapped} of {unmapped}");
}

#[test]
fn pages_keep_their_bytes_when_they_become_huge() {
    let length = 2 * HUGE_PAGE;
    let (segment, fd) = Segment::nameless(c"test", 3 * HUGE_PAGE).expect("nameless memory");
    segment.word64(8).expect("in range").store(7, Ordering::Relaxed);
    segment.word64(length - 8).expect("in range").store(9, Ordering::Relaxed);
    let start = 4096;
    let shifted = Segment::map_part(&fd, start, length, Access::ReadWrite).expect("mapped");
    let at = |segment: &Segment| std::ptr::from_ref(segment.word64(0).expect("in range")).addr();
    assert_eq!(at(&segment) % HUGE_PAGE, 0);
    assert_eq!(at(&shifted) % HUGE_PAGE, start as usize);
    drop(shifted);
    let part = Segment::map(&fd, length, Access::ReadWrite).expect("mapped");
    // The kernel may refuse; it may not lose anything.
    println!("huge pages: {:?}", part.collapse());
    for (offset, value) in [(8, 7), (length - 8, 9), (HUGE_PAGE, 0), (length, 0)] {
        assert_eq!(segment.word64(offset).expect("in range").load(Ordering::Relaxed), value);
    }
    part.word64(16).expect("in range").store(5, Ordering::Relaxed);
    assert_eq!(segment.word64(16).expect("in range").load(Ordering::Relaxed), 5);
}

#[test]
fn the_directory_version_changes_with_a_directory() {
    let shape = Shape { entries_log2: 1, inodes_log2: 1 };
    let index = Index::create(memory(shape.bytes()), shape).expect("long enough");
    let directory = Attributes {
        inode: Inode(64),
        mode: mode::DIRECTORY | 0o755,
        links: 2,
        ..Attributes::default()
    };
    let file = Attributes { inode: Inode(65), mode: mode::REGULAR | 0o644, links: 1, ..directory };
    let is_reported = |what: &str, is_reported: bool, change: &dyn Fn()| {
        let before = index.directory_version().expect("nobody changes anything");
        change();
        assert_eq!(index.directory_version() != Some(before), is_reported, "{what}");
    };
    is_reported("a new directory", false, &|| index.put_inode(&directory));
    is_reported("its name", false, &|| index.put_entry(1, Inode(64), directory.mode));
    is_reported("the same again", false, &|| index.put_entry(1, Inode(64), directory.mode));
    let newer = Attributes { modified: 5, changed: 5, size: 9, links: 3, ..directory };
    is_reported("a name in it came", false, &|| index.put_inode(&newer));
    for (what, other) in [
        ("mode", Attributes { mode: mode::DIRECTORY | 0o700, ..newer }),
        ("owner", Attributes { uid: 5, ..newer }),
        ("group", Attributes { gid: 5, ..newer }),
        ("parent", Attributes { parent: Inode(70), ..newer }),
        ("layout", Attributes { layout: wire::Layout { spread: 1, ..newer.layout }, ..newer }),
        ("removed", Attributes { links: 0, ..newer }),
    ] {
        is_reported(what, true, &|| index.put_inode(&other));
        is_reported(what, true, &|| index.put_inode(&newer));
    }
    is_reported("forgotten", true, &|| index.forget_inode(Inode(64)));
    is_reported("forgotten again", false, &|| index.forget_inode(Inode(64)));
    is_reported("another inode", true, &|| index.put_entry(1, Inode(66), directory.mode));
    is_reported("doubted", true, &|| index.forget_entry(1));
    is_reported("known again", false, &|| index.put_entry(1, Inode(64), directory.mode));
    is_reported("removed", true, &|| index.put_absent(Inode(7), 1));
    index.mark_complete(Inode(7));
    index.put_entry(1, Inode(64), directory.mode);
    is_reported("removed from a whole directory", true, &|| index.put_absent(Inode(7), 1));
    is_reported("a file", false, &|| {
        index.put_entry(2, Inode(65), file.mode);
        index.put_inode(&file);
        index.put_inode(&Attributes { mode: mode::REGULAR | 0o600, uid: 7, ..file });
        index.forget_inode(Inode(65));
        index.put_absent(Inode(7), 2);
    });
    // A full bucket forgets a directory, and so does a writer that starts over.
    index.put_entry(1, Inode(64), directory.mode);
    is_reported("pushed out", true, &|| {
        (1u64..40).for_each(|key| index.put_entry(u128::from(key << 8 | 1), Inode(65), file.mode));
    });
    index.put_inode(&directory);
    is_reported("pushed out", true, &|| {
        let other = |number: u64| Attributes { inode: Inode(64 * number), ..file };
        (2..40).for_each(|inode| index.put_inode(&other(inode)));
    });
}

#[test]
fn recreating_an_index_forgets_directories() {
    let shape = Shape { entries_log2: 6, inodes_log2: 6 };
    let (segment, fd) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let map = |access| Segment::map(fd.as_fd(), shape.bytes(), access).expect("mapped");
    drop(Index::create(segment, shape).expect("long enough"));
    let reader = Index::open(map(Access::ReadOnly)).expect("same shape");
    let before = reader.directory_version().expect("nobody changes anything");
    let segment = map(Access::ReadWrite);
    Index::empty(&segment, |first| {
        assert_eq!(reader.directory_version(), None);
        segment.zero(first, shape.bytes().saturating_sub(first))
    })
    .expect("zeroed");
    // As if killed in between, and again.
    assert_eq!(reader.directory_version(), None);
    Index::empty(&segment, |_| Ok::<(), Errno>(())).expect("zeroed");
    drop(Index::create(segment, shape).expect("long enough"));
    assert!(reader.directory_version().expect("it is there") > before);
}

#[test]
fn open_files_are_counted_and_found() {
    let host = HostSegment::new(memory(HOST_BYTES)).expect("long enough");
    let first = host.vnode_open(Inode(5)).expect("space");
    assert_eq!(host.vnode_open(Inode(5)), Ok(first));
    assert!(host.mark_deleted(Inode(5)));
    assert!(!host.mark_deleted(Inode(6)));
    let closed = host.vnode_close(Inode(5), first).expect("open");
    assert!(!closed.last && closed.deleted);
    let closed = host.vnode_close(Inode(5), first).expect("open");
    assert!(closed.last && closed.deleted);
    assert_eq!(host.vnode_find(Inode(5)), None);
    let again = host.vnode_open(Inode(5)).expect("space");
    assert!(!host.vnode_close(Inode(5), again).expect("open").deleted);
}

#[test]
fn each_thread_takes_adjacent_entries_apart_from_other_threads() {
    /// Entries whose bits share a cache line.
    const LINE: u32 = 512;
    let host = HostSegment::new(memory(HOST_BYTES)).expect("long enough");
    let take = |from: u64| -> Vec<(u32, u32)> {
        let entries = (from..from + 100).map(|inode| {
            let vnode = host.vnode_open(Inode(inode)).expect("space");
            let file = host.file_allocate(Inode(inode), vnode, 0).expect("space");
            (vnode.0, file.0)
        });
        entries.collect()
    };
    let (entries, threads): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..9)
            .map(|number| scope.spawn(move || (take(number * 1000), shm::wait::thread_id())))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).unzip()
    });
    for (entries, thread) in entries.iter().zip(threads) {
        let lane = thread % 32;
        assert!(entries.iter().all(|(vnode, file)| [vnode / LINE, file / LINE] == [lane; 2]));
    }
    let mut all: Vec<_> = entries.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 800);
    // An entry that is freed, by whatever thread, returns to its lane.
    for (number, entries) in (1..).zip(&entries) {
        for (inode, (vnode, file)) in (number * 1000..).zip(entries) {
            host.file_free(OfdIndex(*file)).expect("a row");
            host.vnode_close(Inode(inode), VnodeIndex(*vnode)).expect("open");
        }
    }
    let mut used = 0;
    host.file_list(&mut |_, _| used += 1);
    host.vnode_list(&mut |_, _| used += 1);
    assert_eq!(used, 0);
    let lane = shm::wait::thread_id() % 32;
    assert!(take(5).iter().all(|(vnode, file)| [vnode / LINE, file / LINE] == [lane; 2]));
}

#[test]
fn opens_are_refused_when_the_table_is_full_and_accepted_again_later() {
    let host = HostSegment::new(memory(HOST_BYTES)).expect("long enough");
    // Neighbours, numbers with a stride, and another shard's.
    let inode = |number: u64| match number % 3 {
        0 => Inode(number / 3 + 1),
        1 => Inode((number / 3 + 1) << 20),
        _ => Inode(7 << 48 | (number / 3 * 64)),
    };
    let mut open = Vec::new();
    let full = (0..).map(inode).find(|inode| match host.vnode_open(*inode) {
        Ok(vnode) => {
            open.push((*inode, vnode));
            false
        }
        Err(errno) => errno == Errno::ENFILE,
    });
    let full = full.expect("a bound");
    assert!(open.len() > 50_000, "{}", open.len());
    assert!(open.iter().all(|(inode, vnode)| host.vnode_find(*inode) == Some(*vnode)));
    assert_eq!(host.vnode_find(full), None);
    let (inode, vnode) = open[0];
    assert_eq!(host.vnode_close(full, vnode), Err(Errno::EIO));
    assert_eq!(host.vnode_find(inode), Some(vnode));
    for (inode, vnode) in &open {
        assert!(host.vnode_close(*inode, *vnode).expect("open").last);
    }
    assert!(open.iter().all(|(inode, _)| host.vnode_find(*inode).is_none()));
    assert!(host.vnode_open(full).is_ok());
}

/// Bit of a lock word: a thread proceeded without the lock.
const PASSED: u32 = 1 << 31;

#[test]
fn waits_for_a_stopped_process_are_bounded() {
    let (segment, fd) = Segment::nameless(c"test", HOST_BYTES).expect("nameless memory");
    let host = HostSegment::new(segment).expect("long enough");
    let first = host.vnode_open(Inode(5)).expect("space");
    // This thread lives and holds every lock, as if it had been stopped between two stores.
    let raw = Segment::map(fd.as_fd(), HOST_BYTES, Access::ReadWrite).expect("mapped");
    let me = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let locks = (0..32 * 1024).map(|bucket| raw.word32(4096 + bucket * 64).expect("in range"));
    locks.clone().for_each(|word| word.store(me, Ordering::SeqCst));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(host.vnode_open(Inode(5)), Ok(first));
            assert!(host.mark_deleted(Inode(5)));
            assert!(!host.vnode_close(Inode(5), first).expect("open").last);
        });
        other.join().expect("it went on");
    });
    // The owner keeps its locks; the thread that proceeded without the lock of an open left its
    // mark there.
    let left: Vec<u32> = locks.map(|word| word.swap(0, Ordering::SeqCst)).collect();
    assert!(left.iter().all(|word| word & !PASSED == me));
    assert_eq!(left.iter().filter(|&word| word & PASSED != 0).count(), 1);
    let closed = host.vnode_close(Inode(5), first).expect("open");
    assert!(closed.last && closed.deleted);
}

#[test]
fn a_descriptor_table_survives_its_copies() {
    let host = HostSegment::new(memory(HOST_BYTES)).expect("long enough");
    let vnode = host.vnode_open(Inode(5)).expect("space");
    let file = host.file_allocate(Inode(5), vnode, 2).expect("space");
    let parent = host.process_register(100, 7).expect("space");
    host.process_set(parent, 3, Some((file, false))).expect("space");
    host.process_set(parent, 5000, Some((file, true))).expect("space");
    host.file_retain(file);
    let child = host.process_copy(parent, &mut |_| {}).expect("space");
    assert_eq!(host.file(file).expect("a row").refs.load(Ordering::Relaxed), 4);
    assert_eq!(host.process_find(100, 7), Some(parent));
    host.process_adopt(child, 101, 8).expect("a row");
    assert_eq!(host.process_find(101, 8), Some(child));
    assert_eq!(host.process_get(child, 5000), Some((file, true)));
    let mut released = 0;
    let generation = host.process_generation(child);
    host.process_release(child, generation, &mut |file| {
        assert!(!host.file_release(file).expect("has references"));
        released += 1;
    })
    .expect("live");
    assert_eq!(released, 2);
    assert_eq!(host.process_find(101, 8), None);
    assert_eq!(host.process_get(parent, 3), Some((file, false)));
    assert!(!host.file_release(file).expect("has references"));
    assert!(host.file_release(file).expect("has references"));
    assert_eq!(host.file_release(file), Err(Errno::EBADF));
    host.file_free(file).expect("a row");
    assert_eq!(host.process_set(parent, 70_000, Some((file, false))), Err(Errno::EMFILE));
}
