//! Which bytes the backing store has, at the primary: it tells the writeback up to which change it
//! saves an object, tells the copies when that was saved, and tells the owner of the file's name
//! before it acknowledges a change of an object that the owner takes for clean.
//!
//! Invariants
//! 1. A mark (`Entry::clean`) names a change only if the backing store has the bytes of it and of
//!    all before it, or later ones. It is a fact about the object, so it holds at any copy. Later
//!    ones may be those of a request that has not ended: if the primary dies then, and its client,
//!    the request may be made in the backing store alone, as one that ends late.
//! 2. A change is acknowledged only if the owner takes the object for dirty, and goes on to do so
//!    until a writeback that begins later.

use super::super::messages::Order;
use super::super::windows::Party;
use super::super::{Action, Context, REPEAT_NANOS};
use super::Primary;
use super::ongoing::Ongoing;
use crate::dirty::{Event, Notice};
use crate::kept::{Kept, KeptStep};
use crate::node::lane::{Lane, Subject};
use crate::node::messages::WINDOW;
use crate::operation::{Kind, Object, Stamp};

/// Knowledge of the owner about an object, in the time of this primary.
#[derive(Default)]
pub(super) struct Noticed {
    /// A writeback has begun that saves all changes up to this one. When it ends, earlier notices
    /// say nothing any more.
    floor: Stamp,
    asked: Stamp,
    /// The owner has it.
    stored: Stamp,
    removal_asked: Stamp,
    removal_stored: Stamp,
    asked_at: i64,
}

impl Primary {
    /// Whether the owner of the name knows of a change.
    pub(super) fn is_noticed(&self, one: &Ongoing) -> bool {
        let operation = &one.operation;
        if one.is_step || !operation.is_change() {
            return true;
        }
        let Some(known) = self.noticed.get(&operation.object) else { return false };
        if operation.kind == Kind::Remove {
            return known.removal_stored >= operation.stamp;
        }
        known.stored > known.floor
    }

    /// Sends notices of the changes that the owner does not know.
    pub(super) fn send_notices(&mut self, kept: &Kept, cx: &mut Context<'_>) {
        let first = self.first_stamp();
        // A removal counts when no copy has the object any more: until then it would be lost.
        let is_due = |one: &&Ongoing| {
            let is_removal = one.operation.kind == Kind::Remove;
            !self.is_noticed(one) && (!is_removal || self.is_everywhere(one))
        };
        let open = self.ongoing.values().filter(is_due);
        let changes: Vec<(Object, Stamp, Kind)> = open
            .map(|one| (one.operation.object, one.operation.stamp, one.operation.kind))
            .collect();
        for (object, stamp, kind) in changes {
            let last = kept.objects.get(&object).map_or(stamp, |entry| entry.stamp.max(stamp));
            let known = self.noticed.entry(object).or_default();
            let is_late = cx.now - known.asked_at >= REPEAT_NANOS;
            let (asked, event, is_asked) = if kind == Kind::Remove {
                let is_asked = known.removal_asked >= stamp;
                known.removal_asked = stamp;
                (stamp, Event::Removed, is_asked)
            } else {
                let is_asked = known.asked > known.floor;
                if !is_asked {
                    known.asked = last.max(first);
                }
                (known.asked, Event::Dirty, is_asked)
            };
            if !is_asked || is_late {
                known.asked_at = cx.now;
                let unit = self.of.unit;
                cx.out.push(Action::Notify(Notice { unit, object, stamp: asked, event }));
            }
        }
    }

    /// Below all stamps of this epoch, above all of earlier ones.
    const fn first_stamp(&self) -> Stamp {
        Stamp { epoch: self.of.epoch, number: 0 }
    }

    /// The owner has stored a notice.
    pub(in crate::node) fn noticed(&mut self, notice: &Notice) {
        // An older notice was sent before a writeback began, or by an earlier primary.
        let Some(known) = self.noticed.get_mut(&notice.object) else { return };
        match notice.event {
            Event::Dirty if notice.stamp == known.asked => known.stored = notice.stamp,
            Event::Removed if notice.stamp == known.removal_asked => {
                known.removal_stored = notice.stamp;
                known.floor = known.floor.max(notice.stamp);
            }
            _ => {}
        }
    }

    /// A writeback of the object begins: it reads the bytes next. It saves all changes up to the
    /// stamp. `None`: there is nothing to save, or not now.
    pub(in crate::node) fn begin_writeback(
        &mut self,
        object: Object,
        kept: &Kept,
        cx: &Context<'_>,
    ) -> Option<Stamp> {
        let entry = kept.objects.get(&object).filter(|it| it.is_dirty() && !it.is_partial)?;
        if !self.is_serving(cx) || self.hands_over() || self.writing.contains(&object) {
            return None;
        }
        let changes =
            self.ongoing.values().filter(|it| it.operation.object == object && !it.is_step);
        let open = changes.filter(|it| it.operation.is_change()).map(|it| it.operation.stamp).min();
        let all = entry.stamp.max(self.first_stamp());
        let up_to = open.map_or(all, |open| all.min(before(open)));
        if up_to <= entry.clean {
            return None;
        }
        let known = self.noticed.entry(object).or_default();
        known.floor = known.floor.max(up_to);
        self.writing.insert(object);
        Some(up_to)
    }

    /// See `Node::clean_up_to`.
    pub(in crate::node) fn clean_up_to(
        &self,
        object: Object,
        kept: &Kept,
        cx: &Context<'_>,
    ) -> Option<Stamp> {
        let is_dirty = kept.objects.get(&object).is_some_and(|it| it.is_dirty() || it.is_partial);
        let is_open = self.ongoing.values().any(|it| it.operation.object == object);
        (self.is_serving(cx) && !is_dirty && !is_open).then_some(self.first_stamp())
    }

    /// A writeback has ended: the backing store has all changes of the object up to the stamp, if
    /// there is one.
    pub(in crate::node) fn end_writeback(
        &mut self,
        object: Object,
        clean: Option<Stamp>,
        kept: &mut Kept,
        cx: &mut Context<'_>,
    ) {
        // One after the other: the bytes of an earlier one would replace those of a later one.
        let was_begun = self.writing.remove(&object);
        let Some(clean) = clean.filter(|_| was_begun) else { return };
        if !kept.is_news(object, clean) {
            return;
        }
        cx.keep(kept, KeptStep::Clean(object, clean));
        let is_open = self.ongoing.values().any(|it| it.operation.object == object);
        if !is_open && kept.objects.get(&object).is_some_and(|entry| !entry.is_dirty()) {
            // The next change is noticed anew.
            self.noticed.remove(&object);
        }
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_opening()) {
            lane.marks.insert(object, clean);
        }
    }

    /// The object is gone, and the owner knows.
    pub(super) fn forget_notices(&mut self, object: Object) {
        self.noticed.remove(&object);
    }

    /// Tells the copies what is clean.
    pub(super) fn send_marks(&mut self, cx: &mut Context<'_>) {
        for lane in &mut self.lanes {
            while !lane.marks.is_empty() && lane.has_place() {
                let some: Vec<Object> = lane.marks.keys().copied().take(WINDOW).collect();
                let take = |object| lane.marks.remove(&object).map(|stamp| (object, stamp));
                let marks = some.into_iter().filter_map(take).collect();
                lane.order(Subject::Other, Order::Clean(marks), cx.now, cx.out);
                cx.loads.add(self.of.unit, Party::Peer(lane.id.daemon), 0);
            }
        }
    }
}

/// The stamp before.
const fn before(stamp: Stamp) -> Stamp {
    Stamp { epoch: stamp.epoch, number: stamp.number.saturating_sub(1) }
}

impl Lane {
    /// Whether it has everything to be told.
    pub(super) fn is_told(&self) -> bool {
        self.marks.is_empty() && self.sent.is_empty()
    }
}
