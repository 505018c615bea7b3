//! Drives a `metadata::Service`: its inputs, and its effects performed in their order.
//!
//! A record is in the log before anything that it covers is seen: in the index, in a reply, by a
//! peer. The log's space is reserved before a step, so that a full disk refuses a request instead
//! of leaving a state that the log does not have.

use crate::accounts::Books;
use crate::below::{Listed, seen};
use crate::clock::Clock;
use crate::inbox::{Note, PartAnswer};
use crate::jobs::Jobs;
use crate::origins::Asking;
use crate::posted::room_of_posts;
use crate::removals::Removals;
use crate::reply::{LOST_MICROS, ReplyTo};
use crate::shared::{Shared, encode_request, message};
use gateway::Route;
use metadata::{DataOp, Effect, IndexOp, Input, Opens, Part, Service, SnapshotCursor};
use net::Haste;
use placement::map::WORKER_OF_TARGET;
use shm::host::{Cuts, HostSegment};
use shm::index::Index;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use store::{For, Journal};
use wire::attributes::flag;
use wire::errno::{Errno, Result};
use wire::quota::Account;
use wire::request::coming;
use wire::watch::Watch;
use wire::{DaemonIndex, Header, Inode, Layout, Reply, Request, ShardIndex};

/// How often files without a name are looked through, while there are any.
const ORPHANS_PAUSE: Duration = Duration::from_secs(1);

/// Of how many of them the hosts are asked at one look.
const ASKED_MAX: usize = 256;

/// Room for the records of one step: a rename touches a handful of inodes, each with at most its
/// inline contents and its extended attributes.
pub(crate) const STEP_BYTES_MAX: u64 = 256 * 1024;
/// Most tokens of finished removals in one step.
const TOKENS_MAX: usize = 1024;
/// A log shorter than this is not rewritten.
const REWRITE_BYTES_MIN: u64 = 64 << 20;
/// A log this many times longer than what a rewrite left is rewritten.
const REWRITE_FACTOR: u64 = 4;
/// How often it is looked whether bytes have arrived that a cut waits for: a flight's time.
const HELD_MICROS: u64 = 100;
/// Bytes of state that one slice of a rewrite takes: about a millisecond.
const SLICE_BYTES: usize = 256 * 1024;

/// The hands of a service in shared memory.
struct Hands<'a> {
    index: &'a Index,
    host: &'a HostSegment,
    books: &'a Books,
    tickets: &'a [Option<ReplyTo>],
}

impl Opens for Hands<'_> {
    fn mark_deleted(&mut self, inode: Inode) -> bool {
        self.index.forget_inode(inode);
        self.host.mark_deleted(inode)
    }

    fn is_awaited(&self, ticket: u64) -> bool {
        let to = usize::try_from(ticket).ok().and_then(|place| self.tickets.get(place));
        match to {
            Some(Some(ReplyTo::Slot { guest, slot })) => guest.slots.is_awaited(usize::from(*slot)),
            _ => true,
        }
    }

    fn untold(&self, inode: Inode) -> Option<u64> {
        Some(self.host.untold(inode))
    }

    fn cuts(&self, inode: Inode) -> Option<u64> {
        self.host.cuts(inode).map(Cuts::number)
    }

    fn end_cut(&mut self, inode: Inode) {
        self.host.end_cut(inode);
    }

    fn space_used(&self, account: u64) -> u64 {
        self.books.used(account)
    }

    fn each_space(&self, each: &mut dyn FnMut(u64, u64)) {
        self.books.each(each);
    }

    fn is_counted(&self) -> bool {
        self.books.is_counted()
    }

    fn has_mounts(&self) -> bool {
        self.host.has_mounts()
    }

    fn has_mount(&self, mount: u8) -> bool {
        self.host.has_mount(mount)
    }

    fn watch_for_others(&self, watch: Watch, nanos: i64) -> bool {
        self.host.watch_for_others(watch, nanos).is_ok()
    }

    fn has_writer(&self, inode: Inode) -> bool {
        self.host.has_writer(inode)
    }

    fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        self.host.watchers(watch, each);
    }

    fn page_keepers(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        self.host.page_keepers(inode, each);
    }

    fn had_pages(&self, inode: Inode) -> bool {
        self.host.had_pages(inode)
    }

    fn writers_ever(&self, inode: Inode) -> u64 {
        self.host.writers_ever(inode)
    }

    fn begin_writing(&self, inode: Inode) -> u64 {
        self.host.begin_writing(inode)
    }

    fn count_others_use(&self, inode: Inode, more: u8) {
        self.host.count_others_use(inode, more);
    }

    fn mark_others_use(&self, inode: Inode, others: u8) {
        self.host.mark_others_use(inode, others);
    }
}

/// A cut that waits until what this host wrote before it has arrived.
struct HeldCut {
    token: u64,
    inode: Inode,
    layout: Layout,
    op: DataOp,
    /// Nobody is waited for longer.
    until: Instant,
}

/// What leaves when a step is over, in the order in which the service said it: a range that was given out
/// before a cut must reach its host before the word of that cut (`metadata::sizes`).
enum Said {
    Reply(ReplyTo, Vec<u8>),
    /// To the first daemon of a host, with its frame.
    Word(DaemonIndex, Vec<u8>),
}

/// A service and what it works with.
pub(crate) struct Shard {
    pub(crate) worker: usize,
    pub(crate) service: Service,
    index: Index,
    journal: Journal,
    /// Who waits for the reply of a ticket; the ticket is the place.
    tickets: Vec<Option<ReplyTo>>,
    free: Vec<usize>,
    jobs: Jobs,
    held: Vec<HeldCut>,
    removals: Removals,
    effects: Vec<Effect>,
    clock: Clock,
    rewrite: Option<SnapshotCursor>,
    slice: Vec<u8>,
    /// Length of the log after the last rewrite.
    live_bytes: u64,
    /// The log refused; nothing that needs it is done any more.
    is_poisoned: bool,
    /// Of the running step.
    said: Vec<Said>,
    /// Deleted files whose last opening a post ended.
    pub(crate) reaps: Vec<Inode>,
    /// Files without a name that nobody had open at the last look.
    unheld: BTreeSet<Inode>,
    /// When it was asked which sessions are over.
    asking: Asking,
    /// When to look for such files.
    orphans_at: Option<Instant>,
    /// How often it was looked for them.
    looks: usize,
    /// When a post came last.
    pub(crate) posted_at: Option<Instant>,
    /// Accounts that may not post since the gate was opened.
    pub(crate) tight_count: usize,
}

impl Shard {
    /// Takes over a service that was replayed, with its log.
    pub(crate) fn new(worker: usize, service: Service, index: Index, journal: Journal) -> Shard {
        Shard {
            worker,
            service,
            index,
            journal,
            tickets: Vec::new(),
            free: Vec::new(),
            jobs: Jobs::default(),
            held: Vec::new(),
            removals: Removals::default(),
            effects: Vec::new(),
            clock: Clock::default(),
            rewrite: None,
            slice: Vec::new(),
            live_bytes: 0,
            is_poisoned: false,
            said: Vec::new(),
            reaps: Vec::new(),
            unheld: BTreeSet::new(),
            asking: Asking::default(),
            orphans_at: None,
            looks: 0,
            posted_at: None,
            tight_count: 0,
        }
    }

    /// The first steps after a start: what is pending is sent again, and files that were kept for
    /// processes that are gone by now are freed.
    pub(crate) fn begin(&mut self, shared: &Shared) {
        shared.posts.recover(self.worker);
        self.step(shared, Input::Tick);
        let orphans: Vec<Inode> = self.service.orphans().collect();
        for inode in orphans {
            let header = shared.own_header(inode.shard());
            self.request(shared, &header, Request::Reap { inode }, ReplyTo::Nobody);
        }
    }

    /// A request for a shard of this service.
    pub(crate) fn request(
        &mut self,
        shared: &Shared,
        header: &Header,
        request: Request<'_>,
        to: ReplyTo,
    ) {
        if let Err(errno) = self.reserve(purpose(&request)) {
            return shared.refuse(to, errno);
        }
        if let Request::Extend { inode, .. } = request
            && header.origin == u64::MAX
            && header.host == shared.host_number
            && !self.service.is_quiet(inode)
        {
            // For a process of this host that was killed; asked again until it is told.
            return shared.busy(to, LOST_MICROS);
        }
        if let Request::GiveBack { target } = request {
            return self.give_back(shared, DaemonIndex(target), to);
        }
        let ticket = self.ticket(to);
        self.close_gate(shared);
        self.step_closed(shared, Input::Request { ticket, header, request });
        if let Request::Create { .. } = request {
            self.keep_numbers(shared, ShardIndex(header.shard));
        }
        self.open_gate(shared);
    }

    /// A target has no room: what it has of files that are gone comes back now. Says whether there is
    /// more to come.
    fn give_back(&mut self, shared: &Shared, target: DaemonIndex, to: ReplyTo) {
        self.step_reserved(shared, Input::GiveBack);
        self.removals.hurry(shared.router.map.daemon_count());
        self.ask_targets(shared);
        let is_freeing = self.service.is_freeing() || self.removals.is_asked(target);
        let (is_saving, saved) = self.service.saves_for_room();
        let is_saving = shared.tell_untold_for_room() || is_saving;
        let value = coming::value(is_freeing, is_saving, saved);
        shared.answer_with(to, &Reply::Number { value });
    }

    /// Notes who waits for a reply.
    pub(crate) fn ticket(&mut self, to: ReplyTo) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() - 1
        });
        if let Some(ticket) = self.tickets.get_mut(place) {
            *ticket = Some(to);
        }
        place as u64
    }

    /// A message of another service. It is lost if the log takes nothing: it comes again.
    pub(crate) fn peer(&mut self, shared: &Shared, message: &[u8]) {
        self.step(shared, Input::Peer { message });
    }

    /// Origins that are gone.
    pub(crate) fn origin_gone(&mut self, shared: &Shared, first: u64, count: u64) {
        self.step(shared, Input::OriginGone { first, count });
    }

    /// The target beside this service wants so many bytes more for an account.
    pub(crate) fn draw_space(&mut self, shared: &Shared, account: Account, wanted: u64) {
        self.step(shared, Input::DrawSpace { account, wanted });
    }

    /// Entries of a directory below came, or why there are no more.
    pub(crate) fn listed(&mut self, shared: &Shared, directory: Inode, outcome: &Result<Listed>) {
        // Without room in the log nothing is brought in; what is refused needs none.
        let outcome = match (outcome, self.reserve(For::Any)) {
            (Ok(listed), Ok(())) => Ok((listed.seen(), listed.is_last)),
            (Err(errno), _) => Err(*errno),
            (_, Err(errno)) => Err(errno),
        };
        let outcome = match &outcome {
            Ok((entries, is_last)) => Ok(Part { entries, is_last: *is_last }),
            Err(errno) => Err(*errno),
        };
        self.step(shared, Input::Below { directory, outcome });
    }

    /// A name was looked for below.
    pub(crate) fn looked(
        &mut self,
        shared: &Shared,
        key: u128,
        outcome: Result<Box<Option<::below::Entry>>>,
    ) {
        // As of entries of a directory.
        let outcome = match (outcome, self.reserve(For::Any)) {
            (Ok(entry), Ok(())) => Ok(entry),
            (Err(errno), _) | (_, Err(errno)) => Err(errno),
        };
        let outcome = match &outcome {
            Ok(entry) => Ok(entry.as_ref().as_ref().map(seen)),
            Err(errno) => Err(*errno),
        };
        self.step(shared, Input::Looked { key, outcome });
    }

    /// Who sent a request is dead.
    pub(crate) fn withdrawn(&mut self, shared: &Shared, origin: u64, sequence: u64) {
        self.step(shared, Input::Withdrawn { origin, sequence });
    }

    /// An answer to a part of a job.
    pub(crate) fn part(&mut self, shared: &Shared, job: u64, daemon: u16, answer: PartAnswer) {
        if let Some((token, result)) = self.jobs.answered(job, daemon, answer) {
            self.step(shared, Input::DataDone { token, result });
        }
    }

    /// A target's answer to what `ask_targets` asked.
    pub(crate) fn removed(&mut self, shared: &Shared, target: DaemonIndex, answer: PartAnswer) {
        let done = self.removals.answered(Instant::now(), target, answer);
        for tokens in done.iter().flat_map(|tokens| tokens.chunks(TOKENS_MAX)) {
            self.step_beside_posts(shared, Input::Removed { tokens });
        }
        self.ask_targets(shared);
    }

    /// Asks the targets to give back what is due.
    fn ask_targets(&mut self, shared: &Shared) {
        let (worker, count) = (self.worker, shared.router.map.daemon_count());
        self.removals.due(Instant::now(), count, |target, inodes| {
            let header = Header { daemon: target.0, ..shared.own_header(ShardIndex(0)) };
            let header = Header { shard: Header::TARGET, ..header };
            let bytes = encode_request(&header, &Request::Remove { inodes });
            let to = ReplyTo::Removals { worker, target };
            if target == shared.router.me {
                shared.hand_to_worker(WORKER_OF_TARGET, bytes, to);
            } else {
                shared.hand_to_peer(target, &bytes, to);
            }
        });
    }

    /// Does what is due. Returns how long nothing will be due, in microseconds.
    pub(crate) fn keep_time(&mut self, shared: &Shared) -> Option<u64> {
        let now = self.clock.now().unix_nanos;
        if self.service.deadline().is_some_and(|deadline| deadline <= now) {
            self.step(shared, Input::Tick);
        }
        self.jobs.repeat(shared, self.worker);
        let held = self.start_held(shared);
        self.ask_targets(shared);
        let now = self.clock.now().unix_nanos;
        let service = self
            .service
            .deadline()
            .map(|deadline| u64::try_from(deadline.saturating_sub(now)).unwrap_or(0) / 1000);
        let jobs = self.jobs.deadline().map(micros_until);
        let removals = self.removals.deadline().map(micros_until);
        let orphans = self.look_for_orphans(shared);
        let origins = self.forget_gone(shared);
        [service, jobs, removals, orphans, origins, held].into_iter().flatten().min()
    }

    /// Forgets what came of requests that nobody repeats any more, and asks other daemons about theirs.
    /// Returns when to look again, if anything is remembered.
    fn forget_gone(&mut self, shared: &Shared) -> Option<u64> {
        let gone = self.asking.ask(shared, |from| self.service.next_origin(from));
        gone.iter().for_each(|range| self.origin_gone(shared, range.first, range.count));
        self.asking.due().map(micros_until)
    }

    /// Starts cuts whose bytes have arrived. Returns when to look again, if any wait.
    fn start_held(&mut self, shared: &Shared) -> Option<u64> {
        for cut in std::mem::take(&mut self.held) {
            if shared.host.has_flights(cut.inode) && Instant::now() < cut.until {
                self.held.push(cut);
                continue;
            }
            let HeldCut { token, inode, layout, op, .. } = cut;
            self.jobs.start(shared, self.worker, (token, inode), &layout, op);
        }
        (!self.held.is_empty()).then_some(HELD_MICROS)
    }

    /// Who closes a deleted file last says so, unless he is killed between the two: a file that is open
    /// nowhere at two looks has nobody. (At one: who makes a file without a name opens it a moment
    /// later.) Hosts that are believed to have it open are asked: what they said may be lost. Returns
    /// the microseconds until the next look, if there is anything to look for.
    fn look_for_orphans(&mut self, shared: &Shared) -> Option<u64> {
        if self.service.orphans().next().is_none() {
            self.unheld.clear();
            self.orphans_at = None;
            return None;
        }
        let now = Instant::now();
        let due = *self.orphans_at.get_or_insert(now + ORPHANS_PAUSE);
        if due <= now {
            let is_unheld = |inode: &Inode| shared.host.vnode_find(*inode).is_none();
            let unheld: BTreeSet<Inode> = self.service.orphans().filter(is_unheld).collect();
            let gone: Vec<Inode> = self.unheld.intersection(&unheld).copied().collect();
            let asked = self.looks.wrapping_mul(ASKED_MAX) % gone.len().max(1);
            self.looks = self.looks.wrapping_add(1);
            for &inode in gone.iter().cycle().skip(asked).take(ASKED_MAX.min(gone.len())) {
                self.ask_hosts(shared, inode);
            }
            for inode in gone {
                let header = shared.own_header(inode.shard());
                self.request(shared, &header, Request::Reap { inode }, ReplyTo::Nobody);
            }
            self.unheld = unheld;
            self.orphans_at = Some(now + ORPHANS_PAUSE);
        }
        self.orphans_at.map(micros_until)
    }

    /// Asks the hosts that have a file open, as far as is known, whether they have.
    fn ask_hosts(&self, shared: &Shared, inode: Inode) {
        let mut bytes = vec![message::IS_OPEN];
        bytes.extend_from_slice(&inode.0.to_le_bytes());
        // A host has the number of its first daemon. It is asked again if this is lost.
        for first in self.service.hosts_of(inode).map(DaemonIndex) {
            let _ = shared.net.message(first, &bytes, Haste::WithOthers);
        }
    }

    /// Rewrites the log in slices when it has grown far beyond the state. True: there is more.
    pub(crate) fn keep_log_short(&mut self) -> bool {
        if !self.is_log_long() {
            return false;
        }
        match self.rewrite_slice() {
            Ok(more) => more,
            Err(error) => {
                // The old log is whole: go on with it, and try when it has doubled.
                tracing::error!(worker = self.worker, %error, "can not rewrite the log");
                self.journal.abandon_rewrite();
                self.rewrite = None;
                self.live_bytes = self.journal.bytes() / 2;
                false
            }
        }
    }

    /// True if the log is to be rewritten, or something is due before `steady_nanos`.
    pub(crate) fn wants_time_before(&mut self, steady_nanos: i64) -> bool {
        let now = self.clock.now();
        let left = steady_nanos.saturating_sub(now.steady_nanos);
        let nanos = now.unix_nanos.saturating_add(left);
        // What a moment more does not hurt may be due a little later.
        let removals = self.removals.deadline().is_some_and(|at| {
            let micros = i64::try_from(micros_until(at)).unwrap_or(i64::MAX);
            micros.saturating_mul(1000) < left
        });
        self.service.deadline().is_some_and(|deadline| deadline < nanos)
            || self.jobs.deadline().is_some()
            || !self.held.is_empty()
            || removals
            || self.is_log_long()
    }

    fn is_log_long(&self) -> bool {
        let limit = REWRITE_BYTES_MIN.max(self.live_bytes.saturating_mul(REWRITE_FACTOR));
        self.rewrite.is_some() || (self.journal.bytes() > limit && !self.is_poisoned)
    }

    fn rewrite_slice(&mut self) -> store::Result<bool> {
        let mut cursor = match self.rewrite.take() {
            Some(cursor) => cursor,
            None => {
                self.journal.begin_rewrite()?;
                SnapshotCursor::default()
            }
        };
        self.slice.clear();
        let more = self.service.snapshot_slice(&mut cursor, SLICE_BYTES, &mut self.slice);
        if !self.slice.is_empty() {
            self.journal.append_snapshot(&self.slice)?;
        }
        if more {
            self.rewrite = Some(cursor);
            return Ok(true);
        }
        let before = self.journal.bytes();
        self.journal.finish_rewrite()?;
        self.live_bytes = self.journal.bytes();
        let (worker, after) = (self.worker, self.live_bytes);
        tracing::info!(worker, before, after, "log rewritten");
        Ok(false)
    }

    /// Notes what `status` shows.
    pub(crate) fn publish(&self, shared: &Shared) {
        if let Some(figures) = shared.figures.get(self.worker) {
            figures.files.store(self.service.inode_count(), Relaxed);
            figures.outcomes.store(self.service.outcome_count(), Relaxed);
            figures.log_bytes.store(self.journal.bytes(), Relaxed);
        }
    }

    /// The last act: what is in the log goes to the device.
    pub(crate) fn end(&mut self, shared: &Shared) {
        self.close_gate(shared);
        self.journal.abandon_rewrite();
        if let Err(error) = self.journal.commit() {
            tracing::error!(worker = self.worker, %error, "can not flush the log");
        }
    }

    /// Sees to it that the log takes the records of a step.
    pub(crate) fn reserve(&mut self, purpose: For) -> Result<()> {
        self.reserve_more(0, purpose)
    }

    /// As `reserve`, with `more` bytes beyond.
    pub(crate) fn reserve_more(&mut self, more: u64, purpose: For) -> Result<()> {
        if self.is_poisoned {
            return Err(Errno::EIO);
        }
        self.journal.reserve(STEP_BYTES_MAX + more, purpose).map_err(|error| error.errno())
    }

    fn step(&mut self, shared: &Shared, input: Input<'_>) {
        match self.reserve(For::Freeing) {
            Ok(()) => self.step_reserved(shared, input),
            Err(errno) => tracing::error!(worker = self.worker, %errno, "no room in the log"),
        }
    }

    fn step_reserved(&mut self, shared: &Shared, input: Input<'_>) {
        self.close_gate(shared);
        self.step_closed(shared, input);
        self.open_gate(shared);
    }

    /// A step that looks at no name, so the gate may stay as it is. What may be posted keeps its room
    /// in the log.
    fn step_beside_posts(&mut self, shared: &Shared, input: Input<'_>) {
        match self.reserve_more(room_of_posts(shared), For::Any) {
            Ok(()) => self.step_closed(shared, input),
            Err(_) => self.step(shared, input),
        }
    }

    /// A step while nobody posts, or one that may be beside posts. Its replies wait for
    /// `send_replies`.
    pub(crate) fn step_closed(&mut self, shared: &Shared, input: Input<'_>) {
        let mut effects = std::mem::take(&mut self.effects);
        let tickets = &self.tickets;
        let (index, host, books) = (&self.index, &shared.host, &shared.books);
        let mut hands = Hands { index, host, books, tickets };
        self.service.step(self.clock.now(), input, &mut hands, &mut effects);
        for effect in effects.drain(..) {
            self.perform(shared, effect);
        }
        self.effects = effects;
    }

    fn perform(&mut self, shared: &Shared, effect: Effect) {
        match effect {
            Effect::Log(bytes) => {
                if let Err(error) = self.journal.append(&bytes) {
                    // Its space was reserved, so the device is at fault. The state in memory is
                    // ahead of the log: nobody may see it.
                    tracing::error!(worker = self.worker, %error, "the log is lost");
                    self.is_poisoned = true;
                    std::process::abort();
                }
                self.service.recycle(bytes);
            }
            Effect::Index(operation) => self.perform_index(operation),
            Effect::Reply { ticket, bytes } => {
                if let Some(to) = self.redeem(ticket) {
                    self.said.push(Said::Reply(to, bytes));
                } else {
                    self.service.recycle(bytes);
                }
            }
            Effect::Told { inode, end } => shared.host.note_told(inode, end),
            Effect::BeginCut { inode, size } => shared.host.begin_cut(inode, size),
            Effect::CutInline { inode, size } => {
                shared.host.begin_cut(inode, size);
                shared.host.end_cut(inode);
            }
            Effect::UncountUse { inode, less } => shared.host.uncount_others_use(inode, less),
            Effect::GrantNumbers { shard, first, end } => {
                shared.posts.grant_numbers(shard, first, end);
            }
            Effect::Peer { to, bytes } => send(shared, to, bytes),
            Effect::Holder { to, bytes } => {
                let mut framed = vec![message::LEASES];
                framed.extend_from_slice(&bytes);
                if shared.net.message(to, &framed, Haste::Now).is_err() {
                    tracing::debug!(peer = to.0, "word dropped");
                }
            }
            Effect::Host { to, bytes } => {
                let mut framed = vec![message::SIZES];
                framed.extend_from_slice(&bytes);
                self.said.push(Said::Word(to, framed));
            }
            Effect::Service { to, worker, bytes } => send_to_service(shared, to, worker, bytes),
            Effect::Count => shared.tell(WORKER_OF_TARGET, Note::Count),
            Effect::Allow { account, allowance, denied } => {
                shared.books.allow(account, allowance);
                let account = Account(account);
                shared.tell(WORKER_OF_TARGET, Note::Allowed { account, denied });
            }
            Effect::Data { token, inode, layout, op } => {
                if layout.flags & flag::POSIX != 0 && shared.host.has_flights(inode) {
                    let until = Instant::now() + shared.timeout;
                    self.held.push(HeldCut { token, inode, layout, op, until });
                    return;
                }
                self.jobs.start(shared, self.worker, (token, inode), &layout, op);
            }
            Effect::Below { directory, place } => shared.list_below(self.worker, directory, place),
            Effect::Look { key, place, name } => shared.look_below(self.worker, key, place, name),
            Effect::Remove { token, files } => {
                let count = shared.router.map.daemon_count();
                if self.removals.add(Instant::now(), count, token, &files) {
                    self.ask_targets(shared);
                }
            }
        }
    }

    /// Sends the replies of the last steps, and the words to hosts.
    pub(crate) fn send_replies(&mut self, shared: &Shared) {
        let mut said = std::mem::take(&mut self.said);
        for one in said.drain(..) {
            match one {
                Said::Reply(to, bytes) => {
                    shared.answer(to, &bytes);
                    self.service.recycle(bytes);
                }
                Said::Word(to, bytes) => {
                    if shared.net.message(to, &bytes, Haste::Now).is_err() {
                        tracing::debug!(peer = to.0, "word dropped");
                    }
                }
            }
        }
        self.said = said;
    }

    fn redeem(&mut self, ticket: u64) -> Option<ReplyTo> {
        let place = usize::try_from(ticket).ok()?;
        let to = self.tickets.get_mut(place)?.take();
        if to.is_some() {
            self.free.push(place);
        }
        to
    }

    fn perform_index(&self, operation: IndexOp) {
        match operation {
            IndexOp::PutEntry { key, inode, mode } => self.index.put_entry(key, inode, mode),
            IndexOp::PutAbsent { directory, key } => self.index.put_absent(directory, key),
            IndexOp::ForgetEntry { key } => self.index.forget_entry(key),
            IndexOp::PutWhole { directory } => self.index.put_whole(directory),
            IndexOp::ForgetWhole { directory } => self.index.forget_whole(directory),
            IndexOp::PutInode(attributes) => self.index.put_inode(&attributes),
            IndexOp::ForgetInode(inode) => self.index.forget_inode(inode),
        }
    }
}

/// A word to the service of a worker of any daemon. Loss is the services' to make good.
fn send_to_service(shared: &Shared, to: DaemonIndex, worker: u8, bytes: Vec<u8>) {
    if to == shared.router.me {
        return shared.tell(usize::from(worker), Note::Peer(bytes));
    }
    let mut framed = vec![message::SERVICE, worker];
    framed.extend_from_slice(&bytes);
    if shared.net.message(to, &framed, Haste::Now).is_err() {
        tracing::debug!(peer = to.0, "word dropped");
    }
}

/// A message to the service of a shard. Loss is the services' to make good.
pub(crate) fn send(shared: &Shared, to: ShardIndex, bytes: Vec<u8>) {
    match shared.router.home_of(to) {
        Route::Worker(worker) => shared.tell(worker, Note::Peer(bytes)),
        Route::Peer(peer) => {
            let mut framed = Vec::with_capacity(bytes.len() + 3);
            framed.push(message::METADATA);
            framed.extend_from_slice(&to.0.to_le_bytes());
            framed.extend_from_slice(&bytes);
            if shared.net.message(peer, &framed, Haste::Now).is_err() {
                tracing::debug!(peer = peer.0, "message dropped");
            }
        }
        Route::Stale(_) | Route::Wait => {}
    }
}

fn micros_until(at: Instant) -> u64 {
    let left = at.saturating_duration_since(Instant::now());
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}

/// May a request use the last of the log's space?
const fn purpose(request: &Request<'_>) -> For {
    match request {
        Request::Unlink { .. }
        | Request::RemoveDirectory { .. }
        | Request::Close { .. }
        | Request::Reap { .. }
        | Request::Release { .. }
        | Request::CancelLock { .. }
        | Request::GiveBack { .. }
        | Request::Wrote { .. }
        | Request::NotWritten { .. }
        | Request::Gone { .. }
        | Request::Saved { .. }
        | Request::RemoveXattr { .. } => For::Freeing,
        _ => For::Any,
    }
}
