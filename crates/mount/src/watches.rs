//! What the kernel is told to remember, and for how long; and how it is made to forget.
//!
//! Before the kernel is told of a name or of attributes it is noted that they are watched
//! (`client::watch`), then they are looked at; a shard of another host notes it by itself when it
//! is asked (`client::ask_look`). Who changes them has this mount told first, by a *notice*, and
//! waits: a thread for each service of this host takes notices, also of other hosts, has the kernel
//! forget, and says so.
//!
//! A reply may be on its way to the kernel meanwhile, with what was so before. So each thread that
//! serves says in a word of its own what it is about: that it looks, then that it tells. Who takes
//! notices spoils what is looked at, which the kernel is then told without leave to remember it,
//! and waits for what is being told.
//!
//! The kernel forgets a name under the lock of its directory, which a request of the same kernel
//! may hold that waits for the notice of another mount. So names are forgotten by a thread of their
//! own; where that takes long, the kernel is told that all names are to be looked up anew, which
//! takes no lock.

use client::{Client, Watched};
use fuse::notice::Notice as Kernels;
use shm::wait::now_micros;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use wire::codec::{Field as _, Reader};
use wire::limits::SHARD_COUNT;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, Watch, what};
use wire::{Inode, ShardIndex};

use crate::device;
use crate::pages::{Drops, Range};
use crate::serve::Server;

/// How long the kernel may remember what it was told, unless it hears of a change.
pub(crate) const VALID: Duration = Duration::from_nanos(VALID_NANOS.cast_unsigned());
/// So much longer others count, for the way to the kernel: what took longer is not remembered.
const MARGIN: Duration = Duration::from_nanos(MARGIN_NANOS.cast_unsigned());
/// How long the kernel may take to forget a name before it is told to look all of them up anew.
const PATIENCE: Duration = Duration::from_millis(3);
/// How long a reply may take into the kernel.
const TELLING_MAX: Duration = Duration::from_secs(1);
/// First FUSE version with `notify::INC_EPOCH`.
const EPOCHS_SINCE: u32 = 44;

/// Buckets whose owners are under one lock.
const STRIPE: usize = 64;
const STRIPES: usize = 1024;
/// More than one thing falls on a bucket.
const MIXED: u64 = u64::MAX;

/// States of a thread that serves.
const IDLE: u32 = 0;
const LOOKING: u32 = 1;
const SPOILED: u32 = 2;
const TELLING: u32 = 3;

/// What falls on each bucket.
pub(crate) struct Watches {
    owners: Vec<Mutex<[u64; STRIPE]>>,
    threads: Mutex<Vec<Arc<AtomicU32>>>,
    /// Shards whose notices are taken.
    shards: OnceLock<Vec<bool>>,
    /// To the thread that has the kernel forget.
    forget: OnceLock<Sender<Forgetting>>,
    /// How much of that were pages.
    pub(crate) drops: Drops,
    is_over: AtomicBool,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread is about: see the module.
pub(crate) struct Telling<'w> {
    watches: &'w Watches,
    state: Arc<AtomicU32>,
    /// Pages that are to be dropped when the reply is with the kernel.
    behind: Cell<Option<Range>>,
    /// When it began to look.
    since: Cell<Option<Instant>>,
}

impl Telling<'_> {
    /// Before the first look at what the kernel is to remember.
    pub(crate) fn look(&self) {
        if self.state.compare_exchange(IDLE, LOOKING, SeqCst, Relaxed).is_ok() {
            self.since.set(Some(Instant::now()));
        }
    }

    /// Before a reply. False: the kernel must not remember what is in it.
    pub(crate) fn tell(&self) -> bool {
        if self.state.load(Relaxed) == IDLE {
            return true;
        }
        let is_late = self.since.get().is_none_or(|since| since.elapsed() > MARGIN);
        !is_late && self.state.compare_exchange(LOOKING, TELLING, SeqCst, Relaxed).is_ok()
    }

    /// Has pages dropped when the reply is with the kernel.
    pub(crate) fn drop_behind(&self, range: Range) {
        if self.behind.replace(Some(range)).is_none() {
            self.watches.drops.ask();
        }
    }

    /// True if it matters when the reply is with the kernel: that may remember what is in it, or
    /// something comes behind.
    pub(crate) fn is_telling(&self) -> bool {
        self.state.load(Relaxed) != IDLE || self.behind.get().is_some()
    }

    /// The reply is with the kernel, or there is none.
    pub(crate) fn end(&self) {
        if self.state.load(Relaxed) != IDLE {
            self.state.store(IDLE, SeqCst);
        }
        if let Some(range) = self.behind.take() {
            self.watches.send_drop(range);
        }
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        guard(&self.watches.threads).retain(|state| !Arc::ptr_eq(state, &self.state));
        self.end();
    }
}

impl Watches {
    pub(crate) fn new() -> Watches {
        let owners = (0..STRIPES).map(|_| Mutex::new([0; STRIPE])).collect();
        let (threads, shards, forget) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        let drops = Drops::default();
        Watches { owners, threads, shards, forget, drops, is_over: AtomicBool::new(false) }
    }

    /// The calling thread serves.
    pub(crate) fn telling(&self) -> Telling<'_> {
        let state = Arc::new(AtomicU32::new(IDLE));
        guard(&self.threads).push(Arc::clone(&state));
        Telling { watches: self, state, since: Cell::new(None), behind: Cell::new(None) }
    }

    /// Has pages dropped by the thread for that; says how many times that was asked for by now.
    pub(crate) fn drop_soon(&self, range: Range) -> u64 {
        let asked = self.drops.ask();
        self.send_drop(range);
        asked
    }

    fn send_drop(&self, range: Range) {
        if !self.forget_soon(Forgetting::Pages(range)) {
            self.drops.is_done();
        }
    }

    /// Has that thread do something, after what it was told before. False: there is none.
    fn forget_soon(&self, what: Forgetting) -> bool {
        self.forget.get().is_some_and(|forget| forget.send(what).is_ok())
    }

    /// Nobody is to be told any more: the mount ends.
    pub(crate) fn end(&self) {
        self.is_over.store(true, SeqCst);
        self.forget_soon(Forgetting::Nothing);
    }

    fn owner(&self, bucket: usize) -> Option<(MutexGuard<'_, [u64; STRIPE]>, usize)> {
        let stripe = self.owners.get(bucket / STRIPE % STRIPES)?;
        Some((guard(stripe), bucket % STRIPE))
    }

    /// Notes a watch; true if the kernel may remember.
    pub(crate) fn watch(&self, client: &Client, watch: Watch, shard: ShardIndex) -> bool {
        let shards = self.shards.get();
        if shards.and_then(|shards| shards.get(usize::from(shard.0))) != Some(&true) {
            return false;
        }
        self.note(client, watch, |until| client.watch(watch, shard, until))
    }

    /// The same of what a shard of another host decides.
    pub(crate) fn watch_far(&self, client: &Client, watch: Watch) -> bool {
        self.shards.get().is_some()
            && self.note(client, watch, |until| client.watch_far(watch, until))
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

    /// The kernel remembers it no longer: if nothing else falls there, nor was it watched since, nobody
    /// needs to be told of the next change.
    fn unwatch(&self, client: &Client, watch: Watch, before: Option<Watched>) {
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

    /// Spoils what is looked at; waits for what is being told.
    fn spoil(&self) {
        let threads = guard(&self.threads).clone();
        let since = Instant::now();
        for state in threads {
            let _ = state.compare_exchange(LOOKING, SPOILED, SeqCst, Relaxed);
            while state.load(SeqCst) == TELLING && since.elapsed() < TELLING_MAX {
                std::thread::yield_now();
            }
        }
    }
}

/// What the kernel is to forget by the thread for that.
pub(crate) enum Forgetting {
    /// A name, and where to say that it did.
    Name(Inode, Vec<u8>, Sender<()>),
    /// Pages, which somebody may change without a word, or just did.
    Pages(Range),
    /// Nothing any more: the mount ends.
    Nothing,
}

impl Server {
    /// Takes notices of all services of this host until the mount ends.
    pub(crate) fn watch_services(self: &Arc<Self>) -> Vec<std::thread::JoinHandle<()>> {
        let (mut services, mut shards) = (Vec::new(), vec![false; usize::from(SHARD_COUNT)]);
        self.client.each_near_shard(&mut |shard, is_first| {
            services.extend(is_first.then_some(shard));
            shards.get_mut(usize::from(shard.0)).into_iter().for_each(|near| *near = true);
        });
        let _ = self.watches.shards.set(shards);
        let (forget, names) = channel();
        let _ = self.watches.forget.set(forget.clone());
        let mut threads = Vec::new();
        let server = Arc::clone(self);
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        threads.extend(named("names").spawn(move || server.forget_names(&names)));
        for shard in services {
            let (server, forget) = (Arc::clone(self), forget.clone());
            threads.extend(named("notices").spawn(move || server.take_notices(shard, &forget)));
        }
        threads
    }

    fn take_notices(&self, shard: ShardIndex, forget: &Sender<Forgetting>) {
        let mut done = 0;
        while !self.watches.is_over.load(SeqCst) {
            let taken =
                self.client.await_notices(shard, done, &self.watches.is_over, <[u8]>::to_vec);
            match taken {
                Ok(bytes) => {
                    if let Some(last) = self.carry_out(&bytes, forget) {
                        done = last;
                    }
                }
                // The daemon is gone, and was waited for: what it has to say, it says when it is back.
                Err(error) => tracing::debug!(shard = shard.0, %error, "no notices"),
            }
        }
    }

    /// Has the kernel forget; the number of the last notice.
    fn carry_out(&self, bytes: &[u8], forget: &Sender<Forgetting>) -> Option<u64> {
        let (mut reader, mut all) = (Reader::new(bytes), Vec::new());
        while !reader.rest().is_empty() {
            let Ok(notice) = Notice::take(&mut reader) else { break };
            let bucket = shm::host::watches::bucket_of(notice.watch());
            all.push((notice, self.client.watch_now(bucket)));
        }
        let last = all.last()?.0.number;
        self.watches.spoil();
        let (did, done) = channel();
        let mut names = 0;
        for (notice, _) in &all {
            let node = self.node_of(notice.inode);
            match notice.what {
                what::NAME => {
                    names += 1;
                    let name = notice.name.to_vec();
                    let _ = forget.send(Forgetting::Name(notice.inode, name, did.clone()));
                }
                what::BYTES => self.drop_pages(notice.inode),
                _ => self.notify(&Kernels::Inode { node, offset: -1, length: 0 }),
            }
        }
        if (0..names).any(|_| done.recv_timeout(PATIENCE).is_err()) {
            if self.agreed.minor >= EPOCHS_SINCE {
                self.notify(&Kernels::AllNames);
            } else {
                // Until the kernel has forgotten it by itself.
                let _ = (0..names).try_for_each(|_| done.recv_timeout(VALID));
            }
        }
        for (notice, before) in all {
            self.watches.unwatch(self.client, notice.watch(), before);
        }
        Some(last)
    }

    fn forget_names(&self, names: &Receiver<Forgetting>) {
        while let Ok(one) = names.recv() {
            match one {
                Forgetting::Name(directory, name, did) => {
                    let directory = self.node_of(directory);
                    self.notify(&Kernels::Entry { directory, name: &name });
                    let _ = did.send(());
                }
                Forgetting::Pages(range) => self.drop_asked(range),
                Forgetting::Nothing => return,
            }
        }
    }

    /// Has the kernel ask for attributes anew.
    pub(crate) fn forget_attributes(&self, inode: Inode) {
        self.notify(&Kernels::Inode { node: self.node_of(inode), offset: -1, length: 0 });
    }

    /// Says something to the kernel. It may know nothing of it.
    pub(crate) fn notify(&self, notice: &Kernels<'_>) {
        let mut bytes = [0; 512];
        if let Some(length) = notice.write(&mut bytes) {
            let _ = device::send_notice(&*self.device, bytes.get(..length).unwrap_or_default());
        }
    }
}
