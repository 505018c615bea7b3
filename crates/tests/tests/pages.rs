//! Pages that kernels behind mounts keep: reads come from them, of files that are open to write, too, and
//! nobody reads there what was before a write that has returned, however it was written.
//!
//! `ROUNDS` sets how many writes. Needs `/dev/fuse`; maps are made by python3.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use support::mounted::{Mounted, Offered, has_fuse, stands_still};
use support::{Instance, setting, wait_for};

const PAGE: u64 = 4096;

/// By each way of the kernel's requests that there is.
fn each_way(work: impl Fn(&Instance, &str)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if !has_fuse() {
        return;
    }
    let number = NUMBER.fetch_add(1, SeqCst);
    for way in ["classic", "rings"] {
        if way == "classic" || Offered::can_be() {
            let name = format!("pages-{number}-{way}");
            work(&Instance::start(&name, &["--memory", "64MiB"]), way);
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

/// A number that a writer counts up, and the last one whose write has returned.
struct Counter<'a> {
    file: &'a File,
    offset: u64,
    written: AtomicU64,
}

impl Counter<'_> {
    /// Counts, and looks each time by `own`, another open file of the same mount.
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

    /// Nothing older is read than what was written before.
    fn look(&self, by: &File, how: &str) {
        let least = self.written.load(SeqCst);
        let seen = number(by, self.offset);
        assert!(seen >= least, "{how} at {} reads {seen} after {least} was written", self.offset);
    }
}

/// Each counter is counted by its writer while readers look at all, through all open files.
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
fn what_is_written_past_the_pages_of_a_mount_is_not_read_there_as_before() {
    each_way(|instance, way| {
        let mount = Mounted::by(instance, "m", way);
        let path = mount.path("file");
        std::fs::write(&path, [0; 4 * PAGE as usize]).expect("written");
        let (direct, cached) = (open(&path, "w"), open(&path, "r"));
        let written = AtomicU64::new(0);
        let readers: Vec<(&str, File)> = (0..3).map(|_| ("a reader", open(&path, "r"))).collect();
        let counter = Counter { file: &direct, offset: PAGE + 16, written };
        // It can not be read by the writer's own open file.
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
                for round in 1..=setting("ROUNDS", 1200) {
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
fn mounts_that_read_and_write_one_file_see_each_others_bytes_at_once() {
    each_way(|instance, way| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, way));
        let path = |mount: usize| mounts[mount].path("file");
        std::fs::write(path(0), [0; 4 * PAGE as usize]).expect("written");
        // The first keeps pages, and has them still when the second one comes.
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
        // In the same page, and in one of their own.
        for offsets in [[PAGE, PAGE + 8], [0, 2 * PAGE]] {
            put(&first, offsets[0], 0);
            put(&second, offsets[1], 0);
            let counter = |file, offset| Counter { file, offset, written: AtomicU64::new(0) };
            let counters = [counter(&first, offsets[0]), counter(&second, offsets[1])];
            play(&counters, &[&own[0], &own[1]], &readers, setting("ROUNDS", 1200) / 8);
        }
    });
}

#[test]
fn a_writer_that_comes_is_seen_from_his_first_byte_on() {
    each_way(|instance, way| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, way));
        let mut program = instance.worker();
        for round in 0..setting("ROUNDS", 1200) / 30 {
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

/// True if `work` is done while the program that serves the mount stands still.
fn needs_nobody(mount: &Mounted<'_>, work: impl FnOnce() + Send) -> bool {
    // Not by a program: to start one closes copies of open files, and that asks who stands still.
    let pid = Pid::from_raw(mount.pid).expect("a pid");
    let send = |signal| kill_process(pid, signal).expect("sent");
    let (did, done) = channel();
    thread::scope(|scope| {
        send(Signal::STOP);
        wait_for("the program to stand still", || stands_still(mount.pid));
        scope.spawn(move || {
            work();
            let _ = did.send(());
        });
        let outcome = done.recv_timeout(Duration::from_secs(2));
        send(Signal::CONT);
        outcome != Err(RecvTimeoutError::Timeout)
    })
}

#[test]
fn what_was_read_or_written_is_read_again_without_a_request() {
    each_way(|instance, way| {
        let mount = Mounted::by(instance, "m", way);
        let path = mount.path("file");
        let all: Vec<u8> = (0..64 * 1024).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &all).expect("written");
        let look = |file: &File, wanted: &[u8]| {
            let mut bytes = vec![0; wanted.len()];
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert!(bytes == wanted, "other bytes");
        };
        let file = open(&path, "rw");
        look(&file, &all);
        assert!(needs_nobody(&mount, || look(&file, &all)), "what was read");
        let new = vec![7; 32 * 1024];
        file.write_all_at(&new, 0).expect("written");
        assert!(needs_nobody(&mount, || look(&file, &new)), "what was written");
        drop(file);
        // Also by the next one who opens it, though its access time is to follow.
        let before = std::os::unix::fs::MetadataExt::atime_nsec(&path.metadata().expect("there"));
        let file = open(&path, "r");
        assert!(needs_nobody(&mount, || look(&file, &new)), "what was written before");
        let after = std::os::unix::fs::MetadataExt::atime_nsec(&path.metadata().expect("there"));
        assert_ne!(before, after, "the access time");
        // Not by who wants to pass the kernel by.
        let mut direct = OpenOptions::new();
        let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(&path).expect("opened");
        assert!(!needs_nobody(&mount, || look(&direct, &new)), "it was asked to pass the pages");
    });
}

const MAPS: &str = r#"
import mmap, os, sys
def opened(path, flags): return os.open(path, flags)
def mapped(fd): return mmap.mmap(fd, 16384, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
first, second, new = sys.argv[1:4]
def check(what, seen, wanted): assert seen == wanted, f'{what}: {seen} instead of {wanted}'
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
        check(how + ', stored and forced', os.pread(other, 1, 4096 + n)[0], n)
        at[8192 + n] = n
        check(how + ', stored, by the same mount', os.pread(map_fd, 1, 8192 + n)[0], n)
    os.pwrite(other, bytes([200]), 4096)
    os.ftruncate(other, 4096 + 4096)
    os.ftruncate(other, 16384)
    check(how + ', cut by the other', at[8192 + 3], 0)
    at[9000] = 77
    at.close()
    check(how + ', after munmap', os.pread(other, 1, 9000)[0], 77)
    at = mapped(map_fd)
    at[9001] = 78
    os.close(map_fd)
    at.close()
    check(how + ', after the last close', os.pread(other, 1, 9001)[0], 78)
    os.close(other)
each(first, second, 'kept pages')
each(first, second, 'once more')
keep = os.open(second, os.O_RDWR)
each(first, second, 'others write already')
os.close(keep)
fd = os.open(new, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 16384)
each(new, os.path.join(os.path.dirname(second), os.path.basename(new)), 'new')
"#;

#[test]
fn maps_of_one_mount_and_calls_of_another_meet() {
    each_way(|instance, way| {
        let mounts = ["m", "n"].map(|name| Mounted::by(instance, name, way));
        std::fs::write(mounts[0].path("file"), [9; 16384]).expect("written");
        let mut python = Command::new("python3");
        python.arg("-c").arg(MAPS).stdin(Stdio::null());
        python.args([mounts[0].path("file"), mounts[1].path("file"), mounts[0].path("new")]);
        let output = python.output().expect("python3 runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way}: {said}");
    });
}

/// Stores into a mapping, and says nothing of it.
const STORES: &str = r#"
import mmap, os, sys
fd = os.open('/forebay/file', os.O_RDWR)
at = mmap.mmap(fd, 16384, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
for line in sys.stdin:
    at[100] = int(line)
    print('stored', flush=True)
"#;

#[test]
fn what_a_program_stores_shows_on_a_mount_that_read_the_file_long_before() {
    use std::io::{BufRead as _, BufReader, Write as _};
    each_way(|instance, way| {
        let mount = Mounted::by(instance, "m", way);
        std::fs::write(mount.path("file"), [0; 16384]).expect("written");
        let file = open(&mount.path("file"), "r");
        let byte = || {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 100).expect("read");
            byte[0]
        };
        assert_eq!(byte(), 0);
        // Until its kernel remembers no attributes any more: then nothing but its pages is left of it.
        thread::sleep(Duration::from_millis(4600));
        let mut program = instance.program(&["python3", "-c", STORES]);
        let mut program =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut to = program.stdin.take().expect("a pipe");
        let mut from = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        for value in 1..100 {
            writeln!(to, "{value}").expect("it listens");
            assert_eq!(from.next().expect("it answers").expect("a line"), "stored");
            // What was read before is dropped a moment later.
            wait_for("the store to be seen", || byte() == value);
        }
        drop(to);
        assert!(program.wait().expect("it ends").success());
    });
}
