//! Answering one request, however it arrived, and the form of replies.

use fuse::abi::OUT_HEADER_BYTES;
use fuse::{Header, Operation};
use wire::codec::{Malformed, Writer};
use wire::errno::Errno;

use crate::kernel_cache::pages::DeferredReply;
use crate::kernel_cache::watches::ReplyTracker;
use crate::ops;
use crate::ops::request::{Request, Scratch};
use crate::ops::{locks, sync};
use crate::server::Server;
use crate::server::node_ids::inode_of;
use crate::server::waits::{CatchUpWait, StartedWait, WaitKind};
use crate::users::activity::CallerActivity;

/// Answer to a request.
pub(crate) enum Answer {
    /// The request has no reply.
    None,
    /// The length of the body in bytes, or an errno.
    Ready(Result<usize, Errno>),
    /// The reply, with a body of this many bytes, follows a wait.
    Pending(Box<StartedWait>, usize),
}

/// Answers one request, however it arrived, and writes the body of the reply.
pub(crate) fn answer(
    server: &Server,
    header: Header,
    operation: Result<Operation<'_>, Malformed>,
    body: &mut [u8],
    (scratch, tracker): (&mut Scratch, &ReplyTracker<'_>),
) -> Answer {
    let Ok(operation) = operation else { return Answer::Ready(Err(Errno::EIO)) };
    let by = (header.pid, inode_of(header.node));
    let call = server.callers.begin(server.client, by, &operation);
    let answer = perform(server, header, operation, body, (scratch, tracker));
    match answer {
        Answer::Ready(outcome) => CallerActivity::end(server.client, call, outcome),
        Answer::Pending(_, length) => CallerActivity::end(server.client, call, Ok(length)),
        Answer::None => {}
    }
    answer
}

fn perform(
    server: &Server,
    header: Header,
    operation: Operation<'_>,
    body: &mut [u8],
    (scratch, tracker): (&mut Scratch, &ReplyTracker<'_>),
) -> Answer {
    let request = Request { server, header, tracker };
    match operation {
        // A serving thread does not wait: it may be the one that has to serve the unlock.
        Operation::SetLock { lock, waits: true } => match locks::take_or_wait(&request, &lock) {
            Ok(Some(started)) => Answer::Pending(Box::new(started), 0),
            Ok(None) if server.client.is_behind() => catch_up(server, 0),
            outcome => Answer::Ready(outcome.map(|_| 0)),
        },
        // Does not wait either.
        Operation::Flush { handle, .. } | Operation::Sync { handle, .. }
            if sync::waits_for_writeback(&request, &operation, handle) =>
        {
            match sync::sync_and_write_back(&request, &operation, handle) {
                Ok(started) => Answer::Pending(Box::new(started), 0),
                Err(errno) => Answer::Ready(Err(errno)),
            }
        }
        Operation::Forget { .. } => {
            server.lookup_cache.forget_node(&server.handles, inode_of(header.node));
            server.write_through.forget(inode_of(header.node));
            Answer::None
        }
        Operation::BatchForget(nodes) => {
            nodes.for_each(|(node, _)| {
                server.lookup_cache.forget_node(&server.handles, inode_of(node));
                server.write_through.forget(inode_of(node));
            });
            Answer::None
        }
        Operation::Retrieved => Answer::None,
        Operation::Interrupt { unique } => {
            if server.locks.interrupt(unique) {
                server.client.wake_for_waits();
            }
            Answer::None
        }
        _ => {
            let said = written(body, |to| ops::execute(&request, &operation, scratch, to));
            if let Err(errno) = said {
                let Header { opcode, node, .. } = header;
                tracing::debug!(opcode, node, errno = errno.name(), "refused");
            }
            if let (Some(number), Ok(length)) = (tracker.take_awaited_drop(), said) {
                let reply = DeferredReply::new(&server.watches.page_drops, number);
                return Answer::Pending(Box::new(StartedWait(WaitKind::PageDrop(reply))), length);
            }
            if let (true, Ok(length)) = (tells_state(&operation) && server.client.is_behind(), said)
            {
                // Looked up now, and sent later.
                fuse::reply::expire(header.opcode, body.get_mut(..length).unwrap_or_default());
                tracker.end_reply();
                return catch_up(server, length);
            }
            if !tracker.begin_reply() {
                let body = body.get_mut(..said.unwrap_or(0)).unwrap_or_default();
                fuse::reply::expire(header.opcode, body);
            }
            Answer::Ready(said)
        }
    }
}

/// The reply of a mount that is behind.
fn catch_up(server: &Server, length: usize) -> Answer {
    let wait = CatchUpWait::new(server.client);
    Answer::Pending(Box::new(StartedWait(WaitKind::CatchUp(wait))), length)
}

/// True if a program learns the current state by the reply, while the kernel may have pages from before.
/// The kernel holds no page locked for such a request, and nothing else that dropping pages waits for.
const fn tells_state(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Lookup { .. }
            | Operation::GetAttributes { .. }
            | Operation::Open { .. }
            | Operation::Create { .. }
            | Operation::ReadDirectory { .. }
            | Operation::GetXattr { .. }
            | Operation::GetLock(_)
            | Operation::SetLock { .. }
            | Operation::Seek { .. }
    )
}

/// Length of the body that `answer` wrote, or its errno.
fn written(
    body: &mut [u8],
    answer: impl FnOnce(&mut Writer<'_>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let mut to = Writer::new(body);
    answer(&mut to)?;
    to.finish().map_err(|_| Errno::EIO)
}

/// Writes a reply with a body or an errno; returns its length.
pub(crate) fn reply_with(
    reply: &mut [u8],
    unique: u64,
    answer: impl FnOnce(&mut Writer<'_>) -> Result<(), Errno>,
) -> usize {
    let said = written(reply.get_mut(OUT_HEADER_BYTES..).unwrap_or_default(), answer);
    head(reply, unique, said)
}

/// Writes a reply that is an errno; returns its length.
pub(crate) fn refusal(reply: &mut [u8], unique: u64, errno: Errno) -> usize {
    head(reply, unique, Err(errno))
}

/// Writes the header before a body that is already written; returns the total length.
pub(crate) fn head(reply: &mut [u8], unique: u64, said: Result<usize, Errno>) -> usize {
    let (body, errno) = said.map_or_else(|errno| (0, i32::from(errno.0)), |body| (body, 0));
    let length = OUT_HEADER_BYTES + body;
    let mut to = Writer::new(reply);
    to.u32(length as u32);
    to.u32(errno.wrapping_neg().cast_unsigned());
    to.u64(unique);
    length
}
