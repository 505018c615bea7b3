//! Hazard pointers: the space of an extent is not reused while a client copies it.

use crate::support::{EXTENT, FILE, LENGTH, OneTarget, join, spawn};
use shm::extents::Moved;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// Frees the extent as the daemon does, then gives space and slot to another file, full of 0x22.
fn reuse(all: &OneTarget) {
    all.table.unpublish(EXTENT.slot).expect("slot 0");
    while all.is_protected() {
        shm::sync::spin_loop();
    }
    fill(all);
}

/// Gives space and slot to another file, full of 0x22.
fn fill(all: &OneTarget) {
    all.arena.copy_in(0, &[0x22; LENGTH]).expect("fits");
    all.states.reset(&EXTENT, 3).expect("slot 0");
    all.table.publish(Inode(6), &EXTENT).expect("slot 0");
}

/// Nobody wrote into the other file.
fn check(all: &OneTarget) {
    let mut bytes = [0; LENGTH];
    all.arena.copy_out(0, &mut bytes).expect("in range");
    assert!(bytes.iter().all(|&byte| byte == 0x22), "written into another file");
}

#[test]
fn space_is_not_reused_during_a_copy() {
    model::explore(2000, || {
        let all = Arc::new(OneTarget::new(3));
        let clients = [false, true].map(|writes| {
            spawn(&all, move |all| {
                let mut bytes = [0x33; LENGTH];
                if writes {
                    let done = all.target().write(&all.hazards(), FILE, &EXTENT, 0, &bytes);
                    return assert!(matches!(done, Ok(Ok(()) | Err(Moved))));
                }
                if all.target().read(&all.hazards(), FILE, &EXTENT, 0, &mut bytes) == Ok(Ok(())) {
                    let ours = |byte: &u8| [0xee, 0x33].contains(byte);
                    assert!(bytes.iter().all(ours), "another file's byte");
                }
            })
        });
        reuse(&all);
        join(clients);
        model::uninterrupted(|| check(&all));
    });
}

/// The daemon is killed between any two steps of freeing an extent. The next one scans the
/// unpublished and protected extents, as `data` does: held while protected; the others are free at
/// once.
#[test]
fn a_daemon_that_takes_over_does_not_reuse_space_during_a_copy() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(3));
        let client = spawn(&all, |all| {
            let done = all.target().write(&all.hazards(), FILE, &EXTENT, 0, &[0x33; LENGTH]);
            assert!(matches!(done, Ok(Ok(()) | Err(Moved))));
        });
        let first = spawn(&all, |all| {
            model::kill_after(8);
            reuse(all);
        });
        first.join();
        if all.table.get(EXTENT.slot) == Some((FILE, EXTENT)) {
            reuse(&all);
        } else if all.table.get(EXTENT.slot).is_none() {
            if all.is_protected() && all.table.gone(EXTENT.slot) == Some(EXTENT) {
                while all.is_protected() {
                    shm::sync::spin_loop();
                }
            }
            fill(&all);
        }
        join([client]);
        model::uninterrupted(|| check(&all));
    });
}
