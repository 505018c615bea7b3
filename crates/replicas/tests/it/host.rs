//! A host: its bytes, its process, and what the node there asks for.

use crate::backing::OWNER;
use crate::checks::Cell;
use crate::clients::write_number;
use crate::world::{CELL, CELLS, Note, Reply, World, read_again};
use encoding::Encode as _;
use replicas::change::Reign;
use replicas::kept::{Kept, KeptStep};
use replicas::node::{Action, Answer, Node, Pulled, Settings};
use replicas::operation::{ByteRange, Kind, Object, Operation, RequestId, Source, Stamp};
use replicas::placement::UnitIndex;
use replicas::table::CopyState;
use std::collections::BTreeMap;
use testkit::Random;
use testkit::world::{Clock, MILLI};
use wire::DaemonIndex;

const REGISTRY: u16 = 1000;

#[derive(Clone, Copy)]
pub(crate) struct Settle {
    pub(crate) version: u64,
    pub(crate) at: i64,
}

/// A pull that is under way.
#[derive(Clone, Copy)]
struct Pulling {
    of: Reign,
    operation: Operation,
    source: Source,
    tries: u32,
    is_cancelled: bool,
}

pub(crate) struct Host {
    pub(crate) node: Option<Node>,
    /// State that the last process left, as it is stored.
    pub(crate) kept: BTreeMap<UnitIndex, Vec<u8>>,
    /// The same of the process that runs, by the steps that its node asked to keep.
    logged: BTreeMap<UnitIndex, Kept>,
    pub(crate) store: BTreeMap<(UnitIndex, Object), Vec<Cell>>,
    pub(crate) incarnation: u64,
    pub(crate) is_empty: bool,
    pub(crate) paused_until: i64,
    pub(crate) slow_until: i64,
    /// Until then each of its messages comes many times.
    pub(crate) echoes_until: i64,
    clock: Clock,
    pub(crate) inbox: Vec<(u16, Note)>,
    pub(crate) beaten_at: i64,
    pub(crate) settle: Option<Settle>,
    pulls: BTreeMap<u64, Pulling>,
    /// Counts the processes.
    run: u64,
}

impl Host {
    pub(crate) fn new(random: &mut Random) -> Host {
        Host {
            node: None,
            kept: BTreeMap::new(),
            logged: BTreeMap::new(),
            store: BTreeMap::new(),
            incarnation: 0,
            is_empty: false,
            paused_until: 0,
            slow_until: 0,
            echoes_until: 0,
            clock: Clock::new(random),
            inbox: Vec::new(),
            beaten_at: 0,
            settle: None,
            pulls: BTreeMap::new(),
            run: 0,
        }
    }

    /// The process that runs, or ran last.
    pub(crate) const fn process(&self) -> u64 {
        self.run
    }

    pub(crate) const fn clock(&self, now: i64) -> i64 {
        self.clock.at(now)
    }

    /// Stores what the actions of an input ask to keep. A process here is never killed between them.
    pub(crate) fn keep(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Keep { unit, step } => {
                    let step: KeptStep = read_again(&step.to_bytes());
                    let is_new = matches!(step, KeptStep::New { .. });
                    assert!(is_new || self.logged.contains_key(unit), "{unit:?} {step:?}");
                    self.logged.entry(*unit).or_default().apply(&step);
                }
                Action::Discard(unit) => {
                    self.logged.remove(unit);
                }
                _ => {}
            }
        }
    }
}

/// The cells of a range.
fn cells_of(range: ByteRange) -> (usize, usize) {
    ((range.start / CELL) as usize, (range.end / CELL).min(CELLS) as usize)
}

impl World {
    pub(crate) fn start(&mut self, index: u16) {
        let table = (*self.registry.table).clone();
        let host = &mut self.hosts[usize::from(index)];
        host.incarnation += 1;
        host.run += 1;
        let settings = Settings {
            own: DaemonIndex(index),
            slice_bytes: 2 * CELL,
            fill_bytes_per_second: 300 * CELL,
            behind_bytes_max: 12 * CELL,
            client: self.setup.windows.0,
            peer: self.setup.windows.1,
        };
        let now = host.clock(self.events.now());
        host.beaten_at = now - 1000 * MILLI;
        let kept: BTreeMap<UnitIndex, Kept> =
            host.kept.iter().map(|(&unit, bytes)| (unit, read_again(bytes))).collect();
        host.kept.clear();
        host.logged.clone_from(&kept);
        // A pull that was under way left bytes of a unit that was discarded.
        host.store.retain(|(unit, object), _| {
            kept.get(unit).is_some_and(|kept| kept.objects().any(|it| it.0 == *object))
        });
        host.node = Some(Node::new(settings, host.incarnation, table, kept, now));
        self.with(index, |node, _, out| node.take_part(out));
    }

    /// The process ends. Pulls leave some of their bytes.
    pub(crate) fn stop(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        let Some(node) = host.node.take() else { return };
        let counters = node.counters();
        self.tally.repairs += counters.repairs;
        self.tally.reads_at_copies += counters.reads_here;
        self.tally.bytes_filled += counters.bytes_filled;
        assert_eq!(node.kept(), &host.logged, "{index} kept something that it did not ask to keep");
        let logged = std::mem::take(&mut host.logged);
        host.kept = logged.into_iter().map(|(unit, kept)| (unit, kept.to_bytes())).collect();
        host.inbox.clear();
        (host.paused_until, host.settle) = (0, None);
        let pulls = std::mem::take(&mut host.pulls);
        for pull in pulls.into_values() {
            self.pull_some(index, &pull);
        }
    }

    pub(crate) fn act(&mut self, index: u16, action: Action) {
        let run = self.hosts[usize::from(index)].run;
        match action {
            // See `Host::keep`: one action may lead to another input.
            Action::Keep { .. } => {}
            Action::Send { to, message } => self.send(index, to.0, Note::Peer(message.to_bytes())),
            Action::Pull { ticket, of, operation, source } => {
                let pull = Pulling { of, operation, source, tries: 0, is_cancelled: false };
                self.hosts[usize::from(index)].pulls.insert(ticket, pull);
                let time = self.pull_time(index);
                self.push_pull(time, index, run, ticket);
            }
            Action::Cancel { ticket } => {
                if let Some(pull) = self.hosts[usize::from(index)].pulls.get_mut(&ticket) {
                    pull.is_cancelled = true;
                    self.push_pull(MILLI, index, run, ticket);
                }
            }
            Action::Change { unit, operation } => self.change(index, unit, &operation),
            Action::Erase { unit, object } => {
                self.hosts[usize::from(index)].store.remove(&(unit, object));
            }
            // See `Host::keep`, too. The bytes go object by object.
            Action::Discard(_) => {}
            Action::Answer { ticket, answer } => self.answer(index, ticket, answer),
            Action::Serve { ticket } => self.serve(index, ticket),
            Action::Notify(notice) => self.send(index, OWNER, Note::Notice(notice.to_bytes())),
            Action::Propose(change) => self.send(index, REGISTRY, Note::Propose(change.to_bytes())),
        }
    }

    fn pull_time(&mut self, index: u16) -> i64 {
        let is_slow = self.hosts[usize::from(index)].slow_until > self.events.now();
        // Some take long: what other copies and clients do meanwhile is where order matters.
        let most = match (is_slow, self.random.uniform(12)) {
            (true, _) => 500 * MILLI,
            (_, 0) => 120 * MILLI,
            _ => 3 * MILLI,
        };
        MILLI / 10 + self.random.uniform(most.cast_unsigned()).cast_signed()
    }

    fn change(&mut self, index: u16, unit: UnitIndex, operation: &Operation) {
        let place = (unit, operation.object);
        let store = &mut self.hosts[usize::from(index)].store;
        match operation.kind {
            Kind::Remove | Kind::Begin => {
                store.remove(&place);
            }
            Kind::Punch | Kind::Spoil => {
                let is_flipped = operation.kind == Kind::Spoil;
                let stamp = operation.stamp;
                let cell = Cell { stamp, is_flipped, is_spoiled: is_flipped, ..Cell::default() };
                put(store, place, operation.range, |_| cell);
            }
            _ => panic!("no change: {operation:?}"),
        }
    }

    pub(crate) fn pull_ends(&mut self, index: u16, run: u64, ticket: u64) {
        let host = &self.hosts[usize::from(index)];
        let Some(pull) = host.pulls.get(&ticket).copied().filter(|_| host.run == run) else {
            return;
        };
        if !self.is_running(index) {
            return self.push_pull(50 * MILLI, index, run, ticket);
        }
        let bytes = if pull.is_cancelled { Err(None) } else { self.source(index, &pull) };
        if bytes == Err(None) && !pull.is_cancelled && pull.tries < 8 {
            let pulls = &mut self.hosts[usize::from(index)].pulls;
            pulls.get_mut(&ticket).expect("it is there").tries += 1;
            return self.push_pull(40 * MILLI, index, run, ticket);
        }
        self.hosts[usize::from(index)].pulls.remove(&ticket);
        let is_ok = bytes.is_ok();
        if let (true, Kind::Copy, Source::Copy(from)) = (is_ok, pull.operation.kind, pull.source) {
            let row = self.registry.table.unit(pull.of.unit).expect("a unit");
            let is_primary = row.primary == Some(from);
            self.tally.filled_by_primaries += u64::from(is_primary);
            self.tally.filled_by_copies += u64::from(!is_primary);
        }
        let end = match bytes {
            Ok(cells) => {
                let (start, _) = cells_of(pull.operation.range);
                let place = (pull.of.unit, pull.operation.object);
                let store = &mut self.hosts[usize::from(index)].store;
                put(store, place, pull.operation.range, |at| cells[at - start]);
                Pulled::Done
            }
            Err(end) => match self.pull_some(index, &pull) {
                0 => end.unwrap_or(Pulled::Failed),
                _ => Pulled::Torn,
            },
        };
        self.with(index, |node, now, out| node.pulled(ticket, end, now, out));
    }

    /// The bytes at the source of a pull, or the end that it answers with. None if it does not answer.
    fn source(&mut self, index: u16, pull: &Pulling) -> Result<Vec<Cell>, Option<Pulled>> {
        let (start, end) = cells_of(pull.operation.range);
        match pull.source {
            Source::Client(id) => {
                let (place, client) = self.place_of(id.client).ok_or(None)?;
                if self.is_cut(index, place) || self.is_cut(place, index) {
                    return Err(None);
                }
                // A client that lives says so when its request was answered and the bytes are gone.
                let gone = Some(Pulled::Failed);
                let write = self.clients[client].buffer(id).ok_or(gone)?;
                let stamp = pull.operation.stamp;
                Ok(vec![Cell { write, stamp, ..Cell::default() }; end - start])
            }
            Source::Copy(daemon) => {
                let from = daemon.0;
                if self.is_cut(index, from)
                    || self.is_cut(from, index)
                    || !self.is_running(from)
                    || !self.hosts[usize::from(from)]
                        .node
                        .as_ref()
                        .is_some_and(|it| it.may_give(pull.of))
                {
                    return Err(None);
                }
                let object = pull.operation.object;
                let cells = self.cells(from, pull.of.unit, object, (start, end));
                let flipped = cells.iter().position(|cell| cell.is_flipped);
                if let Some(at) = flipped {
                    if !cells[at].is_spoiled {
                        self.found_flipped(from, pull.of.unit, object, (start + at) as u64);
                    }
                    return Err(Some(Pulled::Corrupt));
                }
                Ok(cells)
            }
        }
    }

    pub(crate) fn found_flipped(
        &mut self,
        index: u16,
        unit: UnitIndex,
        object: Object,
        cell: u64,
    ) -> bool {
        let range = ByteRange { start: cell * CELL, end: (cell + 1) * CELL };
        let mut is_repaired = false;
        self.with(index, |node, now, out| {
            is_repaired = node.corrupt(unit, object, range, now, out);
        });
        is_repaired
    }

    pub(crate) fn cells(
        &self,
        index: u16,
        unit: UnitIndex,
        object: Object,
        (start, end): (usize, usize),
    ) -> Vec<Cell> {
        let cells = self.hosts[usize::from(index)].store.get(&(unit, object));
        let cell = |at| cells.and_then(|cells| cells.get(at)).copied().unwrap_or_default();
        (start..end).map(cell).collect()
    }

    /// A pull that ends too early leaves some of its bytes: so many cells.
    fn pull_some(&mut self, index: u16, pull: &Pulling) -> usize {
        let Ok(cells) = self.source(index, pull) else { return 0 };
        let (start, end) = cells_of(pull.operation.range);
        let some = start + self.random.uniform((end - start + 1) as u64) as usize;
        let range = ByteRange { end: some as u64 * CELL, ..pull.operation.range };
        let place = (pull.of.unit, pull.operation.object);
        let store = &mut self.hosts[usize::from(index)].store;
        put(store, place, range, |at| cells[at - start]);
        some - start
    }

    fn serve(&mut self, index: u16, ticket: u64) {
        if self.serve_writeback(index, ticket) {
            return;
        }
        let Some((id, Some(read))) = self.tickets.get(&ticket).copied() else { return };
        let unit = self.unit_of_read(&id);
        let Some(unit) = unit else { return };
        self.check_may_be_read(index, unit);
        let (start, end) = cells_of(read.range);
        let cells = self.cells(index, unit, read.object, (start, end));
        let flipped = cells.iter().position(|cell| cell.is_flipped);
        let reply = match flipped {
            Some(_) if cells.iter().any(|cell| cell.is_spoiled) => Reply::Corrupt,
            Some(at) if self.found_flipped(index, unit, read.object, (start + at) as u64) => {
                Reply::Answer(Answer::Busy)
            }
            Some(_) => Reply::Corrupt,
            None => Reply::Bytes(cells),
        };
        self.reply(index, id, reply);
    }

    fn unit_of_read(&self, id: &RequestId) -> Option<UnitIndex> {
        let (_, client) = self.place_of(id.client)?;
        self.clients[client].ops.get(&id.sequence).map(|op| op.file.unit)
    }

    /// A copy that is read is one in sync, as its daemon knows.
    fn check_may_be_read(&self, index: u16, unit: UnitIndex) {
        let node = self.hosts[usize::from(index)].node.as_ref().expect("it runs");
        let row = node.table().unit(unit).and_then(|it| it.copy(DaemonIndex(index)));
        assert!(row.is_some_and(|row| row.state == CopyState::InSync), "{index} serves {unit:?}");
    }

    fn reply(&mut self, index: u16, id: RequestId, reply: Reply) {
        if let Some((place, _)) = self.place_of(id.client) {
            self.send(index, place, Note::Reply(id, reply));
        }
    }

    fn answer(&mut self, index: u16, ticket: u64, answer: Answer) {
        self.end_writeback(ticket);
        let Some(&(id, _)) = self.tickets.get(&ticket) else { return };
        if let Answer::Done(stamp) = answer {
            self.check_acknowledged(index, id, stamp);
        }
        self.reply(index, id, Reply::Answer(answer));
    }

    /// Nothing is acknowledged that a copy in sync, which may become the primary, does not have;
    /// and one daemon acknowledges in an epoch.
    fn check_acknowledged(&mut self, index: u16, id: RequestId, stamp: Stamp) {
        let Some((_, client)) = self.place_of(id.client) else { return };
        let Some(op) = self.clients[client].ops.get(&id.sequence) else { return };
        let (unit, object, cells, kind) = (op.file.unit, op.file.object, op.cells, op.kind);
        let node = self.hosts[usize::from(index)].node.as_ref().expect("it runs");
        let row = node.table().unit(unit).expect("a unit");
        assert_eq!(row.primary, Some(DaemonIndex(index)));
        let by = *self.acknowledging.entry((unit, row.epoch)).or_insert(index);
        assert_eq!(by, index, "two daemons acknowledge in epoch {} of {unit:?}", row.epoch);
        if kind != Some(Kind::Write) {
            return;
        }
        let row = self.registry.table.unit(unit).expect("a unit");
        let known = self.registry.known[usize::from(index)];
        let may_succeed = row.copies.iter().filter(|copy| {
            let is_passed = row.primary == Some(DaemonIndex(index)) && copy.left_at <= known;
            copy.state == CopyState::InSync || copy.left_at > 0 && !is_passed
        });
        for copy in may_succeed.map(|copy| copy.daemon).collect::<Vec<_>>() {
            let host = &self.hosts[usize::from(copy.0)];
            if host.node.is_none() {
                continue;
            }
            let found = self.cells(copy.0, unit, object, (cells.0 as usize, cells.1 as usize));
            for cell in found.iter().filter(|cell| cell.write != 0) {
                let has = cell.stamp >= stamp;
                let write = write_number(id);
                assert!(has, "{write} {stamp:?} is acknowledged, {copy:?} has {cell:?}");
            }
        }
    }
}

/// Changes cells of a range.
fn put(
    store: &mut BTreeMap<(UnitIndex, Object), Vec<Cell>>,
    place: (UnitIndex, Object),
    range: ByteRange,
    cell: impl Fn(usize) -> Cell,
) {
    let (start, end) = cells_of(range);
    let cells = store.entry(place).or_default();
    if cells.len() < end {
        cells.resize(end, Cell::default());
    }
    for (at, place) in cells.iter_mut().enumerate().take(end).skip(start) {
        *place = cell(at);
    }
}
