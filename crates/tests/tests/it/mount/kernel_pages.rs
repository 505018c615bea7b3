//! Page caches of the kernels behind mounts: reads are served from them, also of files that are
//! open for writing, and no read returns older bytes than a write that has returned, by whichever
//! path it was made.
//!
//! `TEST_SCALE` multiplies the number of writes. Needs `/dev/fuse`; python3 makes the mappings.

use crate::support::agent::Agent;
use crate::support::mounted::{Mounted, UringEnabled, has_fuse, is_stopped};
use crate::support::{Instance, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const PAGE: u64 = 4096;

/// Runs `work` with each available request transport.
fn with_each_transport(work: impl Fn(&Instance, &str)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if !has_fuse() {
        return;
    }
    let number = NUMBER.fetch_add(1, SeqCst);
    for transport in ["classic", "rings"] {
        if transport == "classic" || UringEnabled::is_available() {
            let name = format!("pages-{number}-{transport}");
            work(&Instance::start(&name, &["--memory", "64MiB"]), transport);
        }
    }
}

fn open(path: &Path, how: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(how.contains('r')).write(how.contains('w'));
    options.open(path).unwrap_or_else(|error| panic!("{}, {how}: {error}", path.display()))
}

fn number(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).expect("read");
    u64::from_le_bytes(bytes)
}

fn put(file: &File, offset: u64, number: u64) {
    file.write_all_at(&number.to_le_bytes(), offset).expect("written");
}

/// A number that a writer increments, and the last value whose write has returned.
struct Counter<'a> {
    file: &'a File,
    offset: u64,
    written: AtomicU64,
}

impl Counter<'_> {
    /// Increments, and checks each time by `own`, another open file of the same mount.
    fn count(&self, own: &File, rounds: u64) {
        for round in 1..=rounds {
            put(self.file, self.offset, round);
            self.written.store(round, SeqCst);
            for (how, file) in [("by another", own), ("by the same", self.file)] {
                let seen = number(file, self.offset);
                assert_eq!(seen, round, "its own bytes, at {}, {how} open file", self.offset);
            }
        }
    }

    /// Asserts that no older value is read than was written before.
    fn look(&self, by: &File, how: &str) {
        let least = self.written.load(SeqCst);
        let seen = number(by, self.offset);
        assert!(seen >= least, "{how} at {} reads {seen} after {least} was written", self.offset);
    }
}

/// A writer increments each counter while readers check all of them through all open files.
fn play(counters: &[Counter<'_>], own: &[&File], readers: &[(&str, File)], rounds: u64) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = counters
            .iter()
            .zip(own)
            .map(|(counter, own)| scope.spawn(move || counter.count(own, rounds)))
            .collect();
        for (how, file) in readers {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    counters.iter().for_each(|counter| counter.look(file, how));
                }
            });
        }
        let ended: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, SeqCst);
        ended.into_iter().for_each(|ended| ended.expect("a writer"));
    });
}

#[test]
fn writes_that_bypass_a_mounts_page_cache_invalidate_it() {
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        let path = mount.path("file");
        std::fs::write(&path, [0; 4 * PAGE as usize]).expect("written");
        let (direct, cached) = (open(&path, "w"), open(&path, "r"));
        let written = AtomicU64::new(0);
        let readers: Vec<(&str, File)> = (0..3).map(|_| ("a reader", open(&path, "r"))).collect();
        let counter = Counter { file: &direct, offset: PAGE + 16, written };
        // The writer's own open file cannot be read.
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for (how, file) in &readers {
                let (counter, is_over) = (&counter, &is_over);
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        counter.look(file, how);
                    }
                });
            }
            let writer = scope.spawn(|| {
                for round in 1..=testkit::rounds(600) {
                    put(&direct, counter.offset, round);
                    counter.written.store(round, SeqCst);
                    assert_eq!(number(&cached, counter.offset), round, "its own bytes");
                }
            });
            let ended = writer.join();
            is_over.store(true, SeqCst);
            ended.expect("a writer");
        });
    });
}

#[test]
fn mounts_that_share_a_file_see_each_others_bytes_at_once() {
    with_each_transport(|instance, transport| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, transport));
        let path = |mount: usize| mounts[mount].path("file");
        std::fs::write(path(0), [0; 4 * PAGE as usize]).expect("written");
        // The first writer's pages are cached, and still are when the second one comes.
        let first = open(&path(0), "rw");
        assert_eq!(number(&first, PAGE), 0);
        let second = open(&path(1), "rw");
        let readers = [
            ("the first", open(&path(0), "r")),
            ("the second", open(&path(1), "r")),
            ("the first, to write, too", open(&path(0), "rw")),
            ("the second, to write, too", open(&path(1), "rw")),
        ];
        let own = [open(&path(0), "r"), open(&path(1), "r")];
        // In the same page, and in a page of their own.
        for offsets in [[PAGE, PAGE + 8], [0, 2 * PAGE]] {
            put(&first, offsets[0], 0);
            put(&second, offsets[1], 0);
            let counter = |file, offset| Counter { file, offset, written: AtomicU64::new(0) };
            let counters = [counter(&first, offsets[0]), counter(&second, offsets[1])];
            play(&counters, &[&own[0], &own[1]], &readers, testkit::rounds(600) / 8);
        }
    });
}

#[test]
fn a_new_writer_is_seen_from_its_first_byte() {
    with_each_transport(|instance, transport| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, transport));
        let mut program = instance.worker();
        for round in 0..testkit::rounds(600) / 30 {
            let name = format!("file{round}");
            let path = |mount: usize| mounts[mount].path(&name);
            std::fs::write(path(0), [0; 2 * PAGE as usize]).expect("written");
            let first = open(&path(0), "rw");
            let counter = Counter { file: &first, offset: 64, written: AtomicU64::new(0) };
            thread::scope(|scope| {
                let writer = scope.spawn(|| counter.count(&first, 40));
                let second = open(&path(1), "w");
                for value in 1..4 {
                    put(&second, PAGE, value);
                    assert_eq!(number(&first, PAGE), value, "round {round}");
                    put(&second, 128, value);
                    assert_eq!(number(&first, 128), value, "round {round}");
                }
                writer.join().expect("the writer");
            });
            for line in ["open h PATH rw", "write h 7 0 100", "close h"] {
                let line = line.replace("PATH", &format!("/forebay/{name}"));
                let answer = program.ask(&line);
                assert!(answer.starts_with("ok"), "{line}: {answer}");
            }
            assert_ne!(number(&first, 64), 40, "round {round}: a program wrote there");
        }
    });
}

/// Continues a stopped process when it is dropped.
struct Continued(Pid);

impl Drop for Continued {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// True if `work` completes while the server of the mount is stopped.
fn completes_while_stopped(mount: &Mounted<'_>, work: impl FnOnce() + Send) -> bool {
    // Not by a command: starting one closes copies of open files, which sends requests to the
    // stopped server.
    let pid = Pid::from_raw(mount.pid).expect("a pid");
    let (did, done) = channel();
    thread::scope(|scope| {
        // Continued in any case: what ends this test closes files of the mount.
        let continued = Continued(pid);
        kill_process(pid, Signal::STOP).expect("sent");
        wait_for("the program to stop", || is_stopped(mount.pid));
        scope.spawn(move || {
            work();
            let _ = did.send(());
        });
        let outcome = done.recv_timeout(Duration::from_secs(8));
        drop(continued);
        outcome != Err(RecvTimeoutError::Timeout)
    })
}

#[test]
fn cached_pages_are_read_again_without_a_request() {
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        let path = mount.path("file");
        let all: Vec<u8> = (0..64 * 1024).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &all).expect("written");
        let look = |file: &File, expected: &[u8]| {
            let mut bytes = vec![0; expected.len()];
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert!(bytes == expected, "other bytes");
        };
        let file = open(&path, "rw");
        look(&file, &all);
        assert!(completes_while_stopped(&mount, || look(&file, &all)), "the bytes read");
        let new = vec![7; 32 * 1024];
        file.write_all_at(&new, 0).expect("written");
        assert!(completes_while_stopped(&mount, || look(&file, &new)), "the written bytes");
        drop(file);
        // Also by a later open, although its access time must be updated.
        let before = std::os::unix::fs::MetadataExt::atime_nsec(&path.metadata().expect("there"));
        let file = open(&path, "r");
        assert!(completes_while_stopped(&mount, || look(&file, &new)), "the bytes written before");
        let after = std::os::unix::fs::MetadataExt::atime_nsec(&path.metadata().expect("there"));
        assert_ne!(before, after, "the access time");
        // Not by direct I/O, which bypasses the page cache.
        let mut direct = OpenOptions::new();
        let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(&path).expect("opened");
        assert!(
            !completes_while_stopped(&mount, || look(&direct, &new)),
            "it bypassed the page cache"
        );
    });
}

/// Also pages of files that were just made, or were empty: 8 bytes at a time are written, then read
/// without a request, by the same open file and by a later one. Writes of a program beside are seen.
#[test]
fn pages_of_new_files_are_read_without_a_request() {
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        let right = |number: u64| (1..=PAGE / 8).map(move |at| (at * 8, at + number));
        std::fs::write(mount.path("empty"), "").expect("made");
        std::fs::write(mount.path("long"), [1; 9000]).expect("made");
        for (name, flags) in [
            ("new", libc::O_CREAT | libc::O_EXCL),
            ("made", libc::O_CREAT),
            ("empty", 0),
            ("long", libc::O_TRUNC),
            ("", libc::O_TMPFILE),
        ] {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags);
            let file = options.open(mount.path(name)).expect("opened");
            right(0).for_each(|(at, value)| put(&file, at, value));
            let look = |file: &File, first: u64| {
                right(first).for_each(|(at, value)| assert_eq!(number(file, at), value, "{name}"));
            };
            look(&file, 0);
            assert!(completes_while_stopped(&mount, || look(&file, 0)), "{name}, {transport}");
            right(7).for_each(|(at, value)| put(&file, at, value));
            assert!(completes_while_stopped(&mount, || look(&file, 7)), "{name}, written again");
            if name.is_empty() {
                continue;
            }
            drop(file);
            let file = open(&mount.path(name), "rw");
            look(&file, 7);
            let path = format!("/forebay/{name}");
            let store =
                "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), bytes([9] * 8), 8)";
            let mut program = instance.program(&["python3", "-c", store, &path]);
            assert!(program.status().expect("python3 runs").success());
            assert_eq!(number(&file, 8), u64::from_le_bytes([9; 8]), "{name}, by a program");
            put(&file, 16, 11);
            assert_eq!((number(&file, 16), number(&file, 24)), (11, 10), "{name}");
        }
    });
}

const MAPS: &str = r#"
import mmap, os, sys
def opened(path, flags): return os.open(path, flags)
def mapped(fd): return mmap.mmap(fd, 16384, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
first, second, new = sys.argv[1:4]
def check(what, seen, expected): assert seen == expected, f'{what}: {seen} instead of {expected}'
def each(a, b, how):
    # A mapping through one mount, calls through the other.
    map_fd = os.open(a, os.O_RDWR)
    at = mapped(map_fd)
    check(how + ', at first', at[0], os.pread(map_fd, 1, 0)[0])
    other = os.open(b, os.O_RDWR)
    for n in range(1, 100):
        os.pwrite(other, bytes([n]), 5)
        check(how + ', written by the other', at[5], n)
        os.pwrite(map_fd, bytes([n]), 6)
        check(how + ', written by the same', at[6], n)
        at[4096 + n] = n
        at.flush()
        check(how + ', stored and flushed', os.pread(other, 1, 4096 + n)[0], n)
        at[8192 + n] = n
        check(how + ', stored, by the same mount', os.pread(map_fd, 1, 8192 + n)[0], n)
    os.pwrite(other, bytes([200]), 4096)
    os.ftruncate(other, 4096 + 4096)
    os.ftruncate(other, 16384)
    check(how + ', truncated by the other', at[8192 + 3], 0)
    at[9000] = 77
    at.close()
    check(how + ', after munmap', os.pread(other, 1, 9000)[0], 77)
    at = mapped(map_fd)
    at[9001] = 78
    os.close(map_fd)
    at.close()
    check(how + ', after the last close', os.pread(other, 1, 9001)[0], 78)
    os.close(other)
each(first, second, 'cached pages')
each(first, second, 'once more')
keep = os.open(second, os.O_RDWR)
each(first, second, 'with another writer')
os.close(keep)
fd = os.open(new, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 16384)
each(new, os.path.join(os.path.dirname(second), os.path.basename(new)), 'new')
"#;

#[test]
fn mappings_on_one_mount_and_calls_on_another_are_coherent() {
    with_each_transport(|instance, transport| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, transport));
        std::fs::write(mounts[0].path("file"), [9; 16384]).expect("written");
        let mut python = Command::new("python3");
        python.arg("-c").arg(MAPS).stdin(Stdio::null());
        python.args([mounts[0].path("file"), mounts[1].path("file"), mounts[0].path("new")]);
        let output = python.output().expect("python3 runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{transport}: {printed}");
    });
}

/// Stores into a mapping, begins their write-back, and truncates the file by an open: what was stored
/// before never reappears, in the file or in the mapping. Such an open of a running program fails and
/// changes nothing.
const TRUNCATED: &str = r#"
import ctypes, errno, mmap, os, shutil, subprocess, sys
path, rounds, BYTES, BLOCK = sys.argv[1], int(sys.argv[2]), 8 << 20, 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, BYTES)
at = mmap.mmap(fd, BYTES)
block, old, new = mmap.mmap(-1, BLOCK), b'o' * BYTES, bytes(BYTES)
ways = {
    'O_WRONLY': os.O_WRONLY, 'O_RDWR': os.O_RDWR, 'O_RDONLY': os.O_RDONLY,
    'O_CREAT': os.O_WRONLY | os.O_CREAT, 'O_APPEND': os.O_WRONLY | os.O_APPEND,
    'O_DIRECT': os.O_RDWR | os.O_DIRECT, '/proc': os.O_RDWR,
}
for round in range(rounds):
    for way, flags in ways.items():
        at[:] = old
        WRITE = 2
        assert libc.sync_file_range(fd, 0, BYTES, WRITE) == 0, ctypes.get_errno()
        name = f'/proc/self/fd/{fd}' if way == '/proc' else path
        other = os.open(name, flags | os.O_TRUNC)
        assert os.fstat(fd).st_size == 0, f'{way}: its length is {os.fstat(fd).st_size}'
        os.ftruncate(fd, BYTES)
        os.close(other)
        assert at[:] == new, f'{way}: old bytes in the mapping, round {round}'
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for offset in range(0, BYTES, BLOCK):
            assert os.preadv(direct, [block], offset) == BLOCK
            assert block[:] == new[:BLOCK], f'{way}: old bytes in the file, round {round}'
        os.close(direct)
os.unlink(path)
at[:] = old
again = os.open(f'/proc/self/fd/{fd}', os.O_RDWR | os.O_TRUNC)
assert os.fstat(fd).st_size == 0, 'a file without a name'
os.ftruncate(again, BYTES)
assert at[:] == new, 'old bytes of a file without a name'
program = path + '-program'
shutil.copy('/bin/sleep', program)
running = subprocess.Popen([program, '60'])
for way, flags in ways.items():
    try:
        raise SystemExit(f'{way}: opened while it runs: {os.open(program, flags | os.O_TRUNC)}')
    except OSError as error:
        assert error.errno == errno.ETXTBSY, f'{way}: {error}'
running.kill()
running.wait()
assert open(program, 'rb').read() == open('/bin/sleep', 'rb').read(), 'a running program was truncated'
"#;

#[test]
fn stores_of_a_mapping_do_not_return_after_a_truncating_open() {
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        let mut python = Command::new("python3");
        python.arg("-c").arg(TRUNCATED).stdin(Stdio::null());
        python.arg(mount.path("file")).arg(testkit::rounds(5).to_string());
        let output = python.output().expect("python3 runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{transport}: {printed}");
    });
}

/// Stores into a mapping without any further call.
const STORES: &str = r#"
import mmap, os, sys
fd = os.open('/forebay/file', os.O_RDWR)
at = mmap.mmap(fd, 16384, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
for line in sys.stdin:
    at[100] = int(line)
    print('stored', flush=True)
"#;

#[test]
fn stores_of_a_program_are_seen_on_a_mount_that_cached_the_file() {
    use std::io::{BufRead as _, BufReader, Write as _};
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        std::fs::write(mount.path("file"), [0; 16384]).expect("written");
        let file = open(&mount.path("file"), "r");
        let byte = || {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 100).expect("read");
            byte[0]
        };
        assert_eq!(byte(), 0);
        // Until the kernel's attributes have expired: then only its pages are left.
        thread::sleep(Duration::from_millis(4600));
        let mut program = instance.program(&["python3", "-c", STORES]);
        let mut program =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut to = program.stdin.take().expect("a pipe");
        let mut from = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        for value in 1..100 {
            writeln!(to, "{value}").expect("it listens");
            assert_eq!(from.next().expect("it answers").expect("a line"), "stored");
            // Cached pages are invalidated a moment later.
            wait_for("the store to be seen", || byte() == value);
        }
        drop(to);
        assert!(program.wait().expect("it ends").success());
    });
}

/// A store that was flushed is a write that has returned.
#[test]
fn flushed_stores_of_a_program_are_seen_on_a_mount_at_once() {
    with_each_transport(|instance, transport| {
        let mount = Mounted::by(instance, "m", transport);
        std::fs::write(mount.path("file"), [0; PAGE as usize]).expect("written");
        // Opened before the program, so its kernel has pages.
        let file = open(&mount.path("file"), "r");
        let mut program = Agent::of(instance, "stores");
        program.ok("open w file -");
        program.ok("map w 4096 w");
        let (mut wrong, is_over) = (None, AtomicBool::new(false));
        thread::scope(|scope| {
            // So that it has a page at any time.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        number(&file, 16);
                    }
                });
            }
            for round in 1..=testkit::rounds(120) {
                let value = round % 251;
                if program.ask(&format!("poke w 16 {value}")).starts_with('!') {
                    wrong = Some((round, None));
                    break;
                }
                let seen = number(&file, 16);
                if seen != value {
                    wrong = Some((round, Some(seen)));
                    break;
                }
            }
            is_over.store(true, SeqCst);
        });
        assert_eq!(wrong, None, "{transport}: the round, and what was read in it");
    });
}
