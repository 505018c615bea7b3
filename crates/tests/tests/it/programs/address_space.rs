//! Programs whose address space is limited (`ulimit -v`), without a mount: they share it with the
//! library, whose tables they map. And what the library adds to the size of any program.

use crate::support::cases::root;
use crate::support::{Instance, text};

/// Python on a new directory, after commands of the shell.
fn python(instance: &Instance, before: &str, more_mebibytes: u32) {
    let script = root().join("tests/programs/src/space.py");
    let script = script.display();
    let command = format!(
        "d=$(mktemp -d \"$FOREBAY_AT/space-XXXXXX\") && {before} \
         exec python3 '{script}' \"$d\" {more_mebibytes}"
    );
    let output = instance.program(&["bash", "-c", &command]).output().expect("forebay runs");
    assert!(output.status.success(), "{before:?}: {}", text(&output.stderr));
}

#[test]
fn a_program_with_little_address_space_reaches_all_daemons() {
    let instance = Instance::start("space", &["--local", "4", "--memory", "1GiB", "--ssd", "0"]);
    // Each daemon's tables are longer than this.
    python(&instance, "", 8);
    // Others of the same kind: descriptors that do not suffice for a second daemon.
    python(&instance, "ulimit -n 46 &&", 0);
}

#[test]
fn a_limited_program_maps_no_memory_of_daemons_and_fails_at_once_if_tables_do_not_fit() {
    let instance = Instance::start("small", &["--memory", "1GiB", "--ssd", "0"]);
    // Less than the memory.
    python(&instance, "ulimit -v 1000000 &&", 0);
    let refused = "ulimit -v 100000 && exec cp /etc/passwd \"$FOREBAY_AT/copy\"";
    let output = instance.program(&["bash", "-c", refused]).output().expect("forebay runs");
    let line = text(&output.stderr);
    assert!(!output.status.success() && line.contains("Cannot allocate memory"), "{line}");
    python(&instance, "", 0);
}

/// A field of `/proc/self/status` as `cat` prints it, in MiB.
fn mebibytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    let kibibytes = line.split_whitespace().nth(1).expect("a number");
    kibibytes.parse::<u64>().expect("a number") >> 10
}

/// A `cat` that reads a file of each daemon has at most 256 MiB of addresses and 64 MiB of resident
/// memory more than without the library.
fn size_of_cat(memory: &str, ssd: &str, daemons: &str) {
    const FILES: &str = "cd \"$FOREBAY_AT\" && for n in $(seq 60); do echo $n >file-$n; done";
    let status = |command: &mut std::process::Command| {
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let without = status(std::process::Command::new("cat").arg("/proc/self/status"));
    let options = ["--local", daemons, "--memory", memory, "--ssd", ssd];
    let instance = Instance::start("size", &options);
    status(&mut instance.program(&["bash", "-c", FILES]));
    let read = "exec cat \"$FOREBAY_AT\"/file-* /proc/self/status";
    let with = status(&mut instance.program(&["bash", "-c", read]));
    let added = |field| mebibytes(&with, field) - mebibytes(&without, field);
    let addresses = added("VmSize");
    assert!(addresses <= 256, "{addresses} MiB of addresses: {memory}, {daemons} daemons");
    let resident = added("VmRSS");
    assert!(resident <= 64, "{resident} MiB resident: {memory}, {daemons} daemons");
}

/// So it is whatever the size of the instance. "The bytes that a program reads and writes hardly count
/// as its own resident memory" (docs/semantics/limits.md).
#[test]
fn the_library_takes_little_address_space_and_memory() {
    size_of_cat("64MiB", "0", "1");
    size_of_cat("64MiB", "0", "4");
    size_of_cat("1GiB", "0", "1");
    size_of_cat("512MiB", "0", "4");
    // Tables of the SSD are the longest, and an SSD tier takes no space before it has files.
    let temporary = rustix::fs::statvfs(std::env::temp_dir()).expect("a file system");
    let free = temporary.f_bavail.saturating_mul(temporary.f_frsize);
    match free >> 30 {
        45.. => size_of_cat("1GiB", "40GiB", "1"),
        _ => testkit::skip("an SSD tier of 40 GiB needs as much free space"),
    }
}
