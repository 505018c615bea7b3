//! The files of a voter: the base, that is the membership at some index of the log, and the tail,
//! that is its votes and the entries since. Two, since the base is large and rarely written.
//!
//! Encoded base: index, term, number of voters (4 bytes) and each (8), the membership.
//! Encoded tail: term, vote, commit, number of entries (4 bytes) and each as in `coding`.

use super::coding;
use crate::encoding::Encode;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};
use wire::codec::{Malformed, Reader};

/// Voters that an instance has at most.
const VOTERS_MAX: u32 = 9;

pub(super) struct Log {
    hard: HardState,
    voters: Vec<u64>,
    base_index: u64,
    base_term: u64,
    base_data: Vec<u8>,
    entries: Vec<Entry>,
}

impl Log {
    /// The log of an instance that begins: everywhere the same base, with index 1.
    pub(super) fn first(voters: Vec<u64>, base_data: Vec<u8>) -> Log {
        let hard = HardState { term: 1, commit: 1, ..HardState::default() };
        Log { hard, voters, base_index: 1, base_term: 1, base_data, entries: Vec::new() }
    }

    pub(super) fn restore(base: &[u8], tail: &[u8]) -> Result<Log, Malformed> {
        let mut base = Reader::new(base);
        let (base_index, base_term, count) = (base.u64()?, base.u64()?, base.u32()?);
        if count == 0 || count > VOTERS_MAX || base_index == 0 {
            return Err(Malformed);
        }
        let mut voters = Vec::new();
        for _ in 0..count {
            voters.push(base.u64()?);
        }
        let base_data = base.rest().to_vec();
        let mut tail = Reader::new(tail);
        let (term, vote, commit) = (tail.u64()?, tail.u64()?, tail.u64()?);
        let mut entries = Vec::new();
        for _ in 0..tail.u32()? {
            let entry = coding::decode_entry(&mut tail)?;
            // A crash between the two writes leaves a tail that begins before the base.
            if entry.index > base_index {
                if entry.index != base_index + 1 + entries.len() as u64 {
                    return Err(Malformed);
                }
                entries.push(entry);
            }
        }
        tail.end()?;
        let last = base_index + entries.len() as u64;
        let commit = commit.clamp(base_index, last);
        let hard = HardState { term: term.max(base_term), vote, commit, ..HardState::default() };
        Ok(Log { hard, voters, base_index, base_term, base_data, entries })
    }

    pub(super) fn base(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.base_data.len());
        self.base_index.encode(&mut bytes);
        self.base_term.encode(&mut bytes);
        (self.voters.len() as u32).encode(&mut bytes);
        self.voters.iter().for_each(|voter| voter.encode(&mut bytes));
        bytes.extend_from_slice(&self.base_data);
        bytes
    }

    pub(super) fn tail(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.hard.term.encode(&mut bytes);
        self.hard.vote.encode(&mut bytes);
        self.hard.commit.encode(&mut bytes);
        (self.entries.len() as u32).encode(&mut bytes);
        self.entries.iter().for_each(|entry| coding::encode_entry(entry, &mut bytes));
        bytes
    }

    pub(super) fn voters(&self) -> &[u64] {
        &self.voters
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

    pub(super) fn replace(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.base_index = metadata.index;
        self.base_term = metadata.term;
        self.base_data = snapshot.data.to_vec();
        self.voters = metadata.get_conf_state().voters.clone();
        self.entries.clear();
        self.hard.commit = self.hard.commit.max(metadata.index);
        self.hard.term = self.hard.term.max(metadata.term);
    }

    /// The base becomes `data`, which is the membership with all entries up to `index`.
    pub(super) fn compact(&mut self, index: u64, data: Vec<u8>) {
        let Ok(term) = self.term(index) else { return };
        let dropped = index.saturating_sub(self.base_index) as usize;
        self.entries.drain(..dropped.min(self.entries.len()));
        (self.base_index, self.base_term, self.base_data) = (index, term, data);
    }

    fn at(&self, index: u64) -> Option<&Entry> {
        let place = index.checked_sub(self.base_index + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    fn conf_state(&self) -> ConfState {
        ConfState::from((self.voters.clone(), Vec::new()))
    }
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
