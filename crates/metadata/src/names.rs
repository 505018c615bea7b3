//! Removing, linking and renaming: what must hold and what is done, as actions of a transaction.
//!
//! An operation gathers what it needs to know (here or from others), refuses in the order in which
//! Linux refuses, and hands a list of actions to `transact`. What it saw is checked again there.

use std::collections::BTreeSet;

use wire::attributes::{mode, spread, want};
use wire::limits::SHARD_COUNT;
use wire::name::Name;
use wire::request::rename;
use wire::{Attributes, Errno, Inode, Request, ShardIndex};

use crate::create::shard_of;
use crate::live::{Ask, Step, Stop, Wait};
use crate::peer::{Action, link};
use crate::record::Record;
use crate::service::{Service, outcome};

/// Deepest directory that is looked at when one is moved: paths of names of one byte, in
/// `PATH_BYTES_MAX`, made longer by renames. Only against circles that can not be.
const DEPTH_MAX: usize = 1 << 16;

/// One of the two places of a rename.
struct Place<'a> {
    directory: Attributes,
    shard: ShardIndex,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    /// The entry here changes from one inode to another; type bits with each.
    fn action(&self, expect: (Inode, u32), set: (Inode, u32)) -> Action<'a> {
        Action::Entry {
            shard: self.shard.0,
            parent: self.directory.inode,
            spread: self.directory.layout.spread,
            name: self.name,
            expect: expect.0,
            expect_mode: expect.1,
            set: set.0,
            set_mode: set.1,
        }
    }
}

/// No entry.
const ABSENT: (Inode, u32) = (Inode::NONE, 0);

impl Service {
    pub(crate) fn unlink(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Step<()> {
        let (inode, kind) = self.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = self.directory(ask, parent)?;
        self.may_remove(ask, &directory, inode)?;
        if kind & mode::TYPE == mode::DIRECTORY {
            return Err(Stop::Refused(Errno::EISDIR));
        }
        if self.config.owns(inode.shard()) {
            self.put(&Record::DeleteEntry { parent, name });
            self.change_tally(parent, directory.layout.spread, -1, 0);
            self.drop_link(inode);
            self.done(ask, outcome::DONE, 0, 0);
            return Ok(());
        }
        let place = self.place(directory, name)?;
        let actions =
            [place.action((inode, kind), ABSENT), Action::Links { inode, change: link::REMOVED }];
        self.transact(ask, &actions)
    }

    pub(crate) fn remove_directory(
        &mut self,
        ask: &Ask<'_>,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let (inode, kind) = self.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = self.directory(ask, parent)?;
        self.may_remove(ask, &directory, inode)?;
        if kind & mode::TYPE != mode::DIRECTORY {
            return Err(Stop::Refused(Errno::ENOTDIR));
        }
        let removed = self.existing(ask, inode)?;
        let place = self.place(directory, name)?;
        let mut actions = vec![place.action((inode, kind), ABSENT)];
        self.remove_actions(ask, &removed, &mut actions)?;
        self.transact(ask, &actions)
    }

    pub(crate) fn link(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let name = Name::parse(name)?.bytes();
        if self.state.entries.get(parent, name).is_some() {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        let directory = self.directory(ask, parent)?;
        self.may_change(ask, &directory)?;
        let place = self.place(directory, name)?;
        let linked = self.attributes(ask, inode)?.ok_or(Errno::ENOENT)?;
        if linked.is_directory() {
            return Err(Stop::Refused(Errno::EPERM));
        }
        stays_in_project(&place.directory, &linked)?;
        let kind = linked.mode & mode::TYPE;
        let actions =
            [place.action(ABSENT, (inode, kind)), Action::Links { inode, change: link::ADDED }];
        self.transact(ask, &actions)
    }

    pub(crate) fn rename(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::Rename { parent, name, new_parent, new_name, flags } = *request else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let (name, new_name) = (Name::parse(name)?.bytes(), Name::parse(new_name)?.bytes());
        let is_exchange = flags & rename::EXCHANGE != 0;
        let no_replace = flags & rename::NO_REPLACE != 0;
        if flags & !(rename::EXCHANGE | rename::NO_REPLACE) != 0 || (is_exchange && no_replace) {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let old_directory = self.directory(ask, parent)?;
        let old = self.place(old_directory, name)?;
        let moved = self.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = self.directory(ask, new_parent)?;
        let shard = shard_of(&directory, new_name);
        let new = Place { directory, shard, name: new_name };
        let replaced = self.entry(ask, new.shard, new_parent, new_name)?;
        match replaced {
            Some(_) if no_replace => return Err(Stop::Refused(Errno::EEXIST)),
            None if is_exchange => return Err(Stop::Refused(Errno::ENOENT)),
            _ => {}
        }
        if replaced.is_some_and(|(inode, _)| inode == moved.0) {
            // Two names of one file: nothing to do, says POSIX. But the other may have become the one
            // since it was looked at: both are looked at once more, at one moment.
            return self.transact(ask, &[old.action(moved, moved), new.action(moved, moved)]);
        }
        let mut actions = vec![];
        if is_exchange {
            let replaced = replaced.unwrap_or(ABSENT);
            actions.push(old.action(moved, replaced));
            actions.push(new.action(replaced, moved));
            self.plan_move(ask, &old, &new, moved, &mut actions)?;
            self.plan_move(ask, &new, &old, replaced, &mut actions)?;
        } else {
            actions.push(old.action(moved, ABSENT));
            actions.push(new.action(replaced.unwrap_or(ABSENT), moved));
            self.plan_replace(ask, &new, moved, replaced, &mut actions)?;
            self.plan_move(ask, &old, &new, moved, &mut actions)?;
        }
        self.transact(ask, &actions)
    }

    /// What becomes of the inode that a rename replaces.
    fn plan_replace(
        &mut self,
        ask: &Ask<'_>,
        new: &Place<'_>,
        moved: (Inode, u32),
        replaced: Option<(Inode, u32)>,
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        let Some((inode, kind)) = replaced else {
            return self.may_change(ask, &new.directory);
        };
        self.may_remove(ask, &new.directory, inode)?;
        let is_directory = |kind: u32| kind & mode::TYPE == mode::DIRECTORY;
        match (is_directory(moved.1), is_directory(kind)) {
            (true, false) => return Err(Stop::Refused(Errno::ENOTDIR)),
            (false, true) => return Err(Stop::Refused(Errno::EISDIR)),
            (false, false) => actions.push(Action::Links { inode, change: link::REPLACED }),
            (true, true) => {
                let removed = self.existing(ask, inode)?;
                self.remove_actions(ask, &removed, actions)?;
            }
        }
        Ok(())
    }

    /// What it takes to move an inode from one place to another, besides the entries.
    fn plan_move(
        &mut self,
        ask: &Ask<'_>,
        from: &Place<'_>,
        to: &Place<'_>,
        moved: (Inode, u32),
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        let inode = moved.0;
        self.may_remove(ask, &from.directory, inode)?;
        let is_elsewhere = from.directory.inode != to.directory.inode;
        if is_elsewhere && to.directory.project != 0 {
            stays_in_project(&to.directory, &self.existing(ask, inode)?)?;
        }
        if moved.1 & mode::TYPE == mode::DIRECTORY && is_elsewhere {
            // Its `..` changes, which is a write to the directory itself.
            let moved = self.existing(ask, inode)?;
            self.permits(ask, &moved, want::WRITE)?;
            self.plan_chain(ask, inode, &to.directory, actions)?;
            actions.push(Action::Moved { inode, parent: to.directory.inode });
        } else if self.config.owns(inode.shard()) {
            // Only for the time of change; not worth a message.
            actions.push(Action::Moved { inode, parent: Inode::NONE });
        }
        Ok(())
    }

    /// The new place of a directory is not below it, and stays where it is meanwhile.
    fn plan_chain(
        &mut self,
        ask: &Ask<'_>,
        moved: Inode,
        place: &Attributes,
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        // A copy may be old: the chain starts from what its owner says.
        let mut here = place.inode;
        for _ in 0..DEPTH_MAX {
            if here == moved {
                // Seen one after the other: perhaps it never was so at one moment. What else would be
                // done does not count.
                actions.retain(|one| matches!(one, Action::Entry { .. } | Action::Chain { .. }));
                return self.refuse_if_so(ask, actions, Errno::EINVAL);
            }
            if here == Inode::ROOT {
                return Ok(());
            }
            let parent = self.existing(ask, here)?.parent;
            actions.push(Action::Chain { inode: here, parent });
            here = parent;
        }
        Err(Stop::Refused(Errno::ELOOP))
    }

    /// Attributes of an inode that an entry names; if it is gone the entry is going too.
    fn existing(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<Attributes> {
        self.attributes(ask, inode)?.ok_or(Stop::Wait(Wait::Time(self.live.now)))
    }

    /// The place of an entry that must be this service's.
    fn place<'a>(&self, directory: Attributes, name: &'a [u8]) -> Step<Place<'a>> {
        let shard = shard_of(&directory, name);
        if !self.config.owns(shard) {
            return Err(Stop::Stale);
        }
        Ok(Place { directory, shard, name })
    }

    /// May the sender take `inode` out of this directory? In a sticky one only owners may. That holds for
    /// whom a kernel has checked, too: it looked at what had the name then.
    fn may_remove(&mut self, ask: &Ask<'_>, directory: &Attributes, inode: Inode) -> Step<()> {
        self.may_change(ask, directory)?;
        let who = &ask.header.who;
        if directory.mode & mode::STICKY == 0 || who.is_owner_of_all() || who.uid == directory.uid {
            return Ok(());
        }
        if self.existing(ask, inode)?.uid == who.uid {
            return Ok(());
        }
        Err(Stop::Refused(Errno::EPERM))
    }

    /// Removes a directory's inode, and freezes it wherever it may have entries.
    fn remove_actions(
        &mut self,
        ask: &Ask<'_>,
        removed: &Attributes,
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        let (directory, inode) = (removed.inode, removed.inode);
        if inode.is_from_below() {
            // No entry has this name. Who says so has brought in what lies below, or can not.
            self.entry(ask, ShardIndex(removed.layout.place), directory, b".")?;
        }
        if removed.layout.spread != spread::WIDE {
            actions.push(Action::RemoveDirectory { inode, parts: 0 });
            actions.push(Action::Freeze { shard: removed.layout.place, directory });
            return Ok(());
        }
        let mut groups: BTreeSet<u32> = self.parts(ask, directory)?.into_iter().collect();
        let parts = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        actions.push(Action::RemoveDirectory { inode, parts });
        groups.insert(self.config.group(directory.shard()).0);
        for shard in 0..SHARD_COUNT {
            if groups.remove(&self.config.group(ShardIndex(shard)).0) {
                actions.push(Action::Freeze { shard, directory });
            }
        }
        Ok(())
    }
}

/// All that is made in the directory of a project counts for it. What counts for another is copied there,
/// not moved, as XFS has it: a moved tree would have to be walked.
fn stays_in_project(directory: &Attributes, file: &Attributes) -> Step<()> {
    let stays = directory.project == 0 || directory.project == file.project;
    if stays { Ok(()) } else { Err(Stop::Refused(Errno::EXDEV)) }
}
