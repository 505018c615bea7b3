//! The conductor: which measurement runs when, and what becomes of the values.

use crate::crew::{self, Crew, Order, Phase};
use crate::instance::Instance;
use crate::report::{Key, Report};
use crate::settings::{Place, Settings};
use crate::two_mounts;
use crate::{bars, external, history, interrupt, io500, plot, profile, quiet, remote, scaling};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// Measures everything that the settings name. True: all that the bars need was measured, as far as
/// it was wanted.
pub(crate) fn main(settings: &Settings) -> Result<bool, String> {
    interrupt::catch();
    let mut instances = Vec::new();
    let mut places = settings.places.clone();
    for &daemons in &settings.instances {
        let instance = Instance::start(&settings.forebay, daemons)?;
        places.push(instance.place(&format!("forebay-{daemons}")));
        instances.push(instance);
    }
    for &daemons in &settings.mounts {
        for requests in ["classic", "rings"] {
            let purpose = format!("{daemons}-{requests}");
            let mut instance = Instance::start_with(&settings.forebay, daemons, &purpose, &[])?;
            match instance.mount(&format!("mount-{purpose}"), requests) {
                Ok(place) => places.push(place),
                // A kernel may have no rings.
                Err(text) => eprintln!("forebay-bench: {text}"),
            }
            instances.push(instance);
        }
    }
    let mut report = Report::new(places.iter().map(|place| place.name.clone()).collect());
    let mut conductor = Conductor { settings, places: &places, given_up: BTreeSet::new() };
    for repetition in 0..settings.repetitions {
        eprintln!("repetition {} of {}", repetition + 1, settings.repetitions);
        conductor.repeat(repetition, &mut report)?;
    }
    drop(instances);
    for group in &settings.groups {
        let outcome = match group.as_str() {
            "profile" => profile::measure(settings, &mut report),
            "remote" => remote::measure(settings, &mut report),
            "scaling" => scaling::measure(settings, &mut report),
            two_mounts::GROUP => two_mounts::measure(settings, &mut report),
            _ => continue,
        };
        if let Err(text) = outcome {
            interrupt::check()?;
            report.failed("forebay", format!("{group}: {text}"));
        }
    }
    let rows = bars::rows(&report);
    print!("{}\n{}", report.tables(), bars::table(&rows));
    let mut all = report.json();
    all["bars"] = bars::json(&rows);
    if let Some(file) = &settings.json {
        let text = format!("{all:#}\n");
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    if let Some(file) = &settings.history {
        history::append(file, &all["bars"], &all["results"])?;
        if let Some(drawing) = &settings.plot {
            plot::write(file, drawing)?;
        }
    }
    Ok(!report.has_failed())
}

struct Conductor<'a> {
    settings: &'a Settings,
    places: &'a [Place],
    /// What failed is not tried again: it may take its time to fail.
    given_up: BTreeSet<(String, u32, String)>,
}

impl Conductor<'_> {
    /// All groups once, in all places.
    fn repeat(&mut self, repetition: u32, report: &mut Report) -> Result<(), String> {
        let settings = self.settings;
        let skipped = |name: &String| repetition > 0 && settings.seldom.contains(name);
        for group in settings.groups_in_places().filter(|group| !skipped(group)) {
            for processes in settings.processes_of(group) {
                for place in turned(self.places, repetition) {
                    let what = (group.clone(), processes, place.name.clone());
                    if skipped(&place.name) || self.given_up.contains(&what) {
                        continue;
                    }
                    quiet::settle();
                    let run = Run { settings, place, group, processes, repetition };
                    if let Err(text) = run.measure(report) {
                        interrupt::check()?;
                        run.clear();
                        let text = format!("{group}, {processes} processes, {}: {text}", what.2);
                        report.failed(&place.name, text);
                        self.given_up.insert(what);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The places, beginning with another in each repetition, so that none always comes after the same.
fn turned(places: &[Place], repetition: u32) -> impl Iterator<Item = &Place> {
    places.iter().cycle().skip(repetition as usize % places.len()).take(places.len())
}

/// One group of tests with one number of processes in one place.
pub(crate) struct Run<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) place: &'a Place,
    pub(crate) group: &'a str,
    pub(crate) processes: u32,
    repetition: u32,
}

impl Run<'_> {
    fn measure(&self, report: &mut Report) -> Result<(), String> {
        match self.group {
            "fio" => external::fio(self, report),
            "mpi" => external::mpi(self, report),
            "io500" => io500::measure(self, report),
            _ => self.workers(report),
        }
    }

    /// Puts down one value.
    pub(crate) fn record(&self, report: &mut Report, test: &str, unit: &'static str, rate: f64) {
        let key =
            Key { group: self.group.into(), test: test.into(), processes: self.processes, unit };
        report.add(key, &self.place.name, rate);
    }

    /// A program, started so that it sees the place.
    pub(crate) fn command(&self, program: &str) -> Command {
        crew::command(&self.place.through, program)
    }

    /// A directory that no one else uses, nor another run that failed and left something.
    pub(crate) fn directory(&self) -> String {
        format!(
            "{}/forebay-bench-{}-{}-{}-{}",
            self.place.directory,
            std::process::id(),
            self.group,
            self.processes,
            self.repetition
        )
    }

    fn workers(&self, report: &mut Report) -> Result<(), String> {
        for phase in self.crew(self.group, &self.directory())? {
            self.record(report, &phase.name, phase.unit, phase.rate);
        }
        Ok(())
    }

    /// The phases of workers of a group in a directory.
    pub(crate) fn crew(&self, group: &str, directory: &str) -> Result<Vec<Phase>, String> {
        let order = Order {
            through: self.place.through.clone(),
            group: group.into(),
            directory: directory.into(),
            index: 0,
            processes: self.processes,
            files: self.settings.files_of(self.group, self.processes),
            megabytes: self.settings.megabytes_of(self.processes),
        };
        let mut phases = Vec::new();
        Crew::start(&order.alike(self.processes))?.work(|phase| phases.push(phase))?;
        Ok(phases)
    }

    /// Removes what a failed run left, if the place still lets us.
    fn clear(&self) {
        let mut command = self.command("timeout");
        command.args(["20", "rm", "-rf", &self.directory()]).stdin(Stdio::null());
        if !command.output().is_ok_and(|output| output.status.success()) {
            eprintln!("forebay-bench: {} is left in {}", self.directory(), self.place.name);
        }
    }
}
