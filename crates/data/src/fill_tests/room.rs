//! Who waits for room that clean pieces would make: what is refused, and when.

use super::*;

const PIECE: u64 = 4096;

/// Memory for so many pieces of the smallest length, and files below of one.
fn small(pieces: u64) -> World {
    let mut world = World::with([pieces * PIECE, 0], Sinking::NEVER);
    for file in 1..10 {
        world.ends.insert(Inode(BELOW_FIRST + file), PIECE);
    }
    world
}

const fn below(file: u64) -> Inode {
    Inode(BELOW_FIRST + file)
}

fn read(world: &mut World, file: u64) -> u64 {
    let inode = below(file);
    world.send(&Request::Read { inode, chunk_log2: CHUNK_LOG2, offset: 0, length: 100 })
}

fn map(world: &mut World, file: u64) -> u64 {
    let (inode, chunk_log2) = (Inode(file), CHUNK_LOG2);
    let (allocate, offset, length, ahead) = (1, 0, 100, 0);
    world.send(&Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead })
}

/// Looks until a request is answered. The answer, and how long it took.
fn wait(world: &mut World, ticket: u64, millis_max: u32) -> (Answer, u32) {
    let begun = world.millis;
    loop {
        let passed = world.millis.wrapping_sub(begun);
        if let Some((answer, _)) = world.answers.remove(&ticket) {
            return (answer, passed);
        }
        assert!(passed <= millis_max, "no answer after {passed} ms");
        world.look(1, 0, &[]);
    }
}

fn pin_all(world: &mut World) {
    world.pinned = world.table.iter().map(|(&slot, row)| (slot, row.1)).collect();
}

/// A piece that was pinned for long may be dropped as soon as it is not: whoever comes then has his time.
#[test]
fn who_comes_after_one_that_was_refused_waits_his_own_time() {
    let mut world = small(1);
    let ticket = read(&mut world, 1);
    while world.come(&[]) {}
    assert!(world.answers.contains_key(&ticket));
    pin_all(&mut world);
    let first = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, first, 2000);
    assert_eq!(answer, Answer::Refused(Errno::ENOSPC));
    assert!((200..300).contains(&passed), "{passed} ms for what is pinned");
    world.pinned.clear();
    let second = map(&mut world, 2);
    let (answer, passed) = wait(&mut world, second, 2000);
    assert!(matches!(answer, Answer::Pieces(_)), "{answer:?}");
    assert!(passed < 50, "{passed} ms");
}

/// Of many pieces the one that nobody pins is found.
#[test]
fn what_is_pinned_hides_nothing_that_may_go() {
    let mut world = small(50);
    for file in 1..=50 {
        world.ends.insert(below(file), PIECE);
        read(&mut world, file);
        while world.come(&[]) {}
    }
    pin_all(&mut world);
    world.pinned.remove(&37);
    let ticket = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert!(matches!(answer, Answer::Pieces(_)), "{answer:?} after {passed} ms");
}

/// Bytes that come from below are in the way of a writer only until they are there.
#[test]
fn who_finds_pieces_being_filled_waits_for_them() {
    let mut world = small(1);
    read(&mut world, 1);
    world.come(&[]);
    assert_eq!(world.fills.len(), 1);
    let ticket = map(&mut world, 1);
    world.look(1, 0, &[]);
    assert!(!world.answers.contains_key(&ticket), "{:?}", world.answers[&ticket].0);
    world.come(&[]);
    let (answer, _) = wait(&mut world, ticket, 100);
    assert!(matches!(answer, Answer::Pieces(_)), "{answer:?}");
}

/// Nothing can be dropped for who needs more than there is, but what he has: he is told so at once, and
/// who waits behind him has it.
#[test]
fn who_needs_more_than_there_is_is_not_kept_waiting() {
    let mut world = small(2);
    world.ends.insert(below(1), 3 * PIECE);
    let length = 3 * PIECE as u32;
    let reader = Request::Read { inode: below(1), chunk_log2: CHUNK_LOG2, offset: 0, length };
    let ticket = world.send(&reader);
    while world.come(&[]) {}
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert_eq!(answer, Answer::Refused(Errno::ENOSPC));
    assert!(passed < 50, "{passed} ms");
    let ticket = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert!(matches!(answer, Answer::Pieces(_)), "{answer:?}");
    assert!(passed < 50, "{passed} ms");
}

/// Who finds no room waits while something is saved: he comes again as long as that goes on, and is
/// refused when it did not for as long as he waits.
#[test]
fn who_waits_for_what_is_saved_comes_again_while_that_goes_on() {
    let mut world = small(2);
    for file in 1..3 {
        let ticket = map(&mut world, file);
        assert!(matches!(world.answers[&ticket].0, Answer::Pieces(_)));
    }
    let again = Answer::Busy { retry_micros: 0 };
    for (goes_on, right) in [(true, again), (false, Answer::Refused(Errno::ENOSPC))] {
        world.saved.room = Some(goes_on);
        let ticket = map(&mut world, 3);
        let (answer, passed) = wait(&mut world, ticket, 11_000);
        assert_eq!(answer, right);
        assert!(passed >= 9_000, "{passed} ms");
    }
}

/// Who makes a hole waits until something is saved. Who saves reads for that, and waits for nobody.
#[test]
fn readers_pass_by_who_waits_for_what_is_saved_to_make_a_hole() {
    for has_some_of_it in [true, false] {
        let mut world = small(3);
        world.saved.room = Some(true);
        world.ends.insert(below(1), 2 * PIECE);
        if has_some_of_it {
            let (inode, chunk_log2, offset) = (below(1), CHUNK_LOG2, PIECE);
            world.send(&Request::Read { inode, chunk_log2, offset, length: 100 });
            while world.come(&[]) {}
        }
        for file in 1..4 - u64::from(has_some_of_it) {
            let ticket = map(&mut world, file);
            assert!(matches!(world.answers[&ticket].0, Answer::Pieces(_)));
        }
        let (inode, chunk_log2, offset, length) = (below(1), CHUNK_LOG2, 100, PIECE);
        let hole = world.send(&Request::Punch { inode, chunk_log2, offset, length });
        while world.come(&[]) {}
        (0..500).for_each(|_| world.look(1, 0, &[]));
        assert!(!world.answers.contains_key(&hole));
        for file in 2..5 {
            let reader = read(&mut world, file);
            while world.come(&[]) {}
            let (answer, passed) = wait(&mut world, reader, 2000);
            assert_eq!(answer, Answer::Bytes { length: 100 });
            assert!(passed < 50, "{passed} ms");
        }
        world.call(&Request::Remove { inodes: &[1u64.to_le_bytes(), 2u64.to_le_bytes()].concat() });
        while !world.answers.contains_key(&hole) {
            while world.come(&[]) {}
            world.look(1, 0, &[]);
        }
        assert_eq!(world.answers[&hole].0, Answer::Done);
    }
}
