//! Limits that the kernel enforces on calls which it does not see here: the largest size of a file
//! (`RLIMIT_FSIZE`). That on open files is the kernel's, which has a placeholder for each.

use crate::arch::raw;
use crate::calls::process::static_client::CLIENT;
use crate::calls::{Answer, native};
use crate::entry::process::is_vfork_child;

/// A soft limit of this process, in the kernel's units.
#[must_use]
pub fn soft_limit(resource: u64) -> u64 {
    let mut limits = [libc::RLIM_INFINITY; 2];
    let to = limits.as_mut_ptr() as u64;
    let _ = native::call(libc::SYS_prlimit64, [0, resource, 0, to, 0, 0]);
    let [soft, _] = limits;
    soft
}

/// Obeys the limit on sizes that this process has now.
pub fn obey() {
    CLIENT.set_size_limit(soft_limit(u64::from(libc::RLIMIT_FSIZE)));
}

/// `setrlimit`, `prlimit64`.
#[must_use]
pub fn set(number: i64, a: [u64; 6]) -> Answer {
    let answer = native::call(number, a);
    // The limits of a child of vfork are its own.
    if answer == 0 && !is_vfork_child() {
        obey();
    }
    Some(answer)
}

/// A call failed because a file would become too large: as in the kernel, a limit of the process
/// sends it a signal.
#[cold]
pub fn note_too_large() {
    if !CLIENT.has_size_limit() {
        return;
    }
    // SAFETY: calls without memory.
    let thread = unsafe { raw::call0(libc::SYS_gettid) }.cast_unsigned();
    let process = raw::getpid().cast_unsigned();
    let _ = native::call(libc::SYS_tgkill, [process, thread, libc::SIGXFSZ as u64, 0, 0, 0]);
}
