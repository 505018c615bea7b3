//! The instance: inodes, entries, what is unsaved, and operations of its users.

mod pieces;

use super::Random;
use super::listing::shown;
use crate::state::{Lies, Place, Row, Standing};
use below::{Dress, Folder, Node};
use pieces::{PIECE_BYTES, State};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::attributes::mode;
use wire::below::{Stamp, Version};
use wire::errno::{Errno, Result};
use wire::id::BELOW_FIRST;
use wire::{Attributes, Inode};

/// A file.
#[derive(Clone)]
struct File {
    attributes: Attributes,
    contents: Vec<u8>,
    /// Pieces that are not here and new, by number.
    pieces: BTreeMap<usize, State>,
    /// Somebody writes to it.
    is_written: bool,
    target: String,
    extended: BTreeMap<String, Vec<u8>>,
    /// It is open: it stays when its last name goes.
    is_open: bool,
}

/// Directories on the way to one.
const DEPTH_MAX: u32 = 16;

/// Where an inode lies below.
#[derive(Clone, Default)]
struct Below {
    now: Option<Lies>,
    next: Option<Lies>,
    draft: Option<Lies>,
}

/// The instance.
pub(in crate::sim) struct Instance {
    root: PathBuf,
    files: BTreeMap<Inode, File>,
    entries: BTreeMap<Place, Inode>,
    unsaved: BTreeMap<Place, Inode>,
    below: HashMap<Inode, Below>,
    next: u64,
    clock: i64,
    /// Files that were saved, and dropped, and pieces of files that were written to.
    pub(in crate::sim) dropped: u64,
    pub(in crate::sim) parts_dropped: u64,
    /// Names that are made.
    pub(in crate::sim) kinds: u64,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CLOCK_FIRST: i64 = 1_700_000_000_000_000_000;

impl Instance {
    pub(in crate::sim) fn new(root: &Path) -> Instance {
        let mut instance = Instance {
            root: root.to_owned(),
            files: BTreeMap::new(),
            entries: BTreeMap::new(),
            unsaved: BTreeMap::new(),
            below: HashMap::new(),
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
            pieces: BTreeMap::new(),
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

    // What users do.

    /// Sees what lies below, of which no byte is read.
    pub(in crate::sim) fn import(&mut self) {
        self.import_from(Inode::ROOT, &self.root.clone());
    }

    fn import_from(&mut self, parent: Inode, path: &Path) {
        let folder = Folder::open(path).expect("open");
        let names: BTreeMap<_, _> = folder.entries().expect("listed").into_iter().collect();
        for (name, _) in names {
            let node = folder.node(&name).expect("stat");
            let meta = path.join(&name).symlink_metadata().expect("stat");
            let mut file = self.file(meta.mode());
            let attributes = &mut file.attributes;
            attributes.modified = node.modified();
            attributes.size = if meta.is_file() { meta.len() } else { 0 };
            if meta.is_file() {
                file.contents = std::fs::read(path.join(&name)).expect("read");
                let all = 0..file.contents.len().div_ceil(PIECE_BYTES);
                file.pieces = all.map(|piece| (piece, State::Dropped)).collect();
            }
            let stamp = Stamp::of(attributes);
            let inode = self.add_as(Inode(BELOW_FIRST + self.files.len() as u64), file);
            let place = Place { parent, name: name.clone() };
            self.entries.insert(place.clone(), inode);
            let version = version(&node);
            let lies = Lies { place, version, counts: version.size, stamp };
            self.below.insert(inode, Below { now: Some(lies), ..Below::default() });
            if meta.is_dir() {
                self.import_from(inode, &path.join(&name));
            }
        }
    }

    fn set(&mut self, place: Place, to: Option<Inode>) {
        let before = self.entries.get(&place).copied().unwrap_or(Inode::NONE);
        let lies = self.unsaved.get(&place).copied().unwrap_or(before);
        let after = to.unwrap_or(Inode::NONE);
        match to {
            Some(inode) => self.entries.insert(place.clone(), inode),
            None => self.entries.remove(&place),
        };
        if lies == after {
            self.unsaved.remove(&place);
        } else {
            self.unsaved.insert(place.clone(), lies);
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
        self.fill(inode, at / PIECE_BYTES..(at + bytes.len()).div_ceil(PIECE_BYTES));
        let file = self.files.get_mut(&inode).expect("a file");
        file.contents[at..at + bytes.len()].copy_from_slice(bytes);
        (file.attributes.modified, file.attributes.changed) = (now, now);
    }

    /// What is cut off does not count below any more; what is new is a hole.
    fn resize(&mut self, inode: Inode, size: usize) {
        let file = self.files.get_mut(&inode).expect("a file");
        let before = file.contents.len();
        if size < before {
            file.pieces.retain(|piece, _| piece * PIECE_BYTES < size);
            let is_dropped = |state: &State| *state == State::Dropped;
            if !file.pieces.get(&(size / PIECE_BYTES)).is_none_or(is_dropped) {
                file.pieces.remove(&(size / PIECE_BYTES));
            }
            if let Some(Below { now, next, draft }) = self.below.get_mut(&inode) {
                for lies in [now, next, &mut *draft].into_iter().flatten() {
                    lies.counts = lies.counts.min(size as u64);
                }
                let cuts = draft.iter_mut();
                cuts.for_each(|draft| draft.stamp.changed += 1);
            }
        }
        let new = before.div_ceil(PIECE_BYTES)..size.div_ceil(PIECE_BYTES);
        file.pieces.extend(new.map(|piece| (piece, State::Dropped)));
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

    /// Something that a user may do.
    pub(in crate::sim) fn operate(&mut self, random: &mut Random) {
        self.kinds += 1;
        if random.below(4) == 0 {
            self.drop_saved();
        }
        let directories = self.directories();
        let pick = |random: &mut Random| {
            (directories[random.below(directories.len())], NAMES[random.below(NAMES.len())])
        };
        let (parent, name) = pick(random);
        let at = self.entries.get(&place(parent, name)).copied();
        let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
        let is_file = |instance: &Instance, inode: Inode| {
            instance.files.get(&inode).is_some_and(|file| file.attributes.is_regular())
        };
        match (random.below(16), at) {
            (0..=3, None) => {
                let inode = self.create(parent, name, &bytes);
                self.set_written(inode, random.below(2) == 0);
            }
            (4, None) if directories.len() < 8 => drop(self.make_directory(parent, name)),
            (5, None) => self.symlink(parent, name, "somewhere"),
            (6, None) => self.pipe(parent, name),
            (0..=1, Some(inode)) if is_file(self, inode) => {
                let end = self.files.get(&inode).map_or(0, |file| file.contents.len());
                self.write(inode, [3, end + 5, end][random.below(3)] % 200, &bytes);
                self.set_written(inode, random.below(3) > 0);
            }
            (2, Some(inode)) if is_file(self, inode) => self.truncate(inode, bytes.len()),
            (3, Some(inode)) => self.change_mode(inode, 0o700 | random.below(8) as u32),
            (4..=6, Some(inode))
                if !self.files.get(&inode).is_some_and(is_directory) || self.is_empty(inode) =>
            {
                if is_file(self, inode) && random.below(3) == 0 {
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
        let is_folder = |inode: &Inode| self.files.get(inode).is_some_and(is_directory);
        let over = self.entries.get(&place(to.0, to.1));
        let may = over.is_none_or(|over| {
            is_folder(over) == is_folder(&inode) && (!is_folder(over) || self.is_empty(*over))
        });
        if may {
            self.rename(from, to);
        }
    }

    // What the writer asks and tells, as `wire::below` has it.

    pub(in crate::sim) fn rows(&self) -> Vec<Row> {
        let row = |(place, lies): (&Place, &Inode)| {
            let entry = self.entries.get(place).copied().unwrap_or(Inode::NONE);
            let mode = self.files.get(&entry).map_or(0, |file| file.attributes.mode);
            Row { place: place.clone(), entry, mode, lies: *lies }
        };
        self.unsaved.iter().map(row).collect()
    }

    pub(in crate::sim) fn changed(&self) -> Vec<Standing> {
        let all = self.below.keys().filter_map(|inode| self.standing(*inode));
        let mut all: Vec<Standing> = all
            .filter(|standing| {
                let changed = standing.attributes.map(|attributes| attributes.changed);
                let saved = standing.now.as_ref().map(|now| now.stamp.changed);
                let is_told = standing.next.is_none() && standing.draft.is_none();
                !is_told || changed.is_none() || changed != saved
            })
            .collect();
        all.sort_by_key(|standing| standing.inode);
        all
    }

    pub(in crate::sim) fn standing(&self, inode: Inode) -> Option<Standing> {
        let file = self.files.get(&inode);
        let attributes = file.map(|file| file.attributes);
        let Below { now, next, draft } = self.below.get(&inode).cloned().unwrap_or_default();
        if attributes.is_none() && now.is_none() && next.is_none() && draft.is_none() {
            return None;
        }
        let is_written = file.is_some_and(|file| file.is_written);
        Some(Standing { inode, attributes, is_written, now, next, draft })
    }

    pub(in crate::sim) fn saving(&mut self, inode: Inode, lies: &Lies) -> Result<()> {
        let below = self.below.get(&inode).cloned().unwrap_or_default();
        let mut next = lies.clone();
        match below.now.as_ref().filter(|now| now.version == lies.version) {
            Some(now) => (next.counts, next.stamp) = (now.counts, now.stamp),
            None => {
                let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
                let is_same = Stamp::of(&file.attributes).has_contents_of(&lies.stamp);
                if file.attributes.is_regular() && !is_same {
                    return Err(Errno::EAGAIN);
                }
            }
        }
        self.below.insert(inode, Below { next: Some(next), ..below });
        Ok(())
    }

    pub(in crate::sim) fn wrote(&mut self, inode: Inode, lies: &Lies) -> Result<()> {
        let Below { now, next, draft } = self.below.get(&inode).cloned().ok_or(Errno::EAGAIN)?;
        let is_it = |lying: &Lies| lying.place == lies.place && lying.version == lies.version;
        let found = next.or(now).filter(|lying| is_it(lying)).ok_or(Errno::EAGAIN)?;
        let stamp = Stamp { changed: lies.stamp.changed, ..found.stamp };
        let now = Lies { stamp, ..found };
        let draft = draft.filter(|draft| draft.version.number != now.version.number);
        self.below.insert(inode, Below { now: Some(now), next: None, draft });
        Ok(())
    }

    pub(in crate::sim) fn not_written(&mut self, inode: Inode) -> Result<()> {
        self.change_below(inode, |below| below.next = None);
        Ok(())
    }

    fn change_below(&mut self, inode: Inode, change: impl FnOnce(&mut Below)) {
        let Some(below) = self.below.get_mut(&inode) else { return };
        change(below);
        if below.now.is_none() && below.next.is_none() && below.draft.is_none() {
            self.below.remove(&inode);
        }
    }

    pub(in crate::sim) fn drafted(
        &mut self,
        inode: Inode,
        is_new: bool,
        lies: &Lies,
    ) -> Result<()> {
        self.files.get(&inode).ok_or(Errno::ESTALE)?;
        let below = self.below.entry(inode).or_default();
        let is_right = match &below.draft {
            Some(draft) => !is_new && draft.stamp == lies.stamp,
            None => {
                let most = below.now.as_ref().map_or(0, |now| now.counts);
                is_new && lies.counts <= most
            }
        };
        if !is_right {
            self.change_below(inode, |_| {});
            return Err(Errno::EAGAIN);
        }
        below.draft = Some(lies.clone());
        Ok(())
    }

    pub(in crate::sim) fn undrafted(&mut self, inode: Inode) -> Result<()> {
        self.change_below(inode, |below| below.draft = None);
        Ok(())
    }

    pub(in crate::sim) fn gone(&mut self, inode: Inode) -> Result<()> {
        self.below.remove(&inode);
        let file = self.files.get(&inode);
        let has_all = file.is_none_or(|file| self.has_dropped(inode, file));
        assert!(has_all, "bytes of {inode:?} are lost");
        Ok(())
    }

    pub(in crate::sim) fn saved(&mut self, place: &Place, from: Inode, to: Inode) -> Result<()> {
        let entry = self.entries.get(place).copied().unwrap_or(Inode::NONE);
        let lies = self.unsaved.get(place).copied().unwrap_or(entry);
        if lies == to {
            return Ok(());
        }
        if lies != from {
            return Err(Errno::EAGAIN);
        }
        match entry == to {
            true => self.unsaved.remove(place),
            false => self.unsaved.insert(place.clone(), to),
        };
        Ok(())
    }

    pub(in crate::sim) fn dress(&self, inode: Inode) -> Result<Dress> {
        let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
        let Attributes { mode, uid, gid, accessed, modified, .. } = file.attributes;
        let extended = file
            .extended
            .iter()
            .map(|(name, value)| (CString::new(name.as_str()).expect("a name"), value.clone()));
        Ok(Dress {
            mode: mode & mode::PERMISSIONS,
            owner: (uid, gid),
            times: [accessed, modified],
            extended: extended.collect(),
        })
    }

    pub(in crate::sim) fn target(&self, inode: Inode) -> Result<OsString> {
        Ok(self.files.get(&inode).ok_or(Errno::ESTALE)?.target.clone().into())
    }

    /// Each name with all that is to be the same on both sides.
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
            let mut twins = names.get(&inode).cloned().unwrap_or_default();
            twins.sort();
            let extended: Vec<_> = file.extended.iter().collect();
            let said = shown(
                (file.attributes.mode, file.attributes.modified),
                (&file.contents, &file.target),
                &format!("{extended:?}"),
                &twins,
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
    crate::sides::Node::from(*node).version
}

pub(in crate::sim) fn place(parent: Inode, name: &str) -> Place {
    Place::of(parent, std::ffi::OsStr::new(name).as_bytes())
}
