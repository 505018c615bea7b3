//! The two sides that are made equal: the instance above, by requests, and what lies below, a directory
//! of the site or a bucket.

use crate::objects::Uploading;
use crate::state::{Lies, Place, Row, Standing, Tried};
use below::{Dress, Kind, Landing, Lost, Temporary, Trouble};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use wire::below::Version;
use wire::errno::Result;
use wire::{Attributes, DaemonIndex, Inode};

/// The instance.
pub(crate) trait Above: Sync {
    /// Names of which the entries are not what lies below.
    fn rows(&self) -> Result<Vec<Row>>;
    /// Inodes that lie below and are not there as they are here.
    fn changed(&self) -> Result<Vec<Standing>>;
    /// `None`: it neither exists nor lies below.
    fn standing(&self, inode: Inode) -> Result<Option<Standing>>;
    /// `Request::Saving`.
    fn saving(&self, inode: Inode, lies: &Lies) -> Result<()>;
    /// `Request::Wrote`.
    fn wrote(&self, inode: Inode, lies: &Lies) -> Result<()>;
    /// `Request::NotWritten`.
    fn not_written(&self, inode: Inode) -> Result<()>;
    /// `Request::Gone`.
    fn gone(&self, inode: Inode) -> Result<()>;
    /// `Request::Saved`.
    fn saved(&self, place: &Place, from: Inode, to: Inode) -> Result<()>;
    /// What a file has beside its contents.
    fn dress(&self, of: &Attributes) -> Result<Dress>;
    /// Where a symbolic link leads.
    fn target(&self, of: &Attributes) -> Result<OsString>;
    /// `Request::Drafted`.
    fn drafted(&self, inode: Inode, is_new: bool, lies: &Lies) -> Result<()>;
    /// `Request::Undrafted`.
    fn undrafted(&self, inode: Inode) -> Result<()>;
    /// `Request::BeginSaving`, of all targets: what they say, in the order of offsets.
    fn begin_saving(&self, of: &Attributes, part: &PartAsked) -> Result<Vec<Dirty>>;
    /// `Request::EndSaving`, of those that said something.
    fn end_saving(&self, of: &Attributes, part: (u64, u64), dirty: &[Dirty]) -> Result<()>;
    /// Copies a part of the contents of a regular file, with its holes, as far as it goes. Where it
    /// ends.
    ///
    /// # Errors
    /// Of either side.
    fn copy_all(&self, of: &Attributes, part: Range<u64>, to: &mut Sink<'_>) -> Tried<u64>;
    /// Copies a part of the contents of a regular file to one that is all hole there, and has its size.
    ///
    /// # Errors
    /// Of either side.
    fn copy(&self, of: &Attributes, part: Range<u64>, to: &mut Sink<'_>) -> Tried<()>;
}

/// What of a file is asked for; see `Request::BeginSaving`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartAsked {
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) most: u64,
}

/// Bytes of a file that may be other than below, and whose they are.
#[derive(Clone, Debug)]
pub(crate) struct Dirty {
    pub(crate) target: DaemonIndex,
    pub(crate) range: Range<u64>,
}

/// Takes bytes that are at an offset of a file. What it is not given is zero.
pub(crate) type Sink<'a> = dyn FnMut(&[u8], u64) -> io::Result<()> + 'a;

/// A directory below.
#[derive(Clone, Debug)]
pub(crate) enum Folder {
    /// An open one.
    Site(Arc<below::Folder>),
    /// A path in a bucket.
    Objects(Arc<str>),
}

impl Folder {
    /// Which it is.
    pub(crate) fn number(&self) -> io::Result<u64> {
        match self {
            Folder::Site(folder) => Ok(below::Node::of(folder)?.identity.1),
            Folder::Objects(_) => Ok(bucket::DIRECTORY),
        }
    }

    /// Which file system it is of.
    pub(crate) fn device(&self) -> io::Result<u64> {
        match self {
            Folder::Site(folder) => Ok(below::Node::of(folder)?.identity.0),
            Folder::Objects(_) => Ok(0),
        }
    }
}

/// What is below by a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) version: Version,
    /// Names that it has.
    pub(crate) links: u64,
}

impl From<below::Node> for Node {
    fn from(node: below::Node) -> Node {
        let version =
            Version { number: node.identity.1, modified: node.modified(), size: node.size };
        Node { kind: node.kind, version, links: node.links }
    }
}

/// What a name may be for what comes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Nobody's.
    New,
    /// That of this version.
    Known(Version),
}

impl Over {
    pub(crate) fn landing(self) -> Landing {
        match self {
            Over::New => Landing::New,
            Over::Known(_) => Landing::Replace,
        }
    }
}

/// What is to be made.
#[derive(Debug)]
pub(crate) enum New {
    /// A regular file with this mode and so many bytes.
    File(u32, u64),
    /// A directory.
    Folder,
    /// A symbolic link.
    Link(OsString),
    /// A pipe, a socket, a device: mode and number.
    Special(u32, u64),
}

/// What has no name yet; it goes if it does not land.
#[derive(Debug)]
pub(crate) enum Draft {
    /// Under a temporary name.
    File(below::Draft),
    /// Under a lasting name, with so many bytes of before.
    Kept(below::Draft, u64),
    /// As well.
    Other(Temporary),
    /// On its way to a bucket.
    Object(Uploading),
}

impl Draft {
    /// What it will be.
    pub(crate) fn version(&self) -> io::Result<Version> {
        let node = match self {
            Draft::File(draft) | Draft::Kept(draft, _) => below::Node::of(draft.file())?,
            Draft::Other(other) => other.node()?,
            Draft::Object(uploading) => return Ok(uploading.version()),
        };
        Ok(Node::from(node).version)
    }
}

/// What a file is before it is begun to be saved while it is written to: nothing, or what lies below.
pub(crate) type Origin<'a> = Option<(&'a Folder, &'a Lies)>;

/// Drafts that are kept: bytes of a file are there while it is not complete, and nowhere else.
pub(crate) trait Drafts: Sync {
    /// Begins one of a file that will have `mode`, with what counts of what lies below. Its name, number
    /// and size.
    fn begin(
        &self,
        within: &Folder,
        of: &Attributes,
        origin: Origin<'_>,
    ) -> std::result::Result<(below::Draft, OsString, u64), Trouble>;
    /// Makes one of a temporary one; its name.
    fn keep(&self, draft: &mut below::Draft, of: Inode) -> io::Result<OsString>;
    /// True if one that was written to then, and that the instance does not know, is nobody's.
    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool;
    /// Opens one that was begun; `None`: it is not there.
    fn open(&self, within: &Folder, name: &OsStr, number: u64) -> io::Result<Option<below::Draft>>;
    /// What is behind `size` goes; what comes behind is zero.
    fn resize(&self, draft: &below::Draft, size: u64) -> io::Result<()>;
    /// Writes to one that is all zero from `counts` on.
    fn put(&self, draft: &below::Draft, bytes: &[u8], at: u64, counts: u64) -> io::Result<()>;
    /// Waits until all that was written to it is on the device, and its name in a directory.
    fn sync(&self, draft: &below::Draft, name_in: Option<&Folder>) -> io::Result<()>;
}

/// What lies below. Its methods are calls of a file system, or what comes near them, and say its errors.
pub(crate) trait Lower: Sync {
    /// True for a store that takes long for each call and is fast by many at once, and where a call that
    /// failed may have been done: what is brought there lands several at a time, and a move that was
    /// broken off is done again.
    fn is_far(&self) -> bool;
    /// Bytes of the parts of a file of this size that several threads may copy.
    fn part_bytes(&self, size: u64) -> u64;
    /// Files that are not complete can be kept, and read.
    fn drafts(&self) -> Option<&dyn Drafts>;
    /// Its top.
    fn root(&self) -> io::Result<Folder>;
    /// A directory; no link is followed.
    fn folder(&self, within: &Folder, name: &OsStr) -> io::Result<Folder>;
    /// What has a name, if anything.
    fn node(&self, within: &Folder, name: &OsStr) -> io::Result<Option<Node>>;
    /// All names, after temporary ones that the dead left are gone, if names can be temporary.
    fn names(&self, within: &Folder) -> io::Result<Vec<OsString>>;
    /// Begins something new, for this name; it will have these attributes.
    fn draft(&self, at: (&Folder, &OsStr), new: &New, dress: &Dress) -> io::Result<Draft>;
    /// Where a part of its contents goes, which `fill` gives.
    fn write(
        &self,
        draft: &Draft,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> Tried<()>,
    ) -> Tried<()>;
    /// Gives it its attributes, after its contents.
    fn dress(&self, draft: &Draft, dress: &Dress) -> io::Result<Lost>;
    /// Waits until all that was written to the file system of a directory is on the device.
    fn sync(&self, within: &Folder) -> io::Result<()>;
    /// Gives a draft its name.
    fn land(
        &self,
        draft: Draft,
        at: (&Folder, &OsStr),
        over: Over,
    ) -> std::result::Result<(), Trouble>;
    /// To a name that nobody has.
    fn rename(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()>;
    /// A further name, that nobody has.
    fn link(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()>;
    /// Takes a name away; of a directory only if it is empty.
    fn remove(&self, within: &Folder, name: &OsStr, is_folder: bool) -> io::Result<()>;
    /// Gives what is there other attributes.
    fn dress_there(&self, within: &Folder, name: &OsStr, dress: &Dress) -> io::Result<Lost>;
    /// Gives a file that is there the contents of a draft, and then its attributes.
    fn rewrite(
        &self,
        within: &Folder,
        name: &OsStr,
        draft: &Draft,
        dress: &Dress,
    ) -> std::result::Result<(), Trouble>;
}
