//! Random requests against a plain map from file to bytes, with devices in memory, clients that
//! keep pins and scribble as long as they may, devices that refuse, and kills.

use crate::buddy::BLOCK_LOG2_MIN;
use crate::effect::{Answer, Defined, Effect, Input, Source};
use crate::target::{Settings, Target};
use crate::tier::{Backing, Space};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use wire::quota::{Account, Owner};
use wire::reply::Piece;
use wire::{Errno, Inode, Request};

const TIER_BYTES: u64 = 512 << 10;
const FILE_BYTES: u64 = 384 << 10;
const PAGE: u64 = 4096;
const CHUNK_LOG2: u8 = 17;

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
    /// A file is another user's; the limited one's is 1.
    Own {
        file: u64,
        uid: u32,
    },
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
        3 => file().prop_map(|file| Act::MakeEarly { file }),
        3 => (file(), any::<bool>(), 1..PAGE, 1u8..=255).prop_map(
            |(file, last, length, with)| Act::WriteEarly { file, last, length, with }),
        1 => Just(Act::LookAtEarly),
        1 => Just(Act::Count),
        3 => (file(), 1u32..4).prop_map(|(file, uid)| Act::Own { file, uid }),
    ]
}

/// The daemon and its devices.
struct World {
    target: Target,
    settings: Settings,
    devices: [Vec<u8>; 2],
    /// What a device holds: bytes below were preallocated.
    backed: [u64; 2],
    table: BTreeMap<u32, (Inode, Piece)>,
    /// Defined pages of a slot.
    defined: BTreeMap<u32, BTreeSet<u64>>,
    /// Pieces under the pins of stopped clients, which write into them.
    pinned: BTreeMap<u32, Piece>,
    /// Slots that are noted to hold early pieces.
    early: BTreeSet<u32>,
    refusing: bool,
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
            memory: Space { backing: Backing::Ready, ..space },
            ssd: space,
            slot_count: 40,
            quota_bytes: 900 << 10,
        };
        World {
            target: Target::new(settings),
            settings,
            devices: [vec![0; TIER_BYTES as usize], vec![0; TIER_BYTES as usize]],
            backed: [TIER_BYTES, 0],
            table: BTreeMap::new(),
            defined: BTreeMap::new(),
            pinned: BTreeMap::new(),
            early: BTreeSet::new(),
            refusing,
            owners: BTreeMap::new(),
            time: 0,
        }
    }

    fn device(&mut self, piece: &Piece, from: u64, to: u64) -> &mut [u8] {
        let end = piece.place + to;
        assert!(end <= self.backed[usize::from(piece.tier)], "used before it was preallocated");
        &mut self.devices[usize::from(piece.tier)][(piece.place + from) as usize..end as usize]
    }

    fn is_defined(&self, piece: &Piece, page: u64) -> bool {
        self.defined.get(&piece.slot).is_some_and(|pages| pages.contains(&page))
    }

    fn write(&mut self, piece: &Piece, within: u64, bytes: &[u8]) {
        assert_eq!(self.table.get(&piece.slot).map(|row| row.1), Some(*piece), "not published");
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
        let mut effects = std::collections::VecDeque::from(out);
        let mut outcome: Option<Outcome> = None;
        let mut bytes = Vec::new();
        while let Some(effect) = effects.pop_front() {
            let mut out = Vec::new();
            match effect {
                Effect::Publish { inode, piece, defined } => {
                    let pages = if defined == Defined::All { piece.length() / PAGE } else { 0 };
                    self.defined.insert(piece.slot, (0..pages).collect());
                    self.early.remove(&piece.slot);
                    if defined == Defined::Early {
                        self.early.insert(piece.slot);
                    }
                    assert!(!self.pinned.contains_key(&piece.slot), "a pinned slot was re-used");
                    assert!(self.table.insert(piece.slot, (inode, piece)).is_none());
                }
                Effect::Keep { inode, piece } => {
                    assert_eq!(self.table.get(&piece.slot), Some(&(inode, piece)));
                    assert!(self.early.remove(&piece.slot), "it was not early");
                }
                Effect::Unpublish { slot } => assert!(self.table.remove(&slot).is_some()),
                Effect::CheckPins { round } => {
                    let pinned: Vec<u32> = self.pinned.keys().copied().collect();
                    self.target.step(Input::Pins { round, pinned: &pinned }, &mut out);
                }
                Effect::Preallocate { tier, place, length, .. } => {
                    let outcome = if self.refusing { Err(Errno::ENOSPC) } else { Ok(()) };
                    if outcome.is_ok() {
                        assert_eq!(self.backed[usize::from(tier)], place);
                        self.backed[usize::from(tier)] = place + length;
                    }
                    self.target.step(Input::Preallocated { outcome }, &mut out);
                }
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
                Effect::Reply { answer, .. } => {
                    assert!(outcome.is_none(), "answered twice");
                    outcome = Some(Outcome { answer, bytes: std::mem::take(&mut bytes) });
                }
            }
            effects.extend(out);
        }
        outcome
    }

    fn call(&mut self, request: &Request<'_>) -> Outcome {
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        self.look_at_early(false);
        self.step(Input::Request { ticket: 7, request }, body).expect("an answer")
    }

    /// Tells which early pieces were written to, and which were not if those are taken back.
    fn look_at_early(&mut self, take_back: bool) {
        let is_early = |inode, piece: &Piece| self.target.early(inode, piece.start).is_some();
        let early = self.target.pieces().filter(|&(inode, ref piece)| is_early(inode, piece));
        let is_hole = |piece: &Piece| self.defined.get(&piece.slot).is_none_or(BTreeSet::is_empty);
        let (holes, written): (Vec<_>, Vec<_>) = early.partition(|one| is_hole(&one.1));
        let named = |all: Vec<(Inode, Piece)>| {
            all.into_iter().map(|(inode, piece)| (inode, piece.start)).collect::<Vec<_>>()
        };
        let (holes, written) = (named(holes), named(written));
        assert!(self.step(Input::Wanted { pieces: &written }, &[]).is_none());
        if take_back {
            assert!(self.step(Input::Unwanted { pieces: &holes }, &[]).is_none());
            assert_eq!(self.target.early_bytes(), 0);
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

    fn kill(&mut self) {
        let unknown = |space: Space| Space { fresh_from: u64::MAX, ..space };
        self.settings.memory = unknown(self.settings.memory);
        self.settings.ssd = unknown(self.settings.ssd);
        let mut out = Vec::new();
        let rows = self.table.values().copied();
        let (mut target, dropped) = Target::recover(self.settings, rows, &mut out);
        assert!(dropped.is_empty() && out.is_empty(), "{dropped:?}");
        let found = self.early.iter().filter_map(|slot| self.table.get(slot));
        target.restore_early(found.copied());
        // A slot that is pinned is not used anew, so its row says what it held.
        let is_gone = |piece: &Piece| !self.table.contains_key(&piece.slot);
        let gone: Vec<Piece> = self.pinned.values().copied().filter(is_gone).collect();
        target.restore_leaving(gone.iter().copied());
        assert_eq!(target.leaving_count(), gone.len());
        assert_eq!(target.early_bytes(), self.target.early_bytes());
        let before: Vec<_> = self.target.pieces().collect();
        assert!(target.pieces().eq(before));
        // A tier in use is preallocated as far as used.
        self.backed[1] = if target.ssd.bytes_used() > 0 { TIER_BYTES } else { 0 };
        let counts = self.target.accounts().is_on();
        self.target = target;
        if counts {
            self.count();
        }
    }

    fn count(&mut self) {
        self.target.count();
        self.target.allow([(Account::user(1), ALLOWED)].into());
        for (&inode, &(uid, changed)) in &self.owners {
            self.target.own(inode, Owner { uid, project: 7 }, changed);
        }
    }

    /// A file is somebody's from now on; an older word comes behind.
    fn own(&mut self, file: u64, uid: u32) {
        let inode = Inode(file);
        let old = self.owners.insert(inode, (uid, self.time + 1));
        self.time += 1;
        for (uid, changed) in [Some((uid, self.time)), old].into_iter().flatten() {
            let changed = changed.cast_unsigned();
            let answer = self.call(&Request::Own { inode, uid, project: 7, changed });
            assert_eq!(answer.answer, Answer::Done);
        }
    }

    fn account(&mut self, act: &Act) {
        match *act {
            Act::Count => self.count(),
            Act::Own { file, uid } => self.own(file, uid),
            _ => self.look_at_early(true),
        }
    }

    /// What is refused is refused for a reason: more of an account only to who has as much as he may.
    fn check_refusal(&self, inode: Inode, answer: &Answer) {
        match *answer {
            Answer::Refused(Errno::ENOSPC | Errno::EDQUOT) => {}
            Answer::Busy { .. } => assert!(self.target.needs_early_back()),
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

fn remove(world: &mut World, files: &mut BTreeMap<u64, Vec<u8>>, gone: &[u64]) {
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
    files: &mut BTreeMap<u64, Vec<u8>>,
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
    let spans = || placement::piece::over(offset, length + ahead, chunk_log2);
    assert!(pieces.len() <= spans().count(), "more than was asked for");
    assert!(spans().zip(pieces).all(|(span, piece)| span.start == piece.start));
    let mut own = pieces.iter().filter(|piece| piece.start < offset + length);
    assert!(own.all(|piece| world.target.early(inode, piece.start).is_none()));
}

fn perform(world: &mut World, files: &mut BTreeMap<u64, Vec<u8>>, act: &Act) {
    let chunk_log2 = CHUNK_LOG2;
    match *act {
        Act::Write { file, offset, length, with } => {
            let bytes: Vec<u8> = (0..length).map(|at| with.wrapping_add(at as u8)).collect();
            let (inode, cuts) = (Inode(file), u64::MAX);
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
            let inode = Inode(file);
            let request =
                Request::MapPieces { inode, chunk_log2, allocate: 1, offset, length, ahead };
            match world.call(&request).answer {
                Answer::Pieces(pieces) => check_answer(world, &request, &pieces),
                other => world.check_refusal(inode, &other),
            }
        }
        Act::Truncate { file, size } => {
            let answer = world.call(&Request::Truncate { inode: Inode(file), chunk_log2, size });
            assert_eq!(answer.answer, Answer::Done);
            files.entry(file).or_default().truncate(size as usize);
        }
        Act::Punch { file, offset, length } => {
            let request = Request::Punch { inode: Inode(file), chunk_log2, offset, length };
            assert_eq!(world.call(&request).answer, Answer::Done);
            let model = files.entry(file).or_default();
            grow(model, offset + length);
            model[offset as usize..][..length as usize].fill(0);
        }
        Act::Remove { files: ref gone } => remove(world, files, gone),
        Act::Pin { slot } => {
            if let Some(row) = world.table.get(&slot) {
                world.pinned.insert(slot, row.1);
            }
        }
        Act::Unpin => world.pinned.clear(),
        Act::Tick => assert!(world.step(Input::Tick, &[]).is_none()),
        Act::Kill => world.kill(),
        Act::MakeEarly { file } => {
            assert!(world.step(Input::MakeEarly { inodes: &[Inode(file)] }, &[]).is_none());
        }
        Act::WriteEarly { file, last, length, with } => {
            write_early(world, files, (file, last), length, with);
        }
        Act::LookAtEarly | Act::Count | Act::Own { .. } => world.account(act),
    }
}

fn check(world: &mut World, files: &BTreeMap<u64, Vec<u8>>) {
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
    let Answer::Space { memory_free, ssd_free, .. } = world.call(&Request::Space {}).answer else {
        panic!("no space is told")
    };
    let taken: u64 = world.target.pieces().map(|(_, piece)| piece.length()).sum();
    let taken = taken - world.target.early_bytes();
    let leaving = 2 * TIER_BYTES - memory_free - ssd_free - taken;
    assert_eq!(leaving > 0, world.target.leaving_count() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, files read as the plain map says, and in the end all space is free.
    #[test]
    fn a_target_is_a_map(
        acts in proptest::collection::vec(act(), 1..60),
        refusing in proptest::bool::weighted(0.2),
    ) {
        let mut world = World::new(refusing);
        let mut files = BTreeMap::new();
        for act in &acts {
            perform(&mut world, &mut files, act);
            world.scribble();
            check_space(&mut world);
            world.target.check_accounts();
        }
        check(&mut world, &files);
        perform(&mut world, &mut files, &Act::Remove { files: (1..5).collect() });
        perform(&mut world, &mut files, &Act::Unpin);
        perform(&mut world, &mut files, &Act::Tick);
        prop_assert_eq!(world.target.leaving_count(), 0);
        prop_assert_eq!(world.target.memory.bytes_free(), TIER_BYTES);
        prop_assert_eq!(world.target.ssd.bytes_free(), TIER_BYTES);
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
        let (mut target, dropped) = Target::recover(settings, rows.iter().copied(), &mut out);
        prop_assert_eq!(target.pieces().count() + dropped.len(), rows.len());
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
