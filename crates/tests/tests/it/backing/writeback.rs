//! Files that are created and changed in an instance over a directory (`--backing`) are written
//! back: all kinds of files, by programs and by a mount; the writer and daemons are killed
//! meanwhile; the directory is full, read-only, away, or changed by others.

use super::tree::layout;
use crate::support::backing::{Backing, CHANGES, LIST, SUMS, in_instance, printed, shell, start};
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::tier::{Hanging, Small, writer};
use crate::support::world::{HOSTS, World};
use crate::support::{Instance, Random, in_time, skip, text, wait_for};
use std::fs;
use std::process::{Command, Output, Stdio};
use testkit::content;

/// Extended attributes.
const EXTENDED: &str = "python3 -c 'import os\n\
for at, names, files in os.walk(\".\"):\n  for file in sorted(files + names):\n    \
path = os.path.join(at, file)\n    print([path, [(n, os.getxattr(path, n, follow_symlinks=False)) \
for n in os.listxattr(path, follow_symlinks=False)]])' | LC_ALL=C sort";

fn flush(instance: &Instance) -> Output {
    instance.command("flush").output().expect("forebay runs")
}

fn flushed(instance: &Instance) {
    printed(flush(instance), "flush");
}

fn assert_equal(instance: &Instance, backing: &Backing, what: &str) {
    for script in [LIST, SUMS, EXTENDED] {
        assert_eq!(shell(backing.dir.path(), script), in_instance(instance, script), "{what}");
    }
    let names = shell(backing.dir.path(), "find . -name '.forebay-*'");
    assert_eq!(names, "", "{what}: temporary names are left");
}

/// The count is that of the moment, not of the last poll of the writeback daemon.
#[test]
fn the_status_counts_what_was_just_written_as_dirty() {
    let backing = Backing::new();
    let instance = start("counts", "2", &backing.text());
    for round in 0..3 {
        in_instance(&instance, &format!("for i in 1 2 3 4 5; do echo $i > {round}-$i; done"));
        let dirty = instance.status()["writeback"]["dirty"].as_u64().expect("a count");
        let there = fs::read_dir(backing.dir.path()).expect("a listing").flatten();
        let there = there.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
        let count = there.count() as u64;
        assert!(dirty + count >= 5 * (round + 1), "{dirty} dirty, {count} there");
    }
    let output = instance.command("stop").arg("--dry-run").output().expect("forebay runs");
    let text = printed(output, "a dry run");
    assert!(text.contains("would be written back before"), "{text}");
}

/// "Changes in the instance are written back" (docs/semantics/backing.md).
#[test]
fn changes_in_the_instance_reach_the_backing_store() {
    let numbers = ["3", "1"];
    for daemons in if testkit::is_long() { &numbers[..] } else { &numbers[..1] } {
        let backing = Backing::with_all_kinds();
        let instance = start(&format!("arrives{daemons}"), daemons, &backing.text());
        for (number, change) in CHANGES.into_iter().enumerate() {
            in_instance(&instance, change);
            // Some changes are written back together with earlier ones.
            if number % 5 == 0 {
                flushed(&instance);
                assert_equal(&instance, &backing, change);
            }
        }
        flushed(&instance);
        assert_equal(&instance, &backing, "in the end");
        let of_links = "ln a/f30 linked; ln a/f30 many/too; rm a/f30; echo new > linked";
        in_instance(&instance, of_links);
        flushed(&instance);
        assert_equal(&instance, &backing, of_links);
        let hardlinks = "find . -samefile linked | sort";
        assert_eq!(shell(backing.dir.path(), hardlinks), "./linked\n./many/too\n");
        // Without a flush, too.
        in_instance(&instance, "echo soon > soon");
        wait_for("a file that is closed", || backing.path("soon").exists());
    }
}

#[test]
fn changes_through_a_mount_reach_the_backing_store() {
    if !has_fuse() {
        return;
    }
    let backing = Backing::with_all_kinds();
    let instance = start("bymount", "2", &backing.text());
    let mounted = Mounted::new(&instance, "bymount");
    for change in CHANGES {
        shell(&mounted.path(""), change);
    }
    // The flush waits until the kernel has forgotten removed files.
    flushed(&instance);
    for script in [LIST, SUMS, EXTENDED] {
        assert_eq!(shell(backing.dir.path(), script), shell(&mounted.path(""), script));
    }
}

/// A removed backing file that a program still has open is kept aside in the backing store until
/// its last close, so its cached data may be evicted.
#[test]
fn a_removed_file_stays_readable_while_it_is_open() {
    let backing = Backing::new();
    backing.file("old", 1, 5_000_000);
    let instance = start("readon", "1", &backing.text());
    in_instance(&instance, "echo new > new");
    flushed(&instance);
    let hold = "cd /forebay; exec 3< old 4< new; rm old new; touch held; read -r go || :; \
                cat <&3 | wc -c; cat <&4";
    let mut holder = instance.program(&["bash", "-ec", hold]);
    let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("forebay runs");
    wait_for("it holds them", || backing.path("held").exists());
    flushed(&instance);
    let names = "ls -A | sed 's/aside-.*/aside/'";
    assert_eq!(shell(backing.dir.path(), names), ".forebay-aside\n.forebay-aside\nheld\n");
    drop(holder.stdin.take());
    let read =
        printed(holder.wait_with_output().expect("its end"), "the reader of the removed file");
    assert_eq!(read, "5000000\nnew\n");
    flushed(&instance);
    assert_eq!(shell(backing.dir.path(), "ls -A"), "held\n");
}

#[test]
fn kills_of_writer_and_daemons_lose_no_change() {
    let backing = Backing::with_all_kinds();
    let instance = start("killedwriter", "2", &backing.text());
    let mut random = Random::new(testkit::seed(1));
    for (number, change) in CHANGES.into_iter().enumerate() {
        in_instance(&instance, change);
        let mut flushing = instance.command("flush").spawn().expect("forebay runs");
        let expected = random.uniform(40);
        let begun = std::time::Instant::now();
        wait_for("a moment, or the end", || {
            begun.elapsed().as_millis() as u64 >= expected
                || flushing.try_wait().expect("it belongs to the instance").is_some()
        });
        if number % 4 == 3 {
            let daemon = instance.daemon(random.uniform(2) as usize);
            daemon.kill();
            daemon.wait();
        } else {
            crate::support::kill(writer(&instance));
        }
        instance.start_again();
        let _ = flushing.wait();
    }
    flushed(&instance);
    assert_equal(&instance, &backing, "in the end");
}

/// A stop says how much of what changed is not in the backing store.
#[test]
fn a_stop_counts_what_is_never_written_back() {
    let backing = Backing::new();
    let instance = start("never", "2", &backing.text());
    in_instance(&instance, "mkdir kept left; echo kept > kept/file");
    let set = ["set", "--json", "--writeback", "never", "/forebay/left"];
    assert_eq!(layout(&instance, &set).expect("set")["writeback"], "never");
    in_instance(&instance, "echo one > left/one; echo two > left/two");
    let said = printed(instance.command("stop").output().expect("forebay runs"), "stop");
    assert!(said.contains("with the writeback mode 'never'"), "{said}");
    assert!(backing.path("kept/file").exists() && backing.path("left").is_dir());
    assert!(!backing.path("left/one").exists(), "a file of mode never is written back");
    // Dropping an instance stops it.
    instance.start_again();

    let instance = start("all", "1", &backing.text());
    in_instance(&instance, "echo more > kept/more");
    let said = printed(instance.command("stop").output().expect("forebay runs"), "stop");
    assert!(said.ends_with("all changes are written back\n"), "{said}");
    instance.start_again();
}

fn refused(output: &Output, reason: &str) {
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.contains(reason), "{printed}");
}

#[test]
fn a_full_or_read_only_backing_directory_only_delays_writeback() {
    let Some(small) = Small::new("2M") else {
        return skip("no file systems can be mounted here (root is needed)");
    };
    let path = small.path().to_str().expect("letters").to_owned();
    let instance = start("full", "1", &path);
    in_instance(&instance, "echo fits > fits; head -c 3000000 /dev/urandom > large; mkdir d");
    refused(&flush(&instance), "large: No space left on device");
    assert_eq!(fs::read(small.path().join("fits")).expect("it fits"), b"fits\n");
    assert!(!small.path().join("large").exists(), "it is there in part");
    let stop = instance.command("stop").output().expect("forebay runs");
    refused(&stop, "the instance stays; --discard discards what is not written back");
    let status = instance.status();
    assert_eq!(status["writeback"]["failures"][0][0], "large", "{status}");
    assert!(small.mount(&["-o", "remount,size=8M"]), "larger");
    flushed(&instance);
    assert!(small.mount(&["-o", "remount,ro"]), "read-only");
    in_instance(&instance, "echo later > d/later; rm fits");
    refused(&flush(&instance), "Read-only file system");
    assert!(small.mount(&["-o", "remount,rw"]), "to write again");
    flushed(&instance);
    assert_eq!(shell(small.path(), "find . -type f | sort"), "./d/later\n./large\n");
    let sums = "sha256sum large";
    assert_eq!(shell(small.path(), sums), in_instance(&instance, sums));
}

#[test]
fn a_missing_backing_directory_is_waited_for_and_nothing_is_written_elsewhere() {
    let Some(small) = Small::new("8M") else {
        return skip("no file systems can be mounted here (root is needed)");
    };
    let elsewhere = tempfile::tempdir().expect("a directory");
    let instance = start("away", "1", small.path().to_str().expect("letters"));
    in_instance(&instance, "echo before > before");
    flushed(&instance);
    let dir = elsewhere.path().to_str().expect("letters");
    let path = small.path().to_str().expect("letters");
    printed(Command::new("mount").args(["--bind", path, dir]).output().expect("runs"), "bind");
    printed(Command::new("umount").args(["-l", path]).output().expect("runs"), "umount");
    in_instance(&instance, "echo meanwhile > meanwhile; rm before");
    refused(&flush(&instance), "is the file system mounted?");
    assert_eq!(fs::read_dir(path).expect("there").count(), 0, "the wrong directory");
    printed(Command::new("mount").args(["--bind", dir, path]).output().expect("runs"), "back");
    flushed(&instance);
    assert_eq!(shell(small.path(), "ls"), "meanwhile\n");
    printed(Command::new("umount").args(["-l", dir]).output().expect("runs"), "umount");
}

#[test]
fn a_hanging_backing_file_system_blocks_only_the_writer() {
    if !has_fuse() {
        return;
    }
    let lower = Instance::start("lower", &["--memory", "64MiB"]);
    let mounted = Mounted::by(&lower, "m", "classic");
    fs::write(mounted.path("unread"), content(1, 0, 3_000_000)).expect("written");
    let instance = start("hangs", "2", mounted.at.to_str().expect("letters"));
    let patient = |words: &[&str]| {
        let mut command = instance.command(words[0]);
        in_time(words[0], || command.args(&words[1..]).output().expect("forebay runs"))
    };
    in_instance(&instance, "echo before > before; head -c 1000000 /dev/urandom > large");
    flushed(&instance);
    let hanging = Hanging::new(&mounted);
    let mut reader = instance.program(&["sha256sum", "/forebay/unread"]);
    let reader = reader.stdout(Stdio::piped()).spawn().expect("forebay runs");
    let work = "echo meanwhile > meanwhile; cat large | wc -c; mv before after; mkdir d; rm large";
    let read = in_time("a program", || in_instance(&instance, work));
    assert_eq!(read, "1000000\n");
    refused(&patient(&["flush", "--timeout", "2s"]), "does the backing directory answer?");
    let status = printed(patient(&["status", "--json"]), "status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert!(status["writeback"]["dirty"].as_u64() >= Some(4), "{status}");
    refused(&patient(&["stop", "--timeout", "2s"]), "the instance stays");
    in_time("a program", || in_instance(&instance, "echo on > d/on; cat meanwhile"));
    drop(hanging);
    flushed(&instance);
    let sum =
        printed(reader.wait_with_output().expect("its end"), "the reader of the backing file");
    let left = "find . -type f | LC_ALL=C sort; cat after d/on meanwhile";
    let found = "./after\n./d/on\n./meanwhile\n./unread\nbefore\non\nmeanwhile\n";
    assert_eq!(shell(&mounted.at, left), found);
    assert!(sum.starts_with(&shell(&mounted.at, "sha256sum < unread | cut -c-64 | tr -d '\\n'")));
    in_instance(&instance, "echo dropped > dropped");
    let hanging = Hanging::new(&mounted);
    printed(patient(&["stop", "--discard", "--timeout", "3s"]), "stop");
    drop(hanging);
    instance.start_again();
    assert_eq!(in_instance(&instance, "ls"), "after\nd\nmeanwhile\nunread\n");
}

#[test]
fn external_changes_are_preserved_and_reported() {
    let backing = Backing::new();
    backing.file("both", 1, 1000);
    backing.file("theirs", 2, 1000);
    let instance = start("others", "1", &backing.text());
    in_instance(&instance, "cat both theirs | wc -c");
    backing.file("both", 3, 500);
    backing.file("new", 4, 400);
    let long = "n".repeat(255);
    in_instance(&instance, &format!("echo ours > both; echo ours > new; echo long > {long}"));
    flushed(&instance);
    assert_eq!(fs::metadata(backing.path("both")).expect("theirs").len(), 500);
    assert_eq!(fs::metadata(backing.path("new")).expect("theirs").len(), 400);
    assert_eq!(shell(backing.dir.path(), "cat *.forebay-conflict-*"), "ours\nours\n");
    assert_eq!(shell(backing.dir.path(), &format!("cat {long}")), "long\n");
    let status = instance.status();
    assert_eq!(status["writeback"]["conflicts"], 2, "{status}");
    assert_eq!(in_instance(&instance, "cat both new"), "ours\nours\n");
}

#[test]
fn each_host_writes_back_its_own_changes() {
    let backing = Backing::with_all_kinds();
    let path: &'static str = backing.text().leak();
    let Some(world) = World::started(&[("FOREBAY_BACKING", path)]) else { return };
    for (number, host) in HOSTS.into_iter().enumerate() {
        let script = format!(
            "cd /forebay; mkdir h{number}; head -c 5000000 /dev/urandom > h{number}/large; \
             for n in {{1..50}}; do echo $n > h{number}/$n; done; rm many/f{number}"
        );
        world.shell(host, &script, "");
    }
    let list = world.shell(HOSTS[0], &format!("cd /forebay; {LIST}"), "");
    let sums = world.shell(HOSTS[1], &format!("cd /forebay; {SUMS}"), "");
    // Stopping writes everything back.
    world.end();
    assert_eq!(shell(backing.dir.path(), LIST), list);
    assert_eq!(shell(backing.dir.path(), SUMS), sums);
}

/// With mode `end` only an explicit flush writes back.
#[test]
fn flush_of_a_subtree_writes_only_that_subtree() {
    let backing = Backing::new();
    let text_in_backing = backing.text();
    let end = ["--writeback", "end", "--local", "2", "--memory", "96MiB", "--ssd", "64MiB"];
    let options = [&end[..], &["--backing", &text_in_backing]].concat();
    let instance = Instance::start("part", &options);
    in_instance(
        &instance,
        "mkdir -p d/e/f g; for n in d/1 d/e/f/2 g/3 g/4 5; do echo $n > $n; done",
    );
    let flush = |paths: &[&str]| {
        let mut command = instance.command("flush");
        command.arg("--json").args(paths).output().expect("forebay runs")
    };
    let is_there =
        |names: &str| assert_eq!(shell(backing.dir.path(), "find . -type f | sort"), names);
    let said_json: serde_json::Value =
        serde_json::from_str(&printed(flush(&["/forebay/g/3"]), "a file")).expect("JSON");
    assert_eq!(said_json["paths"][0], "/forebay/g/3", "{said_json}");
    is_there("./g/3\n");
    printed(flush(&["/forebay/d/e"]), "a directory in one that is not there");
    is_there("./d/e/f/2\n./g/3\n");
    in_instance(&instance, "mv g/3 d/3; rm d/e/f/2; mkdir d/new; echo 6 > d/new/6");
    printed(flush(&["/forebay/d", "/forebay/g/4"]), "two");
    is_there("./d/1\n./d/3\n./d/new/6\n./g/4\n");
    refused(&flush(&["/forebay/nowhere"]), "cannot flush: /forebay/nowhere: no such file");
    refused(&flush(&["/tmp"]), "not in the instance");
    flushed(&instance);
    is_there("./5\n./d/1\n./d/3\n./d/new/6\n./g/4\n");
    let without = Instance::start("nothing", &["--memory", "32MiB", "--ssd", "0"]);
    let nothing = without.command("flush").arg("/forebay").output().expect("forebay runs");
    refused(&nothing, "no backing directory");
}
