//! The part of the arenas that a process has mapped: a few windows, each with a part of some arena.
//! The arenas may be longer than all addresses that a process may have (`ulimit -v`), and memory of
//! files that a process has touched would count as its own resident memory, by which batch systems,
//! dask and Ray end it.
//!
//! A part is a huge page, which one fault maps. Its window depends on the part alone, so an access to
//! one that is mapped finds it by one comparison. Another part takes its place while no thread is in
//! the window; if one is, or if the access is small and the part was not asked for often, the access
//! goes through the kernel, which copies without mapping. So nobody waits.
//!
//! A thread enters a window by counting itself, and then looks which part is there; a thread that
//! replaces the part first says so, and then looks at the counts. All of it is sequentially
//! consistent, so one of the two sees the other.
//!
//! A thread that a fault takes out of a copy (a handler of SIGSEGV that jumps) stays counted: that
//! window keeps its part, and accesses to others that belong there go through the kernel.

use crate::once::Once;
use crate::segment::{HUGE_PAGE, Segment};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustix::fd::BorrowedFd;

/// Length of a part.
pub(super) const PART: usize = HUGE_PAGE;
/// 32 MiB: half of what this library may add to the resident memory of a process.
const COUNT: usize = 16;
/// Length of all windows.
pub(super) const BYTES: usize = COUNT * PART;
/// Parts that are mapped together.
const RUN: usize = COUNT / 2;
/// Threads count themselves in as many lines, so that they do not wait for each other's.
const LINES: usize = 16;
/// Length of the stacks on which the calls of threads run, about.
const STACK_BYTES: usize = 256 << 10;
/// An access of fewer bytes is small.
const SMALL: usize = 64 << 10;

/// In place of a part: none, one is being replaced, or the addresses were lost.
const NONE: u64 = u64::MAX;
const CHANGING: u64 = NONE - 1;
const LOST: u64 = NONE - 2;

/// Where the windows are.
static REGION: Once<Segment> = Once::new();
/// The part in each window.
static PARTS: [AtomicU64; COUNT] = [const { AtomicU64::new(NONE) }; COUNT];
/// For each window, the parts of the last small access that found another part there, and of the
/// last one that was the second in a row.
static ASKED_FOR: [[AtomicU64; 2]; COUNT] = [const { [const { AtomicU64::new(NONE) }; 2] }; COUNT];
/// Threads that are in the windows.
static INSIDE: [Line; LINES] = [const { Line([const { AtomicU32::new(0) }; COUNT]) }; LINES];
/// The arenas so far.
static ARENAS: AtomicU32 = AtomicU32::new(0);

/// A cache line.
#[repr(align(64))]
struct Line([AtomicU32; COUNT]);

/// The arena of a part, in the upper half. None of a process has the same number.
#[derive(Clone, Copy)]
pub(super) struct ArenaNumber(u64);

impl ArenaNumber {
    /// Of an arena that has no windows.
    pub(super) const NONE: ArenaNumber = ArenaNumber(0);

    /// A number that no arena of this process had.
    pub(super) fn new() -> ArenaNumber {
        let number = ARENAS.fetch_add(1, Relaxed).saturating_add(1);
        ArenaNumber(u64::from(number) << 32)
    }

    /// True for an arena that has windows. Its parts are none of the values above.
    pub(super) const fn is_some(self) -> bool {
        self.0 != 0 && self.0 >> 32 < u32::MAX as u64
    }

    /// The part at an offset.
    #[inline(always)]
    pub(super) const fn part(self, location: usize) -> ArenaPart {
        ArenaPart(self.0 | (location / PART) as u64 & u32::MAX as u64)
    }
}

/// A part of an arena.
#[derive(Clone, Copy)]
pub(super) struct ArenaPart(u64);

impl ArenaPart {
    #[inline(always)]
    const fn window(self) -> usize {
        // Arenas of one host are filled alike.
        ((self.0 >> 32) as usize).wrapping_mul(RUN).wrapping_add(self.0 as usize) % COUNT
    }

    /// The part so many behind this one in its arena.
    const fn after(self, count: i64) -> ArenaPart {
        ArenaPart(self.0.wrapping_add_signed(count))
    }

    const fn start(self) -> u64 {
        (self.0 & u32::MAX as u64) * PART as u64
    }
}

/// A window that the calling thread is in: the part stays there until this is dropped.
pub(super) struct Window {
    region: &'static Segment,
    inside: &'static AtomicU32,
    start: usize,
}

impl Window {
    /// The mapping that the window is in.
    #[inline(always)]
    pub(super) const fn segment(&self) -> &'static Segment {
        self.region
    }

    /// Where an offset in the arena that is in the part is in that mapping.
    #[inline(always)]
    pub(super) const fn at(&self, location: usize) -> usize {
        self.start.wrapping_add(location % PART)
    }
}

impl Drop for Window {
    #[inline(always)]
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Release);
    }
}

/// The window of a part, if it is mapped.
#[inline(always)]
pub(super) fn enter(part: ArenaPart) -> Option<Window> {
    let number = part.window();
    let parts = PARTS.get(number)?;
    // Before anything is written.
    if parts.load(Relaxed) != part.0 {
        return None;
    }
    let region = REGION.get()?;
    // Threads have stacks of their own: their number costs more.
    let inside = INSIDE.get((&raw const region).addr() / STACK_BYTES % LINES)?.0.get(number)?;
    inside.fetch_add(1, SeqCst);
    let window = Window { region, inside, start: number.wrapping_mul(PART) };
    (parts.load(SeqCst) == part.0).then_some(window)
}

/// True if an access to a part that is not mapped is better made through the kernel.
pub(super) fn is_for_kernel(part: ArenaPart, length: usize) -> bool {
    let (Some(now), Some(asked_for)) = (PARTS.get(part.window()), ASKED_FOR.get(part.window()))
    else {
        return true;
    };
    let is_free = now.load(Relaxed) == NONE;
    let is_new = |asked_for: &AtomicU64| asked_for.swap(part.0, Relaxed) != part.0;
    length < SMALL && !is_free && asked_for.iter().any(is_new)
}

/// Maps a part of an arena of `arena_bytes`, whose file this is, in its window. `None` if a thread is
/// there, without room, and for what is left at the end: the access goes through the kernel.
///
/// If the part before it is mapped, those behind it are likely next. They are mapped with it, because
/// what costs is that the kernel forgets addresses that it knew, once for each call.
#[cold]
#[inline(never)]
pub(super) fn open(part: ArenaPart, file: BorrowedFd<'_>, arena_bytes: u64) -> Option<Window> {
    let region = region()?;
    let first = part.window();
    let before = PARTS.get(first.wrapping_sub(1) % COUNT)?.load(Relaxed);
    let most = if before == part.after(-1).0 { RUN } else { 1 };
    let run = (0..most.min(COUNT - first)).map(|ahead| part.after(ahead as i64));
    let is_there = |part: &ArenaPart| arena_bytes.saturating_sub(part.start()) >= PART as u64;
    let count = run.take_while(|part| is_there(part) && claim(*part)).count();
    if count == 0 {
        // Another thread may have mapped it.
        return enter(part);
    }
    let mapped = region.replace(first * PART, count * PART, file, part.start());
    for (ahead, window) in PARTS.iter().skip(first).take(count).enumerate() {
        // If it failed, the kernel may have unmapped what was there, and given the addresses to others.
        let now = if mapped.is_ok() { part.after(ahead as i64).0 } else { LOST };
        window.store(now, SeqCst);
    }
    enter(part)
}

/// Takes the window of a part that is not mapped, to replace what is there. False if a thread is in
/// it, or changes it.
fn claim(part: ArenaPart) -> bool {
    let number = part.window();
    let Some(now) = PARTS.get(number) else { return false };
    let before = now.load(SeqCst);
    let is_replaced = before != part.0 && (before == NONE || before < LOST);
    if !is_replaced || now.compare_exchange(before, CHANGING, SeqCst, Relaxed).is_err() {
        return false;
    }
    let mut inside = INSIDE.iter().filter_map(|line| line.0.get(number));
    let is_empty = inside.all(|inside| inside.load(SeqCst) == 0);
    if !is_empty {
        now.store(before, SeqCst);
    }
    is_empty
}

/// The mapping with all windows.
pub(super) fn region() -> Option<&'static Segment> {
    if let Some(region) = REGION.get() {
        return Some(region);
    }
    let region = Segment::vacant(BYTES).ok()?;
    // Another thread may be faster.
    match REGION.set(region) {
        Ok(region) => Some(region),
        Err(_) => REGION.get(),
    }
}

/// As `Segment::detach`: no part is mapped any more, nor will be.
pub(super) fn detach() {
    for part in &PARTS {
        part.store(LOST, SeqCst);
    }
    if let Some(region) = REGION.get() {
        region.detach();
    }
}

/// In a forked child: no thread of its parent is in a window, and a part that another thread was
/// replacing is not there.
pub fn reset_windows_after_fork() {
    for line in &INSIDE {
        line.0.iter().for_each(|inside| inside.store(0, Relaxed));
    }
    for part in &PARTS {
        let _ = part.compare_exchange(CHANGING, NONE, SeqCst, Relaxed);
    }
}
