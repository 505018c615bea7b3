//! Three hosts, and an instance on them whose metadata services have no follower, or one: what a
//! follower costs a program that creates files in a directory of its own host.
//!
//! Each way gets an instance of its own in each repetition. A socket between two of the hosts says what a
//! round trip takes, in which the cost of `--metadata-sync always` is given.

use crate::environment::hosts::Hosts;
use crate::measure::interrupt;
use crate::measure::quiet;
use crate::measure::workers::{WorkerArgs, Workers};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use crate::suites::remote::{self, LOCAL_HOST, Server};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "followers";
/// Without followers.
pub(crate) const NONE: &str = "none";
/// One follower; only syncs wait for it.
pub(crate) const BATCH: &str = "batch";
/// One follower, for which each change waits.
pub(crate) const ALWAYS: &str = "always";

const HOSTS: usize = 3;

/// Maximum time until all services have a follower in sync.
const IN_SYNC_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Operations whose change a follower gets.
const CHANGES: [&str; 2] = ["create", "unlink"];

/// The ways, each with its settings.
const WAYS: [(&str, &[(&str, &str)]); 3] = [
    (NONE, &[]),
    (BATCH, &[("FOREBAY_FOLLOWERS", "1"), ("FOREBAY_METADATA_SYNC", "batch")]),
    (ALWAYS, &[("FOREBAY_FOLLOWERS", "1"), ("FOREBAY_METADATA_SYNC", "always")]),
];

/// Measures all rows; the order of the ways changes with the repetition.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = match Hosts::new(&settings.forebay, "f", HOSTS)? {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    let server = Server::start(&hosts)?;
    for repetition in 0..settings.repetitions {
        let mut round_trip = 0.0;
        quiet::settle();
        let worker_args = WorkerArgs {
            through: hosts.through(LOCAL_HOST),
            group: "round-trips".into(),
            directory: server.address.clone(),
            index: 0,
            processes: 1,
            files: settings.files,
            megabytes: settings.megabytes,
        };
        Workers::start(std::slice::from_ref(&worker_args))?
            .work(|phase| round_trip = 1.0 / phase.rate)?;
        add(report, "round-trip", "us", "socket", round_trip * 1e6);
        let mut seconds = BTreeMap::new();
        for number in 0..WAYS.len() {
            let (way, ways_settings) = WAYS[(number + repetition as usize) % WAYS.len()];
            start(&mut hosts, ways_settings)?;
            let directory = remote::directory_on(&hosts, LOCAL_HOST)?;
            quiet::settle();
            let worker_args = WorkerArgs {
                through: hosts.system(LOCAL_HOST).through,
                group: "remote-metadata".into(),
                directory: format!("{directory}/work"),
                ..worker_args.clone()
            };
            Workers::start(&[worker_args])?.work(|phase| {
                seconds.insert((way, phase.name.clone()), 1.0 / phase.rate);
                add(report, &phase.name, phase.unit, way, phase.rate);
            })?;
            hosts.stop()?;
        }
        for change in CHANGES {
            let of = |way| seconds.get(&(way, change.to_owned()));
            if let (Some(without), Some(with)) = (of(NONE), of(ALWAYS)) {
                let more = (with - without) / round_trip;
                add(report, &format!("{change}-more"), "trips", ALWAYS, more);
            }
        }
    }
    Ok(())
}

/// Starts an instance and waits until all services have the followers of its settings.
fn start(hosts: &mut Hosts, ways_settings: &[(&str, &str)]) -> Result<(), String> {
    let mut all = vec![("FOREBAY_DOMAINS", "auto"), ("FOREBAY_MEMORY", "256MiB")];
    all.extend(ways_settings);
    hosts.start(&all)?;
    let begun = Instant::now();
    let followers = usize::from(!ways_settings.is_empty());
    while !hosts.are_followed(followers)? {
        interrupt::check()?;
        if begun.elapsed() > IN_SYNC_MAX {
            return Err("followers do not become in sync".into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn add(report: &mut Report, test: &str, unit: &'static str, system: &str, value: f64) {
    let key = Key { group: GROUP.into(), test: test.into(), processes: 1, unit };
    report.add(key, system, value);
}
