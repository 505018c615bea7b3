//! `mmap` of files of the instance.
//!
//! A shared mapping maps the very pages of the arena (or of the SSD file) that hold the file, piece
//! by piece over a reserved range of addresses, so that mappings, reads and writes of all processes
//! of the host agree. A row of the descriptor table keeps the file open for it, through fork and
//! until the range is unmapped. Pages beyond the end of the file stay inaccessible until a call of
//! this process makes the file longer, or learns that it is (`follow`): they raise SIGBUS.
//!
//! A private mapping is anonymous memory with the file's bytes copied in: a program may not count
//! on seeing later changes of the file through it.

use crate::calls::state::{self, CLIENT, MAPPING_FIRST, client, kernel, ours, table};
use crate::calls::uses::{self, Use};
use crate::calls::{Answer, answer, failed, native, user};
use client::{OfdIndex, Part, Position};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// Bytes of a page of the only page size that is supported.
const PAGE_BYTES: u64 = 4096;
/// Shared mappings of a process.
const MAPPINGS_MAX: usize = 16_384;
/// Open files with shared mappings. The last rows of the table are those of the program and of the
/// working directory.
const HOLDS_MAX: usize = 1022;

/// What is known of a shared mapping. Free when `start` is 0; taken but not yet described when 1.
struct Record {
    start: AtomicU64,
    length: AtomicU64,
    offset: AtomicU64,
    protection: AtomicU64,
    /// Bytes from the start that are mapped; the rest waits for the file to grow.
    mapped: AtomicU64,
    /// Which hold keeps its file open.
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

/// A row of the descriptor table that keeps an open file for its mappings.
struct Hold {
    /// The open file's number plus one; 0: free.
    file: AtomicU32,
    /// Mappings of it.
    count: AtomicU32,
}

static HOLDS: [Hold; HOLDS_MAX] =
    [const { Hold { file: AtomicU32::new(0), count: AtomicU32::new(0) } }; HOLDS_MAX];

/// Records in use: most programs have none, and their `munmap` looks no further.
static RECORDS_USED: AtomicU32 = AtomicU32::new(0);
/// Behind the highest record that was ever in use.
static RECORDS_END: AtomicU32 = AtomicU32::new(0);

/// Records that may reach beyond the end of their files. It counts up only: most programs have
/// none, and their writes look no further.
static RECORDS_AHEAD: AtomicU32 = AtomicU32::new(0);

const fn row(index: usize) -> u32 {
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
    if is_private { map_private(file, a) } else { map_shared(file, a) }
}

/// Anonymous memory where the application wants the mapping.
fn anonymous(a: [u64; 6], protection: i32) -> Result<u64> {
    let flags = (a[3] as i32 & !libc::MAP_TYPE) | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let none = u64::from(u32::MAX);
    let b = [a[0], a[1], protection as u32 as u64, flags as u32 as u64, none, 0];
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
            bar(address, left, length, a[2])
        });
    if outcome.is_err() {
        let _ = unmap_native(address, length);
    }
    outcome.map(|_| address)
}

/// Makes the whole pages between `from` and `to` raise SIGBUS: they stand for nothing in the file.
fn bar(address: u64, from: u64, to: u64, protection: u64) -> Result<()> {
    let from = from.next_multiple_of(PAGE_BYTES);
    let to = to.next_multiple_of(PAGE_BYTES);
    if from >= to {
        return Ok(());
    }
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
    let empty = state::placeholder() as u32 as u64;
    kernel(native::call(libc::SYS_mmap, [address + from, to - from, protection, flags, empty, 0]))
        .map(|_| ())
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

fn map_shared(file: OfdIndex, a: [u64; 6]) -> Result<u64> {
    let length = a[1].checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::ENOMEM)?;
    let index = take_record()?;
    let outcome = hold(file, index).and_then(|()| {
        let address = anonymous(a, libc::PROT_NONE)?;
        let outcome = place_parts(file, address, length, a[2], a[5])
            .and_then(|mapped| bar(address, mapped, length, a[2]).map(|()| mapped));
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
                RECORDS_AHEAD.fetch_add(1, AcqRel);
            }
        }
        Err(_) => give_back(index),
    }
    outcome.map(|(address, _)| address)
}

/// Maps what there is of `length` bytes from `offset` on, in order. Returns how much.
fn place_parts(
    file: OfdIndex,
    address: u64,
    length: u64,
    protection: u64,
    offset: u64,
) -> Result<u64> {
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let mut mapped = 0;
    client()?.share(file, offset, length, &mut |part: Part| {
        let at = address + (part.offset - offset);
        let descriptor = part.descriptor as u32 as u64;
        let b = [at, part.length, protection, flags, descriptor, part.place];
        kernel(native::call(libc::SYS_mmap, b))?;
        mapped = (part.offset - offset + part.length).min(length);
        Ok(())
    })?;
    Ok(mapped)
}

/// The file may have grown: maps what mappings of it could not reach so far.
pub fn follow(file: OfdIndex) {
    if RECORDS_AHEAD.load(Acquire) != 0 {
        follow_in_all(file);
    }
}

#[cold]
fn follow_in_all(file: OfdIndex) {
    let Ok(inode) = CLIENT.inode_of(file) else { return };
    let Ok(size) = CLIENT.size_known(file) else { return };
    for (index, start, length) in meeting(0, u64::MAX) {
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
        if let Ok(more) = place_parts(used.file(), rest.0, rest.1, protection, rest.2) {
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

/// One mapping more of a file that has some.
fn share_hold(file: OfdIndex) -> Option<usize> {
    let wanted = file.0.checked_add(1)?;
    HOLDS.iter().position(|hold| {
        let more = |count: u32| (count > 0).then(|| count.saturating_add(1));
        hold.file.load(Acquire) == wanted && hold.count.fetch_update(AcqRel, Relaxed, more).is_ok()
    })
}

fn take_hold(file: OfdIndex) -> Result<usize> {
    let table = table().ok_or(Errno::EIO)?;
    let word = file.0.checked_add(1).ok_or(Errno::EIO)?;
    let is_taken = |hold: &Hold| hold.file.compare_exchange(0, word, AcqRel, Relaxed).is_ok();
    let number = HOLDS.iter().position(is_taken).ok_or(Errno::ENOMEM)?;
    CLIENT.retain(file);
    // Mappings do not survive exec, nor do their rows.
    let held = CLIENT.fd_set(table, row(number), Some((file, true)));
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
fn held(index: usize) -> Option<Use> {
    let number = RECORDS.get(index)?.hold.load(Relaxed) as usize;
    if number < HOLDS_MAX { state::used_by_row(row(number)) } else { None }
}

/// Ends the record, and with the last mapping of an open file what kept it open.
fn give_back(index: usize) {
    let Some(record) = RECORDS.get(index) else { return };
    let number = record.hold.swap(NO_HOLD, Relaxed) as usize;
    if let Some(hold) = HOLDS.get(number)
        && hold.count.fetch_sub(1, AcqRel) == 1
    {
        if let Some(table) = table()
            && let Some(file) = CLIENT.fd_take(table, row(number))
        {
            let _ = uses::close(file, table);
        }
        hold.file.store(0, Release);
    }
    record.start.store(0, Release);
    RECORDS_USED.fetch_sub(1, AcqRel);
}

/// Records that meet `start .. end`: number, start, length.
fn meeting(start: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let any = if RECORDS_USED.load(Acquire) == 0 { 0 } else { RECORDS_END.load(Acquire) as usize };
    RECORDS.iter().take(any).enumerate().filter_map(move |(index, record)| {
        let at = record.start.load(Acquire);
        let length = record.length.load(Relaxed);
        (at > 1 && at < end && at + length > start).then_some((index, at, length))
    })
}

fn note_written(index: usize) {
    let writes = RECORDS
        .get(index)
        .is_some_and(|record| record.protection.load(Relaxed) & libc::PROT_WRITE as u64 != 0);
    if let Some(file) = held(index).filter(|_| writes) {
        let _ = CLIENT.note_written(file.file());
    }
}

/// `munmap`: address, length. A range that is unmapped in parts ends its record with the last.
#[must_use]
pub fn unmap(a: [u64; 6]) -> Answer {
    let end = a[0].saturating_add(a[1].next_multiple_of(PAGE_BYTES));
    meeting(a[0], end).next()?;
    let outcome = unmap_native(a[0], a[1]);
    if outcome == 0 {
        for (index, start, length) in meeting(a[0], end) {
            note_written(index);
            let Some(record) = RECORDS.get(index) else { continue };
            if a[0] <= start && end >= start + length {
                give_back(index);
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

/// `msync`: what was written through the mapping counts as written to the file.
#[must_use]
pub fn sync(a: [u64; 6]) -> Answer {
    let end = a[0].saturating_add(a[1]);
    for (index, _, _) in meeting(a[0], end) {
        note_written(index);
        if let Some(file) = held(index) {
            let _ = CLIENT.sync(file.file());
        }
    }
    // The kernel checks the range and, for the SSD tier, writes the pages.
    None
}

/// `mremap`: address, old length, new length, flags, new address.
#[must_use]
pub fn remap(a: [u64; 6]) -> Answer {
    let (index, start, length) = meeting(a[0], a[0].saturating_add(1)).next()?;
    if start != a[0] {
        return Some(failed(Errno::EINVAL));
    }
    let Some(new_length) = a[2].checked_next_multiple_of(PAGE_BYTES).filter(|&new| new != 0) else {
        return Some(failed(Errno::EINVAL));
    };
    if new_length <= length && a[3] & libc::MREMAP_FIXED as u64 == 0 {
        let cut = length - new_length;
        if cut > 0 {
            let _ = unmap([start + new_length, cut, 0, 0, 0, 0]);
        }
        return Some(start as i64);
    }
    if a[3] & libc::MREMAP_MAYMOVE as u64 == 0 {
        return Some(failed(Errno::ENOMEM));
    }
    answer(move_mapping(index, start, length, new_length, a))
}

fn move_mapping(index: usize, start: u64, length: u64, wanted: u64, a: [u64; 6]) -> Result<u64> {
    let file = held(index).ok_or(Errno::EFAULT)?;
    let record = RECORDS.get(index).ok_or(Errno::EFAULT)?;
    let fixed = a[3] & libc::MREMAP_FIXED as u64 != 0;
    let flags = libc::MAP_SHARED | if fixed { libc::MAP_FIXED } else { 0 };
    let address = if fixed { a[4] } else { 0 };
    let (protection, offset) = (record.protection.load(Relaxed), record.offset.load(Relaxed));
    let moved = map_shared(file.file(), [address, wanted, protection, flags as u64, 0, offset])?;
    let _ = unmap([start, length, 0, 0, 0, 0]);
    Ok(moved)
}
