//! Descriptor tables when there is no room for one more.

use shm::Segment;
use shm::host::{HOST_BYTES, HostSegment, OfdIndex, ProcessIndex};
use std::sync::atomic::Ordering;
use wire::errno::Result;
use wire::{Errno, Inode};

/// Enters the file in the block with this number of a table; each block has 1024 descriptors.
fn enter(host: &HostSegment, process: ProcessIndex, block: u32, file: OfdIndex) -> Result<()> {
    host.process_set(process, 1024 * block, Some((file, false))).map(drop)
}

/// Blocks end in the middle of a copy: nothing is left of it, and no reference is lost.
#[test]
fn a_table_that_cannot_be_copied_as_a_whole_is_not_copied() {
    let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("nameless memory");
    let host = HostSegment::new(segment).expect("long enough");
    let vnode = host.vnode_open(Inode(5)).expect("space");
    let file = host.file_allocate(Inode(5), vnode, 2).expect("space");
    let parent = host.process_register(100, 7).expect("space");
    let spare = host.process_register(101, 7).expect("space");
    enter(&host, parent, 0, file).and_then(|()| enter(&host, parent, 1, file)).expect("space");
    enter(&host, spare, 0, file).expect("space");
    let others = (200..).map(|pid| host.process_register(pid, 7).expect("space"));
    let full = others.flat_map(|process| (0..64).map(move |block| (process, block)));
    let full =
        full.map(|(process, block)| enter(&host, process, block, file)).find_map(Result::err);
    assert_eq!(full, Some(Errno::ENFILE));
    let generation = host.process_generation(spare);
    host.process_release(spare, generation, &mut |_| {}).expect("in use");
    let seen = || {
        let mut tables = 0;
        host.process_list(&mut |_| tables += 1);
        (tables, host.file(file).expect("a row").refs.load(Ordering::Relaxed))
    };
    let before = seen();
    let give_back = &mut |file| assert_eq!(host.file_release(file), Ok(false));
    assert_eq!(host.process_copy(parent, give_back), Err(Errno::ENFILE));
    assert_eq!(seen(), before);
    let again = host.process_register(102, 7).expect("space");
    assert_eq!(enter(&host, again, 0, file), Ok(()), "the block is free again");
}
