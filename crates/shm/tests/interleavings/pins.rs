//! Hazard pins: the space of a piece is not used anew while a client copies it.

use crate::support::{FILE, LENGTH, OneTarget, PIECE, join, spawn};
use shm::piece_io::Moved;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// Frees the piece as the daemon does, then gives space and row to another file, full of 0x22.
fn use_anew(all: &OneTarget) {
    all.table.unpublish(PIECE.slot).expect("slot 0");
    while all.is_pinned() {
        shm::sync::spin_loop();
    }
    fill(all);
}

/// Gives space and row to another file, full of 0x22.
fn fill(all: &OneTarget) {
    all.arena.copy_in(0, &[0x22; LENGTH]).expect("fits");
    all.states.reset(&PIECE, 3).expect("slot 0");
    all.table.publish(Inode(6), &PIECE).expect("slot 0");
}

/// Nobody wrote into the other file.
fn check(all: &OneTarget) {
    let mut bytes = [0; LENGTH];
    all.arena.copy_out(0, &mut bytes).expect("in range");
    assert!(bytes.iter().all(|&byte| byte == 0x22), "written into another file");
}

#[test]
fn space_is_not_used_anew_under_a_copy() {
    model::explore(2000, || {
        let all = Arc::new(OneTarget::new(3));
        let clients = [false, true].map(|writes| {
            spawn(&all, move |all| {
                let mut bytes = [0x33; LENGTH];
                if writes {
                    let done = all.target().write(&all.pins(), FILE, &PIECE, 0, &bytes);
                    return assert!(matches!(done, Ok(Ok(()) | Err(Moved))));
                }
                if all.target().read(&all.pins(), FILE, &PIECE, 0, &mut bytes) == Ok(Ok(())) {
                    let ours = |byte: &u8| [0xee, 0x33].contains(byte);
                    assert!(bytes.iter().all(ours), "another file's byte");
                }
            })
        });
        use_anew(&all);
        join(clients);
        model::quietly(|| check(&all));
    });
}

/// The daemon is killed between any two steps of freeing a piece. The next one looks at what is gone
/// and pinned, as `data` does with it: held until nobody pins it; what is not is free at once.
#[test]
fn a_daemon_that_takes_over_leaves_space_to_who_copies() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(3));
        let client = spawn(&all, |all| {
            let done = all.target().write(&all.pins(), FILE, &PIECE, 0, &[0x33; LENGTH]);
            assert!(matches!(done, Ok(Ok(()) | Err(Moved))));
        });
        let first = spawn(&all, |all| {
            model::doom(8);
            use_anew(all);
        });
        first.join();
        if all.table.get(PIECE.slot) == Some((FILE, PIECE)) {
            use_anew(&all);
        } else if all.table.get(PIECE.slot).is_none() {
            if all.is_pinned() && all.table.gone(PIECE.slot) == Some(PIECE) {
                while all.is_pinned() {
                    shm::sync::spin_loop();
                }
            }
            fill(&all);
        }
        join([client]);
        model::quietly(|| check(&all));
    });
}
