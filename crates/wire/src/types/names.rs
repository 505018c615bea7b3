//! Names that a service is asked for by inode numbers (`Request::Names`): the other way round than a
//! look-up, so all entries are looked at, a part of them for each request.

use crate::codec::{Field, Malformed, Reader, Writer};
use crate::{Inode, Request};

/// Inodes that a request may ask for.
pub const NAMES_ASKED_MAX: usize = 1024;

/// A place in the order of a service's entries.
///
/// Encoded: directory, hash, collision number (1 byte).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NamePlace {
    /// The directory.
    pub parent: Inode,
    /// Hash of the name.
    pub hash: u64,
    /// Number among the names of the directory with this hash.
    pub collision: u8,
}

impl NamePlace {
    /// Before all entries.
    pub const FIRST: NamePlace = NamePlace { parent: Inode::NONE, hash: 0, collision: 0 };
    /// Behind all entries.
    pub const END: NamePlace =
        NamePlace { parent: Inode(u64::MAX), hash: u64::MAX, collision: u8::MAX };

    /// The request for the names of these inodes from here on.
    #[must_use]
    pub const fn request(self, inodes: &[u8]) -> Request<'_> {
        let NamePlace { parent, hash, collision } = self;
        Request::Names { parent, hash, collision, inodes }
    }
}

impl Field<'_> for NamePlace {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.parent.0);
        to.u64(self.hash);
        to.u8(self.collision);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(NamePlace { parent: Inode(from.u64()?), hash: from.u64()?, collision: from.u8()? })
    }
}

/// A name.
///
/// Encoded: directory, inode, type bits (4 bytes), name with its length before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundName<'a> {
    /// The directory.
    pub parent: Inode,
    /// The inode.
    pub inode: Inode,
    /// Its type bits.
    pub mode: u32,
    /// The name.
    pub name: &'a [u8],
}

impl FoundName<'_> {
    /// Most bytes of one, encoded.
    pub const BYTES_MAX: usize = 8 + 8 + 4 + 4 + crate::limits::NAME_BYTES_MAX;
}

impl<'a> Field<'a> for FoundName<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.parent.0);
        to.u64(self.inode.0);
        to.u32(self.mode);
        to.bytes(self.name);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (parent, inode) = (Inode(from.u64()?), Inode(from.u64()?));
        Ok(FoundName { parent, inode, mode: from.u32()?, name: from.bytes()? })
    }
}
