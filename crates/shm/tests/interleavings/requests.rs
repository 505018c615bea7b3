//! Doorbell and slot: no wake-up is lost, no reply is read early, and who is killed harms only its
//! own request.

use crate::support::{Both, SECOND};
use shm::session::Interruptible;
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn every_request_is_answered_and_nobody_sleeps_for_ever() {
    model::explore(1500, || {
        let both = Arc::new(Both::new());
        let clients = [0x1122_3344_5566_7788u64, 0x0102_0304_0506_0708].map(|word| {
            let both = Arc::clone(&both);
            model::spawn(move || {
                both.ask(word);
                both.ask(word ^ 0xff);
            })
        });
        both.serve(4);
        for client in clients {
            client.join().expect("not killed");
        }
    });
}

#[test]
fn a_client_that_is_killed_harms_only_its_own_request() {
    model::explore(2000, || {
        let both = Arc::new(Both::new());
        let stop = Arc::new(AtomicBool::new(false));
        let worker = {
            let (both, stop) = (Arc::clone(&both), Arc::clone(&stop));
            model::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    both.answer();
                }
            })
        };
        let victim = Arc::clone(&both);
        let victim = model::spawn(move || {
            model::doom(40);
            victim.ask(0x1122_3344_5566_7788);
        });
        let other = Arc::clone(&both);
        let other = model::spawn(move || {
            for word in 1..3 {
                other.ask(word);
            }
        });
        victim.join();
        other.join().expect("not killed");
        both.ask(77);
        stop.store(true, Ordering::Relaxed);
        both.bells.kick(0).expect("worker 0");
        worker.join().expect("not killed");
    });
}

/// Another thread takes the rings of a worker that sleeps, for a while: no ring is left to nobody.
#[test]
fn who_watches_and_the_worker_miss_nothing() {
    model::explore(3000, || {
        let both = Arc::new(Both::new());
        let stop = Arc::new(AtomicBool::new(false));
        let worker = {
            let (both, stop) = (Arc::clone(&both), Arc::clone(&stop));
            model::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    both.answer();
                }
            })
        };
        let watcher = Arc::clone(&both);
        let watcher = model::spawn(move || {
            for _ in 0..2 {
                loop {
                    for _ in 0..2 {
                        if watcher.bells.watch(0) {
                            watcher.look();
                        }
                    }
                    if watcher.bells.unwatch(0) {
                        break;
                    }
                }
            }
        });
        let client = Arc::clone(&both);
        let client = model::spawn(move || {
            client.ask(0x1122_3344_5566_7788);
            client.ask(0x0102_0304_0506_0708);
        });
        both.ask(3);
        client.join().expect("not killed");
        watcher.join().expect("not killed");
        both.ask(4);
        stop.store(true, Ordering::Relaxed);
        both.bells.kick(0).expect("worker 0");
        worker.join().expect("not killed");
    });
}

/// Giving up and the answer meet: whichever comes first, the slot comes back.
#[test]
fn a_slot_comes_back_when_its_request_is_given_up() {
    model::explore(2000, || {
        let both = Arc::new(Both::new());
        model::allow_time_outs();
        let worker = Arc::clone(&both);
        let worker = model::spawn(move || worker.serve(1));
        let mut slot = both.prepare(1);
        slot.submit(0, &both.bells, 5).expect("worker 0");
        // The daemon looks gone once the first sleep is over.
        let _ = slot.wait(SECOND, Interruptible::No, || false);
        drop(slot);
        worker.join().expect("not killed");
        model::quietly(|| {
            let all = (0..64).map(|_| both.session.claim(10)).collect::<Result<Vec<_>, _>>();
            assert!(all.is_ok(), "a slot is lost");
        });
    });
}
