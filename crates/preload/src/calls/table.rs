//! Dispatch of calls: the one list of system-call numbers.
//!
//! Older forms of a call are converted to the arguments of the newest form, so that each has one
//! implementation.

use crate::calls::files::aio;
use crate::calls::files::descriptors;
use crate::calls::files::locks;
use crate::calls::files::mapping;
use crate::calls::files::opening;
use crate::calls::files::reserved::{self, refuse_any};
use crate::calls::files::sockets;
use crate::calls::files::transfer;
use crate::calls::names::attributes;
use crate::calls::names::directories;
use crate::calls::names::namespace as names;
use crate::calls::names::paths::{AT_CWD, Place, place, unreadable};
use crate::calls::names::space;
use crate::calls::names::xattr as extended;
use crate::calls::process::credentials;
use crate::calls::process::launch;
use crate::calls::process::limits;
use crate::calls::process::signals;
use crate::calls::process::state;
use crate::calls::{Answer, failed, user};
use client::Follow;
use wire::errno::Errno;

const OPEN_FOR_CREAT: u64 = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64;
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;
/// The current offset, for vectored calls without one.
const CURRENT: u64 = u64::MAX;

/// Handles an intercepted call: number and arguments. `None`: it is the kernel's.
#[must_use]
pub fn handle(number: i64, a: [u64; 6]) -> Answer {
    if !state::is_prepared() {
        return None;
    }
    match number {
        libc::SYS_read => transfer::read(a),
        libc::SYS_write => transfer::write(a),
        libc::SYS_openat => opening::open_at(a),
        libc::SYS_close => descriptors::close(a),
        libc::SYS_newfstatat => attributes::stat_at(a).or_else(|| reserved::refuse(a[0])),
        libc::SYS_fstat => attributes::stat_open(a).or_else(|| reserved::refuse(a[0])),
        libc::SYS_lseek => transfer::seek(a).or_else(|| reserved::refuse(a[0])),
        libc::SYS_pread64 => transfer::read_at(a),
        libc::SYS_pwrite64 => transfer::write_at(a),
        libc::SYS_mmap => mapping::map(a).or_else(|| reserved::refuse(a[4])),
        libc::SYS_statx => attributes::statx(a).or_else(|| reserved::refuse(a[0])),
        libc::SYS_unlink => names::unlink([AT_CWD, a[0], 0, 0, 0, 0]),
        libc::SYS_unlinkat => names::unlink(a),
        libc::SYS_munmap => mapping::unmap(a),
        libc::SYS_mremap => mapping::remap(a),
        libc::SYS_msync => mapping::sync(a),
        _ => other(number, a),
    }
}

/// Separate from the most frequent calls, which then do not pay for the stack that these need.
#[inline(never)]
fn other(number: i64, a: [u64; 6]) -> Answer {
    data(number, a)
        .or_else(|| metadata(number, a))
        .or_else(|| descriptor(number, a))
        .or_else(|| process(number, a))
        .or_else(|| refuse_any(number, a))
}

fn data(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_readv => transfer::read_vectored(a, CURRENT, 0),
        libc::SYS_writev => transfer::write_vectored(a, CURRENT, 0),
        libc::SYS_preadv => transfer::read_vectored(a, a[3], 0),
        libc::SYS_pwritev => transfer::write_vectored(a, a[3], 0),
        libc::SYS_preadv2 => transfer::read_vectored(a, a[3], a[5] as u32),
        libc::SYS_pwritev2 => transfer::write_vectored(a, a[3], a[5] as u32),
        libc::SYS_truncate => names::truncate(a),
        libc::SYS_ftruncate => transfer::truncate(a),
        libc::SYS_fallocate => transfer::allocate(a),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range | libc::SYS_syncfs => {
            transfer::sync(a)
        }
        libc::SYS_sendfile => refuse_any(number, a).or_else(|| transfer::send_file(a)),
        libc::SYS_copy_file_range => refuse_any(number, a).or_else(|| transfer::copy_file_range(a)),
        libc::SYS_splice => refuse_any(number, a).or_else(|| transfer::splice(a)),
        // Advice about future reads has no effect: nothing could be brought closer.
        libc::SYS_fadvise64 | libc::SYS_readahead => state::ours(a[0]).map(|_| 0),
        libc::SYS_io_submit => aio::submit(a),
        // A ring of the kernel would see the placeholders. Programs have a fallback.
        libc::SYS_io_uring_setup => Some(failed(Errno::ENOSYS)),
        _ => None,
    }
}

fn metadata(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_open => opening::open_at([AT_CWD, a[0], a[1], a[2], 0, 0]),
        libc::SYS_creat => opening::open_at([AT_CWD, a[0], OPEN_FOR_CREAT, a[1], 0, 0]),
        libc::SYS_openat2 => opening::open_at_2(a),
        libc::SYS_stat => attributes::stat_at([AT_CWD, a[0], a[1], 0, 0, 0]),
        libc::SYS_lstat => attributes::stat_at([AT_CWD, a[0], a[1], NO_FOLLOW, 0, 0]),
        libc::SYS_access => attributes::access([AT_CWD, a[0], a[1], 0, 0, 0]),
        libc::SYS_faccessat => attributes::access([a[0], a[1], a[2], 0, 0, 0]),
        libc::SYS_faccessat2 => attributes::access(a),
        libc::SYS_chmod => attributes::change_mode([AT_CWD, a[0], a[1], 0, 0, 0]),
        libc::SYS_fchmodat => attributes::change_mode([a[0], a[1], a[2], 0, 0, 0]),
        SYS_FCHMODAT2 => attributes::change_mode(a),
        libc::SYS_fchmod => attributes::change_mode_open(a),
        libc::SYS_chown => attributes::change_owner([AT_CWD, a[0], a[1], a[2], 0, 0]),
        libc::SYS_lchown => attributes::change_owner([AT_CWD, a[0], a[1], a[2], NO_FOLLOW, 0]),
        libc::SYS_fchownat => attributes::change_owner(a),
        libc::SYS_fchown => attributes::change_owner_open(a),
        libc::SYS_utimensat => attributes::set_times(a),
        libc::SYS_utime | libc::SYS_utimes | libc::SYS_futimesat => {
            attributes::set_times_old(number, a)
        }
        libc::SYS_statfs => space::by_path(a),
        libc::SYS_fstatfs => space::by_descriptor(a),
        _ => name(number, a).or_else(|| xattr(number, a)),
    }
}

/// `fchmodat2`, newer than the oldest libc that this is built with.
const SYS_FCHMODAT2: i64 = 452;

fn name(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_mkdir => names::make_directory([AT_CWD, a[0], a[1], 0, 0, 0]),
        libc::SYS_mkdirat => names::make_directory(a),
        libc::SYS_mknod => names::make_node([AT_CWD, a[0], a[1], a[2], 0, 0]),
        libc::SYS_mknodat => names::make_node(a),
        libc::SYS_rmdir => names::unlink([AT_CWD, a[0], libc::AT_REMOVEDIR as u64, 0, 0, 0]),
        libc::SYS_rename => names::rename([AT_CWD, a[0], AT_CWD, a[1], 0, 0]),
        libc::SYS_renameat => names::rename([a[0], a[1], a[2], a[3], 0, 0]),
        libc::SYS_renameat2 => names::rename(a),
        libc::SYS_link => names::link([AT_CWD, a[0], AT_CWD, a[1], 0, 0]),
        libc::SYS_linkat => names::link(a),
        libc::SYS_symlink => names::symlink([a[0], AT_CWD, a[1], 0, 0, 0]),
        libc::SYS_symlinkat => names::symlink(a),
        libc::SYS_readlink => names::read_link([AT_CWD, a[0], a[1], a[2], 0, 0]),
        libc::SYS_readlinkat => names::read_link(a),
        libc::SYS_getdents64 => directories::list(a, directories::Form::New),
        libc::SYS_getdents => directories::list(a, directories::Form::Old),
        libc::SYS_chdir => directories::change_directory(a),
        libc::SYS_fchdir => directories::change_to_open(a),
        libc::SYS_getcwd => directories::name_working_directory(a),
        libc::SYS_chroot => directories::change_root(a),
        libc::SYS_unshare | libc::SYS_setns => directories::unshare(number, a),
        _ => None,
    }
}

fn xattr(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_getxattr => extended::get(number, a, Follow::Yes),
        libc::SYS_lgetxattr => extended::get(number, a, Follow::No),
        libc::SYS_fgetxattr => extended::get_open(a),
        libc::SYS_setxattr => extended::set(number, a, Follow::Yes),
        libc::SYS_lsetxattr => extended::set(number, a, Follow::No),
        libc::SYS_fsetxattr => extended::set_open(a),
        libc::SYS_listxattr => extended::list(number, a, Follow::Yes),
        libc::SYS_llistxattr => extended::list(number, a, Follow::No),
        libc::SYS_flistxattr => extended::list_open(a),
        libc::SYS_removexattr => extended::remove(number, a, Follow::Yes),
        libc::SYS_lremovexattr => extended::remove(number, a, Follow::No),
        libc::SYS_fremovexattr => extended::remove_open(a),
        _ => None,
    }
}

fn descriptor(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_dup => descriptors::dup(a),
        libc::SYS_dup2 | libc::SYS_dup3 => descriptors::dup_to(number, a),
        libc::SYS_close_range => descriptors::close_range(a),
        libc::SYS_fcntl => descriptors::control(a),
        libc::SYS_ioctl => descriptors::ioctl(a),
        libc::SYS_flock => locks::whole(a),
        _ => None,
    }
}

fn process(number: i64, a: [u64; 6]) -> Answer {
    match number {
        libc::SYS_execve => launch::execute([AT_CWD, a[0], a[1], a[2], 0, 0]),
        libc::SYS_execveat => launch::execute(a),
        libc::SYS_exit_group => {
            launch::leave();
            None
        }
        // The kernel does not see what other programs do to our files, so it cannot report it.
        libc::SYS_inotify_add_watch => refuse_ours(AT_CWD, a[1]),
        libc::SYS_fanotify_mark => refuse_ours(a[3], a[4]),
        libc::SYS_name_to_handle_at => refuse_ours(a[0], a[1]),
        libc::SYS_bind => sockets::bind(a),
        libc::SYS_connect => sockets::connect(a),
        libc::SYS_sendmsg => sockets::send_message(a),
        libc::SYS_sendmmsg => sockets::send_messages(a),
        libc::SYS_rt_sigaction => signals::set_action(a),
        libc::SYS_setrlimit | libc::SYS_prlimit64 => limits::set(number, a),
        libc::SYS_umask => Some(credentials::set_umask(a)),
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups => Some(credentials::change(number, a)),
        _ => None,
    }
}

/// Refuses a call that is not supported for paths of the instance.
fn refuse_ours(directory: u64, path_at: u64) -> Answer {
    let path = match user::path(path_at) {
        Ok(path) => path,
        Err(errno) => return unreadable(directory, errno),
    };
    match place(directory, path) {
        Ok(Place::Native) => None,
        _ => Some(failed(Errno::EOPNOTSUPP)),
    }
}
