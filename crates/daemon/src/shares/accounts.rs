//! User and job of requests, and what a session remembers of them. Which they are: `gate`.

use qos::rules::Operation;
use shm::activity::{BlockIndex, Tags};
use std::collections::HashMap;
use std::sync::Arc;
use wire::{Inode, JobWord};

/// Log2 of the part of a file whose requests keep their order: what shares a stream (`net::bulk`).
const RANGE_LOG2: u32 = 20;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShareRange {
    inode: Inode,
    number: u64,
}

impl ShareRange {
    /// The part that has this offset.
    pub(crate) const fn at(inode: Inode, offset: u64) -> ShareRange {
        ShareRange { inode, number: offset >> RANGE_LOG2 }
    }
}

/// User and job of requests, and the rule that limits them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobAccount {
    /// User.
    pub(crate) user: u32,
    /// The job, as the process names it; empty: it does not, or the rule limits all of the user's.
    pub(crate) job: String,
    /// Hash of the job and the rule.
    pub(crate) number: u64,
    /// Name of the rule.
    pub(crate) rule: Option<String>,
    /// The rule says something about requests that move no bytes, too.
    pub(crate) limits_operations: bool,
    /// Most dirty bytes on a target, as the rule says; 0: the usual bound.
    pub(crate) dirty_bytes_max: u64,
}

impl JobAccount {
    /// The words about it that requests for memory of a target carry.
    pub(crate) fn word(&self) -> JobWord {
        let number = (self.number ^ self.number >> 32) as u32;
        let mib = self.dirty_bytes_max.div_ceil(1 << 20);
        JobWord {
            user: self.user,
            // 0 is no job.
            number: number.max(1),
            dirty_mib_max: u32::try_from(mib).unwrap_or(u32::MAX),
        }
    }
}

/// The accounts of a process's requests, in the order of `Operation::ALL`.
pub(crate) type OperationAccounts = [Option<Arc<JobAccount>>; Operation::ALL.len()];

/// The same by the directories that rules name, of which `None` is none. No more than rules name.
pub(crate) type DirAccounts = HashMap<Option<Arc<str>>, OperationAccounts>;

/// The accounts of a session's requests.
#[derive(Default)]
pub(crate) struct SessionAccounts {
    /// Of the rules by which they were found; 0: they were not.
    pub(crate) generation: u32,
    /// Job, program and tag, once the process has said them.
    pub(crate) said: Option<Tags>,
    /// Those of the session's own process.
    pub(crate) own: DirAccounts,
    /// Those of the processes for which a mount asks, by their blocks of counters, with the word that the
    /// block had: when it changed, the block is another's. No more than there are blocks.
    pub(crate) by_block: HashMap<BlockIndex, (u64, DirAccounts)>,
}
