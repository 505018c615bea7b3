//! Bounds of every field of every request.

use wire::attributes::{mode, spread, writeback};
use wire::errno::{Errno, Result};
use wire::limits::{
    BOUNCE_BUFFER_BYTES, BOUNCE_BUFFER_COUNT, BULK_BYTES, FILE_BYTES_MAX, INLINE_BYTES_MAX,
    REMOVE_COUNT_MAX, SHARD_COUNT, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN, SYMLINK_BYTES_MAX,
    WALK_NAMES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use wire::losses::{LOST_UNITS_MAX, LostUnits};
use wire::name::Name;
use wire::names::NAMES_ASKED_MAX;
use wire::pool;
use wire::quota::{Account, OWNERS_MAX};
use wire::request::{
    create, lock, made, prefetch, removed, rename, set, stripe_log2_of, walk, xattr,
};
use wire::watch::MOUNT_COUNT_MAX;
use wire::{Header, Inode, Layout, Request};

/// Checks the fields of a request and its destination.
pub(crate) fn request(header: &Header, request: &Request<'_>) -> Result<()> {
    destination(header, request)?;
    require(usize::from(header.mount) <= MOUNT_COUNT_MAX)?;
    match request {
        Request::MapExtents { .. }
        | Request::Read { .. }
        | Request::Write { .. }
        | Request::Truncate { .. }
        | Request::Punch { .. }
        | Request::SeekData { .. }
        | Request::Fetch { .. }
        | Request::Store { .. } => target(request),
        Request::WriteCopies { inode, stripe_log2: log2, offset, length, .. }
        | Request::ReadCopy { inode, stripe_log2: log2, offset, length, .. } => {
            require_inode(*inode)?;
            stripe(*log2)?;
            require((1..=BOUNCE_BUFFER_BYTES).contains(&(*length as usize)))?;
            range(*offset, u64::from(*length))
        }
        Request::Push { buffer } => require(usize::from(*buffer) < BOUNCE_BUFFER_COUNT),
        Request::Own { pinned: 2.., .. } => Err(Errno::EINVAL),
        Request::Usage { inode, .. }
        | Request::Flush { inode }
        | Request::Own { inode, .. }
        | Request::BeginWriteback { inode, .. }
        | Request::EndWriteback { inode, .. } => require_inode(*inode),
        Request::Remove { inodes } => removals(inodes),
        Request::ClearCopies { inodes, .. } => {
            removals(inodes)?;
            let mut copies = removed(inodes).map(Inode::copies);
            let first = copies.next();
            require(copies.all(|it| Some(it) == first))
        }
        Request::Prefetch { inode, what, list, .. } => {
            require_inode(*inode)?;
            require(*what < prefetch::SPECULATIVE || *what == prefetch::SPECULATIVE && *list != 0)
        }
        Request::Space {} => Ok(()),
        _ => shard(header, request),
    }
}

/// Maximum bytes of data in the reply, as far as the request determines it.
pub(crate) const fn answer_bytes(request: &Request<'_>) -> u64 {
    match request {
        Request::Read { length, .. }
        | Request::ReadInline { length, .. }
        | Request::ReadCopy { length, .. } => *length as u64,
        Request::ReadDirectory { bytes, .. } => *bytes as u64,
        _ => 0,
    }
}

fn require(right: bool) -> Result<()> {
    if right { Ok(()) } else { Err(Errno::EINVAL) }
}

fn require_inode(inode: Inode) -> Result<()> {
    require(!inode.is_none())
}

/// Checks shard or target; a request about an inode must go to the inode's shard.
fn destination(header: &Header, request: &Request<'_>) -> Result<()> {
    if let Some(inode) = request.subject() {
        require_inode(inode)?;
        return require(header.shard < SHARD_COUNT && inode.shard().0 == header.shard);
    }
    match request {
        Request::Lookup { .. }
        | Request::Create { .. }
        | Request::Unlink { .. }
        | Request::RemoveDirectory { .. }
        | Request::Rename { .. }
        | Request::Link { .. }
        | Request::CreateNameless { .. }
        | Request::ReadDirectory { .. }
        | Request::Walk { .. }
        | Request::Notices { .. }
        | Request::Owners { .. }
        | Request::Names { .. }
        | Request::LostFiles { .. }
        | Request::GiveBack { .. }
        | Request::Replicate {}
        | Request::LookupForMount { .. }
        | Request::DirtyNames { .. }
        | Request::DirtyInodes { .. }
        | Request::AwaitDirty { .. }
        | Request::AwaitCleanRequests { .. }
        | Request::CleanRequests {}
        | Request::NameWritten { .. }
        | Request::Release { .. } => require(header.shard < SHARD_COUNT),
        Request::SetQuota { .. }
        | Request::Quotas { .. }
        | Request::SetPool { .. }
        | Request::Pools { .. } => require(header.shard == 0),
        _ => require(header.shard == Header::TARGET),
    }
}

fn entry(parent: Inode, name: &[u8]) -> Result<()> {
    require_inode(parent)?;
    Name::parse(name).map(drop)
}

fn known_flags(flags: u32, all: u32) -> Result<()> {
    require(flags & !all == 0)
}

fn size(size: u64) -> Result<()> {
    if size <= FILE_BYTES_MAX { Ok(()) } else { Err(Errno::EFBIG) }
}

fn range(offset: u64, length: u64) -> Result<()> {
    size(offset.checked_add(length).ok_or(Errno::EFBIG)?)
}

fn xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    require(!name.contains(&0))
}

fn layout(layout: &Layout) -> Result<()> {
    require(spread::is_known(layout.spread))?;
    stripe(layout.stripe_log2)
}

fn stripe(log2: u8) -> Result<()> {
    require((STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).contains(&log2))
}

fn kind(bits: u32) -> Result<()> {
    let is_known = matches!(
        bits & mode::TYPE,
        mode::REGULAR
            | mode::DIRECTORY
            | mode::SYMLINK
            | mode::FIFO
            | mode::SOCKET
            | mode::CHARACTER
            | mode::BLOCK
    );
    let all = mode::TYPE | mode::PERMISSIONS | made::UMASK;
    require(is_known && bits & !all == 0)
}

fn shard(of: &Header, request: &Request<'_>) -> Result<()> {
    match *request {
        Request::Lookup { parent, name }
        | Request::Unlink { parent, name }
        | Request::RemoveDirectory { parent, name } => entry(parent, name),
        Request::LookupForMount { inode, name: [] } => require_inode(inode),
        Request::LookupForMount { inode, name } => entry(inode, name),
        Request::Create { .. } => creation(request),
        Request::CreateNameless { parent, mode: bits, layout: requested } => {
            require_inode(parent)?;
            kind(bits)?;
            layout(&requested)
        }
        Request::Link { inode, parent, name } => {
            require_inode(inode)?;
            entry(parent, name)
        }
        Request::Rename { parent, name, new_parent, new_name, flags } => {
            entry(parent, name)?;
            entry(new_parent, new_name)?;
            known_flags(flags, rename::NO_REPLACE | rename::EXCHANGE)?;
            require(flags != rename::NO_REPLACE | rename::EXCHANGE)
        }
        Request::SetAttributes { mask, size, .. } => change(mask, size),
        Request::ReadDirectory { directory, .. } => require_inode(directory),
        Request::Walk { directory, from, names } => {
            require_inode(directory)?;
            require(from <= walk::ENTRY)?;
            let names = || names.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
            let least = usize::from(from != walk::DIRECTORY);
            require((least..=WALK_NAMES_MAX).contains(&names().count()))?;
            names().try_for_each(|name| Name::parse(name).map(drop))
        }
        Request::GetXattr { name, .. } | Request::RemoveXattr { name, .. } => xattr_name(name),
        Request::SetXattr { name, value, flags, .. } => {
            xattr_name(name)?;
            known_flags(flags, xattr::CREATE | xattr::REPLACE | xattr::KILL_SGID)?;
            if value.len() > XATTR_VALUE_BYTES_MAX { Err(Errno::E2BIG) } else { Ok(()) }
        }
        Request::ReadInline { offset, length, .. } => range(offset, u64::from(length)),
        Request::WriteInline { offset, bytes, .. } => {
            require(bytes.len() <= INLINE_BYTES_MAX)?;
            if offset == u64::MAX { Ok(()) } else { range(offset, bytes.len() as u64) }
        }
        Request::Extend { size: requested, .. } => size(requested),
        Request::Append { length, .. } => size(length),
        Request::SetQuota { account, .. } => require(Account(account).is_valid()),
        Request::SetPool { name, targets } => {
            require(pool::is_name(name) && pool::are_targets(targets))
        }
        Request::Owners { inodes } => {
            let (count, rest) = (inodes.len() / 8, inodes.len() % 8);
            require(rest == 0 && (1..=OWNERS_MAX).contains(&count))?;
            removed(inodes).try_for_each(|inode| require(inode.shard().0 == of.shard))
        }
        Request::LostFiles { per_target, units, .. } => lost_units(per_target, units),
        Request::Names { inodes, .. } => {
            require(inodes.len() % 8 == 0 && inodes.len() / 8 <= NAMES_ASKED_MAX)?;
            require(removed(inodes).is_sorted())
        }
        Request::Lock { kind, flags, start, end, .. } => {
            require(kind <= lock::WRITE && start <= end)?;
            known_flags(
                u32::from(flags),
                u32::from(lock::WAIT | lock::FLOCK | lock::TEST | lock::BEHIND),
            )
        }
        _ => writeback_request(request),
    }
}

fn removals(inodes: &[u8]) -> Result<()> {
    let (count, rest) = (inodes.len() / 8, inodes.len() % 8);
    require(rest == 0 && (1..=REMOVE_COUNT_MAX).contains(&count))?;
    removed(inodes).try_for_each(require_inode)
}

fn lost_units(per_target: u16, units: &[u8]) -> Result<()> {
    let (count, rest) = (units.len() / LostUnits::BYTES, units.len() % LostUnits::BYTES);
    require(rest == 0 && (1..=LOST_UNITS_MAX).contains(&count))?;
    require((1..=u64::BITS).contains(&per_target.into()))
}

/// Checks requests and reports of the writeback daemon.
fn writeback_request(request: &Request<'_>) -> Result<()> {
    match *request {
        Request::DirtyNames { parent: Inode::NONE, name } => require(name.is_empty()),
        Request::DirtyNames { parent, name } => entry(parent, name),
        Request::NameWritten { parent, name, .. } => entry(parent, name),
        Request::Writing { location, .. }
        | Request::Wrote { location, .. }
        | Request::NotePartial { location, .. } => {
            entry(location.parent, location.name)?;
            require(location.counts <= location.version.size)
        }
        _ => Ok(()),
    }
}

/// Checks which attributes `SetAttributes` may change together, and the new size or layout.
fn change(mask: u32, requested: u64) -> Result<()> {
    const INHERITED: u32 = set::PLACEMENT | set::STRIPE;
    const SIZES: u32 =
        set::SIZE | set::PROJECT | INHERITED | set::WRITEBACK | set::POOL | set::COPIES;
    const OTHERS: u32 = set::POSIX | set::RELAXED | set::COUNTED | set::PINNED | set::UNPINNED;
    known_flags(mask, (2 * set::READ - 1) | OTHERS | SIZES)?;
    require(mask & SIZES == 0 || mask & (set::PINNED | set::UNPINNED) == 0)?;
    let layout = Layout::from_word(requested);
    match mask & SIZES {
        0 | set::PLACEMENT | set::POOL => Ok(()),
        set::SIZE => size(requested),
        set::PROJECT => require(u32::try_from(requested).is_ok()),
        set::STRIPE | INHERITED => stripe(layout.stripe_log2),
        set::WRITEBACK => require(writeback::name(layout.writeback()).is_some()),
        set::COPIES => require(layout.copies > 0),
        _ => Err(Errno::EINVAL),
    }
}

fn creation(request: &Request<'_>) -> Result<()> {
    let Request::Create { parent, name, mode: bits, flags, layout: requested, target, .. } =
        *request
    else {
        return Err(Errno::EINVAL);
    };
    entry(parent, name)?;
    kind(bits)?;
    known_flags(flags, create::EXCLUSIVE | create::OPEN | create::WRITES)?;
    layout(&requested)?;
    if bits & mode::TYPE != mode::SYMLINK {
        return require(target.is_empty());
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if target.is_empty() { Err(Errno::ENOENT) } else { require(!target.contains(&0)) }
}

fn target(request: &Request<'_>) -> Result<()> {
    let (inode, stripe_log2) = match *request {
        Request::MapExtents {
            inode,
            stripe_log2,
            allocate,
            offset,
            length,
            preallocate: ahead,
        } => {
            require(allocate <= 2)?;
            range(offset, length)?;
            range(offset.saturating_add(length), ahead)?;
            (inode, stripe_log2)
        }
        Request::Read { inode, stripe_log2, offset, length } => {
            range(offset, u64::from(length))?;
            (inode, stripe_log2)
        }
        Request::Write { inode, stripe_log2, offset, bytes, .. } => {
            require(bytes.len() <= BULK_BYTES)?;
            range(offset, bytes.len() as u64)?;
            (inode, stripe_log2)
        }
        Request::Punch { inode, stripe_log2, offset, length } => {
            range(offset, length)?;
            (inode, stripe_log2)
        }
        Request::Fetch { inode, stripe_log2, offset, length, buffer }
        | Request::Store { inode, stripe_log2, offset, length, buffer, .. } => {
            require(usize::from(buffer) < BOUNCE_BUFFER_COUNT)?;
            require((1..=BOUNCE_BUFFER_BYTES).contains(&(length as usize)))?;
            range(offset, u64::from(length))?;
            (inode, stripe_log2)
        }
        Request::Truncate { inode, stripe_log2, size: offset }
        | Request::SeekData { inode, stripe_log2, offset } => {
            size(offset)?;
            (inode, stripe_log2)
        }
        _ => return Err(Errno::EINVAL),
    };
    require_inode(inode)?;
    stripe(stripe_log2_of(stripe_log2))
}
