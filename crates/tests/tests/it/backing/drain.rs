//! Writeback frees space: files that together are much larger than an instance over a directory are
//! written, changed, read and removed, while daemons and the writer are killed; data that cannot be
//! written back is refused in bounded time.

use crate::support::backing::{Backing, printed, shell};
use crate::support::tier::{Small, writer};
use crate::support::world::{HOSTS, World};
use crate::support::{Instance, Random, skip, wait_for};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

/// Random operations on files whose contents are known: `SEED ROUNDS MIB`; prints at the end the
/// expected contents of each file.
const PROGRAM: &str = r#"
import ctypes, hashlib, os, random, sys
seed, rounds, most = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) << 20
os.chdir('/forebay')
libc = ctypes.CDLL(None, use_errno=True)
r, files, ghosts = random.Random(seed), {}, []
def part(size, most):
    at = r.randrange(size + 1)
    return at, min(r.randrange(1, most), max(size - at, 1))
def check(fd, right, what):
    size = os.fstat(fd).st_size
    assert size == len(right), f'{what}: {size} bytes and not {len(right)}'
    for at in range(0, size, 1 << 20):
        got = os.pread(fd, 1 << 20, at)
        if got != right[at:at + (1 << 20)]:
            wrong = next(n for n in range(len(got)) if got[n] != right[at + n])
            zeros = 'zeros' if not any(got[wrong:wrong + 4096]) else 'others'
            raise SystemExit(f'{what}: byte {at + wrong} of {size} is wrong, {zeros}')
def change(name, flags=0):
    return os.open(name, os.O_RDWR | flags, 0o644)
for step in range(rounds):
    act, name = r.random(), r.choice(sorted(files)) if files else None
    if name is None or act < 0.25 and sum(map(len, files.values())) < most:
        name, size = f'f{step}', r.choice([100, 5000, 300000, 3 << 20, 9 << 20])
        files[name] = bytearray(r.randbytes(r.randrange(1, size)))
        fd = change(name, os.O_CREAT | os.O_EXCL)
        done = os.write(fd, files[name])
        assert done == len(files[name]), f'{done} of {len(files[name])} bytes are written'
    elif act < 0.45:
        fd, (at, length) = change(name), part(len(files[name]), 1 << 20)
        files[name][at:at + length] = new = r.randbytes(length)
        assert os.pwrite(fd, new, at) == length
    elif act < 0.52:
        fd, size = change(name), r.randrange(2 * len(files[name]) + 1) % (12 << 20)
        files[name] = files[name][:size] + bytes(max(size - len(files[name]), 0))
        os.ftruncate(fd, size)
    elif act < 0.57:
        fd, (at, length) = change(name), part(len(files[name]), 8 << 20)
        length = min(length, len(files[name]) - at)
        if length > 0:
            files[name][at:at + length] = bytes(length)
            at, length = ctypes.c_int64(at), ctypes.c_int64(length)
            assert libc.fallocate(fd, 3, at, length) == 0, os.strerror(ctypes.get_errno())
    elif act < 0.62:
        other = r.choice([f'r{step}', r.choice(sorted(files))])
        os.rename(name, other)
        files[other] = files.pop(name)
        fd = None
    elif act < 0.70:
        fd = None
        if ghosts:
            ghost, right = ghosts.pop(0)
            check(ghost, right, 'a removed file')
            os.close(ghost)
        ghosts.append((change(name), files.pop(name)))
        os.unlink(name)
    else:
        fd = os.open(name, os.O_RDONLY)
        check(fd, files[name], f'step {step}, {name}')
    if fd is not None:
        os.close(fd)
for name in sorted(files):
    fd = os.open(name, os.O_RDONLY)
    check(fd, files[name], name)
    os.close(fd)
    print(hashlib.sha256(files[name]).hexdigest(), '', name)
"#;

/// An open file that is larger than the instance, a small file that loses its name, and `old`,
/// which existed before and is overwritten: `SEED ROUNDS MIB`; prints at the end the expected
/// contents of two of them.
const HOLDER: &str = r#"
import ctypes, hashlib, os, random, sys
seed, rounds, most = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) << 20
os.chdir('/forebay')
libc = ctypes.CDLL(None, use_errno=True)
r, fds = random.Random(seed), []
for name in ['held', 'ghost', 'old']:
    fds.append(os.open(name, os.O_RDWR | os.O_CREAT, 0o644))
right = [bytearray(), bytearray(), bytearray(b'an old line\n' * (os.fstat(fds[2]).st_size // 12))]
def check(which, at, length):
    got = os.pread(fds[which], length, at)
    if got != right[which][at:at + length]:
        wrong = next(n for n in range(len(got)) if got[n] != right[which][at + n])
        raise SystemExit(f'{which}: byte {at + wrong} of {len(right[which])} is wrong')
for at in range(0, len(right[2]), 1 << 20):
    right[2][at:at + (1 << 20)] = new = r.randbytes(min(1 << 20, len(right[2]) - at))
    assert os.pwrite(fds[2], new, at) == len(new)
for step in range(rounds):
    which, act = r.choices([0, 1, 2], [60, 15, 25])[0], r.random()
    if step == rounds // 3:
        os.unlink('ghost')
        os.rename('held', 'renamed')
    fd, bytes_ = fds[which], right[which]
    # A removed file is never written back, so it must fit the tiers.
    if act < 0.5 and len(bytes_) < [most, 6 << 20, 0][which]:
        at, new = len(bytes_) + r.choice([0, 0, 0, 70000]), r.randbytes(r.randrange(1, 4 << 20))
    elif act < 0.65 and bytes_:
        at, new = r.randrange(len(bytes_)), r.randbytes(r.randrange(1, 1 << 20))
        new = new[:len(bytes_) - at] if which == 2 else new
    elif act < 0.68 and which < 2:
        size = r.randrange(len(bytes_) // 2, len(bytes_) * 9 // 8 + 1)
        os.ftruncate(fd, size)
        right[which] = bytes_[:size] + bytes(max(size - len(bytes_), 0))
        continue
    elif act < 0.75 and which < 2 and bytes_:
        at = r.randrange(len(bytes_))
        length = min(r.randrange(1, 3 << 20), len(bytes_) - at)
        bytes_[at:at + length] = bytes(length)
        at, length = ctypes.c_int64(at), ctypes.c_int64(length)
        assert libc.fallocate(fd, 3, at, length) == 0, os.strerror(ctypes.get_errno())
        continue
    else:
        check(which, r.randrange(len(bytes_) + 1), 1 << 20)
        continue
    if at > len(bytes_):
        bytes_.extend(bytes(at - len(bytes_)))
    bytes_[at:at + len(new)] = new
    done = os.pwrite(fd, new, at)
    assert done == len(new), f'{done} of {len(new)} bytes are written'
for which in range(3):
    for at in range(0, len(right[which]), 1 << 20):
        check(which, at, 1 << 20)
    os.close(fds[which])
for which, name in [(2, 'old'), (0, 'renamed')]:
    print(hashlib.sha256(right[which]).hexdigest(), '', name)
"#;

/// Overwrites every `HOSTS`th block of 1 MiB of a file twice and reads these blocks while the file
/// is open: `ME HOSTS BLOCKS`.
const STRIDER: &str = r#"
import os, sys
me, hosts, blocks = map(int, sys.argv[1:])
fd = os.open('/forebay/old', os.O_RDWR)
for turn in range(2):
    for block in range(me, blocks, hosts):
        new = bytes([1 + (block + turn) % 251]) * (1 << 20)
        done = os.pwrite(fd, new, block << 20)
        assert done == len(new), f'block {block}: {done} bytes'
    for block in range(me, blocks, hosts):
        got = os.pread(fd, 1 << 20, block << 20)
        assert got == bytes([1 + (block + turn) % 251]) * (1 << 20), f'block {block} is wrong'
os.close(fd)
"#;

fn start(backing: &Backing, name: &str, options: &[&str]) -> Instance {
    // A busy machine may write back too slowly for the default limits.
    let patient = ["--timeout", "180s", "--enospc-timeout", "120s"];
    let path = backing.text();
    let own = ["--backing", &path, "--ssd", "0"];
    Instance::start(name, &[&own, &patient[..], options].concat())
}

fn spawn(instance: &Instance, seed: u64, rounds: u64, most: u64) -> Child {
    spawn_of(PROGRAM, instance, seed, rounds, most)
}

fn spawn_of(program: &str, instance: &Instance, seed: u64, rounds: u64, most: u64) -> Child {
    let [seed, rounds, most] = [seed, testkit::rounds(rounds), most].map(|it| it.to_string());
    let words = ["python3", "-c", program, &seed, &rounds, &most];
    let mut command = instance.program(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("forebay runs")
}

/// The backing store has the same files as the instance.
fn check(instance: &Instance, backing: &Backing, program: Child) {
    let right = printed(program.wait_with_output().expect("it ends"), "the program");
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    assert_eq!(shell(backing.dir.path(), "sha256sum * 2>&1 | sort -k 2"), right);
}

/// "Written-back data makes space" (docs/semantics/backing.md).
#[test]
fn files_much_larger_than_the_memory_are_written() {
    for daemons in ["1", "2"] {
        let backing = Backing::new();
        let options = ["--local", daemons, "--memory", "32MiB", "--writeback", "end"];
        let instance = start(&backing, &format!("much{daemons}"), &options);
        let mut worker = instance.worker();
        let length = 7 * MIB + 12345;
        let files = if testkit::is_long() { 30 } else { 14 };
        for file in 0..files {
            assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} {length}")), "ok");
        }
        for file in (0..files).rev() {
            let right = format!("ok {length} {}", digest(&content(file, 0, length)));
            assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right, "{file}");
        }
        printed(instance.command("flush").output().expect("forebay runs"), "flush");
        for file in 0..files {
            let saved = std::fs::read(backing.path(&format!("f{file}"))).expect("saved");
            assert!(saved == content(file, 0, length), "{file}");
        }
        assert!(instance.figure("bytes_evicted") >= 2 * files * MIB);
    }
}

#[test]
fn changes_after_eviction_are_correct_in_instance_and_backing_store() {
    let seed = testkit::seed(1);
    for (daemons, memory, seed) in [("1", "48MiB", seed), ("3", "24MiB", seed + 1)] {
        let backing = Backing::new();
        let options = ["--local", daemons, "--memory", memory];
        let instance = start(&backing, &format!("changed{daemons}"), &options);
        let program = spawn(&instance, seed, 600, 150);
        check(&instance, &backing, program);
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let dropped = daemons.iter().filter_map(|one| one["state"]["bytes_evicted"].as_u64());
        assert!(dropped.sum::<u64>() > 0, "nothing was dropped");
    }
}

/// Kills daemons and the writer until a program ends; each is killed at least once.
fn kill_until_it_ends(instance: &Instance, program: &mut Child, random: &mut Random) {
    let mut kills = BTreeMap::new();
    while program.try_wait().expect("it belongs to the instance").is_none() {
        let (begun, expected) = (Instant::now(), Duration::from_millis(100 + random.uniform(600)));
        wait_for("a moment, or the end", || {
            begun.elapsed() >= expected
                || program.try_wait().expect("it belongs to the instance").is_some()
        });
        let which = random.uniform(3);
        match which {
            2 => crate::support::kill(writer(instance)),
            daemon => {
                let daemon = instance.daemon(daemon as usize);
                daemon.kill();
                daemon.wait();
            }
        }
        instance.start_again();
        *kills.entry(which).or_insert(0) += 1;
    }
    assert!(kills.len() == 3, "{kills:?}");
}

/// Nothing acknowledged is lost, whichever process is killed.
#[test]
fn kills_during_writeback_and_eviction_lose_nothing() {
    let seed = testkit::seed(1);
    let (backing, mut random) = (Backing::new(), Random::new(seed));
    let instance = start(&backing, "drainkill", &["--local", "2", "--memory", "64MiB"]);
    let mut program = spawn(&instance, seed + 2, 800, 200);
    kill_until_it_ends(&instance, &mut program, &mut random);
    check(&instance, &backing, program);
}

/// A backing directory with the file that `HOLDER` overwrites.
fn backing_with_old() -> Backing {
    let backing = Backing::new();
    std::fs::write(backing.path("old"), "an old line\n".repeat(5 << 20)).expect("a file");
    backing
}

/// "Written-back data makes space" (docs/semantics/backing.md), of a file that is still being
/// written.
#[test]
fn a_file_that_stays_open_may_be_much_larger_than_the_memory() {
    let seed = testkit::seed(1);
    for daemons in ["1", "3"] {
        let backing = backing_with_old();
        let options = ["--local", daemons, "--memory", "32MiB"];
        let instance = start(&backing, &format!("held{daemons}"), &options);
        let program = spawn_of(HOLDER, &instance, seed, 200, 120);
        check(&instance, &backing, program);
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let dropped = daemons.iter().filter_map(|one| one["state"]["bytes_evicted"].as_u64());
        assert!(dropped.sum::<u64>() > 0, "nothing was dropped");
        assert_eq!(shell(backing.dir.path(), "ls -A"), "old\nrenamed\n", "no partial file is left");
    }
}

/// Hosts whose memory is small, and that have no SSD.
fn small_hosts(backing: &Backing) -> Option<World> {
    let dir: &'static str = backing.text().leak();
    let settings = [
        ("FOREBAY_BACKING", dir),
        ("FOREBAY_MEMORY", "16MiB"),
        ("FOREBAY_SSD", "0"),
        ("FOREBAY_SPREAD", "wide"),
        ("FOREBAY_STRIPE_SIZE", "1MiB"),
        ("FOREBAY_TIMEOUT", "180s"),
        ("FOREBAY_ENOSPC_TIMEOUT", "120s"),
    ];
    World::started(&settings)
}

/// The same for a file that all hosts write together, over existing contents.
#[test]
fn hosts_write_one_file_that_is_larger_than_their_memory() {
    let (backing, blocks) = (Backing::new(), 150);
    std::fs::write(backing.path("old"), vec![b'o'; blocks << 20]).expect("a file");
    let Some(world) = small_hosts(&backing) else { return };
    std::thread::scope(|scope| {
        for (me, host) in HOSTS.into_iter().enumerate() {
            let words = [me, HOSTS.len(), blocks].map(|it| it.to_string());
            let world = &world;
            scope.spawn(move || {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                world.ok(host, &[&["run", "--", "python3", "-c", STRIDER], &words[..]].concat())
            });
        }
    });
    world.ok("a", &["flush"]);
    let saved = std::fs::read(backing.path("old")).expect("saved");
    assert_eq!(saved.len(), blocks << 20);
    for (number, block) in saved.chunks(1 << 20).enumerate() {
        assert!(block.iter().all(|&byte| usize::from(byte) == 2 + number), "block {number}");
    }
    world.end();
}

/// Writes a file by one call of so many MiB, which must write all of it.
const AT_ONCE: &str = r#"
import os, random, sys
path, length = sys.argv[1], int(sys.argv[2]) << 20
block = random.Random(1).randbytes(1 << 20)
data = memoryview(block * (length >> 20))
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
done = os.write(fd, data)
assert done == length, f'{done} of {length} bytes are written'
os.close(fd)
"#;

/// Of a call that writes more than there is place for, the first bytes are written back while it waits.
#[test]
fn one_call_writes_more_than_all_tiers_hold() {
    for daemons in ["1", "3"] {
        let backing = Backing::new();
        let options = ["--local", daemons, "--memory", "24MiB"];
        let instance = start(&backing, &format!("once{daemons}"), &options);
        let words = ["python3", "-c", AT_ONCE, "/forebay/f", "100"];
        printed(instance.program(&words).output().expect("forebay runs"), "the program");
        printed(instance.command("flush").output().expect("forebay runs"), "flush");
        let saved = std::fs::read(backing.path("f")).expect("saved");
        assert_eq!(saved.len(), 100 << 20);
        assert!(saved.chunks(1 << 20).all(|block| block == &saved[..1 << 20]), "{daemons} daemons");
    }
    let (backing, mib) = (Backing::new(), "150");
    let Some(world) = small_hosts(&backing) else { return };
    let words = ["run", "--", "python3", "-c", AT_ONCE, "/forebay/f", mib];
    world.ok("a", &words);
    world.ok("a", &["flush"]);
    let saved = std::fs::read(backing.path("f")).expect("saved");
    assert_eq!(saved.len(), 150 << 20);
    assert!(saved.chunks(1 << 20).all(|block| block == &saved[..1 << 20]), "on hosts");
    world.end();
}

/// The partial file survives kills of the writer and of the daemons.
#[test]
fn kills_during_writeback_of_an_open_file_lose_nothing() {
    let seed = testkit::seed(1);
    let (backing, mut random) = (backing_with_old(), Random::new(seed));
    let instance = start(&backing, "heldkill", &["--local", "2", "--memory", "48MiB"]);
    let mut program = spawn_of(HOLDER, &instance, seed, 600, 150);
    kill_until_it_ends(&instance, &mut program, &mut random);
    check(&instance, &backing, program);
}

/// A discarded instance leaves no partial file in the backing store, neither of an open file that
/// is being written nor of a removed file that is still read.
#[test]
fn discarding_an_instance_removes_partial_files() {
    let backing = backing_with_old();
    let instance = start(&backing, "discard", &["--memory", "32MiB"]);
    let script = "cd /forebay; exec 3<old; rm old; head -c 1000 <&3 >/dev/null; \
                  head -c 100M /dev/zero | tr '\\0' x >&4; echo written; read -r line";
    let script = format!("exec 4>/forebay/held; {script}");
    let mut command = instance.program(&["bash", "-c", &script]);
    let mut program =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    let out = program.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it prints something");
    assert_eq!(line, "written\n");
    wait_for("its own data", || {
        let names = shell(backing.dir.path(), "ls -A | grep -o 'forebay-[a-z]*' | sort -u");
        names == "forebay-aside\nforebay-partial\n"
    });
    printed(instance.command("stop").arg("--discard").output().expect("forebay runs"), "stop");
    assert_eq!(shell(backing.dir.path(), "ls -A"), "");
    let _ = program.kill();
    let _ = program.wait();
    instance.start_again();
}

/// Changes a file by a mapping after its writeback, and has all of it evicted from memory.
const MAPPER: &str = r#"
import mmap, os, sys
os.chdir('/forebay')
size = 6 << 20
open('mapped', 'wb').write(b'a' * size)
print('made', flush=True)
sys.stdin.readline()
fd = os.open('mapped', os.O_RDWR)
m = mmap.mmap(fd, size)
os.close(fd)
m[:] = b'b' * size
m.close()
for n in range(16):
    open(f'f{n}', 'wb').write(bytes([n]) * (8 << 20))
assert open('mapped', 'rb').read() == b'b' * size, 'stores are lost'
for n in range(16):
    assert open(f'f{n}', 'rb').read() == bytes([n]) * (8 << 20), n
"#;

#[test]
fn stores_to_a_mapping_are_written_back_before_eviction() {
    let backing = Backing::new();
    let options = ["--backing", &backing.text(), "--memory", "32MiB", "--ssd", "32MiB"];
    let instance = Instance::start("mapdrain", &options);
    let mut command = instance.program(&["python3", "-c", MAPPER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut mapper = command.spawn().expect("forebay runs");
    let mut line = String::new();
    let out = mapper.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it prints something");
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    mapper.stdin.take().expect("piped").write_all(b"go\n").expect("the program reads");
    printed(mapper.wait_with_output().expect("it ends"), "the program");
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    assert!(std::fs::read(backing.path("mapped")).expect("saved").iter().all(|&byte| byte == b'b'));
    assert!(instance.figure("bytes_evicted") > 0);
}

/// While writeback fails, a write without space is refused in bounded time and acknowledged data
/// stays; once writeback works, there is space.
#[test]
fn data_that_cannot_be_written_back_frees_no_space_until_it_can() {
    let Some(small) = Small::new("400M") else {
        return skip("no file systems can be mounted here (root is needed)");
    };
    let path = small.path().to_str().expect("letters").to_owned();
    let options = ["--backing", &path, "--ssd", "0", "--memory", "32MiB", "--enospc-timeout", "1s"];
    let instance = Instance::start("stuck", &options);
    let mut worker = instance.worker();
    assert!(small.mount(&["-o", "remount,ro"]), "read-only");
    let mut file = 0;
    loop {
        let answer = worker.ask(&format!("put /forebay/f{file} {file} {}", 8 * MIB));
        if answer != "ok" {
            assert!(answer.contains("28") || answer.contains("No space"), "{answer}");
            break;
        }
        file += 1;
        assert!(file < 6, "more than the space");
    }
    assert!(file >= 2, "{file} files");
    assert!(small.mount(&["-o", "remount,rw"]), "not read-only");
    // The writer retries by itself after a pause; an explicit flush does not wait for that pause.
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    for file in file + 1..file + 10 {
        let put = format!("put /forebay/f{file} {file} {}", 8 * MIB);
        wait_for("space", || worker.ask(&put) == "ok");
    }
    for file in (0..file).chain(file + 1..file + 10) {
        let right = format!("ok {} {}", 8 * MIB, digest(&content(file, 0, 8 * MIB)));
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right, "{file}");
    }
}
