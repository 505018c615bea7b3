//! The log against kills at any change of its files, a full device, and files that are not its own.
//! Whatever happens, a start finds what some number of whole batches left, and none that was stored is
//! missing.

use super::*;
use replicas::operation::{ByteRange, Kind as Change, Object, Operation, Stamp};
use store::fault::FaultyFiles;
use wire::{Errno, Inode};

type StepBatch = Vec<(UnitIndex, KeptStep)>;

const IDENTITY: Identity = Identity::of_daemon(7, 3);

fn place(files: &FaultyFiles, word: u64) -> KeptLogPlace<FaultyFiles> {
    let progress = Segment::private(8).expect("a page");
    progress.word64(0).expect("a word").store(word, Release);
    let (identity, expected) = (IDENTITY, Expected::New);
    let (path, step_bytes) = (PathBuf::from("units"), 4096);
    KeptLogPlace { files: files.clone(), path, identity, expected, progress, step_bytes }
}

/// Writes to three files in two units: each begins, is done, and is settled with the next one's begin.
fn batches(count: u64) -> Vec<StepBatch> {
    let units = [UnitIndex(4), UnitIndex(9)];
    let mut batches: Vec<StepBatch> =
        vec![units.map(|unit| (unit, KeptStep::New { lost_at: 3 })).to_vec()];
    let mut settled = Vec::new();
    for number in 1..=count {
        let unit = units[number as usize % 2];
        let stamp = Stamp { epoch: 1, number };
        let object = Object { inode: Inode(1 + number % 3), stripe: number % 5 };
        let range = ByteRange { start: 0, end: number };
        let operation = Operation { stamp, object, range, kind: Change::Write, requested: None };
        let mut begun = std::mem::take(&mut settled);
        begun.push((unit, KeptStep::Begin(operation)));
        batches.push(begun);
        batches.push(vec![(unit, KeptStep::Done(stamp))]);
        settled = vec![(unit, KeptStep::Settle(stamp)), (unit, KeptStep::Clean(object, stamp))];
    }
    batches
}

fn make(batch: &StepBatch, units: &mut KeptUnits) {
    for (unit, step) in batch {
        units.entry(*unit).or_default().apply(step);
    }
}

/// A process that stores batches until the files die.
struct Run {
    /// The kept state after each batch that was tried; the first is none.
    states: Vec<KeptUnits>,
    /// Number of batches that are stored for sure.
    stored: usize,
    /// The word in shared memory.
    word: u64,
    /// Times that the log became shorter.
    rewritten: u64,
}

fn run(files: &FaultyFiles, batches: &[StepBatch]) -> Run {
    let mut run = Run { states: vec![KeptUnits::new()], stored: 0, word: 0, rewritten: 0 };
    let Ok((mut log, found)) = KeptLog::open(place(files, 0)) else { return run };
    assert_eq!(found, KeptUnits::new());
    log.rewrite_bytes_min = 1024;
    for batch in batches {
        let mut now = run.states.last().cloned().unwrap_or_default();
        make(batch, &mut now);
        run.states.push(now.clone());
        let put = batch.iter().try_for_each(|(unit, step)| log.put(*unit, step));
        let is_stored = put.and_then(|()| log.flush()).is_ok();
        run.word = log.progress_word();
        if !is_stored {
            return run;
        }
        run.stored = run.states.len() - 1;
        let before = log.journal.bytes();
        log.tidy(&now);
        run.rewritten += u64::from(log.journal.bytes() < before);
        run.word = log.progress_word();
    }
    run
}

#[test]
fn a_kill_at_any_change_leaves_whole_batches() {
    let batches = batches(40);
    let whole = run(&FaultyFiles::new(), &batches);
    assert!(whole.rewritten > 0, "the log is rewritten meanwhile");
    for changes in 1.. {
        let files = FaultyFiles::new();
        files.die_after(changes);
        let run = run(&files, &batches);
        let (log, found) = KeptLog::open(place(&files.after_kill(), run.word)).expect("a log");
        let may_be = &run.states[run.stored..];
        assert!(may_be.contains(&found), "after {changes} changes: stored={}", run.stored);
        // It goes on where it was.
        drop(log);
        if !files.is_dead() {
            assert_eq!((found, run.stored), (whole.states[batches.len()].clone(), batches.len()));
            return;
        }
    }
}

#[test]
fn a_log_goes_on_after_any_number_of_starts() {
    let (files, mut word, mut units) = (FaultyFiles::new(), 0, KeptUnits::new());
    for batch in batches(20) {
        let (mut log, found) = KeptLog::open(place(&files, word)).expect("a log");
        assert_eq!(found, units);
        log.rewrite_bytes_min = 1024;
        for (unit, step) in &batch {
            log.put(*unit, step).expect("space");
        }
        log.flush().expect("space");
        make(&batch, &mut units);
        for _ in 0..4 {
            log.tidy(&units);
        }
        word = log.progress_word();
    }
    let (mut log, _) = KeptLog::open(place(&files, word)).expect("a log");
    log.forget_unit(UnitIndex(4)).expect("space");
    units.remove(&UnitIndex(4));
    word = log.progress_word();
    assert_eq!(KeptLog::open(place(&files, word)).expect("a log").1, units);
}

/// In each part of a rewrite: before it, and before and after the turn of the unit.
#[test]
fn spoiled_ranges_are_found_again() {
    let (unit, object) = (UnitIndex(4), Object { inode: Inode(1), stripe: 0 });
    let range = |start, end| ByteRange { start, end };
    for at in 0..4 {
        let files = FaultyFiles::new();
        let (mut log, _) = KeptLog::open(place(&files, 0)).expect("a log");
        let mut units = KeptUnits::new();
        let first = batches(0).remove(0);
        first.iter().try_for_each(|(unit, step)| log.put(*unit, step)).expect("space");
        log.flush().expect("space");
        make(&first, &mut units);
        log.rewrite_bytes_min = 0;
        log.spoil(unit, object, range(0, 100)).expect("space");
        (0..at).for_each(|_| log.tidy(&units));
        log.mend(unit, object, range(20, 40)).expect("space");
        log.spoil(UnitIndex(9), object, range(7, 9)).expect("space");
        // Nothing is written for bytes that are not spoiled.
        let before = log.journal.progress();
        log.mend(unit, object, range(25, 30)).expect("space");
        assert_eq!(log.journal.progress(), before);
        for _ in 0..4 {
            log.live_bytes = 0;
            log.tidy(&units);
        }
        let word = log.progress_word();
        let (again, found) = KeptLog::open(place(&files, word)).expect("a log");
        assert_eq!((&found, &again.spoiled), (&units, &log.spoiled), "{at}");
        for (start, is_spoiled) in [(0, true), (19, true), (20, false), (39, false), (40, true)] {
            assert_eq!(again.is_spoiled(unit, object, range(start, start + 1)), is_spoiled);
        }
        assert!(again.is_spoiled(UnitIndex(9), object, range(0, 8)));
        log.forget_unit(unit).expect("space");
        let (again, _) = KeptLog::open(place(&files, log.progress_word())).expect("a log");
        assert!(!again.is_spoiled(unit, object, ByteRange::ALL));
    }
}

/// A unit that goes, and one that comes, while the log is rewritten.
#[test]
fn units_come_and_go_while_the_log_is_rewritten() {
    for at in 0..4 {
        let (files, mut units) = (FaultyFiles::new(), KeptUnits::new());
        let (mut log, _) = KeptLog::open(place(&files, 0)).expect("a log");
        let keep = |log: &mut KeptLog<FaultyFiles>, units: &mut KeptUnits, batch: &StepBatch| {
            batch.iter().try_for_each(|(unit, step)| log.put(*unit, step)).expect("space");
            log.flush().expect("space");
            make(batch, units);
        };
        for batch in batches(6) {
            keep(&mut log, &mut units, &batch);
        }
        log.rewrite_bytes_min = 0;
        for _ in 0..at {
            log.tidy(&units);
        }
        log.forget_unit(UnitIndex(4)).expect("space");
        units.remove(&UnitIndex(4));
        let came = vec![(UnitIndex(2), KeptStep::New { lost_at: 8 })];
        keep(&mut log, &mut units, &came);
        let before = log.journal.progress().generation;
        while log.journal.progress().generation == before {
            log.live_bytes = 0;
            log.tidy(&units);
        }
        let word = log.progress_word();
        assert_eq!(KeptLog::open(place(&files, word)).expect("a log").1, units, "{at}");
    }
}

/// The files and the memory of a daemon: a log of the data directory, and a word that a later start maps.
#[test]
fn a_log_in_a_directory_is_found_by_the_next_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let name = path.join("word").to_str().and_then(|name| std::ffi::CString::new(name).ok());
    let name = name.expect("a name");
    let open = |expected| {
        let (progress, _, _) = Segment::create(&name, 8).expect("a page");
        let place = KeptLogPlace::in_directory(path, IDENTITY, expected, progress);
        KeptLog::open(place.expect("a directory"))
    };
    let (mut log, mut units) = open(Expected::New).expect("a log");
    for batch in batches(5) {
        batch.iter().try_for_each(|(unit, step)| log.put(*unit, step)).expect("space");
        log.flush().expect("space");
        make(&batch, &mut units);
    }
    drop(log);
    assert_eq!(open(Expected::Existing).expect("a log").1, units);
    std::fs::remove_dir_all(path.join("units")).expect("it is there");
    let kind = open(Expected::Existing).err().map(|error| error.kind);
    assert_eq!(kind, Some(Kind::Missing));
}

#[test]
fn a_full_device_is_an_error_and_what_was_stored_stays() {
    let files = FaultyFiles::new();
    let (mut log, mut units) = KeptLog::open(place(&files, 0)).expect("a log");
    files.limit(64 << 10);
    let mut word = 0;
    let error = batches(10_000).iter().find_map(|batch| {
        word = log.progress_word();
        let put = batch.iter().try_for_each(|(unit, step)| log.put(*unit, step));
        let stored = put.and_then(|()| log.flush());
        if stored.is_ok() {
            make(batch, &mut units);
        }
        stored.err()
    });
    assert_eq!(error.expect("it gets full").errno(), Errno::ENOSPC);
    files.limit(u64::MAX);
    assert_eq!(KeptLog::open(place(&files, word)).expect("a log").1, units);
}

#[test]
fn a_log_of_another_or_an_older_one_is_refused() {
    let files = FaultyFiles::new();
    let (mut log, _) = KeptLog::open(place(&files, 0)).expect("a log");
    for batch in batches(3) {
        batch.iter().try_for_each(|(unit, step)| log.put(*unit, step)).expect("space");
        log.flush().expect("space");
    }
    let word = log.progress_word();
    let kind_of = |place: KeptLogPlace<FaultyFiles>| KeptLog::open(place).err().map(|it| it.kind);
    let other = Identity::of_daemon(7, 4);
    assert_eq!(
        kind_of(KeptLogPlace { identity: other, ..place(&files, word) }),
        Some(Kind::Foreign)
    );
    let found = log.journal.progress().sequence;
    let older = kind_of(place(&files, word + 1));
    assert_eq!(older, Some(Kind::Old { found, expected: found + 1 }));
    let gone = KeptLogPlace { expected: Expected::Existing, ..place(&FaultyFiles::new(), word) };
    assert_eq!(kind_of(gone), Some(Kind::Missing));
    // A record that is whole and says nothing.
    log.journal.append(&[9]).expect("space");
    let sequence = found + 1;
    assert_eq!(kind_of(place(&files, word)), Some(Kind::Corrupt { offset: 0, sequence }));
}
