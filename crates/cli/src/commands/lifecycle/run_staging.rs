//! Staging by `forebay run`, before its command and after it.

use crate::commands::files::stage::{CopyPlan, Direction};
use crate::failure::{FAILED, Failure, Result, USAGE};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Adds the options `--stage-in` and `--stage-out`.
pub(crate) fn with_staging(command: Command) -> Command {
    let option = |name, help| {
        Arg::new(name)
            .long(name)
            .value_name("SOURCE:DIRECTORY")
            .action(ArgAction::Append)
            .value_parser(value_parser!(OsString))
            .help(help)
    };
    command
        .arg(option(
            "stage-in",
            "Before the command, as 'forebay stage in SOURCE DIRECTORY'; repeatable",
        ))
        .arg(option(
            "stage-out",
            "After the command, as 'forebay stage out SOURCE DIRECTORY'; repeatable",
        ))
}

/// The requested copies.
#[derive(Debug)]
pub(crate) struct RunStaging {
    before: Vec<(OsString, CopyPlan)>,
    after: Vec<(OsString, CopyPlan)>,
}

impl RunStaging {
    /// `roots` as for `CopyPlan`.
    ///
    /// # Errors
    /// A value without a colon, or a path on the wrong side.
    pub(crate) fn of(given: &ArgMatches, roots: &[PathBuf]) -> Result<RunStaging> {
        let all = |option: &str, direction| -> Result<Vec<(OsString, CopyPlan)>> {
            let values: Vec<&OsString> = given.get_many(option).into_iter().flatten().collect();
            values
                .into_iter()
                .map(|value| Ok((value.clone(), plan(value, direction, roots)?)))
                .collect()
        };
        Ok(RunStaging {
            before: all("stage-in", Direction::In)?,
            after: all("stage-out", Direction::Out)?,
        })
    }

    /// Stages in.
    ///
    /// # Errors
    /// Not everything could be staged; the exit code is that of a signal that ended it.
    pub(crate) fn before(&self, name: &str, at: &str) -> Result<()> {
        for (value, plan) in &self.before {
            let code = plan.run(name, at, own_streams())?;
            if code != 0 {
                let text = format!(
                    "the command is not run: {} was not staged in completely",
                    value.display()
                );
                return Err(Failure::with_code(if code > 128 { code } else { FAILED }, text));
            }
        }
        Ok(())
    }

    /// Stages out, and prints failures. True if everything is staged out.
    pub(crate) fn after(&self, name: &str, at: &str) -> bool {
        let mut is_all = true;
        for (value, plan) in &self.after {
            let done = plan.run(name, at, own_streams());
            if let Err(failure) = &done {
                errln!("forebay run: {}", failure.text());
            }
            if !done.is_ok_and(|code| code == 0) {
                errln!("forebay run: {} was not staged out completely", value.display());
                is_all = false;
            }
        }
        is_all
    }
}

/// Standard input and output belong to the command.
fn own_streams() -> [Stdio; 2] {
    [Stdio::null(), Stdio::from(std::io::stderr())]
}

fn plan(value: &OsStr, direction: Direction, roots: &[PathBuf]) -> Result<CopyPlan> {
    let bytes = value.as_bytes();
    let split = bytes.iter().rposition(|&byte| byte == b':').map(|at| bytes.split_at(at));
    let Some((source @ [_, ..], [_, into @ ..])) = split.filter(|(_, into)| into.len() > 1) else {
        let text = format!("invalid value {}: give SOURCE:DIRECTORY", value.display());
        return Err(Failure::with_code(USAGE, text));
    };
    let [source, into] = [source, into].map(|part| Path::new(OsStr::from_bytes(part)));
    CopyPlan::new(direction, &[&source.to_owned()], into, Vec::new(), roots)
}
