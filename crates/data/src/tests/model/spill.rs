//! Spill hosts of the model: other targets, which store what was copied to them until they are told
//! to release it, however late.

use super::waiting::IMPATIENT;
use super::{ModelWorld, Outcome, PAGE, STRIPE_LOG2};
use crate::effect::{Answer, Effect, Input};
use std::collections::BTreeMap;
use wire::reply::Extent;
use wire::{DaemonIndex, Inode, Request};

/// State of all spill hosts of the model.
#[derive(Clone, Default)]
pub(super) struct SpillHosts {
    is_on: bool,
    /// Extents that they store, by location.
    stored: BTreeMap<u64, Vec<u8>>,
    /// Entries of remote locations that hold no extent of ours.
    gone: BTreeMap<u32, u64>,
    /// Locations that they were told to release, and have not yet.
    released: Vec<(u32, u64)>,
    starts: u64,
}

impl ModelWorld {
    /// Spill hosts are available from now on.
    pub(super) fn set_spill_hosts(&mut self) {
        self.spill_hosts.is_on = true;
        self.refuse_spill();
    }

    /// A daemon learns its spill hosts.
    fn refuse_spill(&mut self) {
        if self.spill_hosts.is_on {
            self.spill_hosts.starts += 1;
            let number = self.spill_hosts.starts << 32;
            self.target.set_spill_hosts([DaemonIndex(3), DaemonIndex(9)], number);
        }
    }

    /// The next daemon finds what spill hosts may hold that is not needed.
    pub(super) fn refuse_spill_again(&mut self) {
        self.refuse_spill();
        self.spill_hosts.released.clear();
        let entries: Vec<_> =
            self.spill_hosts.gone.iter().map(|(&slot, &location)| (slot, location)).collect();
        let mut out = Vec::new();
        self.target.restore_released_spill(entries, &mut out);
        out.into_iter().for_each(|effect| self.perform_spill(effect));
    }

    pub(super) fn perform_spill(&mut self, effect: Effect) {
        match effect {
            Effect::RecordSpillIntent { extent, .. } => {
                assert_eq!(self.spill_hosts.gone.insert(extent.slot, extent.location), None);
            }
            Effect::ReleaseSpilled { slot, location } => {
                assert_eq!(self.spill_hosts.gone.get(&slot), Some(&location), "no entry says so");
                let is_needed = self.table.values().any(|(_, extent)| {
                    extent.tier == Extent::SPILLED && extent.location == location
                });
                assert!(!is_needed, "bytes that count are let go of");
                self.spill_hosts.released.push((slot, location));
            }
            Effect::Forget { slot } => assert!(self.spill_hosts.gone.remove(&slot).is_some()),
            other => unreachable!("{other:?}"),
        }
    }

    /// The entry of a remote location changes: it gets an extent, or loses it.
    pub(super) fn note_spilled(&mut self, extent: &Extent, is_extent: bool) {
        if extent.tier != Extent::SPILLED {
            return;
        }
        if is_extent {
            assert_eq!(
                self.spill_hosts.gone.remove(&extent.slot),
                Some(extent.location),
                "not intended"
            );
            self.hidden.insert(extent.slot);
        } else {
            self.spill_hosts.gone.insert(extent.slot, extent.location);
        }
    }

    /// Spill hosts do what they were told.
    pub(super) fn let_go(&mut self) {
        while let Some((slot, location)) = self.spill_hosts.released.pop() {
            self.spill_hosts.stored.remove(&location);
            self.step(Input::SpilledReleased { slot }, &[]);
        }
    }

    /// A page of a copy from a spill host, or to one.
    pub(super) fn spilled_page(&mut self, extent: &Extent, at: u64) -> Option<&mut [u8]> {
        let bytes = self.spill_hosts.stored.get_mut(&extent.location)?;
        bytes.get_mut(at as usize..(at + PAGE) as usize)
    }

    pub(super) fn begin_spill_copy(&mut self, from: &Extent, to: &Extent) {
        self.seen.spilled += usize::from(to.tier == Extent::SPILLED);
        self.seen.fetched_back += usize::from(from.tier == Extent::SPILLED);
        if to.tier == Extent::SPILLED {
            let new = vec![0x55; to.length() as usize];
            assert_eq!(
                self.spill_hosts.stored.insert(to.location, new),
                None,
                "a number is used twice"
            );
        }
    }

    /// Lets a request get the extents that it waits for.
    pub(super) fn fetch_back(&mut self, body: &[u8]) -> Option<Outcome> {
        let comes = |world: &ModelWorld| {
            world.copies.iter().position(|copy| copy.from().tier == Extent::SPILLED)
        };
        while let Some(which) = comes(self).filter(|_| self.progresses()) {
            if let Some(outcome) = self.end_copy_for(which, false, body) {
                return Some(outcome);
            }
        }
        None
    }

    pub(super) fn read_spilled(&mut self, extent: &Extent, within: u64, length: u32) -> Outcome {
        let bytes = &self.spill_hosts.stored[&extent.location];
        let bytes = bytes[within as usize..][..length as usize].to_vec();
        Outcome { answer: Answer::Bytes { length }, bytes }
    }

    /// There is no local space for all that a request reads, so it is sent extent by extent.
    pub(super) fn read_by_extents(&mut self, inode: Inode, offset: u64, length: u32) -> Outcome {
        let (stripe_log2, end) = (STRIPE_LOG2, offset + u64::from(length));
        let mut bytes = Vec::new();
        for span in placement::extent::over(offset, length.into(), stripe_log2) {
            let from = offset.max(span.start);
            let part = (end.min(span.end()) - from) as u32;
            let request = Request::Read { inode, stripe_log2, offset: from, length: part };
            let ticket = IMPATIENT;
            let outcome = self
                .step(Input::Request { ticket, request: &request, job: wire::JobWord::NONE }, &[]);
            let outcome = outcome.or_else(|| self.fetch_back(&[])).expect("one extent can be read");
            bytes.extend(outcome.bytes);
        }
        Outcome { answer: Answer::Bytes { length }, bytes }
    }

    /// Checks that nothing is spilled, and no entry says that something may be.
    pub(super) fn check_nothing_spilled(&mut self) {
        self.let_go();
        assert!(
            self.spill_hosts.stored.is_empty(),
            "{:?} is stored",
            self.spill_hosts.stored.keys()
        );
        assert!(self.spill_hosts.gone.is_empty(), "{:?}", self.spill_hosts.gone);
    }

    /// Truncates a file, or not: that fails without local space for the extent at the new end.
    pub(super) fn is_cut_refused(&mut self, request: &Request<'_>) -> bool {
        let answer = self.call(request).answer;
        let is_refused =
            matches!(answer, Answer::Busy { .. } | Answer::Refused(wire::Errno::ENOSPC));
        assert!(answer == Answer::Done || is_refused, "{answer:?}");
        assert!(
            !is_refused || self.target.spilled_bytes().spilled_out > 0,
            "nothing has to come home"
        );
        is_refused
    }

    /// Bytes of local extents.
    pub(super) fn bytes_here(&self) -> u64 {
        let is_here = |(_, extent): &(Inode, Extent)| extent.tier != Extent::SPILLED;
        self.target.extents().filter(is_here).map(|(_, extent)| extent.length()).sum()
    }
}
