//! Caps that hold over all daemons (`qos::division`): the part of each at this daemon, and in the arbiter
//! of the rules their division. Those of an instance on one host are not divided: its home daemon starts
//! all requests.

use crate::shares::pool_limits::way_of;
use qos::division::{Division, Grant, Part, Report};
use qos::exchange::{CapGrant, CapKey, CapReport};
use std::collections::BTreeMap;

/// A cap that no daemon reported on for so long is forgotten.
const FORGET_NANOS: u64 = 10_000_000_000;
/// Most caps that are divided; further ones stay at their floors.
const CAPS_MAX: usize = 1 << 16;
/// Reports per second.
const PERIODS: u64 = 1_000_000_000 / qos::division::PERIOD_NANOS;

/// The place of this daemon among those that divide caps.
#[derive(Clone, Copy)]
pub(crate) struct CapPlace {
    /// Its index.
    pub(crate) daemon: u32,
    /// Number of daemons, with those that left, whose floors nobody uses; 1: there is nothing to divide.
    pub(crate) daemons: u32,
}

/// This daemon's part of a cap.
pub(crate) struct CapPart {
    pub(crate) cap: u64,
    part: Option<Part>,
    /// Tokens of requests that came since the last report.
    arrived: u64,
}

impl CapPart {
    /// `None` without a cap.
    pub(crate) fn new(now: u64, cap: u64, place: CapPlace) -> Option<CapPart> {
        let is_divided = place.daemons > 1;
        let part = is_divided.then(|| Part::new(now, place.daemon, cap, place.daemons));
        (cap > 0).then_some(CapPart { cap, part, arrived: 0 })
    }

    /// As `new`, with nothing to use before the first grant.
    pub(crate) fn without_floor(now: u64, cap: u64, place: CapPlace) -> Option<CapPart> {
        let mut own = CapPart::new(now, cap, place)?;
        own.part = own.part.map(Part::without_floor);
        Some(own)
    }

    /// The instance got daemons.
    pub(crate) fn grow(&mut self, place: CapPlace) {
        self.part.iter_mut().for_each(|part| part.grow(self.cap, place.daemons));
    }

    /// A request has come.
    pub(crate) const fn note(&mut self, tokens: u64) {
        self.arrived = self.arrived.saturating_add(tokens);
    }

    /// Tokens per second that may be used here now.
    pub(crate) fn per_second(&self, now: u64) -> u64 {
        self.part.as_ref().map_or(self.cap, |part| part.per_second(now))
    }

    /// The report to the arbiter, while so many tokens wait here.
    pub(crate) fn report(&mut self, now: u64, key: CapKey, waiting: u64) -> Option<CapReport> {
        let demand = self.arrived.saturating_add(waiting).saturating_mul(PERIODS);
        self.arrived = 0;
        let Report { number, demand, grant, .. } = self.part.as_mut()?.report(now, demand);
        Some(CapReport { key, cap: self.cap, number, demand, grant })
    }

    /// A grant has arrived.
    pub(crate) fn take_grant(&mut self, now: u64, daemon: u32, grant: &CapGrant) {
        let CapGrant { number, report, per_second, .. } = *grant;
        if let Some(part) = &mut self.part {
            part.take_grant(now, Grant { daemon, number, report, per_second });
        }
    }
}

/// A cap in the arbiter.
struct DividedCap {
    division: Division,
    reported_at: u64,
}

/// The division of all caps, in the arbiter.
pub(crate) struct DividedCaps {
    daemons: u32,
    /// Grants of an earlier arbiter, or of an earlier start of it, have ended a lease after this.
    begun: u64,
    caps: BTreeMap<CapKey, DividedCap>,
}

impl DividedCaps {
    /// No cap yet.
    pub(crate) const fn new(begun: u64, daemons: u32) -> DividedCaps {
        DividedCaps { daemons, begun, caps: BTreeMap::new() }
    }

    /// The instance has so many daemons now.
    pub(crate) fn grow(&mut self, daemons: u32) {
        self.daemons = daemons;
        self.caps.values_mut().for_each(|one| one.division.grow(daemons));
    }

    /// True if some of the reports are on caps of which none was taken yet.
    pub(crate) fn has_new(&self, reports: &[CapReport]) -> bool {
        reports.iter().any(|report| !self.caps.contains_key(&report.key))
    }

    /// True if no cap is divided.
    pub(crate) fn is_empty(&self) -> bool {
        self.caps.is_empty()
    }

    /// A daemon's reports. `sets_caps`: it has the present rules.
    pub(crate) fn take_reports(
        &mut self,
        now: u64,
        daemon: u32,
        reports: &[CapReport],
        sets_caps: bool,
    ) {
        for report in reports {
            if !self.caps.contains_key(&report.key) && self.caps.len() >= CAPS_MAX {
                continue;
            }
            let daemons = self.daemons;
            let begun = self.begun;
            let one = self.caps.entry(report.key).or_insert_with(|| {
                // Grants of a cap that was forgotten have ended, too.
                let division = Division::new(now, report.cap, daemons).quiet_since(begun);
                let is_of_pool = way_of(&report.key).is_some();
                let division = if is_of_pool { division.without_floors() } else { division };
                DividedCap { division, reported_at: now }
            });
            one.reported_at = now;
            if sets_caps {
                one.division.set_cap(report.cap);
            }
            let CapReport { number, demand, grant, .. } = *report;
            one.division.report(now, Report { daemon, number, demand, grant });
        }
    }

    /// Divides all caps; the grants of each daemon that has reported.
    pub(crate) fn divide(&mut self, now: u64) -> BTreeMap<u32, Vec<CapGrant>> {
        let (mut all, mut grants) = (BTreeMap::new(), Vec::new());
        self.caps.retain(|_, one| now < one.reported_at.saturating_add(FORGET_NANOS));
        for (&key, one) in &mut self.caps {
            one.division.divide(now, &mut grants);
            for Grant { daemon, number, report, per_second } in grants.drain(..) {
                let of_daemon: &mut Vec<CapGrant> = all.entry(daemon).or_default();
                of_daemon.push(CapGrant { key, number, report, per_second });
            }
        }
        all
    }
}
