//! A backing directory: what lies there, and the answers of those who read it.

use std::collections::BTreeMap;

use super::World;
use metadata::{Input, Part, Seen};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::{Inode, Reader, Request};

/// A file or directory there.
#[derive(Clone, Debug)]
pub(crate) struct Lying {
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) number: u64,
}

/// When all of it was changed last.
pub(crate) const MODIFIED: i64 = 77_000_000_000;

/// What lies below, by path; and who asked.
#[derive(Default)]
pub(crate) struct Backing {
    pub(crate) tree: BTreeMap<Vec<u8>, Lying>,
    /// Which service, which directory, its path and number.
    pub(crate) asked: Vec<(usize, Inode, Vec<u8>, u64)>,
    /// Who looks for a name.
    pub(crate) looks: Vec<Look>,
    /// How often a name was looked for.
    pub(crate) looked: u64,
    /// How many entries come at a time.
    pub(crate) part: usize,
    pub(crate) refused: BTreeMap<Vec<u8>, Errno>,
    /// How often a directory was asked for.
    pub(crate) count: u64,
    /// When what lies at a path was changed last, if that is not `MODIFIED`.
    pub(crate) times: BTreeMap<Vec<u8>, i64>,
    /// The last number, less a thousand.
    pub(crate) number: u64,
}

impl Backing {
    pub(crate) fn ask(&mut self, at: usize, directory: Inode, (path, number): (Vec<u8>, u64)) {
        self.count += 1;
        self.asked.push((at, directory, path, number));
    }

    pub(crate) fn look(&mut self, look: Look) {
        self.looks.push(look);
    }

    /// False if what is at this path is not the directory of this number.
    fn is_it(&self, path: &[u8], number: u64) -> bool {
        path.is_empty() || self.tree.get(path).is_some_and(|lying| lying.number == number)
    }

    pub(crate) fn put(&mut self, path: &[u8], mode: u32, size: u64) {
        let number = self.new_number();
        self.tree.insert(path.to_vec(), Lying { mode, size, number });
    }

    /// A number that nothing has.
    pub(crate) fn new_number(&mut self) -> u64 {
        self.number += 1;
        999 + self.number
    }

    /// With all that is in it.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) {
        assert!(!self.tree.contains_key(to), "it would be overwritten");
        let inside = [from, b"/"].concat();
        let is_it = |path: &[u8]| path == from || path.starts_with(&inside);
        let moved: Vec<_> = self.tree.keys().filter(|path| is_it(path)).cloned().collect();
        for path in moved {
            let lying = self.tree.remove(&path).expect("listed");
            self.tree.insert([to, &path[from.len()..]].concat(), lying);
        }
    }

    pub(crate) fn link(&mut self, from: &[u8], to: &[u8]) {
        let before = self.tree.insert(to.to_vec(), self.tree[from].clone());
        assert!(before.is_none(), "it would be overwritten");
    }

    /// All names of a number.
    pub(crate) fn paths(&self, number: u64) -> Vec<Vec<u8>> {
        let is_it = |lying: &Lying| lying.number == number;
        self.tree.iter().filter(|(_, it)| is_it(it)).map(|(path, _)| path.clone()).collect()
    }

    /// Other contents under all names of a number.
    pub(crate) fn rewrite(&mut self, old: u64, number: u64, size: u64) {
        for path in self.paths(old) {
            let lying = self.tree.get_mut(&path).expect("listed");
            (lying.number, lying.size) = (number, size);
        }
    }

    pub(crate) fn directory(&mut self, path: &[u8]) {
        self.put(path, mode::DIRECTORY | 0o755, 4096);
    }

    pub(crate) fn file(&mut self, path: &[u8], size: u64) {
        self.put(path, mode::REGULAR | 0o644, size);
    }

    /// Names in a directory.
    pub(crate) fn names(&self, path: &[u8]) -> Vec<(Vec<u8>, Lying)> {
        let start = if path.is_empty() { vec![] } else { [path, b"/"].concat() };
        let inside = self.tree.iter().filter_map(|(other, lying)| {
            let name = other.strip_prefix(&start[..])?;
            (!name.contains(&b'/')).then(|| (name.to_vec(), lying.clone()))
        });
        inside.collect()
    }

    /// What is said of a name in the directory at a path.
    fn seen<'a>(&self, path: &[u8], name: &'a [u8], lying: &Lying) -> Seen<'a> {
        let whole = match (path.is_empty(), name.is_empty()) {
            (true, _) => name.to_vec(),
            (_, true) => path.to_vec(),
            _ => [path, b"/", name].concat(),
        };
        Seen {
            name,
            mode: lying.mode,
            uid: 11,
            gid: 12,
            links: self.links(&whole),
            size: lying.size,
            accessed: MODIFIED - 1,
            modified: self.times.get(&whole).copied().unwrap_or(MODIFIED),
            changed: MODIFIED + 1,
            born: MODIFIED - 2,
            number: lying.number,
            extended: &[],
            target: if lying.mode & mode::TYPE == mode::SYMLINK { b"to" } else { b"" },
            ..Seen::default()
        }
    }

    fn links(&self, path: &[u8]) -> u32 {
        let names = self.names(path);
        2 + names.iter().filter(|(_, it)| it.mode & mode::TYPE == mode::DIRECTORY).count() as u32
    }
}

/// What a service says of a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) path: Vec<u8>,
}

/// Which service looks, its key, path and number of the directory, and the name.
pub(crate) type Look = (usize, u128, (Vec<u8>, u64), Vec<u8>);
/// What a look finds.
pub(crate) type Found = Result<Option<(Vec<u8>, Lying)>, Errno>;

impl World {
    /// Answers the first question for entries below up to its part `parts`; false if there is none, or
    /// its service is killed meanwhile.
    pub(crate) fn answer_below(&mut self, parts: usize) -> bool {
        if self.backing.asked.is_empty() {
            return false;
        }
        let (at, directory, path, number) = self.backing.asked.remove(0);
        if !self.backing.is_it(&path, number) {
            self.step(at, Input::Below { directory, outcome: Err(Errno::EIO) });
            return true;
        }
        if let Some(&errno) = self.backing.refused.get(&path) {
            self.step(at, Input::Below { directory, outcome: Err(errno) });
            return true;
        }
        let names = self.backing.names(&path);
        let seen = names.iter().map(|(name, lying)| self.backing.seen(&path, name, lying));
        let seen: Vec<Seen<'_>> = seen.collect();
        let size = self.backing.part.max(1);
        let count = seen.len().div_ceil(size).max(1);
        for part in 0..count.min(parts) {
            let entries = &seen[(part * size).min(seen.len())..((part + 1) * size).min(seen.len())];
            let outcome = Ok(Part { entries, is_last: part + 1 == count });
            self.step(at, Input::Below { directory, outcome });
        }
        true
    }

    /// What a look for a name finds now.
    pub(crate) fn found_below(&self, (path, number): &(Vec<u8>, u64), name: &[u8]) -> Found {
        if !self.backing.is_it(path, *number) {
            return Err(Errno::EIO);
        }
        if let Some(&errno) = self.backing.refused.get(path) {
            return Err(errno);
        }
        if name.is_empty() {
            // The directory itself.
            let top = Lying { mode: mode::DIRECTORY | 0o755, size: 4096, number: 1 };
            let lying = self.backing.tree.get(path).cloned().unwrap_or(top);
            return Ok(Some((vec![], lying)));
        }
        let names = self.backing.names(path);
        Ok(names.into_iter().find(|(other, _)| other == name))
    }

    /// Answers the first look for a name with what lies there, or lay there; false if there is none.
    pub(crate) fn answer_look(&mut self, before: Option<Found>) -> bool {
        if self.backing.looks.is_empty() {
            return false;
        }
        let (at, key, place, name) = self.backing.looks.remove(0);
        self.backing.looked += 1;
        let found = before.unwrap_or_else(|| self.found_below(&place, &name));
        let of = |lying: &Lying| self.backing.seen(&place.0, &name, lying);
        let outcome = match &found {
            Ok(found) => Ok(found.as_ref().map(|(_, lying)| of(lying))),
            Err(errno) => Err(*errno),
        };
        self.step(at, Input::Looked { key, outcome });
        true
    }

    /// Where a service says that a file lies below: number, size that counts, path.
    pub(crate) fn below_of(&mut self, inode: Inode) -> Result<(u64, u64, Vec<u8>), Errno> {
        let places = self.places_of(inode)?;
        assert_eq!(places.len(), 1);
        let Told { number, size, ref path } = places[0];
        Ok((number, size, path.clone()))
    }

    /// All places where a service says that it may lie.
    pub(crate) fn places_of(&mut self, inode: Inode) -> Result<Vec<Told>, Errno> {
        let root = wire::Credentials::ROOT;
        let bytes = match self.call(root, inode.shard(), &Request::Below { inode }) {
            super::Answer::Bytes(bytes) => bytes,
            super::Answer::Refused(errno) => return Err(errno),
            other => panic!("below: {other:?}"),
        };
        let (mut reader, mut places) = (Reader::new(&bytes), vec![]);
        while !reader.rest().is_empty() {
            let below = wire::below::Below::decode(&mut reader).expect("right");
            let wire::below::Below { number, size, path, .. } = below;
            places.push(Told { number, size, path: path.to_vec() });
        }
        Ok(places)
    }
}
