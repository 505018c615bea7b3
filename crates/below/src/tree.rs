//! What an instance asks of the tree that lies below it, of whatever that is made.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use wire::below::Version;

/// How the name of a bucket begins where a path may stand, too.
pub const BUCKET_SCHEME: &str = "s3://";

/// True for what names a bucket, and no path.
#[must_use]
pub fn is_bucket(text: &str) -> bool {
    text.starts_with(BUCKET_SCHEME)
}

/// A name in a directory and all that is told of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Kind and permissions, as `stat` tells them.
    pub mode: u32,
    /// User that it belongs to.
    pub uid: u32,
    /// Group that it belongs to.
    pub gid: u32,
    /// Names that it has.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// When it was read last, in nanoseconds since 1970, as the times that follow.
    pub accessed: i64,
    /// When it was written last.
    pub modified: i64,
    /// When anything of it was changed last.
    pub changed: i64,
    /// When it was made.
    pub born: i64,
    /// Of a device: which, as `stat` tells it.
    pub device: u32,
    /// Which it is. With `modified` and `size` it says which version of it.
    pub number: u64,
    /// Of a symbolic link: where it leads.
    pub target: Vec<u8>,
    /// Of a file or directory that was found by its name: extended attributes and access lists.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A tree below. Paths have no slash at their ends; the empty one is the top.
///
/// Errors are those of a file system. ENOENT, ENOTDIR, ELOOP and ESTALE say that what was told is not
/// there
/// any more, or is another: who knows where it is now may be asked.
pub trait Tree: Send + Sync {
    /// Hands `each` the entries of the directory at `path`, which has this number unless it is the top.
    /// What is on its way to a name (`is_temporary`) is none.
    ///
    /// # Errors
    /// It can not be read: what was handed over before is not all.
    fn list(&self, path: &[u8], number: u64, each: &mut dyn FnMut(Entry)) -> io::Result<()>;

    /// What lies by `name` in the directory at `path`, which has this number unless it is the top.
    /// `None`: that directory has no such name, or it is on its way (`is_temporary`).
    ///
    /// # Errors
    /// It is not known.
    fn look(&self, path: &[u8], number: u64, name: &[u8]) -> io::Result<Option<Entry>>;

    /// The file at `path`, to be read as this version of it.
    ///
    /// # Errors
    /// It can not be opened, or is another version. Who has to ask for that may wait until it is read.
    fn open(&self, path: &[u8], version: &Version) -> io::Result<Arc<dyn Contents>>;

    /// How many callers at once it takes to be fast.
    fn width(&self) -> usize;
}

/// One version of a file.
pub trait Contents: Send + Sync {
    /// Reads a part, and hands `each` its bytes in order, by way of `buffer` if need be. If this succeeds
    /// they all are of the version that was asked for.
    ///
    /// # Errors
    /// What `each` says; it can not be read; `UnexpectedEof` if it ends before the part.
    fn read(
        &self,
        part: Range<u64>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()>;
}
