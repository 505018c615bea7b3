//! Who the process acts as, and its umask: kept here, so that a call needs not ask the kernel.
//!
//! The kernel keeps both for each thread; libc changes them for all threads of a process at once,
//! and so do we.

use crate::calls::native;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32};
use wire::Credentials;
use wire::credentials::GROUPS_MAX;

static KNOWN: AtomicU8 = AtomicU8::new(0);
static UID: AtomicU32 = AtomicU32::new(0);
static GID: AtomicU32 = AtomicU32::new(0);
static GROUP_COUNT: AtomicU8 = AtomicU8::new(0);
static GROUPS: [AtomicU32; GROUPS_MAX] = [const { AtomicU32::new(0) }; GROUPS_MAX];

/// Not read yet.
const UNKNOWN: u32 = u32::MAX;
static UMASK: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Effective user and groups, for permission checks.
#[must_use]
pub fn who() -> Credentials {
    if KNOWN.load(Acquire) == 0 {
        refresh();
    }
    let mut who = Credentials::of(UID.load(Relaxed), GID.load(Relaxed));
    who.group_count = GROUP_COUNT.load(Relaxed);
    let count = usize::from(who.group_count);
    for (to, from) in who.groups.iter_mut().zip(&GROUPS).take(count) {
        *to = from.load(Relaxed);
    }
    who
}

/// Real user and group, for `access`.
#[must_use]
pub fn real() -> Credentials {
    let mut who = who();
    who.uid = native::call(libc::SYS_getuid, [0; 6]) as u32;
    who.gid = native::call(libc::SYS_getgid, [0; 6]) as u32;
    who
}

#[cold]
fn refresh() {
    // `setfsuid` with an id that can not be answers the present one and changes nothing.
    let uid = native::call(libc::SYS_setfsuid, [u64::from(u32::MAX), 0, 0, 0, 0, 0]);
    let gid = native::call(libc::SYS_setfsgid, [u64::from(u32::MAX), 0, 0, 0, 0, 0]);
    UID.store(uid as u32, Relaxed);
    GID.store(gid as u32, Relaxed);
    // The kernel gives all groups or none: ask with the most that a process may have.
    let mut groups = [0u32; 1024];
    let address = groups.as_mut_ptr() as u64;
    let count = native::call(libc::SYS_getgroups, [groups.len() as u64, address, 0, 0, 0, 0]);
    let count = usize::try_from(count).unwrap_or(0).min(GROUPS_MAX);
    for (to, from) in GROUPS.iter().zip(groups.iter().take(count)) {
        to.store(*from, Relaxed);
    }
    GROUP_COUNT.store(count as u8, Relaxed);
    KNOWN.store(1, Release);
}

/// The process changes who it is: the kernel does it, we look again at the next call.
#[must_use]
pub fn change(number: i64, a: [u64; 6]) -> i64 {
    let answer = native::call(number, a);
    KNOWN.store(0, Release);
    answer
}

/// `umask`.
#[must_use]
pub fn set_umask(a: [u64; 6]) -> i64 {
    let before = native::call(libc::SYS_umask, a);
    UMASK.store(a[0] as u32 & 0o777, Relaxed);
    before
}

/// A mode and the umask, as `wire::request::made` has them.
#[must_use]
pub fn with_umask(mode: u64) -> u32 {
    let mut umask = UMASK.load(Relaxed);
    if umask == UNKNOWN {
        // There is no call that only asks. The window in which another thread could create a file
        // with no umask is two system calls wide, once in the life of a process.
        umask = native::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0]) as u32;
        let _ = native::call(libc::SYS_umask, [u64::from(umask), 0, 0, 0, 0, 0]);
        UMASK.store(umask, Relaxed);
    }
    wire::request::made::with(mode as u32 & 0o7777, umask)
}
