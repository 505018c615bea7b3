//! A change that is carried out although its sender is told `Busy`, as when the connection to
//! another host breaks before the reply.

use std::collections::BTreeSet;
use wire::codec::Writer;
use wire::{Header, Reply, Request};

const RETRY_MICROS: u32 = 50_000;

/// A change that was carried out, and its reply.
struct Change {
    client_id: u64,
    sequence: u64,
    reply: Vec<u8>,
    is_told: bool,
}

/// The change of a test that is put off, and the requests that came meanwhile.
#[derive(Default)]
pub(crate) struct PutOff {
    /// The next `Create` is put off.
    pub(crate) is_armed: bool,
    /// Each `Create` is refused as `Busy` until there is another request.
    pub(crate) are_all_busy: bool,
    /// Client ids of those.
    pub(crate) busy: BTreeSet<u64>,
    change: Option<Change>,
    /// Client ids of the requests since then, until the sender is told the reply.
    others: Vec<u64>,
    /// The sender is not told the reply before this.
    has_other_change: bool,
}

impl PutOff {
    /// True from the change on.
    pub(crate) fn has_begun(&self) -> bool {
        self.change.is_some()
    }

    /// True if the sender was told the reply to its first attempt.
    pub(crate) fn is_told(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.is_told)
    }

    /// True if another request had the client id of the change before its sender was told.
    pub(crate) fn is_identity_taken(&self) -> bool {
        self.change.as_ref().is_some_and(|change| self.others.contains(&change.client_id))
    }

    /// The reply to a request that is not carried out: the repetition of the change, unless another
    /// request had its client id, as in the reply cache of a shard.
    pub(crate) fn reply(&mut self, header: &Header, request: &Request<'_>) -> Option<Vec<u8>> {
        let is_create = matches!(request, Request::Create { .. });
        self.are_all_busy &= is_create;
        if self.are_all_busy {
            self.busy.insert(header.client_id);
            return Some(busy());
        }
        let is_taken = self.is_identity_taken();
        let change = self.change.as_mut().filter(|change| !change.is_told)?;
        if (header.client_id, header.sequence) != (change.client_id, change.sequence) {
            self.others.push(header.client_id);
            self.has_other_change |= is_create;
            return None;
        }
        if !self.has_other_change {
            return Some(busy());
        }
        change.is_told = !is_taken;
        change.is_told.then(|| change.reply.clone())
    }

    /// The reply that the sender of a request gets, of which `reply` is the result.
    pub(crate) fn told(&mut self, header: &Header, request: &Request<'_>, reply: &[u8]) -> Vec<u8> {
        if !matches!(request, Request::Create { .. }) || !std::mem::take(&mut self.is_armed) {
            return reply.to_vec();
        }
        let (client_id, sequence) = (header.client_id, header.sequence);
        self.change = Some(Change { client_id, sequence, reply: reply.to_vec(), is_told: false });
        busy()
    }
}

fn busy() -> Vec<u8> {
    let mut bytes = [0; 64];
    let mut writer = Writer::new(&mut bytes);
    Reply::Busy { retry_micros: RETRY_MICROS }.encode(&mut writer);
    let length = writer.finish().expect("it fits");
    bytes[..length].to_vec()
}
