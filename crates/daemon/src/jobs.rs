//! Jobs: what a metadata service asks of all targets of a file while somebody waits, and the answers
//! put together. What nobody waits for is in `removals`.
//!
//! A part is asked again until its target answers or the job's time is over; all parts may be
//! repeated without harm. The job is done when every part is.

use crate::inbox::PartAnswer;
use crate::reply::ReplyTo;
use crate::shared::{Shared, encode_request};
use metadata::DataOp;
use placement::locate::{self, Targets};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wire::attributes::flag;
use wire::errno::{Errno, Result};
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};
use wire::request::{ANY_CUTS, RESIDENT_CHUNK};
use wire::{DaemonIndex, Header, Inode, Layout, Request, ShardIndex};

/// How long a part is repeated before the job has failed.
const JOB_TIME: Duration = Duration::from_secs(30);
/// Shortest pause before a repetition.
const PAUSE_MICROS_MIN: u64 = 100;

struct Job {
    token: u64,
    inode: Inode,
    chunk_log2: u8,
    /// With `chunk_log2`, of what makes pieces.
    resident: u8,
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
    /// Starts a job: asks every target that may hold something of the file.
    pub(crate) fn start(
        &mut self,
        shared: &Shared,
        worker: usize,
        (token, inode): (u64, Inode),
        layout: &Layout,
        op: DataOp,
    ) {
        let count = shared.router.map.daemon_count();
        let targets = match op {
            DataOp::WriteAll { .. } => first_target(layout, inode, count),
            DataOp::Truncate { .. } | DataOp::Own { .. } => targets_of(layout, inode, count),
        };
        let id = self.made;
        self.made += 1;
        let job = Job {
            token,
            inode,
            chunk_log2: layout.chunk_log2.clamp(CHUNK_LOG2_MIN, CHUNK_LOG2_MAX),
            resident: if layout.flags & flag::PINNED != 0 { RESIDENT_CHUNK } else { 0 },
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

    /// Takes the answer to a part. The token and outcome of the job, if it was the last.
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
            let (inode, op) = (job.inode.0, name(&job.op));
            tracing::warn!(inode, op, %errno, "targets did not all do what a shard asked");
        }
        Some((job.token, job.failed.map_or(Ok(()), Err)))
    }

    /// When something must be asked again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.repeats.first().map(|(at, _, _)| *at)
    }

    /// Asks again what is due.
    pub(crate) fn repeat(&mut self, shared: &Shared, worker: usize) {
        let now = Instant::now();
        while let Some(&(at, id, daemon)) = self.repeats.first().filter(|(at, _, _)| *at <= now) {
            self.repeats.remove(&(at, id, daemon));
            if let Some(job) = self.open.get(&id) {
                ask(shared, worker, id, job, DaemonIndex(daemon));
            }
        }
    }
}

/// The targets that may hold something of a file.
pub(crate) fn targets_of(layout: &Layout, inode: Inode, count: u16) -> Targets {
    if layout.flags & flag::SHORT != 0 {
        return first_target(layout, inode, count);
    }
    locate::targets(layout, inode, count)
}

/// The target of a file's first chunk.
fn first_target(layout: &Layout, inode: Inode, count: u16) -> Targets {
    Targets::one(locate::target(layout, inode, 0, count), count)
}

const fn name(op: &DataOp) -> &'static str {
    match op {
        DataOp::Truncate { .. } => "truncate",
        DataOp::WriteAll { .. } => "write",
        DataOp::Own { .. } => "own",
    }
}

fn ask(shared: &Shared, worker: usize, id: u64, job: &Job, daemon: DaemonIndex) {
    let (inode, chunk_log2) = (job.inode, job.chunk_log2);
    let request = match &job.op {
        DataOp::Truncate { size } => Request::Truncate { inode, chunk_log2, size: *size },
        &DataOp::Own { owner, changed, is_pinned } => {
            let (uid, project, changed) = (owner.uid, owner.project, changed.cast_unsigned());
            Request::Own { inode, uid, project, changed, resident: u8::from(is_pinned) }
        }
        DataOp::WriteAll { bytes } => {
            let chunk_log2 = chunk_log2 | job.resident;
            Request::Write { inode, chunk_log2, offset: 0, cuts: ANY_CUTS, bytes }
        }
    };
    let header =
        Header { shard: Header::TARGET, daemon: daemon.0, ..shared.own_header(ShardIndex(0)) };
    let to = ReplyTo::Part { worker, job: id, daemon: daemon.0 };
    let bytes = encode_request(&header, &request);
    if daemon == shared.router.me {
        shared.hand_to_worker(placement::map::WORKER_OF_TARGET, bytes, to);
    } else {
        shared.hand_to_peer(daemon, &bytes, to);
    }
}
