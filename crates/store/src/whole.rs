//! A file that is replaced as a whole: records of starts, records of commands, rules. After a kill, a
//! full device or a power failure, the name leads to the earlier contents or to the new ones, all of
//! them.
//!
//! Invariant: a name never leads to contents that were not flushed before it was given, if they are to
//! survive the node.

pub mod sealed;

use crate::medium::{Files, Medium as _, PlainFile, RealFiles};
use std::path::Path;
use wire::Errno;
use wire::errno::Result;

/// Whether a file outlives the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survives {
    /// The process alone: the file is beside shared memory.
    Daemon,
    /// The node, too: it is flushed.
    Node,
}

/// Gives `name` the contents `bytes`, by way of a file called `new`, which nobody else writes. One of
/// the right length that is there is used, so that no space is needed.
///
/// # Errors
/// The device's error. The earlier contents may still be there, and so may the file `new`.
pub fn replace<F: Files>(
    files: &mut F,
    new: &str,
    name: &str,
    bytes: &[u8],
    survives: Survives,
) -> Result<()> {
    let length = bytes.len() as u64;
    let mut file = match files.open(new) {
        Ok(file) if file.length() == length => file,
        _ => allocate(files, new, length)?,
    };
    if !bytes.is_empty() {
        file.write(0, bytes)?;
    }
    if survives == Survives::Node {
        file.sync()?;
    }
    drop(file);
    files.rename(new, name)?;
    if survives == Survives::Node {
        files.sync()?;
    }
    Ok(())
}

/// As `replace`, for the file at `path` of a real file system, which survives the node. `new` is the name
/// of the other file in the same directory.
///
/// # Errors
/// As `replace`, but the file `new` is removed.
pub fn replace_at(path: &Path, new: &str, bytes: &[u8]) -> Result<()> {
    let directory = path.parent().ok_or(Errno::EINVAL)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(Errno::EINVAL)?;
    let mut files = RealFiles::<PlainFile>::new(directory);
    let replaced = replace(&mut files, new, name, bytes, Survives::Node);
    if replaced.is_err() {
        let _ = files.remove(new);
    }
    replaced
}

/// Makes the file `name` anew, with space for `length` bytes.
///
/// # Errors
/// The device's error.
pub(crate) fn allocate<F: Files>(files: &mut F, name: &str, length: u64) -> Result<F::File> {
    let mut file = files.create(name)?;
    file.grow(length)?;
    Ok(file)
}
