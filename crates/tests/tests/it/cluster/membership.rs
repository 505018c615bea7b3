//! With failure domains the daemons agree on which of them are alive: one that is killed or cut off is
//! down for the others until it returns, one that only stands still is not, and nothing else changes.

use super::{presences, status, wait_until_all_are_up};
use crate::support::agent::signal;
use crate::support::wait_for;
use crate::support::world::{HOSTS, World, ip};
use serde_json::Value;

const DOMAINS: [(&str, &str); 2] = [("FOREBAY_DOMAINS", "auto"), ("FOREBAY_WORKERS", "2")];
/// The first daemon of each host.
const FIRST: [usize; 3] = [0, 1, 2];

#[test]
fn a_daemon_that_was_killed_is_down_until_it_returns() {
    let Some(world) = World::started(&DOMAINS) else { return };
    wait_until_all_are_up(&world);
    let first = status(&world);
    let domains = |of: &Value| {
        of["membership"]["members"].as_array().map(|all| {
            all.iter().map(|one| one["domain"].as_u64().expect("a number")).collect::<Vec<_>>()
        })
    };
    assert_eq!(domains(&first), Some(vec![0, 1, 2, 2]));
    assert_eq!(first["membership"]["owners"].as_array().map(Vec::len), Some(8));
    let names: Vec<_> =
        first["daemons"].as_array().expect("daemons").iter().map(|one| &one["domain"]).collect();
    assert_eq!(names, ["a", "b", "c", "c"]);
    // In turn, so that the leader is among them.
    for (host, index) in HOSTS.into_iter().zip(FIRST) {
        signal(world.pid(host), "-KILL");
        wait_for("the death is agreed on", || presences(&world).get(index) == Some(&"down".into()));
        let dead = status(&world);
        assert_eq!(dead["membership"]["owners"][index], Value::Null, "{dead}");
        assert_eq!(dead["membership"]["owners"][4 + index], Value::Null, "{dead}");
        let table = world.on("b", &["status"]);
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.contains(&format!("daemon {index} is down")), "{table}");
        assert!(table.contains("4 daemons in 3 failure domains"), "{table}");
        world.start();
        wait_until_all_are_up(&world);
    }
    world.shell("a", "echo one >/forebay/f", "");
    assert_eq!(world.shell("c", "cat /forebay/f", ""), "one\n");
    let metrics = world.ok("a", &["status", "--prometheus"]);
    assert!(metrics.contains("forebay_membership_epoch"), "{metrics}");
    world.end();
}

#[test]
fn a_daemon_that_stands_still_is_not_down() {
    let Some(world) = World::started(&DOMAINS) else { return };
    wait_until_all_are_up(&world);
    // Each time it is asked about after it was missed.
    let reached = |world: &World| -> u64 {
        let status = status(world);
        let daemons = status["daemons"].as_array().expect("daemons");
        daemons.iter().filter_map(|one| one["state"]["daemons_reached"].as_u64()).sum()
    };
    for host in ["a", "b"] {
        let (stopped, before) = (world.pid(host), reached(&world));
        signal(stopped, "-STOP");
        wait_for("its host was found alive", || reached(&world) >= before + 12);
        assert_eq!(presences(&world), ["up"; 4], "while {host} stands still");
        signal(stopped, "-CONT");
        wait_until_all_are_up(&world);
    }
    world.end();
}

#[test]
fn a_host_that_is_cut_off_is_down_until_it_is_connected() {
    let Some(world) = World::started(&DOMAINS) else { return };
    wait_until_all_are_up(&world);
    let hub = format!("{}hub", world.prefix);
    let link = |host: &str, state: &str| assert!(ip(&format!("-n {hub} link set v{host} {state}")));
    for _ in 0..2 {
        link("c", "down");
        wait_for("the cut is noticed", || presences(&world) == ["up", "up", "down", "down"]);
        link("c", "up");
        wait_until_all_are_up(&world);
    }
    // Without a majority nothing changes, and with one again everything goes on.
    HOSTS.iter().for_each(|host| link(host, "down"));
    let leads = |one: &Value| one["state"]["membership"]["leads"] == true;
    wait_for("nobody leads", || {
        !status(&world)["daemons"].as_array().expect("daemons").iter().any(leads)
    });
    HOSTS.iter().for_each(|host| link(host, "up"));
    wait_until_all_are_up(&world);
    assert_eq!(world.shell("b", "mkdir /forebay/d; ls /forebay", ""), "d\n");
    world.end();
}
