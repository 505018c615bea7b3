//! Memory that the application passes by address.
//!
//! A call of the kernel's goes to the kernel, which checks addresses itself. For ours, an address
//! outside user space is EFAULT, and so is that of a string in unmapped low memory. Another
//! unmapped address crashes the program, as in any library function that gets it.

use crate::arch;
use crate::calls::native;
use wire::errno::{Errno, Result};
use wire::limits::PATH_BYTES_MAX;

/// The first page is never mapped, and addresses from `HIGHEST` on are the kernel's.
const LOWEST: u64 = 4096;
const HIGHEST: u64 = 1 << 47;

/// Below this are the data of programs at fixed addresses, and numbers that programs pass for
/// addresses by mistake: one call tells them apart.
const SUSPICIOUS: u64 = 1 << 32;

fn is_mapped(address: u64) -> Result<()> {
    let page = address & !(LOWEST - 1);
    let mut present = 0u8;
    let to = (&raw mut present) as u64;
    match native::call(libc::SYS_mincore, [page, LOWEST, to, 0, 0, 0]) {
        0 => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn admit(address: u64, length: usize) -> Result<()> {
    let end = address.checked_add(length as u64).ok_or(Errno::EFAULT)?;
    if address < LOWEST || end > HIGHEST { Err(Errno::EFAULT) } else { Ok(()) }
}

/// Bytes that the application wants read.
///
/// # Errors
/// `EFAULT` for an address outside user space.
pub fn bytes<'a>(address: u64, length: usize) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    admit(address, length)?;
    // WHY: the application's buffer is only known by its address.
    // SAFETY: the application passed the buffer for the duration of the call; see the header.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
}

/// Bytes that the application wants written.
///
/// # Errors
/// `EFAULT` for an address outside user space.
pub fn bytes_mut<'a>(address: u64, length: usize) -> Result<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    admit(address, length)?;
    // WHY and SAFETY: as for `bytes`; the call writes there by its contract.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length) })
}

/// A path without its NUL.
///
/// # Errors
/// `EFAULT` for an address outside user space, `ENAMETOOLONG` without a NUL in `PATH_MAX` bytes.
pub fn path<'a>(address: u64) -> Result<&'a [u8]> {
    text(address, PATH_BYTES_MAX, Errno::ENAMETOOLONG)
}

/// A string of at most `limit` bytes with its NUL.
///
/// # Errors
/// `EFAULT` for an address outside user space, `too_long` without a NUL in `limit` bytes.
pub fn text<'a>(address: u64, limit: usize, too_long: Errno) -> Result<&'a [u8]> {
    admit(address, 1)?;
    if address < SUSPICIOUS {
        is_mapped(address)?;
    }
    // WHY: the length of a string is known only by reading it.
    // SAFETY: every byte up to the NUL belongs to the string that the application passed.
    let length = unsafe { arch::text_length(address as *const u8, limit) };
    if length < limit { bytes(address, length) } else { Err(too_long) }
}

/// A value that the application passes by address.
///
/// # Errors
/// `EFAULT` for an address outside user space.
pub fn get<T: Copy>(address: u64) -> Result<T> {
    admit(address, size_of::<T>())?;
    // WHY and SAFETY: as for `bytes`; callers name plain C structures that any bytes are valid for.
    Ok(unsafe { (address as *const T).read_unaligned() })
}

/// Stores a value where the application wants it.
///
/// # Errors
/// `EFAULT` for an address outside user space.
pub fn put<T: Copy>(address: u64, value: T) -> Result<()> {
    admit(address, size_of::<T>())?;
    // WHY and SAFETY: as for `bytes_mut`.
    unsafe { (address as *mut T).write_unaligned(value) };
    Ok(())
}

/// The buffers of a vectored call.
#[derive(Clone)]
pub struct Vectors {
    next: u64,
    left: usize,
}

/// Most buffers of one call, as `UIO_MAXIOV`.
const VECTORS_MAX: u64 = 1024;

impl Vectors {
    /// `count` buffers described at `address`.
    ///
    /// # Errors
    /// `EINVAL` for too many, or for a sum beyond what one call moves; `EFAULT` for a buffer
    /// outside user space.
    pub fn new(address: u64, count: u64) -> Result<Vectors> {
        if count > VECTORS_MAX {
            return Err(Errno::EINVAL);
        }
        let vectors = Vectors { next: address, left: count as usize };
        let mut sum = 0u64;
        for (start, length) in vectors.clone() {
            if length > 0 {
                admit(start, length)?;
            }
            sum = sum.checked_add(length as u64).ok_or(Errno::EINVAL)?;
        }
        if sum > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(vectors) }
    }
}

impl Iterator for Vectors {
    type Item = (u64, usize);
    fn next(&mut self) -> Option<(u64, usize)> {
        if self.left == 0 {
            return None;
        }
        let entry: libc::iovec = get(self.next).ok()?;
        self.left -= 1;
        self.next += size_of::<libc::iovec>() as u64;
        Some((entry.iov_base as u64, entry.iov_len))
    }
}
