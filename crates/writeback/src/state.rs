//! Reports of shards about the instance (`wire::backing`), in owned form, and the names that the
//! daemon makes up.

use std::ffi::OsString;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use wire::backing::{self as message, Stamp, Version};
use wire::errno::Errno;
use wire::{Attributes, Inode};

/// Suffix of the name of a file whose own name is taken by others.
const CONFLICT: &str = ".forebay-conflict-";
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A name in a directory of the instance. The directory may be elsewhere in the backing store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) parent: Inode,
    pub(crate) name: OsString,
}

impl Place {
    pub(crate) fn of(parent: Inode, name: &[u8]) -> Place {
        Place { parent, name: OsString::from_vec(name.to_vec()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// A private name beside it, for a file that is being moved.
    pub(crate) fn aside(&self, inode: Inode) -> Place {
        Place { parent: self.parent, name: backing::aside(inode.0) }
    }

    /// The inode in a name that `aside` made.
    pub(crate) fn aside_inode(&self) -> Option<Inode> {
        backing::number_of_aside(&self.name).map(Inode)
    }

    /// The conflict name of an inode whose name is taken by others; `attempt` numbers the
    /// alternatives.
    pub(crate) fn conflict(&self, inode: Inode, attempt: u32) -> Place {
        let again = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let end = format!("{CONFLICT}{:x}{again}", inode.0);
        let length_max = NAME_BYTES_MAX - end.len();
        let mut name = self.bytes().get(..length_max).unwrap_or(self.bytes()).to_vec();
        name.extend_from_slice(end.as_bytes());
        Place { parent: self.parent, name: OsString::from_vec(name) }
    }

    /// True for a conflict name of `place`.
    pub(crate) fn is_conflict_of(&self, place: &Place) -> bool {
        let start = place.bytes().get(..NAME_BYTES_MAX / 2).unwrap_or(place.bytes());
        self.parent == place.parent
            && self.name.to_string_lossy().contains(CONFLICT)
            && self.bytes().starts_with(start)
    }

    /// True for a private name of the daemon, which no entry of the instance has.
    pub(crate) fn is_private(&self) -> bool {
        self.aside_inode().is_some() || self.name.to_string_lossy().contains(CONFLICT)
    }
}

/// `wire::backing::BackingLocation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackingLocation {
    pub(crate) place: Place,
    pub(crate) version: Version,
    pub(crate) counts: u64,
    pub(crate) stamp: Stamp,
}

impl BackingLocation {
    pub(crate) fn of(from: &message::BackingLocation<'_>) -> BackingLocation {
        let message::BackingLocation { parent, name, version, counts, stamp } = *from;
        BackingLocation { place: Place::of(parent, name), version, counts, stamp }
    }

    pub(crate) fn to_message(&self) -> message::BackingLocation<'_> {
        let BackingLocation { place, version, counts, stamp } = self;
        message::BackingLocation {
            parent: place.parent,
            name: place.bytes(),
            version: *version,
            counts: *counts,
            stamp: *stamp,
        }
    }
}

/// `wire::backing::SyncState`.
#[derive(Clone, Debug)]
pub(crate) struct SyncState {
    pub(crate) inode: Inode,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) is_written: bool,
    pub(crate) now: Option<BackingLocation>,
    pub(crate) next: Option<BackingLocation>,
    pub(crate) partial: Option<BackingLocation>,
}

impl SyncState {
    pub(crate) fn of(from: &message::SyncState<'_>) -> SyncState {
        let message::SyncState { inode, attributes, is_written, now, next, partial } = *from;
        let [now, next, partial] =
            [now, next, partial].map(|location| location.as_ref().map(BackingLocation::of));
        SyncState { inode, attributes, is_written, now, next, partial }
    }

    /// True if its backing file will not be read any more: the inode is deleted, or has no name and
    /// its contents are in the instance.
    pub(crate) fn is_gone(&self) -> bool {
        self.attributes.is_none_or(|attributes| {
            // Contents that were written may have been evicted from the instance.
            let is_backed = self.now.is_some() || self.partial.is_some();
            let may_be_read = attributes.is_regular() && is_backed;
            attributes.links == 0 && !may_be_read
        })
    }

    /// True if its known location is this name.
    pub(crate) fn is_at(&self, place: &Place) -> bool {
        self.now.as_ref().is_some_and(|now| now.place == *place)
    }
}

/// `wire::backing::DirtyName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirtyName {
    pub(crate) place: Place,
    pub(crate) entry: Inode,
    pub(crate) mode: u32,
    pub(crate) backed_inode: Inode,
}

impl DirtyName {
    pub(crate) fn of(from: &message::DirtyName<'_>) -> DirtyName {
        let message::DirtyName { parent, name, entry, mode, backed_inode } = *from;
        DirtyName { place: Place::of(parent, name), entry, mode, backed_inode }
    }
}

/// Why something is not written.
#[derive(Debug)]
pub(crate) enum WritebackError {
    /// It changed in the meantime: the next round writes it as it is then.
    Changed,
    /// Something else must be written first.
    NotReady,
    /// It is not due yet.
    NotDue,
    /// It is written only at the end, or never.
    Deferred,
    /// Error of the instance.
    Instance(Errno),
    /// Error of the backing store.
    Backing(io::Error),
}

impl From<Errno> for WritebackError {
    fn from(errno: Errno) -> WritebackError {
        match errno {
            Errno::EAGAIN | Errno::ESTALE | Errno::ENOENT => WritebackError::Changed,
            other => WritebackError::Instance(other),
        }
    }
}

impl From<io::Error> for WritebackError {
    fn from(error: io::Error) -> WritebackError {
        WritebackError::Backing(error)
    }
}

impl From<backing::CopyError> for WritebackError {
    fn from(error: backing::CopyError) -> WritebackError {
        match error {
            backing::CopyError::Read(error) | backing::CopyError::Write(error) => {
                WritebackError::Backing(error)
            }
            backing::CopyError::Changed
            | backing::CopyError::Different(_)
            | backing::CopyError::Taken => WritebackError::Changed,
        }
    }
}

impl fmt::Display for WritebackError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WritebackError::Changed => {
                write!(to, "it changed during writeback: flush again when no program writes to it")
            }
            WritebackError::NotReady => {
                write!(to, "another file or directory must be written back first")
            }
            WritebackError::NotDue | WritebackError::Deferred => {
                write!(to, "it is not due for writeback yet")
            }
            WritebackError::Instance(errno) => write!(to, "the instance: {}", errno.text()),
            WritebackError::Backing(error) => write!(to, "{error}"),
        }
    }
}

/// Result of an operation.
pub(crate) type WritebackResult<T> = Result<T, WritebackError>;

/// A random number that is unique for all practical purposes.
pub(crate) fn unique_number() -> u64 {
    RandomState::new().build_hasher().finish()
}
