//! Credentials of the process, and its umask, cached here so that a call need not ask the kernel.
//!
//! The kernel keeps both per thread; libc changes them for all threads of a process at once, and so
//! does this module.

use crate::calls::files::{handover, mapping, uses};
use crate::calls::process::mount;
use crate::calls::process::state;
use crate::calls::process::working_directory;
use crate::calls::{failed, native};
use crate::entry::process::is_vfork_child;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32};
use wire::Credentials;
use wire::credentials::GROUPS_MAX;
use wire::errno::{Errno, Result};

/// The credentials and the umask that the kernel keeps for one process.
struct Cache {
    /// 1 if the ids and groups are those of the kernel.
    is_known: AtomicU8,
    uid: AtomicU32,
    gid: AtomicU32,
    group_count: AtomicU8,
    groups: [AtomicU32; GROUPS_MAX],
    umask: AtomicU32,
    /// 1 if its user was another before.
    has_changed_user: AtomicU8,
}

/// Not read yet.
const UNKNOWN: u32 = u32::MAX;

impl Cache {
    const fn new() -> Cache {
        Cache {
            is_known: AtomicU8::new(0),
            uid: AtomicU32::new(0),
            gid: AtomicU32::new(0),
            group_count: AtomicU8::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS_MAX],
            umask: AtomicU32::new(UNKNOWN),
            has_changed_user: AtomicU8::new(0),
        }
    }
}

static PROCESS: Cache = Cache::new();
/// Of a child between vfork and exec, which runs in this memory: what it changes is its own.
static CHILD: Cache = Cache::new();

fn cache() -> &'static Cache {
    if is_vfork_child() { &CHILD } else { &PROCESS }
}

/// Effective user and groups, for permission checks.
#[must_use]
pub fn caller() -> Credentials {
    let cache = cache();
    if cache.is_known.load(Acquire) == 0 {
        refresh(cache);
    }
    let mut caller = Credentials::of(cache.uid.load(Relaxed), cache.gid.load(Relaxed));
    caller.group_count = cache.group_count.load(Relaxed);
    let count = usize::from(caller.group_count);
    for (to, from) in caller.groups.iter_mut().zip(&cache.groups).take(count) {
        *to = from.load(Relaxed);
    }
    caller
}

/// Real user and group, for `access`.
#[must_use]
pub fn real() -> Credentials {
    let mut caller = caller();
    caller.uid = native::call(libc::SYS_getuid, [0; 6]) as u32;
    caller.gid = native::call(libc::SYS_getgid, [0; 6]) as u32;
    caller
}

#[cold]
fn refresh(cache: &Cache) {
    // `setfsuid` with an invalid id returns the current one and changes nothing.
    let uid = native::call(libc::SYS_setfsuid, [u64::from(u32::MAX), 0, 0, 0, 0, 0]);
    let gid = native::call(libc::SYS_setfsgid, [u64::from(u32::MAX), 0, 0, 0, 0, 0]);
    cache.uid.store(uid as u32, Relaxed);
    cache.gid.store(gid as u32, Relaxed);
    // The kernel returns all groups or none, so the buffer has the maximum size.
    let mut groups = [0u32; 1024];
    let address = groups.as_mut_ptr() as u64;
    let count = native::call(libc::SYS_getgroups, [groups.len() as u64, address, 0, 0, 0, 0]);
    let count = usize::try_from(count).unwrap_or(0).min(GROUPS_MAX);
    for (to, from) in cache.groups.iter().zip(groups.iter().take(count)) {
        to.store(*from, Relaxed);
    }
    cache.group_count.store(count as u8, Relaxed);
    cache.is_known.store(1, Release);
}

/// Changes credentials: the kernel does it, and the cache is refreshed at the next call.
///
/// A program of another user cannot attach, nor open what only this user may. Files that it may
/// inherit are therefore handed to the kernel before. A process that gives up root for good is such a
/// program, so it leaves the instance; a child of vfork, which shares its parent's memory, by exec.
#[must_use]
pub fn change(number: i64, a: [u64; 6]) -> i64 {
    let may_leave = state::is_attached() && !is_vfork_child();
    let before = if may_leave { users() } else { [u32::MAX; 3] };
    let had_root = before.contains(&0);
    if had_root
        && !users_after(before, number, a).contains(&0)
        && let Err(errno) = prepare_to_leave()
    {
        return failed(errno);
    }
    if mount::is_there() && changes_user(number, a) {
        handover::hand_over_unlocked();
        cache().has_changed_user.store(1, Relaxed);
    }
    let answer = native::call(number, a);
    cache().is_known.store(0, Release);
    if had_root && answer == 0 && !users().contains(&0) {
        state::leave();
    }
    answer
}

/// Hands over what a process that leaves the instance goes on to use.
///
/// # Errors
/// `EPERM`, with a line on standard error, where something would be lost in silence.
fn prepare_to_leave() -> Result<()> {
    let why: &[u8] = if uses::has_threads() {
        b"has had other threads, which may be using files of the instance"
    } else if mapping::has_shared() {
        b"maps files of the instance without a mount"
    } else if handover::hand_over_all().is_err() {
        b"holds locks on files of the instance"
    } else {
        return Ok(());
    };
    native::say(b"forebay: this program may not give up root, because it ");
    native::say(why);
    native::say(b"\n");
    Err(Errno::EPERM)
}

/// Real, effective and saved user. A process without root among them cannot return to it.
fn users() -> [u32; 3] {
    let mut users = [u32::MAX; 3];
    let at = users.as_mut_ptr() as u64;
    let _ = native::call(libc::SYS_getresuid, [at, at + 4, at + 8, 0, 0, 0]);
    users
}

/// Real, effective and saved user after a call that the kernel permits.
fn users_after([real, effective, saved]: [u32; 3], number: i64, a: [u64; 6]) -> [u32; 3] {
    let or = |id: u64, kept: u32| if id as u32 == u32::MAX { kept } else { id as u32 };
    match number {
        // With the capability it sets all three, which the effective user root has as a rule.
        libc::SYS_setuid if effective == 0 => [a[0] as u32; 3],
        libc::SYS_setuid => [real, a[0] as u32, saved],
        libc::SYS_setreuid => {
            let now = [or(a[0], real), or(a[1], effective)];
            let is_set = a[0] as u32 != u32::MAX || (a[1] as u32 != u32::MAX && now[1] != real);
            [now[0], now[1], if is_set { now[1] } else { saved }]
        }
        libc::SYS_setresuid => [or(a[0], real), or(a[1], effective), or(a[2], saved)],
        _ => [real, effective, saved],
    }
}

fn changes_user(number: i64, a: [u64; 6]) -> bool {
    let count = match number {
        libc::SYS_setuid | libc::SYS_setfsuid => 1,
        libc::SYS_setreuid => 2,
        libc::SYS_setresuid => 3,
        _ => return false,
    };
    let now = caller().uid;
    a.iter().take(count).any(|&id| ![now, u32::MAX].contains(&(id as u32)))
}

/// True if this process changed its user, so that the next program may not attach.
#[must_use]
pub fn has_changed_user() -> bool {
    let is_child = is_vfork_child() && CHILD.has_changed_user.load(Relaxed) != 0;
    is_child || PROCESS.has_changed_user.load(Relaxed) != 0
}

/// `umask`.
#[must_use]
pub fn set_umask(a: [u64; 6]) -> i64 {
    let before = native::call(libc::SYS_umask, a);
    cache().umask.store(a[0] as u32 & 0o777, Relaxed);
    before
}

/// A mode and the umask, as `wire::request::made` encodes them.
#[must_use]
pub fn with_umask(mode: u64) -> u32 {
    let cache = cache();
    let mut umask = cache.umask.load(Relaxed);
    // Threads that do not share the working directory do not share the umask.
    if umask == UNKNOWN || working_directory::is_private() {
        umask = read_umask();
        cache.umask.store(umask, Relaxed);
    }
    wire::request::made::with(mode as u32 & 0o7777, umask)
}

/// In a child of vfork, which has not run yet: it begins with the credentials and umask of its
/// parent.
pub fn begin_vfork_child() {
    CHILD.is_known.store(0, Release);
    CHILD.has_changed_user.store(0, Relaxed);
    CHILD.umask.store(PROCESS.umask.load(Relaxed), Relaxed);
}

/// The umask, from the kernel.
#[cold]
fn read_umask() -> u32 {
    // No call only reads it. Between the two calls another thread would create files with a wrong
    // one, or take that for its own.
    if let Some(umask) = uses::has_threads().then(umask_in_status).flatten() {
        return umask;
    }
    let umask = native::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0]) as u32;
    let _ = native::call(libc::SYS_umask, [u64::from(umask), 0, 0, 0, 0, 0]);
    umask
}

/// The umask of the calling thread, from the second line of its status: `Umask:`, a tab, and octal
/// digits.
fn umask_in_status() -> Option<u32> {
    let path = c"/proc/thread-self/status".as_ptr() as u64;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let fd = native::call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0]);
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let mut text = [0u8; 256];
    let to = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_read, to);
    native::close(fd);
    umask_in(text.get(..usize::try_from(length).ok()?)?)
}

fn umask_in(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let digits = lines.find_map(|line| line.strip_prefix(b"Umask:\t"))?;
    if digits.is_empty() || digits.len() > 5 {
        return None;
    }
    digits.iter().try_fold(0, |sum, digit| {
        matches!(digit, b'0'..=b'7').then(|| sum << 3 | u32::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_after_a_call_are_those_of_the_kernel() {
        const KEEP: u64 = u32::MAX as u64;
        let after =
            |ids, number, a: u64, b: u64, c: u64| users_after(ids, number, [a, b, c, 0, 0, 0]);
        assert_eq!(after([0; 3], libc::SYS_setuid, 7, 0, 0), [7; 3]);
        assert_eq!(after([0, 7, 0], libc::SYS_setuid, 7, 0, 0), [0, 7, 0]);
        assert_eq!(after([0; 3], libc::SYS_setresuid, KEEP, 7, KEEP), [0, 7, 0]);
        assert_eq!(after([0, 7, 0], libc::SYS_setresuid, 7, 7, 7), [7; 3]);
        assert_eq!(after([0; 3], libc::SYS_setreuid, KEEP, 7, 0), [0, 7, 7]);
        assert_eq!(after([0; 3], libc::SYS_setreuid, 7, 7, 0), [7; 3]);
        assert_eq!(after([5, 0, 0], libc::SYS_setreuid, KEEP, 5, 0), [5, 5, 0]);
        assert_eq!(after([0; 3], libc::SYS_setfsuid, 7, 0, 0), [0; 3]);
    }

    #[test]
    fn the_umask_is_read_from_a_status() {
        assert_eq!(umask_in(b"Name:\tUmask:\nUmask:\t0027\nState:\tR"), Some(0o27));
        assert_eq!(umask_in(b"Name:\ta\nState:\tR"), None);
        assert_eq!(umask_in(b"Umask:\t8\n"), None);
    }
}
