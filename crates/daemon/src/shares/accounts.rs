//! User and job of requests, and what a session remembers of them. Which they are: `gate`.

use crate::shares::device::AccountKey;
use qos::rules::{Operation, Rule, Scope};
use qos::scheduler::Limits;
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
    /// The rule is one of the user's own.
    pub(crate) is_own: bool,
    /// The account under one of the user's own rules, within which the requests keep, too.
    pub(crate) own: Option<Arc<JobAccount>>,
}

/// A number for a job under a rule (FNV-1a).
fn number_of(job: &[u8], [mark, rule]: [&[u8]; 2]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    job.iter().chain(b"\0").chain(mark).chain(rule).fold(0xcbf2_9ce4_8422_2325, step)
}

impl JobAccount {
    /// That of a user's job under a rule.
    pub(crate) fn under(user: u32, job: &[u8], rule: Option<&Rule>) -> JobAccount {
        // All jobs of the user are one then.
        let job = if rule.is_some_and(|rule| rule.scope() == Scope::User) { b"" } else { job };
        let is_own = rule.is_some_and(|rule| rule.own_user().is_some());
        // No name of a rule begins so.
        let mark: &[u8] = if is_own { b"~" } else { b"" };
        let number = number_of(job, [mark, rule.map_or("", Rule::name).as_bytes()]);
        let limits_operations = rule.is_some_and(|rule| {
            let only_bytes = Limits {
                operations_per_second_max: 0,
                in_flight_max: 0,
                dirty_bytes_max: 0,
                weight: Limits::default().weight,
                ..rule.limits()
            };
            only_bytes != rule.limits()
        });
        JobAccount {
            user,
            job: String::from_utf8_lossy(job).into_owned(),
            number,
            rule: rule.map(|rule| rule.name().to_owned()),
            limits_operations,
            dirty_bytes_max: rule.map_or(0, |rule| rule.limits().dirty_bytes_max),
            is_own,
            own: None,
        }
    }

    /// That of the writeback daemon, which no rule limits.
    pub(crate) fn of_writeback(user: u32) -> JobAccount {
        let job = "forebay-writeback";
        // No name of a rule begins so: no job has this number.
        let number = number_of(job.as_bytes(), [b"!", b""]);
        JobAccount { job: job.to_owned(), number, ..JobAccount::under(user, b"", None) }
    }

    /// The same for requests that keep within an account of the user's own, too.
    pub(crate) fn within(self, own: Option<JobAccount>) -> JobAccount {
        let limits_operations =
            self.limits_operations || own.as_ref().is_some_and(|own| own.limits_operations);
        JobAccount { limits_operations, own: own.map(Arc::new), ..self }
    }

    /// Its name, and that of the account of the user's own.
    pub(crate) fn keys(&self) -> (AccountKey, Option<AccountKey>) {
        let own = self.own.as_ref().map(|own| (own.user, own.number));
        ((self.user, self.number), own)
    }

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
