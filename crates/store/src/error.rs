//! Errors of devices: what was tried, on which file, and what the caller can do about it.

use std::path::{Path, PathBuf};
use wire::Errno;

/// Result of whatever touches a device.
pub type Result<T> = core::result::Result<T, Error>;

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The device or the operating system refused; `ENOSPC` passes when something is deleted.
    Device(Errno),
    /// Stored bytes are not what was stored. What stands before `offset` is good.
    Corrupt {
        /// Where in the file.
        offset: u64,
        /// The record that should be there; 0 for the head of the file.
        sequence: u64,
    },
    /// An earlier flush failed, so nothing written since is believed; open it anew.
    Poisoned,
    /// A record is empty or longer than `record::RECORD_BYTES_MAX`.
    BadLength {
        /// Its length.
        length: usize,
    },
    /// Something that stands at a path is not what we made: its type, owner or mode differs.
    NotOurs,
}

/// An error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What was being done, as "append to the log".
    pub doing: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// What happened.
    pub kind: Kind,
}

impl Error {
    /// Puts an error together.
    #[must_use]
    pub fn new(doing: &'static str, path: &Path, kind: Kind) -> Error {
        Error { doing, path: path.to_path_buf(), kind }
    }

    /// The errno that a client gets for it.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self.kind {
            Kind::Device(errno) => errno,
            Kind::BadLength { .. } => Errno::E2BIG,
            Kind::Corrupt { .. } | Kind::Poisoned | Kind::NotOurs => Errno::EIO,
        }
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let path = self.path.display();
        write!(f, "could not {}: ", self.doing)?;
        match self.kind {
            Kind::Device(errno) => write!(f, "{errno}, file={path}"),
            Kind::Corrupt { offset, sequence } => {
                write!(f, "corrupt record, file={path} offset={offset} sequence={sequence}")
            }
            Kind::Poisoned => write!(f, "an earlier flush failed, file={path}"),
            Kind::BadLength { length } => {
                write!(f, "no record may be so long, file={path} length={length}")
            }
            Kind::NotOurs => {
                write!(f, "it is not a plain file or directory of ours (mode 0700), path={path}")
            }
        }
    }
}

impl core::error::Error for Error {}

/// Our errno for one of `rustix`.
pub(crate) fn errno(os: rustix::io::Errno) -> Errno {
    Errno(u16::try_from(os.raw_os_error()).unwrap_or(Errno::EIO.0))
}

/// Our errno for an error of the standard library.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    let number = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
    number.map_or(Errno::EIO, Errno)
}

/// A path as the system calls want it.
pub(crate) fn c_path(path: &Path) -> core::result::Result<std::ffi::CString, Errno> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}
