//! The phases of IO500, in its order, by IOR and mdtest if they are on PATH, otherwise by the
//! benchmark's own workers. The result is not an official IO500 score, which needs phases of 300 s
//! and IO500's own program.

use crate::measure::programs::{self, installed, number_after};
use crate::measure::run::Run;
use crate::measure::workers::Phase;
use crate::results::report::Report;
use crate::suites::external::mpirun;

/// Name of the group.
pub(crate) const GROUP: &str = "io500";

/// All phases in order: name, label of the result in the program's output, and options; `find` has
/// neither.
///
/// Of IO500's own options, those are omitted that make phases last 300 s and that sync the node's
/// disks after each mdtest phase.
const PHASES: [(&str, &str, &[&str]); 12] = [
    ("ior-easy-write", "write", &["-t", "2m", "-F", "-w", "-e"]),
    ("mdtest-easy-write", "File creation", &["-u", "-L", "-C"]),
    ("ior-hard-write", "write", &["-w", "-e"]),
    ("mdtest-hard-write", "File creation", &["-t", "-w", "3901", "-e", "3901", "-C"]),
    ("find", "", &[]),
    ("ior-easy-read", "read", &["-t", "2m", "-F", "-r", "-C", "-Q", "1"]),
    ("mdtest-easy-stat", "File stat", &["-u", "-L", "-T"]),
    ("ior-hard-read", "read", &["-r", "-C", "-Q", "1"]),
    ("mdtest-hard-stat", "File stat", &["-t", "-w", "3901", "-e", "3901", "-T"]),
    ("mdtest-easy-delete", "File removal", &["-u", "-L", "-r"]),
    ("mdtest-hard-read", "File read", &["-t", "-w", "3901", "-e", "3901", "-E"]),
    ("mdtest-hard-delete", "File removal", &["-t", "-w", "3901", "-e", "3901", "-r"]),
];

const HARD_BYTES: u64 = 47_008;

/// Runs all phases once and computes the scores.
pub(crate) fn measure(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    let has_tools = ["mpirun", "ior", "mdtest"].into_iter().all(installed);
    let by = if has_tools { "IOR and mdtest" } else { "our own equivalent of IOR and mdtest" };
    report.note(
        GROUP,
        &format!(
            "by {by}, find by our own; not an official IO500 score: short phases, small sizes"
        ),
    );
    let phases = if has_tools { by_tools(run)? } else { run.run_phases(GROUP, &run.directory())? };
    for phase in &phases {
        run.record(report, &phase.name, phase.unit, phase.rate);
    }
    if let Some([bandwidth, metadata]) = scores(&phases) {
        run.record(report, "score-bandwidth", "GiB/s", bandwidth);
        run.record(report, "score-metadata", "k/s", metadata);
        run.record(report, "score", "", (bandwidth * metadata).sqrt());
    }
    Ok(())
}

fn by_tools(run: &Run<'_>) -> Result<Vec<Phase>, String> {
    let directory = run.directory();
    let inside = |name: &str| format!("{directory}/{name}");
    for name in ["md-easy", "md-hard"] {
        run.make_directory(&inside(name))?;
    }
    let megabytes = run.settings.megabytes_per_process(run.processes);
    let files = run.settings.files_per_process(GROUP, run.processes).to_string();
    let (easy_bytes, hard_count) = (format!("{megabytes}m"), (megabytes << 20) / HARD_BYTES);
    let (hard_bytes, hard_count) = (HARD_BYTES.to_string(), hard_count.max(1).to_string());
    let mut phases = Vec::new();
    for (name, label, words) in PHASES {
        if name == "find" {
            phases.extend(run.run_phases("find", &directory)?);
            continue;
        }
        let (easy, hard) = (inside("ior-easy"), inside("ior-hard"));
        let system = if name.contains("easy") { inside("md-easy") } else { inside("md-hard") };
        let (program, mut all, unit) = if name.starts_with("mdtest") {
            ("mdtest", vec!["-F", "-N", "1", "-n", &files, "-d", &system], "/s")
        } else if name.contains("easy") {
            ("ior", vec!["-a", "POSIX", "-k", "-b", &easy_bytes, "-o", &easy], "MiB/s")
        } else {
            let mut all = vec!["-a", "POSIX", "-k", "-t", &hard_bytes, "-b", &hard_bytes];
            all.extend(["-s", &hard_count, "-o", &hard]);
            ("ior", all, "MiB/s")
        };
        all.extend(words);
        let out = mpirun(run, program, &all)?;
        let rate = number_after(&out, label).ok_or_else(|| format!("{name}: no {label}: {out}"))?;
        phases.push(Phase { name: name.into(), unit, rate, seconds: 0.0 });
        if name == "mdtest-easy-write" {
            let mut touch = run.command("touch");
            programs::output(touch.arg(inside("timestamp")), "touch")?;
        }
    }
    run.remove_directory(&directory)?;
    Ok(phases)
}

/// Geometric means of the bandwidths in GiB/s and of the other rates in thousands; `None` if a
/// phase is missing.
fn scores(phases: &[Phase]) -> Option<[f64; 2]> {
    let mean = |is_selected: fn(&str) -> bool, scale: f64| {
        let expected = PHASES.iter().filter(|(name, _, _)| is_selected(name));
        let rate = |name: &str| phases.iter().find(|phase| phase.name == name).map(|one| one.rate);
        let logs: Option<Vec<f64>> =
            expected.map(|(name, _, _)| rate(name).map(|rate| (rate / scale).ln())).collect();
        let logs = logs?;
        Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let bandwidth = mean(|name| name.starts_with("ior"), 1024.0)?;
    Some([bandwidth, mean(|name| !name.starts_with("ior"), 1000.0)?])
}

#[cfg(test)]
mod tests {
    //! Computation of the scores.
    use super::*;

    #[test]
    fn scores_are_geometric_means_of_all_phases() {
        let rate = |name: &str| match name {
            "ior-easy-write" => 4096.0,
            "ior-hard-read" => 256.0,
            _ if name.starts_with("ior") => 1024.0,
            "find" => 256_000.0,
            _ => 1000.0,
        };
        let phase =
            |name: &str| Phase { name: name.into(), unit: "", rate: rate(name), seconds: 1.0 };
        let phases: Vec<Phase> = PHASES.iter().map(|(name, _, _)| phase(name)).collect();
        let [bandwidth, metadata] = scores(&phases).expect("all phases");
        assert!((bandwidth - 1.0).abs() < 1e-9 && (metadata - 2.0).abs() < 1e-9, "{metadata}");
        assert!(scores(&phases[1..]).is_none());
    }
}
