//! A mount of one host is killed or stopped while programs on it hold locks, its kernel caches
//! names, attributes and pages, and written data exists: others continue within a bounded time,
//! nothing acknowledged is lost, locks of the dead are released, and a resumed mount sees the
//! current state. For both request transports. Network namespaces need root, a mount needs
//! `/dev/fuse`; without them the tests are skipped.

use crate::support::agent::{Agent, Mount, crc32, signal};
use crate::support::in_time;
use crate::support::mounted::UringEnabled;
use crate::support::world::World;

/// One file on the first host's shards, like the root's names, and one on another host's.
const FILES: [&str; 2] = ["f", "d/f"];
const LOCKS: [(&str, &str); 3] = [("lock", " 0 10"), ("ofd", " 20 10"), ("flock", "")];
const EAGAIN: &str = "!11";
const ENOENT: &str = "!2";

/// A world, and the request transports that are available.
fn world() -> Option<(World, Vec<&'static str>)> {
    let world = World::started(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_TIMEOUT", "10s")])?;
    let mut transports = vec!["classic"];
    transports.extend(UringEnabled::is_available().then_some("rings"));
    world.shell("a", "mkdir /forebay/d", "");
    Some((world, transports))
}

/// Like `ok`, with a bound: a mount may delay others by a few seconds only.
fn ok_in_time(agent: &mut Agent, command: &str) -> String {
    let what = format!("{}: {command}", agent.name);
    in_time(&what, || agent.ok(command))
}

/// The reply of an agent that read `length` bytes of one value.
fn bytes(length: usize, value: u8) -> String {
    format!("{length} {}", crc32(&vec![value; length]))
}

/// On the mount, writes data durably, reads it back, takes locks and looks up names.
fn work(agent: &mut Agent) {
    for file in FILES {
        agent.ok(&format!("open {file} {file} c"));
        agent.ok(&format!("write {file} {file} 0 300000 1"));
        agent.ok(&format!("fsync {file} {file}"));
        assert_eq!(agent.ok(&format!("read {file} {file} 0 1000000")), bytes(300_000, 1));
        for (how, range) in LOCKS {
            agent.ok(&format!("{how} {file} {file} w{range}"));
        }
        agent.ok(&format!("stat {file}"));
        assert_eq!(agent.ask(&format!("stat {file}.new")), ENOENT);
    }
}

#[test]
fn a_killed_mount_leaves_acknowledged_data_and_no_locks() {
    let Some((world, transports)) = world() else { return };
    for transport in transports {
        let Some(mount) = Mount::by(&world, "b", transport) else { return };
        let mut agent = Agent::on(&mount);
        let mut other = Agent::preloaded(&world, "a", "/forebay");
        let third = Mount::by(&world, "c", transport).expect("like the first");
        let mut third = (Agent::on(&third), third);
        work(&mut agent);
        for file in FILES {
            third.0.ok(&format!("stat {file}"));
            for (how, range) in LOCKS {
                assert_eq!(other.ask(&format!("{how} {file} {file} w{range}")), EAGAIN, "{how}");
            }
        }
        other.begin("lockw f f w 0 10");
        third.0.begin("flockw d/f d/f w");
        mount.kill();
        let heard = in_time(transport, || [other.reply(), third.0.reply()]);
        assert_eq!(heard, ["ok", "ok"], "{transport}: the waiters");
        for file in FILES {
            // One of the waiters already has the lock.
            for (how, range) in LOCKS.iter().filter(|(how, _)| *how != "flock") {
                ok_in_time(&mut other, &format!("{how}w {file} {file} w{range}"));
            }
            let read = format!("read {file} {file} 0 1000000");
            assert_eq!(ok_in_time(&mut other, &read), bytes(300_000, 1), "{transport}");
            ok_in_time(&mut other, &format!("rename {file} {file}.new"));
            assert_eq!(
                ok_in_time(&mut third.0, &format!("stat {file}.new")),
                "300000",
                "{transport}"
            );
            assert_eq!(third.0.ask(&format!("stat {file}")), ENOENT, "{transport}");
            ok_in_time(&mut third.0, &format!("unlink {file}.new"));
        }
        drop((agent, mount, other, third));
    }
    world.end();
}

#[test]
fn a_resumed_mount_sees_current_state_and_still_has_its_locks() {
    let Some((world, transports)) = world() else { return };
    for transport in transports {
        let Some(mount) = Mount::by(&world, "b", transport) else { return };
        let mut agent = Agent::on(&mount);
        let mut other = Agent::preloaded(&world, "a", "/forebay");
        work(&mut agent);
        signal(mount.pid, "-STOP");
        for file in FILES {
            ok_in_time(&mut other, &format!("write {file} {file} 0 300000 2"));
            ok_in_time(&mut other, &format!("append {file} {file} 1000 2"));
            assert_eq!(ok_in_time(&mut other, &format!("stat {file}")), "301000", "{transport}");
            // The stopped mount is alive, so it keeps its locks.
            assert_eq!(other.ask(&format!("lock {file} {file} r 0 10")), EAGAIN, "{transport}");
            ok_in_time(&mut other, &format!("rename {file} {file}.new"));
            ok_in_time(&mut other, &format!("open other {file} c"));
            ok_in_time(&mut other, "close other");
        }
        // Sent while the mount is stopped, answered after it continues.
        agent.begin("read f f 0 1000000");
        signal(mount.pid, "-CONT");
        assert_eq!(agent.reply(), bytes(301_000, 2), "{transport}");
        for file in FILES {
            assert_eq!(agent.ok(&format!("read {file} {file} 0 1000000")), bytes(301_000, 2));
            assert_eq!(agent.ok(&format!("fstat {file} {file}")), "301000", "{transport}");
            assert_eq!(agent.ok(&format!("stat {file}.new")), "301000", "{transport}");
            assert_eq!(agent.ok(&format!("stat {file}")), "0", "{transport}: the current state");
            for (how, range) in LOCKS {
                let ask = format!("{how} {file} {file} w{range}");
                assert_eq!(other.ask(&ask), EAGAIN, "{transport}: {how}");
                agent.ok(&ask.replace(" w", " u"));
                other.ok(&ask);
            }
            ok_in_time(&mut agent, &format!("unlink {file}"));
            ok_in_time(&mut other, &format!("unlink {file}.new"));
        }
        drop((agent, mount, other));
    }
    world.end();
}

/// A reply of a mount that stood still is not newer than the pages that its kernel has: before the size
/// comes the drop, though it is the last of many.
#[test]
fn a_resumed_mount_answers_nothing_before_its_old_pages_are_gone() {
    const BESIDE: usize = 200;
    let Some((world, transports)) = world() else { return };
    for transport in transports {
        let Some(mount) = Mount::by(&world, "b", transport) else { return };
        let mut agent = Agent::on(&mount);
        let mut other = Agent::preloaded(&world, "a", "/forebay");
        let names: Vec<String> = (0..BESIDE).map(|number| format!("g{number}")).collect();
        for name in names.iter().map(String::as_str).chain(["f"]) {
            agent.ok(&format!("open {name} {name} c"));
            agent.ok(&format!("write {name} {name} 0 30000 1"));
            assert_eq!(agent.ok(&format!("read {name} {name} 0 1000000")), bytes(30_000, 1));
        }
        signal(mount.pid, "-STOP");
        for name in names.iter().map(String::as_str).chain(["f"]) {
            ok_in_time(&mut other, &format!("open {name} {name} -"));
            ok_in_time(&mut other, &format!("write {name} {name} 0 31000 2"));
        }
        ok_in_time(&mut other, "fsync f f");
        // The kernel asks the mount for the size before it reads beyond the one that it knows.
        agent.begin("read f f 0 1000000");
        signal(mount.pid, "-CONT");
        assert_eq!(agent.reply(), bytes(31_000, 2), "{transport}");
        for name in names {
            let read = format!("read {name} {name} 0 1000000");
            assert_eq!(agent.ok(&read), bytes(31_000, 2), "{transport}: {name}");
        }
        for name in (0..BESIDE).map(|number| format!("g{number}")).chain(["f".to_owned()]) {
            ok_in_time(&mut other, &format!("unlink {name}"));
        }
        drop((agent, mount, other));
    }
    world.end();
}
