//! Files that somebody writes to and for which the instance has no room: bytes of them are saved in a
//! draft, which is kept under a name of the writer's own and becomes the file when that is complete.
//!
//! A draft is begun with what counts of what lies below. What is here and other than there is copied to
//! it, a little at a time; then its shard is told how much of it counts, and the targets that they may
//! drop what did not change since (`data::parts`). So it is known at any time what of a file is only
//! there, and nothing else has to be remembered. A file that is complete is saved from its draft:
//! what is newer here is copied, and it gets the file's name as any draft does (`contents`).
//!
//! A file that has several names below is changed in place when it is complete. That may break off, and
//! what was dropped of the file is read there: its draft is kept till it is done.
//!
//! *Invariant:* what counts of a draft are bytes of the file, but for what is here and not clean; no byte
//! that counts goes from it.
//!
//! Not here: a store whose objects can not be read before they are complete (`Lower::drafts`).

use crate::contents::HURRIED_TIME;
use crate::objects::fresh;
use crate::round::{How, Round};
use crate::sides::{Dirty, Draft, Drafts, Folder, PartAsked};
use crate::state::{Lies, Place, Standing, Tried, Trouble};
use below::each;
use std::io;
use std::ops::Range;
use std::time::Instant;
use wire::below::{Stamp, Version};
use wire::{Attributes, Inode};

/// Bytes of a file that are saved at a time, of each target: there is room when that is done.
const PART_BYTES: u64 = if cfg!(test) { 24 } else { 32 << 20 };

/// A file that somebody writes to.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    inode: Inode,
    /// A place that it has or is to have.
    place: Place,
    /// As far as it is told.
    size: u64,
}

impl Written {
    pub(crate) fn of(standing: &Standing, place: &Place) -> Option<Written> {
        let attributes = standing.attributes.filter(Attributes::is_regular)?;
        let (inode, place) = (standing.inode, place.clone());
        Some(Written { inode, place, size: attributes.size })
    }
}

/// What is to go on with a draft that was kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) folder: Folder,
    pub(crate) lies: Lies,
}

impl Kept {
    /// One that was begun, of which so much counts.
    fn begun(folder: &Folder, place: Place, draft: &below::Draft, counts: u64) -> Tried<Kept> {
        let number = below::Node::of(draft.file())?.identity.1;
        let (version, stamp) = (Version::of_draft(number), Stamp::default());
        Ok(Kept { folder: folder.clone(), lies: Lies { place, version, counts, stamp } })
    }

    /// Opens it; what does not count any more goes.
    pub(crate) fn open(&self, drafts: &dyn Drafts) -> Tried<below::Draft> {
        let Lies { place, version, counts, .. } = &self.lies;
        let Some(draft) = drafts.open(&self.folder, &place.name, version.number)? else {
            let name = place.name.display();
            let why = format!("what was saved of it, {name}, was removed there: it is lost");
            return Err(Trouble::Below(io::Error::other(why)));
        };
        drafts.resize(&draft, *counts)?;
        Ok(draft)
    }
}

impl Round<'_> {
    /// Notes a file that can not be saved as somebody writes to it.
    pub(crate) fn note_written(&mut self, standing: &Standing, place: &Place) {
        let may = self.manner.how == How::Hurried && self.lower.drafts().is_some();
        if may && standing.is_written {
            self.written.extend(Written::of(standing, place));
        }
    }

    /// A file is not to be saved now.
    pub(crate) fn note_waiting(&mut self, why: &Trouble, standing: &Standing, place: &Place) {
        if matches!(why, Trouble::Waits) {
            self.note_written(standing, place);
        }
    }

    /// The draft of an inode, if it has one.
    pub(crate) fn kept(&mut self, standing: &Standing) -> Tried<Option<Kept>> {
        let Some(lies) = standing.draft.clone() else { return Ok(None) };
        // It is to leave it.
        let folder = self.folder_to_change(lies.place.parent)?;
        Ok(Some(Kept { folder, lies }))
    }

    /// Keeps the draft of a file that is complete in it, and changed in place: that may break off.
    pub(crate) fn keep(
        &mut self,
        folder: &Folder,
        mut draft: below::Draft,
        standing: &mut Standing,
    ) -> Tried<Draft> {
        let now = standing.now.as_ref().ok_or(Trouble::Again)?;
        let drafts = self.lower.drafts().ok_or(Trouble::NotReady)?;
        // What is behind that was never below, and is here.
        let counts = now.counts.min(below::Node::of(draft.file())?.size);
        let (parent, inode) = (now.place.parent, standing.inode);
        let name = drafts.keep(&mut draft, inode)?;
        let kept = Kept::begun(folder, Place { parent, name }, &draft, counts)?;
        self.tell_begun(drafts, &draft, inode, &kept)?;
        standing.draft = Some(kept.lies);
        Ok(Draft::Kept(draft, counts))
    }

    /// Tells of a draft that is kept, once it can be found after a crash.
    fn tell_begun(
        &self,
        drafts: &dyn Drafts,
        draft: &below::Draft,
        inode: Inode,
        Kept { folder, lies }: &Kept,
    ) -> Tried<()> {
        let synced = drafts.sync(draft, Some(folder)).map_err(Trouble::from);
        let told = synced.and_then(|()| Ok(self.above.drafted(inode, true, lies)?));
        if told.is_err() {
            // Nobody knows of it.
            let _ = self.lower.remove(folder, &lies.place.name, false);
        }
        told
    }

    /// A file needs its draft no longer, as what it is lies elsewhere: who reads it does so there first.
    pub(crate) fn end_draft(&mut self, standing: &Standing) -> Tried<()> {
        if standing.draft.is_some() {
            self.above.undrafted(standing.inode)?;
        }
        self.remove_draft(standing)
    }

    /// Nobody reads a draft any more.
    pub(crate) fn remove_draft(&mut self, standing: &Standing) -> Tried<()> {
        let Some(lies) = &standing.draft else { return Ok(()) };
        if self.folder(lies.place.parent)?.is_none() {
            return Ok(());
        }
        // Who changes names there first looks for drafts that nobody reads.
        let folder = self.folder_to_change(lies.place.parent)?;
        let node = self.lower.node(&folder, &lies.place.name)?;
        if node.is_some_and(|node| node.version.number == lies.version.number) {
            self.lower.remove(&folder, &lies.place.name, false)?;
        }
        Ok(())
    }

    /// What is gone above is so below. That is told last, as then nobody looks for what is left of it.
    pub(crate) fn tell_gone(&mut self, standing: &Standing) -> Tried<()> {
        self.remove_draft(standing)?;
        self.memory.links.remove(&standing.inode);
        Ok(self.above.gone(standing.inode)?)
    }

    /// Removes what a killed writer kept in a directory and told nobody of. True if it is or was ours.
    pub(crate) fn sweep_kept(&mut self, place: &Place) -> Tried<bool> {
        let Some(inode) = below::inode_of_kept(&place.name).map(Inode) else { return Ok(false) };
        let Some(drafts) = self.lower.drafts() else { return Ok(false) };
        let standing = self.above.standing(inode)?;
        let draft = standing.as_ref().and_then(|standing| standing.draft.as_ref());
        if draft.is_some_and(|lies| lies.place == *place) {
            return Ok(true);
        }
        let Some(folder) = self.folder(place.parent)? else { return Ok(false) };
        let node = self.lower.node(&folder, &place.name)?;
        if !node.is_some_and(|node| drafts.is_left_over(&place.name, node.version.modified)) {
            return Ok(false);
        }
        self.lower.remove(&folder, &place.name, false)?;
        Ok(true)
    }

    /// Saves bytes of files that are written to, where nothing else made room.
    pub(crate) fn save_written(&mut self) {
        let (mut all, begun) = (std::mem::take(&mut self.written), Instant::now());
        let Some(drafts) = self.lower.drafts().filter(|_| self.report.bytes == 0) else { return };
        all.sort_by_key(|one| (std::cmp::Reverse(one.size), one.inode));
        all.dedup_by_key(|one| one.inode);
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for one in &all {
                match self.save_part(drafts, one) {
                    Ok(0) | Err(Trouble::Again | Trouble::NotReady) => {}
                    Ok(bytes) => {
                        self.report.parts += bytes;
                        goes_on = begun.elapsed() < HURRIED_TIME;
                        break;
                    }
                    Err(trouble) => {
                        let path = self.path(&one.place);
                        self.report.fail(path, trouble.to_string());
                    }
                }
            }
        }
    }

    /// Saves some of a file. How much.
    fn save_part(&mut self, drafts: &dyn Drafts, of: &Written) -> Tried<u64> {
        let standing = self.standing(of.inode)?.ok_or(Trouble::Again)?;
        let attributes = standing.attributes.ok_or(Trouble::Again)?;
        let (number, dirty) = self.begin_part(&attributes)?;
        if dirty.is_empty() {
            return Ok(0);
        }
        let (kept, draft, is_new) = match self.kept(&standing)? {
            Some(kept) => {
                let draft = kept.open(drafts)?;
                (kept, draft, false)
            }
            None => {
                let (kept, draft) = self.begin_draft(drafts, (&standing, &attributes), of)?;
                (kept, draft, true)
            }
        };
        if is_new {
            self.tell_begun(drafts, &draft, of.inode, &kept)?;
        }
        let counts = kept.lies.counts;
        let ends = each(self.manner.threads, &dirty, |one| {
            let mut put = |bytes: &[u8], at| {
                self.counts.brake.take(bytes.len() as u64, &|| self.counts.moves());
                self.counts.moves();
                drafts.put(&draft, bytes, at, counts)
            };
            self.above.copy_all(&attributes, one.range.clone(), &mut put)
        });
        let (mut end, mut bytes, mut whole) = (counts, 0, u64::MAX);
        for (one, reached) in dirty.iter().zip(ends) {
            let reached = reached?;
            if reached > one.range.start {
                // Otherwise the file was cut before it, and does not end there.
                end = end.max(reached);
            }
            if reached < one.range.end {
                // It stays, so it makes no room.
                whole = whole.min(reached);
            } else {
                bytes += one.range.end - one.range.start;
            }
        }
        drafts.resize(&draft, end)?;
        drafts.sync(&draft, None)?;
        let lies = Lies { counts: end, ..kept.lies };
        self.above.drafted(of.inode, false, &lies)?;
        self.above.end_saving(&attributes, (number, whole), &dirty)?;
        let last = dirty.last().map_or(0, |one| one.range.end);
        self.memory.hands.insert(of.inode, last);
        Ok(bytes)
    }

    /// What of a file is to be saved next: behind what was saved last, and then from the start.
    fn begin_part(&mut self, attributes: &Attributes) -> Tried<(u64, Vec<Dirty>)> {
        let hand = self.memory.hands.remove(&attributes.inode).unwrap_or(0);
        for offset in if hand == 0 { vec![0] } else { vec![hand, 0] } {
            let number = fresh().max(1);
            let part = PartAsked { number, offset, most: PART_BYTES };
            let dirty = self.above.begin_saving(attributes, &part)?;
            if !dirty.is_empty() {
                return Ok((number, dirty));
            }
        }
        Ok((0, Vec::new()))
    }

    /// Where a draft of a file in a directory is begun: there, or in the first above it that is not gone.
    /// It would keep a directory below that is to go, as long as the file is open.
    fn home(&mut self, directory: Inode) -> Tried<Inode> {
        // So its way is known, and ends.
        self.folder(directory)?.ok_or(Trouble::NotReady)?;
        let mut at = directory;
        while at != Inode::ROOT {
            let standing = self.standing(at)?.ok_or(Trouble::NotReady)?;
            if !standing.is_gone() {
                break;
            }
            at = standing.now.ok_or(Trouble::NotReady)?.place.parent;
        }
        Ok(at)
    }

    fn begin_draft(
        &mut self,
        drafts: &dyn Drafts,
        (standing, attributes): (&Standing, &Attributes),
        of: &Written,
    ) -> Tried<(Kept, below::Draft)> {
        if self.torn.contains(&of.inode) || self.is_unclear(of.inode) {
            return Err(Trouble::NotReady);
        }
        let parent = self.home(of.place.parent)?;
        let folder = self.folder_to_change(parent)?;
        let origin = match standing.now.as_ref().filter(|now| now.counts > 0) {
            Some(now) => Some((self.folder(now.place.parent)?.ok_or(Trouble::NotReady)?, now)),
            None => None,
        };
        let origin = origin.as_ref().map(|(folder, now)| (folder, *now));
        let (draft, name, counts) = drafts.begin(&folder, attributes, origin)?;
        let kept = Kept::begun(&folder, Place { parent, name }, &draft, counts)?;
        Ok((kept, draft))
    }
}

/// What of a file that is complete is other than in its draft, in parts of so many bytes.
pub(crate) fn parts(dirty: &[Dirty], size: u64, most: u64) -> Vec<Range<u64>> {
    let all = dirty.iter().map(|one| one.range.start..one.range.end.min(size));
    all.filter(|range| !range.is_empty())
        .flat_map(|range| {
            let starts = (0..(range.end - range.start).div_ceil(most)).map(move |at| at * most);
            starts.map(move |at| range.start + at..range.end.min(range.start + at + most))
        })
        .collect()
}
