//! One group of tests with one number of processes on one file system, and its working directory.

use crate::measure::programs;
use crate::measure::workers::{Phase, WorkerArgs, Workers};
use crate::results::report::{Key, Report};
use crate::settings::{FileSystem, Settings};
use std::process::{Command, Stdio};

/// One group of tests with one number of processes on one file system.
pub(crate) struct Run<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) system: &'a FileSystem,
    pub(crate) group: &'a str,
    pub(crate) processes: u32,
    pub(crate) repetition: u32,
}

impl Run<'_> {
    /// Records one value.
    pub(crate) fn record(&self, report: &mut Report, test: &str, unit: &'static str, rate: f64) {
        let key =
            Key { group: self.group.into(), test: test.into(), processes: self.processes, unit };
        report.add(key, &self.system.name, rate);
    }

    /// A command that runs `program` so that it can access the file system.
    pub(crate) fn command(&self, program: &str) -> Command {
        programs::command(&self.system.through, program)
    }

    /// Working directory of this run. The name is unique, so leftovers of a failed run do not
    /// interfere.
    pub(crate) fn directory(&self) -> String {
        format!(
            "{}/forebay-bench-{}-{}-{}-{}",
            self.system.directory,
            std::process::id(),
            self.group,
            self.processes,
            self.repetition
        )
    }

    pub(crate) fn measure_phases(&self, report: &mut Report) -> Result<(), String> {
        for phase in self.run_phases(self.group, &self.directory())? {
            self.record(report, &phase.name, phase.unit, phase.rate);
        }
        Ok(())
    }

    /// Runs the phases of a group with `processes` workers in `directory`.
    pub(crate) fn run_phases(&self, group: &str, directory: &str) -> Result<Vec<Phase>, String> {
        let worker_args = WorkerArgs {
            through: self.system.through.clone(),
            group: group.into(),
            directory: directory.into(),
            index: 0,
            processes: self.processes,
            files: self.settings.files_per_process(self.group, self.processes),
            megabytes: self.settings.megabytes_per_process(self.processes),
        };
        let mut phases = Vec::new();
        Workers::start(&worker_args.for_each_worker(self.processes))?
            .work(|phase| phases.push(phase))?;
        Ok(phases)
    }

    /// Makes a directory in the file system.
    pub(crate) fn make_directory(&self, directory: &str) -> Result<(), String> {
        let mut command = self.command("mkdir");
        command.args(["-p", directory]);
        programs::output(&mut command, "mkdir").map(drop)
    }

    /// Removes a directory of the file system with its contents.
    pub(crate) fn remove_directory(&self, directory: &str) -> Result<(), String> {
        let mut command = self.command("rm");
        command.args(["-r", directory]);
        programs::output(&mut command, "rm").map(drop)
    }

    /// Removes the leftovers of a failed run, if the file system still allows it.
    pub(crate) fn clear(&self) {
        let mut command = self.command("timeout");
        command.args(["20", "rm", "-rf", &self.directory()]).stdin(Stdio::null());
        if !command.output().is_ok_and(|output| output.status.success()) {
            eprintln!("forebay-bench: {} is left in {}", self.directory(), self.system.name);
        }
    }
}
