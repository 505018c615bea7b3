//! Importing directories of the backing store, whose tree the root of this instance shows.
//!
//! A directory is imported when a request first looks for a name in it, or changes one: all its
//! entries, with their attributes there, become inodes of this instance. From then on it is a
//! directory like any other, and changes that others make there are noticed name by name
//! (`revalidate`, `revalidate_dir`). Until then every request about its names waits (`import`), so
//! no request sees a part of it, and a name that was removed here never returns.
//!
//! All entries of such a directory belong to one service (`spread::HOME`), where their inodes are
//! created: the import is the work of one service. Inode numbers show that an inode was imported
//! (`Inode::is_backed`), so a service knows without a query that a directory may have to be
//! imported.
//!
//! States of a directory: not imported -> being read (`Backing::imports`) -> imported
//! (`state.imported`), for good; being read -> not imported if it cannot be read: waiting requests
//! fail with the reason, and the next one reads again.
//!
//! Invariants
//! 1. Existing names are left alone: a batch that is repeated after a crash has no effect.
//! 2. Imported files count for their owner, but are not refused by limits, which hold for files
//!    created in the instance. A service whose memory is full imports no further directory.
//! 3. An imported directory keeps its times.

use wire::attributes::{flag, mode, placement, spread};
use wire::backing::{BackingFile, Stamp, Version};
use wire::errno::Errno;
use wire::limits::{FILE_BYTES_MAX, SYMLINK_BYTES_MAX};
use wire::name::Name;
use wire::quota::Owner;
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex, Writer};

use crate::backing::Backing;
use crate::backing::locations::{has_unimported_names, put_sync_entry};
use crate::backing::sync_state::{DirLocation, Location, SyncEntry};
use crate::core::context::Context;
use crate::core::effect::{BackingDirPart, BackingEntry, Effect};
use crate::core::job::{Call, Fact, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::core::record::Record;
use crate::core::state::encode_xattrs;
use crate::directories::parent_chain::ParentChain;
use crate::directories::remote_copies::Subject;
use crate::files::Files;
use crate::files::new_inode::{place_of_directory, put_new};
use crate::files::stored_xattrs::{extras_of, xattrs_seen};

/// How long the import of a directory that is missing at its backing location is retried: it may be
/// in the middle of a move.
const MISSING_NANOS: i64 = 2_000_000_000;
/// Pause between two attempts.
const RETRY_PAUSE_NANOS: i64 = 20_000_000;
/// Most directories on the path to one: no backing path is as long.
const DEPTH_MAX: usize = wire::limits::PATH_BYTES_MAX;

/// A directory that is being imported.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    attributes: Attributes,
    /// Time of the first attempt.
    started: i64,
}

impl Backing {
    /// Imports the directory whose names a request is about.
    pub(crate) fn import_for(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        match *request {
            Request::Lookup { parent, .. }
            | Request::Create { parent, .. }
            | Request::Unlink { parent, .. }
            | Request::RemoveDirectory { parent, .. }
            | Request::Rename { parent, .. }
            | Request::Link { parent, .. } => self.import(files, call, parent),
            Request::ReadDirectory { directory, .. } => self.import(files, call, directory),
            Request::LookupForMount { inode, name } if !name.is_empty() => {
                self.import(files, call, inode)
            }
            _ => Ok(()),
        }
    }

    /// Proceeds when a directory is imported.
    ///
    /// # Errors
    /// The reason why it cannot be read; `Wait` until it is imported.
    pub(crate) fn import(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        directory: Inode,
    ) -> Step<()> {
        if !has_unimported_names(&files.cx, directory) {
            return Ok(());
        }
        for fact in call.facts {
            if let Fact::NotImported(other, errno) = fact
                && *other == directory
            {
                return Err(Stop::Refused(*errno));
            }
        }
        let wait = Stop::Wait(Wait::BackingDir(directory));
        if self.imports.contains_key(&directory) {
            return Err(wait);
        }
        if files.cx.state.bytes >= files.cx.config.metadata_bytes_max {
            return Err(Stop::Refused(Errno::ENOSPC));
        }
        let attributes = files.directories.directory(&mut files.cx, call, directory)?;
        if !files.cx.config.owns(ShardIndex(attributes.layout.place)) {
            return Err(Stop::Stale);
        }
        let location = path_of(files, call, directory)?;
        self.imports.insert(directory, Import { attributes, started: files.cx.now });
        files.cx.io.push(Effect::ReadBackingDir { directory, place: location });
        Err(wait)
    }

    /// True if a directory is being imported.
    pub(super) fn is_importing(&self, directory: Inode) -> bool {
        self.imports.contains_key(&directory)
    }

    /// Takes entries of a directory that is being imported, or the reason why it cannot be read.
    /// Returns when the import began, if it is complete.
    pub(super) fn import_part(
        &mut self,
        files: &mut Files,
        directory: Inode,
        outcome: wire::errno::Result<BackingDirPart<'_>>,
    ) -> Option<i64> {
        let import = self.imports.remove(&directory)?;
        let mut imported = None;
        match outcome {
            Ok(part) => {
                let is_new = |seen: &&BackingEntry<'_>| {
                    files.cx.state.entries.get(directory, seen.name).is_none()
                };
                let new: Vec<BackingEntry<'_>> =
                    part.entries.iter().filter(is_new).copied().collect();
                import_entries(files, &import.attributes, &new);
                if !part.is_last {
                    self.imports.insert(directory, import);
                    return None;
                }
                self.missing.remove(&directory);
                files.cx.put(&Record::PutImported { directory });
                imported = Some(import.started);
            }
            Err(Errno::EIO) if self.is_retried(&mut files.cx, directory) => {
                retry_import(&mut files.cx, directory);
                return None;
            }
            Err(errno) => {
                for job in files.cx.jobs.values_mut() {
                    if job.wait == Wait::BackingDir(directory) {
                        job.facts.push(Fact::NotImported(directory, errno));
                    }
                }
            }
        }
        files.cx.wake(|wait| *wait == Wait::BackingDir(directory));
        imported
    }

    /// True if the import of a directory missing at its backing location is retried.
    fn is_retried(&mut self, cx: &mut Context, directory: Inode) -> bool {
        let now = cx.now;
        let until = now.saturating_add(MISSING_NANOS);
        let is_retried = *self.missing.entry(directory).or_insert(until) > now;
        if !is_retried {
            self.missing.remove(&directory);
        }
        is_retried
    }
}

fn retry_import(cx: &mut Context, directory: Inode) {
    let is_it = |job: &&mut crate::core::job::Job| job.wait == Wait::BackingDir(directory);
    let resend = Wait::Time(cx.now.saturating_add(RETRY_PAUSE_NANOS));
    for job in cx.jobs.values_mut().filter(is_it) {
        job.wait = resend;
        job.facts.clear();
    }
    cx.wake_at(cx.now.saturating_add(RETRY_PAUSE_NANOS));
}

/// Backing path of a directory, and its inode number there.
pub(crate) fn path_of(
    files: &mut Files,
    call: &Call<'_>,
    directory: Inode,
) -> Step<(Vec<u8>, u64)> {
    if directory == Inode::ROOT {
        return Ok((vec![], 0));
    }
    let DirLocation { parent, name, number } = place_in_backing(files, call, directory)?;
    Ok((path_to(files, call, parent, &name)?, number))
}

/// Backing path of a name in a directory, through all its parents.
fn path_to(files: &mut Files, call: &Call<'_>, directory: Inode, name: &[u8]) -> Step<Vec<u8>> {
    let (mut names, mut here) = (vec![name.to_vec()], directory);
    let mut chain = ParentChain::new();
    while names.len() < DEPTH_MAX {
        if chain.comes_back(here) {
            return Err(Stop::Wait(Wait::Time(files.cx.now)));
        }
        if here == Inode::ROOT {
            names.reverse();
            return Ok(names.join(&b'/'));
        }
        let DirLocation { parent, name, .. } = place_in_backing(files, call, here)?;
        names.push(name);
        here = parent;
    }
    Err(Stop::Refused(Errno::ELOOP))
}

fn place_in_backing(files: &mut Files, call: &Call<'_>, directory: Inode) -> Step<DirLocation> {
    if files.cx.config.owns(directory.shard()) {
        return Ok(files.cx.state.own_location(directory).ok_or(Errno::ESTALE)?);
    }
    for fact in call.facts {
        if let Fact::DirLocation(other, location) = fact
            && *other == directory
        {
            return Ok(location.clone().ok_or(Errno::ESTALE)?);
        }
    }
    Err(files.directories.inquire(
        &mut files.cx,
        Subject::DirLocation(directory),
        directory.shard(),
    ))
}

/// Takes a message between services about backing locations.
pub(crate) fn take_backing_reply(files: &mut Files, message: &Message<'_>) {
    match *message {
        Message::NoEntry { token, errno } => {
            files.directories.refused_entry(&mut files.cx, token, errno)
        }
        Message::AskLocation { from, token, inode } => {
            let location = files.cx.state.own_location(inode).unwrap_or_default();
            let (parent, number, name) = (location.parent, location.number, &location.name[..]);
            let answer = Message::IsLocation { token, parent, number, name };
            files.cx.io.send(ShardIndex(from), &answer);
        }
        Message::IsLocation { token, parent, number, name } => {
            let location = DirLocation { parent, number, name: name.to_vec() };
            files.directories.answered_location(
                &mut files.cx,
                token,
                (!parent.is_none()).then_some(location),
            );
        }
        _ => {}
    }
}

/// Answers a daemon with the location of a file's bytes in the backing store and how many of
/// them count: one location, or two of which either may be current.
pub(crate) fn locate_in_backing(files: &mut Files, call: &Call<'_>, inode: Inode) -> Step<()> {
    if files.cx.state.lost_changes.contains(&inode) {
        return Err(Stop::Refused(Errno::EIO));
    }
    let node = files.cx.state.inodes.get(inode);
    let sync_entry = files.cx.state.sync_entries.get(&inode).filter(|_| node.is_some());
    let layout = node.map(|node| node.attributes.layout).unwrap_or_default();
    let sync_entry = sync_entry.ok_or(Errno::ESTALE)?.clone();
    let mut bytes = Vec::new();
    let places: Vec<&Location> = match sync_entry.partial.as_deref() {
        // Bytes that are not here are in the partial file, or in the file that it is about to
        // become.
        Some(partial) => {
            let is_it = |next: &&Location| next.version.number == partial.version.number;
            core::iter::once(partial).chain(sync_entry.next.as_deref().filter(is_it)).collect()
        }
        None => sync_entry.now.iter().chain(sync_entry.next.as_deref()).collect(),
    };
    for location in places {
        let path = path_to(files, call, location.parent, &location.name)?;
        let Version { number, modified, size: seen } = location.version;
        let file =
            BackingFile { number, modified, seen, size: location.counts, layout, path: &path };
        let (start, length) = (bytes.len(), BackingFile::BYTES + path.len());
        bytes.resize(start + length, 0);
        file.encode(&mut Writer::new(bytes.get_mut(start..).unwrap_or_default()));
    }
    files.cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

/// Creates inodes and entries for backing entries. None of them exists here, except one to be
/// replaced.
pub(crate) fn import_entries(
    files: &mut Files,
    directory: &Attributes,
    entries: &[BackingEntry<'_>],
) {
    let shard = ShardIndex(directory.layout.place);
    let old =
        files.cx.state.backed_inode_next.get(&shard.0).copied().unwrap_or(wire::id::BACKED_FIRST);
    let (mut next, mut directories) = (old, 0);
    for seen in entries {
        if Name::parse(seen.name).is_err() || seen.target.len() > SYMLINK_BYTES_MAX {
            continue;
        }
        let inode = Inode::new(shard, next);
        next += 1;
        directories += u64::from(import_entry(&mut files.cx, directory, inode, seen));
    }
    if next == old {
        return;
    }
    files.cx.put(&Record::PutBackedNext { shard: shard.0, next });
    let entries = (next - old).cast_signed();
    change_counts(files, directory, entries, directories.cast_signed());
}

/// Changes the counts of a directory to match the backing store.
pub(crate) fn change_counts(
    files: &mut Files,
    directory: &Attributes,
    entries: i64,
    directories: i64,
) {
    let mut tally = files.cx.state.tallies.get(&directory.inode).copied().unwrap_or_default();
    tally.spread = directory.layout.spread;
    tally.version += 1;
    tally.entries = tally.entries.saturating_add_signed(entries);
    tally.directories = tally.directories.saturating_add_signed(directories);
    // `modified` stays: it is the time of changes made here.
    files.cx.put(&tally.record(directory.inode));
    if !files.cx.config.owns(directory.inode.shard()) {
        files.directories.send_tally(directory.inode);
        files.cx.wake_at(files.cx.now);
    }
}

/// Creates an inode and an entry. True if it is a directory.
fn import_entry(
    cx: &mut Context,
    directory: &Attributes,
    inode: Inode,
    seen: &BackingEntry<'_>,
) -> bool {
    let (parent, shard) = (directory.inode, inode.shard());
    let is_directory = seen.mode & mode::TYPE == mode::DIRECTORY;
    let of_directory = if is_directory { flag::WRITEBACK } else { 0 };
    let inherited = flag::POSIX | flag::PINNED | of_directory;
    let mut layout = Layout {
        spread: spread::HOME,
        stripe_log2: cx.config.stripe_log2_of(0, directory.layout.stripe_log2),
        flags: directory.layout.flags & inherited,
        place: 0,
        ..directory.layout
    };
    if is_directory {
        layout.place = place_of_directory(cx, directory, spread::HOME, shard);
    } else {
        // A pool chooses the targets of files that are created.
        layout.pool = 0;
        layout.copies = 0;
        if layout.placement == placement::LOCAL {
            // No host has written it, so it is local to none.
            layout.placement = placement::HASH;
        }
        layout.place = cx.config.map.place_of_new();
    }
    let owner = (Owner { uid: seen.uid, project: directory.project }, seen.gid);
    let bits = seen.mode & (mode::TYPE | mode::PERMISSIONS);
    let xattrs = xattrs_seen(seen);
    let mut encoded = Vec::new();
    encode_xattrs(Some(&xattrs), &mut encoded);
    let attributes = Attributes {
        extras: extras_of(&xattrs, 0),
        parent: if is_directory { parent } else { Inode::NONE },
        links: if is_directory { seen.links.max(1) } else { 1 },
        size: if is_directory { 0 } else { seen.size.min(FILE_BYTES_MAX) },
        accessed: seen.accessed,
        modified: seen.modified,
        changed: seen.changed,
        born: seen.born,
        device: seen.device,
        ..Attributes::of_new(inode, bits, owner, seen.changed, layout)
    };
    let now = Location {
        parent,
        name: seen.name.into(),
        version: Version { number: seen.number, modified: seen.modified, size: seen.size },
        counts: if attributes.is_regular() { attributes.size } else { 0 },
        stamp: Stamp::of(&attributes),
    };
    put_sync_entry(cx, inode, &SyncEntry { now: Some(now), ..SyncEntry::default() });
    put_new(cx, &attributes, seen.target, 0, &encoded);
    let kind = bits & mode::TYPE;
    cx.put_clean(&Record::PutEntry { parent, name: seen.name, inode, mode: kind });
    is_directory
}
