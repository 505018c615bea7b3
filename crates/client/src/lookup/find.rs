//! From a path to its file, for operations on the file itself. They are repeated when the file is
//! gone by the time of the operation, because another file may have the name by then (`retry`).

use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials};

use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::{LookupMode, Walk};
use crate::lookup::retry::LookupRetries;
use crate::lookup::{PathLookup, walk};

/// Runs `with` on the file that a path names. If it returns `ESTALE`, the file is gone, and
/// `with` runs again on the file that the name leads to by then.
///
/// # Errors
/// As `find`, and those of `with`.
#[inline]
pub(crate) fn with_found<R>(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
    mut with: impl FnMut(&Attributes) -> Result<R>,
) -> Result<Outcome<R>> {
    let lookup = (follow, LookupMode::Resolve);
    with_walked(paths, at, lookup, caller, buffer, |walk| with(walk.existing()?))
}

/// As `with_found`, with the whole result of the walk.
///
/// # Errors
/// As `with_found`.
#[inline]
pub(crate) fn with_walked<R>(
    paths: &PathLookup,
    at: At<'_>,
    (follow, lookup): (Follow, LookupMode),
    caller: &Credentials,
    buffer: &mut PathBuffer,
    mut with: impl FnMut(&Walk<'_>) -> Result<R>,
) -> Result<Outcome<R>> {
    let mut retries = None;
    loop {
        let walked = walk::walk(paths, at, follow, lookup, caller, buffer)?;
        match walked.and(|walk| with(&walk)) {
            Err(Errno::ESTALE) => {
                retries.get_or_insert_with(|| LookupRetries::new(&paths.transport)).pause()?
            }
            done => return done,
        }
    }
}

/// The file that a path names, as its shard knows it.
pub(crate) fn look_up<'b>(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    caller: &Credentials,
    buffer: &'b mut PathBuffer,
) -> Result<Outcome<&'b Attributes>> {
    walk::walk(paths, at, follow, LookupMode::Resolve, caller, buffer)?.and(|walk| walk.existing())
}
