//! Reads of bytes that no target and no copy in reach has, from the backing store: of files that it has
//! as they are. Nothing is kept, so each read goes there.
//!
//! The service of the file says whether it is one (`Request::IsClean`) before it says where the file is:
//! so the bytes that are read are those that are lost, or newer ones.

use super::fetch::{self, Fetch, FetchKind, FetchOutcome};
use super::tree::{FileLocations, Tree};
use crate::shared::Shared;
use crate::shared::reply::{LOST_MICROS, ReplyTo, encode_reply};
use crate::target::Devices;
use data::FillJob;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{Inode, Reply, Request};

/// Longest wait for a service: longer than it takes to go on elsewhere. The client asks again then.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// The answer for a file that the backing store has not as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfChanged {
    /// The bytes are lost.
    Lost,
    /// They may come back: the client asks again, until its time is over.
    Wait,
}

/// A read of a file, whose answer goes to `to`.
pub(crate) struct BelowRead {
    pub(crate) inode: Inode,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) if_changed: IfChanged,
    pub(crate) to: ReplyTo,
}

/// Performs a read, and answers it.
pub(super) fn perform(shared: &Shared, of: (&Tree, &Devices), read: BelowRead, buffer: &mut [u8]) {
    match bytes_of(shared, of, &read, buffer) {
        None => shared.busy(read.to, LOST_MICROS),
        Some(Err(errno)) => shared.refuse(read.to, errno),
        Some(Ok(bytes)) => {
            shared.answer(read.to, &encode_reply(&Reply::Bytes { bytes: &bytes }, bytes.len()));
        }
    }
    shared.net.sender.flush();
}

/// The bytes; `None`: they are to be asked for again.
fn bytes_of(
    shared: &Shared,
    (tree, devices): (&Tree, &Devices),
    read: &BelowRead,
    buffer: &mut [u8],
) -> Option<Result<Vec<u8>>> {
    let &BelowRead { inode, offset, length, if_changed, .. } = read;
    let until = Instant::now() + ANSWER_TIME_MAX;
    let is_clean = ask(shared, inode, &Request::IsClean { inode }, until, |reply| {
        Ok(reply == Reply::Number { value: 1 })
    })?;
    match (is_clean, if_changed) {
        (Ok(true), _) => {}
        (_, IfChanged::Lost) => return Some(Err(Errno::EIO)),
        (_, IfChanged::Wait) => return None,
    }
    let located =
        ask(shared, inode, &Request::LocateBacking { inode }, until, |reply| match reply {
            Reply::Bytes { bytes } => FileLocations::from_answer(bytes),
            _ => Err(Errno::EIO),
        })?;
    let locations = match located {
        Ok(locations) => Arc::new(locations),
        Err(errno) => return Some(Err(errno)),
    };
    let backing = locations.size.saturating_sub(offset).min(length.into()) as u32;
    let kind = FetchKind::Read { offset, length, backing };
    let job = FillJob::default();
    let fetch = Fetch { ticket: 0, inode, kind, job, locations, until: None };
    match fetch::perform(tree, devices, fetch, buffer).1 {
        FetchOutcome::Read(read) => Some(read),
        // It has just been written again, or moved.
        FetchOutcome::Missing(_) => None,
        FetchOutcome::Filled(_) => Some(Err(Errno::EIO)),
    }
}

/// The answer of the service of a file; `None`: there is none in time.
fn ask<T>(
    shared: &Shared,
    inode: Inode,
    request: &Request<'_>,
    until: Instant,
    with: impl FnOnce(Reply<'_>) -> Result<T>,
) -> Option<Result<T>> {
    let answer = shared.ask_in_time(inode.shard(), request, until)?;
    Some(match Reply::decode(&mut Reader::new(&answer)) {
        Ok(Reply::Busy { .. } | Reply::Stale { .. }) => return None,
        Ok(Reply::Refused { errno }) => Err(errno),
        Ok(reply) => with(reply),
        Err(_) => Err(Errno::EIO),
    })
}
