//! Data that programs of other hosts read of a slow target moves to other targets, is read there, and can
//! be changed and removed meanwhile; also when daemons die.
//!
//! Network namespaces, and limits of links, need root. Without them the tests are skipped.

use crate::support::agent::{Agent, signal};
use crate::support::wait_for;
use crate::support::world::World;
use serde_json::Value;

/// Makes files that are open together, so that each target of a pool gets some.
const MAKE: &str = r"
import os, sys
size, block = int(sys.argv[1]), 256 << 10
files = [os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[2:]]
for number, file in enumerate(files):
    for at in range(0, size, block):
        os.pwrite(file, bytes([(at // block * 7 + number) % 251]) * block, at)
";
/// A thread for each file reads it again and again, until something is wrong.
const READERS: &str = r"
import os, sys, threading
size, block = int(sys.argv[1]), 256 << 10
wrong, rounds = [], {}
def read(number, path):
    file = os.open(path, os.O_RDONLY)
    while not wrong:
        for at in range(0, size, block):
            try:
                part = os.pread(file, block, at)
            except OSError as error:
                return wrong.append(f'{path} {at} {error}')
            if part != bytes([(at // block * 7 + number) % 251]) * block:
                return wrong.append(f'{path} {at} has {len(part)} bytes {part[:8]!r}')
        rounds[number] = rounds.get(number, 0) + 1
paths = sys.argv[2:]
for number, path in enumerate(paths):
    threading.Thread(target=read, args=(number, path), daemon=True).start()
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    print('ok', wrong[0] if wrong else 'right', min(rounds.values(), default=0), flush=True)
os._exit(0)
";

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 4 * MIB;
const FILES: usize = 8;

/// A pool of all targets, with files on each, which a program on host a reads; the link of host b is
/// slow.
struct SlowTarget {
    world: World,
    paths: Vec<String>,
    readers: Agent,
}

impl SlowTarget {
    /// `None` after a skip note.
    fn new() -> Option<SlowTarget> {
        let world = World::started(&[("FOREBAY_STRIPE_SIZE", "1MiB"), ("FOREBAY_TIMEOUT", "30s")])?;
        let equal = ["1G"; 4].join(",");
        world.ok("a", &["pool", "create", "all", "--targets", "0-3", "--max-perf", &equal]);
        world.shell("a", "mkdir $1", "/forebay/d");
        world.ok("a", &["layout", "set", "--pool", "all", "/forebay/d"]);
        let paths: Vec<String> = (0..FILES).map(|file| format!("/forebay/d/f{file}")).collect();
        let (size, words) = (FILE_BYTES.to_string(), paths.iter().map(String::as_str));
        let words: Vec<&str> = words.collect();
        let python = |script| [&["run", "--", "python3", "-c", script, &size], &words[..]].concat();
        world.ok("a", &python(MAKE));
        let is_throttled =
            world.throttle("b", "16mbit", "64kb") && world.throttle_from("b", "16mbit", "64kb");
        let readers = Agent::new("readers".to_owned(), world.command("a", &python(READERS)));
        is_throttled.then_some(SlowTarget { world, paths, readers })
    }

    fn figure(&self, host: &str, name: &str) -> u64 {
        let state = &self.world.daemon(host)["state"];
        state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
    }

    /// Files on the target of host b.
    fn slow_files(&self) -> Vec<String> {
        let is_slow = |path: &&String| {
            let layout = self.world.ok("a", &["layout", "get", "--json", path]);
            let layout: Value = serde_json::from_str(&layout).expect("JSON");
            layout["targets"][0] == 1
        };
        self.paths.iter().filter(is_slow).cloned().collect()
    }

    /// Waits until `bytes` of the slow target have moved.
    fn wait_for_moved(&mut self, bytes: u64) {
        wait_for("data of the slow target to move", || {
            assert!(self.readers.ok("").contains("right"), "a reader found something else");
            self.figure("b", "bytes_migrated") >= bytes
        });
    }

    /// How often each file was read; each time it was what was written.
    fn rounds(&mut self) -> u64 {
        let said = self.readers.ok("");
        let words: Vec<&str> = said.split_whitespace().collect();
        let right = words.iter().position(|word| *word == "right");
        let at = right.unwrap_or_else(|| panic!("a reader found something else: {said}"));
        words[at + 1].parse().expect("a number")
    }

    /// Everything is removed, wherever it is, and the instance is stopped.
    fn end(self) {
        let SlowTarget { world, readers, .. } = self;
        drop(readers);
        world.unthrottle("b");
        world.unthrottle_from("b");
        world.shell("a", "rm -r $1", "/forebay/d");
        wait_for("nothing to be spilled", || {
            ["a", "b", "c"].iter().all(|host| {
                let state = &world.daemon(host)["state"];
                ["bytes_spilled_in", "bytes_spilled_out"].iter().all(|name| state[name] == 0)
            })
        });
        world.end();
    }

    fn wait_for_rounds(&mut self, more: u64) {
        let before = self.rounds();
        wait_for("all files to be read", || self.rounds() >= before + more);
    }
}

/// "Data that other hosts read of a slow target of a pool moves to others of its targets, with the same
/// promises" (docs/semantics/durability.md).
#[test]
fn data_of_a_slow_target_moves_and_is_read_elsewhere() {
    let Some(mut slow) = SlowTarget::new() else { return };
    let files = slow.slow_files();
    assert_eq!(files.len(), FILES / 4, "{files:?}");
    // The first 16 KiB of each file are in extents that are read in messages.
    slow.wait_for_moved(FILES as u64 / 4 * (FILE_BYTES - (16 << 10)));
    wait_for("readers to be sent on", || slow.figure("b", "reads_redirected") > 100);
    // Host a reads some of it in its own memory.
    assert!(slow.figure("a", "bytes_spilled_in") > 0 && slow.figure("c", "bytes_spilled_in") > 0);
    slow.wait_for_rounds(2);
    slow.readers.kill();
    let world = &slow.world;
    let read = |host: &str, path: &str| world.shell(host, "sha256sum <$1", path);
    let before = read("c", &files[0]);
    assert_eq!(read("a", &files[0]), before);
    let change = "
        set -e
        cp $1 ${1}copy
        for f in $1 ${1}copy; do
            printf hello | dd of=$f bs=1 seek=1500000 conv=notrunc status=none
            printf tail >>$f
            truncate -s 3000001 $f
            truncate -s 3500000 $f
            fallocate -p -o 100000 -l 1000000 $f
        done
        cmp $1 ${1}copy
    ";
    for host in ["a", "c"] {
        world.shell(host, change, &files[0]);
    }
    // The slow target is on this host: its programs get the data back.
    world.shell("b", "cmp $1 ${1}copy", &files[0]);
    world.shell("c", "cmp $1 ${1}copy", &files[0]);
    assert_ne!(read("c", &files[0]), before);
    slow.end();
}

/// "daemons may be killed at any time": the slow target, one to which its data moves, and that of the
/// readers.
#[test]
fn daemons_may_die_while_data_migrates() {
    let Some(mut slow) = SlowTarget::new() else { return };
    for host in ["b", "c", "a"] {
        slow.wait_for_moved(if host == "b" { MIB } else { 0 });
        wait_for("readers to be sent on", || slow.figure("b", "reads_redirected") > 0);
        signal(slow.world.pid(host), "-KILL");
        slow.world.start();
        slow.wait_for_rounds(1);
    }
    slow.end();
}
