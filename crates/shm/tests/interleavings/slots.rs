//! Claims of slots: one owner at a time, also while slots of dead threads are taken over.

use crate::support::{Both, SECOND, join, spawn};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::Errno;

/// All slots but one are taken, and the free one was last owned by a thread that has ended.
fn nearly_full() -> Arc<Both> {
    let both = Arc::new(Both::new());
    let taken = (0..63).map(|_| both.session.claim(SECOND).expect("a slot"));
    let taken = model::uninterrupted(|| taken.collect::<Vec<_>>());
    let before = Arc::clone(&both);
    let before = model::spawn(move || model::uninterrupted(|| drop(before.session.claim(SECOND))));
    before.join().expect("not killed");
    taken.into_iter().for_each(std::mem::forget);
    both
}

/// A slot is owned by one thread at a time, and every thread gets it in its turn, though some are
/// killed between any two steps.
#[test]
fn a_slot_has_one_holder() {
    model::explore(3000, || {
        let both = nearly_full();
        // Threads that were killed wake no others.
        model::allow_late_time_outs();
        let holders = Arc::new(AtomicU32::new(0));
        let threads = [true, false, false].map(|dies| {
            let (both, holders) = (Arc::clone(&both), Arc::clone(&holders));
            model::spawn(move || {
                if dies {
                    model::kill_after(30);
                    return drop(both.session.claim(SECOND));
                }
                let slot = both.session.claim(SECOND).expect("a slot");
                assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one slot");
                holders.fetch_sub(1, Ordering::Relaxed);
                drop(slot);
            })
        });
        for thread in threads {
            thread.join();
        }
        let last = model::uninterrupted(|| both.session.claim(SECOND).map(|slot| slot.index()));
        assert!(last.is_ok(), "the slot is lost");
    });
}

/// Every thread that waits for a slot is woken when its turn comes, without a time-out.
#[test]
fn a_waiter_for_a_slot_is_woken() {
    model::explore(3000, || {
        let both = nearly_full();
        let holders = Arc::new(AtomicU32::new(0));
        let threads = [(); 3].map(|()| {
            let (both, holders) = (Arc::clone(&both), Arc::clone(&holders));
            model::spawn(move || {
                for _ in 0..2 {
                    let slot = both.session.claim(SECOND).expect("a slot");
                    assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one slot");
                    holders.fetch_sub(1, Ordering::Relaxed);
                    drop(slot);
                }
            })
        });
        let _ = threads.map(model::Thread::join);
        assert!(model::uninterrupted(|| both.session.try_claim().is_ok()), "a thread waits on");
    });
}

/// Takes a slot for a request, which the daemon must find whatever happens to the caller meanwhile.
/// Nothing else is submitted.
fn ask_to_be_found(both: &Both) {
    let mut slot = both.session.claim(SECOND).expect("a slot");
    slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
    slot.submit(0, &both.bells, 5).expect("worker 0");
    assert!(both.session.has_waiting(), "the daemon would not find the request");
    both.session.reply(slot.index(), &[]);
}

fn assert_a_slot_is_free(both: &Both) {
    let last = model::uninterrupted(|| both.session.claim(SECOND).map(|slot| slot.index()));
    assert!(last.is_ok(), "the slot is lost");
}

/// A request is found by a look at all slots, although other threads claim and free its slot before.
#[test]
fn a_request_is_found_in_a_slot_that_changes_hands() {
    model::explore(3000, || {
        let both = nearly_full();
        model::allow_late_time_outs();
        let others = [(); 2]
            .map(|()| spawn(&both, |both| drop(both.session.claim(SECOND).expect("a slot"))));
        let asks = spawn(&both, ask_to_be_found);
        join(others.into_iter().chain([asks]));
        assert_a_slot_is_free(&both);
    });
}

/// So is that of a thread that takes the slot of a dead one over, just when the daemon frees it.
#[test]
fn a_request_is_found_in_a_slot_that_the_daemon_frees() {
    model::explore(3000, || {
        let both = nearly_full();
        model::allow_late_time_outs();
        let dead = spawn(&both, |both| {
            model::uninterrupted(|| {
                let slot = both.prepare(1);
                let index = slot.index();
                slot.submit_detached(0, &both.bells, 5).expect("worker 0");
                index
            })
        });
        let left = dead.join().expect("not killed");
        let asks = spawn(&both, ask_to_be_found);
        let frees = spawn(&both, move |both| both.session.reply(left, &[]));
        join([asks, frees]);
        assert_a_slot_is_free(&both);
    });
}
