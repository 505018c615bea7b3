//! Preallocated extents (`data::space::preallocation`): which first extents of files to allocate,
//! which contain data, which to reclaim.
//!
//! Clients that create files by local operations use inode numbers in sequence, and the daemons of
//! the host see which are next. Once first extents of such files have been requested, the target
//! allocates them in advance: the client finds its extent as any other, and a small file costs no
//! message.
//!
//! Extents ahead of writers are allocated by the target itself, together with a requested extent.
//!
//! Many files are created and never written, or end before the preallocated space. An extent that
//! stays empty for a while is reclaimed: its entry is hidden, which clients notice when they set a
//! hazard pointer. One pause later the extent is checked; if it contains data, or a client is
//! writing under a hazard pointer, it is published again. A client that finds a hidden entry sends
//! a message.
//!
//! Client data is not trusted: an inode number that will never be used, or is in use, only costs an
//! extent for a while.

use crate::shared::network::Network;
use crate::target::Devices;
use data::Target;
use placement::locate;
use shm::local_ops::InodeNumbers;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wire::attributes::Layout;
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::reply::Extent;
use wire::{Inode, Request, ShardIndex};

/// Interval between scans for empty extents, and between hiding and reclaiming.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// First extents that must be requested in a shard before any is preallocated.
const REQUESTED_MIN: u32 = 4;
/// How many files ahead extents are preallocated at first; it grows up to `COUNT_MAX`.
const COUNT_FIRST: u64 = 128;
/// More than clients create between two rounds of the worker.
const COUNT_MAX: u64 = 1024;
/// With more created but empty files than this, preallocation stops, since files appear to stay
/// empty.
const IDLE_MAX: usize = 64;
/// Scans after which an empty first extent is reclaimed.
const FIRST_LOOKS: u32 = 1;
/// Scans after which an empty extent ahead of a writer is reclaimed. A writer that pauses for
/// longer requests it again, which costs little beside the pause.
const AHEAD_LOOKS: u32 = 4;

/// A preallocated extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    inode: Inode,
    start: u64,
    slot: u32,
    /// Number of scans that found it empty.
    looks: u32,
}

/// Preallocated extents for the files of one shard.
#[derive(Default)]
struct Stock {
    /// First extents requested by messages while nothing is preallocated.
    requested: u32,
    /// How many files ahead extents are preallocated; 0: preallocation is off.
    count: u64,
    /// Inode numbers below this have been handled.
    end: u64,
    /// Next inode number at the last scan.
    last: u64,
    /// Files of this shard are placed here, independently of their inode number.
    takes_all: bool,
    /// The copies that the numbers of these files say (`Inode::copies`).
    copies: u8,
    /// Extents for inode numbers that are not used yet, in order, and for some that are.
    preallocated: VecDeque<Entry>,
    /// Extents of existing files that are still empty.
    idle: Vec<Entry>,
}

/// Preallocated extents of a target.
pub(crate) struct Preallocation {
    directory: PathBuf,
    /// By daemon of this host.
    numbers: BTreeMap<u16, Option<InodeNumbers>>,
    stocks: BTreeMap<u16, Stock>,
    /// Extents ahead of writers.
    ahead: Vec<Entry>,
    hidden: Vec<(Inode, Extent)>,
    look_at: Option<Instant>,
}

/// Result of a scan, for the target.
#[derive(Default)]
pub(crate) struct PreallocationScan {
    /// Extents with data: file and start.
    pub(crate) written: Vec<(Inode, u64)>,
    /// Extents to reclaim: file and start.
    pub(crate) unused: Vec<(Inode, u64)>,
}

impl Preallocation {
    /// `directory` holds the shared memory of this host's daemons; `found` are extents that an
    /// earlier daemon preallocated.
    pub(crate) fn new(directory: PathBuf, found: &[(Inode, Extent)]) -> Preallocation {
        let (numbers, hidden) = (BTreeMap::new(), Vec::new());
        let (stocks, ahead) = (BTreeMap::new(), Vec::new());
        let mut preallocation =
            Preallocation { directory, numbers, stocks, ahead, hidden, look_at: None };
        found
            .iter()
            .for_each(|(inode, extent)| preallocation.add_empty(Entry::new(*inode, extent)));
        preallocation
    }

    /// Adds an empty extent of an existing file.
    fn add_empty(&mut self, entry: Entry) {
        match entry.start {
            0 => self.stocks.entry(entry.inode.shard().0).or_default().idle.push(entry),
            _ => self.ahead.push(entry),
        }
    }

    /// Unused inode numbers of a shard, if its owner is on this host.
    fn left(&mut self, net: &Network, shard: ShardIndex) -> Option<Range<u64>> {
        if !net.is_on_host(shard) {
            return None;
        }
        let owner = net.router.map.owner(shard).0;
        let directory = &self.directory;
        let numbers = self.numbers.entry(owner).or_insert_with(|| {
            let file = File::open(directory.join(format!("d{owner}.op_log"))).ok()?;
            InodeNumbers::map(file).ok()
        });
        numbers.as_ref()?.left(shard).ok()
    }

    /// Learns from a request that files created by local operations are written to.
    pub(crate) fn note_request(&mut self, net: &Network, request: &Request<'_>) {
        let Request::MapExtents { inode, allocate: 1, offset: 0, .. } = *request else { return };
        if inode.is_spilled()
            || inode.sequence() < LOCAL_OP_SEQUENCE_FIRST
            || !net.is_on_host(inode.shard())
        {
            return;
        }
        let stock = self.stocks.entry(inode.shard().0).or_default();
        stock.takes_all |= !is_ours(net, inode);
        stock.copies = inode.copies();
        stock.requested += 1;
        if stock.count == 0 && stock.requested >= REQUESTED_MIN {
            (stock.count, stock.requested) = (COUNT_FIRST, 0);
        }
    }

    /// True while preallocation is on for any shard; `next` must then be called regularly.
    pub(crate) fn is_busy(&self) -> bool {
        self.stocks.values().any(|stock| stock.count > 0)
    }

    /// Files whose first extents must be allocated now, and the state of those allocated before.
    pub(crate) fn next(
        &mut self,
        net: &Network,
        target: &Target,
        devices: &Devices,
    ) -> (Vec<Inode>, PreallocationScan) {
        let (mut make, mut scan) = (Vec::new(), PreallocationScan::default());
        let busy = self.stocks.iter().filter(|(_, stock)| stock.count > 0);
        let busy: Vec<u16> = busy.map(|(&shard, _)| shard).collect();
        for shard in busy {
            let left = self.left(net, ShardIndex(shard));
            let (Some(left), Some(stock)) = (left, self.stocks.get_mut(&shard)) else { continue };
            stock.look(left.start, target, devices, &mut scan);
            if let Some(range) = stock.next_numbers(&left) {
                let (takes_all, copies) = (stock.takes_all, stock.copies);
                let number_of = |number| Inode::new(ShardIndex(shard), number).with_copies(copies);
                let inodes = range.map(number_of);
                make.extend(inodes.filter(|&inode| takes_all || is_ours(net, inode)));
            }
        }
        (make, scan)
    }

    /// Registers an extent that was preallocated.
    pub(crate) fn register_extent(&mut self, inode: Inode, extent: &Extent) {
        let entry = Entry::new(inode, extent);
        match extent.start {
            0 => self.stocks.entry(inode.shard().0).or_default().preallocated.push_back(entry),
            _ => self.ahead.push(entry),
        }
    }

    /// Time of the next scan.
    pub(crate) fn scan_time(&mut self, target: &Target) -> Option<Instant> {
        if self.stocks.is_empty() && self.ahead.is_empty() && self.hidden.is_empty() {
            self.look_at = None;
            return None;
        }
        let now = Instant::now();
        let at = self.look_at.get_or_insert(now + PAUSE);
        // At once, because a request that waits for space retries soon.
        if target.wants_preallocated_back() && self.hidden.is_empty() {
            *at = now;
        }
        Some(*at)
    }

    /// Scans: extents hidden by the last scan that are unused are to be reclaimed; extents that
    /// stayed empty since the last scan are hidden now.
    pub(crate) fn scan(
        &mut self,
        net: &Network,
        target: &Target,
        devices: &Devices,
        protected: &[u32],
    ) -> PreallocationScan {
        self.look_at = None;
        let mut scan = PreallocationScan::default();
        for (inode, extent) in std::mem::take(&mut self.hidden) {
            // Otherwise it has become part of its file, or was freed with it.
            if target.preallocated(inode, extent.start) != Some(extent) {
                continue;
            }
            if !devices.states.is_hole(&extent) {
                scan.written.push((inode, extent.start));
            } else if protected.contains(&extent.slot) {
                // A client is about to write, is stopped, or has died; the next scan will tell.
                if devices.table.show(extent.slot).is_ok() {
                    self.add_empty(Entry::new(inode, &extent));
                }
            } else {
                devices.extent_hints.forget(inode, &extent);
                scan.unused.push((inode, extent.start));
            }
        }
        self.ahead.retain(|entry| entry.is_unwritten(target, devices, &mut scan));
        let old = take_old(&mut self.ahead, AHEAD_LOOKS, target);
        self.hide(&old, target, devices);
        let shards: Vec<u16> = self.stocks.keys().copied().collect();
        for shard in shards {
            let next = self.left(net, ShardIndex(shard)).map_or(u64::MAX, |left| left.start);
            let Some(stock) = self.stocks.get_mut(&shard) else { continue };
            let old = stock.take_old(next, target, devices, &mut scan);
            self.hide(&old, target, devices);
        }
        self.stocks.retain(|_, stock| !stock.is_over());
        scan
    }

    fn hide(&mut self, old: &[Entry], target: &Target, devices: &Devices) {
        for entry in old {
            if let Some(extent) = target.preallocated(entry.inode, entry.start)
                && devices.table.hide(extent.slot).is_ok()
            {
                self.hidden.push((entry.inode, extent));
            }
        }
    }
}

/// Removes the entries that `looks` scans found empty, or all if the space is needed. Counts a scan
/// for the others.
fn take_old(entries: &mut Vec<Entry>, looks: u32, target: &Target) -> Vec<Entry> {
    let is_old = |entry: &Entry| entry.looks >= looks || target.wants_preallocated_back();
    let (old, mut young): (Vec<_>, Vec<_>) = entries.drain(..).partition(is_old);
    young.iter_mut().for_each(|entry| entry.looks += 1);
    *entries = young;
    old
}

/// True if stripe 0 of a file is placed here by its inode number, as for hashed files and those of
/// a group.
fn is_ours(net: &Network, inode: Inode) -> bool {
    let router = &net.router;
    let new = Layout { place: router.place_of_new(), ..Layout::default() };
    let hashed = locate::target(&new, inode, 0, router.map.first_count());
    hashed == router.me
}

impl Entry {
    const fn new(inode: Inode, extent: &Extent) -> Entry {
        Entry { inode, start: extent.start, slot: extent.slot, looks: 0 }
    }

    /// True if the extent is still preallocated and empty.
    fn is_unwritten(
        &self,
        target: &Target,
        devices: &Devices,
        scan: &mut PreallocationScan,
    ) -> bool {
        // Otherwise it was freed, or allocated by a request, and the slot may belong to another
        // file.
        let Some(extent) = target.preallocated(self.inode, self.start) else { return false };
        if extent.slot != self.slot {
            return false;
        }
        let is_hole = devices.states.is_hole(&extent);
        if !is_hole {
            scan.written.push((self.inode, self.start));
        }
        is_hole
    }
}

impl Stock {
    /// Sorts out extents of existing files, whose inode numbers are below `next`.
    fn look(
        &mut self,
        next: u64,
        target: &Target,
        devices: &Devices,
        scan: &mut PreallocationScan,
    ) {
        while let Some(&entry) = self.preallocated.front().filter(|one| one.inode.sequence() < next)
        {
            self.preallocated.pop_front();
            if entry.is_unwritten(target, devices, scan) {
                self.idle.push(entry);
            }
        }
        if self.idle.len() > IDLE_MAX {
            self.look_at_idle(target, devices, scan);
            if self.idle.len() > IDLE_MAX {
                self.count = 0;
            }
        }
    }

    fn look_at_idle(&mut self, target: &Target, devices: &Devices, scan: &mut PreallocationScan) {
        self.idle.retain(|entry| entry.is_unwritten(target, devices, scan));
    }

    /// Inode numbers for which to preallocate now.
    fn next_numbers(&mut self, left: &Range<u64>) -> Option<Range<u64>> {
        if self.count == 0 {
            return None;
        }
        if self.end < left.start {
            // Clients have overtaken preallocation.
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

    /// Removes the extents to reclaim: those that stayed empty since the last scan, and all if no
    /// more files are created or the space is needed.
    fn take_old(
        &mut self,
        next: u64,
        target: &Target,
        devices: &Devices,
        scan: &mut PreallocationScan,
    ) -> Vec<Entry> {
        self.look(next, target, devices, scan);
        self.look_at_idle(target, devices, scan);
        if next == self.last || target.wants_preallocated_back() {
            (self.count, self.requested, self.end) = (0, 0, 0);
            self.idle.extend(self.preallocated.drain(..));
        }
        self.last = next;
        take_old(&mut self.idle, FIRST_LOOKS, target)
    }

    fn is_over(&self) -> bool {
        self.count == 0
            && self.requested == 0
            && self.preallocated.is_empty()
            && self.idle.is_empty()
    }
}
