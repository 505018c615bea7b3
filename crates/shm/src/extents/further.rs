//! A table of which a process maps what is in use: its entries are taken from the lowest. The first part
//! is mapped from the start; each further one doubles the table, is mapped by the first access to it,
//! and stays.

use crate::kept::KeptFile;
use crate::once::Once;
use crate::segment::{Access, Segment, SharedEntry, errno};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::errno::{Errno, Result};

/// log2 of the number of entries of the first part: 2 MiB of headers, 1.5 MiB of states, page groups of
/// 16 GiB, hints of 131,072 extents.
const FIRST_LOG2: u32 = 16;
/// Further parts, for at most `1 << (FIRST_LOG2 + PARTS)` entries.
const PARTS: usize = 10;
/// Cells for each part. A thread finds one full, or fills one; a fork while another thread fills one
/// leaves it unusable in the child.
const CELLS: usize = 4;

/// A table of `SharedEntry`s, mapped whole, or in parts.
pub(super) struct PartedTable {
    /// All of it, or the first part.
    first: Segment,
    /// The parts behind it, unless all is mapped.
    further: Option<FurtherParts>,
}

impl PartedTable {
    /// Takes the mapping of the whole table.
    pub(super) const fn whole(segment: Segment) -> PartedTable {
        PartedTable { first: segment, further: None }
    }

    /// Maps the first part of a table with entries of `entry_bytes`.
    ///
    /// # Errors
    /// `EINVAL` if the table has too many entries; errors of the operating system.
    pub(super) fn open(file: OwnedFd, entry_bytes: usize, access: Access) -> Result<PartedTable> {
        let (first, further) = FurtherParts::open(file, entry_bytes, access)?;
        Ok(PartedTable { first, further: Some(further) })
    }

    /// The mapping of the whole table, or of its first part.
    pub(super) const fn first(&self) -> &Segment {
        &self.first
    }

    /// Length of the whole table in bytes.
    pub(super) const fn len(&self) -> usize {
        match &self.further {
            Some(further) => further.length,
            None => self.first.len(),
        }
    }

    /// The file, if parts of it are mapped.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.further.as_ref().map(|further| further.file.descriptor())
    }

    /// An entry.
    ///
    /// # Errors
    /// `EIO` for one that does not exist; errors of the operating system.
    #[inline]
    pub(super) fn entry<T: SharedEntry>(&self, number: usize) -> Result<&T> {
        match self.first.entry(number * size_of::<T>()) {
            Err(absent) => self.further.as_ref().ok_or(absent)?.entry(number),
            found => found,
        }
    }

    /// As `Segment::detach`: no part is mapped any more, nor will be.
    pub(super) fn detach(&self) {
        self.first.detach();
        if let Some(further) = &self.further {
            further.file.give_up();
            further.segments().for_each(Segment::detach);
        }
    }

    /// Has the table count no longer as memory of this process.
    pub(super) fn unmap_pages(&self) {
        self.first.unmap_pages();
        self.further.iter().flat_map(FurtherParts::segments).for_each(Segment::unmap_pages);
    }
}

/// The parts behind the first.
struct FurtherParts {
    file: KeptFile,
    access: Access,
    length: usize,
    parts: [[Once<Segment>; CELLS]; PARTS],
}

impl FurtherParts {
    /// Maps the first part of a table with entries of `entry_bytes`.
    ///
    /// # Errors
    /// `EINVAL` if the table has too many entries; errors of the operating system.
    fn open(file: OwnedFd, entry_bytes: usize, access: Access) -> Result<(Segment, FurtherParts)> {
        let length = rustix::fs::fstat(&file).map_err(errno)?.st_size;
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        if length > entry_bytes << (FIRST_LOG2 as usize + PARTS) {
            return Err(Errno::EINVAL);
        }
        let first = Segment::map(&file, length.min(entry_bytes << FIRST_LOG2), access)?;
        let parts = [const { [const { Once::new() }; CELLS] }; PARTS];
        Ok((first, FurtherParts { file: KeptFile::new(file), access, length, parts }))
    }

    /// An entry behind the first part.
    ///
    /// # Errors
    /// `EIO` for one that does not exist; errors of the operating system.
    #[cold]
    #[inline(never)]
    fn entry<T: SharedEntry>(&self, number: usize) -> Result<&T> {
        let part = (number >> FIRST_LOG2).checked_ilog2().ok_or(Errno::EIO)?;
        let first = size_of::<T>() << (FIRST_LOG2 + part);
        let cells = self.parts.get(part as usize).ok_or(Errno::EIO)?;
        let segment = match cells.iter().find_map(Once::get) {
            Some(segment) => segment,
            None => self.map(cells, first)?,
        };
        segment.entry((number * size_of::<T>()).wrapping_sub(first))
    }

    fn map<'a>(&self, cells: &'a [Once<Segment>; CELLS], first: usize) -> Result<&'a Segment> {
        let length = first.min(self.length.checked_sub(first).ok_or(Errno::EIO)?);
        let mut segment = Segment::map_part(self.file.get()?, first as u64, length, self.access)?;
        for cell in cells {
            match cell.set(segment) {
                Ok(segment) => return Ok(segment),
                Err(back) => segment = back,
            }
        }
        // Others have mapped it meanwhile.
        cells.iter().find_map(Once::get).ok_or(Errno::EIO)
    }

    /// Those that are mapped.
    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().flatten().filter_map(Once::get)
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;
    use crate::extents::{
        ExtentStates, ExtentTable, HEADER_BYTES, PAGE_GROUP_LOG2, PageSums, STATE_BYTES,
        page_groups_bytes, page_sums_bytes,
    };
    use core::sync::atomic::Ordering::SeqCst;
    use wire::Inode;
    use wire::reply::Extent;

    /// Entries in each part and on both sides of each border are those of the daemon, which maps all.
    #[test]
    fn a_table_in_parts_is_the_table() {
        const COUNT: u32 = (5 << FIRST_LOG2) / 2;
        const DEVICE: u64 = (COUNT as u64) << PAGE_GROUP_LOG2;
        let memory = |bytes: usize| Segment::nameless(c"test", bytes).expect("memory");
        let (headers, headers_file) = memory(COUNT as usize * HEADER_BYTES);
        let (entries, entries_file) = memory(COUNT as usize * STATE_BYTES);
        let (groups, groups_file) = memory(page_groups_bytes(DEVICE) as usize);
        let dup = |file: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(file, 0).expect("a descriptor");
        let sums = || PageSums::new(memory(page_sums_bytes(4096) as usize).0);
        let in_parts = || {
            let files = (dup(&entries_file), dup(&groups_file));
            ExtentStates::open_in_parts(files.0, files.1, sums()).expect("a mapping")
        };
        let table = ExtentTable::new(headers);
        let states = ExtentStates::new(entries, groups, sums());
        let own_table = ExtentTable::open_in_parts(headers_file).expect("a mapping");
        let (own_states, late) = (in_parts(), in_parts());
        assert_eq!(own_table.count(), COUNT);
        let border = 1 << FIRST_LOG2;
        let slots = [0, border - 1, border, 2 * border - 1, 2 * border, COUNT - 1];
        let extent = |slot: u32, length_log2: u8| {
            let location = u64::from(slot) << PAGE_GROUP_LOG2;
            Extent { start: 0, slot, location, length_log2, tier: Extent::MEMORY }
        };
        for round in 0..2 {
            for slot in slots {
                let (inode, short) = (Inode(u64::from(slot) + 7 + round), extent(slot, 12));
                assert!(!own_table.is(inode, &short), "slot {slot}");
                table.publish(inode, &short).expect("a slot");
                assert!(own_table.is(inode, &short), "slot {slot}");
                // A short extent's bits are in its state, a long one's in that of the page group.
                for extent in [short, extent(slot, PAGE_GROUP_LOG2 + 2)] {
                    let bits = |of: &ExtentStates| {
                        of.page_bits(&extent, 0).expect("a slot").valid.fetch_add(1, SeqCst)
                    };
                    let both = (bits(&own_states), bits(&states));
                    assert_eq!(both, (2 * round, 2 * round + 1), "{extent:?}");
                }
            }
            own_table.unmap_pages();
            own_states.unmap_pages();
        }
        assert!(!own_table.is(Inode(7), &extent(COUNT, 12)), "a slot that does not exist");
        for (slot, length_log2) in [(COUNT, 12), (u32::MAX, 12), (2 * COUNT, PAGE_GROUP_LOG2 + 1)] {
            let bits = own_states.page_bits(&extent(slot, length_log2), 0);
            assert_eq!(bits.err(), Some(Errno::EIO), "slot {slot}");
        }
        // A process that gave up the right to the memory sees zeros, and maps no more.
        own_table.detach();
        late.detach();
        for length_log2 in [12, PAGE_GROUP_LOG2 + 2] {
            let first = late.page_bits(&extent(0, length_log2), 0).expect("zeros");
            assert_eq!(first.valid.load(SeqCst), 0);
            let further = late.page_bits(&extent(border, length_log2), 0);
            assert_eq!(further.err(), Some(Errno::EACCES));
        }
        for slot in slots {
            assert!(!own_table.is(Inode(u64::from(slot) + 8), &extent(slot, 12)), "slot {slot}");
        }
    }
}
