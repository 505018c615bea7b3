//! How much more several hosts do than one, where each has a small share of a processor.
//!
//! The share is for all that a host has: its daemon and the program that uses it. Much of the work is
//! done by the client itself (look-ups in shared memory, copies), so with a share for the daemon alone
//! most rows would grow with this machine's processors and not with hosts.
//!
//! `home`: each host works in a directory of its own daemon and its bytes stay with it, as jobs do that
//! keep to their own files; what grows less than linearly is what hosts have in common. That is the root,
//! too, where paths begin; rows `-inside` are of names in the working directory. The bars are about this.
//!
//! `wide`: all work in one directory that is spread over all daemons, as the bytes are; of N hosts'
//! operations the part (N - 1) / N goes over a socket. A host that has used its share pauses for up to
//! 95 ms, and whoever waits for it does, too: with shares these rows would show the pauses. So it runs
//! without, and what is shown is the work that a second of a processor does, of all hosts' processors
//! together: what stays the same from 2 hosts to 16 grows linearly where hosts' processors are the limit.

use crate::crew::{Crew, Order, Phase};
use crate::hosts::Hosts;
use crate::report::{Key, Report};
use crate::settings::Settings;
use crate::{interrupt, quiet};

/// The name of what this measures, also in bars.
pub(crate) const GROUP: &str = "scaling";

/// What the hosts do, and how the instance is set for it.
struct Load {
    name: &'static str,
    /// The group of the workers.
    group: &'static str,
    spread: &'static str,
    placement: &'static str,
    /// Whether each host has its share and no more.
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

/// For each daemon: 4 MiB for each thread of a host, and room for chance.
const MEMORY: &str = "96MiB";

/// Small, so that the 4 MiB of a thread lie on all hosts.
const CHUNK: &str = "64KiB";

/// Measures both loads with each number of hosts; three repetitions at most.
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
                    ("FOREBAY_CHUNK", CHUNK),
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
        let order = Order {
            through: Vec::new(),
            group: self.group.into(),
            directory: "/forebay/all".into(),
            index: 0,
            processes: count,
            files: THREADS,
            megabytes: 1,
        };
        let mut orders = order.alike(count);
        for (host, order) in orders.iter_mut().enumerate() {
            order.through = hosts.place(host).through;
        }
        let mut crew = Crew::start(&orders)?;
        while let Some(name) = crew.ready()? {
            // What comes before the first measured phase is done at full speed.
            if name == "fill" {
                quiet::settle();
            } else if self.is_limited {
                hosts.limit()?;
            }
            let before = hosts.used();
            if let Some(phase) = crew.go(&name)? {
                self.take(&phase, hosts.used() - before, count, report);
            }
            hosts.unlimit()?;
        }
        crew.finish()
    }

    /// Puts down what was done in a second, or in a second of a processor.
    fn take(&self, phase: &Phase, seconds_used: f64, count: u32, report: &mut Report) {
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
