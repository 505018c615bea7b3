//! Which losses of file data a file is younger than.
//!
//! Where bytes of files have copies, a part of a target's data (a *unit* of the crate `replicas`) may
//! lose all of them. Bytes that files had there are errors from then on. A file that was made afterwards
//! had nothing there: what it did not write is a hole. A loss has a number, the version of the table of
//! units in which it happened; the daemon tells the service (`Input::UnitsLost`).
//!
//! Inode numbers say when a file was made: after a loss the service gives higher ones, in all its shards
//! and to clients (`namespace::local_ops`). So files have no field for it, and making one costs nothing.
//! A file that has nothing on targets at some moment, because it is emptied or moves out, counts as made
//! then.
//!
//! Invariants
//! 1. No file counts as younger than it is. A service that does not know a loss yet makes files that
//!    count as older, so that holes in them are errors there; lost bytes are never read as zeros.

use std::collections::BTreeMap;

use wire::Inode;
use wire::id::{BACKED_FIRST, LOCAL_OP_SEQUENCE_FIRST};

use crate::core::context::Context;
use crate::core::record::Record;

/// The table.
#[derive(Default)]
pub(crate) struct Births {
    /// Files with these numbers of their kind, and higher ones, were made after the loss.
    pub(crate) by_number: BTreeMap<u64, u64>,
    /// Files that had nothing on targets after the loss, though their numbers are lower.
    pub(crate) emptied: BTreeMap<Inode, u64>,
}

impl Births {
    /// The last loss that the service knows; 0: none.
    pub(crate) fn newest_loss(&self) -> u64 {
        self.by_number.last_key_value().map_or(0, |(_, &loss)| loss)
    }

    /// New files have this number of their kind, or a higher one.
    pub(crate) fn number_min(&self) -> u64 {
        self.by_number.last_key_value().map_or(0, |(&number, _)| number)
    }

    /// The last loss after which the file was made, or had nothing on targets; 0: none.
    pub(crate) fn loss_before(&self, inode: Inode) -> u64 {
        let number = match inode.sequence() {
            local @ LOCAL_OP_SEQUENCE_FIRST.. => local - LOCAL_OP_SEQUENCE_FIRST,
            // It has one copy, in no unit.
            BACKED_FIRST.. => 0,
            number => number,
        };
        let made = self.by_number.range(..=number).next_back().map_or(0, |(_, &loss)| loss);
        made.max(self.emptied.get(&inode).copied().unwrap_or(0))
    }
}

/// Targets have nothing of the file, some time after this loss.
pub(crate) fn note_emptied(cx: &mut Context, inode: Inode, loss: u64) {
    if loss > cx.state.births.loss_before(inode) {
        cx.put(&Record::PutEmptied { inode, loss });
    }
}
