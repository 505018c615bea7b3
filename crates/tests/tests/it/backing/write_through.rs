//! Directories with writeback mode `through`: when a close or a sync returns, the data is in the
//! backing store or the call reports why not; by preloaded programs and on mounts. The backing
//! store is full, read-only or hangs; the writer, daemons and programs are killed meanwhile.

use crate::support::backing::{Backing, in_instance, printed, shell};
use crate::support::mounted::{Mounted, has_ended, has_fuse};
use crate::support::tier::{Hanging, Small, writer};
use crate::support::{Instance, in_time, kill, skip, text, wait_for};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Common beginning of all programs. `backing`: the current contents of a name in the backing
/// store.
const HEAD: &str = r#"
import os, sys, threading
def in_backing(name):
    try:
        with open(os.path.join(sys.argv[1], name), 'rb') as file:
            return file.read()
    except FileNotFoundError:
        return None
def new(name):
    return os.open(name, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o640)
def outcome(call, *words):
    try:
        call(*words)
        return 'done'
    except OSError as error:
        return os.strerror(error.errno)
def report(*words):
    print(*words, flush=True)
"#;

fn start(name: &str, daemons: &str, backing: &Path, more: &[&str]) -> Instance {
    let backing = backing.to_str().expect("letters");
    let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "64MiB", "--backing", backing];
    let options: Vec<_> = options.iter().chain(more).copied().collect();
    Instance::start(name, &options)
}

const THROUGH: [&str; 2] = ["--writeback", "through"];

/// A Python program in the instance, preloaded or on a mount.
fn program(instance: &Instance, by: Option<&Mounted<'_>>, backing: &Path, script: &str) -> Command {
    let script = format!("{HEAD}{script}");
    let words = ["python3", "-c", &script, backing.to_str().expect("letters")];
    match by {
        Some(mounted) => {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(&mounted.at);
            command
        }
        None => {
            let cd = ["bash", "-ec", "cd /forebay; exec \"$@\"", "bash"];
            instance.program(&[&cd[..], &words[..]].concat())
        }
    }
}

fn run(instance: &Instance, by: Option<&Mounted<'_>>, backing: &Path, script: &str) -> String {
    let mut command = program(instance, by, backing, script);
    printed(command.output().expect("it runs"), script)
}

/// A program in the background; the test waits for the line that it prints.
struct BackgroundProgram(Child);

impl BackgroundProgram {
    fn start(mut command: Command) -> BackgroundProgram {
        BackgroundProgram(command.stdout(Stdio::piped()).spawn().expect("it runs"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let from = self.0.stdout.as_mut().expect("a pipe");
        // Byte by byte, because a later reader needs the bytes after the line.
        BufReader::with_capacity(1, from).read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    fn end(self) -> Output {
        self.0.wait_with_output().expect("its end")
    }
}

fn has_temporary_names(backing: &Path) -> bool {
    !shell(backing, "find . -name '.forebay-*'").is_empty()
}

/// Closes and syncs of all kinds.
const CALLS: &str = r#"
os.makedirs('sub/deep')
for number in range(4, 8):
    name = f'sub/deep/f{number}'
    file = new(name)
    os.write(file, b'synced' * number * 1000)
    os.fsync(file)
    assert in_backing(name) == b'synced' * number * 1000, name
    os.write(file, b'more')
    os.fdatasync(file)
    assert in_backing(name) == b'synced' * number * 1000 + b'more', name
    os.pwrite(file, b'over', 0)
    os.close(file)
    assert in_backing(name)[:4] == b'over', name
# Each descriptor of one open file.
file = new('twice')
other = os.dup(file)
os.write(file, b'one')
os.close(file)
assert in_backing('twice') == b'one'
os.write(other, b'two')
os.close(other)
assert in_backing('twice') == b'onetwo'
# Renamed over an existing file before it is closed.
with open('old', 'w') as file:
    file.write('old')
assert in_backing('old') == b'old'
file = new('new')
os.write(file, b'new')
os.rename('new', 'old')
os.close(file)
assert in_backing('old') == b'new' and in_backing('new') is None, (in_backing('old'), in_backing('new'))
file = os.open('old', os.O_RDWR)
os.write(file, b'NEW')
os.rename('old', 'sub/old')
os.fsync(file)
assert in_backing('sub/old') == b'NEW' and in_backing('old') is None
os.close(file)
# Truncated, and longer than before.
os.truncate('sub/deep/f7', 5)
file = os.open('sub/deep/f7', os.O_WRONLY | os.O_APPEND)
os.write(file, b'x')
os.close(file)
assert in_backing('sub/deep/f7') == b'overex', in_backing('sub/deep/f7')
file = os.open('sub/deep/f6', os.O_RDWR)
os.ftruncate(file, 3)
os.close(file)
assert in_backing('sub/deep/f6') == b'ove'
# Several open files of one file: each close writes back its own data.
one, two = new('both'), os.open('both', os.O_RDWR)
os.pwrite(one, b'1', 0)
os.pwrite(two, b'2', 1)
os.close(two)
assert in_backing('both')[1:2] == b'2'
os.pwrite(one, b'3', 2)
os.close(one)
assert in_backing('both') == b'123'
# A file without a name has nothing to wait for.
file = new('gone')
os.write(file, b'gone')
os.remove('gone')
os.fsync(file)
os.close(file)
# The file gets its name later.
file = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.write(file, b'named')
os.link(f'/proc/self/fd/{file}', 'named', src_dir_fd=0, follow_symlinks=True)
os.close(file)
assert in_backing('named') == b'named'
# By a mapping.
import mmap
file = new('mapped')
os.ftruncate(file, 8192)
with mmap.mmap(file, 8192) as map:
    map[5000:5003] = b'abc'
    map.flush()
    os.fsync(file)
    assert in_backing('mapped')[5000:5003] == b'abc'
os.close(file)
# Many at the same time.
def work(number):
    for turn in range(3):
        name = f't{number}-{turn}'
        file = new(name)
        os.write(file, name.encode())
        os.close(file)
        if in_backing(name) != name.encode():
            wrong.append(name)
wrong = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert wrong == [], wrong
report('done')
"#;

#[test]
fn a_closed_or_synced_file_is_in_the_backing_store() {
    for daemons in ["1", "3"] {
        let backing = Backing::new();
        let instance = start(&format!("through{daemons}"), daemons, backing.dir.path(), &THROUGH);
        assert_eq!(run(&instance, None, backing.dir.path(), CALLS), "done\n");
        wait_for("the removed file", || !has_temporary_names(backing.dir.path()));
    }
}

#[test]
fn a_file_closed_or_synced_on_a_mount_is_in_the_backing_store() {
    if !has_fuse() {
        return;
    }
    for (daemons, way) in [("1", "classic"), ("2", "auto")] {
        let backing = Backing::new();
        let instance = start(&format!("throughm{way}"), daemons, backing.dir.path(), &THROUGH);
        let mounted = Mounted::by(&instance, "m", way);
        assert_eq!(run(&instance, Some(&mounted), backing.dir.path(), CALLS), "done\n");
    }
}

const SOME: &str = r#"
os.mkdir('d')
os.setxattr('d', 'user.forebay.writeback', b'through')
os.mkdir('d/inherits')
for name in ['d/f', 'd/inherits/f']:
    with open(name, 'w') as file:
        file.write(name)
    assert in_backing(name) == name.encode(), name
with open('moved', 'w') as file:
    file.write('later')
assert os.getxattr('d/inherits', 'user.forebay.writeback') == b'through'
assert in_backing('moved') is None
# The mode of the directory of its name at the open applies.
os.rename('moved', 'd/moved')
with open('d/moved', 'a') as file:
    file.write('!')
assert in_backing('d/moved') == b'later!', in_backing('d/moved')
# Nothing was written, so the close does not wait, also where writeback is impossible.
os.close(os.open('d/f', os.O_RDWR))
report('done')
"#;

/// The mode of one directory, while all others are written back at the end only.
#[test]
fn write_through_belongs_to_a_directory_and_is_inherited() {
    let by_mount = [false, true];
    for is_mounted in by_mount.into_iter().filter(|is_mounted| !is_mounted || has_fuse()) {
        let backing = Backing::new();
        let end = ["--writeback", "end"];
        let instance = start(&format!("some{is_mounted}"), "2", backing.dir.path(), &end);
        let mounted = is_mounted.then(|| Mounted::new(&instance, "m"));
        assert_eq!(run(&instance, mounted.as_ref(), backing.dir.path(), SOME), "done\n");
        assert!(!backing.path("moved").exists(), "only the awaited data");
    }
}

const FULL: &str = r#"
file = new('large')
data = os.urandom(3_000_000)
assert os.write(file, data) == len(data)
report(outcome(os.fsync, file))
report(outcome(os.close, file))
with open('fits', 'w') as file:
    file.write('fits')
report(in_backing('fits'))
"#;

#[test]
fn close_and_sync_report_what_cannot_be_written_back() {
    let Some(small) = Small::new("2M") else {
        return skip("no file systems can be mounted here (root is needed)");
    };
    let instance = start("sfull", "1", small.path(), &THROUGH);
    let mounted = has_fuse().then(|| Mounted::new(&instance, "m"));
    let printed = "No space left on device\nNo space left on device\nb'fits'\n";
    for by in [None, mounted.as_ref()].into_iter().take(1 + usize::from(mounted.is_some())) {
        assert_eq!(run(&instance, by, small.path(), FULL), printed);
        run(&instance, by, small.path(), "os.remove('fits')");
    }
    assert!(small.mount(&["-o", "remount,ro"]), "read-only");
    let close = "file = new('other')\nos.write(file, b'other')\nreport(outcome(os.close, file))";
    assert_eq!(run(&instance, None, small.path(), close), "Input/output error\n");
    assert!(small.mount(&["-o", "remount,rw,size=16M"]), "larger");
    // The data is still there and is written back without a request.
    wait_for("writeback of the refused file", || {
        let size = fs::metadata(small.path().join("large")).map_or(0, |large| large.len());
        size == 3_000_000 && small.path().join("other").exists()
    });
    assert_eq!(run(&instance, None, small.path(), close), "done\n");
}

const CLOSING: &str = r#"
file = new(sys.argv[2] if len(sys.argv) > 2 else 'f')
os.write(file, b'written')
report('closing')
report(outcome(os.close, file))
"#;

/// An instance over a file system that hangs after it answered at first.
fn with_hanging_backing(
    name: &str,
    work: impl FnOnce(&Instance, Option<&Mounted<'_>>, &Mounted<'_>),
) {
    if !has_fuse() {
        return;
    }
    let lower = Instance::start(&format!("low{name}"), &["--memory", "64MiB"]);
    let lowest = Mounted::by(&lower, "low", "classic");
    let more = ["--writeback", "through", "--timeout", "3s"];
    let instance = start(&format!("over{name}"), "2", &lowest.at, &more);
    run(&instance, None, &lowest.at, "with open('before', 'w') as file: file.write('before')");
    let mounted = Mounted::new(&instance, "m");
    work(&instance, Some(&mounted), &lowest);
}

#[test]
fn a_close_on_a_hanging_backing_store_times_out_and_blocks_nobody() {
    with_hanging_backing("time", |instance, mounted, lowest| {
        let hanging = Hanging::new(lowest);
        // More closes than the mount has threads.
        let many = "
def work(number):
    file = new(f'm{number}')
    os.write(file, b'x')
    answers.append(outcome(os.close, file))
answers = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
[thread.start() for thread in threads]
report('closing')
[thread.join() for thread in threads]
report(sorted(set(answers)))";
        let mut by_mount = BackgroundProgram::start(program(instance, mounted, &lowest.at, many));
        let mut preloaded = BackgroundProgram::start(program(instance, None, &lowest.at, CLOSING));
        assert_eq!((by_mount.line(), preloaded.line()), ("closing".into(), "closing".into()));
        let others = "
os.mkdir('others') if not os.path.exists('others') else None
os.setxattr('others', 'user.forebay.writeback', b'close')
with open('others/f', 'w') as file: file.write('others')
report(open('others/f').read(), open('m0').read())";
        for by in [None, mounted] {
            let read = in_time("others", || run(instance, by, &lowest.at, others));
            assert_eq!(read, "others x\n");
        }
        let ends = in_time("the ends", || (text(&preloaded.end().stdout), by_mount.end()));
        assert_eq!(ends.0, "Input/output error\n");
        assert_eq!(text(&ends.1.stdout), "['Input/output error']\n");
        drop(hanging);
        wait_for("writeback of the refused file", || {
            fs::read(lowest.path("f")).is_ok_and(|read| read == b"written")
                && fs::read(lowest.path("m39")).is_ok()
        });
    });
}

#[test]
fn waiting_closes_continue_when_the_backing_store_answers_and_changes_meanwhile_are_right() {
    with_hanging_backing("goes", |instance, mounted, lowest| {
        for (number, by) in [None, mounted].into_iter().enumerate() {
            let hanging = Hanging::new(lowest);
            let mut waiting: Vec<BackgroundProgram> = ["renamed", "removed", "stays"]
                .map(|name| {
                    let mut command = program(instance, by, &lowest.at, CLOSING);
                    command.arg(format!("{name}{number}"));
                    BackgroundProgram::start(command)
                })
                .into();
            waiting.iter_mut().for_each(|one| assert_eq!(one.line(), "closing"));
            let change = format!("mv renamed{number} name{number}; rm removed{number}");
            in_time("changes", || in_instance(instance, &change));
            drop(hanging);
            for one in waiting {
                let end = in_time("its end", || one.end());
                assert_eq!(text(&end.stdout), "done\n");
            }
            let stays = lowest.path(&format!("stays{number}"));
            assert_eq!(fs::read(stays).expect("it was closed"), b"written");
            wait_for("its new name, and that alone", || {
                let name = fs::read(lowest.path(&format!("name{number}")));
                name.is_ok_and(|read| read == b"written")
                    && !lowest.path(&format!("renamed{number}")).exists()
                    && !lowest.path(&format!("removed{number}")).exists()
            });
        }
    });
}

#[test]
fn a_program_killed_in_a_waiting_close_ends_and_its_data_is_written_back() {
    with_hanging_backing("kill", |instance, mounted, lowest| {
        let hanging = Hanging::new(lowest);
        for (number, by) in [None, mounted].into_iter().enumerate() {
            let script = format!(
                "file = new('k{number}')\nos.write(file, b'kept')\nreport(os.getpid())\nos.fsync(file)"
            );
            let mut waiting = BackgroundProgram::start(program(instance, by, &lowest.at, &script));
            // `forebay run` is another process.
            let pid = waiting.line().parse().expect("a number");
            kill(pid);
            // On a mount the end of the process closes the file, and that close waits like any
            // other.
            wait_for("the end of the program", || has_ended(pid));
            let _ = waiting.end();
        }
        drop(hanging);
        wait_for("writeback of the program's data", || {
            [0, 1].iter().all(|number| {
                fs::read(lowest.path(&format!("k{number}"))).is_ok_and(|read| read == b"kept")
            })
        });
    });
}

/// While programs close files all the time, the writer and daemons are killed and started again: no
/// close returns success before its data is in the backing store.
#[test]
fn kills_of_writer_and_daemons_during_a_waiting_close_lose_nothing() {
    let backing = Backing::new();
    let instance = start("killed", "2", backing.dir.path(), &THROUGH);
    let work = "
for number in range(int(sys.argv[2])):
    name = f'{sys.argv[3]}-{number}'
    file = new(name)
    os.write(file, name.encode())
    os.close(file)
    assert in_backing(name) == name.encode(), name
report('done')";
    let count = testkit::rounds(30).to_string();
    let mut workers: Vec<BackgroundProgram> = ["a", "b", "c"]
        .map(|name| {
            let mut command = program(&instance, None, backing.dir.path(), work);
            command.args([&count, name]);
            BackgroundProgram::start(command)
        })
        .into();
    let mut turn = 0;
    while !workers.iter_mut().all(|one| one.0.try_wait().expect("ours").is_some()) && turn < 6 {
        let reached = turn * 6;
        wait_for("some of them", || {
            backing.path(&format!("a-{reached}")).exists()
                || workers[0].0.try_wait().expect("ours").is_some()
        });
        if turn % 3 == 2 {
            let daemon = instance.daemon(turn % 2);
            daemon.kill();
            daemon.wait();
        } else {
            kill(writer(&instance));
        }
        instance.start_again();
        turn += 1;
    }
    for one in workers {
        let end = in_time("a program", || one.end());
        assert_eq!(printed(end, "a program"), "done\n");
    }
}

/// The default behaves the same.
#[test]
fn a_discarding_stop_ends_waiting_closes() {
    with_hanging_backing("stop", |instance, _, lowest| {
        let hanging = Hanging::new(lowest);
        let mut waiting = BackgroundProgram::start(program(instance, None, &lowest.at, CLOSING));
        assert_eq!(waiting.line(), "closing");
        let stop = ["--discard", "--timeout", "5s"];
        let stopped = in_time("stop", || instance.command("stop").args(stop).output());
        printed(stopped.expect("forebay runs"), "stop");
        let end = in_time("its end", || waiting.end());
        assert_eq!(text(&end.stdout), "Input/output error\n");
        drop(hanging);
        instance.start_again();
    });
}
