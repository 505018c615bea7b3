//! Bytes of files with copies, as a daemon shows them: by messages alone, and busy at first.

use std::collections::BTreeMap;
use wire::codec::Writer;
use wire::{Header, Reply, Request};

/// The bytes of one file, and the attempts to write them.
#[derive(Default)]
pub(crate) struct CopiedBytes {
    /// How often each write is answered `Busy` before it is made.
    pub(crate) busy_times: usize,
    /// Client id and sequence number of each attempt, with the offset that it was for.
    pub(crate) attempts: BTreeMap<(u64, u64), Vec<u64>>,
    /// Requests for extents.
    pub(crate) mapped: usize,
    pub(crate) bytes: Vec<u8>,
}

impl CopiedBytes {
    /// The reply to a request for bytes.
    pub(crate) fn reply(&mut self, header: &Header, request: &Request<'_>) -> Option<Vec<u8>> {
        match *request {
            Request::MapExtents { .. } => {
                self.mapped += 1;
                Some(encoded(&Reply::Extents { extents: &[] }))
            }
            Request::Write { offset, bytes, .. } => {
                let identity = (header.client_id, header.sequence);
                let attempts = self.attempts.entry(identity).or_default();
                attempts.push(offset);
                if attempts.len() <= self.busy_times {
                    return Some(encoded(&Reply::Busy { retry_micros: 100 }));
                }
                let (start, end) = (offset as usize, offset as usize + bytes.len());
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[start..end].copy_from_slice(bytes);
                Some(encoded(&Reply::Number { value: bytes.len() as u64 }))
            }
            Request::Read { offset, length, .. } => {
                let at = |at: u64| self.bytes.get(at as usize).copied().unwrap_or(0);
                let bytes: Vec<u8> = (offset..offset + u64::from(length)).map(at).collect();
                Some(encoded(&Reply::Bytes { bytes: &bytes }))
            }
            _ => None,
        }
    }
}

fn encoded(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 16 * 1024];
    let mut writer = Writer::new(&mut bytes);
    reply.encode(&mut writer);
    let length = writer.finish().expect("it fits");
    bytes.truncate(length);
    bytes
}
