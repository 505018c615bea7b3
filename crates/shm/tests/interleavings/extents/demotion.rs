//! An extent moves to the SSD under clients that write and read: no written byte is lost, any
//! request for it ends the move, and a daemon that is killed in the middle leaves one extent, with
//! all bytes.

use crate::support::{EXTENT, FILE, LENGTH, OneTarget, join, spawn};
use shm::extents::Use;
use shm::sync::{AtomicU32, model};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::reply::Extent;

const DEMOTED: Extent = Extent { slot: 1, tier: Extent::SSD, ..EXTENT };

/// State of the worker: requests and ends of copies reach it one after the other.
const RESTS: u32 = 0;
const MOVES: u32 = 1;
const ENDS: u32 = 2;
const MOVED: u32 = 3;

struct Demotion {
    one: OneTarget,
    state: AtomicU32,
}

impl Demotion {
    /// The first page is valid, the second is not.
    fn new() -> Arc<Demotion> {
        Arc::new(Demotion { one: OneTarget::new(1), state: AtomicU32::new(RESTS) })
    }

    /// Moves the extent, as daemons do: steps that are concurrent here are done by one thread
    /// there.
    fn demote(&self) {
        let OneTarget { table, states, .. } = &self.one;
        table.hide(EXTENT.slot).expect("slot 0");
        self.state.store(MOVES, SeqCst);
        if self.one.is_protected() {
            return self.end_move();
        }
        self.one.target().copy(&EXTENT, &DEMOTED, &mut [0; 4096]).expect("copied");
        if self.state.compare_exchange(MOVES, ENDS, SeqCst, SeqCst).is_ok() {
            states.reset_as(&EXTENT, &DEMOTED).expect("slot 1");
            table.publish(FILE, &DEMOTED).expect("slot 1");
            table.unpublish(EXTENT.slot).expect("slot 0");
            self.state.store(MOVED, SeqCst);
        }
    }

    fn end_move(&self) {
        if self.state.compare_exchange(MOVES, RESTS, SeqCst, SeqCst).is_ok() {
            self.one.table.show(EXTENT.slot).expect("slot 0");
        }
    }

    /// The location of the extent, as the daemon answers a request for it.
    fn ask(&self) -> Extent {
        self.end_move();
        while self.state.load(SeqCst) == ENDS {
            shm::sync::spin_loop();
        }
        if self.state.load(SeqCst) == MOVED { DEMOTED } else { EXTENT }
    }

    /// Runs `done` on the extent where it is.
    fn on_extent(&self, done: impl Fn(&Extent) -> bool) {
        let mut extent = EXTENT;
        while !done(&extent) {
            shm::sync::spin_loop();
            extent = self.ask();
        }
    }

    fn write(&self, at: usize, byte: u8) {
        let one = &self.one;
        self.on_extent(|extent| {
            let done = one.target().write(&one.hazards(), FILE, extent, at as u64, &[byte; 100]);
            done.expect("written").is_ok()
        });
    }

    fn read(&self) -> Vec<u8> {
        let (one, bytes) = (&self.one, std::cell::RefCell::new(vec![1; LENGTH]));
        self.on_extent(|extent| {
            let mut bytes = bytes.borrow_mut();
            one.target().read(&one.hazards(), FILE, extent, 0, &mut bytes).expect("read").is_ok()
        });
        bytes.into_inner()
    }

    /// One entry is shown, and all written bytes are there.
    fn check(&self) {
        let entries = [EXTENT, DEMOTED].map(|extent| self.one.table.get(extent.slot));
        assert!(
            entries == [Some((FILE, EXTENT)), None] || entries == [None, Some((FILE, DEMOTED))]
        );
        let bytes = self.read();
        assert!(bytes[..100].iter().all(|&byte| byte == 7), "the first page lost a write");
        assert!(bytes[100..4096].iter().all(|&byte| byte == 0xee), "it lost its old bytes");
        assert!(bytes[4096..4196].iter().all(|&byte| byte == 8), "the second one did");
        assert!(bytes[4196..].iter().all(|&byte| byte == 0), "bytes of another file");
    }
}

#[test]
fn an_extent_that_moves_loses_no_byte() {
    model::explore(4000, || {
        let all = Demotion::new();
        let writers = [(0, 7), (4096, 8)].map(|(at, byte)| {
            spawn(&all, move |all| {
                all.write(at, byte);
                let bytes = all.read();
                assert!(
                    bytes[at..at + 100].iter().all(|&one| one == byte),
                    "other bytes than written"
                );
            })
        });
        all.demote();
        join(writers);
        model::uninterrupted(|| all.check());
    });
}

/// The next daemon shows extents that it finds hidden, unless the same range is shown elsewhere.
#[test]
fn a_daemon_that_dies_moving_leaves_one_extent() {
    model::explore(4000, || {
        let all = Demotion::new();
        let writer = spawn(&all, |all| all.write(0, 7));
        let daemon = spawn(&all, |all| {
            model::kill_after(30);
            all.demote();
        });
        // Its clients go on; one that finds the extent hidden waits for the next daemon.
        daemon.join();
        let table = &all.one.table;
        let moved = table.get(DEMOTED.slot) == Some((FILE, DEMOTED));
        if table.hidden(EXTENT.slot) == Some((FILE, EXTENT)) {
            if moved {
                table.unpublish(EXTENT.slot).expect("slot 0");
            } else {
                table.show(EXTENT.slot).expect("slot 0");
            }
        }
        all.state.store(if moved { MOVED } else { RESTS }, SeqCst);
        writer.join();
        all.write(4096, 8);
        model::uninterrupted(|| all.check());
    });
}

/// A mapping noted under a hazard pointer is seen by a daemon that hid the extent and found no
/// hazard pointer.
#[test]
fn the_daemon_sees_a_mapping_or_the_mapper_sees_the_move() {
    model::explore(3000, || {
        let all = Demotion::new();
        let mapper = spawn(&all, |all| {
            let one = &all.one;
            let how = Use::Write;
            one.target().make_all_valid(&one.hazards(), FILE, &EXTENT, how).expect("valid").is_ok()
        });
        all.one.table.hide(EXTENT.slot).expect("slot 0");
        let moves = !all.one.is_protected() && !all.one.states.is_mapped(EXTENT.slot);
        let mapped = mapper.join().expect("not killed");
        assert!(!(moves && mapped), "it moves away from under a mapping");
    });
}
