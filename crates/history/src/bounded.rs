//! A store whose answers are waited for at most a given time: a server may accept a connection and say
//! nothing for ever. It is opened and used by a thread, which is given up when it is late.

use crate::error::HistoryError;
use crate::record::{EventRecord, JobRun, LoadSample, Record, Span};
use crate::store::{Query, Store};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// Threads at one time, of which those that were given up still wait for their server.
const THREADS_MAX: usize = 8;

static THREADS: AtomicUsize = AtomicUsize::new(0);

type Work = Box<dyn FnOnce(&mut dyn Store) + Send>;

/// A store whose answers are waited for at most a given time.
#[derive(Debug)]
pub struct BoundedStore {
    /// `None`: it was late once.
    work: Option<Sender<Work>>,
    time: Duration,
}

/// Counts a thread while it lives.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::AcqRel);
    }
}

impl BoundedStore {
    /// Opens a store, whose every answer takes at most `time`.
    ///
    /// # Errors
    /// It cannot be opened in that time.
    pub fn open<S: Store + 'static>(
        time: Duration,
        open: impl FnOnce() -> Result<S, HistoryError> + Send + 'static,
    ) -> Result<BoundedStore, HistoryError> {
        let counted = (THREADS.fetch_add(1, Ordering::AcqRel), Counted);
        if counted.0 >= THREADS_MAX {
            return Err(late());
        }
        let (work, requests) = channel::<Work>();
        let (say, opened) = sync_channel(1);
        let serve = move || {
            let _counted = counted.1;
            match open() {
                Ok(mut store) => {
                    // The caller may have given up.
                    let _ = say.send(Ok(()));
                    requests.into_iter().for_each(|work| work(&mut store));
                }
                Err(error) => drop(say.send(Err(error))),
            }
        };
        thread::Builder::new()
            .spawn(serve)
            .map_err(|error| HistoryError::Other(error.to_string()))?;
        opened.recv_timeout(time).unwrap_or_else(|_| Err(late()))?;
        Ok(BoundedStore { work: Some(work), time })
    }

    fn ask<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Store) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, HistoryError> {
        let (say, answer) = sync_channel(1);
        let work: Work = Box::new(move |store| drop(say.send(work(store))));
        let is_sent = self.work.as_ref().is_some_and(|queue| queue.send(work).is_ok());
        let answered = if is_sent { answer.recv_timeout(self.time).ok() } else { None };
        answered.unwrap_or_else(|| {
            self.work = None;
            Err(late())
        })
    }
}

fn late() -> HistoryError {
    HistoryError::Other("the server does not answer in time".to_owned())
}

impl Store for BoundedStore {
    fn write(&mut self, records: &[Record]) -> Result<(), HistoryError> {
        let records = records.to_vec();
        self.ask(move |store| store.write(&records))
    }

    fn tidy(&mut self, now_ms: u64) -> Result<(), HistoryError> {
        self.ask(move |store| store.tidy(now_ms))
    }

    fn runs(&mut self, query: &Query) -> Result<Vec<JobRun>, HistoryError> {
        let query = query.clone();
        self.ask(move |store| store.runs(&query))
    }

    fn profile(&mut self, job: &str, back: usize) -> Result<Option<String>, HistoryError> {
        let job = job.to_owned();
        self.ask(move |store| store.profile(&job, back))
    }

    fn load(&mut self, span: Span, query: &Query) -> Result<Vec<LoadSample>, HistoryError> {
        let query = query.clone();
        self.ask(move |store| store.load(span, &query))
    }

    fn events(&mut self, query: &Query) -> Result<Vec<EventRecord>, HistoryError> {
        let query = query.clone();
        self.ask(move |store| store.events(&query))
    }
}
