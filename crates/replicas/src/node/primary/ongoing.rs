//! Operations that are under way: here and on the lanes.

use super::super::lane::{ATTEMPTS_MAX, Lane, Phase, Subject};
use super::super::messages::Order;
use super::super::windows::{Party, bytes_of};
use super::super::{Action, Answer, Context, Pulled, Request, TORN_NANOS};
use super::shipping::Step;
use super::{ONGOING_MAX, Primary, Waiting, What};
use crate::change::CopyId;
use crate::kept::{Kept, KeptStep};
use crate::operation::{ByteRange, Kind, Object, Operation, RequestId, Source, Stamp};
use wire::DaemonIndex;

/// The bytes of an operation at this daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Here {
    /// They are coming.
    Pulling,
    /// They are here.
    Done,
    /// Some may be here; their source has gone. The range stays closed until its client asks again,
    /// another copy turns out to have them, or `TORN_NANOS` have passed (`Primary::give_up`).
    Torn,
    /// The primary has nothing to do with it: a step of one lane.
    None,
}

/// An order of the operation to a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub lane: CopyId,
    pub number: u64,
}

pub(super) struct Ongoing {
    pub operation: Operation,
    pub here: Here,
    pub source: Source,
    pub parts: Vec<Part>,
    /// The request to answer.
    pub ticket: Option<u64>,
    is_told: bool,
    /// Its client asked again, so the bytes are there again.
    is_asked_again: bool,
    pub replaces: Option<Stamp>,
    /// It concerns one lane alone.
    pub is_step: bool,
    /// The last pull found bytes that fail their checksum; the copies that have such.
    is_corrupt: bool,
    corrupt_at: Vec<DaemonIndex>,
    /// Pulls from other copies that found no bytes there.
    failures: u32,
    waited: i64,
}

impl Ongoing {
    pub(super) fn new(operation: Operation, here: Here, source: Source) -> Ongoing {
        Ongoing {
            operation,
            here,
            source,
            parts: Vec::new(),
            ticket: None,
            is_told: false,
            is_asked_again: false,
            replaces: None,
            is_step: false,
            is_corrupt: false,
            corrupt_at: Vec::new(),
            failures: 0,
            waited: 0,
        }
    }

    /// A pull of its bytes to this daemon has ended.
    pub(super) fn pulled(&mut self, pulled: Pulled) {
        if self.here != Here::Pulling {
            return;
        }
        self.here = if pulled == Pulled::Done { Here::Done } else { Here::Torn };
        self.waited = 0;
        self.is_corrupt = pulled == Pulled::Corrupt;
        if let Source::Copy(at) = self.source {
            match pulled {
                Pulled::Corrupt => self.corrupt_at.push(at),
                Pulled::Failed | Pulled::Torn => self.failures += 1,
                Pulled::Done => {}
            }
        }
    }

    pub(super) fn is_of(&self, id: RequestId) -> bool {
        self.operation.requested.is_some_and(|requested| requested.id == id)
    }

    pub(super) fn client(&self) -> Option<u64> {
        self.operation.requested.map(|requested| requested.id.client)
    }

    pub(super) fn is_done_here(&self) -> bool {
        matches!(self.here, Here::Done | Here::None)
    }

    pub(super) fn asked_again(&mut self, ticket: u64) {
        self.ticket = Some(ticket);
        (self.is_told, self.is_asked_again, self.failures) = (false, true, 0);
    }

    /// Whether nobody could go on if the other copies had it: the bytes are not here, and their source is
    /// not given up yet. A copy that waits for them is not slow.
    pub(super) const fn waits_for_bytes(&self) -> bool {
        matches!(self.here, Here::Pulling | Here::Torn) && self.waited <= TORN_NANOS
    }

    fn is_behind(&self) -> bool {
        self.operation.requested.is_some_and(|requested| requested.is_behind)
    }

    /// Whether a read waits for it: other copies might not have what it would show.
    pub(super) fn hides(&self, object: Object, range: ByteRange) -> bool {
        let is_open = !(self.is_behind() && self.here == Here::Done);
        let changes = self.operation.is_change() || self.here == Here::Pulling;
        is_open && changes && self.operation.overlaps(object, range)
    }
}

impl Primary {
    /// Begins what waits and overlaps nothing before it.
    pub(super) fn begin_waiting(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        let mut ahead: Vec<(Object, ByteRange)> = Vec::new();
        let mut index = 0;
        while let Some(waiting) = self.queue.get(index) {
            let (object, range) = (waiting.object, waiting.range);
            let is_behind = |it: &(Object, ByteRange)| it.0 == object && it.1.overlaps(range);
            let is_blocked = self.ongoing.values().any(|it| it.operation.overlaps(object, range))
                || ahead.iter().any(is_behind);
            if is_blocked {
                ahead.push((object, range));
                index += 1;
                continue;
            }
            // Without a place nothing that is smaller passes: large ones would never begin.
            if !self.may_begin(waiting, cx) {
                break;
            }
            let Some(waiting) = self.queue.remove(index) else { break };
            cx.loads.leave(self.of.unit);
            match waiting.what {
                What::Request(request) => self.begin_request(&request, range, kept, cx),
                What::Step(daemon, step) => {
                    self.begin_step(daemon, step, (object, range), kept, cx);
                }
                What::RepairHere => self.begin_repair(object, range, kept, cx),
            }
        }
    }

    /// Whether the windows of this daemon and of the others have a place for what waits.
    fn may_begin(&self, waiting: &Waiting, cx: &mut Context<'_>) -> bool {
        if self.ongoing.len() >= ONGOING_MAX || !self.lanes.iter().all(Lane::has_place) {
            return false;
        }
        let length = waiting.range.length();
        let (here, there) = match &waiting.what {
            What::Request(request) if request.kind == Kind::Write => (Some(length), length),
            What::Request(_) | What::Step(_, Step::Begin) => (None, 0),
            What::Step(..) => (None, length),
            What::RepairHere => (Some(length), 0),
        };
        let only = match waiting.what {
            What::Step(daemon, _) => Some(daemon),
            _ => None,
        };
        let peers = self.lanes.iter().map(|lane| lane.id.daemon);
        let peers = peers.filter(|peer| only.is_none_or(|only| only == *peer));
        let unit = self.of.unit;
        let own = here.map(|bytes| (cx.own, bytes));
        let lacking =
            own.into_iter().chain(peers.map(|peer| (peer, there))).find(|&(at, bytes)| {
                let has_place = match at == cx.own {
                    true => cx.may_pull(unit, bytes),
                    false => cx.loads.has_place(Party::Peer(at), cx.settings.peer, bytes),
                };
                !has_place || !cx.loads.is_next(unit, Party::Peer(at))
            });
        if let Some((at, _)) = lacking {
            cx.loads.claim(unit, Party::Peer(at));
        }
        lacking.is_none()
    }

    fn begin_request(
        &mut self,
        request: &Request,
        range: ByteRange,
        kept: &mut Kept,
        cx: &mut Context<'_>,
    ) {
        let operation = Operation {
            stamp: self.next_stamp(),
            object: request.object,
            range,
            kind: request.kind,
            requested: Some(request.requested),
        };
        let source = Source::Client(request.requested.id);
        cx.keep(kept, KeptStep::Begin(operation));
        let mut one = Ongoing::new(operation, Here::Pulling, source);
        one.ticket = Some(request.ticket);
        self.change_here(&mut one, kept, cx);
        self.add_ongoing(one, cx);
    }

    /// Bytes here come from another copy.
    fn begin_repair(
        &mut self,
        object: Object,
        range: ByteRange,
        kept: &mut Kept,
        cx: &mut Context<'_>,
    ) {
        let from = self.lanes.iter().find(|lane| lane.is_in_sync && lane.has_all());
        let Some(from) = from.map(|lane| lane.id.daemon) else { return };
        let stamp = self.next_stamp();
        let operation = Operation { stamp, object, range, kind: Kind::Copy, requested: None };
        cx.keep(kept, KeptStep::Begin(operation));
        let mut one = Ongoing::new(operation, Here::Pulling, Source::Copy(from));
        self.change_here(&mut one, kept, cx);
        self.ongoing_begun += 1;
        self.ongoing.insert(self.ongoing_begun, one);
        cx.counters.repairs += 1;
    }

    /// Changes the bytes of this copy, or asks for them.
    pub(super) fn change_here(&self, one: &mut Ongoing, kept: &mut Kept, cx: &mut Context<'_>) {
        let operation = one.operation;
        if operation.has_bytes() {
            one.here = Here::Pulling;
            cx.pull(self.of, &operation, one.source);
        } else {
            one.here = Here::Done;
            cx.out.push(Action::Change { unit: self.of.unit, operation });
            cx.keep(kept, KeptStep::Done(operation.stamp));
        }
    }

    /// Orders the operation to every lane that takes it.
    pub(super) fn add_ongoing(&mut self, one: Ongoing, cx: &mut Context<'_>) {
        let object = one.operation.object;
        self.ongoing_begun += 1;
        let id = self.ongoing_begun;
        let mut takes = Vec::new();
        for lane in &mut self.lanes {
            let takes_it = match &mut lane.phase {
                Phase::Opening => false,
                Phase::Level => true,
                Phase::Scanning(scan) => {
                    let takes_it = scan.takes(object);
                    if takes_it && one.operation.kind == Kind::Remove {
                        scan.removed(object);
                    }
                    takes_it
                }
            };
            if takes_it {
                takes.push(lane.id);
            }
        }
        self.ongoing.insert(id, one);
        for lane in takes {
            self.order_ongoing(id, lane, cx);
        }
    }

    pub(super) fn order_ongoing(&mut self, id: u64, lane: CopyId, cx: &mut Context<'_>) {
        let Some(one) = self.ongoing.get(&id) else { return };
        let order = self.order_of(one, lane.daemon, (0, 0), cx.own);
        let found = self.lanes.iter_mut().find(|it| it.id == lane);
        let Some(number) = found.map(|it| it.order(Subject::Ongoing(id), order, cx.now, cx.out))
        else {
            return;
        };
        if let Some(one) = self.ongoing.get_mut(&id) {
            let bytes = bytes_of(&one.operation);
            one.parts.push(Part { lane, number });
            cx.loads.add(self.of.unit, Party::Peer(lane.daemon), bytes);
        }
    }

    /// Whether all copies have it. One that has not opened its lane has no order of it yet.
    pub(super) fn is_everywhere(&self, one: &Ongoing) -> bool {
        !self.is_awaited() && one.is_done_here() && one.parts.iter().all(|part| self.has(part))
    }

    fn has(&self, part: &Part) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.id == part.lane);
        lane.and_then(|lane| lane.sent.get(&part.number)).is_some_and(|sent| sent.is_done)
    }

    /// Tries again where bytes did not come from their source.
    pub(super) fn resume_ongoing(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        let mut pulled = Vec::new();
        let torn = self.ongoing.iter().filter(|(_, it)| it.here == Here::Torn);
        for id in torn.map(|(&id, _)| id).collect::<Vec<u64>>() {
            let Some(mut one) = self.ongoing.remove(&id) else { continue };
            if !one.operation.is_change() {
                self.resume_repair(id, one, kept, cx);
                continue;
            }
            // Only a copy in sync gives bytes, and one that cannot is not asked for ever: without
            // another source the request fails.
            let is_holder = |part: &&Part| {
                let mut lanes = self.lanes.iter();
                let gives =
                    one.failures < ATTEMPTS_MAX && !one.corrupt_at.contains(&part.lane.daemon);
                gives && self.has(part) && lanes.any(|it| it.id == part.lane && it.is_in_sync)
            };
            let holder = one.parts.iter().find(is_holder).map(|it| it.lane.daemon);
            if let Some(holder) = holder {
                one.source = Source::Copy(holder);
                self.change_here(&mut one, kept, cx);
            } else if one.is_asked_again
                && let Some(requested) = one.operation.requested
            {
                one.is_asked_again = false;
                one.source = Source::Client(requested.id);
                self.change_here(&mut one, kept, cx);
            }
            if one.here == Here::Pulling {
                pulled.push(id);
            }
            self.ongoing.insert(id, one);
        }
        self.resume_orders(&pulled, cx);
    }

    /// Bytes that were to be repaired did not come. From a copy that is not reached they may come
    /// when they are read the next time.
    fn resume_repair(&mut self, id: u64, mut one: Ongoing, kept: &mut Kept, cx: &mut Context<'_>) {
        let is_other = |lane: &&Lane| {
            lane.is_in_sync && lane.has_all() && !one.corrupt_at.contains(&lane.id.daemon)
        };
        let next = self.lanes.iter().find(is_other).map(|lane| lane.id.daemon);
        if let Some(next) = next.filter(|_| one.is_corrupt) {
            one.source = Source::Copy(next);
            self.change_here(&mut one, kept, cx);
            self.ongoing.insert(id, one);
            return;
        }
        cx.settle(kept, one.operation.stamp);
        if one.is_corrupt {
            let operation = Operation { kind: Kind::Spoil, ..one.operation };
            cx.out.push(Action::Change { unit: self.of.unit, operation });
        }
    }

    /// Orders again what failed: once for each pull here that begins (`pulled`), and as often as a copy
    /// may fail to get bytes that are here.
    fn resume_orders(&mut self, pulled: &[u64], cx: &mut Context<'_>) {
        let mut again = Vec::new();
        for lane in &self.lanes {
            for (&number, sent) in lane.sent.iter().filter(|(_, it)| it.is_failed && !it.is_done) {
                let Subject::Ongoing(id) = sent.subject else { continue };
                let Some(one) = self.ongoing.get(&id) else { continue };
                if one.is_done_here() || pulled.contains(&id) {
                    let order =
                        self.order_of(one, lane.id.daemon, (sent.attempts, sent.corrupt), cx.own);
                    again.push((lane.id, number, order));
                }
            }
        }
        for (id, number, order) in again {
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) {
                lane.repeat(number, order, cx.now, cx.out);
            }
        }
    }

    /// A client that does not come back leaves bytes that no copy has as a whole.
    pub(super) fn give_up_torn(&mut self, passed: i64, kept: &mut Kept, cx: &mut Context<'_>) {
        let mut over = Vec::new();
        // One that says what it has next may have all of it.
        let is_awaited = self.is_awaited();
        for (&id, one) in self.ongoing.iter_mut().filter(|(_, it)| it.here == Here::Torn) {
            one.waited += passed;
            if one.waited > TORN_NANOS && !is_awaited {
                over.push(id);
            }
        }
        let mut forgotten: Vec<CopyId> = Vec::new();
        for id in over {
            let Some(one) = self.ongoing.get(&id) else { continue };
            let is_coming = one.parts.iter().any(|part| {
                let lane = self.lanes.iter().find(|lane| lane.id == part.lane);
                let sent = lane.and_then(|lane| lane.sent.get(&part.number));
                sent.is_some_and(|sent| !sent.is_failed && !sent.is_done)
            });
            if !is_coming {
                forgotten.extend(self.give_up(id, kept, cx));
            }
        }
        // Those that were told of an end remember a failure.
        for lane in self.lanes.iter_mut().filter(|lane| forgotten.contains(&lane.id)) {
            let replies = Order::Replies(kept.settled_replies());
            lane.order(Subject::Other, replies, cx.now, cx.out);
        }
    }

    /// The bytes here become those of all copies. If they are none of the request's, and no copy has all
    /// of it, the request is forgotten, so a repetition is made as a new one. Else it has failed. So has
    /// one whose client may have gone on: a repetition would come behind what the client did since.
    /// Returns the lanes that were told of a request that is forgotten.
    fn give_up(&mut self, id: u64, kept: &mut Kept, cx: &mut Context<'_>) -> Vec<CopyId> {
        let stamp = self.next_stamp();
        let Some(one) = self.ongoing.get(&id) else { return Vec::new() };
        let before = one.operation.stamp;
        let is_forgotten = cx.pulls.is_untouched(self.of.unit, before)
            && !one.is_behind()
            && !one.parts.iter().any(|part| self.has(part));
        let lanes = self.end_parts(id);
        let Some(one) = self.ongoing.get_mut(&id) else { return Vec::new() };
        if let Some(requested) = one.operation.requested.take()
            && !is_forgotten
        {
            cx.keep(kept, KeptStep::Failed(requested, stamp));
        }
        cx.settle(kept, before);
        // Another stamp: a copy may have all bytes under the first one.
        (one.operation.stamp, one.replaces) = (stamp, Some(before));
        cx.keep(kept, KeptStep::Begin(one.operation));
        cx.keep(kept, KeptStep::Done(stamp));
        one.here = Here::Done;
        if let Some(ticket) = one.ticket.take() {
            cx.answer(ticket, if is_forgotten { Answer::Busy } else { Answer::Failed });
        }
        for &lane in &lanes {
            self.order_ongoing(id, lane, cx);
        }
        if is_forgotten { lanes } else { Vec::new() }
    }

    /// The orders of an operation have all ended; tells where they were. They stay until that which takes
    /// their place has ended, too: a copy that was told before that they are settled would show what it
    /// has.
    fn end_parts(&mut self, id: u64) -> Vec<CopyId> {
        let mut at = Vec::new();
        for part in self.ongoing.get(&id).into_iter().flat_map(|one| &one.parts) {
            let lane = self.lanes.iter_mut().find(|lane| lane.id == part.lane);
            if let Some(sent) = lane.and_then(|lane| lane.sent.get_mut(&part.number)) {
                (sent.is_done, sent.attempts) = (true, 0);
                at.push(part.lane);
            }
        }
        at
    }

    /// An operation is over: its orders are settled.
    fn forget_parts(&mut self, id: u64) {
        for part in self.ongoing.get(&id).into_iter().flat_map(|one| &one.parts) {
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == part.lane) {
                lane.sent.remove(&part.number);
            }
        }
    }

    /// Acknowledges what every copy that counts has, and forgets what all copies have.
    pub(super) fn finish_ongoing(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        let is_stored = |it: &&Ongoing| it.is_behind() && it.here == Here::Done;
        let behind = self.ongoing.values().filter(is_stored).filter(|it| it.operation.has_bytes());
        let behind: u64 = behind.map(|one| one.operation.range.length()).sum();
        let may_answer = self.is_serving(cx);
        let is_fenced = cx.now < self.fence_until || cx.granted < self.left_at || self.is_awaited();
        let ready: Vec<u64> =
            self.ongoing.iter().filter(|(_, it)| it.is_done_here()).map(|(&id, _)| id).collect();
        for id in ready {
            let Some(one) = self.ongoing.get(&id) else { continue };
            let counts =
                |part: &Part| self.lanes.iter().any(|lane| lane.id == part.lane && lane.counts);
            let is_everywhere = self.is_everywhere(one);
            let is_noticed = self.is_noticed(one);
            let is_safe =
                is_noticed && one.parts.iter().all(|part| self.has(part) || !counts(part));
            let Some(one) = self.ongoing.get_mut(&id) else { continue };
            let stamp = one.operation.stamp;
            if is_safe
                && !is_fenced
                && let Some(ticket) = one.ticket.take()
            {
                let answer = if may_answer { Answer::Done(stamp) } else { Answer::Busy };
                cx.answer(ticket, answer);
            }
            if one.is_behind()
                && !one.is_told
                && may_answer
                && behind <= cx.settings.behind_bytes_max
                && let Some(ticket) = one.ticket
            {
                one.is_told = true;
                cx.answer(ticket, Answer::Stored);
            }
            if is_everywhere && is_noticed && !is_fenced {
                let (object, kind) = (one.operation.object, one.operation.kind);
                if kind == Kind::Remove && !one.is_step {
                    self.forget_notices(object);
                }
                cx.settle(kept, stamp);
                self.forget_parts(id);
                self.ongoing.remove(&id);
            }
        }
    }
}
