//! The scope of a round that does not cover everything: files that clients wait for, and subtrees.
//! And the outcome per inode.

use crate::round::{Round, subject_of};
use crate::state::{DirtyName, SyncState, WritebackError, WritebackResult};
use rustix::io::Errno as Backing;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wire::Inode;
use wire::attributes::mode;
use wire::errno::Errno;

/// Maximum depth of a directory.
const DEPTH_MAX: usize = 1 << 16;

/// Files and subtrees that a round covers. The default covers everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Files that are written whatever the mode of their directory, except `never`, also while they
    /// are open for writing.
    pub(crate) files: BTreeSet<Inode>,
    /// Directories whose subtrees are covered.
    pub(crate) trees: BTreeSet<Inode>,
    /// Nothing else is covered, except the directories that contain these.
    pub(crate) is_only: bool,
}

impl Scope {
    /// True for an inode that is listed as a file.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.files.contains(&inode)
    }
}

/// Outcome per dirty inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    /// Inodes that were dirty when the round began.
    pub(crate) seen: BTreeSet<Inode>,
    /// Inodes that are still dirty.
    pub(crate) left: BTreeSet<Inode>,
    /// Errors of those that failed.
    pub(crate) errors: BTreeMap<Inode, Errno>,
}

impl Outcomes {
    /// Something about an inode is not done.
    pub(crate) fn leave(&mut self, inode: Inode) {
        self.left.insert(inode);
    }

    pub(crate) fn note(&mut self, inode: Inode, done: &WritebackResult<()>) {
        match done {
            // Deferred: as the mode of its directory demands.
            Ok(()) | Err(WritebackError::Deferred) => {}
            Err(error) => {
                self.leave(inode);
                if let Some(errno) = errno_of(error) {
                    self.errors.insert(inode, errno);
                }
            }
        }
    }

    /// Answer to clients that wait for an inode; `None`: it is tried again.
    pub(crate) fn of(&self, inode: Inode) -> Option<Result<(), Errno>> {
        match self.errors.get(&inode) {
            Some(&errno) => Some(Err(errno)),
            None if self.left.contains(&inode) => None,
            None => Some(Ok(())),
        }
    }
}

/// The errno that programs get for an error that does not pass by itself.
pub(crate) fn errno_of(error: &WritebackError) -> Option<Errno> {
    let error = match error {
        WritebackError::Backing(error) => error.raw_os_error().map(Backing::from_raw_os_error),
        WritebackError::Instance(_) => None,
        _ => return None,
    };
    Some(match error {
        Some(Backing::NOSPC) => Errno::ENOSPC,
        Some(Backing::DQUOT) => Errno::EDQUOT,
        _ => Errno::EIO,
    })
}

impl Round<'_> {
    /// Restricts the dirty inodes and names to the scope of this round.
    pub(crate) fn in_scope(
        &mut self,
        inodes: Vec<SyncState>,
        dirty_names: Vec<DirtyName>,
    ) -> WritebackResult<(Vec<SyncState>, Vec<DirtyName>)> {
        if !self.scope.is_only {
            return Ok((inodes, dirty_names));
        }
        let is_dir = |dirty_name: &&DirtyName| dirty_name.mode & mode::TYPE == mode::DIRECTORY;
        let named =
            dirty_names.iter().filter(|dirty_name| !dirty_name.entry.is_none()).filter(is_dir);
        self.dirty_parents =
            named.map(|dirty_name| (dirty_name.entry, dirty_name.place.parent)).collect();
        self.within.clear();
        let mut needed = HashSet::new();
        for dirty_name in &dirty_names {
            if self.is_name_in_scope(dirty_name)? {
                self.report.outcomes.seen.insert(subject_of(dirty_name));
                self.parents.insert(subject_of(dirty_name), dirty_name.place.parent);
                needed.extend(dirty_ancestors(&self.dirty_parents, dirty_name.place.parent));
            }
        }
        let mut left = Vec::new();
        for dirty_name in dirty_names {
            if needed.contains(&dirty_name.entry) || self.is_name_in_scope(&dirty_name)? {
                left.push(dirty_name);
            }
        }
        let mut sync_state = Vec::new();
        for one in inodes {
            // An operation in doubt is resolved wherever it is.
            let is_in = self.is_inode_in_scope(&one)?;
            if is_in {
                self.report.outcomes.seen.insert(one.inode);
            }
            if is_in || one.next.is_some() {
                sync_state.push(one);
            }
        }
        Ok((sync_state, left))
    }

    fn is_name_in_scope(&mut self, dirty_name: &DirtyName) -> WritebackResult<bool> {
        let scope = self.scope;
        let is_named = [dirty_name.entry, dirty_name.backed_inode]
            .iter()
            .any(|inode| scope.has(*inode) || scope.trees.contains(inode));
        Ok(is_named || self.is_within(dirty_name.place.parent)?)
    }

    fn is_inode_in_scope(&mut self, sync_state: &SyncState) -> WritebackResult<bool> {
        let (scope, inode) = (self.scope, sync_state.inode);
        if scope.has(inode) || scope.trees.contains(&inode) {
            return Ok(true);
        }
        let is_directory = sync_state.attributes.is_some_and(|it| it.is_directory());
        match &sync_state.now {
            _ if is_directory => self.is_within(inode),
            Some(now) => self.is_within(now.place.parent),
            None => Ok(false),
        }
    }

    /// True for a directory in one of the subtrees.
    fn is_within(&mut self, directory: Inode) -> WritebackResult<bool> {
        if self.scope.trees.is_empty() {
            return Ok(false);
        }
        let (mut way, mut at) = (Vec::new(), directory);
        let is_within = loop {
            if self.scope.trees.contains(&at) {
                break true;
            }
            if let Some(&known) = self.within.get(&at) {
                break known;
            }
            way.push(at);
            let instance = match self.dirty_parents.get(&at) {
                Some(&parent) => Some(parent),
                None if at == Inode::ROOT => None,
                None => {
                    let sync_state = self.instance.sync_state(at)?;
                    sync_state.and_then(|sync_state| sync_state.now).map(|now| now.place.parent)
                }
            };
            match instance {
                Some(parent) if way.len() < DEPTH_MAX => at = parent,
                _ => break false,
            }
        };
        self.within.extend(way.into_iter().map(|at| (at, is_within)));
        Ok(is_within)
    }

    /// Gives an inode that could not be written the error of the directory above it that failed.
    pub(crate) fn propagate_errors(&mut self) {
        let outcomes = &mut self.report.outcomes;
        let places = &self.parents;
        for inode in &outcomes.left {
            if outcomes.errors.contains_key(inode) {
                continue;
            }
            let Some(&parent) = places.get(inode) else { continue };
            let instance = dirty_ancestors(&self.dirty_parents, parent)
                .find_map(|at| outcomes.errors.get(&at).copied());
            if let Some(errno) = instance {
                outcomes.errors.insert(*inode, errno);
            }
        }
    }
}

/// A directory and its ancestors, as far as their names are dirty.
fn dirty_ancestors(
    dirty_parents: &HashMap<Inode, Inode>,
    from: Inode,
) -> impl Iterator<Item = Inode> + '_ {
    let first = dirty_parents.contains_key(&from).then_some(from);
    let instance = move |at: &Inode| {
        dirty_parents.get(at).copied().filter(|at| dirty_parents.contains_key(at))
    };
    std::iter::successors(first, instance).take(DEPTH_MAX)
}
