//! Bytes on other hosts, large and small: random calls of hosts in turn and concurrently against
//! models; daemons and programs are killed, the network is cut and targets are full while transfers
//! are in flight. Acknowledged data is there for every reader; where writes return before they
//! arrive, data is there after the close, or the close reported an error.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::wait_for;
use crate::support::world::{HOSTS, World, ip};
use std::collections::BTreeMap;
use std::process::Command;
use std::thread;

/// Random calls on a file of the instance and on a local model: seed, file, model.
pub(crate) const MODEL: &str = r#"
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
    got, expected = os.pread(fd, length, offset), os.pread(like, length, offset)
    if got != expected:
        at = next((i for i, (x, y) in enumerate(zip(got, expected)) if x != y), len(got))
        sys.exit(f'{seed}: {call}: {offset}+{length}: {len(got)} of {len(expected)}, first at {at}')
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

/// Reads sequentially through a file in steps of every size and compares with a model: seed, file,
/// model. In between, the process or a child writes the next bytes, truncates the file or punches
/// holes; or it seeks elsewhere.
const READER_ON: &str = r#"
import os, random, sys
seed, path, model = int(sys.argv[1]), sys.argv[2], sys.argv[3]
r = random.Random(seed)
fd, like = os.open(path, os.O_RDONLY), os.open(model, os.O_RDWR)
other = os.open(path, os.O_RDWR)
def near(): return at + r.randrange(1 << r.choice([12, 18, 21]))
at = 0
for call in range(300):
    length = r.choice([1, 4096, 10000, 65536, 70000, 300000, 1000000])
    got, expected = os.read(fd, length), os.pread(like, length, at)
    if got != expected:
        pairs, end = enumerate(zip(got, expected)), min(len(got), len(expected))
        first = next((i for i, (x, y) in pairs if x != y), end)
        sys.exit(f'{seed}: {call}: {at}+{length}: {len(got)} of {len(expected)}, first at {first}')
    at += len(expected)
    do = r.random()
    if do < 0.2:
        bytes, position = r.randbytes(r.choice([1, 5000, 100000])), near()
        for f in other, like: assert os.pwrite(f, bytes, position) == len(bytes)
    elif do < 0.24:
        bytes, position = r.randbytes(20000), near()
        child = os.fork()
        if child == 0:
            os.pwrite(other, bytes, position)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.pwrite(like, bytes, position)
    elif do < 0.26:
        position = near()
        for f in other, like: os.ftruncate(f, position)
    elif do < 0.28 or not expected:
        at = r.randrange(at + 1)
        os.lseek(fd, at, os.SEEK_SET)
for f in fd, other, like: os.close(f)
"#;

/// Reads a file in steps of 16 KiB and prints its length: file.
const STEPS: &str = r#"
import os, sys
fd, at = os.open(sys.argv[1], os.O_RDONLY), 0
while got := os.read(fd, 16384):
    assert all(got[i:i + 8] == b'%08d' % ((at + i) >> 20) for i in range(0, len(got), 8)), at
    at += len(got)
print(at)
"#;

/// Writes blocks of 1 MiB that contain their number, and prints a line for each: the number and the
/// errno, 0 on success; -1 is the close. Arguments: file, number of positions used in turn, count,
/// block after which the program kills itself (-1: none).
pub(crate) const WRITER: &str = r#"
import os, sys, threading, signal
path, positions, count, last = sys.argv[1], *map(int, sys.argv[2:5])
fd = os.open(path, os.O_CREAT | os.O_WRONLY)
reached = threading.Event()
def end():
    reached.wait()
    os.kill(os.getpid(), signal.SIGKILL)
if last >= 0: threading.Thread(target=end, daemon=True).start()
for n in range(count):
    block = b'%08d' % n * 131072
    done = 0
    try:
        while done < len(block):
            done += os.pwrite(fd, block[done:], n % positions * len(block) + done)
        print(f'{n} 0', flush=True)
    except OSError as error:
        print(f'{n} {error.errno}', flush=True)
    if n == last: reached.set()
    # It does not end before it is killed.
    while last >= 0 and n == count - 2: signal.pause()
try:
    os.close(fd)
except OSError as error:
    print(f'-1 {error.errno}', flush=True)
"#;

/// Checks blocks of `WRITER`: position and number of each.
const READER: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for position, n in (map(int, word.split(':')) for word in sys.argv[2].split()):
    expected = b'%08d' % n * 131072
    got = os.pread(fd, len(expected), position * len(expected))
    assert got == expected, (position, n, len(got), got[:8], got[-8:])
print('right')
"#;

/// Six processes share a file: number, file. Each writes its own parts, of sizes of every kind.
pub(crate) const SHARER: &str = r#"
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

/// The expected contents of `SHARER`'s file.
pub(crate) const SHARED: &str = r#"
import os, sys
data = open(sys.argv[1], 'rb').read()
at, part = 0, 0
while at < 20 << 20:
    length = [5000, 65536, 100001, 262144, 1000003][part % 5]
    expected = b'%04d' % (part % 10000) * (length // 4 + 1)
    assert data[at:at + len(expected)] == expected, (part, at)
    at += len(expected)
    part += 1
print('right')
"#;

/// `--remote-writes` and `--remote-reads`: when writes to other hosts return, and when remote bytes
/// are read.
const MODES: [(&str, &str); 2] = [("through", "demand"), ("behind", "readahead")];

/// Runs a test with an instance of each mode.
fn in_each_mode(test: impl Fn(&World, &str)) {
    in_each_mode_of(&MODES, test);
}

fn in_each_mode_of(modes: &[(&'static str, &'static str)], test: impl Fn(&World, &str)) {
    for &(writes, reads) in modes {
        in_mode(writes, reads, |world| test(world, writes));
    }
}

fn in_mode(writes: &'static str, reads: &'static str, test: impl Fn(&World)) {
    let settings = [("FOREBAY_REMOTE_WRITES", writes), ("FOREBAY_REMOTE_READS", reads)];
    let Some(world) = World::started(&settings) else { return };
    println!("writes: {writes}, reads: {reads}");
    test(&world);
    world.end();
}

pub(crate) fn python(world: &World, host: &str, script: &str, words: &[&str]) -> String {
    let words = [&["run", "--", "python3", "-c", script], words].concat();
    world.ok(host, &words)
}

/// Result of a `WRITER`.
pub(crate) struct WriterReport {
    /// The block that each position must hold. Positions whose write failed are absent.
    pub(crate) blocks: BTreeMap<i32, i32>,
    pub(crate) count: usize,
    /// The errnos.
    pub(crate) failed: Vec<i32>,
}

pub(crate) fn write(
    world: &World,
    host: &str,
    path: &str,
    positions: i32,
    count: i32,
) -> WriterReport {
    let words = [path, &positions.to_string(), &count.to_string(), "-1"];
    reported(&python(world, host, WRITER, &words), positions)
}

pub(crate) fn reported(text: &str, positions: i32) -> WriterReport {
    let mut reported = WriterReport { blocks: BTreeMap::new(), count: 0, failed: Vec::new() };
    for line in text.lines() {
        let (number, errno) =
            line.split_once(' ').unwrap_or_else(|| panic!("no line of a writer: {text:?}"));
        let number: i32 = number.parse().expect("a number");
        match errno.parse().expect("an errno") {
            0 => {
                reported.count += 1;
                reported.blocks.insert(number % positions, number);
            }
            errno => {
                reported.failed.push(errno);
                reported.blocks.remove(&(number % positions));
            }
        }
    }
    reported
}

pub(crate) fn assert_there(world: &World, path: &str, reported: &WriterReport) {
    assert_there_on(world, &HOSTS, path, reported);
}

pub(crate) fn assert_there_on(world: &World, hosts: &[&str], path: &str, reported: &WriterReport) {
    assert!(!reported.blocks.is_empty(), "nothing was acknowledged: {path}");
    let list: Vec<String> =
        reported.blocks.iter().map(|(at, block)| format!("{at}:{block}")).collect();
    for host in hosts {
        assert_eq!(python(world, host, READER, &[path, &list.join(" ")]), "right\n", "on {host}");
    }
}

/// The product of two lines.
fn bytes(text: &str) -> u64 {
    text.lines().map(|line| line.parse::<u64>().expect("a number")).product()
}

/// Waits until a program of the host has written something.
pub(crate) fn wait_for_bytes(world: &World, host: &str, path: &str) {
    wait_for("a first write", || {
        world.shell(host, "stat -c %s $1 2>/dev/null || echo 0", path) != "0\n"
    });
}

fn pids(world: &World, host: &str) -> Vec<String> {
    let daemons = world.daemons(host).into_iter().filter(|daemon| daemon["alive"] == true);
    daemons.filter_map(|daemon| daemon["pid"].as_u64().map(|pid| pid.to_string())).collect()
}

fn kill(pid: &str) {
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill runs").success());
}

/// "Writes are seen at once on the host of the writer" (docs/semantics/sharing.md).
#[test]
fn random_calls_of_alternating_hosts_match_a_local_disk() {
    in_each_mode(|world, _| {
        let seed = std::process::id();
        println!("seeds from {seed}");
        for round in 0..9 {
            let host = HOSTS[round as usize % 3];
            let (path, model) = (format!("/forebay/m{}", round % 2), format!("m{}", round % 2));
            let model = world.path(&model);
            let seed = (seed + round).to_string();
            python(world, host, MODEL, &[&seed, &path, &model.to_string_lossy()]);
        }
    });
}

#[test]
fn a_sequential_reader_sees_writes_of_its_host_at_once_and_earlier_ones_of_others() {
    for (writes, reads) in [("through", "readahead"), ("behind", "readahead")] {
        in_mode(writes, reads, |world| {
            let seed = std::process::id();
            println!("seeds from {seed}");
            for round in 0..6u32 {
                let name = format!("m{}", round % 2);
                let (path, model) = (format!("/forebay/{name}"), world.path(&name));
                let seed = (seed + round).to_string();
                let words: &[&str] = &[&seed, &path, &model.to_string_lossy()];
                python(world, HOSTS[round as usize % 3], MODEL, words);
                python(world, HOSTS[(round as usize + 1) % 3], READER_ON, words);
            }
        });
    }
}

#[test]
fn a_sequential_reader_waits_for_few_of_its_reads() {
    let requested = std::cell::Cell::new(0);
    for reads in ["demand", "readahead"] {
        in_mode("through", reads, |world| {
            let reported = write(world, "b", "/forebay/steps", 24, 24);
            assert_eq!((reported.count, &reported.failed), (24, &vec![]));
            let before = world.requests("a");
            let length = python(world, "a", STEPS, &["/forebay/steps"]);
            assert_eq!(length, format!("{}\n", 24 << 20));
            let count = world.requests("a") - before;
            println!("{count} requests");
            match reads {
                "demand" => requested.set(count),
                // One request fills a buffer of 16 steps.
                _ => assert!(count * 4 < requested.get(), "{count} instead of {}", requested.get()),
            }
        });
    }
}

#[test]
fn processes_of_all_hosts_write_one_file_at_a_time() {
    in_each_mode(|world, _| {
        thread::scope(|scope| {
            for me in 0..6 {
                scope.spawn(move || {
                    python(world, HOSTS[me % 3], SHARER, &[&me.to_string(), "/forebay/shared"]);
                });
            }
        });
        for host in HOSTS {
            assert_eq!(python(world, host, SHARED, &["/forebay/shared"]), "right\n", "on {host}");
        }
    });
}

#[test]
fn daemons_killed_with_transfers_in_flight_lose_nothing_acknowledged() {
    in_each_mode(|world, mode| {
        for (round, victim) in ["c", "a", "b", "a"].into_iter().enumerate() {
            let path = format!("/forebay/k{round}");
            let victims = pids(world, victim);
            let reported = thread::scope(|scope| {
                let writer = scope.spawn(|| write(world, "a", &path, 48, 600));
                // Some transfers are in flight, at the other hosts or at this one.
                wait_for_bytes(world, "a", &path);
                kill(&victims[0]);
                world.start();
                writer.join().expect("it ends")
            });
            let allowed: &[i32] = if mode == "through" { &[5] } else { &[] };
            assert!(
                reported.failed.iter().all(|errno| allowed.contains(errno)),
                "{:?}",
                reported.failed
            );
            assert_there(world, &path, &reported);
            world.shell("a", "rm $1", &path);
        }
    });
}

#[test]
fn a_killed_program_leaves_acknowledged_data_and_blocks_nothing() {
    in_each_mode(|world, _| {
        for last in [0, 3, 10, 17] {
            let path = format!("/forebay/p{last}");
            let script = "python3 -c \"$0\" $1 48 40 $2; echo ended";
            let words = ["run", "--", "sh", "-c", script, WRITER, &path, &last.to_string()];
            let printed = world.ok("a", &words);
            let lines = printed.strip_suffix("ended\n").expect("the shell continues");
            let reported = reported(lines, 48);
            assert!(reported.failed.is_empty() && reported.count < 40, "{printed}");
            assert_there(world, &path, &reported);
        }
        let reported = write(world, "a", "/forebay/p0", 48, 40);
        assert_eq!((reported.count, &reported.failed), (40, &vec![]));
        assert_there(world, "/forebay/p0", &reported);
    });
}

#[test]
fn a_network_cut_with_transfers_in_flight_loses_nothing_acknowledged() {
    in_each_mode(|world, mode| {
        let hub = format!("{}hub", world.prefix);
        let reported = thread::scope(|scope| {
            let writer = scope.spawn(|| write(world, "a", "/forebay/cut", 48, 600));
            wait_for_bytes(world, "a", "/forebay/cut");
            assert!(ip(&format!("-n {hub} link set vc down")));
            // Until calls on the disconnected host have failed, so that calls on the other side
            // have failed, too.
            let probe = "head -c 30000000 /dev/zero >/forebay/probe";
            let words = ["run", "--", "sh", "-c", probe];
            assert!(!world.on("c", &words).status.success(), "the network is not cut");
            assert!(ip(&format!("-n {hub} link set vc up")));
            writer.join().expect("it ends")
        });
        assert!(reported.failed.iter().all(|errno| *errno == 5), "{:?}", reported.failed);
        // Writes that returned before they arrived may be lost, but not silently.
        if mode == "through" || reported.failed.is_empty() {
            assert_there(world, "/forebay/cut", &reported);
        }
        let reported = write(world, "a", "/forebay/cut", 48, 80);
        assert_eq!((reported.count, &reported.failed), (80, &vec![]), "after the disconnection");
        assert_there(world, "/forebay/cut", &reported);
    });
}

#[test]
fn a_full_target_refuses_new_data_and_preserves_its_own() {
    in_each_mode_of(if testkit::is_long() { &MODES } else { &MODES[1..] }, |world, _| {
        // Four daemons hold 128 MiB each, in memory and on their SSDs.
        let reported = write(world, "a", "/forebay/full", 600, 600);
        let failed = &reported.failed;
        assert!(!failed.is_empty() && failed.iter().all(|errno| *errno == 28), "{failed:?}");
        assert!(reported.count > 300, "{}", reported.count);
        assert_there(world, "/forebay/full", &reported);
        world.shell("b", "rm /forebay/full", "");
        // Targets are notified after the removal is acknowledged.
        let free = "stat -f -c %f /forebay; stat -f -c %S /forebay";
        wait_for("space to be freed", || bytes(&world.shell("b", free, "")) >= 400 << 20);
        let reported = write(world, "c", "/forebay/more", 100, 100);
        assert_eq!(
            (reported.count, &reported.failed),
            (100, &vec![]),
            "what was removed is free again"
        );
        assert_there(world, "/forebay/more", &reported);
    });
}
