//! Shells of three daemons over a transport of tests: packets, and what a target has to say, wait until
//! they are passed on, the bytes of copies are maps, and the table is one for all. Logs are on files that
//! forget and refuse.

mod counts;
mod with_members;

use super::*;
use crate::units::kept_log::KeptLogPlace;
use crate::units::object::object_of;
use encoding::Decode as _;
use replicas::node::{Read, Request, TICK_NANOS, Window};
use replicas::operation::{Kind, RequestId, Requested, Stamp};
use replicas::policy::{self, Advice};
use replicas::space::Spaces;
use replicas::table::CopyState;
use shm::Segment;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use store::fault::FaultyFiles;
use store::{Expected, Identity};
use wire::{Errno, Inode, client_id};

const SECOND: i64 = 1_000_000_000;
const LEASE: i64 = SECOND / 2;
const OBJECT: Object = object_of(Inode(5), 16, 2);
const UNIT: UnitIndex = UnitIndex(0);
/// The daemon of the client.
const AGENT: u16 = 1;
const CLIENT: u64 = client_id::first(DaemonIndex(AGENT), 1);

/// The way between the daemons, and their bytes.
#[derive(Default)]
struct Wires {
    packets: VecDeque<(u16, u16, Vec<u8>)>,
    proposals: VecDeque<(u16, Change)>,
    /// Pulls whose bytes a target has taken, which says so next.
    stored: VecDeque<(u16, u64)>,
    stores: BTreeMap<(u16, UnitIndex, Object), Vec<u8>>,
    /// Bytes of requests, at the daemons that clients sent them to.
    buffers: BTreeMap<(u16, RequestId), Vec<u8>>,
    /// Requests at daemons, and the ones that clients sent them to last.
    agents: BTreeMap<(u16, RequestId), DaemonIndex>,
    answers: BTreeMap<u64, Answer>,
    served: BTreeMap<u64, Vec<u8>>,
    /// Reads of bytes that failed their checksum, and whether they come from another copy.
    corrupt: BTreeMap<u64, bool>,
    /// Bytes at daemons that fail their checksum, until they are written.
    flips: BTreeMap<u16, ByteRange>,
    /// Ends of asks of services.
    clears: BTreeMap<u64, bool>,
    /// Bytes of units at daemons, as they were counted last.
    counted: BTreeMap<(u16, UnitIndex), Option<UnitBytes>>,
    /// Daemons whose targets do not change bytes at the moment.
    unchangeable: BTreeSet<u16>,
}

/// The performer of a daemon.
struct Fake {
    me: u16,
    wires: Rc<RefCell<Wires>>,
}

impl Wires {
    fn write(&mut self, place: (u16, UnitIndex, Object), range: ByteRange, bytes: &[u8]) {
        let store = self.stores.entry(place).or_default();
        let (start, end) = (range.start as usize, range.end as usize);
        store.resize(store.len().max(end), 0);
        store[start..end].copy_from_slice(bytes);
    }

    fn read(&self, place: (u16, UnitIndex, Object), range: ByteRange) -> Vec<u8> {
        let store = self.stores.get(&place);
        let byte = |at: u64| store.and_then(|it| it.get(at as usize)).copied().unwrap_or(0);
        (range.start..range.end).map(byte).collect()
    }
}

impl Performer for Fake {
    fn send(&mut self, to: DaemonIndex, packet: &[u8]) {
        self.wires.borrow_mut().packets.push_back((self.me, to.0, packet.to_vec()));
    }

    fn end_round(&mut self, _: &Counters) {}

    fn counted(&mut self, unit: UnitIndex, bytes: Option<UnitBytes>) {
        self.wires.borrow_mut().counted.insert((self.me, unit), bytes);
    }

    fn stored(&mut self, _: u64, stored: StoreAnswer, _: i64) -> Option<bool> {
        Some(stored == StoreAnswer::Done)
    }

    fn tick(&mut self, _: i64) {}

    fn clear_ended(&mut self, (ticket, is_done): ClearEnd) {
        self.wires.borrow_mut().clears.insert(ticket, is_done);
    }

    fn propose(&mut self, change: &Change) {
        self.wires.borrow_mut().proposals.push_back((self.me, *change));
    }

    fn store(&mut self, job: &PullJob, bytes: Vec<u8>) {
        let PullJob { ticket, of, operation, .. } = job;
        let mut wires = self.wires.borrow_mut();
        wires.flips.remove(&self.me);
        wires.write((self.me, of.unit, operation.object), operation.range, &bytes);
        wires.stored.push_back((self.me, *ticket));
    }

    fn read(&mut self, _: ReadBy, of: (UnitIndex, Object), range: ByteRange) -> CopyBytes {
        let (unit, object) = of;
        let wires = self.wires.borrow();
        match wires.flips.get(&self.me).filter(|flipped| flipped.overlaps(range)) {
            Some(_) => Err(range),
            None => Ok(wires.read((self.me, unit, object), range)),
        }
    }

    fn agent_of(&self, id: RequestId) -> Option<DaemonIndex> {
        self.wires.borrow().agents.get(&(self.me, id)).copied()
    }

    fn client_bytes(&mut self, id: RequestId, range: ByteRange) -> Option<Vec<u8>> {
        let bytes = self.wires.borrow().buffers.get(&(self.me, id)).cloned();
        bytes.inspect(|bytes| assert_eq!(bytes.len() as u64, range.length()))
    }

    fn change(&mut self, unit: UnitIndex, operation: &Operation) -> Result<(), Errno> {
        let place = (self.me, unit, operation.object);
        let mut wires = self.wires.borrow_mut();
        if wires.unchangeable.contains(&self.me) {
            return Err(Errno::EIO);
        }
        match operation.kind {
            Kind::Punch => {
                let zeros = vec![0; operation.range.length() as usize];
                wires.write(place, operation.range, &zeros);
            }
            Kind::Remove | Kind::Begin => drop(wires.stores.remove(&place)),
            kind => panic!("{kind:?} has bytes, or is not asked for here"),
        }
        Ok(())
    }

    fn erase(&mut self, unit: UnitIndex, object: Object) -> Result<(), Errno> {
        self.wires.borrow_mut().stores.remove(&(self.me, unit, object));
        Ok(())
    }

    fn loss_known(&mut self, ticket: u64, _: LossAnswer) {
        panic!("request {ticket}: no service is asked here");
    }

    fn push_answered(&mut self, asked: PushAttempt, _: PushAnswer) {
        panic!("{asked:?}: no program pushes here");
    }

    fn answer(&mut self, ticket: u64, answer: Answer) {
        self.wires.borrow_mut().answers.insert(ticket, answer);
    }

    fn reply(&mut self, ticket: u64, bytes: Vec<u8>) {
        self.wires.borrow_mut().served.insert(ticket, bytes);
    }

    fn end_corrupt(&mut self, ticket: u64, is_repaired: bool) {
        self.wires.borrow_mut().corrupt.insert(ticket, is_repaired);
    }

    fn notify(&mut self, _: &Notice) {}

    fn store_notice(&mut self, _: &Notice) -> bool {
        true
    }
}

fn is_ask(packet: &[u8]) -> bool {
    matches!(Packet::from_bytes(packet).expect("what a shell sent"), Packet::Ask(_))
}

/// Three daemons in as many failure domains, each the home of two units with two copies.
struct Instance {
    shells: Vec<Option<Shell<Fake, FaultyFiles>>>,
    /// Files and progress of each log.
    files: Vec<FaultyFiles>,
    words: Vec<u64>,
    starts: Vec<u64>,
    table: Table,
    down_at: i64,
    now: i64,
    wires: Rc<RefCell<Wires>>,
}

fn settings(own: DaemonIndex) -> Settings {
    Settings {
        own,
        slice_bytes: 16,
        fill_bytes_per_second: 0,
        behind_bytes_max: 0,
        client: Window::CLIENT,
        peer: Window::PEER,
    }
}

fn place(index: u16, files: &FaultyFiles, word: u64) -> KeptLogPlace<FaultyFiles> {
    let progress = Segment::private(8).expect("a page");
    progress.word64(0).expect("a word").store(word, Release);
    KeptLogPlace {
        files: files.clone(),
        path: PathBuf::from("units"),
        identity: Identity::of_daemon(7, index),
        expected: Expected::New,
        progress,
        step_bytes: 4096,
    }
}

impl Instance {
    fn new() -> Instance {
        let table = Table::initial(&[0, 1, 2], &[2], 2, false).expect("a setup");
        let mut instance = Instance {
            shells: (0..3).map(|_| None).collect(),
            files: (0..3).map(|_| FaultyFiles::new()).collect(),
            words: vec![0; 3],
            starts: vec![0; 3],
            table,
            down_at: -LEASE,
            now: SECOND,
            wires: Rc::default(),
        };
        (0..3).for_each(|index| instance.start(index));
        instance.run(SECOND);
        instance
    }

    fn start(&mut self, index: u16) {
        let at = usize::from(index);
        self.starts[at] += 1;
        self.files[at] = self.files[at].after_kill();
        let log = KeptLog::open(place(index, &self.files[at], self.words[at])).expect("a log");
        let settings = settings(DaemonIndex(index));
        let performer = Fake { me: index, wires: Rc::clone(&self.wires) };
        let clears = RunningClears::new(DaemonIndex(index), self.starts[at]);
        let parts = (performer, clears);
        let shell = Shell::new(settings, self.table.clone(), log, parts, self.now);
        self.shells[at] = Some(shell);
        self.stand(index);
    }

    /// The process ends; its target says nothing any more.
    fn kill(&mut self, index: u16) {
        let at = usize::from(index);
        let shell = self.shells[at].take().expect("it runs");
        self.words[at] = shell.log.progress_word();
        self.wires.borrow_mut().stored.retain(|(by, _)| *by != index);
    }

    /// It counts as dead from now on.
    fn bury(&mut self, index: u16) {
        let incarnation = self.starts[usize::from(index)];
        let down = Change::Down { daemon: DaemonIndex(index), incarnation, known: u64::MAX };
        self.table.apply(&down).expect("it took part");
        self.down_at = self.now;
        self.stand_all();
    }

    fn come(&mut self, index: u16) {
        self.start(index);
        let (incarnation, domain) = (self.starts[usize::from(index)], u32::from(index));
        let daemon = DaemonIndex(index);
        let up = Change::Up { daemon, incarnation, domain, is_empty: false, known: u64::MAX };
        self.table.apply(&up).expect("it was down");
        self.stand_all();
    }

    fn input(&mut self, index: u16, event: Event) {
        if let Some(shell) = &mut self.shells[usize::from(index)] {
            shell.input(event, self.now).expect("space");
        }
    }

    fn stand(&mut self, index: u16) {
        let settled = if self.now - self.down_at > LEASE { self.table.version } else { 0 };
        let (table, incarnation) = (Arc::new(self.table.clone()), self.starts[usize::from(index)]);
        let granted = table.version;
        let view =
            MemberView { table, incarnation, lease_until: self.now + LEASE, granted, settled };
        self.input(index, Event::MemberView(view));
    }

    fn stand_all(&mut self) {
        (0..3).for_each(|index| self.stand(index));
    }

    fn run(&mut self, nanos: i64) {
        let end = self.now + nanos;
        while self.now < end {
            self.now += TICK_NANOS;
            for index in 0..3 {
                if let Some(shell) = &mut self.shells[index] {
                    shell.tick(self.now).expect("space");
                }
            }
            for advice in policy::next(&self.table, &Spaces::default()) {
                match advice {
                    Advice::Propose(change) => {
                        self.wires.borrow_mut().proposals.push_back((0, change));
                    }
                    Advice::HandOver(to) => {
                        let unit = self.table.unit(to.of.unit).expect("a unit");
                        let primary = unit.primary.expect("advice is for primaries");
                        self.input(primary.0, Event::Advice(to));
                    }
                }
            }
            self.stand_all();
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        loop {
            let proposal = self.wires.borrow_mut().proposals.pop_front();
            if let Some((_, change)) = proposal {
                if self.table.apply(&change).is_ok() {
                    self.stand_all();
                }
                continue;
            }
            let packet = self.wires.borrow_mut().packets.pop_front();
            if let Some((from, to, bytes)) = packet {
                let packet = Packet::from_bytes(&bytes).expect("what a shell sent");
                self.input(to, Event::Packet(DaemonIndex(from), packet));
                continue;
            }
            let stored = self.wires.borrow_mut().stored.pop_front();
            let Some((by, ticket)) = stored else { return };
            self.input(by, Event::Stored(ticket, StoreAnswer::Done));
        }
    }

    fn primary(&self) -> u16 {
        self.table.unit(UNIT).and_then(|unit| unit.primary).expect("a primary").0
    }

    /// The daemons with a copy of the unit in sync, in their order.
    fn copies(&self) -> Vec<u16> {
        let unit = self.table.unit(UNIT).expect("a unit");
        let mut copies: Vec<u16> = unit.with(CopyState::InSync).map(|it| it.0).collect();
        copies.sort_unstable();
        copies
    }

    /// Request number `sequence` of a client, which writes 8 bytes of this number behind each other.
    fn ask(&mut self, ticket: u64, sequence: u64) {
        self.ask_for(ticket, sequence, ByteRange { start: 8 * sequence, end: 8 * sequence + 8 });
    }

    fn ask_for(&mut self, ticket: u64, sequence: u64, range: ByteRange) {
        let id = RequestId { client: CLIENT, sequence };
        self.wires.borrow_mut().buffers.insert((AGENT, id), vec![sequence as u8; 8]);
        self.send(ticket, id, range);
    }

    fn send(&mut self, ticket: u64, id: RequestId, range: ByteRange) {
        let requested = Requested { id, oldest: 1, is_behind: false };
        let epoch = self.table.unit(UNIT).expect("a unit").epoch;
        let (object, kind) = (OBJECT, Kind::Write);
        let request = Request { ticket, epoch, object, range, kind, requested, born: 1 };
        self.input(self.primary(), Event::Request(UNIT, request));
    }

    fn answer(&self, ticket: u64) -> Option<Answer> {
        self.wires.borrow().answers.get(&ticket).copied()
    }

    fn done(&self, ticket: u64) -> Stamp {
        match self.answer(ticket) {
            Some(Answer::Done(stamp)) => stamp,
            answer => panic!("request {ticket} is not done: {answer:?}"),
        }
    }

    /// Both copies have exactly the bytes of these requests, and each log has what its node keeps.
    fn assert_equal_copies(&mut self, sequences: std::ops::RangeInclusive<u64>) {
        let copies = self.copies();
        assert_eq!(copies.len(), 2, "{:?}", self.table.unit(UNIT));
        let range = ByteRange { start: 0, end: 8 * sequences.end() + 8 };
        let mut expected = vec![0; range.end as usize];
        for sequence in sequences {
            let start = 8 * sequence as usize;
            expected[start..start + 8].fill(sequence as u8);
        }
        for daemon in copies {
            assert_eq!(
                self.wires.borrow().read((daemon, UNIT, OBJECT), range),
                expected,
                "d{daemon}"
            );
        }
        for index in 0..3 {
            let Some(shell) = &self.shells[usize::from(index)] else { continue };
            let (files, word) =
                (self.files[usize::from(index)].after_kill(), shell.log.progress_word());
            let (_, kept) = KeptLog::open(place(index, &files, word)).expect("a log");
            assert_eq!(&kept, shell.node.kept(), "d{index}");
        }
    }
}

#[test]
fn a_write_is_answered_when_both_copies_have_it() {
    let mut instance = Instance::new();
    assert_eq!((instance.primary(), instance.copies().len()), (0, 2));
    for sequence in 1..=20 {
        instance.ask(sequence, sequence);
        assert_eq!(instance.answer(sequence), None, "no copy has it yet");
        instance.pass_on();
        instance.done(sequence);
    }
    instance.assert_equal_copies(1..=20);
    // A repetition is answered as the request was, whatever the client has in its buffer now.
    let first = instance.done(7);
    instance.ask(107, 7);
    instance.wires.borrow_mut().buffers.clear();
    instance.pass_on();
    assert_eq!(instance.done(107), first);
    instance.assert_equal_copies(1..=20);
}

#[test]
fn a_request_is_made_once_whatever_the_primary_had_done_when_it_was_killed() {
    // The request had come so far: nobody had the bytes, the primary had them, the other copy had them.
    for progress in 0..3 {
        let mut instance = Instance::new();
        instance.ask(1, 1);
        instance.pass_on();
        let first = instance.done(1);
        instance.ask(2, 2);
        {
            let mut wires = instance.wires.borrow_mut();
            assert_eq!(wires.packets.len(), 2, "an order, and an ask for the client's bytes");
            wires.packets.retain(|(_, _, bytes)| match progress {
                0 => false,
                1 => is_ask(bytes),
                _ => !is_ask(bytes),
            });
        }
        if progress == 1 {
            instance.pass_on();
        }
        instance.kill(0);
        instance.pass_on();
        assert_eq!(instance.answer(2), None);
        instance.bury(0);
        assert_ne!(instance.primary(), 0);
        instance.ask(102, 2);
        instance.run(LEASE / 2);
        assert!(!matches!(instance.answer(102), Some(Answer::Done(_))), "the old lease");
        instance.run(LEASE);
        instance.ask(202, 2);
        instance.run(2 * SECOND);
        let second = instance.done(202);
        // The copy that had the operation goes on with it under its own stamp.
        assert_eq!(second.epoch, if progress == 2 { first.epoch } else { first.epoch + 1 });
        instance.assert_equal_copies(1..=2);
        // The daemon returns, catches up, and is the primary again, as it is the unit's home.
        instance.come(0);
        instance.run(5 * SECOND);
        assert_eq!(instance.primary(), 0);
        assert!(policy::next(&instance.table, &Spaces::default()).is_empty());
        instance.ask(302, 2);
        instance.pass_on();
        assert_eq!(instance.done(302), second, "it is known at each primary");
        instance.ask(3, 3);
        instance.pass_on();
        instance.done(3);
        instance.assert_equal_copies(1..=3);
    }
}

/// The daemon of a client is killed, and the client sends its request again to another one of its host.
#[test]
fn a_request_goes_on_with_the_bytes_at_the_next_daemon_of_its_client() {
    let mut instance = Instance::new();
    let (primary, copies) = (instance.primary(), instance.copies());
    let agent = (0..3).find(|index| !copies.contains(index)).expect("two of three have copies");
    instance.kill(agent);
    for (sequence, &next) in (1..).zip(&copies) {
        let id = RequestId { client: client_id::first(DaemonIndex(agent), 1), sequence };
        let range = ByteRange { start: 8 * sequence, end: 8 * sequence + 8 };
        instance.send(sequence, id, range);
        instance.run(SECOND / 20);
        instance.wires.borrow_mut().buffers.insert((next, id), vec![sequence as u8; 8]);
        for at in [primary, next] {
            instance.wires.borrow_mut().agents.insert((at, id), DaemonIndex(next));
        }
        instance.send(100 + sequence, id, range);
        instance.run(SECOND);
        instance.done(100 + sequence);
        assert_eq!(instance.answer(sequence), None, "the last one is answered");
    }
    assert_eq!(instance.copies(), copies, "each was given the bytes in time");
    instance.assert_equal_copies(1..=2);
}

#[test]
fn nothing_is_done_that_follows_a_step_which_is_not_stored() {
    for failing in [0, 1] {
        let mut instance = Instance::new();
        assert!(instance.wires.borrow().packets.is_empty());
        let copies = instance.copies();
        let victim = copies[failing];
        instance.files[usize::from(victim)].die_after(1);
        let id = RequestId { client: CLIENT, sequence: 1 };
        let range = ByteRange { start: 0, end: 8 };
        let requested = Requested { id, oldest: 1, is_behind: false };
        let (object, kind, epoch) = (OBJECT, Kind::Write, 1);
        let request = Request { ticket: 1, epoch, object, range, kind, requested, born: 1 };
        instance.wires.borrow_mut().buffers.insert((AGENT, id), vec![1; 8]);
        let now = instance.now;
        let primary = instance.shells[0].as_mut().expect("it runs");
        let mut outcome = primary.input(Event::Request(UNIT, request), now);
        if failing == 1 {
            outcome.expect("the primary has space");
            let packets = std::mem::take(&mut instance.wires.borrow_mut().packets);
            let order = packets.into_iter().find(|(_, _, bytes)| !is_ask(bytes));
            let (from, to, bytes) = order.expect("an order");
            assert_eq!(to, victim);
            let packet = Packet::from_bytes(&bytes).expect("what a shell sent");
            let copy = instance.shells[usize::from(victim)].as_mut().expect("it runs");
            outcome = copy.input(Event::Packet(DaemonIndex(from), packet), now);
        }
        assert_eq!(outcome.map_err(|error| error.errno()), Err(Errno::EIO));
        let wires = instance.wires.borrow();
        assert!(wires.packets.is_empty() && wires.stores.is_empty());
    }
}

#[test]
fn bytes_that_fail_their_checksum_come_from_the_other_copy() {
    let mut instance = Instance::new();
    instance.ask(1, 1);
    instance.pass_on();
    instance.done(1);
    let range = ByteRange { start: 8, end: 16 };
    instance.wires.borrow_mut().write((0, UNIT, OBJECT), range, &[99; 8]);
    instance.wires.borrow_mut().flips.insert(0, range);
    let read = |ticket| Read { ticket, client: CLIENT, object: OBJECT, range, born: 1 };
    instance.input(0, Event::Read(UNIT, read(11)));
    assert_eq!(instance.wires.borrow().corrupt, BTreeMap::from([(11, true)]));
    // The next read waits for the bytes.
    instance.input(0, Event::Read(UNIT, read(12)));
    assert!(instance.wires.borrow().served.is_empty());
    instance.pass_on();
    assert_eq!(instance.wires.borrow().served, BTreeMap::from([(12, vec![1; 8])]));
    instance.assert_equal_copies(1..=1);
    // Without another copy it is an error.
    let other = instance.copies()[1];
    instance.kill(other);
    instance.bury(other);
    let third = 3 - other;
    instance.kill(third);
    instance.bury(third);
    instance.run(SECOND);
    instance.wires.borrow_mut().flips.insert(0, range);
    instance.input(0, Event::Read(UNIT, read(13)));
    assert_eq!(instance.wires.borrow().corrupt.get(&13), Some(&false));
}

/// Copies with different damaged pages have all bytes together; and a page that nobody reads is repaired.
#[test]
fn damaged_pages_come_one_by_one_from_the_other_copy() {
    let mut instance = Instance::new();
    instance.ask(1, 1);
    instance.pass_on();
    instance.done(1);
    let other = instance.copies()[1];
    let byte = |at| ByteRange { start: at, end: at + 1 };
    instance.wires.borrow_mut().flips = BTreeMap::from([(0, byte(9)), (other, byte(4200))]);
    let range = ByteRange { start: 8, end: 8000 };
    let read = |ticket| Read { ticket, client: CLIENT, object: OBJECT, range, born: 1 };
    instance.input(0, Event::Read(UNIT, read(11)));
    instance.input(0, Event::Read(UNIT, read(12)));
    instance.pass_on();
    assert_eq!(instance.wires.borrow().corrupt, BTreeMap::from([(11, true)]));
    let expected = [vec![1; 8], vec![0; 7984]].concat();
    assert_eq!(instance.wires.borrow().served, BTreeMap::from([(12, expected)]));
    assert_eq!(instance.wires.borrow().flips, BTreeMap::from([(other, byte(4200))]));
    // The scrub finds the other one. Bytes of no object are not asked for.
    instance.input(other, Event::Damaged(OBJECT.inode, (1 << 16) + 4096));
    instance.pass_on();
    assert_eq!(instance.wires.borrow().flips.len(), 1);
    instance.input(other, Event::Damaged(OBJECT.inode, (2 << 16) + 4096));
    instance.pass_on();
    assert!(instance.wires.borrow().flips.is_empty());
    instance.assert_equal_copies(1..=1);
}

#[test]
fn bytes_that_no_copy_has_are_an_error_until_they_are_written() {
    let mut instance = Instance::new();
    instance.ask(1, 1);
    instance.pass_on();
    instance.done(1);
    let range = ByteRange { start: 8, end: 16 };
    let copies = instance.copies();
    for daemon in &copies {
        instance.wires.borrow_mut().flips.insert(*daemon, range);
    }
    let read = |ticket| Read { ticket, client: CLIENT, object: OBJECT, range, born: 1 };
    instance.input(0, Event::Read(UNIT, read(11)));
    instance.run(SECOND);
    // They could have been at the other copy.
    assert_eq!(instance.wires.borrow().corrupt, BTreeMap::from([(11, true)]));
    let are_spoiled = |instance: &Instance| {
        copies.iter().all(|&daemon| {
            let at = usize::from(daemon);
            let shell = instance.shells[at].as_ref().expect("it runs");
            let (files, word) = (instance.files[at].after_kill(), shell.log.progress_word());
            let (log, _) = KeptLog::open(place(daemon, &files, word)).expect("a log");
            let is_spoiled = log.is_spoiled(UNIT, OBJECT, range);
            assert_eq!(is_spoiled, shell.log.is_spoiled(UNIT, OBJECT, range), "d{daemon}");
            is_spoiled
        })
    };
    assert!(are_spoiled(&instance), "also after a restart");
    // Without another question, although the bytes look well.
    instance.wires.borrow_mut().flips.clear();
    instance.input(0, Event::Read(UNIT, read(12)));
    assert_eq!(instance.wires.borrow().corrupt.get(&12), Some(&false));
    instance.ask_for(2, 2, range);
    instance.pass_on();
    instance.done(2);
    assert!(!are_spoiled(&instance));
    instance.input(0, Event::Read(UNIT, read(13)));
    assert_eq!(instance.wires.borrow().served, BTreeMap::from([(13, vec![2; 8])]));
}

/// A copy whose target does not make a hole has bytes that no other copy has.
#[test]
fn a_change_that_a_target_refuses_is_made_by_the_bytes_of_another_copy() {
    let mut instance = Instance::new();
    instance.ask(1, 1);
    instance.pass_on();
    instance.done(1);
    let range = ByteRange { start: 8, end: 16 };
    let other = instance.copies()[1];
    instance.wires.borrow_mut().unchangeable.insert(other);
    let id = RequestId { client: CLIENT, sequence: 2 };
    let requested = Requested { id, oldest: 1, is_behind: false };
    let (ticket, epoch, object, kind) = (2, 1, OBJECT, Kind::Punch);
    let request = Request { ticket, epoch, object, range, kind, requested, born: 1 };
    instance.input(0, Event::Request(UNIT, request));
    // The order alone: the copy is not repaired yet, and is not read.
    let order = instance.wires.borrow_mut().packets.pop_front().expect("an order");
    assert_eq!((order.0, order.1), (0, other));
    let packet = Packet::from_bytes(&order.2).expect("what a shell sent");
    instance.input(other, Event::Packet(DaemonIndex(0), packet));
    let is_spoiled = |instance: &Instance| {
        let shell = instance.shells[usize::from(other)].as_ref().expect("it runs");
        shell.log.is_spoiled(UNIT, OBJECT, range)
    };
    assert!(is_spoiled(&instance));
    assert_eq!(instance.wires.borrow().read((other, UNIT, OBJECT), range), [1; 8]);
    instance.run(SECOND);
    instance.done(2);
    assert!(!is_spoiled(&instance));
    for daemon in [0, other] {
        assert_eq!(instance.wires.borrow().read((daemon, UNIT, OBJECT), range), [0; 8]);
    }
}

/// The service of a file clears it: at all copies, whatever is under way.
#[test]
fn a_truncation_is_on_all_copies_when_it_is_done() {
    let mut instance = Instance::new();
    for sequence in 1..=3 {
        instance.ask(sequence, sequence);
    }
    instance.pass_on();
    // A write is under way.
    instance.ask(4, 4);
    let (offset, units) = (2 << 16, vec![UNIT]);
    let ask = |size, units| ClearAsk { inodes: vec![OBJECT.inode], size, units };
    instance.input(0, Event::Clear(50, ask(offset + 20, units.clone())));
    assert!(instance.wires.borrow().clears.is_empty(), "the other copy has it not");
    instance.pass_on();
    instance.done(4);
    assert_eq!(instance.wires.borrow().clears, BTreeMap::from([(50, true)]));
    let range = ByteRange { start: 8, end: 40 };
    let expected = [[1; 8], [2, 2, 2, 2, 0, 0, 0, 0], [0; 8], [0; 8]].concat();
    for daemon in instance.copies() {
        assert_eq!(instance.wires.borrow().read((daemon, UNIT, OBJECT), range), expected);
    }
    // Not at a copy that is not the primary, and not in a unit that is another's.
    let other = instance.copies()[1];
    instance.input(other, Event::Clear(51, ask(0, units.clone())));
    instance.input(0, Event::Clear(52, ask(0, vec![UNIT, UnitIndex(2)])));
    instance.pass_on();
    let ends = BTreeMap::from([(50, true), (51, false), (52, false)]);
    assert_eq!(instance.wires.borrow().clears, ends);
    // The part of it that could be done is done.
    for daemon in instance.copies() {
        assert!(!instance.wires.borrow().stores.contains_key(&(daemon, UNIT, OBJECT)));
        let shell = instance.shells[usize::from(daemon)].as_ref().expect("it runs");
        let kept = shell.node.kept().get(&UNIT).expect("a copy");
        assert_eq!(kept.objects().count(), 0);
    }
    instance.input(0, Event::Clear(53, ask(0, units)));
    assert_eq!(instance.wires.borrow().clears.get(&53), Some(&true), "there is nothing");
}

/// A primary that stops being it says so, and the service asks the next one.
#[test]
fn a_truncation_at_a_primary_that_dies_is_repeated_at_the_next() {
    let mut instance = Instance::new();
    instance.ask(1, 1);
    instance.pass_on();
    instance.done(1);
    let ask = ClearAsk { inodes: vec![OBJECT.inode], size: 0, units: vec![UNIT] };
    instance.input(0, Event::Clear(50, ask.clone()));
    // The other copy gets the order, and its answer does not arrive.
    let order = instance.wires.borrow_mut().packets.pop_front().expect("an order");
    let packet = Packet::from_bytes(&order.2).expect("what a shell sent");
    instance.input(order.1, Event::Packet(DaemonIndex(order.0), packet));
    instance.kill(0);
    instance.wires.borrow_mut().packets.clear();
    instance.bury(0);
    instance.run(SECOND);
    assert!(!instance.wires.borrow().clears.contains_key(&50));
    let primary = instance.primary();
    assert_eq!(primary, order.1);
    instance.input(primary, Event::Clear(51, ask));
    instance.run(SECOND);
    assert_eq!(instance.wires.borrow().clears.get(&51), Some(&true));
    for daemon in instance.copies() {
        assert!(!instance.wires.borrow().stores.contains_key(&(daemon, UNIT, OBJECT)));
    }
}

#[test]
fn a_notice_is_stored_for_the_primary_alone() {
    let mut instance = Instance::new();
    let stamp = Stamp { epoch: 1, number: 1 };
    let event = replicas::dirty::Event::Dirty;
    let notice = Notice { unit: UNIT, object: OBJECT, stamp, event };
    for (from, answers) in [(1, 0), (0, 1)] {
        instance.input(2, Event::Packet(DaemonIndex(from), Packet::Notice(notice)));
        let packets = std::mem::take(&mut instance.wires.borrow_mut().packets);
        assert_eq!(packets.len(), answers);
        let expected = encoding::Encode::to_bytes(&Packet::Noticed(notice));
        assert!(packets.iter().all(|it| *it == (2, from, expected.clone())));
    }
}

/// The thread ends with its inbox, and does what came before.
#[test]
fn the_thread_takes_the_rest_of_its_inbox() {
    let mut instance = Instance::new();
    let inbox = crate::units::UnitInbox::default();
    let id = RequestId { client: CLIENT, sequence: 1 };
    let requested = Requested { id, oldest: 1, is_behind: false };
    let range = ByteRange { start: 8, end: 16 };
    let (object, kind, epoch) = (OBJECT, Kind::Write, 1);
    instance.wires.borrow_mut().buffers.insert((AGENT, id), vec![1; 8]);
    let request = Request { ticket: 1, epoch, object, range, kind, requested, born: 1 };
    inbox.put(Event::Request(UNIT, request));
    inbox.end();
    let now = instance.now;
    let shell = instance.shells[0].as_mut().expect("it runs");
    crate::units::runner::run(shell, &inbox, || now).expect("space");
    instance.pass_on();
    instance.done(1);
    // A log that fails ends it.
    instance.files[0].die_after(1);
    let inbox = crate::units::UnitInbox::default();
    let id = RequestId { client: CLIENT, sequence: 2 };
    let requested = Requested { id, oldest: 1, is_behind: false };
    inbox.put(Event::Request(UNIT, Request { ticket: 2, requested, ..request }));
    let shell = instance.shells[0].as_mut().expect("it runs");
    let ended = crate::units::runner::run(shell, &inbox, || now).expect_err("it is dead");
    let why = ended.text;
    assert!(why.starts_with("cannot store what is kept of units: "), "{why}");
    assert_eq!(instance.answer(2), None);
}
