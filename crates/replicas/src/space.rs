//! The space that daemons have for copies, as each reports it, and the bytes of units. It is no part of
//! the table: a leader hears it anew, and moves nothing to a daemon before it has.
//!
//! A daemon whose memory was reclaimed by its node, or is lent as long as that is idle, is *limited*.
//! Bytes beyond those that it may hold go to its own SSD first, which is its own affair. Copies
//! leave it only where the SSD has no space either; a sixteenth of its memory stays free for writers. It
//! takes copies while a quarter of its memory or of its SSD stays free behind them, and an eighth of its
//! memory at least, so what has left does not come back at once.

use encoding::{Decode, Encode, decode_list, encode_list};
use std::collections::BTreeMap;
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::limits::UNIT_COUNT_MAX;

use crate::placement::UnitIndex;
use crate::table::Table;

/// One part in this many of the memory of a limited daemon is free for writers, and of an SSD for moves
/// between its tiers.
const RESERVE_PARTS: u64 = 16;
/// One part in this many stays free behind copies that come, as behind extents that spill.
const SPARE_PARTS: u64 = 4;

/// The report of a daemon about its space, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DaemonSpace {
    /// Memory that it was started with.
    pub memory: u64,
    /// Memory that it may hold now.
    pub allowed: u64,
    /// Memory in files.
    pub used: u64,
    /// Its SSD; 0: it has none.
    pub ssd: u64,
    /// Free space of it.
    pub ssd_free: u64,
}

impl DaemonSpace {
    /// Whether it may hold less memory than it was started with.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.allowed < self.memory
    }

    /// Space of the SSD that files in memory may move to.
    const fn ssd_left(&self) -> u64 {
        self.ssd_free.saturating_sub(self.ssd / RESERVE_PARTS)
    }

    /// Bytes of copies that are to leave it.
    #[must_use]
    pub const fn to_leave(&self) -> u64 {
        if !self.is_limited() {
            return 0;
        }
        let needed = self.used.saturating_add(self.memory / RESERVE_PARTS);
        needed.saturating_sub(self.allowed.saturating_add(self.ssd_left()))
    }

    /// Bytes of copies that it takes in memory, and on its SSD. Those do not have to leave.
    fn takes(&self) -> (u64, u64) {
        let least = 2 * (self.memory / RESERVE_PARTS);
        let spare = |all: u64| least.max(all / SPARE_PARTS);
        let beyond = self.used.saturating_sub(self.allowed);
        let memory = self.allowed.saturating_sub(spare(self.allowed));
        let ssd = self.ssd_left().saturating_sub(spare(self.ssd));
        (memory.saturating_sub(self.used), ssd.saturating_sub(beyond))
    }
}

/// A daemon's report.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SpaceReport {
    /// Its space.
    pub space: DaemonSpace,
    /// Bytes of units that it is the primary of.
    pub units: Vec<(UnitIndex, u64)>,
}

/// The state of a daemon as others know it.
#[derive(Clone, Copy, Debug)]
struct Reported {
    last: DaemonSpace,
    /// Bytes that were to leave it in the last report and in the one before: what it evicts or demotes
    /// itself is gone by then.
    to_leave: u64,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Spaces {
    daemons: BTreeMap<DaemonIndex, Reported>,
    units: BTreeMap<UnitIndex, u64>,
    are_reported: bool,
}

impl Spaces {
    /// Daemons report their space: none is given copies before it has. Without this each has space.
    pub const fn begin(&mut self) {
        self.are_reported = true;
    }

    /// A daemon reports.
    pub fn hear(&mut self, from: DaemonIndex, report: &SpaceReport) {
        self.begin();
        let before = self.daemons.get(&from).map_or(0, |it| it.last.to_leave());
        let (last, to_leave) = (report.space, report.space.to_leave().min(before));
        self.daemons.insert(from, Reported { last, to_leave });
        self.units.extend(report.units.iter().copied());
    }

    /// Forgets daemons that do not take part: one that returns has other space.
    pub fn follow(&mut self, table: &Table) {
        self.daemons.retain(|&daemon, _| table.is_up(daemon));
    }

    /// Whether copies may have to be elsewhere than without reports.
    #[must_use]
    pub fn are_limiting(&self, table: &Table) -> bool {
        let is_known = |daemon| self.daemons.get(&daemon).is_some_and(|it| !it.last.is_limited());
        let mut up = table.daemons().map(|(daemon, _)| daemon).filter(|&it| table.is_up(it));
        self.are_reported && !up.all(is_known)
    }

    /// Bytes of copies that are to leave a daemon.
    pub(crate) fn to_leave(&self, daemon: DaemonIndex) -> u64 {
        self.daemons.get(&daemon).map_or(0, |it| it.to_leave)
    }

    /// Whether a daemon has no space for a copy that it is being filled with.
    pub(crate) fn is_short(&self, daemon: DaemonIndex) -> bool {
        self.daemons.get(&daemon).is_some_and(|it| it.last.to_leave() > 0)
    }

    /// Bytes of a unit, once its primary has said it.
    pub(crate) fn bytes(&self, unit: UnitIndex) -> Option<u64> {
        self.units.get(&unit).copied()
    }

    /// Bytes that each daemon takes, in memory and on its SSD.
    pub(crate) fn budgets(&self) -> BTreeMap<DaemonIndex, Budget> {
        let budget = |space: &DaemonSpace| {
            let (memory, ssd) = space.takes();
            Budget { memory, ssd, is_limited: space.is_limited() }
        };
        let open = self.daemons.iter().filter(|(_, it)| it.last.to_leave() == 0);
        open.map(|(&daemon, it)| (daemon, budget(&it.last))).collect()
    }
}

/// Bytes of copies that a daemon takes yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    pub(crate) memory: u64,
    pub(crate) ssd: u64,
    pub(crate) is_limited: bool,
}

impl Budget {
    pub(crate) const fn takes(&self, bytes: u64) -> bool {
        bytes <= self.memory || bytes <= self.ssd
    }

    /// A copy of so many bytes comes.
    pub(crate) const fn give(&mut self, bytes: u64) {
        if bytes <= self.memory {
            self.memory -= bytes;
        } else {
            self.ssd = self.ssd.saturating_sub(bytes);
        }
    }
}

impl Encode for DaemonSpace {
    /// memory:u64 allowed:u64 used:u64 ssd:u64 ssd_free:u64
    fn encode(&self, to: &mut Vec<u8>) {
        for bytes in [self.memory, self.allowed, self.used, self.ssd, self.ssd_free] {
            bytes.encode(to);
        }
    }
}

impl Decode for DaemonSpace {
    fn decode(from: &mut Reader<'_>) -> Result<DaemonSpace, Malformed> {
        let (memory, allowed, used) = (from.u64()?, from.u64()?, from.u64()?);
        Ok(DaemonSpace { memory, allowed, used, ssd: from.u64()?, ssd_free: from.u64()? })
    }
}

impl Encode for SpaceReport {
    /// space, list of unit:u32 bytes:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.space.encode(to);
        let units: Vec<(u32, u64)> =
            self.units.iter().map(|&(unit, bytes)| (unit.0, bytes)).collect();
        encode_list(&units, to);
    }
}

impl Decode for SpaceReport {
    fn decode(from: &mut Reader<'_>) -> Result<SpaceReport, Malformed> {
        let space = DaemonSpace::decode(from)?;
        let units: Vec<(u32, u64)> = decode_list(from, UNIT_COUNT_MAX)?;
        let units = units.into_iter().map(|(unit, bytes)| (UnitIndex(unit), bytes)).collect();
        Ok(SpaceReport { space, units })
    }
}
