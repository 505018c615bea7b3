//! What others change in the backing directory behind our back, noticed name by name.
//!
//! Who looks for a name in a directory from below has it looked for there, too, if that was not done
//! within the last term (`Config::look_nanos`). A file that is another there by number, time or size gets
//! a new inode in place of the old one; a name that is gone there goes here, one that is new there comes.
//! One look serves all who come meanwhile. Until the term is over the index tells clients of the name, so
//! nobody asks anything; then the index forgets it.
//!
//! States of a name: fresh (`live.fresh`, for a term) -> nothing is known -> asked (`live.looks`) ->
//! answered -> fresh.
//!
//! Invariants
//! 1. Only what is settled is looked for: an entry that is what lies below, and of which nothing is
//!    unsaved, being saved, or open to be written to. The same is asked again of an answer, and of where
//!    the file was said to lie: our own saves are no change of others, and what was changed here
//!    meanwhile stays.
//! 2. A look that is not answered in `PATIENCE_NANOS` keeps nobody: all go on with what is here, until
//!    it is answered.
//! 3. The old inode is as one that was replaced by a rename: who has it open keeps what is here of it.
//! 4. An index that knows a name that may be another below is told to forget it in time: each change of
//!    such a name makes it fresh (`note_fresh`).
//!
//! Directories are not looked for, nor is what lies in one that was made here, or moved here from
//! another.

use std::collections::{BTreeMap, VecDeque};

use wire::attributes::mode;
use wire::below::Version;
use wire::errno::Result;
use wire::hash::entry_key;
use wire::limits::SYMLINK_BYTES_MAX;
use wire::{Attributes, Inode, Request, ShardIndex};

use crate::effect::{Effect, IndexOp, Seen};
use crate::keys::Key;
use crate::live::{Ask, NEVER, Step, Stop, Wait};
use crate::mounts::Changing;
use crate::record::Record;
use crate::service::Service;
use crate::standing::Below;

/// Who waits for a look goes on without it after this.
const PATIENCE_NANOS: i64 = 1_000_000_000;
/// An answer that nobody took is old after this: who waits for mounts takes so long.
const ANSWER_NANOS: i64 = 5_000_000_000;
/// Looks that are under way or not taken, at most; who comes beyond goes on with what is here.
const LOOKS_MAX: usize = 4096;
/// Names that are fresh, at most; of the oldest beyond it nothing is known.
const FRESH_MAX: usize = 1 << 16;

/// What was found by a name below.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    /// Without name, target and extended attributes.
    seen: Seen<'static>,
    target: Vec<u8>,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Found {
    fn of(seen: &Seen<'_>) -> Found {
        let Seen { mode, uid, gid, links, size, accessed, modified, changed, born, .. } = *seen;
        let (device, number) = (seen.device, seen.number);
        let times = Seen { accessed, modified, changed, born, ..Seen::default() };
        let seen_here = Seen { mode, uid, gid, links, size, device, number, ..times };
        let (target, extended) = (seen.target.to_vec(), seen.extended.to_vec());
        Found { seen: seen_here, target, extended }
    }

    const fn version(&self) -> Version {
        let Seen { number, modified, size, .. } = self.seen;
        Version { number, modified, size }
    }
}

/// A name that is looked for below.
#[derive(Clone, Debug)]
struct Look {
    /// By the steady clock.
    asked: i64,
    /// What the name was then.
    before: Settled,
    /// `None`: there is no answer yet.
    answer: Option<Result<Option<Found>>>,
}

/// What a settled name is: a file and where it lies, or nothing.
type Settled = Option<(Inode, Below)>;

/// Names that are looked for below, and those that were. By `wire::hash::entry_key`.
#[derive(Default)]
pub(crate) struct Follow {
    looks: BTreeMap<u128, Look>,
    fresh: BTreeMap<u128, i64>,
    /// The same in order of time.
    ends: VecDeque<(i64, u128)>,
}

impl Follow {
    fn is_fresh(&self, key: u128, steady: i64) -> bool {
        self.fresh.get(&key).is_some_and(|&until| until > steady)
    }

    fn is_hanging(&self, steady: i64) -> bool {
        let is_late = |look: &Look| {
            look.answer.is_none() && look.asked.saturating_add(PATIENCE_NANOS) <= steady
        };
        self.looks.values().any(is_late)
    }
}

impl Service {
    pub(crate) fn follows(&self, directory: Inode) -> bool {
        let may = directory.is_from_below() || directory == Inode::ROOT;
        may && self.config.backing && self.config.look_nanos != NEVER
    }

    /// The index is about to know an entry, or that there is none: for a term, if it may be another
    /// below.
    pub(crate) fn note_fresh(&mut self, directory: Inode, key: u128, entry: Option<(Inode, u32)>) {
        let is_looked_for = |(inode, kind): (Inode, u32)| {
            kind & mode::TYPE != mode::DIRECTORY && self.lies_below(inode)
        };
        if !self.follows(directory) || !entry.is_none_or(is_looked_for) {
            return;
        }
        let until = self.live.steady.saturating_add(self.config.look_nanos);
        self.put_fresh(key, until);
    }

    /// True if something of an inode lies below, as the writer or whoever saw it there told this service.
    pub(crate) fn lies_below(&self, inode: Inode) -> bool {
        self.state.below.get(&inode).is_some_and(|below| below.now.is_some())
    }

    /// A file that was made here lies below from now on, and may become another there.
    pub(crate) fn note_saved(&mut self, inode: Inode) {
        let Some(now) = self.state.below.get(&inode).and_then(|below| below.now.clone()) else {
            return;
        };
        let entry = self.state.entries.get(now.parent, &now.name);
        if entry.is_some_and(|found| found.0 == inode) {
            self.note_fresh(now.parent, entry_key(now.parent, &now.name), entry);
        }
    }

    fn put_fresh(&mut self, key: u128, until: i64) {
        let follow = &mut self.live.follow;
        if follow.is_fresh(key, self.live.steady) {
            return;
        }
        follow.fresh.insert(key, until);
        // In order but for looks that took long, whose names just stay for longer in the index.
        follow.ends.push_back((until, key));
        if follow.ends.len() > FRESH_MAX {
            self.end_first_fresh();
        }
        let left = until.saturating_sub(self.live.steady).max(0);
        self.live.wake_at(self.live.now.saturating_add(left));
    }

    fn end_first_fresh(&mut self) {
        let follow = &mut self.live.follow;
        if let Some((until, key)) = follow.ends.pop_front()
            && follow.fresh.get(&key) == Some(&until)
        {
            follow.fresh.remove(&key);
            self.io.index(IndexOp::ForgetEntry { key });
        }
    }

    pub(crate) fn is_fresh(&self, key: u128) -> bool {
        self.live.follow.is_fresh(key, self.live.steady)
    }

    /// A name may be another below, whenever it was looked for.
    pub(crate) fn end_fresh(&mut self, key: u128) {
        if self.live.follow.fresh.remove(&key).is_some() {
            self.io.index(IndexOp::ForgetEntry { key });
        }
    }

    /// What time brings.
    pub(crate) fn keep_follow(&mut self) {
        let (now, steady) = (self.live.now, self.live.steady);
        while self.live.follow.ends.front().is_some_and(|&(until, _)| until <= steady) {
            self.end_first_fresh();
        }
        if let Some(&(until, _)) = self.live.follow.ends.front() {
            self.live.wake_at(now.saturating_add(until - steady));
        }
        let looks = &mut self.live.follow.looks;
        let is_old = |look: &Look| look.asked.saturating_add(ANSWER_NANOS) <= steady;
        looks.retain(|_, look| look.answer.is_none() || !is_old(look));
        let mut late = Vec::new();
        for (&key, look) in looks.iter().filter(|(_, look)| look.answer.is_none()) {
            let until = look.asked.saturating_add(PATIENCE_NANOS);
            match until <= steady {
                true => late.push(key),
                false => self.live.timer = self.live.timer.min(now.saturating_add(until - steady)),
            }
        }
        let is_late = |wait: &Wait| matches!(wait, Wait::Look(key) if late.contains(key));
        if !late.is_empty() {
            self.live.wake(is_late);
        }
    }

    /// Before a request tells what a name is: is it what lies below?
    pub(crate) fn follow_for(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        match *request {
            Request::Lookup { parent, name } => self.follow(ask, parent, name),
            Request::Look { inode, name } if !name.is_empty() => self.follow(ask, inode, name),
            // What is made is not looked for: it would be waited for below by each who makes a file.
            Request::Create { parent, name, .. }
                if self.state.entries.get(parent, name).is_some() =>
            {
                self.follow(ask, parent, name)
            }
            Request::ReadDirectory { directory, after: 0, .. } => self.follow_names(ask, directory),
            _ => Ok(()),
        }
    }

    /// True if a name has to be looked for below before anything is told of it.
    pub(crate) fn is_to_be_followed(&self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> bool {
        self.follows(parent)
            && !self.live.follow.is_fresh(entry_key(parent, name), self.live.steady)
            && self.settled(ask, parent, name).is_some()
    }

    /// Goes on when a name is what lies below, or is not to be looked for.
    pub(crate) fn follow(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Step<()> {
        if !self.is_to_be_followed(ask, parent, name) || wire::name::Name::parse(name).is_err() {
            return Ok(());
        }
        let (key, steady) = (entry_key(parent, name), self.live.steady);
        match self.live.follow.looks.get(&key) {
            Some(Look { answer: Some(_), .. }) => return self.take_answer(ask, parent, name),
            Some(look) if look.asked.saturating_add(PATIENCE_NANOS) <= steady => return Ok(()),
            Some(_) => return Err(Stop::Wait(Wait::Look(key))),
            None => {}
        }
        let follow = &self.live.follow;
        if follow.looks.len() >= LOOKS_MAX || follow.is_hanging(steady) {
            return Ok(());
        }
        let Some(before) = self.settled(ask, parent, name) else { return Ok(()) };
        let place = match self.path_of(ask, parent) {
            Ok(place) => place,
            Err(stop @ Stop::Wait(_)) => return Err(stop),
            // It lies nowhere now.
            Err(_) => return Ok(()),
        };
        self.live.follow.looks.insert(key, Look { asked: steady, before, answer: None });
        self.live.wake_at(self.live.now.saturating_add(PATIENCE_NANOS));
        self.io.push(Effect::Look { key, place, name: name.to_vec() });
        Err(Stop::Wait(Wait::Look(key)))
    }

    /// What lies below by a name, or why that is not known.
    pub(crate) fn take_look(&mut self, key: u128, outcome: Result<Option<Seen<'_>>>) {
        let Some(look) = self.live.follow.looks.get_mut(&key) else {
            return self.take_time(key, outcome);
        };
        look.answer = Some(outcome.map(|seen| seen.as_ref().map(Found::of)));
        self.live.wake(|wait| *wait == Wait::Look(key));
        // Nobody may be there to take it.
        self.live.wake_at(self.live.now.saturating_add(ANSWER_NANOS));
    }

    /// What a name is, if nothing of it is unsaved and nobody may write to it. The inode is this
    /// service's then.
    fn settled(&self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Option<Settled> {
        if self.state.unsaved.get(parent, name).is_some() {
            return None;
        }
        let Some((inode, kind)) = self.state.entries.get(parent, name) else { return Some(None) };
        let below = self.state.below.get(&inode)?;
        let attributes = &self.state.inodes.get(inode)?.attributes;
        let now = below.now.as_ref()?;
        let is_settled = kind & mode::TYPE != mode::DIRECTORY
            && (now.parent, &*now.name) == (parent, name)
            && below.next.is_none()
            && attributes.links == 1
            && !self.state.changed.contains(&inode)
            && !self.may_be_written(ask, attributes);
        is_settled.then(|| Some((inode, below.clone())))
    }

    /// There is an answer.
    fn take_answer(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Step<()> {
        let key = entry_key(parent, name);
        let Some(look) = self.live.follow.looks.get(&key).cloned() else { return Ok(()) };
        let is_late = look.asked.saturating_add(ANSWER_NANOS) <= self.live.steady;
        if is_late || self.settled(ask, parent, name).as_ref() != Some(&look.before) {
            // It says nothing of what is here now.
            self.live.follow.looks.remove(&key);
            return Ok(());
        }
        if let Some(Ok(found)) = &look.answer
            && !is_as_before(look.before.as_ref(), found.as_ref(), &self.state)
        {
            self.check_key(&Key::Frozen(parent))?;
            let directory = self.directory(ask, parent)?;
            if !self.config.owns(ShardIndex(directory.layout.place)) {
                return Err(Stop::Stale);
            }
            let old = look.before.as_ref().map(|before| before.0);
            let inode = old.unwrap_or_default();
            use Changing::{Attributes, Name};
            let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
            self.unwatched(ask, &all)?;
            if let Some(inode) = old {
                self.keep_for_mounts(ask, inode);
            }
            self.exchange(&directory, name, old, found.as_ref());
        }
        self.live.follow.looks.remove(&key);
        // From when it was asked: it was so at some time since.
        self.put_fresh(key, look.asked.saturating_add(self.config.look_nanos));
        Ok(())
    }

    /// What has a name is another, or gone, or new. All of it is as it lies below.
    fn exchange(
        &mut self,
        directory: &Attributes,
        name: &[u8],
        old: Option<Inode>,
        found: Option<&Found>,
    ) {
        let parent = directory.inode;
        if let Some(inode) = old {
            self.put(&Record::DeleteBelow { inode });
            self.count_seen(directory, -1, 0);
            self.drop_link(inode);
        }
        let is_full = self.state.bytes >= self.config.metadata_bytes_max;
        let fits = |found: &&Found| found.target.len() <= SYMLINK_BYTES_MAX;
        match found.filter(fits) {
            // Over the old entry: no client sees that there is none.
            Some(Found { seen, target, extended }) if old.is_some() || !is_full => {
                self.bring_in(directory, &[Seen { name, target, extended, ..*seen }]);
            }
            _ if old.is_some() => self.put_as_seen(&Record::DeleteEntry { parent, name }),
            _ => {}
        }
    }
}

/// True if what was found below is what is here.
fn is_as_before(
    before: Option<&(Inode, Below)>,
    found: Option<&Found>,
    state: &crate::state::State,
) -> bool {
    match (before, found) {
        (None, None) => true,
        (Some((inode, below)), Some(found)) => {
            let kind = state.inodes.get(*inode).map(|node| node.attributes.mode & mode::TYPE);
            let version = below.now.as_ref().map(|now| now.version);
            version == Some(found.version()) && kind == Some(found.seen.mode & mode::TYPE)
        }
        _ => false,
    }
}
