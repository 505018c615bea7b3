//! Units of file data that are lost, and the files that have bytes there (`Request::LostFiles`).
//!
//! A unit is a part of a target's data that has its copies together (the crate `replicas`), of which
//! each target has as many for each number of copies. Which bytes of a file are in it is known by
//! arithmetic, whether the file had any of them is not: a hole there is listed as bytes.

use crate::Inode;
use crate::codec::{Field, Malformed, Reader, Writer};

/// Ranges of one file that are listed. A list of files is to be short; a program that needs more reads
/// the file.
pub const LOST_RANGES_MAX: usize = 16;
/// Rows of `LostUnits` in a request: some 8 KiB. A target has one for each time at which it lost units of
/// one number of copies.
pub const LOST_UNITS_MAX: usize = 424;

/// How the bytes of a file are (`Request::CopyState`).
pub mod state {
    /// They have all their copies, or the only one that they should have, or the backing store has them.
    pub const IN_SYNC: u64 = 0;
    /// Some have fewer copies than they should have.
    pub const DEGRADED: u64 = 1;
    /// All daemons with copies of some of them are down.
    pub const DOWN: u64 = 2;
    /// Some are gone with all their copies, or may be.
    pub const LOST: u64 = 3;

    /// The names of the values, as `forebay layout get` shows them.
    pub const NAMES: [(&str, u64); 4] =
        [("in-sync", IN_SYNC), ("degraded", DEGRADED), ("down", DOWN), ("lost", LOST)];
}

/// Units of a target for one number of copies that were lost at the same time.
///
/// Encoded: copies (1 byte), target (2 bytes), units, since.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LostUnits {
    /// Copies that the files in these units should have.
    pub copies: u8,
    /// The target.
    pub target: u16,
    /// A bit for each of its units, the lowest for the first.
    pub units: u64,
    /// Number of the loss: files that are younger (`Request::KnownLoss`) have lost nothing.
    pub since: u64,
}

impl LostUnits {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 1 + 2 + 8 + 8;
    /// As `since`: whether a file has lost anything does not depend on its age.
    pub const OF_ALL_FILES: u64 = u64::MAX;
    /// As `since`: the target is down, so are bytes there of files with one copy (`Inode::is_single`).
    /// `copies` and `units` have no meaning.
    pub const OF_TARGET: u64 = u64::MAX - 1;
    /// As `since`: files with one copy of which changes may be lost for good are listed. Nothing else of
    /// it has a meaning.
    pub const OF_CHANGES: u64 = u64::MAX - 2;
    /// The row that asks for such files.
    pub const CHANGES: LostUnits =
        LostUnits { copies: 1, target: 0, units: 0, since: LostUnits::OF_CHANGES };
}

impl Field<'_> for LostUnits {
    fn put(&self, to: &mut Writer<'_>) {
        to.u8(self.copies);
        to.u16(self.target);
        to.u64(self.units);
        to.u64(self.since);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (copies, target) = (from.u8()?, from.u16()?);
        Ok(LostUnits { copies, target, units: from.u64()?, since: from.u64()? })
    }
}

/// A file with bytes in units that are lost.
///
/// Encoded: inode, size, whether there are more ranges (1 byte), number of ranges (1 byte), offset and
/// length of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostFile {
    /// The file.
    pub inode: Inode,
    /// Its size.
    pub size: u64,
    /// There are more ranges than are listed.
    pub has_more: bool,
    count: u8,
    ranges: [(u64, u64); LOST_RANGES_MAX],
}

impl LostFile {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 8 + 1 + 1 + 16 * LOST_RANGES_MAX;

    /// A file that has lost nothing, as far as is known.
    #[must_use]
    pub fn new(inode: Inode, size: u64) -> LostFile {
        LostFile { inode, size, ..LostFile::default() }
    }

    /// Offset and length of each listed range, in their order.
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        self.ranges.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// Adds a range that is behind all others. False: no more are listed.
    pub fn add(&mut self, offset: u64, length: u64) -> bool {
        let listed = self.ranges.get_mut(..usize::from(self.count)).unwrap_or_default();
        if let Some((start, before)) = listed.last_mut()
            && *start + *before == offset
        {
            *before += length;
            return true;
        }
        let Some(next) = self.ranges.get_mut(usize::from(self.count)) else {
            self.has_more = true;
            return false;
        };
        *next = (offset, length);
        self.count += 1;
        true
    }
}

impl Field<'_> for LostFile {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.inode.0);
        to.u64(self.size);
        to.u8(self.has_more.into());
        to.u8(self.count);
        for (offset, length) in self.ranges() {
            to.u64(*offset);
            to.u64(*length);
        }
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (inode, size) = (Inode(from.u64()?), from.u64()?);
        let has_more = match from.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed),
        };
        let count = from.u8()?;
        let mut ranges = [(0, 0); LOST_RANGES_MAX];
        for range in ranges.get_mut(..usize::from(count)).ok_or(Malformed)? {
            *range = (from.u64()?, from.u64()?);
        }
        Ok(LostFile { inode, size, has_more, count, ranges })
    }
}

/// The rows in a request.
pub fn lost_units(bytes: &[u8]) -> impl Iterator<Item = LostUnits> + '_ {
    crate::backing::listed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one_and_few_are_listed() {
        let mut file = LostFile::new(Inode(7), 1 << 20);
        assert!(file.add(0, 10) && file.add(10, 5) && file.add(20, 1));
        assert_eq!(file.ranges(), [(0, 15), (20, 1)]);
        for number in 0..20 {
            assert_eq!(file.add(100 + 10 * number, 3), number < LOST_RANGES_MAX as u64 - 2);
        }
        assert!(file.has_more && file.ranges().len() == LOST_RANGES_MAX);
        let mut bytes = [0; LostFile::BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        file.put(&mut writer);
        assert_eq!(writer.finish(), Ok(LostFile::BYTES_MAX));
        assert_eq!(LostFile::take(&mut Reader::new(&bytes)), Ok(file));
        bytes[17] = LOST_RANGES_MAX as u8 + 1;
        assert_eq!(LostFile::take(&mut Reader::new(&bytes)), Err(Malformed));
        bytes[16] = 2;
        assert_eq!(LostFile::take(&mut Reader::new(&bytes)), Err(Malformed));
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let since = LostUnits::OF_ALL_FILES;
        let one = LostUnits { copies: 3, target: 3, units: 1 << 63, since };
        let two = LostUnits { copies: 2, target: 4, units: 5, since: 9 };
        let mut bytes = [0; 2 * LostUnits::BYTES];
        let mut writer = Writer::new(&mut bytes);
        [one, two].iter().for_each(|row| row.put(&mut writer));
        assert_eq!(writer.finish(), Ok(2 * LostUnits::BYTES));
        assert!(lost_units(&bytes).eq([one, two]));
    }
}
