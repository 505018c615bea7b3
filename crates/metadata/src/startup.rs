//! The first step after a replay: the root, and everything that was under way.

use wire::attributes::{flag, mode, spread};
use wire::quota::Owner;
use wire::{Attributes, Inode, Layout, ShardIndex};

use crate::contents::NOBODY;
use crate::directory::RESEND_NANOS;
use crate::live::{Again, Decided, Live};
use crate::record::Record;
use crate::service::Service;
use crate::transaction::parts_left;

impl Service {
    /// Takes up what the log says was under way.
    pub(crate) fn start(&mut self) {
        let now = self.live.now;
        let (address, steady) = (self.live.address, self.live.steady);
        self.live = Live::new(address);
        (self.live.now, self.live.steady) = (now, steady);
        self.begin_leases();
        self.begin_far_mounts();
        self.live.is_started = true;
        self.live.sequence_next = self.state.sequence_next;
        // No number of the life before.
        self.live.news = now.cast_unsigned();
        if self.config.owns(ShardIndex(0)) && self.state.inodes.get(Inode::ROOT).is_none() {
            self.make_root();
        }
        for (id, prepared) in self.state.prepared.clone() {
            self.hold_all(id, &prepared.actions);
            self.live.inquired.insert(id, Again::after(now, RESEND_NANOS));
        }
        for (&sequence, left) in &self.state.decisions {
            let again = Again::after(now, 0);
            self.live.decided.insert(sequence, Decided { left: parts_left(left).collect(), again });
        }
        let tokens: Vec<u64> = self.state.pending.keys().copied().collect();
        for token in tokens {
            self.ask_targets(token, NOBODY);
        }
        self.begin_sizes();
        self.begin_quotas();
        self.begin_bank();
        self.ask_for_removals();
        for &directory in self.state.tallies.keys() {
            if !self.config.owns(directory.shard()) {
                self.live.dirty.insert(directory, 0);
            }
        }
        self.live.wake_at(now);
    }

    fn make_root(&mut self) {
        let now = self.live.now;
        let config = &self.config;
        let layout = Layout {
            // Who brings the entries of a directory in from below has all of them.
            spread: if config.backing { spread::HOME } else { config.spread },
            placement: config.placement,
            chunk_log2: config.chunk_log2_of(config.chunk_log2, config.chunk_log2),
            flags: config.root_flags & (flag::POSIX | flag::WRITE_BACK),
            place: 0,
        };
        let mode = mode::DIRECTORY | config.root_mode & mode::PERMISSIONS;
        let owner = (Owner { uid: config.root_uid, project: 0 }, config.root_gid);
        let new = Attributes::of_new(Inode::ROOT, mode, owner, now, layout);
        let attributes = Attributes { parent: Inode::ROOT, links: 2, ..new };
        debug_assert_eq!(layout.flags & flag::INLINE, 0);
        self.put(&Record::PutInode {
            attributes,
            nameless: 0,
            target: &[],
            contents: &[],
            xattrs: &[],
            tallies: &[],
        });
    }
}
