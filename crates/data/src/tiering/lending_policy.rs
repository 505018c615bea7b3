//! The policy that computes a daemon's allowance: how much memory of the node it may hold for files
//! (O8). `Target::lend` enforces it.
//!
//! The allowance is either fixed, or a share of the node's idle memory, which is the available
//! memory plus what the arena holds. The share bounds how much may be in use at once: a program
//! that takes all idle memory at full speed, A bytes per second, while used memory is given back at
//! G, finds only free memory if the used bytes are at most G/A of it. Free memory is given back
//! much faster than any program takes memory. So with a share of a half, of which demotion
//! (`demote`) keeps half free, a fourth of the idle memory must be moved, at a fourth of A.
//!
//! - It falls at once when less is idle, in step with the program that takes memory.
//! - It rises slowly, not while a program takes memory, and only to what was idle all through the
//!   last seconds: a program that takes and frees memory again and again finds it free, and nothing
//!   moves back and forth.
//! - When a process of the job stalls for memory (PSI), it falls by a fourth at each sample and
//!   does not rise for a while, whatever seems idle: available memory may be slow to reclaim.
//! - When hardly anything is available, everything that may be given back is.
//!
//! A core: no clock, no file. Time and readings are arguments.

use std::collections::VecDeque;

/// One part in this many of the idle memory may be held.
const SHARE_PARTS: u64 = 2;
/// When less than one part in this many of the node (or of the group's limit) is available, memory
/// is short: stalls of the whole node count then. Below half of that it is very short.
const SHORT_PARTS: u64 = 16;
/// The allowance rises only to what was idle for this time.
const CALM_MILLIS: u64 = 10_000;
/// Samples that are remembered for that.
const LOOKS_MAX: usize = 64;
/// A change of less than one part in this many of the idle memory is ignored, except a fall to the
/// minimum.
const BAND_PARTS: u64 = 64;
/// More than one part in this many of the time stalled is pressure.
const STALL_PARTS: u64 = 50;
/// Time between two falls caused by pressure.
const FALL_MILLIS: u64 = 100;
/// Bytes in a millisecond: faster than any program takes memory.
const BYTES_PER_MILLI: u64 = 10 << 20;
/// The next sample comes before one part in this many of the available memory can be taken at that
/// speed: this much is given back too late.
const LOOK_PARTS: u64 = 8;
/// Bounds of the time between two samples, and that time while nothing is held that could be given
/// back. A sample takes about 50 us.
const LOOK_MILLIS_MIN: u64 = 5;
/// See `LOOK_MILLIS_MIN`.
const LOOK_MILLIS_MAX: u64 = 250;
/// See `LOOK_MILLIS_MIN`.
const LOOK_MILLIS_EMPTY: u64 = 1000;
/// Allowances are multiples of this, because memory is held in huge pages.
const STEP_BYTES: u64 = 2 << 20;

/// The terms of lending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Terms {
    /// A fixed number of bytes.
    Fixed(u64),
    /// A share of the idle memory, within these bounds.
    Idle {
        /// Minimum allowance in bytes.
        least: u64,
        /// Maximum allowance in bytes.
        most: u64,
    },
}

/// Memory of the node or of a control group, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryState {
    /// The node's memory, or the group's limit.
    pub total: u64,
    /// Bytes that a program may take without harm.
    pub available: u64,
    /// Shared memory in it: the arena's bytes count here up to this, the rest is not the arena's.
    pub shared: u64,
}

/// Readings of one moment. `None`: the system does not provide it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Readings {
    /// The node's memory.
    pub node: Option<MemoryState>,
    /// The tightest control group of the daemon.
    pub group: Option<MemoryState>,
    /// Microseconds that processes of the node stalled for memory, since any fixed time in the
    /// past.
    pub node_stalled_micros: Option<u64>,
    /// The same for the group.
    pub group_stalled_micros: Option<u64>,
    /// Bytes that the arena holds.
    pub held: u64,
}

/// Why the allowance is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AllowanceReason {
    /// It was set by the user.
    Set = 0,
    /// The maximum is idle.
    Most = 1,
    /// A share of what the node leaves idle.
    Node = 2,
    /// A share of what the control group's limit leaves.
    Group = 3,
    /// Programs stalled for memory.
    Pressure = 4,
    /// Hardly any memory is available.
    Short = 5,
    /// It is unknown how much is idle.
    Unknown = 6,
}

impl AllowanceReason {
    const ALL: [AllowanceReason; 7] = [
        AllowanceReason::Set,
        AllowanceReason::Most,
        AllowanceReason::Node,
        AllowanceReason::Group,
        AllowanceReason::Pressure,
        AllowanceReason::Short,
        AllowanceReason::Unknown,
    ];

    /// The reason of a number.
    #[must_use]
    pub fn of(number: u8) -> Option<AllowanceReason> {
        AllowanceReason::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    /// One word for status output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            AllowanceReason::Set => "set",
            AllowanceReason::Most => "max",
            AllowanceReason::Node => "node",
            AllowanceReason::Group => "cgroup",
            AllowanceReason::Pressure => "pressure",
            AllowanceReason::Short => "available",
            AllowanceReason::Unknown => "unknown",
        }
    }
}

/// Result of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Bytes that the arena may hold.
    pub allowance: u64,
    /// Why it is this many.
    pub reason: AllowanceReason,
    /// When to sample again; `None`: no reading can change anything.
    pub look_in_millis: Option<u64>,
}

/// The controller of one daemon.
#[derive(Clone, Debug)]
pub struct LendingPolicy {
    terms: Terms,
    daemons: u64,
    allowance: u64,
    reason: AllowanceReason,
    /// Idle share at each sample that still counts: milliseconds and bytes.
    idle: VecDeque<(u64, u64)>,
    /// The last sample: its time, and the stalls of node and group.
    stalled: Option<(u64, Option<u64>, Option<u64>)>,
    fell_at: Option<u64>,
    begun_at: Option<u64>,
    /// The share at the last sample.
    share_before: Option<u64>,
}

/// A sample, evaluated for the allowance.
struct MemoryView {
    /// Bytes of the idle memory that may be held.
    share: u64,
    reason: AllowanceReason,
    /// Available bytes where memory is tightest.
    available: u64,
    is_short: bool,
    is_very_short: bool,
}

impl LendingPolicy {
    /// A policy for one of `daemons` daemons of a node, which share the idle memory.
    #[must_use]
    pub fn new(terms: Terms, daemons: u16) -> LendingPolicy {
        let allowance = match terms {
            Terms::Fixed(bytes) => bytes,
            Terms::Idle { least, .. } => least,
        };
        LendingPolicy {
            terms,
            daemons: u64::from(daemons.max(1)),
            allowance,
            reason: AllowanceReason::Set,
            idle: VecDeque::new(),
            stalled: None,
            fell_at: None,
            begun_at: None,
            share_before: None,
        }
    }

    /// Changes the terms.
    pub fn agree(&mut self, terms: Terms) {
        self.terms = terms;
        self.idle.clear();
        self.begun_at = None;
    }

    /// The terms of lending.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// Takes a sample at time `now`, in milliseconds since any fixed moment.
    pub fn look(&mut self, now: u64, readings: &Readings) -> Verdict {
        let (least, most) = match self.terms {
            Terms::Fixed(bytes) => {
                (self.allowance, self.reason) = (bytes, AllowanceReason::Set);
                return self.verdict(None);
            }
            Terms::Idle { least, most } => (least.min(most), most),
        };
        let Some(view) = self.view(readings) else {
            (self.allowance, self.reason) = (down(least), AllowanceReason::Unknown);
            return self.verdict(Some(LOOK_MILLIS_EMPTY));
        };
        self.allowance = self.allowance.max(down(least));
        let is_pressed = self.is_pressed(now, readings, view.is_short);
        let calm = self.lowest_idle(now, view.share);
        if view.is_very_short {
            self.lower(now, least, AllowanceReason::Short);
        } else if is_pressed {
            if self.fell_at.is_none_or(|at| now - at >= FALL_MILLIS) {
                // Of what is held: lowering an unused allowance would help nobody.
                let there = self.allowance.min(readings.held);
                self.lower(now, (there / 4 * 3).max(least), AllowanceReason::Pressure);
            }
        } else {
            self.adjust(now, (least, most), &view, calm);
        }
        // All that may be held may be held, and in use, by the next sample.
        if self.allowance.max(readings.held) <= down(least) {
            return self.verdict(Some(LOOK_MILLIS_EMPTY));
        }
        let soon = view.available / LOOK_PARTS / BYTES_PER_MILLI;
        self.verdict(Some(soon.clamp(LOOK_MILLIS_MIN, LOOK_MILLIS_MAX)))
    }

    /// Lowers the allowance to the present share, or raises it to the least share of the last
    /// seconds.
    fn adjust(
        &mut self,
        now: u64,
        (least, most): (u64, u64),
        view: &MemoryView,
        calm: Option<u64>,
    ) {
        let target_bytes = view.share.clamp(least, most);
        let band = (view.share / BAND_PARTS).min(self.allowance / 4);
        let reason = if view.share >= most { AllowanceReason::Most } else { view.reason };
        if target_bytes < self.allowance.saturating_sub(band) {
            return self.lower(now, target_bytes, reason);
        }
        let begun = *self.begun_at.get_or_insert(now);
        // The first time there is nothing to wait for: nothing was lent yet.
        let is_first = begun == now && self.fell_at.is_none();
        let has_rested = self.fell_at.is_none_or(|at| now - at >= CALM_MILLIS);
        // Not while a program takes memory: it would run into what is lent just now.
        let is_taken =
            self.share_before.is_some_and(|before| view.share < before - before / BAND_PARTS);
        self.share_before = Some(view.share);
        let may_promote = has_rested && !is_taken;
        let promotes_to = if is_first { Some(view.share) } else { calm.filter(|_| may_promote) };
        if let Some(to) = promotes_to.map(|share| share.clamp(least, most))
            && to > self.allowance.saturating_add(view.share / BAND_PARTS).min(most - 1)
        {
            self.allowance = down(to);
        }
        if self.allowance >= down(most) || has_rested {
            self.reason = reason;
        }
    }

    fn lower(&mut self, now: u64, to: u64, reason: AllowanceReason) {
        self.allowance = self.allowance.min(down(to));
        (self.reason, self.fell_at) = (reason, Some(now));
    }

    fn verdict(&self, look_in_millis: Option<u64>) -> Verdict {
        Verdict { allowance: self.allowance, reason: self.reason, look_in_millis }
    }

    fn view(&self, readings: &Readings) -> Option<MemoryView> {
        let scopes =
            [(readings.node, AllowanceReason::Node), (readings.group, AllowanceReason::Group)];
        let view = scopes.into_iter().filter_map(|(state, reason)| Some((state?, reason)));
        let view = view.map(|(MemoryState { total, available, shared }, reason)| {
            // The other daemons of the node see the same, and hold about as much.
            let idle = (available / self.daemons).saturating_add(readings.held.min(shared));
            let is_short = available < total / SHORT_PARTS;
            let is_very_short = available < total / (2 * SHORT_PARTS);
            MemoryView { share: idle / SHARE_PARTS, reason, available, is_short, is_very_short }
        });
        view.reduce(|one, other| {
            let (is_short, is_very_short) =
                (one.is_short || other.is_short, one.is_very_short || other.is_very_short);
            let tight = if other.share < one.share { other } else { one };
            MemoryView { is_short, is_very_short, ..tight }
        })
    }

    /// True if processes stalled for memory since the last sample. Stalls of the node may come from
    /// a group at its own limit, so they count only when the node itself is short.
    fn is_pressed(&mut self, now: u64, readings: &Readings, is_short: bool) -> bool {
        let (node, group) = (readings.node_stalled_micros, readings.group_stalled_micros);
        let Some((then, node_then, group_then)) = self.stalled.replace((now, node, group)) else {
            return false;
        };
        let limit = now.saturating_sub(then) * 1000 / STALL_PARTS;
        let is_beyond = |stalled: Option<u64>, before: Option<u64>| {
            let both = stalled.zip(before);
            both.is_some_and(|(stalled, before)| stalled.saturating_sub(before) > limit)
        };
        is_beyond(group, group_then) || is_short && is_beyond(node, node_then)
    }

    /// Records the present share; returns the least of the last seconds, once these have passed.
    fn lowest_idle(&mut self, now: u64, share: u64) -> Option<u64> {
        // One entry for each slice of the time, with its least share.
        let part = CALM_MILLIS / (LOOKS_MAX as u64 - 2);
        match self.idle.back_mut() {
            Some((at, least)) if now - *at < part => *least = (*least).min(share),
            _ => self.idle.push_back((now, share)),
        }
        while let Some(&(at, _)) = self.idle.get(1)
            && now - at >= CALM_MILLIS
        {
            self.idle.pop_front();
        }
        let is_whole = self.idle.front().is_some_and(|&(at, _)| now - at >= CALM_MILLIS);
        self.idle.iter().map(|&(_, share)| share).min().filter(|_| is_whole)
    }
}

/// Rounds down to whole huge pages.
const fn down(bytes: u64) -> u64 {
    bytes / STEP_BYTES * STEP_BYTES
}

#[cfg(test)]
mod tests;
