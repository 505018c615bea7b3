//! Calls on descriptors that this library keeps for itself: the memory and the SSD file of the
//! instance, its sockets, placeholders. A stray `ftruncate` or `write` on such a number would destroy
//! the files of all users, so for programs none of them is open: EBADF. A descriptor that a program
//! inherited and cannot reach (`cut_off`) answers EIO at the same places.
//!
//! Here: calls that no other module answers. Those that close or copy a descriptor are in
//! `descriptors`, asynchronous ones in `aio`; which descriptors are reserved is in `state`. A call past
//! this library is found by the daemon, which compares the size of its memory (decision 146).

use crate::calls::process::{cut_off, state};
use crate::calls::{Answer, failed};
use wire::errno::Errno;

/// EBADF if `fd` is reserved, EIO if it is unreachable. For programs, ordinary descriptors cost one
/// comparison.
#[inline(always)]
pub fn refuse(fd: u64) -> Answer {
    if state::may_be_private(fd) { refuse_private(fd) } else { None }
}

#[cold]
#[inline(never)]
fn refuse_private(fd: u64) -> Answer {
    if state::is_private(fd) {
        return Some(failed(Errno::EBADF));
    }
    cut_off::is_unreachable(fd).then(|| failed(Errno::EIO))
}

/// As `refuse`, for the descriptors among the arguments of a call; for calls that are not frequent.
#[inline(never)]
pub fn refuse_any(number: i64, a: [u64; 6]) -> Answer {
    let (first, second) = match number {
        libc::SYS_sendfile | libc::SYS_tee => (a[0], a[1]),
        libc::SYS_copy_file_range | libc::SYS_splice => (a[0], a[2]),
        libc::SYS_epoll_ctl => (a[2], a[2]),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_vmsplice
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_syncfs
        | libc::SYS_fadvise64
        | libc::SYS_readahead
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_fchownat
        | libc::SYS_utimensat
        | libc::SYS_futimesat
        | libc::SYS_statx
        | libc::SYS_fstatfs
        | libc::SYS_fgetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_flistxattr
        | libc::SYS_fremovexattr
        | libc::SYS_fchdir
        | libc::SYS_getdents
        | libc::SYS_getdents64
        | libc::SYS_ioctl
        | libc::SYS_flock
        | libc::SYS_bind
        | libc::SYS_connect
        | libc::SYS_sendmsg
        | libc::SYS_recvmsg
        | libc::SYS_sendmmsg => (a[0], a[0]),
        _ => return None,
    };
    refuse(first).or_else(|| refuse(second))
}
