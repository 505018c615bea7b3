//! A mount of one host that is killed, and one that stands still, while programs on it hold locks, have
//! its
//! kernel remember names, attributes and pages, and have written: others go on within a bounded time,
//! nothing
//! acknowledged is lost, locks of the dead end, and who stood still sees what is so then, not what was.
//! By
//! both ways of requests. Namespaces need root, a mount needs `/dev/fuse`; without, the tests say so.

mod support;

use std::time::{Duration, Instant};
use support::agent::{Agent, Mount, crc32, signal};
use support::mounted::Offered;
use support::world::World;

/// What kernels remember is over after 4.5 s at most; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(7);
/// Of the first host's shards, as the root's names are, and of another's.
const FILES: [&str; 2] = ["f", "d/f"];
const LOCKS: [(&str, &str); 3] = [("lock", " 0 10"), ("ofd", " 20 10"), ("flock", "")];
const EAGAIN: &str = "!11";
const ENOENT: &str = "!2";

/// A world with a directory for each way of requests that there is.
fn world() -> Option<(World, Vec<&'static str>)> {
    let world = World::started(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_TIMEOUT", "10s")])?;
    let mut ways = vec!["classic"];
    ways.extend(Offered::can_be().then_some("rings"));
    world.shell("a", "mkdir /forebay/d", "");
    Some((world, ways))
}

/// As `ok`, within the time that a mount may hold up others.
fn soon(agent: &mut Agent, command: &str) -> String {
    let begun = Instant::now();
    let said = agent.ok(command);
    assert!(begun.elapsed() < BOUND, "{}: {command} took {:?}", agent.name, begun.elapsed());
    said
}

/// What an agent says of bytes of one value that it has read.
fn bytes(length: usize, value: u8) -> String {
    format!("{length} {}", crc32(&vec![value; length]))
}

/// On the mount something is written and has arrived, is read back, locked and looked at.
fn work(seat: &mut Agent) {
    for file in FILES {
        seat.ok(&format!("open {file} {file} c"));
        seat.ok(&format!("write {file} {file} 0 300000 1"));
        seat.ok(&format!("fsync {file} {file}"));
        assert_eq!(seat.ok(&format!("read {file} {file} 0 1000000")), bytes(300_000, 1));
        for (how, range) in LOCKS {
            seat.ok(&format!("{how} {file} {file} w{range}"));
        }
        seat.ok(&format!("stat {file}"));
        assert_eq!(seat.ask(&format!("stat {file}.new")), ENOENT);
    }
}

#[test]
fn a_mount_that_is_killed_leaves_what_it_acknowledged_and_no_locks() {
    let Some((world, ways)) = world() else { return };
    for way in ways {
        let Some(mount) = Mount::by(&world, "b", way) else { return };
        let mut seat = Agent::on(&mount);
        let mut other = Agent::preloaded(&world, "a", "/forebay");
        let third = Mount::by(&world, "c", way).expect("as the first");
        let mut third = (Agent::on(&third), third);
        work(&mut seat);
        for file in FILES {
            third.0.ok(&format!("stat {file}"));
            for (how, range) in LOCKS {
                assert_eq!(other.ask(&format!("{how} {file} {file} w{range}")), EAGAIN, "{how}");
            }
        }
        other.begin("lockw f f w 0 10");
        third.0.begin("flockw d/f d/f w");
        mount.kill();
        let killed = Instant::now();
        assert_eq!([other.hear(), third.0.hear()], ["ok", "ok"], "{way}: who waited");
        assert!(killed.elapsed() < BOUND, "{way}: they waited {:?}", killed.elapsed());
        for file in FILES {
            // One of them has a lock already, which it waited for.
            for (how, range) in LOCKS.iter().filter(|(how, _)| *how != "flock") {
                soon(&mut other, &format!("{how}w {file} {file} w{range}"));
            }
            let read = format!("read {file} {file} 0 1000000");
            assert_eq!(soon(&mut other, &read), bytes(300_000, 1), "{way}");
            soon(&mut other, &format!("rename {file} {file}.new"));
            assert_eq!(soon(&mut third.0, &format!("stat {file}.new")), "300000", "{way}");
            assert_eq!(third.0.ask(&format!("stat {file}")), ENOENT, "{way}");
            soon(&mut third.0, &format!("unlink {file}.new"));
        }
        drop((seat, mount, other, third));
    }
    world.end();
}

#[test]
fn a_mount_that_stood_still_sees_what_is_so_then_and_has_its_locks() {
    let Some((world, ways)) = world() else { return };
    for way in ways {
        let Some(mount) = Mount::by(&world, "b", way) else { return };
        let mut seat = Agent::on(&mount);
        let mut other = Agent::preloaded(&world, "a", "/forebay");
        work(&mut seat);
        signal(mount.pid, "-STOP");
        for file in FILES {
            soon(&mut other, &format!("write {file} {file} 0 300000 2"));
            soon(&mut other, &format!("append {file} {file} 1000 2"));
            assert_eq!(soon(&mut other, &format!("stat {file}")), "301000", "{way}");
            // It lives: what it has locked it has.
            assert_eq!(other.ask(&format!("lock {file} {file} r 0 10")), EAGAIN, "{way}");
            soon(&mut other, &format!("rename {file} {file}.new"));
            soon(&mut other, &format!("open other {file} c"));
            soon(&mut other, "close other");
        }
        // Asked while it stands still, answered when it does not any more.
        seat.begin("read f f 0 1000000");
        signal(mount.pid, "-CONT");
        assert_eq!(seat.hear(), bytes(301_000, 2), "{way}");
        for file in FILES {
            assert_eq!(seat.ok(&format!("read {file} {file} 0 1000000")), bytes(301_000, 2));
            assert_eq!(seat.ok(&format!("fstat {file} {file}")), "301000", "{way}");
            assert_eq!(seat.ok(&format!("stat {file}.new")), "301000", "{way}");
            assert_eq!(seat.ok(&format!("stat {file}")), "0", "{way}: what it is now");
            for (how, range) in LOCKS {
                let ask = format!("{how} {file} {file} w{range}");
                assert_eq!(other.ask(&ask), EAGAIN, "{way}: {how}");
                seat.ok(&ask.replace(" w", " u"));
                other.ok(&ask);
            }
            soon(&mut seat, &format!("unlink {file}"));
            soon(&mut other, &format!("unlink {file}.new"));
        }
        drop((seat, mount, other));
    }
    world.end();
}
