//! Requests of the target that wait for the owner of their file or for a larger allowance of its
//! account, and queries to shards about owners. The counts are in `ledger`.

use crate::shared::Shared;
use crate::shared::inbox::Inboxes;
use crate::shared::reply::ReplyTo;
use crate::target::space::ledger::AccountLedger;
use data::Target;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use wire::codec::{Malformed, Reader, Writer};
use wire::errno::Errno;
use wire::quota::{Account, OWNERS_MAX, Owner};
use wire::{Inode, JobWord, Reply, Request};

/// Maximum number of owner queries in flight.
const QUERIES_MAX: usize = 8;
/// Pause before an unanswered query is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a request is held before the client is told to retry: as long as the metadata service
/// holds one.
const WAIT: Duration = Duration::from_secs(5);
/// Retry delay in that reply.
const RETRY_MICROS: u32 = 1000;
/// Bytes of an encoded request besides its data.
const REQUEST_BYTES: usize = 128;

/// Why requests are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HoldReason {
    /// The owner of the file is not known.
    Owner,
    /// The account needs this many more bytes.
    Limit(Account, u64),
}

/// Held requests about one file, in their order.
struct HeldRequests {
    why: HoldReason,
    requests: VecDeque<(Vec<u8>, ReplyTo)>,
    until: Instant,
}

/// A query about the owners of files.
struct OwnerQuery {
    inodes: Vec<Inode>,
    sent: Instant,
}

/// Owner of a file, and when it last changed.
pub(crate) type OwnerAnswer = (Inode, Owner, i64);

/// Held requests and pending queries.
#[derive(Default)]
pub(crate) struct AccountWaits {
    held: BTreeMap<Inode, HeldRequests>,
    queries: BTreeMap<u64, OwnerQuery>,
    queries_sent: u64,
    /// Usage as last written to the ledger, and the version that was last read.
    noted: BTreeMap<Account, u64>,
    version: u64,
}

/// The file that a request changes, and whether it allocates space there.
const fn changed(request: &Request<'_>) -> Option<(Inode, bool)> {
    match *request {
        Request::MapExtents { inode, allocate: 1 | 2, .. } | Request::Write { inode, .. } => {
            Some((inode, true))
        }
        Request::Truncate { inode, .. } | Request::Punch { inode, .. } => Some((inode, false)),
        _ => None,
    }
}

/// Encodes a request that is held, behind its job.
pub(crate) fn encode_held(request: &Request<'_>, job: JobWord) -> Vec<u8> {
    let brought = if let Request::Write { bytes, .. } = request { bytes.len() } else { 0 };
    let mut bytes = vec![0; REQUEST_BYTES + brought];
    let mut writer = Writer::new(&mut bytes);
    job.encode(&mut writer);
    request.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// The request and the job that `encode_held` encoded.
pub(crate) fn decode_held(bytes: &[u8]) -> Result<(Request<'_>, JobWord), Malformed> {
    let mut reader = Reader::new(bytes);
    let job = JobWord::decode(&mut reader)?;
    Ok((Request::decode(&mut reader)?, job))
}

impl AccountWaits {
    /// Holds a request that needs an unknown owner, or that must wait for earlier ones of its file;
    /// otherwise returns `to`. Without any limits nothing is held.
    pub(crate) fn hold_if_needed(
        &mut self,
        shared: &Shared,
        target: &Target,
        (request, job): (&Request<'_>, JobWord),
        to: ReplyTo,
    ) -> Option<ReplyTo> {
        if let Request::Remove { inodes } = *request {
            // Removed files are open nowhere, so clients of held requests are gone.
            for inode in wire::request::removed(inodes) {
                self.refuse_held(shared, inode, Errno::ESTALE);
            }
            return Some(to);
        }
        let Some((inode, makes)) = changed(request) else { return Some(to) };
        if let Some(held_requests) = self.held.get_mut(&inode) {
            held_requests.requests.push_back((encode_held(request, job), to));
            return None;
        }
        let accounts = target.account_usage();
        if !makes || !accounts.has_limits() || accounts.is_known(inode) {
            return Some(to);
        }
        self.hold(inode, HoldReason::Owner, encode_held(request, job), to);
        self.ask_owners(shared, &[inode]);
        None
    }

    fn hold(&mut self, inode: Inode, why: HoldReason, request: Vec<u8>, to: ReplyTo) {
        let until = Instant::now() + WAIT;
        let held_requests = HeldRequests { why, requests: VecDeque::new(), until };
        let held_requests = self.held.entry(inode).or_insert(held_requests);
        held_requests.why = why;
        held_requests.requests.push_front((request, to));
    }

    /// A request exceeds the allowance of an account: holds it and requests more.
    pub(crate) fn request_allowance(
        &mut self,
        inboxes: &Inboxes,
        (inode, request): (Inode, Vec<u8>),
        (account, requested): (Account, u64),
        to: ReplyTo,
    ) {
        self.hold(inode, HoldReason::Limit(account, requested), request, to);
        inboxes.draw_space(account, requested);
    }

    /// Refuses the held requests of a file.
    pub(crate) fn refuse_held(&mut self, shared: &Shared, inode: Inode, errno: Errno) {
        let requests = self.take_held(inode);
        requests.into_iter().for_each(|(_, to)| shared.refuse(to, errno));
    }

    /// Takes the held requests of a file, to carry them out.
    pub(crate) fn take_held(&mut self, inode: Inode) -> VecDeque<(Vec<u8>, ReplyTo)> {
        self.held.remove(&inode).map(|held_requests| held_requests.requests).unwrap_or_default()
    }

    /// If one of a file's requests is held again, the later ones must wait behind it.
    pub(crate) fn hold_behind(
        &mut self,
        inode: Inode,
        requests: &mut VecDeque<(Vec<u8>, ReplyTo)>,
    ) {
        if let Some(again) = self.held.get_mut(&inode) {
            again.requests.append(requests);
        }
    }

    /// True if requests of a file wait for its owner.
    pub(crate) fn waits_for_owner(&self, inode: Inode) -> bool {
        self.held.get(&inode).is_some_and(|held_requests| held_requests.why == HoldReason::Owner)
    }

    /// Files whose requests wait for an allowance of this account.
    pub(crate) fn waiting_for(&self, account: Account) -> Vec<Inode> {
        let is_of =
            |held: &HeldRequests| matches!(held.why, HoldReason::Limit(of, _) if of == account);
        let held = self.held.iter().filter(|(_, held)| is_of(held));
        held.map(|(&inode, _)| inode).collect()
    }

    /// Before a step: reads allowances.
    pub(crate) fn read_ledger(&mut self, ledger: &AccountLedger, target: &mut Target) {
        if let Some(allowed) = ledger.newer_allowances(&mut self.version) {
            target.allow(allowed);
        }
    }

    /// After a step: writes usage.
    pub(crate) fn update_ledger(&mut self, shared: &Shared, target: &Target) {
        let accounts = target.account_usage();
        let used = accounts.used();
        let is_counted = accounts.unknown().is_empty();
        let has_changed = *used != self.noted;
        if has_changed {
            self.noted.clone_from(used);
        }
        if shared.ledger.note_used(has_changed.then_some(used), is_counted) {
            // Until now the service did not know the usage.
            for held_requests in self.held.values() {
                if let HoldReason::Limit(account, requested) = held_requests.why {
                    shared.inboxes.draw_space(account, requested);
                }
            }
        }
        if !is_counted && self.queries.is_empty() {
            self.ask_unknown(shared, target);
        }
    }

    /// Queries unknown owners.
    pub(crate) fn ask_unknown(&mut self, shared: &Shared, target: &Target) {
        let free_queries = QUERIES_MAX.saturating_sub(self.queries.len());
        let unknown = target.account_usage().unknown().iter().copied();
        let requested = unknown.filter(|inode| {
            !self.queries.values().any(|query: &OwnerQuery| query.inodes.contains(inode))
        });
        let requested: Vec<Inode> = requested.take(free_queries * OWNERS_MAX).collect();
        for of_shard in requested.chunk_by(|one, other| one.shard() == other.shard()) {
            for inodes in of_shard.chunks(OWNERS_MAX) {
                if self.queries.len() < QUERIES_MAX {
                    self.ask_owners(shared, inodes);
                }
            }
        }
    }

    fn ask_owners(&mut self, shared: &Shared, inodes: &[Inode]) {
        let Some(inode) = inodes.first() else { return };
        let id = self.queries_sent;
        self.queries_sent += 1;
        let numbers: Vec<u8> = inodes.iter().flat_map(|inode| inode.0.to_le_bytes()).collect();
        let query = OwnerQuery { inodes: inodes.to_vec(), sent: Instant::now() };
        self.queries.insert(id, query);
        let request = Request::Owners { inodes: &numbers };
        shared.ask_shard_of(*inode, &request, ReplyTo::Owners { query: id });
    }

    /// A shard answered a query about owners. `None`: the answer cannot be used, and the query is
    /// repeated later.
    pub(crate) fn owners_answered(&mut self, id: u64, answer: &[u8]) -> Option<Vec<OwnerAnswer>> {
        let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(answer)) else {
            return None;
        };
        let OwnerQuery { inodes, .. } = self.queries.remove(&id)?;
        let mut reader = Reader::new(bytes);
        let owners = inodes.into_iter().map_while(|inode| {
            let (uid, project) = (reader.u32().ok()?, reader.u32().ok()?);
            Some((inode, Owner { uid, project }, reader.u64().ok()?.cast_signed()))
        });
        Some(owners.collect())
    }

    /// Repeats unanswered queries, and makes requests that were held for too long retry. Returns
    /// the microseconds until the next deadline.
    pub(crate) fn tick(&mut self, shared: &Shared, target: &Target) -> Option<u64> {
        if !target.account_usage().is_on() {
            return None;
        }
        let now = Instant::now();
        let held = self.held.iter();
        let late: Vec<Inode> = held
            .filter(|(_, held_requests)| held_requests.until <= now)
            .map(|(&inode, _)| inode)
            .collect();
        for inode in late {
            let requests = self.take_held(inode);
            requests.into_iter().for_each(|(_, to)| shared.busy(to, RETRY_MICROS));
        }
        let late = self.queries.iter().filter(|(_, query)| query.sent + RETRY_PAUSE <= now);
        let late: Vec<u64> = late.map(|(&id, _)| id).collect();
        for id in late {
            if let Some(query) = self.queries.remove(&id) {
                let is_unknown = |inode: &Inode| !target.account_usage().is_known(*inode);
                let inodes: Vec<Inode> = query.inodes.into_iter().filter(is_unknown).collect();
                self.ask_owners(shared, &inodes);
            }
        }
        let is_idle = self.queries.is_empty() && self.held.is_empty();
        (!is_idle).then_some(RETRY_PAUSE.as_micros() as u64)
    }
}
