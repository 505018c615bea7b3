//! Real programs on an instance: the cases of `tests/programs`, each on an instance of its own.
//!
//! The cases are shell scripts, which `tests/programs/run.sh` runs and judges; here its list
//! of failures becomes the test's. `FOREBAY_BIN` names the program to test, else the one built
//! beside this test.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn programs_work_on_an_instance() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = forebay();
    assert!(program.exists(), "{} is missing: build the workspace before", program.display());
    let output = Command::new("bash")
        .arg(root.join("tests/programs/run.sh"))
        .arg("--in-forebay")
        .env("FOREBAY_BIN", &program)
        .output()
        .expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let summary = text.lines().last().unwrap_or("no summary");
    assert!(summary.contains(" passed, "), "no summary: {summary}");
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("FAIL ") || line.starts_with("      | "))
        .collect();
    assert!(output.status.success() && failed.is_empty(), "{summary}\n{}", failed.join("\n"));
}

/// `target/<profile>/forebay`, two directories above this test's own program.
fn forebay() -> PathBuf {
    if let Some(program) = std::env::var_os("FOREBAY_BIN") {
        return program.into();
    }
    let own = std::env::current_exe().expect("the path of this test");
    let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
    profile.join("forebay")
}
