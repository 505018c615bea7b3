//! The model's target is slow: other hosts read its files, whose extents move to other targets, and read
//! them there; some of the readers take long.

use super::{ModelFiles, ModelWorld, Outcome, PAGE, STRIPE_LOG2, grow};
use crate::admission::work::LOCATE;
use crate::effect::{Answer, Input};
use std::collections::BTreeMap;
use wire::reply::Extent;
use wire::{DaemonIndex, Errno, Inode, Request};

/// A spill host that is not slow. The other one takes nothing that migrates.
const WELL: DaemonIndex = DaemonIndex(9);

impl ModelWorld {
    /// A service says that the target is slow.
    pub(super) fn be_slow(&mut self) {
        self.target.pass_time(self.millis);
        let own = DaemonIndex(0);
        assert!(self.step(Input::Slow { others: &[own, WELL] }, &[]).is_none());
    }

    /// Nobody says anything for so long.
    pub(super) fn be_silent(&mut self, millis: u32) {
        self.millis = self.millis.wrapping_add(millis);
        self.target.pass_time(self.millis);
        assert!(self.step(Input::Tick, &[]).is_none());
        self.tick_writers();
    }

    /// A daemon of another host reads the extent that holds `offset` of a file, wherever it is; the
    /// transfer goes on if it `takes_long`.
    pub(super) fn read_from_afar(
        &mut self,
        files: &mut ModelFiles,
        (file, offset): (u64, u64),
        takes_long: bool,
    ) {
        let span = placement::extent::at(offset, STRIPE_LOG2);
        let (inode, stripe_log2, allocate, preallocate) = (Inode(file), STRIPE_LOG2, LOCATE, 0);
        let (offset, length) = (span.start, span.length());
        let request =
            Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
        let Outcome { answer, .. } = self.call(&request);
        let model = files.entry(file).or_default();
        grow(model, span.end());
        let expected = &model[span.start as usize..span.end() as usize];
        let extents = match answer {
            Answer::Extents(extents) => extents,
            Answer::Number(location) => {
                self.seen.redirected += 1;
                let is_it = |(_, one): &(Inode, Extent)| one.location == location;
                let found = self.target.extents().find(is_it);
                let Some((_, extent)) = found else {
                    // The daemon was killed after its answer, and the next one has it at home.
                    return self.read_from_afar(files, (file, offset), takes_long);
                };
                assert_eq!((extent.tier, extent.start), (Extent::SPILLED, span.start));
                let bytes = self.read_spilled(&extent, 0, extent.length() as u32).bytes;
                return assert!(bytes == expected, "file {file} differs at {}", span.start);
            }
            // It cannot come back now.
            Answer::Busy { .. } | Answer::Refused(Errno::ENOSPC | Errno::EIO) => {
                assert!(self.target.spilled_bytes().spilled_out > 0, "nothing has to come back");
                return;
            }
            other => panic!("{other:?}"),
        };
        let Some(extent) = extents.first() else {
            return assert!(expected.iter().all(|byte| *byte == 0), "a hole has bytes");
        };
        assert_eq!((extents.len(), extent.start), (1, span.start));
        assert_ne!(extent.tier, Extent::SPILLED, "no daemon can read it there");
        if takes_long {
            self.reading.insert(extent.slot, *extent);
        }
        assert!(self.read_unhindered(extent) == expected, "file {file} differs at {}", span.start);
    }

    /// Bytes of an extent that migrates, or does not move.
    fn read_unhindered(&mut self, extent: &Extent) -> Vec<u8> {
        let mut bytes = vec![0; extent.length() as usize];
        for (page, to) in (0..).zip(bytes.chunks_exact_mut(PAGE as usize)) {
            if self.is_valid(extent, page) {
                self.check_readable(extent);
                to.copy_from_slice(self.device(extent, page * PAGE, (page + 1) * PAGE));
            }
        }
        bytes
    }

    /// An extent that is read is published; if it is hidden, it migrates, and does not change.
    pub(super) fn check_readable(&self, extent: &Extent) {
        let row = self.table.get(&extent.slot).copied();
        let Some((inode, shown)) = row else { panic!("not published") };
        assert_eq!(shown, *extent);
        let migrates = self.target.tiering.moves.is_migrating(inode, extent.start);
        assert!(!self.hidden.contains(&extent.slot) || migrates, "read while it is hidden");
    }

    /// Protected slots, and those of them that nothing protects but transfers that read.
    pub(super) fn protected_slots(&self) -> (Vec<u32>, Vec<u32>) {
        let reads = |slot: &&u32| !self.protected.contains_key(*slot);
        let reading: Vec<u32> = self.reading.keys().filter(reads).copied().collect();
        let all: BTreeMap<u32, Extent> =
            self.protected.iter().chain(&self.reading).map(|(slot, one)| (*slot, *one)).collect();
        (all.into_keys().collect(), reading)
    }
}
