//! Shares and limits of jobs (`forebay qos`) on the way to other hosts, with a rule and without.
//!
//! The rate at which each host sends is limited (`Hosts::throttle`), so that jobs share a link and not
//! this machine's processors. Programs run on the first host and read files of the second one, unless a
//! row says otherwise. Each load (`worker::load`) is a job.

use crate::environment::hosts::Hosts;
use crate::measure::loads::LoadProcess;
use crate::measure::{interrupt, programs, quiet};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use crate::suites::remote;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "shares";
/// The rule that has all requests to other hosts wait for their shares.
pub(crate) const RULE: [&str; 5] = ["qos", "set", "shares", "*", "weight=100"];
/// As `RULE`; requests that move no bytes wait for theirs, too.
const RULE_FOR_ALL: [&str; 6] = ["qos", "set", "shares", "*", "weight=100", "rate=1M"];
/// The rule of a job that is idle while others are measured: the link is not kept for it.
const IDLE_RULE: [&str; 6] = ["qos", "set", "idle", "jobid={idle}", "weight=1000", "min=10M"];
/// Names of the columns.
pub(crate) const ALONE: &str = "alone";
pub(crate) const UNRULED: &str = "unruled";
pub(crate) const RULED: &str = "ruled";
/// The rate that a rule sets, in MiB per second.
pub(crate) const RATE_MIB: u64 = 20;

const HOSTS: usize = 5;
/// The link of a host: far below what a processor can copy, and half of what a rule sets for each of the
/// four targets together.
const LINK_MBIT: u64 = 200;
const FILE_MIB: u64 = 32;
const MEMORY: &str = "96MiB";
const MIB: f64 = (1 << 20) as f64;
const SMALL: u64 = 4 << 10;
const MIDDLE: u64 = 64 << 10;
const LARGE: u64 = 4 << 20;
/// A block in place of the number of bytes: operations on names.
const NAMES: u64 = 0;
/// In this time each job has moved bytes, on a busy machine, too.
const SHARES_TIME: Duration = Duration::from_secs(30);
/// The host that stands still for a while.
const STOPPED_HOST: usize = 2;

/// Measures all rows, in at most three repetitions.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let hosts = match Hosts::new(&settings.forebay, "q", HOSTS)? {
        Ok(hosts) => hosts.throttle(LINK_MBIT)?.map(|()| hosts),
        Err(why) => Err(why),
    };
    let mut hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    hosts.start(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_MEMORY", MEMORY)])?;
    for host in 1..HOSTS {
        let script = format!("head -c {} /dev/zero >/forebay/{host}", FILE_MIB << 20);
        let mut command = programs::command(&hosts.system(host).through, "sh");
        programs::output(command.args(["-c", &script]), "sh")?;
    }
    let directory = remote::directory_on(&hosts, remote::REMOTE_HOST)?;
    for repetition in 0..settings.repetitions.min(3) {
        eprintln!("shares, repetition {}", repetition + 1);
        let slow = Duration::from_secs(settings.seconds);
        let run = ShareRun { hosts: &hosts, directory: &directory, repetition, slow };
        run.one_job(report)?;
        run.small_beside_stream(report)?;
        run.mixed_sizes(report)?;
        run.set_rate(report)?;
        run.slow_request(report)?;
    }
    Ok(())
}

/// The transfers of a load so far.
#[derive(Clone, Copy)]
struct LoadCount {
    operations: f64,
    seconds: f64,
    longest_ms: f64,
}

/// A load of a job.
struct JobLoad(LoadProcess);

impl JobLoad {
    /// Starts a load of a job on a host: a path, the size of blocks, and the number of threads.
    fn start(
        hosts: &Hosts,
        (host, job): (usize, &str),
        path: &str,
        (block, threads): (u64, u64),
    ) -> Result<JobLoad, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut command = programs::command(&hosts.job(host, job), &own.to_string_lossy());
        command.args(["load", path, &block.to_string(), &threads.to_string()]);
        LoadProcess::start(command).map(JobLoad)
    }

    fn count(&mut self) -> Result<LoadCount, String> {
        match self.0.numbers()?[..] {
            [operations, nanos, longest] => {
                Ok(LoadCount { operations, seconds: nanos / 1e9, longest_ms: longest / 1e6 })
            }
            ref other => Err(format!("a load says {other:?}")),
        }
    }
}

fn counts(loads: &mut [JobLoad]) -> Result<Vec<LoadCount>, String> {
    loads.iter_mut().map(JobLoad::count).collect()
}

/// A daemon that stands still until this is dropped.
struct StoppedDaemon(String);

impl StoppedDaemon {
    fn stop(pid: u64) -> Result<StoppedDaemon, String> {
        let stopped = StoppedDaemon(pid.to_string());
        programs::output(Command::new("kill").args(["-STOP", &stopped.0]), "kill")?;
        Ok(stopped)
    }
}

impl Drop for StoppedDaemon {
    fn drop(&mut self) {
        let _ = programs::output(Command::new("kill").args(["-CONT", &self.0]), "kill");
    }
}

/// Jain's index of equal shares: 1 if all are equal, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
}

struct ShareRun<'a> {
    hosts: &'a Hosts,
    /// A directory of the second host.
    directory: &'a str,
    repetition: u32,
    /// How long the slow request takes; other loads are measured for a third of it.
    slow: Duration,
}

impl ShareRun<'_> {
    /// A load on the first host; each repetition has jobs of its own.
    fn start(&self, job: &str, host: usize, how: (u64, u64)) -> Result<JobLoad, String> {
        let job = format!("{job}-{}", self.repetition);
        let path = match how {
            (NAMES, _) => self.directory.to_owned(),
            _ => format!("/forebay/{host}"),
        };
        JobLoad::start(self.hosts, (0, &job), &path, how)
    }

    /// Runs `with` without the rule, and with it.
    fn in_both_ways(
        &self,
        mut with: impl FnMut(&'static str) -> Result<(), String>,
    ) -> Result<(), String> {
        with(UNRULED)?;
        self.under(&RULE, || with(RULED))
    }

    /// Runs `with` while a rule is in force.
    fn under<T>(
        &self,
        rule: &[&str],
        with: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        self.hosts.run(0, rule)?;
        let outcome = with();
        let name = rule.get(2).copied().unwrap_or_default();
        self.hosts.run(0, &["qos", "delete", name])?;
        outcome
    }

    /// Operations per second of each load while all of them run.
    fn rates(&self, loads: &mut [JobLoad]) -> Result<Vec<f64>, String> {
        std::thread::sleep(self.slow / 9);
        interrupt::check()?;
        let begin = counts(loads)?;
        std::thread::sleep(self.slow / 3);
        let end = counts(loads)?;
        let rate = |(begin, end): (&LoadCount, &LoadCount)| {
            (end.operations - begin.operations) / (end.seconds - begin.seconds)
        };
        Ok(begin.iter().zip(&end).map(rate).collect())
    }

    /// Operations per second of one load by itself.
    fn rate(&self, job: &str, how: (u64, u64)) -> Result<f64, String> {
        quiet::settle();
        let rates = self.rates(&mut [self.start(job, 1, how)?])?;
        rates.first().copied().ok_or_else(|| "no load".into())
    }

    /// One job: the rule costs it little, and what an idle one does not use is its own.
    fn one_job(&self, report: &mut Report) -> Result<(), String> {
        self.in_both_ways(|system| {
            add(report, ("one-read-4k", 1), "us", system, 1e6 / self.rate("one", (SMALL, 1))?);
            let large = || Ok(self.rate("one", (LARGE, 4))? * LARGE as f64 / MIB);
            let mib = match system {
                RULED => self.under(&IDLE_RULE, || {
                    // The job has been there.
                    let mut idle = programs::command(&self.hosts.job(0, "idle"), "cmp");
                    let words = ["-n", "1000000", "/forebay/1", "/dev/zero"];
                    programs::output(idle.args(words), "cmp")?;
                    large()
                }),
                _ => large(),
            };
            add(report, ("one-read-4m", 4), "MiB/s", system, mib?);
            Ok(())
        })
    }

    /// A job of small reads, one at a time, beside a stream of large ones.
    fn small_beside_stream(&self, report: &mut Report) -> Result<(), String> {
        let (small, stream) = (("small-read-4k", 1), ("stream-read-4m", 4));
        let mib = |rate: f64, block: u64| rate * block as f64 / MIB;
        add(report, small, "us", ALONE, 1e6 / self.rate("small", (SMALL, 1))?);
        let alone = mib(self.rate("stream", (LARGE, 4))?, LARGE);
        add(report, stream, "MiB/s", ALONE, alone);
        self.in_both_ways(|system| {
            quiet::settle();
            let how = [("small", (SMALL, 1)), ("stream", (LARGE, 4))];
            let loads = how.map(|(job, how)| self.start(job, 1, how));
            let mut loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
            if let [of_small, of_stream] = self.rates(&mut loads)?[..] {
                let (rest, of_stream) = (alone - mib(of_small, SMALL), mib(of_stream, LARGE));
                add(report, small, "us", system, 1e6 / of_small);
                add(report, stream, "MiB/s", system, of_stream);
                add(report, ("stream-of-the-rest", 4), "part", system, of_stream / rest);
            }
            Ok(())
        })
    }

    /// Eight jobs of mixed sizes, each with enough on its way to use its share: Jain's index of their
    /// bytes, and of their parts of the way's time as the first host shows them.
    fn mixed_sizes(&self, report: &mut Report) -> Result<(), String> {
        let sizes = [(SMALL, 32), (MIDDLE, 16), (LARGE, 4), (SMALL, 32)];
        let sizes: Vec<(u64, u64)> = sizes.into_iter().cycle().take(8).collect();
        quiet::settle();
        let kinds = sizes.iter().enumerate();
        let loads = kinds.map(|(number, how)| self.start(&format!("mixed{number}"), 1, *how));
        let mut loads = loads.collect::<Result<Vec<_>, _>>()?;
        self.in_both_ways(|system| {
            let rates = self.rates(&mut loads)?;
            let bytes = sizes.iter().zip(rates).map(|((block, _), rate)| *block as f64 * rate);
            let bytes: Vec<f64> = bytes.collect();
            add(report, ("jain-8-bytes", 8), "index", system, jain(&bytes));
            add(report, ("all-8", 8), "MiB/s", system, bytes.iter().sum::<f64>() / MIB);
            if system == RULED {
                let shares = self.shown_shares("mixed", sizes.len())?;
                add(report, ("jain-8-time", 8), "index", RULED, jain(&shares));
            }
            Ok(())
        })
    }

    /// Parts of the way's time of the jobs of this repetition whose names begin with a word, as the first
    /// host shows them once it has moved bytes for each.
    fn shown_shares(&self, word: &str, jobs: usize) -> Result<Vec<f64>, String> {
        let end = format!("-{}", self.repetition);
        let is_own = |job: &str| job.starts_with(word) && job.ends_with(&end);
        let begun = Instant::now();
        loop {
            let shown = self.hosts.run(0, &["qos", "show", "--json"])?;
            let value: Value = serde_json::from_str(&shown).map_err(|error| error.to_string())?;
            let all = value["jobs"].as_array().into_iter().flatten();
            let own = all.filter(|job| job["job"].as_str().is_some_and(is_own));
            let shares: Vec<f64> = own.filter_map(|job| job["share"].as_f64()).collect();
            if shares.len() == jobs {
                return Ok(shares);
            }
            if begun.elapsed() > SHARES_TIME {
                return Err(format!("{} of {jobs} jobs have shares: {shown}", shares.len()));
            }
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A rate that a rule sets for a job with programs on four hosts, each of which reads from the next,
    /// with more at once than the one before.
    fn set_rate(&self, report: &mut Report) -> Result<(), String> {
        let rate = format!("bw={RATE_MIB}M");
        let rule = ["qos", "set", "rated", "jobid={rated*}", &rate];
        let job = format!("rated-{}", self.repetition);
        let rates = self.under(&rule, || {
            quiet::settle();
            let load = |host: usize| {
                let path = format!("/forebay/{}", host % (HOSTS - 1) + 1);
                JobLoad::start(self.hosts, (host, &job), &path, (1 << 20, host as u64))
            };
            let mut loads = (1..HOSTS).map(load).collect::<Result<Vec<_>, _>>()?;
            self.rates(&mut loads)
        })?;
        add(report, ("set-rate-4-hosts", 4), "MiB/s", RULED, rates.iter().sum());
        Ok(())
    }

    /// A request that takes long, to a host that stands still, beside requests of other jobs: reads of
    /// another host, and operations on names. The longest of each, without it and with it.
    fn slow_request(&self, report: &mut Report) -> Result<(), String> {
        let rows = [("longest-read-4k", 1), ("longest-create", 1)];
        let mut longest = |loads: &mut [JobLoad], system| {
            counts(loads)?;
            std::thread::sleep(self.slow);
            let longest: Vec<f64> = counts(loads)?.iter().map(|one| one.longest_ms).collect();
            for (row, one) in rows.into_iter().zip(&longest) {
                add(report, row, "ms", system, *one);
            }
            Ok::<_, String>(longest)
        };
        let (alone, beside) = self.under(&RULE_FOR_ALL, || {
            quiet::settle();
            let how = [("reads", (SMALL, 1)), ("names", (NAMES, 1))];
            let loads = how.map(|(job, how)| self.start(job, 1, how));
            let mut loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
            let alone = longest(&mut loads, ALONE)?;
            let mut slow = self.start("slow", STOPPED_HOST, (MIDDLE, 1))?;
            let stopped = StoppedDaemon::stop(self.hosts.daemon_pid(STOPPED_HOST)?)?;
            let beside = longest(&mut loads, RULED)?;
            let before = slow.count()?.operations;
            drop(stopped);
            // It ends, and others follow.
            while slow.count()?.operations < before + 2.0 {
                interrupt::check()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok((alone, beside))
        })?;
        let delays = beside.iter().zip(&alone).map(|(beside, alone)| beside - alone);
        add(report, ("delay-by-slow", 1), "ms", RULED, delays.fold(0.0, f64::max));
        Ok(())
    }
}

fn add(
    report: &mut Report,
    (test, processes): (&str, u32),
    unit: &'static str,
    system: &str,
    value: f64,
) {
    report.add(Key { group: GROUP.into(), test: test.into(), processes, unit }, system, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equal_shares() {
        assert!((jain(&[2.0; 8]) - 1.0).abs() < 1e-9);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }
}
