//! Random requests on files with bytes in the backing store, against a plain map from file to
//! bytes: fills come late, or not at all, while files are truncated, punched, written and removed,
//! and the daemon is killed. And single cases.

use crate::LOCATE;
use crate::effect::{Answer, Effect, Input, Source, Validity};
use crate::space::tier::{Backing, Space};
use crate::target::{Settings, Target};
use crate::tests::pinned::Marks;
use crate::tiering::demote::DemotionSettings;
use acts::{FillAct, act};
use cleaning::Saved;
use clients::{by_clients, prefetch_file};
use dirty_ranges::SavedRange;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use wire::id::BACKED_FIRST;
use wire::reply::Extent;
use wire::request::prefetch;
use wire::{Errno, Inode, Layout, Request};

mod acts;
mod cases;
mod cleaning;
mod clients;
mod dirty_ranges;
mod jobs;
mod space;

const TIER_BYTES: u64 = 1 << 20;
const FILE_BYTES: u64 = 300 << 10;
const STRIPE_LOG2: u8 = 17;
const LAYOUT: Layout = Layout {
    spread: 0,
    pool: 0,
    placement: 0,
    copies: 0,
    stripe_log2: STRIPE_LOG2,
    flags: 0,
    place: 0,
};

/// Contents of a file in the backing store, byte by byte.
fn backing_byte(file: u64, at: u64) -> u8 {
    (at.wrapping_mul(7) >> 3).wrapping_add(file) as u8 | 1
}

/// An extent that is being filled.
#[derive(Clone, Copy, Debug)]
struct FillInFlight {
    ticket: u64,
    inode: Inode,
    extent: Extent,
    length: u64,
}

/// A copy in flight, and whether the extent was shown meanwhile.
#[derive(Clone, Copy, Debug)]
struct CopyInFlight {
    ticket: u64,
    from: Extent,
    to: Extent,
    was_shown: bool,
}

/// A target, its devices, and the clients that share them.
struct FillWorld {
    target: Target,
    settings: Settings,
    devices: [Vec<u8>; 2],
    table: BTreeMap<u32, (Inode, Extent)>,
    /// Hidden slots; true: hidden for eviction.
    hidden: BTreeMap<u32, bool>,
    /// Slots with the clean mark.
    clean: BTreeSet<u32>,
    marks: Marks,
    saved: Saved,
    /// Ranges of files in writeback.
    dirty_ranges: BTreeMap<Inode, SavedRange>,
    /// Extents under the hazard pointers of stopped clients.
    protected: BTreeMap<u32, Extent>,
    copies: Vec<CopyInFlight>,
    /// The daemon is killed after this many more effects.
    kill_at: Option<usize>,
    millis: u32,
    fills: Vec<FillInFlight>,
    end_queries: Vec<Inode>,
    /// The shard's answers: bytes of each file in the backing store.
    backed_ends: BTreeMap<Inode, u64>,
    /// Chooses which operation in flight completes next; one in `fails` fails.
    choice: u64,
    failing: u64,
    answers: BTreeMap<u64, (Answer, Vec<u8>)>,
    ticket: u64,
    /// Bytes filled from the backing store.
    filled_bytes: u64,
    /// Tickets of requests that began to wait for space.
    waits: Vec<u64>,
    /// How often others were asked for space.
    asked: usize,
}

impl FillWorld {
    fn new() -> FillWorld {
        FillWorld::with([TIER_BYTES, 0], DemotionSettings::NEVER)
    }

    fn with([memory, ssd]: [u64; 2], demotion: DemotionSettings) -> FillWorld {
        let space = |length| Space { length, backing: Backing::Ready, zeroed_from: 0, ahead: 0 };
        let settings = Settings {
            memory: space(memory),
            ssd: space(ssd),
            slot_count: 64,
            quota_bytes: u64::MAX,
            demotion,
        };
        let mut target = Target::new(settings);
        target.set_backing(false);
        FillWorld {
            target,
            settings,
            devices: [vec![0; memory as usize], vec![0; ssd as usize]],
            table: BTreeMap::new(),
            hidden: BTreeMap::new(),
            clean: BTreeSet::new(),
            marks: Marks::default(),
            saved: Saved::default(),
            dirty_ranges: BTreeMap::new(),
            protected: BTreeMap::new(),
            copies: Vec::new(),
            kill_at: None,
            millis: u32::MAX - 1000,
            fills: Vec::new(),
            end_queries: Vec::new(),
            backed_ends: BTreeMap::new(),
            choice: 0,
            failing: 0,
            answers: BTreeMap::new(),
            ticket: 0,
            filled_bytes: 0,
            waits: Vec::new(),
            asked: 0,
        }
    }

    fn part(&mut self, extent: &Extent, within: u64, length: u64) -> &mut [u8] {
        let from = (extent.location + within) as usize;
        &mut self.devices[usize::from(extent.tier)][from..from + length as usize]
    }

    fn shown(&self, extent: &Extent) {
        assert_eq!(self.table.get(&extent.slot).map(|row| row.1), Some(*extent), "not shown");
        assert!(!self.hidden.contains_key(&extent.slot), "used while it is hidden");
    }

    fn step(&mut self, input: Input<'_>, body: &[u8]) {
        let mut out = Vec::new();
        self.target.step(input, &mut out);
        self.perform(out, body);
    }

    fn perform(&mut self, out: Vec<Effect>, body: &[u8]) {
        let mut bytes = Vec::new();
        let (mut looks, mut end_queries, mut saved) = (Vec::new(), None, Vec::new());
        for effect in out {
            if let Some(bytes_left) = &mut self.kill_at {
                match bytes_left.checked_sub(1) {
                    Some(less) => *bytes_left = less,
                    None => return,
                }
            }
            match effect {
                Effect::CheckHazards { round } => looks.push(round),
                Effect::Wait { ticket } => self.waits.push(ticket),
                Effect::RequestSpace { round } => {
                    self.asked += 1;
                    end_queries = Some(round);
                }
                Effect::Zero { extent, within, length, .. } => {
                    self.shown(&extent);
                    self.changes(extent.slot);
                    self.part(&extent, within, length).fill(0);
                }
                Effect::Read { from: Source::Hole, length, .. } => {
                    bytes.resize(bytes.len() + length as usize, 0);
                }
                Effect::Read { from: Source::Extent { extent, within }, length, .. } => {
                    self.shown(&extent);
                    bytes.extend_from_slice(self.part(&extent, within, length.into()));
                }
                Effect::Write { extent, within, from, length, .. } => {
                    self.shown(&extent);
                    self.changes(extent.slot);
                    let body = &body[from as usize..(from + length) as usize];
                    self.part(&extent, within, length.into()).copy_from_slice(body);
                }
                Effect::LocateBacking { inode } => {
                    // Only repeated for a file that was removed meanwhile, whose number is not used
                    // again.
                    if !self.end_queries.contains(&inode) {
                        self.end_queries.push(inode);
                    }
                }
                Effect::Fill { ticket, inode, extent, length, .. } => {
                    assert!(length > 0 && length <= extent.length());
                    assert!(!self.table.contains_key(&extent.slot), "filled in the open");
                    self.fills.push(FillInFlight { ticket, inode, extent, length });
                }
                Effect::ReadBacking { ticket, inode, offset, length, backing, .. } => {
                    let location =
                        (0..u64::from(backing)).map(|at| self.backing_byte(inode, offset + at));
                    let mut bytes: Vec<u8> = location.collect();
                    bytes.resize(length as usize, 0);
                    self.answered(ticket, Answer::Bytes { length }, bytes);
                }
                Effect::Reply { ticket, answer } => {
                    self.answered(ticket, answer, core::mem::take(&mut bytes));
                }
                Effect::FinishCleaning { inode, extent } => {
                    self.end_cleaning(inode, extent, &mut saved)
                }
                effect => self.perform_on_table(effect),
            }
        }
        if !saved.is_empty() {
            self.step(Input::Cleaned { extents: &saved }, body);
        }
        looks.into_iter().for_each(|round| self.check_hazards(round, body));
        end_queries.into_iter().for_each(|round| self.request_space_line(round, body));
    }

    fn check_hazards(&mut self, round: u64, body: &[u8]) {
        // A changed extent counts as protected.
        let changed =
            self.hidden.iter().filter(|(slot, to_evict)| **to_evict && !self.clean.contains(slot));
        let mut protected: Vec<u32> = changed.map(|(&slot, _)| slot).collect();
        protected.extend(self.protected.keys());
        self.step(Input::Hazards { round, protected: &protected, reading: &[] }, body);
    }

    fn answered(&mut self, ticket: u64, answer: Answer, bytes: Vec<u8>) {
        if let Answer::Extents(extents) = &answer {
            extents.iter().for_each(|extent| self.shown(extent));
        }
        assert!(self.answers.insert(ticket, (answer, bytes)).is_none(), "answered twice");
    }

    fn perform_on_table(&mut self, effect: Effect) {
        match effect {
            Effect::Publish { inode, extent, valid } => self.publish(inode, extent, valid),
            Effect::Unpublish { slot } => {
                assert!(self.table.remove(&slot).is_some());
                self.hidden.remove(&slot);
            }
            Effect::Hide { slot } => {
                assert!(self.table.contains_key(&slot));
                assert!(self.hidden.insert(slot, false).is_none());
                Marks::check_hidden(&self.target, &self.table[&slot]);
            }
            Effect::HideToEvict { slot } => {
                assert!(self.is_evictable(self.table[&slot].0));
                assert!(self.hidden.insert(slot, true).is_none());
                assert!(!self.target.is_pinned(self.table[&slot].0), "a pinned file is evicted");
            }
            Effect::Show { slot } => {
                assert!(self.hidden.remove(&slot).is_some(), "it was not hidden");
                let of_it = self.copies.iter_mut().filter(|copy| copy.from.slot == slot);
                of_it.for_each(|copy| copy.was_shown = true);
            }
            Effect::Copy { ticket, from, to, .. } => {
                assert!(self.hidden.contains_key(&from.slot), "copied in the open");
                assert!(!self.protected.contains_key(&from.slot), "copied under a pin");
                self.copies.push(CopyInFlight { ticket, from, to, was_shown: false });
            }
            Effect::Mark { slot, is_pinned } => self.marks.set(slot, is_pinned),
            effect => self.perform_writeback(effect),
        }
    }

    fn publish(&mut self, inode: Inode, extent: Extent, valid: Validity) {
        self.changes(extent.slot);
        self.marks.set(extent.slot, self.target.is_pinned(inode));
        match valid {
            // Invalid pages read as zeros.
            Validity::Nothing => self.part(&extent, 0, extent.length()).fill(0),
            Validity::Backing | Validity::Fetched => drop(self.clean.insert(extent.slot)),
            Validity::As(from) if self.clean.contains(&from.slot) => {
                self.clean.insert(extent.slot);
            }
            _ => {}
        }
        assert!(!self.protected.contains_key(&extent.slot), "a protected slot was reused");
        assert!(self.table.insert(extent.slot, (inode, extent)).is_none());
        let shown = self.table.iter().filter(|(slot, _)| !self.hidden.contains_key(slot));
        let same = |row: &(Inode, Extent)| row.0 == inode && row.1.start == extent.start;
        assert_eq!(shown.filter(|(_, row)| same(row)).count(), 1, "a range is shown twice");
    }

    /// Completes an operation in flight; false if there is none. A write's bytes are given once
    /// more.
    fn come(&mut self, body: &[u8]) -> bool {
        self.choice =
            self.choice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let choice = (self.choice >> 33) as usize;
        let fails = self.failing > 0 && (choice as u64 / 64).is_multiple_of(self.failing);
        if choice.is_multiple_of(5) {
            self.answer_question(choice / 8, fails);
        }
        if !self.end_queries.is_empty() && (self.fills.is_empty() || choice.is_multiple_of(2)) {
            let inode = self.end_queries.swap_remove(choice / 2 % self.end_queries.len());
            let outcome = match fails {
                true => Err(Errno::EIO),
                false => Ok((self.backed_ends.get(&inode).copied().unwrap_or(0), LAYOUT)),
            };
            self.step(Input::BackingLocated { inode, outcome }, body);
            return true;
        }
        if !self.copies.is_empty() && (self.fills.is_empty() || choice.is_multiple_of(3)) {
            self.end_copy(choice / 8, fails, body);
            return true;
        }
        if self.fills.is_empty() {
            return self.answer_question(choice / 8, fails);
        }
        let filling = self.fills.swap_remove(choice / 2 % self.fills.len());
        self.fill(filling, fails, body);
        true
    }

    fn fill(&mut self, filling: FillInFlight, fails: bool, body: &[u8]) {
        let FillInFlight { ticket, inode, extent, length } = filling;
        let start = extent.start;
        assert!(!self.table.contains_key(&extent.slot));
        self.filled_bytes += length;
        let is_there = |at| at < length && !fails;
        let location = |at| if is_there(at) { self.backing_byte(inode, start + at) } else { 0 };
        let bytes: Vec<u8> = (0..extent.length()).map(location).collect();
        self.part(&extent, 0, extent.length()).copy_from_slice(&bytes);
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::Filled { ticket, outcome }, body);
    }

    /// A copy ends. If the extent was shown meanwhile, the copied bytes may be anything.
    fn end_copy(&mut self, which: usize, fails: bool, body: &[u8]) {
        let CopyInFlight { ticket, from, to, was_shown } =
            self.copies.swap_remove(which % self.copies.len());
        let bytes = self.part(&from, 0, from.length()).to_vec();
        let bytes = if was_shown { vec![0xcc; bytes.len()] } else { bytes };
        self.part(&to, 0, to.length()).copy_from_slice(&bytes);
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::Copied { ticket, outcome }, body);
    }

    /// The daemon looks for extents to evict and to demote, this many milliseconds later; set bits
    /// of `used` stand for slots that clients used.
    fn look(&mut self, millis: u32, used: u64, body: &[u8]) {
        self.millis = self.millis.wrapping_add(millis);
        self.answer_space_request(body);
        let mut was_used = |slot: u32| used >> (slot % 64) & 1 != 0;
        let clean = self.clean.clone();
        let is_clean = |slot: u32| clean.contains(&slot);
        let mut out = Vec::new();
        if self.target.wants_eviction() {
            self.target.evict_clean(self.millis, &mut was_used, &is_clean, &mut out);
        }
        self.perform(out, body);
        if self.kill_at != Some(0) && self.target.is_demoting() {
            let mut out = Vec::new();
            self.target.demote(self.millis, &mut was_used, &mut out);
            self.perform(out, body);
        }
        if self.kill_at != Some(0) && self.target.is_promoting() {
            let mut out = Vec::new();
            self.target.promote(self.millis, &mut was_used, &mut out);
            self.perform(out, body);
        }
        if self.kill_at != Some(0) && self.target.writers_waiting() > 0 {
            let mut out = Vec::new();
            self.target.tick_writers(self.millis, 10_000, &mut out);
            self.perform(out, body);
        }
    }

    fn send(&mut self, request: &Request<'_>) -> u64 {
        self.ticket += 1;
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        let (ticket, user) = (self.ticket, self.ticket as u32 % 3);
        // Readers of some jobs, which take turns.
        let job = match request {
            Request::Read { .. } => wire::JobWord { user, number: user, dirty_mib_max: 0 },
            _ => wire::JobWord::NONE,
        };
        self.step(Input::Request { ticket, request, job }, body);
        ticket
    }

    /// Sends a request until it has its final answer.
    fn call(&mut self, request: &Request<'_>) -> (Answer, Vec<u8>) {
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        for _ in 0..4000 {
            let ticket = self.send(request);
            let mut idle = 0;
            while !self.answers.contains_key(&ticket) {
                if !self.come(body) {
                    idle += 1;
                    assert!(idle < 1000, "nothing comes, and nobody is answered");
                    self.look(20, self.choice, body);
                }
            }
            let answer = self.answers.remove(&ticket).expect("an answer");
            if !matches!(answer.0, Answer::Busy { .. }) {
                return answer;
            }
            self.come(&[]);
            self.look(1, self.choice, &[]);
        }
        panic!("it comes again for ever")
    }

    /// True if an extent of zeros is here.
    fn is_zero(&mut self, inode: Inode, start: u64) -> bool {
        let mut entries = self.table.values();
        let row = entries.find(|(it, extent)| *it == inode && extent.start == start).copied();
        row.is_some_and(|(_, extent)| {
            self.part(&extent, 0, extent.length()).iter().all(|&byte| byte == 0)
        })
    }

    /// Stopped clients write on under their hazard pointers: this must do no harm.
    fn scribble(&mut self) {
        for extent in self.protected.clone().values() {
            let is_theirs = self.table.get(&extent.slot).is_some_and(|row| row.1 == *extent);
            if !is_theirs {
                self.part(extent, 0, extent.length()).fill(0xee);
            }
        }
    }

    /// Checks how far readers are; slots whose bits are set were used.
    fn advance_readahead(&mut self, millis: u32, used: u64) {
        self.millis = self.millis.wrapping_add(millis);
        let mut out = Vec::new();
        self.target.advance_readahead(
            self.millis,
            &mut |slot| used >> (slot % 64) & 1 != 0,
            &mut out,
        );
        self.perform(out, &[]);
    }

    fn prefetch_file(
        &mut self,
        file: u64,
        what: u8,
        (list, index, group): (u64, u64, u32),
    ) -> Answer {
        let (inode, layout) = (Inode(file), LAYOUT.word());
        let size = FILE_BYTES;
        let prefetch_file = Request::Prefetch { inode, what, layout, size, list, index, group };
        self.call(&prefetch_file).0
    }

    fn memory_used(&self) -> u64 {
        self.target.pool.memory().bytes_used()
    }

    fn ssd_used(&self) -> u64 {
        self.target.pool.ssd().bytes_used()
    }

    fn kill(&mut self) {
        for space in [&mut self.settings.memory, &mut self.settings.ssd] {
            space.zeroed_from = u64::MAX;
        }
        self.kill_at = None;
        let mut out = Vec::new();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            self.table.iter().partition(|(slot, _)| self.hidden.contains_key(slot));
        let entries = |entries: Vec<(&u32, &(Inode, Extent))>| -> Vec<(Inode, Extent)> {
            entries.into_iter().map(|(_, row)| *row).collect()
        };
        let (target, discarded) =
            Target::recover(self.settings, entries(shown), entries(hidden), &mut out);
        assert!(discarded.is_empty());
        let old = std::mem::replace(&mut self.target, target);
        self.marks.restore(&self.table, (&old, &mut self.target), &mut out);
        self.copies.clear();
        self.perform(out, &[]);
        assert!(self.hidden.is_empty(), "nobody would show them");
        let clean = self.clean.iter().filter_map(|slot| self.table.get(slot));
        self.target.restore_clean(clean.copied());
        let is_gone = |extent: &Extent| !self.table.contains_key(&extent.slot);
        self.target.restore_leaving(self.protected.values().copied().filter(is_gone));
        self.target.set_backing(true);
        self.saved.forget_questions();
        self.fills.clear();
        self.end_queries.clear();
    }
}

/// Contents of each file, up to its greatest length.
type FillFiles = BTreeMap<u64, Vec<u8>>;

fn grow(files: &mut FillFiles, file: u64, end: u64) -> &mut Vec<u8> {
    let bytes = files.entry(file).or_default();
    if bytes.len() < end as usize {
        bytes.resize(end as usize, 0);
    }
    bytes
}

/// A refusal has a valid reason: a fill failed, or there is no space, and only the file's own
/// extents could be evicted.
fn is_refused(world: &FillWorld, file: u64, answer: &Answer) -> bool {
    match answer {
        Answer::Refused(Errno::EIO) => world.failing > 0,
        Answer::Refused(Errno::ENOSPC) => {
            let others = world.clean.iter().filter(|slot| {
                let row = world.table.get(slot);
                let may_go = |inode| inode != Inode(file) && !world.target.is_pinned(inode);
                row.is_some_and(|row| may_go(row.0)) && !world.protected.contains_key(slot)
            });
            assert_eq!(others.count(), 0, "there could be space");
            true
        }
        _ => false,
    }
}

/// Found extents have the right bytes.
fn check_found(world: &mut FillWorld, files: &mut FillFiles, file: u64, extents: &[Extent]) {
    for extent in extents {
        let right = grow(files, file, extent.start + extent.length());
        let right = right[extent.start as usize..][..extent.length() as usize].to_vec();
        // Others may have moved it since the answer.
        if world.target.pool.slots().at(Inode(file), extent.start) == Some(*extent) {
            assert!(world.part(extent, 0, extent.length()) == right);
        }
    }
}

/// Another host reads an extent: it is here, or it is a hole.
fn locate(world: &mut FillWorld, files: &mut FillFiles, file: u64, offset: u64) {
    let span = placement::extent::at(offset, STRIPE_LOG2);
    let (inode, stripe_log2, allocate, preallocate) = (Inode(file), STRIPE_LOG2, LOCATE, 0);
    let (offset, length) = (span.start, span.length());
    let request = Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
    let (answer, _) = world.call(&request);
    let Answer::Extents(extents) = answer else {
        return assert!(is_refused(world, file, &answer), "{answer:?}");
    };
    check_found(world, files, file, &extents);
    let right = &grow(files, file, span.end())[offset as usize..][..length as usize];
    assert!(!extents.is_empty() || right.iter().all(|byte| *byte == 0), "no hole is there");
}

fn look(world: &mut FillWorld, files: &mut FillFiles, act: &FillAct) {
    let stripe_log2 = STRIPE_LOG2;
    match *act {
        FillAct::Read { file, offset, length } => {
            let length32 = length as u32;
            let request =
                Request::Read { inode: Inode(file), stripe_log2, offset, length: length32 };
            let (answer, bytes) = world.call(&request);
            let mut spans = placement::extent::over(offset, length, stripe_log2);
            if spans.nth(1).is_some() && is_refused(world, file, &answer) {
                // A read within one extent is served from the backing store.
                return;
            }
            if matches!(answer, Answer::Refused(Errno::EIO)) && is_refused(world, file, &answer) {
                return;
            }
            assert_eq!(answer, Answer::Bytes { length: length32 });
            let right = &grow(files, file, offset + length)[offset as usize..][..length as usize];
            let wrong = bytes.iter().zip(right).position(|(one, other)| one != other);
            assert_eq!((wrong, bytes.len()), (None, right.len()), "file {file:#x} at {offset}");
        }
        FillAct::Map { file, offset, allocate: 0, .. } if offset % 2 == 1 => {
            locate(world, files, file, offset);
        }
        FillAct::Map { file, offset, length, allocate } => {
            let inode = Inode(file);
            // Other files would get preallocated extents, which `model` tests.
            let ahead = if inode.is_backed() { 1 << 20 } else { 0 };
            let request = Request::MapExtents {
                inode,
                stripe_log2,
                allocate,
                offset,
                length,
                preallocate: ahead,
            };
            let (answer, _) = world.call(&request);
            let Answer::Extents(extents) = answer else {
                return assert!(is_refused(world, file, &answer), "{answer:?}");
            };
            check_found(world, files, file, &extents);
        }
        FillAct::Seek { file, offset } => {
            let request = Request::SeekData { inode: Inode(file), stripe_log2, offset };
            let (answer, _) = world.call(&request);
            let of_backed = Inode(file).is_backed();
            let of_backed = of_backed && !world.saved.backing.contains_key(&Inode(file));
            let counts =
                of_backed && world.backed_ends.get(&Inode(file)).is_some_and(|&end| offset < end);
            if counts && !is_refused(world, file, &answer) {
                assert_eq!(answer, Answer::Number(offset), "the backing store has data");
            }
        }
        _ => {}
    }
}

fn punch(world: &mut FillWorld, files: &mut FillFiles, file: u64, (offset, length): (u64, u64)) {
    let stripe_log2 = STRIPE_LOG2;
    let request = Request::Punch { inode: Inode(file), stripe_log2, offset, length };
    let (answer, _) = world.call(&request);
    let made = !is_refused(world, file, &answer);
    assert!(!made || answer == Answer::Done);
    let right = grow(files, file, offset + length);
    for span in placement::extent::over(offset, length, stripe_log2) {
        // A request that finds no space half-way has allocated some of it.
        let is_covered = offset <= span.start && span.end() <= offset + length;
        let zeroed = made || is_covered && world.is_zero(Inode(file), span.start);
        let part = offset.max(span.start)..(offset + length).min(span.end());
        if zeroed {
            right[part.start as usize..part.end as usize].fill(0);
        }
    }
}

fn perform(world: &mut FillWorld, files: &mut FillFiles, act: &FillAct) {
    let stripe_log2 = STRIPE_LOG2;
    if let FillAct::Write { file, .. }
    | FillAct::Truncate { file, .. }
    | FillAct::Punch { file, .. } = *act
    {
        // The shard knows that the file is open.
        world.saved.is_as_is.remove(&Inode(file));
    }
    match *act {
        FillAct::Read { .. } | FillAct::Map { .. } | FillAct::Seek { .. } => {
            look(world, files, act)
        }
        FillAct::Write { file, offset, length, with } => {
            let bytes: Vec<u8> = (0..length).map(|at| with.wrapping_add(at as u8)).collect();
            let (inode, truncate_epoch) = (Inode(file), u64::MAX);
            let write =
                Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes: &bytes };
            let (answer, _) = world.call(&write);
            if !is_refused(world, file, &answer) {
                assert_eq!(answer, Answer::Done);
                let right = grow(files, file, offset + length);
                right[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        FillAct::Truncate { file, size } => {
            // The shard knows it first, and earlier copies do not count.
            world.dirty_ranges.remove(&Inode(file));
            world.backed_ends.entry(Inode(file)).and_modify(|end| *end = size.min(*end));
            let (answer, _) =
                world.call(&Request::Truncate { inode: Inode(file), stripe_log2, size });
            assert_eq!(answer, Answer::Done);
            files.entry(file).or_default().truncate(size as usize);
        }
        FillAct::Punch { file, offset, length } => punch(world, files, file, (offset, length)),
        FillAct::Remove { file } => {
            let inodes = file.to_le_bytes();
            assert_eq!(world.call(&Request::Remove { inodes: &inodes }).0, Answer::Done);
            // Its number is not used again; here it is, for a file without backed bytes.
            world.backed_ends.remove(&Inode(file));
            world.saved.forget(Inode(file));
            world.dirty_ranges.remove(&Inode(file));
            files.remove(&file);
        }
        FillAct::WriteBack { file } => world.save(file, files),
        FillAct::RangeAct { file, ref part } => world.go_on_with_part(file, part, files),
        FillAct::Pin { file, pinned } => {
            world.ticket += 1;
            let (inode, changed) = (Inode(file), world.ticket);
            let own = Request::Own { inode, uid: 1, project: 0, changed, pinned };
            assert_eq!(world.call(&own).0, Answer::Done);
        }
        FillAct::Prefetch { file, what, list_index } => {
            prefetch_file(world, file, what, list_index)
        }
        FillAct::Readahead { millis, used } => world.advance_readahead(millis, used),
        FillAct::Come => drop(world.come(&[])),
        FillAct::Kill => world.kill(),
        _ => by_clients(world, files, act),
    }
}

/// The backing store has much more than the tiers can hold, and extents are demoted and evicted all
/// the time; or nearly all of it fits.
fn tiers() -> impl Strategy<Value = ([u64; 2], DemotionSettings)> {
    let demotion = |normal: u64, forced: u64| DemotionSettings {
        demote_low_watermark_bytes: normal << 10,
        demote_min_watermark_bytes: forced << 10,
        idle_millis: 30,
    };
    prop_oneof![
        2 => Just(([TIER_BYTES, 0], DemotionSettings::NEVER)),
        2 => Just(([256 << 10, 0], demotion(0, 32))),
        3 => Just(([256 << 10, 256 << 10], demotion(128, 32))),
        2 => Just(([256 << 10, 128 << 10], DemotionSettings::NEVER)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, files read as the plain map says, and in the end all space is free.
    #[test]
    fn backed_files_are_read_unchanged(
        tiers in tiers(),
        acts in proptest::collection::vec(act(), 1..80),
        failing in prop_oneof![2 => Just(0u64), 1 => 3u64..8],
        choice: u64,
    ) {
        let mut world = FillWorld::with(tiers.0, tiers.1);
        (world.failing, world.choice) = (failing, choice);
        let mut files = FillFiles::new();
        for (file, size) in [(1, 200_000), (2, 131_072), (3, 5)] {
            let file = BACKED_FIRST + file;
            world.backed_ends.insert(Inode(file), size);
            files.insert(file, (0..size).map(|at| backing_byte(file, at)).collect());
        }
        for act in &acts {
            perform(&mut world, &mut files, act);
            world.scribble();
            world.target.check_clean();
            world.target.check_moves();
            world.target.check_records();
            world.target.check_records();
        }
        world.failing = 0;
        world.protected.clear();
        while world.come(&[]) {}
        prop_assert!(world.target.fills_nothing());
        for (&file, right) in &files.clone() {
            let length = right.len() as u64;
            perform(&mut world, &mut files, &FillAct::Read { file, offset: 0, length });
        }
        // A refused request may have allocated some extents before.
        for file in [1, BACKED_FIRST + 1, BACKED_FIRST + 2, BACKED_FIRST + 3] {
            perform(&mut world, &mut files, &FillAct::Remove { file });
        }
        while world.come(&[]) {}
        world.step(Input::Tick, &[]);
        let total = world.settings.memory.length + world.settings.ssd.length;
        let free = world.target.pool.memory().bytes_free() + world.target.pool.ssd().bytes_free();
        prop_assert_eq!(free, total);
    }
}
