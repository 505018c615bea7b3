//! Doorbell and slot: no wake-up is lost, no reply is read early, and a killed client harms only
//! its own request.

use crate::support::{Both, SECOND, join, spawn};
use shm::session::Interruptible;
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A worker that answers until it is ended.
struct Worker {
    thread: model::Thread<()>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn start(both: &Arc<Both>) -> Worker {
        let stop = Arc::new(AtomicBool::new(false));
        let reported = Arc::clone(&stop);
        let thread = spawn(both, move |both| {
            while !reported.load(Ordering::Relaxed) {
                both.answer();
            }
        });
        Worker { thread, stop }
    }

    fn end(self, both: &Both) {
        self.stop.store(true, Ordering::Relaxed);
        both.bells.wake(0).expect("worker 0");
        join([self.thread]);
    }
}

#[test]
fn every_request_is_answered_and_nobody_sleeps_for_ever() {
    model::explore(1500, || {
        let both = Arc::new(Both::new());
        let clients = [0x1122_3344_5566_7788u64, 0x0102_0304_0506_0708].map(|word| {
            spawn(&both, move |both| {
                both.ask(word);
                both.ask(word ^ 0xff);
            })
        });
        both.serve(4);
        join(clients);
    });
}

#[test]
fn a_client_that_is_killed_harms_only_its_own_request() {
    model::explore(2000, || {
        let both = Arc::new(Both::new());
        let worker = Worker::start(&both);
        let victim = spawn(&both, |both| {
            model::kill_after(40);
            both.ask(0x1122_3344_5566_7788);
        });
        let other = spawn(&both, |both| (1..3).for_each(|word| both.ask(word)));
        victim.join();
        join([other]);
        both.ask(77);
        worker.end(&both);
    });
}

/// Another thread takes the rings of a worker that sleeps, for a while: no ring is lost.
#[test]
fn a_watcher_and_the_worker_miss_nothing() {
    model::explore(3000, || {
        let both = Arc::new(Both::new());
        let worker = Worker::start(&both);
        let watcher = spawn(&both, |both| {
            for _ in 0..2 {
                loop {
                    for _ in 0..2 {
                        if both.bells.watch(0) {
                            both.look();
                        }
                    }
                    if both.bells.unwatch(0) {
                        break;
                    }
                }
            }
        });
        let client = spawn(&both, |both| {
            both.ask(0x1122_3344_5566_7788);
            both.ask(0x0102_0304_0506_0708);
        });
        both.ask(3);
        join([client, watcher]);
        both.ask(4);
        worker.end(&both);
    });
}

/// Giving up and the answer meet: whichever comes first, the slot comes back.
#[test]
fn a_slot_comes_back_when_its_request_is_given_up() {
    model::explore(2000, || {
        let both = Arc::new(Both::new());
        model::allow_time_outs();
        let worker = spawn(&both, |both| both.serve(1));
        let mut slot = both.prepare(1);
        slot.submit(0, &both.bells, 5).expect("worker 0");
        // The daemon looks gone once the first sleep is over.
        let _ = slot.wait(SECOND, Interruptible::No, || false);
        drop(slot);
        join([worker]);
        model::uninterrupted(|| {
            let all = (0..64).map(|_| both.session.claim(10)).collect::<Result<Vec<_>, _>>();
            assert!(all.is_ok(), "a slot is lost");
        });
    });
}
