//! The file of an SSD that loses writes, tears them, or keeps them in another order: a reader gets what
//! was written, or an error. With the sums of its pages, which are in `shm`.

use crate::{Expected, Identity, SsdFile};
use shm::Segment;
use shm::extents::{
    Arena, DamageReport, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers,
    PageSums, STATE_BYTES, Target, page_groups_bytes, page_sums_bytes,
};
use testkit::Random;
use wire::reply::Extent;
use wire::{Errno, Inode};

const FILE: Inode = Inode(5);
const PAGE: usize = 4096;
/// Bytes of the extent, which is behind as many others.
const BYTES: usize = 16 * PAGE;
const SECTOR: usize = 512;
const EXTENT: Extent = Extent {
    start: 0,
    slot: 3,
    location: BYTES as u64,
    length_log2: BYTES.trailing_zeros() as u8,
    tier: Extent::SSD,
};

fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
}

/// An SSD file and the shared memory with which clients use it.
struct Device {
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    hazards: HazardPointers,
    ssd: SsdFile,
}

impl Device {
    fn new(path: &std::path::Path) -> Device {
        let length = 2 * BYTES as u64;
        let hazards = HazardPointers::new(memory(HAZARDS_BYTES)).expect("long enough");
        hazards.note_session(0).expect("memory");
        let device = Device {
            arena: Arena::new(memory(PAGE)),
            table: ExtentTable::new(memory(HEADER_BYTES * 8)),
            states: ExtentStates::new(
                memory(STATE_BYTES * 8),
                memory(page_groups_bytes(length) as usize),
                PageSums::new(memory(page_sums_bytes(length) as usize)),
            ),
            hazards,
            ssd: SsdFile::open(path, length, Identity::of_daemon(7, 0), Expected::New)
                .expect("made"),
        };
        device.states.reset(&EXTENT, 0).expect("a slot");
        device.table.publish(FILE, &EXTENT).expect("a slot");
        device
    }

    fn target(&self) -> Target<'_> {
        let Device { arena, table, states, ssd, .. } = self;
        Target { arena, ssd: ssd.fd(), table, states }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let hazards = self.hazards.of_session(0, 1000);
        let done = self.target().write(&hazards, FILE, &EXTENT, at as u64, bytes)?;
        done.expect("here");
        Ok(())
    }

    fn read(&self, at: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xaa; length];
        let hazards = self.hazards.of_session(0, 1000);
        let done = self.target().read(&hazards, FILE, &EXTENT, at as u64, &mut bytes)?;
        done.expect("here");
        Ok(bytes)
    }

    /// The bytes of the extent in the file.
    fn stored(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.ssd.read(EXTENT.location, &mut bytes).expect("read");
        bytes
    }

    fn reports(&self) -> Vec<DamageReport> {
        let mut all = Vec::new();
        self.states.sums().each_report(0, &mut |report| all.push(report)).expect("a table");
        all
    }
}

/// One history of an SSD that forgets: of the sectors that were written after some moment, any are as
/// they were then. So writes are lost, torn, and kept in another order.
fn forgetful(path: &std::path::Path, seed: u64) {
    let mut random = Random::new(seed);
    // `SsdFile` does not remove what is there: a first start has removed it.
    let _ = std::fs::remove_file(path);
    let device = Device::new(path);
    let mut model = vec![0; BYTES];
    let mut earlier = model.clone();
    for moment in 0..2 {
        for _ in 0..1 + random.uniform(6) {
            let longest = [PAGE, 300, 3 * PAGE][random.uniform(3) as usize];
            let length = 1 + random.uniform(longest as u64) as usize;
            let at = random.uniform((BYTES - length) as u64) as usize;
            // Whole pages have a way of their own.
            let (at, length) = match random.uniform(3) {
                0 => {
                    (at / PAGE * PAGE, length.next_multiple_of(PAGE).min(BYTES - at / PAGE * PAGE))
                }
                _ => (at, length),
            };
            let bytes = testkit::content(random.next(), 0, length as u64);
            device.write(at, &bytes).expect("written");
            model[at..at + length].copy_from_slice(&bytes);
        }
        if moment == 0 {
            earlier = device.stored();
        }
    }
    let (chance, mut stored) = (1 + random.uniform(4), device.stored());
    for sector in (0..BYTES).step_by(SECTOR).filter(|_| random.uniform(4) < chance) {
        stored[sector..sector + SECTOR].copy_from_slice(&earlier[sector..sector + SECTOR]);
    }
    device.ssd.write(EXTENT.location, &stored).expect("written");
    for page in 0..BYTES / PAGE {
        let what = format!("seed {seed}, page {page}");
        let (from, end) = (page * PAGE, (page + 1) * PAGE);
        let at = from + random.uniform(PAGE as u64) as usize;
        let (whole, byte) = (device.read(from, PAGE), device.read(at, 1));
        if stored[from..end] == model[from..end] {
            assert!(whole.is_ok_and(|found| found == model[from..end]), "{what}: it is well");
            assert!(byte.is_ok_and(|found| found == [model[at]]), "{what}: it is well");
        } else {
            assert_eq!((whole, byte), (Err(Errno::EIO), Err(Errno::EIO)), "{what}: silent");
            let part = device.write(at, &[1]);
            assert_eq!(part, Err(Errno::EIO), "{what}: it looks whole");
            assert!(!device.reports().is_empty(), "{what}: nobody is told");
        }
    }
}

/// "Damaged data is an error, never data" (docs/semantics/durability.md).
#[test]
fn an_ssd_that_loses_and_tears_writes_is_noticed() {
    let first = testkit::seed(1);
    let count = testkit::rounds(if testkit::is_long() { 4000 } else { 500 });
    let name = format!("forebay-{}-forgetful", std::process::id());
    let path = std::env::temp_dir().join(name);
    (first..first + count).for_each(|seed| forgetful(&path, seed));
    std::fs::remove_file(&path).expect("removed");
}
