//! The command `forebay`: starts an instance, runs programs on it, stops it without a trace.
//!
//! Reading order: what can be said (`command_line`, `settings`), where things are (`directories`,
//! `records`), one host's daemons (`host`), all hosts (`instance`, `remote`), the commands. Not
//! here: what daemons do (crate `daemon`), what programs see (crate `preload`).
//!
//! *Invariant:* this program never touches an instance's shared memory, and signals no process
//! whose start time it did not compare.
#![forbid(unsafe_code)]

/// Prints to standard output. A reader that is gone (`forebay status | head`) is no failure.
macro_rules! out {
    ($($part:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout().lock(), format_args!($($part)*));
    }};
}

/// `out!` with a line's end.
macro_rules! outln {
    ($($part:tt)*) => { out!("{}\n", format_args!($($part)*)) };
}

mod command_line;

mod failure;

mod settings;

mod directories;

mod records;

mod process;

mod resources;

mod spawn;

mod host;

mod hosts;

mod remote;

mod instance;

mod mounts;

mod program;

mod progress;

mod query;

mod history;

mod lend;

mod job_group;

mod stage;

mod writeback;

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = command_line::command().get_matches();
    let Some((name, given)) = matches.subcommand() else { return ExitCode::from(2) };
    match commands::run(name, given) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // For people it is one command.
            let shown = name.strip_suffix("-worker").unwrap_or(name);
            eprintln!("forebay {shown}: {}", failure.text());
            if given.try_get_one::<bool>("json").ok().flatten() == Some(&true) {
                outln!("{}", serde_json::json!({ "error": failure.text() }));
            }
            ExitCode::from(failure.code())
        }
    }
}
