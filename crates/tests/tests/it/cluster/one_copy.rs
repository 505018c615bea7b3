//! Directories whose files have one copy, in an instance that keeps two: what is on a node that dies is
//! an error, is listed, and is never zeros; everything else goes on, and so do files with two copies.

use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, end_host_b, fill, python,
};
use super::{presences, status, wait_until_all_are_up};
use crate::support::agent::signal;
use crate::support::world::World;
use crate::support::{text, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// `write`s, `reserve`s or `read`s a file of some bytes, and prints the bytes that it has, or the errno.
const ONE: &str = r"
import ctypes, os, sys
verb, path, byte = sys.argv[1], sys.argv[2], int(sys.argv[3])
def reserve(fd):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(100000)):
        raise OSError(ctypes.get_errno(), 'fallocate')
try:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if verb == 'reserve': reserve(fd)
    if verb == 'write': os.pwrite(fd, bytes([byte]) * 50000, 0)
    if verb == 'write': os.fsync(fd)
    print(*set(os.pread(fd, 50000, 0)))
except OSError as error: print(f'!{error.errno}')
";

/// Writes 64 stripes, each with its number, or prints what each of them has: a byte or the errno.
const STRIPES: &str = r"
import os, sys
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
for number in range(64):
    try:
        if sys.argv[1] == 'write': os.pwrite(fd, bytes([number]) * 65536, number << 16)
        print(*set(os.pread(fd, 65536, number << 16)))
    except OSError as error: print(f'!{error.errno}')
";

/// An instance with a time limit that calls for what is down may wait for.
fn started() -> Option<World> {
    let world = World::started(&[&COPIED[..], &[("FOREBAY_TIMEOUT", "30s")]].concat())?;
    wait_until_all_are_up(&world);
    Some(world)
}

fn one(world: &World, host: &str, verb: &str, path: &str, byte: u8) -> String {
    let byte = byte.to_string();
    world.ok(host, &["run", "--", "python3", "-c", ONE, verb, path, &byte]).trim().to_owned()
}

fn stripes(world: &World, host: &str, verb: &str, path: &str) -> Vec<String> {
    let answers = world.ok(host, &["run", "--", "python3", "-c", STRIPES, verb, path]);
    answers.lines().map(str::to_owned).collect()
}

pub(super) fn layout(world: &World, path: &str) -> Value {
    serde_json::from_str(&world.ok("a", &["layout", "get", "--json", path])).expect("an object")
}

pub(super) fn set_replicas(world: &World, directory: &str, count: &str) {
    world.ok("a", &["layout", "set", "--replicas", count, directory]);
}

/// Answer of `forebay lost` once it is whole: after a death, services are silent until others have them.
fn lost_files(world: &World) -> Vec<Value> {
    let mut files = None;
    wait_for("all services say which of their files are lost", || {
        let answer = text(&world.on("a", &["lost", "--json"]).stdout);
        let answer: Value = serde_json::from_str(&answer).expect("an object");
        let list = answer["lost"].as_array().expect("files");
        let is_whole = list.iter().all(|file| file["path"].is_string());
        files = (answer["services_silent"] == 0 && is_whole).then(|| list.clone());
        files.is_some()
    });
    files.expect("files")
}

/// Paths of the files that `forebay lost` lists for this reason, and their number in all.
pub(super) fn lost(world: &World, what: &str) -> (BTreeSet<String>, usize) {
    let files = lost_files(world);
    let path = |file: &Value| format!("/forebay{}", file["path"].as_str().expect("a path"));
    (files.iter().filter(|file| file["what"] == what).map(path).collect(), files.len())
}

/// Waits until the table of units of a host has a death, and these files alone are listed.
pub(super) fn await_lost(world: &World, expected: &BTreeSet<String>) {
    wait_for(&format!("{expected:?} are lost"), || {
        lost(world, "down") == (expected.clone(), expected.len())
    });
}

#[test]
fn files_with_one_copy_are_lost_with_their_node_and_no_other_bytes_are() {
    let Some(world) = started() else { return };
    let kept = directory(&world);
    let scratch = format!("{kept}/scratch");
    world.shell("a", "mkdir -p $1", &scratch);
    world.ok("a", &["layout", "set", "--replicas", "1", "--stripe-count", "local", &scratch]);
    // Directories inherit it.
    let within = format!("{scratch}/within");
    world.shell("a", "mkdir $1", &within);
    assert_eq!(layout(&world, &within)["replicas"], 1);
    assert_eq!(layout(&world, &kept)["replicas"], 2);
    let file = format!("{kept}/file");
    fill(&world, &file);
    let [on_a, on_b, wide] = ["a", "b", "wide"].map(|name| format!("{within}/{name}"));
    for (host, path, target) in [("a", &on_a, 0), ("b", &on_b, 1)] {
        // Its bytes are in the memory of the program's host, as in an instance without copies.
        assert_eq!(one(&world, host, "reserve", path, 0), "0", "{path}");
        assert_eq!(one(&world, host, "write", path, 7), "7", "{path}");
        let layout = layout(&world, path);
        assert_eq!((&layout["replicas"], &layout["targets"]), (&json!(1), &json!([target])));
    }
    assert_eq!(one(&world, "a", "reserve", &file, 0), "!95", "of files with copies none is");
    world.ok("a", &["layout", "set", "--stripe-count", "all", &within]);
    assert_eq!(stripes(&world, "c", "write", &wide).len(), 64);
    assert_eq!(one(&world, "c", "read", &on_b, 0), "7");
    assert_eq!(lost(&world, "down"), (BTreeSet::new(), 0));

    end_host_b(&world);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    let expected = BTreeSet::from([on_b.clone(), wide.clone()]);
    await_lost(&world, &expected);
    for (path, state) in [(&on_a, "in-sync"), (&on_b, "down"), (&wide, "down")] {
        assert_eq!(layout(&world, path)["state"], state, "{path}");
    }
    assert_eq!(one(&world, "a", "read", &on_b, 0), "!5");
    for host in ["a", "c"] {
        check(&world, host, &file, 0);
        assert_eq!(one(&world, host, "read", &on_a, 0), "7");
    }
    assert_eq!(one(&world, "c", "write", &on_a, 8), "8");

    world.ok("a", &["replace", "b"]);
    wait_until_all_are_up(&world);
    await_copies(&world);
    for (path, state) in [(&on_a, "in-sync"), (&on_b, "lost"), (&wide, "lost"), (&file, "in-sync")]
    {
        assert_eq!(layout(&world, path)["state"], state, "{path}");
    }
    lost_until_they_are_emptied(&world, [&on_b, &wide]);
    check(&world, "b", &file, 0);
    assert_eq!(one(&world, "b", "read", &on_a, 0), "8");
    assert_eq!(one(&world, "b", "write", &format!("{scratch}/new"), 9), "9");
    assert_eq!(lost(&world, "copies"), (BTreeSet::new(), 0));
    world.end();
}

/// The bytes of these files that were on the node that was replaced are an error.
fn lost_until_they_are_emptied(world: &World, [on_b, wide]: [&String; 2]) {
    let expected = BTreeSet::from([on_b.clone(), wide.clone()]);
    assert_eq!(lost(world, "copies"), (expected, 2));
    for host in ["a", "b"] {
        assert_eq!(one(world, host, "read", on_b, 0), "!5", "never zeros");
        let found = stripes(world, host, "read", wide);
        let is_right = |(number, it): (usize, &String)| *it == number.to_string() || it == "!5";
        assert!(found.iter().enumerate().all(is_right), "{found:?}");
        let gone = found.iter().filter(|it| *it == "!5").count();
        assert!((1..64).contains(&gone), "{found:?}");
    }
    world.shell("a", ": > $1", on_b);
    assert_eq!(one(world, "a", "write", on_b, 9), "9");
    assert_eq!(one(world, "c", "read", on_b, 0), "9");
    world.shell("a", "rm $1", wide);
}

#[test]
fn a_directory_is_changed_while_files_in_it_are_written_which_keep_their_copies() {
    let Some(world) = started() else { return };
    let directory = directory(&world);
    let [two, single, later] = ["two", "single", "later"].map(|name| format!("{directory}/{name}"));
    let mut writer = python(&world, "a", ROUNDS, &["write", &two]);
    await_rounds(&mut writer);
    set_replicas(&world, &directory, "1");
    await_rounds(&mut writer);
    world.ok("a", &["layout", "set", "--stripe-count", "local", &directory]);
    let mut other = python(&world, "c", ROUNDS, &["write", &single]);
    await_rounds(&mut other);
    set_replicas(&world, &directory, "2");
    world.ok("a", &["layout", "set", "--stripe-count", "all", &directory]);
    fill(&world, &later);
    await_rounds(&mut writer);
    await_rounds(&mut other);
    for (path, count) in [(&two, 2), (&single, 1), (&later, 2), (&directory, 2)] {
        assert_eq!(layout(&world, path)["replicas"], count, "{path}");
    }
    world.shell("a", "mkdir $1/other && mv $1/single $1/other/single", &directory);
    let moved = format!("{directory}/other/single");
    assert_eq!(layout(&world, &moved)["replicas"], 1, "a name is no other file");
    end_host_b(&world);
    await_rounds(&mut writer);
    await_rounds(&mut other);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    await_rounds(&mut writer);
    await_rounds(&mut other);
    let (last, last_of_other) = (end(&mut writer), end(&mut other));
    drop((writer, other));
    for host in ["a", "c"] {
        check(&world, host, &two, last);
        check(&world, host, &moved, last_of_other);
        check(&world, host, &later, 0);
    }
    assert_eq!(lost(&world, "down"), (BTreeSet::new(), 0));
    world.end();
}

/// Bytes in memory of a daemon, or on its SSD, that are used.
fn used(world: &World, daemon: usize) -> u64 {
    let status = status(world);
    let state = &status["daemons"][daemon]["state"];
    let word = |name: &str| state[name].as_u64().unwrap_or(0);
    word("memory_used") + word("ssd_used")
}

#[test]
fn files_with_one_copy_are_back_with_their_daemon_and_removed_ones_are_not() {
    let Some(world) = started() else { return };
    let directory = directory(&world);
    world.ok("a", &["layout", "set", "--replicas", "1", "--stripe-count", "local", &directory]);
    let [stays, goes] = ["stays", "goes"].map(|name| format!("{directory}/{name}"));
    assert_eq!(one(&world, "b", "write", &stays, 3), "3");
    let before = used(&world, 1);
    for path in [&goes, &stays] {
        assert_eq!(one(&world, "b", "write", path, 4), "4");
    }
    assert!(used(&world, 1) > before, "bytes are there");
    signal(world.pid("b"), "-KILL");
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    world.shell("a", "rm $1", &goes);
    // The copies of others do not wait for that.
    set_replicas(&world, &directory, "2");
    let kept = format!("{directory}/kept");
    fill(&world, &kept);
    world.shell("a", "rm $1", &kept);
    world.start();
    wait_until_all_are_up(&world);
    assert_eq!(one(&world, "a", "read", &stays, 0), "4");
    await_copies(&world);
    wait_for("what was removed meanwhile is free", || used(&world, 1) <= before);
    assert_eq!(lost(&world, "down"), (BTreeSet::new(), 0));
    world.end();
}

/// Files with one copy may be at any daemon: either directories have some, or daemons leave.
#[test]
fn an_instance_with_files_of_one_copy_does_not_shrink_and_the_other_way_round() {
    let Some(world) = started() else { return };
    let directory = directory(&world);
    set_replicas(&world, &directory, "2");
    set_replicas(&world, &directory, "1");
    let output = world.on("a", &["shrink", "c"]);
    let answer = text(&output.stderr).trim().to_owned();
    assert!(answer.contains("no daemon can leave: directories have"), "{answer}");
    assert_eq!((output.status.code(), answer.lines().count()), (Some(2), 1), "{answer}");
    world.end();

    let Some(world) = started() else { return };
    let directory = self::directory(&world);
    world.ok("a", &["shrink", "c"]);
    let output = world.on("a", &["layout", "set", "--replicas", "1", &directory]);
    let answer = text(&output.stderr).trim().to_owned();
    assert!(!output.status.success() && answer.lines().count() == 1, "{answer}");
    assert!(answer.contains("no files with one copy: daemons leave the instance"), "{answer}");
    set_replicas(&world, &directory, "2");
    std::fs::write(world.path("nodes"), "a 10.79.0.1\nb 10.79.0.2\n").expect("written");
    world.end();
}

#[test]
fn more_copies_than_those_of_the_instance_are_refused() {
    let Some(world) = started() else { return };
    let directory = directory(&world);
    for (count, part) in [
        (
            "3",
            "have at most 2 copies, as it was started with --replicas 2, and that cannot be changed",
        ),
        ("0", "--replicas cannot be \"0\": give 1, 2 or 3, at most the number"),
        ("4", "--replicas cannot be \"4\": give 1, 2 or 3, at most the number"),
    ] {
        let output = world.on("a", &["layout", "set", "--replicas", count, &directory]);
        let answer = text(&output.stderr).trim().to_owned();
        assert_eq!((output.status.code(), answer.lines().count()), (Some(2), 1), "{answer}");
        assert!(answer.contains(part), "{answer}");
    }
    // Programs set the same by an attribute.
    let set = "import os, sys\n\
               try: os.setxattr(sys.argv[1], 'user.forebay.replicas', sys.argv[2].encode())\n\
               except OSError as error: print(f'!{error.errno}')\n\
               print(os.getxattr(sys.argv[1], 'user.forebay.replicas').decode())";
    let set =
        |path: &str, count: &str| world.ok("a", &["run", "--", "python3", "-c", set, path, count]);
    assert_eq!(set(&directory, "3"), "!95\n2\n");
    assert_eq!(set(&directory, "x"), "!22\n2\n");
    assert_eq!(set(&directory, "1"), "1\n");
    let file = format!("{directory}/file");
    assert_eq!(one(&world, "a", "write", &file, 1), "1");
    assert_eq!(set(&file, "2"), "!20\n1\n");
    assert_eq!(set(&directory, "2"), "2\n");
    assert_eq!(layout(&world, &file)["replicas"], 1);
    world.end();
}
