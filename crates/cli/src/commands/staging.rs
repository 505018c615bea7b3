//! What `forebay run` stages before its command and after it.

use crate::commands::stage::{Plan, Way};
use crate::failure::{FAILED, Failure, Result, USAGE};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Both options.
pub(super) fn with_staging(command: Command) -> Command {
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

/// What was asked for.
#[derive(Debug)]
pub(super) struct Staging {
    before: Vec<(OsString, Plan)>,
    after: Vec<(OsString, Plan)>,
}

impl Staging {
    /// `roots` as of `Plan`.
    ///
    /// # Errors
    /// A value without a colon, or a path on the wrong side.
    pub(super) fn of(given: &ArgMatches, roots: &[PathBuf]) -> Result<Staging> {
        let all = |option: &str, way| -> Result<Vec<(OsString, Plan)>> {
            let values: Vec<&OsString> = given.get_many(option).into_iter().flatten().collect();
            values.into_iter().map(|value| Ok((value.clone(), plan(value, way, roots)?))).collect()
        };
        Ok(Staging { before: all("stage-in", Way::In)?, after: all("stage-out", Way::Out)? })
    }

    /// Stages in.
    ///
    /// # Errors
    /// Not all could be staged, with the code of a signal that ended it.
    pub(super) fn before(&self, name: &str, at: &str) -> Result<()> {
        for (value, plan) in &self.before {
            let code = plan.run(name, at, quietly())?;
            if code != 0 {
                let text =
                    format!("the command is not run: not all of {} is staged in", value.display());
                return Err(Failure::with_code(if code > 128 { code } else { FAILED }, text));
            }
        }
        Ok(())
    }

    /// Stages out. What failed is said; true if all is out.
    pub(super) fn after(&self, name: &str, at: &str) -> bool {
        let mut is_all = true;
        for (value, plan) in &self.after {
            let done = plan.run(name, at, quietly());
            if let Err(failure) = &done {
                eprintln!("forebay run: {}", failure.text());
            }
            if !done.is_ok_and(|code| code == 0) {
                eprintln!("forebay run: not all of {} is staged out", value.display());
                is_all = false;
            }
        }
        is_all
    }
}

/// Input and output are the command's own.
fn quietly() -> [Stdio; 2] {
    [Stdio::null(), Stdio::from(std::io::stderr())]
}

fn plan(value: &OsStr, way: Way, roots: &[PathBuf]) -> Result<Plan> {
    let bytes = value.as_bytes();
    let split = bytes.iter().rposition(|&byte| byte == b':').map(|at| bytes.split_at(at));
    let Some((source @ [_, ..], [_, into @ ..])) = split.filter(|(_, into)| into.len() > 1) else {
        let text = format!("not SOURCE:DIRECTORY: {}", value.display());
        return Err(Failure::with_code(USAGE, text));
    };
    let [source, into] = [source, into].map(|part| Path::new(OsStr::from_bytes(part)));
    Plan::new(way, &[&source.to_owned()], into, Vec::new(), roots)
}
