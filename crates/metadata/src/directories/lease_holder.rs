//! Leases, on the side that holds them: the leases that services of other hosts granted to a daemon
//! for its clients. A state machine like the service; clients read the result through `LeaseTable`.
//!
//! Messages may be lost, duplicated and reordered. Correctness rests on this (`leases` has the
//! other half):
//!
//! 1. A lease is valid for a term from the time of the request, whenever the answer came.
//! 2. A revocation removes its entries before it is acknowledged, and its number is remembered: a
//!    grant that was made before it restores nothing.
//! 3. A higher term number means that the service forgot its grants: all entries of the previous
//!    term are removed before the new one is published.

use std::collections::BTreeMap;

use placement::Map;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::hash::entry_key;
use wire::lease::{RENEW_NANOS, TERM_NANOS, service};
use wire::request::walk;
use wire::{Attributes, DaemonIndex, Inode, Reader, Reply, Request, ShardIndex};

use crate::core::peer_messages::{HolderMessage, Message};

/// Most directories of one service that are cached; one more, and all are dropped.
const ENTRY_COUNT_MAX: usize = 2048;

/// The table that clients read. Services are numbered by `wire::lease::service`.
pub trait LeaseTable {
    /// Extends the validity of the service's entries until then.
    fn extend(&mut self, service: usize, until: i64);
    /// Invalidates all entries of a service.
    fn close(&mut self, service: usize);
    /// Entries of the service that are put from now on are valid until then; it has none at the
    /// moment.
    fn open(&mut self, service: usize, until: i64);
    /// Puts a directory, and the key of the entry that leads to it; 0: none.
    fn put(&mut self, key: u128, directory: &Attributes);
    /// Removes both. No client finds them once this has returned.
    fn remove(&mut self, key: u128, directory: Inode);
    /// True if a client used an entry of the service since the last call.
    fn was_used(&mut self, service: usize) -> bool;
}

/// An answered `Walk` of a client of this host.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredWalk<'a> {
    /// The shard that it was sent to.
    pub shard: ShardIndex,
    /// When it was sent, in nanoseconds of the monotonic clock.
    pub sent_nanos: i64,
    /// The request.
    pub request: Request<'a>,
    /// The answer.
    pub reply: Reply<'a>,
}

/// The lease term of one service.
#[derive(Debug)]
struct HeldTerm {
    /// A shard of the service.
    address: ShardIndex,
    /// Number of the term; 0: there was none yet.
    number: u64,
    until: i64,
    /// Number of its last revocation.
    revocation_last: u64,
    entries: BTreeMap<Inode, u128>,
    /// When to check whether its leases are used.
    check_at: i64,
}

/// All leases that a daemon holds.
#[derive(Debug)]
pub struct Holder {
    me: DaemonIndex,
    map: Map,
    workers: usize,
    terms: BTreeMap<usize, HeldTerm>,
}

impl Holder {
    /// Holds no lease yet. `workers` as in `Config`.
    #[must_use]
    pub const fn new(me: DaemonIndex, map: Map, workers: usize) -> Holder {
        Holder { me, map, workers, terms: BTreeMap::new() }
    }

    fn service_of(&self, shard: ShardIndex) -> Option<usize> {
        let is_one = shard.0 < wire::limits::SHARD_COUNT;
        let name = self.map.service(shard, self.workers);
        is_one.then(|| service(name.first, name.worker.into()))
    }

    /// The term of the service of a shard, created empty if there is none.
    fn term(&mut self, address: ShardIndex) -> Option<(usize, &mut HeldTerm)> {
        let service = self.service_of(address)?;
        let (number, until, revocation_last, check_at) = (0, i64::MIN, 0, i64::MAX);
        let new = || HeldTerm {
            address,
            number,
            until,
            revocation_last,
            entries: BTreeMap::new(),
            check_at,
        };
        Some((service, self.terms.entry(service).or_insert_with(new)))
    }

    /// Takes the leases granted with an answer. True if `deadline` became earlier.
    pub fn walked(
        &mut self,
        now: i64,
        walked: &AnsweredWalk<'_>,
        table: &mut impl LeaseTable,
    ) -> bool {
        let Reply::Walked { leased, term: number, revocation, chain, .. } = walked.reply else {
            return false;
        };
        let until = walked.sent_nanos.saturating_add(TERM_NANOS);
        if leased == 0 || number == 0 || until <= now {
            return false;
        }
        let before = self.deadline();
        let Some((service, term)) = self.term(walked.shard) else { return false };
        if number < term.number {
            return false;
        }
        if number > term.number {
            term.forget(service, table);
            (term.number, term.until) = (number, until);
            table.open(service, until);
        } else {
            term.extend(service, until, table);
        }
        term.check_at = walked.sent_nanos.saturating_add(RENEW_NANOS);
        if revocation >= term.revocation_last {
            let mut entries = entries(&walked.request, chain);
            entries.retain(|&(place, _, _)| leased & 1u16.checked_shl(place).unwrap_or(0) != 0);
            for (_, key, directory) in entries {
                self.put(service, key, &directory, table);
            }
        }
        before.is_none_or(|before| self.deadline().is_some_and(|now| now < before))
    }

    fn put(
        &mut self,
        service: usize,
        key: u128,
        directory: &Attributes,
        table: &mut impl LeaseTable,
    ) {
        let is_its = self.service_of(directory.inode.shard()) == Some(service);
        let Some(term) = self.terms.get_mut(&service) else { return };
        if !is_its || !directory.is_directory() || directory.links == 0 {
            return;
        }
        if term.entries.len() >= ENTRY_COUNT_MAX && !term.entries.contains_key(&directory.inode) {
            for (inode, key) in core::mem::take(&mut term.entries) {
                table.remove(key, inode);
            }
        }
        let known = term.entries.entry(directory.inode).or_default();
        if key != 0 {
            *known = key;
        }
        table.put(key, directory);
    }

    /// Takes a message of a service. `is_from_owner`: whether it came from the daemon that owns a shard.
    /// Messages to services of shards go to `out`.
    pub fn take(
        &mut self,
        now: i64,
        is_from_owner: impl FnOnce(ShardIndex) -> bool,
        bytes: &[u8],
        table: &mut impl LeaseTable,
        out: &mut Vec<(ShardIndex, Vec<u8>)>,
    ) {
        let Ok(message) = HolderMessage::decode(&mut Reader::new(bytes)) else { return };
        let (HolderMessage::Revoke { from: shard, .. }
        | HolderMessage::Renewed { from: shard, .. }) = message;
        let (shard, me) = (ShardIndex(shard), self.me.0);
        if self.service_of(shard).is_none() || !is_from_owner(shard) {
            return;
        }
        let Some((service, term)) = self.term(shard) else { return };
        match message {
            HolderMessage::Revoke { number, directory, key, .. } => {
                let Ok(key) = key.try_into().map(u128::from_le_bytes) else { return };
                term.revocation_last = term.revocation_last.max(number);
                let known = term.entries.remove(&directory);
                if known.is_some_and(|known| known != key) {
                    table.remove(known.unwrap_or(0), directory);
                }
                table.remove(key, directory);
                let mut bytes = Vec::new();
                Message::Revoked { holder: me, number }.encode(&mut bytes);
                out.push((shard, bytes));
            }
            HolderMessage::Renewed { term: number, sent, .. } => {
                let sent = sent.cast_signed();
                if number == term.number && (0..=now).contains(&sent) {
                    term.extend(service, sent.saturating_add(TERM_NANOS), table);
                }
            }
        }
    }

    /// Timer: renews the terms that are due and whose leases are used.
    pub fn tick(
        &mut self,
        now: i64,
        table: &mut impl LeaseTable,
        out: &mut Vec<(ShardIndex, Vec<u8>)>,
    ) {
        let holder = self.me.0;
        for (&service, term) in &mut self.terms {
            if term.check_at > now {
                continue;
            }
            // After the end of a term, the next walk requests a new one.
            let is_over = term.until <= now;
            term.check_at = if is_over { i64::MAX } else { now.saturating_add(RENEW_NANOS) };
            if !is_over && table.was_used(service) {
                let mut bytes = Vec::new();
                let sent = now.cast_unsigned();
                Message::Renew { holder, term: term.number, sent }.encode(&mut bytes);
                out.push((term.address, bytes));
            }
        }
    }

    /// When `tick` is due.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        self.terms.values().map(|term| term.check_at).min().filter(|&at| at != i64::MAX)
    }
}

impl HeldTerm {
    /// Removes all valid entries.
    fn forget(&mut self, service: usize, table: &mut impl LeaseTable) {
        table.close(service);
        for (inode, key) in core::mem::take(&mut self.entries) {
            table.remove(key, inode);
        }
    }

    fn extend(&mut self, service: usize, until: i64, table: &mut impl LeaseTable) {
        if until > self.until {
            self.until = until;
            table.extend(service, until);
        }
    }
}

/// Position, key and attributes of the directories on a walk.
fn entries(request: &Request<'_>, chain: &[u8]) -> Vec<(u32, u128, Attributes)> {
    let Request::Walk { directory, from, names } = *request else { return Vec::new() };
    let mut names = names.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let (mut parent, mut entries) = (directory, Vec::new());
    let mut chain = chain.chunks_exact(ATTRIBUTES_BYTES);
    let mut take = || Attributes::decode(&mut Reader::new(chain.next()?)).ok();
    let mut place = 0;
    if from == walk::DIRECTORY {
        match take() {
            Some(attributes) if attributes.inode == directory => entries.push((0, 0, attributes)),
            _ => return entries,
        }
        place = 1;
    }
    while let (Some(name), Some(attributes)) = (names.next(), take()) {
        entries.push((place, entry_key(parent, name), attributes));
        (parent, place) = (attributes.inode, place + 1);
    }
    entries
}
