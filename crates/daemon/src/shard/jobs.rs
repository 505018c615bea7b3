//! Jobs: requests of a metadata service to all targets of a file, with a client waiting, and the
//! combined answers. Requests that no client waits for are in `removals`.
//!
//! A part is repeated until its target answers or the job times out; all parts are idempotent. The
//! job is done when all parts are.

use crate::shared::Shared;
use crate::shared::network::encode_request;
use crate::shared::reply::{PartAnswer, ReplyTo};
use metadata::DataOp;
use placement::locate::{self, Targets};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wire::attributes::flag;
use wire::errno::{Errno, Result};
use wire::limits::{STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::request::{ANY_TRUNCATE_EPOCH, PINNED_STRIPE};
use wire::{DaemonIndex, Inode, Layout, Request};

/// How long a part is repeated before the job fails.
const JOB_TIME: Duration = Duration::from_secs(30);
/// Shortest pause before a repetition.
const PAUSE_MICROS_MIN: u64 = 100;

/// Numbers of jobs of an epoch are below those of the next.
const EPOCH_LOG2: u32 = 40;

struct Job {
    token: u64,
    inode: Inode,
    stripe_log2: u8,
    /// Combined with `stripe_log2` in requests that allocate extents.
    pinned: u8,
    op: DataOp,
    parts_open: usize,
    failed: Option<Errno>,
    deadline: Instant,
}

/// All jobs of one worker.
#[derive(Default)]
pub(crate) struct Jobs {
    open: BTreeMap<u64, Job>,
    made: u64,
    repeats: BTreeSet<(Instant, u64, u16)>,
}

impl Jobs {
    /// Those of a service in this epoch of its owners: answers to jobs of the one before are of none.
    pub(crate) fn in_epoch(epoch: u64) -> Jobs {
        Jobs { made: epoch << EPOCH_LOG2, ..Jobs::default() }
    }

    /// Starts a job: sends a request to every target that may hold a part of the file.
    pub(crate) fn start_job(
        &mut self,
        shared: &Shared,
        worker: usize,
        (token, inode): (u64, Inode),
        layout: &Layout,
        op: DataOp,
    ) {
        let first = shared.net.router.map.first_count();
        let targets = match op {
            DataOp::WriteAll { .. } => first_target(layout, inode, first),
            DataOp::Truncate { .. } | DataOp::Own { .. } => targets_of(layout, inode, first),
        };
        let id = self.made;
        self.made += 1;
        let job = Job {
            token,
            inode,
            stripe_log2: layout.stripe_log2.clamp(STRIPE_LOG2_MIN, STRIPE_LOG2_MAX),
            pinned: if layout.flags & flag::PINNED != 0 { PINNED_STRIPE } else { 0 },
            op,
            parts_open: targets.len(),
            failed: None,
            deadline: Instant::now() + JOB_TIME,
        };
        for daemon in targets {
            ask(shared, worker, id, &job, daemon);
        }
        self.open.insert(id, job);
    }

    /// Records the answer to a part. Returns token and result of the job, if it was the last part.
    pub(crate) fn answered(
        &mut self,
        id: u64,
        daemon: u16,
        answer: PartAnswer,
    ) -> Option<(u64, Result<()>)> {
        let job = self.open.get_mut(&id)?;
        match answer {
            PartAnswer::Again(micros) if Instant::now() < job.deadline => {
                let pause = Duration::from_micros(micros.max(PAUSE_MICROS_MIN));
                self.repeats.insert((Instant::now() + pause, id, daemon));
                return None;
            }
            PartAnswer::Again(_) => job.failed = job.failed.or(Some(Errno::EIO)),
            PartAnswer::Ended(Err(errno)) => job.failed = job.failed.or(Some(errno)),
            PartAnswer::Ended(Ok(())) => {}
        }
        job.parts_open = job.parts_open.saturating_sub(1);
        if job.parts_open > 0 {
            return None;
        }
        let job = self.open.remove(&id)?;
        if let Some(errno) = job.failed {
            let (inode, op) = (job.inode.0, op_name(&job.op));
            tracing::warn!(inode, op, %errno, "job failed on a target");
        }
        Some((job.token, job.failed.map_or(Ok(()), Err)))
    }

    /// Time of the next repetition.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.repeats.first().map(|(at, _, _)| *at)
    }

    /// Repeats parts that are due.
    pub(crate) fn repeat_due(&mut self, shared: &Shared, worker: usize) {
        let now = Instant::now();
        while let Some(&(at, id, daemon)) = self.repeats.first().filter(|(at, _, _)| *at <= now) {
            self.repeats.remove(&(at, id, daemon));
            if let Some(job) = self.open.get(&id) {
                ask(shared, worker, id, job, DaemonIndex(daemon));
            }
        }
    }
}

/// Targets that may hold a part of a file, in an instance that began with `first` targets.
pub(crate) fn targets_of(layout: &Layout, inode: Inode, first: u16) -> Targets {
    if layout.flags & flag::SHORT != 0 {
        return first_target(layout, inode, first);
    }
    locate::targets(layout, inode, first)
}

/// Target of a file's first stripe.
fn first_target(layout: &Layout, inode: Inode, first: u16) -> Targets {
    Targets::one(locate::target(layout, inode, 0, first))
}

const fn op_name(op: &DataOp) -> &'static str {
    match op {
        DataOp::Truncate { .. } => "truncate",
        DataOp::WriteAll { .. } => "write",
        DataOp::Own { .. } => "own",
    }
}

fn ask(shared: &Shared, worker: usize, id: u64, job: &Job, daemon: DaemonIndex) {
    let (inode, stripe_log2) = (job.inode, job.stripe_log2);
    let request = match &job.op {
        DataOp::Truncate { size } => Request::Truncate { inode, stripe_log2, size: *size },
        &DataOp::Own { owner, changed, is_pinned } => {
            let (uid, project, changed) = (owner.uid, owner.project, changed.cast_unsigned());
            Request::Own { inode, uid, project, changed, pinned: u8::from(is_pinned) }
        }
        DataOp::WriteAll { bytes } => {
            let stripe_log2 = stripe_log2 | job.pinned;
            Request::Write {
                inode,
                stripe_log2,
                offset: 0,
                truncate_epoch: ANY_TRUNCATE_EPOCH,
                bytes,
            }
        }
    };
    let to = ReplyTo::Part { worker, job: id, daemon: daemon.0 };
    if let Some(units) = &shared.units {
        return units.change_file(shared, daemon, &request, to);
    }
    let bytes = encode_request(&shared.net.target_header(daemon), &request);
    shared.hand_to_target(daemon, bytes, to);
}
