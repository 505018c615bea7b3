//! `stat` in all its forms, `access`, and the calls that change attributes.

use crate::calls::names::paths::{AT_CWD, Place, on_subject, place, unreadable};
use crate::calls::process::credentials::{caller, real};
use crate::calls::process::mount;
use crate::calls::process::state::{client, ours};
use crate::calls::{Answer, answer, failed, user};
use client::{Client, Follow, OfdIndex, Time, Times};
use wire::Attributes;
use wire::errno::{Errno, Result};

const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;

fn follow(flags: u64) -> Follow {
    if flags & NO_FOLLOW != 0 { Follow::No } else { Follow::Yes }
}

fn stat_of(client: &Client, attributes: &Attributes) -> libc::stat {
    // SAFETY: `stat` is a plain C structure of integers, for which zeros are valid.
    // WHY: it has private padding, so it cannot be written out field by field.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    stat.st_dev = mount::device_or(client.device());
    stat.st_ino = attributes.inode.0;
    stat.st_mode = attributes.mode;
    stat.st_nlink = attributes.links.into();
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    stat.st_rdev = u64::from(attributes.device);
    stat.st_size = attributes.shown_size() as i64;
    stat.st_blksize = BLOCK_BYTES;
    stat.st_blocks = client.usage(attributes).div_ceil(512) as i64;
    (stat.st_atime, stat.st_atime_nsec) = split(attributes.accessed);
    (stat.st_mtime, stat.st_mtime_nsec) = split(attributes.modified);
    (stat.st_ctime, stat.st_ctime_nsec) = split(attributes.changed);
    stat
}

/// Buffer size suggested to programs: a copy loop of 256 KiB costs one call for each.
const BLOCK_BYTES: i64 = 256 * 1024;

/// Seconds and nanoseconds. Hardly a time is before 1970, and without a sign the division is shorter.
#[inline(always)]
const fn split(nanos: i64) -> (i64, i64) {
    const SECOND: i64 = 1_000_000_000;
    if nanos < 0 {
        return (nanos.div_euclid(SECOND), nanos.rem_euclid(SECOND));
    }
    let nanos = nanos.cast_unsigned();
    ((nanos / SECOND as u64).cast_signed(), (nanos % SECOND as u64).cast_signed())
}

/// `fstat`.
#[must_use]
pub fn stat_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(client().and_then(|client| user::put(a[1], stat_of(client, &client.fstat(file)?))))
}

/// `newfstatat`: directory, path, where to, flags.
#[must_use]
#[inline(never)]
pub fn stat_at(a: [u64; 6]) -> Answer {
    on_subject(
        libc::SYS_newfstatat,
        a,
        a[3],
        |client, file| user::put(a[2], stat_of(client, &client.fstat(file)?)),
        |client, at, buffer| {
            client.stat_with(at, follow(a[3]), &caller(), buffer, |attributes| {
                user::put(a[2], stat_of(client, attributes))
            })
        },
    )
}

fn statx_of(client: &Client, attributes: &Attributes) -> libc::statx {
    let stamp = |nanos: i64| {
        let (seconds, rest) = split(nanos);
        // SAFETY: a plain C structure of integers, for which zeros are valid.
        // WHY: its padding is private.
        let mut stamp: libc::statx_timestamp = unsafe { core::mem::zeroed() };
        stamp.tv_sec = seconds;
        stamp.tv_nsec = rest as u32;
        stamp
    };
    // WHY and SAFETY: as for `stat_of`.
    let mut statx: libc::statx = unsafe { core::mem::zeroed() };
    statx.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    statx.stx_blksize = BLOCK_BYTES as u32;
    statx.stx_nlink = attributes.links;
    statx.stx_uid = attributes.uid;
    statx.stx_gid = attributes.gid;
    statx.stx_mode = attributes.mode as u16;
    statx.stx_ino = attributes.inode.0;
    statx.stx_size = attributes.shown_size();
    statx.stx_blocks = client.usage(attributes).div_ceil(512);
    statx.stx_atime = stamp(attributes.accessed);
    statx.stx_mtime = stamp(attributes.modified);
    statx.stx_ctime = stamp(attributes.changed);
    statx.stx_btime = stamp(attributes.born);
    statx.stx_rdev_major = libc::major(u64::from(attributes.device));
    statx.stx_rdev_minor = libc::minor(u64::from(attributes.device));
    let device = mount::device_or(client.device());
    statx.stx_dev_major = libc::major(device);
    statx.stx_dev_minor = libc::minor(device);
    statx
}

/// `statx`: directory, path, flags, mask, where to.
#[must_use]
pub fn statx(a: [u64; 6]) -> Answer {
    on_subject(
        libc::SYS_statx,
        a,
        a[2],
        |client, file| user::put(a[4], statx_of(client, &client.fstat(file)?)),
        |client, at, buffer| {
            client.stat_with(at, follow(a[2]), &caller(), buffer, |attributes| {
                user::put(a[4], statx_of(client, attributes))
            })
        },
    )
}

/// `faccessat2`: directory, path, mode, flags.
#[must_use]
pub fn access(a: [u64; 6]) -> Answer {
    let mode = a[2] as u32;
    let effective = a[3] & libc::AT_EACCESS as u64 != 0;
    let caller = || if effective { caller() } else { real() };
    on_subject(
        libc::SYS_faccessat2,
        a,
        a[3],
        |client, file| client.faccess(file, mode, &caller()),
        |client, at, buffer| {
            if mode & !7 != 0 {
                return Err(Errno::EINVAL);
            }
            client.access(at, mode, follow(a[3]), &caller(), buffer)
        },
    )
}

/// `fchmodat2`: directory, path, mode, flags.
#[must_use]
pub fn change_mode(a: [u64; 6]) -> Answer {
    let mode = a[2] as u32 & 0o7777;
    on_subject(
        libc::SYS_fchmodat,
        a,
        a[3],
        |client, file| client.fchmod(file, mode, &caller()),
        |client, at, buffer| client.chmod(at, mode, follow(a[3]), &caller(), buffer),
    )
}

/// The client, for a call that is not allowed on a descriptor of `O_PATH`.
fn more_than_path(file: OfdIndex) -> Result<&'static Client> {
    let client = client()?;
    if client.flags(file)? as i32 & libc::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(client) }
}

/// `fchmod`.
#[must_use]
pub fn change_mode_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(
        more_than_path(file)
            .and_then(|client| client.fchmod(file, a[1] as u32 & 0o7777, &caller())),
    )
}

/// An owner or group; -1 leaves it unchanged.
const fn owner(id: u64) -> Option<u32> {
    if id as u32 == u32::MAX { None } else { Some(id as u32) }
}

/// `fchownat`: directory, path, user, group, flags.
#[must_use]
pub fn change_owner(a: [u64; 6]) -> Answer {
    let (user, group) = (owner(a[2]), owner(a[3]));
    on_subject(
        libc::SYS_fchownat,
        a,
        a[4],
        |client, file| client.fchown(file, (user, group), &caller()),
        |client, at, buffer| client.chown(at, (user, group), follow(a[4]), &caller(), buffer),
    )
}

/// `fchown`.
#[must_use]
pub fn change_owner_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(
        more_than_path(file)
            .and_then(|client| client.fchown(file, (owner(a[1]), owner(a[2])), &caller())),
    )
}

fn times(address: u64) -> Result<Times> {
    if address == 0 {
        return Ok(Times { accessed: Time::Now, modified: Time::Now });
    }
    let [accessed, modified]: [libc::timespec; 2] = user::get(address)?;
    Ok(Times { accessed: time(accessed)?, modified: time(modified)? })
}

fn time(spec: libc::timespec) -> Result<Time> {
    match spec.tv_nsec {
        libc::UTIME_NOW => Ok(Time::Now),
        libc::UTIME_OMIT => Ok(Time::Omit),
        0..=999_999_999 => {
            let nanos = spec.tv_sec.saturating_mul(1_000_000_000).saturating_add(spec.tv_nsec);
            Ok(Time::At(nanos))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `utimensat`: directory, path (0: the descriptor itself), times, flags.
#[must_use]
pub fn set_times(a: [u64; 6]) -> Answer {
    // Without a path the descriptor itself is meant, whatever the flags are.
    let flags = if a[1] == 0 { a[3] | libc::AT_EMPTY_PATH as u64 } else { a[3] };
    on_subject(
        libc::SYS_utimensat,
        a,
        flags,
        |client, file| client.fset_times(file, times(a[2])?, &caller()),
        |client, at, buffer| client.set_times(at, times(a[2])?, follow(a[3]), &caller(), buffer),
    )
}

/// `utime`, `utimes`, `futimesat`: the older forms, as `utimensat` with their kind of times.
#[must_use]
pub fn set_times_old(number: i64, a: [u64; 6]) -> Answer {
    let (directory, path_at, times_at) =
        if number == libc::SYS_futimesat { (a[0], a[1], a[2]) } else { (AT_CWD, a[0], a[1]) };
    if path_at == 0 {
        // `futimesat` without a path: the descriptor itself.
        ours(directory)?;
    } else {
        let path = match user::path(path_at) {
            Ok(path) => path,
            Err(errno) => return unreadable(directory, errno),
        };
        if matches!(place(directory, path), Ok(Place::Native)) {
            return None;
        }
    }
    let mut specs = [libc::timespec { tv_sec: 0, tv_nsec: 0 }; 2];
    if times_at != 0 {
        let outcome = if number == libc::SYS_utime {
            user::get::<[i64; 2]>(times_at).map(|seconds| seconds.map(|second| (second, 0)))
        } else {
            user::get::<[[i64; 2]; 2]>(times_at).map(|pairs| pairs.map(|pair| (pair[0], pair[1])))
        };
        match outcome {
            Ok(pairs) => {
                for (spec, (seconds, micros)) in specs.iter_mut().zip(pairs) {
                    *spec = libc::timespec { tv_sec: seconds, tv_nsec: micros * 1000 };
                }
            }
            Err(errno) => return Some(failed(errno)),
        }
    }
    let specs_at = if times_at == 0 { 0 } else { specs.as_ptr() as u64 };
    set_times([directory, path_at, specs_at, 0, 0, 0])
}
