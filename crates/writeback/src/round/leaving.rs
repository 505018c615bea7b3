//! The end of an instance: removes its private files from the backing store, which no process will
//! ever read again. These are files that lost their names while they were open, and partial files.
//! Files that cannot be removed stay; the command that stops the instance does not wait for them.
//!
//! Not here: files that exist but are under an aside name, because their name was reused and they
//! were not written since.

use crate::round::Round;
use crate::state::{SyncState, WritebackResult};

impl Round<'_> {
    /// Removes the private files. Partial files are not reported as removed: bytes that were only
    /// in them are lost, and reads of them fail.
    pub(crate) fn shut_down(&mut self) -> WritebackResult<()> {
        let (all, _) = self.list()?;
        for sync_state in all {
            if let Err(error) = self.remove_private_files(&sync_state) {
                tracing::info!(
                    inode = sync_state.inode.0,
                    "a file is left in the backing store: {error}"
                );
            }
        }
        Ok(())
    }

    fn remove_private_files(&mut self, sync_state: &SyncState) -> WritebackResult<()> {
        let has_name = sync_state.attributes.is_some_and(|attributes| attributes.links > 0);
        if let Some(now) = sync_state.now.as_ref().filter(|now| !has_name && now.place.is_private())
        {
            self.remove_private(sync_state.inode, now)?;
        }
        self.remove_partial(sync_state)
    }
}
