//! A mapping of shared memory, and the only access to its bytes: atomics and raw copies, each
//! checked against the length of the mapping.

use crate::sync::{self, AtomicU32, AtomicU64};
use core::ops::Range;
use core::sync::atomic::AtomicU32 as FutexWord;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno as OsErrno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use wire::errno::{Errno, Result};

const PAGE: usize = 4096;
/// On a first load the kernel maps the pages present in this many bytes around it
/// (`fault_around_bytes`).
const MAPPED_AROUND: usize = 64 << 10;
/// Programs have addresses below this one: half of what 48 bits can name.
const ADDRESSES_END: usize = 1 << 47;
/// Size of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Access that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read-only. A store through such a mapping ends the process, so none is offered.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// One mapping. It is unmapped when dropped.
///
/// Invariant: `base .. base + length` stays mapped for the life of the value, and the file behind
/// it never shrinks (our files are sealed, or are in a directory that only the owner enters).
pub struct Segment {
    base: *mut u8,
    length: usize,
    access: Access,
}

// SAFETY: the value is an address and a length; every access is an atomic or a raw copy.
unsafe impl Send for Segment {}
// SAFETY: as above; two threads in the same bytes are what shared memory is for.
unsafe impl Sync for Segment {}

/// Our errno for one of the operating system.
#[must_use]
pub fn errno(os: OsErrno) -> Errno {
    Errno(u16::try_from(os.raw_os_error()).unwrap_or(Errno::EIO.0))
}

/// Makes the memory of a range of a file present, without mapping it.
///
/// # Errors
/// `ENOSPC` if the file system or the memory is full.
pub fn allocate(file: impl AsFd, range: Range<usize>) -> Result<()> {
    let (start, length) = (range.start as u64, range.len() as u64);
    loop {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), start, length) {
            Ok(()) => return Ok(()),
            Err(OsErrno::INTR) => {}
            // A file system without the call, such as ramfs, has no limit.
            Err(OsErrno::OPNOTSUPP) => return Ok(()),
            Err(OsErrno::NOMEM) => return Err(Errno::ENOSPC),
            Err(os) => return Err(errno(os)),
        }
    }
}

/// An entry of a table in shared memory, field by field as it is laid out there.
///
/// # Safety
/// The type is `repr(C)` and consists of atomics alone.
pub(crate) unsafe trait SharedEntry {}

impl Segment {
    /// Creates or opens the file `path` (mode 0600), makes it at least `length` long, and maps it.
    /// The second result is true if this call created the file.
    ///
    /// # Errors
    /// Errors of the operating system; `EIO` if an existing file is shorter than `length` and
    /// cannot grow.
    pub fn create(path: &core::ffi::CStr, length: usize) -> Result<(Segment, OwnedFd, bool)> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let (fd, made) = match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Ok(fd) => (fd, true),
            Err(OsErrno::EXIST) => {
                (rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?, false)
            }
            Err(os) => return Err(errno(os)),
        };
        let size = rustix::fs::fstat(&fd).map_err(errno)?.st_size;
        if u64::try_from(size).unwrap_or(0) < length as u64 {
            rustix::fs::ftruncate(&fd, length as u64).map_err(errno)?;
        }
        let segment = Segment::map(&fd, length, Access::ReadWrite)?;
        Ok((segment, fd, made))
    }

    /// Creates nameless memory that can be passed to a client and that the client cannot shrink.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn nameless(name: &core::ffi::CStr, length: usize) -> Result<(Segment, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(errno)?;
        rustix::fs::ftruncate(&fd, length as u64).map_err(errno)?;
        // Without the seals a client could truncate the memory and kill the daemon by SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(errno)?;
        let segment = Segment::map(&fd, length, Access::ReadWrite)?;
        Ok((segment, fd))
    }

    /// A mapping of nothing, at an address that no program has.
    #[must_use]
    pub const fn nothing() -> Segment {
        let base = core::ptr::without_provenance_mut(ADDRESSES_END);
        Segment { base, length: 0, access: Access::ReadWrite }
    }

    /// Maps the first `length` bytes of `fd`, which must be that long.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter; errors of the operating system.
    pub fn map(fd: impl AsFd, length: usize, access: Access) -> Result<Segment> {
        Segment::map_part(fd, 0, length, access)
    }

    /// Maps `length` bytes of `fd` from `offset` on, a multiple of the page size. The file must
    /// reach that far.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter; errors of the operating system.
    pub fn map_part(fd: impl AsFd, offset: u64, length: usize, access: Access) -> Result<Segment> {
        let size = rustix::fs::fstat(&fd).map_err(errno)?.st_size;
        let end = offset.checked_add(length as u64).ok_or(Errno::EINVAL)?;
        if length == 0 || u64::try_from(size).unwrap_or(0) < end {
            return Err(Errno::EINVAL);
        }
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        if length >= HUGE_PAGE {
            return Segment::map_aligned(fd, offset, length, access, protection);
        }
        // WHY: mapping is the purpose of this crate; no safe call can promise that a file keeps its
        // length.
        // SAFETY: the kernel picks the address, so nothing else is mapped over; the length is not
        // zero; the file reaches that far and, by the type's invariant, never shrinks.
        let base = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, length, protection, MapFlags::SHARED, fd, offset)
        }
        .map_err(errno)?;
        Ok(Segment { base: base.cast(), length, access })
    }

    /// Maps two ranges of `fd` behind each other: the bytes of `second` follow those of `first`. Both
    /// begin and end at multiples of the page size. The file must reach that far.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter, or a range is empty or not of whole pages; errors of the
    /// operating system.
    pub fn map_two(
        fd: impl AsFd,
        first: Range<usize>,
        second: Range<usize>,
        access: Access,
    ) -> Result<Segment> {
        let size = rustix::fs::fstat(&fd).map_err(errno)?.st_size;
        let size = usize::try_from(size).unwrap_or(0);
        let is_whole = |range: &Range<usize>| {
            let ends = [range.start, range.end];
            !range.is_empty() && range.end <= size && ends.iter().all(|at| at.is_multiple_of(PAGE))
        };
        if !is_whole(&first) || !is_whole(&second) {
            return Err(Errno::EINVAL);
        }
        let length = first.len().checked_add(second.len()).ok_or(Errno::EINVAL)?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (flags, null) = (MapFlags::PRIVATE | MapFlags::NORESERVE, core::ptr::null_mut());
        // WHY: only a mapping at a chosen address lies behind another one.
        // SAFETY: the kernel picks the address, so nothing else is mapped over.
        let base = unsafe { rustix::mm::mmap_anonymous(null, length, ProtFlags::empty(), flags) }
            .map_err(errno)?
            .cast::<u8>();
        // From here on the range is unmapped on failure, too.
        let segment = Segment { base, length, access };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        for (at, range) in [(0, &first), (first.len(), &second)] {
            let start = base.wrapping_add(at).cast();
            // SAFETY: this replaces a part of the reserved range, which is ours and not in use; the
            // file reaches that far and, by the type's invariant, never shrinks.
            unsafe {
                rustix::mm::mmap(start, range.len(), protection, flags, &fd, range.start as u64)
            }
            .map_err(errno)?;
        }
        Ok(segment)
    }

    /// As `map_part`, at an address where the huge pages of the file fit.
    fn map_aligned(
        fd: impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        protection: ProtFlags,
    ) -> Result<Segment> {
        let reserved = length.checked_add(2 * HUGE_PAGE).ok_or(Errno::EINVAL)?;
        let (flags, null) = (MapFlags::PRIVATE | MapFlags::NORESERVE, core::ptr::null_mut());
        // WHY: the kernel aligns a mapping by itself only where it decides to use huge pages.
        // SAFETY: the kernel picks the address, so nothing else is mapped over.
        let start =
            unsafe { rustix::mm::mmap_anonymous(null, reserved, ProtFlags::empty(), flags) }
                .map_err(errno)?
                .cast::<u8>();
        let skew = offset as usize % HUGE_PAGE;
        let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr() + skew;
        let after = before + length.next_multiple_of(PAGE);
        let base = start.wrapping_add(before);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: this replaces a part of the reserved range, which is ours and not in use; the
        // file is as in `map_part`. The rest of the range, or all of it on failure, is unmapped.
        unsafe {
            let mapped = rustix::mm::mmap(base.cast(), length, protection, flags, fd, offset);
            if let Err(os) = mapped {
                let _ = rustix::mm::munmap(start.cast(), reserved);
                return Err(errno(os));
            }
            if before > 0 {
                let _ = rustix::mm::munmap(start.cast(), before);
            }
            let _ = rustix::mm::munmap(start.wrapping_add(after).cast(), reserved - after);
        }
        Ok(Segment { base, length, access })
    }

    /// Addresses where huge pages fit and nothing is mapped yet: a mapping for `replace`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn vacant(length: usize) -> Result<Segment> {
        let reserved = length.checked_add(HUGE_PAGE).ok_or(Errno::EINVAL)?;
        let (flags, null) = (MapFlags::PRIVATE | MapFlags::NORESERVE, core::ptr::null_mut());
        // WHY: only the kernel gives out addresses.
        // SAFETY: the kernel picks the address, so nothing else is mapped over.
        let start =
            unsafe { rustix::mm::mmap_anonymous(null, reserved, ProtFlags::empty(), flags) }
                .map_err(errno)?
                .cast::<u8>();
        let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        let base = start.wrapping_add(before);
        // SAFETY: these are the ends of the reserved range, which is ours and not in use.
        unsafe {
            if before > 0 {
                let _ = rustix::mm::munmap(start.cast(), before);
            }
            let after = base.wrapping_add(length);
            let _ = rustix::mm::munmap(after.cast(), reserved - before - length);
        }
        Ok(Segment { base, length, access: Access::ReadWrite })
    }

    /// Maps `length` bytes of `fd` from `offset` on at `at`, in place of what is mapped there, into
    /// which nobody may hold a reference or copy. The file must reach that far.
    ///
    /// # Errors
    /// `EIO` if the range is not in the mapping or not of whole pages; `EINVAL` if the file is
    /// shorter; errors of the operating system: then these addresses may no longer be ours.
    pub(crate) fn replace(
        &self,
        at: usize,
        length: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<()> {
        let start = self.admit(at, length, PAGE).filter(|_| length > 0).ok_or(Errno::EIO)?;
        let size = rustix::fs::fstat(fd).map_err(errno)?.st_size;
        let end = offset.checked_add(length as u64).ok_or(Errno::EINVAL)?;
        if u64::try_from(size).unwrap_or(0) < end {
            return Err(Errno::EINVAL);
        }
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // WHY: a mapping of parts of a file that is longer than the addresses for it.
        // SAFETY: the range is in our own mapping, and not in use as the caller vouches; the file
        // reaches that far and, by the type's invariant, never shrinks.
        unsafe { rustix::mm::mmap(start.cast(), length, protection, flags, fd, offset) }
            .map(drop)
            .map_err(errno)
    }

    /// Turns the memory of the whole mapping into huge pages, each of which must have at least one
    /// small page present; missing pages become zeros. Only whole huge pages.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.1, or without huge pages; `ENOMEM`, `EAGAIN` where memory is
    /// fragmented: some of the pages may be huge then.
    pub fn collapse(&self) -> Result<()> {
        // WHY: no other call makes huge pages for shared memory independently of system settings.
        // SAFETY: the range is our mapping; the call changes no byte. The error number is the
        // calling thread's own.
        unsafe {
            match libc::madvise(self.base.cast(), self.length, libc::MADV_COLLAPSE) {
                0 => Ok(()),
                _ => Err(errno(OsErrno::from_raw_os_error(*libc::__errno_location()))),
            }
        }
    }

    /// Start of a writable mapping, for a device that reads and writes there as another process
    /// would; `None` if it is read-only.
    #[must_use]
    pub const fn writable(&self) -> Option<*mut u8> {
        match self.access {
            Access::ReadOnly => None,
            Access::ReadWrite => Some(self.base),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// True if the mapping is empty; never the case for a segment made by this module.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Puts memory of this process alone, filled with zeros, in place of the shared memory: for a
    /// process that must not see it any more. Stores of a call in progress are lost.
    pub fn detach(&self) {
        if self.is_empty() {
            return;
        }
        let protection = match self.access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        for protection in [protection, ProtFlags::empty()] {
            // WHY: only a mapping in its place ends a mapping and keeps its addresses valid.
            // SAFETY: this replaces our mapping as a whole. References into it stay valid: they see
            // zeros. Where limits of the process refuse memory that can be stored to, an access ends
            // the process; none follows, because its owner makes no call any more.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(self.base.cast(), self.length, protection, flags)
            };
            if mapped.is_ok() {
                return;
            }
        }
    }

    /// The address of its first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.expose_provenance()
    }

    /// Unmaps the pages of a mapping of a file: they no longer count as memory of this process. The
    /// next access maps them again, with the same bytes.
    pub fn unmap_pages(&self) {
        if self.length == 0 {
            return;
        }
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // WHY: only the kernel unmaps pages.
        // SAFETY: the range is our own mapping. Its bytes are in the file, which is shared, so an
        // access of another thread meanwhile finds them, too. Private memory has other methods.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), self.length, advice) };
    }

    #[inline]
    fn admit(&self, offset: usize, length: usize, align: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.length || !offset.is_multiple_of(align) {
            return None;
        }
        Some(self.base.wrapping_add(offset))
    }

    /// The atomic word of 4 bytes at `offset`.
    ///
    /// # Errors
    /// `EIO` if it is not in the mapping or is not aligned.
    #[inline]
    pub fn word32(&self, offset: usize) -> Result<&AtomicU32> {
        let at = self.admit(offset, 4, 4).ok_or(Errno::EIO)?;
        // WHY: an atomic in shared memory is a reference into the mapping.
        // SAFETY: in range and aligned (the base is page-aligned); lives as long as the mapping;
        // every access to shared words is atomic. Stores need a writable mapping: the types that
        // map read-only offer no store.
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// The atomic word of 8 bytes at `offset`.
    ///
    /// # Errors
    /// `EIO` if it is not in the mapping or is not aligned.
    #[inline]
    pub fn word64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.admit(offset, 8, 8).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `word32`.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// `N` atomic words of 8 bytes from `offset` on, checked once.
    ///
    /// # Errors
    /// `EIO` if they are not in the mapping or are not aligned.
    #[inline]
    pub fn words<const N: usize>(&self, offset: usize) -> Result<&[AtomicU64; N]> {
        let at = self.admit(offset, 8 * N, 8).ok_or(Errno::EIO)?;
        // WHY: an entry is read word by word, and a check against the mapping's length for each
        // would cost as much as the read.
        // SAFETY: as for `word32`, for each word: an atomic has the layout of its number, and the
        // array that of its words.
        Ok(unsafe { &*at.cast::<[AtomicU64; N]>() })
    }

    /// As `words`, for words of 4 bytes.
    ///
    /// # Errors
    /// As `words`.
    #[inline]
    pub fn shorts<const N: usize>(&self, offset: usize) -> Result<&[AtomicU32; N]> {
        let at = self.admit(offset, 4 * N, 4).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `words`.
        Ok(unsafe { &*at.cast::<[AtomicU32; N]>() })
    }

    /// The table entry at `offset`, checked once.
    ///
    /// # Errors
    /// As `words`.
    #[inline]
    pub(crate) fn entry<T: SharedEntry>(&self, offset: usize) -> Result<&T> {
        let at = self.admit(offset, size_of::<T>(), align_of::<T>()).ok_or(Errno::EIO)?;
        // WHY: as for `words`, for entries with fields of both sizes.
        // SAFETY: as for `words`; by the trait's promise the entry is nothing but atomics in the
        // order in which they are declared.
        Ok(unsafe { &*at.cast::<T>() })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `EIO` if they are not in the mapping.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = self.admit(offset, to.len(), 1).ok_or(Errno::EIO)?;
        // WHY: bytes that another process may change cannot be borrowed as a slice.
        // SAFETY: in range; `to` is our own memory, apart from the mapping. A concurrent store by
        // another process yields bytes of either content, which callers treat as claims.
        unsafe { sync::copy_nonoverlapping(at, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `EIO` if they do not fit the mapping, or the mapping is read-only.
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        let at = self.admit(offset, from.len(), 1).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `copy_out`; the mapping is writable.
        unsafe { sync::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        Ok(())
    }

    /// Copies bytes in, bypassing the processor's cache: as `copy_in`, for bytes that nobody reads
    /// soon.
    ///
    /// # Errors
    /// As `copy_in`.
    pub fn stream_in(&self, offset: usize, from: &[u8]) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        let at = self.admit(offset, from.len(), 1).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `copy_in`.
        unsafe { sync::copy_past_cache(from.as_ptr(), at, from.len()) };
        Ok(())
    }

    /// Zeroes bytes.
    ///
    /// # Errors
    /// As `copy_in`.
    pub fn zero(&self, offset: usize, length: usize) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        let at = self.admit(offset, length, 1).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `copy_in`.
        unsafe { sync::write_bytes(at, 0, length) };
        Ok(())
    }

    /// Sends `head` and then `length` bytes from `offset` on to a socket: as many of both together
    /// as the socket takes now.
    ///
    /// # Errors
    /// `EIO` if the bytes are not in the mapping; `EAGAIN` if the socket takes none now; other
    /// errors of the operating system.
    pub fn send(
        &self,
        head: &[u8],
        offset: usize,
        length: usize,
        to: BorrowedFd<'_>,
    ) -> Result<usize> {
        let at = self.admit(offset, length, 1).ok_or(Errno::EIO)?;
        let mut parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: at.cast(), iov_len: length },
        ];
        // WHY: bytes that another process may change cannot be borrowed as a slice; the kernel
        // copies them directly.
        // SAFETY: a header of zeros is an empty one; its parts are `head` and a range of our
        // mapping, which the call only reads. The error number is the calling thread's own.
        unsafe {
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = parts.len() as _;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            moved(libc::sendmsg(to.as_raw_fd(), &raw const message, flags))
        }
    }

    /// Receives up to `length` bytes that are available now from a socket to `offset`. 0: end of
    /// stream.
    ///
    /// # Errors
    /// `EIO` if the bytes are not in the mapping or it is read-only; `EAGAIN` if nothing is
    /// available now; other errors of the operating system.
    pub fn receive(&self, offset: usize, length: usize, from: BorrowedFd<'_>) -> Result<usize> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        let at = self.admit(offset, length, 1).ok_or(Errno::EIO)?;
        // WHY: as for `send`.
        // SAFETY: the kernel writes into a range of our mapping, which is writable, as `copy_in`
        // does. The error number is the calling thread's own.
        unsafe { moved(libc::recv(from.as_raw_fd(), at.cast(), length, libc::MSG_DONTWAIT)) }
    }

    /// Memory of this process alone, filled with zeros; zeros again in a child made by fork.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn private(length: usize) -> Result<Segment> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // WHY: a table as long as the arena needs must not be touched before it is used.
        // SAFETY: the kernel picks the address, so nothing else is mapped over.
        let base = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap_anonymous(null, length, protection, MapFlags::PRIVATE)
        }
        .map_err(errno)?;
        let segment = Segment { base: base.cast(), length, access: Access::ReadWrite };
        // SAFETY: the range is our mapping; the advice changes what a child sees, nothing here.
        unsafe { rustix::mm::madvise(base, length, rustix::mm::Advice::LinuxWipeOnFork) }
            .map_err(errno)?;
        Ok(segment)
    }

    /// Makes the pages of a range present for writing, which avoids single page faults. A hint:
    /// work that the kernel cannot do now happens at the first touch.
    pub fn populate(&self, offset: usize, length: usize) {
        if self.access == Access::ReadWrite {
            let _ = self.advise(offset, length, rustix::mm::Advice::LinuxPopulateWrite);
        }
    }

    /// Makes the pages of a range present, so that no access to them fails later. A store into, or
    /// a load from, a page of shared memory for which its file system has no room ends the process
    /// by SIGBUS; this returns an error instead.
    ///
    /// # Errors
    /// `ENOSPC` if the file system or the memory is full; `EIO` if the range is not in the mapping
    /// or the mapping is read-only.
    pub fn reserve(&self, offset: usize, length: usize) -> Result<()> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        self.admit(offset, length, 1).ok_or(Errno::EIO)?;
        let how = rustix::mm::Advice::LinuxPopulateWrite;
        loop {
            match self.advise(offset, length, how) {
                Ok(()) => return Ok(()),
                Err(OsErrno::INTR) => {}
                // Linux before 5.14.
                Err(OsErrno::INVAL) => return self.reserve_singly(offset, length),
                Err(OsErrno::FAULT | OsErrno::NOMEM) => return Err(Errno::ENOSPC),
                Err(os) => return Err(errno(os)),
            }
        }
    }

    /// As `reserve`, page by page. The kernel reads the word that a futex call names, and returns
    /// an error where the calling thread itself would get a signal. Nobody waits on these words.
    fn reserve_singly(&self, offset: usize, length: usize) -> Result<()> {
        let end = offset.saturating_add(length);
        for page in (offset & !(PAGE - 1)..end).step_by(PAGE) {
            let at = self.admit(page, 4, 4).ok_or(Errno::EIO)?;
            // WHY: as for `word32`, with the standard library's type, as the call wants it.
            // SAFETY: as for `word32`; the call reads the word and stores nothing.
            let word = unsafe { FutexWord::from_ptr(at.cast()) };
            let woken = futex::wake(word, futex::Flags::empty(), 1);
            if let Err(OsErrno::FAULT | OsErrno::NOMEM) = woken {
                return Err(Errno::ENOSPC);
            }
        }
        Ok(())
    }

    /// Maps those pages of a range about to be written that are present already.
    ///
    /// A first store maps only the page it hits, a first load all that are present around it: with
    /// small pages 3.5 us for 64 KiB instead of 21, which is three times the copy. Of a huge page
    /// it maps all. Where the pages are mapped already it costs a load for each 64 KiB.
    pub fn map_present(&self, offset: usize, length: usize) {
        let Some(at) = self.admit(offset, length, 1).filter(|_| length > 0) else { return };
        let mut place = 0;
        let mut next = MAPPED_AROUND - at.addr() % MAPPED_AROUND;
        loop {
            // WHY: the load is for the mapping that the kernel does on it, so the compiler must not
            // drop it.
            // SAFETY: in range. Another process may change the byte meanwhile; it is not used.
            let _ = unsafe { at.wrapping_add(place).read_volatile() };
            if next >= length {
                return;
            }
            place = next;
            next = next.saturating_add(MAPPED_AROUND);
        }
    }

    fn advise(
        &self,
        offset: usize,
        length: usize,
        how: rustix::mm::Advice,
    ) -> rustix::io::Result<()> {
        let from = offset & !(PAGE - 1);
        let end = offset.saturating_add(length).min(self.length);
        if from >= end {
            return Ok(());
        }
        // WHY: a fault costs several times the page, and cannot fail.
        // SAFETY: the range is in our mapping; populating changes no byte.
        unsafe { rustix::mm::madvise(self.base.wrapping_add(from).cast(), end - from, how) }
    }

    /// Runs `with` on memory of this process alone: the message area of a slot that the calling
    /// thread has claimed.
    ///
    /// # Errors
    /// As `copy_in`.
    pub(crate) fn with_own<R>(
        &self,
        offset: usize,
        length: usize,
        with: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        if self.access == Access::ReadOnly {
            return Err(Errno::EIO);
        }
        let at = self.admit(offset, length, 1).ok_or(Errno::EIO)?;
        sync::point();
        // WHY: encoding a request in place saves a copy of it.
        // SAFETY: in range and writable. The slot is claimed by the calling thread and in no
        // submitted state, and the daemon touches a slot only between submission and reply.
        Ok(with(unsafe { core::slice::from_raw_parts_mut(at, length) }))
    }
}

/// Byte count or error of a C library call that moves bytes.
fn moved(count: isize) -> Result<usize> {
    usize::try_from(count).map_err(|_| {
        // SAFETY: the error number is the calling thread's own, and the call that set it has just
        // returned.
        errno(OsErrno::from_raw_os_error(unsafe { *libc::__errno_location() }))
    })
}

impl Drop for Segment {
    fn drop(&mut self) {
        // WHY: what was mapped must be unmapped.
        // SAFETY: this value made the mapping and nobody holds a reference into it any more: they
        // borrow from `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}
