//! Five hosts, and an instance on them with one copy of all data and of its metadata, or with two: what a
//! program sees while a host dies, or two, what the second copy costs where the network is the limit, and
//! how fast a lost one is made anew.
//!
//! A death takes a host's link, its daemon, and the daemon's memory and files. Programs run on the first
//! host, which lives; loads are those of `worker::steady`, which compare what they read. Each row has an
//! instance of its own in each repetition.

use crate::environment::hosts::{CopyState, HostDeath, Hosts};
use crate::measure::loads::{SteadyCount, SteadyRun, await_that};
use crate::measure::workers::{WorkerArgs, Workers};
use crate::measure::{interrupt, programs, quiet};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use crate::suites::remote;
use crate::worker::steady::BLOCK_BYTES;
use std::time::{Duration, Instant};

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "replicas";
/// One copy, and no followers: the defaults.
pub(crate) const ONE: &str = "one";
/// Two copies, and a follower.
pub(crate) const TWO: &str = "two";
/// The same with `--remote-writes behind`.
pub(crate) const BEHIND: &str = "behind";
/// The writer beside which data is copied anew, before that.
pub(crate) const ALONE: &str = "alone";
/// Processes that write and read over links that are the limit.
pub(crate) const STREAMS: u32 = 4;
/// The part of a writer's link that is left to it while its host copies at its rate.
pub(crate) const PART_LEFT: f64 =
    1.0 - REFILL_RATE_MIB as f64 * MIB / (REFILL_LINK_MBIT as f64 * 1e6 / 8.0);

const HOSTS: usize = 5;
/// The host that dies, and another one that dies with it: of five voters three are left.
const DEAD: usize = 4;
const DEAD_TOO: usize = 3;
const SETTINGS_OF_TWO: [(&str, &str); 3] =
    [("FOREBAY_DOMAINS", "auto"), ("FOREBAY_FOLLOWERS", "1"), ("FOREBAY_REPLICAS", "2")];
/// The link of a host where the network is the limit: as in the group `shares`.
const LINK_MBIT: u64 = 200;
/// The link of a host while data is copied anew: the copying takes a third of it.
const REFILL_LINK_MBIT: u64 = 400;
/// Maximum that a daemon copies, in MiB per second.
const REFILL_RATE_MIB: u64 = 16;
/// Of so many times `--megabytes`: 4 GiB by default.
const REFILL_FACTOR: u64 = 64;
/// Shortest file of a load: so many stripes that some are at each daemon.
const FILE_MIB_MIN: u64 = 16;
/// So short that blocks of a file are at each daemon, and at each pair.
const STRIPE: &str = "256KiB";
const MIB: f64 = (1 << 20) as f64;
/// `--timeout` of an instance of which hosts die: a start on a busy machine takes less.
const TIMEOUT: &str = "10s";
/// Shortest time after a death where bytes are gone: calls for them may take the timeout.
const GONE_TIME_MIN: Duration = Duration::from_secs(12);

/// Longest waits: until everything has its copies after a start, and until everything is copied anew.
const IN_SYNC_MAX: Duration = Duration::from_secs(60);
const REFILL_MAX: Duration = Duration::from_secs(600);

/// Measures all rows, in at most three repetitions.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let hosts =
        (Hosts::new(&settings.forebay, "e", HOSTS)?, hosts_with_links(settings, LINK_MBIT)?);
    let (mut hosts, mut limited) = match hosts {
        (Ok(hosts), Ok(limited)) => (hosts, limited),
        (Err(why), _) | (_, Err(why)) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    for repetition in 0..settings.repetitions.min(3) {
        eprintln!("replicas, repetition {}", repetition + 1);
        for number in 0..2 {
            let way = [ONE, TWO][(number + repetition as usize) % 2];
            for load in ["write", "read", "names"] {
                let outcome = one_death(settings, &mut hosts, (way, load), report);
                note_failure(outcome, &mut hosts, &format!("death, {load}, {way}"), report)?;
            }
            let outcome = limited_links(settings, &mut limited, way, report);
            note_failure(outcome, &mut limited, &format!("limited links, {way}"), report)?;
        }
        for way in [ONE, TWO, BEHIND] {
            let outcome = bursts(settings, &mut hosts, way, report);
            note_failure(outcome, &mut hosts, &format!("bursts, {way}"), report)?;
        }
        let outcome = two_deaths(settings, &mut hosts, report);
        note_failure(outcome, &mut hosts, "two deaths", report)?;
        let outcome = refill(settings, report);
        note_failure(outcome, &mut hosts, "copying anew", report)?;
    }
    report.note(
        GROUP,
        "'one' is the default, one copy and no follower; bytes of a dead host are errors there, after \
         --timeout. 'two' is --replicas 2 --followers 1. Rows in ms are the longest call",
    );
    Ok(())
}

/// Records a failure and ends the instance that it left, so that other rows are measured all the same.
fn note_failure(
    outcome: Result<(), String>,
    hosts: &mut Hosts,
    what: &str,
    report: &mut Report,
) -> Result<(), String> {
    if let Err(text) = outcome {
        interrupt::check()?;
        report.failed("forebay", format!("{GROUP}: {what}: {text}"));
        // It may not run at all.
        let _ = hosts.stop();
    }
    Ok(())
}

/// Hosts that send at most so many Mbit/s.
fn hosts_with_links(settings: &Settings, mbit: u64) -> Result<Result<Hosts, &'static str>, String> {
    match Hosts::new(&settings.forebay, "l", HOSTS)? {
        Ok(hosts) => Ok(hosts.throttle(mbit)?.map(|()| hosts)),
        Err(why) => Ok(Err(why)),
    }
}

/// Starts an instance and waits until everything has its copies.
fn start(hosts: &mut Hosts, way: &str, more: &[(&str, &str)]) -> Result<(), String> {
    let mut all = more.to_vec();
    if way != ONE {
        all.extend(SETTINGS_OF_TWO);
    }
    if way == BEHIND {
        all.push(("FOREBAY_REMOTE_WRITES", "behind"));
    }
    hosts.start(&all)?;
    if way == ONE {
        return Ok(());
    }
    await_that("all copies are in sync", IN_SYNC_MAX, || {
        let copies = hosts.copies()?;
        Ok(copies.daemons == HOSTS && copies.units_short == 0 && hosts.are_followed(1)?)
    })
}

/// The operations of a load in the time after deaths.
fn after_deaths(
    time: Duration,
    load: &mut SteadyRun,
    deaths: &[HostDeath],
) -> Result<SteadyCount, String> {
    let before = load.count()?;
    deaths.iter().try_for_each(HostDeath::happen)?;
    std::thread::sleep(time);
    interrupt::check()?;
    let after = load.count()?;
    Ok(SteadyCount { errors: after.errors - before.errors, ..after })
}

/// MiB of the file of a load.
fn file_mib(settings: &Settings) -> u64 {
    settings.megabytes.max(FILE_MIB_MIN)
}

/// The longest call, and the errors, of a load while a host dies.
fn one_death(
    settings: &Settings,
    hosts: &mut Hosts,
    (way, kind): (&str, &str),
    report: &mut Report,
) -> Result<(), String> {
    let memory = format!("{}MiB", 4 * file_mib(settings));
    let more = [
        ("FOREBAY_MEMORY", memory.as_str()),
        ("FOREBAY_TIMEOUT", TIMEOUT),
        ("FOREBAY_STRIPE_SIZE", STRIPE),
    ];
    start(hosts, way, &more)?;
    let path = match kind {
        // Names that the host which dies serves.
        "names" => remote::directory_on(hosts, DEAD)?,
        _ => format!("/forebay/{kind}"),
    };
    quiet::settle();
    // One thread of names.
    let number = if kind == "names" { 1 } else { file_mib(settings) };
    let through = hosts.system(remote::LOCAL_HOST).through;
    let mut load = SteadyRun::start(&through, kind, &path, number)?;
    let time = Duration::from_secs(settings.seconds);
    let time = if way == ONE { time.max(GONE_TIME_MIN) } else { time };
    let count = after_deaths(time, &mut load, &[hosts.death(DEAD)?])?;
    add(report, &format!("death-{kind}"), 1, "ms", way, count.longest_ms);
    add(report, &format!("death-{kind}-errors"), 1, "calls", way, count.errors);
    load.end()?;
    hosts.stop()
}

/// The longest read that ended with an error after two hosts died at a time: of bytes that have no copy.
fn two_deaths(settings: &Settings, hosts: &mut Hosts, report: &mut Report) -> Result<(), String> {
    let memory = format!("{}MiB", 4 * file_mib(settings));
    let more = [
        ("FOREBAY_MEMORY", memory.as_str()),
        ("FOREBAY_TIMEOUT", TIMEOUT),
        ("FOREBAY_STRIPE_SIZE", STRIPE),
    ];
    start(hosts, TWO, &more)?;
    quiet::settle();
    let through = hosts.system(remote::LOCAL_HOST).through;
    let mut load = SteadyRun::start(&through, "read", "/forebay/gone", file_mib(settings))?;
    let deaths = [hosts.death(DEAD)?, hosts.death(DEAD_TOO)?];
    let time = Duration::from_secs(settings.seconds).max(GONE_TIME_MIN);
    let count = after_deaths(time, &mut load, &deaths)?;
    if count.errors == 0.0 {
        return Err("two dead hosts have no bytes in common, or no read ended".into());
    }
    add(report, "gone-read", 1, "ms", TWO, count.longest_failed_ms);
    load.end()?;
    hosts.stop()
}

/// Bytes to and from all hosts, over links that are the limit.
fn limited_links(
    settings: &Settings,
    hosts: &mut Hosts,
    way: &str,
    report: &mut Report,
) -> Result<(), String> {
    let memory = format!("{}MiB", 4 * file_mib(settings));
    start(hosts, way, &[("FOREBAY_MEMORY", &memory)])?;
    quiet::settle();
    let worker_args = WorkerArgs {
        through: hosts.system(remote::LOCAL_HOST).through,
        group: "once".into(),
        directory: "/forebay/limited".into(),
        index: 0,
        processes: STREAMS,
        files: settings.files,
        megabytes: settings.megabytes.div_ceil(u64::from(STREAMS)),
    };
    Workers::start(&worker_args.for_each_worker(STREAMS))?.work(|phase| {
        add(report, &phase.name, STREAMS, phase.unit, way, phase.rate);
    })?;
    hosts.stop()
}

/// Bursts of writes to a file whose first copy is on the program's own host.
fn bursts(
    settings: &Settings,
    hosts: &mut Hosts,
    way: &str,
    report: &mut Report,
) -> Result<(), String> {
    let memory = format!("{}MiB", 4 * file_mib(settings));
    start(hosts, way, &[("FOREBAY_MEMORY", &memory), ("FOREBAY_PLACEMENT", "local")])?;
    quiet::settle();
    let worker_args = WorkerArgs {
        through: hosts.system(remote::LOCAL_HOST).through,
        group: "bursts".into(),
        directory: "/forebay/bursts".into(),
        index: 0,
        processes: 1,
        files: settings.files,
        megabytes: file_mib(settings),
    };
    Workers::start(&worker_args.for_each_worker(1))?.work(|phase| {
        add(report, &phase.name, 1, phase.unit, way, phase.rate);
    })?;
    hosts.stop()
}

/// The host that has the first copy of a long file dies: how fast the others copy it anew, of what they
/// may, and what a writer beside them loses.
fn refill(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = Hosts::new(&settings.forebay, "m", HOSTS)??;
    let megabytes = settings.megabytes * REFILL_FACTOR;
    let (memory, rate) =
        (format!("{}MiB", megabytes / 4 * 5 + 128), format!("{REFILL_RATE_MIB}MiB"));
    let more = [
        ("FOREBAY_MEMORY", memory.as_str()),
        ("FOREBAY_TIERING_RATE", rate.as_str()),
        ("FOREBAY_PLACEMENT", "local"),
    ];
    start(&mut hosts, TWO, &more)?;
    let mut fill = programs::command(&hosts.system(DEAD).through, "dd");
    let count = format!("count={megabytes}");
    fill.args(["if=/dev/zero", "of=/forebay/long", "bs=1M", &count, "status=none"]);
    programs::output(&mut fill, "dd")?;
    hosts.throttle(REFILL_LINK_MBIT)??;
    let through = hosts.system(remote::LOCAL_HOST).through;
    let mut load = SteadyRun::start(&through, "write", "/forebay/beside", file_mib(settings))?;
    quiet::settle();
    let begun = load.count()?;
    std::thread::sleep(Duration::from_secs(settings.seconds));
    let alone = load.count()?;
    let (death, before) = (hosts.death(DEAD)?, hosts.copies()?);
    death.happen()?;
    let died = Instant::now();
    let is_begun = |copies: &CopyState| copies.bytes_filled > before.bytes_filled;
    await_that("copying has begun", REFILL_MAX, || Ok(is_begun(&hosts.copies()?)))?;
    let first = load.count()?;
    let mut copies = before;
    await_that("everything is copied anew", REFILL_MAX, || {
        copies = hosts.copies()?;
        Ok(copies.daemons == HOSTS - 1 && copies.units_short == 0 && is_begun(&copies))
    })?;
    let seconds = died.elapsed().as_secs_f64();
    let last = load.count()?;
    let copied = (copies.bytes_filled - before.bytes_filled) as f64 / MIB / seconds;
    add(report, "refill", 1, "MiB/s", TWO, copied);
    add(
        report,
        "refill-part",
        1,
        "part",
        TWO,
        copied / ((HOSTS as u64 - 1) * REFILL_RATE_MIB) as f64,
    );
    add(report, "write-beside", 1, "MiB/s", ALONE, rate_mib(begun, alone));
    add(report, "write-beside", 1, "MiB/s", TWO, rate_mib(first, last));
    load.end()?;
    hosts.stop()
}

/// MiB per second of a load between two counts.
fn rate_mib(begin: SteadyCount, end: SteadyCount) -> f64 {
    end.rate_since(&begin) * BLOCK_BYTES as f64 / MIB
}

fn add(
    report: &mut Report,
    test: &str,
    processes: u32,
    unit: &'static str,
    system: &str,
    value: f64,
) {
    report.add(Key { group: GROUP.into(), test: test.into(), processes, unit }, system, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(operations: f64, seconds: f64) -> SteadyCount {
        SteadyCount { operations, seconds, ..SteadyCount::default() }
    }

    #[test]
    fn a_rate_is_of_the_blocks_between_two_counts() {
        assert!((rate_mib(count(10.0, 2.0), count(40.0, 4.0)) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn copying_leaves_a_writer_the_rest_of_its_link() {
        // 16 MiB/s of 50 MB/s.
        assert!((PART_LEFT - 0.664).abs() < 0.001, "{PART_LEFT}");
    }
}
