//! Pages that kernels behind mounts of several hosts keep: what was read is read again without a request,
//! on the host that has the file and on others, and nobody reads what was there before a write that has
//! returned, whichever host it came from; also while a mount stands still or is dead, and after a daemon
//! started again. Namespaces need root, a mount needs `/dev/fuse`; without, the tests say so and state
//! nothing. `ROUNDS` sets how many writes.

mod support;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::agent::{Agent, Mount, signal};
use support::world::World;

/// A mount that can not be told holds up others for 4.5 s at most; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(6);

const TIMEOUT: (&str, &str) = ("FOREBAY_TIMEOUT", "10s");

/// The root's names are the first host's.
fn posix() -> Option<World> {
    World::started(&[("FOREBAY_CONSISTENCY", "posix"), TIMEOUT])
}

/// What a command comes to, if it is done while the program that serves the mount stands still.
fn without(mount: &Mount, agent: &mut Agent, command: &str) -> Option<String> {
    signal(mount.pid, "-STOP");
    let (did, done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = done.recv_timeout(Duration::from_secs(2));
            signal(mount.pid, "-CONT");
        });
        let begun = Instant::now();
        let said = agent.ok(command);
        let is_soon = begun.elapsed() < Duration::from_secs(2);
        let _ = did.send(());
        is_soon.then_some(said)
    })
}

#[test]
fn what_was_read_is_read_again_without_a_request_on_all_hosts() {
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
        // Who wrote it before has closed it, but a kernel tells that late.
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
        // What it wrote itself, and the next one who opens it.
        reader.ok("open w f -");
        let all = "read w f 0 65536";
        let before = reader.ok(all);
        reader.ok("write w f 4096 4096 9");
        let now = without(mount, &mut reader, all);
        assert!(now.is_some() && now.as_ref() != Some(&before), "{name}: written");
        reader.ok("close w");
        reader.ok("close r");
        // An open whose access time is to follow finds what was written by the mount.
        reader.ok("look r f");
        assert_eq!(without(mount, &mut reader, read), now, "{name}: what was written before");
        reader.ok("close r");
        maker.ok("write f f 4096 4096 7");
        maker.ok("close f");
    }
    drop((maker, mounts));
    world.end();
}

/// One after the other writes, all look.
fn write_in_turn(agents: &mut [Agent], on_mounts: usize, name: &str, then: Option<&str>) {
    for round in 1..=support::setting("ROUNDS", 100) {
        let value = round % 251;
        let writer = (round / 3) as usize % agents.len();
        let by = &mut agents[writer];
        // Some keep it open, and some do not.
        if round % 3 == 0 {
            by.ok(&format!("open w {name} -"));
        }
        by.ok(&format!("write w {name} 5000 1 {value}"));
        then.map(|then| by.ok(&format!("{then} w {name}")));
        let by = by.name.clone();
        if round % 3 == 2 {
            agents[writer].ok("close w");
        }
        for (place, agent) in agents.iter_mut().enumerate() {
            let about = format!("{} after {by}, {name}, round {round}", agent.name);
            assert_eq!(agent.ok("byte r 5000"), value.to_string(), "{about}");
            if place < on_mounts {
                assert_eq!(agent.ok("peek r 5000"), value.to_string(), "{about}, mapped");
            }
            // Who comes now reads it, too.
            if round % 7 == 0 {
                agent.ok("close r");
                agent.ok(&format!("look r {name}"));
                assert_eq!(agent.ok("byte r 5000"), value.to_string(), "{about}, anew");
            }
        }
    }
}

/// By stores of a mapping that are forced.
fn store_in_turn(agents: &mut [Agent], on_mounts: usize, name: &str) {
    for writer in 0..on_mounts {
        agents[writer].ok(&format!("open w {name} -"));
        agents[writer].ok("map w 16384 w");
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

/// All agents read what the last one wrote, out of files that they keep open, and by mappings. `then`:
/// what a writer does behind his bytes.
fn take_turns(world: &World, then: Option<&str>) {
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
        store_in_turn(&mut agents, on_mounts, &name);
        // Cut by its name, nobody has it open to write.
        agents[maker].ok(&format!("truncate {name} 4096"));
        agents[maker].ok(&format!("truncate {name} 16384"));
        for agent in &mut agents {
            assert_eq!(agent.ok("byte r 5000"), "0", "{} after a cut", agent.name);
            if agent.name.starts_with("mount") {
                agent.ok("unmap r");
            }
            agent.ok("close r");
        }
    }
    drop((agents, mounts));
}

#[test]
fn who_reads_out_of_pages_finds_what_any_host_wrote() {
    let Some(world) = posix() else { return };
    take_turns(&world, None);
    world.end();
}

#[test]
fn who_reads_out_of_pages_finds_what_any_host_wrote_in_relaxed() {
    let Some(world) = World::started(&[TIMEOUT]) else { return };
    take_turns(&world, None);
    world.end();
}

#[test]
fn who_reads_out_of_pages_finds_what_arrived_behind_a_write() {
    let Some(world) = World::started(&[("FOREBAY_WRITES", "behind"), TIMEOUT]) else { return };
    take_turns(&world, Some("fsync"));
    world.end();
}

#[test]
fn nobody_waits_long_for_a_kernel_that_can_not_be_told_to_drop_pages() {
    let Some(world) = posix() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let mut writer = Agent::preloaded(&world, "a", "/forebay");
    writer.ok("open f f c");
    writer.ok("write f f 0 4096 1");
    writer.ok("close f");
    let mut reader = Agent::on(&mount);
    reader.ok("look r f");
    assert_eq!(reader.ok("byte r 7"), "1");
    let timed = |writer: &mut Agent, command: &str| {
        let begun = Instant::now();
        writer.ok(command);
        begun.elapsed()
    };
    signal(mount.pid, "-STOP");
    let took = timed(&mut writer, "open f f -");
    assert!(took < BOUND, "a mount that stands still: {took:?}");
    let took = timed(&mut writer, "write f f 0 4096 2");
    assert!(took < Duration::from_secs(1), "it is waited for once: {took:?}");
    signal(mount.pid, "-CONT");
    let begun = Instant::now();
    // It goes on with what it is to drop.
    while reader.ok("byte r 7") != "2" {
        assert!(begun.elapsed() < BOUND, "it has not dropped them");
    }
    for value in 3..20 {
        writer.ok(&format!("write f f 0 4096 {value}"));
        assert_eq!(reader.ok("byte r 7"), value.to_string(), "it is told again");
    }
    mount.kill();
    let took = timed(&mut writer, "write f f 0 4096 1");
    assert!(took < BOUND, "a mount that is dead: {took:?}");
    drop((reader, writer, mount));
    world.end();
}

#[test]
fn pages_are_dropped_also_after_daemons_started_again() {
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
            assert_eq!(reader.ok("byte r 7"), value.to_string(), "{}: it was open", writer.name);
            writer.ok("close f");
        }
        reader.ok("close r");
        reader.ok("look r f");
        assert_eq!(reader.ok("byte r 7"), value.to_string());
    }
    drop((reader, writers, mount));
    world.end();
}
