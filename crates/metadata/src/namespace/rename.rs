//! Removing, linking and renaming: preconditions and changes, as actions of a transaction.
//!
//! An operation gathers what it needs to know (here or from others), refuses in the order in which
//! Linux refuses, and passes a list of actions to `transact`, which checks all preconditions again.

use std::collections::BTreeSet;

use wire::attributes::{mode, spread, want};
use wire::name::Name;
use wire::request::rename;
use wire::{Attributes, Errno, Inode, Request, ShardIndex};

use crate::backing::Backing;
use crate::core::context::Context;
use crate::core::job::{Call, Fact, Step, Stop, Wait};
use crate::core::peer_messages::{Action, link};
use crate::core::record::Record;
use crate::core::state::reply_kind;
use crate::directories::parent_chain::ParentChain;
use crate::directories::remote_copies::{Subject, shards_of};
use crate::files::Files;
use crate::files::open_files::drop_link;
use crate::namespace::create::shard_of;
use crate::namespace::transaction::Transactions;

/// Deepest directory that is examined when one is moved: a path of one-byte names in
/// `PATH_BYTES_MAX`, made longer by renames. Protects against impossible cycles only.
const DEPTH_MAX: usize = 1 << 16;

/// Source or destination of a rename.
struct EntryLocation<'a> {
    directory: Attributes,
    shard: ShardIndex,
    name: &'a [u8],
}

impl<'a> EntryLocation<'a> {
    /// The action that changes this entry from one inode to another, each with its type bits.
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

impl Transactions {
    pub(crate) fn unlink(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let (inode, kind) = files.cx.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = files.directories.directory(&mut files.cx, call, parent)?;
        may_remove(files, call, &directory, inode)?;
        if kind & mode::TYPE == mode::DIRECTORY {
            return Err(Stop::Refused(Errno::EISDIR));
        }
        if files.cx.config.owns(inode.shard()) {
            files.cx.put(&Record::DeleteEntry { parent, name });
            files.directories.change_tally(&mut files.cx, parent, directory.layout.spread, -1, 0);
            drop_link(&mut files.cx, inode);
            files.cx.done(call, reply_kind::DONE, 0, 0);
            return Ok(());
        }
        let place = place(&files.cx, directory, name)?;
        let actions =
            [place.action((inode, kind), ABSENT), Action::Links { inode, change: link::REMOVED }];
        self.transact(files, call, &actions)
    }

    pub(crate) fn remove_directory(
        &mut self,
        files: &mut Files,
        backing: &mut Backing,
        call: &Call<'_>,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let (inode, kind) = files.cx.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = files.directories.directory(&mut files.cx, call, parent)?;
        may_remove(files, call, &directory, inode)?;
        if kind & mode::TYPE != mode::DIRECTORY {
            return Err(Stop::Refused(Errno::ENOTDIR));
        }
        let removed = existing(files, call, inode)?;
        let place = place(&files.cx, directory, name)?;
        let mut actions = vec![place.action((inode, kind), ABSENT)];
        remove_actions(files, backing, call, &removed, &mut actions)?;
        self.transact(files, call, &actions)
    }

    pub(crate) fn link(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        inode: Inode,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let name = Name::parse(name)?.bytes();
        if files.cx.state.entries.get(parent, name).is_some() {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        let directory = files.directories.directory(&mut files.cx, call, parent)?;
        files.may_change(call, &directory)?;
        let place = place(&files.cx, directory, name)?;
        let linked =
            files.directories.attributes(&mut files.cx, call, inode)?.ok_or(Errno::ENOENT)?;
        if linked.is_directory() {
            return Err(Stop::Refused(Errno::EPERM));
        }
        stays_in_project(&place.directory, &linked)?;
        let kind = linked.mode & mode::TYPE;
        let actions =
            [place.action(ABSENT, (inode, kind)), Action::Links { inode, change: link::ADDED }];
        self.transact(files, call, &actions)
    }

    pub(crate) fn rename(
        &mut self,
        files: &mut Files,
        backing: &mut Backing,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        let Request::Rename { parent, name, new_parent, new_name, flags } = *request else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let (name, new_name) = (Name::parse(name)?.bytes(), Name::parse(new_name)?.bytes());
        let is_exchange = flags & rename::EXCHANGE != 0;
        let no_replace = flags & rename::NO_REPLACE != 0;
        if flags & !(rename::EXCHANGE | rename::NO_REPLACE) != 0 || (is_exchange && no_replace) {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let old_directory = files.directories.directory(&mut files.cx, call, parent)?;
        let old = place(&files.cx, old_directory, name)?;
        let moved = files.cx.state.entries.get(parent, name).ok_or(Errno::ENOENT)?;
        let directory = files.directories.directory(&mut files.cx, call, new_parent)?;
        let shard = shard_of(&directory, new_name);
        let new = EntryLocation { directory, shard, name: new_name };
        let replaced = entry(files, backing, call, new.shard, new_parent, new_name)?;
        match replaced {
            Some(_) if no_replace => return Err(Stop::Refused(Errno::EEXIST)),
            None if is_exchange => return Err(Stop::Refused(Errno::ENOENT)),
            _ => {}
        }
        if replaced.is_some_and(|(inode, _)| inode == moved.0) {
            // Two names of one file: POSIX says that nothing changes. But one name may have taken
            // the other's inode since it was read: both are checked once more, at one moment.
            return self.transact(
                files,
                call,
                &[old.action(moved, moved), new.action(moved, moved)],
            );
        }
        let mut actions = vec![];
        if is_exchange {
            let replaced = replaced.unwrap_or(ABSENT);
            actions.push(old.action(moved, replaced));
            actions.push(new.action(replaced, moved));
            self.plan_move(files, call, &old, &new, moved, &mut actions)?;
            self.plan_move(files, call, &new, &old, replaced, &mut actions)?;
        } else {
            actions.push(old.action(moved, ABSENT));
            actions.push(new.action(replaced.unwrap_or(ABSENT), moved));
            plan_replace(files, backing, call, &new, moved, replaced, &mut actions)?;
            self.plan_move(files, call, &old, &new, moved, &mut actions)?;
        }
        if call.header.mount != 0 {
            actions.extend(carry(&old, &new));
            actions.extend(carry(&new, &old).filter(|_| is_exchange));
        }
        self.transact(files, call, &actions)
    }

    /// Actions that move an inode, besides those on the entries.
    fn plan_move(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        from: &EntryLocation<'_>,
        to: &EntryLocation<'_>,
        moved: (Inode, u32),
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        let inode = moved.0;
        may_remove(files, call, &from.directory, inode)?;
        let is_elsewhere = from.directory.inode != to.directory.inode;
        if is_elsewhere && to.directory.project != 0 {
            stays_in_project(&to.directory, &existing(files, call, inode)?)?;
        }
        if moved.1 & mode::TYPE == mode::DIRECTORY && is_elsewhere {
            // Its `..` changes, which is a write to the directory itself.
            let moved = existing(files, call, inode)?;
            files.permits(call, &moved, want::WRITE)?;
            self.plan_chain(files, call, inode, &to.directory, actions)?;
            actions.push(Action::Moved { inode, parent: to.directory.inode });
        } else if files.cx.config.owns(inode.shard()) {
            // Only for the time of change; not worth a message.
            actions.push(Action::Moved { inode, parent: Inode::NONE });
        }
        Ok(())
    }

    /// Ensures that the destination of a directory is not inside it, and stays in place meanwhile.
    fn plan_chain(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        moved: Inode,
        place: &Attributes,
        actions: &mut Vec<Action<'_>>,
    ) -> Step<()> {
        // A copy may be stale: the chain starts from the owner's answer.
        let (mut here, mut chain) = (place.inode, ParentChain::new());
        for _ in 0..DEPTH_MAX {
            if chain.comes_back(here) {
                return Err(Stop::Wait(Wait::Time(files.cx.now)));
            }
            if here == moved {
                // The chain was read step by step: perhaps it never existed at one moment. The
                // other actions do not matter for the refusal.
                actions.retain(|one| matches!(one, Action::Entry { .. } | Action::Chain { .. }));
                return self.refuse_if_so(files, call, actions, Errno::EINVAL);
            }
            if here == Inode::ROOT {
                return Ok(());
            }
            let parent = existing(files, call, here)?.parent;
            actions.push(Action::Chain { inode: here, parent });
            here = parent;
        }
        Err(Stop::Refused(Errno::ELOOP))
    }
}

/// The kernel of a mount moves what it remembers of a name with it. In a directory that may still be
/// spread it must not remember a name.
fn carry<'a>(from: &EntryLocation<'_>, to: &EntryLocation<'_>) -> Option<Action<'a>> {
    let may_be_remembered = spread::is_final(from.directory.layout.spread);
    let carry = Action::Carry { shard: to.shard.0, directory: to.directory.inode };
    (may_be_remembered && !spread::is_final(to.directory.layout.spread)).then_some(carry)
}

/// Actions on the inode that a rename replaces.
fn plan_replace(
    files: &mut Files,
    backing: &mut Backing,
    call: &Call<'_>,
    new: &EntryLocation<'_>,
    moved: (Inode, u32),
    replaced: Option<(Inode, u32)>,
    actions: &mut Vec<Action<'_>>,
) -> Step<()> {
    let Some((inode, kind)) = replaced else {
        return files.may_change(call, &new.directory);
    };
    may_remove(files, call, &new.directory, inode)?;
    let is_directory = |kind: u32| kind & mode::TYPE == mode::DIRECTORY;
    match (is_directory(moved.1), is_directory(kind)) {
        (true, false) => return Err(Stop::Refused(Errno::ENOTDIR)),
        (false, true) => return Err(Stop::Refused(Errno::EISDIR)),
        (false, false) => actions.push(Action::Links { inode, change: link::REPLACED }),
        (true, true) => {
            let removed = existing(files, call, inode)?;
            remove_actions(files, backing, call, &removed, actions)?;
        }
    }
    Ok(())
}

/// Removes a directory's inode, and freezes it wherever it may have entries.
fn remove_actions(
    files: &mut Files,
    backing: &mut Backing,
    call: &Call<'_>,
    removed: &Attributes,
    actions: &mut Vec<Action<'_>>,
) -> Step<()> {
    let (directory, inode) = (removed.inode, removed.inode);
    if inode.is_backed() {
        // No entry has this name. A service that says so has imported the directory, or cannot.
        entry(files, backing, call, ShardIndex(removed.layout.place), directory, b".")?;
    }
    let home = removed.layout.place;
    if spread::wide_below(removed.layout.spread) == 0 {
        actions.push(Action::RemoveDirectory { inode, services: 0 });
        actions.push(Action::Freeze { shard: home, directory });
        return Ok(());
    }
    let mut groups: BTreeSet<u32> =
        files.directories.entry_services(&mut files.cx, call, directory)?.into_iter().collect();
    let services = u32::try_from(groups.len()).unwrap_or(u32::MAX);
    actions.push(Action::RemoveDirectory { inode, services });
    groups.insert(files.cx.config.group(directory.shard()).0);
    if removed.layout.spread & spread::AUTO != 0 {
        groups.insert(files.cx.config.group(ShardIndex(home)).0);
    }
    let shards = shards_of(&files.cx, groups);
    actions.extend(shards.into_iter().map(|shard| Action::Freeze { shard: shard.0, directory }));
    Ok(())
}

/// The entry of any shard as it is, or was when this job queried it.
pub(crate) fn entry(
    files: &mut Files,
    backing: &mut Backing,
    call: &Call<'_>,
    shard: ShardIndex,
    parent: Inode,
    name: &[u8],
) -> Step<Option<(Inode, u32)>> {
    if files.cx.config.owns(shard) {
        backing.import(files, call, parent)?;
        return Ok(files.cx.state.entries.get(parent, name));
    }
    for fact in call.facts {
        if let Fact::Entry(other, other_name, inode, mode) = fact
            && *other == parent
            && *other_name == name
        {
            return Ok((!inode.is_none()).then_some((*inode, *mode)));
        }
        if let Fact::NotImported(other, errno) = fact
            && *other == parent
        {
            // It has been spread further: with a new copy of the directory the name is found.
            let is_elsewhere = *errno == Errno::EREMCHG;
            let anew = Stop::Wait(Wait::Time(files.cx.now));
            return Err(if is_elsewhere { anew } else { Stop::Refused(*errno) });
        }
    }
    Err(files.directories.inquire(&mut files.cx, Subject::Entry(parent, name.to_vec()), shard))
}

/// Attributes of the inode of an entry; if the inode is gone, the entry is about to go too.
fn existing(files: &mut Files, call: &Call<'_>, inode: Inode) -> Step<Attributes> {
    files
        .directories
        .attributes(&mut files.cx, call, inode)?
        .ok_or(Stop::Wait(Wait::Time(files.cx.now)))
}

/// The location of an entry, which must be in this service.
fn place<'a>(cx: &Context, directory: Attributes, name: &'a [u8]) -> Step<EntryLocation<'a>> {
    let shard = shard_of(&directory, name);
    if !cx.config.owns(shard) {
        // The request came to a shard of this service, by an older layout of the directory.
        return Err(Stop::Refused(Errno::EREMCHG));
    }
    Ok(EntryLocation { directory, shard, name })
}

/// Proceeds if the sender may remove `inode` from this directory. In a sticky directory only
/// owners may. That also holds for requests that a kernel has checked: it checked the previous
/// inode of the name.
fn may_remove(
    files: &mut Files,
    call: &Call<'_>,
    directory: &Attributes,
    inode: Inode,
) -> Step<()> {
    files.may_change(call, directory)?;
    let caller = &call.header.caller;
    if directory.mode & mode::STICKY == 0 || caller.is_owner_of_all() || caller.uid == directory.uid
    {
        return Ok(());
    }
    if existing(files, call, inode)?.uid == caller.uid {
        return Ok(());
    }
    Err(Stop::Refused(Errno::EPERM))
}

/// Files created in the directory of a project count for the project. A file that counts for
/// another is copied there, not moved, as in XFS: a moved tree would have to be walked.
fn stays_in_project(directory: &Attributes, file: &Attributes) -> Step<()> {
    let stays = directory.project == 0 || directory.project == file.project;
    if stays { Ok(()) } else { Err(Stop::Refused(Errno::EXDEV)) }
}
