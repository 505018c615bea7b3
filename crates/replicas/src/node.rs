//! One daemon's part in the copies of all units.
//!
//! Inputs are functions of `Node`; each appends to a list what the daemon does, in this order. The
//! daemon calls `tick` when `TICK_NANOS` passed at most. Times are of the daemon's own clock, in
//! nanoseconds.
//!
//! From `cluster` come the changes of the table in their order (`apply`), or the table itself where
//! some were missed (`adopt`), the lease until which this daemon counts as alive (`lease`) with the
//! version of the table that it may act on, and the version for which all leases of dead daemons
//! have ended (`settled`).
//!
//! | event | steps |
//! |---|---|
//! | a client writes | the primary stamps it, all copies pull its bytes: `Answer::Done` |
//! | the primary is dead | a copy in sync gathers what was under way, and waits for the old lease |
//! | a copy is dead or slow | `Change::Down` or `Change::Drop`; what waited for it is acknowledged |
//! | a copy is missing | `policy` names one; it is compared and filled: `Change::InSync` |

mod interface;
mod lane;
mod messages;
mod primary;
mod pulls;
mod scan;
mod secondary;
mod windows;

pub use interface::{Action, Answer, Counters, Pulled, Read, Request, Settings};
pub use messages::{End, Inventory, Listed, Message, Order};
pub use windows::{Load, Party, Window};

use crate::change::{Change, CopyId, Refused, Reign};
use crate::dirty::Notice;
use crate::kept::{Kept, KeptStep};
use crate::operation::{ByteRange, Object, Operation, Source, Stamp};
use crate::placement::UnitIndex;
use crate::table::{CopyRow, CopyState, Presence, Table, Unit};
use primary::Primary;
use pulls::Pulls;
use secondary::Secondary;
use std::collections::{BTreeMap, BTreeSet};
use tokens::TokenBucket;
use windows::{Loads, PartyLoads};
use wire::DaemonIndex;

/// Time between two ticks at most.
pub const TICK_NANOS: i64 = 20_000_000;
/// A message or proposal without an effect is sent again after this time.
const REPEAT_NANOS: i64 = 200_000_000;
/// For how long a copy may be read after it asked.
const READ_LEASE_NANOS: i64 = 100_000_000;
/// For how long an acknowledgement waits for a copy that is alive and does not answer. Then the
/// copy is dropped. Longer than a lease of the copy, so that dropping it does not wait for that.
const SLOW_NANOS: i64 = 600_000_000;
/// For how long the bytes of a client that cannot be reached are waited for.
const TORN_NANOS: i64 = 2_000_000_000;
/// For how long a request waits before its client is told to ask again.
const WAITING_NANOS: i64 = 1_000_000_000;

const _: () = assert!(READ_LEASE_NANOS * 2 < SLOW_NANOS);
const _: () = assert!(REPEAT_NANOS * 2 < SLOW_NANOS);

/// A step in time: now, and what has passed for those that wait. A process that stood still does
/// not count that time as the silence of others.
#[derive(Clone, Copy)]
struct Timed {
    now: i64,
    passed: i64,
}

/// The part of its node that a unit needs.
struct Context<'a> {
    unit: UnitIndex,
    now: i64,
    own: DaemonIndex,
    lease_until: i64,
    granted: u64,
    settled: u64,
    settings: &'a Settings,
    table: &'a Table,
    pulls: &'a mut Pulls,
    loads: &'a mut Loads,
    tokens: &'a mut TokenBucket,
    counters: &'a mut Counters,
    out: &'a mut Vec<Action>,
}

impl Context<'_> {
    /// Changes the state that survives the process.
    fn keep(&mut self, kept: &mut Kept, step: KeptStep) {
        self.pulls.note_step(self.unit, &step, kept);
        kept.apply(&step);
        self.out.push(Action::Keep { unit: self.unit, step });
    }

    /// An operation is not under way any more.
    fn settle(&mut self, kept: &mut Kept, stamp: Stamp) {
        if kept.begun(stamp).is_some() {
            self.keep(kept, KeptStep::Settle(stamp));
        }
    }

    fn answer(&mut self, ticket: u64, answer: Answer) {
        self.out.push(Action::Answer { ticket, answer });
    }

    fn pull(&mut self, of: Reign, operation: &Operation, source: Source) {
        let by = self.primary_of(of.unit).unwrap_or(self.own);
        let ticket = self.pulls.start(of.unit, operation, by);
        self.out.push(Action::Pull { ticket, of, operation: *operation, source });
    }

    /// Whether the window of the unit's primary has a place for a pull here.
    fn may_pull(&mut self, unit: UnitIndex, bytes: u64) -> bool {
        let by = self.primary_of(unit).unwrap_or(self.own);
        let may = self.pulls.has_place(by, self.settings.peer, bytes);
        if !may {
            self.loads.short();
        }
        may
    }

    fn primary_of(&self, unit: UnitIndex) -> Option<DaemonIndex> {
        self.table.unit(unit).and_then(|unit| unit.primary)
    }

    fn tell_primary(&mut self, unit: UnitIndex, message: Message) {
        if let Some(to) = self.primary_of(unit) {
            self.out.push(Action::Send { to, message });
        }
    }

    const fn millis(&self) -> u32 {
        (self.now / 1_000_000) as u32
    }

    fn may_fill(&self) -> bool {
        self.tokens.is_open(self.millis())
    }

    fn fill(&mut self, bytes: u64) {
        self.tokens.take(self.millis(), bytes);
    }
}

enum Role {
    Primary(Primary),
    Secondary(Secondary),
}

/// See the module.
pub struct Node {
    settings: Settings,
    incarnation: u64,
    table: Table,
    kept: BTreeMap<UnitIndex, Kept>,
    roles: BTreeMap<UnitIndex, Role>,
    /// Primaries that have something to do as time passes.
    busy: BTreeSet<UnitIndex>,
    /// Other copies with orders that wait for a place to pull.
    delayed: BTreeSet<UnitIndex>,
    pulls: Pulls,
    loads: Loads,
    tokens: TokenBucket,
    counters: Counters,
    lease_until: i64,
    granted: u64,
    settled: u64,
    now: i64,
    ticked_at: i64,
}

impl Node {
    /// A daemon starts, with what an earlier process of it kept. It has no part in any unit before
    /// it was given a table that knows this start (`incarnation`).
    #[must_use]
    pub fn new(
        settings: Settings,
        incarnation: u64,
        table: Table,
        kept: BTreeMap<UnitIndex, Kept>,
        now: i64,
    ) -> Node {
        Node {
            settings,
            incarnation,
            table,
            kept,
            roles: BTreeMap::new(),
            busy: BTreeSet::new(),
            delayed: BTreeSet::new(),
            pulls: Pulls::default(),
            loads: Loads::default(),
            tokens: TokenBucket::new(settings.fill_bytes_per_second),
            counters: Counters::default(),
            lease_until: i64::MIN,
            granted: 0,
            settled: 0,
            now,
            ticked_at: now,
        }
    }

    /// The state that survives the process.
    #[must_use]
    pub const fn kept(&self) -> &BTreeMap<UnitIndex, Kept> {
        &self.kept
    }

    /// The table that this daemon knows.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Counts for metrics.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of copies that have to get an object of a unit yet; 0 where this daemon is not its
    /// primary.
    pub fn lacking(&self, unit: UnitIndex) -> impl Fn(Object) -> usize + '_ {
        let goal = self.table.unit(unit).map_or(0, |unit| usize::from(unit.goal));
        let primary = match self.roles.get(&unit) {
            Some(Role::Primary(primary)) => Some(primary),
            _ => None,
        };
        move |object| primary.map_or(0, |it| it.lacking(object, goal))
    }

    /// Requests and reads of each client here, and orders of this daemon at each other one, that are
    /// under way.
    pub fn loads(&self) -> impl Iterator<Item = (Party, Load)> {
        self.loads.all()
    }

    /// Pulls here that each primary asked for, this daemon among them.
    pub fn pulls(&self) -> impl Iterator<Item = (DaemonIndex, Load)> {
        self.pulls.loads()
    }

    /// Whether this daemon has nothing to do for any unit.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }

    fn with<T>(
        &mut self,
        unit: UnitIndex,
        out: &mut Vec<Action>,
        input: impl FnOnce(Option<&mut Role>, &mut Kept, &mut Context<'_>) -> T,
    ) -> T {
        let mut context = Context {
            unit,
            now: self.now,
            own: self.settings.own,
            lease_until: self.lease_until,
            granted: self.granted,
            settled: self.settled,
            settings: &self.settings,
            table: &self.table,
            pulls: &mut self.pulls,
            loads: &mut self.loads,
            tokens: &mut self.tokens,
            counters: &mut self.counters,
            out,
        };
        let cx = &mut context;
        let mut role = self.roles.get_mut(&unit);
        let mut none = Kept::default();
        let kept = match &role {
            Some(_) => self.kept.entry(unit).or_default(),
            None => self.kept.get_mut(&unit).unwrap_or(&mut none),
        };
        let result = input(role.as_deref_mut(), kept, cx);
        let (mut is_busy, mut is_delayed) = (false, false);
        let mut loads = PartyLoads::default();
        match role {
            Some(Role::Primary(primary)) => {
                primary.go_on(kept, cx);
                is_busy = !primary.is_idle();
                loads = primary.loads();
            }
            Some(Role::Secondary(secondary)) => {
                secondary.go_on(cx);
                is_delayed = secondary.is_delayed();
            }
            None => {}
        }
        cx.loads.set(unit, loads);
        cx.loads.end_step(unit);
        put(&mut self.busy, unit, is_busy);
        put(&mut self.delayed, unit, is_delayed);
        result
    }

    /// Those that had no place begin, if there may be one now.
    fn use_place(&mut self, out: &mut Vec<Action>) {
        // Each round but the last begins something, or frees a place.
        while self.loads.take_freed() {
            for unit in self.delayed.clone() {
                self.with(unit, out, |_, _, _| {});
            }
            for unit in self.loads.claiming() {
                self.with(unit, out, |_, _, _| {});
            }
            self.go_on(out);
        }
    }

    /// A newer table. One that is not newer has no effect.
    pub fn adopt(&mut self, table: Table, incarnation: u64, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        if table.version <= self.table.version && incarnation == self.incarnation {
            return;
        }
        let is_same_start = incarnation == self.incarnation;
        self.incarnation = incarnation;
        if table.version <= self.table.version {
            return self.take_part(out);
        }
        let before = core::mem::replace(&mut self.table, table);
        if is_same_start && self.table.daemons().eq(before.daemons()) {
            // The part in other units is what it was.
            let pairs = self.table.units().zip(before.units());
            let changed = pairs.filter(|(now, before)| now != before).map(|(now, _)| now.0);
            for unit in changed.collect::<Vec<UnitIndex>>() {
                self.take_part_in(unit, out);
            }
        } else {
            self.take_part(out);
        }
    }

    /// The change that makes the table the one of this version. One that is known has no effect.
    ///
    /// # Errors
    /// `Refused` if a change before it was missed, or it does not fit: the daemon asks for the table.
    pub fn apply(
        &mut self,
        change: &Change,
        version: u64,
        incarnation: u64,
        now: i64,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        self.now = now;
        let is_known = version <= self.table.version;
        if !is_known {
            if version - 1 != self.table.version {
                return Err(Refused);
            }
            self.table.apply(change)?;
        }
        let is_same_start = incarnation == self.incarnation;
        self.incarnation = incarnation;
        match change.unit().filter(|_| is_same_start) {
            // The part in other units is what it was.
            Some(unit) if !is_known => self.take_part_in(unit, out),
            _ if !is_known || !is_same_start => self.take_part(out),
            _ => {}
        }
        Ok(())
    }

    /// Takes the part in each unit that the table gives to this daemon.
    pub fn take_part(&mut self, out: &mut Vec<Action>) {
        let own = self.settings.own;
        let units = self.table.units().filter(|(index, unit)| {
            let has_part = unit.copy(own).is_some() || self.roles.contains_key(index);
            has_part || self.kept.contains_key(index)
        });
        for index in units.map(|(index, _)| index).collect::<Vec<_>>() {
            self.take_part_in(index, out);
        }
    }

    fn take_part_in(&mut self, index: UnitIndex, out: &mut Vec<Action>) {
        let holder = self.table.holder(self.settings.own);
        let is_present = holder.is_some_and(|holder| {
            holder.presence != Presence::Down && holder.incarnation == self.incarnation
        });
        // A copy of one unit, because the node changes while it is read.
        if let Some(unit) = self.table.unit(index).cloned() {
            self.take_part_as(index, &unit, is_present, out);
        }
    }

    fn take_part_as(
        &mut self,
        index: UnitIndex,
        unit: &Unit,
        is_present: bool,
        out: &mut Vec<Action>,
    ) {
        let own = self.settings.own;
        let row = unit.copy(own).filter(|_| is_present && unit.primary.is_some());
        let is_primary = row.is_some() && unit.primary == Some(own);
        let row = row.filter(|copy| copy.state != CopyState::Behind);
        let of = Reign { unit: index, epoch: unit.epoch };
        let lane = row.map(|copy| CopyId { of, daemon: own, since: copy.since });
        if is_present {
            self.discard_old(index, unit, row.is_some(), out);
        }
        let stays = match self.roles.get(&index) {
            Some(Role::Primary(primary)) => is_primary && primary.of == of,
            Some(Role::Secondary(secondary)) => !is_primary && Some(secondary.lane) == lane,
            None => false,
        };
        if !stays && let Some(role) = self.roles.remove(&index) {
            self.with(index, out, |_, _, cx| {
                if let Role::Primary(mut primary) = role {
                    primary.leave(cx);
                }
            });
        }
        let is_in_sync = row.is_some_and(|copy| copy.state == CopyState::InSync);
        if !stays && is_primary {
            let primary = self.with(index, out, |_, _, cx| Primary::new(of, unit, cx.table, cx));
            self.roles.insert(index, Role::Primary(primary));
        } else if !stays && let Some(lane) = lane {
            let has_all = row.is_some_and(CopyRow::has_all);
            let secondary = Secondary::new(lane, (is_in_sync, has_all), self.now);
            self.roles.insert(index, Role::Secondary(secondary));
        }
        self.with(index, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) => primary.adopt(unit, cx.table, cx),
            Some(Role::Secondary(secondary)) => {
                secondary.is_in_sync = is_in_sync;
                secondary.open(kept, cx);
            }
            None => {}
        });
    }

    /// Removes what is not the unit's any more, or not needed.
    fn discard_old(&mut self, index: UnitIndex, unit: &Unit, is_copy: bool, out: &mut Vec<Action>) {
        let is_whole = unit.in_sync() >= usize::from(unit.goal);
        let is_spare = !is_copy && is_whole && unit.copy(self.settings.own).is_none();
        let Some(kept) = self.kept.get(&index) else {
            if is_copy {
                self.keep_anew(index, unit, out);
            }
            return;
        };
        let is_lost = kept.lost_at < unit.lost_at;
        if !is_lost && !is_spare {
            return;
        }
        let running = self.pulls.of(index).map(|(ticket, _)| Action::Cancel { ticket });
        out.extend(running.collect::<Vec<_>>());
        out.push(Action::Discard(index));
        let objects = kept.objects.keys().copied();
        out.extend(objects.map(|object| Action::Erase { unit: index, object }));
        self.roles.remove(&index);
        self.kept.remove(&index);
        self.pulls.discard(index);
        if is_copy {
            self.keep_anew(index, unit, out);
        }
    }

    /// A copy begins here, with nothing.
    fn keep_anew(&mut self, index: UnitIndex, unit: &Unit, out: &mut Vec<Action>) {
        let step = KeptStep::New { lost_at: unit.lost_at };
        self.kept.entry(index).or_default().apply(&step);
        out.push(Action::Keep { unit: index, step });
    }

    /// Until when this daemon counts as alive for sure: it serves nothing later. Until then it may
    /// act on what the table of this version says; `Change::Down` names that version.
    pub fn lease(&mut self, until: i64, version: u64, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        let may_more = now >= self.lease_until || version > self.granted;
        self.lease_until = until;
        self.granted = version.max(self.granted);
        if may_more {
            self.go_on(out);
        }
    }

    /// Whether something waits until a newer version of the table is granted.
    #[must_use]
    pub fn waits_for_grant(&self) -> bool {
        let waits = |role: &Role| match role {
            Role::Primary(primary) => primary.left_at > self.granted,
            Role::Secondary(_) => false,
        };
        self.busy.iter().filter_map(|unit| self.roles.get(unit)).any(waits)
    }

    /// No daemon that is down in this version of the table has a lease any more.
    pub fn settled(&mut self, version: u64, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        if version > self.settled {
            self.settled = version;
            self.go_on(out);
        }
    }

    fn go_on(&mut self, out: &mut Vec<Action>) {
        for unit in self.busy.clone() {
            self.with(unit, out, |_, _, _| {});
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        let passed = (now - self.ticked_at).clamp(0, 2 * TICK_NANOS);
        self.ticked_at = now;
        let time = Timed { now, passed };
        let mut units: Vec<(usize, UnitIndex)> = Vec::new();
        for &unit in &self.busy {
            if let Some(Role::Primary(primary)) = self.roles.get(&unit) {
                units.push((primary.copies_in_sync(), unit));
            }
        }
        // The rate serves those first that are most in danger.
        units.sort_unstable();
        for (_, unit) in units {
            self.with(unit, out, |role, kept, cx| {
                if let Some(Role::Primary(primary)) = role {
                    primary.tick(time, kept, cx);
                }
            });
        }
    }

    /// A message of another daemon. One that the daemon has no right to send has no effect.
    pub fn receive(
        &mut self,
        from: DaemonIndex,
        message: Message,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        self.now = now;
        let (Message::Open { lane }
        | Message::Opened { lane, .. }
        | Message::Order { lane, .. }
        | Message::Ended { lane, .. }
        | Message::AskLease { lane, .. }
        | Message::Lease { lane, .. }
        | Message::Repair { lane, .. }) = message;
        self.with(lane.of.unit, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) if from == lane.daemon => {
                primary.receive(message, kept, cx);
            }
            Some(Role::Secondary(secondary)) if Some(from) == cx.primary_of(lane.of.unit) => {
                secondary.receive(message, kept, cx);
            }
            _ => {}
        });
        self.use_place(out);
    }

    /// A client's change.
    pub fn request(&mut self, unit: UnitIndex, request: Request, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        self.with(unit, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) => primary.request(request, kept, cx),
            _ => cx.answer(request.ticket, Answer::Stale),
        });
    }

    /// A client's read.
    pub fn read(&mut self, unit: UnitIndex, read: Read, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        self.with(unit, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) => primary.read(read, cx),
            Some(Role::Secondary(secondary)) => secondary.read(&read, kept, cx),
            None => cx.answer(read.ticket, Answer::Stale),
        });
    }

    /// A pull has ended.
    pub fn pulled(&mut self, ticket: u64, pulled: Pulled, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        let Some((unit, stamp, object)) = self.pulls.end(ticket, pulled) else { return };
        self.with(unit, out, |role, kept, cx| {
            if pulled == Pulled::Done && kept.begun(stamp).is_some() {
                cx.keep(kept, KeptStep::Done(stamp));
            }
            if !kept.objects.contains_key(&object) {
                // The unit was discarded meanwhile: these bytes came later.
                cx.out.push(Action::Erase { unit, object });
            }
            match role {
                Some(Role::Primary(primary)) => primary.pulled(stamp, pulled),
                Some(Role::Secondary(secondary)) => secondary.pulled(stamp, pulled, kept, cx),
                None => {}
            }
        });
        self.loads.freed();
        self.use_place(out);
    }

    /// Whether another copy may pull bytes from here: this one has to be in sync in the same epoch.
    /// Then the bytes that it is asked for do not change, and a copy that was dropped may have them
    /// no more.
    #[must_use]
    pub fn may_give(&self, of: Reign) -> bool {
        match self.roles.get(&of.unit) {
            Some(Role::Primary(primary)) => primary.of == of,
            Some(Role::Secondary(secondary)) => secondary.lane.of == of && secondary.is_in_sync,
            None => false,
        }
    }

    /// Bytes of the copy here fail their checksum. Whether they are asked for from another copy.
    pub fn corrupt(
        &mut self,
        unit: UnitIndex,
        object: Object,
        range: ByteRange,
        now: i64,
        out: &mut Vec<Action>,
    ) -> bool {
        self.now = now;
        self.with(unit, out, |role, _, cx| match role {
            Some(Role::Primary(primary)) => primary.corrupt(object, range, cx),
            Some(Role::Secondary(secondary)) if secondary.is_in_sync => {
                let message = Message::Repair { lane: secondary.lane, object, range };
                cx.counters.repairs += 1;
                cx.tell_primary(unit, message);
                true
            }
            _ => false,
        })
    }

    /// The owner of the file's name has stored a notice of this daemon.
    pub fn noticed(&mut self, notice: &Notice, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        self.with(notice.unit, out, |role, _, _| {
            if let Some(Role::Primary(primary)) = role {
                primary.noticed(notice);
            }
        });
    }

    /// The writeback of an object begins here: the bytes that it reads next, by `read` as a client,
    /// have all changes up to the stamp. It ends with `end_writeback`. `None`: this daemon does not
    /// serve the object now, another writeback of it is under way, or the backing store has all of
    /// it. The objects that need it are `Kept::dirty`.
    pub fn begin_writeback(
        &mut self,
        unit: UnitIndex,
        object: Object,
        now: i64,
        out: &mut Vec<Action>,
    ) -> Option<Stamp> {
        self.now = now;
        self.with(unit, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) => primary.begin_writeback(object, kept, cx),
            _ => None,
        })
    }

    /// The owner asks about an object of which an earlier primary told that it is dirty: all changes
    /// up to this stamp are in the backing store, or were never made. `None`: it is dirty, or this
    /// daemon does not know.
    pub fn clean_up_to(
        &mut self,
        unit: UnitIndex,
        object: Object,
        now: i64,
        out: &mut Vec<Action>,
    ) -> Option<Stamp> {
        self.now = now;
        self.with(unit, out, |role, kept, cx| match role {
            Some(Role::Primary(primary)) => primary.clean_up_to(object, kept, cx),
            _ => None,
        })
    }

    /// Whether a writeback that began in this reign may still change the backing store: a later
    /// primary may have saved newer bytes. To be asked right before the bytes get their name there.
    #[must_use]
    pub fn may_write_back(&self, of: Reign, now: i64) -> bool {
        match self.roles.get(&of.unit) {
            Some(Role::Primary(primary)) => {
                primary.of == of && now < self.lease_until && !primary.hands_over()
            }
            _ => false,
        }
    }

    /// A writeback has ended that began in this reign. With a stamp: the backing store has all
    /// changes of the object up to this one, and the owner of its name knows that
    /// (`DirtyObjects::written_back`).
    pub fn end_writeback(
        &mut self,
        of: Reign,
        object: Object,
        clean: Option<Stamp>,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        self.now = now;
        self.with(of.unit, out, |role, kept, cx| {
            if let Some(Role::Primary(primary)) = role
                && primary.of == of
            {
                primary.end_writeback(object, clean, kept, cx);
            }
        });
    }

    /// The leader advises to hand over a unit. Without effect where that is not possible now.
    pub fn advise(&mut self, to: CopyId, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        self.with(to.of.unit, out, |role, _, cx| {
            if let Some(Role::Primary(primary)) = role
                && primary.of == to.of
            {
                primary.advise(to, cx.table);
            }
        });
    }
}

fn put(units: &mut BTreeSet<UnitIndex>, unit: UnitIndex, is_in: bool) {
    if is_in {
        units.insert(unit);
    } else {
        units.remove(&unit);
    }
}
