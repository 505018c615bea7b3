//! A labelled set of workloads on a real instance: each is a script of `programs/workload.c`, or a
//! command, labelled with exactly the advice that it must get. All of it runs in `make soak`
//! (soak/advice.rs), and prints a table of the triggers with precision and recall; a few run here.
//!
//! - `pairs`: both sides of the threshold of each trigger.
//! - `programs`: mixtures as programs make them, labelled by what an expert says of them.
//! - `score`: the table.
//!
//! Advice is a finding of severity `warn` or `high`. The others are facts, and are compared only where
//! a workload names them. Findings of `TIMED` triggers depend on the machine's speed or load and are
//! not compared; unit tests with given times have both sides of each (insight's tests/it/triggers.rs).

mod pairs;
mod programs;
mod score;

use super::support::Instance;
use super::support::backing::Backing;
use super::support::left::compiled;
use score::Score;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Triggers with times in their conditions.
const TIMED: [&str; 9] = [
    "slow-rank-reads",
    "slow-rank-writes",
    "slow-hosts",
    "long-metadata",
    "hot-directory",
    "waits-for-space",
    "below-its-share",
    "held-back",
    "writeback-beside",
];

/// Files of the backing directory, and their sizes in MiB.
const BACKED: [(&str, u64); 9] = [
    ("warm", 32),
    ("cold", 32),
    ("tail", 2),
    ("database", 16),
    ("mesh", 8),
    ("part0", 4),
    ("part1", 4),
    ("part2", 4),
    ("part3", 4),
];

/// Workloads name their files `@NAME`: they are in this directory.
const MADE: &str = "/forebay/made/";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A workload and the advice that it must get.
struct Workload {
    name: &'static str,
    /// Ranks that run it side by side.
    ranks: u32,
    /// Lines of a script that one rank runs before, as another job.
    before: String,
    /// A shell command after these.
    prepared: &'static str,
    /// Lines of the script; or, if there is `command`, none.
    script: String,
    /// A shell command instead of a script.
    command: Option<&'static str>,
    advice: &'static [&'static str],
    /// Facts that must be among the findings (true) or must not be.
    facts: &'static [(&'static str, bool)],
}

impl Workload {
    fn new(name: &'static str, ranks: u32, advice: &'static [&'static str]) -> Workload {
        let (before, script) = (String::new(), String::new());
        Workload { name, ranks, before, prepared: ":", script, command: None, advice, facts: &[] }
    }

    /// A line for all ranks.
    fn all(self, line: &str) -> Workload {
        self.line("*", line)
    }

    /// A line for each rank, which may depend on it.
    fn each(mut self, line: impl Fn(u64) -> String) -> Workload {
        for rank in 0..self.ranks {
            self = self.line(&rank.to_string(), &line(u64::from(rank)));
        }
        self
    }

    fn line(mut self, ranks: &str, line: &str) -> Workload {
        self.script.push_str(&format!("{ranks} {line}\n"));
        self
    }

    /// A line of the job that makes the input.
    fn given(mut self, line: &str) -> Workload {
        self.before.push_str(&format!("0 {line}\n"));
        self
    }

    /// Files without data, as input.
    fn holes(self, prefix: &str, number: u64, size: u64) -> Workload {
        (0..number).fold(self, |to, at| to.given(&format!("hole {prefix}{at} {size}")))
    }

    /// A shell command after the lines that make the input.
    fn prepared(self, prepared: &'static str) -> Workload {
        Workload { prepared, ..self }
    }

    fn facts(self, facts: &'static [(&'static str, bool)]) -> Workload {
        Workload { facts, ..self }
    }

    fn command(self, command: &'static str) -> Workload {
        Workload { command: Some(command), ..self }
    }
}

/// An instance on which workloads run one after another.
struct Field {
    instance: Instance,
    program: PathBuf,
    scripts: tempfile::TempDir,
}

impl Field {
    fn new(more: &[&str]) -> Field {
        let options = [&["--local", "1", "--memory", "1GiB", "--ssd", "0"], more].concat();
        let scripts = tempfile::tempdir().expect("a directory");
        let program = compiled("workload", scripts.path());
        Field { instance: Instance::start("advice", &options), program, scripts }
    }

    fn job(&self, job: &str, script: &str) {
        let words = ["--job", job, "--", "sh", "-ec", script];
        let output = self.instance.command("run").args(words).output().expect("forebay runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{job}: {said}\n{script}");
    }

    fn script(&self, name: &str, lines: &str) -> PathBuf {
        let path = self.scripts.path().join(name);
        // Scripts name files of one directory.
        fs::write(&path, lines.replace('@', MADE)).expect("written");
        path
    }

    /// The triggers of a workload's findings: of advice, and of facts.
    fn found(&self, number: usize, workload: &Workload) -> [BTreeSet<String>; 2] {
        let job = format!("w{number}");
        let before = self.script("before", &workload.before);
        let program = self.program.display();
        let prepared = workload.prepared.replace('@', MADE);
        let prepare =
            format!("rm -rf {MADE}; mkdir {MADE}; {program} {} 0; {prepared}", before.display());
        self.job(&format!("{job}-input"), &prepare);
        let script = self.script("script", &workload.script);
        let launched = |rank: u32| {
            format!("SLURM_PROCID={rank} {program} {} {rank} & all=\"$all $!\"; ", script.display())
        };
        let ranks: String = (0..workload.ranks).map(launched).collect();
        // `wait` without words hides failures.
        let ranks = format!("all=; {ranks} for one in $all; do wait $one; done");
        let command = workload.command.map(|command| command.replace('@', MADE));
        self.job(&job, command.as_deref().unwrap_or(&ranks));
        let report = self.report(&job);
        let findings = report["findings"].as_array().expect("findings");
        let [mut advice, mut facts] = [BTreeSet::new(), BTreeSet::new()];
        for one in findings {
            let trigger = one["trigger"].as_str().expect("a trigger").to_owned();
            match one["severity"].as_str() {
                _ if TIMED.contains(&&*trigger) => false,
                Some("warn" | "high") => advice.insert(trigger),
                _ => facts.insert(trigger),
            };
        }
        [advice, facts]
    }

    fn report(&self, job: &str) -> Value {
        let mut command = self.instance.command("report");
        // `report` names a job, no instance.
        let program = Path::new(command.get_program()).to_owned();
        let mut plain = std::process::Command::new(program);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => plain.env(name, value),
                None => plain.env_remove(name),
            };
        }
        command = plain;
        let output = command.args(["report", job, "--json"]).output().expect("forebay runs");
        assert!(output.status.success(), "{job}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn score(&self, workloads: &[Workload], score: &mut Score) {
        for (number, workload) in workloads.iter().enumerate() {
            let [advice, facts] = self.found(number, workload);
            score.add(workload, &advice, &facts);
        }
    }
}

/// All workloads: precision and recall are at least 0.95.
pub(crate) fn the_whole_set() {
    let workloads: Vec<Workload> = pairs::all().into_iter().chain(programs::all()).collect();
    assert!(workloads.len() >= 40, "{} workloads", workloads.len());
    let names: BTreeSet<&str> = workloads.iter().map(|one| one.name).collect();
    assert_eq!(names.len(), workloads.len(), "names differ");
    let mut score = Score::default();
    Field::new(&[]).score(&workloads, &mut score);
    let backing = Backing::new();
    for (name, mib) in BACKED {
        backing.file(name, 1, mib * MIB);
    }
    Field::new(&["--backing", &backing.text()]).score(&programs::inputs(), &mut score);
    testkit::show(&score.table());
    score.assert_good();
}

/// Cold and warm inputs.
#[test]
fn workloads_on_a_backing_directory_get_the_advice_of_their_labels() {
    let backing = Backing::new();
    for (name, mib) in BACKED {
        backing.file(name, 1, mib * MIB);
    }
    let mut score = Score::default();
    Field::new(&["--backing", &backing.text()]).score(&programs::inputs(), &mut score);
    assert!(score.wrong.is_empty(), "{}", score.table());
}

/// Few of them, each with the advice of its label: `make soak` runs all.
#[test]
fn workloads_get_the_advice_of_their_labels() {
    let mut few = pairs::few();
    few.extend(programs::all().into_iter().take(2));
    assert!(few.len() >= 8, "{} workloads", few.len());
    let mut score = Score::default();
    Field::new(&[]).score(&few, &mut score);
    assert!(score.wrong.is_empty(), "{}", score.table());
}
