//! Spreading a directory over all services while it is used.
//!
//! The spread of a directory (`wire::attributes::spread`) says of each name where it is: names whose
//! hash is in the part that is spread are at the shard of the hash, the others at home. A step makes
//! that part larger, in one transaction of the home's service:
//!
//! - `Give` at home: the names that leave, and all others of the directory there, are held, then gone
//! - `Take` at each service that gets some of them
//! - `Widen` at the service of the directory's inode, after it has revoked all leases and copies
//!
//! So each name is at one service at any moment, and the layout that says where changes at the same
//! moment. The coordinator is the home: what was held there is free when it has decided. A request
//! that was sent by the layout from before is refused (EREMCHG, `Context::is_elsewhere`); its sender
//! reads the layout anew, which waits until the inode's service has the decision. An attempt that is
//! not decided within `Config::widen_nanos` is given up, so nobody waits longer at home for a service
//! that is down.
//!
//! Inodes stay where they are. While a directory is at home or in part, no kernel behind a mount
//! remembers a name of it (`Files::names_may_stay`): the service that a name goes to would not know.
//! Only with a rename out of another directory a kernel takes along what it remembers of the name, for
//! the rest of its validity: until then the directory is not spread (`Action::Carry`).

use std::collections::BTreeMap;

use wire::attributes::{mode, spread};
use wire::codec::Field;
use wire::hash::NameHash;
use wire::{Attributes, Inode, Reader, ShardIndex};

use crate::core::coding::Put;
use crate::core::config::Group;
use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::keys::{Hold, Key};
use crate::core::peer_messages::Action;
use crate::core::record::Record;
use crate::core::state::Tally;
use crate::core::table::RemoteTally;
use crate::files::Files;
use crate::files::new_inode::note_empty;
use crate::namespace::transaction::{CHANGED, HELD, Transactions};

/// A transaction takes as many steps as move this part of the entries with which a directory begins to be
/// spread, and at most `NAMES` names, if it is more than one: about a millisecond of the home's worker.
const PART: u64 = 4;
const NAMES: u64 = 1024;
/// Most names that one step moves: eight milliseconds of the home's worker.
const NAMES_MAX: u64 = 8 * NAMES;
/// Most bytes of the names that a transaction moves to one service. Their records there take up to 1.6
/// times as much (`Record::PutEntry`), and a step of a service has 256 KiB of its log.
const BYTES_MAX: usize = 128 << 10;
/// Bytes of a name beside the name itself.
const MOVED_BYTES: usize = 8 + 4 + 4;

/// A name that changes its service, as `Action::Take` has it.
pub(crate) struct Moved<'a> {
    pub(crate) inode: Inode,
    mode: u32,
    name: &'a [u8],
}

impl Moved<'_> {
    fn encode(&self, to: &mut Vec<u8>) {
        self.inode.append_to(to);
        self.mode.append_to(to);
        self.name.append_to(to);
    }

    /// The names of a list; stops at the first that is malformed.
    pub(crate) fn all(bytes: &[u8]) -> impl Iterator<Item = Moved<'_>> {
        let mut reader = Reader::new(bytes);
        core::iter::from_fn(move || {
            let (inode, mode) = (Inode(reader.u64().ok()?), u32::take(&mut reader).ok()?);
            Some(Moved { inode, mode, name: reader.bytes().ok()? })
        })
    }
}

/// The next step of a directory: its spread afterwards, and the names for each other service.
struct NextSpread {
    to: u8,
    names: BTreeMap<Group, (ShardIndex, Vec<u8>)>,
}

impl Transactions {
    /// Spreads a directory of which this service is the home by one step, if it is not wide yet.
    pub(crate) fn widen(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        directory: Inode,
    ) -> Step<()> {
        let found = match files.directories.directory(&mut files.cx, call, directory) {
            Err(Stop::Refused(_)) => {
                files.directories.widening.end(directory);
                return Ok(());
            }
            found => found?,
        };
        if files.caches.remote.may_be_watched_since_before(&files.cx)
            || files.caches.remote.may_be_remembered(&files.cx)
            || files.directories.widening.is_held_off(&files.cx, directory)
        {
            // The next attempt may be later.
            return Ok(());
        }
        let (from, home) = (found.layout.spread, ShardIndex(found.layout.place));
        let tally = files.cx.state.tallies.get(&directory).copied().unwrap_or_default();
        if spread::is_final(from) || tally.version == 0 || !files.cx.config.owns(home) {
            files.directories.widening.end(directory);
            return Ok(());
        }
        if tally.spread != from {
            // The inode's service has yet to hear of the last step.
            return Err(Stop::Wait(Wait::Time(files.cx.now)));
        }
        let Some(plan) = plan(&files.cx, directory, from) else {
            // Too many names for one step.
            files.directories.widening.end(directory);
            return Ok(());
        };
        let to = plan.to;
        let mut groups = Vec::new();
        plan.names.keys().for_each(|group| group.0.append_to(&mut groups));
        let give = Action::Give { shard: home.0, directory, from, to };
        let takes = plan.names.values();
        let takes =
            takes.map(|(shard, names)| Action::Take { shard: shard.0, directory, to, names });
        let widen = Action::Widen { inode: directory, from, to, groups: &groups };
        let actions: Vec<Action<'_>> = [give].into_iter().chain(takes).chain([widen]).collect();
        self.transact(files, call, &actions)
    }
}

fn plan(cx: &Context, directory: Inode, from: u8) -> Option<NextSpread> {
    let mut plan = NextSpread { to: from, names: BTreeMap::new() };
    let (mut count, enough) = (0, cx.config.widen_entries.div_ceil(PART).min(NAMES));
    let mut bytes = 0;
    for step in spread::steps(from)..spread::STEPS {
        let to = spread::after_steps(step + 1);
        let (mut more, mut more_bytes) = (0, 0);
        for (_, moved) in given(cx, directory, plan.to, to) {
            (more, more_bytes) = (more + 1, more_bytes + MOVED_BYTES + moved.name.len());
        }
        let is_enough = count + more > enough || bytes + more_bytes > BYTES_MAX;
        if step > spread::steps(from) && is_enough {
            break;
        }
        (count, bytes, plan.to) = (count + more, bytes + more_bytes, to);
    }
    for (hash, name) in given(cx, directory, from, plan.to) {
        let shard = hash.wide_shard();
        let list = plan.names.entry(cx.config.group(shard)).or_insert((shard, Vec::new()));
        name.encode(&mut list.1);
    }
    let bytes = plan.names.values().map(|(_, names)| names.len()).max().unwrap_or(0);
    (count <= NAMES_MAX && bytes <= BYTES_MAX).then_some(plan)
}

/// Hashes of the part by which a directory of the spread `from` becomes one of the spread `to`: the
/// first and the last.
const fn hashes_between(from: u8, to: u8) -> (u64, u64) {
    let first = NameHash::first_of(spread::wide_below(from));
    (first, NameHash::first_of(spread::wide_below(to)).saturating_sub(1))
}

/// Names of a directory that leave this service, its home, between two spreads.
fn given(
    cx: &Context,
    directory: Inode,
    from: u8,
    to: u8,
) -> impl Iterator<Item = (NameHash, Moved<'_>)> {
    let (first, last) = hashes_between(from, to);
    let all = cx.state.entries.range(directory, first, last);
    let leaving = all.filter(|(hash, _)| !cx.config.owns(hash.wide_shard()));
    leaving.map(|(hash, entry)| {
        (hash, Moved { inode: entry.inode, mode: entry.mode, name: &entry.name })
    })
}

/// Whether names of `directory` can be held here: none is held, and the directory is not being removed.
fn check_free(cx: &Context, directory: Inode, id: (u32, u64)) -> Step<()> {
    let is_free = !cx.keys.has_entry_of(directory, id)
        && cx.keys.may(id, &Key::Frozen(directory), Hold::Shared);
    if is_free { Ok(()) } else { Err(Stop::Refused(HELD)) }
}

/// Checks one of the actions of a step, or notes that none may begin; changes nothing.
pub(crate) fn check_step(files: &mut Files, action: &Action<'_>, id: (u32, u64)) -> Step<()> {
    let cx = &files.cx;
    match *action {
        Action::Give { directory, from, .. } => {
            check_free(cx, directory, id)?;
            let is_it = cx.state.tallies.get(&directory).is_some_and(|tally| tally.spread == from);
            if is_it { Ok(()) } else { Err(Stop::Refused(CHANGED)) }
        }
        Action::Take { directory, names, .. } => {
            check_free(cx, directory, id)?;
            let is_there = |one: Moved<'_>| cx.state.entries.get(directory, one.name).is_some();
            if Moved::all(names).any(is_there) { Err(Stop::Refused(CHANGED)) } else { Ok(()) }
        }
        Action::Widen { inode, from, .. } => {
            let known = cx.state.inodes.get(inode).map(|node| &node.attributes);
            let is_it =
                |it: &Attributes| it.is_directory() && it.links != 0 && it.layout.spread == from;
            if !known.is_some_and(is_it) {
                return Err(Stop::Refused(CHANGED));
            }
            files.leases.revoke(&mut files.cx, inode)
        }
        Action::Carry { directory, .. } => {
            hold_off(files, directory);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// From now on the index does not answer for the names that leave or come, also where it is complete.
pub(crate) fn hide_moved(files: &mut Files, action: &Action<'_>) {
    let key = |directory, name: &[u8]| wire::hash::entry_key(directory, name);
    let keys: Vec<u128> = match *action {
        Action::Give { directory, from, to, .. } => {
            let leaving = given(&files.cx, directory, from, to);
            leaving.map(|(_, moved)| key(directory, moved.name)).collect()
        }
        Action::Take { directory, names, .. } => {
            Moved::all(names).map(|moved| key(directory, moved.name)).collect()
        }
        _ => return,
    };
    keys.into_iter().for_each(|key| files.cx.io.index(IndexOp::ForgetEntry { key }));
}

/// `Action::Carry`: a directory is not spread for as long as a kernel remembers a name in it.
fn hold_off(files: &mut Files, directory: Inode) {
    let cx = &mut files.cx;
    if cx.state.sequence_next == 0 {
        // The next start must know that it is not the first (`RemoteMounts::begin_remote_mounts`).
        cx.new_sequence();
    }
    files.directories.widening.hold_off(cx, directory);
}

/// Applies one of the checked actions of a step.
pub(crate) fn commit_step(files: &mut Files, action: &Action<'_>) {
    match *action {
        Action::Give { directory, from, to, .. } => give(files, directory, from, to),
        Action::Take { directory, to, names, .. } => take(files, directory, to, names),
        Action::Widen { inode, to, groups, .. } => widen_inode(&mut files.cx, inode, to, groups),
        _ => {}
    }
}

fn give(files: &mut Files, directory: Inode, from: u8, to: u8) {
    let cx = &mut files.cx;
    let (mut entries, mut directories) = (0, 0);
    for (_, moved) in given(cx, directory, from, to) {
        entries += 1;
        directories += u64::from(moved.mode & mode::TYPE == mode::DIRECTORY);
    }
    for shard in spread::wide_below(from)..spread::wide_below(to) {
        let (first, end) = (NameHash::first_of(shard), NameHash::first_of(shard + 1));
        let has_names = cx.state.entries.range(directory, first, end - 1).next().is_some();
        if has_names && !cx.config.owns(ShardIndex(shard)) {
            cx.put(&Record::DeleteEntries { directory, first, last: end - 1 });
        }
    }
    let old = cx.state.tallies.get(&directory).copied().unwrap_or_default();
    let tally = Tally {
        spread: to,
        version: old.version + 1,
        entries: old.entries.saturating_sub(entries),
        directories: old.directories.saturating_sub(directories),
        modified: old.modified,
    };
    files.directories.put_tally(cx, directory, &tally);
    match spread::is_wide(to) {
        true => files.directories.widening.end(directory),
        false => files.directories.widening.go_on(cx, directory),
    }
}

fn take(files: &mut Files, directory: Inode, to: u8, names: &[u8]) {
    let cx = &mut files.cx;
    // The index is complete afterwards if it can be.
    note_empty(cx, directory);
    let (mut entries, mut directories) = (0, 0);
    for Moved { inode, mode: kind, name } in Moved::all(names) {
        let is_directory = kind & mode::TYPE == mode::DIRECTORY;
        (entries, directories) = (entries + 1, directories + u64::from(is_directory));
        cx.put(&Record::PutEntry { parent: directory, name, inode, mode: kind });
    }
    // No time: nothing was created or removed.
    let old = cx.state.tallies.get(&directory).copied().unwrap_or_default();
    let tally = Tally {
        spread: to,
        version: old.version + 1,
        entries: old.entries + entries,
        directories: old.directories + directories,
        modified: old.modified,
    };
    files.directories.put_tally(cx, directory, &tally);
}

/// The layout of a directory, and the services that may have entries of it since.
fn widen_inode(cx: &mut Context, inode: Inode, to: u8, groups: &[u8]) {
    let Some(node) = cx.state.inodes.get(inode) else { return };
    let mut attributes = node.attributes;
    let known: Vec<u32> = node.tallies.iter().map(|tally| tally.group).collect();
    let own = cx.config.own_group().0;
    let mut reader = Reader::new(groups);
    let groups = core::iter::from_fn(|| u32::take(&mut reader).ok());
    for group in groups.filter(|group| *group != own && !known.contains(group)) {
        let nothing_yet = RemoteTally { group, ..RemoteTally::default() };
        cx.put(&nothing_yet.record(inode));
    }
    attributes.layout.spread = to;
    cx.put(&Record::PutAttributes { attributes });
}

impl Context {
    /// True if a name that is not here is at another service, to which its directory was spread.
    pub(crate) fn is_elsewhere(&self, parent: Inode, name: &[u8]) -> bool {
        if self.config.spread & spread::AUTO == 0 {
            return false;
        }
        let Some(tally) = self.state.tallies.get(&parent) else { return false };
        if tally.spread & spread::AUTO == 0 {
            return false;
        }
        let shard = NameHash::of(parent, name).wide_shard();
        shard.0 < spread::wide_below(tally.spread)
            && !self.config.owns(shard)
            && self.state.entries.get(parent, name).is_none()
    }
}

impl Files {
    /// True if a kernel behind a mount may remember names of a directory, as far as is known here: their
    /// service does not change.
    pub(crate) fn names_may_stay(&self, directory: Inode) -> bool {
        let known = self.directories.known_directory(&self.cx, directory);
        let tally = || self.cx.state.tallies.get(&directory).map(|tally| tally.spread);
        let spread = known.map(|known| known.layout.spread).or_else(tally);
        spread::is_final(spread.unwrap_or(self.cx.config.spread))
    }
}
