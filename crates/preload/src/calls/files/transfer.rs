//! Moving bytes: read, write, their positioned and vectored forms, seek, and copies between files.

use crate::calls::files::uses::FileUse;
use crate::calls::files::{kernel_io, mapping, reserved};
use crate::calls::process::state::{client, ours};
use crate::calls::{Answer, answer, failed, native, user};
use client::{BY_KERNEL, OfdIndex, Position};
use wire::errno::{Errno, Result};

/// Most bytes that one call moves, as in the kernel.
const CALL_BYTES_MAX: usize = 0x7fff_f000;

fn position(offset: u64) -> Result<Position> {
    if offset > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(Position::At(offset)) }
}

/// A position with a length; a range beyond the largest offset is refused, as by the kernel.
fn range(offset: u64, length: u64) -> Result<Position> {
    match offset.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(Position::At(offset)),
        _ => Err(Errno::EINVAL),
    }
}

/// `read`.
#[must_use]
pub fn read(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else { return reserved::refuse(a[0]) };
    let file = used.file();
    answer(read_one(file, a[1], a[2], Position::Current))
}

/// `pread64`.
#[must_use]
pub fn read_at(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else { return reserved::refuse(a[0]) };
    let file = used.file();
    answer(range(a[3], a[2]).and_then(|at| read_one(file, a[1], a[2], at)))
}

#[inline(always)]
fn read_one(file: OfdIndex, address: u64, length: u64, at: Position) -> Result<usize> {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(CALL_BYTES_MAX);
    read_into(file, user::bytes_mut(address, length)?, at)
}

/// Reads from an open file, through the mount if a kernel maps it.
///
/// # Errors
/// As `read(2)`.
#[inline(always)]
pub fn read_into(file: OfdIndex, to: &mut [u8], at: Position) -> Result<usize> {
    match client()?.read(file, to, at) {
        Err(BY_KERNEL) => kernel_io::read(file, to, at),
        done => done,
    }
}

/// Writes to an open file, through the mount if a kernel maps it.
///
/// # Errors
/// As `write(2)`.
#[inline(always)]
pub fn write_from(file: OfdIndex, from: &[u8], at: Position) -> Result<usize> {
    match client()?.write(file, from, at) {
        Err(BY_KERNEL) => kernel_io::write(file, from, at),
        done => done,
    }
}

/// `write`.
#[must_use]
pub fn write(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else { return reserved::refuse(a[0]) };
    let file = used.file();
    answer(write_one(file, a[1], a[2], Position::Current))
}

/// `pwrite64`.
#[must_use]
pub fn write_at(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else { return reserved::refuse(a[0]) };
    let file = used.file();
    answer(range(a[3], a[2]).and_then(|at| write_one(file, a[1], a[2], at)))
}

#[inline(always)]
fn write_one(file: OfdIndex, address: u64, length: u64, at: Position) -> Result<usize> {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(CALL_BYTES_MAX);
    let written = write_from(file, user::bytes(address, length)?, at)?;
    mapping::extend_mappings(file);
    Ok(written)
}

const RWF_HIPRI: u32 = 1;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;
const RWF_NOWAIT: u32 = 8;
const RWF_APPEND: u32 = 16;

/// `readv`, `preadv`, `preadv2`: with an offset (u64::MAX: the current one) and flags.
#[must_use]
pub fn read_vectored(a: [u64; 6], offset: u64, flags: u32) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| {
        if flags & !(RWF_HIPRI | RWF_NOWAIT) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let at = if offset == u64::MAX { Position::Current } else { position(offset)? };
        let parts = user::Vectors::new(a[1], a[2])?
            .filter_map(|(start, length)| user::bytes_mut(start, length).ok());
        match client()?.read_vectored(file, parts, at) {
            Err(BY_KERNEL) => {
                let number = libc::SYS_preadv2;
                let it = kernel_io::Transfer { number, address: a[1], count: a[2], flags };
                kernel_io::transfer(file, it, at)
            }
            done => done,
        }
    })())
}

/// `writev`, `pwritev`, `pwritev2`: with an offset (u64::MAX: the current one) and flags.
#[must_use]
pub fn write_vectored(a: [u64; 6], offset: u64, flags: u32) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| {
        if flags & !(RWF_HIPRI | RWF_NOWAIT | RWF_APPEND | RWF_SYNC | RWF_DSYNC) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let at = if offset == u64::MAX { Position::Current } else { position(offset)? };
        let parts = user::Vectors::new(a[1], a[2])?
            .filter_map(|(start, length)| user::bytes(start, length).ok());
        let client = client()?;
        let written = if flags & RWF_APPEND != 0 {
            client.write_appending(file, parts)
        } else {
            client.write_vectored(file, parts, at)
        };
        let written = match written {
            Err(BY_KERNEL) => {
                let number = libc::SYS_pwritev2;
                let it = kernel_io::Transfer { number, address: a[1], count: a[2], flags };
                // The end is where it appends, and the offset stays.
                let at = if flags & RWF_APPEND != 0 { Position::At(0) } else { at };
                kernel_io::transfer(file, it, at)?
            }
            written => written?,
        };
        if flags & (RWF_SYNC | RWF_DSYNC) != 0 {
            client.sync(file)?;
        }
        mapping::extend_mappings(file);
        Ok(written)
    })())
}

/// `lseek`.
#[must_use]
pub fn seek(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(client().and_then(|client| client.seek(file, a[1] as i64, a[2] as u32)))
}

/// `ftruncate`.
#[must_use]
pub fn truncate(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    if a[1] > i64::MAX as u64 {
        return Some(failed(Errno::EINVAL));
    }
    let done = client().and_then(|client| match client.ftruncate(file, a[1]) {
        Err(BY_KERNEL) => kernel_io::call(file, libc::SYS_ftruncate, [a[1], 0, 0]),
        done => done,
    });
    mapping::extend_mappings(file);
    answer(done)
}

/// `fallocate`.
#[must_use]
pub fn allocate(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    if a[2] > i64::MAX as u64 || a[3] > i64::MAX as u64 || a[3] == 0 {
        return Some(failed(Errno::EINVAL));
    }
    let done = client().and_then(|client| match client.allocate(file, a[1] as u32, a[2], a[3]) {
        Err(BY_KERNEL) => kernel_io::call(file, libc::SYS_fallocate, [a[1], a[2], a[3]]),
        done => done,
    });
    mapping::extend_mappings(file);
    answer(done)
}

/// `fsync`, `fdatasync`, `sync_file_range`, `syncfs`.
#[must_use]
pub fn sync(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(client().and_then(|client| {
        if client.is_kernel_mapped(file) {
            kernel_io::call(file, libc::SYS_fsync, [0; 3])?;
        }
        client.sync(file)
    }))
}

/// Bytes per step of a copy between the instance and the kernel, on the stack.
const COPY_BYTES: usize = 16 * 1024;

/// One side of a copy.
struct End {
    fd: u64,
    file: Option<FileUse>,
    /// Address of the application's offset, or 0 for the file's own.
    offset_at: u64,
}

impl End {
    fn offset(&self) -> Result<Option<u64>> {
        if self.offset_at == 0 { Ok(None) } else { user::get(self.offset_at).map(Some) }
    }

    fn read(&self, at: Option<u64>, to: &mut [u8]) -> Result<usize> {
        if let Some(file) = &self.file {
            return read_into(file.file(), to, at.map_or(Ok(Position::Current), position)?);
        }
        let (address, length) = (to.as_mut_ptr() as u64, to.len() as u64);
        let answer = match at {
            None => native::call_waiting(libc::SYS_read, [self.fd, address, length, 0, 0, 0]),
            Some(at) => native::call(libc::SYS_pread64, [self.fd, address, length, at, 0, 0]),
        };
        crate::calls::process::state::kernel(answer).map(|count| count as usize)
    }

    fn write(&self, at: Option<u64>, from: &[u8]) -> Result<usize> {
        if let Some(file) = &self.file {
            return write_from(file.file(), from, at.map_or(Ok(Position::Current), position)?);
        }
        let (address, length) = (from.as_ptr() as u64, from.len() as u64);
        let answer = match at {
            None => native::call_waiting(libc::SYS_write, [self.fd, address, length, 0, 0, 0]),
            Some(at) => native::call(libc::SYS_pwrite64, [self.fd, address, length, at, 0, 0]),
        };
        crate::calls::process::state::kernel(answer).map(|count| count as usize)
    }
}

/// Copies from one end to the other until `length`, the end of the input, or an error. Nothing is
/// lost: bytes that were read and not written are read again, because the source offset is put
/// back.
fn copy(from: &End, to: &End, length: u64) -> Result<u64> {
    let (mut from_at, mut to_at) = (from.offset()?, to.offset()?);
    let mut buffer = [0; COPY_BYTES];
    let mut done = 0u64;
    while done < length {
        let want = (length - done).min(COPY_BYTES as u64) as usize;
        let Some(part) = buffer.get_mut(..want) else { break };
        let count = match from.read(from_at, part) {
            Ok(0) => break,
            Ok(count) => count,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        };
        let written = match to.write(to_at, part.get(..count).unwrap_or(&[])) {
            Ok(written) => written,
            Err(errno) => {
                put_back(from, from_at, count);
                if done == 0 {
                    return Err(errno);
                }
                break;
            }
        };
        if written < count {
            put_back(from, from_at, count - written);
        }
        from_at = from_at.map(|at| at + written as u64);
        to_at = to_at.map(|at| at + written as u64);
        done += written as u64;
        if written < count {
            break;
        }
    }
    if let Some(at) = from_at {
        user::put(from.offset_at, at)?;
    }
    if let Some(at) = to_at {
        user::put(to.offset_at, at)?;
    }
    if let Some(file) = &to.file {
        mapping::extend_mappings(file.file());
    }
    Ok(done)
}

fn put_back(from: &End, at: Option<u64>, count: usize) {
    if at.is_some() {
        return;
    }
    let back = -(count as i64);
    if let Some(file) = &from.file {
        let _ = client().and_then(|client| client.seek(file.file(), back, libc::SEEK_CUR as u32));
    } else {
        let current = libc::SEEK_CUR as u64;
        let _ = native::call(libc::SYS_lseek, [from.fd, back as u64, current, 0, 0, 0]);
    }
}

/// `sendfile`: out, in, offset of in, length.
#[must_use]
pub fn send_file(a: [u64; 6]) -> Answer {
    let (to, from) = (ours(a[0]), ours(a[1]));
    if to.is_none() && from.is_none() {
        return None;
    }
    let from = End { fd: a[1], file: from, offset_at: a[2] };
    let to = End { fd: a[0], file: to, offset_at: 0 };
    answer(copy(&from, &to, a[3].min(CALL_BYTES_MAX as u64)))
}

/// `copy_file_range`: in, its offset, out, its offset, length, flags.
#[must_use]
pub fn copy_file_range(a: [u64; 6]) -> Answer {
    let (from, to) = (ours(a[0]), ours(a[2]));
    if to.is_none() && from.is_none() {
        return None;
    }
    if a[5] as u32 != 0 {
        return Some(failed(Errno::EINVAL));
    }
    // The kernel refuses such copies between different file systems, and programs then copy
    // themselves. Between two of our files it works.
    if to.is_none() || from.is_none() {
        return Some(failed(Errno::EXDEV));
    }
    let from = End { fd: a[0], file: from, offset_at: a[1] };
    let to = End { fd: a[2], file: to, offset_at: a[3] };
    let length = a[4].min(CALL_BYTES_MAX as u64);
    answer(range_to_copy(&from, &to, length).and_then(|length| copy(&from, &to, length)))
}

/// How much of `length` is copied. As in Linux, a target opened for appending is refused, and so
/// are overlapping ranges of one file, as far as there is data. Within one file no more than the
/// existing data is copied, so that the copy is not copied again.
fn range_to_copy(from: &End, to: &End, length: u64) -> Result<u64> {
    let (Some(source), Some(target)) = (&from.file, &to.file) else { return Ok(length) };
    let (client, source, target) = (client()?, source.file(), target.file());
    if client.flags(target)? as i32 & libc::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    if client.inode_of(source)? != client.inode_of(target)? {
        return Ok(length);
    }
    let start = |end: &End, file| match end.offset()? {
        Some(offset) => Ok(offset),
        None => client.seek(file, 0, libc::SEEK_CUR as u32),
    };
    let (read_at, write_at) = (start(from, source)?, start(to, target)?);
    let length = length.min(client.fstat(source)?.size.saturating_sub(read_at));
    let overlap = write_at.saturating_add(length) > read_at && write_at < read_at + length;
    if overlap { Err(Errno::EINVAL) } else { Ok(length) }
}

/// `splice`: in, its offset, out, its offset, length, flags. One end is a pipe, so it is the
/// kernel's.
#[must_use]
pub fn splice(a: [u64; 6]) -> Answer {
    let (from, to) = (ours(a[0]), ours(a[2]));
    if to.is_none() && from.is_none() {
        return None;
    }
    if to.is_some() && from.is_some() {
        return Some(failed(Errno::EINVAL));
    }
    let from = End { fd: a[0], file: from, offset_at: a[1] };
    let to = End { fd: a[2], file: to, offset_at: a[3] };
    // A pipe takes any amount. At most one buffer is moved, so nothing taken out of a pipe must be
    // put back.
    answer(copy(&from, &to, a[4].min(COPY_BYTES as u64)))
}
