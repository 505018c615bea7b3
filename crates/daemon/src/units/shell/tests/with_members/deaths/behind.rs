//! Programs whose writes return before they arrive: each has some on their way, in memory that the death
//! of a daemon leaves. The daemon of their host sends them, in the order of `units::ways::pushed`. Those
//! that it had when it died its program writes again, the oldest first, with the identities that they
//! had.
//!
//! In a history such a write begins when it is sent: behind the end of those of the same program to the
//! same bytes.

use super::clients::{AGAIN, CELL, CopiedFile, Outcome};
use super::*;
use crate::units::AWAITED_TIME_MAX;
use crate::units::agent::reply_of;
use wire::Reply;

/// Writes of a program on their way.
const PUSHED_MAX: usize = 4;

/// Identities of the writes that a start of a daemon sends.
pub(super) fn first_client(own: DaemonIndex, start: u64) -> u64 {
    RunningClears::ids_before(own, start) - (1 << 12)
}

/// A write that has returned.
#[derive(Debug)]
pub(super) struct PushedCells {
    pub(super) client: usize,
    file: CopiedFile,
    cells: (u64, u64),
    value: u64,
    pushed_at: i64,
    /// The daemon to which it was pushed, and its start.
    to: (u16, u64),
    /// The identity with which that has sent it.
    id: Option<RequestId>,
    /// The attempt that has no answer, and when it is taken for lost.
    asked: Option<(PushAttempt, i64)>,
}

impl Deaths {
    /// A program that writes behind goes on. False: it may do something else.
    pub(super) fn go_on_pushing(&mut self, index: usize) -> bool {
        let agent = self.clients[index].agent;
        let start = self.host(agent).start;
        let own = self.pushed.iter().filter(|(_, push)| push.client == index);
        let is_lost = |push: &PushedCells| push.to != (agent, start);
        let (count, lost) = (own.clone().count(), own.clone().find(|(_, it)| is_lost(it)));
        if let Some(number) = lost.map(|(&number, _)| number) {
            if !self.clients[index].is_waiting() {
                self.write_again(index, number);
            }
            return true;
        }
        let is_behind = index % 2 == 1 && !self.is_ending && !self.clients[index].is_waiting();
        if is_behind && count < PUSHED_MAX && self.random.uniform(3) > 0 {
            let (file, cells) = self.any_cells();
            self.values_given += 1;
            let (value, pushed_at) = (self.values_given, self.events.now());
            let (client, id, asked) = (index, None, None);
            let to = (agent, start);
            let push = PushedCells { client, file, cells, value, pushed_at, to, id, asked };
            self.pushed.insert(value, push);
            self.host(agent).pushes.add((Inode(file.inode), 0), value);
            self.begin_pushes(agent);
            return true;
        }
        // Anything else waits for them.
        count > 0
    }

    fn write_again(&mut self, index: usize, number: u64) {
        let now = self.events.now();
        let push = &self.pushed[&number];
        let (file, cells, value) = (push.file, push.cells, push.value);
        let (began, id) = (push.pushed_at, push.id);
        if id.is_none() {
            self.histories.begin_write(file.inode, cells, value, now);
        }
        self.tally.pushed_again += 1;
        self.begin_op(index, (file, cells), Some(value), (began, Some((number, id))));
    }

    fn begin_pushes(&mut self, agent: u16) {
        let now = self.events.now();
        while let Some((asked, id, &number)) = self.host(agent).pushes.begin_next(now) {
            let push = self.pushed.get_mut(&number).expect("it waits");
            push.id = Some(id);
            let bytes = push.value.to_le_bytes().repeat((push.cells.1 - push.cells.0) as usize);
            self.histories.begin_write(push.file.inode, push.cells, push.value, now);
            self.wires.borrow_mut().buffers.insert((agent, id), bytes);
            self.ask_push(agent, asked, (id, number));
        }
    }

    fn ask_push(&mut self, agent: u16, asked: PushAttempt, (id, number): (RequestId, u64)) {
        let now = self.events.now();
        let push = self.pushed.get_mut(&number).expect("it waits");
        push.asked = Some((asked, now + AGAIN));
        let (file, cells) = (push.file, push.cells);
        let host = &self.hosts[usize::from(agent)];
        let Some(view) = &host.view else { return };
        let (start, table) = (host.start, Arc::clone(&view.table));
        let awaited = AWAITED_TIME_MAX.as_nanos() as i64;
        let is_awaited = host.out_of_reach.is_some_and(|since| now - since < awaited);
        let place = self.place_of(&table, &file, cells);
        let Some(primary) = place.primary else {
            if is_awaited {
                return self.rest_push(agent, number);
            }
            self.check_out_of_reach(agent, file);
            return self.end_push(agent, number);
        };
        self.tickets_given += 1;
        let ticket = self.tickets_given;
        self.push_tickets.insert(ticket, (agent, start, asked, number));
        let event = Event::Request(place.unit, place.request(ticket, id, Kind::Write, file.born));
        let (from, to) = (agent, primary.0);
        self.send(from, to, Happening::Asked { from, to, event });
    }

    /// It is tried again with a tick.
    fn rest_push(&mut self, agent: u16, number: u64) {
        let now = self.events.now();
        let push = self.pushed.get_mut(&number).expect("it waits");
        let (asked, _) = push.asked.take().expect("under way");
        self.host(agent).pushes.rest(asked, now + 2 * MILLI);
    }

    /// A daemon looks at the time.
    pub(super) fn resume_pushes(&mut self, agent: u16) {
        if !self.is_running(agent) {
            return;
        }
        let (now, start) = (self.events.now(), self.host(agent).start);
        let is_late = |push: &&PushedCells| {
            let is_here = push.to == (agent, start);
            is_here && push.asked.is_some_and(|(_, until)| until <= now)
        };
        let late: Vec<u64> = self.pushed.values().filter(is_late).map(|push| push.value).collect();
        late.into_iter().for_each(|number| self.rest_push(agent, number));
        while let Some((asked, id, &number)) = self.host(agent).pushes.resume_next(now) {
            self.ask_push(agent, asked, (id, number));
        }
        self.begin_pushes(agent);
    }

    /// The answer to an attempt is at the daemon that sent it.
    pub(super) fn push_answered(&mut self, ticket: u64, outcome: &Outcome) {
        let Some((agent, start, asked, number)) = self.push_tickets.remove(&ticket) else { return };
        let now = self.events.now();
        let Some(push) = self.pushed.get(&number) else { return };
        let is_last = push.asked.is_some_and(|(last, _)| last == asked);
        if !self.is_running(agent) || self.host(agent).start != start || !is_last {
            return;
        }
        let push = &self.pushed[&number];
        let (file, cells, value, began) = (push.file, push.cells, push.value, push.pushed_at);
        let Outcome::Answer(answer) = outcome else { panic!("bytes for a write") };
        match reply_of(*answer, (cells.1 - cells.0) * CELL, None) {
            _ if *answer == Answer::Lost => self.check_lost(file),
            Reply::Number { .. } => {
                self.histories.end_write(file.inode, cells, value, now);
                self.tally.written += 1;
                self.tally.pushed += 1;
            }
            Reply::Busy { .. } => return self.rest_push(agent, number),
            Reply::Refused { errno } => self.check_failed(agent, (file, cells), began, errno),
            reply => panic!("{reply:?} to {answer:?}"),
        }
        self.end_push(agent, number);
    }

    fn end_push(&mut self, agent: u16, number: u64) {
        let push = self.pushed.remove(&number).expect("it waits");
        let (asked, _) = push.asked.expect("under way");
        let (ended, _) = self.host(agent).pushes.end(asked).expect("under way");
        self.wires.borrow_mut().buffers.remove(&(agent, ended.id));
        self.host(agent).pushes.free(&ended);
        self.begin_pushes(agent);
    }
}
