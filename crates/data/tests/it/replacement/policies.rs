//! The policies compared. Each sees all events, and uses what it can.

use data::tiering::clock::{ClockPolicy, Policy, VictimRule};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an idle extent was not in use, in milliseconds.
const IDLE_MILLIS: u32 = 50;
/// Reference bits that are read for one victim.
const LOOKS: u32 = 256;

/// A policy: it sees the events of extents, named by their slots, and of files, and chooses
/// victims.
pub(crate) trait TracedPolicy {
    fn made(&mut self, slot: u32, file: u32, now: u32);
    /// As `made`, for an extent that was promoted.
    fn promoted(&mut self, slot: u32, file: u32, now: u32) {
        self.made(slot, file, now);
    }
    /// True if a used extent may be promoted although another one is demoted for it.
    fn gives_way(&self, now: u32) -> bool {
        let _ = now;
        false
    }
    fn used(&mut self, slot: u32, now: u32) {
        let _ = (slot, now);
    }
    fn gone(&mut self, slot: u32);
    fn opened(&mut self, file: u32, now: u32) {
        let _ = (file, now);
    }
    fn closed(&mut self, file: u32, now: u32) {
        let _ = (file, now);
    }
    fn removed(&mut self, file: u32) {
        let _ = file;
    }
    /// A victim is forgotten.
    fn victim(
        &mut self,
        now: u32,
        out: VictimRule,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32>;
}

/// `ClockPolicy`, which sees only reference bits; optionally, extents of open files stay in a
/// normal out.
pub(crate) struct Marked {
    clock: ClockPolicy,
    spares_open: bool,
    open: BTreeSet<u32>,
    files: BTreeMap<u32, u32>,
}

impl Marked {
    pub(crate) fn new(spares_open: bool) -> Marked {
        let (open, files) = (BTreeSet::new(), BTreeMap::new());
        Marked { clock: ClockPolicy::new(IDLE_MILLIS), spares_open, open, files }
    }
}

impl TracedPolicy for Marked {
    fn made(&mut self, slot: u32, file: u32, now: u32) {
        self.files.insert(slot, file);
        self.clock.insert(slot, now);
    }

    fn promoted(&mut self, slot: u32, file: u32, now: u32) {
        self.files.insert(slot, file);
        self.clock.insert_hot(slot, now);
    }

    fn gives_way(&self, now: u32) -> bool {
        self.clock.has_idle(now)
    }

    fn gone(&mut self, slot: u32) {
        self.files.remove(&slot);
        self.clock.remove(slot);
    }

    fn opened(&mut self, file: u32, _: u32) {
        self.open.insert(file);
    }

    fn closed(&mut self, file: u32, _: u32) {
        self.open.remove(&file);
    }

    fn victim(
        &mut self,
        now: u32,
        out: VictimRule,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let Marked { clock, files, open, spares_open } = self;
        let spares = *spares_open && out == VictimRule::Normal;
        let mut is_spared = |slot: u32| {
            let is_used = was_used(slot);
            let is_open = files.get(&slot).is_some_and(|file| open.contains(file));
            is_used || spares && is_open
        };
        clock.victim(now, out, LOOKS, &mut is_spared)
    }
}

/// LRU: the least recently used extent is the victim.
#[derive(Default)]
pub(crate) struct Order {
    by_use: BTreeSet<(u64, u32)>,
    used: BTreeMap<u32, u64>,
    count: u64,
}

impl Order {
    fn touch(&mut self, slot: u32) {
        self.forget(slot);
        self.count += 1;
        self.used.insert(slot, self.count);
        self.by_use.insert((self.count, slot));
    }

    fn forget(&mut self, slot: u32) {
        if let Some(used) = self.used.remove(&slot) {
            self.by_use.remove(&(used, slot));
        }
    }
}

impl TracedPolicy for Order {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.touch(slot);
    }

    fn used(&mut self, slot: u32, _: u32) {
        self.touch(slot);
    }

    fn gone(&mut self, slot: u32) {
        self.forget(slot);
    }

    fn victim(&mut self, _: u32, _: VictimRule, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let (_, slot) = *self.by_use.first()?;
        self.forget(slot);
        Some(slot)
    }
}

/// LFU: the least often used extent is the victim, and of equal ones the least recently used.
#[derive(Default)]
pub(crate) struct Frequency {
    order: BTreeSet<(u64, u64, u32)>,
    accesses: BTreeMap<u32, (u64, u64)>,
    count: u64,
}

impl Frequency {
    fn touch(&mut self, slot: u32) {
        let accesses = self.forget(slot) + 1;
        self.count += 1;
        self.accesses.insert(slot, (accesses, self.count));
        self.order.insert((accesses, self.count, slot));
    }

    fn forget(&mut self, slot: u32) -> u64 {
        let Some((accesses, last)) = self.accesses.remove(&slot) else { return 0 };
        self.order.remove(&(accesses, last, slot));
        accesses
    }
}

impl TracedPolicy for Frequency {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.touch(slot);
    }

    fn used(&mut self, slot: u32, _: u32) {
        self.touch(slot);
    }

    fn gone(&mut self, slot: u32) {
        self.forget(slot);
    }

    fn victim(&mut self, _: u32, _: VictimRule, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let (_, _, slot) = *self.order.first()?;
        self.forget(slot);
        Some(slot)
    }
}

/// S3-FIFO: a small queue of a tenth for new extents, a main one for those that were used in it,
/// each in order of insertion. Slots are reused, so there is no queue of ghosts: an extent that is
/// promoted is new.
#[derive(Default)]
pub(crate) struct S3Fifo {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    accesses: BTreeMap<u32, u8>,
}

impl TracedPolicy for S3Fifo {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.small.push_back(slot);
        self.accesses.insert(slot, 0);
    }

    fn used(&mut self, slot: u32, _: u32) {
        if let Some(accesses) = self.accesses.get_mut(&slot) {
            *accesses = (*accesses + 1).min(3);
        }
    }

    fn gone(&mut self, slot: u32) {
        self.accesses.remove(&slot);
        self.small.retain(|&other| other != slot);
        self.main.retain(|&other| other != slot);
    }

    fn victim(&mut self, _: u32, _: VictimRule, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let all = self.small.len() + self.main.len();
        loop {
            let is_small = self.small.len() * 10 > all || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let slot = queue.pop_front()?;
            let accesses = self.accesses.get_mut(&slot)?;
            if *accesses == 0 {
                self.accesses.remove(&slot);
                return Some(slot);
            }
            *accesses = if is_small { 0 } else { *accesses - 1 };
            self.main.push_back(slot);
        }
    }
}

/// State of a file.
#[derive(Default)]
struct File {
    slots: BTreeSet<u32>,
    opens: u32,
    /// When it was last opened, or closed.
    since: u32,
    was_closed: bool,
    /// Times from close to open, and from open to close: sums and counts.
    closed: (u64, u64),
    open: (u64, u64),
    /// When its extents were last used, as a sequence number.
    used: u64,
}

/// ONFS (section 6): whole files, the closed ones by `Tclosed * (Tco / Toc)`; if memory is nearly
/// full the open ones, too, from the head of the order of their last use, weighted by `Tco / Toc`.
pub(crate) struct ByFiles {
    files: BTreeMap<u32, File>,
    of: BTreeMap<u32, u32>,
    count: u64,
    weighs: bool,
    /// The file being demoted: all of it, because a file moves as a whole.
    goes: Option<u32>,
}

impl ByFiles {
    pub(crate) fn new(weighs: bool) -> ByFiles {
        ByFiles { files: BTreeMap::new(), of: BTreeMap::new(), count: 0, weighs, goes: None }
    }

    /// Mean `Tco` by mean `Toc`; 1 while one of them is unknown.
    fn weight(&self, file: &File) -> f64 {
        let mean = |(sum, count): (u64, u64)| (sum.max(1) as f64) / count as f64;
        match (file.closed.1, file.open.1) {
            (0, _) | (_, 0) => 1.0,
            _ if self.weighs => mean(file.closed) / mean(file.open),
            _ => 1.0,
        }
    }

    fn coolness(&self, file: &File, now: u32, out: VictimRule) -> Option<(bool, f64)> {
        let is_closed = file.opens == 0;
        if file.slots.is_empty() || !is_closed && out == VictimRule::Normal {
            return None;
        }
        let idle = if is_closed {
            f64::from(now - file.since) + 1.0
        } else {
            (self.count - file.used) as f64 + 1.0
        };
        // Closed files are gone before an open one goes.
        Some((is_closed, idle * self.weight(file)))
    }
}

impl TracedPolicy for ByFiles {
    fn made(&mut self, slot: u32, file: u32, now: u32) {
        self.of.insert(slot, file);
        self.files.entry(file).or_default().slots.insert(slot);
        self.used(slot, now);
    }

    fn used(&mut self, slot: u32, _: u32) {
        self.count += 1;
        if let Some(file) = self.of.get(&slot).and_then(|file| self.files.get_mut(file)) {
            file.used = self.count;
        }
    }

    fn gone(&mut self, slot: u32) {
        if let Some(file) = self.of.remove(&slot).and_then(|file| self.files.get_mut(&file)) {
            file.slots.remove(&slot);
        }
    }

    fn opened(&mut self, file: u32, now: u32) {
        let file = self.files.entry(file).or_default();
        if file.opens == 0 {
            if file.was_closed {
                file.closed.0 += u64::from(now - file.since);
                file.closed.1 += 1;
            }
            file.since = now;
        }
        file.opens += 1;
    }

    fn closed(&mut self, file: u32, now: u32) {
        let file = self.files.entry(file).or_default();
        file.opens = file.opens.saturating_sub(1);
        if file.opens == 0 {
            file.open.0 += u64::from(now - file.since);
            file.open.1 += 1;
            (file.since, file.was_closed) = (now, true);
        }
    }

    fn removed(&mut self, file: u32) {
        self.files.remove(&file);
    }

    fn victim(&mut self, now: u32, out: VictimRule, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let going = self.goes.and_then(|file| self.files.get_mut(&file));
        if let Some(slot) =
            going.filter(|file| file.opens == 0).and_then(|file| file.slots.pop_first())
        {
            self.of.remove(&slot);
            return Some(slot);
        }
        let cool = |file: &File| self.coolness(file, now, out);
        let all = self.files.iter().filter_map(|(&id, file)| Some((cool(file)?, id)));
        let coolest =
            all.max_by(|(one, _), (other, _)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        self.goes = coolest.map(|(_, id)| id);
        let file = self.files.get_mut(&self.goes?)?;
        let slot = file.slots.pop_first()?;
        self.of.remove(&slot);
        Some(slot)
    }
}
