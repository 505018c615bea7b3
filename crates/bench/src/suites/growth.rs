//! An instance that grows and shrinks while programs use it, on hosts with a share of a processor each.
//!
//! From four hosts to eight, and back (`doubled`): what eight services do that are at eight hosts, beside
//! the same services at four; the longest calls while services and copies move; and whether all names and
//! bytes are there at the end. And a host that serves all that is asked for, until another one takes half
//! of its services over (`relieved`, ONFS Fig. 20).
//!
//! Programs work in directories of other hosts, so that each operation is a message to a service, before
//! and after: a service that has moved is served by messages, also for its own host, while one that has
//! not is used in shared memory there. Beside local operations before, growth would seem to cost what it
//! takes to leave shared memory.
//!
//! Rates are measured under the share, in windows before and after. While services move there is no
//! share, and fewer programs run: the longest calls are then those of the move, and not the pauses of a
//! host that has used up its share.

use crate::environment::hosts::Hosts;
use crate::environment::quota::CpuShare;
use crate::measure::loads::{SteadyCount, SteadyRun, await_that};
use crate::measure::{interrupt, programs};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use crate::worker::steady::BLOCK_BYTES;
use std::time::{Duration, Instant};

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "growth";
/// Hosts before the growth, and after it.
pub(crate) const FOUR: &str = "four";
pub(crate) const EIGHT: &str = "eight";
/// A host that serves everything, and that host with another one that has half of it.
pub(crate) const HOT: &str = "hot";
pub(crate) const HALVED: &str = "halved";
/// Whole runs.
pub(crate) const RUN: &str = "run";

const HOSTS_BEFORE: usize = 4;
const HOSTS_AFTER: usize = 8;
/// The host that serves everything. Programs run on the one before it, which has no share.
const HOT_HOST: usize = 1;
/// Hosts beside a hot one: as many again, so that each of them has one service less.
const HOSTS_HOT: usize = 2;
const HOSTS_RELIEVED: usize = 4;

/// Two services for each host of the beginning, of which one stays.
const WORKERS: usize = 2;
/// A tenth of a CPU, in short periods: the pauses of hosts add up where a request passes several. All of
/// a host is on one processor, so that none of its share is left on another.
const SHARE: CpuShare = CpuShare { quota_micros: 2_000, period_micros: 20_000 };
/// Programs of a host that work on names, and their threads: with fewer requests under way a host would
/// pause while all of them wait for others.
const PROGRAMS: usize = 2;
const THREADS: u64 = 48;
/// The same on the one host that asks a hot one.
const PROGRAMS_HOT: usize = 4;

/// So short that the blocks of a file are at each daemon.
const STRIPE: &str = "256KiB";
const MEMORY: &str = "256MiB";
/// Shortest and longest file of a program, in MiB: all of them fit into four hosts with two copies.
const FILE_MIB_MIN: u64 = 4;
const FILE_MIB_MAX: u64 = 16;
const MIB: f64 = (1 << 20) as f64;
/// For calls of programs, and for commands while nothing moves.
const TIMEOUT: &str = "60s";
/// Longest waits: until all has its copies after a start, and until all has moved.
const IN_SYNC_MAX: Duration = Duration::from_secs(60);
const MOVED_MAX: Duration = Duration::from_secs(300);
/// Part of `--seconds` that a window lasts.
const WINDOW_PART: u64 = 2;
/// A window begins when the queues of hosts are as they stay.
const WINDOW_SETTLE: Duration = Duration::from_secs(1);
/// Directories that are tried until each service has one.
const DIRECTORIES_MAX: usize = 256;
/// Programs go on for this time after everything has moved.
const GO_ON: Duration = Duration::from_secs(1);

/// Measures both, in at most three repetitions.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let hosts = match Hosts::new(&settings.forebay, "g", HOSTS_AFTER)? {
        Ok(hosts) => hosts.with_quotas(),
        Err(why) => Err(why),
    };
    let mut hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    for repetition in 0..settings.repetitions.min(3) {
        eprintln!("growth, repetition {}", repetition + 1);
        let outcome = relieved(settings, &mut hosts, report);
        note_failure(outcome, &mut hosts, "a hot host", report)?;
        let outcome = doubled(settings, &mut hosts, report);
        note_failure(outcome, &mut hosts, "from four hosts to eight", report)?;
    }
    report.note(
        GROUP,
        "each host has a tenth of a CPU in windows, and none while services move. Programs work in \
         directories of other hosts. Rows in ms are the longest call",
    );
    Ok(())
}

/// Records a failure and ends the instance that it left, so that the other half is measured all the same.
fn note_failure(
    outcome: Result<(), String>,
    hosts: &mut Hosts,
    what: &str,
    report: &mut Report,
) -> Result<(), String> {
    if let Err(text) = outcome {
        interrupt::check()?;
        report.failed("forebay", format!("{GROUP}: {what}: {text}"));
        hosts.unlimit()?;
        // It may not run at all.
        let _ = hosts.stop();
    }
    Ok(())
}

/// Starts an instance on the first hosts, with a follower of each service and so many copies of data.
fn start(hosts: &mut Hosts, count: usize, replicas: &str) -> Result<(), String> {
    let workers = WORKERS.to_string();
    hosts.start_on(
        count,
        &[
            ("FOREBAY_DOMAINS", "auto"),
            ("FOREBAY_FOLLOWERS", "1"),
            ("FOREBAY_REPLICAS", replicas),
            ("FOREBAY_WORKERS", &workers),
            ("FOREBAY_MEMORY", MEMORY),
            ("FOREBAY_STRIPE_SIZE", STRIPE),
            ("FOREBAY_TIMEOUT", TIMEOUT),
        ],
    )?;
    await_that("all copies are in sync", IN_SYNC_MAX, || {
        Ok(hosts.are_followed(1)? && has_all_copies(hosts, count)?)
    })
}

fn has_all_copies(hosts: &Hosts, count: usize) -> Result<bool, String> {
    let copies = hosts.copies()?;
    Ok(copies.daemons == count && copies.units_short == 0)
}

/// A directory of each metadata service, by number: directories of the root are given to them in turn,
/// and what is in a directory is at the same service.
fn directories(hosts: &Hosts) -> Result<Vec<String>, String> {
    let services = hosts.services()?.owners.len();
    let mut found = vec![None; services];
    for number in 0..DIRECTORIES_MAX {
        let directory = format!("/forebay/d{number}");
        let probe = format!("{directory}/probe");
        shell(hosts, &format!("mkdir {directory} && : >{probe}"))?;
        if let Some(place) = found.get_mut(hosts.service_of(&probe)?) {
            place.get_or_insert(directory);
        }
        if let Some(all) = found.iter().cloned().collect() {
            return Ok(all);
        }
    }
    Err(format!("services without a directory: {found:?}"))
}

/// Output of a shell on the first host.
fn shell(hosts: &Hosts, script: &str) -> Result<String, String> {
    let mut command = programs::command(&hosts.preloaded(0), "sh");
    programs::output(command.args(["-c", script]), "sh")
}

/// Makes a directory for programs of a host in those of some services, and names them as loads do.
fn directories_for(hosts: &Hosts, host: usize, of: &[&String]) -> Result<String, String> {
    let own: Vec<String> = of.iter().map(|directory| format!("{directory}/h{host}")).collect();
    shell(hosts, &format!("mkdir -p {}", own.join(" ")))?;
    Ok(own.join(","))
}

/// Programs that run at a time.
#[derive(Default)]
struct RunningLoads {
    names: Vec<SteadyRun>,
    blocks: Vec<SteadyRun>,
}

/// Files and failed calls of programs that ended.
#[derive(Clone, Copy, Default)]
struct LoadsEnd {
    kept: f64,
    errors: f64,
}

/// The longest calls of programs while something happened, and the time until it was over.
struct Happened {
    seconds: f64,
    names_ms: f64,
    blocks_ms: f64,
}

impl RunningLoads {
    /// Starts `programs` programs on a host that work on names, once they are counted.
    fn add_names(
        &mut self,
        hosts: &Hosts,
        (host, programs): (usize, usize),
        directories: &str,
        threads: u64,
    ) -> Result<(), String> {
        for _ in 0..programs {
            let through = hosts.preloaded(host);
            self.names.push(SteadyRun::prepare(&through, "files", directories, threads)?);
        }
        Ok(())
    }

    /// Starts a program on a host that writes or reads a file, once it is counted.
    fn add_blocks(
        &mut self,
        hosts: &Hosts,
        host: usize,
        (kind, name): (&str, &str),
        settings: &Settings,
    ) -> Result<(), String> {
        let path = format!("/forebay/blocks/{name}");
        let mib = (settings.megabytes / 8).clamp(FILE_MIB_MIN, FILE_MIB_MAX);
        self.blocks.push(SteadyRun::prepare(&hosts.preloaded(host), kind, &path, mib)?);
        Ok(())
    }

    /// The operations of the programs so far, on names and on blocks.
    fn counts(&mut self) -> Result<[Vec<SteadyCount>; 2], String> {
        let of = |all: &mut [SteadyRun]| -> Result<Vec<SteadyCount>, String> {
            all.iter_mut().map(SteadyRun::count).collect()
        };
        Ok([of(&mut self.names)?, of(&mut self.blocks)?])
    }

    /// Operations on names per second, MiB per second, and the part of their share that the hosts from
    /// `first` to `end` used.
    fn rates(
        &mut self,
        settings: &Settings,
        hosts: &Hosts,
        (first, end): (usize, usize),
    ) -> Result<[f64; 3], String> {
        hosts.limit_from(first, SHARE)?;
        // They begin: before, they would take the machine from those that are started after them.
        self.counts()?;
        std::thread::sleep(WINDOW_SETTLE);
        let (begun, used) = (Instant::now(), hosts.used_from(first));
        let before = self.counts()?;
        std::thread::sleep(Duration::from_secs(settings.seconds.div_ceil(WINDOW_PART)));
        interrupt::check()?;
        let after = self.counts()?;
        let (seconds, used) = (begun.elapsed().as_secs_f64(), hosts.used_from(first) - used);
        hosts.unlimit()?;
        let rate = |kind: usize| -> f64 {
            let pairs = before[kind].iter().zip(&after[kind]);
            pairs.map(|(before, after)| after.rate_since(before)).sum()
        };
        let blocks_mib = rate(1) * BLOCK_BYTES as f64 / MIB;
        let share = SHARE.processors() * (end - first) as f64 * seconds;
        Ok([rate(0), blocks_mib, used / share])
    }

    /// The longest calls while `happen` lasts, and until everything is as it should be then.
    fn while_it(
        &mut self,
        hosts: &mut Hosts,
        happen: impl FnOnce(&mut Hosts) -> Result<(), String>,
        mut is_over: impl FnMut(&Hosts) -> Result<bool, String>,
    ) -> Result<Happened, String> {
        // They begin, and the longest calls of the start are none of it.
        self.counts()?;
        std::thread::sleep(WINDOW_SETTLE);
        self.counts()?;
        let begun = Instant::now();
        happen(hosts)?;
        await_that("everything has moved", MOVED_MAX, || is_over(hosts))?;
        let seconds = begun.elapsed().as_secs_f64();
        std::thread::sleep(GO_ON);
        let [names, blocks] = self.counts()?;
        Ok(Happened { seconds, names_ms: longest_ms(&names), blocks_ms: longest_ms(&blocks) })
    }

    /// Ends all programs: each compares what it wrote.
    fn end(self) -> Result<LoadsEnd, String> {
        let mut end = LoadsEnd::default();
        for run in self.names.into_iter().chain(self.blocks) {
            end = end.and(run.end()?);
        }
        Ok(end)
    }
}

impl LoadsEnd {
    fn and(self, count: SteadyCount) -> LoadsEnd {
        LoadsEnd { kept: self.kept + count.kept, errors: self.errors + count.errors }
    }

    fn plus(self, other: LoadsEnd) -> LoadsEnd {
        LoadsEnd { kept: self.kept + other.kept, errors: self.errors + other.errors }
    }
}

fn longest_ms(counts: &[SteadyCount]) -> f64 {
    counts.iter().map(|count| count.longest_ms).fold(0.0, f64::max)
}

/// From four hosts to eight, and back.
struct Doubled<'a> {
    settings: &'a Settings,
    /// A directory of each service, by number.
    directories: Vec<String>,
    /// The host that owned each service in the beginning.
    owners: Vec<Option<usize>>,
}

impl Doubled<'_> {
    /// The directories in which programs of a host work: so that as many programs ask each service, and
    /// none on the service's own host.
    fn directories_of(&self, hosts: &Hosts, host: usize) -> Result<String, String> {
        let owners = hosts.services()?.owners;
        let places = asked_by(host, &self.owners, &owners);
        let of: Vec<&String> = places.iter().map(|&place| &self.directories[place]).collect();
        directories_for(hosts, host, &of)
    }

    /// The rates of programs on the first `count` hosts: on each of them some that work on names, and
    /// one that writes.
    fn window(
        &self,
        hosts: &Hosts,
        count: usize,
        system: &str,
        report: &mut Report,
    ) -> Result<LoadsEnd, String> {
        let mut loads = RunningLoads::default();
        for host in 0..count {
            let directories = self.directories_of(hosts, host)?;
            loads.add_names(hosts, (host, PROGRAMS), &directories, THREADS)?;
            loads.add_blocks(hosts, host, ("write", &format!("{system}-{host}")), self.settings)?;
        }
        let [names, blocks, used] = loads.rates(self.settings, hosts, (0, count))?;
        add(report, "names", "/s", system, names);
        add(report, "write-beside", "MiB/s", system, blocks);
        add(report, "share-used", "part", system, used);
        loads.end()
    }

    /// Programs on the hosts that stay: on each one that works on names; one that writes a file and
    /// compares it at the end, and one that reads and compares another one all the time.
    fn few(&self, hosts: &Hosts, name: &str) -> Result<RunningLoads, String> {
        let mut loads = RunningLoads::default();
        for host in 0..HOSTS_BEFORE {
            loads.add_names(hosts, (host, 1), &self.directories_of(hosts, host)?, 1)?;
        }
        loads.add_blocks(hosts, 0, ("write", &format!("{name}-written")), self.settings)?;
        loads.add_blocks(hosts, 1, ("read", &format!("{name}-read")), self.settings)?;
        Ok(loads)
    }
}

/// The services, by number, that programs of a host ask. Each host leaves out two: one of the beginning
/// those that it had then; one that was added its own, and one that stayed where it was.
fn asked_by(host: usize, first: &[Option<usize>], now: &[Option<usize>]) -> Vec<usize> {
    let is_left_out = |(first, now): (&Option<usize>, &Option<usize>)| {
        let stayed = first == now && *now == Some(host % HOSTS_BEFORE);
        *first == Some(host) || *now == Some(host) || stayed
    };
    let all = first.iter().zip(now).enumerate();
    all.filter(|(_, owners)| !is_left_out(*owners)).map(|(service, _)| service).collect()
}

fn doubled(settings: &Settings, hosts: &mut Hosts, report: &mut Report) -> Result<(), String> {
    start(hosts, HOSTS_BEFORE, "2")?;
    let owners = hosts.services()?.owners;
    let all = Doubled { settings, directories: directories(hosts)?, owners };
    shell(hosts, "mkdir /forebay/blocks")?;
    let mut end = all.window(hosts, HOSTS_BEFORE, FOUR, report)?;

    let mut few = all.few(hosts, "growth")?;
    let growth = few.while_it(
        hosts,
        |hosts| hosts.grow(HOSTS_AFTER, TIMEOUT),
        |hosts| {
            let is_even = hosts.services()?.is_even(HOSTS_AFTER);
            Ok(is_even && has_all_copies(hosts, HOSTS_AFTER)?)
        },
    )?;
    add_happened(report, "growth", &growth);
    end = end.plus(few.end()?);
    end = end.plus(all.window(hosts, HOSTS_AFTER, EIGHT, report)?);

    let sums = "cd /forebay/blocks && cksum *";
    let before = shell(hosts, sums)?;
    let mut few = all.few(hosts, "departure")?;
    let departure = few.while_it(
        hosts,
        |hosts| hosts.shrink(HOSTS_BEFORE, TIMEOUT),
        |hosts| {
            let is_even = hosts.services()?.is_even(HOSTS_BEFORE);
            Ok(is_even && has_all_copies(hosts, HOSTS_BEFORE)?)
        },
    )?;
    add_happened(report, "departure", &departure);
    end = end.plus(few.end()?);

    add(report, "errors", "calls", RUN, end.errors);
    add(report, "lost-names", "files", RUN, end.kept - kept_names(hosts, &all)?);
    let after = shell(hosts, sums)?;
    let is_there = |line: &&str| after.lines().any(|other| other == *line);
    let lost = before.lines().filter(|line| !is_there(line)).count();
    add(report, "lost-bytes", "files", RUN, lost as f64);
    hosts.stop()
}

/// Files that programs left, all of which have the bytes that they should have.
fn kept_names(hosts: &Hosts, all: &Doubled<'_>) -> Result<f64, String> {
    let found = shell(hosts, &format!("ls -d {}/h*", all.directories.join("/h* ")))?;
    let directories: Vec<&str> = found.lines().collect();
    let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    // Another host than that on which most of them were made.
    let mut command = programs::command(&hosts.preloaded(HOSTS_BEFORE - 1), &own.to_string_lossy());
    let text = programs::output(command.args(["kept", &directories.join(",")]), "kept")?;
    text.trim().parse().map_err(|_| format!("files that are kept: {text}"))
}

fn add_happened(report: &mut Report, what: &str, happened: &Happened) {
    add(report, &format!("{what}-time"), "s", RUN, happened.seconds);
    add(report, &format!("{what}-names"), "ms", RUN, happened.names_ms);
    add(report, &format!("{what}-blocks"), "ms", RUN, happened.blocks_ms);
}

/// A host serves all that programs of another one ask for, and gives half of it to a third one.
fn relieved(settings: &Settings, hosts: &mut Hosts, report: &mut Report) -> Result<(), String> {
    start(hosts, HOSTS_HOT, "1")?;
    let (owners, all) = (hosts.services()?.owners, directories(hosts)?);
    let of_hot = owners.iter().zip(&all).filter(|(owner, _)| **owner == Some(HOT_HOST));
    let of_hot: Vec<&String> = of_hot.map(|(_, directory)| directory).collect();
    let directories = directories_for(hosts, 0, &of_hot)?;
    let window = |hosts: &Hosts, end: usize, system: &str, report: &mut Report| {
        let mut loads = RunningLoads::default();
        loads.add_names(hosts, (0, PROGRAMS_HOT), &directories, THREADS)?;
        let [names, _, used] = loads.rates(settings, hosts, (HOT_HOST, end))?;
        add(report, "names", "/s", system, names);
        add(report, "share-used", "part", system, used);
        loads.end()
    };
    let mut end = window(hosts, HOSTS_HOT, HOT, report)?;
    let mut few = RunningLoads::default();
    few.add_names(hosts, (0, 1), &directories, 1)?;
    let relief = few.while_it(
        hosts,
        |hosts| hosts.grow(HOSTS_RELIEVED, TIMEOUT),
        |hosts| Ok(hosts.services()?.is_even(HOSTS_RELIEVED)),
    )?;
    add(report, "relief-time", "s", RUN, relief.seconds);
    add(report, "relief-names", "ms", RUN, relief.names_ms);
    end = end.plus(few.end()?);
    // The hot host, the one that relieves it, and one that has no load.
    end = end.plus(window(hosts, HOSTS_RELIEVED - 1, HALVED, report)?);
    add(report, "relief-errors", "calls", RUN, end.errors);
    hosts.stop()
}

fn add(report: &mut Report, test: &str, unit: &'static str, system: &str, value: f64) {
    let key = Key { group: GROUP.into(), test: test.into(), processes: 1, unit };
    report.add(key, system, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Services of this owner, then of that one, and so on.
    fn owned(owners: &[usize]) -> Vec<Option<usize>> {
        owners.iter().copied().map(Some).collect()
    }

    #[test]
    fn programs_ask_other_hosts_and_each_service_as_often() {
        let first = owned(&[0, 1, 2, 3, 0, 1, 2, 3]);
        let asked = |now: &[Option<usize>], hosts| {
            let mut by_service = vec![0; first.len()];
            for host in 0..hosts {
                let services = asked_by(host, &first, now);
                assert_eq!(services.len(), 6, "{host}: {services:?}");
                for service in services {
                    assert_ne!(now[service], Some(host));
                    by_service[service] += 1;
                }
            }
            by_service
        };
        assert_eq!(asked(&first, 4), [3; 8]);
        // Any host may get any service.
        assert_eq!(asked(&owned(&[0, 1, 2, 3, 4, 5, 6, 7]), 8), [6; 8]);
        assert_eq!(asked(&owned(&[0, 1, 2, 3, 7, 4, 5, 6]), 8), [6; 8]);
    }

    #[test]
    fn the_end_of_all_programs_is_the_sum() {
        let count = SteadyCount { kept: 3.0, errors: 1.0, ..SteadyCount::default() };
        let end = LoadsEnd::default().and(count).and(count).plus(LoadsEnd::default().and(count));
        assert!((end.kept - 9.0).abs() < 1e-9 && (end.errors - 3.0).abs() < 1e-9);
        let calls = [2.0, 7.0, 5.0].map(|ms| SteadyCount { longest_ms: ms, ..count });
        assert!((longest_ms(&calls) - 7.0).abs() < 1e-9);
    }
}
