//! The host segment: counts of open files, and locks whose holders are killed.

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
fn a_lock_of_the_dead_stops_nobody() {
    model::explore(1500, || {
        let host = host();
        let victim = Arc::clone(&host);
        let victim = model::spawn(move || {
            model::doom(30);
            let vnode = victim.vnode_open(Inode(5)).expect("room");
            let _ = victim.vnode_close(Inode(5), vnode);
        });
        let others = [(); 2].map(|()| {
            let host = Arc::clone(&host);
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("room");
                assert_eq!(host.vnode_find(Inode(5)), Some(vnode), "open and not found");
                host.vnode_close(Inode(5), vnode).expect("open").last
            })
        });
        let was_killed = victim.join().is_none();
        let lasts = others.map(|other| other.join().expect("not killed"));
        assert!(was_killed || lasts != [true, true] || host.vnode_find(Inode(5)).is_none());
        let still_open = model::quietly(|| host.vnode_find(Inode(5)));
        assert!(was_killed || still_open.is_none(), "nobody has it open");
    });
}

/// Who closes a file last stands still in the middle, for longer than anybody waits for a lock, while
/// another opens it again: its row stays his.
#[test]
fn who_stands_still_in_a_close_takes_no_row_from_others() {
    model::explore(3000, || {
        let host = host();
        let before = model::quietly(|| host.vnode_open(Inode(5)).expect("room"));
        let closer = {
            let host = Arc::clone(&host);
            model::spawn(move || {
                model::stop(20);
                host.vnode_close(Inode(5), before).expect("open").last
            })
        };
        model::hurry(SECOND / 2);
        let vnode = host.vnode_open(Inode(5)).expect("room");
        let beside = host.vnode_open(neighbour()).expect("room");
        model::go_on();
        let was_last = closer.join().expect("not killed");
        assert_eq!(host.vnode_find(Inode(5)), Some(vnode), "open and not found");
        assert_eq!(host.vnode_find(neighbour()), Some(beside), "open and not found");
        assert!(was_last || vnode == before);
        assert!(host.vnode_close(Inode(5), vnode).expect("open").last);
        assert!(host.vnode_close(neighbour(), beside).expect("open").last);
        let mut rows = 0;
        model::quietly(|| host.vnode_list(&mut |_, _| rows += 1));
        assert_eq!(rows, 0, "nobody has anything open");
    });
}

/// Who opens a file that is open stands still in the middle, while others close it and open another:
/// he is not counted in theirs.
#[test]
fn who_stands_still_in_an_open_is_counted_in_his_file() {
    model::explore(3000, || {
        let host = host();
        let before = model::quietly(|| host.vnode_open(Inode(5)).expect("room"));
        let opener = {
            let host = Arc::clone(&host);
            model::spawn(move || {
                model::stop(20);
                let vnode = host.vnode_open(Inode(5)).expect("room");
                let row = host.vnode(vnode).expect("open");
                assert_eq!(row.inode.load(Ordering::SeqCst), 5, "another file's row");
                host.vnode_close(Inode(5), vnode).expect("open")
            })
        };
        model::hurry(SECOND / 2);
        let _ = host.vnode_close(Inode(5), before).expect("open");
        let beside = host.vnode_open(neighbour()).expect("room");
        model::go_on();
        let _ = opener.join().expect("not killed");
        assert!(host.vnode_close(neighbour(), beside).expect("open").last, "counted by another");
    });
}

/// A file has one row, also if who puts it in stands still meanwhile.
#[test]
fn who_stands_still_makes_no_second_row() {
    model::explore(6000, || {
        let host = host();
        let openers = [true, false].map(|stops| {
            let host = Arc::clone(&host);
            model::spawn(move || {
                if stops {
                    model::stop(40);
                }
                host.vnode_open(Inode(5)).expect("room")
            })
        });
        model::hurry(SECOND / 2);
        let [stopped, other] = openers;
        let other = other.join().expect("not killed");
        model::go_on();
        assert_eq!(stopped.join().expect("not killed"), other, "two rows of a file");
        assert!(!host.vnode_close(Inode(5), other).expect("open").last);
        assert!(host.vnode_close(Inode(5), other).expect("open").last);
    });
}

/// Deleting and opening meet: the opener sees that the file is gone, or the shard that it is open.
#[test]
fn a_file_is_not_deleted_under_who_opens_it() {
    model::explore(1500, || {
        let host = host();
        let exists = Arc::new(shm::sync::AtomicU32::new(1));
        let opener = {
            let (host, exists) = (Arc::clone(&host), Arc::clone(&exists));
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("room");
                let open = exists.load(Ordering::SeqCst) != 0;
                let told = open.then(|| host.vnode_close(Inode(5), vnode).expect("open").deleted);
                (open, told)
            })
        };
        exists.store(0, Ordering::SeqCst);
        let kept = host.mark_deleted(Inode(5));
        let (open, told) = opener.join().expect("not killed");
        // Kept for an opener that had closed before, it would be for nobody.
        assert!(!kept || told != Some(false), "nobody tells the shard of the last close");
        assert!(kept || !open || told == Some(false), "deleted while it is open");
    });
}

#[test]
fn the_last_reference_is_one() {
    model::explore(1000, || {
        let host = host();
        let file = host.file_allocate(Inode(5), VnodeIndex(0), 0).expect("room");
        host.file_retain(file);
        let lasts = Arc::new(AtomicU32::new(0));
        let others = [(); 2].map(|()| {
            let (host, lasts) = (Arc::clone(&host), Arc::clone(&lasts));
            model::spawn(move || {
                let own = host.file_allocate(Inode(6), VnodeIndex(0), 0).expect("room");
                assert_ne!(own, file, "one row for two files");
                if host.file_release(file).expect("has references") {
                    lasts.fetch_add(1, Ordering::Relaxed);
                    host.file_free(file).expect("a row");
                }
                own
            })
        });
        let [first, second] = others.map(|other| other.join().expect("not killed"));
        assert!(first != second || first == file, "one row for two files");
        assert_eq!(lasts.load(Ordering::Relaxed), 1);
    });
}

/// Two take apart what they saw of a dead process; whoever gets the row meanwhile keeps its table.
#[test]
fn a_table_is_taken_apart_once() {
    model::explore(600, || {
        let host = host();
        let file = host.file_allocate(Inode(5), VnodeIndex(0), 0).expect("room");
        let process = model::quietly(|| {
            let process = host.process_register(100, 7).expect("room");
            host.process_set(process, 3, Some((file, false))).expect("room");
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
        let next = host.process_register(200, 9).expect("room");
        host.process_set(next, 4, Some((file, false))).expect("room");
        let [first, second] = others.map(|other| other.join().expect("not killed"));
        assert_ne!(first, second, "by one of two");
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        assert_eq!(host.process_find(200, 9), Some(next));
        assert_eq!(host.process_get(next, 4), Some((file, false)));
    });
}

/// A child adopts the copy of its table while somebody takes the copy apart for one of a dead fork.
#[test]
fn a_copy_is_adopted_or_taken_apart() {
    model::explore(600, || {
        let host = host();
        let (copy, generation) = model::quietly(|| {
            let parent = host.process_register(100, 7).expect("room");
            let copy = host.process_copy(parent, &mut |_| {}).expect("room");
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

/// A file of 5000 bytes is cut by the worker of its shard while one writes as many anew and one learns
/// how long it is. In the end it is long if the bytes are there, and only then; the shard is told so.
#[test]
fn a_size_is_that_of_the_bytes_that_are_left() {
    model::explore(3000, || {
        let host = host();
        let row = model::quietly(|| host.vnode_open(Inode(5)).expect("room"));
        let shard = Arc::new(shm::sync::AtomicU64::new(5000));
        let bytes = Arc::new(shm::sync::AtomicU32::new(1));
        let writer = {
            let (host, bytes) = (Arc::clone(&host), Arc::clone(&bytes));
            model::spawn(move || {
                let vnode = host.vnode(row).expect("a row");
                loop {
                    let cuts = vnode.cuts();
                    if cuts.is_under_way() {
                        model::spin_loop();
                        continue;
                    }
                    bytes.store(1, Ordering::SeqCst);
                    if vnode.note_written(cuts, 5000).is_ok() {
                        break;
                    }
                }
            })
        };
        let learner = {
            let (host, shard) = (Arc::clone(&host), Arc::clone(&shard));
            model::spawn(move || {
                let vnode = host.vnode(row).expect("a row");
                let seen = vnode.seen();
                vnode.learn(&seen, shard.load(Ordering::SeqCst));
            })
        };
        shard.store(0, Ordering::SeqCst);
        host.begin_cut(Inode(5), 0);
        bytes.store(0, Ordering::SeqCst);
        host.end_cut(Inode(5));
        writer.join().expect("not killed");
        learner.join().expect("not killed");
        let right = 5000 * u64::from(bytes.load(Ordering::SeqCst));
        assert_eq!(host.vnode(row).expect("a row").size(), right);
        assert_eq!(host.untold(Inode(5)), right, "to be told");
        assert_eq!(host.cuts(Inode(5)).map(shm::host::Cuts::number), Some(2));
    });
}

/// The shard is another host's: nothing that one learned of the time before a cut stays.
#[test]
fn a_size_learned_late_is_not_that_of_before_a_cut() {
    model::explore(1500, || {
        let host = host();
        let row = model::quietly(|| host.vnode_open(Inode(5)).expect("room"));
        let shard = Arc::new(shm::sync::AtomicU64::new(5000));
        let learners = [(); 2].map(|()| {
            let (host, shard) = (Arc::clone(&host), Arc::clone(&shard));
            model::spawn(move || {
                let vnode = host.vnode(row).expect("a row");
                let seen = vnode.seen();
                vnode.learn(&seen, shard.load(Ordering::SeqCst));
            })
        });
        let vnode = host.vnode(row).expect("a row");
        assert_eq!(vnode.cut_far(), 0);
        shard.store(0, Ordering::SeqCst);
        vnode.is_cut_far(0);
        let _ = learners.map(|learner| learner.join().expect("not killed"));
        assert_eq!(vnode.size(), 0);
    });
}

/// A shard of another host gives out a range, which passes by while a client of this host has asked for a
/// cut: it is one of before the cut, and what is left of it afterwards is known.
#[test]
fn a_range_that_passes_a_cut_is_of_before_it() {
    model::explore(1, || {
        let host = host();
        let (file, row) = (Inode(5), model::quietly(|| host.vnode_open(Inode(5)).expect("room")));
        let vnode = host.vnode(row).expect("a row");
        let first = vnode.cuts();
        host.begin_far_cut(file);
        assert_eq!(vnode.cuts().before(), first);
        assert_ne!(vnode.cuts(), first, "nothing is written of it meanwhile");
        // Two clients cut: the bytes behind the shorter one's are gone.
        host.far_cut_to(file, 100);
        host.far_cut_to(file, 7000);
        host.end_far_cut(file, true);
        assert_eq!(vnode.cut_once_since(first), Some(100));
        let second = vnode.cuts();
        assert_eq!((second.before(), second.after()), (second, second), "nobody cuts");
        // The shard refuses: all of the range is good.
        host.begin_far_cut(file);
        host.end_far_cut(file, false);
        assert!(vnode.cut_once_since(second).is_some_and(|size| size > 1 << 47));
        // The shard tells of a cut: ranges that come behind that are of after it.
        host.begin_cut(file, 40);
        let told = vnode.cuts().after();
        host.end_far_cut(file, true);
        assert_eq!(vnode.cuts(), told);
    });
}
