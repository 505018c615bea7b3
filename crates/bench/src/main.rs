//! `forebay-bench`: measures file systems side by side, in one run.
//!
//! The conductor (`conduct`) has a crew (`crew`) of worker processes (`worker`) work on each file
//! system in turn, so that repetitions are interleaved and slow drifts of the machine meet all
//! alike. A worker uses `std::fs` only; on an instance it is started by `forebay run` and needs
//! no other word. Programs that are found on `PATH` (`fio`, `mdtest`, `ior`) are driven by `external`
//! and `io500`; `profile` counts instructions. `remote` and `scaling` measure instances over several
//! hosts, which are emulated (`hosts`, `quota`), `remote` beside plain sockets (`socket`), as does
//! `two_mounts` with mounts.
//!
//! `report` makes the tables and the JSON file: medians of what was measured, with the extremes; `bars`
//! sets some of them beside what they have to reach. `history` keeps a line for each run, `plot` draws
//! it.

#![forbid(unsafe_code)]

mod settings;

mod conduct;
mod crew;
mod external;
mod instance;
mod interrupt;
mod io500;
mod profile;
mod quiet;
mod worker;

mod hosts;
mod quota;
mod remote;
mod scaling;
mod socket;
mod two_mounts;

mod bars;
mod history;
mod plot;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.first().map(String::as_str) {
        Some("worker") => worker::main(&words[1..]).map(|()| true),
        Some("plot") => plot::main(&words[1..]).map(|()| true),
        Some("serve") => socket::main(&words[1..]).map(|()| true),
        Some("repeat") => worker::repeat::main(&words[1..]).map(|()| true),
        Some("--help" | "-h") => {
            println!("{}", settings::HELP);
            Ok(true)
        }
        _ => settings::Settings::parse(&words).and_then(|settings| conduct::main(&settings)),
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
