//! Extended attributes as they are stored with an inode, access control lists among them. The rules
//! of access to them are in `xattr` and `acls`.

use wire::acl::{ACCESS, Acl, DEFAULT};
use wire::attributes::{extra, mode};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::{Attributes, Inode};

use crate::core::context::Context;
use crate::core::effect::BackingEntry;
use crate::core::record::Record;
use crate::core::state::{State, encode_tallies, encode_xattrs};
use crate::core::table::Xattrs;

/// Capabilities of a program (extended attribute).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Limit for all attributes of one inode: its names must fit one reply, and all of it one log
/// record. Four times the block of 4 KiB that ext4 gives.
const XATTRS_BYTES_MAX: usize = 16 * 1024;
const XATTR_NAMES_BYTES_MAX: usize = 8 * 1024;
/// Attributes that are requests of programs to the instance; they are not stored.
const OWN: &[u8] = b"user.forebay.";

/// True if the name is that of an access control list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The bits of `extra` for these attributes.
pub(crate) fn extras_of(xattrs: &Xattrs, changes: u16) -> u16 {
    let has = |name: &[u8], bit: u16| if xattrs.contains_key(name) { bit } else { 0 };
    let any = if xattrs.is_empty() { 0 } else { extra::XATTRS };
    changes & extra::CHANGES
        | any
        | has(ACCESS, extra::ACCESS_ACL)
        | has(DEFAULT, extra::DEFAULT_ACL)
        | has(CAPABILITY, extra::CAPABILITY)
}

/// Fails if the attributes are too large together.
pub(crate) fn check_space(xattrs: &Xattrs) -> Result<()> {
    let names: usize = xattrs.keys().map(|name| name.len() + 1).sum();
    let values: usize = xattrs.values().map(|value| value.len()).sum();
    let fits = names <= XATTR_NAMES_BYTES_MAX && names + values <= XATTRS_BYTES_MAX;
    if fits { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// The extended attributes of a backing file as far as they fit here: access lists first,
/// because omitting one could widen permissions.
pub(crate) fn xattrs_seen(seen: &BackingEntry<'_>) -> Xattrs {
    let is_directory = seen.mode & mode::TYPE == mode::DIRECTORY;
    let mut all = Xattrs::new();
    let (lists, others): (Vec<_>, Vec<_>) =
        seen.extended.iter().partition(|(name, _)| is_list(name));
    for (name, value) in lists.into_iter().chain(others) {
        let fits = name.len() <= XATTR_NAME_BYTES_MAX && value.len() <= XATTR_VALUE_BYTES_MAX;
        let stored = match is_list(name) {
            _ if name.starts_with(OWN) => None,
            true => list_seen(name, value, is_directory),
            false => fits.then(|| value.as_slice().into()),
        };
        let Some(stored) = stored else { continue };
        all.insert(name.as_slice().into(), stored);
        if check_space(&all).is_err() {
            all.remove(name.as_slice());
        }
    }
    all
}

/// Sets attributes and extended attributes of an inode, and the bits of `extra` that depend on
/// them.
pub(crate) fn put_xattrs(cx: &mut Context, attributes: &Attributes, xattrs: &Xattrs) {
    let Some(node) = cx.state.inodes.get(attributes.inode) else { return };
    let old = node.xattrs.as_deref();
    let list = |of: Option<&Xattrs>, name| of.and_then(|all| all.get(name).cloned());
    let names = [ACCESS, DEFAULT];
    let is_same = names.iter().all(|&name| list(old, name) == list(Some(xattrs), name));
    let changes = attributes.extras.wrapping_add(u16::from(!is_same));
    let attributes = Attributes { extras: extras_of(xattrs, changes), ..*attributes };
    let nameless = u8::from(node.is_nameless);
    let (target, contents) = (node.target.clone(), node.contents.clone());
    let (mut encoded, mut tallies) = (Vec::new(), Vec::new());
    encode_xattrs(Some(xattrs), &mut encoded);
    encode_tallies(&node.tallies, &mut tallies);
    cx.put(&Record::PutInode {
        attributes,
        nameless,
        target: &target,
        contents: &contents,
        xattrs: &encoded,
        tallies: &tallies,
    });
}

impl State {
    pub(crate) fn copy_xattrs(&self, inode: Inode) -> Xattrs {
        let xattrs = self.inodes.get(inode).and_then(|node| node.xattrs.as_deref());
        xattrs.cloned().unwrap_or_default()
    }
}

/// An access list of a backing file in stored form, if it is not equivalent to a mode.
fn list_seen(name: &[u8], list: &[u8], is_directory: bool) -> Option<Box<[u8]>> {
    let acl = Acl::parse(list).ok().flatten()?;
    let is_needed = if name == DEFAULT { is_directory } else { !acl.is_mode() };
    let mut stored = vec![0; acl.byte_count()];
    acl.store(&mut stored);
    is_needed.then(|| stored.into())
}
