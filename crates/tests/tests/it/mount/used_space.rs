//! `st_blocks` counts the pages that hold data, by both ways, wherever the data is: in memory, on
//! the SSD, on several daemons, and in the backing store. python3 makes the calls; the part by a
//! mount needs `/dev/fuse`.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, text, wait_for};
use std::path::Path;

/// Makes files with holes in the directory of the first argument and prints for each its name and
/// the pages that hold data.
const MAKE: &str = r#"
import ctypes, os, random, sys
libc = ctypes.CDLL(None, use_errno=True)
PAGE, KEEP, PUNCH = 4096, 1, 2
class File:
    def __init__(self, name):
        self.fd = os.open(sys.argv[1] + '/' + name, os.O_RDWR | os.O_CREAT, 0o644)
        self.name, self.pages = name, set()
    def write(self, at, length):
        assert os.pwrite(self.fd, b'x' * length, at) == length
        self.pages |= set(range(at // PAGE, (at + length - 1) // PAGE + 1))
    def truncate(self, size):
        os.ftruncate(self.fd, size)
        self.pages = {page for page in self.pages if page * PAGE < size}
    def fallocate(self, mode, at, length):
        call = libc.fallocate(self.fd, mode, ctypes.c_long(at), ctypes.c_long(length))
        assert call == 0, os.strerror(ctypes.get_errno())
    def punch(self, at, length):
        self.fallocate(PUNCH | KEEP, at, length)
        end = min(at + length, os.fstat(self.fd).st_size)
        whole = range((at + PAGE - 1) // PAGE, end // PAGE)
        self.pages -= set(whole)
    def reserve(self, at, length):
        self.fallocate(0, at, length)
        self.pages |= set(range(at // PAGE, (at + length - 1) // PAGE + 1))
    def end(self):
        os.close(self.fd)
        print(self.name, len(self.pages))
def made(name, *calls):
    file = File(name)
    for call, *arguments in calls:
        getattr(file, call)(*arguments)
    file.end()
    return file
made('tar', ('write', 4096, 10), ('write', 16384, 4096), ('write', 65536, 8192), ('truncate', 86016))
made('start', ('write', 1000000, 5000))
made('middle', ('write', 0, 5000), ('write', 1000000, 5000))
made('end', ('write', 0, 5000), ('truncate', 1000000))
made('only', ('truncate', 1000000))
made('punched', ('write', 0, 300000), ('punch', 5000, 200000))
made('punched-all', ('write', 0, 300000), ('punch', 0, 300000))
made('down', ('write', 0, 300000), ('write', 900000, 1), ('truncate', 100000))
made('down-up', ('write', 0, 300000), ('truncate', 50000), ('truncate', 900000))
made('again', ('write', 0, 300000), ('truncate', 0), ('truncate', 300000), ('write', 200000, 1))
made('reserved', ('truncate', 1000000), ('reserve', 0, 1000000))
made('reserved-punched', ('truncate', 1 << 20), ('reserve', 0, 1 << 20), ('punch', 0, 1 << 20))
made('large', ('write', 0, 3 << 20), ('write', 40 << 20, 1), ('punch', 1 << 20, 1 << 20))
chance = random.Random(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    file = File(f'random{number}')
    file.truncate(8192)
    for _ in range(12):
        at, length = chance.randrange(3000000), chance.randrange(1, 300000)
        what = chance.randrange(6)
        if what == 0:
            file.truncate(max(at, 8192))
        elif what == 1:
            file.punch(at, length)
        else:
            file.write(at, length)
    file.end()
"#;

/// Prints for each name that follows the directory its size and the bytes of its blocks.
const LOOK: &str = r#"
import os, sys
for name in sys.argv[2:]:
    found = os.stat(f'{sys.argv[1]}/{name}')
    print(name, found.st_size, found.st_blocks * 512)
"#;

/// Sizes and bytes of blocks as a preloaded program sees them, and as one on a mount does.
fn seen_by_both(instance: &Instance, mount: Option<&Mounted<'_>>, names: &[&str]) -> Vec<[u64; 2]> {
    let [preloaded, by_mount] = seen(instance, mount, names);
    assert!(by_mount.is_empty() || by_mount == preloaded, "{by_mount:?}: {preloaded:?}");
    preloaded
}

/// The same, each by its way; nothing for a mount that is missing.
fn seen(instance: &Instance, mount: Option<&Mounted<'_>>, names: &[&str]) -> [Vec<[u64; 2]>; 2] {
    let look = |directory: &str| {
        let mut command = match directory {
            "/forebay" => instance.program(&["python3", "-c", LOOK]),
            _ => std::process::Command::new("python3"),
        };
        if directory != "/forebay" {
            command.args(["-c", LOOK]);
        }
        let output = command.arg(directory).args(names).output().expect("python3 runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let numbers = |line: &str| {
        let mut words = line.split(' ').skip(1).map(|word| word.parse().expect("a number"));
        [words.next().expect("a size"), words.next().expect("blocks")]
    };
    let all = |printed: String| printed.lines().map(numbers).collect();
    let by_mount = mount.map(|mount| look(mount.path("").to_str().expect("letters")));
    [all(look("/forebay")), all(by_mount.unwrap_or_default())]
}

/// Makes the files by `directory`; returns their names and pages.
fn make(instance: &Instance, directory: &Path, is_preloaded: bool) -> Vec<(String, u64)> {
    let mut command = match is_preloaded {
        true => instance.program(&["python3"]),
        false => std::process::Command::new("python3"),
    };
    let rounds = testkit::rounds(5).to_string();
    command.args(["-c", MAKE]).arg(directory).args([&testkit::seed(1).to_string(), &rounds]);
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let lines = printed.lines().map(|line| line.split_once(' ').expect("two words"));
    lines.map(|(name, pages)| (name.to_owned(), pages.parse().expect("a number"))).collect()
}

/// Checks all counts. A file without holes reports its size, in blocks of 512 bytes.
fn check(instance: &Instance, mount: Option<&Mounted<'_>>, files: &[(String, u64)], when: &str) {
    let names: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    let seen = seen_by_both(instance, mount, &names);
    assert_eq!(seen.len(), files.len());
    for ((name, pages), [size, bytes]) in files.iter().zip(seen) {
        let right = if size.div_ceil(4096) == *pages {
            size..=pages * 4096
        } else {
            pages * 4096..=pages * 4096
        };
        assert!(right.contains(&bytes), "{name}, {when}: {bytes} bytes of {size}, {pages} pages");
    }
}

/// "`st_blocks` of a file with holes counts the pages of 4 KiB that hold data"
/// (docs/semantics/sharing.md).
#[test]
fn blocks_count_the_pages_that_hold_data() {
    for daemons in ["1", "4"] {
        let name = format!("blocks{daemons}");
        let options = ["--local", daemons, "--memory", "128MiB", "--stripe-size", "256KiB"];
        let instance = Instance::start(&name, &options);
        let mount = has_fuse().then(|| Mounted::new(&instance, "kernel"));
        let files = make(&instance, Path::new("/forebay"), true);
        check(&instance, mount.as_ref(), &files, "made by a preloaded program");
        // Space that was used before.
        let remove = ["bash", "-c", "rm /forebay/*"];
        assert!(instance.program(&remove).status().expect("forebay runs").success());
        let again = match &mount {
            Some(mount) => make(&instance, &mount.path(""), false),
            None => make(&instance, Path::new("/forebay"), true),
        };
        check(&instance, mount.as_ref(), &again, "made again");
    }
}

#[test]
fn blocks_count_the_pages_of_demoted_files() {
    let tiers = [
        "--memory",
        "32MiB",
        "--ssd",
        "128MiB",
        "--demote-low-watermark",
        "100",
        "--demote-idle-age",
        "1ms",
    ];
    let instance = Instance::start("blocks-demoted", &tiers);
    let mount = has_fuse().then(|| Mounted::new(&instance, "kernel"));
    let files = make(&instance, Path::new("/forebay"), true);
    wait_for("all of it to be on the SSD", || {
        let memory = |of: &str| instance.figure(&format!("memory_{of}"));
        memory("free") == memory("total")
    });
    check(&instance, mount.as_ref(), &files, "on the SSD");
}

/// A hole that was saved is not known after its file was evicted, so all of it counts: programs take
/// a file without blocks for one without data.
#[test]
fn evicted_data_counts() {
    let backing = tempfile::tempdir().expect("a directory");
    let options = ["--memory", "128MiB", "--backing", backing.path().to_str().expect("letters")];
    let instance = Instance::start("blocks-evicted", &options);
    let mount = has_fuse().then(|| Mounted::new(&instance, "kernel"));
    let files = make(&instance, Path::new("/forebay"), true);
    check(&instance, mount.as_ref(), &files, "before writeback");
    let names: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    for word in ["flush", "evict"] {
        let mut command = instance.command(word);
        if word == "evict" {
            command.args(names.iter().map(|name| format!("/forebay/{name}")));
        }
        let output = command.output().expect("forebay runs");
        assert!(output.status.success(), "{word}: {}", text(&output.stderr));
    }
    // The kernel may show what it cached before: space is dropped without a word to it.
    let [preloaded, by_mount] = seen(&instance, mount.as_ref(), &names);
    let all = files.iter().zip(preloaded).chain(files.iter().zip(by_mount));
    for ((name, pages), [size, bytes]) in all {
        let right = (pages * 4096).min(size)..=size.next_multiple_of(4096);
        assert!(right.contains(&bytes), "{name}: {bytes} bytes of {size}, {pages} pages");
    }
}
