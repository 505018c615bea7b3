//! Messages between daemons about the membership, its consensus and the shipped logs, the membership
//! itself, and the files of a voter.
//!
//! A node goes on whatever messages come: as the leader of the consensus, as another voter, and as the
//! owner of a service and the follower of another. It starts from any files or refuses them. Bytes that
//! are read are written as they were. The seeds are messages of nodes that run together, and what those
//! store.
#![no_main]

use cluster::consensus::TICK_NANOS;
use cluster::membership::Membership;
use cluster::node::{Action, Node, Settings};
use cluster::shipping::{Parcel, Receipt};
use encoding::{Decode, Encode};
use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use wire::DaemonIndex;

const DAEMONS: u16 = 3;
/// After so many ticks there are a leader, followers, and leases.
const TICKS: i64 = 80;
/// Messages of one kind that are seeds at most.
const SEEDS_MAX: usize = 8;

type Sent = (u16, u16, Vec<u8>);

/// Nodes that run together.
struct Hosts {
    nodes: Vec<Node>,
    files: Vec<(Vec<u8>, Vec<u8>)>,
    now: i64,
}

fn membership() -> Membership {
    let membership = Membership::initial(&[0, 1, 2], 3, 1, false).expect("a possible setup");
    membership.with_units(&[2], 2, false).expect("a possible setup")
}

fn settings(own: u16, incarnation: u64) -> Settings {
    let voters = (0..DAEMONS).map(DaemonIndex).collect();
    let (own, domain) = (DaemonIndex(own), own.into());
    Settings { own, incarnation, domain, began: 1, voters, seed: own.0.into() }
}

impl Hosts {
    fn new() -> Hosts {
        let node = |own| Node::begin(settings(own, 1), membership(), 0).expect("a voter");
        let nodes = (0..DAEMONS).map(node).collect();
        let files = vec![Default::default(); DAEMONS.into()];
        Hosts { nodes, files, now: 0 }
    }

    /// The effects of one input: what is stored, and the messages.
    fn perform(&mut self, own: u16, out: Vec<Action>) -> Vec<Sent> {
        let mut sent = Vec::new();
        for action in out {
            match action {
                Action::Base(bytes) => self.files[usize::from(own)].0 = bytes,
                Action::Tail(bytes) => self.files[usize::from(own)].1 = bytes,
                Action::Send { to, message } => sent.push((own, to.0, message)),
                Action::Slice(lane) => {
                    let (node, mut more) = (&mut self.nodes[usize::from(own)], Vec::new());
                    node.slice(lane, b"", true, &mut more);
                    sent.extend(self.perform(own, more));
                }
                _ => {}
            }
        }
        sent
    }

    fn receive(&mut self, (from, to, bytes): &Sent) -> Vec<Sent> {
        let mut out = Vec::new();
        let node = &mut self.nodes[usize::from(*to)];
        let _ = node.receive(DaemonIndex(*from), bytes, self.now, &mut out);
        self.perform(*to, out)
    }

    fn tick(&mut self, own: u16) -> Vec<Sent> {
        let mut out = Vec::new();
        self.nodes[usize::from(own)].tick(self.now, &mut out);
        self.perform(own, out)
    }

    /// Runs, and tells `see` of each message.
    fn run(&mut self, mut see: impl FnMut(&Sent)) {
        let mut sent = Vec::new();
        for own in 0..DAEMONS {
            let mut out = Vec::new();
            self.nodes[usize::from(own)].start(0, &mut out);
            sent.extend(self.perform(own, out));
        }
        for _ in 0..TICKS {
            self.now += TICK_NANOS;
            (0..DAEMONS).for_each(|own| sent.extend(self.tick(own)));
            // The next messages arrive with the next tick.
            for message in std::mem::take(&mut sent) {
                see(&message);
                sent.extend(self.receive(&message));
            }
        }
    }
}

fn put(from: u16, to: u16, message: &[u8]) -> Vec<u8> {
    let names = (from << 8 | to).to_le_bytes();
    [&names[..], &(message.len() as u16).to_le_bytes(), message].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let (mut hosts, mut kinds, mut seeds) = (Hosts::new(), Vec::new(), Vec::new());
    hosts.run(|(from, to, message)| {
        let kind: Vec<u8> = message.iter().copied().take(2).collect();
        if kinds.iter().filter(|it| **it == kind).count() < SEEDS_MAX {
            seeds.push([vec![0], put(*from, *to, message), put(*to, *from, message)].concat());
            match message.split_first() {
                Some((8, parcel)) => seeds.push([&[2], parcel].concat()),
                Some((9, receipt)) => seeds.push([&[3], receipt].concat()),
                _ => {}
            }
            kinds.push(kind);
        }
    });
    for (base, tail) in &hosts.files {
        seeds.push([&[4], &(base.len() as u16).to_le_bytes()[..], base, tail].concat());
    }
    seeds.push([vec![1], membership().to_bytes()].concat());
    seeds
}

/// Nodes that run together get the messages, and what these lead to.
fn messages(mut bytes: &[u8]) {
    let mut hosts = Hosts::new();
    hosts.run(|_| {});
    while let Some(([to, from, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (one, rest) = rest.split_at(length);
        bytes = rest;
        let (to, from) = (u16::from(*to) % DAEMONS, u16::from(*from) % DAEMONS);
        let mut sent = hosts.receive(&(from, to, one.to_vec()));
        hosts.now += TICK_NANOS;
        (0..DAEMONS).for_each(|own| sent.extend(hosts.tick(own)));
        for message in sent.into_iter().filter(|it| it.1 < DAEMONS) {
            hosts.receive(&message);
        }
    }
}

/// A node starts from files, and takes part.
fn files(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk() else { return };
    let (base, tail) = rest.split_at(usize::from(u16::from_le_bytes(*head)).min(rest.len()));
    for own in 0..DAEMONS {
        let (settings, mut out) = (settings(own, 2), Vec::new());
        let restored = Node::restore(settings, Some((base, tail)), membership(), 0);
        let Ok(mut node) = restored else { continue };
        node.start(0, &mut out);
        (0..TICKS).for_each(|tick| node.tick(tick * TICK_NANOS, &mut out));
    }
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind {
        0 => messages(bytes),
        1 => {
            if let Ok(membership) = Membership::from_bytes(bytes) {
                assert_eq!(Membership::from_bytes(&membership.to_bytes()), Ok(membership));
            }
        }
        2 => {
            if let Ok(parcel) = Parcel::from_bytes(bytes) {
                assert_eq!(parcel.to_bytes(), bytes);
            }
        }
        3 => {
            if let Ok(receipt) = Receipt::from_bytes(bytes) {
                assert_eq!(Receipt::from_bytes(&receipt.to_bytes()), Ok(receipt));
            }
        }
        4 => files(bytes),
        _ => {}
    }
});
