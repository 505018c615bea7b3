//! The command `forebay`: starts an instance, runs programs on it, and stops it without a trace.
//!
//! Reading order: the command line (`command_line`), the commands (`commands`), an instance on one
//! host and on all hosts (`instance`), copying of files (`stage`), the live views (`top`,
//! `dashboard`), records and directories (`state`), processes and other hosts (`process`). Not
//! here: the daemons (crate `daemon`) and the library that programs load (crate `preload`).
//!
//! *Invariant:* this program never maps an instance's shared memory, and signals no process whose
//! start time it has not compared.
#![forbid(unsafe_code)]

/// Prints to standard output as it is: for text of this program with styles, and for files of the
/// user. A closed pipe (`forebay status | head`) is not an error.
macro_rules! out_as_is {
    ($($part:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout().lock(), format_args!($($part)*));
    }};
}

/// Prints to standard output, with characters escaped that act on a terminal.
macro_rules! out {
    ($($part:tt)*) => {
        out_as_is!("{}", config::printable::printable_lines(&format!($($part)*)))
    };
}

/// `out!` with a newline.
macro_rules! outln {
    ($($part:tt)*) => { out!("{}\n", format_args!($($part)*)) };
}

/// Prints to standard error as it is. Nobody may read there any more (`forebay run ... 2>&1 | head`).
macro_rules! err_as_is {
    ($($part:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr().lock(), format_args!($($part)*));
    }};
}

/// Prints to standard error, as `out!`.
macro_rules! err {
    ($($part:tt)*) => {
        err_as_is!("{}", config::printable::printable_lines(&format!($($part)*)))
    };
}

/// `err!` with a newline.
macro_rules! errln {
    ($($part:tt)*) => { err!("{}\n", format_args!($($part)*)) };
}

mod command_line;

mod failure;

mod commands;

mod instance;

mod stage;

mod top;

mod dashboard;

mod state;

mod process;

use anstyle::{AnsiColor, Style};
use clap::ArgMatches;
use config::printable::printable;
use std::io::Write;
use std::process::ExitCode;

/// The command's name in an error, on a terminal.
const ERROR: Style = AnsiColor::Red.on_default().bold();

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let matches = match command_line::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // As if the arguments had been given as they may be shown.
            let shown: Vec<String> = words.iter().map(|it| printable(it).into_owned()).collect();
            let error = match shown == words {
                true => error,
                false => {
                    command_line::command().try_get_matches_from(&shown).err().unwrap_or(error)
                }
            };
            return refuse(command_line::with_tip(error, &shown), &shown);
        }
    };
    let Some((name, given)) = matches.subcommand() else { return ExitCode::from(2) };
    match commands::dispatch(name, given) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // `stage-worker` is an internal part of `stage`.
            let shown = name.strip_suffix("-worker").unwrap_or(name);
            let text = failure.text();
            let _ = writeln!(anstream::stderr(), "{ERROR}forebay {shown}:{ERROR:#} {text}");
            if is_json(given) {
                print_error(failure.text());
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Prints the help, or the error of a command line, and returns the exit code.
fn refuse(error: clap::Error, words: &[String]) -> ExitCode {
    let mut before_command = words.iter().take_while(|word| *word != "--");
    if error.use_stderr() && before_command.any(|word| word == "--json") {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        print_error(line.strip_prefix("error: ").unwrap_or(line));
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::USAGE))
}

fn print_error(text: &str) {
    commands::print_json(&serde_json::json!({ "error": text }));
}

/// True if the command, or the part of it that was called, has the option `--json`.
fn is_json(given: &ArgMatches) -> bool {
    given.try_get_one::<bool>("json").ok().flatten() == Some(&true)
        || given.subcommand().is_some_and(|(_, part)| is_json(part))
}
