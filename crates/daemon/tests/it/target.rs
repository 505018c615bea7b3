//! A target over the real socket, real shared memory and TCP: extents, copies, space, restarts.

use crate::support::{Client, Instance, To, decode};
use wire::errno::Errno;
use wire::{DaemonIndex, Inode, Reply, Request};

const FILE: Inode = Inode(77);
const STRIPE_LOG2: u8 = 22;

#[test]
fn bytes_written_through_shared_memory_survive_a_kill() {
    let mut instance = Instance::start(1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    client.write_mapped(FILE, STRIPE_LOG2, 5_000, &bytes);
    assert_eq!(client.read(0, FILE, STRIPE_LOG2, 5_000, 10_000), bytes[..10_000]);
    assert_eq!(client.read(0, FILE, STRIPE_LOG2, 0, 5_000), [0; 5_000]);

    instance.kill(0);
    instance.spawn(0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    for offset in (0..300_000).step_by(10_000) {
        let read = client.read(0, FILE, STRIPE_LOG2, 5_000 + offset as u64, 10_000);
        assert_eq!(read, bytes[offset..offset + 10_000]);
    }
}

#[test]
fn space_of_removed_files_is_free_again() {
    let instance = Instance::start(1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let target = To::Target(DaemonIndex(0));
    let free = |client: &Client| {
        let bytes = client.call(target, &Request::Space {}).expect("space");
        let Reply::Space { memory_free, ssd_free, .. } = decode(&bytes) else { panic!("no space") };
        memory_free + ssd_free
    };
    let before = free(&client);
    // More than the arena holds: the rest goes to the SSD file.
    for stripe in 0..24 {
        let bytes = [stripe as u8 + 1; 100];
        client.write_mapped(FILE, STRIPE_LOG2, (stripe + 1) << STRIPE_LOG2, &bytes);
    }
    assert_eq!(free(&client), before - (24 << STRIPE_LOG2));
    for stripe in 0..24 {
        let read = client.read(0, FILE, STRIPE_LOG2, (stripe + 1) << STRIPE_LOG2, 101);
        assert_eq!(read[..100], [stripe as u8 + 1; 100]);
        assert_eq!(read[100], 0);
    }
    client.call(target, &Request::Remove { inodes: &FILE.0.to_le_bytes() }).expect("removed");
    crate::support::wait_until("all space is free", || free(&client) == before);
    let fill = |inode, offset| {
        let (stripe_log2, allocate, length) = (STRIPE_LOG2, 1, 1 << STRIPE_LOG2);
        let request =
            Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate: 0 };
        client.extents(0, &request).map(|extents| extents.len())
    };
    let full = (0..64).find_map(|stripe| fill(FILE, stripe << STRIPE_LOG2).err());
    assert_eq!(full, Some(Errno::ENOSPC));
    assert_eq!(free(&client), 0);
    assert_eq!(fill(Inode(78), 0), Err(Errno::ENOSPC));
}

#[test]
fn targets_of_other_hosts_are_reached_through_the_local_daemon() {
    let instance = Instance::start_as(3, 1, 1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    assert_eq!((client.welcome.local_first, client.welcome.local_count), (0, 1));
    for daemon in 0..3 {
        let to = To::Target(DaemonIndex(daemon));
        let bytes = vec![daemon as u8 + 1; 9_000];
        let offset = 1_000;
        let write = Request::Write {
            inode: FILE,
            stripe_log2: STRIPE_LOG2,
            offset,
            truncate_epoch: u64::MAX,
            bytes: &bytes,
        };
        client.call(to, &write).expect("written");
        assert_eq!(client.read(daemon, FILE, STRIPE_LOG2, 1_000, 9_000), bytes);
    }
    let on_two = Client::attach(&instance.socket(2)).expect("attached");
    assert_eq!(on_two.read(1, FILE, STRIPE_LOG2, 1_000, 9_000), [2; 9_000]);
    assert_eq!(on_two.read(2, FILE, STRIPE_LOG2, 1_000, 9_000), [3; 9_000]);
}

#[test]
fn a_lost_daemon_is_found_again() {
    let mut instance = Instance::start_as(2, 1, 1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let to = To::Target(DaemonIndex(1));
    let write = move |client: &Client, byte: u8| {
        let bytes = [byte; 100];
        let write = Request::Write {
            inode: FILE,
            stripe_log2: STRIPE_LOG2,
            offset: 0,
            truncate_epoch: u64::MAX,
            bytes: &bytes,
        };
        client.call(to, &write).map(drop)
    };
    assert_eq!(write(&client, 1), Ok(()));
    instance.kill(1);
    let waiting = std::thread::spawn(move || (write(&client, 2), client));
    std::thread::sleep(std::time::Duration::from_millis(50));
    instance.spawn(1);
    instance.tell_peers();
    let (written, client) = waiting.join().expect("no panic");
    assert_eq!(written, Ok(()));
    assert_eq!(client.read(1, FILE, STRIPE_LOG2, 0, 100), [2; 100]);
}

#[test]
fn requests_to_a_target_are_accepted_by_any_worker() {
    let instance = Instance::start_as(1, 1, 3);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let target = To::Target(DaemonIndex(0));
    assert_eq!(client.indexes.len(), 3);
    client.write_mapped(FILE, STRIPE_LOG2, 0, b"abc");
    let usage =
        client.call(target, &Request::Usage { inode: FILE, end: 1 << STRIPE_LOG2 }).expect("usage");
    assert!(matches!(decode(&usage), Reply::Number { value } if value == 4 * 1024));
}

/// A client is stopped during a copy while the daemon is killed and restarted, and continues much
/// later: it writes into no file but its own, whether its file was removed before the kill or
/// after.
#[test]
fn space_is_not_reused_while_a_stopped_client_copies() {
    for is_removed_before in [true, false] {
        let mut instance = Instance::start(1);
        let stopped = Client::attach(&instance.socket(0)).expect("attached");
        let target = To::Target(DaemonIndex(0));
        let remove = Request::Remove { inodes: &FILE.0.to_le_bytes() };
        stopped.write_mapped(FILE, STRIPE_LOG2, 1 << STRIPE_LOG2, b"before");
        let stripe = 1u64 << STRIPE_LOG2;
        let find = Request::MapExtents {
            inode: FILE,
            stripe_log2: STRIPE_LOG2,
            allocate: 0,
            offset: stripe,
            length: stripe,
            preallocate: 0,
        };
        let extent = stopped.extents(0, &find).expect("there")[0];
        let pin = stopped.hazards().protect(extent.slot).expect("an entry");
        assert_eq!(stopped.table.get(extent.slot), Some((FILE, extent)), "the client may copy");
        if is_removed_before {
            stopped.call(target, &remove).expect("removed");
        }
        instance.kill(0);
        instance.spawn(0);
        let client = Client::attach(&instance.socket(0)).expect("attached");
        if !is_removed_before {
            client.call(target, &remove).expect("removed");
        }
        // Other files take all available space.
        let mut taken = 0;
        let full = loop {
            let (inode, offset) = (Inode(78), taken * stripe);
            let (stripe_log2, allocate, length) = (STRIPE_LOG2, 1, stripe);
            let map = Request::MapExtents {
                inode,
                stripe_log2,
                allocate,
                offset,
                length,
                preallocate: 0,
            };
            match client.extents(0, &map) {
                Ok(_) => taken += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!((full, taken), (Errno::ENOSPC, 31), "all but the extent being copied into");
        let bytes = vec![7; stripe as usize];
        (0..taken).for_each(|at| client.write_mapped(Inode(78), STRIPE_LOG2, at * stripe, &bytes));
        stopped.arena.copy_in(extent.location, &vec![9; stripe as usize]).expect("it continues");
        for at in (0..taken * stripe).step_by(1 << 16) {
            let read = client.read(0, Inode(78), STRIPE_LOG2, at, 100);
            assert_eq!(read, [7; 100], "another file's bytes at {at}");
        }
        drop(pin);
        let map = Request::MapExtents {
            inode: Inode(79),
            stripe_log2: STRIPE_LOG2,
            allocate: 1,
            offset: stripe,
            length: stripe,
            preallocate: 0,
        };
        crate::support::wait_until("the space is free", || client.extents(0, &map).is_ok());
    }
}
