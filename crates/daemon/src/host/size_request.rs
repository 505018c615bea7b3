//! Requests to other hosts that concern the size of a file in mode `posix`.

use wire::request::{ANY_TRUNCATE_EPOCH, set};
use wire::{Inode, Request};

/// A request whose reply must be inspected on its way to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SizeRequest {
    /// Truncates or extends a file.
    Truncate { inode: Inode, size: u64 },
    /// Allocates a range at the end of a file.
    Range { inode: Inode },
    /// Writes bytes, valid only in this truncate epoch.
    Bytes { inode: Inode, truncate_epoch: u64 },
}

impl SizeRequest {
    /// Classifies a request.
    pub(crate) const fn of(request: &Request<'_>) -> Option<SizeRequest> {
        match *request {
            Request::SetAttributes { inode, mask, size, .. }
                if mask & set::SIZE != 0 && mask & set::COUNTED != 0 =>
            {
                Some(SizeRequest::Truncate { inode, size })
            }
            Request::Append { inode, .. } => Some(SizeRequest::Range { inode }),
            Request::Write { inode, truncate_epoch, .. }
            | Request::Store { inode, truncate_epoch, .. }
                if truncate_epoch != ANY_TRUNCATE_EPOCH =>
            {
                Some(SizeRequest::Bytes { inode, truncate_epoch })
            }
            _ => None,
        }
    }
}
