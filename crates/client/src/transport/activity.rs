//! Counters of what this process does, in shared memory (`shm::activity`): which block each thread
//! counts in, and the time of calls.
//!
//! Most calls and transfers only count: where they count is asked for before them, and `None` means
//! that this one is timed, or that there is no block of the thread's own. Then a timer counts it.
//!
//! A process with one thread finds its block in one word. With more, a table that is searched by the
//! thread's number has the block of each; a thread that ends leaves its block to the next one. If
//! the table is full around a number, those threads share a block and add atomically; without any
//! block they count for nobody. So nothing here can fail, and operations never wait for it.
//!
//! Not here: which call is of which class (`preload`, `mount`), and the tags of the process.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shm::activity::calls::TIMED_EACH;
use shm::activity::records::TransferCounter;
use shm::activity::{
    ActivitySegment, BlockIndex, CallCounter, Lane, OpClass, OpenWords, OwnBlock, OwnCalls, Owner,
    PlainTransfer, SlowSource, Tags, Transfer, WaitCause,
};
use shm::once::Once;
use shm::wait;
use wire::Inode;
use wire::errno::Errno;

use crate::transport::clock::sleep_micros;

/// False in a library that was built to measure what counting costs.
pub const COUNTS: bool = !cfg!(feature = "uncounted");
/// Threads of a process that have blocks of their own.
const THREAD_COUNT: usize = 256;
/// Entries of the table that a thread may use.
const PROBES: usize = 8;
/// Of this many operations of threads that share a block, one searches for a block of its own again.
const SEARCHED_EACH: u32 = 1024;
/// Of so many timed calls with a path, the directory of one is looked up, which costs as much as a call.
const DIRECTORY_EACH: u32 = 8;
/// A thread that may not move bytes looks again after this time.
const HELD_MICROS_EACH: u64 = 50_000;

/// Counters of this process.
pub(crate) struct Activity {
    segment: Once<ActivitySegment>,
    tags: Once<Tags>,
    pid: AtomicU32,
    started: AtomicU64,
    /// The lane of the only thread; 0: there are others, or it has none yet.
    only: AtomicU32,
    /// Its block (`OwnBlock`), if no other process counts there; else 0.
    only_own: AtomicU32,
    has_threads: AtomicBool,
    /// Thread in the upper half, its lane in the lower.
    threads: [AtomicU64; THREAD_COUNT],
    /// The lane that threads share; 0: none yet.
    shared: AtomicU32,
    /// Operations of threads without a block of their own.
    crowded: AtomicU32,
    /// Calls that were timed, so far.
    timed: AtomicU32,
}

/// A call that has begun.
#[derive(Clone, Copy)]
pub struct CallTimer<'a> {
    lane: u32,
    counter: Option<CallCounter<'a>>,
    /// When it began; 0: it is not timed.
    since: u64,
}

/// A transfer that has begun.
pub(crate) struct TransferTimer<'a> {
    counter: Option<TransferCounter<'a>>,
    bytes: u64,
    since: u64,
}

impl TransferTimer<'_> {
    /// Counts the transfer.
    #[inline]
    pub(crate) fn end(&self, offset: u64, bytes: usize) {
        let Some(counter) = &self.counter else { return };
        counter.count(offset, bytes as u64);
        if self.since != 0 {
            counter.count_time(wait::now_nanos().saturating_sub(self.since), self.bytes);
        }
    }
}

/// The block of a lane as the word of an `OwnBlock`, or 0.
fn own_word(lane: u32) -> u32 {
    Lane::of_word(lane).and_then(OwnBlock::of).map_or(0, OwnBlock::word)
}

impl Activity {
    pub(crate) const fn new() -> Activity {
        Activity {
            segment: Once::new(),
            tags: Once::new(),
            pid: AtomicU32::new(0),
            started: AtomicU64::new(0),
            only: AtomicU32::new(0),
            only_own: AtomicU32::new(0),
            has_threads: AtomicBool::new(false),
            threads: [const { AtomicU64::new(0) }; THREAD_COUNT],
            shared: AtomicU32::new(0),
            crowded: AtomicU32::new(0),
            timed: AtomicU32::new(0),
        }
    }

    /// The segment of the host.
    pub(crate) fn segment(&self) -> Option<&ActivitySegment> {
        self.segment.get()
    }

    /// Counts for nobody any more.
    pub(crate) fn detach(&self) {
        self.reset_after_fork();
        if let Some(segment) = self.segment.get() {
            segment.detach();
        }
    }

    /// Takes the segment of the first daemon that is attached.
    pub(crate) fn set_segment(&self, segment: ActivitySegment) {
        let _ = self.segment.set(segment);
    }

    /// Begins to count for this process, which has just attached. The blocks of the program that
    /// this one replaced by exec are ended.
    pub(crate) fn begin(&self, (pid, started): (u32, u64), tags: Tags) {
        let _ = self.tags.set(tags);
        if let Some(segment) = self.segment.get() {
            segment.end_blocks_of(pid);
        }
        self.begin_in_child(pid, started);
    }

    /// Begins to count for a forked child, with the tags of its parent.
    pub(crate) fn begin_in_child(&self, pid: u32, started: u64) {
        self.started.store(started, Relaxed);
        // Of short programs one in so many has its first timed call looked at, not each.
        self.timed.store(pid.wrapping_mul(0x9e37_79b9) >> 16, Relaxed);
        self.pid.store(pid, Release);
    }

    /// In a forked child: the blocks are the parent's.
    pub(crate) fn reset_after_fork(&self) {
        self.pid.store(0, Relaxed);
        self.only.store(0, Relaxed);
        self.only_own.store(0, Relaxed);
        self.has_threads.store(false, Relaxed);
        self.shared.store(0, Relaxed);
        self.threads.iter().for_each(|thread| thread.store(0, Relaxed));
    }

    /// The process is about to have a second thread.
    pub(crate) fn note_threads(&self) {
        self.has_threads.store(true, Relaxed);
        self.only.store(0, Relaxed);
        self.only_own.store(0, Release);
    }

    /// The lane of the calling thread, as a word; 0: none.
    #[inline]
    fn lane_word(&self) -> u32 {
        if !COUNTS {
            return 0;
        }
        match self.only.load(Relaxed) {
            0 => self.find(),
            only => only,
        }
    }

    /// The block in which the calling thread alone counts.
    #[inline(always)]
    fn own_block(&self) -> Option<OwnBlock> {
        OwnBlock::of_word(match self.only_own.load(Relaxed) {
            0 => self.find_own(),
            only => only,
        })
    }

    #[inline(never)]
    fn find_own(&self) -> u32 {
        own_word(self.lane_word())
    }

    /// Where a call that begins is counted, if it succeeds. `None`: it takes a timer.
    #[inline(always)]
    pub(crate) fn untimed_calls(&self) -> Option<OwnCalls<'_>> {
        let own = self.own_block()?;
        self.segment.get()?.untimed_calls(own)
    }

    /// Where a transfer of `bytes` of an open file that begins is counted. `None`: it takes a timer.
    #[inline(always)]
    pub(crate) fn plain_transfer(
        &self,
        open: OpenWords<'_>,
        transfer: Transfer,
        bytes: usize,
    ) -> Option<PlainTransfer<'_>> {
        let own = self.own_block()?;
        self.segment.get()?.plain_transfer(own, open, (transfer, bytes))
    }

    /// Segment and lane of a word.
    #[inline]
    fn lane(&self, word: u32) -> Option<(&ActivitySegment, Lane)> {
        Some((self.segment.get()?, Lane::of_word(word)?))
    }

    /// The lane of the calling thread among others.
    #[inline(never)]
    fn find(&self) -> u32 {
        if self.pid.load(Acquire) == 0 {
            return 0;
        }
        let me = wait::thread_id();
        let found = self.cells(me).find(|cell| (cell.load(Acquire) >> 32) as u32 == me);
        found.map_or_else(|| self.claim(me), |cell| cell.load(Acquire) as u32)
    }

    fn cells(&self, thread: u32) -> impl Iterator<Item = &AtomicU64> {
        let first = thread as usize;
        (0..PROBES)
            .filter_map(move |step| self.threads.get(first.wrapping_add(step) % THREAD_COUNT))
    }

    /// A lane for a thread that has none.
    #[cold]
    fn claim(&self, me: u32) -> u32 {
        let crowded = self.crowded.load(Relaxed);
        if crowded > 0 {
            self.crowded.store(crowded.wrapping_add(1).max(1), Relaxed);
            if !crowded.is_multiple_of(SEARCHED_EACH) {
                return self.shared_lane();
            }
        }
        let mine = u64::from(me) << 32;
        for cell in self.cells(me) {
            let seen = cell.load(Acquire);
            if seen == 0 {
                if cell.compare_exchange(0, mine, AcqRel, Relaxed).is_err() {
                    continue;
                }
                // Until it has a lane, a signal handler of this thread finds none.
                let lane = self.take(false).unwrap_or_else(|| self.shared_lane());
                cell.store(mine | u64::from(lane), Release);
                if !self.has_threads.load(Relaxed) {
                    self.only.store(lane, Relaxed);
                    self.only_own.store(own_word(lane), Relaxed);
                }
                return lane;
            }
            let taken_over = mine | seen & u64::from(u32::MAX);
            if wait::is_absent((seen >> 32) as u32)
                && cell.compare_exchange(seen, taken_over, AcqRel, Relaxed).is_ok()
            {
                return taken_over as u32;
            }
        }
        self.crowded.store(1, Relaxed);
        self.shared_lane()
    }

    /// A block for this process, as a lane.
    fn take(&self, is_shared: bool) -> Option<u32> {
        let owner = Owner {
            pid: self.pid.load(Acquire),
            started: self.started.load(Relaxed),
            tags: self.tags.get().copied().unwrap_or(Tags::NONE),
            is_by_mount: false,
        };
        let block = self.segment.get()?.take(&owner, owner.pid)?;
        Some(Lane { block, is_shared }.word())
    }

    /// The lane of threads without blocks of their own.
    fn shared_lane(&self) -> u32 {
        let seen = self.shared.load(Acquire);
        if seen != 0 {
            return seen;
        }
        // Tried once: a host with too few blocks has none for this process soon.
        let lane = self.take(true).unwrap_or(Lane::NOBODY.word());
        match self.shared.compare_exchange(0, lane, AcqRel, Acquire) {
            Ok(_) => lane,
            Err(other) => other,
        }
    }

    /// The block in which the calling thread counts; `None`: that of nobody, or none.
    pub(crate) fn block(&self) -> Option<BlockIndex> {
        let lane = Lane::of_word(self.lane_word())?;
        (lane.block != Lane::NOBODY.block).then_some(lane.block)
    }

    /// Has the calling thread count in this lane from now on.
    pub(crate) fn count_in(&self, lane: Lane) {
        let me = wait::thread_id();
        let mine = u64::from(me) << 32 | u64::from(lane.word());
        for cell in self.cells(me) {
            let seen = cell.load(Acquire);
            if (seen >> 32) as u32 == me {
                cell.store(mine, Release);
                return;
            }
            if (seen == 0 || wait::is_absent((seen >> 32) as u32))
                && cell.compare_exchange(seen, mine, AcqRel, Relaxed).is_ok()
            {
                return;
            }
        }
    }

    /// In a mount, the number of the job for which the calling thread counts; `None` in other processes.
    pub(crate) fn account(&self) -> Option<u8> {
        let (segment, lane) = self.lane(self.lane_word())?;
        segment.taken_by_mount(lane.block).map(|taken| taken.owner.tags.account())
    }

    /// Begins a call.
    #[inline]
    pub(crate) fn begin_call(&self) -> CallTimer<'_> {
        if !COUNTS {
            return CallTimer { lane: 0, counter: None, since: 0 };
        }
        let lane = self.lane_word();
        let counter = self.lane(lane).and_then(|(segment, lane)| segment.calls_of(lane));
        let is_timed = counter.is_some_and(CallCounter::is_timed);
        CallTimer { lane, counter, since: if is_timed { wait::now_nanos() } else { 0 } }
    }

    /// Counts a call with its result, a value or a negative errno. True if it was timed, which one
    /// call of many is.
    #[inline]
    pub(crate) fn end_call(&self, timer: CallTimer<'_>, class: OpClass, result: i64) -> bool {
        if !COUNTS {
            return false;
        }
        match timer.counter {
            Some(counter) if result >= 0 && timer.since == 0 => {
                counter.count(class);
                false
            }
            _ => {
                self.end_rarely(timer, class, result);
                timer.since != 0
            }
        }
    }

    /// As `end_call`, for a call that failed or is timed, or for the first one.
    #[inline(never)]
    fn end_rarely(&self, timer: CallTimer<'_>, class: OpClass, result: i64) {
        // The first call of a process attaches.
        let word = if timer.lane == 0 { self.lane_word() } else { timer.lane };
        let Some((segment, lane)) = self.lane(word) else { return };
        if result < 0 {
            let errno = Errno(u16::try_from(result.unsigned_abs()).unwrap_or(Errno::EIO.0));
            segment.count_failure(lane, class, errno);
        } else {
            segment.count_call(lane, class);
        }
        if timer.since != 0 {
            segment.count_time(lane, class, wait::now_nanos().saturating_sub(timer.since));
        }
    }

    /// Begins a transfer of `bytes` of an open file.
    #[inline]
    pub(crate) fn begin_transfer(
        &self,
        open: OpenWords<'_>,
        transfer: Transfer,
        bytes: usize,
    ) -> TransferTimer<'_> {
        if !COUNTS {
            return TransferTimer { counter: None, bytes: 0, since: 0 };
        }
        let counter = self
            .lane(self.lane_word())
            .and_then(|(segment, lane)| segment.begin_transfer(lane, open, transfer));
        let bytes = bytes as u64;
        let is_timed = counter.is_some_and(|counter| counter.is_timed(open.inode, bytes));
        let since = if is_timed { self.keep_pace(transfer, bytes) } else { 0 };
        TransferTimer { counter, bytes, since }
    }

    /// Waits before a transfer while the thread may not move bytes (`shm::activity::pace`). Returns the
    /// time at which it begins.
    #[cold]
    fn keep_pace(&self, transfer: Transfer, bytes: u64) -> u64 {
        let begun = wait::now_nanos();
        let Some((segment, lane)) = self.lane(self.lane_word()) else { return begun };
        let (mut now, is_limited) = (begun, segment.has_pace(lane));
        loop {
            let held = segment.held_nanos(lane, transfer, now);
            if held == 0 {
                break;
            }
            // The daemon may let it go earlier.
            sleep_micros((held / 1000).clamp(1, HELD_MICROS_EACH));
            now = wait::now_nanos();
        }
        if now > begun && is_limited {
            segment.count_wait(lane, WaitCause::Share, now.saturating_sub(begun));
        }
        segment.note_begun(lane, transfer, TransferCounter::stands_for(bytes), now);
        now
    }

    /// True for one timed call in `DIRECTORY_EACH`: its directory is to be looked at.
    #[cold]
    pub(crate) fn is_directory_due(&self) -> bool {
        self.timed.fetch_add(1, Relaxed).is_multiple_of(DIRECTORY_EACH)
    }

    /// Counts the directory of such a call, for all calls that it stands for.
    #[cold]
    pub(crate) fn count_directory(&self, inode: Inode) {
        if let Some((segment, lane)) = self.lane(self.lane_word()) {
            segment.count_directory(lane, inode, TIMED_EACH * u64::from(DIRECTORY_EACH));
        }
    }

    /// Counts bytes of a read that has begun, which came from this place.
    #[cold]
    pub(crate) fn count_source(&self, inode: Inode, source: SlowSource, bytes: u64) {
        if let Some((segment, lane)) = self.lane(self.lane_word()) {
            segment.count_source(lane, inode, source, bytes);
        }
    }

    /// Counts a wait of the calling thread.
    #[cold]
    pub(crate) fn count_wait(&self, cause: WaitCause, nanos: u64) {
        if let Some((segment, lane)) = self.lane(self.lane_word()) {
            segment.count_wait(lane, cause, nanos);
        }
    }

    /// Counts a transfer that failed, and returns its error.
    #[cold]
    pub(crate) fn failed(&self, class: OpClass, errno: Errno) -> Errno {
        if let Some((segment, lane)) = self.lane(self.lane_word()) {
            segment.count_failure(lane, class, errno);
        }
        errno
    }
}
