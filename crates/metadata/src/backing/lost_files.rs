//! Files with bytes in units of file data that are lost (`Request::LostFiles`): a part of the inodes for
//! each request. Which bytes of a file are in which unit is arithmetic, so neither its targets nor the
//! copies, which are gone, are asked.

use std::collections::{BTreeMap, BTreeSet};

use wire::codec::Field;
use wire::hash::unit_in_target;
use wire::limits::SLOT_BYTES;
use wire::losses::{LostFile, LostUnits, lost_units};
use wire::{Inode, Reply, Writer};

use crate::backing::dirty::is_clean_as_is;
use crate::core::context::Context;
use crate::core::job::{Call, Step};
use crate::core::table::Node;

/// Inodes that one request looks at: some 0.2 ms of the worker.
const LOOKED_MAX: usize = 4096;
/// Stripes that one request looks at before it looks at no further file.
const STRIPES_LOOKED_MAX: u64 = 1 << 16;
/// Stripes of one file that are looked at. One in 65,536 is in a unit that is lost, or more.
const STRIPES_OF_FILE_MAX: u64 = 1 << 18;
/// Most bytes of an answer: a slot less the reply's own head.
const BYTES_MAX: usize = SLOT_BYTES - 1024;

/// Lost units of each target, by number of the loss; targets that are down; and whether files that lost
/// changes are asked for.
struct LostTargets {
    per_target: u16,
    of: BTreeMap<u16, Vec<(u64, u64)>>,
    down: BTreeSet<u16>,
    asks_for_changes: bool,
}

impl LostTargets {
    fn read(per_target: u16, rows: &[u8]) -> LostTargets {
        let (of, down, asks_for_changes) = (BTreeMap::new(), BTreeSet::new(), false);
        let mut lost = LostTargets { per_target, of, down, asks_for_changes };
        for LostUnits { target, units, since } in lost_units(rows) {
            match since {
                LostUnits::OF_CHANGES => lost.asks_for_changes = true,
                LostUnits::OF_TARGET => drop(lost.down.insert(target)),
                since => lost.of.entry(target).or_default().push((units, since)),
            }
        }
        lost
    }

    /// Whether a file that is younger than the loss `known`, and older than the next one, has lost a
    /// stripe.
    fn has(&self, node: &Node, known: u64, stripe: u64, first: u16) -> bool {
        let (inode, layout) = (node.attributes.inode, &node.attributes.layout);
        let target = placement::locate::target(layout, inode, stripe, first);
        if inode.is_backed() {
            return self.down.contains(&target.0);
        }
        let Some(rows) = self.of.get(&target.0) else { return false };
        let unit = unit_in_target(inode, stripe, self.per_target);
        rows.iter().any(|(units, since)| units >> unit & 1 != 0 && known < *since)
    }
}

/// The lost bytes of a file, and the number of stripes that were looked at.
fn lost_bytes(cx: &Context, call: &Call<'_>, node: &Node, lost: &LostTargets) -> (LostFile, u64) {
    let attributes = &node.attributes;
    let (inode, size) = (attributes.inode, attributes.size);
    let mut found = LostFile::new(inode, size);
    let has_bytes = attributes.is_regular() && !attributes.is_inline() && attributes.links > 0;
    if !has_bytes || size == 0 || is_clean_as_is(cx, call, inode) {
        return (found, 0);
    }
    if lost.asks_for_changes && cx.state.lost_changes.contains(&inode) {
        // Which bytes were changed is not known.
        found.add(0, size);
        return (found, 0);
    }
    let (known, first) = (cx.state.births.loss_before(inode), cx.config.map.first_count());
    let log2 = attributes.layout.stripe_log2;
    let stripes = (((size - 1) >> log2) + 1).min(STRIPES_OF_FILE_MAX);
    for stripe in (0..stripes).filter(|&stripe| lost.has(node, known, stripe, first)) {
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
    let lost = LostTargets::read(per_target, units);
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
        let (found, more) = lost_bytes(cx, call, node, &lost);
        stripes += more;
        if !found.ranges().is_empty() {
            found.put(&mut writer);
        }
    }
    let length = writer.len();
    next.put(&mut Writer::new(&mut encoded));
    let bytes = encoded.get(..length).unwrap_or_default();
    cx.io.reply(call.ticket, &Reply::Bytes { bytes });
    Ok(())
}
