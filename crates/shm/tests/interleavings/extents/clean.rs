//! Clean extents: one into which a client wrote without a message is never evicted, and a reader
//! meanwhile sees its bytes or asks; also if the daemon is killed half-way, or the client.

use crate::support::{EXTENT, FILE, LENGTH, OneTarget, join, spawn};
use shm::extents::{Moved, Use};
use shm::sync::model;
use std::sync::Arc;
use wire::Inode;

/// An extent whose bytes, all 0xee, are in the backing store, too.
fn clean() -> Arc<OneTarget> {
    let all = OneTarget::new(3);
    model::uninterrupted(|| all.states.set_clean(EXTENT.slot).expect("slot 0"));
    Arc::new(all)
}

/// Evicts the extent if possible, as the daemon does, and gives its space to another file, full of
/// 0x22.
fn evict(all: &OneTarget) {
    all.table.hide(EXTENT.slot).expect("slot 0");
    let stays = all.is_protected() || all.states.is_mapped(EXTENT.slot);
    if stays || !all.states.is_clean(EXTENT.slot) {
        return all.table.show(EXTENT.slot).expect("slot 0");
    }
    all.table.unpublish(EXTENT.slot).expect("slot 0");
    if all.is_protected() {
        // It is not reused while a client may look at it.
        return;
    }
    all.arena.copy_in(0, &[0x22; LENGTH]).expect("fits");
    all.states.reset(&EXTENT, 3).expect("slot 0");
    all.table.publish(Inode(6), &EXTENT).expect("slot 0");
}

/// A client that writes if it finds the extent: true if it did.
fn writer(all: &Arc<OneTarget>, byte: u8) -> model::Thread<bool> {
    spawn(all, move |all| {
        match all.target().write(&all.hazards(), FILE, &EXTENT, 0, &[byte; 100]) {
            Ok(Ok(())) => true,
            Ok(Err(Moved)) => false,
            Err(errno) => panic!("{errno:?}"),
        }
    })
}

/// The written bytes are there, and nothing of another file was touched.
fn check(all: &OneTarget, written: bool) {
    let entry = all.table.get(EXTENT.slot);
    if written {
        assert_eq!(entry, Some((FILE, EXTENT)), "a written extent was evicted");
        assert!(!all.states.is_clean(EXTENT.slot), "it would be dropped");
        assert!(all.read()[..100].iter().all(|byte| [1, 2].contains(byte)), "lost bytes");
        assert!(all.read()[100..].iter().all(|&byte| byte == 0xee), "lost bytes of before");
    } else if entry == Some((Inode(6), EXTENT)) {
        let mut bytes = [0; LENGTH];
        all.arena.copy_out(0, &mut bytes).expect("in range");
        assert!(bytes.iter().all(|&byte| byte == 0x22), "written into another file");
    }
}

#[test]
fn a_written_extent_is_not_evicted() {
    model::explore(4000, || {
        let all = clean();
        let writers = [writer(&all, 1), writer(&all, 2)];
        evict(&all);
        let written = writers.map(|one| one.join().expect("not killed"));
        if all.table.get(EXTENT.slot) == Some((FILE, EXTENT)) {
            evict(&all);
        }
        model::uninterrupted(|| check(&all, written.contains(&true)));
    });
}

/// Writes the extent back, as daemon and writer do: the bytes read, if it is clean since.
fn write_back(all: &OneTarget) -> Option<Vec<u8>> {
    let begun = all.states.begin_cleaning(EXTENT.slot).expect("slot 0");
    if begun && all.is_protected() {
        all.states.clear_cleaning(EXTENT.slot).expect("slot 0");
    }
    let mut bytes = vec![0; LENGTH];
    let read = all.target().read(&all.hazards(), FILE, &EXTENT, 0, &mut bytes);
    assert_eq!(read, Ok(Ok(())));
    all.states.end_cleaning(EXTENT.slot).expect("slot 0").then_some(bytes)
}

/// The bytes of an extent that is clean after writeback are those that were written back.
#[test]
fn an_extent_changed_during_writeback_is_not_clean() {
    model::explore(4000, || {
        let all = Arc::new(OneTarget::new(3));
        let writers = [writer(&all, 1), writer(&all, 2)];
        let saved = [write_back(&all), write_back(&all)];
        for one in writers {
            one.join().expect("not killed");
        }
        model::uninterrupted(|| {
            let [_, Some(saved)] = saved else { return };
            if all.states.is_clean(EXTENT.slot) {
                assert_eq!(all.read(), saved, "bytes would be lost");
            }
        });
    });
}

/// Also by a process that mapped it, before or meanwhile.
#[test]
fn an_extent_mapped_during_writeback_is_not_clean() {
    model::explore(3000, || {
        let all = Arc::new(OneTarget::new(3));
        let mapper = spawn(&all, |all| {
            let done = all.target().make_all_valid(&all.hazards(), FILE, &EXTENT, Use::Write);
            assert!(done.expect("valid").is_ok(), "nothing hides it");
        });
        write_back(&all);
        mapper.join().expect("not killed");
        let _ = write_back(&all);
        model::uninterrupted(|| {
            assert!(!all.states.is_clean(EXTENT.slot), "it may change at any time")
        });
    });
}

#[test]
fn a_reader_of_an_evicted_extent_sees_its_bytes_or_asks() {
    model::explore(4000, || {
        let all = clean();
        let readers = [0, 1].map(|_| {
            spawn(&all, |all| {
                let mut bytes = [0x33; LENGTH];
                if all.target().read(&all.hazards(), FILE, &EXTENT, 0, &mut bytes) == Ok(Ok(())) {
                    assert!(bytes.iter().all(|&byte| byte == 0xee), "another file's byte");
                }
            })
        });
        evict(&all);
        join(readers);
    });
}

/// Also zeros, which a daemon writes for another host, or a writable mapping; a read-only mapping
/// keeps the extent in place, and clean.
#[test]
fn a_mapped_extent_is_not_evicted() {
    for how in [Use::Read, Use::Write] {
        model::explore(3000, move || {
            let all = clean();
            let mapper = spawn(&all, move |all| {
                let done = all.target().make_all_valid(&all.hazards(), FILE, &EXTENT, how);
                done.expect("valid").is_ok()
            });
            evict(&all);
            let mapped = mapper.join().expect("not killed");
            model::uninterrupted(|| {
                if mapped {
                    assert_eq!(all.table.get(EXTENT.slot), Some((FILE, EXTENT)), "dropped");
                    assert_eq!(all.states.is_clean(EXTENT.slot), how == Use::Read);
                }
            });
        });
    }
}

/// The daemon is killed between any two steps; the next one shows extents that it finds hidden.
#[test]
fn a_daemon_that_dies_during_an_eviction_loses_nothing() {
    model::explore(4000, || {
        let all = clean();
        let first = writer(&all, 1);
        let daemon = spawn(&all, |all| {
            model::kill_after(14);
            evict(all);
        });
        daemon.join();
        let written = first.join().expect("not killed");
        if all.table.hidden(EXTENT.slot) == Some((FILE, EXTENT)) {
            all.table.show(EXTENT.slot).expect("slot 0");
        }
        let again = writer(&all, 2);
        if all.table.get(EXTENT.slot) == Some((FILE, EXTENT)) {
            evict(&all);
        }
        let written = again.join().expect("not killed") || written;
        model::uninterrupted(|| check(&all, written));
    });
}

/// A client is killed between any two steps: an extent that it may have changed is not evicted, and
/// one that it has not is, with or without a hazard pointer.
#[test]
fn an_extent_that_a_dead_client_may_have_changed_is_not_evicted() {
    model::explore(4000, || {
        let all = clean();
        let victim = spawn(&all, |all| {
            model::kill_after(30);
            let _ = all.target().write(&all.hazards(), FILE, &EXTENT, 0, &[1; 100]);
        });
        evict(&all);
        victim.join();
        model::uninterrupted(|| {
            if all.table.get(EXTENT.slot) != Some((FILE, EXTENT)) {
                return;
            }
            assert!(!all.is_protected(), "dead threads protect nothing");
            let is_changed = all.read().contains(&1);
            assert!(!is_changed || !all.states.is_clean(EXTENT.slot), "it would be dropped");
            if all.states.is_clean(EXTENT.slot) {
                evict(&all);
                assert_ne!(all.table.get(EXTENT.slot), Some((FILE, EXTENT)));
            }
        });
    });
}
