//! Division of a cap over the daemons that serve its job, by what each could use (F7).
//!
//! Every `PERIOD_NANOS` each daemon reports its demand, and the coordinator answers with a grant. A
//! grant ends `LEASE_NANOS` after the report that it answers was sent; without one a daemon has its
//! floor. The coordinator counts a grant until the daemon confirmed a later one, or its lease has
//! ended for sure: it began after the report was sent. So clocks of hosts are never compared.
//!
//! Free rate goes to the daemons with the least first, up to the demand of each (water filling); the
//! rest in equal parts, for demand that comes.
//!
//! Invariants:
//!  1. The rates that daemons may use add up at any time to the cap at most, or to one token per
//!     daemon where the cap is less, whatever reports and grants are lost, late, repeated or out of
//!     order. A rate that moves from one daemon to another is unused in between.
//!  2. A daemon that does not report costs the others no more than its floor after a lease.
//!
//! A lower cap holds as soon as the grants of the old one are confirmed or have ended.

use std::collections::VecDeque;

/// How often reports and grants are exchanged.
pub const PERIOD_NANOS: u64 = 100_000_000;
/// How long a grant holds: some reports in turn may be lost, and the part of a daemon that stopped is
/// unused for so long.
pub const LEASE_NANOS: u64 = 6 * PERIOD_NANOS;
/// Part of the cap that is divided into floors: 2 %, which idle daemons waste.
const FLOOR_DIVISOR: u64 = 50;
/// Grants that a daemon may hold unconfirmed: all of a lease, at one per period, and a few more.
const GRANTS_MAX: usize = 12;

/// A daemon's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of the daemon among those of the division.
    pub daemon: u32,
    /// Number of the report; later ones are higher.
    pub number: u64,
    /// Tokens per second that it could use: what arrived, or more if something waits.
    pub demand: u64,
    /// The grant that it uses; 0: none yet.
    pub grant: u64,
}

/// A grant to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To which daemon.
    pub daemon: u32,
    /// Number of the grant; later ones are higher.
    pub number: u64,
    /// The report that it answers.
    pub report: u64,
    /// Tokens per second.
    pub per_second: u64,
}

/// Tokens per second that a daemon may use without a grant.
#[must_use]
pub fn floor_of(cap: u64, daemons: u32) -> u64 {
    (cap / FLOOR_DIVISOR / u64::from(daemons.max(1))).max(1)
}

/// A daemon as the coordinator sees it.
#[derive(Clone, Debug, Default)]
struct Holder {
    report: u64,
    /// Until when its last report counts.
    live_until: u64,
    demand: u64,
    /// Whether a report waits for its grant.
    is_asking: bool,
    /// Grants that it may use: number, rate, end.
    grants: VecDeque<(u64, u64, u64)>,
}

impl Holder {
    /// The most that it may use now.
    fn held(&self, floor: u64) -> u64 {
        self.grants.iter().map(|&(_, rate, _)| rate).fold(floor, u64::max)
    }
}

/// The coordinator of one cap.
#[derive(Clone, Debug)]
pub struct Division {
    cap: u64,
    holders: Vec<Holder>,
    /// Number of the last grant.
    granted: u64,
    /// Until then grants of an earlier coordinator may hold.
    quiet_until: u64,
    has_floors: bool,
    /// Scratch of `divide`: demands of those that live.
    demands: Vec<u64>,
}

impl Division {
    /// A cap in tokens per second over so many daemons. For one lease it grants nothing, because an
    /// earlier coordinator may have. `now` must be later than any time of that one, also on another host.
    #[must_use]
    pub fn new(now: u64, cap: u64, daemons: u32) -> Division {
        let mut holders = Vec::new();
        holders.resize_with(daemons as usize, Holder::default);
        let quiet_until = now.saturating_add(LEASE_NANOS);
        let demands = Vec::new();
        Division { cap, holders, granted: now, quiet_until, has_floors: true, demands }
    }

    /// An earlier coordinator granted nothing after this time.
    #[must_use]
    pub const fn quiet_since(mut self, begun: u64) -> Division {
        self.quiet_until = begun.saturating_add(LEASE_NANOS);
        self
    }

    /// Daemons without a grant use nothing: for caps of which each must be used as a whole, and of which
    /// nothing needs to go on while the coordinator is away.
    #[must_use]
    pub const fn without_floors(mut self) -> Division {
        self.has_floors = false;
        self
    }

    /// Changes the cap. The daemons must learn it, too: their floors depend on it.
    pub const fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// There are so many daemons now: more than before, whose floors are lower. Until all know it, floors
    /// may exceed their part of the cap.
    pub fn grow(&mut self, daemons: u32) {
        if daemons as usize > self.holders.len() {
            self.holders.resize_with(daemons as usize, Holder::default);
        }
    }

    fn floor(&self) -> u64 {
        if self.has_floors { floor_of(self.cap, self.holders.len() as u32) } else { 1 }
    }

    /// A daemon's report. One that is older than another, or of an unknown daemon, changes nothing.
    pub fn report(&mut self, now: u64, report: Report) {
        let Some(holder) = self.holders.get_mut(report.daemon as usize) else { return };
        if report.number <= holder.report {
            return;
        }
        holder.report = report.number;
        holder.live_until = now.saturating_add(LEASE_NANOS);
        holder.demand = report.demand;
        holder.is_asking = true;
        if report.grant <= self.granted {
            holder.grants.retain(|&(number, _, _)| number >= report.grant);
        }
    }

    /// Divides the cap and appends a grant for each daemon that reported since the last call.
    pub fn divide(&mut self, now: u64, grants: &mut Vec<Grant>) {
        if now < self.quiet_until {
            return;
        }
        let floor = self.floor();
        for holder in &mut self.holders {
            holder.grants.retain(|&(_, _, end)| end > now);
        }
        let level = self.fill(now, floor);
        // Lower rates first: what they free is used when it is confirmed. Then those that get more,
        // out of what nobody may use.
        let held: u64 =
            self.holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.held(floor)));
        let mut free = self.cap.saturating_sub(held);
        for (daemon, holder) in (0..).zip(&mut self.holders) {
            if !holder.is_asking || holder.grants.len() >= GRANTS_MAX {
                continue;
            }
            let (target, held) = (level.target(holder.demand, floor), holder.held(floor));
            let more = target.saturating_sub(held).min(free);
            free -= more;
            let per_second = target.min(held.saturating_add(more));
            self.granted += 1;
            holder.is_asking = false;
            holder.grants.push_back((self.granted, per_second, now.saturating_add(LEASE_NANOS)));
            grants.push(Grant { daemon, number: self.granted, report: holder.report, per_second });
        }
    }

    /// Water filling: the level up to which each demand is met, and the rest for each.
    fn fill(&mut self, now: u64, floor: u64) -> Level {
        let mut rest = self.cap;
        self.demands.clear();
        for holder in &self.holders {
            if now < holder.live_until {
                self.demands.push(holder.demand.max(floor));
            } else {
                rest = rest.saturating_sub(holder.held(floor));
            }
        }
        self.demands.sort_unstable();
        let mut left = self.demands.len() as u64;
        for &demand in &self.demands {
            let part = rest / left;
            if demand > part {
                return Level { demand_max: part, more: 0 };
            }
            rest -= demand;
            left -= 1;
        }
        Level { demand_max: u64::MAX, more: rest / (self.demands.len() as u64).max(1) }
    }
}

/// A level of water.
#[derive(Clone, Copy)]
struct Level {
    demand_max: u64,
    /// Beyond the demand.
    more: u64,
}

impl Level {
    fn target(self, demand: u64, floor: u64) -> u64 {
        demand.max(floor).min(self.demand_max).saturating_add(self.more)
    }
}

/// A daemon's part of a cap.
#[derive(Clone, Debug)]
pub struct Part {
    daemon: u32,
    floor: u64,
    grant: u64,
    per_second: u64,
    until: u64,
    reports: u64,
    /// Reports that may still be answered: number, time.
    sent: VecDeque<(u64, u64)>,
}

impl Part {
    /// The part of this daemon, one of so many; it begins with its floor. `now` must be later than any
    /// time of this daemon before a restart: reports are numbered from there.
    #[must_use]
    pub fn new(now: u64, daemon: u32, cap: u64, daemons: u32) -> Part {
        let sent = VecDeque::with_capacity(GRANTS_MAX);
        let floor = floor_of(cap, daemons);
        Part { daemon, floor, grant: 0, per_second: floor, until: 0, reports: now, sent }
    }

    /// It uses nothing without a grant (`Division::without_floors`), or a token per second.
    #[must_use]
    pub const fn without_floor(mut self) -> Part {
        self.floor = 1;
        if self.grant == 0 {
            self.per_second = 1;
        }
        self
    }

    /// It is one of so many daemons now, more than before.
    pub fn grow(&mut self, cap: u64, daemons: u32) {
        self.floor = self.floor.min(floor_of(cap, daemons));
    }

    /// The report to send now.
    pub fn report(&mut self, now: u64, demand: u64) -> Report {
        self.reports += 1;
        while self.sent.len() >= GRANTS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.reports, now));
        Report { daemon: self.daemon, number: self.reports, demand, grant: self.grant }
    }

    /// A grant arrives. One that is older than another, late or of another daemon changes nothing.
    pub fn take_grant(&mut self, now: u64, grant: Grant) {
        let Some(&(_, at)) = self.sent.iter().find(|&&(number, _)| number == grant.report) else {
            return;
        };
        let until = at.saturating_add(LEASE_NANOS);
        if grant.daemon == self.daemon && grant.number > self.grant && until > now {
            self.grant = grant.number;
            self.per_second = grant.per_second;
            self.until = until;
        }
    }

    /// Tokens per second that this daemon may use now; at least 1.
    #[must_use]
    pub fn per_second(&self, now: u64) -> u64 {
        if now < self.until { self.per_second.max(1) } else { self.floor }
    }
}
