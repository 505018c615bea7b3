//! The log against kills, crashes, full devices and corruption: with a medium that forgets, and
//! with real files and a real SIGKILL.
//!
//! The model: records are `key value` pairs, the state is a map. Whatever happens, replay gives the
//! state after some prefix of the appends, and never less than what was acknowledged.

use crate::error::Kind;
use crate::fault::FaultyFiles;
use crate::identity::{Expected, Identity};
use crate::journal::{Damage, For, Journal, Options, Progress, Replay, SPARE_BYTES, Sync};
use crate::medium::{Files, Medium as _};
use crate::record;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use wire::Errno;

type Map = BTreeMap<u8, Vec<u8>>;

const KEYS: u8 = 12;

fn pair(key: u8, value: &[u8]) -> Vec<u8> {
    let mut record = vec![key];
    record.extend(value);
    record
}

fn apply(map: &mut Map, record: &[u8]) {
    let (key, value) = record.split_first().expect("a key");
    map.insert(*key, value.to_vec());
}

fn replay<F: Files>(files: F, options: Options) -> crate::Result<(Map, Journal<F>)> {
    let mut map = Map::new();
    let mut replay = Replay::open(files, options)?;
    while let Some(record) = replay.next()? {
        apply(&mut map, record);
    }
    Ok((map, replay.into_journal()?))
}

/// The part of a run before it died.
struct Run {
    /// The state after each attempted append; the first is the empty one.
    states: Vec<Map>,
    /// Number of acknowledged appends.
    safe: usize,
}

/// Appends, commits and rewrites until the files die.
fn run(files: &FaultyFiles, options: Options, sizes: &[usize]) -> Run {
    let mut run = Run { states: vec![Map::new()], safe: 0 };
    let Ok((_, mut journal)) = replay(files.clone(), options) else { return run };
    let mut snapshot: Vec<u8> = Vec::new();
    for (index, &size) in sizes.iter().enumerate() {
        let value: Vec<u8> = (0..size).map(|at| (at + index) as u8).collect();
        let mut now = run.states.last().cloned().unwrap_or_default();
        let record = pair(index as u8 % KEYS, &value);
        apply(&mut now, &record);
        run.states.push(now.clone());
        if journal.append(&record).is_err() {
            return run;
        }
        if options.sync == Sync::Never {
            run.safe = run.states.len() - 1;
        } else if index % 3 == 0 {
            if journal.commit().is_err() {
                return run;
            }
            run.safe = run.states.len() - 1;
        }
        // A rewrite runs over several appends, three keys each time.
        if index % 17 == 5 && journal.begin_rewrite().is_ok() {
            snapshot = now.keys().copied().collect();
        }
        if journal.is_rewriting() {
            for key in snapshot.drain(..snapshot.len().min(3)) {
                let _ = journal.append_snapshot(&pair(key, &now[&key]));
            }
            if snapshot.is_empty() {
                let _ = journal.finish_rewrite();
            }
        }
    }
    run
}

fn check(run: &Run, found: &Map, what: &str) {
    let may_be = &run.states[run.safe..];
    assert!(may_be.contains(found), "{what}: safe={} of {}", run.safe, run.states.len() - 1);
}

const ME: Identity = Identity::of_daemon(7, 0);

fn options(sync: Sync) -> Options {
    let (expected, progress) = (Expected::New, Progress::default());
    let damage = Damage::Refuse;
    Options { identity: ME, expected, progress, damage, sync, step_bytes: 64 << 10 }
}

fn head(generation: u64) -> [u8; record::HEAD_BYTES] {
    record::encode_head(&record::Head { generation, identity: ME })
}

#[test]
fn a_kill_at_any_change_loses_nothing_that_was_acknowledged() {
    let sizes: Vec<usize> = (0..60).map(|index| 1 + index * 37 % 900).collect();
    for sync in [Sync::Never, Sync::Group] {
        for changes in 1.. {
            let files = FaultyFiles::new();
            files.die_after(changes);
            let run = run(&files, options(sync), &sizes);
            let is_over = !files.is_dead();
            // The next start may be killed, too.
            for second in [0, 1, 3] {
                let mut found = files.after_kill();
                if second > 0 {
                    found.die_after(second);
                    let _ = replay(found.clone(), options(sync));
                    found = found.after_kill();
                }
                let (map, mut journal) = replay(found.clone(), options(sync)).expect("opened");
                check(&run, &map, &format!("{sync:?} killed at {changes}, {second}"));
                journal.append(&pair(99, b"more")).expect("appended");
                let (again, _) = replay(found.after_kill(), options(sync)).expect("opened");
                assert_eq!(again.len(), map.len() + 1);
            }
            if is_over {
                assert!(changes > 200, "the run was too short: {changes}");
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// When the node dies, whatever the device kept of unflushed data, all committed records are
    /// there, and the log opens.
    #[test]
    fn a_crash_loses_nothing_that_was_committed(
        changes in 1u64..300,
        sizes in proptest::collection::vec(1usize..2000, 60),
        survivors in proptest::collection::vec(any::<bool>(), 64),
    ) {
        let files = FaultyFiles::new();
        files.die_after(changes);
        let run = run(&files, options(Sync::Group), &sizes);
        let mut survivors = survivors.iter().copied().cycle();
        let found = files.after_crash(|| survivors.next().unwrap_or(false));
        let (map, _) = replay(found, options(Sync::Group)).expect("opened");
        check(&run, &map, "crashed");
    }

    /// A log with any byte changed gives a prefix of the appended records and then an error or,
    /// when the last record is hit, the end. It never gives another record.
    #[test]
    fn damage_is_found(at in 0usize..20_000, with in 1u8..=255) {
        let files = FaultyFiles::new();
        let sizes: Vec<usize> = (0..15).map(|index| 1 + index * 97 % 700).collect();
        let run = run(&files, options(Sync::Never), &sizes[..5]);
        files.corrupt("log-00000001", |bytes| {
            let at = at % (bytes.len().min(1400));
            bytes[at] ^= with;
        });
        match replay(files, options(Sync::Never)) {
            Ok((map, _)) => prop_assert!(run.states[run.states.len() - 2..].contains(&map)),
            Err(error) => {
                let is_named = matches!(error.kind, Kind::Corrupt { .. });
                prop_assert!(is_named);
            }
        }
    }
}

/// A log with bytes changed anywhere is read to its end when damage is skipped: each record that is
/// whole is returned, in its order, and the gaps have the numbers of the others.
#[test]
fn a_damaged_log_is_salvaged_but_for_the_damaged_records() {
    let sizes: Vec<usize> = (0..40).map(|index| 1 + index * 97 % 700).collect();
    let records: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
    let mut random = testkit::Random::new(testkit::seed(5));
    for round in 0..testkit::rounds(300) {
        let files = FaultyFiles::new();
        let (_, mut journal) = replay(files.clone(), options(Sync::Never)).expect("opened");
        let mut ends = Vec::new();
        for record in &records {
            journal.append(record).expect("appended");
            ends.push(journal.bytes());
        }
        let progress = journal.progress();
        let at = random.uniform(journal.bytes()) as usize;
        // A flipped byte, a range of zeros, a cut.
        let (length, is_cut) = [(1, false), (900, false), (0, true)][round as usize % 3];
        files.corrupt("log-00000001", |bytes| match is_cut {
            true => bytes.truncate(at),
            false => bytes[at..at + length].iter_mut().for_each(|byte| {
                *byte = if length == 1 { *byte ^ 0x55 } else { 0 };
            }),
        });
        let skip = Options { damage: Damage::Skip, progress, ..options(Sync::Never) };
        let mut replay = Replay::open(files, skip).expect("opened");
        let mut found = Vec::new();
        while let Some(record) = replay.next().expect("skipped") {
            found.push(record.to_vec());
        }
        let mut lost = vec![false; records.len()];
        for gap in replay.gaps().iter().filter(|gap| gap.first > 0) {
            (gap.first..=gap.last).for_each(|number| lost[number as usize - 1] = true);
        }
        let kept = records.iter().zip(&lost).filter(|(_, is_lost)| !**is_lost);
        assert!(found.iter().eq(kept.map(|(record, _)| record)), "round {round}: {lost:?}");
        // No more is lost than was hit.
        let hit = |number: usize| {
            let start = if number == 0 { record::HEAD_BYTES as u64 } else { ends[number - 1] };
            let end = if is_cut { u64::MAX } else { (at + length) as u64 };
            start < end && ends[number] > at as u64
        };
        let extra = (0..lost.len()).filter(|&number| lost[number] && !hit(number));
        assert_eq!(extra.count(), 0, "round {round}: {lost:?} at {at}");
    }
}

/// Nothing reads the fill behind a record: when it changes, nothing is damaged and nothing is lost.
#[test]
fn a_change_of_the_fill_behind_a_record_costs_nothing() {
    let files = FaultyFiles::new();
    let (_, mut journal) = replay(files.clone(), options(Sync::Never)).expect("opened");
    let mut fills = Vec::new();
    for size in 1..=16 {
        journal.append(&pair(size, &vec![7; size.into()])).expect("appended");
        let end = journal.bytes() as usize;
        fills.extend(end - (8 - (record::HEADER_BYTES + 1 + usize::from(size)) % 8) % 8..end);
    }
    let progress = journal.progress();
    drop(journal);
    assert!(fills.len() > 16, "{fills:?}");
    files.corrupt("log-00000001", |bytes| {
        for at in fills {
            assert_eq!(bytes[at], 0, "{at} is no fill");
            bytes[at] = 0x55;
        }
    });
    let read = Options { progress, ..options(Sync::Never) };
    let (map, mut journal) = replay(files, read).expect("nothing is damaged");
    assert_eq!(map.len(), 16);
    journal.append(&pair(17, b"more")).expect("appended");
}

/// A directory with one log file of these bytes.
fn file_of(bytes: &[u8]) -> FaultyFiles {
    let mut files = FaultyFiles::new();
    let mut file = files.create("log-00000001").expect("made");
    file.grow(bytes.len() as u64).expect("grown");
    file.write(0, bytes).expect("written");
    files
}

/// Opens a log of any bytes: corruption is reported with its offset, and a log that opens accepts
/// more records.
fn open_any(bytes: &[u8]) {
    let files = file_of(bytes);
    let records = |files: &FaultyFiles| {
        let mut replay = Replay::open(files.clone(), options(Sync::Never))?;
        let mut records = Vec::new();
        while let Some(record) = replay.next()? {
            records.push(record.to_vec());
        }
        Ok((records, replay.into_journal()?))
    };
    let outcome: crate::Result<_> = records(&files);
    match outcome {
        Err(error) => {
            assert!(
                matches!(error.kind, Kind::Corrupt { offset, .. } if offset < bytes.len() as u64)
            );
            assert!(error.to_string().contains("log-00000001"), "{error}");
        }
        Ok((mut before, mut journal)) => {
            journal.append(b"more").expect("space");
            before.push(b"more".to_vec());
            assert_eq!(records(&files.after_kill()).expect("opened").0, before);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_log_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 1..300), with_head: bool,
    ) {
        let head = head(1);
        open_any(&[if with_head { &head[..] } else { &[] }, &bytes].concat());
    }

    /// Complete records in any order, of any file, among changed bytes.
    #[test]
    fn records_in_any_order_are_a_log_or_none(
        records in proptest::collection::vec((0u64..9, 0u32..9, 1u32..3, 1usize..40), 0..12),
        zeros in 0usize..9, changes in proptest::collection::vec(any::<(usize, u8)>(), 0..3),
    ) {
        let mut bytes = head(1).to_vec();
        for (index, (from_index, unsynced, generation, length)) in records.into_iter().enumerate() {
            // Most are in their place.
            let sequence = if from_index < 6 { index as u64 + 1 } else { from_index };
            let generation = if unsynced < 8 { 1 } else { generation };
            let content = vec![sequence as u8; length];
            let record = record::Record { sequence, unsynced, generation, bytes: &content };
            bytes.extend(record::encode_header(&record));
            bytes.extend(&content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes.resize(bytes.len() + 8 * zeros, 0);
        for (at, to) in changes {
            let length = bytes.len();
            bytes[at % length] = to;
        }
        open_any(&bytes);
    }
}

/// Records behind a hole never come back, not even when the hole is filled by one of the same
/// length.
#[test]
fn records_cut_off_never_return() {
    for survivors in 0u32..1 << 10 {
        let files = FaultyFiles::new();
        let (_, mut journal) = replay(files.clone(), options(Sync::Group)).expect("opened");
        for key in 0..4 {
            journal.append(&pair(key, &[key; 1000])).expect("appended");
        }
        let mut blocks = (0..).map(|block| survivors & 1 << (block % 10) != 0);
        let found = files.after_crash(|| blocks.next().unwrap_or(false));
        let (mut map, mut journal) = replay(found.clone(), options(Sync::Group)).expect("opened");
        journal.append(&pair(9, &[9; 1000])).expect("appended");
        apply(&mut map, &pair(9, &[9; 1000]));
        let (again, _) = replay(found.after_kill(), options(Sync::Group)).expect("opened");
        assert_eq!(again, map, "survivors={survivors:b}");
    }
}

#[test]
fn a_full_device_refuses_before_anything_is_acknowledged() {
    let files = FaultyFiles::new();
    let options = options(Sync::Never);
    let (_, mut journal) = replay(files.clone(), options).expect("opened");
    files.limit(SPARE_BYTES + (256 << 10));
    let record = pair(1, &[7; 1000]);
    let bytes = record.len() as u64 + record::OVERHEAD_BYTES;
    let mut count = 0;
    let error = loop {
        match journal.reserve(bytes, For::Any) {
            Ok(()) => journal.append(&record).expect("reserved"),
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!((100..300).contains(&count), "{count}");
    // Requests that free space may use the rest.
    journal.reserve(bytes, For::Freeing).expect("the spare");
    journal.append(&pair(2, b"freed")).expect("appended");
    // Removals leave space to requests that only read; space kept for more of them is not there.
    let half = SPARE_BYTES / 2 + 4096;
    let space = |journal: &mut Journal<FaultyFiles>, what| journal.reserve(half, what);
    assert_eq!(space(&mut journal, For::Freeing).map_err(|it| it.errno()), Err(Errno::ENOSPC));
    space(&mut journal, For::Reading).expect("the last");
    // A rewrite finds no space and is abandoned; the log goes on.
    let rewritten = journal
        .begin_rewrite()
        .and_then(|()| (0..2000).try_for_each(|_| journal.append_snapshot(&record)));
    assert_eq!(rewritten.map_err(|error| error.errno()), Err(Errno::ENOSPC));
    assert!(!journal.is_rewriting());
    journal.append(&pair(3, b"on")).expect("appended");
    let (map, _) = replay(files.after_kill(), options).expect("opened");
    assert_eq!(map.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(files.names().expect("names"), ["log-00000001"]);
}

/// A file that ends within the zeros behind its last record is whole; on a full device it opens,
/// and takes nothing.
#[test]
fn a_log_truncated_behind_its_last_record_is_readable() {
    let header = record::Record { sequence: 1, unsynced: 0, generation: 1, bytes: b"1a" };
    let head = head(1);
    let bytes = [&head[..], &record::encode_header(&header), b"1a"].concat();
    open_any(&bytes);
    let files = file_of(&bytes);
    files.limit(bytes.len() as u64);
    let (map, mut journal) = replay(files, options(Sync::Never)).expect("opened");
    assert_eq!(map, Map::from([(b'1', b"a".to_vec())]));
    let refused = journal.append(b"2b").map_err(|error| error.errno());
    assert_eq!(refused, Err(Errno::ENOSPC));
}

#[test]
fn after_a_failed_flush_no_record_is_accepted() {
    let files = FaultyFiles::new();
    let (_, mut journal) = replay(files.clone(), options(Sync::Group)).expect("opened");
    journal.append(b"1a").expect("appended");
    files.break_flush();
    assert_eq!(journal.commit().map_err(|error| error.kind), Err(Kind::Device(Errno::EIO)));
    assert_eq!(journal.append(b"2b").map_err(|error| error.kind), Err(Kind::Poisoned));
    assert_eq!(journal.commit().map_err(|error| error.kind), Err(Kind::Poisoned));
}

#[test]
fn a_record_of_a_forbidden_length_is_refused() {
    let (_, mut journal) = replay(FaultyFiles::new(), options(Sync::Never)).expect("opened");
    let long = vec![0; record::RECORD_BYTES_MAX + 1];
    for bytes in [&[][..], &long] {
        let refused = journal.append(bytes).map_err(|error| error.kind);
        assert_eq!(refused, Err(Kind::BadLength { length: bytes.len() }));
    }
    journal.append(&long[1..]).expect("the longest");
    assert!(journal.bytes() > record::RECORD_BYTES_MAX as u64);
}

fn offset(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
    crate::directory::remove(&path).expect("a clean start");
    crate::directory::create(&path).expect("made");
    path
}

fn numbers(directory: &Path, sync: Sync) -> (Vec<u64>, crate::Result<()>) {
    let mut numbers = Vec::new();
    let outcome = (|| {
        let mut replay = Journal::open(directory, options(sync))?;
        while let Some(record) = replay.next()? {
            numbers.push(u64::from_le_bytes(record[..8].try_into().expect("eight bytes")));
        }
        replay.into_journal().map(drop)
    })();
    (numbers, outcome)
}

fn number(value: u64) -> Vec<u8> {
    let mut record = vec![0; 200];
    record[..8].copy_from_slice(&value.to_le_bytes());
    record
}

#[test]
fn corruption_in_a_real_file_is_named_and_earlier_records_are_returned() {
    let path = offset("damage");
    let mut journal =
        Journal::open(&path, options(Sync::Never)).and_then(Replay::into_journal).expect("made");
    for value in 0..1000 {
        journal.append(&number(value)).expect("appended");
    }
    drop(journal);
    let stored = record::bytes_stored(200);
    let file = path.join("log-00000001");
    let mut bytes = std::fs::read(&file).expect("read");
    let offset = record::HEAD_BYTES as u64 + 700 * stored;
    bytes[offset as usize + 60] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    let (found, outcome) = numbers(&path, Sync::Never);
    assert!(found.into_iter().eq(0..700));
    let error = outcome.expect_err("damage");
    assert_eq!(error.kind, Kind::Corrupt { offset, sequence: 701 });
    let text = error.to_string();
    assert!(text.contains("log-00000001") && text.contains(&offset.to_string()), "{text}");
    // A torn last record is no corruption: it was not acknowledged.
    bytes[offset as usize + 60] ^= 1;
    bytes[(record::HEAD_BYTES as u64 + 999 * stored) as usize + 60] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    let (found, outcome) = numbers(&path, Sync::Never);
    assert!(found.into_iter().eq(0..999));
    outcome.expect("opened");
    crate::directory::remove(&path).expect("removed");
}

const CHILD: &str = "FOREBAY_TEST_LOG";

/// In a child process: appends and rewrites until it is killed, and prints what it appended.
#[test]
fn child_that_appends() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let options = options(Sync::Never);
    let mut replay = Journal::open(Path::new(&path), options).expect("opened");
    let mut value = 0;
    while replay.next().expect("a record").is_some() {
        value += 1;
    }
    let mut journal = replay.into_journal().expect("opened");
    let mut out = std::io::stdout();
    loop {
        journal.append(&number(value)).expect("appended");
        value += 1;
        if value % 500 == 0 {
            journal.begin_rewrite().expect("begun");
            for value in 0..value {
                journal.append_snapshot(&number(value)).expect("appended");
            }
            journal.finish_rewrite().expect("finished");
        }
        writeln!(out, "appended {value}").expect("said");
    }
}

#[test]
fn a_killed_process_leaves_all_appended_records() {
    let path = offset("killed");
    let mut safe = 0;
    for round in 1..6 {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "crash_tests::child_that_appends", "--nocapture"])
            .env(CHILD, &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a child");
        let out = std::io::BufReader::new(child.stdout.take().expect("its output"));
        for line in out.lines().map_while(Result::ok) {
            let said = line.split_once("appended ").and_then(|(_, value)| value.parse().ok());
            safe = said.unwrap_or(safe);
            if safe > round * 1200 {
                // It was killed by SIGKILL, and what it printed meanwhile counts, too.
                child.kill().expect("killed");
            }
        }
        child.wait().expect("ended");
        let (found, outcome) = numbers(&path, Sync::Never);
        outcome.expect("opened");
        assert!(found.len() as u64 >= safe, "{} of {safe}", found.len());
        assert!(found.iter().zip(0..).all(|(found, value)| *found == value));
    }
    crate::directory::remove(&path).expect("removed");
}
