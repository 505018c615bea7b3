//! Mutual authentication: `Noise_NNpsk0_25519_AESGCM_SHA256`, with the instance's secret as the
//! pre-shared key, and agreement on the keys of the connection. No I/O here.
//!
//!   dialler                                acceptor
//!   hello: header, first message   ------>
//!                                  <------ hello: second message
//!   proof: empty message           ------>
//!
//! Header (16 bytes): magic (8), protocol version u32, protection u8, three zero bytes. It is the
//! prologue, so a header that was changed on its way fails. The first message carries the dialler's
//! index u16, that of the daemon that it means u16, stream u8, kind of the place dialled u8, port
//! u16, start u64, address (16); the second one the acceptor's index u16, six zero bytes, and start
//! u64. The proof is the dialler's first message with the agreed keys: a recorded hello can be sent
//! again, but not followed by a proof. Refusal: one byte, `Refusal::code`.
//!
//! The acceptor compares the place that was dialled with the one where the connection arrived. So
//! nobody can take a connection and pass it on to a daemon elsewhere.

use super::Protection;
use super::noise::{PATTERN, Ring};
use super::records::{KEY_BYTES, Keys};
use super::secret::Secret;
use crate::socket::Place;
use snow::{Builder, HandshakeState};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader, Writer};
use wire::limits::PROTOCOL_VERSION;

/// First bytes of a hello.
const MAGIC: [u8; 8] = *b"FOREBAYN";
const HEADER_BYTES: usize = 16;
/// Bytes of an ephemeral key and a tag.
const NOISE_BYTES: usize = 32 + 16;
const FIRST_BYTES: usize = 32;
const SECOND_BYTES: usize = 16;
/// Length of a dialler's hello, the longest message of a handshake.
pub const HELLO_BYTES: usize = HEADER_BYTES + FIRST_BYTES + NOISE_BYTES;
/// Length of an acceptor's hello.
pub const ANSWER_BYTES: usize = SECOND_BYTES + NOISE_BYTES;
/// Length of a proof.
pub const PROOF_BYTES: usize = 16;

/// Why a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The bytes are not a handshake of this protocol.
    Malformed,
    /// The other side uses another protocol version.
    Version {
        /// Its version.
        theirs: u32,
    },
    /// The other side does not know the instance's secret, or the bytes were changed on their way.
    Secret,
    /// The other side is not the expected daemon, or expects another one.
    Daemon {
        /// The index that it claims, or expects.
        theirs: u16,
    },
    /// The other side protects its connections otherwise.
    Protection,
    /// The other side dialled another place: somebody passed the connection on.
    Place,
    /// The operating system has no random numbers.
    Random,
    /// A later start of the other side was connected before: another daemon is in its place.
    Start {
        /// The start that it has.
        theirs: u64,
    },
    /// The other side refused, with this code.
    ByPeer(u8),
}

impl Refusal {
    /// The code that is sent to the other side.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Refusal::Malformed => 1,
            Refusal::Version { .. } => 2,
            Refusal::Secret => 3,
            Refusal::Daemon { .. } => 4,
            Refusal::Protection => 5,
            Refusal::Place => 6,
            Refusal::Random => 7,
            Refusal::Start { .. } => 8,
            Refusal::ByPeer(code) => code,
        }
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::Malformed => f.write_str("not a handshake of this protocol"),
            Refusal::Version { theirs } => {
                write!(f, "other protocol version: theirs={theirs} ours={PROTOCOL_VERSION}")
            }
            Refusal::Secret => f.write_str("wrong secret: the daemon is of another instance"),
            Refusal::Daemon { theirs } => write!(f, "unexpected daemon: theirs={theirs}"),
            Refusal::Protection => f.write_str("other setting of --wire"),
            Refusal::Place => f.write_str("it dialled another address: the connection was relayed"),
            Refusal::Random => f.write_str("no random numbers"),
            Refusal::Start { theirs } => {
                write!(f, "another daemon is in its place: theirs={theirs}")
            }
            Refusal::ByPeer(2) => f.write_str("refused by the peer: other protocol version"),
            Refusal::ByPeer(3) => f.write_str("refused by the peer: wrong secret"),
            Refusal::ByPeer(4) => f.write_str("refused by the peer: unexpected daemon"),
            Refusal::ByPeer(5) => f.write_str("refused by the peer: other setting of --wire"),
            Refusal::ByPeer(6) => {
                f.write_str("refused by the peer: it is at another address than was dialled")
            }
            Refusal::ByPeer(8) => {
                f.write_str("refused by the peer: another daemon is in this one's place")
            }
            Refusal::ByPeer(_) => f.write_str("refused by the peer"),
        }
    }
}

impl core::error::Error for Refusal {}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Refusal {
        Refusal::Malformed
    }
}

/// Parameters of a daemon in all of its handshakes.
#[derive(Clone, Copy, Debug)]
pub struct Parties {
    /// This daemon.
    pub me: DaemonIndex,
    /// Number of this daemon's start: a different one means that it was down in between.
    pub start: u64,
    /// Number of daemons of the instance.
    pub daemon_count: u16,
    /// Protection of the connection.
    pub protection: Protection,
}

/// Identity that the other side has proven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// Its index.
    pub daemon: DaemonIndex,
    /// Number of its start.
    pub start: u64,
    /// Purpose of the connection, set by its dialler. 0: messages; otherwise the number of a bulk
    /// stream. Of an acceptor always 0.
    pub stream: u8,
}

/// Result of a handshake.
#[derive(Debug)]
pub struct Proven {
    /// The other side.
    pub peer: PeerIdentity,
    /// Keys of the connection; `None`: it is not protected.
    pub keys: Option<Keys>,
}

/// A handshake of the side that dialled, which waits for the acceptor's hello.
pub struct Dialling {
    state: Box<HandshakeState>,
    parties: Parties,
    expected: DaemonIndex,
}

/// A handshake of the side that accepted.
pub struct Accepting {
    state: Box<HandshakeState>,
    parties: Parties,
    /// Where the connection arrived.
    place: Place,
    /// The other side's claim, once it knows the secret.
    claimed: Option<PeerIdentity>,
}

impl Dialling {
    /// Starts a handshake with the daemon `expected` at `place`, for the stream of this number.
    /// Also returns the hello to send.
    ///
    /// # Errors
    /// `Refusal::Random`.
    pub fn new(
        secret: &Secret,
        parties: Parties,
        (expected, place): (DaemonIndex, Place),
        stream: u8,
    ) -> Result<(Dialling, Vec<u8>), Refusal> {
        let header = header_of(parties.protection);
        let builder = builder(secret, &header)?;
        let mut state = Box::new(builder.build_initiator().map_err(|_| Refusal::Random)?);
        let mut first = [0; FIRST_BYTES];
        let mut writer = Writer::new(&mut first);
        writer.u16(parties.me.0);
        writer.u16(expected.0);
        writer.u8(stream);
        let (kind, port, address) = place.parts();
        writer.u8(kind);
        writer.u16(port);
        writer.u64(parties.start);
        writer.raw(&address);
        let mut hello = header.to_vec();
        hello.extend(write(&mut state, &first).ok_or(Refusal::Random)?);
        Ok((Dialling { state, parties, expected }, hello))
    }

    /// Takes the acceptor's hello; also returns the proof to send.
    ///
    /// # Errors
    /// The refusal to send before the connection is closed.
    pub fn hello(mut self, payload: &[u8]) -> Result<(Proven, Vec<u8>), Refusal> {
        if payload.len() != ANSWER_BYTES {
            return Err(Refusal::Malformed);
        }
        let second: [u8; SECOND_BYTES] = read(&mut self.state, payload)?;
        let mut reader = Reader::new(&second);
        let theirs = reader.u16()?;
        reader.raw(6)?;
        let start = reader.u64()?;
        if theirs != self.expected.0 {
            return Err(Refusal::Daemon { theirs });
        }
        let (own, their_key) = split(&mut self.state);
        let mut keys = Keys::new(&own, &their_key).ok_or(Refusal::Random)?;
        let proof = keys.sealer.seal_in_place(&mut []).map_err(|_| Refusal::Random)?;
        let peer = PeerIdentity { daemon: self.expected, start, stream: 0 };
        Ok((Proven { peer, keys: kept(keys, self.parties) }, proof.to_vec()))
    }
}

impl Accepting {
    /// Starts a handshake on a connection that arrived at `place`.
    ///
    /// # Errors
    /// `Refusal::Random`.
    pub fn new(secret: &Secret, parties: Parties, place: Place) -> Result<Accepting, Refusal> {
        let header = header_of(parties.protection);
        let builder = builder(secret, &header)?;
        let state = Box::new(builder.build_responder().map_err(|_| Refusal::Random)?);
        Ok(Accepting { state, parties, place, claimed: None })
    }

    /// Takes the dialler's hello; returns the hello to send.
    ///
    /// # Errors
    /// The refusal to send before the connection is closed.
    pub fn hello(&mut self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut reader = Reader::new(payload);
        if self.claimed.is_some() || reader.raw(MAGIC.len())? != MAGIC {
            return Err(Refusal::Malformed);
        }
        // Checked before all fields that another version may change.
        let theirs = reader.u32()?;
        if theirs != PROTOCOL_VERSION {
            return Err(Refusal::Version { theirs });
        }
        let own = header_of(self.parties.protection);
        let (header, message) = payload.split_at_checked(HEADER_BYTES).ok_or(Refusal::Malformed)?;
        if payload.len() != HELLO_BYTES {
            return Err(Refusal::Malformed);
        }
        if header != own {
            return Err(Refusal::Protection);
        }
        let first: [u8; FIRST_BYTES] = read(&mut self.state, message)?;
        let claimed = self.check(&first)?;
        let mut second = [0; SECOND_BYTES];
        let mut writer = Writer::new(&mut second);
        writer.u16(self.parties.me.0);
        writer.raw(&[0; 6]);
        writer.u64(self.parties.start);
        let answer = write(&mut self.state, &second).ok_or(Refusal::Random)?;
        self.claimed = Some(claimed);
        Ok(answer)
    }

    fn check(&self, first: &[u8; FIRST_BYTES]) -> Result<PeerIdentity, Refusal> {
        let mut reader = Reader::new(first);
        let (theirs, meant) = (reader.u16()?, reader.u16()?);
        let (stream, kind, port) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let start = reader.u64()?;
        if meant != self.parties.me.0 {
            return Err(Refusal::Daemon { theirs: meant });
        }
        if theirs >= self.parties.daemon_count || theirs == self.parties.me.0 {
            return Err(Refusal::Daemon { theirs });
        }
        let (own_kind, own_port, own_address) = self.place.parts();
        if (kind, port, reader.rest()) != (own_kind, own_port, &own_address[..]) {
            return Err(Refusal::Place);
        }
        Ok(PeerIdentity { daemon: DaemonIndex(theirs), start, stream })
    }

    /// Takes the dialler's proof.
    ///
    /// # Errors
    /// The refusal to send before the connection is closed.
    pub fn proof(&mut self, payload: &[u8]) -> Result<Proven, Refusal> {
        let peer = self.claimed.ok_or(Refusal::Malformed)?;
        let proof: [u8; PROOF_BYTES] = payload.try_into().map_err(|_| Refusal::Malformed)?;
        let (their_key, own) = split(&mut self.state);
        let mut keys = Keys::new(&own, &their_key).ok_or(Refusal::Random)?;
        keys.opener.open_in_place(&mut { proof }).map_err(|_| Refusal::Secret)?;
        Ok(Proven { peer, keys: kept(keys, self.parties) })
    }
}

fn kept(keys: Keys, parties: Parties) -> Option<Keys> {
    (parties.protection == Protection::Sealed).then_some(keys)
}

fn header_of(protection: Protection) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let mut writer = Writer::new(&mut header);
    writer.raw(&MAGIC);
    writer.u32(PROTOCOL_VERSION);
    writer.u8(protection as u8);
    header
}

fn builder<'a>(secret: &'a Secret, header: &'a [u8; HEADER_BYTES]) -> Result<Builder<'a>, Refusal> {
    // Neither the name of the pattern nor the lengths depend on anything from outside.
    let pattern = PATTERN.parse().map_err(|_| Refusal::Random)?;
    Builder::with_resolver(pattern, Box::new(Ring))
        .psk(0, secret.bytes())
        .and_then(|builder| builder.prologue(header))
        .map_err(|_| Refusal::Random)
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Option<Vec<u8>> {
    let mut message = vec![0; NOISE_BYTES + payload.len()];
    let length = state.write_message(payload, &mut message).ok()?;
    (length == message.len()).then_some(message)
}

fn read<const N: usize>(state: &mut HandshakeState, message: &[u8]) -> Result<[u8; N], Refusal> {
    // With space for the tag, which the library may need on the way.
    let mut payload = vec![0; message.len()];
    let length = state.read_message(message, &mut payload).map_err(|_| Refusal::Secret)?;
    payload.get(..length).and_then(|payload| payload.try_into().ok()).ok_or(Refusal::Malformed)
}

/// The keys of the dialler and of the acceptor.
fn split(state: &mut HandshakeState) -> ([u8; KEY_BYTES], [u8; KEY_BYTES]) {
    state.dangerously_get_raw_split()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> Place {
        Place::Tcp(([127, 0, 0, 1], 7).into())
    }

    fn parties(me: u16) -> Parties {
        let protection = Protection::Sealed;
        Parties { me: DaemonIndex(me), start: u64::from(me) + 7, daemon_count: 4, protection }
    }

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32])
    }

    fn dialling() -> (Dialling, Vec<u8>) {
        Dialling::new(&secret(9), parties(2), (DaemonIndex(1), place()), 3).expect("random")
    }

    fn accepting() -> Accepting {
        Accepting::new(&secret(9), parties(1), place()).expect("random")
    }

    #[test]
    fn two_daemons_of_one_instance_authenticate_and_agree_on_keys() {
        let ((dialler, hello), mut acceptor) = (dialling(), accepting());
        assert_eq!(hello.len(), HELLO_BYTES);
        let answer = acceptor.hello(&hello).expect("hello");
        assert_eq!(answer.len(), ANSWER_BYTES);
        let (of_dialler, proof) = dialler.hello(&answer).expect("hello");
        assert_eq!(proof.len(), PROOF_BYTES);
        let of_acceptor = acceptor.proof(&proof).expect("proof");
        let peer = PeerIdentity { daemon: DaemonIndex(1), start: 8, stream: 0 };
        assert_eq!(of_dialler.peer, peer);
        let peer = PeerIdentity { daemon: DaemonIndex(2), start: 9, stream: 3 };
        assert_eq!(of_acceptor.peer, peer);
        let (mut one, mut other) =
            (of_dialler.keys.expect("sealed"), of_acceptor.keys.expect("sealed"));
        for (sealer, opener) in
            [(&mut one.sealer, &mut other.opener), (&mut other.sealer, &mut one.opener)]
        {
            let mut bytes = Vec::new();
            sealer.seal(b"word", &mut bytes).expect("sealed");
            let (range, _) = opener.open(&mut bytes).expect("genuine").expect("complete");
            assert_eq!(&bytes[range], b"word");
        }
    }

    /// Records are transport messages of Noise: the library opens ours, and the other way round.
    #[test]
    fn records_are_transport_messages_of_noise() {
        let header = header_of(Protection::Sealed);
        let secret = secret(9);
        let mut one = builder(&secret, &header).expect("built").build_initiator().expect("built");
        let mut other = builder(&secret, &header).expect("built").build_responder().expect("built");
        let first = write(&mut one, &[1; 4]).expect("written");
        assert_eq!(read(&mut other, &first), Ok([1; 4]));
        let second = write(&mut other, &[2; 4]).expect("written");
        assert_eq!(read(&mut one, &second), Ok([2; 4]));
        let (own, theirs) = split(&mut one);
        let mut keys = Keys::new(&own, &theirs).expect("keys");
        let mut library = other.into_transport_mode().expect("complete");
        for word in [&b"one"[..], b"two"] {
            let mut record = Vec::new();
            keys.sealer.seal(word, &mut record).expect("sealed");
            let mut plain = [0; 64];
            let length = library.read_message(&record[2..], &mut plain).expect("opened");
            assert_eq!(&plain[..length], word);
            let mut message = vec![0; word.len() + 16];
            library.write_message(word, &mut message).expect("sealed");
            assert_eq!(keys.opener.open_in_place(&mut message).expect("opened"), word);
        }
    }

    #[test]
    fn a_wrong_secret_is_detected_by_the_acceptor() {
        let mut acceptor = Accepting::new(&secret(8), parties(1), place()).expect("random");
        assert_eq!(acceptor.hello(&dialling().1), Err(Refusal::Secret));
    }

    /// Somebody without the secret plays the acceptor: its own hello, or the dialler's.
    #[test]
    fn a_wrong_secret_is_detected_by_the_dialler() {
        let mut stranger = Accepting::new(&secret(8), parties(1), place()).expect("random");
        let of_stranger =
            Dialling::new(&secret(8), parties(2), (DaemonIndex(1), place()), 3).expect("random").1;
        let answer = stranger.hello(&of_stranger).expect("of the same secret");
        assert_eq!(dialling().0.hello(&answer).err(), Some(Refusal::Secret));
        let (dialler, hello) = dialling();
        assert_eq!(dialler.hello(&hello[..ANSWER_BYTES]).err(), Some(Refusal::Secret));
    }

    /// A recorded handshake that is sent again: the hello is genuine, but the proof is of other keys.
    #[test]
    fn a_replayed_handshake_is_refused() {
        let ((dialler, hello), mut acceptor) = (dialling(), accepting());
        let answer = acceptor.hello(&hello).expect("hello");
        let (_, proof) = dialler.hello(&answer).expect("hello");
        let mut later = accepting();
        assert!(later.hello(&hello).is_ok());
        assert_eq!(later.proof(&proof).err(), Some(Refusal::Secret));
    }

    /// A relay takes a connection at one address and passes it on to another one.
    #[test]
    fn a_relayed_connection_is_refused() {
        for other in
            [Place::Tcp(([127, 0, 0, 1], 8).into()), Place::Tcp(([127, 0, 0, 2], 7).into())]
        {
            let mut acceptor = Accepting::new(&secret(9), parties(1), other).expect("random");
            assert_eq!(acceptor.hello(&dialling().1), Err(Refusal::Place));
        }
        let mapped = "[::ffff:127.0.0.1]:7".parse().expect("an address");
        let mut acceptor =
            Accepting::new(&secret(9), parties(1), Place::Tcp(mapped)).expect("random");
        assert!(acceptor.hello(&dialling().1).is_ok(), "the same address");
    }

    #[test]
    fn another_version_is_reported_before_other_errors() {
        let mut hello = dialling().1;
        hello[8] = 77;
        let refused = Err(Refusal::Version { theirs: 77 });
        assert_eq!(accepting().hello(&hello[..20]), refused);
    }

    #[test]
    fn another_protection_is_refused() {
        let plain = Parties { protection: Protection::Plain, ..parties(2) };
        let (_, hello) =
            Dialling::new(&secret(9), plain, (DaemonIndex(1), place()), 3).expect("random");
        assert_eq!(accepting().hello(&hello), Err(Refusal::Protection));
    }

    #[test]
    fn an_unexpected_daemon_is_refused() {
        let hello_of = |me, expected| {
            let to = (DaemonIndex(expected), place());
            Dialling::new(&secret(9), parties(me), to, 0).expect("random")
        };
        assert_eq!(accepting().hello(&hello_of(2, 3).1), Err(Refusal::Daemon { theirs: 3 }));
        assert_eq!(accepting().hello(&hello_of(5, 1).1), Err(Refusal::Daemon { theirs: 5 }));
        assert_eq!(accepting().hello(&hello_of(1, 1).1), Err(Refusal::Daemon { theirs: 1 }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..150)) {
            let mut acceptor = accepting();
            prop_assert!(acceptor.proof(&bytes).is_err());
            prop_assert!(acceptor.hello(&bytes).is_err());
            prop_assert!(dialling().0.hello(&bytes).is_err());
        }

        /// Messages that were modified in transit never authenticate.
        #[test]
        fn modified_messages_are_refused(
            which in 0u8..3, at: prop::sample::Index, bit in 0u32..8, cut in 0usize..3,
        ) {
            let change = |message: &mut Vec<u8>, is_meant: bool| {
                if is_meant {
                    let byte = at.index(message.len());
                    message[byte] ^= 1 << bit;
                    message.truncate(message.len() - cut);
                }
            };
            let ((dialler, mut hello), mut acceptor) = (dialling(), accepting());
            change(&mut hello, which == 0);
            let outcome = acceptor.hello(&hello).and_then(|mut answer| {
                change(&mut answer, which == 1);
                let (_, mut proof) = dialler.hello(&answer)?;
                change(&mut proof, which == 2);
                acceptor.proof(&proof).map(|_| ())
            });
            prop_assert!(outcome.is_err());
        }
    }
}
