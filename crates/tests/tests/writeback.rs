//! What is made and changed in an instance over a directory (`--backing`) comes to lie there: all kinds
//! of files, by programs and by a mount; the writer and daemons are killed meanwhile; the directory is
//! full, read-only, away, or changed by others.

mod support;

use std::fs;
use std::process::{Command, Output, Stdio};
use support::below::{Below, CHANGES, LIST, SUMS, above, said, shell, start};
use support::mounted::{Mounted, has_fuse};
use support::tier::{Hanging, Small, writer};
use support::world::{HOSTS, World};
use support::{Instance, Random, in_time, setting, text, wait_for};
use tests::content;

/// Extended attributes.
const EXTENDED: &str = "python3 -c 'import os\n\
for at, names, files in os.walk(\".\"):\n  for file in sorted(files + names):\n    \
path = os.path.join(at, file)\n    print([path, [(n, os.getxattr(path, n, follow_symlinks=False)) \
for n in os.listxattr(path, follow_symlinks=False)]])' | LC_ALL=C sort";

fn flush(instance: &Instance) -> Output {
    instance.command("flush").output().expect("forebay runs")
}

fn flushed(instance: &Instance) {
    said(flush(instance), "flush");
}

fn assert_equal(instance: &Instance, below: &Below, what: &str) {
    for script in [LIST, SUMS, EXTENDED] {
        assert_eq!(shell(below.place.path(), script), above(instance, script), "{what}");
    }
    let names = shell(below.place.path(), "find . -name '.forebay-*'");
    assert_eq!(names, "", "{what}: temporary names are left");
}

/// What is made, changed, renamed and removed comes to lie below.
#[test]
fn what_is_changed_in_the_instance_comes_to_lie_below() {
    for daemons in ["1", "3"] {
        let below = Below::with_all_kinds();
        let instance = start(&format!("arrives{daemons}"), daemons, &below.text());
        for (number, change) in CHANGES.into_iter().enumerate() {
            above(&instance, change);
            // Some of them are saved together with those before.
            if number % 5 == 0 {
                flushed(&instance);
                assert_equal(&instance, &below, change);
            }
        }
        flushed(&instance);
        assert_equal(&instance, &below, "in the end");
        let of_links = "ln a/f30 linked; ln a/f30 many/too; rm a/f30; echo new > linked";
        above(&instance, of_links);
        flushed(&instance);
        assert_equal(&instance, &below, of_links);
        let twins = "find . -samefile linked | sort";
        assert_eq!(shell(below.place.path(), twins), "./linked\n./many/too\n");
        // Without being asked for, too.
        above(&instance, "echo soon > soon");
        wait_for("a file that is closed", || below.path("soon").exists());
    }
}

#[test]
fn what_is_written_by_a_mount_comes_to_lie_below() {
    if !has_fuse() {
        return;
    }
    let below = Below::with_all_kinds();
    let instance = start("bymount", "2", &below.text());
    let mounted = Mounted::new(&instance, "bymount");
    for change in CHANGES {
        shell(&mounted.path(""), change);
    }
    // What is removed is gone for the kernel soon, which the flush waits for.
    flushed(&instance);
    for script in [LIST, SUMS, EXTENDED] {
        assert_eq!(shell(below.place.path(), script), shell(&mounted.path(""), script));
    }
}

/// A file that lies below and of which somebody may read on lies aside as long as he does: what is here
/// of it may be dropped.
#[test]
fn a_removed_file_is_read_on_by_who_has_it_open() {
    let below = Below::new();
    below.file("old", 1, 5_000_000);
    let instance = start("readon", "1", &below.text());
    above(&instance, "echo new > new");
    flushed(&instance);
    let hold = "cd /forebay; exec 3< old 4< new; rm old new; touch held; read -r go || :; \
                cat <&3 | wc -c; cat <&4";
    let mut holder = instance.program(&["bash", "-ec", hold]);
    let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("forebay runs");
    wait_for("it holds them", || below.path("held").exists());
    flushed(&instance);
    let names = "ls -A | sed 's/aside-.*/aside/'";
    assert_eq!(shell(below.place.path(), names), ".forebay-aside\n.forebay-aside\nheld\n");
    drop(holder.stdin.take());
    let read = said(holder.wait_with_output().expect("its end"), "who reads on");
    assert_eq!(read, "5000000\nnew\n");
    flushed(&instance);
    assert_eq!(shell(below.place.path(), "ls -A"), "held\n");
}

#[test]
fn the_writer_and_daemons_may_be_killed_at_any_moment() {
    let below = Below::with_all_kinds();
    let instance = start("killedwriter", "2", &below.text());
    let mut random = Random::new(setting("SEED", 1));
    for (number, change) in CHANGES.into_iter().enumerate() {
        above(&instance, change);
        let mut flushing = instance.command("flush").spawn().expect("forebay runs");
        let wanted = random.below(40);
        let begun = std::time::Instant::now();
        wait_for("a moment, or the end", || {
            begun.elapsed().as_millis() as u64 >= wanted
                || flushing.try_wait().expect("it is ours").is_some()
        });
        if number % 4 == 3 {
            let daemon = instance.daemon(random.below(2) as usize);
            daemon.kill();
            daemon.wait();
        } else {
            support::kill(writer(&instance));
        }
        instance.start_again();
        let _ = flushing.wait();
    }
    flushed(&instance);
    assert_equal(&instance, &below, "in the end");
}

fn refused(output: &Output, reason: &str) {
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains(reason), "{said}");
}

#[test]
fn a_directory_that_is_full_or_read_only_keeps_nothing_from_being_saved_later() {
    let Some(small) = Small::new("2M") else { return eprintln!("no mounts: nothing stated") };
    let path = small.path().to_str().expect("letters").to_owned();
    let instance = start("full", "1", &path);
    above(&instance, "echo fits > fits; head -c 3000000 /dev/urandom > large; mkdir d");
    refused(&flush(&instance), "large: No space left on device");
    assert_eq!(fs::read(small.path().join("fits")).expect("it fits"), b"fits\n");
    assert!(!small.path().join("large").exists(), "it is there in part");
    let stop = instance.command("stop").output().expect("forebay runs");
    refused(&stop, "the instance stays; --discard drops what is not saved");
    let status = instance.status();
    assert_eq!(status["writer"]["failures"][0][0], "large", "{status}");
    assert!(small.mount(&["-o", "remount,size=8M"]), "larger");
    flushed(&instance);
    assert!(small.mount(&["-o", "remount,ro"]), "read-only");
    above(&instance, "echo later > d/later; rm fits");
    refused(&flush(&instance), "Read-only file system");
    assert!(small.mount(&["-o", "remount,rw"]), "to write again");
    flushed(&instance);
    assert_eq!(shell(small.path(), "find . -type f | sort"), "./d/later\n./large\n");
    let sums = "sha256sum large";
    assert_eq!(shell(small.path(), sums), above(&instance, sums));
}

#[test]
fn a_directory_that_is_away_is_waited_for_and_no_other_is_written_to() {
    let Some(small) = Small::new("8M") else { return eprintln!("no mounts: nothing stated") };
    let elsewhere = tempfile::tempdir().expect("a directory");
    let instance = start("away", "1", small.path().to_str().expect("letters"));
    above(&instance, "echo before > before");
    flushed(&instance);
    let place = elsewhere.path().to_str().expect("letters");
    let path = small.path().to_str().expect("letters");
    said(Command::new("mount").args(["--bind", path, place]).output().expect("runs"), "bind");
    said(Command::new("umount").args(["-l", path]).output().expect("runs"), "umount");
    above(&instance, "echo meanwhile > meanwhile; rm before");
    refused(&flush(&instance), "is it mounted?");
    assert_eq!(fs::read_dir(path).expect("there").count(), 0, "the wrong directory");
    said(Command::new("mount").args(["--bind", place, path]).output().expect("runs"), "back");
    flushed(&instance);
    assert_eq!(shell(small.path(), "ls"), "meanwhile\n");
    said(Command::new("umount").args(["-l", place]).output().expect("runs"), "umount");
}

#[test]
fn a_file_system_that_does_not_answer_keeps_nobody_but_the_writer() {
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
    above(&instance, "echo before > before; head -c 1000000 /dev/urandom > large");
    flushed(&instance);
    let hanging = Hanging::new(&mounted);
    let mut reader = instance.program(&["sha256sum", "/forebay/unread"]);
    let reader = reader.stdout(Stdio::piped()).spawn().expect("forebay runs");
    let work = "echo meanwhile > meanwhile; cat large | wc -c; mv before after; mkdir d; rm large";
    let read = in_time("a program", || above(&instance, work));
    assert_eq!(read, "1000000\n");
    refused(&patient(&["flush", "--timeout", "2s"]), "does what lies below answer?");
    let status = said(patient(&["status", "--json"]), "status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert!(status["writer"]["unsaved"].as_u64() >= Some(4), "{status}");
    refused(&patient(&["stop", "--timeout", "2s"]), "the instance stays");
    in_time("a program", || above(&instance, "echo on > d/on; cat meanwhile"));
    drop(hanging);
    flushed(&instance);
    let sum = said(reader.wait_with_output().expect("its end"), "who reads what is below");
    let left = "find . -type f | LC_ALL=C sort; cat after d/on meanwhile";
    let found = "./after\n./d/on\n./meanwhile\n./unread\nbefore\non\nmeanwhile\n";
    assert_eq!(shell(&mounted.at, left), found);
    assert!(sum.starts_with(&shell(&mounted.at, "sha256sum < unread | cut -c-64 | tr -d '\\n'")));
    above(&instance, "echo dropped > dropped");
    let hanging = Hanging::new(&mounted);
    said(patient(&["stop", "--discard", "--timeout", "3s"]), "stop");
    drop(hanging);
    instance.start_again();
    assert_eq!(above(&instance, "ls"), "after\nd\nmeanwhile\nunread\n");
}

#[test]
fn what_others_changed_below_is_kept_and_said() {
    let below = Below::new();
    below.file("both", 1, 1000);
    below.file("theirs", 2, 1000);
    let instance = start("others", "1", &below.text());
    above(&instance, "cat both theirs | wc -c");
    below.file("both", 3, 500);
    below.file("new", 4, 400);
    let long = "n".repeat(255);
    above(&instance, &format!("echo ours > both; echo ours > new; echo long > {long}"));
    flushed(&instance);
    assert_eq!(fs::metadata(below.path("both")).expect("theirs").len(), 500);
    assert_eq!(fs::metadata(below.path("new")).expect("theirs").len(), 400);
    assert_eq!(shell(below.place.path(), "cat *.forebay-conflict-*"), "ours\nours\n");
    assert_eq!(shell(below.place.path(), &format!("cat {long}")), "long\n");
    let status = instance.status();
    assert_eq!(status["writer"]["conflicts"], 2, "{status}");
    assert_eq!(above(&instance, "cat both new"), "ours\nours\n");
}

#[test]
fn each_host_has_what_it_wrote_saved() {
    let below = Below::with_all_kinds();
    let path: &'static str = below.text().leak();
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
    // Stopping saves all.
    world.end();
    assert_eq!(shell(below.place.path(), LIST), list);
    assert_eq!(shell(below.place.path(), SUMS), sums);
}

/// With `end` nothing is saved unless it is asked for.
#[test]
fn a_part_of_the_tree_is_flushed_alone() {
    let below = Below::new();
    let text_below = below.text();
    let end = ["--write-back", "end", "--local", "2", "--memory", "96MiB", "--ssd", "64MiB"];
    let options = [&end[..], &["--backing", &text_below]].concat();
    let instance = Instance::start("part", &options);
    above(&instance, "mkdir -p d/e/f g; for n in d/1 d/e/f/2 g/3 g/4 5; do echo $n > $n; done");
    let flush = |paths: &[&str]| {
        let mut command = instance.command("flush");
        command.arg("--json").args(paths).output().expect("forebay runs")
    };
    let is_there =
        |names: &str| assert_eq!(shell(below.place.path(), "find . -type f | sort"), names);
    let said_json: serde_json::Value =
        serde_json::from_str(&said(flush(&["/forebay/g/3"]), "a file")).expect("JSON");
    assert_eq!(said_json["paths"][0], "/forebay/g/3", "{said_json}");
    is_there("./g/3\n");
    said(flush(&["/forebay/d/e"]), "a directory in one that is not there");
    is_there("./d/e/f/2\n./g/3\n");
    above(&instance, "mv g/3 d/3; rm d/e/f/2; mkdir d/new; echo 6 > d/new/6");
    said(flush(&["/forebay/d", "/forebay/g/4"]), "two");
    is_there("./d/1\n./d/3\n./d/new/6\n./g/4\n");
    refused(&flush(&["/forebay/nowhere"]), "can not flush: nowhere: no such file");
    refused(&flush(&["/tmp"]), "not of the instance");
    flushed(&instance);
    is_there("./5\n./d/1\n./d/3\n./d/new/6\n./g/4\n");
    let without = Instance::start("nothing", &["--memory", "32MiB", "--ssd", "0"]);
    let nothing = without.command("flush").arg("/forebay").output().expect("forebay runs");
    refused(&nothing, "no backing directory");
}
