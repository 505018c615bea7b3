//! Kernel caching of names and attributes: how long entries are valid, and invalidation.
//!
//! Before the kernel gets a name or attributes, a watch on them is registered (`client::watch`),
//! and then they are looked up; a shard of another host registers the watch itself when it is
//! queried (`client::query_lookup`). A change sends a *notice* to this mount first, and waits. One
//! thread per service of this host receives notices, also of other hosts, makes the kernel forget,
//! and confirms.
//!
//! A reply with the previous state may be on its way to the kernel meanwhile. So each serving
//! thread publishes its state: looking up, then replying. The notice thread spoils lookups in
//! progress, whose replies then carry no permission to cache, and waits for replies in progress.

use client::{Client, Watched};
use shm::wait::now_micros;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use wire::watch::{MARGIN_NANOS, VALID_NANOS, Watch};
use wire::{Inode, ShardIndex};

use crate::kernel_cache::pages::{PageDrops, PageRange};

/// How long the kernel may cache a reply unless it is invalidated.
pub(crate) const VALID: Duration = Duration::from_nanos(VALID_NANOS.cast_unsigned());

/// Additional time that others allow for the way to the kernel; a reply that took longer is not
/// cached.
const MARGIN: Duration = Duration::from_nanos(MARGIN_NANOS.cast_unsigned());

/// Maximum time for which a notice waits for a reply in progress.
const REPLYING_MAX: Duration = Duration::from_secs(1);

/// Number of buckets whose owners share a lock.
const STRIPE: usize = 64;

const STRIPES: usize = 1024;

/// Owner of a bucket with more than one watch.
const MIXED: u64 = u64::MAX;

/// States of a serving thread.
const IDLE: u32 = 0;

const LOOKING_UP: u32 = 1;

const SPOILED: u32 = 2;

const REPLYING: u32 = 3;

/// The watches of this mount.
pub(crate) struct Watches {
    owners: Vec<Mutex<[u64; STRIPE]>>,
    threads: Mutex<Vec<Arc<AtomicU32>>>,
    /// Shards whose notices are received.
    shards: OnceLock<Vec<bool>>,
    /// To the invalidation thread.
    forget: OnceLock<Sender<Invalidation>>,
    /// Page drops among its work.
    pub(crate) page_drops: Arc<PageDrops>,
    is_stopped: AtomicBool,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of one serving thread.
pub(crate) struct ReplyTracker<'w> {
    watches: &'w Watches,
    state: Arc<AtomicU32>,
    /// Pages to drop once the kernel has the reply.
    after_reply: Cell<Option<PageRange>>,
    /// The page drop that must be done before the reply.
    before_reply: Cell<Option<u64>>,
    /// Start of the lookup.
    since: Cell<Option<Instant>>,
}

impl ReplyTracker<'_> {
    /// Called before the first lookup of anything that the kernel may cache.
    pub(crate) fn begin_lookup(&self) {
        if self.state.compare_exchange(IDLE, LOOKING_UP, SeqCst, Relaxed).is_ok() {
            self.since.set(Some(Instant::now()));
        }
    }

    /// Called before a reply. False: the kernel must not cache it.
    pub(crate) fn begin_reply(&self) -> bool {
        if self.state.load(Relaxed) == IDLE {
            return true;
        }
        let is_late = self.since.get().is_none_or(|since| since.elapsed() > MARGIN);
        !is_late && self.state.compare_exchange(LOOKING_UP, REPLYING, SeqCst, Relaxed).is_ok()
    }

    /// Drops pages once the kernel has the reply.
    pub(crate) fn drop_after_reply(&self, range: PageRange) {
        self.after_reply.set(Some(range));
    }

    /// The reply must not be sent before this page drop is done.
    pub(crate) fn reply_after_drop(&self, number: u64) {
        self.before_reply.set(Some(number));
    }

    /// The page drop that must be done before the reply.
    pub(crate) fn take_awaited_drop(&self) -> Option<u64> {
        self.before_reply.take()
    }

    /// True if the end of the reply must be reported: the kernel may cache it, or a page drop
    /// follows.
    pub(crate) fn is_tracking(&self) -> bool {
        self.state.load(Relaxed) != IDLE || self.after_reply.get().is_some()
    }

    /// The kernel has the reply, or there is none.
    pub(crate) fn end_reply(&self) {
        if self.state.load(Relaxed) != IDLE {
            self.state.store(IDLE, SeqCst);
        }
        if let Some(range) = self.after_reply.take() {
            self.watches.drop_soon(range);
        }
    }
}

impl Drop for ReplyTracker<'_> {
    fn drop(&mut self) {
        guard(&self.watches.threads).retain(|state| !Arc::ptr_eq(state, &self.state));
        self.end_reply();
    }
}

impl Watches {
    pub(crate) fn new() -> Watches {
        let owners = (0..STRIPES).map(|_| Mutex::new([0; STRIPE])).collect();
        let (threads, shards, forget) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        let page_drops = Arc::new(PageDrops::default());
        Watches { owners, threads, shards, forget, page_drops, is_stopped: AtomicBool::new(false) }
    }

    /// Registers the calling thread as a serving thread.
    pub(crate) fn tracker(&self) -> ReplyTracker<'_> {
        let state = Arc::new(AtomicU32::new(IDLE));
        guard(&self.threads).push(Arc::clone(&state));
        let (since, after_reply, before_reply) =
            (Cell::new(None), Cell::new(None), Cell::new(None));
        ReplyTracker { watches: self, state, since, after_reply, before_reply }
    }

    /// Requests a page drop by the invalidation thread; returns its number.
    pub(crate) fn drop_soon(&self, range: PageRange) -> u64 {
        let number = self.page_drops.ask();
        if !self.queue_invalidation(Invalidation::Pages(range, number)) {
            self.page_drops.note_done(number);
        }
        number
    }

    /// Queues work for the invalidation thread. False: there is no such thread.
    fn queue_invalidation(&self, what: Invalidation) -> bool {
        self.forget.get().is_some_and(|forget| forget.send(what).is_ok())
    }

    /// Notices of these shards are received from now on, and `forget` leads to the invalidation
    /// thread.
    pub(crate) fn begin(&self, shards: Vec<bool>, forget: Sender<Invalidation>) {
        let _ = self.shards.set(shards);
        let _ = self.forget.set(forget);
    }

    /// Set when the mount ends.
    pub(crate) const fn stopped(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// The mount ends: stops the threads.
    pub(crate) fn end(&self) {
        self.is_stopped.store(true, SeqCst);
        self.queue_invalidation(Invalidation::Stop);
    }

    fn owner(&self, bucket: usize) -> Option<(MutexGuard<'_, [u64; STRIPE]>, usize)> {
        let stripe = self.owners.get(bucket / STRIPE % STRIPES)?;
        Some((guard(stripe), bucket % STRIPE))
    }

    /// Registers a watch at a shard of this host; true if the kernel may cache.
    pub(crate) fn watch(&self, client: &Client, watch: Watch, shard: ShardIndex) -> bool {
        let shards = self.shards.get();
        if shards.and_then(|shards| shards.get(usize::from(shard.0))) != Some(&true) {
            return false;
        }
        self.note(client, watch, |until| client.watch(watch, shard, until))
    }

    /// The same for a shard of another host.
    pub(crate) fn watch_remote(&self, client: &Client, watch: Watch) -> bool {
        self.shards.get().is_some()
            && self.note(client, watch, |until| client.watch_remote(watch, until))
    }

    fn note(
        &self,
        client: &Client,
        watch: Watch,
        note: impl FnOnce(u64) -> Option<Watched>,
    ) -> bool {
        let span = VALID.saturating_add(MARGIN);
        let until = now_micros().saturating_add(u64::try_from(span.as_micros()).unwrap_or(0));
        let bucket = shm::host::watches::bucket_of(watch);
        let Some((mut owners, place)) = self.owner(bucket) else { return false };
        let Some(owner) = owners.get_mut(place) else { return false };
        let is_free = || client.watch_now(bucket).is_none_or(|now| now.is_over());
        let is_its_own = *owner == watch.identity() || *owner == 0 || is_free();
        *owner = if is_its_own { watch.identity() } else { MIXED };
        note(until).is_some()
    }

    /// Removes a watch after an invalidation, unless its bucket has other watches or was watched
    /// again since.
    pub(crate) fn unwatch(&self, client: &Client, watch: Watch, before: Option<Watched>) {
        let bucket = shm::host::watches::bucket_of(watch);
        let Some((mut owners, place)) = self.owner(bucket) else { return };
        if let (Some(owner), Some(before)) = (owners.get_mut(place), before)
            && *owner == watch.identity()
            && client.watch_now(bucket) == Some(before)
        {
            *owner = 0;
            client.unwatch(before);
        }
    }

    /// Spoils lookups in progress, and waits for replies in progress.
    pub(crate) fn invalidate_lookups(&self) {
        let threads = guard(&self.threads).clone();
        let since = Instant::now();
        for state in threads {
            let _ = state.compare_exchange(LOOKING_UP, SPOILED, SeqCst, Relaxed);
            while state.load(SeqCst) == REPLYING && since.elapsed() < REPLYING_MAX {
                std::thread::yield_now();
            }
        }
    }
}

/// Work of the invalidation thread.
pub(crate) enum Invalidation {
    /// Invalidate a name, and confirm.
    Name(Inode, Vec<u8>, Sender<()>),
    /// Drop pages; the number of the drop.
    Pages(PageRange, u64),
    /// Exit.
    Stop,
}
