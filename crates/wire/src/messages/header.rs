//! The header of every request, in a ring slot and in a frame between daemons.

use crate::codec::{Malformed, Reader, Writer};
use crate::credentials::Credentials;
use crate::job::JobWord;

/// The header of every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The shard that the request is for, or `Header::TARGET` for one to the daemon's target.
    pub shard: u16,
    /// The daemon that owns the shard or target in the sender's map.
    pub daemon: u16,
    /// Epoch of the sender's instance map.
    pub epoch: u64,
    /// The sender, unique in the instance's life: a session's slot. With `sequence` it identifies a
    /// repeated request after a daemon restarted.
    pub client_id: u64,
    /// Counts the requests of a client id.
    pub sequence: u64,
    /// Index of the host that sent it, for open files of other hosts.
    pub host: u16,
    /// The mount of that host through which it came (`watch`), or 0: the mount's kernel caches the
    /// result.
    pub mount: u8,
    /// The job for which memory of a target is taken. The daemon of the sender's host sets it.
    pub job: JobWord,
    /// The caller's credentials.
    pub caller: Credentials,
}

impl Header {
    /// Value of `shard` in a request to a data target.
    pub const TARGET: u16 = u16::MAX;

    /// Writes the encoded form.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u16(self.shard);
        to.u16(self.daemon);
        to.u64(self.epoch);
        to.u64(self.client_id);
        to.u64(self.sequence);
        to.u16(self.host);
        to.u8(self.mount);
        self.job.encode(to);
        self.caller.encode(to);
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not a header.
    pub fn decode(from: &mut Reader<'_>) -> Result<Header, Malformed> {
        Ok(Header {
            shard: from.u16()?,
            daemon: from.u16()?,
            epoch: from.u64()?,
            client_id: from.u64()?,
            sequence: from.u64()?,
            host: from.u16()?,
            mount: from.u8()?,
            job: JobWord::decode(from)?,
            caller: Credentials::decode(from)?,
        })
    }
}
