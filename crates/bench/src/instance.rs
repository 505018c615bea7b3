//! Instances of Forebay that the benchmark starts and stops itself.

use crate::settings::Place;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running instance; it is stopped when this value goes.
#[derive(Debug)]
pub(crate) struct Instance {
    program: String,
    name: String,
    /// Where it is mounted.
    at: Option<PathBuf>,
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
            Ok(status) if status.success() => {
                Ok(Instance { program: program.into(), name, at: None })
            }
            Ok(status) => Err(format!("{program} start --local {daemons}: {status}")),
            Err(error) => Err(format!("{program} start: {error}")),
        }
    }

    /// Mounts it, with the kernel's requests by that way, and says how to measure that.
    ///
    /// # Errors
    /// What `forebay mount` says.
    pub(crate) fn mount(&mut self, name: &str, requests: &str) -> Result<Place, String> {
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
        Ok(Place { name: name.into(), directory, through: Vec::new() })
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
        if let Some(at) = &self.at {
            let _ = std::fs::remove_dir(at);
        }
    }
}
