//! Requests that wait for eviction of clean extents: what is refused, and when.

use super::*;

const EXTENT: u64 = 4096;

/// Memory for this many extents of the smallest length, and backed files of one extent.
fn small(extents: u64) -> FillWorld {
    let mut world = FillWorld::with([extents * EXTENT, 0], DemotionSettings::NEVER);
    for file in 1..10 {
        world.backed_ends.insert(Inode(BACKED_FIRST + file), EXTENT);
    }
    world
}

const fn backing(file: u64) -> Inode {
    Inode(BACKED_FIRST + file)
}

fn read(world: &mut FillWorld, file: u64) -> u64 {
    let inode = backing(file);
    world.send(&Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 0, length: 100 })
}

fn map(world: &mut FillWorld, file: u64) -> u64 {
    let (inode, stripe_log2) = (Inode(file), STRIPE_LOG2);
    let (allocate, offset, length, ahead) = (1, 0, 100, 0);
    world.send(&Request::MapExtents {
        inode,
        stripe_log2,
        allocate,
        offset,
        length,
        preallocate: ahead,
    })
}

/// Looks for evictions until a request is answered. Returns the answer, and how long it took.
fn wait(world: &mut FillWorld, ticket: u64, millis_max: u32) -> (Answer, u32) {
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

fn protect_all(world: &mut FillWorld) {
    world.protected = world.table.iter().map(|(&slot, row)| (slot, row.1)).collect();
}

/// An extent protected for a long time may be evicted as soon as it is not: a later request has its
/// own time.
#[test]
fn a_request_after_a_refused_one_has_its_own_timeout() {
    let mut world = small(1);
    let ticket = read(&mut world, 1);
    while world.come(&[]) {}
    assert!(world.answers.contains_key(&ticket));
    protect_all(&mut world);
    let first = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, first, 2000);
    assert_eq!(answer, Answer::Refused(Errno::ENOSPC));
    assert!((200..300).contains(&passed), "{passed} ms for a protected extent");
    world.protected.clear();
    let second = map(&mut world, 2);
    let (answer, passed) = wait(&mut world, second, 2000);
    assert!(matches!(answer, Answer::Extents(_)), "{answer:?}");
    assert!(passed < 50, "{passed} ms");
}

/// Of many extents, the one without hazard pointer is found.
#[test]
fn protected_extents_do_not_hide_evictable_ones() {
    let mut world = small(50);
    for file in 1..=50 {
        world.backed_ends.insert(backing(file), EXTENT);
        read(&mut world, file);
        while world.come(&[]) {}
    }
    protect_all(&mut world);
    world.protected.remove(&37);
    let ticket = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert!(matches!(answer, Answer::Extents(_)), "{answer:?} after {passed} ms");
}

/// A fill in flight delays a writer only until it completes.
#[test]
fn a_writer_waits_for_fills_in_flight() {
    let mut world = small(1);
    read(&mut world, 1);
    world.come(&[]);
    assert_eq!(world.fills.len(), 1);
    let ticket = map(&mut world, 1);
    world.look(1, 0, &[]);
    assert!(!world.answers.contains_key(&ticket), "{:?}", world.answers[&ticket].0);
    world.come(&[]);
    let (answer, _) = wait(&mut world, ticket, 100);
    assert!(matches!(answer, Answer::Extents(_)), "{answer:?}");
}

/// Nothing can be evicted for a request that needs more than all space, except its own extents: it
/// is refused at once, and the request behind it proceeds.
#[test]
fn a_request_for_more_than_all_space_is_refused_at_once() {
    let mut world = small(2);
    world.backed_ends.insert(backing(1), 3 * EXTENT);
    let length = 3 * EXTENT as u32;
    let reader = Request::Read { inode: backing(1), stripe_log2: STRIPE_LOG2, offset: 0, length };
    let ticket = world.send(&reader);
    while world.come(&[]) {}
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert_eq!(answer, Answer::Refused(Errno::ENOSPC));
    assert!(passed < 50, "{passed} ms");
    let ticket = map(&mut world, 1);
    let (answer, passed) = wait(&mut world, ticket, 2000);
    assert!(matches!(answer, Answer::Extents(_)), "{answer:?}");
    assert!(passed < 50, "{passed} ms");
}

/// A request that finds no space waits during writeback: it retries while writeback makes progress,
/// and is refused when there was none for its timeout.
#[test]
fn a_request_retries_while_writeback_makes_progress() {
    let mut world = small(2);
    for file in 1..3 {
        let ticket = map(&mut world, file);
        assert!(matches!(world.answers[&ticket].0, Answer::Extents(_)));
    }
    let again = Answer::Busy { retry_micros: 0 };
    for (progresses, right) in [(true, again), (false, Answer::Refused(Errno::ENOSPC))] {
        world.saved.may_free = Some(progresses);
        let ticket = map(&mut world, 3);
        let (answer, passed) = wait(&mut world, ticket, 11_000);
        assert_eq!(answer, right);
        assert!(passed >= 9_000, "{passed} ms");
    }
}

/// A request that punches a hole waits for writeback. Reads by writeback wait for nothing.
#[test]
fn readers_bypass_a_punch_that_waits_for_writeback() {
    for has_some_of_it in [true, false] {
        let mut world = small(3);
        world.saved.may_free = Some(true);
        world.backed_ends.insert(backing(1), 2 * EXTENT);
        if has_some_of_it {
            let (inode, stripe_log2, offset) = (backing(1), STRIPE_LOG2, EXTENT);
            world.send(&Request::Read { inode, stripe_log2, offset, length: 100 });
            while world.come(&[]) {}
        }
        for file in 1..4 - u64::from(has_some_of_it) {
            let ticket = map(&mut world, file);
            assert!(matches!(world.answers[&ticket].0, Answer::Extents(_)));
        }
        let (inode, stripe_log2, offset, length) = (backing(1), STRIPE_LOG2, 100, EXTENT);
        let hole = world.send(&Request::Punch { inode, stripe_log2, offset, length });
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

/// A write to a file of which the backing store has bytes, while a fill that does not end has all space.
fn starving_write(world: &mut FillWorld) -> u64 {
    read(world, 1);
    world.come(&[]);
    assert_eq!(world.fills.len(), 1);
    // The shard says what the backing store has of it.
    read(world, 2);
    world.come(&[]);
    let (inode, stripe_log2) = (backing(2), STRIPE_LOG2);
    world.send(&Request::Write {
        inode,
        stripe_log2,
        offset: 0,
        bytes: &[1; 100],
        truncate_epoch: 0,
    })
}

/// A write of another host holds up what its host sends after it, among that the bytes for which it may
/// wait here; so it is told that it waits, and can be withdrawn.
#[test]
fn a_write_that_waits_for_space_to_fill_can_be_withdrawn() {
    let mut world = small(1);
    let ticket = starving_write(&mut world);
    assert_eq!(world.waits.iter().filter(|&&waits| waits == ticket).count(), 1);
    assert!(!world.answers.contains_key(&ticket));
    world.look(20, 0, &[]);
    assert_eq!(world.waits.iter().filter(|&&waits| waits == ticket).count(), 1, "told again");
    world.step(Input::Withdraw { ticket }, &[]);
    let (answer, _) = wait(&mut world, ticket, 0);
    assert!(matches!(answer, Answer::Busy { .. }), "{answer:?}");
}

/// Moves that are to free space may wait for some: writeback is asked before they have failed.
#[test]
fn writeback_is_asked_while_something_else_may_free_space() {
    let mut world = small(1);
    world.saved.may_free = Some(false);
    starving_write(&mut world);
    let before = world.asked;
    (0..2 * 200).for_each(|_| world.look(1, 0, &[]));
    assert!(world.asked > before);
}
