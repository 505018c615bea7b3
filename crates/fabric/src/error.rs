//! Errors; a kind tells the caller what to do.

use core::fmt;

/// Result of a call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// The reason of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// No libfabric, or no such provider: go on without it.
    Absent(String),
    /// The range is not in the region or in the peer's grant.
    OutOfRange,
    /// The region was removed, or region or peer belong to another endpoint.
    Unknown,
    /// The maximum number of transfers is in flight: take completions first.
    Full,
    /// Transfers in flight use it.
    Busy,
    /// The mapping is read-only, or the provider cannot do it.
    Refused,
    /// A call of the library failed.
    Call {
        /// Its name.
        call: &'static str,
        /// Number of the error: of the operating system, or from 256 on of libfabric.
        code: i32,
        /// The library's text for it.
        text: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Absent(why) => to.write_str(why),
            Error::OutOfRange => to.write_str("range outside the memory"),
            Error::Unknown => to.write_str("no such region or peer"),
            Error::Full => to.write_str("too many transfers under way"),
            Error::Busy => to.write_str("transfers under way use it"),
            Error::Refused => to.write_str("memory is read-only, or the provider cannot do it"),
            Error::Call { call, code, text } => write!(to, "{call}: {text} ({code})"),
        }
    }
}

impl core::error::Error for Error {}
