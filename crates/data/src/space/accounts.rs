//! Usage of a target by account, once the caller asks for it (`Target::count`), and limits.
//!
//! A target knows files by inode number. It is told the owner (`set_owner`) by the shards, which
//! its caller queries, and when an owner changes. Bytes of a file without known owner count for no
//! account; the file is in `unknown`. First extents preallocated for files that do not exist yet
//! count for no account until something is written into them; extents preallocated ahead of a
//! writer count for its file.
//!
//! Invariants, once it counts:
//!  1. `files` has the bytes of each file's extents, except preallocated first ones.
//!  2. `used` is the sum of those over the files whose owner is known.

use crate::admission::stop::OverLimit;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::quota::{Account, Owner};
use wire::reply::Extent;

/// Bytes held by a file, and its owner with the time of the ownership change.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    bytes: u64,
    owner: Option<(Owner, i64)>,
}

/// Usage and limits of all accounts.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    is_on: bool,
    files: BTreeMap<Inode, File>,
    unknown: BTreeSet<Inode>,
    used: BTreeMap<Account, u64>,
    allowed: BTreeMap<Account, u64>,
}

impl Accounts {
    /// True once usage is counted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// True if some account has a limit.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// Bytes used by each account.
    #[must_use]
    pub fn used(&self) -> &BTreeMap<Account, u64> {
        &self.used
    }

    /// Files that hold bytes and whose owner is not known.
    #[must_use]
    pub fn unknown(&self) -> &BTreeSet<Inode> {
        &self.unknown
    }

    /// True if the file's owner is known.
    #[must_use]
    pub fn is_known(&self, inode: Inode) -> bool {
        inode.is_spilled() || self.files.get(&inode).is_some_and(|file| file.owner.is_some())
    }

    /// True if the file's owner has a limit, or may have one.
    pub(crate) fn may_be_limited(&self, inode: Inode) -> bool {
        let owner = || self.files.get(&inode).and_then(|file| file.owner);
        let is_limited = |account| self.allowed.contains_key(&account);
        self.has_limits() && owner().is_none_or(|(owner, _)| owner.accounts().any(is_limited))
    }

    /// Checks whether the limits allow `requested` more bytes for the file.
    pub(crate) fn check(&self, inode: Inode, requested: u64) -> Result<(), OverLimit> {
        if !self.has_limits() {
            return Ok(());
        }
        let Some((owner, _)) = self.files.get(&inode).and_then(|file| file.owner) else {
            return Ok(());
        };
        for account in owner.accounts() {
            let used = self.used.get(&account).copied().unwrap_or(0);
            let allowed = self.allowed.get(&account).copied().unwrap_or(u64::MAX);
            if used.saturating_add(requested) > allowed {
                return Err(OverLimit { account, requested });
            }
        }
        Ok(())
    }

    /// Adds `bytes` to the file's usage; negative to subtract.
    pub(crate) fn change(&mut self, inode: Inode, bytes: i64) {
        // Bytes stored for another target count there.
        if !self.is_on || inode.is_spilled() {
            return;
        }
        let file = self.files.entry(inode).or_default();
        file.bytes = file.bytes.saturating_add_signed(bytes);
        match file.owner {
            Some((owner, _)) => charge(&mut self.used, owner, bytes),
            None if file.bytes > 0 => drop(self.unknown.insert(inode)),
            None => {
                self.files.remove(&inode);
                self.unknown.remove(&inode);
            }
        }
    }

    /// Starts counting, beginning with these extents, which exist.
    pub(crate) fn begin(&mut self, held: impl Iterator<Item = (Inode, Extent)>) {
        self.is_on = true;
        for (inode, extent) in held {
            self.change(inode, signed(extent.length()));
        }
    }

    /// Sets the limits in bytes; accounts not named have none.
    pub(crate) fn allow(&mut self, allowed: BTreeMap<Account, u64>) {
        self.allowed = allowed;
    }

    /// The file is removed.
    pub(crate) fn forget(&mut self, inode: Inode) {
        if self.is_on
            && let Some(file) = self.files.remove(&inode)
        {
            self.unknown.remove(&inode);
            if let Some((owner, _)) = file.owner {
                charge(&mut self.used, owner, -signed(file.bytes));
            }
        }
    }

    /// Owner of the file, if known.
    pub(crate) fn owner(&self, inode: Inode) -> Option<Owner> {
        if !self.is_on {
            return None;
        }
        self.files.get(&inode).and_then(|file| file.owner).map(|(owner, _)| owner)
    }

    pub(crate) fn set_owner(&mut self, inode: Inode, owner: Owner, changed: i64) {
        if !self.is_on {
            return;
        }
        let file = self.files.entry(inode).or_default();
        let bytes = signed(file.bytes);
        match file.owner {
            Some((_, since)) if since >= changed => return,
            Some((old, _)) => charge(&mut self.used, old, -bytes),
            None => drop(self.unknown.remove(&inode)),
        }
        file.owner = Some((owner, changed));
        charge(&mut self.used, owner, bytes);
    }

    /// Checks the invariants; for tests. `held` are all extents that count.
    #[cfg(test)]
    pub(crate) fn check_against(&self, held: impl Iterator<Item = (Inode, Extent)>) {
        if !self.is_on {
            return;
        }
        let (mut files, mut used) = (BTreeMap::new(), BTreeMap::new());
        for (inode, extent) in held {
            *files.entry(inode).or_insert(0) += extent.length();
        }
        for (inode, file) in &self.files {
            assert_eq!(file.bytes, files.remove(inode).unwrap_or(0), "bytes of {inode:?}");
            assert_eq!(file.owner.is_none(), self.unknown.contains(inode));
            if let Some((owner, _)) = file.owner {
                charge(&mut used, owner, signed(file.bytes));
            }
        }
        assert!(files.is_empty(), "not counted: {files:?}");
        assert_eq!(used, self.used);
    }
}

/// True for a file's first extent, which does not count while it is preallocated.
pub(crate) const fn is_first(extent: &Extent) -> bool {
    extent.start == 0
}

/// Extents lie within the address space of files, so the cast is exact.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn charge(used: &mut BTreeMap<Account, u64>, owner: Owner, bytes: i64) {
    if bytes == 0 || owner == Owner::GONE {
        return;
    }
    for account in owner.accounts() {
        let now = used.get(&account).copied().unwrap_or(0).saturating_add_signed(bytes);
        match now {
            0 => drop(used.remove(&account)),
            now => drop(used.insert(account, now)),
        }
    }
}
