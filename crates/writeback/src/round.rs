//! One round: what is unsaved is listed and made so below as it is above, as far as that goes now.
//!
//! Order: what a killed writer left half told is looked up (`recover`); names, directories and moves
//! first, until nothing more comes of it, new files then (`contents`); names that are to go; inodes
//! that were changed (`changed`); attributes of directories last, as what is done in them changes their
//! times.
//!
//! A round keeps nothing for the next but what saves looking (`Memory`): each begins with what the
//! instance tells. So an error or a crash at any point leaves a state from which the next goes on.
//!
//! *Invariant:* below nothing is replaced, removed or renamed that is not, by number, time and size,
//! what the instance knows to lie there as its own.
//! *Invariant:* of what lives above, what lies below is never removed before it lies there elsewhere.
//! *Invariant:* where an inode lies is told before it can be seen there, and again after.
//! *Invariant:* what is gone above is told gone before its last name is told free, and is looked for by a
//! name only if a row says that it lies there. A file system gives a number to the next directory at
//! once, and nothing but the number says which directory it is.
//! *Invariant:* a directory lies at one place. So where it may lie at two, as its move is half told, the
//! first that can be looked at says which. One always can: the topmost of those that are half told is in
//! directories that are clear, at whichever of the two it is.

use crate::brake::Brake;
use crate::contents::Job;
use crate::drafts::Written;
use crate::scope::{Fates, Scope};
use crate::sides::{Above, Folder, Lower, Node};
use crate::state::{Lies, Place, Row, Standing, Tried, Trouble};
use below::Kind;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use wire::attributes::write_back;
use wire::below::{Stamp, Version};
use wire::{Attributes, Inode};

/// Directories on the way to one.
const DEPTH_MAX: usize = 1 << 16;
/// Failures that are told by name.
const TOLD_MAX: usize = 100;

/// What a round saves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// What is due.
    Plainly,
    /// All, also what is written to, but for what is never.
    Flush,
    /// As somebody waits for room: all that is closed, but for what is never, and a little at a time, as
    /// there is room when that is done.
    Hurried,
    /// Nothing: the instance is about to end, and takes away what is its own.
    Leave,
}

/// How it is saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Threads that copy contents.
    pub(crate) threads: usize,
    /// Files of directories that are saved as they cool are saved so long after their last change.
    pub(crate) idle_nanos: i64,
    pub(crate) how: How,
    /// The time, in nanoseconds since 1970.
    pub(crate) now: i64,
}

/// How much a round has still to do, for who looks on.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Names and inodes.
    pub(crate) left: AtomicU64,
    /// Bytes of contents.
    pub(crate) bytes: AtomicU64,
    /// Another number each time when something was done; not while all of it fails.
    pub(crate) moved: AtomicU64,
    /// In the last round something failed, and nothing was saved.
    pub(crate) is_vain: AtomicBool,
    /// Somebody waits for something else than this round is about: it is to end soon.
    pub(crate) is_urgent: AtomicBool,
    /// How fast contents are saved.
    pub(crate) brake: Brake,
}

impl Counts {
    /// The round is over.
    pub(crate) fn clear(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Something was done.
    pub(crate) fn moves(&self) {
        if !self.is_vain() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// See `is_vain`.
    pub(crate) fn is_vain(&self) -> bool {
        self.is_vain.load(Ordering::Relaxed)
    }

    /// A round is over.
    pub(crate) fn judge(&self, done: &Tried<Report>) {
        let is_vain = done
            .as_ref()
            .map_or(true, |report| report.failed > 0 && report.saved == 0 && report.parts == 0);
        self.is_vain.store(is_vain, Ordering::Relaxed);
    }

    /// One is looked at, and perhaps something is done.
    fn one_less(&self, is_done: bool) {
        if is_done {
            self.moves();
        }
        let less = |left: u64| Some(left.saturating_sub(1));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// What one round leaves the next. It saves work, and is nothing that must be known.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Places below of files with several names.
    pub(crate) links: HashMap<Inode, BTreeSet<Place>>,
    /// Directories in which a killed writer's temporary names are removed.
    swept: HashSet<Inode>,
    /// Places where something else was found than was known.
    pub(crate) contested: HashSet<Place>,
    /// Of files that are written to, how far they were saved last.
    pub(crate) hands: HashMap<Inode, u64>,
    /// Until when nobody who waits for room is hurried for, as that was in vain.
    pub(crate) rests_until: Option<Instant>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Names and inodes that were saved.
    pub(crate) saved: u64,
    /// Bytes of contents that were written.
    pub(crate) bytes: u64,
    /// Bytes that were saved of files that are written to.
    pub(crate) parts: u64,
    /// What could not be saved, and why; the first of them.
    pub(crate) failures: Vec<(PathBuf, String)>,
    /// How many could not.
    pub(crate) failed: u64,
    /// What is not to be saved yet, and will be by itself.
    pub(crate) waiting: u64,
    /// What is to be saved at the end alone, or never.
    pub(crate) held: u64,
    /// Files that have no name any more and lie aside, as somebody may read on.
    pub(crate) aside: u64,
    /// Bytes of contents that wait or failed.
    pub(crate) bytes_left: u64,
    /// What is to go on after something else, or changed meanwhile.
    pub(crate) open: u64,
    /// The first of that, and why it is not done.
    pub(crate) left: Vec<(PathBuf, String)>,
    /// What was found changed by others, and where ours is now.
    pub(crate) conflicts: Vec<(PathBuf, String)>,
    /// Files of which not all attributes could be saved.
    pub(crate) lost: u64,
    /// What became of which inode, where that is asked for.
    pub(crate) fates: Fates,
}

impl Report {
    /// True if nothing was done, and nothing is to be done now.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Report { failed: 0, open: 0, waiting: 0, saved: 0, .. })
    }

    /// True if all that is left is what lies aside.
    pub(crate) fn is_aside_alone(&self) -> bool {
        self.is_quiet() && self.aside > 0
    }

    pub(crate) fn fail(&mut self, path: PathBuf, why: String) {
        self.failed += 1;
        if self.failures.len() < TOLD_MAX {
            self.failures.push((path, why));
        }
    }
}

/// What is at a place below, against what the instance knows of it.
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// What it knows.
    Ours(Node),
    /// Another thing, or the same changed by others.
    Others(Node),
}

/// True if what is there is the version that is known.
pub(crate) fn is_version(node: &Node, known: &Version) -> bool {
    let is_same = node.version.number == known.number;
    is_same && (node.kind == Kind::Folder || node.version == *known)
}

/// The round.
pub(crate) struct Round<'a> {
    pub(crate) above: &'a dyn Above,
    pub(crate) lower: &'a dyn Lower,
    pub(crate) manner: Manner,
    pub(crate) scope: &'a Scope,
    pub(crate) memory: &'a mut Memory,
    pub(crate) report: Report,
    pub(crate) counts: &'a Counts,
    /// What lies by the names that are unsaved, as far as this round knows, and their entries.
    lies: HashMap<Place, (Inode, Inode)>,
    /// How many of those something lies by, and how many of them are in a directory.
    names_of: HashMap<Inode, u64>,
    names_in: HashMap<Inode, u64>,
    /// Inodes that were gone above before names were listed: all of theirs are in the list.
    dead: HashSet<Inode>,
    /// Inodes that lie another way than could be found out.
    unclear: HashSet<Inode>,
    /// Places where they may lie.
    unclear_places: HashSet<Place>,
    /// Files of which the contents may be half written, in place.
    pub(crate) torn: HashSet<Inode>,
    /// Inodes of which contents are on their way.
    pub(crate) under_way: HashSet<Inode>,
    /// Files that somebody writes to.
    pub(crate) written: Vec<Written>,
    /// Directories in which names changed: their times are to be set again.
    touched: BTreeSet<Inode>,
    /// Directories that this round is to see to, or not; and where those are whose names are unsaved.
    pub(crate) within: HashMap<Inode, bool>,
    pub(crate) ways: HashMap<Inode, Inode>,
    /// Directories of names that it is to see to, by what the names are about.
    pub(crate) parents: HashMap<Inode, Inode>,
    folders: HashMap<Inode, (Folder, PathBuf)>,
    policies: HashMap<Inode, u8>,
}

/// Does a round.
///
/// # Errors
/// What is unsaved can not be known, or the tree below is not there.
pub(crate) fn run(
    above: &dyn Above,
    lower: &dyn Lower,
    (manner, scope): (Manner, &Scope),
    memory: &mut Memory,
    counts: &Counts,
) -> Tried<Report> {
    let mut round = Round {
        above,
        lower,
        manner,
        scope,
        memory,
        report: Report::default(),
        counts,
        lies: HashMap::new(),
        names_of: HashMap::new(),
        names_in: HashMap::new(),
        dead: HashSet::new(),
        unclear: HashSet::new(),
        unclear_places: HashSet::new(),
        torn: HashSet::new(),
        under_way: HashSet::new(),
        written: Vec::new(),
        touched: BTreeSet::new(),
        within: HashMap::new(),
        ways: HashMap::new(),
        parents: HashMap::new(),
        folders: HashMap::new(),
        policies: HashMap::new(),
    };
    let top = lower.root()?;
    round.folders.insert(Inode::ROOT, (top.clone(), PathBuf::new()));
    if manner.how == How::Leave {
        round.take_leave()?;
        return Ok(round.report);
    }
    let (changed, rows) = round.list()?;
    round.recover(changed);
    let (coming, going): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| !row.entry.is_none());
    round.come(coming);
    round.until_no_more(going, |round, row| round.clear(&row.place, row.lies).map(|()| true));
    round.changed()?;
    round.save_written();
    round.blame();
    if round.report.saved > 0 {
        // Before anybody is told that all is saved.
        lower.sync(&top)?;
    }
    Ok(round.report)
}

impl Round<'_> {
    /// Names that are to be there; directories first, as others are to be in them.
    fn come(&mut self, mut rows: Vec<Row>) {
        rows.sort_by_key(|row| {
            row.mode & wire::attributes::mode::TYPE != wire::attributes::mode::DIRECTORY
        });
        let mut jobs = Vec::new();
        self.until_no_more(rows, |round, row| match round.name(row)? {
            Some(job) => {
                jobs.push(job);
                Ok(false)
            }
            None => Ok(true),
        });
        self.write(jobs);
    }

    /// Does something with each of them, and again with those for which it was too early, until that
    /// helps nobody any more. `with` says whether it is done, or only begun.
    fn until_no_more(
        &mut self,
        mut rows: Vec<Row>,
        mut with: impl FnMut(&mut Self, &Row) -> Tried<bool>,
    ) {
        loop {
            let before = rows.len();
            let mut left = Vec::new();
            for row in rows {
                match self.may_name(&row).and_then(|()| with(self, &row)) {
                    Err(Trouble::NotReady) => left.push(row),
                    // A job is on its way.
                    Ok(false) => {}
                    done => self.note((of_row(&row), &row.place), done.map(|_| ()), 0),
                }
            }
            rows = left;
            if rows.is_empty() || rows.len() == before {
                for row in &rows {
                    self.leave_open(&row.place, &Trouble::NotReady);
                    self.report.fates.leave(of_row(row));
                }
                return;
            }
        }
    }

    /// Counts what came of something.
    pub(crate) fn note(&mut self, (inode, place): (Inode, &Place), done: Tried<()>, bytes: u64) {
        let is_done = !matches!(done, Err(Trouble::Waits | Trouble::Held));
        self.counts.one_less(is_done);
        self.report.fates.note(inode, &done);
        match done {
            Ok(()) => self.report.saved += 1,
            Err(trouble @ (Trouble::Again | Trouble::NotReady)) => self.leave_open(place, &trouble),
            Err(Trouble::Waits) => {
                self.report.waiting += 1;
                self.report.bytes_left += bytes;
            }
            Err(Trouble::Held) => self.report.held += 1,
            Err(trouble) => {
                self.report.bytes_left += bytes;
                self.report.fail(self.path(place), trouble.to_string());
            }
        }
    }

    /// The next round goes on with it.
    pub(crate) fn leave_open(&mut self, place: &Place, why: &Trouble) {
        self.report.open += 1;
        if self.report.left.len() < TOLD_MAX {
            let path = self.path(place);
            self.report.left.push((path, why.to_string()));
        }
    }

    /// A path below, as far as it is known and as it can be said.
    pub(crate) fn path(&self, place: &Place) -> PathBuf {
        let known = self.folders.get(&place.parent).map(|(_, path)| path.as_path());
        let path = known.unwrap_or(Path::new("?")).join(&place.name);
        PathBuf::from(path.to_string_lossy().into_owned())
    }

    pub(crate) fn conflict(&mut self, place: &Place, what: String) {
        let path = self.path(place);
        self.report.conflicts.push((path, what));
    }

    /// True if what is to be saved at the end is to be saved now.
    fn is_asked_for(&self) -> bool {
        self.manner.how != How::Plainly || self.scope.is_only
    }

    /// Are names of this directory to be saved now?
    fn may_name(&mut self, row: &Row) -> Tried<()> {
        if self.unclear_places.contains(&row.place) {
            return Err(Trouble::NotReady);
        }
        match self.policy(row.place.parent)? {
            write_back::NEVER => Err(Trouble::Held),
            write_back::END if !self.is_asked_for() => Err(Trouble::Held),
            _ => Ok(()),
        }
    }

    /// Are the contents of a file that is in this directory to be saved now?
    pub(crate) fn may_write(&mut self, directory: Inode, file: &Standing) -> Tried<()> {
        let policy = self.policy(directory)?;
        let changed = file.attributes.map_or(0, |attributes| attributes.changed);
        let is_hurried = self.manner.how == How::Hurried;
        let is_warm = changed.saturating_add(self.manner.idle_nanos) > self.manner.now;
        match policy {
            write_back::NEVER => Err(Trouble::Held),
            _ if self.manner.how == How::Flush || self.scope.has(file.inode) => Ok(()),
            write_back::END if !is_hurried => Err(Trouble::Held),
            _ if file.is_written => Err(Trouble::Waits),
            write_back::COOLING if is_warm && !is_hurried => Err(Trouble::Waits),
            _ => Ok(()),
        }
    }

    fn policy(&mut self, directory: Inode) -> Tried<u8> {
        if let Some(policy) = self.policies.get(&directory) {
            return Ok(*policy);
        }
        let attributes = self.above.standing(directory)?.and_then(|found| found.attributes);
        let of = |attributes: Attributes| attributes.layout.write_back();
        let policy = attributes.map_or(write_back::CLOSE, of);
        self.policies.insert(directory, policy);
        Ok(policy)
    }

    /// The directory below of one above; `None` if there is none yet.
    pub(crate) fn folder(&mut self, directory: Inode) -> Tried<Option<Folder>> {
        let (mut ways, mut at) = (Vec::new(), directory);
        let (mut here, mut path) = loop {
            if let Some(known) = self.folders.get(&at) {
                break known.clone();
            }
            let Some(standing) = self.above.standing(at)? else { return Ok(None) };
            let (is_gone, is_clear) = (standing.is_gone(), standing.next.is_none());
            let Some(now) = standing.now else { return Ok(None) };
            ways.push((at, now.place.name, now.version.number, (is_gone, is_clear)));
            at = now.place.parent;
            if ways.len() > DEPTH_MAX {
                return Err(Trouble::Below(io::Error::other("directories in a ring")));
            }
        };
        for (inode, name, number, (is_gone, is_clear)) in ways.into_iter().rev() {
            if !is_clear && self.lower.is_far() {
                // Some of what is in it may be here and some there.
                return Err(Trouble::NotReady);
            }
            let found = match self.lower.folder(&here, &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_clear => {
                    // It may be where it was about to be, with all that is in it.
                    return Err(Trouble::NotReady);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_gone => {
                    return Ok(None);
                }
                found => found?,
            };
            if found.number()? != number {
                if !is_clear {
                    return Err(Trouble::NotReady);
                }
                let why = format!("another directory has the name {}", name.display());
                return Err(Trouble::Below(io::Error::other(why)));
            }
            path = path.join(&name);
            here = found;
            self.folders.insert(inode, (here.clone(), path.clone()));
        }
        Ok(Some(here))
    }

    /// As `folder`, of one that has to be there, and in which names are about to change: says so first,
    /// so that its times are set again also if this writer is killed.
    pub(crate) fn folder_to_change(&mut self, directory: Inode) -> Tried<Folder> {
        let folder = self.folder(directory)?.ok_or(Trouble::NotReady)?;
        if directory != Inode::ROOT && !self.touched.contains(&directory) {
            self.touch(directory)?;
        }
        if !self.lower.is_far() && self.memory.swept.insert(directory) {
            for name in self.lower.names(&folder)? {
                self.sweep_kept(&Place { parent: directory, name })?;
            }
        }
        Ok(folder)
    }

    /// A directory is elsewhere, or may be: what is open stays right, its path does not, nor do those of
    /// directories in it.
    pub(crate) fn forget_folder(&mut self, directory: Inode) {
        if self.folders.remove(&directory).is_some() && self.lower.is_far() {
            self.folders.retain(|inode, _| *inode == Inode::ROOT);
        }
    }

    /// Those that nothing is done in any more this round.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<Inode> {
        std::mem::take(&mut self.touched)
    }

    /// Its times, and what else it has, are to be set again: it is told to lie there as it never was, so
    /// that it is among the changed inodes until that is done.
    fn touch(&mut self, directory: Inode) -> Tried<()> {
        let standing = self.standing(directory)?.ok_or(Trouble::Again)?;
        if let Standing { attributes: Some(_), now: Some(now), .. } = standing {
            let stamp = Stamp { changed: 0, ..now.stamp };
            self.above.wrote(directory, &Lies { stamp, ..now })?;
            self.touched.insert(directory);
        }
        Ok(())
    }

    /// What is at a place, where the instance knows `known` to be, by number alone if only the name is
    /// its.
    pub(crate) fn look(&mut self, place: &Place, known: Option<&Version>) -> Tried<Found> {
        let Some(folder) = self.folder(place.parent)? else { return Ok(Found::Nothing) };
        Ok(match (self.lower.node(&folder, &place.name)?, known) {
            (None, _) => Found::Nothing,
            (Some(node), Some(known)) if is_version(&node, known) => Found::Ours(node),
            (Some(node), _) => Found::Others(node),
        })
    }

    /// True if that is so of an inode.
    pub(crate) fn is_unclear(&self, inode: Inode) -> bool {
        self.unclear.contains(&inode)
    }

    /// From now on it is not known whether an inode lies at a place.
    pub(crate) fn set_unclear(&mut self, inode: Inode, place: &Place) {
        self.unclear.insert(inode);
        self.unclear_places.insert(place.clone());
    }

    /// It is.
    pub(crate) fn set_clear(&mut self, inode: Inode, place: &Place) {
        self.unclear.remove(&inode);
        self.unclear_places.remove(place);
    }

    /// How an inode stands, once it is clear where it lies.
    pub(crate) fn standing(&self, inode: Inode) -> Tried<Option<Standing>> {
        match self.unclear.contains(&inode) {
            true => Err(Trouble::NotReady),
            false => Ok(self.above.standing(inode)?),
        }
    }

    /// What is unsaved by a name is another from now on.
    pub(crate) fn saved(&mut self, place: &Place, from: Inode, to: Inode) -> Tried<()> {
        self.above.saved(place, from, to)?;
        if let Some(&(lies, entry)) = self.lies.get(place) {
            self.count(place.parent, lies, false);
            if entry == to {
                self.lies.remove(place);
            } else {
                self.lies.insert(place.clone(), (to, entry));
                self.count(place.parent, to, true);
            }
        }
        Ok(())
    }

    fn count(&mut self, parent: Inode, lies: Inode, is_new: bool) {
        if lies.is_none() {
            return;
        }
        for (counts, inode) in [(&mut self.names_of, lies), (&mut self.names_in, parent)] {
            let count = counts.entry(inode).or_default();
            *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// What a row says lies below, as far as this round has not changed that.
    pub(crate) fn lies_at(&self, place: &Place) -> Inode {
        self.lies.get(place).map_or(Inode::NONE, |(lies, _)| *lies)
    }

    /// What is unsaved: inodes, and then names, so that all names of those that are gone are among them.
    pub(crate) fn list(&mut self) -> Tried<(Vec<Standing>, Vec<Row>)> {
        let changed = self.above.changed().map_err(Trouble::Above)?;
        let rows = self.above.rows().map_err(Trouble::Above)?;
        let gone = changed.iter().filter(|standing| standing.is_gone());
        self.dead = gone.map(|standing| standing.inode).collect();
        (self.names_of, self.names_in) = (HashMap::new(), HashMap::new());
        rows.iter().for_each(|row| self.count(row.place.parent, row.lies, true));
        let lies = rows.iter().map(|row| (row.place.clone(), (row.lies, row.entry)));
        self.lies = lies.collect();
        let (changed, rows) = self.in_scope(changed, rows)?;
        self.counts.left.store((rows.len() + changed.len()) as u64, Ordering::Relaxed);
        Ok((changed, rows))
    }

    /// True if something of an inode lies by a name that is not its any more.
    pub(crate) fn has_old_names(&self, inode: Inode) -> bool {
        self.names_of.get(&inode).is_some_and(|&count| count > 0)
    }

    /// True if something of ours may lie by names in a directory.
    pub(crate) fn has_names_in(&self, directory: Inode) -> bool {
        self.names_in.get(&directory).is_some_and(|&count| count > 0)
    }

    /// True if an inode was gone above before names were listed.
    pub(crate) fn is_dead(&self, inode: Inode) -> bool {
        self.dead.contains(&inode)
    }

    /// True if an inode is gone above, and a place is the last name that may have to go below.
    pub(crate) fn is_last_name(&self, inode: Inode, place: &Place) -> bool {
        let is_last = self.names_of.get(&inode) == Some(&1) && self.lies_at(place) == inode;
        self.dead.contains(&inode) && is_last
    }

    /// True if an inode is gone above, and no name is left that may have to go below.
    pub(crate) fn is_all_gone(&self, inode: Inode) -> bool {
        self.dead.contains(&inode) && !self.has_old_names(inode)
    }

    /// Brings contents below.
    pub(crate) fn write(&mut self, jobs: Vec<Job>) {
        crate::contents::write(self, jobs);
    }
}

/// Which inode an unsaved name is about.
pub(crate) fn of_row(row: &Row) -> Inode {
    if row.entry.is_none() { row.lies } else { row.entry }
}
