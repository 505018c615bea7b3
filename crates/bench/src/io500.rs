//! The phases of IO500, in its order: by IOR and mdtest where they are on PATH, otherwise by our own
//! workers. What comes of it is no IO500 score: that needs phases of 300 s and its own program.

use crate::conduct::Run;
use crate::crew::Phase;
use crate::external::{self, installed, make_directory, mpirun, number_after, remove_directory};
use crate::report::Report;

/// The name of what this measures.
pub(crate) const GROUP: &str = "io500";

/// All phases with their programs' words, in order; `find` has none.
///
/// Of IO500's own words are left out those that make phases last 300 s and that sync the node's disks
/// after each phase of mdtest.
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

/// All phases once, and the scores of them.
pub(crate) fn measure(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    let has_tools = ["mpirun", "ior", "mdtest"].into_iter().all(installed);
    let by = if has_tools { "IOR and mdtest" } else { "our own equivalent of IOR and mdtest" };
    report.note(
        GROUP,
        &format!(
            "by {by}, find by our own; not an official IO500 score: short phases, small sizes"
        ),
    );
    let phases = if has_tools { by_tools(run)? } else { run.crew(GROUP, &run.directory())? };
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
    let below = |name: &str| format!("{directory}/{name}");
    for name in ["md-easy", "md-hard"] {
        make_directory(run, &below(name))?;
    }
    let megabytes = run.settings.megabytes_of(run.processes);
    let files = run.settings.files_of(GROUP, run.processes).to_string();
    let (easy_bytes, hard_count) = (format!("{megabytes}m"), (megabytes << 20) / HARD_BYTES);
    let (hard_bytes, hard_count) = (HARD_BYTES.to_string(), hard_count.max(1).to_string());
    let mut phases = Vec::new();
    for (name, label, words) in PHASES {
        if name == "find" {
            phases.extend(run.crew("find", &directory)?);
            continue;
        }
        let (easy, hard) = (below("ior-easy"), below("ior-hard"));
        let place = if name.contains("easy") { below("md-easy") } else { below("md-hard") };
        let (program, mut all, unit) = if name.starts_with("mdtest") {
            ("mdtest", vec!["-F", "-N", "1", "-n", &files, "-d", &place], "/s")
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
            external::output(touch.arg(below("timestamp")), "touch")?;
        }
    }
    remove_directory(run, &directory)?;
    Ok(phases)
}

/// Geometric means of the bandwidths in GiB/s and of the other rates in thousands, if all are there.
fn scores(phases: &[Phase]) -> Option<[f64; 2]> {
    let mean = |is_wanted: fn(&str) -> bool, scale: f64| {
        let wanted = PHASES.iter().filter(|(name, _, _)| is_wanted(name));
        let rate = |name: &str| phases.iter().find(|phase| phase.name == name).map(|one| one.rate);
        let logs: Option<Vec<f64>> =
            wanted.map(|(name, _, _)| rate(name).map(|rate| (rate / scale).ln())).collect();
        let logs = logs?;
        Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let bandwidth = mean(|name| name.starts_with("ior"), 1024.0)?;
    Some([bandwidth, mean(|name| !name.starts_with("ior"), 1000.0)?])
}

#[cfg(test)]
mod tests {
    //! Scores.
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
