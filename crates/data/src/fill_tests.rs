//! Random requests for files that lie below, against a plain map from file to bytes: pieces come late, or
//! not at all, while files are cut, punched, written, removed, and the daemon is killed. And some cases.

use crate::effect::{Answer, Defined, Effect, Input, Source};
use crate::resident_tests::Marks;
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use crate::tier::{Backing, Space};
use clients::{by_clients, wish};
use parts::{Part, PartSaved, part};
use proptest::prelude::*;
use saving::Saved;
use std::collections::{BTreeMap, BTreeSet};
use wire::id::BELOW_FIRST;
use wire::reply::Piece;
use wire::request::rise;
use wire::{Errno, Inode, Layout, Request};

mod cases;
mod clients;
mod parts;
mod room;
mod saving;

const TIER_BYTES: u64 = 1 << 20;
const FILE_BYTES: u64 = 300 << 10;
const CHUNK_LOG2: u8 = 17;
const LAYOUT: Layout =
    Layout { spread: 0, placement: 0, chunk_log2: CHUNK_LOG2, flags: 0, place: 0 };

/// What lies below of a file, byte by byte.
fn byte_below(file: u64, at: u64) -> u8 {
    (at.wrapping_mul(7) >> 3).wrapping_add(file) as u8 | 1
}

/// A piece that is being filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    ticket: u64,
    inode: Inode,
    piece: Piece,
    length: u64,
}

/// A copy of a piece under way, and whether the piece was shown meanwhile.
#[derive(Clone, Copy, Debug)]
struct Copying {
    ticket: u64,
    from: Piece,
    to: Piece,
    was_shown: bool,
}

/// A target, its devices, and the clients that share them.
struct World {
    target: Target,
    settings: Settings,
    devices: [Vec<u8>; 2],
    table: BTreeMap<u32, (Inode, Piece)>,
    /// Slots that are hidden; true: to be dropped.
    hidden: BTreeMap<u32, bool>,
    /// Slots with the mark.
    clean: BTreeSet<u32>,
    marks: Marks,
    saved: Saved,
    /// Parts of files that are being saved.
    parts: BTreeMap<Inode, PartSaved>,
    /// Pieces under the pins of stopped clients.
    pinned: BTreeMap<u32, Piece>,
    copies: Vec<Copying>,
    /// The daemon is killed after so many effects more.
    kill_at: Option<usize>,
    millis: u32,
    fills: Vec<Filling>,
    asked: Vec<Inode>,
    /// What the shard says.
    ends: BTreeMap<Inode, u64>,
    /// Which of what is under way comes next, and one of so many fails.
    choice: u64,
    failing: u64,
    answers: BTreeMap<u64, (Answer, Vec<u8>)>,
    ticket: u64,
    /// Bytes that come from below.
    filled_bytes: u64,
}

impl World {
    fn new() -> World {
        World::with([TIER_BYTES, 0], Sinking::NEVER)
    }

    fn with([memory, ssd]: [u64; 2], sinking: Sinking) -> World {
        let space = |length| Space { length, backing: Backing::Ready, fresh_from: 0, ahead: 0 };
        let settings = Settings {
            memory: space(memory),
            ssd: space(ssd),
            slot_count: 64,
            quota_bytes: u64::MAX,
            sinking,
        };
        let mut target = Target::new(settings);
        target.set_backing(false);
        World {
            target,
            settings,
            devices: [vec![0; memory as usize], vec![0; ssd as usize]],
            table: BTreeMap::new(),
            hidden: BTreeMap::new(),
            clean: BTreeSet::new(),
            marks: Marks::default(),
            saved: Saved::default(),
            parts: BTreeMap::new(),
            pinned: BTreeMap::new(),
            copies: Vec::new(),
            kill_at: None,
            millis: u32::MAX - 1000,
            fills: Vec::new(),
            asked: Vec::new(),
            ends: BTreeMap::new(),
            choice: 0,
            failing: 0,
            answers: BTreeMap::new(),
            ticket: 0,
            filled_bytes: 0,
        }
    }

    fn part(&mut self, piece: &Piece, within: u64, length: u64) -> &mut [u8] {
        let from = (piece.place + within) as usize;
        &mut self.devices[usize::from(piece.tier)][from..from + length as usize]
    }

    fn shown(&self, piece: &Piece) {
        assert_eq!(self.table.get(&piece.slot).map(|row| row.1), Some(*piece), "not shown");
        assert!(!self.hidden.contains_key(&piece.slot), "used while it is hidden");
    }

    fn step(&mut self, input: Input<'_>, body: &[u8]) {
        let mut out = Vec::new();
        self.target.step(input, &mut out);
        self.perform(out, body);
    }

    fn perform(&mut self, out: Vec<Effect>, body: &[u8]) {
        let mut bytes = Vec::new();
        let (mut looks, mut asked, mut saved) = (Vec::new(), None, Vec::new());
        for effect in out {
            if let Some(left) = &mut self.kill_at {
                match left.checked_sub(1) {
                    Some(less) => *left = less,
                    None => return,
                }
            }
            match effect {
                Effect::CheckPins { round } => looks.push(round),
                Effect::Wait { .. } => {}
                Effect::AskForRoom { round } => asked = Some(round),
                Effect::Zero { piece, within, length, .. } => {
                    self.shown(&piece);
                    self.changes(piece.slot);
                    self.part(&piece, within, length).fill(0);
                }
                Effect::Read { from: Source::Hole, length, .. } => {
                    bytes.resize(bytes.len() + length as usize, 0);
                }
                Effect::Read { from: Source::Piece { piece, within }, length, .. } => {
                    self.shown(&piece);
                    bytes.extend_from_slice(self.part(&piece, within, length.into()));
                }
                Effect::Write { piece, within, from, length, .. } => {
                    self.shown(&piece);
                    self.changes(piece.slot);
                    let body = &body[from as usize..(from + length) as usize];
                    self.part(&piece, within, length.into()).copy_from_slice(body);
                }
                Effect::Below { inode } => {
                    // Again only of a file that was removed meanwhile, whose number is not used again.
                    if !self.asked.contains(&inode) {
                        self.asked.push(inode);
                    }
                }
                Effect::Fill { ticket, inode, piece, length, .. } => {
                    assert!(length > 0 && length <= piece.length());
                    assert!(!self.table.contains_key(&piece.slot), "filled in the open");
                    self.fills.push(Filling { ticket, inode, piece, length });
                }
                Effect::ReadBelow { ticket, inode, offset, length, below } => {
                    let lies = (0..u64::from(below)).map(|at| self.byte_below(inode, offset + at));
                    let mut bytes: Vec<u8> = lies.collect();
                    bytes.resize(length as usize, 0);
                    self.answered(ticket, Answer::Bytes { length }, bytes);
                }
                Effect::Reply { ticket, answer } => {
                    self.answered(ticket, answer, core::mem::take(&mut bytes));
                }
                Effect::EndSaving { inode, piece } => self.end_saving(inode, piece, &mut saved),
                effect => self.perform_on_table(effect),
            }
        }
        if !saved.is_empty() {
            self.step(Input::Saved { pieces: &saved }, body);
        }
        looks.into_iter().for_each(|round| self.look_at_pins(round, body));
        if let Some(round) = asked {
            self.ask_about_room(round, body);
        }
    }

    fn look_at_pins(&mut self, round: u64, body: &[u8]) {
        // What was changed counts as pinned.
        let changed =
            self.hidden.iter().filter(|(slot, to_drop)| **to_drop && !self.clean.contains(slot));
        let mut pinned: Vec<u32> = changed.map(|(&slot, _)| slot).collect();
        pinned.extend(self.pinned.keys());
        self.step(Input::Pins { round, pinned: &pinned }, body);
    }

    fn answered(&mut self, ticket: u64, answer: Answer, bytes: Vec<u8>) {
        if let Answer::Pieces(pieces) = &answer {
            pieces.iter().for_each(|piece| self.shown(piece));
        }
        assert!(self.answers.insert(ticket, (answer, bytes)).is_none(), "answered twice");
    }

    fn perform_on_table(&mut self, effect: Effect) {
        match effect {
            Effect::Publish { inode, piece, defined } => self.publish(inode, piece, defined),
            Effect::Unpublish { slot } => {
                assert!(self.table.remove(&slot).is_some());
                self.hidden.remove(&slot);
            }
            Effect::Hide { slot } => {
                assert!(self.table.contains_key(&slot));
                assert!(self.hidden.insert(slot, false).is_none());
                Marks::check_hidden(&self.target, &self.table[&slot]);
            }
            Effect::HideToDrop { slot } => {
                assert!(self.may_be_dropped(self.table[&slot].0));
                assert!(self.hidden.insert(slot, true).is_none());
                assert!(!self.target.is_resident(self.table[&slot].0), "it is dropped");
            }
            Effect::Show { slot } => {
                assert!(self.hidden.remove(&slot).is_some(), "it was not hidden");
                let of_it = self.copies.iter_mut().filter(|copy| copy.from.slot == slot);
                of_it.for_each(|copy| copy.was_shown = true);
            }
            Effect::Copy { ticket, from, to } => {
                assert!(self.hidden.contains_key(&from.slot), "copied in the open");
                assert!(!self.pinned.contains_key(&from.slot), "copied under a pin");
                self.copies.push(Copying { ticket, from, to, was_shown: false });
            }
            Effect::Mark { slot, is_resident } => self.marks.set(slot, is_resident),
            effect => self.perform_saving(effect),
        }
    }

    fn publish(&mut self, inode: Inode, piece: Piece, defined: Defined) {
        self.changes(piece.slot);
        self.marks.set(piece.slot, self.target.is_resident(inode));
        match defined {
            // As granules that are not defined are read.
            Defined::Nothing => self.part(&piece, 0, piece.length()).fill(0),
            Defined::Below => drop(self.clean.insert(piece.slot)),
            Defined::As(from) if self.clean.contains(&from.slot) => {
                self.clean.insert(piece.slot);
            }
            _ => {}
        }
        assert!(!self.pinned.contains_key(&piece.slot), "a pinned slot was re-used");
        assert!(self.table.insert(piece.slot, (inode, piece)).is_none());
        let shown = self.table.iter().filter(|(slot, _)| !self.hidden.contains_key(slot));
        let same = |row: &(Inode, Piece)| row.0 == inode && row.1.start == piece.start;
        assert_eq!(shown.filter(|(_, row)| same(row)).count(), 1, "a range is shown twice");
    }

    /// Something that is under way comes; false if nothing is. A write's bytes are given once more.
    fn come(&mut self, body: &[u8]) -> bool {
        self.choice =
            self.choice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let choice = (self.choice >> 33) as usize;
        let fails = self.failing > 0 && (choice as u64 / 64).is_multiple_of(self.failing);
        if choice.is_multiple_of(5) {
            self.answer_question(choice / 8, fails);
        }
        if !self.asked.is_empty() && (self.fills.is_empty() || choice.is_multiple_of(2)) {
            let inode = self.asked.swap_remove(choice / 2 % self.asked.len());
            let outcome = match fails {
                true => Err(Errno::EIO),
                false => Ok((self.ends.get(&inode).copied().unwrap_or(0), LAYOUT)),
            };
            self.step(Input::Below { inode, outcome }, body);
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

    fn fill(&mut self, filling: Filling, fails: bool, body: &[u8]) {
        let Filling { ticket, inode, piece, length } = filling;
        let start = piece.start;
        assert!(!self.table.contains_key(&piece.slot));
        self.filled_bytes += length;
        let is_there = |at| at < length && !fails;
        let lies = |at| if is_there(at) { self.byte_below(inode, start + at) } else { 0 };
        let bytes: Vec<u8> = (0..piece.length()).map(lies).collect();
        self.part(&piece, 0, piece.length()).copy_from_slice(&bytes);
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::Filled { ticket, outcome }, body);
    }

    /// A copy ends. One of a piece that was shown meanwhile may have brought anything.
    fn end_copy(&mut self, which: usize, fails: bool, body: &[u8]) {
        let Copying { ticket, from, to, was_shown } =
            self.copies.swap_remove(which % self.copies.len());
        let bytes = self.part(&from, 0, from.length()).to_vec();
        let bytes = if was_shown { vec![0xcc; bytes.len()] } else { bytes };
        self.part(&to, 0, to.length()).copy_from_slice(&bytes);
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::Copied { ticket, outcome }, body);
    }

    /// The daemon looks for what to drop and to sink, so many milliseconds later; those bits of `used`
    /// that are set stand for slots that clients used.
    fn look(&mut self, millis: u32, used: u64, body: &[u8]) {
        self.millis = self.millis.wrapping_add(millis);
        self.answer_about_room(body);
        let mut was_used = |slot: u32| used >> (slot % 64) & 1 != 0;
        let clean = self.clean.clone();
        let is_clean = |slot: u32| clean.contains(&slot);
        let mut out = Vec::new();
        if self.target.wants_drops() {
            self.target.drop_clean(self.millis, &mut was_used, &is_clean, &mut out);
        }
        self.perform(out, body);
        if self.kill_at != Some(0) && self.target.is_sinking() {
            let mut out = Vec::new();
            self.target.sink(self.millis, &mut was_used, &mut out);
            self.perform(out, body);
        }
        if self.kill_at != Some(0) && self.target.is_rising() {
            let mut out = Vec::new();
            self.target.rise(self.millis, &mut was_used, &mut out);
            self.perform(out, body);
        }
        if self.kill_at != Some(0) && self.target.writers_waiting() > 0 {
            let mut out = Vec::new();
            self.target.keep_writers(self.millis, 10_000, &mut out);
            self.perform(out, body);
        }
    }

    fn send(&mut self, request: &Request<'_>) -> u64 {
        self.ticket += 1;
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        self.step(Input::Request { ticket: self.ticket, request }, body);
        self.ticket
    }

    /// A request and its answer, however often it is to come again.
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

    /// Is a piece there that holds nothing but zeros?
    fn is_zero(&mut self, inode: Inode, start: u64) -> bool {
        let mut rows = self.table.values();
        let row = rows.find(|(it, piece)| *it == inode && piece.start == start).copied();
        row.is_some_and(|(_, piece)| {
            self.part(&piece, 0, piece.length()).iter().all(|&byte| byte == 0)
        })
    }

    /// Stopped clients write on under their pins: this must hurt nobody.
    fn scribble(&mut self) {
        for piece in self.pinned.clone().values() {
            let is_theirs = self.table.get(&piece.slot).is_some_and(|row| row.1 == *piece);
            if !is_theirs {
                self.part(piece, 0, piece.length()).fill(0xee);
            }
        }
    }

    /// Looks how far readers are; those slots were used whose bits are set.
    fn look_ahead(&mut self, millis: u32, used: u64) {
        self.millis = self.millis.wrapping_add(millis);
        let mut out = Vec::new();
        self.target.look_ahead(self.millis, &mut |slot| used >> (slot % 64) & 1 != 0, &mut out);
        self.perform(out, &[]);
    }

    fn wish(&mut self, file: u64, what: u8, (list, index, group): (u64, u64, u32)) -> Answer {
        let (inode, layout) = (Inode(file), LAYOUT.word());
        let size = FILE_BYTES;
        let wish = Request::Rise { inode, what, layout, size, list, index, group };
        self.call(&wish).0
    }

    fn memory_used(&self) -> u64 {
        self.target.memory.bytes_used()
    }

    fn ssd_used(&self) -> u64 {
        self.target.ssd.bytes_used()
    }

    fn kill(&mut self) {
        for space in [&mut self.settings.memory, &mut self.settings.ssd] {
            space.fresh_from = u64::MAX;
        }
        self.kill_at = None;
        let mut out = Vec::new();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            self.table.iter().partition(|(slot, _)| self.hidden.contains_key(slot));
        let rows = |rows: Vec<(&u32, &(Inode, Piece))>| -> Vec<(Inode, Piece)> {
            rows.into_iter().map(|(_, row)| *row).collect()
        };
        let (target, dropped) = Target::recover(self.settings, rows(shown), rows(hidden), &mut out);
        assert!(dropped.is_empty());
        let old = std::mem::replace(&mut self.target, target);
        self.marks.restore(&self.table, (&old, &mut self.target), &mut out);
        self.copies.clear();
        self.perform(out, &[]);
        assert!(self.hidden.is_empty(), "nobody would show them");
        let clean = self.clean.iter().filter_map(|slot| self.table.get(slot));
        self.target.restore_clean(clean.copied());
        let is_gone = |piece: &Piece| !self.table.contains_key(&piece.slot);
        self.target.restore_leaving(self.pinned.values().copied().filter(is_gone));
        self.target.set_backing(true);
        self.saved.forget_questions();
        self.fills.clear();
        self.asked.clear();
    }
}

#[derive(Clone, Debug)]
enum Act {
    Read {
        file: u64,
        offset: u64,
        length: u64,
    },
    Map {
        file: u64,
        offset: u64,
        length: u64,
        allocate: u8,
    },
    Write {
        file: u64,
        offset: u64,
        length: u64,
        with: u8,
    },
    Truncate {
        file: u64,
        size: u64,
    },
    Punch {
        file: u64,
        offset: u64,
        length: u64,
    },
    Seek {
        file: u64,
        offset: u64,
    },
    Remove {
        file: u64,
    },
    /// The writer saves it.
    Save {
        file: u64,
    },
    /// The writer goes on with its draft.
    Part {
        file: u64,
        part: Part,
    },
    Stay {
        file: u64,
        resident: u8,
    },
    Wish {
        file: u64,
        what: u8,
        place: (u64, u64, u32),
    },
    LookAhead {
        millis: u32,
        used: u64,
    },
    Come,
    Kill,
    /// A client writes where it finds a piece, and tells nobody.
    Scribble {
        file: u64,
        offset: u64,
        with: u8,
    },
    /// A stopped client keeps a pin on whatever slot `slot` is.
    Pin {
        slot: u32,
    },
    Unpin,
    Look {
        millis: u32,
        used: u64,
        kill_at: Option<usize>,
    },
}

/// Mostly none; else after so many effects.
fn kill_at() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![4 => Just(None), 1 => (0usize..8).prop_map(Some)]
}

fn act() -> impl Strategy<Value = Act> {
    let file = || prop_oneof![1u64..2, BELOW_FIRST + 1..BELOW_FIRST + 4];
    let offset = || 0..FILE_BYTES;
    let length = || prop_oneof![0u64..10_000, 0..FILE_BYTES / 2];
    prop_oneof![
        5 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| Act::Read { file, offset, length }),
        3 => (file(), offset(), length(), 0u8..2).prop_map(
            |(file, offset, length, allocate)| Act::Map { file, offset, length, allocate }),
        5 => (file(), offset(), length(), 1u8..=255).prop_map(
            |(file, offset, length, with)| Act::Write { file, offset, length, with }),
        2 => (file(), offset()).prop_map(|(file, size)| Act::Truncate { file, size }),
        2 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| Act::Punch { file, offset, length }),
        1 => (file(), offset()).prop_map(|(file, offset)| Act::Seek { file, offset }),
        1 => file().prop_map(|file| Act::Remove { file }),
        5 => file().prop_map(|file| Act::Save { file }),
        12 => (file(), part()).prop_map(|(file, part)| Act::Part { file, part }),
        2 => (file(), 0u8..2).prop_map(|(file, resident)| Act::Stay { file, resident }),
        4 => (file(), 0u8..5, (0u64..3, 0u64..6, 1u32..3)).prop_map(
            |(file, what, place)| Act::Wish { file, what, place }),
        4 => (0u32..100, any::<u64>()).prop_map(
            |(millis, used)| Act::LookAhead { millis, used }),
        4 => Just(Act::Come),
        1 => Just(Act::Kill),
        6 => (file(), offset(), 1u8..=255).prop_map(
            |(file, offset, with)| Act::Scribble { file, offset, with }),
        1 => (0u32..40).prop_map(|slot| Act::Pin { slot }),
        1 => Just(Act::Unpin),
        6 => (0u32..40, any::<u64>(), kill_at()).prop_map(
            |(millis, used, kill_at)| Act::Look { millis, used, kill_at }),
    ]
}

/// What each file is, as far as it was ever long.
type Files = BTreeMap<u64, Vec<u8>>;

fn grow(files: &mut Files, file: u64, end: u64) -> &mut Vec<u8> {
    let bytes = files.entry(file).or_default();
    if bytes.len() < end as usize {
        bytes.resize(end as usize, 0);
    }
    bytes
}

/// Refused for a reason that there is: bytes that did not come, or no room, and nothing that could be
/// dropped but what the file itself has.
fn is_refused(world: &World, file: u64, answer: &Answer) -> bool {
    match answer {
        Answer::Refused(Errno::EIO) => world.failing > 0,
        Answer::Refused(Errno::ENOSPC) => {
            let others = world.clean.iter().filter(|slot| {
                let row = world.table.get(slot);
                let may_go = |inode| inode != Inode(file) && !world.target.is_resident(inode);
                row.is_some_and(|row| may_go(row.0)) && !world.pinned.contains_key(slot)
            });
            assert_eq!(others.count(), 0, "there could be room");
            true
        }
        _ => false,
    }
}

fn look(world: &mut World, files: &mut Files, act: &Act) {
    let chunk_log2 = CHUNK_LOG2;
    match *act {
        Act::Read { file, offset, length } => {
            let length32 = length as u32;
            let request =
                Request::Read { inode: Inode(file), chunk_log2, offset, length: length32 };
            let (answer, bytes) = world.call(&request);
            let mut spans = placement::piece::over(offset, length, chunk_log2);
            if spans.nth(1).is_some() && is_refused(world, file, &answer) {
                // Of one piece he is given what lies below.
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
        Act::Map { file, offset, length, allocate } => {
            let inode = Inode(file);
            // What is not from below would get early pieces, which `model_tests` looks at.
            let ahead = if inode.is_from_below() { 1 << 20 } else { 0 };
            let request = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
            let (answer, _) = world.call(&request);
            let Answer::Pieces(pieces) = answer else {
                return assert!(is_refused(world, file, &answer), "{answer:?}");
            };
            for piece in pieces {
                let right = grow(files, file, piece.start + piece.length());
                let right = right[piece.start as usize..][..piece.length() as usize].to_vec();
                // Others may have moved it since he was answered.
                if world.target.slots.at(inode, piece.start) == Some(piece) {
                    assert!(world.part(&piece, 0, piece.length()) == right);
                }
            }
        }
        Act::Seek { file, offset } => {
            let request = Request::SeekData { inode: Inode(file), chunk_log2, offset };
            let (answer, _) = world.call(&request);
            let of_below = Inode(file).is_from_below();
            let of_below = of_below && !world.saved.below.contains_key(&Inode(file));
            let counts = of_below && world.ends.get(&Inode(file)).is_some_and(|&end| offset < end);
            if counts && !is_refused(world, file, &answer) {
                assert_eq!(answer, Answer::Number(offset), "there is data below");
            }
        }
        _ => {}
    }
}

fn perform(world: &mut World, files: &mut Files, act: &Act) {
    let chunk_log2 = CHUNK_LOG2;
    if let Act::Write { file, .. } | Act::Truncate { file, .. } | Act::Punch { file, .. } = *act {
        // The shard knows that somebody has it open.
        world.saved.is_as_is.remove(&Inode(file));
    }
    match *act {
        Act::Read { .. } | Act::Map { .. } | Act::Seek { .. } => look(world, files, act),
        Act::Write { file, offset, length, with } => {
            let bytes: Vec<u8> = (0..length).map(|at| with.wrapping_add(at as u8)).collect();
            let (inode, cuts) = (Inode(file), u64::MAX);
            let write = Request::Write { inode, chunk_log2, offset, cuts, bytes: &bytes };
            let (answer, _) = world.call(&write);
            if !is_refused(world, file, &answer) {
                assert_eq!(answer, Answer::Done);
                let right = grow(files, file, offset + length);
                right[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Act::Truncate { file, size } => {
            // The shard knows it first, and what was copied before does not count.
            world.parts.remove(&Inode(file));
            world.ends.entry(Inode(file)).and_modify(|end| *end = size.min(*end));
            let (answer, _) =
                world.call(&Request::Truncate { inode: Inode(file), chunk_log2, size });
            assert_eq!(answer, Answer::Done);
            files.entry(file).or_default().truncate(size as usize);
        }
        Act::Punch { file, offset, length } => {
            let request = Request::Punch { inode: Inode(file), chunk_log2, offset, length };
            let (answer, _) = world.call(&request);
            let made = !is_refused(world, file, &answer);
            assert!(!made || answer == Answer::Done);
            let right = grow(files, file, offset + length);
            let spans = placement::piece::over(offset, length, chunk_log2);
            for span in spans {
                // Who finds no room on the way has made some of it.
                let is_covered = offset <= span.start && span.end() <= offset + length;
                let zeroed = made || is_covered && world.is_zero(Inode(file), span.start);
                let part = offset.max(span.start)..(offset + length).min(span.end());
                if zeroed {
                    right[part.start as usize..part.end as usize].fill(0);
                }
            }
        }
        Act::Remove { file } => {
            let inodes = file.to_le_bytes();
            assert_eq!(world.call(&Request::Remove { inodes: &inodes }).0, Answer::Done);
            // Its number is not used again; here it is, for a file with nothing below.
            world.ends.remove(&Inode(file));
            world.saved.forget(Inode(file));
            world.parts.remove(&Inode(file));
            files.remove(&file);
        }
        Act::Save { file } => world.save(file, files),
        Act::Part { file, ref part } => world.go_on_with_part(file, part, files),
        Act::Stay { file, resident } => {
            world.ticket += 1;
            let (inode, changed) = (Inode(file), world.ticket);
            let own = Request::Own { inode, uid: 1, project: 0, changed, resident };
            assert_eq!(world.call(&own).0, Answer::Done);
        }
        Act::Wish { file, what, place } => wish(world, file, what, place),
        Act::LookAhead { millis, used } => world.look_ahead(millis, used),
        Act::Come => drop(world.come(&[])),
        Act::Kill => world.kill(),
        _ => by_clients(world, files, act),
    }
}

/// Much more lies below than the tiers hold, and pieces sink and are dropped all the time; or nearly all
/// of it has room.
fn tiers() -> impl Strategy<Value = ([u64; 2], Sinking)> {
    let sinking = |normal: u64, forced: u64| Sinking {
        normal_below_bytes: normal << 10,
        forced_below_bytes: forced << 10,
        idle_millis: 30,
    };
    prop_oneof![
        2 => Just(([TIER_BYTES, 0], Sinking::NEVER)),
        2 => Just(([256 << 10, 0], sinking(0, 32))),
        3 => Just(([256 << 10, 256 << 10], sinking(128, 32))),
        2 => Just(([256 << 10, 128 << 10], Sinking::NEVER)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, files read as the plain map says, and in the end all space is free.
    #[test]
    fn what_lies_below_is_read_as_it_lies_there(
        tiers in tiers(),
        acts in proptest::collection::vec(act(), 1..80),
        failing in prop_oneof![2 => Just(0u64), 1 => 3u64..8],
        choice: u64,
    ) {
        let mut world = World::with(tiers.0, tiers.1);
        (world.failing, world.choice) = (failing, choice);
        let mut files = Files::new();
        for (file, size) in [(1, 200_000), (2, 131_072), (3, 5)] {
            let file = BELOW_FIRST + file;
            world.ends.insert(Inode(file), size);
            files.insert(file, (0..size).map(|at| byte_below(file, at)).collect());
        }
        for act in &acts {
            perform(&mut world, &mut files, act);
            world.scribble();
            world.target.check_clean();
            world.target.check_moves();
            world.target.check_rising();
            world.target.check_residents();
        }
        world.failing = 0;
        world.pinned.clear();
        while world.come(&[]) {}
        prop_assert!(world.target.fills_nothing());
        for (&file, right) in &files.clone() {
            let length = right.len() as u64;
            perform(&mut world, &mut files, &Act::Read { file, offset: 0, length });
        }
        // Who was refused may have made some pieces before.
        for file in [1, BELOW_FIRST + 1, BELOW_FIRST + 2, BELOW_FIRST + 3] {
            perform(&mut world, &mut files, &Act::Remove { file });
        }
        while world.come(&[]) {}
        world.step(Input::Tick, &[]);
        let total = world.settings.memory.length + world.settings.ssd.length;
        let free = world.target.memory.bytes_free() + world.target.ssd.bytes_free();
        prop_assert_eq!(free, total);
    }
}
