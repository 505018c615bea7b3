//! Names over the real socket, with one daemon and with several: what is acknowledged survives a
//! kill, the index knows it, and the parts of a directory on other daemons are reached.

mod support;

use shm::host::Cut;
use shm::host::ProcessIndex;
use shm::index::Hit;
use std::sync::atomic::Ordering::SeqCst;
use support::{Client, Instance, To, wait_until};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::hash::entry_key;
use wire::request::{lock, set};
use wire::{Inode, Request};

const FILE: u32 = mode::REGULAR | 0o644;
const DIRECTORY: u32 = mode::DIRECTORY | 0o755;

fn attach(instance: &Instance, daemon: u16) -> Client {
    Client::attach(&instance.socket(daemon)).expect("attached")
}

/// The table of a process, as its library would make it, and when the process began.
fn register(client: &Client, pid: u32) -> (ProcessIndex, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let started = fields.split_whitespace().nth(19).and_then(|word| word.parse().ok());
    let started = started.expect("a number");
    (client.host.process_register(pid, started).expect("a row"), started)
}

/// A thread is killed while it waits for a lock of a file on another host; its session lives on, as that
/// of a process does whose child it was.
#[test]
fn who_is_killed_waiting_gets_no_lock_though_his_session_lives() {
    let instance = Instance::start_as(2, 1, 1);
    let (near, far) = (attach(&instance, 0), attach(&instance, 1));
    let root = near.root();
    let inode = near.create(&root, b"f", FILE).expect("created").inode;
    assert_eq!(near.map.owner(inode.shard()).0, 0, "of the other host");
    let lock = |owner: u64, kind: u8, wait: u8| Request::Lock {
        inode,
        owner,
        party: 0,
        pid: 1,
        kind,
        flags: lock::FLOCK | wait,
        start: 0,
        end: u64::MAX,
    };
    let call = |client: &Client, request: &Request<'_>| {
        client.call(To::Shard(inode.shard()), request).map(drop)
    };
    assert_eq!(call(&near, &lock(1, lock::WRITE, 0)), Ok(()));
    far.ask_and_die(inode.shard(), &lock(2, lock::WRITE, lock::WAIT));
    wait_until("the request of the dead is withdrawn", || !far.session.has_waiting());
    assert_eq!(call(&near, &lock(1, lock::UNLOCK, 0)), Ok(()));
    assert_eq!(call(&far, &lock(3, lock::WRITE, 0)), Ok(()), "the dead got the lock");
}

/// The last close of one process comes to the shard after the opening of the next: by another thread of
/// its daemon, or from the reaper.
#[test]
fn a_close_that_comes_late_takes_no_file_from_who_opened_it_since() {
    let instance = Instance::start_as(2, 1, 1);
    let (near, far) = (attach(&instance, 0), attach(&instance, 1));
    let root = near.root();
    let inode = near.create(&root, b"f", FILE).expect("created").inode;
    assert_eq!(near.map.owner(inode.shard()).0, 0, "of the other host");
    let to = To::Shard(inode.shard());
    let ask = |request: &Request<'_>| far.call(to, request).map(drop);

    let first = far.host.vnode_open(inode).expect("room");
    assert_eq!(ask(&Request::Open { inode, turn: far.host.draw_turn(), uses: 0 }), Ok(()));
    assert!(far.host.vnode_close(inode, first).expect("open").last);
    let late = far.host.draw_turn_of_close(inode).expect("nobody has it open");
    let second = far.host.vnode_open(inode).expect("room");
    assert_eq!(far.host.draw_turn_of_close(inode), None, "somebody has it open");
    assert_eq!(ask(&Request::Open { inode, turn: far.host.draw_turn(), uses: 0 }), Ok(()));
    assert_eq!(ask(&Request::Close { inode, turn: late }), Ok(()));

    near.unlink(&root, b"f").expect("removed");
    assert_eq!(near.attributes(inode).map(|found| found.links), Ok(0), "removed while it is open");
    assert!(far.host.vnode_close(inode, second).expect("open").last);
    let turn = far.host.draw_turn_of_close(inode).expect("nobody has it open");
    assert_eq!(ask(&Request::Close { inode, turn }), Ok(()));
    assert_eq!(near.attributes(inode).map(drop), Err(Errno::ESTALE));
}

/// Who made or opened a file of another host is killed before he counted himself in, or after he counted
/// himself out: its space comes free all the same once it has no name.
#[test]
fn a_file_that_a_host_only_seems_to_have_open_goes_with_its_name() {
    let instance = Instance::start_as(2, 1, 1);
    let (near, far) = (attach(&instance, 0), attach(&instance, 1));
    let root = near.root();
    let [held, left] = [b"held", b"left"].map(|name| {
        let inode = near.create(&root, name, FILE).expect("created").inode;
        let open = Request::Open { inode, turn: far.host.draw_turn(), uses: 0 };
        far.call(To::Shard(inode.shard()), &open).map(drop).expect("told");
        inode
    });
    // While a process lives, what is counted may be its.
    register(&far, std::process::id());
    far.host.vnode_open(held).expect("room");
    near.unlink(&root, b"held").expect("removed");
    near.unlink(&root, b"left").expect("removed");
    assert!(near.attributes(left).is_ok(), "the other host seems to have it open");
    wait_until("the other host was asked", || near.attributes(left) == Err(Errno::ESTALE));
    assert_eq!(near.attributes(held).map(|found| found.links), Ok(0), "it is open");
}

fn cut_to_nothing(inode: Inode) -> Request<'static> {
    let mask = set::SIZE | set::CUTS | set::BY_DESCRIPTOR;
    let (mode, uid, gid, size, accessed, modified) = (0, 0, 0, 0, 0, 0);
    Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified }
}

/// What clients ask late, after somebody truncated the file, or wrote to it anew.
#[test]
fn a_size_told_late_undoes_no_truncation_and_hides_nothing_written_since() {
    let instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    let inode = client.create(&root, b"f", FILE).expect("created").inode;
    let to = To::Shard(inode.shard());
    client.call(to, &Request::MoveOut { inode }).expect("on targets");
    let row = client.host.vnode_open(inode).expect("open");
    let untold = &client.host.vnode(row).expect("a row").dirty_end;
    let late = Request::Extend { inode, size: 5000 };
    let cut = cut_to_nothing(inode);
    let size = || client.attributes(inode).map(|found| found.size);

    untold.store(5000, SeqCst);
    client.call(to, &late).expect("told");
    assert_eq!((size(), untold.load(SeqCst)), (Ok(5000), 0), "the shard clears what it took");

    client.call(to, &cut).expect("cut");
    client.call(to, &late).expect("answered");
    assert_eq!(size(), Ok(0), "the truncation is undone");

    // Written, and not told when somebody cuts the file.
    let words = client.host.vnode(row).expect("a row");
    let cuts = words.cuts();
    assert_eq!(words.note_written(cuts, 6000), Ok(Some(0)));
    client.call(to, &cut).expect("cut");
    assert_eq!((words.size(), untold.load(SeqCst)), (0, 0), "cut off");
    assert_eq!(words.note_written(cuts, 6000), Err(Cut), "what was written before");
    assert_eq!((words.size(), untold.load(SeqCst)), (0, 0));
    assert_eq!(words.cuts().number(), cuts.number() + 2);

    untold.store(7000, SeqCst);
    client.call(to, &late).expect("told");
    assert_eq!((size(), untold.load(SeqCst)), (Ok(7000), 0), "the row says how long it is");

    // Nobody has it open any more.
    client.call(to, &cut).expect("cut");
    client.host.vnode_close(inode, row).expect("closed");
    client.call(to, &late).expect("answered");
    assert_eq!(size(), Ok(0));
}

/// The shard does not see the words of another host, but the daemon there does.
#[test]
fn another_host_tells_what_its_row_says_when_it_is_told() {
    let instance = Instance::start_as(2, 1, 1);
    let (near, far) = (attach(&instance, 0), attach(&instance, 1));
    let inode = near.create(&near.root(), b"f", FILE).expect("created").inode;
    let to = To::Shard(inode.shard());
    near.call(to, &Request::MoveOut { inode }).expect("on targets");
    let row = far.host.vnode_open(inode).expect("open");
    let words = far.host.vnode(row).expect("a row");
    let late = Request::Extend { inode, size: 5000 };
    words.dirty_end.store(5000, SeqCst);
    far.call(to, &late).expect("told");
    assert_eq!(near.attributes(inode).map(|found| found.size), Ok(5000));

    // Somebody there truncates the file before who read the row asks.
    assert_eq!(words.cut_far(), 5000);
    far.call(to, &cut_to_nothing(inode)).expect("cut");
    far.call(to, &late).expect("answered");
    assert_eq!(near.attributes(inode).map(|found| found.size), Ok(0), "the truncation is undone");
    words.dirty_end.store(700, SeqCst);
    far.call(to, &late).expect("told");
    assert_eq!(near.attributes(inode).map(|found| found.size), Ok(700));
}

#[test]
fn names_come_and_go() {
    let instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    assert!(root.is_directory());
    let made = client.create(&root, b"a", FILE).expect("created");
    assert_eq!(client.lookup(&root, b"a"), Ok(made.inode));
    assert_eq!(client.create(&root, b"a", FILE), Err(Errno::EEXIST));
    assert_eq!(client.unlink(&root, b"a"), Ok(()));
    assert_eq!(client.lookup(&root, b"a"), Err(Errno::ENOENT));
    assert_eq!(client.unlink(&root, b"a"), Err(Errno::ENOENT));
}

#[test]
fn the_index_answers_for_what_was_asked_or_made() {
    let instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    let made = client.create(&root, b"a", FILE).expect("created");
    let index = &client.indexes[0];
    assert!(
        matches!(index.entry(entry_key(root.inode, b"a")), Hit::Found(inode, _) if inode == made.inode)
    );
    assert_eq!(index.inode(made.inode).map(|found| found.inode), Some(made.inode));
    client.unlink(&root, b"a").expect("unlinked");
    assert!(!matches!(index.entry(entry_key(root.inode, b"a")), Hit::Found(..)));
    assert_eq!(index.inode(made.inode), None);
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    for workers in [1, 3] {
        let mut instance = Instance::start_as(1, 1, workers);
        let client = attach(&instance, 0);
        let root = client.root();
        let directory = client.create(&root, b"d", DIRECTORY).expect("created");
        let mut inodes = Vec::new();
        for number in 0..500 {
            let made = client.create(&directory, format!("f{number}").as_bytes(), FILE);
            inodes.push(made.expect("created").inode);
        }
        for number in (0..500).step_by(2) {
            client.unlink(&directory, format!("f{number}").as_bytes()).expect("unlinked");
        }
        instance.kill(0);
        instance.spawn(0);
        let client = attach(&instance, 0);
        for (number, inode) in inodes.iter().enumerate() {
            let expected = if number % 2 == 0 { Err(Errno::ENOENT) } else { Ok(*inode) };
            assert_eq!(client.lookup(&directory, format!("f{number}").as_bytes()), expected);
        }
        let made = client.create(&directory, b"new", FILE).expect("created");
        assert!(!inodes.contains(&made.inode));
    }
}

#[test]
fn an_old_client_reads_nothing_old_after_a_restart() {
    let mut instance = Instance::start(1);
    let old = attach(&instance, 0);
    let root = old.root();
    old.create(&root, b"a", FILE).expect("created");
    instance.kill(0);
    instance.spawn(0);
    let client = attach(&instance, 0);
    client.unlink(&root, b"a").expect("unlinked");
    assert!(!matches!(old.indexes[0].entry(entry_key(root.inode, b"a")), Hit::Found(..)));
}

#[test]
fn a_repeated_request_is_answered_as_the_first_time_after_a_kill() {
    let mut instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    let made = client.create(&root, b"a", FILE).expect("created");
    let identity = client.last.get();
    instance.kill(0);
    instance.spawn(0);
    let client = attach(&instance, 0);
    client.repeat.set(Some(identity));
    assert_eq!(client.create(&root, b"a", FILE).map(|again| again.inode), Ok(made.inode));
    client.repeat.set(None);
    assert_eq!(client.create(&root, b"a", FILE), Err(Errno::EEXIST));
}

#[test]
fn directories_on_other_daemons_are_reached_by_tcp() {
    for (count, local_count, workers) in [(2, 2, 1), (2, 1, 2), (4, 2, 1)] {
        let instance = Instance::start_as(count, local_count, workers);
        let client = attach(&instance, 0);
        let root = client.root();
        let mut owners = std::collections::BTreeSet::new();
        for number in 0..8 {
            let name = format!("d{number}");
            let directory = client.create(&root, name.as_bytes(), DIRECTORY).expect("created");
            owners.insert(client.map.owner(support::shard_of(&directory, b"x")));
            for file in 0..20 {
                let name = format!("f{file}");
                client.create(&directory, name.as_bytes(), FILE).expect("created");
            }
        }
        assert_eq!(owners.len(), usize::from(count), "directories are spread over daemons");
        let last = attach(&instance, count - 1);
        let root = last.root();
        for number in 0..8 {
            let inode = last.lookup(&root, format!("d{number}").as_bytes()).expect("found");
            let directory = last.attributes(inode).expect("a directory");
            for file in 0..20 {
                last.unlink(&directory, format!("f{file}").as_bytes()).expect("unlinked");
            }
            let name = format!("d{number}");
            let request = Request::RemoveDirectory { parent: root.inode, name: name.as_bytes() };
            let to = To::Shard(support::shard_of(&root, name.as_bytes()));
            last.call(to, &request).expect("removed");
        }
        wait_until("only the root is left", || {
            (0..count).map(|daemon| instance.status_of(daemon, "files")).sum::<u64>() <= 1
        });
    }
}

#[test]
fn an_entry_moves_between_daemons_and_survives_their_kill() {
    let mut instance = Instance::start_as(2, 1, 1);
    let client = attach(&instance, 0);
    let root = client.root();
    let directories: Vec<_> = (0..4)
        .map(|number| client.create(&root, format!("d{number}").as_bytes(), DIRECTORY))
        .collect::<Result<_, _>>()
        .expect("created");
    let owner = |directory| client.map.owner(support::shard_of(directory, b"x"));
    let here = directories.iter().find(|directory| owner(directory).0 == 0).expect("one here");
    let there = directories.iter().find(|directory| owner(directory).0 == 1).expect("one there");
    let made = client.create(here, b"a", FILE).expect("created");
    let request = Request::Rename {
        parent: here.inode,
        name: b"a",
        new_parent: there.inode,
        new_name: b"b",
        flags: 0,
    };
    client.call(To::Shard(support::shard_of(here, b"a")), &request).expect("renamed");
    assert_eq!(client.lookup(there, b"b"), Ok(made.inode));
    assert_eq!(client.lookup(here, b"a"), Err(Errno::ENOENT));
    for daemon in 0..2 {
        instance.kill(daemon);
    }
    for daemon in 0..2 {
        instance.spawn(daemon);
    }
    instance.tell_peers();
    let client = attach(&instance, 0);
    assert_eq!(client.lookup(there, b"b"), Ok(made.inode));
    assert_eq!(client.lookup(here, b"a"), Err(Errno::ENOENT));
}

#[test]
fn a_killed_process_leaves_no_deleted_file_behind() {
    let mut instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    let files = |instance: &Instance| instance.status_of(0, "files");
    let made = client.create(&root, b"a", FILE).expect("created");

    // A process that has the file open, as its library would note it, and is killed.
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
    let (row, started) = register(&client, process.id());
    let vnode = client.host.vnode_open(made.inode).expect("open");
    let open = client.host.file_allocate(made.inode, vnode, 2).expect("open");
    client.host.process_set(row, 5, Some((open, false))).expect("set");
    client.host.vnode(vnode).expect("a row").dirty_end.store(123, SeqCst);

    client.unlink(&root, b"a").expect("unlinked");
    assert_eq!(client.attributes(made.inode).map(|found| found.links), Ok(0));
    instance.kill(0);
    instance.spawn(0);
    let client = attach(&instance, 0);
    assert_eq!(client.attributes(made.inode).map(|found| found.links), Ok(0), "still open");
    process.kill().expect("killed");
    process.wait().expect("ended");
    wait_until("the file is gone", || client.attributes(made.inode) == Err(Errno::ESTALE));
    wait_until("only the root is left", || files(&instance) == 1);
    assert_eq!(client.host.process_find(process.id(), started), None);
}
