//! Files in units that lost all their copies: what a file had there is lost, unless the file is younger
//! than the loss, or was emptied since.
//!
//! Requests do not say how old their file is, and nobody asks as long as nothing is lost. The daemon
//! whose node calls bytes lost asks the service of the file (`Request::KnownLoss`), once for a file as a
//! rule: a file never becomes older.
//!
//! ```text
//!  node --Answer::Lost--> ask_loss --KnownLoss--> service of the file
//!                                                        |
//!           ask the node again <--it is younger-- Event::LossKnown --it is older--> EIO
//! ```
//!
//! A read of a file that the backing store has as it is gets the bytes from there instead.

use super::Units;
use super::agent::UnitPlace;
use super::waiting::WaitingAsk;
use super::ways::read_below;
use crate::backing::IfChanged;
use crate::shared::Shared;
use crate::shared::reply::{LOST_MICROS, ReplyTo};
use metadata::LackingUnits;
use replicas::table::Table;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::losses::LostUnits;
use wire::{DaemonIndex, Inode, Reply, Request};

/// Files of which this daemon remembers it. Those that it forgets are asked about again.
const FILES_MAX: usize = 1 << 16;

/// The last loss that each of some files is younger than.
#[derive(Default)]
pub(super) struct FileLosses {
    known: Mutex<BTreeMap<Inode, u64>>,
}

impl FileLosses {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Inode, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As far as it is known; 0: it may be older than all.
    pub(super) fn newest_before(&self, inode: Inode) -> u64 {
        self.known().get(&inode).copied().unwrap_or(0)
    }

    fn note(&self, inode: Inode, loss: u64) {
        if loss == 0 {
            return;
        }
        let mut known = self.known();
        if known.len() >= FILES_MAX {
            known.clear();
        }
        let before = known.entry(inode).or_default();
        *before = loss.max(*before);
    }
}

/// Units without their bytes, as the table says.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct LossesNow {
    /// Units of each target for one number of copies.
    pub(crate) per_target: u16,
    /// Units of which all copies were lost.
    pub(crate) gone: Vec<LostUnits>,
    /// Units of which all daemons with every acknowledged byte are down.
    pub(crate) down: Vec<LostUnits>,
}

/// Number of copies, target, and loss, as in `LostUnits`.
type LossKey = (u8, u16, u64);

fn rows(found: BTreeMap<LossKey, u64>) -> Vec<LostUnits> {
    let row = |((copies, target, since), units)| LostUnits { copies, target, units, since };
    found.into_iter().map(row).collect()
}

impl LossesNow {
    pub(super) fn of(table: &Table) -> LossesNow {
        let per_target = table.units_per_target();
        let (mut gone, mut down) = (BTreeMap::new(), BTreeMap::new());
        for (index, unit) in table.units() {
            let (copies, target) = (unit.goal, table.home(index).0);
            let bit = 1u64 << table.number_at_home(index);
            if unit.primary.is_none() {
                *down.entry((copies, target, LostUnits::OF_ALL_FILES)).or_default() |= bit;
            }
            if unit.lost_at > 0 {
                *gone.entry((copies, target, unit.lost_at)).or_default() |= bit;
            }
        }
        LossesNow { per_target, gone: rows(gone), down: rows(down) }
    }
}

/// Units of each target that have fewer copies in sync than they should have.
fn degraded_units(table: &Table) -> Vec<LostUnits> {
    let mut found: BTreeMap<LossKey, u64> = BTreeMap::new();
    for (index, unit) in table.units().filter(|(_, it)| table.is_degraded(it)) {
        let key = (unit.goal, table.home(index).0, LostUnits::OF_ALL_FILES);
        *found.entry(key).or_default() |= 1 << table.number_at_home(index);
    }
    rows(found)
}

/// The answer of the service of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LossAnswer {
    /// The last loss that the file is younger than.
    Loss(u64),
    /// The service cannot be reached now.
    Busy,
    /// There is no such file, or the answer is none.
    Unknown,
}

impl LossAnswer {
    /// From an encoded reply.
    pub(crate) fn of(reply: &[u8]) -> LossAnswer {
        match Reply::decode(&mut Reader::new(reply)) {
            Ok(Reply::Number { value }) => LossAnswer::Loss(value),
            Ok(Reply::Busy { .. } | Reply::Stale { .. }) => LossAnswer::Busy,
            _ => LossAnswer::Unknown,
        }
    }
}

impl Units {
    /// As the thread of the membership knows them.
    pub(crate) fn losses_now(&self) -> LossesNow {
        LossesNow::of(&self.table())
    }

    /// All units and targets that lack something, for the service of a file.
    pub(crate) fn lacking(&self) -> LackingUnits {
        let LossesNow { per_target, mut gone, mut down } = self.losses_now();
        gone.push(LostUnits::CHANGES);
        down.extend(self.targets_down());
        let degraded = degraded_units(&self.table());
        LackingUnits { per_target, gone, down, degraded }
    }

    /// Targets that are down, for files with one copy there.
    pub(crate) fn targets_down(&self) -> Vec<LostUnits> {
        let (table, since) = (self.table(), LostUnits::OF_TARGET);
        let targets = table.units().map(|(unit, _)| table.home(unit)).collect::<BTreeSet<_>>();
        let down = targets.into_iter().filter(|target| !table.is_up(*target));
        let row = |DaemonIndex(target)| LostUnits { copies: 1, target, units: 0, since };
        down.map(row).collect()
    }

    /// The node calls the bytes of a request lost: asks the service of the file how old that is. The
    /// answer is `Event::LossKnown` with the ticket.
    pub(super) fn ask_loss(&self, shared: &Shared, ticket: u64, waiting: WaitingAsk) {
        let WaitingAsk { to, request: Some(request) } = waiting else {
            return shared.refuse(waiting.to, Errno::EIO);
        };
        let inode = request.bytes.inode;
        if let Err(to) = self.waiting.admit_asked(ticket, request, to) {
            return shared.busy(to, LOST_MICROS);
        }
        let to = ReplyTo::KnownLoss { ticket };
        shared.ask_shard_of(inode, &Request::KnownLoss { inode }, to);
    }

    /// The service of the file has answered.
    pub(super) fn loss_known(&self, shared: &Shared, ticket: u64, answer: LossAnswer) {
        let Some((request, to)) = self.waiting.take_asked(ticket) else { return };
        let table = self.table();
        let place = UnitPlace::of(&table, request.shape(self.copies), &request.bytes);
        let row = place.ok().and_then(|place| table.unit(place.unit));
        let Some(row) = row else { return shared.refuse(to, Errno::EINVAL) };
        let inode = request.bytes.inode;
        match answer {
            LossAnswer::Loss(loss) if loss >= row.lost_at => {
                self.losses.note(inode, loss);
                self.go_on(shared, request, to);
            }
            LossAnswer::Busy => shared.busy(to, LOST_MICROS),
            LossAnswer::Loss(_) | LossAnswer::Unknown => {
                tracing::debug!(inode = inode.0, lost_at = row.lost_at, "bytes of a file are lost");
                read_below(shared, &request, to, IfChanged::Lost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::reply::encode_reply;
    use replicas::change::Change;
    use replicas::placement::UnitIndex;
    use replicas::table::Unit;

    fn change(table: &mut Table, change: Change) {
        table.apply(&change).expect("possible");
    }

    /// Copies, target and number of each unit in rows.
    fn named(rows: &[LostUnits]) -> BTreeSet<(u8, u16, u32)> {
        let units = rows.iter().flat_map(|row| {
            let bits = (0..u64::BITS).filter(|bit| row.units >> bit & 1 != 0);
            bits.map(|bit| (row.copies, row.target, bit))
        });
        units.collect()
    }

    /// The same of units that have such a row.
    fn units_that(table: &Table, is_it: impl Fn(&Unit) -> bool) -> BTreeSet<(u8, u16, u32)> {
        let units = table.units().filter(|(_, unit)| is_it(unit));
        // Each target has eight for three copies, and behind those of all eight for two.
        let place = |(index, unit): (UnitIndex, &Unit)| {
            (unit.goal, table.home(index).0, index.0 % PER_TARGET)
        };
        units.map(place).collect()
    }

    const PER_TARGET: u32 = 8;
    /// The numbers of copies of units that so many deaths take.
    const TAKEN: [&[u8]; 3] = [&[], &[2], &[2, 3]];

    #[test]
    fn units_without_their_bytes_are_named_by_their_copies_and_targets() {
        let per_target = PER_TARGET as u16;
        let mut table = Table::initial(&[0, 1, 2, 3], &[3, 2], per_target, false).expect("a setup");
        assert_eq!(LossesNow::of(&table), LossesNow { per_target, ..LossesNow::default() });
        let before = table.clone();
        let all = [DaemonIndex(0), DaemonIndex(1), DaemonIndex(2)];
        let are_down = |unit: &Unit, count: usize| {
            unit.copies.iter().all(|copy| all[..count].contains(&copy.daemon))
        };
        for (count, &daemon) in (1..).zip(&all) {
            change(&mut table, Change::Down { daemon, incarnation: 1, known: 1 });
            let found = LossesNow::of(&table);
            let expected = units_that(&before, |unit| are_down(unit, count));
            assert_eq!((named(&found.down), &found.gone), (expected, &vec![]));
            let is_of_all = |row: &LostUnits| row.since == LostUnits::OF_ALL_FILES;
            assert!(found.down.iter().all(is_of_all));
            let lacks =
                |unit: &Unit| unit.copies.iter().any(|it| all[..count].contains(&it.daemon));
            assert_eq!(named(&degraded_units(&table)), units_that(&before, lacks));
            // Two deaths take units of two copies, and none of three.
            let copies: BTreeSet<u8> = found.down.iter().map(|row| row.copies).collect();
            assert!(copies.iter().eq(TAKEN[count - 1]), "{count}: {copies:?}");
        }
        // All return with nothing.
        for daemon in all {
            let (incarnation, domain, is_empty, known) = (2, daemon.0.into(), true, 1);
            change(&mut table, Change::Up { daemon, incarnation, domain, is_empty, known });
        }
        let found = LossesNow::of(&table);
        let expected = units_that(&before, |unit| are_down(unit, 3));
        assert_eq!((named(&found.gone), &found.down), (expected, &vec![]));
        assert!(found.gone.iter().any(|row| row.since == table.newest_loss()));
    }

    #[test]
    fn a_file_is_asked_about_and_never_becomes_older() {
        let losses = FileLosses::default();
        let (one, two) = (Inode(1), Inode(2));
        losses.note(one, 5);
        losses.note(one, 3);
        losses.note(two, 0);
        assert_eq!([one, two].map(|inode| losses.newest_before(inode)), [5, 0]);
        assert_eq!(losses.known().len(), 1, "nothing is known of the other");
        for number in 0..FILES_MAX as u64 + 10 {
            losses.note(Inode(10 + number), 7);
        }
        assert!(losses.known().len() <= FILES_MAX);
        assert_eq!(losses.newest_before(Inode(FILES_MAX as u64 + 19)), 7);
    }

    #[test]
    fn a_reply_that_is_no_number_says_nothing_of_a_file() {
        let of = |reply: Reply<'_>| LossAnswer::of(&encode_reply(&reply, 0));
        assert_eq!(of(Reply::Number { value: 9 }), LossAnswer::Loss(9));
        assert_eq!(of(Reply::Busy { retry_micros: 1 }), LossAnswer::Busy);
        assert_eq!(of(Reply::Stale { epoch: 1 }), LossAnswer::Busy);
        assert_eq!(of(Reply::Refused { errno: Errno::ESTALE }), LossAnswer::Unknown);
        assert_eq!(of(Reply::Done {}), LossAnswer::Unknown);
        assert_eq!(LossAnswer::of(&[]), LossAnswer::Unknown);
    }
}
