//! Dirty names and inodes, which the backing store does not have as they are here: recorded as they
//! become dirty, listed for the writeback daemon, and cleaned by its reports. `wire::backing`
//! defines the terms.
//!
//! A report from the writeback daemon describes the backing store and is recorded as such, even if
//! the entry has changed here since. So a duplicate or late report does no harm: it names the
//! previous state of the backing store.

use core::ops::Bound;

use wire::attributes::writeback;
use wire::backing::{BackingLocation, DirtyName, DirtyStatus, Stamp, SyncState};
use wire::codec::Field;
use wire::limits::SLOT_BYTES;
use wire::{Attributes, Errno, Inode, Reply, Writer};

use crate::backing::locations::put_sync_entry;
use crate::backing::sync_state::{Location, SyncEntry};
use crate::core::context::Context;
use crate::core::effect::HostView;
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::record::Record;

/// Bytes of a list: it fits a slot together with the reply's head.
const LIST_BYTES: usize = SLOT_BYTES - 1024;

const _: () = assert!(SyncState::BYTES_MAX <= LIST_BYTES && DirtyName::BYTES_MAX <= LIST_BYTES);

fn sync_state<'a>(cx: &'a Context, call: &Call<'_>, inode: Inode) -> SyncState<'a> {
    let attributes = cx.state.inodes.get(inode).map(|node| node.attributes);
    let sync_entry = cx.state.sync_entries.get(&inode);
    SyncState {
        inode,
        attributes,
        is_written: attributes.is_some_and(|it| may_be_written(cx, call, &it)),
        now: sync_entry.and_then(|sync_entry| sync_entry.now.as_ref()).map(Location::as_location),
        next: sync_entry
            .and_then(|sync_entry| sync_entry.next.as_deref())
            .map(Location::as_location),
        partial: sync_entry
            .and_then(|sync_entry| sync_entry.partial.as_deref())
            .map(Location::as_location),
    }
}

/// True if the backing store has a file as it is here, and it cannot change without a message.
pub(crate) fn is_clean_as_is(cx: &Context, call: &Call<'_>, inode: Inode) -> bool {
    let Some(node) = cx.state.inodes.get(inode) else { return false };
    let is_reported = |sync_entry: &SyncEntry| {
        sync_entry.now.is_some() && sync_entry.next.is_none() && sync_entry.partial.is_none()
    };
    node.attributes.is_regular()
        && cx.state.sync_entries.get(&inode).is_some_and(is_reported)
        && !cx.state.dirty_inodes.contains(&inode)
        && !cx.state.lost_changes.contains(&inode)
        && !may_be_written(cx, call, &node.attributes)
}

/// True if there is a dirty file whose writeback frees space in the instance: one that is
/// closed, or has or may have a partial file.
pub(crate) fn has_dirty(cx: &Context, host_view: &dyn HostView) -> bool {
    let is_one = |directory: Inode, inode: Inode| {
        let Some(node) = cx.state.inodes.get(inode) else {
            // Another service has the inode and knows more; and a query to it does not cover
            // the names here.
            return !inode.is_none() && !cx.config.owns(inode.shard());
        };
        let policy = cx.state.inodes.get(directory).map(|node| node.attributes.layout);
        let may_be_saved = match may_be_written_by(cx, host_view, &node.attributes) {
            // Its size may still be unreported. A file with copies keeps them while it is open.
            true => cx.config.partials && (inode.is_single() || !cx.config.has_copies()),
            false => node.attributes.size > 0,
        };
        node.attributes.is_regular()
            && policy.is_none_or(|layout| layout.writeback() != writeback::NEVER)
            && may_be_saved
    };
    let mut rows = cx.state.dirty_names.behind(Inode::NONE, b"");
    let mut changed = cx.state.dirty_inodes.iter();
    rows.any(|(parent, vnode_value)| {
        let entry = cx.state.entries.get(parent, &vnode_value.name);
        entry.is_some_and(|(inode, _)| is_one(parent, inode))
    }) || changed.any(|&inode| {
        let sync_entry = cx.state.sync_entries.get(&inode);
        let location = sync_entry
            .and_then(|sync_entry| sync_entry.now.as_ref().or(sync_entry.partial.as_deref()));
        location.is_some_and(|location| is_one(location.parent, inode))
    })
}

pub(crate) fn answer_sync_state(cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
    let sync_state = sync_state(cx, call, inode);
    let location = [&sync_state.now, &sync_state.next, &sync_state.partial];
    if sync_state.attributes.is_none() && location.iter().all(|location| location.is_none()) {
        return Err(Stop::Refused(Errno::ESTALE));
    }
    let bytes = listed(SyncState::BYTES_MAX, core::iter::once(sync_state));
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

pub(crate) fn list_names(
    cx: &mut Context,
    call: &Call<'_>,
    parent: Inode,
    name: &[u8],
) -> Step<()> {
    let bytes = listed(
        DirtyName::BYTES_MAX,
        cx.state.dirty_names.behind(parent, name).map(|(parent, vnode_value)| {
            let name = &*vnode_value.name;
            let (entry, mode) = cx.state.entries.get(parent, name).unwrap_or_default();
            DirtyName { parent, name, entry, mode, backed_inode: vnode_value.inode }
        }),
    );
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

pub(crate) fn list_inodes(cx: &mut Context, call: &Call<'_>, after: Inode) -> Step<()> {
    let behind = cx.state.dirty_inodes.range((Bound::Excluded(after), Bound::Unbounded));
    let bytes = listed(SyncState::BYTES_MAX, behind.map(|&inode| sync_state(cx, call, inode)));
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

pub(crate) fn await_dirty(cx: &mut Context, call: &Call<'_>, seen: u64) -> Step<()> {
    if cx.dirty_generation == seen {
        cx.is_dirty_awaited = true;
        return Err(Stop::Wait(Wait::Dirty));
    }
    answer_dirty(cx, call.ticket);
    Ok(())
}

/// Answers a long poll for dirty names and inodes, whether there are new ones or not.
pub(crate) fn answer_dirty(cx: &mut Context, ticket: u64) {
    let inodes = cx.state.dirty_inodes.len() as u64;
    let status = DirtyStatus { number: cx.dirty_generation, names: cx.state.dirty_count, inodes };
    let mut bytes = [0; DirtyStatus::BYTES];
    status.put(&mut Writer::new(&mut bytes));
    cx.io.reply(ticket, &Reply::Bytes { bytes: &bytes });
}

pub(crate) fn writing(
    cx: &mut Context,
    inode: Inode,
    location: &BackingLocation<'_>,
) -> Result<(), Errno> {
    let node = cx.state.inodes.get(inode);
    let mut sync_entry = cx.state.sync_entries.get(&inode).cloned().unwrap_or_default();
    let mut next = Location::of(location);
    match sync_entry.now.as_ref().filter(|now| now.version == location.version) {
        // Only the location changes, not the version.
        Some(now) => (next.counts, next.stamp) = (now.counts, now.stamp),
        None => {
            let attributes = node.map(|node| &node.attributes).ok_or(Errno::ESTALE)?;
            let is_as_it_was = Stamp::of(attributes).has_contents_of(&location.stamp);
            if attributes.is_regular() && !is_as_it_was {
                return Err(Errno::EAGAIN);
            }
        }
    }
    if sync_entry.next.as_deref() != Some(&next) {
        sync_entry.next = Some(Box::new(next));
        put_sync_entry(cx, inode, &sync_entry);
    }
    Ok(())
}

pub(crate) fn wrote(
    cx: &mut Context,
    inode: Inode,
    location: &BackingLocation<'_>,
) -> Result<(), Errno> {
    let Some(sync_entry) = cx.state.sync_entries.get(&inode) else {
        let is_here = cx.state.inodes.get(inode).is_some();
        return Err(if is_here { Errno::EAGAIN } else { Errno::ESTALE });
    };
    let is_it = |known: &&Location| known.is_as(location);
    let found = match sync_entry.next.as_deref() {
        Some(next) => Some(next).filter(is_it),
        None => sync_entry.now.as_ref().filter(is_it),
    };
    let mut now = found.ok_or(Errno::EAGAIN)?.clone();
    // The version of the contents is known from `Writing` alone.
    now.stamp.changed = location.stamp.changed;
    let number = now.version.number;
    let is_committed = |partial: &Location| partial.version.number == number;
    let partial = sync_entry.partial.clone().filter(|partial| !is_committed(partial));
    let after = SyncEntry { now: Some(now), next: None, partial };
    if after != *sync_entry {
        put_sync_entry(cx, inode, &after);
        cx.note_written(inode);
    }
    Ok(())
}

pub(crate) fn not_written(cx: &mut Context, inode: Inode) -> Result<(), Errno> {
    let Some(sync_entry) = cx.state.sync_entries.get(&inode) else { return Ok(()) };
    if sync_entry.next.is_some() {
        let after = SyncEntry { next: None, ..sync_entry.clone() };
        put_or_forget(cx, inode, &after);
    }
    Ok(())
}

fn put_or_forget(cx: &mut Context, inode: Inode, sync_entry: &SyncEntry) {
    match *sync_entry == SyncEntry::default() {
        true => cx.put(&Record::DeleteSyncEntry { inode }),
        false => put_sync_entry(cx, inode, sync_entry),
    }
}

pub(crate) fn note_partial(
    cx: &mut Context,
    inode: Inode,
    is_new: bool,
    location: &BackingLocation<'_>,
) -> Result<(), Errno> {
    if cx.state.inodes.get(inode).is_none() {
        return Err(Errno::ESTALE);
    }
    let sync_entry = cx.state.sync_entries.get(&inode).cloned().unwrap_or_default();
    let is_as_before = match &sync_entry.partial {
        Some(partial) => !is_new && partial.stamp == location.stamp,
        None => {
            let counts = sync_entry.now.as_ref().map_or(0, |now| now.counts);
            is_new && location.counts <= counts
        }
    };
    if !is_as_before {
        return Err(Errno::EAGAIN);
    }
    let after = SyncEntry { partial: Some(Box::new(Location::of(location))), ..sync_entry };
    put_sync_entry(cx, inode, &after);
    Ok(())
}

pub(crate) fn forget_partial(cx: &mut Context, inode: Inode) -> Result<(), Errno> {
    if let Some(sync_entry) = cx.state.sync_entries.get(&inode)
        && sync_entry.partial.is_some()
    {
        let after = SyncEntry { partial: None, ..sync_entry.clone() };
        put_or_forget(cx, inode, &after);
    }
    Ok(())
}

pub(crate) fn gone_from_backing(cx: &mut Context, inode: Inode) -> Result<(), Errno> {
    if cx.state.sync_entries.contains_key(&inode) {
        cx.put(&Record::DeleteSyncEntry { inode });
    }
    Ok(())
}

pub(crate) fn name_written(
    cx: &mut Context,
    parent: Inode,
    name: &[u8],
    (from, to): (Inode, Inode),
) -> Result<(), Errno> {
    let location = cx.state.backed_inode(parent, name);
    if location == to {
        return Ok(());
    }
    if location != from {
        return Err(Errno::EAGAIN);
    }
    let entry = cx.state.entries.get(parent, name).map_or(Inode::NONE, |found| found.0);
    match entry == to {
        true => cx.put(&Record::DeleteDirty { parent, name }),
        false => cx.put(&Record::PutDirty { parent, name, backed_inode: to }),
    }
    Ok(())
}

/// Encodes as many items of a list as fit, each of at most `most` bytes.
pub(crate) fn listed<'a, T: Field<'a>>(most: usize, list: impl Iterator<Item = T>) -> Vec<u8> {
    let mut bytes = vec![0; LIST_BYTES];
    let mut writer = Writer::new(&mut bytes);
    for one in list {
        if writer.space_left() < most {
            break;
        }
        one.put(&mut writer);
    }
    let length = writer.len();
    bytes.truncate(length);
    bytes
}

pub(crate) fn may_be_written(cx: &Context, call: &Call<'_>, attributes: &Attributes) -> bool {
    may_be_written_by(cx, call.host_view, attributes)
}

pub(crate) fn may_be_written_by(
    cx: &Context,
    host_view: &dyn HostView,
    attributes: &Attributes,
) -> bool {
    let inode = attributes.inode;
    attributes.is_regular()
        && (cx.busy.contains_key(&inode)
            || host_view.has_writer(inode)
            || host_view.unreported(inode).is_some_and(|end| end != 0)
            || cx.state.writers_but(inode, cx.config.host).next().is_some())
}
