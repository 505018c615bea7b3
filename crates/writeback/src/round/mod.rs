//! A round of writeback: lists what is dirty and makes the backing store equal to the instance, as
//! far as possible now.
//!
//! Order: operations that a killed daemon left in doubt (`recover`); names, directories and moves,
//! repeated until nothing more succeeds; new files (`contents`); names to remove; changed inodes
//! (`changed`); metadata of directories last, because changes in a directory change its times.
//! `order` says which job's files come first; `partials` writes parts of files that are open for
//! writing, `leaving` ends an instance, `scope` restricts a round to some files.
//!
//! A round passes only a cache to the next (`RoundCache`): each begins with what the instance
//! reports. So an error or a crash at any point leaves a state from which the next round continues.
//!
//! *Invariant:* in the backing store only files are replaced, removed or renamed that are, by inode
//! number, modification time and size, what the instance knows as its own there.
//! *Invariant:* a file that exists in the instance is never removed from the backing store before
//! it is elsewhere in it.
//! *Invariant:* the location of an inode is announced before it can be seen there, and confirmed
//! after.
//! *Invariant:* a deleted inode is reported as gone before its last backing name is reported free,
//! and is only searched for under names recorded for it. A file system may reuse an inode number
//! for the next directory at once, and only the number identifies a directory.
//! *Invariant:* a directory is at one place. If its move is in doubt, the first of its two places
//! that can be inspected decides. One always can: the topmost directory in doubt is at either place
//! in directories that are not in doubt.

pub(crate) mod names;

pub(crate) mod contents;

pub(crate) mod partials;

pub(crate) mod order;

mod verify;

pub(crate) mod changed;

pub(crate) mod leaving;

pub(crate) mod scope;

use crate::backends::{Backend, Dir, Node};
use crate::instance::Instance;
use crate::rate_limiter::RateLimiter;
use crate::round::contents::WriteJob;
use crate::round::order::JobOrder;
use crate::round::partials::OpenForWrite;
use crate::round::scope::{Outcomes, Scope};
use crate::state::{BackingLocation, DirtyName, Place, SyncState, WritebackError, WritebackResult};
use backing::Kind;
use config::activity::access_times::{AccessLog, FileTimes};
use config::activity::timeline::Timeline;
use config::choice::WritebackVerify;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use wire::attributes::writeback;
use wire::backing::{Stamp, Version};
use wire::{Attributes, Inode};

/// Maximum depth of a directory.
const DEPTH_MAX: usize = 1 << 16;
/// Maximum number of failures that are reported with their paths.
const FAILURES_LISTED_MAX: usize = 100;

/// Why a round runs, which decides what it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trigger {
    /// Periodic: writes what is due.
    Normal,
    /// Flush: writes everything, also files that are open for writing, except in directories with
    /// mode `never`.
    Flush,
    /// A writer waits for space: writes everything that is closed, except in directories with mode
    /// `never`, in small batches, because each batch frees space when it ends.
    Space,
    /// The instance ends: writes nothing, removes private files.
    Shutdown,
}

/// Options of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundOptions {
    /// Number of threads that copy contents.
    pub(crate) threads: usize,
    /// In directories with mode `idle` a file is due this long after its last change.
    pub(crate) idle_nanos: i64,
    pub(crate) trigger: Trigger,
    /// Current time, in nanoseconds since 1970.
    pub(crate) now: i64,
    /// The part of a file that is compared before it counts as saved.
    pub(crate) verifies: WritebackVerify,
}

/// Counters of the running round, for observers.
#[derive(Debug, Default)]
pub(crate) struct RoundCounters {
    /// Names and inodes left to write.
    pub(crate) left: AtomicU64,
    /// Bytes of contents left to write.
    pub(crate) bytes: AtomicU64,
    /// Changes with each progress, but not while everything fails.
    pub(crate) moved: AtomicU64,
    /// In the last round something failed and nothing was written.
    pub(crate) is_stalled: AtomicBool,
    /// A client waits for something outside the scope of this round, so the round should end soon.
    pub(crate) is_interrupted: AtomicBool,
    /// Limits the rate of writing contents.
    pub(crate) rate_limiter: RateLimiter,
    /// Bytes over time.
    pub(crate) timeline: Mutex<Timeline>,
    /// Writes of contents by file.
    pub(crate) accesses: Mutex<AccessLog>,
}

impl RoundCounters {
    /// Resets the counters at the end of a round.
    pub(crate) fn clear(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Waits until these bytes of contents may be written, and counts them.
    pub(crate) fn admit(&self, bytes: u64) {
        self.rate_limiter.take(bytes, &|| self.note_activity());
        self.note_activity();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        if timeline.is_none() {
            *timeline = Timeline::new(now_ms);
        }
        timeline.add(now_ms, [0, bytes]);
    }

    /// Bytes of contents over time.
    pub(crate) fn timeline(&self) -> Timeline {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Contents of a file were written, or were not.
    pub(crate) fn note_write(&self, inode: Inode, begun: Instant, is_failed: bool) {
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        accesses.note_write(inode.0, micros, is_failed);
    }

    /// Writes of contents by file.
    pub(crate) fn accesses(&self) -> Vec<FileTimes> {
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Notes progress.
    pub(crate) fn note_activity(&self) {
        if !self.is_stalled() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The field `is_stalled`.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    /// Notes the result of a round.
    pub(crate) fn note_round(&self, done: &WritebackResult<RoundReport>) {
        let is_stalled =
            done.as_ref().map_or(true, |report| report.failed > 0 && !report.has_progress());
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    /// Counts a name or inode as handled; `is_done`: with progress.
    fn one_less(&self, is_done: bool) {
        if is_done {
            self.note_activity();
        }
        let less = |left: u64| Some(left.saturating_sub(1));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// State that rounds pass on. It only saves work: losing it is harmless.
#[derive(Debug, Default)]
pub(crate) struct RoundCache {
    /// Known names, in the backing store, of files with several hard links.
    pub(crate) links: HashMap<Inode, BTreeSet<Place>>,
    /// Directories from which temporary files of killed daemons have been removed.
    swept: HashSet<Inode>,
    /// Names under which something unexpected was found.
    pub(crate) contested: HashSet<Place>,
    /// Offset up to which each file that is open for writing was written last.
    pub(crate) cursors: HashMap<Inode, u64>,
    /// The order of the jobs whose files are written; `None`: as they are found.
    pub(crate) order: Option<JobOrder>,
    /// No round for space runs before this time, because the last one wrote nothing.
    pub(crate) space_retry_at: Option<Instant>,
}

/// Result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundReport {
    /// Names and inodes written.
    pub(crate) written: u64,
    /// Of these, directories of which the attributes alone were written.
    pub(crate) directories: u64,
    /// Bytes of contents written.
    pub(crate) bytes: u64,
    /// Bytes written to partial files.
    pub(crate) parts: u64,
    /// The first failures: path and reason.
    pub(crate) failures: Vec<(PathBuf, String)>,
    /// Number of failures.
    pub(crate) failed: u64,
    /// Names and inodes that are not due yet and will become due.
    pub(crate) waiting: u64,
    /// Names and inodes that are written only at the end, or never.
    pub(crate) deferred: u64,
    /// Files without a name that are under an aside name because a process may still read them.
    pub(crate) aside: u64,
    /// Bytes of contents that wait or failed.
    pub(crate) bytes_left: u64,
    /// Names and inodes that depend on others or changed during the round.
    pub(crate) open: u64,
    /// The first of those: path and reason.
    pub(crate) left: Vec<(PathBuf, String)>,
    /// Files that others changed: path, and what was done with ours.
    pub(crate) conflicts: Vec<(PathBuf, String)>,
    /// Files of which some attributes could not be written.
    pub(crate) lost: u64,
    /// Outcome per inode.
    pub(crate) outcomes: Outcomes,
}

impl RoundReport {
    /// True if something was written that the next round does not write again. An attempt at a file that
    /// cannot be written changes its directory, of which the attributes are written after it.
    pub(crate) fn has_progress(&self) -> bool {
        self.written > self.directories || self.parts > 0
    }

    /// True if nothing was done and nothing is left to do now.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, RoundReport { failed: 0, open: 0, waiting: 0, written: 0, .. })
    }

    /// True if only files under aside names are left.
    pub(crate) fn is_only_aside(&self) -> bool {
        self.is_quiet() && self.aside > 0
    }

    pub(crate) fn fail(&mut self, path: PathBuf, why: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_LISTED_MAX {
            self.failures.push((path, why));
        }
    }
}

/// Comparison of the file under a name in the backing store with the version that the instance
/// expects.
pub(crate) enum ProbeResult {
    /// Nothing.
    Absent,
    /// The expected version.
    Ours(Node),
    /// Another file, or one that others changed.
    Foreign(Node),
}

/// True if a file is the expected version.
pub(crate) fn is_version(node: &Node, known: &Version) -> bool {
    let is_same = node.version.number == known.number;
    is_same && (node.kind == Kind::Dir || node.version == *known)
}

/// State of a round.
pub(crate) struct Round<'a> {
    pub(crate) instance: &'a dyn Instance,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) options: RoundOptions,
    pub(crate) scope: &'a Scope,
    pub(crate) cache: &'a mut RoundCache,
    pub(crate) report: RoundReport,
    pub(crate) counters: &'a RoundCounters,
    /// For each dirty name: the inode that it has in the backing store, as far as this round knows,
    /// and its entry in the instance.
    backed: HashMap<Place, (Inode, Inode)>,
    /// Number of dirty names that an inode has in the backing store, and number of such names in a
    /// directory.
    names_of: HashMap<Inode, u64>,
    names_in: HashMap<Inode, u64>,
    /// Inodes that were deleted before names were listed, so all their dirty names are in the list.
    deleted_inodes: HashSet<Inode>,
    /// Inodes whose location could not be determined.
    uncertain: HashSet<Inode>,
    /// Names under which they may be.
    uncertain_places: HashSet<Place>,
    /// Files whose contents may be partly rewritten in place.
    pub(crate) torn: HashSet<Inode>,
    /// Inodes whose contents are being written.
    pub(crate) under_way: HashSet<Inode>,
    /// Files that are open for writing.
    pub(crate) open_for_write: Vec<OpenForWrite>,
    /// Directories in which names changed, so their times must be set again.
    touched: BTreeSet<Inode>,
    /// Whether a directory is in the scope of this round, and the parents of directories whose
    /// names are dirty.
    pub(crate) within: HashMap<Inode, bool>,
    pub(crate) dirty_parents: HashMap<Inode, Inode>,
    /// Parent directory of each dirty name in scope, by the inode that the name is about.
    pub(crate) parents: HashMap<Inode, Inode>,
    dirs: HashMap<Inode, (Dir, PathBuf)>,
    policies: HashMap<Inode, u8>,
}

/// Runs a round.
///
/// # Errors
/// The dirty files cannot be listed, or the backing store is not available.
pub(crate) fn run(
    instance: &dyn Instance,
    backend: &dyn Backend,
    (options, scope): (RoundOptions, &Scope),
    cache: &mut RoundCache,
    counters: &RoundCounters,
) -> WritebackResult<RoundReport> {
    let mut round = Round {
        instance,
        backend,
        options,
        scope,
        cache,
        report: RoundReport::default(),
        counters,
        backed: HashMap::new(),
        names_of: HashMap::new(),
        names_in: HashMap::new(),
        deleted_inodes: HashSet::new(),
        uncertain: HashSet::new(),
        uncertain_places: HashSet::new(),
        torn: HashSet::new(),
        under_way: HashSet::new(),
        open_for_write: Vec::new(),
        touched: BTreeSet::new(),
        within: HashMap::new(),
        dirty_parents: HashMap::new(),
        parents: HashMap::new(),
        dirs: HashMap::new(),
        policies: HashMap::new(),
    };
    let top = backend.root()?;
    round.dirs.insert(Inode::ROOT, (top.clone(), PathBuf::new()));
    if options.trigger == Trigger::Shutdown {
        round.shut_down()?;
        return Ok(round.report);
    }
    let (inodes, dirty_names) = round.list()?;
    // No mark says whether a killed daemon has changed the top directory.
    round.sweep(Inode::ROOT, &top)?;
    round.recover(inodes);
    let (created, removed): (Vec<DirtyName>, Vec<DirtyName>) =
        dirty_names.into_iter().partition(|dirty_name| !dirty_name.entry.is_none());
    round.write_names(created);
    round.until_no_more(removed, |round, dirty_name| {
        round.clear(&dirty_name.place, dirty_name.backed_inode).map(|()| true)
    });
    round.write_dirty_inodes()?;
    round.write_partials();
    if !scope.is_only
        && let Some(order) = &mut round.cache.order
    {
        order.end_round();
    }
    round.propagate_errors();
    if round.report.written > 0 {
        // Before any client learns that all is written.
        backend.sync(&top)?;
    }
    Ok(round.report)
}

impl Round<'_> {
    /// Writes names that exist in the instance; directories first, because other names are in them.
    fn write_names(&mut self, mut dirty_names: Vec<DirtyName>) {
        dirty_names.sort_by_key(|dirty_name| {
            dirty_name.mode & wire::attributes::mode::TYPE != wire::attributes::mode::DIRECTORY
        });
        let mut jobs = Vec::new();
        self.until_no_more(dirty_names, |round, dirty_name| {
            match round.write_name(dirty_name)? {
                Some(job) => {
                    jobs.push(job);
                    Ok(false)
                }
                None => Ok(true),
            }
        });
        self.write(jobs);
    }

    /// Calls `with` for each name, and again for those that were not ready, until a pass makes no
    /// progress. `with` returns true if the name is done, false if it became a job.
    fn until_no_more(
        &mut self,
        mut dirty_names: Vec<DirtyName>,
        mut with: impl FnMut(&mut Self, &DirtyName) -> WritebackResult<bool>,
    ) {
        loop {
            let before = dirty_names.len();
            let mut left = Vec::new();
            for dirty_name in dirty_names {
                match self.may_name(&dirty_name).and_then(|()| with(self, &dirty_name)) {
                    Err(WritebackError::NotReady) => left.push(dirty_name),
                    // Its job reports the outcome.
                    Ok(false) => {}
                    done => {
                        self.note((subject_of(&dirty_name), &dirty_name.place), done.map(|_| ()), 0)
                    }
                }
            }
            dirty_names = left;
            if dirty_names.is_empty() || dirty_names.len() == before {
                for dirty_name in &dirty_names {
                    self.defer(&dirty_name.place, &WritebackError::NotReady);
                    self.report.outcomes.leave(subject_of(dirty_name));
                }
                return;
            }
        }
    }

    /// Counts an outcome.
    pub(crate) fn note(
        &mut self,
        (inode, place): (Inode, &Place),
        done: WritebackResult<()>,
        bytes: u64,
    ) {
        let is_done = !matches!(done, Err(WritebackError::NotDue | WritebackError::Deferred));
        self.counters.one_less(is_done);
        self.report.outcomes.note(inode, &done);
        match done {
            Ok(()) => self.report.written += 1,
            Err(error @ (WritebackError::Changed | WritebackError::NotReady)) => {
                self.defer(place, &error)
            }
            Err(WritebackError::NotDue) => {
                self.report.waiting += 1;
                self.report.bytes_left += bytes;
            }
            Err(WritebackError::Deferred) => self.report.deferred += 1,
            Err(error) => {
                self.report.bytes_left += bytes;
                self.report.fail(self.path(place), error.to_string());
            }
        }
    }

    /// Leaves something to the next round.
    pub(crate) fn defer(&mut self, place: &Place, why: &WritebackError) {
        self.report.open += 1;
        if self.report.left.len() < FAILURES_LISTED_MAX {
            let path = self.path(place);
            self.report.left.push((path, why.to_string()));
        }
    }

    /// Path in the backing store for messages, as far as it is known.
    pub(crate) fn path(&self, place: &Place) -> PathBuf {
        let known = self.dirs.get(&place.parent).map(|(_, path)| path.as_path());
        let path = known.unwrap_or(Path::new("?")).join(&place.name);
        PathBuf::from(path.to_string_lossy().into_owned())
    }

    pub(crate) fn conflict(&mut self, place: &Place, what: String) {
        let path = self.path(place);
        self.report.conflicts.push((path, what));
    }

    /// True if files with mode `end` are to be written in this round.
    fn is_explicit(&self) -> bool {
        self.options.trigger != Trigger::Normal || self.scope.is_only
    }

    /// Checks whether a name of this directory is due.
    fn may_name(&mut self, dirty_name: &DirtyName) -> WritebackResult<()> {
        if self.uncertain_places.contains(&dirty_name.place) {
            return Err(WritebackError::NotReady);
        }
        match self.policy(dirty_name.place.parent)? {
            writeback::NEVER => Err(WritebackError::Deferred),
            writeback::END if !self.is_explicit() => Err(WritebackError::Deferred),
            _ => Ok(()),
        }
    }

    /// Checks whether the contents of a file in this directory are due.
    pub(crate) fn may_write(&mut self, directory: Inode, file: &SyncState) -> WritebackResult<()> {
        let policy = self.policy(directory)?;
        let changed = file.attributes.map_or(0, |attributes| attributes.changed);
        let is_for_space = self.options.trigger == Trigger::Space;
        let is_warm = changed.saturating_add(self.options.idle_nanos) > self.options.now;
        match policy {
            writeback::NEVER => Err(WritebackError::Deferred),
            _ if self.options.trigger == Trigger::Flush || self.scope.has(file.inode) => Ok(()),
            writeback::END if !is_for_space => Err(WritebackError::Deferred),
            _ if file.is_written => Err(WritebackError::NotDue),
            writeback::IDLE if is_warm && !is_for_space => Err(WritebackError::NotDue),
            _ => Ok(()),
        }
    }

    fn policy(&mut self, directory: Inode) -> WritebackResult<u8> {
        if let Some(policy) = self.policies.get(&directory) {
            return Ok(*policy);
        }
        let attributes = self.instance.sync_state(directory)?.and_then(|found| found.attributes);
        let of = |attributes: Attributes| attributes.layout.writeback();
        let policy = attributes.map_or(writeback::CLOSE, of);
        self.policies.insert(directory, policy);
        Ok(policy)
    }

    /// The backing directory of a directory of the instance; `None` if it does not exist.
    pub(crate) fn dir(&mut self, directory: Inode) -> WritebackResult<Option<Dir>> {
        let (mut dirty_parents, mut at) = (Vec::new(), directory);
        let (mut here, mut path) = loop {
            if let Some(known) = self.dirs.get(&at) {
                break known.clone();
            }
            let Some(sync_state) = self.instance.sync_state(at)? else { return Ok(None) };
            let (is_gone, is_clear) = (sync_state.is_gone(), sync_state.next.is_none());
            let Some(now) = sync_state.now else { return Ok(None) };
            dirty_parents.push((at, now.place.name, now.version.number, (is_gone, is_clear)));
            at = now.place.parent;
            if dirty_parents.len() > DEPTH_MAX {
                return Err(WritebackError::Backing(io::Error::other(
                    "a directory is contained in itself",
                )));
            }
        };
        for (inode, name, number, (is_gone, is_clear)) in dirty_parents.into_iter().rev() {
            if !is_clear && self.backend.is_object_store() {
                // During a move some of its files may be at one place and some at the other.
                return Err(WritebackError::NotReady);
            }
            let found = match self.backend.dir(&here, &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_clear => {
                    // It may be at its new place already.
                    return Err(WritebackError::NotReady);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_gone => {
                    return Ok(None);
                }
                found => found?,
            };
            if found.number()? != number {
                if !is_clear {
                    return Err(WritebackError::NotReady);
                }
                let why = format!("another directory has the name {}", name.display());
                return Err(WritebackError::Backing(io::Error::other(why)));
            }
            path = path.join(&name);
            here = found;
            self.dirs.insert(inode, (here.clone(), path.clone()));
        }
        Ok(Some(here))
    }

    /// As `dir`, for a directory that must exist and in which names are about to change. First
    /// marks the directory as changed, so that its times are set again even if this daemon is
    /// killed.
    pub(crate) fn dir_to_change(&mut self, directory: Inode) -> WritebackResult<Dir> {
        let dir = self.dir(directory)?.ok_or(WritebackError::NotReady)?;
        if directory != Inode::ROOT && !self.touched.contains(&directory) {
            self.touch(directory)?;
        }
        self.sweep(directory, &dir)?;
        Ok(dir)
    }

    /// Removes temporary files of killed daemons from a directory, once in the life of this one: before
    /// its first change, or where a killed daemon marked it as changed.
    pub(crate) fn sweep(&mut self, directory: Inode, dir: &Dir) -> WritebackResult<()> {
        if !self.backend.is_object_store() && self.cache.swept.insert(directory) {
            for name in self.backend.names(dir)? {
                self.sweep_partial(&Place { parent: directory, name })?;
            }
        }
        Ok(())
    }

    /// A directory was moved, or may have been. An open directory stays valid; in an object store
    /// paths of it and of directories in it do not.
    pub(crate) fn forget_dir(&mut self, directory: Inode) {
        if self.dirs.remove(&directory).is_some() && self.backend.is_object_store() {
            self.dirs.retain(|inode, _| *inode == Inode::ROOT);
        }
    }

    /// The directories whose times must be set, at the end of a round.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<Inode> {
        std::mem::take(&mut self.touched)
    }

    /// Marks a directory as changed: reports it with a stamp that it never had, so that it is among
    /// the dirty inodes until its metadata is written.
    fn touch(&mut self, directory: Inode) -> WritebackResult<()> {
        let sync_state = self.sync_state(directory)?.ok_or(WritebackError::Changed)?;
        if let SyncState { attributes: Some(_), now: Some(now), .. } = sync_state {
            let stamp = Stamp { changed: 0, ..now.stamp };
            self.instance.wrote(directory, &BackingLocation { stamp, ..now })?;
            self.touched.insert(directory);
        }
        Ok(())
    }

    /// Inspects a name where the instance expects the version `known`.
    pub(crate) fn probe(
        &mut self,
        place: &Place,
        known: Option<&Version>,
    ) -> WritebackResult<ProbeResult> {
        let Some(dir) = self.dir(place.parent)? else { return Ok(ProbeResult::Absent) };
        Ok(match (self.backend.node(&dir, &place.name)?, known) {
            (None, _) => ProbeResult::Absent,
            (Some(node), Some(known)) if is_version(&node, known) => ProbeResult::Ours(node),
            (Some(node), _) => ProbeResult::Foreign(node),
        })
    }

    /// True if the location of an inode is uncertain.
    pub(crate) fn is_uncertain(&self, inode: Inode) -> bool {
        self.uncertain.contains(&inode)
    }

    /// From now on it is uncertain whether an inode is under a name.
    pub(crate) fn set_uncertain(&mut self, inode: Inode, place: &Place) {
        self.uncertain.insert(inode);
        self.uncertain_places.insert(place.clone());
    }

    /// Ends the uncertainty.
    pub(crate) fn set_certain(&mut self, inode: Inode, place: &Place) {
        self.uncertain.remove(&inode);
        self.uncertain_places.remove(place);
    }

    /// The sync state of an inode, unless its location is uncertain.
    pub(crate) fn sync_state(&self, inode: Inode) -> WritebackResult<Option<SyncState>> {
        match self.uncertain.contains(&inode) {
            true => Err(WritebackError::NotReady),
            false => Ok(self.instance.sync_state(inode)?),
        }
    }

    /// Reports that a name in the backing store changed from one inode to another.
    pub(crate) fn name_written(
        &mut self,
        place: &Place,
        from: Inode,
        to: Inode,
    ) -> WritebackResult<()> {
        self.instance.name_written(place, from, to)?;
        if let Some(&(location, entry)) = self.backed.get(place) {
            self.count(place.parent, location, false);
            if entry == to {
                self.backed.remove(place);
            } else {
                self.backed.insert(place.clone(), (to, entry));
                self.count(place.parent, to, true);
            }
        }
        Ok(())
    }

    fn count(&mut self, parent: Inode, backed: Inode, is_new: bool) {
        if backed.is_none() {
            return;
        }
        for (counts, inode) in [(&mut self.names_of, backed), (&mut self.names_in, parent)] {
            let count = counts.entry(inode).or_default();
            *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// The inode that a name has in the backing store, according to its dirty name and the changes
    /// of this round.
    pub(crate) fn backed_at(&self, place: &Place) -> Inode {
        self.backed.get(place).map_or(Inode::NONE, |(location, _)| *location)
    }

    /// Lists what is dirty: inodes first and then names, so that all names of deleted inodes are
    /// among them.
    pub(crate) fn list(&mut self) -> WritebackResult<(Vec<SyncState>, Vec<DirtyName>)> {
        let inodes = self.instance.dirty_inodes().map_err(WritebackError::Instance)?;
        let dirty_names = self.instance.dirty_names().map_err(WritebackError::Instance)?;
        let gone = inodes.iter().filter(|sync_state| sync_state.is_gone());
        self.deleted_inodes = gone.map(|sync_state| sync_state.inode).collect();
        (self.names_of, self.names_in) = (HashMap::new(), HashMap::new());
        dirty_names.iter().for_each(|dirty_name| {
            self.count(dirty_name.place.parent, dirty_name.backed_inode, true)
        });
        let location = dirty_names.iter().map(|dirty_name| {
            (dirty_name.place.clone(), (dirty_name.backed_inode, dirty_name.entry))
        });
        self.backed = location.collect();
        let (inodes, dirty_names) = self.in_scope(inodes, dirty_names)?;
        self.counters.left.store((dirty_names.len() + inodes.len()) as u64, Ordering::Relaxed);
        Ok((inodes, dirty_names))
    }

    /// True if an inode has a name in the backing store that it no longer has in the instance.
    pub(crate) fn has_old_names(&self, inode: Inode) -> bool {
        self.names_of.get(&inode).is_some_and(|&count| count > 0)
    }

    /// True if a directory may contain files of ours under dirty names.
    pub(crate) fn has_names_in(&self, directory: Inode) -> bool {
        self.names_in.get(&directory).is_some_and(|&count| count > 0)
    }

    /// True if an inode was deleted before names were listed.
    pub(crate) fn is_dead(&self, inode: Inode) -> bool {
        self.deleted_inodes.contains(&inode)
    }

    /// True if an inode is deleted and a name is the last that may have to be removed.
    pub(crate) fn is_last_name(&self, inode: Inode, place: &Place) -> bool {
        let is_last = self.names_of.get(&inode) == Some(&1) && self.backed_at(place) == inode;
        self.deleted_inodes.contains(&inode) && is_last
    }

    /// True if an inode is deleted and no name is left that may have to be removed.
    pub(crate) fn is_all_gone(&self, inode: Inode) -> bool {
        self.deleted_inodes.contains(&inode) && !self.has_old_names(inode)
    }

    /// Writes contents.
    pub(crate) fn write(&mut self, jobs: Vec<WriteJob>) {
        contents::write(self, jobs);
    }
}

/// The inode that a dirty name is about.
pub(crate) fn subject_of(dirty_name: &DirtyName) -> Inode {
    if dirty_name.entry.is_none() { dirty_name.backed_inode } else { dirty_name.entry }
}
