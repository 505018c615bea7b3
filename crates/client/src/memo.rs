//! Directories that walks came through: from the front of a path to the directory that it leads to, so
//! that the next path that begins alike is walked by its last name alone.
//!
//! What is remembered is what the indexes of this host said, by names alone: no `..`, no link, no
//! message. Each index has a number that is another once a directory in it has another name, place,
//! owner or permissions (`shm::index`); those of all indexes that were read are compared each time. So
//! what is remembered is as true as the rows are at that moment, and a rename or chmod of a directory
//! holds at once. Times, size and number of links of what is remembered are old.
//!
//! Leased directories (`leases`) have an index, too, and for each service that leased one a generation
//! and a time until which it may be believed: these are looked at as well.
//!
//! Search permissions were checked for those who are remembered with it; others walk for themselves.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};
use shm::leases::Leases;
use shm::wait::steady_nanos;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::credentials::GROUPS_MAX;
use wire::hash::mix;
use wire::{Attributes, Credentials, Inode};

use crate::Client;
use crate::path::Way;
use crate::walk::Service;

/// Directories remembered by a process.
const ROWS: usize = 16;
/// Longest front of a path, in words of eight bytes.
const PATH_WORDS: usize = 16;
/// Most indexes that a path leads through.
const SERVICES: usize = 4;
const ATTRIBUTES_WORDS: usize = ATTRIBUTES_BYTES / 8;
/// Marks a name in a trail that is the number of a service whose leases were read. Beyond what numbers
/// of indexes there are.
const LEASED: u32 = 1 << 31;
/// The name of the index that holds leased directories.
const LEASED_ROWS: u32 = u32::MAX;

/// The indexes that a walk read, and their numbers from before.
#[derive(Clone, Copy)]
pub(crate) struct Trail {
    /// Who serves them: `Service::name`, or of leases.
    services: [u32; SERVICES],
    numbers: [u64; SERVICES],
    count: usize,
    /// False if the walk came by anything else than names that indexes know.
    is_plain: bool,
}

impl Trail {
    pub(crate) const fn new() -> Trail {
        Trail { services: [0; SERVICES], numbers: [0; SERVICES], count: 0, is_plain: true }
    }

    /// An index is about to be read.
    #[inline]
    pub(crate) fn note(&mut self, service: &Service<'_>) {
        self.note_number(service.name, || service.index.directories());
    }

    /// Leases of a service are about to be read.
    pub(crate) fn note_leases(&mut self, leases: &Leases, service: usize) {
        self.note_number(LEASED | service as u32, || leases.generation(service));
        self.note_number(LEASED_ROWS, || leases.directories());
    }

    #[inline]
    fn note_number(&mut self, name: u32, number: impl FnOnce() -> Option<u64>) {
        if self.services.iter().take(self.count).any(|&known| known == name) {
            return;
        }
        let places = (self.services.get_mut(self.count), self.numbers.get_mut(self.count));
        match (places, number()) {
            ((Some(to), Some(to_number)), Some(number)) => {
                *to = name;
                *to_number = number;
                self.count = self.count.saturating_add(1);
            }
            _ => self.is_plain = false,
        }
    }

    /// The walk takes another way.
    pub(crate) const fn leave(&mut self) {
        self.is_plain = false;
    }
}

/// One directory. The sequence is odd while the row is written.
struct Row {
    sequence: AtomicU32,
    /// Bytes of the path; 0: nothing is remembered.
    length: AtomicU32,
    base: AtomicU64,
    /// User and group.
    who: AtomicU64,
    /// Lower half the state of the attachments; then how many indexes, and how many groups.
    state: AtomicU64,
    groups: [AtomicU32; GROUPS_MAX],
    services: [AtomicU32; SERVICES],
    numbers: [AtomicU64; SERVICES],
    path: [AtomicU64; PATH_WORDS],
    attributes: [AtomicU64; ATTRIBUTES_WORDS],
}

impl Row {
    const fn new() -> Row {
        Row {
            sequence: AtomicU32::new(0),
            length: AtomicU32::new(0),
            base: AtomicU64::new(0),
            who: AtomicU64::new(0),
            state: AtomicU64::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS_MAX],
            services: [const { AtomicU32::new(0) }; SERVICES],
            numbers: [const { AtomicU64::new(0) }; SERVICES],
            path: [const { AtomicU64::new(0) }; PATH_WORDS],
            attributes: [const { AtomicU64::new(0) }; ATTRIBUTES_WORDS],
        }
    }

    fn is_of(&self, base: Inode, way: &Way, length: usize, who: &Credentials) -> bool {
        let (words, count) = (way.words(length), usize::from(who.group_count));
        self.length.load(Relaxed) as usize == length
            && self.base.load(Relaxed) == base.0
            && self.who.load(Relaxed) == both(who)
            && self.state.load(Relaxed) >> 48 == rights(who)
            && words.zip(&self.path).all(|(word, known)| known.load(Relaxed) == word)
            && who.groups.iter().take(count).zip(&self.groups).all(|(a, b)| b.load(Relaxed) == *a)
    }
}

/// How many groups, and whether all else is allowed anyway.
fn rights(who: &Credentials) -> u64 {
    u64::from(who.group_count) | u64::from(who.is_checked) << 8
}

fn both(who: &Credentials) -> u64 {
    u64::from(who.uid) | u64::from(who.gid) << 32
}

/// What the process remembers of directories.
pub(crate) struct Memo {
    rows: [Row; ROWS],
}

impl Memo {
    pub(crate) const fn new() -> Memo {
        Memo { rows: [const { Row::new() }; ROWS] }
    }

    #[inline]
    fn row(&self, base: Inode, way: &Way, length: usize) -> Option<&Row> {
        let last = way.word_before(length);
        self.rows.get(mix(base.0 ^ last, length as u64) as usize % ROWS)
    }
}

/// How much of a path is remembered, if it is worth it.
#[inline]
fn front_of(way: &Way) -> Option<usize> {
    way.last_name().filter(|&length| length > 0 && length <= PATH_WORDS * 8)
}

impl Client {
    /// If the directory before the path's last name is remembered: puts it into `to`, and only that
    /// name is yet to go.
    #[inline]
    pub(crate) fn recall(
        &self,
        base: Inode,
        who: &Credentials,
        way: &mut Way,
        to: &mut Attributes,
    ) -> bool {
        let Some(length) = front_of(way) else { return false };
        let Some(row) = self.memo.row(base, way, length) else { return false };
        let before = row.sequence.load(Acquire);
        if before & 1 != 0 || !row.is_of(base, way, length, who) {
            return false;
        }
        let state = row.state.load(Relaxed);
        *to = Attributes::from_words(&row.attributes.each_ref().map(|word| word.load(Relaxed)));
        let count = (state >> 32) as usize & 0xffff;
        let trail = row.services.iter().zip(&row.numbers).take(count);
        let is_so = state as u32 == self.attachments.state()
            && trail.into_iter().all(|(service, number)| {
                let (name, number) = (service.load(Relaxed), number.load(Relaxed));
                if name & LEASED != 0 {
                    return self.is_leased(name, number);
                }
                let index = self.attachments.index_of(name);
                index.and_then(shm::index::Index::directories) == Some(number)
            });
        fence(Acquire);
        let is_so = is_so && row.sequence.load(Relaxed) == before;
        if is_so {
            way.skip(length);
        }
        is_so
    }

    /// True if what was read of leases is so now.
    #[inline(never)]
    fn is_leased(&self, name: u32, number: u64) -> bool {
        let Some(home) = self.home_now() else { return false };
        let Some(leases) = home.leases() else { return false };
        if name == LEASED_ROWS {
            return leases.directories() == Some(number);
        }
        let service = (name & !LEASED) as usize;
        let holds = leases.holds(service, number, steady_nanos);
        if holds {
            home.bells.use_lease(service);
        }
        holds
    }

    /// Remembers the directory before the path's last name.
    pub(crate) fn remember(
        &self,
        base: Inode,
        who: &Credentials,
        way: &Way,
        (trail, state): (&Trail, u32),
        directory: &Attributes,
    ) {
        if !trail.is_plain {
            return;
        }
        let Some(length) = front_of(way) else { return };
        let Some(row) = self.memo.row(base, way, length) else { return };
        // Somebody else writes the row, or died in it by a fork: leave it.
        let before = row.sequence.load(Relaxed) & !1;
        if row.sequence.compare_exchange(before, before | 1, Acquire, Relaxed).is_err() {
            return;
        }
        fence(Release);
        row.length.store(length as u32, Relaxed);
        row.base.store(base.0, Relaxed);
        row.who.store(both(who), Relaxed);
        let counts = (trail.count as u64) << 32 | rights(who) << 48;
        row.state.store(u64::from(state) | counts, Relaxed);
        for (to, from) in row.groups.iter().zip(who.groups) {
            to.store(from, Relaxed);
        }
        for (to, from) in row.services.iter().zip(trail.services) {
            to.store(from, Relaxed);
        }
        for (to, from) in row.numbers.iter().zip(trail.numbers) {
            to.store(from, Relaxed);
        }
        for (to, from) in row.path.iter().zip(way.words(length)) {
            to.store(from, Relaxed);
        }
        for (to, from) in row.attributes.iter().zip(directory.words()) {
            to.store(from, Relaxed);
        }
        row.sequence.store(before.wrapping_add(2), Release);
    }
}
