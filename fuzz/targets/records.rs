//! One record of the metadata log: applied or refused, whatever its bytes. The resulting state is
//! written as a snapshot that restores the same state, and the service starts with it.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use metadata::{Config, Effect, HostMarks, HostView, Input, Now, Service, SnapshotCursor};
use wire::{Credentials, Header, Inode};

struct Nobody;

impl HostView for Nobody {}

impl HostMarks for Nobody {
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
    let mut service = Service::new(Config::single());
    for record in records {
        service.replay(record).expect("a record that the service made");
    }
    service
}

/// Records of a service that has used every feature.
fn seeds() -> Vec<Vec<u8>> {
    let mut service = Service::new(Config::single());
    let (mut logged, mut effects) = (Vec::new(), Vec::new());
    for (sequence, request) in forebay_fuzz::requests().into_iter().skip(10).enumerate() {
        let header = Header {
            shard: 0,
            daemon: 0,
            epoch: 1,
            client_id: 1,
            sequence: sequence as u64,
            host: 1,
            mount: 0,
            job: wire::JobWord::NONE,
            caller: Credentials::ROOT,
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

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let mut service = Service::new(Config::single());
    if service.replay(data).is_err() {
        return;
    }
    // A directory's size and times follow its tallies, which arbitrary bytes may contradict: so the
    // first snapshot may correct them, and the second must change nothing.
    let second = service_of(&snapshot(&service));
    let slices = snapshot(&second);
    assert_eq!(snapshot(&service_of(&slices)), slices);
    let (mut now, mut effects) = (1, Vec::new());
    for _ in 0..3 {
        service.step(Now::of(now), Input::Tick, &mut Nobody, &mut effects);
        now = service.deadline().unwrap_or(now).max(now);
    }
});
