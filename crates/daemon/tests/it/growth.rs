//! Daemons that an instance gets while it is used (`wire::welcome::ADD_MAGIC`): they take part, new files
//! are on their targets, too, and older ones stay where they are.

use crate::support::{Client, Instance, To, decode, wait_until};
use config::Key;
use config::control::DaemonStatus;
use placement::locate;
use wire::attributes::mode::REGULAR;
use wire::request::ANY_TRUNCATE_EPOCH;
use wire::{Attributes, DaemonIndex, Inode, Reply, Request};

const STRIPE_LOG2: u8 = 16;
/// So many that no target of three has none of them.
const STRIPES: u64 = 40;

fn attach(instance: &Instance, index: u16) -> Client {
    Client::attach(&instance.socket(index)).expect("attached")
}

fn start(count: u16) -> Instance {
    let striped = [(Key::Placement, "hash"), (Key::StripeSize, "64KiB")];
    Instance::start_apart(count, &[&[(Key::Domains, "auto")][..], &striped].concat())
}

/// Adds a daemon, starts it, and waits until all know that it takes part.
fn grow(instance: &mut Instance) -> u16 {
    let index = instance.grow();
    instance.spawn(index);
    instance.tell_peers();
    await_all(instance);
    index
}

fn await_all(instance: &Instance) {
    wait_until("all daemons take part", || {
        let known = (0..instance.count).filter_map(|index| {
            let status: DaemonStatus =
                serde_json::from_str(&instance.status(index)).expect("a status");
            status.membership.filter(|it| it.leads)
        });
        let is_complete = |all: &[_]| all.len() == usize::from(instance.count);
        let is_up = |known: config::control::MembershipStatus| {
            is_complete(&known.members) && known.members.iter().all(|it| it.presence == "up")
        };
        known.into_iter().any(is_up)
            && (0..instance.count).all(|index| instance.status_of(index, "daemons_down") == 0)
    });
    let epoch = instance.status_of(0, "epoch");
    wait_until("all have the same map", || {
        (0..instance.count).all(|index| instance.status_of(index, "epoch") == epoch)
    });
}

fn create(client: &Client, name: &[u8]) -> Attributes {
    client.create(&client.root(), name, REGULAR | 0o600).expect("created")
}

/// The target of a stripe, in an instance that began with so many.
fn target_of(file: &Attributes, stripe: u64, first: u16) -> u16 {
    locate::target(&file.layout, file.inode, stripe, first).0
}

fn contents(stripe: u64) -> Vec<u8> {
    vec![stripe as u8 + 1; 4096]
}

fn put(client: &Client, target: u16, inode: Inode, offset: u64, bytes: &[u8]) {
    let (stripe_log2, truncate_epoch) = (STRIPE_LOG2, ANY_TRUNCATE_EPOCH);
    let request = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes };
    client.call(To::Target(DaemonIndex(target)), &request).expect("written");
}

/// Writes some bytes of each stripe. Returns the targets that have any.
fn write(client: &Client, file: &Attributes, first: u16) -> Vec<u16> {
    let mut targets = Vec::new();
    for stripe in 0..STRIPES {
        let target = target_of(file, stripe, first);
        let (inode, offset) = (file.inode, stripe << STRIPE_LOG2);
        put(client, target, inode, offset, &contents(stripe));
        targets.push(target);
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

fn assert_readable(client: &Client, file: &Attributes, first: u16) {
    for stripe in 0..STRIPES {
        let (target, offset) = (target_of(file, stripe, first), stripe << STRIPE_LOG2);
        let read = client.read(target, file.inode, STRIPE_LOG2, offset, 4096);
        assert!(read == contents(stripe), "stripe {stripe} at target {target}");
    }
}

#[test]
fn new_files_are_on_the_targets_of_daemons_that_were_added() {
    let mut instance = start(2);
    let before = attach(&instance, 0);
    let old = create(&before, b"old");
    assert_eq!((old.layout.place, write(&before, &old, 2)), (0, vec![0, 1]));
    assert_eq!(before.op_log.targets(), None);
    let added = grow(&mut instance);
    // Files that it makes in the memory of its host are on all targets, too.
    wait_until("programs know it", || before.op_log.targets() == Some(3));
    // A program that was there before, with the map of then, and one at the new daemon.
    let after = attach(&instance, added);
    assert_eq!((after.map.first_count(), after.map.daemon_count(), after.map.epoch()), (2, 3, 2));
    let new = [create(&before, b"new"), create(&after, b"newer")];
    for file in &new {
        assert_eq!((file.layout.place, write(&before, file, 2)), (3, vec![0, 1, 2]));
    }
    for client in [&before, &after] {
        [&old, &new[0], &new[1]].into_iter().for_each(|file| assert_readable(client, file, 2));
        assert_eq!(client.lookup(&client.root(), b"old"), Ok(old.inode));
    }
    // A removed file is freed at all targets.
    let used = |client: &Client| {
        let request = Request::Usage { inode: new[0].inode, end: u64::MAX };
        let mut answers =
            (0..3).map(|target| client.call(To::Target(DaemonIndex(target)), &request));
        answers.any(|reply| decode(&reply.expect("counted")) != Reply::Number { value: 0 })
    };
    assert!(used(&after));
    before.unlink(&before.root(), b"new").expect("removed");
    wait_until("the space is free", || !used(&after));
}

#[test]
fn daemons_that_were_added_are_there_after_each_has_started_again() {
    let mut instance = start(1);
    let first = attach(&instance, 0);
    let old = create(&first, b"old");
    write(&first, &old, 1);
    grow(&mut instance);
    grow(&mut instance);
    let new = create(&first, b"new");
    assert_eq!((new.layout.place, write(&first, &new, 1)), (3, vec![0, 1, 2]));
    for index in [2, 0, 1] {
        assert!(instance.terminate(index));
        instance.spawn(index);
        instance.tell_peers();
        await_all(&instance);
        for at in 0..3 {
            let client = attach(&instance, at);
            assert_readable(&client, &old, 1);
            assert_readable(&client, &new, 1);
        }
    }
    let last = create(&attach(&instance, 2), b"last");
    assert_eq!(last.layout.place, 3);
}

#[test]
fn a_daemon_that_was_added_and_never_came_delays_nothing_else() {
    let mut instance = start(2);
    instance.grow();
    let client = attach(&instance, 1);
    let file = create(&client, b"file");
    assert_eq!((file.layout.place, write(&client, &file, 2)), (0, vec![0, 1]));
    assert_readable(&client, &file, 2);
    // One that is added behind it comes: files are on its target once both are there.
    let second = instance.grow();
    instance.spawn(second);
    instance.tell_peers();
    let is_up = |index: u16| {
        let status: DaemonStatus = serde_json::from_str(&instance.status(0)).expect("a status");
        let members = status.membership.map(|it| it.members).unwrap_or_default();
        members.get(usize::from(index)).is_some_and(|it| it.presence == "up")
    };
    wait_until("the second takes part", || is_up(second));
    assert_eq!(create(&client, b"another").layout.place, 0);
    instance.spawn(2);
    instance.tell_peers();
    await_all(&instance);
    let file = create(&client, b"new");
    assert_eq!((file.layout.place, write(&client, &file, 2)), (4, vec![0, 1, 2, 3]));
    assert_readable(&attach(&instance, 2), &file, 2);
}
