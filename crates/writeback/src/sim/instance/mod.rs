//! A model of the instance: inodes, entries, what is dirty, and operations of its users.

mod extents;

use super::Random;
use super::listing::shown;
use crate::state::{BackingLocation, DirtyName, Place, SyncState};
use backing::{Dir, FileMetadata, Node};
use extents::{EXTENT_BYTES, State};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::attributes::mode;
use wire::backing::{Stamp, Version};
use wire::errno::{Errno, Result};
use wire::id::BACKED_FIRST;
use wire::{Attributes, Inode};

/// A file.
#[derive(Clone)]
struct File {
    attributes: Attributes,
    contents: Vec<u8>,
    /// Extents that are not dirty, by number.
    extents: BTreeMap<usize, State>,
    /// A program has it open for writing.
    is_written: bool,
    target: String,
    extended: BTreeMap<String, Vec<u8>>,
    /// It is open, so it stays when its last name is removed.
    is_open: bool,
}

/// Maximum depth of a directory.
const DEPTH_MAX: u32 = 16;

/// Backing locations of an inode.
#[derive(Clone, Default)]
struct Located {
    now: Option<BackingLocation>,
    next: Option<BackingLocation>,
    partial: Option<BackingLocation>,
}

/// The model of an instance.
pub(in crate::sim) struct FakeInstance {
    root: PathBuf,
    files: BTreeMap<Inode, File>,
    entries: BTreeMap<Place, Inode>,
    dirty: BTreeMap<Place, Inode>,
    backing: HashMap<Inode, Located>,
    next: u64,
    clock: i64,
    /// Number of files that were written and evicted, and of extents evicted from files that were
    /// open for writing.
    pub(in crate::sim) dropped: u64,
    pub(in crate::sim) parts_dropped: u64,
    /// Number of names that users create.
    pub(in crate::sim) kinds: u64,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CLOCK_FIRST: i64 = 1_700_000_000_000_000_000;

impl FakeInstance {
    pub(in crate::sim) fn new(root: &Path) -> FakeInstance {
        let mut instance = FakeInstance {
            root: root.to_owned(),
            files: BTreeMap::new(),
            entries: BTreeMap::new(),
            dirty: BTreeMap::new(),
            backing: HashMap::new(),
            next: 100,
            clock: CLOCK_FIRST,
            dropped: 0,
            parts_dropped: 0,
            kinds: 0,
        };
        let top = instance.file(mode::DIRECTORY | 0o755);
        instance.files.insert(Inode::ROOT, File { is_open: true, ..top });
        instance
    }

    fn now(&mut self) -> i64 {
        self.clock += 1_000_003;
        self.clock
    }

    fn file(&mut self, mode: u32) -> File {
        let now = self.now();
        let meta = std::fs::metadata(&self.root).expect("the root");
        let (uid, gid) = (meta.uid(), meta.gid());
        let attributes = Attributes {
            mode,
            uid,
            gid,
            links: 1,
            accessed: now,
            modified: now,
            changed: now,
            ..Attributes::default()
        };
        File {
            attributes,
            contents: Vec::new(),
            extents: BTreeMap::new(),
            is_written: false,
            target: String::new(),
            extended: BTreeMap::new(),
            is_open: false,
        }
    }

    fn add(&mut self, file: File) -> Inode {
        self.next += 1;
        self.add_as(Inode(self.next), file)
    }

    fn add_as(&mut self, inode: Inode, mut file: File) -> Inode {
        file.attributes.inode = inode;
        self.files.insert(inode, file);
        inode
    }

    // Operations of users.

    /// Imports the backing store without reading any contents.
    pub(in crate::sim) fn import(&mut self) {
        self.import_from(Inode::ROOT, &self.root.clone());
    }

    fn import_from(&mut self, parent: Inode, path: &Path) {
        let dir = Dir::open(path).expect("open");
        let names: BTreeMap<_, _> = dir.entries().expect("listed").into_iter().collect();
        for (name, _) in names {
            let node = dir.node(&name).expect("stat");
            let meta = path.join(&name).symlink_metadata().expect("stat");
            let mut file = self.file(meta.mode());
            let attributes = &mut file.attributes;
            attributes.modified = node.modified();
            attributes.size = if meta.is_file() { meta.len() } else { 0 };
            if meta.is_file() {
                file.contents = std::fs::read(path.join(&name)).expect("read");
                let all = 0..file.contents.len().div_ceil(EXTENT_BYTES);
                file.extents = all.map(|extent| (extent, State::Dropped)).collect();
            }
            let stamp = Stamp::of(attributes);
            let inode = self.add_as(Inode(BACKED_FIRST + self.files.len() as u64), file);
            let place = Place { parent, name: name.clone() };
            self.entries.insert(place.clone(), inode);
            let version = version(&node);
            let location = BackingLocation { place, version, counts: version.size, stamp };
            self.backing.insert(inode, Located { now: Some(location), ..Located::default() });
            if meta.is_dir() {
                self.import_from(inode, &path.join(&name));
            }
        }
    }

    fn set(&mut self, place: Place, to: Option<Inode>) {
        let before = self.entries.get(&place).copied().unwrap_or(Inode::NONE);
        let location = self.dirty.get(&place).copied().unwrap_or(before);
        let after = to.unwrap_or(Inode::NONE);
        match to {
            Some(inode) => self.entries.insert(place.clone(), inode),
            None => self.entries.remove(&place),
        };
        if location == after {
            self.dirty.remove(&place);
        } else {
            self.dirty.insert(place.clone(), location);
        }
        let now = self.now();
        if let Some(parent) = self.files.get_mut(&place.parent) {
            (parent.attributes.modified, parent.attributes.changed) = (now, now);
        }
    }

    fn drop_link(&mut self, inode: Inode) {
        let now = self.now();
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.attributes.links -= 1;
        file.attributes.changed = now;
        if file.attributes.links == 0 && !file.is_open {
            self.files.remove(&inode);
        }
    }

    pub(in crate::sim) fn write(&mut self, inode: Inode, at: usize, bytes: &[u8]) {
        let now = self.now();
        let length = self.files.get(&inode).expect("a file").contents.len();
        if at + bytes.len() > length {
            self.resize(inode, at + bytes.len());
        }
        self.fill(inode, at / EXTENT_BYTES..(at + bytes.len()).div_ceil(EXTENT_BYTES));
        let file = self.files.get_mut(&inode).expect("a file");
        file.contents[at..at + bytes.len()].copy_from_slice(bytes);
        (file.attributes.modified, file.attributes.changed) = (now, now);
    }

    /// Bytes that are cut off do not count in the backing store any more; new ones are a hole.
    fn resize(&mut self, inode: Inode, size: usize) {
        let file = self.files.get_mut(&inode).expect("a file");
        let before = file.contents.len();
        if size < before {
            file.extents.retain(|extent, _| extent * EXTENT_BYTES < size);
            let is_dropped = |state: &State| *state == State::Dropped;
            if !file.extents.get(&(size / EXTENT_BYTES)).is_none_or(is_dropped) {
                file.extents.remove(&(size / EXTENT_BYTES));
            }
            if let Some(Located { now, next, partial }) = self.backing.get_mut(&inode) {
                for location in [now, next, &mut *partial].into_iter().flatten() {
                    location.counts = location.counts.min(size as u64);
                }
                let partials = partial.iter_mut();
                partials.for_each(|partial| partial.stamp.changed += 1);
            }
        }
        let new = before.div_ceil(EXTENT_BYTES)..size.div_ceil(EXTENT_BYTES);
        file.extents.extend(new.map(|extent| (extent, State::Dropped)));
        file.contents.resize(size, 0);
        file.attributes.size = size as u64;
    }

    pub(in crate::sim) fn truncate(&mut self, inode: Inode, size: usize) {
        let now = self.now();
        self.resize(inode, size);
        let file = self.files.get_mut(&inode).expect("a file");
        (file.attributes.modified, file.attributes.changed) = (now, now);
    }

    pub(in crate::sim) fn create(&mut self, parent: Inode, name: &str, contents: &[u8]) -> Inode {
        let file = self.file(mode::REGULAR | 0o640);
        let inode = self.add(file);
        self.set(place(parent, name), Some(inode));
        self.write(inode, 0, contents);
        inode
    }

    pub(in crate::sim) fn make_directory(&mut self, parent: Inode, name: &str) -> Inode {
        let file = self.file(mode::DIRECTORY | 0o750);
        let inode = self.add(file);
        self.set(place(parent, name), Some(inode));
        inode
    }

    pub(in crate::sim) fn symlink(&mut self, parent: Inode, name: &str, target: &str) {
        let mut file = self.file(mode::SYMLINK | 0o777);
        file.target = target.to_owned();
        file.attributes.size = target.len() as u64;
        let inode = self.add(file);
        self.set(place(parent, name), Some(inode));
    }

    pub(in crate::sim) fn pipe(&mut self, parent: Inode, name: &str) {
        let file = self.file(mode::FIFO | 0o600);
        let inode = self.add(file);
        self.set(place(parent, name), Some(inode));
    }

    pub(in crate::sim) fn link(&mut self, inode: Inode, parent: Inode, name: &str) {
        let now = self.now();
        let file = self.files.get_mut(&inode).expect("a file");
        file.attributes.links += 1;
        file.attributes.changed = now;
        self.set(place(parent, name), Some(inode));
    }

    pub(in crate::sim) fn open(&mut self, inode: Inode) {
        self.files.get_mut(&inode).expect("a file").is_open = true;
    }

    pub(in crate::sim) fn close(&mut self, inode: Inode) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.is_open = false;
        if file.attributes.links == 0 {
            self.files.remove(&inode);
        }
    }

    pub(in crate::sim) fn remove(&mut self, parent: Inode, name: &str) {
        let place = place(parent, name);
        let inode = self.entries.get(&place).copied().expect("an entry");
        self.set(place, None);
        self.drop_link(inode);
    }

    pub(in crate::sim) fn change_mode(&mut self, inode: Inode, mode: u32) {
        let now = self.now();
        let file = self.files.get_mut(&inode).expect("a file");
        file.attributes.mode = file.attributes.mode & mode::TYPE | mode;
        file.attributes.changed = now;
    }

    pub(in crate::sim) fn at(&self, path: &str) -> Inode {
        path.split('/').filter(|part| !part.is_empty()).fold(Inode::ROOT, |parent, name| {
            self.entries.get(&place(parent, name)).copied().unwrap_or(Inode::NONE)
        })
    }

    pub(in crate::sim) fn rename(&mut self, from: (Inode, &str), to: (Inode, &str)) {
        let (from, to) = (place(from.0, from.1), place(to.0, to.1));
        let inode = self.entries.get(&from).copied().expect("an entry");
        let over = self.entries.get(&to).copied();
        if over == Some(inode) {
            return;
        }
        self.set(to, Some(inode));
        self.set(from, None);
        if let Some(over) = over {
            self.drop_link(over);
        }
        let now = self.now();
        self.files.get_mut(&inode).expect("a file").attributes.changed = now;
    }

    pub(in crate::sim) fn exchange(&mut self, one: (Inode, &str), other: (Inode, &str)) {
        let (one, other) = (place(one.0, one.1), place(other.0, other.1));
        let (first, second) = (self.entries.get(&one).copied(), self.entries.get(&other).copied());
        self.set(one, second);
        self.set(other, first);
        for inode in [first, second].into_iter().flatten() {
            let now = self.now();
            self.files.get_mut(&inode).expect("a file").attributes.changed = now;
        }
    }

    fn is_within(&self, inode: Inode, directory: Inode) -> bool {
        let mut at = inode;
        while at != Inode::ROOT {
            if at == directory {
                return true;
            }
            let up = self.entries.iter().find(|(_, entry)| **entry == at);
            let Some((place, _)) = up else { return false };
            at = place.parent;
        }
        directory == Inode::ROOT
    }

    fn directories(&self) -> Vec<Inode> {
        let is_one = |inode: &&Inode| self.files.get(inode).is_some_and(is_directory);
        let mut all: Vec<Inode> = self.entries.values().filter(is_one).copied().collect();
        all.push(Inode::ROOT);
        all
    }

    fn is_empty(&self, directory: Inode) -> bool {
        !self.entries.keys().any(|place| place.parent == directory)
    }

    pub(in crate::sim) fn set_written(&mut self, inode: Inode, is_written: bool) {
        self.files.get_mut(&inode).expect("a file").is_written |= is_written;
    }

    pub(in crate::sim) fn close_all(&mut self) {
        let open = self.files.iter().filter(|(_, file)| file.is_open);
        let open: Vec<Inode> = open.map(|(inode, _)| *inode).collect();
        for inode in open.into_iter().filter(|inode| *inode != Inode::ROOT) {
            self.close(inode);
        }
        self.files.values_mut().for_each(|file| file.is_written = false);
    }

    /// A random operation of a user.
    pub(in crate::sim) fn operate(&mut self, random: &mut Random) {
        self.kinds += 1;
        if random.uniform(4) == 0 {
            self.drop_clean();
        }
        let directories = self.directories();
        let pick = |random: &mut Random| {
            (directories[random.uniform(directories.len())], NAMES[random.uniform(NAMES.len())])
        };
        let (parent, name) = pick(random);
        let at = self.entries.get(&place(parent, name)).copied();
        let bytes: Vec<u8> = (0..random.uniform(40)).map(|_| random.next() as u8).collect();
        let is_file = |instance: &FakeInstance, inode: Inode| {
            instance.files.get(&inode).is_some_and(|file| file.attributes.is_regular())
        };
        match (random.uniform(16), at) {
            (0..=3, None) => {
                let inode = self.create(parent, name, &bytes);
                self.set_written(inode, random.uniform(2) == 0);
            }
            (4, None) if directories.len() < 8 => drop(self.make_directory(parent, name)),
            (5, None) => self.symlink(parent, name, "somewhere"),
            (6, None) => self.pipe(parent, name),
            (0..=1, Some(inode)) if is_file(self, inode) => {
                let end = self.files.get(&inode).map_or(0, |file| file.contents.len());
                self.write(inode, [3, end + 5, end][random.uniform(3)] % 200, &bytes);
                self.set_written(inode, random.uniform(3) > 0);
            }
            (2, Some(inode)) if is_file(self, inode) => self.truncate(inode, bytes.len()),
            (3, Some(inode)) => self.change_mode(inode, 0o700 | random.uniform(8) as u32),
            (4..=6, Some(inode))
                if !self.files.get(&inode).is_some_and(is_directory) || self.is_empty(inode) =>
            {
                if is_file(self, inode) && random.uniform(3) == 0 {
                    self.open(inode);
                }
                self.remove(parent, name);
            }
            (7, Some(inode)) if is_file(self, inode) => {
                let (to, as_name) = pick(random);
                if !self.entries.contains_key(&place(to, as_name)) {
                    self.link(inode, to, as_name);
                }
            }
            (8..=12, Some(inode)) => self.rename_anywhere(inode, (parent, name), pick(random)),
            (13, Some(inode)) => {
                let (to, as_name) = pick(random);
                let Some(&other) = self.entries.get(&place(to, as_name)) else { return };
                if inode != other && !self.is_within(to, inode) && !self.is_within(parent, other) {
                    self.exchange((parent, name), (to, as_name));
                }
            }
            (14, _) => self.close_all(),
            (15, Some(inode)) => {
                let now = self.now();
                let file = self.files.get_mut(&inode).expect("a file");
                if file.attributes.is_regular() || is_directory(file) {
                    file.extended.insert(format!("user.{name}"), bytes);
                    file.attributes.changed = now;
                }
            }
            _ => {}
        }
    }

    fn rename_anywhere(&mut self, inode: Inode, from: (Inode, &str), to: (Inode, &str)) {
        if self.is_within(to.0, inode) {
            return;
        }
        let is_dir = |inode: &Inode| self.files.get(inode).is_some_and(is_directory);
        let over = self.entries.get(&place(to.0, to.1));
        let may = over.is_none_or(|over| {
            is_dir(over) == is_dir(&inode) && (!is_dir(over) || self.is_empty(*over))
        });
        if may {
            self.rename(from, to);
        }
    }

    // Requests of the writeback daemon, as in `wire::backing`.

    pub(in crate::sim) fn dirty_names(&self) -> Vec<DirtyName> {
        let dirty_name = |(place, backed): (&Place, &Inode)| {
            let entry = self.entries.get(place).copied().unwrap_or(Inode::NONE);
            let mode = self.files.get(&entry).map_or(0, |file| file.attributes.mode);
            DirtyName { place: place.clone(), entry, mode, backed_inode: *backed }
        };
        self.dirty.iter().map(dirty_name).collect()
    }

    pub(in crate::sim) fn dirty_inodes(&self) -> Vec<SyncState> {
        let all = self.backing.keys().filter_map(|inode| self.sync_state(*inode));
        let mut all: Vec<SyncState> = all
            .filter(|sync_state| {
                let changed = sync_state.attributes.map(|attributes| attributes.changed);
                let saved = sync_state.now.as_ref().map(|now| now.stamp.changed);
                let is_confirmed = sync_state.next.is_none() && sync_state.partial.is_none();
                !is_confirmed || changed.is_none() || changed != saved
            })
            .collect();
        all.sort_by_key(|sync_state| sync_state.inode);
        all
    }

    pub(in crate::sim) fn sync_state(&self, inode: Inode) -> Option<SyncState> {
        let file = self.files.get(&inode);
        let attributes = file.map(|file| file.attributes);
        let Located { now, next, partial } = self.backing.get(&inode).cloned().unwrap_or_default();
        if attributes.is_none() && now.is_none() && next.is_none() && partial.is_none() {
            return None;
        }
        let is_written = file.is_some_and(|file| file.is_written);
        Some(SyncState { inode, attributes, is_written, now, next, partial })
    }

    pub(in crate::sim) fn writing(
        &mut self,
        inode: Inode,
        location: &BackingLocation,
    ) -> Result<()> {
        let backing = self.backing.get(&inode).cloned().unwrap_or_default();
        let mut next = location.clone();
        match backing.now.as_ref().filter(|now| now.version == location.version) {
            Some(now) => (next.counts, next.stamp) = (now.counts, now.stamp),
            None => {
                let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
                let is_same = Stamp::of(&file.attributes).has_contents_of(&location.stamp);
                if file.attributes.is_regular() && !is_same {
                    return Err(Errno::EAGAIN);
                }
            }
        }
        self.backing.insert(inode, Located { next: Some(next), ..backing });
        Ok(())
    }

    pub(in crate::sim) fn wrote(&mut self, inode: Inode, location: &BackingLocation) -> Result<()> {
        let Located { now, next, partial } =
            self.backing.get(&inode).cloned().ok_or(Errno::EAGAIN)?;
        let is_it = |lying: &BackingLocation| {
            lying.place == location.place && lying.version == location.version
        };
        let found = next.or(now).filter(|lying| is_it(lying)).ok_or(Errno::EAGAIN)?;
        let stamp = Stamp { changed: location.stamp.changed, ..found.stamp };
        let now = BackingLocation { stamp, ..found };
        let partial = partial.filter(|partial| partial.version.number != now.version.number);
        self.backing.insert(inode, Located { now: Some(now), next: None, partial });
        Ok(())
    }

    pub(in crate::sim) fn not_written(&mut self, inode: Inode) -> Result<()> {
        self.change_backing(inode, |backing| backing.next = None);
        Ok(())
    }

    fn change_backing(&mut self, inode: Inode, change: impl FnOnce(&mut Located)) {
        let Some(backing) = self.backing.get_mut(&inode) else { return };
        change(backing);
        if backing.now.is_none() && backing.next.is_none() && backing.partial.is_none() {
            self.backing.remove(&inode);
        }
    }

    pub(in crate::sim) fn note_partial(
        &mut self,
        inode: Inode,
        is_new: bool,
        location: &BackingLocation,
    ) -> Result<()> {
        self.files.get(&inode).ok_or(Errno::ESTALE)?;
        let backing = self.backing.entry(inode).or_default();
        let is_right = match &backing.partial {
            Some(partial) => !is_new && partial.stamp == location.stamp,
            None => {
                let most = backing.now.as_ref().map_or(0, |now| now.counts);
                is_new && location.counts <= most
            }
        };
        if !is_right {
            self.change_backing(inode, |_| {});
            return Err(Errno::EAGAIN);
        }
        backing.partial = Some(location.clone());
        Ok(())
    }

    pub(in crate::sim) fn forget_partial(&mut self, inode: Inode) -> Result<()> {
        self.change_backing(inode, |backing| backing.partial = None);
        Ok(())
    }

    pub(in crate::sim) fn gone(&mut self, inode: Inode) -> Result<()> {
        self.backing.remove(&inode);
        let file = self.files.get(&inode);
        let has_all = file.is_none_or(|file| self.has_dropped(inode, file));
        assert!(has_all, "bytes of {inode:?} are lost");
        Ok(())
    }

    pub(in crate::sim) fn name_written(
        &mut self,
        place: &Place,
        from: Inode,
        to: Inode,
    ) -> Result<()> {
        let entry = self.entries.get(place).copied().unwrap_or(Inode::NONE);
        let location = self.dirty.get(place).copied().unwrap_or(entry);
        if location == to {
            return Ok(());
        }
        if location != from {
            return Err(Errno::EAGAIN);
        }
        match entry == to {
            true => self.dirty.remove(place),
            false => self.dirty.insert(place.clone(), to),
        };
        Ok(())
    }

    pub(in crate::sim) fn metadata(&self, inode: Inode) -> Result<FileMetadata> {
        let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
        let Attributes { mode, uid, gid, accessed, modified, .. } = file.attributes;
        let extended = file
            .extended
            .iter()
            .map(|(name, value)| (CString::new(name.as_str()).expect("a name"), value.clone()));
        Ok(FileMetadata {
            mode: mode & mode::PERMISSIONS,
            owner: (uid, gid),
            times: [accessed, modified],
            extended: extended.collect(),
        })
    }

    pub(in crate::sim) fn target(&self, inode: Inode) -> Result<OsString> {
        Ok(self.files.get(&inode).ok_or(Errno::ESTALE)?.target.clone().into())
    }

    /// Each name with all that must be equal in the backing store.
    pub(in crate::sim) fn listing(&self) -> BTreeMap<PathBuf, String> {
        let mut listing = BTreeMap::new();
        let mut names: HashMap<Inode, Vec<String>> = HashMap::new();
        let mut left = vec![(Inode::ROOT, PathBuf::new())];
        let mut files = Vec::new();
        while let Some((directory, path)) = left.pop() {
            for (place, inode) in self.entries.iter().filter(|(at, _)| at.parent == directory) {
                let path = path.join(&place.name);
                let file = self.files.get(inode).expect("a file");
                if is_directory(file) {
                    left.push((*inode, path.clone()));
                }
                names.entry(*inode).or_default().push(path.display().to_string());
                files.push((path, *inode));
            }
        }
        for (path, inode) in files {
            let file = self.files.get(&inode).expect("a file");
            let mut hardlinks = names.get(&inode).cloned().unwrap_or_default();
            hardlinks.sort();
            let extended: Vec<_> = file.extended.iter().collect();
            let said = shown(
                (file.attributes.mode, file.attributes.modified),
                (&file.contents, &file.target),
                &format!("{extended:?}"),
                &hardlinks,
            );
            listing.insert(path, said);
        }
        listing
    }
}

fn is_directory(file: &File) -> bool {
    file.attributes.is_directory()
}

fn version(node: &Node) -> Version {
    crate::backends::Node::from(*node).version
}

pub(in crate::sim) fn place(parent: Inode, name: &str) -> Place {
    Place::of(parent, std::ffi::OsStr::new(name).as_bytes())
}
