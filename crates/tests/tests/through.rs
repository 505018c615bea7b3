//! Directories that are saved `through`: who closes or syncs what he wrote finds it below, or is told why
//! not; by preloaded programs and on mounts; what lies below is full, read-only or answers nobody; the
//! writer, daemons and programs are killed meanwhile.

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use support::below::{Below, above, said, shell};
use support::mounted::{Mounted, has_ended, has_fuse};
use support::tier::{Hanging, Small, writer};
use support::{Instance, in_time, kill, setting, text, wait_for};

/// What each program begins with. `below`: what lies below by a name, as of now.
const HEAD: &str = r#"
import os, sys, threading
def below(name):
    try:
        with open(os.path.join(sys.argv[1], name), 'rb') as file:
            return file.read()
    except FileNotFoundError:
        return None
def new(name):
    return os.open(name, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o640)
def said(call, *words):
    try:
        call(*words)
        return 'done'
    except OSError as error:
        return os.strerror(error.errno)
def say(*words):
    print(*words, flush=True)
"#;

fn start(name: &str, daemons: &str, below: &Path, more: &[&str]) -> Instance {
    let below = below.to_str().expect("letters");
    let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "64MiB", "--backing", below];
    let options: Vec<_> = options.iter().chain(more).copied().collect();
    Instance::start(name, &options)
}

const THROUGH: [&str; 2] = ["--write-back", "through"];

/// A Python program in the instance, by preloading or by a mount.
fn program(instance: &Instance, by: Option<&Mounted<'_>>, below: &Path, script: &str) -> Command {
    let script = format!("{HEAD}{script}");
    let words = ["python3", "-c", &script, below.to_str().expect("letters")];
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

fn run(instance: &Instance, by: Option<&Mounted<'_>>, below: &Path, script: &str) -> String {
    let mut command = program(instance, by, below, script);
    said(command.output().expect("it runs"), script)
}

/// A program that goes on beside the test; the line that it says is waited for.
struct Beside(Child);

impl Beside {
    fn start(mut command: Command) -> Beside {
        Beside(command.stdout(Stdio::piped()).spawn().expect("it runs"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let from = self.0.stdout.as_mut().expect("a pipe");
        // A byte at a time: what comes next is another's to read.
        BufReader::with_capacity(1, from).read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    fn end(self) -> Output {
        self.0.wait_with_output().expect("its end")
    }
}

fn has_temporary_names(below: &Path) -> bool {
    !shell(below, "find . -name '.forebay-*'").is_empty()
}

/// Closes and syncs of all kinds.
const CALLS: &str = r#"
os.makedirs('sub/deep')
for number in range(4, 8):
    name = f'sub/deep/f{number}'
    file = new(name)
    os.write(file, b'synced' * number * 1000)
    os.fsync(file)
    assert below(name) == b'synced' * number * 1000, name
    os.write(file, b'more')
    os.fdatasync(file)
    assert below(name) == b'synced' * number * 1000 + b'more', name
    os.pwrite(file, b'over', 0)
    os.close(file)
    assert below(name)[:4] == b'over', name
# Each descriptor of one open file.
file = new('twice')
other = os.dup(file)
os.write(file, b'one')
os.close(file)
assert below('twice') == b'one'
os.write(other, b'two')
os.close(other)
assert below('twice') == b'onetwo'
# Renamed before it is closed, over another that was there.
with open('old', 'w') as file:
    file.write('old')
assert below('old') == b'old'
file = new('new')
os.write(file, b'new')
os.rename('new', 'old')
os.close(file)
assert below('old') == b'new' and below('new') is None, (below('old'), below('new'))
file = os.open('old', os.O_RDWR)
os.write(file, b'NEW')
os.rename('old', 'sub/old')
os.fsync(file)
assert below('sub/old') == b'NEW' and below('old') is None
os.close(file)
# Cut, and longer than it was.
os.truncate('sub/deep/f7', 5)
file = os.open('sub/deep/f7', os.O_WRONLY | os.O_APPEND)
os.write(file, b'x')
os.close(file)
assert below('sub/deep/f7') == b'overex', below('sub/deep/f7')
file = os.open('sub/deep/f6', os.O_RDWR)
os.ftruncate(file, 3)
os.close(file)
assert below('sub/deep/f6') == b'ove'
# Several open files of one file: each finds what it wrote.
one, two = new('both'), os.open('both', os.O_RDWR)
os.pwrite(one, b'1', 0)
os.pwrite(two, b'2', 1)
os.close(two)
assert below('both')[1:2] == b'2'
os.pwrite(one, b'3', 2)
os.close(one)
assert below('both') == b'123'
# Without a name there is nothing to wait for.
file = new('gone')
os.write(file, b'gone')
os.remove('gone')
os.fsync(file)
os.close(file)
# And a name that is given later.
file = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.write(file, b'named')
os.link(f'/proc/self/fd/{file}', 'named', src_dir_fd=0, follow_symlinks=True)
os.close(file)
assert below('named') == b'named'
# By a mapping.
import mmap
file = new('mapped')
os.ftruncate(file, 8192)
with mmap.mmap(file, 8192) as map:
    map[5000:5003] = b'abc'
    map.flush()
    os.fsync(file)
    assert below('mapped')[5000:5003] == b'abc'
os.close(file)
# Many at a time.
def work(number):
    for turn in range(3):
        name = f't{number}-{turn}'
        file = new(name)
        os.write(file, name.encode())
        os.close(file)
        if below(name) != name.encode():
            wrong.append(name)
wrong = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert wrong == [], wrong
say('done')
"#;

#[test]
fn what_is_closed_or_synced_lies_below_then() {
    for daemons in ["1", "3"] {
        let below = Below::new();
        let instance = start(&format!("through{daemons}"), daemons, below.place.path(), &THROUGH);
        assert_eq!(run(&instance, None, below.place.path(), CALLS), "done\n");
        wait_for("what is removed", || !has_temporary_names(below.place.path()));
    }
}

#[test]
fn so_it_is_on_a_mount() {
    if !has_fuse() {
        return;
    }
    for (daemons, way) in [("1", "classic"), ("2", "auto")] {
        let below = Below::new();
        let instance = start(&format!("throughm{way}"), daemons, below.place.path(), &THROUGH);
        let mounted = Mounted::by(&instance, "m", way);
        assert_eq!(run(&instance, Some(&mounted), below.place.path(), CALLS), "done\n");
    }
}

const SOME: &str = r#"
os.mkdir('d')
os.setxattr('d', 'user.forebay.write_back', b'through')
os.mkdir('d/inherits')
for name in ['d/f', 'd/inherits/f']:
    with open(name, 'w') as file:
        file.write(name)
    assert below(name) == name.encode(), name
with open('moved', 'w') as file:
    file.write('later')
assert os.getxattr('d/inherits', 'user.forebay.write_back') == b'through'
assert below('moved') is None
# By the name that it has when it is opened.
os.rename('moved', 'd/moved')
with open('d/moved', 'a') as file:
    file.write('!')
assert below('d/moved') == b'later!', below('d/moved')
# Nothing was written: nothing is waited for, also where nothing can be saved.
os.close(os.open('d/f', os.O_RDWR))
say('done')
"#;

/// Where others are saved at the end alone, it is one directory's.
#[test]
fn it_is_a_directorys_and_inherited() {
    let by_mount = [false, true];
    for is_mounted in by_mount.into_iter().filter(|is_mounted| !is_mounted || has_fuse()) {
        let below = Below::new();
        let end = ["--write-back", "end"];
        let instance = start(&format!("some{is_mounted}"), "2", below.place.path(), &end);
        let mounted = is_mounted.then(|| Mounted::new(&instance, "m"));
        assert_eq!(run(&instance, mounted.as_ref(), below.place.path(), SOME), "done\n");
        assert!(!below.path("moved").exists(), "only what is waited for");
    }
}

const FULL: &str = r#"
file = new('large')
data = os.urandom(3_000_000)
assert os.write(file, data) == len(data)
say(said(os.fsync, file))
say(said(os.close, file))
with open('fits', 'w') as file:
    file.write('fits')
say(below('fits'))
"#;

#[test]
fn what_can_not_be_saved_is_said_by_close_and_sync() {
    let Some(small) = Small::new("2M") else { return eprintln!("no mounts: nothing stated") };
    let instance = start("sfull", "1", small.path(), &THROUGH);
    let mounted = has_fuse().then(|| Mounted::new(&instance, "m"));
    let said = "No space left on device\nNo space left on device\nb'fits'\n";
    for by in [None, mounted.as_ref()].into_iter().take(1 + usize::from(mounted.is_some())) {
        assert_eq!(run(&instance, by, small.path(), FULL), said);
        run(&instance, by, small.path(), "os.remove('fits')");
    }
    assert!(small.mount(&["-o", "remount,ro"]), "read-only");
    let close = "file = new('other')\nos.write(file, b'other')\nsay(said(os.close, file))";
    assert_eq!(run(&instance, None, small.path(), close), "Input/output error\n");
    assert!(small.mount(&["-o", "remount,rw,size=16M"]), "larger");
    // It is still there, and saved without being asked for.
    wait_for("what was refused", || {
        let size = fs::metadata(small.path().join("large")).map_or(0, |large| large.len());
        size == 3_000_000 && small.path().join("other").exists()
    });
    assert_eq!(run(&instance, None, small.path(), close), "done\n");
}

const CLOSING: &str = r#"
file = new(sys.argv[2] if len(sys.argv) > 2 else 'f')
os.write(file, b'written')
say('closing')
say(said(os.close, file))
"#;

/// An instance over a file system that stands still, after that has answered.
fn over_hanging(name: &str, work: impl FnOnce(&Instance, Option<&Mounted<'_>>, &Mounted<'_>)) {
    if !has_fuse() {
        return;
    }
    let lower = Instance::start(&format!("low{name}"), &["--memory", "64MiB"]);
    let lowest = Mounted::by(&lower, "low", "classic");
    let more = ["--write-back", "through", "--timeout", "3s"];
    let instance = start(&format!("over{name}"), "2", &lowest.at, &more);
    run(&instance, None, &lowest.at, "with open('before', 'w') as file: file.write('before')");
    let mounted = Mounted::new(&instance, "m");
    work(&instance, Some(&mounted), &lowest);
}

#[test]
fn who_waits_for_what_does_not_answer_is_told_in_time_and_holds_up_nobody() {
    over_hanging("time", |instance, mounted, lowest| {
        let hanging = Hanging::new(lowest);
        // More than there are threads, on the mount.
        let many = "
def work(number):
    file = new(f'm{number}')
    os.write(file, b'x')
    answers.append(said(os.close, file))
answers = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
[thread.start() for thread in threads]
say('closing')
[thread.join() for thread in threads]
say(sorted(set(answers)))";
        let mut by_mount = Beside::start(program(instance, mounted, &lowest.at, many));
        let mut preloaded = Beside::start(program(instance, None, &lowest.at, CLOSING));
        assert_eq!((by_mount.line(), preloaded.line()), ("closing".into(), "closing".into()));
        let others = "
os.mkdir('others') if not os.path.exists('others') else None
os.setxattr('others', 'user.forebay.write_back', b'close')
with open('others/f', 'w') as file: file.write('others')
say(open('others/f').read(), open('m0').read())";
        for by in [None, mounted] {
            let read = in_time("others", || run(instance, by, &lowest.at, others));
            assert_eq!(read, "others x\n");
        }
        let ends = in_time("their ends", || (text(&preloaded.end().stdout), by_mount.end()));
        assert_eq!(ends.0, "Input/output error\n");
        assert_eq!(text(&ends.1.stdout), "['Input/output error']\n");
        drop(hanging);
        wait_for("what was refused", || {
            fs::read(lowest.path("f")).is_ok_and(|read| read == b"written")
                && fs::read(lowest.path("m39")).is_ok()
        });
    });
}

#[test]
fn who_waits_goes_on_when_it_answers_and_what_is_renamed_or_removed_meanwhile_is_right() {
    over_hanging("goes", |instance, mounted, lowest| {
        for (number, by) in [None, mounted].into_iter().enumerate() {
            let hanging = Hanging::new(lowest);
            let mut waiting: Vec<Beside> = ["renamed", "removed", "stays"]
                .map(|name| {
                    let mut command = program(instance, by, &lowest.at, CLOSING);
                    command.arg(format!("{name}{number}"));
                    Beside::start(command)
                })
                .into();
            waiting.iter_mut().for_each(|one| assert_eq!(one.line(), "closing"));
            let change = format!("mv renamed{number} name{number}; rm removed{number}");
            in_time("changes", || above(instance, &change));
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
fn who_is_killed_while_he_waits_is_gone_and_what_he_wrote_is_saved() {
    over_hanging("kill", |instance, mounted, lowest| {
        let hanging = Hanging::new(lowest);
        for (number, by) in [None, mounted].into_iter().enumerate() {
            let script = format!(
                "file = new('k{number}')\nos.write(file, b'kept')\nsay(os.getpid())\nos.fsync(file)"
            );
            let mut waiting = Beside::start(program(instance, by, &lowest.at, &script));
            // `forebay run` has a process of its own.
            let pid = waiting.line().parse().expect("a number");
            kill(pid);
            // On a mount his end closes the file, which waits, too: as long as any close.
            wait_for("his end", || has_ended(pid));
            let _ = waiting.end();
        }
        drop(hanging);
        wait_for("what he wrote", || {
            [0, 1].iter().all(|number| {
                fs::read(lowest.path(&format!("k{number}"))).is_ok_and(|read| read == b"kept")
            })
        });
    });
}

/// Beside programs that close files all the time the writer and daemons are killed and started again: no
/// close says that it is done before it is.
#[test]
fn the_writer_and_daemons_may_be_killed_while_somebody_waits() {
    let below = Below::new();
    let instance = start("killed", "2", below.place.path(), &THROUGH);
    let work = "
for number in range(int(sys.argv[2])):
    name = f'{sys.argv[3]}-{number}'
    file = new(name)
    os.write(file, name.encode())
    os.close(file)
    assert below(name) == name.encode(), name
say('done')";
    let count = setting("THROUGH", 60).to_string();
    let mut workers: Vec<Beside> = ["a", "b", "c"]
        .map(|name| {
            let mut command = program(&instance, None, below.place.path(), work);
            command.args([&count, name]);
            Beside::start(command)
        })
        .into();
    let mut turn = 0;
    while !workers.iter_mut().all(|one| one.0.try_wait().expect("ours").is_some()) && turn < 6 {
        let reached = turn * 6;
        wait_for("some of them", || {
            below.path(&format!("a-{reached}")).exists()
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
        assert_eq!(said(end, "a program"), "done\n");
    }
}

/// As it is where it is not asked for.
#[test]
fn what_is_waited_for_may_be_dropped_by_a_stop() {
    over_hanging("stop", |instance, _, lowest| {
        let hanging = Hanging::new(lowest);
        let mut waiting = Beside::start(program(instance, None, &lowest.at, CLOSING));
        assert_eq!(waiting.line(), "closing");
        let stop = ["--discard", "--timeout", "5s"];
        let stopped = in_time("stop", || instance.command("stop").args(stop).output());
        said(stopped.expect("forebay runs"), "stop");
        let end = in_time("its end", || waiting.end());
        assert_eq!(text(&end.stdout), "Input/output error\n");
        drop(hanging);
        instance.start_again();
    });
}
