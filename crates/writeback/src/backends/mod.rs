//! The backing store that a round writes to: a directory (`posix`) or a bucket (`s3`).

pub(crate) mod posix;

pub(crate) mod s3;

use crate::state::{BackingLocation, WritebackResult};
use backing::{AttributesLost, CopyError, FileMetadata, Kind, RenameMode, TemporaryFile};
use s3::Uploading;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use wire::backing::Version;
use wire::{Attributes, Inode};

/// Receives bytes and their offset in a file. Ranges that it does not receive are zero.
pub(crate) type WriteAt<'a> = dyn FnMut(&[u8], u64) -> io::Result<()> + 'a;

/// A directory of the backing store.
#[derive(Clone, Debug)]
pub(crate) enum Dir {
    /// An open directory.
    Posix(Arc<backing::Dir>),
    /// A path in a bucket.
    S3(Arc<str>),
}

impl Dir {
    /// Its inode number.
    pub(crate) fn number(&self) -> io::Result<u64> {
        match self {
            Dir::Posix(dir) => Ok(backing::Node::of(dir)?.identity.1),
            Dir::S3(_) => Ok(bucket::DIRECTORY),
        }
    }

    /// The device number of its file system.
    pub(crate) fn device(&self) -> io::Result<u64> {
        match self {
            Dir::Posix(dir) => Ok(backing::Node::of(dir)?.identity.0),
            Dir::S3(_) => Ok(0),
        }
    }
}

/// An existing file of the backing store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) version: Version,
    /// Number of hard links.
    pub(crate) links: u64,
}

impl From<backing::Node> for Node {
    fn from(node: backing::Node) -> Node {
        let version =
            Version { number: node.identity.1, modified: node.modified(), size: node.size };
        Node { kind: node.kind, version, links: node.links }
    }
}

/// Precondition of a commit: what must exist under the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// Nothing exists.
    Absent,
    /// This version exists and is replaced.
    Version(Version),
}

impl Precondition {
    pub(crate) fn rename_mode(self) -> RenameMode {
        match self {
            Precondition::Absent => RenameMode::New,
            Precondition::Version(_) => RenameMode::Replace,
        }
    }
}

/// A file to create.
#[derive(Debug)]
pub(crate) enum NewNode {
    /// A regular file: mode, and size in bytes.
    File(u32, u64),
    /// A directory.
    Dir,
    /// A symbolic link.
    Link(OsString),
    /// A pipe, a socket or a device: mode and device number.
    Special(u32, u64),
}

/// A new file that does not have its name yet. It is removed on drop unless it was committed.
#[derive(Debug)]
pub(crate) enum Uncommitted {
    /// A regular file under a temporary name.
    File(backing::PartialFile),
    /// A persistent partial file, and how many of its first bytes count as contents of the file.
    Partial(backing::PartialFile, u64),
    /// Another kind of file under a temporary name.
    Other(TemporaryFile),
    /// An object that is being uploaded.
    Object(Uploading),
}

impl Uncommitted {
    /// The version that it will have.
    pub(crate) fn version(&self) -> io::Result<Version> {
        let node = match self {
            Uncommitted::File(partial) | Uncommitted::Partial(partial, _) => {
                backing::Node::of(partial.file())?
            }
            Uncommitted::Other(other) => other.node()?,
            Uncommitted::Object(uploading) => return Ok(uploading.version()),
        };
        Ok(Node::from(node).version)
    }
}

/// Initial contents of a partial file: none, or those of the file in the backing store.
pub(crate) type CopySource<'a> = Option<(&'a Dir, &'a BackingLocation)>;

/// Persistent partial files: they hold bytes of files that are not complete, which may exist
/// nowhere else.
pub(crate) trait PartialFiles: Sync {
    /// Creates a partial file for a file with the mode of `of`, with the bytes of `source` that
    /// count. Returns it, its name, and its size.
    fn begin(
        &self,
        within: &Dir,
        of: &Attributes,
        source: CopySource<'_>,
    ) -> Result<(backing::PartialFile, OsString, u64), CopyError>;
    /// Makes a temporary file persistent; returns its name.
    fn persist(&self, partial: &mut backing::PartialFile, of: Inode) -> io::Result<OsString>;
    /// True if a partial file that the instance does not know, last written at `modified`, is left
    /// over: it is ours, or too old to be in use by another instance.
    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool;
    /// Opens an existing partial file; `None` if it does not exist.
    fn open(
        &self,
        within: &Dir,
        name: &OsStr,
        number: u64,
    ) -> io::Result<Option<backing::PartialFile>>;
    /// Truncates it to `size`; later growth is zero.
    fn resize(&self, partial: &backing::PartialFile, size: u64) -> io::Result<()>;
    /// Writes to a partial file that is all zero from offset `counts` on.
    fn put(
        &self,
        partial: &backing::PartialFile,
        bytes: &[u8],
        at: u64,
        counts: u64,
    ) -> io::Result<()>;
    /// Waits until its data is on the device and, if `name_in` is given, its name in that
    /// directory.
    fn sync(&self, partial: &backing::PartialFile, name_in: Option<&Dir>) -> io::Result<()>;
}

/// A backing store, for writing. Methods behave like the system calls of a file system, and return
/// their errors.
pub(crate) trait Backend: Sync {
    /// True for a store with slow calls that needs many at once, and where a call that failed may
    /// have been executed. There, several commits run concurrently, and an interrupted move is
    /// repeated.
    fn is_object_store(&self) -> bool;
    /// True if a regular file is created under a private name, which the caller gives, because its
    /// contents are compared there by `commit`.
    fn is_compared_aside(&self) -> bool {
        false
    }
    /// Size in bytes of the parts into which a file of this size is divided among threads.
    fn part_bytes(&self, size: u64) -> u64;
    /// Persistent partial files; `None` if the store cannot read incomplete files.
    fn partials(&self) -> Option<&dyn PartialFiles>;
    /// The top directory.
    fn root(&self) -> io::Result<Dir>;
    /// Opens a directory; links are not followed.
    fn dir(&self, within: &Dir, name: &OsStr) -> io::Result<Dir>;
    /// Looks up a name.
    fn node(&self, within: &Dir, name: &OsStr) -> io::Result<Option<Node>>;
    /// All names of a directory, after removing temporary files of dead processes.
    fn names(&self, within: &Dir) -> io::Result<Vec<OsString>>;
    /// Begins to create a file that will get this name and metadata.
    fn create(
        &self,
        at: (&Dir, &OsStr),
        new: &NewNode,
        metadata: &FileMetadata,
    ) -> io::Result<Uncommitted>;
    /// Writes a part of its contents, which `fill` provides.
    fn write(
        &self,
        partial: &Uncommitted,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut WriteAt<'_>) -> WritebackResult<()>,
    ) -> WritebackResult<()>;
    /// Reads contents of an uncommitted file at an offset from the store, past the memory of this host.
    /// Returns how many bytes there are.
    fn read_back(&self, partial: &Uncommitted, to: &mut [u8], at: u64) -> io::Result<usize>;
    /// Sets its metadata, after its contents are written.
    fn set_metadata(
        &self,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost>;
    /// Waits until all data written to the file system of a directory is on the device.
    fn sync(&self, within: &Dir) -> io::Result<()>;
    /// Gives a new file its name.
    fn commit(
        &self,
        partial: Uncommitted,
        at: (&Dir, &OsStr),
        over: Precondition,
    ) -> Result<(), CopyError>;
    /// Renames to a name that does not exist.
    fn rename(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()>;
    /// Adds a hard link under a name that does not exist.
    fn link(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()>;
    /// Removes a name; a directory must be empty.
    fn remove(&self, within: &Dir, name: &OsStr, is_dir: bool) -> io::Result<()>;
    /// Sets the metadata of an existing file.
    fn update_metadata(
        &self,
        within: &Dir,
        name: &OsStr,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost>;
    /// Overwrites an existing file in place with the contents of a new file, then sets its
    /// metadata.
    fn rewrite(
        &self,
        within: &Dir,
        name: &OsStr,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> Result<(), CopyError>;
}
