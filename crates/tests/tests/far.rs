//! Bytes on other hosts, large and small: random calls of hosts in turn and at a time against
//! models; daemons and programs killed, the network cut and targets filled while bytes are on their
//! way. What was acknowledged is there, whoever reads it; where writes return before they arrive,
//! what was acknowledged is there after the close, or an error was told.
//!
//! Namespaces need root. Without, the tests say so and state nothing.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use support::world::{HOSTS, World, ip};

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

/// Reads on through a file in steps of every size, and compares with a model: seed, file, model. In
/// between the process, or a child, writes what comes next, cuts the file or makes holes; or it goes
/// somewhere else.
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
    got, wanted = os.read(fd, length), os.pread(like, length, at)
    if got != wanted:
        pairs, end = enumerate(zip(got, wanted)), min(len(got), len(wanted))
        first = next((i for i, (x, y) in pairs if x != y), end)
        sys.exit(f'{seed}: {call}: {at}+{length}: {len(got)} of {len(wanted)}, first at {first}')
    at += len(wanted)
    do = r.random()
    if do < 0.2:
        bytes, place = r.randbytes(r.choice([1, 5000, 100000])), near()
        for f in other, like: assert os.pwrite(f, bytes, place) == len(bytes)
    elif do < 0.24:
        bytes, place = r.randbytes(20000), near()
        child = os.fork()
        if child == 0:
            os.pwrite(other, bytes, place)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.pwrite(like, bytes, place)
    elif do < 0.26:
        place = near()
        for f in other, like: os.ftruncate(f, place)
    elif do < 0.28 or not wanted:
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

/// Writes blocks of 1 MiB that say their number, and a line for each: the number and the errno, 0
/// if it was written; -1 is the close. Words: file, places in it that are used in turn, count, block
/// after which the program kills itself (-1: none).
const WRITER: &str = r#"
import os, sys, threading, signal
path, places, count, last = sys.argv[1], *map(int, sys.argv[2:5])
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
            done += os.pwrite(fd, block[done:], n % places * len(block) + done)
        print(f'{n} 0', flush=True)
    except OSError as error:
        print(f'{n} {error.errno}', flush=True)
    if n == last: reached.set()
try:
    os.close(fd)
except OSError as error:
    print(f'-1 {error.errno}', flush=True)
"#;

/// Checks blocks of `WRITER`: place and number of each.
const READER: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for place, n in (map(int, word.split(':')) for word in sys.argv[2].split()):
    wanted = b'%08d' % n * 131072
    got = os.pread(fd, len(wanted), place * len(wanted))
    assert got == wanted, (place, n, len(got), got[:8], got[-8:])
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

/// When writes to other hosts return, and when bytes of them are read.
const MODES: [(&str, &str); 2] = [("through", "asked"), ("behind", "ahead")];

/// Runs a test with an instance of each mode.
fn in_each_mode(test: impl Fn(&World, &str)) {
    for (writes, reads) in MODES {
        in_mode(writes, reads, |world| test(world, writes));
    }
}

fn in_mode(writes: &'static str, reads: &'static str, test: impl Fn(&World)) {
    let settings = [("FOREBAY_WRITES", writes), ("FOREBAY_READS", reads)];
    let Some(world) = World::started(&settings) else { return };
    println!("writes: {writes}, reads: {reads}");
    test(&world);
    world.end();
}

fn python(world: &World, host: &str, script: &str, words: &[&str]) -> String {
    let words = [&["run", "--", "python3", "-c", script], words].concat();
    world.ok(host, &words)
}

/// What a `WRITER` told.
struct Told {
    /// The block that each place must hold. One whose write failed is not known.
    blocks: BTreeMap<i32, i32>,
    count: usize,
    /// The errnos.
    failed: Vec<i32>,
}

fn write(world: &World, host: &str, path: &str, places: i32, count: i32) -> Told {
    let words = [path, &places.to_string(), &count.to_string(), "-1"];
    told(&python(world, host, WRITER, &words), places)
}

fn told(text: &str, places: i32) -> Told {
    let mut told = Told { blocks: BTreeMap::new(), count: 0, failed: Vec::new() };
    for line in text.lines() {
        let (number, errno) =
            line.split_once(' ').unwrap_or_else(|| panic!("no line of a writer: {text:?}"));
        let number: i32 = number.parse().expect("a number");
        match errno.parse().expect("an errno") {
            0 => {
                told.count += 1;
                told.blocks.insert(number % places, number);
            }
            errno => {
                told.failed.push(errno);
                told.blocks.remove(&(number % places));
            }
        }
    }
    told
}

fn assert_there(world: &World, path: &str, told: &Told) {
    assert!(!told.blocks.is_empty(), "nothing was acknowledged: {path}");
    let list: Vec<String> = told.blocks.iter().map(|(at, block)| format!("{at}:{block}")).collect();
    for host in HOSTS {
        assert_eq!(python(world, host, READER, &[path, &list.join(" ")]), "right\n", "on {host}");
    }
}

/// The product of two lines.
fn bytes(text: &str) -> u64 {
    text.lines().map(|line| line.parse::<u64>().expect("a number")).product()
}

/// Waits until a program of the host has written something.
fn wait_for_bytes(world: &World, host: &str, path: &str) {
    let begun = Instant::now();
    while world.shell(host, "stat -c %s $1 2>/dev/null || echo 0", path) == "0\n" {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is written");
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

/// "Writes are seen at once on the host of the writer" (docs/semantics.md).
#[test]
fn random_calls_of_hosts_in_turn_do_what_they_do_on_a_local_disk() {
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

/// Requests that the first daemon of a host has served.
fn requests(world: &World, host: &str) -> u64 {
    let status = world.ok(host, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let states = status["daemons"].as_array().expect("a list").iter();
    states.filter_map(|daemon| daemon["state"]["requests"].as_u64()).sum()
}

#[test]
fn who_reads_on_finds_what_was_written_on_his_host_meanwhile_and_by_others_before() {
    for (writes, reads) in [("through", "ahead"), ("behind", "ahead")] {
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
fn who_reads_on_waits_for_few_of_his_reads() {
    let asked = std::cell::Cell::new(0);
    for reads in ["asked", "ahead"] {
        in_mode("through", reads, |world| {
            let told = write(world, "b", "/forebay/steps", 24, 24);
            assert_eq!((told.count, &told.failed), (24, &vec![]));
            let before = requests(world, "a");
            let length = python(world, "a", STEPS, &["/forebay/steps"]);
            assert_eq!(length, format!("{}\n", 24 << 20));
            let count = requests(world, "a") - before;
            println!("{count} requests");
            match reads {
                "asked" => asked.set(count),
                // Of a buffer's 16 steps the daemon hears once.
                _ => assert!(count * 4 < asked.get(), "{count} instead of {}", asked.get()),
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
fn daemons_killed_with_bytes_on_their_way_lose_nothing_acknowledged() {
    in_each_mode(|world, mode| {
        for (round, victim) in ["c", "a", "b", "a"].into_iter().enumerate() {
            let path = format!("/forebay/k{round}");
            let victims = pids(world, victim);
            let told = thread::scope(|scope| {
                let writer = scope.spawn(|| write(world, "a", &path, 48, 600));
                // Some of it is on its way, at the other hosts or at this one.
                wait_for_bytes(world, "a", &path);
                kill(&victims[0]);
                world.start();
                writer.join().expect("it ends")
            });
            let allowed: &[i32] = if mode == "through" { &[5] } else { &[] };
            assert!(told.failed.iter().all(|errno| allowed.contains(errno)), "{:?}", told.failed);
            assert_there(world, &path, &told);
            world.shell("a", "rm $1", &path);
        }
    });
}

#[test]
fn a_killed_program_leaves_what_was_acknowledged_and_nothing_in_the_way() {
    in_each_mode(|world, _| {
        for last in [0, 3, 10, 17] {
            let path = format!("/forebay/p{last}");
            let script = "python3 -c \"$0\" $1 48 40 $2; echo ended";
            let words = ["run", "--", "sh", "-c", script, WRITER, &path, &last.to_string()];
            let said = world.ok("a", &words);
            let lines = said.strip_suffix("ended\n").expect("the shell goes on");
            let told = told(lines, 48);
            assert!(told.failed.is_empty() && told.count < 40, "{said}");
            assert_there(world, &path, &told);
        }
        let told = write(world, "a", "/forebay/p0", 48, 40);
        assert_eq!((told.count, &told.failed), (40, &vec![]));
        assert_there(world, "/forebay/p0", &told);
    });
}

#[test]
fn a_network_cut_with_bytes_on_their_way_loses_nothing_acknowledged() {
    in_each_mode(|world, mode| {
        let hub = format!("{}hub", world.prefix);
        let told = thread::scope(|scope| {
            let writer = scope.spawn(|| write(world, "a", "/forebay/cut", 48, 600));
            wait_for_bytes(world, "a", "/forebay/cut");
            assert!(ip(&format!("-n {hub} link set vc down")));
            // Until calls on the cut host have failed, so that calls on the other side did, too.
            let probe = "head -c 30000000 /dev/zero >/forebay/probe";
            let words = ["run", "--", "sh", "-c", probe];
            assert!(!world.on("c", &words).status.success(), "the network is not cut");
            assert!(ip(&format!("-n {hub} link set vc up")));
            writer.join().expect("it ends")
        });
        assert!(told.failed.iter().all(|errno| *errno == 5), "{:?}", told.failed);
        // What returned before it arrived may be lost, but not unnoticed.
        if mode == "through" || told.failed.is_empty() {
            assert_there(world, "/forebay/cut", &told);
        }
        let told = write(world, "a", "/forebay/cut", 48, 80);
        assert_eq!((told.count, &told.failed), (80, &vec![]), "after the cut");
        assert_there(world, "/forebay/cut", &told);
    });
}

#[test]
fn a_full_target_refuses_and_keeps_what_it_has() {
    in_each_mode(|world, _| {
        // Four daemons hold 128 MiB each, in memory and on their SSDs.
        let told = write(world, "a", "/forebay/full", 600, 600);
        let failed = &told.failed;
        assert!(!failed.is_empty() && failed.iter().all(|errno| *errno == 28), "{failed:?}");
        assert!(told.count > 300, "{}", told.count);
        assert_there(world, "/forebay/full", &told);
        world.shell("b", "rm /forebay/full", "");
        // Targets are told of the removal after it is acknowledged.
        let begun = Instant::now();
        let free = "stat -f -c %f /forebay; stat -f -c %S /forebay";
        while bytes(&world.shell("b", free, "")) < 400 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(30), "no room comes free");
        }
        let told = write(world, "c", "/forebay/more", 100, 100);
        assert_eq!((told.count, &told.failed), (100, &vec![]), "what was removed is free again");
        assert_there(world, "/forebay/more", &told);
    });
}
