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
