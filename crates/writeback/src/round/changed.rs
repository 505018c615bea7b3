//! Dirty inodes: those with an operation in doubt, deleted ones, and changed ones.
//!
//! A deleted inode without a dirty name is under a private name in the backing store, or nowhere.
//! Under any other name is what the dirty names and entries say, which may have reused its inode
//! number.

use crate::backends::Node;
use crate::round::contents::{CommitTo, WriteJob};
use crate::round::{ProbeResult, Round};
use crate::state::{BackingLocation, SyncState, WritebackError, WritebackResult};
use backing::{AttributesLost, Kind};
use wire::Attributes;
use wire::Inode;
use wire::backing::{Stamp, Version};

impl Round<'_> {
    /// Finds out whether operations that a killed daemon had announced were executed. A directory
    /// is resolved before what is in it.
    pub(crate) fn recover(&mut self, all: Vec<SyncState>) {
        let mut left: Vec<SyncState> =
            all.into_iter().filter(|sync_state| sync_state.next.is_some()).collect();
        loop {
            let before = left.len();
            let mut failed = Vec::new();
            for sync_state in left {
                if let Err(error) = self.try_recover(&sync_state) {
                    failed.push((sync_state, error));
                }
            }
            if failed.is_empty() || failed.len() == before {
                for (SyncState { inode, next, .. }, error) in failed {
                    if let Some(next) = next {
                        self.set_uncertain(inode, &next.place);
                        self.note((inode, &next.place), Err(error), 0);
                    }
                }
                return;
            }
            left = failed.into_iter().map(|(sync_state, _)| sync_state).collect();
        }
    }

    fn try_recover(&mut self, sync_state: &SyncState) -> WritebackResult<()> {
        let (inode, Some(next)) = (sync_state.inode, &sync_state.next) else { return Ok(()) };
        self.finish_move(sync_state, next)?;
        self.finish_commit(sync_state, next)?;
        let is_in_place = sync_state.is_at(&next.place);
        let found = match self.probe(&next.place, Some(&next.version)) {
            Err(WritebackError::NotReady) if self.is_unmoved(sync_state, next)? => {
                return Ok(self.instance.not_written(inode)?);
            }
            found => found?,
        };
        match found {
            ProbeResult::Ours(node) => {
                self.recover_names(sync_state, next, node.kind)?;
                return Ok(self.instance.wrote(inode, next)?);
            }
            ProbeResult::Foreign(node) if is_in_place && self.is_torn(sync_state, next, &node) => {
                self.torn.insert(inode);
                if !sync_state.is_gone() {
                    self.set_uncertain(inode, &next.place);
                }
                return Ok(());
            }
            ProbeResult::Foreign(_) | ProbeResult::Absent => {}
        }
        Ok(self.instance.not_written(inode)?)
    }

    /// True for a directory that is at its old place, and therefore nowhere else.
    fn is_unmoved(
        &mut self,
        sync_state: &SyncState,
        next: &BackingLocation,
    ) -> WritebackResult<bool> {
        let number = next.version.number;
        let Some(now) = sync_state.now.as_ref().filter(|now| now.version.number == number) else {
            return Ok(false);
        };
        if self.backend.is_object_store() || now.place == next.place {
            return Ok(false);
        }
        let found = self.probe(&now.place, Some(&now.version))?;
        Ok(matches!(found, ProbeResult::Ours(node) if node.kind == Kind::Dir))
    }

    /// A move in an object store is a copy followed by a removal, and either may have been
    /// interrupted. The move is repeated as long as something is left at the old place.
    fn finish_move(
        &mut self,
        sync_state: &SyncState,
        next: &BackingLocation,
    ) -> WritebackResult<()> {
        let Some(now) = sync_state.now.as_ref().filter(|now| now.place != next.place) else {
            return Ok(());
        };
        if !self.backend.is_object_store() || now.version != next.version {
            return Ok(());
        }
        if !matches!(self.probe(&now.place, Some(&now.version))?, ProbeResult::Ours(_)) {
            return Ok(());
        }
        let from = self.dir(now.place.parent)?.ok_or(WritebackError::NotReady)?;
        let to = self.dir(next.place.parent)?.ok_or(WritebackError::NotReady)?;
        match self.backend.rename((&from, &now.place.name), (&to, &next.place.name)) {
            // Others have created a file there: ours stays where it was.
            Err(error)
                if error.kind() == std::io::ErrorKind::AlreadyExists
                    && sync_state.attributes.is_some_and(|it| !it.is_directory()) =>
            {
                Ok(())
            }
            moved => Ok(moved?),
        }
    }

    /// A large object whose name is contested is uploaded under a private name and then moved; that
    /// may have been interrupted. An object that was to be compared there is removed: it may differ.
    fn finish_commit(
        &mut self,
        sync_state: &SyncState,
        next: &BackingLocation,
    ) -> WritebackResult<()> {
        let aside = next.place.aside(sync_state.inode);
        let is_move = sync_state.now.as_ref().is_some_and(|now| now.version == next.version);
        let is_compared = self.backend.is_compared_aside();
        let is_whole =
            !is_compared && next.version.size <= self.backend.part_bytes(next.version.size);
        if !self.backend.is_object_store() || is_move || is_whole || aside == next.place {
            return Ok(());
        }
        let ProbeResult::Ours(_) = self.probe(&aside, Some(&next.version))? else { return Ok(()) };
        let dir = self.dir(next.place.parent)?.ok_or(WritebackError::NotReady)?;
        if is_compared {
            return Ok(self.backend.remove(&dir, &aside.name, false)?);
        }
        match self.backend.rename((&dir, &aside.name), (&dir, &next.place.name)) {
            // Others have created a file there: ours is written again under another name.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(self.backend.remove(&dir, &aside.name, false)?)
            }
            moved => Ok(moved?),
        }
    }

    /// Reports the names of an operation that was executed: the new name is in use and the old one
    /// is free.
    fn recover_names(
        &mut self,
        sync_state: &SyncState,
        next: &BackingLocation,
        kind: Kind,
    ) -> WritebackResult<()> {
        let inode = sync_state.inode;
        let known = |outcome: WritebackResult<()>| match outcome {
            // The dirty name lists another inode of ours there.
            Err(WritebackError::Changed) => Ok(()),
            outcome => outcome,
        };
        if let Some(now) = sync_state.now.as_ref().filter(|now| now.place != next.place)
            && !now.place.is_private()
            && (kind == Kind::Dir
                || !matches!(self.probe(&now.place, Some(&now.version))?, ProbeResult::Ours(_)))
        {
            known(self.name_written(&now.place, inode, Inode::NONE))?;
        }
        if sync_state.is_at(&next.place) || next.place.is_private() {
            return Ok(());
        }
        known(self.report_name_written(&next.place, inode))
    }

    /// True if a file was about to be rewritten in place and is neither its old nor its new
    /// version.
    fn is_torn(&self, sync_state: &SyncState, next: &BackingLocation, node: &Node) -> bool {
        let Some(now) = &sync_state.now else { return false };
        let number = node.version.number;
        now.version.number == number && next.version.number == number && node.version != now.version
    }

    /// Writes all dirty inodes.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(crate) fn write_dirty_inodes(&mut self) -> WritebackResult<()> {
        let (all, _) = self.list()?;
        let (mut jobs, mut dirs) = (Vec::new(), Vec::new());
        for sync_state in all {
            let Some(now) = sync_state.now.clone() else {
                self.settle_partial(&sync_state);
                continue;
            };
            if self.under_way.contains(&sync_state.inode) {
                continue;
            }
            let done = match sync_state.attributes {
                _ if sync_state.is_gone() => self.remove_deleted(&sync_state, &now).map(Some),
                None => continue,
                Some(attributes) if attributes.is_directory() => {
                    dirs.push(sync_state.inode);
                    continue;
                }
                // Deleted, but open or remembered by a kernel.
                Some(attributes) if attributes.links == 0 => {
                    let is_aside =
                        now.place.aside_inode().is_some() || sync_state.partial.is_some();
                    self.report.aside += u64::from(is_aside);
                    self.note_written(&sync_state, &now.place);
                    continue;
                }
                Some(attributes) => self.change(&sync_state, &now, &attributes, &mut jobs),
            };
            match done {
                Ok(Some(true)) => self.note((sync_state.inode, &now.place), Ok(()), 0),
                Ok(_) => {}
                Err(error) => {
                    let bytes = sync_state.attributes.map_or(0, |attributes| attributes.size);
                    self.note((sync_state.inode, &now.place), Err(error), bytes);
                }
            }
        }
        self.write(jobs);
        dirs.extend(self.take_touched());
        dirs.sort();
        dirs.dedup();
        for directory in dirs {
            self.set_dir_metadata(directory);
        }
        Ok(())
    }

    /// Handles a file that has a partial file and was never in the backing store under its name: it
    /// is deleted, or its dirty name leads to it.
    fn settle_partial(&mut self, sync_state: &SyncState) {
        let Some(partial) = &sync_state.partial else { return };
        let place = partial.place.clone();
        if sync_state.next.is_some() || self.is_uncertain(sync_state.inode) {
            return self.note((sync_state.inode, &place), Err(WritebackError::NotReady), 0);
        }
        if sync_state.is_gone() {
            let done = self.report_gone(sync_state);
            self.note((sync_state.inode, &place), done, 0);
        } else if sync_state.attributes.is_some_and(|attributes| attributes.links == 0) {
            self.report.aside += 1;
            self.note_written(sync_state, &place);
        }
    }

    /// Removes a deleted inode of which no dirty name is left. True if it is removed.
    fn remove_deleted(
        &mut self,
        sync_state: &SyncState,
        now: &BackingLocation,
    ) -> WritebackResult<bool> {
        let inode = sync_state.inode;
        if self.is_uncertain(inode) && !self.torn.contains(&inode) {
            return Err(WritebackError::NotReady);
        }
        if !self.is_all_gone(inode) {
            // One of its names is still to be removed.
            return Ok(false);
        }
        if now.place.is_private() {
            self.remove_private(inode, now)?;
        }
        self.report_gone(sync_state)?;
        Ok(true)
    }

    /// Removes a file under a private name.
    pub(crate) fn remove_private(
        &mut self,
        inode: Inode,
        now: &BackingLocation,
    ) -> WritebackResult<()> {
        let node = match self.probe(&now.place, Some(&now.version))? {
            ProbeResult::Ours(node) => node,
            ProbeResult::Foreign(node)
                if self.torn.contains(&inode) && node.version.number == now.version.number =>
            {
                node
            }
            ProbeResult::Foreign(_) | ProbeResult::Absent => return Ok(()),
        };
        let dir = self.dir_to_change(now.place.parent)?;
        self.take_away((inode, &now.place), &dir, node.kind == Kind::Dir)
    }

    /// Writes a changed file. New contents become a job; returns true if the metadata was written.
    fn change(
        &mut self,
        sync_state: &SyncState,
        now: &BackingLocation,
        attributes: &Attributes,
        jobs: &mut Vec<WriteJob>,
    ) -> WritebackResult<Option<bool>> {
        let inode = sync_state.inode;
        if self.is_uncertain(inode) && !self.torn.contains(&inode) {
            return Err(WritebackError::NotReady);
        }
        if now.stamp.changed == attributes.changed && !self.torn.contains(&inode) {
            if sync_state.partial.is_none() || sync_state.is_written {
                return Ok(None);
            }
            return self.end_partial(sync_state).map(|()| Some(true));
        }
        if let Err(error) = self.may_write(now.place.parent, sync_state) {
            self.note_waiting(&error, sync_state, &now.place);
            return Err(error);
        }
        let is_same = now.stamp.has_contents_of(&Stamp::of(attributes));
        let is_there = !matches!(self.probe(&now.place, Some(&now.version))?, ProbeResult::Absent);
        let has_new = attributes.is_regular() && (!is_same || self.torn.contains(&inode));
        if has_new || !is_there {
            let dir = self.dir_to_change(now.place.parent)?;
            let commit_to = CommitTo::Existing(now.place.clone());
            let (known_partial, sync_state) = (self.known_partial(sync_state)?, sync_state.clone());
            jobs.push(WriteJob {
                commit_to,
                dir,
                sync_state,
                attributes: *attributes,
                known_partial,
            });
            return Ok(None);
        }
        self.set_file_metadata(inode, now, attributes).map(Some)
    }

    /// Writes the metadata of a file whose contents in the backing store are current.
    fn set_file_metadata(
        &mut self,
        inode: Inode,
        now: &BackingLocation,
        attributes: &Attributes,
    ) -> WritebackResult<bool> {
        let metadata = self.instance.metadata(attributes)?;
        let mut location = BackingLocation { stamp: Stamp::of(attributes), ..now.clone() };
        let dir = self.dir(now.place.parent)?.ok_or(WritebackError::NotReady)?;
        if !self.is_known(&now.place, now)? {
            let what = "was changed in the backing store: its attributes are not written";
            self.conflict(&now.place, what.to_owned());
            self.instance.wrote(inode, &location)?;
            return Ok(true);
        }
        let [_, modified] = metadata.times;
        if modified != now.version.modified {
            location.version = Version { modified, ..now.version };
            self.instance.writing(inode, &location)?;
        }
        let AttributesLost(lost_attributes) =
            self.backend.update_metadata(&dir, &now.place.name, &metadata)?;
        // A file system may store times with less precision.
        let node = self.backend.node(&dir, &now.place.name)?.ok_or(WritebackError::Changed)?;
        if node.version != location.version {
            location.version = node.version;
            self.instance.writing(inode, &location)?;
        }
        self.instance.wrote(inode, &location)?;
        self.report.lost += u64::from(lost_attributes);
        Ok(true)
    }

    /// Writes the metadata of a directory, after all changes in it.
    fn set_dir_metadata(&mut self, directory: Inode) {
        let (place, done) = match self.try_set_dir_metadata(directory) {
            Ok(None) => return,
            Ok(Some(place)) => (place, Ok(())),
            Err((Some(place), error)) => (place, Err(error)),
            Err((None, error)) => {
                // Its name is unknown.
                let place = crate::state::Place::of(directory, b"");
                self.defer(&place, &error);
                self.report.outcomes.leave(directory);
                return;
            }
        };
        self.report.directories += u64::from(done.is_ok());
        self.note((directory, &place), done, 0);
    }

    fn try_set_dir_metadata(
        &mut self,
        directory: Inode,
    ) -> Result<Option<crate::state::Place>, (Option<crate::state::Place>, WritebackError)> {
        let none = |error| (None, error);
        let sync_state = self.sync_state(directory).map_err(none)?;
        let Some(SyncState { attributes: Some(attributes), now: Some(now), .. }) = sync_state
        else {
            return Ok(None);
        };
        let place = now.place.clone();
        let location = BackingLocation { stamp: Stamp::of(&attributes), ..now };
        let swept = self.dir(directory).and_then(|dir| match dir {
            Some(dir) => self.sweep(directory, &dir),
            None => Ok(()),
        });
        swept.map_err(|error| (Some(place.clone()), error))?;
        self.set_metadata_at(directory, &location, &attributes)
            .map_err(|error| (Some(place.clone()), error))?;
        Ok(Some(place))
    }

    fn set_metadata_at(
        &mut self,
        directory: Inode,
        location: &BackingLocation,
        attributes: &Attributes,
    ) -> WritebackResult<()> {
        let metadata = self.instance.metadata(attributes)?;
        let dir = self.dir(location.place.parent)?.ok_or(WritebackError::NotReady)?;
        if self.is_known(&location.place, location)? {
            let AttributesLost(lost_attributes) =
                self.backend.update_metadata(&dir, &location.place.name, &metadata)?;
            self.report.lost += u64::from(lost_attributes);
        } else {
            self.conflict(
                &location.place,
                "is another directory in the backing store: it stays unchanged".to_owned(),
            );
        }
        Ok(self.instance.wrote(directory, location)?)
    }
}
