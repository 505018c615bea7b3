//! Which system calls reach the handler: those that name, hold, create or pass on a file, and those
//! that change the process itself (credentials, signals, children, its end).
//!
//! Left out on purpose: rt_sigreturn and arch_prctl (nothing to see, much to break), memfd_create,
//! mprotect, process_vm_readv and process_vm_writev.

/// Numbers from here on are never selected. The table has one byte per number; 512 is above the
/// highest.
pub const LIMIT: usize = 512;

/// The table that `enter` reads: 0 goes straight to the kernel.
pub static SELECTED: [u8; LIMIT] = table();

/// clone, fork, vfork, clone3, in the order of their native calls in a stub.
pub const CREATORS: [u16; 4] = [56, 57, 58, 435];

const _: () = assert!(libc::SYS_clone == 56 && libc::SYS_fork == 57);
const _: () = assert!(libc::SYS_vfork == 58 && libc::SYS_clone3 == 435);

/// True if calls of this number reach the handler.
#[must_use]
pub fn selected(number: u16) -> bool {
    SELECTED.get(usize::from(number)).is_some_and(|&entry| entry != 0)
}

/// True if a call of this number creates a process or a thread.
#[must_use]
pub fn creates(number: u16) -> bool {
    CREATORS.contains(&number)
}

/// Numbers of x86_64, in the order of the kernel's table.
#[rustfmt::skip]
const NUMBERS: &[i64] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_open, libc::SYS_close, libc::SYS_stat,
    libc::SYS_fstat, libc::SYS_lstat, libc::SYS_poll, libc::SYS_lseek, libc::SYS_mmap,
    libc::SYS_munmap, libc::SYS_rt_sigaction, libc::SYS_ioctl, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv,
    libc::SYS_writev, libc::SYS_access, libc::SYS_select, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_dup, libc::SYS_dup2, libc::SYS_sendfile, libc::SYS_connect, libc::SYS_sendmsg,
    libc::SYS_recvmsg, libc::SYS_bind, libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork,
    libc::SYS_execve, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_getdents, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir,
    libc::SYS_creat, libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink,
    libc::SYS_chmod, libc::SYS_fchmod, libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown,
    libc::SYS_umask, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid,
    libc::SYS_setgroups, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid,
    libc::SYS_setfsgid, libc::SYS_capset, libc::SYS_utime, libc::SYS_mknod, libc::SYS_uselib,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_sync,
    libc::SYS_acct, libc::SYS_mount, libc::SYS_umount2, libc::SYS_swapon, libc::SYS_quotactl,
    libc::SYS_readahead, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_fremovexattr, libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_getevents,
    libc::SYS_io_submit, libc::SYS_io_cancel, libc::SYS_getdents64, libc::SYS_fadvise64,
    libc::SYS_exit_group, libc::SYS_epoll_ctl, libc::SYS_utimes, libc::SYS_inotify_add_watch,
    libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_fchownat,
    libc::SYS_futimesat, libc::SYS_newfstatat, libc::SYS_unlinkat, libc::SYS_renameat,
    libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_fchmodat,
    libc::SYS_faccessat, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_unshare, libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_sync_file_range, libc::SYS_vmsplice, libc::SYS_utimensat, libc::SYS_fallocate,
    libc::SYS_dup3, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_fanotify_mark,
    libc::SYS_name_to_handle_at, libc::SYS_syncfs, libc::SYS_sendmmsg, libc::SYS_setns,
    libc::SYS_renameat2, libc::SYS_execveat, libc::SYS_setrlimit, libc::SYS_prlimit64,
    libc::SYS_copy_file_range, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_statx,
    333 /* io_pgetevents */, libc::SYS_io_uring_setup, libc::SYS_clone3, libc::SYS_close_range,
    libc::SYS_openat2, libc::SYS_faccessat2, libc::SYS_fchmodat2,
    463, 464, 465, 466, // setxattrat getxattrat listxattrat removexattrat
];

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time, where no panic remains")]
const fn table() -> [u8; LIMIT] {
    let mut table = [0; LIMIT];
    let mut index = 0;
    while index < NUMBERS.len() {
        table[NUMBERS[index] as usize] = 1;
        index += 1;
    }
    table
}
