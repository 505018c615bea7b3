//! The socket and the slots against clients that violate the protocol, and orderly shutdown.

use crate::support::{Client, Instance, To, decode, hello, wait_until};
use rustix::fs::OFlags;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use wire::codec::Writer;
use wire::errno::Errno;
use wire::welcome::MAGIC;
use wire::{Credentials, DaemonIndex, Header, Reply, Request};

/// True if the daemon answers.
fn is_well(client: &Client) -> bool {
    client.call(To::Target(DaemonIndex(0)), &Request::Space {}).is_ok()
}

#[test]
fn garbage_on_the_socket_ends_only_that_connection() {
    let instance = Instance::start(1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let mut version = hello(MAGIC);
    version[8] ^= 1;
    for garbage in [&[0xff; 64][..], b"GET / HTTP/1.1\r\n\r\n", &version] {
        let mut stranger = UnixStream::connect(instance.socket(0)).expect("connected");
        stranger.write_all(garbage).expect("sent");
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        if !answer.is_empty() {
            assert_eq!(answer, [2, Errno::EPROTO.0 as u8, 0]);
        }
        assert!(is_well(&client));
    }
    // Half a hello: the daemon waits for the rest, but other clients do not wait.
    let mut slow = UnixStream::connect(instance.socket(0)).expect("connected");
    slow.write_all(&hello(MAGIC)[..7]).expect("sent");
    assert!(is_well(&Client::attach(&instance.socket(0)).expect("attached")));
    let begun = Instant::now();
    assert_eq!(slow.read(&mut [0; 8]).expect("ended"), 0);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn garbage_in_a_slot_is_refused_without_further_effect() {
    let instance = Instance::start_as(1, 1, 2);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let header = Header {
        shard: Header::TARGET,
        daemon: 0,
        epoch: client.map.epoch(),
        client_id: 0,
        sequence: 0,
        host: 9,
        mount: 0,
        job: wire::JobWord::NONE,
        caller: Credentials::ROOT,
    };
    let encoded = |header: &Header, request: &Request<'_>| {
        let mut bytes = [0; 512];
        let mut writer = Writer::new(&mut bytes);
        header.encode(&mut writer);
        request.encode(&mut writer);
        let length = writer.finish().expect("fits");
        bytes[..length].to_vec()
    };
    let refused = |bytes: &[u8]| match decode(&client.send(0, bytes).expect("answered")) {
        Reply::Refused { errno } => errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[]), Errno::EPROTO);
    assert_eq!(refused(&[0xff; 300]), Errno::EPROTO);
    let mut long = encoded(&header, &Request::Space {});
    long.push(0);
    assert_eq!(refused(&long), Errno::EPROTO);
    let nowhere = Header { daemon: 7, ..header };
    assert_eq!(refused(&encoded(&nowhere, &Request::Space {})), Errno::EINVAL);
    let old = Header { epoch: 0, ..header };
    let stale = client.send(0, &encoded(&old, &Request::Space {})).expect("answered");
    assert!(matches!(decode(&stale), Reply::Stale { epoch: 1 }));
    // To the wrong worker, which forwards it.
    let right = client.send(1, &encoded(&header, &Request::Space {})).expect("answered");
    assert!(matches!(decode(&right), Reply::Space { .. }));
    // Rings for sessions and workers that do not exist.
    for session in [1, 100, 4000] {
        client.bells.ring(0, session).expect("a bit");
    }
    assert!(client.bells.ring(99, 0).is_err());
    assert!(is_well(&client));
}

#[test]
fn a_client_cannot_write_to_read_only_memory() {
    let instance = Instance::start(1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let flags = rustix::fs::fcntl_getfl(&client.table_fd).expect("flags");
    assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
}

#[test]
fn sessions_end_with_their_sockets() {
    let instance = Instance::start(1);
    let clients: Vec<Client> =
        (0..20).map(|_| Client::attach(&instance.socket(0)).expect("attached")).collect();
    assert_eq!(instance.status_of(0, "sessions"), 20);
    let mut client_ids: Vec<u64> = clients.iter().map(|client| client.welcome.client_id).collect();
    client_ids.dedup();
    assert_eq!(client_ids.len(), 20);
    drop(clients);
    wait_until("all sessions are gone", || instance.status_of(0, "sessions") == 0);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    assert_eq!(client.welcome.session, 0);
    assert!(!client_ids.contains(&client.welcome.client_id));
    assert!(is_well(&client));
}

#[test]
fn a_daemon_ends_on_a_signal() {
    let mut instance = Instance::start(1);
    let mut client = Client::attach(&instance.socket(0)).expect("attached");
    assert!(is_well(&client));
    let begun = Instant::now();
    assert!(instance.terminate(0));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(!instance.socket(0).exists());
    assert_eq!(client.stream.read(&mut [0; 1]).expect("ended"), 0);
}

#[test]
fn an_idle_daemon_is_small_and_sleeps() {
    let instance = Instance::start(2);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    assert!(is_well(&client));
    let child = instance.daemons[0].as_ref().expect("it runs");
    let tasks = format!("/proc/{}/task", child.id());
    // CPU time of each thread, from the scheduler: the first field is nanoseconds.
    let used = || -> u64 {
        let tasks = std::fs::read_dir(&tasks).expect("its threads");
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
            .filter_map(|line| line.split(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    wait_until("less than a hundredth of a second is used", || {
        let before = used();
        std::thread::sleep(Duration::from_secs(1));
        // A thread that ended meanwhile takes its time with it.
        used().checked_sub(before).is_some_and(|used| used < 10_000_000)
    });
    let rss = instance.status_of(0, "rss");
    assert!(rss < 64 << 20, "{rss}");
}

#[test]
fn a_daemon_whose_shared_memory_is_gone_does_not_start() {
    let mut instance = Instance::start(1);
    instance.kill(0);
    std::fs::remove_dir_all(instance.directory.path().join("shm0")).expect("removed");
    let output = instance.command(0).output().expect("ran");
    assert!(!output.status.success());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("memory") && log.contains("is gone"), "{log}");
}

#[test]
fn a_daemon_with_a_wrong_secret_is_not_connected() {
    let mut instance = Instance::start_as(2, 1, 1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let to = To::Target(DaemonIndex(1));
    assert!(client.call(to, &Request::Space {}).is_ok());
    instance.kill(1);
    // With what it kept it would not start: it would belong to another instance.
    instance.forget(1);
    instance.write_secret(&"a5".repeat(32));
    instance.spawn(1);
    instance.tell_peers();
    let stranger = Client::attach(&instance.socket(1)).expect("attached");
    let header = Header {
        shard: Header::TARGET,
        daemon: 0,
        epoch: 1,
        client_id: 1,
        sequence: 1,
        host: 1,
        mount: 0,
        job: wire::JobWord::NONE,
        caller: Credentials::ROOT,
    };
    let mut bytes = [0; 128];
    let mut writer = Writer::new(&mut bytes);
    header.encode(&mut writer);
    Request::Space {}.encode(&mut writer);
    let length = writer.finish().expect("fits");
    for _ in 0..20 {
        let reply = stranger.send(0, &bytes[..length]).expect("answered");
        assert!(matches!(decode(&reply), Reply::Busy { .. }));
        std::thread::sleep(Duration::from_millis(10));
    }
}
