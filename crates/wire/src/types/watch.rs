//! Watches: what the kernel behind a mount caches: names, and attributes of inodes. A mount records
//! that in shared memory before it looks them up (`shm`); a process that is about to change one of
//! them notifies the mount first and waits for it (`metadata`), unless it is that mount.

use crate::codec::{Field, Malformed, Reader, Writer};
use crate::hash::{entry_key, mix};
use crate::id::Inode;

/// Maximum number of mounts of a host at a time. They are numbered from 1; 0 is none.
pub const MOUNT_COUNT_MAX: usize = 16;
/// The number that stands for all mounts of other hosts.
pub const OTHERS: u8 = MOUNT_COUNT_MAX as u8 + 1;

/// Time for which a kernel may cache a result, unless it is notified of a change.
pub const VALID_NANOS: i64 = 4_000_000_000;
/// Time that others add to it, for the way to the kernel.
pub const MARGIN_NANOS: i64 = 500_000_000;

/// Something that a kernel caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Watch {
    /// The inode of a name, or its absence: a half of its `entry_key`.
    Name(u64),
    /// Attributes of an inode.
    Attributes(Inode),
}

impl Watch {
    /// The watch of a name, by its key.
    #[must_use]
    pub const fn of_key(key: u128) -> Watch {
        Watch::Name((key >> 64) as u64 & (NAME - 1))
    }

    /// Its identity as one number.
    #[must_use]
    pub const fn identity(self) -> u64 {
        match self {
            Watch::Name(key) => key | NAME,
            // A shard has 16 bits, of which few are used.
            Watch::Attributes(inode) => inode.0 & (NAME - 1),
        }
    }

    /// A hash of it.
    #[must_use]
    pub const fn hash(self) -> u64 {
        mix(self.identity(), 17)
    }
}

/// Bit of the identity of a name.
const NAME: u64 = 1 << 63;

/// Values of `Notice::what`.
pub mod what {
    /// Attributes of the inode change.
    pub const ATTRIBUTES: u8 = 0;
    /// The name in the directory changes.
    pub const NAME: u8 = 1;
    /// Bytes of the inode changed.
    pub const BYTES: u8 = 2;
    /// Attributes of the inode change, its owner among them.
    pub const OWNER: u8 = 3;
}

/// A notice to a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice<'a> {
    /// One of `what`.
    pub what: u8,
    /// Notices of a service have increasing numbers.
    pub number: u64,
    /// The inode, or the directory of the name.
    pub inode: Inode,
    /// The name that changes, if one does.
    pub name: &'a [u8],
}

impl Notice<'_> {
    /// The watch that is invalidated.
    #[must_use]
    pub fn watch(&self) -> Watch {
        match self.what {
            what::NAME => Watch::of_key(entry_key(self.inode, self.name)),
            _ => Watch::Attributes(self.inode),
        }
    }
}

impl<'a> Field<'a> for Notice<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        to.u8(self.what);
        to.u64(self.number);
        to.u64(self.inode.0);
        to.bytes(self.name);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let what = from.u8()?;
        let (number, inode) = (from.u64()?, Inode(from.u64()?));
        Ok(Notice { what, number, inode, name: from.bytes()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Notices survive encoding, and any bytes are read without a panic.
        #[test]
        fn notices_survive_encoding(
            n: [u64; 2],
            name in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let [number, inode] = n;
            let notice = Notice { what: number as u8, number, inode: Inode(inode), name: &name };
            let mut bytes = [0; 300];
            let mut writer = Writer::new(&mut bytes);
            notice.put(&mut writer);
            let length = writer.finish().expect("it fits");
            prop_assert_eq!(Notice::take(&mut Reader::new(&bytes[..length])), Ok(notice));
            let _ = Notice::take(&mut Reader::new(&name));
        }

        /// Names and inodes are never taken for each other.
        #[test]
        fn identities_differ_by_kind(key: u128, inode in 1u64..1 << 58) {
            let (name, attributes) = (Watch::of_key(key), Watch::Attributes(Inode(inode)));
            prop_assert_ne!(name.identity(), attributes.identity());
        }
    }
}
