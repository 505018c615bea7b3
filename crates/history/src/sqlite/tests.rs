//! The store in a file: what it gives back, its bound, and files that are no store.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const KEEP: Retention = Retention { keep_ms: 86_400_000, bytes_max: BYTES_MIN };
/// A whole minute.
const MINUTE: u64 = 1_800_000_000_000;

fn run(job: &str, begin_ms: u64, profile: &str) -> JobRun {
    let advice = Advice {
        trigger: "small-writes".into(),
        severity: "high".into(),
        evidence: "9 of 10 writes are small".into(),
        change: "write more".into(),
        saves_seconds: Some(1.5),
    };
    JobRun {
        instance: "a".into(),
        job: job.into(),
        begin_ms,
        ranks: 4,
        bytes_written: 7,
        is_complete: true,
        advice: vec![advice.clone(), Advice { saves_seconds: None, ..advice }],
        profile: profile.into(),
        ..JobRun::default()
    }
}

fn second(job: &str, at_ms: u64, read: Option<f64>) -> Record {
    let mut figures = [None; FIGURES.len()];
    (figures[1], figures[8]) = (read, read);
    let (instance, job) = ("a".into(), job.into());
    Record::Load(LoadSample { instance, job, at_ms, figures, samples: 1 })
}

fn query() -> Query {
    Query { rows: 100, ..Query::default() }
}

#[test]
fn what_is_written_is_read_by_another_process_of_the_user_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("forebay/history.db");
    let mut writer = SqliteStore::open(&path, KEEP).unwrap();
    let event =
        EventRecord { instance: "a".into(), at_ms: 5, kind: "warn".into(), text: "slow".into() };
    let runs = [run("j", 10, "first"), run("j", 30, "third"), run("k", 20, "other")];
    let records: Vec<Record> = runs.iter().cloned().map(|run| Record::Run(Box::new(run))).collect();
    writer.write(&records).unwrap();
    writer.write(&[Record::Event(event.clone())]).unwrap();
    // The same run once more, with more in it.
    let later = JobRun { seconds: 9.5, profile: "third, whole".into(), ..runs[1].clone() };
    writer.write(&[Record::Run(Box::new(later.clone()))]).unwrap();

    let mut reader = SqliteStore::open(&path, KEEP).unwrap();
    let found = reader.runs(&query()).unwrap();
    let without = |run: &JobRun| JobRun { profile: String::new(), ..run.clone() };
    assert_eq!(found, [without(&later), without(&runs[2]), without(&runs[0])]);
    let of = |job: &str, since_ms: u64, rows: usize| Query {
        job: Some(job.into()),
        since_ms,
        rows,
        ..query()
    };
    assert_eq!(reader.runs(&of("j", 11, 9)).unwrap().len(), 1);
    assert_eq!(reader.runs(&of("j", 0, 1)).unwrap()[0].begin_ms, 30);
    let profile = |reader: &mut SqliteStore, back| reader.profile("j", back).unwrap();
    assert_eq!(profile(&mut reader, 0).as_deref(), Some("third, whole"));
    assert_eq!(profile(&mut reader, 1).as_deref(), Some("first"));
    assert_eq!(profile(&mut reader, 2), None);
    assert_eq!(reader.events(&query()).unwrap(), [event]);
    for name in ["history.db", "history.db-wal", "history.db-shm"] {
        let mode = fs::metadata(path.with_file_name(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn minutes_are_means_and_largest_of_their_seconds_once_they_are_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&directory.path().join("h.db"), KEEP).unwrap();
    let at = |second: u64| MINUTE + second * 1000;
    let seconds = [
        second("", at(0), Some(10.0)),
        second("", at(1), Some(30.0)),
        second("", at(2), None),
        second("j", at(3), Some(7.0)),
        second("", at(60), Some(100.0)),
    ];
    store.write(&seconds).unwrap();
    store.tidy(at(61)).unwrap();
    let minutes = store.load(Span::Minute, &query()).unwrap();
    let [minute] = minutes.as_slice() else { panic!("one minute is over: {minutes:?}") };
    assert_eq!((minute.at_ms, minute.samples), (MINUTE, 3));
    let figures = minute.figures;
    assert_eq!((figures[0], figures[1], figures[8]), (None, Some(20.0), Some(30.0)));
    let of_job = Query { job: Some("j".into()), ..query() };
    assert_eq!(store.load(Span::Minute, &of_job).unwrap()[0].figures[1], Some(7.0));
    // A clock that was set back writes into seconds that are known already.
    store.write(&[second("", at(1), Some(50.0))]).unwrap();
    store.tidy(at(62)).unwrap();
    assert_eq!(store.load(Span::Minute, &query()).unwrap()[0].figures[1], Some(30.0));
}

#[test]
fn what_is_old_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&directory.path().join("h.db"), KEEP).unwrap();
    store
        .write(&[second("", MINUTE, Some(1.0)), Record::Run(Box::new(run("j", MINUTE, "")))])
        .unwrap();
    let counts = |store: &mut SqliteStore| {
        [
            store.load(Span::Second, &query()).unwrap().len(),
            store.load(Span::Minute, &query()).unwrap().len(),
            store.runs(&query()).unwrap().len(),
        ]
    };
    store.tidy(MINUTE + 60_000).unwrap();
    assert_eq!(counts(&mut store), [1, 1, 1]);
    store.tidy(MINUTE + SECONDS_KEPT_MS + 60_001).unwrap();
    assert_eq!(counts(&mut store), [0, 1, 1]);
    store.tidy(MINUTE + KEEP.keep_ms + 1).unwrap();
    assert_eq!(counts(&mut store), [0, 0, 0]);
    let advice: i64 =
        store.connection.query_row("SELECT count(*) FROM advice", [], |row| row.get(0)).unwrap();
    assert_eq!(advice, 0);
    // The clock is set back: nothing is older than that.
    store.tidy(0).unwrap();
}

#[test]
fn the_file_does_not_grow_beyond_its_bound_and_keeps_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    let mut store = SqliteStore::open(&path, KEEP).unwrap();
    let profile = "x".repeat(100_000);
    for begin in 0..50 {
        store.write(&[Record::Run(Box::new(run("j", begin, &profile)))]).unwrap();
    }
    let runs = store.runs(&query()).unwrap();
    assert!((4..11).contains(&runs.len()), "{}", runs.len());
    assert_eq!((runs[0].begin_ms, runs[runs.len() - 1].begin_ms), (49, 50 - runs.len() as u64));
    let huge = "x".repeat(2 * BYTES_MIN as usize);
    let refused = store.write(&[Record::Run(Box::new(run("j", 99, &huge)))]);
    assert_eq!(refused, Err(HistoryError::TooLarge));
    assert_eq!(store.runs(&query()).unwrap(), runs);
    drop(store);
    assert!(fs::metadata(&path).unwrap().len() <= BYTES_MIN);
}

#[test]
fn files_that_are_no_store_are_named_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    fs::write(&path, "no database, but more than a hundred bytes ".repeat(9)).unwrap();
    let text = SqliteStore::open(&path, KEEP).unwrap_err().to_string();
    assert!(text.starts_with("it is damaged ("), "{text}");
    assert_eq!(fs::read(&path).unwrap().len(), 387);
    fs::remove_file(&path).unwrap();

    let mut store = SqliteStore::open(&path, KEEP).unwrap();
    store.write(&[Record::Run(Box::new(run("j", 1, &"x".repeat(50_000))))]).unwrap();
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    // The first page is whole: the damage is seen when a table is used.
    let mut store = SqliteStore::open(&path, KEEP).unwrap();
    let failed = store.write(&[Record::Run(Box::new(run("j", 2, "y")))]);
    assert!(matches!(failed, Err(HistoryError::Damaged(_))), "{failed:?}");
    drop(store);
    fs::remove_file(&path).unwrap();

    let store = SqliteStore::open(&path, KEEP).unwrap();
    store.connection.execute_batch("PRAGMA user_version = 2").unwrap();
    drop(store);
    assert_eq!(SqliteStore::open(&path, KEEP).unwrap_err(), HistoryError::Newer(2));
    let beneath = path.join("x/h.db");
    assert!(matches!(SqliteStore::open(&beneath, KEEP), Err(HistoryError::Other(_))));
}

#[test]
fn on_a_network_file_system_it_has_a_rollback_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    let mode = |store: &SqliteStore| -> String {
        store.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap()
    };
    let mut local = SqliteStore::open(&path, KEEP).unwrap();
    assert_eq!(mode(&local), "wal");
    local.write(&[Record::Run(Box::new(run("j", 1, "")))]).unwrap();
    // While it is open with the index in memory, no other host may use it.
    let remote = |path: &Path| {
        let connection = Connection::open(path).unwrap();
        let directory = directory.path().to_owned();
        let mut store = SqliteStore { connection, directory, retention: KEEP };
        store.prepare(false).map_err(|error| error_of(&error)).flatten().map(|()| store)
    };
    assert_eq!(remote(&path).unwrap_err(), HistoryError::Busy);
    drop(local);
    let mut store = remote(&path).unwrap();
    assert_eq!((mode(&store).as_str(), store.runs(&query()).unwrap().len()), ("delete", 1));
    // A process of the host that exports it joins in that mode.
    let mut local = SqliteStore::open(&path, KEEP).unwrap();
    assert_eq!((mode(&local).as_str(), local.runs(&query()).unwrap().len()), ("wal", 1));
}
