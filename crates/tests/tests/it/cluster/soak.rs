//! Host b of an instance with two copies has one fault after the other, while a program of host a writes
//! a file and one of host c reads another: both go on, and afterwards every byte is right on each host,
//! also where host b alone has it. `make test` leaves it out, as all of `soak`.

use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, directory, end, fill, python,
};
use super::{kill_host_c, presences, wait_until_all_are_up};
use crate::support::agent::{Agent, signal};
use crate::support::tier::MountedAt;
use crate::support::world::{World, ip};
use crate::support::{skip, text, wait_for};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

struct Stage {
    world: World,
    programs: [Agent; 2],
    /// Where the programs have their files.
    directory: String,
    /// Host b's directories of data and of shared memory.
    paths: [PathBuf; 2],
    /// Both are file systems of their own at first.
    mounts: Vec<MountedAt>,
}

const DATA: usize = 0;
const MEMORY: usize = 1;

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Fills a file system; the file to remove.
fn filled(path: &Path) -> PathBuf {
    let hog = path.join("hog");
    let mut file = fs::File::create(&hog).expect("made");
    while file.write_all(&vec![7; 1 << 16]).is_ok() {}
    hog
}

impl Stage {
    fn go_on(&mut self) {
        self.programs.iter_mut().for_each(await_rounds);
    }

    /// The fault is over.
    fn await_whole(&mut self) {
        wait_until_all_are_up(&self.world);
        await_copies(&self.world);
        self.go_on();
    }

    fn await_death(&self) {
        wait_for("the death is agreed on", || {
            presences(&self.world).get(1) == Some(&"down".into())
        });
    }

    /// Host b does not start; what the start says of it, and that it gets its part from the copies.
    fn replace(&mut self, why: &str) {
        let nodes = self.world.path("nodes").to_string_lossy().into_owned();
        let output = self.world.on("a", &["start", "--hosts", &nodes]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
        self.go_on();
        self.world.ok("a", &["replace", "b"]);
        self.await_whole();
    }
}

fn network_cut(stage: &mut Stage) {
    let hub = format!("{}hub", stage.world.prefix);
    assert!(ip(&format!("-n {hub} link set vb down")));
    stage.await_death();
    stage.go_on();
    assert!(ip(&format!("-n {hub} link set vb up")));
}

fn run_directory_removed(stage: &mut Stage) {
    let own = format!("forebay-{}/{}", user(), stage.world.prefix);
    let gone = stage.world.path("gone");
    // At once: the daemon makes it again while it is emptied, too.
    fs::rename(stage.world.path("b").join(own), &gone).expect("renamed");
    fs::remove_dir_all(gone).expect("removed");
    stage.go_on();
    wait_for("the daemon in the status", || {
        stage.world.daemons("b").iter().any(|one| one["state"]["requests"].is_u64())
    });
}

fn memory_full(stage: &mut Stage) {
    let hog = filled(&stage.paths[MEMORY]);
    stage.go_on();
    let file = format!("{}/more", stage.directory);
    fill(&stage.world, &file);
    check(&stage.world, "c", &file, 0);
    fs::remove_file(hog).expect("removed");
}

fn memory_removed(stage: &mut Stage) {
    // Also what the mount hides would have a name while it is there.
    for file in fs::read_dir(&stage.paths[MEMORY]).expect("a directory").flatten() {
        fs::remove_file(file.path()).expect("removed");
    }
    stage.mounts.truncate(MEMORY);
    stage.go_on();
    wait_for("the notice", || {
        text(&stage.world.on("a", &["status"]).stdout).contains("files in /dev/shm were removed")
    });
    stage.go_on();
    signal(stage.world.pid("b"), "-KILL");
    stage.mounts.clear();
    stage.await_death();
    stage.replace("forebay replace");
}

fn memory_cut(stage: &mut Stage) {
    let arena = fs::File::options().write(true).open(stage.paths[MEMORY].join("d1.arena"));
    arena.expect("the arena").set_len(4096).expect("cut");
    stage.await_death();
    stage.go_on();
    stage.replace("forebay replace");
}

/// "a daemon that cannot note what the others agree on ends, or what its copies are"
/// (docs/semantics/faults.md).
fn device_full(stage: &mut Stage) {
    let hog = filled(&stage.paths[DATA]);
    // Changes that all note, until there is no room for one.
    let mut words = ["on", "off"].into_iter().cycle();
    wait_for("the end of the daemon without room", || {
        let word = words.next().expect("it repeats");
        let _ = stage.world.on("a", &["balance", word]);
        presences(&stage.world).get(1) == Some(&"down".into())
    });
    stage.go_on();
    fs::remove_file(hog).expect("removed");
    stage.world.start();
}

/// A fault's name, and its test.
type Fault = (&'static str, fn(&mut Stage));

/// "goes on where a majority of the voters is" (docs/semantics/faults.md), for a cut network.
#[test]
fn programs_go_on_with_copies_whatever_fault_one_host_has() {
    let Some(mut world) = World::new() else { return };
    let more = [("FOREBAY_MEMORY", "32MiB")];
    world.settings = [&COPIED[..], &more].concat();
    let name = format!("forebay-{}-{}", user(), world.prefix);
    let data = world.path("data").join(&name).join("d1");
    let paths = [data, Path::new("/dev/shm").join(&name).join("h1")];
    let mount = |(path, size): (&PathBuf, &str)| MountedAt::new(path, size);
    let Some(mounts) = paths.iter().zip(["256m", "160m"]).map(mount).collect() else {
        return skip("no file systems can be mounted here (root is needed)");
    };
    world.start();
    wait_until_all_are_up(&world);
    let directory = directory(&world);
    let [read, written] = ["read", "written"].map(|name| format!("{directory}/{name}"));
    fill(&world, &read);
    let programs = [("a", "write", &written), ("c", "read", &read)]
        .map(|(host, verb, path)| python(&world, host, ROUNDS, &[verb, path]));
    let mut stage = Stage { world, programs, directory, paths, mounts };
    let faults: [Fault; 6] = [
        ("the network is cut", network_cut),
        ("the run directory is removed", run_directory_removed),
        ("the device of --dir is full", device_full),
        ("/dev/shm is full", memory_full),
        ("/dev/shm is emptied", memory_removed),
        ("a stray call cuts the memory", memory_cut),
    ];
    for (fault, act) in faults {
        println!("{fault}");
        stage.go_on();
        act(&mut stage);
        stage.await_whole();
    }
    let [last, _] = stage.programs.each_mut().map(end);
    let Stage { world, programs, .. } = stage;
    drop(programs);
    // Some bytes come from host b alone now.
    kill_host_c(&world);
    for host in ["a", "b"] {
        check(&world, host, &written, last);
        check(&world, host, &read, 0);
    }
    world.end();
}
