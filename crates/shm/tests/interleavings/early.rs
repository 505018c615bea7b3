//! Early pieces: what a client wrote into one without asking anybody is never taken back, also if the
//! daemon is killed on its way.

use crate::support::{FILE, LENGTH, OneTarget, PIECE, spawn};
use shm::piece_io::Moved;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// Takes the piece back if it is in no use, as the daemon does, and gives its space to another file.
/// The daemon lets time pass between the two; here it may be none.
fn take_back(all: &OneTarget) {
    if !all.states.is_hole(&PIECE) {
        return;
    }
    all.table.hide(PIECE.slot).expect("slot 0");
    if all.is_pinned() || !all.states.is_hole(&PIECE) {
        all.table.show(PIECE.slot).expect("slot 0");
        return;
    }
    all.table.unpublish(PIECE.slot).expect("slot 0");
    if all.is_pinned() {
        // It is not used anew as long as somebody may write into it.
        return;
    }
    all.states.reset(&PIECE, 3).expect("slot 0");
    all.table.publish(Inode(6), &PIECE).expect("slot 0");
}

/// A client that writes as soon as it finds the piece: true if it did.
fn client(all: &Arc<OneTarget>, byte: u8) -> model::Thread<bool> {
    spawn(all, move |all| match all.target().write(&all.pins(), FILE, &PIECE, 0, &[byte; 100]) {
        Ok(Ok(())) => true,
        Ok(Err(Moved)) => false,
        Err(errno) => panic!("{errno:?}"),
    })
}

/// Everything that was acknowledged is there, and nothing of another file was touched.
fn check(all: &OneTarget, written: bool) {
    let row = all.table.get(PIECE.slot);
    if written {
        assert_eq!(row, Some((FILE, PIECE)), "what was written was taken back");
        assert!(all.read()[..100].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
    } else if row == Some((Inode(6), PIECE)) {
        let mut bytes = [0; LENGTH];
        all.arena.copy_out(0, &mut bytes).expect("in range");
        assert!(bytes.iter().all(|&byte| byte == 0xee), "written into another file");
    }
}

#[test]
fn what_was_written_is_not_taken_back() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let clients = [client(&all, 1), client(&all, 2)];
        take_back(&all);
        let written = clients.map(|one| one.join().expect("not killed"));
        model::quietly(|| check(&all, written.contains(&true)));
    });
}

/// The daemon is killed between any two steps; the next one shows what it finds hidden.
#[test]
fn a_daemon_that_dies_taking_back_loses_nothing() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let first = client(&all, 1);
        let daemon = spawn(&all, |all| {
            model::doom(12);
            take_back(all);
        });
        daemon.join();
        let written = first.join().expect("not killed");
        all.table.show(PIECE.slot).expect("slot 0");
        let again = client(&all, 2);
        // What is empty, or another file's, is no early piece.
        if all.table.get(PIECE.slot) == Some((FILE, PIECE)) {
            take_back(&all);
        }
        let written = again.join().expect("not killed") || written;
        model::quietly(|| check(&all, written));
    });
}

/// A client is killed between any two steps: the piece is its file's if something was written, and is
/// taken back if not, pin or no pin.
#[test]
fn what_a_dead_client_found_and_did_not_write_to_is_taken_back() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let victim = spawn(&all, |all| {
            model::doom(30);
            let _ = all.target().write(&all.pins(), FILE, &PIECE, 0, &[1; 100]);
        });
        take_back(&all);
        victim.join();
        model::quietly(|| {
            if all.table.get(PIECE.slot) == Some((FILE, PIECE)) {
                take_back(&all);
            }
            let is_kept = all.table.get(PIECE.slot) == Some((FILE, PIECE));
            assert!(!all.is_pinned(), "the dead pin nothing");
            assert!(!is_kept || !all.states.is_hole(&PIECE), "nobody uses it");
        });
    });
}
