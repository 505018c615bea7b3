//! A minimal writeback daemon: it changes `Backing::tree`, and reads all it knows from the
//! services. It may be killed before any of its steps, and another one continues.

use std::collections::BTreeSet;

use super::backing::BackingFile;
use super::{Answer, Random, World};
use metadata::SnapshotCursor;
use wire::backing::{BackingLocation, DirtyName, Stamp, SyncState, Version, listed};
use wire::errno::Errno;
use wire::{Credentials, Inode, Request, ShardIndex};

/// Prefix of the name of a directory that is set aside, before its number.
pub(crate) const ASIDE: &[u8] = b".aside-";

/// The daemon was killed.
pub(crate) struct Killed;

type Step<T> = Result<T, Killed>;

/// A dirty name with its service.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) at: usize,
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) entry: Inode,
    pub(crate) backed_inode: Inode,
}

/// Owned `wire::backing::BackingLocation`.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) stamp: Stamp,
}

impl Place {
    fn of(location: BackingLocation<'_>) -> Place {
        let BackingLocation { parent, name, version, stamp, .. } = location;
        Place { parent, name: name.to_vec(), version, stamp }
    }

    fn location(&self) -> BackingLocation<'_> {
        let Place { parent, ref name, version, stamp } = *self;
        BackingLocation { parent, name, version, counts: version.size, stamp }
    }
}

/// Owned `wire::backing::SyncState`.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) inode: Inode,
    pub(crate) attributes: Option<wire::Attributes>,
    pub(crate) now: Option<Place>,
    pub(crate) next: Option<Place>,
}

fn known(sync_state: SyncState<'_>) -> Known {
    let SyncState { inode, attributes, now, next, .. } = sync_state;
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

    /// Sends a report to a shard.
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

    /// All dirty names.
    pub(crate) fn dirty_names(&mut self) -> Vec<Row> {
        let mut rows: Vec<Row> = vec![];
        for at in 0..self.seats.len() {
            let (mut parent, mut name) = (Inode::NONE, vec![]);
            loop {
                let request = Request::DirtyNames { parent, name: &name };
                let bytes = self.bytes(self.address(at), &request).expect("a list");
                let before = rows.len();
                rows.extend(listed(&bytes).map(|row: DirtyName<'_>| Row {
                    at,
                    parent: row.parent,
                    name: row.name.to_vec(),
                    entry: row.entry,
                    backed_inode: row.backed_inode,
                }));
                let Some(last) = rows.last().filter(|_| rows.len() > before) else { break };
                (parent, name) = (last.parent, last.name.clone());
            }
        }
        rows
    }

    /// All dirty inodes.
    pub(crate) fn dirty_inodes(&mut self) -> Vec<Known> {
        let mut all: Vec<Known> = vec![];
        for at in 0..self.seats.len() {
            let mut after = Inode::NONE;
            loop {
                let request = Request::DirtyInodes { after };
                let bytes = self.bytes(self.address(at), &request).expect("a list");
                let before = all.len();
                all.extend(listed(&bytes).map(known));
                let Some(last) = all.last().filter(|_| all.len() > before) else { break };
                after = last.inode;
            }
        }
        all
    }

    pub(crate) fn sync_state(&mut self, inode: Inode) -> Result<Known, Errno> {
        let bytes = self.bytes(inode.shard(), &Request::SyncState { inode })?;
        let sync_state = listed::<SyncState<'_>>(&bytes).next();
        Ok(known(sync_state.expect("one")))
    }

    /// The backing path of a name in a directory, if the directory has a location.
    pub(crate) fn backing_path(&mut self, directory: Inode, name: &[u8]) -> Option<Vec<u8>> {
        let (mut names, mut here) = (vec![name.to_vec()], directory);
        while here != Inode::ROOT {
            let now = self.sync_state(here).ok()?.now?;
            names.insert(0, now.name);
            here = now.parent;
        }
        Some(names.join(&b'/'))
    }

    /// The current entry of a dirty name.
    fn entry_here(&self, row: &Row) -> Inode {
        self.seats[row.at].service.entry_of(row.parent, &row.name).unwrap_or(Inode::NONE)
    }
}

/// A writeback daemon with a limited number of steps.
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

    /// Gives an inode a backing location by `change`, and reports it.
    fn bring(
        &mut self,
        inode: Inode,
        place: &Place,
        change: impl FnOnce(&mut World),
    ) -> Step<bool> {
        if self.tell(inode, &Request::Writing { inode, location: place.location() })?.is_err() {
            return Ok(false);
        }
        self.step()?;
        change(self.world);
        let wrote = Request::Wrote { inode, location: place.location() };
        assert_eq!(self.tell(inode, &wrote)?, Ok(()), "it was about to");
        assert_eq!(self.tell(inode, &wrote)?, Ok(()), "twice does no harm");
        Ok(true)
    }

    fn saved(&mut self, row: &Row, from: Inode, to: Inode) -> Step<()> {
        let (parent, name) = (row.parent, &row.name[..]);
        for _ in 0..2 {
            self.step()?;
            let shard = self.world.address(row.at);
            let reported =
                self.world.tell_shard(shard, &Request::NameWritten { parent, name, from, to });
            assert_eq!(reported, Ok(()), "only this daemon reports");
        }
        Ok(())
    }

    /// One round; true if something was left to do.
    pub(crate) fn round(&mut self) -> Step<bool> {
        for known in self.world.dirty_inodes() {
            self.settle(&known)?;
        }
        let rows = self.world.dirty_names();
        for row in &rows {
            self.reconcile(row)?;
        }
        let inodes = self.world.dirty_inodes();
        let file: BTreeSet<Inode> =
            self.world.dirty_names().iter().map(|r| r.backed_inode).collect();
        for known in &inodes {
            self.save(known, file.contains(&known.inode))?;
        }
        Ok(!rows.is_empty() || !inodes.is_empty())
    }

    /// Settles the unfinished operation of an earlier daemon: done, or not.
    fn settle(&mut self, known: &Known) -> Step<()> {
        let (Some(next), inode) = (&known.next, known.inode) else { return Ok(()) };
        let is_there = self.is_at(next);
        let reported = match is_there {
            true => self.tell(inode, &Request::Wrote { inode, location: next.location() })?,
            false => self.tell(inode, &Request::NotWritten { inode })?,
        };
        assert_eq!(reported, Ok(()));
        Ok(())
    }

    fn is_at(&mut self, place: &Place) -> bool {
        let path = self.world.backing_path(place.parent, &place.name);
        let found = path.and_then(|path| self.world.backing.tree.get(&path).cloned());
        found.is_some_and(|it| (it.number, it.size) == (place.version.number, place.version.size))
    }

    fn reconcile(&mut self, row: &Row) -> Step<()> {
        let entry = self.world.entry_here(row);
        let Some(path) = self.world.backing_path(row.parent, &row.name) else { return Ok(()) };
        if self.world.dirty_names().iter().all(|now| {
            (now.parent, &now.name, now.backed_inode) != (row.parent, &row.name, row.backed_inode)
        }) {
            // It was removed, or reported, meanwhile.
            return Ok(());
        }
        let there = self.world.backing.tree.get(&path).map(|file| file.number);
        let number = |known: &Known| known.now.as_ref().map(|now| now.version.number);
        let sync_state = (!entry.is_none()).then(|| self.world.sync_state(entry));
        if let Some(Ok(known)) = &sync_state
            && there.is_some()
            && number(known) == there
        {
            return self.saved(row, row.backed_inode, entry);
        }
        let mut location = row.backed_inode;
        if !location.is_none() {
            if let Ok(old) = self.world.sync_state(location)
                && there.is_some()
                && number(&old) == there
                && !self.clear(row, &path, &old)?
            {
                return Ok(());
            }
            self.saved(row, location, Inode::NONE)?;
            location = Inode::NONE;
        }
        match sync_state {
            Some(Ok(known)) => self.put(row, &path, &known, location),
            _ => Ok(()),
        }
    }

    /// Removes the backing file of a name; false if it cannot be removed yet.
    fn clear(&mut self, row: &Row, path: &[u8], old: &Known) -> Step<bool> {
        let now = old.now.clone().expect("it is there");
        let is_its_place = (now.parent, &now.name) == (row.parent, &row.name);
        if old.attributes.is_some() && is_its_place {
            let name = [ASIDE, old.inode.0.to_string().as_bytes()].concat();
            let aside = Place { name: name.clone(), ..now };
            let to = self.world.backing_path(row.parent, &name).expect("its directory does");
            return self.bring(old.inode, &aside, |world| world.backing.rename(path, &to));
        }
        if !self.world.backing.names(path).is_empty() {
            return Ok(false);
        }
        self.step()?;
        self.world.backing.tree.remove(path);
        Ok(true)
    }

    /// Puts an inode by a free backing name.
    fn put(&mut self, row: &Row, path: &[u8], known: &Known, location: Inode) -> Step<()> {
        let Some(attributes) = known.attributes else { return Ok(()) };
        let (parent, name) = (row.parent, row.name.clone());
        let Some(now) = &known.now else {
            let number = self.world.backing.new_number();
            let version = Version { number, modified: attributes.modified, size: attributes.size };
            let stamp = Stamp::of(&attributes);
            let place = Place { parent, name, version, stamp };
            let file = BackingFile { mode: attributes.mode, size: attributes.size, number };
            let is_brought = self.bring(known.inode, &place, |world| {
                world.backing.tree.insert(path.to_vec(), file);
            })?;
            return if is_brought { self.saved(row, location, known.inode) } else { Ok(()) };
        };
        let from = self.world.backing_path(now.parent, &now.name);
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
        if is_brought { self.saved(row, location, known.inode) } else { Ok(()) }
    }

    /// Writes a backed inode back.
    fn save(&mut self, known: &Known, has_rows: bool) -> Step<()> {
        let inode = known.inode;
        let Ok(Known { attributes, now: Some(now), next: None, .. }) = self.world.sync_state(inode)
        else {
            return Ok(());
        };
        let path = self.world.backing_path(now.parent, &now.name);
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
            let reported =
                self.tell(inode, &Request::Wrote { inode, location: place.location() })?;
            assert_eq!(reported, Ok(()));
            return Ok(());
        }
        // Another name of it must stay a hard link.
        let old = now.version.number;
        let is_only_user = self.world.backing.paths(old).len() == 1;
        let number = if is_only_user { self.world.backing.new_number() } else { old };
        let version = Version { number, modified: stamp.modified, size: stamp.size };
        let place = Place { version, stamp, ..now };
        self.bring(inode, &place, |world| world.backing.rewrite(old, number, stamp.size))?;
        Ok(())
    }
}

impl World {
    /// As `crash`, from a rewritten log: a snapshot in slices of any size.
    pub(crate) fn crash_to_snapshot(&mut self, at: usize, random: &mut Random) {
        let seat = &mut self.seats[at];
        let (mut log, mut cursor) = (vec![], SnapshotCursor::default());
        loop {
            let mut slice = vec![];
            let budget = 1 + random.uniform(2000);
            let goes_on = seat.service.snapshot_slice(&mut cursor, budget, &mut slice);
            log.extend((!slice.is_empty()).then_some(slice));
            if !goes_on {
                break;
            }
        }
        seat.log = log;
        self.crash(at);
    }

    /// The entry of a name, whichever service has it.
    fn shard_of_row(&self, parent: Inode, name: &[u8]) -> Option<Inode> {
        self.seats.iter().find_map(|seat| seat.service.entry_of(parent, name))
    }

    /// Lets a writeback daemon run until nothing is left to do.
    pub(crate) fn save_all(&mut self) {
        for _ in 0..100 {
            match Writer::new(self, usize::MAX).round() {
                Ok(false) => return,
                Ok(true) => {}
                Err(Killed) => panic!("it has time"),
            }
        }
        panic!("never clean: {:?} {:?}", self.dirty_names(), self.dirty_inodes());
    }

    /// Dirty names are exactly those that differ from the backing store, among the names of these
    /// directories.
    pub(crate) fn check_dirty(&mut self, directories: &[Inode]) {
        let rows = self.dirty_names();
        for &directory in directories {
            let Some(path) = self.backing_path(directory, b"") else { continue };
            let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
            let entries = self.root().list(directory);
            let names = self.backing.names(&path);
            let backing: BTreeSet<Vec<u8>> = names.iter().map(|(name, _)| name.clone()).collect();
            for name in entries.iter().chain(&backing) {
                if name.starts_with(ASIDE) {
                    continue;
                }
                let found = names.iter().find(|(other, _)| other == name);
                let number = found.map(|(_, file)| file.number);
                let entry = self.shard_of_row(directory, name).unwrap_or(Inode::NONE);
                let now = self.sync_state(entry).ok().and_then(|known| known.now);
                let is_clean = match number {
                    None => entry.is_none(),
                    Some(number) => now.is_some_and(|now| now.version.number == number),
                };
                let row = rows.iter().find(|row| (row.parent, &row.name) == (directory, name));
                assert_eq!(row.is_none(), is_clean, "{directory:?} {name:?} {number:?} {row:?}");
                let Some(row) = row else { continue };
                assert_eq!(row.backed_inode.is_none(), number.is_none(), "{row:?}");
                if let Ok(Known { now: Some(now), .. }) = self.sync_state(row.backed_inode) {
                    assert_eq!(Some(now.version.number), number, "{row:?}");
                }
            }
        }
    }
}
