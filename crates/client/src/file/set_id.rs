//! Set-id bits and file capabilities of a program, which a change of contents or owner takes away.

use wire::attributes::{extra, mode};
use wire::errno::{Errno, Result};
use wire::request::set;
use wire::{Attributes, Credentials};

use crate::OfdIndex;
use crate::file::change::Change;
use crate::file::open_file::{CAPABLE, OpenFile};
use crate::file::{change, open_file};
use crate::lookup::inodes;
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::own_credentials;

/// The permission bits of a file without those that a change of owner or contents clears; `None` if
/// there are none to clear. A set-group-id bit without group execution has another meaning, and is
/// cleared only if the caller is not in the file's group.
#[must_use]
pub fn without_set_id(
    attributes: &Attributes,
    is_in_group: impl FnOnce(u32) -> bool,
) -> Option<u32> {
    let mut taken = attributes.mode & mode::SET_UID;
    let set_gid = attributes.mode & mode::SET_GID;
    if set_gid != 0 && (attributes.mode & 0o010 != 0 || !is_in_group(attributes.gid)) {
        taken |= set_gid;
    }
    let bits = attributes.mode & mode::PERMISSIONS & !taken;
    (attributes.is_regular() && taken != 0).then_some(bits)
}

/// Mode bits that a write clears.
const SET_ID: u32 = mode::SET_UID | mode::SET_GID;

/// Clears the set-id bits of a program before a write, unless root writes.
#[inline(always)]
pub(crate) fn take_set_id(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    if open.mode() & (SET_ID | CAPABLE) == 0 {
        return Ok(());
    }
    take_set_id_now(transport, open)
}

#[cold]
#[inline(never)]
fn take_set_id_now(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    take_capability_open(transport, open)?;
    let caller = own_credentials();
    if caller.is_privileged() {
        return Ok(());
    }
    take_set_id_as(transport, open, &caller, |gid| caller.is_in_group(gid)).map(|_| ())
}

/// Removes the file capabilities of a program before its contents change, whatever the caller
/// is.
///
/// # Errors
/// `EIO`; `ESTALE` if the file is gone.
pub(crate) fn take_capability(transport: &Transport, file: &Attributes) -> Result<()> {
    if !file.has(extra::CAPABILITY) {
        return Ok(());
    }
    let change = Change { mask: set::CAPABILITY | set::BY_DESCRIPTOR, ..Change::default() };
    change::apply(transport, file.inode, &change, &own_credentials()).map(drop)
}

/// As `take_capability`, for an open file.
pub(crate) fn take_capability_open(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    if open.mode() & CAPABLE == 0 {
        return Ok(());
    }
    let attributes = by_descriptor(inodes::attributes_of(transport, open.inode))?;
    by_descriptor(take_capability(transport, &attributes))?;
    open.set_mode(open.mode() & !CAPABLE);
    Ok(())
}

/// Clears the set-id bits of an open program, whatever this process's credentials: a mount
/// writes for another caller, which may be in a group. Returns true if there were any.
pub(crate) fn kill_set_id(
    transport: &Transport,
    ofd: OfdIndex,
    is_in_group: impl FnOnce(u32) -> bool,
) -> Result<bool> {
    take_set_id_as(
        transport,
        &open_file::by_index(transport, ofd)?,
        &Credentials::checked(0, 0),
        is_in_group,
    )
}

fn take_set_id_as(
    transport: &Transport,
    open: &OpenFile<'_>,
    caller: &Credentials,
    is_in_group: impl FnOnce(u32) -> bool,
) -> Result<bool> {
    let attributes = by_descriptor(inodes::attributes_of(transport, open.inode))?;
    let Some(bits) = without_set_id(&attributes, is_in_group) else { return Ok(false) };
    let mask = set::MODE | set::BY_DESCRIPTOR;
    let change = Change { mask, mode: bits, ..Change::default() };
    match change::apply(transport, open.inode, &change, caller) {
        // A writer that is not the owner may not change the mode itself.
        Ok(_) | Err(Errno::EPERM) => {
            open.set_mode(attributes.mode & !SET_ID);
            Ok(true)
        }
        Err(errno) => Err(errno),
    }
}
