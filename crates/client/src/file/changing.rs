//! Guard of changes of a file's bytes: readahead (`io::readahead`) that overlaps one is invalid.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::Vnode;

use crate::transport::Transport;

/// Guard of a change of a file's bytes on this host, from before its start until after its end.
pub(crate) struct Changing<'a>(Option<&'a AtomicU64>);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.0 {
            changes.fetch_add(1, SeqCst);
        }
    }
}

/// True if the instance is configured for readahead.
#[inline]
pub(crate) fn readahead_enabled(transport: &Transport) -> bool {
    transport.readahead_enabled.load(Relaxed)
}

/// Invalidates readahead of the file that was fetched before or is fetched during the change.
pub(crate) fn changing<'a>(transport: &Transport, vnode: &'a Vnode) -> Changing<'a> {
    let changes = readahead_enabled(transport).then_some(&vnode.changes);
    if let Some(changes) = changes {
        changes.fetch_add(1, SeqCst);
    }
    Changing(changes)
}
