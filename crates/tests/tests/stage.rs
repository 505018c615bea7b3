//! Staging: trees go into an instance and out of it, as they are, whatever stands in the way.
//!
//! What is promised of it: a staged file appears complete or not at all; what is staged comes as it
//! is; no link leads a staging out of its tree.
//!
//! `ROUNDS` says how many trees are made, `TEST_SEED` begins another series.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use support::{Instance, Random, profile, setting, text};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// `forebay stage` with its words, on an instance.
fn stage(instance: &Instance, way: &str, words: &[&str]) -> Command {
    let mut command = Command::new(profile().join("forebay"));
    command
        .args(["stage", way, "--name", &*instance.name])
        .args(words)
        .env("XDG_RUNTIME_DIR", instance.place.path())
        .env("FOREBAY_DIR", instance.place.path());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("forebay runs")
}

/// Stages; all must succeed.
fn staged(instance: &Instance, way: &str, words: &[&str]) -> Value {
    let output = output(stage(instance, way, &[&["--json"], words].concat()));
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Stages, which must fail with code 1; what is said of files, by lines.
fn refused(instance: &Instance, way: &str, words: &[&str]) -> Vec<String> {
    let output = output(stage(instance, way, words));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    said.lines().map(str::to_owned).collect()
}

/// What a shell says on the instance.
fn shell(instance: &Instance, script: &str) -> String {
    let output = output(instance.program(&["sh", "-c", script]));
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn word(path: &Path) -> &str {
    path.to_str().expect("the test's own path")
}

fn xattrs(path: &Path) -> Vec<String> {
    let output =
        Command::new("getfattr").args(["-d", "-m", "-", "-e", "hex", "--"]).arg(path).output();
    let said = text(&output.expect("getfattr runs").stdout);
    let mut lines: Vec<_> =
        said.lines().filter(|line| line.contains('=')).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Names, kinds, modes, owners, times, contents, attributes and names of one file of a tree, comparable.
fn described(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut firsts: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let whole = root.join(&path);
        let what = fs::symlink_metadata(&whole).expect("stat");
        let kind = what.file_type();
        let contents = if kind.is_file() {
            let first = firsts.entry(what.ino()).or_insert_with(|| path.clone());
            let sum = digest(&whole, what.len());
            format!("{} bytes {sum:x}, names {} as {}", what.len(), what.nlink(), first.display())
        } else if kind.is_symlink() {
            format!("to {}", fs::read_link(&whole).expect("a link").display())
        } else {
            if kind.is_dir() {
                let mut below: Vec<_> =
                    fs::read_dir(&whole).expect("a listing").flatten().collect();
                below.sort_by_key(fs::DirEntry::file_name);
                waiting.extend(below.iter().rev().map(|entry| path.join(entry.file_name())));
            }
            String::new()
        };
        let owner = (what.uid(), what.gid());
        let time = (what.mtime(), what.mtime_nsec());
        let more = if kind.is_symlink() { Vec::new() } else { xattrs(&whole) };
        let line = format!("{:o} {owner:?} {time:?} {contents} {more:?}", what.mode());
        found.insert(path, line);
    }
    found
}

/// A number for contents of which holes are not read.
fn digest(path: &Path, size: u64) -> u64 {
    if size > 1 << 33 {
        // Its parts are known to the test that made it.
        let file = File::open(path).expect("open");
        let mut bytes = [0; 16];
        let parts = [0, size / 2, size - 16];
        return parts.iter().fold(0, |sum, &at| {
            file.read_exact_at(&mut bytes, at).expect("read");
            sum ^ tests::digest(&bytes)
        });
    }
    tests::digest(&fs::read(path).expect("read"))
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (described(one), described(other));
    for (path, line) in &one {
        assert_eq!(Some(line), other.get(path), "{}", path.display());
    }
    for path in other.keys() {
        assert!(one.contains_key(path), "{} was not there", path.display());
    }
}

/// Gives a file a random time, to the nanosecond.
fn touch(random: &mut Random, path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(random.below(1 << 60));
    let file = File::open(path).expect("open");
    file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).expect("times");
}

fn run(program: &str, words: &[&str]) -> bool {
    Command::new(program).args(words).status().expect("the program runs").success()
}

/// Fills a directory with nodes of all kinds.
fn grow(random: &mut Random, folder: &Path, depth: u64) {
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..3 + random.below(8) {
        // Also names that are no UTF-8, or look like options.
        let prefix = ["-", "a b", "\u{e4}", "x\n"][random.below(4) as usize];
        let path = folder.join(format!("{prefix}{number}"));
        match random.below(12) {
            0 | 1 if depth > 0 => {
                fs::create_dir(&path).expect("made");
                grow(random, &path, depth - 1);
                let mode = [0o755, 0o700, 0o555, 0o2775][random.below(4) as usize];
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
                if random.below(2) == 0 {
                    run("setfacl", &["-d", "-m", "u:1:rx", "--", word(&path)]);
                }
                touch(random, &path);
                continue;
            }
            2 => {
                symlink(["nowhere", "/etc/passwd", ".", "-0"][number as usize % 4], &path)
                    .expect("linked");
                continue;
            }
            3 => assert!(run("mkfifo", &["-m", "640", "--", word(&path)])),
            4 if !files.is_empty() => {
                let first = &files[random.below(files.len() as u64) as usize];
                fs::hard_link(first, &path).expect("linked");
                continue;
            }
            kind => {
                let file = File::create(&path).expect("made");
                let length = [0, 1, 4096, 70_000, 5 * MIB][random.below(5) as usize];
                file.write_all_at(&tests::content(number, 0, length), 0).expect("written");
                if kind == 5 {
                    file.set_len(length + 40 * MIB).expect("sized");
                    file.write_all_at(b"behind a hole", length + 20 * MIB).expect("written");
                }
                if kind == 6 {
                    assert!(run("setfattr", &["-n", "user.some", "-v", "thing", word(&path)]));
                    run("setfacl", &["-m", "u:1:r", "--", word(&path)]);
                }
                let mode = [0o644, 0o600, 0o444, 0o4751, 0][random.below(5) as usize];
                file.set_permissions(fs::Permissions::from_mode(mode)).expect("mode");
                if rustix::process::geteuid().is_root() && kind == 7 {
                    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).expect("root may");
                }
                touch(random, &path);
                files.push(path);
            }
        }
    }
}

#[test]
fn trees_come_in_and_out_as_they_are() {
    let instance = Instance::start("stage", &["--local", "3", "--memory", "256MiB", "--ssd", "0"]);
    let seed = setting("TEST_SEED", 1);
    for seed in seed..seed + setting("ROUNDS", 4) {
        let mut random = Random::new(seed);
        let (source, out) = (instance.place.path().join("tree"), instance.place.path().join("out"));
        fs::create_dir(&source).expect("made");
        grow(&mut random, &source, 3);
        touch(&mut random, &source);
        let jobs = ["--jobs=1", "--jobs=2", "--jobs=7"][random.below(3) as usize];
        let told = staged(&instance, "in", &[jobs, "--verify", word(&source), "/forebay/in"]);
        assert_eq!(told["without_attributes"], 0, "seed {seed}");
        staged(&instance, "out", &[jobs, "--verify", "/forebay/in/tree", word(&out)]);
        assert_same(&source, &out.join("tree"));
        // Said again, nothing is left to do, on both sides.
        for (way, from, to) in [
            ("in", word(&source), "/forebay/in"),
            ("out", "/forebay/in/tree/.", word(&out.join("tree"))),
        ] {
            let told = staged(&instance, way, &[from, to]);
            assert_eq!((&told["files"], &told["bytes"]), (&0.into(), &0.into()), "seed {seed}");
        }
        assert_same(&source, &out.join("tree"));
        shell(&instance, "chmod -R u+rwx /forebay/in && rm -r /forebay/in");
        for tree in [source, out] {
            assert!(run("rm", &["-rf", word(&tree)]));
        }
    }
}

#[test]
fn a_file_of_a_tebibyte_with_holes_stays_so() {
    let instance = Instance::start("huge", &["--local", "2", "--memory", "64MiB", "--ssd", "0"]);
    let size = 1 << 40;
    let source = instance.place.path().join("tree");
    fs::create_dir(&source).expect("made");
    let file = File::create(source.join("huge")).expect("made");
    file.set_len(size).expect("sized");
    for (at, bytes) in [(0, b"0123456789abcdef"), (size / 2, b"fedcba9876543210")] {
        file.write_all_at(bytes, at).expect("written");
    }
    let out = instance.place.path().join("out");
    staged(&instance, "in", &[word(&source), "/forebay"]);
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_same(&source, &out.join("tree"));
    let blocks = fs::metadata(out.join("tree/huge")).expect("stat").blocks();
    assert!(blocks * 512 <= 64 * KIB, "{blocks} blocks of a hole");
}

/// Ends processes of a group that has this one's child as the first.
fn kill_group(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
}

#[test]
fn a_killed_staging_goes_on_and_leaves_nothing() {
    let instance = Instance::start("kill", &["--local", "2", "--memory", "512MiB", "--ssd", "0"]);
    let mut random = Random::new(setting("TEST_SEED", 1));
    let (source, out) = (instance.place.path().join("tree"), instance.place.path().join("out"));
    for folder in 0..5 {
        fs::create_dir_all(source.join(format!("{folder}"))).expect("made");
        for number in 0..200 {
            let bytes = tests::content(number, 0, random.below(64 * KIB));
            fs::write(source.join(format!("{folder}/{number}")), bytes).expect("written");
        }
    }
    fs::write(source.join("large"), tests::content(7, 0, 80 * MIB)).expect("written");
    for (way, from, to) in
        [("in", word(&source), "/forebay/to"), ("out", "/forebay/to/tree", word(&out))]
    {
        let mut kills = 0;
        for attempt in 0..setting("KILLS", 8) {
            let mut command = stage(&instance, way, &[from, to]);
            command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("forebay runs");
            // Any moment, sooner and sooner, so that some are before it is done.
            std::thread::sleep(Duration::from_micros(random.below(700_000 >> (attempt % 8))));
            kill_group(child.id());
            kills += u64::from(!child.wait().expect("its end").success());
        }
        assert!(kills > 0, "it was always faster");
        let told = staged(&instance, way, &[from, to]);
        assert_eq!(told["failed"], 0);
        let found = match way {
            "in" => shell(&instance, "find /forebay -name '.forebay-part*'"),
            _ => text(
                &Command::new("find")
                    .arg(&out)
                    .args(["-name", ".forebay-part*"])
                    .output()
                    .expect("find runs")
                    .stdout,
            ),
        };
        assert_eq!(found, "", "temporary names are left");
    }
    assert_same(&source, &out.join("tree"));
}

/// A file system of its own, which is taken away at the end; `None`, and said, if that is not permitted.
struct Mounted(PathBuf);

impl Mounted {
    fn small(at: PathBuf, size: &str) -> Option<Mounted> {
        fs::create_dir(&at).expect("made");
        let option = format!("size={size}");
        if !run("mount", &["-t", "tmpfs", "-o", &option, "tmpfs", word(&at)]) {
            eprintln!("skipped: no mounts here (root is needed)");
            return None;
        }
        Some(Mounted(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[word(&self.0)]);
    }
}

#[test]
fn what_a_full_or_read_only_side_refuses_is_told_and_the_rest_goes_on() {
    let instance = Instance::start("full", &["--memory", "32MiB", "--ssd", "0"]);
    let source = instance.place.path().join("tree");
    fs::create_dir(&source).expect("made");
    for (name, bytes) in [("a", 100), ("big", 40 * MIB), ("m", 2 * MIB), ("z", 100)] {
        fs::write(source.join(name), tests::content(1, 0, bytes)).expect("written");
    }
    // The instance takes all but the big one.
    let said = refused(&instance, "in", &[word(&source), "/forebay"]);
    let [line] = &said[..] else { panic!("{said:?}") };
    assert!(line.contains("/tree/big can not be written: No space left"), "{line}");
    assert_eq!(shell(&instance, "ls -A /forebay/tree"), "a\nm\nz\n");
    // So does the other side, of what is there.
    let Some(small) = Mounted::small(instance.place.path().join("small"), "1m") else { return };
    let said = refused(&instance, "out", &["/forebay/tree", word(&small.0)]);
    let [line] = &said[..] else { panic!("{said:?}") };
    assert!(line.contains("/tree/m can not be written: No space left"), "{line}");
    let names = || {
        let all = fs::read_dir(small.0.join("tree")).expect("a listing").flatten();
        let mut all: Vec<_> = all.map(|entry| entry.file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(names(), ["a", "z"]);
    // Where not even the directory can be made there is one line for all.
    let said = refused(&instance, "out", &["/forebay/tree", "/proc/none"]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("forebay stage: can not be staged to: /proc/none: "), "{said:?}");
    // Where nothing can be written one line comes for each, and what is there stays as it was.
    assert!(run("mount", &["-o", "remount,ro", word(&small.0)]));
    let said = refused(&instance, "out", &["--force", "/forebay/tree", word(&small.0)]);
    for name in ["a", "m", "z"] {
        let wanted = format!("/tree/{name} can not be written: Read-only file system");
        assert!(said.iter().any(|line| line.contains(&wanted)), "{wanted}: {said:?}");
    }
    assert_eq!(names(), ["a", "z"]);
    assert_eq!(fs::read(small.0.join("tree/a")).expect("read"), tests::content(1, 0, 100));
}

#[test]
fn a_file_that_grows_meanwhile_does_not_appear() {
    let instance = Instance::start("grow", &["--local", "2", "--memory", "512MiB", "--ssd", "0"]);
    let source = instance.place.path().join("tree");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("calm"), "calm").expect("written");
    let (is_over, path) = (AtomicBool::new(false), source.join("log"));
    fs::write(&path, tests::content(3, 0, 70 * MIB)).expect("written");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options().append(true).open(&path).expect("open");
            while !is_over.load(Ordering::Relaxed) {
                file.write_all(b"more\n").expect("written");
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        for jobs in ["--jobs=1", "--jobs=2"] {
            let said = refused(&instance, "in", &[jobs, word(&source), "/forebay"]);
            let [line] = &said[..] else { panic!("{said:?}") };
            assert!(line.ends_with("/tree/log is not copied: it changes while it is copied"));
            assert_eq!(shell(&instance, "ls -A /forebay/tree"), "calm\n");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    staged(&instance, "in", &[word(&source), "/forebay"]);
    let out = instance.place.path().join("out");
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_same(&source, &out.join("tree"));
}

#[test]
fn a_link_that_leads_out_is_a_link_and_not_a_way() {
    let instance = Instance::start("links", &["--memory", "64MiB", "--ssd", "0"]);
    let place = instance.place.path();
    let (source, out, other) = (place.join("tree"), place.join("out"), place.join("other"));
    for folder in [&source.join("a"), &out.join("tree"), &other] {
        fs::create_dir_all(folder).expect("made");
    }
    fs::write(source.join("a/file"), "new").expect("written");
    fs::write(other.join("file"), "old").expect("written");
    symlink(&other, source.join("away")).expect("linked");
    staged(&instance, "in", &[word(&source), "/forebay"]);
    assert_eq!(shell(&instance, "readlink /forebay/tree/away"), format!("{}\n", word(&other)));
    // Below, a link has taken the place of a directory.
    symlink(&other, out.join("tree/a")).expect("linked");
    let said = refused(&instance, "out", &["/forebay/tree", word(&out)]);
    assert!(said[0].contains("/tree/a can not be written: File exists"), "{said:?}");
    assert_eq!(fs::read(other.join("file")).expect("read"), b"old");
    // And of a file: it is replaced, not what it leads to.
    fs::remove_file(out.join("tree/a")).expect("removed");
    fs::create_dir(out.join("tree/a")).expect("made");
    symlink(other.join("file"), out.join("tree/a/file")).expect("linked");
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_eq!(fs::read(other.join("file")).expect("read"), b"old");
    assert_same(&source, &out.join("tree"));
    // Nor does a list lead through one, or upwards.
    let said = listed(&instance, "away/file\n../other/file\n", &[word(&source), "/forebay/l"]);
    assert!(said[0].contains("/tree/away/file can not be"), "{said:?}");
    assert!(said[1].contains("../other/file is not below"), "{said:?}");
}

/// Stages in what a list says, with code 1; what is said of files.
fn listed(instance: &Instance, list: &str, words: &[&str]) -> Vec<String> {
    let mut command = stage(instance, "in", &[&["--list", "-"], words].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("forebay runs");
    child.stdin.take().expect("a pipe").write_all(list.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr).lines().map(str::to_owned).collect()
}

#[test]
fn what_is_listed_comes_and_what_is_missing_is_told() {
    let instance = Instance::start("list", &["--memory", "64MiB", "--ssd", "0"]);
    let source = instance.place.path().join("tree");
    fs::create_dir_all(source.join("a/b")).expect("made");
    for name in ["a/b/1", "a/2", "3", "not"] {
        fs::write(source.join(name), name).expect("written");
    }
    let list = format!("a/b/1\nnone\n{}/3\na\n\na/2\na/none/x\n", word(&source));
    let mut said = listed(&instance, &list, &[word(&source), "/forebay/in"]);
    said.sort();
    let [one, other] = &said[..] else { panic!("{said:?}") };
    assert!(one.contains("/tree/a/none/x can not be read: No such file"), "{one}");
    assert!(other.contains("/tree/none can not be read: No such file"), "{other}");
    let found = shell(&instance, "cd /forebay/in && find . -type f | sort");
    assert_eq!(found, "./3\n./a/2\n./a/b/1\n");
}

#[test]
fn run_stages_before_and_after_its_command() {
    // The instance is not used: each run makes one of its own in its directories.
    let instance = Instance::start("unused", &["--memory", "64MiB", "--ssd", "0"]);
    let place = instance.place.path();
    let (input, results) = (place.join("in"), place.join("results"));
    fs::create_dir(&input).expect("made");
    fs::write(input.join("file"), "input").expect("written");
    let run = |name: &str, out: &str, script: &str| {
        let mut command = Command::new(profile().join("forebay"));
        command
            .args(["run", "--name", name, "--memory", "64MiB", "--ssd", "0"])
            .args(["--stage-in", &format!("{}:/forebay", word(&input))])
            .args(["--stage-out", &format!("/forebay/out:{out}")])
            .args(["--", "sh", "-c", script])
            .env("XDG_RUNTIME_DIR", place)
            .env("FOREBAY_DIR", place);
        output(command)
    };
    let name = format!("{}r", instance.name);
    let script = "mkdir /forebay/out && cp /forebay/in/file /forebay/out/copy && echo said; exit 3";
    let done = run(&name, word(&results), script);
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(3), "said\n"));
    assert_eq!(fs::read(results.join("out/copy")).expect("read"), b"input");
    // A command that a signal ends, too.
    fs::remove_dir_all(&results).expect("removed");
    let done = run(&name, word(&results), "mkdir /forebay/out; kill -9 $$");
    assert_eq!(done.status.code(), Some(128 + 9), "{}", text(&done.stderr));
    assert!(results.join("out").is_dir());
    // What can not be staged out is kept.
    let done = run(&name, "/proc/none", "mkdir /forebay/out; echo kept >/forebay/out/file");
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains(&format!("instance {name} is kept")), "{said}");
    let forebay = |words: &[&str]| {
        let mut command = Command::new(profile().join("forebay"));
        command.args(words).env("XDG_RUNTIME_DIR", place).env("FOREBAY_DIR", place);
        output(command)
    };
    let late = place.join("late");
    let done = forebay(&["stage", "out", "--name", &name, "/forebay/out", word(&late)]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fs::read(late.join("out/file")).expect("read"), b"kept\n");
    assert!(forebay(&["stop", "--name", &name]).status.success());
    // Without its input the command is not run, and nothing stays.
    fs::remove_dir_all(&input).expect("removed");
    let done = run(&name, word(&results), "echo never");
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(1), ""));
    assert!(text(&done.stderr).contains("the command is not run"), "{}", text(&done.stderr));
    assert_eq!(forebay(&["status", "--name", &name]).status.code(), Some(3));
    // Paths on the wrong side are no usage, and nothing is begun.
    for words in [["in", "/tmp", "/tmp/x"], ["out", "/tmp", "/tmp/x"]] {
        let done =
            forebay(&[&["stage"], &words[..1], &["--name", &instance.name], &words[1..]].concat());
        assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    }
}

#[test]
fn commands_see_an_instance_where_it_was_said_at_its_start_unless_they_are_told() {
    let instance =
        Instance::start("at", &["--memory", "64MiB", "--ssd", "0", "--at", "/elsewhere"]);
    shell(&instance, "mkdir /elsewhere/d && echo words > /elsewhere/d/f && ! test -e /forebay");
    let place = instance.place.path().join("copy");
    staged(&instance, "out", &["/elsewhere/d", place.to_str().expect("text")]);
    assert_eq!(fs::read(place.join("d/f")).expect("readable"), b"words\n");
    let mut pin = Command::new(profile().join("forebay"));
    pin.args(["pin", "--name", &*instance.name, "/elsewhere/d/f"]);
    pin.env("XDG_RUNTIME_DIR", instance.place.path()).env_remove("FOREBAY_AT");
    let pinned = output(pin);
    assert!(pinned.status.success(), "{}", text(&pinned.stderr));
    let mut told = instance.command("run");
    told.args(["--at", "/forebay", "--", "cat", "/forebay/d/f"]);
    assert_eq!(text(&output(told).stdout), "words\n");
}
