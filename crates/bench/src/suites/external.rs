//! Third-party benchmarks, if they are installed: fio, and mdtest and IOR under mpirun.
//!
//! A program that is missing from `PATH` is silently left out of the tables.

use crate::measure::programs::{installed, number_after, output};
use crate::measure::run::Run;
use crate::results::report::Report;

/// File operations and psync data transfers by fio.
pub(crate) fn fio(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    if !installed("fio") {
        return Ok(());
    }
    let directory = run.directory();
    run.make_directory(&directory)?;
    let files = format!("--nrfiles={}", run.settings.files);
    for test in ["filecreate", "filestat", "filedelete"] {
        let engine = format!("--ioengine={test}");
        // fio skips files of length zero; with these options it only creates the names.
        let words = [
            &engine,
            &files,
            "--filesize=4k",
            "--fallocate=none",
            "--openfiles=1",
            "--create_on_open=1",
        ];
        let terse = fio_once(run, &directory, "files", &words)?;
        run.record(report, test, "/s", terse.iops);
    }
    let size = format!("--size={}m", run.settings.megabytes);
    for (test, mode, block) in [
        ("psync-write-1m", "write", "1m"),
        ("psync-read-1m", "read", "1m"),
        ("psync-randwrite-8k", "randwrite", "8k"),
        ("psync-randread-8k", "randread", "8k"),
    ] {
        let words = [
            "--ioengine=psync",
            &size,
            &format!("--rw={mode}"),
            &format!("--bs={block}"),
            "--fallocate=none",
        ];
        let terse = fio_once(run, &directory, "data", &words)?;
        run.record(report, test, "MiB/s", terse.kib_per_second / 1024.0);
    }
    run.remove_directory(&directory)
}

/// mdtest and IOR with the options of the published comparison.
pub(crate) fn mpi(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    if !installed("mpirun") {
        return Ok(());
    }
    let directory = run.directory();
    run.make_directory(&directory)?;
    if installed("mdtest") {
        let files = run.settings.files.to_string();
        let out = mpirun(run, "mdtest", &["-n", &files, "-F", "-C", "-T", "-r", "-d", &directory])?;
        for (test, label) in [
            ("mdtest-create", "File creation"),
            ("mdtest-stat", "File stat"),
            ("mdtest-remove", "File removal"),
        ] {
            // The label is followed by maximum, minimum and mean, which are equal for one
            // iteration.
            if let Some(rate) = number_after(&out, label) {
                run.record(report, test, "/s", rate);
            }
        }
    }
    if installed("ior") {
        let block = format!("{}m", run.settings.megabytes);
        let file = format!("{directory}/ior");
        for (suffix, own) in [("own", ["-F", "-k"]), ("shared", ["-k", "-k"])] {
            let common = ["-a", "POSIX", "-t", "1m", "-b", &block, "-o", &file];
            for (direction, flag) in [("write", "-w"), ("read", "-r")] {
                let words: Vec<&str> = common.iter().chain(&own).chain(&[flag]).copied().collect();
                let out = mpirun(run, "ior", &words)?;
                if let Some(rate) = number_after(&out, direction) {
                    run.record(report, &format!("ior-{direction}-1m-{suffix}"), "MiB/s", rate);
                }
            }
        }
    }
    run.remove_directory(&directory)
}

/// Runs a program under mpirun and returns its output.
pub(crate) fn mpirun(run: &Run<'_>, program: &str, words: &[&str]) -> Result<String, String> {
    let mut command = run.command("mpirun");
    command
        .args(["--oversubscribe", "--bind-to", "none", "-np", &run.processes.to_string(), program])
        .args(words);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    output(&mut command, program)
}

/// The fields used from a line of fio's terse output.
struct Terse {
    kib_per_second: f64,
    iops: f64,
}

fn fio_once(run: &Run<'_>, directory: &str, name: &str, words: &[&str]) -> Result<Terse, String> {
    let mut command = run.command("fio");
    command.args(["--minimal", "--group_reporting", &format!("--name={name}")]);
    command
        .args([format!("--directory={directory}"), format!("--numjobs={}", run.processes)])
        .args(words);
    let out = output(&mut command, "fio")?;
    terse(&out).ok_or_else(|| format!("unexpected output of fio: {}", out.trim()))
}

/// Parses terse version 3: bandwidth in KiB/s and operations/s are fields 7 and 8 for reads, 48 and
/// 49 for writes, counted from 1. The unused direction shows zeros.
fn terse(out: &str) -> Option<Terse> {
    let line = out.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1).and_then(|text| text.parse::<f64>().ok());
    Some(Terse { kib_per_second: field(7)? + field(48)?, iops: field(8)? + field(49)? })
}

#[cfg(test)]
mod tests {
    //! Parsing of program output.
    use super::*;

    #[test]
    fn terse_lines() {
        let mut fields = vec!["0"; 60];
        (fields[0], fields[6], fields[7]) = ("3", "2048", "512");
        let read = terse(&fields.join(";")).expect("a line of terse output");
        assert_eq!((read.kib_per_second, read.iops), (2048.0, 512.0));
        assert!(terse("fio: error").is_none());
    }
}
