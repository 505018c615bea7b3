//! The working directory, if it is in the instance: the inode from which relative paths start.
//!
//! With a mount it is the kernel's, and this is a copy of what the kernel says, taken after each
//! change and at the start. Preload-only, nobody else knows it: the kernel's stays where it was.
//!
//! The kernel has one for each `fs_struct`, which threads share and processes do not. A child of
//! vfork has its own in its parent's memory. Threads that stop sharing it (`unshare`) are rare;
//! then the kernel is asked each time.

use crate::calls::process::mount;
use crate::entry::process::is_vfork_child;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU64};
use wire::Inode;

/// Inode number; 0: not in the instance.
static OF_PROCESS: AtomicU64 = AtomicU64::new(0);
/// That of the child between vfork and exec.
static OF_CHILD: AtomicU64 = AtomicU64::new(0);

/// No directory has this number.
const UNKNOWN: Inode = Inode(u64::MAX);

/// All threads share one, of which the copy is kept.
const SHARED: u8 = 0;
/// Threads may have their own.
const PRIVATE: u8 = 1;
/// The root of this process is another directory, so the kernel resolves relative paths.
const CHANGED_ROOT: u8 = 2;
static SHARING: AtomicU8 = AtomicU8::new(SHARED);

/// The working directory, if it is in the instance.
#[must_use]
#[inline]
pub fn get() -> Option<Inode> {
    if SHARING.load(Relaxed) != SHARED {
        return ask_unless_chrooted();
    }
    let of_caller = if is_vfork_child() { &OF_CHILD } else { &OF_PROCESS };
    let inode = of_caller.load(Acquire);
    (inode != 0).then_some(Inode(inode))
}

#[cold]
fn ask_unless_chrooted() -> Option<Inode> {
    let is_usable = SHARING.load(Relaxed) == PRIVATE;
    if is_usable { mount::inode_of(crate::calls::names::paths::AT_CWD) } else { None }
}

/// Sets it after a change.
pub fn set(inode: Option<Inode>) {
    let of_caller = if is_vfork_child() { &OF_CHILD } else { &OF_PROCESS };
    of_caller.store(inode.unwrap_or(Inode::NONE).0, Release);
}

/// Records, preload-only, that it is in the instance and that this process cannot attach, to learn
/// where: calls with relative paths fail as attaching does, and never reach the host's files.
pub fn note_unknown() {
    set(Some(UNKNOWN));
}

/// Copies what the kernel says: at the start, and after a change.
pub fn ask() {
    set(mount::inode_of(crate::calls::names::paths::AT_CWD));
}

/// In a child of vfork: it begins with its parent's.
pub fn begin_vfork_child() {
    OF_CHILD.store(OF_PROCESS.load(Acquire), Release);
}

/// Records that threads or processes of this memory may have different ones, or that others may
/// change that of this process.
pub fn note_private() {
    if mount::is_there() {
        let _ = SHARING.compare_exchange(SHARED, PRIVATE, Relaxed, Relaxed);
    }
}

/// True if threads may have their own.
#[must_use]
pub fn is_private() -> bool {
    SHARING.load(Relaxed) == PRIVATE
}

/// Records that the root of this process is another directory.
pub fn note_changed_root() {
    SHARING.store(CHANGED_ROOT, Relaxed);
}
