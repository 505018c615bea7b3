//! `forebayd`: drives the cores with the real world.
//!
//! Threads, one loop each:
//!
//! | thread | module | owns |
//! |---|---|---|
//! | main | `acceptor` | the Unix socket, sessions, signals, the processes of the host |
//! | worker 0 .. W | `worker` | a `metadata::Service`, its log and its index |
//! | worker 0 | `target` | also the `data::Target` |
//! | net | `peers` | connections to other daemons; runs a worker that nobody runs right now; `leases` |
//! | bulk 0 .. | `bulk` | streams to and from other daemons, for bytes of files |
//! | fabric | `bulk` | the same by libfabric, if the instance is set so |
//! | prepare | `prepare` | nothing: makes devices hold space, which takes long |
//! | sink | `sink` | nothing: copies pieces to the SSD |
//! | lend | `lend` | `data::lending`: looks how much memory is idle |
//! | give-back | `lend` | nothing: gives blocks of the arena back to the system |
//! | below 0 .. | `below` | nothing: reads the backing directory, if there is one |
//!
//! Between threads: the workers' inboxes (`inbox`), `net::Sender`, by which any thread sends to other
//! daemons, and the slots of sessions, into which any thread may put a reply. A request that comes
//! from a session goes gateway -> shard or target -> effects, performed in their order, the reply
//! last.
//!
//! A broken assertion ends the process: what counts outlives it in shared memory and in the log,
//! and clients attach again to the one that is started in its place.
#![forbid(unsafe_code)]

mod settings;

mod startup;

mod memory;

mod recover;

mod shared;

mod inbox;

mod leases;
mod sizes;

mod reply;

mod worker;

mod shard;

mod posted;

mod clock;
mod jobs;
mod removals;

mod target;

mod early;

mod accounts;

mod alone;

mod room;
mod untold;

mod below;

mod prepare;

mod clean;

mod history;

mod sink;

mod rise;

mod idle;
mod lend;

mod peers;

mod abroad;
mod bulk;

mod acceptor;

mod greeting;

mod status;

mod thresholds;

mod open;

mod origins;
mod reaper;
mod releases;

use settings::Settings;
use std::process::ExitCode;

fn main() -> ExitCode {
    let settings = match Settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("forebayd: {error}");
            return ExitCode::from(2);
        }
    };
    log_to_stderr();
    end_on_panic();
    match startup::run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The starter makes standard error the log file. `FOREBAY_LOG` is a level: error .. trace.
fn log_to_stderr() {
    let level = std::env::var("FOREBAY_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing::Level::INFO))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
}

/// A thread that panicked would leave the others waiting for it.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("a broken assertion ends the daemon: {info}");
        std::process::abort();
    }));
}
