//! Invalidation for mounts of other hosts: what their kernels may remember of this service's names
//! and attributes, and the notices before it changes. Mounts of this host, and waiting jobs, are in
//! `local`.
//!
//! Such a mount asks by `LookupForMount`. The step that answers records here that the mount may
//! remember the answer for `REMEMBERED_NANOS_MAX` (the mount counts from its request, so its time
//! is over first), and in the host segment that some mount may, so that programs of this host leave
//! changes of it to the service.
//!
//! A notice goes to a service of the mount's host, which forwards it as its own (`relay`) and
//! acknowledges it. Both are resent until they are answered; a job waits no longer than the
//! validity. While a notice is pending, and for a moment afterwards, no mount may remember the same
//! object anew.
//!
//! Invariants
//! 1. A record made in the step of an answer is found by each later change, or has expired. After a
//!    restart the records are lost: an object that the host segment marks as remembered does not
//!    change until the validity is over.
//! 2. An object that a transaction is about to change may not be remembered.

use std::collections::{BTreeMap, VecDeque};

use placement::ServiceName;
use wire::attributes::spread;
use wire::codec::Field;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, Watch};
use wire::{Attributes, DaemonIndex, Inode, Reader, ShardIndex};

use crate::core::context::Context;
use crate::core::effect::HostView;
use crate::core::job::{Call, RESEND_NANOS, Resend, Wait};
use crate::core::output::Output;
use crate::core::peer_messages::Message;
use crate::kernel_cache::notices::{Changing, LocalMounts, encoded};

/// How long a mount may remember an answer, as this service counts.
pub(crate) const REMEMBERED_NANOS_MAX: i64 = VALID_NANOS + MARGIN_NANOS;
/// Most recorded views; an answer beyond that may not be remembered.
const VIEWS_MAX: usize = 1 << 18;
/// After a notice no mount may remember the same object for this time, so that a client that
/// changes something often waits for others at most at this interval.
const QUIET_NANOS: i64 = 20_000_000;
/// Most relayed notices that wait for one mount of this host; the senders of further ones retry.
const RELAYED_MAX: usize = 4096;

/// Host and number of a mount.
type Mount = (u16, u8);

/// A mount that looked at an object.
#[derive(Clone, Copy, Debug)]
struct Viewer {
    by: Mount,
    /// The mount may remember it until then.
    remembers_until: i64,
    /// Its kernel may compare the owner that it learned until then: as long as it remembers the name.
    owner_until: i64,
    /// The record expires then.
    until: i64,
    /// Number of the pending notice to it, or 0.
    notice_sent: u64,
}

/// The mounts that looked at one object.
#[derive(Clone, Debug, Default)]
struct Viewed {
    viewers: Vec<Viewer>,
    /// No mount may remember it before.
    quiet_until: i64,
}

/// A pending notice to a mount.
#[derive(Clone, Debug)]
struct RemoteInvalidation {
    to: Mount,
    watch: Watch,
    /// The owner changes, too.
    is_of_owner: bool,
    notice: Vec<u8>,
    until: i64,
    resend: Resend,
}

/// Volatile state of the protocol; see the module.
#[derive(Default)]
pub(crate) struct RemoteMounts {
    viewed: BTreeMap<Watch, Viewed>,
    /// Expiry of the records, in order.
    ends: VecDeque<(i64, Watch)>,
    invalidations: BTreeMap<u64, RemoteInvalidation>,
    /// Until then a mark in the host segment may be from before this start.
    unknown_until: i64,
    /// Another daemon owned the service before, on another host perhaps.
    is_after_another: bool,
    /// Until then kernels may remember what an earlier owner elsewhere let them.
    remembered_until: i64,
    /// A shard of each host, the address of notices for its mounts: of the service that does not leave
    /// it.
    relays: BTreeMap<u16, Option<ShardIndex>>,
    /// Relayed notices for mounts of this host: mount, sender and its number; with our number.
    relayed: BTreeMap<(u8, ShardIndex, u64), u64>,
}

impl RemoteMounts {
    fn forget_ended(&mut self, now: i64) {
        while let Some(&(until, watch)) = self.ends.front().filter(|end| end.0 <= now) {
            self.ends.pop_front();
            let Some(viewed) = self.viewed.get_mut(&watch) else { continue };
            viewed.viewers.retain(|one| one.until > until);
            if viewed.viewers.is_empty() {
                self.viewed.remove(&watch);
            }
        }
    }

    /// A mount no longer remembers the object of a notice.
    fn end_invalidation(&mut self, number: u64, invalidation: &RemoteInvalidation) {
        let viewers = self.viewed.get_mut(&invalidation.watch).map(|viewed| &mut viewed.viewers);
        if let Some(one) = viewers.into_iter().flatten().find(|one| one.notice_sent == number) {
            (one.notice_sent, one.remembers_until) = (0, i64::MIN);
            if invalidation.is_of_owner {
                one.owner_until = i64::MIN;
            }
        }
    }

    /// A host is gone, with its mounts.
    pub(crate) fn host_gone(&mut self, host: u16) {
        self.invalidations.retain(|_, invalidation| invalidation.to.0 != host);
        for viewed in self.viewed.values_mut() {
            viewed.viewers.retain(|one| one.by.0 != host);
        }
    }

    /// A mount of this host has carried out all notices up to `done`.
    pub(crate) fn relayed_up_to(&mut self, mount: u8, done: u64, io: &mut Output) {
        if self.relayed.is_empty() {
            return;
        }
        self.relayed.retain(|&(known, from, number), own| {
            let is_done = known == mount && *own <= done;
            if is_done {
                io.send(from, &Message::NoticeDone { number });
            }
            !is_done
        });
    }

    fn relayed_count(&self, mount: u8) -> usize {
        let all = (mount, ShardIndex(0), 0)..=(mount, ShardIndex(u16::MAX), u64::MAX);
        self.relayed.range(all).count()
    }

    /// The service was taken over from another daemon.
    pub(crate) const fn follow_another_owner(&mut self) {
        self.is_after_another = true;
    }

    /// At a start: earlier records are unknown, if there can have been any (a service that lets a
    /// mount remember something has drawn a sequence number).
    pub(crate) fn begin_remote_mounts(&mut self, cx: &mut Context) {
        let is_first = cx.state.sequence_next == 0;
        let until =
            if is_first { i64::MIN } else { cx.steady.saturating_add(REMEMBERED_NANOS_MAX) };
        self.unknown_until = until;
        let is_remembered = self.is_after_another && cx.state.has_mounts;
        let until = cx.steady.saturating_add(REMEMBERED_NANOS_MAX);
        self.remembered_until = if is_remembered { until } else { i64::MIN };
    }

    /// True if kernels may remember something that the owner before this one let them: nothing is known
    /// of it here, so each change waits.
    pub(crate) fn may_be_remembered(&self, cx: &Context) -> bool {
        cx.steady < self.remembered_until
    }

    /// True if a mark in the host segment that mounts of other hosts remember something may be from
    /// before this start.
    pub(crate) fn may_be_watched_since_before(&self, cx: &Context) -> bool {
        cx.steady < self.unknown_until
    }

    /// Records that the requester's kernel sees attributes; true if it may remember them.
    pub(crate) fn may_stay(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        seen: &Attributes,
    ) -> bool {
        let (inode, host) = (seen.inode, call.header.host);
        let is_noted = self.note_view(cx, call, Watch::Attributes(inode));
        // Changes of a wide directory at other services are reported late.
        let is_wide = seen.is_directory() && spread::wide_below(seen.layout.spread) != 0;
        let is_written =
            || call.host_view.has_writer(inode) || !cx.writers_but(inode, host).is_empty();
        is_noted && seen.links != 0 && !is_wide && !is_written()
    }

    pub(crate) fn note_view(&mut self, cx: &mut Context, call: &Call<'_>, watch: Watch) -> bool {
        let now = cx.steady;
        let by = (call.header.host, call.header.mount);
        if cx.state.sequence_next == 0 {
            // For the next start (see `begin_remote_mounts`).
            cx.new_sequence();
        }
        let is_known = !self.may_be_watched_since_before(cx);
        let is_still = is_known && cx.keys.is_empty() && self.relay_of(cx, by.0).is_some();
        self.forget_ended(now);
        if self.ends.len() >= VIEWS_MAX {
            return false;
        }
        let viewed = self.viewed.entry(watch).or_default();
        let is_notified = viewed.viewers.iter().any(|one| one.notice_sent != 0);
        let may = is_still && !is_notified && viewed.quiet_until <= now;
        let remembers = may && call.host_view.watch_for_others(watch, REMEMBERED_NANOS_MAX);
        if remembers {
            cx.note_mounts();
        }
        let until = now.saturating_add(REMEMBERED_NANOS_MAX);
        let remembers_until = if remembers { until } else { i64::MIN };
        let new = Viewer { by, remembers_until, owner_until: until, until, notice_sent: 0 };
        match viewed.viewers.iter_mut().find(|one| one.by == by) {
            // An earlier permission to remember stays valid.
            Some(known) => {
                let remembers_until = remembers_until.max(known.remembers_until);
                *known = Viewer { remembers_until, notice_sent: known.notice_sent, ..new };
            }
            None => viewed.viewers.push(new),
        }
        self.ends.push_back((until, watch));
        remembers
    }

    /// A mount of another host moves an inode to a name: its kernel keeps what it remembers of the
    /// old name under the new one, as long as that is valid.
    pub(crate) fn note_move(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        parent: Inode,
        name: &[u8],
    ) {
        let by = (call.header.host, call.header.mount);
        if by.1 == 0 || by.0 == cx.config.host {
            return;
        }
        let watch = Watch::of_key(wire::hash::entry_key(parent, name));
        let until = cx.steady.saturating_add(REMEMBERED_NANOS_MAX);
        let _ = call.host_view.watch_for_others(watch, REMEMBERED_NANOS_MAX);
        let viewers = &mut self.viewed.entry(watch).or_default().viewers;
        viewers.retain(|one| one.by != by);
        // An earlier notice is not about this, whenever its acknowledgement arrives.
        let (remembers_until, owner_until, notice_sent) = (until, until, 0);
        viewers.push(Viewer { by, remembers_until, owner_until, until, notice_sent });
        self.ends.push_back((until, watch));
    }

    /// A shard of the first service of a host's first daemon.
    pub(crate) fn relay_of(&mut self, cx: &mut Context, host: u16) -> Option<ShardIndex> {
        let (map, workers) = (&cx.config.map, cx.config.workers);
        let relay = ServiceName { first: DaemonIndex(host), worker: 0 };
        let find = || {
            let mut shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
            shards.find(|&shard| map.service(shard, workers) == relay)
        };
        *self.relays.entry(host).or_insert_with(find)
    }

    /// Notifies mounts of other hosts that remember an object, except the requester's. True: the
    /// job has to wait for them.
    pub(crate) fn notify_remote_mounts(
        &mut self,
        cx: &mut Context,
        local: &mut LocalMounts,
        requester: Option<Mount>,
        what: &Changing<'_>,
    ) -> bool {
        let watch = what.watch();
        let now = cx.steady;
        let Some(viewed) = self.viewed.get_mut(&watch) else { return false };
        let is_of_owner = matches!(what, Changing::Owner(_));
        let (mut waits, mut unnotified) = (false, Vec::new());
        let others = viewed.viewers.iter().filter(|one| Some(one.by) != requester);
        let until = |one: &Viewer| match is_of_owner {
            true => one.owner_until.max(one.remembers_until),
            false => one.remembers_until,
        };
        for (one, until) in others.map(|one| (one, until(one))).filter(|(_, until)| *until > now) {
            waits = true;
            if one.notice_sent == 0 {
                unnotified.push((one.by, until));
            }
        }
        if waits {
            viewed.quiet_until = now.saturating_add(QUIET_NANOS);
        }
        for (to, until) in unnotified {
            let number = local.new_notice(cx);
            let resend = Resend::after(cx.now, RESEND_NANOS);
            let notice = encoded(&what.notice(number));
            let invalidation = RemoteInvalidation { to, watch, is_of_owner, notice, until, resend };
            self.send_invalidation(cx, number, &invalidation);
            cx.wake_at(resend.at);
            self.invalidations.insert(number, invalidation);
            let viewers = self.viewed.get_mut(&watch).map(|viewed| &mut viewed.viewers);
            let found = viewers.into_iter().flatten().find(|one| one.by == to);
            found.into_iter().for_each(|one| one.notice_sent = number);
        }
        waits
    }

    fn send_invalidation(
        &mut self,
        cx: &mut Context,
        number: u64,
        invalidation: &RemoteInvalidation,
    ) {
        let (from, (host, mount)) = (cx.address.0, invalidation.to);
        if let Some(to) = self.relay_of(cx, host) {
            cx.io.send(to, &Message::Notice { from, number, mount, notice: &invalidation.notice });
        }
    }

    /// A mount of another host has carried out a notice.
    pub(crate) fn carried(&mut self, cx: &mut Context, number: u64) {
        if let Some(invalidation) = self.invalidations.remove(&number) {
            self.end_invalidation(number, &invalidation);
            cx.wake(|wait| *wait == Wait::Invalidation);
        }
    }

    /// Relays a notice of another service to a mount of this host.
    pub(crate) fn relay(
        &mut self,
        cx: &mut Context,
        local: &mut LocalMounts,
        host_view: &dyn HostView,
        from: ShardIndex,
        (number, mount): (u64, u8),
        notice: &[u8],
    ) {
        let Ok(notice) = Notice::take(&mut Reader::new(notice)) else { return };
        if !host_view.has_mount(mount) {
            // The mount is gone, and its kernel caches with it.
            self.relayed.retain(|known, _| known.0 != mount);
            return cx.io.send(from, &Message::NoticeDone { number });
        }
        let key = (mount, from, number);
        if self.relayed.contains_key(&key) || self.relayed_count(mount) >= RELAYED_MAX {
            return;
        }
        let own = local.new_notice(cx);
        self.relayed.insert(key, own);
        local.queue_notice(cx, mount, &Notice { number: own, ..notice });
    }

    /// True if a mount of another host looked at a file and may be about to open it.
    pub(crate) fn was_viewed(&self, cx: &Context, inode: Inode) -> bool {
        let viewed = self.viewed.get(&Watch::Attributes(inode));
        let mut viewers = viewed.into_iter().flat_map(|viewed| &viewed.viewers);
        viewers.any(|one| one.until > cx.steady)
    }

    /// Timer: resends unanswered notices.
    pub(crate) fn tick_remote_mounts(&mut self, cx: &mut Context) {
        let (now, steady) = (cx.now, cx.steady);
        let mut all = core::mem::take(&mut self.invalidations);
        for (&number, one) in &mut all {
            if one.until <= steady {
                self.end_invalidation(number, one);
            } else if one.resend.is_due(now) {
                self.send_invalidation(cx, number, one);
            }
            cx.wake_at(one.resend.at);
        }
        all.retain(|_, one| one.until > steady);
        self.invalidations = all;
        self.forget_ended(steady);
    }
}
