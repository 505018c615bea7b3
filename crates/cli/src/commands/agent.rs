//! Hidden commands: what `forebay start` and `stop` run on other hosts, and how a daemon begins.
//!
//! `daemon-start`, `daemon-peers`, `daemon-mount`, `daemon-lend`, `daemon-flush`,
//! `daemon-noted` and `daemon-stop` read one JSON value from standard input and answer with one line:
//! `{"host":..}`, `{"lent":..}` or
//! `{"error":TEXT}`.

use crate::failure::{Failure, Result};
use crate::host;
use crate::lend::{self, Order};
use crate::mounts::{self, Rights, Wish};
use crate::progress::Progress;
use crate::records::{Answer, Job};
use crate::{directories, history, spawn, writeback};
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

/// Longest work that is read.
const WORK_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct PeersWork {
    name: String,
    peers: String,
}

#[derive(Deserialize)]
struct MountWork {
    name: String,
    at: PathBuf,
    rights: Rights,
    requests: String,
    patience: u64,
}

#[derive(Deserialize)]
struct LendWork {
    name: String,
    /// `None`: only to look.
    orders: Option<Vec<Order>>,
    patience: u64,
}

#[derive(Deserialize)]
struct NotedWork {
    name: String,
    index: u16,
    from: u64,
}

#[derive(Deserialize)]
struct FlushWork {
    name: String,
    patience: u64,
    /// In hexadecimal; none: all.
    paths: Vec<String>,
}

#[derive(Deserialize)]
struct StopWork {
    name: String,
    patience: u64,
}

pub(super) fn commands() -> Vec<Command> {
    let words = Arg::new("words")
        .num_args(1..)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .value_parser(clap::value_parser!(OsString));
    let names = [
        "daemon-start",
        "daemon-peers",
        "daemon-mount",
        "daemon-lend",
        "daemon-flush",
        "daemon-noted",
        "daemon-stop",
    ];
    let mut all: Vec<_> = names
        .map(|name| Command::new(name).hide(true).about("Work for this host on standard input"))
        .into();
    all.push(Command::new("daemon-exec").hide(true).about("Become a daemon").arg(words));
    all
}

/// Becomes a daemon; comes back only with a failure.
pub(super) fn exec(given: &ArgMatches) -> Result<u8> {
    let words: Vec<&OsString> = given.get_many("words").into_iter().flatten().collect();
    Err(spawn::become_daemon(&words))
}

/// Does the work on standard input.
pub(super) fn run(name: &str) -> Result<u8> {
    let answer =
        work(name).unwrap_or_else(|failure| Some(Answer::Error(failure.text().to_owned())));
    let line = answer.map_or_else(|| Ok("{}".to_owned()), |answer| serde_json::to_string(&answer));
    outln!("{}", line.unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}")));
    Ok(0)
}

fn read<T: DeserializeOwned>() -> Result<T> {
    let mut text = String::new();
    let wrong = |error: String| Failure::at("work makes no sense", "standard input", error);
    let input = std::io::stdin().lock().take(WORK_BYTES_MAX).read_to_string(&mut text);
    input.map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}

/// A name from outside is a path from outside.
fn checked(name: String) -> Result<String> {
    let is_name = config::parse::is_name(&name);
    is_name.then_some(name).ok_or_else(|| Failure::new("work makes no sense: it has no name"))
}

fn work(name: &str) -> Result<Option<Answer>> {
    let mut quiet = Progress::new("");
    match name {
        "daemon-start" => {
            let mut job: Job = read()?;
            job.name = checked(job.name)?;
            host::start(&job, &mut quiet).map(|host| Some(Answer::Host(Box::new(host))))
        }
        "daemon-peers" => {
            let work: PeersWork = read()?;
            host::peers(&checked(work.name)?, &work.peers).map(|()| None)
        }
        "daemon-mount" => {
            let work: MountWork = read()?;
            let at = mounts::place(&work.at)?;
            let (rights, requests) = (work.rights, work.requests);
            let wish = Wish { at, rights, requests, while_held: None };
            let patience = Duration::from_micros(work.patience);
            mounts::ensure(&checked(work.name)?, &wish, patience, &mut quiet).map(|()| None)
        }
        "daemon-lend" => {
            let work: LendWork = read()?;
            let (name, patience) = (checked(work.name)?, Duration::from_micros(work.patience));
            let lent = match work.orders {
                Some(orders) => lend::carry_out(&name, &orders, patience, &mut quiet),
                None => lend::look(&name, patience),
            };
            lent.map(|lent| Some(Answer::Lent(lent)))
        }
        "daemon-flush" => {
            let work: FlushWork = read()?;
            let run = directories::run(&checked(work.name)?)?;
            let patience = Duration::from_micros(work.patience);
            writeback::flush(&run, &work.paths, patience, &mut quiet).map(|_| None)
        }
        "daemon-noted" => {
            let work: NotedWork = read()?;
            let text = history::noted(&checked(work.name)?, work.index, work.from)?;
            Ok(Some(Answer::Noted(text)))
        }
        _ => {
            let work: StopWork = read()?;
            let patience = Duration::from_micros(work.patience);
            host::stop(&checked(work.name)?, patience, &mut quiet).map(|()| None)
        }
    }
}
