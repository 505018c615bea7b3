//! A backing store below copies: what programs write has its copies until it is there, and is there
//! though a node dies before; what all copies of are gone comes from there; copies are given up for it.

use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, end_host, end_host_b, fill,
    many, python,
};
use super::{kill_host_c, presences, wait_until_all_are_up};
use crate::support::backing::Backing;
use crate::support::world::{HOSTS, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// An instance over a directory to which nothing is written before it is asked for.
fn started(backing: &Backing, more: &[(&'static str, &'static str)]) -> Option<World> {
    let path: &'static str = backing.text().leak();
    let own = [("FOREBAY_BACKING", path), ("FOREBAY_WRITEBACK", "end")];
    let world = World::started(&[&COPIED[..], &own, more].concat())?;
    wait_until_all_are_up(&world);
    Some(world)
}

/// Compares a file of the backing directory with the one of the instance.
fn compare(world: &World, host: &str, name: &str, backing: &Backing) {
    let script = format!("cmp /forebay/{name} $1");
    world.shell(host, &script, backing.path(name).to_str().expect("letters"));
}

/// Paths of the files that `forebay lost` lists, but of services that have no owner yet after a death.
fn lost(world: &World) -> Vec<String> {
    let output = world.on("a", &["lost", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let files = answer["lost"].as_array().expect("files").iter();
    files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
}

#[test]
fn what_a_dead_node_wrote_reaches_the_backing_store() {
    let backing = Backing::new();
    backing.file("input", 7, 3 << 20);
    let Some(world) = started(&backing, &[]) else { return };
    for host in HOSTS {
        compare(&world, host, "input", &backing);
    }
    let directory = directory(&world);
    let below = |file: &str| backing.dir.path().join(file.trim_start_matches("/forebay/"));
    let [kept, removed, cut] = ["kept", "removed", "cut"].map(|name| format!("{directory}/{name}"));
    for file in [&kept, &removed, &cut] {
        // The dead node has programs that wrote, and the first copy of a part of the bytes.
        let words = ["run", "--", "python3", "-c", ROUNDS, "fill", file];
        assert_eq!(world.ok("b", &words), "whole\n", "{file}");
        assert!(!below(file).exists(), "it is written back later");
    }
    end_host_b(&world);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    world.ok("a", &["flush"]);
    for file in [&kept, &removed, &cut] {
        check(&world, "a", below(file).to_str().expect("letters"), 0);
    }
    assert_eq!(lost(&world), [""; 0]);
    world.shell("a", "rm $1", &removed);
    world.shell("c", "truncate -s 100000 $1; truncate -s 300000 $1", &cut);
    await_copies(&world);
    world.ok("a", &["flush"]);
    assert!(!below(&removed).exists());
    let [here, there] = [format!("cmp {cut} $1"), "cat $1".to_owned()];
    world.shell("c", &here, below(&cut).to_str().expect("letters"));
    assert_eq!(world.shell("a", &format!("{there} | wc -c"), &cut), "300000\n");
    check(&world, "c", &kept, 0);
    world.end();
    let found = fs::read(below(&cut)).expect("there");
    assert!(found[100_000..].iter().all(|&byte| byte == 0), "what was cut off is zeros");
}

#[test]
fn bytes_without_a_copy_come_from_the_backing_store_if_it_has_them() {
    let backing = Backing::new();
    backing.file("input", 7, 3 << 20);
    // Both copies of some data are on host c.
    let Some(world) = started(&backing, &[("FOREBAY_SAME_DOMAIN", "on")]) else { return };
    let saved = directory(&world);
    let unsaved = format!("{saved}/unsaved");
    world.shell("a", "mkdir $1", &unsaved);
    assert_eq!(many(&world, "write", &saved, "7"), vec!["7"; 60]);
    world.ok("a", &["flush"]);
    assert_eq!(many(&world, "write", &unsaved, "8"), vec!["8"; 60]);
    kill_host_c(&world);
    wait_for("data is out of reach", || {
        many(&world, "read", &unsaved, "0").iter().any(|it| it == "!5")
    });
    assert_eq!(many(&world, "read", &saved, "0"), vec!["7"; 60], "as they are in the store");
    for host in ["a", "b"] {
        compare(&world, host, "input", &backing);
    }
    let found = many(&world, "read", &unsaved, "0");
    assert!(found.iter().all(|it| it == "8" || it == "!5"), "{found:?}");
    let expected = (0..60).filter(|&at| found[at] == "!5").map(|at| format!("f{at}"));
    let expected: BTreeSet<String> = expected.collect();
    let name = |path: &String| {
        assert!(path.contains("/unsaved/"), "{path}");
        Path::new(path).file_name().expect("a name").to_str().expect("letters").to_owned()
    };
    assert!(!expected.is_empty());
    wait_for(&format!("{expected:?} are lost"), || {
        lost(&world).iter().map(name).collect::<BTreeSet<String>>() == expected
    });
    // They return with what they had, and all of it can be saved.
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    assert_eq!(many(&world, "read", &unsaved, "0"), vec!["8"; 60]);
    assert_eq!(many(&world, "write", &saved, "9"), vec!["9"; 60]);
    fill(&world, &format!("{saved}/whole"));
    world.ok("a", &["flush"]);
    let found = fs::read(backing.dir.path().join(saved.trim_start_matches("/forebay/")).join("f0"));
    assert_eq!(found.expect("there"), vec![9; 50000]);
    assert!(text(&world.on("a", &["status"]).stdout).contains("2 copies in sync"));
    world.end();
}

#[test]
fn changes_of_a_file_with_one_copy_are_an_error_when_they_are_lost() {
    let backing = Backing::new();
    fs::create_dir(backing.path("in")).expect("made");
    for number in 0..60 {
        fs::write(backing.path(&format!("in/f{number}")), vec![5; 50000]).expect("written");
    }
    let Some(world) = started(&backing, &[]) else { return };
    let directory = "/forebay/in";
    assert_eq!(many(&world, "read", directory, "0"), vec!["5"; 60]);
    assert_eq!(many(&world, "write", directory, "7"), vec!["7"; 60]);
    end_host_b(&world);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    wait_for("what was changed there is out of reach", || !lost(&world).is_empty());
    world.ok("a", &["replace", "b"]);
    wait_until_all_are_up(&world);
    let found = many(&world, "read", directory, "0");
    assert!(found.iter().all(|it| it == "7" || it == "!5"), "{found:?}");
    assert!(found.iter().any(|it| it == "7") && found.iter().any(|it| it == "!5"), "{found:?}");
    let expected = (0..60).filter(|&at| found[at] == "!5").map(|at| format!("/in/f{at}"));
    let expected = expected.collect::<BTreeSet<String>>();
    wait_for(&format!("{expected:?} are lost"), || BTreeSet::from_iter(lost(&world)) == expected);
    let flushed = world.on("a", &["flush"]);
    assert!(!flushed.status.success(), "what is lost cannot be saved");
    // Those that are emptied are whole again, and all can be saved.
    for path in &expected {
        world.shell("a", "printf new > /forebay$1", path);
    }
    assert_eq!(lost(&world), [""; 0]);
    world.ok("a", &["flush"]);
    for (number, before) in found.iter().enumerate() {
        let expected = if before == "7" { vec![7; 50000] } else { b"new".to_vec() };
        assert_eq!(fs::read(backing.path(&format!("in/f{number}"))).expect("there"), expected);
    }
    world.end();
}

#[test]
fn all_is_saved_while_the_host_of_daemon_0_is_lost() {
    let backing = Backing::new();
    let Some(world) = started(&backing, &[]) else { return };
    let file = format!("{}/f", directory(&world));
    fill(&world, &file);
    let refused = world.on("c", &["flush"]);
    assert!(text(&refused.stderr).contains("on the host of daemon 0"), "{refused:?}");
    end_host(&world, "a", 0);
    wait_for("the death is agreed on", || presences(&world).first() == Some(&"down".into()));
    world.ok("c", &["flush"]);
    let below = backing.dir.path().join(file.trim_start_matches("/forebay/"));
    check(&world, "b", below.to_str().expect("letters"), 0);
    world.shell("b", "printf more >> $1", &file);
    // From the starting host, by one that lives.
    world.ok("a", &["flush"]);
    assert_eq!(fs::read(&below).expect("there").len(), (4 << 20) + 4);
    world.ok("a", &["replace", "a"]);
    wait_until_all_are_up(&world);
    await_copies(&world);
    world.shell("a", "printf more >> $1", &file);
    world.ok("a", &["flush"]);
    assert_eq!(fs::read(&below).expect("there").len(), (4 << 20) + 8);
    world.end();
}

/// Changes a few bytes in the middle of each file of `MANY`, or compares: `change` or `read`, and the
/// directory.
const PARTS: &str = r"
import os, sys
verb, directory = sys.argv[1:]
for number in range(60):
    right = bytes([7]) * 10000 + bytes([9]) * 100 + bytes([7]) * 39900
    with open(f'{directory}/f{number}', 'r+b' if verb == 'change' else 'rb', buffering=0) as file:
        if verb == 'change': os.pwrite(file.fileno(), right[10000:10100], 10000)
        assert file.read() == right, number
print('whole')
";

/// The inode numbers of the files of `MANY`, and of `held`.
fn numbers(world: &World, directory: &str) -> Vec<String> {
    let script = "cd $1; for n in $(seq 0 59); do stat -c %i f$n; done; stat -c %i held";
    world.shell("b", script, directory).lines().map(str::to_owned).collect()
}

#[test]
fn evicted_files_have_the_copy_in_the_backing_store_alone() {
    let backing = Backing::new();
    let Some(world) = started(&backing, &[]) else { return };
    let directory = directory(&world);
    let below = backing.dir.path().join(directory.trim_start_matches("/forebay/"));
    let held = format!("{directory}/held");
    fill(&world, &held);
    assert_eq!(many(&world, "write", &directory, "7"), vec!["7"; 60]);
    let before = numbers(&world, &directory);
    world.on("a", &["evict", &directory]);
    assert_eq!(numbers(&world, &directory), before, "they are nowhere else");
    world.ok("a", &["flush"]);
    let mut reader = python(&world, "c", ROUNDS, &["read", &held]);
    await_rounds(&mut reader);
    world.on("a", &["evict", &directory]);
    let after = numbers(&world, &directory);
    let stays = before.iter().zip(&after).map(|(before, after)| before == after);
    assert_eq!(stays.collect::<Vec<_>>(), [vec![false; 60], vec![true]].concat(), "one is open");
    await_rounds(&mut reader);
    end(&mut reader);
    drop(reader);
    assert_eq!(many(&world, "read", &directory, "0"), vec!["7"; 60]);
    for (host, verb) in [("b", "change"), ("a", "read"), ("c", "read")] {
        let words = ["run", "--", "python3", "-c", PARTS, verb, &directory];
        assert_eq!(world.ok(host, &words), "whole\n", "{host}");
    }
    world.ok("a", &["flush"]);
    for number in 0..60 {
        let found = fs::read(below.join(format!("f{number}"))).expect("there");
        let right = [vec![7; 10000], vec![9; 100], vec![7; 39900]].concat();
        assert!(found == right, "{number}");
    }
    // Whatever had cached them.
    kill_host_c(&world);
    let words = ["run", "--", "python3", "-c", PARTS, "read", &directory];
    assert_eq!(world.ok("a", &words), "whole\n");
    check(&world, "b", &held, 0);
    assert_eq!(lost(&world), [""; 0]);
    world.start();
    wait_until_all_are_up(&world);
    assert_eq!(many(&world, "write", &directory, "9"), vec!["9"; 60]);
    world.ok("a", &["flush"]);
    for number in 0..60 {
        assert_eq!(fs::read(below.join(format!("f{number}"))).expect("there"), vec![9; 50000]);
    }
    world.end();
}

/// Writes or compares 24 files of 4 MiB: `write` or `read`, the directory, and what the contents depend
/// on.
const BURST: &str = r"
import sys
verb, directory, turn = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(24):
    right = (number + 100 * turn + 1).to_bytes(8, 'little') * (1 << 19)
    with open(f'{directory}/f{number}', 'wb' if verb == 'write' else 'rb', buffering=0) as file:
        done = 0
        while verb == 'write' and done < len(right): done += file.write(right[done:])
        if verb == 'read': assert file.read() == right, number
print('whole')
";

/// Memory for two copies of 32 MiB in all, and no SSD.
const SMALL: [(&str, &str); 5] = [
    ("FOREBAY_MEMORY", "16MiB"),
    ("FOREBAY_SSD", "0"),
    ("FOREBAY_STRIPE_SIZE", "1MiB"),
    ("FOREBAY_TIMEOUT", "180s"),
    ("FOREBAY_ENOSPC_TIMEOUT", "120s"),
];

/// "Written-back data makes space" (docs/semantics/backing.md), of files with copies.
#[test]
fn a_burst_larger_than_all_memory_goes_on_with_copies() {
    let backing = Backing::new();
    let Some(world) = started(&backing, &SMALL) else { return };
    let directory = directory(&world);
    let below = backing.dir.path().join(directory.trim_start_matches("/forebay/"));
    let burst = |host: &str, verb: &str, turn: &str| {
        let words = ["run", "--", "python3", "-c", BURST, verb, &directory, turn];
        assert_eq!(world.ok(host, &words), "whole\n", "{verb} on {host}");
    };
    let compare = |turn: u64| {
        world.ok("a", &["flush"]);
        for number in 0..24 {
            let found = fs::read(below.join(format!("f{number}"))).expect("saved");
            let right = (number + 100 * turn + 1).to_le_bytes().repeat(1 << 19);
            assert!(found == right, "{number}");
        }
    };
    burst("b", "write", "0");
    for host in HOSTS {
        burst(host, "read", "0");
    }
    compare(0);
    await_copies(&world);
    assert_eq!(lost(&world), [""; 0]);
    // Over files that gave their copies up.
    burst("c", "write", "1");
    burst("a", "read", "1");
    compare(1);
    // Once more with copies.
    world.shell("a", "rm $1/f*", &directory);
    burst("a", "write", "2");
    burst("b", "read", "2");
    compare(2);
    await_copies(&world);
    world.end();
}
