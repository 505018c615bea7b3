//! Space of this daemon's target by account, and limits on it, as the target and the metadata service
//! of worker 0 share them.
//!
//! Worker 0 runs both sides under its lock: the service reads from the ledger what the target has
//! in use, and allowances that it writes apply from the target's next step on.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::quota::Account;

/// Ledger shared by a target and its service.
#[derive(Default)]
pub(crate) struct AccountLedger {
    /// The target counts space by account.
    is_on: AtomicBool,
    inner: Mutex<LedgerInner>,
}

#[derive(Default)]
struct LedgerInner {
    used: BTreeMap<Account, u64>,
    allowed: BTreeMap<Account, u64>,
    /// Incremented with each change of `allowed`.
    version: u64,
    is_counted: bool,
}

impl AccountLedger {
    fn inner(&self) -> MutexGuard<'_, LedgerInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once the target counts space by account.
    pub(crate) fn counts_accounts(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Bytes in use by an account on the target.
    pub(crate) fn used_by(&self, account: u64) -> u64 {
        self.inner().used.get(&Account(account)).copied().unwrap_or(0)
    }

    /// Calls `each` with every account that uses space, and its bytes.
    pub(crate) fn each_used(&self, each: &mut dyn FnMut(u64, u64)) {
        self.inner().used.iter().for_each(|(account, &bytes)| each(account.0, bytes));
    }

    /// True once the target knows the owners of all its bytes.
    pub(crate) fn is_counted(&self) -> bool {
        self.counts_accounts() && self.inner().is_counted
    }

    /// The target counts from now on.
    pub(crate) fn switch_on(&self) {
        self.is_on.store(true, Relaxed);
    }

    /// Allowances, if they are another version than `known`, which is updated.
    pub(crate) fn newer_allowances(&self, known: &mut u64) -> Option<BTreeMap<Account, u64>> {
        let inner = self.inner();
        (inner.version != *known).then(|| {
            *known = inner.version;
            inner.allowed.clone()
        })
    }

    /// Records what the target has in use, `used` if it has changed, and whether it knows all
    /// owners. True if it knows them for the first time.
    pub(crate) fn note_used(
        &self,
        used: Option<&BTreeMap<Account, u64>>,
        is_counted: bool,
    ) -> bool {
        let mut inner = self.inner();
        if let Some(used) = used {
            inner.used.clone_from(used);
        }
        let became_counted = is_counted && !inner.is_counted;
        inner.is_counted |= is_counted;
        became_counted
    }

    /// Sets the allowance of an account in bytes; `None`: unlimited.
    pub(crate) fn set_allowance(&self, account: u64, allowance: Option<u64>) {
        let mut inner = self.inner();
        inner.version += 1;
        match allowance {
            Some(bytes) => drop(inner.allowed.insert(Account(account), bytes)),
            None => drop(inner.allowed.remove(&Account(account))),
        }
    }
}
