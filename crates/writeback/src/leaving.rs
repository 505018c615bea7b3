//! The end of an instance: what it has below under names of its own, and nobody will ever ask for again,
//! goes. That are files that lost their names while they were open, and drafts of files that are not
//! complete. What failed stays, and whoever stops the instance does not wait for it.
//!
//! Not here: what lives and is aside, as its name was given away and nothing saved it since.

use crate::round::Round;
use crate::state::{Standing, Tried};

impl Round<'_> {
    /// See the module. Of drafts nobody is told: what was only there is lost, and who reads it is told
    /// that.
    pub(crate) fn take_leave(&mut self) -> Tried<()> {
        let (all, _) = self.list()?;
        for standing in all {
            if let Err(trouble) = self.take_away(&standing) {
                tracing::info!(inode = standing.inode.0, "something is left below: {trouble}");
            }
        }
        Ok(())
    }

    fn take_away(&mut self, standing: &Standing) -> Tried<()> {
        let has_name = standing.attributes.is_some_and(|attributes| attributes.links > 0);
        if let Some(now) = standing.now.as_ref().filter(|now| !has_name && now.place.is_own()) {
            self.remove_own(standing.inode, now)?;
        }
        self.remove_draft(standing)
    }
}
