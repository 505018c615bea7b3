//! Dirty names: vacates a name in the backing store and puts there what the name stands for in the
//! instance.

use crate::backends::Dir;
use crate::round::contents::{CommitTo, WriteJob};
use crate::round::{ProbeResult, Round, is_version};
use crate::state::{BackingLocation, DirtyName, Place, SyncState, WritebackError, WritebackResult};
use backing::Kind;
use rustix::io::Errno;
use wire::Inode;
use wire::backing::Version;

/// Maximum number of conflict names that are tried.
const CONFLICTS_MAX: u32 = 16;

/// Content of a directory that is to be removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Nothing,
    /// Files of others alone.
    Foreign,
    /// Files of ours, or there were some.
    Ours,
}

impl Round<'_> {
    /// Writes a name. New contents become a job.
    pub(crate) fn write_name(
        &mut self,
        dirty_name: &DirtyName,
    ) -> WritebackResult<Option<WriteJob>> {
        let sync_state = self.sync_state(dirty_name.entry)?.ok_or(WritebackError::Changed)?;
        let attributes = sync_state.attributes.ok_or(WritebackError::Changed)?;
        if self.under_way.contains(&dirty_name.entry) {
            return Err(WritebackError::NotReady);
        }
        self.dir(dirty_name.place.parent)?.ok_or(WritebackError::NotReady)?;
        if self.is_there(&dirty_name.place, &sync_state)? {
            self.report_name_written(&dirty_name.place, dirty_name.entry)?;
            return Ok(None);
        }
        let from = sync_state.now.clone();
        let is_backed = match &from {
            Some(now) => {
                matches!(self.probe(&now.place, Some(&now.version))?, ProbeResult::Ours(_))
            }
            None => false,
        };
        if let (true, Some(now)) = (is_backed, from) {
            self.vacate(&dirty_name.place)?;
            self.move_into_place(&dirty_name.place, &sync_state, &now)?;
            return Ok(None);
        }
        if attributes.is_regular()
            && let Err(error) = self.may_write(dirty_name.place.parent, &sync_state)
        {
            self.note_waiting(&error, &sync_state, &dirty_name.place);
            return Err(error);
        }
        let dir = self.dir_to_change(dirty_name.place.parent)?;
        if !attributes.is_regular() || self.may_replace(&dirty_name.place)?.is_none() {
            self.vacate(&dirty_name.place)?;
        }
        self.under_way.insert(dirty_name.entry);
        let known_partial = self.known_partial(&sync_state)?;
        let job = WriteJob {
            commit_to: CommitTo::NewName(dirty_name.place.clone()),
            dir,
            sync_state,
            attributes,
            known_partial,
        };
        if attributes.is_regular() {
            return Ok(Some(job));
        }
        // At once, because other names may be in it.
        self.write_now(job).map(|()| None)
    }

    /// True if an inode already has this name in the backing store, as one of its names.
    fn is_there(&mut self, place: &Place, sync_state: &SyncState) -> WritebackResult<bool> {
        let Some(now) = &sync_state.now else { return Ok(false) };
        if self.backend.is_object_store() && now.place != *place {
            // An object has one name only, and nothing but the name identifies a directory there.
            return Ok(false);
        }
        let found = self.probe(place, Some(&now.version))?;
        Ok(matches!(found, ProbeResult::Ours(_)))
    }

    /// Reports that a name in the backing store is as in the instance.
    pub(crate) fn report_name_written(
        &mut self,
        place: &Place,
        inode: Inode,
    ) -> WritebackResult<()> {
        let before = self.backed_at(place);
        if !before.is_none() && before != inode {
            self.report_if_gone(before, place)?;
        }
        self.name_written(place, before, inode)
    }

    /// Reports an inode as gone if it is deleted and its last name is about to be reported free or
    /// reused. This must come first: see `round`.
    fn report_if_gone(&mut self, inode: Inode, place: &Place) -> WritebackResult<()> {
        if !self.is_last_name(inode, place) {
            return Ok(());
        }
        let Some(sync_state) = self.sync_state(inode)? else { return Ok(()) };
        let is_by_name = |now: &BackingLocation| now.place == *place || !now.place.is_private();
        match &sync_state.now {
            Some(now) if sync_state.next.is_none() && is_by_name(now) => {
                self.report_gone(&sync_state)
            }
            // It is removed where it is, and reported then (`remove_deleted`).
            _ => Ok(()),
        }
    }

    /// The version under a name that a rename may replace: a file of ours that is deleted in the
    /// instance.
    pub(crate) fn may_replace(&mut self, place: &Place) -> WritebackResult<Option<Version>> {
        let location = self.backed_at(place);
        if location.is_none() {
            return Ok(None);
        }
        let Some(sync_state) = self.sync_state(location)? else { return Ok(None) };
        let known = sync_state.now.as_ref().filter(|now| now.place == *place);
        let (true, Some(now)) = (sync_state.is_gone(), known) else { return Ok(None) };
        let found = self.probe(place, Some(&now.version))?;
        let is_file = matches!(found, ProbeResult::Ours(node) if node.kind != Kind::Dir);
        Ok(is_file.then_some(now.version))
    }

    /// Removes any file of ours from a name.
    pub(crate) fn vacate(&mut self, place: &Place) -> WritebackResult<()> {
        match self.backed_at(place) {
            Inode::NONE => Ok(()),
            location => match self.clear(place, location) {
                // The directory may contain what is to come under this name.
                Err(WritebackError::NotReady) => self.set_aside(place, location),
                cleared => cleared,
            },
        }
    }

    /// Moves a deleted directory that is not empty to an aside name.
    fn set_aside(&mut self, place: &Place, backed: Inode) -> WritebackResult<()> {
        let sync_state = self.sync_state(backed)?.ok_or(WritebackError::NotReady)?;
        let now =
            sync_state.now.filter(|now| now.place == *place).ok_or(WritebackError::NotReady)?;
        if !self.is_known(place, &now)? {
            return Err(WritebackError::NotReady);
        }
        let dir = self.dir_to_change(place.parent)?;
        let aside = BackingLocation { place: place.aside(backed), ..now.clone() };
        self.rename(backed, (&now, &dir), (&aside, &dir), |round| {
            round.name_written(place, backed, Inode::NONE)
        })
    }

    /// Removes a file of ours from a name: moves it to its new name, moves it aside, or deletes it.
    pub(crate) fn clear(&mut self, place: &Place, backed: Inode) -> WritebackResult<()> {
        if self.backed_at(place) != backed {
            return Ok(());
        }
        let Some(sync_state) = self.sync_state(backed)? else {
            return self.name_written(place, backed, Inode::NONE);
        };
        let Some(now) = sync_state.now.clone() else {
            return self.name_written(place, backed, Inode::NONE);
        };
        let dir = self.dir_to_change(place.parent);
        let dir = match dir {
            // The directory and all that was in it is gone from the backing store.
            Err(WritebackError::NotReady) if !self.is_backed(place.parent)? => None,
            found => Some(found?),
        };
        let is_here = now.place == *place;
        let found = match self.probe(place, Some(&now.version))? {
            // Another directory: only its name identifies it.
            ProbeResult::Ours(node)
                if !is_here && node.kind == Kind::Dir && self.backend.is_object_store() =>
            {
                ProbeResult::Absent
            }
            // The file under another of its names, or partly rewritten in place.
            ProbeResult::Foreign(node)
                if node.version.number == now.version.number
                    && (!is_here || self.torn.contains(&backed)) =>
            {
                ProbeResult::Ours(node)
            }
            found => found,
        };
        match (found, dir) {
            (ProbeResult::Ours(_), Some(dir)) if !sync_state.is_gone() => {
                self.move_away(place, &dir, &sync_state, &now)
            }
            // A directory that is created there next may reuse its inode number. Then only an
            // immediate report tells them apart.
            (ProbeResult::Ours(node), Some(_))
                if node.kind == Kind::Dir && !self.is_dead(backed) =>
            {
                Err(WritebackError::Changed)
            }
            (ProbeResult::Ours(node), Some(dir)) => {
                self.remove(place, &dir, &sync_state, node.kind == Kind::Dir)
            }
            (ProbeResult::Foreign(_), _) => {
                self.conflict(
                    place,
                    "was changed in the backing store: it stays unchanged".to_owned(),
                );
                self.release_name(place, &sync_state)
            }
            _ => self.release_name(place, &sync_state),
        }
    }

    fn is_backed(&mut self, directory: Inode) -> WritebackResult<bool> {
        Ok(self.dir(directory)?.is_some())
    }

    /// Reports that a name has no file of ours, whatever is there.
    fn release_name(&mut self, place: &Place, sync_state: &SyncState) -> WritebackResult<()> {
        self.report_if_gone(sync_state.inode, place)?;
        self.name_written(place, sync_state.inode, Inode::NONE)
    }

    /// Removes a file that is deleted in the instance.
    fn remove(
        &mut self,
        place: &Place,
        dir: &Dir,
        sync_state: &SyncState,
        is_dir: bool,
    ) -> WritebackResult<()> {
        self.take_away((sync_state.inode, place), dir, is_dir)?;
        self.release_name(place, sync_state)
    }

    /// Removes a file of ours from `place`. A directory that contains files of others stays.
    pub(crate) fn take_away(
        &mut self,
        (inode, place): (Inode, &Place),
        dir: &Dir,
        is_dir: bool,
    ) -> WritebackResult<()> {
        let mut was_empty = false;
        loop {
            match self.backend.remove(dir, &place.name, is_dir) {
                Err(error) if is_dir && is_not_empty(&error) => {}
                removed => return Ok(removed?),
            }
            match self.content_of(inode, place)? {
                Content::Ours => return Err(WritebackError::NotReady),
                // Temporary files of a killed daemon were there, which the listing removed.
                Content::Nothing if !was_empty => was_empty = true,
                Content::Nothing | Content::Foreign => {
                    let what = "is removed in the instance but contains files of others: the \
                                directory stays";
                    self.conflict(place, what.to_owned());
                    return Ok(());
                }
            }
        }
    }

    /// Lists a directory that is to be removed from `place`. Moves existing files under aside names out
    /// of it.
    fn content_of(&mut self, directory: Inode, place: &Place) -> WritebackResult<Content> {
        if self.has_names_in(directory) {
            return Ok(Content::Ours);
        }
        let Some(dir) = self.dir(directory)? else { return Ok(Content::Ours) };
        let mut content = Content::Nothing;
        for name in self.backend.names(&dir)? {
            let aside = Place { parent: directory, name };
            // A partial file goes when its file is complete or deleted. If it was removed just now,
            // the next attempt finds nothing.
            if self.sweep_partial(&aside)? {
                content = Content::Ours;
                continue;
            }
            let sync_state = match aside.aside_inode() {
                Some(inode) => {
                    self.sync_state(inode)?.filter(|sync_state| sync_state.is_at(&aside))
                }
                None => None,
            };
            let Some(sync_state) = sync_state else {
                content = content.max(Content::Foreign);
                continue;
            };
            content = Content::Ours;
            if let (false, Some(now)) = (sync_state.is_gone(), &sync_state.now) {
                let to = self.dir_to_change(place.parent)?;
                let location =
                    BackingLocation { place: place.aside(sync_state.inode), ..now.clone() };
                self.rename(sync_state.inode, (now, &dir), (&location, &to), |_| Ok(()))?;
            }
        }
        Ok(content)
    }

    /// Removes a name from a file that exists in the instance: the file stays under another name,
    /// or is moved aside.
    fn move_away(
        &mut self,
        place: &Place,
        dir: &Dir,
        sync_state: &SyncState,
        now: &BackingLocation,
    ) -> WritebackResult<()> {
        let inode = sync_state.inode;
        let is_dir = sync_state.attributes.is_some_and(|attributes| attributes.is_directory());
        if now.place == *place {
            match self.other_name(place, inode, now)? {
                Some(other) => {
                    let location = BackingLocation { place: other, ..now.clone() };
                    self.instance.writing(inode, &location)?;
                    self.instance.wrote(inode, &location)?;
                }
                None => {
                    let location = BackingLocation { place: place.aside(inode), ..now.clone() };
                    return self.rename(inode, (now, dir), (&location, dir), |round| {
                        round.name_written(place, inode, Inode::NONE)
                    });
                }
            }
        } else if !matches!(self.probe(&now.place, Some(&now.version))?, ProbeResult::Ours(_)) {
            // It is only at an unexpected place: report that as its location and continue from
            // there.
            let location = BackingLocation { place: place.clone(), ..now.clone() };
            self.instance.writing(inode, &location)?;
            self.instance.wrote(inode, &location)?;
            return Err(WritebackError::NotReady);
        }
        self.backend.remove(dir, &place.name, is_dir)?;
        if let Some(places) = self.cache.links.get_mut(&inode) {
            places.remove(place);
        }
        self.name_written(place, inode, Inode::NONE)
    }

    /// Another known name of a file in the backing store.
    fn other_name(
        &mut self,
        place: &Place,
        inode: Inode,
        now: &BackingLocation,
    ) -> WritebackResult<Option<Place>> {
        let known = self.cache.links.get(&inode).cloned().unwrap_or_default();
        for other in known.into_iter().filter(|other| other != place) {
            if let ProbeResult::Ours(_) = self.probe(&other, Some(&now.version))? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Announces a new location of an inode, runs `execute`, reports the names with
    /// `update_names`, and confirms. The announcement stands until all of that is done, so that
    /// after an error or a crash in between the next round knows of it.
    pub(crate) fn perform(
        &mut self,
        inode: Inode,
        location: &BackingLocation,
        execute: impl FnOnce(&mut Self) -> WritebackResult<()>,
        update_names: impl FnOnce(&mut Self) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        self.instance.writing(inode, location)?;
        self.set_uncertain(inode, &location.place);
        if let Err(error) = execute(self) {
            if self.backend.is_object_store() && matches!(error, WritebackError::Backing(_)) {
                // The next round finds out whether it was executed.
                return Err(error);
            }
            self.instance.not_written(inode)?;
            self.set_certain(inode, &location.place);
            return Err(error);
        }
        update_names(self)?;
        self.instance.wrote(inode, location)?;
        self.set_certain(inode, &location.place);
        Ok(())
    }

    /// Renames a file that is known to be at `now`; `update_names` as in `perform`.
    fn rename(
        &mut self,
        inode: Inode,
        (now, from): (&BackingLocation, &Dir),
        (location, to): (&BackingLocation, &Dir),
        update_names: impl FnOnce(&mut Self) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        let (before, after) = (&now.place.name, &location.place.name);
        let rename = |round: &mut Self| {
            let done = round.backend.rename((from, before), (to, after));
            done.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Into a directory that is still below it in the backing store.
                Some(Errno::INVAL) => WritebackError::NotReady,
                _ => error.into(),
            })
        };
        let laid = self.perform(inode, location, rename, update_names);
        self.forget_dir(inode);
        laid?;
        if let Some(places) = self.cache.links.get_mut(&inode) {
            places.remove(&now.place);
            places.insert(location.place.clone());
        }
        Ok(())
    }

    /// Moves or links a file that is elsewhere in the backing store to a vacated name.
    fn move_into_place(
        &mut self,
        place: &Place,
        sync_state: &SyncState,
        now: &BackingLocation,
    ) -> WritebackResult<()> {
        let inode = sync_state.inode;
        let to = &self.dir_to_change(place.parent)?;
        let from = self.dir_to_change(now.place.parent)?;
        let was_named = self.backed_at(&now.place) == inode;
        let goes = now.place.is_private() || was_named;
        if now.place.is_conflict_of(place) && self.backend.node(to, &place.name)?.is_some() {
            return self.report_name_written(place, inode);
        }
        let commit_to = self.unused_name(place, to, inode)?;
        let is_dir = sync_state.attributes.is_some_and(|attributes| attributes.is_directory());
        let location = BackingLocation { place: commit_to, ..now.clone() };
        if goes || is_dir {
            return self.rename(inode, (now, &from), (&location, to), |round| {
                if was_named {
                    round.name_written(&now.place, inode, Inode::NONE)?;
                }
                round.report_name_written(place, inode)
            });
        }
        let names = ((&from, now.place.name.as_os_str()), (to, location.place.name.as_os_str()));
        if self.backend.is_object_store() {
            // Returns the reason why not. Announced first, it would look like an interrupted move.
            return Ok(self.backend.link(names.0, names.1)?);
        }
        let link = |round: &mut Self| Ok(round.backend.link(names.0, names.1)?);
        let places = self.cache.links.entry(inode).or_default();
        places.extend([now.place.clone(), location.place.clone()]);
        self.perform(inode, &location, link, |round| round.report_name_written(place, inode))
    }

    /// A name for a new file: its own, or a conflict name if others have a file there.
    pub(crate) fn unused_name(
        &mut self,
        place: &Place,
        dir: &Dir,
        inode: Inode,
    ) -> WritebackResult<Place> {
        if self.backend.node(dir, &place.name)?.is_none() {
            return Ok(place.clone());
        }
        for attempt in 0..CONFLICTS_MAX {
            let other = place.conflict(inode, attempt);
            if self.backend.node(dir, &other.name)?.is_none() {
                let name = other.name.display();
                self.conflict(
                    place,
                    format!("belongs to another program in the backing store: ours is {name}"),
                );
                return Ok(other);
            }
        }
        let what = "its name and all alternative names are taken by others: remove the files with";
        Err(WritebackError::Backing(std::io::Error::other(format!(
            "{what} .forebay-conflict- in their names"
        ))))
    }

    /// True if the expected version is under a name, so that it may be replaced.
    pub(crate) fn is_known(
        &mut self,
        place: &Place,
        known: &BackingLocation,
    ) -> WritebackResult<bool> {
        let Some(dir) = self.dir(place.parent)? else { return Ok(false) };
        let node = self.backend.node(&dir, &place.name)?;
        Ok(node.is_some_and(|node| is_version(&node, &known.version)))
    }
}

fn is_not_empty(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOTEMPTY | Errno::EXIST))
}
