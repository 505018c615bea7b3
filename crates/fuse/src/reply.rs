//! Bodies of replies, written into the caller's buffer. If one does not fit, `wire::codec::Writer`
//! remembers that.

use core::ops::Range;
use core::time::Duration;
use wire::codec::Writer;

use crate::abi::opcode as op;
use crate::request::Lock;

/// Attributes as the kernel takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Inode number, as shown.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Access, modification, change: nanoseconds since 1970.
    pub times: [i64; 3],
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For a device node: its number as the kernel encodes it.
    pub device: u32,
    /// The preferred size of transfers.
    pub block_size: u32,
}

const NANOS: i64 = 1_000_000_000;

impl Attributes {
    fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.inode);
        to.u64(self.size);
        to.u64(self.blocks);
        for time in self.times {
            to.u64(time.div_euclid(NANOS).cast_unsigned());
        }
        for time in self.times {
            to.u32(time.rem_euclid(NANOS) as u32);
        }
        for word in [self.mode, self.links, self.uid, self.gid, self.device, self.block_size, 0] {
            to.u32(word);
        }
    }
}

/// Time for which the kernel may cache the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validity {
    /// Of the name.
    pub entry: Duration,
    /// Of the attributes.
    pub attributes: Duration,
}

/// The answer to a look-up, and to every operation that makes a name. Node 0: the name does not
/// exist, which may be cached, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The node.
    pub node: u64,
    /// Tells nodes with the same number apart.
    pub generation: u64,
    /// Time for which the kernel may cache it.
    pub validity: Validity,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Entry {
    /// Writes it.
    pub fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.node);
        to.u64(self.generation);
        to.u64(self.validity.entry.as_secs());
        to.u64(self.validity.attributes.as_secs());
        to.u32(self.validity.entry.subsec_nanos());
        to.u32(self.validity.attributes.subsec_nanos());
        self.attributes.write(to);
    }
}

/// Sets the validity in the body of a reply to zero.
pub fn expire(opcode: u32, body: &mut [u8]) {
    let entry = [Range { start: 16, end: 40 }];
    let spans: &[Range<usize>] = match opcode {
        op::LOOKUP | op::CREATE | op::MKDIR | op::MKNOD | op::SYMLINK | op::LINK | op::TMPFILE => {
            &entry
        }
        op::GETATTR | op::SETATTR => &[Range { start: 0, end: 12 }],
        op::READDIRPLUS => return expire_listed(body),
        _ => &[],
    };
    for span in spans {
        body.get_mut(span.clone()).into_iter().for_each(|bytes| bytes.fill(0));
    }
}

/// Of each entry of a listing with attributes.
fn expire_listed(mut body: &mut [u8]) {
    while let Some(bytes) = body.get_mut(16..40) {
        bytes.fill(0);
        let name = body.get(ENTRY_BYTES + 16..ENTRY_BYTES + 20);
        let name = name.and_then(|bytes| bytes.try_into().ok());
        let name = name.map_or(0, u32::from_le_bytes) as usize;
        let next = (ENTRY_BYTES + 24).saturating_add(name).next_multiple_of(8);
        let rest = core::mem::take(&mut body);
        body = rest.get_mut(next..).unwrap_or_default();
    }
}

/// Writes the answer to `GETATTR` and `SETATTR`.
pub fn attributes(to: &mut Writer<'_>, attributes: &Attributes, valid: Duration) {
    to.u64(valid.as_secs());
    to.u32(valid.subsec_nanos());
    to.u32(0);
    attributes.write(to);
}

/// Writes the answer to an open: the handle, bits of `abi::open`, and the kernel's number of the
/// file that reads and writes pass through to.
pub fn opened(to: &mut Writer<'_>, handle: u64, flags: u32, backing: u32) {
    to.u64(handle);
    to.u32(flags);
    to.u32(backing);
}

/// Writes the answer to `WRITE`, and to `GETXATTR` and `LISTXATTR` of size 0.
pub fn count(to: &mut Writer<'_>, count: u32) {
    to.u32(count);
    to.u32(0);
}

/// Writes the answer to `LSEEK`.
pub fn offset(to: &mut Writer<'_>, offset: u64) {
    to.u64(offset);
}

/// Writes the answer to `GETLK`.
pub fn lock(to: &mut Writer<'_>, lock: &Lock) {
    to.u64(lock.start);
    to.u64(lock.end);
    to.u32(lock.kind);
    to.u32(lock.pid);
}

/// Writes the answer to an `IOCTL` that was carried out.
pub fn ioctl(to: &mut Writer<'_>, data: &[u8]) {
    // The result, flags, and two numbers of an older version.
    to.raw(&[0; 16]);
    to.raw(data);
}

/// Space of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Blocks in total,
    pub blocks: u64,
    /// that are free,
    pub free: u64,
    /// and free for ordinary users.
    pub available: u64,
    /// Inodes in total,
    pub files: u64,
    /// and free.
    pub files_free: u64,
    /// Size of a block.
    pub block_size: u32,
    /// Maximum length of a name.
    pub name_bytes: u32,
}

impl Space {
    /// Writes the answer to `STATFS`.
    pub fn write(&self, to: &mut Writer<'_>) {
        for word in [self.blocks, self.free, self.available, self.files, self.files_free] {
            to.u64(word);
        }
        for word in [self.block_size, self.name_bytes, self.block_size, 0, 0, 0, 0, 0, 0, 0] {
            to.u32(word);
        }
    }
}

/// One name of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// Inode number.
    pub inode: u64,
    /// Offset at which a listing continues after it.
    pub next: u64,
    /// Bits 12 to 15 of the mode.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

const ENTRY_BYTES: usize = 128;
const LISTED_BYTES: usize = 24;

/// Writes a name, with the result of a look-up if `entry` is given. False, with nothing written, if
/// it does not fit.
pub fn listed(to: &mut Writer<'_>, entry: Option<&Entry>, listed: &Listed<'_>) -> bool {
    let before = if entry.is_some() { ENTRY_BYTES } else { 0 };
    let padding = listed.name.len().wrapping_neg() & 7;
    let all = before + LISTED_BYTES + listed.name.len() + padding;
    if all > to.space_left() {
        return false;
    }
    if let Some(entry) = entry {
        entry.write(to);
    }
    to.u64(listed.inode);
    to.u64(listed.next);
    to.u32(listed.name.len() as u32);
    to.u32(listed.kind);
    to.raw(listed.name);
    to.raw([0; 8].get(..padding).unwrap_or_default());
    true
}
