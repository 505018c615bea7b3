//! Quotas, end to end: users on a mount and preloaded, a project's directory, several daemons and
//! hosts. A hard limit can be reached and is never exceeded, for files and for space, by whichever
//! call; removed space and files can be used again at once; usage is what exists, also after
//! daemons were killed; files that change owner or project take their usage along.
//!
//! Needs root, to become another user, and `/dev/fuse`; without them the tests are skipped.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::world::World;
use crate::support::{Instance, skip, text, wait_for};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const ANN: u32 = 1001;
const BOB: u32 = 1002;
const MIB: u64 = 1 << 20;

fn can_be_tested() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("root is needed");
    }
    has_fuse() && is_root
}

fn try_quota(instance: &Instance, words: &[&str]) -> Output {
    let mut command = Command::new(crate::support::profile().join("forebay"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    command.arg("quota").args(words).env("XDG_RUNTIME_DIR", instance.dir.path());
    if let Some((user, group)) = instance.owner {
        use std::os::unix::process::CommandExt as _;
        command.uid(user).gid(group).current_dir(instance.dir.path());
        command.env("HOME", instance.dir.path()).env_remove("XDG_CONFIG_HOME");
    }
    command.env("FOREBAY_NAME", &instance.name).output().expect("forebay runs")
}

fn quota(instance: &Instance, words: &[&str]) -> String {
    let output = try_quota(instance, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Inodes and bytes of an account.
fn used(instance: &Instance, account: &[&str]) -> (u64, u64) {
    let printed = quota(instance, &[&["get", "--json"], account].concat());
    let row: Value = serde_json::from_str(&printed).expect("JSON");
    let number = |what: &str| row[what]["used"].as_u64().expect("a number");
    (number("inodes"), number("space"))
}

/// Output of a user's shell in a directory.
fn shell(at: &Path, uid: u32, script: &str) -> String {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new("sh");
    let output =
        command.args(["-c", script]).uid(uid).gid(uid).current_dir(at).output().expect("sh runs");
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Kills all daemons, and starts them again.
fn kill_all(instance: &Instance, count: usize) {
    let daemons: Vec<_> = (0..count).map(|index| instance.daemon(index)).collect();
    for daemon in daemons {
        daemon.kill();
        daemon.wait();
    }
    instance.start_again();
}

/// An instance with a mount for all users, where every user may make directories.
fn with_mount_for_all(name: &str, options: &[&str]) -> Instance {
    let instance = Instance::start(name, options);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(instance.dir.path(), open).expect("changed");
    instance
}

fn directory(mounted: &Mounted<'_>, name: &str) -> std::path::PathBuf {
    let path = mounted.path(name);
    std::fs::create_dir(&path).expect("made");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("changed");
    path
}

/// Creates files until it is refused; prints their number and the error.
const MAKE: &str = "i=0; while mkdir d$1$i 2>why && touch d$1$i/f 2>why; do i=$((i + 1)); done; \
    find . -user $(id -u) | wc -l; sed 's/.*: //' why; rm why";

/// "A hard limit is not exceeded, and can be reached", "Usage counts what exists"
/// (docs/semantics/quotas.md).
#[test]
fn files_are_limited_on_a_mount() {
    if !can_be_tested() {
        return;
    }
    let options = ["--local", "3", "--memory", "256MiB", "--workers", "2"];
    let instance = with_mount_for_all("qfiles", &options);
    let mounted = Mounted::new(&instance, "m");
    let dir = directory(&mounted, "place");
    let ann = ["--user", "1001"];
    quota(&instance, &["set", "--user", "1001", "--inodes-hard", "40"]);
    // The file 'why' belongs to her.
    let printed = shell(&dir, ANN, MAKE);
    assert_eq!(printed, "40\nDisk quota exceeded\n");
    wait_for("the end of a refused file", || used(&instance, &ann).0 == 39);
    assert!(shell(&dir, BOB, "touch bobs && echo made").contains("made"));
    shell(&dir, ANN, "rm -r d0");
    let printed = shell(&dir, ANN, "for i in 1 2 3 4; do ln -s x l$i; done; ln d1/f another; ls");
    assert!(printed.contains("l4") && printed.contains("exceeded"), "{printed}");
    assert_eq!(used(&instance, &ann).0, 40);
    // A hard link is no inode; an open file counts until it is closed.
    let printed = shell(&dir, ANN, "exec 4<d2/f; rm d2/f; touch no; exec 4<&-; touch yes; ls yes");
    assert!(printed.starts_with("yes\n") && printed.contains("'no': Disk"), "{printed}");
    // Root creates without limit, and changes the owner.
    std::fs::write(dir.join("roots"), "x").expect("written");
    std::os::unix::fs::chown(dir.join("roots"), Some(ANN), None).expect("changed");
    assert_eq!(used(&instance, &ann).0, 41);
    std::os::unix::fs::chown(dir.join("roots"), Some(BOB), None).expect("changed");
    assert_eq!(used(&instance, &ann).0, 40);
    kill_all(&instance, 3);
    assert_eq!(used(&instance, &ann).0, 40);
    assert!(shell(&dir, ANN, "touch more").contains("exceeded"));
    quota(&instance, &["set", "--user", "1001", "--inodes-hard", "0"]);
    assert_eq!(shell(&dir, ANN, "touch more"), "");
}

/// "Removed space and inodes can be used again at once" (docs/semantics/quotas.md).
#[test]
fn space_is_limited_on_a_mount() {
    if !can_be_tested() {
        return;
    }
    let options = ["--local", "3", "--memory", "256MiB", "--stripe-size", "256KiB"];
    let instance = with_mount_for_all("qspace", &options);
    let mounted = Mounted::new(&instance, "m");
    let dir = directory(&mounted, "place");
    let ann = ["--user", "1001"];
    // Her earlier files count.
    shell(&dir, ANN, "head -c 1M /dev/zero >before");
    quota(&instance, &["set", "--user", "1001", "--space-hard", "8MiB"]);
    wait_for("her earlier file", || used(&instance, &ann).1 == MIB);
    let printed = shell(&dir, ANN, "head -c 20M /dev/zero >big; stat -c %s big");
    assert!(printed.contains("quota exceeded"), "{printed}");
    let space = used(&instance, &ann).1;
    assert!(space <= 8 * MIB && space > 8 * MIB - 256 * 1024, "{space}");
    // Freed space can be used at once.
    for _ in 0..5 {
        let printed =
            shell(&dir, ANN, "truncate -s 1M big && head -c 6M /dev/zero >next && rm next");
        assert_eq!(printed, "");
    }
    let printed = shell(
        &dir,
        ANN,
        "rm big; fallocate -l 7M reserved && truncate -s 0 reserved; \
        fallocate -l 7500K reserved; ls -s --block-size=1 reserved",
    );
    assert!(printed.contains("quota exceeded"), "{printed}");
    shell(&dir, ANN, "rm reserved");
    // Reserved space is available, also for a mapping.
    let map = "timeout 30 python3 -c \"
import mmap, os
f = os.open('mapped', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 4 << 20)
m = mmap.mmap(f, 4 << 20); m[:] = b'x' * (4 << 20); m.flush(); print('flushed')
h = os.open('holes', os.O_RDWR | os.O_CREAT); os.ftruncate(h, 16 << 20)
n = mmap.mmap(h, 16 << 20); n[:] = b'y' * (16 << 20)
try: n.flush(); os.fsync(h); print('no limit')
except OSError as error: print(error.errno)
\"";
    let printed = shell(&dir, ANN, map);
    assert!(printed == "flushed\n122\n" || printed == "flushed\n5\n", "{printed}");
    assert!(used(&instance, &ann).1 <= 8 * MIB);
    shell(&dir, ANN, "rm mapped holes");
    wait_for("the space of removed files", || used(&instance, &ann).1 == MIB);
    // A change of owner moves the usage; each file is counted once.
    shell(&dir, BOB, "head -c 2M /dev/zero >bobs; ln bobs again");
    wait_for("Bob's data", || used(&instance, &["--user", "1002"]).1 == 2 * MIB);
    std::os::unix::fs::chown(dir.join("bobs"), Some(ANN), None).expect("changed");
    assert_eq!(used(&instance, &ann).1, 3 * MIB);
    assert_eq!(used(&instance, &["--user", "1002"]), (0, 0));
    kill_all(&instance, 3);
    assert_eq!(used(&instance, &ann).1, 3 * MIB);
    let printed = shell(&dir, ANN, "head -c 5M /dev/zero >fits; head -c 1M /dev/zero >not");
    assert!(printed.contains("quota exceeded"), "{printed}");
    assert_eq!(used(&instance, &ann).1, 8 * MIB);
}

#[test]
fn preloaded_programs_are_limited() {
    if !can_be_tested() {
        return;
    }
    let options = ["--local", "2", "--memory", "128MiB", "--stripe-size", "64KiB"];
    let instance = Instance::start_as("qpre", &options, Some((ANN, ANN)));
    let printed = |script: &str| {
        let output = instance.program(&["python3", "-c", script]).output().expect("forebay runs");
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    // Her programs create files by local operations as long as enough quota is left. The root is
    // one inode.
    quota(&instance, &["set", "--user", "1001", "--inodes-hard", "3000"]);
    let make = "
import os, sys
os.chdir('/forebay'); count = 0
def make(name):
    try: os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL)); return True
    except OSError as error: assert error.errno == 122, error; return False
";
    let all = format!(
        "{make}
if os.fork() == 0:
    while make(f'a{{count}}'): count += 1
    os._exit(0)
while make(f'b{{count}}'): count += 1
os.wait(); names = os.listdir('.'); print(len(names))
for name in names[:100]: os.unlink(name)
print(sum(make(f'c{{i}}') for i in range(150)))
"
    );
    assert_eq!(printed(&all), "2999\n100\n");
    assert_eq!(used(&instance, &["--user", "1001"]).0, 3000);
    quota(&instance, &["set", "--user", "1001", "--inodes-hard", "0", "--space-hard", "1MiB"]);
    let write = format!(
        "{make}
fd = os.open('big', os.O_CREAT | os.O_WRONLY); size = 0
try:
    while True: size += os.write(fd, b'z' * 50000)
except OSError as error: print(error.errno)
os.ftruncate(fd, 0)
print(os.write(fd, b'z' * 900000) == 900000); os.close(fd)
names = [name for name in os.listdir('.') if name != 'big']; os.unlink('big'); written = 0
try:
    for name in names:
        with open(name, 'wb') as f: f.write(b'q' * 4096)
        written += 1
except OSError as error: print(error.errno, written)
"
    );
    assert_eq!(printed(&write), "122\nTrue\n122 256\n");
    assert_eq!(used(&instance, &["--user", "1001"]).1, MIB);
}

/// "New entries inherit the project of their directory" (docs/semantics/quotas.md).
#[test]
fn a_project_is_limited_and_moves_are_accounted() {
    if !can_be_tested() {
        return;
    }
    let options = ["--local", "2", "--memory", "128MiB", "--stripe-size", "64KiB"];
    let instance = with_mount_for_all("qproject", &options);
    let mounted = Mounted::new(&instance, "m");
    let (inside, outside) = (directory(&mounted, "in"), directory(&mounted, "out"));
    let at = inside.to_string_lossy().into_owned();
    assert_eq!(quota(&instance, &["project", &at, "--id", "7"]), format!("{at}: project 7\n"));
    shell(&inside, ANN, "mkdir -p a/b; echo x >a/b/c");
    let deep = inside.join("a/b").to_string_lossy().into_owned();
    assert_eq!(quota(&instance, &["project", &deep]), format!("{deep}: project 7\n"));
    let project = ["--project", "7"];
    assert_eq!(used(&instance, &project).0, 4);
    quota(&instance, &["set", "--project", "7", "--inodes-hard", "6", "--space-hard", "1MiB"]);
    let printed = shell(&inside, BOB, "touch 1; touch 2; touch 3");
    assert!(printed.contains("'3'") && printed.contains("exceeded"), "{printed}");
    quota(&instance, &["set", "--project", "7", "--inodes-hard", "0"]);
    let printed = shell(&inside, BOB, "head -c 2M /dev/zero >big");
    assert!(printed.contains("exceeded"), "{printed}");
    assert!(used(&instance, &project).1 <= MIB);
    shell(&inside, BOB, "rm big");
    // The kernel does not move between projects, so mv copies.
    shell(&outside, ANN, "head -c 100K /dev/zero >moved");
    let rename = "python3 -c \"
import os
try: os.rename('moved', '../in/moved')
except OSError as error: print(error.errno)
try: os.link('moved', '../in/moved')
except OSError as error: print(error.errno)\"";
    assert_eq!(shell(&outside, ANN, rename), "18\n18\n");
    assert_eq!(shell(&outside, ANN, "mv moved ../in/ && ls ../in/moved"), "../in/moved\n");
    wait_for("the moved file", || used(&instance, &project).1 >= 100 << 10);
    // A file's own project is an extended attribute.
    let path = inside.join("moved").to_string_lossy().into_owned();
    quota(&instance, &["project", &path, "--id", "0"]);
    assert!(used(&instance, &project).1 < 100 << 10);
}

const FLAGS: &str = "
import fcntl, os, struct, sys
GET, SET, GET_FLAGS, SET_FLAGS = 0x801c581f, 0x401c5820, 0x80086601, 0x40086602
def call(path, number, data):
    fd = os.open(path, os.O_RDONLY)
    data = bytearray(data)
    try:
        fcntl.ioctl(fd, number, data)
        return struct.unpack('I' * (len(data) // 4), data)[:5]
    except OSError as error:
        return os.strerror(error.errno)
    finally:
        os.close(fd)
def put(path, flags, project, size=0):
    return call(path, SET, struct.pack('7I', flags, size, 0, project, 0, 0, 0))
print(call('d', GET, bytes(28)), call('d', GET_FLAGS, bytes(8))[0])
print(call('d/f', GET, bytes(28)), call('d/f', GET_FLAGS, bytes(8))[0])
print(put('d/f', 0, 12)[3], put('d', 0x200, 13)[3], put('d/f', 0, 4294967295))
print(put('d/f', 0, 12, 4096), put('d/f', 1, 12), call('d/f', SET_FLAGS, struct.pack('Q', 16)))
print(os.getxattr('d/f', 'user.forebay.project'), os.getxattr('d', 'user.forebay.project'))
os.setuid(1002)
print(put('d/f', 0, 7), call('d/f', GET, bytes(28))[3])
";

/// Projects by `lsattr -p`, `chattr -p` and the system calls behind them.
#[test]
fn tools_of_ext4_and_xfs_see_and_set_projects_on_a_mount() {
    if !can_be_tested() {
        return;
    }
    for transport in ["classic", "rings"] {
        let name = format!("qtools-{transport}");
        let instance =
            with_mount_for_all(&name, &["--local", "2", "--memory", "64MiB", "--ssd", "0"]);
        let mounted = Mounted::by(&instance, "m", transport);
        let dir = directory(&mounted, "p");
        let printed = shell(
            &dir,
            ANN,
            "mkdir d; touch d/old; chattr -p 5 d; touch d/f; lsattr -pd d; lsattr -p d | sort; \
             chattr -p 6 d/old; lsattr -p d/old; chattr +d d/f",
        );
        let lines: Vec<Vec<&str>> =
            printed.lines().map(|line| line.split_whitespace().collect()).collect();
        let seen: Vec<(&str, bool)> =
            lines.iter().take(4).map(|line| (line[0], line[1].contains('P'))).collect();
        assert_eq!(seen, [("5", true), ("0", false), ("5", false), ("6", false)], "{printed}");
        assert!(lines[4].join(" ").contains("not supported"), "{printed}");
        let printed = shell(&dir, BOB, "chattr -p 8 d/f; lsattr -p d/f");
        assert!(printed.contains("not permitted") && printed.contains("    5 "), "{printed}");
        quota(&instance, &["set", "--project", "5", "--inodes-hard", "2"]);
        let printed = shell(&dir, ANN, "touch d/more");
        assert!(printed.contains("exceeded"), "{printed}");
        quota(&instance, &["set", "--project", "5", "--inodes-hard", "0"]);
        let mut command = Command::new("/usr/bin/python3");
        let output = command.args(["-c", FLAGS]).current_dir(&dir).output().expect("it runs");
        let expected = "(512, 0, 0, 5, 0) 536870912\n(0, 0, 0, 5, 0) 0\n12 13 Invalid argument\n\
            Operation not supported Operation not supported Operation not supported\n\
            b'12' b'13'\nOperation not permitted 12\n";
        assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    }
}

/// "`statfs` shows what a project may use" (docs/semantics/quotas.md).
#[test]
fn statfs_shows_what_a_project_may_use() {
    if !can_be_tested() {
        return;
    }
    let options = ["--local", "3", "--memory", "64MiB", "--ssd", "0"];
    let instance = with_mount_for_all("qstatfs", &options);
    let mounted = Mounted::new(&instance, "m");
    let inside = directory(&mounted, "in");
    let at = inside.to_string_lossy().into_owned();
    quota(&instance, &["project", &at, "--id", "7"]);
    std::fs::create_dir(inside.join("deep")).expect("made");
    std::fs::write(inside.join("deep/f"), vec![1; MIB as usize]).expect("written");
    // Blocks of 4 KiB and files: total and free.
    let seen = |name: &str| -> [Vec<u64>; 3] {
        let on_mount = mounted.path(name);
        let stat = |mut command: Command, path: &Path| {
            let output = command.args(["-f", "-c", "%b %f %a %c %d"]).arg(path).output();
            let printed = text(&output.expect("stat runs").stdout);
            printed.split_whitespace().map(|word| word.parse().expect("a number")).collect()
        };
        let open = File::open(&on_mount).expect("open");
        let by_descriptor = rustix::fs::fstatvfs(&open).expect("statistics");
        let own = rustix::fs::StatVfs { f_fsid: 0, ..by_descriptor };
        [
            stat(Command::new("stat"), &on_mount),
            stat(instance.program(&["stat"]), &Path::new("/forebay").join(name)),
            vec![own.f_blocks, own.f_bfree, own.f_bavail, own.f_files, own.f_ffree],
        ]
    };
    let whole = 3 * 64 * MIB / 4096;
    for name in ["", "in", "in/deep", "in/deep/f"] {
        assert!(seen(name).iter().all(|seen| seen[0] == whole), "{name}: no limit yet");
    }
    quota(&instance, &["set", "--project", "7", "--space-hard", "8MiB", "--inodes-hard", "40"]);
    let project = ["--project", "7"];
    wait_for("preparation", || used(&instance, &project).1 == MIB);
    for name in ["in", "in/deep", "in/deep/f"] {
        for seen in seen(name) {
            assert_eq!(seen, [2048, 2048 - 256, 2048 - 256, 40, 37], "{name}");
        }
    }
    quota(&instance, &["set", "--project", "7", "--space-soft", "512KiB"]);
    assert!(seen("in").iter().all(|seen| seen[..3] == [128, 0, 0]), "the lower one");
    assert!(seen("").iter().all(|seen| seen[0] == whole), "others are unaffected");
}

/// "A soft limit may be exceeded for its grace time" (docs/semantics/quotas.md).
#[test]
fn a_soft_limit_has_a_grace_time() {
    if !can_be_tested() {
        return;
    }
    let instance = with_mount_for_all("qsoft", &["--memory", "64MiB"]);
    let mounted = Mounted::new(&instance, "m");
    let dir = directory(&mounted, "place");
    let set =
        ["set", "--user", "1001", "--inodes-soft", "2", "--inodes-hard", "9", "--grace", "3s"];
    quota(&instance, &set);
    assert_eq!(shell(&dir, ANN, "touch 1 2 3"), "");
    let row = || -> Value {
        let printed = quota(&instance, &["report", "--json"]);
        let rows: Vec<Value> = serde_json::from_str(&printed).expect("JSON");
        rows.into_iter().find(|row| row["user"] == ANN).expect("an entry")
    };
    wait_for("the end", || row()["inodes"]["over"] == true);
    assert!(row()["inodes"]["grace_left_s"].as_u64().is_some_and(|left| left <= 3));
    wait_for("the timeout", || row()["inodes"]["grace_left_s"] == 0);
    wait_for("the lock to be held", || shell(&dir, ANN, "touch 4; rm -f 4").contains("exceeded"));
    shell(&dir, ANN, "rm 1 2");
    wait_for("usage to fall under the limit", || row()["inodes"]["over"] == false);
    assert_eq!(shell(&dir, ANN, "touch 4"), "");
}

#[test]
fn impossible_quotas_are_refused_in_one_line() {
    if !can_be_tested() {
        return;
    }
    let instance = with_mount_for_all("qwrong", &["--memory", "64MiB"]);
    let cases: [(&[&str], &str); 6] = [
        (&["set", "--user", "0", "--space-hard", "1MiB"], "root is not limited"),
        (&["set", "--user", "no such", "--space-hard", "1MiB"], "no such user"),
        (
            &["set", "--user", "1001", "--space-hard", "much"],
            "--space-hard cannot be \"much\": give bytes",
        ),
        (&["set", "--user", "1001", "--grace", "7"], "a whole number with s, min, h or d"),
        (
            &["set", "--user", "1001", "--space-soft", "2MiB", "--space-hard", "1MiB"],
            "a soft limit is above",
        ),
        (&["project", "/forebay/nothing", "--id", "3"], "no such file"),
    ];
    for (words, expected) in cases {
        let output = try_quota(&instance, words);
        let printed = text(&output.stderr);
        assert!(!output.status.success() && printed.contains(expected), "{words:?}: {printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}

#[test]
fn limits_hold_across_hosts() {
    let Some(world) = World::started(&[]) else { return };
    world.shell("b", "mkdir /forebay/p", "");
    world.ok("b", &["quota", "project", "/forebay/p", "--id", "5"]);
    world.ok("a", &["quota", "set", "--project", "5", "--space-hard", "3MiB"]);
    // Root writes, because no inode limit applies to root; the space counts for the project.
    let write = "cd /forebay/p; mkdir $1; i=0; \
        while head -c 100000 /dev/zero >$1/$i 2>/dev/null; do i=$((i + 1)); done; echo $i";
    let counts = std::thread::scope(|scope| {
        let world = &world;
        let write = move |host| move || world.shell(host, write, host);
        ["a", "b", "c"].map(|host| scope.spawn(write(host))).map(|one| one.join().expect("written"))
    });
    let counts: Vec<u64> =
        counts.iter().map(|printed| printed.trim().parse().expect("a count")).collect();
    let space = || {
        let printed = world.ok("c", &["quota", "get", "--project", "5", "--json"]);
        let row: Value = serde_json::from_str(&printed).expect("JSON");
        row["space"]["used"].as_u64().expect("a number")
    };
    // Each file of 100,000 bytes takes 128 KiB.
    assert!(counts.iter().sum::<u64>() >= 20, "{counts:?}");
    assert!(space() <= 3 << 20 && space() > (3 << 20) - (128 << 10), "{} {counts:?}", space());
    world.shell("c", "rm -r /forebay/p/a /forebay/p/b /forebay/p/c", "");
    world.shell("b", "head -c 2000000 /dev/zero >/forebay/p/again", "");
    world.ok("a", &["stop"]);
}
