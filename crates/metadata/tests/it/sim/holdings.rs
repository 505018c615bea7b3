//! The target beside a service, as far as quotas concern it.

use metadata::Effect;
use std::collections::{BTreeMap, BTreeSet};

/// Usage and allowances of the target beside a service.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) counts: bool,
    pub(crate) used: BTreeMap<u64, u64>,
    pub(crate) allowed: BTreeMap<u64, u64>,
    pub(crate) denied: BTreeSet<u64>,
}

impl Holdings {
    pub(crate) fn take(&mut self, effect: Effect) {
        let Effect::Allow { account, allowance, denied } = effect else {
            self.counts = true;
            return;
        };
        match allowance {
            Some(allowance) => drop(self.allowed.insert(account, allowance)),
            None => drop(self.allowed.remove(&account)),
        }
        match denied {
            true => drop(self.denied.insert(account)),
            false => drop(self.denied.remove(&account)),
        }
    }
}
