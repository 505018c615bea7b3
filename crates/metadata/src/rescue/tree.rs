//! The names and inodes of all services as one tree, with the changes made so far.

use super::Rescue;
use crate::core::config::Group;
use std::collections::{BTreeMap, BTreeSet};
use wire::attributes::mode;
use wire::hash::NameHash;
use wire::{Attributes, Inode};

/// Deepest path: as deep as names of one byte can be in a path.
const DEPTH_MAX: usize = 2048;

/// A name.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// The service that has it.
    pub(super) group: Group,
    pub(super) parent: Inode,
    pub(super) name: Box<[u8]>,
    pub(super) inode: Inode,
    /// Type bits.
    pub(super) mode: u32,
}

impl Name {
    pub(super) fn leads_to_directory(&self) -> bool {
        self.mode & mode::TYPE == mode::DIRECTORY
    }
}

/// See above.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) inodes: BTreeMap<Inode, Attributes>,
    names: Vec<Option<Name>>,
    /// By inode, the names that lead to it.
    of_inode: BTreeMap<Inode, Vec<usize>>,
    /// By directory, the names in it.
    of_parent: BTreeMap<Inode, Vec<usize>>,
}

impl Tree {
    pub(super) fn read(rescue: &Rescue) -> Tree {
        let mut tree = Tree::default();
        for (&group, known) in &rescue.services {
            let nodes = known.state.inodes.iter_from(Inode(0));
            tree.inodes.extend(nodes.map(|node| (node.attributes.inode, node.attributes)));
            let all = (Inode(0), NameHash(0), 0);
            for (&(parent, ..), entry) in known.state.entries.iter_from(all) {
                let (inode, mode) = (entry.inode, entry.mode);
                tree.add_name(Name { group, parent, name: entry.name.clone(), inode, mode });
            }
        }
        tree
    }

    pub(super) fn add_name(&mut self, name: Name) {
        let number = self.names.len();
        self.of_inode.entry(name.inode).or_default().push(number);
        self.of_parent.entry(name.parent).or_default().push(number);
        self.names.push(Some(name));
    }

    /// Removes a name and returns it.
    pub(super) fn take_name(&mut self, number: usize) -> Option<Name> {
        let name = self.names.get_mut(number)?.take()?;
        let forget = |numbers: Option<&mut Vec<usize>>| {
            if let Some(numbers) = numbers {
                numbers.retain(|other| *other != number);
            }
        };
        forget(self.of_inode.get_mut(&name.inode));
        forget(self.of_parent.get_mut(&name.parent));
        Some(name)
    }

    /// All names with their numbers.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, &Name)> {
        self.names.iter().enumerate().filter_map(|(number, name)| Some((number, name.as_ref()?)))
    }

    /// Numbers of the names of an inode.
    pub(super) fn names_of(&self, inode: Inode) -> &[usize] {
        self.of_inode.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// The names in a directory.
    pub(super) fn names_in(&self, directory: Inode) -> impl Iterator<Item = &Name> {
        let numbers = self.of_parent.get(&directory).map_or(&[][..], Vec::as_slice);
        numbers.iter().filter_map(|number| self.names.get(*number)?.as_ref())
    }

    /// Directories that have names.
    pub(super) fn parents(&self) -> impl Iterator<Item = Inode> + '_ {
        self.of_parent.iter().filter(|(_, names)| !names.is_empty()).map(|(parent, _)| *parent)
    }

    pub(super) fn name_at(&self, number: usize) -> Option<&Name> {
        self.names.get(number)?.as_ref()
    }

    /// Directories below the root, the root included.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        let mut found = BTreeSet::from([Inode::ROOT]);
        let mut waiting = vec![Inode::ROOT];
        while let Some(directory) = waiting.pop() {
            for name in self.names_in(directory).filter(|name| name.leads_to_directory()) {
                if found.insert(name.inode) {
                    waiting.push(name.inode);
                }
            }
        }
        found
    }

    /// Path of a name from the root; from where it is cut off, if that is not below the root.
    pub(super) fn path(&self, name: &Name) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = vec![&name.name];
        let mut parent = name.parent;
        while parent != Inode::ROOT && parts.len() < DEPTH_MAX {
            let above = self.names_of(parent).first().and_then(|number| self.name_at(*number));
            let Some(above) = above else { break };
            parts.push(&above.name);
            parent = above.parent;
        }
        parts.iter().rev().flat_map(|part| [b"/", *part].concat()).collect()
    }

    /// Path of an inode.
    pub(super) fn path_of(&self, inode: Inode) -> Option<Vec<u8>> {
        if inode == Inode::ROOT {
            return Some(b"/".to_vec());
        }
        let number = self.names_of(inode).first()?;
        self.name_at(*number).map(|name| self.path(name))
    }
}
