//! What a request may hold, field by field.

use wire::attributes::{mode, spread, write_back};
use wire::errno::{Errno, Result};
use wire::limits::{
    BULK_BYTES, CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, FILE_BYTES_MAX, INLINE_BYTES_MAX, REMOVE_COUNT_MAX,
    SHARD_COUNT, STAGE_BUFFER_BYTES, STAGE_BUFFER_COUNT, SYMLINK_BYTES_MAX, WALK_NAMES_MAX,
    XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use wire::name::Name;
use wire::quota::{Account, OWNERS_MAX};
use wire::request::{chunk_log2_of, create, lock, made, removed, rename, rise, set, walk, xattr};
use wire::watch::MOUNT_COUNT_MAX;
use wire::{Header, Inode, Layout, Request};

/// Checks a request and that it goes to where such a request belongs.
pub(crate) fn request(header: &Header, request: &Request<'_>) -> Result<()> {
    place(header, request)?;
    when(usize::from(header.mount) <= MOUNT_COUNT_MAX)?;
    match request {
        Request::MapPieces { .. }
        | Request::Read { .. }
        | Request::Write { .. }
        | Request::Truncate { .. }
        | Request::Punch { .. }
        | Request::SeekData { .. }
        | Request::Fetch { .. }
        | Request::Store { .. } => target(request),
        Request::Push { buffer } => when(usize::from(*buffer) < STAGE_BUFFER_COUNT),
        Request::Own { resident: 2.., .. } => Err(Errno::EINVAL),
        Request::Usage { inode }
        | Request::Flush { inode }
        | Request::Own { inode, .. }
        | Request::BeginSaving { inode, .. }
        | Request::EndSaving { inode, .. } => some(*inode),
        Request::Remove { inodes } => {
            let (count, rest) = (inodes.len() / 8, inodes.len() % 8);
            when(rest == 0 && (1..=REMOVE_COUNT_MAX).contains(&count))?;
            removed(inodes).try_for_each(some)
        }
        Request::Rise { inode, what, list, .. } => {
            some(*inode)?;
            when(*what < rise::GUESS || *what == rise::GUESS && *list != 0)
        }
        Request::Space {} => Ok(()),
        _ => shard(header, request),
    }
}

/// Most bytes of the answer, as far as the request decides it.
pub(crate) const fn answer_bytes(request: &Request<'_>) -> u64 {
    match request {
        Request::Read { length, .. } | Request::ReadInline { length, .. } => *length as u64,
        Request::ReadDirectory { bytes, .. } => *bytes as u64,
        _ => 0,
    }
}

fn when(right: bool) -> Result<()> {
    if right { Ok(()) } else { Err(Errno::EINVAL) }
}

fn some(inode: Inode) -> Result<()> {
    when(!inode.is_none())
}

/// Shard or target, and for a request about an inode: the inode's shard.
fn place(header: &Header, request: &Request<'_>) -> Result<()> {
    if let Some(inode) = request.subject() {
        some(inode)?;
        return when(header.shard < SHARD_COUNT && inode.shard().0 == header.shard);
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
        | Request::GiveBack { .. }
        | Request::Look { .. }
        | Request::UnsavedNames { .. }
        | Request::UnsavedInodes { .. }
        | Request::AwaitUnsaved { .. }
        | Request::AwaitWanted { .. }
        | Request::Wanted {}
        | Request::Saved { .. }
        | Request::Release { .. } => when(header.shard < SHARD_COUNT),
        Request::SetQuota { .. } | Request::Quotas { .. } => when(header.shard == 0),
        _ => when(header.shard == Header::TARGET),
    }
}

fn entry(parent: Inode, name: &[u8]) -> Result<()> {
    some(parent)?;
    Name::parse(name).map(drop)
}

fn known(flags: u32, all: u32) -> Result<()> {
    when(flags & !all == 0)
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
    when(!name.contains(&0))
}

fn layout(layout: &Layout) -> Result<()> {
    when(layout.spread <= spread::WIDE)?;
    chunk(layout.chunk_log2)
}

fn chunk(log2: u8) -> Result<()> {
    when((CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&log2))
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
    when(is_known && bits & !all == 0)
}

fn shard(of: &Header, request: &Request<'_>) -> Result<()> {
    match *request {
        Request::Lookup { parent, name }
        | Request::Unlink { parent, name }
        | Request::RemoveDirectory { parent, name } => entry(parent, name),
        Request::Look { inode, name: [] } => some(inode),
        Request::Look { inode, name } => entry(inode, name),
        Request::Create { .. } => creation(request),
        Request::CreateNameless { parent, mode: bits, layout: wanted } => {
            some(parent)?;
            kind(bits)?;
            layout(&wanted)
        }
        Request::Link { inode, parent, name } => {
            some(inode)?;
            entry(parent, name)
        }
        Request::Rename { parent, name, new_parent, new_name, flags } => {
            entry(parent, name)?;
            entry(new_parent, new_name)?;
            known(flags, rename::NO_REPLACE | rename::EXCHANGE)?;
            when(flags != rename::NO_REPLACE | rename::EXCHANGE)
        }
        Request::SetAttributes { mask, size, .. } => change(mask, size),
        Request::ReadDirectory { directory, .. } => some(directory),
        Request::Walk { directory, from, names } => {
            some(directory)?;
            when(from <= walk::ENTRY)?;
            let names = || names.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
            let least = usize::from(from != walk::DIRECTORY);
            when((least..=WALK_NAMES_MAX).contains(&names().count()))?;
            names().try_for_each(|name| Name::parse(name).map(drop))
        }
        Request::GetXattr { name, .. } | Request::RemoveXattr { name, .. } => xattr_name(name),
        Request::SetXattr { name, value, flags, .. } => {
            xattr_name(name)?;
            known(flags, xattr::CREATE | xattr::REPLACE | xattr::KILL_SGID)?;
            if value.len() > XATTR_VALUE_BYTES_MAX { Err(Errno::E2BIG) } else { Ok(()) }
        }
        Request::ReadInline { offset, length, .. } => range(offset, u64::from(length)),
        Request::WriteInline { offset, bytes, .. } => {
            when(bytes.len() <= INLINE_BYTES_MAX)?;
            if offset == u64::MAX { Ok(()) } else { range(offset, bytes.len() as u64) }
        }
        Request::Extend { size: wanted, .. } => size(wanted),
        Request::Append { length, .. } => size(length),
        Request::SetQuota { account, .. } => when(Account(account).is_valid()),
        Request::Owners { inodes } => {
            let (count, rest) = (inodes.len() / 8, inodes.len() % 8);
            when(rest == 0 && (1..=OWNERS_MAX).contains(&count))?;
            removed(inodes).try_for_each(|inode| when(inode.shard().0 == of.shard))
        }
        Request::Lock { kind, flags, start, end, .. } => {
            when(kind <= lock::WRITE && start <= end)?;
            known(u32::from(flags), u32::from(lock::WAIT | lock::FLOCK | lock::TEST | lock::BEHIND))
        }
        _ => writer(request),
    }
}

/// What the writer of a backing directory asks and tells.
fn writer(request: &Request<'_>) -> Result<()> {
    match *request {
        Request::UnsavedNames { parent: Inode::NONE, name } => when(name.is_empty()),
        Request::UnsavedNames { parent, name } => entry(parent, name),
        Request::Saved { parent, name, .. } => entry(parent, name),
        Request::Saving { lies, .. }
        | Request::Wrote { lies, .. }
        | Request::Drafted { lies, .. } => {
            entry(lies.parent, lies.name)?;
            when(lies.counts <= lies.version.size)
        }
        _ => Ok(()),
    }
}

/// What `SetAttributes` may change at once, and to what size or layout.
fn change(mask: u32, wanted: u64) -> Result<()> {
    const HANDED_DOWN: u32 = set::PLACEMENT | set::CHUNK;
    const SIZES: u32 = set::SIZE | set::PROJECT | HANDED_DOWN | set::WRITE_BACK;
    const OTHERS: u32 = set::POSIX | set::RELAXED | set::COUNTED | set::PINNED | set::UNPINNED;
    known(mask, (2 * set::READ - 1) | OTHERS | SIZES)?;
    when(mask & SIZES == 0 || mask & (set::PINNED | set::UNPINNED) == 0)?;
    let layout = Layout::from_word(wanted);
    match mask & SIZES {
        0 | set::PLACEMENT => Ok(()),
        set::SIZE => size(wanted),
        set::PROJECT => when(u32::try_from(wanted).is_ok()),
        set::CHUNK | HANDED_DOWN => chunk(layout.chunk_log2),
        set::WRITE_BACK => when(write_back::name(layout.write_back()).is_some()),
        _ => Err(Errno::EINVAL),
    }
}

fn creation(request: &Request<'_>) -> Result<()> {
    let Request::Create { parent, name, mode: bits, flags, layout: wanted, target, .. } = *request
    else {
        return Err(Errno::EINVAL);
    };
    entry(parent, name)?;
    kind(bits)?;
    known(flags, create::EXCLUSIVE | create::OPEN | create::WRITES)?;
    layout(&wanted)?;
    if bits & mode::TYPE != mode::SYMLINK {
        return when(target.is_empty());
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if target.is_empty() { Err(Errno::ENOENT) } else { when(!target.contains(&0)) }
}

fn target(request: &Request<'_>) -> Result<()> {
    let (inode, chunk_log2) = match *request {
        Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead } => {
            when(allocate <= 1)?;
            range(offset, length)?;
            range(offset.saturating_add(length), ahead)?;
            (inode, chunk_log2)
        }
        Request::Read { inode, chunk_log2, offset, length } => {
            range(offset, u64::from(length))?;
            (inode, chunk_log2)
        }
        Request::Write { inode, chunk_log2, offset, bytes, .. } => {
            when(bytes.len() <= BULK_BYTES)?;
            range(offset, bytes.len() as u64)?;
            (inode, chunk_log2)
        }
        Request::Punch { inode, chunk_log2, offset, length } => {
            range(offset, length)?;
            (inode, chunk_log2)
        }
        Request::Fetch { inode, chunk_log2, offset, length, buffer }
        | Request::Store { inode, chunk_log2, offset, length, buffer, .. } => {
            when(usize::from(buffer) < STAGE_BUFFER_COUNT)?;
            when((1..=STAGE_BUFFER_BYTES).contains(&(length as usize)))?;
            range(offset, u64::from(length))?;
            (inode, chunk_log2)
        }
        Request::Truncate { inode, chunk_log2, size: offset }
        | Request::SeekData { inode, chunk_log2, offset } => {
            size(offset)?;
            (inode, chunk_log2)
        }
        _ => return Err(Errno::EINVAL),
    };
    some(inode)?;
    chunk(chunk_log2_of(chunk_log2))
}
