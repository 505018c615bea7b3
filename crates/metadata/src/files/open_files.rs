//! The hosts that have a file open, and the removal of files without a name.
//!
//! This host's open files are in shared memory (`HostView`); other hosts register here. A file
//! without a name is removed when it is open nowhere; until then it is an orphan. A service that goes on
//! at another daemon does not know what programs of its first owner's host have open: files that they
//! may have open stay until that is known (`Service::take_over`).
//!
//! A host's messages about first opens and last closes may be reordered. So each carries an open
//! sequence that the host drew (`shm::host`): a close ends no opening with a larger one.

use wire::reply::opened;
use wire::request::open;
use wire::{Attributes, Inode, Reply};

use crate::core::context::Context;
use crate::core::effect::{Effect, HostMarks, IndexOp};
use crate::core::job::{Call, Step};
use crate::core::record::Record;
use crate::files::Files;
use crate::files::openings::{Opening, put_hosts};
use crate::kernel_cache::page_cache::remote_use;

impl Files {
    pub(crate) fn open(
        &mut self,
        call: &Call<'_>,
        inode: Inode,
        open_sequence: u64,
        uses: u8,
    ) -> Step<()> {
        self.settle_size(call, inode)?;
        let attributes = self.cx.quiet_attributes(inode)?;
        let host = call.header.host;
        let writers = self.caches.pages.writers_ever(call.host_view, inode);
        let (writes, caches) = (uses & open::WRITES != 0, uses & open::MAPS != 0);
        register_host(
            &mut self.cx,
            call.host_view,
            inode,
            Opening { host, open_sequence, writes, caches },
        );
        let writers =
            self.caches.announce_open(&mut self.cx, call, inode, uses)?.unwrap_or(writers);
        let mut others = remote_use(&self.cx, call, inode);
        if uses & open::PAGES != 0 && others & opened::OTHERS_WRITE == 0 {
            register_host(
                &mut self.cx,
                call.host_view,
                inode,
                Opening { host, open_sequence, writes, caches: true },
            );
            // Now it includes writers that began before this opening was recorded.
            others = remote_use(&self.cx, call, inode);
            if others & opened::OTHERS_WRITE == 0 {
                others |= opened::MAY_CACHE;
            }
        }
        self.cx.io.reply(call.ticket, &Reply::Opened { attributes, writers, others });
        Ok(())
    }

    pub(crate) fn close(&mut self, call: &Call<'_>, inode: Inode, open_sequence: u64) -> Step<()> {
        self.forget_host(inode, call.header.host, open_sequence);
        self.cx.io.reply(call.ticket, &Reply::Done {});
        Ok(())
    }

    /// A host no longer has a file open, up to this open sequence; later openings stay.
    pub(crate) fn forget_host(&mut self, inode: Inode, host: u16, open_sequence: u64) {
        let Some(hosts) = self.cx.state.hosts.get(&inode) else { return };
        let stays = |known: &Opening| known.host != host || known.open_sequence > open_sequence;
        let left: Vec<Opening> = hosts.iter().copied().filter(stays).collect();
        if left.len() != hosts.len() {
            let gone = hosts.iter().filter(|known| !stays(known)).map(|known| known.uses());
            let gone: Vec<u8> = gone.filter(|&uses| uses != 0).collect();
            put_hosts(&mut self.cx, inode, &left);
            for less in gone {
                self.cx.io.push(Effect::UncountUse { inode, less });
            }
            self.sizes.forget_sizes(&mut self.cx, host, inode);
        }
        if self.cx.state.orphans.contains(&inode) {
            self.cx.unlinked.push(inode);
        }
    }

    /// Removes the inodes that lost their last name in this step, or retains them as orphans.
    pub(crate) fn settle_unlinked(&mut self, host_view: &mut dyn HostMarks) {
        while let Some(inode) = self.cx.unlinked.pop() {
            let Some(node) = self.cx.state.inodes.get(inode) else { continue };
            let mut attributes = node.attributes;
            let is_open = self.cx.unknown_opener(inode).is_some()
                || self.cx.state.hosts.contains_key(&inode)
                || self.cx.busy.contains_key(&inode)
                || self.caches.grace.is_in_grace(&self.cx, inode)
                || host_view.mark_deleted(inode);
            if is_open {
                if attributes.links != 0 {
                    attributes.links = 0;
                    attributes.changed = self.cx.stamp(attributes.changed);
                    self.cx.put(&Record::PutAttributes { attributes });
                }
                continue;
            }
            self.remove(&attributes);
        }
    }

    /// Removes an inode that nobody has open.
    pub(crate) fn remove(&mut self, of: &Attributes) {
        let inode = of.inode;
        self.cx.put(&Record::DeleteInode { inode });
        self.caches.grace.forget(inode);
        self.locks.refuse_waiters(&mut self.cx, inode);
        if of.is_regular() && !of.is_inline() {
            self.removals.note_removed(inode, of.layout);
        }
    }
}

pub(crate) fn reap(cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
    if cx.state.orphans.contains(&inode) {
        cx.unlinked.push(inode);
    }
    cx.io.reply(call.ticket, &Reply::Done {});
    Ok(())
}

/// Removes one link of an inode of this service that is no directory.
pub(crate) fn drop_link(cx: &mut Context, inode: Inode) {
    let Some(node) = cx.state.inodes.get(inode) else { return };
    let mut attributes = node.attributes;
    if attributes.links <= 1 {
        // `settle_unlinked` decides whether it is removed or stays as an orphan.
        cx.unlinked.push(inode);
        return;
    }
    attributes.links -= 1;
    attributes.changed = cx.stamp(attributes.changed);
    cx.put(&Record::PutAttributes { attributes });
}

/// Records that another host has a file open.
pub(crate) fn register_host(
    cx: &mut Context,
    host_view: &dyn HostMarks,
    inode: Inode,
    opening: Opening,
) {
    if opening.host == cx.config.host {
        return;
    }
    let mut hosts = cx.state.hosts.get(&inode).cloned().unwrap_or_default();
    let (before, now) = match hosts.iter_mut().find(|known| known.host == opening.host) {
        Some(known) => {
            let before = *known;
            known.open_sequence = known.open_sequence.max(opening.open_sequence);
            known.writes |= opening.writes;
            known.caches |= opening.caches;
            if *known == before {
                return;
            }
            (before.uses(), known.uses())
        }
        None => {
            hosts.push(opening);
            (0, opening.uses())
        }
    };
    if now != before {
        host_view.add_remote_use(inode, now & !before);
    }
    put_hosts(cx, inode, &hosts);
    if let Some(node) = cx.state.inodes.get(inode)
        && cx.is_written_elsewhere(&node.attributes)
    {
        // From now on the size must be queried from the shard.
        cx.io.index(IndexOp::ForgetInode(inode));
    }
}
