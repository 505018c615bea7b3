//! The entries of a directory of the backing directory, in parts that fit a step of a shard.

use super::tree::Fault;
use below::{Entry, Tree};
use metadata::Seen;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use wire::errno::Result;

/// Bytes that the names and links of a part have, at most; each entry counts for more, as its records
/// are longer than they.
const PART_BYTES: usize = 96 << 10;
/// What an entry counts for besides.
const ENTRY_BYTES: usize = 512;

/// Lets so many parts go ahead of their worker.
pub(crate) struct Gate {
    most: usize,
    /// How many are under way; `None`: nobody waits any more.
    ahead: Mutex<Option<usize>>,
    fewer: Condvar,
}

impl Gate {
    pub(super) fn new(most: usize) -> Gate {
        Gate { most, ahead: Mutex::new(Some(0)), fewer: Condvar::new() }
    }

    /// Waits until there may be one more.
    fn pass(self: &Arc<Gate>) -> Pass {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |ahead: &mut Option<usize>| ahead.is_some_and(|ahead| ahead >= self.most);
        let mut ahead =
            self.fewer.wait_while(ahead, is_full).unwrap_or_else(PoisonError::into_inner);
        if let Some(ahead) = ahead.as_mut() {
            *ahead += 1;
        }
        Pass(Arc::clone(self))
    }

    pub(super) fn stop(&self) {
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.fewer.notify_all();
    }
}

/// A part that is under way.
struct Pass(Arc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        let mut ahead = self.0.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ahead) = ahead.as_mut() {
            *ahead = ahead.saturating_sub(1);
        }
        self.0.fewer.notify_one();
    }
}

/// A part of a listing.
pub(crate) struct Listed {
    entries: Vec<Entry>,
    pub(crate) is_last: bool,
    _pass: Pass,
}

impl Listed {
    /// As the service takes it.
    pub(crate) fn seen(&self) -> Vec<Seen<'_>> {
        self.entries.iter().map(seen).collect()
    }
}

/// As the service takes it.
pub(crate) fn seen(entry: &Entry) -> Seen<'_> {
    Seen {
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

/// Reads the directory of this path and number, and gives `each` its parts, or why there are no more.
pub(super) fn list(
    tree: &dyn Tree,
    (path, number): (&[u8], u64),
    gate: &Arc<Gate>,
    each: &mut dyn FnMut(Result<Listed>),
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
            each(Ok(Listed { entries, is_last: false, _pass: gate.pass() }));
        }
    });
    match done {
        Ok(()) => each(Ok(Listed { entries, is_last: true, _pass: gate.pass() })),
        Err(error) => {
            let path = String::from_utf8_lossy(path).into_owned();
            tracing::warn!(path, %error, "can not read a directory of the backing directory");
            each(Err(Fault::from(error).into()));
        }
    }
}
