//! Messages of clients, daemons and their answers: a decoded message is encoded in as many bytes
//! and decodes to the same again. The first byte of the input chooses the message.
#![no_main]

use forebay_fuzz::{attributes, encoded, location, replies, requests, write_seeds};
use libfuzzer_sys::fuzz_target;
use placement::Map;
use wire::backing::{DirtyName, SyncState};
use wire::codec::Field as _;
use wire::reply::{DirectoryEntry, Extent};
use wire::{Attributes, Credentials, Header, Inode, JobWord, Reader, Reply, Request, Welcome, Writer};

/// Decodes, encodes and decodes again.
macro_rules! round_trip {
    ($bytes:expr, $decode:path, |$value:ident, $to:ident| $encode:expr) => {{
        let mut reader = Reader::new($bytes);
        if let Ok($value) = $decode(&mut reader) {
            let consumed = $bytes.len() - reader.rest().len();
            let mut buffer = vec![0; consumed];
            let mut writer = Writer::new(&mut buffer);
            let $to = &mut writer;
            $encode;
            assert_eq!(writer.finish(), Ok(consumed));
            let mut again = Reader::new(&buffer);
            assert_eq!($decode(&mut again).as_ref(), Ok(&$value));
            assert!(again.rest().is_empty());
        }
    }};
}

/// Decodes the rest of a `Welcome` after its first byte.
fn welcome(bytes: &[u8]) {
    let Ok(welcome) = Welcome::decode(&mut Reader::new(bytes)) else { return };
    let written = encoded(|to| welcome.encode(to));
    assert_eq!(written.first(), Some(&wire::welcome::ACCEPTED));
    assert_eq!(Welcome::decode(&mut Reader::new(&written[1..])), Ok(welcome));
}

fn seeds() -> Vec<Vec<u8>> {
    let with = |kind: u8, bytes: Vec<u8>| [vec![kind], bytes].concat();
    let header = Header {
        shard: 1,
        daemon: 2,
        epoch: 3,
        client_id: 4,
        sequence: 5,
        host: 6,
        mount: 3,
        job: JobWord { user: 7, number: 8, dirty_mib_max: 9 },
        caller: Credentials::of(7, 8),
    };
    let entry = DirectoryEntry { hash: 1, inode: Inode(2), mode: 3, name: b"name" };
    let extent = Extent { start: 0, slot: 1, location: 2, length_log2: 20, tier: 1 };
    let greeting = Welcome { workers: 2, ..Welcome::default() };
    let (inode, parent) = (Inode(2), Inode::ROOT);
    let location = Some(location(parent, b"name"));
    let attributes_here = Some(attributes());
    let sync_state = SyncState {
        inode,
        attributes: attributes_here,
        is_written: true,
        now: location,
        next: location,
        partial: location,
    };
    let dirty = DirtyName { parent, name: b"name", entry: inode, mode: 1, backed_inode: Inode(3) };
    let mut seeds = vec![
        with(2, encoded(|to| header.encode(to))),
        with(3, encoded(|to| greeting.encode(to)).split_off(1)),
        with(4, encoded(|to| attributes().encode(to))),
        with(5, encoded(|to| entry.put(to))),
        with(6, encoded(|to| extent.put(to))),
        with(8, encoded(|to| sync_state.put(to))),
        with(9, encoded(|to| dirty.put(to))),
        with(7, encoded(|to| Map::initial(3).expect("three daemons").encode(to))),
    ];
    seeds.extend(requests().iter().map(|one| with(0, encoded(|to| one.encode(to)))));
    seeds.extend(replies().iter().map(|one| with(1, encoded(|to| one.encode(to)))));
    seeds
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind {
        0 => round_trip!(bytes, Request::decode, |request, to| request.encode(to)),
        1 => round_trip!(bytes, Reply::decode, |reply, to| reply.encode(to)),
        2 => round_trip!(bytes, Header::decode, |header, to| header.encode(to)),
        3 => welcome(bytes),
        4 => round_trip!(bytes, Attributes::decode, |attributes, to| attributes.encode(to)),
        5 => round_trip!(bytes, DirectoryEntry::take, |entry, to| entry.put(to)),
        6 => round_trip!(bytes, Extent::take, |extent, to| extent.put(to)),
        8 => round_trip!(bytes, SyncState::take, |sync_state, to| sync_state.put(to)),
        9 => round_trip!(bytes, DirtyName::take, |name, to| name.put(to)),
        _ => round_trip!(bytes, Map::decode, |map, to| map.encode(to)),
    }
});
