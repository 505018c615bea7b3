//! Locks between hosts: of processes, of open files, and of whole files by `flock`, on the same
//! files by preloaded programs and on mounts. A waiter gets a lock when its holder releases it,
//! when the holder is killed, and when the server of its mount is killed; of two processes that
//! wait for each other, one gets EDEADLK. A file that `rename` puts in the place of another is seen
//! at once by preloaded programs on all hosts.
//!
//! Network namespaces need root, a mount needs `/dev/fuse`. Without them the tests are skipped.

use crate::support::agent::{Agent, Mount, signal};
use crate::support::wait_for;
use crate::support::world::World;
use std::path::Path;

const EAGAIN: &str = "!11";
const EDEADLK: &str = "!35";

/// "Locks hold between hosts" (docs/semantics/sharing.md).
#[test]
fn locks_hold_between_hosts_and_waiters_get_them() {
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
            assert_eq!(other.reply(), "ok", "{}", other.name);
            other.ok(&format!("{now} f f u 0 0"));
        }
        first.ok("flock f f r");
        other.ok("flock f f r");
        assert_eq!(other.ask("flock f f w"), EAGAIN, "{}", other.name);
        other.begin("flockw f f w");
        first.ok("flock f f u");
        assert_eq!(other.reply(), "ok", "{}", other.name);
        other.ok("flock f f u");
    }
    drop((first, others, mount));
    world.end();
}

#[test]
fn a_deadlock_of_two_hosts_is_detected() {
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
        // The second of the two requests is refused; the other process continues then.
        let is_refused = |agent: &mut Agent| {
            let reply = agent.reply();
            assert!(reply == "ok" || reply == EDEADLK, "{}: {reply}", agent.name);
            agent.ok("lock f f u 0 0");
            reply == EDEADLK
        };
        let reported = std::thread::scope(|scope| {
            let first = scope.spawn(|| is_refused(&mut first));
            [is_refused(other), first.join().expect("it fails or continues")]
        });
        assert!(reported[0] != reported[1], "{}: {reported:?}", other.name);
    }
    drop((first, others, mount));
    world.end();
}

/// Each has locked a file of another host's shard, and waits for the next one's.
#[test]
fn a_deadlock_over_three_hosts_fails_one_request() {
    let Some(world) = World::posix() else { return };
    let mount = Mount::new(&world, "b");
    let second =
        mount.as_ref().map_or_else(|| Agent::preloaded(&world, "b", "/forebay"), Agent::on);
    let mut ring = [
        Agent::preloaded(&world, "a", "/forebay"),
        second,
        Agent::preloaded(&world, "c", "/forebay"),
    ];
    // Directories in the root are on the shards in turn, and so on the hosts in turn.
    for (number, agent) in ring.iter_mut().enumerate() {
        agent.ok(&format!("mkdir d{number}"));
        agent.ok(&format!("open {number} d{number}/f c"));
        agent.ok(&format!("lock {number} d{number}/f w 0 10"));
    }
    for (number, agent) in ring.iter_mut().enumerate() {
        let next = (number + 1) % 3;
        agent.begin(&format!("lockw {next} d{next}/f w 5 1"));
    }
    // The refused process releases its lock, and so does each process that continues.
    let reported = std::thread::scope(|scope| {
        let all = ring.iter_mut().enumerate().map(|(number, agent)| {
            scope.spawn(move || {
                let reply = agent.reply();
                assert!(reply == "ok" || reply == EDEADLK, "{}: {reply}", agent.name);
                agent.ok(&format!("lock {number} d{number}/f u 0 0"));
                reply == EDEADLK
            })
        });
        let all: Vec<_> = all.collect();
        let reported = all.into_iter().map(|one| one.join().expect("it fails or continues"));
        reported.filter(|is_refused| *is_refused).count()
    });
    assert_eq!(reported, 1, "one is enough");
    drop((ring, mount));
    world.end();
}

#[test]
fn locks_of_a_killed_process_are_released() {
    let Some(world) = World::posix() else { return };
    let mut waiter = Agent::preloaded(&world, "a", "/forebay");
    waiter.ok("open f f c");
    for how in ["lock", "ofd", "flock"] {
        let range = if how == "flock" { "" } else { " 0 0" };
        let mut holder = Agent::preloaded(&world, "c", "/forebay");
        holder.ok(&format!("{how} f f w{range}"));
        waiter.begin(&format!("{how}w f f w{range}"));
        holder.kill();
        assert_eq!(waiter.reply(), "ok", "{how}");
        waiter.ok(&format!("{how} f f u{range}"));
        let Some(mount) = Mount::new(&world, "b") else { continue };
        let mut holder = Agent::on(&mount);
        holder.ok(&format!("{how} f f w{range}"));
        waiter.begin(&format!("{how}w f f w{range}"));
        mount.kill();
        assert_eq!(waiter.reply(), "ok", "{how}: the mount is gone");
        waiter.ok(&format!("{how} f f u{range}"));
    }
    drop(waiter);
    world.end();
}

/// The releasing daemon gets no answer while the shard's daemon is away, and repeats the release.
#[test]
fn locks_of_a_killed_process_are_released_when_the_files_daemon_restarts() {
    let Some(world) = World::posix() else { return };
    let mut waiter = Agent::preloaded(&world, "b", "/forebay");
    // The root's entries are on the first host.
    waiter.ok("open f f c");
    let (mut mounts, mut ways) = (vec![], vec!["lock", "ofd", "flock"]);
    ways.extend(Path::new("/dev/fuse").exists().then_some(ways.clone()).into_iter().flatten());
    for (number, how) in ways.into_iter().enumerate() {
        let mount = (number >= 3).then(|| Mount::new(&world, "c").expect("there is /dev/fuse"));
        let agent = || Agent::preloaded(&world, "c", "/forebay");
        let mut holder = mount.as_ref().map_or_else(agent, Agent::on);
        let range = if how == "flock" { "" } else { " 0 0" };
        holder.ok(&format!("{how} f f w{range}"));
        signal(world.pid("a"), "-KILL");
        match &mount {
            None => holder.kill(),
            Some(mount) => mount.kill(),
        }
        wait_for("its host to notice it", || world.programs("c") == 0);
        world.start();
        waiter.begin(&format!("{how}w f f w{range}"));
        assert_eq!(waiter.reply(), "ok", "{how} by {}", holder.name);
        waiter.ok(&format!("{how} f f u{range}"));
        mounts.push((holder, mount));
    }
    drop((waiter, mounts));
    world.end();
}

/// Replaces a file by whole files `count` times: number of the writer, count.
const REPLACER: &str = r#"
import os
for n in range(COUNT):
    length = 1 + (n * 7919) % 30000
    with open('d/fileME', 'wb') as file: file.write(b'%d ' % length + b'x' * length)
    os.rename('d/fileME', 'd/file')
"#;

/// Reads the file, which must be whole each time.
const READER: &str = r#"
import os
for n in range(COUNT):
    with open('d/file', 'rb') as file: data = file.read()
    length, rest = data.split(b' ', 1)
    assert rest == b'x' * int(length), (length, len(rest))
"#;

#[test]
fn a_file_renamed_over_another_is_seen_at_once_and_whole() {
    let Some(world) = World::posix() else { return };
    let script = |name: &str, text: &str, me: &str| {
        world.script(name, text, &[("COUNT", "200"), ("ME", me)])
    };
    let mut agents = ["a", "b", "c", "a"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    agents[0].ok("mkdir d");
    agents[0].ok(&script("first", REPLACER, "9"));
    for (me, agent) in agents.iter_mut().enumerate() {
        let text = if me < 2 { REPLACER } else { READER };
        agent.begin(&script(&format!("script{me}"), text, &me.to_string()));
    }
    for agent in &mut agents {
        assert_eq!(agent.reply(), "ok", "{}", agent.name);
    }
    drop(agents);
    world.end();
}
