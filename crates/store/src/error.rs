//! Device errors: what was tried, on which file, and what the caller can do about it.

use std::path::{Path, PathBuf};
use wire::Errno;

/// Result of device operations.
pub type Result<T> = core::result::Result<T, Error>;

/// The kind of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The device or the operating system refused; `ENOSPC` passes when something is deleted.
    Device(Errno),
    /// Stored bytes differ from what was written. Everything before `offset` is good.
    Corrupt {
        /// Offset in the file.
        offset: u64,
        /// The expected record; 0 for the head of the file.
        sequence: u64,
    },
    /// An earlier flush failed, so nothing written since is trusted; reopen the file.
    Poisoned,
    /// A record is empty or longer than `record::RECORD_BYTES_MAX`.
    BadLength {
        /// Its length.
        length: usize,
    },
    /// The file is missing, though there was one.
    Missing,
    /// The file belongs to another instance or daemon.
    Foreign,
    /// The file is an older copy of itself: it lacks what was stored last.
    Old {
        /// The last record or start that it has.
        found: u64,
        /// The one that it must have at least.
        expected: u64,
    },
    /// The file has another length than it was left with.
    Length {
        /// Its length.
        found: u64,
        /// The length that it had.
        expected: u64,
    },
    /// The shared memory that the log belongs to is gone, so most of the data is lost.
    MemoryGone,
    /// The object at a path is not what this program created: its type, owner or mode differs.
    NotOurs,
}

/// An error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The operation, for example "append to the log".
    pub doing: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Kind of the failure.
    pub kind: Kind,
}

impl Error {
    /// An error of an operation on a file.
    #[must_use]
    pub fn new(doing: &'static str, path: &Path, kind: Kind) -> Error {
        Error { doing, path: path.to_path_buf(), kind }
    }

    /// The errno for the client.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self.kind {
            Kind::Device(errno) => errno,
            Kind::BadLength { .. } => Errno::E2BIG,
            Kind::Corrupt { .. }
            | Kind::Poisoned
            | Kind::Missing
            | Kind::Foreign
            | Kind::Old { .. }
            | Kind::Length { .. }
            | Kind::MemoryGone
            | Kind::NotOurs => Errno::EIO,
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
            Kind::Length { found, expected } => {
                write!(
                    f,
                    "it was truncated or replaced, file={path} length={found} expected={expected}"
                )
            }
            Kind::MemoryGone => write!(
                f,
                "the shared memory of the instance is gone (did this host restart?), and the data in it, \
                 file={path}"
            ),
            Kind::Missing => write!(f, "it is missing, file={path}"),
            Kind::Foreign => write!(f, "it is of another instance or daemon, file={path}"),
            Kind::Old { found, expected } => {
                write!(
                    f,
                    "cut off, or an older copy, file={path} found={found} expected={expected}"
                )
            }
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

/// Converts an errno of `rustix`.
pub(crate) fn errno(os: rustix::io::Errno) -> Errno {
    Errno(u16::try_from(os.raw_os_error()).unwrap_or(Errno::EIO.0))
}

/// Converts an error of the standard library.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    let number = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
    number.map_or(Errno::EIO, Errno)
}

/// A path in the form that system calls take.
pub(crate) fn c_path(path: &Path) -> core::result::Result<std::ffi::CString, Errno> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}
