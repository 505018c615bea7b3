//! A node of the hierarchy in one class: its tag among its siblings, and the virtual time of its
//! children. Start-time fair queueing: the sibling with the lowest start tag is served, which then
//! advances by the cost of its request over its weight. A sibling that returns starts at its own tag, but
//! at most `RETURN_NANOS` before the virtual time: it saves up nothing for a long idle time, and a
//! program that sends its next requests when the last ones have ended loses nothing by the moment
//! between.

/// Scale of tags, so that a nanosecond at the highest weight is a whole number of them.
const TAG_SCALE: u128 = 1 << 16;
/// The weight of a user or job for which none is set.
pub const WEIGHT_USUAL: u32 = 100;
/// Largest weight.
pub const WEIGHT_MAX: u32 = 10_000;

/// Most device time that a node is owed.
const LAG_NANOS: u64 = 2 * super::AHEAD_NANOS;

/// Most device time that a node is owed when it returns: about the requests of others that start in the
/// moment in which a program has none.
const RETURN_NANOS: u64 = 2 * super::AHEAD_NANOS;

/// Tags that so much device time is at the usual weight.
pub(super) fn tags_of(nanos: u64) -> u128 {
    u128::from(nanos) * TAG_SCALE
}

/// A node in one class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Start tag of its next request, in the virtual time of its parent.
    pub(super) start: u128,
    /// Virtual time of its children: all that is below it is in the past.
    pub(super) virtual_time: u128,
    /// Highest start tag of any child after its last request.
    finish_max: u128,
    /// Requests that wait, those of its children included.
    pub(super) queued: u32,
    /// Requests at the device.
    pub(super) in_flight: u32,
    /// It was held back by a limit of its own, so its tag is not owed to it.
    pub(super) is_throttled: bool,
}

impl Flow {
    /// A request arrives at this node, a child of `parent`.
    pub(super) fn arrive(&mut self, parent: &Flow) {
        if self.queued == 0 {
            self.start = self.start.max(parent.past());
        }
        self.queued += 1;
    }

    /// It is not held back by a limit of its own, or no longer: then it starts at the virtual time, or
    /// where it was.
    pub(super) fn resume(&mut self, parent: &Flow) {
        let past = if self.is_throttled { parent.virtual_time } else { parent.past() };
        self.is_throttled = false;
        self.start = self.start.max(past);
    }

    /// The earliest start tag of a child.
    fn past(&self) -> u128 {
        self.virtual_time.saturating_sub(tags_of(RETURN_NANOS))
    }

    /// The child with this start tag is chosen; `least` is the lowest tag of all that wait. One that is
    /// owed more than `LAG_NANOS`, because it could not start, loses the rest: it must not keep the
    /// others from the device for as long as it was stuck.
    pub(super) fn pass(&mut self, least: u128, chosen: u128) {
        let past = chosen.saturating_sub(tags_of(LAG_NANOS));
        self.virtual_time = self.virtual_time.max(least).max(past);
    }

    /// A request of so much device time starts at this node, a child of `parent`.
    pub(super) fn serve(&mut self, parent: &mut Flow, nanos: u64, weight: u32) {
        let step = tags_of(nanos) * u128::from(WEIGHT_USUAL) / u128::from(weight.max(1));
        self.start = self.start.saturating_add(step);
        parent.finish_max = parent.finish_max.max(self.start);
        self.queued -= 1;
        self.in_flight += 1;
    }

    /// A request of this node is complete.
    pub(super) fn end(&mut self) {
        self.in_flight -= 1;
        self.settle();
    }

    /// At the end of a busy period everything that was served is in the past.
    pub(super) fn settle(&mut self) {
        if self.queued == 0 && self.in_flight == 0 {
            self.virtual_time = self.virtual_time.max(self.finish_max);
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.queued == 0 && self.in_flight == 0
    }
}
