//! Transfers that this daemon started at one peer.

use super::pipe::{Pipe, Stop};
use super::record::{FAILED, RECORD_BYTES, Record};
use super::slots::Slots;
use crate::endpoint::Endpoint;
use net::bulk::header::{Header, Message};
use net::bulk::{BulkHandler, Fabric, Kind, Outcome, Transfer, retain_retryable};
use shm::Segment;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use wire::Errno;

/// Slots of a window: transfers in flight at one peer.
pub(crate) const WINDOW_SLOTS: u32 = 16;

/// The connection to a peer.
pub(crate) enum PeerConnection {
    /// None yet.
    None,
    /// A thread makes one.
    Dialling,
    /// A stream, with its number at the poller.
    Up(Pipe, u64),
    /// The peer has no libfabric, or does not reach our memory: TCP.
    Tcp,
}

struct Started<E: BulkHandler> {
    transfer: Transfer<E::Memory, E::Token>,
    slot: u32,
}

pub(crate) struct Outgoing<E: BulkHandler> {
    pub(crate) way: PeerConnection,
    /// The memory that the peer reaches: present while the connection is dialled or up.
    pub(crate) window: Option<Slots>,
    /// Memory of the previous window, which no other peer may get: an access that this peer had
    /// begun may still arrive. It is dropped when its daemon accepts our next stream.
    pub(crate) old_window: Option<Arc<Segment>>,
    started: BTreeMap<u64, Started<E>>,
    /// Transfers that wait for a slot, or for the connection.
    pub(crate) waiting: VecDeque<Transfer<E::Memory, E::Token>>,
    /// Transfers whose accesses failed. They and all that wait go by TCP, in their order, once
    /// nothing is in flight.
    failed: BTreeMap<u64, Transfer<E::Memory, E::Token>>,
    next_id: u64,
    /// An access failed: no further one is begun.
    pub(crate) avoid: bool,
    /// The current failure is logged: one line for each.
    pub(crate) is_logged: bool,
}

impl<E: BulkHandler> Outgoing<E> {
    pub(crate) const fn new() -> Outgoing<E> {
        Outgoing {
            way: PeerConnection::None,
            window: None,
            old_window: None,
            started: BTreeMap::new(),
            waiting: VecDeque::new(),
            failed: BTreeMap::new(),
            next_id: 1,
            avoid: false,
            is_logged: false,
        }
    }

    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.way, PeerConnection::Tcp)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.started.is_empty()
    }

    /// Sends waiting transfers while there are slots.
    pub(crate) fn send(&mut self, ends: &E) -> Result<(), Stop> {
        let (PeerConnection::Up(pipe, _), Some(window)) = (&mut self.way, &mut self.window) else {
            return Ok(());
        };
        if self.avoid {
            return Ok(());
        }
        while !self.waiting.is_empty()
            && let Some(slot) = window.take()
            && let Some(transfer) = self.waiting.pop_front()
        {
            let message = match transfer.kind {
                Kind::Store => Message::Store(transfer.range),
                Kind::Fetch => Message::Fetch(transfer.range),
            };
            let filled = match transfer.kind {
                Kind::Store => window.fill(slot, &transfer.memory, transfer.range.length),
                Kind::Fetch => Ok(()),
            };
            if let Err(errno) = filled {
                window.give_back(slot);
                ends.ended(transfer.token, transfer.memory, Outcome::Refused(errno));
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let record = Record { header: Header { id, message }, place: Slots::offset(slot) };
            pipe.push(&record.encode());
            self.started.insert(id, Started { transfer, slot });
        }
        pipe.flush()
    }

    /// Takes answers, then sends waiting transfers.
    pub(crate) fn read(&mut self, ends: &E) -> Result<(), Stop> {
        let PeerConnection::Up(pipe, _) = &mut self.way else { return Ok(()) };
        // An answer that came before the stream ended is valid.
        let filled = pipe.fill();
        while let PeerConnection::Up(pipe, _) = &mut self.way
            && let Some(bytes) = pipe.take::<RECORD_BYTES>()
        {
            self.answered(&Record::decode(&bytes)?, ends)?;
        }
        filled?;
        self.send(ends)
    }

    fn answered(&mut self, record: &Record, ends: &E) -> Result<(), Stop> {
        const ODD: Stop = Stop::Odd("an answer without a request");
        let Started { transfer, slot } = self.started.remove(&record.header.id).ok_or(ODD)?;
        let length = transfer.range.length;
        let mut moved = None;
        if let Some(window) = &mut self.window {
            if transfer.kind == Kind::Fetch && record.header.message == Message::Data(length) {
                moved = Some(window.empty(slot, &transfer.memory, length));
            }
            window.give_back(slot);
        }
        if record.place == FAILED {
            self.failed.insert(record.header.id, transfer);
            self.avoid = true;
            return Ok(());
        }
        let outcome = match (record.header.message, transfer.kind) {
            (Message::Data(count), Kind::Fetch) if count == length => match moved {
                Some(Ok(())) => Outcome::Moved(length),
                Some(Err(errno)) => Outcome::Refused(errno),
                None => Outcome::Refused(Errno::EIO),
            },
            (Message::Data(0), Kind::Fetch) => Outcome::Moved(0),
            (Message::Done(Ok(())), Kind::Store) => Outcome::Moved(length),
            (Message::Done(Err(errno)), _) => Outcome::Refused(errno),
            (Message::Busy(micros), _) => Outcome::Busy(micros),
            (Message::Elsewhere(location), Kind::Fetch) => Outcome::Elsewhere(location),
            _ => {
                ends.ended(transfer.token, transfer.memory, Outcome::Lost);
                return Err(ODD);
            }
        };
        ends.ended(transfer.token, transfer.memory, outcome);
        Ok(())
    }

    /// The stream is gone: closes the window; then all transfers in flight are lost, except those
    /// to be sent again.
    pub(crate) fn lose(&mut self, endpoint: &mut Endpoint, ends: &E) {
        self.way = PeerConnection::None;
        self.avoid = false;
        self.close_window(endpoint);
        let mut begun = core::mem::take(&mut self.failed);
        let started = core::mem::take(&mut self.started);
        begun.extend(started.into_iter().map(|(id, one)| (id, one.transfer)));
        let lost = begun.into_values().chain(self.waiting.drain(..));
        self.waiting = retain_retryable(lost, ends, Instant::now()).into();
    }

    /// As `lose`, and nothing is sent again.
    pub(crate) fn end(&mut self, endpoint: &mut Endpoint, ends: &E) {
        self.lose(endpoint, ends);
        for transfer in self.waiting.drain(..) {
            ends.ended(transfer.token, transfer.memory, Outcome::Lost);
        }
    }

    pub(crate) fn close_window(&mut self, endpoint: &mut Endpoint) {
        let Some(window) = self.window.take() else { return };
        if let Err(error) = endpoint.unregister(window.region()) {
            // Its memory is never used again, so a late access does no harm.
            tracing::warn!(%error, "a window stays open");
            return;
        }
        self.old_window = Some(window.memory());
    }

    /// All waiting and later transfers go by TCP, permanently: one that returned here could
    /// overtake those on their way by TCP. Nothing is in flight.
    pub(crate) fn fall_back_to_tcp(&mut self, endpoint: &mut Endpoint, fallback: &dyn Fabric<E>) {
        self.way = PeerConnection::Tcp;
        self.close_window(endpoint);
        let failed = core::mem::take(&mut self.failed).into_values();
        for transfer in failed.chain(self.waiting.drain(..)) {
            fallback.start(transfer);
        }
    }
}
