//! Granules of a new piece: every written byte is kept, and no old byte shows.

use crate::support::{GRANULE, LENGTH, OneTarget, SECOND, join, spawn};
use shm::sync::model;
use std::sync::Arc;

const HALF: usize = GRANULE / 2;

fn writer(all: &Arc<OneTarget>, at: usize, length: usize, byte: u8) -> model::Thread<()> {
    spawn(all, move |all| all.write(at, length, byte))
}

/// Explores `test` with the two granules of a short piece and with those of two stretches, of which
/// `valid` are defined.
fn explore(count: usize, valid: u64, test: fn(Arc<OneTarget>)) {
    for make in [OneTarget::new, OneTarget::long] {
        model::explore(count, move || test(Arc::new(make(valid))));
    }
}

#[test]
fn writers_of_one_granule_keep_each_others_bytes_and_readers_see_no_old_ones() {
    explore(1500, 0, |all| {
        let writers = [writer(&all, 0, HALF, 1), writer(&all, HALF, HALF, 2)];
        let seen = all.read();
        assert!(seen.iter().all(|&byte| byte <= 2), "an old byte");
        join(writers);
        let read = model::quietly(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1), "the first half");
        assert!(read[HALF..GRANULE].iter().all(|&byte| byte == 2), "the second half");
        assert!(read[GRANULE..].iter().all(|&byte| byte == 0), "what nobody wrote");
    });
}

/// Who ended after writing another granule of the piece is not taken for the claimer of this one.
#[test]
fn a_claim_of_the_living_is_not_taken_over() {
    explore(3000, 0, |all| {
        let writers = [
            writer(&all, GRANULE, HALF, 3),
            writer(&all, 0, GRANULE, 7),
            writer(&all, HALF, 100, 8),
        ];
        join(writers);
        let read = model::quietly(|| all.read());
        let whole = [&read[..HALF], &read[HALF + 100..GRANULE]];
        assert!(whole.iter().all(|part| part.iter().all(|&byte| byte == 7)), "lost bytes");
        assert!(read[HALF..HALF + 100].iter().all(|byte| [7, 8].contains(byte)));
        assert!(read[GRANULE..GRANULE + HALF].iter().all(|&byte| byte == 3));
    });
}

/// A writer stands still between any two steps for longer than others wait, and then goes on: they are
/// told so, and what was acknowledged, to whomever, is there.
#[test]
fn a_claim_of_who_stands_still_is_not_taken_over() {
    explore(4000, 0, |all| {
        let parts = [(HALF, GRANULE, 2), (0, HALF, 1), (GRANULE + HALF, HALF, 3)];
        let mut writers = parts.map(|(at, length, byte)| {
            let writer = spawn(&all, move |all| {
                if byte == 2 {
                    model::stop(30);
                }
                all.try_write(at, length, byte).is_ok()
            });
            Some(writer)
        });
        model::hurry(SECOND / 10);
        let others = [1, 2].map(|number| writers[number].take().map(model::Thread::join));
        model::go_on();
        let first = writers[0].take().map(model::Thread::join);
        let read = model::quietly(|| all.read());
        for ((at, length, byte), outcome) in parts.into_iter().zip([first, others[0], others[1]]) {
            let is_written = outcome == Some(Some(true));
            let allowed = |found: u8| found == byte || (!is_written && found == 0);
            assert!(read[at..at + length].iter().all(|&found| allowed(found)), "lost bytes");
        }
    });
}

/// A granule of the dead is defined, forgotten and claimed anew while somebody looks whether its
/// claimer lives: the new one keeps it.
#[test]
fn a_granule_that_is_claimed_anew_is_not_taken_over() {
    const QUARTER: usize = GRANULE / 4;
    explore(4000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::doom(20);
            all.write(0, QUARTER, 9);
        });
        model::hurry(SECOND / 200);
        let others = [
            spawn(&all, |all| {
                model::stop(60);
                let _ = all.try_write(QUARTER, QUARTER, 1);
            }),
            spawn(&all, |all| {
                let _ = all.try_write(QUARTER, QUARTER, 1);
            }),
            spawn(&all, |all| {
                model::stop(40);
                all.zero(0, GRANULE);
                if all.try_write(HALF, HALF, 3).is_ok() {
                    let read = all.read();
                    assert!(read[HALF..GRANULE].iter().all(|&byte| byte == 3), "lost bytes");
                }
            }),
        ];
        victim.join();
        let [first, second, third] = others;
        join([second]);
        model::go_on();
        join([first, third]);
        let read = model::quietly(|| all.read());
        let last = read[HALF];
        assert!(read[HALF..GRANULE].iter().all(|&byte| byte == last), "lost bytes");
        assert!(read[QUARTER..HALF].iter().all(|byte| [0, 1].contains(byte)), "old bytes");
        assert!(read[..QUARTER].iter().all(|byte| [0, 9].contains(byte)), "old bytes");
    });
}

/// A granule that is written whole is announced, too.
#[test]
fn a_granule_written_whole_is_not_zeroed_by_who_writes_a_part() {
    explore(20000, 0, |all| {
        let writers = [writer(&all, 0, GRANULE, 7), writer(&all, HALF, 100, 7)];
        join(writers);
        let read = model::quietly(|| all.read());
        assert!(read[..GRANULE].iter().all(|&byte| byte == 7), "lost bytes");
    });
}

/// A writer is killed between any two steps: others write what it had claimed, in the end.
#[test]
fn the_claims_of_the_dead_are_taken_over() {
    explore(2000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::doom(30);
            all.write(HALF, GRANULE + HALF, 9);
        });
        let other = writer(&all, 0, HALF, 1);
        victim.join();
        // Whoever still waits, waits for the dead.
        model::hurry(SECOND / 500);
        join([other]);
        join([writer(&all, GRANULE, HALF, 2), writer(&all, GRANULE + HALF, HALF, 3)]);
        let read = model::quietly(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1));
        assert!(read[HALF..GRANULE].iter().all(|byte| [0, 9].contains(byte)), "an old byte");
        assert!(read[GRANULE..GRANULE + HALF].iter().all(|&byte| byte == 2), "lost bytes");
        assert!(read[GRANULE + HALF..].iter().all(|&byte| byte == 3), "lost bytes");
    });
}

/// Blocks side by side in one granule, and the writer of one is killed between any two steps: nobody
/// ever reads old bytes, and the neighbours' are kept.
#[test]
fn a_writer_killed_in_a_granule_that_he_shares_shows_no_old_bytes() {
    const QUARTER: usize = GRANULE / 4;
    explore(4000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::doom(20);
            all.write(QUARTER, GRANULE, 9);
        });
        let writers = [
            writer(&all, 0, QUARTER, 1),
            writer(&all, GRANULE + QUARTER, LENGTH - GRANULE - QUARTER, 2),
        ];
        let seen = all.read();
        victim.join();
        model::hurry(SECOND / 500);
        join(writers);
        let read = model::quietly(|| all.read());
        for bytes in [&seen, &read] {
            assert!(bytes[..QUARTER].iter().all(|byte| [0, 1].contains(byte)), "an old byte");
            let middle = &bytes[QUARTER..GRANULE + QUARTER];
            assert!(middle.iter().all(|byte| [0, 9].contains(byte)), "an old byte");
            assert!(bytes[GRANULE + QUARTER..].iter().all(|byte| [0, 2].contains(byte)));
        }
        assert!(read[..QUARTER].iter().all(|&byte| byte == 1), "lost bytes");
        assert!(read[GRANULE + QUARTER..].iter().all(|&byte| byte == 2), "lost bytes");
    });
}

/// Two writers whose ranges overlap do not wait for each other's claims in a ring.
#[test]
fn writers_that_overlap_come_to_their_end_before_any_time_is_over() {
    explore(2000, 0, |all| {
        let writers = [writer(&all, 0, GRANULE + HALF, 1), writer(&all, HALF, GRANULE + HALF, 2)];
        join(writers);
        let read = model::quietly(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1));
        assert!(read[HALF..GRANULE + HALF].iter().all(|byte| [1, 2].contains(byte)));
        assert!(read[GRANULE + HALF..].iter().all(|&byte| byte == 2));
    });
}

/// A hole is made in a defined granule while somebody writes into it and into a new one.
#[test]
fn a_hole_does_not_fill_with_what_was_there() {
    explore(2000, 1, |all| {
        let writers = [writer(&all, HALF, GRANULE, 1), writer(&all, HALF, 100, 1)];
        all.zero(0, GRANULE);
        all.write(HALF, 50, 2);
        join(writers);
        let read = model::quietly(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 0), "old bytes are back");
        assert!(read[HALF..HALF + 50].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
        assert!(read[HALF + 50..GRANULE].iter().all(|&byte| byte <= 1), "old bytes are back");
        assert!(read[GRANULE..GRANULE + HALF].iter().all(|&byte| byte == 1));
        assert!(read[GRANULE + HALF..LENGTH].iter().all(|&byte| byte == 0));
    });
}
