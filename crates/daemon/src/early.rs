//! Early pieces (`data::early`): which first ones to make, which were written to, which to take back.
//!
//! Clients that make files by posts take inode numbers in turn, and the daemons of the host see which
//! come next. Once first pieces of such files are asked for, the target makes them before they are:
//! the client finds its piece as it finds any other, and a small file costs no message.
//!
//! Pieces ahead of writers the target makes by itself, with what they ask for.
//!
//! Files are often made and not written to, and end before the space that lies ahead. What was not
//! written to for a while is taken back: the row is hidden, which clients see under their pins; one pause
//! later it is looked whether anything was written before, or is being written under a pin; if so, it is
//! shown again. Whoever meets a hidden row asks by a message.
//!
//! None of this is believed: a number that will never be used, or is in use, costs a piece for a while.

use crate::shared::Shared;
use crate::target::Devices;
use data::Target;
use placement::locate;
use shm::numbers::Numbers;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wire::attributes::Layout;
use wire::post::SEQUENCE_FIRST;
use wire::reply::Piece;
use wire::{Inode, Request, ShardIndex};

/// Between two looks at what was not written to, and between hiding and taking back.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// So many first pieces must be asked for in a shard before any is made early.
const ASKED_MIN: u32 = 4;
/// How far ahead of the files pieces are made: at first, at most.
const COUNT_FIRST: u64 = 128;
/// See `COUNT_FIRST`: more than clients make before the worker comes round.
const COUNT_MAX: u64 = 1024;
/// With so many files that were made and not written to no more pieces are made: it seems that files
/// stay empty.
const IDLE_MAX: usize = 64;
/// After so many looks at a first piece that was not written to it is taken back.
const FIRST_LOOKS: u32 = 1;
/// And at one ahead of a writer: who pauses for longer between two writes asks again, which costs
/// him nothing beside the pause.
const AHEAD_LOOKS: u32 = 4;

/// An early piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    inode: Inode,
    start: u64,
    slot: u32,
    /// Looks at which it was not written to.
    looks: u32,
}

/// The early pieces of one shard's files.
#[derive(Default)]
struct Stock {
    /// First pieces that were asked for by messages since there is no stock.
    asked: u32,
    /// How far ahead pieces are made; 0: none.
    count: u64,
    /// Numbers below were seen to.
    end: u64,
    /// The next number at the last look.
    last: u64,
    /// Files lie here wherever their number points.
    takes_all: bool,
    /// Pieces of files whose numbers are still to be used, in their order, and of some that exist.
    made: VecDeque<Entry>,
    /// Pieces of files that exist and were not written to.
    idle: Vec<Entry>,
}

/// Early pieces of a target.
pub(crate) struct Early {
    directory: PathBuf,
    /// By daemon of this host.
    numbers: BTreeMap<u16, Option<Numbers>>,
    stocks: BTreeMap<u16, Stock>,
    /// Pieces ahead of writers.
    ahead: Vec<Entry>,
    hidden: Vec<(Inode, Piece)>,
    look_at: Option<Instant>,
}

/// What to tell the target.
#[derive(Default)]
pub(crate) struct Verdict {
    /// Written to: file and beginning.
    pub(crate) wanted: Vec<(Inode, u64)>,
    /// To be taken back.
    pub(crate) unwanted: Vec<(Inode, u64)>,
}

impl Early {
    /// `directory` holds the shared memory of this host's daemons; `found` are early pieces that an
    /// earlier daemon made.
    pub(crate) fn new(directory: PathBuf, found: &[(Inode, Piece)]) -> Early {
        let (numbers, hidden) = (BTreeMap::new(), Vec::new());
        let (stocks, ahead) = (BTreeMap::new(), Vec::new());
        let mut early = Early { directory, numbers, stocks, ahead, hidden, look_at: None };
        found.iter().for_each(|(inode, piece)| early.rest(Entry::new(*inode, piece)));
        early
    }

    /// A piece of a file that exists, and that was not written to.
    fn rest(&mut self, entry: Entry) {
        match entry.start {
            0 => self.stocks.entry(entry.inode.shard().0).or_default().idle.push(entry),
            _ => self.ahead.push(entry),
        }
    }

    /// The next numbers of files in a shard, if its owner is on this host.
    fn left(&mut self, shared: &Shared, shard: ShardIndex) -> Option<Range<u64>> {
        if !shared.is_on_host(shard) {
            return None;
        }
        let owner = shared.router.map.owner(shard).0;
        let directory = &self.directory;
        let numbers = self.numbers.entry(owner).or_insert_with(|| {
            let file = File::open(directory.join(format!("d{owner}.posts"))).ok()?;
            Numbers::map(file).ok()
        });
        numbers.as_ref()?.left(shard).ok()
    }

    /// Learns from a request that files are written to which posts made.
    pub(crate) fn asked(&mut self, shared: &Shared, request: &Request<'_>) {
        let Request::MapPieces { inode, allocate: 1, offset: 0, .. } = *request else { return };
        if inode.is_abroad()
            || inode.sequence() < SEQUENCE_FIRST
            || !shared.is_on_host(inode.shard())
        {
            return;
        }
        let stock = self.stocks.entry(inode.shard().0).or_default();
        stock.takes_all |= !is_ours(shared, inode);
        stock.asked += 1;
        if stock.count == 0 && stock.asked >= ASKED_MIN {
            (stock.count, stock.asked) = (COUNT_FIRST, 0);
        }
    }

    /// True while files are being made that need pieces: then this is to be looked at now and then.
    pub(crate) fn is_busy(&self) -> bool {
        self.stocks.values().any(|stock| stock.count > 0)
    }

    /// Files whose first pieces are to be made now, and what became of those that were made.
    pub(crate) fn next(
        &mut self,
        shared: &Shared,
        target: &Target,
        devices: &Devices,
    ) -> (Vec<Inode>, Verdict) {
        let (mut make, mut verdict) = (Vec::new(), Verdict::default());
        let busy = self.stocks.iter().filter(|(_, stock)| stock.count > 0);
        let busy: Vec<u16> = busy.map(|(&shard, _)| shard).collect();
        for shard in busy {
            let left = self.left(shared, ShardIndex(shard));
            let (Some(left), Some(stock)) = (left, self.stocks.get_mut(&shard)) else { continue };
            stock.look(left.start, target, devices, &mut verdict);
            if let Some(range) = stock.range(&left) {
                let inodes = range.map(|number| Inode::new(ShardIndex(shard), number));
                let takes_all = stock.takes_all;
                make.extend(inodes.filter(|&inode| takes_all || is_ours(shared, inode)));
            }
        }
        (make, verdict)
    }

    /// Notes a piece that was made.
    pub(crate) fn made(&mut self, inode: Inode, piece: &Piece) {
        let entry = Entry::new(inode, piece);
        match piece.start {
            0 => self.stocks.entry(inode.shard().0).or_default().made.push_back(entry),
            _ => self.ahead.push(entry),
        }
    }

    /// When to look for what to take back.
    pub(crate) fn look_at(&mut self, target: &Target) -> Option<Instant> {
        if self.stocks.is_empty() && self.ahead.is_empty() && self.hidden.is_empty() {
            self.look_at = None;
            return None;
        }
        let now = Instant::now();
        let at = self.look_at.get_or_insert(now + PAUSE);
        // At once: who waits for room comes again soon.
        if target.needs_early_back() && self.hidden.is_empty() {
            *at = now;
        }
        Some(*at)
    }

    /// Looks: what was hidden at the last look and is in no use is unwanted; what was not written to
    /// since the last look is hidden now.
    pub(crate) fn look(
        &mut self,
        shared: &Shared,
        target: &Target,
        devices: &Devices,
        pinned: &[u32],
    ) -> Verdict {
        self.look_at = None;
        let mut verdict = Verdict::default();
        for (inode, piece) in std::mem::take(&mut self.hidden) {
            // Else it is its file's by now, or was freed with it.
            if target.early(inode, piece.start) != Some(piece) {
                continue;
            }
            if !devices.states.is_hole(&piece) {
                verdict.wanted.push((inode, piece.start));
            } else if pinned.contains(&piece.slot) {
                // Somebody is about to write, was stopped, or died: the next look will tell.
                if devices.table.show(piece.slot).is_ok() {
                    self.rest(Entry::new(inode, &piece));
                }
            } else {
                devices.finder.forget(inode, &piece);
                verdict.unwanted.push((inode, piece.start));
            }
        }
        self.ahead.retain(|entry| entry.is_unwritten(target, devices, &mut verdict));
        let old = take_old(&mut self.ahead, AHEAD_LOOKS, target);
        self.hide(&old, target, devices);
        let shards: Vec<u16> = self.stocks.keys().copied().collect();
        for shard in shards {
            let next = self.left(shared, ShardIndex(shard)).map_or(u64::MAX, |left| left.start);
            let Some(stock) = self.stocks.get_mut(&shard) else { continue };
            let old = stock.take_old(next, target, devices, &mut verdict);
            self.hide(&old, target, devices);
        }
        self.stocks.retain(|_, stock| !stock.is_over());
        verdict
    }

    fn hide(&mut self, old: &[Entry], target: &Target, devices: &Devices) {
        for entry in old {
            if let Some(piece) = target.early(entry.inode, entry.start)
                && devices.table.hide(piece.slot).is_ok()
            {
                self.hidden.push((entry.inode, piece));
            }
        }
    }
}

/// Takes out the entries that were looked at `looks` times before, and all if the room is needed; the
/// others were looked at once more.
fn take_old(entries: &mut Vec<Entry>, looks: u32, target: &Target) -> Vec<Entry> {
    let is_old = |entry: &Entry| entry.looks >= looks || target.needs_early_back();
    let (old, mut young): (Vec<_>, Vec<_>) = entries.drain(..).partition(is_old);
    young.iter_mut().for_each(|entry| entry.looks += 1);
    *entries = young;
    old
}

/// True if chunk 0 of a file is here by its number, as that of a hashed file and of one of a group is.
fn is_ours(shared: &Shared, inode: Inode) -> bool {
    let map = &shared.router.map;
    let hashed = locate::target(&Layout::default(), inode, 0, map.daemon_count().max(1));
    hashed == shared.router.me
}

impl Entry {
    const fn new(inode: Inode, piece: &Piece) -> Entry {
        Entry { inode, start: piece.start, slot: piece.slot, looks: 0 }
    }

    /// True if the piece is still early and nothing was written into it.
    fn is_unwritten(&self, target: &Target, devices: &Devices, verdict: &mut Verdict) -> bool {
        // Else it was freed, or asked for, and the slot may be another file's.
        let Some(piece) = target.early(self.inode, self.start) else { return false };
        if piece.slot != self.slot {
            return false;
        }
        let is_hole = devices.states.is_hole(&piece);
        if !is_hole {
            verdict.wanted.push((self.inode, self.start));
        }
        is_hole
    }
}

impl Stock {
    /// Sorts out pieces of files that exist, numbers below `next`.
    fn look(&mut self, next: u64, target: &Target, devices: &Devices, verdict: &mut Verdict) {
        while let Some(&entry) = self.made.front().filter(|one| one.inode.sequence() < next) {
            self.made.pop_front();
            if entry.is_unwritten(target, devices, verdict) {
                self.idle.push(entry);
            }
        }
        if self.idle.len() > IDLE_MAX {
            self.look_at_idle(target, devices, verdict);
            if self.idle.len() > IDLE_MAX {
                self.count = 0;
            }
        }
    }

    fn look_at_idle(&mut self, target: &Target, devices: &Devices, verdict: &mut Verdict) {
        self.idle.retain(|entry| entry.is_unwritten(target, devices, verdict));
    }

    /// The numbers to see to now.
    fn range(&mut self, left: &Range<u64>) -> Option<Range<u64>> {
        if self.count == 0 {
            return None;
        }
        if self.end < left.start {
            // Clients were faster.
            let is_first = self.end == 0;
            self.count = if is_first { self.count } else { (self.count * 2).min(COUNT_MAX) };
            self.end = left.start;
        }
        let end = left.start.saturating_add(self.count).min(left.end);
        if self.end >= left.start.saturating_add(self.count / 2) || self.end >= end {
            return None;
        }
        let range = self.end..end;
        self.end = end;
        Some(range)
    }

    /// Takes out what is to be taken back: pieces of files that were not written to since the last
    /// look, and all, once no files are made or the room is needed.
    fn take_old(
        &mut self,
        next: u64,
        target: &Target,
        devices: &Devices,
        verdict: &mut Verdict,
    ) -> Vec<Entry> {
        self.look(next, target, devices, verdict);
        self.look_at_idle(target, devices, verdict);
        if next == self.last || target.needs_early_back() {
            (self.count, self.asked, self.end) = (0, 0, 0);
            self.idle.extend(self.made.drain(..));
        }
        self.last = next;
        take_old(&mut self.idle, FIRST_LOOKS, target)
    }

    fn is_over(&self) -> bool {
        self.count == 0 && self.asked == 0 && self.made.is_empty() && self.idle.is_empty()
    }
}
