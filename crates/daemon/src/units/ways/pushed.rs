//! Writes to files with copies that returned before they arrived (`--remote-writes behind`): their bytes
//! are in bounce buffers of programs, and go to all copies as those of any client do, under identities of
//! this daemon.
//!
//! ```text
//!  waiting --first of its place, an identity is free--> under way
//!  under way --Done, refused, too late--> ended
//!  under way --Busy--> resting --a moment--> under way
//! ```
//!
//! Not here: the count of a file's writes, their error, and what becomes of buffers whose daemon is gone
//! (`shm::bounce`, `shm::host::pending`; `client/io/write_behind`).
//!
//! Invariants
//! 1. Writes of one place, a part of a file as long as a bounce buffer, are under way one at a time, in
//!    the order in which they were pushed.
//! 2. A write has one identity until it has ended, also after a death of this daemon, and that is no
//!    other's before its buffer is free: it is made once.
//! 3. A buffer keeps its bytes until all copies have them, or its writer's file has an error.

use super::{Access, CopyRequest};
use crate::sessions::client_session::ClientSession;
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use crate::shares::inbox::StartTicket;
use crate::threads::bulk::end_push;
use crate::units::Units;
use crate::units::agent::FileBytes;
use replicas::operation::RequestId;
use shm::bounce::{PushIdentity, Pushed};
use shm::host::{PushEpoch, VnodeIndex};
use shm::wait::steady_nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::limits::BOUNCE_BUFFER_BYTES;
use wire::{Header, Inode, JobWord, Reply};

/// Writes under way at a time, and their client ids: 16 MiB, of which this daemon holds a second copy.
/// More do not make it faster: 1 GB/s with 4 ms for each write.
pub(in crate::units) const UNDER_WAY_MAX: u64 = 64;

/// A part of a file as long as a bounce buffer.
pub(in crate::units) type PushPlace = (Inode, u64);

/// One attempt of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PushAttempt {
    /// Counts writes.
    number: u64,
    /// Counts the attempts of this one.
    attempt: u32,
}

/// The answer to an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushAnswer {
    /// All copies have the bytes.
    Done,
    /// To be tried again after this time.
    Busy {
        /// In microseconds.
        retry_micros: u32,
    },
    /// The write has failed.
    Refused(Errno),
}

impl PushAnswer {
    /// From an encoded reply.
    pub(crate) fn of(reply: &[u8]) -> PushAnswer {
        match Reply::decode(&mut Reader::new(reply)) {
            Ok(Reply::Number { .. }) => PushAnswer::Done,
            Ok(Reply::Busy { retry_micros }) => PushAnswer::Busy { retry_micros },
            Ok(Reply::Refused { errno }) => PushAnswer::Refused(errno),
            _ => PushAnswer::Refused(Errno::EIO),
        }
    }
}

struct QueuedPush<W> {
    write: W,
    place: PushPlace,
    /// `None`: it waits.
    id: Option<RequestId>,
    attempts: u32,
    /// When the first one began.
    began: i64,
    /// It rests until then.
    rests_until: Option<i64>,
}

/// Identity and place of a write that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::units) struct EndedPush {
    pub(in crate::units) id: RequestId,
    place: PushPlace,
}

/// The order of writes: see the module.
pub(in crate::units) struct PushOrder<W> {
    first_client: u64,
    /// Identities that no write has, as numbers from `first_client` on. The lowest is used first, so that
    /// primaries remember few.
    free: BTreeSet<u64>,
    writes: BTreeMap<u64, QueuedPush<W>>,
    places: BTreeMap<PushPlace, VecDeque<u64>>,
    /// The first of their places, without an identity.
    ready: VecDeque<u64>,
    resting: BTreeSet<u64>,
    writes_given: u64,
    sequences_given: u64,
}

impl<W> PushOrder<W> {
    pub(in crate::units) fn new(first_client: u64) -> PushOrder<W> {
        PushOrder {
            first_client,
            free: (0..UNDER_WAY_MAX).collect(),
            writes: BTreeMap::new(),
            places: BTreeMap::new(),
            ready: VecDeque::new(),
            resting: BTreeSet::new(),
            writes_given: 0,
            sequences_given: 0,
        }
    }

    /// A write comes, behind all others of its place.
    pub(in crate::units) fn add(&mut self, place: PushPlace, write: W) {
        self.writes_given += 1;
        let number = self.writes_given;
        let (id, attempts, began, rests_until) = (None, 0, 0, None);
        let queued = QueuedPush { write, place, id, attempts, began, rests_until };
        self.writes.insert(number, queued);
        let queue = self.places.entry(place).or_default();
        queue.push_back(number);
        if queue.len() == 1 {
            self.ready.push_back(number);
        }
    }

    /// The next write that begins, if one may, with its identity.
    pub(in crate::units) fn begin_next(
        &mut self,
        now: i64,
    ) -> Option<(PushAttempt, RequestId, &W)> {
        let client = *self.free.first()?;
        let number = self.ready.pop_front()?;
        let queued = self.writes.get_mut(&number)?;
        self.free.remove(&client);
        self.sequences_given += 1;
        let id = RequestId { client: self.first_client + client, sequence: self.sequences_given };
        (queued.id, queued.attempts, queued.began) = (Some(id), 1, now);
        Some((PushAttempt { number, attempt: 1 }, id, &queued.write))
    }

    /// The write of an attempt, if that is its last one and has no answer.
    fn of(&mut self, asked: PushAttempt) -> Option<&mut QueuedPush<W>> {
        let queued = self.writes.get_mut(&asked.number)?;
        let is_last = queued.attempts == asked.attempt && queued.rests_until.is_none();
        is_last.then_some(queued)
    }

    /// It is to be tried again at this time.
    pub(in crate::units) fn rest(&mut self, asked: PushAttempt, until: i64) {
        if let Some(queued) = self.of(asked) {
            queued.rests_until = Some(until);
            self.resting.insert(asked.number);
        }
    }

    /// A write that has rested, with the identity that it has.
    pub(in crate::units) fn resume_next(
        &mut self,
        now: i64,
    ) -> Option<(PushAttempt, RequestId, &W)> {
        let is_due = |number: &&u64| {
            let until = self.writes.get(*number).and_then(|queued| queued.rests_until);
            until.is_some_and(|until| until <= now)
        };
        let number = *self.resting.iter().find(is_due)?;
        self.resting.remove(&number);
        let queued = self.writes.get_mut(&number)?;
        queued.rests_until = None;
        queued.attempts += 1;
        Some((PushAttempt { number, attempt: queued.attempts }, queued.id?, &queued.write))
    }

    /// A write has ended; it keeps its identity and its place until `free`.
    pub(in crate::units) fn end(&mut self, asked: PushAttempt) -> Option<(EndedPush, W)> {
        self.of(asked)?;
        let QueuedPush { write, place, id, .. } = self.writes.remove(&asked.number)?;
        Some((EndedPush { id: id?, place }, write))
    }

    /// Another write may have the identity, and the next one of the place may begin.
    pub(in crate::units) fn free(&mut self, ended: &EndedPush) {
        self.free.insert(ended.id.client - self.first_client);
        let Some(queue) = self.places.get_mut(&ended.place) else { return };
        queue.pop_front();
        match queue.front() {
            Some(&next) => self.ready.push_back(next),
            None => drop(self.places.remove(&ended.place)),
        }
    }
}

/// A write in a bounce buffer, which this daemon moves.
struct CopiedPush {
    client: Arc<ClientSession>,
    buffer: u8,
    /// Where it is counted.
    vnode: (VnodeIndex, PushEpoch),
    /// Without its identity.
    request: CopyRequest,
    /// Its place among requests that share what there is, until it is dropped.
    _ticket: Option<StartTicket>,
}

impl CopiedPush {
    /// In this order for `recount_lost_pushes`.
    fn end(&self, shared: &Shared, outcome: Result<()>) {
        let buffers = self.client.slots.bounce_buffers();
        buffers.begin_ending(self.buffer);
        end_push(&shared.host.segment, self.request.bytes.inode, self.vnode, outcome);
        buffers.give_back(self.buffer);
    }
}

/// See the module.
pub(in crate::units) struct CopiedPushes {
    order: Mutex<PushOrder<CopiedPush>>,
}

impl CopiedPushes {
    /// Their identities are these client ids of this start of the daemon, `UNDER_WAY_MAX` of them.
    pub(in crate::units) fn new(first_client: u64) -> CopiedPushes {
        CopiedPushes { order: Mutex::new(PushOrder::new(first_client)) }
    }

    fn order(&self) -> MutexGuard<'_, PushOrder<CopiedPush>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a buffer. The identity is noted beside them: if this daemon dies, the next attempt of the
/// program has the same.
///
/// # Errors
/// Never for a buffer that there is.
fn copy_bytes(
    client: &ClientSession,
    (buffer, length): (u8, u64),
    id: RequestId,
) -> Result<Vec<u8>> {
    let (buffers, mut bytes) = (client.slots.bounce_buffers(), vec![0; length as usize]);
    let identity = PushIdentity { client: id.client, sequence: id.sequence };
    buffers.note_identity(buffer, identity)?;
    buffers.segment().copy_out(buffers.offset_of(buffer, bytes.len())?, &mut bytes)?;
    Ok(bytes)
}

/// The place of a write, whose numbers are a client's; `None`: it is of no file with copies, or longer
/// than its place.
fn place_of(pushed: &Pushed) -> Option<PushPlace> {
    let (size, length) = (BOUNCE_BUFFER_BYTES as u64, u64::from(pushed.length));
    let is_within = length > 0 && pushed.offset % size + length <= size;
    (is_within && !pushed.inode.is_single()).then(|| (pushed.inode, pushed.offset / size))
}

impl Units {
    /// Takes writes that a client pushed, in the order of these buffers, but for those that were taken
    /// before. The share is of the last one.
    pub(crate) fn take_pushes(
        &self,
        shared: &Shared,
        client: &Arc<ClientSession>,
        buffers: &[u8],
        (job, ticket): (JobWord, Option<StartTicket>),
    ) {
        let (mut ticket, mut refused) = (ticket, Vec::new());
        // Under one lock: what another thread takes comes behind these, or was before.
        let mut order = self.pushed.order();
        for (left, &buffer) in (0..buffers.len()).rev().zip(buffers) {
            let Some((pushed, epoch)) = client.slots.bounce_buffers().begin_moving(buffer) else {
                continue;
            };
            let Pushed { inode, vnode, target, stripe_log2, offset, length, .. } = pushed;
            let header = Header { job, ..shared.net.target_header(target) };
            let bytes = FileBytes { home: target, inode, offset, length: length.into() };
            let (access, unit_epoch) = (Access::Write, None);
            let stripe_log2 = wire::request::stripe_log2_of(stripe_log2);
            let request = CopyRequest { header, bytes, stripe_log2, access, unit_epoch };
            let (client, vnode) = (Arc::clone(client), (vnode, epoch));
            let _ticket = if left == 0 { ticket.take() } else { None };
            let write = CopiedPush { client, buffer, vnode, request, _ticket };
            match place_of(&pushed) {
                Some(place) => order.add(place, write),
                None => refused.push(write),
            }
        }
        drop(order);
        refused.iter().for_each(|write| write.end(shared, Err(Errno::EINVAL)));
        self.begin_pushed(shared);
    }

    /// The writes that may begin do.
    fn begin_pushed(&self, shared: &Shared) {
        loop {
            let mut order = self.pushed.order();
            let next = order.begin_next(steady_nanos());
            let Some((asked, id, write)) = next else { return };
            let (client, buffer, request) =
                (Arc::clone(&write.client), write.buffer, write.request);
            drop(order);
            match copy_bytes(&client, (buffer, request.bytes.length), id) {
                Ok(bytes) => {
                    self.held.hold(id, bytes);
                    self.ask_pushed(shared, asked, (id, request));
                }
                Err(errno) => self.end_pushed(shared, asked, Err(errno)),
            }
        }
    }

    fn ask_pushed(
        &self,
        shared: &Shared,
        asked: PushAttempt,
        (id, request): (RequestId, CopyRequest),
    ) {
        let header = Header { client_id: id.client, sequence: id.sequence, ..request.header };
        self.pass_on(shared, CopyRequest { header, ..request }, ReplyTo::PushedCopy(asked));
    }

    /// Time passed.
    pub(in crate::units) fn resume_pushed(&self, shared: &Shared, now: i64) {
        loop {
            let mut order = self.pushed.order();
            let Some((asked, id, write)) = order.resume_next(now) else { break };
            let request = write.request;
            drop(order);
            self.ask_pushed(shared, asked, (id, request));
        }
        self.begin_pushed(shared);
    }

    /// The answer to an attempt has come.
    pub(in crate::units) fn push_answered(
        &self,
        shared: &Shared,
        asked: PushAttempt,
        answer: PushAnswer,
    ) {
        match answer {
            PushAnswer::Done => self.end_pushed(shared, asked, Ok(())),
            PushAnswer::Busy { retry_micros } => self.rest_pushed(shared, asked, retry_micros),
            PushAnswer::Refused(errno) => self.end_pushed(shared, asked, Err(errno)),
        }
        self.begin_pushed(shared);
    }

    fn rest_pushed(&self, shared: &Shared, asked: PushAttempt, retry_micros: u32) {
        let now = steady_nanos();
        let timeout = i64::try_from(shared.timing.timeout.as_nanos()).unwrap_or(i64::MAX);
        let mut order = self.pushed.order();
        let is_late = order.of(asked).is_some_and(|queued| now - queued.began >= timeout);
        // Its program pushes it again, to the daemon that is started next.
        if is_late && !shared.stopping.load(SeqCst) {
            drop(order);
            return self.end_pushed(shared, asked, Err(Errno::EIO));
        }
        order.rest(asked, now + i64::from(retry_micros) * 1000);
    }

    fn end_pushed(&self, shared: &Shared, asked: PushAttempt, outcome: Result<()>) {
        let ended = self.pushed.order().end(asked);
        let Some((ended, write)) = ended else { return };
        self.held.let_go(ended.id);
        write.end(shared, outcome);
        // The buffer is free: no later attempt of this write can have the identity.
        self.pushed.order().free(&ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::DaemonIndex;

    const FIRST: u64 = 1000;

    fn place(number: u64) -> PushPlace {
        (Inode(77), number)
    }

    fn end(order: &mut PushOrder<u64>, asked: PushAttempt) {
        let (ended, _) = order.end(asked).expect("under way");
        order.free(&ended);
    }

    fn begin(order: &mut PushOrder<u64>) -> Option<(PushAttempt, RequestId, u64)> {
        order.begin_next(0).map(|(asked, id, write)| (asked, id, *write))
    }

    #[test]
    fn writes_of_a_place_go_one_after_the_other() {
        let mut order = PushOrder::new(FIRST);
        [(1, 10), (1, 11), (2, 12)].iter().for_each(|&(at, write)| order.add(place(at), write));
        let (first, id, write) = begin(&mut order).expect("a write");
        assert_eq!((id, write), (RequestId { client: FIRST, sequence: 1 }, 10));
        let (other, other_id, write) = begin(&mut order).expect("that of another place");
        assert_eq!((other_id.client, write), (FIRST + 1, 12));
        assert!(begin(&mut order).is_none());
        let ended = EndedPush { id, place: place(1) };
        assert_eq!(order.end(first), Some((ended, 10)));
        assert_eq!(order.end(first), None, "a second answer");
        assert!(begin(&mut order).is_none(), "its buffer is not free");
        order.free(&ended);
        let (next, next_id, write) = begin(&mut order).expect("the next of the place");
        assert_eq!((next_id, write), (RequestId { client: FIRST, sequence: 3 }, 11));
        [next, other].into_iter().for_each(|asked| end(&mut order, asked));
        assert!(order.places.is_empty() && order.writes.is_empty() && order.ready.is_empty());
        assert_eq!(order.free.len() as u64, UNDER_WAY_MAX);
    }

    #[test]
    fn a_busy_write_keeps_its_identity_and_its_place() {
        let mut order = PushOrder::new(FIRST);
        [10, 11].iter().for_each(|&write| order.add(place(1), write));
        let (first, id, _) = begin(&mut order).expect("a write");
        order.rest(first, 100);
        assert_eq!(order.end(first), None, "it rests");
        assert!(order.resume_next(99).is_none() && begin(&mut order).is_none());
        let (second, same, write) =
            order.resume_next(100).map(|(asked, id, write)| (asked, id, *write)).expect("due");
        assert_eq!((same, write), (id, 10));
        assert!(order.resume_next(1000).is_none());
        // An answer to the first attempt says nothing of the second.
        order.rest(first, 0);
        assert!(order.end(first).is_none() && order.resume_next(1000).is_none());
        end(&mut order, second);
        assert_eq!(begin(&mut order).map(|(.., write)| write), Some(11));
    }

    #[test]
    fn so_many_are_under_way_at_a_time() {
        let mut order = PushOrder::new(FIRST);
        (0..UNDER_WAY_MAX + 2).for_each(|write| order.add(place(write), write));
        let begun: Vec<_> = std::iter::from_fn(|| begin(&mut order)).collect();
        assert_eq!(begun.len() as u64, UNDER_WAY_MAX);
        order.rest(begun[5].0, 7);
        assert!(begin(&mut order).is_none(), "one that rests may be under way");
        end(&mut order, begun[3].0);
        let (_, id, write) = begin(&mut order).expect("a place");
        assert_eq!((id.client, write), (begun[3].1.client, UNDER_WAY_MAX));
        assert!(id.sequence > begun[3].1.sequence && begin(&mut order).is_none());
    }

    /// Writes under way, by number: the attempt, its identity, its place and the write.
    type UnderWay = BTreeMap<u64, (PushAttempt, RequestId, PushPlace, u64)>;

    fn begin_all(order: &mut PushOrder<u64>, under_way: &mut UnderWay, now: i64) {
        loop {
            let next = order.resume_next(now).map(|(asked, id, write)| (asked, id, *write));
            let Some((asked, id, write)) = next.or_else(|| begin(order)) else { return };
            let at = order.writes[&asked.number].place;
            let is_alone = |it: &(PushAttempt, RequestId, PushPlace, u64)| {
                it.0.number != asked.number && it.1.client != id.client && it.2 != at
            };
            assert!(under_way.values().all(is_alone), "{asked:?} of {at:?} in {under_way:?}");
            under_way.insert(asked.number, (asked, id, at, write));
        }
    }

    /// Number of writes that ended.
    fn run(seed: u64) -> u64 {
        let (mut random, mut order) = (testkit::Random::new(seed), PushOrder::new(FIRST));
        let (mut under_way, mut last) = (UnderWay::new(), BTreeMap::new());
        let (mut added, mut ended) = (0, 0);
        for now in 0..600 {
            let any = random.uniform(under_way.len().max(1) as u64) as usize;
            let any = under_way.keys().nth(any).copied();
            match (random.uniform(5), any) {
                (0 | 1, _) => {
                    added += 1;
                    order.add(place(random.uniform(70)), added);
                }
                (2, Some(any)) => {
                    let (asked, ..) = under_way.remove(&any).expect("under way");
                    order.rest(asked, now + 3);
                }
                (_, Some(any)) => {
                    let (asked, id, at, write) = under_way.remove(&any).expect("under way");
                    let gone = EndedPush { id, place: at };
                    assert_eq!(order.end(asked), Some((gone, write)));
                    order.free(&gone);
                    let before = last.insert(at, write);
                    assert!(before.is_none_or(|before| before < write), "{at:?}: {before:?}");
                    ended += 1;
                }
                _ => {}
            }
            begin_all(&mut order, &mut under_way, now);
        }
        assert_eq!(order.writes.len() as u64, added - ended);
        ended
    }

    #[test]
    fn any_answers_keep_the_order_of_each_place() {
        assert!(testkit::world::campaign("pushes", 100, run) > 0);
    }

    #[test]
    fn a_write_has_one_place() {
        let size = BOUNCE_BUFFER_BYTES as u64;
        let of = |inode, offset, length| {
            let (vnode, target, stripe_log2, stamp) = (VnodeIndex(1), DaemonIndex(0), 22, 9);
            place_of(&Pushed { inode, vnode, target, stripe_log2, offset, length, stamp })
        };
        assert_eq!(of(Inode(7), 3 * size, BOUNCE_BUFFER_BYTES as u32), Some((Inode(7), 3)));
        assert_eq!(of(Inode(7), 4 * size - 1, 1), Some((Inode(7), 3)));
        for (inode, offset, length) in [
            (Inode(7), 4 * size - 1, 2),
            (Inode(7), 1, 0),
            (Inode(7), 1, u32::MAX),
            (Inode(7).with_copies(1), 1, 1),
        ] {
            assert_eq!(of(inode, offset, length), None, "{inode:?} {offset} {length}");
        }
    }
}
