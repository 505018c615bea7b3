//! With followers the logs of metadata services are at other hosts: `status` and `layout get` show how
//! far, `fsync` waits for them, and a host that is killed or cut off stops nobody for long.

use super::replicas::python;
use super::{presences, status, wait_until_all_are_up};
use crate::support::agent::{Agent, signal};
use crate::support::wait_for;
use crate::support::world::{HOSTS, World, ip};
use serde_json::Value;

pub(super) const FOLLOWED: [(&str, &str); 3] =
    [("FOREBAY_DOMAINS", "auto"), ("FOREBAY_FOLLOWERS", "1"), ("FOREBAY_WORKERS", "2")];

/// Creates files and syncs each, and their directory: a shell command.
const SYNCED: &str = r#"python3 - $1 <<'END'
import os, sys
path = sys.argv[1]
os.makedirs(path, exist_ok=True)
for number in range(20):
    fd = os.open(f'{path}/{number}', os.O_WRONLY | os.O_CREAT)
    os.write(fd, b'x' * 100)
    os.fsync(fd)
    os.close(fd)
fd = os.open(f'{path}/sync', os.O_WRONLY | os.O_CREAT | os.O_SYNC)
os.write(fd, b'y')
os.close(fd)
fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
os.fsync(fd)
os.close(fd)
os.sync()
print('synced')
END"#;

/// The services, as their owners know them.
pub(super) fn services(world: &World) -> Vec<Value> {
    let status = status(world);
    let daemons = status["daemons"].as_array().expect("daemons").iter();
    daemons
        .flat_map(|one| one["state"]["services"].as_array().cloned().unwrap_or_default())
        .collect()
}

pub(super) fn copies_in_sync(service: &Value) -> usize {
    let followers = service["followers"].as_array().expect("a list");
    followers.iter().filter(|it| it["in_sync"] == true).count()
}

fn has_copy(service: &Value) -> bool {
    copies_in_sync(service) > 0
}

pub(super) fn wait_until_all_have_copies(world: &World) {
    wait_for("all services have followers in sync", || {
        let services = services(world);
        services.len() == 8 && services.iter().all(has_copy)
    });
}

fn sum(world: &World, metric: &str) -> u64 {
    let status = status(world);
    let daemons = status["daemons"].as_array().expect("daemons").iter();
    daemons.filter_map(|one| one["state"][metric].as_u64()).sum()
}

#[test]
fn followers_return_after_kills_and_cuts_and_syncs_wait_for_them() {
    let Some(world) = World::started(&FOLLOWED) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    // Copies are in other failure domains: daemons 2 and 3 are on one host.
    let domain = |daemon: &Value| daemon.as_u64().expect("a number").min(2);
    for service in services(&world) {
        for follower in service["followers"].as_array().expect("a list") {
            assert_ne!(domain(&service["owner"]), domain(&follower["daemon"]), "{service}");
        }
    }
    assert_eq!(world.shell("a", SYNCED, "/forebay/d"), "synced\n");
    assert_eq!(sum(&world, "syncs_without_copy"), 0);
    let table = String::from_utf8_lossy(&world.on("b", &["status"]).stdout).into_owned();
    assert!(table.contains("8 of 8 metadata services have followers in sync"), "{table}");
    let layout: Value =
        serde_json::from_str(&world.ok("a", &["layout", "get", "--json", "/forebay/d"]))
            .expect("an object");
    let owner = layout["owner"].as_u64().expect("an owner");
    assert_eq!(layout["service"].as_u64().map(|it| it % 4), Some(owner), "{layout}");
    assert_eq!(layout["followers"].as_array().map(Vec::len), Some(1), "{layout}");
    assert_eq!(layout["followers"][0]["in_sync"], true, "{layout}");

    // Killed: its services begin anew, and those that it followed go on from where it was.
    for host in ["b", "a"] {
        signal(world.pid(host), "-KILL");
        world.start();
        wait_until_all_are_up(&world);
        wait_until_all_have_copies(&world);
        assert_eq!(world.shell("c", SYNCED, "/forebay/e"), "synced\n");
    }
    // While a host was away others followed instead, so it has what nobody needs any more.
    wait_for("each service has one copy", || sum(&world, "copies") == 8);

    // Cut off: others are found, and it returns.
    let hub = format!("{}hub", world.prefix);
    let link = |state: &str| assert!(ip(&format!("-n {hub} link set vc {state}")));
    link("down");
    wait_for("the hosts that are left have all services, and follow each other", || {
        let services = services(&world);
        let own = |it: &&Value| it["owner"].as_u64().is_some_and(|owner| owner < 2);
        services.iter().filter(own).count() == 8 && services.iter().filter(own).all(has_copy)
    });
    link("up");
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    assert_eq!(world.shell("b", SYNCED, "/forebay/f"), "synced\n");
    let metrics = world.ok("a", &["status", "--prometheus"]);
    assert!(metrics.contains("forebay_services_without_copy"), "{metrics}");
    world.end();
}

/// The first owner of the service of a directory has it.
fn wait_until_it_is_back(world: &World, directory: &str) {
    wait_for("the service is back", || {
        let output = world.on("b", &["layout", "get", "--json", directory]);
        let layout: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        layout.is_some_and(|it| it["owner"].as_u64() == it["service"].as_u64().map(|it| it % 4))
    });
}

/// A directory whose service is that of daemon 0.
fn directory_of_first(world: &World) -> String {
    let is_owned_by_first = |directory: &String| {
        world.shell("a", "mkdir $1", directory);
        let layout = world.ok("a", &["layout", "get", "--json", directory]);
        serde_json::from_str::<Value>(&layout).expect("an object")["owner"] == 0
    };
    let directory = (0..64).map(|number| format!("/forebay/d{number}")).find(is_owned_by_first);
    directory.expect("one of 64 directories is there")
}

#[test]
fn files_go_on_at_another_host_and_programs_of_the_first_one_see_that_when_its_daemon_is_back() {
    let Some(world) = World::started(&FOLLOWED) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    let directory = directory_of_first(&world);
    let [file, other] = ["f", "g"].map(|name| format!("{directory}/{name}"));
    let mut first = Agent::preloaded(&world, "a", "/forebay");
    let mut second = Agent::preloaded(&world, "b", "/forebay");
    for command in ["open f PATH c", "write f - 0 1000 7", "fsync f -"] {
        first.ok(&command.replace("PATH", &file));
    }
    signal(world.pid("a"), "-KILL");
    // Programs of other hosts go on.
    assert_eq!(second.ok(&format!("stat {file}")), "1000");
    second.ok(&format!("truncate {file} 10"));
    for command in ["open g PATH c", "write g - 0 500 8", "fsync g -"] {
        second.ok(&command.replace("PATH", &other));
    }
    assert_eq!(second.ok(&format!("stat {file}")), "10");
    world.start();
    wait_until_all_are_up(&world);
    wait_until_it_is_back(&world, &directory);
    // The program that had the file open sees its size, and what it writes is behind that.
    assert_eq!(first.ok("fstat f -"), "10");
    assert!(first.ok("read f - 0 1000").starts_with("10 "));
    assert_eq!(first.ok(&format!("stat {other}")), "500");
    for command in ["write f - 5 20 9", "fsync f -"] {
        first.ok(command);
    }
    assert_eq!(second.ok(&format!("stat {file}")), "25");
    wait_until_all_have_copies(&world);
    drop((first, second));
    world.end();
}

/// Makes files and kills the daemon at once; writes them again when it is back, and says of each the last
/// errno until its close.
const UNSYNCED: &str = r"
import os, signal, sys
directory, pid = sys.argv[1], int(sys.argv[2])
print('ready', os.getpid(), flush=True)
sys.stdin.readline()
files = []
for number in range(8):
    fd = os.open(f'{directory}/u{number}', os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b'1' * (1000 if number & 1 else 100000), 0)
    # The size is reported.
    if number & 2: os.close(os.dup(fd))
    files.append(fd)
os.kill(pid, signal.SIGKILL)
print('killed', flush=True)
sys.stdin.readline()
def finish(number, fd):
    errno = 0
    for step in range(3):
        try:
            if step == 0: os.pwrite(fd, b'2' * (1000 if number & 1 else 100000), 0)
            if step == 1 and number & 4: os.fsync(fd)
            if step == 2: os.close(fd)
        except OSError as error: errno = error.errno
    return errno
print(*[finish(number, fd) for number, fd in enumerate(files)], flush=True)
sys.stdin.readline()
";

/// Files whose creation no follower had are gone with their owner, as nothing was synced. A program that
/// has them open learns that at last from close, and never writes what nobody can read.
#[test]
fn files_that_were_lost_with_their_owner_are_an_error_for_those_that_write_them() {
    let Some(world) = World::started(&FOLLOWED) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    let directory = directory_of_first(&world);
    assert_eq!(world.shell("a", SYNCED, &directory), "synced\n");
    let victim = world.pid("a").to_string();
    let mut program = python(&world, "a", UNSYNCED, &[&directory, &victim]);
    assert_eq!(program.ask("go"), "killed");
    wait_for("the death is agreed on", || presences(&world).first() == Some(&"down".into()));
    world.start();
    wait_until_all_are_up(&world);
    wait_until_it_is_back(&world, &directory);
    let answer = program.ask("go");
    println!("{answer}");
    for (number, errno) in answer.split(' ').enumerate() {
        let path = format!("{directory}/u{number}");
        if errno == "0" {
            let bytes = if number & 1 == 1 { 1000 } else { 100_000 };
            assert!(world.shell("b", "cat $1", &path) == "2".repeat(bytes), "{path}");
        } else {
            assert_eq!(errno, "5", "{path}: {answer}");
        }
    }
    drop(program);
    world.end();
}

/// A daemon that is cut off from the voters cannot know what they have agreed on by now: syncs there
/// fail within the timeout. Once it is connected, what is written again is synced: meanwhile its service
/// went on elsewhere, without what had not been synced.
#[test]
fn syncs_on_a_host_that_is_cut_off_fail_until_it_is_connected() {
    let mut settings = FOLLOWED.to_vec();
    settings.push(("FOREBAY_TIMEOUT", "3s"));
    let Some(world) = World::started(&settings) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    let directory = directory_of_first(&world);
    let file = format!("{directory}/f");
    let mut agent = Agent::preloaded(&world, "a", "/forebay");
    agent.ok(&format!("open f {file} c"));
    agent.ok("write f - 0 100 7");
    agent.ok("fsync f -");
    let hub = format!("{}hub", world.prefix);
    let link = |state: &str| assert!(ip(&format!("-n {hub} link set va {state}")));
    for byte in [8, 9] {
        let write = format!("write f - 0 100 {byte}");
        link("down");
        // It is answered while the daemon has the lease, and is no failure of the test after that.
        let written = agent.ask(&write);
        assert!(["ok", "!5"].contains(&written.as_str()), "{written}");
        assert_eq!(agent.ask("fsync f -"), "!5");
        link("up");
        wait_until_all_are_up(&world);
        wait_until_all_have_copies(&world);
        wait_until_it_is_back(&world, &directory);
        agent.ok(&write);
        agent.ok("fsync f -");
        let read = "head -c 1 $1 | od -An -tu1";
        assert_eq!(world.shell("b", read, &file).trim(), byte.to_string());
    }
    drop(agent);
    world.end();
}

/// No two hosts reach each other: nobody agrees on anything. Syncs fail on each of them within the
/// timeout, and what had been synced before is there when they are connected.
#[test]
fn without_a_majority_syncs_fail_everywhere_and_nothing_synced_is_lost() {
    let mut settings = FOLLOWED.to_vec();
    settings.push(("FOREBAY_TIMEOUT", "3s"));
    let Some(world) = World::started(&settings) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    let file = |host: &str, name: &str| format!("/forebay/{host}-{name}");
    let mut agents = HOSTS.map(|host| {
        let mut agent = Agent::preloaded(&world, host, "/forebay");
        for name in ["before", "meanwhile"] {
            agent.ok(&format!("open {name} {} c", file(host, name)));
            agent.ok(&format!("write {name} - 0 100 7"));
            agent.ok(&format!("fsync {name} -"));
        }
        agent
    });
    let hub = format!("{}hub", world.prefix);
    let links = |state: &str| {
        for host in HOSTS {
            assert!(ip(&format!("-n {hub} link set v{host} {state}")));
        }
    };
    links("down");
    for agent in &mut agents {
        let written = agent.ask("write meanwhile - 0 100 8");
        assert!(["ok", "!5"].contains(&written.as_str()), "{written}");
        assert_eq!(agent.ask("fsync meanwhile -"), "!5");
    }
    links("up");
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    let read = "head -c 100 $1 | od -An -v -tu1 -w1 | sort | uniq -c | tr -s ' '";
    for (agent, host) in agents.iter_mut().zip(HOSTS) {
        wait_for("what is written again is synced", || {
            agent.ask("write meanwhile - 0 100 9") == "ok" && agent.ask("fsync meanwhile -") == "ok"
        });
        for other in HOSTS {
            assert_eq!(world.shell(other, read, &file(host, "before")).trim(), "100 7");
            assert_eq!(world.shell(other, read, &file(host, "meanwhile")).trim(), "100 9");
        }
    }
    drop(agents);
    world.end();
}

#[test]
fn with_always_programs_see_the_same_files() {
    let mut settings = FOLLOWED.to_vec();
    settings.push(("FOREBAY_METADATA_SYNC", "always"));
    let Some(world) = World::started(&settings) else { return };
    wait_until_all_are_up(&world);
    wait_until_all_have_copies(&world);
    assert_eq!(world.shell("a", SYNCED, "/forebay/d"), "synced\n");
    for (host, script) in [
        (
            "b",
            "mv /forebay/d/0 /forebay/d/moved; ln /forebay/d/1 /forebay/d/linked; rm /forebay/d/2",
        ),
        (
            "a",
            "mkdir /forebay/d/sub; ln -s x /forebay/d/link; chmod 700 /forebay/d/3; rmdir /forebay/d/sub",
        ),
    ] {
        assert_eq!(world.shell(host, script, ""), "");
    }
    let names = world.shell("c", "ls /forebay/d | wc -l; stat -c %h /forebay/d/linked", "");
    assert_eq!(names, "22\n2\n");
    assert_eq!(sum(&world, "syncs_without_copy"), 0);
    world.end();
}
