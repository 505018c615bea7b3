//! Real programs on an instance by each way of `--access`: the cases of `tests/programs`, each on an
//! instance of its own, and those of `tests/refused`, which do what needs a mount.
//!
//! The cases are shell scripts, which `tests/programs/run.sh` runs and checks; its list of failures
//! is that of the test. `FOREBAY_BIN` names the program to test, by default the one built beside
//! this test. All cases by the other ways than the default one are in `soak::programs`.

use crate::support::cases::on_instances;
use crate::support::mounted::has_fuse;

/// Cases of what the library imitates where no mount has it: working directory, descriptors, umask,
/// mappings, children.
const IMITATED: [&str; 8] =
    ["3[126]-*", "46-*", "50-*", "7[268]-*", "8[367]-*", "9[123457]-*", "98-*", "28-*"];
/// Cases in which the kernel's caches and locks take part.
const KERNELS: [&str; 6] = ["28-*", "3[45]-*", "43-*", "7[56]-*", "8[02]-*", "98-*"];

// Four tests, which run beside each other: one alone would be the last to end by minutes.

#[test]
fn programs_01_to_24_work_on_an_instance() {
    on_instances("tests/programs", "auto", &["[01]*", "2[0-4]-*"]);
}

#[test]
fn programs_25_to_49_work_on_an_instance() {
    on_instances("tests/programs", "auto", &["2[5-9]-*", "[34]*"]);
}

#[test]
fn programs_50_to_74_work_on_an_instance() {
    on_instances("tests/programs", "auto", &["[56]*", "7[0-4]-*"]);
}

#[test]
fn programs_75_to_99_work_on_an_instance() {
    on_instances("tests/programs", "auto", &["7[5-9]-*", "[89]*"]);
}

#[test]
fn programs_work_preload_only() {
    on_instances("tests/programs", "preload", &IMITATED);
}

#[test]
fn programs_work_by_a_mount_alone() {
    if has_fuse() {
        on_instances("tests/programs", "mount", &KERNELS);
    }
}

/// "Preload-only, it is refused" (docs/semantics/limits.md).
#[test]
fn each_thing_that_needs_a_mount_works_with_it_and_is_refused_without() {
    on_instances("tests/refused", "preload", &[]);
    if has_fuse() {
        on_instances("tests/refused", "auto", &[]);
    }
}
