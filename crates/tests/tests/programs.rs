//! Real programs on an instance: the cases of `tests/programs`, each on an instance of its own.
//!
//! The cases are shell scripts, which `tests/programs/run.sh` runs and judges; here its list
//! of failures becomes the test's. `FOREBAY_BIN` names the program to test, else the one built
//! beside this test.

mod support;

use std::path::PathBuf;

#[test]
fn programs_work_on_an_instance() {
    let program = forebay();
    assert!(program.exists(), "{} is missing: build the workspace before", program.display());
    support::cases::run_cases(|command| command.arg("--in-forebay").env("FOREBAY_BIN", &program));
}

/// The program to test.
fn forebay() -> PathBuf {
    std::env::var_os("FOREBAY_BIN")
        .map_or_else(|| support::profile().join("forebay"), PathBuf::from)
}
