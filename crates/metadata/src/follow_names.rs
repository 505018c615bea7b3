//! What others make and remove in directories of the backing directory, noticed by who lists them.
//!
//! Who lists a directory from below has its own time of modification looked for there, if that was not
//! done within the last term (`Config::look_nanos`). If it is another than when the directory was read
//! last, its names are read there once more and compared with those that are here. What differs is no
//! more than a hint: each such name is looked for as by who asks for it (`follow`), which decides what
//! is settled and what becomes of it. So nothing that is said of many names at once has to be true
//! by the time it is heard.
//!
//! Stages of a directory: rest -> asked (its time) -> read (its names) -> compared (what differs is
//! looked for) -> rest.
//!
//! Invariants
//! 1. The time of a directory is `known` only if all that was made or removed there until then was
//!    found here, or was looked for since. A time that was not over for a while when names were read
//!    tells nothing: more may come in the same tick of that clock.
//! 2. A listing waits `PATIENCE_NANOS` for names to be read, and as long for those that differ; then it
//!    is of what is here. What came too late is for the next one.
//!
//! Directories that others move or remove stay, as in `follow`.

use std::collections::BTreeMap;

use wire::Inode;
use wire::attributes::mode;
use wire::errno::Result;
use wire::hash::entry_key;

use crate::effect::{Effect, Part, Seen};
use crate::live::{Ask, Step, Stop, Wait};
use crate::service::Service;

/// Who lists goes on with what is here after this.
const PATIENCE_NANOS: i64 = 2_000_000_000;
/// What differs is kept so long for the next listing.
const KEPT_NANOS: i64 = 60_000_000_000;
/// A clock of a file system that stood still for so long goes on with another time: servers count in
/// seconds at worst, and their clocks may be a little behind.
const TICK_NANOS: i64 = 3_000_000_000;
/// Directories of which it is remembered when they were read, at most; a further one takes the place of
/// another.
const DIRECTORIES_MAX: usize = 4096;
/// Directories that are compared at a time, at most.
const COMPARISONS_MAX: usize = 256;
/// Names that are looked for at once for a listing.
const WINDOW: usize = 64;
/// Names that differ, at most; the next listing goes on with others.
const NAMES_MAX: usize = 1 << 16;

/// What is known of a directory.
#[derive(Clone, Copy, Default, Debug)]
struct Known {
    /// For so long its names are as below, by the steady clock.
    until: i64,
    /// Its time of modification there when they were.
    modified: Option<i64>,
}

/// A directory whose names are compared.
#[derive(Debug)]
struct Comparison {
    /// When it was begun, or names were compared, by the steady clock.
    since: i64,
    /// The same by the other one.
    now: i64,
    before: Known,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Its time is asked for. Where it lies, to read its names then.
    Asked {
        place: (Vec<u8>, u64),
    },
    /// Its names are read: their keys, and those that differ.
    Read {
        modified: i64,
        keys: Vec<u128>,
        names: Vec<Box<[u8]>>,
    },
    Compared(Differing),
}

/// Names of a directory that differ, and are looked for.
#[derive(Debug)]
struct Differing {
    names: Vec<Box<[u8]>>,
    /// What its time is known to be when all have been, if that tells something then.
    modified: Option<i64>,
}

impl Comparison {
    /// Until when a listing waits for it.
    const fn end(&self) -> i64 {
        self.since.saturating_add(PATIENCE_NANOS)
    }

    /// When something is due of it: those who wait go on, or what differs is forgotten.
    const fn due(&self) -> i64 {
        self.since.saturating_add(if self.is_asked() { PATIENCE_NANOS } else { KEPT_NANOS })
    }

    /// True if somebody has to answer.
    const fn is_asked(&self) -> bool {
        !matches!(self.stage, Stage::Compared(_))
    }
}

/// Directories that were listed lately, and that are compared.
#[derive(Default)]
pub(crate) struct Listings {
    known: BTreeMap<Inode, Known>,
    under_way: BTreeMap<Inode, Comparison>,
}

/// A time that tells something of names that were read at this moment or later.
fn over(modified: i64, read: i64) -> Option<i64> {
    (modified.saturating_add(TICK_NANOS) <= read).then_some(modified)
}

impl Service {
    /// A directory was just brought in, which was begun at `asked`.
    pub(crate) fn note_brought_in(&mut self, directory: Inode, asked: i64) {
        let until = self.live.steady.saturating_add(self.config.look_nanos);
        // Seen before its names were read: if it is the same then, no name came between.
        let below = self.state.below.get(&directory).and_then(|below| below.now.as_ref());
        let modified = below.and_then(|below| over(below.version.modified, asked));
        if self.follows(directory) {
            self.put_known(directory, Known { until, modified });
        }
    }

    fn put_known(&mut self, directory: Inode, known: Known) {
        let all = &mut self.live.listings.known;
        if all.len() >= DIRECTORIES_MAX && !all.contains_key(&directory) {
            all.pop_first();
        }
        all.insert(directory, known);
    }

    /// Before a directory is listed: goes on when its names are those below, or after a while.
    pub(crate) fn follow_names(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<()> {
        if !self.follows(directory) || !self.state.imported.contains(&directory) {
            return Ok(());
        }
        let (listings, steady) = (&self.live.listings, self.live.steady);
        match listings.under_way.get(&directory) {
            Some(it) if it.is_asked() && it.end() <= steady => Ok(()),
            Some(it) if it.is_asked() => Err(Stop::Wait(Wait::Below(directory))),
            Some(it) => {
                let is_late = it.end() <= steady;
                self.look_for_names(ask, directory).or_else(|stop| match stop {
                    Stop::Wait(_) if is_late => Ok(()),
                    stop => Err(stop),
                })
            }
            None if listings.known.get(&directory).is_some_and(|it| it.until > steady) => Ok(()),
            None => self.ask_time(ask, directory),
        }
    }

    fn ask_time(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<()> {
        let (since, now) = (self.live.steady, self.live.now);
        let under_way = &self.live.listings.under_way;
        // Names take their time where there are many.
        let is_late =
            |it: &Comparison| matches!(it.stage, Stage::Asked { .. }) && it.end() <= since;
        let is_hanging = under_way.values().any(is_late);
        if is_hanging || under_way.len() >= COMPARISONS_MAX {
            return Ok(());
        }
        let place = match self.path_of(ask, directory) {
            Ok(place) => place,
            Err(stop @ Stop::Wait(_)) => return Err(stop),
            // It lies nowhere now.
            Err(_) => return Ok(()),
        };
        let before = self.live.listings.known.get(&directory).copied().unwrap_or_default();
        let stage = Stage::Asked { place: place.clone() };
        let new = Comparison { since, now, before, stage };
        self.live.listings.under_way.insert(directory, new);
        self.live.wake_at(now.saturating_add(PATIENCE_NANOS));
        self.io.push(Effect::Look { key: entry_key(directory, b""), place, name: vec![] });
        Err(Stop::Wait(Wait::Below(directory)))
    }

    /// It is over; who waits goes on.
    fn end_comparison(&mut self, directory: Inode, modified: Option<i64>) {
        let Some(it) = self.live.listings.under_way.remove(&directory) else { return };
        let until = it.since.saturating_add(self.config.look_nanos);
        self.put_known(directory, Known { until, modified });
        self.live.wake(|wait| *wait == Wait::Below(directory));
    }

    /// What a directory itself is below.
    pub(crate) fn take_time(&mut self, key: u128, outcome: Result<Option<Seen<'_>>>) {
        let is_it = |(inode, _): &(&Inode, &mut Comparison)| entry_key(**inode, b"") == key;
        let Some((&directory, it)) = self.live.listings.under_way.iter_mut().find(is_it) else {
            return;
        };
        let Stage::Asked { place } = &mut it.stage else { return };
        let (place, before) = (std::mem::take(place), it.before.modified);
        match outcome {
            Ok(Some(Seen { modified, .. })) if before != Some(modified) => {
                it.stage = Stage::Read { modified, keys: vec![], names: vec![] };
                self.io.push(Effect::Below { directory, place });
            }
            // All is as it was. Or nobody knows: then it stays so until the term is over.
            _ => self.end_comparison(directory, before),
        }
    }

    /// Names of a directory that was read before.
    pub(crate) fn take_names(&mut self, directory: Inode, outcome: Result<Part<'_>>) {
        let Some(it) = self.live.listings.under_way.get_mut(&directory) else { return };
        let (now, before) = (it.now, it.before.modified);
        let Stage::Read { modified, keys, names } = &mut it.stage else { return };
        let modified = *modified;
        let (mut keys, mut names) = (std::mem::take(keys), std::mem::take(names));
        let Ok(part) = outcome else { return self.end_comparison(directory, before) };
        keys.extend(part.entries.iter().map(|seen| entry_key(directory, seen.name)));
        let differs = |seen: &&Seen<'_>| self.differs(directory, seen);
        names.extend(part.entries.iter().filter(differs).map(|seen| Box::from(seen.name)));
        let stage = if part.is_last {
            keys.sort_unstable();
            names.extend(self.names_not_among(directory, &keys));
            let modified = over(modified, now).filter(|_| names.len() <= NAMES_MAX);
            names.truncate(NAMES_MAX);
            names.iter().for_each(|name| self.end_fresh(entry_key(directory, name)));
            Stage::Compared(Differing { names, modified })
        } else {
            Stage::Read { modified, keys, names }
        };
        let (steady, clock) = (self.live.steady, self.live.now);
        if let Some(it) = self.live.listings.under_way.get_mut(&directory) {
            it.stage = stage;
            if part.is_last {
                it.since = steady;
            }
        }
        if part.is_last {
            self.live.wake_at(clock.saturating_add(PATIENCE_NANOS));
            self.live.wake(|wait| *wait == Wait::Below(directory));
        }
    }

    /// True if what was seen by a name below may be another than what is here.
    fn differs(&self, directory: Inode, seen: &Seen<'_>) -> bool {
        let Some((inode, kind)) = self.state.entries.get(directory, seen.name) else { return true };
        let below = self.state.below.get(&inode).and_then(|below| below.now.as_ref());
        let of_directory = |mode: u32| mode & mode::TYPE == mode::DIRECTORY;
        !of_directory(kind)
            && (of_directory(seen.mode) || below.is_some_and(|it| it.version.number != seen.number))
    }

    /// Files that lay below and are not there any more.
    fn names_not_among(&self, directory: Inode, keys: &[u128]) -> Vec<Box<[u8]>> {
        let all = self.state.entries.range(directory, 0, u64::MAX);
        let is_gone = |name: &[u8], inode: Inode, kind: u32| {
            kind & mode::TYPE != mode::DIRECTORY
                && self.lies_below(inode)
                && keys.binary_search(&entry_key(directory, name)).is_err()
        };
        let gone = all.filter(|(_, it)| is_gone(&it.name, it.inode, it.mode));
        gone.map(|(_, it)| it.name.clone()).collect()
    }

    /// Looks for what differs, some names at a time.
    fn look_for_names(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<()> {
        loop {
            let Some(differing) = self.differing(directory) else { return Ok(()) };
            if differing.names.is_empty() {
                let modified = differing.modified;
                self.end_comparison(directory, modified);
                return Ok(());
            }
            let first = differing.names.len().saturating_sub(WINDOW);
            let window = differing.names.split_off(first);
            let (mut left, mut waits, mut is_known) = (Vec::new(), None, true);
            for name in window {
                match self.follow(ask, directory, &name) {
                    Err(stop @ Stop::Wait(_)) => {
                        waits.get_or_insert(stop);
                        left.push(name);
                    }
                    // If not, it is ours, or nobody knows: next time it differs again.
                    _ => is_known &= self.is_fresh(entry_key(directory, &name)),
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
        match &mut self.live.listings.under_way.get_mut(&directory)?.stage {
            Stage::Compared(differing) => Some(differing),
            _ => None,
        }
    }

    /// What time brings.
    pub(crate) fn keep_listings(&mut self) {
        let (now, steady) = (self.live.now, self.live.steady);
        let mut late = Vec::new();
        for (&directory, it) in &self.live.listings.under_way {
            match it.due() <= steady {
                true => late.push((directory, it.is_asked(), it.before.modified)),
                false => {
                    let left = it.due().saturating_sub(steady);
                    self.live.timer = self.live.timer.min(now.saturating_add(left));
                }
            }
        }
        for (directory, is_asked, before) in late {
            match is_asked {
                // Nobody waits any more until it is answered.
                true => self.live.wake(|wait| *wait == Wait::Below(directory)),
                // What is left is found again.
                false => self.end_comparison(directory, before),
            }
        }
    }
}
