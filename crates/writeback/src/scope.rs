//! What a round is about, where it is not about all: files for which somebody waits, directories with all
//! that is below them. And what became of each of them.

use crate::round::{Round, of_row};
use crate::state::{Row, Standing, Tried, Trouble};
use rustix::io::Errno as Below;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wire::Inode;
use wire::attributes::mode;
use wire::errno::Errno;

/// Directories on the way to one.
const DEPTH_MAX: usize = 1 << 16;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// These are saved whatever their directories say but `never`, and also while they are written to.
    pub(crate) files: BTreeSet<Inode>,
    /// As well all that is in these.
    pub(crate) trees: BTreeSet<Inode>,
    /// And nothing else but the directories that they are in.
    pub(crate) is_only: bool,
}

impl Scope {
    /// True for what is named itself.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.files.contains(&inode)
    }
}

/// What became of inodes that were unsaved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fates {
    /// They were unsaved when the round began.
    pub(crate) seen: BTreeSet<Inode>,
    /// They are so still.
    pub(crate) left: BTreeSet<Inode>,
    /// Why.
    pub(crate) errors: BTreeMap<Inode, Errno>,
}

impl Fates {
    /// Something that is to be done about an inode is not done.
    pub(crate) fn leave(&mut self, inode: Inode) {
        self.left.insert(inode);
    }

    pub(crate) fn note(&mut self, inode: Inode, done: &Tried<()>) {
        match done {
            // As its directory says.
            Ok(()) | Err(Trouble::Held) => {}
            Err(trouble) => {
                self.leave(inode);
                if let Some(errno) = errno_of(trouble) {
                    self.errors.insert(inode, errno);
                }
            }
        }
    }

    /// What who waits for an inode is told; `None`: it is to be tried again.
    pub(crate) fn of(&self, inode: Inode) -> Option<Result<(), Errno>> {
        match self.errors.get(&inode) {
            Some(&errno) => Some(Err(errno)),
            None if self.left.contains(&inode) => None,
            None => Some(Ok(())),
        }
    }
}

/// What programs are told of a trouble that does not pass by itself.
pub(crate) fn errno_of(trouble: &Trouble) -> Option<Errno> {
    let error = match trouble {
        Trouble::Below(error) => error.raw_os_error().map(Below::from_raw_os_error),
        Trouble::Above(_) => None,
        _ => return None,
    };
    Some(match error {
        Some(Below::NOSPC) => Errno::ENOSPC,
        Some(Below::DQUOT) => Errno::EDQUOT,
        _ => Errno::EIO,
    })
}

impl Round<'_> {
    /// What of that is unsaved this round is to see to.
    pub(crate) fn in_scope(
        &mut self,
        changed: Vec<Standing>,
        rows: Vec<Row>,
    ) -> Tried<(Vec<Standing>, Vec<Row>)> {
        if !self.scope.is_only {
            return Ok((changed, rows));
        }
        let is_folder = |row: &&Row| row.mode & mode::TYPE == mode::DIRECTORY;
        let named = rows.iter().filter(|row| !row.entry.is_none()).filter(is_folder);
        self.ways = named.map(|row| (row.entry, row.place.parent)).collect();
        self.within.clear();
        let mut needed = HashSet::new();
        for row in &rows {
            if self.is_row_in_scope(row)? {
                self.report.fates.seen.insert(of_row(row));
                self.parents.insert(of_row(row), row.place.parent);
                needed.extend(way_up(&self.ways, row.place.parent));
            }
        }
        let mut left = Vec::new();
        for row in rows {
            if needed.contains(&row.entry) || self.is_row_in_scope(&row)? {
                left.push(row);
            }
        }
        let mut standing = Vec::new();
        for one in changed {
            // What a killed writer left half told is looked up wherever it is.
            let is_in = self.is_changed_in_scope(&one)?;
            if is_in {
                self.report.fates.seen.insert(one.inode);
            }
            if is_in || one.next.is_some() {
                standing.push(one);
            }
        }
        Ok((standing, left))
    }

    fn is_row_in_scope(&mut self, row: &Row) -> Tried<bool> {
        let scope = self.scope;
        let is_named = [row.entry, row.lies]
            .iter()
            .any(|inode| scope.has(*inode) || scope.trees.contains(inode));
        Ok(is_named || self.is_within(row.place.parent)?)
    }

    fn is_changed_in_scope(&mut self, standing: &Standing) -> Tried<bool> {
        let (scope, inode) = (self.scope, standing.inode);
        if scope.has(inode) || scope.trees.contains(&inode) {
            return Ok(true);
        }
        let is_directory = standing.attributes.is_some_and(|it| it.is_directory());
        match &standing.now {
            _ if is_directory => self.is_within(inode),
            Some(now) => self.is_within(now.place.parent),
            None => Ok(false),
        }
    }

    /// True for a directory that is in one of those that are named.
    fn is_within(&mut self, directory: Inode) -> Tried<bool> {
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
            let above = match self.ways.get(&at) {
                Some(&parent) => Some(parent),
                None if at == Inode::ROOT => None,
                None => {
                    let standing = self.above.standing(at)?;
                    standing.and_then(|standing| standing.now).map(|now| now.place.parent)
                }
            };
            match above {
                Some(parent) if way.len() < DEPTH_MAX => at = parent,
                _ => break false,
            }
        };
        self.within.extend(way.into_iter().map(|at| (at, is_within)));
        Ok(is_within)
    }

    /// What could not be saved because a directory above it could not is told so.
    pub(crate) fn blame(&mut self) {
        let fates = &mut self.report.fates;
        let places = &self.parents;
        for inode in &fates.left {
            if fates.errors.contains_key(inode) {
                continue;
            }
            let Some(&parent) = places.get(inode) else { continue };
            let above = way_up(&self.ways, parent).find_map(|at| fates.errors.get(&at).copied());
            if let Some(errno) = above {
                fates.errors.insert(*inode, errno);
            }
        }
    }
}

/// A directory and those above it, as far as their names are unsaved.
fn way_up(ways: &HashMap<Inode, Inode>, from: Inode) -> impl Iterator<Item = Inode> + '_ {
    let first = ways.contains_key(&from).then_some(from);
    let above = move |at: &Inode| ways.get(at).copied().filter(|at| ways.contains_key(at));
    std::iter::successors(first, above).take(DEPTH_MAX)
}
