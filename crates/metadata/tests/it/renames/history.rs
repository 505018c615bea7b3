//! A tree of names with its rules, and histories: a search for an order of operations, each taking
//! effect at one moment between request and answer, that explains all answers and the final tree.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash as _, Hasher as _};

use wire::Inode;
use wire::errno::Errno;
use wire::request::rename;

/// A directory and a name, which is one letter.
pub(crate) type Place = (Inode, u8);

/// A requested operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Create(Place),
    MakeDirectory(Place),
    Unlink(Place),
    RemoveDirectory(Place),
    Link(Inode, Place),
    Rename(Place, Place, u32),
    Look(Place),
    Stat(Inode),
}

/// Outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done,
    /// A new inode.
    Made(Inode),
    Found(Inode),
    /// Link count of a file.
    Links(u32),
    /// Parent of a directory.
    Parent(Inode),
    Refused(Errno),
}

/// An operation of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tried {
    pub(crate) op: Op,
    /// Moment of the request: larger is later.
    pub(crate) sent_at: u64,
    /// Moment of the answer, or when all services knew that the sender was killed.
    pub(crate) ended_at: u64,
    /// Content of the answer. `None`: the sender was killed, and it happened or never does.
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Thing {
    /// Parent of a directory.
    pub(crate) parent: Option<Inode>,
    /// Link count of a file.
    pub(crate) links: u32,
}

/// All names and their inodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tree {
    pub(crate) entries: BTreeMap<Place, Inode>,
    pub(crate) things: BTreeMap<Inode, Thing>,
}

type Applied = Result<Outcome, Errno>;

impl Tree {
    pub(crate) fn new() -> Tree {
        let root = Thing { parent: Some(Inode::ROOT), links: 0 };
        Tree { entries: BTreeMap::new(), things: BTreeMap::from([(Inode::ROOT, root)]) }
    }

    pub(crate) fn is_directory(&self, inode: Inode) -> bool {
        self.things.get(&inode).is_some_and(|thing| thing.parent.is_some())
    }

    fn is_empty(&self, directory: Inode) -> bool {
        self.entries.range((directory, 0)..=(directory, u8::MAX)).next().is_none()
    }

    fn is_descendant(&self, mut inode: Inode, top: Inode) -> bool {
        loop {
            if inode == top {
                return true;
            }
            match self.things.get(&inode).and_then(|thing| thing.parent) {
                Some(parent) if parent != inode => inode = parent,
                _ => return false,
            }
        }
    }

    fn get(&self, place: Place) -> Result<Inode, Errno> {
        self.entries.get(&place).copied().ok_or(Errno::ENOENT)
    }

    fn exists(&self, directory: Inode) -> Result<(), Errno> {
        if self.is_directory(directory) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn put(&mut self, place: Place, inode: Inode) {
        self.entries.insert(place, inode);
        if let Some(thing) = self.things.get_mut(&inode) {
            match &mut thing.parent {
                Some(parent) => *parent = place.0,
                None => thing.links += 1,
            }
        }
    }

    /// Removes a name; an inode without names is removed.
    fn take(&mut self, place: Place) {
        let inode = self.entries.remove(&place).expect("an entry");
        let thing = self.things.get_mut(&inode).expect("a thing");
        thing.links = thing.links.saturating_sub(1);
        if thing.links == 0 {
            self.things.remove(&inode);
        }
    }

    fn make(&mut self, place: Place, made: Inode, parent: Option<Inode>) -> Applied {
        if self.entries.contains_key(&place) {
            return Err(Errno::EEXIST);
        }
        self.exists(place.0)?;
        assert!(!self.things.contains_key(&made), "{made:?} is created twice");
        self.things.insert(made, Thing { parent, links: 0 });
        self.put(place, made);
        Ok(Outcome::Made(made))
    }

    fn remove(&mut self, place: Place, wants_directory: bool) -> Applied {
        let inode = self.get(place)?;
        match (self.is_directory(inode), wants_directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.is_empty(inode) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.take(place);
        Ok(Outcome::Done)
    }

    fn rename(&mut self, old: Place, new: Place, flags: u32) -> Applied {
        self.exists(old.0)?;
        let moved = self.get(old)?;
        self.exists(new.0)?;
        let replaced = self.entries.get(&new).copied();
        if flags == rename::NO_REPLACE && replaced.is_some() {
            return Err(Errno::EEXIST);
        }
        let is_exchange = flags == rename::EXCHANGE;
        if is_exchange && replaced.is_none() {
            return Err(Errno::ENOENT);
        }
        if replaced == Some(moved) {
            return Ok(Outcome::Done);
        }
        let moves_into_itself = |inode: Inode, place: Place| {
            old.0 != new.0 && self.is_directory(inode) && self.is_descendant(place.0, inode)
        };
        if let Some(replaced) = replaced.filter(|_| is_exchange) {
            if moves_into_itself(moved, new) || moves_into_itself(replaced, old) {
                return Err(Errno::EINVAL);
            }
            for (place, inode) in [(old, replaced), (new, moved)] {
                self.entries.insert(place, inode);
                if let Some(Thing { parent: Some(parent), .. }) = self.things.get_mut(&inode) {
                    *parent = place.0;
                }
            }
            return Ok(Outcome::Done);
        }
        if let Some(replaced) = replaced {
            match (self.is_directory(moved), self.is_directory(replaced)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        if moves_into_itself(moved, new) {
            return Err(Errno::EINVAL);
        }
        if let Some(replaced) = replaced {
            if self.is_directory(replaced) && !self.is_empty(replaced) {
                return Err(Errno::ENOTEMPTY);
            }
            self.take(new);
        }
        self.entries.remove(&old);
        self.entries.insert(new, moved);
        if let Some(Thing { parent: Some(parent), .. }) = self.things.get_mut(&moved) {
            *parent = new.0;
        }
        Ok(Outcome::Done)
    }

    /// Applies an operation; `made` is the inode that it creates, if any.
    fn apply(&mut self, op: Op, made: Inode) -> Outcome {
        let applied = match op {
            Op::Create(place) => self.make(place, made, None),
            Op::MakeDirectory(place) => self.make(place, made, Some(place.0)),
            Op::Unlink(place) => self.remove(place, false),
            Op::RemoveDirectory(place) => self.remove(place, true),
            Op::Link(inode, place) => self.link(inode, place),
            Op::Rename(old, new, flags) => self.rename(old, new, flags),
            Op::Look(place) => self.get(place).map(Outcome::Found),
            Op::Stat(inode) => match self.things.get(&inode) {
                Some(Thing { parent: Some(parent), .. }) => Ok(Outcome::Parent(*parent)),
                Some(thing) => Ok(Outcome::Links(thing.links)),
                None => Err(Errno::ESTALE),
            },
        };
        applied.unwrap_or_else(Outcome::Refused)
    }

    fn link(&mut self, inode: Inode, place: Place) -> Applied {
        if self.entries.contains_key(&place) {
            return Err(Errno::EEXIST);
        }
        self.exists(place.0)?;
        if !self.things.contains_key(&inode) {
            return Err(Errno::ENOENT);
        }
        if self.is_directory(inode) {
            return Err(Errno::EPERM);
        }
        self.put(place, inode);
        Ok(Outcome::Done)
    }
}

/// A search for an order.
struct Search<'a> {
    history: &'a [Tried],
    end: &'a Tree,
    /// Dead ends: the set of operations done, and a hash of the tree.
    vain: HashSet<(u64, u64)>,
    /// The longest partial order found, and its tree.
    most: (u64, Tree),
}

impl Search<'_> {
    fn is_explained(&mut self, mut done: u64, tree: Tree) -> bool {
        // An operation without effect whose answer is right now may take effect now.
        while let Some((number, _)) = self.enabled(done).into_iter().find(|&(_, tried)| {
            let gone = Some(Outcome::Refused(Errno::ESTALE));
            let changes = matches!(tried.outcome, None | Some(Outcome::Done | Outcome::Made(_)))
                || tried.outcome == gone;
            !changes && self.fits(tried, &mut tree.clone())
        }) {
            done |= 1 << number;
        }
        if done.count_ones() >= self.most.0.count_ones() {
            self.most = (done, tree.clone());
        }
        if done.count_ones() as usize == self.history.len() && tree == *self.end {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        tree.hash(&mut hasher);
        if !self.vain.insert((done, hasher.finish())) {
            return false;
        }
        self.enabled(done).into_iter().any(|(number, tried)| {
            let mut after = tree.clone();
            self.fits(tried, &mut after) && self.is_explained(done | 1 << number, after)
                || tried.outcome.is_none() && self.is_explained(done | 1 << number, tree.clone())
        })
    }

    /// Operations that may be next: none whose request is later than the end of a remaining one.
    fn enabled(&self, done: u64) -> Vec<(usize, Tried)> {
        let left = || {
            let all = self.history.iter().copied().enumerate();
            all.filter(move |(number, _)| done & 1 << number == 0)
        };
        let until = left().map(|(_, tried)| tried.ended_at).min();
        left().filter(|(_, tried)| until.is_none_or(|until| tried.sent_at < until)).collect()
    }

    fn fits(&self, tried: Tried, tree: &mut Tree) -> bool {
        let made = match (tried.op, tried.outcome) {
            (_, Some(Outcome::Made(made))) => made,
            // Its answer was lost, and it is removed again: its number is unknown.
            (Op::Create(_) | Op::MakeDirectory(_), Some(Outcome::Refused(Errno::ESTALE))) => {
                Inode(1 << 63 | tried.sent_at)
            }
            _ => Inode::NONE,
        };
        match tree.apply(tried.op, made) {
            Outcome::Made(_) => !made.is_none(),
            right => tried.outcome.is_none_or(|outcome| outcome == right),
        }
    }
}

/// Finds an order of `history` that leads from one tree to the other; otherwise describes the
/// longest partial order.
pub(crate) fn explain(start: &Tree, history: &[Tried], end: &Tree) -> Result<(), String> {
    assert!(history.len() <= 64, "too much at a time");
    let most = (0, start.clone());
    let mut search = Search { history, end, vain: HashSet::new(), most };
    if search.is_explained(0, start.clone()) {
        return Ok(());
    }
    let (done, tree) = search.most;
    let mut lines: Vec<(u64, String)> = history
        .iter()
        .enumerate()
        .map(|(number, tried)| {
            let mark = if done & 1 << number == 0 { "LEFT" } else { "    " };
            (tried.sent_at, format!("{mark} {tried:?}"))
        })
        .collect();
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    Err(format!("{}\nfrom {start}\ncame to {tree}\nis {end}", lines.join("\n")))
}

impl core::fmt::Display for Tree {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (&(parent, name), inode) in &self.entries {
            let links = self.things.get(inode).map_or(0, |thing| thing.links);
            write!(to, " {}/{}={}", parent.0, name, inode.0)?;
            if links != 1 {
                write!(to, "({links})")?;
            }
        }
        Ok(())
    }
}
