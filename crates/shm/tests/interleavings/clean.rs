//! Clean pieces: one into which a client wrote without asking anybody is never dropped, and who reads one
//! meanwhile sees its bytes or asks; also if the daemon is killed on its way, or the client.

use crate::support::{FILE, LENGTH, OneTarget, PIECE, join, spawn};
use shm::piece_io::Moved;
use shm::pieces::Use;
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// A piece whose bytes, all 0xee, lie below, too.
fn clean() -> Arc<OneTarget> {
    let all = OneTarget::new(3);
    model::quietly(|| all.states.set_clean(PIECE.slot).expect("slot 0"));
    Arc::new(all)
}

/// Drops the piece if it may be, as the daemon does, and gives its space to another file, full of 0x22.
fn drop_it(all: &OneTarget) {
    all.table.hide(PIECE.slot).expect("slot 0");
    let stays = all.is_pinned() || all.states.is_mapped(PIECE.slot);
    if stays || !all.states.is_clean(PIECE.slot) {
        return all.table.show(PIECE.slot).expect("slot 0");
    }
    all.table.unpublish(PIECE.slot).expect("slot 0");
    if all.is_pinned() {
        // It is not used anew as long as somebody may look at it.
        return;
    }
    all.arena.copy_in(0, &[0x22; LENGTH]).expect("fits");
    all.states.reset(&PIECE, 3).expect("slot 0");
    all.table.publish(Inode(6), &PIECE).expect("slot 0");
}

/// A client that writes if it finds the piece: true if it did.
fn writer(all: &Arc<OneTarget>, byte: u8) -> model::Thread<bool> {
    spawn(all, move |all| match all.target().write(&all.pins(), FILE, &PIECE, 0, &[byte; 100]) {
        Ok(Ok(())) => true,
        Ok(Err(Moved)) => false,
        Err(errno) => panic!("{errno:?}"),
    })
}

/// What was written is there, and nothing of another file was touched.
fn check(all: &OneTarget, written: bool) {
    let row = all.table.get(PIECE.slot);
    if written {
        assert_eq!(row, Some((FILE, PIECE)), "what was written was dropped");
        assert!(!all.states.is_clean(PIECE.slot), "it would be dropped");
        assert!(all.read()[..100].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
        assert!(all.read()[100..].iter().all(|&byte| byte == 0xee), "lost bytes of before");
    } else if row == Some((Inode(6), PIECE)) {
        let mut bytes = [0; LENGTH];
        all.arena.copy_out(0, &mut bytes).expect("in range");
        assert!(bytes.iter().all(|&byte| byte == 0x22), "written into another file");
    }
}

#[test]
fn what_was_written_is_not_dropped() {
    model::explore(4000, || {
        let all = clean();
        let writers = [writer(&all, 1), writer(&all, 2)];
        drop_it(&all);
        let written = writers.map(|one| one.join().expect("not killed"));
        if all.table.get(PIECE.slot) == Some((FILE, PIECE)) {
            drop_it(&all);
        }
        model::quietly(|| check(&all, written.contains(&true)));
    });
}

/// Has the piece saved, as daemon and writer do: what was read, if it is clean since.
fn save(all: &OneTarget) -> Option<Vec<u8>> {
    let begun = all.states.begin_saving(PIECE.slot).expect("slot 0");
    if begun && all.is_pinned() {
        all.states.stop_saving(PIECE.slot).expect("slot 0");
    }
    let mut bytes = vec![0; LENGTH];
    let read = all.target().read(&all.pins(), FILE, &PIECE, 0, &mut bytes);
    assert_eq!(read, Ok(Ok(())));
    all.states.end_saving(PIECE.slot).expect("slot 0").then_some(bytes)
}

/// What is clean because it was saved is what was saved.
#[test]
fn what_is_changed_while_it_is_saved_is_not_clean() {
    model::explore(4000, || {
        let all = Arc::new(OneTarget::new(3));
        let writers = [writer(&all, 1), writer(&all, 2)];
        let saved = [save(&all), save(&all)];
        for one in writers {
            one.join().expect("not killed");
        }
        model::quietly(|| {
            let [_, Some(saved)] = saved else { return };
            if all.states.is_clean(PIECE.slot) {
                assert_eq!(all.read(), saved, "bytes would be lost");
            }
        });
    });
}

/// As well by who mapped it, before or meanwhile.
#[test]
fn what_is_mapped_while_it_is_saved_is_not_clean() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(3));
        let mapper = spawn(&all, |all| {
            let done = all.target().define_all(&all.pins(), FILE, &PIECE, Use::Write);
            assert!(done.expect("defined").is_ok(), "nothing hides it");
        });
        save(&all);
        mapper.join().expect("not killed");
        let _ = save(&all);
        model::quietly(|| assert!(!all.states.is_clean(PIECE.slot), "it may change at any time"));
    });
}

#[test]
fn who_reads_what_is_dropped_sees_its_bytes_or_asks() {
    model::explore(4000, || {
        let all = clean();
        let readers = [0, 1].map(|_| {
            spawn(&all, |all| {
                let mut bytes = [0x33; LENGTH];
                if all.target().read(&all.pins(), FILE, &PIECE, 0, &mut bytes) == Ok(Ok(())) {
                    assert!(bytes.iter().all(|&byte| byte == 0xee), "another file's byte");
                }
            })
        });
        drop_it(&all);
        join(readers);
    });
}

/// Of zeros, too, that a daemon writes for another host, or a mapping that may be written to; by a
/// mapping that is read it stays, and stays clean.
#[test]
fn what_is_mapped_is_not_dropped() {
    for how in [Use::Read, Use::Write] {
        model::explore(3000, move || {
            let all = clean();
            let mapper = spawn(&all, move |all| {
                let done = all.target().define_all(&all.pins(), FILE, &PIECE, how);
                done.expect("defined").is_ok()
            });
            drop_it(&all);
            let mapped = mapper.join().expect("not killed");
            model::quietly(|| {
                if mapped {
                    assert_eq!(all.table.get(PIECE.slot), Some((FILE, PIECE)), "dropped");
                    assert_eq!(all.states.is_clean(PIECE.slot), how == Use::Read);
                }
            });
        });
    }
}

/// The daemon is killed between any two steps; the next one shows what it finds hidden.
#[test]
fn a_daemon_that_dies_dropping_loses_nothing() {
    model::explore(4000, || {
        let all = clean();
        let first = writer(&all, 1);
        let daemon = spawn(&all, |all| {
            model::doom(14);
            drop_it(all);
        });
        daemon.join();
        let written = first.join().expect("not killed");
        if all.table.hidden(PIECE.slot) == Some((FILE, PIECE)) {
            all.table.show(PIECE.slot).expect("slot 0");
        }
        let again = writer(&all, 2);
        if all.table.get(PIECE.slot) == Some((FILE, PIECE)) {
            drop_it(&all);
        }
        let written = again.join().expect("not killed") || written;
        model::quietly(|| check(&all, written));
    });
}

/// A client is killed between any two steps: what it may have changed is not dropped, and what it has not
/// is, pin or no pin.
#[test]
fn what_a_dead_client_may_have_changed_is_not_dropped() {
    model::explore(4000, || {
        let all = clean();
        let victim = spawn(&all, |all| {
            model::doom(30);
            let _ = all.target().write(&all.pins(), FILE, &PIECE, 0, &[1; 100]);
        });
        drop_it(&all);
        victim.join();
        model::quietly(|| {
            if all.table.get(PIECE.slot) != Some((FILE, PIECE)) {
                return;
            }
            assert!(!all.is_pinned(), "the dead pin nothing");
            let is_changed = all.read().contains(&1);
            assert!(!is_changed || !all.states.is_clean(PIECE.slot), "it would be dropped");
            if all.states.is_clean(PIECE.slot) {
                drop_it(&all);
                assert_ne!(all.table.get(PIECE.slot), Some((FILE, PIECE)));
            }
        });
    });
}
