//! Profiles as text: ranks that do the same are one record, and advice on what is read again is that on
//! the profile itself.

use crate::workloads::programs;
use insight::advice::advise;
use insight::merged::equal_ranks;
use insight::pattern::{Direction, of_job};
use insight::profile::{
    FileProfile, FileUse, JobProfile, Operations, RankProfile, Span, TierBytes, Transfers,
};
use insight::report::Report;
use serde_json::Value;
use std::collections::BTreeSet;

const RANKS: u32 = 1024;

fn transfers(number: u64, seconds: f64, begin: u64) -> Transfers {
    let mut sizes = [0; 10];
    sizes[5] = number;
    let bytes = number << 20;
    let consecutive = number.saturating_sub(1);
    let (lowest, highest) = (begin, begin + bytes);
    Transfers {
        number,
        bytes,
        seconds,
        sizes,
        consecutive,
        lowest,
        highest,
        ..Transfers::default()
    }
}

/// Ranks on 16 hosts, each with 16 files of its own and its part of one that all share. `slow` takes ten
/// times as long.
fn simulation(slow: Option<u32>) -> JobProfile {
    let mut job = JobProfile {
        job: "sim".into(),
        seconds: 64.0,
        is_complete: true,
        hosts: (0..16).map(|host| format!("node{host:03}")).collect(),
        ..JobProfile::default()
    };
    let mut shared = FileProfile { path: "/out/shared.h5".into(), ..FileProfile::default() };
    for rank in 0..RANKS {
        let factor = if slow == Some(rank) { 10.0 } else { 1.0 + f64::from(rank % 7) / 20.0 };
        let writes = Operations { number: 544, bytes: 544 << 20, seconds: 2.0 * factor };
        let metadata = Operations { number: 40 + u64::from(rank % 2), bytes: 0, seconds: 0.001 };
        let (host, program) = (rank / 64, "sim".into());
        let one = RankProfile { rank, host, program, writes, metadata, ..RankProfile::default() };
        job.ranks.push(one);
        let of = |writes| FileUse { rank, opens: 1, writes, ..FileUse::default() };
        shared.uses.push(of(transfers(32, factor, u64::from(rank) << 25)));
        for step in 0..16 {
            let uses = vec![of(transfers(32, factor / 16.0, 0))];
            let path = format!("/out/step{step:04}/part{rank}");
            job.files.push(FileProfile { path, size: 32 << 20, uses, ..FileProfile::default() });
        }
    }
    job.files.push(shared);
    let written = |second: u64| {
        let of = |rank: u32| (8 << 20) + (u64::from(rank) * 31 + second) % 1000;
        (0..RANKS).map(of).collect()
    };
    job.timeline = (0..64).map(|second| Span { read: vec![], written: written(second) }).collect();
    job
}

fn again(job: &JobProfile) -> (String, JobProfile) {
    let text = serde_json::to_string(job).expect("JSON");
    let again = serde_json::from_str(&text).expect("a profile");
    (text, again)
}

fn sums(job: &JobProfile) -> [Operations; 3] {
    [job.reads(), job.writes(), job.metadata()]
}

/// Which rank used which file, and where.
fn uses(job: &JobProfile) -> BTreeSet<(String, u64, u32, u64, u64)> {
    let of = |file: &FileProfile| {
        let one = |one: &FileUse| {
            (file.path.clone(), file.size, one.rank, one.writes.lowest, one.writes.highest)
        };
        file.uses.iter().map(one).collect::<Vec<_>>()
    };
    job.files.iter().flat_map(of).collect()
}

#[test]
fn a_profile_of_many_equal_ranks_is_small_and_nothing_that_counts_is_lost() {
    let job = simulation(None);
    let (text, again) = again(&job);
    assert!(text.len() < 200_000, "{} bytes", text.len());
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let [ranks] = value["ranks"].as_array().expect("ranks").as_slice() else { panic!("one group") };
    assert_eq!(ranks["members"]["count"], RANKS);
    assert_eq!(ranks["members"]["ranks"], serde_json::json!([[0, RANKS, 1]]));
    let files = value["files"].as_array().expect("files");
    let names: BTreeSet<&str> = files.iter().filter_map(|file| file["path"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["/out/shared.h5", "/out/step{04}/part{}"]), "{names:?}");
    assert_eq!((again.ranks.len(), again.files.len()), (job.ranks.len(), job.files.len()));
    for (before, after) in sums(&job).iter().zip(sums(&again)) {
        assert_eq!((before.number, before.bytes), (after.number, after.bytes));
        assert!((before.seconds - after.seconds).abs() < 1e-6 * before.seconds.max(1.0));
    }
    assert_eq!(uses(&again), uses(&job));
    let places = |job: &JobProfile| -> Vec<(u32, u32)> {
        job.ranks.iter().map(|rank| (rank.rank, rank.host)).collect()
    };
    assert_eq!(places(&again), places(&job));
    let moved = |job: &JobProfile| -> Vec<u64> {
        job.timeline.iter().map(|span| span.written.iter().sum()).collect()
    };
    assert_eq!(moved(&again), moved(&job));
}

#[test]
fn a_slow_rank_is_a_record_of_its_own() {
    let job = simulation(Some(77));
    let groups = equal_ranks(&job);
    let found: Vec<_> = groups.iter().map(|one| (one.count, one.ranks.as_str())).collect();
    assert_eq!(found, [(1023, "0-76, 78-1023"), (1, "77")]);
    assert_eq!((groups[0].hosts, groups[1].slowest), (16, 77));
    let report = Report::new(job.clone());
    for text in [report.text(), report.page()] {
        assert!(text.contains("0-76, 78-1023") && text.contains("1,023"), "{text}");
    }
    let (_, again) = again(&job);
    let slowest = |job: &JobProfile| {
        let shared = job.files.iter().find(|file| file.path == "/out/shared.h5").expect("it");
        let most = shared.uses.iter().max_by(|a, b| a.writes.seconds.total_cmp(&b.writes.seconds));
        most.map(|one| (one.rank, one.writes.seconds)).expect("a use")
    };
    assert_eq!(slowest(&again), slowest(&job));
}

/// Files that all ranks share are one record for each pattern, and small files one for each directory.
#[test]
fn shared_files_of_many_steps_and_small_files_are_few_records() {
    let of = |rank, writes| FileUse { rank, opens: 1, writes, ..FileUse::default() };
    let file = |path: String, uses| FileProfile { path, uses, ..FileProfile::default() };
    let mut job = JobProfile::default();
    for step in 0..100 {
        let each = |rank: u32| of(rank, transfers(4, 0.2, u64::from(rank) << 22));
        job.files.push(file(format!("/out/step.{step}"), (0..8).map(each).collect()));
    }
    for (name, bytes) in [("pre-push", 1374), ("update", 36), ("pre-commit", 4096), ("post", 9)] {
        let writes = Transfers { number: 1, bytes, highest: bytes, ..Transfers::default() };
        job.files.push(file(format!("/clone/.git/hooks/{name}"), vec![of(0, writes)]));
    }
    let (text, again) = again(&job);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let files = value["files"].as_array().expect("files");
    let paths: Vec<&Value> = files.iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["/out/step.{}", "/clone/.git/hooks/{*}"], "{text}");
    assert_eq!(uses(&again), uses(&job));
    let bytes =
        |job: &JobProfile| -> u64 { job.files.iter().map(|file| file.transfers()[1].bytes).sum() };
    assert_eq!(bytes(&again), bytes(&job));
}

/// As a clone has them: few small files of each directory, which several processes use in different ways.
#[test]
fn few_small_files_of_each_directory_are_one_record_of_the_directory_above() {
    let transfers =
        |bytes: u64| Transfers { number: 1, bytes, highest: bytes, ..Transfers::default() };
    let written = |bytes| FileUse { opens: 1, writes: transfers(bytes), ..FileUse::default() };
    let both = |bytes| FileUse { reads: transfers(bytes), ..written(bytes) };
    let read =
        |rank, bytes| FileUse { rank, opens: 3, reads: transfers(bytes), ..FileUse::default() };
    let slow = FileUse { writes: Transfers { seconds: 0.3, ..transfers(9) }, ..written(9) };
    let large = FileUse { rank: 1, opens: 1, writes: transfers(8 << 20), ..FileUse::default() };
    let all = [
        ("/clone/.git/description", vec![written(73)]),
        ("/clone/.git/logs/HEAD", vec![written(203)]),
        ("/clone/.git/logs/refs/heads/main", vec![written(204)]),
        ("/clone/.git/refs/remotes/origin/HEAD", vec![written(30)]),
        ("/clone/.git/HEAD", vec![both(21), read(1, 21), read(2, 20)]),
        ("/clone/.git/info/exclude", vec![both(240)]),
        ("/clone/.git/slow", vec![slow]),
        ("/clone/.git/objects/pack/pack", vec![large]),
        ("/other", vec![written(5)]),
    ];
    let file = |(path, uses): (&str, Vec<FileUse>)| {
        let size = uses[0].writes.highest;
        let memory = uses.iter().map(|one| one.reads.bytes).sum();
        let read_tiers = TierBytes { memory, ..TierBytes::default() };
        FileProfile { path: path.into(), size, uses, read_tiers, ..FileProfile::default() }
    };
    let job = JobProfile { files: all.map(file).to_vec(), ..JobProfile::default() };
    let (text, again) = again(&job);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let records = value["files"].as_array().expect("files").iter();
    let mut records: Vec<(&str, usize)> = records
        .map(|one| {
            let names = one["names"].as_array().map_or(0, Vec::len);
            (one["path"].as_str().expect("a path"), names)
        })
        .collect();
    records.sort_unstable();
    let expected = [
        ("/clone/.git/objects/pack/pack", 0),
        ("/clone/.git/slow", 0),
        ("/clone/.git/{*}", 6),
        ("/other", 0),
    ];
    assert_eq!(records, expected, "{text}");
    assert_eq!(uses(&again), uses(&job));
    let bytes =
        |job: &JobProfile| -> u64 { job.files.iter().map(|file| file.transfers()[1].bytes).sum() };
    assert_eq!(bytes(&again), bytes(&job));
    let read = |job: &JobProfile| -> Vec<(String, u32, bool)> {
        let of = |file: &FileProfile| -> Vec<_> {
            let one = |one: &FileUse| (file.path.clone(), one.rank, one.reads.number > 0);
            file.uses.iter().map(one).collect()
        };
        let mut all: Vec<_> = job.files.iter().flat_map(of).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(read(&again), read(&job));
    // Bytes that came from a tier were read.
    let from_memory = |job: &JobProfile| -> (u64, BTreeSet<String>) {
        let read = job.files.iter().filter(|file| file.read_tiers.memory > 0);
        let paths = read.clone().map(|file| file.path.clone()).collect();
        (read.map(|file| file.read_tiers.memory).sum(), paths)
    };
    assert_eq!(from_memory(&again), from_memory(&job));
}

/// Advice that comes from the store is the advice that was given.
#[test]
fn advice_on_all_workloads_is_the_same_after_they_were_stored() {
    for workload in programs::all() {
        let job = (workload.run)();
        let (_, again) = again(&job);
        let found = |job: &JobProfile| -> Vec<_> {
            advise(job).into_iter().map(|one| (one.trigger, one.severity, one.files)).collect()
        };
        assert_eq!(found(&again), found(&job), "{}", workload.name);
        for direction in Direction::ALL {
            assert_eq!(of_job(&again, direction), of_job(&job, direction), "{}", workload.name);
        }
    }
}

#[test]
fn text_of_an_older_release_and_broken_text_are_read_or_refused() {
    let old = r#"{"ranks": [{"rank": 3, "host": 1, "reads": {"number": 2}}, {"rank": 5}],
        "files": [{"path": "/a{}1", "uses": [{"rank": 1, "opens": 2}]}],
        "timeline": [{"read": [1, 2], "written": [3]}]}"#;
    let job: JobProfile = serde_json::from_str(old).expect("a profile");
    assert_eq!((job.ranks[0].rank, job.ranks[1].rank, job.reads().number), (3, 5, 2));
    assert_eq!((job.files[0].path.as_str(), job.files[0].uses[0].opens), ("/a{}1", 2));
    assert_eq!(job.timeline, [Span { read: vec![1, 2], written: vec![3] }]);
    let many = r#"{"files": [{"path": "/{}", "numbers": [[[0, 5]]], "uses": [{"members":
        {"ranks": [[0, 9000000000]]}}]}]}"#;
    assert!(serde_json::from_str::<JobProfile>(many).is_err());
    let spans = r#"{"timeline": [{"ranks": 9000000000, "written": [1]}]}"#;
    assert!(serde_json::from_str::<JobProfile>(spans).is_err());
    let odd = r#"{"files": [{"path": "/{}/{0", "numbers": [[]], "uses": []}], "ranks": [{"members": {
        "count": 7, "places": [[4]], "ranks": [], "hosts": [], "seconds": {}}}]}"#;
    let odd: JobProfile = serde_json::from_str(odd).expect("a profile");
    assert_eq!((odd.files.len(), odd.ranks.len()), (0, 0));
}
