//! Directories whose files have two copies, in an instance that keeps three: one death takes nothing, and
//! two at a time take what files of two copies had on both, which is an error, is listed, and is never
//! zeros; files with three copies go on.

use super::followers::{copies_in_sync, services};
use super::one_copy::{await_lost, layout, lost, set_replicas};
use super::replicas::{COPIED, await_copies, directory, many, sum};
use super::{kill_host_c, presences, wait_until_all_are_up};
use crate::support::agent::signal;
use crate::support::world::World;
use crate::support::{text, wait_for};
use std::collections::BTreeSet;

/// Files that `many` writes in a directory.
const FILES: usize = 60;

/// With three copies, of which two may be on the daemons of host c.
fn started() -> Option<World> {
    let more =
        [("FOREBAY_REPLICAS", "3"), ("FOREBAY_FOLLOWERS", "2"), ("FOREBAY_SAME_DOMAIN", "on")];
    let world = World::started(&[&COPIED[..], &more].concat())?;
    wait_until_all_are_up(&world);
    Some(world)
}

fn lose_host_c(world: &World) {
    // One of two followers may be on that host, too.
    wait_for("all services have two followers in sync", || {
        let services = services(world);
        services.len() == 8 && services.iter().all(|it| copies_in_sync(it) == 2)
    });
    kill_host_c(world);
    wait_for("data is out of reach", || sum(world, "units_lost") > 0);
}

/// The answers of `many` in a directory whose files had this byte: it, or an error, of both some.
fn some(found: &[String], byte: &str) -> BTreeSet<usize> {
    let is_known = |it: &String| it == byte || it == "!5";
    assert!(found.len() == FILES && found.iter().all(is_known), "{found:?}");
    let lost: BTreeSet<usize> = (0..FILES).filter(|&at| found[at] == "!5").collect();
    assert!((1..FILES).contains(&lost.len()), "{found:?}");
    lost
}

#[test]
fn two_deaths_take_bytes_with_two_copies_and_files_with_three_go_on() {
    let Some(world) = started() else { return };
    let three = directory(&world);
    let two = format!("{three}/two");
    let within = format!("{two}/within");
    world.shell("a", "mkdir -p $1", &two);
    set_replicas(&world, &two, "2");
    world.shell("a", "mkdir $1", &within);
    await_copies(&world);
    let table = text(&world.on("a", &["status"]).stdout);
    assert!(table.contains("all units of file data have all their copies in sync"), "{table}");
    for (directory, copies) in [(&three, 3), (&two, 2), (&within, 2)] {
        assert_eq!(many(&world, "write", directory, "7"), vec!["7"; FILES]);
        for path in [directory.clone(), format!("{directory}/f0")] {
            assert_eq!(layout(&world, &path)["replicas"], copies, "{path}");
        }
    }
    // One death.
    signal(world.pid("b"), "-KILL");
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    for directory in [&three, &within] {
        assert_eq!(many(&world, "read", directory, "0"), vec!["7"; FILES]);
        assert_eq!(many(&world, "write", directory, "8"), vec!["8"; FILES]);
    }
    assert_eq!(lost(&world, "down"), (BTreeSet::new(), 0));
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);

    lose_host_c(&world);
    assert_eq!(many(&world, "read", &three, "0"), vec!["8"; FILES]);
    let (of_two, of_within) = (
        some(&many(&world, "read", &two, "0"), "7"),
        some(&many(&world, "read", &within, "0"), "8"),
    );
    let paths = |directory: &str, files: &BTreeSet<usize>| {
        files.iter().map(|number| format!("{directory}/f{number}")).collect::<BTreeSet<_>>()
    };
    let expected = &paths(&two, &of_two) | &paths(&within, &of_within);
    await_lost(&world, &expected);
    for path in paths(&three, &(0..3).collect()) {
        let state = layout(&world, &path)["state"].clone();
        assert!(state == "degraded" || state == "in-sync", "{path} is {state}");
    }
    assert_eq!(layout(&world, expected.first().expect("one"))["state"], "down");
    // Writers find the same, and new files have their copies.
    assert_eq!(many(&world, "write", &three, "9"), vec!["9"; FILES]);
    assert_eq!(some(&many(&world, "write", &within, "9"), "9"), of_within);
    world.shell("a", "rm $1/f*", &three);
    // They return with what they had.
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    let byte = |number| if of_within.contains(&number) { "8" } else { "9" };
    let expected: Vec<&str> = (0..FILES).map(byte).collect();
    assert_eq!(many(&world, "read", &within, "0"), expected);
    assert_eq!(many(&world, "read", &two, "0"), vec!["7"; FILES]);
    assert_eq!(lost(&world, "down"), (BTreeSet::new(), 0));
    world.end();
}

#[test]
fn a_file_keeps_its_copies_when_its_directory_is_changed() {
    let Some(world) = started() else { return };
    let directory = directory(&world);
    let make = |name: &str, copies: &str| {
        set_replicas(&world, &directory, copies);
        world.shell("a", "echo $1 > $1", &format!("{directory}/{name}"));
    };
    for (name, copies) in [("x", "2"), ("y", "1"), ("z", "3")] {
        make(name, copies);
    }
    set_replicas(&world, &directory, "2");
    for (name, copies) in [("x", 2), ("y", 1), ("z", 3)] {
        assert_eq!(layout(&world, &format!("{directory}/{name}"))["replicas"], copies, "{name}");
    }
    world.shell("a", "cp $1/z $1/w; mv $1/z $1/v", &directory);
    for (name, copies) in [("w", 2), ("v", 3)] {
        assert_eq!(layout(&world, &format!("{directory}/{name}"))["replicas"], copies, "{name}");
    }
    world.end();
}
