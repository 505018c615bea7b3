//! Decides which measurement runs when, and writes the results.

use crate::environment::instance::Instance;
use crate::measure::run::Run;
use crate::measure::{interrupt, quiet};
use crate::results::report::Report;
use crate::results::{history, plot, reference, targets};
use crate::settings::{FileSystem, Settings};
use crate::suites::{
    external, followers, growth, io500, profile, remote, replicas, scaling, shares, two_mounts,
};
use std::collections::BTreeSet;

/// Measures everything that the settings select. True if nothing failed on the file systems that
/// the performance targets use, and nothing is worse than the reference, if one is checked.
pub(crate) fn main(settings: &Settings) -> Result<bool, String> {
    quiet::set_wait_max(settings.settle_millis);
    interrupt::catch();
    let mut instances = Vec::new();
    let mut systems = settings.systems.clone();
    for &daemons in &settings.instances {
        let instance = Instance::start(&settings.forebay, daemons)?;
        systems.push(instance.system(&format!("forebay-{daemons}")));
        instances.push(instance);
    }
    for &daemons in &settings.mounts {
        for requests in ["classic", "rings"] {
            let purpose = format!("{daemons}-{requests}");
            let mut instance = Instance::start_with(&settings.forebay, daemons, &purpose, &[])?;
            match instance.mount(&format!("mount-{purpose}"), requests) {
                Ok(system) => systems.push(system),
                // The kernel may lack rings.
                Err(text) => eprintln!("forebay-bench: {text}"),
            }
            instances.push(instance);
        }
    }
    let mut report = Report::new(systems.iter().map(|system| system.name.clone()).collect());
    let mut runner = Runner { settings, systems: &systems, abandoned: BTreeSet::new() };
    for repetition in 0..settings.repetitions {
        eprintln!("repetition {} of {}", repetition + 1, settings.repetitions);
        runner.repeat(repetition, &mut report)?;
    }
    drop(instances);
    measure_standalone(settings, &mut report)?;
    let rows = targets::rows(&report);
    print!("{}\n{}", report.tables(), targets::table(&rows));
    let mut all = report.json();
    all["targets"] = targets::json(&rows);
    if let Some(file) = &settings.json {
        let text = format!("{all:#}\n");
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    if let Some(file) = &settings.history {
        history::append(file, &all["targets"], &all["results"])?;
        if let Some(drawing) = &settings.plot {
            plot::write(file, drawing)?;
        }
    }
    let mut is_good = !report.has_failed();
    if let Some(file) = &settings.check {
        let (text, is_kept) = reference::check(file, &report, &rows)?;
        print!("{text}");
        is_good &= is_kept;
    }
    if let Some(file) = &settings.reference {
        reference::write(file, &report, &rows)?;
    }
    Ok(is_good)
}

/// Measures the groups that run once, on instances of their own.
fn measure_standalone(settings: &Settings, report: &mut Report) -> Result<(), String> {
    for group in &settings.groups {
        let outcome = match group.as_str() {
            "profile" => profile::measure(settings, report),
            "remote" => remote::measure(settings, report),
            "scaling" => scaling::measure(settings, report),
            two_mounts::GROUP => two_mounts::measure(settings, report),
            shares::GROUP => shares::measure(settings, report),
            followers::GROUP => followers::measure(settings, report),
            replicas::GROUP => replicas::measure(settings, report),
            growth::GROUP => growth::measure(settings, report),
            _ => continue,
        };
        if let Err(text) = outcome {
            interrupt::check()?;
            report.failed("forebay", format!("{group}: {text}"));
        }
    }
    Ok(())
}

struct Runner<'a> {
    settings: &'a Settings,
    systems: &'a [FileSystem],
    /// Group, processes and file system of failed runs. They are not retried, because failing may
    /// take long.
    abandoned: BTreeSet<(String, u32, String)>,
}

impl Runner<'_> {
    /// Runs each group once on each file system.
    fn repeat(&mut self, repetition: u32, report: &mut Report) -> Result<(), String> {
        let settings = self.settings;
        let skipped = |name: &String| repetition > 0 && settings.seldom.contains(name);
        for group in settings.groups_per_system().filter(|group| !skipped(group)) {
            for processes in settings.process_counts(group) {
                for system in rotated(self.systems, repetition) {
                    let what = (group.clone(), processes, system.name.clone());
                    if skipped(&system.name) || self.abandoned.contains(&what) {
                        continue;
                    }
                    quiet::settle();
                    let run = Run { settings, system, group, processes, repetition };
                    if let Err(text) = measure(&run, report) {
                        interrupt::check()?;
                        run.clear();
                        let text = format!("{group}, {processes} processes, {}: {text}", what.2);
                        report.failed(&system.name, text);
                        self.abandoned.insert(what);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The file systems, starting with a different one in each repetition, so that none always follows
/// the same one.
fn rotated(systems: &[FileSystem], repetition: u32) -> impl Iterator<Item = &FileSystem> {
    systems.iter().cycle().skip(repetition as usize % systems.len()).take(systems.len())
}

fn measure(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    match run.group {
        "fio" => external::fio(run, report),
        "mpi" => external::mpi(run, report),
        "io500" => io500::measure(run, report),
        _ => run.measure_phases(report),
    }
}
