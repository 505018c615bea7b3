//! Transfers that we started at one peer.

use super::pipe::{Pipe, Stop};
use super::record::{FAILED, RECORD_BYTES, Record};
use super::slots::Slots;
use crate::endpoint::Endpoint;
use net::bulk::header::{Header, Word};
use net::bulk::{Ends, Fabric, Kind, Outcome, Transfer, keep};
use shm::Segment;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use wire::Errno;

/// Slots of a window: transfers that are under way at one peer.
pub(crate) const WINDOW_SLOTS: u32 = 16;

/// The way to a peer.
pub(crate) enum Way {
    /// None yet.
    None,
    /// A thread makes one.
    Dialling,
    /// A stream, with its number at the poller.
    Up(Pipe, u64),
    /// The peer has no libfabric, or does not reach our memory: TCP.
    Plain,
}

struct Started<E: Ends> {
    transfer: Transfer<E::Memory, E::Token>,
    slot: u32,
}

pub(crate) struct Ours<E: Ends> {
    pub(crate) way: Way,
    /// What the peer reaches: there while the way is dialled or up.
    pub(crate) window: Option<Slots>,
    /// That of the window before, which no other peer's may get: something that this peer had
    /// begun may still come. It is nothing any more when its daemon takes our next stream.
    pub(crate) old_window: Option<Arc<Segment>>,
    started: BTreeMap<u64, Started<E>>,
    /// They wait for a slot, or for the way.
    pub(crate) waiting: VecDeque<Transfer<E::Memory, E::Token>>,
    /// Accesses of theirs failed. They and all that wait go by TCP, in their order, once nothing is
    /// under way.
    failed: BTreeMap<u64, Transfer<E::Memory, E::Token>>,
    next_id: u64,
    /// An access failed: nothing more is begun.
    pub(crate) avoid: bool,
    /// One line of log for each trouble.
    pub(crate) told: bool,
}

impl<E: Ends> Ours<E> {
    pub(crate) const fn new() -> Ours<E> {
        Ours {
            way: Way::None,
            window: None,
            old_window: None,
            started: BTreeMap::new(),
            waiting: VecDeque::new(),
            failed: BTreeMap::new(),
            next_id: 1,
            avoid: false,
            told: false,
        }
    }

    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.way, Way::Plain)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.started.is_empty()
    }

    /// Sends what waits, as far as there are slots.
    pub(crate) fn send(&mut self, ends: &E) -> Result<(), Stop> {
        let (Way::Up(pipe, _), Some(window)) = (&mut self.way, &mut self.window) else {
            return Ok(());
        };
        if self.avoid {
            return Ok(());
        }
        while !self.waiting.is_empty()
            && let Some(slot) = window.take()
            && let Some(transfer) = self.waiting.pop_front()
        {
            let word = match transfer.kind {
                Kind::Store => Word::Store(transfer.range),
                Kind::Fetch => Word::Fetch(transfer.range),
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
            let record = Record { header: Header { id, word }, place: Slots::offset(slot) };
            pipe.push(&record.encode());
            self.started.insert(id, Started { transfer, slot });
        }
        pipe.flush()
    }

    /// Takes answers that came, then sends what waited.
    pub(crate) fn read(&mut self, ends: &E) -> Result<(), Stop> {
        let Way::Up(pipe, _) = &mut self.way else { return Ok(()) };
        // What came before the stream ended is an answer all the same.
        let filled = pipe.fill();
        while let Way::Up(pipe, _) = &mut self.way
            && let Some(bytes) = pipe.take::<RECORD_BYTES>()
        {
            self.answered(&Record::decode(&bytes)?, ends)?;
        }
        filled?;
        self.send(ends)
    }

    fn answered(&mut self, record: &Record, ends: &E) -> Result<(), Stop> {
        const ODD: Stop = Stop::Odd("an answer to nothing that was asked");
        let Started { transfer, slot } = self.started.remove(&record.header.id).ok_or(ODD)?;
        let length = transfer.range.length;
        let mut moved = None;
        if let Some(window) = &mut self.window {
            if transfer.kind == Kind::Fetch && record.header.word == Word::Data(length) {
                moved = Some(window.empty(slot, &transfer.memory, length));
            }
            window.give_back(slot);
        }
        if record.place == FAILED {
            self.failed.insert(record.header.id, transfer);
            self.avoid = true;
            return Ok(());
        }
        let outcome = match (record.header.word, transfer.kind) {
            (Word::Data(count), Kind::Fetch) if count == length => match moved {
                Some(Ok(())) => Outcome::Moved(length),
                Some(Err(errno)) => Outcome::Refused(errno),
                None => Outcome::Refused(Errno::EIO),
            },
            (Word::Data(0), Kind::Fetch) => Outcome::Moved(0),
            (Word::Done(Ok(())), Kind::Store) => Outcome::Moved(length),
            (Word::Done(Err(errno)), _) => Outcome::Refused(errno),
            (Word::Busy(micros), _) => Outcome::Busy(micros),
            _ => {
                ends.ended(transfer.token, transfer.memory, Outcome::Lost);
                return Err(ODD);
            }
        };
        ends.ended(transfer.token, transfer.memory, outcome);
        Ok(())
    }

    /// The stream is gone: closes the window, then all that is under way is lost, but what is to be
    /// sent again.
    pub(crate) fn lose(&mut self, endpoint: &mut Endpoint, ends: &E) {
        self.way = Way::None;
        self.avoid = false;
        self.close_window(endpoint);
        let mut begun = core::mem::take(&mut self.failed);
        let started = core::mem::take(&mut self.started);
        begun.extend(started.into_iter().map(|(id, one)| (id, one.transfer)));
        let lost = begun.into_values().chain(self.waiting.drain(..));
        self.waiting = keep(lost, ends, Instant::now()).into();
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
            // Its memory is never used again, so what comes late does no harm.
            tracing::warn!(%error, "a window stays open");
            return;
        }
        self.old_window = Some(window.memory());
    }

    /// All that waits goes by TCP, and all that comes, for good: what came back here could overtake
    /// what is on its way there. Nothing is under way.
    pub(crate) fn make_plain(&mut self, endpoint: &mut Endpoint, fallback: &dyn Fabric<E>) {
        self.way = Way::Plain;
        self.close_window(endpoint);
        let failed = core::mem::take(&mut self.failed).into_values();
        for transfer in failed.chain(self.waiting.drain(..)) {
            fallback.start(transfer);
        }
    }
}
