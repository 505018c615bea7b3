//! The mode of a file or directory, `posix` or `relaxed` (`docs/semantics.md`), as an extended attribute
//! that every file has: programs set it as they set any other, on a mount as well.

use wire::errno::{Errno, Result};
use wire::request::set;
use wire::{Attributes, Credentials};

use crate::Client;
use crate::attributes::Change;

/// The name of the attribute. It is in no list, so that programs that copy attributes leave it out.
pub(crate) const NAME: &[u8] = b"user.forebay.consistency";

const POSIX: &[u8] = b"posix";
const RELAXED: &[u8] = b"relaxed";

/// Copies the mode of a file out, or only tells its length if `to` is empty.
pub(crate) fn get(file: &Attributes, to: &mut [u8]) -> Result<usize> {
    let mode = if file.is_posix() { POSIX } else { RELAXED };
    if !to.is_empty() {
        to.get_mut(..mode.len()).ok_or(Errno::ERANGE)?.copy_from_slice(mode);
    }
    Ok(mode.len())
}

impl Client {
    /// What is made in this directory from now on is of the mode `value`.
    pub(crate) fn set_consistency(
        &self,
        directory: &Attributes,
        value: &[u8],
        who: &Credentials,
    ) -> Result<()> {
        if !directory.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let mask = match value {
            POSIX => set::POSIX,
            RELAXED => set::RELAXED,
            _ => return Err(Errno::EINVAL),
        };
        self.change(directory.inode, &Change { mask, ..Change::default() }, who).map(drop)
    }
}
