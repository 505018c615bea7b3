//! The primary of a unit: it orders the operations, and acknowledges what all copies in sync have.
//!
//!   waiting --no overlap--> under way --copies that count have it--> acknowledged --all have it--> -
//!
//! Invariants
//! 1. Of operations that overlap, one is under way. The others wait in their order of arrival, and
//!    so do reads of a range that a write is changing.
//! 2. An acknowledgement needs the primary's own bytes, every lane that counts, that no copy which
//!    was dropped may still be read (`fence_until`), and that the lease says so if one was dropped
//!    that has every acknowledged byte so far (`left_at`).
//! 3. Nothing begins before all copies in sync have told what they had under way (`gather`), and
//!    nothing is acknowledged or read without the lease.

mod clean;
mod gather;
mod ongoing;
mod shipping;

use super::lane::{Lane, Sent, Subject};
use super::messages::{End, Message, Order};
use super::windows::{Party, PartyLoads, bytes, bytes_of};
use super::{
    Action, Answer, Context, Pulled, READ_LEASE_NANOS, REPEAT_NANOS, Read, Request, SLOW_NANOS,
    Timed,
};
use crate::change::{Change, CopyId, Reign};
use crate::kept::{Kept, Known, Outcome, REQUESTS_MAX};
use crate::operation::{ByteRange, Kind, Object, Operation, Source, Stamp};
use crate::table::{CopyState, Table, Unit};
use clean::Noticed;
use ongoing::Ongoing;
use shipping::Step;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::DaemonIndex;

/// Operations under way at a time.
const ONGOING_MAX: usize = 64;
/// Requests, reads and steps that wait at a time. More are answered `Busy`.
const WAITING_MAX: usize = 256;
/// Repairs of a copy's bytes that wait at a time. The copy asks again for others when they are read.
const REPAIRS_MAX: usize = 8;
/// Repairs of the primary's own bytes that wait at a time: most of the queue is for clients.
const REPAIRS_HERE_MAX: usize = WAITING_MAX / 4;

/// Something that begins when nothing overlaps it.
struct Waiting {
    object: Object,
    range: ByteRange,
    what: What,
    since: i64,
}

enum What {
    Request(Request),
    Step(DaemonIndex, Step),
    /// Bytes here that fail their checksum come from another copy.
    RepairHere,
}

/// See the module.
pub(super) struct Primary {
    pub of: Reign,
    /// Version of the table since which it is the primary.
    pub since: u64,
    pub is_successor: bool,
    lost_at: u64,
    /// Stamps given in this epoch.
    numbers: u64,
    ongoing: BTreeMap<u64, Ongoing>,
    ongoing_begun: u64,
    queue: VecDeque<Waiting>,
    reads: Vec<(Read, i64)>,
    lanes: Vec<Lane>,
    fence_until: i64,
    /// Version of the table with which the last copy left. Before it is granted, nothing happens
    /// that this copy has not.
    pub left_at: u64,
    is_gathered: bool,
    /// Objects that are dirty, and that the owners of their names were told of.
    noticed: BTreeMap<Object, Noticed>,
    /// Objects that are written back.
    writing: BTreeSet<Object>,
    hand_over: Option<CopyId>,
    proposed_at: i64,
}

impl Primary {
    pub(super) fn new(of: Reign, unit: &Unit, table: &Table, cx: &Context<'_>) -> Primary {
        // Copies may have been allowed to be read just before.
        let fence_until = if of.epoch == 1 { cx.now } else { cx.now + fenced(READ_LEASE_NANOS) };
        let mut primary = Primary {
            of,
            since: unit.since,
            is_successor: unit.is_successor,
            lost_at: unit.lost_at,
            numbers: 0,
            ongoing: BTreeMap::new(),
            ongoing_begun: 0,
            queue: VecDeque::new(),
            reads: Vec::new(),
            lanes: Vec::new(),
            fence_until,
            left_at: 0,
            is_gathered: false,
            noticed: BTreeMap::new(),
            writing: BTreeSet::new(),
            hand_over: None,
            proposed_at: cx.now - REPEAT_NANOS,
        };
        primary.adopt(unit, table, cx);
        primary
    }

    /// Takes over what the table says of the other copies.
    pub(super) fn adopt(&mut self, unit: &Unit, table: &Table, cx: &Context<'_>) {
        let row = |lane: &Lane| {
            let copy = unit.copy(lane.id.daemon).filter(|copy| copy.since == lane.id.since);
            copy.filter(|copy| copy.state != CopyState::Behind)
        };
        self.left_at = unit.copies.iter().map(|copy| copy.left_at).max().unwrap_or(0);
        let fence_until = &mut self.fence_until;
        self.lanes.retain(|lane| {
            let stays = row(lane).is_some();
            if !stays {
                *fence_until = lane.leased_until.max(*fence_until);
            }
            stays
        });
        for lane in &mut self.lanes {
            lane.is_in_sync = row(lane).is_some_and(|copy| copy.state == CopyState::InSync);
            lane.counts |= lane.is_in_sync;
        }
        for copy in unit.copies.iter().filter(|copy| copy.state != CopyState::Behind) {
            let is_new = self.lanes.iter().all(|lane| lane.id.daemon != copy.daemon);
            if is_new && copy.daemon != cx.own {
                let id = CopyId { of: self.of, daemon: copy.daemon, since: copy.since };
                let is_in_sync = copy.state == CopyState::InSync;
                self.lanes.push(Lane::new(id, is_in_sync, self.fence_until, cx.now));
            }
        }
        let lanes = &self.lanes;
        for one in self.ongoing.values_mut() {
            one.parts.retain(|part| lanes.iter().any(|lane| lane.id == part.lane));
        }
        self.ongoing.retain(|_, one| !one.is_step || !one.parts.is_empty());
        self.queue.retain(|waiting| match waiting.what {
            What::Step(daemon, _) => lanes.iter().any(|lane| lane.id.daemon == daemon),
            _ => true,
        });
        if self.hand_over.is_some_and(|to| !table.may_hand_over(to)) {
            self.hand_over = None;
        }
    }

    /// Whether the leases of all primaries before have ended.
    const fn is_alone(&self, cx: &Context<'_>) -> bool {
        !self.is_successor || cx.settled >= self.since
    }

    /// Whether reads and acknowledgements are allowed now.
    fn is_serving(&self, cx: &Context<'_>) -> bool {
        let is_still = self.hand_over.is_some() && self.ongoing.is_empty();
        self.is_gathered && self.is_alone(cx) && !is_still && cx.now < cx.lease_until
    }

    fn next_stamp(&mut self) -> Stamp {
        self.numbers += 1;
        Stamp { epoch: self.of.epoch, number: self.numbers }
    }

    /// A client's change.
    pub(super) fn request(&mut self, request: Request, kept: &Kept, cx: &mut Context<'_>) {
        let ticket = request.ticket;
        if request.epoch != self.of.epoch {
            return cx.answer(ticket, Answer::Stale);
        }
        let id = request.requested.id;
        let is_same =
            |it: &Waiting| matches!(&it.what, What::Request(one) if one.requested.id == id);
        if let Some(waiting) = self.queue.iter_mut().find(|it| is_same(it)) {
            waiting.what = What::Request(request);
        } else if !self.is_known(&request, kept, cx) {
            if request.born < self.lost_at {
                cx.answer(ticket, Answer::Lost);
            } else if self.has_place(&request, kept, cx) {
                // A removal is one of all bytes, whatever the request says.
                let is_removal = request.kind == Kind::Remove;
                let range = if is_removal { ByteRange::ALL } else { request.range };
                self.push(request.object, range, What::Request(request), cx);
            } else {
                cx.answer(ticket, Answer::Busy);
            }
        }
    }

    /// Whether a request is under way or has ended. Then it has its answer, or will have it.
    fn is_known(&mut self, request: &Request, kept: &Kept, cx: &mut Context<'_>) -> bool {
        let (id, ticket) = (request.requested.id, request.ticket);
        if let Some(one) = self.ongoing.values_mut().find(|it| it.is_of(id)) {
            one.asked_again(ticket);
            return true;
        }
        let answer = match kept.replies.find(id) {
            Known::New => return false,
            Known::Late => Answer::Stale,
            Known::Ended(_) if !self.is_serving(cx) => Answer::Busy,
            Known::Ended(Outcome::Done(stamp)) => Answer::Done(stamp),
            Known::Ended(Outcome::Failed) => Answer::Failed,
        };
        cx.answer(ticket, answer);
        true
    }

    /// Whether a new request fits the windows of its client: at this unit, whose replies are
    /// remembered up to a number, and at this daemon.
    fn has_place(&self, request: &Request, kept: &Kept, cx: &mut Context<'_>) -> bool {
        let client = request.requested.id.client;
        let is_of = |it: &Ongoing| it.client() == Some(client);
        let waits = |it: &&Waiting| match &it.what {
            What::Request(one) => one.requested.id.client == client,
            _ => false,
        };
        let count = self.ongoing.values().filter(|it| is_of(it)).count()
            + self.queue.iter().filter(waits).count();
        let bytes = bytes(request.kind, request.range);
        self.queue.len() < WAITING_MAX
            && count < REQUESTS_MAX
            && kept.replies.has_place(&request.requested, count)
            && cx.loads.has_place(Party::Client(client), cx.settings.client, bytes)
    }

    fn push(&mut self, object: Object, range: ByteRange, what: What, cx: &Context<'_>) {
        self.queue.push_back(Waiting { object, range, what, since: cx.now });
    }

    /// A client's read.
    pub(super) fn read(&mut self, read: Read, cx: &mut Context<'_>) {
        if read.born < self.lost_at {
            cx.answer(read.ticket, Answer::Lost);
        } else if self.reads.len() >= WAITING_MAX
            || !cx.loads.has_place(Party::Client(read.client), cx.settings.client, 0)
        {
            cx.answer(read.ticket, Answer::Busy);
        } else {
            self.reads.push((read, cx.now));
        }
    }

    /// Begins, acknowledges and answers what it can.
    pub(super) fn go_on(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        if !self.is_gathered {
            self.gather(kept, cx);
        }
        self.resume_ongoing(kept, cx);
        self.finish_ongoing(kept, cx);
        if self.is_serving(cx) && self.hand_over.is_none() {
            self.begin_waiting(kept, cx);
            self.finish_ongoing(kept, cx);
        }
        self.send_notices(kept, cx);
        self.send_marks(cx);
        self.serve_reads(cx);
        self.go_on_scanning(kept, cx);
        self.propose_in_sync(cx);
        self.stand_still(cx);
    }

    fn serve_reads(&mut self, cx: &mut Context<'_>) {
        if !self.is_serving(cx) {
            return;
        }
        let (ongoing, queue) = (&self.ongoing, &self.queue);
        self.reads.retain(|(read, _)| {
            let is_open = |it: &Ongoing| it.hides(read.object, read.range);
            // Bytes that fail their checksum are on their way.
            let is_repaired = |it: &Waiting| {
                let overlaps = it.object == read.object && it.range.overlaps(read.range);
                matches!(it.what, What::RepairHere) && overlaps
            };
            let waits = ongoing.values().any(is_open) || queue.iter().any(is_repaired);
            if !waits {
                cx.out.push(Action::Serve { ticket: read.ticket });
            }
            waits
        });
    }

    fn propose_in_sync(&mut self, cx: &mut Context<'_>) {
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_in_sync && lane.has_all()) {
            if cx.now - lane.proposed_at >= REPEAT_NANOS {
                lane.proposed_at = cx.now;
                cx.out.push(Action::Propose(Change::InSync { of: lane.id }));
            }
        }
    }

    /// Hands over to a copy.
    pub(super) fn advise(&mut self, to: CopyId, table: &Table) {
        let lane = self.lanes.iter().find(|lane| lane.id == to);
        if self.hand_over.is_none() && lane.is_some_and(Lane::has_all) && table.may_hand_over(to) {
            self.hand_over = Some(to);
        }
    }

    /// Whether another copy is to become the primary.
    pub(super) const fn hands_over(&self) -> bool {
        self.hand_over.is_some()
    }

    fn stand_still(&mut self, cx: &mut Context<'_>) {
        // The next primary waits for no lease.
        let is_ready = self.ongoing.is_empty() && self.is_alone(cx);
        let Some(of) = self.hand_over.filter(|_| is_ready) else { return };
        if cx.now - self.proposed_at >= REPEAT_NANOS {
            self.proposed_at = cx.now;
            cx.out.push(Action::Propose(Change::HandOver { of }));
        }
    }

    /// A message of a copy.
    pub(super) fn receive(&mut self, message: Message, kept: &Kept, cx: &mut Context<'_>) {
        match message {
            Message::Opened { lane, under_way } => self.opened(lane, under_way, kept, cx),
            Message::Ended { lane, number, end } => self.ended(lane, number, &end, cx),
            Message::AskLease { lane, sent } => self.lease(lane, sent, cx),
            Message::Repair { lane, object, range } => {
                let lane = self.lanes.iter().find(|it| it.id == lane && it.has_all());
                if let Some(daemon) = lane.map(|lane| lane.id.daemon)
                    && self.may_repair(daemon, object, range)
                    && kept.objects.contains_key(&object)
                {
                    self.push(object, range, What::Step(daemon, Step::Repair), cx);
                }
            }
            Message::Open { .. } | Message::Order { .. } | Message::Lease { .. } => {}
        }
    }

    /// Whether a repair of a copy's bytes may wait: it does not yet, and few others do.
    fn may_repair(&self, daemon: DaemonIndex, object: Object, range: ByteRange) -> bool {
        let is_of = |it: &&Waiting| matches!(it.what, What::Step(it, Step::Repair) if it == daemon);
        let mut waiting = self.queue.iter().filter(is_of);
        waiting.clone().count() < REPAIRS_MAX
            && self.queue.len() < WAITING_MAX
            && !waiting.any(|it| it.object == object && it.range == range)
    }

    /// Copies that have to get an object yet, of a unit that should have `goal` copies.
    pub(super) fn lacking(&self, object: Object, goal: usize) -> usize {
        let missing = goal.saturating_sub(1 + self.lanes.len());
        missing + self.lanes.iter().filter(|lane| lane.lacks(object)).count()
    }

    /// Operations that are under way for each client, and at each other copy.
    pub(super) fn loads(&self) -> PartyLoads {
        let mut loads = PartyLoads::default();
        for waiting in &self.queue {
            if let What::Request(request) = &waiting.what {
                let bytes = bytes(request.kind, request.range);
                add(&mut loads, Party::Client(request.requested.id.client), bytes);
            }
        }
        for one in self.ongoing.values() {
            if let Some(client) = one.client() {
                add(&mut loads, Party::Client(client), bytes_of(&one.operation));
            }
        }
        for (read, _) in &self.reads {
            add(&mut loads, Party::Client(read.client), 0);
        }
        for lane in &self.lanes {
            for bytes in lane.under_way() {
                add(&mut loads, Party::Peer(lane.id.daemon), bytes);
            }
        }
        loads
    }

    fn ended(&mut self, id: CopyId, number: u64, end: &End, cx: &mut Context<'_>) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) else { return };
        let Some(sent) = lane.sent.get_mut(&number).filter(|sent| !sent.is_done) else { return };
        match (end, &sent.order) {
            (End::Failed | End::Corrupt, _) => sent.fail(end, cx.own),
            (End::Differs(objects), Order::Inventory(_)) => {
                lane.sent.remove(&number);
                lane.compared(objects);
            }
            (End::Done, Order::Operation { operation, .. }) => {
                if operation.kind == Kind::Copy {
                    cx.counters.bytes_filled += operation.range.length();
                }
                match sent.subject {
                    Subject::Ongoing(_) => sent.is_done = true,
                    Subject::Other => {
                        lane.sent.remove(&number);
                    }
                }
            }
            (End::Done, Order::UnderWay(_) | Order::Replies(_) | Order::Clean(_)) => {
                lane.sent.remove(&number);
            }
            _ => {}
        }
    }

    /// A copy asks whether it may be read.
    fn lease(&mut self, id: CopyId, sent: i64, cx: &mut Context<'_>) {
        let is_serving = self.is_serving(cx) && self.hand_over.is_none();
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) else { return };
        // Not beyond the primary's own lease: a successor waits for the end of that alone.
        let length = READ_LEASE_NANOS.min(cx.lease_until.saturating_sub(cx.now));
        let length = length - length / 8;
        if is_serving && lane.is_in_sync && lane.has_all() && !lane.is_late() && length > 0 {
            lane.leased_until = cx.now + fenced(length);
            let message = Message::Lease { lane: id, sent, length, settled: lane.settled() };
            cx.out.push(Action::Send { to: id.daemon, message });
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, time: Timed, kept: &mut Kept, cx: &mut Context<'_>) {
        let may_fill = cx.granted >= self.left_at;
        let ongoing = &self.ongoing;
        let may_wait = |sent: &Sent| match sent.subject {
            Subject::Ongoing(id) => ongoing.get(&id).is_some_and(Ongoing::waits_for_bytes),
            Subject::Other => false,
        };
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_in_sync || may_fill) {
            let waited = lane.tick(time, may_wait, cx.out);
            let limit = if lane.counts { SLOW_NANOS } else { 4 * SLOW_NANOS };
            let is_slow = waited > limit || lane.fails();
            if is_slow && time.now - lane.proposed_at >= REPEAT_NANOS {
                lane.proposed_at = time.now;
                cx.out.push(Action::Propose(Change::Drop { of: lane.id }));
            }
        }
        self.expire(time.now, cx);
        self.give_up_torn(time.passed, kept, cx);
    }

    /// Requests that wait for too long are answered: their clients ask again.
    fn expire(&mut self, now: i64, cx: &mut Context<'_>) {
        self.queue.retain(|waiting| {
            let is_over = now - waiting.since > super::WAITING_NANOS;
            if let What::Request(request) = &waiting.what
                && is_over
            {
                cx.out.push(Action::Answer { ticket: request.ticket, answer: Answer::Busy });
                return false;
            }
            true
        });
        self.reads.retain(|(read, since)| {
            let is_over = now - since > super::WAITING_NANOS;
            if is_over {
                cx.out.push(Action::Answer { ticket: read.ticket, answer: Answer::Busy });
            }
            !is_over
        });
    }

    /// It is the primary no longer: all that wait ask the next one.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) {
        let requests = self.queue.iter().filter_map(|waiting| match &waiting.what {
            What::Request(request) => Some(request.ticket),
            _ => None,
        });
        let ongoing = self.ongoing.values_mut().filter_map(|one| one.ticket.take());
        let reads = self.reads.iter().map(|(read, _)| read.ticket);
        for ticket in requests.chain(ongoing).chain(reads) {
            cx.out.push(Action::Answer { ticket, answer: Answer::Stale });
        }
    }

    /// Bytes here fail their checksum. Whether another copy has them.
    pub(super) fn corrupt(&mut self, object: Object, range: ByteRange, cx: &Context<'_>) -> bool {
        let is_known = |it: &Waiting| {
            matches!(it.what, What::RepairHere) && it.object == object && it.range == range
        };
        if self.queue.iter().any(is_known) {
            return true;
        }
        let has_other = self.lanes.iter().any(|lane| lane.is_in_sync && lane.has_all());
        let others = self.queue.iter().filter(|it| matches!(it.what, What::RepairHere)).count();
        if has_other && self.queue.len() < WAITING_MAX && others < REPAIRS_HERE_MAX {
            self.push(object, range, What::RepairHere, cx);
        }
        has_other
    }

    /// A pull of this daemon has ended.
    pub(super) fn pulled(&mut self, stamp: Stamp, pulled: Pulled) {
        let mut ongoing = self.ongoing.values_mut();
        if let Some(one) = ongoing.find(|it| it.operation.stamp == stamp) {
            one.pulled(pulled);
        }
    }

    /// Copies in sync: units with few are filled first.
    pub(super) fn copies_in_sync(&self) -> usize {
        1 + self.lanes.iter().filter(|lane| lane.is_in_sync).count()
    }

    /// Whether it does nothing and waits for nothing.
    pub(super) fn is_idle(&self) -> bool {
        let is_quiet = |lane: &Lane| lane.is_in_sync && lane.is_level() && lane.is_told();
        self.is_gathered
            && self.ongoing.is_empty()
            && self.queue.is_empty()
            && self.reads.is_empty()
            && self.hand_over.is_none()
            && self.lanes.iter().all(is_quiet)
    }

    fn sources(&self, to: DaemonIndex, own: DaemonIndex) -> Vec<DaemonIndex> {
        // Another copy first: the primary has its clients to serve (O9).
        let others = self.lanes.iter().filter(|lane| lane.is_in_sync && lane.has_all());
        let others = others.map(|lane| lane.id.daemon).filter(|&daemon| daemon != to);
        others.chain([own]).collect()
    }

    /// The order for an operation, with the source that it should try next.
    fn order_of(
        &self,
        one: &Ongoing,
        to: DaemonIndex,
        (attempts, corrupt): (u32, u32),
        own: DaemonIndex,
    ) -> Order {
        let mut operation: Operation = one.operation;
        let mut source = one.source;
        if operation.kind == Kind::Copy {
            let sources = self.sources(to, own);
            let attempt = attempts as usize;
            source =
                Source::Copy(sources.get(attempt % sources.len().max(1)).copied().unwrap_or(own));
            if corrupt as usize >= 2 * sources.len() {
                operation.kind = Kind::Spoil;
            }
        } else if one.is_done_here() {
            source = Source::Copy(own);
        }
        Order::Operation { operation, source, replaces: one.replaces }
    }
}

fn add(loads: &mut PartyLoads, party: Party, bytes: u64) {
    loads.entry(party).or_default().add(bytes);
}

/// For how long a lease of a copy is respected: clocks of two hosts run apart by less than one in
/// 16.
const fn fenced(length: i64) -> i64 {
    length + length / 8
}
