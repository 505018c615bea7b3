//! `statfs`, `fstatfs`: the space of the whole instance, or the share that the project of a file
//! may use.

use crate::calls::names::paths::{AT_CWD, on_path};
use crate::calls::process::credentials::caller;
use crate::calls::process::state::{client, ours};
use crate::calls::{Answer, answer, native, user};
use client::{Client, Follow, Outcome, Space};
use wire::Attributes;
use wire::errno::Result;
use wire::limits::NAME_BYTES_MAX;

const BLOCK_BYTES: u64 = Space::BLOCK_BYTES;
/// Identifies this file system: "FBAY".
const MAGIC: i64 = 0x4642_4159;

fn statfs_of(client: &Client, file: &Attributes) -> Result<libc::statfs> {
    let space = client.space_of(file)?;
    // WHY: the structure has private padding.
    // SAFETY: it is a plain C structure of integers, for which zeros are valid.
    let mut statfs: libc::statfs = unsafe { core::mem::zeroed() };
    statfs.f_type = MAGIC;
    statfs.f_bsize = BLOCK_BYTES as i64;
    statfs.f_frsize = BLOCK_BYTES as i64;
    statfs.f_blocks = space.bytes_total / BLOCK_BYTES;
    statfs.f_bfree = space.bytes_free / BLOCK_BYTES;
    statfs.f_bavail = statfs.f_bfree;
    statfs.f_namelen = NAME_BYTES_MAX as i64;
    statfs.f_files = space.files_total;
    statfs.f_ffree = space.files_free;
    Ok(statfs)
}

/// `statfs`: path, where to.
#[must_use]
pub fn by_path(a: [u64; 6]) -> Answer {
    let mut outside = None;
    let done = on_path(libc::SYS_statfs, [AT_CWD, a[0], 0, 0, 0, 0], |client, at, buffer| {
        Ok(match client.stat(at, Follow::Yes, &caller(), buffer)? {
            Outcome::Done(file) => {
                user::put(a[1], statfs_of(client, &file)?)?;
                Outcome::Done(())
            }
            Outcome::Outside => {
                outside = Some(crate::calls::names::paths::Text::new(buffer.outside()));
                Outcome::Done(())
            }
            Outcome::Special(attributes) => Outcome::Special(attributes),
        })
    });
    match outside {
        Some(text) => Some(native::call(libc::SYS_statfs, [text.address(), a[1], 0, 0, 0, 0])),
        None => done,
    }
}

/// `fstatfs`: descriptor, where to.
#[must_use]
pub fn by_descriptor(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(client().and_then(|client| user::put(a[1], statfs_of(client, &client.fstat(file)?)?)))
}
