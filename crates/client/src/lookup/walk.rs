//! The walk: from a path to the directory that holds its last name, and to the file if it exists.
//!
//! Entries and inodes of this host's shards are read from the shared-memory index. Those that the
//! index does not know, and those of other hosts, cost a message; a message to another host
//! resolves several components at once (`batched`), unless directories of that host are leased
//! (`leases`). The search permission of each directory is checked here, by its attributes.

use shm::index::Hit;
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::{NAME_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::lookup::batched::LookupBatch;
use crate::lookup::path::{At, Component, Follow, Outcome, PathBuffer, PathCursor};
use crate::lookup::path_cache::ValidationSet;
use crate::lookup::result::{
    Entry, Last, LookupMode, LookupResult, Walk, WalkTarget, entry_of_reply,
};
use crate::lookup::retry::LookupRetries;
use crate::lookup::{PathLookup, batched, inodes, leases, path_cache, permission};
use crate::transport::Transport;
use crate::transport::errno::by_path;
use crate::transport::request::Destination;

/// State of a walk. The directory and what is found in it are in the caller's buffer: copying them
/// took a fifth of a walk.
struct Walker<'a, 'b> {
    caller: &'a Credentials,
    follow: Follow,
    lookup: LookupMode,
    cursor: &'b mut PathCursor,
    current: &'b mut Attributes,
    found: &'b mut Attributes,
    links: u32,
    batch: Option<LookupBatch>,
    /// The directory that last came from a lease or the path cache: only the attributes that a walk
    /// needs are valid.
    partial: Inode,
    validation: ValidationSet,
    is_settled: bool,
}

impl Walker<'_, '_> {
    /// Continues the walk in the directory that was found.
    const fn enter(&mut self) {
        core::mem::swap(&mut self.current, &mut self.found);
    }
}

/// Next action after one component.
enum Step {
    /// Continue in the current directory.
    On,
    /// The path ends with this name.
    Name(Component, Entry, LookupResult),
    /// The path ends in the current directory; true if a slash followed.
    Directory(Last, bool),
    /// The path left the instance.
    Outside,
}

/// Walks `at`.
///
/// # Errors
/// `ENOENT` and `ENOTDIR` for components before the last, `EACCES`, `ELOOP`, `ENAMETOOLONG`,
/// `EIO`.
pub(crate) fn walk<'b>(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    lookup: LookupMode,
    caller: &Credentials,
    buffer: &'b mut PathBuffer,
) -> Result<Outcome<Walk<'b>>> {
    let transport = &paths.transport;
    if at.is_base {
        return walk_base(transport, at.base, buffer);
    }
    let PathBuffer { cursor, met: [current, found] } = buffer;
    cursor.set_path(at.path)?;
    let state = transport.attachments.generation();
    let is_cached = path_cache::find_cached_parent(paths, at.base, caller, cursor, current);
    if is_cached
        && let Some((entry, seen, is_settled)) =
            look_up_last(transport, caller, (follow, lookup), cursor, (current, found))?
    {
        let (parent, found) = (&*current, WalkTarget::of(seen, found));
        let (last, name, slash) = (Last::Name, cursor.outside(), false);
        return Ok(Outcome::Done(Walk { parent, last, name, entry, found, slash, is_settled }));
    }
    walk_on(paths, at, (follow, lookup), caller, (cursor, current, found), (state, is_cached))
}

/// Looks up the last name of a path in its directory, which the path cache knew, by the index of this
/// host: most walks. `None`: that does not tell, or a link is to be followed.
#[inline(always)]
fn look_up_last(
    transport: &Transport,
    caller: &Credentials,
    (follow, lookup): (Follow, LookupMode),
    cursor: &PathCursor,
    (directory, to): (&Attributes, &mut Attributes),
) -> Result<Option<(Entry, LookupResult, bool)>> {
    if !directory.is_directory() {
        return Ok(None);
    }
    permission::permits(transport, directory, caller, want::EXECUTE)?;
    let name = cursor.outside();
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let entry = Entry::of(directory, name);
    let Some(service) = transport.service_of(entry.shard) else { return Ok(None) };
    let (inode, kind) = match service.entry(directory.inode, entry.key) {
        Hit::Found(inode, kind) if inode.shard() == entry.shard => (inode, kind),
        Hit::Absent => return Ok(Some((entry, LookupResult::Absent, false))),
        _ => return Ok(None),
    };
    let is_settled = lookup == LookupMode::ResolveSettled && is_settled(transport, inode, kind);
    let is_known = service.read_inode(inode, to);
    let is_followed = follow == Follow::Yes && to.is_symlink();
    Ok((is_known && !is_followed).then_some((entry, LookupResult::Found, is_settled)))
}

/// True if no change of a file of this type is in flight.
#[inline]
fn is_settled(transport: &Transport, inode: Inode, kind: u32) -> bool {
    match kind & mode::TYPE {
        mode::REGULAR => transport.host().is_ok_and(|host| host.vnode_find(inode).is_none()),
        mode::DIRECTORY => !transport.may_have_local_ops(inode.shard()),
        _ => true,
    }
}

/// Walks from the directory that the path cache knew, or from the start.
#[inline(never)]
fn walk_on<'b>(
    paths: &PathLookup,
    at: At<'_>,
    (follow, lookup): (Follow, LookupMode),
    caller: &Credentials,
    (cursor, current, found): (&'b mut PathCursor, &'b mut Attributes, &'b mut Attributes),
    (state, is_cached): (u32, bool),
) -> Result<Outcome<Walk<'b>>> {
    let transport = &paths.transport;
    let mut walker = Walker {
        caller,
        follow,
        lookup,
        cursor,
        current,
        found,
        links: 0,
        batch: None,
        partial: Inode::NONE,
        validation: ValidationSet::new(),
        is_settled: false,
    };
    if is_cached {
        walker.partial = walker.current.inode;
    } else {
        by_path(begin(transport, at.base, &mut walker))?;
    }
    if !walker.current.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let step = loop {
        let Some(part) = walker.cursor.take() else { break Step::Directory(Last::Dot, false) };
        match step(transport, &mut walker, part)? {
            Step::On => {}
            end => break end,
        }
    };
    if matches!(step, Step::Directory(..)) && walker.partial == walker.current.inode {
        by_path(inodes::read_attributes(transport, walker.partial, walker.current))?;
    }
    if !is_cached && matches!(step, Step::Name(..)) {
        let validation = (&walker.validation, state);
        path_cache::cache_parent(paths, at.base, caller, walker.cursor, validation, walker.current);
    }
    let Walker { cursor, current, found, is_settled, .. } = walker;
    let (cursor, parent, found) = (&*cursor, &*current, &*found);
    Ok(match step {
        Step::Name(part, entry, seen) => {
            let found = WalkTarget::of(seen, found);
            let (last, name, slash) = (Last::Name, cursor.name(part), part.slash);
            Outcome::Done(Walk { parent, last, name, entry, found, slash, is_settled })
        }
        Step::Directory(last, slash) => {
            let (entry, found) = (Entry::NONE, WalkTarget::Found(parent));
            let (name, is_settled): (&[u8], bool) = (&[], false);
            Outcome::Done(Walk { parent, last, name, entry, found, slash, is_settled })
        }
        Step::On | Step::Outside => Outcome::Outside,
    })
}

/// The file itself, as if it were the directory that a path ends in.
#[cold]
fn walk_base<'b>(
    transport: &Transport,
    inode: Inode,
    buffer: &'b mut PathBuffer,
) -> Result<Outcome<Walk<'b>>> {
    let PathBuffer { cursor, met: [current, _] } = buffer;
    cursor.clear();
    by_path(inodes::read_attributes(transport, inode, current))?;
    let (parent, entry, found) = (&*current, Entry::NONE, WalkTarget::Found(&*current));
    let (last, slash, is_settled) = (Last::Dot, false, false);
    Ok(Outcome::Done(Walk { parent, last, name: &[], entry, found, slash, is_settled }))
}

/// Reads the directory in which the walk begins.
fn begin(transport: &Transport, directory: Inode, walker: &mut Walker<'_, '_>) -> Result<()> {
    let Walker { lookup, caller, cursor, current, batch, validation, partial, .. } = walker;
    let Some(service) = transport.service_of(directory.shard()) else {
        leases::note_leases(transport, directory.shard(), validation);
        if batched::begin_remote(transport, directory, *lookup, caller, cursor, batch, current)? {
            *partial = directory;
        } else {
            validation.set_uncacheable();
        }
        return Ok(());
    };
    validation.note(&service);
    if service.read_inode(directory, current) {
        return Ok(());
    }
    validation.set_uncacheable();
    inodes::query_attributes(transport, directory, current)
}

fn step(transport: &Transport, walker: &mut Walker<'_, '_>, part: Component) -> Result<Step> {
    permission::permits(transport, walker.current, walker.caller, want::EXECUTE)?;
    let name = walker.cursor.name(part);
    match name {
        b"." if part.is_last => return Ok(Step::Directory(Last::Dot, part.slash)),
        b"." => return Ok(Step::On),
        b".." => return enter_parent(transport, walker, part),
        name if name.len() > NAME_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
        _ => {}
    }
    let entry = Entry::of(walker.current, name);
    let known = match &mut walker.batch {
        Some(batch) => batch.next(walker.found),
        None => None,
    };
    let mut seen = match known {
        Some(seen) => seen,
        None => lookup_component(transport, walker, part, &entry)?,
    };
    let is_followed = match walker.follow {
        Follow::Yes => true,
        Follow::No => !part.is_last || part.slash,
        Follow::Never => !part.is_last,
    };
    let mut retries = None;
    while seen == LookupResult::Found && is_followed && walker.found.is_symlink() {
        if walker.links >= SYMLINKS_FOLLOWED_MAX {
            return Err(Errno::ELOOP);
        }
        match follow_symlink(transport, walker) {
            // The link is gone: another file may have its name now.
            Err(Errno::ESTALE) => {
                retries.get_or_insert_with(|| LookupRetries::new(transport)).pause()?
            }
            through => return through,
        }
        seen = lookup_component(transport, walker, part, &entry)?;
    }
    if part.is_last {
        return Ok(Step::Name(part, entry, seen));
    }
    match seen {
        LookupResult::Found if walker.found.is_directory() => {
            walker.enter();
            Ok(Step::On)
        }
        LookupResult::Found => Err(Errno::ENOTDIR),
        LookupResult::Absent | LookupResult::Unknown => Err(Errno::ENOENT),
    }
}

/// Looks a component up of which nothing is known yet.
fn lookup_component(
    transport: &Transport,
    walker: &mut Walker<'_, '_>,
    part: Component,
    entry: &Entry,
) -> Result<LookupResult> {
    // The path cache covers only the components before the last.
    let validation = (!part.is_last).then_some(&mut walker.validation);
    let asks = part.is_last && walker.lookup == LookupMode::ResolveSettled;
    let settled = asks.then_some(&mut walker.is_settled);
    let directory = walker.current.inode;
    if let Some(seen) =
        lookup_local(transport, directory, entry, walker.found, validation, settled)?
    {
        return Ok(seen);
    }
    if part.is_last && walker.lookup == LookupMode::IndexOnly {
        return Ok(LookupResult::Unknown);
    }
    if !part.is_last {
        leases::note_leases(transport, entry.shard, &mut walker.validation);
        if leases::leased_entry(transport, entry, walker.found) {
            walker.partial = walker.found.inode;
            return Ok(LookupResult::Found);
        }
        walker.validation.set_uncacheable();
    }
    let Walker { caller, cursor, current, found, batch, lookup, .. } = walker;
    let (names, count) = cursor.names(part.start, *lookup != LookupMode::IndexOnly);
    // A single lookup of the last name alone returns more; a directory to pass through may come
    // with a lease.
    let names = (names, count, if part.is_last { 2 } else { 1 });
    match batched::lookup_batch(transport, current.inode, entry.shard, names, caller, batch, found)?
    {
        Some(seen) => Ok(seen),
        None => {
            lookup_by_message(transport, current, cursor.name(part), entry.shard, caller, found)
        }
    }
}

fn enter_parent(
    transport: &Transport,
    walker: &mut Walker<'_, '_>,
    part: Component,
) -> Result<Step> {
    if walker.current.inode == Inode::ROOT {
        walker.cursor.leave_to_parent(transport.prefix())?;
        return Ok(Step::Outside);
    }
    walker.validation.set_uncacheable();
    let parent = walker.current.parent;
    if leases::leased(transport, parent, walker.found) {
        walker.partial = parent;
    } else {
        by_path(inodes::read_attributes(transport, parent, walker.found))?;
    }
    walker.enter();
    Ok(if part.is_last { Step::Directory(Last::DotDot, part.slash) } else { Step::On })
}

/// Continues with the target of the symbolic link that was found. `ESTALE`: the link is gone.
fn follow_symlink(transport: &Transport, walker: &mut Walker<'_, '_>) -> Result<Step> {
    walker.validation.set_uncacheable();
    let link = walker.found.inode;
    let request = Request::ReadLink { inode: link };
    let answer = transport.call(Destination::Shard(link.shard()), &request, walker.caller);
    answer?.with(|reply| match reply {
        Reply::Bytes { bytes: [] } => Err(Errno::ENOENT),
        Reply::Bytes { bytes } => walker.cursor.prepend(bytes),
        _ => Err(Errno::EIO),
    })?;
    walker.links = walker.links.saturating_add(1);
    if !walker.cursor.is_absolute() {
        return Ok(Step::On);
    }
    if walker.cursor.enter(transport.prefix()) {
        if leases::leased(transport, Inode::ROOT, walker.current) {
            walker.partial = Inode::ROOT;
        } else {
            by_path(inodes::read_attributes(transport, Inode::ROOT, walker.current))?;
        }
        return Ok(Step::On);
    }
    walker.cursor.leave();
    Ok(Step::Outside)
}

/// Looks `name` up in `parent`.
///
/// # Errors
/// `EIO`.
pub(crate) fn lookup(
    transport: &Transport,
    parent: &Attributes,
    name: &[u8],
    caller: &Credentials,
    to: &mut Attributes,
) -> Result<LookupResult> {
    let entry = Entry::of(parent, name);
    match lookup_local(transport, parent.inode, &entry, to, None, None)? {
        Some(seen) => Ok(seen),
        None => lookup_by_message(transport, parent, name, entry.shard, caller, to),
    }
}

/// Looks up an entry of `directory` in the index of this host; `None` if the index does not
/// know it. Each index is recorded in `validation` before it is read. `settled` is set to
/// whether no change of the file was in flight.
fn lookup_local(
    transport: &Transport,
    directory: Inode,
    entry: &Entry,
    to: &mut Attributes,
    mut validation: Option<&mut ValidationSet>,
    settled: Option<&mut bool>,
) -> Result<Option<LookupResult>> {
    let Some(service) = transport.service_of(entry.shard) else { return Ok(None) };
    if let Some(validation) = &mut validation {
        validation.note(&service);
    }
    let (inode, kind) = match service.entry(directory, entry.key) {
        Hit::Found(inode, kind) => (inode, kind),
        Hit::Absent => return Ok(Some(LookupResult::Absent)),
        Hit::Unknown => return Ok(None),
    };
    if let Some(settled) = settled {
        *settled = is_settled(transport, inode, kind);
    }
    let is_same = inode.shard() == entry.shard;
    let of_inode = if is_same { Some(service) } else { transport.service_of(inode.shard()) };
    if let Some(service) = of_inode {
        if let Some(validation) = &mut validation {
            validation.note(&service);
        }
        if service.read_inode(inode, to) {
            return Ok(Some(LookupResult::Found));
        }
    }
    if let Some(validation) = validation {
        validation.set_uncacheable();
    }
    match inodes::query_attributes(transport, inode, to) {
        Err(Errno::ESTALE) => Ok(None),
        found => found.map(|()| Some(LookupResult::Found)),
    }
}

fn lookup_by_message(
    transport: &Transport,
    parent: &Attributes,
    name: &[u8],
    shard: ShardIndex,
    caller: &Credentials,
    to: &mut Attributes,
) -> Result<LookupResult> {
    let request = Request::Lookup { parent: parent.inode, name };
    let (mut retries, mut gone) = (LookupRetries::new(transport), Inode::NONE);
    loop {
        let answer = match transport.call(Destination::Shard(shard), &request, caller) {
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(LookupResult::Absent),
            answer => answer?,
        };
        let found = answer.with(|reply| Ok(entry_of_reply(&reply)))?;
        match found.ok_or(Errno::EIO)? {
            Ok(attributes) => {
                *to = attributes;
                return Ok(LookupResult::Found);
            }
            // Inode numbers are not reused, so this entry dangles.
            Err(inode) if inode == gone => return Ok(LookupResult::Absent),
            Err(inode) => match inodes::read_attributes(transport, inode, to) {
                Err(Errno::ESTALE) => gone = inode,
                found => return found.map(|()| LookupResult::Found),
            },
        }
        retries.pause()?;
    }
}
