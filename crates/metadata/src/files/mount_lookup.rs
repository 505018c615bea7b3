//! Lookups of mounts of other hosts, whose kernels may remember the answer (`kernel_cache::remote`).

use wire::reply::lookup_flag;
use wire::watch::Watch;
use wire::{Attributes, Errno, Inode, Reply};

use crate::core::job::{Call, Step, Stop};
use crate::files::Files;

impl Files {
    /// A mount of another host looks up a name, or without a name an inode.
    pub(crate) fn lookup_for_mount(
        &mut self,
        call: &Call<'_>,
        inode: Inode,
        name: &[u8],
    ) -> Step<()> {
        if call.header.mount == 0 || call.header.host == self.cx.config.host {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let entry = match name {
            [] => Some((inode, 0)),
            name => self.cx.state.entries.get(inode, name),
        };
        let mut seen = Attributes::default();
        let mut may = 0;
        if let Some((found, mode)) = entry {
            seen = Attributes { inode: found, mode, ..seen };
            if self.cx.config.owns(found.shard()) {
                self.settle_size(call, found)?;
                seen = self.cx.quiet_attributes(found)?;
                self.directories.ask_tallies(&mut self.cx, call, &seen)?;
                may |= lookup_flag::ATTRIBUTES;
            }
        }
        // From here on nothing stops the request.
        if !name.is_empty() {
            let watch = Watch::of_key(wire::hash::entry_key(inode, name));
            let stays = self.names_may_stay(inode)
                && self.caches.remote.note_view(&mut self.cx, call, watch);
            may |= if stays { lookup_flag::NAME_STAYS } else { 0 };
        }
        if may & lookup_flag::ATTRIBUTES != 0
            && self.caches.remote.may_stay(&mut self.cx, call, &seen)
        {
            may |= lookup_flag::ATTRIBUTES_STAY;
        }
        self.cx.io.reply(call.ticket, &Reply::LookupForMount { may, attributes: seen });
        Ok(())
    }
}
