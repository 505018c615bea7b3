//! The arena of a memory target: one sparse file in shared memory, addressed by byte offset.
//!
//! The extent table records which bytes belong to which file; this module only copies.

use crate::extents::ssd::is_beyond_write_limit;
use crate::extents::windows::{self, ArenaNumber, PART, Window};
use crate::kept::KeptFile;
use crate::segment::{Access, Segment, errno};
use core::ops::Range;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno as OsErrno;
use wire::errno::{Errno, Result};

const PAGE_BYTES: usize = 4096;

/// Copies a part of some bytes: its offset in the arena, its range of the bytes, and its window, or
/// none if the access is for the kernel.
type CopyPart<'a> = dyn FnMut(usize, Range<usize>, Option<&Window>) -> Result<()> + 'a;

/// The arena, mapped or as a file.
pub struct Arena {
    /// All of it, mapped; of an arena that is a file, nothing.
    segment: Segment,
    /// The file, if not all is mapped.
    file: Option<KeptFile>,
    /// The arena among those that have windows.
    number: ArenaNumber,
    length: u64,
}

impl Arena {
    /// Takes the mapping.
    #[must_use]
    pub const fn new(segment: Segment) -> Arena {
        let length = segment.len() as u64;
        Arena { segment, file: None, number: ArenaNumber::NONE, length }
    }

    /// Takes a file of `length` bytes, of which few parts are mapped at a time (`windows`): for an
    /// application, whose size others watch.
    #[must_use]
    pub fn in_windows(file: OwnedFd, length: u64) -> Arena {
        Arena { number: ArenaNumber::new(), ..Arena::unmapped(file, length) }
    }

    /// Takes a file of `length` bytes, and maps nothing: for an application whose address space is
    /// limited. Each copy is a call of the kernel.
    #[must_use]
    pub const fn unmapped(file: OwnedFd, length: u64) -> Arena {
        Arena {
            segment: Segment::nothing(),
            file: Some(KeptFile::new(file)),
            number: ArenaNumber::NONE,
            length,
        }
    }

    /// Sees nothing of the shared memory any more (`Segment::detach`), nor do other arenas that have
    /// windows.
    pub fn detach(&self) {
        self.file.iter().for_each(KeptFile::give_up);
        self.segment.detach();
        if self.number.is_some() {
            windows::detach();
        }
    }

    /// The file behind an arena of which not all is mapped.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(KeptFile::descriptor)
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// True if it is empty; never for an arena made by a daemon.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The memory, for moving its bytes to or from a socket.
    #[must_use]
    pub const fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Maps a range of `segment` that is about to be written.
    pub fn prepare(&self, location: usize, length: usize) {
        self.segment.map_present(location, length);
    }

    /// The window of these bytes, if all are in one part that is mapped.
    #[inline(always)]
    fn window(&self, location: usize, length: usize) -> Option<Window> {
        let last = location.wrapping_add(length).wrapping_sub(1);
        let is_in_one = (location ^ last) < PART;
        if is_in_one { windows::enter(self.number.part(location)) } else { None }
    }

    /// The window of these bytes, which are in one part. `None`: the access is for the kernel.
    fn opened(&self, location: usize, length: usize, file: BorrowedFd<'_>) -> Option<Window> {
        let part = self.number.part(location);
        if !self.number.is_some() {
            return None;
        }
        windows::enter(part).or_else(|| {
            let is_mapped = !windows::is_for_kernel(part, length);
            if is_mapped { windows::open(part, file, self.length) } else { None }
        })
    }

    /// Calls `copy` with each part of the bytes, as the windows divide them.
    fn by_parts(&self, location: usize, length: usize, copy: &mut CopyPart<'_>) -> Result<()> {
        let file = self.file_for(location, length)?;
        let mut done = 0;
        while done < length {
            let at = location.saturating_add(done);
            let end = done.saturating_add(PART - at % PART).min(length);
            let window = self.opened(at, end - done, file);
            copy(at, done..end, window.as_ref())?;
            done = end;
        }
        Ok(())
    }

    /// Copies from offset `location`.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    #[inline]
    pub fn copy_out(&self, location: u64, to: &mut [u8]) -> Result<()> {
        let location = usize::try_from(location).map_err(|_| Errno::EIO)?;
        match self.window(location, to.len()) {
            Some(window) => window.segment().copy_out(window.at(location), to),
            None => self.copy_out_elsewhere(location, to),
        }
    }

    /// As `copy_out`, where no window has all bytes.
    #[cold]
    #[inline(never)]
    fn copy_out_elsewhere(&self, location: usize, to: &mut [u8]) -> Result<()> {
        if self.file.is_none() {
            return self.segment.copy_out(location, to);
        }
        self.by_parts(location, to.len(), &mut |at, range, window| {
            let to = to.get_mut(range).ok_or(Errno::EIO)?;
            match window {
                Some(window) => window.segment().copy_out(window.at(at), to),
                None => self.read_file(at, to),
            }
        })
    }

    /// Copies to `location`.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn copy_in(&self, location: u64, from: &[u8]) -> Result<()> {
        self.copy_in_by(location, from, Segment::copy_in)
    }

    /// Copies to `location` past the processor's cache.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn stream_in(&self, location: u64, from: &[u8]) -> Result<()> {
        self.copy_in_by(location, from, Segment::stream_in)
    }

    /// `copy`: how to copy a part.
    #[inline(always)]
    fn copy_in_by(
        &self,
        location: u64,
        from: &[u8],
        copy: fn(&Segment, usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let location = usize::try_from(location).map_err(|_| Errno::EIO)?;
        let Some(window) = self.window(location, from.len()) else {
            return self.copy_in_elsewhere(location, from, copy);
        };
        let (segment, at) = (window.segment(), window.at(location));
        segment.map_present(at, from.len());
        copy(segment, at, from)
    }

    /// As `copy_in`, where no window has all bytes.
    #[cold]
    #[inline(never)]
    fn copy_in_elsewhere(
        &self,
        location: usize,
        from: &[u8],
        copy: fn(&Segment, usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let copy = |segment: &Segment, at: usize, from: &[u8]| {
            segment.map_present(at, from.len());
            copy(segment, at, from)
        };
        if self.file.is_none() {
            return copy(&self.segment, location, from);
        }
        self.by_parts(location, from.len(), &mut |at, range, window| {
            let from = from.get(range).ok_or(Errno::EIO)?;
            match window {
                Some(window) => copy(window.segment(), window.at(at), from),
                None => self.write_file(at, from),
            }
        })
    }

    /// Makes `length` bytes from `location` on zero.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn zero(&self, location: u64, length: u64) -> Result<()> {
        let location = usize::try_from(location).map_err(|_| Errno::EIO)?;
        let length = usize::try_from(length).map_err(|_| Errno::EIO)?;
        let zero = |segment: &Segment, at: usize, length: usize| {
            segment.map_present(at, length);
            segment.zero(at, length)
        };
        if let Some(window) = self.window(location, length) {
            return zero(window.segment(), window.at(location), length);
        }
        if self.file.is_none() {
            return zero(&self.segment, location, length);
        }
        self.by_parts(location, length, &mut |at, range, window| match window {
            Some(window) => zero(window.segment(), window.at(at), range.len()),
            None => self.zero_file(at, range.len()),
        })
    }

    /// The file of an arena of which not all is mapped, for `length` bytes from `location` on.
    fn file_for(&self, location: usize, length: usize) -> Result<BorrowedFd<'_>> {
        let end = location.checked_add(length).ok_or(Errno::EIO)?;
        let file = self.file.as_ref().filter(|_| end as u64 <= self.length);
        file.ok_or(Errno::EIO)?.get()
    }

    fn read_file(&self, location: usize, to: &mut [u8]) -> Result<()> {
        let file = self.file_for(location, to.len())?;
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(file, rest, location.saturating_add(done) as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(count) => done = done.saturating_add(count),
                Err(OsErrno::INTR) => {}
                Err(os) => return Err(errno(os)),
            }
        }
        Ok(())
    }

    fn write_file(&self, location: usize, from: &[u8]) -> Result<()> {
        let file = self.file_for(location, from.len())?;
        if is_beyond_write_limit(location as u64, from.len()) {
            // By a call, the kernel would obey a limit that is meant for the program's files.
            let skip = location % PAGE_BYTES;
            let (start, length) = (location.saturating_sub(skip), from.len().saturating_add(skip));
            let part = Segment::map_part(file, start as u64, length, Access::ReadWrite)?;
            return part.copy_in(skip, from);
        }
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(file, rest, location.saturating_add(done) as u64) {
                Ok(count) => done = done.saturating_add(count),
                Err(OsErrno::INTR) => {}
                Err(os) => return Err(errno(os)),
            }
        }
        Ok(())
    }

    fn zero_file(&self, location: usize, length: usize) -> Result<()> {
        const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let end = location.checked_add(length).ok_or(Errno::EIO)?;
        (location..end).step_by(PAGE_BYTES).try_for_each(|at| {
            let part = end.saturating_sub(at).min(PAGE_BYTES);
            self.write_file(at, ZEROS.get(..part).unwrap_or(&[]))
        })
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;
    use crate::segment::HUGE_PAGE;
    use std::fs;
    use std::vec;

    /// Resident bytes of all windows.
    fn resident() -> Option<usize> {
        let region = windows::region()?.address();
        let region = region..region + windows::BYTES;
        let maps = fs::read_to_string("/proc/self/smaps").ok()?;
        let (mut is_inside, mut kibibytes) = (false, 0);
        for line in maps.lines() {
            let start = line.split_once('-').and_then(|at| usize::from_str_radix(at.0, 16).ok());
            if let Some(start) = start {
                is_inside = region.contains(&start);
            } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_inside) {
                kibibytes += rss.split_whitespace().next()?.parse::<usize>().ok()?;
            }
        }
        Some(kibibytes << 10)
    }

    #[test]
    fn an_arena_that_is_not_mapped_keeps_its_bytes() {
        const BYTES: usize = 6 << 20;
        let (segment, file) = Segment::nameless(c"test", BYTES).expect("memory");
        let arena = Arena::unmapped(file, BYTES as u64);
        assert_eq!((arena.len(), arena.is_empty()), (BYTES as u64, false));
        let bytes: vec::Vec<u8> = (0..BYTES).map(|at| (at / 4096) as u8 ^ at as u8).collect();
        let mut from = 0;
        for length in [5, 700_000, 4096, HUGE_PAGE + 1].into_iter().cycle() {
            let to = (from + length).min(BYTES);
            let copy = if from % 2 == 0 { Arena::copy_in } else { Arena::stream_in };
            copy(&arena, from as u64, &bytes[from..to]).expect("in range");
            from = to;
            if to == BYTES {
                break;
            }
        }
        let mut to = vec![0; BYTES];
        segment.copy_out(0, &mut to).expect("in range");
        assert!(to == bytes, "others see what was written");
        arena.zero(100, 9000).expect("in range");
        let mut to = vec![1; 3 << 20];
        arena.copy_out(99, &mut to).expect("in range");
        assert!(to[0] == bytes[99] && to[1..9001].iter().all(|byte| *byte == 0));
        assert!(to[9001..] == bytes[9100..99 + to.len()]);
        for location in [BYTES as u64 - 5, BYTES as u64, u64::MAX - 3] {
            assert_eq!(arena.copy_out(location, &mut to[..6]), Err(Errno::EIO));
            assert_eq!(arena.copy_in(location, &to[..6]), Err(Errno::EIO));
            assert_eq!(arena.zero(location, 6), Err(Errno::EIO));
        }
    }

    #[test]
    fn a_limited_arena_keeps_its_bytes_and_few_pages_mapped() {
        const BYTES: usize = 48 << 20;
        let (_, file) = Segment::nameless(c"test", BYTES).expect("memory");
        let arena = Arena::in_windows(file, BYTES as u64);
        let byte = |at: usize| (at / 4096) as u8 ^ (at >> 20) as u8;
        // Ranges that begin and end within parts, some longer than one.
        let lengths = [700_000, HUGE_PAGE, 3 * HUGE_PAGE + 5, 4096];
        let mut at = 0;
        for length in lengths.into_iter().cycle() {
            let length = length.min(BYTES - at);
            let bytes: vec::Vec<u8> = (at..at + length).map(byte).collect();
            if at % 3 == 0 {
                arena.copy_in(at as u64, &bytes).expect("in range");
            } else {
                arena.stream_in(at as u64, &bytes).expect("in range");
            }
            at += length;
            if at == BYTES {
                break;
            }
        }
        assert!((1..=windows::BYTES).contains(&resident().expect("their size")));
        let mut to = vec![0; 5 * HUGE_PAGE / 2];
        for start in (0..BYTES - to.len()).step_by(9_876_543) {
            arena.copy_out(start as u64, &mut to).expect("in range");
            assert!(to.iter().zip(start..).all(|(got, at)| *got == byte(at)), "from {start}");
        }
        assert!((1..=windows::BYTES).contains(&resident().expect("their size")));
        arena.zero(HUGE_PAGE as u64 - 10, 20 + HUGE_PAGE as u64).expect("in range");
        arena.copy_out(HUGE_PAGE as u64 - 11, &mut to).expect("in range");
        assert!(to[0] == byte(HUGE_PAGE - 11) && to[1..HUGE_PAGE].iter().all(|byte| *byte == 0));
        assert_eq!(arena.copy_out(BYTES as u64 - 5, &mut to[..6]), Err(Errno::EIO));
    }

    /// Threads that replace each other's parts all the time find what they wrote, and nothing else
    /// changes. One window is left as by a thread that a fault took out of its copy.
    #[test]
    fn threads_share_windows() {
        const PARTS: usize = 40;
        const THREADS: usize = 6;
        const BLOCK: usize = 96 << 10;
        let arenas = [(); 2].map(|()| {
            let bytes = PARTS * PART - 12 * PAGE_BYTES;
            let (whole, file) = Segment::nameless(c"test", bytes).expect("memory");
            (Arena::in_windows(file, bytes as u64), whole)
        });
        arenas[0].0.copy_in(0, &vec![0; BLOCK]).expect("in range");
        core::mem::forget(arenas[0].0.window(0, 1));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let arenas = &arenas;
                scope.spawn(move || {
                    let mut seed = thread as u64 + 1;
                    let mut written = [0u64; 2 * PARTS];
                    let mut to = vec![0; BLOCK];
                    for round in 1..2000u64 {
                        seed = wire::hash::mix(seed, round);
                        let (part, of) = (seed as usize % PARTS, (seed >> 40) as usize % 2);
                        let length = if seed >> 50 & 1 == 0 { 4096 } else { BLOCK };
                        let at = (part * PART + thread * BLOCK) as u64;
                        let known = &mut written[2 * part + of];
                        let arena = &arenas[of].0;
                        arena.copy_out(at, &mut to[..length]).expect("in range");
                        assert!(to[..length].iter().all(|byte| u64::from(*byte) == *known));
                        if seed >> 51 & 1 == 0 {
                            *known = 1 + round % 255;
                            let copy = [Arena::copy_in, Arena::stream_in][seed as usize >> 52 & 1];
                            copy(arena, at, &vec![*known as u8; BLOCK]).expect("in range");
                        }
                    }
                });
            }
        });
        for (arena, whole) in &arenas {
            for part in 0..PARTS {
                let length = if part == PARTS - 1 { PART - 12 * PAGE_BYTES } else { PART };
                let (mut one, mut other) = (vec![0; length], vec![0; length]);
                arena.copy_out((part * PART) as u64, &mut one).expect("in range");
                whole.copy_out(part * PART, &mut other).expect("in range");
                assert!(one == other, "part {part}");
                assert!(one[THREADS * BLOCK..].iter().all(|byte| *byte == 0), "part {part}");
            }
        }
    }
}
