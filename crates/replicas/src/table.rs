//! The table of units: a replicated state beside the membership. Every change passes through the
//! same consensus, in one order, and every daemon applies it by the same code (`change`).
//!
//!   (none) --Add--> joining --InSync--> in sync --Drop, Down--> behind --Add--> joining
//!                                          ^--- nothing was acknowledged without it ---'
//!
//! | state of a copy | it has | it may |
//! |---|---|---|
//! | in sync | every acknowledged byte | become the primary; be read while the primary allows it |
//! | joining | what it was sent: it is refilled, or catches up | nothing |
//! | behind | what it had when it was dropped or died | begin to catch up |
//!
//! A copy that is dropped, or whose daemon counts as dead, goes on to have every acknowledged byte
//! until the primary may know that it is dropped (`CopyRow::left_at`). If the primary dies before,
//! that copy may become the primary, so a false alarm beside a death loses nothing. One whose daemon
//! starts again with its bytes, before anyone missed it, stays in sync: nobody went on without it.
//!
//! A unit is *degraded* with fewer copies in sync than it should have, and *lost* without a
//! primary: the daemons that have every acknowledged byte are down.
//!
//! Invariants
//! 1. The primary is a copy in sync. A unit has one primary at most, and its epoch advances when it
//!    changes.
//! 2. A copy in sync has every byte that was acknowledged: an acknowledgement needs all of them.
//! 3. The copies that a unit needs are in different failure domains, unless `same_domain` allows
//!    it. While a copy moves within a domain, both are there.
//! 4. Applying a change twice is refused the second time: it names the epoch of the unit, and the
//!    version of the table since which a copy is what it is.

use crate::placement::{UNITS_PER_TARGET, UnitIndex, chosen, unit_of};
use encoding::{Decode, Encode, check, decode_list, encode_list};
use wire::codec::{Malformed, Reader};
use wire::limits::DAEMON_COUNT_MAX;
use wire::{DaemonIndex, Inode};

/// The greatest version and epoch that are read: each change adds 1, so none comes near the numbers' end.
const VERSION_MAX: u64 = 1 << 62;
/// Copies that a unit may be asked to have.
pub const COPIES_MAX: u8 = 3;
/// Rows of a unit at most: while some of its copies move, there are others that are behind.
pub(crate) const ROWS_MAX: usize = 2 * COPIES_MAX as usize;
/// Bytes of an encoded unit at most.
pub const UNIT_BYTES_MAX: usize = 32 + ROWS_MAX * 19;

/// Whether a daemon takes part, as the membership says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It takes part.
    Up,
    /// It was declared dead. It may return.
    Down,
    /// Its copies leave it.
    Leaving,
}

/// One daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Failure domain: what fails at once has the same number.
    pub domain: u32,
    /// Whether it takes part.
    pub presence: Presence,
    /// Number of its last start. A copy belongs to a start: the next one begins behind, or is in sync
    /// anew where nobody missed it.
    pub incarnation: u64,
}

/// State of a copy: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyState {
    /// It has every acknowledged byte.
    InSync,
    /// It is being filled.
    Joining,
    /// It has old bytes.
    Behind,
}

/// A copy of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRow {
    /// The daemon that has it.
    pub daemon: DaemonIndex,
    /// Version of the table since which it joins, or is behind; of one in sync, since which this start of
    /// its daemon has it, or before.
    pub since: u64,
    /// Its state.
    pub state: CopyState,
    /// Version of the table with which it left the copies in sync. 0: something may have been
    /// acknowledged without it since.
    pub left_at: u64,
}

impl CopyRow {
    /// Whether it has every acknowledged byte, as far as the table knows.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.state == CopyState::InSync || self.left_at > 0
    }
}

/// One unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Counts the primaries. The first is 1.
    pub epoch: u64,
    /// Copies that it should have.
    pub goal: u8,
    /// The daemon that orders its operations. `None`: it is lost, or may come back with `last`.
    pub primary: Option<DaemonIndex>,
    /// The primary, or one before it since the last hand-over, took over from a daemon that may not
    /// know it: the primary waits until the leases of all dead daemons have ended for sure.
    pub is_successor: bool,
    /// Version of the table since which `epoch` is the epoch.
    pub since: u64,
    /// The last primary.
    pub last: DaemonIndex,
    /// Version of the table at which all copies were lost. Files that are older have lost what they
    /// had here.
    pub lost_at: u64,
    /// The copies, the primary's too.
    pub copies: Vec<CopyRow>,
}

impl Unit {
    /// The copy at a daemon.
    #[must_use]
    pub fn copy(&self, daemon: DaemonIndex) -> Option<&CopyRow> {
        self.copies.iter().find(|copy| copy.daemon == daemon)
    }

    /// The daemons with a copy in this state.
    pub fn with(&self, state: CopyState) -> impl Iterator<Item = DaemonIndex> {
        self.copies.iter().filter(move |copy| copy.state == state).map(|copy| copy.daemon)
    }

    /// Copies in sync.
    #[must_use]
    pub fn in_sync(&self) -> usize {
        self.with(CopyState::InSync).count()
    }
}

/// Why an instance cannot have these settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsuitable {
    /// No daemon, or too many.
    Daemons,
    /// No unit for a target, or more than `UNITS_PER_TARGET`, or than a membership may have.
    Units,
    /// Fewer than two copies, more than `COPIES_MAX`, or a number twice.
    Copies,
    /// Fewer failure domains than copies.
    Domains {
        /// Number of domains.
        found: usize,
        /// Number of copies.
        needed: usize,
    },
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Counts the changes. The first table has 1.
    pub version: u64,
    /// Whether copies of a unit may be in one failure domain.
    pub same_domain: bool,
    /// Targets at the start. Those that were added have their units behind.
    pub(crate) targets: u16,
    /// Units of one target for one number of copies.
    pub(crate) units_per_target: u16,
    pub(crate) holders: Vec<Holder>,
    pub(crate) units: Vec<Unit>,
}

impl Table {
    /// The first table: each unit with its best copies, all of them empty and so in sync. `domains`
    /// has the failure domain of each daemon, `goals` the numbers of copies that files may ask for.
    ///
    /// # Errors
    /// `Unsuitable` if copies would not be apart.
    pub fn initial(
        domains: &[u32],
        goals: &[u8],
        units_per_target: u16,
        same_domain: bool,
    ) -> Result<Table, Unsuitable> {
        let count = u16::try_from(domains.len()).ok().filter(|&count| count <= DAEMON_COUNT_MAX);
        let targets = count.filter(|&count| count > 0).ok_or(Unsuitable::Daemons)?;
        if !(1..=UNITS_PER_TARGET).contains(&units_per_target) {
            return Err(Unsuitable::Units);
        }
        if !are_possible(goals) {
            return Err(Unsuitable::Copies);
        }
        let mut distinct = domains.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let found = if same_domain { domains.len() } else { distinct.len() };
        for &goal in goals {
            if found < usize::from(goal) {
                return Err(Unsuitable::Domains { found, needed: usize::from(goal) });
            }
        }
        let holder = |&domain| Holder { domain, presence: Presence::Up, incarnation: 1 };
        let holders = domains.iter().map(holder).collect();
        let mut table = Table {
            version: 1,
            same_domain,
            targets,
            units_per_target,
            holders,
            units: Vec::new(),
        };
        for &goal in goals {
            for home in 0..targets {
                table.begin_units(goal, DaemonIndex(home));
            }
        }
        table.fill_new(0);
        Ok(table)
    }

    /// Appends the units of a target for one number of copies, without any.
    fn begin_units(&mut self, goal: u8, home: DaemonIndex) {
        let unit = Unit {
            epoch: 1,
            goal,
            primary: None,
            is_successor: false,
            since: self.version,
            last: home,
            lost_at: 0,
            copies: Vec::new(),
        };
        self.units.extend(std::iter::repeat_n(unit, usize::from(self.units_per_target)));
    }

    /// The units from this one on are new: each has its best copies, all of them empty and so in sync.
    fn fill_new(&mut self, from: usize) {
        let since = self.version;
        for index in from..self.units.len() {
            let row = |daemon| CopyRow { daemon, since, state: CopyState::InSync, left_at: 0 };
            let chosen = chosen(self, UnitIndex(index as u32));
            if let Some(unit) = self.units.get_mut(index) {
                unit.primary = chosen.first().copied();
                unit.last = unit.primary.unwrap_or(unit.last);
                unit.copies = chosen.into_iter().map(row).collect();
            }
        }
    }

    /// The numbers of copies that files may ask for, in the order of their classes.
    fn goals(&self) -> Vec<u8> {
        let of_class = usize::from(self.targets) * usize::from(self.units_per_target);
        let firsts = self.units.iter().step_by(of_class.max(1)).take(self.classes());
        firsts.map(|unit| unit.goal).collect()
    }

    fn classes(&self) -> usize {
        let of_class = self.holders.len() * usize::from(self.units_per_target);
        self.units.len() / of_class.max(1)
    }

    /// Units that a target has for one number of copies.
    #[must_use]
    pub const fn units_per_target(&self) -> u16 {
        self.units_per_target
    }

    /// Number of a unit among those of its target for its number of copies.
    #[must_use]
    pub fn number_at_home(&self, unit: UnitIndex) -> u32 {
        unit.0 % u32::from(self.units_per_target.max(1))
    }

    /// Units that a target has, of all numbers of copies together.
    #[must_use]
    pub fn units_of_target(&self) -> usize {
        self.classes() * usize::from(self.units_per_target)
    }

    /// Whether one more daemon may be added: its target needs a daemon that has its units until it comes.
    #[must_use]
    pub fn may_expect(&self) -> bool {
        let has_place = self.holders.len() < usize::from(DAEMON_COUNT_MAX);
        has_place && self.daemons().any(|(daemon, _)| self.is_up(daemon))
    }

    /// A daemon that may come: its target has units from now on, which are elsewhere until then. Files
    /// are placed on it later, so there is nothing in them.
    pub(crate) fn add_target(&mut self, holder: Holder) {
        let (goals, before) = (self.goals(), self.units.len());
        let home = DaemonIndex(self.holders.len() as u16);
        self.holders.push(holder);
        self.version += 1;
        goals.into_iter().for_each(|goal| self.begin_units(goal, home));
        self.fill_new(before);
    }

    /// Number of the row of units of a target and class: rows of the first targets by class, then those
    /// of each target that was added.
    fn row_of(&self, class: u32, home: DaemonIndex) -> u32 {
        let (targets, classes) = (u32::from(self.targets), self.classes() as u32);
        let home = u32::from(home.0);
        if home < targets { class * targets + home } else { classes * home + class }
    }

    /// The daemons.
    pub fn daemons(&self) -> impl Iterator<Item = (DaemonIndex, &Holder)> {
        self.holders.iter().enumerate().map(|(index, holder)| (DaemonIndex(index as u16), holder))
    }

    /// The units.
    pub fn units(&self) -> impl Iterator<Item = (UnitIndex, &Unit)> {
        self.units.iter().enumerate().map(|(index, unit)| (UnitIndex(index as u32), unit))
    }

    /// Units that have no primary: what they hold is lost unless the last one returns, or the
    /// backing store has it.
    pub fn lost(&self) -> impl Iterator<Item = UnitIndex> {
        self.units().filter(|(_, unit)| unit.primary.is_none()).map(|(index, _)| index)
    }

    /// The last version in which units lost all their copies; 0: none did.
    #[must_use]
    pub fn newest_loss(&self) -> u64 {
        self.units.iter().map(|unit| unit.lost_at).max().unwrap_or(0)
    }

    /// One daemon.
    #[must_use]
    pub fn holder(&self, daemon: DaemonIndex) -> Option<&Holder> {
        self.holders.get(usize::from(daemon.0))
    }

    /// One unit.
    #[must_use]
    pub fn unit(&self, unit: UnitIndex) -> Option<&Unit> {
        self.units.get(unit.0 as usize)
    }

    /// The unit of a stripe with this number of copies, whose target is `home`. `None`: the instance
    /// offers no such number, or has no such target.
    #[must_use]
    pub fn unit_of(
        &self,
        goal: u8,
        home: DaemonIndex,
        inode: Inode,
        stripe: u64,
    ) -> Option<UnitIndex> {
        let of_class = usize::from(self.targets) * usize::from(self.units_per_target);
        let mut firsts = self.units.iter().step_by(of_class.max(1)).take(self.classes());
        let class = firsts.position(|unit| unit.goal == goal)? as u32;
        let row = self.holder(home).map(|_| self.row_of(class, home))?;
        Some(unit_of(row, self.units_per_target, inode, stripe))
    }

    /// The units of a target with this number of copies, in their order.
    pub fn units_of(
        &self,
        goal: u8,
        home: DaemonIndex,
    ) -> impl Iterator<Item = (UnitIndex, &Unit)> {
        self.units().filter(move |(index, unit)| unit.goal == goal && self.home(*index) == home)
    }

    /// The target whose data the unit is a part of.
    #[must_use]
    pub fn home(&self, unit: UnitIndex) -> DaemonIndex {
        let row = unit.0 / u32::from(self.units_per_target.max(1));
        let (targets, classes) = (u32::from(self.targets.max(1)), self.classes().max(1) as u32);
        let home = if row < classes * targets { row % targets } else { row / classes };
        DaemonIndex(home as u16)
    }

    /// The most copies that a unit should have.
    #[must_use]
    pub fn goal_max(&self) -> u8 {
        self.units.iter().map(|unit| unit.goal).max().unwrap_or(0)
    }

    /// Units that need a daemon: they have a copy there with every acknowledged byte, or one that is
    /// being filled.
    #[must_use]
    pub fn needing(&self, daemon: DaemonIndex) -> usize {
        let copies = self.units.iter().filter_map(|unit| unit.copy(daemon));
        copies.filter(|copy| copy.state != CopyState::Behind || copy.has_all()).count()
    }

    /// Whether no unit needs a daemon.
    #[must_use]
    pub fn is_free_of(&self, daemon: DaemonIndex) -> bool {
        self.needing(daemon) == 0
    }

    /// Whether a daemon takes part and stays.
    #[must_use]
    pub fn is_up(&self, daemon: DaemonIndex) -> bool {
        self.holder(daemon).is_some_and(|holder| holder.presence == Presence::Up)
    }

    /// Daemons that stay and have a copy that counts, or that is to count.
    pub(crate) fn staying(&self, unit: &Unit) -> Vec<DaemonIndex> {
        let copies = unit.copies.iter().filter(|copy| copy.state != CopyState::Behind);
        copies.map(|copy| copy.daemon).filter(|&daemon| self.is_up(daemon)).collect()
    }

    /// How many of the copies at these daemons do not fail together.
    pub(crate) fn apart(&self, daemons: &[DaemonIndex]) -> usize {
        let first = |&(at, &daemon): &(usize, &DaemonIndex)| {
            let before = daemons.get(..at).unwrap_or_default();
            self.is_apart(daemon, before)
        };
        daemons.iter().enumerate().filter(first).count()
    }

    /// Whether a unit has fewer copies in sync than it should have, those that fail together as one.
    #[must_use]
    pub fn is_degraded(&self, unit: &Unit) -> bool {
        let in_sync: Vec<DaemonIndex> = unit.with(CopyState::InSync).collect();
        self.apart(&in_sync) < usize::from(unit.goal)
    }

    /// Whether a copy at this daemon would be apart from copies at those.
    pub(crate) fn is_apart(&self, daemon: DaemonIndex, from: &[DaemonIndex]) -> bool {
        let domain = |daemon| self.holder(daemon).map(|holder| holder.domain);
        from.iter()
            .all(|&other| other != daemon && (self.same_domain || domain(other) != domain(daemon)))
    }
}

/// Whether an instance may offer these numbers of copies.
fn are_possible(goals: &[u8]) -> bool {
    let is_new = |at: usize, goal: u8| goals.iter().take(at).all(|&other| other != goal);
    let is_one = |(at, &goal): (usize, &u8)| (2..=COPIES_MAX).contains(&goal) && is_new(at, goal);
    goals.iter().enumerate().all(is_one)
}

impl Encode for Holder {
    /// domain:u32 presence:u8 incarnation:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.domain.encode(to);
        to.push(match self.presence {
            Presence::Up => 0,
            Presence::Down => 1,
            Presence::Leaving => 2,
        });
        self.incarnation.encode(to);
    }
}

impl Decode for Holder {
    fn decode(from: &mut Reader<'_>) -> Result<Holder, Malformed> {
        let domain = from.u32()?;
        let presence = match from.u8()? {
            0 => Presence::Up,
            1 => Presence::Down,
            2 => Presence::Leaving,
            _ => return Err(Malformed),
        };
        Ok(Holder { domain, presence, incarnation: from.u64()? })
    }
}

impl Encode for CopyRow {
    /// daemon:u16 since:u64 state:u8 left_at:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.daemon.encode(to);
        self.since.encode(to);
        to.push(match self.state {
            CopyState::InSync => 0,
            CopyState::Joining => 1,
            CopyState::Behind => 2,
        });
        self.left_at.encode(to);
    }
}

impl Decode for CopyRow {
    fn decode(from: &mut Reader<'_>) -> Result<CopyRow, Malformed> {
        let (daemon, since) = (DaemonIndex::decode(from)?, from.u64()?);
        let state = match from.u8()? {
            0 => CopyState::InSync,
            1 => CopyState::Joining,
            2 => CopyState::Behind,
            _ => return Err(Malformed),
        };
        let left_at = from.u64()?;
        check(state != CopyState::InSync || left_at == 0)?;
        Ok(CopyRow { daemon, since, state, left_at })
    }
}

impl Unit {
    /// epoch:u64 since:u64 lost_at:u64 last:u16 has_primary:flag is_successor:flag, list of copies.
    /// The primary is the last one; the goal is that of the class.
    fn encode(&self, to: &mut Vec<u8>) {
        self.epoch.encode(to);
        self.since.encode(to);
        self.lost_at.encode(to);
        self.last.encode(to);
        self.primary.is_some().encode(to);
        self.is_successor.encode(to);
        encode_list(&self.copies, to);
    }

    fn decode(goal: u8, from: &mut Reader<'_>) -> Result<Unit, Malformed> {
        let (epoch, since, lost_at) = (from.u64()?, from.u64()?, from.u64()?);
        check(epoch <= VERSION_MAX)?;
        let last = DaemonIndex::decode(from)?;
        let primary = bool::decode(from)?.then_some(last);
        let is_successor = bool::decode(from)?;
        let copies = decode_list(from, ROWS_MAX)?;
        Ok(Unit { epoch, goal, primary, is_successor, since, last, lost_at, copies })
    }

    /// The invariants of the table, as far as they are of one unit.
    fn is_sound(&self, table: &Table) -> bool {
        let known = |version: u64| version <= table.version;
        let copies = self.copies.iter();
        let mut rows = copies.clone();
        let are_known = rows.all(|row| {
            let places = copies.clone().filter(|other| other.daemon == row.daemon).count();
            let is_there = table.holder(row.daemon).is_some() && places == 1;
            is_there && known(row.since) && known(row.left_at)
        });
        let has_sync = |daemon| self.with(CopyState::InSync).any(|it| it == daemon);
        are_known
            && self.epoch > 0
            && known(self.since)
            && known(self.lost_at)
            && table.holder(self.last).is_some()
            && self.primary.map_or(self.in_sync() == 0, has_sync)
    }
}

impl Encode for Table {
    /// version:u64 same_domain:flag targets:u16 units_per_target:u16, list of holders, list of the
    /// goal of each class as u8, then the units: class, target, number; behind them those of targets that
    /// were added: target, class, number.
    fn encode(&self, to: &mut Vec<u8>) {
        self.version.encode(to);
        self.same_domain.encode(to);
        self.targets.encode(to);
        self.units_per_target.encode(to);
        encode_list(&self.holders, to);
        encode_list(&self.goals(), to);
        self.units.iter().for_each(|unit| unit.encode(to));
    }
}

impl Decode for Table {
    fn decode(from: &mut Reader<'_>) -> Result<Table, Malformed> {
        let (version, same_domain) = (from.u64()?, bool::decode(from)?);
        check(version <= VERSION_MAX)?;
        let (targets, units_per_target) = (from.u16()?, from.u16()?);
        let holders: Vec<Holder> = decode_list(from, usize::from(DAEMON_COUNT_MAX))?;
        let goals: Vec<u8> = decode_list(from, usize::from(COPIES_MAX))?;
        let are_there = targets > 0 && usize::from(targets) <= holders.len();
        check(are_there && (1..=UNITS_PER_TARGET).contains(&units_per_target))?;
        check(are_possible(&goals))?;
        let units = Vec::new();
        let mut table = Table { version, same_domain, targets, units_per_target, holders, units };
        let added = table.holders.len() - usize::from(targets);
        let of_first = goals.iter().flat_map(|&goal| std::iter::repeat_n(goal, targets.into()));
        let of_added = std::iter::repeat_n(&goals, added).flatten().copied();
        for goal in of_first.chain(of_added) {
            for _ in 0..units_per_target {
                let unit = Unit::decode(goal, from)?;
                check(unit.is_sound(&table))?;
                table.units.push(unit);
            }
        }
        Ok(table)
    }
}
