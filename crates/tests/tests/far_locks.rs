//! Locks between hosts: of processes, of open files, and of whole files by `flock`, on the same files by
//! preloaded programs and on mounts. Who waits for one gets it when its holder gives it back, when the
//! holder's process is killed, and when the program that serves its mount is; of two that wait for each
//! other one is told so. And what `rename` puts in the place of a file is there at once for preloaded
//! programs on all hosts.
//!
//! Namespaces need root, a mount needs `/dev/fuse`. Without, the tests say so and state nothing.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};
use support::agent::{Agent, Mount, signal};
use support::wait_for;
use support::world::World;

const EAGAIN: &str = "!11";
const EDEADLK: &str = "!35";

/// "Locks hold between hosts" (docs/semantics.md).
#[test]
fn locks_hold_between_hosts_and_are_waited_for() {
    let Some(world) = World::posix() else { return };
    let mount = Mount::new(&world, "b");
    let mut first = Agent::preloaded(&world, "a", "/forebay");
    first.ok("open f f c");
    let mut others = vec![Agent::preloaded(&world, "c", "/forebay")];
    others.extend(mount.as_ref().map(Agent::on));
    for other in &mut others {
        for (now, wait) in [("lock", "lockw"), ("ofd", "ofdw")] {
            first.ok(&format!("{now} f f w 10 20"));
            assert_eq!(other.ask(&format!("{now} f f r 29 1")), EAGAIN, "{}", other.name);
            other.ok(&format!("{now} f f w 30 5"));
            assert_eq!(first.ask(&format!("{now} f f r 0 100")), EAGAIN);
            if now == "lock" {
                assert_eq!(other.ok("test f f w 0 100"), "w 10 20", "{}", other.name);
            }
            other.begin(&format!("{wait} f f w 15 1"));
            first.ok(&format!("{now} f f u 0 0"));
            assert_eq!(other.hear(), "ok", "{}", other.name);
            other.ok(&format!("{now} f f u 0 0"));
        }
        first.ok("flock f f r");
        other.ok("flock f f r");
        assert_eq!(other.ask("flock f f w"), EAGAIN, "{}", other.name);
        other.begin("flockw f f w");
        first.ok("flock f f u");
        assert_eq!(other.hear(), "ok", "{}", other.name);
        other.ok("flock f f u");
    }
    drop((first, others, mount));
    world.end();
}

#[test]
fn two_hosts_that_wait_for_each_other_are_told() {
    let Some(world) = World::posix() else { return };
    let mount = Mount::new(&world, "b");
    let mut first = Agent::preloaded(&world, "a", "/forebay");
    first.ok("open f f c");
    let mut others = vec![Agent::preloaded(&world, "c", "/forebay")];
    others.extend(mount.as_ref().map(Agent::on));
    for other in &mut others {
        first.ok("lock f f w 0 10");
        other.ok("lock f f w 10 10");
        first.begin("lockw f f w 10 10");
        other.begin("lockw f f w 0 10");
        // One of the two comes second, and is the one that is told; the other goes on then.
        let is_told = |agent: &mut Agent| {
            let said = agent.hear();
            assert!(said == "ok" || said == EDEADLK, "{}: {said}", agent.name);
            agent.ok("lock f f u 0 0");
            said == EDEADLK
        };
        let told = std::thread::scope(|scope| {
            let first = scope.spawn(|| is_told(&mut first));
            [is_told(other), first.join().expect("it is told or goes on")]
        });
        assert!(told[0] != told[1], "{}: {told:?}", other.name);
    }
    drop((first, others, mount));
    world.end();
}

/// Each has a file of a shard of another host, and waits for the next one's.
#[test]
fn of_a_ring_over_three_hosts_one_is_told() {
    let Some(world) = World::posix() else { return };
    let mount = Mount::new(&world, "b");
    let second =
        mount.as_ref().map_or_else(|| Agent::preloaded(&world, "b", "/forebay"), Agent::on);
    let mut ring = [
        Agent::preloaded(&world, "a", "/forebay"),
        second,
        Agent::preloaded(&world, "c", "/forebay"),
    ];
    // Directories in the root are of one shard after the other, and so of one host after the other.
    for (number, agent) in ring.iter_mut().enumerate() {
        agent.ok(&format!("mkdir d{number}"));
        agent.ok(&format!("open {number} d{number}/f c"));
        agent.ok(&format!("lock {number} d{number}/f w 0 10"));
    }
    let begun = Instant::now();
    for (number, agent) in ring.iter_mut().enumerate() {
        let next = (number + 1) % 3;
        agent.begin(&format!("lockw {next} d{next}/f w 5 1"));
    }
    // Who is told gives back what he has, and so does each that goes on.
    let told = std::thread::scope(|scope| {
        let all = ring.iter_mut().enumerate().map(|(number, agent)| {
            scope.spawn(move || {
                let said = agent.hear();
                assert!(said == "ok" || said == EDEADLK, "{}: {said}", agent.name);
                agent.ok(&format!("lock {number} d{number}/f u 0 0"));
                said == EDEADLK
            })
        });
        let all: Vec<_> = all.collect();
        let told = all.into_iter().map(|one| one.join().expect("it is told or goes on"));
        told.filter(|is_told| *is_told).count()
    });
    assert_eq!(told, 1, "one is enough");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop((ring, mount));
    world.end();
}

#[test]
fn locks_of_who_is_killed_end() {
    let Some(world) = World::posix() else { return };
    let mut waiter = Agent::preloaded(&world, "a", "/forebay");
    waiter.ok("open f f c");
    for how in ["lock", "ofd", "flock"] {
        let range = if how == "flock" { "" } else { " 0 0" };
        let mut holder = Agent::preloaded(&world, "c", "/forebay");
        holder.ok(&format!("{how} f f w{range}"));
        waiter.begin(&format!("{how}w f f w{range}"));
        holder.kill();
        assert_eq!(waiter.hear(), "ok", "{how}");
        waiter.ok(&format!("{how} f f u{range}"));
        let Some(mount) = Mount::new(&world, "b") else { continue };
        let mut holder = Agent::on(&mount);
        holder.ok(&format!("{how} f f w{range}"));
        waiter.begin(&format!("{how}w f f w{range}"));
        mount.kill();
        assert_eq!(waiter.hear(), "ok", "{how}: the mount is gone");
        waiter.ok(&format!("{how} f f u{range}"));
    }
    drop(waiter);
    world.end();
}

/// Who tells the shard that they end is told nothing while its daemon is away, and tells it again.
#[test]
fn locks_of_who_is_killed_end_when_the_daemon_of_the_file_is_back() {
    let Some(world) = World::posix() else { return };
    let mut waiter = Agent::preloaded(&world, "b", "/forebay");
    // The root's entries are on the first host.
    waiter.ok("open f f c");
    let (mut mounts, mut ways) = (vec![], vec!["lock", "ofd", "flock"]);
    ways.extend(Path::new("/dev/fuse").exists().then_some(ways.clone()).into_iter().flatten());
    for (number, how) in ways.into_iter().enumerate() {
        let mount = (number >= 3).then(|| Mount::new(&world, "c").expect("there is /dev/fuse"));
        let seat = || Agent::preloaded(&world, "c", "/forebay");
        let mut holder = mount.as_ref().map_or_else(seat, Agent::on);
        let range = if how == "flock" { "" } else { " 0 0" };
        holder.ok(&format!("{how} f f w{range}"));
        signal(world.pid("a"), "-KILL");
        match &mount {
            None => holder.kill(),
            Some(mount) => mount.kill(),
        }
        wait_for("its host to take note", || world.programs("c") == 0);
        world.start();
        waiter.begin(&format!("{how}w f f w{range}"));
        assert_eq!(waiter.hear(), "ok", "{how} by {}", holder.name);
        waiter.ok(&format!("{how} f f u{range}"));
        mounts.push((holder, mount));
    }
    drop((waiter, mounts));
    world.end();
}

/// Puts whole files in the place of another, so many times: who, count.
const REPLACER: &str = r#"
import os
for n in range(COUNT):
    length = 1 + (n * 7919) % 30000
    with open('d/fileME', 'wb') as file: file.write(b'%d ' % length + b'x' * length)
    os.rename('d/fileME', 'd/file')
"#;

/// Reads the file that is there, which is a whole one each time.
const READER: &str = r#"
import os
for n in range(COUNT):
    with open('d/file', 'rb') as file: data = file.read()
    length, rest = data.split(b' ', 1)
    assert rest == b'x' * int(length), (length, len(rest))
"#;

#[test]
fn what_is_renamed_over_a_file_is_there_at_once_and_whole() {
    let Some(world) = World::posix() else { return };
    let script = |name: &str, text: &str, me: &str| {
        world.script(name, text, &[("COUNT", "200"), ("ME", me)])
    };
    let mut seats = ["a", "b", "c", "a"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    seats[0].ok("mkdir d");
    seats[0].ok(&script("first", REPLACER, "9"));
    for (me, seat) in seats.iter_mut().enumerate() {
        let text = if me < 2 { REPLACER } else { READER };
        seat.begin(&script(&format!("script{me}"), text, &me.to_string()));
    }
    for seat in &mut seats {
        assert_eq!(seat.hear(), "ok", "{}", seat.name);
    }
    drop(seats);
    world.end();
}
