//! What lies in the backing directory and what a shard knows of it: told to daemons, which read there
//! (`Request::Below`), and to the writer, which saves there what was made and changed in the instance.
//!
//! What is unsaved is two sets of each service. Names: a row for each name of which the entry here is
//! another than what lies below (`UnsavedName`), kept where the entry is. Inodes: each that lies below
//! and is not there as it is here (`Standing`), kept where the inode is. The writer makes one equal to
//! the other and tells; who tells what lies below is the writer alone.
//!
//! States of an inode `X`: not below (`now` none) -> `Saving`: about to lie below in another place or as
//! another version (`next` some) -> `Wrote`: lies there (`now` is what `next` was), or `NotWritten`: it
//! does not (`next` none). With both, one of the two is true, and a look below says which. `Gone`: not
//! below any more. It is among the unsaved inodes as long as it has a `next` or a draft, or lies below
//! and is gone here, or was changed here since `now.stamp`.
//!
//! A file that somebody writes to and that does not fit the instance has a draft (`Drafted`): bytes that
//! were saved before it is complete, under a name of the writer's own. As long as it has one, bytes that
//! are not here lie there. It becomes what the file is below by the rename that gives it the file's name
//! (`Wrote` of a version with its number), or ends with `Undrafted`.
//!
//! The way to a place below is the chain of `Lies::parent` and `Lies::name` up to the root: ask
//! `Request::Standing` of each directory on it. What has no `now` has no place yet.

use crate::attributes::{ATTRIBUTES_BYTES, Attributes, Layout, Nanos};
use crate::codec::{Field, Malformed, Reader, Writer};
use crate::id::Inode;
use crate::limits::NAME_BYTES_MAX;

/// Where a file lies below, and what it is there.
///
/// Encoded form, little-endian: inode number there, time of modification, size, size that counts, layout,
/// each eight bytes; then the path, with its length before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Below<'a> {
    /// Its inode number there. A file with another number, time or size is not the one that was seen.
    pub number: u64,
    /// Its time of modification there, in nanoseconds since 1970.
    pub modified: i64,
    /// Its size there.
    pub seen: u64,
    /// So many of its first bytes are the file's: what lies behind was cut off since.
    pub size: u64,
    /// Where its chunks are in the instance.
    pub layout: Layout,
    /// Its path, below the backing directory, without a slash before it.
    pub path: &'a [u8],
}

impl<'a> Below<'a> {
    /// Bytes of the encoded form without the path.
    pub const BYTES: usize = 5 * 8 + 4;

    /// Encodes it.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u64(self.number);
        to.u64(self.modified.cast_unsigned());
        to.u64(self.seen);
        to.u64(self.size);
        to.u64(self.layout.word());
        to.bytes(self.path);
    }

    /// Decodes it.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn decode(from: &mut Reader<'a>) -> Result<Below<'a>, Malformed> {
        Ok(Below {
            number: from.u64()?,
            modified: from.u64()?.cast_signed(),
            seen: from.u64()?,
            size: from.u64()?,
            layout: Layout::from_word(from.u64()?),
            path: from.bytes()?,
        })
    }
}

/// What a file is below, to tell it from others and from itself at another time. Of a directory the
/// number alone counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// Its inode number there.
    pub number: u64,
    /// Its time of modification there.
    pub modified: Nanos,
    /// Its size there.
    pub size: u64,
}

/// What an inode was here when a version of it was made: by `changed` it is known whether it was changed
/// since, by the others whether its contents were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// Time of the last change of anything.
    pub changed: Nanos,
    /// Time of the last change of the contents.
    pub modified: Nanos,
    /// The size.
    pub size: u64,
}

impl Version {
    /// Of a draft with this number: its time and size are not known, as it is written to.
    #[must_use]
    pub const fn of_draft(number: u64) -> Version {
        Version { number, modified: Nanos::MIN, size: u64::MAX }
    }

    /// True for what is known by its number alone.
    #[must_use]
    pub const fn is_of_draft(&self) -> bool {
        self.modified == Nanos::MIN && self.size == u64::MAX
    }
}

impl Stamp {
    /// Of an inode as it is.
    #[must_use]
    pub const fn of(attributes: &Attributes) -> Stamp {
        let Attributes { changed, modified, size, .. } = *attributes;
        Stamp { changed, modified, size }
    }

    /// True if the contents are those of another stamp. Of directories it says nothing.
    #[must_use]
    pub const fn has_contents_of(&self, other: &Stamp) -> bool {
        self.modified == other.modified && self.size == other.size
    }
}

/// Where an inode lies below, and as what.
///
/// Encoded: directory, name with its length before it, then number, time and size of the version, size
/// that counts, change, modification and size of the stamp, eight bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lies<'a> {
    /// The directory, an inode of this instance; it lies where its own standing says.
    pub parent: Inode,
    /// The name in it.
    pub name: &'a [u8],
    /// What is there.
    pub version: Version,
    /// So many of the first bytes there are the file's: what lies behind was cut off here since. Whoever
    /// made the version says its size.
    pub counts: u64,
    /// What the inode was here when that version was made. Of a draft `changed` is how often the file
    /// was cut since it was begun.
    pub stamp: Stamp,
}

impl<'a> Field<'a> for Lies<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        let Lies { parent, name, version, counts, stamp } = *self;
        to.u64(parent.0);
        to.bytes(name);
        to.words(&[
            version.number,
            version.modified.cast_unsigned(),
            version.size,
            counts,
            stamp.changed.cast_unsigned(),
            stamp.modified.cast_unsigned(),
            stamp.size,
        ]);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (parent, name) = (Inode(from.u64()?), from.bytes()?);
        let [number, modified, size, counts, stamp @ ..] = from.words::<7>()?;
        let version = Version { number, modified: modified.cast_signed(), size };
        let [changed, modified, size] = stamp;
        let (changed, modified) = (changed.cast_signed(), modified.cast_signed());
        Ok(Lies { parent, name, version, counts, stamp: Stamp { changed, modified, size } })
    }
}

/// How an inode stands to the backing directory: answer to `Request::Standing`, and what
/// `Request::UnsavedInodes` lists.
///
/// Encoded: the inode, a byte of bits (1 `attributes`, 2 `is_written`, 4 `now`, 8 `next`, 16 `draft`),
/// then what they say is there, in that order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing<'a> {
    /// The inode.
    pub inode: Inode,
    /// What it is here; `None`: it is gone here. Without a link it is deleted and still open: it
    /// may be read, from below, too.
    pub attributes: Option<Attributes>,
    /// Somebody may write to it: a program has it open to write, or has not told all that it wrote.
    pub is_written: bool,
    /// Where it lies below.
    pub now: Option<Lies<'a>>,
    /// Where it is about to lie (`Request::Saving`).
    pub next: Option<Lies<'a>>,
    /// Where its draft lies, and how much of that counts (`Request::Drafted`).
    pub draft: Option<Lies<'a>>,
}

impl Lies<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 4 + NAME_BYTES_MAX + 7 * 8;
}

impl Standing<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 1 + ATTRIBUTES_BYTES + 3 * Lies::BYTES_MAX;
}

impl UnsavedName<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 4 + NAME_BYTES_MAX + 8 + 4 + 8;
}

impl News {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 3 * 8;
}

const ATTRIBUTES: u8 = 1;
const WRITTEN: u8 = 2;
const NOW: u8 = 4;
const NEXT: u8 = 8;
const DRAFT: u8 = 16;

impl<'a> Field<'a> for Standing<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        to.u64(self.inode.0);
        to.u8(bit(self.attributes.is_some(), ATTRIBUTES)
            | bit(self.is_written, WRITTEN)
            | bit(self.now.is_some(), NOW)
            | bit(self.next.is_some(), NEXT)
            | bit(self.draft.is_some(), DRAFT));
        if let Some(attributes) = &self.attributes {
            attributes.encode(to);
        }
        for lies in [&self.now, &self.next, &self.draft].into_iter().flatten() {
            lies.put(to);
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (inode, bits) = (Inode(from.u64()?), from.u8()?);
        if bits & !(ATTRIBUTES | WRITTEN | NOW | NEXT | DRAFT) != 0 {
            return Err(Malformed);
        }
        let has = |bit: u8| bits & bit != 0;
        Ok(Standing {
            inode,
            attributes: has(ATTRIBUTES).then(|| Attributes::decode(from)).transpose()?,
            is_written: has(WRITTEN),
            now: has(NOW).then(|| Lies::take(from)).transpose()?,
            next: has(NEXT).then(|| Lies::take(from)).transpose()?,
            draft: has(DRAFT).then(|| Lies::take(from)).transpose()?,
        })
    }
}

/// A name of which the entry is another than what lies below: `Request::UnsavedNames` lists them. A row
/// stands as long as they differ, and goes when the entry becomes again what lies below. It stays with
/// the service that lists it, when its directory is removed, too.
///
/// Encoded: directory, name with its length before it, entry, mode (4 bytes), what lies below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsavedName<'a> {
    /// The directory.
    pub parent: Inode,
    /// The name.
    pub name: &'a [u8],
    /// What it stands for here; none: there is no such name.
    pub entry: Inode,
    /// Type bits of the entry.
    pub mode: u32,
    /// What lies below by this name; none: nothing of the instance's.
    pub lies: Inode,
}

impl<'a> Field<'a> for UnsavedName<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.parent.0);
        to.bytes(self.name);
        to.u64(self.entry.0);
        to.u32(self.mode);
        to.u64(self.lies.0);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(UnsavedName {
            parent: Inode(from.u64()?),
            name: from.bytes()?,
            entry: Inode(from.u64()?),
            mode: from.u32()?,
            lies: Inode(from.u64()?),
        })
    }
}

/// Answer to `Request::AwaitUnsaved`.
///
/// Encoded: three words in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct News {
    /// Another number whenever something became unsaved since; after a restart of the service, too.
    pub number: u64,
    /// Unsaved names of the service.
    pub names: u64,
    /// Unsaved inodes of the service. What never lay below is not among them: its names are.
    pub inodes: u64,
}

impl Field<'_> for News {
    fn put(&self, to: &mut Writer<'_>) {
        to.words(&[self.number, self.names, self.inodes]);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [number, names, inodes] = from.words()?;
        Ok(News { number, names, inodes })
    }
}

/// An inode that somebody waits for until it is saved.
///
/// Encoded: two words in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Which.
    pub inode: Inode,
    /// The number of the last one who waits: what is told of it (`Request::Settled`) is for him, too.
    pub number: u64,
}

impl Wanted {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 16;
}

impl Field<'_> for Wanted {
    fn put(&self, to: &mut Writer<'_>) {
        to.words(&[self.inode.0, self.number]);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [inode, number] = from.words()?;
        Ok(Wanted { inode: Inode(inode), number })
    }
}

/// The values of an answer to `Request::UnsavedNames` or `Request::UnsavedInodes`, in their order; ends
/// with the first that is none.
pub fn listed<'a, T: Field<'a>>(bytes: &'a [u8]) -> impl Iterator<Item = T> {
    let mut reader = Reader::new(bytes);
    core::iter::from_fn(move || T::take(&mut reader).ok())
}
