//! What an instance is told of a file that is to be brought up, and says of it: by an extended attribute,
//! as any program can.

use rustix::fs::XattrFlags;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// The attribute that each regular file of an instance has.
const NAME: &str = "user.forebay.rise";
/// Digits of the largest number, and more.
const TEXT_MAX: usize = 24;

/// Has a file brought up, or given up, as `wish` says.
///
/// # Errors
/// What the system says; `WouldBlock`: too much is to come, or some is still going: try again later.
pub fn raise(path: &Path, wish: &str) -> Result<()> {
    Ok(rustix::fs::setxattr(path, NAME, wish.as_bytes(), XattrFlags::empty())?)
}

/// Bytes of a file that are still to come.
///
/// # Errors
/// What the system says, or what was in the way.
pub fn still_to_rise(path: &Path) -> Result<u64> {
    let mut text = [0; TEXT_MAX];
    let length = rustix::fs::getxattr(path, NAME, &mut text)?;
    let text = str::from_utf8(text.get(..length).unwrap_or_default()).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::from(ErrorKind::InvalidData))
}
