//! From the arguments of a call to a place: in the instance, or the kernel's.

use crate::calls::files::uses::FileUse;
use crate::calls::process::credentials::caller;
use crate::calls::process::state::{self, client, ours};
use crate::calls::process::{cut_off, mount, working_directory};
use crate::calls::{Answer, failed, native, user};
use crate::decimal::{DIGITS_MAX, decimal};
use client::{At, Client, OfdIndex, Outcome, PathBuffer};
use wire::errno::{Errno, Result};
use wire::limits::PATH_BYTES_MAX;

/// Directory argument for "relative to the working directory".
pub const AT_CWD: u64 = libc::AT_FDCWD as u64;

/// Where a path of a call leads.
pub enum Place<'a> {
    /// To the kernel.
    Native,
    /// Into the instance.
    Ours(At<'a>),
    /// To an open file of ours, by `/proc/self/fd/N` or `/dev/fd/N`.
    Open(FileUse),
}

/// Finds where `path`, relative to `directory` (a descriptor or `AT_CWD`), leads.
///
/// # Errors
/// `EIO` if the instance is gone.
pub fn place(directory: u64, path: &[u8]) -> Result<Place<'_>> {
    if path.first() == Some(&b'/') {
        if let Some(rest) = state::strip_instance_prefix(path) {
            return Ok(if is_left_to_kernel()? {
                Place::Native
            } else {
                Place::Ours(At::root(rest))
            });
        }
        if let Some(file) = descriptor(path).and_then(ours) {
            return Ok(Place::Open(file));
        }
        if path == b"/proc/self/exe"
            && let Some(file) = state::program()
        {
            return Ok(Place::Open(file));
        }
        return through_native(directory, path);
    }
    place_relative(directory, path)
}

/// As `place`, for a relative path.
#[inline(never)]
fn place_relative(directory: u64, path: &[u8]) -> Result<Place<'_>> {
    if directory as u32 == AT_CWD as u32 {
        if let Some(inode) = working_directory::get() {
            let is_left = is_left_to_kernel()?;
            return Ok(if is_left {
                Place::Native
            } else {
                Place::Ours(At::relative(inode, path))
            });
        }
    } else if let Some(used) = ours(directory) {
        return Ok(Place::Ours(At::relative(client()?.inode_of(used.file())?, path)));
    } else if cut_off::is_unreachable(directory) {
        return Err(Errno::EIO);
    }
    through_native(directory, path)
}

/// True if the mount serves the instance to this process, because it may not attach (between vfork
/// and exec) or cannot: it has too little address space, or too few descriptors. Else attaches.
fn is_left_to_kernel() -> Result<bool> {
    if mount::is_there() && (!state::may_attach() || mount::is_only_way()) {
        return Ok(true);
    }
    match client() {
        Ok(_) => Ok(false),
        Err(_) if mount::is_there() => {
            mount::note_only_way();
            Ok(true)
        }
        Err(errno) => Err(errno),
    }
}

/// Handles a path that begins among the kernel's directories and reaches the prefix by another way
/// than its name: from a working directory or descriptor above it, through `..` or a symbolic link.
/// Only a path with a component of the prefix's name costs calls.
#[inline(never)]
fn through_native(directory: u64, path: &[u8]) -> Result<Place<'_>> {
    let mut from = 0;
    while let Some((start, end)) = state::find_name(path, from) {
        if is_parent(directory, path.get(..start).unwrap_or(&[])) {
            if is_left_to_kernel()? {
                return Ok(Place::Native);
            }
            let rest = state::skip_dots(path.get(end..).unwrap_or(&[]));
            return Ok(Place::Ours(At::root(if rest.is_empty() { b"." } else { rest })));
        }
        from = end;
    }
    Ok(Place::Native)
}

/// True if `path` leads to the directory that contains the prefix.
fn is_parent(directory: u64, path: &[u8]) -> bool {
    let mut parent = [0; state::SETTING_BYTES_MAX];
    let length = state::prefix_parent(&mut parent);
    let there = Text::new(if path.is_empty() { b"." } else { path });
    let parent = Text::new(parent.get(..length).unwrap_or(&[]));
    match (identity(directory, &there), identity(AT_CWD, &parent)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Device and inode of a path, as the kernel finds it.
fn identity(directory: u64, path: &Text) -> Option<(u64, u64)> {
    // `struct stat` has 144 bytes; device and inode come first.
    let mut stat = [0u64; 18];
    let to = stat.as_mut_ptr() as u64;
    let found = native::call(libc::SYS_newfstatat, [directory, path.address(), to, 0, 0, 0]);
    let [device, inode, ..] = stat;
    (found == 0).then_some((device, inode))
}

/// The answer for an unreadable path: ours if it would be resolved from a directory of ours, else
/// the kernel's, which accepts it in some calls.
#[must_use]
pub fn unreadable(directory: u64, errno: Errno) -> Answer {
    let is_here = directory as u32 == AT_CWD as u32;
    let is_ours =
        if is_here { working_directory::get().is_some() } else { ours(directory).is_some() };
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
    /// Copies `path` and appends the NUL.
    #[must_use]
    pub fn new(path: &[u8]) -> Text {
        let mut bytes = [0; PATH_BYTES_MAX + 1];
        for (to, from) in bytes.iter_mut().zip(path.iter().take(PATH_BYTES_MAX)) {
            *to = *from;
        }
        Text { bytes }
    }

    /// The path by which a descriptor of this process is opened again.
    #[must_use]
    pub fn of_descriptor(fd: i32) -> Text {
        let mut digits = [0; DIGITS_MAX];
        let digits = decimal(u64::from(fd.unsigned_abs()), &mut digits);
        let mut bytes = [0; PATH_BYTES_MAX + 1];
        for (to, from) in bytes.iter_mut().zip(b"/proc/self/fd/".iter().chain(digits)) {
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
/// `ours` performs it in the instance. A path that leads outside through a symbolic link goes to
/// the kernel, with the path that it leads to.
pub fn on_path<T>(
    number: i64,
    a: [u64; 6],
    ours: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: crate::calls::Returned<T>,
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

/// Counts the directory of the first path of a call, which has just been answered here, for all those
/// calls that it stands for.
#[cold]
#[inline(never)]
pub fn note_directory(number: i64, a: &[u64; 6]) {
    let [first, second, ..] = *a;
    let (directory, path) = match number {
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_readlink
        | libc::SYS_mkdir
        | libc::SYS_mknod
        | libc::SYS_link
        | libc::SYS_unlink
        | libc::SYS_rmdir
        | libc::SYS_rename => (AT_CWD, first),
        libc::SYS_openat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_linkat
        | libc::SYS_unlinkat
        | libc::SYS_renameat
        | libc::SYS_renameat2 => (first, second),
        _ => return,
    };
    let Ok(client) = client() else { return };
    let Ok(path) = user::path(path) else { return };
    // An empty path names an open file.
    if path.is_empty() || !client.is_directory_due() {
        return;
    }
    if let Ok(Place::Ours(at)) = place(directory, path) {
        client.note_directory_of(at, &caller(), &mut PathBuffer::new());
    }
}

const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;

/// As `on_path`, for a call with `flags` that may name an open file instead: by its descriptor with
/// an empty path, or by `/proc/self/fd/N`. Then `open` performs it.
pub fn on_subject<T>(
    number: i64,
    a: [u64; 6],
    flags: u64,
    open: impl FnOnce(&Client, OfdIndex) -> Result<T>,
    ours_by_path: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: crate::calls::Returned<T>,
{
    let by_descriptor = |used: FileUse| {
        crate::calls::answer(client().and_then(|client: &Client| open(client, used.file())))
    };
    let may_be_empty = flags & EMPTY_PATH != 0;
    // `statx` and `fstatat` of some C libraries pass no path at all.
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
        if a[0] as u32 == AT_CWD as u32 && working_directory::get().is_some() {
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

/// Makes a call on the path that the walk left the instance with. Separate, because the path takes a
/// page of the stack.
#[cold]
#[inline(never)]
fn call_outside(number: i64, a: [u64; 6], buffer: &PathBuffer) -> i64 {
    let text = Text::new(buffer.outside());
    native::call(number, [AT_CWD, text.address(), a[2], a[3], a[4], a[5]])
}

fn walk<T>(
    number: i64,
    a: [u64; 6],
    at: At<'_>,
    ours: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: crate::calls::Returned<T>,
{
    let mut buffer = PathBuffer::new();
    match client().and_then(|client| ours(client, at, &mut buffer)) {
        Ok(Outcome::Done(value)) => Some(<i64 as crate::calls::Returned<T>>::returned(value)),
        Ok(Outcome::Outside) => Some(call_outside(number, a, &buffer)),
        Ok(Outcome::Special(_)) => Some(failed(Errno::ENXIO)),
        Err(errno) => Some(failed(errno)),
    }
}
