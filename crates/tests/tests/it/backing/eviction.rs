//! An instance reads a backing directory of any size, because clean data is evicted. Written data
//! stays, whatever wrote it, by whichever path, and whatever process was killed. A long run
//! (`testkit::is_long`) has a larger tree and more instances.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, Random, text, wait_for};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The tree: three files of `BIG` bytes, small files of `SMALL` bytes together, and a directory to
/// write to.
const TREE: &str = "mkdir -p many/{0..9} w; for n in 0 1 2; do head -c $BIG /dev/urandom > big$n; \
                    done; head -c $SMALL /dev/urandom | split -b 41000 -a 4 - many/0/f; \
                    for n in {1..9}; do mv many/0/f*[0-9a-b]$n many/$n 2>/dev/null || :; done; \
                    for n in {0..7}; do head -c 700000 /dev/urandom > w/$n; done; \
                    head -c 4000000 /dev/urandom > w/map";
const SUMS: &str =
    "find . -name w -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";

/// Writes to files and to a mapping and checks all of it until it is told to end. The overwritten
/// data came from the backing store.
const WRITER: &str = r#"
import hashlib, mmap, os, random, sys
backing, instance = sys.argv[1] + '/w/', sys.argv[2] + '/w/'
mapped = len(sys.argv) > 3
chance = random.Random(5)
right = {n: bytearray(open(backing + n, 'rb').read()) for n in '01234567'}
files = {n: os.open(instance + n, os.O_RDWR) for n in right}
if mapped:
    right['map'] = bytearray(open(backing + 'map', 'rb').read())
    files['map'] = os.open(instance + 'map', os.O_RDWR)
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
        os.truncate(instance + n, size)
        os.truncate(instance + n, 700000)
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
    check(n, 0, open(instance + n, 'rb').read())
    print(hashlib.sha256(right[n]).hexdigest(), n)
print(rounds)
"#;

/// Reads a file by a mapping, part by part.
const MAPS: &str = r#"
import hashlib, mmap, sys
for name in sys.argv[1:]:
    with open(name, 'rb') as file:
        bytes_of = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        checksum = hashlib.sha256()
        for at in range(0, len(bytes_of), 1 << 20):
            checksum.update(bytes_of[at:at + (1 << 20)])
        print(checksum.hexdigest(), '', name)
"#;

fn printed(output: Output, what: &str) -> String {
    assert!(output.status.success(), "{what}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn shell(dir: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    printed(command.args(["-ec", script]).current_dir(dir).output().expect("bash runs"), script)
}

fn in_instance(instance: &Instance, script: &str) -> String {
    let script = format!("cd /forebay; {script}");
    printed(instance.program(&["bash", "-ec", &script]).output().expect("forebay runs"), &script)
}

/// Lengths of a big file and of all small files together.
fn lengths() -> (u64, u64) {
    if testkit::is_long() { (50_000_000, 80_000_000) } else { (30_000_000, 30_000_000) }
}

/// Length of the tree without the directory to write to.
fn tree_bytes() -> u64 {
    let (big, small) = lengths();
    3 * big + small
}

fn tree() -> tempfile::TempDir {
    let backing = tempfile::tempdir().expect("a directory");
    let (big, small) = lengths();
    shell(backing.path(), &format!("BIG={big} SMALL={small}; {TREE}"));
    backing
}

fn evicted(instance: &Instance) -> u64 {
    let daemons = instance.status()["daemons"].as_array().expect("a list").clone();
    daemons.iter().filter_map(|one| one["state"]["bytes_evicted"].as_u64()).sum()
}

fn start(name: &str, daemons: &str, ssd: &str, backing: &Path) -> Instance {
    start_with(
        name,
        daemons,
        &["--memory", "16MiB", "--ssd", ssd, "--stripe-size", "256KiB"],
        backing,
    )
}

fn start_with(name: &str, daemons: &str, tiers: &[&str], backing: &Path) -> Instance {
    let backing = backing.to_str().expect("a path of letters");
    let dir = ["--local", daemons, "--backing", backing];
    Instance::start(name, &[&dir[..], tiers].concat())
}

/// A program in the background, and how to end it.
struct BackgroundProgram {
    child: Child,
}

impl BackgroundProgram {
    fn start(mut command: Command) -> BackgroundProgram {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        BackgroundProgram { child: command.spawn().expect("it starts") }
    }

    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        printed(self.child.wait_with_output().expect("it ends"), "the writer")
    }
}

fn start_writer(instance: &Instance, backing: &Path) -> BackgroundProgram {
    let backing = backing.to_str().expect("letters");
    BackgroundProgram::start(
        instance.program(&["python3", "-c", WRITER, backing, "/forebay", "maps"]),
    )
}

/// "A backing directory may be larger than the instance" (docs/semantics/backing.md): all of
/// it is there, again and again, and what is written meanwhile stays.
#[test]
fn a_tree_larger_than_all_tiers_is_read_again_and_again() {
    let backing = tree();
    let sums = shell(backing.path(), SUMS);
    let tiers = [("1", "0"), ("1", "32MiB"), ("2", "16MiB")];
    let tiers = if testkit::is_long() { &tiers[..] } else { &tiers[1..] };
    for &(daemons, ssd) in tiers {
        let name = format!("reads{daemons}{}", ssd.len());
        let instance = start(&name, daemons, ssd, backing.path());
        let writer = start_writer(&instance, backing.path());
        for round in 0..2 {
            assert!(in_instance(&instance, SUMS) == sums, "{name}, round {round}");
        }
        assert!(evicted(&instance) > tree_bytes(), "it does not have that much space");
        let written = writer.end();
        assert!(written.starts_with("begun"), "{written}");
        // Meanwhile others read just as much, and the data is still there.
        assert!(in_instance(&instance, SUMS) == sums, "{name}, at the end");
        let right: Vec<&str> = written.lines().filter(|line| line.contains(' ')).collect();
        let names = "0 1 2 3 4 5 6 7 map";
        let now = in_instance(&instance, &format!("cd w; sha256sum {names} | tr -s ' '"));
        assert_eq!(now.lines().collect::<Vec<_>>(), right, "{name}");
    }
}

#[test]
fn a_mount_reads_a_tree_larger_than_all_tiers() {
    if !has_fuse() {
        return;
    }
    let backing = tree();
    let sums = shell(backing.path(), SUMS);
    let instance = start("mounted", "2", "16MiB", backing.path());
    let mounted = Mounted::new(&instance, "mounted");
    let dir = mounted.path("");
    let mut command = Command::new("python3");
    command.args(["-c", WRITER]).arg(backing.path()).arg(&dir).arg("maps");
    let writer = BackgroundProgram::start(command);
    for round in 0..2 {
        assert!(shell(&dir, SUMS) == sums, "round {round}");
    }
    // The kernel has its own pages for the second round.
    assert!(evicted(&instance) > tree_bytes() / 3, "it does not have that much space");
    let written = writer.end();
    let right: Vec<&str> = written.lines().filter(|line| line.contains(' ')).collect();
    let now = in_instance(&instance, "cd w; sha256sum 0 1 2 3 4 5 6 7 map | tr -s ' '");
    assert_eq!(now.lines().collect::<Vec<_>>(), right);
}

#[test]
fn mappings_read_a_tree_larger_than_all_tiers() {
    let backing = tree();
    let sums = shell(backing.path(), "sha256sum big0 big1 big2 big0 big1 big2");
    let instance = start("maps", "1", "32MiB", backing.path());
    let script = format!("for n in 0 1 2 0 1 2; do python3 -c \"{MAPS}\" big$n; done");
    assert_eq!(in_instance(&instance, &script), sums);
    assert!(evicted(&instance) > 3 * lengths().0, "it does not have that much space");
}

#[test]
fn killed_daemons_lose_nothing_that_was_written() {
    let backing = tree();
    let sums = shell(backing.path(), SUMS);
    let mut random = Random::new(testkit::seed(1));
    for round in 0..testkit::rounds(1) {
        let instance = start(&format!("killed{round}"), "2", "16MiB", backing.path());
        let writer = start_writer(&instance, backing.path());
        let script = format!("cd /forebay; {SUMS}");
        let mut command = instance.program(&["bash", "-ec", &script]);
        let mut reader = command.stdout(Stdio::piped()).spawn().expect("forebay runs");
        for _ in 0..3 {
            // The counter begins at the last start.
            let expected = evicted(&instance) + random.uniform(tree_bytes() / 4);
            wait_for("many evictions, or the end", || {
                evicted(&instance) >= expected
                    || reader.try_wait().expect("it belongs to the instance").is_some()
            });
            let daemon = instance.daemon(random.uniform(2) as usize);
            daemon.kill();
            daemon.wait();
            instance.start_again();
        }
        let output = reader.wait_with_output().expect("it ends");
        assert!(text(&output.stdout) == sums, "round {round}: {}", text(&output.stderr));
        writer.end();
    }
}

/// A single file that is longer than all tiers, read by large calls; and programs that write new
/// files find space, too.
#[test]
fn writers_get_the_space_of_clean_data() {
    let backing = tree();
    let sum = shell(backing.path(), "cat big0 big1 big2 | sha256sum");
    let dir = backing.path().join("long");
    shell(backing.path(), "cat big0 big1 big2 > long; rm big*");
    let never =
        ["--memory", "32MiB", "--ssd", "0", "--stripe-size", "256KiB", "--writeback", "never"];
    let instance = start_with("room", "1", &never, backing.path());
    assert_eq!(
        in_instance(&instance, "dd if=long bs=128M iflag=fullblock status=none | sha256sum"),
        sum
    );
    // The file fills all of the memory.
    let script = "for n in 1 2 3 4; do head -c 5000000 /forebay/long > own$n; done; \
                  cat long > /dev/null; sha256sum own? | cut -c 1-64 | sort -u | wc -l";
    assert_eq!(in_instance(&instance, script), "1\n");
    // Writes get all the space that can be evicted, and no more.
    let script = "LC_ALL=C dd if=/dev/zero of=zeros bs=1M count=100 2>&1 | grep -c 'No space left'; \
                  stat -c %s zeros; rm zeros";
    let output = instance.program(&["bash", "-c", &format!("cd /forebay; {script}")]).output();
    let printed = text(&output.expect("forebay runs").stdout);
    let lines: Vec<u64> = printed.lines().flat_map(str::parse).collect();
    assert!(lines[0] == 1 && lines[1] > 6_000_000, "{printed}");
    assert_eq!(in_instance(&instance, "cat long | sha256sum"), sum);
    assert_eq!(in_instance(&instance, "cmp own1 <(head -c 5000000 long); echo $?"), "0\n");
    assert_eq!(fs::metadata(dir).expect("there").len(), 3 * lengths().0);
}

/// Dirty data that cannot be evicted leaves no space for backing files: they are read all the same,
/// uncached.
#[test]
fn a_target_full_of_dirty_data_still_reads_backing_files() {
    let backing = tree();
    let sums = shell(backing.path(), SUMS);
    let others = SUMS.replace("-name w", "'(' -name w -o -name 'own*' ')'");
    let backing_text = backing.path().to_str().expect("letters");
    for daemons in ["1", "2"] {
        let tiers = ["--memory", "16MiB", "--ssd", "0", "--writeback", "never"];
        let name = format!("unkept{daemons}");
        let instance = start_with(&name, daemons, &tiers, backing.path());
        // All of it, with extents of all lengths.
        let fill = "cd /forebay; for n in 0 1 2 3; do dd if=/dev/zero of=own$n bs=1M; done 2>&1; \
                    dd if=/dev/zero of=own bs=4k 2>&1; LC_ALL=C df --output=avail . | tail -1";
        let output = instance.program(&["bash", "-c", fill]).output().expect("forebay runs");
        assert!(text(&output.stdout).contains("No space left"), "{}", text(&output.stdout));
        assert!(in_instance(&instance, &others) == sums, "{daemons} daemons");
        if has_fuse() {
            let mounted = Mounted::new(&instance, "unkept");
            let compare = format!("cmp big0 {backing_text}/big0; echo same");
            assert_eq!(shell(&mounted.path(""), &compare), "same\n");
        }
        let own = "cd /forebay; cat own* | tr -d '\\0' | wc -c";
        assert_eq!(in_instance(&instance, own), "0\n");
    }
}

/// Walks along the data and the holes of a file, as `cp` does, and prints where they are. Each step
/// moves ahead, and the bytes outside of the data are zeros.
const WALK: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size, at, parts = os.fstat(fd).st_size, 0, []
while at < size:
    try:
        data = os.lseek(fd, at, os.SEEK_DATA)
    except OSError:
        break
    hole = os.lseek(fd, data, os.SEEK_HOLE)
    assert at <= data < hole <= size, f'from {at}: data {data}, hole {hole}'
    assert os.lseek(fd, at, os.SEEK_HOLE) == (at if data > at else hole), f'hole from {at}'
    parts.append((data, hole))
    at = hole
assert os.lseek(fd, size - 1, os.SEEK_HOLE) in (size - 1, size)
if len(sys.argv) > 2:
    for number in map(int, sys.argv[2].split(',')):
        assert any(data <= number < hole for data, hole in parts), f'{number} is in a hole: {parts}'
print(len(parts))
"#;

/// The data and holes of sparse files are found in every state of their extents: in memory, written
/// back, evicted, and partly read again.
#[test]
fn holes_are_found_whatever_was_evicted() {
    let backing = tempfile::tempdir().expect("a directory");
    for (name, daemons) in [("one", "1"), ("four", "4")] {
        let settings = ["--memory", "64MiB", "--ssd", "0", "--stripe-size", "256KiB"];
        let instance = start_with(&format!("holes-{name}"), daemons, &settings, backing.path());
        let mut random = Random::new(testkit::seed(1));
        for round in 0..testkit::rounds(2) {
            let file = format!("{name}{round}");
            let size = 1_000_000 + random.uniform(12_000_000);
            let written: Vec<String> =
                (0..1 + random.uniform(4)).map(|_| random.uniform(size).to_string()).collect();
            let places = written.join(",");
            let walk = |when: &str| {
                let mut command = instance.program(&["python3", "-c", WALK]);
                let output = command.arg(format!("/forebay/{file}")).arg(&places).output();
                let output = output.expect("forebay runs");
                assert!(output.status.success(), "{file} {when}: {}", text(&output.stderr));
            };
            let make = format!(
                "truncate -s {size} {file}; for at in {}; do printf x | dd of={file} bs=1 seek=$at \
                 conv=notrunc status=none; done",
                written.join(" ")
            );
            in_instance(&instance, &make);
            walk("in memory");
            let flushed = instance.command("flush").output().expect("forebay runs");
            assert!(flushed.status.success(), "{}", text(&flushed.stderr));
            walk("written back");
            let mut evict = instance.command("evict");
            let evicted = evict.arg(format!("/forebay/{file}")).output().expect("forebay runs");
            assert!(evicted.status.success(), "{}", text(&evicted.stderr));
            walk("evicted");
            // `cp` reads only the data, and gets all of it.
            let copy = format!("cp {file} copy; cmp copy {file}; rm copy");
            let part = random.uniform(size);
            let read = format!("dd if={file} of=/dev/null bs=1 count=1 skip={part} status=none");
            let evict_again = || instance.command("evict").arg(format!("/forebay/{file}")).output();
            in_instance(&instance, &copy);
            walk("read again");
            assert!(evict_again().expect("forebay runs").status.success());
            in_instance(&instance, &read);
            walk("partly read");
            in_instance(&instance, &copy);
        }
    }
}
