//! The thread that finds which of the directories that rules name a file is in (`places`).
//!
//! No inode knows its names. A directory knows its parent; for a file, the process that has it open says
//! in which directory it found it (`shm::host::files`), which is a claim like the name of its job. So a
//! file that no process of this host has open, and that is no directory, is not found.
//!
//! Directories of rules are looked up by their paths, without following symbolic links.

use crate::shared::Shared;
use crate::shares::places::{NamedDirs, Place};
use placement::locate::entry_shard;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::attributes::mode;
use wire::codec::Reader;
use wire::hash::NameHash;
use wire::limits::NAME_BYTES_MAX;
use wire::{Attributes, Inode, Reply, Request};

/// Longest search for the files of one round: after it their requests go on as if they were in none of
/// the directories. Much less than a process's timeout.
const TIME: Duration = Duration::from_millis(500);
/// How long directories are taken for the same.
const KEPT: Duration = Duration::from_secs(1);
/// Directories above one another.
const DEPTH_MAX: usize = 512;
/// Directories whose parents are kept.
const PARENTS_MAX: usize = 1 << 16;

/// See the module.
struct PlaceResolver<'a> {
    shared: &'a Shared,
    begun: Instant,
    named: NamedDirs,
    /// Inodes of the named directories that exist.
    by_inode: HashMap<Inode, Arc<str>>,
    /// Parents of directories.
    parents: HashMap<Inode, Inode>,
}

/// Finds files until the daemon ends.
pub(crate) fn run(shared: &Shared) {
    let places = &shared.shares.places;
    let (mut named, mut asked) = places.take_asked();
    while !shared.stopping.load(Relaxed) {
        let mut resolver = PlaceResolver::new(shared, Arc::clone(&named));
        while Arc::ptr_eq(&named, &resolver.named) && resolver.begun.elapsed() < KEPT {
            let found = resolver.find(&asked);
            shared.shares.place_found(&named, found, &shared.inboxes);
            (named, asked) = places.take_asked();
            if shared.stopping.load(Relaxed) {
                return;
            }
        }
    }
}

impl PlaceResolver<'_> {
    fn new(shared: &Shared, named: NamedDirs) -> PlaceResolver<'_> {
        let begun = Instant::now();
        let (by_inode, parents) = (HashMap::new(), HashMap::new());
        let mut resolver = PlaceResolver { shared, begun, named, by_inode, parents };
        let until = begun + TIME;
        for dir in Arc::clone(&resolver.named).iter() {
            if let Some(inode) = resolver.inode_of(dir, until) {
                resolver.by_inode.insert(inode, Arc::clone(dir));
            }
        }
        resolver
    }

    fn find(&mut self, asked: &[Inode]) -> Vec<(Inode, Place)> {
        let until = Instant::now() + TIME;
        let mut directories: HashMap<Inode, Inode> =
            asked.iter().map(|&inode| (inode, Inode::NONE)).collect();
        self.shared.host.segment.file_list(&mut |_, file| {
            let inode = Inode(file.inode.load(Relaxed));
            if let Some(directory) = directories.get_mut(&inode)
                && let Some(said) = file.spare.get(shm::host::SPARE_DIRECTORY)
                && said.load(Relaxed) != 0
            {
                *directory = Inode(said.load(Relaxed));
            }
        });
        let place = |(inode, directory): (Inode, Inode)| {
            // It may be a directory itself.
            let from = if directory.is_none() { inode } else { directory };
            (inode, self.place_of(from, until))
        };
        directories.into_iter().map(place).collect()
    }

    /// The deepest of the named directories that is this one or above it.
    fn place_of(&mut self, directory: Inode, until: Instant) -> Place {
        let mut here = directory;
        for _ in 0..DEPTH_MAX {
            if let Some(dir) = self.by_inode.get(&here) {
                return Place::In(Arc::clone(dir));
            }
            if here == Inode::ROOT {
                return Place::Outside;
            }
            here = match self.parents.get(&here) {
                Some(&parent) => parent,
                None => match self.attributes_of(here, until) {
                    Some(attributes) if attributes.is_directory() => {
                        if self.parents.len() < PARENTS_MAX {
                            self.parents.insert(here, attributes.parent);
                        }
                        attributes.parent
                    }
                    _ => return Place::Unfound,
                },
            };
        }
        Place::Unfound
    }

    /// The directory of a path inside the instance.
    fn inode_of(&self, path: &str, until: Instant) -> Option<Inode> {
        let mut here = Inode::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if name.len() > NAME_BYTES_MAX || matches!(name, "." | "..") {
                return None;
            }
            let directory = self.attributes_of(here, until)?;
            let name = name.as_bytes();
            let shard = entry_shard(&directory, NameHash::of(here, name));
            let answer =
                self.shared.ask_in_time(shard, &Request::Lookup { parent: here, name }, until)?;
            let (inode, found) = match Reply::decode(&mut Reader::new(&answer)).ok()? {
                Reply::Attributes { attributes } => (attributes.inode, attributes.mode),
                Reply::Entry { inode, mode } => (inode, mode),
                _ => return None,
            };
            if found & mode::TYPE != mode::DIRECTORY {
                return None;
            }
            here = inode;
        }
        Some(here)
    }

    fn attributes_of(&self, inode: Inode, until: Instant) -> Option<Attributes> {
        let answer =
            self.shared.ask_in_time(inode.shard(), &Request::GetAttributes { inode }, until)?;
        match Reply::decode(&mut Reader::new(&answer)).ok()? {
            Reply::Attributes { attributes } => Some(attributes),
            _ => None,
        }
    }
}
