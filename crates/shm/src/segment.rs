//! A mapping of shared memory, and the only door to its bytes: atomics and raw copies, each checked
//! against the length of the mapping.

use crate::sync::{self, AtomicU32, AtomicU64};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno as OsErrno;
use rustix::mm::{MapFlags, ProtFlags};
use wire::errno::{Errno, Result};

const PAGE: usize = 4096;
/// At a first load the kernel maps what is there in so many bytes around it (`fault_around_bytes`).
const MAPPED_AROUND: usize = 64 << 10;
/// What a huge page holds.
pub const HUGE_PAGE: usize = 2 << 20;

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading. A store through such a mapping ends the process, so none is offered.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// One mapping. It is unmapped when dropped.
///
/// Invariant: `base .. base + length` stays mapped for the life of the value, and the file behind
/// it never shrinks (our files are sealed or lie in a directory that only the owner enters).
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

/// A row of a table in shared memory, as its words lie there.
///
/// # Safety
/// The type is `repr(C)` and made of atomics alone.
pub(crate) unsafe trait Row {}

impl Segment {
    /// Makes or opens the file `path` (mode 0600), makes it at least `length` long, and maps it.
    /// The second result is true if the file was made by this call.
    ///
    /// # Errors
    /// What the operating system says; `EIO` if an existing file is shorter than `length` would
    /// need and can not grow.
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

    /// Makes nameless memory that can be passed to a client and that the client can not shrink.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn nameless(name: &core::ffi::CStr, length: usize) -> Result<(Segment, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(errno)?;
        rustix::fs::ftruncate(&fd, length as u64).map_err(errno)?;
        // Without the seals a client could cut the memory and kill the daemon by SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(errno)?;
        let segment = Segment::map(&fd, length, Access::ReadWrite)?;
        Ok((segment, fd))
    }

    /// Maps the first `length` bytes of `fd`, which must be that long.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter, or what the operating system says.
    pub fn map(fd: impl AsFd, length: usize, access: Access) -> Result<Segment> {
        Segment::map_part(fd, 0, length, access)
    }

    /// Maps `length` bytes of `fd` from `offset` on, a multiple of the page size. The file must
    /// reach that far.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter, or what the operating system says.
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
        // WHY: mapping is what this crate is for; no safe call can promise that a file stays long.
        // SAFETY: the kernel picks the address, so nothing else is mapped over; the length is not
        // zero; the file reaches as far and, by the type's invariant, never shrinks.
        let base = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, length, protection, MapFlags::SHARED, fd, offset)
        }
        .map_err(errno)?;
        Ok(Segment { base: base.cast(), length, access })
    }

    /// As `map_part`, at an address at which the huge pages of the file fit.
    fn map_aligned(
        fd: impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        protection: ProtFlags,
    ) -> Result<Segment> {
        let room = length.checked_add(2 * HUGE_PAGE).ok_or(Errno::EINVAL)?;
        let (flags, null) = (MapFlags::PRIVATE | MapFlags::NORESERVE, core::ptr::null_mut());
        // WHY: the kernel aligns only where huge pages are its own idea.
        // SAFETY: the kernel picks the address, so nothing else is mapped over.
        let start = unsafe { rustix::mm::mmap_anonymous(null, room, ProtFlags::empty(), flags) }
            .map_err(errno)?
            .cast::<u8>();
        let skew = offset as usize % HUGE_PAGE;
        let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr() + skew;
        let after = before + length.next_multiple_of(PAGE);
        let base = start.wrapping_add(before);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: it replaces a part of the room, which is ours and not used; the file is as in
        // `map_part`. The rest of the room, or all of it, goes.
        unsafe {
            let mapped = rustix::mm::mmap(base.cast(), length, protection, flags, fd, offset);
            if let Err(os) = mapped {
                let _ = rustix::mm::munmap(start.cast(), room);
                return Err(errno(os));
            }
            if before > 0 {
                let _ = rustix::mm::munmap(start.cast(), before);
            }
            let _ = rustix::mm::munmap(start.wrapping_add(after).cast(), room - after);
        }
        Ok(Segment { base, length, access })
    }

    /// Makes the memory of the whole mapping huge pages, each of which must have one small page at
    /// least; what was not there is zeros. Whole huge pages only.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.1, or without huge pages; `ENOMEM`, `EAGAIN` where memory is in
    /// small parts: some of the pages may be huge then.
    pub fn collapse(&self) -> Result<()> {
        // WHY: no other call makes huge pages for shared memory whatever its settings are.
        // SAFETY: the range is our mapping; the call changes no byte. The error number is the
        // calling thread's own.
        unsafe {
            match libc::madvise(self.base.cast(), self.length, libc::MADV_COLLAPSE) {
                0 => Ok(()),
                _ => Err(errno(OsErrno::from_raw_os_error(*libc::__errno_location()))),
            }
        }
    }

    /// Where a writable mapping begins, for a device that is to read and write there as another
    /// process would; `None` if it is read-only.
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

    /// True if it maps nothing; never the case for a segment that was made.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
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
    /// `EIO` if it does not lie in the mapping or is not aligned.
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
    /// `EIO` if it does not lie in the mapping or is not aligned.
    #[inline]
    pub fn word64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.admit(offset, 8, 8).ok_or(Errno::EIO)?;
        // WHY and SAFETY: as for `word32`.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// `N` atomic words of 8 bytes from `offset` on, checked once.
    ///
    /// # Errors
    /// `EIO` if they do not lie in the mapping or are not aligned.
    #[inline]
    pub fn words<const N: usize>(&self, offset: usize) -> Result<&[AtomicU64; N]> {
        let at = self.admit(offset, 8 * N, 8).ok_or(Errno::EIO)?;
        // WHY: a row is read word by word, and each look at the mapping's length costs as much.
        // SAFETY: as for `word32`, for each word: an atomic has the layout of its number, and the array
        // that of its words.
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

    /// The row of a table at `offset`, checked once.
    ///
    /// # Errors
    /// As `words`.
    #[inline]
    pub(crate) fn row<T: Row>(&self, offset: usize) -> Result<&T> {
        let at = self.admit(offset, size_of::<T>(), align_of::<T>()).ok_or(Errno::EIO)?;
        // WHY: as for `words`, for rows of words of both sizes.
        // SAFETY: as for `words`; by the trait's promise the row is nothing but atomics in the order
        // in which they are declared.
        Ok(unsafe { &*at.cast::<T>() })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `EIO` if they do not lie in the mapping.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = self.admit(offset, to.len(), 1).ok_or(Errno::EIO)?;
        // WHY: bytes that another process may change can not be borrowed as a slice.
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

    /// Copies bytes in that nobody reads soon: as `copy_in`, but past the processor's cache.
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

    /// Makes bytes zero.
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
    /// as it takes now.
    ///
    /// # Errors
    /// `EIO` if the bytes do not lie in the mapping; `EAGAIN` if the socket takes none now, or what
    /// else the operating system says.
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
        // WHY: bytes that another process may change can not be borrowed as a slice; the kernel
        // copies them from where they lie.
        // SAFETY: a header of zeros is an empty one; its parts are `head` and a range of our
        // mapping, which the call only reads. The error number is the calling thread's own.
        unsafe {
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = parts.len() as _;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            moved(libc::sendmsg(to.as_raw_fd(), &message, flags))
        }
    }

    /// Receives up to `length` bytes from a socket to `offset`: what is there now. 0: its end.
    ///
    /// # Errors
    /// `EIO` if the bytes do not lie in the mapping or that is read-only; `EAGAIN` if nothing is
    /// there now, or what else the operating system says.
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

    /// Memory of this process alone, of zeros; zeros again in a child made by fork.
    ///
    /// # Errors
    /// What the operating system says.
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

    /// Makes the pages of a range present for writing, which spares faults one by one. A hint:
    /// what the kernel can not do now happens at the first touch.
    pub fn populate(&self, offset: usize, length: usize) {
        if self.access == Access::ReadWrite {
            self.advise(offset, length, rustix::mm::Advice::LinuxPopulateWrite);
        }
    }

    /// Maps the pages of a range that is about to be written, as far as they are there already.
    ///
    /// A first store maps the one page that it meets, a first load all that are there around it: of
    /// small pages 3.5 us for 64 KiB instead of 21, which is three times the copy. Of a huge page it
    /// maps all. Where they are mapped already it costs a load for each 64 KiB.
    pub fn map_present(&self, offset: usize, length: usize) {
        let Some(at) = self.admit(offset, length, 1).filter(|_| length > 0) else { return };
        let first = MAPPED_AROUND - at.addr() % MAPPED_AROUND;
        for place in core::iter::once(0).chain((first..length).step_by(MAPPED_AROUND)) {
            // WHY: the load is for what the kernel does at it, so it must not be left out.
            // SAFETY: in range. Another process may change the byte meanwhile; it is not used.
            let _ = unsafe { at.wrapping_add(place).read_volatile() };
        }
    }

    fn advise(&self, offset: usize, length: usize, how: rustix::mm::Advice) {
        let from = offset & !(PAGE - 1);
        let end = offset.saturating_add(length).min(self.length);
        if from >= end {
            return;
        }
        // WHY: a fault costs several times the page.
        // SAFETY: the range lies in our mapping; populating changes no byte.
        let _ =
            unsafe { rustix::mm::madvise(self.base.wrapping_add(from).cast(), end - from, how) };
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

/// What a call of the C library says that moved bytes.
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
