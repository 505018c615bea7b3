//! The state of inodes in the backing store, as a shard knows it: sent to daemons, which read there
//! (`Request::LocateBacking`), and to the writer, which writes back what was created and changed in
//! the instance.
//!
//! Each service has two dirty sets. Names: a record for each name whose entry here differs from the
//! backing store (`DirtyName`), kept where the entry is. Inodes: each that has a backing location
//! and differs from it (`SyncState`), kept where the inode is. The writer makes both sides equal
//! and reports that; the writer alone reports changes of the backing store.
//!
//! States of an inode `X`: not backed (`now` none) -> `Writing`: about to have another location or
//! version (`next` some) -> `Wrote`: it has (`now` is the former `next`), or `NotWritten`: it has
//! not (`next` none). With both, one of the two is true, and a look at the backing store tells
//! which. `Gone`: not backed any more. It is dirty while it has a `next` or a partial file, or is
//! backed and deleted here, or was changed here since `now.stamp`.
//!
//! A file that is being written and does not fit the instance has a partial file (`NotePartial`):
//! bytes written back before it is complete, under a name of the writer's own. While it exists,
//! bytes that are not here are there. It becomes the backing file by the rename that gives it the
//! file's name (`Wrote` of a version with its number), or ends with `ForgetPartial`.
//!
//! The path of a backing location is the chain of `BackingLocation::parent` and
//! `BackingLocation::name` up to the root: ask `Request::SyncState` for each directory on it. One
//! without `now` has no location yet.

use crate::attributes::{ATTRIBUTES_BYTES, Attributes, Layout, Nanos};
use crate::codec::{Field, Malformed, Reader, Writer};
use crate::id::Inode;
use crate::limits::NAME_BYTES_MAX;

/// Location of a file in the backing store, and its version there.
///
/// Encoded form, little-endian: inode number there, time of modification, size, valid size, layout,
/// each eight bytes; then the path, with its length before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackingFile<'a> {
    /// Its inode number there. A file with another number, time or size is another version.
    pub number: u64,
    /// Its time of modification there, in nanoseconds since 1970.
    pub modified: i64,
    /// Its size there.
    pub seen: u64,
    /// Length of its prefix that is valid: the rest was truncated since.
    pub size: u64,
    /// Layout of the file in the instance.
    pub layout: Layout,
    /// Its path, relative to the root of the backing store, without a leading slash.
    pub path: &'a [u8],
}

impl<'a> BackingFile<'a> {
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
    pub fn decode(from: &mut Reader<'a>) -> Result<BackingFile<'a>, Malformed> {
        Ok(BackingFile {
            number: from.u64()?,
            modified: from.u64()?.cast_signed(),
            seen: from.u64()?,
            size: from.u64()?,
            layout: Layout::from_word(from.u64()?),
            path: from.bytes()?,
        })
    }
}

/// Version of a file in the backing store, to tell it from other files and from itself at another
/// time. For a directory the number alone counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// Its inode number there.
    pub number: u64,
    /// Its time of modification there.
    pub modified: Nanos,
    /// Its size there.
    pub size: u64,
}

/// State of an inode here when a version of it was written: `changed` tells whether it was changed
/// since, the others whether its contents were.
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
    /// The version of a partial file with this number: its time and size are unknown while it is
    /// written.
    #[must_use]
    pub const fn of_partial(number: u64) -> Version {
        Version { number, modified: Nanos::MIN, size: u64::MAX }
    }

    /// True for a version that is identified by its number alone.
    #[must_use]
    pub const fn is_of_partial(&self) -> bool {
        self.modified == Nanos::MIN && self.size == u64::MAX
    }
}

impl Stamp {
    /// The stamp of an inode in its current state.
    #[must_use]
    pub const fn of(attributes: &Attributes) -> Stamp {
        let Attributes { changed, modified, size, .. } = *attributes;
        Stamp { changed, modified, size }
    }

    /// True if the contents differ from those of another stamp. Not meaningful for directories.
    #[must_use]
    pub const fn has_contents_of(&self, other: &Stamp) -> bool {
        self.modified == other.modified && self.size == other.size
    }
}

/// Backing location of an inode, and its version there.
///
/// Encoded: directory, name with its length before it, then number, time and size of the version,
/// valid size, change, modification and size of the stamp, eight bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackingLocation<'a> {
    /// The directory, an inode of this instance; its own sync state holds its location.
    pub parent: Inode,
    /// The name in it.
    pub name: &'a [u8],
    /// The version there.
    pub version: Version,
    /// Length of its prefix that is valid: the rest was truncated here since. Given by the writer
    /// of the version.
    pub counts: u64,
    /// State of the inode here when that version was written. For a partial file `changed` counts
    /// the truncations of the file since it was begun.
    pub stamp: Stamp,
}

impl<'a> Field<'a> for BackingLocation<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        let BackingLocation { parent, name, version, counts, stamp } = *self;
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
        Ok(BackingLocation {
            parent,
            name,
            version,
            counts,
            stamp: Stamp { changed, modified, size },
        })
    }
}

/// The sync state of an inode: answer to `Request::SyncState`, and an element of the answer to
/// `Request::DirtyInodes`.
///
/// Encoded: the inode, a byte of bits (1 `attributes`, 2 `is_written`, 4 `now`, 8 `next`, 16
/// `partial`), then the fields whose bits are set, in that order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncState<'a> {
    /// The inode.
    pub inode: Inode,
    /// Its attributes here; `None`: it is deleted here. Without a link it is deleted and still
    /// open: it may be read, from the backing store, too.
    pub attributes: Option<Attributes>,
    /// A process may write to it: it is open for writing, or written bytes are not reported yet.
    pub is_written: bool,
    /// Its backing location.
    pub now: Option<BackingLocation<'a>>,
    /// The location that it is about to get (`Request::Writing`).
    pub next: Option<BackingLocation<'a>>,
    /// The location of its partial file, and the valid length of that (`Request::NotePartial`).
    pub partial: Option<BackingLocation<'a>>,
}

impl BackingLocation<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 4 + NAME_BYTES_MAX + 7 * 8;
}

impl SyncState<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 1 + ATTRIBUTES_BYTES + 3 * BackingLocation::BYTES_MAX;
}

impl DirtyName<'_> {
    /// Most bytes of the encoded form.
    pub const BYTES_MAX: usize = 8 + 4 + NAME_BYTES_MAX + 8 + 4 + 8;
}

impl DirtyStatus {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 3 * 8;
}

const ATTRIBUTES: u8 = 1;
const WRITTEN: u8 = 2;
const NOW: u8 = 4;
const NEXT: u8 = 8;
const PARTIAL: u8 = 16;

impl<'a> Field<'a> for SyncState<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        to.u64(self.inode.0);
        to.u8(bit(self.attributes.is_some(), ATTRIBUTES)
            | bit(self.is_written, WRITTEN)
            | bit(self.now.is_some(), NOW)
            | bit(self.next.is_some(), NEXT)
            | bit(self.partial.is_some(), PARTIAL));
        if let Some(attributes) = &self.attributes {
            attributes.encode(to);
        }
        for location in [&self.now, &self.next, &self.partial].into_iter().flatten() {
            location.put(to);
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (inode, bits) = (Inode(from.u64()?), from.u8()?);
        if bits & !(ATTRIBUTES | WRITTEN | NOW | NEXT | PARTIAL) != 0 {
            return Err(Malformed);
        }
        let has = |bit: u8| bits & bit != 0;
        Ok(SyncState {
            inode,
            attributes: has(ATTRIBUTES).then(|| Attributes::decode(from)).transpose()?,
            is_written: has(WRITTEN),
            now: has(NOW).then(|| BackingLocation::take(from)).transpose()?,
            next: has(NEXT).then(|| BackingLocation::take(from)).transpose()?,
            partial: has(PARTIAL).then(|| BackingLocation::take(from)).transpose()?,
        })
    }
}

/// A name whose entry differs from the backing store: `Request::DirtyNames` lists them. The record
/// exists while they differ. It stays with the service that lists it, even when its directory is
/// removed.
///
/// Encoded: directory, name with its length before it, entry, mode (4 bytes), backing inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyName<'a> {
    /// The directory.
    pub parent: Inode,
    /// The name.
    pub name: &'a [u8],
    /// Its inode here; none: there is no such name.
    pub entry: Inode,
    /// Type bits of the entry.
    pub mode: u32,
    /// The inode that has this name in the backing store; none: no inode of the instance.
    pub backed_inode: Inode,
}

impl<'a> Field<'a> for DirtyName<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.parent.0);
        to.bytes(self.name);
        to.u64(self.entry.0);
        to.u32(self.mode);
        to.u64(self.backed_inode.0);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(DirtyName {
            parent: Inode(from.u64()?),
            name: from.bytes()?,
            entry: Inode(from.u64()?),
            mode: from.u32()?,
            backed_inode: Inode(from.u64()?),
        })
    }
}

/// Answer to `Request::AwaitDirty`.
///
/// Encoded: three words in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirtyStatus {
    /// A number that changes whenever anything becomes dirty; after a restart of the service, too.
    pub number: u64,
    /// Dirty names of the service.
    pub names: u64,
    /// Dirty inodes of the service. One that was never backed is not counted: its names are.
    pub inodes: u64,
}

impl Field<'_> for DirtyStatus {
    fn put(&self, to: &mut Writer<'_>) {
        to.words(&[self.number, self.names, self.inodes]);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [number, names, inodes] = from.words()?;
        Ok(DirtyStatus { number, names, inodes })
    }
}

/// An inode that a client waits for until it is clean.
///
/// Encoded: two words in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanRequest {
    /// The inode.
    pub inode: Inode,
    /// The number of the last waiter: a report for it (`Request::Settled`) holds for that one, too.
    pub number: u64,
}

impl CleanRequest {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 16;
}

impl Field<'_> for CleanRequest {
    fn put(&self, to: &mut Writer<'_>) {
        to.words(&[self.inode.0, self.number]);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [inode, number] = from.words()?;
        Ok(CleanRequest { inode: Inode(inode), number })
    }
}

/// The values of an answer to `Request::DirtyNames` or `Request::DirtyInodes`, in their order; ends
/// at the first bytes that are not a value.
pub fn listed<'a, T: Field<'a>>(bytes: &'a [u8]) -> impl Iterator<Item = T> {
    let mut reader = Reader::new(bytes);
    core::iter::from_fn(move || T::take(&mut reader).ok())
}
