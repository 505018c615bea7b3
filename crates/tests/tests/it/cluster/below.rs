//! A backing store below copies: what programs write has its copies until it is there, and is there
//! though a node dies before; what all copies of are gone comes from there.

use super::replicas::{
    COPIED, ROUNDS, await_copies, check, directory, end_host, end_host_b, fill, many,
};
use super::{presences, wait_until_all_are_up};
use crate::support::agent::signal;
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

fn end_host_c(world: &World) {
    for pid in world.daemons("c").iter().filter_map(|one| one["pid"].as_u64()) {
        signal(u32::try_from(pid).expect("a process"), "-KILL");
    }
    wait_for("the deaths are agreed on", || presences(world) == ["up", "up", "down", "down"]);
}

/// Paths of the files that `forebay lost` lists.
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
    end_host_c(&world);
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
    let listed: BTreeSet<String> = lost(&world).iter().map(name).collect();
    assert!(!listed.is_empty() && listed == expected, "{listed:?} {expected:?}");
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
    assert!(!lost(&world).is_empty(), "what was changed there is out of reach");
    world.ok("a", &["replace", "b"]);
    wait_until_all_are_up(&world);
    let found = many(&world, "read", directory, "0");
    assert!(found.iter().all(|it| it == "7" || it == "!5"), "{found:?}");
    assert!(found.iter().any(|it| it == "7") && found.iter().any(|it| it == "!5"), "{found:?}");
    let expected = (0..60).filter(|&at| found[at] == "!5").map(|at| format!("/in/f{at}"));
    let listed = lost(&world).into_iter().collect::<BTreeSet<String>>();
    assert_eq!(listed, expected.collect::<BTreeSet<String>>());
    let flushed = world.on("a", &["flush"]);
    assert!(!flushed.status.success(), "what is lost cannot be saved");
    // Those that are emptied are whole again, and all can be saved.
    for path in &listed {
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
