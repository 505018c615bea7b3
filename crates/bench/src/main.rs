//! `forebay-bench`: measures file systems side by side, in one run.
//!
//! `runner` lets worker processes (`worker`, started by `measure::workers`) work on each file system in
//! turn, so that repetitions are interleaved and slow drifts of the machine affect all alike. A worker
//! uses `std::fs` only; on an instance it is started by `forebay run` and needs no other setup.
//!
//! `suites::{external, io500}` drive third-party programs that are on `PATH` (`fio`, `mdtest`, `ior`);
//! `suites::profile` counts instructions. `suites::{remote, scaling, shares, two_mounts, followers,
//! replicas, growth}` measure instances on several hosts, which `environment` emulates; plain sockets
//! (`suites::socket`) are the reference for `remote` and `two_mounts`.
//!
//! `results::report` formats the tables and the JSON file: medians and extremes. `results::targets`
//! compares some of the medians with the performance targets. `results::history` keeps one line per
//! run, `results::plot` draws it.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program: tables and progress")]

mod environment;
mod measure;
mod results;
mod runner;
mod settings;
mod suites;
mod worker;

use std::process::ExitCode;
use suites::socket;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.first().map(String::as_str) {
        Some("worker") => worker::main(&words[1..]).map(|()| true),
        Some("plot") => results::plot::main(&words[1..]).map(|()| true),
        Some("load") => worker::load::main(&words[1..]).map(|()| true),
        Some("steady") => worker::steady::main(&words[1..]).map(|()| true),
        Some("kept") => worker::steady::kept_main(&words[1..]).map(|()| true),
        Some("serve") => socket::main(&words[1..]).map(|()| true),
        Some("repeat") => worker::repeat::main(&words[1..]).map(|()| true),
        Some("--help" | "-h") => {
            println!("{}", settings::HELP);
            Ok(true)
        }
        _ => settings::Settings::parse(&words).and_then(|settings| runner::main(&settings)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("forebay-bench: {text}");
            ExitCode::from(2)
        }
    }
}
