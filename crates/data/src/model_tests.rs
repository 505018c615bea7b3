//! Random requests against a plain map from file to bytes, with devices in memory, clients that
//! keep pins and scribble as long as they may, devices that refuse, pieces that sink and rise page by
//! page, memory that is wanted back, requests that wait, and kills, also in the middle of each step of a
//! move. `crashes` kills in the middle of every step in turn.

use crate::buddy::BLOCK_LOG2_MIN;
use crate::effect::{Answer, Defined, Effect, Input, Source};
use crate::resident_tests::Marks;
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use crate::tier::{Backing, Space};
use copies::Copying;
use crashes::{Asking, Seen};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use waiting::{IMPATIENT, Waiting};
use wire::quota::Account;
use wire::reply::Piece;
use wire::request::chunk_log2_of;
use wire::{Errno, Inode, Request};

mod abroad;
mod copies;
mod crashes;
mod early;
mod kills;
mod lent;
mod owners;
mod waiting;

const TIER_BYTES: u64 = 512 << 10;
const FILE_BYTES: u64 = 384 << 10;
const PAGE: u64 = 4096;
const CHUNK_LOG2: u8 = 17;

/// What each file holds.
type Files = BTreeMap<u64, Vec<u8>>;

#[derive(Clone, Debug)]
enum Act {
    Write {
        file: u64,
        offset: u64,
        length: u64,
        with: u8,
    },
    Read {
        file: u64,
        offset: u64,
        length: u64,
    },
    Map {
        file: u64,
        offset: u64,
        length: u64,
        ahead: u64,
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
    /// Of several files at once; one may be named twice, or hold nothing.
    Remove {
        files: Vec<u64>,
    },
    /// A stopped client keeps a pin on whatever slot `slot` is, from now on.
    Pin {
        slot: u32,
    },
    Unpin,
    Tick,
    Kill,
    /// The daemon looks for what to sink, or to rise, so many milliseconds later; those bits of `used`
    /// that are set
    /// stand for slots that clients used.
    Look {
        up: bool,
        millis: u32,
        used: u64,
        kill_at: Option<usize>,
    },
    /// Some pages more of a copy.
    CopyGoesOn {
        which: usize,
        pages: usize,
    },
    /// A copy ends, the device may refuse.
    CopyEnds {
        which: usize,
        fails: bool,
        kill_at: Option<usize>,
    },
    /// Memory is lent, or wanted back.
    Lend {
        bytes: u64,
        kill_at: Option<usize>,
    },
    /// A block was given back, the system may refuse.
    GiveBackEnds {
        which: usize,
        fails: bool,
    },
    /// The file may come to be.
    MakeEarly {
        file: u64,
    },
    /// A client writes to the file if it finds an early piece, the last or else the first, and tells
    /// nobody.
    WriteEarly {
        file: u64,
        last: bool,
        length: u64,
        with: u8,
    },
    /// The daemon looks at the early pieces.
    LookAtEarly,
    /// Usage is counted from now on.
    Count,
    /// A client waits for room.
    Want {
        file: u64,
        offset: u64,
        length: u64,
    },
    /// Others say whether they have something to give back.
    RoomAsked {
        comes: bool,
    },
    /// A file is another user's, the limited one's is 1; and stays in memory, or not.
    Own {
        file: u64,
        uid: u32,
        resident: bool,
    },
}

/// Mostly none; else after so many effects.
fn kill_at() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![6 => Just(None), 1 => (0usize..6).prop_map(Some)]
}

fn act() -> impl Strategy<Value = Act> {
    let file = || 1u64..5;
    let offset = || 0..FILE_BYTES;
    let length = || prop_oneof![0..3 * PAGE, 0..FILE_BYTES / 2];
    prop_oneof![
        6 => (file(), offset(), length(), 1u8..=255).prop_map(
            |(file, offset, length, with)| Act::Write { file, offset, length, with }),
        4 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| Act::Read { file, offset, length }),
        3 => (file(), offset(), length(), length()).prop_map(
            |(file, offset, length, ahead)| Act::Map { file, offset, length, ahead }),
        2 => (file(), offset()).prop_map(|(file, size)| Act::Truncate { file, size }),
        2 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| Act::Punch { file, offset, length }),
        2 => proptest::collection::vec(file(), 1..4).prop_map(|files| Act::Remove { files }),
        2 => (0u32..40).prop_map(|slot| Act::Pin { slot }),
        1 => Just(Act::Unpin),
        2 => Just(Act::Tick),
        1 => Just(Act::Kill),
        6 => (0u32..40, any::<u64>(), kill_at()).prop_map(
            |(millis, used, kill_at)| Act::Look { up: false, millis, used, kill_at }),
        // Used in most laps.
        6 => (60u32..200, any::<[u64; 2]>(), kill_at()).prop_map(
            |(millis, [a, b], kill_at)| Act::Look { up: true, millis, used: a | b, kill_at }),
        6 => (0usize..8, 1usize..16).prop_map(
            |(which, pages)| Act::CopyGoesOn { which, pages }),
        6 => (0usize..8, proptest::bool::weighted(0.1), kill_at()).prop_map(
            |(which, fails, kill_at)| Act::CopyEnds { which, fails, kill_at }),
        4 => (prop_oneof![0..TIER_BYTES + PAGE, Just(TIER_BYTES)], kill_at()).prop_map(
            |(bytes, kill_at)| Act::Lend { bytes, kill_at }),
        6 => (0usize..8, proptest::bool::weighted(0.1)).prop_map(
            |(which, fails)| Act::GiveBackEnds { which, fails }),
        4 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| Act::Want { file, offset, length }),
        2 => any::<bool>().prop_map(|comes| Act::RoomAsked { comes }),
        3 => file().prop_map(|file| Act::MakeEarly { file }),
        3 => (file(), any::<bool>(), 1..PAGE, 1u8..=255).prop_map(
            |(file, last, length, with)| Act::WriteEarly { file, last, length, with }),
        1 => Just(Act::LookAtEarly),
        1 => Just(Act::Count),
        3 => (file(), 1u32..4, any::<bool>()).prop_map(
            |(file, uid, resident)| Act::Own { file, uid, resident }),
    ]
}

/// The daemon and its devices.
#[derive(Clone)]
struct World {
    target: Target,
    settings: Settings,
    devices: [Vec<u8>; 2],
    /// Pages that a device holds: preallocated, and not given back.
    held: [BTreeSet<u64>; 2],
    /// Blocks that leave.
    give_backs: Vec<(u64, u8)>,
    table: BTreeMap<u32, (Inode, Piece)>,
    /// Slots that are hidden for a moment.
    hidden: BTreeSet<u32>,
    copies: Vec<Copying>,
    keepers: abroad::Keepers,
    millis: u32,
    /// The daemon is killed after so many steps more: effects, and pages of copies.
    kill_at: Option<usize>,
    /// It may be killed in a request, too, which its client then makes of the next daemon.
    asks_again: bool,
    /// What every file held before the act in which the daemon is killed, and what that may change.
    asking: Option<Asking>,
    seen: Seen,
    /// Defined pages of a slot.
    defined: BTreeMap<u32, BTreeSet<u64>>,
    /// Pieces under the pins of stopped clients, which write into them.
    pinned: BTreeMap<u32, Piece>,
    /// Slots that are noted to hold early pieces.
    early: BTreeSet<u32>,
    marks: Marks,
    refusing: bool,
    waiting: Waiting,
    /// A block could not be given back: the target waits before it tries again.
    has_refused: bool,
    /// Owners as they were told, and when, and the next time.
    owners: BTreeMap<Inode, (u32, i64)>,
    time: i64,
}

/// What user 1 may have.
const ALLOWED: u64 = 200 << 10;

struct Outcome {
    answer: Answer,
    bytes: Vec<u8>,
}

impl World {
    fn new(refusing: bool) -> World {
        let space =
            Space { length: TIER_BYTES, backing: Backing::OnDemand, fresh_from: 0, ahead: 0 };
        let settings = Settings {
            memory: Space { ahead: 96 << 10, ..space },
            ssd: space,
            slot_count: 40,
            quota_bytes: 900 << 10,
            sinking: Sinking {
                normal_below_bytes: TIER_BYTES * 3 / 4,
                forced_below_bytes: TIER_BYTES / 4,
                idle_millis: 30,
            },
        };
        World {
            target: Target::new(settings),
            settings,
            devices: [vec![0; TIER_BYTES as usize], vec![0; TIER_BYTES as usize]],
            held: [BTreeSet::new(), BTreeSet::new()],
            give_backs: Vec::new(),
            table: BTreeMap::new(),
            hidden: BTreeSet::new(),
            copies: Vec::new(),
            keepers: abroad::Keepers::default(),
            millis: u32::MAX - 100,
            kill_at: None,
            asks_again: false,
            asking: None,
            seen: Seen::default(),
            defined: BTreeMap::new(),
            pinned: BTreeMap::new(),
            early: BTreeSet::new(),
            marks: Marks::default(),
            refusing,
            waiting: Waiting::default(),
            has_refused: false,
            owners: BTreeMap::new(),
            time: 0,
        }
    }

    fn device(&mut self, piece: &Piece, from: u64, to: u64) -> &mut [u8] {
        assert_ne!(piece.tier, Piece::ABROAD, "used where it is not");
        let end = piece.place + to;
        let mut pages = (piece.place + from) / PAGE..end.div_ceil(PAGE);
        let held = &self.held[usize::from(piece.tier)];
        assert!(pages.all(|page| held.contains(&page)), "used while it is not held");
        &mut self.devices[usize::from(piece.tier)][(piece.place + from) as usize..end as usize]
    }

    fn is_defined(&self, piece: &Piece, page: u64) -> bool {
        self.defined.get(&piece.slot).is_some_and(|pages| pages.contains(&page))
    }

    /// What the daemon or a client uses is shown.
    fn check_shown(&self, piece: &Piece) {
        assert_eq!(self.table.get(&piece.slot).map(|row| row.1), Some(*piece), "not published");
        assert!(!self.hidden.contains(&piece.slot), "used while it is hidden");
    }

    fn write(&mut self, piece: &Piece, within: u64, bytes: &[u8]) {
        self.check_shown(piece);
        let end = within + bytes.len() as u64;
        for page in within / PAGE..end.div_ceil(PAGE) {
            if !self.is_defined(piece, page) {
                self.device(piece, page * PAGE, (page + 1) * PAGE).fill(0);
                self.defined.entry(piece.slot).or_default().insert(page);
            }
        }
        self.device(piece, within, end).copy_from_slice(bytes);
    }

    fn zero(&mut self, piece: &Piece, within: u64, length: u64) {
        self.check_shown(piece);
        for page in within / PAGE..(within + length).div_ceil(PAGE) {
            let (from, to) = (within.max(page * PAGE), (within + length).min((page + 1) * PAGE));
            if to - from == PAGE {
                self.defined.entry(piece.slot).or_default().remove(&page);
            } else if self.is_defined(piece, page) {
                self.device(piece, from, to).fill(0);
            }
        }
    }

    fn read(&mut self, piece: &Piece, within: u64, length: u64) -> Vec<u8> {
        self.check_shown(piece);
        let mut bytes = vec![0; length as usize];
        let end = within + length;
        for page in within / PAGE..end.div_ceil(PAGE) {
            if self.is_defined(piece, page) {
                let (from, to) = (within.max(page * PAGE), end.min((page + 1) * PAGE));
                let place = (from - within) as usize..(to - within) as usize;
                bytes[place].copy_from_slice(self.device(piece, from, to));
            }
        }
        bytes
    }

    /// Gives one input, performs what comes out, and answers what is asked meanwhile.
    fn step(&mut self, input: Input<'_>, body: &[u8]) -> Option<Outcome> {
        let mut out = Vec::new();
        self.target.step(input, &mut out);
        self.perform(out, body)
    }

    fn perform(&mut self, out: Vec<Effect>, body: &[u8]) -> Option<Outcome> {
        let mut effects = VecDeque::from(out);
        let mut outcome: Option<Outcome> = None;
        let mut bytes = Vec::new();
        while let Some(effect) = effects.pop_front() {
            if !self.goes_on() {
                break;
            }
            let mut out = Vec::new();
            match effect {
                Effect::Zero { piece, within, length, .. } => self.zero(&piece, within, length),
                Effect::Read { from, length, .. } => match from {
                    Source::Hole => bytes.resize(bytes.len() + length as usize, 0),
                    Source::Piece { piece, within } => {
                        bytes.extend(self.read(&piece, within, length.into()));
                    }
                },
                Effect::Write { piece, within, from, length, .. } => {
                    self.write(&piece, within, &body[from as usize..(from + length) as usize]);
                }
                Effect::Flush { .. } => {}
                Effect::Below { .. } | Effect::Fill { .. } => {
                    unreachable!("no file lies below")
                }
                Effect::Reply { ticket, answer } if ticket != IMPATIENT => {
                    self.note_answer(ticket, &answer);
                }
                Effect::Reply { answer, .. } => {
                    self.note_answer(IMPATIENT, &answer);
                    assert!(outcome.is_none(), "answered twice");
                    outcome = Some(Outcome { answer, bytes: std::mem::take(&mut bytes) });
                }
                Effect::ReadAbroad { ticket, piece, within, length } => {
                    assert_eq!(ticket, IMPATIENT, "only he reads");
                    outcome = Some(self.read_abroad(&piece, within, length));
                }
                Effect::Wait { .. } | Effect::AskForRoom { .. } => {
                    self.perform_on_waiting(&effect, &mut out);
                }
                effect => self.perform_on_table(effect, &mut out),
            }
            effects.extend(out);
        }
        self.note_away();
        outcome
    }

    /// Effects that are no part of an answer.
    fn perform_on_table(&mut self, effect: Effect, out: &mut Vec<Effect>) {
        match effect {
            Effect::Publish { inode, piece, defined } => self.publish(inode, piece, defined),
            Effect::Keep { inode, piece } => {
                assert_eq!(self.table.get(&piece.slot), Some(&(inode, piece)));
                assert!(self.early.remove(&piece.slot), "it was not early");
            }
            Effect::Hide { slot } => {
                assert!(self.table.contains_key(&slot) && self.hidden.insert(slot));
                Marks::check_hidden(&self.target, &self.table[&slot]);
                assert!(!self.early.contains(&slot), "an early piece moves");
            }
            Effect::Show { slot } => {
                assert!(self.hidden.remove(&slot), "it was not hidden");
                self.spoil_copies(slot);
            }
            Effect::Copy { ticket, from, to } => self.begin_copy(ticket, from, to),
            Effect::Unpublish { slot } => {
                let (_, piece) = self.table.remove(&slot).expect("a row");
                self.hidden.remove(&slot);
                self.note_abroad(&piece, false);
            }
            Effect::CheckPins { round } => {
                let pinned: Vec<u32> = self.pinned.keys().copied().collect();
                self.target.step(Input::Pins { round, pinned: &pinned }, out);
            }
            Effect::Preallocate { tier, place, length, .. } => {
                let refuses = self.refusing && tier == Piece::SSD;
                let outcome = if refuses { Err(Errno::ENOSPC) } else { Ok(()) };
                if outcome.is_ok() {
                    self.held[usize::from(tier)].extend(place / PAGE..(place + length) / PAGE);
                }
                self.target.step(Input::Preallocated { outcome }, out);
            }
            Effect::Mark { slot, is_resident } => self.marks.set(slot, is_resident),
            Effect::GiveBack { place, length_log2 } => self.give_back(place, length_log2),
            other => self.perform_abroad(other),
        }
    }

    fn publish(&mut self, inode: Inode, piece: Piece, defined: Defined) {
        self.note_made(inode, piece, defined);
        let pages = match defined {
            Defined::All | Defined::Below => (0..piece.length() / PAGE).collect(),
            Defined::Nothing | Defined::Early => BTreeSet::new(),
            Defined::As(from) => {
                assert!(self.hidden.contains(&from.slot), "clients may still write to it");
                self.defined.get(&from.slot).cloned().unwrap_or_default()
            }
        };
        self.defined.insert(piece.slot, pages);
        self.marks.set(piece.slot, self.target.is_resident(inode));
        self.early.remove(&piece.slot);
        if defined == Defined::Early {
            self.early.insert(piece.slot);
        }
        assert!(!self.pinned.contains_key(&piece.slot), "a pinned slot was re-used");
        assert!(self.table.insert(piece.slot, (inode, piece)).is_none());
        self.note_abroad(&piece, true);
        let shown = self.table.iter().filter(|(slot, _)| !self.hidden.contains(slot));
        let same = |row: &(Inode, Piece)| row.0 == inode && row.1.start == piece.start;
        let count = usize::from(piece.tier != Piece::ABROAD);
        assert_eq!(shown.filter(|(_, row)| same(row)).count(), count, "a range is shown twice");
    }

    /// Looks for what to move, as the daemon does when time passed.
    fn look(&mut self, up: bool, millis: u32, used: u64) {
        self.millis = self.millis.wrapping_add(millis);
        let mut out = Vec::new();
        let mut was_used = |slot: u32| used >> (slot % 64) & 1 != 0;
        if up {
            // Else hardly any would be free beyond that at which pieces sink.
            self.target.set_sinking(Sinking { normal_below_bytes: 1, ..Sinking::NEVER });
            self.target.rise(self.millis, &mut was_used, &mut out);
        } else {
            self.target.set_sinking(self.settings.sinking);
            self.target.sink(self.millis, &mut was_used, &mut out);
        }
        self.perform(out, &[]);
        self.keep_writers();
        if millis.is_multiple_of(3) {
            self.let_go();
        }
    }

    fn call(&mut self, request: &Request<'_>) -> Outcome {
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        let ticket = IMPATIENT;
        self.begin_to_ask(request);
        self.ask_at_once(request);
        let outcome = self.ask_until_answered(&|world| {
            world.look_at_early(false);
            let outcome = world.step(Input::Request { ticket, request }, body);
            let outcome = outcome.or_else(|| world.bring_home(body));
            outcome.or_else(|| world.step(Input::Withdraw { ticket }, body))
        });
        match (request, &outcome.answer) {
            (&Request::Read { inode, offset, length, .. }, Answer::Busy { .. })
                if self.target.bytes_abroad().abroad > 0 =>
            {
                self.read_by_pieces(inode, offset, length)
            }
            _ => outcome,
        }
    }

    /// Stopped clients write on under their pins: this must hurt nobody.
    fn scribble(&mut self) {
        for piece in self.pinned.clone().values() {
            let is_theirs = self.table.get(&piece.slot).is_some_and(|row| row.1 == *piece);
            if !is_theirs {
                self.device(piece, 0, piece.length()).fill(0xee);
            }
        }
    }

    fn manage(&mut self, act: &Act) {
        match *act {
            Act::Count => self.count(),
            Act::Want { file, offset, length } => self.want(file, offset, length),
            Act::RoomAsked { comes } => self.room_asked(comes),
            Act::Own { file, uid, resident } => self.own(file, uid, resident),
            Act::Look { up, millis, used, kill_at } => {
                self.until_killed(kill_at, |world| world.look(up, millis, used));
            }
            Act::CopyGoesOn { which, pages } => self.copy_pages(which, pages),
            Act::CopyEnds { which, fails, kill_at } => {
                self.until_killed(kill_at, |world| world.end_copy(which, fails));
            }
            Act::Lend { bytes, kill_at } => {
                self.until_killed(kill_at, |world| world.lend(bytes));
            }
            Act::GiveBackEnds { which, fails } => self.end_give_back(which, fails),
            _ => self.look_at_early(true),
        }
    }

    /// What is refused is refused for a reason: more of an account only to who has as much as he may.
    fn check_refusal(&self, inode: Inode, answer: &Answer) {
        match *answer {
            // A device that failed when it was asked last.
            Answer::Refused(Errno::EIO) => assert!(self.seen.failed > 0),
            Answer::Refused(Errno::ENOSPC | Errno::EDQUOT) => {
                assert_eq!(self.target.moves_count(), 0, "there will be room in a moment");
            }
            // It would have to wait.
            Answer::Busy { .. } => {}
            Answer::Beyond { account, wanted } => {
                let used = self.target.accounts().used().get(&account).copied().unwrap_or(0);
                assert!(account == Account::user(1) && used + wanted > ALLOWED);
                assert_eq!(self.owners.get(&inode).map(|owner| owner.0), Some(1));
            }
            ref other => panic!("{other:?}"),
        }
    }
}

fn grow(file: &mut Vec<u8>, end: u64) {
    if file.len() < end as usize {
        file.resize(end as usize, 0);
    }
}

fn remove(world: &mut World, files: &mut Files, gone: &[u64]) {
    let inodes: Vec<u8> = gone.iter().flat_map(|file| file.to_le_bytes()).collect();
    let outcome = world.call(&Request::Remove { inodes: &inodes });
    assert_eq!(outcome.answer, Answer::Done);
    for file in gone {
        files.remove(file);
        world.owners.remove(&Inode(*file));
        let usage = world.call(&Request::Usage { inode: Inode(*file) });
        assert_eq!(usage.answer, Answer::Number(0), "file {file} is gone");
    }
}

/// As a client writes that finds an early piece.
fn write_early(
    world: &mut World,
    files: &mut Files,
    (file, last): (u64, bool),
    length: u64,
    with: u8,
) {
    let early: Vec<Piece> = world.target.early_of(Inode(file)).collect();
    let piece = if last { early.last() } else { early.first() };
    if let Some(&piece) = piece {
        world.write(&piece, 0, &vec![with; length as usize]);
        let model = files.entry(file).or_default();
        grow(model, piece.start + length);
        model[piece.start as usize..][..length as usize].fill(with);
    }
}

/// Pieces in their order, of what was asked for and ahead of it; what was asked for is not early.
fn check_answer(world: &World, request: &Request<'_>, pieces: &[Piece]) {
    let &Request::MapPieces { inode, chunk_log2, offset, length, ahead, .. } = request else {
        panic!("{request:?} asks for no pieces")
    };
    let chunk_log2 = chunk_log2_of(chunk_log2);
    let spans = || placement::piece::over(offset, length + ahead, chunk_log2);
    assert!(pieces.len() <= spans().count(), "more than was asked for");
    assert!(spans().zip(pieces).all(|(span, piece)| span.start == piece.start));
    let mut own = pieces.iter().filter(|piece| piece.start < offset + length);
    assert!(own.all(|piece| world.target.early(inode, piece.start).is_none()));
}

fn perform(world: &mut World, files: &mut Files, act: &Act) {
    let chunk_log2 = CHUNK_LOG2;
    match *act {
        Act::Write { file, offset, length, with } => {
            let bytes: Vec<u8> = (0..length).map(|at| with.wrapping_add(at as u8)).collect();
            let (inode, cuts, chunk_log2) = (Inode(file), u64::MAX, owners::chunk_of(file));
            let write = Request::Write { inode, chunk_log2, offset, cuts, bytes: &bytes };
            let outcome = world.call(&write);
            match outcome.answer {
                Answer::Done => {
                    let model = files.entry(file).or_default();
                    grow(model, offset + length);
                    model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                other => world.check_refusal(inode, &other),
            }
        }
        Act::Read { file, offset, length } => {
            let length32 = length as u32;
            let request =
                Request::Read { inode: Inode(file), chunk_log2, offset, length: length32 };
            let outcome = world.call(&request);
            assert_eq!(outcome.answer, Answer::Bytes { length: length32 });
            let model = files.entry(file).or_default();
            grow(model, offset + length);
            assert_eq!(outcome.bytes, &model[offset as usize..][..length as usize]);
        }
        Act::Map { file, offset, length, ahead } => {
            let (inode, chunk_log2) = (Inode(file), owners::chunk_of(file));
            let request =
                Request::MapPieces { inode, chunk_log2, allocate: 1, offset, length, ahead };
            match world.call(&request).answer {
                Answer::Pieces(pieces) => check_answer(world, &request, &pieces),
                other => world.check_refusal(inode, &other),
            }
        }
        Act::Truncate { file, size } => {
            let request = Request::Truncate { inode: Inode(file), chunk_log2, size };
            if world.is_cut_refused(&request) {
                return;
            }
            files.entry(file).or_default().truncate(size as usize);
        }
        Act::Punch { file, offset, length } => {
            let request = Request::Punch { inode: Inode(file), chunk_log2, offset, length };
            if world.is_cut_refused(&request) {
                return;
            }
            let model = files.entry(file).or_default();
            grow(model, offset + length);
            model[offset as usize..][..length as usize].fill(0);
        }
        Act::Remove { files: ref gone } => remove(world, files, gone),
        Act::Pin { slot } => {
            if let Some(row) = world.table.get(&slot).filter(|_| !world.hidden.contains(&slot)) {
                world.pinned.insert(slot, row.1);
            }
        }
        Act::Unpin => world.pinned.clear(),
        Act::Tick => assert!(world.step(Input::Tick, &[]).is_none()),
        Act::Kill => world.kill(None),
        Act::MakeEarly { file } => {
            assert!(world.step(Input::MakeEarly { inodes: &[Inode(file)] }, &[]).is_none());
        }
        Act::WriteEarly { file, last, length, with } => {
            write_early(world, files, (file, last), length, with);
        }
        _ => world.manage(act),
    }
}

fn check(world: &mut World, files: &Files) {
    for (&file, model) in files {
        let request = Request::Read {
            inode: Inode(file),
            chunk_log2: CHUNK_LOG2,
            offset: 0,
            length: model.len() as u32,
        };
        assert!(world.call(&request).bytes == *model, "file {file} differs");
    }
    let used: u64 = world.target.pieces().map(|(_, piece)| piece.length()).sum();
    // An early piece is a hole that nobody asked for.
    let used = used - world.target.early_bytes();
    let mut usage = 0;
    for file in 0..5 {
        if let Answer::Number(bytes) = world.call(&Request::Usage { inode: Inode(file) }).answer {
            usage += bytes;
        }
    }
    assert_eq!(usage, used);
    world.target.check_early();
}

/// What users see of the space: pieces of files take some, early ones do not.
fn check_space(world: &mut World) {
    let answer = world.call(&Request::Space {}).answer;
    let Answer::Space { memory_total, memory_free, ssd_total, ssd_free } = answer else {
        panic!("no space is told")
    };
    let taken = world.bytes_here() - world.target.early_bytes();
    let leaving = memory_total + ssd_total - memory_free - ssd_free - taken;
    assert_eq!(leaving > 0, world.target.leaving_count() > 0);
}

/// One act, and whether all is in order behind it.
fn go_on(world: &mut World, files: &mut Files, act: &Act) {
    world.until_killed(None, |world| perform(world, files, act));
    // Looking on is no step of the daemon's.
    let kill_at = world.kill_at.take();
    world.scribble();
    check_space(world);
    world.target.check_accounts();
    world.target.check_moves();
    world.check_waiting();
    world.target.check_rising();
    world.target.check_abroad();
    world.target.check_residents();
    world.target.check_shares();
    world.kill_at = kill_at;
}

/// Every file is what it is to be, who waits comes to an end, and all space is given back.
fn finish(world: &mut World, files: &mut Files) {
    check(world, files);
    while !world.copies.is_empty() {
        world.end_copy(0, false);
    }
    check(world, files);
    perform(world, files, &Act::Remove { files: (1..5).collect() });
    perform(world, files, &Act::Unpin);
    perform(world, files, &Act::Tick);
    assert_eq!(world.target.writers_waiting(), 0);
    world.check_answered();
    assert_eq!(world.target.leaving_count(), 0);
    world.check_nothing_kept();
    world.lend(0);
    while !world.give_backs.is_empty() {
        world.end_give_back(0, false);
    }
    let gone = world.target.memory_lent();
    assert!(gone.held == 0 || world.has_refused, "{gone:?} is left");
    world.lend(TIER_BYTES);
    assert_eq!(world.target.memory.bytes_free(), TIER_BYTES);
    assert_eq!(world.target.ssd.bytes_free(), TIER_BYTES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, files read as the plain map says, and in the end all space is free.
    #[test]
    fn a_target_is_a_map(
        acts in proptest::collection::vec(act(), 1..60),
        refusing in proptest::bool::weighted(0.2),
        defers in proptest::bool::weighted(0.3),
        is_kept in proptest::bool::weighted(0.4),
    ) {
        let mut world = World::new(refusing);
        if is_kept {
            world.set_keepers();
        }
        world.waiting.defers = defers;
        let mut files = BTreeMap::new();
        for act in &acts {
            go_on(&mut world, &mut files, act);
        }
        finish(&mut world, &mut files);
    }

    /// Whatever rows are found, what is believed is consistent, and what is not is named.
    #[test]
    fn recovery_believes_nothing_twice(
        rows in proptest::collection::vec(
            (0u64..4, 0u64..12, 0u32..45, 0u64..40, 13u8..18, 0u8..3), 0..40),
    ) {
        let settings = World::new(false).settings;
        let unit = 1u64 << BLOCK_LOG2_MIN;
        let rows: Vec<(Inode, Piece)> = rows.into_iter()
            .map(|(inode, start, slot, place, length_log2, tier)| {
                let (start, place) = (start * unit, place * unit);
                (Inode(inode), Piece { start, slot, place, length_log2, tier })
            })
            .collect();
        let mut out = Vec::new();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            rows.iter().copied().partition(|row| row.1.slot >= 40);
        let (mut target, dropped) = Target::recover(settings, shown, hidden, &mut out);
        let replaced = |effect: &Effect| matches!(effect, Effect::Unpublish { slot } if *slot >= 40);
        let replaced = out.iter().filter(|effect| replaced(effect)).count();
        prop_assert_eq!(target.pieces().count() + dropped.len() + replaced, rows.len());
        for row in &dropped {
            prop_assert!(target.is_damaged(row.inode));
        }
        let inodes: Vec<u8> = (1u64..4).flat_map(u64::to_le_bytes).collect();
        let request = Request::Remove { inodes: &inodes };
        target.step(Input::Request { ticket: 0, request: &request }, &mut out);
        target.step(Input::Pins { round: u64::MAX, pinned: &[] }, &mut out);
        prop_assert_eq!(target.memory.bytes_free(), TIER_BYTES);
        prop_assert_eq!(target.ssd.bytes_free(), TIER_BYTES);
    }
}
