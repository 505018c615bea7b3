//! `forebay-mount --layout`: shows or changes the layout of one file, for `forebay layout`, which does
//! not speak to shared memory itself. Mounts nothing.
//!
//! Words: directory of the sockets, number of the first daemon, path from the instance's root, and the
//! mode to set, if any. Says the layout as a line of `name=value`s.

use client::{At, Client, Follow, Outcome, PathBuffer};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use wire::attributes::{placement, spread};
use wire::{Attributes, Credentials};

/// Name of the mode among extended attributes.
const CONSISTENCY: &[u8] = b"user.forebay.consistency";

/// Does what the words say.
///
/// # Errors
/// Why it can not, for people.
pub(crate) fn run(
    client: &'static Client,
    words: impl Iterator<Item = OsString>,
) -> Result<String, String> {
    let words: Vec<OsString> = words.collect();
    let (run, home, path, mode) = match words.as_slice() {
        [run, home, path] => (run, home, path, None),
        [run, home, path, mode] => (run, home, path, Some(mode)),
        _ => return Err("--layout takes RUN HOME PATH [MODE]".to_owned()),
    };
    let home = home.to_str().and_then(|text| text.parse().ok());
    let home: u16 = home.ok_or("HOME is no number")?;
    let run = CString::new(run.clone().into_vec()).map_err(|_| "RUN has a NUL in it")?;
    client.attach(&run, b"/", home).map_err(|errno| {
        format!("no daemon answers in {}: {}", run.to_string_lossy(), errno.text())
    })?;
    let who = own_credentials();
    let at = At::root(path.as_bytes());
    let mut buffer = Box::new(PathBuffer::new());
    if let Some(mode) = mode {
        let named = (CONSISTENCY, mode.as_bytes());
        let set = client.set_xattr(at, Follow::Yes, named, 0, &who, &mut buffer);
        within(set.map_err(|errno| errno.text().to_owned())?)?;
    }
    let found = client.stat(at, Follow::Yes, &who, &mut buffer);
    Ok(text(&within(found.map_err(|errno| errno.text().to_owned())?)?))
}

/// Who runs this.
pub(crate) fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Credentials::of(uid.as_raw(), gid.as_raw())
}

/// What came of a call on a file of the instance.
///
/// # Errors
/// It is none.
pub(crate) fn within<T>(outcome: Outcome<T>) -> Result<T, String> {
    match outcome {
        Outcome::Done(value) => Ok(value),
        Outcome::Outside | Outcome::Special(_) => Err("it is no file of the instance".to_owned()),
    }
}

fn text(found: &Attributes) -> String {
    let layout = &found.layout;
    let consistency = if found.is_posix() { "posix" } else { "relaxed" };
    let placement = if layout.placement == placement::LOCAL { "local" } else { "hash" };
    let spread = if layout.spread == spread::WIDE { "wide" } else { "home" };
    let chunk = 1u64.checked_shl(u32::from(layout.chunk_log2)).unwrap_or(0);
    format!("consistency={consistency} chunk={chunk} placement={placement} spread={spread}")
}
