//! The files of a voter: the base, that is the membership at some index of the log, and the tail,
//! that is its votes and the entries since. Two, since the base is large and rarely written.
//!
//! Encoded base: name of the voter, index, term, the membership. Index 0 without a membership: a new
//! voter, which knows nothing yet.
//! Encoded tail: name of the voter, term, vote, commit, number of entries (4 bytes) and each as in
//! `coding`.
//!
//! The voters of an index are those of the membership there, so a change of them that was applied is
//! stored as a new base.

use super::coding;
use super::id;
use crate::membership::Membership;
use crate::voters::{Voter, Voters};
use encoding::{Decode, Encode};
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// The greatest term and index that are stored: those of messages, and what a voter added to them.
const NUMBER_MAX_STORED: u64 = 2 * coding::NUMBER_MAX;

pub(super) struct Log {
    own: Voter,
    hard: HardState,
    voters: Voters,
    base_index: u64,
    base_term: u64,
    base_data: Vec<u8>,
    entries: Vec<Entry>,
}

impl Log {
    /// The log of an instance that begins: everywhere the same base, with index 1.
    pub(super) fn first(own: DaemonIndex, membership: &Membership) -> Log {
        let own = Voter { daemon: own, start: 0, number: 0 };
        let hard = HardState { term: 1, commit: 1, ..HardState::default() };
        let (voters, base_data) = (membership.voters().clone(), membership.to_bytes());
        Log { own, hard, voters, base_index: 1, base_term: 1, base_data, entries: Vec::new() }
    }

    /// The log of a voter that joins.
    pub(super) fn empty(own: Voter) -> Log {
        Log {
            own,
            hard: HardState::default(),
            voters: Voters::default(),
            base_index: 0,
            base_term: 0,
            base_data: Vec::new(),
            entries: Vec::new(),
        }
    }

    pub(super) fn restore(base: &[u8], tail: &[u8]) -> Result<Log, Malformed> {
        let mut base = Reader::new(base);
        let own = Voter::decode(&mut base)?;
        let (base_index, base_term) = (base.u64()?, base.u64()?);
        let base_data = base.rest().to_vec();
        let is_new = base_index == 0 && base_data.is_empty();
        let mut log = Log { base_index, base_term, base_data, ..Log::empty(own) };
        if base_index > NUMBER_MAX_STORED || base_term > NUMBER_MAX_STORED {
            return Err(Malformed);
        }
        if !is_new {
            if base_index == 0 || base_term == 0 {
                return Err(Malformed);
            }
            log.voters = Membership::from_bytes(&log.base_data)?.voters;
        }
        let mut tail = Reader::new(tail);
        let is_own = Voter::decode(&mut tail)? == own;
        let (term, vote, commit) = (tail.u64()?, tail.u64()?, tail.u64()?);
        if term > NUMBER_MAX_STORED {
            return Err(Malformed);
        }
        let mut last_term = base_term;
        // A crash between the two writes leaves a tail that begins before the base, or another voter's.
        let mut is_whole = is_own;
        for _ in 0..tail.u32()? {
            let entry = coding::decode_entry(&mut tail)?;
            if entry.index <= base_index || !is_whole {
                continue;
            }
            if entry.index != base_index + 1 + log.entries.len() as u64 {
                return Err(Malformed);
            }
            // Entries of an earlier term than the base's were not agreed.
            is_whole = entry.term >= base_term;
            if is_whole {
                // A new voter gets a base first. Terms never fall, and none is above the voter's.
                if is_new || entry.term < last_term || entry.term > term {
                    return Err(Malformed);
                }
                last_term = entry.term;
                log.entries.push(entry);
            }
        }
        tail.end()?;
        let last = base_index + log.entries.len() as u64;
        if is_own {
            let (term, commit) = (term.max(base_term), commit.clamp(base_index, last));
            log.hard = HardState { term, vote, commit, ..HardState::default() };
        } else {
            log.hard = HardState { term: base_term, commit: base_index, ..HardState::default() };
        }
        Ok(log)
    }

    pub(super) fn base(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.base_data.len());
        self.own.encode(&mut bytes);
        self.base_index.encode(&mut bytes);
        self.base_term.encode(&mut bytes);
        bytes.extend_from_slice(&self.base_data);
        bytes
    }

    pub(super) fn tail(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.own.encode(&mut bytes);
        self.hard.term.encode(&mut bytes);
        self.hard.vote.encode(&mut bytes);
        self.hard.commit.encode(&mut bytes);
        (self.entries.len() as u32).encode(&mut bytes);
        self.entries.iter().for_each(|entry| coding::encode_entry(entry, &mut bytes));
        bytes
    }

    pub(super) const fn own(&self) -> Voter {
        self.own
    }

    pub(super) fn base_data(&self) -> &[u8] {
        &self.base_data
    }

    pub(super) const fn base_index(&self) -> u64 {
        self.base_index
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn commit(&mut self, index: u64) {
        self.hard.commit = index;
    }

    pub(super) fn append(&mut self, hard: Option<HardState>, entries: &[Entry]) {
        if let Some(hard) = hard {
            self.hard = hard;
        }
        if let Some(first) = entries.first() {
            // A new leader replaces what was not agreed.
            let kept = first.index.saturating_sub(self.base_index + 1);
            self.entries.truncate(kept as usize);
            self.entries.extend_from_slice(entries);
        }
    }

    pub(super) fn replace(&mut self, snapshot: &Snapshot, membership: &Membership) {
        let metadata = snapshot.get_metadata();
        self.base_index = metadata.index;
        self.base_term = metadata.term;
        self.base_data = snapshot.data.to_vec();
        self.voters = membership.voters().clone();
        self.entries.clear();
        self.hard.commit = self.hard.commit.max(metadata.index);
        self.hard.term = self.hard.term.max(metadata.term);
    }

    /// The base becomes the membership, to which all entries up to `index` were applied.
    pub(super) fn compact(&mut self, index: u64, membership: &Membership) {
        let Ok(term) = self.term(index) else { return };
        let dropped = index.saturating_sub(self.base_index) as usize;
        self.entries.drain(..dropped.min(self.entries.len()));
        (self.base_index, self.base_term) = (index, term);
        (self.base_data, self.voters) = (membership.to_bytes(), membership.voters().clone());
    }

    fn at(&self, index: u64) -> Option<&Entry> {
        let place = index.checked_sub(self.base_index + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    fn conf_state(&self) -> ConfState {
        conf_state(&self.voters)
    }
}

/// The voters as `raft` names them.
pub(super) fn conf_state(voters: &Voters) -> ConfState {
    let ids = |set: &[Voter]| set.iter().copied().map(id).collect();
    let (voters, voters_outgoing) = (ids(&voters.next), ids(&voters.before));
    ConfState { voters, voters_outgoing, ..ConfState::default() }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf_state()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        let mut found: Vec<Entry> =
            (low..high).map_while(|index| self.at(index).cloned()).collect();
        raft::util::limit_size(&mut found, max_size.into());
        Ok(found)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base_index {
            return Ok(self.base_term);
        }
        if index < self.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        self.at(index).map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.base_index + self.entries.len() as u64)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if request_index > self.base_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot { data: self.base_data.clone().into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.base_index;
        metadata.term = self.base_term;
        *metadata.mut_conf_state() = self.conf_state();
        Ok(snapshot)
    }
}
