//! `mmap` of files of the instance.
//!
//! A private mapping is anonymous memory with the file's bytes copied in: a program may not count
//! on seeing later changes of the file through it, and the loader, git and most readers never do. A
//! shared mapping that is only read gets the same. A shared mapping that is written is refused
//! with ENODEV, as by file systems without it, so that no program believes its stores to be saved.

use crate::calls::state::{client, kernel, ours};
use crate::calls::{Answer, answer, failed, native, user};
use client::{OfdIndex, Position};
use wire::errno::{Errno, Result};

/// Bytes of a page of the only page size that is supported.
const PAGE_BYTES: u64 = 4096;

/// `mmap`: address, length, protection, flags, descriptor, offset.
#[must_use]
pub fn map(a: [u64; 6]) -> Answer {
    let flags = a[3] as i32;
    if flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let file = ours(a[4])?;
    if !a[5].is_multiple_of(PAGE_BYTES) || a[1] == 0 {
        return Some(failed(Errno::EINVAL));
    }
    answer(map_file(file, a))
}

fn map_file(file: OfdIndex, a: [u64; 6]) -> Result<u64> {
    let (length, protection, flags, offset) = (a[1], a[2] as i32, a[3] as i32, a[5]);
    let client = client()?;
    let access = client.flags(file)? as i32 & libc::O_ACCMODE;
    if access == libc::O_WRONLY {
        return Err(Errno::EACCES);
    }
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if !is_private && protection & libc::PROT_WRITE != 0 {
        return Err(if access == libc::O_RDONLY { Errno::EACCES } else { Errno::ENODEV });
    }
    let flags = (flags & !libc::MAP_TYPE) | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let none = u64::from(u32::MAX);
    let mapped =
        native::call(libc::SYS_mmap, [a[0], length, writable, flags as u32 as u64, none, 0]);
    let address = kernel(mapped)? as u64;
    let outcome = fill(file, address, length, offset).and_then(|()| {
        let protect = [address, length, protection as u32 as u64, 0, 0, 0];
        kernel(native::call(libc::SYS_mprotect, protect))
    });
    match outcome {
        Ok(_) => Ok(address),
        Err(errno) => {
            let _ = native::call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]);
            Err(errno)
        }
    }
}

fn fill(file: OfdIndex, address: u64, length: u64, offset: u64) -> Result<()> {
    let client = client()?;
    let mut done = 0;
    while done < length {
        let part = usize::try_from((length - done).min(1 << 30)).unwrap_or(0);
        let to = user::bytes_mut(address + done, part)?;
        match client.read(file, to, Position::At(offset.saturating_add(done)))? {
            0 => break,
            count => done += count as u64,
        }
    }
    Ok(())
}
