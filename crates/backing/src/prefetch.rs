//! Requesting and observing the prefetch of a file of an instance, by an extended attribute, as any
//! program can.

use rustix::fs::XattrFlags;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Extended attribute of each regular file of an instance.
const NAME: &str = "user.forebay.prefetch";
/// Upper bound of the digits of a number.
const TEXT_MAX: usize = 24;

/// Requests prefetch or eviction of a file; `request` is the value of the attribute.
///
/// # Errors
/// As of `setxattr`. `WouldBlock`: the queue is full or an eviction is in progress; try again
/// later.
pub fn set_prefetch(path: &Path, request: &str) -> Result<()> {
    Ok(rustix::fs::setxattr(path, NAME, request.as_bytes(), XattrFlags::empty())?)
}

/// Bytes of a file that are still to be prefetched.
///
/// # Errors
/// As of `getxattr`, or the error that ended the prefetch.
pub fn prefetch_bytes_left(path: &Path) -> Result<u64> {
    let mut text = [0; TEXT_MAX];
    let length = rustix::fs::getxattr(path, NAME, &mut text)?;
    let text = str::from_utf8(text.get(..length).unwrap_or_default()).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::from(ErrorKind::InvalidData))
}
