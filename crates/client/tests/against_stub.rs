//! The client against the stub: names, contents, listings, locks, and a restarted daemon. Each test
//! has its own stub and its own client in a static.

mod stub;

use client::{
    At, Client, Follow, LockOwner, LockRange, Opened, Outcome, PathBuffer, Position, ProcessIndex,
    Time, Times, Wait,
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use stub::Stub;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::limits::SLOT_COUNT;
use wire::request::lock;
use wire::{Attributes, Credentials, Inode};

const ME: Credentials = Credentials::ROOT;
const READ_WRITE: u32 = 2;
const CREATE: u32 = 0o100;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;

/// A client attached to a stub of its own, with helpers for tests.
struct Bench {
    client: &'static Client,
    stub: Stub,
    process: ProcessIndex,
}

impl Bench {
    fn new(name: &str, client: &'static Client) -> Bench {
        Bench::with_stub(Stub::start(name), client)
    }

    fn with_stub(stub: Stub, client: &'static Client) -> Bench {
        client.attach(&stub.rundir(), b"/mnt/fb", 0).expect("attached");
        let process = client.register(std::process::id(), 1).expect("registered");
        Bench { client, stub, process }
    }

    /// A test bench with an open file `f` that holds `bytes` bytes of `pattern`.
    fn with_file(name: &str, client: &'static Client, bytes: usize) -> (Bench, Opened, Vec<u8>) {
        let bench = Bench::new(name, client);
        let file = bench.open("f", READ_WRITE | CREATE).expect("made");
        let all = pattern(bytes);
        assert_eq!(client.write(file.ofd, &all, Position::Current), Ok(bytes));
        (bench, file, all)
    }

    fn open(&self, path: &str, flags: u32) -> Result<Opened> {
        let at = At::root(path.as_bytes());
        match self.client.open(at, flags, 0o644, &ME, &mut PathBuffer::new())? {
            Outcome::Done(opened) => Ok(opened),
            other => panic!("{path} led to {other:?}"),
        }
    }

    fn close(&self, opened: Opened) {
        self.client.close(opened.ofd, self.process).expect("closed");
    }

    fn stat(&self, path: &str) -> Result<Attributes> {
        let at = At::root(path.as_bytes());
        match self.client.stat(at, Follow::Yes, &ME, &mut PathBuffer::new())? {
            Outcome::Done(attributes) => Ok(attributes),
            other => panic!("{path} led to {other:?}"),
        }
    }

    fn make_directory(&self, path: &str) {
        let at = At::root(path.as_bytes());
        let made = self.client.make_directory(at, 0o755, &ME, &mut PathBuffer::new());
        assert_eq!(made, Ok(Outcome::Done(())), "{path}");
    }

    fn symlink(&self, target: &str, path: &str) {
        let at = At::root(path.as_bytes());
        let made = self.client.symlink(target.as_bytes(), at, &ME, &mut PathBuffer::new());
        assert_eq!(made, Ok(Outcome::Done(())), "{path}");
    }

    fn unlink(&self, path: &str) -> Result<Outcome<()>> {
        self.client.unlink(At::root(path.as_bytes()), &ME, &mut PathBuffer::new())
    }

    fn contents(&self, opened: Opened) -> Vec<u8> {
        let size = self.client.fstat(opened.ofd).expect("open").size;
        let mut bytes = vec![1; size as usize + 10];
        let count = self.client.read(opened.ofd, &mut bytes, Position::At(0)).expect("readable");
        bytes.truncate(count);
        bytes
    }

    fn list(&self, path: &str, bytes: u32) -> Vec<String> {
        let opened = self.open(path, 0).expect("a directory");
        let mut names = Vec::new();
        loop {
            let before = names.len();
            let mut slots_left = 3;
            self.client
                .read_directory(opened.ofd, bytes, &mut |entry| {
                    if slots_left == 0 {
                        return false;
                    }
                    slots_left -= 1;
                    names.push(String::from_utf8(entry.name.to_vec()).expect("a test's name"));
                    true
                })
                .expect("listed");
            if names.len() == before {
                self.close(opened);
                return names;
            }
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

#[test]
fn contents_grow_from_inline_to_extents() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("contents", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE | EXCLUSIVE).expect("made");
    assert_eq!(bench.open("f", READ_WRITE | CREATE | EXCLUSIVE), Err(Errno::EEXIST));
    assert_eq!(CLIENT.write(file.ofd, b"hello ", Position::Current), Ok(6));
    assert_eq!(CLIENT.write(file.ofd, b"world", Position::Current), Ok(5));
    assert_eq!(bench.contents(file), b"hello world");
    assert_eq!(bench.stat("f").expect("there").size, 11);
    let all = pattern(5 << 20);
    assert_eq!(CLIENT.write(file.ofd, &all, Position::At(6)), Ok(all.len()));
    assert_eq!(CLIENT.fstat(file.ofd).expect("open").size, 6 + all.len() as u64);
    let contents = bench.contents(file);
    assert_eq!(&contents[..6], b"hello ");
    assert!(contents[6..] == all[..]);
    // A hole, followed by a little data.
    assert_eq!(CLIENT.write(file.ofd, b"x", Position::At(9 << 20)), Ok(1));
    let mut hole = [7; 5000];
    assert_eq!(CLIENT.read(file.ofd, &mut hole, Position::At((9 << 20) - 4999)), Ok(5000));
    assert!(hole[..4999].iter().all(|&byte| byte == 0) && hole[4999] == b'x');
    bench.close(file);
    let attributes = bench.stat("f").expect("there");
    assert_eq!((attributes.size, attributes.is_inline()), ((9 << 20) + 1, false));
    let file = bench.open("f", READ_WRITE | TRUNCATE).expect("there");
    assert_eq!(bench.contents(file), b"");
    bench.close(file);
}

#[test]
fn truncation_and_extension_show_zeros() {
    static CLIENT: Client = Client::new();
    let (bench, file, all) = Bench::with_file("truncate", &CLIENT, 300_000);
    assert_eq!(CLIENT.ftruncate(file.ofd, 100_000), Ok(()));
    assert_eq!(CLIENT.ftruncate(file.ofd, 200_000), Ok(()));
    let contents = bench.contents(file);
    assert_eq!(contents.len(), 200_000);
    assert!(contents[..100_000] == all[..100_000]);
    assert!(contents[100_000..].iter().all(|&byte| byte == 0));
    let at = At::root(b"f");
    let cut = CLIENT.truncate(at, 10, &ME, &mut PathBuffer::new());
    assert_eq!(cut, Ok(Outcome::Done(())));
    assert_eq!(bench.contents(file), all[..10]);
    assert_eq!(CLIENT.seek(file.ofd, -3, 2), Ok(7));
    let mut rest = [0; 10];
    assert_eq!(CLIENT.read(file.ofd, &mut rest, Position::Current), Ok(3));
    assert_eq!(CLIENT.seek(file.ofd, 0, 1), Ok(10));
    assert_eq!(CLIENT.seek(file.ofd, -11, 1), Err(Errno::EINVAL));
    bench.close(file);
}

/// Between the reply to a size report and the reporter's next step, another process empties the
/// file and writes to it.
#[test]
fn reporting_a_size_does_not_clear_later_writes() {
    static CLIENT: Client = Client::new();
    let (bench, file, _) = Bench::with_file("anew", &CLIENT, 300_000);
    let written_anew = |is: bool| {
        bench.stub.state.namespace.lock().expect("no panic").is_written_anew = is;
    };
    written_anew(true);
    assert_eq!(CLIENT.fstat(file.ofd).expect("open").size, 0);
    written_anew(false);
    assert_eq!(CLIENT.fstat(file.ofd).expect("open").size, 300_000, "what was written is lost");
    bench.close(file);
}

#[test]
fn appends_from_two_open_files_lose_nothing() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("append", &CLIENT);
    let one = bench.open("log", READ_WRITE | CREATE | APPEND).expect("made");
    let two = bench.open("log", READ_WRITE | APPEND).expect("there");
    let mut written = 0;
    for round in 0..400u32 {
        let line = format!("{round:08}\n").repeat(3);
        let to = if round % 2 == 0 { one } else { two };
        assert_eq!(CLIENT.write(to.ofd, line.as_bytes(), Position::Current), Ok(line.len()));
        written += line.len();
        assert_eq!(CLIENT.seek(to.ofd, 0, 1), Ok(written as u64));
    }
    let text = String::from_utf8(bench.contents(one)).expect("digits");
    assert_eq!(text.len(), written);
    assert!(text.lines().enumerate().all(|(at, line)| line == format!("{:08}", at / 3)));
    bench.close(one);
    bench.close(two);
}

/// Between the range that an append got and its bytes, another process truncates the file: before
/// the range, after it, and within it.
#[test]
fn an_append_is_ordered_before_or_after_a_truncation() {
    static CLIENT: Client = Client::new();
    let (bench, file, all) = Bench::with_file("cut", &CLIENT, 10_000);
    let log = bench.open("f", READ_WRITE | APPEND).expect("there");
    let truncate_to = |size: u64| {
        bench.stub.state.namespace.lock().expect("no panic").truncate_after_append = Some(size);
        assert_eq!(CLIENT.write(log.ofd, b"record", Position::Current), Ok(6));
        let position = CLIENT.seek(log.ofd, 0, 1).expect("a place") as usize;
        let status = CLIENT.fstat(log.ofd).expect("open");
        (bench.contents(file), position, status.size)
    };
    let (contents, position, size) = truncate_to(10_010);
    assert_eq!((position, size), (10_006, 10_010));
    assert!(contents[..10_000] == all[..] && contents[10_000..] == *b"record\0\0\0\0");

    let (contents, position, size) = truncate_to(10_013);
    assert_eq!((position, size), (10_016, 10_013), "its end is cut off");
    assert!(contents[..10_000] == all[..] && contents[10_000..] == *b"record\0\0\0\0rec");

    let (contents, position, size) = truncate_to(0);
    assert_eq!((&*contents, position, size), (&b"record"[..], 6, 6), "at the end of that moment");
    bench.close(log);
    bench.close(file);
}

#[test]
fn paths_follow_links_and_leave_the_instance() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("paths", &CLIENT);
    bench.make_directory("a");
    bench.make_directory("a/b");
    bench.symlink("b", "a/relative");
    bench.symlink("/mnt/fb/a", "absolute");
    bench.symlink("/etc", "outside");
    bench.symlink("loop", "loop");
    bench.close(bench.open("absolute/relative/f", READ_WRITE | CREATE).expect("made"));
    let inode = bench.stat("a/b/f").expect("there").inode;
    assert_eq!(bench.stat("absolute/./b/../relative//f").map(|found| found.inode), Ok(inode));
    assert_eq!(bench.stat("a/b/f/"), Err(Errno::ENOTDIR));
    assert_eq!(bench.stat("a/b/f/x"), Err(Errno::ENOTDIR));
    assert_eq!(bench.stat("a/none/x"), Err(Errno::ENOENT));
    assert_eq!(bench.stat("loop"), Err(Errno::ELOOP));
    assert_eq!(bench.stat(&"x".repeat(256)), Err(Errno::ENAMETOOLONG));
    for (path, leads_to) in [
        ("outside/passwd", "/etc/passwd"),
        ("..", "/mnt"),
        ("a/../../other", "/mnt/other"),
        ("outside", "/etc"),
    ] {
        let mut buffer = PathBuffer::new();
        let outcome = CLIENT.stat(At::root(path.as_bytes()), Follow::Yes, &ME, &mut buffer);
        assert_eq!(outcome, Ok(Outcome::Outside), "{path}");
        assert_eq!(buffer.outside(), leads_to.as_bytes());
    }
    let mut buffer = PathBuffer::new();
    let link = CLIENT.stat(At::root(b"outside"), Follow::No, &ME, &mut buffer);
    let Ok(Outcome::Done(link)) = link else { panic!("{link:?}") };
    assert!(link.is_symlink());
    let mut target = [0; 3];
    let length = CLIENT.read_link(At::root(b"outside"), &mut target, &ME, &mut buffer);
    assert_eq!((length, &target), (Ok(Outcome::Done(3)), b"/et"));
    CLIENT.path_of(bench.stat("a/b").expect("there").inode, &mut buffer).expect("found");
    assert_eq!(buffer.outside(), b"/mnt/fb/a/b");
    // Removing a link never touches what it names.
    let removed = CLIENT.remove_directory(At::root(b"absolute/"), &ME, &mut buffer);
    assert_eq!(removed, Err(Errno::ENOTDIR));
    assert_eq!(bench.unlink("a"), Err(Errno::EISDIR));
}

#[test]
fn renames_and_links_move_names() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("rename", &CLIENT);
    bench.make_directory("a");
    bench.make_directory("a/b");
    bench.close(bench.open("f", READ_WRITE | CREATE).expect("made"));
    let rename = |from: &str, to: &str| {
        let (mut one, mut two) = (PathBuffer::new(), PathBuffer::new());
        let (from, to) = (At::root(from.as_bytes()), At::root(to.as_bytes()));
        CLIENT.rename(from, to, 0, &ME, (&mut one, &mut two))
    };
    assert_eq!(rename("f", "a/b/g"), Ok(Outcome::Done(())));
    assert_eq!(bench.stat("f"), Err(Errno::ENOENT));
    assert_eq!(rename("a", "a/b/c"), Err(Errno::EINVAL));
    assert_eq!(rename("none", "x"), Err(Errno::ENOENT));
    assert_eq!(rename("a/b/g", "x/"), Err(Errno::ENOTDIR));
    assert_eq!(rename("a/b", "a/."), Err(Errno::EBUSY));
    let (mut one, mut two) = (PathBuffer::new(), PathBuffer::new());
    let (from, to) = (At::root(b"a/b/g"), At::root(b"h"));
    let linked = CLIENT.link(from, Follow::No, to, &ME, (&mut one, &mut two));
    assert_eq!(linked, Ok(Outcome::Done(())));
    assert_eq!(bench.stat("h").expect("there").links, 2);
    assert_eq!(bench.unlink("a/b/g"), Ok(Outcome::Done(())));
    assert_eq!(bench.stat("h").expect("there").links, 1);
}

#[test]
fn a_deleted_file_lives_until_its_last_close() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("deleted", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let all = pattern(70_000);
    assert_eq!(CLIENT.write(file.ofd, &all, Position::Current), Ok(all.len()));
    assert_eq!(bench.unlink("f"), Ok(Outcome::Done(())));
    assert_eq!(bench.stat("f"), Err(Errno::ENOENT));
    CLIENT.retain(file.ofd);
    bench.close(file);
    assert!(bench.contents(file) == all);
    bench.close(file);
    // The last close sends `Reap` without waiting; any later request comes after it.
    assert_eq!(bench.stat("unknown-name"), Err(Errno::ENOENT));
    assert_eq!(bench.stub.state.namespace.lock().expect("no panic").reaped, 1);
    assert_eq!(CLIENT.fstat(file.ofd), Err(Errno::EBADF));
}

#[test]
fn listings_are_complete_and_show_nothing_twice() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("list", &CLIENT);
    for directory in ["home", "wide", "grown"] {
        bench.make_directory(directory);
        let mut expected: BTreeSet<String> = [".", ".."].map(String::from).into();
        for number in 0..300 {
            let path = format!("{directory}/a-rather-long-name-{number}");
            bench.close(bench.open(&path, READ_WRITE | CREATE).expect("made"));
            expected.insert(format!("a-rather-long-name-{number}"));
        }
        let names = bench.list(directory, 600);
        assert_eq!(&names[..2], [".", ".."]);
        assert_eq!(names.len(), expected.len(), "{directory}");
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    assert_eq!(bench.list("/", 4096).len(), 5);
}

#[test]
fn locks_end_with_a_descriptor_of_the_process() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("locks", &CLIENT);
    let other = CLIENT.register(1, 1).expect("registered");
    let (one, two) = (
        bench.open("f", READ_WRITE | CREATE).expect("made"),
        bench.open("f", READ_WRITE).expect("there"),
    );
    let range = LockRange { kind: lock::WRITE, start: 0, end: 9, pid: 1 };
    let (mine, theirs) = (LockOwner::Process(bench.process), LockOwner::Process(other));
    assert_eq!(CLIENT.lock(one.ofd, mine, range, Wait::No), Ok(()));
    assert_eq!(CLIENT.lock(two.ofd, theirs, range, Wait::No), Err(Errno::EAGAIN));
    let held = CLIENT.test_lock(two.ofd, theirs, range).expect("tested");
    assert_eq!(held.map(|held| (held.kind, held.end)), Some((lock::WRITE, 9)));
    // Closing any descriptor of the file releases the locks of the process.
    CLIENT.retain(two.ofd);
    bench.close(two);
    assert_eq!(CLIENT.lock(two.ofd, theirs, range, Wait::No), Ok(()));
    CLIENT.close(two.ofd, other).expect("closed");
    assert_eq!(CLIENT.flock(one.ofd, lock::WRITE, Wait::No), Ok(()));
    bench.close(one);
}

/// The daemon stalls, the end of a lock is given up, another daemon reports it, and only then this
/// daemon goes on: first with the process's next lock.
#[test]
fn an_unlock_that_was_given_up_does_not_end_a_later_lock() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("late", &CLIENT);
    let other = CLIENT.register(1, 1).expect("registered");
    let one = bench.open("f", READ_WRITE | CREATE).expect("made");
    let ends: [&dyn Fn(LockOwner, Opened); 3] = [
        // The close of a descriptor, which the home daemon of the host then reports.
        &|_, two| {
            bench.close(two);
            let namespace = bench.stub.state.namespace.lock().expect("no panic");
            let mut due = Vec::new();
            namespace.host.release_list(&|_| false, &mut |one| due.push(one));
            assert_eq!(due.len(), 1, "it is handed over");
            due.iter().for_each(|one| namespace.host.release_answered(one.entry));
        },
        &|owner, _| {
            let all = LockRange { kind: lock::UNLOCK, start: 0, end: u64::MAX, pid: 1 };
            assert_eq!(CLIENT.lock(one.ofd, owner, all, Wait::No), Err(Errno::EIO));
        },
        &|_, _| assert_eq!(CLIENT.flock(one.ofd, lock::UNLOCK, Wait::No), Err(Errno::EIO)),
    ];
    for (way, end) in ends.into_iter().enumerate() {
        let owner = LockOwner::Process(bench.process);
        let range = LockRange { kind: lock::WRITE, start: 0, end: 9, pid: 1 };
        let take = || match way {
            2 => CLIENT.flock(one.ofd, lock::WRITE, Wait::No),
            _ => CLIENT.lock(one.ofd, owner, range, Wait::No),
        };
        assert_eq!(take(), Ok(()));
        let two = bench.open("f", READ_WRITE).expect("there");
        bench.stub.state.held_until.store(2, Ordering::SeqCst);
        end(owner, two);
        assert_eq!(take(), Ok(()), "way {way}");
        let held = CLIENT.test_lock(one.ofd, LockOwner::Process(other), range).expect("tested");
        assert!(held.is_some(), "way {way}: the end of the earlier lock ended it");
        let all = LockRange { kind: lock::UNLOCK, start: 0, end: u64::MAX, pid: 1 };
        assert_eq!(CLIENT.lock(one.ofd, owner, all, Wait::No), Ok(()));
        assert_eq!(CLIENT.flock(one.ofd, lock::UNLOCK, Wait::No), Ok(()));
    }
    CLIENT.close(one.ofd, bench.process).expect("closed");
}

#[test]
fn a_call_that_gets_no_slot_ends_with_eio() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("slots", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let session = bench.stub.session();
    let slots: Vec<_> = (0..SLOT_COUNT).map(|_| session.claim(1000).expect("a slot")).collect();
    let range = LockRange { kind: lock::WRITE, start: 0, end: 9, pid: 1 };
    let owner = LockOwner::Process(bench.process);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| CLIENT.lock(file.ofd, owner, range, Wait::Yes));
        assert_eq!(CLIENT.lock(file.ofd, owner, range, Wait::No), Err(Errno::EIO));
        assert_eq!(waits.join().expect("it ends"), Err(Errno::EIO));
    });
    drop(slots);
    assert_eq!(CLIENT.lock(file.ofd, owner, range, Wait::No), Ok(()));
    CLIENT.close(file.ofd, bench.process).expect("closed");
}

#[test]
fn a_full_instance_writes_what_fits() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("full", &CLIENT);
    bench.stub.state.namespace.lock().expect("no panic").place_end = 2 << 20;
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let all = pattern(4 << 20);
    let written = CLIENT.write(file.ofd, &all, Position::Current).expect("some fits");
    assert_eq!(written, 2 << 20);
    assert_eq!(CLIENT.write(file.ofd, &all, Position::Current), Err(Errno::ENOSPC));
    assert!(bench.contents(file) == all[..written]);
    assert_eq!(CLIENT.allocate(file.ofd, 0, 0, 4 << 20), Err(Errno::ENOSPC));
    assert_eq!(CLIENT.space().expect("told").bytes_free, 0);
    bench.close(file);
}

#[test]
fn times_that_were_set_survive_the_close_of_a_written_file() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("times", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    CLIENT.write(file.ofd, &pattern(100_000), Position::Current).expect("written");
    let times = Times { accessed: Time::Omit, modified: Time::At(12345) };
    CLIENT.fset_times(file.ofd, times, &ME).expect("set");
    bench.close(file);
    let attributes = bench.stat("f").expect("there");
    assert_eq!((attributes.modified, attributes.size), (12345, 100_000));
    assert_eq!(attributes.mode & mode::TYPE, mode::REGULAR);
}

#[test]
fn data_and_holes_are_found() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("holes", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    CLIENT.write(file.ofd, b"far", Position::At(5 << 20)).expect("written");
    CLIENT.write(file.ofd, b"near", Position::At(0)).expect("written");
    assert_eq!(CLIENT.seek(file.ofd, 0, 3), Ok(0));
    assert_eq!(CLIENT.seek(file.ofd, 0, 4), Ok(4 << 10));
    assert_eq!(CLIENT.seek(file.ofd, 4 << 10, 3), Ok(5 << 20));
    assert_eq!(CLIENT.seek(file.ofd, 5 << 20, 4), Ok((5 << 20) + 3));
    assert_eq!(CLIENT.seek(file.ofd, (5 << 20) + 3, 3), Err(Errno::ENXIO));
    bench.close(file);
}

#[test]
fn an_unnamed_file_can_be_given_a_name() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("unnamed", &CLIENT);
    let temporary = 0o20_200_000;
    let file = bench.open(".", READ_WRITE | temporary).expect("made");
    CLIENT.write(file.ofd, b"text", Position::Current).expect("written");
    let linked = CLIENT.link_open(file.ofd, At::root(b"named"), &ME, &mut PathBuffer::new());
    assert_eq!(linked, Ok(Outcome::Done(())));
    bench.close(file);
    let file = bench.open("named", 0).expect("there");
    assert_eq!(bench.contents(file), b"text");
    bench.close(file);
    assert_eq!(bench.stub.state.namespace.lock().expect("no panic").reaped, 0);
}

#[test]
fn extended_attributes_are_stored_and_removed() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("xattr", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    CLIENT.fset_xattr(file.ofd, (b"user.a", b"value"), 0, &ME).expect("set");
    let mut value = [0; 5];
    assert_eq!(CLIENT.fget_xattr(file.ofd, (b"user.a", &mut []), &ME), Ok(5));
    assert_eq!(CLIENT.fget_xattr(file.ofd, (b"user.a", &mut value), &ME), Ok(5));
    assert_eq!(&value, b"value");
    let short = CLIENT.fget_xattr(file.ofd, (b"user.a", &mut [0; 3]), &ME);
    assert_eq!(short, Err(Errno::ERANGE));
    let none = CLIENT.fget_xattr(file.ofd, (b"user.b", &mut value), &ME);
    assert_eq!(none, Err(Errno::ENODATA));
    bench.close(file);
}

#[test]
fn stat_of_a_known_file_costs_no_message() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("index", &CLIENT);
    bench.make_directory("a");
    let file = bench.open("a/f", READ_WRITE | CREATE).expect("made");
    CLIENT.write(file.ofd, b"text", Position::Current).expect("written");
    let requests = || bench.stub.state.namespace.lock().expect("no panic").requests;
    // The first `stat` reports to the shard what was written.
    assert_eq!(bench.stat("a/f").expect("there").size, 4);
    let before = requests();
    for _ in 0..100 {
        assert_eq!(bench.stat("a/f").expect("there").size, 4);
        assert_eq!(CLIENT.fstat(file.ofd).expect("open").size, 4);
    }
    let reopened = bench.open("a/f", READ_WRITE).expect("there");
    bench.close(reopened);
    assert_eq!(requests(), before);
    bench.close(file);
}

#[test]
fn a_name_that_is_replaced_repeatedly_is_never_missing() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("replaced", &CLIENT);
    bench.close(bench.open("f", READ_WRITE | CREATE).expect("made"));
    bench.make_directory("d");
    bench.symlink("d", "l");
    let namespace = || bench.stub.state.namespace.lock().expect("no panic");
    let replaced = |name: &str| namespace().will_replace(name.as_bytes(), 40);
    let left = || namespace().replaced_left();
    let (f, mut buffer) = (At::root(b"f"), PathBuffer::new());
    replaced("f");
    assert!(bench.stat("f").expect("always there").is_regular());
    assert_eq!(left(), 0);
    replaced("f");
    let opened = bench.open("f", READ_WRITE).expect("always there");
    assert_eq!(left(), 0);
    bench.close(opened);
    replaced("f");
    let opened = bench.open("f", READ_WRITE | CREATE).expect("always there");
    assert_eq!(left(), 0);
    bench.close(opened);
    replaced("f");
    let done = CLIENT.chmod(f, 0o600, Follow::Yes, &ME, &mut buffer);
    assert_eq!((done, left()), (Ok(Outcome::Done(())), 0));
    replaced("f");
    let done = CLIENT.truncate(f, 0, &ME, &mut buffer);
    assert_eq!((done, left()), (Ok(Outcome::Done(())), 0));
    replaced("f");
    let name = (&b"user.a"[..], &b"b"[..]);
    let done = CLIENT.set_xattr(f, Follow::Yes, name, 0, &ME, &mut buffer);
    assert_eq!((done, left()), (Ok(Outcome::Done(())), 0));
    // A link that is replaced, by its own name and in the middle of a path.
    replaced("l");
    let mut target = [0; 8];
    let done = CLIENT.read_link(At::root(b"l"), &mut target, &ME, &mut buffer);
    assert_eq!((done, left()), (Ok(Outcome::Done(1)), 0));
    replaced("l");
    assert!(bench.stat("l/").expect("always there").is_directory());
    assert_eq!(left(), 0);
    replaced("l");
    assert_eq!(bench.stat("l/none").map(drop), Err(Errno::ENOENT));
    assert_eq!(left(), 0);
}

#[test]
fn a_dangling_name_is_no_file() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("nowhere", &CLIENT);
    bench.close(bench.open("f", READ_WRITE | CREATE).expect("made"));
    {
        let mut namespace = bench.stub.state.namespace.lock().expect("no panic");
        namespace.will_replace(b"f", 0);
        namespace.lose(b"f");
    }
    let before = bench.stub.state.namespace.lock().expect("no panic").requests;
    assert_eq!(bench.stat("f").map(drop), Err(Errno::ENOENT));
    assert_eq!(bench.open("f", READ_WRITE).map(drop), Err(Errno::ENOENT));
    let requests = bench.stub.state.namespace.lock().expect("no panic").requests;
    assert!(requests - before < 16, "{} requests", requests - before);
}

#[test]
fn a_restarted_daemon_is_attached_again() {
    static CLIENT: Client = Client::new();
    let mut bench = Bench::new("back", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let all = pattern(50_000);
    CLIENT.write(file.ofd, &all, Position::Current).expect("written");
    bench.stub.stop();
    let client = bench.client;
    let waiting = std::thread::spawn(move || {
        client.make_directory(At::root(b"made-meanwhile"), 0o755, &ME, &mut PathBuffer::new())
    });
    bench.stub.resume();
    assert_eq!(waiting.join().expect("no panic"), Ok(Outcome::Done(())));
    assert!(bench.contents(file) == all);
    bench.close(file);
    assert_eq!(bench.stat("f").expect("there").size, 50_000);
    assert_ne!(bench.stat("made-meanwhile").expect("there").inode, Inode::NONE);
}

/// A daemon comes in the place of a lost one, on the same host and with memory of its own. A program from
/// before, whose open files are not in that memory, gets errors, at once and for good. A new one works.
#[test]
fn a_daemon_with_another_memory_of_the_host_is_not_taken_for_the_one_before() {
    static CLIENT: Client = Client::new();
    static LATER: Client = Client::new();
    let mut bench = Bench::new("anew", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    assert_eq!(CLIENT.write(file.ofd, b"x", Position::Current), Ok(1));
    bench.stub.stop();
    let make =
        |client: &Client| client.make_directory(At::root(b"d"), 0o755, &ME, &mut PathBuffer::new());
    let anew = Stub::start("anew");
    for _ in 0..2 {
        assert_eq!(make(&CLIENT), Err(Errno::EIO));
    }
    let later = Bench::with_stub(anew, &LATER);
    assert_eq!(make(&LATER), Ok(Outcome::Done(())));
    assert_eq!(make(&CLIENT), Err(Errno::EIO));
    assert!(later.stat("d").is_ok());
    drop(later);
}

/// A directory is made, but its maker is told `Busy`; before it asks again, another thread makes one.
#[test]
fn a_change_that_is_repeated_after_busy_keeps_its_identity() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("busy", &CLIENT);
    let put_off = || bench.stub.state.put_off.lock().expect("no panic");
    put_off().is_armed = true;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.make_directory("first"));
        while !put_off().has_begun() && !first.is_finished() {
            std::thread::yield_now();
        }
        bench.make_directory("second");
        first.join().expect("made once");
    });
    assert!(put_off().is_told() && !put_off().is_identity_taken());
}

/// Bytes of a file with copies go to a daemon, although the target is in the memory of this host; and a
/// write has one identity, however often it is repeated.
#[test]
fn a_write_of_a_file_with_copies_is_repeated_as_it_was() {
    const BUSY_TIMES: usize = 3;
    static CLIENT: Client = Client::new();
    let stub = Stub::start("copies");
    stub.begin_copies(BUSY_TIMES);
    let bench = Bench::with_stub(stub, &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let all = pattern(9000);
    assert_eq!(CLIENT.write(file.ofd, &all, Position::Current), Ok(all.len()));
    assert_eq!(CLIENT.write(file.ofd, b"behind", Position::At(9000)), Ok(6));
    let mut read = vec![1; 9200];
    assert_eq!(CLIENT.read(file.ofd, &mut read, Position::At(0)), Ok(9006));
    assert!(read[..9000] == all[..] && &read[9000..9006] == b"behind");
    let copied = bench.stub.state.copied.lock().expect("no panic");
    let copied = copied.as_ref().expect("files have copies");
    assert_eq!(copied.mapped, 0);
    assert!(copied.attempts.len() >= 2, "{:?}", copied.attempts);
    for offsets in copied.attempts.values() {
        assert_eq!(offsets.len(), BUSY_TIMES + 1, "{:?}", copied.attempts);
        assert!(offsets.iter().all(|offset| offset == &offsets[0]), "{offsets:?}");
    }
}

/// Requests of as many threads as there are slots are repeated after `Busy`, until one more request
/// ends that.
#[test]
fn changes_that_are_repeated_leave_slots_to_others() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("repeat", &CLIENT);
    let file = bench.open("f", READ_WRITE | CREATE).expect("made");
    let put_off = || bench.stub.state.put_off.lock().expect("no panic");
    put_off().are_all_busy = true;
    std::thread::scope(|scope| {
        let bench = &bench;
        let makes = |number| scope.spawn(move || bench.make_directory(&format!("d{number}")));
        let all: Vec<_> = (0..SLOT_COUNT + 8).map(makes).collect();
        while put_off().busy.len() < SLOT_COUNT / 2 {
            std::thread::yield_now();
        }
        let range = LockRange { kind: lock::WRITE, start: 0, end: 9, pid: 1 };
        let owner = LockOwner::Process(bench.process);
        assert_eq!(CLIENT.lock(file.ofd, owner, range, Wait::No), Ok(()));
        all.into_iter().for_each(|made| made.join().expect("made"));
    });
    CLIENT.close(file.ofd, bench.process).expect("closed");
}

#[test]
fn many_threads_do_not_disturb_each_other() {
    static CLIENT: Client = Client::new();
    let bench = Bench::new("threads", &CLIENT);
    let shared = bench.open("shared", READ_WRITE | CREATE).expect("made");
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let bench = &bench;
            scope.spawn(move || {
                let path = format!("own-{number}");
                let own = bench.open(&path, READ_WRITE | CREATE).expect("made");
                for round in 0..50u64 {
                    let bytes = vec![number + 1; 10_000];
                    let at = Position::At((round * 8 + u64::from(number)) * 10_000);
                    assert_eq!(CLIENT.write(shared.ofd, &bytes, at), Ok(10_000));
                    assert_eq!(CLIENT.write(own.ofd, &bytes, Position::Current), Ok(10_000));
                }
                assert_eq!(bench.contents(own), vec![number + 1; 500_000]);
                bench.close(own);
            });
        }
    });
    let contents = bench.contents(shared);
    assert_eq!(contents.len(), 4_000_000);
    for (place, block) in contents.chunks(10_000).enumerate() {
        assert!(block.iter().all(|&byte| byte == (place % 8) as u8 + 1), "block {place}");
    }
    bench.close(shared);
}
