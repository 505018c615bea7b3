//! Calls on open files of the instance that are made through the mount, because a kernel of this
//! host maps the file for writing (`client::BY_KERNEL`): the kernel orders them with its pages.
//!
//! They use a descriptor on the mount beside the program's, which is kept until the program closes
//! a descriptor of the open file. The offset is that of the open file, as for other calls. A slot's
//! descriptor is closed when no call uses it any more, so that no call meets another file under its
//! number.

use crate::calls::files::handover;
use crate::calls::native;
use crate::calls::process::state::{kernel, note_private};
use crate::calls::process::static_client::CLIENT;
use crate::entry::process::is_vfork_child;
use client::{OfdIndex, Position};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32};
use wire::errno::Result;

/// Most open files whose descriptors are kept; others are opened for each call.
const SLOTS: usize = 64;

/// A descriptor that is kept.
struct Slot {
    /// The open file plus one; 0: free, or about to be.
    file: AtomicU32,
    fd: AtomicI32,
    /// Calls that use it, plus one while `file` is set.
    users: AtomicU32,
}

static KEPT: [Slot; SLOTS] =
    [const { Slot { file: AtomicU32::new(0), fd: AtomicI32::new(-1), users: AtomicU32::new(0) } };
        SLOTS];

/// Slots ever in use: most processes have none.
static SLOTS_END: AtomicU32 = AtomicU32::new(0);

fn slots() -> impl Iterator<Item = &'static Slot> {
    KEPT.iter().take(SLOTS_END.load(Acquire) as usize)
}

impl Slot {
    /// Counts a call, if the slot is that of `number`.
    fn begin(&self, number: u32) -> bool {
        if self.file.load(Acquire) != number {
            return false;
        }
        let more = |users: u32| (users > 0).then(|| users.saturating_add(1));
        if self.users.fetch_update(AcqRel, Relaxed, more).is_err() {
            return false;
        }
        let is_same = self.file.load(Acquire) == number;
        if !is_same {
            self.end();
        }
        is_same
    }

    fn end(&self) {
        let fd = self.fd.load(Relaxed);
        if self.users.fetch_sub(1, AcqRel) == 1 {
            native::close(fd);
            self.fd.store(-1, Release);
        }
    }
}

/// Calls `work` with a descriptor on the mount of an open file.
///
/// # Errors
/// Those of the kernel.
pub fn with_descriptor<T>(file: OfdIndex, work: impl FnOnce(i32) -> Result<T>) -> Result<T> {
    // A child of vfork has its own descriptors, but not its own slots.
    if is_vfork_child() {
        let fd = handover::open_again(file)?;
        let outcome = work(fd);
        native::close(fd);
        return outcome;
    }
    let number = file.0.wrapping_add(1);
    if let Some(slot) = slots().find(|slot| slot.begin(number)) {
        let outcome = work(slot.fd.load(Relaxed));
        slot.end();
        return outcome;
    }
    // Programs rely on low numbers for what they open themselves.
    let low = handover::open_again(file)?;
    let high = native::duplicate(low, 900, true);
    let fd = if high < 0 {
        low
    } else {
        native::close(low);
        high as i32
    };
    note_private(fd);
    let kept = keep(number, fd);
    let outcome = work(fd);
    match kept {
        Some(slot) => slot.end(),
        None => native::close(fd),
    }
    outcome
}

/// Keeps a descriptor, with the caller's call counted.
fn keep(number: u32, fd: i32) -> Option<&'static Slot> {
    let is_taken = |slot: &&Slot| slot.fd.compare_exchange(-1, fd, AcqRel, Relaxed).is_ok();
    let slot = KEPT.iter().find(is_taken)?;
    slot.users.store(2, Release);
    slot.file.store(number, Release);
    let end = KEPT.iter().position(|other| core::ptr::eq(other, slot)).map_or(0, |at| at + 1);
    SLOTS_END.fetch_max(end as u32, AcqRel);
    Some(slot)
}

/// A descriptor of an open file is closed.
pub fn forget(file: OfdIndex) {
    if SLOTS_END.load(Acquire) == 0 || is_vfork_child() {
        return;
    }
    let number = file.0.wrapping_add(1);
    for slot in slots() {
        if slot.file.compare_exchange(number, 0, AcqRel, Relaxed).is_ok() {
            slot.end();
        }
    }
}

/// In a forked child, which has none of its parent's calls.
pub fn reset_after_fork() {
    for slot in slots() {
        let is_kept = slot.file.load(Relaxed) != 0;
        if !is_kept && slot.fd.load(Relaxed) >= 0 {
            native::close(slot.fd.load(Relaxed));
            slot.fd.store(-1, Relaxed);
        }
        slot.users.store(u32::from(is_kept), Relaxed);
    }
}

/// True for a descriptor that no program may see or close.
#[must_use]
pub fn is_kept(fd: i32) -> bool {
    fd >= 0 && slots().any(|slot| slot.fd.load(Relaxed) == fd)
}

/// A call that moves bytes at an offset: `pread64` and its like, with the address and the number of
/// bytes or of buffers.
#[derive(Clone, Copy)]
pub struct Transfer {
    /// The number of the call.
    pub number: i64,
    /// Where the bytes or the buffers are.
    pub address: u64,
    /// How many.
    pub count: u64,
    /// Flags, for calls that have them.
    pub flags: u32,
}

/// Moves bytes through the mount.
///
/// # Errors
/// Those of the kernel.
pub fn transfer(file: OfdIndex, it: Transfer, at: Position) -> Result<usize> {
    let flags = u64::from(it.flags);
    let call = |fd: i32, offset: u64| {
        let a = [fd as u64, it.address, it.count, offset, 0, flags];
        kernel(native::call(it.number, a)).map(|count| count as usize)
    };
    let is_write = matches!(it.number, libc::SYS_pwrite64 | libc::SYS_pwritev2);
    let appends = is_write && CLIENT.flags(file)? & libc::O_APPEND as u32 != 0;
    with_descriptor(file, |fd| match at {
        Position::At(offset) => call(fd, offset),
        Position::Current if appends => {
            let count = call(fd, 0)?;
            CLIENT.seek(file, 0, libc::SEEK_END as u32).map(|_| count)
        }
        Position::Current => CLIENT.at_offset(file, |offset| call(fd, offset)),
    })
}

/// Reads into a buffer of this library.
///
/// # Errors
/// Those of the kernel.
pub fn read(file: OfdIndex, to: &mut [u8], at: Position) -> Result<usize> {
    let (address, count) = (to.as_mut_ptr() as u64, to.len() as u64);
    transfer(file, Transfer { number: libc::SYS_pread64, address, count, flags: 0 }, at)
}

/// Writes from a buffer.
///
/// # Errors
/// Those of the kernel.
pub fn write(file: OfdIndex, from: &[u8], at: Position) -> Result<usize> {
    let (address, count) = (from.as_ptr() as u64, from.len() as u64);
    transfer(file, Transfer { number: libc::SYS_pwrite64, address, count, flags: 0 }, at)
}

/// Makes a call that takes a descriptor and no buffer.
///
/// # Errors
/// Those of the kernel.
pub fn call(file: OfdIndex, number: i64, a: [u64; 3]) -> Result<()> {
    let [first, second, third] = a;
    with_descriptor(file, |fd| {
        kernel(native::call(number, [fd as u64, first, second, third, 0, 0])).map(drop)
    })
}
