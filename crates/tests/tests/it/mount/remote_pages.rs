//! Page caches of the kernels behind mounts of several hosts: cached pages are read again without a
//! request, on the host that has the file and on others, and no read returns older bytes than a
//! write that has returned, from any host; also while a mount is stopped or dead, and after a
//! daemon restarts. Network namespaces need root, a mount needs `/dev/fuse`; without them the tests
//! are skipped. `TEST_SCALE` multiplies the number of writes.

use crate::support::agent::{Agent, Mount, signal};
use crate::support::world::World;
use crate::support::{in_time, wait_for};
use std::sync::mpsc::channel;
use std::time::Duration;

const TIMEOUT: (&str, &str) = ("FOREBAY_TIMEOUT", "30s");

/// The root's names are on the first host.
fn posix() -> Option<World> {
    World::started(&[("FOREBAY_CONSISTENCY", "posix"), TIMEOUT])
}

/// The result of a command, if it completes while the server of the mount is stopped.
fn without(mount: &Mount, agent: &mut Agent, command: &str) -> Option<String> {
    signal(mount.pid, "-STOP");
    let (did, done) = channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let is_done = done.recv_timeout(Duration::from_secs(8)).is_ok();
            signal(mount.pid, "-CONT");
            is_done
        });
        let printed = agent.ok(command);
        let _ = did.send(());
        let is_done_before = waiter.join().expect("the mount continues");
        is_done_before.then_some(printed)
    })
}

#[test]
fn cached_pages_are_read_again_without_a_request_on_all_hosts() {
    let Some(world) = World::started(&[TIMEOUT]) else { return };
    let Some(mounts) = ["a", "b"].map(|host| Mount::new(&world, host)).into_iter().collect() else {
        return;
    };
    let mounts: Vec<Mount> = mounts;
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    maker.ok("open f f c");
    maker.ok("write f f 0 65536 7");
    maker.ok("close f");
    for mount in &mounts {
        let mut reader = Agent::on(mount);
        let name = reader.name.clone();
        let (read, mut before) = ("read r f 0 65536", String::new());
        // The earlier writer has closed the file, but the kernel reports that late.
        let is_read_again = (0..20).any(|_| {
            let _ = reader.ask("close r");
            reader.ok("look r f");
            before = reader.ok(read);
            without(mount, &mut reader, read) == Some(before.clone())
        });
        assert!(is_read_again, "{name}: read again");
        reader.ok("close r");
        reader.ok("look r f");
        assert_eq!(without(mount, &mut reader, read), Some(before), "{name}: opened again");
        // Pages that the mount itself wrote, read by a later open.
        reader.ok("open w f -");
        let all = "read w f 0 65536";
        let before = reader.ok(all);
        reader.ok("write w f 4096 4096 9");
        let now = without(mount, &mut reader, all);
        assert!(now.is_some() && now.as_ref() != Some(&before), "{name}: written");
        reader.ok("close w");
        reader.ok("close r");
        // An open that must update the access time uses pages that the mount wrote.
        reader.ok("look r f");
        assert_eq!(without(mount, &mut reader, read), now, "{name}: contents before the kill");
        reader.ok("close r");
        maker.ok("write f f 4096 4096 7");
        maker.ok("close f");
    }
    drop((maker, mounts));
    world.end();
}

/// The agents write in turn; after each write all of them read.
fn write_in_turn(agents: &mut [Agent], on_mounts: usize, name: &str, then: Option<&str>) {
    for round in 1..=testkit::rounds(50) {
        let value = round % 251;
        let writer = (round / 3) as usize % agents.len();
        let by = &mut agents[writer];
        // Some keep the file open, and some do not.
        if round % 3 == 0 {
            by.ok(&format!("open w {name} -"));
        }
        by.ok(&format!("write w {name} 5000 1 {value}"));
        then.map(|then| by.ok(&format!("{then} w {name}")));
        let by = by.name.clone();
        if round % 3 == 2 {
            agents[writer].ok("close w");
        }
        for (dir, agent) in agents.iter_mut().enumerate() {
            let about = format!("{} after {by}, {name}, round {round}", agent.name);
            assert_eq!(agent.ok("byte r 5000"), value.to_string(), "{about}");
            if dir < on_mounts {
                assert_eq!(agent.ok("peek r 5000"), value.to_string(), "{about}, mapped");
            }
            // A new reader reads it, too.
            if round % 7 == 0 {
                agent.ok("close r");
                agent.ok(&format!("look r {name}"));
                assert_eq!(agent.ok("byte r 5000"), value.to_string(), "{about}, anew");
            }
        }
    }
}

/// The same with stores to a mapping that are flushed. Without a mount beneath it, the preload library
/// maps only bytes that are on its own host.
fn store_in_turn(agents: &mut [Agent], name: &str) {
    for writer in 0..agents.len() {
        agents[writer].ok(&format!("open w {name} -"));
        let mapped = agents[writer].ask("map w 16384 w");
        if mapped == "!19" && agents[writer].name.starts_with("preloaded") {
            agents[writer].ok("close w");
            continue;
        }
        assert!(!mapped.starts_with('!'), "{}: {mapped}", agents[writer].name);
        for value in 1..10 {
            agents[writer].ok(&format!("poke w 9000 {value}"));
            let by = agents[writer].name.clone();
            for agent in agents.iter_mut() {
                assert_eq!(agent.ok("byte r 9000"), value.to_string(), "{} after {by}", agent.name);
            }
        }
        agents[writer].ok("unmap w");
        agents[writer].ok("close w");
    }
}

/// All agents read what the last writer wrote, through files that they keep open and by mappings.
/// `then`: a call that a writer makes after its write.
fn write_alternately(world: &World, then: Option<&str>) {
    let Some(mounts) = ["a", "b", "c"].map(|host| Mount::new(world, host)).into_iter().collect()
    else {
        return;
    };
    let mounts: Vec<Mount> = mounts;
    let mut agents: Vec<Agent> = mounts.iter().map(Agent::on).collect();
    let on_mounts = agents.len();
    agents.extend(["a", "b"].map(|host| Agent::preloaded(world, host, "/forebay")));
    for (number, maker) in [3, 4, 1].into_iter().enumerate() {
        let name = format!("f{number}");
        agents[maker].ok(&format!("open m {name} c"));
        agents[maker].ok(&format!("write m {name} 0 16384 0"));
        agents[maker].ok("close m");
        for agent in &mut agents {
            agent.ok(&format!("look r {name}"));
            assert_eq!(agent.ok("byte r 5000"), "0", "{}", agent.name);
        }
        for agent in agents.iter_mut().take(on_mounts) {
            agent.ok("map r 16384 r");
        }
        write_in_turn(&mut agents, on_mounts, &name, then);
        store_in_turn(&mut agents, &name);
        // Truncated by name, while no agent has the file open for writing.
        agents[maker].ok(&format!("truncate {name} 4096"));
        agents[maker].ok(&format!("truncate {name} 16384"));
        for agent in &mut agents {
            assert_eq!(agent.ok("byte r 5000"), "0", "{} after a truncation", agent.name);
            if agent.name.starts_with("mount") {
                agent.ok("unmap r");
            }
            agent.ok("close r");
        }
    }
    drop((agents, mounts));
}

#[test]
fn readers_of_cached_pages_see_writes_of_any_host() {
    let Some(world) = posix() else { return };
    write_alternately(&world, None);
    world.end();
}

#[test]
fn readers_of_cached_pages_see_writes_of_any_host_in_relaxed_mode() {
    let Some(world) = World::started(&[TIMEOUT]) else { return };
    write_alternately(&world, None);
    world.end();
}

#[test]
fn readers_of_cached_pages_see_delayed_remote_writes() {
    let Some(world) = World::started(&[("FOREBAY_REMOTE_WRITES", "behind"), TIMEOUT]) else {
        return;
    };
    write_alternately(&world, Some("fsync"));
    world.end();
}

#[test]
fn an_unreachable_kernel_delays_page_invalidation_only_briefly() {
    let Some(world) = posix() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let mut writer = Agent::preloaded(&world, "a", "/forebay");
    writer.ok("open f f c");
    writer.ok("write f f 0 4096 1");
    writer.ok("close f");
    let mut reader = Agent::on(&mount);
    reader.ok("look r f");
    assert_eq!(reader.ok("byte r 7"), "1");
    let bounded = |writer: &mut Agent, command: &str| {
        in_time(command, || drop(writer.ok(command)));
    };
    signal(mount.pid, "-STOP");
    bounded(&mut writer, "open f f -");
    in_time("writes that wait once for a stopped mount", || {
        for _ in 0..50 {
            writer.ok("write f f 0 4096 2");
        }
    });
    signal(mount.pid, "-CONT");
    // The resumed mount drops its pages.
    wait_for("the mount to drop its pages", || reader.ok("byte r 7") == "2");
    for value in 3..20 {
        writer.ok(&format!("write f f 0 4096 {value}"));
        assert_eq!(reader.ok("byte r 7"), value.to_string(), "it is invalidated again");
    }
    mount.kill();
    bounded(&mut writer, "write f f 0 4096 1");
    drop((reader, writer, mount));
    world.end();
}

#[test]
fn pages_are_invalidated_also_after_daemon_restarts() {
    let Some(world) = posix() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let mut writers = ["a", "c"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    writers[0].ok("open f f c");
    writers[0].ok("write f f 0 4096 1");
    writers[0].ok("close f");
    let mut reader = Agent::on(&mount);
    reader.ok("look r f");
    assert_eq!(reader.ok("byte r 7"), "1");
    let mut value = 1;
    for host in ["a", "b", "a"] {
        signal(world.pid(host), "-KILL");
        world.start();
        for writer in &mut writers {
            value += 1;
            writer.ok("open f f -");
            writer.ok(&format!("write f f 0 4096 {value}"));
            assert_eq!(reader.ok("byte r 7"), value.to_string(), "{}: it is open", writer.name);
            signal(world.pid(host), "-KILL");
            world.start();
            value += 1;
            writer.ok(&format!("write f f 0 4096 {value}"));
            assert_eq!(
                reader.ok("byte r 7"),
                value.to_string(),
                "{}: the range was locked before",
                writer.name
            );
            writer.ok("close f");
        }
        reader.ok("close r");
        reader.ok("look r f");
        assert_eq!(reader.ok("byte r 7"), value.to_string());
    }
    drop((reader, writers, mount));
    world.end();
}
