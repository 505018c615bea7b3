//! The table of pools, the same in every service.
//!
//! Invariants
//! 1. A removed pool stays in the table, without targets, until its number is needed again: then
//!    directories that still name it have no pool.

use wire::pool::{PoolEntry, targets};

use crate::core::record::Record;
use crate::core::state::State;

/// A pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PoolDefinition {
    /// Of the change that made it what it is; a larger one is later.
    pub(crate) number: u64,
    pub(crate) name: Vec<u8>,
    /// Encoded targets (`wire::pool`); none: the pool is removed.
    pub(crate) targets: Vec<u8>,
    /// Coordinator only: all services know it.
    pub(crate) is_known: bool,
}

impl PoolDefinition {
    pub(crate) fn is_removed(&self) -> bool {
        self.targets.is_empty()
    }

    /// The record that puts it.
    pub(crate) fn record(&self, id: u8) -> Record<'_> {
        let PoolDefinition { number, name, targets, is_known } = self;
        let known = u8::from(*is_known);
        Record::PutPool { id, number: *number, name, targets, known }
    }

    pub(crate) fn entry(&self, id: u8) -> PoolEntry<'_> {
        PoolEntry { id, name: &self.name, targets: &self.targets }
    }

    /// Its targets with their `max_perf`, given or measured.
    pub(crate) fn members(targets_bytes: &[u8]) -> Vec<(u32, u64)> {
        targets(targets_bytes).map(|one| (u32::from(one.target.0), one.max_perf)).collect()
    }
}

impl State {
    /// A pool that is not removed.
    pub(crate) fn pool(&self, id: u8) -> Option<&PoolDefinition> {
        self.pools.get(&id).filter(|pool| !pool.is_removed())
    }

    pub(crate) fn apply_to_pools(&mut self, record: &Record<'_>) {
        if let Record::PutPool { id, number, name, targets, known } = *record {
            let (name, targets, is_known) = (name.to_vec(), targets.to_vec(), known != 0);
            self.pools.insert(id, PoolDefinition { number, name, targets, is_known });
        }
    }
}
