//! A program that begins with open files of the instance while no daemon answers, so that it cannot
//! attach: its descriptors are placeholders of which nothing is known.
//!
//! Calls on them fail with EIO, as for any file whose daemon is gone: the placeholder itself would
//! answer EINVAL, which programs take for a fault of their own. A later call attaches if a daemon
//! answers by then, and finds the open file. In a child of such a program it does not: the child's
//! descriptors are in no table, and stay unreachable; close works.

use crate::calls::files::uses::FileUse;
use crate::calls::native;
use crate::calls::process::mount;
use crate::calls::process::state::{self, MAPPING_FIRST, PLACEHOLDER_SEALS};
use crate::calls::process::static_client::CLIENT;
use client::OfdIndex;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// True if this process has, or had, descriptors that are unreachable. Forked children inherit it.
static CUT_OFF: AtomicBool = AtomicBool::new(false);

/// `f_type` of the name of a namespace.
const NAMESPACE_MAGIC: u64 = 0x6e73_6673;
/// `f_type` of a file in memory.
const MEMORY_MAGIC: u64 = 0x0102_1994;

/// True if this process could not attach when it began, so that its table has not followed what it
/// closed since.
static BEGAN_DETACHED: AtomicBool = AtomicBool::new(false);

/// At the start of a program that inherits open files: finds out whether some are unreachable. From
/// then on every call on a descriptor looks whether it is one of them.
pub fn note_unreachable() {
    BEGAN_DETACHED.store(!state::is_attached(), Relaxed);
    if !has_unreachable() {
        return;
    }
    CUT_OFF.store(true, Relaxed);
    state::mark_all();
    // No descriptor is below it: `reserved` looks at each.
    state::note_private(0);
}

/// True if the next program inherits an unreachable descriptor.
#[must_use]
pub fn is_inherited() -> bool {
    CUT_OFF.load(Relaxed) && has_unreachable()
}

fn has_unreachable() -> bool {
    (0..MAPPING_FIRST).any(|fd| {
        is_placeholder(fd)
            && fd as i32 != state::placeholder()
            && !state::is_private(fd.into())
            && state::use_entry(fd).is_none()
    })
}

/// True if `fd`, which is not ours, is a placeholder that another program left to this one.
#[must_use]
#[inline]
pub fn is_unreachable(fd: u64) -> bool {
    // The kernel uses the lower 32 bits of a descriptor.
    CUT_OFF.load(Relaxed) && is_placeholder(fd as u32)
}

/// The open file behind an unreachable descriptor, if a daemon answers by now. The wait for one that
/// restarts took place at the start of the program.
#[must_use]
#[cold]
#[inline(never)]
pub fn reach(fd: u32) -> Option<FileUse> {
    if !is_unreachable(fd.into()) {
        return None;
    }
    state::attach_at_once();
    state::use_entry(fd)
}

/// True if a descriptor of the table is another file by now, or closed, of which a process that began
/// detached did not tell.
#[must_use]
pub fn is_stale(fd: u32, file: OfdIndex) -> bool {
    BEGAN_DETACHED.load(Relaxed) && fd < MAPPING_FIRST && !is_placeholder(fd) && {
        let inode = mount::inode_of(fd.into());
        inode.is_none() || inode != CLIENT.inode_of(file).ok()
    }
}

/// True if the kernel has a placeholder behind `fd` (`state::make_placeholder`): the name of a
/// namespace, or an empty file in memory that cannot be changed.
fn is_placeholder(fd: u32) -> bool {
    // `struct statfs` has 120 bytes; the type comes first.
    let mut statfs = [0u64; 15];
    let to = statfs.as_mut_ptr() as u64;
    if native::call(libc::SYS_fstatfs, [fd.into(), to, 0, 0, 0, 0]) != 0 {
        return false;
    }
    let [kind, ..] = statfs;
    kind == NAMESPACE_MAGIC || kind == MEMORY_MAGIC && is_sealed_and_empty(fd)
}

fn is_sealed_and_empty(fd: u32) -> bool {
    let asked = [fd.into(), libc::F_GET_SEALS as u64, 0, 0, 0, 0];
    let end = [fd.into(), 0, libc::SEEK_END as u64, 0, 0, 0];
    native::call(libc::SYS_fcntl, asked) == i64::from(PLACEHOLDER_SEALS)
        && native::call(libc::SYS_lseek, end) == 0
}
