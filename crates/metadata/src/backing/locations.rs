//! Backing locations of inodes of this service: reading and changing them.

use wire::Inode;

use crate::backing::lost_changes::forget_lost_changes;
use crate::backing::sync_state::{DirLocation, SyncEntry};
use crate::core::context::Context;
use crate::core::state::State;

/// True if this directory may have names in the backing store that are not imported.
pub(crate) fn has_unimported_names(cx: &Context, directory: Inode) -> bool {
    let may = directory.is_backed() || directory == Inode::ROOT;
    may && cx.config.backing && !cx.state.imported.contains(&directory)
}

/// A file has a new size: backing bytes beyond it no longer count, however long the file may
/// become.
pub(crate) fn truncate_backing(cx: &mut Context, inode: Inode, size: u64) {
    if size == 0 {
        forget_lost_changes(cx, inode);
    }
    let Some(sync_entry) = cx.state.sync_entries.get(&inode) else { return };
    let mut truncated = sync_entry.clone();
    let more = truncated.next.as_deref_mut().into_iter().chain(truncated.partial.as_deref_mut());
    for location in truncated.now.iter_mut().chain(more) {
        location.counts = location.counts.min(size);
    }
    if let Some(partial) = &mut truncated.partial {
        // Bytes on their way to it may be from before the truncation.
        partial.stamp.changed += 1;
    }
    if truncated != *sync_entry {
        put_sync_entry(cx, inode, &truncated);
    }
}

pub(crate) fn put_sync_entry(cx: &mut Context, inode: Inode, sync_entry: &SyncEntry) {
    sync_entry.record(inode, |record| cx.put(record));
}

impl State {
    pub(crate) fn own_location(&self, directory: Inode) -> Option<DirLocation> {
        let now = self.sync_entries.get(&directory)?.now.as_ref()?;
        let (parent, name, number) = (now.parent, now.name.to_vec(), now.version.number);
        Some(DirLocation { parent, name, number })
    }
}
