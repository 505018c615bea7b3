//! Runs the cases of `tests/programs` and similar directories by their script, and shows the
//! failures.

use std::path::PathBuf;
use std::process::Command;

use super::{skip, text};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the script with the arguments that `with` adds.
///
/// # Panics
/// If a case fails, or if the script ends without its summary.
pub(crate) fn run_cases(with: impl FnOnce(&mut Command) -> &mut Command) {
    let mut command = Command::new("bash");
    command.arg(script());
    check_cases(with(&mut command));
}

/// Runs the cases of a directory whose names match one of the patterns, or all, each on a new
/// instance, by one way of `--access`.
///
/// # Panics
/// As `run_cases`.
pub(crate) fn on_instances(cases: &str, access: &str, only: &[&str]) {
    let program = std::env::var_os("FOREBAY_BIN")
        .map_or_else(|| super::profile().join("forebay"), PathBuf::from);
    assert!(program.exists(), "{} is missing: build the workspace before", program.display());
    run_cases(|command| {
        command.arg("--cases").arg(root().join(cases));
        command.args(["--in-forebay", "--access", access]);
        for pattern in only {
            command.args(["--only", pattern]);
        }
        command.env("FOREBAY_BIN", &program)
    });
}

/// The script that runs cases.
pub(crate) fn script() -> PathBuf {
    root().join("tests/programs/run.sh")
}

/// The same for a command that runs the script.
///
/// # Panics
/// As `run_cases`.
pub(crate) fn check_cases(command: &mut Command) {
    let output = command.output().expect("the command runs");
    let printed = text(&output.stdout);
    println!("{printed}{}", text(&output.stderr));
    let summary = printed.lines().last().unwrap_or("no summary");
    assert!(summary.contains(" passed, "), "no summary: {summary}");
    for line in printed.lines().filter(|line| line.starts_with("skip ")) {
        skip(line.trim_start_matches("skip").trim());
    }
    let failed: Vec<&str> = printed
        .lines()
        .filter(|line| line.starts_with("FAIL ") || line.starts_with("      | "))
        .collect();
    assert!(output.status.success() && failed.is_empty(), "{summary}\n{}", failed.join("\n"));
}
