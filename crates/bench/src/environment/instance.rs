//! Forebay instances on this host that the benchmark starts and stops.

use crate::measure::programs;
use crate::settings::FileSystem;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running instance. Dropping it stops the instance.
#[derive(Debug)]
pub(crate) struct Instance {
    program: String,
    name: String,
    /// Mount point, if it is mounted.
    at: Option<PathBuf>,
}

impl Instance {
    /// Starts an instance of `daemons` daemons.
    pub(crate) fn start(program: &str, daemons: u32) -> Result<Instance, String> {
        Instance::start_with(program, daemons, &daemons.to_string(), &[])
    }

    /// As `start`, with settings given as environment variables; `purpose` becomes part of the
    /// instance's name.
    pub(crate) fn start_with(
        program: &str,
        daemons: u32,
        purpose: &str,
        settings: &[(&str, &str)],
    ) -> Result<Instance, String> {
        let name = format!("bench-{}-{purpose}", std::process::id());
        let outcome = Command::new(program)
            .args(["start", "--local", &daemons.to_string(), "--name", &name])
            // Its looks are no part of what is measured.
            .env("FOREBAY_MONITOR", "off")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        match outcome {
            Ok(status) if status.success() => {
                Ok(Instance { program: program.into(), name, at: None })
            }
            Ok(status) => Err(format!("{program} start --local {daemons}: {status}")),
            Err(error) => Err(format!("{program} start: {error}")),
        }
    }

    /// Mounts the instance and returns the mount. `requests` selects how the kernel passes requests
    /// to the mount: `classic` or `rings`.
    ///
    /// # Errors
    /// The error text of `forebay mount`.
    pub(crate) fn mount(&mut self, name: &str, requests: &str) -> Result<FileSystem, String> {
        let at = std::env::temp_dir().join(&self.name);
        std::fs::create_dir_all(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let at = self.at.insert(at);
        let output = Command::new(&self.program)
            .args(["mount", "--name", &self.name, "--requests", requests])
            .arg(&*at)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} mount: {error}", self.program))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let directory = at.display().to_string();
        Ok(FileSystem { name: name.into(), directory, through: Vec::new() })
    }

    /// Runs a command of `forebay` on the instance.
    pub(crate) fn run(&self, words: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args(words).env("FOREBAY_NAME", &self.name);
        programs::output(&mut command, "forebay").map(drop)
    }

    /// The instance as programs under `forebay run` access it.
    pub(crate) fn system(&self, name: &str) -> FileSystem {
        let through = [self.program.as_str(), "run", "--name", &self.name, "--"];
        FileSystem {
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
        if let Some(at) = &self.at {
            let _ = std::fs::remove_dir(at);
        }
    }
}
