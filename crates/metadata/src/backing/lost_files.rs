//! Files with bytes in units of file data that are lost (`Request::LostFiles`): a part of the inodes for
//! each request; and whether a single one has bytes there (`Request::CopyState`). Which bytes of a file
//! are in which unit is arithmetic, so neither its targets nor the copies, which are gone, are asked.

use std::collections::{BTreeMap, BTreeSet};

use wire::codec::Field;
use wire::hash::unit_in_target;
use wire::limits::SLOT_BYTES;
use wire::losses::{LostFile, LostUnits, lost_units, state};
use wire::{Errno, Inode, Reply, Writer};

use crate::backing::dirty::is_clean_as_is;
use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop};
use crate::core::table::Node;

/// Inodes that one request looks at: some 0.2 ms of the worker.
const LOOKED_MAX: usize = 4096;
/// Stripes that one request looks at before it looks at no further file.
const STRIPES_LOOKED_MAX: u64 = 1 << 16;
/// Stripes of one file that are looked at. One in 65,536 is in a unit that is lost, or more.
const STRIPES_OF_FILE_MAX: u64 = 1 << 18;
/// Most bytes of an answer: a slot less the reply's own head.
const BYTES_MAX: usize = SLOT_BYTES - 1024;

/// Units of file data that lack copies, as a daemon knows them.
#[derive(Clone, Default, Debug)]
pub struct LackingUnits {
    /// Units of each target for one number of copies.
    pub per_target: u16,
    /// Those of which all copies are lost, and files that lost changes.
    pub gone: Vec<LostUnits>,
    /// Those of which all daemons with copies are down, and targets that are.
    pub down: Vec<LostUnits>,
    /// Those with fewer copies than they should have.
    pub degraded: Vec<LostUnits>,
}

/// Lost units of each number of copies and target, by number of the loss; targets that are down; and
/// whether files that lost changes are asked for.
struct LostTargets {
    per_target: u16,
    of: BTreeMap<(u8, u16), Vec<(u64, u64)>>,
    down: BTreeSet<u16>,
    asks_for_changes: bool,
}

impl LostTargets {
    fn new(per_target: u16, rows: impl Iterator<Item = LostUnits>) -> LostTargets {
        let (of, down, asks_for_changes) = (BTreeMap::new(), BTreeSet::new(), false);
        let mut lost = LostTargets { per_target, of, down, asks_for_changes };
        for LostUnits { copies, target, units, since } in rows {
            match since {
                LostUnits::OF_CHANGES => lost.asks_for_changes = true,
                LostUnits::OF_TARGET => drop(lost.down.insert(target)),
                since => lost.of.entry((copies, target)).or_default().push((units, since)),
            }
        }
        lost
    }

    /// Whether there is no unit or target of which files have stripes.
    fn has_none(&self) -> bool {
        self.of.is_empty() && self.down.is_empty()
    }

    /// Whether a file with so many copies that is younger than the loss `known`, and older than the next
    /// one, has lost a stripe.
    fn has(&self, node: &Node, (copies, known): (u8, u64), stripe: u64, first: u16) -> bool {
        let (inode, layout) = (node.attributes.inode, &node.attributes.layout);
        let target = placement::locate::target(layout, inode, stripe, first);
        if inode.is_single() {
            return self.down.contains(&target.0);
        }
        let Some(rows) = self.of.get(&(copies, target.0)) else { return false };
        let unit = unit_in_target(inode, stripe, self.per_target);
        rows.iter().any(|(units, since)| units >> unit & 1 != 0 && known < *since)
    }
}

/// The lost bytes of a file, whatever the backing store has of it, and the number of stripes that were
/// looked at.
fn lost_bytes(cx: &Context, node: &Node, lost: &LostTargets) -> (LostFile, u64) {
    let attributes = &node.attributes;
    let (inode, size) = (attributes.inode, attributes.size);
    let mut found = LostFile::new(inode, size);
    let has_bytes = attributes.is_regular() && !attributes.is_inline() && attributes.links > 0;
    if !has_bytes || size == 0 {
        return (found, 0);
    }
    if lost.asks_for_changes && cx.state.lost_changes.contains(&inode) {
        // Which bytes were changed is not known.
        found.add(0, size);
        return (found, 0);
    }
    if lost.has_none() {
        return (found, 0);
    }
    let age = (inode.copies_in(cx.config.copies), cx.state.births.loss_before(inode));
    let first = cx.config.map.first_count();
    let log2 = attributes.layout.stripe_log2;
    let stripes = (((size - 1) >> log2) + 1).min(STRIPES_OF_FILE_MAX);
    for stripe in (0..stripes).filter(|&stripe| lost.has(node, age, stripe, first)) {
        let start = stripe << log2;
        if !found.add(start, (size - start).min(1 << log2)) {
            break;
        }
    }
    (found, stripes)
}

/// Answers with the files from `from` on, and with the inode behind those that were looked at.
pub(crate) fn list_lost(
    cx: &mut Context,
    call: &Call<'_>,
    from: Inode,
    (per_target, units): (u16, &[u8]),
) -> Step<()> {
    let lost = LostTargets::new(per_target, lost_units(units));
    let mut encoded = vec![0; BYTES_MAX];
    let mut writer = Writer::new(&mut encoded);
    // Its bytes are written when it is known.
    Inode::NONE.put(&mut writer);
    let (mut next, mut stripes) = (Inode::NONE, 0);
    for (looked, node) in cx.state.inodes.iter_from(from).enumerate() {
        let is_over = looked == LOOKED_MAX || stripes >= STRIPES_LOOKED_MAX;
        if is_over || writer.space_left() < LostFile::BYTES_MAX {
            next = node.attributes.inode;
            break;
        }
        let (found, more) = lost_bytes(cx, node, &lost);
        stripes += more;
        if !found.ranges().is_empty() && !is_clean_as_is(cx, call, found.inode) {
            found.put(&mut writer);
        }
    }
    let length = writer.len();
    next.put(&mut Writer::new(&mut encoded));
    let bytes = encoded.get(..length).unwrap_or_default();
    cx.io.reply(call.ticket, &Reply::Bytes { bytes });
    Ok(())
}

/// Answers how the bytes of a file are, by what the daemon knows of units and targets now.
pub(crate) fn answer_copy_state(cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
    let node = cx.state.inodes.get(inode).ok_or(Stop::Refused(Errno::ESTALE))?;
    let LackingUnits { per_target, gone, down, degraded } =
        call.host_view.lacking_units().unwrap_or_default();
    let has_some = |rows: Vec<LostUnits>| {
        let lost = LostTargets::new(per_target, rows.into_iter());
        !lost_bytes(cx, node, &lost).0.ranges().is_empty()
    };
    let is_below = is_clean_as_is(cx, call, inode);
    let value = if !is_below && has_some(gone) {
        state::LOST
    } else if !is_below && has_some(down) {
        state::DOWN
    } else if has_some(degraded) {
        state::DEGRADED
    } else {
        state::IN_SYNC
    };
    cx.io.reply(call.ticket, &Reply::Number { value });
    Ok(())
}
