//! Opening: from a path and flags to an open file description.
//!
//! Opening and deleting synchronise in the host segment: an opener raises the open count, then
//! checks again whether the file exists. A shard on another host is informed by a message.

use core::sync::atomic::Ordering::Relaxed;
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::request::{create, made, open};
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::OfdIndex;
use crate::file::layout::inherit_group;
use crate::file::open_file::{OpenFile, OpenReference, mark, o};
use crate::file::{layout, open_file, vnodes};
use crate::kernel_cache::page_caches::PageCacheGrant;
use crate::kernel_cache::{page_caches, watches, writers};
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::{Last, LookupMode, LookupResult, Walk, WalkTarget, entry_of_reply};
use crate::lookup::retry::LookupRetries;
use crate::lookup::{PathLookup, inodes, permission, walk};
use crate::open::access::access_of_flags;
use crate::open::write_through::is_write_through;
use crate::open::{Files, access, closing, local_ops, nameless, truncate};
use crate::transport::Transport;
use crate::transport::errno::by_path;
use crate::transport::request::{Destination, own_credentials};

/// Flags of `Request::Create` for an open with `flags`; a remote shard also registers the file as
/// open.
pub(crate) fn flags_of_creation(flags: u32, is_remote: bool) -> u32 {
    let exclusive = if flags & o::EXCLUSIVE != 0 { create::EXCLUSIVE } else { 0 };
    match (is_remote, flags & o::ACCESS) {
        (false, _) => exclusive,
        (true, 0) => exclusive | create::OPEN,
        (true, _) => exclusive | create::OPEN | create::WRITES,
    }
}

/// Result of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The open file description, with one reference.
    pub ofd: OfdIndex,
    /// The inode.
    pub inode: Inode,
    /// Its type and permission bits.
    pub mode: u32,
}

/// Normalises open flags: `O_PATH` leaves only three others.
fn normalize_flags(flags: u32) -> Result<u32> {
    if flags & o::PATH != 0 {
        return Ok(flags & (o::PATH | o::DIRECTORY | o::NO_FOLLOW));
    }
    let both = o::CREATE | o::DIRECTORY;
    if flags & o::TEMPORARY == o::TEMPORARY {
        let may_write = access_of_flags(flags) & want::WRITE != 0;
        return if may_write && flags & o::CREATE == 0 { Ok(flags) } else { Err(Errno::EINVAL) };
    }
    if flags & both == both { Err(Errno::EINVAL) } else { Ok(flags) }
}

/// Result of one attempt to open. Small: it is passed through several functions.
enum OpenStep {
    Opened(Opened),
    /// The path leads out of the instance.
    Outside,
    /// To a file that only the kernel can open: its attributes are in the caller's variable.
    Special,
    /// The file vanished between lookup and open.
    Retry,
    /// The create found a symbolic link: resolve it and try again.
    ResolveSymlink,
}

/// `openat(2)` with the kernel's flags; `mode` as in `made`.
#[inline(always)]
pub(crate) fn open(
    files: &Files,
    at: At<'_>,
    flags: u32,
    mode: u32,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<Opened>> {
    let flags = normalize_flags(flags)?;
    if flags & o::TEMPORARY == o::TEMPORARY {
        return open_nameless(files.paths(), at, flags, mode, caller, buffer);
    }
    let lookup = if flags & o::CREATE == 0 { LookupMode::Resolve } else { LookupMode::IndexOnly };
    let mut special = None;
    let step = open_once(files, at, (flags, mode, lookup), caller, buffer, &mut special)?;
    match step.outcome(&special) {
        Some(outcome) => Ok(outcome),
        None => open_again(files, at, (flags, mode, lookup), caller, buffer, step),
    }
}

impl OpenStep {
    /// The outcome; `None`: another attempt follows.
    #[inline(always)]
    fn outcome(&self, special: &Option<Attributes>) -> Option<Outcome<Opened>> {
        match self {
            OpenStep::Opened(opened) => Some(Outcome::Done(*opened)),
            OpenStep::Outside => Some(Outcome::Outside),
            OpenStep::Special => special.map(Outcome::Special),
            OpenStep::Retry | OpenStep::ResolveSymlink => None,
        }
    }
}

/// Further attempts, after one that ended so. Separate, because an open hardly ever needs one.
#[cold]
#[inline(never)]
fn open_again(
    files: &Files,
    at: At<'_>,
    (flags, mode, mut lookup): (u32, u32, LookupMode),
    caller: &Credentials,
    buffer: &mut PathBuffer,
    mut step: OpenStep,
) -> Result<Outcome<Opened>> {
    let (mut retries, mut special) = (None, None);
    loop {
        match step {
            OpenStep::ResolveSymlink => lookup = LookupMode::Resolve,
            _ => retries.get_or_insert_with(|| LookupRetries::new(files.transport())).pause()?,
        }
        step = open_once(files, at, (flags, mode, lookup), caller, buffer, &mut special)?;
        if let Some(outcome) = step.outcome(&special) {
            return Ok(outcome);
        }
    }
}

/// `special`: where attributes belong that `OpenStep::Special` is about.
#[inline(never)]
fn open_once(
    files: &Files,
    at: At<'_>,
    (flags, mode, lookup): (u32, u32, LookupMode),
    caller: &Credentials,
    buffer: &mut PathBuffer,
    special: &mut Option<Attributes>,
) -> Result<OpenStep> {
    let creates = flags & o::CREATE != 0;
    let stays = flags & o::NO_FOLLOW != 0 || (creates && flags & o::EXCLUSIVE != 0);
    let follow = match at.path {
        // Refused later because of its slash, wherever a link leads.
        [.., b'/'] if creates => Follow::Never,
        _ if stays => Follow::No,
        _ => Follow::Yes,
    };
    let walk = match walk::walk(files.paths(), at, follow, lookup, caller, buffer)? {
        Outcome::Done(walk) => walk,
        Outcome::Outside => return Ok(OpenStep::Outside),
        Outcome::Special(attributes) => {
            *special = Some(attributes);
            return Ok(OpenStep::Special);
        }
    };
    let step = open_found(files, &walk, (flags, mode, lookup), caller, special)?;
    if let OpenStep::Opened(opened) = &step
        && walk.last == Last::Name
    {
        let open = open_file::by_index(files.transport(), opened.ofd)?;
        open.set_parent(walk.parent.inode);
        if is_write_through(&walk.parent.layout) {
            open.set(mark::WRITE_THROUGH);
        }
    }
    Ok(step)
}

#[inline(always)]
fn open_found(
    files: &Files,
    walk: &Walk<'_>,
    (flags, mode, lookup): (u32, u32, LookupMode),
    caller: &Credentials,
    special: &mut Option<Attributes>,
) -> Result<OpenStep> {
    if flags & o::CREATE == 0 {
        let found = walk.existing()?;
        let step = open_existing(files.transport(), found, flags, (None, special), caller)?;
        return retry_if_removed(files.transport(), walk, step);
    }
    if walk.last == Last::Name && walk.slash {
        return Err(Errno::EISDIR);
    }
    if flags & o::EXCLUSIVE != 0 && matches!(walk.found, WalkTarget::Found(_)) {
        return Err(Errno::EEXIST);
    }
    if walk.last != Last::Name {
        return Err(Errno::EISDIR);
    }
    match walk.found {
        WalkTarget::Found(found) => {
            let step = open_existing(files.transport(), found, flags, (None, special), caller)?;
            retry_if_removed(files.transport(), walk, step)
        }
        WalkTarget::Absent | WalkTarget::Unknown => {
            open_new(files, walk, (flags, mode, lookup), caller, special)
        }
    }
}

/// Creates the last name of a walk, or opens what another process created.
fn open_new(
    files: &Files,
    walk: &Walk<'_>,
    (flags, mode, lookup): (u32, u32, LookupMode),
    caller: &Credentials,
    special: &mut Option<Attributes>,
) -> Result<OpenStep> {
    if let Err(refused) = permission::may_change(files.transport(), walk.parent, caller) {
        // An existing file may be opened in a directory that the caller may not change.
        let mut found = Attributes::default();
        return match walk::lookup(files.transport(), walk.parent, walk.name, caller, &mut found)? {
            LookupResult::Found if lookup == LookupMode::IndexOnly => Ok(OpenStep::ResolveSymlink),
            _ => Err(refused),
        };
    }
    let shard = walk.entry.shard;
    let mode = mode::REGULAR | mode & (mode::PERMISSIONS | made::UMASK);
    let (creator, mode) = inherit_group(walk.parent, caller, mode);
    let layout = layout::layout_of_child(files.transport(), walk.parent, mode)?;
    if let Some(reference) = local_ops::log_create(files, walk, mode, layout, &creator) {
        // A new file is opened whatever its permissions are.
        let flags = flags & !o::TRUNCATE;
        let opened = allocate_open(files.transport(), &reference, flags, true)?;
        return Ok(OpenStep::Opened(opened));
    }
    let is_remote = !files.transport().is_local_shard(shard)?;
    let created_at =
        if is_remote { Some(files.transport().host()?.next_open_sequence()) } else { None };
    let request = Request::Create {
        parent: walk.parent.inode,
        name: walk.name,
        mode,
        device: 0,
        flags: flags_of_creation(flags, is_remote),
        layout,
        target: &[],
    };
    let answer = by_path(files.transport().call(Destination::Shard(shard), &request, &creator))?;
    let (is_new, entry) = answer.with(|reply| {
        let is_new = matches!(reply, Reply::Created { .. });
        Ok((is_new, entry_of_reply(&reply).ok_or(Errno::EIO)?))
    })?;
    let found = match entry {
        Ok(attributes) => attributes,
        Err(inode) => match inodes::attributes_of(files.transport(), inode) {
            Err(Errno::ESTALE) => return Ok(OpenStep::Retry),
            found => found?,
        },
    };
    if is_new {
        // A new file is open for whatever its own permissions say.
        let flags = flags & !o::TRUNCATE;
        return open_inode_as(files.transport(), &found, flags, (created_at, None), caller);
    }
    if found.is_symlink() && flags & o::NO_FOLLOW == 0 && lookup == LookupMode::IndexOnly {
        return Ok(OpenStep::ResolveSymlink);
    }
    // A create registers the file as open with a remote shard only if it made the file.
    let step = open_existing(files.transport(), &found, flags, (None, special), caller)?;
    retry_if_removed(files.transport(), walk, step)
}

/// Checks an open file that was found by name for a pending local operation on the name, which
/// may be its removal. A process that logs a removal checks whether the file is open after
/// announcing it, so one of the two sees the other.
fn retry_if_removed(transport: &Transport, walk: &Walk<'_>, step: OpenStep) -> Result<OpenStep> {
    match &step {
        OpenStep::Opened(opened)
            if walk.last == Last::Name && walk.entry.has_local_op(transport) =>
        {
            transport.host()?.file_release(opened.ofd)?;
            closing::drop_open(transport, &open_file::by_index(transport, opened.ofd)?);
            Ok(OpenStep::Retry)
        }
        _ => Ok(step),
    }
}

fn open_existing(
    transport: &Transport,
    found: &Attributes,
    flags: u32,
    (pages, special): (Option<&mut PageCacheGrant>, &mut Option<Attributes>),
    caller: &Credentials,
) -> Result<OpenStep> {
    access::may_open(transport, found, flags, caller)?;
    let kind = found.mode & mode::TYPE;
    let is_plain = matches!(kind, mode::REGULAR | mode::DIRECTORY | mode::SYMLINK);
    if !is_plain && flags & o::PATH == 0 {
        *special = Some(*found);
        return Ok(OpenStep::Special);
    }
    open_inode_as(transport, found, flags, (None, pages), caller)
}

/// Opens again a file that is open already, as `/proc/self/fd` does.
pub(crate) fn open_inode(
    transport: &Transport,
    inode: Inode,
    flags: u32,
    caller: &Credentials,
) -> Result<Outcome<Opened>> {
    open_inode_with(transport, inode, flags, None, caller)
}

/// As `open_inode`, for a kernel that may cache pages of the file.
pub(crate) fn open_inode_for_pages(
    transport: &Transport,
    inode: Inode,
    flags: u32,
    granted: &mut PageCacheGrant,
    caller: &Credentials,
) -> Result<Outcome<Opened>> {
    open_inode_with(transport, inode, flags, Some(granted), caller)
}

fn open_inode_with(
    transport: &Transport,
    inode: Inode,
    flags: u32,
    pages: Option<&mut PageCacheGrant>,
    caller: &Credentials,
) -> Result<Outcome<Opened>> {
    let found = by_path(inodes::attributes_of(transport, inode))?;
    let flags = normalize_flags(flags & !(o::CREATE | o::EXCLUSIVE))?;
    let mut special = None;
    let step = open_existing(transport, &found, flags, (pages, &mut special), caller)?;
    match step.outcome(&special) {
        Some(outcome) => Ok(outcome),
        None => open_deleted(transport, inode, flags),
    }
}

/// Opens a file without a name that some descriptor still holds; `ENOENT` if none does.
fn open_deleted(transport: &Transport, inode: Inode, flags: u32) -> Result<Outcome<Opened>> {
    let host = transport.host()?;
    let vnode = host.vnode_open(inode)?;
    // The open count is raised first: a process that dropped the last count earlier has told
    // the shard by now, and the file is gone.
    let answers_here = transport.answers_here(inode.shard());
    let answer = match transport.is_local_shard(inode.shard()) {
        Ok(_) if answers_here => inodes::queried_attributes(transport, inode),
        Ok(_) => host.vnode(vnode).and_then(|row| {
            Ok(page_caches::register_open(transport, (inode, row), (flags, 0), &own_credentials())?
                .0)
        }),
        Err(errno) => Err(errno),
    };
    match by_path(answer) {
        Ok(found) => {
            let reference = OpenReference::of(&found, vnode);
            allocate_open(transport, &reference, flags, !answers_here).map(Outcome::Done)
        }
        Err(errno) => {
            vnodes::close_vnode(transport, inode, vnode, false);
            Err(errno)
        }
    }
}

/// Raises the open count, checks again that the file exists, and creates the open file
/// description. A shard that leaves this host meanwhile is told, as a remote one is. `created_at`:
/// for a file that this process created on a remote shard, the open sequence drawn before; the shard
/// already knows it as open here. `pages`: for a kernel that may cache pages.
fn open_inode_as(
    transport: &Transport,
    found: &Attributes,
    flags: u32,
    (created_at, mut pages): (Option<u64>, Option<&mut PageCacheGrant>),
    caller: &Credentials,
) -> Result<OpenStep> {
    let inode = found.inode;
    let host = transport.host()?;
    let index = host.vnode_open(inode)?;
    let vnode = host.vnode(index)?;
    let seen = vnode.size_snapshot();
    let mut attributes = Attributes::default();
    if flags & o::ACCESS != 0 && flags & o::PATH == 0 {
        // Before it is asked whether the shard is here: one that leaves reads the mark.
        writers::mark_writer(transport, vnode);
    }
    let is_local_shard = transport.answers_here(inode.shard());
    let writers = if pages.is_some() { host.writers_ever(inode) } else { 0 };
    let reread = if is_local_shard {
        inodes::read_attributes(transport, inode, &mut attributes)
    } else {
        let answer = match created_at {
            Some(created_at) if !host.was_closed_since(inode, created_at) => Ok(*found),
            _ => {
                let extra = if pages.is_some() { open::PAGES } else { 0 };
                let answer =
                    page_caches::register_open(transport, (inode, vnode), (flags, extra), caller);
                answer.map(|(attributes, granted)| {
                    pages.iter_mut().for_each(|pages| **pages = granted);
                    attributes
                })
            }
        };
        answer.map(|answer| attributes = answer)
    };
    match reread {
        Ok(()) if attributes.links > 0 => {}
        Ok(()) | Err(Errno::ESTALE | Errno::ENOENT) => {
            vnodes::close_vnode(transport, inode, index, false);
            return Ok(OpenStep::Retry);
        }
        Err(errno) => {
            vnodes::close_vnode(transport, inode, index, false);
            return Err(errno);
        }
    };
    vnode.learn(&seen, attributes.size);
    let reference = OpenReference::of(&attributes, index);
    let opened = allocate_open(transport, &reference, flags, !is_local_shard)?;
    if let Some(pages) = pages.filter(|_| is_local_shard) {
        let writes = open_file::by_index(transport, opened.ofd)?.is_writable();
        *pages = PageCacheGrant::of_local(writers, host.writers_ever(inode), writes);
    }
    if flags & o::TRUNCATE != 0 && attributes.is_regular() && flags & o::PATH == 0 {
        let open = open_file::by_index(transport, opened.ofd)?;
        if let Err(errno) = truncate::set_size(transport, &open, 0) {
            closing::drop_open(transport, &open);
            return Err(errno);
        }
    }
    Ok(OpenStep::Opened(opened))
}

/// Announces that an existing file is open for writing; closes it if that fails.
#[inline(never)]
fn announce_writer(transport: &Transport, open: &OpenFile<'_>, is_registered: bool) -> Result<()> {
    watches::note_writer(transport, open.inode, open.vnode, is_registered)
        .inspect_err(|_| closing::drop_open(transport, open))
}

/// Creates the open file description; drops the open count on failure. `is_registered`: a shard that is
/// remote by now was told of it.
#[inline(always)]
fn allocate_open(
    transport: &Transport,
    reference: &OpenReference,
    flags: u32,
    is_registered: bool,
) -> Result<Opened> {
    let host = transport.host()?;
    let (inode, flags) = (reference.file.inode, flags & !o::MOMENTARY);
    let ofd = match host.file_allocate(inode, reference.vnode, flags) {
        Ok(ofd) => ofd,
        Err(errno) => {
            vnodes::close_vnode(transport, inode, reference.vnode, false);
            return Err(errno);
        }
    };
    let open = open_file::by_index(transport, ofd)?;
    open.words.layout.store(reference.file.layout.word(), Relaxed);
    open.set_mode(reference.mode);
    if transport.mount() != 0 {
        open.set_created_at(reference.created_at);
    }
    if reference.created_at == 0 && open.is_writable() {
        announce_writer(transport, &open, is_registered)?;
    }
    Ok(Opened { ofd, inode, mode: reference.mode })
}

fn open_nameless(
    paths: &PathLookup,
    at: At<'_>,
    flags: u32,
    mode: u32,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<Opened>> {
    let walked = walk::walk(paths, at, Follow::Yes, LookupMode::Resolve, caller, buffer)?;
    walked.and(|walk| {
        let parent = walk.existing()?;
        if !parent.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let is_exclusive = flags & o::EXCLUSIVE != 0;
        let mode = mode::REGULAR | mode & (mode::PERMISSIONS | made::UMASK);
        let (attributes, vnode) = nameless::make_nameless(&paths.transport, parent, mode, caller)?;
        let flags = flags & !o::DIRECTORY & !(o::TEMPORARY & !o::DIRECTORY);
        let opened =
            allocate_open(&paths.transport, &OpenReference::of(&attributes, vnode), flags, true)?;
        let open = open_file::by_index(&paths.transport, opened.ofd)?;
        open.set(mark::NAMELESS);
        if is_exclusive {
            open.set(mark::NO_NAME_EVER);
        } else if is_write_through(&parent.layout) {
            open.set(mark::WRITE_THROUGH);
        }
        Ok(opened)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert_eq!(normalize_flags(o::CREATE | o::DIRECTORY), Err(Errno::EINVAL));
        assert_eq!(normalize_flags(o::TEMPORARY), Err(Errno::EINVAL));
        assert!(normalize_flags(o::TEMPORARY | o::READ_WRITE).is_ok());
        assert_eq!(normalize_flags(o::PATH | o::CREATE | o::APPEND), Ok(o::PATH));
    }
}
