//! An instance over two hosts, with a mount on each, in the mode `posix`: what programs on the two do to
//! the same file. Beside it a socket between the same two network namespaces.

use crate::crew::{Crew, Order};
use crate::hosts::Hosts;
use crate::quiet;
use crate::remote::{HERE, Server, THERE};
use crate::report::{Key, Report};
use crate::settings::{Place, Settings};
use std::path::Path;

/// The name of what this measures, also in bars.
pub(crate) const GROUP: &str = "two-mounts";
/// Where it is measured, as tables say.
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
    // Both workers' files, and all of a repetition: what the other mount has looked at is kept for a
    // second after its removal.
    let memory = format!("{}MiB", 20 * settings.megabytes + 64);
    hosts.start(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_MEMORY", &memory)])?;
    let server = Server::start(&hosts)?;
    let places = [hosts.mount(HERE)?, hosts.mount(THERE)?];
    for repetition in 0..settings.repetitions {
        quiet::settle();
        let order = Order {
            through: hosts.through(HERE),
            group: "round-trips".into(),
            directory: server.address.clone(),
            index: 0,
            processes: 1,
            files: settings.files,
            megabytes: settings.megabytes,
        };
        Crew::start(std::slice::from_ref(&order))?
            .work(|phase| add(report, (&phase.name, 1), "us", "socket", 1e6 / phase.rate))?;
        quiet::settle();
        let of = |(index, place): (usize, &Place)| Order {
            through: place.through.clone(),
            group: GROUP.into(),
            directory: format!("{}/{repetition}", place.directory),
            index: index as u32,
            processes: places.len() as u32,
            ..order.clone()
        };
        let orders: Vec<Order> = places.iter().enumerate().map(of).collect();
        Crew::start(&orders)?.work(|phase| match phase.unit {
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
    place: &str,
    value: f64,
) {
    report.add(Key { group: GROUP.into(), test: test.into(), processes, unit }, place, value);
}
