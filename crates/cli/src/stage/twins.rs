//! Files with several names: the first that is met is copied, the others become names of the copy.

use super::copy::Kit;
use super::tally::count;
use super::{Name, Pair, Stage, Top};
use below::{Kind, Node, Trouble, draft};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A name, without open directories: there may be many.
pub(super) struct Place {
    pub(super) top: Arc<Top>,
    pub(super) path: PathBuf,
    pub(super) name: OsString,
    is_there: bool,
}

impl Place {
    pub(super) fn of(name: &Name) -> Place {
        Place {
            top: Arc::clone(&name.pair.top),
            path: name.pair.path.clone(),
            name: name.name.clone(),
            is_there: name.is_there,
        }
    }

    /// The name, in the directories that are open.
    pub(super) fn name(&self, pair: Arc<Pair>, kind: Kind) -> Name {
        Name { pair, name: self.name.clone(), kind, is_there: self.is_there }
    }

    /// For people.
    pub(super) fn shown(&self) -> PathBuf {
        self.top.shown.join(&self.path).join(&self.name)
    }
}

/// The first name, and whether its copy is there.
struct First {
    place: Place,
    is_landed: bool,
}

type Identity = (u64, u64);

#[derive(Default)]
struct Inner {
    firsts: HashMap<Identity, First>,
    others: Vec<(Identity, Place)>,
}

/// All of a run.
#[derive(Default)]
pub(super) struct Twins {
    inner: Mutex<Inner>,
}

impl Twins {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if another name of the file was met before; then this one is for later.
    pub(super) fn is_another(&self, name: &Name, node: &Node) -> bool {
        let place = Place::of(name);
        let mut inner = self.lock();
        match inner.firsts.entry(node.identity) {
            Entry::Vacant(empty) => {
                empty.insert(First { place, is_landed: false });
                false
            }
            Entry::Occupied(_) => {
                inner.others.push((node.identity, place));
                true
            }
        }
    }

    /// The copy of a file is there.
    pub(super) fn landed(&self, node: &Node) {
        if node.links > 1
            && let Some(first) = self.lock().firsts.get_mut(&node.identity)
        {
            first.is_landed = true;
        }
    }
}

impl Stage {
    /// Gives copies their other names, after all files.
    pub(super) fn name_twins(&self, kit: &mut Kit) {
        let Inner { mut firsts, others } = std::mem::take(&mut *self.twins.lock());
        let mut last = None;
        for (identity, place) in others {
            let shown = place.shown();
            let done = match firsts.get(&identity).filter(|first| first.is_landed) {
                Some(first) => self.name_twin(first, &place, &mut last, kit),
                None => {
                    let done = self.copy_twin(&place, &mut last, kit);
                    if done.is_ok() {
                        firsts.insert(identity, First { place, is_landed: true });
                    }
                    done
                }
            };
            if let Err(trouble) = done {
                self.tally.fail(&shown, &trouble);
            }
        }
    }

    fn name_twin(
        &self,
        first: &First,
        place: &Place,
        last: &mut Option<Arc<Pair>>,
        kit: &mut Kit,
    ) -> Result<(), Trouble> {
        let of = open(&first.place.top, &first.place.path, &mut None)?;
        let pair = open(&place.top, &place.path, last)?;
        let identity = |pair: &Pair, name| pair.to.node(name).map(|node| node.identity).ok();
        let own = identity(&pair, &place.name);
        if own.is_some() && own == identity(&of, &first.place.name) {
            count(&self.tally.skipped);
            return Ok(());
        }
        match draft::another_name((&of.to, &first.place.name), &pair.to, &place.name) {
            Ok(()) => {
                count(&self.tally.files);
                Ok(())
            }
            // A file system without further names, or without so many: a file of its own.
            Err(_) => self.copy_twin(place, last, kit),
        }
    }

    /// Copies a file under one more name; it is there when this is done.
    fn copy_twin(
        &self,
        place: &Place,
        last: &mut Option<Arc<Pair>>,
        kit: &mut Kit,
    ) -> Result<(), Trouble> {
        let pair = open(&place.top, &place.path, last)?;
        let from = pair.from.file(&place.name).map_err(Trouble::Read)?;
        let node = Node::of(&from).map_err(Trouble::Read)?;
        self.copy_now(place.name(pair, Kind::File), from, node, kit)
    }
}

/// Opens the directories of a name, unless they were those of the last one.
pub(super) fn open(
    top: &Arc<Top>,
    path: &Path,
    last: &mut Option<Arc<Pair>>,
) -> Result<Arc<Pair>, Trouble> {
    let is_same = |pair: &Arc<Pair>| Arc::ptr_eq(&pair.top, top) && pair.path == path;
    if let Some(pair) = last.as_ref().filter(|pair| is_same(pair)) {
        return Ok(Arc::clone(pair));
    }
    let pair = Arc::new(Pair::open(top, path)?);
    *last = Some(Arc::clone(&pair));
    Ok(pair)
}
