//! Directories whose inode is another service's: a copy of their attributes here, and counts of the
//! entries that are here (`Tally`), which are sent to their owner.
//!
//! A copy is valid for a term from its request. Before the attributes that it covers change (mode,
//! owner, group, layout, access control lists), the owner revokes it, with every answer on its way,
//! as it revokes leases (`leases`): so an entry is created by the rules of the directory as it is,
//! or was at the time of the request. A removed directory gets no entry by a copy: its removal
//! first freezes it at every service that may have entries (`transaction`), which drops the copy
//! and every answer on its way.
//!
//! Services that may have entries of a wide directory: its owner logs each service that requests a
//! copy, before it answers (a tally of version 0; a service without a tally has none). So a service
//! without a copy and without a tally of its own has no entries, creates none, and tells no client
//! that a name is absent, which would let the client create it by a local operation
//! (`may_report_absent`). A removal asks only the services with a tally, however many services
//! there are.
//!
//! A tally is sent a moment after it changed, for many changes at once. So before the owner tells the
//! times and the size of a directory, or sets any of its attributes, it asks those services for their
//! tallies (`ask_tallies`): a time that is set stays, and a program that created a file finds a new
//! time of the directory.

use std::collections::{BTreeMap, BTreeSet};

use wire::attributes::spread;
use wire::codec::Field;
use wire::errno::Errno;
use wire::lease::TERM_NANOS;
use wire::limits::SHARD_COUNT;
use wire::{Attributes, Inode, Reader, ShardIndex};

use crate::backing::sync_state::DirLocation;
use crate::core::context::Context;
use crate::core::job::{Call, Fact, RESEND_NANOS, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::core::state::{State, Tally, decode_xattrs};
use crate::core::table::RemoteTally;
use crate::directories::widening::Widening;

/// Most copies; beyond it all are dropped and requested anew.
const COPY_COUNT_MAX: usize = 1 << 16;
/// How long tallies are collected before they are sent.
const TALLY_NANOS: i64 = 2_000_000;
/// Longest wait for a tally. A service that is silent for longer is down or overloaded: a directory
/// is shown as far as it is known.
const TALLY_WAIT_NANOS: i64 = 300_000_000;

/// Subject of a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// A directory's attributes, to be cached; all jobs that need them share the query.
    Directory(Inode),
    /// An inode's current attributes.
    Attributes(Inode),
    /// A current entry.
    Entry(Inode, Vec<u8>),
    /// The services that may have entries of a directory.
    EntryServices(Inode),
    /// The current tally of a directory of this service that is spread so far.
    Tally(Inode, u8),
    /// An inode's current access control lists.
    Acls(Inode),
    /// The backing location of a directory.
    DirLocation(Inode),
}

/// A query to another service.
#[derive(Clone, Debug)]
struct Query {
    subject: Subject,
    to: ShardIndex,
    jobs: Vec<u64>,
    sent: i64,
    /// When it was first sent, by the monotonic clock.
    first_sent: i64,
}

/// A copy of a directory's attributes, and its expiry by the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Cached {
    attributes: Attributes,
    until: i64,
}

/// Volatile state: what this service asks others about directories, and tells them.
#[derive(Default)]
pub(crate) struct RemoteDirectories {
    queries: BTreeMap<u64, Query>,
    cached: BTreeMap<Inode, Cached>,
    /// Directories of other services whose tally changed, and when it was sent (0: not yet).
    dirty_tallies: BTreeMap<Inode, i64>,
    /// Directories that are to be spread.
    pub(crate) widening: Widening,
}

impl RemoteDirectories {
    /// See `Service::copy_of`.
    pub(crate) fn copy_of(&self, directory: Inode, steady_nanos: i64) -> Option<Attributes> {
        let copy = self.cached.get(&directory)?;
        (copy.until > steady_nanos).then_some(copy.attributes)
    }

    /// A job waits for the answer to a query; false if the answer has come.
    pub(crate) fn note_job(&mut self, token: u64, job: u64) -> bool {
        let query = self.queries.get_mut(&token);
        query.is_some_and(|query| {
            query.jobs.push(job);
            true
        })
    }

    /// The tally of a directory is to be sent to its owner.
    pub(crate) fn send_tally(&mut self, directory: Inode) {
        self.dirty_tallies.insert(directory, 0);
    }

    /// The attributes of a directory in which an entry is about to be created or removed.
    pub(crate) fn directory(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
    ) -> Step<Attributes> {
        let found = if cx.config.owns(inode.shard()) {
            cx.state.inodes.get(inode).map(|node| node.attributes)
        } else {
            self.copy_of_directory(cx, call, inode)?
        };
        match found {
            Some(found) if !found.is_directory() => Err(Stop::Refused(Errno::ENOTDIR)),
            Some(found) if found.links != 0 => Ok(found),
            _ => Err(Stop::Refused(Errno::ENOENT)),
        }
    }

    fn copy_of_directory(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
    ) -> Step<Option<Attributes>> {
        if let Some(cached) = self.cached.get(&inode)
            && cached.until > cx.steady
        {
            return Ok(Some(cached.attributes));
        }
        for fact in call.facts {
            if let Fact::Attributes(other, None) = fact
                && *other == inode
            {
                return Ok(None);
            }
        }
        Err(self.inquire(cx, Subject::Directory(inode), inode.shard()))
    }

    /// The attributes of a directory that are known here without a query.
    pub(crate) fn known_directory<'a>(
        &'a self,
        cx: &'a Context,
        inode: Inode,
    ) -> Option<&'a Attributes> {
        let own = cx.state.inodes.get(inode).map(|node| &node.attributes);
        own.or_else(|| self.cached.get(&inode).map(|cached| &cached.attributes))
    }

    /// The attributes of any inode as they are, or were when this job queried them.
    pub(crate) fn attributes(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
    ) -> Step<Option<Attributes>> {
        if cx.config.owns(inode.shard()) {
            return Ok(cx.state.inodes.get(inode).map(|node| node.attributes));
        }
        for fact in call.facts {
            if let Fact::Attributes(other, attributes) = fact
                && *other == inode
            {
                return Ok(*attributes);
            }
        }
        Err(self.inquire(cx, Subject::Attributes(inode), inode.shard()))
    }

    /// Queries another service; the job waits for the answer.
    pub(crate) fn inquire(&mut self, cx: &mut Context, subject: Subject, to: ShardIndex) -> Stop {
        if let Subject::Directory(_) = subject {
            let queries = self.queries.iter();
            let known =
                queries.filter(|(_, query)| query.subject == subject).map(|(&t, _)| t).next();
            if let Some(token) = known {
                return Stop::Wait(Wait::Answer(token));
            }
        }
        let token = cx.new_sequence();
        let (sent, first_sent) = (cx.now, cx.steady);
        let query = Query { subject, to, jobs: Vec::new(), sent, first_sent };
        send_query(cx, token, &query);
        self.queries.insert(token, query);
        cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
        Stop::Wait(Wait::Answer(token))
    }

    /// Resends unanswered queries, and drops those that no job waits for.
    pub(crate) fn send_queries_again(&mut self, cx: &mut Context) {
        let now = cx.now;
        let mut queries = core::mem::take(&mut self.queries);
        queries.retain(|&token, query| {
            query.jobs.retain(|job| cx.jobs.contains_key(job));
            if query.jobs.is_empty() {
                return false;
            }
            if let Subject::Tally(directory, spread) = query.subject
                && query.first_sent.saturating_add(TALLY_WAIT_NANOS) <= cx.steady
            {
                answer_jobs(cx, query, &Fact::Tally(directory, spread, query.to));
                return false;
            }
            if query.sent.saturating_add(RESEND_NANOS) <= now {
                query.sent = now;
                send_query(cx, token, query);
            }
            cx.wake_at(query.sent.saturating_add(RESEND_NANOS));
            true
        });
        self.queries = queries;
    }

    /// An answer about attributes.
    pub(crate) fn answered_attributes(
        &mut self,
        cx: &mut Context,
        token: u64,
        found: Option<Attributes>,
    ) {
        let Some(query) = self.queries.remove(&token) else { return };
        let (Subject::Directory(inode) | Subject::Attributes(inode)) = query.subject else {
            return;
        };
        if let (Subject::Directory(_), Some(attributes)) = (&query.subject, found) {
            self.cache(&attributes, query.first_sent);
        }
        answer_jobs(cx, &query, &Fact::Attributes(inode, found));
    }

    /// An answer about an entry.
    pub(crate) fn answered_entry(&mut self, cx: &mut Context, token: u64, inode: Inode, mode: u32) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let Subject::Entry(parent, name) = &query.subject {
            let fact = Fact::Entry(*parent, name.clone(), inode, mode);
            answer_jobs(cx, &query, &fact);
        }
    }

    /// An entry cannot be determined.
    pub(crate) fn refused_entry(&mut self, cx: &mut Context, token: u64, errno: Errno) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let Subject::Entry(parent, _) = query.subject {
            answer_jobs(cx, &query, &Fact::NotImported(parent, errno));
        }
    }

    /// An answer about the backing location of a directory.
    pub(crate) fn answered_location(
        &mut self,
        cx: &mut Context,
        token: u64,
        location: Option<DirLocation>,
    ) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let Subject::DirLocation(directory) = query.subject {
            answer_jobs(cx, &query, &Fact::DirLocation(directory, location));
        }
    }

    /// True if clients may be told that a name of this directory is absent here, which lets them
    /// create it by a local operation.
    pub(crate) fn may_report_absent(&self, cx: &Context, directory: Inode) -> bool {
        cx.config.owns(directory.shard())
            || cx.state.tallies.contains_key(&directory)
            || self.cached.contains_key(&directory)
    }

    /// The services that may have entries of a directory, besides its own.
    pub(crate) fn entry_services(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        directory: Inode,
    ) -> Step<Vec<u32>> {
        if cx.config.owns(directory.shard()) {
            return Ok(cx.state.own_entry_services(directory));
        }
        for fact in call.facts {
            if let Fact::EntryServices(other, groups) = fact
                && *other == directory
            {
                return Ok(groups.clone());
            }
        }
        Err(self.inquire(cx, Subject::EntryServices(directory), directory.shard()))
    }

    /// An answer about the services that may have entries.
    pub(crate) fn answered_entry_services(&mut self, cx: &mut Context, token: u64, groups: &[u8]) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let Subject::EntryServices(directory) = query.subject {
            let mut reader = Reader::new(groups);
            let groups = core::iter::from_fn(|| u32::take(&mut reader).ok()).collect();
            answer_jobs(cx, &query, &Fact::EntryServices(directory, groups));
        }
    }

    /// Proceeds when this service knows the tallies of all others that may have entries of its
    /// `directory`, as they are, or were when this job asked for them.
    pub(crate) fn ask_tallies(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        directory: &Attributes,
    ) -> Step<()> {
        if !directory.is_directory() || directory.links == 0 {
            return Ok(());
        }
        let inode = directory.inode;
        let own = cx.config.own_group().0;
        let mut groups = BTreeSet::new();
        if spread::wide_below(directory.layout.spread) != 0 {
            groups.extend(cx.state.own_entry_services(inode));
        }
        if !spread::is_wide(directory.layout.spread) {
            groups.insert(cx.config.group(ShardIndex(directory.layout.place)).0);
        }
        groups.remove(&own);
        let spread = directory.layout.spread;
        for shard in shards_of(cx, groups) {
            if !call.facts.contains(&Fact::Tally(inode, spread, shard)) {
                return Err(self.inquire(cx, Subject::Tally(inode, spread), shard));
            }
        }
        Ok(())
    }

    /// An answer about a tally, which has been taken.
    pub(crate) fn answered_tally(&mut self, cx: &mut Context, token: u64) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let Subject::Tally(directory, spread) = query.subject {
            answer_jobs(cx, &query, &Fact::Tally(directory, spread, query.to));
        }
    }

    /// An answer about access control lists.
    pub(crate) fn answered_acls(&mut self, cx: &mut Context, token: u64, lists: &[u8]) {
        let Some(query) = self.queries.remove(&token) else { return };
        if let (Subject::Acls(inode), Ok(lists)) = (&query.subject, decode_xattrs(lists)) {
            answer_jobs(cx, &query, &Fact::Acls(*inode, lists));
        }
    }

    /// Caches attributes from the time of their request, whenever the answer came.
    fn cache(&mut self, attributes: &Attributes, first_sent: i64) {
        if self.cached.len() >= COPY_COUNT_MAX {
            self.cached.clear();
        }
        let until = first_sent.saturating_add(TERM_NANOS);
        self.cached.insert(attributes.inode, Cached { attributes: *attributes, until });
    }

    /// Drops all cached information about a directory, and pending answers.
    pub(crate) fn forget_directory(&mut self, cx: &mut Context, directory: Inode) {
        self.cached.remove(&directory);
        let queries = self.queries.iter();
        let stale: Vec<u64> = queries
            .filter(|(_, query)| query.subject == Subject::Directory(directory))
            .map(|(&token, _)| token)
            .collect();
        for token in stale {
            if let Some(query) = self.queries.remove(&token) {
                cx.woken.extend(query.jobs);
            }
        }
    }

    /// Entries of a directory were added or removed in this service.
    pub(crate) fn change_tally(
        &mut self,
        cx: &mut Context,
        directory: Inode,
        spread: u8,
        entries: i64,
        directories: i64,
    ) {
        self.change_tally_at(cx, cx.now, directory, spread, (entries, directories));
    }

    /// As `change_tally`, at a time chosen by the client that made the change: so it sees the same
    /// times of the directory before and after the change is applied here.
    pub(crate) fn change_tally_at(
        &mut self,
        cx: &mut Context,
        at: i64,
        directory: Inode,
        spread: u8,
        (entries, directories): (i64, i64),
    ) {
        let old = cx.state.tallies.get(&directory).copied().unwrap_or_default();
        let node = cx.state.inodes.get(directory);
        let changed = node.map_or(i64::MIN, |node| node.attributes.changed);
        let tally = Tally {
            // The home's count says how far it has been spread, by its own decisions.
            spread: if old.version == 0 { spread } else { old.spread },
            version: old.version + 1,
            entries: old.entries.saturating_add_signed(entries),
            directories: old.directories.saturating_add_signed(directories),
            modified: at.max(old.modified.max(changed).saturating_add(1)),
        };
        self.put_tally(cx, directory, &tally);
        if entries > 0 {
            self.widening.note_growth(cx, directory, &tally);
        }
    }

    /// A new count of the entries that this service has; the owner of the directory is told soon.
    pub(crate) fn put_tally(&mut self, cx: &mut Context, directory: Inode, tally: &Tally) {
        cx.put(&tally.record(directory));
        if !cx.config.owns(directory.shard()) {
            self.dirty_tallies.insert(directory, 0);
            cx.wake_at(cx.now.saturating_add(TALLY_NANOS));
        }
    }

    /// Sends the tallies of directories to their owners.
    pub(crate) fn send_tallies(&mut self, cx: &mut Context) {
        let now = cx.now;
        let (from, group) = (cx.address.0, cx.config.own_group().0);
        let mut dirty = core::mem::take(&mut self.dirty_tallies);
        dirty.retain(|&directory, sent| {
            let Some(tally) = cx.state.tallies.get(&directory) else { return false };
            if *sent == 0 || sent.saturating_add(RESEND_NANOS) <= now {
                *sent = now.max(1);
                let &Tally { version, entries, directories, modified, .. } = tally;
                let modified = modified.cast_unsigned();
                cx.io.send(
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
            cx.wake_at(sent.saturating_add(RESEND_NANOS));
            true
        });
        self.dirty_tallies = dirty;
    }

    /// The owner of a directory knows the tally of this version.
    pub(crate) fn tally_known(&mut self, cx: &mut Context, directory: Inode, version: u64) {
        if cx.state.tallies.get(&directory).is_none_or(|tally| tally.version <= version) {
            self.dirty_tallies.remove(&directory);
        }
    }
}

fn answer_jobs(cx: &mut Context, query: &Query, fact: &Fact) {
    for id in &query.jobs {
        if let Some(job) = cx.jobs.get_mut(id) {
            job.facts.push(fact.clone());
            cx.woken.insert(*id);
        }
    }
}

/// A shard of each of these services, by which messages and transactions reach it.
pub(crate) fn shards_of(cx: &Context, mut groups: BTreeSet<u32>) -> Vec<ShardIndex> {
    let all = (0..SHARD_COUNT).map(ShardIndex);
    all.filter(|&shard| groups.remove(&cx.config.group(shard).0)).collect()
}

/// Logs that a service gets a copy of a directory, and so may create entries.
pub(crate) fn note_entry_service(cx: &mut Context, directory: Inode, from: ShardIndex) {
    let group = cx.config.group(from).0;
    let Some(node) = cx.state.inodes.get(directory) else { return };
    let attributes = &node.attributes;
    let is_wide = attributes.is_directory() && spread::wide_below(attributes.layout.spread) != 0;
    let is_known = node.tallies.iter().any(|tally| tally.group == group);
    if is_wide && attributes.links != 0 && !is_known {
        let nothing_yet = RemoteTally { group, ..RemoteTally::default() };
        cx.put(&nothing_yet.record(directory));
    }
}

fn send_query(cx: &mut Context, token: u64, query: &Query) {
    let from = cx.address.0;
    let message = match &query.subject {
        Subject::Directory(inode) => Message::AskAttributes { from, token, inode: *inode, copy: 1 },
        Subject::Attributes(inode) => {
            Message::AskAttributes { from, token, inode: *inode, copy: 0 }
        }
        Subject::Entry(parent, name) => Message::AskEntry { from, token, parent: *parent, name },
        Subject::EntryServices(inode) => {
            Message::AskEntryServices { from, token, directory: *inode }
        }
        Subject::Tally(inode, _) => Message::AskTally { from, token, directory: *inode },
        Subject::Acls(inode) => Message::AskAcls { from, token, inode: *inode },
        Subject::DirLocation(inode) => Message::AskLocation { from, token, inode: *inode },
    };
    cx.io.send(query.to, &message);
}

impl State {
    /// The other services that may have entries of a directory of this one.
    pub(crate) fn own_entry_services(&self, directory: Inode) -> Vec<u32> {
        let node = self.inodes.get(directory);
        node.into_iter().flat_map(|node| &node.tallies).map(|tally| tally.group).collect()
    }

    /// Length of `own_entry_services`.
    pub(crate) fn entry_service_count(&self, directory: Inode) -> u32 {
        let count = self.inodes.get(directory).map_or(0, |node| node.tallies.len());
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}
