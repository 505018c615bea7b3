//! The workloads.

use super::Workload;
use super::recorder::Recorder;
use insight::profile::{JobProfile, ThrashingBytes, TierBytes};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Records of IOR's hard test of the IO500.
const ODD: u64 = 47_008;

/// Eight ranks on four hosts.
fn parallel() -> Recorder {
    Recorder::new(4, 8)
}

fn serial() -> Recorder {
    Recorder::new(1, 1)
}

/// Each rank writes `number` records of `length` into a file of its own.
fn own_files(to: &mut Recorder, number: u64, length: u64) {
    for rank in 0..to.ranks() {
        let path = format!("/out/part{rank}");
        to.open(rank, &path);
        for at in 0..number {
            to.write(rank, &path, at * length, length);
        }
        to.close(rank, &path);
    }
}

/// All ranks write one file: each its own part (`segments`), or records in turn.
fn shared_file(to: &mut Recorder, number: u64, length: u64, segments: bool, is_read: bool) {
    let ranks = u64::from(to.ranks());
    for rank in 0..to.ranks() {
        to.open(rank, "/out/shared");
        for at in 0..number {
            let record =
                if segments { u64::from(rank) * number + at } else { at * ranks + u64::from(rank) };
            match is_read {
                true => to.read(rank, "/out/shared", record * length, length),
                false => to.write(rank, "/out/shared", record * length, length),
            }
        }
        to.close(rank, "/out/shared");
    }
}

/// Numbers below `below` that look random, the same in each run.
fn random(at: u64, below: u64) -> u64 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        % below
}

fn read_file(to: &mut Recorder, rank: u32, path: &str, size: u64, length: u64) {
    to.prepare(path, size);
    to.open(rank, path);
    let mut at = 0;
    while at < size {
        to.read(rank, path, at, length.min(size - at));
        at += length;
    }
    to.close(rank, path);
}

fn with(mut to: Recorder, fill: impl FnOnce(&mut Recorder)) -> JobProfile {
    fill(&mut to);
    to.end()
}

macro_rules! workload {
    ($name:literal, [$($trigger:literal),*], $run:expr) => {
        Workload { name: $name, expected: &[$($trigger),*], run: || $run }
    };
}

pub(crate) fn all() -> Vec<Workload> {
    let groups = [
        own_files_of_all_sizes(),
        synced_checkpoints(),
        unequal_ranks(),
        shared_files_written(),
        shared_files_read(),
        copies_and_logs(),
        random_access(),
        training(),
        searches(),
        directories(),
        cold_inputs(),
        waits(),
    ];
    groups.into_iter().flatten().collect()
}

fn own_files_of_all_sizes() -> Vec<Workload> {
    vec![
        workload!(
            "own files, large records",
            [],
            with(parallel(), |to| own_files(to, 200, 4 * MIB))
        ),
        workload!(
            "own files, records of 1 MiB",
            [],
            with(parallel(), |to| own_files(to, 1000, MIB))
        ),
        workload!(
            "own files, small records",
            ["small-writes"],
            with(parallel(), |to| own_files(to, 5000, 4 * KIB))
        ),
        workload!(
            "own files, few small records",
            [],
            with(parallel(), |to| own_files(to, 100, 4 * KIB))
        ),
        workload!(
            "own files, odd records",
            ["small-writes", "misaligned-writes"],
            with(parallel(), |to| own_files(to, 2000, ODD))
        ),
        workload!(
            "a header before large records",
            [],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    let path = format!("/out/part{rank}");
                    to.open(rank, &path);
                    to.write(rank, &path, 0, 512);
                    for at in 0..100 {
                        to.write(rank, &path, 4096 + at * 2 * MIB, 2 * MIB);
                    }
                }
            })
        ),
    ]
}

fn synced_checkpoints() -> Vec<Workload> {
    vec![
        workload!(
            "a checkpoint that is synced after each record",
            ["sync-after-each-write"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    let path = format!("/out/part{rank}");
                    to.open(rank, &path);
                    for at in 0..50 {
                        to.write(rank, &path, at * 4 * MIB, 4 * MIB);
                        to.sync(rank, &path);
                    }
                }
            })
        ),
        workload!(
            "a checkpoint that is synced once",
            [],
            with(parallel(), |to| {
                own_files(to, 100, 4 * MIB);
                for rank in 0..to.ranks() {
                    to.sync(rank, &format!("/out/part{rank}"));
                }
            })
        ),
        workload!(
            "checkpoint and restart",
            [],
            with(parallel(), |to| {
                own_files(to, 100, 4 * MIB);
                for rank in 0..to.ranks() {
                    read_file(to, rank, &format!("/out/part{rank}"), 400 * MIB, 4 * MIB);
                }
            })
        ),
        workload!(
            "a file overwritten ten times",
            ["repeated-writes"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    let path = format!("/out/part{rank}");
                    to.open(rank, &path);
                    for _ in 0..10 {
                        for at in 0..10 {
                            to.write(rank, &path, at * 4 * MIB, 4 * MIB);
                        }
                    }
                }
            })
        ),
    ]
}

fn unequal_ranks() -> Vec<Workload> {
    vec![
        workload!(
            "one rank collects",
            ["unequal-writes"],
            with(parallel(), |to| {
                to.open(0, "/out/all");
                for at in 0..800 {
                    to.write(0, "/out/all", at * 4 * MIB, 4 * MIB);
                }
            })
        ),
        workload!(
            "a slow host",
            ["slow-hosts"],
            with(parallel(), |to| {
                to.slowness[3] = 5.0;
                own_files(to, 400, 4 * MIB);
            })
        ),
        workload!(
            "unequal parts",
            ["unequal-writes"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    let path = format!("/out/part{rank}");
                    to.open(rank, &path);
                    for at in 0..20 * u64::from(rank + 1) {
                        to.write(rank, &path, at * 4 * MIB, 4 * MIB);
                    }
                }
            })
        ),
        workload!(
            "an input that one rank reads",
            ["unequal-reads"],
            with(parallel(), |to| read_file(to, 0, "/in/mesh", 800 * MIB, 4 * MIB))
        ),
    ]
}

fn shared_files_written() -> Vec<Workload> {
    vec![
        workload!(
            "a shared file in large segments",
            [],
            with(parallel(), |to| shared_file(to, 200, 4 * MIB, true, false))
        ),
        workload!(
            "a shared file in large turns",
            [],
            with(parallel(), |to| shared_file(to, 200, 4 * MIB, false, false))
        ),
        workload!(
            "a shared file in small segments",
            ["small-writes", "small-writes-of-shared-file"],
            with(parallel(), |to| shared_file(to, 2000, 64 * KIB, true, false))
        ),
        workload!(
            "a shared file in small turns",
            ["small-writes", "small-writes-of-shared-file"],
            with(parallel(), |to| shared_file(to, 2000, 64 * KIB, false, false))
        ),
        workload!(
            "a shared file in odd turns",
            ["small-writes", "small-writes-of-shared-file", "misaligned-writes"],
            with(parallel(), |to| shared_file(to, 2000, ODD, false, false))
        ),
        workload!(
            "groups of ranks share files",
            [],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    let path = format!("/out/group{}", rank / 4);
                    to.open(rank, &path);
                    for at in 0..100 {
                        to.write(rank, &path, (u64::from(rank % 4) * 100 + at) * 4 * MIB, 4 * MIB);
                    }
                }
            })
        ),
    ]
}

fn shared_files_read() -> Vec<Workload> {
    vec![
        workload!(
            "odd turns read back",
            ["small-reads", "small-reads-of-shared-file", "misaligned-reads"],
            with(parallel(), |to| shared_file(to, 2000, ODD, false, true))
        ),
        workload!(
            "a shared input in large segments",
            [],
            with(parallel(), |to| shared_file(to, 200, 4 * MIB, true, true))
        ),
        workload!(
            "a shared input that all read whole",
            [],
            with(parallel(), |to| (0..8).for_each(|rank| read_file(
                to,
                rank,
                "/in/mesh",
                400 * MIB,
                4 * MIB
            )))
        ),
        workload!(
            "a shared file of which one rank writes twice as much",
            ["unequal-writes", "unequal-writes-of-shared-file", "slow-rank-writes"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    to.open(rank, "/out/shared");
                    for at in 0..if rank == 7 { 400 } else { 200 } {
                        to.write(
                            rank,
                            "/out/shared",
                            (u64::from(rank) * 200 + at) * 4 * MIB,
                            4 * MIB,
                        );
                    }
                }
            })
        ),
    ]
}

fn copies_and_logs() -> Vec<Workload> {
    vec![
        workload!(
            "a copy by large blocks",
            [],
            with(serial(), |to| {
                read_file(to, 0, "/in/a", 2000 * MIB, 2 * MIB);
                own_files(to, 1000, 2 * MIB);
            })
        ),
        workload!(
            "a copy by small blocks",
            ["small-reads", "small-writes"],
            with(serial(), |to| {
                read_file(to, 0, "/in/a", 100 * MIB, 32 * KIB);
                own_files(to, 3200, 32 * KIB);
            })
        ),
        workload!(
            "a log of lines",
            ["small-writes", "misaligned-writes"],
            with(serial(), |to| own_files(to, 20_000, 120))
        ),
        workload!("a short log", [], with(serial(), |to| own_files(to, 500, 120))),
        workload!(
            "a journal",
            ["sync-after-each-write"],
            with(serial(), |to| {
                to.open(0, "/journal");
                for at in 0..900 {
                    to.write(0, "/journal", at * 4 * KIB, 4 * KIB);
                    to.sync(0, "/journal");
                }
            })
        ),
        workload!(
            "a strided reader",
            ["small-reads"],
            with(serial(), |to| {
                to.open(0, "/in/cube");
                for at in 0..5000 {
                    to.read(0, "/in/cube", at * MIB, 4 * KIB);
                }
            })
        ),
    ]
}

fn random_access() -> Vec<Workload> {
    vec![
        workload!(
            "random reads of a database",
            ["small-reads", "random-reads"],
            with(serial(), |to| {
                to.open(0, "/db");
                for at in 0..10_000 {
                    to.read(0, "/db", random(at, 1 << 20) * 8 * KIB, 8 * KIB);
                }
            })
        ),
        workload!(
            "random updates of a database",
            ["small-writes", "random-writes"],
            with(serial(), |to| {
                to.open(0, "/db");
                for at in 0..10_000 {
                    to.write(0, "/db", random(at, 1 << 20) * 8 * KIB, 8 * KIB);
                }
            })
        ),
        workload!(
            "an input read five times",
            ["repeated-reads"],
            with(serial(), |to| {
                (0..5).for_each(|_| read_file(to, 0, "/in/a", 400 * MIB, 4 * MIB));
            })
        ),
        workload!(
            "a file opened for each line",
            ["reopened-files"],
            with(serial(), |to| {
                for at in 0..1000 * 2 {
                    to.open(0, "/status");
                    to.write(0, "/status", at * 2 * MIB, 2 * MIB);
                    to.close(0, "/status");
                }
            })
        ),
        workload!(
            "matrix columns read backwards",
            ["random-reads"],
            with(serial(), |to| {
                to.open(0, "/in/matrix");
                for at in (0..2000).rev() {
                    to.read(0, "/in/matrix", at * 2 * MIB, MIB);
                }
            })
        ),
    ]
}

fn training() -> Vec<Workload> {
    vec![
        workload!(
            "training on pictures",
            ["small-reads", "whole-small-files"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    for at in 0..500 {
                        read_file(
                            to,
                            rank,
                            &format!("/in/class{}/{rank}-{at}", at % 50),
                            50 * KIB,
                            64 * KIB,
                        );
                    }
                }
            })
        ),
        workload!(
            "training on large shards",
            [],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    for at in 0..4 {
                        read_file(to, rank, &format!("/in/shard{rank}-{at}"), 256 * MIB, 2 * MIB);
                    }
                }
            })
        ),
    ]
}

fn searches() -> Vec<Workload> {
    vec![
        workload!(
            "a program with a long search path",
            ["absent-names"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    for module in 0..200 {
                        for place in 0..8 {
                            to.absent(rank, &format!("/env/path{place}/module{module}.py"));
                        }
                        read_file(
                            to,
                            rank,
                            &format!("/env/lib/module{module}.py"),
                            2 * MIB,
                            2 * MIB,
                        );
                    }
                }
            })
        ),
        workload!(
            "a program that imports a few modules",
            [],
            with(serial(), |to| {
                for module in 0..100 {
                    to.absent(0, &format!("/env/a/module{module}.py"));
                    to.absent(0, &format!("/env/b/module{module}.py"));
                    read_file(to, 0, &format!("/env/c/module{module}.py"), 20 * KIB, 64 * KIB);
                }
            })
        ),
    ]
}

fn directories() -> Vec<Workload> {
    vec![
        workload!(
            "mdtest in one directory",
            ["hot-directory"],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    for at in 0..5000 {
                        let path = format!("/dir/file{rank}.{at}");
                        to.open(rank, &path);
                        to.name(rank, &path);
                    }
                }
            })
        ),
        workload!(
            "mdtest in a directory for each rank",
            [],
            with(parallel(), |to| {
                for rank in 0..to.ranks() {
                    for at in 0..5000 {
                        to.name(rank, &format!("/dir{rank}/file{at}"));
                    }
                }
            })
        ),
        workload!(
            "a tree that is listed",
            ["long-metadata"],
            with(serial(), |to| {
                for at in 0..4_000_000_u64 {
                    if at % 1000 == 0 {
                        to.compute(0, 1e-3);
                    }
                    to.name(0, "/tree/file");
                }
            })
        ),
    ]
}

fn cold_inputs() -> Vec<Workload> {
    vec![
        workload!(
            "a cold input",
            ["cold-reads"],
            with(parallel(), |to| {
                to.is_cold = true;
                shared_file(to, 100, 4 * MIB, true, true);
            })
        ),
        workload!(
            "an input of which little is cold",
            [],
            with(parallel(), |to| {
                shared_file(to, 190, 4 * MIB, true, true);
                to.is_cold = true;
                (0..8).for_each(|rank| {
                    read_file(to, rank, &format!("/in/new{rank}"), 40 * MIB, 4 * MIB)
                });
            })
        ),
        workload!(
            "a working set larger than the tiers",
            ["cold-reads", "thrashing"],
            with(parallel(), |to| {
                to.is_cold = true;
                shared_file(to, 100, 4 * MIB, true, true);
                to.job.thrashing = Some(ThrashingBytes {
                    seconds: 30.0,
                    fetched: 8000 * MIB,
                    refetched: 6000 * MIB,
                    tiers: 1000 * MIB,
                    sufficient: 4000 * MIB,
                    ..ThrashingBytes::default()
                });
            })
        ),
        workload!(
            "data of other hosts",
            ["remote-reads"],
            with(parallel(), |to| {
                shared_file(to, 100, 4 * MIB, true, true);
                let bytes = to.job.read_tiers.memory;
                to.job.read_tiers = TierBytes {
                    memory: bytes / 8,
                    remote: bytes - bytes / 8,
                    ..TierBytes::default()
                };
            })
        ),
    ]
}

fn waits() -> Vec<Workload> {
    vec![
        workload!(
            "writers that wait for space",
            ["waits-for-space"],
            with(parallel(), |to| {
                own_files(to, 200, 4 * MIB);
                to.job.waits.admission = 4.0;
            })
        ),
        workload!(
            "a job that a larger one disturbs",
            ["below-its-share"],
            with(parallel(), |to| {
                own_files(to, 200, 4 * MIB);
                to.job.share = Some(0.5);
            })
        ),
        workload!(
            "a job with its share",
            [],
            with(parallel(), |to| {
                own_files(to, 200, 4 * MIB);
                to.job.share = Some(0.97);
            })
        ),
    ]
}
