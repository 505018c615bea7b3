//! `forebay balance`: how the load of an instance is shared by its metadata services, and whether they
//! move for it.

use crate::command_line::{with_json, with_settings};
use crate::commands::{plural, print_json, table};
use crate::failure::Result;
use crate::instance::cluster::{self, Balance, Moved, ServicePlace, ServiceRow, Steering};
use crate::instance::inspect::{DaemonReport, query_time};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::{Key, Settings};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  forebay balance                        show daemons and metadata services with their loads
  forebay balance now                    exchange services now where that makes the load more even
  forebay balance on                     do that by itself from now on
  forebay balance off

Each metadata service is at its home, one daemon, and returns there after a death. A service of a busy
daemon and one of a daemon with less to do exchange their homes when the load of the busy one falls by a
tenth at least. So each daemon keeps its number of services. The load is the number of operations per
second that the daemons carry out; what programs look up in the memory of their own host does not count.
Off at first: a service that has moved is used by messages from then on, also by programs of the host on
which it was, which takes longer than in the memory of that host. Turn it on where programs of many hosts
work in directories of few. The first service of each daemon never moves while that daemon stays, and a
service that moved rests for ten seconds; 'now' does not wait for that. The setting lasts as long as the
instance. That needs --followers 1 or more on two or more hosts. 'now', 'on' and 'off' are given on the
host on which the instance was started.";

const WORD: &str = "what";

pub(crate) fn command() -> Command {
    let command = Command::new("balance").about("Share the load of metadata services evenly");
    let command = with_settings(command.after_long_help(EXAMPLES), &[Key::Name, Key::Timeout]);
    let word = Arg::new(WORD).value_name("WHAT").value_parser(["now", "on", "off"]);
    with_json(command).arg(word.help("now, on or off; without a word: show the loads"))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let (name, is_json) = (settings.word(Key::Name), given.get_flag("json"));
    let steering = match given.get_one::<String>(WORD).map(String::as_str) {
        None => return show(&settings, is_json),
        Some("now") => Steering::Now,
        Some("on") => Steering::On,
        Some(_) => Steering::Off,
    };
    let moved = cluster::steer(name, steering, settings.timeout())?;
    match (steering, is_json) {
        (Steering::Now, true) => print_json(&json!({ "name": name, "moved": moved_json(&moved) })),
        (Steering::Now, false) => print_moved(name, &moved),
        (steering, true) => print_json(&json!({ "name": name, "on": steering == Steering::On })),
        (Steering::On, false) => outln!("instance {name}: metadata services move for an even load"),
        (Steering::Off, false) => outln!("instance {name}: metadata services stay where they are"),
    }
    Ok(0)
}

fn moved_json(moved: &[Moved]) -> Value {
    let one = |it: &Moved| json!({ "service": it.service, "from": it.from, "to": it.to });
    moved.iter().map(one).collect()
}

fn print_moved(name: &str, moved: &[Moved]) {
    for Moved { service, from, to } in moved {
        outln!("service {service}: daemon {from} -> daemon {to}");
    }
    match moved.len() as u64 {
        0 => outln!(
            "instance {name}: no exchange of metadata services would make the load more even"
        ),
        count => outln!("instance {name}: {} moved", plural(count, "metadata service")),
    }
}

fn show(settings: &Settings, is_json: bool) -> Result<u8> {
    let name = settings.word(Key::Name);
    let (balance, daemons) = cluster::balance(name, query_time(settings))?;
    if is_json {
        print_json(&balance_json(name, &balance, &daemons));
        return Ok(0);
    }
    out_as_is!("{}\n{}", table(&daemon_rows(&balance, &daemons)), table(&service_rows(&balance)));
    outln!("");
    outln!("{}", summary(&balance));
    Ok(0)
}

/// Number of services that a daemon owns, and their load.
fn owned(balance: &Balance, daemon: u16) -> (u64, u64) {
    let owned = balance.services.iter().filter(|row| row.owner == Some(daemon));
    owned.fold((0, 0), |(count, load), row| (count + 1, load + row.load.unwrap_or(0)))
}

fn daemon_rows(balance: &Balance, daemons: &[DaemonReport]) -> Vec<Vec<String>> {
    let mut rows = vec![["DAEMON", "HOST", "SERVICES", "OPS/S"].map(str::to_owned).to_vec()];
    for report in daemons {
        let (daemon, host) = (report.daemon.index, report.host.clone());
        let (count, load) = owned(balance, daemon);
        rows.push(vec![daemon.to_string(), host, count.to_string(), load.to_string()]);
    }
    rows
}

fn service_rows(balance: &Balance) -> Vec<Vec<String>> {
    let heading = ["SERVICE", "OWNER", "FIRST OWNER", "OPS/S", "STATE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for row in &balance.services {
        let ServiceRow { service, owner, first, load, .. } = row;
        let or_dash = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        let owner = or_dash(owner.map(|it| it.to_string()));
        let load = or_dash(load.map(|it| it.to_string()));
        rows.push(vec![service.to_string(), owner, first.to_string(), load, state(row)]);
    }
    rows
}

fn state(row: &ServiceRow) -> String {
    match row.place {
        ServicePlace::Lost => "no daemon has it".to_owned(),
        ServicePlace::Going(next) => format!("moves to daemon {next}"),
        ServicePlace::Away => format!("returns to daemon {}", row.home),
        ServicePlace::Rests => "rests after a move".to_owned(),
        ServicePlace::Would(partner) => format!("could exchange places with service {partner}"),
        ServicePlace::Stays => "stays, the first of its daemon".to_owned(),
        ServicePlace::Home => "-".to_owned(),
    }
}

fn summary(balance: &Balance) -> String {
    let going = balance.to_move;
    let word = if balance.is_on { "on" } else { "off" };
    let mut summary = format!("balancing is {word}");
    if going > 0 {
        summary += &format!("; {} on the way to other daemons", plural(going, "service"));
    }
    match balance.plan.len() as u64 {
        0 => summary += "; no exchange would make the load more even",
        count => summary += &format!("; 'forebay balance now' makes {}", plural(count, "exchange")),
    }
    summary
}

fn balance_json(name: &str, balance: &Balance, daemons: &[DaemonReport]) -> Value {
    let daemon = |report: &DaemonReport| {
        let index = report.daemon.index;
        let (services, load) = owned(balance, index);
        json!({
            "daemon": index, "host": report.host, "alive": report.is_alive(), "services": services,
            "operations_per_second": load,
        })
    };
    let service = |row: &ServiceRow| {
        let (word, to) = match row.place {
            ServicePlace::Lost => ("lost", None),
            ServicePlace::Going(next) => ("moves", Some(next)),
            ServicePlace::Away => ("returns", Some(row.home)),
            ServicePlace::Rests => ("rests", None),
            ServicePlace::Would(_) => ("could move", None),
            ServicePlace::Stays => ("stays", None),
            ServicePlace::Home => ("home", None),
        };
        json!({
            "service": row.service, "owner": row.owner, "first_owner": row.first, "home": row.home,
            "operations_per_second": row.load, "state": word, "to": to,
        })
    };
    let exchange = |&(hot, cool): &(u32, u32)| json!({ "service": hot, "with": cool });
    json!({
        "name": name,
        "on": balance.is_on,
        "to_move": balance.to_move,
        "daemons": daemons.iter().map(daemon).collect::<Vec<_>>(),
        "services": balance.services.iter().map(service).collect::<Vec<_>>(),
        "exchanges": balance.plan.iter().map(exchange).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::records::DaemonRecord;

    #[test]
    fn one_of_three_words_is_given_or_none() {
        let parsed = |words: &[&str]| {
            let given = command().try_get_matches_from([&["balance"], words].concat());
            given.map(|it| it.get_one::<String>(WORD).cloned())
        };
        assert_eq!(parsed(&[]).expect("shows"), None);
        for word in ["now", "on", "off"] {
            assert_eq!(parsed(&[word, "--name", "x"]).expect("a word").as_deref(), Some(word));
        }
        assert!(parsed(&["sometimes"]).is_err() && parsed(&["on", "off"]).is_err());
    }

    fn balance() -> Balance {
        let row = |(service, owner, load, place)| {
            let first = (service % 2) as u16;
            ServiceRow { service, owner, first, home: first, load, place }
        };
        let rows = [
            (0, Some(0), Some(10), ServicePlace::Stays),
            (1, Some(1), None, ServicePlace::Stays),
            (2, Some(0), Some(700), ServicePlace::Would(3)),
            (3, Some(1), Some(4), ServicePlace::Would(2)),
            (4, Some(1), Some(0), ServicePlace::Away),
            (5, None, None, ServicePlace::Lost),
        ];
        let services = rows.map(row).to_vec();
        Balance { is_on: true, to_move: 1, services, plan: vec![(2, 3)] }
    }

    fn daemons() -> Vec<DaemonReport> {
        let report = |index, host: &str| {
            let (domain, daemon) = (String::new(), DaemonRecord::unknown(index));
            DaemonReport { host: host.to_owned(), domain, daemon, state: None }
        };
        vec![report(0, "a"), report(1, "b")]
    }

    #[test]
    fn loads_are_shown_by_daemon_and_by_service() {
        let (balance, daemons) = (balance(), daemons());
        let rows = table(&daemon_rows(&balance, &daemons));
        assert_eq!(
            rows,
            "DAEMON  HOST  SERVICES  OPS/S\n0       a     2         710\n1       b     3         4\n"
        );
        let rows = table(&service_rows(&balance));
        let lines: Vec<&str> = rows.lines().skip(1).collect();
        let ends = [
            "10     stays, the first of its daemon",
            "-      stays, the first of its daemon",
            "700    could exchange places with service 3",
            "4      could exchange places with service 2",
            "0      returns to daemon 0",
            "-      no daemon has it",
        ];
        assert!(lines.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{rows}");
        let line = "balancing is on; 1 service on the way to other daemons; 'forebay balance now' makes \
                    1 exchange";
        assert_eq!(summary(&balance), line);
        let still = Balance { is_on: false, to_move: 0, services: Vec::new(), plan: Vec::new() };
        assert_eq!(summary(&still), "balancing is off; no exchange would make the load more even");
    }

    #[test]
    fn programs_read_the_same() {
        let json = balance_json("x", &balance(), &daemons());
        assert_eq!((&json["on"], &json["to_move"]), (&true.into(), &1.into()));
        assert_eq!(json["daemons"][0]["operations_per_second"], 710);
        let service = &json["services"][4];
        assert_eq!((&service["state"], &service["to"]), (&"returns".into(), &0.into()));
        assert_eq!(json["exchanges"][0], json!({ "service": 2, "with": 3 }));
        let moved = moved_json(&[Moved { service: 2, from: 0, to: 1 }]);
        assert_eq!(moved, json!([{ "service": 2, "from": 0, "to": 1 }]));
    }
}
