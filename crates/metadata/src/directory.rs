//! Directories whose inode is another service's: a copy of their attributes here, and an account
//! (`Tally`) of what they have here, which their owner is told.
//!
//! A copy is used for a term from when it was asked for. Before what it covers changes (mode, owner,
//! group, layout, access control lists), its owner has it forgotten, with every question on its way, as
//! he recalls leases (`leases`): so what is made here is made by what the directory is, or was when it
//! was asked for. A directory that was removed gets no entry by a copy: removing it freezes it first
//! where
//! it may have entries (`transaction`), which drops the copy and every question on its way.
//!
//! Who may have entries of a wide directory: its owner notes each service that asks for a copy, in the
//! log, before he answers (a tally of version 0; a service without a tally has no part). So a service
//! without a copy and without a tally of its own has no entries, makes none, and tells no client that
//! a name is absent, which would let him post one (`may_tell_absent`). Who removes the directory asks
//! those with a part alone, however many services there are.

use wire::attributes::spread;
use wire::codec::Field;
use wire::errno::Errno;
use wire::lease::TERM_NANOS;
use wire::{Attributes, Inode, Reader, ShardIndex};

use crate::below::Place;
use crate::live::{Ask, Cached, Fact, Query, Step, Stop, Subject, Wait};
use crate::peer::Message;
use crate::service::Service;
use crate::state::{Tally, decode_xattrs};
use crate::table::RemoteTally;

/// Copies that are kept; beyond it all are dropped and asked for anew.
const COPY_COUNT_MAX: usize = 1 << 16;
/// How long tallies are gathered before they are sent.
const TALLY_NANOS: i64 = 2_000_000;
/// After this a message without an answer is sent again: many times a flight, well below what a
/// person notices.
pub(crate) const RESEND_NANOS: i64 = 20_000_000;

impl Service {
    /// The attributes of a directory that something is about to be made in or taken from.
    pub(crate) fn directory(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<Attributes> {
        let found = if self.config.owns(inode.shard()) {
            self.state.inodes.get(inode).map(|node| node.attributes)
        } else {
            self.copy_of_directory(ask, inode)?
        };
        match found {
            Some(found) if !found.is_directory() => Err(Stop::Refused(Errno::ENOTDIR)),
            Some(found) if found.links != 0 => Ok(found),
            _ => Err(Stop::Refused(Errno::ENOENT)),
        }
    }

    fn copy_of_directory(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<Option<Attributes>> {
        if let Some(cached) = self.live.cached.get(&inode)
            && cached.until > self.live.steady
        {
            return Ok(Some(cached.attributes));
        }
        for fact in ask.facts {
            if let Fact::Attributes(other, None) = fact
                && *other == inode
            {
                return Ok(None);
            }
        }
        Err(self.inquire(Subject::Directory(inode), inode.shard()))
    }

    /// What is known here of a directory, without asking.
    pub(crate) fn known_directory(&self, inode: Inode) -> Option<&Attributes> {
        let own = self.state.inodes.get(inode).map(|node| &node.attributes);
        own.or_else(|| self.live.cached.get(&inode).map(|cached| &cached.attributes))
    }

    /// The attributes of any inode as they are now, or were when this job asked.
    pub(crate) fn attributes(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<Option<Attributes>> {
        if self.config.owns(inode.shard()) {
            return Ok(self.state.inodes.get(inode).map(|node| node.attributes));
        }
        for fact in ask.facts {
            if let Fact::Attributes(other, attributes) = fact
                && *other == inode
            {
                return Ok(*attributes);
            }
        }
        Err(self.inquire(Subject::Attributes(inode), inode.shard()))
    }

    /// The entry of any shard as it is now, or was when this job asked.
    pub(crate) fn entry(
        &mut self,
        ask: &Ask<'_>,
        shard: ShardIndex,
        parent: Inode,
        name: &[u8],
    ) -> Step<Option<(Inode, u32)>> {
        if self.config.owns(shard) {
            self.import(ask, parent)?;
            return Ok(self.state.entries.get(parent, name));
        }
        for fact in ask.facts {
            if let Fact::Entry(other, other_name, inode, mode) = fact
                && *other == parent
                && *other_name == name
            {
                return Ok((!inode.is_none()).then_some((*inode, *mode)));
            }
            if let Fact::NotImported(other, errno) = fact
                && *other == parent
            {
                return Err(Stop::Refused(*errno));
            }
        }
        Err(self.inquire(Subject::Entry(parent, name.to_vec()), shard))
    }

    /// Asks another service; the job waits for the answer.
    pub(crate) fn inquire(&mut self, subject: Subject, to: ShardIndex) -> Stop {
        if let Subject::Directory(_) = subject {
            let queries = self.live.queries.iter();
            let known =
                queries.filter(|(_, query)| query.subject == subject).map(|(&t, _)| t).next();
            if let Some(token) = known {
                return Stop::Wait(Wait::Answer(token));
            }
        }
        let token = self.new_sequence();
        let (sent, asked) = (self.live.now, self.live.steady);
        let query = Query { subject, to, jobs: Vec::new(), sent, asked };
        self.send_query(token, &query);
        self.live.queries.insert(token, query);
        self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
        Stop::Wait(Wait::Answer(token))
    }

    fn send_query(&mut self, token: u64, query: &Query) {
        let from = self.live.address.0;
        let message = match &query.subject {
            Subject::Directory(inode) => {
                Message::AskAttributes { from, token, inode: *inode, copy: 1 }
            }
            Subject::Attributes(inode) => {
                Message::AskAttributes { from, token, inode: *inode, copy: 0 }
            }
            Subject::Entry(parent, name) => {
                Message::AskEntry { from, token, parent: *parent, name }
            }
            Subject::Parts(inode) => Message::AskParts { from, token, directory: *inode },
            Subject::Acls(inode) => Message::AskAcls { from, token, inode: *inode },
            Subject::Place(inode) => Message::AskPlace { from, token, inode: *inode },
        };
        self.io.send(query.to, &message);
    }

    /// Sends questions again that were not answered, and drops those that nobody waits for.
    pub(crate) fn send_queries_again(&mut self) {
        let now = self.live.now;
        let mut queries = core::mem::take(&mut self.live.queries);
        queries.retain(|&token, query| {
            query.jobs.retain(|job| self.live.jobs.contains_key(job));
            if query.jobs.is_empty() {
                return false;
            }
            if query.sent.saturating_add(RESEND_NANOS) <= now {
                query.sent = now;
                self.send_query(token, query);
            }
            self.live.wake_at(query.sent.saturating_add(RESEND_NANOS));
            true
        });
        self.live.queries = queries;
    }

    /// An answer about attributes.
    pub(crate) fn answered_attributes(&mut self, token: u64, found: Option<Attributes>) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        let inode = match query.subject {
            Subject::Directory(inode) | Subject::Attributes(inode) => inode,
            _ => return,
        };
        if let (Subject::Directory(_), Some(attributes)) = (&query.subject, found) {
            self.cache(&attributes, query.asked);
        }
        self.tell_jobs(&query, &Fact::Attributes(inode, found));
    }

    /// An answer about an entry.
    pub(crate) fn answered_entry(&mut self, token: u64, inode: Inode, mode: u32) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        if let Subject::Entry(parent, name) = &query.subject {
            let fact = Fact::Entry(*parent, name.clone(), inode, mode);
            self.tell_jobs(&query, &fact);
        }
    }

    /// An entry can not be told.
    pub(crate) fn refused_entry(&mut self, token: u64, errno: Errno) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        if let Subject::Entry(parent, _) = query.subject {
            self.tell_jobs(&query, &Fact::NotImported(parent, errno));
        }
    }

    /// An answer about where a directory lies below.
    pub(crate) fn answered_place(&mut self, token: u64, place: Option<Place>) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        if let Subject::Place(directory) = query.subject {
            self.tell_jobs(&query, &Fact::Place(directory, place));
        }
    }

    /// A service is about to have a copy of a directory, and so to make entries.
    pub(crate) fn note_part(&mut self, directory: Inode, from: ShardIndex) {
        let group = self.config.group(from).0;
        let Some(node) = self.state.inodes.get(directory) else { return };
        let attributes = &node.attributes;
        let is_wide = attributes.is_directory() && attributes.layout.spread == spread::WIDE;
        let is_known = node.tallies.iter().any(|tally| tally.group == group);
        if is_wide && attributes.links != 0 && !is_known {
            let nothing_yet = RemoteTally { group, ..RemoteTally::default() };
            self.put(&nothing_yet.record(directory));
        }
    }

    /// True if clients may be told that a name of this directory is absent here: then they may make it
    /// by a post.
    pub(crate) fn may_tell_absent(&self, directory: Inode) -> bool {
        self.config.owns(directory.shard())
            || self.state.tallies.contains_key(&directory)
            || self.live.cached.contains_key(&directory)
    }

    /// The other services that may have entries of a directory of this one.
    pub(crate) fn own_parts(&self, directory: Inode) -> Vec<u32> {
        let node = self.state.inodes.get(directory);
        node.into_iter().flat_map(|node| &node.tallies).map(|tally| tally.group).collect()
    }

    /// How many `own_parts` gives.
    pub(crate) fn parts_count(&self, directory: Inode) -> u32 {
        let count = self.state.inodes.get(directory).map_or(0, |node| node.tallies.len());
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The services that may have entries of a directory, besides its own.
    pub(crate) fn parts(&mut self, ask: &Ask<'_>, directory: Inode) -> Step<Vec<u32>> {
        if self.config.owns(directory.shard()) {
            return Ok(self.own_parts(directory));
        }
        for fact in ask.facts {
            if let Fact::Parts(other, groups) = fact
                && *other == directory
            {
                return Ok(groups.clone());
            }
        }
        Err(self.inquire(Subject::Parts(directory), directory.shard()))
    }

    /// An answer about parts.
    pub(crate) fn answered_parts(&mut self, token: u64, groups: &[u8]) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        if let Subject::Parts(directory) = query.subject {
            let mut reader = Reader::new(groups);
            let groups = core::iter::from_fn(|| u32::take(&mut reader).ok()).collect();
            self.tell_jobs(&query, &Fact::Parts(directory, groups));
        }
    }

    /// An answer about access control lists.
    pub(crate) fn answered_acls(&mut self, token: u64, lists: &[u8]) {
        let Some(query) = self.live.queries.remove(&token) else { return };
        if let (Subject::Acls(inode), Ok(lists)) = (&query.subject, decode_xattrs(lists)) {
            self.tell_jobs(&query, &Fact::Acls(*inode, lists));
        }
    }

    fn tell_jobs(&mut self, query: &Query, fact: &Fact) {
        for id in &query.jobs {
            if let Some(job) = self.live.jobs.get_mut(id) {
                job.facts.push(fact.clone());
                self.live.woken.insert(*id);
            }
        }
    }

    /// Keeps what was asked for then, whenever the answer came.
    fn cache(&mut self, attributes: &Attributes, asked: i64) {
        if self.live.cached.len() >= COPY_COUNT_MAX {
            self.live.cached.clear();
        }
        let until = asked.saturating_add(TERM_NANOS);
        self.live.cached.insert(attributes.inode, Cached { attributes: *attributes, until });
    }

    /// Nothing that was heard about a directory counts any more.
    pub(crate) fn forget_directory(&mut self, directory: Inode) {
        self.live.cached.remove(&directory);
        let queries = self.live.queries.iter();
        let stale: Vec<u64> = queries
            .filter(|(_, query)| query.subject == Subject::Directory(directory))
            .map(|(&token, _)| token)
            .collect();
        for token in stale {
            if let Some(query) = self.live.queries.remove(&token) {
                self.live.woken.extend(query.jobs);
            }
        }
    }

    /// Entries came to, or went from, a directory in this service.
    pub(crate) fn change_tally(
        &mut self,
        directory: Inode,
        spread: u8,
        entries: i64,
        directories: i64,
    ) {
        self.change_tally_at(self.live.now, directory, spread, (entries, directories));
    }

    /// As `change_tally`, by who did it at a time that he knows: so the directory's times are the same
    /// for him before and after it is applied here.
    pub(crate) fn change_tally_at(
        &mut self,
        at: i64,
        directory: Inode,
        spread: u8,
        (entries, directories): (i64, i64),
    ) {
        let old = self.state.tallies.get(&directory).copied().unwrap_or_default();
        let node = self.state.inodes.get(directory);
        let changed = node.map_or(i64::MIN, |node| node.attributes.changed);
        let is_own = node.is_some();
        let tally = Tally {
            spread,
            version: old.version + 1,
            entries: old.entries.saturating_add_signed(entries),
            directories: old.directories.saturating_add_signed(directories),
            modified: at.max(old.modified.max(changed).saturating_add(1)),
        };
        self.put(&tally.record(directory));
        if !is_own && !self.config.owns(directory.shard()) {
            self.live.dirty.insert(directory, 0);
            self.live.wake_at(self.live.now.saturating_add(TALLY_NANOS));
        }
    }

    /// Tells owners what their directories have here.
    pub(crate) fn send_tallies(&mut self) {
        let now = self.live.now;
        let (from, group) = (self.live.address.0, self.config.own_group().0);
        let mut dirty = core::mem::take(&mut self.live.dirty);
        dirty.retain(|&directory, sent| {
            let Some(tally) = self.state.tallies.get(&directory) else { return false };
            if *sent == 0 || sent.saturating_add(RESEND_NANOS) <= now {
                *sent = now.max(1);
                let &Tally { version, entries, directories, modified, .. } = tally;
                let modified = modified.cast_unsigned();
                self.io.send(
                    directory.shard(),
                    &Message::Tally {
                        from,
                        group,
                        directory,
                        version,
                        entries,
                        directories,
                        modified,
                    },
                );
            }
            self.live.wake_at(sent.saturating_add(RESEND_NANOS));
            true
        });
        self.live.dirty = dirty;
    }

    /// The owner of a directory knows the tally of this version.
    pub(crate) fn tally_known(&mut self, directory: Inode, version: u64) {
        if self.state.tallies.get(&directory).is_none_or(|tally| tally.version <= version) {
            self.live.dirty.remove(&directory);
        }
    }
}
