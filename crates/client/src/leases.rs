//! Directories of other hosts that this host was told of, and will be told of before they change: a walk
//! goes through them without a message. How it is agreed on: `metadata`'s leases; what is read here:
//! `shm::leases`.
//!
//! Of a directory's attributes only mode, owner, group, layout and parent are so. They serve where a
//! walk begins and goes through, and as the parent of what is made or removed, never as an answer.

use placement::map::worker_of_shard;
use shm::index::{Hit, Index};
use shm::wait::steady_nanos;
use wire::lease::service;
use wire::{Attributes, Inode, ShardIndex};

use crate::Client;
use crate::attach::Attachment;
use crate::memo::Trail;
use crate::walk::Entry;

impl Client {
    /// Puts a directory of another host, as far as walks need it, into `to`. False: it is not leased.
    pub(crate) fn leased(&self, directory: Inode, to: &mut Attributes) -> bool {
        let look = |index: &Index| index.read_inode(directory, to).then_some(());
        self.read_leases(directory.shard(), look).is_some() && is_there(to)
    }

    /// The same of the directory that an entry leads to.
    pub(crate) fn leased_entry(&self, entry: &Entry, to: &mut Attributes) -> bool {
        let look = |index: &Index| {
            let Hit::Found(inode, _) = index.entry(entry.key) else { return None };
            index.read_inode(inode, to).then_some(inode)
        };
        let Some(inode) = self.read_leases(entry.shard, look) else { return false };
        // Both are of one service, else nothing was promised.
        self.service_number(inode.shard()) == self.service_number(entry.shard) && is_there(to)
    }

    /// Leases of the service of a shard are about to be read by a walk.
    pub(crate) fn note_leases(&self, shard: ShardIndex, trail: &mut Trail) {
        let leases = self.home_now().and_then(Attachment::leases);
        match (leases, self.service_number(shard)) {
            (Some(leases), Some(service)) => trail.note_leases(leases, service),
            _ => trail.leave(),
        }
    }

    pub(crate) fn service_number(&self, shard: ShardIndex) -> Option<usize> {
        let home = self.home_now()?;
        Some(service(home.map.owner(shard), worker_of_shard(shard, home.workers())))
    }

    fn read_leases<R>(
        &self,
        shard: ShardIndex,
        look: impl FnOnce(&Index) -> Option<R>,
    ) -> Option<R> {
        let home = self.home_now()?;
        let service = self.service_number(shard)?;
        let found = home.leases()?.read(service, steady_nanos, look)?;
        home.bells.use_lease(service);
        Some(found)
    }
}

fn is_there(directory: &Attributes) -> bool {
    directory.is_directory() && directory.links != 0
}
