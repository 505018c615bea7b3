//! A node that is lost with all that it had is replaced, on its host or by a spare one, while programs go
//! on; nothing else is.

use super::followers::wait_until_all_have_copies;
use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, end_host_b, fill, python,
};
use super::{kill_host_c, presences, starts, status, wait_until_all_are_up};
use crate::support::agent::signal;
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::process::Output;

/// Locks a file until it is told to go on, or (`try`) says whether it could.
const LOCK: &str = r"
import fcntl, os, sys
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
if sys.argv[1] == 'try':
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print('locked')
    except OSError as error: print(error.errno)
    sys.exit()
fcntl.lockf(fd, fcntl.LOCK_EX)
print('ready', os.getpid(), flush=True)
for line in sys.stdin: print(os.getpid(), flush=True)
";

/// Writes and reads while host b is lost and replaced by `words` of the command, and compares every byte
/// then, also where the new node alone has it.
fn replace_while_programs_run(world: &World, words: &[&str], host: &str) {
    wait_until_all_are_up(world);
    let directory = directory(world);
    let [read, written, locked] =
        ["read", "written", "locked"].map(|name| format!("{directory}/{name}"));
    fill(world, &read);
    let mut writer = python(world, "a", ROUNDS, &["write", &written]);
    let mut reader = python(world, "c", ROUNDS, &["read", &read]);
    let mut holder = python(world, "b", LOCK, &["hold", &locked]);
    let pid = holder.ask("pid").parse().expect("a process");
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    // Its programs die after its daemon, so that nobody releases what they have locked.
    end_host_b(world);
    signal(pid, "-KILL");
    drop(holder);
    await_rounds(&mut writer);
    let answer = world.ok("a", words);
    assert!(
        answer.contains(&format!("replaced b in instance {}: daemon 1 on {host}", world.prefix))
    );
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    wait_until_all_are_up(world);
    let try_lock = ["run", "--", "python3", "-c", LOCK, "try", &locked];
    assert_eq!(world.ok("c", &try_lock), "locked\n", "the lost node's lock is released");
    await_copies(world);
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    end(&mut reader);
    let last = end(&mut writer);
    drop((writer, reader));
    kill_host_c(world);
    for place in ["a", host] {
        check(world, place, &written, last);
        check(world, place, &read, 0);
    }
}

#[test]
fn a_lost_node_is_replaced_on_its_host_under_a_checkpoint() {
    let Some(world) = World::started(&COPIED) else { return };
    replace_while_programs_run(&world, &["replace", "b"], "b");
    // Its next start is one of the same daemon, which keeps what it got.
    world.start();
    wait_until_all_are_up(&world);
    signal(world.pid("b"), "-KILL");
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    world.end();
}

#[test]
fn a_lost_node_is_replaced_by_a_spare_host_under_a_checkpoint() {
    let Some(world) = World::started(&COPIED) else { return };
    assert!(world.add_host(SPARE, 4), "a fourth host");
    replace_while_programs_run(&world, &["replace", "b", "--with", "d 10.79.0.4"], SPARE);
    std::fs::write(world.path("nodes"), "a 10.79.0.1\nd 10.79.0.4\nc:2 10.79.0.3\n")
        .expect("written");
    world.start();
    wait_until_all_are_up(&world);
    let hosts: Vec<_> = status(&world)["daemons"]
        .as_array()
        .expect("daemons")
        .iter()
        .map(|one| one["host"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(hosts, ["a", "d", "c", "c"]);
    await_copies(&world);
    world.end();
}

/// The only line of a refusal.
fn refused(output: &Output) -> String {
    let answer = text(&output.stderr).trim().to_owned();
    assert!(!output.status.success(), "{answer}");
    assert_eq!(answer.lines().count(), 1, "{answer}");
    answer
}

/// After a death of all daemons but the first, of which none was declared dead: until the others know of
/// the new starts they count the old copies.
fn await_new_starts(world: &World, before: &[u64]) {
    wait_for("all that died are known as new ones", || {
        let now = starts(world);
        (1..4).all(|daemon| now.get(daemon) > before.get(daemon))
    });
}

#[test]
fn a_node_that_is_not_lost_is_not_replaced() {
    let Some(world) = World::started(&COPIED) else { return };
    wait_until_all_are_up(&world);
    let file = format!("{}/f", directory(&world));
    fill(&world, &file);
    let replace =
        |words: &[&str]| world.on("a", &[&["replace", "--timeout", "3s"], words].concat());
    for (words, part) in [
        (&["x"][..], "no such node: x"),
        (&["b"], "daemon 1 of b is alive"),
        (&["b", "--with", "c"], "c is a host of instance"),
        (&["b", "--with", "b"], "b is a host of instance"),
        (&["b", "--with", "d:2 10.79.0.4"], "give no number"),
        (&["b", "--with", "d nowhere"], "the second word must be an IP address"),
    ] {
        let answer = refused(&replace(words));
        assert!(answer.contains(part), "{words:?}: {answer}");
    }
    let answer = refused(&world.on("b", &["replace", "c", "--timeout", "3s"]));
    assert!(answer.contains("not the starting host"), "{answer}");

    // It has all that it had: it is started, and not replaced.
    signal(world.pid("b"), "-KILL");
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    let answer = refused(&world.on("a", &["replace", "b"]));
    assert!(answer.contains("its daemons have all that they had"), "{answer}");
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    wait_until_all_have_copies(&world);

    // Without a majority nobody knows what is lost.
    let before = starts(&world);
    for host in ["b", "c"] {
        for pid in world.daemons(host).iter().filter_map(|one| one["pid"].as_u64()) {
            signal(u32::try_from(pid).expect("a process"), "-KILL");
        }
    }
    let leads = |one: &Value| one["state"]["membership"]["leads"] == true;
    wait_for("nobody leads", || {
        !status(&world)["daemons"].as_array().expect("daemons").iter().any(leads)
    });
    let answer = refused(&replace(&["b"]));
    assert!(answer.contains("no majority"), "{answer}");
    world.start();
    wait_until_all_are_up(&world);
    await_new_starts(&world, &before);
    await_copies(&world);
    wait_until_all_have_copies(&world);

    // Two at once: one of them does it, the other one finds a node that lives.
    end_host_b(&world);
    let [one, other] = [(); 2].map(|()| {
        let mut command = world.command("a", &["replace", "b"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("the script runs")
    });
    let [one, other] = [one, other].map(|child| child.wait_with_output().expect("it ends"));
    let (done, late) = if one.status.success() { (one, other) } else { (other, one) };
    assert!(done.status.success(), "{} and {}", text(&done.stderr), text(&late.stderr));
    let answer = refused(&late);
    assert!(answer.contains("daemon 1 of b is alive"), "{answer}");
    wait_until_all_are_up(&world);
    await_copies(&world);
    check(&world, "b", &file, 0);
    world.end();
}

#[test]
fn a_node_of_an_instance_without_copies_is_not_replaced() {
    let Some(world) = World::started(&[("FOREBAY_DOMAINS", "auto")]) else { return };
    let answer = refused(&world.on("a", &["replace", "b"]));
    assert!(answer.contains("data and metadata have one copy"), "{answer}");
    world.end();
}
