//! One file for each command, in the order of `forebay --help`.

mod run;

mod start;

mod stop;

mod flush;

mod mount;

mod rising;

mod stage;

mod staging;

mod history;

mod lend;

mod layout;

mod pin;

mod quota;

mod status;

mod ls;

mod df;

mod version;

mod agent;

pub(crate) use run::stage_worker;

use crate::failure::{Failure, Result, USAGE};
use clap::{ArgMatches, Command};

/// All commands.
pub(crate) fn all() -> Vec<Command> {
    let mut all = vec![
        run::command(),
        start::command(),
        stop::command(),
        flush::command(),
        mount::command(),
        mount::umount_command(),
        stage::command(),
        stage::worker_command(),
        history::command(),
        lend::command(),
        lend::reclaim_command(),
        layout::command(),
        pin::command(),
        pin::unpin_command(),
        quota::command(),
        status::command(),
        ls::command(),
        df::command(),
        version::command(),
    ];
    all.extend(agent::commands());
    all
}

/// Runs the command `name`; its exit code.
///
/// # Errors
/// What it could not do.
pub(crate) fn run(name: &str, given: &ArgMatches) -> Result<u8> {
    match name {
        "run" => run::run(given),
        "start" => start::run(given),
        "stop" => stop::run(given),
        "flush" => flush::run(given),
        "mount" => mount::run(given),
        "umount" => mount::run_umount(given),
        "stage" => stage::run(given),
        "stage-worker" => stage::work(given),
        "history" => history::run(given),
        "lend" => lend::run(given),
        "reclaim" => lend::run_reclaim(given),
        "layout" => layout::run(given),
        "pin" => pin::run(given, true),
        "unpin" => pin::run(given, false),
        "quota" => quota::run(given),
        "status" => status::run(given),
        "ls" => ls::run(given),
        "df" => df::run(given),
        "version" => version::run(given),
        "daemon-exec" => agent::exec(given),
        "daemon-start" | "daemon-peers" | "daemon-mount" | "daemon-lend" | "daemon-flush"
        | "daemon-noted" | "daemon-stop" => agent::run(name),
        _ => Err(Failure::with_code(USAGE, "no such command")),
    }
}

/// Prints one JSON value as a line.
fn print_json(value: &serde_json::Value) {
    outln!("{value}");
}

/// Sizes for people: three digits and a unit.
pub(crate) fn human(bytes: Option<u64>) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(bytes) = bytes else { return "-".to_owned() };
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$} {}", UNITS.get(unit).unwrap_or(&""))
}

/// Lines with columns under each other: the first is the head.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let cases = [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (10 << 20, "10 MiB")];
        for (bytes, text) in cases {
            assert_eq!(human(Some(bytes)), text);
        }
        assert_eq!(human(Some(u64::MAX)), "16384 PiB");
        assert_eq!(human(None), "-");
    }

    #[test]
    fn columns_stand_under_each_other() {
        let rows = [["a", "bb"], ["ccc", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a    bb\nccc\n");
    }
}
