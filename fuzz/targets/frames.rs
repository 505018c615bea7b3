//! What a stranger sends to a daemon's port: frames, and in them the words of a handshake. Nobody
//! is believed but who has the secret. And what a peer sends on a bulk stream. The first byte says whether the sender is a stranger.
#![no_main]

use forebay_fuzz::sow;
use libfuzzer_sys::fuzz_target;
use net::Secret;
use net::bulk::header::{self, Header, Range, Word};
use net::frame::{self, HEADER_BYTES, Kind};
use net::handshake::{HELLO_BYTES, Handshake, Parties, Proven, Role};
use wire::limits::{FRAME_BYTES_MAX, STAGE_BUFFER_BYTES};
use wire::{DaemonIndex, Errno, Inode};

fn side(role: Role, me: u16) -> Handshake {
    let me = DaemonIndex(me);
    let parties = Parties { me, role, start: 7, expected: None, daemon_count: 4, stream: 0 };
    Handshake::new(Secret::new([9; 32]), parties, [me.0 as u8; 32])
}

/// The honest dialler's words to the acceptor below.
fn words() -> (Vec<u8>, Vec<u8>) {
    let mut dialler = side(Role::Dialler, 2);
    let proof = dialler.hello(side(Role::Acceptor, 1).own_hello()).expect("a hello of ours");
    (dialler.own_hello().to_vec(), proof.to_vec())
}

fn seeds() -> Vec<Vec<u8>> {
    let (hello, proof) = words();
    let framed = |first: u8, frames: &[(Kind, &[u8])]| {
        let mut bytes = vec![first];
        for (kind, payload) in frames {
            frame::encode(*kind, 1, payload, &mut bytes).expect("short");
        }
        bytes
    };
    vec![
        framed(0, &[(Kind::Hello, &hello), (Kind::Proof, &proof)]),
        framed(0, &[(Kind::Hello, &hello), (Kind::Refusal, &[3])]),
        framed(1, &[(Kind::Request, b"request"), (Kind::Reply, b""), (Kind::Message, b"m")]),
        transfers(),
    ]
}

fn transfers() -> Vec<u8> {
    let range = Range { inode: Inode(1), chunk_log2: 22, offset: 1 << 30, length: 1 << 18 };
    let words = [
        Word::Store(range),
        Word::Fetch(range),
        Word::Done(Err(Errno::ENOSPC)),
        Word::Data(1 << 18),
        Word::Busy(100),
    ];
    let headers = words.into_iter().flat_map(|word| Header { id: 1, word }.encode());
    [0].into_iter().chain(headers).collect()
}

/// Takes the header of a transfer, which keeps to its bounds and comes back.
fn transfer(bytes: &[u8; header::HEADER_BYTES]) {
    let Ok(one) = Header::decode(bytes) else { return };
    assert_eq!(one.encode(), *bytes);
    if let Word::Store(range) | Word::Fetch(range) = one.word {
        assert!(range.length as usize <= STAGE_BUFFER_BYTES && range.end() > range.offset);
    }
}

/// Takes a frame as a connection that is not up takes it.
fn shake(side: &mut Handshake, honest: bool, one: &frame::Frame<'_>) {
    match one.kind {
        Kind::Hello => drop(side.hello(one.payload).map_err(|refusal| refusal.to_string())),
        Kind::Proof => match side.proof(one.payload) {
            Ok(proven) => {
                assert!(honest, "a stranger was believed");
                assert_eq!(proven, Proven { daemon: DaemonIndex(2), start: 7, stream: 0 });
            }
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        },
        _ => {}
    }
}

fuzz_target!(init: sow(seeds()), |data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let most = if first & 1 == 0 { HELLO_BYTES } else { FRAME_BYTES_MAX };
    bytes.as_chunks().0.iter().for_each(transfer);
    let mut acceptor = side(Role::Acceptor, 1);
    let (hello, proof) = words();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let honest = has(&hello) && has(&proof);
    let mut rest = bytes;
    while let Ok(Some((one, length))) = frame::decode(rest, most) {
        assert!(one.payload.len() <= most && length == HEADER_BYTES + one.payload.len());
        let mut again = Vec::new();
        frame::encode(one.kind, one.id, one.payload, &mut again).expect("it was not too long");
        assert_eq!(again, &rest[..length]);
        shake(&mut acceptor, honest, &one);
        rest = &rest[length..];
    }
    // What is left is the beginning of a frame, or none; a longer beginning of none is none.
    if frame::decode(rest, most).is_err() {
        let longer = [rest, b"more"].concat();
        assert!(frame::decode(&longer, most).is_err());
    }
    let mut dialler = side(Role::Dialler, 3);
    let _ = dialler.hello(bytes);
    assert!(dialler.proof(bytes).is_err());
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = Secret::parse(text);
    }
});
