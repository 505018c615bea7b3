//! An instance reads on however much more lies in its backing directory than it has room for: what can be
//! read again is dropped. What was written stays, whoever wrote it, by which way, and whoever was killed.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use support::mounted::{Mounted, has_fuse};
use support::{Instance, Random, setting, text, wait_for};

/// The tree: 240 MB, and what a program writes to.
const TREE: &str = "mkdir -p many/{0..9} w; for n in 0 1 2; do head -c 50000000 /dev/urandom > big$n; \
                    done; head -c 80000000 /dev/urandom | split -b 41000 -a 4 - many/0/f; \
                    for n in {1..9}; do mv many/0/f*[0-9a-b]$n many/$n 2>/dev/null || :; done; \
                    for n in {0..7}; do head -c 700000 /dev/urandom > w/$n; done; \
                    head -c 4000000 /dev/urandom > w/map";
const SUMS: &str =
    "find . -name w -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";

/// Writes into files and maps one, and looks whether all is there that was written, until it is told to
/// end. What it writes over came from below.
const WRITER: &str = r#"
import hashlib, mmap, os, random, sys
below, above = sys.argv[1] + '/w/', sys.argv[2] + '/w/'
mapped = len(sys.argv) > 3
chance = random.Random(5)
right = {n: bytearray(open(below + n, 'rb').read()) for n in '01234567'}
files = {n: os.open(above + n, os.O_RDWR) for n in right}
if mapped:
    right['map'] = bytearray(open(below + 'map', 'rb').read())
    files['map'] = os.open(above + 'map', os.O_RDWR)
    bytes_of = mmap.mmap(files['map'], 4000000)
def check(n, at, got):
    want = right[n][at:at + len(got)]
    if got != want:
        wrong = next(i for i in range(len(got)) if got[i] != want[i])
        sys.exit(f'{n} at {at + wrong}: {got[wrong]} is not {want[wrong]}')
print('begun', flush=True)
os.set_blocking(0, False)
rounds = 0
while True:
    n = chance.choice(list(right))
    at = chance.randrange(len(right[n]))
    new = chance.randbytes(min(chance.randrange(1, 20000), len(right[n]) - at))
    what = chance.randrange(5)
    if n == 'map':
        if what < 2:
            bytes_of[at:at + len(new)] = new
            right[n][at:at + len(new)] = new
        else:
            check(n, at, bytes_of[at:at + 5000])
    elif what < 2:
        if os.pwrite(files[n], new, at) != len(new):
            sys.exit('short')
        right[n][at:at + len(new)] = new
    elif what == 2 and chance.randrange(40) == 0:
        size = chance.randrange(1, len(right[n]))
        os.truncate(above + n, size)
        os.truncate(above + n, 700000)
        right[n][size:] = bytes(700000 - size)
    else:
        check(n, at, os.pread(files[n], 5000, at))
    rounds += 1
    try:
        if os.read(0, 1) == b'':
            break
    except BlockingIOError:
        pass
for n in right:
    check(n, 0, open(above + n, 'rb').read())
    print(hashlib.sha256(right[n]).hexdigest(), n)
print(rounds)
"#;

/// Reads a file by a mapping, piece for piece.
const MAPS: &str = r#"
import hashlib, mmap, sys
for name in sys.argv[1:]:
    with open(name, 'rb') as file:
        bytes_of = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        said = hashlib.sha256()
        for at in range(0, len(bytes_of), 1 << 20):
            said.update(bytes_of[at:at + (1 << 20)])
        print(said.hexdigest(), '', name)
"#;

fn said(output: Output, what: &str) -> String {
    assert!(output.status.success(), "{what}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn shell(place: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    said(command.args(["-ec", script]).current_dir(place).output().expect("bash runs"), script)
}

fn above(instance: &Instance, script: &str) -> String {
    let script = format!("cd /forebay; {script}");
    said(instance.program(&["bash", "-ec", &script]).output().expect("forebay runs"), &script)
}

fn tree() -> tempfile::TempDir {
    let below = tempfile::tempdir().expect("a directory");
    shell(below.path(), TREE);
    below
}

fn dropped(instance: &Instance) -> u64 {
    let daemons = instance.status()["daemons"].as_array().expect("a list").clone();
    daemons.iter().filter_map(|one| one["state"]["bytes_dropped"].as_u64()).sum()
}

fn start(name: &str, daemons: &str, ssd: &str, below: &Path) -> Instance {
    start_with(name, daemons, &["--memory", "32MiB", "--ssd", ssd, "--chunk", "256KiB"], below)
}

fn start_with(name: &str, daemons: &str, tiers: &[&str], below: &Path) -> Instance {
    let below = below.to_str().expect("a path of letters");
    let place = ["--local", daemons, "--backing", below];
    Instance::start(name, &[&place[..], tiers].concat())
}

/// A program that runs beside, and how it is ended.
struct Beside {
    child: Child,
}

impl Beside {
    fn start(mut command: Command) -> Beside {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Beside { child: command.spawn().expect("it starts") }
    }

    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        said(self.child.wait_with_output().expect("it ends"), "the writer")
    }
}

fn writer_above(instance: &Instance, below: &Path) -> Beside {
    let below = below.to_str().expect("letters");
    Beside::start(instance.program(&["python3", "-c", WRITER, below, "/forebay", "maps"]))
}

/// "An instance reads on however much more lies below than it has room for" (docs/semantics.md): all of
/// it is there, again and again, and what is written meanwhile stays.
#[test]
fn a_tree_larger_than_all_tiers_is_read_again_and_again() {
    let below = tree();
    let sums = shell(below.path(), SUMS);
    for (daemons, ssd) in [("1", "0"), ("1", "32MiB"), ("2", "16MiB")] {
        let name = format!("reads{daemons}{}", ssd.len());
        let instance = start(&name, daemons, ssd, below.path());
        let writer = writer_above(&instance, below.path());
        for round in 0..2 {
            assert!(above(&instance, SUMS) == sums, "{name}, round {round}");
        }
        assert!(dropped(&instance) > 300_000_000, "it has not so much room");
        let written = writer.end();
        assert!(written.starts_with("begun"), "{written}");
        // Others read as much meanwhile, and it is still there.
        assert!(above(&instance, SUMS) == sums, "{name}, at last");
        let right: Vec<&str> = written.lines().filter(|line| line.contains(' ')).collect();
        let names = "0 1 2 3 4 5 6 7 map";
        let now = above(&instance, &format!("cd w; sha256sum {names} | tr -s ' '"));
        assert_eq!(now.lines().collect::<Vec<_>>(), right, "{name}");
    }
}

#[test]
fn by_a_mount_too() {
    if !has_fuse() {
        return eprintln!("no FUSE: nothing stated");
    }
    let below = tree();
    let sums = shell(below.path(), SUMS);
    let instance = start("mounted", "2", "16MiB", below.path());
    let mounted = Mounted::new(&instance, "mounted");
    let place = mounted.path("");
    let mut command = Command::new("python3");
    command.args(["-c", WRITER]).arg(below.path()).arg(&place).arg("maps");
    let writer = Beside::start(command);
    for round in 0..2 {
        assert!(shell(&place, SUMS) == sums, "round {round}");
    }
    // The kernel has pages of its own for the second round.
    assert!(dropped(&instance) > 100_000_000, "it has not so much room");
    let written = writer.end();
    let right: Vec<&str> = written.lines().filter(|line| line.contains(' ')).collect();
    let now = above(&instance, "cd w; sha256sum 0 1 2 3 4 5 6 7 map | tr -s ' '");
    assert_eq!(now.lines().collect::<Vec<_>>(), right);
}

#[test]
fn by_mappings_that_are_read_too() {
    let below = tree();
    let sums = shell(below.path(), "sha256sum big0 big1 big2 big0 big1 big2");
    let instance = start("maps", "1", "64MiB", below.path());
    let script = format!("for n in 0 1 2 0 1 2; do python3 -c \"{MAPS}\" big$n; done");
    assert_eq!(above(&instance, &script), sums);
    assert!(dropped(&instance) > 150_000_000, "it has not so much room");
}

#[test]
fn killed_daemons_lose_nothing_that_was_written() {
    let below = tree();
    let sums = shell(below.path(), SUMS);
    let mut random = Random::new(setting("SEED", 1));
    for round in 0..setting("ROUNDS", 2) {
        let instance = start(&format!("killed{round}"), "2", "16MiB", below.path());
        let writer = writer_above(&instance, below.path());
        let script = format!("cd /forebay; {SUMS}");
        let mut command = instance.program(&["bash", "-ec", &script]);
        let mut reader = command.stdout(Stdio::piped()).spawn().expect("forebay runs");
        for _ in 0..3 {
            // It counts from the last start on.
            let wanted = dropped(&instance) + random.below(60_000_000);
            wait_for("much to be dropped, or the end", || {
                dropped(&instance) >= wanted || reader.try_wait().expect("it is ours").is_some()
            });
            let daemon = instance.daemon(random.below(2) as usize);
            daemon.kill();
            daemon.wait();
            instance.start_again();
        }
        let output = reader.wait_with_output().expect("it ends");
        assert!(text(&output.stdout) == sums, "round {round}: {}", text(&output.stderr));
        writer.end();
    }
}

/// A single file that is longer than all tiers, by calls that ask for much at once; and programs that
/// write new files find room, too.
#[test]
fn who_writes_gets_the_room_of_what_can_be_read_again() {
    let below = tree();
    let sum = shell(below.path(), "cat big0 big1 big2 | sha256sum");
    let place = below.path().join("long");
    shell(below.path(), "cat big0 big1 big2 > long; rm big*");
    let never = ["--memory", "32MiB", "--ssd", "0", "--chunk", "256KiB", "--write-back", "never"];
    let instance = start_with("room", "1", &never, below.path());
    assert_eq!(above(&instance, "dd if=long bs=128M iflag=fullblock status=none | sha256sum"), sum);
    // All of the memory is full of it now.
    let script = "for n in 1 2 3 4; do head -c 5000000 /forebay/long > own$n; done; \
                  cat long > /dev/null; sha256sum own? | cut -c 1-64 | sort -u | wc -l";
    assert_eq!(above(&instance, script), "1\n");
    // What is written takes all that can be dropped, and not more than there is.
    let script = "LC_ALL=C dd if=/dev/zero of=zeros bs=1M count=100 2>&1 | grep -c 'No space left'; \
                  stat -c %s zeros; rm zeros";
    let output = instance.program(&["bash", "-c", &format!("cd /forebay; {script}")]).output();
    let said = text(&output.expect("forebay runs").stdout);
    let lines: Vec<u64> = said.lines().flat_map(str::parse).collect();
    assert!(lines[0] == 1 && lines[1] > 6_000_000, "{said}");
    assert_eq!(above(&instance, "cat long | sha256sum"), sum);
    assert_eq!(above(&instance, "cmp own1 <(head -c 5000000 long); echo $?"), "0\n");
    assert_eq!(fs::metadata(place).expect("there").len(), 150_000_000);
}

/// What can not be dropped leaves no room for what lies below: it is read all the same, and not kept.
#[test]
fn a_target_full_of_what_was_written_lets_read_what_lies_below() {
    let below = tree();
    let sums = shell(below.path(), SUMS);
    let others = SUMS.replace("-name w", "'(' -name w -o -name 'own*' ')'");
    let below_text = below.path().to_str().expect("letters");
    for daemons in ["1", "2"] {
        let tiers = ["--memory", "16MiB", "--ssd", "0", "--write-back", "never"];
        let name = format!("unkept{daemons}");
        let instance = start_with(&name, daemons, &tiers, below.path());
        // All of it, in pieces of all lengths.
        let fill = "cd /forebay; for n in 0 1 2 3; do dd if=/dev/zero of=own$n bs=1M; done 2>&1; \
                    dd if=/dev/zero of=own bs=4k 2>&1; LC_ALL=C df --output=avail . | tail -1";
        let output = instance.program(&["bash", "-c", fill]).output().expect("forebay runs");
        assert!(text(&output.stdout).contains("No space left"), "{}", text(&output.stdout));
        assert!(above(&instance, &others) == sums, "{daemons} daemons");
        if has_fuse() {
            let mounted = Mounted::new(&instance, "unkept");
            let compare = format!("cmp big0 {below_text}/big0; echo same");
            assert_eq!(shell(&mounted.path(""), &compare), "same\n");
        }
        let own = "cd /forebay; cat own* | tr -d '\\0' | wc -c";
        assert_eq!(above(&instance, own), "0\n");
    }
}
