//! A piece moves to the SSD under clients that write and read: no byte that was written is lost, whoever
//! asks ends the move, and a daemon that is killed in the middle leaves one piece, with all bytes.

use crate::support::{FILE, LENGTH, OneTarget, PIECE, join, spawn};
use shm::pieces::Use;
use shm::sync::{AtomicU32, model};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::reply::Piece;

const SUNK: Piece = Piece { slot: 1, tier: Piece::SSD, ..PIECE };

/// What the worker knows: requests and ends of copies come to it one after the other.
const RESTS: u32 = 0;
const MOVES: u32 = 1;
const ENDS: u32 = 2;
const MOVED: u32 = 3;

struct Sinking {
    one: OneTarget,
    state: AtomicU32,
}

impl Sinking {
    /// The first granule is defined, the second is not.
    fn new() -> Arc<Sinking> {
        Arc::new(Sinking { one: OneTarget::new(1), state: AtomicU32::new(RESTS) })
    }

    /// Moves the piece, as daemons do: what others do here at once is done by one thread there.
    fn sink(&self) {
        let OneTarget { table, states, .. } = &self.one;
        table.hide(PIECE.slot).expect("slot 0");
        self.state.store(MOVES, SeqCst);
        if self.one.is_pinned() {
            return self.end_move();
        }
        self.one.target().copy(&PIECE, &SUNK, &mut [0; 4096]).expect("copied");
        if self.state.compare_exchange(MOVES, ENDS, SeqCst, SeqCst).is_ok() {
            states.reset_as(&PIECE, &SUNK).expect("slot 1");
            table.publish(FILE, &SUNK).expect("slot 1");
            table.unpublish(PIECE.slot).expect("slot 0");
            self.state.store(MOVED, SeqCst);
        }
    }

    fn end_move(&self) {
        if self.state.compare_exchange(MOVES, RESTS, SeqCst, SeqCst).is_ok() {
            self.one.table.show(PIECE.slot).expect("slot 0");
        }
    }

    /// Where the piece is, as the daemon answers who asks.
    fn ask(&self) -> Piece {
        self.end_move();
        while self.state.load(SeqCst) == ENDS {
            shm::sync::spin_loop();
        }
        if self.state.load(SeqCst) == MOVED { SUNK } else { PIECE }
    }

    /// Does something with the piece where it is.
    fn on_piece(&self, done: impl Fn(&Piece) -> bool) {
        let mut piece = PIECE;
        while !done(&piece) {
            shm::sync::spin_loop();
            piece = self.ask();
        }
    }

    fn write(&self, at: usize, byte: u8) {
        let one = &self.one;
        self.on_piece(|piece| {
            let done = one.target().write(&one.pins(), FILE, piece, at as u64, &[byte; 100]);
            done.expect("written").is_ok()
        });
    }

    fn read(&self) -> Vec<u8> {
        let (one, bytes) = (&self.one, std::cell::RefCell::new(vec![1; LENGTH]));
        self.on_piece(|piece| {
            let mut bytes = bytes.borrow_mut();
            one.target().read(&one.pins(), FILE, piece, 0, &mut bytes).expect("read").is_ok()
        });
        bytes.into_inner()
    }

    /// One row is shown, and all that was written is there.
    fn check(&self) {
        let rows = [PIECE, SUNK].map(|piece| self.one.table.get(piece.slot));
        assert!(rows == [Some((FILE, PIECE)), None] || rows == [None, Some((FILE, SUNK))]);
        let bytes = self.read();
        assert!(bytes[..100].iter().all(|&byte| byte == 7), "the first granule lost a write");
        assert!(bytes[100..4096].iter().all(|&byte| byte == 0xee), "it lost what it had");
        assert!(bytes[4096..4196].iter().all(|&byte| byte == 8), "the second one did");
        assert!(bytes[4196..].iter().all(|&byte| byte == 0), "bytes of another file");
    }
}

#[test]
fn a_piece_that_moves_loses_no_byte() {
    model::explore(4000, || {
        let all = Sinking::new();
        let writers = [(0, 7), (4096, 8)].map(|(at, byte)| {
            spawn(&all, move |all| {
                all.write(at, byte);
                let bytes = all.read();
                assert!(bytes[at..at + 100].iter().all(|&one| one == byte), "not what I wrote");
            })
        });
        all.sink();
        join(writers);
        model::quietly(|| all.check());
    });
}

/// The next daemon shows what it finds hidden, unless the same range is shown elsewhere.
#[test]
fn a_daemon_that_dies_moving_leaves_one_piece() {
    model::explore(4000, || {
        let all = Sinking::new();
        let writer = spawn(&all, |all| all.write(0, 7));
        let daemon = spawn(&all, |all| {
            model::doom(30);
            all.sink();
        });
        // Its clients go on; who finds the piece hidden waits for the next daemon.
        daemon.join();
        let table = &all.one.table;
        let moved = table.get(SUNK.slot) == Some((FILE, SUNK));
        if table.hidden(PIECE.slot) == Some((FILE, PIECE)) {
            if moved {
                table.unpublish(PIECE.slot).expect("slot 0");
            } else {
                table.show(PIECE.slot).expect("slot 0");
            }
        }
        all.state.store(if moved { MOVED } else { RESTS }, SeqCst);
        writer.join();
        all.write(4096, 8);
        model::quietly(|| all.check());
    });
}

/// A mapping that is noted under a pin is seen by who hid the piece and found no pin.
#[test]
fn what_is_mapped_is_seen_or_the_mapper_sees_the_move() {
    model::explore(3000, || {
        let all = Sinking::new();
        let mapper = spawn(&all, |all| {
            let one = &all.one;
            let how = Use::Write;
            one.target().define_all(&one.pins(), FILE, &PIECE, how).expect("defined").is_ok()
        });
        all.one.table.hide(PIECE.slot).expect("slot 0");
        let moves = !all.one.is_pinned() && !all.one.states.is_mapped(PIECE.slot);
        let mapped = mapper.join().expect("not killed");
        assert!(!(moves && mapped), "it moves away from under a mapping");
    });
}
