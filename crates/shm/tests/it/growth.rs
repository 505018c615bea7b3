//! An index that grows under a reader: everything found is right, and nearly everything is found.

use rustix::fd::AsFd as _;
use shm::index::{Hit, Index, Shape};
use shm::segment::{Access, Segment};
use std::sync::atomic::{AtomicU64, Ordering};
use wire::hash::entry_key;
use wire::{Attributes, Inode};

#[test]
fn a_reader_sees_no_wrong_record_while_the_index_grows() {
    let shape = Shape { entries_log2: 13, inodes_log2: 13 };
    let (segment, fd) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let writer = Index::create(segment, shape).expect("long enough");
    let reader = Segment::map(fd.as_fd(), shape.bytes(), Access::ReadOnly).expect("mapped");
    let reader = Index::open(reader).expect("same shape");
    // The table has its maximum size, and holds a third more than it is meant for.
    grow(&writer, &reader, 16_000);
}

#[test]
fn a_reader_that_maps_parts_finds_as_much() {
    let shape = Shape { entries_log2: 15, inodes_log2: 15 };
    let (segment, fd) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let writer = Index::create(segment, shape).expect("long enough");
    let file = rustix::io::fcntl_dupfd_cloexec(&fd, 0).expect("a descriptor");
    let reader = Index::open_in_parts(file).expect("same shape");
    // Three parts of each table.
    grow(&writer, &reader, 50_000);
    // A process that gave up the right to the index maps no more of it.
    let file = rustix::io::fcntl_dupfd_cloexec(&fd, 0).expect("a descriptor");
    let late = Index::open_in_parts(file).expect("same shape");
    let key = entry_key(Inode(1), b"name");
    writer.put_entry(key, Inode(7), 1);
    writer.put_inode(&Attributes { inode: Inode(7), ..Attributes::default() });
    assert_eq!(reader.entry(key), Hit::Found(Inode(7), 1));
    for index in [&reader, &late] {
        index.detach();
        assert!(index.entry(key) == Hit::Unknown && index.inode(Inode(7)).is_none());
    }
    let (short, file) = Segment::nameless(c"test", 4096).expect("nameless memory");
    short.word32(0).expect("in range").store(13, Ordering::Release);
    assert_eq!(Index::open_in_parts(file).err(), Some(wire::Errno::EINVAL));
}

/// Looks records up while `entries` of them are put, then all, and removes them.
fn grow(writer: &Index, reader: &Index, entries: u64) {
    let key = |at: u64| entry_key(Inode(1), &at.to_le_bytes());
    let put = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            loop {
                let now = put.load(Ordering::Acquire);
                if now == entries {
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
        for at in 1..=entries {
            writer.put_entry(key(at), Inode(at), at as u32);
            let inode = Inode(at);
            writer.put_inode(&Attributes { inode, size: at, ..Attributes::default() });
            put.store(at, Ordering::Release);
        }
    });
    let names = (1..=entries).filter(|&at| reader.entry(key(at)) != Hit::Unknown).count();
    let inodes = (1..=entries).filter(|&at| reader.inode(Inode(at)).is_some()).count();
    // A reader whose pages were unmapped finds the same.
    reader.unmap_pages();
    assert_eq!((1..=entries).filter(|&at| reader.inode(Inode(at)).is_some()).count(), inodes);
    let least = entries as usize / 160 * 159;
    assert!(names > least && inodes > least, "{names} and {inodes} of {entries}");
    for at in 1..=entries {
        writer.forget_entry(key(at));
        writer.forget_inode(Inode(at));
    }
    assert!((1..=entries).all(|at| reader.entry(key(at)) == Hit::Unknown));
    assert!((1..=entries).all(|at| reader.inode(Inode(at)).is_none()));
}

/// A directory whose entries fill the index stays complete while the index grows.
#[test]
fn a_growing_directory_stays_whole() {
    let shape = Shape { entries_log2: 16, inodes_log2: 4 };
    let (segment, _) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
    let index = Index::create(segment, shape).expect("long enough");
    let directory = Inode(5);
    index.mark_complete(directory);
    let name = |number: u64| entry_key(directory, &number.to_le_bytes());
    for number in 0..90_000 {
        assert_eq!(index.entry_in(directory, name(number)), Hit::Absent, "before {number}");
        index.put_entry(name(number), Inode(number + 1), 0);
    }
    for number in 0..90_000 {
        let found = Hit::Found(Inode(number + 1), 0);
        assert_eq!(index.entry_in(directory, name(number)), found, "{number} of 90000");
    }
    assert!(index.is_complete(directory), "an entry was forgotten");
    for number in (0..90_000).step_by(2) {
        index.put_absent(directory, name(number));
        assert_eq!(index.entry(name(number)), Hit::Unknown, "a record for an absent name");
        assert_eq!(index.entry_in(directory, name(number)), Hit::Absent);
    }
    index.put_entry(name(4), Inode(9), 1);
    assert_eq!(index.entry(name(4)), Hit::Found(Inode(9), 1));
}

/// No attributes are forgotten because a record found no space, whether inode numbers are taken in
/// sequence or by many processes in blocks.
#[test]
fn a_growing_index_forgets_no_inode() {
    for (what, number) in [
        ("in turn", (|at| at) as fn(u64) -> u64),
        ("blocks of 100 of four shards", |at| (at % 4) << 48 | (at / 400 * 1000 + at / 4 % 100)),
        ("in a stride", |at| at * 1024),
    ] {
        let shape = Shape { entries_log2: 4, inodes_log2: 16 };
        let (segment, _) = Segment::nameless(c"test", shape.bytes()).expect("nameless memory");
        let index = Index::create(segment, shape).expect("long enough");
        let inode = |at: u64| Inode(number(at) + 1);
        let size = |at: u64| index.inode(inode(at)).map(|found| found.size);
        for at in 0..90_000 {
            index.put_inode(&Attributes { inode: inode(at), size: at, ..Attributes::default() });
        }
        let lost: Vec<u64> = (0..90_000).filter(|&at| size(at) != Some(at)).collect();
        assert!(lost.is_empty(), "{what}: {} lost, first {:?}", lost.len(), lost.first());
        for at in (0..90_000).step_by(2) {
            index.forget_inode(inode(at));
        }
        let remaining = |at| size(at) == (at % 2 == 1).then_some(at);
        assert!((0..90_000).all(remaining), "{what}: after half was forgotten");
    }
}
