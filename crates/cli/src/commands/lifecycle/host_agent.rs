//! Hidden commands that `forebay` runs on other hosts, and the start of a daemon process.
//!
//! `daemon-start`, `daemon-peers`, `daemon-mount`, `daemon-share`, `daemon-lend`, `daemon-flush`,
//! `daemon-profile`, `daemon-status`, `daemon-activity`, `daemon-check`, `daemon-repair`, `daemon-lost`,
//! `daemon-losses`, `daemon-gone`, `daemon-add` and `daemon-stop` read one JSON value from standard input
//! and answer with one line: `{"host":..}`, `{"memory":..}`, `{"profile":..}`, `{"status":..}`,
//! `{"activity":..}`, `{"check":..}`, `{"stopped":..}`, `{"aware":..}`, `{"lost":..}`, `{}` or
//! `{"error":TEXT}`.
//! `daemon-exec` becomes a daemon.

use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::host::{self, StopPhase};
use crate::instance::inspect;
use crate::instance::jobs;
use crate::instance::lend::{self, AllowanceRequest};
use crate::instance::mounts::shared::{self, SharedMountRequest};
use crate::instance::mounts::{self, MountNamespace, MountRequest, MountRights};
use crate::instance::profile;
use crate::instance::rescue::{self, Daemons, RepairPart};
use crate::instance::writeback;
use crate::process::progress::Progress;
use crate::process::spawn;
use crate::state::directories;
use crate::state::records::{HostReply, HostStartRequest, InstanceRecord};
use clap::{Arg, ArgMatches, Command};
use config::process::CheckExtent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

/// Largest request that is read.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct PeersRequest {
    name: String,
    peers: String,
    /// Its hosts, without their daemons.
    hosts: Option<InstanceRecord>,
}

#[derive(Deserialize)]
struct HostMountRequest {
    name: String,
    at: PathBuf,
    rights: MountRights,
    requests: String,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct HostShareRequest {
    name: String,
    at: PathBuf,
    requests: String,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct LendRequest {
    name: String,
    /// `None`: only reports the memory.
    requests: Option<Vec<AllowanceRequest>>,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct ProfileRequest {
    name: String,
    index: u16,
    from: u64,
}

#[derive(Deserialize)]
struct FlushRequest {
    name: String,
    timeout_us: u64,
    /// Paths from the root, in hexadecimal; empty: everything.
    paths: Vec<String>,
}

#[derive(Deserialize)]
struct StatusRequest {
    name: String,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct ActivityRequest {
    name: String,
    /// `None`: all jobs in short.
    job: Option<String>,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct CheckRequest {
    name: String,
    /// First daemon of the host.
    first: u16,
    /// All data is read, not only the logs.
    reads_all: bool,
    /// The daemons end before.
    ends: bool,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct AddRequest {
    name: String,
    /// The daemon that is added.
    daemon: u16,
    /// Its failure domain.
    domain: u16,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct GoneRequest {
    name: String,
    /// First daemon of the host that is gone.
    host: u16,
    round: u16,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct LeaveRequest {
    name: String,
    /// The daemon that is to leave.
    daemon: u16,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct BalanceRequest {
    name: String,
    /// As behind `wire::welcome::BALANCE_MAGIC`.
    word: u32,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct LostRequest {
    name: String,
    /// First daemon of the host.
    first: u16,
    timeout_us: u64,
}

#[derive(Deserialize)]
struct StopRequest {
    name: String,
    /// First daemon of the host.
    first: u16,
    phase: StopPhase,
    timeout_us: u64,
}

pub(crate) fn commands() -> Vec<Command> {
    let words = Arg::new("words")
        .num_args(1..)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .value_parser(clap::value_parser!(OsString));
    let names = [
        "daemon-start",
        "daemon-peers",
        "daemon-mount",
        "daemon-share",
        "daemon-lend",
        "daemon-flush",
        "daemon-profile",
        "daemon-status",
        "daemon-check",
        "daemon-repair",
        "daemon-activity",
        "daemon-lost",
        "daemon-losses",
        "daemon-gone",
        "daemon-add",
        "daemon-idle",
        "daemon-leave",
        "daemon-balance",
        "daemon-stop",
    ];
    let mut all: Vec<_> = names
        .map(|name| Command::new(name).hide(true).about("Carry out a request on standard input"))
        .into();
    all.push(Command::new("daemon-exec").hide(true).about("Become a daemon").arg(words));
    all
}

/// Becomes a daemon; returns only with a failure.
pub(crate) fn exec(given: &ArgMatches) -> Result<u8> {
    let words: Vec<&OsString> = given.get_many("words").into_iter().flatten().collect();
    Err(spawn::become_daemon(&words))
}

/// Carries out the request on standard input.
pub(crate) fn run(name: &str) -> Result<u8> {
    let reply =
        carry_out(name).unwrap_or_else(|failure| Some(HostReply::Error(failure.text().to_owned())));
    let line = reply.map_or_else(|| Ok("{}".to_owned()), |reply| serde_json::to_string(&reply));
    out_as_is!("{}\n", line.unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}")));
    Ok(0)
}

fn read<T: DeserializeOwned>() -> Result<T> {
    let mut text = String::new();
    let invalid = |error: String| Failure::at("invalid request", "standard input", error);
    let input = std::io::stdin().lock().take(REQUEST_BYTES_MAX).read_to_string(&mut text);
    input.map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
}

/// Checks an instance's name that comes from another host and becomes part of paths here.
fn checked(name: String) -> Result<String> {
    let is_name = config::parse::is_name(&name);
    is_name.then_some(name).ok_or_else(|| Failure::new("invalid request: no valid instance name"))
}

fn check_files() -> Result<HostReply> {
    let request: CheckRequest = read()?;
    let extent = if request.reads_all { CheckExtent::All } else { CheckExtent::Logs };
    let daemons = if request.ends { Daemons::End } else { Daemons::Run };
    let (name, timeout) = (checked(request.name)?, Duration::from_micros(request.timeout_us));
    rescue::check_here(&name, request.first, extent, daemons, timeout).map(HostReply::Check)
}

fn take_repair() -> Result<()> {
    let mut part: RepairPart = read()?;
    part.name = checked(part.name)?;
    rescue::take_part(&part)
}

fn carry_out(name: &str) -> Result<Option<HostReply>> {
    let mut quiet = Progress::new("");
    match name {
        "daemon-start" => {
            let mut request: HostStartRequest = read()?;
            request.name = checked(request.name)?;
            host::start(&request, &mut quiet).map(|host| Some(HostReply::Host(Box::new(host))))
        }
        "daemon-peers" => {
            let request: PeersRequest = read()?;
            let (name, hosts) = (checked(request.name)?, request.hosts);
            host::peers(&name, &request.peers, hosts.as_ref()).map(|()| None)
        }
        "daemon-mount" => {
            let request: HostMountRequest = read()?;
            let at = mounts::place(&request.at)?;
            let timeout = Duration::from_micros(request.timeout_us);
            let (rights, requests) = (request.rights, request.requests);
            let mount = MountRequest { at, rights, requests, namespace: MountNamespace::Current };
            mounts::ensure(&checked(request.name)?, &mount, timeout, &mut quiet).map(|()| None)
        }
        "daemon-share" => share().map(|()| None),
        "daemon-lend" => {
            let request: LendRequest = read()?;
            let timeout = Duration::from_micros(request.timeout_us);
            let name = checked(request.name)?;
            let memory = match request.requests {
                Some(requests) => lend::apply(&name, &requests, timeout, &mut quiet),
                None => lend::poll(&name, timeout),
            };
            memory.map(|memory| Some(HostReply::Memory(memory)))
        }
        "daemon-flush" => {
            let request: FlushRequest = read()?;
            let run = directories::run(&checked(request.name)?)?;
            let timeout = Duration::from_micros(request.timeout_us);
            let report = writeback::flush_here(&run, &request.paths, timeout, &mut quiet)?;
            Ok(Some(HostReply::Flushed(Box::new(report))))
        }
        "daemon-profile" => {
            let request: ProfileRequest = read()?;
            let text = profile::recorded(&checked(request.name)?, request.index, request.from)?;
            Ok(Some(HostReply::Profile(text)))
        }
        "daemon-status" => {
            let request: StatusRequest = read()?;
            let timeout = Duration::from_micros(request.timeout_us);
            inspect::here(&checked(request.name)?, timeout).map(HostReply::Status).map(Some)
        }
        "daemon-activity" => activity().map(Some),
        "daemon-check" => check_files().map(Some),
        "daemon-repair" => take_repair().map(|()| None),
        "daemon-lost" => give_up().map(|()| None),
        "daemon-losses" => losses().map(Some),
        "daemon-gone" => tell_gone().map(Some),
        "daemon-add" => add_daemon().map(|()| None),
        "daemon-idle" => idle().map(|()| None),
        "daemon-leave" => leave_daemon().map(|()| None),
        "daemon-balance" => steer_balance().map(|()| None),
        _ => {
            let request: StopRequest = read()?;
            let timeout = Duration::from_micros(request.timeout_us);
            let StopRequest { name, first, phase, .. } = request;
            let usage = host::stop(&checked(name)?, first, phase, timeout, &mut quiet)?;
            Ok(Some(HostReply::Stopped(usage)))
        }
    }
}

fn share() -> Result<()> {
    let HostShareRequest { name, at, requests, timeout_us } = read()?;
    let (name, timeout) = (checked(name)?, Duration::from_micros(timeout_us));
    shared::prepare(SharedMountRequest { name, at, requests, timeout }).map(drop)
}

fn give_up() -> Result<()> {
    let LostRequest { name, first, timeout_us } = read()?;
    host::give_up(&checked(name)?, first, Duration::from_micros(timeout_us))
}

fn tell_gone() -> Result<HostReply> {
    let GoneRequest { name, host, round, timeout_us } = read()?;
    let timeout = Duration::from_micros(timeout_us);
    inspect::tell_gone(&checked(name)?, (host, round), timeout).map(HostReply::Aware)
}

fn add_daemon() -> Result<()> {
    let AddRequest { name, daemon, domain, timeout_us } = read()?;
    let timeout = Duration::from_micros(timeout_us);
    inspect::add_daemon(&checked(name)?, (daemon, domain), timeout)
}

fn losses() -> Result<HostReply> {
    let request: StatusRequest = read()?;
    let timeout = Duration::from_micros(request.timeout_us);
    cluster::lost_here(&checked(request.name)?, timeout).map(HostReply::Lost)
}

fn idle() -> Result<()> {
    let request: StatusRequest = read()?;
    let timeout = Duration::from_micros(request.timeout_us);
    cluster::idle_here(&checked(request.name)?, timeout)
}

fn leave_daemon() -> Result<()> {
    let LeaveRequest { name, daemon, timeout_us } = read()?;
    inspect::leave_daemon(&checked(name)?, daemon, Duration::from_micros(timeout_us))
}

fn steer_balance() -> Result<()> {
    let BalanceRequest { name, word, timeout_us } = read()?;
    inspect::steer_balance(&checked(name)?, word, Duration::from_micros(timeout_us))
}

fn activity() -> Result<HostReply> {
    let request: ActivityRequest = read()?;
    let timeout = Duration::from_micros(request.timeout_us);
    jobs::here(&checked(request.name)?, request.job.as_deref(), timeout).map(HostReply::Activity)
}
