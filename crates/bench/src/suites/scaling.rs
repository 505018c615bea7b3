//! Scaling with the number of hosts, each of which has a small CPU quota.
//!
//! The quota covers everything on a host: its daemon and the program that uses it. The client
//! itself does much of the work (lookups in shared memory, copies), so with a quota for the daemon
//! alone most rows would scale with this machine's CPUs and not with hosts.
//!
//! `home`: each host works in a directory of its own daemon and keeps its bytes local, as jobs with
//! private files do. Growth below linear comes from what the hosts share, for example the root,
//! where paths begin; rows `-inside` use names relative to the working directory. The performance
//! targets refer to this load.
//!
//! `wide`: all hosts work in one directory that is spread over all daemons, as are the bytes; of N
//! hosts' operations the fraction (N - 1) / N crosses a socket. A host that has used up its quota
//! pauses for up to 95 ms, and so does every host that waits for it; with quotas these rows would
//! show the pauses. So this load runs without, and reports work per CPU second of all hosts
//! together: a value that stays constant from 2 hosts to 16 means linear growth where the hosts'
//! CPUs are the limit.

use crate::environment::hosts::Hosts;
use crate::environment::quota::CpuShare;
use crate::measure::interrupt;
use crate::measure::quiet;
use crate::measure::workers::{Phase, WorkerArgs, Workers};
use crate::results::report::{Key, Report};
use crate::settings::Settings;

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "scaling";

/// A load on the hosts, and the settings of the instance for it.
struct Load {
    name: &'static str,
    /// Group of the workers.
    group: &'static str,
    spread: &'static str,
    placement: &'static str,
    /// Whether each host has a CPU quota.
    is_limited: bool,
}

const LOADS: [Load; 2] = [
    Load {
        name: "home",
        group: "scale-home",
        spread: "home",
        placement: "local",
        is_limited: true,
    },
    Load {
        name: "wide",
        group: "scale-wide",
        spread: "wide",
        placement: "hash",
        is_limited: false,
    },
];

/// Threads of each host.
const THREADS: u64 = 4;

/// Per daemon: 4 MiB for each thread of a host, with a margin for uneven placement.
const MEMORY: &str = "96MiB";

/// Small, so that the 4 MiB of a thread are spread over all hosts.
const STRIPE_SIZE: &str = "64KiB";

/// Measures both loads with each number of hosts, in at most three repetitions.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    for repetition in 0..settings.repetitions.min(3) {
        for &count in &settings.hosts {
            eprintln!("scaling, repetition {}: {count} hosts", repetition + 1);
            let hosts = match Hosts::new(&settings.forebay, "s", count as usize)? {
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
            for load in &LOADS {
                interrupt::check()?;
                hosts.start(&[
                    ("FOREBAY_SPREAD", load.spread),
                    ("FOREBAY_PLACEMENT", load.placement),
                    ("FOREBAY_MEMORY", MEMORY),
                    ("FOREBAY_STRIPE_SIZE", STRIPE_SIZE),
                ])?;
                load.once(&hosts, count, report)
                    .map_err(|error| format!("{}, {count} hosts: {error}", load.name))?;
                hosts.stop()?;
            }
        }
    }
    Ok(())
}

impl Load {
    fn once(&self, hosts: &Hosts, count: u32, report: &mut Report) -> Result<(), String> {
        let worker_args = WorkerArgs {
            through: Vec::new(),
            group: self.group.into(),
            directory: "/forebay/all".into(),
            index: 0,
            processes: count,
            files: THREADS,
            megabytes: 1,
        };
        let mut all_args = worker_args.for_each_worker(count);
        for (host, worker_args) in all_args.iter_mut().enumerate() {
            worker_args.through = hosts.system(host).through;
        }
        let mut workers = Workers::start(&all_args)?;
        while let Some(name) = workers.ready()? {
            // Preparation runs without a quota.
            if name == "fill" {
                quiet::settle();
            } else if self.is_limited {
                hosts.limit_from(0, CpuShare::TWENTIETH)?;
            }
            let before = hosts.used_from(0);
            if let Some(phase) = workers.go(&name)? {
                self.record(&phase, hosts.used_from(0) - before, count, report);
            }
            hosts.unlimit()?;
        }
        workers.finish()
    }

    /// Records the rate per second, or per CPU second.
    fn record(&self, phase: &Phase, seconds_used: f64, count: u32, report: &mut Report) {
        let (test, unit, value) = match (self.is_limited, phase.unit) {
            (true, unit) => (phase.name.clone(), unit, phase.rate),
            (false, unit) => {
                let unit = if unit == "MiB/s" { "MiB/cpu" } else { "/cpu" };
                let value = phase.rate * phase.seconds / seconds_used.max(0.01);
                (format!("{}-{}", self.name, phase.name), unit, value)
            }
        };
        let key = Key { group: GROUP.into(), test, processes: count, unit };
        report.add(key, self.name, value);
    }
}
