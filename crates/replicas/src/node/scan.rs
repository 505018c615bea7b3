//! How a copy that joins becomes equal to its primary: object by object in their order, a window at
//! a time.
//!
//!   asked --Inventory answered--> clean | needed --Begin--> shipping --all slices ordered--> clean
//!
//! Changes of clean objects, and of objects that are being shipped, are ordered to the copy as to
//! any other. Changes of objects that it does not have yet are not: they are in the bytes that are
//! shipped later. So there is no log of changes, and the state of a scan has a bounded size however
//! long it takes. A copy that returns with old bytes has equal versions of all that was not
//! changed: that is the delta.

use crate::kept::Kept;
use crate::node::messages::{Inventory, Listed, WINDOW};
use crate::operation::{Object, Stamp};
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Its version was sent.
    Asked,
    /// Its version was sent, and it has changed since.
    Changed,
    /// The copy needs it.
    Needed,
    /// The step `Begin` waits for its turn.
    Queued,
    /// Everything below this offset was put in the queue.
    Shipping(u64),
    Clean,
}

#[derive(Default)]
pub(super) struct Scan {
    /// All objects up to this one are clean.
    done: Option<Object>,
    window: BTreeMap<Object, Progress>,
    /// Last object of the window: `None` for the last window.
    last: Option<Object>,
    is_asked: bool,
    is_answered: bool,
}

impl Scan {
    /// The next window's versions, where the one before is done.
    pub(super) fn ask(&mut self, kept: &Kept) -> Option<Inventory> {
        if self.is_asked {
            return None;
        }
        let from = self.done.map_or(Bound::Unbounded, Bound::Excluded);
        let next = kept.objects.range((from, Bound::Unbounded)).take(WINDOW).map(|(&it, _)| it);
        let objects: Vec<Object> = next.collect();
        self.last = objects.last().copied().filter(|_| objects.len() == WINDOW);
        self.window = objects.iter().map(|&object| (object, Progress::Asked)).collect();
        (self.is_asked, self.is_answered) = (true, false);
        let listed = |&object: &Object| {
            let clean = kept.objects.get(&object).map_or(Stamp::default(), |entry| entry.clean);
            Listed { object, version: kept.version(object), clean }
        };
        let objects = objects.iter().map(listed).collect();
        Some(Inventory { after: self.done, last: self.last, objects })
    }

    pub(super) const fn may_ask(&self) -> bool {
        !self.is_asked
    }

    pub(super) fn answered(&mut self, differs: &[Object]) {
        self.is_answered = true;
        for (object, progress) in &mut self.window {
            let is_needed = *progress == Progress::Changed || differs.contains(object);
            *progress = if is_needed { Progress::Needed } else { Progress::Clean };
        }
    }

    /// Whether a change of an object that begins now is ordered to the copy.
    pub(super) fn takes(&mut self, object: Object) -> bool {
        if self.done.is_some_and(|done| object <= done) {
            return true;
        }
        if !self.is_asked || self.last.is_some_and(|last| object > last) {
            return false;
        }
        let fresh = if self.is_answered { Progress::Needed } else { Progress::Changed };
        let progress = self.window.entry(object).or_insert(fresh);
        if *progress == Progress::Asked {
            *progress = Progress::Changed;
        }
        matches!(progress, Progress::Shipping(_) | Progress::Clean)
    }

    /// Whether the copy has an object, as far as it was compared and filled.
    pub(super) fn has(&self, object: Object) -> bool {
        self.done.is_some_and(|done| object <= done)
            || self.progress(object) == Some(Progress::Clean)
    }

    pub(super) fn progress(&self, object: Object) -> Option<Progress> {
        self.window.get(&object).copied()
    }

    pub(super) fn set(&mut self, object: Object, progress: Progress) {
        self.window.insert(object, progress);
    }

    /// The primary has an object no more, and so has the copy, which was told.
    pub(super) fn removed(&mut self, object: Object) {
        if let Some(progress) = self.window.get_mut(&object) {
            *progress = Progress::Clean;
        }
    }

    /// Objects of the window that are not clean.
    pub(super) fn open(&self) -> Vec<(Object, Progress)> {
        let open = self.window.iter().filter(|(_, it)| **it != Progress::Clean);
        open.map(|(&object, &progress)| (object, progress)).collect()
    }

    /// Goes on to the next window. Whether there is none.
    pub(super) fn advance(&mut self) -> bool {
        if !self.is_answered || !self.open().is_empty() {
            return false;
        }
        self.window.clear();
        self.done = self.last;
        self.is_asked = false;
        self.last.is_none()
    }
}
