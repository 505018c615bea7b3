//! Lists a directory of the backing store, in parts that fit one step of a shard.

use super::tree::Fault;
use backing::{Entry, Tree};
use metadata::BackingEntry;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use wire::errno::Result;

/// Maximum size of a part, in bytes of names, links and extended attributes. Names count twice and
/// each entry adds `ENTRY_BYTES`, because its log records are longer.
const PART_BYTES: usize = 96 << 10;
/// Fixed cost of an entry.
const ENTRY_BYTES: usize = 512;

/// Limits the number of parts in flight to a worker.
pub(crate) struct ListingGate {
    limit: usize,
    /// Parts in flight; `None`: stopped, no thread waits any more.
    in_flight: Mutex<Option<usize>>,
    released: Condvar,
}

impl ListingGate {
    pub(super) fn new(limit: usize) -> ListingGate {
        ListingGate { limit, in_flight: Mutex::new(Some(0)), released: Condvar::new() }
    }

    /// Waits until another part may be in flight.
    fn acquire(self: &Arc<ListingGate>) -> ListingPermit {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |in_flight: &mut Option<usize>| {
            in_flight.is_some_and(|in_flight| in_flight >= self.limit)
        };
        let mut in_flight =
            self.released.wait_while(in_flight, is_full).unwrap_or_else(PoisonError::into_inner);
        if let Some(in_flight) = in_flight.as_mut() {
            *in_flight += 1;
        }
        ListingPermit(Arc::clone(self))
    }

    pub(super) fn stop(&self) {
        *self.in_flight.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.released.notify_all();
    }
}

/// Permit of one part in flight, returned on drop.
struct ListingPermit(Arc<ListingGate>);

impl Drop for ListingPermit {
    fn drop(&mut self) {
        let mut in_flight = self.0.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(in_flight) = in_flight.as_mut() {
            *in_flight = in_flight.saturating_sub(1);
        }
        self.0.released.notify_one();
    }
}

/// A part of a listing.
pub(crate) struct ListingPart {
    entries: Vec<Entry>,
    pub(crate) is_last: bool,
    _permit: ListingPermit,
}

impl ListingPart {
    /// The entries in the form that the service takes.
    pub(crate) fn as_backing_entries(&self) -> Vec<BackingEntry<'_>> {
        self.entries.iter().map(as_backing_entries).collect()
    }
}

/// As the service takes it.
pub(crate) fn as_backing_entries(entry: &Entry) -> BackingEntry<'_> {
    BackingEntry {
        name: &entry.name,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        links: entry.links,
        size: entry.size,
        accessed: entry.accessed,
        modified: entry.modified,
        changed: entry.changed,
        born: entry.born,
        device: entry.device,
        number: entry.number,
        target: &entry.target,
        extended: &entry.extended,
    }
}

/// Reads the directory with this path and number, and passes its parts, or an error, to `each`.
pub(super) fn list(
    tree: &dyn Tree,
    (path, number): (&[u8], u64),
    gate: &Arc<ListingGate>,
    each: &mut dyn FnMut(Result<ListingPart>),
) {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let done = tree.list(path, number, &mut |entry| {
        let extended = entry.extended.iter().map(|(name, value)| name.len() + value.len() + 4);
        bytes += ENTRY_BYTES + 2 * entry.name.len() + entry.target.len();
        bytes += extended.sum::<usize>();
        entries.push(entry);
        if bytes >= PART_BYTES {
            let entries = core::mem::take(&mut entries);
            bytes = 0;
            each(Ok(ListingPart { entries, is_last: false, _permit: gate.acquire() }));
        }
    });
    match done {
        Ok(()) => each(Ok(ListingPart { entries, is_last: true, _permit: gate.acquire() })),
        Err(error) => {
            let path = String::from_utf8_lossy(path).into_owned();
            tracing::warn!(path, %error, "cannot read backing directory");
            each(Err(Fault::from(error).into()));
        }
    }
}
