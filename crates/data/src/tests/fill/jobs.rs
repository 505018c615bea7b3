//! Jobs take turns at the backing store (`admission::job_shares`).

use super::*;
use wire::JobWord;

/// Reads of the first bytes of so many files, by a job; files are numbered from `first`.
fn read_files(world: &mut FillWorld, (user, number): (u32, u32), first: u64, count: u64) {
    for file in first..first + count {
        let inode = Inode(BACKED_FIRST + file);
        world.backed_ends.insert(inode, 4096);
        world.ticket += 1;
        let request = Request::Read { inode, stripe_log2: STRIPE_LOG2, offset: 0, length: 4096 };
        let (ticket, job) = (world.ticket, JobWord { user, number, dirty_mib_max: 0 });
        world.step(Input::Request { ticket, request: &request, job }, &[]);
    }
}

/// The shard says how much of each file the backing store has.
fn locate_files(world: &mut FillWorld) {
    for inode in std::mem::take(&mut world.end_queries) {
        world.step(Input::BackingLocated { inode, outcome: Ok((4096, LAYOUT)) }, &[]);
    }
}

/// The fill that began first ends.
fn end_fill(world: &mut FillWorld) -> u64 {
    let fill = world.fills.remove(0);
    world.step(Input::Filled { ticket: fill.ticket, outcome: Ok(()) }, &[]);
    fill.inode.0 - BACKED_FIRST
}

fn is_filled(world: &FillWorld, file: u64) -> bool {
    world.fills.iter().any(|fill| fill.inode == Inode(BACKED_FIRST + file))
}

/// A target whose places are all taken: 20 by the first job of a user, 12 by the second one, which have
/// 30 and 20 readers.
fn full() -> FillWorld {
    let mut world = FillWorld::with([16 << 20, 0], DemotionSettings::NEVER);
    read_files(&mut world, (1, 1), 0, 30);
    locate_files(&mut world);
    assert_eq!(world.fills.len(), 20, "one job leaves some for others");
    read_files(&mut world, (1, 2), 30, 20);
    locate_files(&mut world);
    assert_eq!(world.fills.len(), 32, "as many as there may be");
    world
}

#[test]
fn a_job_with_one_reader_does_not_wait_for_those_with_many() {
    let mut world = full();
    read_files(&mut world, (1, 3), 60, 3);
    read_files(&mut world, (2, 1), 70, 2);
    locate_files(&mut world);
    assert_eq!([60, 70].map(|file| is_filled(&world, file)), [false; 2]);
    // The next places are for the other user, and then for the other job of this one.
    for (file, ended) in [(70, 0), (71, 1), (60, 2), (61, 3), (62, 4)] {
        assert_eq!(end_fill(&mut world), ended);
        assert!(is_filled(&world, file), "file {file}");
    }
    // The rest is for the first jobs again, and each of their readers is answered.
    while !world.fills.is_empty() {
        end_fill(&mut world);
        assert!(world.fills.len() <= 32);
    }
    assert_eq!(world.answers.len(), 55);
    assert!(world.answers.values().all(|(answer, _)| matches!(answer, Answer::Bytes { .. })));
}

/// A backing store that stands still for the files of one job: nothing of it ends.
#[test]
fn others_are_served_while_nothing_of_a_job_ends() {
    let mut world = FillWorld::with([16 << 20, 0], DemotionSettings::NEVER);
    read_files(&mut world, (1, 1), 0, 30);
    read_files(&mut world, (1, 2), 40, 5);
    locate_files(&mut world);
    for _ in 0..5 {
        let other = world.fills.iter().position(|fill| fill.inode.0 - BACKED_FIRST >= 40);
        let fill = world.fills.remove(other.expect("one of the other job"));
        world.step(Input::Filled { ticket: fill.ticket, outcome: Ok(()) }, &[]);
    }
    assert_eq!((world.answers.len(), world.fills.len()), (5, 20));
}

/// A reader that is gone keeps no place free.
#[test]
fn a_withdrawn_request_holds_up_nobody() {
    let mut world = full();
    read_files(&mut world, (2, 1), 70, 1);
    locate_files(&mut world);
    let ticket = world.ticket;
    world.step(Input::Withdraw { ticket }, &[]);
    for ended in 0..8 {
        assert_eq!(end_fill(&mut world), ended);
        assert_eq!(world.fills.len(), 32, "each place is used at once");
    }
}
