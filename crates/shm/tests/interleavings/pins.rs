//! Hazard pins: the space of a piece is not used anew while a client copies it.

use crate::support::{FILE, LENGTH, OneTarget, PIECE, SECOND};
use shm::piece_io::Moved;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// Frees the piece as the daemon does, then gives space and row to another file, full of 0x22.
fn use_anew(all: &OneTarget) {
    all.table.unpublish(PIECE.slot).expect("slot 0");
    while all.session.pins(PIECE.slot) {
        shm::sync::spin_loop();
    }
    all.arena.copy_in(0, &[0x22; LENGTH]).expect("fits");
    all.states.reset(PIECE.slot, 3).expect("slot 0");
    all.table.publish(Inode(6), &PIECE).expect("slot 0");
}

#[test]
fn space_is_not_used_anew_under_a_copy() {
    model::explore(2000, || {
        let all = Arc::new(OneTarget::new(3));
        let clients = [false, true].map(|writes| {
            let all = Arc::clone(&all);
            model::spawn(move || {
                let slot = all.session.claim(SECOND).expect("a slot");
                let mut bytes = [0x33; LENGTH];
                if writes {
                    let done = all.target().write(&slot, FILE, &PIECE, 0, &bytes);
                    return assert!(matches!(done, Ok(Ok(()) | Err(Moved))));
                }
                if all.target().read(&slot, FILE, &PIECE, 0, &mut bytes) == Ok(Ok(())) {
                    let ours = |byte: &u8| [0xee, 0x33].contains(byte);
                    assert!(bytes.iter().all(ours), "another file's byte");
                }
            })
        });
        use_anew(&all);
        for client in clients {
            client.join().expect("not killed");
        }
        model::quietly(|| {
            let mut bytes = [0; LENGTH];
            all.arena.copy_out(0, &mut bytes).expect("in range");
            assert!(bytes.iter().all(|&byte| byte == 0x22), "written into another file");
        });
    });
}
