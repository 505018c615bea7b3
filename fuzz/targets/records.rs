//! One record of the metadata log: applied or refused, whatever it says. What was applied is
//! written as a snapshot that brings the same state, and the service starts with it.
#![no_main]

use forebay_fuzz::sow;
use libfuzzer_sys::fuzz_target;
use metadata::{Config, Effect, Input, Now, Opens, Service, SnapshotCursor};
use wire::{Credentials, Header, Inode};

struct Nobody;

impl Opens for Nobody {
    fn mark_deleted(&mut self, _: Inode) -> bool {
        false
    }
}

fn snapshot(service: &Service) -> Vec<Vec<u8>> {
    let (mut slices, mut cursor) = (Vec::new(), SnapshotCursor::default());
    loop {
        let mut slice = Vec::new();
        let goes_on = service.snapshot_slice(&mut cursor, 200, &mut slice);
        slices.push(slice);
        if !goes_on {
            slices.retain(|slice| !slice.is_empty());
            return slices;
        }
    }
}

fn service_of(records: &[Vec<u8>]) -> Service {
    let mut service = Service::new(Config::alone());
    for record in records {
        service.replay(record).expect("a record that the service made");
    }
    service
}

/// Records of a service that had something of everything to do.
fn seeds() -> Vec<Vec<u8>> {
    let mut service = Service::new(Config::alone());
    let (mut logged, mut effects) = (Vec::new(), Vec::new());
    for (sequence, request) in forebay_fuzz::requests().into_iter().skip(10).enumerate() {
        let header = Header {
            shard: 0,
            daemon: 0,
            epoch: 1,
            origin: 1,
            sequence: sequence as u64,
            host: 1,
            mount: 0,
            who: Credentials::ROOT,
        };
        let input = Input::Request { ticket: 0, header: &header, request };
        service.step(Now::of(1), input, &mut Nobody, &mut effects);
        for effect in effects.drain(..) {
            if let Effect::Log(record) = effect {
                logged.push(record);
            }
        }
        logged.extend(snapshot(&service));
    }
    logged.sort();
    logged.dedup();
    logged
}

fuzz_target!(init: sow(seeds()), |data: &[u8]| {
    let mut service = Service::new(Config::alone());
    if service.replay(data).is_err() {
        return;
    }
    // A directory's size and times follow its tallies, which any bytes need not do: so the first
    // snapshot may bring them in line, and the second must change nothing.
    let second = service_of(&snapshot(&service));
    let slices = snapshot(&second);
    assert_eq!(snapshot(&service_of(&slices)), slices);
    let (mut now, mut effects) = (1, Vec::new());
    for _ in 0..3 {
        service.step(Now::of(now), Input::Tick, &mut Nobody, &mut effects);
        now = service.deadline().unwrap_or(now).max(now);
    }
});
