//! Objects with bytes that the backing store has not, as the owner of their files' names knows them.
//!
//! The list is there when all copies of a unit are gone, and names exactly what is lost then: an
//! object is on it before the first change of it is acknowledged, and until the backing store has
//! all of it. The primary sends a notice for that, and acknowledges when the owner has stored it;
//! the next notice of an object is due when its writeback has begun.
//!
//! Stamps make late and repeated notices harmless: each says up to which change it is true. A
//! primary's notices have its own epoch, so what its predecessor still writes back is older.

use crate::operation::{Object, Stamp};
use crate::placement::UnitIndex;
use encoding::{Decode, Encode};
use std::collections::BTreeMap;
use wire::codec::{Malformed, Reader};

/// A primary's word about an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The unit.
    pub unit: UnitIndex,
    /// The object.
    pub object: Object,
    /// The change that it is about.
    pub stamp: Stamp,
    /// The change.
    pub event: Event,
}

/// The kind of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The object has bytes of this change, or of one before it, that are not in the backing store.
    Dirty,
    /// The change removed the object.
    Removed,
}

#[derive(Clone, Copy, Default, Debug)]
struct DirtyRow {
    dirty: Stamp,
    removed: Stamp,
    clean: Stamp,
}

impl DirtyRow {
    fn is_dirty(&self) -> bool {
        self.dirty > self.clean && self.dirty > self.removed
    }
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct DirtyObjects {
    rows: BTreeMap<(UnitIndex, Object), DirtyRow>,
}

impl DirtyObjects {
    /// Stores a notice: the primary is told of it with `Node::noticed`.
    pub fn notice(&mut self, notice: &Notice) {
        let row = self.rows.entry((notice.unit, notice.object)).or_default();
        let stamp = match notice.event {
            Event::Dirty => &mut row.dirty,
            Event::Removed => &mut row.removed,
        };
        *stamp = notice.stamp.max(*stamp);
    }

    /// The backing store has the bytes of all changes up to this one: what `Node::begin_writeback`
    /// answered before they were read.
    pub fn written_back(&mut self, unit: UnitIndex, object: Object, clean: Stamp) {
        let row = self.rows.entry((unit, object)).or_default();
        row.clean = clean.max(row.clean);
    }

    /// Objects of a unit whose last notice is of an earlier primary. A change that it told of may be
    /// gone with it, so the primary of this epoch is asked: `Node::clean_up_to`.
    pub fn stale(&self, unit: UnitIndex, epoch: u64) -> impl Iterator<Item = Object> {
        let rows = self.rows_of(unit);
        rows.filter(move |(_, row)| row.is_dirty() && row.dirty.epoch < epoch).map(|it| it.0)
    }

    /// The file is no more.
    pub fn forget(&mut self, unit: UnitIndex, object: Object) {
        self.rows.remove(&(unit, object));
    }

    /// Objects of a unit that would be lost without its copies.
    pub fn of(&self, unit: UnitIndex) -> impl Iterator<Item = Object> {
        self.rows_of(unit).filter(|(_, row)| row.is_dirty()).map(|it| it.0)
    }

    fn rows_of(&self, unit: UnitIndex) -> impl Iterator<Item = (Object, &DirtyRow)> {
        let least = Object { inode: wire::Inode(0), stripe: 0 };
        let rows = self.rows.range((unit, least)..).take_while(move |(place, _)| place.0 == unit);
        rows.map(|(place, row)| (place.1, row))
    }
}

impl Encode for Notice {
    /// unit:u32 object stamp event:u8
    fn encode(&self, to: &mut Vec<u8>) {
        self.unit.0.encode(to);
        self.object.encode(to);
        self.stamp.encode(to);
        to.push(match self.event {
            Event::Dirty => 0,
            Event::Removed => 1,
        });
    }
}

impl Decode for Notice {
    fn decode(from: &mut Reader<'_>) -> Result<Notice, Malformed> {
        let (unit, object) = (UnitIndex(from.u32()?), Object::decode(from)?);
        let stamp = Stamp::decode(from)?;
        let event = match from.u8()? {
            0 => Event::Dirty,
            1 => Event::Removed,
            _ => return Err(Malformed),
        };
        Ok(Notice { unit, object, stamp, event })
    }
}
