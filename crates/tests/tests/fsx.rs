//! fsx on files of an instance: reads, writes, maps, truncates, punches and copies at random places
//! of one file, each compared with a copy in memory, on one daemon and on four, with small
//! operations and with some that cross chunks; and the same on mounts, where the kernel maps.
//!
//! `FSX_OPS` sets how many operations are done on each mount (`make fsx` does a million); a fifth as many
//! are of the larger shape. Each seed that is used is said.
//!
//! The program comes from the package registry; `make test` puts it below `target/tools`.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::mounted::{Mounted, Offered, has_fuse};
use support::{Instance, setting, text};

/// Length of the file, longest operation.
const SHAPES: [(u32, u32, u32); 2] = [(1_000_000, 131_072, 4000), (20_000_000, 3_000_000, 300)];

/// At least one byte each: of none, every file system refuses `posix_fallocate`, and fsx gives up.
fn weights(length: u32, longest: u32) -> String {
    format!(
        "flen = {length}\n[opsize]\nmin = 1\nmax = {longest}\n[weights]\nclose_open = 1.0\nread = 10\n\
         write = 10\nmapread = 10\nmapwrite = 10\ntruncate = 7\nfsync = 1\nfdatasync = 1\n\
         invalidate = 1\npunch_hole = 10\nposix_fallocate = 3\nsendfile = 3\ncopy_file_range = 5\n"
    )
}

#[test]
fn a_file_is_what_was_done_to_it() {
    let own = std::env::current_exe().expect("the path of this test");
    let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let forebay = profile.join("forebay");
    let fsx = tool(profile, "fsx");
    assert!(fsx.exists(), "{} is missing: make test installs it", fsx.display());
    let place = tempfile::tempdir().expect("a directory");
    let seed = u64::from(std::process::id());
    for daemons in ["1", "4"] {
        for (round, (length, longest, operations)) in SHAPES.into_iter().enumerate() {
            let mut run = Command::new(&forebay);
            run.args(["run", "--local", daemons, "--memory", "256MiB", "--name"])
                .arg(format!("fsx-{}-{daemons}-{round}", std::process::id()))
                .arg("--")
                .arg(&fsx);
            let settings = place.path().join("fsx.toml");
            std::fs::write(&settings, weights(length, longest)).expect("written");
            let output = fsx_on(run, &settings, (operations, seed), Path::new("/forebay/file"));
            assert_well(&output, &format!("seed {seed}, {daemons} daemons, length {length}"));
        }
    }
}

/// Every piece that is idle for a millisecond moves to the SSD, and what is used next comes from there.
const ALL_SINK: [&str; 10] =
    ["--memory", "16MiB", "--ssd", "256MiB", "--room", "100", "--reserve", "100", "--idle", "1ms"];

/// "Pieces that sink are what they were" (docs/semantics.md).
#[test]
fn a_file_whose_pieces_sink_is_what_was_done_to_it() {
    let fsx = tool(&support::profile(), "fsx");
    assert!(fsx.exists(), "{} is missing: make test installs it", fsx.display());
    let instance = Instance::start("fsx-sink", &[&["--local", "2"], &ALL_SINK[..]].concat());
    let mounted = has_fuse().then(|| Mounted::by(&instance, "m", "classic"));
    let first = setting("TEST_SEED", u64::from(std::process::id()));
    // A use that meets a move is a matter of microseconds: other seeds, until there was one.
    for seed in first..first + 10 {
        for shape in SHAPES {
            sinks(&instance, mounted.as_ref(), &fsx, shape, seed);
        }
        if total(&instance, "bytes_sunk") > 0 && total(&instance, "moves_cancelled") > 0 {
            return;
        }
    }
    panic!("no piece sank and no move was cancelled: {}", instance.status());
}

/// A figure of all daemons.
fn total(instance: &Instance, figure: &str) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("a list").iter();
    daemons.map(|daemon| daemon["state"][figure].as_u64().expect("a number")).sum()
}

fn sinks(
    instance: &Instance,
    mounted: Option<&Mounted>,
    fsx: &Path,
    (length, longest, operations): (u32, u32, u32),
    seed: u64,
) {
    let what = format!("seed {seed}, length {length}");
    let settings = instance.place.path().join("fsx.toml");
    std::fs::write(&settings, weights(length, longest)).expect("written");
    let run = instance.program(&[fsx.to_str().expect("a path")]);
    let output = fsx_on(run, &settings, (operations, seed), Path::new("/forebay/file"));
    assert_well(&output, &what);
    if let Some(mounted) = mounted {
        let file = mounted.path(&format!("{length}"));
        let output = fsx_on(Command::new(fsx), &settings, (operations, seed), &file);
        assert_well(&output, &format!("{what}, on a mount"));
    }
}

#[test]
fn a_file_of_a_mount_is_what_was_done_to_it() {
    if has_fuse() {
        on_a_mount("classic");
    }
}

#[test]
fn a_file_of_a_mount_by_rings_is_what_was_done_to_it() {
    if has_fuse() && Offered::can_be() {
        on_a_mount("rings");
    }
}

fn on_a_mount(transport: &str) {
    let fsx = tool(&support::profile(), "fsx");
    assert!(fsx.exists(), "{} is missing: make test installs it", fsx.display());
    let name = format!("fsx-{transport}");
    let instance = Instance::start(&name, &["--local", "2", "--memory", "128MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let operations = setting("FSX_OPS", 3000);
    let first = setting("TEST_SEED", u64::from(std::process::id()));
    // Of each shape one for each fifth of a million: so long runs try several, and fsx, which leaves what
    // it maps to read mapped, stays below the number of maps that a process may have.
    let seeds = first..=first + operations / 250_000;
    let count = seeds.clone().count() as u64;
    for seed in seeds {
        for ((length, longest, _), share) in SHAPES.into_iter().zip([1, 5]) {
            let operations =
                u32::try_from(operations / count / share).expect("a number of operations");
            println!(
                "{transport}, seed {seed}: {operations} operations, length {length}, up to {longest} each"
            );
            let settings = instance.place.path().join("fsx.toml");
            std::fs::write(&settings, weights(length, longest)).expect("written");
            let file = mounted.path(&format!("{seed}-{length}"));
            let output = fsx_on(Command::new(&fsx), &settings, (operations, seed), &file);
            assert_well(&output, &format!("seed {seed}, length {length}"));
            std::fs::remove_file(&file).expect("removed");
        }
    }
}

/// Runs it on `file`; what it finds wrong it leaves beside the settings.
fn fsx_on(
    mut run: Command,
    settings: &Path,
    (operations, seed): (u32, u64),
    file: &Path,
) -> Output {
    let place = settings.parent().expect("a directory");
    run.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"])
        .args([settings, Path::new("-P"), place, file])
        .output()
        .expect("it runs")
}

fn assert_well(output: &Output, what: &str) {
    let said = || format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{}", output.status, said());
}

/// `target/tools/bin/NAME`.
fn tool(profile: &Path, name: &str) -> PathBuf {
    profile.parent().unwrap_or(profile).join("tools/bin").join(name)
}
