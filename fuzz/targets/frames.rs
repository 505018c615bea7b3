//! Input from a stranger at a daemon's port: frames, and the messages of a handshake. Only a peer
//! with the secret is authenticated. Input of records, none of which opens. And input
//! from a peer on a bulk stream. The first byte says
//! whether the sender is a stranger.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use net::Secret;
use net::bulk::header::{self, Header, Message, Range};
use net::frame::{self, FrameKind, HEADER_BYTES};
use net::handshake::{Accepting, Dialling, HELLO_BYTES, Parties};
use net::security::Protection;
use net::socket::Place;
use wire::limits::{BOUNCE_BUFFER_BYTES, FRAME_BYTES_MAX};
use wire::{DaemonIndex, Errno, Inode, JobWord};

fn parties(me: u16) -> Parties {
    let protection = Protection::Sealed;
    Parties { me: DaemonIndex(me), start: 7, daemon_count: 4, protection }
}

fn place() -> Place {
    Place::Tcp(([127, 0, 0, 1], 7).into())
}

fn dialling() -> (Dialling, Vec<u8>) {
    let to = (DaemonIndex(1), place());
    Dialling::new(&Secret::new([9; 32]), parties(2), to, 0).expect("random numbers")
}

fn accepting() -> Accepting {
    Accepting::new(&Secret::new([9; 32]), parties(1), place()).expect("random numbers")
}

/// A genuine hello, which another connection's input may repeat, and a proof of its length.
fn words() -> (Vec<u8>, Vec<u8>) {
    (dialling().1, vec![7; 16])
}

fn seeds() -> Vec<Vec<u8>> {
    let (hello, proof) = words();
    let framed = |first: u8, frames: &[(FrameKind, &[u8])]| {
        let mut bytes = vec![first];
        for (kind, payload) in frames {
            frame::encode(*kind, 1, payload, &mut bytes).expect("short");
        }
        bytes
    };
    vec![
        framed(0, &[(FrameKind::Hello, &hello), (FrameKind::Proof, &proof)]),
        framed(0, &[(FrameKind::Hello, &hello), (FrameKind::Refusal, &[3])]),
        framed(
            1,
            &[
                (FrameKind::Request, b"request"),
                (FrameKind::Reply, b""),
                (FrameKind::Message, b"m"),
            ],
        ),
        transfers(),
    ]
}

fn transfers() -> Vec<u8> {
    let job = JobWord { user: 1000, number: 1, dirty_mib_max: 64 };
    let (inode, offset, length) = (Inode(1), 1 << 30, 1 << 18);
    let range = Range { inode, stripe_log2: 22, offset, length, job };
    let words = [
        Message::Store(range),
        Message::Fetch(Range { job: JobWord::NONE, ..range }),
        Message::Done(Err(Errno::ENOSPC)),
        Message::Data(1 << 18),
        Message::Busy(100),
        Message::Elsewhere(3 << 48 | 1),
    ];
    let headers = words.into_iter().flat_map(|message| Header { id: 1, message }.encode());
    [0].into_iter().chain(headers).collect()
}

/// Decodes the header of a transfer, which must be within its bounds and survive a round trip.
fn transfer(bytes: &[u8; header::HEADER_BYTES]) {
    let Ok(one) = Header::decode(bytes) else { return };
    assert_eq!(one.encode(), *bytes);
    if let Message::Store(range) | Message::Fetch(range) = one.message {
        assert!(range.length as usize <= BOUNCE_BUFFER_BYTES && range.end() > range.offset);
    }
}

/// Handles a frame as a connection does during its handshake. Nobody without the secret can answer
/// fresh keys, so no input is a proof.
fn shake(side: &mut Accepting, one: &frame::Frame<'_>) {
    match one.kind {
        FrameKind::Hello => drop(side.hello(one.payload).map_err(|refusal| refusal.to_string())),
        FrameKind::Proof => match side.proof(one.payload) {
            Ok(proven) => panic!("a stranger was authenticated: {proven:?}"),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        },
        _ => {}
    }
}

/// Opens input as records: nothing of it is genuine.
fn open_records(bytes: &[u8]) {
    let (dialling, hello) = dialling();
    let answer = accepting().hello(&hello).expect("genuine");
    let (proven, _) = dialling.hello(&answer).expect("genuine");
    let mut keys = proven.keys.expect("a protected connection");
    let mut bytes = bytes.to_vec();
    if let Ok(Some(opened)) = keys.opener.open(&mut bytes) {
        panic!("a stranger's record was opened: {opened:?}");
    }
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let most = if first & 1 == 0 { HELLO_BYTES } else { FRAME_BYTES_MAX };
    bytes.as_chunks().0.iter().for_each(transfer);
    let mut acceptor = accepting();
    open_records(bytes);
    let mut rest = bytes;
    while let Ok(Some((one, length))) = frame::decode(rest, most) {
        assert!(one.payload.len() <= most && length == HEADER_BYTES + one.payload.len());
        let mut again = Vec::new();
        frame::encode(one.kind, one.id, one.payload, &mut again).expect("it was short enough");
        assert_eq!(again, &rest[..length]);
        shake(&mut acceptor, &one);
        rest = &rest[length..];
    }
    // The rest is the beginning of a frame, or invalid; a longer beginning stays invalid.
    if frame::decode(rest, most).is_err() {
        let longer = [rest, b"more"].concat();
        assert!(frame::decode(&longer, most).is_err());
    }
    assert!(dialling().0.hello(bytes).is_err());
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = Secret::parse(text);
    }
});
