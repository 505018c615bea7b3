//! What shards tell of the instance (`wire::below`), owned, and what a name comes to.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use wire::below::{self as told, Stamp, Version};
use wire::errno::Errno;
use wire::{Attributes, Inode};

/// What stands behind the name of what could not have its own.
const CONFLICT: &str = ".forebay-conflict-";
/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = 255;

/// A name in a directory of the instance, which may lie elsewhere than there.
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

    /// A name of the writer's own beside it, for what is on its way.
    pub(crate) fn aside(&self, inode: Inode) -> Place {
        Place { parent: self.parent, name: below::aside(inode.0) }
    }

    /// Of which inode this is a name that `aside` made.
    pub(crate) fn inode_aside(&self) -> Option<Inode> {
        below::number_aside(&self.name).map(Inode)
    }

    /// The name that an inode gets when another's thing has its own: the `attempt`th of them.
    pub(crate) fn conflict(&self, inode: Inode, attempt: u32) -> Place {
        let again = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let end = format!("{CONFLICT}{:x}{again}", inode.0);
        let room = NAME_BYTES_MAX - end.len();
        let mut name = self.bytes().get(..room).unwrap_or(self.bytes()).to_vec();
        name.extend_from_slice(end.as_bytes());
        Place { parent: self.parent, name: OsString::from_vec(name) }
    }

    /// True for a name that something got because another's thing has `place`.
    pub(crate) fn is_conflict_of(&self, place: &Place) -> bool {
        let start = place.bytes().get(..NAME_BYTES_MAX / 2).unwrap_or(place.bytes());
        self.parent == place.parent
            && self.name.to_string_lossy().contains(CONFLICT)
            && self.bytes().starts_with(start)
    }

    /// True for a name that no entry of the instance stands for.
    pub(crate) fn is_own(&self) -> bool {
        self.inode_aside().is_some() || self.name.to_string_lossy().contains(CONFLICT)
    }
}

/// `wire::below::Lies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lies {
    pub(crate) place: Place,
    pub(crate) version: Version,
    pub(crate) counts: u64,
    pub(crate) stamp: Stamp,
}

impl Lies {
    pub(crate) fn of(told: &told::Lies<'_>) -> Lies {
        let told::Lies { parent, name, version, counts, stamp } = *told;
        Lies { place: Place::of(parent, name), version, counts, stamp }
    }

    pub(crate) fn told(&self) -> told::Lies<'_> {
        let Lies { place, version, counts, stamp } = self;
        told::Lies {
            parent: place.parent,
            name: place.bytes(),
            version: *version,
            counts: *counts,
            stamp: *stamp,
        }
    }
}

/// `wire::below::Standing`.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) inode: Inode,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) is_written: bool,
    pub(crate) now: Option<Lies>,
    pub(crate) next: Option<Lies>,
    pub(crate) draft: Option<Lies>,
}

impl Standing {
    pub(crate) fn of(told: &told::Standing<'_>) -> Standing {
        let told::Standing { inode, attributes, is_written, now, next, draft } = *told;
        let [now, next, draft] = [now, next, draft].map(|lies| lies.as_ref().map(Lies::of));
        Standing { inode, attributes, is_written, now, next, draft }
    }

    /// True if nobody will ask for what lies below: it is gone above, or has no name there any more and
    /// has all that is asked of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.attributes.is_none_or(|attributes| {
            // What was saved may have been dropped above.
            let is_below = self.now.is_some() || self.draft.is_some();
            let may_be_read = attributes.is_regular() && is_below;
            attributes.links == 0 && !may_be_read
        })
    }

    /// True if it lies at a place, as is known.
    pub(crate) fn is_at(&self, place: &Place) -> bool {
        self.now.as_ref().is_some_and(|now| now.place == *place)
    }
}

/// `wire::below::UnsavedName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) entry: Inode,
    pub(crate) mode: u32,
    pub(crate) lies: Inode,
}

impl Row {
    pub(crate) fn of(told: &told::UnsavedName<'_>) -> Row {
        let told::UnsavedName { parent, name, entry, mode, lies } = *told;
        Row { place: Place::of(parent, name), entry, mode, lies }
    }
}

/// Why something is not saved.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It changed meanwhile: the next round sees it as it is.
    Again,
    /// Something else has to be saved before.
    NotReady,
    /// It is not to be saved yet.
    Waits,
    /// It is to be saved at the end alone, or never.
    Held,
    /// The instance says so.
    Above(Errno),
    /// The file system below says so.
    Below(io::Error),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        match errno {
            Errno::EAGAIN | Errno::ESTALE | Errno::ENOENT => Trouble::Again,
            other => Trouble::Above(other),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Below(error)
    }
}

impl From<below::Trouble> for Trouble {
    fn from(trouble: below::Trouble) -> Trouble {
        match trouble {
            below::Trouble::Read(error) | below::Trouble::Write(error) => Trouble::Below(error),
            below::Trouble::Changed | below::Trouble::Different(_) | below::Trouble::Taken => {
                Trouble::Again
            }
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Again => {
                write!(
                    to,
                    "it was changed meanwhile, here or below: flush when nobody writes to it"
                )
            }
            Trouble::NotReady => write!(to, "something else has to be saved before"),
            Trouble::Waits | Trouble::Held => write!(to, "it is not to be saved yet"),
            Trouble::Above(errno) => write!(to, "the instance: {}", errno.text()),
            Trouble::Below(error) => write!(to, "{error}"),
        }
    }
}

/// What came of trying.
pub(crate) type Tried<T> = Result<T, Trouble>;
