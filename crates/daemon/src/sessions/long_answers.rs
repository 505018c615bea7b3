//! Answers that are long, or for which services are waited for: each is given by a thread of its own, so
//! that neither its search nor a slow reader holds up the main thread.

use crate::shared::Shared;
use serde::Serialize;
use std::io::{BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Longest wait for a reader.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are written at once: an answer is shorter in memory than as text.
const BUFFER_BYTES: usize = 64 << 10;

/// A kind of such answers.
pub(crate) struct LongAnswer {
    /// Name of the thread.
    pub(crate) name: &'static str,
    /// Their subject, in lines of the log.
    pub(crate) subject: &'static str,
    /// Most answers at the same time. Others find the connection closed, and ask again.
    pub(crate) at_once_max: u32,
    /// Answers that are being given.
    pub(crate) count: fn(&Shared) -> Option<&AtomicU32>,
}

impl LongAnswer {
    /// Answers with what `make` finds, as a line of JSON.
    pub(crate) fn give<T: Serialize>(
        &'static self,
        shared: &Arc<Shared>,
        stream: UnixStream,
        make: impl FnOnce(&Shared) -> T + Send + 'static,
    ) {
        let Some(count) = (self.count)(shared) else { return };
        if count.fetch_add(1, Relaxed) >= self.at_once_max {
            count.fetch_sub(1, Relaxed);
            return;
        }
        let in_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        let spawned = thread.spawn(move || {
            self.write(stream, &make(&in_thread));
            let count = (self.count)(&in_thread);
            count.map(|count| count.fetch_sub(1, Relaxed));
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, subject = self.subject, "cannot answer");
            count.fetch_sub(1, Relaxed);
        }
    }

    /// Writes an answer in this thread.
    pub(crate) fn write<T: Serialize>(&self, stream: UnixStream, answer: &T) {
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(WRITE_TIMEOUT)));
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, stream);
        let written = prepared
            .and_then(|()| Ok(serde_json::to_writer(&mut to, answer)?))
            .and_then(|()| to.write_all(b"\n"))
            .and_then(|()| to.flush());
        if let Err(error) = written {
            tracing::debug!(%error, subject = self.subject, "cannot write an answer");
            // Nothing more is written when it is dropped: each attempt may take its time.
            let _ = to.into_parts();
        }
    }
}
