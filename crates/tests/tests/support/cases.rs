//! Cases of `tests/programs` and their like, run by their script; what failed is shown.

use std::path::PathBuf;
use std::process::Command;

use super::text;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the script with the arguments that `with` adds.
///
/// # Panics
/// If a case fails, or it does not come to its summary.
pub(crate) fn run_cases(with: impl FnOnce(&mut Command) -> &mut Command) {
    let mut command = Command::new("bash");
    command.arg(root().join("tests/programs/run.sh"));
    let output = with(&mut command).output().expect("bash runs");
    let said = text(&output.stdout);
    println!("{said}{}", text(&output.stderr));
    let summary = said.lines().last().unwrap_or("no summary");
    assert!(summary.contains(" passed, "), "no summary: {summary}");
    let failed: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("FAIL ") || line.starts_with("      | "))
        .collect();
    assert!(output.status.success() && failed.is_empty(), "{summary}\n{}", failed.join("\n"));
}
