//! Who is at the other end: both sides prove the instance's secret over both nonces.
//!
//! Both send a hello at once, answer the other's hello by a proof, and are done when the other's
//! proof holds. No I/O here.
//!
//! Hello (56 bytes): magic (8), protocol version u32, role u8, stream u8, daemon u16, start u64,
//! nonce (32). Proof (32): HMAC-SHA256 over a label, the sender's role, the dialler's hello and the
//! acceptor's: nonces, versions, roles and indexes are all in it, so neither a replayed nor a
//! reflected proof holds. Refusal: one byte, `Refusal::code`.

use crate::secret::{PROOF_BYTES, Secret};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader, Writer};
use wire::limits::PROTOCOL_VERSION;

/// First bytes of a hello.
const MAGIC: [u8; 8] = *b"FOREBAYN";
/// Length of a hello.
pub const HELLO_BYTES: usize = 56;
const NONCE_BYTES: usize = 32;
const LABEL: &[u8] = b"forebay daemon handshake";

/// Which end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// It dialled.
    Dialler = 1,
    /// It accepted.
    Acceptor = 2,
}

/// Why a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The bytes are no handshake of ours.
    Malformed,
    /// The other side speaks another version.
    Version {
        /// What it speaks.
        theirs: u32,
    },
    /// The other side does not have our secret.
    Secret,
    /// The other side is not the daemon that belongs there.
    Daemon {
        /// Who it says it is.
        theirs: u16,
    },
    /// The other side said why it ends the connection, as a code of ours.
    Told(u8),
}

impl Refusal {
    /// The number that goes over the connection.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Refusal::Malformed => 1,
            Refusal::Version { .. } => 2,
            Refusal::Secret => 3,
            Refusal::Daemon { .. } => 4,
            Refusal::Told(code) => code,
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
            Refusal::Told(2) => f.write_str("refused by the peer: other protocol version"),
            Refusal::Told(3) => f.write_str("refused by the peer: wrong secret"),
            Refusal::Told(4) => f.write_str("refused by the peer: unexpected daemon"),
            Refusal::Told(_) => f.write_str("refused by the peer"),
        }
    }
}

impl core::error::Error for Refusal {}

/// Who is who in a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Parties {
    /// This daemon.
    pub me: DaemonIndex,
    /// Our end.
    pub role: Role,
    /// Number of this daemon's start: another one means that it was down meanwhile.
    pub start: u64,
    /// Who must be at the other end; `None`: any other daemon of the instance.
    pub expected: Option<DaemonIndex>,
    /// Daemons of the instance.
    pub daemon_count: u16,
    /// What the connection is for, as the dialler says; an acceptor says 0. 0: messages; else one
    /// of the bulk streams, by its number.
    pub stream: u8,
}

/// Who the other side has proven to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proven {
    /// Its index.
    pub daemon: DaemonIndex,
    /// Number of its start.
    pub start: u64,
    /// Its `Parties::stream`.
    pub stream: u8,
}

/// One handshake from our side.
#[derive(Debug)]
pub struct Handshake {
    secret: Secret,
    parties: Parties,
    own: [u8; HELLO_BYTES],
    other: Option<([u8; HELLO_BYTES], Proven)>,
}

impl Handshake {
    /// Starts; `nonce` must never have been used before. Send `own_hello` first.
    #[must_use]
    pub fn new(secret: Secret, parties: Parties, nonce: [u8; NONCE_BYTES]) -> Handshake {
        let mut own = [0; HELLO_BYTES];
        let mut writer = Writer::new(&mut own);
        writer.raw(&MAGIC);
        writer.u32(PROTOCOL_VERSION);
        writer.u8(parties.role as u8);
        writer.u8(parties.stream);
        writer.u16(parties.me.0);
        writer.u64(parties.start);
        writer.raw(&nonce);
        Handshake { secret, parties, own, other: None }
    }

    /// Our hello.
    #[must_use]
    pub const fn own_hello(&self) -> &[u8; HELLO_BYTES] {
        &self.own
    }

    /// Takes the other side's hello; returns our proof, to be sent.
    ///
    /// # Errors
    /// The refusal to send before the connection is closed.
    pub fn hello(&mut self, payload: &[u8]) -> Result<[u8; PROOF_BYTES], Refusal> {
        if self.other.is_some() {
            return Err(Refusal::Malformed);
        }
        let (bytes, proven) = self.parse(payload)?;
        self.other = Some((bytes, proven));
        Ok(self.secret.prove(&self.parts(self.parties.role, &bytes)))
    }

    /// Takes the other side's proof.
    ///
    /// # Errors
    /// The refusal to send before the connection is closed.
    pub fn proof(&mut self, payload: &[u8]) -> Result<Proven, Refusal> {
        let (bytes, proven) = self.other.ok_or(Refusal::Malformed)?;
        let holds = self.secret.verify(&self.parts(self.other_role(), &bytes), payload);
        if holds { Ok(proven) } else { Err(Refusal::Secret) }
    }

    const fn other_role(&self) -> Role {
        match self.parties.role {
            Role::Dialler => Role::Acceptor,
            Role::Acceptor => Role::Dialler,
        }
    }

    fn parse(&self, payload: &[u8]) -> Result<([u8; HELLO_BYTES], Proven), Refusal> {
        let malformed = |_: Malformed| Refusal::Malformed;
        let mut reader = Reader::new(payload);
        if reader.raw(MAGIC.len()).map_err(malformed)? != MAGIC {
            return Err(Refusal::Malformed);
        }
        // Before all else that a version may change.
        let theirs = reader.u32().map_err(malformed)?;
        if theirs != PROTOCOL_VERSION {
            return Err(Refusal::Version { theirs });
        }
        let bytes = payload.try_into().map_err(|_| Refusal::Malformed)?;
        if reader.u8().map_err(malformed)? != self.other_role() as u8 {
            return Err(Refusal::Malformed);
        }
        let stream = reader.u8().map_err(malformed)?;
        if stream != 0 && self.other_role() == Role::Acceptor {
            return Err(Refusal::Malformed);
        }
        let theirs = reader.u16().map_err(malformed)?;
        let daemon = DaemonIndex(theirs);
        let is_expected = self.parties.expected.is_none_or(|expected| expected == daemon);
        if !is_expected || theirs >= self.parties.daemon_count || daemon == self.parties.me {
            return Err(Refusal::Daemon { theirs });
        }
        let start = reader.u64().map_err(malformed)?;
        Ok((bytes, Proven { daemon, start, stream }))
    }

    fn parts<'a>(&'a self, prover: Role, other: &'a [u8; HELLO_BYTES]) -> [&'a [u8]; 4] {
        let role: &[u8] = match prover {
            Role::Dialler => b"dialler",
            Role::Acceptor => b"acceptor",
        };
        match self.parties.role {
            Role::Dialler => [LABEL, role, &self.own, other],
            Role::Acceptor => [LABEL, role, other, &self.own],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn side(role: Role, me: u16, secret: u8) -> Handshake {
        let me = DaemonIndex(me);
        let stream = if role == Role::Dialler { 3 } else { 0 };
        let parties = Parties { me, role, start: 7, expected: None, daemon_count: 4, stream };
        Handshake::new(Secret::new([secret; 32]), parties, [me.0 as u8; 32])
    }

    #[test]
    fn two_of_one_instance_prove_themselves() {
        let mut dialler = side(Role::Dialler, 2, 9);
        let mut acceptor = side(Role::Acceptor, 1, 9);
        let hellos = (*dialler.own_hello(), *acceptor.own_hello());
        let from_acceptor = acceptor.hello(&hellos.0).expect("hello");
        let from_dialler = dialler.hello(&hellos.1).expect("hello");
        let proven = Proven { daemon: DaemonIndex(1), start: 7, stream: 0 };
        assert_eq!(dialler.proof(&from_acceptor), Ok(proven));
        let proven = Proven { daemon: DaemonIndex(2), start: 7, stream: 3 };
        assert_eq!(acceptor.proof(&from_dialler), Ok(proven));
    }

    #[test]
    fn a_wrong_secret_is_found_by_both() {
        let mut dialler = side(Role::Dialler, 2, 9);
        let mut acceptor = side(Role::Acceptor, 1, 8);
        let hellos = (*dialler.own_hello(), *acceptor.own_hello());
        let from_acceptor = acceptor.hello(&hellos.0).expect("hello");
        let from_dialler = dialler.hello(&hellos.1).expect("hello");
        assert_eq!(dialler.proof(&from_acceptor), Err(Refusal::Secret));
        assert_eq!(acceptor.proof(&from_dialler), Err(Refusal::Secret));
    }

    #[test]
    fn a_reflected_proof_does_not_hold() {
        // The attacker answers as the acceptor by sending back what the dialler said.
        let mut dialler = side(Role::Dialler, 2, 9);
        let mut hello = *side(Role::Acceptor, 1, 0).own_hello();
        let own = dialler.hello(&hello).expect("hello");
        assert_eq!(dialler.proof(&own), Err(Refusal::Secret));
        hello[12] = Role::Dialler as u8;
        assert_eq!(side(Role::Dialler, 2, 9).hello(&hello), Err(Refusal::Malformed));
    }

    #[test]
    fn another_version_says_so_whatever_follows() {
        let mut hello = *side(Role::Acceptor, 1, 9).own_hello();
        hello[8] = 77;
        let refused = Err(Refusal::Version { theirs: 77 });
        assert_eq!(side(Role::Dialler, 2, 9).hello(&hello[..20]), refused);
    }

    #[test]
    fn an_unexpected_daemon_is_refused() {
        let refused = Err(Refusal::Daemon { theirs: 5 });
        let hello = *side(Role::Acceptor, 5, 9).own_hello();
        assert_eq!(side(Role::Dialler, 2, 9).hello(&hello), refused);
        let hello = *side(Role::Acceptor, 2, 9).own_hello();
        let refused = Err(Refusal::Daemon { theirs: 2 });
        assert_eq!(side(Role::Dialler, 2, 9).hello(&hello), refused);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut side = side(Role::Dialler, 2, 9);
            prop_assert!(side.proof(&bytes).is_err());
            prop_assert!(side.hello(&bytes).is_err());
        }

        /// Words that were changed on their way never prove anything.
        #[test]
        fn changed_words_are_refused(at in 0..HELLO_BYTES + PROOF_BYTES, to: u8, cut in 0usize..3) {
            let (mut dialler, mut acceptor) = (side(Role::Dialler, 2, 9), side(Role::Acceptor, 1, 9));
            let own = acceptor.hello(dialler.own_hello());
            let (mut hello, proof) = (acceptor.own_hello().to_vec(), own.expect("hello"));
            let mut proof = proof.to_vec();
            let word = if at < HELLO_BYTES { &mut hello } else { &mut proof };
            let before = word.clone();
            let length = word.len();
            word[at % length] = to;
            word.truncate(length - cut);
            prop_assume!(*word != before);
            let refused = dialler.hello(&hello).is_err() || dialler.proof(&proof).is_err();
            prop_assert!(refused);
        }
    }
}
