//! Path cache: directories that earlier walks passed through. It maps a path prefix to the
//! directory that the prefix leads to, so that the next path with the same prefix is resolved by
//! its last name alone.
//!
//! An entry holds only what the indexes of this host said, by names alone: no `..`, no link, no
//! message. Each index has a number that changes whenever a directory in it changes its name,
//! parent, owner or permissions (`shm::index`); the numbers of all indexes that were read form the
//! entry's validation set and are compared on each use. An entry is therefore as current as the
//! indexes themselves, and a rename or chmod of a directory takes effect at once. Times, size and
//! link count in an entry are stale.
//!
//! Leased directories (`leases`) have an index too, and each service that leased one has a
//! generation and an expiry time: both belong to the validation set.
//!
//! Search permissions were checked for the credentials stored with the entry; other callers walk.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};
use shm::index::Leases;
use shm::wait::steady_nanos;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::credentials::GROUPS_MAX;
use wire::{Attributes, Credentials, Inode};

use crate::lookup::PathLookup;
use crate::lookup::path::PathCursor;
use crate::transport::Transport;
use crate::transport::service::Service;

/// Cached directories per process.
const ENTRIES: usize = 16;
/// Longest cached prefix, in words of eight bytes.
const PATH_WORDS: usize = 16;
/// Most indexes in a validation set.
const INDEXES_MAX: usize = 4;
const ATTRIBUTES_WORDS: usize = ATTRIBUTES_BYTES / 8;
/// Marks a member of a validation set as the number of a service whose leases were read. It lies
/// above all packed service numbers.
const LEASE_FLAG: u32 = 1 << 31;
/// Member of a validation set that stands for the index of leased directories.
const LEASE_INDEX: u32 = u32::MAX;

/// Validation set: the indexes that a walk read, and their numbers before it read them.
#[derive(Clone, Copy)]
pub(crate) struct ValidationSet {
    /// Packed service numbers (`Service::name`), or lease services.
    services: [u32; INDEXES_MAX],
    numbers: [u64; INDEXES_MAX],
    count: usize,
    /// False if the walk used anything but names that the indexes know.
    is_cacheable: bool,
}

impl ValidationSet {
    pub(crate) const fn new() -> ValidationSet {
        ValidationSet {
            services: [0; INDEXES_MAX],
            numbers: [0; INDEXES_MAX],
            count: 0,
            is_cacheable: true,
        }
    }

    /// Records that an index is about to be read.
    #[inline]
    pub(crate) fn note(&mut self, service: &Service<'_>) {
        self.note_number(service.name, || service.directory_version());
    }

    /// Records that leases of a service are about to be read.
    pub(crate) fn note_leases(&mut self, leases: &Leases, service: usize) {
        self.note_number(LEASE_FLAG | service as u32, || leases.generation(service));
        self.note_number(LEASE_INDEX, || leases.directory_version());
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
            _ => self.is_cacheable = false,
        }
    }

    /// Excludes the walk from the cache: it used something that no index number validates.
    pub(crate) const fn set_uncacheable(&mut self) {
        self.is_cacheable = false;
    }
}

/// One cached directory. The sequence is odd while the entry is being written.
struct CachedPath {
    sequence: AtomicU32,
    /// Bytes of the path; 0: empty.
    length: AtomicU32,
    base: AtomicU64,
    /// User and group.
    caller: AtomicU64,
    /// Generation of the attachments in the lower half; then the number of indexes, and of groups,
    /// 16 bits each.
    state: AtomicU64,
    groups: [AtomicU32; GROUPS_MAX],
    services: [AtomicU32; INDEXES_MAX],
    numbers: [AtomicU64; INDEXES_MAX],
    path: [AtomicU64; PATH_WORDS],
    attributes: [AtomicU64; ATTRIBUTES_WORDS],
}

impl CachedPath {
    const fn new() -> CachedPath {
        CachedPath {
            sequence: AtomicU32::new(0),
            length: AtomicU32::new(0),
            base: AtomicU64::new(0),
            caller: AtomicU64::new(0),
            state: AtomicU64::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS_MAX],
            services: [const { AtomicU32::new(0) }; INDEXES_MAX],
            numbers: [const { AtomicU64::new(0) }; INDEXES_MAX],
            path: [const { AtomicU64::new(0) }; PATH_WORDS],
            attributes: [const { AtomicU64::new(0) }; ATTRIBUTES_WORDS],
        }
    }

    fn is_of(&self, base: Inode, cursor: &PathCursor, length: usize, caller: &Credentials) -> bool {
        let count = usize::from(caller.group_count);
        self.length.load(Relaxed) as usize == length
            && self.base.load(Relaxed) == base.0
            && self.caller.load(Relaxed) == user_and_group(caller)
            && self.state.load(Relaxed) >> 48 == rights(caller)
            && cursor.is_of_words(length, &self.path)
            && caller
                .groups
                .iter()
                .take(count)
                .zip(&self.groups)
                .all(|(a, b)| b.load(Relaxed) == *a)
    }
}

/// Number of groups, and whether the caller's other permissions are checked.
fn rights(caller: &Credentials) -> u64 {
    u64::from(caller.group_count) | u64::from(caller.is_checked) << 8
}

fn user_and_group(caller: &Credentials) -> u64 {
    u64::from(caller.uid) | u64::from(caller.gid) << 32
}

/// The path cache of the process.
pub(crate) struct PathCache {
    entries: [CachedPath; ENTRIES],
}

impl PathCache {
    pub(crate) const fn new() -> PathCache {
        PathCache { entries: [const { CachedPath::new() }; ENTRIES] }
    }

    #[inline]
    fn entry(&self, base: Inode, cursor: &PathCursor, length: usize) -> Option<&CachedPath> {
        // Paths differ in what is before their last name more often than further up.
        let mixed = (base.0 ^ cursor.word_before(length)).wrapping_add(length as u64);
        self.entries.get((mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % ENTRIES)
    }
}

/// Length of the prefix of a path that is worth caching.
#[inline]
fn cacheable_length(cursor: &PathCursor) -> Option<usize> {
    cursor.last_name().filter(|&length| length > 0 && length <= PATH_WORDS * 8)
}

/// Looks up the prefix before the path's last name. On a hit it puts the directory into `to`
/// and leaves only the last name to be walked.
#[inline]
pub(crate) fn find_cached_parent(
    paths: &PathLookup,
    base: Inode,
    caller: &Credentials,
    cursor: &mut PathCursor,
    to: &mut Attributes,
) -> bool {
    let Some(length) = cacheable_length(cursor) else { return false };
    let Some(entry) = paths.path_cache.entry(base, cursor, length) else { return false };
    let before = entry.sequence.load(Acquire);
    if before & 1 != 0 || !entry.is_of(base, cursor, length, caller) {
        return false;
    }
    let state = entry.state.load(Relaxed);
    *to = Attributes::from_words(&entry.attributes.each_ref().map(|word| word.load(Relaxed)));
    let count = (state >> 32) as usize & 0xffff;
    let is_valid = state as u32 == paths.transport.attachments.generation()
        && is_valid(&paths.transport, entry, count);
    fence(Acquire);
    let is_valid = is_valid && entry.sequence.load(Relaxed) == before;
    if is_valid {
        cursor.skip(length);
    }
    is_valid
}

/// True if no index that an entry was read from has changed a directory since.
#[inline(always)]
fn is_valid(transport: &Transport, entry: &CachedPath, count: usize) -> bool {
    let mut at = 0;
    while at < count {
        let (Some(name), Some(number)) = (entry.services.get(at), entry.numbers.get(at)) else {
            return false;
        };
        let (name, number) = (name.load(Relaxed), number.load(Relaxed));
        let is_same = if name & LEASE_FLAG == 0 {
            transport.attachments.directory_version_of(name) == Some(number)
        } else {
            is_leased(transport, name, number)
        };
        if !is_same {
            return false;
        }
        at = at.saturating_add(1);
    }
    true
}

/// True if the leases that were read are still the same and valid.
#[inline(never)]
fn is_leased(transport: &Transport, name: u32, number: u64) -> bool {
    let Some(home) = transport.attached_home() else { return false };
    let Some(leases) = home.leases() else { return false };
    if name == LEASE_INDEX {
        return leases.directory_version() == Some(number);
    }
    let service = (name & !LEASE_FLAG) as usize;
    let holds = leases.holds(service, number, steady_nanos);
    if holds {
        home.bells.use_lease(service);
    }
    holds
}

/// Caches the directory before the path's last name.
pub(crate) fn cache_parent(
    paths: &PathLookup,
    base: Inode,
    caller: &Credentials,
    cursor: &PathCursor,
    (validation, state): (&ValidationSet, u32),
    directory: &Attributes,
) {
    if !validation.is_cacheable {
        return;
    }
    let Some(length) = cacheable_length(cursor) else { return };
    let Some(entry) = paths.path_cache.entry(base, cursor, length) else { return };
    // Another thread writes the entry, or died in it at a fork: leave it alone.
    let before = entry.sequence.load(Relaxed) & !1;
    if entry.sequence.compare_exchange(before, before | 1, Acquire, Relaxed).is_err() {
        return;
    }
    fence(Release);
    entry.length.store(length as u32, Relaxed);
    entry.base.store(base.0, Relaxed);
    entry.caller.store(user_and_group(caller), Relaxed);
    let counts = (validation.count as u64) << 32 | rights(caller) << 48;
    entry.state.store(u64::from(state) | counts, Relaxed);
    for (to, from) in entry.groups.iter().zip(caller.groups) {
        to.store(from, Relaxed);
    }
    for (to, from) in entry.services.iter().zip(validation.services) {
        to.store(from, Relaxed);
    }
    for (to, from) in entry.numbers.iter().zip(validation.numbers) {
        to.store(from, Relaxed);
    }
    for (to, from) in entry.path.iter().zip(cursor.words(length)) {
        to.store(from, Relaxed);
    }
    for (to, from) in entry.attributes.iter().zip(directory.words()) {
        to.store(from, Relaxed);
    }
    entry.sequence.store(before.wrapping_add(2), Release);
}
