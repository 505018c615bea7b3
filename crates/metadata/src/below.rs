//! The backing directory: a tree of the site's, of which the root of this instance shows what it holds.
//!
//! A directory of it is brought in when somebody first looks for a name in it, or changes one: all its
//! entries, with the attributes that they have there, as inodes of this instance. From then on it is a
//! directory like any other, and what others change there is noticed name by name (`follow`,
//! `follow_names`). Until then everything that looks at its names waits (`import`), so nobody sees a part
//! of it, and a name that was removed here never comes back.
//!
//! All entries of such a directory are one service's (`spread::HOME`), and what is made of them is born
//! there: to bring them in is one service's work. Numbers of inodes say what they come from
//! (`Inode::is_from_below`), so a service knows without asking that a directory may have to be brought
//! in.
//!
//! States of a directory: below -> asked (`live.imports`) -> imported (`state.imported`), for good; asked
//! -> below if it can not be read: who waited learns why, and who comes next asks anew.
//!
//! Invariants
//! 1. Names that are there already are left alone: a part that comes again after a crash does nothing.
//! 2. What lies below counts for its owner, and is not refused for his limits: those hold for what is
//!    made in the instance. A service whose memory is full brings in no further directory.
//! 3. A directory that is brought in keeps its times.

use wire::attributes::{flag, mode, placement, spread};
use wire::below::{Below as Told, Stamp, Version};
use wire::errno::Errno;
use wire::limits::{FILE_BYTES_MAX, SYMLINK_BYTES_MAX};
use wire::name::Name;
use wire::quota::Owner;
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex, Writer};

use crate::acls::extras_of;
use crate::effect::{Effect, Part, Seen};
use crate::live::{Ask, Fact, Step, Stop, Subject, Wait};
use crate::peer::Message;
use crate::record::Record;
use crate::service::Service;
use crate::standing::{Below, Lying};
use crate::state::encode_xattrs;

/// A directory that is not where it was said to be is looked for so long: it may just be moved.
const MISSING_NANOS: i64 = 2_000_000_000;
/// And after this again.
const AGAIN_NANOS: i64 = 20_000_000;
/// Directories on the way to one, at most: no path below is as long.
const DEPTH_MAX: usize = wire::limits::PATH_BYTES_MAX;

/// A directory whose entries are being read.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    attributes: Attributes,
    /// When.
    asked: i64,
}

/// Where a directory lies below: in which, by which name, and its number there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) number: u64,
}

impl Service {
    /// True if names of this directory may lie below that are not here.
    pub(crate) fn is_below(&self, directory: Inode) -> bool {
        let may = directory.is_from_below() || directory == Inode::ROOT;
        may && self.config.backing && !self.state.imported.contains(&directory)
    }

    /// Has the directory brought in whose names a request is about.
    pub(crate) fn import_for(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        match *request {
            Request::Lookup { parent, .. }
            | Request::Create { parent, .. }
            | Request::Unlink { parent, .. }
            | Request::RemoveDirectory { parent, .. }
            | Request::Rename { parent, .. }
            | Request::Link { parent, .. } => self.import(ask, parent),
            Request::ReadDirectory { directory, .. } => self.import(ask, directory),
            Request::Look { inode, name } if !name.is_empty() => self.import(ask, inode),
            _ => Ok(()),
        }
    }

    /// Goes on when all names of a directory are here that lie below.
    ///
    /// # Errors
    /// Why they can not be had; `Wait` until they are.
    pub(crate) fn import(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<()> {
        if !self.is_below(directory) {
            return Ok(());
        }
        for fact in ask.facts {
            if let Fact::NotImported(other, errno) = fact
                && *other == directory
            {
                return Err(Stop::Refused(*errno));
            }
        }
        if !self.live.imports.contains_key(&directory) {
            if self.state.bytes >= self.config.metadata_bytes_max {
                return Err(Stop::Refused(Errno::ENOSPC));
            }
            let attributes = self.directory(ask, directory)?;
            if !self.config.owns(ShardIndex(attributes.layout.place)) {
                return Err(Stop::Stale);
            }
            let place = self.path_of(ask, directory)?;
            self.live.imports.insert(directory, Import { attributes, asked: self.live.now });
            self.io.push(Effect::Below { directory, place });
        }
        Err(Stop::Wait(Wait::Below(directory)))
    }

    /// Where a directory lies below, by name and number there.
    pub(crate) fn path_of(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<(Vec<u8>, u64)> {
        if directory == Inode::ROOT {
            return Ok((vec![], 0));
        }
        let Place { parent, name, number } = self.place_below(ask, directory)?;
        Ok((self.path_to(ask, parent, &name)?, number))
    }

    /// The path below of a name in a directory, by all directories on the way.
    fn path_to(&mut self, ask: &Ask<'_>, directory: Inode, name: &[u8]) -> Step<Vec<u8>> {
        let (mut names, mut here) = (vec![name.to_vec()], directory);
        while names.len() < DEPTH_MAX {
            if here == Inode::ROOT {
                names.reverse();
                return Ok(names.join(&b'/'));
            }
            let Place { parent, name, .. } = self.place_below(ask, here)?;
            names.push(name);
            here = parent;
        }
        Err(Stop::Refused(Errno::ELOOP))
    }

    fn place_below(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<Place> {
        if self.config.owns(directory.shard()) {
            return Ok(self.own_place(directory).ok_or(Errno::ESTALE)?);
        }
        for fact in ask.facts {
            if let Fact::Place(other, place) = fact
                && *other == directory
            {
                return Ok(place.clone().ok_or(Errno::ESTALE)?);
            }
        }
        Err(self.inquire(Subject::Place(directory), directory.shard()))
    }

    fn own_place(&self, directory: Inode) -> Option<Place> {
        let now = self.state.below.get(&directory)?.now.as_ref()?;
        let (parent, name, number) = (now.parent, now.name.to_vec(), now.version.number);
        Some(Place { parent, name, number })
    }

    /// What services tell each other of what lies below.
    pub(crate) fn take_word_of_below(&mut self, message: &Message<'_>) {
        match *message {
            Message::NoEntry { token, errno } => self.refused_entry(token, errno),
            Message::AskPlace { from, token, inode } => {
                let place = self.own_place(inode).unwrap_or_default();
                let (parent, number, name) = (place.parent, place.number, &place.name[..]);
                let answer = Message::IsPlace { token, parent, number, name };
                self.io.send(ShardIndex(from), &answer);
            }
            Message::IsPlace { token, parent, number, name } => {
                let place = Place { parent, number, name: name.to_vec() };
                self.answered_place(token, (!parent.is_none()).then_some(place));
            }
            _ => {}
        }
    }

    /// Tells a daemon where a file lies below, and what of it counts: in one place, or in either of two.
    pub(crate) fn tell_below(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let node = self.state.inodes.get(inode);
        let below = self.state.below.get(&inode).filter(|_| node.is_some());
        let layout = node.map(|node| node.attributes.layout).unwrap_or_default();
        let below = below.ok_or(Errno::ESTALE)?.clone();
        let mut bytes = Vec::new();
        let places: Vec<&Lying> = match below.draft.as_deref() {
            // All that is not here lies there, or where that is about to be.
            Some(draft) => {
                let is_it = |next: &&Lying| next.version.number == draft.version.number;
                core::iter::once(draft).chain(below.next.as_deref().filter(is_it)).collect()
            }
            None => below.now.iter().chain(below.next.as_deref()).collect(),
        };
        for lying in places {
            let path = self.path_to(ask, lying.parent, &lying.name)?;
            let Version { number, modified, size: seen } = lying.version;
            let told = Told { number, modified, seen, size: lying.counts, layout, path: &path };
            let (start, length) = (bytes.len(), Told::BYTES + path.len());
            bytes.resize(start + length, 0);
            told.encode(&mut Writer::new(bytes.get_mut(start..).unwrap_or_default()));
        }
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
        Ok(())
    }

    /// A file has this size now: what lies behind below is the file's no longer, however long it may
    /// become.
    pub(crate) fn cut_below(&mut self, inode: Inode, size: u64) {
        let Some(below) = self.state.below.get(&inode) else { return };
        let mut cut = below.clone();
        let more = cut.next.as_deref_mut().into_iter().chain(cut.draft.as_deref_mut());
        for lying in cut.now.iter_mut().chain(more) {
            lying.counts = lying.counts.min(size);
        }
        if let Some(draft) = &mut cut.draft {
            // Bytes that are on their way to it may be of before.
            draft.stamp.changed += 1;
        }
        if cut != *below {
            self.put_below(inode, &cut);
        }
    }

    pub(crate) fn put_below(&mut self, inode: Inode, below: &Below) {
        below.record(inode, |record| self.put(record));
    }

    /// Entries of a directory below, or why they can not be had.
    pub(crate) fn take_below(&mut self, directory: Inode, outcome: wire::errno::Result<Part<'_>>) {
        let Some(import) = self.live.imports.remove(&directory) else {
            return self.take_names(directory, outcome);
        };
        match outcome {
            Ok(part) => {
                let is_new =
                    |seen: &&Seen<'_>| self.state.entries.get(directory, seen.name).is_none();
                let new: Vec<Seen<'_>> = part.entries.iter().filter(is_new).copied().collect();
                self.bring_in(&import.attributes, &new);
                if !part.is_last {
                    self.live.imports.insert(directory, import);
                    return;
                }
                self.live.missing.remove(&directory);
                self.put(&Record::PutImported { directory });
                self.note_brought_in(directory, import.asked);
            }
            Err(Errno::EIO) if self.is_looked_for(directory) => return self.look_again(directory),
            Err(errno) => {
                for job in self.live.jobs.values_mut() {
                    if job.wait == Wait::Below(directory) {
                        job.facts.push(Fact::NotImported(directory, errno));
                    }
                }
            }
        }
        self.live.wake(|wait| *wait == Wait::Below(directory));
    }

    /// Is a directory that is not where it was said to be asked for once more?
    fn is_looked_for(&mut self, directory: Inode) -> bool {
        let now = self.live.now;
        let until = now.saturating_add(MISSING_NANOS);
        let is_looked_for = *self.live.missing.entry(directory).or_insert(until) > now;
        if !is_looked_for {
            self.live.missing.remove(&directory);
        }
        is_looked_for
    }

    fn look_again(&mut self, directory: Inode) {
        let is_it = |job: &&mut crate::live::Job| job.wait == Wait::Below(directory);
        let again = Wait::Time(self.live.now.saturating_add(AGAIN_NANOS));
        for job in self.live.jobs.values_mut().filter(is_it) {
            job.wait = again;
            job.facts.clear();
        }
        self.live.wake_at(self.live.now.saturating_add(AGAIN_NANOS));
    }

    /// Makes what was seen below; of none of it there is anything here, or what is replaced.
    pub(crate) fn bring_in(&mut self, directory: &Attributes, entries: &[Seen<'_>]) {
        let shard = ShardIndex(directory.layout.place);
        let old = self.state.below_next.get(&shard.0).copied().unwrap_or(wire::id::BELOW_FIRST);
        let (mut next, mut directories) = (old, 0);
        for seen in entries {
            if Name::parse(seen.name).is_err() || seen.target.len() > SYMLINK_BYTES_MAX {
                continue;
            }
            let inode = Inode::new(shard, next);
            next += 1;
            directories += u64::from(self.bring_in_one(directory, inode, seen));
        }
        if next == old {
            return;
        }
        self.put(&Record::PutBelowNext { shard: shard.0, next });
        let entries = (next - old).cast_signed();
        self.count_seen(directory, entries, directories.cast_signed());
    }

    /// A directory has more or fewer names than before, as it has below.
    pub(crate) fn count_seen(&mut self, directory: &Attributes, entries: i64, directories: i64) {
        let mut tally = self.state.tallies.get(&directory.inode).copied().unwrap_or_default();
        tally.spread = directory.layout.spread;
        tally.version += 1;
        tally.entries = tally.entries.saturating_add_signed(entries);
        tally.directories = tally.directories.saturating_add_signed(directories);
        // Its `modified` is left: that is when something was made or removed here.
        self.put(&tally.record(directory.inode));
        if !self.config.owns(directory.inode.shard()) {
            self.live.dirty.insert(directory.inode, 0);
            self.live.wake_at(self.live.now);
        }
    }

    /// Makes an inode and an entry. True if it is a directory.
    fn bring_in_one(&mut self, directory: &Attributes, inode: Inode, seen: &Seen<'_>) -> bool {
        let (parent, shard) = (directory.inode, inode.shard());
        let is_directory = seen.mode & mode::TYPE == mode::DIRECTORY;
        let of_directory = if is_directory { flag::WRITE_BACK } else { 0 };
        let handed_down = flag::POSIX | flag::PINNED | of_directory;
        let mut layout = Layout {
            spread: spread::HOME,
            chunk_log2: self.config.chunk_log2_of(0, directory.layout.chunk_log2),
            flags: directory.layout.flags & handed_down,
            place: 0,
            ..directory.layout
        };
        if is_directory {
            layout.place = self.place_of_directory(directory, spread::HOME, shard);
        } else if layout.placement == placement::LOCAL {
            // Nobody has written it, so it is near nobody.
            layout.placement = placement::HASH;
        }
        let owner = (Owner { uid: seen.uid, project: directory.project }, seen.gid);
        let bits = seen.mode & (mode::TYPE | mode::PERMISSIONS);
        let xattrs = self.xattrs_seen(seen);
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
        let now = Lying {
            parent,
            name: seen.name.into(),
            version: Version { number: seen.number, modified: seen.modified, size: seen.size },
            counts: if attributes.is_regular() { attributes.size } else { 0 },
            stamp: Stamp::of(&attributes),
        };
        self.put_below(inode, &Below { now: Some(now), ..Below::default() });
        self.put_new(&attributes, seen.target, 0, &encoded);
        let kind = bits & mode::TYPE;
        self.put_as_seen(&Record::PutEntry { parent, name: seen.name, inode, mode: kind });
        is_directory
    }
}
