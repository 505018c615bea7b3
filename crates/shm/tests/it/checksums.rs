//! Checksums of the pages of the SSD file: whatever is written and by whomever, a page that is read has
//! the bytes that were written, or its damage is reported; and nothing that is well is refused.

use core::sync::atomic::Ordering;
use rustix::fd::{AsFd, OwnedFd};
use shm::Segment;
use shm::extents::{
    Arena, DamageReport, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers,
    PageSums, STATE_BYTES, Target, Use, page_groups_bytes, page_sums_bytes,
};
use wire::reply::Extent;
use wire::{Errno, Inode};

const FILE: Inode = Inode(5);
const PAGE: usize = 4096;
const BYTES: usize = 4 << 20;

fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
}

struct Device {
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    hazards: HazardPointers,
    ssd: OwnedFd,
}

impl Device {
    fn new() -> Device {
        let hazards = HazardPointers::new(memory(HAZARDS_BYTES)).expect("long enough");
        hazards.note_session(0).expect("memory");
        Device {
            arena: Arena::new(memory(BYTES)),
            table: ExtentTable::new(memory(HEADER_BYTES * 8)),
            states: ExtentStates::new(
                memory(STATE_BYTES * 8),
                memory(page_groups_bytes(BYTES as u64) as usize),
                PageSums::new(memory(page_sums_bytes(BYTES as u64) as usize)),
            ),
            hazards,
            ssd: Segment::nameless(c"ssd", BYTES).expect("nameless memory").1,
        }
    }

    fn target(&self) -> Target<'_> {
        let (arena, table, states) = (&self.arena, &self.table, &self.states);
        Target { arena, ssd: self.ssd.as_fd(), table, states }
    }

    fn publish(&self, extent: &Extent) {
        self.states.reset(extent, 0).expect("a slot");
        self.table.publish(FILE, extent).expect("a slot");
    }

    fn write(&self, extent: &Extent, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let hazards = self.hazards.of_session(0, 1000);
        self.target()
            .write(&hazards, FILE, extent, at as u64, bytes)
            .map(|done| done.expect("here"))
    }

    fn read(&self, extent: &Extent, at: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xaa; length];
        let hazards = self.hazards.of_session(0, 1000);
        let done = self.target().read(&hazards, FILE, extent, at as u64, &mut bytes)?;
        done.expect("here");
        Ok(bytes)
    }

    /// Flips a bit of the file.
    fn flip(&self, extent: &Extent, at: usize) {
        let mut byte = [0];
        let place = extent.location + at as u64;
        rustix::io::pread(&self.ssd, &mut byte, place).expect("read");
        rustix::io::pwrite(&self.ssd, &[byte[0] ^ 4], place).expect("written");
    }

    fn reports(&self, seen: u64) -> Vec<DamageReport> {
        let mut all = Vec::new();
        self.states.sums().each_report(seen, &mut |report| all.push(report)).expect("a table");
        all
    }
}

fn extent(tier: u8) -> Extent {
    Extent { start: 0, slot: 3, location: 1 << 20, length_log2: 20, tier }
}

/// "Damaged data is an error, never data" (docs/semantics/durability.md).
#[test]
fn a_flipped_bit_in_any_written_page_is_found_and_reported() {
    let (device, extent) = (Device::new(), extent(Extent::SSD));
    device.publish(&extent);
    let mut model = vec![0u8; 1 << 20];
    let mut state = 77;
    for round in 0..300u64 {
        state = wire::hash::mix(state, round);
        // Whole pages, parts of one, both ends in the middle of pages, several calls' worth.
        let longest = [PAGE, 300, 40_000, 400_000][round as usize % 4];
        let at = state as usize % (model.len() - longest);
        let at = if round % 3 == 0 { at / PAGE * PAGE } else { at };
        let bytes = vec![round as u8 | 1; 1 + (state >> 32) as usize % longest];
        device.write(&extent, at, &bytes).expect("written");
        model[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert!(device.read(&extent, 0, model.len()).expect("all is well") == model);
    assert_eq!(device.reports(0), []);
    let mut seen = 0;
    for page in
        (0..256).filter(|page| model[page * PAGE..(page + 1) * PAGE].iter().any(|it| *it > 0))
    {
        let at = page * PAGE + (page * 131) % PAGE;
        device.flip(&extent, at);
        // In a long read, in a byte of the page, and beside it.
        assert_eq!(device.read(&extent, 0, model.len()), Err(Errno::EIO), "page {page}");
        assert_eq!(device.read(&extent, page * PAGE, 1), Err(Errno::EIO), "page {page}");
        let report = DamageReport { slot: 3, page: page as u32 };
        assert_eq!(device.reports(seen), [report, report], "page {page}");
        assert_eq!(device.target().check_stable(&extent), Err(Errno::EIO));
        // Bytes that go beside damaged ones would make it look whole.
        assert_eq!(device.write(&extent, page * PAGE + 9, b"part"), Err(Errno::EIO));
        seen += 4;
        if page > 0 {
            let before = device.read(&extent, 0, page * PAGE).expect("the pages before are well");
            assert!(before == model[..page * PAGE]);
        }
        device.flip(&extent, at);
    }
    assert!(seen > 500, "most pages were written");
    assert!(device.read(&extent, 0, model.len()).expect("all is well again") == model);
    // A page that is written whole is well again, whatever was there.
    device.flip(&extent, 5);
    device.write(&extent, 0, &[9; PAGE]).expect("written");
    assert_eq!(device.read(&extent, 0, PAGE), Ok(vec![9; PAGE]));
}

/// A valid bit of a page that nobody wrote, set by a fault: whatever the SSD has there is not returned as
/// data (docs/decisions/183-memory-has-no-checksums.md).
#[test]
fn a_valid_bit_that_a_fault_sets_makes_no_data_of_what_the_ssd_has_there() {
    let (device, extent) = (Device::new(), extent(Extent::SSD));
    let earlier = vec![7; 1 << 20];
    rustix::io::pwrite(&device.ssd, &earlier, extent.location).expect("written");
    device.publish(&extent);
    device.write(&extent, 0, &[1; 2 * PAGE]).expect("written");
    assert_eq!(device.read(&extent, 2 * PAGE, PAGE), Ok(vec![0; PAGE]), "never written");
    let valid = |page: usize| {
        let bits = device.states.page_bits(&extent, page as u64 / 64).expect("a group");
        bits.valid.fetch_xor(1 << (page % 64), Ordering::SeqCst);
    };
    for page in [2, 63, 64, 255] {
        valid(page);
        assert_eq!(device.read(&extent, page * PAGE, PAGE), Err(Errno::EIO), "page {page}");
        assert_eq!(device.target().check_stable(&extent), Err(Errno::EIO), "page {page}");
        valid(page);
        assert_eq!(device.read(&extent, page * PAGE, PAGE), Ok(vec![0; PAGE]), "page {page}");
    }
    assert_eq!(device.read(&extent, 0, 2 * PAGE), Ok(vec![1; 2 * PAGE]));
}

#[test]
fn a_copy_to_the_ssd_is_protected_and_a_copy_of_damage_fails() {
    let (device, memory, ssd) = (Device::new(), extent(Extent::MEMORY), extent(Extent::SSD));
    device.publish(&memory);
    device.write(&memory, 70_000, &vec![7; 50_000]).expect("written");
    let mut buffer = vec![0; 256 << 10];
    device.target().copy(&memory, &ssd, &mut buffer).expect("copied");
    device.states.reset_as(&memory, &ssd).expect("a slot");
    device.table.publish(FILE, &ssd).expect("a slot");
    assert_eq!(device.read(&ssd, 70_000, 50_000), Ok(vec![7; 50_000]));
    assert_eq!(device.read(&ssd, 300_000, 10), Ok(vec![0; 10]), "a hole");
    device.flip(&ssd, 100_000);
    assert_eq!(device.target().copy(&ssd, &memory, &mut buffer), Err(Errno::EIO));
    // Pages that were holes get a sum with their first bytes.
    device.write(&ssd, 300_000, b"new").expect("written");
    device.flip(&ssd, 300_001);
    assert_eq!(device.read(&ssd, 300_000, 3), Err(Errno::EIO));
}

/// Parts of any length that follow each other, as a backing store delivers them.
#[test]
fn an_extent_that_is_filled_bit_by_bit_is_protected() {
    let (device, ssd) = (Device::new(), extent(Extent::SSD));
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut at = 0;
    for length in [1, 4095, 4096, 100, 70_000, 3, 300_001].into_iter().cycle() {
        let end = (at + length).min(bytes.len());
        device.target().ssd_put(&ssd, at as u64, &bytes[at..end]).expect("written");
        at = end;
        if at == bytes.len() {
            break;
        }
    }
    device.states.reset(&ssd, u64::MAX).expect("a slot");
    device.table.publish(FILE, &ssd).expect("a slot");
    assert!(device.read(&ssd, 0, bytes.len()).expect("well") == bytes);
    assert_eq!(device.target().check_stable(&ssd), Ok(1 << 20));
    for at in [0, 4097, 8191, 800_000, (1 << 20) - 1] {
        device.flip(&ssd, at);
        assert_eq!(device.target().check_stable(&ssd), Err(Errno::EIO), "{at}");
        device.flip(&ssd, at);
    }
}

/// A mapping writes without these protocols, so its pages lose their sums; damage is found before.
#[test]
fn a_mapped_extent_is_checked_first_and_not_later() {
    let (device, extent) = (Device::new(), extent(Extent::SSD));
    device.publish(&extent);
    device.write(&extent, 0, &[3; 10_000]).expect("written");
    let hazards = device.hazards.of_session(0, 1000);
    let map = |how| device.target().make_all_valid(&hazards, FILE, &extent, how);
    device.flip(&extent, 50);
    assert_eq!(map(Use::Read), Err(Errno::EIO));
    device.flip(&extent, 50);
    assert_eq!((map(Use::Read), map(Use::Write)), (Ok(Ok(())), Ok(Ok(()))));
    rustix::io::pwrite(&device.ssd, b"stored through the mapping", extent.location)
        .expect("written");
    assert_eq!(device.read(&extent, 0, 6), Ok(b"stored".to_vec()));
}

/// Writers of the same and of neighbouring bytes, and readers: nobody is refused, and at rest each page
/// has the bytes of one of its writers.
#[test]
fn writers_and_readers_of_the_same_pages_meet_no_error() {
    let (device, extent) = (Device::new(), extent(Extent::SSD));
    device.publish(&extent);
    device.write(&extent, 0, &vec![1; 16 * PAGE]).expect("written");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut state = thread;
                for round in 0..3000 {
                    state = wire::hash::mix(state, round);
                    let at = state as usize % (15 * PAGE);
                    let length = 1 + (state >> 40) as usize % PAGE;
                    let (at, length) =
                        if round % 2 == 0 { (at / PAGE * PAGE, PAGE) } else { (at, length) };
                    if thread == 0 {
                        device.read(&extent, at, length).expect("nothing is damaged");
                    } else {
                        let bytes = vec![thread as u8; length];
                        device.write(&extent, at, &bytes).expect("nothing is damaged");
                    }
                }
            });
        }
    });
    device.read(&extent, 0, 16 * PAGE).expect("nothing is damaged");
    assert_eq!(device.reports(0), []);
    // Pages that had several writers at a time are protected again once they are moved.
    let memory = Extent { tier: Extent::MEMORY, ..extent };
    let mut buffer = vec![0; 256 << 10];
    device.target().copy(&extent, &memory, &mut buffer).expect("copied");
    device.states.reset_as(&extent, &memory).expect("a slot");
    device.target().copy(&memory, &extent, &mut buffer).expect("copied");
    device.flip(&extent, 100);
    assert_eq!(device.read(&extent, 0, 1), Err(Errno::EIO));
}
