//! Interface by which an instance reads its backing store, whatever that is.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use wire::backing::Version;

/// Prefix of a bucket's name, where a path is accepted as well.
pub const BUCKET_SCHEME: &str = "s3://";

/// True if the text names a bucket rather than a path.
#[must_use]
pub fn is_bucket(text: &str) -> bool {
    text.starts_with(BUCKET_SCHEME)
}

/// A name in a directory and the metadata of its file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// Type and permission bits, as in `stat`.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Number of hard links.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Access time, in nanoseconds since 1970, as are the times that follow.
    pub accessed: i64,
    /// Modification time.
    pub modified: i64,
    /// Change time of the inode.
    pub changed: i64,
    /// Birth time.
    pub born: i64,
    /// Device number of a device file, as in `stat`.
    pub device: u32,
    /// Inode number. With `modified` and `size` it identifies a version of the file.
    pub number: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes and access control lists of a file or directory that was looked up by
    /// name.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A backing store, for reading. Paths are relative and have no slash at either end; the empty path
/// is the top.
///
/// Errors are those of a file system. ENOENT, ENOTDIR, ELOOP and ESTALE mean that the file is no
/// longer at this path or is another file: the caller may ask the shard for its current location.
pub trait Tree: Send + Sync {
    /// Calls `each` with the entries of the directory at `path`, which must have inode number
    /// `number` unless it is the top. Temporary names (`is_temporary`) are left out.
    ///
    /// # Errors
    /// The directory cannot be read; the entries delivered so far are incomplete.
    fn list(&self, path: &[u8], number: u64, each: &mut dyn FnMut(Entry)) -> io::Result<()>;

    /// Looks up `name` in the directory at `path`, which must have inode number `number` unless it
    /// is the top. `None`: the name does not exist or is temporary (`is_temporary`).
    ///
    /// # Errors
    /// The lookup failed.
    fn look(&self, path: &[u8], number: u64, name: &[u8]) -> io::Result<Option<Entry>>;

    /// Opens this version of the file at `path` for reading.
    ///
    /// # Errors
    /// The file cannot be opened, or is another version. A store that can check the version only by
    /// a request may postpone the check to the first read.
    fn open(&self, path: &[u8], version: &Version) -> io::Result<Arc<dyn Contents>>;

    /// Number of concurrent calls that this store needs to be fast.
    fn width(&self) -> usize;
}

/// Contents of one version of a file.
pub trait Contents: Send + Sync {
    /// Reads a range and calls `each` with its bytes in order, through `buffer` if needed. On
    /// success all bytes are of the requested version.
    ///
    /// # Errors
    /// The error of `each`; the file cannot be read; `UnexpectedEof` if it ends before the range.
    fn read(
        &self,
        part: Range<u64>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()>;
}
