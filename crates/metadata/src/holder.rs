//! Leases, on the side that holds them: what a daemon was granted by services of other hosts for the
//! clients of its own. A state machine as the service is; what clients read is behind `Table`.
//!
//! Messages are lost, doubled and overtaken here, too. What keeps it right (`leases` has the other
//! half):
//!
//! 1. What is believed counts until a term after it was asked for, whenever the answer came.
//! 2. A recall takes its rows away before it is answered, and is remembered by its number: a grant
//!    that was made before it brings nothing back.
//! 3. A pact of a higher number means that the service forgot what it had granted: all rows of the one
//!    before are taken away before the new one is told of.

use std::collections::BTreeMap;

use placement::Map;
use placement::map::worker_of_shard;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::hash::entry_key;
use wire::lease::{RENEW_NANOS, TERM_NANOS, service};
use wire::request::walk;
use wire::{Attributes, DaemonIndex, Inode, Reader, Reply, Request, ShardIndex};

use crate::peer::{Message, Word};

/// Directories of one service that are kept; one more, and all are forgotten.
const ROW_COUNT_MAX: usize = 2048;

/// What clients read. Numbers of services are `wire::lease::service`.
pub trait Table {
    /// Rows of a service may be believed until then, as before.
    fn extend(&mut self, service: usize, until: i64);
    /// No row of a service may be believed.
    fn close(&mut self, service: usize);
    /// Rows of a service may be believed that are there from now on; none is there now.
    fn open(&mut self, service: usize, until: i64);
    /// A directory, and the key of the entry that leads to it; 0: none.
    fn put(&mut self, key: u128, directory: &Attributes);
    /// Takes them away. Nobody finds them once this returned.
    fn remove(&mut self, key: u128, directory: Inode);
    /// True if somebody used a row of the service since this was asked last.
    fn was_used(&mut self, service: usize) -> bool;
}

/// A `Walk` of a client of this host that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Walked<'a> {
    /// The shard that it was sent to, and when.
    pub shard: ShardIndex,
    /// By the steady clock.
    pub sent_nanos: i64,
    /// The request.
    pub request: Request<'a>,
    /// The answer.
    pub reply: Reply<'a>,
}

/// What was agreed on with one service.
#[derive(Debug)]
struct Pact {
    /// Where the service is reached.
    address: ShardIndex,
    /// 0: there was none yet.
    number: u64,
    until: i64,
    /// Number of its last recall.
    recalled: u64,
    rows: BTreeMap<Inode, u128>,
    /// When to look whether it is used.
    look_at: i64,
}

/// All that a daemon holds.
#[derive(Debug)]
pub struct Holder {
    me: DaemonIndex,
    map: Map,
    workers: usize,
    pacts: BTreeMap<usize, Pact>,
}

impl Holder {
    /// Holds nothing yet. `workers` as in `Config`.
    #[must_use]
    pub const fn new(me: DaemonIndex, map: Map, workers: usize) -> Holder {
        Holder { me, map, workers, pacts: BTreeMap::new() }
    }

    fn service_of(&self, shard: ShardIndex) -> Option<usize> {
        let is_one = shard.0 < wire::limits::SHARD_COUNT;
        is_one.then(|| service(self.map.owner(shard), worker_of_shard(shard, self.workers)))
    }

    /// The pact with the service of a shard, perhaps a new one without anything.
    fn pact(&mut self, address: ShardIndex) -> Option<(usize, &mut Pact)> {
        let service = self.service_of(address)?;
        let (number, until, recalled, look_at) = (0, i64::MIN, 0, i64::MAX);
        let new = || Pact { address, number, until, recalled, rows: BTreeMap::new(), look_at };
        Some((service, self.pacts.entry(service).or_insert_with(new)))
    }

    /// Takes what an answer grants. True if `deadline` came nearer.
    pub fn walked(&mut self, now: i64, walked: &Walked<'_>, table: &mut impl Table) -> bool {
        let Reply::Walked { leased, pact: number, recalls, chain, .. } = walked.reply else {
            return false;
        };
        let until = walked.sent_nanos.saturating_add(TERM_NANOS);
        if leased == 0 || number == 0 || until <= now {
            return false;
        }
        let before = self.deadline();
        let Some((service, pact)) = self.pact(walked.shard) else { return false };
        if number < pact.number {
            return false;
        }
        if number > pact.number {
            pact.forget(service, table);
            (pact.number, pact.until) = (number, until);
            table.open(service, until);
        } else {
            pact.extend(service, until, table);
        }
        pact.look_at = walked.sent_nanos.saturating_add(RENEW_NANOS);
        if recalls >= pact.recalled {
            let mut rows = rows(&walked.request, chain);
            rows.retain(|&(place, _, _)| leased & 1u16.checked_shl(place).unwrap_or(0) != 0);
            for (_, key, directory) in rows {
                self.put(service, key, &directory, table);
            }
        }
        before.is_none_or(|before| self.deadline().is_some_and(|now| now < before))
    }

    fn put(&mut self, service: usize, key: u128, directory: &Attributes, table: &mut impl Table) {
        let is_its = self.service_of(directory.inode.shard()) == Some(service);
        let Some(pact) = self.pacts.get_mut(&service) else { return };
        if !is_its || !directory.is_directory() || directory.links == 0 {
            return;
        }
        if pact.rows.len() >= ROW_COUNT_MAX && !pact.rows.contains_key(&directory.inode) {
            for (inode, key) in core::mem::take(&mut pact.rows) {
                table.remove(key, inode);
            }
        }
        let known = pact.rows.entry(directory.inode).or_default();
        if key != 0 {
            *known = key;
        }
        table.put(key, directory);
    }

    /// Takes a word of a service of the daemon `from`; messages to services of shards go to `out`.
    pub fn take(
        &mut self,
        now: i64,
        from: DaemonIndex,
        bytes: &[u8],
        table: &mut impl Table,
        out: &mut Vec<(ShardIndex, Vec<u8>)>,
    ) {
        let Ok(word) = Word::decode(&mut Reader::new(bytes)) else { return };
        let (Word::Recall { from: shard, .. } | Word::Renewed { from: shard, .. }) = word;
        let (shard, me) = (ShardIndex(shard), self.me.0);
        if self.service_of(shard).is_none() || self.map.owner(shard) != from {
            return;
        }
        let Some((service, pact)) = self.pact(shard) else { return };
        match word {
            Word::Recall { number, directory, key, .. } => {
                let Ok(key) = key.try_into().map(u128::from_le_bytes) else { return };
                pact.recalled = pact.recalled.max(number);
                let known = pact.rows.remove(&directory);
                if known.is_some_and(|known| known != key) {
                    table.remove(known.unwrap_or(0), directory);
                }
                table.remove(key, directory);
                let mut bytes = Vec::new();
                Message::Recalled { holder: me, number }.encode(&mut bytes);
                out.push((shard, bytes));
            }
            Word::Renewed { pact: number, sent, .. } => {
                let sent = sent.cast_signed();
                if number == pact.number && (0..=now).contains(&sent) {
                    pact.extend(service, sent.saturating_add(TERM_NANOS), table);
                }
            }
        }
    }

    /// Renews what is used, when it is due.
    pub fn keep(&mut self, now: i64, table: &mut impl Table, out: &mut Vec<(ShardIndex, Vec<u8>)>) {
        let holder = self.me.0;
        for (&service, pact) in &mut self.pacts {
            if pact.look_at > now {
                continue;
            }
            // Who needs it when it is over asks anew.
            let is_over = pact.until <= now;
            pact.look_at = if is_over { i64::MAX } else { now.saturating_add(RENEW_NANOS) };
            if !is_over && table.was_used(service) {
                let mut bytes = Vec::new();
                let sent = now.cast_unsigned();
                Message::Renew { holder, pact: pact.number, sent }.encode(&mut bytes);
                out.push((pact.address, bytes));
            }
        }
    }

    /// When `keep` is wanted.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        self.pacts.values().map(|pact| pact.look_at).min().filter(|&at| at != i64::MAX)
    }
}

impl Pact {
    /// Takes all rows away that may be believed.
    fn forget(&mut self, service: usize, table: &mut impl Table) {
        table.close(service);
        for (inode, key) in core::mem::take(&mut self.rows) {
            table.remove(key, inode);
        }
    }

    fn extend(&mut self, service: usize, until: i64, table: &mut impl Table) {
        if until > self.until {
            self.until = until;
            table.extend(service, until);
        }
    }
}

/// Place, key and attributes of what a walk came by.
fn rows(request: &Request<'_>, chain: &[u8]) -> Vec<(u32, u128, Attributes)> {
    let Request::Walk { directory, from, names } = *request else { return Vec::new() };
    let mut names = names.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let (mut parent, mut rows) = (directory, Vec::new());
    let mut chain = chain.chunks_exact(ATTRIBUTES_BYTES);
    let mut take = || Attributes::decode(&mut Reader::new(chain.next()?)).ok();
    let mut place = 0;
    if from == walk::DIRECTORY {
        match take() {
            Some(attributes) if attributes.inode == directory => rows.push((0, 0, attributes)),
            _ => return rows,
        }
        place = 1;
    }
    while let (Some(name), Some(attributes)) = (names.next(), take()) {
        rows.push((place, entry_key(parent, name), attributes));
        (parent, place) = (attributes.inode, place + 1);
    }
    rows
}
