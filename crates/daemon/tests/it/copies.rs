//! Files with copies: what a client wrote is there while daemons are killed and return, each request is
//! made once, and truncations and removals are at all copies. The client sends requests to targets by
//! messages, as programs do for files with copies.

use crate::support::{Client, Instance, To, bytes_of, decode, wait_until};
use config::control::LostFiles;
use placement::locate::target;
use std::collections::BTreeSet;
use wire::attributes::mode::REGULAR;
use wire::errno::{Errno, Result};
use wire::request::{ANY_TRUNCATE_EPOCH, set};
use wire::{Attributes, DaemonIndex, Inode, Layout, Reply, Request};

const STRIPE_LOG2: u8 = 16;
const STRIPE: u64 = 1 << STRIPE_LOG2;
const BLOCK: u64 = 4096;

/// Bytes of a file that a client writes at one target, by block.
struct Written {
    client: Client,
    inode: Inode,
    target: u16,
    /// The byte that each block was written with last; 0: none, or it was cleared.
    blocks: Vec<u8>,
}

impl Written {
    fn new(client: Client, inode: Inode, target: u16) -> Written {
        Written { client, inode, target, blocks: Vec::new() }
    }

    fn to(&self) -> To {
        To::Target(DaemonIndex(self.target))
    }

    /// Writes a block as a whole.
    fn write(&mut self, block: usize, byte: u8) {
        assert_eq!(self.try_write(block, byte), Ok(()));
    }

    fn try_read(&self, block: usize) -> Result<Vec<u8>> {
        let (inode, stripe_log2) = (self.inode, STRIPE_LOG2);
        let (offset, length) = (block as u64 * BLOCK, BLOCK as u32);
        let request = Request::Read { inode, stripe_log2, offset, length };
        self.client.call(self.to(), &request).map(|reply| bytes_of(&reply).to_vec())
    }

    fn try_write(&mut self, block: usize, byte: u8) -> Result<()> {
        let (inode, stripe_log2) = (self.inode, STRIPE_LOG2);
        let (offset, bytes) = (block as u64 * BLOCK, &[byte; BLOCK as usize][..]);
        let truncate_epoch = ANY_TRUNCATE_EPOCH;
        let request = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes };
        let reply = self.client.call(self.to(), &request)?;
        assert_eq!(decode(&reply), Reply::Number { value: BLOCK });
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, 0);
        }
        self.blocks[block] = byte;
        Ok(())
    }

    /// Reads all blocks, and some behind the last one.
    fn assert_all(&self) {
        for block in 0..self.blocks.len() + 2 {
            let expected = self.blocks.get(block).copied().unwrap_or(0);
            let (inode, offset) = (self.inode, block as u64 * BLOCK);
            let bytes = self.client.read(self.target, inode, STRIPE_LOG2, offset, BLOCK as u32);
            assert!(bytes.iter().all(|byte| *byte == expected), "block {block}: {expected}");
            assert_eq!(bytes.len() as u64, BLOCK);
        }
    }
}

fn attach(instance: &Instance, index: u16) -> Client {
    Client::attach(&instance.socket(index)).expect("attached")
}

/// Waits until these daemons, which are all that are up, have all copies that they can have.
fn await_copies(instance: &Instance, up: &[u16]) {
    wait_until("all units have their copies", || {
        let down = u64::from(instance.count) - up.len() as u64;
        up.iter().all(|&index| {
            instance.status_of(index, "daemons_down") == down
                && instance.status_of(index, "units_degraded") == 0
        })
    });
}

fn file(client: &Client, name: &[u8]) -> Attributes {
    client.create(&client.root(), name, REGULAR | 0o600).expect("created")
}

#[test]
fn bytes_are_there_while_daemons_are_killed_and_return() {
    let mut instance = Instance::start_with_copies(3, 2, &[]);
    let client = attach(&instance, 2);
    let inode = file(&client, b"a").inode;
    let mut written = Written::new(client, inode, 0);
    // Blocks of many stripes, and so of many units.
    (0..100).for_each(|block| written.write(5 * block, 1));
    written.assert_all();
    instance.kill(0);
    // The client waits for the next primaries.
    written.assert_all();
    (0..100).for_each(|block| written.write(5 * block + 1, 2));
    written.assert_all();
    // The copies are made anew at the daemons that are left, so that a second death loses nothing.
    await_copies(&instance, &[1, 2]);
    instance.spawn(0);
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2]);
    instance.kill(1);
    written.assert_all();
    (0..100).for_each(|block| written.write(5 * block, 3));
    written.assert_all();
    await_copies(&instance, &[0, 2]);
    instance.spawn(1);
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2]);
    written.assert_all();
}

#[test]
fn a_request_is_made_once_although_its_primary_is_killed() {
    let mut instance = Instance::start_with_copies(3, 2, &[]);
    let client = attach(&instance, 2);
    let inode = file(&client, b"a").inode;
    let mut first = Written::new(client, inode, 0);
    let mut second = Written::new(attach(&instance, 1), inode, 0);
    first.write(0, 1);
    let identity = first.client.last.get();
    second.write(0, 2);
    instance.kill(0);
    // For all that the program knows, its request got no answer: it repeats it. Another write came since.
    first.client.repeat.set(Some(identity));
    first.write(0, 1);
    first.client.repeat.set(None);
    second.assert_all();
}

#[test]
fn a_file_with_three_copies_goes_on_with_two_of_them() {
    let mut instance = Instance::start_with_copies(3, 3, &[]);
    let client = attach(&instance, 2);
    let inode = file(&client, b"a").inode;
    let mut written = Written::new(client, inode, 2);
    (0..20).for_each(|block| written.write(16 * block, 7));
    instance.kill(0);
    written.assert_all();
    written.write(0, 8);
    instance.spawn(0);
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2]);
    written.assert_all();
}

#[test]
fn truncations_and_removals_are_at_all_copies() {
    let mut instance = Instance::start_with_copies(3, 2, &[]);
    let client = attach(&instance, 2);
    let attributes = file(&client, b"a");
    let inode = attributes.inode;
    let layout = attributes.layout;
    let count = client.map.daemon_count();
    let target = target(&layout, inode, 0, count).0;
    let mut written = Written::new(client, inode, target);
    let per_stripe = (STRIPE / BLOCK) as usize;
    for block in [0, 1, per_stripe - 1, per_stripe, 3 * per_stripe] {
        written.write(block, 9);
    }
    let change = |size, mask| Request::SetAttributes {
        inode,
        mask,
        mode: 0,
        uid: 0,
        gid: 0,
        size,
        accessed: 0,
        modified: 0,
    };
    let call = |written: &Written, request: &Request<'_>| {
        let reply = written.client.call(To::Shard(inode.shard()), request).expect("done");
        assert!(!matches!(decode(&reply), Reply::Refused { .. }), "{reply:?}");
    };
    call(&written, &Request::MoveOut { inode });
    call(&written, &change(0, set::LONG));
    call(&written, &change(4 * STRIPE, set::SIZE));
    call(&written, &change(BLOCK + 100, set::SIZE | set::TRUNCATES));
    let cut = |written: &Written, block: u64| {
        written.client.read(target, inode, STRIPE_LOG2, block * BLOCK, BLOCK as u32)
    };
    let expected = [[9; 100].as_slice(), &[0; BLOCK as usize - 100]].concat();
    let assert_cut = |written: &Written| {
        assert_eq!(cut(written, 0), [9; BLOCK as usize]);
        assert_eq!(cut(written, 1), expected);
        for block in [per_stripe - 1, per_stripe, 3 * per_stripe] {
            assert_eq!(cut(written, block as u64), [0; BLOCK as usize], "{block}");
        }
    };
    assert_cut(&written);
    // The other copies, too.
    let service = written.client.map.owner(inode.shard()).0;
    let other = (0..2).find(|&it| it != service).expect("one of two");
    instance.kill(other);
    assert_cut(&written);
    instance.spawn(other);
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2]);
    let root = written.client.root();
    written.client.unlink(&root, b"a").expect("removed");
    wait_until("all is removed at the copies", || {
        let zeros = [0; BLOCK as usize];
        let usage = |at: u16| {
            let request = Request::Usage { inode, end: u64::MAX >> 1 };
            let reply = written.client.call(To::Target(DaemonIndex(at)), &request);
            decode(&reply.expect("answered")) == Reply::Number { value: 0 }
        };
        cut(&written, 0) == zeros && (0..3).all(usage)
    });
}

#[test]
fn requests_for_extents_and_holes_get_none() {
    let instance = Instance::start_with_copies(3, 2, &[]);
    let client = attach(&instance, 1);
    let inode = file(&client, b"a").inode;
    let mut written = Written::new(client, inode, 1);
    written.write(0, 5);
    let (stripe_log2, offset, length, preallocate) = (STRIPE_LOG2, 0, BLOCK, 0);
    let map = |allocate| Request::MapExtents {
        inode,
        stripe_log2,
        allocate,
        offset,
        length,
        preallocate,
    };
    // Although the bytes are in the memory that the client maps: other copies would not get a change.
    assert_eq!(written.client.extents(1, &map(0)), Ok(Vec::new()));
    assert_eq!(written.client.extents(1, &map(1)), Ok(Vec::new()));
    assert_eq!(written.client.extents(1, &map(2)), Err(Errno::EOPNOTSUPP));
    let hole = Request::Punch { inode, stripe_log2, offset, length };
    let refused = written.client.call(written.to(), &hole).map(|reply| bytes_of(&reply).len());
    assert_eq!(refused, Err(Errno::EOPNOTSUPP));
    written.assert_all();
}

#[test]
fn after_a_loss_of_all_copies_old_files_have_errors_and_new_ones_holes() {
    const STRIPES: usize = 64;
    let per_stripe = (STRIPE / BLOCK) as usize;
    let mut instance = Instance::start_with_copies(5, 2, &[]);
    let of = |instance: &Instance, name: &[u8]| {
        let client = attach(instance, 4);
        let inode = file(&client, name).inode;
        client.call(To::Shard(inode.shard()), &Request::MoveOut { inode }).expect("moved out");
        // The service of both files is that of the root, at daemon 0.
        Written::new(client, inode, 1)
    };
    let mut old = of(&instance, b"old");
    (0..STRIPES).for_each(|stripe| old.write(stripe * per_stripe, 7));
    // Two nodes are lost with all that they had, and return as new ones.
    for index in [1, 2] {
        instance.kill(index);
        instance.forget(index);
    }
    wait_until("both deaths are agreed on", || {
        [0, 3, 4].iter().all(|&index| instance.status_of(index, "daemons_down") == 2)
    });
    [1, 2].into_iter().for_each(|index| instance.spawn(index));
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2, 3, 4]);

    let read = |of: &Written, stripe: usize| of.try_read(stripe * per_stripe);
    let is_lost: Vec<bool> = (0..STRIPES)
        .map(|stripe| match read(&old, stripe) {
            Ok(bytes) => {
                assert_eq!(bytes, [7; BLOCK as usize], "stripe {stripe}");
                false
            }
            Err(errno) => errno == Errno::EIO,
        })
        .collect();
    assert!(is_lost.contains(&true) && is_lost.contains(&false), "{is_lost:?}");
    let mut young = of(&instance, b"young");
    for (stripe, is_lost) in is_lost.iter().enumerate() {
        let written = old.try_write(stripe * per_stripe + 1, 8);
        assert_eq!(written, if *is_lost { Err(Errno::EIO) } else { Ok(()) }, "stripe {stripe}");
        assert_eq!(read(&young, stripe), Ok(vec![0; BLOCK as usize]), "stripe {stripe}");
        young.write(stripe * per_stripe, 9);
        assert_eq!(read(&young, stripe), Ok(vec![9; BLOCK as usize]), "stripe {stripe}");
    }
    // Bytes that are cut off are not lost.
    let (inode, mask) = (old.inode, set::SIZE | set::TRUNCATES);
    let (mode, uid, gid, size, accessed, modified) = (0, 0, 0, 0, 0, 0);
    let empty = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    old.client.call(To::Shard(inode.shard()), &empty).expect("emptied");
    for stripe in 0..STRIPES {
        assert_eq!(read(&old, stripe), Ok(vec![0; BLOCK as usize]), "stripe {stripe}");
        old.write(stripe * per_stripe, 10);
        assert_eq!(read(&old, stripe), Ok(vec![10; BLOCK as usize]), "stripe {stripe}");
    }
}

fn resize(client: &Client, inode: Inode, (size, mask): (u64, u32)) {
    let (mode, uid, gid, accessed, modified) = (0, 0, 0, 0, 0);
    let change = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    client.call(To::Shard(inode.shard()), &change).expect("resized");
}

#[test]
fn files_that_lost_all_copies_of_bytes_are_listed_until_they_are_emptied() {
    const DAEMONS: u16 = 5;
    let mut instance = Instance::start_with_copies(DAEMONS, 2, &[]);
    let made = |instance: &Instance, name: String| {
        let client = attach(instance, 4);
        let Attributes { inode, layout, .. } = file(&client, name.as_bytes());
        client.call(To::Shard(inode.shard()), &Request::MoveOut { inode }).expect("moved out");
        resize(&client, inode, (BLOCK, set::SIZE));
        let mut file = Written::new(client, inode, target(&layout, inode, 0, DAEMONS).0);
        file.write(0, 7);
        file
    };
    let files: Vec<Written> = (0..60).map(|number| made(&instance, format!("f{number}"))).collect();
    assert_eq!(instance.lost_files(3), LostFiles::default());
    for index in [1, 2] {
        instance.kill(index);
        instance.forget(index);
    }
    wait_until("both deaths are agreed on", || {
        [0, 3, 4].iter().all(|&index| instance.status_of(index, "daemons_down") == 2)
    });
    // The services of these two do not answer, before and after the table of units has both deaths.
    let mut down = LostFiles::default();
    wait_until("units are down", || {
        down = instance.lost_files(0);
        down.services_silent == 2 && !down.files.is_empty()
    });
    assert!(!down.has_more);
    assert!(down.files.iter().all(|file| !file.is_gone));
    [1, 2].into_iter().for_each(|index| instance.spawn(index));
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2, 3, 4]);
    let young = made(&instance, "young".to_owned());
    let is_lost = |one: &&Written| one.try_read(0) == Err(Errno::EIO);
    let lost: Vec<&Written> = files.iter().filter(is_lost).collect();
    assert!(!lost.is_empty() && lost.len() < files.len() && !is_lost(&&young));
    let inodes = |list: &LostFiles| list.files.iter().map(|it| it.inode).collect::<BTreeSet<_>>();
    let expected: BTreeSet<u64> = lost.iter().map(|it| it.inode.0).collect();
    assert_eq!(inodes(&down), expected);
    for index in 0..DAEMONS {
        let list = instance.lost_files(index);
        assert_eq!(inodes(&list), expected);
        assert_eq!((list.has_more, list.services_silent), (false, 0));
        for file in &list.files {
            assert_eq!(
                (file.is_gone, file.size, &file.ranges[..]),
                (true, BLOCK, &[(0, BLOCK)][..])
            );
            assert!(file.path.as_ref().is_some_and(|path| path.starts_with("/f")), "{file:?}");
        }
    }
    let gone: u64 = (0..DAEMONS).map(|index| instance.status_of(index, "units_gone")).sum();
    assert!(gone > 0, "the leader counts them");
    for one in &lost {
        resize(&one.client, one.inode, (0, set::SIZE | set::TRUNCATES));
        resize(&one.client, one.inode, (1, set::SIZE));
    }
    assert_eq!(instance.lost_files(0), LostFiles::default());
}

/// Files in the root directory get so many copies from now on.
fn set_copies(client: &Client, copies: u8) {
    let size = Layout { copies, ..Layout::default() }.word();
    resize(client, Inode::ROOT, (size, set::COPIES));
}

/// Files of one block, each at the target of its first stripe.
fn blocks(instance: &Instance, word: &str, count: usize) -> Vec<Written> {
    let made = |number| {
        let client = attach(instance, 0);
        let name = format!("{word}{number}");
        let Attributes { inode, layout, .. } = file(&client, name.as_bytes());
        client.call(To::Shard(inode.shard()), &Request::MoveOut { inode }).expect("moved out");
        resize(&client, inode, (BLOCK, set::SIZE));
        let began = client.map.first_count();
        let mut file = Written::new(client, inode, target(&layout, inode, 0, began).0);
        file.write(0, 7);
        file
    };
    (0..count).map(made).collect()
}

#[test]
fn two_deaths_take_files_of_two_copies_and_none_of_three_in_one_instance() {
    let mut instance = Instance::start_with_copies(5, 3, &[]);
    let client = attach(&instance, 4);
    set_copies(&client, 2);
    let mut two = blocks(&instance, "two", 60);
    set_copies(&client, 3);
    let mut three = blocks(&instance, "three", 60);
    let copies = |files: &[Written]| files.iter().map(|it| it.inode.copies_in(3)).min();
    assert_eq!((copies(&two), copies(&three)), (Some(2), Some(3)));
    assert_eq!(instance.lost_files(0), LostFiles::default());
    for index in [1, 2] {
        instance.kill(index);
        instance.forget(index);
    }
    wait_until("both deaths are agreed on", || {
        [0, 3, 4].iter().all(|&index| instance.status_of(index, "daemons_down") == 2)
    });
    three.iter_mut().for_each(|file| file.write(0, 8));
    [1, 2].into_iter().for_each(|index| instance.spawn(index));
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2, 3, 4]);
    three.iter().for_each(Written::assert_all);
    let is_lost = |one: &Written| one.try_read(0) == Err(Errno::EIO);
    let lost: BTreeSet<u64> = two.iter().filter(|it| is_lost(it)).map(|it| it.inode.0).collect();
    assert!(!lost.is_empty() && lost.len() < two.len(), "{lost:?}");
    for index in 0..5 {
        let list = instance.lost_files(index);
        assert!(list.files.iter().all(|it| it.is_gone) && list.services_silent == 0);
        assert_eq!(list.files.iter().map(|it| it.inode).collect::<BTreeSet<_>>(), lost);
    }
    // Files of both kinds are emptied and removed, at all their copies.
    for file in &mut two {
        resize(&file.client, file.inode, (0, set::SIZE | set::TRUNCATES));
        file.blocks.clear();
        file.assert_all();
        file.write(1, 9);
        file.assert_all();
    }
    assert_eq!(instance.lost_files(3), LostFiles::default());
    let root = client.root();
    for (word, files) in [("two", &two), ("three", &three)] {
        (0..files.len()).for_each(|number| {
            client.unlink(&root, format!("{word}{number}").as_bytes()).expect("removed");
        });
        wait_until("all is removed at the copies", || {
            let is_free = |file: &Written| {
                let (inode, end) = (file.inode, u64::MAX >> 1);
                let used =
                    |at| client.call(To::Target(DaemonIndex(at)), &Request::Usage { inode, end });
                (0..5).all(|at| decode(&used(at).expect("counted")) == Reply::Number { value: 0 })
            };
            files.iter().all(is_free)
        });
    }
}

#[test]
fn a_daemon_that_is_added_gets_copies_of_files_with_two_and_with_three() {
    let mut instance = Instance::start_with_copies(3, 3, &[]);
    let kinds = |instance: &Instance, word: &str| {
        let of = |copies: u8| {
            set_copies(&attach(instance, 0), copies);
            blocks(instance, &format!("{word}{copies}-"), 20)
        };
        [of(2), of(3)].into_iter().flatten().collect::<Vec<Written>>()
    };
    let before = kinds(&instance, "before");
    let added = instance.grow();
    instance.spawn(added);
    instance.tell_peers();
    await_copies(&instance, &[0, 1, 2, 3]);
    let probe = attach(&instance, 0);
    wait_until("files are on its target, too", || {
        let made = file(&probe, b"probe");
        probe.unlink(&probe.root(), b"probe").expect("removed");
        made.layout.place == 4
    });
    let after = kinds(&instance, "after");
    assert!(after.iter().any(|it| it.target == added) && before.iter().all(|it| it.target < 3));
    let check = || before.iter().chain(&after).for_each(Written::assert_all);
    check();
    for index in [1, added] {
        instance.kill(index);
        let up: Vec<u16> = (0..4).filter(|it| *it != index).collect();
        check();
        await_copies(&instance, &up);
        instance.spawn(index);
        instance.tell_peers();
        await_copies(&instance, &[0, 1, 2, 3]);
    }
    check();
}
