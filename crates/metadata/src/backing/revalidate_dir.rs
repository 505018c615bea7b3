//! Revalidation of imported directories: names that others create and remove in the backing store
//! are noticed when the directory is listed.
//!
//! Listing an imported directory probes its modification time in the backing store, if that was not
//! done within the last term (`Config::revalidate_nanos`). If the time has changed since the
//! directory was last read, its names are read again and compared with the entries here. A
//! difference is only a hint: each such name is probed as for a lookup (`revalidate`), which
//! decides whether it is settled and what happens to it. So information about many names at once
//! need not be true when it arrives.
//!
//! Stages of a directory: idle -> probing (its time) -> reading (its names) -> compared (differing
//! names are probed) -> idle.
//!
//! Invariants
//! 1. The modification time of a directory is `known` only if every name created or removed there
//!    until then was found here, or probed since. A time that is too recent when the names are read
//!    proves nothing: more changes may come in the same tick of that clock.
//! 2. A listing waits `LISTING_TIMEOUT_NANOS` for the names to be read, and as long for differing
//!    names; then it shows the cached state. Later results are for the next listing.
//!
//! Directories that others move or remove stay, as in `revalidate`.

use std::collections::BTreeMap;

use wire::Inode;
use wire::attributes::mode;
use wire::errno::Result;
use wire::hash::entry_key;

use crate::backing::Backing;
use crate::backing::import::path_of;
use crate::core::context::Context;
use crate::core::effect::{BackingDirPart, BackingEntry, Effect};
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::state::State;
use crate::files::Files;

/// Longest wait of a listing; then it shows the cached state.
const LISTING_TIMEOUT_NANOS: i64 = 2_000_000_000;
/// How long differing names are retained for the next listing.
const COMPARISON_NANOS_MAX: i64 = 60_000_000_000;
/// Age from which on a modification time is not given again: servers count in seconds at worst, and
/// their clocks may be slightly behind.
const TICK_NANOS: i64 = 3_000_000_000;
/// Most directories whose last reading is remembered; a further one replaces another.
const DIRECTORIES_MAX: usize = 4096;
/// Most directories that are compared at a time.
const COMPARISONS_MAX: usize = 256;
/// Most names that a listing probes at once.
const WINDOW: usize = 64;
/// Most differing names; the next listing continues with others.
const NAMES_MAX: usize = 1 << 16;

/// Validity of a directory's names.
#[derive(Clone, Copy, Default, Debug)]
struct DirState {
    /// Its names match the backing store until then, by the monotonic clock.
    until: i64,
    /// Its backing modification time when they matched.
    modified: Option<i64>,
}

/// A comparison of a directory with the backing store.
#[derive(Debug)]
struct Comparison {
    /// When it began, or the names were compared, by the monotonic clock.
    since: i64,
    /// When it began, by the wall clock.
    now: i64,
    before: DirState,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Its modification time is being probed. `place`: its backing path, for reading its names.
    Probing {
        place: (Vec<u8>, u64),
    },
    /// Its names are being read: their keys, and the differing ones.
    Reading {
        modified: i64,
        keys: Vec<u128>,
        names: Vec<Box<[u8]>>,
    },
    Compared(Differing),
}

/// Differing names of a directory, to be probed.
#[derive(Debug)]
struct Differing {
    names: Vec<Box<[u8]>>,
    /// Modification time that is known once all are probed, if it proves something.
    modified: Option<i64>,
}

impl Comparison {
    /// End of the wait of a listing.
    const fn end(&self) -> i64 {
        self.since.saturating_add(LISTING_TIMEOUT_NANOS)
    }

    /// When its timer expires: waiting listings proceed, or differing names are dropped.
    const fn due(&self) -> i64 {
        self.since.saturating_add(if self.is_pending() {
            LISTING_TIMEOUT_NANOS
        } else {
            COMPARISON_NANOS_MAX
        })
    }

    /// True if an answer from the backing store is pending.
    const fn is_pending(&self) -> bool {
        !matches!(self.stage, Stage::Compared(_))
    }
}

/// Directories that were listed recently, and those that are being compared.
#[derive(Default)]
pub(crate) struct Listings {
    known: BTreeMap<Inode, DirState>,
    under_way: BTreeMap<Inode, Comparison>,
}

/// The modification time, if it proves something about names read at `read` or later.
fn over(modified: i64, read: i64) -> Option<i64> {
    (modified.saturating_add(TICK_NANOS) <= read).then_some(modified)
}

impl Backing {
    /// A directory was imported; the import began at `started`.
    pub(crate) fn note_imported(&mut self, cx: &mut Context, directory: Inode, started: i64) {
        let until = cx.steady.saturating_add(cx.config.revalidate_nanos);
        // Probed before its names were read: if the time is unchanged then, no name was added in
        // between.
        let sync_entry =
            cx.state.sync_entries.get(&directory).and_then(|sync_entry| sync_entry.now.as_ref());
        let modified = sync_entry.and_then(|sync_entry| over(sync_entry.version.modified, started));
        if cx.is_revalidated(directory) {
            self.put_known(directory, DirState { until, modified });
        }
    }

    fn put_known(&mut self, directory: Inode, known: DirState) {
        let all = &mut self.listings.known;
        if all.len() >= DIRECTORIES_MAX && !all.contains_key(&directory) {
            all.pop_first();
        }
        all.insert(directory, known);
    }

    /// Before a directory is listed: proceeds when its names match the backing store, or after the
    /// timeout.
    pub(crate) fn revalidate_dir(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        directory: Inode,
    ) -> Step<()> {
        if !files.cx.is_revalidated(directory) || !files.cx.state.imported.contains(&directory) {
            return Ok(());
        }
        let (listings, steady) = (&self.listings, files.cx.steady);
        match listings.under_way.get(&directory) {
            Some(it) if it.is_pending() && it.end() <= steady => Ok(()),
            Some(it) if it.is_pending() => Err(Stop::Wait(Wait::BackingDir(directory))),
            Some(it) => {
                let is_late = it.end() <= steady;
                self.probe_names(files, call, directory).or_else(|stop| match stop {
                    Stop::Wait(_) if is_late => Ok(()),
                    stop => Err(stop),
                })
            }
            None if listings.known.get(&directory).is_some_and(|it| it.until > steady) => Ok(()),
            None => self.probe_dir(files, call, directory),
        }
    }

    fn probe_dir(&mut self, files: &mut Files, call: &Call<'_>, directory: Inode) -> Step<()> {
        let (since, now) = (files.cx.steady, files.cx.now);
        let under_way = &self.listings.under_way;
        // Only unanswered probes count: reading many names takes time.
        let is_late =
            |it: &Comparison| matches!(it.stage, Stage::Probing { .. }) && it.end() <= since;
        let is_hanging = under_way.values().any(is_late);
        if is_hanging || under_way.len() >= COMPARISONS_MAX {
            return Ok(());
        }
        let place = match path_of(files, call, directory) {
            Ok(place) => place,
            Err(stop @ Stop::Wait(_)) => return Err(stop),
            // It has no backing location any more.
            Err(_) => return Ok(()),
        };
        let before = self.listings.known.get(&directory).copied().unwrap_or_default();
        let stage = Stage::Probing { place: place.clone() };
        let new = Comparison { since, now, before, stage };
        self.listings.under_way.insert(directory, new);
        files.cx.wake_at(now.saturating_add(LISTING_TIMEOUT_NANOS));
        files.cx.io.push(Effect::Probe { key: entry_key(directory, b""), place, name: vec![] });
        Err(Stop::Wait(Wait::BackingDir(directory)))
    }

    /// Ends a comparison; waiting listings proceed.
    fn end_comparison(&mut self, cx: &mut Context, directory: Inode, modified: Option<i64>) {
        let Some(it) = self.listings.under_way.remove(&directory) else { return };
        let until = it.since.saturating_add(cx.config.revalidate_nanos);
        self.put_known(directory, DirState { until, modified });
        cx.wake(|wait| *wait == Wait::BackingDir(directory));
    }

    /// Takes the probe of a directory itself.
    pub(crate) fn take_dir_probe(
        &mut self,
        cx: &mut Context,
        key: u128,
        outcome: Result<Option<BackingEntry<'_>>>,
    ) {
        let is_it = |(inode, _): &(&Inode, &mut Comparison)| entry_key(**inode, b"") == key;
        let Some((&directory, it)) = self.listings.under_way.iter_mut().find(is_it) else {
            return;
        };
        let Stage::Probing { place } = &mut it.stage else { return };
        let (place, before) = (std::mem::take(place), it.before.modified);
        match outcome {
            Ok(Some(BackingEntry { modified, .. })) if before != Some(modified) => {
                it.stage = Stage::Reading { modified, keys: vec![], names: vec![] };
                cx.io.push(Effect::ReadBackingDir { directory, place });
            }
            // Unchanged, or unknown: then the cached names stay valid for the term.
            _ => self.end_comparison(cx, directory, before),
        }
    }

    /// Takes names of an imported directory.
    pub(crate) fn take_dir_names(
        &mut self,
        cx: &mut Context,
        directory: Inode,
        outcome: Result<BackingDirPart<'_>>,
    ) {
        let Some(it) = self.listings.under_way.get_mut(&directory) else { return };
        let (now, before) = (it.now, it.before.modified);
        let Stage::Reading { modified, keys, names } = &mut it.stage else { return };
        let modified = *modified;
        let (mut keys, mut names) = (std::mem::take(keys), std::mem::take(names));
        let Ok(part) = outcome else { return self.end_comparison(cx, directory, before) };
        keys.extend(part.entries.iter().map(|seen| entry_key(directory, seen.name)));
        let differs = |seen: &&BackingEntry<'_>| cx.state.differs(directory, seen);
        names.extend(part.entries.iter().filter(differs).map(|seen| Box::from(seen.name)));
        let stage = if part.is_last {
            keys.sort_unstable();
            names.extend(cx.state.names_not_among(directory, &keys));
            let modified = over(modified, now).filter(|_| names.len() <= NAMES_MAX);
            names.truncate(NAMES_MAX);
            names.iter().for_each(|name| cx.end_validity(entry_key(directory, name)));
            Stage::Compared(Differing { names, modified })
        } else {
            Stage::Reading { modified, keys, names }
        };
        let (steady, clock) = (cx.steady, cx.now);
        if let Some(it) = self.listings.under_way.get_mut(&directory) {
            it.stage = stage;
            if part.is_last {
                it.since = steady;
            }
        }
        if part.is_last {
            cx.wake_at(clock.saturating_add(LISTING_TIMEOUT_NANOS));
            cx.wake(|wait| *wait == Wait::BackingDir(directory));
        }
    }

    /// Probes differing names, a window at a time.
    fn probe_names(&mut self, files: &mut Files, call: &Call<'_>, directory: Inode) -> Step<()> {
        loop {
            let Some(differing) = self.differing(directory) else { return Ok(()) };
            if differing.names.is_empty() {
                let modified = differing.modified;
                self.end_comparison(&mut files.cx, directory, modified);
                return Ok(());
            }
            let first = differing.names.len().saturating_sub(WINDOW);
            let window = differing.names.split_off(first);
            let (mut left, mut waits, mut is_known) = (Vec::new(), None, true);
            for name in window {
                match self.revalidate(files, call, directory, &name) {
                    Err(stop @ Stop::Wait(_)) => {
                        waits.get_or_insert(stop);
                        left.push(name);
                    }
                    // Otherwise the name is not settled, or unknown: it differs again next time.
                    _ => is_known &= files.cx.is_valid_name(entry_key(directory, &name)),
                }
            }
            if let Some(differing) = self.differing(directory) {
                differing.names.append(&mut left);
                differing.modified = differing.modified.filter(|_| is_known);
            }
            if let Some(stop) = waits {
                return Err(stop);
            }
        }
    }

    fn differing(&mut self, directory: Inode) -> Option<&mut Differing> {
        match &mut self.listings.under_way.get_mut(&directory)?.stage {
            Stage::Compared(differing) => Some(differing),
            _ => None,
        }
    }

    /// Timer: ends the wait of listings, and drops old differences.
    pub(crate) fn tick_listings(&mut self, cx: &mut Context) {
        let (now, steady) = (cx.now, cx.steady);
        let mut late = Vec::new();
        for (&directory, it) in &self.listings.under_way {
            match it.due() <= steady {
                true => late.push((directory, it.is_pending(), it.before.modified)),
                false => {
                    let left = it.due().saturating_sub(steady);
                    cx.timer = cx.timer.min(now.saturating_add(left));
                }
            }
        }
        for (directory, is_pending, before) in late {
            match is_pending {
                // Listings no longer wait for the answer.
                true => cx.wake(|wait| *wait == Wait::BackingDir(directory)),
                // The next comparison finds the remaining names again.
                false => self.end_comparison(cx, directory, before),
            }
        }
    }
}

impl State {
    /// True if a backing entry may differ from the entry here.
    fn differs(&self, directory: Inode, seen: &BackingEntry<'_>) -> bool {
        let Some((inode, kind)) = self.entries.get(directory, seen.name) else { return true };
        let sync_entry =
            self.sync_entries.get(&inode).and_then(|sync_entry| sync_entry.now.as_ref());
        let of_directory = |mode: u32| mode & mode::TYPE == mode::DIRECTORY;
        !of_directory(kind)
            && (of_directory(seen.mode)
                || sync_entry.is_some_and(|it| it.version.number != seen.number))
    }

    /// Names of backed files that the backing store no longer has.
    fn names_not_among(&self, directory: Inode, keys: &[u128]) -> Vec<Box<[u8]>> {
        let all = self.entries.range(directory, 0, u64::MAX);
        let is_gone = |name: &[u8], inode: Inode, kind: u32| {
            kind & mode::TYPE != mode::DIRECTORY
                && self.has_backing_location(inode)
                && keys.binary_search(&entry_key(directory, name)).is_err()
        };
        let gone = all.filter(|(_, it)| is_gone(&it.name, it.inode, it.mode));
        gone.map(|(_, it)| it.name.clone()).collect()
    }
}
