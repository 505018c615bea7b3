//! Measures reads and writes of the SSD file with and without checksums, in turn: the file in DIR, 256
//! MiB. `cargo run --release -p shm --example checksums -- DIR`.
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use shm::Segment;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers, PageSums,
    STATE_BYTES, Target, page_groups_bytes, page_sums_bytes,
};
use std::time::Instant;
use wire::Inode;
use wire::reply::Extent;

const FILE: Inode = Inode(5);
const BYTES: u64 = 256 << 20;
const EXTENT_LOG2: u8 = 22;
const ROUNDS: usize = 7;

fn memory(length: u64) -> Segment {
    Segment::nameless(c"checksums", length as usize).expect("nameless memory").0
}

struct Device {
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    hazards: HazardPointers,
    ssd: OwnedFd,
}

impl Device {
    /// Without sums their table has no entry for any page.
    fn new(directory: &str, sums_bytes: u64) -> Device {
        let hazards = HazardPointers::new(memory(HAZARDS_BYTES as u64)).expect("long enough");
        hazards.note_session(0).expect("memory");
        let path = format!("{directory}/checksums-{}", std::process::id());
        let path = std::ffi::CString::new(path).expect("no NUL");
        let flags = OFlags::RDWR | OFlags::CREATE;
        let ssd =
            rustix::fs::open(path.as_c_str(), flags, Mode::RUSR | Mode::WUSR).expect("a file");
        rustix::fs::unlink(path.as_c_str()).expect("unlinked");
        let device = Device {
            arena: Arena::new(memory(4096)),
            table: ExtentTable::new(memory(HEADER_BYTES as u64 * 64)),
            states: ExtentStates::new(
                memory(STATE_BYTES as u64 * 64),
                memory(page_groups_bytes(BYTES)),
                PageSums::new(memory(sums_bytes)),
            ),
            hazards,
            ssd,
        };
        for extent in extents() {
            device.states.reset(&extent, 0).expect("a slot");
            device.table.publish(FILE, &extent).expect("a slot");
        }
        device
    }

    fn target(&self) -> Target<'_> {
        let (arena, table, states) = (&self.arena, &self.table, &self.states);
        Target { arena, ssd: self.ssd.as_fd(), table, states }
    }

    /// Has the kernel forget the pages of the file, so that they come from the device.
    fn drop_pages(&self) {
        rustix::fs::fdatasync(&self.ssd).expect("flushed");
        rustix::fs::fadvise(&self.ssd, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
    }

    /// Bytes per second of one pass with calls of `length`.
    fn pass(&self, length: usize, is_write: bool) -> f64 {
        let hazards = self.hazards.of_session(0, 1000);
        let mut bytes = vec![7; length];
        let begun = Instant::now();
        for extent in extents() {
            for at in (0..extent.length()).step_by(length) {
                let done = match is_write {
                    true => self.target().write(&hazards, FILE, &extent, at, &bytes),
                    false => self.target().read(&hazards, FILE, &extent, at, &mut bytes),
                };
                done.expect("no error").expect("in place");
            }
        }
        if is_write {
            rustix::fs::fdatasync(&self.ssd).expect("flushed");
        }
        BYTES as f64 / begun.elapsed().as_secs_f64()
    }
}

fn extents() -> impl Iterator<Item = Extent> {
    (0..BYTES >> EXTENT_LOG2).map(|number| Extent {
        start: number << EXTENT_LOG2,
        slot: number as u32,
        location: number << EXTENT_LOG2,
        length_log2: EXTENT_LOG2,
        tier: Extent::SSD,
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "/tmp".to_owned());
    let devices = [4096, page_sums_bytes(BYTES)].map(|bytes| Device::new(&directory, bytes));
    println!("{directory}: MB/s without, with checksums, ratio");
    for (what, length, is_write) in [
        ("first write, 1 MiB", 1 << 20, true),
        ("write, 1 MiB", 1 << 20, true),
        ("read, 1 MiB", 1 << 20, false),
        ("write, 4 KiB", 4096, true),
        ("read, 4 KiB", 4096, false),
        ("read, 1 KiB", 1024, false),
        ("read cold, 1 MiB", 1 << 20, false),
    ] {
        let rounds = if what.starts_with("first") { 1 } else { ROUNDS };
        let mut speeds = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (device, speeds) in devices.iter().zip(&mut speeds) {
                if what.contains("cold") {
                    device.drop_pages();
                }
                speeds.push(device.pass(length, is_write));
            }
        }
        let [without, with] = speeds.map(median);
        println!("{what:20} {:8.0} {:8.0}  {:.2}", without / 1e6, with / 1e6, with / without);
    }
}
