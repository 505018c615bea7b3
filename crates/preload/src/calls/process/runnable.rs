//! Whether this library can be loaded into a program, by what its file begins with.

use crate::calls::names::paths::{AT_CWD, Text};
use crate::calls::native;
use crate::calls::process::limits::soft_limit;
use crate::calls::process::state::kernel;
use wire::errno::Result;

/// Scripts whose interpreters are scripts, as in the kernel.
const INTERPRETERS_MAX: u32 = 5;
/// Length of the part of a file that is read. Linkers put headers, the loader's name and notes there.
const HEAD_BYTES: usize = 4096;
const X86_64: u64 = 62;

/// How a program is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loading {
    /// With this library.
    Preloaded,
    /// Without it, for this reason: it has no dynamic loader, or makes its own system calls.
    Alone(&'static [u8]),
    /// Without it, because the loader runs in secure mode and ignores `LD_PRELOAD`.
    Privileged(&'static [u8]),
    /// Without it, and a library of the C library of this one would not load into it.
    Foreign(&'static [u8]),
}

/// How the program of an exec is started; scripts are followed to their interpreters. A file that
/// cannot be read is left to the kernel.
#[must_use]
pub fn loading(directory: u64, path: u64, flags: u64) -> Loading {
    let mut next = None;
    for _ in 0..=INTERPRETERS_MAX {
        let at = next.as_ref().map_or((directory, path), |text: &Text| (AT_CWD, text.address()));
        let mut head = [0; HEAD_BYTES];
        let Ok(found) = read_head(at, flags, &mut head) else { return Loading::Preloaded };
        if let Some(reason) = found.is_privileged {
            return Loading::Privileged(reason);
        }
        let head = head.get(..found.length).unwrap_or(&[]);
        match interpreter(head) {
            Some(path) => next = Some(Text::new(path)),
            None => return loading_of(head),
        }
    }
    Loading::Preloaded
}

/// True if the file is an ELF program that may be executed.
#[must_use]
pub fn is_program(directory: u64, path: u64) -> bool {
    let mut head = [0; 4];
    let executes = [directory, path, libc::X_OK as u64, 0, 0, 0];
    native::call(libc::SYS_faccessat, executes) == 0
        && read_head((directory, path), 0, &mut head).is_ok()
        && head == *b"\x7fELF"
}

/// True under limits with which the next program may fail to attach (of address space, of which the
/// memory of the instance takes much, or of descriptors), or with which its code cannot be changed.
#[must_use]
pub fn has_tight_limits() -> bool {
    const DESCRIPTORS_MIN: u64 = 128;
    soft_limit(u64::from(libc::RLIMIT_AS)) != libc::RLIM_INFINITY
        || soft_limit(u64::from(libc::RLIMIT_NOFILE)) < DESCRIPTORS_MIN
        || native::call(libc::SYS_prctl, [PR_GET_MDWE, 0, 0, 0, 0, 0]) > 0
}

/// Whether memory that was writable may not become executable, which exec keeps.
const PR_GET_MDWE: u64 = 66;

struct Found {
    length: usize,
    is_privileged: Option<&'static [u8]>,
}

fn read_head((directory, path): (u64, u64), flags: u64, to: &mut [u8]) -> Result<Found> {
    const EMPTY: u64 = libc::AT_EMPTY_PATH as u64;
    // A descriptor itself (fexecve) is read by itself.
    let is_itself = flags & EMPTY != 0
        && crate::calls::user::path(path).is_ok_and(<[u8]>::is_empty)
        && directory as u32 != AT_CWD as u32;
    let fd = if is_itself {
        directory
    } else {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        kernel(native::call(libc::SYS_openat, [directory, path, flags, 0, 0, 0]))? as u64
    };
    let mut stat = [0u64; 18];
    let found = native::call(libc::SYS_fstat, [fd, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
    let args = [fd, to.as_mut_ptr() as u64, to.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_pread64, args);
    if !is_itself {
        native::close(fd as i32);
    }
    kernel(found)?;
    let length = usize::try_from(kernel(length)?).unwrap_or(0);
    Ok(Found { length, is_privileged: privilege(&stat) })
}

/// The reason why a loader runs in secure mode, in which it ignores libraries with a path.
fn privilege(stat: &[u64; 18]) -> Option<&'static [u8]> {
    // The mode is in the lower half of the fourth word of `struct stat`, the user in the upper half,
    // the group in the lower half of the fifth.
    let [_, _, _, mode_and_user, group, ..] = *stat;
    let (mode, uid, gid) = (mode_and_user as u32, (mode_and_user >> 32) as u32, group as u32);
    let is_other = |number| native::call(number, [0; 6]) as u32;
    if mode & libc::S_ISUID != 0 && uid != is_other(libc::SYS_geteuid) {
        return Some(b"runs as another user (set-uid)");
    }
    // Without the right to execute for the group the bit means something else.
    let set_gid = libc::S_ISGID | libc::S_IXGRP;
    if mode & set_gid == set_gid && gid != is_other(libc::SYS_getegid) {
        return Some(b"runs as another group (set-gid)");
    }
    None
}

/// The interpreter of a script.
fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
    line.split(u8::is_ascii_whitespace).next().filter(|path| !path.is_empty())
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(N)?)?;
    Some(field.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// How a program is started whose file begins with `head`.
#[must_use]
pub fn loading_of(head: &[u8]) -> Loading {
    match head {
        [0x7f, b'E', b'L', b'F', 2, ..] => {}
        [0x7f, b'E', b'L', b'F', ..] => return Loading::Foreign(b"is a 32-bit program"),
        _ => return Loading::Preloaded,
    }
    if number::<2>(head, 18) != Some(X86_64) {
        return Loading::Foreign(b"is a program for another machine");
    }
    let table = (number::<8>(head, 32), number::<2>(head, 54), number::<2>(head, 56));
    let (Some(start), Some(size), Some(count)) = table else { return Loading::Preloaded };
    let (mut has_loader, mut is_go) = (false, false);
    for index in 0..count {
        let at = start.saturating_add(index.saturating_mul(size));
        let Ok(at) = usize::try_from(at) else { return Loading::Preloaded };
        let header = (number::<4>(head, at), number::<8>(head, at + 8), number::<8>(head, at + 32));
        // A table beyond what was read proves nothing.
        let (Some(kind), Some(offset), Some(length)) = header else { return Loading::Preloaded };
        let (offset, length) = (offset as usize, length as usize);
        let bytes = offset.checked_add(length).and_then(|end| head.get(offset..end));
        if kind == u64::from(libc::PT_INTERP) {
            has_loader = true;
            if bytes.is_some_and(|path| !is_glibc_loader(path)) {
                return Loading::Foreign(b"uses another C library");
            }
        }
        // `.note.go.buildid`: lengths of name and text, type, and the name.
        is_go |= kind == u64::from(libc::PT_NOTE)
            && bytes.is_some_and(|note| note.get(12..16) == Some(b"Go\0\0"));
    }
    match (has_loader, is_go) {
        (false, _) => Loading::Alone(b"is statically linked"),
        (true, true) => Loading::Alone(b"is a Go program, which makes its own system calls"),
        (true, false) => Loading::Preloaded,
    }
}

fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"ld-linux-x86-64.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with one program header, at 64, and what that names, at 120.
    fn program(kind: u32, bytes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 120];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64..68].copy_from_slice(&kind.to_le_bytes());
        file[72] = 120;
        file[96] = bytes.len() as u8;
        file.extend(bytes);
        file
    }

    #[test]
    fn programs_that_cannot_load_the_library_are_recognised() {
        let glibc = program(libc::PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
        assert_eq!(loading_of(&glibc), Loading::Preloaded);
        let musl = program(libc::PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(loading_of(&musl), Loading::Foreign(b"uses another C library"));
        let alone = program(libc::PT_LOAD, b"");
        assert_eq!(loading_of(&alone), Loading::Alone(b"is statically linked"));
        let mut small = glibc.clone();
        small[4] = 1;
        assert_eq!(loading_of(&small), Loading::Foreign(b"is a 32-bit program"));
        let mut other = glibc.clone();
        other[18] = 183;
        assert_eq!(loading_of(&other), Loading::Foreign(b"is a program for another machine"));
        assert_eq!(loading_of(&glibc[..100]), Loading::Preloaded, "cut off: proves nothing");
        assert_eq!(loading_of(b"text"), Loading::Preloaded);
        assert_eq!(interpreter(b"#! /bin/a -b\nx"), Some(&b"/bin/a"[..]));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
