//! How much memory of a node a daemon may hold for files (O8): the allowance, which `Target::lend` keeps.
//!
//! It is either set, or it follows what the node leaves idle. Then it is a share of the idle memory,
//! which
//! is what is available and what the arena holds. The share says how much may be in use at once: a
//! program
//! that takes all that is idle at full speed, A bytes a second, while used memory is given back at G,
//! meets
//! nothing but free memory if used bytes are at most G/A of it. What is free is given back much faster
//! than
//! any program takes memory; so with a share of a half, and half of that kept free by sinking (`sink`), a
//! fourth of what is idle is to be moved, at a fourth of A.
//!
//! - It falls at once when less is idle, in step with whoever takes it.
//! - It rises slowly, not while somebody takes memory, and only to what was idle all through the last
//!   seconds: who takes and frees memory again and again finds it free, and nothing moves to and fro.
//! - Where memory stalls somebody of the job (PSI), it falls by a fourth at each look and does not rise
//!   for a while, whatever seems idle: what is available may be slow to have.
//! - When hardly anything is available, all that may be given back is.
//!
//! A core: no clock, no file. Time and readings come in.

use std::collections::VecDeque;

/// Of idle memory one part in so many may be held.
const SHARE_PARTS: u64 = 2;
/// When less than one part in so many of the node (or of the group's limit) is available, it is short:
/// stalls of the whole node count then, and half of that is too little.
const SHORT_PARTS: u64 = 16;
/// It rises only to what was idle for so long.
const CALM_MILLIS: u64 = 10_000;
/// Looks that are remembered for that.
const LOOKS_MAX: usize = 64;
/// A change of less than one part in so many of what is idle is left alone, but for a fall to the least.
const BAND_PARTS: u64 = 64;
/// One part in so many of the time stalled is pressure.
const STALL_PARTS: u64 = 50;
/// Between two falls by pressure.
const FALL_MILLIS: u64 = 100;
/// Faster than any program takes memory: bytes in a millisecond.
const BYTES_PER_MILLI: u64 = 10 << 20;
/// The next look comes before one part in so many of what is available can be gone at that speed: so much
/// is given back too late.
const LOOK_PARTS: u64 = 8;
/// Bounds of the time between two looks, and the time while nothing may be held that is given back. A
/// look takes some 50 us.
const LOOK_MILLIS_MIN: u64 = 5;
/// See `LOOK_MILLIS_MIN`.
const LOOK_MILLIS_MAX: u64 = 250;
/// See `LOOK_MILLIS_MIN`.
const LOOK_MILLIS_EMPTY: u64 = 1000;
/// Allowances are multiples of this: memory is held in huge pages.
const STEP_BYTES: u64 = 2 << 20;

/// What was agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Terms {
    /// So many bytes, whatever is idle.
    Fixed(u64),
    /// What is idle allows, within these bounds.
    Idle {
        /// Always allowed.
        least: u64,
        /// Never more.
        most: u64,
    },
}

/// Memory somewhere: of the node, or of a control group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// All of it: the node's, or the group's limit.
    pub total: u64,
    /// What a program may take without harm.
    pub available: u64,
    /// Shared memory in it: what is in the arena counts here up to this, the rest is somebody else's.
    pub shared: u64,
}

/// What was seen at one moment. What the system does not tell is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Readings {
    /// Of the node.
    pub node: Option<Room>,
    /// Of the tightest control group that the daemon is in.
    pub group: Option<Room>,
    /// Microseconds that somebody of the node stalled for memory, since any time in the past.
    pub node_stalled_micros: Option<u64>,
    /// The same of the group.
    pub group_stalled_micros: Option<u64>,
    /// Bytes that the arena holds.
    pub held: u64,
}

/// Why the allowance is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// It was set.
    Set = 0,
    /// As much as was agreed on is idle.
    Most = 1,
    /// A share of what the node leaves idle.
    Node = 2,
    /// A share of what the control group's limit leaves.
    Group = 3,
    /// Programs stalled for memory.
    Pressure = 4,
    /// Hardly any memory is available.
    Short = 5,
    /// Nobody knows what is idle.
    Unknown = 6,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::Set,
        Reason::Most,
        Reason::Node,
        Reason::Group,
        Reason::Pressure,
        Reason::Short,
        Reason::Unknown,
    ];

    /// The reason of a number.
    #[must_use]
    pub fn of(number: u8) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    /// For people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Set => "set",
            Reason::Most => "most",
            Reason::Node => "node",
            Reason::Group => "cgroup",
            Reason::Pressure => "pressure",
            Reason::Short => "short",
            Reason::Unknown => "unknown",
        }
    }
}

/// What comes of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Bytes that the arena may hold.
    pub allowance: u64,
    /// Why.
    pub reason: Reason,
    /// When to look again; `None`: nothing that may come changes anything.
    pub look_in_millis: Option<u64>,
}

/// The controller of one daemon.
#[derive(Clone, Debug)]
pub struct Lending {
    terms: Terms,
    daemons: u64,
    allowance: u64,
    reason: Reason,
    /// What was idle at each look that counts yet: milliseconds and bytes.
    idle: VecDeque<(u64, u64)>,
    /// The looks before: time and stalls of node and group.
    stalled: Option<(u64, Option<u64>, Option<u64>)>,
    fell_at: Option<u64>,
    begun_at: Option<u64>,
    /// The share of the look before.
    share_before: Option<u64>,
}

/// What one look sees.
struct Seen {
    /// What may be held of what is idle.
    share: u64,
    reason: Reason,
    /// All that is available where it is tightest.
    available: u64,
    is_short: bool,
    is_very_short: bool,
}

impl Lending {
    /// For one of `daemons` of a node, which share what is idle.
    #[must_use]
    pub fn new(terms: Terms, daemons: u16) -> Lending {
        let allowance = match terms {
            Terms::Fixed(bytes) => bytes,
            Terms::Idle { least, .. } => least,
        };
        Lending {
            terms,
            daemons: u64::from(daemons.max(1)),
            allowance,
            reason: Reason::Set,
            idle: VecDeque::new(),
            stalled: None,
            fell_at: None,
            begun_at: None,
            share_before: None,
        }
    }

    /// Other terms from now on.
    pub fn agree(&mut self, terms: Terms) {
        self.terms = terms;
        self.idle.clear();
        self.begun_at = None;
    }

    /// What was agreed on.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// Looks at what was seen at a time, in milliseconds since any moment.
    pub fn look(&mut self, now: u64, readings: &Readings) -> Verdict {
        let (least, most) = match self.terms {
            Terms::Fixed(bytes) => {
                (self.allowance, self.reason) = (bytes, Reason::Set);
                return self.verdict(None);
            }
            Terms::Idle { least, most } => (least.min(most), most),
        };
        let Some(seen) = self.see(readings) else {
            (self.allowance, self.reason) = (down(least), Reason::Unknown);
            return self.verdict(Some(LOOK_MILLIS_EMPTY));
        };
        self.allowance = self.allowance.max(down(least));
        let is_pressed = self.is_pressed(now, readings, seen.is_short);
        let calm = self.lowest_idle(now, seen.share);
        if seen.is_very_short {
            self.fall(now, least, Reason::Short);
        } else if is_pressed {
            if self.fell_at.is_none_or(|at| now - at >= FALL_MILLIS) {
                // Of what is there: an allowance that nobody uses helps nobody.
                let there = self.allowance.min(readings.held);
                self.fall(now, (there / 4 * 3).max(least), Reason::Pressure);
            }
        } else {
            self.follow(now, (least, most), &seen, calm);
        }
        // What may be held may be by the next look, and be in use.
        if self.allowance.max(readings.held) <= down(least) {
            return self.verdict(Some(LOOK_MILLIS_EMPTY));
        }
        let soon = seen.available / LOOK_PARTS / BYTES_PER_MILLI;
        self.verdict(Some(soon.clamp(LOOK_MILLIS_MIN, LOOK_MILLIS_MAX)))
    }

    /// Falls to the share of now, rises to the least share of the last seconds.
    fn follow(&mut self, now: u64, (least, most): (u64, u64), seen: &Seen, calm: Option<u64>) {
        let wanted = seen.share.clamp(least, most);
        let band = (seen.share / BAND_PARTS).min(self.allowance / 4);
        let reason = if seen.share >= most { Reason::Most } else { seen.reason };
        if wanted < self.allowance.saturating_sub(band) {
            return self.fall(now, wanted, reason);
        }
        let begun = *self.begun_at.get_or_insert(now);
        // The first time nobody has to be waited for: nothing was lent yet.
        let is_first = begun == now && self.fell_at.is_none();
        let has_rested = self.fell_at.is_none_or(|at| now - at >= CALM_MILLIS);
        // Not while somebody takes memory, who would meet what is lent just now.
        let is_taken =
            self.share_before.is_some_and(|before| seen.share < before - before / BAND_PARTS);
        self.share_before = Some(seen.share);
        let may_rise = has_rested && !is_taken;
        let rises_to = if is_first { Some(seen.share) } else { calm.filter(|_| may_rise) };
        if let Some(to) = rises_to.map(|share| share.clamp(least, most))
            && to > self.allowance.saturating_add(seen.share / BAND_PARTS).min(most - 1)
        {
            self.allowance = down(to);
        }
        if self.allowance >= down(most) || has_rested {
            self.reason = reason;
        }
    }

    fn fall(&mut self, now: u64, to: u64, reason: Reason) {
        self.allowance = self.allowance.min(down(to));
        (self.reason, self.fell_at) = (reason, Some(now));
    }

    fn verdict(&self, look_in_millis: Option<u64>) -> Verdict {
        Verdict { allowance: self.allowance, reason: self.reason, look_in_millis }
    }

    fn see(&self, readings: &Readings) -> Option<Seen> {
        let rooms = [(readings.node, Reason::Node), (readings.group, Reason::Group)];
        let seen = rooms.into_iter().filter_map(|(room, reason)| Some((room?, reason)));
        let seen = seen.map(|(Room { total, available, shared }, reason)| {
            // The other daemons of the node see the same, and hold about as much.
            let idle = (available / self.daemons).saturating_add(readings.held.min(shared));
            let is_short = available < total / SHORT_PARTS;
            let is_very_short = available < total / (2 * SHORT_PARTS);
            Seen { share: idle / SHARE_PARTS, reason, available, is_short, is_very_short }
        });
        seen.reduce(|one, other| {
            let (is_short, is_very_short) =
                (one.is_short || other.is_short, one.is_very_short || other.is_very_short);
            let tight = if other.share < one.share { other } else { one };
            Seen { is_short, is_very_short, ..tight }
        })
    }

    /// Did somebody stall for memory since the last look? The node's stalls may be of a group that is at
    /// its own limit, so they count only where the node is short itself.
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

    /// Notes what may be held now; the least of the last seconds, once they are over.
    fn lowest_idle(&mut self, now: u64, share: u64) -> Option<u64> {
        // One entry for each part of the time, the least of it.
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

/// Down to what can be held in huge pages.
const fn down(bytes: u64) -> u64 {
    bytes / STEP_BYTES * STEP_BYTES
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;
