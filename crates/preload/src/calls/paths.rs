//! From the arguments of a call to a place: ours, or the kernel's.

use crate::calls::state::{self, client, ours};
use crate::calls::uses::Use;
use crate::calls::{Answer, failed, native, user};
use client::{At, Client, OfdIndex, Outcome, PathBuffer};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::PATH_BYTES_MAX;

/// "Relative to the working directory."
pub const HERE: u64 = libc::AT_FDCWD as u64;

/// The inode of the working directory while it is ours, else 0.
static WORKING_DIRECTORY: AtomicU64 = AtomicU64::new(0);

/// The working directory, if it is ours.
#[must_use]
pub fn working_directory() -> Option<Inode> {
    let inode = WORKING_DIRECTORY.load(Acquire);
    (inode != 0).then_some(Inode(inode))
}

/// Sets or leaves a working directory of ours.
pub fn set_working_directory(inode: Option<Inode>) {
    WORKING_DIRECTORY.store(inode.unwrap_or(Inode::NONE).0, Release);
}

/// Where a path of a call leads.
pub enum Place<'a> {
    /// To the kernel.
    Native,
    /// Into the instance.
    Ours(At<'a>),
    /// To an open file of ours, by `/proc/self/fd/N` or `/dev/fd/N`.
    Open(Use),
}

/// Looks where `path`, relative to `directory` (a descriptor or `HERE`), leads.
///
/// # Errors
/// `EIO` if the instance is gone.
pub fn place(directory: u64, path: &[u8]) -> Result<Place<'_>> {
    if path.first() == Some(&b'/') {
        if let Some(rest) = state::below_prefix(path) {
            client()?;
            return Ok(Place::Ours(At::root(rest)));
        }
        if let Some(file) = descriptor(path).and_then(ours) {
            return Ok(Place::Open(file));
        }
        if path == b"/proc/self/exe"
            && let Some(file) = state::program()
        {
            return Ok(Place::Open(file));
        }
    } else if directory as u32 == HERE as u32 {
        if let Some(inode) = working_directory() {
            return Ok(Place::Ours(At::below(inode, path)));
        }
    } else if let Some(used) = ours(directory) {
        return Ok(Place::Ours(At::below(client()?.inode_of(used.file())?, path)));
    }
    through_native(directory, path)
}

/// A path that begins among the kernel's directories and comes to the prefix by another way than
/// its name: from a working directory or descriptor above it, by `..` or by a symbolic link. Only a
/// path with a component of the prefix's name costs calls.
fn through_native(directory: u64, path: &[u8]) -> Result<Place<'_>> {
    let mut from = 0;
    while let Some((start, end)) = state::find_name(path, from) {
        if is_parent(directory, path.get(..start).unwrap_or(&[])) {
            client()?;
            let rest = state::skip_dots(path.get(end..).unwrap_or(&[]));
            return Ok(Place::Ours(At::root(if rest.is_empty() { b"." } else { rest })));
        }
        from = end;
    }
    Ok(Place::Native)
}

/// True if `path` leads to the directory that the prefix lies in.
fn is_parent(directory: u64, path: &[u8]) -> bool {
    let mut parent = [0; state::SETTING_BYTES_MAX];
    let length = state::prefix_parent(&mut parent);
    let there = Text::new(if path.is_empty() { b"." } else { path });
    let parent = Text::new(parent.get(..length).unwrap_or(&[]));
    match (identity(directory, &there), identity(HERE, &parent)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Device and inode of what the kernel finds.
fn identity(directory: u64, path: &Text) -> Option<(u64, u64)> {
    // `struct stat` has 144 bytes; device and inode come first.
    let mut stat = [0u64; 18];
    let to = stat.as_mut_ptr() as u64;
    let found = native::call(libc::SYS_newfstatat, [directory, path.address(), to, 0, 0, 0]);
    let [device, inode, ..] = stat;
    (found == 0).then_some((device, inode))
}

/// The answer for a path that can not be read: ours if it would be looked up from a directory of
/// ours, else the kernel's, which knows of calls that need none.
#[must_use]
pub fn unreadable(directory: u64, errno: Errno) -> Answer {
    let is_here = directory as u32 == HERE as u32;
    let is_ours = if is_here { working_directory().is_some() } else { ours(directory).is_some() };
    is_ours.then(|| failed(errno))
}

/// The descriptor that a path names.
fn descriptor(path: &[u8]) -> Option<u64> {
    let number = match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => path.strip_prefix(b"/proc/self/fd/").or_else(|| path.strip_prefix(b"/dev/fd/"))?,
    };
    if number.is_empty() || number.len() > 6 {
        return None;
    }
    number.iter().try_fold(0, |sum, &digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

/// A path with its NUL, for a call that turned out to be the kernel's.
pub struct Text {
    bytes: [u8; PATH_BYTES_MAX + 1],
}

impl Text {
    /// Copies `path` and ends it.
    #[must_use]
    pub fn new(path: &[u8]) -> Text {
        let mut bytes = [0; PATH_BYTES_MAX + 1];
        for (to, from) in bytes.iter_mut().zip(path.iter().take(PATH_BYTES_MAX)) {
            *to = *from;
        }
        Text { bytes }
    }

    /// Its address, as a system call takes it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// Runs a call on one path: `number` with the directory in argument 0 and the path in argument 1.
/// `ours` does it in the instance. A path that leads outside through a symbolic link is handed to
/// the kernel with the place that it leads to.
pub fn on_path<T>(
    number: i64,
    a: [u64; 6],
    ours: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: super::Returned<T>,
{
    let path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    match place(a[0], path) {
        Ok(Place::Ours(at)) => walk(number, a, at, ours),
        Ok(Place::Native | Place::Open(_)) => None,
        Err(errno) => Some(failed(errno)),
    }
}

const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;

/// As `on_path`, for a call with `flags` that may name an open file instead: by its descriptor with an
/// empty path, or by `/proc/self/fd/N`. `open` does it then.
pub fn on_subject<T>(
    number: i64,
    a: [u64; 6],
    flags: u64,
    open: impl FnOnce(&Client, OfdIndex) -> Result<T>,
    ours_by_path: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: super::Returned<T>,
{
    let by_descriptor =
        |used: Use| super::answer(client().and_then(|client: &Client| open(client, used.file())));
    let may_be_empty = flags & EMPTY_PATH != 0;
    // `statx` and `fstatat` of some libcs pass no path at all.
    if a[1] == 0
        && may_be_empty
        && let Some(file) = ours(a[0])
    {
        return by_descriptor(file);
    }
    let mut path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    if path.is_empty() && may_be_empty {
        if let Some(file) = ours(a[0]) {
            return by_descriptor(file);
        }
        if a[0] as u32 == HERE as u32 && working_directory().is_some() {
            path = b".";
        }
    }
    match place(a[0], path) {
        Ok(Place::Ours(at)) => walk(number, a, at, ours_by_path),
        Ok(Place::Open(file)) if flags & NO_FOLLOW == 0 => by_descriptor(file),
        Ok(Place::Native | Place::Open(_)) => None,
        Err(errno) => Some(failed(errno)),
    }
}

fn walk<T>(
    number: i64,
    a: [u64; 6],
    at: At<'_>,
    ours: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: super::Returned<T>,
{
    let mut buffer = PathBuffer::new();
    match client().and_then(|client| ours(client, at, &mut buffer)) {
        Ok(Outcome::Done(value)) => Some(<i64 as super::Returned<T>>::returned(value)),
        Ok(Outcome::Outside) => {
            let text = Text::new(buffer.outside());
            Some(native::call(number, [HERE, text.address(), a[2], a[3], a[4], a[5]]))
        }
        Ok(Outcome::Special(_)) => Some(failed(Errno::ENXIO)),
        Err(errno) => Some(failed(errno)),
    }
}
