//! A lock request as it is sent to the shard of the file.

use wire::{Inode, Request};

/// A range to lock or unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    /// A value of `wire::request::lock`: `UNLOCK`, `READ`, `WRITE`.
    pub kind: u8,
    /// First offset.
    pub start: u64,
    /// Last offset; `u64::MAX`: to the end of the file, wherever it will be.
    pub end: u64,
    /// Process id that a lock test reports to others.
    pub pid: u32,
}

/// A lock request as shards take it: see `Request::Lock`.
#[derive(Clone, Copy)]
pub(crate) struct LockRequest {
    pub(crate) inode: Inode,
    pub(crate) owner: u64,
    pub(crate) party: u64,
    pub(crate) range: LockRange,
    /// `FLOCK`, or 0.
    pub(crate) flags: u8,
}

impl LockRequest {
    /// The message, with additional flags.
    pub(crate) const fn request(&self, flags: u8) -> Request<'static> {
        let LockRequest { inode, owner, party, range, .. } = *self;
        let LockRange { kind, start, end, pid } = range;
        Request::Lock { inode, owner, party, pid, kind, flags: self.flags | flags, start, end }
    }
}
