//! The bars: what each kind of operation has to reach, beside what was measured.
//!
//! A row is a median, or its ratio to another of the same run. What was not measured has no verdict.

use crate::report::{Report, Summary, short};
use crate::{remote, scaling, two_mounts};
use serde_json::{Value, json};
use std::fmt::Write;

/// A test, its number of processes, and the place.
#[derive(Clone, Copy, Debug)]
struct Cell(&'static str, &'static str, u32, &'static str);

/// Which side of the bar is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    AtLeast,
    AtMost,
}

/// One bar as it is written down.
struct Bar {
    what: &'static str,
    of: Cell,
    to: To,
    side: Side,
    bar: f64,
    /// What would be better still.
    reach: Option<f64>,
}

/// What a value is divided by.
#[derive(Clone, Copy, Debug)]
enum To {
    /// Another of the same run.
    Cell(Cell),
    /// So many times another of the same run.
    Times(f64, Cell),
    /// The first of two that was measured.
    Either(Cell, Cell),
    /// What it was before it was worked on.
    Before(f64),
}

/// One bar with what was measured.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: Option<f64>,
    pub(crate) bar: f64,
    pub(crate) reach: Option<f64>,
    side: Side,
    /// The two values behind the ratio, or why there is none.
    detail: String,
}

const ONE: &str = "forebay-1";
const FOUR: &str = "forebay-4";
const TMPFS: &str = "tmpfs";
const SOCKET: &str = "socket";
const HOME: &str = "home";

/// At least: so many times the value of a test on tmpfs, by one daemon.
const fn times_tmpfs(
    what: &'static str,
    (group, test): (&'static str, &'static str),
    processes: u32,
    (bar, reach): (f64, f64),
) -> Bar {
    let of = Cell(group, test, processes, ONE);
    let to = To::Cell(Cell(group, test, processes, TMPFS));
    Bar { what, of, to, side: Side::AtLeast, bar, reach: Some(reach) }
}

/// At least: so many times one daemon with two processes, by four daemons with two processes or by
/// one with sixteen.
const fn times_one(
    what: &'static str,
    (group, test): (&'static str, &'static str),
    (processes, place): (u32, &'static str),
    (bar, reach): (f64, f64),
) -> Bar {
    let of = Cell(group, test, processes, place);
    let to = To::Cell(Cell(group, test, 2, ONE));
    Bar { what, of, to, side: Side::AtLeast, bar, reach: Some(reach) }
}

/// At most half of the instructions that an operation took at commit ab04362, where they were first
/// counted (a release build by Rust 1.95; they do not depend on the machine).
const fn half_of(what: &'static str, test: &'static str, before: f64) -> Bar {
    let of = Cell("profile", test, 1, ONE);
    Bar { what, of, to: To::Before(before), side: Side::AtMost, bar: 0.5, reach: None }
}

/// At most so many round trips of a socket between the same hosts.
const fn round_trips(what: &'static str, test: &'static str) -> Bar {
    let to = To::Cell(Cell(remote::GROUP, "round-trip", 1, SOCKET));
    let of = Cell(remote::GROUP, test, 1, "forebay");
    Bar { what, of, to, side: Side::AtMost, bar: 1.5, reach: Some(1.1) }
}

/// At least so much of what iperf3 moves between the same hosts, or else a socket of our own.
const fn times_tcp(what: &'static str, test: &'static str, streams: u32) -> Bar {
    let iperf3 = Cell(remote::GROUP, test, streams, "iperf3");
    let to = To::Either(iperf3, Cell(remote::GROUP, test, streams, SOCKET));
    let of = Cell(remote::GROUP, test, streams, "forebay");
    Bar { what, of, to, side: Side::AtLeast, bar: 0.9, reach: Some(1.0) }
}

/// At least so much of what a socket moves that another thread has, with a copy between: the limit for
/// whoever leaves connections to a daemon.
const fn times_copied(what: &'static str, test: &'static str, streams: u32) -> Bar {
    let to = To::Cell(Cell(remote::GROUP, test, streams, "copied"));
    let of = Cell(remote::GROUP, test, streams, "forebay");
    Bar { what, of, to, side: Side::AtLeast, bar: 0.9, reach: Some(1.0) }
}

/// At least so much of 16 times what one host does.
const fn of_linear(what: &'static str, test: &'static str) -> Bar {
    let to = To::Times(16.0, Cell(scaling::GROUP, test, 1, HOME));
    let of = Cell(scaling::GROUP, test, 16, HOME);
    Bar { what, of, to, side: Side::AtLeast, bar: 0.8, reach: Some(0.95) }
}

/// At most so many round trips of a socket between the same hosts until one mount shows what was written
/// by the other.
const fn passes(what: &'static str, test: &'static str) -> Bar {
    let to = To::Cell(Cell(two_mounts::GROUP, "round-trip", 1, SOCKET));
    let of = Cell(two_mounts::GROUP, test, 2, two_mounts::MOUNTS);
    Bar { what, of, to, side: Side::AtMost, bar: 3.0, reach: Some(1.0) }
}

/// At least so much in one file for both mounts of what each does in a file of its own.
const fn one_against_own(what: &'static str, one: &'static str, own: &'static str) -> Bar {
    let to = To::Cell(Cell(two_mounts::GROUP, own, 2, two_mounts::MOUNTS));
    let of = Cell(two_mounts::GROUP, one, 2, two_mounts::MOUNTS);
    Bar { what, of, to, side: Side::AtLeast, bar: 0.7, reach: Some(1.0) }
}

const CREATE: (&str, &str) = ("metadata", "create");
const STAT: (&str, &str) = ("metadata", "stat");
const OPEN: (&str, &str) = ("metadata", "open-close");
const UNLINK: (&str, &str) = ("metadata", "unlink");
const SMALL_WRITE: (&str, &str) = ("metadata", "small-write");
const SMALL_READ: (&str, &str) = ("metadata", "small-read");
const WRITE: (&str, &str) = ("own", "write-1m");
const READ: (&str, &str) = ("own", "read-1m");
const RANDOM_WRITE: (&str, &str) = ("own", "random-write-8k");
const RANDOM_READ: (&str, &str) = ("own", "random-read-8k");

const BARS: [Bar; 55] = [
    times_tmpfs("stat", STAT, 1, (2.0, 4.0)),
    times_tmpfs("stat, 2 processes", STAT, 2, (2.0, 4.0)),
    times_tmpfs("open+close", OPEN, 1, (2.0, 4.0)),
    times_tmpfs("open+close, 2 processes", OPEN, 2, (2.0, 4.0)),
    times_tmpfs("create, 2 processes", CREATE, 2, (0.7, 1.5)),
    times_tmpfs("unlink, 2 processes", UNLINK, 2, (0.7, 1.5)),
    times_tmpfs("create+write+close of 3901 bytes", SMALL_WRITE, 1, (1.0, 2.0)),
    times_tmpfs("create+write+close of 3901 bytes, 2 processes", SMALL_WRITE, 2, (1.0, 2.0)),
    times_tmpfs("open+read+close of 3901 bytes", SMALL_READ, 1, (1.0, 2.0)),
    times_tmpfs("open+read+close of 3901 bytes, 2 processes", SMALL_READ, 2, (1.0, 2.0)),
    times_tmpfs("long directory with attributes", ("list", "readdir-stat"), 1, (1.0, 3.0)),
    times_tmpfs("1 MiB writes of new data", WRITE, 1, (1.5, 2.5)),
    times_tmpfs("1 MiB writes of new data, 2 processes", WRITE, 2, (1.5, 2.5)),
    times_tmpfs("1 MiB reads", READ, 1, (1.0, 1.1)),
    times_tmpfs("1 MiB reads, 2 processes", READ, 2, (1.0, 1.1)),
    times_tmpfs("8 KiB random writes", RANDOM_WRITE, 1, (1.5, 3.0)),
    times_tmpfs("8 KiB random writes, 2 processes", RANDOM_WRITE, 2, (1.5, 3.0)),
    times_tmpfs("8 KiB random reads", RANDOM_READ, 1, (1.5, 3.0)),
    times_tmpfs("8 KiB random reads, 2 processes", RANDOM_READ, 2, (1.5, 3.0)),
    Bar {
        what: "ior-hard writes, one file against a file each",
        of: Cell("hard-shared", "write", 2, ONE),
        to: To::Cell(Cell("hard-own", "write", 2, ONE)),
        side: Side::AtLeast,
        bar: 0.8,
        reach: Some(1.0),
    },
    times_one("4 daemons against 1: create", CREATE, (2, FOUR), (0.7, 0.9)),
    times_one("4 daemons against 1: stat", STAT, (2, FOUR), (0.7, 0.9)),
    times_one("4 daemons against 1: open+close", OPEN, (2, FOUR), (0.7, 0.9)),
    times_one("4 daemons against 1: unlink", UNLINK, (2, FOUR), (0.7, 0.9)),
    times_one("4 daemons against 1: 1 MiB writes", WRITE, (2, FOUR), (0.7, 0.9)),
    times_one("4 daemons against 1: 1 MiB reads", READ, (2, FOUR), (0.7, 0.9)),
    times_one("16 processes against 2: create", CREATE, (16, ONE), (0.7, 1.0)),
    times_one("16 processes against 2: stat", STAT, (16, ONE), (0.7, 1.0)),
    times_one("16 processes against 2: open+close", OPEN, (16, ONE), (0.7, 1.0)),
    times_one("16 processes against 2: unlink", UNLINK, (16, ONE), (0.7, 1.0)),
    times_one("16 processes against 2: 1 MiB writes", WRITE, (16, ONE), (0.7, 1.0)),
    times_one("16 processes against 2: 1 MiB reads", READ, (16, ONE), (0.7, 1.0)),
    round_trips("remote stat, in round trips of a socket", "stat"),
    round_trips("remote create, in round trips of a socket", "create"),
    times_tcp("remote 4 MiB writes against TCP", "write-4m", 1),
    times_tcp("remote 4 MiB writes against TCP, 4 streams", "write-4m", 4),
    times_tcp("remote 4 MiB reads against TCP", "read-4m", 1),
    times_tcp("remote 4 MiB reads against TCP, 4 streams", "read-4m", 4),
    times_copied("remote 4 MiB writes against TCP and a copy", "write-4m", 1),
    times_copied("remote 4 MiB writes against TCP and a copy, 4 streams", "write-4m", 4),
    times_copied("remote 4 MiB reads against TCP and a copy", "read-4m", 1),
    times_copied("remote 4 MiB reads against TCP and a copy, 4 streams", "read-4m", 4),
    passes("two mounts: a byte to and fro, in round trips", "pass"),
    passes("two mounts: the same in a file of 1 MiB", "pass-in-1m"),
    one_against_own("two mounts: 1 MiB in turn against own files", "write-1m-one", "write-1m-own"),
    one_against_own("two mounts: 47008 bytes in turn", "write-hard-one", "write-hard-own"),
    of_linear("16 hosts against 16 times 1: create", "create"),
    of_linear("16 hosts against 16 times 1: stat", "stat"),
    of_linear("16 hosts: create in the working directory", "create-inside"),
    of_linear("16 hosts: stat in the working directory", "stat-inside"),
    of_linear("16 hosts against 16 times 1: 64 KiB writes", "write-64k"),
    of_linear("16 hosts against 16 times 1: 64 KiB reads", "read-64k"),
    half_of("instructions of stat, against before", "stat", 4563.0),
    half_of("instructions of create, against before", "create", 9178.0),
    half_of("instructions of an 8 KiB read, against before", "random-read-8k", 1708.0),
];

/// All bars with what the report has for them.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    BARS.iter().map(|bar| bar.row(report)).collect()
}

impl Bar {
    fn row(&self, report: &Report) -> Row {
        let median = |cell| find(report, cell).map(|(to, _)| to.median);
        let (to, by) = match self.to {
            To::Cell(cell) => (median(cell), ""),
            To::Times(factor, cell) => (median(cell).map(|value| factor * value), ""),
            To::Either(first, second) => match median(first) {
                Some(value) => (Some(value), first.3),
                None => (median(second), second.3),
            },
            To::Before(value) => (Some(value), ""),
        };
        let (measured, detail) = match (find(report, self.of), to) {
            (Some((of, unit)), Some(to)) => {
                let detail = format!("{} / {} {unit} {by}", short(of.median), short(to));
                (Some(of.median / to), detail.trim_end().into())
            }
            _ => (None, report.why_absent(self.of.0).unwrap_or("not measured").to_owned()),
        };
        Row {
            what: self.what.into(),
            measured,
            bar: self.bar,
            reach: self.reach,
            side: self.side,
            detail,
        }
    }
}

fn find(report: &Report, cell: Cell) -> Option<(Summary, &'static str)> {
    let Cell(group, test, processes, place) = cell;
    report.summary((group, test, processes), place)
}

impl Row {
    /// Whether the bar is met, if it was measured.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.measured.map(|value| match self.side {
            Side::AtLeast => value >= self.bar,
            Side::AtMost => value <= self.bar,
        })
    }

    fn sign(&self) -> &'static str {
        if self.side == Side::AtLeast { ">=" } else { "<=" }
    }
}

/// The table of the bars.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = ["bar", "measured", "bar", "reach", "met", "values"];
    let [what, measured, bar, reach, met, values] = head;
    let mut text = format!("{what:<48}{measured:>9}{bar:>9}{reach:>7}  {met:<4} {values}\n");
    for row in rows {
        let measured = row.measured.map_or("-".into(), |value| format!("{value:.2}"));
        let met = row.is_met().map_or("-", |met| if met { "yes" } else { "NO" });
        let bar = format!("{} {:.2}", row.sign(), row.bar);
        let reach = row.reach.map_or("-".into(), |value| format!("{value:.2}"));
        let (what, values) = (&row.what, &row.detail);
        let _ = writeln!(text, "{what:<48}{measured:>9}{bar:>9}{reach:>7}  {met:<4} {values}");
    }
    let of = |wanted: Option<bool>| rows.iter().filter(|row| row.is_met() == wanted).count();
    let (met, missed, open) = (of(Some(true)), of(Some(false)), of(None));
    let _ = writeln!(text, "{met} met, {missed} not met, {open} not measured");
    text
}

/// The bars, for other programs.
pub(crate) fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "what": row.what,
            "measured": row.measured,
            "sign": row.sign(),
            "bar": row.bar,
            "reach": row.reach,
            "met": row.is_met(),
            "values": row.detail,
        })
    };
    Value::Array(rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    //! Verdicts, and that no bar asks for a test that no group makes.
    use super::*;
    use crate::report::Key;

    fn report(values: &[(&str, &str, u32, &str, f64)]) -> Report {
        let mut report = Report::new(vec!["tmpfs".into()]);
        for &(group, test, processes, place, value) in values {
            let key = Key { group: group.into(), test: test.into(), processes, unit: "/s" };
            report.add(key, place, value);
        }
        report
    }

    #[test]
    fn a_ratio_meets_its_bar_or_not() {
        let rows = rows(&report(&[
            ("metadata", "stat", 1, "tmpfs", 100.0),
            ("metadata", "stat", 1, "forebay-1", 250.0),
            ("metadata", "create", 2, "tmpfs", 100.0),
            ("metadata", "create", 2, "forebay-1", 60.0),
            ("metadata", "create", 2, "forebay-4", 60.0),
        ]));
        let find = |what: &str| rows.iter().find(|row| row.what == what).expect("a row");
        assert_eq!((find("stat").measured, find("stat").is_met()), (Some(2.5), Some(true)));
        assert_eq!(find("create, 2 processes").is_met(), Some(false));
        assert_eq!(find("4 daemons against 1: create").measured, Some(1.0));
        assert_eq!(find("unlink, 2 processes").is_met(), None);
        let text = table(&rows);
        assert!(text.contains("2 met, 1 not met, "), "{text}");
        assert!(text.contains("not measured\n"), "{text}");
        assert_eq!(json(&rows)[0]["met"], true);
    }

    #[test]
    fn at_most_is_the_other_side() {
        for (value, met) in [(4563.0, false), (2281.0, true)] {
            let rows = rows(&report(&[("profile", "stat", 1, "forebay-1", value)]));
            let mut rows = rows.iter().filter(|row| row.what.starts_with("instructions of stat"));
            assert_eq!(rows.next().map(Row::is_met), Some(Some(met)), "{value}");
        }
    }

    #[test]
    fn a_reason_stands_where_nothing_was_measured() {
        let mut report = report(&[]);
        report.absent("hard-shared", "needs root");
        let rows = rows(&report);
        assert!(
            rows.iter().any(|row| row.what.starts_with("ior-hard") && row.detail == "needs root")
        );
    }
}
