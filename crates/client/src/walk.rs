//! The walk: from a path to the directory that holds its last name, and to the file if it exists.
//!
//! Entries and inodes of this host's shards are read from the shared-memory index; what it does not
//! know, and what lies on other hosts, costs a message; one for another host takes what follows with
//! it (`ahead`). The search permission of each directory is checked here, by its attributes.

use placement::locate::entry_shard;
use placement::map::worker_of_shard;
use shm::index::{Hit, Index};
use wire::attributes::{spread, want};
use wire::errno::{Errno, Result};
use wire::hash::{NameHash, entry_key};
use wire::limits::{NAME_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::Client;
use crate::ahead::Ahead;
use crate::attach::Attachment;
use crate::errno::by_path;
use crate::path::{At, Follow, Outcome, Part, PathBuffer};
use crate::posts::post_key;
use crate::request::{To, own_credentials};

/// How often a name is looked up again whose inode went away meanwhile.
const LOOKS_MAX: u32 = 4;

/// How the last component is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Until it is known whether it exists.
    Surely,
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

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked {
    /// It exists.
    Found(Attributes),
    /// It does not.
    Absent,
    /// Nothing: only with `Look::Index`.
    Unknown,
}

/// Where a path led.
pub(crate) struct Walk<'b> {
    /// The directory that holds the last name; with `Dot` and `DotDot` the directory meant.
    pub(crate) parent: Attributes,
    /// What the last component is.
    pub(crate) last: Last,
    /// The last name; empty if it is no name.
    pub(crate) name: &'b [u8],
    /// What it names.
    pub(crate) found: Looked,
    /// The path ended with a slash.
    pub(crate) slash: bool,
}

impl Walk<'_> {
    /// The file; `ENOENT` if there is none, `ENOTDIR` if a slash follows what is no directory.
    pub(crate) fn existing(&self) -> Result<Attributes> {
        match self.found {
            Looked::Found(attributes) if self.slash && !attributes.is_directory() => {
                Err(Errno::ENOTDIR)
            }
            Looked::Found(attributes) => Ok(attributes),
            Looked::Absent | Looked::Unknown => Err(Errno::ENOENT),
        }
    }
}

/// The walk's result with places in the buffer instead of references into it.
struct End {
    parent: Attributes,
    last: Last,
    part: Option<Part>,
    found: Looked,
    slash: bool,
}

/// What to do after one component.
enum Step {
    /// Go on in this directory.
    On(Attributes),
    /// The path ends here.
    End(End),
    /// The path left the instance.
    Outside,
}

/// A metadata service of this host, as far as it is seen without a message.
#[derive(Clone, Copy)]
pub(crate) struct Service<'a> {
    pub(crate) by: &'a Attachment,
    pub(crate) worker: usize,
    pub(crate) index: &'a Index,
}

impl Service<'_> {
    /// What is known of an entry with this key in `directory`.
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
        buffer.load(at.path)?;
        let mut ahead = None;
        let mut here = by_path(self.begin(at.base, look, who, buffer, &mut ahead))?;
        if !here.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let mut links = 0;
        let end = loop {
            let Some(part) = buffer.take() else {
                let found = Looked::Found(here);
                break End { parent: here, last: Last::Dot, part: None, found, slash: false };
            };
            match self.step(&here, part, follow, look, who, buffer, &mut links, &mut ahead)? {
                Step::On(directory) => here = directory,
                Step::End(end) => break end,
                Step::Outside => return Ok(Outcome::Outside),
            }
        };
        let buffer: &'b PathBuffer = buffer;
        let name = end.part.map_or(&[][..], |part| buffer.name(part));
        let End { parent, last, found, slash, .. } = end;
        Ok(Outcome::Done(Walk { parent, last, name, found, slash }))
    }

    #[expect(clippy::too_many_arguments, reason = "one step of `walk`, which holds its state")]
    fn step(
        &self,
        here: &Attributes,
        part: Part,
        follow: Follow,
        look: Look,
        who: &Credentials,
        buffer: &mut PathBuffer,
        links: &mut u32,
        ahead: &mut Option<Ahead>,
    ) -> Result<Step> {
        here.permits(who, want::EXECUTE)?;
        let slash = part.slash;
        match buffer.name(part) {
            b"." if part.is_last => {
                let found = Looked::Found(*here);
                let end = End { parent: *here, last: Last::Dot, part: None, found, slash };
                return Ok(Step::End(end));
            }
            b"." => return Ok(Step::On(*here)),
            b".." => return self.step_up(here, part, buffer),
            name if name.len() > NAME_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        let found = match ahead.as_mut().and_then(Ahead::next) {
            Some(found) => found,
            None => self.look_on(here, part, look, who, buffer, ahead)?,
        };
        let is_followed = match follow {
            Follow::Yes => true,
            Follow::No => !part.is_last || slash,
            Follow::Never => !part.is_last,
        };
        match found {
            Looked::Found(link) if link.is_symlink() && is_followed => {
                *links = links.saturating_add(1);
                if *links > SYMLINKS_FOLLOWED_MAX {
                    return Err(Errno::ELOOP);
                }
                self.step_through(here, link.inode, who, buffer)
            }
            found if part.is_last => {
                let part = Some(part);
                Ok(Step::End(End { parent: *here, last: Last::Name, part, found, slash }))
            }
            Looked::Found(directory) if directory.is_directory() => Ok(Step::On(directory)),
            Looked::Found(_) => Err(Errno::ENOTDIR),
            Looked::Absent | Looked::Unknown => Err(Errno::ENOENT),
        }
    }

    /// Looks for a component that nothing is known of yet.
    fn look_on(
        &self,
        here: &Attributes,
        part: Part,
        look: Look,
        who: &Credentials,
        buffer: &PathBuffer,
        ahead: &mut Option<Ahead>,
    ) -> Result<Looked> {
        let name = buffer.name(part);
        let shard = Client::shard_of_entry(here, name);
        if let Some(found) = self.look_near(here, name, shard)? {
            return Ok(found);
        }
        if part.is_last && look == Look::Index {
            return Ok(Looked::Unknown);
        }
        let names = buffer.names(part.start, look == Look::Surely);
        match self.look_far(here.inode, shard, names, who, ahead)? {
            Some(found) => Ok(found),
            None => self.look_by_message(here, name, shard, who),
        }
    }

    fn step_up(&self, here: &Attributes, part: Part, buffer: &mut PathBuffer) -> Result<Step> {
        if here.inode == Inode::ROOT {
            buffer.leave_upwards(self.prefix())?;
            return Ok(Step::Outside);
        }
        let parent = by_path(self.attributes_of(here.parent))?;
        if !part.is_last {
            return Ok(Step::On(parent));
        }
        let (found, slash) = (Looked::Found(parent), part.slash);
        Ok(Step::End(End { parent, last: Last::DotDot, part: None, found, slash }))
    }

    /// Goes on with the target of a symbolic link in place of its name.
    fn step_through(
        &self,
        here: &Attributes,
        link: Inode,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Step> {
        let answer = self.call(To::Shard(link.shard()), &Request::ReadLink { inode: link }, who);
        by_path(answer)?.with(|reply| match reply {
            Reply::Bytes { bytes: [] } => Err(Errno::ENOENT),
            Reply::Bytes { bytes } => buffer.put_before(bytes),
            _ => Err(Errno::EIO),
        })?;
        if !buffer.is_absolute() {
            return Ok(Step::On(*here));
        }
        if buffer.enter(self.prefix()) {
            return Ok(Step::On(by_path(self.attributes_of(Inode::ROOT))?));
        }
        buffer.leave();
        Ok(Step::Outside)
    }

    /// The shard of the entry `name` of `parent`.
    pub(crate) fn shard_of_entry(parent: &Attributes, name: &[u8]) -> ShardIndex {
        if parent.layout.spread == spread::WIDE {
            entry_shard(parent, NameHash::of(parent.inode, name))
        } else {
            entry_shard(parent, NameHash(0))
        }
    }

    /// The service of a shard, if this host has it.
    pub(crate) fn service_of(&self, shard: ShardIndex) -> Option<Service<'_>> {
        let owner = self.home_now()?.map.owner(shard);
        let by = match self.local_now(owner) {
            Some(attachment) => attachment,
            None => self.local(owner).ok()??,
        };
        let worker = worker_of_shard(shard, by.workers());
        Some(Service { by, worker, index: by.index(worker)? })
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
        match self.attributes_in_index(inode) {
            Some(attributes) => Ok(attributes),
            None => {
                let request = Request::GetAttributes { inode };
                self.call_attributes(To::Shard(inode.shard()), &request, &own_credentials())
            }
        }
    }

    /// Looks for `name` in `parent`.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn look(
        &self,
        parent: &Attributes,
        name: &[u8],
        look: Look,
        who: &Credentials,
    ) -> Result<Looked> {
        let shard = Client::shard_of_entry(parent, name);
        match self.look_near(parent, name, shard)? {
            Some(found) => Ok(found),
            None if look == Look::Index => Ok(Looked::Unknown),
            None => self.look_by_message(parent, name, shard, who),
        }
    }

    /// What the index of this host says of `name`, if anything.
    fn look_near(
        &self,
        parent: &Attributes,
        name: &[u8],
        shard: ShardIndex,
    ) -> Result<Option<Looked>> {
        let Some(service) = self.service_of(shard) else { return Ok(None) };
        match service.entry(parent.inode, entry_key(parent.inode, name)) {
            Hit::Absent => Ok(Some(Looked::Absent)),
            Hit::Found(inode, _) => match self.attributes_of(inode) {
                Err(Errno::ESTALE) => Ok(None),
                found => found.map(|found| Some(Looked::Found(found))),
            },
            Hit::Unknown => Ok(None),
        }
    }

    fn look_by_message(
        &self,
        parent: &Attributes,
        name: &[u8],
        shard: ShardIndex,
        who: &Credentials,
    ) -> Result<Looked> {
        let request = Request::Lookup { parent: parent.inode, name };
        for _ in 0..LOOKS_MAX {
            let answer = match self.call(To::Shard(shard), &request, who) {
                Err(Errno::ENOENT | Errno::ESTALE) => return Ok(Looked::Absent),
                answer => answer?,
            };
            let found = answer.with(|reply| Ok(entry_in(&reply)))?;
            match found.ok_or(Errno::EIO)? {
                Ok(attributes) => return Ok(Looked::Found(attributes)),
                Err(inode) => match self.attributes_of(inode) {
                    Err(Errno::ESTALE) => {}
                    found => return found.map(Looked::Found),
                },
            }
        }
        Ok(Looked::Absent)
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
