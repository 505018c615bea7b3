//! Pages of a new extent: every written byte is kept, and no old byte shows.

use crate::support::{LENGTH, OneTarget, PAGE, SECOND, join, spawn};
use shm::sync::model;
use std::sync::Arc;

const HALF: usize = PAGE / 2;

fn writer(all: &Arc<OneTarget>, at: usize, length: usize, byte: u8) -> model::Thread<()> {
    spawn(all, move |all| all.write(at, length, byte))
}

/// Explores `test` with the two pages of a short extent and with those of two groups, of which
/// `valid` are valid.
fn explore(count: usize, valid: u64, test: fn(Arc<OneTarget>)) {
    for create in [OneTarget::new, OneTarget::long] {
        model::explore(count, move || test(Arc::new(create(valid))));
    }
}

#[test]
fn writers_of_one_page_keep_each_others_bytes_and_readers_see_no_old_ones() {
    explore(1500, 0, |all| {
        let writers = [writer(&all, 0, HALF, 1), writer(&all, HALF, HALF, 2)];
        let seen = all.read();
        assert!(seen.iter().all(|&byte| byte <= 2), "an old byte");
        join(writers);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1), "the first half");
        assert!(read[HALF..PAGE].iter().all(|&byte| byte == 2), "the second half");
        assert!(read[PAGE..].iter().all(|&byte| byte == 0), "bytes that nobody wrote");
    });
}

/// A thread that ended after it wrote another page of the extent is not taken for the claimer of
/// this one.
#[test]
fn a_claim_of_the_living_is_not_taken_over() {
    explore(3000, 0, |all| {
        let writers =
            [writer(&all, PAGE, HALF, 3), writer(&all, 0, PAGE, 7), writer(&all, HALF, 100, 8)];
        join(writers);
        let read = model::uninterrupted(|| all.read());
        let whole = [&read[..HALF], &read[HALF + 100..PAGE]];
        assert!(whole.iter().all(|part| part.iter().all(|&byte| byte == 7)), "lost bytes");
        assert!(read[HALF..HALF + 100].iter().all(|byte| [7, 8].contains(byte)));
        assert!(read[PAGE..PAGE + HALF].iter().all(|&byte| byte == 3));
    });
}

/// A writer is stopped between any two steps for longer than others wait, and then resumes: they
/// get an error, and every acknowledged byte is there.
#[test]
fn a_claim_of_a_stopped_thread_is_not_taken_over() {
    explore(4000, 0, |all| {
        let parts = [(HALF, PAGE, 2), (0, HALF, 1), (PAGE + HALF, HALF, 3)];
        let mut writers = parts.map(|(at, length, byte)| {
            let writer = spawn(&all, move |all| {
                if byte == 2 {
                    model::stop_after(30);
                }
                all.try_write(at, length, byte).is_ok()
            });
            Some(writer)
        });
        model::advance_clock_by(SECOND / 10);
        let others = [1, 2].map(|number| writers[number].take().map(model::Thread::join));
        model::resume_all();
        let first = writers[0].take().map(model::Thread::join);
        let read = model::uninterrupted(|| all.read());
        for ((at, length, byte), outcome) in parts.into_iter().zip([first, others[0], others[1]]) {
            let is_written = outcome == Some(Some(true));
            let allowed = |found: u8| found == byte || (!is_written && found == 0);
            assert!(read[at..at + length].iter().all(|&found| allowed(found)), "lost bytes");
        }
    });
}

/// A page of a dead thread becomes valid, is invalidated and claimed again while another thread
/// checks whether its claimer lives: the new one keeps it.
#[test]
fn a_page_that_is_claimed_again_is_not_taken_over() {
    const QUARTER: usize = PAGE / 4;
    explore(4000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::kill_after(20);
            all.write(0, QUARTER, 9);
        });
        model::advance_clock_by(SECOND / 200);
        let others = [
            spawn(&all, |all| {
                model::stop_after(60);
                let _ = all.try_write(QUARTER, QUARTER, 1);
            }),
            spawn(&all, |all| {
                let _ = all.try_write(QUARTER, QUARTER, 1);
            }),
            spawn(&all, |all| {
                model::stop_after(40);
                all.zero(0, PAGE);
                if all.try_write(HALF, HALF, 3).is_ok() {
                    let read = all.read();
                    assert!(read[HALF..PAGE].iter().all(|&byte| byte == 3), "lost bytes");
                }
            }),
        ];
        victim.join();
        let [first, second, third] = others;
        join([second]);
        model::resume_all();
        join([first, third]);
        let read = model::uninterrupted(|| all.read());
        let last = read[HALF];
        assert!(read[HALF..PAGE].iter().all(|&byte| byte == last), "lost bytes");
        assert!(read[QUARTER..HALF].iter().all(|byte| [0, 1].contains(byte)), "old bytes");
        assert!(read[..QUARTER].iter().all(|byte| [0, 9].contains(byte)), "old bytes");
    });
}

/// A page that is written whole is claimed in the hazard slot, too.
#[test]
fn a_page_written_whole_is_not_zeroed_by_a_writer_of_a_part() {
    explore(20000, 0, |all| {
        let writers = [writer(&all, 0, PAGE, 7), writer(&all, HALF, 100, 7)];
        join(writers);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..PAGE].iter().all(|&byte| byte == 7), "lost bytes");
    });
}

/// A writer is killed between any two steps: others write the pages it had claimed, in the end.
#[test]
fn claims_of_dead_threads_are_taken_over() {
    explore(2000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::kill_after(30);
            all.write(HALF, PAGE + HALF, 9);
        });
        let other = writer(&all, 0, HALF, 1);
        victim.join();
        // Any thread that still waits, waits for a dead one.
        model::advance_clock_by(SECOND / 500);
        join([other]);
        join([writer(&all, PAGE, HALF, 2), writer(&all, PAGE + HALF, HALF, 3)]);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1));
        assert!(read[HALF..PAGE].iter().all(|byte| [0, 9].contains(byte)), "an old byte");
        assert!(read[PAGE..PAGE + HALF].iter().all(|&byte| byte == 2), "lost bytes");
        assert!(read[PAGE + HALF..].iter().all(|&byte| byte == 3), "lost bytes");
    });
}

/// As before, and a dead successor left a number that one of the writers has by now.
#[test]
fn a_reused_number_of_a_successor_lets_one_thread_take_over() {
    const QUARTER: usize = PAGE / 4;
    explore(4000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::kill_after(20);
            all.write(0, QUARTER, 9);
        });
        let number = spawn(&all, |_| shm::wait::thread_id());
        let next = number.join().expect("not killed") + 1;
        model::uninterrupted(|| all.leave_successor(next));
        model::advance_clock_by(SECOND / 500);
        let writers = [1, 2, 3].map(|part| writer(&all, part * QUARTER, QUARTER, part as u8));
        victim.join();
        join(writers);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..QUARTER].iter().all(|byte| [0, 9].contains(byte)), "an old byte");
        for (part, bytes) in (0..).zip(read[..PAGE].chunks(QUARTER)).skip(1) {
            assert!(bytes.iter().all(|&byte| byte == part), "lost bytes");
        }
    });
}

/// Adjacent blocks in one page, and the writer of one is killed between any two steps: nobody ever
/// reads old bytes, and the neighbour's are kept.
#[test]
fn a_writer_killed_in_a_shared_page_shows_no_old_bytes() {
    const QUARTER: usize = PAGE / 4;
    explore(4000, 0, |all| {
        let victim = spawn(&all, |all| {
            model::kill_after(20);
            all.write(QUARTER, PAGE, 9);
        });
        let writers =
            [writer(&all, 0, QUARTER, 1), writer(&all, PAGE + QUARTER, LENGTH - PAGE - QUARTER, 2)];
        let seen = all.read();
        victim.join();
        model::advance_clock_by(SECOND / 500);
        join(writers);
        let read = model::uninterrupted(|| all.read());
        for bytes in [&seen, &read] {
            assert!(bytes[..QUARTER].iter().all(|byte| [0, 1].contains(byte)), "an old byte");
            let middle = &bytes[QUARTER..PAGE + QUARTER];
            assert!(middle.iter().all(|byte| [0, 9].contains(byte)), "an old byte");
            assert!(bytes[PAGE + QUARTER..].iter().all(|byte| [0, 2].contains(byte)));
        }
        assert!(read[..QUARTER].iter().all(|&byte| byte == 1), "lost bytes");
        assert!(read[PAGE + QUARTER..].iter().all(|&byte| byte == 2), "lost bytes");
    });
}

/// Two writers whose ranges overlap do not wait for each other's claims in a circle.
#[test]
fn overlapping_writers_finish_before_any_timeout() {
    explore(2000, 0, |all| {
        let writers = [writer(&all, 0, PAGE + HALF, 1), writer(&all, HALF, PAGE + HALF, 2)];
        join(writers);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 1));
        assert!(read[HALF..PAGE + HALF].iter().all(|byte| [1, 2].contains(byte)));
        assert!(read[PAGE + HALF..].iter().all(|&byte| byte == 2));
    });
}

/// A hole is punched in a valid page while a writer writes into it and into a new one.
#[test]
fn a_punched_hole_does_not_show_old_bytes() {
    explore(2000, 1, |all| {
        let writers = [writer(&all, HALF, PAGE, 1), writer(&all, HALF, 100, 1)];
        all.zero(0, PAGE);
        all.write(HALF, 50, 2);
        join(writers);
        let read = model::uninterrupted(|| all.read());
        assert!(read[..HALF].iter().all(|&byte| byte == 0), "old bytes are back");
        assert!(read[HALF..HALF + 50].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
        assert!(read[HALF + 50..PAGE].iter().all(|&byte| byte <= 1), "old bytes are back");
        assert!(read[PAGE..PAGE + HALF].iter().all(|&byte| byte == 1));
        assert!(read[PAGE + HALF..LENGTH].iter().all(|&byte| byte == 0));
    });
}
