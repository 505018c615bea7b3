//! The queue and the thread that write a store.
//!
//! A caller gives records away and never waits: `Recorder::offer` puts them into a queue of bounded
//! length, and one that finds it full is dropped and counted. The thread opens the store, writes what
//! is in the queue in one transaction, and tries again later if that fails. Each kind of failure is told
//! once, and once that it is over.

use crate::error::HistoryError;
use crate::record::Record;
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Records in the queue: more than a minute of an instance with ten jobs.
const QUEUE_MAX: usize = 1024;
/// Records of one transaction.
const BATCH_MAX: usize = 256;
/// Time between rounds that sum up minutes and remove what is old.
const TIDY_TIME: Duration = Duration::from_secs(60);
/// Time between attempts to open a store that could not be opened.
const REOPEN_TIME: Duration = Duration::from_secs(10);
/// How long the end waits for what is in the queue.
const END_TIME: Duration = Duration::from_secs(5);

/// Opens the store.
pub type Opener = Box<dyn FnMut() -> Result<Box<dyn Store>, HistoryError> + Send>;
/// Takes lines for the user.
pub type Sayer = Box<dyn FnMut(&str) + Send>;
/// Milliseconds since 1970.
pub type Clock = fn() -> u64;

/// Writes records into a store, beside its caller.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<SyncSender<Record>>,
    ended: Receiver<()>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts the thread. `say` gets lines about failures.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(open: Opener, say: Sayer, clock: Clock) -> std::io::Result<Recorder> {
        let (queue, records) = sync_channel(QUEUE_MAX);
        let (end, ended) = sync_channel(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            open,
            say,
            clock,
            store: None,
            failure: None,
            dropped: Arc::clone(&dropped),
            opened_at: None,
            tidied_at: None,
        };
        thread::Builder::new().name("history".to_owned()).spawn(move || {
            writer.work(&records);
            // The store is closed before the process may end.
            drop(writer);
            // The recorder may be gone.
            let _ = end.try_send(());
        })?;
        Ok(Recorder { queue: Some(queue), ended, dropped })
    }

    /// Gives a record away. It never waits: false says that the record is dropped.
    pub fn offer(&self, record: Record) -> bool {
        let taken = self.queue.as_ref().is_some_and(|queue| queue.try_send(record).is_ok());
        if !taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Records that were dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was given away is written or dropped, for a few seconds at most. Returns the
    /// number of records that were dropped.
    pub fn finish(mut self) -> u64 {
        self.queue = None;
        let _ = self.ended.recv_timeout(END_TIME);
        self.dropped()
    }
}

/// The thread.
struct Writer {
    open: Opener,
    say: Sayer,
    clock: Clock,
    store: Option<Box<dyn Store>>,
    /// The failure that was told and is not over.
    failure: Option<HistoryError>,
    dropped: Arc<AtomicU64>,
    opened_at: Option<Instant>,
    tidied_at: Option<Instant>,
}

impl Writer {
    fn work(&mut self, records: &Receiver<Record>) {
        loop {
            let first = match records.recv_timeout(TIDY_TIME) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut batch: Vec<Record> = first.into_iter().collect();
            batch.extend(records.try_iter().take(BATCH_MAX - batch.len()));
            self.write(&batch);
            if self.tidied_at.is_none_or(|at| at.elapsed() >= TIDY_TIME) {
                self.tidy((self.clock)());
            }
        }
        // The last minute is not over. A recorder that goes on in it makes its row anew.
        self.tidy((self.clock)().saturating_add(60_000));
    }

    /// The store; `None`: it cannot be opened, which is not tried all the time.
    fn store(&mut self) -> Result<&mut Box<dyn Store>, Option<HistoryError>> {
        if self.store.is_none() {
            if self.opened_at.is_some_and(|at| at.elapsed() < REOPEN_TIME) {
                return Err(None);
            }
            self.opened_at = Some(Instant::now());
            self.store = Some((self.open)().map_err(Some)?);
        }
        self.store.as_mut().ok_or(None)
    }

    fn write(&mut self, batch: &[Record]) {
        if batch.is_empty() {
            return;
        }
        let written = match self.store() {
            Ok(store) => store.write(batch).map_err(Some),
            Err(failure) => Err(failure),
        };
        match written {
            Ok(()) => {
                if self.failure.take().is_some() {
                    let dropped = self.dropped.load(Ordering::Relaxed);
                    (self.say)(&format!("history is recorded again; {dropped} records are lost"));
                }
            }
            // One record that is too large does not take the others with it.
            Err(Some(HistoryError::TooLarge)) if batch.len() > 1 => {
                batch.iter().for_each(|record| self.write(std::slice::from_ref(record)));
            }
            Err(failure) => {
                self.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                self.failed(failure);
            }
        }
    }

    fn tidy(&mut self, now_ms: u64) {
        let Some(store) = &mut self.store else { return };
        self.tidied_at = Some(Instant::now());
        if let Err(failure) = store.tidy(now_ms) {
            self.failed(Some(failure));
        }
    }

    fn failed(&mut self, failure: Option<HistoryError>) {
        let Some(failure) = failure else { return };
        // Another connection, or a file that was moved away, may work.
        if !matches!(
            failure,
            HistoryError::Busy | HistoryError::TooLarge | HistoryError::DeviceFull
        ) {
            self.store = None;
        }
        if self.failure.as_ref() != Some(&failure) {
            (self.say)(&format!("history is not recorded: {failure}"));
            self.failure = Some(failure);
        }
    }
}

#[cfg(test)]
mod tests;
