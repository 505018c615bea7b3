//! A writer of the backing directory, as simple as one can be: what it does below, it does to
//! `Backing::tree`, and what it knows it asks for. It may be killed before any of its steps, and another
//! one goes on.

use std::collections::BTreeSet;

use super::below::Lying;
use super::{Answer, Random, World};
use metadata::SnapshotCursor;
use wire::below::{Lies, Stamp, Standing, UnsavedName, Version, listed};
use wire::errno::Errno;
use wire::{Credentials, Inode, Request, ShardIndex};

/// What a directory that is set aside is called, before its number.
pub(crate) const ASIDE: &[u8] = b".aside-";

/// It was killed.
pub(crate) struct Killed;

type Step<T> = Result<T, Killed>;

/// An unsaved name with the service that has it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) at: usize,
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) entry: Inode,
    pub(crate) lies: Inode,
}

/// `wire::below::Lies` of its own.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) stamp: Stamp,
}

impl Place {
    fn of(lies: Lies<'_>) -> Place {
        let Lies { parent, name, version, stamp, .. } = lies;
        Place { parent, name: name.to_vec(), version, stamp }
    }

    fn lies(&self) -> Lies<'_> {
        let Place { parent, ref name, version, stamp } = *self;
        Lies { parent, name, version, counts: version.size, stamp }
    }
}

/// `wire::below::Standing` of its own.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) inode: Inode,
    pub(crate) attributes: Option<wire::Attributes>,
    pub(crate) now: Option<Place>,
    pub(crate) next: Option<Place>,
}

fn known(standing: Standing<'_>) -> Known {
    let Standing { inode, attributes, now, next, .. } = standing;
    Known { inode, attributes, now: now.map(Place::of), next: next.map(Place::of) }
}

impl World {
    /// A shard of a service.
    pub(crate) fn address(&self, at: usize) -> ShardIndex {
        let mut shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
        shards.find(|&shard| self.owner(shard) == at).expect("it has shards")
    }

    fn bytes(&mut self, shard: ShardIndex, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        match self.call(Credentials::ROOT, shard, request) {
            Answer::Bytes(bytes) => Ok(bytes),
            Answer::Refused(errno) => Err(errno),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Tells a shard something.
    pub(crate) fn tell_shard(
        &mut self,
        shard: ShardIndex,
        request: &Request<'_>,
    ) -> Result<(), Errno> {
        match self.call(Credentials::ROOT, shard, request) {
            Answer::Done => Ok(()),
            Answer::Refused(errno) => Err(errno),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// All unsaved names.
    pub(crate) fn unsaved_names(&mut self) -> Vec<Row> {
        let mut rows: Vec<Row> = vec![];
        for at in 0..self.seats.len() {
            let (mut parent, mut name) = (Inode::NONE, vec![]);
            loop {
                let request = Request::UnsavedNames { parent, name: &name };
                let bytes = self.bytes(self.address(at), &request).expect("a list");
                let before = rows.len();
                rows.extend(listed(&bytes).map(|row: UnsavedName<'_>| Row {
                    at,
                    parent: row.parent,
                    name: row.name.to_vec(),
                    entry: row.entry,
                    lies: row.lies,
                }));
                let Some(last) = rows.last().filter(|_| rows.len() > before) else { break };
                (parent, name) = (last.parent, last.name.clone());
            }
        }
        rows
    }

    /// All unsaved inodes.
    pub(crate) fn unsaved_inodes(&mut self) -> Vec<Known> {
        let mut all: Vec<Known> = vec![];
        for at in 0..self.seats.len() {
            let mut after = Inode::NONE;
            loop {
                let request = Request::UnsavedInodes { after };
                let bytes = self.bytes(self.address(at), &request).expect("a list");
                let before = all.len();
                all.extend(listed(&bytes).map(known));
                let Some(last) = all.last().filter(|_| all.len() > before) else { break };
                after = last.inode;
            }
        }
        all
    }

    pub(crate) fn standing(&mut self, inode: Inode) -> Result<Known, Errno> {
        let bytes = self.bytes(inode.shard(), &Request::Standing { inode })?;
        let standing = listed::<Standing<'_>>(&bytes).next();
        Ok(known(standing.expect("one")))
    }

    /// The path below of a name in a directory, if that lies there.
    pub(crate) fn path_below(&mut self, directory: Inode, name: &[u8]) -> Option<Vec<u8>> {
        let (mut names, mut here) = (vec![name.to_vec()], directory);
        while here != Inode::ROOT {
            let now = self.standing(here).ok()?.now?;
            names.insert(0, now.name);
            here = now.parent;
        }
        Some(names.join(&b'/'))
    }

    /// What the entry is here.
    fn entry_here(&self, row: &Row) -> Inode {
        self.seats[row.at].service.entry_of(row.parent, &row.name).unwrap_or(Inode::NONE)
    }
}

/// A writer that does so many steps more.
pub(crate) struct Writer<'w> {
    world: &'w mut World,
    fuse: usize,
}

impl<'w> Writer<'w> {
    pub(crate) fn new(world: &'w mut World, fuse: usize) -> Writer<'w> {
        Writer { world, fuse }
    }

    fn step(&mut self) -> Step<()> {
        self.fuse = self.fuse.checked_sub(1).ok_or(Killed)?;
        Ok(())
    }

    fn tell(&mut self, inode: Inode, request: &Request<'_>) -> Step<Result<(), Errno>> {
        self.step()?;
        Ok(self.world.tell_shard(inode.shard(), request))
    }

    /// Brings a place below to be, by `change`, and tells.
    fn bring(
        &mut self,
        inode: Inode,
        place: &Place,
        change: impl FnOnce(&mut World),
    ) -> Step<bool> {
        if self.tell(inode, &Request::Saving { inode, lies: place.lies() })?.is_err() {
            return Ok(false);
        }
        self.step()?;
        change(self.world);
        let wrote = Request::Wrote { inode, lies: place.lies() };
        assert_eq!(self.tell(inode, &wrote)?, Ok(()), "it was about to");
        assert_eq!(self.tell(inode, &wrote)?, Ok(()), "twice does no harm");
        Ok(true)
    }

    fn saved(&mut self, row: &Row, from: Inode, to: Inode) -> Step<()> {
        let (parent, name) = (row.parent, &row.name[..]);
        for _ in 0..2 {
            self.step()?;
            let shard = self.world.address(row.at);
            let told = self.world.tell_shard(shard, &Request::Saved { parent, name, from, to });
            assert_eq!(told, Ok(()), "nobody else says what lies below");
        }
        Ok(())
    }

    /// One round; true if something was left to do.
    pub(crate) fn round(&mut self) -> Step<bool> {
        for known in self.world.unsaved_inodes() {
            self.settle(&known)?;
        }
        let rows = self.world.unsaved_names();
        for row in &rows {
            self.reconcile(row)?;
        }
        let inodes = self.world.unsaved_inodes();
        let lying: BTreeSet<Inode> = self.world.unsaved_names().iter().map(|r| r.lies).collect();
        for known in &inodes {
            self.save(known, lying.contains(&known.inode))?;
        }
        Ok(!rows.is_empty() || !inodes.is_empty())
    }

    /// What a writer before was about to do: done, or not.
    fn settle(&mut self, known: &Known) -> Step<()> {
        let (Some(next), inode) = (&known.next, known.inode) else { return Ok(()) };
        let is_there = self.is_at(next);
        let told = match is_there {
            true => self.tell(inode, &Request::Wrote { inode, lies: next.lies() })?,
            false => self.tell(inode, &Request::NotWritten { inode })?,
        };
        assert_eq!(told, Ok(()));
        Ok(())
    }

    fn is_at(&mut self, place: &Place) -> bool {
        let path = self.world.path_below(place.parent, &place.name);
        let found = path.and_then(|path| self.world.backing.tree.get(&path).cloned());
        found.is_some_and(|it| (it.number, it.size) == (place.version.number, place.version.size))
    }

    fn reconcile(&mut self, row: &Row) -> Step<()> {
        let entry = self.world.entry_here(row);
        let Some(path) = self.world.path_below(row.parent, &row.name) else { return Ok(()) };
        if self
            .world
            .unsaved_names()
            .iter()
            .all(|now| (now.parent, &now.name, now.lies) != (row.parent, &row.name, row.lies))
        {
            // It went, or was told, meanwhile.
            return Ok(());
        }
        let there = self.world.backing.tree.get(&path).map(|lying| lying.number);
        let number = |known: &Known| known.now.as_ref().map(|now| now.version.number);
        let standing = (!entry.is_none()).then(|| self.world.standing(entry));
        if let Some(Ok(known)) = &standing
            && there.is_some()
            && number(known) == there
        {
            return self.saved(row, row.lies, entry);
        }
        let mut lies = row.lies;
        if !lies.is_none() {
            if let Ok(old) = self.world.standing(lies)
                && there.is_some()
                && number(&old) == there
                && !self.clear(row, &path, &old)?
            {
                return Ok(());
            }
            self.saved(row, lies, Inode::NONE)?;
            lies = Inode::NONE;
        }
        match standing {
            Some(Ok(known)) => self.put(row, &path, &known, lies),
            _ => Ok(()),
        }
    }

    /// Takes away what lies by a name; false if it can not go yet.
    fn clear(&mut self, row: &Row, path: &[u8], old: &Known) -> Step<bool> {
        let now = old.now.clone().expect("it lies there");
        let is_its_place = (now.parent, &now.name) == (row.parent, &row.name);
        if old.attributes.is_some() && is_its_place {
            let name = [ASIDE, old.inode.0.to_string().as_bytes()].concat();
            let aside = Place { name: name.clone(), ..now };
            let to = self.world.path_below(row.parent, &name).expect("its directory does");
            return self.bring(old.inode, &aside, |world| world.backing.rename(path, &to));
        }
        if !self.world.backing.names(path).is_empty() {
            return Ok(false);
        }
        self.step()?;
        self.world.backing.tree.remove(path);
        Ok(true)
    }

    /// Has an inode lie by a name where nothing is.
    fn put(&mut self, row: &Row, path: &[u8], known: &Known, lies: Inode) -> Step<()> {
        let Some(attributes) = known.attributes else { return Ok(()) };
        let (parent, name) = (row.parent, row.name.clone());
        let Some(now) = &known.now else {
            let number = self.world.backing.new_number();
            let version = Version { number, modified: attributes.modified, size: attributes.size };
            let stamp = Stamp::of(&attributes);
            let place = Place { parent, name, version, stamp };
            let lying = Lying { mode: attributes.mode, size: attributes.size, number };
            let is_brought = self.bring(known.inode, &place, |world| {
                world.backing.tree.insert(path.to_vec(), lying);
            })?;
            return if is_brought { self.saved(row, lies, known.inode) } else { Ok(()) };
        };
        let from = self.world.path_below(now.parent, &now.name);
        let Some(from) = from.filter(|from| self.world.backing.tree.contains_key(from)) else {
            panic!("{known:?} is lost")
        };
        if path.starts_with(&[&from[..], b"/"].concat()) {
            return Ok(());
        }
        let place = Place { parent, name, ..now.clone() };
        let shard = self.world.shard_of_row(now.parent, &now.name);
        let stays = shard == Some(known.inode);
        let is_brought = self.bring(known.inode, &place, |world| match stays {
            true => world.backing.link(&from, path),
            false => world.backing.rename(&from, path),
        })?;
        if is_brought { self.saved(row, lies, known.inode) } else { Ok(()) }
    }

    /// Brings an inode in line that lies below.
    fn save(&mut self, known: &Known, has_rows: bool) -> Step<()> {
        let inode = known.inode;
        let Ok(Known { attributes, now: Some(now), next: None, .. }) = self.world.standing(inode)
        else {
            return Ok(());
        };
        let path = self.world.path_below(now.parent, &now.name);
        let Some(attributes) = attributes else {
            let path = path.filter(|_| self.is_at(&now));
            if has_rows || path.iter().any(|path| !self.world.backing.names(path).is_empty()) {
                return Ok(());
            }
            if let Some(path) = path {
                self.step()?;
                self.world.backing.tree.remove(&path);
            }
            for _ in 0..2 {
                assert_eq!(self.tell(inode, &Request::Gone { inode })?, Ok(()));
            }
            return Ok(());
        };
        assert!(path.is_some(), "the way to {now:?} is lost");
        let stamp = Stamp::of(&attributes);
        if !attributes.is_regular() || stamp.has_contents_of(&now.stamp) {
            let place = Place { stamp, ..now };
            let told = self.tell(inode, &Request::Wrote { inode, lies: place.lies() })?;
            assert_eq!(told, Ok(()));
            return Ok(());
        }
        // Another name of it must stay one.
        let old = now.version.number;
        let is_alone = self.world.backing.paths(old).len() == 1;
        let number = if is_alone { self.world.backing.new_number() } else { old };
        let version = Version { number, modified: stamp.modified, size: stamp.size };
        let place = Place { version, stamp, ..now };
        self.bring(inode, &place, |world| world.backing.rewrite(old, number, stamp.size))?;
        Ok(())
    }
}

impl World {
    /// As `crash`, from a log that was written anew: a snapshot in slices of any size.
    pub(crate) fn crash_to_snapshot(&mut self, at: usize, random: &mut Random) {
        let seat = &mut self.seats[at];
        let (mut log, mut cursor) = (vec![], SnapshotCursor::default());
        loop {
            let mut slice = vec![];
            let budget = 1 + random.below(2000);
            let goes_on = seat.service.snapshot_slice(&mut cursor, budget, &mut slice);
            log.extend((!slice.is_empty()).then_some(slice));
            if !goes_on {
                break;
            }
        }
        seat.log = log;
        self.crash(at);
    }

    /// What the entry is of a name, whichever service has it.
    fn shard_of_row(&self, parent: Inode, name: &[u8]) -> Option<Inode> {
        self.seats.iter().find_map(|seat| seat.service.entry_of(parent, name))
    }

    /// Lets a writer go on until nothing is left to do.
    pub(crate) fn save_all(&mut self) {
        for _ in 0..100 {
            match Writer::new(self, usize::MAX).round() {
                Ok(false) => return,
                Ok(true) => {}
                Err(Killed) => panic!("it has time"),
            }
        }
        panic!("never saved: {:?} {:?}", self.unsaved_names(), self.unsaved_inodes());
    }

    /// Unsaved names are exactly those that differ from what lies below, among the names of these
    /// directories.
    pub(crate) fn check_unsaved(&mut self, directories: &[Inode]) {
        let rows = self.unsaved_names();
        for &directory in directories {
            let Some(path) = self.path_below(directory, b"") else { continue };
            let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
            let entries = self.root().list(directory);
            let names = self.backing.names(&path);
            let below: BTreeSet<Vec<u8>> = names.iter().map(|(name, _)| name.clone()).collect();
            for name in entries.iter().chain(&below) {
                if name.starts_with(ASIDE) {
                    continue;
                }
                let found = names.iter().find(|(other, _)| other == name);
                let number = found.map(|(_, lying)| lying.number);
                let entry = self.shard_of_row(directory, name).unwrap_or(Inode::NONE);
                let now = self.standing(entry).ok().and_then(|known| known.now);
                let is_saved = match number {
                    None => entry.is_none(),
                    Some(number) => now.is_some_and(|now| now.version.number == number),
                };
                let row = rows.iter().find(|row| (row.parent, &row.name) == (directory, name));
                assert_eq!(row.is_none(), is_saved, "{directory:?} {name:?} {number:?} {row:?}");
                let Some(row) = row else { continue };
                assert_eq!(row.lies.is_none(), number.is_none(), "{row:?}");
                if let Ok(Known { now: Some(now), .. }) = self.standing(row.lies) {
                    assert_eq!(Some(now.version.number), number, "{row:?}");
                }
            }
        }
    }
}
