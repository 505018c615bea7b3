//! Whose the bytes of a target are: usage by account, once it is asked for (`Target::count`), and limits.
//!
//! A target knows files by their numbers. Whose they are it is told (`own`): by the shards, which its
//! caller asks, and when an owner changes. What is not known yet counts for nobody, and is in `unknown`.
//! First pieces of files to come count for nobody either, until something is written into them; early
//! ones ahead of a writer are his file's.
//!
//! Invariants, once it counts:
//!  1. `files` has the bytes of each file's pieces, but for early first ones.
//!  2. `used` is the sum of those over the files whose owner is known.

use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::quota::{Account, Owner};
use wire::reply::Piece;

/// What a file holds, and whose it is since when.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    bytes: u64,
    owner: Option<(Owner, i64)>,
}

/// A limit that does not allow a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beyond {
    pub(crate) account: Account,
    pub(crate) wanted: u64,
}

/// See the module.
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

    /// True if some account may not use as much as it likes.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// Bytes by account.
    #[must_use]
    pub fn used(&self) -> &BTreeMap<Account, u64> {
        &self.used
    }

    /// Files that hold something and whose owner is not known.
    #[must_use]
    pub fn unknown(&self) -> &BTreeSet<Inode> {
        &self.unknown
    }

    /// True if it is known whose the file is.
    #[must_use]
    pub fn is_known(&self, inode: Inode) -> bool {
        inode.is_abroad() || self.files.get(&inode).is_some_and(|file| file.owner.is_some())
    }

    /// True if the file's owner has a limit, or may have one.
    pub(crate) fn may_be_limited(&self, inode: Inode) -> bool {
        let owner = || self.files.get(&inode).and_then(|file| file.owner);
        let is_limited = |account| self.allowed.contains_key(&account);
        self.has_limits() && owner().is_none_or(|(owner, _)| owner.accounts().any(is_limited))
    }

    /// May a file have so many bytes more?
    pub(crate) fn check(&self, inode: Inode, wanted: u64) -> Result<(), Beyond> {
        if !self.has_limits() {
            return Ok(());
        }
        let Some((owner, _)) = self.files.get(&inode).and_then(|file| file.owner) else {
            return Ok(());
        };
        for account in owner.accounts() {
            let used = self.used.get(&account).copied().unwrap_or(0);
            let allowed = self.allowed.get(&account).copied().unwrap_or(u64::MAX);
            if used.saturating_add(wanted) > allowed {
                return Err(Beyond { account, wanted });
            }
        }
        Ok(())
    }

    /// A file has so many bytes more, or less.
    pub(crate) fn change(&mut self, inode: Inode, bytes: i64) {
        // What is kept for another target counts there.
        if !self.is_on || inode.is_abroad() {
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

    /// A file is gone.
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

    /// Whose a file is, if that is known.
    pub(crate) fn owner(&self, inode: Inode) -> Option<Owner> {
        if !self.is_on {
            return None;
        }
        self.files.get(&inode).and_then(|file| file.owner).map(|(owner, _)| owner)
    }

    pub(crate) fn own(&mut self, inode: Inode, owner: Owner, changed: i64) {
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
}

/// True for a piece that does not count as long as it is early.
pub(crate) const fn is_first(piece: &Piece) -> bool {
    piece.start == 0
}

/// Pieces are within the address space of files.
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

impl Target {
    /// Usage by account.
    #[must_use]
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Counts from now on, beginning with what there is.
    pub fn count(&mut self) {
        if self.accounts.is_on {
            return;
        }
        self.accounts.is_on = true;
        let held: Vec<_> = self.counted().collect();
        for (inode, piece) in held {
            self.accounts.change(inode, signed(piece.length()));
        }
    }

    /// The pieces that count.
    fn counted(&self) -> impl Iterator<Item = (Inode, Piece)> {
        let is_counted = |(inode, piece): &(Inode, Piece)| {
            !inode.is_abroad() && (!is_first(piece) || !self.early.contains(*inode, piece))
        };
        self.slots.iter().filter(is_counted)
    }

    /// What accounts may use; others as much as there is.
    pub fn allow(&mut self, allowed: BTreeMap<Account, u64>) {
        self.accounts.allowed = allowed;
    }

    /// Holds the invariants, for tests: it looks at all pieces.
    #[cfg(test)]
    pub(crate) fn check_accounts(&self) {
        if !self.accounts.is_on {
            return;
        }
        let (mut files, mut used) = (BTreeMap::new(), BTreeMap::new());
        for (inode, piece) in self.counted() {
            *files.entry(inode).or_insert(0) += piece.length();
        }
        for (inode, file) in &self.accounts.files {
            assert_eq!(file.bytes, files.remove(inode).unwrap_or(0), "bytes of {inode:?}");
            assert_eq!(file.owner.is_none(), self.accounts.unknown.contains(inode));
            if let Some((owner, _)) = file.owner {
                charge(&mut used, owner, signed(file.bytes));
            }
        }
        assert!(files.is_empty(), "not counted: {files:?}");
        assert_eq!(used, self.accounts.used);
    }
}
