//! Posts (`wire::post`): operations that a client of this host completed in shared memory. They are
//! applied between two steps, are not answered, and do not fail: what is refused here was never
//! promised by an honest client, or was applied before a crash.
//!
//! The daemon lets clients post only while `takes_posts` says so.

use wire::attributes::{mode, spread};
use wire::name::Name;
use wire::post::SEQUENCE_FIRST;
use wire::{Attributes, Inode, Post, ShardIndex};

use crate::effect::{Effect, IndexOp, Posted};
use crate::record::Record;
use crate::service::Service;

/// Inode numbers that are granted to clients at a time.
const GRANT_COUNT: u64 = 8192;

impl Service {
    /// May clients post now, so many that their records take `bytes`? Not while a transaction holds
    /// names, and not without memory for what they make.
    #[must_use]
    pub fn takes_posts(&self, bytes: u64) -> bool {
        let after = self.state.bytes.saturating_add(bytes);
        self.live.is_started && self.live.keys.is_empty() && after < self.config.metadata_bytes_max
    }

    /// True if a `Post::Close` can be applied now: the inode does not wait for targets.
    #[must_use]
    pub fn is_quiet(&self, inode: Inode) -> bool {
        !self.live.busy.contains_key(&inode)
    }

    /// The first inode number of `shard` that no post may have used.
    #[must_use]
    pub fn numbers_end(&self, shard: ShardIndex) -> u64 {
        self.state.grants.get(&shard.0).copied().unwrap_or(SEQUENCE_FIRST)
    }

    pub(crate) fn grant_numbers(&mut self, shard: ShardIndex) {
        let first = self.numbers_end(shard);
        let end = first + GRANT_COUNT;
        self.put(&Record::PutGrant { shard: shard.0, end });
        self.io.push(Effect::GrantNumbers { shard, first, end });
    }

    pub(crate) fn take_post(&mut self, posted: &Posted<'_>) {
        match posted.post {
            Post::Create { parent, spread, ref attributes, name } => {
                self.created_by_post(parent, spread, attributes, name);
            }
            Post::Unlink { parent, spread, inode, at, name } => {
                self.unlinked_by_post((parent, spread), inode, at.cast_signed(), name);
            }
            Post::Close { inode, .. } => self.closed_by_post(inode, posted.written),
        }
    }

    fn created_by_post(&mut self, parent: Inode, spread: u8, attributes: &Attributes, name: &[u8]) {
        let Ok(name) = Name::parse(name) else { return };
        let inode = attributes.inode;
        let granted = SEQUENCE_FIRST..self.numbers_end(inode.shard());
        let is_granted = granted.contains(&inode.sequence()) && self.config.owns(inode.shard());
        let is_there = self.state.entries.get(parent, name.bytes()).is_some()
            || self.state.inodes.get(inode).is_some();
        if !attributes.is_regular() || !is_granted || is_there {
            return;
        }
        let mut attributes = self.checked(attributes);
        if (attributes.project != 0 || self.state.usage.has_projects())
            && let Some(known) = self.known_directory(parent)
        {
            attributes.project = known.project;
        }
        self.put_new(&attributes, &[], 0, &[]);
        let kind = mode::REGULAR;
        self.put(&Record::PutEntry { parent, name: name.bytes(), inode, mode: kind });
        let at = attributes.changed.min(self.live.now);
        self.change_tally_at(at, parent, spread, (1, 0));
    }

    /// What a client filled in, within limits.
    fn checked(&self, attributes: &Attributes) -> Attributes {
        let mut layout = attributes.layout;
        layout.chunk_log2 = self.config.chunk_log2_of(layout.chunk_log2, layout.chunk_log2);
        layout.spread = spread::HOME;
        layout.flags &= self.flags_of_new();
        Attributes {
            parent: Inode::NONE,
            mode: attributes.mode & (mode::TYPE | mode::PERMISSIONS),
            links: 1,
            size: 0,
            device: 0,
            layout,
            extras: 0,
            ..*attributes
        }
    }

    fn unlinked_by_post(
        &mut self,
        (parent, spread): (Inode, u8),
        inode: Inode,
        at: i64,
        name: &[u8],
    ) {
        let found = self.state.entries.get(parent, name);
        let is_it = found
            .is_some_and(|(other, kind)| other == inode && kind & mode::TYPE != mode::DIRECTORY);
        if !is_it || !self.config.owns(inode.shard()) {
            return;
        }
        self.put(&Record::DeleteEntry { parent, name });
        // No later than now: nobody dates a directory into the future.
        self.change_tally_at(at.min(self.live.now), parent, spread, (-1, 0));
        self.drop_link(inode);
    }

    /// The file was written up to `written`, and the shard was not told.
    fn closed_by_post(&mut self, inode: Inode, written: u64) {
        let Some(node) = self.state.inodes.get(inode) else { return };
        let old = node.attributes;
        if written == 0 || !old.is_regular() || old.is_inline() {
            return;
        }
        let mut attributes = old;
        attributes.size = old.size.max(written.min(wire::limits::FILE_BYTES_MAX));
        attributes.changed = self.stamp(old.changed);
        attributes.modified = attributes.changed;
        self.put(&Record::PutAttributes { attributes });
    }

    /// Notes in the index that a directory has no entries here, so that all are known from now on.
    pub(crate) fn note_empty(&mut self, directory: Inode) {
        let tally = self.state.tallies.get(&directory);
        let is_empty = tally.is_none_or(|tally| tally.entries == 0);
        if is_empty && !self.state.entries.has_any(directory) {
            self.io.index(IndexOp::PutWhole { directory });
        }
    }
}
