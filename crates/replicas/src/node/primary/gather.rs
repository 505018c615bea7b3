//! Operations that were under way when the last primary ended, at a new primary.
//!
//! Each copy in sync tells what it had under way; together that is everything that could be on some
//! copies and not on others. An operation that one copy has as a whole goes on to all. One that no
//! copy has goes on when its client can be read, and else ends torn. So a request is made once,
//! whatever was killed when.
//!
//! An operation that a later one overlaps had ended on all copies: the later one was begun after
//! that.
//!
//! A copy in sync whose process has started again has nothing to tell its primary: that knows what is
//! under way, and orders all of it again.

use super::super::Context;
use super::super::lane::{Lane, Phase, Subject};
use super::super::messages::Order;
use super::ongoing::{Here, Ongoing};
use super::{Primary, What};
use crate::change::CopyId;
use crate::kept::{Begun, Kept, KeptStep};
use crate::operation::{Operation, Source, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;

/// An operation of which some copy tells, and which copies have its bytes.
struct Found {
    operation: Operation,
    is_here: bool,
    at: Vec<DaemonIndex>,
}

impl Primary {
    /// Goes on with what was under way, once every copy in sync has told.
    pub(super) fn gather(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        if self.lanes.iter().any(|lane| lane.is_in_sync && lane.is_opening()) {
            return;
        }
        let unit = self.of.unit;
        let is_foreign = |stamp: Stamp| {
            !kept.under_way.iter().any(|begun| begun.operation.stamp == stamp && !begun.is_done)
        };
        if cx.pulls.of(unit).any(|(_, stamp)| is_foreign(stamp)) {
            // It ends soon: it was cancelled.
            return;
        }
        self.is_gathered = true;
        let found = self.under_way(kept);
        let stamps: Vec<Stamp> = found.keys().copied().collect();
        if kept.has_other_than(&stamps) {
            cx.keep(kept, KeptStep::UnderWay(stamps.clone()));
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_level()) {
            lane.order(Subject::Other, Order::UnderWay(stamps.clone()), cx.now, cx.out);
        }
        for it in found.into_values() {
            self.take_over(&it, kept, cx);
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_level()) {
            lane.level();
        }
        self.lanes.iter_mut().for_each(|lane| lane.gathered = Vec::new());
        self.ask_anew(kept, cx);
    }

    /// A copy says what it had under way when its lane began.
    pub(super) fn opened(
        &mut self,
        id: CopyId,
        under_way: Vec<Begun>,
        kept: &Kept,
        cx: &mut Context<'_>,
    ) {
        let Some(lane) = self.lanes.iter_mut().find(|it| it.id == id && it.is_opening()) else {
            return;
        };
        lane.begin_to_fill(under_way);
        if !self.is_gathered || !lane.is_in_sync {
            return;
        }
        // Nothing ended since without it, so what it has beyond this is on all copies, or on none.
        lane.gathered = Vec::new();
        let changes = self.ongoing.values().map(|one| one.operation).filter(Operation::is_change);
        // One that was given up has a later stamp than some that began after it.
        let stamps: BTreeSet<Stamp> = changes.map(|operation| operation.stamp).collect();
        let stamps = stamps.into_iter().collect();
        lane.order(Subject::Other, Order::UnderWay(stamps), cx.now, cx.out);
        lane.order(Subject::Other, Order::Replies(kept.settled_replies()), cx.now, cx.out);
        self.order_unsettled(id, cx);
        if let Some(lane) = self.lanes.iter_mut().find(|it| it.id == id) {
            lane.level();
        }
    }

    /// Whether a copy that counts has not said yet what it has: until then nothing ends.
    pub(super) fn is_awaited(&self) -> bool {
        self.lanes.iter().any(|lane| lane.counts && lane.is_opening())
    }

    /// Requests that came meanwhile may be repetitions of what goes on now.
    fn ask_anew(&mut self, kept: &Kept, cx: &mut Context<'_>) {
        for waiting in std::mem::take(&mut self.queue) {
            match &waiting.what {
                What::Request(request) if self.is_known(request, kept, cx) => {}
                _ => self.queue.push_back(waiting),
            }
        }
    }

    fn under_way(&self, kept: &Kept) -> BTreeMap<Stamp, Found> {
        let mut found: BTreeMap<Stamp, Found> = BTreeMap::new();
        let own = kept.under_way.iter().map(|begun| (None, begun));
        let theirs = self
            .lanes
            .iter()
            .filter(|lane| lane.is_in_sync)
            .flat_map(|lane| lane.gathered.iter().map(|begun| (Some(lane.id.daemon), begun)));
        for (at, begun) in own.chain(theirs).filter(|(_, it)| it.operation.is_change()) {
            let entry = found.entry(begun.operation.stamp).or_insert(Found {
                operation: begun.operation,
                is_here: false,
                at: Vec::new(),
            });
            match at {
                None => entry.is_here |= begun.is_done,
                Some(daemon) if begun.is_done => entry.at.push(daemon),
                Some(_) => {}
            }
        }
        let all: Vec<Operation> = found.values().map(|it| it.operation).collect();
        found.retain(|&stamp, it| {
            let (object, range) = (it.operation.object, it.operation.range);
            !all.iter().any(|later| later.stamp > stamp && later.overlaps(object, range))
        });
        found
    }

    fn take_over(&mut self, found: &Found, kept: &mut Kept, cx: &mut Context<'_>) {
        let operation = found.operation;
        let client = operation.requested.map(|requested| Source::Client(requested.id));
        let copy = found.at.first().map(|&daemon| Source::Copy(daemon));
        let source = copy.or(client).unwrap_or(Source::Copy(cx.own));
        let mut one = Ongoing::new(operation, Here::Done, source);
        if found.is_here {
            one.here = Here::Done;
        } else if cx.pulls.is_pulling(self.of.unit, operation.stamp) {
            one.here = Here::Pulling;
        } else if client.is_none() && copy.is_none() {
            // The rest of a request that was given up: what is here is as good as what others have.
            cx.keep(kept, KeptStep::Begin(operation));
            cx.keep(kept, KeptStep::Done(operation.stamp));
        } else {
            cx.keep(kept, KeptStep::Begin(operation));
            self.change_here(&mut one, kept, cx);
        }
        self.add_ongoing(one, cx);
    }
}

impl Lane {
    /// The copy begins: one in sync has all that was acknowledged, another one is compared.
    pub(super) fn begin_to_fill(&mut self, under_way: Vec<Begun>) {
        if self.is_in_sync {
            self.gathered = under_way;
            self.level();
        } else {
            self.phase = Phase::Scanning(super::super::scan::Scan::default());
        }
    }
}
