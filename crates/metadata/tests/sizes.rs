//! Sizes of files that several hosts have open (the mode `posix`), in simulation: hosts that
//! write without telling, ask how long the file is, cut it, open and close it; words of the
//! service to hosts and their answers are lost, and the service is killed and started from its
//! log. Whoever asks is told the size of all that was written and cut before, and after a cut
//! nobody notes what he wrote before it.

mod kit;

use std::collections::BTreeMap;

use kit::simulation::SIZES;
use kit::{Answer, Random, World, config};
use metadata::{HostWord, Input};
use wire::attributes::{flag, mode};
use wire::request::{create, set};
use wire::{Attributes, Credentials, DaemonIndex, Header, Inode, Layout, Request};

const HOSTS: u16 = 4;
const STEPS: u64 = 30_000;

/// What a host's row of the file says.
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    is_open: bool,
    dirty: u64,
    /// A cut is under way.
    is_odd: bool,
    told: Option<u64>,
}

struct Sim {
    world: World,
    random: Random,
    inode: Inode,
    rows: BTreeMap<u16, Row>,
    /// How long the file is.
    size: u64,
    turn: u64,
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
        Sim { world, random: Random(seed), inode: made.inode, rows, size: 0, turn: 0 }
    }

    /// A host takes a word and answers.
    fn take(&mut self, host: u16, word: HostWord) {
        let row = self.rows.entry(host).or_default();
        let answer = match word {
            HostWord::Glimpse { token, inode, .. } => {
                HostWord::glimpsed(host, token, inode, row.dirty)
            }
            HostWord::Told { end, .. } => {
                row.dirty = if row.dirty == end { 0 } else { row.dirty };
                return;
            }
            HostWord::BeginCut { token, inode, .. } => {
                if row.told != Some(token) {
                    (row.told, row.is_odd, row.dirty) = (Some(token), true, 0);
                }
                HostWord::begun(host, token, inode)
            }
            HostWord::EndCut { token, inode, .. } => {
                if row.told.is_none_or(|told| told <= token) {
                    (row.told, row.is_odd) = (None, false);
                }
                HostWord::ended(host, token, inode)
            }
        };
        if !self.random.chance(10) {
            self.world.step(0, Input::Peer { message: &answer });
        }
    }

    /// Delivers what is under way, loses some of it, and lets time pass, until `is_done`.
    fn pump(&mut self, is_done: impl Fn(&Sim) -> bool) {
        for _ in 0..10_000 {
            self.world.answer_data(0, Ok(()));
            if is_done(self) {
                return;
            }
            if !self.world.host_words.is_empty() {
                let (DaemonIndex(host), bytes) = self.world.host_words.remove(0);
                if !self.random.chance(10) {
                    self.take(host, HostWord::decode(&bytes).expect("a word"));
                }
                continue;
            }
            let deadline = self.world.seats[0].service.deadline().expect("somebody waits");
            self.world.now = self.world.now.max(deadline);
            self.world.step(0, Input::Tick);
        }
        panic!("nobody is answered: {:?}", self.rows);
    }

    /// Somebody on a host asks and is answered, also if the service is killed meanwhile.
    fn ask(&mut self, host: u16, request: &Request<'_>) -> Attributes {
        let mut sent = self.world.prepare(Credentials::ROOT, self.inode.shard(), request);
        sent.header = Header { host, origin: u64::from(host), ..sent.header };
        loop {
            let ticket = self.world.send_again(&sent);
            if self.random.chance(2) {
                // What it had sent is lost with its connections.
                self.world.host_words.clear();
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

    /// Tells what a host wrote, as its clients do before they ask.
    fn flush(&mut self, host: u16) {
        let end = self.rows[&host].dirty;
        if end != 0 {
            self.ask(host, &Request::Extend { inode: self.inode, size: end });
            self.rows.entry(host).or_default().dirty = 0;
        }
    }

    fn step(&mut self, number: u64) {
        let host = 1 + self.random.below(usize::from(HOSTS) - 1) as u16;
        let (inode, row) = (self.inode, self.rows[&host]);
        let limit = 1 + self.random.below(10_000) as u64;
        match self.random.below(8) {
            0 if row.is_open => {
                self.flush(host);
                self.turn += 1;
                self.ask(host, &Request::Close { inode, turn: self.turn });
                self.rows.insert(host, Row::default());
            }
            _ if !row.is_open => {
                self.rows.insert(host, Row { is_open: true, ..Row::default() });
                self.turn += 1;
                let open = Request::Open { inode, turn: self.turn, uses: 1 };
                let size = self.ask(host, &open).size;
                assert_eq!(size, self.size, "step {number}: opened by {host}");
            }
            1..5 => {
                // Who finds a cut under way waits until it is over.
                self.pump(|sim| !sim.rows[&host].is_odd);
                let row = self.rows.entry(host).or_default();
                row.dirty = row.dirty.max(limit);
                self.size = self.size.max(limit);
            }
            5 => {
                // His own daemon counts the cut as the request and its answer pass by.
                let mask = set::SIZE | set::CUTS | set::COUNTED | set::BY_DESCRIPTOR;
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
                assert_eq!(self.ask(host, &cut).size, limit, "step {number}: cut by {host}");
                self.size = limit;
                self.rows.entry(host).or_default().dirty = 0;
                let untold: Vec<u16> =
                    self.rows.iter().filter(|(_, row)| row.dirty != 0).map(|(&h, _)| h).collect();
                assert!(untold.is_empty(), "step {number}: {untold:?} did not hear of the cut");
            }
            _ => {
                self.flush(host);
                let size = self.ask(host, &Request::GetAttributes { inode }).size;
                assert_eq!(size, self.size, "step {number}: asked by {host}: {:?}", self.rows);
            }
        }
    }
}

#[test]
fn who_asks_for_a_size_is_told_all_that_was_written_and_cut() {
    SIZES.run(|seed| {
        let mut sim = Sim::new(seed);
        (0..STEPS).for_each(|number| sim.step(number));
        sim.world.steps
    });
}
