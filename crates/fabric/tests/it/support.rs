//! Endpoints for tests, of each provider that this host has.

use fabric::{Endpoint, Library, Settings};
use shm::segment::Segment;
use std::sync::Arc;
use std::time::Duration;

/// Providers that need no device. `net` is that of TCP without the layer of `tcp;ofi_rxm` in
/// libfabric 1.17.
pub(crate) const PROVIDERS: [&str; 3] = ["tcp", "net", "shm"];
/// Longest wait for anything; a test that reaches it has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The library, or a line that states that nothing can be tested.
pub(crate) fn library() -> Option<Library> {
    match Library::load() {
        Ok(library) => Some(library),
        Err(error) => {
            println!("nothing to test: {error} (package libfabric1)");
            None
        }
    }
}

/// The providers of `PROVIDERS` that this host has.
pub(crate) fn providers(library: Library) -> Vec<&'static str> {
    let offers = library.offers().expect("a list");
    let is_there = |name: &&str| offers.iter().any(|offer| offer.is_named(name));
    let found: Vec<_> = PROVIDERS.into_iter().filter(is_there).collect();
    println!("libfabric {:?}: {found:?}", library.version());
    found
}

/// An endpoint on the loopback interface.
pub(crate) fn open(library: Library, provider: &str, part_bytes_max: u64) -> Endpoint {
    let settings = Settings {
        provider: Some(provider.to_owned()),
        remote: false,
        address: Some("127.0.0.1".parse().expect("an address")),
        transfers_max: 64,
        timeout: Duration::from_secs(1),
        part_bytes_max,
    };
    Endpoint::open(library, &settings).unwrap_or_else(|error| panic!("{provider}: {error}"))
}

/// Memory of `length` bytes that depend on their position.
pub(crate) fn memory(length: usize, seed: u64) -> Arc<Segment> {
    let segment = Segment::private(length).expect("memory");
    segment.copy_in(0, &pattern(length, seed)).expect("in range");
    Arc::new(segment)
}

/// Bytes that depend on their position and the seed.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|place| wire::hash::mix(seed, place));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// The content of a segment.
pub(crate) fn bytes(memory: &Segment) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).expect("in range");
    bytes
}
