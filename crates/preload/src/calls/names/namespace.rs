//! Names: mkdir, rmdir, unlink, rename, link, symlink, readlink, mknod, truncate by path.

use crate::calls::names::paths::{Place, Text, on_path, place, unreadable};
use crate::calls::process::credentials::{caller, with_umask};
use crate::calls::process::limits;
use crate::calls::process::state::{client, ours};
use crate::calls::{Answer, answer, failed, native, user};
use crate::decimal::{DIGITS_MAX, decimal};
use client::{At, BY_KERNEL, Client, Follow, Outcome, PathBuffer};
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// `mkdirat`.
#[must_use]
pub fn make_directory(a: [u64; 6]) -> Answer {
    on_path(libc::SYS_mkdirat, a, |client, at, buffer| {
        client.make_directory(at, with_umask(a[2]), &caller(), buffer)
    })
}

/// `mknodat`: directory, path, mode, device.
#[must_use]
pub fn make_node(a: [u64; 6]) -> Answer {
    on_path(libc::SYS_mknodat, a, |client, at, buffer| {
        let kind = match a[2] as u32 & mode::TYPE {
            0 => mode::REGULAR,
            kind => kind,
        };
        client.make_node(at, kind | with_umask(a[2]), a[3], &caller(), buffer)
    })
}

/// `unlinkat`: directory, path, flags.
#[must_use]
pub fn unlink(a: [u64; 6]) -> Answer {
    on_path(libc::SYS_unlinkat, a, |client, at, buffer| match a[2] as i32 {
        0 => client.unlink(at, &caller(), buffer),
        libc::AT_REMOVEDIR => client.remove_directory(at, &caller(), buffer),
        _ => Err(Errno::EINVAL),
    })
}

/// `symlinkat`: target, directory, path.
#[must_use]
pub fn symlink(a: [u64; 6]) -> Answer {
    let as_path = [a[1], a[2], 0, 0, 0, 0];
    let path = match user::path(a[2]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[1], errno),
    };
    if matches!(place(a[1], path), Ok(Place::Native)) {
        return None;
    }
    let mut outside = false;
    let done = on_path(libc::SYS_symlinkat, as_path, |client, at, buffer| {
        let outcome = client.symlink(user::path(a[0])?, at, &caller(), buffer)?;
        outside = matches!(outcome, Outcome::Outside);
        // The arguments of this call are in another order than `on_path` passes on.
        Ok(if outside { Outcome::Done(()) } else { outcome })
    });
    if outside { Some(failed(Errno::EXDEV)) } else { done }
}

/// `readlinkat`: directory, path, buffer, length.
#[must_use]
pub fn read_link(a: [u64; 6]) -> Answer {
    let path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    // The magic links of descriptors of ours: the kernel would name the placeholder.
    if let Ok(Place::Open(used)) = place(a[0], path) {
        return answer(name_of_open(used.file(), a[2], a[3]));
    }
    if path == b"/proc/self/exe"
        && let Some(exe) = crate::program::exe()
    {
        let to = user::bytes_mut(a[2], a[3] as u32 as usize);
        return answer(to.map(|to| {
            for (byte, from) in to.iter_mut().zip(exe.to_bytes()) {
                *byte = *from;
            }
            to.len().min(exe.count_bytes())
        }));
    }
    if path.is_empty()
        && let Some(used) = ours(a[0])
    {
        return answer((|| {
            let target = user::bytes_mut(a[2], a[3] as u32 as usize)?;
            client()?.fread_link(used.file(), target, &caller())
        })());
    }
    on_path(libc::SYS_readlinkat, a, |client, at, buffer| {
        if a[3] as i32 <= 0 {
            return Err(Errno::EINVAL);
        }
        let target = user::bytes_mut(a[2], a[3] as u32 as usize)?;
        client.read_link(at, target, &caller(), buffer)
    })
}

/// The path by which an open file was found. If that name is gone the file is shown by number, as
/// the kernel shows files without a name.
fn name_of_open(file: client::OfdIndex, to: u64, length: u64) -> Result<usize> {
    let client = client()?;
    let mut buffer = PathBuffer::new();
    let to = user::bytes_mut(to, length as u32 as usize)?;
    let mut text = [0; 48];
    let name = match client.path_of_open(file, &mut buffer) {
        Ok(()) => buffer.outside(),
        Err(_) => name_by_number(client.inode_of(file)?.0, &mut text),
    };
    for (byte, from) in to.iter_mut().zip(name) {
        *byte = *from;
    }
    Ok(to.len().min(name.len()))
}

fn name_by_number(number: u64, text: &mut [u8; 48]) -> &[u8] {
    const START: &[u8] = b"forebay:[";
    let mut digits = [0; DIGITS_MAX];
    let digits = decimal(number, &mut digits);
    let parts = START.iter().chain(digits).chain(b"]");
    let mut length = 0;
    for (to, from) in text.iter_mut().zip(parts) {
        *to = *from;
        length += 1;
    }
    text.get(..length).unwrap_or(&[])
}

/// The places of a call on two paths.
struct PlacePair<'a> {
    from: Place<'a>,
    to: Place<'a>,
}

fn place_pair<'a>(from: (u64, u64), to: (u64, u64)) -> Option<Result<PlacePair<'a>>> {
    let paths = match (user::path(from.1), user::path(to.1)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(errno), _) | (_, Err(errno)) => {
            let is_ours = unreadable(from.0, errno).or_else(|| unreadable(to.0, errno)).is_some();
            return is_ours.then_some(Err(errno));
        }
    };
    Some(
        place(from.0, paths.0).and_then(|first| {
            place(to.0, paths.1).map(|second| PlacePair { from: first, to: second })
        }),
    )
}

/// Path buffers of two walks.
type Buffers<'a> = (&'a mut PathBuffer, &'a mut PathBuffer);

/// Runs a call on two paths of ours. One of ours and one of the kernel's is EXDEV, as between any
/// two file systems.
fn on_two(
    number: i64,
    a: [u64; 6],
    ours: impl FnOnce(&Client, At<'_>, At<'_>, Buffers<'_>) -> Result<Outcome<()>>,
) -> Answer {
    let (from, to) = match place_pair((a[0], a[1]), (a[2], a[3]))? {
        Ok(PlacePair { from: Place::Native, to: Place::Native }) => return None,
        Ok(PlacePair { from: Place::Ours(from), to: Place::Ours(to) }) => (from, to),
        Ok(_) => return Some(failed(Errno::EXDEV)),
        Err(errno) => return Some(failed(errno)),
    };
    let (mut from_buffer, mut to_buffer) = (PathBuffer::new(), PathBuffer::new());
    let outcome =
        client().and_then(|client| ours(client, from, to, (&mut from_buffer, &mut to_buffer)));
    match outcome {
        Ok(Outcome::Done(())) => Some(0),
        Ok(Outcome::Outside) if from_buffer.is_outside() && to_buffer.is_outside() => {
            let texts = (Text::new(from_buffer.outside()), Text::new(to_buffer.outside()));
            let directory = crate::calls::names::paths::AT_CWD;
            let b = [directory, texts.0.address(), directory, texts.1.address(), a[4], 0];
            Some(native::call(number, b))
        }
        Ok(_) => Some(failed(Errno::EXDEV)),
        Err(errno) => Some(failed(errno)),
    }
}

/// `renameat2`: directory, path, new directory, new path, flags.
#[must_use]
pub fn rename(a: [u64; 6]) -> Answer {
    on_two(libc::SYS_renameat2, a, |client, from, to, buffers| {
        client.rename(from, to, a[4] as u32, &caller(), buffers)
    })
}

/// `linkat`: directory, path, new directory, new path, flags.
#[must_use]
pub fn link(a: [u64; 6]) -> Answer {
    if let Some(answer) = link_open(a) {
        return Some(answer);
    }
    on_two(libc::SYS_linkat, a, |client, from, to, buffers| {
        let follow = a[4] as i32 & libc::AT_SYMLINK_FOLLOW != 0;
        let follow = if follow { Follow::Yes } else { Follow::No };
        client.link(from, follow, to, &caller(), buffers)
    })
}

/// Names an open file: by its descriptor and an empty path, or through `/proc/self/fd`.
fn link_open(a: [u64; 6]) -> Answer {
    let path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    let used = if path.is_empty() && a[4] as i32 & libc::AT_EMPTY_PATH != 0 {
        ours(a[0])?
    } else {
        match place(a[0], path) {
            Ok(Place::Open(used)) if a[4] as i32 & libc::AT_SYMLINK_FOLLOW != 0 => used,
            _ => return None,
        }
    };
    let to = match place(a[2], user::path(a[3]).ok()?) {
        Ok(Place::Ours(to)) => to,
        Ok(_) => return Some(failed(Errno::EXDEV)),
        Err(errno) => return Some(failed(errno)),
    };
    let mut buffer = PathBuffer::new();
    match client().and_then(|client| client.link_open(used.file(), to, &caller(), &mut buffer)) {
        Ok(Outcome::Done(())) => Some(0),
        Ok(_) => Some(failed(Errno::EXDEV)),
        Err(errno) => Some(failed(errno)),
    }
}

/// `truncate`: path, size. It has no form with a directory, so the arguments are shifted here.
#[must_use]
pub fn truncate(a: [u64; 6]) -> Answer {
    let as_path = [crate::calls::names::paths::AT_CWD, a[0], a[1], 0, 0, 0];
    let mut text = None;
    let done = on_path(libc::SYS_truncate, as_path, |client, at, buffer| {
        if a[1] > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        let outcome = client.truncate(at, a[1], &caller(), buffer)?;
        if matches!(outcome, Outcome::Outside) {
            text = Some(Text::new(buffer.outside()));
            return Ok(Outcome::Done(()));
        }
        Ok(outcome)
    });
    if done == Some(failed(BY_KERNEL)) {
        return None;
    }
    if done == Some(failed(Errno::EFBIG)) {
        limits::note_too_large();
    }
    match text {
        Some(text) => Some(native::call(libc::SYS_truncate, [text.address(), a[1], 0, 0, 0, 0])),
        None => done,
    }
}
