//! Programs on the hosts, each with one request at a time, and the daemon of its host as the agent: the
//! place of the bytes, the request and the answer are the agent's, and the way to the primary is as in
//! `units::ways`.

use super::*;
use crate::units::AWAITED_TIME_MAX;
use crate::units::agent::{FileBytes, FileShape, UnitPlace, reply_of};
use crate::units::losses::LossesNow;
use wire::Reply;
use wire::losses::LostUnits;

/// Bytes of a cell, and cells of an object.
pub(super) const CELL: u64 = 8;
pub(super) const CELLS: u64 = 8;
const OBJECT_LOG2: u8 = 16;
/// A request without an answer is sent again after this time.
pub(super) const AGAIN: i64 = 300 * MILLI;
/// So long copies wait for the bytes of a client that cannot be reached.
const TORN: i64 = 2 * SECOND;

/// A file with one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CopiedFile {
    pub(super) inode: u64,
    copies: u8,
    home: DaemonIndex,
    stripe: u64,
    /// The last loss of a unit that it is younger than.
    pub(super) born: u64,
}

/// The answer of a daemon to a ticket.
#[derive(Debug)]
pub(super) enum Outcome {
    Answer(Answer),
    Bytes(Vec<u8>),
}

/// Whether a list of units has that of a file, for files of its age.
fn is_listed(rows: &[LostUnits], per_target: u16, place: &UnitPlace, file: &CopiedFile) -> bool {
    let number = place.unit.0 % u32::from(per_target);
    let is_its = |row: &LostUnits| (row.copies, row.target) == (file.copies, file.home.0);
    let is_of = |row: &LostUnits| is_its(row) && row.units >> number & 1 != 0;
    rows.iter().any(|row| is_of(row) && file.born < row.since)
}

struct ClientOp {
    file: CopiedFile,
    cells: (u64, u64),
    /// Of a write.
    value: Option<u64>,
    began: i64,
    again_at: i64,
    /// The copy at the agent may not be read now.
    is_for_primary: bool,
    /// Start of the agent that was asked.
    start: u64,
    id: RequestId,
    /// It is a write that was pushed to an earlier start.
    pushed: Option<u64>,
}

/// See the module.
pub(super) struct AgentClient {
    /// The daemon of its host.
    pub(super) agent: u16,
    number: u64,
    sequence: u64,
    op: Option<ClientOp>,
}

impl AgentClient {
    /// The operation that it waits for, in words.
    pub(super) fn waits(&self) -> Option<String> {
        let op = self.op.as_ref()?;
        let (cells, file, began) = (op.cells, op.file, op.began);
        let id = (self.number, self.sequence);
        Some(format!("{id:?} at d{} waits since {began} for {cells:?} of {file:?}", self.agent))
    }

    /// Whether it waits for an operation.
    pub(super) const fn is_waiting(&self) -> bool {
        self.op.is_some()
    }

    fn id(&self) -> Option<RequestId> {
        self.op.as_ref().map(|op| op.id)
    }
}

impl Deaths {
    pub(super) fn begin_clients(&mut self) {
        for _ in 0..self.setup.files {
            let file = self.new_file();
            self.files.push(file);
        }
        for index in 0..CLIENTS {
            let agent = self.random.uniform(self.setup.daemons.into()) as u16;
            let client = self.new_client(agent);
            self.clients.push(client);
            self.events.push(MILLI, Happening::Client(index));
        }
    }

    fn new_client(&mut self, agent: u16) -> AgentClient {
        self.sessions_given += 1;
        let first = client_id::first(DaemonIndex(agent), self.host(agent).start);
        let number = first + self.sessions_given * client_id::PER_SESSION;
        AgentClient { agent, number, sequence: 0, op: None }
    }

    /// Programs die with their host; others begin there.
    pub(super) fn replace_clients_of(&mut self, agent: u16) {
        for index in 0..CLIENTS {
            if self.clients[index].agent == agent {
                self.pushed.retain(|_, push| push.client != index);
                // The next start has the next number.
                self.host(agent).start += 1;
                self.clients[index] = self.new_client(agent);
                self.host(agent).start -= 1;
            }
        }
    }

    fn new_file(&mut self) -> CopiedFile {
        self.inodes_given += 1;
        let home = DaemonIndex(self.random.uniform(self.setup.daemons.into()) as u16);
        let (stripe, born) = (self.random.uniform(3), self.newest.newest_loss());
        let copies = 2 + self.random.uniform(u64::from(self.setup.copies) - 1) as u8;
        CopiedFile { inode: 100 + self.inodes_given, copies, home, stripe, born }
    }

    pub(super) fn place_of(
        &self,
        table: &Table,
        file: &CopiedFile,
        cells: (u64, u64),
    ) -> UnitPlace {
        let offset = (file.stripe << OBJECT_LOG2) + cells.0 * CELL;
        let length = (cells.1 - cells.0) * CELL;
        let bytes = FileBytes { home: file.home, inode: Inode(file.inode), offset, length };
        let shape = FileShape { copies: file.copies, object_log2: OBJECT_LOG2 };
        UnitPlace::of(table, shape, &bytes).expect("a place")
    }

    /// The daemon of a client is down: perhaps it goes to the other one of its host, with what it waits
    /// for.
    fn client_moves(&mut self, index: usize) {
        let agent = self.clients[index].agent ^ 1;
        let is_there = agent < self.setup.daemons && self.is_running(agent);
        if !is_there || self.random.uniform(2) == 0 {
            return;
        }
        let again_at = self.events.now();
        let op = self.clients[index].op.take().map(|op| ClientOp { again_at, ..op });
        self.tally.moved += u64::from(op.is_some());
        self.clients[index] = AgentClient { op, ..self.new_client(agent) };
    }

    /// A client looks at the time.
    pub(super) fn client_looks(&mut self, index: usize) {
        let after = (2 + self.random.uniform(20).cast_signed()) * MILLI;
        self.events.push(after, Happening::Client(index));
        if !self.is_running(self.clients[index].agent) {
            return self.client_moves(index);
        }
        let is_pushing = self.go_on_pushing(index);
        if self.clients[index].op.is_none() && !self.is_ending && !is_pushing {
            let (file, cells) = self.any_cells();
            let is_write = self.random.uniform(2) == 0;
            self.begin(index, file, cells, is_write);
        }
        let (now, start) = (self.events.now(), self.host(self.clients[index].agent).start);
        let is_due = |op: &ClientOp| op.again_at <= now || op.start != start;
        if self.clients[index].op.as_ref().is_some_and(is_due) {
            self.ask(index, false);
        }
    }

    pub(super) fn any_cells(&mut self) -> (CopiedFile, (u64, u64)) {
        let file = self.files[self.random.uniform(self.files.len() as u64) as usize];
        let (one, two) = (self.random.uniform(CELLS), self.random.uniform(CELLS));
        (file, (one.min(two), one.max(two) + 1))
    }

    fn begin(&mut self, index: usize, file: CopiedFile, cells: (u64, u64), is_write: bool) {
        let now = self.events.now();
        let value = is_write.then(|| {
            self.values_given += 1;
            self.values_given
        });
        if let Some(value) = value {
            self.histories.begin_write(file.inode, cells, value, now);
        }
        self.begin_op(index, (file, cells), value, (now, None));
    }

    /// Begins an operation; of a write that was pushed before, with its number and its identity.
    pub(super) fn begin_op(
        &mut self,
        index: usize,
        (file, cells): (CopiedFile, (u64, u64)),
        value: Option<u64>,
        (began, pushed): (i64, Option<(u64, Option<RequestId>)>),
    ) {
        let again_at = self.events.now();
        let client = &mut self.clients[index];
        client.sequence += 1;
        let own = RequestId { client: client.number, sequence: client.sequence };
        let id = pushed.and_then(|(_, id)| id).unwrap_or(own);
        let (is_for_primary, start, pushed) = (false, 0, pushed.map(|(number, _)| number));
        client.op = Some(ClientOp {
            file,
            cells,
            value,
            began,
            again_at,
            is_for_primary,
            start,
            id,
            pushed,
        });
    }

    /// The way of a request through the agent.
    fn ask(&mut self, index: usize, is_for_primary: bool) {
        let now = self.events.now();
        let client = &mut self.clients[index];
        let (agent, Some(id)) = (client.agent, client.id()) else { return };
        let host = &self.hosts[usize::from(agent)];
        let (Some(op), Some(view)) = (&mut client.op, &host.view) else { return };
        (op.again_at, op.is_for_primary, op.start) = (now + AGAIN, is_for_primary, host.start);
        let (file, cells, value) = (op.file, op.cells, op.value);
        let table = Arc::clone(&view.table);
        let awaited = AWAITED_TIME_MAX.as_nanos() as i64;
        let is_awaited = host.out_of_reach.is_some_and(|since| now - since < awaited);
        let place = self.place_of(&table, &file, cells);
        let unit = table.unit(place.unit).expect("a unit");
        let Some(primary) = place.primary else {
            return if is_awaited { self.again(index) } else { self.is_out_of_reach(index) };
        };
        let copy = unit.copy(DaemonIndex(agent));
        let is_here = copy.is_some_and(|copy| copy.state == CopyState::InSync);
        let is_near = is_here && value.is_none() && !is_for_primary;
        let to = if is_near { agent } else { primary.0 };
        self.tickets_given += 1;
        let ticket = self.tickets_given;
        self.tickets.insert(ticket, (index, agent, id));
        let event = match value {
            None => Event::Read(place.unit, place.read(ticket, id.client, file.born)),
            Some(value) => {
                let bytes = value.to_le_bytes().repeat((cells.1 - cells.0) as usize);
                self.wires.borrow_mut().buffers.insert((agent, id), bytes);
                Event::Request(place.unit, place.request(ticket, id, Kind::Write, file.born))
            }
        };
        self.send(agent, to, Happening::Asked { from: agent, to, event });
    }

    /// The client has `Busy`; the agent forgets what it held.
    fn again(&mut self, index: usize) {
        let client = &self.clients[index];
        if let Some(id) = client.id() {
            self.wires.borrow_mut().buffers.remove(&(client.agent, id));
        }
        if let Some(op) = &mut self.clients[index].op {
            op.again_at = self.events.now() + 2 * MILLI;
        }
    }

    /// The answer to a ticket is at the client's daemon.
    pub(super) fn answered(&mut self, ticket: u64, outcome: Outcome) {
        let Some((index, agent, id)) = self.tickets.remove(&ticket) else { return };
        let client = &self.clients[index];
        let is_its = |op: &&ClientOp| client.agent == agent && op.id == id;
        let Some(op) = client.op.as_ref().filter(is_its) else { return };
        let host = &self.hosts[usize::from(client.agent)];
        if host.shell.is_none() || host.start != op.start {
            return;
        }
        let (cells, file, value) = (op.cells, op.file, op.value);
        let length = (cells.1 - cells.0) * CELL;
        let now = self.events.now();
        let answer = match outcome {
            Outcome::Bytes(bytes) => {
                assert_eq!((bytes.len() as u64, value), (length, None));
                let (values, _) = bytes.as_chunks();
                let values: Vec<u64> = values.iter().map(|it| u64::from_le_bytes(*it)).collect();
                self.histories.read(file.inode, cells.0, &values, (op.began, now));
                self.tally.read += 1;
                return self.ends(index);
            }
            Outcome::Answer(answer) => answer,
        };
        let is_passed_on = matches!(answer, Answer::AskPrimary | Answer::Stale);
        if is_passed_on && value.is_none() && !op.is_for_primary {
            return self.ask(index, true);
        }
        if answer == Answer::Lost {
            return self.is_lost(index);
        }
        match reply_of(answer, length, None) {
            Reply::Number { value: found } => {
                assert_eq!(found, length);
                let value = value.expect("a write");
                self.histories.end_write(file.inode, cells, value, now);
                self.tally.written += 1;
                self.ends(index);
            }
            Reply::Busy { .. } => self.again(index),
            Reply::Refused { errno } => self.fails(index, errno),
            reply => panic!("{reply:?} to {answer:?}"),
        }
    }

    fn ends(&mut self, index: usize) {
        let ended = self.clients[index].op.take().expect("it waits");
        let agent = self.clients[index].agent;
        self.wires.borrow_mut().buffers.remove(&(agent, ended.id));
        if let Some(number) = ended.pushed {
            self.pushed.remove(&number);
        }
        if self.setup.is_apart {
            self.tally.longest = self.tally.longest.max(self.events.now() - ended.began);
        }
    }

    /// The node calls the bytes lost; the service of the file has said how old that is.
    fn is_lost(&mut self, index: usize) {
        let file = self.clients[index].op.as_ref().expect("it waits").file;
        self.check_lost(file);
        self.ends(index);
    }

    pub(super) fn check_lost(&mut self, file: CopiedFile) {
        let place = self.place_of(&self.newest, &file, (0, 1));
        let lost_at = self.newest.unit(place.unit).expect("a unit").lost_at;
        assert!(file.born < lost_at, "{file:?} is lost at {lost_at}");
        assert!(self.gone.contains(&place.unit), "{:?} has copies yet: {file:?}", place.unit);
        let losses = LossesNow::of(&self.newest);
        assert!(
            is_listed(&losses.gone, losses.per_target, &place, &file),
            "{file:?} in {losses:?}"
        );
        self.tally.lost += 1;
        // It is made again, under another number.
        if let Some(at) = self.files.iter().position(|it| *it == file) {
            self.files[at] = self.new_file();
        }
    }

    /// The copies are not in reach.
    fn is_out_of_reach(&mut self, index: usize) {
        let (op, agent) = (&self.clients[index].op, self.clients[index].agent);
        let file = op.as_ref().expect("it waits").file;
        self.check_out_of_reach(agent, file);
        self.ends(index);
    }

    pub(super) fn check_out_of_reach(&mut self, agent: u16, file: CopiedFile) {
        let now = self.events.now();
        let troubled = self.hosts.iter().filter(|host| host.troubled_until > now).count();
        let view = self.hosts[usize::from(agent)].view.as_ref().expect("it had one");
        let losses = LossesNow::of(&view.table);
        let place = self.place_of(&view.table, &file, (0, 1));
        assert!(
            is_listed(&losses.down, losses.per_target, &place, &file),
            "{file:?} in {losses:?}"
        );
        assert!(
            !self.setup.is_apart && troubled >= usize::from(file.copies),
            "an error for {file:?} at d{agent} with {troubled} daemons in trouble"
        );
        self.tally.out_of_reach += 1;
    }

    /// A write has failed. Its bytes were at its own daemon alone, which was away for long: the copies
    /// did not wait for it, and one that died meanwhile may have a part of them.
    fn fails(&mut self, index: usize, errno: Errno) {
        let (op, agent) = (&self.clients[index].op, self.clients[index].agent);
        let op = op.as_ref().expect("it waits");
        assert!(op.value.is_some(), "{errno} for a read");
        let (file, cells, began) = (op.file, op.cells, op.began);
        // The daemon that had the bytes first may have been another one of the host.
        let (now, issuer) = (self.events.now(), client_id::issuer(op.id.client).0);
        let is_troubled = self.hosts[usize::from(issuer)].troubled_until > now;
        let agent = if is_troubled { issuer } else { agent };
        self.check_failed(agent, (file, cells), began, errno);
        self.ends(index);
    }

    pub(super) fn check_failed(
        &mut self,
        agent: u16,
        (file, cells): (CopiedFile, (u64, u64)),
        began: i64,
        errno: Errno,
    ) {
        let (now, host) = (self.events.now(), &self.hosts[usize::from(agent)]);
        let is_late = now - began > TORN && host.troubled_until > now;
        let place = self.place_of(&self.newest, &file, cells);
        let unit = self.newest.unit(place.unit).expect("a unit");
        let is_disturbed =
            !is_whole(unit) || self.disturbed.get(&place.unit).is_some_and(|&at| at > began);
        assert!(
            !self.setup.is_apart && is_late && is_disturbed,
            "{errno} for {file:?} of {:?} at d{agent}, which began at {} ms: {unit:?}",
            place.unit,
            began / MILLI
        );
        self.tally.failed += 1;
    }

    /// Clients read all files once more.
    pub(super) fn read_all(&mut self) {
        for file in self.files.clone() {
            self.begin(0, file, (0, CELLS), false);
            self.run_until_none(|deaths| deaths.clients[0].waits());
        }
    }
}
