//! Names: what lies below by a name makes room, and what the name stands for above comes there.

use crate::contents::{Aim, Job};
use crate::round::{Found, Round, is_version};
use crate::sides::Folder;
use crate::state::{Lies, Place, Row, Standing, Tried, Trouble};
use below::Kind;
use rustix::io::Errno;
use wire::Inode;
use wire::below::Version;

/// Names for what could not have its own that are tried.
const CONFLICTS_MAX: u32 = 16;

impl Round<'_> {
    /// Brings what a name stands for there. New contents are a job.
    pub(crate) fn name(&mut self, row: &Row) -> Tried<Option<Job>> {
        let standing = self.standing(row.entry)?.ok_or(Trouble::Again)?;
        let attributes = standing.attributes.ok_or(Trouble::Again)?;
        if self.under_way.contains(&row.entry) {
            return Err(Trouble::NotReady);
        }
        self.folder(row.place.parent)?.ok_or(Trouble::NotReady)?;
        if self.is_there(&row.place, &standing)? {
            self.tell_saved(&row.place, row.entry)?;
            return Ok(None);
        }
        let from = standing.now.clone();
        let is_below = match &from {
            Some(now) => matches!(self.look(&now.place, Some(&now.version))?, Found::Ours(_)),
            None => false,
        };
        if let (true, Some(now)) = (is_below, from) {
            self.make_room(&row.place)?;
            self.bring(&row.place, &standing, &now)?;
            return Ok(None);
        }
        if attributes.is_regular()
            && let Err(trouble) = self.may_write(row.place.parent, &standing)
        {
            self.note_waiting(&trouble, &standing, &row.place);
            return Err(trouble);
        }
        let folder = self.folder_to_change(row.place.parent)?;
        if !attributes.is_regular() || self.may_replace(&row.place)?.is_none() {
            self.make_room(&row.place)?;
        }
        self.under_way.insert(row.entry);
        let kept = self.kept(&standing)?;
        let job = Job { aim: Aim::Name(row.place.clone()), folder, standing, attributes, kept };
        if attributes.is_regular() {
            return Ok(Some(job));
        }
        // Others may be in it.
        self.write_now(job).map(|()| None)
    }

    /// True if an inode is at a place already, by whichever of its names.
    fn is_there(&mut self, place: &Place, standing: &Standing) -> Tried<bool> {
        let Some(now) = &standing.now else { return Ok(false) };
        if self.lower.is_far() && now.place != *place {
            // It has one name there, and directories have nothing else that says which they are.
            return Ok(false);
        }
        let found = self.look(place, Some(&now.version))?;
        Ok(matches!(found, Found::Ours(_)))
    }

    /// A name is what it is above.
    pub(crate) fn tell_saved(&mut self, place: &Place, inode: Inode) -> Tried<()> {
        let before = self.lies_at(place);
        if !before.is_none() && before != inode {
            self.forget_dead(before, place)?;
        }
        self.saved(place, before, inode)
    }

    /// What lay at a place that is about to be told free or another's, and is gone above, is gone below.
    /// That is told first: see `round`.
    fn forget_dead(&mut self, inode: Inode, place: &Place) -> Tried<()> {
        if !self.is_last_name(inode, place) {
            return Ok(());
        }
        let Some(standing) = self.standing(inode)? else { return Ok(()) };
        let is_by_name = |now: &Lies| now.place == *place || !now.place.is_own();
        match &standing.now {
            Some(now) if standing.next.is_none() && is_by_name(now) => self.tell_gone(&standing),
            // It is looked for where it is, and told of then (`bury`).
            _ => Ok(()),
        }
    }

    /// What lies at a place and may be replaced by a rename: a file of ours that is gone above.
    pub(crate) fn may_replace(&mut self, place: &Place) -> Tried<Option<Version>> {
        let lies = self.lies_at(place);
        if lies.is_none() {
            return Ok(None);
        }
        let Some(standing) = self.standing(lies)? else { return Ok(None) };
        let known = standing.now.as_ref().filter(|now| now.place == *place);
        let (true, Some(now)) = (standing.is_gone(), known) else { return Ok(None) };
        let found = self.look(place, Some(&now.version))?;
        let is_file = matches!(found, Found::Ours(node) if node.kind != Kind::Folder);
        Ok(is_file.then_some(now.version))
    }

    /// Nothing of ours is at a place any more.
    pub(crate) fn make_room(&mut self, place: &Place) -> Tried<()> {
        match self.lies_at(place) {
            Inode::NONE => Ok(()),
            lies => match self.clear(place, lies) {
                // What is in it may be what is to come here.
                Err(Trouble::NotReady) => self.set_aside(place, lies),
                cleared => cleared,
            },
        }
    }

    /// A directory that is gone above and not empty below makes room all the same.
    fn set_aside(&mut self, place: &Place, lies: Inode) -> Tried<()> {
        let standing = self.standing(lies)?.ok_or(Trouble::NotReady)?;
        let now = standing.now.filter(|now| now.place == *place).ok_or(Trouble::NotReady)?;
        if !self.is_known(place, &now)? {
            return Err(Trouble::NotReady);
        }
        let folder = self.folder_to_change(place.parent)?;
        let aside = Lies { place: place.aside(lies), ..now.clone() };
        self.rename(lies, (&now, &folder), (&aside, &folder), |round| {
            round.saved(place, lies, Inode::NONE)
        })
    }

    /// What lies at a place goes from there: to where it is to be, out of the way, or away.
    pub(crate) fn clear(&mut self, place: &Place, lies: Inode) -> Tried<()> {
        if self.lies_at(place) != lies {
            return Ok(());
        }
        let Some(standing) = self.standing(lies)? else {
            return self.saved(place, lies, Inode::NONE);
        };
        let Some(now) = standing.now.clone() else {
            return self.saved(place, lies, Inode::NONE);
        };
        let folder = self.folder_to_change(place.parent);
        let folder = match folder {
            // The directory is gone below, with all that was in it.
            Err(Trouble::NotReady) if !self.is_below(place.parent)? => None,
            found => Some(found?),
        };
        let is_here = now.place == *place;
        let found = match self.look(place, Some(&now.version))? {
            // Another directory: nothing but its name says which it is.
            Found::Ours(node) if !is_here && node.kind == Kind::Folder && self.lower.is_far() => {
                Found::Nothing
            }
            // By another of its names, or half written in place.
            Found::Others(node)
                if node.version.number == now.version.number
                    && (!is_here || self.torn.contains(&lies)) =>
            {
                Found::Ours(node)
            }
            found => found,
        };
        match (found, folder) {
            (Found::Ours(_), Some(folder)) if !standing.is_gone() => {
                self.part(place, &folder, &standing, &now)
            }
            // A directory that comes there next may have its number, and then nothing says that this
            // one went unless that is told at once.
            (Found::Ours(node), Some(_)) if node.kind == Kind::Folder && !self.is_dead(lies) => {
                Err(Trouble::Again)
            }
            (Found::Ours(node), Some(folder)) => {
                self.remove(place, &folder, &standing, node.kind == Kind::Folder)
            }
            (Found::Others(_), _) => {
                self.conflict(place, "was changed there: it stays as it is".to_owned());
                self.leave(place, &standing)
            }
            _ => self.leave(place, &standing),
        }
    }

    fn is_below(&mut self, directory: Inode) -> Tried<bool> {
        Ok(self.folder(directory)?.is_some())
    }

    /// Nothing of ours is at a place, whatever is.
    fn leave(&mut self, place: &Place, standing: &Standing) -> Tried<()> {
        self.forget_dead(standing.inode, place)?;
        self.saved(place, standing.inode, Inode::NONE)
    }

    /// What is gone above goes below.
    fn remove(
        &mut self,
        place: &Place,
        folder: &Folder,
        standing: &Standing,
        is_folder: bool,
    ) -> Tried<()> {
        match self.lower.remove(folder, &place.name, is_folder) {
            Ok(()) => {}
            Err(error) if is_folder && is_not_empty(&error) => {
                if !self.has_only_others(standing.inode, place)? {
                    return Err(Trouble::NotReady);
                }
                let what = "is removed above, and there are files of others in it: it stays";
                self.conflict(place, what.to_owned());
            }
            Err(error) => return Err(error.into()),
        }
        self.leave(place, standing)
    }

    /// True if nothing of ours is in a directory that is to go from `place`. What is aside there and
    /// lives
    /// is taken out.
    pub(crate) fn has_only_others(&mut self, directory: Inode, place: &Place) -> Tried<bool> {
        if self.has_names_in(directory) {
            return Ok(false);
        }
        let Some(folder) = self.folder(directory)? else { return Ok(false) };
        let mut is_ours = false;
        for name in self.lower.names(&folder)? {
            let aside = Place { parent: directory, name };
            // It goes when its file is complete, or gone; or went now, and the next look finds nothing.
            is_ours |= self.sweep_kept(&aside)?;
            let standing = match aside.inode_aside() {
                Some(inode) => self.standing(inode)?.filter(|standing| standing.is_at(&aside)),
                None => None,
            };
            let Some(standing) = standing else { continue };
            is_ours = true;
            if let (false, Some(now)) = (standing.is_gone(), &standing.now) {
                let to = self.folder_to_change(place.parent)?;
                let lies = Lies { place: place.aside(standing.inode), ..now.clone() };
                self.rename(standing.inode, (now, &folder), (&lies, &to), |_| Ok(()))?;
            }
        }
        Ok(!is_ours)
    }

    /// What lives above leaves a name: by another that it has, or out of the way.
    fn part(
        &mut self,
        place: &Place,
        folder: &Folder,
        standing: &Standing,
        now: &Lies,
    ) -> Tried<()> {
        let inode = standing.inode;
        let is_folder = standing.attributes.is_some_and(|attributes| attributes.is_directory());
        if now.place == *place {
            match self.other_name(place, inode, now)? {
                Some(other) => {
                    let lies = Lies { place: other, ..now.clone() };
                    self.above.saving(inode, &lies)?;
                    self.above.wrote(inode, &lies)?;
                }
                None => {
                    let lies = Lies { place: place.aside(inode), ..now.clone() };
                    return self.rename(inode, (now, folder), (&lies, folder), |round| {
                        round.saved(place, inode, Inode::NONE)
                    });
                }
            }
        } else if !matches!(self.look(&now.place, Some(&now.version))?, Found::Ours(_)) {
            // It is where it should not be, and nowhere else: from here it is taken on.
            let lies = Lies { place: place.clone(), ..now.clone() };
            self.above.saving(inode, &lies)?;
            self.above.wrote(inode, &lies)?;
            return Err(Trouble::NotReady);
        }
        self.lower.remove(folder, &place.name, is_folder)?;
        if let Some(places) = self.memory.links.get_mut(&inode) {
            places.remove(place);
        }
        self.saved(place, inode, Inode::NONE)
    }

    /// Another name that a file has below, as far as is remembered.
    fn other_name(&mut self, place: &Place, inode: Inode, now: &Lies) -> Tried<Option<Place>> {
        let known = self.memory.links.get(&inode).cloned().unwrap_or_default();
        for other in known.into_iter().filter(|other| other != place) {
            if let Found::Ours(_) = self.look(&other, Some(&now.version))? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Brings something to where it is about to lie, by `bring`, and tells before and after: `saved` what
    /// names are by then. What is told before stands until all of the rest is told, so that after an
    /// error or a crash in between the next round knows of it.
    pub(crate) fn lay(
        &mut self,
        inode: Inode,
        lies: &Lies,
        bring: impl FnOnce(&mut Self) -> Tried<()>,
        saved: impl FnOnce(&mut Self) -> Tried<()>,
    ) -> Tried<()> {
        self.above.saving(inode, lies)?;
        self.set_unclear(inode, &lies.place);
        if let Err(trouble) = bring(self) {
            if self.lower.is_far() && matches!(trouble, Trouble::Below(_)) {
                // Whether it was done is found out by the next round.
                return Err(trouble);
            }
            self.above.not_written(inode)?;
            self.set_clear(inode, &lies.place);
            return Err(trouble);
        }
        saved(self)?;
        self.above.wrote(inode, lies)?;
        self.set_clear(inode, &lies.place);
        Ok(())
    }

    /// Renames what is known to lie at `now`; `saved` as in `lay`.
    fn rename(
        &mut self,
        inode: Inode,
        (now, from): (&Lies, &Folder),
        (lies, to): (&Lies, &Folder),
        saved: impl FnOnce(&mut Self) -> Tried<()>,
    ) -> Tried<()> {
        let (before, after) = (&now.place.name, &lies.place.name);
        let rename = |round: &mut Self| {
            let done = round.lower.rename((from, before), (to, after));
            done.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Into a directory that is still below it.
                Some(Errno::INVAL) => Trouble::NotReady,
                _ => error.into(),
            })
        };
        let laid = self.lay(inode, lies, rename, saved);
        self.forget_folder(inode);
        laid?;
        if let Some(places) = self.memory.links.get_mut(&inode) {
            places.remove(&now.place);
            places.insert(lies.place.clone());
        }
        Ok(())
    }

    /// Brings what lies elsewhere to a place at which nothing of ours is.
    fn bring(&mut self, place: &Place, standing: &Standing, now: &Lies) -> Tried<()> {
        let inode = standing.inode;
        let to = &self.folder_to_change(place.parent)?;
        let from = self.folder_to_change(now.place.parent)?;
        let was_named = self.lies_at(&now.place) == inode;
        let goes = now.place.is_own() || was_named;
        if now.place.is_conflict_of(place) && self.lower.node(to, &place.name)?.is_some() {
            return self.tell_saved(place, inode);
        }
        let aim = self.free_name(place, to, inode)?;
        let is_folder = standing.attributes.is_some_and(|attributes| attributes.is_directory());
        let lies = Lies { place: aim, ..now.clone() };
        if goes || is_folder {
            return self.rename(inode, (now, &from), (&lies, to), |round| {
                if was_named {
                    round.saved(&now.place, inode, Inode::NONE)?;
                }
                round.tell_saved(place, inode)
            });
        }
        let names = ((&from, now.place.name.as_os_str()), (to, lies.place.name.as_os_str()));
        if self.lower.is_far() {
            // It says why not. Told before, it would be taken for a move that was broken off.
            return Ok(self.lower.link(names.0, names.1)?);
        }
        let link = |round: &mut Self| Ok(round.lower.link(names.0, names.1)?);
        let places = self.memory.links.entry(inode).or_default();
        places.extend([now.place.clone(), lies.place.clone()]);
        self.lay(inode, &lies, link, |round| round.tell_saved(place, inode))
    }

    /// The name for something new at a place: its own, or another beside what others have put there.
    pub(crate) fn free_name(
        &mut self,
        place: &Place,
        folder: &Folder,
        inode: Inode,
    ) -> Tried<Place> {
        if self.lower.node(folder, &place.name)?.is_none() {
            return Ok(place.clone());
        }
        for attempt in 0..CONFLICTS_MAX {
            let other = place.conflict(inode, attempt);
            if self.lower.node(folder, &other.name)?.is_none() {
                let name = other.name.display();
                self.conflict(place, format!("is another's there: ours is {name}"));
                return Ok(other);
            }
        }
        let what = "others have files at its name and at all names beside it: remove those with";
        Err(Trouble::Below(std::io::Error::other(format!(
            "{what} .forebay-conflict- in their names"
        ))))
    }

    /// What is known to be at a place may be replaced.
    pub(crate) fn is_known(&mut self, place: &Place, known: &Lies) -> Tried<bool> {
        let Some(folder) = self.folder(place.parent)? else { return Ok(false) };
        let node = self.lower.node(&folder, &place.name)?;
        Ok(node.is_some_and(|node| is_version(&node, &known.version)))
    }
}

pub(crate) fn is_not_empty(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOTEMPTY | Errno::EXIST))
}
