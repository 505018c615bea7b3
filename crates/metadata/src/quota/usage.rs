//! Usage by account, and the tables of quotas. Limits are decided in `coordinator`, and drawn on in
//! `grants`.

use std::collections::BTreeMap;

use wire::Attributes;
use wire::quota::{Account, AccountUsage, Limits};

use crate::core::record::Record;
use crate::core::state::State;

/// Counted resources, with their numbers in the log.
pub(crate) mod resource {
    /// Inodes of a service.
    pub(crate) const INODES: u8 = 0;
    /// Bytes of inline contents of a service.
    pub(crate) const INLINE: u8 = 1;
    /// Bytes of extents on the target beside a service, the first service of its daemon.
    pub(crate) const SPACE: u8 = 2;
    /// All of them.
    pub(crate) const ALL: [u8; 3] = [INODES, INLINE, SPACE];
}

/// Limited resources of an account: bits of `Limited::flags`.
pub(crate) mod limits {
    /// Inodes.
    pub(crate) const INODES: u8 = 1;
    /// Space.
    pub(crate) const SPACE: u8 = 2;
    /// No limit, but targets count (flag of the account `Account::ALL`).
    pub(crate) const COUNTED: u8 = 4;
}

/// The bit of `limits` that applies to a resource.
pub(crate) const fn limit_of(kind: u8) -> u8 {
    if kind == resource::INODES { limits::INODES } else { limits::SPACE }
}

/// Account, resource, group of the service.
pub(crate) type ShareKey = (u64, u8, u32);

/// Usage of an account in one service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Used {
    pub(crate) inodes: u64,
    /// Bytes of inline contents.
    pub(crate) bytes: u64,
}

/// Usage by account. An account without any has no entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage(BTreeMap<u64, Used>);

impl Usage {
    pub(crate) fn add(&mut self, of: &Attributes, contents: usize) {
        for account in of.owner().accounts() {
            let used = self.0.entry(account.0).or_default();
            used.inodes += 1;
            used.bytes += contents as u64;
        }
    }

    pub(crate) fn remove(&mut self, of: &Attributes, contents: usize) {
        for account in of.owner().accounts() {
            let Some(used) = self.0.get_mut(&account.0) else { continue };
            used.inodes = used.inodes.saturating_sub(1);
            used.bytes = used.bytes.saturating_sub(contents as u64);
            if *used == Used::default() {
                self.0.remove(&account.0);
            }
        }
    }

    pub(crate) fn of(&self, account: u64) -> Used {
        self.0.get(&account).copied().unwrap_or_default()
    }

    /// True if some usage counts for a project.
    pub(crate) fn has_projects(&self) -> bool {
        self.0.last_key_value().is_some_and(|(&last, _)| Account(last).is_project())
    }

    /// Accounts from `from` on, in order.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, Used)> + '_ {
        self.0.range(from..).map(|(&account, &used)| (account, used))
    }
}

/// Limits of an account, as a service knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limited {
    pub(crate) number: u64,
    /// Bits of `limits`; none: not limited any more.
    pub(crate) flags: u8,
}

impl Limited {
    pub(crate) const fn record(self, account: u64) -> Record<'static> {
        Record::PutLimited { account, number: self.number, flags: self.flags }
    }
}

/// Limits of an account, at the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quota {
    pub(crate) number: u64,
    pub(crate) limits: Limits,
    pub(crate) space_since: u64,
    pub(crate) inodes_since: u64,
    /// True if all services know the limits.
    pub(crate) is_known: bool,
}

impl Quota {
    pub(crate) const fn record(self, account: u64) -> Record<'static> {
        let Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace } = self.limits;
        let Quota { number, space_since, inodes_since, is_known, .. } = self;
        Record::PutQuota {
            account,
            number,
            space_soft,
            space_hard,
            inodes_soft,
            inodes_hard,
            grace,
            space_since,
            inodes_since,
            known: is_known as u8,
        }
    }

    /// Bits of `limits`.
    pub(crate) fn flags(&self) -> u8 {
        let inodes = if self.limits.limits_inodes() { limits::INODES } else { 0 };
        inodes | if self.limits.limits_space() { limits::SPACE } else { 0 }
    }

    /// Soft limit, hard limit, and the time since when the soft limit is exceeded (0: it is not),
    /// for a bit of `limits`.
    pub(crate) const fn class(&self, limit: u8) -> (u64, u64, u64) {
        match limit {
            limits::INODES => (self.limits.inodes_soft, self.limits.inodes_hard, self.inodes_since),
            _ => (self.limits.space_soft, self.limits.space_hard, self.space_since),
        }
    }

    /// True if the grace period is over.
    pub(crate) fn is_expired(&self, limit: u8, now: i64) -> bool {
        let (soft, _, since) = self.class(limit);
        let end = since.cast_signed().saturating_add(self.limits.grace_nanos());
        soft != 0 && since != 0 && end <= now
    }

    /// Most that may be in use at `now`.
    pub(crate) fn cap(&self, limit: u8, now: i64) -> u64 {
        let (soft, hard, _) = self.class(limit);
        let hard = if hard == 0 { u64::MAX } else { hard };
        if self.is_expired(limit, now) { soft.min(hard) } else { hard }
    }

    /// The entry of a report, without usage.
    pub(crate) fn report_entry(&self, of: AccountUsage) -> AccountUsage {
        let &Quota { limits, space_since, inodes_since, .. } = self;
        AccountUsage { limits, space_since, inodes_since, ..of }
    }
}

impl State {
    pub(crate) fn apply_to_quotas(&mut self, record: &Record<'_>) {
        match *record {
            Record::PutLimited { account, number, flags } => {
                self.limited.insert(account, Limited { number, flags });
            }
            Record::PutQuota {
                account,
                number,
                space_soft,
                space_hard,
                inodes_soft,
                inodes_hard,
                grace,
                space_since,
                inodes_since,
                known,
            } => {
                let limits = Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace };
                let is_known = known != 0;
                let quota = Quota { number, limits, space_since, inodes_since, is_known };
                self.quotas.insert(account, quota);
            }
            Record::PutShare { account, resource, group, amount } => match amount {
                0 => drop(self.shares.remove(&(account, resource, group))),
                amount => drop(self.shares.insert((account, resource, group), amount)),
            },
            _ => {}
        }
    }
}
