//! Output of a step: effects, the log record under construction, and reusable buffers.

use wire::{Reply, ShardIndex, Writer};

use crate::core::effect::{Effect, IndexOp};
use crate::core::job::UNANSWERED;
use crate::core::peer_messages::Message;
use crate::core::record::{Record, VERSION};

/// Size of a buffer for replies without a byte string.
const REPLY_BYTES: usize = 160;
/// Most buffers in the pool, and the largest buffer that it accepts.
const POOL_COUNT_MAX: usize = 256;
const POOL_BYTES_MAX: usize = 4096;

/// Output of the running step.
#[derive(Default)]
pub(crate) struct Output {
    out: Vec<Effect>,
    start: usize,
    log: Vec<u8>,
    pool: Vec<Vec<u8>>,
}

impl Output {
    /// Starts a step whose effects are appended to `out`.
    pub(crate) fn begin(&mut self, out: &mut Vec<Effect>) {
        core::mem::swap(&mut self.out, out);
        self.start = self.out.len();
        // Placeholder for the log record: it is the first effect of a step that has one.
        self.out.push(Effect::Log(Vec::new()));
    }

    /// Ends it.
    pub(crate) fn end(&mut self, out: &mut Vec<Effect>) {
        if self.log.is_empty() {
            self.out.remove(self.start);
        } else if let Some(place) = self.out.get_mut(self.start) {
            let next = self.pool.pop().unwrap_or_default();
            *place = Effect::Log(core::mem::replace(&mut self.log, next));
        }
        core::mem::swap(&mut self.out, out);
    }

    /// Adds a change to the record of this step.
    pub(crate) fn log(&mut self, record: &Record<'_>) {
        if self.log.is_empty() {
            self.log.push(VERSION);
        }
        record.encode(&mut self.log);
    }

    /// Adds an effect.
    pub(crate) fn push(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    /// Adds a change of the index.
    pub(crate) fn index(&mut self, op: IndexOp) {
        self.out.push(Effect::Index(op));
    }

    /// Answers a request.
    pub(crate) fn reply(&mut self, ticket: u64, reply: &Reply<'_>) {
        if ticket == UNANSWERED {
            return;
        }
        let mut bytes = self.pool.pop().unwrap_or_default();
        let strings = match reply {
            Reply::Bytes { bytes } | Reply::Contents { bytes, .. } => bytes.len(),
            Reply::Entries { entries, .. } => entries.len(),
            Reply::Extents { extents } => extents.len(),
            Reply::Walked { chain, .. } => chain.len(),
            _ => 0,
        };
        bytes.resize(REPLY_BYTES + strings, 0);
        let mut writer = Writer::new(&mut bytes);
        reply.encode(&mut writer);
        let length = writer.len();
        debug_assert!(writer.finish().is_ok(), "a reply is longer than its bound");
        bytes.truncate(length);
        self.out.push(Effect::Reply { ticket, bytes });
    }

    /// Sends a message to the service of a shard.
    pub(crate) fn send(&mut self, to: ShardIndex, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.out.push(Effect::Peer { to, bytes });
    }

    /// An empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.pool.len() < POOL_COUNT_MAX && bytes.capacity() <= POOL_BYTES_MAX {
            bytes.clear();
            self.pool.push(bytes);
        }
    }
}
