//! Local operations of clients (`shm::local_ops`): taken from the operation log in shared memory
//! and applied by the metadata service, before any step that could observe them.
//!
//! The gate is open only between steps. Opening it promises that the operations can be carried out,
//! so log space for all that could arrive is reserved first. A service that was taken over has none.

use crate::members::shipments::Shipments;
use crate::shard::Shard;
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use metadata::{Input, LoggedOp};
use shm::host::VnodeIndex;
use shm::local_ops::{LOCAL_OP_COUNT, LocalOpId, Tentative};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use store::For;
use wire::codec::Reader;
use wire::local_op::LOCAL_OP_BYTES_MAX;
use wire::{Inode, LocalOp, Request, ShardIndex};

/// Maximum bytes of log records of one local operation.
const RECORD_BYTES_MAX: u64 = 1024;
/// Local operations per step: their records fit the reservation of a step.
const STEP_LOCAL_OPS_MAX: usize = 192;
/// Inode numbers of a shard are replenished below this: more than all sessions can use at a time.
const NUMBERS_MIN: u64 = 4096;

const _: () =
    assert!(STEP_LOCAL_OPS_MAX as u64 * RECORD_BYTES_MAX <= crate::shard::log::STEP_BYTES_MAX);

/// A local operation read from the operation log.
struct TakenLocalOp {
    id: LocalOpId,
    bytes: [u8; LOCAL_OP_BYTES_MAX],
    length: usize,
}

impl TakenLocalOp {
    fn op(&self) -> Option<LocalOp<'_>> {
        let bytes = self.bytes.get(..self.length)?;
        LocalOp::decode(&mut Reader::new(bytes)).ok()
    }

    fn is_create(&self) -> bool {
        matches!(self.op(), Some(LocalOp::Create { .. }))
    }
}

/// State of local operations.
#[derive(Default)]
pub(crate) struct LocalOpState {
    /// Deleted files whose last open was ended by a local operation.
    reaps: Vec<Inode>,
    /// When the last local operation was applied.
    pub(crate) applied_at: Option<Instant>,
    /// Number of accounts close to their limits, which may not use local operations, as of the last
    /// opening of the gate.
    tight_count: usize,
    /// Another daemon owned the service since the operations that are there were completed.
    pub(crate) is_after_another: bool,
}

impl Shard {
    /// Applies local operations between two steps. True if there were any.
    pub(crate) fn take_local_ops(&mut self, shared: &Shared) -> bool {
        let has_any = !self.is_taken_over() && shared.host.op_log.has_any(self.worker);
        if !has_any || self.reserve_step(For::Freeing).is_err() {
            return false;
        }
        let came = self.settle_local_ops(shared, Tentative::Leave);
        if !self.local_ops.reaps.is_empty() || came && self.is_tighter(shared) {
            self.close_gate(shared);
            self.open_gate(shared);
        }
        self.send_replies(shared);
        came
    }

    /// Before the first step. Names that clients created or removed while this daemon owned the service
    /// before, and that it had not applied, are lost with everything that it had not shipped: another
    /// daemon went on without them. Closes are not: files are open here and nowhere else.
    pub(crate) fn forget_lost_local_ops(&mut self, shared: &Shared) {
        if !std::mem::take(&mut self.local_ops.is_after_another) {
            return;
        }
        let op_log = &shared.host.op_log;
        op_log.close_gate(self.worker);
        let all = self.read_op_log(shared, Tentative::Refuse);
        let lost = all.iter().filter(|it| !matches!(it.op(), Some(LocalOp::Close { .. })));
        let count = lost.map(|it| op_log.finish(it.id)).count();
        op_log.settle(self.worker);
        if count > 0 {
            tracing::warn!(worker = self.worker, count, "operations of clients are lost");
        }
    }

    /// Stops local operations and applies all completed ones.
    pub(crate) fn close_gate(&mut self, shared: &Shared) {
        if self.is_taken_over() {
            return;
        }
        shared.host.op_log.close_gate(self.worker);
        self.settle_local_ops(shared, Tentative::Refuse);
        for inode in std::mem::take(&mut self.local_ops.reaps) {
            let header = shared.net.own_header(inode.shard());
            let ticket = self.ticket(ReplyTo::Nobody);
            let request = Request::Reap { inode };
            self.step_closed(shared, Input::Request { ticket, header: &header, request });
        }
    }

    /// Allows local operations again, if all that clients could complete can be carried out.
    pub(crate) fn open_gate(&mut self, shared: &Shared) {
        let space = space_of_local_ops(shared);
        let waits = |it: &Shipments| it.is_always() || it.is_behind(self.worker);
        let has_space = !self.is_taken_over()
            && !shared.shipments().is_some_and(waits)
            && self.service.takes_local_ops(space)
            && self.reserve_more(space, For::Any).is_ok();
        if has_space {
            let mut tight = Vec::new();
            self.service.each_tight(local_ops_max(shared), &mut |account| tight.push(account));
            shared.host.op_log.open_gate(self.worker, &tight);
            self.local_ops.tight_count = tight.len();
        }
        // After the gate opens, because a client may start a local operation as soon as it has its
        // reply.
        self.send_replies(shared);
    }

    /// True if another account has come too close to its limits for the maximum number of local
    /// operations.
    fn is_tighter(&self, shared: &Shared) -> bool {
        let mut count = 0;
        if self.service.has_limits() {
            self.service.each_tight(local_ops_max(shared), &mut |_| count += 1);
        }
        count > self.local_ops.tight_count
    }

    /// Grants inode numbers of a shard to clients, if few are left.
    pub(crate) fn keep_numbers(&mut self, shared: &Shared, shard: ShardIndex) {
        if !self.is_taken_over() && shared.host.op_log.numbers_left(shard) < NUMBERS_MIN {
            self.step_closed(shared, Input::GrantNumbers { shard });
        }
    }

    fn settle_local_ops(&mut self, shared: &Shared, tentative: Tentative) -> bool {
        if !shared.host.op_log.has_any(self.worker) {
            return false;
        }
        let (creates, others): (Vec<TakenLocalOp>, Vec<TakenLocalOp>) =
            self.read_op_log(shared, tentative).into_iter().partition(TakenLocalOp::is_create);
        self.apply(shared, &creates);
        if !others.is_empty() {
            // A file may have been created and closed during the first scan.
            let mut more = self.read_op_log(shared, tentative);
            more.retain(TakenLocalOp::is_create);
            self.apply(shared, &more);
            self.apply(shared, &others);
        }
        shared.host.op_log.settle(self.worker);
        let any = !creates.is_empty() || !others.is_empty();
        if any {
            self.local_ops.applied_at = Some(Instant::now());
        }
        any
    }

    fn read_op_log(&self, shared: &Shared, tentative: Tentative) -> Vec<TakenLocalOp> {
        let mut all = Vec::new();
        shared.host.op_log.collect(self.worker, tentative, &mut |id| {
            let mut taken = TakenLocalOp { id, bytes: [0; LOCAL_OP_BYTES_MAX], length: 0 };
            taken.length = shared.host.op_log.read(id, &mut taken.bytes).unwrap_or(0);
            all.push(taken);
        });
        all
    }

    fn apply(&mut self, shared: &Shared, all: &[TakenLocalOp]) {
        for some in all.chunks(STEP_LOCAL_OPS_MAX) {
            // Space was reserved when the gate was opened.
            if self.reserve_step(For::Freeing).is_err() {
                tracing::error!(worker = self.worker, "log is full, local operations are lost");
                return;
            }
            self.apply_step(shared, some);
        }
    }

    fn apply_step(&mut self, shared: &Shared, some: &[TakenLocalOp]) {
        let mut op_log = Vec::with_capacity(some.len());
        let mut done = Vec::with_capacity(some.len());
        for taken in some {
            match taken.op() {
                // Retried with the next local operation or step.
                Some(LocalOp::Close { inode, .. }) if !self.service.is_quiet(inode) => continue,
                Some(op) => op_log.push(LoggedOp { op, written: written(shared, &op) }),
                None => tracing::warn!(session = taken.id.session, "malformed local operation"),
            }
            done.push(taken.id);
        }
        self.note_operations(shared, op_log.len() as u64);
        self.step_closed(shared, Input::LocalOps { ops: &op_log });
        for id in done {
            shared.host.op_log.finish(id);
        }
        for logged_op in op_log {
            match logged_op.op {
                LocalOp::Close { inode, vnode } => {
                    self.count_out(shared, inode, vnode, logged_op.written)
                }
                LocalOp::Create { .. } => self.keep_numbers(shared, logged_op.op.inode().shard()),
                LocalOp::Unlink { .. } => {}
            }
        }
    }

    /// Drops the open that a `Close` took over.
    fn count_out(&mut self, shared: &Shared, inode: Inode, row: u32, written: u64) {
        let index = VnodeIndex(row);
        let Ok(vnode) = shared.host.segment.vnode(index) else { return };
        if vnode.inode.load(SeqCst) != inode.0 {
            return;
        }
        if written != 0 {
            let _ = vnode.dirty_end.compare_exchange(written, 0, SeqCst, SeqCst);
        }
        let closed = shared.host.segment.vnode_close(inode, index);
        if closed.is_ok_and(|closed| closed.last && closed.deleted) {
            self.local_ops.reaps.push(inode);
        }
    }
}

/// Maximum number of local operations that could be pending at once.
fn local_ops_max(shared: &Shared) -> u64 {
    shared.host.op_log.sessions_most() * LOCAL_OP_COUNT as u64
}

/// Log bytes for the maximum number of local operations.
pub(crate) fn space_of_local_ops(shared: &Shared) -> u64 {
    local_ops_max(shared).saturating_mul(RECORD_BYTES_MAX)
}

/// Unreported size of the file of a `Close`; 0 if there is none.
fn written(shared: &Shared, op: &LocalOp<'_>) -> u64 {
    let LocalOp::Close { inode, vnode } = *op else { return 0 };
    let Ok(vnode) = shared.host.segment.vnode(VnodeIndex(vnode)) else { return 0 };
    let is_it = vnode.inode.load(SeqCst) == inode.0;
    if is_it { vnode.dirty_end.load(SeqCst) } else { 0 }
}
