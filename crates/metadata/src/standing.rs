//! Where inodes lie in the backing directory, and what of names and inodes is not there as it is here:
//! the tables, and what each change of the log does to them. What is asked and told of them is in
//! `unsaved`.
//!
//! Invariants
//! 1. A name is in `unsaved` exactly if its entry is another than what lies below by it. The step that
//!    changes an entry changes the row in the same record (`Service::note_name`).
//! 2. An inode is in `changed` exactly if it lies below, or is about to, and what lies there is not what
//!    it is here, or if it has a draft: that follows from the records of both, so it is derived whenever
//!    one of them is put.

use wire::below::{Lies, Stamp, Version};
use wire::codec::Field;
use wire::{Inode, Malformed, Reader, Writer};

use crate::record::Record;
use crate::state::{ENTRY_BYTES, IMPORTED_BYTES, State};

/// Where an inode lies, and as what: see `wire::below::Lies`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lying {
    /// The directory, an inode of this instance.
    pub(crate) parent: Inode,
    pub(crate) name: Box<[u8]>,
    pub(crate) version: Version,
    /// So many of its first bytes are the file's: what lies behind was cut off here since.
    pub(crate) counts: u64,
    pub(crate) stamp: Stamp,
}

impl Lying {
    pub(crate) fn of(lies: &Lies<'_>) -> Lying {
        let Lies { parent, name, version, counts, stamp } = *lies;
        Lying { parent, name: name.into(), version, counts, stamp }
    }

    pub(crate) fn as_lies(&self) -> Lies<'_> {
        let Lying { parent, ref name, version, counts, stamp } = *self;
        Lies { parent, name, version, counts, stamp }
    }

    /// True if it is said to be there, as that.
    pub(crate) fn is_as(&self, lies: &Lies<'_>) -> bool {
        self.parent == lies.parent && *self.name == *lies.name && self.version == lies.version
    }
}

/// How an inode stands to the backing directory. It says where it lies *there*: what becomes of its names
/// in the instance changes nothing of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Below {
    pub(crate) now: Option<Lying>,
    /// Where it is about to lie.
    pub(crate) next: Option<Box<Lying>>,
    /// Where its draft lies: what of a file that is written to was saved, and may not be here any more.
    pub(crate) draft: Option<Box<Lying>>,
}

/// Bytes that `Below` takes besides its names: a tree node two thirds full.
const BELOW_BYTES: u64 = 192;

impl Below {
    fn bytes(&self) -> u64 {
        let name = |lying: &Lying| lying.name.len() as u64;
        let more = self.next.iter().chain(&self.draft).map(|lying| BELOW_BYTES + name(lying));
        BELOW_BYTES + self.now.as_ref().map_or(0, name) + more.sum::<u64>()
    }

    /// Hands the record that puts it to `put`.
    pub(crate) fn record<T>(&self, inode: Inode, put: impl FnOnce(&Record<'_>) -> T) -> T {
        let [mut now, mut next, mut draft] = [[0; Lies::BYTES_MAX]; 3];
        let now = encoded(self.now.as_ref(), &mut now);
        let next = encoded(self.next.as_deref(), &mut next);
        let draft = encoded(self.draft.as_deref(), &mut draft);
        put(&Record::PutBelow { inode, now, next, draft })
    }
}

fn encoded<'b>(lying: Option<&Lying>, to: &'b mut [u8]) -> &'b [u8] {
    let mut writer = Writer::new(to);
    if let Some(lying) = lying {
        lying.as_lies().put(&mut writer);
    }
    // A name fits: it was parsed.
    let length = writer.finish().unwrap_or(0);
    to.get(..length).unwrap_or_default()
}

fn decoded(bytes: &[u8]) -> Result<Option<Lying>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let lies = Lies::take(&mut reader)?;
    reader.end()?;
    if lies.name.len() > wire::limits::NAME_BYTES_MAX {
        return Err(Malformed);
    }
    Ok(Some(Lying::of(&lies)))
}

impl State {
    pub(crate) fn apply_to_below(&mut self, record: &Record<'_>) -> Result<(), Malformed> {
        match *record {
            Record::PutBelow { inode, now, next, draft } => {
                let [next, draft] = [decoded(next)?, decoded(draft)?].map(|it| it.map(Box::new));
                let below = Below { now: decoded(now)?, next, draft };
                self.bytes += below.bytes();
                self.forget_bytes(&inode);
                self.below.insert(inode, below);
                self.note_changed(inode);
            }
            Record::DeleteBelow { inode } => {
                self.forget_bytes(&inode);
                self.below.remove(&inode);
                self.changed.remove(&inode);
            }
            Record::PutImported { directory } => {
                let is_new = self.imported.insert(directory);
                self.bytes += if is_new { IMPORTED_BYTES } else { 0 };
            }
            Record::PutBelowNext { shard, next } => {
                self.below_next.insert(shard, next);
            }
            Record::PutUnsaved { parent, name, lies } => {
                let is_new = self.unsaved.put(parent, name, lies, 0);
                self.unsaved_count += u64::from(is_new);
                self.bytes += if is_new { ENTRY_BYTES + name.len() as u64 } else { 0 };
            }
            Record::DeleteUnsaved { parent, name } => {
                let is_gone = self.unsaved.remove(parent, name);
                let bytes = if is_gone { ENTRY_BYTES + name.len() as u64 } else { 0 };
                self.unsaved_count -= u64::from(is_gone);
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            _ => {}
        }
        Ok(())
    }

    fn forget_bytes(&mut self, inode: &Inode) {
        let bytes = self.below.get(inode).map_or(0, Below::bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// After a change of an inode, or of where it lies.
    pub(crate) fn note_changed(&mut self, inode: Inode) {
        if self.below.is_empty() {
            return;
        }
        let Some(below) = self.below.get(&inode) else { return };
        let node = self.inodes.get(inode);
        let is_as_here =
            |lying: &Lying| node.is_some_and(|node| node.attributes.changed == lying.stamp.changed);
        let is_told = below.next.is_none() && below.draft.is_none();
        if is_told && below.now.as_ref().is_some_and(is_as_here) {
            self.changed.remove(&inode);
        } else {
            self.changed.insert(inode);
        }
    }

    /// What lies below by a name.
    pub(crate) fn lies(&self, parent: Inode, name: &[u8]) -> Inode {
        let unsaved = self.unsaved.get(parent, name);
        unsaved.or_else(|| self.entries.get(parent, name)).map_or(Inode::NONE, |found| found.0)
    }
}
