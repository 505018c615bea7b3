//! Files that may have lost changes. A file that was found in the backing store has one copy of its
//! changes, at its targets, until they are saved. When a node is replaced, changes that its targets may
//! have had are gone: the backing store would show the bytes before them. So the service records such
//! files before anything runs in that place. Bytes that are not elsewhere in the instance are an error
//! then, until the file is emptied or removed.

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
    let found = cx.state.sync_entries.keys().copied().filter(|inode| inode.is_backed());
    let may_have_changes = |inode: &Inode| {
        let Some(node) = cx.state.inodes.get(*inode) else { return false };
        let (of, is_open) = (&node.attributes, may_be_written_by(cx, host_view, &node.attributes));
        of.is_regular()
            && (is_open || cx.state.dirty_inodes.contains(inode))
            && may_be_at(cx, of, is_open, lost)
    };
    for inode in found.filter(may_have_changes).collect::<Vec<_>>() {
        if !cx.state.lost_changes.contains(&inode) {
            cx.put(&Record::PutLostChanges { inode });
        }
    }
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
