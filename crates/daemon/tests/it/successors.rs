//! Services go on at their followers when daemons are killed: synced changes are there, requests that
//! wait are answered, and the next follower has everything, too.

use crate::followers::{
    FILE, FOLLOWED, await_follower, create_files, directory, replicate, state, status,
};
use crate::namespace::register;
use crate::support::{Client, Instance, To, decode, wait_until};
use config::Key;
use shm::index::Hit;
use shm::local_ops::ServedUntil;
use std::os::unix::fs::FileExt as _;
use wire::attributes::flag;
use wire::errno::Errno;
use wire::hash::entry_key;
use wire::reply::opened;
use wire::request::{create, lock, open, set};
use wire::{Inode, Layout, Reply, Request, ShardIndex};

/// Waits until this daemon owns service 0, in a later epoch than `since`. Returns the epoch.
fn await_owner(instance: &Instance, daemon: u16, since: u64) -> u64 {
    let later = || epoch_at(instance, daemon).filter(|&epoch| epoch > since);
    wait_until("the service has its owner", || later().is_some());
    later().expect("it has")
}

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

#[test]
fn a_daemon_that_returns_gets_its_service_back_with_all_that_happened_meanwhile() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let mut epoch = 1;
    for round in 0..3 {
        let successor = await_follower(&instance, 0);
        let other = 3 - successor;
        let name = |text: &str| format!("{text}{round}");
        {
            let client = Client::attach(&instance.socket(0)).expect("attached");
            create_files(&client, &name("home"), 20);
            replicate(&client);
        }
        instance.kill(0);
        let clients =
            [successor, other].map(|at| Client::attach(&instance.socket(at)).expect("attached"));
        create_files(&clients[0], &name("near"), 20);
        create_files(&clients[1], &name("far"), 20);
        epoch = await_owner(&instance, successor, epoch);
        let root = clients[1].root();
        clients[1].unlink(&root, format!("home{round}-0").as_bytes()).expect("removed");
        instance.spawn(0);
        instance.tell_peers();
        // Programs of its host wait until the service is back.
        let home = Client::attach(&instance.socket(0)).expect("attached");
        create_files(&home, &name("back"), 20);
        epoch = await_owner(&instance, 0, epoch);
        for client in clients.iter().chain([&home]) {
            for text in ["near", "far", "back"] {
                assert_files(client, &name(text), 20);
            }
            assert!(client.lookup(&client.root(), format!("home{round}-1").as_bytes()).is_ok());
            let gone = client.lookup(&client.root(), format!("home{round}-0").as_bytes());
            assert_eq!(gone, Err(Errno::ENOENT));
        }
        // It has its shared memory again: a name that was asked for is found without asking.
        let key = entry_key(Inode::ROOT, format!("back{round}-1").as_bytes());
        wait_until("the index knows a name", || {
            matches!(home.indexes[0].entry(key), Hit::Found(..))
        });
        wait_until("it has the lease", || home.op_log.served(0).until().holds());
        let log0 = instance.directory.path().join("data/d0/log0");
        assert!(!log0.exists(), "the log from before is of no use");
        // The log of the successor is a copy now, or gone.
        let follower = await_follower(&instance, 0);
        wait_until("the copy equals the log", || {
            let log = state(&instance, 0, 0);
            log.is_some_and(|log| !log.is_empty() && state(&instance, 0, follower) == Some(log))
        });
    }
}

#[test]
fn clients_find_nothing_in_shared_memory_while_their_daemon_has_no_lease() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let home = Client::attach(&instance.socket(0)).expect("attached");
    create_files(&home, "one", 5);
    replicate(&home);
    wait_until("it has the lease", || home.op_log.served(0).until().holds());
    let promised = home.op_log.served(0).until();
    instance.kill(0);
    await_owner(&instance, successor, 1);
    // The memory is as the daemon left it; the promise has ended before anyone else served.
    assert!(!promised.holds() && !home.op_log.served(0).until().holds());
    assert_ne!(promised, ServedUntil::ALWAYS);
}

#[test]
fn files_that_programs_of_the_home_have_open_are_there_when_their_service_is_back() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let home = Client::attach(&instance.socket(0)).expect("attached");
    let file = home.create(&home.root(), b"file", FILE).expect("created").inode;
    // A process that has the file open, as its client library would record it.
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
    let (row, _) = register(&home, process.id());
    let vnode = home.host.vnode_open(file).expect("open");
    let open = home.host.file_allocate(file, vnode, 2).expect("open");
    home.host.process_set(row, 5, Some((open, false))).expect("set");
    replicate(&home);
    instance.kill(0);
    let epoch = await_owner(&instance, successor, 1);
    let remote = Client::attach(&instance.socket(successor)).expect("attached");
    remote.unlink(&remote.root(), b"file").expect("removed");
    assert_eq!(remote.attributes(file).map(|it| it.links), Ok(0), "somebody may have it open");
    instance.spawn(0);
    instance.tell_peers();
    await_owner(&instance, 0, epoch);
    // The memory of its host knows that it is open: it stays until that ends.
    assert_eq!(remote.attributes(file).map(|it| it.links), Ok(0));
    process.kill().expect("killed");
    process.wait().expect("ended");
    wait_until("a file that nobody has open is freed", || {
        remote.attributes(file).map(|it| it.links) == Err(Errno::ESTALE)
    });
}

#[test]
fn the_memory_of_a_host_takes_up_what_happened_while_its_service_was_elsewhere() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let home = Client::attach(&instance.socket(0)).expect("attached");
    // Its contents are in its record: no target waits for the dead daemon.
    let root = home.root();
    let layout = Layout { place: 0, flags: flag::INLINE, ..root.layout };
    let (parent, name, mode, device, flags) = (root.inode, b"file", FILE, 0, create::EXCLUSIVE);
    let request = Request::Create { parent, name, mode, device, flags, layout, target: &[] };
    let reply = home.call(To::Shard(parent.shard()), &request).expect("answered");
    let Reply::Created { attributes } = decode(&reply) else { panic!("{reply:?}") };
    let file = attributes.inode;
    // A process that has it open and wrote 1000 bytes, as its client library would record it.
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
    let (entry, _) = register(&home, process.id());
    let vnode = home.host.vnode_open(file).expect("open");
    let open_file = home.host.file_allocate(file, vnode, 2).expect("open");
    home.host.process_set(entry, 5, Some((open_file, false))).expect("set");
    let vnode = || home.host.vnode(vnode).expect("open");
    vnode().note_written(vnode().truncate_epoch(), 1000).expect("not truncated");
    done(&home, file, &Request::Extend { inode: file, size: 1000 });
    assert_eq!((home.host.unreported(file), vnode().size()), (0, 1000));
    assert_eq!((home.host.agreed_epoch(0), home.host.remote_use(file)), (1, 0));
    replicate(&home);
    let writers = home.host.writers_ever(file);
    instance.kill(0);
    let epoch = await_owner(&instance, successor, 1);
    let remote = Client::attach(&instance.socket(3 - successor)).expect("attached");
    done(&remote, file, &Request::Open { inode: file, open_sequence: 1, uses: open::WRITES });
    let (mask, mode, uid, gid, size, accessed, modified) = (set::SIZE, 0, 0, 0, 10, 0, 0);
    let inode = file;
    done(
        &remote,
        file,
        &Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified },
    );
    instance.spawn(0);
    instance.tell_peers();
    let epoch = await_owner(&instance, 0, epoch);
    wait_until("the memory agrees with the log", || home.host.agreed_epoch(0) == epoch);
    assert_eq!((home.host.unreported(file), vnode().size()), (0, 10));
    assert_eq!(home.host.remote_use(file), opened::OTHERS_WRITE);
    assert!(home.host.writers_ever(file) > writers, "pages from before are not current");
    process.kill().expect("killed");
    process.wait().expect("ended");
}

#[test]
fn a_lock_that_was_granted_at_home_is_held_at_the_successor() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let successor = await_follower(&instance, 0);
    let home = Client::attach(&instance.socket(0)).expect("attached");
    let file = home.create(&home.root(), b"file", FILE).expect("created").inode;
    let lock = |client: &Client, owner: u64| {
        let (party, pid, kind, flags, start, end) = (owner, 1, lock::WRITE, 0, 0, 9);
        let request = Request::Lock { inode: file, owner, party, pid, kind, flags, start, end };
        let answer = client.call(To::Shard(file.shard()), &request);
        answer.map(|reply| assert_eq!(decode(&reply), Reply::Done {}))
    };
    assert_eq!(lock(&home, 1), Ok(()));
    // The follower has it before the program does, so nothing is synced here.
    instance.kill(0);
    let remote = Client::attach(&instance.socket(successor)).expect("attached");
    assert_eq!(lock(&remote, 2), Err(Errno::EAGAIN));
}

/// The daemons that have a copy of service 0 from which it could go on, as its owner knows them.
fn in_sync(instance: &Instance, owner: u16) -> Vec<u16> {
    let services = status(instance, owner).services;
    let service = services.iter().find(|it| it.service == 0);
    let followers = service.into_iter().flat_map(|it| &it.followers);
    followers.filter(|it| it.is_in_sync).map(|it| it.daemon).collect()
}

const TWICE_FOLLOWED: [(Key, &str); 2] = [FOLLOWED[0], (Key::Followers, "2")];

#[test]
fn a_service_that_is_handed_over_has_its_copies_at_once() {
    let mut instance = Instance::start_moving(3, &TWICE_FOLLOWED);
    wait_until("both follow", || in_sync(&instance, 0).len() == 2);
    let remote = Client::attach(&instance.socket(1)).expect("attached");
    create_files(&remote, "before", 20);
    instance.kill(0);
    create_files(&remote, "away", 20);
    let (owner, epoch) = await_successor(&instance, 1);
    wait_until("the other one follows", || in_sync(&instance, owner) == [3 - owner]);
    instance.spawn(0);
    instance.tell_peers();
    let epoch = await_owner(&instance, 0, epoch);
    wait_until("both got what came after, and nothing again", || {
        status(&instance, 0).metrics.followers_resumed >= 2 && in_sync(&instance, 0).len() == 2
    });
    create_files(&remote, "back", 20);
    // Nobody has to wait for a snapshot before the next failure.
    instance.kill(0);
    for prefix in ["before", "away", "back"] {
        assert_files(&remote, prefix, 20);
    }
    assert!(await_successor(&instance, epoch).1 > epoch);
}

/// Waits until one of the others owns service 0, in a later epoch than `since`. Returns it and the epoch.
fn await_successor(instance: &Instance, since: u64) -> (u16, u64) {
    let owners = || [1, 2].into_iter().filter_map(|it| Some((it, epoch_at(instance, it)?)));
    let later = || owners().find(|it| it.1 > since);
    wait_until("the service has another owner", || later().is_some());
    later().expect("it has")
}

/// Damages a record in the copy of service 0 at a follower.
fn damage_copy(instance: &Instance, follower: u16, name: &str) {
    let files = std::fs::read_dir(directory(instance, 0, follower)).expect("a copy");
    let mut damaged = 0;
    for file in files {
        let path = file.expect("read").path();
        let bytes = std::fs::read(&path).expect("read");
        let at = bytes.windows(name.len()).position(|it| it == name.as_bytes());
        if let Some(at) = at {
            let file = std::fs::File::options().write(true).open(&path).expect("opened");
            file.write_all_at(b"?", at as u64).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "{name} is not in the copy");
}

#[test]
fn a_follower_that_cannot_replay_its_copy_resigns_and_another_one_serves() {
    let mut instance = Instance::start_moving(3, &TWICE_FOLLOWED);
    wait_until("both follow", || in_sync(&instance, 0).len() == 2);
    let client = Client::attach(&instance.socket(2)).expect("attached");
    create_files(&client, "file", 20);
    replicate(&client);
    // Of two with as many services it has the lower number.
    damage_copy(&instance, 1, "file-7");
    instance.kill(0);
    assert_files(&client, "file", 20);
    create_files(&client, "later", 20);
    await_owner(&instance, 2, 2);
    wait_until("the first one knows", || epoch_at(&instance, 1).is_none());
}

#[test]
fn a_service_that_nobody_can_replay_is_in_the_status_with_the_reason() {
    let mut instance = Instance::start_moving(3, &FOLLOWED);
    let follower = await_follower(&instance, 0);
    let client = Client::attach(&instance.socket(3 - follower)).expect("attached");
    create_files(&client, "file", 20);
    replicate(&client);
    damage_copy(&instance, follower, "file-7");
    instance.kill(0);
    let reason = || {
        let services = status(&instance, follower).services;
        services.into_iter().find(|it| it.service == 0).and_then(|it| it.unserved)
    };
    wait_until("its owner says that it cannot", || reason().is_some());
    let (reason, copy) = (reason().expect("it said so"), directory(&instance, 0, follower));
    assert!(reason.contains(copy.to_str().expect("text")), "{reason}");
    assert!(copy.exists(), "what is left of it stays");
}
