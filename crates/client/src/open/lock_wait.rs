//! A lock request that waits: it is sent, withdrawn on a signal, and confirmed if it was withdrawn.
//!
//! waiting -> over
//! waiting --interrupted--> withdrawing -> confirming -> over

use shm::activity::WaitCause;
use shm::wait::now_nanos;
use wire::Request;
use wire::errno::{Errno, Result};
use wire::request::lock;

use crate::open::lock_request::LockRequest;
use crate::transport::Transport;
use crate::transport::long_wait::LongRequest;
use crate::transport::request::{Destination, Identity};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LockWaitState {
    Waiting,
    Withdrawing(Identity),
    /// The lock may have been granted before it was withdrawn, unseen by this process. Requesting
    /// it again without waiting makes both sides agree: a lock already held is granted again.
    Confirming,
}

/// A pending lock request. If it is dropped before it is over, the lock may still be granted.
pub struct LockWait<'a> {
    transport: &'a Transport,
    lock_request: LockRequest,
    state: LockWaitState,
    pending: LongRequest<'a>,
}

impl<'a> LockWait<'a> {
    pub(crate) fn new(transport: &'a Transport, lock_request: LockRequest) -> LockWait<'a> {
        LockWait {
            transport,
            lock_request,
            state: LockWaitState::Waiting,
            pending: LongRequest::new(transport),
        }
    }

    /// The result if the wait is over; otherwise sends what is due and returns `None`.
    pub fn poll(&mut self) -> Option<Result<()>> {
        loop {
            let lock_request = self.lock_request;
            let request = match self.state {
                LockWaitState::Waiting => lock_request.request(lock::WAIT),
                LockWaitState::Withdrawing(Identity { client_id, sequence }) => {
                    Request::CancelLock { inode: lock_request.inode, client_id, sequence }
                }
                LockWaitState::Confirming => lock_request.request(0),
            };
            let is_bounded = self.state != LockWaitState::Waiting;
            let to = Destination::Shard(lock_request.inode.shard());
            let outcome = self.pending.poll(self.transport, (to, &request), is_bounded)?;
            match (self.state, outcome) {
                (LockWaitState::Waiting, Err(Errno::EINTR)) => self.interrupt(),
                (LockWaitState::Withdrawing(_), Ok(_)) => self.go_on(LockWaitState::Confirming),
                (LockWaitState::Confirming, Err(Errno::EAGAIN)) => return Some(Err(Errno::EINTR)),
                (_, outcome) => return Some(outcome.map(drop)),
            }
        }
    }

    /// Withdraws the request: the wait ends soon, with the lock or with `EINTR`.
    pub fn interrupt(&mut self) {
        if self.state == LockWaitState::Waiting {
            let sent = self.pending.identity;
            self.go_on(sent.map_or(LockWaitState::Confirming, LockWaitState::Withdrawing));
        }
    }

    fn go_on(&mut self, state: LockWaitState) {
        self.state = state;
        self.pending = LongRequest::new(self.transport);
    }

    /// Waits until it is over; a signal handler withdraws the request.
    pub(crate) fn wait(mut self) -> Result<()> {
        let mut since = None;
        loop {
            if let Some(outcome) = self.poll() {
                if let Some(since) = since {
                    let waited = now_nanos().saturating_sub(since);
                    self.transport.activity.count_wait(WaitCause::Lock, waited);
                }
                return outcome;
            }
            since.get_or_insert_with(now_nanos);
            let is_interruptible = self.state == LockWaitState::Waiting;
            if self.pending.sleep(self.transport, is_interruptible) {
                self.interrupt();
            }
        }
    }
}
