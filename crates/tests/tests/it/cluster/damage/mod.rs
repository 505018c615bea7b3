//! Files of one host are damaged while its daemons do not run. Where they cannot start with them the
//! start names the file and the way out, programs of other hosts go on, and the host that is replaced
//! gets its part from the copies. Damaged logs of metadata cost nothing: services go on elsewhere.

mod pages;

use super::followers::wait_until_all_have_copies;
use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, fill, python,
};
use super::{kill_host_c, presences, wait_until_all_are_up};
use crate::support::agent::signal;
use crate::support::damage::flip;
use crate::support::world::World;
use crate::support::{text, wait_for};
use std::fs;
use std::path::{Path, PathBuf};

/// Makes a tree of synced files, or compares all of it.
const TREE: &str = r"
import os, sys
verb, number = sys.argv[1], 0
def synced(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
names = sorted(f'f{file}' for file in range(6))
for place in range(16):
    directory = f'/forebay/tree{place}'
    if verb == 'make': os.mkdir(directory)
    elif sorted(os.listdir(directory)) != names: sys.exit(f'{directory}: {os.listdir(directory)}')
    for name in names:
        number += 1
        data = number.to_bytes(8, 'little') * 4000
        if verb == 'make':
            with open(f'{directory}/{name}', 'wb') as file: file.write(data)
            synced(f'{directory}/{name}')
        elif open(f'{directory}/{name}', 'rb').read() != data: sys.exit(f'{directory}/{name} differs')
    synced(directory)
print('whole')
";

fn tree(world: &World, host: &str, verb: &str) {
    let words = ["run", "--", "python3", "-c", TREE, verb];
    assert_eq!(world.ok(host, &words), "whole\n", "{verb} on {host}");
}

/// The directory of the files of host b's daemon.
fn data_of_b(world: &World) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    world.path("data").join(format!("forebay-{user}-{}", world.prefix)).join("d1")
}

fn kill_b(world: &World) {
    signal(world.pid("b"), "-KILL");
    wait_for("the death is agreed on", || presences(world).get(1) == Some(&"down".into()));
}

/// The files in a directory, which has some.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).expect("a directory");
    let files: Vec<_> = found.map(|entry| entry.expect("an entry").path()).collect();
    assert!(!files.is_empty(), "{}", directory.display());
    files
}

/// Changes a byte in the middle of what is in a file. False: there is nothing in it.
fn flip_in(path: &Path) -> bool {
    let mut bytes = fs::read(path).expect("read");
    let Some(end) = bytes.iter().rposition(|byte| *byte != 0) else { return false };
    flip(&mut bytes, end / 2);
    fs::write(path, bytes).expect("written");
    true
}

/// Damages the log of units.
fn flip_units(data: &Path) -> PathBuf {
    let mut files = files_in(&data.join("units")).into_iter();
    files.find(|path| flip_in(path)).expect("contents")
}

/// Cuts the file of the SSD tier.
fn cut_ssd(data: &Path) -> PathBuf {
    let path = data.join("ssd");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
    let length = file.metadata().expect("its length").len();
    file.set_len(length / 2).expect("cut");
    path
}

/// Empties the record of starts.
fn empty_starts(data: &Path) -> PathBuf {
    let path = data.join("starts");
    fs::write(&path, "").expect("written");
    path
}

/// The start of host b fails: the line that says why.
fn refused_start(world: &World, words: &[&str]) -> String {
    let nodes = world.path("nodes").to_string_lossy().into_owned();
    let output = world.on("a", &[&["start", "--hosts", &nodes], words].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let advised: Vec<&str> = said.lines().filter(|line| line.contains("forebay replace")).collect();
    assert_eq!(advised.len(), 1, "{said}");
    advised[0].to_owned()
}

/// "a start names the file, and `forebay replace` takes the host as lost" (docs/semantics/durability.md).
#[test]
fn a_host_with_a_damaged_file_is_replaced_and_gets_its_part_from_the_copies() {
    let Some(world) = World::started(&COPIED) else { return };
    wait_until_all_are_up(&world);
    tree(&world, "a", "make");
    let directory = directory(&world);
    let [read, written] = ["read", "written"].map(|name| format!("{directory}/{name}"));
    fill(&world, &read);
    await_copies(&world);
    let mut writer = python(&world, "a", ROUNDS, &["write", &written]);
    let mut reader = python(&world, "c", ROUNDS, &["read", &read]);
    let damages: [fn(&Path) -> PathBuf; 3] = [flip_units, cut_ssd, empty_starts];
    for damage in damages {
        await_rounds(&mut writer);
        await_rounds(&mut reader);
        kill_b(&world);
        // A host that can start is not replaced.
        let output = world.on("a", &["replace", "b"]);
        assert!(text(&output.stderr).contains("its daemons have all that they had"), "{output:?}");
        let path = damage(&data_of_b(&world));
        let line = refused_start(&world, &[]);
        assert!(line.contains(&*path.to_string_lossy()), "{}: {line}", path.display());
        assert!(refused_start(&world, &["--salvage"]).contains("no copy is salvaged"));
        assert!(path.exists(), "a start removes nothing");
        await_rounds(&mut writer);
        await_rounds(&mut reader);
        let answer = world.ok("a", &["replace", "b"]);
        assert!(answer.contains("daemon 1 on b"), "{answer}");
        wait_until_all_are_up(&world);
        await_copies(&world);
        wait_until_all_have_copies(&world);
        tree(&world, "b", "check");
        check(&world, "b", &read, 0);
    }
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    end(&mut reader);
    let last = end(&mut writer);
    drop((writer, reader));
    // Some bytes come from the replaced host alone now.
    kill_host_c(&world);
    for host in ["a", "b"] {
        check(&world, host, &written, last);
        check(&world, host, &read, 0);
        tree(&world, host, "check");
    }
    world.end();
}

/// Damages all logs of host b's daemon: those of its services, and the copies of others.
fn flip_logs(data: &Path) {
    let is_log = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("log") || name.starts_with("copy-")
    };
    let logs: Vec<_> = files_in(data).into_iter().filter(is_log).collect();
    assert!(logs.len() > 2, "{logs:?}");
    for log in logs {
        let flipped = files_in(&log).iter().filter(|path| flip_in(path)).count();
        assert!(flipped > 0, "{} is empty", log.display());
    }
}

/// The second host starts with damaged logs: every host has every file.
fn start_with_flipped_logs(world: &World) {
    flip_logs(&data_of_b(world));
    world.start();
    wait_until_all_are_up(world);
    await_copies(world);
    wait_until_all_have_copies(world);
    ["a", "b", "c"].iter().for_each(|host| tree(world, host, "check"));
}

/// "Damaged logs of a host cost nothing, since its services go on at followers"
/// (docs/semantics/durability.md).
#[test]
fn damaged_logs_of_a_host_with_followers_cost_nothing() {
    let Some(world) = World::started(&COPIED) else { return };
    wait_until_all_are_up(&world);
    tree(&world, "a", "make");
    wait_until_all_have_copies(&world);
    kill_b(&world);
    start_with_flipped_logs(&world);

    // The same if nobody took over its services meanwhile.
    let daemons = ["a", "b", "c"].map(|host| world.daemons(host)).concat();
    for pid in daemons.iter().filter_map(|one| one["pid"].as_u64()) {
        signal(u32::try_from(pid).expect("a process"), "-KILL");
    }
    start_with_flipped_logs(&world);
    // Its logs are whole now: it serves what host c did.
    kill_host_c(&world);
    ["a", "b"].iter().for_each(|host| tree(&world, host, "check"));
    world.end();
}
