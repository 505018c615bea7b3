//! Shares and limits of jobs (`forebay qos`) on the way to other hosts: with a rule for all, and without.
//!
//! Programs run on the first of five hosts and read files of the others. Each load (`worker::load`) is a
//! job of its own.

use crate::environment::hosts::Hosts;
use crate::measure::{interrupt, programs, quiet};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "shares";
/// The rule that has all requests to other hosts wait for their shares.
pub(crate) const RULE: [&str; 5] = ["qos", "set", "shares", "*", "weight=100"];
/// Names of the columns.
pub(crate) const RULED: &str = "ruled";
pub(crate) const UNRULED: &str = "unruled";
pub(crate) const ALONE: &str = "alone";
/// The rate that a rule sets, in MiB per second.
pub(crate) const RATE_MIB: u64 = 40;

const HOSTS: usize = 5;
const FILE_MIB: u64 = 64;
const SMALL: u64 = 4 << 10;
const LARGE: u64 = 4 << 20;
/// Time before a load is measured, and in which it is.
const WARM: Duration = Duration::from_millis(500);
const TIME: Duration = Duration::from_secs(2);

/// Measures all rows.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = match Hosts::new(&settings.forebay, "s", HOSTS)? {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    hosts.start(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_MEMORY", "160MiB")])?;
    for host in 1..HOSTS {
        let script = format!("head -c {} /dev/zero >/forebay/{host}", FILE_MIB << 20);
        let mut command = programs::command(&hosts.system(host).through, "sh");
        programs::output(command.args(["-c", &script]), "sh")?;
    }
    for repetition in 0..settings.repetitions {
        let run = ShareRun { hosts: &hosts, repetition };
        run.one_job(report)?;
        run.small_beside_stream(report)?;
        run.mixed_sizes(report)?;
        run.set_rate(report)?;
    }
    Ok(())
}

/// A load of a job.
struct JobLoad {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl JobLoad {
    fn start(
        hosts: &Hosts,
        job: &str,
        file: &str,
        (block, threads): (u64, u64),
    ) -> Result<JobLoad, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut command = programs::command(&hosts.job(0, job), &own.to_string_lossy());
        command.args(["load", file, &block.to_string(), &threads.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("starting a load: {error}"))?;
        let from = BufReader::new(child.stdout.take().ok_or("a load without output")?).lines();
        let mut load = JobLoad { to: child.stdin.take(), child, from };
        // It has begun.
        load.count()?;
        Ok(load)
    }

    /// Blocks read so far, and the seconds.
    fn count(&mut self) -> Result<(f64, f64), String> {
        let to = self.to.as_mut().ok_or("a load without input")?;
        to.write_all(b"\n").map_err(|error| format!("a load: {error}"))?;
        let line =
            self.from.next().ok_or("a load has ended")?.map_err(|error| error.to_string())?;
        let mut words = line.split(' ').map(str::parse::<f64>);
        match (words.next(), words.next()) {
            (Some(Ok(blocks)), Some(Ok(nanos))) => Ok((blocks, nanos / 1e9)),
            _ => Err(format!("a load says {line}")),
        }
    }
}

impl Drop for JobLoad {
    fn drop(&mut self) {
        // The end of its input.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}

/// Blocks per second of each load, while all of them run.
fn rates(loads: &mut [JobLoad]) -> Result<Vec<f64>, String> {
    std::thread::sleep(WARM);
    interrupt::check()?;
    let begin = loads.iter_mut().map(JobLoad::count).collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(TIME);
    let end = loads.iter_mut().map(JobLoad::count).collect::<Result<Vec<_>, _>>()?;
    let rate = |(begin, end): (&(f64, f64), &(f64, f64))| (end.0 - begin.0) / (end.1 - begin.1);
    Ok(begin.iter().zip(&end).map(rate).collect())
}

/// Jain's index of equal shares: 1 if all are equal, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
}

struct ShareRun<'a> {
    hosts: &'a Hosts,
    repetition: u32,
}

impl ShareRun<'_> {
    /// Runs `with` without the rule, and with it.
    fn in_both_ways(
        &self,
        mut with: impl FnMut(&'static str) -> Result<(), String>,
    ) -> Result<(), String> {
        quiet::settle();
        with(UNRULED)?;
        self.hosts.run(0, &RULE)?;
        quiet::settle();
        let outcome = with(RULED);
        self.hosts.run(0, &["qos", "delete", "shares"])?;
        outcome
    }

    fn start(&self, job: &str, host: usize, how: (u64, u64)) -> Result<JobLoad, String> {
        // Each has accounts of its own.
        let job = format!("{job}-{}", self.repetition);
        JobLoad::start(self.hosts, &job, &format!("/forebay/{host}"), how)
    }

    /// One job: the rule costs it little, and what other jobs do not use is its own.
    fn one_job(&self, report: &mut Report) -> Result<(), String> {
        self.in_both_ways(|system| {
            let of = |how: (u64, u64)| -> Result<f64, String> {
                let mut loads = [self.start("one", 1, how)?];
                rates(&mut loads)?.first().copied().ok_or_else(|| "no load".into())
            };
            add(report, ("one-read-4k", 1), "us", system, 1e6 / of((SMALL, 1))?);
            let mib = of((LARGE, 4))? * LARGE as f64 / (1 << 20) as f64;
            add(report, ("one-read-4m", 4), "MiB/s", system, mib);
            Ok(())
        })
    }

    /// A job of small reads, one at a time, beside a stream of large ones.
    fn small_beside_stream(&self, report: &mut Report) -> Result<(), String> {
        let mib = |rate: f64| rate * LARGE as f64 / (1 << 20) as f64;
        let (small, stream) = ("small-read-4k", "stream-read-4m");
        quiet::settle();
        let alone = rates(&mut [self.start("small", 1, (SMALL, 1))?])?;
        alone.iter().for_each(|rate| add(report, (small, 1), "us", ALONE, 1e6 / rate));
        let alone = rates(&mut [self.start("stream", 1, (LARGE, 4))?])?;
        alone.iter().for_each(|rate| add(report, (stream, 4), "MiB/s", ALONE, mib(*rate)));
        self.in_both_ways(|system| {
            let how = [("small", (SMALL, 1)), ("stream", (LARGE, 4))];
            let loads = how.map(|(job, how)| self.start(job, 1, how));
            let mut loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
            if let [of_small, of_stream] = rates(&mut loads)?[..] {
                add(report, (small, 1), "us", system, 1e6 / of_small);
                add(report, (stream, 4), "MiB/s", system, mib(of_stream));
            }
            Ok(())
        })
    }

    /// Eight jobs of mixed sizes, each with enough on its way to use its share: Jain's index of their
    /// parts of the way's time, as the first host shows them.
    fn mixed_sizes(&self, report: &mut Report) -> Result<(), String> {
        let kinds = [(SMALL, 32), (64 << 10, 16), (LARGE, 4), (SMALL, 32)];
        let kinds = kinds.iter().cycle().take(8).enumerate();
        self.hosts.run(0, &RULE)?;
        quiet::settle();
        let loads = kinds.map(|(number, how)| self.start(&format!("mixed{number}"), 1, *how));
        let mut loads = loads.collect::<Result<Vec<_>, _>>()?;
        let outcome = rates(&mut loads);
        let shown = self.hosts.run(0, &["qos", "show", "--json"]);
        drop(loads);
        self.hosts.run(0, &["qos", "delete", "shares"])?;
        outcome?;
        let shown: Value = serde_json::from_str(&shown?).map_err(|error| error.to_string())?;
        let end = format!("-{}", self.repetition);
        let is_own = |job: &str| job.starts_with("mixed") && job.ends_with(&end);
        let jobs = shown["jobs"].as_array().into_iter().flatten();
        let jobs = jobs.filter(|job| job["job"].as_str().is_some_and(is_own));
        let shares: Vec<f64> = jobs.filter_map(|job| job["share"].as_f64()).collect();
        if shares.len() != 8 {
            return Err(format!("{} of 8 jobs have shares: {shown}", shares.len()));
        }
        add(report, ("jain-8-jobs", 8), "index", RULED, jain(&shares));
        Ok(())
    }

    /// A rate that a rule sets for a job, over four targets.
    fn set_rate(&self, report: &mut Report) -> Result<(), String> {
        let rate = format!("bw={RATE_MIB}M");
        self.hosts.run(0, &["qos", "set", "rated", "jobid={rated*}", &rate])?;
        quiet::settle();
        let loads = (1..HOSTS).map(|host| self.start("rated", host, (1 << 20, 2)));
        let outcome = loads.collect::<Result<Vec<_>, _>>().and_then(|mut loads| rates(&mut loads));
        self.hosts.run(0, &["qos", "delete", "rated"])?;
        add(report, ("set-rate-4-targets", 4), "MiB/s", RULED, outcome?.iter().sum());
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
