//! Inodes that lie below and are not there as they are here: half told, gone, or changed.
//!
//! What is gone and has no row lies under a name of the writer's own, or nowhere: by any other name lies
//! what the rows and entries say, and that may have the number that it had.

use crate::contents::{Aim, Job};
use crate::round::{Found, Round};
use crate::sides::Node;
use crate::state::{Lies, Standing, Tried, Trouble};
use below::{Kind, Lost};
use wire::Attributes;
use wire::Inode;
use wire::below::{Stamp, Version};

impl Round<'_> {
    /// Finds out where things lie that were about to lie elsewhere when the writer was killed. Where one
    /// is in another, the other comes first.
    pub(crate) fn recover(&mut self, all: Vec<Standing>) {
        let mut left: Vec<Standing> =
            all.into_iter().filter(|standing| standing.next.is_some()).collect();
        loop {
            let before = left.len();
            let mut failed = Vec::new();
            for standing in left {
                if let Err(trouble) = self.try_recover(&standing) {
                    failed.push((standing, trouble));
                }
            }
            if failed.is_empty() || failed.len() == before {
                for (Standing { inode, next, .. }, trouble) in failed {
                    if let Some(next) = next {
                        self.set_unclear(inode, &next.place);
                        self.note((inode, &next.place), Err(trouble), 0);
                    }
                }
                return;
            }
            left = failed.into_iter().map(|(standing, _)| standing).collect();
        }
    }

    fn try_recover(&mut self, standing: &Standing) -> Tried<()> {
        let (inode, Some(next)) = (standing.inode, &standing.next) else { return Ok(()) };
        self.finish_move(standing, next)?;
        self.finish_landing(standing, next)?;
        let is_in_place = standing.is_at(&next.place);
        let found = match self.look(&next.place, Some(&next.version)) {
            Err(Trouble::NotReady) if self.is_unmoved(standing, next)? => {
                return Ok(self.above.not_written(inode)?);
            }
            found => found?,
        };
        match found {
            Found::Ours(node) => {
                self.recover_names(standing, next, node.kind)?;
                return Ok(self.above.wrote(inode, next)?);
            }
            Found::Others(node) if is_in_place && self.is_torn(standing, next, &node) => {
                self.torn.insert(inode);
                if !standing.is_gone() {
                    self.set_unclear(inode, &next.place);
                }
                return Ok(());
            }
            Found::Others(_) | Found::Nothing => {}
        }
        Ok(self.above.not_written(inode)?)
    }

    /// True for a directory that is where it was: then it is nowhere else.
    fn is_unmoved(&mut self, standing: &Standing, next: &Lies) -> Tried<bool> {
        let number = next.version.number;
        let Some(now) = standing.now.as_ref().filter(|now| now.version.number == number) else {
            return Ok(false);
        };
        if self.lower.is_far() || now.place == next.place {
            return Ok(false);
        }
        let found = self.look(&now.place, Some(&now.version))?;
        Ok(matches!(found, Found::Ours(node) if node.kind == Kind::Folder))
    }

    /// What a far store moves is copied, and then removed where it was: both may be broken off. It is
    /// done
    /// again, as long as something is left there.
    fn finish_move(&mut self, standing: &Standing, next: &Lies) -> Tried<()> {
        let Some(now) = standing.now.as_ref().filter(|now| now.place != next.place) else {
            return Ok(());
        };
        if !self.lower.is_far() || now.version != next.version {
            return Ok(());
        }
        if !matches!(self.look(&now.place, Some(&now.version))?, Found::Ours(_)) {
            return Ok(());
        }
        let from = self.folder(now.place.parent)?.ok_or(Trouble::NotReady)?;
        let to = self.folder(next.place.parent)?.ok_or(Trouble::NotReady)?;
        match self.lower.rename((&from, &now.place.name), (&to, &next.place.name)) {
            // Others have put something there: it stays where it was.
            Err(error)
                if error.kind() == std::io::ErrorKind::AlreadyExists
                    && standing.attributes.is_some_and(|it| !it.is_directory()) =>
            {
                Ok(())
            }
            moved => Ok(moved?),
        }
    }

    /// What is large comes to a far store under a name of the writer's own, where its name is contested,
    /// and is moved from there: that may have been broken off.
    fn finish_landing(&mut self, standing: &Standing, next: &Lies) -> Tried<()> {
        let aside = next.place.aside(standing.inode);
        let is_move = standing.now.as_ref().is_some_and(|now| now.version == next.version);
        let is_whole = next.version.size <= self.lower.part_bytes(next.version.size);
        if !self.lower.is_far() || is_move || is_whole || aside == next.place {
            return Ok(());
        }
        let Found::Ours(_) = self.look(&aside, Some(&next.version))? else { return Ok(()) };
        let folder = self.folder(next.place.parent)?.ok_or(Trouble::NotReady)?;
        match self.lower.rename((&folder, &aside.name), (&folder, &next.place.name)) {
            // Others have put something there: it is brought again, and elsewhere.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(self.lower.remove(&folder, &aside.name, false)?)
            }
            moved => Ok(moved?),
        }
    }

    /// What was brought to a place lies there by its name, and not where it was any more.
    fn recover_names(&mut self, standing: &Standing, next: &Lies, kind: Kind) -> Tried<()> {
        let inode = standing.inode;
        let known = |told: Tried<()>| match told {
            // Something else of ours is said to be there.
            Err(Trouble::Again) => Ok(()),
            told => told,
        };
        if let Some(now) = standing.now.as_ref().filter(|now| now.place != next.place)
            && !now.place.is_own()
            && (kind == Kind::Folder
                || !matches!(self.look(&now.place, Some(&now.version))?, Found::Ours(_)))
        {
            known(self.saved(&now.place, inode, Inode::NONE))?;
        }
        if standing.is_at(&next.place) || next.place.is_own() {
            return Ok(());
        }
        known(self.tell_saved(&next.place, inode))
    }

    /// True if a file is neither what it was nor what it should become, and was about to be changed in
    /// place.
    fn is_torn(&self, standing: &Standing, next: &Lies, node: &Node) -> bool {
        let Some(now) = &standing.now else { return false };
        let number = node.version.number;
        now.version.number == number && next.version.number == number && node.version != now.version
    }

    /// Makes them what they are above.
    ///
    /// # Errors
    /// They can not be listed.
    pub(crate) fn changed(&mut self) -> Tried<()> {
        let (all, _) = self.list()?;
        let (mut jobs, mut folders) = (Vec::new(), Vec::new());
        for standing in all {
            let Some(now) = standing.now.clone() else {
                self.see_to_draft(&standing);
                continue;
            };
            if self.under_way.contains(&standing.inode) {
                continue;
            }
            let done = match standing.attributes {
                _ if standing.is_gone() => self.bury(&standing, &now).map(Some),
                None => continue,
                Some(attributes) if attributes.is_directory() => {
                    folders.push(standing.inode);
                    continue;
                }
                // Deleted, and open still, or remembered by a kernel.
                Some(attributes) if attributes.links == 0 => {
                    let is_aside = now.place.inode_aside().is_some() || standing.draft.is_some();
                    self.report.aside += u64::from(is_aside);
                    self.note_written(&standing, &now.place);
                    continue;
                }
                Some(attributes) => self.change(&standing, &now, &attributes, &mut jobs),
            };
            match done {
                Ok(Some(true)) => self.note((standing.inode, &now.place), Ok(()), 0),
                Ok(_) => {}
                Err(trouble) => {
                    let bytes = standing.attributes.map_or(0, |attributes| attributes.size);
                    self.note((standing.inode, &now.place), Err(trouble), bytes);
                }
            }
        }
        self.write(jobs);
        folders.extend(self.take_touched());
        folders.sort();
        folders.dedup();
        for directory in folders {
            self.dress_folder(directory);
        }
        Ok(())
    }

    /// Of a file that never lay below under its name: it is gone, or has no name any more, or its name's
    /// row tells of it.
    fn see_to_draft(&mut self, standing: &Standing) {
        let Some(draft) = &standing.draft else { return };
        let place = draft.place.clone();
        if standing.next.is_some() || self.is_unclear(standing.inode) {
            return self.note((standing.inode, &place), Err(Trouble::NotReady), 0);
        }
        if standing.is_gone() {
            let done = self.tell_gone(standing);
            self.note((standing.inode, &place), done, 0);
        } else if standing.attributes.is_some_and(|attributes| attributes.links == 0) {
            self.report.aside += 1;
            self.note_written(standing, &place);
        }
    }

    /// What is gone above, and has no name any more of which a row tells. True if that is done.
    fn bury(&mut self, standing: &Standing, now: &Lies) -> Tried<bool> {
        let inode = standing.inode;
        if self.is_unclear(inode) && !self.torn.contains(&inode) {
            return Err(Trouble::NotReady);
        }
        if !self.is_all_gone(inode) {
            // A name is to go, and has not gone yet.
            return Ok(false);
        }
        if now.place.is_own() {
            self.remove_own(inode, now)?;
        }
        self.tell_gone(standing)?;
        Ok(true)
    }

    /// What lies by a name of the writer's own goes from there.
    pub(crate) fn remove_own(&mut self, inode: Inode, now: &Lies) -> Tried<()> {
        let node = match self.look(&now.place, Some(&now.version))? {
            Found::Ours(node) => node,
            Found::Others(node)
                if self.torn.contains(&inode) && node.version.number == now.version.number =>
            {
                node
            }
            Found::Others(_) | Found::Nothing => return Ok(()),
        };
        let folder = self.folder_to_change(now.place.parent)?;
        match self.lower.remove(&folder, &now.place.name, node.kind == Kind::Folder) {
            Err(error) if node.kind == Kind::Folder && crate::names::is_not_empty(&error) => {
                if !self.has_only_others(inode, &now.place)? {
                    return Err(Trouble::NotReady);
                }
                let what = "is removed above, and there are files of others in it: it stays";
                self.conflict(&now.place, what.to_owned());
                Ok(())
            }
            removed => Ok(removed?),
        }
    }

    /// A file that was changed. Contents are a job; true if its attributes are what they are above.
    fn change(
        &mut self,
        standing: &Standing,
        now: &Lies,
        attributes: &Attributes,
        jobs: &mut Vec<Job>,
    ) -> Tried<Option<bool>> {
        let inode = standing.inode;
        if self.is_unclear(inode) && !self.torn.contains(&inode) {
            return Err(Trouble::NotReady);
        }
        if now.stamp.changed == attributes.changed && !self.torn.contains(&inode) {
            if standing.draft.is_none() || standing.is_written {
                return Ok(None);
            }
            return self.end_draft(standing).map(|()| Some(true));
        }
        if let Err(trouble) = self.may_write(now.place.parent, standing) {
            self.note_waiting(&trouble, standing, &now.place);
            return Err(trouble);
        }
        let is_same = now.stamp.has_contents_of(&Stamp::of(attributes));
        let is_there = !matches!(self.look(&now.place, Some(&now.version))?, Found::Nothing);
        let has_new = attributes.is_regular() && (!is_same || self.torn.contains(&inode));
        if has_new || !is_there {
            let folder = self.folder_to_change(now.place.parent)?;
            let aim = Aim::There(now.place.clone());
            let (kept, standing) = (self.kept(standing)?, standing.clone());
            jobs.push(Job { aim, folder, standing, attributes: *attributes, kept });
            return Ok(None);
        }
        self.dress_file(inode, now, attributes).map(Some)
    }

    /// Gives a file the attributes that it has above; the contents are those that lie there.
    fn dress_file(&mut self, inode: Inode, now: &Lies, attributes: &Attributes) -> Tried<bool> {
        let dress = self.above.dress(attributes)?;
        let mut lies = Lies { stamp: Stamp::of(attributes), ..now.clone() };
        let folder = self.folder(now.place.parent)?.ok_or(Trouble::NotReady)?;
        if !self.is_known(&now.place, now)? {
            let what = "was changed there: its attributes stay as they are";
            self.conflict(&now.place, what.to_owned());
            self.above.wrote(inode, &lies)?;
            return Ok(true);
        }
        let [_, modified] = dress.times;
        if modified != now.version.modified {
            lies.version = Version { modified, ..now.version };
            self.above.saving(inode, &lies)?;
        }
        let Lost(is_bare) = self.lower.dress_there(&folder, &now.place.name, &dress)?;
        // A file system may keep times less exactly.
        let node = self.lower.node(&folder, &now.place.name)?.ok_or(Trouble::Again)?;
        if node.version != lies.version {
            lies.version = node.version;
            self.above.saving(inode, &lies)?;
        }
        self.above.wrote(inode, &lies)?;
        self.report.lost += u64::from(is_bare);
        Ok(true)
    }

    /// Gives a directory the attributes that it has above, after all that was done in it.
    fn dress_folder(&mut self, directory: Inode) {
        let (place, done) = match self.try_dress_folder(directory) {
            Ok(None) => return,
            Ok(Some(place)) => (place, Ok(())),
            Err((Some(place), trouble)) => (place, Err(trouble)),
            Err((None, trouble)) => {
                // Its name is not known yet.
                let place = crate::state::Place::of(directory, b"");
                self.leave_open(&place, &trouble);
                self.report.fates.leave(directory);
                return;
            }
        };
        self.note((directory, &place), done, 0);
    }

    fn try_dress_folder(
        &mut self,
        directory: Inode,
    ) -> Result<Option<crate::state::Place>, (Option<crate::state::Place>, Trouble)> {
        let none = |trouble| (None, trouble);
        let standing = self.standing(directory).map_err(none)?;
        let Some(Standing { attributes: Some(attributes), now: Some(now), .. }) = standing else {
            return Ok(None);
        };
        let place = now.place.clone();
        let lies = Lies { stamp: Stamp::of(&attributes), ..now };
        self.dress_at(directory, &lies, &attributes)
            .map_err(|trouble| (Some(place.clone()), trouble))?;
        Ok(Some(place))
    }

    fn dress_at(&mut self, directory: Inode, lies: &Lies, attributes: &Attributes) -> Tried<()> {
        let dress = self.above.dress(attributes)?;
        let folder = self.folder(lies.place.parent)?.ok_or(Trouble::NotReady)?;
        if self.is_known(&lies.place, lies)? {
            let Lost(is_bare) = self.lower.dress_there(&folder, &lies.place.name, &dress)?;
            self.report.lost += u64::from(is_bare);
        } else {
            self.conflict(&lies.place, "is another directory: it stays as it is".to_owned());
        }
        Ok(self.above.wrote(directory, lies)?)
    }
}
