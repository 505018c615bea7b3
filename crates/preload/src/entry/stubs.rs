//! The stubs of this process, for one purpose: a cancellation that arrives in one unwinds from the call
//! site that it belongs to, because no unwinder knows the stubs.
//!
//! Each area of stubs has a table of them at its end, in the order of their addresses.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Libraries and programs that may be patched in a process.
const AREAS: usize = 256;

/// A stub, in the table of its area.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Stub {
    /// Its offset in the area.
    pub offset: u32,
    /// Offset in the area of the code that calls the handler.
    pub call: u32,
    /// The address after the system call's instruction.
    pub resume: u64,
}

/// Where an area is, and its table.
struct KnownArea {
    start: AtomicU64,
    end: AtomicU64,
    count: AtomicU64,
}

static KNOWN: [KnownArea; AREAS] = [const {
    KnownArea { start: AtomicU64::new(0), end: AtomicU64::new(0), count: AtomicU64::new(0) }
}; AREAS];

/// Records an area, which stays mapped. Its last `count` times the size of a `Stub` bytes are the
/// table.
pub fn note(start: u64, bytes: u64, count: usize) {
    let is_free =
        |area: &&KnownArea| area.start.compare_exchange(0, start, Relaxed, Relaxed).is_ok();
    if let Some(area) = KNOWN.iter().find(is_free) {
        area.count.store(count as u64, Relaxed);
        area.end.store(start + bytes, Release);
    }
}

/// Forgets an area that is about to be unmapped, with the image whose stubs it holds.
pub(crate) fn forget(start: u64) {
    let is_it = |area: &&KnownArea| area.start.load(Relaxed) == start;
    if let Some(area) = KNOWN.iter().find(is_it) {
        area.end.store(0, Release);
        area.start.store(0, Release);
    }
}

/// The stub that an address is in, and whether the stack pointer is that of the call site there or
/// `arch::stub::SKIPS` below it.
pub(crate) fn find(address: u64) -> Option<(Stub, bool)> {
    let is_inside =
        |area: &&KnownArea| address < area.end.load(Acquire) && address >= area.start.load(Relaxed);
    let area = KNOWN.iter().find(is_inside)?;
    let (start, count) = (area.start.load(Relaxed), area.count.load(Relaxed) as usize);
    let table = area.end.load(Relaxed) - (count * size_of::<Stub>()) as u64;
    // SAFETY: the area ends in this many entries (`note`), at a multiple of their alignment, and never
    // changes again. WHY: it is not memory of Rust's.
    let table = unsafe { core::slice::from_raw_parts(table as *const Stub, count) };
    let offset = u32::try_from(address - start).ok()?;
    let stub = *table.iter().take_while(|stub| stub.offset <= offset).last()?;
    let skipped = crate::arch::stub::SKIPPED;
    let is_skipped = skipped.contains(&offset.wrapping_sub(stub.call));
    Some((stub, is_skipped))
}
