//! The lowest tier: files of a mounted file system, by name.
//!
//! Reading order: an open directory and what is reached from it (`folder`), what a name is
//! (`node`), what it carries beside its contents (`attributes`), contents with holes (`contents`),
//! and a file that appears under its name complete or not at all (`draft`). What a daemon asks of a tree,
//! of whatever it is made (`tree`), and how a mounted one answers (`mounted`); the same done with many
//! things by several threads (`each`). Not here: which files, in what order, by how many threads; that
//! is the caller's.
//!
//! *Invariant:* below a `Folder` no symbolic link is followed, so nothing in a tree leads out of it.
//! *Invariant:* what appears under a name that is not a temporary one is complete.
//!
//! All calls go through the C library, so that a preloaded program can do to an instance what is
//! done here to a directory of the site.
#![forbid(unsafe_code)]

pub mod attributes;
pub mod contents;
pub mod draft;
pub mod each;
pub mod folder;
pub mod history;
pub mod mounted;
pub mod node;
pub mod rise;
pub mod tree;

pub use attributes::{Dress, Lost};
pub use contents::Trouble;
pub use draft::{Draft, Landing, Temporary, inode_of_kept, is_left_over};
pub use each::{each, each_until};
pub use folder::Folder;
pub use mounted::Mounted;
pub use node::{Kind, Node};
pub use tree::{Contents, Entry, Tree, is_bucket};

use std::ffi::{OsStr, OsString};

/// Modes of files that are made are as they are asked for from here on, whatever the user's mask: for a
/// process that copies.
pub fn clear_mask() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// How names begin that things have which are on their way to another, or to their end.
const ASIDE: &str = ".forebay-aside-";

/// The name that thing `number` has while it is on its way.
#[must_use]
pub fn aside(number: u64) -> OsString {
    format!("{ASIDE}{number:x}").into()
}

/// Of which thing a name is that `aside` made.
#[must_use]
pub fn number_aside(name: &OsStr) -> Option<u64> {
    u64::from_str_radix(name.to_str()?.strip_prefix(ASIDE)?, 16).ok()
}

/// True for a name under which something is, or was, being written, or is on its way: it is nobody's
/// file.
#[must_use]
pub fn is_temporary(name: &OsStr) -> bool {
    draft::Maker::of(name).is_some()
        || number_aside(name).is_some()
        || inode_of_kept(name).is_some()
}
