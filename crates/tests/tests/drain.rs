//! What is made in an instance over a directory and saved there makes room: files that together are much
//! larger than the instance are written, changed, read and removed, while daemons and the writer are
//! killed; and what can not be saved is refused in bounded time.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::below::{Below, said, shell};
use support::tier::{Small, writer};
use support::world::{HOSTS, World};
use support::{Instance, Random, setting, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

/// Random operations on files that are known byte by byte: `SEED ROUNDS MIB`; says in the end what each
/// is to be.
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

/// A file that stays open and is larger than the instance, a small one that loses its name, and one that
/// was there before, `old`, and is written over: `SEED ROUNDS MIB`; says in the end what two are to be.
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
    # What was removed and never saved must have room.
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

/// Writes every `HOSTS`th block of 1 MiB of a file twice over what is there, and reads them
/// while it is open: `ME HOSTS BLOCKS`.
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

fn start(below: &Below, name: &str, options: &[&str]) -> Instance {
    Instance::start(name, &[&["--backing", &below.text(), "--ssd", "0"], options].concat())
}

fn spawn(instance: &Instance, seed: u64, rounds: u64, most: u64) -> Child {
    spawn_of(PROGRAM, instance, seed, rounds, most)
}

fn spawn_of(program: &str, instance: &Instance, seed: u64, rounds: u64, most: u64) -> Child {
    let [seed, rounds, most] =
        [seed, setting("TEST_ROUNDS", rounds), most].map(|it| it.to_string());
    let words = ["python3", "-c", program, &seed, &rounds, &most];
    let mut command = instance.program(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("forebay runs")
}

/// All is below as it is above.
fn check(instance: &Instance, below: &Below, program: Child) {
    let right = said(program.wait_with_output().expect("it ends"), "the program");
    said(instance.command("flush").output().expect("forebay runs"), "flush");
    assert_eq!(shell(below.place.path(), "sha256sum * 2>&1 | sort -k 2"), right);
}

/// "What is saved makes room" (docs/semantics.md).
#[test]
fn files_much_larger_than_the_memory_are_written() {
    for daemons in ["1", "2"] {
        let below = Below::new();
        let options = ["--local", daemons, "--memory", "32MiB", "--write-back", "end"];
        let instance = start(&below, &format!("much{daemons}"), &options);
        let mut worker = instance.worker();
        let length = 7 * MIB + 12345;
        for file in 0..30 {
            assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} {length}")), "ok");
        }
        for file in (0..30).rev() {
            let right = format!("ok {length} {}", digest(&content(file, 0, length)));
            assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right, "{file}");
        }
        said(instance.command("flush").output().expect("forebay runs"), "flush");
        for file in 0..30 {
            let saved = std::fs::read(below.path(&format!("f{file}"))).expect("saved");
            assert!(saved == content(file, 0, length), "{file}");
        }
        assert!(instance.figure("bytes_dropped") >= 60 * MIB);
    }
}

#[test]
fn what_is_changed_after_it_was_dropped_is_right_here_and_below() {
    let seed = setting("TEST_SEED", 1);
    for (daemons, seed) in [("1", seed), ("3", seed + 1)] {
        let below = Below::new();
        let options = ["--local", daemons, "--memory", "48MiB"];
        let instance = start(&below, &format!("changed{daemons}"), &options);
        let most = 200 * daemons.parse::<u64>().expect("a number");
        let program = spawn(&instance, seed, 1200, most);
        check(&instance, &below, program);
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let dropped = daemons.iter().filter_map(|one| one["state"]["bytes_dropped"].as_u64());
        assert!(dropped.sum::<u64>() > 0, "nothing was dropped");
    }
}

/// Kills daemons and the writer until a program ends. Each was killed.
fn kill_until_it_ends(instance: &Instance, program: &mut Child, random: &mut Random) {
    let mut kills = BTreeMap::new();
    while program.try_wait().expect("it is ours").is_none() {
        let (begun, wanted) = (Instant::now(), Duration::from_millis(100 + random.below(600)));
        wait_for("a moment, or the end", || {
            begun.elapsed() >= wanted || program.try_wait().expect("it is ours").is_some()
        });
        let which = random.below(3);
        match which {
            2 => support::kill(writer(instance)),
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

/// Nothing acknowledged is lost, whoever dies when.
#[test]
fn daemons_and_the_writer_may_die_while_files_are_saved_and_dropped() {
    let seed = setting("TEST_SEED", 1);
    let (below, mut random) = (Below::new(), Random::new(seed));
    let instance = start(&below, "drainkill", &["--local", "2", "--memory", "64MiB"]);
    let mut program = spawn(&instance, seed + 2, 1500, 300);
    kill_until_it_ends(&instance, &mut program, &mut random);
    check(&instance, &below, program);
}

/// The place below with a file that `HOLDER` writes over.
fn below_with_old() -> Below {
    let below = Below::new();
    std::fs::write(below.path("old"), "an old line\n".repeat(5 << 20)).expect("a file");
    below
}

/// "What is saved makes room" (docs/semantics.md), of a file that is not complete.
#[test]
fn a_file_that_stays_open_may_be_much_larger_than_the_memory() {
    let seed = setting("TEST_SEED", 1);
    for daemons in ["1", "3"] {
        let below = below_with_old();
        let options = ["--local", daemons, "--memory", "32MiB"];
        let instance = start(&below, &format!("held{daemons}"), &options);
        let program = spawn_of(HOLDER, &instance, seed, 400, 200);
        check(&instance, &below, program);
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let dropped = daemons.iter().filter_map(|one| one["state"]["bytes_dropped"].as_u64());
        assert!(dropped.sum::<u64>() > 0, "nothing was dropped");
        assert_eq!(shell(below.place.path(), "ls -A"), "old\nrenamed\n", "no draft is left");
    }
}

/// The same of one that all hosts write together, over what lay there.
#[test]
fn hosts_write_one_file_that_is_larger_than_their_memory() {
    let (below, blocks) = (Below::new(), 150);
    std::fs::write(below.path("old"), vec![b'o'; blocks << 20]).expect("a file");
    let place: &'static str = below.text().leak();
    let settings = [
        ("FOREBAY_BACKING", place),
        ("FOREBAY_MEMORY", "16MiB"),
        ("FOREBAY_SSD", "0"),
        ("FOREBAY_SPREAD", "wide"),
        ("FOREBAY_CHUNK", "1MiB"),
    ];
    let Some(world) = World::started(&settings) else { return };
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
    let saved = std::fs::read(below.path("old")).expect("saved");
    assert_eq!(saved.len(), blocks << 20);
    for (number, block) in saved.chunks(1 << 20).enumerate() {
        assert!(block.iter().all(|&byte| usize::from(byte) == 2 + number), "block {number}");
    }
    world.end();
}

/// Its draft survives who makes it and who reads it.
#[test]
fn daemons_and_the_writer_may_die_while_an_open_file_is_saved() {
    let seed = setting("TEST_SEED", 1);
    let (below, mut random) = (below_with_old(), Random::new(seed));
    let instance = start(&below, "heldkill", &["--local", "2", "--memory", "48MiB"]);
    let mut program = spawn_of(HOLDER, &instance, seed, 1200, 200);
    kill_until_it_ends(&instance, &mut program, &mut random);
    check(&instance, &below, program);
}

/// What is discarded leaves nothing below: a draft of who still writes, what was removed and is read on.
#[test]
fn what_is_not_complete_goes_with_a_discarded_instance() {
    let below = below_with_old();
    let instance = start(&below, "discard", &["--memory", "32MiB"]);
    let script = "cd /forebay; exec 3<old; rm old; head -c 1000 <&3 >/dev/null; \
                  head -c 100M /dev/zero | tr '\\0' x >&4; echo written; read -r line";
    let script = format!("exec 4>/forebay/held; {script}");
    let mut command = instance.program(&["bash", "-c", &script]);
    let mut program =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    let out = program.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it says something");
    assert_eq!(line, "written\n");
    wait_for("what is its own", || {
        let names = shell(below.place.path(), "ls -A | grep -o 'forebay-[a-z]*' | sort -u");
        names == "forebay-aside\nforebay-draft\n"
    });
    said(instance.command("stop").arg("--discard").output().expect("forebay runs"), "stop");
    assert_eq!(shell(below.place.path(), "ls -A"), "");
    let _ = program.kill();
    let _ = program.wait();
    instance.start_again();
}

/// Changes a file by a mapping after it was saved, and has all of it leave the memory.
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
assert open('mapped', 'rb').read() == b'b' * size, 'what was stored is lost'
for n in range(16):
    assert open(f'f{n}', 'rb').read() == bytes([n]) * (8 << 20), n
"#;

#[test]
fn what_was_stored_by_a_mapping_is_saved_before_it_is_dropped() {
    let below = Below::new();
    let options = ["--backing", &below.text(), "--memory", "32MiB", "--ssd", "32MiB"];
    let instance = Instance::start("mapdrain", &options);
    let mut command = instance.program(&["python3", "-c", MAPPER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut mapper = command.spawn().expect("forebay runs");
    let mut line = String::new();
    let out = mapper.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it says something");
    said(instance.command("flush").output().expect("forebay runs"), "flush");
    mapper.stdin.take().expect("piped").write_all(b"go\n").expect("told");
    said(mapper.wait_with_output().expect("it ends"), "the program");
    said(instance.command("flush").output().expect("forebay runs"), "flush");
    assert!(std::fs::read(below.path("mapped")).expect("saved").iter().all(|&byte| byte == b'b'));
    assert!(instance.figure("bytes_dropped") > 0);
}

/// While nothing can be saved, who finds no room is refused in bounded time, and what was acknowledged
/// stays; when it can, there is room.
#[test]
fn what_can_not_be_saved_makes_no_room_until_it_can() {
    let Some(small) = Small::new("400M") else { return eprintln!("no mounts: nothing stated") };
    let path = small.path().to_str().expect("letters").to_owned();
    let options = ["--backing", &path, "--ssd", "0", "--memory", "32MiB", "--patience", "1s"];
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
        assert!(file < 6, "more than there is room for");
    }
    assert!(file >= 2, "{file} files");
    assert!(small.mount(&["-o", "remount,rw"]), "not read-only");
    // The writer tries again by itself, after a pause; who asks for a flush does not wait for that.
    said(instance.command("flush").output().expect("forebay runs"), "flush");
    for file in file + 1..file + 10 {
        assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} {}", 8 * MIB)), "ok");
    }
    for file in (0..file).chain(file + 1..file + 10) {
        let right = format!("ok {} {}", 8 * MIB, digest(&content(file, 0, 8 * MIB)));
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right, "{file}");
    }
}
