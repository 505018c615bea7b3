//! A request to a target, parsed and range-checked: all later code trusts its numbers. Its data
//! bytes stay with the performer of the effects.

use wire::limits::{BULK_BYTES, FILE_BYTES_MAX, SLOT_BYTES, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::quota::Owner;
use wire::reply::Extent;
use wire::request::{prefetch, removed, stripe_log2_of};
use wire::{Errno, Inode, Layout, Request};

/// Most extents in one answer to `MapExtents`: it must fit a message slot.
pub const MAP_EXTENTS_MAX: usize = 256;

const _: () = assert!(MAP_EXTENTS_MAX * Extent::BYTES + 1024 <= SLOT_BYTES);

/// `allocate` of a `MapExtents` that finds one extent, also if it is spilled: then its location is the
/// answer, a number (`Work::Locate`). No client or other daemon can send it.
pub const LOCATE: u8 = 3;

/// Arguments of `Request::Prefetch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PrefetchArgs {
    pub(crate) inode: Inode,
    pub(crate) what: u8,
    pub(crate) layout: Layout,
    pub(crate) size: u64,
    /// Number of the list; 0: none.
    pub(crate) list: u64,
    pub(crate) index: u64,
    pub(crate) group: u64,
    /// The list may be wrong.
    pub(crate) is_speculative: bool,
}

impl PrefetchArgs {
    /// The arguments, if they are possible. A speculative request is one for memory.
    fn checked(self) -> Result<PrefetchArgs, Errno> {
        stripe(self.layout.stripe_log2)?;
        let is_right = self.what <= prefetch::SPECULATIVE && self.size <= FILE_BYTES_MAX;
        if !is_right || self.is_speculative && self.list == 0 {
            return Err(Errno::EINVAL);
        }
        let what = if self.is_speculative { prefetch::MEMORY } else { self.what };
        Ok(PrefetchArgs { what, ..self })
    }
}

/// Arguments of `Request::BeginWriteback`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BeginRange {
    pub(crate) inode: Inode,
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) most: u64,
}

/// How the space of extents counts that a request allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpaceUse {
    /// Page by page, as they are written.
    Written,
    /// All of it, at once.
    Reserved,
}

/// A request without its data bytes. `Locate` is `Find` for a daemon of another host that reads one
/// extent: it finds a spilled one, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Map { inode: Inode, stripe_log2: u8, space: SpaceUse, offset: u64, length: u64, ahead: u64 },
    Find { inode: Inode, offset: u64, length: u64 },
    Locate { inode: Inode, offset: u64, length: u64 },
    Read { inode: Inode, offset: u64, length: u32 },
    Write { inode: Inode, stripe_log2: u8, offset: u64, length: u32 },
    Clear { inode: Inode, offset: u64, end: u64 },
    Remove { inodes: Vec<Inode> },
    Own { inode: Inode, owner: Owner, changed: i64, pinned: bool },
    Prefetch(PrefetchArgs),
    BeginWriteback(BeginRange),
    EndWriteback { inode: Inode, number: u64, end: u64 },
    Usage { inode: Inode, end: u64 },
    SeekData { inode: Inode, offset: u64 },
    Space,
    Flush { inode: Inode },
}

impl Work {
    /// Parses a request and checks its numbers.
    pub(crate) fn of(request: &Request<'_>) -> Result<Work, Errno> {
        let work = match *request {
            Request::MapExtents {
                inode,
                stripe_log2,
                allocate,
                offset,
                length,
                preallocate: ahead,
            } => {
                let space = match allocate {
                    0 => return Work::Find { inode, offset, length }.checked(),
                    LOCATE => return Work::Locate { inode, offset, length }.checked(),
                    2 => SpaceUse::Reserved,
                    _ => SpaceUse::Written,
                };
                Work::Map { inode, stripe_log2: stripe(stripe_log2)?, space, offset, length, ahead }
            }
            Request::Read { inode, offset, length, .. } => Work::Read { inode, offset, length },
            Request::Write { inode, stripe_log2, offset, bytes, .. } => {
                let length = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
                Work::Write { inode, stripe_log2: stripe(stripe_log2)?, offset, length }
            }
            Request::Truncate { inode, size, .. } => {
                Work::Clear { inode, offset: size, end: u64::MAX }
            }
            Request::Punch { inode, offset, length, .. } => {
                Work::Clear { inode, offset, end: offset.saturating_add(length) }
            }
            Request::Remove { inodes } => Work::Remove { inodes: removed(inodes).collect() },
            Request::Own { inode, uid, project, changed, pinned } => {
                let (owner, pinned) = (Owner { uid, project }, pinned != 0);
                Work::Own { inode, owner, changed: changed.cast_signed(), pinned }
            }
            Request::Usage { inode, end } => Work::Usage { inode, end },
            Request::Prefetch { inode, what, layout, size, list, index, group } => {
                let (layout, group) = (Layout::from_word(layout), u64::from(group));
                let is_speculative = what == prefetch::SPECULATIVE;
                let args =
                    PrefetchArgs { inode, what, layout, size, list, index, group, is_speculative };
                Work::Prefetch(args.checked()?)
            }
            Request::BeginWriteback { inode, number, offset, most } => {
                Work::BeginWriteback(BeginRange { inode, number, offset, most })
            }
            Request::EndWriteback { inode, number, end } => {
                Work::EndWriteback { inode, number, end }
            }
            Request::SeekData { inode, offset, .. } => Work::SeekData { inode, offset },
            Request::Space {} => Work::Space,
            Request::Flush { inode } => Work::Flush { inode },
            _ => return Err(Errno::ENOSYS),
        };
        work.checked()
    }

    /// The work, if its numbers are possible.
    fn checked(self) -> Result<Work, Errno> {
        let work = self;
        match work {
            Work::Read { length, .. } | Work::Write { length, .. }
                if length as usize > BULK_BYTES =>
            {
                return Err(Errno::EINVAL);
            }
            Work::Space => return Ok(work),
            Work::Remove { ref inodes } => {
                let is_right = !inodes.is_empty() && !inodes.iter().any(|inode| inode.is_none());
                return if is_right { Ok(work) } else { Err(Errno::EINVAL) };
            }
            _ => {}
        }
        let (inode, offset, end) = work.range();
        if inode.is_none() || offset > FILE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        if work.makes_extents() && end > FILE_BYTES_MAX { Err(Errno::EFBIG) } else { Ok(work) }
    }

    /// The file and the range of offsets that the request names.
    pub(crate) const fn range(&self) -> (Inode, u64, u64) {
        match *self {
            Work::Map { inode, offset, length, .. }
            | Work::Find { inode, offset, length }
            | Work::Locate { inode, offset, length } => {
                (inode, offset, offset.saturating_add(length))
            }
            Work::Read { inode, offset, length } | Work::Write { inode, offset, length, .. } => {
                (inode, offset, offset.saturating_add(length as u64))
            }
            Work::Clear { inode, offset, end } => (inode, offset, end),
            Work::SeekData { inode, offset }
            | Work::BeginWriteback(BeginRange { inode, offset, .. }) => (inode, offset, offset),
            Work::Usage { inode, .. }
            | Work::Flush { inode }
            | Work::Own { inode, .. }
            | Work::EndWriteback { inode, .. }
            | Work::Prefetch(PrefetchArgs { inode, .. }) => (inode, 0, 0),
            Work::Remove { .. } | Work::Space => (Inode::NONE, 0, 0),
        }
    }

    pub(crate) const fn makes_extents(&self) -> bool {
        matches!(self, Work::Map { .. } | Work::Write { .. })
    }

    /// True for work that accesses bytes or returns their locations.
    pub(crate) const fn uses_extents(&self) -> bool {
        self.makes_extents()
            || matches!(self, Work::Find { .. } | Work::Clear { .. })
            || self.only_reads()
    }

    /// True for reads of other hosts: of bytes, or of an extent for a transfer.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(self, Work::Locate { .. } | Work::Read { .. })
    }

    pub(crate) const fn only_looks(&self) -> bool {
        !matches!(
            self,
            Work::Map { .. } | Work::Write { .. } | Work::Clear { .. } | Work::Remove { .. }
        )
    }

    /// The file whose damage forbids this work: all work that returns or adds bytes. Freeing the
    /// whole file is allowed, and repairs it.
    pub(crate) const fn inode_if_damage_matters(&self) -> Option<Inode> {
        match *self {
            Work::Clear { offset: 0, end: u64::MAX, .. }
            | Work::Own { .. }
            | Work::Prefetch(_)
            | Work::Remove { .. }
            | Work::Usage { .. }
            | Work::Space => None,
            _ => Some(self.range().0),
        }
    }
}

fn stripe(log2: u8) -> Result<u8, Errno> {
    let log2 = stripe_log2_of(log2);
    if (STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).contains(&log2) { Ok(log2) } else { Err(Errno::EINVAL) }
}
