//! Errors as an application sees them: the errno that a local file system would give.
//!
//! The internal kinds that tell a caller what to do (stale map, busy, lost) are values of `Reply`;
//! this module has only the numbers that leave through a system call. Numbers are Linux's.

/// An errno of Linux. Zero is never used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Errno(pub u16);

/// Result of an operation that can fail with an errno.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($number);)*

            /// The symbolic name, or "E?" for a number that Forebay never produces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 { $($number => stringify!($name),)* _ => "E?" }
            }

            /// Its meaning, in a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted by a signal";
    EIO = 5, "input or output error";
    ENXIO = 6, "no such device or no data after the offset";
    E2BIG = 7, "argument list too long";
    ENOEXEC = 8, "not an executable";
    EBADF = 9, "not an open descriptor, or not open for this";
    EAGAIN = 11, "would block; a lock is held";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "in use";
    EEXIST = 17, "file exists";
    EXDEV = 18, "crosses file systems";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the instance";
    EMFILE = 24, "too many open files in the process";
    ENOTTY = 25, "not a terminal";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EDOM = 33, "out of domain";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "would deadlock";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EREMCHG = 78, "the entry is at another shard by now";
    EOPNOTSUPP = 95, "not supported";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    ESTALE = 116, "stale handle or stale map";
    EDQUOT = 122, "quota exceeded";
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl core::error::Error for Errno {}
