//! Files that may have lost changes. A file of which there is one copy (`Inode::is_single`) has its
//! changes at its targets alone until they are saved; without a backing store that is all of it. When a
//! node is replaced, changes that its targets may have had are gone: the backing store would show the
//! bytes before them, and without it there would be holes. So the service records such files before
//! anything runs in that place. Bytes that are not elsewhere in the instance are an error then, until the
//! file is emptied or removed.

use std::ops::Range;

use placement::locate::{target, targets};
use wire::attributes::flag;
use wire::{Attributes, DaemonIndex, Inode};

use crate::backing::dirty::may_be_written_by;
use crate::core::context::Context;
use crate::core::effect::HostView;
use crate::core::record::Record;

/// Stripes of a file that are looked at; a longer file is taken to have some at each of its targets.
const STRIPES_MAX: u64 = 4096;

/// Targets are gone with all that they had: records the files that may have changes there.
pub(crate) fn note_lost_changes(cx: &mut Context, lost: &Range<u16>, host_view: &dyn HostView) {
    let files = cx.state.inodes.iter_from(Inode::NONE).map(|node| &node.attributes);
    let may_have_changes = |of: &&Attributes| {
        let is_open = || may_be_written_by(cx, host_view, of);
        of.inode.is_single()
            && of.is_regular()
            && (has_changes(cx, of) || may_have_more(cx, of) && is_open())
            && may_be_at(cx, of, is_open(), lost)
    };
    let found: Vec<Inode> = files.filter(may_have_changes).map(|of| of.inode).collect();
    for inode in found {
        if !cx.state.lost_changes.contains(&inode) {
            cx.put(&Record::PutLostChanges { inode });
        }
    }
}

/// Whether targets have bytes of a file that the backing store has not.
fn has_changes(cx: &Context, of: &Attributes) -> bool {
    let sync_entry = cx.state.sync_entries.get(&of.inode);
    match sync_entry.is_some_and(|entry| entry.now.is_some()) || of.inode.is_backed() {
        true => sync_entry.is_some() && cx.state.dirty_inodes.contains(&of.inode),
        false => of.size > 0 && !of.is_inline(),
    }
}

/// Whether targets get bytes of a file that is open, or will be told before they do.
fn may_have_more(cx: &Context, of: &Attributes) -> bool {
    !of.is_inline() && (!of.inode.is_backed() || cx.state.sync_entries.contains_key(&of.inode))
}

/// Whether bytes of a file may be at one of these targets. An open file may be longer than is known.
fn may_be_at(cx: &Context, of: &Attributes, is_open: bool, at: &Range<u16>) -> bool {
    let (layout, inode, first) = (&of.layout, of.inode, cx.config.map.first_count());
    let is_there = |target: DaemonIndex| at.contains(&target.0);
    if layout.flags & flag::SHORT != 0 {
        return is_there(target(layout, inode, 0, first));
    }
    let stripes = of.size.div_ceil(1 << layout.stripe_log2);
    match is_open || stripes > STRIPES_MAX {
        true => targets(layout, inode, first).any(is_there),
        false => (0..stripes).any(|stripe| is_there(target(layout, inode, stripe, first))),
    }
}

/// A file is emptied: nothing of it is missing any more.
pub(crate) fn forget_lost_changes(cx: &mut Context, inode: Inode) {
    if cx.state.lost_changes.contains(&inode) {
        cx.put(&Record::DeleteLostChanges { inode });
    }
}
