//! Hard links: the first name of a file that is found is copied; the others become hard links to
//! the copy.

use super::copy::CopyContext;
use super::summary::count;
use super::{NameToCopy, Pair, Stage, StageRoot};
use backing::{CopyError, Kind, Node, partial};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A name without open directories, because there may be many.
#[derive(Clone)]
pub(super) struct PendingName {
    pub(super) top: Arc<StageRoot>,
    pub(super) path: PathBuf,
    pub(super) name: OsString,
    is_there: bool,
}

impl PendingName {
    pub(super) fn of(name: &NameToCopy) -> PendingName {
        PendingName {
            top: Arc::clone(&name.pair.top),
            path: name.pair.path.clone(),
            name: name.name.clone(),
            is_there: name.is_there,
        }
    }

    /// The name, with its open directories.
    pub(super) fn name(&self, pair: Arc<Pair>, kind: Kind) -> NameToCopy {
        NameToCopy { pair, name: self.name.clone(), kind, is_there: self.is_there }
    }

    /// The path to which `error` applies, for people.
    pub(super) fn shown(&self, error: &CopyError) -> PathBuf {
        self.top.shown(&self.path.join(&self.name), error)
    }
}

/// The first name of a file, and whether its copy is committed.
struct FirstName {
    name: PendingName,
    is_committed: bool,
}

type FileIdentity = (u64, u64);

#[derive(Default)]
struct LinkTable {
    firsts: HashMap<FileIdentity, FirstName>,
    others: Vec<(FileIdentity, PendingName)>,
}

/// The hard links of a run.
#[derive(Default)]
pub(super) struct HardLinks {
    inner: Mutex<LinkTable>,
}

impl HardLinks {
    fn lock(&self) -> MutexGuard<'_, LinkTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if another name of the file was found before; this one is then linked at the end.
    pub(super) fn is_another(&self, name: &NameToCopy, node: &Node) -> bool {
        let name = PendingName::of(name);
        let mut inner = self.lock();
        match inner.firsts.entry(node.identity) {
            Entry::Vacant(empty) => {
                empty.insert(FirstName { name, is_committed: false });
                false
            }
            Entry::Occupied(_) => {
                inner.others.push((node.identity, name));
                true
            }
        }
    }

    /// Records that the copy of a file is committed.
    pub(super) fn committed(&self, node: &Node) {
        if node.links > 1
            && let Some(first) = self.lock().firsts.get_mut(&node.identity)
        {
            first.is_committed = true;
        }
    }
}

impl Stage {
    /// Creates the hard links, after all files.
    pub(super) fn link_all(&self, context: &mut CopyContext) {
        let LinkTable { mut firsts, others } = std::mem::take(&mut *self.hardlinks.lock());
        let mut last = None;
        for (identity, name) in others {
            let failed = name.clone();
            let done = match firsts.get(&identity).filter(|first| first.is_committed) {
                Some(first) => self.link(first, &name, &mut last, context),
                None => {
                    let done = self.copy_link(&name, &mut last, context);
                    if done.is_ok() {
                        firsts.insert(identity, FirstName { name, is_committed: true });
                    }
                    done
                }
            };
            if let Err(error) = done {
                self.summary.fail(&failed.shown(&error), &error);
            }
        }
    }

    fn link(
        &self,
        first: &FirstName,
        name: &PendingName,
        last: &mut Option<Arc<Pair>>,
        context: &mut CopyContext,
    ) -> Result<(), CopyError> {
        let first_pair = open(&first.name.top, &first.name.path, &mut None)?;
        let pair = open(&name.top, &name.path, last)?;
        let identity = |pair: &Pair, name| pair.to.node(name).map(|node| node.identity).ok();
        let own = identity(&pair, &name.name);
        if own.is_some() && own == identity(&first_pair, &first.name.name) {
            count(&self.summary.skipped);
            return Ok(());
        }
        match partial::hard_link((&first_pair.to, &first.name.name), &pair.to, &name.name) {
            Ok(()) => {
                count(&self.summary.files);
                Ok(())
            }
            // The file system has no hard links, or the file has too many: copies the file again.
            Err(_) => self.copy_link(name, last, context),
        }
    }

    /// Copies the file once more under this name, and commits it.
    fn copy_link(
        &self,
        name: &PendingName,
        last: &mut Option<Arc<Pair>>,
        context: &mut CopyContext,
    ) -> Result<(), CopyError> {
        let pair = open(&name.top, &name.path, last)?;
        let from = pair.from.file(&name.name).map_err(CopyError::Read)?;
        let node = Node::of(&from).map_err(CopyError::Read)?;
        self.copy_now(name.name(pair, Kind::File), from, node, context)
    }
}

/// Opens the directories of a name, unless they are those of the last one.
pub(super) fn open(
    top: &Arc<StageRoot>,
    path: &Path,
    last: &mut Option<Arc<Pair>>,
) -> Result<Arc<Pair>, CopyError> {
    let is_same = |pair: &Arc<Pair>| Arc::ptr_eq(&pair.top, top) && pair.path == path;
    if let Some(pair) = last.as_ref().filter(|pair| is_same(pair)) {
        return Ok(Arc::clone(pair));
    }
    let pair = Arc::new(Pair::open(top, path)?);
    *last = Some(Arc::clone(&pair));
    Ok(pair)
}
