//! Filling copies: the steps of a scan as operations of one lane, which wait for their turn like
//! all others.

use super::super::Context;
use super::super::lane::{Lane, Phase, Subject};
use super::super::messages::Order;
use super::super::scan::Progress;
use super::ongoing::{Here, Ongoing};
use super::{Primary, What};
use crate::change::CopyId;
use crate::kept::Kept;
use crate::operation::{ByteRange, Kind, Object, Operation, Source};
use wire::DaemonIndex;

/// Steps of a lane that wait or are under way at a time.
const STEPS_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The copy forgets the object, or loses it where the primary has it no more.
    Begin,
    /// Some bytes of an object that is being sent.
    Slice,
    /// Bytes that fail their checksum there.
    Repair,
}

impl Lane {
    /// The copy's answer to an inventory.
    pub(super) fn compared(&mut self, differs: &[Object]) {
        if let Phase::Scanning(scan) = &mut self.phase {
            scan.answered(differs);
        }
    }

    /// An order waits for longer than usual.
    pub(super) fn is_late(&self) -> bool {
        self.longest_wait() > super::super::SLOW_NANOS / 4
    }
}

impl Primary {
    /// Goes on with scans that need no bytes, or bytes that the rate allows.
    pub(super) fn go_on_scanning(&mut self, kept: &Kept, cx: &mut Context<'_>) {
        if !self.is_gathered || !self.is_serving(cx) || self.hand_over.is_some() {
            return;
        }
        for index in 0..self.lanes.len() {
            while self.scan_once(index, kept, cx) {}
        }
    }

    fn steps_of(&self, lane: CopyId) -> usize {
        let waits =
            |it: &&super::Waiting| matches!(it.what, What::Step(it, _) if it == lane.daemon);
        let flies = |it: &&Ongoing| it.is_step && it.parts.iter().any(|part| part.lane == lane);
        self.queue.iter().filter(waits).count() + self.ongoing.values().filter(flies).count()
    }

    /// Takes one step of a scan. Whether there may be another one.
    fn scan_once(&mut self, index: usize, kept: &Kept, cx: &mut Context<'_>) -> bool {
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.has_place()) else {
            return false;
        };
        let Phase::Scanning(scan) = &mut lane.phase else { return false };
        if let Some(inventory) = scan.ask(kept) {
            lane.order(Subject::Other, Order::Inventory(inventory), cx.now, cx.out);
            return false;
        }
        if scan.advance() {
            let replies = Order::Replies(kept.settled_replies());
            lane.order(Subject::Other, replies, cx.now, cx.out);
            let lane = lane.id;
            self.order_unsettled(lane, cx);
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.level();
            }
            return false;
        }
        if scan.may_ask() {
            // The next window.
            return true;
        }
        let (open, lane) = (scan.open(), lane.id);
        let may_step = self.steps_of(lane) < STEPS_MAX;
        for (object, progress) in open {
            let length = kept.objects.get(&object).map_or(0, |entry| entry.length);
            match progress {
                Progress::Needed if may_step => {
                    self.set_progress(index, object, Progress::Queued);
                    self.push(object, ByteRange::ALL, What::Step(lane.daemon, Step::Begin), cx);
                    return true;
                }
                Progress::Shipping(from) if from < length && may_step && cx.may_fill() => {
                    let end = length.min(from + cx.settings.slice_bytes);
                    let range = ByteRange { start: from, end };
                    cx.fill(range.length());
                    self.set_progress(index, object, Progress::Shipping(end));
                    self.push(object, range, What::Step(lane.daemon, Step::Slice), cx);
                    return true;
                }
                Progress::Shipping(from)
                    if from >= length && !self.has_slices(lane.daemon, object) =>
                {
                    self.complete(index, object, kept, cx);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Changes that began before the copy had their objects are in what it was sent. It is told of
    /// them, since other copies may not have them: if it becomes the primary it goes on with them.
    pub(super) fn order_unsettled(&mut self, lane: CopyId, cx: &mut Context<'_>) {
        let is_missing = |it: &&Ongoing| {
            it.operation.is_change() && it.parts.iter().all(|part| part.lane != lane)
        };
        let missing = self.ongoing.iter().filter(|(_, it)| is_missing(it));
        for id in missing.map(|(&id, _)| id).collect::<Vec<u64>>() {
            self.order_ongoing(id, lane, cx);
        }
    }

    fn set_progress(&mut self, index: usize, object: Object, progress: Progress) {
        if let Some(Lane { phase: Phase::Scanning(scan), .. }) = self.lanes.get_mut(index) {
            scan.set(object, progress);
        }
    }

    /// Whether bytes of the object wait for their turn: what is sent before them is not all.
    fn has_slices(&self, daemon: DaemonIndex, object: Object) -> bool {
        self.queue.iter().any(|waiting| {
            let is_slice = matches!(waiting.what, What::Step(it, Step::Slice) if it == daemon);
            is_slice && waiting.object == object
        })
    }

    fn complete(&mut self, index: usize, object: Object, kept: &Kept, cx: &mut Context<'_>) {
        self.set_progress(index, object, Progress::Clean);
        let entry = kept.objects.get(&object).copied().unwrap_or_default();
        let operation = Operation {
            stamp: self.next_stamp(),
            object,
            range: ByteRange::NONE,
            kind: Kind::Complete { version: entry.stamp, clean: entry.clean },
            requested: None,
        };
        let order = Order::Operation { operation, source: Source::Copy(cx.own), replaces: None };
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.order(Subject::Other, order, cx.now, cx.out);
        }
    }

    pub(super) fn begin_step(
        &mut self,
        daemon: DaemonIndex,
        step: Step,
        (object, range): (Object, ByteRange),
        kept: &Kept,
        cx: &mut Context<'_>,
    ) {
        let stamp = self.next_stamp();
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id.daemon == daemon) else {
            return;
        };
        let id = lane.id;
        let exists = kept.objects.contains_key(&object);
        let kind = match (step, &mut lane.phase) {
            (Step::Begin, Phase::Scanning(scan)) if exists => {
                scan.set(object, Progress::Shipping(0));
                Kind::Begin
            }
            (Step::Begin, Phase::Scanning(scan)) => {
                scan.set(object, Progress::Clean);
                Kind::Remove
            }
            // The object may have been removed since, there too.
            (Step::Slice, Phase::Scanning(scan))
                if exists && matches!(scan.progress(object), Some(Progress::Shipping(_))) =>
            {
                Kind::Copy
            }
            (Step::Repair, _) if exists => Kind::Copy,
            _ => return,
        };
        let operation = Operation { stamp, object, range, kind, requested: None };
        let mut one = Ongoing::new(operation, Here::None, Source::Copy(cx.own));
        one.is_step = true;
        self.ongoing_begun += 1;
        let number = self.ongoing_begun;
        self.ongoing.insert(number, one);
        self.order_ongoing(number, id, cx);
    }
}
