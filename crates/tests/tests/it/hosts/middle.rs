//! Bytes that change between the SSD of one host and the reader on another. On the SSD: the reader gets
//! EIO. On the network: somebody between two hosts flips, leaves out, reorders, repeats, replays and
//! adds bytes of the connections between their daemons, and cuts these off: in requests and in the
//! bytes of files, in both directions. Nothing wrong is ever read or stored, the connection is made
//! anew, and the log says it.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::agent::{Agent, crc32};
use crate::support::damage::damage;
use crate::support::middle::{self, Attack, Middle, Way};
use crate::support::world::World;
use crate::support::{text, wait_for};
use std::process::Command;

/// Long enough for transfers by bulk streams.
const LENGTH: usize = 1 << 20;

/// The reply of an agent that read `LENGTH` bytes of one value.
fn all(value: u8) -> String {
    format!("{LENGTH} {}", crc32(&vec![value; LENGTH]))
}

/// Connections that ended because bytes were changed, or are missing, as both daemons count.
fn broken(world: &World) -> u64 {
    let count = |host| {
        let state = world.daemon(host)["state"].clone();
        let counted = ["wire_tampered", "wire_incomplete"].map(|name| state[name].as_u64());
        counted.map(|count| count.expect("a number")).iter().sum::<u64>()
    };
    count("a") + count("b")
}

/// True for the reply of a call that succeeded; a call that failed must say that it is EIO.
fn is_done(what: &str, reply: &str) -> bool {
    assert!(!reply.starts_with('!') || reply == "!5", "{what}: {reply}");
    !reply.starts_with('!')
}

/// Works from both hosts until the attack has happened, and compares everything that is read.
/// The file holds `before` and is overwritten by `after`.
fn work(what: &str, middle: &Middle, agents: &mut [Agent; 2], (before, after): (u8, u8)) {
    let [a, b] = agents;
    let mut number = 0;
    let (mut is_written, mut is_begun) = (false, false);
    while !middle.has_happened() || !is_written {
        number += 1;
        assert!(number < 100, "{what}: not so many bytes at once: {:?}", middle.largest());
        // One of the two reads from the other host. A write that failed may have stored any part.
        for agent in [&mut *a, &mut *b] {
            let reply = agent.ask(&format!("read f f 0 {LENGTH}"));
            if is_done(what, &reply) && !is_begun {
                assert_eq!(reply, all(before), "{what}: {} reads", agent.name);
            }
        }
        for (agent, name) in [(&mut *a, "a"), (&mut *b, "b")] {
            for directory in 0..2 {
                let file = format!("d{directory}/{name}{number}");
                let _ = is_done(what, &agent.ask(&format!("open x {file} c")));
                let _ = is_done(what, &agent.ask("close x"));
                let reply = agent.ask(&format!("stat {file}"));
                assert!(["0", "!2", "!5"].contains(&&*reply), "{what}: {file}: {reply}");
            }
        }
        is_begun = true;
        for agent in [&mut *a, &mut *b] {
            let reply = agent.ask(&format!("write f f 0 {LENGTH} {after}"));
            is_written = is_done(what, &reply) && middle.has_happened();
        }
    }
    // Everything works again, and both see what was written last.
    for agent in [&mut *a, &mut *b] {
        let read = format!("read f f 0 {LENGTH}");
        let mut reply = String::new();
        wait_for("a read after the attack", || {
            reply = agent.ask(&read);
            is_done(what, &reply)
        });
        assert_eq!(reply, all(after), "{what}: {}", agent.name);
    }
}

fn logs(world: &World) -> String {
    let mut lines = String::new();
    for host in ["a", "b"] {
        let find = ["-name", "d*.log", "-exec", "cat", "{}", "+"];
        let found = Command::new("find").arg(world.path(host)).args(find).output();
        lines += &text(&found.expect("find").stdout);
    }
    lines
}

#[test]
fn no_attack_between_hosts_is_read_or_stored() {
    let seed = testkit::seed(1);
    let Some((world, middle)) = middle::world(seed) else { return };
    for directory in 0..2 {
        world.shell("a", "mkdir /forebay/d$1", &directory.to_string());
    }
    let mut agents = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    agents[1].ok("open f f c");
    agents[1].ok(&format!("write f f 0 {LENGTH} 0"));
    let mut before = 0;
    // A frame, and the bytes of a file.
    for (kind, least) in [1, 16 << 10].into_iter().enumerate() {
        for (number, attack) in Attack::ALL.into_iter().enumerate() {
            let ways = [Way::AToB, Way::BToA];
            // Each attack on each kind of bytes; a long run does it in both directions.
            let first = (kind + number) % 2;
            let count = if testkit::is_long() { 2 } else { 1 };
            for way in ways.into_iter().cycle().skip(first).take(count) {
                let what = format!("seed {seed}: {attack:?}, {way:?}, {least}");
                let counted = broken(&world);
                middle.prepare(attack, way, least);
                let after = before + 1;
                work(&what, &middle, &mut agents, (before, after));
                before = after;
                if attack != Attack::Cut {
                    wait_for(&what, || broken(&world) > counted);
                }
            }
        }
    }
    let logs = logs(&world);
    assert!(logs.contains("a record was changed on its way: connection closed"), "{logs}");
    assert!(logs.contains("a record was changed on its way: bulk stream closed"), "{logs}");
    assert!(logs.matches("a record was changed").count() <= 28, "at most a line for each: {logs}");
    drop(agents);
    world.end();
}

/// "Damaged data is an error, never data" (docs/semantics/durability.md), on whatever host it is read.
#[test]
fn damage_on_the_ssd_of_another_host_is_an_error() {
    // More than the memory of all hosts, which take what one has no memory for.
    const COUNT: u8 = 96;
    let settings =
        [("FOREBAY_MEMORY", "16MiB"), ("FOREBAY_SSD", "96MiB"), ("FOREBAY_SCRUB_RATE", "0")];
    let Some(world) = World::started(&settings) else { return };
    let mut agents = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    for number in 1..=COUNT {
        agents[1].ok(&format!("open {number} {number} c"));
        agents[1].ok(&format!("write {number} {number} 0 {LENGTH} {number}"));
        agents[1].ok(&format!("close {number}"));
    }
    let user = rustix::process::geteuid().as_raw();
    let data = world.path("data").join(format!("forebay-{user}-{}/d1", world.prefix));
    let pages = damage(&data, |page| page % 200 == 7);
    assert!(pages > 3, "{pages} pages: most data is on the SSD");
    let mut damaged = 0;
    for number in 1..=COUNT {
        let reply = agents[0].ask(&format!("read {number} {number} 0 {LENGTH}"));
        match &*reply {
            "!5" => damaged += 1,
            reply => assert_eq!(reply, all(number), "file {number}"),
        }
    }
    assert!((3..COUNT).contains(&damaged), "{damaged} of {COUNT}");
    assert!(logs(&world).contains("checksum differs"));
    drop(agents);
    world.end();
}
