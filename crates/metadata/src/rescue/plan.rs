//! The comparison: steps over the tree, each of which keeps what the ones before it made true.
//!
//!   1. each name leads to an inode: names of lost files go, lost directories are made again
//!   2. a directory has one name, and is below the root
//!   3. each inode in use has a name
//!   4. the numbers of names and of entries are right

use super::outline::concerned;
use super::tree::{Name, Tree};
use super::{Finding, Held, Instance, LOST_AND_FOUND, Loss, Plan, Repair, Rescue};
use crate::core::config::Group;
use crate::core::record::{Record, VERSION};
use crate::core::state::{Tally, encode_files, encode_tallies};
use crate::core::table::RemoteTally;
use crate::files::removal::FILES_MAX;
use crate::service::numbers_skipped;
use std::collections::{BTreeMap, BTreeSet};
use wire::attributes::placement::HASH;
use wire::attributes::{mode, spread};
use wire::hash::NameHash;
use wire::quota::Owner;
use wire::{Attributes, DaemonIndex, Inode, Layout, ShardIndex};

/// Mode of a directory that is made again.
const MODE: u32 = mode::DIRECTORY | 0o700;
/// The root may be searched by everybody, as at the start of an instance.
const ROOT_MODE: u32 = mode::DIRECTORY | 0o755;

/// A loss before the path is known, which later steps may change.
struct FoundLoss {
    loss: Loss,
    inode: Inode,
    /// Of a name that is removed.
    path: Option<Vec<u8>>,
}

struct Planner<'a> {
    rescue: &'a Rescue,
    tree: Tree,
    found: Vec<FoundLoss>,
    /// Directories made again.
    made: BTreeSet<Inode>,
    /// Inodes whose attributes changed.
    changed: BTreeSet<Inode>,
    records: BTreeMap<Group, Vec<u8>>,
    lost_and_found: Option<Inode>,
    /// Inodes of transactions that are committed and not finished.
    in_flight: BTreeSet<Inode>,
}

pub(super) fn plan(rescue: &Rescue) -> Plan {
    let mut planner = Planner {
        rescue,
        tree: Tree::read(rescue),
        found: Vec::new(),
        made: BTreeSet::new(),
        changed: BTreeSet::new(),
        records: BTreeMap::new(),
        lost_and_found: None,
        in_flight: BTreeSet::new(),
    };
    planner.end_transactions();
    planner.resolve_names();
    planner.attach_directories();
    planner.attach_files();
    planner.count_names();
    planner.look_at_contents();
    planner.free_lost();
    planner.put_made();
    planner.put_changed();
    planner.count_entries();
    planner.into_plan()
}

/// The spread of the two by which more names are spread.
const fn further(one: u8, other: u8) -> u8 {
    if spread::wide_below(one) < spread::wide_below(other) { other } else { one }
}

impl Planner<'_> {
    fn instance(&self) -> &Instance {
        &self.rescue.instance
    }

    fn is_in_flight(&self, inode: Inode) -> bool {
        self.in_flight.contains(&inode)
    }

    fn end_transactions(&mut self) {
        let rescue = self.rescue;
        for (&group, known) in &rescue.services {
            for (&(coordinator, sequence), prepared) in &known.state.prepared {
                let of_coordinator = rescue.services.get(&Group(coordinator));
                if of_coordinator.is_some_and(|it| it.state.decisions.contains_key(&sequence)) {
                    self.in_flight.extend(concerned(&prepared.actions));
                } else {
                    self.put_change(
                        group,
                        &Record::DeletePrepared { group: coordinator, sequence },
                    );
                }
            }
        }
    }

    fn put_change(&mut self, group: Group, record: &Record<'_>) {
        record.encode(self.records.entry(group).or_insert_with(|| vec![VERSION]));
    }

    fn note(&mut self, loss: Loss, inode: Inode, path: Option<Vec<u8>>) {
        self.found.push(FoundLoss { loss, inode, path });
    }

    /// Removes a name, with its finding.
    fn drop_name(&mut self, number: usize, loss: Loss) {
        let path = self.tree.name_at(number).map(|name| self.tree.path(name));
        let Some(name) = self.tree.take_name(number) else { return };
        self.put_change(name.group, &Record::DeleteEntry { parent: name.parent, name: &name.name });
        self.note(loss, name.inode, path);
    }

    /// Step 1.
    fn resolve_names(&mut self) {
        let is_lost = |name: &Name| {
            !self.tree.inodes.contains_key(&name.inode) && !self.is_in_flight(name.inode)
        };
        let lost = self.tree.names().filter(|(_, name)| is_lost(name));
        let lost: Vec<_> =
            lost.map(|(number, it)| (number, it.inode, it.leads_to_directory())).collect();
        for (number, inode, is_directory) in lost {
            match is_directory {
                true => self.make(inode),
                false => self.drop_name(number, Loss::File),
            }
        }
        let parents: Vec<_> = self.tree.parents().chain([Inode::ROOT]).collect();
        for parent in parents {
            let known = self.tree.inodes.get(&parent);
            if known.is_none() && !self.is_in_flight(parent) {
                self.make(parent);
            }
        }
    }

    /// Makes the attributes of a directory again.
    fn make(&mut self, inode: Inode) {
        if !self.made.insert(inode) {
            return;
        }
        let Instance { uid, gid, now, .. } = *self.instance();
        let layout = self.layout_of(inode);
        let mode = if inode == Inode::ROOT { ROOT_MODE } else { MODE };
        let owner = (Owner { uid, project: 0 }, gid);
        let new = Attributes::of_new(inode, mode, owner, now, layout);
        self.tree.inodes.insert(inode, Attributes { parent: Inode::ROOT, links: 2, ..new });
        self.note(Loss::DirectoryAttributes, inode, None);
    }

    /// The layout with which the names of a directory are where they are.
    fn layout_of(&self, directory: Inode) -> Layout {
        let Instance { spread, placement, stripe_log2, flags, .. } = *self.instance();
        let mut groups: BTreeSet<Group> =
            self.tree.names_in(directory).map(|name| name.group).collect();
        let mut known_spread = None;
        for (&group, known) in &self.rescue.services {
            if let Some(tally) = known.state.tallies.get(&directory) {
                // The home of a directory that is being spread knows how far.
                let spread =
                    known_spread.map_or(tally.spread, |known| further(known, tally.spread));
                known_spread = Some(spread);
                groups.insert(group);
            }
        }
        let spread = match (groups.len(), known_spread) {
            (_, Some(known)) if known & spread::AUTO != 0 => known,
            (0 | 1, known) => known.unwrap_or(spread::of_new(spread)),
            _ => spread::WIDE,
        };
        if spread & spread::AUTO != 0 {
            let below = spread::wide_below(spread);
            let is_at_home =
                |name: &&Name| NameHash::of(directory, &name.name).wide_shard().0 >= below;
            let at_home = self.tree.names_in(directory).find(is_at_home).map(|name| name.group);
            groups = at_home.into_iter().collect();
        }
        // Any shard of the service that has the names: within a service names are not by shard.
        let own = directory.shard();
        let place = match groups.first() {
            Some(&group) if self.rescue.group_of(own) != group => {
                let shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
                let of_group = |shard: &ShardIndex| self.rescue.group_of(*shard) == group;
                shards.into_iter().find(of_group).unwrap_or(own)
            }
            _ => own,
        };
        Layout { spread, pool: 0, placement, copies: 0, stripe_log2, flags, place: place.0 }
    }

    /// Step 2.
    fn attach_directories(&mut self) {
        let inodes = self.tree.inodes.iter();
        let is_used = |it: &Attributes| it.is_directory() && (it.links > 0);
        let directories = inodes.filter(|(inode, it)| **inode != Inode::ROOT && is_used(it));
        let directories: Vec<(Inode, Inode)> =
            directories.map(|(inode, it)| (*inode, it.parent)).collect();
        for &(inode, parent) in &directories {
            if self.is_in_flight(inode) {
                continue;
            }
            self.keep_one_name(inode, parent);
            if self.tree.names_of(inode).is_empty() {
                self.attach(inode);
            }
        }
        // The others are in circles.
        let mut reachable = self.tree.reachable();
        for &(inode, _) in &directories {
            if reachable.contains(&inode) || self.is_in_flight(inode) {
                continue;
            }
            // Only one of a circle, or of what hangs on one that is in flight.
            if !self.is_in_circle(inode) {
                continue;
            }
            for number in self.tree.names_of(inode).to_vec() {
                self.drop_name(number, Loss::SecondName);
            }
            self.attach(inode);
            reachable = self.tree.reachable();
        }
        self.set_parents(&directories);
    }

    /// Removes the names of a directory but one, if possible that in its parent.
    fn keep_one_name(&mut self, inode: Inode, parent: Inode) {
        let numbers = self.tree.names_of(inode).to_vec();
        let is_in_parent =
            |number: &&usize| self.tree.name_at(**number).is_some_and(|it| it.parent == parent);
        let kept = numbers.iter().find(is_in_parent).or(numbers.first()).copied();
        for number in numbers.into_iter().filter(|number| Some(*number) != kept) {
            self.drop_name(number, Loss::SecondName);
        }
    }

    /// True if the way up from a directory leads to itself.
    fn is_in_circle(&self, inode: Inode) -> bool {
        let mut seen = BTreeSet::new();
        let mut above = inode;
        while seen.insert(above) {
            let name = self.tree.names_of(above).first().and_then(|it| self.tree.name_at(*it));
            match name {
                Some(name) if name.parent == inode => return true,
                Some(name) => above = name.parent,
                None => return false,
            }
        }
        false
    }

    /// Each directory names its parent.
    fn set_parents(&mut self, directories: &[(Inode, Inode)]) {
        for &(inode, parent) in directories {
            let name = self.tree.names_of(inode).first().and_then(|it| self.tree.name_at(*it));
            let Some(above) = name.map(|name| name.parent).filter(|above| *above != parent) else {
                continue;
            };
            if let Some(attributes) = self.tree.inodes.get_mut(&inode) {
                attributes.parent = above;
                self.changed.insert(inode);
            }
        }
    }

    /// Step 3.
    fn attach_files(&mut self) {
        let is_nameless = |(inode, it): &(&Inode, &Attributes)| {
            !it.is_directory()
                && it.links > 0
                && self.tree.names_of(**inode).is_empty()
                && !self.is_in_flight(**inode)
        };
        let nameless = self.tree.inodes.iter().filter(is_nameless);
        let nameless: Vec<Inode> = nameless.map(|(inode, _)| *inode).collect();
        nameless.into_iter().for_each(|inode| self.attach(inode));
    }

    /// Gives an inode a name in `LOST_AND_FOUND`.
    fn attach(&mut self, inode: Inode) {
        let directory = self.lost_and_found();
        if inode == directory {
            return;
        }
        let mode = self.tree.inodes.get(&inode).map_or(0, |it| it.mode & mode::TYPE);
        let name = format!("#{}", inode.0).into_bytes();
        self.put_name(directory, name, inode, mode);
        self.note(Loss::Name, inode, None);
    }

    fn put_name(&mut self, parent: Inode, name: Vec<u8>, inode: Inode, mode: u32) {
        let Some(directory) = self.tree.inodes.get(&parent) else { return };
        let hash = NameHash::of(parent, &name);
        let group = self.rescue.group_of(placement::locate::entry_shard(directory, hash));
        self.put_change(group, &Record::PutEntry { parent, name: &name, inode, mode });
        if self.instance().backing {
            let backed_inode = Inode::NONE;
            self.put_change(group, &Record::PutDirty { parent, name: &name, backed_inode });
        }
        self.tree.add_name(Name { group, parent, name: name.into(), inode, mode });
    }

    fn lost_and_found(&mut self) -> Inode {
        if let Some(known) = self.lost_and_found {
            return known;
        }
        let names = self.tree.names_in(Inode::ROOT);
        let taken: BTreeMap<Box<[u8]>, (Inode, bool)> = names
            .filter(|name| name.name.starts_with(LOST_AND_FOUND))
            .map(|name| (name.name.clone(), (name.inode, name.leads_to_directory())))
            .collect();
        let mut name = LOST_AND_FOUND.to_vec();
        let mut number = 1;
        while let Some(&(inode, is_directory)) = taken.get(name.as_slice()) {
            if is_directory && self.tree.inodes.contains_key(&inode) {
                self.lost_and_found = Some(inode);
                return inode;
            }
            number += 1;
            name = [LOST_AND_FOUND, format!("-{number}").as_bytes()].concat();
        }
        // The last number that this salvage skips, so that nothing else ever has it.
        let sequence = numbers_skipped(self.instance().round) - 1;
        let inode = Inode::new(Inode::ROOT.shard(), sequence);
        self.lost_and_found = Some(inode);
        self.made.insert(inode);
        let Instance { uid, gid, now, .. } = *self.instance();
        let layout = Layout { spread: spread::HOME, ..self.layout_of(inode) };
        let new = Attributes::of_new(inode, MODE, (Owner { uid, project: 0 }, gid), now, layout);
        self.tree.inodes.insert(inode, Attributes { parent: Inode::ROOT, links: 2, ..new });
        self.put_name(Inode::ROOT, name, inode, mode::DIRECTORY);
        inode
    }

    /// Step 4 for files.
    fn count_names(&mut self) {
        let mut wrong = Vec::new();
        for (&inode, attributes) in &self.tree.inodes {
            let names = self.tree.names_of(inode).len();
            let count = u32::try_from(names).unwrap_or(u32::MAX);
            let is_right = attributes.is_directory() || count == attributes.links || count == 0;
            if !is_right && !self.is_in_flight(inode) {
                wrong.push((inode, count));
            }
        }
        for (inode, count) in wrong {
            if let Some(attributes) = self.tree.inodes.get_mut(&inode) {
                attributes.links = count;
            }
            self.changed.insert(inode);
            self.note(Loss::Links, inode, None);
        }
    }

    /// Files of damaged services whose data and size do not fit.
    fn look_at_contents(&mut self) {
        let mut found = Vec::new();
        for (&group, known) in self.rescue.services.iter().filter(|(_, known)| known.is_damaged) {
            let nodes = known.state.inodes.iter_from(Inode(0)).map(|node| &node.attributes);
            for file in nodes.filter(|it| it.is_regular() && !it.is_inline() && it.links > 0) {
                debug_assert_eq!(group, self.rescue.group_of(file.inode.shard()));
                let Held { bytes, end } =
                    self.rescue.held.get(&file.inode).copied().unwrap_or_default();
                let page = wire::limits::EXTENT_BYTES_MIN;
                if end > file.size.next_multiple_of(page) {
                    found.push((Loss::BeyondEnd, file.inode));
                }
                if !self.instance().backing && !file.is_sparse() && bytes < file.size {
                    found.push((Loss::Holes, file.inode));
                }
            }
        }
        let listed: BTreeSet<Inode> = self.found.iter().map(|found| found.inode).collect();
        let lost = self.lost_files().filter(|inode| !listed.contains(inode));
        found.extend(lost.map(|inode| (Loss::Data, inode)));
        found.into_iter().for_each(|(loss, inode)| self.note(loss, inode, None));
    }

    /// Files of damaged services of which only the data is left.
    fn lost_files(&self) -> impl Iterator<Item = Inode> {
        let is_lost = |inode: &Inode| {
            let of_inode = self.rescue.services.get(&self.rescue.group_of(inode.shard()));
            of_inode.is_some_and(|known| known.is_damaged)
                && !self.tree.inodes.contains_key(inode)
                && !self.rescue.used.contains(inode)
                && !self.is_in_flight(*inode)
                && !inode.is_spilled()
        };
        let held = self.rescue.held.iter().filter(|(_, held)| held.bytes > 0);
        held.map(|(inode, _)| *inode).filter(is_lost)
    }

    /// Lets all targets free the data of lost files, as if they had been removed: nothing tells how they
    /// were striped.
    fn free_lost(&mut self) {
        let place = self.instance().map.place_of_new();
        let anywhere = Layout { placement: HASH, flags: 0, place, ..self.layout_of(Inode::ROOT) };
        let mut of_group: BTreeMap<Group, Vec<(Inode, Layout)>> = BTreeMap::new();
        for inode in self.lost_files() {
            let group = self.rescue.group_of(inode.shard());
            of_group.entry(group).or_default().push((inode, anywhere));
        }
        for (group, files) in of_group {
            // Numbers that this salvage skips, from the last one down.
            let tokens = (0..numbers_skipped(self.instance().round)).rev();
            for (files, token) in files.chunks(FILES_MAX).zip(tokens) {
                let mut encoded = Vec::new();
                encode_files(files, &mut encoded);
                self.put_change(group, &Record::PutRemoval { token, files: &encoded });
            }
        }
    }

    /// Attributes of existing inodes.
    fn put_changed(&mut self) {
        for inode in std::mem::take(&mut self.changed) {
            if self.made.contains(&inode) {
                continue;
            }
            if let Some(&attributes) = self.tree.inodes.get(&inode) {
                let group = self.rescue.group_of(inode.shard());
                self.put_change(group, &Record::PutAttributes { attributes });
            }
        }
    }

    /// Inodes of new directories, before the counts of their entries.
    fn put_made(&mut self) {
        for inode in self.made.clone() {
            let own = self.rescue.group_of(inode.shard());
            let Some(&attributes) = self.tree.inodes.get(&inode) else { continue };
            // The services that have its names; their counts follow.
            let groups: BTreeSet<Group> =
                self.tree.names_in(inode).map(|name| name.group).filter(|it| *it != own).collect();
            let nothing_yet =
                |group: Group| RemoteTally { group: group.0, ..RemoteTally::default() };
            let tallies: Vec<_> = groups.into_iter().map(nothing_yet).collect();
            let mut encoded = Vec::new();
            encode_tallies(&tallies, &mut encoded);
            let (target, contents, xattrs): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
            let tallies = &encoded;
            let record =
                Record::PutInode { attributes, nameless: 0, target, contents, xattrs, tallies };
            self.put_change(own, &record);
        }
    }

    /// Step 4 for directories.
    fn count_entries(&mut self) {
        let mut counts: BTreeMap<(Group, Inode), (u64, u64)> = BTreeMap::new();
        for (_, name) in self.tree.names() {
            let count = counts.entry((name.group, name.parent)).or_default();
            count.0 += 1;
            count.1 += u64::from(name.leads_to_directory());
        }
        for (&group, known) in &self.rescue.services {
            for &directory in known.state.tallies.keys() {
                counts.entry((group, directory)).or_default();
            }
            for node in known.state.inodes.iter_from(Inode(0)) {
                for tally in &node.tallies {
                    let directory = node.attributes.inode;
                    counts.entry((Group(tally.group), directory)).or_default();
                }
            }
        }
        for ((group, directory), (entries, directories)) in counts {
            if !self.is_in_flight(directory) {
                self.count_in(group, directory, entries, directories);
            }
        }
    }

    /// Corrects the count of a service of the names that it has in a directory, and makes sure that the
    /// directory's service learns it.
    fn count_in(&mut self, group: Group, directory: Inode, entries: u64, directories: u64) {
        let of_directory = self.rescue.group_of(directory.shard());
        let known = |group| self.rescue.services.get(&group).map(|known| &known.state);
        let own = known(group).and_then(|state| state.tallies.get(&directory)).copied();
        let node = known(of_directory).and_then(|state| state.inodes.get(directory));
        let there = node.and_then(|node| node.tallies.iter().find(|it| it.group == group.0));
        let is_right = own.unwrap_or_default().entries == entries
            && own.unwrap_or_default().directories == directories;
        // A service that never had a name has no count.
        let is_older = match (own, there) {
            (Some(own), Some(there)) => own.version < there.version,
            (None, Some(there)) => there.version > 0,
            _ => false,
        };
        if is_right && !is_older && !self.made.contains(&directory) {
            return;
        }
        let Instance { round, now, .. } = *self.instance();
        let versions = [own.map(|it| it.version), there.map(|it| it.version)];
        let version = versions.into_iter().flatten().max().unwrap_or(0).max(numbers_skipped(round));
        let spread = match (own, self.tree.inodes.get(&directory)) {
            (Some(own), _) => own.spread,
            (None, Some(attributes)) => attributes.layout.spread,
            (None, None) => return,
        };
        let modified = own.map_or(now, |own| own.modified);
        let tally = Tally { spread, version: version + 1, entries, directories, modified };
        self.put_change(group, &tally.record(directory));
    }

    fn into_plan(self) -> Plan {
        let Planner { tree, mut found, records, rescue, .. } = self;
        let of_bytes = |inode: &Inode| FoundLoss { loss: Loss::Bytes, inode: *inode, path: None };
        found.extend(rescue.damaged.keys().map(of_bytes));
        let finding = |FoundLoss { loss, inode, path }| {
            let path = path.or_else(|| tree.path_of(inode)).unwrap_or_default();
            let known = tree.inodes.get(&inode).filter(|it| it.is_regular()).map(|it| it.size);
            let held = rescue.held.get(&inode).filter(|_| loss == Loss::Data);
            let size = known.or(held.map(|held| held.end));
            let of_file = rescue.damaged.get(&inode).filter(|_| loss == Loss::Bytes);
            let mut ranges = of_file.cloned().unwrap_or_default();
            // Pages are compared, and the last one may end behind the file.
            let end = size.unwrap_or(u64::MAX);
            ranges.iter_mut().for_each(|range| range.end = range.end.min(end));
            ranges.retain(|range| !range.is_empty());
            ranges.sort_by_key(|range| range.start);
            Finding { loss, path, inode, size, ranges }
        };
        let mut findings: Vec<_> = found.into_iter().map(finding).collect();
        findings.retain(|it| it.loss != Loss::Bytes || !it.ranges.is_empty());
        findings.sort_by(|one, other| {
            (one.loss, &one.path, one.inode).cmp(&(other.loss, &other.path, other.inode))
        });
        let repair = |(group, record): (Group, Vec<u8>)| {
            let (daemon, worker) = (DaemonIndex((group.0 >> 8) as u16), group.0 as usize & 0xff);
            Repair { daemon, worker, record }
        };
        Plan { findings, repairs: records.into_iter().map(repair).collect() }
    }
}
