//! Clients of the world: operations that they begin, ask for again, and see the end of.

use super::{CELLS, CLIENT, Note, Reply, What, World};
use crate::clients::{File, Op, write_number};
use replicas::node::Answer;
use replicas::operation::{Kind, RequestId};
use replicas::table::CopyState;
use testkit::world::{MILLI, SECOND};
use wire::DaemonIndex;

impl World {
    /// A client begins an operation.
    pub(super) fn begin(&mut self, index: usize) {
        let open = self.clients[index].ops.values().filter(|op| !op.is_stored).count();
        if self.is_ending || open >= 4 || self.clients[index].ops.len() >= 10 {
            return;
        }
        self.begin_any(index);
    }

    pub(super) fn begin_any(&mut self, index: usize) {
        let file = self.files[self.random.uniform(self.files.len() as u64) as usize];
        // Where all copies are lost, some files were not changed for a while.
        let second = (self.events.now() / SECOND).cast_unsigned();
        let rests = self.setup.may_lose && (second / 2 + file.object.inode.0).is_multiple_of(2);
        self.begin_with(index, file, rests);
    }

    fn begin_with(&mut self, index: usize, file: File, is_read: bool) {
        let (a, b) = (self.random.uniform(CELLS), self.random.uniform(CELLS));
        let mut cells = (a.min(b), a.max(b) + 1);
        let kind = match self.random.uniform(20) {
            0 => Some(Kind::Punch),
            1 => Some(Kind::Remove),
            2..=11 => Some(Kind::Write),
            _ => None,
        };
        let kind = if is_read { None } else { kind };
        if kind == Some(Kind::Remove) {
            cells = (0, CELLS);
        }
        let client = &mut self.clients[index];
        client.last += 1;
        let sequence = client.last;
        let id = RequestId { client: client.number, sequence };
        let floors = self.checks.floors(file.object, cells);
        if let Some(kind) = kind {
            self.checks.begun(write_number(id), file.object, cells, kind != Kind::Write);
        }
        let op = Op {
            file,
            cells,
            kind,
            floors,
            is_for_primary: self.random.uniform(2) == 0,
            is_stored: false,
            began: self.events.now(),
            again_at: self.events.now(),
        };
        self.clients[index].ops.insert(sequence, op);
        self.ask_again(index);
    }

    pub(super) fn ask_again(&mut self, index: usize) {
        let due = self.clients[index].ops.iter().filter(|(_, op)| op.again_at <= self.events.now());
        for sequence in due.map(|(&sequence, _)| sequence).collect::<Vec<u64>>() {
            self.ask(index, sequence);
        }
    }

    fn ask(&mut self, index: usize, sequence: u64) {
        let Some(op) = self.clients[index].ops.get_mut(&sequence) else { return };
        op.again_at = self.events.now() + 250 * MILLI;
        // One that gets no answer looks at the table; others may go on with an older one.
        let looks = if op.began < self.events.now() { 2 } else { 8 };
        if self.random.uniform(looks) == 0 {
            self.tables[index] = self.registry.table.clone();
        }
        let (unit, is_for_primary) = (op.file.unit, op.is_for_primary || op.kind.is_some());
        let row = self.tables[index].unit(unit).expect("a unit");
        let mut copies: Vec<DaemonIndex> = row.with(CopyState::InSync).collect();
        if let Some(primary) = row.primary.filter(|_| is_for_primary) {
            copies = vec![primary];
        }
        let epoch = row.epoch;
        if row.primary.is_none() {
            self.tables[index] = self.registry.table.clone();
            if self.registry.table.unit(unit).is_some_and(|it| it.primary.is_none()) {
                // All copies in sync are down: an error at once.
                self.tally.unavailable += 1;
                self.clients[index].ops.remove(&sequence);
            }
            return;
        }
        let to = copies[self.random.uniform(copies.len() as u64) as usize].0;
        // Sometimes the message comes twice, and late.
        for _ in 0..1 + u64::from(self.random.uniform(20) == 0) {
            self.tickets_given += 1;
            let ticket = self.tickets_given;
            let client = &self.clients[index];
            let id = RequestId { client: client.number, sequence };
            let note = match client.request(sequence, ticket, epoch) {
                Some(request) => Note::Request(unit, request),
                None => Note::Read(unit, client.read(sequence, ticket).expect("a read")),
            };
            let read = client.read(sequence, ticket).filter(|_| matches!(note, Note::Read(..)));
            self.tickets.insert(ticket, (id, read));
            self.send(CLIENT + index as u16, to, note);
        }
        // Between others' messages and after this client's answers a repetition may be very late.
        if self.random.uniform(30) == 0 && self.clients[index].ops[&sequence].kind.is_some() {
            self.tickets_given += 1;
            let request = self.clients[index].request(sequence, self.tickets_given, epoch);
            let note = Note::Request(unit, request.expect("a change"));
            let late = self.random.uniform(2 * SECOND as u64).cast_signed();
            self.push(late, What::Arrive { from: CLIENT + index as u16, to, note });
        }
    }

    pub(super) fn at_client(&mut self, index: usize, note: Note) {
        let Note::Reply(id, reply) = note else { return };
        let client = &mut self.clients[index];
        if client.number != id.client {
            return;
        }
        let Some(op) = client.ops.get_mut(&id.sequence) else { return };
        let (file, took) = (op.file, self.events.now() - op.began);
        match reply {
            Reply::Answer(Answer::Done(stamp)) => {
                self.checks.acknowledged(write_number(id), stamp, &op.floors);
                self.tally.written += 1;
            }
            Reply::Bytes(cells) => {
                let is_kept = !file.is_behind;
                self.checks.read(file.object, op.cells.0, &cells, &op.floors, is_kept);
                self.tally.read += 1;
            }
            Reply::Answer(Answer::Stored) => {
                assert!(file.is_behind);
                op.is_stored = true;
                return;
            }
            Reply::Answer(Answer::AskPrimary) => {
                (op.is_for_primary, op.again_at) = (true, self.events.now());
                return self.ask(index, id.sequence);
            }
            Reply::Answer(Answer::Busy) => {
                self.tally.busy += 1;
                op.again_at = self.events.now() + 20 * MILLI;
                return;
            }
            Reply::Answer(Answer::Stale) => {
                op.again_at = self.events.now() + 10 * MILLI;
                self.tables[index] = self.registry.table.clone();
                return;
            }
            Reply::Answer(Answer::Lost) => {
                let unit = self.registry.table.unit(file.unit).expect("a unit");
                assert!(unit.lost_at > file.born && self.setup.may_lose, "{file:?} is lost");
                self.tally.lost += 1;
                self.make_again(file);
            }
            Reply::Answer(Answer::Failed) => self.tally.failed += 1,
            Reply::Corrupt => self.tally.corrupt += 1,
        }
        self.tally.longest = self.tally.longest.max(took);
        let op = self.clients[index].ops.remove(&id.sequence);
        // Reads of a file come one after the other, so that copies are asked while they may answer.
        let is_read = op.is_some_and(|op| op.kind.is_none());
        if is_read && !self.is_ending && self.random.uniform(4) > 0 {
            self.begin_with(index, file, true);
        }
    }

    /// A file whose bytes are lost is made again, under another number.
    fn make_again(&mut self, file: File) {
        if let Some(place) = self.files.iter().position(|it| it.object == file.object) {
            self.files[place] = self.new_file(file.is_behind);
        }
    }
}
