//! Memory and SSD of the target, and the extents that must not move at the moment because a thread
//! of this daemon is copying.
//!
//! Any thread may read these; only worker 0 allocates and moves extents, and changes their entries
//! in the extent table.

use crate::sessions::open_sessions::OpenSessions;
use data::{Effect, Validity};
use rustix::fd::OwnedFd;
use rustix::fs::SeekFrom;
use shm::extents::{self, Arena, ExtentHints, ExtentStates, ExtentTable, HEADER_BYTES, all_pages};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use store::SsdFile;
use wire::Inode;
use wire::errno::Result;
use wire::reply::Extent;

/// The devices of a target.
pub(crate) struct Devices {
    /// The memory tier.
    pub(crate) arena: Arena,
    /// The SSD tier.
    pub(crate) ssd: SsdFile,
    /// Headers of extents.
    pub(crate) table: ExtentTable,
    /// States of extents.
    pub(crate) states: ExtentStates,
    /// Hash from file and offset to the extent.
    pub(crate) extent_hints: ExtentHints,
    /// Hazard pointers: extents that clients are copying.
    pub(crate) client_hazards: extents::HazardPointers,
    /// Clients of earlier daemons may still use the hazard pointers of sessions below this index:
    /// for cached extents they need no daemon.
    pub(crate) sessions_before: u16,
    /// Extents that threads of this daemon are copying.
    pub(crate) hazards: TransferHazards,
    /// Reads of other hosts ask the target where each extent is (`Target::redirects_reads`).
    pub(crate) redirects: AtomicBool,
}

/// Why a thread of this daemon protects an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    /// It sends bytes to another host.
    Reads,
    /// It may change bytes, or needs the extent at its place.
    Holds,
}

/// Users of an extent, by what they do.
#[derive(Clone, Copy, Default)]
struct ExtentUsers {
    reading: u32,
    holding: u32,
}

impl ExtentUsers {
    const fn count(&mut self, why: Protection) -> &mut u32 {
        match why {
            Protection::Reads => &mut self.reading,
            Protection::Holds => &mut self.holding,
        }
    }
}

/// Hidden or published extents that must not move, by slot, with the number of users.
///
/// A user protects an extent first and reads its header afterwards; worker 0 hides an extent first
/// and checks its users afterwards. The lock ensures that one of the two sees the other.
#[derive(Default)]
pub(crate) struct TransferHazards(Mutex<BTreeMap<u32, ExtentUsers>>);

impl TransferHazards {
    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, ExtentUsers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Protects an extent.
    pub(crate) fn protect(&self, slot: u32, why: Protection) {
        *self.users().entry(slot).or_default().count(why) += 1;
    }

    /// Ends one `protect` with the same reason.
    pub(crate) fn release(&self, slot: u32, why: Protection) {
        let mut all = self.users();
        if let Some(users) = all.get_mut(&slot) {
            *users.count(why) -= 1;
            if users.reading + users.holding == 0 {
                all.remove(&slot);
            }
        }
    }

    fn slots(&self) -> Vec<u32> {
        self.users().keys().copied().collect()
    }

    /// Slots that are read, and that nothing else protects.
    fn only_read(&self) -> Vec<u32> {
        let all = self.users();
        all.iter().filter(|(_, users)| users.holding == 0).map(|(slot, _)| *slot).collect()
    }
}

/// Slots that must not be used for something else, as a check of hazard pointers found them.
pub(crate) struct FoundHazards {
    /// All of them.
    pub(crate) protected: Vec<u32>,
    /// Those that only transfers to other hosts protect.
    pub(crate) reading: Vec<u32>,
}

impl Devices {
    /// Calls `each` with every extent that a client of an earlier daemon may be copying.
    pub(crate) fn each_previous_hazard(&self, each: &mut dyn FnMut(u32)) {
        (0..self.sessions_before).for_each(|session| self.client_hazards.each(session, each));
    }

    /// Slots of extents that are being copied, by this daemon or by a client.
    pub(crate) fn protected_slots(&self, sessions: &OpenSessions) -> Vec<u32> {
        self.find_hazards(sessions, &mut |_| ()).protected
    }

    /// The same by what they are used for; `more` adds slots that must stay for another reason.
    ///
    /// A user that changes a hidden extent had protected it before it was hidden: so an extent that is
    /// only read now is only read until it is shown.
    pub(crate) fn find_hazards(
        &self,
        sessions: &OpenSessions,
        more: &mut dyn FnMut(&mut Vec<u32>),
    ) -> FoundHazards {
        let mut reading = self.hazards.only_read();
        let mut protected = Vec::new();
        let mut each = |slot| protected.push(slot);
        self.each_previous_hazard(&mut each);
        sessions.each_open(self.sessions_before, &mut |session| {
            self.client_hazards.each(session, &mut each);
        });
        more(&mut protected);
        reading.retain(|slot| !protected.contains(slot));
        protected.extend(self.hazards.slots());
        FoundHazards { protected, reading }
    }

    pub(crate) fn target(&self) -> extents::Target<'_> {
        extents::Target {
            arena: &self.arena,
            ssd: self.ssd.fd(),
            table: &self.table,
            states: &self.states,
        }
    }
}

/// Ranges of entries that were ever written. Reading the others would allocate memory for them.
pub(crate) fn used_slots(
    fd: &OwnedFd,
    count: u32,
) -> rustix::io::Result<Vec<std::ops::Range<u32>>> {
    let row = |offset: u64| u32::try_from(offset / HEADER_BYTES as u64).unwrap_or(count).min(count);
    let mut ranges = Vec::new();
    let mut from = 0;
    loop {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(error) => return Err(error),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
        ranges.push(row(start)..row(end + HEADER_BYTES as u64 - 1));
        from = end.max(start + 1);
    }
}

/// Changes of an entry. Its slot is one that the target has given out, so it is in the table.
fn expect_slot(changed: Result<()>) {
    assert_eq!(changed, Ok(()), "slot is outside the extent table");
}

/// Entries of the extent table.
impl Devices {
    /// Sets the valid pages of an extent, then publishes it.
    pub(crate) fn publish_extent(
        &self,
        inode: Inode,
        extent: &Extent,
        valid: Validity,
        is_pinned: bool,
    ) {
        let Devices { states, table, .. } = self;
        let shown = match valid {
            Validity::All => states.reset(extent, all_pages(extent.length_log2)),
            Validity::Backing => states
                .reset(extent, all_pages(extent.length_log2))
                .and_then(|()| states.set_clean(extent.slot)),
            Validity::Fetched => states
                .reset(extent, all_pages(extent.length_log2))
                .and_then(|()| states.set_clean(extent.slot))
                .and_then(|()| states.set_fetched(extent.slot)),
            Validity::Nothing | Validity::Preallocated => states.reset(extent, 0),
            Validity::As(from) => states.reset_as(&from, extent),
        };
        let shown = shown
            .and_then(|()| states.set_preallocated(extent.slot, valid == Validity::Preallocated))
            .and_then(|()| states.set_pinned(extent.slot, is_pinned))
            .and_then(|()| table.publish(inode, extent));
        expect_slot(shown);
        self.extent_hints.note(&self.table, inode, extent);
    }

    /// Publishes an extent that is on a spill host.
    pub(crate) fn publish_spilled(&self, inode: Inode, extent: &Extent, is_pinned: bool) {
        let noted = self.states.set_pinned(extent.slot, is_pinned);
        expect_slot(noted.and_then(|()| self.table.publish_hidden(inode, extent)));
    }

    fn unpublish_extent(&self, slot: u32) {
        let before = self.table.get(slot).or_else(|| self.table.hidden(slot));
        expect_slot(self.table.unpublish(slot));
        if let Some((inode, extent)) = before {
            self.extent_hints.forget(inode, &extent);
        }
    }

    /// Performs an effect that changes one entry and nothing else.
    pub(crate) fn change_entry(&self, effect: Effect) {
        let Devices { states, table, .. } = self;
        match effect {
            Effect::Keep { extent, .. } => {
                let noted = states.set_preallocated(extent.slot, false);
                expect_slot(noted.and_then(|()| table.show(extent.slot)));
            }
            Effect::Mark { slot, is_pinned } => expect_slot(states.set_pinned(slot, is_pinned)),
            Effect::MarkReserved { slot } => expect_slot(states.set_reserved(slot)),
            Effect::MarkCleaning { slot } => {
                let begun = states.begin_cleaning(slot);
                assert!(begun.is_ok(), "slot is outside the extent table");
            }
            Effect::UnmarkCleaning { slot } => expect_slot(states.clear_cleaning(slot)),
            Effect::Show { slot } => expect_slot(table.show(slot)),
            Effect::Unpublish { slot } => self.unpublish_extent(slot),
            Effect::RecordSpillIntent { inode, extent } => {
                expect_slot(table.publish_gone(inode, &extent));
            }
            Effect::Forget { slot } => expect_slot(table.clear(slot)),
            other => tracing::error!(?other, "unhandled effect"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_only_read_while_nothing_else_holds_it() {
        let hazards = TransferHazards::default();
        hazards.protect(3, Protection::Reads);
        hazards.protect(3, Protection::Reads);
        hazards.protect(5, Protection::Holds);
        assert_eq!((hazards.slots(), hazards.only_read()), (vec![3, 5], vec![3]));
        hazards.protect(3, Protection::Holds);
        assert_eq!((hazards.slots(), hazards.only_read()), (vec![3, 5], vec![]));
        hazards.release(3, Protection::Reads);
        hazards.release(3, Protection::Holds);
        hazards.release(5, Protection::Holds);
        assert_eq!((hazards.slots(), hazards.only_read()), (vec![3], vec![3]));
        hazards.release(3, Protection::Reads);
        assert!(hazards.slots().is_empty());
    }
}
