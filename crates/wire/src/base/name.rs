//! A file name that was checked: not empty, not `.` or `..`, no slash, no NUL, at most 255 bytes.

use crate::errno::{Errno, Result};
use crate::limits::NAME_BYTES_MAX;

/// A checked name. `RawName -> Name` happens once, at the border.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks a name from outside.
    ///
    /// # Errors
    /// `ENAMETOOLONG` above 255 bytes; `EINVAL` for an empty name, `.`, `..`, or a byte that no
    /// name may have.
    pub fn parse(raw: &'a [u8]) -> Result<Name<'a>> {
        if raw.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if raw.is_empty() || raw == b"." || raw == b".." {
            return Err(Errno::EINVAL);
        }
        if raw.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(raw))
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}
