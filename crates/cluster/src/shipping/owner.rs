//! The owner's side of one service: batches, lanes, the records that it keeps for followers that return,
//! and operations that wait until they are replicated.

use super::{Contents, Lane, Parcel, Position, Receipt};
use crate::REPEAT_NANOS;
use crate::change::{Change, Following, Tenure};
use crate::membership::{Follower, Seat};
use encoding::Encode;
use std::collections::VecDeque;
use std::rc::Rc;
use wire::DaemonIndex;

/// How long records wait for others before they are sent (the paper's Tsyn), unless somebody waits.
pub const SHIP_NANOS: i64 = 100_000_000;
/// Bytes of records after which a batch is sent at once, and of batches that wait and become one.
pub const BATCH_BYTES: usize = 256 << 10;
/// Parcels of a lane that are on their way at once.
const WINDOW: usize = 8;
/// Bytes that a lane keeps for a follower; beyond them it begins anew.
pub const LANE_BYTES_MAX: usize = 64 << 20;
/// Bytes of records that an owner keeps for followers that return: about 30,000 operations, so that a
/// daemon that starts again within seconds needs no snapshot.
pub const LOG_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(LOG_BYTES_MAX <= LANE_BYTES_MAX);
/// A follower that is in sync and sends no receipt for this long is dropped.
pub const SILENCE_NANOS: i64 = 1_000_000_000;
/// A follower that joins and sends no receipt for this long is dropped if another daemon may follow: it
/// stands still, or its disk is full.
pub const JOIN_SILENCE_NANOS: i64 = 5_000_000_000;
/// A follower that is in sync gets a snapshot anew once it has stored this many bytes of records since
/// the last one, and `COPY_FACTOR` times the bytes of that: its copy does not grow for ever.
pub const COPY_BYTES_MAX: usize = 64 << 20;
/// See `COPY_BYTES_MAX`. As the owner's own log is rewritten.
const COPY_FACTOR: usize = 4;

/// An action of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnerOutput {
    /// Sends an encoded parcel. It may be lost.
    Send {
        /// The follower.
        to: DaemonIndex,
        /// The parcel.
        parcel: Vec<u8>,
    },
    /// Calls `Owner::slice` for this lane, until the snapshot is complete.
    Slice(Lane),
    /// A follower that returned gets the delta.
    Resumed,
    /// The operation is replicated.
    Replicated {
        /// As in `Owner::wait`.
        ticket: u64,
    },
    /// Proposes a change.
    Propose(Change),
}

#[derive(Clone)]
enum Load {
    Ask,
    Snapshot,
    Records(Rc<[u8]>),
    Slice(Rc<[u8]>),
    Complete,
}

impl Load {
    fn contents(&self) -> Contents<'_> {
        match self {
            Load::Records(batch) => Contents::Records(batch),
            Load::Slice(batch) => Contents::Slice(batch),
            Load::Complete => Contents::Complete,
            Load::Ask => Contents::Ask,
            Load::Snapshot => Contents::Snapshot,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Load::Records(batch) | Load::Slice(batch) => batch.len(),
            Load::Ask | Load::Snapshot | Load::Complete => 0,
        }
    }
}

/// A parcel that has no receipt yet.
struct Kept {
    load: Load,
    /// Records of the service up to the end of this parcel.
    records: u64,
}

/// How far a follower has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaneProgress {
    /// It is asked for the position of its copy.
    Asked,
    /// It receives the snapshot.
    Snapshot,
    /// The snapshot ends with the parcel of this number; the delta has none, and begins after it.
    Records { complete: u64 },
    /// From now on it counts. It is in sync once it has the first `needed` records, some of which were
    /// acknowledged without it.
    Joining { needed: u64 },
    /// It was proposed to be in sync.
    Proposed,
    /// It is in sync.
    InSync,
}

struct LaneState {
    follower: DaemonIndex,
    since: u64,
    lane: Lane,
    progress: LaneProgress,
    /// Whether the membership counts on it: one that stayed in sync does before it was asked.
    is_in_sync: bool,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Number of the first kept parcel.
    first: u64,
    /// Parcels of `kept` that were sent, and those that were ever: what these contain stays.
    sent: usize,
    ever_sent: usize,
    sent_at: i64,
    heard_at: i64,
    proposed_at: Option<i64>,
    /// Records of the service that the follower has.
    records: u64,
    /// It was in sync when the lane began, after so many records: all later ones are kept for it,
    /// although it was not asked yet.
    stays_since: Option<u64>,
    copy: CopyLength,
    /// Records are missing (`Owner::lose`): it gets nothing more, and is dropped.
    is_torn: bool,
}

/// How long the copy of a follower is.
#[derive(Default)]
struct CopyLength {
    /// Bytes of its last snapshot, and of records since that began.
    snapshot: usize,
    since: usize,
    /// A snapshot is sent to a follower that is in sync.
    is_made_anew: bool,
}

impl CopyLength {
    fn note(&mut self, load: &Load) {
        match load {
            Load::Snapshot => (self.snapshot, self.since) = (0, 0),
            Load::Slice(batch) => self.snapshot += batch.len(),
            Load::Records(batch) => self.since += batch.len(),
            Load::Complete => self.is_made_anew = false,
            Load::Ask => {}
        }
    }

    const fn is_too_long(&self, bytes_max: usize) -> bool {
        let grown = self.snapshot.saturating_mul(COPY_FACTOR);
        self.since > bytes_max && self.since > grown && !self.is_made_anew
    }
}

impl LaneState {
    /// After which time what has no receipt is sent again. The first question often comes before its
    /// follower knows that it is one, and is short.
    const fn repeat_nanos(&self) -> i64 {
        if matches!(self.progress, LaneProgress::Asked) { REPEAT_NANOS / 8 } else { REPEAT_NANOS }
    }

    /// Parcels that may be on their way. Before it has said what it has, the question alone.
    const fn window(&self) -> usize {
        if matches!(self.progress, LaneProgress::Asked) { 1 } else { WINDOW }
    }

    const fn counts(&self) -> bool {
        let is_behind = matches!(
            self.progress,
            LaneProgress::Asked | LaneProgress::Snapshot | LaneProgress::Records { .. }
        );
        self.is_in_sync || !is_behind
    }

    /// The membership counts on it. One that was not asked yet is to say first what it has.
    const fn count_on(&mut self) {
        self.is_in_sync = true;
        if !matches!(self.progress, LaneProgress::Asked) {
            self.progress = LaneProgress::InSync;
        }
    }

    const fn as_follower(&self) -> Follower {
        let (daemon, since, is_in_sync) = (self.follower, self.since, self.is_in_sync);
        Follower { daemon, since, is_in_sync, had_all: false }
    }

    const fn following(&self) -> Following {
        Following { of: self.lane.of, follower: self.follower, since: self.since }
    }

    fn keep(&mut self, load: Load, records: u64) {
        self.kept_bytes += load.bytes();
        self.copy.note(&load);
        self.kept.push_back(Kept { load, records });
    }

    /// Nothing more is sent: what would follow has a gap.
    fn tear(&mut self) {
        (self.is_torn, self.proposed_at) = (true, None);
        self.kept.clear();
        (self.kept_bytes, self.sent, self.ever_sent) = (0, 0, 0);
    }

    /// Batches that waited for the window become one parcel. Else a follower on a link that takes long
    /// would get a window of single operations in that time, and never have all of them.
    fn join_waiting(&mut self) {
        if self.sent < self.ever_sent {
            return;
        }
        let (mut batches, mut bytes, mut records) = (Vec::new(), 0, 0);
        for kept in self.kept.range(self.sent..) {
            let Load::Records(batch) = &kept.load else { break };
            bytes += batch.len();
            if bytes > BATCH_BYTES && !batches.is_empty() {
                break;
            }
            batches.push(Rc::clone(batch));
            records = kept.records;
        }
        let fewer = batches.len().saturating_sub(1);
        if fewer == 0 {
            return;
        }
        self.kept.drain(self.sent..=self.sent + fewer);
        let load = Load::Records(batches.concat().into());
        self.kept.insert(self.sent, Kept { load, records });
        if let LaneProgress::Records { complete } = &mut self.progress
            && *complete > self.first + self.sent as u64
        {
            *complete -= fewer as u64;
        }
    }
}

/// The last records of an owner.
struct Recent {
    /// The position of the copy with which the owner began, if that is known.
    began_with: Option<Position>,
    batches: VecDeque<Kept>,
    bytes: usize,
    bytes_max: usize,
    /// Records before the first batch.
    before: u64,
}

impl Recent {
    fn keep(&mut self, batch: &Rc<[u8]>, records: u64) {
        self.bytes += batch.len();
        self.batches.push_back(Kept { load: Load::Records(Rc::clone(batch)), records });
        while self.bytes > self.bytes_max
            && let Some(first) = self.batches.pop_front()
        {
            self.bytes -= first.load.bytes();
            self.before = first.records;
        }
    }

    /// Nothing is kept of the first `records`.
    fn forget(&mut self, records: u64) {
        self.batches.clear();
        (self.bytes, self.before) = (0, records);
    }

    /// The records of the owner of `epoch`, which has `sealed`, that a copy has, if all later ones are
    /// here.
    fn resumes_at(&self, (epoch, sealed): (u64, u64), position: Position) -> Option<u64> {
        let is_beginning = position.is_exact && self.began_with == Some(position);
        let records = if position.epoch == epoch {
            position.records
        } else if is_beginning {
            0
        } else {
            return None;
        };
        let is_known = (self.before..=sealed).contains(&records);
        (is_known && self.bytes_max > 0).then_some(records)
    }
}

/// One service that this daemon owns.
pub struct Owner {
    of: Tenure,
    recent: Recent,
    lanes: Vec<LaneState>,
    lanes_begun: u64,
    filling: Vec<u8>,
    /// Records appended since this owner began.
    appended: u64,
    /// Records in sealed batches.
    sealed: u64,
    sealed_at: i64,
    /// Whether somebody waits for the records that are not sealed yet.
    is_urgent: bool,
    waiting: VecDeque<(u64, u64)>,
    copy_bytes_max: usize,
    /// See `await_replay`.
    is_replaying: bool,
}

/// How far a follower is behind its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lag {
    /// The follower.
    pub follower: DaemonIndex,
    /// Records that it does not have for sure.
    pub records: u64,
    /// Bytes that wait for its receipt, of those records and of a snapshot.
    pub bytes: usize,
}

impl Owner {
    /// The owner begins, with a copy of this position. It keeps `log_bytes_max` bytes of records.
    #[must_use]
    pub fn new(of: Tenure, began_with: Option<Position>, log_bytes_max: usize, now: i64) -> Owner {
        Owner {
            of,
            recent: Recent {
                began_with,
                batches: VecDeque::new(),
                bytes: 0,
                bytes_max: log_bytes_max,
                before: 0,
            },
            lanes: Vec::new(),
            lanes_begun: 0,
            filling: Vec::new(),
            appended: 0,
            sealed: 0,
            sealed_at: now,
            is_urgent: false,
            waiting: VecDeque::new(),
            copy_bytes_max: COPY_BYTES_MAX,
            is_replaying: false,
        }
    }

    /// Sends nothing until `replayed`: followers keep what they have, so that one of them can take the
    /// service over if the copy of this owner is of no use.
    pub const fn await_replay(&mut self) {
        self.is_replaying = true;
    }

    /// Ends `await_replay`.
    pub const fn replayed(&mut self) {
        self.is_replaying = false;
    }

    /// Whether `await_replay` has not ended.
    #[must_use]
    pub const fn is_replaying(&self) -> bool {
        self.is_replaying
    }

    /// As `COPY_BYTES_MAX`, for tests.
    pub const fn set_copy_bytes_max(&mut self, bytes: usize) {
        self.copy_bytes_max = bytes;
    }

    /// How far each follower is behind.
    pub fn lags(&self) -> impl Iterator<Item = Lag> {
        self.lanes.iter().map(|lane| Lag {
            follower: lane.follower,
            records: self.appended.saturating_sub(lane.records),
            bytes: lane.kept_bytes + self.filling.len(),
        })
    }

    /// Bytes that wait for receipts of the follower of a lane; `None`: the lane has ended.
    #[must_use]
    pub fn backlog(&self, lane: Lane) -> Option<usize> {
        self.lanes.iter().find(|it| it.lane == lane).map(|it| it.kept_bytes)
    }

    /// The same for the follower that is furthest behind of those for which operations wait.
    #[must_use]
    pub fn backlog_max(&self) -> usize {
        let counted = self.lanes.iter().filter(|it| it.counts());
        counted.map(|it| it.kept_bytes).max().unwrap_or(0)
    }

    /// The service, and the epoch of this owner.
    #[must_use]
    pub const fn of(&self) -> Tenure {
        self.of
    }

    /// Whether anybody may ask for records.
    fn keeps(&self) -> bool {
        !self.lanes.is_empty() || self.recent.bytes_max > 0
    }

    /// A record was appended to the log.
    pub fn append(&mut self, record: &[u8]) {
        self.appended += 1;
        if self.keeps() {
            super::put_record(&mut self.filling, record);
            if self.filling.len() >= BATCH_BYTES {
                // A parcel has an end, however many records come between two ticks.
                self.seal();
            }
        }
    }

    /// Records that were appended to the log are not known here. Followers that count are dropped, so
    /// that they begin anew, as others do at once.
    pub fn lose(&mut self, now: i64) {
        self.seal();
        // As if they were one record, which nobody gets.
        self.appended += 1;
        self.sealed = self.appended;
        self.recent.forget(self.appended);
        let joins = |lane: &LaneState| !lane.counts();
        let anew: Vec<_> =
            self.lanes.iter().filter(|it| joins(it)).map(LaneState::as_follower).collect();
        self.lanes.retain(|it| !joins(it));
        self.lanes.iter_mut().for_each(LaneState::tear);
        anew.iter().for_each(|follower| self.begin(follower, now));
    }

    /// An operation waits until all that was appended is replicated: `OwnerOutput::Replicated`.
    pub fn wait(&mut self, ticket: u64) {
        self.waiting.push_back((ticket, self.appended));
        self.is_urgent = true;
    }

    /// The records so far are sent with the next `tick`.
    pub const fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// The next slice of the snapshot of a lane: records of the state as it is now, each with its
    /// length.
    pub fn slice(&mut self, lane: Lane, batch: &[u8], is_last: bool) {
        self.seal();
        let sealed = self.sealed;
        let Some(state) = self.lanes.iter_mut().find(|it| it.lane == lane) else { return };
        let is_made_anew = state.copy.is_made_anew;
        if state.progress != LaneProgress::Snapshot && !is_made_anew || state.is_torn {
            return;
        }
        if !batch.is_empty() {
            state.keep(Load::Slice(batch.into()), sealed);
        }
        if is_last {
            state.keep(Load::Complete, sealed);
            if is_made_anew {
                return;
            }
            let complete = state.first + state.kept.len() as u64 - 1;
            state.progress = LaneProgress::Records { complete };
        }
    }

    /// The followers of the membership: lanes begin and end. `seat` has the epoch of this owner. Whether
    /// one began, so that there is something to send.
    pub fn follow(&mut self, seat: &Seat, now: i64, out: &mut Vec<OwnerOutput>) -> bool {
        let begun_before = self.lanes_begun;
        self.lanes
            .retain(|lane| seat.follower(lane.follower).is_some_and(|it| it.since == lane.since));
        for follower in &seat.followers {
            let known = self.lanes.iter_mut().find(|it| it.follower == follower.daemon);
            match known {
                Some(lane) if follower.is_in_sync => lane.count_on(),
                Some(_) => {}
                None => self.begin(follower, now),
            }
        }
        if !self.keeps() {
            self.filling = Vec::new();
            self.sealed = self.appended;
        }
        self.release(out);
        self.lanes_begun > begun_before
    }

    fn begin(&mut self, follower: &Follower, now: i64) {
        let Follower { daemon: follower, since, is_in_sync, .. } = *follower;
        self.seal();
        self.sealed = self.appended;
        self.lanes_begun += 1;
        let lane = Lane { of: self.of, number: self.lanes_begun };
        let mut lane = LaneState {
            follower,
            since,
            lane,
            progress: LaneProgress::Asked,
            is_in_sync,
            kept: VecDeque::new(),
            kept_bytes: 0,
            first: 1,
            sent: 0,
            ever_sent: 0,
            sent_at: now,
            heard_at: now,
            proposed_at: None,
            records: 0,
            stays_since: is_in_sync.then_some(self.sealed),
            copy: CopyLength::default(),
            is_torn: false,
        };
        lane.keep(Load::Ask, self.sealed);
        self.lanes.push(lane);
    }

    fn seal(&mut self) {
        if self.sealed == self.appended {
            return;
        }
        self.sealed = self.appended;
        if self.filling.is_empty() {
            return;
        }
        let batch: Rc<[u8]> = self.filling.as_slice().into();
        self.filling.clear();
        for lane in &mut self.lanes {
            let is_for_it = lane.progress != LaneProgress::Asked || lane.stays_since.is_some();
            if is_for_it && !lane.is_torn {
                lane.keep(Load::Records(Rc::clone(&batch)), self.sealed);
            }
        }
        if self.recent.bytes_max > 0 {
            self.recent.keep(&batch, self.sealed);
        }
    }

    /// A follower says which records it has: it gets those that follow, or everything. For one that
    /// stayed in sync they were kept from the beginning. It does not begin anew while it counts,
    /// since it may become the owner at any time: where it does not have exactly what it should it is
    /// dropped.
    fn answer(&mut self, at: usize, position: Option<Position>) -> Option<OwnerOutput> {
        let Owner { lanes, recent, of, sealed, .. } = self;
        let lane = lanes.get_mut(at)?;
        if let Some(records) = lane.stays_since.take() {
            let stayed = Position { epoch: of.epoch, records, is_exact: true };
            if lane.is_in_sync && position == Some(stayed) {
                (lane.records, lane.progress) = (records, LaneProgress::InSync);
                return Some(OwnerOutput::Resumed);
            }
            lane.kept.clear();
            lane.kept_bytes = 0;
        }
        let position = position.filter(|it| it.is_exact || !lane.is_in_sync);
        let resumes_at = position.and_then(|it| recent.resumes_at((of.epoch, *sealed), it));
        let Some(records) = resumes_at else {
            if lane.is_in_sync {
                lane.tear();
                return None;
            }
            lane.progress = LaneProgress::Snapshot;
            lane.keep(Load::Snapshot, 0);
            return Some(OwnerOutput::Slice(lane.lane));
        };
        lane.records = records;
        lane.progress = if lane.is_in_sync {
            LaneProgress::InSync
        } else {
            LaneProgress::Records { complete: 1 }
        };
        for batch in recent.batches.iter().filter(|it| it.records > records) {
            lane.keep(batch.load.clone(), batch.records);
        }
        Some(OwnerOutput::Resumed)
    }

    /// A receipt of a follower.
    pub fn receipt(
        &mut self,
        from: DaemonIndex,
        receipt: &Receipt,
        now: i64,
        out: &mut Vec<OwnerOutput>,
    ) {
        let is_of = |it: &LaneState| it.lane == receipt.lane && it.follower == from;
        let Some(at) = self.lanes.iter().position(is_of) else { return };
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(stored) = receipt.stored else {
            // It lost its copy. Counted, it is in the way until the membership drops it.
            if lane.counts() {
                let change = Change::DropFollower { of: lane.following() };
                out.push(OwnerOutput::Propose(change));
            } else {
                let follower = lane.as_follower();
                self.lanes.retain(|it| it.follower != from);
                self.begin(&follower, now);
            }
            return;
        };
        lane.heard_at = now;
        // Nobody has a parcel that was never sent, whatever the receipt says.
        while lane.first <= stored
            && lane.ever_sent > 0
            && let Some(kept) = lane.kept.pop_front()
        {
            lane.kept_bytes -= kept.load.bytes();
            lane.records = kept.records;
            lane.first += 1;
            lane.sent = lane.sent.saturating_sub(1);
            lane.ever_sent = lane.ever_sent.saturating_sub(1);
            lane.sent_at = now;
        }
        if lane.progress == LaneProgress::Asked && stored >= 1 {
            out.extend(self.answer(at, receipt.position));
        }
        self.release(out);
        self.tick(now, out);
    }

    /// Answers the operations that are replicated.
    fn release(&mut self, out: &mut Vec<OwnerOutput>) {
        let counted = self.lanes.iter().filter(|it| it.counts());
        let records = counted.map(|it| it.records).min().unwrap_or(u64::MAX);
        while let Some(&(ticket, needed)) = self.waiting.front()
            && needed <= records
        {
            self.waiting.pop_front();
            out.push(OwnerOutput::Replicated { ticket });
        }
    }

    /// Followers that join, and are silent for too long.
    pub fn silent(&self, now: i64) -> impl Iterator<Item = Following> {
        let silent = self
            .lanes
            .iter()
            .filter(move |lane| !lane.counts() && now - lane.heard_at >= JOIN_SILENCE_NANOS);
        silent.map(LaneState::following)
    }

    /// Whether every record is at this follower, and at all others that may become the owner.
    #[must_use]
    pub fn is_everywhere(&self, follower: DaemonIndex) -> bool {
        let mut counted = self.lanes.iter().filter(|it| it.counts());
        let has_all = |it: &LaneState| it.records == self.appended && !it.is_torn;
        let is_there = counted.clone().any(|it| it.follower == follower);
        is_there && counted.all(has_all)
    }

    /// Sends what is due. To be called often, and after appends that somebody waits for.
    pub fn tick(&mut self, now: i64, out: &mut Vec<OwnerOutput>) {
        if self.is_replaying {
            self.lanes.iter_mut().for_each(|lane| lane.heard_at = now);
            return;
        }
        let is_due = self.is_urgent
            || self.filling.len() >= BATCH_BYTES
            || now - self.sealed_at >= SHIP_NANOS;
        if is_due {
            self.seal();
            self.sealed_at = now;
            self.is_urgent = false;
        }
        for lane in &mut self.lanes {
            if lane.sent > 0 && now - lane.sent_at >= lane.repeat_nanos() {
                lane.sent = 0;
            }
            while lane.sent < lane.window() {
                lane.join_waiting();
                let Some(kept) = lane.kept.get(lane.sent) else { break };
                let number = lane.first + lane.sent as u64;
                let (first, records) = (lane.first, kept.records);
                let contents = kept.load.contents();
                let parcel = Parcel { lane: lane.lane, number, first, records, contents };
                out.push(OwnerOutput::Send { to: lane.follower, parcel: parcel.to_bytes() });
                if lane.sent == 0 {
                    lane.sent_at = now;
                }
                lane.sent += 1;
                lane.ever_sent = lane.ever_sent.max(lane.sent);
            }
            if lane.kept.is_empty() {
                lane.heard_at = now;
            }
            let is_too_long = !lane.is_torn && lane.copy.is_too_long(self.copy_bytes_max);
            if lane.progress == LaneProgress::InSync && is_too_long {
                lane.keep(Load::Snapshot, self.sealed);
                lane.copy.is_made_anew = true;
                out.push(OwnerOutput::Slice(lane.lane));
            }
        }
        self.release(out);
        self.propose(now, out);
    }

    /// Proposes what the lanes ask for, again until the membership says so.
    fn propose(&mut self, now: i64, out: &mut Vec<OwnerOutput>) {
        let mut anew = Vec::new();
        for lane in &mut self.lanes {
            let is_full = lane.kept_bytes > LANE_BYTES_MAX;
            let is_lost = now - lane.heard_at >= SILENCE_NANOS || is_full || lane.is_torn;
            let of = lane.following();
            if let LaneProgress::Records { complete } = lane.progress
                && lane.first > complete
                && lane.kept.len() <= WINDOW
            {
                lane.progress = LaneProgress::Joining { needed: self.appended };
                // The last of these are sent with the next tick.
                self.is_urgent = true;
            }
            if let LaneProgress::Joining { needed } = lane.progress
                && lane.records >= needed
            {
                lane.progress = LaneProgress::Proposed;
            }
            let change = if lane.counts() && is_lost {
                Change::DropFollower { of }
            } else if lane.progress == LaneProgress::Proposed {
                Change::InSync { of }
            } else if is_full {
                anew.push(lane.as_follower());
                continue;
            } else {
                continue;
            };
            if lane.proposed_at.is_some_and(|at| now - at < REPEAT_NANOS) {
                continue;
            }
            lane.proposed_at = Some(now);
            out.push(OwnerOutput::Propose(change));
        }
        for follower in anew {
            self.lanes.retain(|it| it.follower != follower.daemon);
            self.begin(&follower, now);
        }
    }
}
