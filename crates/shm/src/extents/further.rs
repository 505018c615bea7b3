//! A table of slots of which a process maps what is in use: slots are taken from the lowest. The first
//! part is mapped from the start; each further one doubles the table, is mapped by the first access
//! to it, and stays.

use crate::kept::KeptFile;
use crate::once::Once;
use crate::segment::{Access, Segment, SharedEntry, errno};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::errno::{Errno, Result};

/// log2 of the number of slots of the first part: 2 MiB of headers, 1.5 MiB of states.
const FIRST_LOG2: u32 = 16;
/// Further parts, for at most `1 << (FIRST_LOG2 + PARTS)` slots.
const PARTS: usize = 10;
/// Cells for each part. A thread finds one full, or fills one; a fork while another thread fills one
/// leaves it unusable in the child.
const CELLS: usize = 4;

/// The parts behind the first.
pub(super) struct FurtherParts {
    file: KeptFile,
    access: Access,
    length: usize,
    parts: [[Once<Segment>; CELLS]; PARTS],
}

impl FurtherParts {
    /// Maps the first part of a table with entries of `entry_bytes`.
    ///
    /// # Errors
    /// `EINVAL` if the table has too many slots; errors of the operating system.
    pub(super) fn open(
        file: OwnedFd,
        entry_bytes: usize,
        access: Access,
    ) -> Result<(Segment, FurtherParts)> {
        let length = rustix::fs::fstat(&file).map_err(errno)?.st_size;
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        if length > entry_bytes << (FIRST_LOG2 as usize + PARTS) {
            return Err(Errno::EINVAL);
        }
        let first = Segment::map(&file, length.min(entry_bytes << FIRST_LOG2), access)?;
        let parts = [const { [const { Once::new() }; CELLS] }; PARTS];
        Ok((first, FurtherParts { file: KeptFile::new(file), access, length, parts }))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Length of the whole table.
    pub(super) const fn len(&self) -> usize {
        self.length
    }

    /// The entry of a slot behind the first part.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist; errors of the operating system.
    #[cold]
    #[inline(never)]
    pub(super) fn entry<T: SharedEntry>(&self, slot: u32) -> Result<&T> {
        let part = (slot >> FIRST_LOG2).checked_ilog2().ok_or(Errno::EIO)?;
        let first = size_of::<T>() << (FIRST_LOG2 + part);
        let cells = self.parts.get(part as usize).ok_or(Errno::EIO)?;
        let segment = match cells.iter().find_map(Once::get) {
            Some(segment) => segment,
            None => self.map(cells, first)?,
        };
        segment.entry((slot as usize * size_of::<T>()).wrapping_sub(first))
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

    /// As `Segment::detach`: no part is mapped any more, nor will be.
    pub(super) fn detach(&self) {
        self.file.give_up();
        self.parts.iter().flatten().filter_map(Once::get).for_each(Segment::detach);
    }

    pub(super) fn unmap_pages(&self) {
        self.parts.iter().flatten().filter_map(Once::get).for_each(Segment::unmap_pages);
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;
    use crate::extents::{
        ExtentStates, ExtentTable, HEADER_BYTES, PageSums, STATE_BYTES, page_sums_bytes,
    };
    use core::sync::atomic::Ordering::SeqCst;
    use wire::Inode;
    use wire::reply::Extent;

    /// Slots in each part and on both sides of each border are those of the daemon, which maps all.
    #[test]
    fn a_table_in_parts_is_the_table() {
        const COUNT: u32 = (5 << FIRST_LOG2) / 2;
        let memory = |bytes: usize| Segment::nameless(c"test", bytes).expect("memory");
        let (headers, headers_file) = memory(COUNT as usize * HEADER_BYTES);
        let (entries, entries_file) = memory(COUNT as usize * STATE_BYTES);
        let dup = |file: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(file, 0).expect("a descriptor");
        let sums = || PageSums::new(memory(page_sums_bytes(4096) as usize).0);
        let table = ExtentTable::new(headers);
        let states = ExtentStates::new(entries, memory(4096).0, sums());
        let own_table = ExtentTable::open_in_parts(headers_file).expect("a mapping");
        let own_states = ExtentStates::open_in_parts(dup(&entries_file), memory(4096).0, sums());
        let own_states = own_states.expect("a mapping");
        assert_eq!(own_table.count(), COUNT);
        let border = 1 << FIRST_LOG2;
        let slots = [0, border - 1, border, 2 * border - 1, 2 * border, COUNT - 1];
        let extent = |slot: u32| {
            let location = u64::from(slot) << 12;
            Extent { start: 0, slot, location, length_log2: 12, tier: Extent::MEMORY }
        };
        for round in 0..2 {
            for slot in slots {
                let (inode, extent) = (Inode(u64::from(slot) + 7 + round), extent(slot));
                assert!(!own_table.is(inode, &extent), "slot {slot}");
                table.publish(inode, &extent).expect("a slot");
                assert!(own_table.is(inode, &extent), "slot {slot}");
                let bits = |of: &ExtentStates| {
                    of.page_bits(&extent, 0).expect("a slot").valid.fetch_add(1, SeqCst)
                };
                assert_eq!((bits(&own_states), bits(&states)), (2 * round, 2 * round + 1));
            }
            own_table.unmap_pages();
            own_states.unmap_pages();
        }
        let late = ExtentStates::open_in_parts(dup(&entries_file), memory(4096).0, sums())
            .expect("a mapping");
        assert!(!own_table.is(Inode(7), &extent(COUNT)), "a slot that does not exist");
        assert_eq!(own_states.page_bits(&extent(COUNT), 0).err(), Some(Errno::EIO));
        assert_eq!(own_states.page_bits(&extent(u32::MAX), 0).err(), Some(Errno::EIO));
        // A process that gave up the right to the memory sees zeros, and maps no more.
        own_table.detach();
        late.detach();
        let first = late.page_bits(&extent(0), 0).expect("zeros");
        assert_eq!(first.valid.load(SeqCst), 0);
        assert_eq!(late.page_bits(&extent(border), 0).err(), Some(Errno::EACCES));
        for slot in slots {
            assert!(!own_table.is(Inode(u64::from(slot) + 8), &extent(slot)), "slot {slot}");
        }
    }
}
