//! Requests of clients of this host for bytes with copies, from when they are passed on until they are
//! answered: the bytes of writes, which all copies pull from here, and the way of the answer back.
//!
//! A bounce buffer is copied when its request comes: all copies then pull the same bytes, whatever
//! becomes of the client, and the client has its buffer back.
//!
//! Not here: which daemon is asked, and how (`ways`).

use crate::sessions::client_session::ClientSession;
use crate::shared::reply::{LOST_MICROS, ReplyTo, encode_reply};
use replicas::operation::RequestId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Reply;
use wire::codec::Reader;
use wire::errno::{Errno, Result};

/// Bytes of writes that have no answer yet.
#[derive(Default)]
pub(crate) struct ClientBytes {
    of: Mutex<BTreeMap<RequestId, Arc<[u8]>>>,
}

impl ClientBytes {
    fn all(&self) -> MutexGuard<'_, BTreeMap<RequestId, Arc<[u8]>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write is passed on.
    pub(super) fn hold(&self, id: RequestId, bytes: Vec<u8>) {
        self.all().insert(id, bytes.into());
    }

    /// It is answered.
    pub(super) fn let_go(&self, id: RequestId) {
        self.all().remove(&id);
    }

    /// Whether a write has no answer yet.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.all().contains_key(&id)
    }

    /// The bytes of a write; `None`: it is answered, or none of so many bytes.
    pub(super) fn of(&self, id: RequestId, length: u64) -> Option<Vec<u8>> {
        let bytes = self.all().get(&id).map(Arc::clone)?;
        (bytes.len() as u64 == length).then(|| bytes.to_vec())
    }
}

/// A bounce buffer that a client lent for a request. Dropped: the client has it back.
pub(super) struct LentBuffer {
    client: Arc<ClientSession>,
    buffer: u8,
    at: usize,
    length: usize,
}

impl LentBuffer {
    /// # Errors
    /// `EINVAL` if there is no such buffer.
    pub(super) fn new(client: &Arc<ClientSession>, buffer: u8, length: u64) -> Result<LentBuffer> {
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        let at = client.slots.bounce_buffers().offset_of(buffer, length)?;
        Ok(LentBuffer { client: Arc::clone(client), buffer, at, length })
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Never for a buffer that there is.
    pub(super) fn copy_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length];
        self.client.slots.bounce_buffers().segment().copy_out(self.at, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills it with as many bytes as it was lent for.
    fn fill(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.length {
            return Err(Errno::EIO);
        }
        self.client.slots.bounce_buffers().segment().copy_in(self.at, bytes)
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        self.client.slots.bounce_buffers().give_back(self.buffer);
    }
}

/// A request of this host that was passed on.
pub(crate) struct PassedAsk {
    pub(super) to: Box<ReplyTo>,
    /// A write: its bytes are held for it.
    pub(super) written: Option<RequestId>,
    /// Where bytes that were read go; `None`: into the reply.
    pub(super) into: Option<LentBuffer>,
}

impl PassedAsk {
    /// The answer has come. Returns it as the client gets it, and its destination. All that was held for
    /// the request is free then.
    pub(crate) fn take_reply(self, held: Option<&ClientBytes>, reply: &[u8]) -> (ReplyTo, Vec<u8>) {
        let PassedAsk { to, written, into } = self;
        if let (Some(held), Some(id)) = (held, written) {
            held.let_go(id);
        }
        let reply = match into {
            None => reply.to_vec(),
            Some(buffer) => read_into(&buffer, reply),
        };
        (*to, reply)
    }
}

/// Fills a buffer with the bytes in a reply. Returns the reply that tells how many there are, or the same
/// reply if there are none.
fn read_into(buffer: &LentBuffer, reply: &[u8]) -> Vec<u8> {
    let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(reply)) else {
        return reply.to_vec();
    };
    let reply = match buffer.fill(bytes) {
        Ok(()) => Reply::Number { value: bytes.len() as u64 },
        Err(errno) => Reply::Refused { errno },
    };
    encode_reply(&reply, 0)
}

/// A request that was divided: its answer is there when those of all parts are.
pub(crate) struct DividedAsk {
    state: Mutex<DividedState>,
}

struct DividedState {
    left: usize,
    is_failed: bool,
    to: Option<ReplyTo>,
}

impl DividedAsk {
    /// There are so many parts, at least one.
    pub(super) fn new(left: usize, to: ReplyTo) -> DividedAsk {
        let state = DividedState { left, is_failed: false, to: Some(to) };
        DividedAsk { state: Mutex::new(state) }
    }

    /// The answer to a part has come. With the last one: the destination of the answer, and the answer.
    /// Unless all parts are done it is to be repeated, as a whole.
    pub(crate) fn part_ended(&self, reply: &[u8]) -> Option<(ReplyTo, Reply<'static>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_done = matches!(Reply::decode(&mut Reader::new(reply)), Ok(Reply::Done {}));
        state.is_failed |= !is_done;
        state.left = state.left.saturating_sub(1);
        if state.left > 0 {
            return None;
        }
        let again = Reply::Busy { retry_micros: LOST_MICROS };
        let reply = if state.is_failed { again } else { Reply::Done {} };
        state.to.take().map(|to| (to, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::reply::encode_short;

    #[test]
    fn a_divided_request_is_done_when_all_its_parts_are() {
        let mut done = [0; 256];
        let done = encode_short(&Reply::Done {}, &mut done);
        let mut busy = [0; 256];
        let busy = encode_short(&Reply::Busy { retry_micros: 1 }, &mut busy);
        let reply = |parts: &[&[u8]]| {
            let ask = DividedAsk::new(parts.len(), ReplyTo::Nobody);
            let (last, first) = parts.split_last().expect("a part");
            assert!(first.iter().all(|part| ask.part_ended(part).is_none()));
            let ended = ask.part_ended(last).map(|(_, reply)| reply);
            assert!(ask.part_ended(last).is_none(), "a second answer");
            ended
        };
        assert_eq!(reply(&[done, done, done]), Some(Reply::Done {}));
        let (again, wrong) = (Some(Reply::Busy { retry_micros: LOST_MICROS }), &[9u8][..]);
        assert!([[busy, done], [done, busy], [wrong, done]].iter().all(|it| reply(it) == again));
    }

    #[test]
    fn bytes_are_held_until_the_answer() {
        let (held, id) = (ClientBytes::default(), RequestId { client: 7, sequence: 2 });
        assert_eq!((held.of(id, 3), held.has(id)), (None, false));
        held.hold(id, vec![1, 2, 3]);
        assert!(held.has(id));
        assert_eq!(held.of(id, 3), Some(vec![1, 2, 3]));
        assert_eq!(held.of(id, 2), None, "another operation");
        assert_eq!(held.of(RequestId { sequence: 3, ..id }, 3), None);
        // The next attempt of the same request holds what its client has now.
        held.hold(id, vec![4; 3]);
        assert_eq!(held.of(id, 3), Some(vec![4; 3]));
        held.let_go(id);
        assert_eq!((held.of(id, 3), held.has(id)), (None, false));
    }
}
