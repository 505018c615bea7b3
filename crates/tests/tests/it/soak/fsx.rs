//! fsx on files of an instance: reads, writes, mappings, truncations, holes and copies at random
//! offsets of one file, each compared with a copy in memory, on one daemon and on four, with small
//! operations and with some that cross stripes; and the same on mounts, where the kernel maps.
//!
//! `TEST_SCALE` multiplies the number of operations on each mount; a fifth as many have the larger
//! shape. The test prints each seed.
//!
//! The program comes from the package registry; `make test` installs it in `target/tools`.

use crate::support::mounted::{Mounted, UringEnabled, has_fuse};
use crate::support::{Instance, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Length of the file, longest operation, operations.
const SHAPES: [(u32, u32, u32); 2] = [(1_000_000, 131_072, 4000), (20_000_000, 3_000_000, 300)];

/// At least one byte each: every file system refuses an empty `posix_fallocate`, and fsx gives up.
fn weights(length: u32, longest: u32) -> String {
    format!(
        "flen = {length}\n[opsize]\nmin = 1\nmax = {longest}\n[weights]\nclose_open = 1.0\nread = 10\n\
         write = 10\nmapread = 10\nmapwrite = 10\ntruncate = 7\nfsync = 1\nfdatasync = 1\n\
         invalidate = 1\npunch_hole = 10\nposix_fallocate = 3\nsendfile = 3\ncopy_file_range = 5\n"
    )
}

#[test]
fn fsx_passes_with_preloading() {
    let own = std::env::current_exe().expect("the path of this test");
    let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let forebay = profile.join("forebay");
    let fsx = tool(profile, "fsx");
    assert!(fsx.exists(), "{} is missing: make soak installs it", fsx.display());
    let dir = tempfile::tempdir().expect("a directory");
    let seed = u64::from(std::process::id());
    for daemons in ["1", "4"] {
        for (round, (length, longest, operations)) in SHAPES.into_iter().enumerate() {
            let mut run = Command::new(&forebay);
            run.args(["run", "--local", daemons, "--memory", "256MiB", "--name"])
                .arg(format!("fsx-{}-{daemons}-{round}", std::process::id()))
                .arg("--")
                .arg(&fsx);
            let settings = dir.path().join("fsx.toml");
            std::fs::write(&settings, weights(length, longest)).expect("written");
            let output = fsx_on(run, &settings, (operations, seed), Path::new("/forebay/file"));
            assert_well(&output, &format!("seed {seed}, {daemons} daemons, length {length}"));
        }
    }
}

/// Each extent that is idle for a millisecond is demoted to the SSD, and the next access reads it
/// there.
const DEMOTE_ALL: [&str; 10] = [
    "--memory",
    "16MiB",
    "--ssd",
    "256MiB",
    "--demote-low-watermark",
    "100",
    "--demote-min-watermark",
    "100",
    "--demote-idle-age",
    "1ms",
];

/// "Demoted extents keep their bytes" (docs/semantics/durability.md).
#[test]
fn fsx_passes_while_extents_are_demoted() {
    let fsx = tool(&crate::support::profile(), "fsx");
    assert!(fsx.exists(), "{} is missing: make soak installs it", fsx.display());
    let instance = Instance::start("fsx-demote", &[&["--local", "2"], &DEMOTE_ALL[..]].concat());
    let mounted = has_fuse().then(|| Mounted::by(&instance, "m", "classic"));
    let first = testkit::seed(u64::from(std::process::id()));
    // An access that meets a demotion takes luck within microseconds: tries other seeds until there
    // is one.
    for seed in first..first + 10 {
        for shape in SHAPES {
            demotes(&instance, mounted.as_ref(), &fsx, shape, seed);
        }
        if total(&instance, "bytes_demoted") > 0 && total(&instance, "moves_cancelled") > 0 {
            return;
        }
    }
    panic!("no extent was demoted and no move was cancelled: {}", instance.status());
}

/// Sum of a counter over all daemons.
fn total(instance: &Instance, figure: &str) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("a list").iter();
    daemons.map(|daemon| daemon["state"][figure].as_u64().expect("a number")).sum()
}

fn demotes(
    instance: &Instance,
    mounted: Option<&Mounted>,
    fsx: &Path,
    (length, longest, operations): (u32, u32, u32),
    seed: u64,
) {
    let what = format!("seed {seed}, length {length}");
    let settings = instance.dir.path().join("fsx.toml");
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
fn fsx_passes_on_a_mount() {
    if has_fuse() {
        on_a_mount("classic");
    }
}

#[test]
fn fsx_passes_on_a_mount_over_io_uring() {
    if has_fuse() && UringEnabled::is_available() {
        on_a_mount("rings");
    }
}

fn on_a_mount(transport: &str) {
    let fsx = tool(&crate::support::profile(), "fsx");
    assert!(fsx.exists(), "{} is missing: make soak installs it", fsx.display());
    let name = format!("fsx-{transport}");
    let instance = Instance::start(&name, &["--local", "2", "--memory", "128MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let operations = testkit::rounds(12000);
    let first = testkit::seed(u64::from(std::process::id()));
    // One seed of each shape for each fifth of a million operations: long runs use several, and
    // fsx, which leaves its read mappings in place, stays within the number of mappings that a
    // process may have.
    let seeds = first..=first + operations / 250_000;
    let count = seeds.clone().count() as u64;
    for seed in seeds {
        for ((length, longest, _), share) in SHAPES.into_iter().zip([1, 5]) {
            let operations =
                u32::try_from(operations / count / share).expect("a number of operations");
            println!(
                "{transport}, seed {seed}: {operations} operations, length {length}, up to {longest} each"
            );
            let settings = instance.dir.path().join("fsx.toml");
            std::fs::write(&settings, weights(length, longest)).expect("written");
            let file = mounted.path(&format!("{seed}-{length}"));
            let output = fsx_on(Command::new(&fsx), &settings, (operations, seed), &file);
            assert_well(&output, &format!("seed {seed}, length {length}"));
            std::fs::remove_file(&file).expect("removed");
        }
    }
}

/// Runs fsx on `file`; it leaves its findings beside the settings.
fn fsx_on(
    mut run: Command,
    settings: &Path,
    (operations, seed): (u32, u64),
    file: &Path,
) -> Output {
    let dir = settings.parent().expect("a directory");
    run.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"])
        .args([settings, Path::new("-P"), dir, file])
        .output()
        .expect("it runs")
}

fn assert_well(output: &Output, what: &str) {
    let printed = || format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{}", output.status, printed());
}

/// `target/tools/bin/NAME`.
fn tool(profile: &Path, name: &str) -> PathBuf {
    profile.parent().unwrap_or(profile).join("tools/bin").join(name)
}
