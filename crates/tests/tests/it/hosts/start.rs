//! An instance over separate hosts: three network namespaces on one bridge stand for them, each
//! with a runtime directory of its own; `FOREBAY_SSH` enters them. Programs of all hosts see the
//! same files, calls on a disconnected host end with EIO in bounded time and lose nothing
//! acknowledged, an unreachable host is one clear failure within the time limit, and nothing is
//! left behind.
//!
//! Network namespaces need root. Without it the test is skipped.

use crate::support::agent::signal;
use crate::support::mounted::has_ended;
use crate::support::world::{HOSTS, World, ip};
use crate::support::{in_time, wait_for};
use std::fs;

/// Each host writes every third part of one file, in parts that share pages and stripes.
const SHARED: &str = "i=$1; while [ $i -lt 300 ]; do printf '%01000d' $1 | \
    dd of=/forebay/shared bs=1000 seek=$i conv=notrunc status=none || exit 1; i=$((i + 3)); done";

/// Reads and writes in every directory at once; a line for each: number, errno of reading and of
/// writing. Acknowledged writes are reported; a file's bytes are its directory's number.
const EVERYWHERE: &str = r#"
import os, sys, threading
host = sys.argv[1]
def errno(call, *words):
    try: call(*words); return 0
    except OSError as error: return error.errno
def read(n):
    with open(f'/forebay/k{n}/f', 'rb') as f:
        assert f.read() == b'%04d' % n * 100000
def write(n):
    fd = os.open(f'/forebay/k{n}/{host}', os.O_CREAT | os.O_WRONLY)
    try: assert os.write(fd, b'%04d' % n * 100000) == 400000
    finally: os.close(fd)
def all(n):
    lines[n] = f'{n} {errno(read, n)} {errno(write, n)}'
lines = [None] * 24
threads = [threading.Thread(target=all, args=(n,)) for n in range(24)]
for t in threads: t.start()
for t in threads: t.join()
print('\n'.join(lines))
"#;

#[test]
fn programs_of_all_hosts_see_the_same_files() {
    let Some(world) = World::started(&[("FOREBAY_TIMEOUT", "4s")]) else { return };
    let status = world.ok("a", &["status"]);
    assert!(status.contains("4 daemons") && status.contains("10.79.0.3:"), "{status}");
    for host in HOSTS {
        assert!(world.ok(host, &["df"]).contains("memory"));
    }
    files_move_between_hosts(&world);
    long_paths_take_few_messages(&world);
    all_hosts_write_one_file(&world);
    a_disconnected_host_is_tolerated(&world);
    world.end();
    an_unreachable_host_is_one_clear_failure(&world);
}

/// Status of all daemons as a host shows it: whether each is alive, and whether it answers.
fn seen_by(world: &World, host: &str) -> Vec<(Option<bool>, bool)> {
    let output = world.on(host, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let daemons = status["daemons"].as_array().expect("daemons");
    daemons.iter().map(|one| (one["alive"].as_bool(), !one["state"].is_null())).collect()
}

#[test]
fn each_host_shows_the_daemons_of_all() {
    let Some(world) = World::started(&[("FOREBAY_TIMEOUT", "20s")]) else { return };
    let well = (Some(true), true);
    for host in HOSTS {
        assert_eq!(seen_by(&world, host), [well; 4], "on {host}");
        let space: serde_json::Value =
            serde_json::from_str(&world.ok(host, &["df", "--json"])).expect("JSON");
        assert_eq!(space["daemons"], 4, "on {host}");
    }
    let (dead, stopped) = (world.pid("b"), world.pid("a"));
    signal(dead, "-KILL");
    wait_for("the daemon's end", || has_ended(dead.cast_signed()));
    signal(stopped, "-STOP");
    let expected = [(Some(true), false), (Some(false), false), well, well];
    for host in ["a", "c"] {
        let seen = in_time("status with a daemon that hangs", || {
            let output = world.command(host, &["status", "--timeout", "5s", "--json"]).output();
            let output = output.expect("the script runs");
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            status["daemons"].as_array().expect("daemons").clone()
        });
        let seen = seen.iter().map(|one| (one["alive"].as_bool(), !one["state"].is_null()));
        assert_eq!(seen.collect::<Vec<_>>(), expected, "on {host}");
        let table = world.on(host, &["status", "--timeout", "5s"]);
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.contains("no answer") && table.contains("killed by SIGKILL"), "{table}");
        the_space_of_those_that_answer_is_counted(&world, host);
    }
    signal(stopped, "-CONT");
    world.start();
    assert_eq!(seen_by(&world, "b"), [well; 4]);
    world.end();
}

/// Two of the four daemons do not answer: `df` counts the others, names these, and says so by its code.
fn the_space_of_those_that_answer_is_counted(world: &World, host: &str) {
    let printed = |more: &[&str]| {
        let words: Vec<_> = ["df", "--timeout", "5s"].iter().chain(more).copied().collect();
        let output = world.command(host, &words).output().expect("the script runs");
        assert_eq!(output.status.code(), Some(1), "on {host}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let space: serde_json::Value = serde_json::from_str(&printed(&["--json"])).expect("JSON");
    assert_eq!(space["daemons"], 2, "on {host}");
    let silent: Vec<_> = space["silent"].as_array().expect("a list").iter().collect();
    assert_eq!(silent.len(), 2, "on {host}: {space}");
    let status = world.command(host, &["status", "--timeout", "5s", "--json"]).output();
    let status: serde_json::Value =
        serde_json::from_slice(&status.expect("the script runs").stdout).expect("JSON");
    let sizes = status["daemons"].as_array().expect("daemons").iter().map(|daemon| {
        let size = daemon["state"]["metrics"]["memory_total"].as_u64();
        size.or_else(|| daemon["state"]["memory_total"].as_u64()).unwrap_or(0)
    });
    assert_eq!(space["memory"]["size"], sizes.sum::<u64>(), "on {host}: {status}");
    let table = printed(&[]);
    assert!(table.contains("memory") && table.contains("not counted"), "on {host}: {table}");
    for one in silent {
        assert!(table.contains(one.as_str().expect("text")), "on {host}: {table}");
    }
}

fn files_move_between_hosts(world: &World) {
    let make = "cd /forebay; mkdir d; head -c 20000000 /dev/urandom >big; sha256sum <big";
    let sum = world.shell("a", make, "");
    for host in ["b", "c"] {
        assert_eq!(world.shell(host, "sha256sum </forebay/big", ""), sum, "on {host}");
    }
    world.shell("b", "cd /forebay; truncate -s 1234567 big; mv big d/less", "");
    let listing = world.shell("c", "cd /forebay; ls; stat -c %s d/less; rm d/less", "");
    assert_eq!(listing, "d\n1234567\n");
    assert_eq!(world.shell("a", "ls -A /forebay/d; rmdir /forebay/d; ls -A /forebay", ""), "");
    let many = "mkdir /forebay/m; cd /forebay/m; for i in $(seq 300); do echo $i >f$i; done";
    world.shell("a", many, "");
    assert_eq!(world.shell("c", "cd /forebay/m; ls | wc -l; rm f1*; cat f299", ""), "300\n299\n");
    assert_eq!(world.shell("b", "ls /forebay/m | wc -l; rm -r /forebay/m", ""), "189\n");
}

/// Counts the messages for `stat` of a path of six names, on a host that has neither the root nor,
/// perhaps, the directory.
fn long_paths_take_few_messages(world: &World) {
    world.shell("a", "mkdir -p /forebay/p/q/r/s/t; echo >/forebay/p/q/r/s/t/f", "");
    let requests = || -> u64 {
        let status = world.ok("b", &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let daemons = status["daemons"].as_array().expect("daemons");
        let own = daemons.iter().find(|daemon| daemon["index"] == 1).expect("the entry of b");
        own["state"]["requests"].as_u64().expect("a number")
    };
    let look = "import os, sys\nfor _ in range(int(sys.argv[1])): os.stat('/forebay/p/q/r/s/t/f')";
    let taken = |count: &str| {
        let before = requests();
        world.ok("b", &["run", "--", "python3", "-c", look, count]);
        requests() - before
    };
    // Both counts include the start of a program and the lookups until the directories are leased:
    // after that there is one message for each file.
    let (few, many) = (taken("100"), taken("300"));
    assert!((few + 190..few + 230).contains(&many), "{few} for 100, {many} for 300");
    world.shell("c", "mv /forebay/p/q /forebay/p/u", "");
    assert_eq!(
        world.shell("b", "cd /forebay/p; ls q u/r/s/t 2>/dev/null; rm -r /forebay/p", ""),
        "u/r/s/t:\nf\n"
    );
}

fn all_hosts_write_one_file(world: &World) {
    std::thread::scope(|scope| {
        for (number, host) in HOSTS.into_iter().enumerate() {
            scope.spawn(move || {
                world.shell(host, SHARED, &number.to_string());
                world.shell(host, "for i in $(seq 100); do echo $1 $i >>/forebay/log; done", host);
            });
        }
    });
    let expected: String = (0..300).map(|part| format!("{:01000}", part % 3)).collect();
    for host in HOSTS {
        assert!(world.shell(host, "cat /forebay/shared", "") == expected, "shared, read on {host}");
        assert_eq!(world.shell(host, "sort -u /forebay/log | wc -l", ""), "300\n", "on {host}");
    }
}

/// Reads and writes in every directory, on a host: errnos by directory.
fn everywhere(world: &World, host: &str) -> Vec<[i32; 2]> {
    let words = ["run", "--", "python3", "-c", EVERYWHERE, host];
    let reported = in_time("reads and writes everywhere", || world.ok(host, &words));
    let row = |line: &str| {
        let mut words = line.split(' ').skip(1).map(|word| word.parse().expect("an errno"));
        [words.next().expect("reading"), words.next().expect("writing")]
    };
    let rows: Vec<[i32; 2]> = reported.lines().map(row).collect();
    assert_eq!(rows.len(), 24, "on {host}: {reported}");
    rows
}

fn a_disconnected_host_is_tolerated(world: &World) {
    let make = "cd /forebay; for n in $(seq 0 23); do mkdir k$n; \
        yes $(printf %04d $n) | tr -d '\\n' | head -c 400000 >k$n/f; done";
    world.shell("a", make, "");
    let hub = format!("{}hub", world.prefix);
    assert!(ip(&format!("-n {hub} link set vc down")));
    let cut: Vec<_> = ["a", "c"].map(|host| (host, everywhere(world, host))).into();
    assert!(ip(&format!("-n {hub} link set vc up")));
    let local: Vec<i32> = cut[0].1.concat();
    assert!(local.contains(&0) && local.contains(&5), "{cut:?}");
    for (host, rows) in &cut {
        assert!(rows.concat().iter().all(|errno| [0, 5].contains(errno)), "on {host}: {rows:?}");
    }
    let acknowledged = cut.iter().flat_map(|(host, rows)| {
        let written = rows.iter().enumerate().filter(|(_, row)| row[1] == 0);
        written
            .map(move |(number, _)| format!("cmp /forebay/k{number}/{host} /forebay/k{number}/f;"))
    });
    let acknowledged: String = acknowledged.collect();
    assert_eq!(world.shell("b", &format!("{acknowledged} echo same"), ""), "same\n");
    for host in HOSTS {
        assert_eq!(everywhere(world, host), [[0, 0]; 24], "on {host}, after the disconnection");
    }
}

fn an_unreachable_host_is_one_clear_failure(world: &World) {
    for (text, expected) in [
        ("a 10.79.0.1\nno 10.79.0.9\n", "cannot be reached: host no: "),
        ("a 10.79.0.1\nb 10.79.0.77\n", "cannot listen on 10.79.0.77:0"),
        ("a 10.79.0.1\nno.such.host\n", "no address: host no.such.host: "),
    ] {
        fs::write(world.path("nodes"), text).expect("written");
        let nodes = world.path("nodes").to_string_lossy().into_owned();
        let words = ["start", "--hosts", &nodes];
        let output = in_time(expected, || world.on("a", &words));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(expected), "{errors}");
        world.assert_nothing_left();
    }
}
