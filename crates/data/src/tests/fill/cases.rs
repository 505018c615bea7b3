//! Single cases: waiting, late answers, and prefetching.

use super::*;
use wire::DaemonIndex;

/// A list is brought up from its second file on, up to a quarter of the memory ahead of its reader.
#[test]
fn a_list_is_paced_by_its_readers() {
    let mut world = FillWorld::new();
    for file in 0..10 {
        world.backed_ends.insert(Inode(BACKED_FIRST + file), 128 << 10);
        let answer = world.prefetch_file(BACKED_FIRST + file, 1, (7, file, 1));
        assert!(matches!(answer, Answer::Number(_)), "{answer:?}");
    }
    let here = |world: &FillWorld| {
        let files: BTreeSet<u64> = world.table.values().map(|row| row.0.0 - BACKED_FIRST).collect();
        files.into_iter().collect::<Vec<_>>()
    };
    while world.come(&[]) {}
    assert_eq!(here(&world), [1, 2], "256 KiB");
    // The first file is read from the backing store; then the others come, one after the other.
    let read = |world: &mut FillWorld, file| {
        let (inode, stripe_log2) = (Inode(BACKED_FIRST + file), STRIPE_LOG2);
        world.call(&Request::Read { inode, stripe_log2, offset: 0, length: 128 << 10 });
        while world.come(&[]) {}
        let slots = world.table.iter().filter(|(_, row)| row.0 == inode);
        slots.fold(0u64, |bits, (slot, _)| bits | 1 << slot)
    };
    let used = read(&mut world, 0);
    world.advance_readahead(10, used);
    assert_eq!(here(&world), [0, 1, 2]);
    let used = read(&mut world, 1);
    world.advance_readahead(10, used);
    while world.come(&[]) {}
    assert_eq!(here(&world), [0, 1, 2, 3]);
    assert_eq!(world.target.prefetches_of(7), 6);
    // A reader that jumps in the list skips the files between.
    read(&mut world, 7);
    world.advance_readahead(10, 0);
    while world.come(&[]) {}
    assert_eq!(world.target.prefetches_of(7), 2);
}

/// A speculative list is brought up as any other, until more files are read that it does not name.
/// Each file read is reported once, whether it was in time or not.
#[test]
fn prefetched_extents_are_filled_at_the_rate() {
    let mut world = FillWorld::new();
    let extents = |world: &FillWorld| world.filled_bytes >> STRIPE_LOG2;
    world.target.set_prefetch_rate(4 << STRIPE_LOG2);
    for file in 0..7 {
        world.backed_ends.insert(Inode(BACKED_FIRST + file), 128 << 10);
        world.prefetch_file(BACKED_FIRST + file, 1, (0, 0, 0));
    }
    let passed = |world: &mut FillWorld, millis: u32| {
        for _ in 0..millis / 10 {
            world.advance_readahead(10, 0);
            while world.come(&[]) {}
        }
        extents(world)
    };
    assert_eq!(passed(&mut world, 100), 1);
    assert!((4..=5).contains(&passed(&mut world, 900)));
    // A reader's own miss does not wait.
    let (inode, stripe_log2) = (Inode(BACKED_FIRST + 6), STRIPE_LOG2);
    let before = extents(&world);
    world.call(&Request::Read { inode, stripe_log2, offset: 0, length: 128 << 10 });
    assert_eq!(extents(&world), before + 1);
    assert_eq!(passed(&mut world, 2000), 7);
}

#[test]
fn a_speculative_list_is_followed_until_other_files_are_read() {
    let mut world = FillWorld::new();
    world.target.record_accesses();
    let file = |number| Inode(BACKED_FIRST + number);
    for number in 0..30 {
        let size = if number < 10 { 128 << 10 } else { 4096 };
        world.backed_ends.insert(file(number), size);
    }
    for number in 0..10 {
        let answer =
            world.prefetch_file(BACKED_FIRST + number, prefetch::SPECULATIVE, (7, number, 1));
        assert!(matches!(answer, Answer::Number(_)), "{answer:?}");
    }
    while world.come(&[]) {}
    assert_eq!((world.target.prefetches_of(7), world.target.take_accessed_files()), (8, vec![]));
    let read = |world: &mut FillWorld, number| {
        let (inode, stripe_log2) = (file(number), STRIPE_LOG2);
        world.call(&Request::Read { inode, stripe_log2, offset: 0, length: 4096 });
        while world.come(&[]) {}
    };
    // The first is missed; the next was in time, as the reference bits show.
    read(&mut world, 0);
    let slots = world.table.iter().filter(|(_, row)| row.0 == file(1));
    let used = slots.fold(0u64, |bits, (slot, _)| bits | 1 << slot);
    world.advance_readahead(10, used);
    world.advance_readahead(10, used);
    assert_eq!(world.target.take_accessed_files(), [file(0), file(1)]);
    for number in 10..18 {
        assert!(world.target.prefetches_of(7) > 0, "{number}");
        read(&mut world, number);
        read(&mut world, number);
    }
    assert_eq!(world.target.prefetches_of(7), 0);
    assert_eq!(world.target.take_accessed_files(), (10..18).map(file).collect::<Vec<_>>());
    let profile_counts = world.target.profile_counts();
    assert_eq!((profile_counts.listed, profile_counts.hits, profile_counts.misses), (10, 2, 8));
    assert!(profile_counts.is_abandoned);
    // The rest of this list is ignored, another list is not.
    world.prefetch_file(BACKED_FIRST + 5, prefetch::SPECULATIVE, (7, 20, 1));
    assert_eq!(world.target.prefetches_of(7), 0);
    world.prefetch_file(BACKED_FIRST + 5, prefetch::SPECULATIVE, (8, 0, 1));
    assert_eq!(world.target.prefetches_of(8), 1);
    assert!(!world.target.profile_counts().is_abandoned);
}

/// A world with one file of this length in the backing store.
fn one(size: u64) -> (FillWorld, Inode) {
    let (mut world, inode) = (FillWorld::new(), Inode(BACKED_FIRST + 1));
    world.backed_ends.insert(inode, size);
    (world, inode)
}

#[test]
fn waiters_for_the_same_extent_share_one_backing_lookup() {
    let (mut world, inode) = one(4096);
    let request = Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 0, length: 100 };
    let tickets = [world.send(&request), world.send(&request), world.send(&request)];
    assert_eq!((world.end_queries.len(), world.fills.len()), (1, 0));
    world.come(&[]);
    assert_eq!((world.end_queries.len(), world.fills.len()), (0, 1));
    assert!(world.answers.is_empty());
    world.come(&[]);
    assert!(tickets.iter().all(|ticket| world.answers[ticket].1.len() == 100));
    assert_eq!(world.filled_bytes, 4096);
    // Another file does not delay it, nor does one that is not backed.
    let made = Request::Read { inode: Inode(9), stripe_log2: STRIPE_LOG2, offset: 0, length: 9 };
    assert_eq!(world.call(&made).1, vec![0; 9]);
}

#[test]
fn bytes_filled_after_a_truncation_are_discarded() {
    let (mut world, inode) = one(FILE_BYTES);
    let read = Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 8192, length: 8192 };
    let ticket = world.send(&read);
    world.come(&[]);
    let filling = world.fills.remove(0);
    assert_eq!((filling.extent.start, filling.length), (8192, 8192));
    world.fills.clear();
    world.backed_ends.insert(inode, 10_000);
    let cut = Request::Truncate { inode, stripe_log2: STRIPE_LOG2, size: 10_000 };
    let cut = world.send(&cut);
    assert_eq!(world.answers[&cut].0, Answer::Done, "a cut waits for nothing");
    world.fill(filling, false, &[]);
    assert!(!world.answers.contains_key(&ticket));
    assert_eq!(world.fills[0].length, 10_000 - 8192, "once more, and no more than counts");
    world.come(&[]);
    let bytes = &world.answers[&ticket].1;
    assert!(bytes[10_000 - 8192..].iter().all(|byte| *byte == 0));
    assert!(bytes[..10_000 - 8192].iter().all(|byte| *byte != 0));
}

#[test]
fn a_sequential_reader_triggers_readahead() {
    let (mut world, inode) = one(FILE_BYTES);
    let read = |offset, length| Request::Read { inode, stripe_log2: STRIPE_LOG2, offset, length };
    let ticket = world.send(&read(0, 4096));
    world.come(&[]);
    let starts: Vec<u64> = world.fills.iter().map(|filling| filling.extent.start).collect();
    assert_eq!(starts, [0, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144], "the rest of it");
    while world.come(&[]) {}
    assert!(world.answers.contains_key(&ticket));
    // In the middle of an unread file there is no next extent.
    let (mut world, inode) = one(FILE_BYTES);
    world.send(&Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 32768, length: 4096 });
    world.come(&[]);
    assert_eq!(world.fills.len(), 1);
}

#[test]
fn a_hole_is_punched_without_reading_the_backing_store() {
    let (mut world, inode) = one(FILE_BYTES);
    let punch = Request::Punch { inode, stripe_log2: STRIPE_LOG2, offset: 4096, length: 4096 };
    assert_eq!(world.call(&punch).0, Answer::Done);
    assert_eq!(world.filled_bytes, 0);
    let read = Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 4000, length: 200 };
    let bytes = world.call(&read).1;
    assert!(bytes[..96].iter().all(|byte| *byte != 0) && bytes[96..] == [0; 104]);
}

/// Bytes in the extents of a file.
const EXTENTS_BYTES: u64 = 384 << 10;

/// A world with a file on the SSD, all of it clean.
fn one_on_the_ssd() -> (FillWorld, u64) {
    let (mut world, file) =
        (FillWorld::with([TIER_BYTES; 2], DemotionSettings::NEVER), BACKED_FIRST + 1);
    world.backed_ends.insert(Inode(file), FILE_BYTES);
    world.prefetch_file(file, prefetch::SSD, (0, 0, 0));
    while world.come(&[]) {}
    assert_eq!(world.target.tiering.order.clean.bytes(Extent::SSD), EXTENTS_BYTES);
    (world, file)
}

#[test]
fn a_clean_extent_is_clean_after_promotion() {
    let (mut world, file) = one_on_the_ssd();
    world.prefetch_file(file, prefetch::MEMORY, (0, 0, 0));
    world.target.check_clean();
    while world.come(&[]) {}
    let bytes = world.target.tiering.order.clean.bytes(Extent::MEMORY);
    assert_eq!((world.target.tiering.order.clean.bytes(Extent::SSD), world.ssd_used()), (0, 0));
    assert_eq!(bytes, EXTENTS_BYTES);
    assert!(world.table.keys().all(|slot| world.clean.contains(slot)));
    world.target.check_clean();
    let inodes = file.to_le_bytes();
    assert_eq!(world.call(&Request::Remove { inodes: &inodes }).0, Answer::Done);
    assert_eq!(world.target.tiering.order.clean.bytes(Extent::MEMORY), 0);
}

#[test]
fn a_clean_extent_used_during_promotion_stays_clean() {
    let (mut world, file) = one_on_the_ssd();
    let clean = world.target.tiering.order.clean.bytes(Extent::SSD);
    world.prefetch_file(file, prefetch::MEMORY, (0, 0, 0));
    assert!(!world.copies.is_empty());
    let (inode, stripe_log2) = (Inode(file), STRIPE_LOG2);
    world.send(&Request::Read { inode, stripe_log2, offset: 0, length: FILE_BYTES as u32 });
    while world.come(&[]) {}
    assert_eq!(
        (world.target.tiering.order.clean.bytes(Extent::SSD), world.memory_used()),
        (clean, 0)
    );
    world.target.check_clean();
    world.target.check_records();
}

/// An extent hidden for eviction is hidden once, and is then prefetched.
#[test]
fn a_prefetch_request_cancels_the_eviction_of_its_extents() {
    let (mut world, file) = one_on_the_ssd();
    let slots: Vec<u32> = world.table.keys().copied().collect();
    let extent = world.table[&slots[0]].1;
    // Its hazard pointers are not checked yet.
    let mut out = Vec::new();
    world.target.hide_to_evict(Inode(file), extent, &mut out);
    out.retain(|effect| !matches!(effect, Effect::CheckHazards { .. }));
    world.perform(out, &[]);
    world.prefetch_file(file, prefetch::MEMORY, (0, 0, 0));
    while world.come(&[]) {}
    assert_eq!((world.filled_bytes, world.ssd_used()), (FILE_BYTES, 0));
    assert!(world.hidden.is_empty());
}

/// Eviction on request drops clean extents; changed and protected extents stay as they are.
#[test]
fn eviction_on_request_spares_changed_and_protected_extents() {
    let (mut world, file) = one_on_the_ssd();
    let slot_at = |world: &FillWorld, start| {
        world.target.pool.slots().at(Inode(file), start).map(|extent| extent.slot)
    };
    // A client changes one extent without a message, and another is protected.
    let (changed, protected) = (slot_at(&world, 0), slot_at(&world, 4096));
    world.clean.remove(&changed.expect("it is there"));
    let protected = protected.expect("it is there");
    world.protected.insert(protected, world.table[&protected].1);
    let mut rounds = 0;
    let bytes_left = loop {
        rounds += 1;
        match world.prefetch_file(file, prefetch::EVICT, (0, 0, 0)) {
            Answer::Refused(Errno::EAGAIN) => assert!(rounds < 3),
            Answer::Number(bytes_left) => break bytes_left,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((bytes_left, world.table.len()), (FILE_BYTES - 8192, 2));
    assert!(world.hidden.is_empty());
    // The eviction is repeated once the hazard pointer is gone, and the other extent is known to be
    // dirty.
    world.protected.clear();
    while matches!(
        world.prefetch_file(file, prefetch::EVICT, (0, 0, 0)),
        Answer::Refused(Errno::EAGAIN)
    ) {}
    assert_eq!(world.table.len(), 1);
    world.target.check_clean();
    let (inode, stripe_log2) = (Inode(file), STRIPE_LOG2);
    let read = Request::Read { inode, stripe_log2, offset: 4096, length: 100 };
    assert!(world.call(&read).1.iter().all(|byte| *byte != 0));
}

#[test]
fn a_hole_takes_space_only_on_the_targets_of_its_stripes() {
    let made = [0, 1].map(|index| {
        let mut world = FillWorld::new();
        world.target.set_member(DaemonIndex(index), 2);
        let inode = Inode(BACKED_FIRST + 1);
        world.backed_ends.insert(inode, FILE_BYTES);
        let (stripe_log2, offset) = (STRIPE_LOG2, 5000);
        let length = FILE_BYTES - 10_000;
        let punch = Request::Punch { inode, stripe_log2, offset, length };
        assert_eq!(world.call(&punch).0, Answer::Done);
        world.table.values().map(|(_, extent)| extent.start).collect::<Vec<_>>()
    });
    let both = made.concat();
    assert!(!both.is_empty() && made.iter().any(Vec::is_empty), "{made:?}");
}

/// Where files that are made here have copies elsewhere, what is here stays though the backing store has
/// it, and what is not here is a hole.
#[test]
fn copies_of_a_saved_file_stay() {
    let read_after_eviction = |has_copies: bool| {
        let mut world = FillWorld::new();
        if has_copies {
            world.target.set_copies();
        }
        let (inode, stripe_log2, saved) = (Inode(7), STRIPE_LOG2, vec![3; 200 << 10]);
        let (truncate_epoch, bytes) = (wire::request::ANY_TRUNCATE_EPOCH, &saved[..5000]);
        let write = Request::Write { inode, stripe_log2, offset: 0, truncate_epoch, bytes };
        assert_eq!(world.call(&write).0, Answer::Done);
        world.save(inode.0, &FillFiles::from([(inode.0, saved.clone())]));
        let mut rounds = 0;
        while world.prefetch_file(inode.0, prefetch::EVICT, (0, 0, 0)) == EVICTING {
            while world.answer_question(0, false) {}
            rounds += 1;
            assert!(rounds < 1000, "it never ends: {has_copies}");
        }
        let is_here = !world.table.is_empty();
        let read = |world: &mut FillWorld, offset| {
            let read = Request::Read { inode, stripe_log2, offset, length: 100 };
            world.call(&read).1
        };
        (is_here, read(&mut world, 100), read(&mut world, 150 << 10))
    };
    assert_eq!(read_after_eviction(false), (false, vec![3; 100], vec![3; 100]));
    assert_eq!(read_after_eviction(true), (true, vec![3; 100], vec![0; 100]));
}

/// In the place of a target that was lost, bytes of a file that has one copy are not zeros before its
/// shard says that it lost none; a file with copies has them elsewhere, so nobody is asked.
#[test]
fn what_is_missing_in_the_place_of_a_lost_target_is_asked_for() {
    let read = |inode: Inode, is_in_place_of_lost: bool, answer: Option<Result<u64, Errno>>| {
        let mut world = FillWorld::new();
        // Without a backing store.
        world.target = Target::new(world.settings);
        world.target.set_copies();
        if is_in_place_of_lost {
            world.target.set_in_place_of_lost();
        }
        let (stripe_log2, offset, length) = (STRIPE_LOG2, 0, 100);
        let ticket = world.send(&Request::Read { inode, stripe_log2, offset, length });
        assert_eq!(world.end_queries, answer.map(|_| inode).as_slice());
        if let Some(outcome) = answer {
            world.end_queries.clear();
            let outcome = outcome.map(|end| (end, LAYOUT));
            world.step(Input::BackingLocated { inode, outcome }, &[]);
        }
        world.answers.remove(&ticket).expect("an answer")
    };
    let (copied, single) = (Inode(7), Inode(7).with_copies(1));
    let (_, zeros) = read(copied, true, None);
    assert_eq!((zeros.as_slice(), read(single, false, None).1), (&[0; 100][..], zeros.clone()));
    assert_eq!(read(single, true, Some(Ok(0))).1, zeros);
    assert_eq!(read(single, true, Some(Err(Errno::EIO))).0, Answer::Refused(Errno::EIO));
}

/// Files with one copy are evicted as in an instance without copies, others are not.
#[test]
fn a_saved_file_with_one_copy_is_evicted_beside_files_with_copies() {
    let mut world = FillWorld::new();
    world.target.set_copies();
    let (copied, single) = (Inode(7), Inode(8).with_copies(1));
    for inode in [copied, single] {
        let (stripe_log2, offset, saved) = (STRIPE_LOG2, 0, vec![3; 5000]);
        let (truncate_epoch, bytes) = (wire::request::ANY_TRUNCATE_EPOCH, &saved[..]);
        let write = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes };
        assert_eq!(world.call(&write).0, Answer::Done);
        world.save(inode.0, &FillFiles::from([(inode.0, saved)]));
        let mut rounds = 0;
        while world.prefetch_file(inode.0, prefetch::EVICT, (0, 0, 0)) == EVICTING {
            while world.answer_question(0, false) {}
            rounds += 1;
            assert!(rounds < 1000, "it never ends");
        }
    }
    let stays = world.table.values().map(|(inode, _)| *inode).collect::<BTreeSet<_>>();
    assert_eq!(stays, BTreeSet::from([copied]));
}

/// Before memory is full services are asked for space where files have copies: a copy that waits for
/// space is dropped. From time to time, as long as it is short.
#[test]
fn a_target_with_copies_asks_for_space_before_it_is_full() {
    let asked = |has_copies: bool| {
        let reserve = TIER_BYTES / 4;
        let demotion = DemotionSettings {
            demote_low_watermark_bytes: reserve,
            demote_min_watermark_bytes: reserve,
            ..DemotionSettings::NEVER
        };
        let mut world = FillWorld::with([TIER_BYTES, 0], demotion);
        if has_copies {
            world.target.set_copies();
        }
        let bytes = vec![3; 128 << 10];
        let write = |world: &mut FillWorld, number: u64, length: usize| {
            let (inode, stripe_log2, bytes) = (Inode(7 + number), STRIPE_LOG2, &bytes[..length]);
            let truncate_epoch = wire::request::ANY_TRUNCATE_EPOCH;
            let write = Request::Write { inode, stripe_log2, offset: 0, truncate_epoch, bytes };
            assert_eq!(world.call(&write).0, Answer::Done);
            world.asked
        };
        let files = (0..7).map(|number| write(&mut world, number, 128 << 10));
        let mut asked = files.collect::<Vec<_>>().split_off(5);
        world.millis = world.millis.wrapping_add(1000);
        world.target.pass_time(world.millis);
        asked.push(write(&mut world, 7, 100));
        assert!(world.waits.is_empty(), "no writer waits");
        asked
    };
    assert_eq!(asked(false), [0, 0, 0]);
    assert_eq!(asked(true), [0, 1, 2]);
}

/// The answer to a request for eviction that is to be repeated.
const EVICTING: Answer = Answer::Refused(Errno::EAGAIN);
