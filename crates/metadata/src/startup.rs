//! The first step after a replay: creates the root, and resumes all unfinished work.

use wire::attributes::{flag, mode, spread};
use wire::quota::Owner;
use wire::{Attributes, Inode, Layout, ShardIndex};

use crate::core::context::Context;
use crate::core::record::Record;
use crate::core::state::ShardCounters;
use crate::files::contents::NOBODY;
use crate::files::removal::resend_removals;
use crate::namespace::local_ops::renew_grants;
use crate::service::Service;

/// The numbers that an owner skips after another one are in its log: a copy of it has them, too.
fn put_skipped(cx: &mut Context) {
    let (shards, grants) = (cx.state.shards.clone(), cx.state.grants.clone());
    for (shard, ShardCounters { inode_next, place_next }) in shards {
        cx.put(&Record::PutShard { shard, inode_next, place_next });
    }
    for (shard, end) in grants {
        cx.put(&Record::PutGrant { shard, end });
    }
    for (shard, next) in cx.state.backed_inode_next.clone() {
        cx.put(&Record::PutBackedNext { shard, next });
    }
    let sequence_next = cx.state.sequence_next;
    cx.put(&Record::PutCounter { sequence_next });
}

impl Service {
    /// Resumes the work that the log shows as unfinished.
    pub(crate) fn start(&mut self) {
        let now = self.files.cx.now;
        self.files.leases.begin_leases(&mut self.files.cx);
        self.files.caches.remote.begin_remote_mounts(&mut self.files.cx);
        self.is_started = true;
        if self.has_skipped {
            put_skipped(&mut self.files.cx);
        }
        // A service that was killed may not have told its clients, and one that comes back not at all.
        renew_grants(&mut self.files.cx);
        self.files.cx.sequence_next = self.files.cx.state.sequence_next;
        // Never a number from before the restart.
        self.files.cx.dirty_generation = now.cast_unsigned();
        if self.files.cx.config.owns(ShardIndex(0))
            && self.files.cx.state.inodes.get(Inode::ROOT).is_none()
        {
            self.make_root();
        }
        self.transactions.resume(&mut self.files);
        let tokens: Vec<u64> = self.files.cx.state.pending.keys().copied().collect();
        for token in tokens {
            self.files.request_on_targets(token, NOBODY);
        }
        self.files.sizes.begin_sizes(&mut self.files.cx);
        self.files.grants.begin_quotas(&mut self.files.cx);
        self.coordinator.begin_coordinator(&mut self.files.cx);
        self.registry.begin_pools(&mut self.files.cx);
        resend_removals(&mut self.files.cx);
        for &directory in self.files.cx.state.tallies.keys() {
            if !self.files.cx.config.owns(directory.shard()) {
                self.files.directories.send_tally(directory);
            }
        }
        self.files.cx.wake_at(now);
    }

    fn make_root(&mut self) {
        let now = self.files.cx.now;
        let config = &self.files.cx.config;
        let layout = Layout {
            // The service that imports the entries of a directory owns all of them.
            spread: if config.backing { spread::HOME } else { config.spread },
            placement: config.placement,
            stripe_log2: config.stripe_log2_of(config.stripe_log2, config.stripe_log2),
            flags: config.root_flags & (flag::POSIX | flag::WRITEBACK),
            pool: 0,
            place: 0,
        };
        let mode = mode::DIRECTORY | config.root_mode & mode::PERMISSIONS;
        let owner = (Owner { uid: config.root_uid, project: 0 }, config.root_gid);
        let new = Attributes::of_new(Inode::ROOT, mode, owner, now, layout);
        let attributes = Attributes { parent: Inode::ROOT, links: 2, ..new };
        debug_assert_eq!(layout.flags & flag::INLINE, 0);
        self.files.cx.put(&Record::PutInode {
            attributes,
            nameless: 0,
            target: &[],
            contents: &[],
            xattrs: &[],
            tallies: &[],
        });
    }
}
