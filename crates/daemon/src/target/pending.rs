//! Requests that the target has not answered yet, with their data, and the replies to them.

use crate::shared::Shared;
use crate::shared::reply::{ReplyTo, encode_extents, encode_reply};
use crate::target::devices::Devices;
use data::{Answer, Source};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use wire::errno::{Errno, Result};
use wire::reply::Extent;
use wire::{Inode, JobWord, Reply, Request};

/// A request that is not answered yet.
pub(crate) struct PendingRequest {
    pub(crate) to: ReplyTo,
    /// Data of a `Write`.
    pub(crate) bytes: Vec<u8>,
    /// Data collected for a `Read`.
    pub(crate) answer: Vec<u8>,
    /// log2 of the length of an extent that it read as the first, after it was fetched for a reader; 0:
    /// there was none.
    pub(crate) fetched_log2: u8,
    /// Bytes of counted pages, which are added to the answer.
    pub(crate) counted: u64,
    pub(crate) failed: Option<Errno>,
    /// If it allocates extents: its file, and the request without data, to be repeated.
    pub(crate) again: Option<(Inode, Request<'static>)>,
    /// The job for which it takes memory.
    pub(crate) job: JobWord,
    /// Since when it has been waiting for space.
    pub(crate) waits_since: Option<Instant>,
    pub(crate) refuse_for: RefuseFor,
}

/// Reason for which an allocating request is refused at once instead of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefuseFor {
    /// None.
    None,
    /// The limit of its account.
    Limit,
}

/// An allocating request without its data, and its file.
const fn repeatable(request: &Request<'_>) -> Option<(Inode, Request<'static>)> {
    match *request {
        Request::MapExtents {
            inode,
            stripe_log2,
            allocate: allocate @ (1 | 2),
            offset,
            length,
            preallocate,
        } => {
            let again =
                Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
            Some((inode, again))
        }
        Request::Write { inode, stripe_log2, offset, truncate_epoch, .. } => {
            Some((inode, Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes: &[] }))
        }
        _ => None,
    }
}

/// All requests that are not answered yet, by ticket.
#[derive(Default)]
pub(crate) struct PendingRequests {
    requests: BTreeMap<u64, PendingRequest>,
    next_ticket: u64,
}

impl PendingRequests {
    /// Registers a request; returns its ticket.
    pub(crate) fn register_request(
        &mut self,
        (request, job): (&Request<'_>, JobWord),
        to: ReplyTo,
        refuse_for: RefuseFor,
    ) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let bytes = match request {
            Request::Write { bytes, .. } => bytes.to_vec(),
            _ => Vec::new(),
        };
        let pending = PendingRequest {
            to,
            bytes,
            answer: Vec::new(),
            fetched_log2: 0,
            counted: 0,
            failed: None,
            again: repeatable(request),
            job,
            waits_since: None,
            refuse_for,
        };
        self.requests.insert(ticket, pending);
        ticket
    }

    /// The request with this ticket.
    pub(crate) fn with_ticket(&mut self, ticket: u64) -> Option<&mut PendingRequest> {
        self.requests.get_mut(&ticket)
    }

    /// Removes a request, to answer it.
    pub(crate) fn take_request(&mut self, ticket: u64) -> Option<PendingRequest> {
        self.requests.remove(&ticket)
    }

    /// Tickets of the requests whose reply goes to such a destination.
    pub(crate) fn tickets_of(&self, is_such: &dyn Fn(&ReplyTo) -> bool) -> Vec<u64> {
        let such = self.requests.iter().filter(|(_, pending)| is_such(&pending.to));
        such.map(|(&ticket, _)| ticket).collect()
    }

    /// Runs a part of a request, unless an earlier part has failed.
    pub(crate) fn attempt(
        &mut self,
        ticket: u64,
        run: impl FnOnce(&mut PendingRequest) -> Result<()>,
    ) {
        let Some(pending) = self.requests.get_mut(&ticket) else { return };
        if pending.failed.is_none() {
            pending.failed = run(pending).err();
        }
    }

    /// Answers a request with bytes from the backing store or a spill host, or with an error.
    pub(crate) fn answer_read(&mut self, shared: &Shared, ticket: u64, outcome: Result<Vec<u8>>) {
        let Some(pending) = self.requests.remove(&ticket) else { return };
        match outcome {
            Ok(bytes) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                deliver_answer(shared, pending.to, Answer::Bytes { length }, &bytes);
            }
            Err(errno) => shared.refuse(pending.to, errno),
        }
    }
}

impl PendingRequest {
    /// Reads bytes of the target.
    pub(crate) fn read_from(&mut self, devices: &Devices, from: Source, length: u32) -> Result<()> {
        let start = self.answer.len();
        self.answer.resize(start + length as usize, 0);
        match from {
            Source::Hole => Ok(()),
            Source::Extent { extent, within } => {
                if devices.states.take_fetched(extent.slot) {
                    self.fetched_log2 = extent.length_log2;
                }
                let to = self.answer.get_mut(start..).unwrap_or_default();
                devices.target().read_stable(&extent, within, to)
            }
        }
    }

    /// Writes bytes of the request to the target.
    pub(crate) fn write_to(
        &self,
        devices: &Devices,
        (extent, within): (&Extent, u64),
        from: u32,
        length: u32,
    ) -> Result<()> {
        let bytes = self.bytes.get(from as usize..).and_then(|bytes| bytes.get(..length as usize));
        let bytes = bytes.ok_or(Errno::EIO)?;
        let hazards = devices.client_hazards.of_daemon();
        devices.target().write_stable(&hazards, extent, within, bytes)
    }
}

/// Sends a reply; `bytes` are the data of a read.
pub(crate) fn deliver_answer(shared: &Shared, to: ReplyTo, answer: Answer, bytes: &[u8]) {
    match answer {
        Answer::Done => shared.answer_with(to, &Reply::Done {}),
        Answer::Refused(errno) => shared.refuse(to, errno),
        Answer::OverLimit { .. } => shared.refuse(to, Errno::EDQUOT),
        Answer::Busy { retry_micros } => shared.busy(to, retry_micros),
        Answer::Bytes { .. } => {
            shared.answer(to, &encode_reply(&Reply::Bytes { bytes }, bytes.len()));
        }
        Answer::Extents(extents) => shared.answer(to, &encode_extents(&extents, 0)),
        Answer::Number(value) => shared.answer_with(to, &Reply::Number { value }),
        Answer::Space { memory_total, memory_free, ssd_total, ssd_free } => {
            let files = shared.metrics.files();
            note_space(shared, [memory_total, memory_free, ssd_total, ssd_free]);
            let space = Reply::Space { memory_total, memory_free, ssd_total, ssd_free, files };
            shared.answer_with(to, &space);
        }
    }
}

fn note_space(shared: &Shared, [memory_total, memory_free, ssd_total, ssd_free]: [u64; 4]) {
    let metrics = &shared.metrics.daemon;
    metrics.memory_total.store(memory_total, Relaxed);
    metrics.memory_free.store(memory_free, Relaxed);
    metrics.ssd_total.store(ssd_total, Relaxed);
    metrics.ssd_free.store(ssd_free, Relaxed);
}
