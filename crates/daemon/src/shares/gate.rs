//! Which requests of a session wait, and for which account they count. On the threads of workers.
//!
//! The user and group are the kernel's word on the socket of the session. The job, the program and the
//! tag are what the process wrote beside its counters (`shm::activity`), before its first request of a
//! file. A mount asks for other processes: a slot names the block that the mount keeps for its process,
//! with user, group and job as the kernel says them. Only the instance's owner and root have sessions, so
//! a session may say so.
//!
//! All requests that move bytes to or from other hosts wait, so that jobs share what there is. Others
//! wait if a rule with more than limits of bytes matches them. Locks, closes and questions of daemons
//! never wait: others may wait for them.
//!
//! Requests of the writeback daemon are of no job, and no rule limits them (`sessions::writeback`): those
//! that move bytes have a share, and while writers wait for space they are urgent.
//!
//! Requests that take memory of a target carry their job, whether there are rules or not (`job_word`);
//! where there is a backing store, those that read do, too.

use crate::sessions::client_session::ClientSession;
use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shares::accounts::{DirAccounts, JobAccount, ShareRange};
use crate::shares::inbox::HeldRequest;
use crate::shares::places::{NamedDirs, Place, UnplacedRequest};
use crate::shares::pool_limits::Way;
use crate::shares::{ReaderJobs, Shares};
use qos::rules::{Facts, Operation};
use qos::scheduler::Work;
use shm::activity::Tags;
use shm::activity::blocks::Label;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use wire::codec::Reader;
use wire::{DaemonIndex, Header, Inode, JobWord, Request};

/// That which a request is about.
#[derive(Clone, Copy)]
enum Subject {
    /// Bytes of a file.
    Bytes(Inode, u64, ShareRange),
    /// A file as a whole.
    File(Inode),
    /// Names in a directory.
    Names(Inode),
}

fn bytes_of(inode: Inode, offset: u64, bytes: u64) -> Subject {
    Subject::Bytes(inode, bytes, ShareRange::at(inode, offset))
}

/// Operation and subject of a request; `None`: it never waits.
fn see(request: &Request<'_>, client: &ClientSession) -> Option<(Operation, Subject)> {
    Some(match *request {
        Request::Open { inode, .. } => (Operation::Open, Subject::File(inode)),
        Request::Create { parent, .. }
        | Request::CreateNameless { parent, .. }
        | Request::Link { parent, .. } => (Operation::Create, Subject::Names(parent)),
        Request::Lookup { parent: directory, .. } | Request::Walk { directory, .. } => {
            (Operation::Stat, Subject::Names(directory))
        }
        Request::GetAttributes { inode }
        | Request::ReadLink { inode }
        | Request::GetXattr { inode, .. }
        | Request::ListXattr { inode } => (Operation::Stat, Subject::File(inode)),
        Request::ReadDirectory { directory, .. } => (Operation::List, Subject::Names(directory)),
        Request::Unlink { parent, .. } | Request::RemoveDirectory { parent, .. } => {
            (Operation::Unlink, Subject::Names(parent))
        }
        Request::Rename { parent, .. } => (Operation::Rename, Subject::Names(parent)),
        Request::SetAttributes { inode, .. }
        | Request::SetXattr { inode, .. }
        | Request::RemoveXattr { inode, .. } => (Operation::SetAttributes, Subject::File(inode)),
        Request::Read { inode, offset, length, .. }
        | Request::Fetch { inode, offset, length, .. } => {
            (Operation::Read, bytes_of(inode, offset, u64::from(length)))
        }
        Request::Store { inode, offset, length, .. } => {
            (Operation::Write, bytes_of(inode, offset, u64::from(length)))
        }
        Request::Write { inode, offset, bytes, .. } => {
            (Operation::Write, bytes_of(inode, offset, bytes.len() as u64))
        }
        Request::Push { buffer } => {
            let pushed = client.slots.bounce_buffers().pushed_write(buffer)?;
            (Operation::Write, bytes_of(pushed.inode, pushed.offset, u64::from(pushed.length)))
        }
        _ => return None,
    })
}

/// True for a request of the writeback daemon for which others wait. Claims of other sessions count for
/// nothing.
fn is_urgent(client: &ClientSession, slot: usize) -> bool {
    client.is_writeback && client.slots.is_urgent(slot)
}

/// Place of an operation in `SessionAccounts`.
fn place_of(operation: Operation) -> usize {
    Operation::ALL.iter().position(|&(_, one)| one == operation).unwrap_or(0)
}

/// The text of a label.
fn text<const N: usize>(label: &Label<N>) -> &[u8] {
    let length = label.iter().position(|&byte| byte == 0).unwrap_or(N);
    label.get(..length).unwrap_or_default()
}

impl Shares {
    /// Whether a request of a session waits until its share and its limits let it start; then it is
    /// with the dispatcher, or where its file is looked for.
    #[cold]
    pub(crate) fn must_wait(
        &self,
        client: &Arc<ClientSession>,
        slot: usize,
        worker: usize,
        bytes: &[u8],
    ) -> bool {
        let mut reader = Reader::new(bytes);
        let Ok(header) = Header::decode(&mut reader) else { return false };
        let Ok(request) = Request::decode(&mut reader) else { return false };
        let Some((operation, subject)) = see(&request, client) else { return false };
        let moved = match subject {
            Subject::Bytes(_, bytes, range) => Some((bytes, range)),
            Subject::File(_) | Subject::Names(_) => None,
        };
        if client.is_writeback && moved.is_none() {
            return false;
        }
        let unplaced = || UnplacedRequest {
            client: Arc::clone(client),
            slot: slot as u16,
            worker,
            operation,
            daemon: DaemonIndex(header.daemon),
            pool: match request {
                Request::Fetch { .. } | Request::Store { .. } | Request::Push { .. } => {
                    client.slots.pool(slot)
                }
                _ => 0,
            },
            moved,
        };
        if client.is_writeback || !self.uses_places.load(Acquire) {
            return self.take_placed(unplaced(), None);
        }
        let mut places = self.places.lock();
        // Under this lock the dispatcher ends it (`rest`).
        if !self.is_active.load(Acquire) {
            return false;
        }
        let place = match subject {
            // Its directory is known only while some process has it open, as most that are asked for
            // their attributes are not: they would all wait.
            Subject::File(inode) => Some(places.known(inode)),
            Subject::Bytes(inode, ..) | Subject::Names(inode) => {
                places.find_or_wait(Instant::now(), inode, unplaced)
            }
        };
        drop(places);
        match place {
            Some(place) => self.take_placed(unplaced(), place.dir()),
            None => true,
        }
    }

    /// The job of a request that takes memory of a target, or may wait for the backing store; no job for
    /// others.
    pub(crate) fn job_word(
        &self,
        client: &ClientSession,
        slot: usize,
        request: &Request<'_>,
    ) -> JobWord {
        let operation = match request {
            Request::MapExtents { allocate: 1 | 2, .. }
            | Request::Write { .. }
            | Request::Store { .. }
            | Request::Push { .. } => Operation::Write,
            Request::MapExtents { .. } | Request::Read { .. } | Request::Fetch { .. }
                if self.readers == ReaderJobs::Named =>
            {
                Operation::Read
            }
            Request::MapExtents { .. } | Request::Read { .. } | Request::Fetch { .. }
                if client.is_writeback =>
            {
                Operation::Read
            }
            _ => return JobWord::NONE,
        };
        match is_urgent(client, slot) {
            true => JobWord::URGENT,
            false => self.account_of(client, slot, operation, None).word(),
        }
    }

    /// Files were found: their requests go on.
    pub(crate) fn place_found(
        &self,
        named: &NamedDirs,
        found: Vec<(Inode, Place)>,
        inboxes: &Inboxes,
    ) {
        let mut places = self.places.lock();
        places.publish(Instant::now(), named, found, &mut |request, place| {
            let (client, slot) = (Arc::clone(&request.client), request.slot);
            let worker = request.worker;
            if !self.take_placed(request, place.dir()) {
                let message = WorkerMessage::Released { client, slot, ticket: None };
                inboxes.send_to_worker(worker, message);
            }
        });
    }

    /// Whether a request of a file in this directory waits; then it is with the dispatcher.
    fn take_placed(&self, request: UnplacedRequest, dir: Option<&Arc<str>>) -> bool {
        let UnplacedRequest { client, slot, worker, operation, daemon, pool, moved } = request;
        let way = Way { daemon, pool };
        let account = self.account_of(&client, usize::from(slot), operation, dir);
        if moved.is_none() && !account.limits_operations {
            return false;
        }
        let work = match (moved, operation) {
            (None, _) => Work::Metadata,
            (Some(_), Operation::Read) if is_urgent(&client, slot.into()) => Work::Urgent,
            (Some(_), Operation::Read) => Work::Read,
            (Some(_), _) => Work::Write,
        };
        let (bytes, range) = moved.unzip();
        // Writes that wait make the file dirty again when they come.
        let range = range.filter(|_| !client.is_writeback);
        let bytes = bytes.unwrap_or(0);
        self.hold(HeldRequest { client, slot, worker, account, work, way, bytes, range })
    }

    /// The account of a session's requests of one kind in a directory, for the process behind a slot.
    fn account_of(
        &self,
        client: &ClientSession,
        slot: usize,
        operation: Operation,
        dir: Option<&Arc<str>>,
    ) -> Arc<JobAccount> {
        let mut accounts = client.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let accounts = &mut *accounts;
        let generation = self.generation.load(Acquire);
        if accounts.generation != generation {
            accounts.own.clear();
            accounts.by_block.clear();
            accounts.generation = generation;
        }
        let place = place_of(operation);
        let origin = client.slots.origin(slot);
        if let Some(taken) = origin.and_then(|block| self.activity.taken_by_mount(block)) {
            let (word, known) = accounts.by_block.entry(taken.block).or_default();
            if *word != taken.word {
                (*word, *known) = (taken.word, DirAccounts::new());
            }
            let tags = taken.owner.tags;
            let make = || Arc::new(self.find_account(&tags, operation, dir));
            return match known.entry(dir.cloned()).or_default().get_mut(place) {
                Some(known) => Arc::clone(known.get_or_insert_with(make)),
                None => make(),
            };
        }
        let known = accounts.own.get(&dir.cloned()).and_then(|known| known.get(place)?.as_ref());
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let peer = &client.session.peer;
        if accounts.said.is_none() {
            accounts.said = self.tags_of(peer.pid);
        }
        let said = accounts.said.unwrap_or(Tags::NONE);
        let tags = Tags { uid: peer.uid, gid: peer.gid, ..said };
        let found = Arc::new(match client.is_writeback {
            true => JobAccount::of_writeback(peer.uid),
            false => self.find_account(&tags, operation, dir),
        });
        // A process that has not said its name yet is asked again.
        if accounts.said.is_some()
            && let Some(entry) = accounts.own.entry(dir.cloned()).or_default().get_mut(place)
        {
            *entry = Some(Arc::clone(&found));
        }
        found
    }

    /// Job, program and tag of a process, as it says.
    fn tags_of(&self, pid: u32) -> Option<Tags> {
        let mut found = None;
        self.activity.each_taken(&mut |taken| {
            let tags = taken.owner.tags;
            let is_it = taken.owner.pid == pid && !taken.owner.is_by_mount && !taken.is_ended;
            if is_it && tags.program != Tags::NONE.program {
                found = Some(tags);
            }
        });
        found
    }

    pub(super) fn find_account(
        &self,
        tags: &Tags,
        operation: Operation,
        dir: Option<&Arc<str>>,
    ) -> JobAccount {
        let Tags { uid, gid, .. } = *tags;
        let (job, program, tag) = (text(&tags.job), text(&tags.program), text(&tags.tag));
        let dir = dir.map_or(&b""[..], |dir| dir.as_bytes());
        let facts = Facts { uid, gid, job, program, dir, tag, operation };
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let own = rules.rules.find_own_rule(&facts);
        let own = own.map(|rule| JobAccount::under(uid, job, Some(rule)));
        JobAccount::under(uid, job, rules.rules.find_rule(&facts)).within(own)
    }
}
