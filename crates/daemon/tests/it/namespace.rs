//! Names over the real socket, with one daemon and with several: acknowledged operations survive a
//! kill, the index knows them, and parts of a directory on other daemons are reached.

use crate::support::{Client, Instance, To, wait_until};
use shm::bounce::Pushed;
use shm::host::{ProcessIndex, Truncated, VnodeIndex};
use shm::index::Hit;
use std::sync::atomic::Ordering::SeqCst;
use wire::attributes::mode;
use wire::errno::Errno;
use wire::hash::entry_key;
use wire::request::{lock, set};
use wire::{DaemonIndex, Inode, Request, client_id};

const FILE: u32 = mode::REGULAR | 0o644;
const DIRECTORY: u32 = mode::DIRECTORY | 0o755;

fn attach(instance: &Instance, daemon: u16) -> Client {
    Client::attach(&instance.socket(daemon)).expect("attached")
}

/// Registers a process, as the client library does: while it lives, the daemon keeps opens that are
/// in no table. Returns its table and its start time.
pub(crate) fn register(client: &Client, pid: u32) -> (ProcessIndex, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let started = fields.split_whitespace().nth(19).and_then(|word| word.parse().ok());
    let started = started.expect("a number");
    (client.host.process_register(pid, started).expect("an entry"), started)
}

/// A thread is killed while it waits for a lock of a file on another host; its session lives on, as
/// after a fork.
#[test]
fn a_thread_killed_while_waiting_gets_no_lock_although_its_session_lives() {
    let instance = Instance::start_as(2, 1, 1);
    let (local, remote) = (attach(&instance, 0), attach(&instance, 1));
    let root = local.root();
    let inode = local.create(&root, b"f", FILE).expect("created").inode;
    assert_eq!(local.map.owner(inode.shard()).0, 0, "of the other host");
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
    assert_eq!(call(&local, &lock(1, lock::WRITE, 0)), Ok(()));
    remote.ask_and_die(inode.shard(), &lock(2, lock::WRITE, lock::WAIT), true);
    wait_until("the request of the dead thread is withdrawn", || !remote.session.has_waiting());
    assert_eq!(call(&local, &lock(1, lock::UNLOCK, 0)), Ok(()));
    assert_eq!(call(&remote, &lock(3, lock::WRITE, 0)), Ok(()), "a dead thread got the lock");
}

/// A thread is killed before it rings for its request, and its session lives on, as after a fork.
#[test]
fn a_killed_threads_request_is_over_when_a_later_process_is_admitted() {
    let instance = Instance::start(1);
    let earlier = attach(&instance, 0);
    let root = earlier.root();
    earlier.create(&root, b"before", FILE).expect("created");
    let request = Request::Unlink { parent: root.inode, name: b"before" };
    earlier.ask_and_die(root.inode.shard(), &request, false);
    let later = attach(&instance, 0);
    assert_eq!(later.lookup(&root, b"before"), Err(Errno::ENOENT), "it was not taken");
    later.create(&root, b"before", FILE).expect("created again");
    earlier.create(&root, b"after", FILE).expect("the session rings again");
    assert!(later.lookup(&root, b"before").is_ok(), "it took effect later");
}

/// The last close of one process reaches the shard after the open of the next: sent by another
/// thread of its daemon, or by the reaper.
#[test]
fn a_late_close_does_not_undo_a_later_open() {
    let instance = Instance::start_as(2, 1, 1);
    let (local, remote) = (attach(&instance, 0), attach(&instance, 1));
    let root = local.root();
    let inode = local.create(&root, b"f", FILE).expect("created").inode;
    assert_eq!(local.map.owner(inode.shard()).0, 0, "of the other host");
    let to = To::Shard(inode.shard());
    let ask = |request: &Request<'_>| remote.call(to, request).map(drop);

    register(&remote, std::process::id());
    let first = remote.host.vnode_open(inode).expect("space");
    assert_eq!(
        ask(&Request::Open { inode, open_sequence: remote.host.next_open_sequence(), uses: 0 }),
        Ok(())
    );
    assert!(remote.host.vnode_close(inode, first).expect("open").last);
    let late = remote.host.next_close_sequence(inode).expect("nobody has it open");
    let second = remote.host.vnode_open(inode).expect("space");
    assert_eq!(remote.host.next_close_sequence(inode), None, "somebody has it open");
    assert_eq!(
        ask(&Request::Open { inode, open_sequence: remote.host.next_open_sequence(), uses: 0 }),
        Ok(())
    );
    assert_eq!(ask(&Request::Close { inode, open_sequence: late }), Ok(()));

    local.unlink(&root, b"f").expect("removed");
    assert_eq!(local.attributes(inode).map(|found| found.links), Ok(0), "removed while it is open");
    assert!(remote.host.vnode_close(inode, second).expect("open").last);
    let open_sequence = remote.host.next_close_sequence(inode).expect("nobody has it open");
    assert_eq!(ask(&Request::Close { inode, open_sequence }), Ok(()));
    assert_eq!(local.attributes(inode).map(drop), Err(Errno::ESTALE));
}

/// A process that creates or opens a file of another host is killed before it counts the open, or
/// after it has uncounted it: the space is freed all the same once the file has no name.
#[test]
fn a_file_that_a_host_has_wrongly_registered_open_is_freed_with_its_name() {
    let instance = Instance::start_as(2, 1, 1);
    let (local, remote) = (attach(&instance, 0), attach(&instance, 1));
    let root = local.root();
    let [held, left] = [b"held", b"left"].map(|name| {
        let inode = local.create(&root, name, FILE).expect("created").inode;
        let open =
            Request::Open { inode, open_sequence: remote.host.next_open_sequence(), uses: 0 };
        remote.call(To::Shard(inode.shard()), &open).map(drop).expect("reported");
        inode
    });
    register(&remote, std::process::id());
    remote.host.vnode_open(held).expect("space");
    local.unlink(&root, b"held").expect("removed");
    local.unlink(&root, b"left").expect("removed");
    assert!(local.attributes(left).is_ok(), "the other host seems to have it open");
    wait_until("the other host was queried", || local.attributes(left) == Err(Errno::ESTALE));
    assert_eq!(local.attributes(held).map(|found| found.links), Ok(0), "it is open");
}

fn truncate_to_zero(inode: Inode) -> Request<'static> {
    let mask = set::SIZE | set::TRUNCATES | set::BY_DESCRIPTOR;
    let (mode, uid, gid, size, accessed, modified) = (0, 0, 0, 0, 0, 0);
    Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified }
}

/// A late size report, after the file was truncated or written again.
#[test]
fn a_late_size_report_undoes_no_truncation_and_hides_no_later_write() {
    let instance = Instance::start(1);
    let client = attach(&instance, 0);
    let root = client.root();
    let inode = client.create(&root, b"f", FILE).expect("created").inode;
    let to = To::Shard(inode.shard());
    client.call(to, &Request::MoveOut { inode }).expect("on targets");
    register(&client, std::process::id());
    let row = client.host.vnode_open(inode).expect("open");
    let unreported = &client.host.vnode(row).expect("an entry").dirty_end;
    let late = Request::Extend { inode, size: 5000 };
    let cut = truncate_to_zero(inode);
    let size = || client.attributes(inode).map(|found| found.size);

    unreported.store(5000, SeqCst);
    client.call(to, &late).expect("reported");
    assert_eq!((size(), unreported.load(SeqCst)), (Ok(5000), 0), "the shard clears what it took");

    client.call(to, &cut).expect("truncated");
    client.call(to, &late).expect("answered");
    assert_eq!(size(), Ok(0), "the truncation is undone");

    // Written, and unreported when the file is truncated.
    let words = client.host.vnode(row).expect("an entry");
    let truncate_epoch = words.truncate_epoch();
    assert_eq!(words.note_written(truncate_epoch, 6000), Ok(Some(0)));
    client.call(to, &cut).expect("truncated");
    assert_eq!((words.size(), unreported.load(SeqCst)), (0, 0), "truncated");
    assert_eq!(
        words.note_written(truncate_epoch, 6000),
        Err(Truncated),
        "a write of the old epoch"
    );
    assert_eq!((words.size(), unreported.load(SeqCst)), (0, 0));
    assert_eq!(words.truncate_epoch().number(), truncate_epoch.number() + 2);

    unreported.store(7000, SeqCst);
    client.call(to, &late).expect("reported");
    assert_eq!((size(), unreported.load(SeqCst)), (Ok(7000), 0), "the vnode has the size");

    // No process has it open any more.
    client.call(to, &cut).expect("truncated");
    client.host.vnode_close(inode, row).expect("closed");
    client.call(to, &late).expect("answered");
    assert_eq!(size(), Ok(0));
}

/// The shard cannot read the vnode of another host, but the daemon there can.
#[test]
fn another_host_reports_its_open_inode_when_notified() {
    let instance = Instance::start_as(2, 1, 1);
    let (local, remote) = (attach(&instance, 0), attach(&instance, 1));
    let inode = local.create(&local.root(), b"f", FILE).expect("created").inode;
    let to = To::Shard(inode.shard());
    local.call(to, &Request::MoveOut { inode }).expect("on targets");
    register(&remote, std::process::id());
    let row = remote.host.vnode_open(inode).expect("open");
    let words = remote.host.vnode(row).expect("an entry");
    let late = Request::Extend { inode, size: 5000 };
    words.dirty_end.store(5000, SeqCst);
    remote.call(to, &late).expect("reported");
    assert_eq!(local.attributes(inode).map(|found| found.size), Ok(5000));

    // A process there reports and truncates before another reader of the vnode sends its report.
    words.begin_own_remote_truncate();
    words.dirty_end.store(0, SeqCst);
    remote.call(to, &truncate_to_zero(inode)).expect("truncated");
    remote.call(to, &late).expect("answered");
    assert_eq!(local.attributes(inode).map(|found| found.size), Ok(0), "the truncation is undone");
    words.dirty_end.store(700, SeqCst);
    remote.call(to, &late).expect("reported");
    assert_eq!(local.attributes(inode).map(|found| found.size), Ok(700));
}

#[test]
fn names_are_created_and_removed() {
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
fn the_index_holds_created_and_looked_up_names() {
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
fn acknowledged_operations_survive_a_kill() {
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
fn an_earlier_client_reads_nothing_stale_after_a_restart() {
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
fn a_repeated_request_gets_the_first_reply_after_a_kill() {
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
            owners.insert(client.map.owner(crate::support::shard_of(&directory, b"x")));
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
            let to = To::Shard(crate::support::shard_of(&root, name.as_bytes()));
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
    let owner = |directory| client.map.owner(crate::support::shard_of(directory, b"x"));
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
    client.call(To::Shard(crate::support::shard_of(here, b"a")), &request).expect("renamed");
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

    // A process that has the file open, as its client library would record it, is killed.
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
    let (row, started) = register(&client, process.id());
    let vnode = client.host.vnode_open(made.inode).expect("open");
    let open = client.host.file_allocate(made.inode, vnode, 2).expect("open");
    client.host.process_set(row, 5, Some((open, false))).expect("set");
    client.host.vnode(vnode).expect("an entry").dirty_end.store(123, SeqCst);

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

/// Counts a write as handed over, and ends before it hands it over.
fn count_and_die(client: &Client, inode: Inode, row: VnodeIndex) {
    let (session, host) = (&client.session, &client.host);
    let through = client.welcome.client_id >> client_id::START_SHIFT;
    let count = move || {
        let buffer = session.bounce_buffers().try_free().expect("a buffer");
        let (target, stripe_log2, offset, length, stamp) = (DaemonIndex(1), 22, 0, 1, 1);
        let pushed = Pushed { inode, vnode: row, target, stripe_log2, offset, length, stamp };
        buffer.describe(&pushed).and_then(|()| buffer.begin_counting()).expect("taken");
        assert!(host.vnode(row).expect("an entry").begin_push(through).is_some());
        std::mem::forget(buffer);
    };
    std::thread::scope(|scope| scope.spawn(count).join()).expect("no panic");
}

/// Of a thread whose session lives on in other processes, and of a whole process.
#[test]
fn a_write_of_a_killed_thread_that_was_only_counted_holds_up_no_reader() {
    let instance = Instance::start(1);
    let (lives, dies) = (attach(&instance, 0), attach(&instance, 0));
    register(&lives, std::process::id());
    let inode = lives.create(&lives.root(), b"f", FILE).expect("created").inode;
    let row = lives.host.vnode_open(inode).expect("open");
    let vnode = lives.host.vnode(row).expect("an entry");
    count_and_die(&dies, inode, row);
    assert!(vnode.has_pending());
    drop(dies);
    wait_until("the write of the process is not counted", || !vnode.has_pending());
    count_and_die(&lives, inode, row);
    wait_until("the write of the thread is not counted", || !vnode.has_pending());
    let freed = || !lives.session.bounce_buffers().has_pushes();
    wait_until("its buffer is free", freed);
}

/// Counts a write of a file and hands it over to nobody: its daemon is about to end.
fn count_push(client: &Client, row: VnodeIndex) {
    let through = client.welcome.client_id >> client_id::START_SHIFT;
    assert!(client.host.vnode(row).expect("an entry").begin_push(through).is_some());
}

/// The bytes are in no memory any more, unless a living process wrote to the file.
#[test]
fn a_write_whose_process_and_daemon_ended_holds_up_no_reader() {
    let mut instance = Instance::start(1);
    let client = attach(&instance, 0);
    let mut process = std::process::Command::new("sleep").arg("600").spawn().expect("started");
    let (process_row, _) = register(&client, process.id());
    let made = |name: &[u8]| client.create(&client.root(), name, FILE).expect("created").inode;
    let open = |inode| client.host.vnode_open(inode).expect("open");
    let (lost, held) = (open(made(b"lost")), open(made(b"held")));
    let inode = client.host.vnode(held).expect("an entry").inode.load(SeqCst);
    let file = client.host.file_allocate(Inode(inode), held, 2).expect("open");
    client.host.process_set(process_row, 5, Some((file, false))).expect("set");
    client.host.file(file).expect("an entry").note_push();
    [lost, held].into_iter().for_each(|row| count_push(&client, row));
    instance.kill(0);
    drop(client);
    instance.spawn(0);
    let client = attach(&instance, 0);
    let row = |row| client.host.vnode(row).expect("an entry");
    wait_until("the write is not counted", || !row(lost).has_pending());
    assert_eq!(row(lost).take_failure(), Err(Errno::EIO));
    assert!(row(held).has_pending(), "its process may have the bytes");
    process.kill().expect("killed");
    process.wait().expect("ended");
    wait_until("nobody has the bytes", || !row(held).has_pending());
}
