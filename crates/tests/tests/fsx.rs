//! fsx on files of an instance: reads, writes, maps, truncates, punches and copies at random places
//! of one file, each compared with a copy in memory, on one daemon and on four, with small
//! operations and with some that cross chunks.
//!
//! The program comes from the package registry; `make test` puts it below `target/tools`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Length of the file, longest operation.
const SHAPES: [(u32, u32, u32); 2] = [(1_000_000, 131_072, 4000), (20_000_000, 3_000_000, 300)];

fn weights(length: u32, longest: u32) -> String {
    format!(
        "flen = {length}\n[opsize]\nmax = {longest}\n[weights]\nclose_open = 1.0\nread = 10\n\
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
            let settings = place.path().join("fsx.toml");
            std::fs::write(&settings, weights(length, longest)).expect("written");
            let output = Command::new(&forebay)
                .args(["run", "--local", daemons, "--memory", "256MiB", "--name"])
                .arg(format!("fsx-{}-{daemons}-{round}", std::process::id()))
                .arg("--")
                .arg(&fsx)
                .args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"])
                .args([settings.as_os_str(), "-P".as_ref(), place.path().as_os_str()])
                .arg("/forebay/file")
                .output()
                .expect("forebay runs");
            assert!(
                output.status.success(),
                "seed {seed}, {daemons} daemons, length {length}: {}\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// `target/tools/bin/NAME`.
fn tool(profile: &Path, name: &str) -> PathBuf {
    profile.parent().unwrap_or(profile).join("tools/bin").join(name)
}
