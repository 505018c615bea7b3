//! An instance on two hosts in mode `posix`, mounted on each: programs on both hosts access the
//! same file. For comparison, a socket between the same two network namespaces.

use crate::environment::hosts::Hosts;
use crate::measure::quiet;
use crate::measure::workers::{WorkerArgs, Workers};
use crate::results::report::{Key, Report};
use crate::settings::{FileSystem, Settings};
use crate::suites::remote::{LOCAL_HOST, REMOTE_HOST, Server};
use std::path::Path;

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "two-mounts";
/// Name of the file system in tables.
pub(crate) const MOUNTS: &str = "mounts";

/// Measures all rows.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = match Hosts::new(&settings.forebay, "m", 2)? {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    if !Path::new("/dev/fuse").exists() {
        report.absent(GROUP, "needs /dev/fuse");
        return Ok(());
    }
    // For the files of both workers in a whole repetition: files that the other mount has looked up
    // are kept for a second after their removal.
    let memory = format!("{}MiB", 20 * settings.megabytes + 64);
    hosts.start(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_MEMORY", &memory)])?;
    let server = Server::start(&hosts)?;
    let systems = [hosts.mount(LOCAL_HOST)?, hosts.mount(REMOTE_HOST)?];
    for repetition in 0..settings.repetitions {
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
            .work(|phase| add(report, (&phase.name, 1), "us", "socket", 1e6 / phase.rate))?;
        quiet::settle();
        let of = |(index, system): (usize, &FileSystem)| WorkerArgs {
            through: system.through.clone(),
            group: GROUP.into(),
            directory: format!("{}/{repetition}", system.directory),
            index: index as u32,
            processes: systems.len() as u32,
            ..worker_args.clone()
        };
        let all_args: Vec<WorkerArgs> = systems.iter().enumerate().map(of).collect();
        Workers::start(&all_args)?.work(|phase| match phase.unit {
            "MiB/s" => add(report, (&phase.name, 2), phase.unit, MOUNTS, phase.rate),
            _ => add(report, (&phase.name, 2), "us", MOUNTS, 1e6 / phase.rate),
        })?;
    }
    Ok(())
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
