//! Requests as a client may write them into its slot, admitted and executed by the metadata
//! service, among messages of peers and the passage of time. Every answer is a reply that fits the
//! slot, and the log restores the state.
//!
//! The input is a sequence of commands: kind (1 byte), its argument (1), length of the bytes that
//! follow (2), bytes.
#![no_main]

use forebay_fuzz::{encoded, requests, write_seeds};
use gateway::PeerCredentials;
use libfuzzer_sys::fuzz_target;
use metadata::{Config, Effect, HostMarks, HostView, Input, Now, Service, SnapshotCursor};
use placement::Map;
use wire::limits::SLOT_BYTES;
use wire::{Credentials, Errno, Header, Inode, JobWord, Reader, Reply, Request};

/// Every other deleted file is open.
struct Half;

impl HostView for Half {}

impl HostMarks for Half {
    fn mark_deleted(&mut self, inode: Inode) -> bool {
        inode.0 % 2 == 1
    }
}

struct World {
    service: Service,
    now: i64,
    /// The log, and requests to targets that are not answered yet.
    log: Vec<Vec<u8>>,
    tokens: Vec<u64>,
    removals: Vec<u64>,
    sequence: u64,
}

fn config(daemons: u16) -> Config {
    Config { map: Map::initial(daemons).expect("few daemons"), ..Config::single() }
}

impl World {
    fn step(&mut self, input: Input<'_>) {
        let mut effects = Vec::new();
        self.service.step(Now::of(self.now), input, &mut Half, &mut effects);
        for (place, effect) in effects.into_iter().enumerate() {
            match effect {
                Effect::Log(record) => {
                    assert_eq!(place, 0, "the record comes first");
                    self.log.push(record);
                }
                Effect::Reply { bytes, .. } => {
                    assert!(bytes.len() <= SLOT_BYTES);
                    let mut reader = Reader::new(&bytes);
                    Reply::decode(&mut reader).expect("a reply");
                    assert!(reader.rest().is_empty());
                }
                Effect::Data { token, .. } => self.tokens.push(token),
                Effect::Remove { token, .. } => self.removals.push(token),
                Effect::Index(_)
                | Effect::Peer { .. }
                | Effect::Holder { .. }
                | Effect::Host { .. }
                | Effect::Service { .. }
                | Effect::Count
                | Effect::Allow { .. }
                | Effect::SizeReported { .. }
                | Effect::BeginTruncate { .. }
                | Effect::TruncateInline { .. }
                | Effect::GrantNumbers { .. }
                | Effect::UncountUse { .. }
                | Effect::Probe { .. }
                | Effect::ReportTransfers { .. }
                | Effect::TargetHealth { .. }
                | Effect::LeaveTarget { .. }
                | Effect::PoolTargets { .. }
                | Effect::ReadBackingDir { .. } => {}
            }
        }
    }

    /// Bytes of a slot: a header in which the argument selects the shard and the caller, and then
    /// the request.
    fn request(&mut self, argument: u8, bytes: &[u8]) {
        self.sequence += u64::from(argument & 0x80 == 0);
        let is_root = argument & 0x40 != 0;
        let header = Header {
            shard: u16::from(argument & 3),
            daemon: 0,
            epoch: 1,
            client_id: u64::from(argument & 7),
            sequence: self.sequence,
            host: 0,
            mount: argument >> 4 & 3,
            job: JobWord::NONE,
            caller: Credentials::of(1, 1),
        };
        let slot = [encoded(|to| header.encode(to)).as_slice(), bytes].concat();
        let uid = if is_root { 0 } else { 1 };
        let peer = PeerCredentials { uid, gid: uid, pid: 1 };
        let admitted = gateway::admit_from_session(&slot, &peer, u16::from(argument >> 3 & 1));
        let Ok(admitted) = admitted else { return };
        let input = Input::Request {
            ticket: self.sequence,
            header: &admitted.header,
            request: admitted.request,
        };
        if admitted.header.shard != Header::TARGET {
            self.step(input);
        }
    }

    fn command(&mut self, what: u8, argument: u8, bytes: &[u8]) {
        match what % 8 {
            0..=3 => self.request(argument, bytes),
            4 => self.step(Input::Peer { message: bytes }),
            5 if argument & 1 == 0 && !self.removals.is_empty() => {
                // Two at once, one of which may be unknown.
                let some = self.removals.split_off(self.removals.len() - 1);
                self.step(Input::Removed { tokens: &[some.as_slice(), &[u64::MAX]].concat() });
            }
            5 => {
                let Some(token) = self.tokens.pop() else { return };
                let result = if argument < 200 { Ok(()) } else { Err(Errno::EIO) };
                self.step(Input::DataDone { token, result });
            }
            6 => {
                self.now += i64::from(argument) * 100_000_000;
                self.step(Input::Tick);
            }
            _ if argument & 1 == 0 => {
                self.step(Input::ClientGone { first: 0, count: u64::from(argument) });
            }
            _ => self.step(Input::HostGone { host: u16::from(argument >> 1) }),
        }
    }
}

fn snapshot(service: &Service) -> Vec<u8> {
    let (mut all, mut cursor) = (Vec::new(), SnapshotCursor::default());
    while service.snapshot_slice(&mut cursor, usize::MAX, &mut all) {}
    all
}

fn seeds() -> Vec<Vec<u8>> {
    let command = |request: &Request<'_>| {
        let bytes = encoded(|to| request.encode(to));
        [&[0, 0x40][..], &(bytes.len() as u16).to_le_bytes(), &bytes].concat()
    };
    let requests = requests();
    let row: Vec<u8> = requests.iter().skip(10).flat_map(command).collect();
    let mut seeds: Vec<_> =
        requests.iter().skip(10).map(|one| [vec![0], command(one)].concat()).collect();
    let ticks = [6, 255, 0, 0, 5, 0, 0, 0, 6, 255, 0, 0];
    seeds.extend([0, 1].map(|first| [&[first], &*row, &ticks].concat()));
    // One message of each kind, too short to be valid: the fuzzer finds the rest.
    seeds.extend((1..14).map(|kind| [1, 4, 0, 64, 0, kind].into_iter().chain([0; 63]).collect()));
    seeds
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&first, mut rest)) = data.split_first() else { return };
    let daemons = 1 + u16::from(first & 1);
    let service = Service::new(config(daemons));
    let (log, tokens, removals) = (Vec::new(), Vec::new(), Vec::new());
    let mut world = World { service, now: 1_000_000_000, log, tokens, removals, sequence: 0 };
    while let [what, argument, low, high, bytes @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
        let (bytes, after) = bytes.split_at(length);
        world.command(*what, *argument, bytes);
        rest = after;
    }
    let mut again = Service::new(config(daemons));
    for record in &world.log {
        again.replay(record).expect("a record that the service made");
    }
    assert_eq!(snapshot(&again), snapshot(&world.service));
});
