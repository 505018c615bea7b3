//! One node without the others, for tests of single steps: its messages are looked at, and answered
//! by hand.

use replicas::change::{Change, CopyId, Refused, Reign};
use replicas::dirty::Notice;
use replicas::kept::{Kept, KeptStep};
use replicas::node::{
    Action, Answer, End, Message, Node, Order, Pulled, Request, Settings, Window,
};
use replicas::operation::{
    ByteRange, Kind, Object, Operation, RequestId, Requested, Source, Stamp,
};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::BTreeMap;
use wire::{DaemonIndex, Inode};

pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const OBJECT: Object = Object { inode: Inode(3), stripe: 0 };

/// Three daemons in as many failure domains, each the home of two units with three copies.
pub(crate) fn table() -> Table {
    Table::initial(&[0, 1, 2], &[3], 2, false).expect("a possible setup")
}

pub(crate) const fn settings(own: u16) -> Settings {
    Settings {
        own: DaemonIndex(own),
        slice_bytes: 4096,
        fill_bytes_per_second: 0,
        behind_bytes_max: 0,
        client: Window::CLIENT,
        peer: Window::PEER,
    }
}

/// A node, and what it asked for since this was taken.
pub(crate) struct Alone {
    pub(crate) node: Node,
    pub(crate) own: u16,
    pub(crate) now: i64,
    out: Vec<Action>,
    tickets: u64,
}

impl Alone {
    pub(crate) fn new(settings: Settings) -> Alone {
        Alone::with_table(settings, table())
    }

    pub(crate) fn with_table(settings: Settings, table: Table) -> Alone {
        Alone::with_incarnation(settings, table, 1)
    }

    pub(crate) fn with_incarnation(settings: Settings, table: Table, incarnation: u64) -> Alone {
        Alone::with(settings, table, incarnation, BTreeMap::new())
    }

    fn with(
        settings: Settings,
        table: Table,
        incarnation: u64,
        kept: BTreeMap<UnitIndex, Kept>,
    ) -> Alone {
        let version = table.version;
        let mut node = Node::new(settings, incarnation, table, kept, 0);
        let mut out = Vec::new();
        node.take_part(&mut out);
        node.lease(1000 * SECOND, version, 0, &mut out);
        node.settled(version, 0, &mut out);
        Alone { node, own: settings.own.0, now: SECOND, out, tickets: 0 }
    }

    /// The primary of a unit whose other copies have opened their lanes and had nothing under way.
    pub(crate) fn primary(settings: Settings) -> Alone {
        Alone::primary_with(settings, &[])
    }

    /// The same, with these steps of a process before.
    pub(crate) fn primary_with(settings: Settings, steps: &[KeptStep]) -> Alone {
        let mut kept = Kept::default();
        steps.iter().for_each(|step| kept.apply(step));
        let kept = BTreeMap::from([(UnitIndex(0), kept)]);
        let mut alone = Alone::with(settings, table(), 1, kept);
        let units: Vec<UnitIndex> = alone.units();
        for unit in units {
            for lane in alone.lanes(unit) {
                alone.receive(lane.daemon, Message::Opened { lane, under_way: Vec::new() });
            }
        }
        alone.end_orders();
        alone.take();
        alone
    }

    /// The units that this daemon is the primary of.
    pub(crate) fn units(&self) -> Vec<UnitIndex> {
        let own = Some(DaemonIndex(self.own));
        self.node
            .table()
            .units()
            .filter(|(_, it)| it.primary == own)
            .map(|(unit, _)| unit)
            .collect()
    }

    /// The lanes of a unit, to copies other than the primary.
    pub(crate) fn lanes(&self, unit: UnitIndex) -> Vec<CopyId> {
        let row = self.node.table().unit(unit).expect("a unit");
        let of = Reign { unit, epoch: row.epoch };
        let others = row.copies.iter().filter(|copy| Some(copy.daemon) != row.primary);
        others.map(|copy| CopyId { of, daemon: copy.daemon, since: copy.since }).collect()
    }

    pub(crate) fn lease(&mut self, until: i64, version: u64) {
        self.node.lease(until, version, self.now, &mut self.out);
    }

    pub(crate) fn adopt(&mut self, table: &Table) {
        self.node.adopt(table.clone(), 1, self.now, &mut self.out);
    }

    pub(crate) fn apply(&mut self, change: &Change, version: u64) -> Result<(), Refused> {
        self.node.apply(change, version, 1, self.now, &mut self.out)
    }

    pub(crate) fn corrupt(&mut self, unit: UnitIndex, range: ByteRange) -> bool {
        self.node.corrupt(unit, OBJECT, range, self.now, &mut self.out)
    }

    /// All that was asked for since the last `take`.
    pub(crate) fn actions(&self) -> &[Action] {
        &self.out
    }

    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    pub(crate) fn receive(&mut self, from: DaemonIndex, message: Message) {
        self.node.receive(from, message, self.now, &mut self.out);
    }

    pub(crate) fn pass(&mut self, nanos: i64) {
        let end = self.now + nanos;
        while self.now < end {
            self.now += replicas::node::TICK_NANOS.min(end - self.now);
            self.node.tick(self.now, &mut self.out);
        }
    }

    /// A write of the client, of these bytes, in its own range. Its ticket.
    pub(crate) fn write(&mut self, unit: UnitIndex, id: RequestId, range: ByteRange) -> u64 {
        self.ask(unit, Requested { id, oldest: id.sequence, is_behind: false }, OBJECT, range)
    }

    pub(crate) fn ask(
        &mut self,
        unit: UnitIndex,
        requested: Requested,
        object: Object,
        range: ByteRange,
    ) -> u64 {
        self.ask_for(unit, requested, object, (range, Kind::Write))
    }

    pub(crate) fn remove(&mut self, unit: UnitIndex, id: RequestId) -> u64 {
        let requested = Requested { id, oldest: id.sequence, is_behind: false };
        self.ask_for(unit, requested, OBJECT, (ByteRange::ALL, Kind::Remove))
    }

    fn ask_for(
        &mut self,
        unit: UnitIndex,
        requested: Requested,
        object: Object,
        (range, kind): (ByteRange, Kind),
    ) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        let epoch = self.node.table().unit(unit).expect("a unit").epoch;
        let request = Request { ticket, epoch, object, range, kind, requested, born: 1 };
        self.node.request(unit, request, self.now, &mut self.out);
        ticket
    }

    /// Pulls that were asked for since the last `take`.
    pub(crate) fn pulls(&self) -> Vec<(u64, Operation, Source)> {
        let pull = |action: &Action| match action {
            Action::Pull { ticket, operation, source, .. } => Some((*ticket, *operation, *source)),
            _ => None,
        };
        self.out.iter().filter_map(pull).collect()
    }

    pub(crate) fn answers(&self) -> Vec<(u64, Answer)> {
        let answer = |action: &Action| match action {
            Action::Answer { ticket, answer } => Some((*ticket, *answer)),
            _ => None,
        };
        self.out.iter().filter_map(answer).collect()
    }

    pub(crate) fn messages(&self) -> Vec<(DaemonIndex, Message)> {
        let sent = |action: &Action| match action {
            Action::Send { to, message } => Some((*to, message.clone())),
            _ => None,
        };
        self.out.iter().filter_map(sent).collect()
    }

    pub(crate) fn pulled(&mut self, ticket: u64, pulled: Pulled) {
        self.node.pulled(ticket, pulled, self.now, &mut self.out);
    }

    /// Every order that was sent since the last `take` ends well.
    pub(crate) fn end_orders(&mut self) {
        for (to, message) in self.messages() {
            if let Message::Order { lane, number, order, .. } = message {
                let end = match order {
                    Order::Inventory(_) => End::Differs(Vec::new()),
                    _ => End::Done,
                };
                self.receive(to, Message::Ended { lane, number, end });
            }
        }
    }

    /// Everything that was asked for since the last `take` ends well.
    pub(crate) fn end_all(&mut self) {
        for (ticket, ..) in self.pulls() {
            self.pulled(ticket, Pulled::Done);
        }
        self.end_orders();
        self.store_notices();
    }

    /// The owner of the names stores the notices that were sent since the last `take`.
    pub(crate) fn store_notices(&mut self) {
        self.notices().iter().for_each(|notice| self.notice(notice));
    }

    pub(crate) fn notice(&mut self, notice: &Notice) {
        self.node.noticed(notice, self.now, &mut self.out);
    }

    pub(crate) fn begin_writeback(&mut self, unit: UnitIndex, object: Object) -> Option<Stamp> {
        self.node.begin_writeback(unit, object, self.now, &mut self.out)
    }

    pub(crate) fn end_writeback(&mut self, of: Reign, object: Object, clean: Option<Stamp>) {
        self.node.end_writeback(of, object, clean, self.now, &mut self.out);
    }

    pub(crate) fn notices(&self) -> Vec<Notice> {
        let notice = |action: &Action| match action {
            Action::Notify(notice) => Some(*notice),
            _ => None,
        };
        self.out.iter().filter_map(notice).collect()
    }
}

pub(crate) const fn id(client: u64, sequence: u64) -> RequestId {
    RequestId { client, sequence }
}

/// The block of this number.
pub(crate) const fn block(number: u64, length: u64) -> ByteRange {
    ByteRange { start: number * length, end: (number + 1) * length }
}

/// An operation of a client, as a primary orders it.
pub(crate) fn write(number: u64, range: ByteRange) -> Operation {
    let requested = Requested { id: id(7, number), oldest: 1, is_behind: false };
    Operation {
        stamp: Stamp { epoch: 1, number },
        object: OBJECT,
        range,
        kind: Kind::Write,
        requested: Some(requested),
    }
}

pub(crate) fn ordered(lane: CopyId, number: u64, operation: Operation) -> Message {
    let source =
        operation.requested.map_or(Source::Copy(DaemonIndex(0)), |it| Source::Client(it.id));
    let order = Order::Operation { operation, source, replaces: None };
    Message::Order { lane, number, settled: 0, order }
}
