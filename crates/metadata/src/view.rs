//! Read access of a daemon to a running service, besides the effects of its steps.

use wire::quota::Account;
use wire::{Attributes, Inode, ShardIndex};

use crate::core::snapshot::SnapshotCursor;
use crate::kernel_cache::page_cache::service_number;
use crate::locks::requests::LockSeen;
use crate::service::Service;

impl Service {
    /// True if writeback may free space, as known when a request last found none; and a number that
    /// changes with the progress of writeback.
    #[must_use]
    pub fn writes_back_for_space(&self) -> (bool, u64) {
        self.backing.waits.for_space()
    }

    /// The number of this service among all of the instance.
    #[must_use]
    pub fn number(&self) -> usize {
        service_number(&self.files.cx)
    }

    /// Whether a file is one of this service.
    #[must_use]
    pub fn owns(&self, inode: Inode) -> bool {
        self.files.cx.config.owns(inode.shard())
    }

    /// Other hosts that have a file open, as far as reported.
    pub fn hosts_of(&self, inode: Inode) -> impl Iterator<Item = u16> {
        self.files.cx.state.hosts.get(&inode).into_iter().flatten().map(|opening| opening.host)
    }

    /// True if removed files, or files that give up their copies, may still be about to free their space.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        self.files.cx.is_freeing() || self.backing.give_ups.may_free()
    }

    /// Locks of an inode: first the held ones, then the requested ones.
    #[must_use]
    pub fn locks_of(&self, inode: Inode) -> Vec<LockSeen> {
        self.files.locks.locks_of(&self.files.cx, inode)
    }

    /// May clients log local operations whose records take `bytes`? Not while a transaction holds
    /// names, and not without memory for the files that they create.
    #[must_use]
    pub fn takes_local_ops(&self, bytes: u64) -> bool {
        let after = self.files.cx.state.bytes.saturating_add(bytes);
        self.is_started
            && self.files.cx.keys.is_empty()
            && after < self.files.cx.config.metadata_bytes_max
    }

    /// True if a `LocalOp::Close` can be applied now: the inode does not wait for targets.
    #[must_use]
    pub fn is_quiet(&self, inode: Inode) -> bool {
        !self.files.cx.busy.contains_key(&inode)
    }

    /// Accounts that may not create files by local operations, of which `headroom` may follow
    /// before the next call: they have less left, or the space of the first extent of such a file
    /// would not be drawn.
    pub fn each_tight(&self, headroom: u64, each: &mut dyn FnMut(Account)) {
        self.files.grants.each_tight(&self.files.cx, headroom, each);
    }

    /// Inodes of an account, and bytes of their inline contents, in this service.
    #[must_use]
    pub fn usage_of(&self, account: Account) -> (u64, u64) {
        let used = self.files.cx.state.usage.of(account.0);
        (used.inodes, used.bytes)
    }

    /// True if some account may be limited.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.files.cx.state.limited.is_empty()
    }

    /// Deleted files that are retained because a process has, or had, them open. After a replay the
    /// host sends `Request::Reap` for each that is open nowhere.
    pub fn orphans(&self) -> impl Iterator<Item = Inode> + '_ {
        self.files.cx.state.orphans.iter().copied()
    }

    /// The current attributes of an inode of this service.
    #[must_use]
    pub fn attributes_of(&self, inode: Inode) -> Option<Attributes> {
        self.files.cx.state.inodes.get(inode).map(|node| node.attributes)
    }

    /// The valid copy of another service's directory, if there is one.
    #[must_use]
    pub fn copy_of(&self, directory: Inode, steady_nanos: i64) -> Option<Attributes> {
        self.files.directories.copy_of(directory, steady_nanos)
    }

    /// The inode that an entry of this service leads to.
    #[must_use]
    pub fn entry_of(&self, parent: Inode, name: &[u8]) -> Option<Inode> {
        self.files.cx.state.entries.get(parent, name).map(|entry| entry.0)
    }

    /// The first client id from `from` on that has a reply cache entry.
    #[must_use]
    pub fn next_client_id(&self, from: u64) -> Option<u64> {
        self.files.cx.state.reply_cache.range(from..).next().map(|(&client_id, _)| client_id)
    }

    /// Number of entries in the reply cache.
    #[must_use]
    pub fn reply_cache_entries(&self) -> u64 {
        self.files.cx.state.reply_cache.len() as u64
    }

    /// Number of inodes of this service.
    #[must_use]
    pub fn inode_count(&self) -> u64 {
        self.files.cx.state.inodes.len()
    }

    /// The first inode number of `shard` that no local operation may have used.
    #[must_use]
    pub fn numbers_end(&self, shard: ShardIndex) -> u64 {
        self.files.cx.state.numbers_end(shard)
    }

    /// Appends about `budget_bytes` of the state as one log record to `out` (nothing if nothing is
    /// left); returns false after the last slice. To rewrite the log: start a new one, append the
    /// slices as they are taken and the records of steps as they are made; after the last slice the
    /// new log replaces the old one.
    pub fn snapshot_slice(
        &self,
        cursor: &mut SnapshotCursor,
        budget_bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.files.cx.state.take_slice(cursor, budget_bytes, out)
    }
}
