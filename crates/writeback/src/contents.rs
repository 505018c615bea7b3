//! Contents: each file is written whole under a temporary name, by several threads, a large one in parts;
//! many wait together for the device; then each comes to its name. In a bucket several come to their
//! names at once, where there is what is known to be there.

use crate::drafts::{self, Kept};
use crate::round::{How, Round, is_version};
use crate::sides::{Above, Draft, Folder, Lower, New, Over, PartAsked, Sink};
use crate::state::{Lies, Place, Standing, Tried, Trouble};
use below::{Dress, Lost, each};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::below::{Stamp, Version};
use wire::{Attributes, Inode};

/// Files that wait for the device together.
const BATCH: usize = 256;
/// Bytes of files that wait for the device together; a larger one waits alone.
const BATCH_BYTES: u64 = 256 << 20;
/// The same where they are in memory till then.
const BATCH_BYTES_FAR: u64 = 64 << 20;

/// The same while somebody waits for room, which is there when they are saved.
const BATCH_BYTES_HURRIED: u64 = 32 << 20;

/// So long such a round goes on though somebody waits: it has looked at all that is unsaved.
pub(crate) const HURRIED_TIME: Duration = Duration::from_secs(1);

/// Where contents come to.
#[derive(Clone, Debug)]
pub(crate) enum Aim {
    /// To a name under which they do not lie.
    Name(Place),
    /// To where an older version of them lies.
    There(Place),
}

impl Aim {
    fn place(&self) -> &Place {
        match self {
            Aim::Name(place) | Aim::There(place) => place,
        }
    }
}

/// Something to be written.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) aim: Aim,
    /// The directory of that place.
    pub(crate) folder: Folder,
    pub(crate) standing: Standing,
    /// What it is above.
    pub(crate) attributes: Attributes,
    /// What of it was saved while it was written to.
    pub(crate) kept: Option<Kept>,
}

/// It is begun.
struct Begun {
    draft: Draft,
    dress: Dress,
    /// What is to be copied, by several threads.
    parts: Vec<Range<u64>>,
}

/// It is written, and not yet under its name.
struct Ready {
    draft: Draft,
    version: Version,
    dress: Dress,
    is_bare: bool,
}

/// Writes all; counts what came of each.
pub(crate) fn write(round: &mut Round<'_>, jobs: Vec<Job>) {
    let lower = round.lower;
    let jobs = round.found_again(jobs);
    let is_hurried = round.manner.how == How::Hurried;
    let batch_bytes = match is_hurried {
        true => BATCH_BYTES_HURRIED,
        false if lower.is_far() => BATCH_BYTES_FAR,
        false => BATCH_BYTES,
    };
    let bytes = jobs.iter().map(bytes_of).sum();
    round.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    let (mut jobs, begun) = (jobs.into_iter().peekable(), Instant::now());
    while jobs.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0_u64);
        while let Some(job) = jobs.next_if(|job| {
            batch.is_empty() || bytes.saturating_add(job.attributes.size) <= batch_bytes
        }) {
            bytes += job.attributes.size;
            batch.push(job);
            if batch.len() >= BATCH {
                break;
            }
        }
        write_batch(round, batch);
        let is_urgent = round.counts.is_urgent.load(Ordering::Relaxed) && !round.scope.is_only;
        if is_urgent && (!is_hurried || begun.elapsed() >= HURRIED_TIME) {
            // They are still unsaved, and found by the next.
            for job in jobs {
                round.counts.bytes.fetch_sub(bytes_of(&job), Ordering::Relaxed);
                round.report.open += 1;
                round.report.fates.leave(job.standing.inode);
            }
            return;
        }
    }
}

/// What is to be copied of something, at most.
fn bytes_of(job: &Job) -> u64 {
    if job.attributes.is_regular() { job.attributes.size } else { 0 }
}

fn write_batch(round: &mut Round<'_>, batch: Vec<Job>) {
    let (above, lower, counts) = (round.above, round.lower, round.counts);
    let threads = round.manner.threads;
    let memory = &*round.memory;
    let drafts = each(threads, &batch, |job| {
        draft(above, lower, job, memory.contested.contains(job.aim.place()))
    });
    let with_draft = batch.iter().zip(&drafts).enumerate();
    let parts: Vec<_> = with_draft
        .filter_map(|(number, (job, draft))| Some((number, job, draft.as_ref().ok()?)))
        .flat_map(|(number, job, begun)| {
            let size = |part: &Range<u64>| part.end - part.start;
            let less = bytes_of(job).saturating_sub(begun.parts.iter().map(size).sum());
            counts.bytes.fetch_sub(less, Ordering::Relaxed);
            let parts = begun.parts.iter();
            parts.map(move |part| (number, job, &begun.draft, part.clone()))
        })
        .collect();
    let copied = each(threads, &parts, |(number, job, draft, part)| {
        let mut fill = |to: &mut Sink<'_>| {
            let mut to = |bytes: &[u8], at| {
                counts.brake.take(bytes.len() as u64, &|| counts.moves());
                counts.moves();
                to(bytes, at)
            };
            match job.kept {
                Some(_) => above.copy_all(&job.attributes, part.clone(), &mut to).map(drop),
                None => above.copy(&job.attributes, part.clone(), &mut to),
            }
        };
        let copied = lower.write(draft, part, &mut fill);
        counts.bytes.fetch_sub(part.end - part.start, Ordering::Relaxed);
        (*number, copied)
    });
    drop(parts);
    let mut drafts = drafts;
    for (number, copied) in copied {
        if let (Some(draft), Err(trouble)) = (drafts.get_mut(number), copied) {
            *draft = Err(trouble);
        }
    }
    let all: Vec<_> = batch.iter().zip(drafts).map(|both| Mutex::new(Some(both))).collect();
    let ready = each(threads, &all, |both| {
        let both = both.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (job, draft) = both.ok_or(Trouble::Again)?;
        ready(lower, job, draft?)
    });
    drop(all);
    let synced = sync(lower, &batch);
    let both = batch.into_iter().zip(ready);
    let left: Vec<_> =
        if lower.is_far() { round.land_known(both.collect()) } else { both.collect() };
    for (job, ready) in left {
        let (inode, place) = (job.standing.inode, job.aim.place().clone());
        let bytes = job.attributes.size;
        let done = match (ready, &synced) {
            (Ok(ready), Ok(())) => round.land(job, ready),
            (Ok(_), Err(error)) => Err(Trouble::Below(std::io::Error::from_raw_os_error(*error))),
            (Err(trouble), _) => Err(trouble),
        };
        round.note_contents((inode, &place), done, bytes);
    }
}

/// One wait for each file system that was written to.
fn sync(lower: &dyn Lower, batch: &[Job]) -> Result<(), i32> {
    let mut devices = Vec::new();
    for job in batch {
        let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let device = job.folder.device().map_err(failed)?;
        if !devices.contains(&device) {
            lower.sync(&job.folder).map_err(failed)?;
            devices.push(device);
        }
    }
    Ok(())
}

/// The parts of a file, which several threads may copy.
fn parts(lower: &dyn Lower, job: &Job) -> Vec<Range<u64>> {
    let size = bytes_of(job);
    let length = lower.part_bytes(size);
    let starts = (0..size.div_ceil(length)).map(move |number| number * length);
    starts.map(move |start| start..size.min(start + length)).collect()
}

/// Goes on with what was saved of a file while it was written to.
fn go_on(above: &dyn Above, lower: &dyn Lower, job: &Job, kept: &Kept) -> Tried<Begun> {
    let (attributes, drafts) = (&job.attributes, lower.drafts().ok_or(Trouble::NotReady)?);
    if attributes.size < kept.lies.counts {
        // How long it is is not told yet: who reads at its end has it told.
        let end = kept.lies.counts - 1..kept.lies.counts;
        above.copy_all(attributes, end, &mut |_, _| Ok(()))?;
        return Err(Trouble::Again);
    }
    let dress = above.dress(attributes)?;
    let draft = kept.open(drafts)?;
    let dirty = above.begin_saving(attributes, &PartAsked { number: 0, offset: 0, most: 0 })?;
    let parts = drafts::parts(&dirty, attributes.size, lower.part_bytes(attributes.size));
    Ok(Begun { draft: Draft::Kept(draft, kept.lies.counts), dress, parts })
}

/// Begins something; a file has its size.
fn draft(above: &dyn Above, lower: &dyn Lower, job: &Job, is_contested: bool) -> Tried<Begun> {
    if let Some(kept) = &job.kept {
        return go_on(above, lower, job, kept);
    }
    let attributes = &job.attributes;
    let new = if attributes.is_regular() {
        New::File(attributes.mode & 0o7777, attributes.size)
    } else if attributes.is_directory() {
        New::Folder
    } else if attributes.is_symlink() {
        New::Link(above.target(attributes)?)
    } else {
        New::Special(attributes.mode, attributes.device.into())
    };
    let dress = above.dress(attributes)?;
    let place = job.aim.place();
    // It may get another name.
    let aside = is_contested.then(|| place.aside(job.standing.inode));
    let name = &aside.as_ref().unwrap_or(place).name;
    let draft = lower.draft((&job.folder, name), &new, &dress)?;
    Ok(Begun { draft, dress, parts: parts(lower, job) })
}

/// Gives it all that it has beside its contents, which are there.
fn ready(lower: &dyn Lower, job: &Job, begun: Begun) -> Tried<Ready> {
    let Begun { draft, dress, .. } = begun;
    if let (Draft::Kept(draft, _), Some(drafts)) = (&draft, lower.drafts()) {
        drafts.resize(draft, job.attributes.size)?;
    }
    let Lost(is_bare) = lower.dress(&draft, &dress)?;
    let version = draft.version()?;
    Ok(Ready { draft, version, dress, is_bare })
}

impl Round<'_> {
    /// As `write`, of one that has no contents, at once.
    pub(crate) fn write_now(&mut self, job: Job) -> Tried<()> {
        let draft = draft(self.above, self.lower, &job, false)?;
        let ready = ready(self.lower, &job, draft)?;
        self.land(job, ready)
    }

    /// Where they come to: in a bucket a directory is a path, and may have been moved since they were
    /// found.
    fn found_again(&mut self, jobs: Vec<Job>) -> Vec<Job> {
        if !self.lower.is_far() {
            return jobs;
        }
        let mut left = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            let place = job.aim.place().clone();
            match self.folder(place.parent).and_then(|found| found.ok_or(Trouble::NotReady)) {
                Ok(folder) => {
                    job.folder = folder;
                    left.push(job);
                }
                Err(trouble) => {
                    let of = (job.standing.inode, &place);
                    self.note_contents(of, Err(trouble), job.attributes.size);
                }
            }
        }
        left
    }

    fn note_contents(&mut self, of: (Inode, &Place), done: Tried<()>, bytes: u64) {
        if done.is_ok() {
            self.report.bytes += bytes;
        }
        self.note(of, done, bytes);
    }

    /// Lands several at once: what is new, and what is to replace what is known to be there. What else
    /// there is is returned. If something else is there the next round sees to it.
    fn land_known(&mut self, all: Vec<(Job, Tried<Ready>)>) -> Vec<(Job, Tried<Ready>)> {
        let (mut left, mut going) = (Vec::new(), Vec::new());
        for (job, ready) in all {
            match (self.known_there(&job), ready) {
                (Some(over), Ok(ready)) => match self.say_before(&job, &ready) {
                    Ok(lies) => going.push((job, lies, ready.is_bare, over, ready.draft)),
                    Err(trouble) => {
                        let of = (job.standing.inode, job.aim.place());
                        self.note_contents(of, Err(trouble), job.attributes.size);
                    }
                },
                (_, ready) => left.push((job, ready)),
            }
        }
        let (told, going): (Vec<_>, Vec<_>) = going
            .into_iter()
            .map(|(job, lies, is_bare, over, draft)| {
                let going =
                    (job.folder.clone(), lies.place.name.clone(), over, Mutex::new(Some(draft)));
                ((job, lies, is_bare), going)
            })
            .unzip();
        let lower = self.lower;
        let landed = each(self.manner.threads, &going, |(folder, name, over, draft)| {
            let draft = draft.lock().unwrap_or_else(PoisonError::into_inner).take();
            lower.land(draft.ok_or(below::Trouble::Changed)?, (folder, name), *over)
        });
        for ((job, lies, is_bare), landed) in told.into_iter().zip(landed) {
            let done = self.say_after(&job, &lies, landed);
            if done.is_ok() {
                self.report.lost += u64::from(is_bare);
            }
            let of = (job.standing.inode, job.aim.place());
            self.note_contents(of, done, job.attributes.size);
        }
        left
    }

    fn known_there(&self, job: &Job) -> Option<Over> {
        let place = job.aim.place();
        if self.memory.contested.contains(place) {
            return None;
        }
        match &job.aim {
            Aim::Name(_) => self.lies_at(place).is_none().then_some(Over::New),
            Aim::There(_) => job.standing.now.as_ref().map(|now| Over::Known(now.version)),
        }
    }

    fn say_before(&mut self, job: &Job, ready: &Ready) -> Tried<Lies> {
        let lies = lies_of(job.aim.place().clone(), ready.version, &job.attributes);
        self.above.saving(job.standing.inode, &lies)?;
        self.set_unclear(job.standing.inode, &lies.place);
        Ok(lies)
    }

    /// As `lay` does.
    fn say_after(
        &mut self,
        job: &Job,
        lies: &Lies,
        landed: Result<(), below::Trouble>,
    ) -> Tried<()> {
        let inode = job.standing.inode;
        match landed.map_err(Trouble::from) {
            Err(Trouble::Again) => {
                self.memory.contested.insert(lies.place.clone());
                self.above.not_written(inode)?;
                self.set_clear(inode, &lies.place);
                return Err(Trouble::Again);
            }
            landed => landed?,
        }
        if let Aim::Name(place) = &job.aim {
            self.tell_saved(place, inode)?;
        }
        self.above.wrote(inode, lies)?;
        self.set_clear(inode, &lies.place);
        self.under_way.remove(&inode);
        Ok(())
    }

    fn land(&mut self, job: Job, ready: Ready) -> Tried<()> {
        let is_bare = ready.is_bare;
        let place = job.aim.place().clone();
        self.memory.contested.remove(&place);
        match job.aim {
            Aim::Name(_) => self.land_new(&place, &job, ready)?,
            Aim::There(_) => self.land_again(&place, &job, ready)?,
        }
        self.under_way.remove(&job.standing.inode);
        self.report.lost += u64::from(is_bare);
        Ok(())
    }

    fn land_new(&mut self, place: &Place, job: &Job, ready: Ready) -> Tried<()> {
        let is_plain = !job.attributes.is_directory();
        let known = if is_plain { self.may_replace(place)? } else { None };
        let (to, over) = match known {
            Some(version) => (place.clone(), Over::Known(version)),
            None => {
                self.make_room(place)?;
                (self.free_name(place, &job.folder, job.standing.inode)?, Over::New)
            }
        };
        let inode = job.standing.inode;
        self.land_at(to, job, ready, over, |round| round.tell_saved(place, inode))
    }

    fn land_again(&mut self, place: &Place, job: &Job, ready: Ready) -> Tried<()> {
        let inode = job.standing.inode;
        let node = self.lower.node(&job.folder, &place.name)?;
        let now = job.standing.now.as_ref().ok_or(Trouble::Again)?;
        let Some(node) = node else {
            return self.land_at(place.clone(), job, ready, Over::New, |_| Ok(()));
        };
        let is_torn = self.torn.contains(&inode) && node.version.number == now.version.number;
        if is_torn || is_version(&node, &now.version) {
            // So that all of its names have them.
            // What was one file below when it was seen is several above, if it was not linked since.
            let is_shared = job.attributes.links > 1
                || self.has_old_names(inode)
                || place.is_own()
                || !inode.is_from_below();
            let has_names = node.links > 1 && is_shared;
            return match has_names || is_torn {
                true => self.rewrite(place, job, ready, node.version.number),
                false => {
                    let over = Over::Known(node.version);
                    self.land_at(place.clone(), job, ready, over, |_| Ok(()))
                }
            };
        }
        let to = self.free_name(place, &job.folder, inode)?;
        self.land_at(to, job, ready, Over::New, |_| Ok(()))
    }

    fn land_at(
        &mut self,
        to: Place,
        job: &Job,
        ready: Ready,
        over: Over,
        saved: impl FnOnce(&mut Self) -> Tried<()>,
    ) -> Tried<()> {
        let name = to.name.clone();
        let lies = lies_of(to, ready.version, &job.attributes);
        let at = (&job.folder, name.as_os_str());
        let land = |round: &mut Self| Ok(round.lower.land(ready.draft, at, over)?);
        let laid = self.lay(job.standing.inode, &lies, land, saved);
        if over == Over::New && matches!(laid, Err(Trouble::Again)) {
            // So that the next round begins it under a name from which it can come to any other.
            self.memory.contested.insert(job.aim.place().clone());
        }
        laid
    }

    /// Writes in place. Until that is done the file lies in its draft: what was dropped of it would be
    /// nowhere else.
    fn rewrite(&mut self, place: &Place, job: &Job, ready: Ready, number: u64) -> Tried<()> {
        let inode = job.standing.inode;
        let Ready { draft, version, dress, .. } = ready;
        let mut standing = job.standing.clone();
        let draft = match draft {
            Draft::File(draft) => self.keep(&job.folder, draft, &mut standing)?,
            kept => kept,
        };
        let version = Version { number, ..version };
        let lies = lies_of(place.clone(), version, &job.attributes);
        self.above.saving(inode, &lies)?;
        self.set_unclear(inode, place);
        self.lower.rewrite(&job.folder, &place.name, &draft, &dress)?;
        self.above.wrote(inode, &lies)?;
        self.torn.remove(&inode);
        self.set_clear(inode, place);
        self.end_draft(&standing)
    }
}

fn lies_of(place: Place, version: Version, attributes: &Attributes) -> Lies {
    let counts = if attributes.is_regular() { version.size } else { 0 };
    Lies { place, version, counts, stamp: Stamp::of(attributes) }
}
