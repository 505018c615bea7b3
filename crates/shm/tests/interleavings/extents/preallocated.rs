//! Preallocated extents: one into which a client wrote without a message is never reclaimed, also
//! if the daemon is killed half-way.

use crate::support::{EXTENT, FILE, LENGTH, OneTarget, spawn};
use shm::extents::Moved;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// Reclaims the extent if it is unused, as the daemon does, and gives its space to another file.
/// The daemon lets time pass between the two; here it may be none.
fn reclaim(all: &OneTarget) {
    if !all.states.is_hole(&EXTENT) {
        return;
    }
    all.table.hide(EXTENT.slot).expect("slot 0");
    if all.is_protected() || !all.states.is_hole(&EXTENT) {
        all.table.show(EXTENT.slot).expect("slot 0");
        return;
    }
    all.table.unpublish(EXTENT.slot).expect("slot 0");
    if all.is_protected() {
        // It is not reused while a client may write into it.
        return;
    }
    all.states.reset(&EXTENT, 3).expect("slot 0");
    all.table.publish(Inode(6), &EXTENT).expect("slot 0");
}

/// A client that writes as soon as it finds the extent: true if it did.
fn client(all: &Arc<OneTarget>, byte: u8) -> model::Thread<bool> {
    spawn(all, move |all| {
        match all.target().write(&all.hazards(), FILE, &EXTENT, 0, &[byte; 100]) {
            Ok(Ok(())) => true,
            Ok(Err(Moved)) => false,
            Err(errno) => panic!("{errno:?}"),
        }
    })
}

/// Every acknowledged byte is there, and nothing of another file was touched.
fn check(all: &OneTarget, written: bool) {
    let entry = all.table.get(EXTENT.slot);
    if written {
        assert_eq!(entry, Some((FILE, EXTENT)), "a written extent was reclaimed");
        assert!(all.read()[..100].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
    } else if entry == Some((Inode(6), EXTENT)) {
        let mut bytes = [0; LENGTH];
        all.arena.copy_out(0, &mut bytes).expect("in range");
        assert!(bytes.iter().all(|&byte| byte == 0xee), "written into another file");
    }
}

#[test]
fn a_written_extent_is_not_reclaimed() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let clients = [client(&all, 1), client(&all, 2)];
        reclaim(&all);
        let written = clients.map(|one| one.join().expect("not killed"));
        model::uninterrupted(|| check(&all, written.contains(&true)));
    });
}

/// The daemon is killed between any two steps; the next one shows extents that it finds hidden.
#[test]
fn a_daemon_that_dies_during_a_reclaim_loses_nothing() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let first = client(&all, 1);
        let daemon = spawn(&all, |all| {
            model::kill_after(12);
            reclaim(all);
        });
        daemon.join();
        let written = first.join().expect("not killed");
        all.table.show(EXTENT.slot).expect("slot 0");
        let again = client(&all, 2);
        // An empty one, or another file's, is no preallocated extent.
        if all.table.get(EXTENT.slot) == Some((FILE, EXTENT)) {
            reclaim(&all);
        }
        let written = again.join().expect("not killed") || written;
        model::uninterrupted(|| check(&all, written));
    });
}

/// A client is killed between any two steps: the extent is its file's if a byte was written, and is
/// reclaimed if not, with or without a hazard pointer.
#[test]
fn an_extent_that_a_dead_client_did_not_write_is_reclaimed() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(0));
        let victim = spawn(&all, |all| {
            model::kill_after(30);
            let _ = all.target().write(&all.hazards(), FILE, &EXTENT, 0, &[1; 100]);
        });
        reclaim(&all);
        victim.join();
        model::uninterrupted(|| {
            if all.table.get(EXTENT.slot) == Some((FILE, EXTENT)) {
                reclaim(&all);
            }
            let is_held = all.table.get(EXTENT.slot) == Some((FILE, EXTENT));
            assert!(!all.is_protected(), "dead threads protect nothing");
            assert!(!is_held || !all.states.is_hole(&EXTENT), "nobody uses it");
        });
    });
}
