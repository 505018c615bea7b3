//! The index: readers beside one writer that inserts, changes, removes and splits buckets.

use crate::support::memory;
use rustix::fd::AsFd;
use shm::index::{Hit, Index, Shape};
use shm::sync::model;
use shm::{Access, Segment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use wire::attributes::mode;
use wire::hash::neighbourly;
use wire::{Attributes, Inode};

const SHAPE: Shape = Shape { entries_log2: 3, inodes_log2: 3 };

/// The writer's side and a reader's own mapping.
fn sides() -> (Index, Arc<Index>) {
    let (segment, fd) = Segment::nameless(c"test", SHAPE.bytes()).expect("nameless memory");
    let writer = Index::create(segment, SHAPE).expect("long enough");
    let reader = Segment::map(fd.as_fd(), SHAPE.bytes(), Access::ReadOnly).expect("mapped");
    (writer, Arc::new(Index::open(reader).expect("same shape")))
}

fn attributes(inode: u64, value: u64) -> Attributes {
    Attributes {
        inode: Inode(inode),
        size: value,
        modified: value.cast_signed(),
        device: value as u32,
        ..Attributes::default()
    }
}

/// Key 9 changes, keys 1 to 3 stay, 4 to 8 are added while the table grows, 20 never exists.
fn look(reader: &Index, newest: &mut u64) {
    match reader.entry(9) {
        Hit::Found(inode, mode) => {
            assert_eq!(inode.0 as u32, mode, "a torn record");
            assert!(inode.0 >= *newest, "an old record");
            *newest = inode.0;
        }
        Hit::Absent => assert!(*newest <= 2, "it is there again by now"),
        Hit::Unknown => {}
    }
    for key in [1, 3] {
        let hit = reader.entry(u128::from(key));
        let there = Hit::Found(Inode(key), key as u32);
        assert!(hit == there || hit == Hit::Unknown, "key {key}: {hit:?}");
    }
    assert_eq!(reader.entry(20), Hit::Unknown);
}

#[test]
fn entries_are_never_torn_and_never_lost() {
    model::explore(1500, || {
        let (writer, reader) = sides();
        model::uninterrupted(|| {
            for key in 1..=3u64 {
                writer.put_entry(u128::from(key), Inode(key), key as u32);
            }
        });
        let readers = [(); 2].map(|()| {
            let reader = Arc::clone(&reader);
            model::spawn(move || {
                let mut newest = 0;
                for _ in 0..3 {
                    look(&reader, &mut newest);
                }
            })
        });
        writer.put_entry(9, Inode(1), 1);
        writer.put_absent(Inode(3), 9);
        writer.put_entry(9, Inode(2), 2);
        writer.put_absent(Inode(3), 9);
        writer.forget_entry(9);
        for key in 4..=8u64 {
            writer.put_entry(u128::from(key), Inode(key), key as u32);
        }
        writer.put_entry(9, Inode(3), 3);
        for reader in readers {
            reader.join().expect("not killed");
        }
        model::uninterrupted(|| {
            for key in (1..=8u64).filter(|key| key % 4 != 1) {
                let there = Hit::Found(Inode(key), key as u32);
                assert_eq!(reader.entry(u128::from(key)), there, "key {key} is lost");
            }
            assert_eq!(reader.entry(9), Hit::Found(Inode(3), 3));
        });
    });
}

#[test]
fn a_record_that_nobody_touches_is_always_found() {
    model::explore(1000, || {
        let (writer, reader) = sides();
        model::uninterrupted(|| writer.put_entry(1, Inode(1), 1));
        let other = model::spawn(move || {
            for _ in 0..3 {
                assert_eq!(reader.entry(1), Hit::Found(Inode(1), 1));
            }
        });
        // Its bucket is written, but the table does not grow.
        writer.put_entry(3, Inode(3), 3);
        writer.put_entry(3, Inode(4), 4);
        writer.forget_entry(3);
        other.join().expect("not killed");
    });
}

#[test]
fn attributes_are_never_torn_also_when_the_writer_is_killed() {
    model::explore(1000, || {
        let (writer, reader) = sides();
        model::uninterrupted(|| (1..=3).for_each(|inode| writer.put_inode(&attributes(inode, 1))));
        let writer = model::spawn(move || {
            model::kill_after(150);
            for (inode, value) in [(1, 2), (4, 1), (2, 2), (5, 1), (1, 3)] {
                writer.put_inode(&attributes(inode, value));
            }
            writer.forget_inode(Inode(2));
        });
        for _ in 0..3 {
            for inode in 1..=2 {
                if let Some(found) = reader.inode(Inode(inode)) {
                    assert_eq!(found.inode, Inode(inode), "another inode");
                    assert_eq!(found.size, found.modified.cast_unsigned(), "a torn record");
                    assert_eq!(found.size, u64::from(found.device), "a torn record");
                }
            }
        }
        writer.join();
        assert_eq!(Index::create(memory(8), SHAPE).err(), Some(wire::Errno::EINVAL));
    });
}

/// A record whose bucket is full is found elsewhere, whole, and once: while it changes, and while
/// space becomes free in its own bucket.
#[test]
fn attributes_that_spilled_are_found() {
    let of_one_bucket = |inode: &u64| neighbourly(Inode(*inode), 7).is_multiple_of(8);
    let inodes: Vec<u64> = (1..).filter(of_one_bucket).take(7).collect();
    model::explore(1000, move || {
        let (writer, reader) = sides();
        model::uninterrupted(|| {
            // The table has its maximum size; then six for a bucket of four.
            (1..200).for_each(|inode| writer.put_inode(&attributes(inode, 1)));
            (1..200).for_each(|inode| writer.forget_inode(Inode(inode)));
            inodes[..6].iter().for_each(|inode| writer.put_inode(&attributes(*inode, 1)));
        });
        let (changed, remaining) = (inodes[4], inodes[5]);
        let other = model::spawn(move || {
            let mut newest = 1;
            for _ in 0..3 {
                let size = |inode| reader.inode(Inode(inode)).map(|found| found.size);
                assert_eq!(size(remaining), Some(1), "nobody touches it");
                let size = size(changed).expect("it is never away");
                assert!(size >= newest, "an old record");
                newest = size;
            }
            reader
        });
        writer.put_inode(&attributes(changed, 2));
        writer.forget_inode(Inode(inodes[0]));
        writer.put_inode(&attributes(changed, 3));
        writer.put_inode(&attributes(inodes[6], 1));
        let reader = other.join().expect("not killed");
        model::uninterrupted(|| {
            writer.forget_inode(Inode(changed));
            assert_eq!(reader.inode(Inode(changed)), None, "a second record of it");
            assert!(inodes[1..].iter().filter(|inode| **inode != changed).all(|inode| {
                reader.inode(Inode(*inode)).is_some_and(|found| found.inode.0 == *inode)
            }));
        });
    });
}

/// In a complete directory an existing entry is never taken for absent: not while the table grows,
/// nor when a full bucket forgets a record.
#[test]
fn an_existing_name_is_not_absent_in_a_complete_directory() {
    exists_is_not_absent(|| {});
}

/// Nor by readers that give up because the writer stays in the bucket.
#[test]
fn an_existing_name_is_not_absent_to_a_reader_that_could_not_read() {
    exists_is_not_absent(model::limit_retries);
}

fn exists_is_not_absent(begin: fn()) {
    model::explore(2000, move || {
        begin();
        let (writer, reader) = sides();
        let directory = Inode(77);
        model::uninterrupted(|| {
            writer.mark_complete(directory);
            writer.put_entry(8, Inode(8), 8);
        });
        assert!(model::uninterrupted(|| reader.is_complete(directory)));
        let readers = [(); 2].map(|()| {
            let reader = Arc::clone(&reader);
            model::spawn(move || {
                for _ in 0..3 {
                    assert_ne!(reader.entry_in(directory, 8), Hit::Absent, "it is there");
                }
            })
        });
        // Some fall into the bucket of key 8, more than it holds.
        for key in [16u64, 24, 32, 1, 40, 48, 2, 56] {
            writer.put_entry(u128::from(key), Inode(key), key as u32);
        }
        let _ = readers.map(model::Thread::join);
        model::uninterrupted(|| {
            assert_ne!(reader.entry_in(directory, 8), Hit::Absent, "it was forgotten");
            writer.forget_entry(8);
            assert_eq!(reader.entry_in(directory, 8), Hit::Unknown, "to be asked for");
            writer.put_absent(directory, 8);
            assert_eq!(reader.entry_in(directory, 8), Hit::Absent);
        });
    });
}

/// A remembered directory is not used once any process was told of a change, or saw it.
#[test]
fn a_directory_is_not_remembered_after_it_changed() {
    // The history of the name: inode 1, nothing, inode 2, forgotten, inode 3.
    let stage_of = |hit: Hit| match hit {
        Hit::Found(Inode(inode), _) => (inode - 1) * 2,
        Hit::Absent => 1,
        Hit::Unknown => 3,
    };
    model::explore(2000, move || {
        let (writer, reader) = sides();
        model::uninterrupted(|| writer.put_entry(9, Inode(1), mode::DIRECTORY));
        let seen = Arc::new(AtomicU64::new(0));
        let readers = [(); 2].map(|()| {
            let (reader, seen) = (Arc::clone(&reader), Arc::clone(&seen));
            model::spawn(move || {
                let mut remembered = None;
                for _ in 0..4 {
                    let known = seen.load(SeqCst);
                    let now = reader.directory_version();
                    if let Some((number, buffers)) = remembered
                        && now == Some(number)
                    {
                        assert!(buffers >= known, "stage {buffers}, but {known} was seen");
                    }
                    let hit = reader.entry(9);
                    seen.fetch_max(stage_of(hit), SeqCst);
                    if let (Some(number), Hit::Found(..)) = (now, hit) {
                        remembered = Some((number, stage_of(hit)));
                    }
                }
            })
        });
        for buffers in 1..=4u64 {
            match buffers {
                1 => writer.put_absent(Inode(7), 9),
                3 => writer.forget_entry(9),
                _ => writer.put_entry(9, Inode(1 + buffers / 2), mode::DIRECTORY),
            }
            // Tells the clients that asked for it.
            seen.fetch_max(buffers, SeqCst);
        }
        for reader in readers {
            reader.join().expect("not killed");
        }
    });
}
