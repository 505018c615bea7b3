//! An index that grows under a reader: what is found is right, and nearly all is found.

use rustix::fd::AsFd as _;
use shm::index::{Hit, Index, Shape};
use shm::segment::{Access, Segment};
use std::sync::atomic::{AtomicU64, Ordering};
use wire::hash::entry_key;
use wire::{Attributes, Inode};

#[test]
fn a_reader_sees_no_wrong_row_while_the_index_grows() {
    let shape = Shape { entries_log2: 13, inodes_log2: 13 };
    let (segment, fd) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let writer = Index::create(segment, shape).expect("long enough");
    let reader = Segment::map(fd.as_fd(), shape.bytes(), Access::ReadOnly).expect("mapped");
    let reader = Index::open(reader).expect("same shape");
    let rows = 16_000u64;
    let key = |at: u64| entry_key(Inode(1), &at.to_le_bytes());
    let put = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            loop {
                let now = put.load(Ordering::Acquire);
                if now == rows {
                    break;
                }
                at = if at >= now { 1 } else { at + 1 };
                match reader.entry(key(at)) {
                    Hit::Found(inode, mode) => {
                        assert_eq!((inode, u64::from(mode)), (Inode(at), at));
                    }
                    Hit::Absent => unreachable!("nobody said that {at} is absent"),
                    Hit::Unknown => {}
                }
                if let Some(found) = reader.inode(Inode(at)) {
                    assert_eq!((found.inode, found.size), (Inode(at), at));
                }
            }
        });
        for at in 1..=rows {
            writer.put_entry(key(at), Inode(at), at as u32);
            let inode = Inode(at);
            writer.put_inode(&Attributes { inode, size: at, ..Attributes::default() });
            put.store(at, Ordering::Release);
        }
    });
    let entries = (1..=rows).filter(|&at| reader.entry(key(at)) != Hit::Unknown).count();
    let inodes = (1..=rows).filter(|&at| reader.inode(Inode(at)).is_some()).count();
    // A few buckets in a hundred overflow.
    assert!(entries > 15_000 && inodes > 15_000, "{entries} and {inodes} of {rows}");
    for at in 1..=rows {
        writer.forget_entry(key(at));
        writer.forget_inode(Inode(at));
    }
    assert!((1..=rows).all(|at| reader.entry(key(at)) == Hit::Unknown));
    assert!((1..=rows).all(|at| reader.inode(Inode(at)).is_none()));
}

/// A directory whose entries fill the index stays known whole while the index grows.
#[test]
fn a_growing_directory_stays_whole() {
    let shape = Shape { entries_log2: 16, inodes_log2: 4 };
    let (segment, _) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let index = Index::create(segment, shape).expect("long enough");
    let directory = Inode(5);
    index.put_whole(directory);
    let name = |number: u64| entry_key(directory, &number.to_le_bytes());
    for number in 0..90_000 {
        assert_eq!(index.entry_in(directory, name(number)), Hit::Absent, "before {number}");
        index.put_entry(name(number), Inode(number + 1), 0);
    }
    for number in 0..90_000 {
        let found = Hit::Found(Inode(number + 1), 0);
        assert_eq!(index.entry_in(directory, name(number)), found, "{number} of 90000");
    }
    assert!(index.is_whole(directory), "an entry was forgotten");
    for number in (0..90_000).step_by(2) {
        index.put_absent(directory, name(number));
        assert_eq!(index.entry(name(number)), Hit::Unknown, "a row for what is not there");
        assert_eq!(index.entry_in(directory, name(number)), Hit::Absent);
    }
    index.put_entry(name(4), Inode(9), 1);
    assert_eq!(index.entry(name(4)), Hit::Found(Inode(9), 1));
}
