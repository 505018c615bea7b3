//! `forebay dashboard`: an instance on one page, live, in a browser.

use super::top::interval;
use crate::command_line::{with_name, with_settings};
use crate::dashboard::{DashboardOptions, serve};
use crate::failure::Result;
use crate::instance::exposition;
use crate::instance::inspect::query_time;
use crate::state::history::HistoryPlace;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command, value_parser};
use config::Key;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay dashboard a              prints the address of a page about the instance 'a'
  forebay dashboard --port 8321    at this port, for a tunnel: 'ssh -L 8321:localhost:8321 HOST' from
                                   your desk, then open the address

The page shows the state of the instance, its nodes over time, jobs with their files and advice, movement
of data, placement, damage and events, as 'status --json', 'top' and 'report' have them. It needs no
network but its own connection, and changes nothing of the instance. While it runs, the instance is
recorded as 'forebay monitor' does it, and the page shows the past. Its address has a random token,
without which nothing is shown; it is printed once. Ctrl-C ends it.

Prometheus gets its metrics at /metrics, with the token as the credentials of 'authorization'.";

const KEYS: [Key; 5] =
    [Key::Name, Key::Timeout, Key::MonitorDb, Key::MonitorKeep, Key::MonitorSize];

pub(crate) fn command() -> Command {
    let address = Arg::new("address")
        .long("address")
        .value_name("ADDRESS")
        .value_parser(value_parser!(IpAddr))
        .default_value("127.0.0.1")
        .help("Address of this host at which it listens; what it sends is not encrypted");
    let port = Arg::new("port")
        .long("port")
        .value_name("PORT")
        .value_parser(value_parser!(u16))
        .default_value("0")
        .help("Port at which it listens; 0: any that is free");
    let token = Arg::new("token-file")
        .long("token-file")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .help(
            "File of mode 600 with the token, which is made if there is none; default: a new token",
        );
    let interval = Arg::new("interval")
        .long("interval")
        .value_name("TIME")
        .default_value("1s")
        .help("Time between looks at the instance, from 100ms to 1h");
    let command = Command::new("dashboard").about("Show an instance on a page in a browser, live");
    let command = command.after_long_help(EXAMPLES).arg(address).arg(port).arg(token);
    let command = command.arg(exposition::top_jobs_option()).arg(interval);
    with_name(with_settings(command, &KEYS))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let options = DashboardOptions {
        address: given.get_one("address").copied().unwrap_or(local),
        port: given.get_one("port").copied().unwrap_or(0),
        interval: interval(given)?,
        timeout: query_time(&settings),
        token_file: given.get_one("token-file").cloned(),
        top_jobs: exposition::top_jobs(given),
    };
    if !options.address.is_loopback() {
        errln!(
            "forebay dashboard: {} is no loopback address: others on the network can read what it \
             sends, and its token",
            options.address
        );
    }
    serve(settings.word(Key::Name), options, HistoryPlace::of(&settings)?)?;
    Ok(0)
}
