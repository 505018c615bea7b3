//! What the models keep of files that stay in memory, and some cases.

use crate::effect::{Answer, Effect, Input};
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use crate::tier::{Backing, Space};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::reply::Piece;
use wire::request::RESIDENT_CHUNK;
use wire::{Inode, Request};

/// Slots that bear the mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(BTreeSet<u32>);

impl Marks {
    pub(crate) fn set(&mut self, slot: u32, is_resident: bool) {
        let _ = if is_resident { self.0.insert(slot) } else { self.0.remove(&slot) };
    }

    /// A piece is about to move or to be dropped.
    pub(crate) fn check_hidden(target: &Target, (inode, piece): &(Inode, Piece)) {
        let stays = target.is_resident(*inode) && piece.tier == Piece::MEMORY;
        assert!(!stays, "{inode:?} is resident, and {piece:?} goes");
    }

    /// Files that a row of `table` says stay in memory.
    pub(crate) fn inodes(&self, table: &BTreeMap<u32, (Inode, Piece)>) -> BTreeSet<Inode> {
        self.0.iter().filter_map(|slot| table.get(slot)).map(|row| row.0).collect()
    }

    /// After a kill: from `table`; files that have pieces are known as before.
    pub(crate) fn restore(
        &self,
        table: &BTreeMap<u32, (Inode, Piece)>,
        (old, new): (&Target, &mut Target),
        out: &mut Vec<Effect>,
    ) {
        new.restore_residents(self.inodes(table).into_iter(), out);
        for (inode, _) in table.values() {
            assert_eq!(old.is_resident(*inode), new.is_resident(*inode), "{inode:?}");
        }
    }
}

/// Performs effects where copies take no time; these slots are pinned. `see` is shown each of them. The
/// last answer to a request.
pub(crate) fn perform(
    target: &mut Target,
    effects: Vec<Effect>,
    pinned: &[u32],
    see: &mut dyn FnMut(&Target, &Effect),
) -> Option<Answer> {
    let (mut left, mut answer) = (VecDeque::from(effects), None);
    while let Some(effect) = left.pop_front() {
        see(target, &effect);
        let mut out = Vec::new();
        match effect {
            Effect::CheckPins { round } => target.step(Input::Pins { round, pinned }, &mut out),
            Effect::Copy { ticket, .. } => {
                target.step(Input::Copied { ticket, outcome: Ok(()) }, &mut out);
            }
            Effect::Reply { answer: now, .. } => answer = Some(now),
            _ => {}
        }
        left.extend(out);
    }
    answer
}

/// A device of which all can be used.
pub(crate) const fn ready(length: u64) -> Space {
    Space { length, backing: Backing::Ready, fresh_from: 0, ahead: 0 }
}

const BLOCK: u64 = 64 << 10;
const MEMORY: u64 = 16 * BLOCK;
/// A file that is one piece of a chunk.
const CHUNK_LOG2: u8 = 16;

struct World {
    target: Target,
    now: u32,
    marks: Marks,
}

impl World {
    fn new() -> World {
        let target = Target::new(Settings {
            memory: ready(MEMORY),
            ssd: ready(8 * MEMORY),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            sinking: Sinking {
                normal_below_bytes: MEMORY / 2,
                forced_below_bytes: MEMORY / 8,
                idle_millis: 10,
            },
        });
        World { target, now: 0, marks: Marks::default() }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Option<Answer> {
        let marks = &mut self.marks;
        perform(&mut self.target, effects, &[], &mut |target, effect| match *effect {
            Effect::Publish { inode, piece, .. } => {
                marks.set(piece.slot, target.is_resident(inode));
            }
            Effect::Mark { slot, is_resident } => marks.set(slot, is_resident),
            _ => {}
        })
    }

    fn call(&mut self, request: &Request<'_>) -> Answer {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket: 1, request }, &mut out);
        self.perform(out).expect("an answer")
    }

    fn make(&mut self, inode: u64, offset: u64, is_pinned: bool) -> Piece {
        let chunk_log2 = CHUNK_LOG2 | if is_pinned { RESIDENT_CHUNK } else { 0 };
        let inode = Inode(inode);
        let request =
            Request::MapPieces { inode, chunk_log2, allocate: 1, offset, length: 1, ahead: 0 };
        match self.call(&request) {
            Answer::Pieces(pieces) => pieces[0],
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, inode: u64, resident: u8, changed: u64) {
        let request = Request::Own { inode: Inode(inode), uid: 1, project: 0, changed, resident };
        assert_eq!(self.call(&request), Answer::Done);
    }

    /// Lets pieces sink and rise for a second, none in use.
    fn rest(&mut self) {
        for _ in 0..20 {
            self.now += 50;
            let mut out = Vec::new();
            self.target.sink(self.now, &mut |_| false, &mut out);
            self.perform(out);
            let mut out = Vec::new();
            if self.target.is_rising() {
                self.target.rise(self.now, &mut |_| false, &mut out);
            }
            self.perform(out);
            self.target.check_residents();
            self.target.check_rising();
        }
    }

    fn in_memory(&self, inode: u64) -> u64 {
        let of_it = self.target.pieces().filter(|row| row.0 == Inode(inode));
        of_it.filter(|row| row.1.tier == Piece::MEMORY).map(|row| row.1.length()).sum()
    }
}

#[test]
fn what_is_pinned_stays_while_four_times_the_memory_is_written() {
    let mut world = World::new();
    for at in 0..4 {
        world.make(7, at * BLOCK, true);
    }
    let pinned = world.in_memory(7);
    for file in 100..164 {
        world.make(file, BLOCK, false);
        world.rest();
        assert_eq!(world.in_memory(7), pinned);
    }
    assert_eq!(world.target.resident_bytes(), pinned);
    assert!(world.target.moved().bytes_sunk > 0, "nothing sank");
    // What is let go is as cool as any.
    world.tell(7, 0, 1);
    assert_eq!(world.target.resident_bytes(), 0);
    for file in 200..264 {
        world.make(file, BLOCK, false);
        world.rest();
    }
    assert_eq!(world.in_memory(7), 0);
}

#[test]
fn more_than_memory_holds_goes_to_the_ssd_and_rises_when_there_is_room() {
    let mut world = World::new();
    let all: Vec<Piece> = (0..20).map(|at| world.make(7, at * BLOCK, true)).collect();
    assert!(all.iter().any(|piece| piece.tier == Piece::SSD));
    let before = world.in_memory(7);
    assert!(before >= MEMORY - 4 * BLOCK);
    world.rest();
    assert_eq!(world.in_memory(7), before);
    // A part of it is cut off, and nobody uses the rest.
    let size = 4 * BLOCK;
    world.make(8, 0, true);
    assert_eq!(world.call(&Request::Remove { inodes: &8u64.to_le_bytes() }), Answer::Done);
    let file = |at: u64| Request::Punch {
        inode: Inode(7),
        chunk_log2: CHUNK_LOG2,
        offset: at * BLOCK,
        length: BLOCK,
    };
    for at in 0..15 {
        assert_eq!(world.call(&file(at)), Answer::Done);
    }
    world.rest();
    assert_eq!(world.in_memory(7), 5 * BLOCK);
    assert!(world.target.moved().bytes_risen >= size - BLOCK);
}

/// "Pinning and letting go hold at once" (docs/semantics.md).
#[test]
fn an_older_word_and_who_opened_it_before_say_nothing() {
    let mut world = World::new();
    world.make(7, 0, false);
    // The file is pinned, as who opened it before does not know.
    world.tell(7, 1, 5);
    world.make(7, BLOCK, false);
    assert_eq!(world.target.resident_bytes(), world.in_memory(7));
    world.tell(7, 0, 4);
    assert!(world.target.is_resident(Inode(7)));
    // And the other way round.
    world.tell(7, 0, 6);
    world.make(7, 2 * BLOCK, true);
    assert_eq!(world.target.resident_bytes(), 0);
    world.make(8, 0, false);
    world.make(8, BLOCK, true);
    assert!(!world.target.is_resident(Inode(8)), "it had pieces that were not");
    world.target.check_residents();
}

#[test]
fn a_word_ends_what_moves_at_once() {
    let mut world = World::new();
    let pieces: Vec<Piece> = (0..12).map(|at| world.make(7, at * BLOCK, false)).collect();
    let mut out = Vec::new();
    world.now += 50;
    world.target.sink(world.now, &mut |_| false, &mut out);
    let hidden = out.iter().filter(|one| matches!(one, Effect::Hide { .. })).count();
    assert!(hidden > 0);
    world.tell(7, 1, 1);
    assert_eq!(world.target.moves_count(), 0);
    world.perform(out);
    world.rest();
    assert_eq!(world.in_memory(7), pieces.iter().map(Piece::length).sum::<u64>());
    assert_eq!(world.marks.0.len(), pieces.len());
}
