//! Memory of nodes is reclaimed and lent again while files have two copies there and programs use them.

use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, fill, python, sum,
};
use super::{presences, status, wait_until_all_are_up};
use crate::support::agent::{Agent, signal};
use crate::support::world::World;
use crate::support::{text, wait_for};
use serde_json::Value;
use std::process::Stdio;

const MEMORY: (&str, &str) = ("FOREBAY_MEMORY", "64MiB");
const NO_SSD: (&str, &str) = ("FOREBAY_SSD", "0");

/// Four daemons, and files of 4 MiB with two copies that all have parts of.
struct Lent {
    world: World,
    files: Vec<String>,
}

impl Lent {
    fn new(settings: &[(&'static str, &'static str)], files: usize) -> Option<Lent> {
        let settings = [&COPIED[..], &[("FOREBAY_PLACEMENT", "hash")], settings].concat();
        let world = World::started(&settings)?;
        wait_until_all_are_up(&world);
        let directory = directory(&world);
        let files: Vec<String> =
            (0..files).map(|number| format!("{directory}/r{number}")).collect();
        files.iter().for_each(|file| fill(&world, file));
        await_copies(&world);
        Some(Lent { world, files })
    }

    fn check(&self, hosts: &[&str]) {
        for host in hosts {
            self.files.iter().for_each(|file| check(&self.world, host, file, 0));
        }
    }
}

/// A figure of the daemon of a host with one.
fn figure(world: &World, host: &str, metric: &str) -> u64 {
    world.daemon(host)["state"][metric].as_u64().expect("a number")
}

/// Reclaims all memory of a host, from host a: none is held.
fn reclaim(world: &World, host: &str) {
    let answer = world.ok("a", &["reclaim", "all", host, "--json"]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let daemons = answer["nodes"][0]["daemons"].as_array().expect("daemons");
    for daemon in daemons {
        let figures = (&daemon["allowance"], &daemon["held"], &daemon["used"]);
        assert_eq!(figures, (&0.into(), &0.into(), &0.into()), "{answer}");
    }
}

/// A program that writes a file on host a, and one that reads another one on host c.
fn programs(lent: &Lent) -> (String, [Agent; 2]) {
    let written = format!("{}.written", lent.files[0]);
    let writer = python(&lent.world, "a", ROUNDS, &["write", &written]);
    let reader = python(&lent.world, "c", ROUNDS, &["read", &lent.files[0]]);
    let mut both = [writer, reader];
    both.iter_mut().for_each(await_rounds);
    (written, both)
}

#[test]
fn borrowed_memory_goes_to_the_ssd_before_copies_leave() {
    let Some(lent) = Lent::new(&[MEMORY, ("FOREBAY_SSD", "128MiB")], 4) else { return };
    let (written, mut both) = programs(&lent);
    let world = &lent.world;
    let before = (figure(world, "b", "unit_copies"), sum(world, "unit_bytes_filled"));
    assert!(before.0 > 0 && figure(world, "b", "memory_used") > 0);
    // Bytes that programs use at this moment may stay for longer than the command waits.
    let output = world.on("a", &["reclaim", "all", "b"]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    both.iter_mut().for_each(await_rounds);
    let [last, _] = both.each_mut().map(end);
    drop(both);
    wait_for("all of it is on the SSD", || figure(world, "b", "memory_held") == 0);
    let now = (figure(world, "b", "unit_copies"), sum(world, "unit_bytes_filled"));
    assert_eq!(now, before, "no copy has left");
    assert_eq!((figure(world, "b", "unit_copies_leaving"), sum(world, "units_degraded")), (0, 0));
    assert!(figure(world, "b", "bytes_demoted") > 0);
    lent.check(&["a", "b"]);
    check(world, "c", &written, last);
    world.end();
}

#[test]
fn copies_leave_a_node_without_an_ssd_and_come_back_when_its_memory_is_lent() {
    let Some(lent) = Lent::new(&[MEMORY, NO_SSD], 4) else { return };
    let (written, mut both) = programs(&lent);
    let world = &lent.world;
    let before = figure(world, "b", "unit_copies");
    reclaim(world, "b");
    both.iter_mut().for_each(await_rounds);
    wait_for("its copies are elsewhere", || figure(world, "b", "unit_copies") == 0);
    assert_eq!((sum(world, "units_degraded"), sum(world, "units_lost")), (0, 0));
    both.iter_mut().for_each(await_rounds);
    // The others have all: host b may die.
    signal(world.pid("b"), "-KILL");
    wait_for("the death is agreed on", || presences(world).get(1) == Some(&"down".into()));
    assert_eq!((sum(world, "units_degraded"), sum(world, "units_lost")), (0, 0));
    both.iter_mut().for_each(await_rounds);
    lent.check(&["a"]);
    world.start();
    wait_until_all_are_up(world);
    // Reclaimed memory stays so, and copies that left stay away.
    both.iter_mut().for_each(await_rounds);
    assert_eq!(figure(world, "b", "memory_allowance"), 0);
    assert_eq!(figure(world, "b", "memory_used"), 0);

    world.ok("a", &["lend", "all", "b"]);
    wait_for("its copies are back", || figure(world, "b", "unit_copies") == before);
    await_copies(world);
    assert!(figure(world, "b", "memory_used") > 0);
    both.iter_mut().for_each(await_rounds);
    let [last, _] = both.each_mut().map(end);
    drop(both);
    // The bytes that came back are right: the other copies of some of it are on host c.
    super::kill_host_c(world);
    lent.check(&["a", "b"]);
    check(world, "b", &written, last);
    world.end();
}

#[test]
fn daemons_die_while_copies_leave() {
    let Some(lent) = Lent::new(&[MEMORY, NO_SSD], 6) else { return };
    let (written, mut both) = programs(&lent);
    let world = &lent.world;
    // One that takes copies, then the one that gives its memory back.
    for (host, number) in [("c", 1), ("b", 0)] {
        let daemon = if host == "b" { 1 } else { 3 };
        let mut command = world.command("a", &["reclaim", "all", "b"]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let reclaim = command.spawn().expect("the script runs");
        wait_for("copies leave", || {
            let status = status(world);
            let of_b = &status["daemons"][1]["state"];
            of_b["unit_copies_leaving"].as_u64().is_some_and(|it| it > 0)
                || of_b["unit_copies"] == 0
        });
        let pid = world.daemons(host)[number]["pid"].as_u64().expect("it runs");
        signal(u32::try_from(pid).expect("a process"), "-KILL");
        wait_for("the death is agreed on", || presences(world).get(daemon) == Some(&"down".into()));
        both.iter_mut().for_each(await_rounds);
        // It ends in any case: with what it was told, or without an answer of the dead one.
        reclaim.wait_with_output().expect("it ends");
        world.start();
        wait_until_all_are_up(world);
        await_copies(world);
        self::reclaim(world, "b");
        await_copies(world);
        both.iter_mut().for_each(await_rounds);
        lent.check(&["a"]);
        world.ok("a", &["lend", "all", "b"]);
        wait_for("copies are back", || figure(world, "b", "memory_used") > 0);
        await_copies(world);
    }
    let [last, _] = both.each_mut().map(end);
    drop(both);
    lent.check(&["a", "b", "c"]);
    check(world, "c", &written, last);
    world.end();
}

#[test]
fn copies_stay_where_no_other_node_has_space() {
    // 48 MiB in 64.
    let Some(lent) = Lent::new(&[("FOREBAY_MEMORY", "16MiB"), NO_SSD], 6) else { return };
    let world = &lent.world;
    let output = world.on("a", &["reclaim", "all", "b"]);
    let answer = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    let lines: Vec<&str> = answer.lines().filter(|it| it.contains("still holds")).collect();
    assert_eq!(lines.len(), 1, "{answer}");
    let why = "neither its SSD nor a node of another failure domain has space for its copies";
    assert!(lines[0].starts_with("daemon 1 on b") && lines[0].contains(why), "{answer}");
    assert_eq!((sum(world, "units_degraded"), sum(world, "units_lost")), (0, 0));
    assert!(figure(world, "b", "memory_used") > 0);
    lent.check(&["a", "b"]);
    // Files are removed: what is left has a place.
    let keeps = lent.files.first().expect("a file");
    world.shell("a", "cd \"$(dirname $1)\"; rm r1 r2 r3 r4 r5", keeps);
    wait_for("the memory is given back", || figure(world, "b", "memory_held") == 0);
    check(world, "b", keeps, 0);
    world.ok("a", &["lend", "all", "b"]);
    wait_for("copies are back", || figure(world, "b", "memory_used") > 0);
    await_copies(world);
    check(world, "b", keeps, 0);
    world.end();
}
