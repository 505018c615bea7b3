//! `forebayd`: connects the cores to threads, clocks, sockets and devices.
//!
//! Threads, each with one loop:
//!
//! | thread | module | owns |
//! |---|---|---|
//! | main | `sessions::acceptor` | the Unix socket, sessions, signals, the processes of the host |
//! | worker 0 .. W | `threads::worker` | a `metadata::Service`, its log and its index |
//! | worker 0 | `target` | also the `data::Target` |
//! | d0w0 .. | `threads::successor` | a `metadata::Service` that this daemon took over, and its log |
//! | net | `threads::peers` | connections to other daemons; runs idle workers; `host::leases` |
//! | bulk 0 .. | `threads::bulk_endpoint` | streams to and from other daemons, for bytes of files |
//! | fabric | `threads::bulk_endpoint` | the same by libfabric, if the instance uses it |
//! | prepare | `target::space::prepare` | nothing: provisions space on devices, which is slow |
//! | demote | `target::tiering::demotion` | nothing: copies extents to and from the SSD |
//! | lend | `target::tiering::lending` | `data::tiering::lending_policy`: measures idle memory |
//! | give-back | `target::tiering::lending` | nothing: releases blocks of the arena to the system |
//! | activity | `host::activity` | sums of what the processes of the host count |
//! | liveness | `host::liveness` | nothing: compares start times of processes, which may take long |
//! | answer | `host::activity` | nothing: writes one answer on what jobs did |
//! | measure | `startup::probe` | nothing: measures the speed of the target once, and ends |
//! | shares | `shares::dispatcher` | `qos::scheduler`: requests that wait for their share or limit |
//! | members | `members::driver` | a `cluster::Node`, in an instance with failure domains |
//! | units | `units` | a `replicas::node::Node` and its log, in an instance with copies of files |
//! | places | `shares::resolver` | nothing: finds the directories of files for rules |
//! | qos-answer | `shares::answering` | nothing: answers one command on rules |
//! | backing 0 .. | `backing` | nothing: reads the backing store, if there is one |
//!
//! Between threads: the workers' inboxes (`shared::inbox`), `net::Sender`, by which any thread sends to
//! other daemons, and the slots of sessions, into which any thread may put a reply. A request of a
//! session takes the path gateway -> shard or target -> effects, performed in order, the reply last.
//!
//! A failed assertion ends the process: the state that matters survives in shared memory and in the
//! log, and clients attach to the daemon that is started in its place.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

mod backing;
mod host;
mod members;
mod sessions;
mod shard;
mod shared;
mod shares;
mod startup;
mod target;
mod threads;
mod units;

use background::log_file::report_error;
use config::process::{CheckExtent, EXIT_DAMAGED, Invocation};
use startup::settings::Settings;
use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(Some((settings, None))) => settings,
        Ok(Some((settings, Some(extent)))) => return check(&settings, extent),
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            report_error("forebayd: ", &error);
            return ExitCode::from(2);
        }
    };
    background::log_file::begin(settings.instance.log, &settings.run);
    end_on_panic();
    shm::faults::report();
    match startup::run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            if error.is_damage() { ExitCode::from(EXIT_DAMAGED) } else { ExitCode::FAILURE }
        }
    }
}

/// Prints what the files of the daemon hold.
fn check(settings: &Settings, extent: CheckExtent) -> ExitCode {
    let checked = startup::check(settings, extent).map_err(|error| error.to_string());
    let line = checked
        .and_then(|check| serde_json::to_string(&check).map_err(|error| error.to_string()))
        .and_then(|line| writeln!(std::io::stdout(), "{line}").map_err(|error| error.to_string()));
    match line {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error("", &error);
            ExitCode::FAILURE
        }
    }
}

/// The settings that the command line names; `None`: it asked for a line of text, which is printed.
fn settings() -> Result<Option<(Settings, Option<CheckExtent>)>, String> {
    let line = match Invocation::parse(std::env::args_os().skip(1))? {
        Invocation::Run(launch) => {
            let settings = Settings::read(&launch.config, launch.ready_fd)?;
            return Ok(Some((settings, launch.check)));
        }
        Invocation::Version => format!("forebayd {}", env!("CARGO_PKG_VERSION")),
        Invocation::Help => {
            "forebayd --config FILE [--ready-fd N | --check logs|all]: 'forebay start' \
                             and 'forebay check' run it"
                .into()
        }
    };
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(None)
}

/// A thread that panics would leave the others waiting for it.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("assertion failed, the daemon aborts: {info}");
        std::process::abort();
    }));
}
