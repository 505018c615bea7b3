//! How connections between daemons are protected: the Noise handshake and the records after it.
//!
//! | module | |
//! |---|---|
//! | `secret` | shared by the daemons of an instance and never sent |
//! | `noise` | the primitives of Noise, by ring |
//! | `handshake` | both sides prove the secret and agree on keys; a pure state machine |
//! | `records` | sealed bytes on a connection; pure |
//!
//! Not here: sockets (`socket`), and where records are sealed and opened (`link`, `connection`,
//! `channel`).

pub mod secret;

mod noise;

pub mod handshake;

pub mod records;

/// Protection of what a connection carries after its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Protection {
    /// The bytes as they are: for networks that only trusted users reach, and within a host.
    Plain = 0,
    /// Records: authenticated, in order, and encrypted.
    Sealed = 1,
}
