//! An instance over hosts that are apart: three network namespaces on one bridge stand for them,
//! each with a runtime directory of its own; `FOREBAY_SSH` enters them. Stated here: programs of
//! all hosts see the same files, calls on a host whose network is cut end with EIO in time and lose
//! nothing that was acknowledged, a host that can not be reached is one clear failure within the
//! time limit, and nothing is left of either.
//!
//! Namespaces need root. Without, the test says so and states nothing.

mod support;

use std::fs;
use std::time::{Duration, Instant};
use support::world::{HOSTS, World, ip};

/// Each host writes every third part of one file, in parts that share granules and chunks.
const SHARED: &str = "i=$1; while [ $i -lt 300 ]; do printf '%01000d' $1 | \
    dd of=/forebay/shared bs=1000 seek=$i conv=notrunc status=none || exit 1; i=$((i + 3)); done";

/// Reads and writes in every directory at once; a line for each: number, errno of reading and of
/// writing. What was acknowledged is told; a file's bytes are its directory's number.
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
    told[n] = f'{n} {errno(read, n)} {errno(write, n)}'
told = [None] * 24
threads = [threading.Thread(target=all, args=(n,)) for n in range(24)]
for t in threads: t.start()
for t in threads: t.join()
print('\n'.join(told))
"#;

#[test]
fn programs_of_all_hosts_see_the_same_files() {
    let Some(world) = World::started(&[]) else { return };
    let status = world.ok("a", &["status"]);
    assert!(status.contains("4 daemons") && status.contains("10.79.0.3:"), "{status}");
    for host in HOSTS {
        assert!(world.ok(host, &["df"]).contains("memory"));
    }
    files_move_between_hosts(&world);
    long_paths_take_few_messages(&world);
    all_hosts_write_one_file(&world);
    a_cut_host_is_endured(&world);
    world.end();
    a_host_out_of_reach_is_one_failure(&world);
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

/// On a host that has neither the root nor, perhaps, the directory: how many messages `stat` of a
/// path of six names takes.
fn long_paths_take_few_messages(world: &World) {
    world.shell("a", "mkdir -p /forebay/p/q/r/s/t; echo >/forebay/p/q/r/s/t/f", "");
    let requests = || -> u64 {
        let status = world.ok("b", &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let daemons = status["daemons"].as_array().expect("daemons");
        let own = daemons.iter().find(|daemon| daemon["index"] == 1).expect("that of b");
        own["state"]["requests"].as_u64().expect("a number")
    };
    let look = "import os, sys\nfor _ in range(int(sys.argv[1])): os.stat('/forebay/p/q/r/s/t/f')";
    let taken = |count: &str| {
        let before = requests();
        world.ok("b", &["run", "--", "python3", "-c", look, count]);
        requests() - before
    };
    // What starting a program takes is in both, and what it takes until the directories are leased: from
    // then on there is one message for each file.
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
    let wanted: String = (0..300).map(|part| format!("{:01000}", part % 3)).collect();
    for host in HOSTS {
        assert!(world.shell(host, "cat /forebay/shared", "") == wanted, "shared, read on {host}");
        assert_eq!(world.shell(host, "sort -u /forebay/log | wc -l", ""), "300\n", "on {host}");
    }
}

/// Reads and writes everywhere, on a host: errnos by directory.
fn everywhere(world: &World, host: &str) -> Vec<[i32; 2]> {
    let begun = Instant::now();
    let told = world.ok(host, &["run", "--", "python3", "-c", EVERYWHERE, host]);
    assert!(begun.elapsed() < Duration::from_secs(60), "on {host}: {told}");
    let row = |line: &str| {
        let mut words = line.split(' ').skip(1).map(|word| word.parse().expect("an errno"));
        [words.next().expect("reading"), words.next().expect("writing")]
    };
    let rows: Vec<[i32; 2]> = told.lines().map(row).collect();
    assert_eq!(rows.len(), 24, "on {host}: {told}");
    rows
}

fn a_cut_host_is_endured(world: &World) {
    let make = "cd /forebay; for n in $(seq 0 23); do mkdir k$n; \
        yes $(printf %04d $n) | tr -d '\\n' | head -c 400000 >k$n/f; done";
    world.shell("a", make, "");
    let hub = format!("{}hub", world.prefix);
    assert!(ip(&format!("-n {hub} link set vc down")));
    let cut: Vec<_> = ["a", "c"].map(|host| (host, everywhere(world, host))).into();
    assert!(ip(&format!("-n {hub} link set vc up")));
    let near: Vec<i32> = cut[0].1.concat();
    assert!(near.contains(&0) && near.contains(&5), "{cut:?}");
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
        assert_eq!(everywhere(world, host), [[0, 0]; 24], "on {host}, after the cut");
    }
}

fn a_host_out_of_reach_is_one_failure(world: &World) {
    let begun = Instant::now();
    for (text, wanted) in [
        ("a 10.79.0.1\nno 10.79.0.9\n", "can not be reached: host no: "),
        ("a 10.79.0.1\nb 10.79.0.77\n", "can not listen on 10.79.0.77:0"),
        ("a 10.79.0.1\nno.such.host\n", "no address: host no.such.host: "),
    ] {
        fs::write(world.path("nodes"), text).expect("written");
        let output = world.on("a", &["start", "--hosts", &world.path("nodes").to_string_lossy()]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(wanted), "{errors}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{errors}");
        world.assert_nothing_left();
    }
}
