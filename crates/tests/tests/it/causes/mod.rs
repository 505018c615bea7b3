//! The report of a job has all that only the file system knows: each advice fires on a real instance
//! where the thing really happens, and not for a job just beside it.
//!
//! - `places`: where the bytes of reads were.
//! - `waits`: what the job waited for.
//! - `moves`: what moved beside it, what is dirty, damaged or in one directory.
//! - `others`: other jobs, slow hosts and slow devices.

mod moves;
mod others;
mod places;
mod waits;

use super::support::{Instance, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// An instance, and a directory for the reports of its jobs.
struct Reported {
    instance: Instance,
    state: tempfile::TempDir,
}

impl Reported {
    fn of(instance: Instance) -> Reported {
        Reported { instance, state: tempfile::tempdir().expect("a directory") }
    }

    fn start(name: &str, options: &[&str]) -> Reported {
        Reported::of(Instance::start(name, options))
    }

    /// `forebay run --job JOB -- sh -ec SCRIPT`, or with other options before.
    fn command(&self, job: &str, options: &[&str], script: &str) -> Command {
        let mut command = self.instance.command("run");
        command.args(["--job", job]).args(options).args(["--", "sh", "-ec", script]);
        command.env("XDG_STATE_HOME", self.state.path());
        command
    }

    /// Runs a job, and gives its report.
    fn job(&self, job: &str, script: &str) -> Value {
        let output = self.command(job, &[], script).output().expect("forebay runs");
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        self.report(&[job])
    }

    /// `forebay report WORDS --json`.
    fn report(&self, words: &[&str]) -> Value {
        self.asked(words).unwrap_or_else(|stderr| panic!("{words:?}: {stderr}"))
    }

    /// As `report`; or what the command said if it failed.
    fn asked(&self, words: &[&str]) -> Result<Value, String> {
        let like = self.instance.command("status");
        let mut command = Command::new(like.get_program());
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["report", "--json"]).args(words).env("XDG_STATE_HOME", self.state.path());
        let output = command.output().expect("forebay runs");
        if !output.status.success() {
            return Err(text(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// The report of a job so far.
    fn report_now(&self, job: &str) -> Value {
        self.report(&[job, "--now", "--name", &self.instance.name])
    }
}

/// The finding of a report; `None`: it has none of this trigger.
fn found<'r>(report: &'r Value, trigger: &str) -> Option<&'r Value> {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|one| one["trigger"] == trigger)
}

/// The finding of a report.
fn expect<'r>(report: &'r Value, trigger: &str) -> &'r Value {
    found(report, trigger).unwrap_or_else(|| panic!("no {trigger}: {report}"))
}

/// A number of a report's profile.
fn number(report: &Value, part: &str, name: &str) -> u64 {
    let found = &report["profile"][part][name];
    found.as_u64().unwrap_or_else(|| panic!("no {part}.{name}: {report}"))
}

/// Seconds that a job waited for something.
fn waited(report: &Value, cause: &str) -> f64 {
    report["profile"]["waits"][cause].as_f64().unwrap_or_else(|| panic!("{cause}: {report}"))
}

/// Reads all of a file by `dd`, by 1 MiB.
fn reading(path: &str) -> String {
    format!("dd if={path} of=/dev/null bs=1M 2>/dev/null")
}

/// A file of so many MiB in a directory that exists.
fn make(directory: &Path, name: &str, mib: u64) {
    let bytes = testkit::content(mib, 0, mib * MIB);
    std::fs::write(directory.join(name), bytes).expect("written");
}
