//! The walk: from a path to the directory that holds its last name, and to the file if it exists.
//!
//! Entries and inodes of this host's shards are read from the shared-memory index; what it does not
//! know, and what lies on other hosts, costs a message; one for another host takes what follows with
//! it (`ahead`), unless directories of that host are leased (`leases`). The search permission of each
//! directory is checked here, by its attributes.

use placement::locate::entry_shard;
use placement::map::worker_of_shard;
use shm::index::{Hit, Index};
use wire::attributes::{mode, spread, want};
use wire::errno::{Errno, Result};
use wire::hash::{NameHash, entry_key};
use wire::limits::{NAME_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::Client;
use crate::again::Looks;
use crate::ahead::Ahead;
use crate::attach::Attachment;
use crate::errno::by_path;
use crate::memo::Trail;
use crate::path::{At, Follow, Outcome, Part, PathBuffer, Way};
use crate::posts::post_key;
use crate::request::{To, own_credentials};

/// How the last component is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Until it is known whether it exists.
    Surely,
    /// As `Surely`, and it is said whether nothing was under way about it before its attributes were
    /// read: then they have all that was done before (`Walk::is_settled`).
    Settled,
    /// Only in the index: the request that follows finds out by itself.
    Index,
}

/// What the last component of a path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// A name.
    Name,
    /// `.`, or the starting directory itself.
    Dot,
    /// `..`.
    DotDot,
}

/// What is known of a name. If it exists, its attributes are where the asker wanted them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    /// It exists.
    Found,
    /// It does not.
    Absent,
    /// Nothing: only with `Look::Index`.
    Unknown,
}

/// What a walk knows of the last name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked<'b> {
    /// It exists.
    Found(&'b Attributes),
    /// It does not.
    Absent,
    /// Nothing: only with `Look::Index`.
    Unknown,
}

/// An entry, as its shard, the index and posts know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The shard that has it.
    pub(crate) shard: ShardIndex,
    /// Its key in the index.
    pub(crate) key: u128,
}

impl Entry {
    const NONE: Entry = Entry { shard: ShardIndex(0), key: 0 };

    /// The entry `name` of `parent`.
    pub(crate) fn of(parent: &Attributes, name: &[u8]) -> Entry {
        let shard = Client::shard_of_entry(parent, name);
        Entry { shard, key: entry_key(parent.inode, name) }
    }
}

/// Where a path led.
pub(crate) struct Walk<'b> {
    /// The directory that holds the last name; with `Dot` and `DotDot` the directory meant.
    pub(crate) parent: &'b Attributes,
    /// What the last component is.
    pub(crate) last: Last,
    /// The last name; empty if it is no name.
    pub(crate) name: &'b [u8],
    /// The same, if it is a name.
    pub(crate) entry: Entry,
    /// What it names.
    pub(crate) found: Looked<'b>,
    /// The path ended with a slash.
    pub(crate) slash: bool,
    /// It is a file that nobody on this host had open when its attributes were read, or a directory about
    /// which there were no posts. Said only where it costs no message, and only with `Look::Settled`.
    pub(crate) is_settled: bool,
}

impl<'b> Walk<'b> {
    /// The file; `ENOENT` if there is none, `ENOTDIR` if a slash follows what is no directory.
    pub(crate) fn existing(&self) -> Result<&'b Attributes> {
        match self.found {
            Looked::Found(attributes) if self.slash && !attributes.is_directory() => {
                Err(Errno::ENOTDIR)
            }
            Looked::Found(attributes) => Ok(attributes),
            Looked::Absent | Looked::Unknown => Err(Errno::ENOENT),
        }
    }
}

/// Where a walk is. The directory and what is found in it lie in the caller's buffer: copies of them
/// were a fifth of a walk.
struct Walker<'a, 'b> {
    who: &'a Credentials,
    follow: Follow,
    look: Look,
    way: &'b mut Way,
    here: &'b mut Attributes,
    found: &'b mut Attributes,
    links: u32,
    ahead: Option<Ahead>,
    /// The directory that was last taken from a lease, or remembered: what a walk needs of it is so.
    partial: Inode,
    trail: Trail,
    is_settled: bool,
}

impl Walker<'_, '_> {
    /// What was found is where the walk goes on.
    const fn enter(&mut self) {
        core::mem::swap(&mut self.here, &mut self.found);
    }
}

/// What to do after one component.
enum Step {
    /// Go on in the directory that the walk is in.
    On,
    /// The path ends with this name.
    Name(Part, Entry, Sight),
    /// The path ends in the directory that the walk is in, and a slash followed or not.
    Directory(Last, bool),
    /// The path left the instance.
    Outside,
}

/// A metadata service of this host, as far as it is seen without a message.
#[derive(Clone, Copy)]
pub(crate) struct Service<'a> {
    pub(crate) by: &'a Attachment,
    pub(crate) worker: usize,
    pub(crate) index: &'a Index,
    /// Both by their number in this process.
    pub(crate) name: u32,
}

impl Service<'_> {
    /// What is known of an entry with this key in `directory`.
    #[inline]
    pub(crate) fn entry(&self, directory: Inode, key: u128) -> Hit {
        // First: what is applied is in the index before it is pending no longer.
        if self.by.posts.is_pending(self.worker, post_key(key)) {
            return Hit::Unknown;
        }
        self.index.entry_in(directory, key)
    }
}

impl Client {
    /// Walks `at`.
    ///
    /// # Errors
    /// `ENOENT` and `ENOTDIR` for what lies before the last component, `EACCES`, `ELOOP`,
    /// `ENAMETOOLONG`, `EIO`.
    pub(crate) fn walk<'b>(
        &self,
        at: At<'_>,
        follow: Follow,
        look: Look,
        who: &Credentials,
        buffer: &'b mut PathBuffer,
    ) -> Result<Outcome<Walk<'b>>> {
        if at.is_base {
            return self.walk_nowhere(at.base, buffer);
        }
        let PathBuffer { way, met: [here, found] } = buffer;
        way.load(at.path)?;
        let mut walker = Walker {
            who,
            follow,
            look,
            way,
            here,
            found,
            links: 0,
            ahead: None,
            partial: Inode::NONE,
            trail: Trail::new(),
            is_settled: false,
        };
        let state = self.attachments.state();
        let is_recalled = self.recall(at.base, who, walker.way, walker.here);
        if is_recalled {
            walker.partial = walker.here.inode;
        } else {
            by_path(self.begin(at.base, &mut walker))?;
        }
        if !walker.here.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let step = loop {
            let Some(part) = walker.way.take() else { break Step::Directory(Last::Dot, false) };
            match self.step(&mut walker, part)? {
                Step::On => {}
                end => break end,
            }
        };
        if matches!(step, Step::Directory(..)) && walker.partial == walker.here.inode {
            by_path(self.read_attributes(walker.partial, walker.here))?;
        }
        if !is_recalled && matches!(step, Step::Name(..)) {
            let trail = (&walker.trail, state);
            self.remember(at.base, who, walker.way, trail, walker.here);
        }
        let Walker { way, here, found, is_settled, .. } = walker;
        let (way, parent, found): (&'b Way, &'b Attributes, &'b Attributes) = (way, here, found);
        Ok(match step {
            Step::Name(part, entry, seen) => {
                let found = match seen {
                    Sight::Found => Looked::Found(found),
                    Sight::Absent => Looked::Absent,
                    Sight::Unknown => Looked::Unknown,
                };
                let (last, name, slash) = (Last::Name, way.name(part), part.slash);
                Outcome::Done(Walk { parent, last, name, entry, found, slash, is_settled })
            }
            Step::Directory(last, slash) => {
                let (entry, found) = (Entry::NONE, Looked::Found(parent));
                let (name, is_settled): (&[u8], bool) = (&[], false);
                Outcome::Done(Walk { parent, last, name, entry, found, slash, is_settled })
            }
            Step::On | Step::Outside => Outcome::Outside,
        })
    }

    /// The file itself, as if it were a directory that a path ends in.
    #[cold]
    fn walk_nowhere<'b>(
        &self,
        inode: Inode,
        buffer: &'b mut PathBuffer,
    ) -> Result<Outcome<Walk<'b>>> {
        let PathBuffer { way, met: [here, _] } = buffer;
        way.clear();
        by_path(self.read_attributes(inode, here))?;
        let (parent, entry, found) = (&*here, Entry::NONE, Looked::Found(&*here));
        let (last, slash, is_settled) = (Last::Dot, false, false);
        Ok(Outcome::Done(Walk { parent, last, name: &[], entry, found, slash, is_settled }))
    }

    /// Looks at the directory where the walk begins.
    fn begin(&self, directory: Inode, walker: &mut Walker<'_, '_>) -> Result<()> {
        let Walker { look, who, way, here, ahead, trail, partial, .. } = walker;
        let Some(service) = self.service_of(directory.shard()) else {
            self.note_leases(directory.shard(), trail);
            if self.begin_far(directory, *look, who, way, ahead, here)? {
                *partial = directory;
            } else {
                trail.leave();
            }
            return Ok(());
        };
        trail.note(&service);
        if service.index.read_inode(directory, here) {
            return Ok(());
        }
        trail.leave();
        self.ask_attributes(directory, here)
    }

    fn step(&self, walker: &mut Walker<'_, '_>, part: Part) -> Result<Step> {
        self.permits(walker.here, walker.who, want::EXECUTE)?;
        let name = walker.way.name(part);
        match name {
            b"." if part.is_last => return Ok(Step::Directory(Last::Dot, part.slash)),
            b"." => return Ok(Step::On),
            b".." => return self.step_up(walker, part),
            name if name.len() > NAME_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        let entry = Entry::of(walker.here, name);
        let known = match &mut walker.ahead {
            Some(ahead) => ahead.next(walker.found),
            None => None,
        };
        let mut seen = match known {
            Some(seen) => seen,
            None => self.look_on(walker, part, &entry)?,
        };
        let is_followed = match walker.follow {
            Follow::Yes => true,
            Follow::No => !part.is_last || part.slash,
            Follow::Never => !part.is_last,
        };
        let mut looks = None;
        while seen == Sight::Found && is_followed && walker.found.is_symlink() {
            if walker.links >= SYMLINKS_FOLLOWED_MAX {
                return Err(Errno::ELOOP);
            }
            match self.step_through(walker) {
                // It went away: another may be in its place.
                Err(Errno::ESTALE) => looks.get_or_insert_with(|| Looks::new(self)).again()?,
                through => return through,
            }
            seen = self.look_on(walker, part, &entry)?;
        }
        if part.is_last {
            return Ok(Step::Name(part, entry, seen));
        }
        match seen {
            Sight::Found if walker.found.is_directory() => {
                walker.enter();
                Ok(Step::On)
            }
            Sight::Found => Err(Errno::ENOTDIR),
            Sight::Absent | Sight::Unknown => Err(Errno::ENOENT),
        }
    }

    /// Looks for a component that nothing is known of yet.
    fn look_on(&self, walker: &mut Walker<'_, '_>, part: Part, entry: &Entry) -> Result<Sight> {
        // What the last name is, is not remembered.
        let trail = (!part.is_last).then_some(&mut walker.trail);
        let asks = part.is_last && walker.look == Look::Settled;
        let settled = asks.then_some(&mut walker.is_settled);
        let directory = walker.here.inode;
        if let Some(seen) = self.look_near(directory, entry, walker.found, trail, settled)? {
            return Ok(seen);
        }
        if part.is_last && walker.look == Look::Index {
            return Ok(Sight::Unknown);
        }
        if !part.is_last {
            self.note_leases(entry.shard, &mut walker.trail);
            if self.leased_entry(entry, walker.found) {
                walker.partial = walker.found.inode;
                return Ok(Sight::Found);
            }
            walker.trail.leave();
        }
        let Walker { who, way, here, found, ahead, look, .. } = walker;
        let (names, count) = way.names(part.start, *look != Look::Index);
        // Of a last name alone a look-up says more; a directory to go through may be leased.
        let names = (names, count, if part.is_last { 2 } else { 1 });
        match self.look_far(here.inode, entry.shard, names, who, ahead, found)? {
            Some(seen) => Ok(seen),
            None => self.look_by_message(here, way.name(part), entry.shard, who, found),
        }
    }

    fn step_up(&self, walker: &mut Walker<'_, '_>, part: Part) -> Result<Step> {
        if walker.here.inode == Inode::ROOT {
            walker.way.leave_upwards(self.prefix())?;
            return Ok(Step::Outside);
        }
        walker.trail.leave();
        let parent = walker.here.parent;
        if self.leased(parent, walker.found) {
            walker.partial = parent;
        } else {
            by_path(self.read_attributes(parent, walker.found))?;
        }
        walker.enter();
        Ok(if part.is_last { Step::Directory(Last::DotDot, part.slash) } else { Step::On })
    }

    /// Goes on with the target of the symbolic link that was found in place of its name. `ESTALE`: it is
    /// gone.
    fn step_through(&self, walker: &mut Walker<'_, '_>) -> Result<Step> {
        walker.trail.leave();
        let link = walker.found.inode;
        let request = Request::ReadLink { inode: link };
        let answer = self.call(To::Shard(link.shard()), &request, walker.who);
        answer?.with(|reply| match reply {
            Reply::Bytes { bytes: [] } => Err(Errno::ENOENT),
            Reply::Bytes { bytes } => walker.way.put_before(bytes),
            _ => Err(Errno::EIO),
        })?;
        walker.links = walker.links.saturating_add(1);
        if !walker.way.is_absolute() {
            return Ok(Step::On);
        }
        if walker.way.enter(self.prefix()) {
            if self.leased(Inode::ROOT, walker.here) {
                walker.partial = Inode::ROOT;
            } else {
                by_path(self.read_attributes(Inode::ROOT, walker.here))?;
            }
            return Ok(Step::On);
        }
        walker.way.leave();
        Ok(Step::Outside)
    }

    /// The shard of the entry `name` of `parent`.
    #[inline]
    pub(crate) fn shard_of_entry(parent: &Attributes, name: &[u8]) -> ShardIndex {
        if parent.layout.spread == spread::WIDE {
            entry_shard(parent, NameHash::of(parent.inode, name))
        } else {
            entry_shard(parent, NameHash(0))
        }
    }

    /// The service of a shard, if this host has it.
    #[inline]
    pub(crate) fn service_of(&self, shard: ShardIndex) -> Option<Service<'_>> {
        let state = self.attachments.state();
        let Some(name) = self.attachments.known(shard, state) else {
            return self.find_service(shard, state);
        };
        let (by, worker) = self.attachments.served_by(name)?;
        Some(Service { by, worker, index: by.index(worker)?, name })
    }

    #[cold]
    fn find_service(&self, shard: ShardIndex, state: u32) -> Option<Service<'_>> {
        let owner = self.home_now()?.map.owner(shard);
        let by = match self.local_now(owner) {
            Some(attachment) => attachment,
            None => self.local(owner).ok()??,
        };
        let worker = worker_of_shard(shard, by.workers());
        let name = self.attachments.know(shard, state, by, worker)?;
        Some(Service { by, worker, index: by.index(worker)?, name })
    }

    /// True if the shard of a file is one of this host's: opening it costs no message.
    #[must_use]
    pub fn is_of_this_host(&self, inode: Inode) -> bool {
        self.is_near(inode.shard()) == Ok(true)
    }

    /// True if the shard is served on this host.
    ///
    /// # Errors
    /// `EIO` if no daemon of the host is there.
    pub(crate) fn is_near(&self, shard: ShardIndex) -> Result<bool> {
        if self.service_of(shard).is_some() {
            return Ok(true);
        }
        self.is_local(self.home()?.map.owner(shard))
    }

    /// The attributes of an inode as the index has them.
    pub(crate) fn attributes_in_index(&self, inode: Inode) -> Option<Attributes> {
        self.service_of(inode.shard())?.index.inode(inode)
    }

    /// The attributes of an inode, from the index or by a message.
    ///
    /// # Errors
    /// `ESTALE` if it is gone, `EIO`.
    pub(crate) fn attributes_of(&self, inode: Inode) -> Result<Attributes> {
        let mut attributes = Attributes::default();
        self.read_attributes(inode, &mut attributes)?;
        Ok(attributes)
    }

    /// As `attributes_of`, into the caller's own.
    ///
    /// # Errors
    /// As `attributes_of`.
    #[inline]
    pub(crate) fn read_attributes(&self, inode: Inode, to: &mut Attributes) -> Result<()> {
        match self.service_of(inode.shard()) {
            Some(service) if service.index.read_inode(inode, to) => Ok(()),
            _ => self.ask_attributes(inode, to),
        }
    }

    /// As the shard has them after all that was posted to it.
    ///
    /// # Errors
    /// As `attributes_of`.
    pub(crate) fn asked_attributes(&self, inode: Inode) -> Result<Attributes> {
        let mut attributes = Attributes::default();
        self.ask_attributes(inode, &mut attributes)?;
        Ok(attributes)
    }

    #[cold]
    fn ask_attributes(&self, inode: Inode, to: &mut Attributes) -> Result<()> {
        let request = Request::GetAttributes { inode };
        let answer = self.call_attributes(To::Shard(inode.shard()), &request, &own_credentials());
        *to = answer?;
        Ok(())
    }

    /// Looks for `name` in `parent`.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn look(
        &self,
        parent: &Attributes,
        name: &[u8],
        who: &Credentials,
        to: &mut Attributes,
    ) -> Result<Sight> {
        let entry = Entry::of(parent, name);
        match self.look_near(parent.inode, &entry, to, None, None)? {
            Some(seen) => Ok(seen),
            None => self.look_by_message(parent, name, entry.shard, who, to),
        }
    }

    /// What the index of this host says of an entry of `directory`, if anything. `trail` is told of
    /// each index before it is read, `settled` whether nothing was under way about the file then.
    fn look_near(
        &self,
        directory: Inode,
        entry: &Entry,
        to: &mut Attributes,
        mut trail: Option<&mut Trail>,
        settled: Option<&mut bool>,
    ) -> Result<Option<Sight>> {
        let Some(service) = self.service_of(entry.shard) else { return Ok(None) };
        if let Some(trail) = &mut trail {
            trail.note(&service);
        }
        let (inode, kind) = match service.entry(directory, entry.key) {
            Hit::Found(inode, kind) => (inode, kind),
            Hit::Absent => return Ok(Some(Sight::Absent)),
            Hit::Unknown => return Ok(None),
        };
        if let Some(settled) = settled {
            *settled = match kind & mode::TYPE {
                mode::REGULAR => self.host().is_ok_and(|host| host.vnode_find(inode).is_none()),
                mode::DIRECTORY => !self.may_have_posts(inode.shard()),
                _ => true,
            };
        }
        let is_same = inode.shard() == entry.shard;
        let of_inode = if is_same { Some(service) } else { self.service_of(inode.shard()) };
        if let Some(service) = of_inode {
            if let Some(trail) = &mut trail {
                trail.note(&service);
            }
            if service.index.read_inode(inode, to) {
                return Ok(Some(Sight::Found));
            }
        }
        if let Some(trail) = trail {
            trail.leave();
        }
        match self.ask_attributes(inode, to) {
            Err(Errno::ESTALE) => Ok(None),
            found => found.map(|()| Some(Sight::Found)),
        }
    }

    fn look_by_message(
        &self,
        parent: &Attributes,
        name: &[u8],
        shard: ShardIndex,
        who: &Credentials,
        to: &mut Attributes,
    ) -> Result<Sight> {
        let request = Request::Lookup { parent: parent.inode, name };
        let (mut looks, mut gone) = (Looks::new(self), Inode::NONE);
        loop {
            let answer = match self.call(To::Shard(shard), &request, who) {
                Err(Errno::ENOENT | Errno::ESTALE) => return Ok(Sight::Absent),
                answer => answer?,
            };
            let found = answer.with(|reply| Ok(entry_in(&reply)))?;
            match found.ok_or(Errno::EIO)? {
                Ok(attributes) => {
                    *to = attributes;
                    return Ok(Sight::Found);
                }
                // Numbers are not used twice: it leads nowhere.
                Err(inode) if inode == gone => return Ok(Sight::Absent),
                Err(inode) => match self.read_attributes(inode, to) {
                    Err(Errno::ESTALE) => gone = inode,
                    found => return found.map(|()| Sight::Found),
                },
            }
            looks.again()?;
        }
    }
}

/// What a reply says of an entry: attributes, or only the inode.
pub(crate) fn entry_in(reply: &Reply<'_>) -> Option<core::result::Result<Attributes, Inode>> {
    match *reply {
        Reply::Attributes { attributes } | Reply::Created { attributes } => Some(Ok(attributes)),
        Reply::Entry { inode, .. } => Some(Err(inode)),
        _ => None,
    }
}
