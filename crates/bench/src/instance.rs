//! Instances of Forebay that the benchmark starts and stops itself.

use crate::settings::Place;
use std::process::{Command, Stdio};

/// A running instance; it is stopped when this value goes.
#[derive(Debug)]
pub(crate) struct Instance {
    program: String,
    name: String,
}

impl Instance {
    /// Starts `daemons` daemons on this host.
    pub(crate) fn start(program: &str, daemons: u32) -> Result<Instance, String> {
        Instance::start_with(program, daemons, &daemons.to_string(), &[])
    }

    /// The same with settings in variables; `purpose` is in the instance's name.
    pub(crate) fn start_with(
        program: &str,
        daemons: u32,
        purpose: &str,
        settings: &[(&str, &str)],
    ) -> Result<Instance, String> {
        let name = format!("bench-{}-{purpose}", std::process::id());
        let outcome = Command::new(program)
            .args(["start", "--local", &daemons.to_string(), "--name", &name])
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        match outcome {
            Ok(status) if status.success() => Ok(Instance { program: program.into(), name }),
            Ok(status) => Err(format!("{program} start --local {daemons}: {status}")),
            Err(error) => Err(format!("{program} start: {error}")),
        }
    }

    /// How to measure it: programs are started by `forebay run`.
    pub(crate) fn place(&self, name: &str) -> Place {
        let through = [self.program.as_str(), "run", "--name", &self.name, "--"];
        Place {
            name: name.into(),
            directory: "/forebay".into(),
            through: through.map(String::from).to_vec(),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let outcome = Command::new(&self.program)
            .args(["stop", "--name", &self.name])
            .stdout(Stdio::null())
            .status();
        if !outcome.is_ok_and(|status| status.success()) {
            eprintln!("forebay-bench: instance {} could not be stopped", self.name);
        }
    }
}
