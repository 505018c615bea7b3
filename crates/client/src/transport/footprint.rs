//! The memory of the instance that counts as resident memory of this process: the windows of the
//! arenas, which are bounded (`shm::extents`), and those pages of the tables that look-ups touched.
//! These grow with the number of files that the program uses, so from time to time the kernel is
//! asked how much memory of files this process has mapped; if that grew by too much, the pages of all
//! tables are unmapped. The next look-up maps what it needs, 16 pages at a time.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use rustix::fs::{Mode, OFlags};

use crate::transport::Transport;

/// The kernel is asked once for this many calls whose time is taken: 3 us for 256 calls.
const ASKED_EACH: u64 = 4;
/// Growth at which the tables are unmapped. With the windows of the arenas (32 MiB) and the library
/// itself, this process has about 64 MiB more than without it, at most.
const GROWTH_MAX: u64 = 20 << 20;
const PAGE_BYTES: u64 = 4096;

/// The resident memory of this process, as it was last seen.
pub(crate) struct Footprint {
    calls: AtomicU64,
    /// Bytes of files that were mapped when the tables had no pages here; 0: not asked yet.
    base: AtomicU64,
}

impl Footprint {
    pub(crate) const fn new() -> Footprint {
        Footprint { calls: AtomicU64::new(0), base: AtomicU64::new(0) }
    }

    /// True if the tables are to be unmapped, at `resident` bytes.
    fn is_exceeded(&self, resident: u64) -> bool {
        let base = self.base.load(Relaxed);
        // The program itself may have unmapped files.
        if base == 0 || resident < base {
            self.base.store(resident, Relaxed);
        }
        base != 0 && resident.saturating_sub(base) > GROWTH_MAX
    }
}

impl Transport {
    /// Called now and then: keeps the resident memory that this library adds within its bound.
    #[cold]
    pub(crate) fn bound_footprint(&self) {
        let calls = self.footprint.calls.fetch_add(1, Relaxed);
        if !self.is_guest.load(Relaxed) || !calls.is_multiple_of(ASKED_EACH) {
            return;
        }
        let Some(resident) = resident_file_bytes() else { return };
        if self.footprint.is_exceeded(resident) {
            self.attachments.each().for_each(|attachment| attachment.unmap_tables());
            // The rest is the program's own, and the arenas'.
            self.footprint.base.store(resident_file_bytes().unwrap_or(resident), Relaxed);
        }
    }
}

/// Bytes of files and of shared memory that this process has mapped and present.
fn resident_file_bytes() -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/statm", flags, Mode::empty()).ok()?;
    let mut text = [0; 128];
    let length = rustix::io::read(&file, &mut text).ok()?;
    pages_of_files(text.get(..length)?)?.checked_mul(PAGE_BYTES)
}

/// The third number of a line.
fn pages_of_files(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b' ').nth(2)?;
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_read() {
        assert_eq!(pages_of_files(b"1000 200 150 10 0 50 0\n"), Some(150));
        assert_eq!(pages_of_files(b"1000 200"), None);
        assert_eq!(pages_of_files(b"1000 200 1x0 3"), None);
        assert!(resident_file_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn tables_are_unmapped_after_growth_alone() {
        let footprint = Footprint::new();
        assert!(!footprint.is_exceeded(500 << 20), "the first is the base");
        assert!(!footprint.is_exceeded(520 << 20));
        assert!(footprint.is_exceeded(521 << 20));
        assert!(!footprint.is_exceeded(100 << 20), "the program gave up memory of its own");
        assert!(footprint.is_exceeded(121 << 20));
    }
}
