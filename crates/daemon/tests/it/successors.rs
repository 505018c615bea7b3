//! Services go on at their followers when daemons are killed: synced changes are there, requests that
//! wait are answered, and the next follower has everything, too.

use crate::followers::{
    FILE, FOLLOWED, await_follower, create_files, directory, replicate, state, status,
};
use crate::support::{Client, Instance, To, decode, wait_until};
use wire::errno::Errno;
use wire::{Inode, Reply, Request, ShardIndex};

/// The epoch of service 0, if this daemon owns it.
fn epoch_at(instance: &Instance, daemon: u16) -> Option<u64> {
    let services = status(instance, daemon).services;
    services.iter().find(|it| it.service == 0).map(|it| it.epoch)
}

/// Waits until service 0 has a follower that is in sync, and the copy equals the log of its owner.
fn await_copy(instance: &Instance, owner: u16, follower: u16) {
    wait_until("the next follower is in sync", || {
        let status = status(instance, owner);
        let service = status.services.iter().find(|it| it.service == 0);
        let follows = service.and_then(|it| it.followers.iter().find(|it| it.is_in_sync));
        follows.map(|it| it.daemon) == Some(follower)
    });
    wait_until("the copy equals the log", || {
        let log = state(instance, 0, owner);
        log.is_some_and(|log| !log.is_empty() && state(instance, 0, follower) == Some(log))
    });
}

fn assert_files(client: &Client, prefix: &str, count: usize) {
    let root = client.root();
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        let found = client.lookup(&root, name.as_bytes());
        assert!(found.is_ok(), "{name}: {found:?}");
    }
}

fn done(client: &Client, inode: Inode, request: &Request<'_>) {
    let reply = client.call(To::Shard(inode.shard()), request).expect("answered");
    assert!(!matches!(decode(&reply), Reply::Refused { .. }), "{reply:?}");
}

#[test]
fn a_service_goes_on_at_the_follower_of_a_killed_daemon_with_all_that_was_synced() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let other = 3 - successor;
    let attach = |at: u16| Client::attach(&instance.socket(at)).expect("attached");
    let clients = [attach(successor), attach(other)];
    for (client, prefix) in clients.iter().zip(["one", "two"]) {
        create_files(client, prefix, 20);
    }
    replicate(&clients[1]);
    instance.kill(0);
    // Programs of the successor's own host and of another one wait, and go on.
    for (client, prefix) in clients.iter().zip(["three", "four"]) {
        assert_files(client, "one", 20);
        assert_files(client, "two", 20);
        create_files(client, prefix, 20);
    }
    let epochs = [successor, other].map(|at| epoch_at(&instance, at));
    assert_eq!(epochs, [Some(2), None]);
    await_copy(&instance, successor, other);
    replicate(&clients[0]);
    for (client, prefix) in clients.iter().zip(["four", "three"]) {
        assert_files(client, prefix, 20);
        let root = client.root();
        client.unlink(&root, format!("{prefix}-0").as_bytes()).expect("removed");
        assert_eq!(
            client.lookup(&root, format!("{prefix}-0").as_bytes()),
            Err(Errno::ENOENT),
            "{prefix}"
        );
    }
    let metrics = status(&instance, successor).metrics;
    assert!(metrics.files >= 78, "{} files", metrics.files);
}

#[test]
fn a_successor_that_is_killed_returns_with_its_log() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let other = 3 - successor;
    {
        let client = Client::attach(&instance.socket(other)).expect("attached");
        create_files(&client, "before", 20);
        replicate(&client);
        instance.kill(0);
        create_files(&client, "succeeded", 20);
        replicate(&client);
    }
    for round in 0..2u64 {
        // Alone the other daemon decides nothing: the successor owns the service when it returns.
        instance.kill(successor);
        let client = Client::attach(&instance.socket(other)).expect("attached");
        instance.spawn(successor);
        instance.tell_peers();
        assert_files(&client, "before", 20);
        assert_files(&client, "succeeded", 20);
        create_files(&client, &format!("returned{round}"), 20);
        for earlier in 0..=round {
            assert_files(&client, &format!("returned{earlier}"), 20);
        }
        await_copy(&instance, successor, other);
        assert_eq!(epoch_at(&instance, successor), Some(3 + round));
    }
    assert!(directory(&instance, 0, successor).exists());
}

#[test]
fn requests_are_carried_out_once_while_a_service_moves() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(3 - successor)).expect("attached");
    let root = client.root();
    let made = client.create(&root, b"once", FILE).expect("created");
    let identity = client.last.get();
    replicate(&client);
    instance.kill(0);
    // The reply was lost, for all that the program knows: it sends the request again.
    client.repeat.set(Some(identity));
    let again = client.create(&root, b"once", FILE).expect("the same file");
    client.repeat.set(None);
    assert_eq!(again.inode, made.inode);
    assert_eq!(client.create(&root, b"once", FILE).map(|it| it.inode), Err(Errno::EEXIST));
}

#[test]
fn programs_of_the_successors_host_open_and_close_as_those_of_another() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let before = Client::attach(&instance.socket(successor)).expect("attached");
    let file = before.create(&before.root(), b"file", FILE).expect("created").inode;
    replicate(&before);
    instance.kill(0);
    for (number, at) in [successor, 3 - successor].into_iter().enumerate() {
        let client = Client::attach(&instance.socket(at)).expect("attached");
        let open_sequence = number as u64 + 1;
        done(&client, file, &Request::Open { inode: file, open_sequence, uses: 0 });
    }
    // It loses its name, and stays as long as a host has it open.
    let client = Client::attach(&instance.socket(3 - successor)).expect("attached");
    client.unlink(&client.root(), b"file").expect("removed");
    assert_eq!(client.attributes(file).map(|it| it.links), Ok(0));
    for at in [successor, 3 - successor] {
        let client = Client::attach(&instance.socket(at)).expect("attached");
        done(&client, file, &Request::Close { inode: file, open_sequence: 9 });
    }
    // And longer: programs of the dead daemon's host may live and have it open.
    assert_eq!(client.attributes(file).map(|it| it.links), Ok(0));
    let new = client.create(&client.root(), b"new", FILE).expect("created").inode;
    assert!(new.sequence() > file.sequence() + (1 << 31), "numbers are skipped");
    client.unlink(&client.root(), b"new").expect("removed");
    assert_eq!(client.attributes(new).map(|it| it.links), Err(Errno::ESTALE));
    let reply = client.call(To::Shard(ShardIndex(0)), &Request::Replicate {}).expect("answered");
    assert_eq!(decode(&reply), Reply::Done {});
}

#[test]
fn another_host_sees_nothing_that_the_follower_does_not_have() {
    let instance = Instance::start_moving(3, &FOLLOWED);
    let follower = await_follower(&instance, 0);
    let attach = |at: u16| Client::attach(&instance.socket(at)).expect("attached");
    let (own, remote) = (attach(0), attach(3 - follower));
    let root = remote.root();
    let copy_has = |name: &str| {
        let copy = state(&instance, 0, follower).expect("a copy");
        copy.windows(name.len()).any(|bytes| bytes == name.as_bytes())
    };
    for number in 0..30 {
        let (name, of_owner) = (format!("remote-{number}"), format!("own-{number}"));
        remote.create(&root, name.as_bytes(), FILE).expect("created");
        assert!(copy_has(&name), "{name} was answered before");
        // A change that another host only looks at.
        own.create(&root, of_owner.as_bytes(), FILE).expect("created");
        remote.lookup(&root, of_owner.as_bytes()).expect("there");
        assert!(copy_has(&of_owner), "{of_owner} was seen before");
    }
}
