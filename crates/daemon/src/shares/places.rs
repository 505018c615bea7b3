//! Which of the directories that rules name a file is in, as far as that is known here, and the requests
//! that wait until it is. `resolver` finds it out.
//!
//! A place that is known is used for `FRESH`, then used and asked for again: so a request waits only for
//! a file of which nothing is known, and a directory that moves counts as moved a second later.
//!
//! Invariants:
//!  1. Requests of a file reach the dispatcher in the order in which they came: while one waits here, the
//!     later ones do; and those that waited go to the dispatcher under the lock under which the place
//!     becomes known.
//!  2. Each file that a request waits for is asked for. So each answer (`publish`) ends all waits for its
//!     files, unless the rules have changed meanwhile; then they are asked for again.

use crate::sessions::client_session::ClientSession;
use crate::shares::accounts::ShareRange;
use qos::rules::Operation;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::{DaemonIndex, Inode};

/// How long a place is taken for the same.
const FRESH: Duration = Duration::from_secs(1);
/// How long a file that was not found is taken for one outside of all directories.
const UNFOUND: Duration = Duration::from_millis(100);
/// A place that was not asked for since is not used any more.
const OLD: Duration = Duration::from_secs(60);
/// Files whose places are remembered: some 8 MiB.
const KNOWN_MAX: usize = 1 << 16;

/// The directories that rules name, as the rules write them.
pub(crate) type NamedDirs = Arc<[Arc<str>]>;

/// A request whose file's directory is not known yet.
pub(crate) struct UnplacedRequest {
    /// Its session.
    pub(crate) client: Arc<ClientSession>,
    /// Its slot there.
    pub(crate) slot: u16,
    /// The worker that carries it out.
    pub(crate) worker: usize,
    /// Its operation.
    pub(crate) operation: Operation,
    /// The daemon that it goes to.
    pub(crate) daemon: DaemonIndex,
    /// The pool of its file; 0: none, or it moves few bytes.
    pub(crate) pool: u8,
    /// Bytes that it moves, and where.
    pub(crate) moved: Option<(u64, ShareRange)>,
}

/// The place of a file: the deepest of the named directories that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this one.
    In(Arc<str>),
    /// In none of them.
    Outside,
    /// Its own directory cannot be found.
    Unfound,
}

impl Place {
    /// The directory, as rules ask for it.
    pub(crate) fn dir(&self) -> Option<&Arc<str>> {
        match self {
            Place::In(dir) => Some(dir),
            Place::Outside | Place::Unfound => None,
        }
    }
}

struct KnownPlace {
    place: Place,
    found_at: Instant,
}

struct PlacesState<R> {
    named: NamedDirs,
    known: HashMap<Inode, KnownPlace>,
    /// Files to find, and those that `resolver` looks for now.
    asked: BTreeSet<Inode>,
    waiting: HashMap<Inode, Vec<R>>,
}

/// See the module. `R` is a request.
pub(crate) struct FilePlaces<R = UnplacedRequest> {
    state: Mutex<PlacesState<R>>,
    arrived: Condvar,
}

/// The places, while nobody else looks at them or changes them.
pub(crate) struct LockedPlaces<'a, R = UnplacedRequest> {
    state: MutexGuard<'a, PlacesState<R>>,
    arrived: &'a Condvar,
}

impl<R> Default for FilePlaces<R> {
    fn default() -> FilePlaces<R> {
        let state = PlacesState {
            named: Arc::default(),
            known: HashMap::new(),
            asked: BTreeSet::new(),
            waiting: HashMap::new(),
        };
        FilePlaces { state: Mutex::new(state), arrived: Condvar::new() }
    }
}

impl<R> FilePlaces<R> {
    pub(crate) fn lock(&self) -> LockedPlaces<'_, R> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        LockedPlaces { state, arrived: &self.arrived }
    }

    /// Waits until files are asked for; takes them, and the directories of the rules.
    pub(crate) fn take_asked(&self) -> (NamedDirs, Vec<Inode>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.asked.is_empty() {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let asked = std::mem::take(&mut state.asked);
        (Arc::clone(&state.named), asked.into_iter().collect())
    }
}

impl<R> LockedPlaces<'_, R> {
    /// The rules name these directories now.
    pub(crate) fn set_named(&mut self, named: Vec<Arc<str>>) {
        if *self.state.named != *named {
            self.state.named = named.into();
            self.state.known.clear();
        }
    }

    /// True if no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.waiting.is_empty()
    }

    /// The place of a file that never waits for it.
    pub(crate) fn known(&self, inode: Inode) -> Place {
        self.state.known.get(&inode).map_or(Place::Unfound, |known| known.place.clone())
    }

    /// The place of a file; `None`: the request waits for it.
    pub(crate) fn find_or_wait(
        &mut self,
        now: Instant,
        inode: Inode,
        request: impl FnOnce() -> R,
    ) -> Option<Place> {
        let state = &mut *self.state;
        if let Some(before) = state.waiting.get_mut(&inode) {
            before.push(request());
            return None;
        }
        if state.named.is_empty() {
            return Some(Place::Outside);
        }
        let known = state.known.get(&inode).filter(|known| {
            let age = now.saturating_duration_since(known.found_at);
            age < if known.place == Place::Unfound { UNFOUND } else { OLD }
        });
        if let Some(known) = known {
            let is_old = now.saturating_duration_since(known.found_at) >= FRESH;
            if is_old && state.asked.insert(inode) {
                self.arrived.notify_one();
            }
            return Some(known.place.clone());
        }
        state.waiting.insert(inode, vec![request()]);
        state.asked.insert(inode);
        self.arrived.notify_one();
        None
    }

    /// Files were found with these directories of rules; `release` gets the requests that waited.
    pub(crate) fn publish(
        &mut self,
        now: Instant,
        named: &NamedDirs,
        found: Vec<(Inode, Place)>,
        release: &mut dyn FnMut(R, &Place),
    ) {
        let state = &mut *self.state;
        if !Arc::ptr_eq(named, &state.named) {
            let waited = found.iter().filter(|(inode, _)| state.waiting.contains_key(inode));
            state.asked.extend(waited.map(|(inode, _)| *inode));
            return;
        }
        if state.known.len() + found.len() > KNOWN_MAX {
            state.known.retain(|_, known| now.saturating_duration_since(known.found_at) < FRESH);
        }
        if state.known.len() + found.len() > KNOWN_MAX {
            state.known.clear();
        }
        for (inode, place) in found {
            for request in state.waiting.remove(&inode).into_iter().flatten() {
                release(request, &place);
            }
            state.known.insert(inode, KnownPlace { place, found_at: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Inode = Inode(77);

    fn dirs(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|&name| Arc::from(name)).collect()
    }

    /// Publishes one file; the requests that were released, with their places.
    fn publish(
        places: &FilePlaces<u32>,
        now: Instant,
        named: &NamedDirs,
        place: &Place,
    ) -> Vec<(u32, Place)> {
        let mut released = Vec::new();
        let found = vec![(FILE, place.clone())];
        places.lock().publish(now, named, found, &mut |request, place| {
            released.push((request, place.clone()));
        });
        released
    }

    #[test]
    fn requests_of_a_file_wait_in_their_order_until_it_is_found() {
        let places = FilePlaces::<u32>::default();
        let now = Instant::now();
        assert_eq!(places.lock().find_or_wait(now, FILE, || 0), Some(Place::Outside));
        places.lock().set_named(dirs(&["/a"]));
        assert_eq!(places.lock().find_or_wait(now, FILE, || 1), None);
        // Also when the rules name no directory any more.
        places.lock().set_named(Vec::new());
        assert_eq!(places.lock().find_or_wait(now, FILE, || 2), None);
        assert!(!places.lock().is_empty());
        let (named, asked) = places.take_asked();
        assert_eq!((named.len(), asked), (0, vec![FILE]));
        let released = publish(&places, now, &named, &Place::Outside);
        assert_eq!(released, [(1, Place::Outside), (2, Place::Outside)]);
        assert!(places.lock().is_empty());
    }

    #[test]
    fn an_answer_for_other_rules_ends_no_wait() {
        let places = FilePlaces::<u32>::default();
        let now = Instant::now();
        places.lock().set_named(dirs(&["/a"]));
        assert_eq!(places.lock().find_or_wait(now, FILE, || 1), None);
        let (old, _) = places.take_asked();
        places.lock().set_named(dirs(&["/b"]));
        assert_eq!(publish(&places, now, &old, &Place::Outside), []);
        let (new, asked) = places.take_asked();
        assert_eq!((&*new, &asked[..]), (&dirs(&["/b"])[..], &[FILE][..]));
        let place = Place::In("/b".into());
        assert_eq!(publish(&places, now, &new, &place), [(1, place.clone())]);
        assert_eq!(places.lock().find_or_wait(now, FILE, || 2), Some(place));
    }

    #[test]
    fn what_is_known_is_used_while_it_is_asked_for_again() {
        let places = FilePlaces::<u32>::default();
        let begun = Instant::now();
        places.lock().set_named(dirs(&["/a"]));
        assert_eq!(places.lock().find_or_wait(begun, FILE, || 1), None);
        let (named, _) = places.take_asked();
        let place = Place::In("/a".into());
        publish(&places, begun, &named, &place);
        assert_eq!(places.lock().find_or_wait(begun, FILE, || 2), Some(place.clone()));
        assert!(places.lock().state.asked.is_empty());
        let later = begun + FRESH;
        assert_eq!(places.lock().find_or_wait(later, FILE, || 3), Some(place));
        assert_eq!(places.take_asked().1, [FILE]);
        assert_eq!(places.lock().find_or_wait(begun + OLD, FILE, || 4), None);
        // One that could not be found is soon looked for again.
        publish(&places, begun, &named, &Place::Unfound);
        assert_eq!(places.lock().find_or_wait(begun, FILE, || 5), Some(Place::Unfound));
        assert_eq!(places.lock().find_or_wait(begun + UNFOUND, FILE, || 6), None);
    }

    #[test]
    fn the_number_of_known_files_is_bounded() {
        let places = FilePlaces::<u32>::default();
        let now = Instant::now();
        places.lock().set_named(dirs(&["/a"]));
        let named = Arc::clone(&places.lock().state.named);
        for part in 0..3 {
            let numbers = (0..KNOWN_MAX as u64 / 2).map(|number| part << 32 | number);
            let found = numbers.map(|number| (Inode(number), Place::Outside)).collect();
            places.lock().publish(now, &named, found, &mut |_, _| ());
            assert!(places.lock().state.known.len() <= KNOWN_MAX);
        }
    }
}
