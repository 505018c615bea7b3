//! What a request asks of a target, its numbers checked: whatever comes behind trusts them. Its bytes
//! stay with who performs the effects.

use crate::parts::PartAsked;
use crate::wish::Asked;
use wire::limits::{BULK_BYTES, CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, FILE_BYTES_MAX};
use wire::quota::Owner;
use wire::request::{chunk_log2_of, removed, rise};
use wire::{Errno, Inode, Layout, Request};

/// A request without its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Map { inode: Inode, chunk_log2: u8, offset: u64, length: u64, ahead: u64 },
    Find { inode: Inode, offset: u64, length: u64 },
    Read { inode: Inode, offset: u64, length: u32 },
    Write { inode: Inode, chunk_log2: u8, offset: u64, length: u32 },
    Clear { inode: Inode, offset: u64, end: u64 },
    Remove { inodes: Vec<Inode> },
    Own { inode: Inode, owner: Owner, changed: i64, resident: bool },
    Rise(Asked),
    BeginSaving(PartAsked),
    EndSaving { inode: Inode, number: u64, end: u64 },
    Usage { inode: Inode },
    SeekData { inode: Inode, offset: u64 },
    Space,
    Flush { inode: Inode },
}

impl Work {
    /// Reads a request and checks its numbers: whatever comes behind trusts them.
    pub(crate) fn of(request: &Request<'_>) -> Result<Work, Errno> {
        let work = match *request {
            Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead } => {
                if allocate == 0 {
                    Work::Find { inode, offset, length }
                } else {
                    Work::Map { inode, chunk_log2: chunk(chunk_log2)?, offset, length, ahead }
                }
            }
            Request::Read { inode, offset, length, .. } => Work::Read { inode, offset, length },
            Request::Write { inode, chunk_log2, offset, bytes, .. } => {
                let length = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
                Work::Write { inode, chunk_log2: chunk(chunk_log2)?, offset, length }
            }
            Request::Truncate { inode, size, .. } => {
                Work::Clear { inode, offset: size, end: u64::MAX }
            }
            Request::Punch { inode, offset, length, .. } => {
                Work::Clear { inode, offset, end: offset.saturating_add(length) }
            }
            Request::Remove { inodes } => Work::Remove { inodes: removed(inodes).collect() },
            Request::Own { inode, uid, project, changed, resident } => {
                let (owner, resident) = (Owner { uid, project }, resident != 0);
                Work::Own { inode, owner, changed: changed.cast_signed(), resident }
            }
            Request::Usage { inode } => Work::Usage { inode },
            Request::Rise { inode, what, layout, size, list, index, group } => {
                let layout = Layout::from_word(layout);
                chunk(layout.chunk_log2)?;
                let is_guess = what == rise::GUESS;
                let is_right = what <= rise::GUESS && size <= FILE_BYTES_MAX;
                let is_right = is_right && (!is_guess || list != 0);
                let what = if is_guess { rise::MEMORY } else { what };
                let group = u64::from(group);
                let asked = Asked { inode, what, layout, size, list, index, group, is_guess };
                Work::Rise(is_right.then_some(asked).ok_or(Errno::EINVAL)?)
            }
            Request::BeginSaving { inode, number, offset, most } => {
                Work::BeginSaving(PartAsked { inode, number, offset, most })
            }
            Request::EndSaving { inode, number, end } => Work::EndSaving { inode, number, end },
            Request::SeekData { inode, offset, .. } => Work::SeekData { inode, offset },
            Request::Space {} => Work::Space,
            Request::Flush { inode } => Work::Flush { inode },
            _ => return Err(Errno::ENOSYS),
        };
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
        if work.makes_pieces() && end > FILE_BYTES_MAX { Err(Errno::EFBIG) } else { Ok(work) }
    }

    /// The file, and the offsets that a request names.
    pub(crate) const fn range(&self) -> (Inode, u64, u64) {
        match *self {
            Work::Map { inode, offset, length, .. } | Work::Find { inode, offset, length } => {
                (inode, offset, offset.saturating_add(length))
            }
            Work::Read { inode, offset, length } | Work::Write { inode, offset, length, .. } => {
                (inode, offset, offset.saturating_add(length as u64))
            }
            Work::Clear { inode, offset, end } => (inode, offset, end),
            Work::SeekData { inode, offset }
            | Work::BeginSaving(PartAsked { inode, offset, .. }) => (inode, offset, offset),
            Work::Usage { inode }
            | Work::Flush { inode }
            | Work::Own { inode, .. }
            | Work::EndSaving { inode, .. }
            | Work::Rise(Asked { inode, .. }) => (inode, 0, 0),
            Work::Remove { .. } | Work::Space => (Inode::NONE, 0, 0),
        }
    }

    pub(crate) const fn makes_pieces(&self) -> bool {
        matches!(self, Work::Map { .. } | Work::Write { .. })
    }

    /// True for work on bytes, or that tells where they are.
    pub(crate) const fn uses_pieces(&self) -> bool {
        self.makes_pieces()
            || matches!(self, Work::Find { .. } | Work::Read { .. } | Work::Clear { .. })
    }

    pub(crate) const fn only_looks(&self) -> bool {
        !matches!(
            self,
            Work::Map { .. } | Work::Write { .. } | Work::Clear { .. } | Work::Remove { .. }
        )
    }

    /// The file whose damage forbids this work: any that gives its bytes or adds some. Giving all
    /// of it back is allowed, and heals it.
    pub(crate) const fn inode_if_damage_matters(&self) -> Option<Inode> {
        match *self {
            Work::Clear { offset: 0, end: u64::MAX, .. }
            | Work::Own { .. }
            | Work::Rise(_)
            | Work::Remove { .. }
            | Work::Usage { .. }
            | Work::Space => None,
            _ => Some(self.range().0),
        }
    }
}

fn chunk(log2: u8) -> Result<u8, Errno> {
    let log2 = chunk_log2_of(log2);
    if (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&log2) { Ok(log2) } else { Err(Errno::EINVAL) }
}
