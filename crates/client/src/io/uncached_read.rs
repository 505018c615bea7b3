//! Uncached reads: from the backing store through a target that has no space to cache the bytes.
//! They travel in messages, and nothing is kept.

use shm::activity::{SlowSource, WaitCause};
use shm::wait::now_nanos;
use wire::Request;
use wire::errno::{Errno, Result};

use crate::file::layout;
use crate::file::layout::File;
use crate::io::transfer::{Bytes, MESSAGE_BYTES, TransferRange};
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Reads without an extent after a target refused to allocate one for the read. `to` lies in
/// one extent.
///
/// # Errors
/// `refused` if the reason was not lack of space, and as `call`.
#[cold]
#[inline(never)]
pub(crate) fn read_uncached(
    transport: &Transport,
    file: &File,
    offset: u64,
    to: &mut [u8],
    refused: Errno,
) -> Result<()> {
    let is_no_space = matches!(refused, Errno::ENOSPC | Errno::EDQUOT);
    if !is_no_space {
        return Err(refused);
    }
    let target = Destination::Target(layout::target_of(transport, file, offset)?);
    let since = now_nanos();
    let mut at = offset;
    for part in to.chunks_mut(MESSAGE_BYTES) {
        let (inode, stripe_log2, length) = (file.inode, file.stripe_word(), part.len() as u32);
        let request = Request::Read { inode, stripe_log2, offset: at, length };
        transport.call(target, &request, &own_credentials())?.with(|reply| {
            let bytes = transport.bytes_of(inode, &reply, now_nanos())?;
            if bytes.len() != part.len() {
                return Err(Errno::EIO);
            }
            part.copy_from_slice(bytes);
            Ok(())
        })?;
        at = at.saturating_add(part.len() as u64);
    }
    let activity = &transport.activity;
    activity.count_source(file.inode, SlowSource::Backing, at.saturating_sub(offset));
    activity.count_wait(WaitCause::Backing, now_nanos().saturating_sub(since));
    Ok(())
}

/// As `read_uncached`, for a range on another host.
pub(crate) fn move_uncached(
    transport: &Transport,
    file: &File,
    part: &TransferRange,
    bytes: &mut Bytes<'_>,
    refused: Errno,
) -> Result<()> {
    match bytes {
        Bytes::Into(to) => {
            let to = to.get_mut(part.range()).ok_or(Errno::EIO)?;
            read_uncached(transport, file, part.offset, to, refused)
        }
        Bytes::From(_) | Bytes::Buffered(..) => Err(refused),
    }
}
