//! What is not saved in the backing directory: noted as it comes to be, listed for the writer, and what
//! he tells of what lies there. `wire::below` says what it all means.
//!
//! What he tells is a fact of what lies below and is noted as that, whatever became of the names here
//! meanwhile. So nothing that is told twice or late does harm: it names what lay there before.

use core::ops::Bound;

use wire::attributes::write_back;
use wire::below::{Lies, News, Stamp, Standing, UnsavedName};
use wire::codec::Field;
use wire::limits::SLOT_BYTES;
use wire::{Attributes, Errno, Inode, Reply, Request, Writer};

use crate::effect::Opens;
use crate::live::{Ask, Step, Stop, Wait};
use crate::record::Record;
use crate::service::Service;
use crate::standing::{Below, Lying};

/// How long the writer waits for news at most, and who waits for him before he asks again.
const NEWS_NANOS: i64 = 2_000_000_000;
/// Bytes of a list: it fits a slot with what stands before it.
const LIST_BYTES: usize = SLOT_BYTES - 1024;

const _: () = assert!(Standing::BYTES_MAX <= LIST_BYTES && UnsavedName::BYTES_MAX <= LIST_BYTES);

impl Service {
    /// A change of the tables where there is a backing directory: what becomes unsaved is noted with it.
    pub(crate) fn put_over_backing(&mut self, record: &Record<'_>) {
        match *record {
            Record::PutEntry { parent, name, inode, .. } => self.note_name(parent, name, inode),
            Record::DeleteEntry { parent, name } => self.note_name(parent, name, Inode::NONE),
            _ => {}
        }
        self.put_as_seen(record);
        let inode = match *record {
            Record::PutInode { attributes, .. }
            | Record::PutAttributes { attributes }
            | Record::PutContents { attributes, .. } => attributes.inode,
            Record::DeleteInode { inode } => inode,
            Record::PutTally { directory, .. } | Record::PutRemoteTally { directory, .. } => {
                directory
            }
            _ => return,
        };
        if self.state.changed.contains(&inode) {
            self.tell_that_there_is_news();
        }
    }

    /// A name is about to stand for another inode, or none: is that what lies below?
    fn note_name(&mut self, parent: Inode, name: &[u8], entry: Inode) {
        let before = self.state.entries.get(parent, name).map_or(Inode::NONE, |found| found.0);
        if before == entry {
            return;
        }
        let lies = self.state.unsaved.get(parent, name).map(|found| found.0);
        if lies == Some(entry) {
            self.put_as_seen(&Record::DeleteUnsaved { parent, name });
            return;
        }
        if lies.is_none() {
            self.put_as_seen(&Record::PutUnsaved { parent, name, lies: before });
        }
        self.tell_that_there_is_news();
    }

    fn tell_that_there_is_news(&mut self) {
        self.live.news = self.live.news.wrapping_add(1);
        if self.live.is_news_awaited {
            self.live.is_news_awaited = false;
            self.live.wake(|wait| *wait == Wait::News);
            // A step of posts runs nobody.
            self.live.wake_at(self.live.now);
        }
    }

    /// What the writer of a backing directory asks and tells.
    pub(crate) fn run_for_writer(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let is_there = self.config.backing;
        let done = match *request {
            Request::Standing { inode } if is_there => return self.tell_standing(ask, inode),
            Request::UnsavedNames { parent, name } if is_there => {
                return self.list_names(ask, parent, name);
            }
            Request::UnsavedInodes { after } if is_there => return self.list_inodes(ask, after),
            Request::AwaitUnsaved { seen } if is_there => return self.await_news(ask, seen),
            Request::Saving { inode, lies } if is_there => self.saving(inode, &lies),
            Request::Wrote { inode, lies } if is_there => self.wrote(inode, &lies),
            Request::NotWritten { inode } if is_there => self.not_written(inode),
            Request::Gone { inode } if is_there => self.gone_below(inode),
            Request::Drafted { inode, is_new, lies } if is_there => {
                self.drafted(inode, is_new != 0, &lies)
            }
            Request::Undrafted { inode } if is_there => self.undrafted(inode),
            Request::Saved { parent, name, from, to } if is_there => {
                self.saved(parent, name, (from, to))
            }
            Request::AwaitWanted { seen, moved } if is_there => {
                return self.await_wanted(ask, seen, moved);
            }
            Request::Wanted {} if is_there => {
                self.list_wanted(ask);
                return Ok(());
            }
            Request::Settled { inode, number, errno } if is_there => {
                self.tell_settled(inode, number, errno);
                Ok(())
            }
            Request::Standing { .. }
            | Request::UnsavedNames { .. }
            | Request::UnsavedInodes { .. }
            | Request::AwaitUnsaved { .. }
            | Request::Saving { .. }
            | Request::Wrote { .. }
            | Request::NotWritten { .. }
            | Request::Gone { .. }
            | Request::Drafted { .. }
            | Request::Undrafted { .. }
            | Request::Saved { .. }
            | Request::AwaitWanted { .. }
            | Request::Wanted {}
            | Request::Settled { .. } => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EPROTO),
        };
        done?;
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    fn standing(&self, ask: &Ask<'_>, inode: Inode) -> Standing<'_> {
        let attributes = self.state.inodes.get(inode).map(|node| node.attributes);
        let below = self.state.below.get(&inode);
        Standing {
            inode,
            attributes,
            is_written: attributes.is_some_and(|it| self.may_be_written(ask, &it)),
            now: below.and_then(|below| below.now.as_ref()).map(Lying::as_lies),
            next: below.and_then(|below| below.next.as_deref()).map(Lying::as_lies),
            draft: below.and_then(|below| below.draft.as_deref()).map(Lying::as_lies),
        }
    }

    pub(crate) fn may_be_written(&self, ask: &Ask<'_>, attributes: &Attributes) -> bool {
        self.may_be_written_by(ask.hands, attributes)
    }

    fn may_be_written_by(&self, hands: &dyn Opens, attributes: &Attributes) -> bool {
        let inode = attributes.inode;
        attributes.is_regular()
            && (self.live.busy.contains_key(&inode)
                || hands.has_writer(inode)
                || hands.untold(inode).is_some_and(|end| end != 0)
                || self.writers_but(inode, self.config.host).next().is_some())
    }

    /// True if what lies below of a file is what it is here, and nobody may change that unsaid.
    pub(crate) fn is_saved_as_is(&self, ask: &Ask<'_>, inode: Inode) -> bool {
        let Some(node) = self.state.inodes.get(inode) else { return false };
        let is_told =
            |below: &Below| below.now.is_some() && below.next.is_none() && below.draft.is_none();
        node.attributes.is_regular()
            && self.state.below.get(&inode).is_some_and(is_told)
            && !self.state.changed.contains(&inode)
            && !self.may_be_written(ask, &node.attributes)
    }

    /// True if there is a file that can be saved, and room in the instance when it is: one that is
    /// closed, or has or may have a draft.
    pub(crate) fn has_to_save(&self, hands: &dyn Opens) -> bool {
        let is_one = |directory: Inode, inode: Inode| {
            let Some(node) = self.state.inodes.get(inode) else {
                // Another service has it, which knows more; and nobody asks that one what is named here.
                return !inode.is_none() && !self.config.owns(inode.shard());
            };
            let policy = self.state.inodes.get(directory).map(|node| node.attributes.layout);
            let may_be_saved = match self.may_be_written_by(hands, &node.attributes) {
                // How long it is may not be told yet.
                true => self.config.drafts,
                false => node.attributes.size > 0,
            };
            node.attributes.is_regular()
                && policy.is_none_or(|layout| layout.write_back() != write_back::NEVER)
                && may_be_saved
        };
        let mut rows = self.state.unsaved.behind(Inode::NONE, b"");
        let mut changed = self.state.changed.iter();
        rows.any(|(parent, row)| {
            let entry = self.state.entries.get(parent, &row.name);
            entry.is_some_and(|(inode, _)| is_one(parent, inode))
        }) || changed.any(|&inode| {
            let below = self.state.below.get(&inode);
            let lies = below.and_then(|below| below.now.as_ref().or(below.draft.as_deref()));
            lies.is_some_and(|lies| is_one(lies.parent, inode))
        })
    }

    fn tell_standing(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let standing = self.standing(ask, inode);
        let lies = [&standing.now, &standing.next, &standing.draft];
        if standing.attributes.is_none() && lies.iter().all(|lies| lies.is_none()) {
            return Err(Stop::Refused(Errno::ESTALE));
        }
        let bytes = listed(Standing::BYTES_MAX, core::iter::once(standing));
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
        Ok(())
    }

    fn list_names(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Step<()> {
        let bytes = listed(
            UnsavedName::BYTES_MAX,
            self.state.unsaved.behind(parent, name).map(|(parent, row)| {
                let name = &*row.name;
                let (entry, mode) = self.state.entries.get(parent, name).unwrap_or_default();
                UnsavedName { parent, name, entry, mode, lies: row.inode }
            }),
        );
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
        Ok(())
    }

    fn list_inodes(&mut self, ask: &Ask<'_>, after: Inode) -> Step<()> {
        let behind = self.state.changed.range((Bound::Excluded(after), Bound::Unbounded));
        let bytes = listed(Standing::BYTES_MAX, behind.map(|&inode| self.standing(ask, inode)));
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
        Ok(())
    }

    fn await_news(&mut self, ask: &Ask<'_>, seen: u64) -> Step<()> {
        if self.live.news == seen {
            self.live.is_news_awaited = true;
            return Err(Stop::Wait(Wait::News));
        }
        self.tell_news(ask.ticket);
        Ok(())
    }

    /// How long who asks what is saved waits: an answer comes before daemons give each other up.
    pub(crate) fn news_nanos(&self) -> i64 {
        NEWS_NANOS.min(self.config.silence_nanos / 2)
    }

    /// Answers who waited for news, whether there is any or not.
    pub(crate) fn tell_news(&mut self, ticket: u64) {
        let inodes = self.state.changed.len() as u64;
        let news = News { number: self.live.news, names: self.state.unsaved_count, inodes };
        let mut bytes = [0; News::BYTES];
        news.put(&mut Writer::new(&mut bytes));
        self.io.reply(ticket, &Reply::Bytes { bytes: &bytes });
    }

    fn saving(&mut self, inode: Inode, lies: &Lies<'_>) -> Result<(), Errno> {
        let node = self.state.inodes.get(inode);
        let mut below = self.state.below.get(&inode).cloned().unwrap_or_default();
        let mut next = Lying::of(lies);
        match below.now.as_ref().filter(|now| now.version == lies.version) {
            // It is moved as it is.
            Some(now) => (next.counts, next.stamp) = (now.counts, now.stamp),
            None => {
                let attributes = node.map(|node| &node.attributes).ok_or(Errno::ESTALE)?;
                let is_as_it_was = Stamp::of(attributes).has_contents_of(&lies.stamp);
                if attributes.is_regular() && !is_as_it_was {
                    return Err(Errno::EAGAIN);
                }
            }
        }
        if below.next.as_deref() != Some(&next) {
            below.next = Some(Box::new(next));
            self.put_below(inode, &below);
        }
        Ok(())
    }

    fn wrote(&mut self, inode: Inode, lies: &Lies<'_>) -> Result<(), Errno> {
        let Some(below) = self.state.below.get(&inode) else {
            let is_here = self.state.inodes.get(inode).is_some();
            return Err(if is_here { Errno::EAGAIN } else { Errno::ESTALE });
        };
        let is_it = |lying: &&Lying| lying.is_as(lies);
        let found = match below.next.as_deref() {
            Some(next) => Some(next).filter(is_it),
            None => below.now.as_ref().filter(is_it),
        };
        let mut now = found.ok_or(Errno::EAGAIN)?.clone();
        // Of the contents only `Saving` says what they were.
        now.stamp.changed = lies.stamp.changed;
        let number = now.version.number;
        let is_landed = |draft: &Lying| draft.version.number == number;
        let draft = below.draft.clone().filter(|draft| !is_landed(draft));
        let after = Below { now: Some(now), next: None, draft };
        if after != *below {
            self.put_below(inode, &after);
            self.note_saved(inode);
        }
        Ok(())
    }

    fn not_written(&mut self, inode: Inode) -> Result<(), Errno> {
        let Some(below) = self.state.below.get(&inode) else { return Ok(()) };
        if below.next.is_some() {
            let after = Below { next: None, ..below.clone() };
            self.put_or_forget(inode, &after);
        }
        Ok(())
    }

    fn put_or_forget(&mut self, inode: Inode, below: &Below) {
        match *below == Below::default() {
            true => self.put(&Record::DeleteBelow { inode }),
            false => self.put_below(inode, below),
        }
    }

    fn drafted(&mut self, inode: Inode, is_new: bool, lies: &Lies<'_>) -> Result<(), Errno> {
        if self.state.inodes.get(inode).is_none() {
            return Err(Errno::ESTALE);
        }
        let below = self.state.below.get(&inode).cloned().unwrap_or_default();
        let is_as_before = match &below.draft {
            Some(draft) => !is_new && draft.stamp == lies.stamp,
            None => {
                let counts = below.now.as_ref().map_or(0, |now| now.counts);
                is_new && lies.counts <= counts
            }
        };
        if !is_as_before {
            return Err(Errno::EAGAIN);
        }
        let after = Below { draft: Some(Box::new(Lying::of(lies))), ..below };
        self.put_below(inode, &after);
        Ok(())
    }

    fn undrafted(&mut self, inode: Inode) -> Result<(), Errno> {
        if let Some(below) = self.state.below.get(&inode)
            && below.draft.is_some()
        {
            let after = Below { draft: None, ..below.clone() };
            self.put_or_forget(inode, &after);
        }
        Ok(())
    }

    fn gone_below(&mut self, inode: Inode) -> Result<(), Errno> {
        if self.state.below.contains_key(&inode) {
            self.put(&Record::DeleteBelow { inode });
        }
        Ok(())
    }

    fn saved(
        &mut self,
        parent: Inode,
        name: &[u8],
        (from, to): (Inode, Inode),
    ) -> Result<(), Errno> {
        let lies = self.state.lies(parent, name);
        if lies == to {
            return Ok(());
        }
        if lies != from {
            return Err(Errno::EAGAIN);
        }
        let entry = self.state.entries.get(parent, name).map_or(Inode::NONE, |found| found.0);
        match entry == to {
            true => self.put(&Record::DeleteUnsaved { parent, name }),
            false => self.put(&Record::PutUnsaved { parent, name, lies: to }),
        }
        Ok(())
    }
}

/// As many of a list as fit, of which each takes at most so many bytes.
pub(crate) fn listed<'a, T: Field<'a>>(most: usize, list: impl Iterator<Item = T>) -> Vec<u8> {
    let mut bytes = vec![0; LIST_BYTES];
    let mut writer = Writer::new(&mut bytes);
    for one in list {
        if writer.room() < most {
            break;
        }
        one.put(&mut writer);
    }
    let length = writer.len();
    bytes.truncate(length);
    bytes
}
