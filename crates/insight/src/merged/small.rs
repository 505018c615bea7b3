//! Uses of small files of a directory as one record, whatever each use does: all that is kept of one is
//! whether it read and wrote, its rank and its offsets. Numbers, bytes and times are its part of the sums
//! of those that did.

use super::alike::{Member, Spread};
use super::files::{UseGroup, UseMembers};
use super::runs::Runs;
use crate::profile::{FileProfile, FileUse, Transfers};

/// Bits of the ways of a use.
const READS: u64 = 1;
const WRITES: u64 = 2;

fn way(one: &FileUse) -> u64 {
    u64::from(one.reads.number > 0) * READS + u64::from(one.writes.number > 0) * WRITES
}

/// The uses of these files.
pub(super) fn group(files: &[&FileProfile]) -> UseGroup {
    let all: Vec<&FileUse> = files.iter().flat_map(|file| &file.uses).collect();
    let group = super::files::use_group(&all);
    let members = group.members.map(|members| UseMembers {
        seconds: Spread::default(),
        of_files: Runs::of(files.iter().map(|file| file.uses.len() as u64)),
        ways: Runs::of(all.iter().map(|one| way(one))),
        ..members
    });
    UseGroup { members, ..group }
}

/// Gives those that go one way their parts of a sum.
struct Parts<'a> {
    way: u64,
    count: u64,
    next: u64,
    sum: &'a Transfers,
    offsets: [Vec<u64>; 2],
}

impl<'a> Parts<'a> {
    fn new(way: u64, ways: &[u64], sum: &'a Transfers, offsets: &[Runs; 2]) -> Parts<'a> {
        let count = ways.iter().filter(|one| *one & way != 0).count() as u64;
        let offsets = offsets.each_ref().map(|offsets| offsets.each().collect());
        Parts { way, count, next: 0, sum, offsets }
    }

    /// The part of the use at this place.
    fn of(&mut self, place: usize, way: u64) -> Transfers {
        let [lowest, highest] =
            self.offsets.each_ref().map(|all| all.get(place).copied().unwrap_or(0));
        if way & self.way == 0 {
            return Transfers { lowest, highest, ..Transfers::default() };
        }
        let member = Member::new(self.next, self.count, (0.0, &Spread::default()));
        self.next = self.next.saturating_add(1);
        Transfers { lowest, highest, ..member.transfers(self.sum) }
    }
}

/// The uses of a group that `group` made.
pub(super) fn uses(sum: &FileUse, all: &UseMembers) -> Vec<FileUse> {
    let ranks: Vec<u64> = all.ranks.each().collect();
    let ways: Vec<u64> = all.ways.each().take(ranks.len()).collect();
    let mut reads = Parts::new(READS, &ways, &sum.reads, &all.read);
    let mut writes = Parts::new(WRITES, &ways, &sum.writes, &all.written);
    let one = |(place, (rank, way)): (usize, (&u64, &u64))| {
        let member = Member::new(place as u64, ways.len() as u64, (0.0, &Spread::default()));
        FileUse {
            rank: u32::try_from(*rank).unwrap_or(u32::MAX),
            opens: member.number(sum.opens),
            reads: reads.of(place, *way),
            writes: writes.of(place, *way),
            metadata_seconds: member.seconds(sum.metadata_seconds),
            syncs: member.number(sum.syncs),
        }
    };
    ranks.iter().zip(&ways).enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(number: u64, bytes: u64, seconds: f64) -> Transfers {
        Transfers { number, bytes, seconds, highest: bytes, ..Transfers::default() }
    }

    #[test]
    fn each_use_keeps_its_ways_and_offsets_and_the_sums_stay() {
        let written =
            FileUse { rank: 3, opens: 1, writes: moved(1, 73, 0.01), ..FileUse::default() };
        let read = FileUse { rank: 5, opens: 2, reads: moved(4, 400, 0.02), ..FileUse::default() };
        let both = FileUse { reads: moved(1, 9, 0.0), ..written };
        let of = |uses| FileProfile { uses, ..FileProfile::default() };
        let files = [of(vec![written, read]), of(vec![both])];
        let group = group(&files.each_ref());
        let members = group.members.as_ref().expect("several");
        let again = uses(&group.sum, members);
        let seen = |all: &[FileUse]| -> Vec<_> {
            let ends = |one: &FileUse| [one.reads.highest, one.writes.highest];
            all.iter().map(|one| (one.rank, way(one), ends(one))).collect()
        };
        assert_eq!(seen(&again), seen(&[written, read, both]));
        let sum = |of: fn(&FileUse) -> u64| -> u64 { again.iter().map(of).sum() };
        assert_eq!((sum(|one| one.opens), sum(|one| one.reads.number)), (4, 5));
        assert_eq!((sum(|one| one.reads.bytes), sum(|one| one.writes.bytes)), (409, 146));
        let seconds: f64 = again.iter().map(|one| one.reads.seconds + one.writes.seconds).sum();
        assert!((seconds - 0.04).abs() < 1e-9, "{seconds}");
        assert_eq!(members.of_files.each().collect::<Vec<_>>(), [2, 1]);
    }
}
