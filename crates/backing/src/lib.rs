//! The backing store as a mounted file system: files by path.
//!
//! Reading order: an open directory (`dir`), the `stat` of a name (`node`), metadata
//! (`attributes`), contents with holes (`contents`), and files that appear under their name
//! complete or not at all (`partial`). `tree` is the interface that a daemon uses to read any
//! backing store, and `mounted` implements it for a file system. `parallel` runs an operation on
//! many items with several threads. `profile` is the format of access profiles, `prefetch` the
//! extended attribute that requests prefetch. Not here: which files are copied, in which order, by
//! how many threads; the caller decides that.
//!
//! *Invariant:* beneath a `Dir` no symbolic link is followed, so no path leads out of the tree.
//! *Invariant:* a file under a name that is not temporary is complete.
//!
//! All calls go through the C library, so that a preloaded program can use these functions on an
//! instance as on a directory of the site.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

pub mod attributes;
pub mod contents;
pub mod dir;
pub mod mounted;
pub mod node;
pub mod parallel;
pub mod partial;
pub mod prefetch;
pub mod profile;
pub mod tree;

pub use attributes::{AttributesLost, FileMetadata};
pub use contents::CopyError;
pub use dir::Dir;
pub use mounted::Mounted;
pub use node::{Kind, Node};
pub use parallel::{parallel_map, try_parallel_map};
pub use partial::{PartialFile, RenameMode, TemporaryFile, inode_of_partial, is_left_over};
pub use tree::{Contents, Entry, Tree, is_bucket};

use std::ffi::{OsStr, OsString};

/// Sets the umask of this process to 0, so that files get the modes that are requested: for
/// processes that copy.
pub fn clear_umask() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Prefix of names of files that are being moved or removed.
const ASIDE: &str = ".forebay-aside-";

/// The name of file `number` while it is being moved or removed.
#[must_use]
pub fn aside(number: u64) -> OsString {
    format!("{ASIDE}{number:x}").into()
}

/// The number in a name that `aside` made; `None` for other names.
#[must_use]
pub fn number_of_aside(name: &OsStr) -> Option<u64> {
    u64::from_str_radix(name.to_str()?.strip_prefix(ASIDE)?, 16).ok()
}

/// True for names of incomplete files and of files that are being moved or removed: they are not
/// files of a user.
#[must_use]
pub fn is_temporary(name: &OsStr) -> bool {
    partial::Maker::of(name).is_some()
        || number_of_aside(name).is_some()
        || inode_of_partial(name).is_some()
}
