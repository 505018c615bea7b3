//! The queue beside a store that is slow, busy, damaged or full.

use super::*;
use crate::record::{EventRecord, JobRun, LoadSample, Span};
use crate::sqlite::SqliteStore;
use crate::store::{Query, Retention};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::Sender;

const KEEP: Retention = Retention { keep_ms: 1000, bytes_max: 0 };

fn event(number: u64) -> Record {
    let text = number.to_string();
    let number = 60_000 + number;
    Record::Event(EventRecord { instance: "a".into(), at_ms: number, kind: "info".into(), text })
}

/// Lines that a recorder said.
fn lines() -> (Sayer, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&lines);
    (Box::new(move |line| said.lock().unwrap().push(line.to_owned())), lines)
}

fn opener(path: &Path) -> Opener {
    let path = path.to_owned();
    Box::new(move || SqliteStore::open(&path, KEEP).map(|store| Box::new(store) as Box<dyn Store>))
}

fn events(path: &Path) -> usize {
    let query = Query { rows: 10_000, ..Query::default() };
    SqliteStore::open(path, KEEP).unwrap().events(&query).unwrap().len()
}

/// A store that takes nothing before it may.
struct SlowStore {
    may: Receiver<()>,
    begun: Sender<()>,
}

impl Store for SlowStore {
    fn write(&mut self, _: &[Record]) -> Result<(), HistoryError> {
        let _ = self.begun.send(());
        self.may.recv().map_err(|_| HistoryError::Busy)
    }
    fn tidy(&mut self, _: u64) -> Result<(), HistoryError> {
        Ok(())
    }
    fn runs(&mut self, _: &Query) -> Result<Vec<JobRun>, HistoryError> {
        Ok(Vec::new())
    }
    fn profile(&mut self, _: &str, _: usize) -> Result<Option<String>, HistoryError> {
        Ok(None)
    }
    fn load(&mut self, _: Span, _: &Query) -> Result<Vec<LoadSample>, HistoryError> {
        Ok(Vec::new())
    }
    fn events(&mut self, _: &Query) -> Result<Vec<EventRecord>, HistoryError> {
        Ok(Vec::new())
    }
}

#[test]
fn everything_is_written_when_the_recorder_has_finished() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    let (say, lines) = lines();
    let recorder = Recorder::start(opener(&path), say, || 0).unwrap();
    assert!((0..500).all(|number| recorder.offer(event(number))));
    assert_eq!(recorder.finish(), 0);
    assert_eq!((events(&path), lines.lock().unwrap().len()), (500, 0));
}

#[test]
fn a_slow_store_makes_nobody_wait_and_what_does_not_fit_is_counted() {
    let ((may, allowed), (begun, writes)) =
        (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let mut store = Some(SlowStore { may: allowed, begun });
    let open: Opener = Box::new(move || {
        let store = store.take().ok_or(HistoryError::Busy)?;
        Ok(Box::new(store) as Box<dyn Store>)
    });
    let (say, lines) = lines();
    let recorder = Recorder::start(open, say, || 0).unwrap();
    assert!(recorder.offer(event(0)));
    // The thread is in the store now, until it is let go.
    writes.recv().unwrap();
    let taken = (0..3000).filter(|number| recorder.offer(event(*number))).count();
    assert_eq!((taken, recorder.dropped()), (QUEUE_MAX, 3000 - QUEUE_MAX as u64));
    // It fails for the rest.
    drop(may);
    assert_eq!(recorder.finish(), 3001);
    assert_eq!(*lines.lock().unwrap(), ["history is not recorded: it is busy"]);
}

#[test]
fn a_damaged_file_is_told_once_and_everything_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    std::fs::write(&path, "this is no store of history, whatever its name says. ".repeat(20))
        .unwrap();
    let (say, lines) = lines();
    let recorder = Recorder::start(opener(&path), say, || 0).unwrap();
    (0..300).for_each(|number| assert!(recorder.offer(event(number))));
    assert_eq!(recorder.finish(), 300);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("damaged") && lines[0].contains("move it away"), "{lines:?}");
}

#[test]
fn a_record_that_is_too_large_goes_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.db");
    let (say, lines) = lines();
    let mut open = opener(&path);
    let ((go, gone), mut waits) = (std::sync::mpsc::channel::<()>(), true);
    let held: Opener = Box::new(move || {
        // All records are in the queue by then.
        if std::mem::take(&mut waits) {
            let _ = gone.recv();
        }
        open()
    });
    let recorder = Recorder::start(held, say, || 0).unwrap();
    let profile = "x".repeat(3 << 20);
    let large = JobRun { job: "large".into(), profile, ..JobRun::default() };
    for record in [event(1), Record::Run(Box::new(large)), event(2)] {
        assert!(recorder.offer(record));
    }
    drop(go);
    assert_eq!(recorder.finish(), 1);
    assert_eq!(events(&path), 2);
    let lines = lines.lock().unwrap();
    assert!(lines[0].contains("no space for so large a record"), "{lines:?}");
}
