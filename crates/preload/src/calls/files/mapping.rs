//! `mmap` of files of the instance.
//!
//! Preload-only, a shared mapping maps the very pages of the arena (or of the SSD file) that hold
//! the file, extent by extent over a reserved address range, so that mappings, reads and writes of
//! all processes of the host agree. An entry of the descriptor table keeps the file open for it,
//! through fork and until the range is unmapped. Pages beyond the end of the file raise SIGBUS
//! until a call of this process extends the file, or learns that it was extended
//! (`extend_mappings`).
//!
//! With a mount, the kernel maps the file there instead. It then is as on every file system: pages
//! beyond the end raise SIGBUS, also after a truncation by another process, and rights are those of
//! the descriptor. Calls on the file go through the mount as well (`kernel_io`).
//!
//! A private mapping is anonymous memory with the file's bytes copied in: a program may not rely on
//! seeing later changes of the file through it.

use crate::calls::files::uses::{self, FileUse};
use crate::calls::files::{handover, kernel_io, transfer};
use crate::calls::names::paths::Text;
use crate::calls::process::mount;
use crate::calls::process::state::{self, MAPPING_FIRST, client, kernel, ours, table};
use crate::calls::process::static_client::CLIENT;
use crate::calls::{Answer, answer, failed, native, user};
use client::{MappedRange, OfdIndex, Position};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// The only supported page size.
const PAGE_BYTES: u64 = 4096;
/// Most shared mappings of a process.
const MAPPINGS_MAX: usize = 16_384;
/// Most open files with shared mappings. The last entries of the table are those of the program and
/// of the working directory.
const HOLDS_MAX: usize = 1022;

/// A shared mapping. Free if `start` is 0; claimed but not yet filled in if 1.
struct Record {
    start: AtomicU64,
    length: AtomicU64,
    offset: AtomicU64,
    protection: AtomicU64,
    /// Bytes from the start that are mapped; the rest waits for the file to grow.
    mapped: AtomicU64,
    /// Index of the hold that keeps its file open.
    hold: AtomicU32,
}

static RECORDS: [Record; MAPPINGS_MAX] = [const {
    Record {
        start: AtomicU64::new(0),
        length: AtomicU64::new(0),
        offset: AtomicU64::new(0),
        protection: AtomicU64::new(0),
        mapped: AtomicU64::new(0),
        hold: AtomicU32::new(0),
    }
}; MAPPINGS_MAX];

/// An entry of the descriptor table that keeps an open file for its mappings.
struct Hold {
    /// The open file's number plus one; 0: free.
    file: AtomicU32,
    /// Number of its mappings.
    count: AtomicU32,
}

static HOLDS: [Hold; HOLDS_MAX] =
    [const { Hold { file: AtomicU32::new(0), count: AtomicU32::new(0) } }; HOLDS_MAX];

/// Records in use. Most programs have none, and their `munmap` searches no further.
static RECORDS_USED: AtomicU32 = AtomicU32::new(0);
/// One past the highest record ever in use.
static RECORDS_END: AtomicU32 = AtomicU32::new(0);

/// Records that may reach beyond the end of their files. It only counts up: most programs have
/// none, and their writes search no further.
static RECORDS_PARTIAL: AtomicU32 = AtomicU32::new(0);

/// True if shared mappings of this process show memory of the instance.
#[must_use]
pub fn has_shared() -> bool {
    RECORDS_USED.load(Acquire) != 0
}

const fn entry(index: usize) -> u32 {
    MAPPING_FIRST + index as u32
}

/// `mmap`: address, length, protection, flags, descriptor, offset.
#[must_use]
pub fn map(a: [u64; 6]) -> Answer {
    let flags = a[3] as i32;
    if flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let used = ours(a[4])?;
    let file = used.file();
    if !a[5].is_multiple_of(PAGE_BYTES) || a[1] == 0 {
        return Some(failed(Errno::EINVAL));
    }
    answer(map_file(file, a))
}

fn map_file(file: OfdIndex, a: [u64; 6]) -> Result<u64> {
    let (protection, flags) = (a[2] as i32, a[3] as i32);
    if client()?.kind_of(file)? == mode::DIRECTORY {
        return Err(Errno::ENODEV);
    }
    let access = client()?.flags(file)? as i32 & libc::O_ACCMODE;
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let writes = protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || (!is_private && writes && access == libc::O_RDONLY) {
        return Err(Errno::EACCES);
    }
    if is_private {
        return map_private(file, a);
    }
    if mount::is_there() {
        let mapped = map_on_mount(file, a, access);
        // Without a descriptor on the mount (another user's) the arena is mapped.
        if !matches!(mapped, Err(Errno::ENOENT)) {
            return mapped;
        }
    }
    map_shared(file, a)
}

/// Has the kernel map the file on the mount. If it may be written by the mapping, calls on it go
/// through the mount from now on.
fn map_on_mount(file: OfdIndex, a: [u64; 6], access: i32) -> Result<u64> {
    let map = |fd: i32| {
        let b = [a[0], a[1], a[2], a[3], fd as u64, a[5]];
        kernel(native::call(libc::SYS_mmap, b)).map(|address| address as u64)
    };
    if access == libc::O_RDONLY {
        let fd = handover::open_again(file)?;
        let mapped = map(fd);
        native::close(fd);
        return mapped;
    }
    kernel_io::with_descriptor(file, |fd| {
        CLIENT.note_kernel_map(file)?;
        map(fd)
    })
}

/// Reserves anonymous memory where the application wants the mapping.
fn anonymous(a: [u64; 6], protection: i32) -> Result<u64> {
    let flags = (a[3] as i32 & !libc::MAP_TYPE) | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let none = u64::from(u32::MAX);
    let b = [a[0], a[1], u64::from(protection as u32), u64::from(flags as u32), none, 0];
    Ok(kernel(native::call(libc::SYS_mmap, b))? as u64)
}

fn unmap_native(address: u64, length: u64) -> i64 {
    native::call(libc::SYS_munmap, [address, length, 0, 0, 0, 0])
}

fn map_private(file: OfdIndex, a: [u64; 6]) -> Result<u64> {
    let (length, offset) = (a[1], a[5]);
    let address = anonymous(a, libc::PROT_READ | libc::PROT_WRITE)?;
    let outcome = fill(file, address, length, offset)
        .and_then(|()| kernel(native::call(libc::SYS_mprotect, [address, length, a[2], 0, 0, 0])))
        .and_then(|_| {
            let left = client()?.size_known(file)?.saturating_sub(offset);
            map_sigbus(address, left, length, a[2])
        });
    if outcome.is_err() {
        let _ = unmap_native(address, length);
    }
    outcome.map(|_| address)
}

/// Makes the whole pages between `from` and `to` raise SIGBUS, because the file has no bytes for
/// them.
fn map_sigbus(address: u64, from: u64, to: u64, protection: u64) -> Result<()> {
    let from = from.next_multiple_of(PAGE_BYTES);
    let to = to.next_multiple_of(PAGE_BYTES);
    if from >= to {
        return Ok(());
    }
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
    let empty = state::make_empty_file()?;
    let b = [address + from, to - from, protection, flags, empty as u64, 0];
    let mapped = native::call(libc::SYS_mmap, b);
    native::close(empty);
    kernel(mapped).map(|_| ())
}

fn fill(file: OfdIndex, address: u64, length: u64, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < length {
        let part = usize::try_from((length - done).min(1 << 30)).unwrap_or(0);
        let to = user::bytes_mut(address + done, part)?;
        match transfer::read_into(file, to, Position::At(offset.saturating_add(done)))? {
            0 => break,
            count => done += count as u64,
        }
    }
    Ok(())
}

fn map_shared(file: OfdIndex, a: [u64; 6]) -> Result<u64> {
    let length = a[1].checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::ENOMEM)?;
    let index = take_record()?;
    let outcome = hold(file, index).and_then(|()| {
        let address = anonymous(a, libc::PROT_NONE)?;
        let outcome = map_parts(file, address, length, a[2], a[5])
            .and_then(|mapped| map_sigbus(address, mapped, length, a[2]).map(|()| mapped));
        if outcome.is_err() {
            let _ = unmap_native(address, length);
        }
        outcome.map(|mapped| (address, mapped))
    });
    let Some(record) = RECORDS.get(index) else { return Err(Errno::ENOMEM) };
    match outcome {
        Ok((address, mapped)) => {
            record.length.store(length, Relaxed);
            record.offset.store(a[5], Relaxed);
            record.protection.store(a[2], Relaxed);
            record.mapped.store(mapped, Relaxed);
            record.start.store(address, Release);
            if mapped < length {
                RECORDS_PARTIAL.fetch_add(1, AcqRel);
            }
        }
        Err(_) => free_record(index),
    }
    outcome.map(|(address, _)| address)
}

/// Maps the existing part of `length` bytes from `offset` on, in order. Returns its length.
fn map_parts(
    file: OfdIndex,
    address: u64,
    length: u64,
    protection: u64,
    offset: u64,
) -> Result<u64> {
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let mut mapped = 0;
    let is_read_only = client()?.flags(file)? as i32 & libc::O_ACCMODE == libc::O_RDONLY;
    client()?.map_ranges(file, offset, length, &mut |part: MappedRange| {
        let at = address + (part.offset - offset);
        let holder = if is_read_only { read_only(part.descriptor)? } else { part.descriptor };
        let b = [at, part.length, protection, flags, u64::from(holder as u32), part.place];
        let outcome = kernel(native::call(libc::SYS_mmap, b));
        if is_read_only {
            native::close(holder);
        }
        outcome?;
        mapped = (part.offset - offset + part.length).min(length);
        Ok(())
    })?;
    Ok(mapped)
}

/// Another descriptor of what holds a range, with which a mapping cannot be made writable later.
fn read_only(holder: i32) -> Result<i32> {
    let path = Text::of_descriptor(holder);
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    kernel(native::call(libc::SYS_open, [path.address(), flags, 0, 0, 0, 0])).map(|fd| fd as i32)
}

/// Maps what mappings of a file could not reach before it grew.
pub fn extend_mappings(file: OfdIndex) {
    if RECORDS_PARTIAL.load(Acquire) != 0 {
        extend_all(file);
    }
}

#[cold]
fn extend_all(file: OfdIndex) {
    let Ok(inode) = CLIENT.inode_of(file) else { return };
    let Ok(size) = CLIENT.size_known(file) else { return };
    for (index, start, length) in overlapping(0, u64::MAX) {
        let Some(record) = RECORDS.get(index) else { continue };
        let (offset, mapped) = (record.offset.load(Relaxed), record.mapped.load(Acquire));
        if mapped >= length || size <= offset + mapped {
            continue;
        }
        let Some(used) = held(index).filter(|used| CLIENT.inode_of(used.file()) == Ok(inode))
        else {
            continue;
        };
        let protection = record.protection.load(Relaxed);
        let rest = (start + mapped, length - mapped, offset + mapped);
        if let Ok(more) = map_parts(used.file(), rest.0, rest.1, protection, rest.2) {
            record.mapped.fetch_max(mapped + more, AcqRel);
        }
    }
}

fn take_record() -> Result<usize> {
    let taken = RECORDS
        .iter()
        .position(|record| record.start.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
        .ok_or(Errno::ENOMEM)?;
    RECORDS_END.fetch_max(taken as u32 + 1, AcqRel);
    RECORDS_USED.fetch_add(1, AcqRel);
    Ok(taken)
}

/// Keeps the file open for the mapping.
fn hold(file: OfdIndex, index: usize) -> Result<()> {
    let record = RECORDS.get(index).ok_or(Errno::ENOMEM)?;
    record.hold.store(NO_HOLD, Relaxed);
    let number = match share_hold(file) {
        Some(number) => number,
        None => take_hold(file)?,
    };
    record.hold.store(number as u32, Relaxed);
    Ok(())
}

const NO_HOLD: u32 = u32::MAX;

/// Adds a mapping to a hold of the same file, if there is one.
fn share_hold(file: OfdIndex) -> Option<usize> {
    let number = file.0.checked_add(1)?;
    HOLDS.iter().position(|hold| {
        let more = |count: u32| (count > 0).then(|| count.saturating_add(1));
        hold.file.load(Acquire) == number && hold.count.fetch_update(AcqRel, Relaxed, more).is_ok()
    })
}

fn take_hold(file: OfdIndex) -> Result<usize> {
    let table = table().ok_or(Errno::EIO)?;
    let word = file.0.checked_add(1).ok_or(Errno::EIO)?;
    let is_taken = |hold: &Hold| hold.file.compare_exchange(0, word, AcqRel, Relaxed).is_ok();
    let number = HOLDS.iter().position(is_taken).ok_or(Errno::ENOMEM)?;
    CLIENT.retain(file);
    // Mappings do not survive exec, nor do their entries.
    let held = CLIENT.fd_set(table, entry(number), Some((file, true)));
    if let Some(hold) = HOLDS.get(number) {
        if held.is_ok() {
            hold.count.store(1, Release);
        } else {
            let _ = uses::close(file, table);
            hold.file.store(0, Release);
        }
    }
    held.map(|_| number)
}

/// The file of a mapping.
fn held(index: usize) -> Option<FileUse> {
    let number = RECORDS.get(index)?.hold.load(Relaxed) as usize;
    if number < HOLDS_MAX { state::use_entry(entry(number)) } else { None }
}

/// Frees the record, and closes the file with its last mapping.
fn free_record(index: usize) {
    let Some(record) = RECORDS.get(index) else { return };
    let number = record.hold.swap(NO_HOLD, Relaxed) as usize;
    if let Some(hold) = HOLDS.get(number)
        && hold.count.fetch_sub(1, AcqRel) == 1
    {
        if let Some(table) = table()
            && let Some(file) = CLIENT.fd_take(table, entry(number))
        {
            let _ = uses::close(file, table);
        }
        hold.file.store(0, Release);
    }
    record.start.store(0, Release);
    RECORDS_USED.fetch_sub(1, AcqRel);
}

/// Records that overlap `start .. end`: index, start, length.
fn overlapping(start: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let any = if RECORDS_USED.load(Acquire) == 0 { 0 } else { RECORDS_END.load(Acquire) as usize };
    RECORDS.iter().take(any).enumerate().filter_map(move |(index, record)| {
        let at = record.start.load(Acquire);
        let length = record.length.load(Relaxed);
        (at > 1 && at < end && at + length > start).then_some((index, at, length))
    })
}

fn note_written(index: usize) -> Result<()> {
    let writes = RECORDS
        .get(index)
        .is_some_and(|record| record.protection.load(Relaxed) & libc::PROT_WRITE as u64 != 0);
    held(index).filter(|_| writes).map_or(Ok(()), |file| CLIENT.note_written(file.file()))
}

/// `munmap`: address, length. Unmapping a range in parts frees its record with the last part.
#[must_use]
pub fn unmap(a: [u64; 6]) -> Answer {
    let end = a[0].saturating_add(a[1].next_multiple_of(PAGE_BYTES));
    overlapping(a[0], end).next()?;
    let outcome = unmap_native(a[0], a[1]);
    if outcome == 0 {
        for (index, start, length) in overlapping(a[0], end) {
            // No error can be reported: the mapping is gone.
            let _ = note_written(index);
            let Some(record) = RECORDS.get(index) else { continue };
            if a[0] <= start && end >= start + length {
                free_record(index);
            } else if a[0] > start && end >= start + length {
                record.length.store(a[0] - start, Relaxed);
            } else if a[0] <= start {
                record.offset.fetch_add(end - start, Relaxed);
                let mapped = record.mapped.load(Relaxed);
                record.mapped.store(mapped.saturating_sub(end - start), Relaxed);
                record.length.store(start + length - end, Relaxed);
                record.start.store(end, Release);
            }
        }
    }
    Some(outcome)
}

/// `msync`: writes through the mapping count as writes to the file.
#[must_use]
pub fn sync(a: [u64; 6]) -> Answer {
    let end = a[0].saturating_add(a[1]);
    for (index, _, _) in overlapping(a[0], end) {
        let Some(file) = held(index) else { continue };
        if let Err(errno) = note_written(index).and_then(|()| CLIENT.sync(file.file())) {
            return Some(failed(errno));
        }
    }
    // The kernel checks the range and, for the SSD tier, writes the pages.
    None
}

/// `mremap`: address, old length, new length, flags, new address.
#[must_use]
pub fn remap(a: [u64; 6]) -> Answer {
    let (index, start, length) = overlapping(a[0], a[0].saturating_add(1)).next()?;
    if start != a[0] {
        return Some(failed(Errno::EINVAL));
    }
    let Some(new_length) = a[2].checked_next_multiple_of(PAGE_BYTES).filter(|&new| new != 0) else {
        return Some(failed(Errno::EINVAL));
    };
    if new_length <= length && a[3] & libc::MREMAP_FIXED as u64 == 0 {
        let removed = length - new_length;
        if removed > 0 {
            let _ = unmap([start + new_length, removed, 0, 0, 0, 0]);
        }
        return Some(start as i64);
    }
    if a[3] & libc::MREMAP_MAYMOVE as u64 == 0 {
        return Some(failed(Errno::ENOMEM));
    }
    answer(move_mapping(index, start, length, new_length, a))
}

fn move_mapping(index: usize, start: u64, length: u64, number: u64, a: [u64; 6]) -> Result<u64> {
    let file = held(index).ok_or(Errno::EFAULT)?;
    let record = RECORDS.get(index).ok_or(Errno::EFAULT)?;
    let fixed = a[3] & libc::MREMAP_FIXED as u64 != 0;
    let flags = libc::MAP_SHARED | if fixed { libc::MAP_FIXED } else { 0 };
    let address = if fixed { a[4] } else { 0 };
    let (protection, offset) = (record.protection.load(Relaxed), record.offset.load(Relaxed));
    let moved = map_shared(file.file(), [address, number, protection, flags as u64, 0, offset])?;
    let _ = unmap([start, length, 0, 0, 0, 0]);
    Ok(moved)
}
