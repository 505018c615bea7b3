//! Reading what lies below a target that has no room for it: by messages, of which nothing is kept.

use wire::errno::{Errno, Result};
use wire::{Reply, Request};

use crate::Client;
use crate::far::{Bytes, MESSAGE_BYTES, Part};
use crate::layout::File;
use crate::request::{To, own_credentials};

impl Client {
    /// After a target refused to make a piece for who reads: reads without one. `to` lies in one piece.
    ///
    /// # Errors
    /// `refused`, if that was for another reason than room, and as `call`.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_unkept(
        &self,
        file: &File,
        offset: u64,
        to: &mut [u8],
        refused: Errno,
    ) -> Result<()> {
        let is_room = matches!(refused, Errno::ENOSPC | Errno::EDQUOT);
        if !is_room {
            return Err(refused);
        }
        let target = To::Target(self.target_of(file, offset)?);
        let mut at = offset;
        for part in to.chunks_mut(MESSAGE_BYTES) {
            let (inode, chunk_log2, length) = (file.inode, file.chunk_word(), part.len() as u32);
            let request = Request::Read { inode, chunk_log2, offset: at, length };
            self.call(target, &request, &own_credentials())?.with(|reply| {
                let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
                if bytes.len() != part.len() {
                    return Err(Errno::EIO);
                }
                part.copy_from_slice(bytes);
                Ok(())
            })?;
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// As `read_unkept`, of a part that is on another host.
    pub(crate) fn move_unkept(
        &self,
        file: &File,
        part: &Part,
        bytes: &mut Bytes<'_>,
        refused: Errno,
    ) -> Result<()> {
        match bytes {
            Bytes::Into(to) => {
                let to = to.get_mut(part.range()).ok_or(Errno::EIO)?;
                self.read_unkept(file, part.offset, to, refused)
            }
            Bytes::From(_) | Bytes::Staged(..) => Err(refused),
        }
    }
}
