//! The open sequence only grows, whatever else changes in the header of the host segment.

use shm::host::{HOST_BYTES, HostSegment};
use shm::segment::Segment;
use wire::Inode;

/// Blocks of descriptors have a hint in the header: it moves on when many processes have open files,
/// and back when they close them.
#[test]
fn the_open_sequence_only_grows_while_processes_come_and_go() {
    let (memory, _) = Segment::nameless(c"test", HOST_BYTES).expect("nameless memory");
    let host = HostSegment::new(memory).expect("long enough");
    let vnode = host.vnode_open(Inode(5)).expect("space");
    let file = host.file_allocate(Inode(5), vnode, 2).expect("space");
    let mut next = 1;
    let mut draw = || {
        assert_eq!(host.next_open_sequence(), next);
        next += 1;
    };
    for _ in 0..3 {
        let mut processes = Vec::new();
        for number in 1..=300 {
            let process = host.process_register(number, 7).expect("space");
            host.process_set(process, 3, Some((file, false))).expect("space");
            processes.push(process);
            draw();
        }
        for process in processes {
            let generation = host.process_generation(process);
            host.process_release(process, generation, &mut |_| {}).expect("live");
            draw();
        }
    }
}
