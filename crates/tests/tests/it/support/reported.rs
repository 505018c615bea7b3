//! The cases of `tests/cases`: faults that users reported of other file systems and programs, by the
//! default way, on instances of several kinds.

use super::mounted::has_fuse;
use super::{Instance, cases, text};

/// The kinds of instances.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One daemon.
    One,
    /// Four daemons on this host.
    Four,
    /// One daemon over a backing directory, into which the cases look.
    Backed,
}

/// Runs the cases whose names match one of the patterns, or all, on a new instance of this kind.
///
/// # Panics
/// If a case fails.
pub(crate) fn run(kind: Kind, only: &[&str]) {
    if !has_fuse() {
        return;
    }
    let below = tempfile::tempdir().expect("a directory");
    let below = text(below.path().as_os_str().as_encoded_bytes());
    let mut options = vec!["--memory", "512MiB", "--ssd", "1GiB"];
    match kind {
        Kind::One => {}
        Kind::Four => options.extend(["--local", "4"]),
        Kind::Backed => options.extend(["--backing", &below]),
    }
    let instance = Instance::start_to_mount("cases", &options);
    let mut command = instance.program_by_default(&["bash"]);
    command.arg(cases::script()).arg("--cases").arg(cases::root().join("tests/cases"));
    for pattern in only {
        command.args(["--only", pattern]);
    }
    let tools = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| cases::root().join("target"), Into::into)
        .join("tools/python/bin");
    if tools.exists() {
        command.env("CASES_PYTHON", tools);
    }
    if let Kind::Backed = kind {
        let forebay = super::profile().join("forebay");
        let flush = format!("{} flush --name {}", forebay.display(), instance.name);
        command.env("CASES_FLUSH", flush);
        command.env("CASES_BELOW", &below).env("CASES_AT", instance.prefix());
    }
    cases::check_cases(command.arg(instance.prefix()));
}
