//! The host segment: open counts, and locks whose owners are killed.

use crate::support::{SECOND, memory};
use shm::host::{HOST_BYTES, HostSegment, VnodeIndex};
use shm::once::Once;
use shm::sync::model;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use wire::Inode;

/// Another file in the bucket of file 5.
fn neighbour() -> Inode {
    static FOUND: OnceLock<u64> = OnceLock::new();
    let bucket = |number| wire::hash::neighbourly(Inode(number), 11) % (32 * 1024);
    Inode(*FOUND.get_or_init(|| (6..).find(|&other| bucket(other) == bucket(5)).expect("one")))
}

fn host() -> Arc<HostSegment> {
    Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("long enough"))
}

/// One thread is killed while it opens or closes: the others go on, and a file that they have open
/// stays open.
#[test]
fn a_lock_of_a_dead_thread_blocks_nobody() {
    model::explore(1500, || {
        let host = host();
        let victim = Arc::clone(&host);
        let victim = model::spawn(move || {
            model::kill_after(30);
            let vnode = victim.vnode_open(Inode(5)).expect("space");
            let _ = victim.vnode_close(Inode(5), vnode);
        });
        let others = [(); 2].map(|()| {
            let host = Arc::clone(&host);
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("space");
                assert_eq!(host.vnode_find(Inode(5)), Some(vnode), "open and not found");
                host.vnode_close(Inode(5), vnode).expect("open").last
            })
        });
        let was_killed = victim.join().is_none();
        let lasts = others.map(|other| other.join().expect("not killed"));
        assert!(was_killed || lasts != [true, true] || host.vnode_find(Inode(5)).is_none());
        let still_open = model::uninterrupted(|| host.vnode_find(Inode(5)));
        assert!(was_killed || still_open.is_none(), "nobody has it open");
    });
}

/// The last closer of a file is stopped in the middle, for longer than any thread waits for a lock,
/// while another thread opens it again, which keeps its entry.
#[test]
fn a_stopped_close_frees_no_entry_of_another_file() {
    model::explore(3000, || {
        let host = host();
        let before = model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space"));
        let closer = {
            let host = Arc::clone(&host);
            model::spawn(move || {
                model::stop_after(20);
                host.vnode_close(Inode(5), before).expect("open").last
            })
        };
        model::advance_clock_by(SECOND / 2);
        let vnode = host.vnode_open(Inode(5)).expect("space");
        let beside = host.vnode_open(neighbour()).expect("space");
        model::resume_all();
        let was_last = closer.join().expect("not killed");
        assert_eq!(host.vnode_find(Inode(5)), Some(vnode), "open and not found");
        assert_eq!(host.vnode_find(neighbour()), Some(beside), "open and not found");
        assert!(was_last || vnode == before);
        assert!(host.vnode_close(Inode(5), vnode).expect("open").last);
        assert!(host.vnode_close(neighbour(), beside).expect("open").last);
        let mut entries = 0;
        model::uninterrupted(|| host.vnode_list(&mut |_, _| entries += 1));
        assert_eq!(entries, 0, "nobody has anything open");
    });
}

/// A thread that opens an open file is stopped in the middle, while others close it and open
/// another file: it is not counted in that one.
#[test]
fn a_stopped_open_is_counted_in_its_own_file() {
    model::explore(3000, || {
        let host = host();
        let before = model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space"));
        let opener = {
            let host = Arc::clone(&host);
            model::spawn(move || {
                model::stop_after(20);
                let vnode = host.vnode_open(Inode(5)).expect("space");
                let entry = host.vnode(vnode).expect("open");
                assert_eq!(entry.inode.load(Ordering::SeqCst), 5, "another file's entry");
                host.vnode_close(Inode(5), vnode).expect("open")
            })
        };
        model::advance_clock_by(SECOND / 2);
        let _ = host.vnode_close(Inode(5), before).expect("open");
        let beside = host.vnode_open(neighbour()).expect("space");
        model::resume_all();
        let _ = opener.join().expect("not killed");
        assert!(host.vnode_close(neighbour(), beside).expect("open").last, "counted by another");
    });
}

/// A file has one entry, even if the thread that inserts it is stopped meanwhile.
#[test]
fn a_stopped_open_makes_no_second_entry() {
    model::explore(6000, || {
        let host = host();
        let openers = [true, false].map(|stops| {
            let host = Arc::clone(&host);
            model::spawn(move || {
                if stops {
                    model::stop_after(40);
                }
                host.vnode_open(Inode(5)).expect("space")
            })
        });
        model::advance_clock_by(SECOND / 2);
        let [stopped, other] = openers;
        let other = other.join().expect("not killed");
        model::resume_all();
        assert_eq!(stopped.join().expect("not killed"), other, "two entries of a file");
        assert!(!host.vnode_close(Inode(5), other).expect("open").last);
        assert!(host.vnode_close(Inode(5), other).expect("open").last);
    });
}

/// Deleting and opening meet: the opener sees that the file is gone, or the shard that it is open.
#[test]
fn a_file_is_not_deleted_while_it_is_opened() {
    model::explore(1500, || {
        let host = host();
        let exists = Arc::new(shm::sync::AtomicU32::new(1));
        let opener = {
            let (host, exists) = (Arc::clone(&host), Arc::clone(&exists));
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("space");
                let open = exists.load(Ordering::SeqCst) != 0;
                let reported =
                    open.then(|| host.vnode_close(Inode(5), vnode).expect("open").deleted);
                (open, reported)
            })
        };
        exists.store(0, Ordering::SeqCst);
        let remaining = host.mark_deleted(Inode(5));
        let (open, reported) = opener.join().expect("not killed");
        // If it were kept for an opener that had closed before, it would be kept for nobody.
        assert!(!remaining || reported != Some(false), "nobody tells the shard of the last close");
        assert!(remaining || !open || reported == Some(false), "deleted while it is open");
    });
}

#[test]
fn the_last_reference_is_one() {
    model::explore(1000, || {
        let host = host();
        let file = host.file_allocate(Inode(5), VnodeIndex(0), 0).expect("space");
        host.file_retain(file);
        let lasts = Arc::new(AtomicU32::new(0));
        let others = [(); 2].map(|()| {
            let (host, lasts) = (Arc::clone(&host), Arc::clone(&lasts));
            model::spawn(move || {
                let own = host.file_allocate(Inode(6), VnodeIndex(0), 0).expect("space");
                assert_ne!(own, file, "one entry for two files");
                if host.file_release(file).expect("has references") {
                    lasts.fetch_add(1, Ordering::Relaxed);
                    host.file_free(file).expect("a row");
                }
                own
            })
        });
        let [first, second] = others.map(|other| other.join().expect("not killed"));
        assert!(first != second || first == file, "one entry for two files");
        assert_eq!(lasts.load(Ordering::Relaxed), 1);
    });
}

/// Two threads dismantle the table of a dead process as they read it; a process that takes the
/// entry meanwhile keeps its table.
#[test]
fn a_table_is_taken_apart_once() {
    model::explore(600, || {
        let host = host();
        let file = host.file_allocate(Inode(5), VnodeIndex(0), 0).expect("space");
        let process = model::uninterrupted(|| {
            let process = host.process_register(100, 7).expect("space");
            host.process_set(process, 3, Some((file, false))).expect("space");
            process
        });
        let generation = host.process_generation(process);
        let seen = Arc::new(AtomicU32::new(0));
        let others = [(); 2].map(|()| {
            let (host, seen) = (Arc::clone(&host), Arc::clone(&seen));
            model::spawn(move || {
                let mut count = |_| {
                    seen.fetch_add(1, Ordering::Relaxed);
                };
                host.process_release(process, generation, &mut count).is_ok()
            })
        });
        let next = host.process_register(200, 9).expect("space");
        host.process_set(next, 4, Some((file, false))).expect("space");
        let [first, second] = others.map(|other| other.join().expect("not killed"));
        assert_ne!(first, second, "by one of two");
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        assert_eq!(host.process_find(200, 9), Some(next));
        assert_eq!(host.process_get(next, 4), Some((file, false)));
    });
}

/// A child adopts the copy of its table while another thread takes the copy for one of a dead fork,
/// and dismantles it.
#[test]
fn a_copy_is_adopted_or_taken_apart() {
    model::explore(600, || {
        let host = host();
        let (copy, generation) = model::uninterrupted(|| {
            let parent = host.process_register(100, 7).expect("space");
            let copy = host.process_copy(parent, &mut |_| {}).expect("space");
            (copy, host.process_generation(copy))
        });
        let other = Arc::clone(&host);
        let other =
            model::spawn(move || other.process_release(copy, generation, &mut |_| {}).is_ok());
        let adopted = host.process_adopt(copy, 101, 8).is_ok();
        let released = other.join().expect("not killed");
        assert_ne!(adopted, released);
        assert_eq!(host.process_find(101, 8), adopted.then_some(copy));
    });
}

#[test]
fn a_cell_is_filled_once() {
    model::explore(500, || {
        let cell = Arc::new(Once::new());
        let filled = Arc::new(AtomicBool::new(false));
        let others = [1, 2].map(|value| {
            let (cell, filled) = (Arc::clone(&cell), Arc::clone(&filled));
            model::spawn(move || {
                if cell.set([value; 2]).is_ok() {
                    assert!(!filled.swap(true, Ordering::Relaxed), "filled twice");
                }
            })
        });
        if let Some(&[first, second]) = cell.get() {
            assert!(first == second && first != 0, "half a value");
            assert_eq!(cell.get(), Some(&[first; 2]), "another value");
        }
        for other in others {
            other.join().expect("not killed");
        }
    });
}

/// A file of 5000 bytes is truncated by the worker of its shard while one thread writes as many
/// again and another learns its size. In the end it is long if and only if the bytes are there; the
/// shard is told so.
#[test]
fn a_size_is_that_of_the_bytes_that_are_left() {
    model::explore(3000, || {
        let host = host();
        let entry = model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space"));
        let shard = Arc::new(shm::sync::AtomicU64::new(5000));
        let bytes = Arc::new(shm::sync::AtomicU32::new(1));
        let writer = {
            let (host, bytes) = (Arc::clone(&host), Arc::clone(&bytes));
            model::spawn(move || {
                let vnode = host.vnode(entry).expect("a row");
                loop {
                    let truncate_epoch = vnode.truncate_epoch();
                    if truncate_epoch.is_under_way() {
                        model::spin_loop();
                        continue;
                    }
                    bytes.store(1, Ordering::SeqCst);
                    if vnode.note_written(truncate_epoch, 5000).is_ok() {
                        break;
                    }
                }
            })
        };
        let learner = {
            let (host, shard) = (Arc::clone(&host), Arc::clone(&shard));
            model::spawn(move || {
                let vnode = host.vnode(entry).expect("a row");
                let seen = vnode.size_snapshot();
                vnode.learn(&seen, shard.load(Ordering::SeqCst));
            })
        };
        shard.store(0, Ordering::SeqCst);
        host.begin_truncate(Inode(5), 0);
        bytes.store(0, Ordering::SeqCst);
        host.end_truncate(Inode(5));
        writer.join().expect("not killed");
        learner.join().expect("not killed");
        let right = 5000 * u64::from(bytes.load(Ordering::SeqCst));
        assert_eq!(host.vnode(entry).expect("a row").size(), right);
        assert_eq!(host.unreported(Inode(5)), right, "to be reported");
        assert_eq!(host.truncate_epoch(Inode(5)).map(shm::host::TruncateEpoch::number), Some(2));
    });
}

/// The shard is another host's: no size learned before a truncation stays.
/// A process that is about to truncate at another host, and does not come to it, hides no write.
#[test]
fn an_acknowledged_write_stays_unreported_beside_a_truncation_that_is_not_made() {
    model::explore(2000, || {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("space");
        let truncates = {
            let host = Arc::clone(&host);
            model::spawn(move || {
                host.vnode(index).expect("open").begin_own_remote_truncate();
            })
        };
        let vnode = host.vnode(index).expect("open");
        while vnode.note_written(vnode.truncate_epoch(), 5000).is_err() {}
        truncates.join();
        assert_eq!(host.unreported(Inode(5)), 5000);
    });
}

#[test]
fn a_size_learned_late_is_not_from_before_a_truncate() {
    model::explore(1500, || {
        let host = host();
        let entry = model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space"));
        let shard = Arc::new(shm::sync::AtomicU64::new(5000));
        let learners = [(); 2].map(|()| {
            let (host, shard) = (Arc::clone(&host), Arc::clone(&shard));
            model::spawn(move || {
                let vnode = host.vnode(entry).expect("a row");
                let seen = vnode.size_snapshot();
                vnode.learn(&seen, shard.load(Ordering::SeqCst));
            })
        });
        let vnode = host.vnode(entry).expect("a row");
        vnode.begin_own_remote_truncate();
        shard.store(0, Ordering::SeqCst);
        vnode.end_own_remote_truncate(0);
        let _ = learners.map(|learner| learner.join().expect("not killed"));
        assert_eq!(vnode.size(), 0);
    });
}

/// A shard of another host hands out a range while a client of this host has requested a
/// truncation: the range is one from before the truncation, and its remainder afterwards is known.
#[test]
fn a_range_that_crosses_a_truncate_is_from_before_it() {
    model::once(|| {
        let host = host();
        let (file, entry) =
            (Inode(5), model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space")));
        let vnode = host.vnode(entry).expect("a row");
        let first = vnode.truncate_epoch();
        host.begin_remote_truncate(file);
        assert_eq!(vnode.truncate_epoch().before(), first);
        assert_ne!(vnode.truncate_epoch(), first, "nothing is written of it meanwhile");
        // Two clients truncate: the bytes behind the shorter size are gone.
        host.remote_truncate_to(file, 100);
        host.remote_truncate_to(file, 7000);
        host.end_remote_truncate(file, true);
        assert_eq!(vnode.truncated_once_since(first), Some(100));
        let second = vnode.truncate_epoch();
        assert_eq!((second.before(), second.after()), (second, second), "no truncation");
        // The shard refuses: all of the range is good.
        host.begin_remote_truncate(file);
        host.end_remote_truncate(file, false);
        assert!(vnode.truncated_once_since(second).is_some_and(|size| size > 1 << 47));
        // The shard reports a truncation: ranges that arrive later are from after it.
        host.begin_truncate(file, 40);
        let reported = vnode.truncate_epoch().after();
        host.end_remote_truncate(file, true);
        assert_eq!(vnode.truncate_epoch(), reported);
    });
}
