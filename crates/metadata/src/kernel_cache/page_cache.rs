//! Coherence of the page caches of kernels behind mounts on different hosts, at the shard of the
//! file.
//!
//! The shard knows which other hosts may write to a file and which may cache pages of it
//! (`open_files`), and reads the open inode of its own host. A host caches pages only of files that
//! no other host writes to, as the answer to its open says; a mapping made while others write may
//! still cause caching. So
//! 1. a writer is counted when it begins (`HostMarks::begin_writing`), and is answered after all
//!    other hosts have dropped their pages and recorded that there is a writer;
//! 2. a writer on a file whose pages others may cache requests to have them dropped after its write
//!    (`Unwatch`);
//! 3. a host that comes to cache pages while others write is answered after the writers have
//!    recorded that.
//!
//! Cached pages of a closed file are not read. The next open learns from the counter whether a
//! writer began since.
//!
//! A host is notified by a message to a service of it (`Message::FileUse`), which records it in the
//! open inode, notifies the mounts, and answers when they have carried it out. The message is
//! resent until it is answered. A mount that does not carry it out within the validity of kernel
//! caches is notified but not waited for, until it responds; likewise a host that does not answer.
//! Before anybody goes on without it, the mount finds that in shared memory (`HostMarks::set_behind`),
//! until it has carried out all that was queued for it: it answers nothing of the current state
//! earlier, whose bytes its kernel may have in old pages.
//!
//! A service that leaves its host for good has told which of the open files kernels there cache
//! (`Input::Leave`). Mounts of that host drop all pages then: notices of that service may be lost.
//!
//! After a restart the necessary state is in the log and in shared memory; a waiting client repeats
//! its request. Nobody repeats the notices that were queued for a mount that is behind, so it drops its
//! pages of all files.
//!
//! Where another daemon goes on with the service, nothing is known of the first owner's host: it may
//! write to all files from before (`Context::unknown_opener`), and keeps pages of them until it has the
//! service again. So
//! 4. a successor lets kernels cache no pages of files from before, and lets nobody change anything
//!    before as much time has passed as anybody waits for a host (`remote`);
//! 5. when the service is back, the memory of the host takes up what happened (`Service::meet_host`): its
//!    mounts are behind, all counts of writers are new, and uses by other hosts are counted; kernels of
//!    other hosts drop what they may have cached beside writers that did not know it.

use std::collections::{BTreeMap, BTreeSet};

use wire::hash::mix;
use wire::reply::opened;
use wire::request::open;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, what};
use wire::{Inode, Reply, ShardIndex};

use crate::core::context::Context;
use crate::core::effect::HostMarks;
use crate::core::job::{Call, RESEND_NANOS, Resend, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::kernel_cache::KernelCaches;
use crate::kernel_cache::notices::Changing;

/// Longest wait for a host or mount.
const ANSWER_NANOS_MAX: i64 = VALID_NANOS + MARGIN_NANOS;
/// A mount that took so long is told that it is behind: before anybody goes on without it, also on
/// other hosts, which began to wait earlier.
const BEHIND_NANOS: i64 = ANSWER_NANOS_MAX - MARGIN_NANOS;
/// Interval at which a waiting job checks whether that is over.
const POLL_NANOS: i64 = 20_000_000;
/// A request that its client does not repeat is forgotten after this.
const FORGOTTEN_NANOS: i64 = 60_000_000_000;
/// Most notices about pages that wait for one mount; the senders of further ones retry.
const NOTICES_MAX: usize = 4096;

/// In `Message::FileUse::uses`, besides bits of `opened`: kernels of the host drop their pages.
pub(crate) const DROP: u8 = 0x80;

/// Writer that begins with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begins {
    /// The requester, so it is counted.
    Writer,
    /// None, or one that has counted itself.
    Nobody,
}

/// The file of a request, its client id and sequence number.
type RequestKey = (Inode, (u64, u64));

/// A notification of a host about a file.
#[derive(Clone, Copy, Debug)]
struct HostInvalidation {
    host: u16,
    inode: Inode,
    /// Mount of the host that is not notified.
    except: u8,
    uses: u8,
    until: i64,
    is_late: bool,
    /// It is to be repeated once it is carried out: there were further ones meanwhile.
    is_repeated: bool,
    resend: Resend,
}

/// The notifications of one request.
#[derive(Clone, Debug)]
struct InvalidationRound {
    numbers: Vec<u64>,
    /// The counter of writers before the request.
    writers: Option<u64>,
    since: i64,
}

/// A mount of this host that has to drop pages; a service waits for that.
#[derive(Clone, Copy, Debug)]
struct Notified {
    /// The number of its notice.
    notice: u64,
    until: i64,
}

/// Numbers of writers of a service at another daemon than its first owner. The host that counts its own
/// programs together with those of others is not at hand there: so each such owner has numbers that no
/// other one has, also not that host. Files with the same hash are not distinguished.
struct WriterCounts {
    first: u64,
    begun: BTreeMap<u16, u64>,
}

/// In numbers of `WriterCounts`. The memory of a host never counts as far.
const ELSEWHERE: u64 = 1 << 63;
/// Writers that may begin in one epoch of the owners of a service.
const WRITERS_LOG2: u32 = 40;

/// Volatile state of the protocol; see the module.
#[derive(Default)]
pub(crate) struct PageCaches {
    /// `None`: the memory of this host counts writers.
    writers: Option<WriterCounts>,
    /// The epoch in which the first owner goes on after another daemon, until the hosts that may have
    /// pages from then have dropped them.
    returned_in: Option<u64>,
    invalidations: BTreeMap<u64, HostInvalidation>,
    rounds: BTreeMap<RequestKey, InvalidationRound>,
    /// Hosts that did not answer.
    silent: BTreeSet<u16>,
    /// By mount, waiting service, and the service's number.
    notified: BTreeMap<(u8, ShardIndex, u64), Notified>,
    /// Mounts that did not carry out a notice in time.
    late: BTreeSet<u8>,
    /// By mount that was told that it is behind: the number of the last notice for it.
    behind: BTreeMap<u8, u64>,
    /// Notices that an earlier start of the service had queued are replaced.
    is_recovered: bool,
}

impl WriterCounts {
    fn bucket(inode: Inode) -> u16 {
        mix(inode.0, 29) as u16
    }
}

impl PageCaches {
    /// Another daemon than the first owner goes on with the service, in this epoch.
    pub(crate) fn count_writers_in(&mut self, epoch: u64) {
        let first = ELSEWHERE | epoch << WRITERS_LOG2;
        self.writers = Some(WriterCounts { first, begun: BTreeMap::new() });
    }

    /// The number of writers of a file that began, as far as anybody compares it with an earlier one.
    pub(crate) fn writers_ever(&self, host_view: &dyn HostMarks, inode: Inode) -> u64 {
        match &self.writers {
            None => host_view.writers_ever(inode),
            Some(WriterCounts { first, begun }) => {
                first + begun.get(&WriterCounts::bucket(inode)).copied().unwrap_or(0)
            }
        }
    }

    /// Counts a writer of another host. Returns the number before.
    fn begin_writing(&mut self, host_view: &dyn HostMarks, inode: Inode) -> u64 {
        match &mut self.writers {
            None => host_view.begin_writing(inode),
            Some(WriterCounts { first, begun }) => {
                let begun = begun.entry(WriterCounts::bucket(inode)).or_default();
                *begun += 1;
                *first + *begun - 1
            }
        }
    }

    /// The first owner goes on with the service, in this epoch, after another daemon.
    pub(crate) fn return_in(&mut self, epoch: u64) -> u64 {
        self.returned_in = Some(epoch);
        epoch << WRITERS_LOG2
    }

    /// A host is gone, with its mounts.
    pub(crate) fn host_gone(&mut self, host: u16) {
        self.invalidations.retain(|_, invalidation| invalidation.host != host);
        self.silent.remove(&host);
    }

    fn is_waited_for(&self, number: u64, now: i64) -> bool {
        let invalidation = self.invalidations.get(&number);
        invalidation.is_some_and(|one| one.until > now && !self.silent.contains(&one.host))
    }

    /// True if an unanswered notification of a silent host includes all of `new`. The host may carry
    /// it out before what `new` is about, so it is repeated.
    fn is_covered(&mut self, new: &HostInvalidation) -> bool {
        let covers = |one: &&mut HostInvalidation| {
            (one.host, one.inode, one.except) == (new.host, new.inode, new.except)
                && new.uses & !one.uses == 0
        };
        if !self.silent.contains(&new.host) {
            return false;
        }
        let covering = self.invalidations.values_mut().find(covers);
        covering.map(|one| one.is_repeated = true).is_some()
    }

    fn notified_for(&self, from: ShardIndex, number: u64) -> bool {
        self.notified.keys().any(|&(_, to, known)| (to, known) == (from, number))
    }
}

impl KernelCaches {
    /// A file is opened, and its use recorded: proceeds when the hosts concerned know. Returns the
    /// counter of writers before, if the opener is a writer.
    pub(crate) fn announce_open(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
        uses: u8,
    ) -> Step<Option<u64>> {
        if uses & (open::WRITES | open::MAPS) == 0 {
            return Ok(None);
        }
        let to_cachers = match uses & open::WRITES {
            0 => 0,
            _ => DROP | opened::OTHERS_WRITE,
        };
        let to_writers = if uses & open::MAPS != 0 { opened::OTHERS_CACHE } else { 0 };
        let begins = if to_cachers == 0 { Begins::Nobody } else { Begins::Writer };
        self.notify_others(cx, call, inode, begins, (to_cachers, to_writers))
    }

    /// The sender is about to write without having announced it, or has written.
    pub(crate) fn unwatch(&mut self, cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
        let host = call.header.host;
        let is_local = host == cx.config.host;
        let writes = match is_local {
            true => call.host_view.has_writer(inode),
            false => cx.state.writers_but(inode, u16::MAX).any(|writer| writer == host),
        };
        let uses = DROP | if writes { opened::OTHERS_WRITE } else { 0 };
        // A writer on this host counts itself.
        let begins = if writes || is_local { Begins::Nobody } else { Begins::Writer };
        self.notify_others(cx, call, inode, begins, (uses, 0))?;
        let value = u64::from(remote_use(cx, call, inode));
        cx.io.reply(call.ticket, &Reply::Number { value });
        Ok(())
    }

    /// Notifies the hosts that cache pages of a file, and those that write to it.
    fn notify_others(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
        begins: Begins,
        uses: (u8, u8),
    ) -> Step<Option<u64>> {
        let request = (inode, (call.header.client_id, call.header.sequence));
        if !self.pages.rounds.contains_key(&request) {
            // Counted after the writer was recorded, and before the caching hosts are read.
            let before =
                (begins == Begins::Writer).then(|| self.pages.begin_writing(call.host_view, inode));
            let numbers = self.notify_hosts(cx, call, inode, uses);
            let round = InvalidationRound { numbers, writers: before, since: cx.steady };
            self.pages.rounds.insert(request, round);
        }
        // From now on it may be written elsewhere (`size_coherence`). A mount that gets both
        // notices is waited for once.
        let attributes = match uses.0 & DROP {
            0 => Ok(()),
            _ => self.await_invalidated(cx, call, &[Changing::Attributes(inode)]),
        };
        if !self.is_round_over(cx, request) {
            return Err(Stop::Wait(Wait::Invalidation));
        }
        attributes?;
        Ok(self.pages.rounds.remove(&request).and_then(|round| round.writers))
    }

    fn is_round_over(&mut self, cx: &mut Context, request: RequestKey) -> bool {
        let (now, pages) = (cx.steady, &self.pages);
        let Some(round) = pages.rounds.get(&request) else { return true };
        let is_over = !round.numbers.iter().any(|&number| pages.is_waited_for(number, now));
        if !is_over {
            cx.wake_at(cx.now.saturating_add(POLL_NANOS));
        }
        is_over
    }

    /// Notifies hosts; returns the numbers of the notifications.
    fn notify_hosts(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
        (cachers, writers): (u8, u8),
    ) -> Vec<u64> {
        let (by, own) = (call.header.host, cx.config.host);
        let mut all = Vec::new();
        for (host, uses) in cx.state.uses_but(inode, own) {
            let of_cachers = if uses & opened::OTHERS_CACHE != 0 { cachers } else { 0 };
            let of_writers = if uses & opened::OTHERS_WRITE != 0 { writers } else { 0 };
            all.push((host, of_cachers | of_writers));
        }
        if by != own {
            // The open inode of this host is at hand.
            call.host_view.mark_remote_use(inode, (cachers | writers) & !DROP);
        }
        let mut has_cachers = false;
        call.host_view.page_cache_mounts(inode, &mut |_| has_cachers = true);
        all.push((own, if has_cachers { cachers & DROP } else { 0 }));
        let mut numbers = Vec::new();
        for (host, uses) in all {
            // The requester's own host knows its writers and cached pages from the open inode.
            let uses = if host == by { uses & DROP } else { uses };
            let except = if host == by { call.header.mount } else { 0 };
            if uses != 0 {
                numbers.extend(self.notify_host_of_pages(cx, host, inode, except, uses));
            }
        }
        numbers
    }

    fn notify_host_of_pages(
        &mut self,
        cx: &mut Context,
        host: u16,
        inode: Inode,
        except: u8,
        uses: u8,
    ) -> Option<u64> {
        let resend = Resend::after(cx.now, RESEND_NANOS);
        let until = cx.steady.saturating_add(ANSWER_NANOS_MAX);
        let invalidation = HostInvalidation {
            host,
            inode,
            except,
            uses,
            until,
            is_late: false,
            is_repeated: false,
            resend,
        };
        if self.pages.is_covered(&invalidation) {
            return None;
        }
        Some(self.send_invalidation(cx, invalidation))
    }

    fn send_invalidation(&mut self, cx: &mut Context, invalidation: HostInvalidation) -> u64 {
        let number = self.local.new_notice(cx);
        self.pages.invalidations.insert(number, invalidation);
        self.send_file_use(cx, number, &invalidation);
        cx.wake_at(invalidation.resend.at);
        number
    }

    fn send_file_use(&mut self, cx: &mut Context, number: u64, invalidation: &HostInvalidation) {
        let HostInvalidation { host, inode, except, uses, .. } = *invalidation;
        let message = Message::FileUse { from: cx.address.0, number, inode, except, uses };
        if host != cx.config.host {
            if let Some(to) = self.remote.relay_of(cx, host) {
                cx.io.send(to, &message);
            }
            return;
        }
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        cx.own_messages.push_back(bytes);
    }

    /// A host has carried out a notification.
    pub(crate) fn file_use_carried(&mut self, cx: &mut Context, number: u64) {
        if let Some(invalidation) = self.pages.invalidations.remove(&number) {
            self.pages.silent.remove(&invalidation.host);
            cx.wake(|wait| *wait == Wait::Invalidation);
            if invalidation.is_repeated {
                let HostInvalidation { host, inode, except, uses, .. } = invalidation;
                let _ = self.notify_host_of_pages(cx, host, inode, except, uses);
            }
        }
    }

    /// Another service of this host has left it, and what it had queued for mounts is lost.
    pub(crate) fn doubt_notices(&mut self, cx: &mut Context) {
        self.pages.is_recovered = false;
        cx.wake_at(cx.now);
    }

    /// The first time after a start: mounts that are behind drop all pages, because the notices that
    /// were queued for them are lost.
    fn recover_notices(&mut self, cx: &mut Context, host_view: &dyn HostMarks) {
        if core::mem::replace(&mut self.pages.is_recovered, true) {
            return;
        }
        let mut mounts = Vec::new();
        host_view.behind_mounts(service_number(cx), &mut |mount| mounts.push(mount));
        for mount in mounts {
            let mut files = Vec::new();
            host_view.page_cache_files(mount, &mut |inode| files.push(inode));
            files.into_iter().for_each(|inode| {
                let number = self.queue_drop(cx, mount, inode);
                self.pages.behind.insert(mount, number);
            });
            // When the service returns from elsewhere, all mounts are behind, also those that answer.
            if self.pages.returned_in.is_none() {
                self.pages.late.insert(mount);
            }
        }
    }

    /// The first owner goes on after another daemon: programs of its host may have written files
    /// meanwhile without knowing that kernels of other hosts cache pages of them, so these are dropped.
    pub(crate) fn drop_pages_from_elsewhere(&mut self, cx: &mut Context) {
        if self.pages.returned_in.is_none() {
            return;
        }
        let mut cachers = Vec::new();
        for (&inode, hosts) in &cx.state.hosts {
            let hosts = hosts.iter().filter(|known| known.caches && known.host != cx.config.host);
            cachers.extend(hosts.map(|known| (known.host, inode)));
        }
        for (host, inode) in cachers {
            let _ = self.notify_host_of_pages(cx, host, inode, 0, DROP);
        }
    }

    /// Queues a notice that a mount drops its pages of a file; returns its number.
    fn queue_drop(&mut self, cx: &mut Context, mount: u8, inode: Inode) -> u64 {
        let number = self.local.new_notice(cx);
        let notice = Notice { what: what::BYTES, number, inode, name: &[] };
        self.local.queue_notice(cx, mount, &notice);
        number
    }

    /// A service announces the use of a file by other hosts; the file may be open on this one.
    pub(crate) fn take_file_use(
        &mut self,
        cx: &mut Context,
        host_view: &dyn HostMarks,
        message: &Message<'_>,
    ) {
        let Message::FileUse { from, number, inode, except, uses } = *message else { return };
        self.recover_notices(cx, host_view);
        let from = ShardIndex(from);
        if !cx.config.owns(from) {
            host_view.mark_remote_use(inode, uses & !DROP);
        }
        self.pages.notified.retain(|&(mount, ..), _| host_view.has_mount(mount));
        let mut mounts = Vec::new();
        if uses & DROP != 0 {
            host_view.page_cache_mounts(inode, &mut |mount| mounts.push(mount));
        }
        mounts.retain(|&mount| mount != except && host_view.has_mount(mount));
        for mount in mounts {
            let key = (mount, from, number);
            let is_late = self.pages.late.contains(&mount);
            if self.pages.notified.contains_key(&key)
                || is_late && self.local.has_queued(mount, inode)
            {
                continue;
            }
            let all = (mount, ShardIndex(0), 0)..=(mount, ShardIndex(u16::MAX), u64::MAX);
            if self.pages.notified.range(all).count() >= NOTICES_MAX {
                return;
            }
            let notice = self.queue_drop(cx, mount, inode);
            let until = cx.steady.saturating_add(ANSWER_NANOS_MAX);
            if !is_late {
                self.pages.notified.insert(key, Notified { notice, until });
            }
            self.pages.behind.entry(mount).and_modify(|last| *last = notice);
            cx.wake_at(cx.now.saturating_add(BEHIND_NANOS));
        }
        self.acknowledge_file_use(cx, from, number);
    }

    /// Acknowledges a notification, if it is carried out.
    fn acknowledge_file_use(&mut self, cx: &mut Context, to: ShardIndex, number: u64) {
        if self.pages.notified_for(to, number) {
            return;
        }
        match cx.config.owns(to) {
            true => self.file_use_carried(cx, number),
            false => cx.io.send(to, &Message::NoticeDone { number }),
        }
    }

    /// A mount of this host has carried out all notices up to `done`.
    pub(crate) fn pages_dropped(
        &mut self,
        cx: &mut Context,
        host_view: &dyn HostMarks,
        mount: u8,
        done: u64,
    ) {
        self.recover_notices(cx, host_view);
        self.pages.late.remove(&mount);
        if self.pages.behind.get(&mount).is_none_or(|last| *last <= done) {
            self.pages.behind.remove(&mount);
            host_view.set_behind(mount, service_number(cx), false);
        }
        self.end_notified(cx, |key, one| key.0 == mount && one.notice <= done);
    }

    fn end_notified(
        &mut self,
        cx: &mut Context,
        is_over: impl Fn(&(u8, ShardIndex, u64), &Notified) -> bool,
    ) {
        let mut over = Vec::new();
        self.pages.notified.retain(|key, one| {
            let is_over = is_over(key, one);
            over.extend(is_over.then_some((key.1, key.2)));
            !is_over
        });
        over.into_iter().for_each(|(from, number)| self.acknowledge_file_use(cx, from, number));
    }

    /// Timer: resends unanswered notifications, and ends the wait for late hosts and mounts.
    pub(crate) fn tick_page_caches(&mut self, cx: &mut Context, host_view: &dyn HostMarks) {
        self.recover_notices(cx, host_view);
        let (now, steady) = (cx.now, cx.steady);
        let pages = &mut self.pages;
        for (&(mount, ..), one) in &pages.notified {
            let at = one.until.saturating_sub(MARGIN_NANOS);
            if at <= steady {
                host_view.set_behind(mount, service_number(cx), true);
                let last = pages.behind.entry(mount).or_default();
                *last = one.notice.max(*last);
            } else {
                cx.wake_at(now.saturating_add(at.saturating_sub(steady)));
            }
        }
        pages.rounds.retain(|_, round| steady.saturating_sub(round.since) < FORGOTTEN_NANOS);
        let late = pages.notified.iter().filter(|(_, one)| one.until <= steady);
        let late: Vec<u8> = late.map(|(key, _)| key.0).collect();
        pages.late.extend(late);
        self.end_notified(cx, |_, one| one.until <= steady);
        if let Some(until) = self.pages.notified.values().map(|one| one.until).min() {
            cx.wake_at(now.saturating_add(until.saturating_sub(steady)));
        }
        let mut all = core::mem::take(&mut self.pages.invalidations);
        for (&number, one) in &mut all {
            if one.until <= steady && !one.is_late {
                one.is_late = true;
                self.pages.silent.insert(one.host);
            }
            if one.resend.is_due(now) {
                self.send_file_use(cx, number, one);
            }
            cx.wake_at(one.resend.at);
        }
        self.pages.invalidations = all;
        // Before, the next start does everything again.
        if self.pages.invalidations.is_empty()
            && let Some(epoch) = self.pages.returned_in.take()
        {
            host_view.note_agreed(service_number(cx), epoch);
        }
    }
}

/// The number of a service among all of the instance.
pub(crate) fn service_number(cx: &Context) -> usize {
    usize::from(cx.config.first.0) * cx.config.workers + cx.config.worker
}

/// The use of a file by other hosts than the requester's.
pub(crate) fn remote_use(cx: &Context, call: &Call<'_>, inode: Inode) -> u8 {
    let mut others =
        cx.state.uses_but(inode, call.header.host).fold(0, |all, (_, uses)| all | uses);
    // Pages of its kernels are waited for when the service is taken over, and dropped when it returns.
    if cx.unknown_opener(inode).is_some() {
        others |= opened::OTHERS_WRITE;
    }
    if call.header.host != cx.config.host {
        others |= if call.host_view.has_writer(inode) { opened::OTHERS_WRITE } else { 0 };
        others |= if call.host_view.had_pages(inode) { opened::OTHERS_CACHE } else { 0 };
    }
    others
}
