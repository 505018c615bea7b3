//! Followers of metadata services: their journals equal the logs of the owners after load and faults, and
//! operations wait for them as `--metadata-sync` says.

use crate::support::{Client, Instance, To, decode, wait_until};
use config::Key;
use config::control::DaemonStatus;
use metadata::{Config, Service, SnapshotCursor};
use net::Secret;
use placement::Map;
use rustix::process::Signal;
use shm::index::Hit;
use std::path::PathBuf;
use store::journal::{Progress, STEP_BYTES};
use store::medium::{MappedFile, RealFiles};
use store::{Damage, Expected, Identity, Options, Replay, Sync};
use wire::attributes::mode;
use wire::hash::entry_key;
use wire::{DaemonIndex, Reply, Request, ShardIndex};

pub(crate) const FILE: u32 = mode::REGULAR | 0o600;
pub(crate) const FOLLOWED: [(Key, &str); 2] = [(Key::Domains, "auto"), (Key::Followers, "1")];

pub(crate) fn status(instance: &Instance, daemon: u16) -> DaemonStatus {
    serde_json::from_str(&instance.status(daemon)).expect("a status")
}

/// The daemon that follows service `first`, which daemon `first` owns, once it is in sync.
pub(crate) fn follower(instance: &Instance, first: u16) -> Option<u16> {
    let status = status(instance, first);
    let service = status.services.iter().find(|it| it.service == u32::from(first))?;
    service.followers.iter().find(|it| it.is_in_sync).map(|it| it.daemon)
}

pub(crate) fn await_follower(instance: &Instance, first: u16) -> u16 {
    wait_until("a follower is in sync", || follower(instance, first).is_some());
    follower(instance, first).expect("it was in sync")
}

fn epoch(instance: &Instance, first: u16) -> u64 {
    let status = status(instance, first);
    let service = status.services.iter().find(|it| it.service == u32::from(first));
    service.map_or(0, |it| it.epoch)
}

/// The log of service `first` at its owner, or the copy of it at another daemon.
pub(crate) fn directory(instance: &Instance, first: u16, at: u16) -> PathBuf {
    let data = instance.directory.path().join(format!("data/d{at}"));
    // One that was at another daemon meanwhile came back as a copy.
    let (log, copy) = (data.join("log0"), data.join(format!("copy-d{first}w0")));
    if at == first && log.exists() { log } else { copy }
}

/// The state that a log leads to, as records; `None`: it is being replaced.
pub(crate) fn state(instance: &Instance, first: u16, at: u16) -> Option<Vec<u8>> {
    let secret = Secret::parse(&"5a".repeat(32)).expect("hexadecimal digits");
    let options = Options {
        identity: Identity::of_daemon(secret.instance_number(), first).of_worker(0),
        expected: Expected::Existing,
        progress: Progress::default(),
        damage: Damage::Refuse,
        sync: Sync::Never,
        step_bytes: STEP_BYTES,
    };
    let files = RealFiles::<MappedFile>::new(&directory(instance, first, at));
    let mut replay = Replay::inspect(files, options).ok()?;
    let map = Map::initial(instance.count).expect("a few daemons");
    let (daemon, host_daemons, workers) = (DaemonIndex(first), 1, 1);
    let of_one = Config::single();
    let config =
        Config { first: daemon, daemon, host: first, host_daemons, workers, map, ..of_one };
    let mut service = Service::new(config);
    while let Some(record) = replay.next().ok()? {
        service.replay(record).expect("a record");
    }
    let (mut cursor, mut records) = (SnapshotCursor::default(), Vec::new());
    while service.snapshot_slice(&mut cursor, 1 << 20, &mut records) {}
    Some(records)
}

/// Waits until the copy of a service at its follower equals the log of its owner.
fn await_equal(instance: &Instance, first: u16, follower: u16) {
    wait_until("the copy equals the log", || {
        let owner = state(instance, first, first).expect("an owner has its log");
        !owner.is_empty() && state(instance, first, follower) == Some(owner)
    });
}

fn has(state: &[u8], name: &str) -> bool {
    state.windows(name.len()).any(|it| it == name.as_bytes())
}

pub(crate) fn create_files(client: &Client, prefix: &str, count: usize) {
    let root = client.root();
    for number in 0..count {
        client.create(&root, format!("{prefix}-{number}").as_bytes(), FILE).expect("created");
    }
}

pub(crate) fn replicate(client: &Client) {
    let reply = client.call(To::Shard(ShardIndex(0)), &Request::Replicate {}).expect("answered");
    assert_eq!(decode(&reply), Reply::Done {});
}

#[test]
fn what_was_synced_is_in_the_copy_of_a_follower() {
    let instance = Instance::start_apart(3, &FOLLOWED);
    let follower = await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    for round in 0..20 {
        let name = format!("round{round}");
        create_files(&client, &name, 25);
        replicate(&client);
        let copy = state(&instance, 0, follower).expect("a copy");
        assert!(has(&copy, &format!("{name}-24")), "{name} is not at daemon {follower}");
    }
    for first in 0..3 {
        let follower = await_follower(&instance, first);
        assert_ne!(follower, first);
        await_equal(&instance, first, follower);
    }
    let owner = status(&instance, 0).metrics;
    assert_eq!((owner.services_without_copy, owner.syncs_without_copy), (0, 0));
    let copies: u64 = (0..3).map(|daemon| status(&instance, daemon).metrics.copies).sum();
    assert_eq!(copies, 3);
}

#[test]
fn without_a_sync_followers_have_everything_soon() {
    let instance = Instance::start_apart(3, &[FOLLOWED[0], (Key::Followers, "2")]);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    // Before, while and after the followers join.
    create_files(&client, "early", 300);
    await_follower(&instance, 0);
    create_files(&client, "late", 300);
    for follower in [1, 2] {
        await_equal(&instance, 0, follower);
    }
    let root = client.root();
    for number in 0..300 {
        client.unlink(&root, format!("early-{number}").as_bytes()).expect("removed");
    }
    for follower in [1, 2] {
        await_equal(&instance, 0, follower);
    }
}

#[test]
fn a_killed_follower_returns_by_the_records_since_and_a_killed_owner_begins_anew() {
    let mut instance = Instance::start_apart(2, &FOLLOWED);
    assert_eq!((await_follower(&instance, 0), await_follower(&instance, 1)), (1, 0));
    let client = Client::attach(&instance.socket(0)).expect("attached");
    create_files(&client, "before", 100);
    await_equal(&instance, 0, 1);
    let epochs = (epoch(&instance, 0), epoch(&instance, 1));
    for round in 1..=3 {
        instance.kill(1);
        create_files(&client, &format!("absent{round}"), 100);
        instance.spawn(1);
        instance.tell_peers();
        create_files(&client, &format!("returned{round}"), 10);
        wait_until("it got the records since", || {
            status(&instance, 0).metrics.followers_resumed >= round
        });
        assert_eq!(await_follower(&instance, 0), 1);
        replicate(&client);
        await_equal(&instance, 0, 1);
        // It is an owner, too, and does not know what it had shipped.
        wait_until("it owns its service again", || epoch(&instance, 1) == epochs.1 + round);
        assert_eq!(await_follower(&instance, 1), 0);
        await_equal(&instance, 1, 0);
    }
    assert_eq!(epoch(&instance, 0), epochs.0);
}

#[test]
fn a_follower_whose_directory_fails_is_dropped_and_returns() {
    let mut instance = Instance::start_apart(2, &FOLLOWED);
    await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    create_files(&client, "before", 10);
    replicate(&client);
    instance.kill(1);
    let copy = directory(&instance, 0, 1);
    std::fs::remove_dir_all(&copy).expect("removed");
    std::fs::write(&copy, "in the way").expect("written");
    instance.spawn(1);
    instance.tell_peers();
    wait_until("a copy has failed", || status(&instance, 1).metrics.copies_failed > 0);
    // Nobody waits for ever for a follower that does not come.
    create_files(&client, "alone", 10);
    replicate(&client);
    let owner = status(&instance, 0).metrics;
    assert_eq!(owner.services_without_copy, 1);
    assert!(owner.syncs_without_copy > 0);
    std::fs::remove_file(&copy).expect("removed");
    assert_eq!(await_follower(&instance, 0), 1);
    await_equal(&instance, 0, 1);
    create_files(&client, "after", 10);
    replicate(&client);
    assert_eq!(status(&instance, 0).metrics.syncs_without_copy, owner.syncs_without_copy);
}

#[test]
fn a_follower_that_stands_still_is_dropped_and_the_owner_goes_on() {
    let instance = Instance::start_apart(2, &FOLLOWED);
    await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    create_files(&client, "before", 10);
    instance.signal(1, Signal::STOP);
    for number in 0..3 {
        create_files(&client, &format!("still{number}"), 200);
        // At first it waits until the follower is dropped, and for another one.
        replicate(&client);
    }
    assert!(status(&instance, 0).metrics.services_without_copy > 0);
    instance.signal(1, Signal::CONT);
    assert_eq!(await_follower(&instance, 0), 1);
    replicate(&client);
    await_equal(&instance, 0, 1);
}

#[test]
fn another_daemon_follows_for_one_that_stands_still_whose_copy_is_removed() {
    let instance = Instance::start_apart(3, &FOLLOWED);
    let first = await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    create_files(&client, "before", 10);
    replicate(&client);
    assert!(directory(&instance, 0, first).exists());
    instance.signal(first, Signal::STOP);
    create_files(&client, "still", 10);
    let other = 3 - first;
    wait_until("the other daemon follows", || follower(&instance, 0) == Some(other));
    replicate(&client);
    await_equal(&instance, 0, other);
    instance.signal(first, Signal::CONT);
    wait_until("a copy that nobody needs is gone", || !directory(&instance, 0, first).exists());
    assert_eq!(follower(&instance, 0), Some(other));
}

#[test]
fn with_always_a_change_is_at_the_follower_before_anybody_sees_it() {
    let options = [FOLLOWED[0], FOLLOWED[1], (Key::MetadataSync, "always")];
    let instance = Instance::start_apart(2, &options);
    await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let root = client.root();
    for number in 0..50 {
        let name = format!("file{number}");
        let made = client.create(&root, name.as_bytes(), FILE).expect("created");
        let copy = state(&instance, 0, 1).expect("a copy");
        assert!(has(&copy, &name), "{name} was acknowledged before");
        let shown = client.indexes[0].entry_in(root.inode, entry_key(root.inode, name.as_bytes()));
        assert_eq!(shown, Hit::Unknown, "clients ask");
        assert_eq!(client.lookup(&root, name.as_bytes()), Ok(made.inode));
    }
    // While the follower stands still a change is not seen, neither by a reader.
    instance.signal(1, Signal::STOP);
    std::thread::scope(|scope| {
        let writer = Client::attach(&instance.socket(0)).expect("attached");
        let made = scope.spawn(move || writer.create(&writer.root(), b"held", FILE));
        let log = || state(&instance, 0, 0).expect("a log");
        wait_until("the owner has it", || has(&log(), "held"));
        let reader = Client::attach(&instance.socket(0)).expect("attached");
        let key = entry_key(root.inode, b"held");
        assert_eq!(reader.indexes[0].entry_in(root.inode, key), Hit::Unknown);
        instance.signal(1, Signal::CONT);
        let made = made.join().expect("no panic").expect("created");
        assert_eq!(reader.lookup(&root, b"held"), Ok(made.inode));
    });
    await_equal(&instance, 0, 1);
}

#[test]
fn without_followers_a_sync_is_answered_at_once() {
    let instance = Instance::start_apart(2, &[FOLLOWED[0]]);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    assert_eq!(client.welcome.has_followers, 0);
    create_files(&client, "file", 5);
    replicate(&client);
    let status = status(&instance, 0);
    assert!(status.services.is_empty());
    assert_eq!((status.metrics.syncs_without_copy, status.metrics.copies), (0, 0));
    assert!(!directory(&instance, 0, 1).exists());
}
