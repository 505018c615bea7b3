//! Single cases: who waits for what, what comes too late, and what is wished for.

use super::*;
use wire::DaemonIndex;

/// A list is brought up from its second file on, a quarter of the memory ahead of who reads it.
#[test]
fn a_list_is_paced_by_its_readers() {
    let mut world = World::new();
    for file in 0..10 {
        world.ends.insert(Inode(BELOW_FIRST + file), 128 << 10);
        let answer = world.wish(BELOW_FIRST + file, 1, (7, file, 1));
        assert!(matches!(answer, Answer::Number(_)), "{answer:?}");
    }
    let here = |world: &World| {
        let files: BTreeSet<u64> = world.table.values().map(|row| row.0.0 - BELOW_FIRST).collect();
        files.into_iter().collect::<Vec<_>>()
    };
    while world.come(&[]) {}
    assert_eq!(here(&world), [1, 2], "256 KiB");
    // The first is read from below; then the others are, one after the other.
    let read = |world: &mut World, file| {
        let (inode, chunk_log2) = (Inode(BELOW_FIRST + file), CHUNK_LOG2);
        world.call(&Request::Read { inode, chunk_log2, offset: 0, length: 128 << 10 });
        while world.come(&[]) {}
        let slots = world.table.iter().filter(|(_, row)| row.0 == inode);
        slots.fold(0u64, |bits, (slot, _)| bits | 1 << slot)
    };
    let used = read(&mut world, 0);
    world.look_ahead(10, used);
    assert_eq!(here(&world), [0, 1, 2]);
    let used = read(&mut world, 1);
    world.look_ahead(10, used);
    while world.come(&[]) {}
    assert_eq!(here(&world), [0, 1, 2, 3]);
    assert_eq!(world.target.wishes_of(7), 6);
    // Who goes to another place of the list leaves out what he does not read.
    read(&mut world, 7);
    world.look_ahead(10, 0);
    while world.come(&[]) {}
    assert_eq!(world.target.wishes_of(7), 2);
}

/// A list that may be wrong is brought up as any other, until more is read that it does not name. What is
/// read is told once, whether it was in time or not.
#[test]
fn what_is_wished_for_comes_at_the_rate() {
    let mut world = World::new();
    let pieces = |world: &World| world.filled_bytes >> CHUNK_LOG2;
    world.target.set_wish_rate(4 << CHUNK_LOG2);
    for file in 0..7 {
        world.ends.insert(Inode(BELOW_FIRST + file), 128 << 10);
        world.wish(BELOW_FIRST + file, 1, (0, 0, 0));
    }
    let passed = |world: &mut World, millis: u32| {
        for _ in 0..millis / 10 {
            world.look_ahead(10, 0);
            while world.come(&[]) {}
        }
        pieces(world)
    };
    assert_eq!(passed(&mut world, 100), 1);
    assert!((4..=5).contains(&passed(&mut world, 900)));
    // What somebody reads does not wait.
    let (inode, chunk_log2) = (Inode(BELOW_FIRST + 6), CHUNK_LOG2);
    let before = pieces(&world);
    world.call(&Request::Read { inode, chunk_log2, offset: 0, length: 128 << 10 });
    assert_eq!(pieces(&world), before + 1);
    assert_eq!(passed(&mut world, 2000), 7);
}

#[test]
fn a_guess_is_followed_until_other_files_are_read() {
    let mut world = World::new();
    world.target.record_uses();
    let file = |number| Inode(BELOW_FIRST + number);
    for number in 0..30 {
        let size = if number < 10 { 128 << 10 } else { 4096 };
        world.ends.insert(file(number), size);
    }
    for number in 0..10 {
        let answer = world.wish(BELOW_FIRST + number, rise::GUESS, (7, number, 1));
        assert!(matches!(answer, Answer::Number(_)), "{answer:?}");
    }
    while world.come(&[]) {}
    assert_eq!((world.target.wishes_of(7), world.target.take_uses()), (8, vec![]));
    let read = |world: &mut World, number| {
        let (inode, chunk_log2) = (file(number), CHUNK_LOG2);
        world.call(&Request::Read { inode, chunk_log2, offset: 0, length: 4096 });
        while world.come(&[]) {}
    };
    // The first is missed; the next was in time, as a look at its marks shows.
    read(&mut world, 0);
    let slots = world.table.iter().filter(|(_, row)| row.0 == file(1));
    let used = slots.fold(0u64, |bits, (slot, _)| bits | 1 << slot);
    world.look_ahead(10, used);
    world.look_ahead(10, used);
    assert_eq!(world.target.take_uses(), [file(0), file(1)]);
    for number in 10..18 {
        assert!(world.target.wishes_of(7) > 0, "{number}");
        read(&mut world, number);
        read(&mut world, number);
    }
    assert_eq!(world.target.wishes_of(7), 0);
    assert_eq!(world.target.take_uses(), (10..18).map(file).collect::<Vec<_>>());
    let guessed = world.target.guessed();
    assert_eq!((guessed.named, guessed.right, guessed.wrong), (10, 2, 8));
    assert!(guessed.is_given_up);
    // What it still names is not heard, another list is.
    world.wish(BELOW_FIRST + 5, rise::GUESS, (7, 20, 1));
    assert_eq!(world.target.wishes_of(7), 0);
    world.wish(BELOW_FIRST + 5, rise::GUESS, (8, 0, 1));
    assert_eq!(world.target.wishes_of(8), 1);
    assert!(!world.target.guessed().is_given_up);
}

/// A world with one file below, so many bytes long.
fn one(size: u64) -> (World, Inode) {
    let (mut world, inode) = (World::new(), Inode(BELOW_FIRST + 1));
    world.ends.insert(inode, size);
    (world, inode)
}

#[test]
fn who_waits_for_the_same_piece_waits_for_one_look_below() {
    let (mut world, inode) = one(4096);
    let request = Request::Read { inode, chunk_log2: CHUNK_LOG2, offset: 0, length: 100 };
    let tickets = [world.send(&request), world.send(&request), world.send(&request)];
    assert_eq!((world.asked.len(), world.fills.len()), (1, 0));
    world.come(&[]);
    assert_eq!((world.asked.len(), world.fills.len()), (0, 1));
    assert!(world.answers.is_empty());
    world.come(&[]);
    assert!(tickets.iter().all(|ticket| world.answers[ticket].1.len() == 100));
    assert_eq!(world.filled_bytes, 4096);
    // Another file is not in its way, nor what is not from below.
    let made = Request::Read { inode: Inode(9), chunk_log2: CHUNK_LOG2, offset: 0, length: 9 };
    assert_eq!(world.call(&made).1, vec![0; 9]);
}

#[test]
fn bytes_that_come_after_a_cut_are_not_the_files() {
    let (mut world, inode) = one(FILE_BYTES);
    let read = Request::Read { inode, chunk_log2: CHUNK_LOG2, offset: 8192, length: 8192 };
    let ticket = world.send(&read);
    world.come(&[]);
    let filling = world.fills.remove(0);
    assert_eq!((filling.piece.start, filling.length), (8192, 8192));
    world.fills.clear();
    world.ends.insert(inode, 10_000);
    let cut = Request::Truncate { inode, chunk_log2: CHUNK_LOG2, size: 10_000 };
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
fn who_reads_from_the_beginning_finds_the_next_pieces_on_their_way() {
    let (mut world, inode) = one(FILE_BYTES);
    let read = |offset, length| Request::Read { inode, chunk_log2: CHUNK_LOG2, offset, length };
    let ticket = world.send(&read(0, 4096));
    world.come(&[]);
    let starts: Vec<u64> = world.fills.iter().map(|filling| filling.piece.start).collect();
    assert_eq!(starts, [0, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144], "the rest of it");
    while world.come(&[]) {}
    assert!(world.answers.contains_key(&ticket));
    // In the middle of nowhere there is no next.
    let (mut world, inode) = one(FILE_BYTES);
    world.send(&Request::Read { inode, chunk_log2: CHUNK_LOG2, offset: 32768, length: 4096 });
    world.come(&[]);
    assert_eq!(world.fills.len(), 1);
}

#[test]
fn a_hole_is_made_without_a_look_at_the_bytes_below() {
    let (mut world, inode) = one(FILE_BYTES);
    let punch = Request::Punch { inode, chunk_log2: CHUNK_LOG2, offset: 4096, length: 4096 };
    assert_eq!(world.call(&punch).0, Answer::Done);
    assert_eq!(world.filled_bytes, 0);
    let read = Request::Read { inode, chunk_log2: CHUNK_LOG2, offset: 4000, length: 200 };
    let bytes = world.call(&read).1;
    assert!(bytes[..96].iter().all(|byte| *byte != 0) && bytes[96..] == [0; 104]);
}

/// What the pieces of a file take.
const PIECES_BYTES: u64 = 384 << 10;

/// A world with a file on the SSD, all of it clean.
fn one_on_the_ssd() -> (World, u64) {
    let (mut world, file) = (World::with([TIER_BYTES; 2], Sinking::NEVER), BELOW_FIRST + 1);
    world.ends.insert(Inode(file), FILE_BYTES);
    world.wish(file, rise::SSD, (0, 0, 0));
    while world.come(&[]) {}
    assert_eq!(world.target.clean.bytes(Piece::SSD), PIECES_BYTES);
    (world, file)
}

#[test]
fn what_is_clean_comes_up_and_is_clean_there() {
    let (mut world, file) = one_on_the_ssd();
    world.wish(file, rise::MEMORY, (0, 0, 0));
    world.target.check_clean();
    while world.come(&[]) {}
    let bytes = world.target.clean.bytes(Piece::MEMORY);
    assert_eq!((world.target.clean.bytes(Piece::SSD), world.ssd_used()), (0, 0));
    assert_eq!(bytes, PIECES_BYTES);
    assert!(world.table.keys().all(|slot| world.clean.contains(slot)));
    world.target.check_clean();
    let inodes = file.to_le_bytes();
    assert_eq!(world.call(&Request::Remove { inodes: &inodes }).0, Answer::Done);
    assert_eq!(world.target.clean.bytes(Piece::MEMORY), 0);
}

#[test]
fn what_is_clean_and_used_on_its_way_up_stays_clean() {
    let (mut world, file) = one_on_the_ssd();
    let clean = world.target.clean.bytes(Piece::SSD);
    world.wish(file, rise::MEMORY, (0, 0, 0));
    assert!(!world.copies.is_empty());
    let (inode, chunk_log2) = (Inode(file), CHUNK_LOG2);
    world.send(&Request::Read { inode, chunk_log2, offset: 0, length: FILE_BYTES as u32 });
    while world.come(&[]) {}
    assert_eq!((world.target.clean.bytes(Piece::SSD), world.memory_used()), (clean, 0));
    world.target.check_clean();
    world.target.check_rising();
}

/// What is hidden to be dropped is hidden once, and is wanted now.
#[test]
fn what_is_about_to_be_dropped_is_shown_to_who_wishes_for_it() {
    let (mut world, file) = one_on_the_ssd();
    let slots: Vec<u32> = world.table.keys().copied().collect();
    let piece = world.table[&slots[0]].1;
    // Its pins are not looked at yet.
    let mut out = Vec::new();
    world.target.hide_to_drop(Inode(file), piece, &mut out);
    out.retain(|effect| !matches!(effect, Effect::CheckPins { .. }));
    world.perform(out, &[]);
    world.wish(file, rise::MEMORY, (0, 0, 0));
    while world.come(&[]) {}
    assert_eq!((world.filled_bytes, world.ssd_used()), (FILE_BYTES, 0));
    assert!(world.hidden.is_empty());
}

/// What is given up goes but for what was changed and what is pinned, whose pieces stay as they are.
#[test]
fn what_is_given_up_goes_but_for_what_is_changed_or_pinned() {
    let (mut world, file) = one_on_the_ssd();
    let slot_at =
        |world: &World, start| world.target.slots.at(Inode(file), start).map(|piece| piece.slot);
    // A client changes one of them without a word, and another is pinned.
    let (changed, pinned) = (slot_at(&world, 0), slot_at(&world, 4096));
    world.clean.remove(&changed.expect("it is there"));
    let pinned = pinned.expect("it is there");
    world.pinned.insert(pinned, world.table[&pinned].1);
    let mut rounds = 0;
    let left = loop {
        rounds += 1;
        match world.wish(file, rise::DROP, (0, 0, 0)) {
            Answer::Refused(Errno::EAGAIN) => assert!(rounds < 3),
            Answer::Number(left) => break left,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((left, world.table.len()), (FILE_BYTES - 8192, 2));
    assert!(world.hidden.is_empty());
    // It is tried again once the pin is gone, and the other is known to be none of these.
    world.pinned.clear();
    while matches!(world.wish(file, rise::DROP, (0, 0, 0)), Answer::Refused(Errno::EAGAIN)) {}
    assert_eq!(world.table.len(), 1);
    world.target.check_clean();
    let (inode, chunk_log2) = (Inode(file), CHUNK_LOG2);
    let read = Request::Read { inode, chunk_log2, offset: 4096, length: 100 };
    assert!(world.call(&read).1.iter().all(|byte| *byte != 0));
}

#[test]
fn a_hole_takes_room_where_its_chunks_are_alone() {
    let made = [0, 1].map(|index| {
        let mut world = World::new();
        world.target.set_member(DaemonIndex(index), 2);
        let inode = Inode(BELOW_FIRST + 1);
        world.ends.insert(inode, FILE_BYTES);
        let (chunk_log2, offset) = (CHUNK_LOG2, 5000);
        let length = FILE_BYTES - 10_000;
        let punch = Request::Punch { inode, chunk_log2, offset, length };
        assert_eq!(world.call(&punch).0, Answer::Done);
        world.table.values().map(|(_, piece)| piece.start).collect::<Vec<_>>()
    });
    let both = made.concat();
    assert!(!both.is_empty() && made.iter().any(Vec::is_empty), "{made:?}");
}
