//! The end of what a process that becomes a daemon has of its starter's: descriptors, and signals
//! that are ignored or blocked. For `forebay`, which has no `unsafe` code; the rest of what a
//! daemon sets at its start is there (`process::spawn`).

use core::mem::zeroed;
use core::ptr::null_mut;

/// The highest signal number.
const SIGNAL_MAX: i32 = 64;
/// Size of the kernel's set of signals.
const SET_BYTES: usize = 8;

/// Makes the kernel close all descriptors from 3 on at the next exec, and gives every signal its
/// default disposition. One that the starter ignores, as `nohup` does, would stay ignored, and one
/// that it blocks would stay blocked. Only SIGXFSZ is ignored: where the size of files is limited,
/// a write fails instead of ending the process.
pub fn keep_nothing() {
    // WHY: no safe call takes descriptors by number or installs dispositions.
    // SAFETY: descriptors get a flag and stay open in this process; the dispositions name no handler.
    unsafe {
        let (first, last) = (3, libc::c_uint::MAX);
        let flags = libc::CLOSE_RANGE_CLOEXEC;
        if libc::syscall(libc::SYS_close_range, first, last, flags) != 0 {
            // Linux before 5.11.
            let mut limit: libc::rlimit = zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let end = i32::try_from(limit.rlim_cur).unwrap_or(1 << 20).min(1 << 20);
            for descriptor in 3..end {
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        // The C library refuses its own two. Zeros are the default disposition, and no flags.
        let default = [0u64; 4];
        for signal in 1..=SIGNAL_MAX {
            let (to, before) = (default.as_ptr(), null_mut::<u64>());
            libc::syscall(libc::SYS_rt_sigaction, signal, to, before, SET_BYTES);
        }
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut none: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut());
    }
}
