//! The instance, as the writeback daemon sees it: which names and inodes differ from the backing
//! store, and the contents to copy. `client` implements it with requests to the daemons, `sim` with
//! a model.

pub(crate) mod client;

use crate::backends::WriteAt;
use crate::state::{BackingLocation, DirtyName, Place, SyncState, WritebackResult};
use backing::FileMetadata;
use std::ffi::OsString;
use std::ops::Range;
use wire::errno::Result;
use wire::{Attributes, DaemonIndex, Inode};

/// Access to the instance.
pub(crate) trait Instance: Sync {
    /// Names whose entry differs from the backing store.
    fn dirty_names(&self) -> Result<Vec<DirtyName>>;
    /// Inodes that are in the backing store and differ there.
    fn dirty_inodes(&self) -> Result<Vec<SyncState>>;
    /// The sync state of an inode; `None` if it neither exists nor is backed.
    fn sync_state(&self, inode: Inode) -> Result<Option<SyncState>>;
    /// `Request::Writing`.
    fn writing(&self, inode: Inode, location: &BackingLocation) -> Result<()>;
    /// `Request::Wrote`.
    fn wrote(&self, inode: Inode, location: &BackingLocation) -> Result<()>;
    /// `Request::NotWritten`.
    fn not_written(&self, inode: Inode) -> Result<()>;
    /// `Request::Gone`.
    fn gone(&self, inode: Inode) -> Result<()>;
    /// `Request::NameWritten`.
    fn name_written(&self, place: &Place, from: Inode, to: Inode) -> Result<()>;
    /// Metadata of a file other than its contents.
    fn metadata(&self, of: &Attributes) -> Result<FileMetadata>;
    /// Target of a symbolic link.
    fn target(&self, of: &Attributes) -> Result<OsString>;
    /// `Request::NotePartial`.
    fn note_partial(&self, inode: Inode, is_new: bool, location: &BackingLocation) -> Result<()>;
    /// `Request::ForgetPartial`.
    fn forget_partial(&self, inode: Inode) -> Result<()>;
    /// True if bytes of a file that are written back may be evicted: it has one copy.
    fn may_evict(&self, inode: Inode) -> bool;
    /// `Request::BeginWriteback` to all targets: their dirty ranges, ordered by offset.
    fn begin_writeback(&self, of: &Attributes, part: &BeginRange) -> Result<Vec<DirtyRange>>;
    /// `Request::EndWriteback` to the targets of the ranges.
    fn end_writeback(&self, of: &Attributes, part: (u64, u64), dirty: &[DirtyRange]) -> Result<()>;
    /// Copies a range of a regular file including its holes, up to the end of the file; returns
    /// where the copy ended.
    ///
    /// # Errors
    /// Of either side.
    fn copy_all(
        &self,
        of: &Attributes,
        part: Range<u64>,
        to: &mut WriteAt<'_>,
    ) -> WritebackResult<u64>;
    /// Copies a range of a regular file without its holes, to a file that has its size and is all
    /// hole there.
    ///
    /// # Errors
    /// Of either side.
    fn copy(&self, of: &Attributes, part: Range<u64>, to: &mut WriteAt<'_>) -> WritebackResult<()>;
}

/// Arguments of `Request::BeginWriteback`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeginRange {
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) most: u64,
}

/// A range of a file that may differ from the backing store, and the target that holds it.
#[derive(Clone, Debug)]
pub(crate) struct DirtyRange {
    pub(crate) target: DaemonIndex,
    pub(crate) range: Range<u64>,
}
