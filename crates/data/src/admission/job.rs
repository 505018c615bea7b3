//! A request that is not answered yet: its work, the bytes of the backing store that it needs, and
//! for what it waits. Plain data; what happens to it is decided by the target.

use crate::admission::work::{LOCATE, MAP_EXTENTS_MAX, Work};
use crate::effect::{Effect, FillJob};
use placement::extent::{self, Span};
use qos::dirty::DirtyJob;
use wire::limits::{STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::reply::Extent;
use wire::request::stripe_log2_of;
use wire::{Inode, Request};

/// Most bytes, or one extent, that must be here at one moment to answer a request for extents: the
/// client retries for the rest.
const NEED_BYTES_MAX: u64 = 8 << 20;

/// The bytes that a request needs from the backing store before it can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    pub(crate) inode: Inode,
    pub(crate) stripe_log2: u8,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) kind: NeedKind,
    /// The job that needs them.
    pub(crate) job: FillJob,
}

/// How a request uses the bytes that it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeedKind {
    /// It only reads them.
    Reads,
    /// It changes bytes, or returns locations to a client that does. Extents that will be
    /// overwritten completely are filled, too: a writer that is stopped half-way leaves the old
    /// bytes.
    Writes,
    /// It punches a hole.
    Punches,
}

impl Need {
    /// The need of a request of a job; `None`: it needs nothing. `is_backable`: bytes of the file that
    /// are not here may not be holes.
    pub(crate) fn of(
        request: &Request<'_>,
        job: FillJob,
        is_backable: &dyn Fn(Inode) -> bool,
    ) -> Option<Need> {
        let (inode, stripe_log2, offset, length) = match *request {
            Request::MapExtents { inode, stripe_log2, offset, length, .. }
            | Request::Punch { inode, stripe_log2, offset, length } => {
                (inode, stripe_log2, offset, length)
            }
            Request::Read { inode, stripe_log2, offset, length } => {
                (inode, stripe_log2, offset, u64::from(length))
            }
            Request::Write { inode, stripe_log2, offset, bytes, .. } => {
                (inode, stripe_log2, offset, bytes.len() as u64)
            }
            Request::SeekData { inode, stripe_log2, offset } => (inode, stripe_log2, offset, 0),
            // How much of the file the backing store has.
            Request::Usage { inode, .. } => (inode, STRIPE_LOG2_MIN, 0, 0),
            _ => return None,
        };
        let stripe_log2 = stripe_log2_of(stripe_log2);
        let is_stripe = (STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).contains(&stripe_log2);
        if !is_backable(inode) || !is_stripe {
            return None;
        }
        let end = match request {
            Request::MapExtents { .. } => {
                let spans = extent::over(offset, length, stripe_log2).take(MAP_EXTENTS_MAX);
                let first = extent::at(offset, stripe_log2).end();
                let is_close = |span: &Span| span.end() <= first.max(offset + NEED_BYTES_MAX);
                let last = spans.take_while(is_close).last();
                last.map_or(offset, |span| span.end()).min(offset.saturating_add(length))
            }
            _ => offset.saturating_add(length),
        };
        let kind = match request {
            Request::Punch { .. } => NeedKind::Punches,
            Request::Read { .. } | Request::MapExtents { allocate: 0 | LOCATE, .. } => {
                NeedKind::Reads
            }
            _ => NeedKind::Writes,
        };
        Some(Need { inode, stripe_log2, offset, end, kind, job })
    }

    /// The needed extents of a file of which the backing store has `counts` bytes, each with
    /// whether the request covers all of it.
    pub(crate) fn spans(self, counts: u64) -> impl Iterator<Item = (Span, bool)> {
        let spans = extent::over(self.offset, self.end - self.offset, self.stripe_log2);
        let is_covered = move |span: &Span| self.offset <= span.start && span.end() <= self.end;
        spans.take_while(move |span| span.start < counts).map(move |span| (span, is_covered(&span)))
    }

    /// True if it needs some of this extent.
    pub(crate) fn touches(&self, inode: Inode, extent: &Extent) -> bool {
        let extent_end = extent.start + extent.length();
        self.inode == inode && self.offset < extent_end && extent.start < self.end
    }
}

/// A request's position in the queue; it keeps it while it is parked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Lower numbers arrived earlier.
    pub(super) number: u64,
    /// Start of the wait, in milliseconds; set at the caller's next clock reading.
    pub(super) since: Option<u32>,
    /// Since when nothing is leaving; set as `since`.
    pub(super) hopeless_since: Option<u32>,
    /// Round of the space query that decides about it.
    pub(super) round: u64,
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) work: Work,
    pub(crate) need: Option<Need>,
    /// The job for which it takes memory.
    pub(crate) writer: Option<DirtyJob>,
    /// Since when there is no space for what it needs, in milliseconds.
    pub(crate) starves_since: Option<u32>,
    /// Its position in the queue of requests that wait for space to write.
    pub(crate) turn: Option<Turn>,
    /// A device was asked to provision space for it.
    pub(crate) has_provisioned: bool,
    /// Its sender was told that it waits for space.
    is_told: bool,
}

impl Job {
    pub(crate) const fn new(
        ticket: u64,
        work: Work,
        need: Option<Need>,
        writer: Option<DirtyJob>,
    ) -> Job {
        let (starves_since, turn, has_provisioned, is_told) = (None, None, false, false);
        Job { ticket, work, need, writer, starves_since, turn, has_provisioned, is_told }
    }

    /// Tells the sender, once, that the request waits for space: one that must not wait is withdrawn.
    pub(crate) fn tell_wait(&mut self, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.is_told, true) {
            out.push(Effect::Wait { ticket: self.ticket });
        }
    }

    /// The job, noted as one for which a device was asked to provision.
    pub(crate) fn provisioned(self) -> Job {
        Job { has_provisioned: true, ..self }
    }
}
