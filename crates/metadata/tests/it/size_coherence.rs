//! Sizes of files that several hosts have open (the mode `posix`), in simulation: hosts that write
//! without reporting, query the size, truncate, open and close the file; messages of the service to
//! hosts and their answers are lost, and the service is killed and restarted from its log. A
//! request sees the size after all earlier writes and truncations, and after a truncation no host
//! reports a write from before it.

use std::collections::BTreeMap;

use crate::sim::simulation::SIZES;
use crate::sim::{Answer, Random, World, config};
use metadata::{HostMessage, Input};
use wire::attributes::{flag, mode};
use wire::request::{create, set};
use wire::{Attributes, Credentials, DaemonIndex, Header, Inode, Layout, Request};

const HOSTS: u16 = 4;
const STEPS: u64 = 30_000;

/// The open inode of a host.
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    is_open: bool,
    dirty: u64,
    /// A truncation is in progress.
    is_odd: bool,
    reported: Option<u64>,
}

struct Sim {
    world: World,
    random: Random,
    inode: Inode,
    rows: BTreeMap<u16, Row>,
    /// The correct size.
    size: u64,
    open_sequence: u64,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let configs = (0..HOSTS).map(|daemon| {
            let mut config = config(daemon, HOSTS, 0, 1);
            config.root_flags = flag::POSIX;
            config.inline_bytes = 0;
            config
        });
        let mut world = World::of(configs.collect());
        let (parent, name, flags) = (Inode::ROOT, &b"f"[..], create::EXCLUSIVE);
        let (mode, device) = (mode::REGULAR | 0o666, 0);
        let layout = Layout::default();
        let request = Request::Create { parent, name, mode, device, flags, layout, target: b"" };
        let shard = world.shard_of(parent, name);
        let made = world.call(Credentials::ROOT, shard, &request).attributes();
        assert!(made.is_posix(), "it has the mode of its directory");
        let owner = world.owner(made.inode.shard());
        assert_eq!(owner, 0, "the first host has the root, and what is in it");
        let rows = (1..HOSTS).map(|host| (host, Row::default())).collect();
        Sim { world, random: Random(seed), inode: made.inode, rows, size: 0, open_sequence: 0 }
    }

    /// A host takes a message and answers.
    fn take(&mut self, host: u16, word: HostMessage) {
        let row = self.rows.entry(host).or_default();
        let answer = match word {
            HostMessage::Glimpse { token, inode, .. } => {
                HostMessage::glimpsed(host, token, inode, row.dirty)
            }
            HostMessage::SizeReported { end, .. } => {
                row.dirty = if row.dirty == end { 0 } else { row.dirty };
                return;
            }
            HostMessage::BeginTruncate { token, inode, .. } => {
                if row.reported != Some(token) {
                    (row.reported, row.is_odd, row.dirty) = (Some(token), true, 0);
                }
                HostMessage::truncate_begun(host, token, inode)
            }
            HostMessage::EndTruncate { token, inode, .. } => {
                if row.reported.is_none_or(|reported| reported <= token) {
                    (row.reported, row.is_odd) = (None, false);
                }
                HostMessage::truncate_ended(host, token, inode)
            }
        };
        if !self.random.chance(10) {
            self.world.step(0, Input::Peer { message: &answer });
        }
    }

    /// Delivers messages, loses some of them, and lets time pass, until `is_done`.
    fn pump(&mut self, is_done: impl Fn(&Sim) -> bool) {
        for _ in 0..10_000 {
            self.world.answer_data(0, Ok(()));
            if is_done(self) {
                return;
            }
            if !self.world.host_messages.is_empty() {
                let (DaemonIndex(host), bytes) = self.world.host_messages.remove(0);
                if !self.random.chance(10) {
                    self.take(host, HostMessage::decode(&bytes).expect("a message"));
                }
                continue;
            }
            let deadline = self.world.seats[0].service.deadline().expect("somebody waits");
            self.world.now = self.world.now.max(deadline);
            self.world.step(0, Input::Tick);
        }
        panic!("no answer: {:?}", self.rows);
    }

    /// A client of a host sends a request and gets its answer, even if the service is killed
    /// meanwhile.
    fn ask(&mut self, host: u16, request: &Request<'_>) -> Attributes {
        let mut sent = self.world.prepare(Credentials::ROOT, self.inode.shard(), request);
        sent.header = Header { host, client_id: u64::from(host), ..sent.header };
        loop {
            let ticket = self.world.send_again(&sent);
            if self.random.chance(2) {
                // Messages that it had sent are lost with its connections.
                self.world.host_messages.clear();
                self.world.crash(0);
                continue;
            }
            self.pump(|sim| sim.world.answer(ticket).is_some());
            match self.world.answer(ticket) {
                Some(Answer::Busy) => {}
                Some(answer @ (Answer::Attributes(_) | Answer::Opened(..))) => {
                    return answer.attributes();
                }
                Some(Answer::Done) => return Attributes::default(),
                other => panic!("{request:?}: {other:?}"),
            }
        }
    }

    /// Reports the unreported size of a host, as its clients do before they query.
    fn flush(&mut self, host: u16) {
        let end = self.rows[&host].dirty;
        if end != 0 {
            self.ask(host, &Request::Extend { inode: self.inode, size: end });
            self.rows.entry(host).or_default().dirty = 0;
        }
    }

    fn step(&mut self, number: u64) {
        let host = 1 + self.random.uniform(usize::from(HOSTS) - 1) as u16;
        let (inode, row) = (self.inode, self.rows[&host]);
        let limit = 1 + self.random.uniform(10_000) as u64;
        match self.random.uniform(8) {
            0 if row.is_open => {
                self.flush(host);
                self.open_sequence += 1;
                self.ask(host, &Request::Close { inode, open_sequence: self.open_sequence });
                self.rows.insert(host, Row::default());
            }
            _ if !row.is_open => {
                self.rows.insert(host, Row { is_open: true, ..Row::default() });
                self.open_sequence += 1;
                let open = Request::Open { inode, open_sequence: self.open_sequence, uses: 1 };
                let size = self.ask(host, &open).size;
                assert_eq!(size, self.size, "step {number}: opened by {host}");
            }
            1..5 => {
                // A client that finds a truncation in progress waits until it is over.
                self.pump(|sim| !sim.rows[&host].is_odd);
                let row = self.rows.entry(host).or_default();
                row.dirty = row.dirty.max(limit);
                self.size = self.size.max(limit);
            }
            5 => {
                // Its own daemon counts the truncation as the request and its answer pass by.
                let mask = set::SIZE | set::TRUNCATES | set::COUNTED | set::BY_DESCRIPTOR;
                let (mode, uid, gid, accessed, modified) = (0, 0, 0, 0, 0);
                let cut = Request::SetAttributes {
                    inode,
                    mask,
                    mode,
                    uid,
                    gid,
                    size: limit,
                    accessed,
                    modified,
                };
                assert_eq!(self.ask(host, &cut).size, limit, "step {number}: truncated by {host}");
                self.size = limit;
                self.rows.entry(host).or_default().dirty = 0;
                let unreported: Vec<u16> =
                    self.rows.iter().filter(|(_, row)| row.dirty != 0).map(|(&h, _)| h).collect();
                assert!(
                    unreported.is_empty(),
                    "step {number}: {unreported:?} missed the truncation"
                );
            }
            _ => {
                self.flush(host);
                let size = self.ask(host, &Request::GetAttributes { inode }).size;
                assert_eq!(size, self.size, "step {number}: queried by {host}: {:?}", self.rows);
            }
        }
    }
}

#[test]
fn a_request_for_a_size_sees_all_earlier_writes_and_truncations() {
    SIZES.run(|seed| {
        let mut sim = Sim::new(seed);
        (0..STEPS).for_each(|number| sim.step(number));
        sim.world.steps
    });
}
