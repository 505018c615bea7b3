//! Job, tag, rank and program of this process, and the class of each call. The counters are in
//! `shm::activity`.

use crate::calls::native;
use crate::calls::process::static_client::CLIENT;
use crate::environment::Environment;
use client::{OpClass, Tags};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32};
use shm::activity::blocks::{JOB_BYTES, Label, PROGRAM_BYTES, TAG_BYTES};
use wire::errno::Errno;
use wire::job::{JOB_VARIABLES, RANK_VARIABLES, TAG_VARIABLE};

static JOB: [AtomicU8; JOB_BYTES] = [const { AtomicU8::new(0) }; JOB_BYTES];
static TAG: [AtomicU8; TAG_BYTES] = [const { AtomicU8::new(0) }; TAG_BYTES];
/// Rank plus one; 0: none.
static RANK: AtomicU32 = AtomicU32::new(0);

/// Takes job, tag and rank from the environment, at load time.
pub fn prepare(environment: &Environment) {
    let set = |name: &&str| environment.get(name.as_bytes()).filter(|value| !value.is_empty());
    if let Some(job) = JOB_VARIABLES.iter().find_map(set) {
        JOB.iter().zip(job.to_bytes()).for_each(|(to, &from)| to.store(from, Relaxed));
    }
    if let Some(tag) = set(&TAG_VARIABLE) {
        TAG.iter().zip(tag.to_bytes()).for_each(|(to, &from)| to.store(from, Relaxed));
    }
    let rank = RANK_VARIABLES.iter().find_map(set).and_then(|rank| rank.to_str().ok());
    let rank = rank.and_then(|rank| rank.parse::<u32>().ok()).and_then(|rank| rank.checked_add(1));
    RANK.store(rank.unwrap_or(0), Relaxed);
}

/// The tags of this process, which runs `program`.
#[must_use]
pub fn tags(program: Label<PROGRAM_BYTES>) -> Tags {
    let mut job = [0; JOB_BYTES];
    job.iter_mut().zip(&JOB).for_each(|(to, from)| *to = from.load(Relaxed));
    let mut tag = [0; TAG_BYTES];
    tag.iter_mut().zip(&TAG).for_each(|(to, from)| *to = from.load(Relaxed));
    let uid = native::call(libc::SYS_getuid, [0; 6]) as u32;
    let gid = native::call(libc::SYS_getgid, [0; 6]) as u32;
    Tags { job, program, tag, rank: RANK.load(Relaxed).checked_sub(1), uid, gid }
}

/// Calls with numbers from this one on are all of the class `Other`.
const CALL_COUNT: usize = 512;

/// The class of each call, by its number. `None`: not counted here. Reads and writes count
/// themselves, and some calls concern no file.
static CLASSES: [Option<OpClass>; CALL_COUNT] = {
    let mut classes = [None; CALL_COUNT];
    let (mut rest, mut number) = (classes.as_mut_slice(), 0);
    while let Some((first, others)) = rest.split_first_mut() {
        *first = class_of_number(number);
        rest = others;
        number += 1;
    }
    classes
};

const fn class_of_number(number: i64) -> Option<OpClass> {
    let class = match number {
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 => OpClass::Open,
        libc::SYS_creat
        | libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_mknod
        | libc::SYS_mknodat
        | libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_symlink
        | libc::SYS_symlinkat => OpClass::Create,
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_access
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlink
        | libc::SYS_readlinkat => OpClass::Stat,
        libc::SYS_getdents | libc::SYS_getdents64 => OpClass::ReadDirectory,
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir => OpClass::Unlink,
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => OpClass::Rename,
        libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_syncfs
        | libc::SYS_msync => OpClass::Sync,
        libc::SYS_close | libc::SYS_close_range => OpClass::Close,
        _ if is_uncounted(number) => return None,
        _ => OpClass::Other,
    };
    Some(class)
}

const fn is_uncounted(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_sendfile
            | libc::SYS_copy_file_range
            | libc::SYS_splice
            | libc::SYS_io_submit
            | libc::SYS_io_uring_setup
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_bind
            | libc::SYS_connect
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_rt_sigaction
            | libc::SYS_setrlimit
            | libc::SYS_prlimit64
            | libc::SYS_umask
            | libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
    )
}

/// The class of a call; `None`: it is not counted here.
#[inline(always)]
#[must_use]
pub fn class_of(number: i64) -> Option<OpClass> {
    if !client::COUNTS {
        return None;
    }
    CLASSES.get(number as usize).copied().unwrap_or(Some(OpClass::Other))
}

/// The class with the arguments of the call known.
#[inline(always)]
#[must_use]
pub fn with_creation(class: OpClass, number: i64, a: &[u64; 6]) -> OpClass {
    if class == OpClass::Open && creates(number, a) { OpClass::Create } else { class }
}

/// Counts a call that failed with this result.
#[cold]
pub fn count_failure(class: OpClass, result: i64) {
    let errno = u16::try_from(result.unsigned_abs()).map_or(Errno::EIO, Errno);
    CLIENT.note_failed_call(class, errno);
}

/// True for an open that may make a file.
fn creates(number: i64, a: &[u64; 6]) -> bool {
    let flags = match number {
        libc::SYS_open => a[1],
        libc::SYS_openat => a[2],
        _ => 0,
    };
    flags & (libc::O_CREAT as u64) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_classes() {
        let class = |number: i64| CLASSES[number as usize];
        for (number, expected) in [
            (libc::SYS_newfstatat, OpClass::Stat),
            (libc::SYS_openat, OpClass::Open),
            (libc::SYS_mkdirat, OpClass::Create),
            (libc::SYS_unlinkat, OpClass::Unlink),
            (libc::SYS_fsync, OpClass::Sync),
            (libc::SYS_close, OpClass::Close),
            (libc::SYS_lseek, OpClass::Other),
        ] {
            assert_eq!(class(number), Some(expected), "{number}");
        }
        assert_eq!(class(libc::SYS_pread64), None);
        let flags = (libc::O_CREAT | libc::O_RDWR) as u64;
        assert!(creates(libc::SYS_openat, &[0, 0, flags, 0, 0, 0]));
        assert!(!creates(libc::SYS_openat, &[0, 0, 2, flags, 0, 0]));
        assert_eq!(OpClass::ALL.map(|class| class as usize), core::array::from_fn(|at| at));
    }
}
