//! Staging: copies trees into an instance and out of it unchanged, whatever gets in the way.
//!
//! Promises of docs/semantics/staging-and-prefetch.md: "A staged file appears complete or not at
//! all"; "Staging keeps everything about a file"; "No symbolic link leads staging out of its tree".
//!
//! `TEST_SCALE` multiplies the number of trees, `TEST_SEED` begins another series.

use crate::support::{Instance, Random, profile, skip, text};
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

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// `forebay stage WAY WORDS` on an instance.
fn stage(instance: &Instance, way: &str, words: &[&str]) -> Command {
    let mut command = Command::new(profile().join("forebay"));
    command
        .args(["stage", way, "--name", &*instance.name])
        .args(words)
        .env("XDG_RUNTIME_DIR", instance.dir.path())
        .env("FOREBAY_DIR", instance.dir.path());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("forebay runs")
}

/// Stages; every file must succeed.
fn staged(instance: &Instance, way: &str, words: &[&str]) -> Value {
    let output = output(stage(instance, way, &[&["--json"], words].concat()));
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Stages, which must fail with code 1; returns the lines about files.
fn refused(instance: &Instance, way: &str, words: &[&str]) -> Vec<String> {
    let output = output(stage(instance, way, words));
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    printed.lines().map(str::to_owned).collect()
}

/// Output of a shell on the instance.
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
    let printed = text(&output.expect("getfattr runs").stdout);
    let mut lines: Vec<_> =
        printed.lines().filter(|line| line.contains('=')).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Names, kinds, modes, owners, times, contents, attributes and hard links of a tree, comparable.
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
                let mut backing: Vec<_> =
                    fs::read_dir(&whole).expect("a listing").flatten().collect();
                backing.sort_by_key(fs::DirEntry::file_name);
                waiting.extend(backing.iter().rev().map(|entry| path.join(entry.file_name())));
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

/// A checksum of contents that skips holes.
fn digest(path: &Path, size: u64) -> u64 {
    if size > 1 << 33 {
        // The test knows which parts of this file hold data.
        let file = File::open(path).expect("open");
        let mut bytes = [0; 16];
        let parts = [0, size / 2, size - 16];
        return parts.iter().fold(0, |sum, &at| {
            file.read_exact_at(&mut bytes, at).expect("read");
            sum ^ testkit::digest(&bytes)
        });
    }
    testkit::digest(&fs::read(path).expect("read"))
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
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(random.uniform(1 << 60));
    let file = File::open(path).expect("open");
    file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).expect("times");
}

fn run(program: &str, words: &[&str]) -> bool {
    Command::new(program).args(words).status().expect("the program runs").success()
}

/// Fills a directory with nodes of all kinds.
fn grow(random: &mut Random, dir: &Path, depth: u64) {
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..3 + random.uniform(8) {
        // Includes names that are not UTF-8 or look like options.
        let prefix = ["-", "a b", "\u{e4}", "x\n"][random.uniform(4) as usize];
        let path = dir.join(format!("{prefix}{number}"));
        match random.uniform(12) {
            0 | 1 if depth > 0 => {
                fs::create_dir(&path).expect("made");
                grow(random, &path, depth - 1);
                let mode = [0o755, 0o700, 0o555, 0o2775][random.uniform(4) as usize];
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
                if random.uniform(2) == 0 {
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
                let first = &files[random.uniform(files.len() as u64) as usize];
                fs::hard_link(first, &path).expect("linked");
                continue;
            }
            kind => {
                let file = File::create(&path).expect("made");
                let length = [0, 1, 4096, 70_000, 5 * MIB][random.uniform(5) as usize];
                file.write_all_at(&testkit::content(number, 0, length), 0).expect("written");
                if kind == 5 {
                    file.set_len(length + 40 * MIB).expect("sized");
                    file.write_all_at(b"behind a hole", length + 20 * MIB).expect("written");
                }
                if kind == 6 {
                    assert!(run("setfattr", &["-n", "user.some", "-v", "thing", word(&path)]));
                    run("setfacl", &["-m", "u:1:r", "--", word(&path)]);
                }
                let mode = [0o644, 0o600, 0o444, 0o4751, 0][random.uniform(5) as usize];
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
fn staging_copies_trees_unchanged_both_ways() {
    let instance = Instance::start("stage", &["--local", "3", "--memory", "256MiB", "--ssd", "0"]);
    let seed = testkit::seed(1);
    for seed in seed..seed + testkit::rounds(2) {
        let mut random = Random::new(seed);
        let (source, out) = (instance.dir.path().join("tree"), instance.dir.path().join("out"));
        fs::create_dir(&source).expect("made");
        grow(&mut random, &source, 3);
        touch(&mut random, &source);
        let jobs = ["--jobs=1", "--jobs=2", "--jobs=7"][random.uniform(3) as usize];
        let reported = staged(&instance, "in", &[jobs, "--verify", word(&source), "/forebay/in"]);
        assert_eq!(reported["without_attributes"], 0, "seed {seed}");
        staged(&instance, "out", &[jobs, "--verify", "/forebay/in/tree", word(&out)]);
        assert_same(&source, &out.join("tree"));
        // A second run has nothing to do, in both directions.
        for (way, from, to) in [
            ("in", word(&source), "/forebay/in"),
            ("out", "/forebay/in/tree/.", word(&out.join("tree"))),
        ] {
            let reported = staged(&instance, way, &[from, to]);
            assert_eq!(
                (&reported["files"], &reported["bytes"]),
                (&0.into(), &0.into()),
                "seed {seed}"
            );
        }
        assert_same(&source, &out.join("tree"));
        shell(&instance, "chmod -R u+rwx /forebay/in && rm -r /forebay/in");
        for tree in [source, out] {
            assert!(run("rm", &["-rf", word(&tree)]));
        }
    }
}

#[test]
fn a_sparse_file_of_a_tebibyte_stays_sparse() {
    let instance = Instance::start("huge", &["--local", "2", "--memory", "64MiB", "--ssd", "0"]);
    let size = 1 << 40;
    let source = instance.dir.path().join("tree");
    fs::create_dir(&source).expect("made");
    let file = File::create(source.join("huge")).expect("made");
    file.set_len(size).expect("sized");
    for (at, bytes) in [(0, b"0123456789abcdef"), (size / 2, b"fedcba9876543210")] {
        file.write_all_at(bytes, at).expect("written");
    }
    let out = instance.dir.path().join("out");
    staged(&instance, "in", &[word(&source), "/forebay"]);
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_same(&source, &out.join("tree"));
    let blocks = fs::metadata(out.join("tree/huge")).expect("stat").blocks();
    assert!(blocks * 512 <= 64 * KIB, "a hole has {blocks} blocks");
}

/// Kills the process group led by a child of this process.
fn kill_group(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
}

#[test]
fn killed_staging_resumes_and_leaves_no_temporary_files() {
    let instance = Instance::start("kill", &["--local", "2", "--memory", "512MiB", "--ssd", "0"]);
    let mut random = Random::new(testkit::seed(1));
    let (source, out) = (instance.dir.path().join("tree"), instance.dir.path().join("out"));
    for dir in 0..5 {
        fs::create_dir_all(source.join(format!("{dir}"))).expect("made");
        for number in 0..200 {
            let bytes = testkit::content(number, 0, random.uniform(64 * KIB));
            fs::write(source.join(format!("{dir}/{number}")), bytes).expect("written");
        }
    }
    fs::write(source.join("large"), testkit::content(7, 0, 80 * MIB)).expect("written");
    for (way, from, to) in
        [("in", word(&source), "/forebay/to"), ("out", "/forebay/to/tree", word(&out))]
    {
        let mut kills = 0;
        for attempt in 0..testkit::rounds(8) {
            let mut command = stage(&instance, way, &[from, to]);
            command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("forebay runs");
            // Any moment; the range shrinks, so that some kills come before the end.
            std::thread::sleep(Duration::from_micros(random.uniform(700_000 >> (attempt % 8))));
            kill_group(child.id());
            kills += u64::from(!child.wait().expect("its end").success());
        }
        assert!(kills > 0, "it won every race");
        let reported = staged(&instance, way, &[from, to]);
        assert_eq!(reported["failed"], 0);
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

/// A file system of its own, unmounted on drop; `None` after a skip note where mounting is not
/// permitted.
struct Mounted(PathBuf);

impl Mounted {
    fn small(at: PathBuf, size: &str) -> Option<Mounted> {
        fs::create_dir(&at).expect("made");
        let option = format!("size={size}");
        if !run("mount", &["-t", "tmpfs", "-o", &option, "tmpfs", word(&at)]) {
            skip("no file systems can be mounted here (root is needed)");
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
fn staging_reports_what_a_full_or_read_only_side_refuses_and_continues() {
    let instance = Instance::start("full", &["--memory", "32MiB", "--ssd", "0"]);
    let source = instance.dir.path().join("tree");
    fs::create_dir(&source).expect("made");
    for (name, bytes) in [("a", 100), ("big", 40 * MIB), ("m", 2 * MIB), ("z", 100)] {
        fs::write(source.join(name), testkit::content(1, 0, bytes)).expect("written");
    }
    // The instance takes every file but the big one.
    let printed = refused(&instance, "in", &[word(&source), "/forebay"]);
    let [line] = &printed[..] else { panic!("{printed:?}") };
    assert!(line.contains("/tree/big cannot be written: No space left"), "{line}");
    assert_eq!(shell(&instance, "ls -A /forebay/tree"), "a\nm\nz\n");
    // The other side does the same with the files that exist.
    let Some(small) = Mounted::small(instance.dir.path().join("small"), "1m") else { return };
    let printed = refused(&instance, "out", &["/forebay/tree", word(&small.0)]);
    let [line] = &printed[..] else { panic!("{printed:?}") };
    assert!(line.contains("/tree/m cannot be written: No space left"), "{line}");
    let names = || {
        let all = fs::read_dir(small.0.join("tree")).expect("a listing").flatten();
        let mut all: Vec<_> = all.map(|entry| entry.file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(names(), ["a", "z"]);
    // Where even the directory cannot be made there, one line reports it for all files.
    let printed = refused(&instance, "out", &["/forebay/tree", "/proc/none"]);
    assert_eq!(printed.len(), 1, "{printed:?}");
    assert!(printed[0].starts_with("forebay stage: cannot stage to: /proc/none: "), "{printed:?}");
    // On a read-only side one line comes for each file, and existing files stay unchanged.
    assert!(run("mount", &["-o", "remount,ro", word(&small.0)]));
    let printed = refused(&instance, "out", &["--force", "/forebay/tree", word(&small.0)]);
    for name in ["a", "m", "z"] {
        let expected = format!("/tree/{name} cannot be written: Read-only file system");
        assert!(printed.iter().any(|line| line.contains(&expected)), "{expected}: {printed:?}");
    }
    assert_eq!(names(), ["a", "z"]);
    assert_eq!(fs::read(small.0.join("tree/a")).expect("read"), testkit::content(1, 0, 100));
}

#[test]
fn a_file_that_grows_while_it_is_staged_does_not_appear() {
    let instance = Instance::start("grow", &["--local", "2", "--memory", "512MiB", "--ssd", "0"]);
    let source = instance.dir.path().join("tree");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("calm"), "calm").expect("written");
    let (is_over, path) = (AtomicBool::new(false), source.join("log"));
    fs::write(&path, testkit::content(3, 0, 70 * MIB)).expect("written");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options().append(true).open(&path).expect("open");
            while !is_over.load(Ordering::Relaxed) {
                file.write_all(b"more\n").expect("written");
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        for jobs in ["--jobs=1", "--jobs=2"] {
            let printed = refused(&instance, "in", &[jobs, word(&source), "/forebay"]);
            let [line] = &printed[..] else { panic!("{printed:?}") };
            assert!(line.ends_with("/tree/log is not copied: it changes while it is copied"));
            assert_eq!(shell(&instance, "ls -A /forebay/tree"), "calm\n");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    staged(&instance, "in", &[word(&source), "/forebay"]);
    let out = instance.dir.path().join("out");
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_same(&source, &out.join("tree"));
}

#[test]
fn staging_does_not_follow_links_out_of_the_tree() {
    let instance = Instance::start("links", &["--memory", "64MiB", "--ssd", "0"]);
    let root = instance.dir.path();
    let (source, out, other) = (root.join("tree"), root.join("out"), root.join("other"));
    for dir in [&source.join("a"), &out.join("tree"), &other] {
        fs::create_dir_all(dir).expect("made");
    }
    fs::write(source.join("a/file"), "new").expect("written");
    fs::write(other.join("file"), "old").expect("written");
    symlink(&other, source.join("away")).expect("linked");
    staged(&instance, "in", &[word(&source), "/forebay"]);
    assert_eq!(shell(&instance, "readlink /forebay/tree/away"), format!("{}\n", word(&other)));
    // At the destination, a link has replaced a directory.
    symlink(&other, out.join("tree/a")).expect("linked");
    let printed = refused(&instance, "out", &["/forebay/tree", word(&out)]);
    assert!(printed[0].contains("/tree/a cannot be written: File exists"), "{printed:?}");
    assert_eq!(fs::read(other.join("file")).expect("read"), b"old");
    // A link has replaced a file: the link is replaced, not its target.
    fs::remove_file(out.join("tree/a")).expect("removed");
    fs::create_dir(out.join("tree/a")).expect("made");
    symlink(other.join("file"), out.join("tree/a/file")).expect("linked");
    staged(&instance, "out", &["/forebay/tree", word(&out)]);
    assert_eq!(fs::read(other.join("file")).expect("read"), b"old");
    assert_same(&source, &out.join("tree"));
    // A list does not lead through a link or upwards either.
    let printed = listed(&instance, "away/file\n../other/file\n", &[word(&source), "/forebay/l"]);
    assert!(printed[0].contains("/tree/away/file cannot be"), "{printed:?}");
    assert!(printed[1].contains("../other/file is not under"), "{printed:?}");
}

/// Stages in the files of a list, with exit code 1; returns the lines about files.
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
fn listed_files_are_staged_and_missing_ones_reported() {
    let instance = Instance::start("list", &["--memory", "64MiB", "--ssd", "0"]);
    let source = instance.dir.path().join("tree");
    fs::create_dir_all(source.join("a/b")).expect("made");
    for name in ["a/b/1", "a/2", "3", "not"] {
        fs::write(source.join(name), name).expect("written");
    }
    let list = format!("a/b/1\nnone\n{}/3\na\n\na/2\na/none/x\n", word(&source));
    let mut printed = listed(&instance, &list, &[word(&source), "/forebay/in"]);
    printed.sort();
    let [one, other] = &printed[..] else { panic!("{printed:?}") };
    assert!(one.contains("/tree/a/none/x cannot be read: No such file"), "{one}");
    assert!(other.contains("/tree/none cannot be read: No such file"), "{other}");
    let found = shell(&instance, "cd /forebay/in && find . -type f | sort");
    assert_eq!(found, "./3\n./a/2\n./a/b/1\n");
}

#[test]
fn run_stages_files_before_and_after_its_command() {
    // This instance only lends its directories: each run makes an instance of its own in them.
    let instance = Instance::start("unused", &["--memory", "64MiB", "--ssd", "0"]);
    let root = instance.dir.path();
    let (input, results) = (root.join("in"), root.join("results"));
    fs::create_dir(&input).expect("made");
    fs::write(input.join("file"), "input").expect("written");
    let run = |name: &str, out: &str, script: &str| {
        let mut command = Command::new(profile().join("forebay"));
        command
            .args(["run", "--name", name, "--memory", "64MiB", "--ssd", "0"])
            .args(["--stage-in", &format!("{}:/forebay", word(&input))])
            .args(["--stage-out", &format!("/forebay/out:{out}")])
            .args(["--", "sh", "-c", script])
            .env("XDG_RUNTIME_DIR", root)
            .env("FOREBAY_DIR", root);
        output(command)
    };
    let name = format!("{}r", instance.name);
    let script = "mkdir /forebay/out && cp /forebay/in/file /forebay/out/copy && echo said; exit 3";
    let done = run(&name, word(&results), script);
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(3), "said\n"));
    assert_eq!(fs::read(results.join("out/copy")).expect("read"), b"input");
    // The same for a command that a signal ends.
    fs::remove_dir_all(&results).expect("removed");
    let done = run(&name, word(&results), "mkdir /forebay/out; kill -9 $$");
    assert_eq!(done.status.code(), Some(128 + 9), "{}", text(&done.stderr));
    assert!(results.join("out").is_dir());
    // Files that cannot be staged out are kept.
    let done = run(&name, "/proc/none", "mkdir /forebay/out; echo kept >/forebay/out/file");
    let printed = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("instance {name} is kept")), "{printed}");
    let forebay = |words: &[&str]| {
        let mut command = Command::new(profile().join("forebay"));
        command.args(words).env("XDG_RUNTIME_DIR", root).env("FOREBAY_DIR", root);
        output(command)
    };
    let late = root.join("late");
    let done = forebay(&["stage", "out", "--name", &name, "/forebay/out", word(&late)]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fs::read(late.join("out/file")).expect("read"), b"kept\n");
    assert!(forebay(&["stop", "--name", &name]).status.success());
    // Without its input the command does not run, and nothing stays.
    fs::remove_dir_all(&input).expect("removed");
    let done = run(&name, word(&results), "echo never");
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(1), ""));
    assert!(text(&done.stderr).contains("the command is not run"), "{}", text(&done.stderr));
    assert_eq!(forebay(&["status", "--name", &name]).status.code(), Some(3));
    // Paths on the wrong side are a usage error, and nothing begins.
    for words in [["in", "/tmp", "/tmp/x"], ["out", "/tmp", "/tmp/x"]] {
        let done =
            forebay(&[&["stage"], &words[..1], &["--name", &instance.name], &words[1..]].concat());
        assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    }
}

#[test]
fn commands_use_the_prefix_of_the_start_unless_given_another() {
    let instance =
        Instance::start("at", &["--memory", "64MiB", "--ssd", "0", "--at", "/elsewhere"]);
    shell(&instance, "mkdir /elsewhere/d && echo words > /elsewhere/d/f && ! test -e /forebay/d");
    let copy = instance.dir.path().join("copy");
    staged(&instance, "out", &["/elsewhere/d", copy.to_str().expect("text")]);
    assert_eq!(fs::read(copy.join("d/f")).expect("readable"), b"words\n");
    let mut pin = Command::new(profile().join("forebay"));
    pin.args(["pin", "--name", &*instance.name, "/elsewhere/d/f"]);
    pin.env("XDG_RUNTIME_DIR", instance.dir.path()).env_remove("FOREBAY_AT");
    let pinned = output(pin);
    assert!(pinned.status.success(), "{}", text(&pinned.stderr));
    let mut reported = instance.command("run");
    reported.args(["--at", "/forebay", "--", "cat", "/forebay/d/f"]);
    assert_eq!(text(&output(reported).stdout), "words\n");
}
