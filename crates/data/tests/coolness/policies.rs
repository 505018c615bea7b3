//! What is compared. Each is told of everything that happens, and makes of it what it can.

use data::coolness::{Out, Policy, Waves};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a piece was not in use that is idle.
const IDLE_MILLIS: u32 = 50;
/// Marks that are looked at for one victim.
const LOOKS: u32 = 256;

/// Is told what happens to pieces, named by their slots, and to files; chooses what goes.
pub(crate) trait Teller {
    fn made(&mut self, slot: u32, file: u32, now: u32);
    /// As `made`, of a piece that came back because it was used.
    fn risen(&mut self, slot: u32, file: u32, now: u32) {
        self.made(slot, file, now);
    }
    /// True if what is used below may come up although something goes for it.
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
    /// What goes is known no more.
    fn victim(&mut self, now: u32, out: Out, was_used: &mut dyn FnMut(u32) -> bool) -> Option<u32>;
}

/// `Waves`, which sees marks alone; if wanted, pieces of open files stay in a normal out.
pub(crate) struct Marked {
    waves: Waves,
    spares_open: bool,
    open: BTreeSet<u32>,
    files: BTreeMap<u32, u32>,
}

impl Marked {
    pub(crate) fn new(spares_open: bool) -> Marked {
        let (open, files) = (BTreeSet::new(), BTreeMap::new());
        Marked { waves: Waves::new(IDLE_MILLIS), spares_open, open, files }
    }
}

impl Teller for Marked {
    fn made(&mut self, slot: u32, file: u32, now: u32) {
        self.files.insert(slot, file);
        self.waves.insert(slot, now);
    }

    fn risen(&mut self, slot: u32, file: u32, now: u32) {
        self.files.insert(slot, file);
        self.waves.insert_proven(slot, now);
    }

    fn gives_way(&self, now: u32) -> bool {
        self.waves.has_idle(now)
    }

    fn gone(&mut self, slot: u32) {
        self.files.remove(&slot);
        self.waves.remove(slot);
    }

    fn opened(&mut self, file: u32, _: u32) {
        self.open.insert(file);
    }

    fn closed(&mut self, file: u32, _: u32) {
        self.open.remove(&file);
    }

    fn victim(&mut self, now: u32, out: Out, was_used: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let Marked { waves, files, open, spares_open } = self;
        let spares = *spares_open && out == Out::Normal;
        let mut is_kept = |slot: u32| {
            let is_used = was_used(slot);
            let is_open = files.get(&slot).is_some_and(|file| open.contains(file));
            is_used || spares && is_open
        };
        waves.victim(now, out, LOOKS, &mut is_kept)
    }
}

/// LRU: what was used longest ago goes.
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

impl Teller for Order {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.touch(slot);
    }

    fn used(&mut self, slot: u32, _: u32) {
        self.touch(slot);
    }

    fn gone(&mut self, slot: u32) {
        self.forget(slot);
    }

    fn victim(&mut self, _: u32, _: Out, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let (_, slot) = *self.by_use.first()?;
        self.forget(slot);
        Some(slot)
    }
}

/// LFU: what was used least often goes, of those what was used longest ago.
#[derive(Default)]
pub(crate) struct Frequency {
    order: BTreeSet<(u64, u64, u32)>,
    uses: BTreeMap<u32, (u64, u64)>,
    count: u64,
}

impl Frequency {
    fn touch(&mut self, slot: u32) {
        let uses = self.forget(slot) + 1;
        self.count += 1;
        self.uses.insert(slot, (uses, self.count));
        self.order.insert((uses, self.count, slot));
    }

    fn forget(&mut self, slot: u32) -> u64 {
        let Some((uses, last)) = self.uses.remove(&slot) else { return 0 };
        self.order.remove(&(uses, last, slot));
        uses
    }
}

impl Teller for Frequency {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.touch(slot);
    }

    fn used(&mut self, slot: u32, _: u32) {
        self.touch(slot);
    }

    fn gone(&mut self, slot: u32) {
        self.forget(slot);
    }

    fn victim(&mut self, _: u32, _: Out, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let (_, _, slot) = *self.order.first()?;
        self.forget(slot);
        Some(slot)
    }
}

/// S3-FIFO: a small queue of a tenth for what is new, a main one for what was used in it, each in the
/// order in which pieces came. Slots of pieces that are gone are used for others, so there is no queue
/// of ghosts: a piece that comes back is new.
#[derive(Default)]
pub(crate) struct S3Fifo {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    uses: BTreeMap<u32, u8>,
}

impl Teller for S3Fifo {
    fn made(&mut self, slot: u32, _: u32, _: u32) {
        self.small.push_back(slot);
        self.uses.insert(slot, 0);
    }

    fn used(&mut self, slot: u32, _: u32) {
        if let Some(uses) = self.uses.get_mut(&slot) {
            *uses = (*uses + 1).min(3);
        }
    }

    fn gone(&mut self, slot: u32) {
        self.uses.remove(&slot);
        self.small.retain(|&other| other != slot);
        self.main.retain(|&other| other != slot);
    }

    fn victim(&mut self, _: u32, _: Out, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let all = self.small.len() + self.main.len();
        loop {
            let is_small = self.small.len() * 10 > all || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let slot = queue.pop_front()?;
            let uses = self.uses.get_mut(&slot)?;
            if *uses == 0 {
                self.uses.remove(&slot);
                return Some(slot);
            }
            *uses = if is_small { 0 } else { *uses - 1 };
            self.main.push_back(slot);
        }
    }
}

/// What is known of a file.
#[derive(Default)]
struct File {
    slots: BTreeSet<u32>,
    opens: u32,
    /// When it was opened, or closed, last.
    since: u32,
    was_closed: bool,
    /// Of the times from close to open, and from open to close: sums and counts.
    closed: (u64, u64),
    open: (u64, u64),
    /// When its pieces were used last, as a number of the order.
    used: u64,
}

/// ONFS (section 6): whole files, the closed ones by `Tclosed * (Tco / Toc)`; if memory is nearly full
/// the open ones, too, from the head of the order of their last use, weighed by `Tco / Toc`.
pub(crate) struct ByFiles {
    files: BTreeMap<u32, File>,
    of: BTreeMap<u32, u32>,
    count: u64,
    weighs: bool,
    /// The file that goes: all of it, as a file moves as a whole.
    goes: Option<u32>,
}

impl ByFiles {
    pub(crate) fn new(weighs: bool) -> ByFiles {
        ByFiles { files: BTreeMap::new(), of: BTreeMap::new(), count: 0, weighs, goes: None }
    }

    /// Mean `Tco` by mean `Toc`; 1 while one of them is not known.
    fn weight(&self, file: &File) -> f64 {
        let mean = |(sum, count): (u64, u64)| (sum.max(1) as f64) / count as f64;
        match (file.closed.1, file.open.1) {
            (0, _) | (_, 0) => 1.0,
            _ if self.weighs => mean(file.closed) / mean(file.open),
            _ => 1.0,
        }
    }

    fn coolness(&self, file: &File, now: u32, out: Out) -> Option<(bool, f64)> {
        let is_closed = file.opens == 0;
        if file.slots.is_empty() || !is_closed && out == Out::Normal {
            return None;
        }
        let idle = if is_closed {
            f64::from(now - file.since) + 1.0
        } else {
            (self.count - file.used) as f64 + 1.0
        };
        // Closed ones are to be gone before an open one goes.
        Some((is_closed, idle * self.weight(file)))
    }
}

impl Teller for ByFiles {
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

    fn victim(&mut self, now: u32, out: Out, _: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
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
