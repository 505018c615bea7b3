//! Other people's benchmarks, where they are installed: fio, and mdtest and IOR under mpirun.
//!
//! What is not found on `PATH` is left out without a word in the table.

use crate::conduct::Run;
use crate::report::Report;
use std::process::{Command, Stdio};

/// File operations and psync data by fio.
pub(crate) fn fio(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    if !installed("fio") {
        return Ok(());
    }
    let directory = run.directory();
    make_directory(run, &directory)?;
    let files = format!("--nrfiles={}", run.settings.files);
    for test in ["filecreate", "filestat", "filedelete"] {
        let engine = format!("--ioengine={test}");
        // Files of no length would be skipped; of these only the names are made.
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
    remove_directory(run, &directory)
}

/// mdtest and IOR with the options of the published comparison.
pub(crate) fn mpi(run: &Run<'_>, report: &mut Report) -> Result<(), String> {
    if !installed("mpirun") {
        return Ok(());
    }
    let directory = run.directory();
    make_directory(run, &directory)?;
    if installed("mdtest") {
        let files = run.settings.files.to_string();
        let out = mpirun(run, "mdtest", &["-n", &files, "-F", "-C", "-T", "-r", "-d", &directory])?;
        for (test, label) in [
            ("mdtest-create", "File creation"),
            ("mdtest-stat", "File stat"),
            ("mdtest-remove", "File removal"),
        ] {
            // Behind the label: maximum, minimum, mean, alike with one iteration.
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
    remove_directory(run, &directory)
}

/// Runs a program under mpirun; what it prints.
pub(crate) fn mpirun(run: &Run<'_>, program: &str, words: &[&str]) -> Result<String, String> {
    let mut command = run.command("mpirun");
    command
        .args(["--oversubscribe", "--bind-to", "none", "-np", &run.processes.to_string(), program])
        .args(words);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    output(&mut command, program)
}

/// What is used of a line of fio's terse output.
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
    terse(&out).ok_or_else(|| format!("fio said: {}", out.trim()))
}

/// Reads terse version 3: bandwidth in KiB/s and operations/s are the fields 7 and 8 for
/// reads, 48 and 49 for writes, counted from 1. The direction that was not used shows zeros.
fn terse(out: &str) -> Option<Terse> {
    let line = out.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1).and_then(|text| text.parse::<f64>().ok());
    Some(Terse { kib_per_second: field(7)? + field(48)?, iops: field(8)? + field(49)? })
}

/// The first number behind `label` where a line begins with it.
pub(crate) fn number_after(out: &str, label: &str) -> Option<f64> {
    let rest = out.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.split_whitespace().find_map(|word| word.parse().ok())
}

/// What a program prints, or the last line of its complaints.
pub(crate) fn output(command: &mut Command, program: &str) -> Result<String, String> {
    let outcome =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if !outcome.status.success() {
        let text = String::from_utf8_lossy(&outcome.stderr);
        return Err(format!(
            "{program}: {}: {}",
            outcome.status,
            text.lines().last().unwrap_or("no message")
        ));
    }
    Ok(String::from_utf8_lossy(&outcome.stdout).into_owned())
}

/// Makes a directory in the place.
pub(crate) fn make_directory(run: &Run<'_>, directory: &str) -> Result<(), String> {
    let mut command = run.command("mkdir");
    command.args(["-p", directory]);
    output(&mut command, "mkdir").map(drop)
}

/// Removes a directory of the place.
pub(crate) fn remove_directory(run: &Run<'_>, directory: &str) -> Result<(), String> {
    let mut command = run.command("rm");
    command.args(["-r", directory]);
    output(&mut command, "rm").map(drop)
}

/// True if `PATH` has the program.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    //! Reading what the programs print.
    use super::*;

    #[test]
    fn numbers_behind_labels() {
        let out =
            "SUMMARY rate:\n   File creation  458149.10  458149.10  0.00\n   File stat   7.0\n";
        assert_eq!(number_after(out, "File creation"), Some(458149.10));
        assert_eq!(number_after(out, "File removal"), None);
        let ior = "access    bw(MiB/s)  IOPS\nwrite     4798.03    4801.0\n";
        assert_eq!(number_after(ior, "write"), Some(4798.03));
    }

    #[test]
    fn terse_lines() {
        let mut fields = vec!["0"; 60];
        (fields[0], fields[6], fields[7]) = ("3", "2048", "512");
        let read = terse(&fields.join(";")).expect("a line of terse output");
        assert_eq!((read.kib_per_second, read.iops), (2048.0, 512.0));
        assert!(terse("fio: error").is_none());
    }
}
