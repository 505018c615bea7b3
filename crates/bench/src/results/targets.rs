//! Performance targets: the required value of each kind of operation beside the measured one.
//!
//! A row is a median, or its ratio to another median of the same run. Without a measurement there
//! is no verdict.

use crate::results::report::{Report, Summary, short};
use crate::suites::followers::{self, ALWAYS, BATCH, NONE};
use crate::suites::growth::{self, EIGHT, FOUR as FOUR_HOSTS, HALVED, HOT, RUN};
use crate::suites::remote;
use crate::suites::replicas::{self, PART_LEFT, STREAMS};
use crate::suites::scaling;
use crate::suites::shares::{self, ALONE, RULED, UNRULED};
use crate::suites::two_mounts;
use serde_json::{Value, json};
use std::fmt::Write;

/// Group, test, number of processes, and file system.
#[derive(Clone, Copy, Debug)]
struct Cell(&'static str, &'static str, u32, &'static str);

/// On which side of the target a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    AtLeast,
    AtMost,
}

/// Definition of one target.
struct PerformanceTarget {
    what: &'static str,
    of: Cell,
    to: Reference,
    side: Direction,
    target: f64,
    /// A value that would be better still.
    ideal: Option<f64>,
}

/// Reference by which the value is divided.
#[derive(Clone, Copy, Debug)]
enum Reference {
    /// Another median of the same run.
    Cell(Cell),
    /// A multiple of another median of the same run.
    Times(f64, Cell),
    /// The first of two medians that was measured.
    Either(Cell, Cell),
    /// A fixed value, measured before the operation was optimised.
    Before(f64),
}

/// One target with its measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: Option<f64>,
    pub(crate) target: f64,
    pub(crate) ideal: Option<f64>,
    side: Direction,
    /// The group of tests that measures it.
    group: &'static str,
    /// The two values behind the ratio, or why there is none.
    detail: String,
}

const ONE: &str = "forebay-1";
const FOUR: &str = "forebay-4";
const TMPFS: &str = "tmpfs";
const SOCKET: &str = "socket";
const HOME: &str = "home";

/// Minimum ratio to tmpfs, with one daemon.
const fn vs_tmpfs(
    what: &'static str,
    (group, test): (&'static str, &'static str),
    processes: u32,
    (target, ideal): (f64, f64),
) -> PerformanceTarget {
    let of = Cell(group, test, processes, ONE);
    let to = Reference::Cell(Cell(group, test, processes, TMPFS));
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target, ideal: Some(ideal) }
}

/// Minimum ratio to one daemon with two processes: of four daemons with two processes, or of one
/// daemon with sixteen.
const fn vs_one_daemon(
    what: &'static str,
    (group, test): (&'static str, &'static str),
    (processes, system): (u32, &'static str),
    (target, ideal): (f64, f64),
) -> PerformanceTarget {
    let of = Cell(group, test, processes, system);
    let to = Reference::Cell(Cell(group, test, 2, ONE));
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target, ideal: Some(ideal) }
}

/// At most half of the instructions that an operation took at commit ab04362, where they were first
/// counted (release build by Rust 1.95; the count does not depend on the machine).
const fn half_the_instructions(
    what: &'static str,
    test: &'static str,
    before: f64,
) -> PerformanceTarget {
    let of = Cell("profile", test, 1, ONE);
    PerformanceTarget {
        what,
        of,
        to: Reference::Before(before),
        side: Direction::AtMost,
        target: 0.5,
        ideal: None,
    }
}

/// A value with two copies of all data, in parts of a fixed one.
const fn with_copies(
    what: &'static str,
    test: &'static str,
    should_be: f64,
    (side, target): (Direction, f64),
    ideal: Option<f64>,
) -> PerformanceTarget {
    let of = Cell(replicas::GROUP, test, 1, replicas::TWO);
    PerformanceTarget { what, of, to: Reference::Before(should_be), side, target, ideal }
}

/// Maximum of the longest call while a host dies, in seconds.
const fn stall(what: &'static str, test: &'static str) -> PerformanceTarget {
    with_copies(what, test, 1e3, (Direction::AtMost, 1.0), Some(0.3))
}

/// No call may fail.
const fn no_errors(what: &'static str, test: &'static str) -> PerformanceTarget {
    with_copies(what, test, 1.0, (Direction::AtMost, 0.0), None)
}

/// Minimum ratio of the throughput with two copies to that with one, over links that are the limit.
const fn vs_one_copy(
    what: &'static str,
    test: &'static str,
    (target, ideal): (f64, f64),
) -> PerformanceTarget {
    let to = Reference::Cell(Cell(replicas::GROUP, test, STREAMS, replicas::ONE));
    let of = Cell(replicas::GROUP, test, STREAMS, replicas::TWO);
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target, ideal: Some(ideal) }
}

/// Maximum latency in socket round trips between the same hosts.
const fn round_trips(what: &'static str, test: &'static str) -> PerformanceTarget {
    let to = Reference::Cell(Cell(remote::GROUP, "round-trip", 1, SOCKET));
    let of = Cell(remote::GROUP, test, 1, "forebay");
    PerformanceTarget { what, of, to, side: Direction::AtMost, target: 1.5, ideal: Some(1.1) }
}

/// Maximum time that waiting for a follower adds, in socket round trips between the same hosts.
const fn round_trips_more(what: &'static str, test: &'static str) -> PerformanceTarget {
    let of = Cell(followers::GROUP, test, 1, ALWAYS);
    let to = Reference::Before(1.0);
    PerformanceTarget { what, of, to, side: Direction::AtMost, target: 1.3, ideal: Some(1.0) }
}

/// Minimum ratio to the throughput of iperf3 between the same hosts, or else of the benchmark's own
/// sockets.
const fn vs_tcp(what: &'static str, test: &'static str, streams: u32) -> PerformanceTarget {
    let iperf3 = Cell(remote::GROUP, test, streams, "iperf3");
    let to = Reference::Either(iperf3, Cell(remote::GROUP, test, streams, SOCKET));
    let of = Cell(remote::GROUP, test, streams, "forebay");
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 0.9, ideal: Some(1.0) }
}

/// Minimum ratio to the throughput of a socket owned by another thread, with one copy in between:
/// the limit for clients that leave connections to a daemon.
const fn vs_copied_tcp(what: &'static str, test: &'static str, streams: u32) -> PerformanceTarget {
    let to = Reference::Cell(Cell(remote::GROUP, test, streams, "copied"));
    let of = Cell(remote::GROUP, test, streams, "forebay");
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 0.9, ideal: Some(1.0) }
}

/// Minimum ratio to 16 times the rate of one host.
const fn vs_linear(what: &'static str, test: &'static str) -> PerformanceTarget {
    let to = Reference::Times(16.0, Cell(scaling::GROUP, test, 1, HOME));
    let of = Cell(scaling::GROUP, test, 16, HOME);
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 0.8, ideal: Some(0.95) }
}

/// Minimum ratio to 8 times the rate of one host, where the hosts are the limit and not this machine.
const fn vs_linear_of_8(what: &'static str, test: &'static str) -> PerformanceTarget {
    let to = Reference::Times(8.0, Cell(scaling::GROUP, test, 1, HOME));
    let of = Cell(scaling::GROUP, test, 8, HOME);
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 0.95, ideal: Some(1.0) }
}

/// Minimum ratio of operations on names while twice as many hosts serve them.
const fn vs_half_the_hosts(
    what: &'static str,
    (of, to): (&'static str, &'static str),
) -> PerformanceTarget {
    let to = Reference::Cell(Cell(growth::GROUP, "names", 1, to));
    let of = Cell(growth::GROUP, "names", 1, of);
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 1.9, ideal: Some(2.0) }
}

/// Maximum of a value of the group of growth, in parts of a fixed one.
const fn grown(
    what: &'static str,
    test: &'static str,
    (should_be, target): (f64, f64),
) -> PerformanceTarget {
    let of = Cell(growth::GROUP, test, 1, RUN);
    let to = Reference::Before(should_be);
    PerformanceTarget { what, of, to, side: Direction::AtMost, target, ideal: None }
}

/// Maximum time until a write on one mount is visible on the other, in socket round trips between
/// the same hosts.
const fn passes(what: &'static str, test: &'static str) -> PerformanceTarget {
    let to = Reference::Cell(Cell(two_mounts::GROUP, "round-trip", 1, SOCKET));
    let of = Cell(two_mounts::GROUP, test, 2, two_mounts::MOUNTS);
    PerformanceTarget { what, of, to, side: Direction::AtMost, target: 3.0, ideal: Some(1.0) }
}

/// Minimum ratio of one file shared by both mounts to a file per mount.
const fn shared_vs_own(
    what: &'static str,
    one: &'static str,
    own: &'static str,
) -> PerformanceTarget {
    let to = Reference::Cell(Cell(two_mounts::GROUP, own, 2, two_mounts::MOUNTS));
    let of = Cell(two_mounts::GROUP, one, 2, two_mounts::MOUNTS);
    PerformanceTarget { what, of, to, side: Direction::AtLeast, target: 0.7, ideal: Some(1.0) }
}

/// A ratio between two columns of a row of the group of shares.
const fn columns(
    what: &'static str,
    (test, processes): (&'static str, u32),
    (of, to): (&'static str, &'static str),
    (side, target): (Direction, f64),
) -> PerformanceTarget {
    let to = Reference::Cell(Cell(shares::GROUP, test, processes, to));
    let of = Cell(shares::GROUP, test, processes, of);
    PerformanceTarget { what, of, to, side, target, ideal: Some(1.0) }
}

/// A value of the group of shares under its rule, in parts of what it should be.
const fn ruled(
    what: &'static str,
    (test, processes): (&'static str, u32),
    should_be: f64,
    (side, target): (Direction, f64),
) -> PerformanceTarget {
    let of = Cell(shares::GROUP, test, processes, RULED);
    PerformanceTarget { what, of, to: Reference::Before(should_be), side, target, ideal: Some(1.0) }
}

/// Maximum of instructions while a rule of shares is in force, of those without one.
const fn ruled_instructions(
    what: &'static str,
    test: &'static str,
    of: &'static str,
) -> PerformanceTarget {
    let to = Reference::Cell(Cell("profile", test, 1, ONE));
    let of = Cell("profile", of, 1, ONE);
    PerformanceTarget { what, of, to, side: Direction::AtMost, target: 1.01, ideal: Some(1.0) }
}

const RATED: (&str, u32) = ("set-rate-4-hosts", 4);
const RATE: f64 = shares::RATE_MIB as f64;

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

static TARGETS: [PerformanceTarget; 91] = [
    vs_tmpfs("stat", STAT, 1, (2.0, 4.0)),
    vs_tmpfs("stat, 2 processes", STAT, 2, (2.0, 4.0)),
    vs_tmpfs("open+close", OPEN, 1, (2.0, 4.0)),
    vs_tmpfs("open+close, 2 processes", OPEN, 2, (2.0, 4.0)),
    vs_tmpfs("create, 2 processes", CREATE, 2, (0.7, 1.5)),
    vs_tmpfs("unlink, 2 processes", UNLINK, 2, (0.7, 1.5)),
    vs_tmpfs("create+write+close of 3901 bytes", SMALL_WRITE, 1, (1.0, 2.0)),
    vs_tmpfs("create+write+close of 3901 bytes, 2 processes", SMALL_WRITE, 2, (1.0, 2.0)),
    vs_tmpfs("open+read+close of 3901 bytes", SMALL_READ, 1, (1.0, 2.0)),
    vs_tmpfs("open+read+close of 3901 bytes, 2 processes", SMALL_READ, 2, (1.0, 2.0)),
    vs_tmpfs("long directory with attributes", ("list", "readdir-stat"), 1, (1.0, 3.0)),
    vs_tmpfs("1 MiB writes of new data", WRITE, 1, (1.5, 2.5)),
    vs_tmpfs("1 MiB writes of new data, 2 processes", WRITE, 2, (1.5, 2.5)),
    vs_tmpfs("1 MiB reads", READ, 1, (1.0, 1.1)),
    vs_tmpfs("1 MiB reads, 2 processes", READ, 2, (1.0, 1.1)),
    vs_tmpfs("8 KiB random writes", RANDOM_WRITE, 1, (1.5, 3.0)),
    vs_tmpfs("8 KiB random writes, 2 processes", RANDOM_WRITE, 2, (1.5, 3.0)),
    vs_tmpfs("8 KiB random reads", RANDOM_READ, 1, (1.5, 3.0)),
    vs_tmpfs("8 KiB random reads, 2 processes", RANDOM_READ, 2, (1.5, 3.0)),
    PerformanceTarget {
        what: "ior-hard writes, one file against a file each",
        of: Cell("hard-shared", "write", 2, ONE),
        to: Reference::Cell(Cell("hard-own", "write", 2, ONE)),
        side: Direction::AtLeast,
        target: 0.8,
        ideal: Some(1.0),
    },
    vs_one_daemon("4 daemons against 1: create", CREATE, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("4 daemons against 1: stat", STAT, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("4 daemons against 1: open+close", OPEN, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("4 daemons against 1: unlink", UNLINK, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("4 daemons against 1: 1 MiB writes", WRITE, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("4 daemons against 1: 1 MiB reads", READ, (2, FOUR), (0.7, 0.9)),
    vs_one_daemon("16 processes against 2: create", CREATE, (16, ONE), (0.7, 1.0)),
    vs_one_daemon("16 processes against 2: stat", STAT, (16, ONE), (0.7, 1.0)),
    vs_one_daemon("16 processes against 2: open+close", OPEN, (16, ONE), (0.7, 1.0)),
    vs_one_daemon("16 processes against 2: unlink", UNLINK, (16, ONE), (0.7, 1.0)),
    vs_one_daemon("16 processes against 2: 1 MiB writes", WRITE, (16, ONE), (0.7, 1.0)),
    vs_one_daemon("16 processes against 2: 1 MiB reads", READ, (16, ONE), (0.7, 1.0)),
    round_trips("remote stat, in round trips of a socket", "stat"),
    round_trips("remote create, in round trips of a socket", "create"),
    vs_tcp("remote 4 MiB writes against TCP", "write-4m", 1),
    vs_tcp("remote 4 MiB writes against TCP, 4 streams", "write-4m", 4),
    vs_tcp("remote 4 MiB reads against TCP", "read-4m", 1),
    vs_tcp("remote 4 MiB reads against TCP, 4 streams", "read-4m", 4),
    vs_copied_tcp("remote 4 MiB writes against TCP and a copy", "write-4m", 1),
    vs_copied_tcp("remote 4 MiB writes against TCP and a copy, 4 streams", "write-4m", 4),
    vs_copied_tcp("remote 4 MiB reads against TCP and a copy", "read-4m", 1),
    vs_copied_tcp("remote 4 MiB reads against TCP and a copy, 4 streams", "read-4m", 4),
    passes("two mounts: a byte to and fro, in round trips", "pass"),
    passes("two mounts: the same in a file of 1 MiB", "pass-in-1m"),
    shared_vs_own("two mounts: 1 MiB in turn against own files", "write-1m-one", "write-1m-own"),
    shared_vs_own("two mounts: 47008 bytes in turn", "write-hard-one", "write-hard-own"),
    vs_linear("16 hosts against 16 times 1: create", "create"),
    vs_linear("16 hosts against 16 times 1: stat", "stat"),
    vs_linear("16 hosts: create in the working directory", "create-inside"),
    vs_linear("16 hosts: stat in the working directory", "stat-inside"),
    vs_linear("16 hosts against 16 times 1: 64 KiB writes", "write-64k"),
    vs_linear("16 hosts against 16 times 1: 64 KiB reads", "read-64k"),
    vs_linear_of_8("8 hosts against 8 times 1: create", "create"),
    vs_linear_of_8("8 hosts against 8 times 1: stat", "stat"),
    vs_linear_of_8("8 hosts against 8 times 1: remove", "remove"),
    vs_linear_of_8("8 hosts against 8 times 1: mkdir", "mkdir"),
    half_the_instructions("instructions of stat, against before", "stat", 4563.0),
    half_the_instructions("instructions of create, against before", "create", 9178.0),
    half_the_instructions(
        "instructions of an 8 KiB read, against before",
        "random-read-8k",
        1708.0,
    ),
    ruled_instructions(
        "instructions of a read, with a rule of shares",
        "random-read-8k",
        "random-read-8k ruled",
    ),
    ruled_instructions(
        "instructions of a write, with a rule of shares",
        "random-write-8k",
        "random-write-8k ruled",
    ),
    ruled(
        "shares: Jain's index of 8 jobs of mixed sizes",
        ("jain-8-time", 8),
        1.0,
        (Direction::AtLeast, 0.98),
    ),
    columns(
        "shares: 4 KiB reads beside a stream, time",
        ("small-read-4k", 1),
        (RULED, ALONE),
        (Direction::AtMost, 1.2),
    ),
    ruled(
        "shares: the stream's part of the rest",
        ("stream-of-the-rest", 4),
        1.0,
        (Direction::AtLeast, 0.8),
    ),
    ruled("shares: a set rate on 4 hosts, at least", RATED, RATE, (Direction::AtLeast, 0.95)),
    ruled("shares: a set rate on 4 hosts, at most", RATED, RATE, (Direction::AtMost, 1.05)),
    columns(
        "shares: one job beside an idle one, 4 MiB reads",
        ("one-read-4m", 4),
        (RULED, UNRULED),
        (Direction::AtLeast, 0.98),
    ),
    columns(
        "shares: one job, time of 4 KiB reads",
        ("one-read-4k", 1),
        (RULED, UNRULED),
        (Direction::AtMost, 1.02),
    ),
    ruled(
        "shares: delay by a slow request, of 10 ms",
        ("delay-by-slow", 1),
        10.0,
        (Direction::AtMost, 1.0),
    ),
    PerformanceTarget {
        what: "a follower: local create, batch against none",
        of: Cell(followers::GROUP, "create", 1, BATCH),
        to: Reference::Cell(Cell(followers::GROUP, "create", 1, NONE)),
        side: Direction::AtLeast,
        target: 0.95,
        ideal: Some(1.0),
    },
    round_trips_more("a follower: local create, always, round trips more", "create-more"),
    round_trips_more("a follower: local unlink, always, round trips more", "unlink-more"),
    stall("replicas: a host dies in writes, seconds", "death-write"),
    stall("replicas: a host dies in reads, seconds", "death-read"),
    stall("replicas: a host dies in operations on names", "death-names"),
    no_errors("replicas: errors of writes", "death-write-errors"),
    no_errors("replicas: errors of reads", "death-read-errors"),
    no_errors("replicas: errors of operations on names", "death-names-errors"),
    with_copies(
        "replicas: both copies die, seconds until EIO",
        "gone-read",
        1e3,
        (Direction::AtMost, 1.0),
        None,
    ),
    vs_one_copy("replicas: writes of two copies against one", "write-1m", (0.45, 0.5)),
    vs_one_copy("replicas: reads of two copies against one", "read-1m", (1.0, 1.0)),
    PerformanceTarget {
        what: "replicas: local bursts written behind, against one copy",
        of: Cell(replicas::GROUP, "burst-1m", 1, replicas::BEHIND),
        to: Reference::Cell(Cell(replicas::GROUP, "burst-1m", 1, replicas::ONE)),
        side: Direction::AtLeast,
        target: 0.9,
        ideal: Some(1.0),
    },
    with_copies(
        "replicas: the rate of copying anew, of what may be",
        "refill-part",
        1.0,
        (Direction::AtLeast, 0.8),
        Some(1.0),
    ),
    PerformanceTarget {
        what: "replicas: a writer beside that, of itself alone",
        of: Cell(replicas::GROUP, "write-beside", 1, replicas::TWO),
        to: Reference::Cell(Cell(replicas::GROUP, "write-beside", 1, replicas::ALONE)),
        side: Direction::AtLeast,
        target: PART_LEFT,
        ideal: Some(1.0),
    },
    vs_half_the_hosts("growth: names, 8 hosts against 4", (EIGHT, FOUR_HOSTS)),
    grown("growth: calls that failed", "errors", (1.0, 0.0)),
    grown("growth: names lost after the return to 4", "lost-names", (1.0, 0.0)),
    grown("growth: files with lost bytes after it", "lost-bytes", (1.0, 0.0)),
    vs_half_the_hosts("a hot host gives half of it away: names", (HALVED, HOT)),
    grown("a hot host: longest call meanwhile, of 10 ms", "relief-names", (10.0, 1.0)),
    grown("a hot host: calls that failed", "relief-errors", (1.0, 0.0)),
];

/// All targets with the report's values for them.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    TARGETS.iter().map(|target| target.row(report)).collect()
}

impl PerformanceTarget {
    fn row(&self, report: &Report) -> Row {
        let median = |cell| find(report, cell).map(|(to, _)| to.median);
        let (to, by) = match self.to {
            Reference::Cell(cell) => (median(cell), ""),
            Reference::Times(factor, cell) => (median(cell).map(|value| factor * value), ""),
            Reference::Either(first, second) => match median(first) {
                Some(value) => (Some(value), first.3),
                None => (median(second), second.3),
            },
            Reference::Before(value) => (Some(value), ""),
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
            target: self.target,
            ideal: self.ideal,
            side: self.side,
            group: self.of.0,
            detail,
        }
    }
}

fn find(report: &Report, cell: Cell) -> Option<(Summary, &'static str)> {
    let Cell(group, test, processes, system) = cell;
    report.summary((group, test, processes), system)
}

impl Row {
    /// Whether the target is met, if it was measured.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.measured.map(|value| match self.side {
            Direction::AtLeast => value >= self.target,
            Direction::AtMost => value <= self.target,
        })
    }

    /// Whether a smaller value is better.
    pub(crate) fn is_less_better(&self) -> bool {
        self.side == Direction::AtMost
    }

    fn sign(&self) -> &'static str {
        if self.side == Direction::AtLeast { ">=" } else { "<=" }
    }
}

/// The table of targets.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = ["operation", "measured", "target", "ideal", "met", "values"];
    let [what, measured, target, ideal, met, values] = head;
    let mut text = format!("{what:<48}{measured:>9}{target:>9}{ideal:>7}  {met:<4} {values}\n");
    for row in rows {
        let measured = row.measured.map_or("-".into(), |value| format!("{value:.2}"));
        let met = row.is_met().map_or("-", |met| if met { "yes" } else { "NO" });
        let target = format!("{} {:.2}", row.sign(), row.target);
        let ideal = row.ideal.map_or("-".into(), |value| format!("{value:.2}"));
        let (what, values) = (&row.what, &row.detail);
        let _ = writeln!(text, "{what:<48}{measured:>9}{target:>9}{ideal:>7}  {met:<4} {values}");
    }
    let of = |expected: Option<bool>| rows.iter().filter(|row| row.is_met() == expected).count();
    let (met, missed, open) = (of(Some(true)), of(Some(false)), of(None));
    let _ = writeln!(text, "{met} met, {missed} not met, {open} not measured");
    text
}

/// The targets, for other programs.
pub(crate) fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "what": row.what,
            "group": row.group,
            "measured": row.measured,
            "sign": row.sign(),
            "target": row.target,
            "ideal": row.ideal,
            "met": row.is_met(),
            "values": row.detail,
        })
    };
    Value::Array(rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    //! Verdicts, and details of targets without a measurement.
    use super::*;
    use crate::results::report::Key;

    fn report(values: &[(&str, &str, u32, &str, f64)]) -> Report {
        let mut report = Report::new(vec!["tmpfs".into()]);
        for &(group, test, processes, system, value) in values {
            let key = Key { group: group.into(), test: test.into(), processes, unit: "/s" };
            report.add(key, system, value);
        }
        report
    }

    #[test]
    fn a_ratio_meets_its_target_or_not() {
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
    fn a_maximum_is_met_below_it() {
        for (value, met) in [(4563.0, false), (2281.0, true)] {
            let rows = rows(&report(&[("profile", "stat", 1, "forebay-1", value)]));
            let mut rows = rows.iter().filter(|row| row.what.starts_with("instructions of stat"));
            assert_eq!(rows.next().map(Row::is_met), Some(Some(met)), "{value}");
        }
    }

    #[test]
    fn an_unmeasured_target_shows_the_reason() {
        let mut report = report(&[]);
        report.absent("hard-shared", "needs root");
        let rows = rows(&report);
        assert!(
            rows.iter().any(|row| row.what.starts_with("ior-hard") && row.detail == "needs root")
        );
    }
}
