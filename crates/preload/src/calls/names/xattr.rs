//! Extended attributes: by path, by path without following, by descriptor.

use crate::calls::names::paths::{AT_CWD, on_path};
use crate::calls::process::credentials::caller;
use crate::calls::process::state::{client, ours};
use crate::calls::{Answer, answer, native, user};
use client::{At, Client, Follow, Outcome, PathBuffer};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_NAME_BYTES_MAX, XATTR_SIZE_MAX};
use wire::request::xattr;

fn name<'a>(address: u64) -> Result<&'a [u8]> {
    let name = user::text(address, XATTR_NAME_BYTES_MAX + 1, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

fn value<'a>(address: u64, length: u64) -> Result<&'a [u8]> {
    let length = usize::try_from(length).map_err(|_| Errno::E2BIG)?;
    if length > XATTR_SIZE_MAX {
        return Err(Errno::E2BIG);
    }
    user::bytes(address, length)
}

/// Flags that programs may use; others are for mounts only.
fn flags(given: u64) -> Result<u32> {
    let flags = given as u32;
    if flags & !(xattr::CREATE | xattr::REPLACE) == 0 { Ok(flags) } else { Err(Errno::EINVAL) }
}

/// A buffer for a value, limited to more than any value needs.
fn value_buffer<'a>(address: u64, length: u64) -> Result<&'a mut [u8]> {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(64 * 1024);
    user::bytes_mut(address, length)
}

/// Puts the working directory in front of the arguments, as `on_path` takes them. These calls have
/// no directory argument, so a path that leads outside is passed to the kernel here.
fn by_path<T>(
    number: i64,
    a: [u64; 6],
    ours: impl FnOnce(&Client, At<'_>, &mut PathBuffer) -> Result<Outcome<T>>,
) -> Answer
where
    i64: crate::calls::Returned<T>,
{
    let mut outside = None;
    let shifted = [AT_CWD, a[0], 0, 0, 0, 0];
    let done = on_path::<i64>(number, shifted, |client, at, buffer| {
        Ok(match ours(client, at, buffer)? {
            Outcome::Done(value) => {
                Outcome::Done(<i64 as crate::calls::Returned<T>>::returned(value))
            }
            Outcome::Outside => {
                outside = Some(crate::calls::names::paths::Text::new(buffer.outside()));
                Outcome::Done(0)
            }
            Outcome::Special(attributes) => Outcome::Special(attributes),
        })
    });
    match outside {
        Some(text) => Some(native::call(number, [text.address(), a[1], a[2], a[3], a[4], 0])),
        None => done,
    }
}

/// `getxattr`, `lgetxattr`.
#[must_use]
pub fn get(number: i64, a: [u64; 6], follow: Follow) -> Answer {
    by_path(number, a, |client, at, buffer| {
        client.get_xattr(at, follow, (name(a[1])?, value_buffer(a[2], a[3])?), &caller(), buffer)
    })
}

/// `fgetxattr`.
#[must_use]
pub fn get_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| client()?.fget_xattr(file, (name(a[1])?, value_buffer(a[2], a[3])?), &caller()))())
}

/// `setxattr`, `lsetxattr`.
#[must_use]
pub fn set(number: i64, a: [u64; 6], follow: Follow) -> Answer {
    by_path(number, a, |client, at, buffer| {
        let named = (name(a[1])?, value(a[2], a[3])?);
        client.set_xattr(at, follow, named, flags(a[4])?, &caller(), buffer)
    })
}

/// `fsetxattr`.
#[must_use]
pub fn set_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| {
        let named = (name(a[1])?, value(a[2], a[3])?);
        client()?.fset_xattr(file, named, flags(a[4])?, &caller())
    })())
}

/// `listxattr`, `llistxattr`.
#[must_use]
pub fn list(number: i64, a: [u64; 6], follow: Follow) -> Answer {
    by_path(number, a, |client, at, buffer| {
        client.list_xattr(at, follow, value_buffer(a[1], a[2])?, &caller(), buffer)
    })
}

/// `flistxattr`.
#[must_use]
pub fn list_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| client()?.flist_xattr(file, value_buffer(a[1], a[2])?, &caller()))())
}

/// `removexattr`, `lremovexattr`.
#[must_use]
pub fn remove(number: i64, a: [u64; 6], follow: Follow) -> Answer {
    by_path(number, a, |client, at, buffer| {
        client.remove_xattr(at, follow, name(a[1])?, &caller(), buffer)
    })
}

/// `fremovexattr`.
#[must_use]
pub fn remove_open(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| client()?.fremove_xattr(file, name(a[1])?, &caller()))())
}
