//! Writes behind to files with copies: programs go on before all copies have their bytes, and close and
//! fsync wait for them. Hosts, daemons and programs die meanwhile, and copies run out.

use super::followers::wait_until_all_have_copies;
use super::replicas::{COPIED, await_copies, check, directory, end_host_b, fill_from, sum};
use super::{kill_host_c, presences, wait_until_all_are_up};
use crate::hosts::remote_data::{
    MODEL, SHARED, SHARER, WRITER, assert_there, assert_there_on, python, reported, wait_for_bytes,
    write,
};
use crate::support::agent::signal;
use crate::support::wait_for;
use crate::support::world::{HOSTS, World};
use std::thread;

/// Writes the number of each of 60 files of one stripe, and prints what that, fsync and close say; or
/// reads them (`read`): verb, directory.
const MANY: &str = r"
import os, sys
def of(call):
    try: return call() or 0
    except OSError as error: return f'!{error.errno}'
for number in range(60):
    path, bytes_of = f'{sys.argv[2]}/f{number}', bytes([number + 1]) * 50000
    if sys.argv[1] == 'read':
        print(of(lambda: int(open(path, 'rb').read() == bytes_of)))
        continue
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    print(os.pwrite(fd, bytes_of, 0), of(lambda: os.fsync(fd)), of(lambda: os.close(fd)))
";

/// Makes a file that is there whatever dies.
const MAKE_SYNCED: &str = r"
import os, sys
os.fsync(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
os.fsync(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))
";

fn started(more: &[(&'static str, &'static str)]) -> Option<World> {
    let settings = [&COPIED[..], &[("FOREBAY_REMOTE_WRITES", "behind")], more].concat();
    let world = World::started(&settings)?;
    wait_until_all_are_up(&world);
    await_copies(&world);
    Some(world)
}

/// "The writer's own host sees them at once" (docs/semantics/sharing.md), other hosts after the close.
#[test]
fn programs_of_all_hosts_find_what_was_written_behind() {
    let Some(world) = started(&[]) else { return };
    let seed = std::process::id();
    println!("seeds from {seed}");
    for round in 0..6 {
        let host = HOSTS[round as usize % 3];
        let (path, model) = (format!("/forebay/m{}", round % 2), format!("m{}", round % 2));
        let (seed, model) = ((seed + round).to_string(), world.path(&model));
        python(&world, host, MODEL, &[&seed, &path, &model.to_string_lossy()]);
    }
    thread::scope(|scope| {
        for (me, host) in (0..6).map(|me| (me.to_string(), HOSTS[me % 3])) {
            let world = &world;
            scope.spawn(move || python(world, host, SHARER, &[&me, "/forebay/shared"]));
        }
    });
    for host in HOSTS {
        assert_eq!(python(&world, host, SHARED, &["/forebay/shared"]), "right\n", "on {host}");
    }
    world.end();
}

/// The daemon of another host, with the first or the second copy, and that of the writer's own.
#[test]
fn daemons_killed_within_writes_behind_lose_nothing() {
    let Some(world) = started(&[]) else { return };
    for (round, victim) in ["b", "a", "c", "a"].into_iter().enumerate() {
        let path = format!("/forebay/k{round}");
        // A change that no follower has is lost with its owner.
        wait_until_all_have_copies(&world);
        python(&world, "a", MAKE_SYNCED, &[&path]);
        let victim = world.pid(victim);
        let reported = thread::scope(|scope| {
            let writer = scope.spawn(|| write(&world, "a", &path, 24, 240));
            wait_for_bytes(&world, "a", &path);
            signal(victim, "-KILL");
            world.start();
            writer.join().expect("it ends")
        });
        assert_eq!((reported.count, &reported.failed), (240, &vec![]), "{victim}");
        wait_until_all_are_up(&world);
        await_copies(&world);
        assert_there(&world, &path, &reported);
        world.shell("a", "rm $1", &path);
    }
    world.end();
}

/// "fsync waits for all copies" (docs/semantics/durability.md): the node of the writer dies after it.
#[test]
fn what_was_synced_survives_the_node_of_its_writer() {
    let Some(world) = started(&[]) else { return };
    let directory = directory(&world);
    let [file, ended] = ["file", "ended"].map(|name| format!("{directory}/{name}"));
    fill_from(&world, "b", &file);
    let script = "python3 -c \"$0\" $1 24 30 20; echo ended";
    let printed = world.ok("b", &["run", "--", "sh", "-c", script, WRITER, &ended]);
    // The bytes of a killed program arrive, too, and its file is whole then.
    let lines = printed.strip_suffix("ended\n").expect("the shell goes on");
    let of_killed = reported(lines, 24);
    assert!(of_killed.failed.is_empty() && of_killed.count < 30, "{printed}");
    wait_for("the size of the file", || {
        let size = world.shell("c", "stat -c %s $1", &ended);
        size.trim().parse::<usize>().expect("a number") >= of_killed.count << 20
    });
    assert_there(&world, &ended, &of_killed);
    end_host_b(&world);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    for host in ["a", "c"] {
        check(&world, host, &file, 0);
    }
    assert_there_on(&world, &["a", "c"], &ended, &of_killed);
    world.end();
}

fn many(world: &World, verb: &str, directory: &str) -> Vec<String> {
    let answers = python(world, "a", MANY, &[verb, directory]);
    answers.lines().map(str::to_owned).collect()
}

#[test]
fn a_write_that_no_copy_takes_is_an_error_of_fsync() {
    // Both copies of some data are on host c.
    let Some(world) = started(&[("FOREBAY_SAME_DOMAIN", "on")]) else { return };
    let directory = directory(&world);
    assert_eq!(many(&world, "write", &directory), vec!["50000 0 0"; 60]);
    kill_host_c(&world);
    wait_for("data is out of reach", || sum(&world, "units_lost") > 0);
    let written = many(&world, "write", &directory);
    let is_lost = |answer: &&String| *answer == "50000 !5 0";
    assert!(written.iter().all(|it| it == "50000 0 0" || is_lost(&it)), "{written:?}");
    assert!(written.iter().any(|it| is_lost(&it)) && !written.iter().all(|it| is_lost(&it)));
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    assert_eq!(many(&world, "read", &directory), vec!["1"; 60], "as they were before");
    world.end();
}

#[test]
fn a_write_without_space_is_an_error_of_what_follows() {
    let Some(world) = started(&[("FOREBAY_ENOSPC_TIMEOUT", "1s")]) else { return };
    // Two copies of 320 MiB: four daemons hold 128 MiB each, in memory and on their SSDs.
    let reported = write(&world, "a", "/forebay/full", 320, 320);
    let failed = &reported.failed;
    assert!(!failed.is_empty() && failed.iter().all(|errno| *errno == 28), "{failed:?}");
    world.shell("b", "rm /forebay/full", "");
    await_copies(&world);
    let is_written = || {
        let reported = write(&world, "c", "/forebay/more", 40, 40);
        (reported.count, reported.failed.len()) == (40, 0)
    };
    wait_for("what was removed is free again", is_written);
    world.end();
}
