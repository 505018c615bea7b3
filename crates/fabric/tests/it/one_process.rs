//! Two endpoints in one process: random reads and writes against a model of both memories, ranges
//! out of bounds, removed regions, and missing libraries.

use crate::support::{PROVIDERS, TIMEOUT, bytes, library, memory, open, pattern, providers};
use fabric::{
    Completion, Endpoint, Error, Grant, Library, Peer, Place, Reach, Region, RemotePlace, Settings,
};
use proptest::prelude::*;
use shm::segment::{Access, Segment};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LENGTH: usize = 300_000;

struct Pair {
    own: Endpoint,
    other: Endpoint,
    own_memory: Arc<Segment>,
    other_memory: Arc<Segment>,
    region: Region,
    other_region: Region,
    peer: Peer,
    grant: Grant,
}

fn pair(library: Library, provider: &str, part_bytes_max: u64, reach: Reach) -> Pair {
    let mut own = open(library, provider, part_bytes_max);
    let mut other = open(library, provider, part_bytes_max);
    let (own_memory, other_memory) = (memory(LENGTH, 1), memory(LENGTH, 2));
    let length = LENGTH as u64;
    let region = own.register(Arc::clone(&own_memory), 0, length, Reach::Own).expect("a region");
    let other_region = other.register(Arc::clone(&other_memory), 0, length, reach).expect("one");
    let peer = own.add_peer(other.address()).expect("an address");
    let grant = other.grant(other_region).expect("a region");
    let grant = Grant::decode(&grant.encode());
    Pair { own, other, own_memory, other_memory, region, other_region, peer, grant }
}

impl Pair {
    fn place(&self, offset: u64) -> Place {
        Place { region: self.region, offset }
    }

    fn remote(&self, offset: u64) -> RemotePlace {
        RemotePlace { peer: self.peer, grant: self.grant, offset }
    }
}

/// The next completion of `own`, while `other` serves.
fn complete(own: &mut Endpoint, other: &mut Endpoint) -> Completion {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(completion) = own.poll().expect("a good queue") {
            return completion;
        }
        assert_eq!(other.poll().expect("a good queue"), None, "nothing was begun there");
        assert!(Instant::now() < deadline, "{}: no end of a transfer", own.offer().provider);
        std::thread::yield_now();
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    is_read: bool,
    own: usize,
    other: usize,
    length: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![0..64_usize, 0..5000_usize, 0..LENGTH];
    let step = (any::<bool>(), length, any::<u32>(), any::<u32>()).prop_map(|one| {
        let (is_read, length, own, other) = one;
        let within = |number: u32| number as usize % (LENGTH - length + 1);
        Step { is_read, own: within(own), other: within(other), length }
    });
    proptest::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn bytes_go_where_they_should_and_nowhere_else(
        provider in 0..PROVIDERS.len(),
        part in prop_oneof![Just(u64::MAX), 1000..70_000_u64],
        steps in steps(),
    ) {
        let Some(library) = library() else { return Ok(()) };
        let there = providers(library);
        let Some(&name) = there.get(provider % there.len().max(1)) else { return Ok(()) };
        let mut pair = pair(library, name, part, Reach::ReadWrite);
        let (mut own, mut other) = (pattern(LENGTH, 1), pattern(LENGTH, 2));
        for (token, step) in steps.into_iter().enumerate() {
            let (place, remote) = (pair.place(step.own as u64), pair.remote(step.other as u64));
            let (length, token) = (step.length as u64, token as u64);
            let (here, there) = (step.own..step.own + step.length, step.other..step.other + step.length);
            if step.is_read {
                pair.own.read(place, remote, length, token).expect("begun");
                own[here].copy_from_slice(&other[there]);
            } else {
                pair.own.write(place, remote, length, token).expect("begun");
                other[there].copy_from_slice(&own[here]);
            }
            let end = complete(&mut pair.own, &mut pair.other);
            prop_assert_eq!(end.token, token);
            prop_assert_eq!(end.outcome, Ok(()));
            prop_assert!(bytes(&pair.own_memory) == own, "{}: own memory", name);
            prop_assert!(bytes(&pair.other_memory) == other, "{}: the other's memory", name);
        }
    }
}

#[test]
fn many_at_once_all_end() {
    let Some(library) = library() else { return };
    for name in providers(library) {
        let mut pair = pair(library, name, 700, Reach::ReadWrite);
        for round in 0..4_u64 {
            for number in 0..64 {
                let at = number * 4000;
                let (place, remote) = (pair.place(at), pair.remote(at));
                if number % 2 == 0 {
                    pair.own.read(place, remote, 4000, round * 100 + number).expect("begun");
                } else {
                    pair.own.write(place, remote, 4000, round * 100 + number).expect("begun");
                }
            }
            let (place, remote) = (pair.place(0), pair.remote(0));
            assert_eq!(pair.own.read(place, remote, 1, 0), Err(Error::Full), "{name}");
            let mut seen: Vec<u64> = Vec::new();
            for _ in 0..64 {
                let end = complete(&mut pair.own, &mut pair.other);
                assert_eq!(end.outcome, Ok(()), "{name}");
                seen.push(end.token);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..64).map(|number| round * 100 + number).collect::<Vec<_>>());
            assert_eq!(pair.own.poll(), Ok(None), "{name}: each end once");
        }
        let (own, other) = (bytes(&pair.own_memory), bytes(&pair.other_memory));
        assert!(own[..256_000] == other[..256_000], "{name}: alike where bytes were moved");
        let first = &pattern(LENGTH, 2)[..4000];
        assert!(&own[..4000] == first, "{name}: the bytes read");
        assert!(other[4000..8000] == pattern(LENGTH, 1)[4000..8000], "{name}: the bytes written");
    }
}

#[test]
fn a_range_outside_the_memory_or_a_removed_peer_is_refused_locally() {
    let Some(library) = library() else { return };
    for name in providers(library) {
        let mut pair = pair(library, name, u64::MAX, Reach::ReadWrite);
        let length = LENGTH as u64;
        let cases = [
            (1, 0, length),
            (0, 1, length),
            (length + 1, 0, 0),
            (0, length + 1, 0),
            (u64::MAX, 0, 2),
            (0, u64::MAX, 2),
            (0, 0, u64::MAX),
        ];
        for (own, other, length) in cases {
            let (place, remote) = (pair.place(own), pair.remote(other));
            assert_eq!(pair.own.read(place, remote, length, 1), Err(Error::OutOfRange), "{name}");
            assert_eq!(pair.own.write(place, remote, length, 1), Err(Error::OutOfRange), "{name}");
        }
        // A grant that wraps around.
        let wild =
            RemotePlace { grant: Grant { base: u64::MAX - 5, ..pair.grant }, ..pair.remote(10) };
        assert_eq!(pair.own.read(pair.place(0), wild, 1, 1), Err(Error::OutOfRange), "{name}");

        pair.own.read(pair.place(0), pair.remote(0), 1000, 7).expect("begun");
        assert_eq!(pair.own.unregister(pair.region), Err(Error::Busy), "{name}");
        assert_eq!(complete(&mut pair.own, &mut pair.other).outcome, Ok(()), "{name}");
        pair.own.unregister(pair.region).expect("nothing uses it");
        let begun = pair.own.read(pair.place(0), pair.remote(0), 1, 1);
        assert_eq!(begun, Err(Error::Unknown), "{name}");
        assert_eq!(pair.own.unregister(pair.region), Err(Error::Unknown), "{name}");
        // Others take their table entries; the old names stay invalid.
        let again = Arc::clone(&pair.own_memory);
        let region = pair.own.register(again, 0, 10, Reach::Own).expect("a region");
        assert_ne!(region, pair.region);
        assert_eq!(pair.own.grant(pair.region), Err(Error::Unknown), "{name}");
        assert_eq!(pair.own.poll(), Ok(None), "{name}: nothing was begun");
    }
}

/// An access that cannot be checked locally ends in an error of the provider, and the other's bytes
/// are unchanged.
#[test]
fn an_access_that_the_peer_did_not_grant_ends_in_an_error() {
    let Some(library) = library() else { return };
    // In 1.17, `shm` checks no key: the kernel copies between the processes of one user.
    for name in providers(library).into_iter().filter(|&name| name != "shm") {
        let is_refused = |grant: fn(Grant) -> Grant, reach: Reach, write: bool, what: &str| {
            let mut pair = pair(library, name, u64::MAX, reach);
            let remote = RemotePlace { grant: grant(pair.grant), ..pair.remote(0) };
            let place = pair.place(0);
            let begun = match write {
                true => pair.own.write(place, remote, 5000, 1),
                false => pair.own.read(place, remote, 5000, 1),
            };
            begun.expect("begun");
            let end = complete(&mut pair.own, &mut pair.other);
            assert!(matches!(end.outcome, Err(Error::Call { .. })), "{name}, {what}: {end:?}");
            assert!(bytes(&pair.other_memory) == pattern(LENGTH, 2), "{name}, {what}");
            assert!(pair.other.grant(pair.other_region).is_ok(), "{name}, {what}");
        };
        for write in [false, true] {
            let beyond = |grant: Grant| Grant { base: grant.base + LENGTH as u64 - 100, ..grant };
            is_refused(beyond, Reach::ReadWrite, write, "beyond the end");
            let guessed = |grant: Grant| Grant { key: grant.key ^ 0x5555, ..grant };
            is_refused(guessed, Reach::ReadWrite, write, "another key");
            is_refused(|grant| grant, Reach::Own, write, "not reachable");
        }
        is_refused(|grant| grant, Reach::Read, true, "reachable for reading only");
    }
}

#[test]
fn keys_differ_where_they_are_ours() {
    let Some(library) = library() else { return };
    for name in providers(library) {
        let mut one = open(library, name, u64::MAX);
        let memory = memory(4096, 1);
        let mut keys: Vec<u64> = (0..20)
            .map(|_| {
                let region = one.register(Arc::clone(&memory), 0, 4096, Reach::Read);
                one.grant(region.expect("a region")).expect("a region").key
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 20, "{name}");
        if name != "shm" {
            assert!(keys.iter().any(|key| key >> 32 != 0), "{name}: small keys can be guessed");
        }
    }
}

#[test]
fn only_writable_memory_of_the_mapping_is_registered() {
    let Some(library) = library() else { return };
    let (_, fd) = Segment::nameless(c"fabric", 8192).expect("memory");
    let read_only = Arc::new(Segment::map(&fd, 8192, Access::ReadOnly).expect("a mapping"));
    for name in providers(library) {
        let mut one = open(library, name, u64::MAX);
        let wrong = one.register(Arc::clone(&read_only), 0, 8192, Reach::Read);
        assert_eq!(wrong, Err(Error::Refused), "{name}");
        let memory = memory(8192, 1);
        for (offset, length) in [(0, 8193), (8192, 1), (1, 8192), (0, 0), (u64::MAX, 2)] {
            let wrong = one.register(Arc::clone(&memory), offset, length, Reach::Read);
            assert_eq!(wrong, Err(Error::OutOfRange), "{name}: {offset} {length}");
        }
        for wrong in [&[] as &[u8], &[7; 256]] {
            assert_eq!(one.add_peer(wrong), Err(Error::OutOfRange), "{name}");
        }
    }
}

#[test]
fn a_missing_library_is_reported_in_one_line() {
    let wrong = Library::load_named(c"libnothing-of-this-name.so.1").err().expect("absent");
    let Error::Absent(text) = &wrong else { panic!("{wrong:?}") };
    assert!(text.contains("libnothing-of-this-name.so.1"), "{text}");
    assert_eq!(text.lines().count(), 1);
    // An existing library of another kind.
    let wrong = Library::load_named(c"libc.so.6").err().expect("not libfabric");
    assert_eq!(wrong, Error::Absent("no fi_version in it".to_owned()));
    let Some(library) = library() else { return };
    let provider = Some("nothing".to_owned());
    let settings = Settings {
        provider,
        remote: true,
        address: None,
        transfers_max: 1,
        timeout: Duration::ZERO,
        part_bytes_max: u64::MAX,
    };
    let wrong = Endpoint::open(library, &settings).err().expect("absent");
    assert_eq!(
        wrong,
        Error::Absent("libfabric has no provider nothing here for other hosts".to_owned())
    );
}
