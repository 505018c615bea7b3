//! Queries of the caller: counters, and whether a periodic call (`ticks`) is due.

use super::Target;
use crate::backing::thrashing::{FetchCounts, Thrashing};
use crate::prefetch::profile::ProfileCounts;
use crate::space::accounts::Accounts;
use crate::tiering::allowance::Memory;
use crate::tiering::moves::MoveCounts;
use crate::tiering::spill::SpilledBytes;
use crate::tiering::watermarks::TieringCounts;
use wire::Inode;
use wire::reply::Extent;

impl Target {
    /// Slots that wait until no hazard pointer protects them. While it is not 0, `Input::Tick`
    /// requests another check.
    #[must_use]
    pub fn leaving_count(&self) -> usize {
        self.pool.slots().leaving_count()
    }

    /// All extents and their files, for checks.
    pub fn extents(&self) -> impl Iterator<Item = (Inode, Extent)> {
        self.pool.slots().iter()
    }

    /// True if the file has lost an extent.
    #[must_use]
    pub fn is_damaged(&self, inode: Inode) -> bool {
        self.pool.is_damaged(inode)
    }

    /// Usage by account.
    #[must_use]
    pub fn account_usage(&self) -> &Accounts {
        self.pool.usage()
    }

    /// Number of requests that wait for space.
    #[must_use]
    pub fn writers_waiting(&self) -> usize {
        self.pool.admission.len()
    }

    /// True while a request waits for space, to write or to fill extents: the caller must call
    /// `tick_writers` periodically and withdraw requests whose sender stopped waiting.
    #[must_use]
    pub fn waits_for_space(&self) -> bool {
        self.backed.waits_for_space(&self.pool)
    }

    /// The preallocated extent of a file that begins at `start`.
    #[must_use]
    pub fn preallocated(&self, inode: Inode, start: u64) -> Option<Extent> {
        let extent = self.pool.slots().at(inode, start)?;
        self.pool.preallocation().contains(inode, &extent).then_some(extent)
    }

    /// The preallocated extents of a file.
    pub fn preallocated_of(&self, inode: Inode) -> impl Iterator<Item = Extent> {
        let starts = self.pool.preallocation().starts(inode, 0, u64::MAX);
        starts.filter_map(move |start| self.pool.slots().at(inode, start))
    }

    /// Bytes in preallocated extents.
    #[must_use]
    pub fn preallocated_bytes(&self) -> u64 {
        self.pool.preallocation().bytes()
    }

    /// True from when a request found no space because of preallocated extents, until they are
    /// gone.
    #[must_use]
    pub fn wants_preallocated_back(&self) -> bool {
        self.pool.preallocation().is_needed
    }

    /// Allowance and use of the arena.
    #[must_use]
    pub fn memory_lent(&self) -> Memory {
        let memory = self.pool.memory();
        let held = memory.bytes_held() + memory.bytes_leaving();
        Memory { allowed: memory.allowance(), held, used: memory.bytes_used() }
    }

    /// Bytes of memory that may be held, and of these the free and preallocated ones.
    #[must_use]
    pub fn memory_space(&self) -> (u64, u64) {
        let memory = self.pool.memory();
        (memory.allowance(), memory.bytes_free() + self.preallocated_bytes())
    }

    /// Counters of moves.
    #[must_use]
    pub fn moved(&self) -> MoveCounts {
        self.tiering.moves.moved
    }

    /// Moves in flight, those whose copies are discarded included.
    #[must_use]
    pub fn moves_count(&self) -> usize {
        self.tiering.moves.count()
    }

    /// The counters that `watermarks` needs, except `demotion_micros`.
    #[must_use]
    pub fn counts(&self) -> TieringCounts {
        let MoveCounts { bytes_demoted, bytes_refaulted, .. } = self.moved();
        let allocated = self.pool.allocated();
        TieringCounts {
            bytes_allocated: allocated.bytes,
            extents_made: allocated.extents,
            bytes_overflowed: allocated.bytes_overflowed,
            bytes_demoted,
            bytes_refaulted,
            demotion_micros: 0,
        }
    }

    /// True while memory is short enough for demotion, and the SSD or a spill host has space.
    #[must_use]
    pub fn is_demoting(&mut self) -> bool {
        self.tiering.can_start_demotion(&self.pool)
    }

    /// True if used extents may be promoted: some are on the SSD, and memory has space for them, or
    /// it is to be counted how many would be.
    #[must_use]
    pub fn is_promoting(&self) -> bool {
        self.tiering.can_promote(&self.pool)
    }

    /// Milliseconds from the last scan on until the rate lets a move start that no request waits
    /// for.
    #[must_use]
    pub fn tiering_wait_millis(&self) -> u32 {
        self.tiering.moves.token_wait_millis(self.pool.now)
    }

    /// True while requests wait because their jobs have reached their bounds on dirty bytes.
    #[must_use]
    pub fn has_bounded_writers(&self) -> bool {
        !self.pool.admission.bounded.is_empty()
    }

    /// Requests that had to wait for the bounds of their jobs, so far.
    #[must_use]
    pub const fn bounded_waits(&self) -> u64 {
        self.pool.admission.bounded.waits
    }

    /// Number of known users with extents in memory that may leave.
    #[must_use]
    pub fn users_in_memory(&self) -> usize {
        self.tiering.order.users_in_memory()
    }

    /// True if the file's extents stay in memory.
    #[must_use]
    pub fn is_pinned(&self, inode: Inode) -> bool {
        self.tiering.order.pinned.contains(inode)
    }

    /// Bytes of memory in extents of pinned files.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.tiering.order.pinned.bytes()
    }

    /// Bytes stored on other targets, and for them.
    #[must_use]
    pub fn spilled_bytes(&self) -> SpilledBytes {
        let spilled_out = self.tiering.spill.bytes_out();
        SpilledBytes { spilled_out, spilled_in: self.pool.hosted_bytes() }
    }

    /// True while reads of other hosts are sent to extents that migrated: they must ask for each.
    #[must_use]
    pub fn redirects_reads(&self) -> bool {
        self.migration.redirects(self.pool.now)
    }

    /// Reads of other hosts that were sent to another target.
    #[must_use]
    pub const fn reads_redirected(&self) -> u64 {
        self.migration.reads_redirected
    }

    /// True if this extent is still there, at that location.
    #[must_use]
    pub fn has_extent(&self, extent: &Extent) -> bool {
        self.pool.slots().get(extent.slot).is_some_and(|(_, now)| now == *extent)
    }

    /// Bytes evicted since the target was created.
    #[must_use]
    pub fn bytes_evicted(&self) -> u64 {
        self.tiering.order.clean.bytes_evicted
    }

    /// Bytes that the backing store delivered since the target was created.
    #[must_use]
    pub const fn fetch_counts(&self) -> FetchCounts {
        self.backed.history.totals()
    }

    /// Bytes of memory and SSD for files.
    #[must_use]
    pub fn bytes_of_tiers(&self) -> u64 {
        self.memory_space().0.saturating_add(self.pool.ssd().bytes_total())
    }

    /// The figures by which the tiers are too small for what is read, if they are now.
    #[must_use]
    pub fn thrashing(&self, now_millis: u32) -> Option<Thrashing> {
        self.backed.history.thrashing(now_millis)
    }

    /// True while clean extents are to be evicted: `evict_clean` must be called periodically.
    #[must_use]
    pub fn wants_eviction(&self) -> bool {
        self.backed.wants_eviction(&self.pool, &self.tiering)
    }

    /// True if readers may have advanced, or something can be brought up.
    #[must_use]
    pub fn is_reading_ahead(&self) -> bool {
        self.prefetch.is_busy()
    }

    /// Files first read since the last call.
    pub fn take_accessed_files(&mut self) -> Vec<Inode> {
        self.prefetch.accesses.take_unreported()
    }

    /// How well the speculative prefetch list matched.
    #[must_use]
    pub const fn profile_counts(&self) -> ProfileCounts {
        self.prefetch.accesses.counts()
    }
}
