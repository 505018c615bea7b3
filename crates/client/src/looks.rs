//! What a mount asks shards of other hosts about for its kernel, which may remember the answers for a
//! while (`wire::watch`). Of this host's own it looks into shared memory (`watches`).

use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::reply::looked;
use wire::watch::Watch;
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex};

use crate::Client;
use crate::request::{To, own_credentials};
use crate::walk::Entry;

/// What a shard of another host said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looked {
    /// The inode, or none: there is no such name.
    pub inode: Inode,
    /// Its attributes, unless its shard is another.
    pub attributes: Option<Attributes>,
    /// The kernel may remember where the name leads.
    pub name_stays: bool,
    /// It may remember the attributes, as far as this host does not change them.
    pub attributes_stay: bool,
}

impl Client {
    /// The watch of a name of a directory with this layout, and the shard that decides about it.
    #[must_use]
    pub fn watch_of_name(parent: Inode, layout: &Layout, name: &[u8]) -> (Watch, ShardIndex) {
        let parent = Attributes { inode: parent, layout: *layout, ..Attributes::default() };
        let entry = Entry::of(&parent, name);
        (Watch::of_key(entry.key), entry.shard)
    }

    /// The layout of a directory, if it is known without a message.
    #[must_use]
    pub fn layout_at_hand(&self, directory: Inode) -> Option<Layout> {
        self.attributes_in_index(directory).map(|found| found.layout)
    }

    /// True if the shard is one of another host.
    #[must_use]
    pub fn is_far(&self, shard: ShardIndex) -> bool {
        self.is_near(shard) == Ok(false)
    }

    /// Where a name leads that a shard of another host has.
    ///
    /// # Errors As `call`.
    pub fn ask_look(&self, parent: Inode, name: &[u8], shard: ShardIndex) -> Result<Looked> {
        let request = Request::Look { inode: parent, name };
        self.call(To::Shard(shard), &request, &own_credentials())?.with(|reply| match reply {
            Reply::Looked { may, attributes } => Ok(Looked {
                inode: attributes.inode,
                attributes: (may & looked::ATTRIBUTES != 0).then_some(attributes),
                name_stays: may & looked::NAME_STAYS != 0,
                attributes_stay: may & looked::ATTRIBUTES_STAY != 0,
            }),
            _ => Err(Errno::EIO),
        })
    }

    /// The attributes of an inode of another host, with all that this host wrote, and whether the
    /// kernel of this mount may remember them. `first`: what its shard just said. It was noted
    /// before that the kernel watches them.
    ///
    /// # Errors `ESTALE`, and as `call`.
    pub fn look_at_far(&self, inode: Inode, first: Option<Looked>) -> Result<(Attributes, bool)> {
        let host = self.host()?;
        let row = host.vnode_find(inode).and_then(|row| host.vnode(row).ok());
        let mut seen = first;
        if row.is_some_and(|row| row.dirty_end.load(SeqCst) != 0) {
            self.flush_if_open(inode)?;
            seen = None;
        }
        let seen = match seen {
            Some(seen) => seen,
            None => self.ask_look(inode, b"", inode.shard())?,
        };
        let attributes = seen.attributes.ok_or(Errno::EIO)?;
        Ok((attributes, seen.attributes_stay && self.may_keep_of(inode)))
    }
}
