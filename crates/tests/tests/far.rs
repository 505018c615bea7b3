//! Bytes on other hosts, large and small: random calls of hosts in turn and at a time against
//! models; daemons and programs killed, the network cut and targets filled while bytes are on their
//! way. What was acknowledged is there, whoever reads it.
//!
//! Namespaces need root. Without, the tests say so and state nothing.

#[path = "support/world.rs"]
mod world;

use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{HOSTS, World, ip};

/// Random calls on a file of the instance and on a model beside it: seed, file, model.
const MODEL: &str = r#"
import os, random, sys
seed, path, model = int(sys.argv[1]), sys.argv[2], sys.argv[3]
r = random.Random(seed)
fd = os.open(path, os.O_CREAT | os.O_RDWR)
like = os.open(model, os.O_CREAT | os.O_RDWR)
LAST = 24 << 20
def size():
    sizes = [1, 700, 4096, 12288, 12289, 65536, 262144, 300000, 1 << 20, 5000000]
    return r.choice(sizes) - r.choice([0, 0, 1]) or 1
def same(offset, length, call):
    got, wanted = os.pread(fd, length, offset), os.pread(like, length, offset)
    if got != wanted:
        at = next((i for i, (x, y) in enumerate(zip(got, wanted)) if x != y), len(got))
        sys.exit(f'{seed}: {call}: {offset}+{length}: {len(got)} of {len(wanted)}, first at {at}')
same(0, LAST + 5000000, 'at first')
for call in range(60):
    offset, length = r.randrange(LAST), size()
    if r.random() < 0.5: offset = offset >> r.choice([12, 18, 20, 22]) << 12
    do = r.random()
    if do < 0.5:
        bytes = r.randbytes(length)
        for f in fd, like:
            assert os.pwrite(f, bytes, offset) == length, f'seed {seed}: {call}'
    elif do < 0.9:
        same(offset, length, call)
    elif do < 0.93:
        for f in fd, like: os.ftruncate(f, offset)
    else:
        os.fsync(fd)
same(0, LAST + 5000000, 'at last')
os.close(fd)
"#;

/// Writes blocks of 1 MiB that say their number, and a line for each: the number, or minus the
/// errno: file, first, count, block after which the program kills itself (-1: none).
const WRITER: &str = r#"
import os, sys, threading, signal
path, first, count, last = sys.argv[1], *map(int, sys.argv[2:5])
fd = os.open(path, os.O_CREAT | os.O_WRONLY)
reached = threading.Event()
def end():
    reached.wait()
    os.kill(os.getpid(), signal.SIGKILL)
if last >= 0: threading.Thread(target=end, daemon=True).start()
for n in range(first, first + count):
    block = b'%08d' % n * 131072
    done = 0
    try:
        while done < len(block):
            done += os.pwrite(fd, block[done:], n * len(block) + done)
        print(n, flush=True)
    except OSError as error:
        print(-error.errno, flush=True)
    if n == last: reached.set()
try:
    os.close(fd)
except OSError as error:
    print(-error.errno, flush=True)
"#;

/// Checks blocks of `WRITER` by their numbers.
const READER: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for n in map(int, sys.argv[2].split()):
    wanted = b'%08d' % n * 131072
    assert os.pread(fd, len(wanted), n * len(wanted)) == wanted, n
print('right')
"#;

/// Six processes share a file: number, file. Each writes the parts that are its own, of sizes of
/// every kind.
const SHARER: &str = r#"
import os, sys
me, path = int(sys.argv[1]), sys.argv[2]
fd = os.open(path, os.O_CREAT | os.O_WRONLY)
at, part = 0, 0
while at < 20 << 20:
    length = [5000, 65536, 100001, 262144, 1000003][part % 5]
    if part % 6 == me:
        assert os.pwrite(fd, b'%04d' % (part % 10000) * (length // 4 + 1), at) == length // 4 * 4 + 4
    at += length // 4 * 4 + 4
    part += 1
os.close(fd)
"#;

/// What the file of `SHARER` must be.
const SHARED: &str = r#"
import os, sys
data = open(sys.argv[1], 'rb').read()
at, part = 0, 0
while at < 20 << 20:
    length = [5000, 65536, 100001, 262144, 1000003][part % 5]
    wanted = b'%04d' % (part % 10000) * (length // 4 + 1)
    assert data[at:at + len(wanted)] == wanted, (part, at)
    at += len(wanted)
    part += 1
print('right')
"#;

fn world() -> Option<World> {
    // Tests of one process run at a time, each with hosts of its own.
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let world = World::new(NUMBER.fetch_add(1, Ordering::Relaxed));
    match &world {
        Some(world) => start(world),
        None => eprintln!("skipped: no network namespaces here (root and 'ip' are needed)"),
    }
    world
}

/// Starts the instance, or those of its daemons that are gone.
fn start(world: &World) {
    world.ok("a", &["start", "--hosts", &world.path("nodes").to_string_lossy()]);
}

/// Ends the instance; nothing of it is left.
fn end(world: &World) {
    world.ok("a", &["stop"]);
    world.assert_nothing_left();
}

fn python(world: &World, host: &str, script: &str, words: &[&str]) -> String {
    let words = [&["run", "--", "python3", "-c", script], words].concat();
    world.ok(host, &words)
}

/// The numbers that `WRITER` told: acknowledged blocks, and errnos.
fn told(text: &str) -> (Vec<i32>, Vec<i32>) {
    let numbers = text.lines().map(|line| line.parse::<i32>().expect("a number"));
    let (done, failed): (Vec<i32>, Vec<i32>) = numbers.partition(|number| *number >= 0);
    (done, failed.into_iter().map(|number| -number).collect())
}

fn assert_there(world: &World, path: &str, blocks: &[i32]) {
    assert!(!blocks.is_empty(), "nothing was acknowledged: {path}");
    let list: Vec<String> = blocks.iter().map(i32::to_string).collect();
    for host in HOSTS {
        assert_eq!(python(world, host, READER, &[path, &list.join(" ")]), "right\n", "on {host}");
    }
}

fn pids(world: &World, host: &str) -> Vec<String> {
    let status = world.ok(host, &["status"]);
    let pid = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "alive");
        words.nth(1).map(str::to_owned)
    };
    status.lines().filter_map(pid).collect()
}

fn kill(pid: &str) {
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill runs").success());
}

#[test]
fn random_calls_of_hosts_in_turn_do_what_they_do_on_a_local_disk() {
    let Some(world) = world() else { return };
    let seed = std::process::id();
    println!("seeds from {seed}");
    for round in 0..9 {
        let host = HOSTS[round as usize % 3];
        let (path, model) = (format!("/forebay/m{}", round % 2), format!("m{}", round % 2));
        let model = world.path(&model);
        let seed = (seed + round).to_string();
        python(&world, host, MODEL, &[&seed, &path, &model.to_string_lossy()]);
    }
    end(&world);
}

#[test]
fn processes_of_all_hosts_write_one_file_at_a_time() {
    let Some(world) = world() else { return };
    thread::scope(|scope| {
        for me in 0..6 {
            let world = &world;
            scope.spawn(move || {
                python(world, HOSTS[me % 3], SHARER, &[&me.to_string(), "/forebay/shared"]);
            });
        }
    });
    for host in HOSTS {
        assert_eq!(python(&world, host, SHARED, &["/forebay/shared"]), "right\n", "on {host}");
    }
    end(&world);
}

#[test]
fn daemons_killed_with_bytes_on_their_way_lose_nothing_acknowledged() {
    let Some(world) = world() else { return };
    for (round, victim) in ["c", "a", "b", "a"].into_iter().enumerate() {
        let path = format!("/forebay/k{round}");
        let victims = pids(&world, victim);
        let said = thread::scope(|scope| {
            let writer = scope.spawn(|| python(&world, "a", WRITER, &[&path, "0", "60", "-1"]));
            // Some of it is on its way, at the other hosts or at this one.
            let begun = Instant::now();
            while world.shell("b", "stat -c %s $1 2>/dev/null || echo 0", &path) == "0\n" {
                assert!(begun.elapsed() < Duration::from_secs(30), "nothing is written");
            }
            kill(&victims[0]);
            start(&world);
            writer.join().expect("it ends")
        });
        let (done, failed) = told(&said);
        assert!(failed.iter().all(|errno| *errno == 5), "{failed:?}");
        assert_there(&world, &path, &done);
    }
    end(&world);
}

#[test]
fn a_killed_program_leaves_what_was_acknowledged_and_nothing_in_the_way() {
    let Some(world) = world() else { return };
    for last in [0, 3, 10, 17] {
        let path = format!("/forebay/p{last}");
        let script = "python3 -c \"$0\" $1 0 40 $2; echo ended";
        let words = ["run", "--", "sh", "-c", script, WRITER, &path, &last.to_string()];
        let said = world.ok("a", &words);
        let lines = said.strip_suffix("ended\n").expect("the shell goes on");
        let (done, failed) = told(lines);
        assert!(failed.is_empty() && done.len() < 40, "{said}");
        assert_there(&world, &path, &done);
    }
    let (done, _) = told(&python(&world, "a", WRITER, &["/forebay/p0", "0", "40", "-1"]));
    assert_eq!(done.len(), 40);
    assert_there(&world, "/forebay/p0", &done);
    end(&world);
}

#[test]
fn a_network_cut_with_bytes_on_their_way_loses_nothing_acknowledged() {
    let Some(world) = world() else { return };
    let hub = format!("{}hub", world.prefix);
    let said = thread::scope(|scope| {
        let writer =
            scope.spawn(|| python(&world, "a", WRITER, &["/forebay/cut", "0", "80", "-1"]));
        let begun = Instant::now();
        while world.shell("b", "stat -c %s /forebay/cut 2>/dev/null || echo 0", "") == "0\n" {
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing is written");
        }
        assert!(ip(&format!("-n {hub} link set vc down")));
        // Until a call on the cut host has failed, so that calls on the other side did, too.
        let probe = "head -c 30000000 /dev/zero >/forebay/probe";
        let words = ["run", "--", "sh", "-c", probe];
        assert!(!world.on("c", &words).status.success(), "the network is not cut");
        assert!(ip(&format!("-n {hub} link set vc up")));
        writer.join().expect("it ends")
    });
    let (done, failed) = told(&said);
    assert!(failed.iter().all(|errno| *errno == 5), "{failed:?}");
    assert_there(&world, "/forebay/cut", &done);
    let (done, failed) = told(&python(&world, "a", WRITER, &["/forebay/cut", "0", "80", "-1"]));
    assert_eq!((done.len(), failed), (80, vec![]), "after the cut");
    assert_there(&world, "/forebay/cut", &done);
    end(&world);
}

#[test]
fn a_full_target_refuses_and_keeps_what_it_has() {
    let Some(world) = world() else { return };
    // Four daemons hold 128 MiB each, in memory and on their SSDs.
    let (done, failed) = told(&python(&world, "a", WRITER, &["/forebay/full", "0", "600", "-1"]));
    assert!(!failed.is_empty() && failed.iter().all(|errno| *errno == 28), "{failed:?}");
    assert!(done.len() > 300, "{}", done.len());
    assert_there(&world, "/forebay/full", &done);
    world.shell("b", "rm /forebay/full", "");
    let (done, failed) = told(&python(&world, "c", WRITER, &["/forebay/more", "0", "100", "-1"]));
    assert_eq!((done.len(), failed), (100, vec![]), "what was removed is free again");
    assert_there(&world, "/forebay/more", &done);
    end(&world);
}
