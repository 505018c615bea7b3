//! A backing directory: its contents, and the answers to reads and probes.

use std::collections::BTreeMap;

use super::World;
use metadata::{BackingDirPart, BackingEntry, Input};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::{Inode, Reader, Request};

/// A file or directory there.
#[derive(Clone, Debug)]
pub(crate) struct BackingFile {
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) number: u64,
}

/// Modification time of all files.
pub(crate) const MODIFIED: i64 = 77_000_000_000;

/// Contents of the backing store by path, and pending reads.
#[derive(Default)]
pub(crate) struct Backing {
    pub(crate) tree: BTreeMap<Vec<u8>, BackingFile>,
    /// Pending reads: service, directory, its path and number.
    pub(crate) reads: Vec<(usize, Inode, Vec<u8>, u64)>,
    /// Pending probes.
    pub(crate) probes: Vec<Probe>,
    /// Number of probes.
    pub(crate) probe_count: u64,
    /// Entries per batch.
    pub(crate) part: usize,
    pub(crate) refused: BTreeMap<Vec<u8>, Errno>,
    /// Number of directory reads.
    pub(crate) count: u64,
    /// Modification times other than `MODIFIED`, by path.
    pub(crate) times: BTreeMap<Vec<u8>, i64>,
    /// The last inode number, less a thousand.
    pub(crate) number: u64,
}

impl Backing {
    pub(crate) fn ask(&mut self, at: usize, directory: Inode, (path, number): (Vec<u8>, u64)) {
        self.count += 1;
        self.reads.push((at, directory, path, number));
    }

    pub(crate) fn look(&mut self, look: Probe) {
        self.probes.push(look);
    }

    /// False if the path does not lead to the directory with this number.
    fn is_it(&self, path: &[u8], number: u64) -> bool {
        path.is_empty() || self.tree.get(path).is_some_and(|file| file.number == number)
    }

    pub(crate) fn put(&mut self, path: &[u8], mode: u32, size: u64) {
        let number = self.new_number();
        self.tree.insert(path.to_vec(), BackingFile { mode, size, number });
    }

    /// An unused number.
    pub(crate) fn new_number(&mut self) -> u64 {
        self.number += 1;
        999 + self.number
    }

    /// Renames a file or a directory with its contents.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) {
        assert!(!self.tree.contains_key(to), "it would be overwritten");
        let inside = [from, b"/"].concat();
        let is_it = |path: &[u8]| path == from || path.starts_with(&inside);
        let moved: Vec<_> = self.tree.keys().filter(|path| is_it(path)).cloned().collect();
        for path in moved {
            let file = self.tree.remove(&path).expect("listed");
            self.tree.insert([to, &path[from.len()..]].concat(), file);
        }
    }

    pub(crate) fn link(&mut self, from: &[u8], to: &[u8]) {
        let before = self.tree.insert(to.to_vec(), self.tree[from].clone());
        assert!(before.is_none(), "it would be overwritten");
    }

    /// All names of a number.
    pub(crate) fn paths(&self, number: u64) -> Vec<Vec<u8>> {
        let is_it = |file: &BackingFile| file.number == number;
        self.tree.iter().filter(|(_, it)| is_it(it)).map(|(path, _)| path.clone()).collect()
    }

    /// Replaces the contents under all names of a number.
    pub(crate) fn rewrite(&mut self, old: u64, number: u64, size: u64) {
        for path in self.paths(old) {
            let file = self.tree.get_mut(&path).expect("listed");
            (file.number, file.size) = (number, size);
        }
    }

    pub(crate) fn directory(&mut self, path: &[u8]) {
        self.put(path, mode::DIRECTORY | 0o755, 4096);
    }

    pub(crate) fn file(&mut self, path: &[u8], size: u64) {
        self.put(path, mode::REGULAR | 0o644, size);
    }

    /// Names in a directory.
    pub(crate) fn names(&self, path: &[u8]) -> Vec<(Vec<u8>, BackingFile)> {
        let start = if path.is_empty() { vec![] } else { [path, b"/"].concat() };
        let inside = self.tree.iter().filter_map(|(other, file)| {
            let name = other.strip_prefix(&start[..])?;
            (!name.contains(&b'/')).then(|| (name.to_vec(), file.clone()))
        });
        inside.collect()
    }

    /// The entry of a name in the directory at a path.
    fn seen<'a>(&self, path: &[u8], name: &'a [u8], file: &BackingFile) -> BackingEntry<'a> {
        let whole = match (path.is_empty(), name.is_empty()) {
            (true, _) => name.to_vec(),
            (_, true) => path.to_vec(),
            _ => [path, b"/", name].concat(),
        };
        BackingEntry {
            name,
            mode: file.mode,
            uid: 11,
            gid: 12,
            links: self.links(&whole),
            size: file.size,
            accessed: MODIFIED - 1,
            modified: self.times.get(&whole).copied().unwrap_or(MODIFIED),
            changed: MODIFIED + 1,
            born: MODIFIED - 2,
            number: file.number,
            extended: &[],
            target: if file.mode & mode::TYPE == mode::SYMLINK { b"to" } else { b"" },
            ..BackingEntry::default()
        }
    }

    fn links(&self, path: &[u8]) -> u32 {
        let names = self.names(path);
        2 + names.iter().filter(|(_, it)| it.mode & mode::TYPE == mode::DIRECTORY).count() as u32
    }
}

/// A backing location as a service reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LocatedFile {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) path: Vec<u8>,
}

/// A probe: service, key, path and number of the directory, and the name.
pub(crate) type Probe = (usize, u128, (Vec<u8>, u64), Vec<u8>);
/// Result of a probe.
pub(crate) type Found = Result<Option<(Vec<u8>, BackingFile)>, Errno>;

impl World {
    /// Answers the first pending directory read up to batch `parts`; false if there is none, or its
    /// service is killed meanwhile.
    pub(crate) fn answer_backing(&mut self, parts: usize) -> bool {
        if self.backing.reads.is_empty() {
            return false;
        }
        let (at, directory, path, number) = self.backing.reads.remove(0);
        if !self.backing.is_it(&path, number) {
            self.step(at, Input::BackingDirRead { directory, outcome: Err(Errno::EIO) });
            return true;
        }
        if let Some(&errno) = self.backing.refused.get(&path) {
            self.step(at, Input::BackingDirRead { directory, outcome: Err(errno) });
            return true;
        }
        let names = self.backing.names(&path);
        let seen = names.iter().map(|(name, file)| self.backing.seen(&path, name, file));
        let seen: Vec<BackingEntry<'_>> = seen.collect();
        let size = self.backing.part.max(1);
        let count = seen.len().div_ceil(size).max(1);
        for part in 0..count.min(parts) {
            let entries = &seen[(part * size).min(seen.len())..((part + 1) * size).min(seen.len())];
            let outcome = Ok(BackingDirPart { entries, is_last: part + 1 == count });
            self.step(at, Input::BackingDirRead { directory, outcome });
        }
        true
    }

    /// The current result of a probe.
    pub(crate) fn found_in_backing(&self, (path, number): &(Vec<u8>, u64), name: &[u8]) -> Found {
        if !self.backing.is_it(path, *number) {
            return Err(Errno::EIO);
        }
        if let Some(&errno) = self.backing.refused.get(path) {
            return Err(errno);
        }
        if name.is_empty() {
            // The directory itself.
            let top = BackingFile { mode: mode::DIRECTORY | 0o755, size: 4096, number: 1 };
            let file = self.backing.tree.get(path).cloned().unwrap_or(top);
            return Ok(Some((vec![], file)));
        }
        let names = self.backing.names(path);
        Ok(names.into_iter().find(|(other, _)| other == name))
    }

    /// Answers the first probe with the current or an earlier entry; false if there is none.
    pub(crate) fn answer_probe(&mut self, before: Option<Found>) -> bool {
        if self.backing.probes.is_empty() {
            return false;
        }
        let (at, key, place, name) = self.backing.probes.remove(0);
        self.backing.probe_count += 1;
        let found = before.unwrap_or_else(|| self.found_in_backing(&place, &name));
        let of = |file: &BackingFile| self.backing.seen(&place.0, &name, file);
        let outcome = match &found {
            Ok(found) => Ok(found.as_ref().map(|(_, file)| of(file))),
            Err(errno) => Err(*errno),
        };
        self.step(at, Input::Probed { key, outcome });
        true
    }

    /// The backing location of a file as a service reports it: number, size that counts, path.
    pub(crate) fn backing_file_of(&mut self, inode: Inode) -> Result<(u64, u64, Vec<u8>), Errno> {
        let places = self.places_of(inode)?;
        assert_eq!(places.len(), 1);
        let LocatedFile { number, size, ref path } = places[0];
        Ok((number, size, path.clone()))
    }

    /// All backing locations of a file as a service reports them.
    pub(crate) fn places_of(&mut self, inode: Inode) -> Result<Vec<LocatedFile>, Errno> {
        let root = wire::Credentials::ROOT;
        let bytes = match self.call(root, inode.shard(), &Request::LocateBacking { inode }) {
            super::Answer::Bytes(bytes) => bytes,
            super::Answer::Refused(errno) => return Err(errno),
            other => panic!("backing: {other:?}"),
        };
        let (mut reader, mut places) = (Reader::new(&bytes), vec![]);
        while !reader.rest().is_empty() {
            let backing = wire::backing::BackingFile::decode(&mut reader).expect("right");
            let wire::backing::BackingFile { number, size, path, .. } = backing;
            places.push(LocatedFile { number, size, path: path.to_vec() });
        }
        Ok(places)
    }
}
