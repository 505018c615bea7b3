//! Mounts of other hosts: what their kernels may remember of what this service decides, and how
//! they are told that it changes. What is so for mounts of this host, and who waits, is in
//! `mounts`.
//!
//! Such a mount asks by `Look`. In the step that answers it is noted here that it may remember the
//! answer for `SPAN` (the mount counts from when it asked, so what it counts is over first), and in
//! the host segment that somebody may, so that programs of this host leave changes of that to the
//! service.
//!
//! A notice goes to a service of the mount's host, which hands it on as its own (`relay`) and says
//! when it is carried out. Both are sent again until they are answered; nobody is waited for beyond
//! his time. While somebody is told, and for a moment afterwards, nobody is let remember the same
//! anew.
//!
//! Invariants
//! 1. What is noted in the step of an answer is found by each change that comes after it, or its time
//!    is over. After a restart nobody knows who looked at what: what the host segment says that somebody
//!    may remember does not change until that is over.
//! 2. What is under way by a transaction is let nobody remember.

use std::collections::{BTreeMap, VecDeque};

use wire::attributes::spread;
use wire::codec::Field;
use wire::reply::looked;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, Watch};
use wire::{Attributes, DaemonIndex, Errno, Inode, Reader, Reply, ShardIndex};

use crate::directory::RESEND_NANOS;
use crate::effect::Opens;
use crate::io::Io;
use crate::live::{Again, Ask, Step, Stop, Wait};
use crate::mounts::{Changing, encoded};
use crate::peer::Message;
use crate::service::Service;

/// How long a mount may remember, as this service counts.
const SPAN: i64 = VALID_NANOS + MARGIN_NANOS;
/// Looks that are noted at a time; what does not fit is not remembered.
const LOOKS_MAX: usize = 1 << 18;
/// After somebody was told of a change nobody remembers the same for so long: who changes something
/// often waits for others that often at most.
const QUIET_NANOS: i64 = 20_000_000;
/// Notices that wait for one mount of this host at a time; the sender of others tries again.
const RELAYED_MAX: usize = 4096;

/// Host and number of a mount.
type Mount = (u16, u8);

/// One mount looked at something.
#[derive(Clone, Copy, Debug)]
struct Looker {
    by: Mount,
    /// It may remember it until then.
    remembers_until: i64,
    /// Until then it is noted at all.
    until: i64,
    /// The number of the notice that it is told by, or 0.
    told: u64,
}

/// Who looked at one thing.
#[derive(Clone, Debug, Default)]
struct Looked {
    lookers: Vec<Looker>,
    /// Nobody is let remember it before.
    quiet_until: i64,
}

/// A notice under way.
#[derive(Clone, Debug)]
struct Telling {
    to: Mount,
    watch: Watch,
    notice: Vec<u8>,
    until: i64,
    again: Again,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FarMounts {
    looked: BTreeMap<Watch, Looked>,
    /// When looks are over, in order.
    ends: VecDeque<(i64, Watch)>,
    telling: BTreeMap<u64, Telling>,
    /// Until then what the host segment says may be of before this start.
    unknown_until: i64,
    /// A shard of each host, where notices for its mounts go.
    relays: BTreeMap<u16, Option<ShardIndex>>,
    /// Notices of others for mounts of this host: mount, sender, and his number; with ours.
    relayed: BTreeMap<(u8, ShardIndex, u64), u64>,
}

impl FarMounts {
    fn forget_ended(&mut self, now: i64) {
        while let Some(&(until, watch)) = self.ends.front().filter(|end| end.0 <= now) {
            self.ends.pop_front();
            let Some(looked) = self.looked.get_mut(&watch) else { continue };
            looked.lookers.retain(|one| one.until > until);
            if looked.lookers.is_empty() {
                self.looked.remove(&watch);
            }
        }
    }

    /// A mount remembers no longer what it was told of.
    fn end_telling(&mut self, number: u64, watch: Watch) {
        let lookers = self.looked.get_mut(&watch).map(|looked| &mut looked.lookers);
        if let Some(one) = lookers.into_iter().flatten().find(|one| one.told == number) {
            (one.told, one.remembers_until) = (0, i64::MIN);
        }
    }

    /// A host is gone, with its mounts.
    pub(crate) fn host_gone(&mut self, host: u16) {
        self.telling.retain(|_, telling| telling.to.0 != host);
        for looked in self.looked.values_mut() {
            looked.lookers.retain(|one| one.by.0 != host);
        }
    }

    /// A mount of this host has carried out all notices up to `done`.
    pub(crate) fn relayed_up_to(&mut self, mount: u8, done: u64, io: &mut Io) {
        if self.relayed.is_empty() {
            return;
        }
        self.relayed.retain(|&(known, from, number), own| {
            let is_done = known == mount && *own <= done;
            if is_done {
                io.send(from, &Message::Carried { number });
            }
            !is_done
        });
    }

    fn relayed_count(&self, mount: u8) -> usize {
        let all = (mount, ShardIndex(0), 0)..=(mount, ShardIndex(u16::MAX), u64::MAX);
        self.relayed.range(all).count()
    }
}

impl Service {
    /// At a start: who looked before is unknown, if anybody can have. (Who lets somebody remember
    /// something has drawn a number.)
    pub(crate) fn begin_far_mounts(&mut self) {
        let is_first = self.state.sequence_next == 0;
        let until = if is_first { i64::MIN } else { self.live.steady.saturating_add(SPAN) };
        self.live.far_mounts.unknown_until = until;
    }

    /// The host segment says that mounts of other hosts may remember something. True: it may have been
    /// said before this start.
    pub(crate) fn may_be_watched_since_before(&self) -> bool {
        self.live.steady < self.live.far_mounts.unknown_until
    }

    /// A mount of another host looks at a name, or without one at an inode.
    pub(crate) fn look_for_mount(&mut self, ask: &Ask<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        if ask.header.mount == 0 || ask.header.host == self.config.host {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let entry = match name {
            [] => Some((inode, 0)),
            name => self.state.entries.get(inode, name),
        };
        let mut seen = Attributes::default();
        let mut may = 0;
        if let Some((found, mode)) = entry {
            seen = Attributes { inode: found, mode, ..seen };
            if self.config.owns(found.shard()) {
                self.settle_size(ask, found)?;
                seen = self.quiet_attributes(found)?;
                may |= looked::ATTRIBUTES;
            }
        }
        // From here on it stops nowhere.
        if !name.is_empty() {
            let watch = Watch::of_key(wire::hash::entry_key(inode, name));
            may |= if self.note_look(ask, watch) { looked::NAME_STAYS } else { 0 };
        }
        if may & looked::ATTRIBUTES != 0 && self.may_stay(ask, &seen) {
            may |= looked::ATTRIBUTES_STAY;
        }
        self.io.reply(ask.ticket, &Reply::Looked { may, attributes: seen });
        Ok(())
    }

    /// Notes that the asker's kernel looks at attributes; true if it may remember them.
    fn may_stay(&mut self, ask: &Ask<'_>, seen: &Attributes) -> bool {
        let (inode, host) = (seen.inode, ask.header.host);
        let is_noted = self.note_look(ask, Watch::Attributes(inode));
        // What happens to a wide directory elsewhere is told late.
        let is_wide = seen.is_directory() && seen.layout.spread == spread::WIDE;
        let is_written =
            || ask.hands.has_writer(inode) || self.writers_but(inode, host).next().is_some();
        is_noted && seen.links != 0 && !is_wide && !is_written()
    }

    fn note_look(&mut self, ask: &Ask<'_>, watch: Watch) -> bool {
        let now = self.live.steady;
        let by = (ask.header.host, ask.header.mount);
        if self.state.sequence_next == 0 {
            // For the next start.
            self.new_sequence();
        }
        let is_known = !self.may_be_watched_since_before();
        let is_still = is_known && self.live.keys.is_empty() && self.relay_of(by.0).is_some();
        let far = &mut self.live.far_mounts;
        far.forget_ended(now);
        if far.ends.len() >= LOOKS_MAX {
            return false;
        }
        let looked = far.looked.entry(watch).or_default();
        let is_told = looked.lookers.iter().any(|one| one.told != 0);
        let may = is_still && !is_told && looked.quiet_until <= now;
        let remembers = may && ask.hands.watch_for_others(watch, SPAN);
        let until = now.saturating_add(SPAN);
        let remembers_until = if remembers { until } else { i64::MIN };
        let new = Looker { by, remembers_until, until, told: 0 };
        match looked.lookers.iter_mut().find(|one| one.by == by) {
            // What it was let remember before, it may still.
            Some(known) => {
                let remembers_until = remembers_until.max(known.remembers_until);
                *known = Looker { remembers_until, told: known.told, ..new };
            }
            None => looked.lookers.push(new),
        }
        far.ends.push_back((until, watch));
        remembers
    }

    /// A mount of another host moves something to a name: its kernel takes what it remembers of the old
    /// name along, as long as it may remember that.
    pub(crate) fn note_move(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) {
        let by = (ask.header.host, ask.header.mount);
        if by.1 == 0 || by.0 == self.config.host {
            return;
        }
        let watch = Watch::of_key(wire::hash::entry_key(parent, name));
        let until = self.live.steady.saturating_add(SPAN);
        let _ = ask.hands.watch_for_others(watch, SPAN);
        let far = &mut self.live.far_mounts;
        let lookers = &mut far.looked.entry(watch).or_default().lookers;
        lookers.retain(|one| one.by != by);
        // What it was told before is not about this, whenever it says that it has carried it out.
        lookers.push(Looker { by, remembers_until: until, until, told: 0 });
        far.ends.push_back((until, watch));
    }

    /// A shard of a host's first daemon.
    pub(crate) fn relay_of(&mut self, host: u16) -> Option<ShardIndex> {
        let map = &self.config.map;
        let find = || {
            let mut shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
            shards.find(|&shard| map.owner(shard) == DaemonIndex(host))
        };
        *self.live.far_mounts.relays.entry(host).or_insert_with(find)
    }

    /// Tells mounts of other hosts that remember something, but the asker. True: they are to be waited
    /// for.
    pub(crate) fn tell_far_mounts(&mut self, asker: Option<Mount>, what: &Changing<'_>) -> bool {
        let watch = what.watch();
        let now = self.live.steady;
        let Some(looked) = self.live.far_mounts.looked.get_mut(&watch) else { return false };
        let (mut waits, mut untold) = (false, Vec::new());
        let others = looked.lookers.iter().filter(|one| Some(one.by) != asker);
        for one in others.filter(|one| one.remembers_until > now) {
            waits = true;
            if one.told == 0 {
                untold.push((one.by, one.remembers_until));
            }
        }
        if waits {
            looked.quiet_until = now.saturating_add(QUIET_NANOS);
        }
        for (to, until) in untold {
            let number = self.new_notice();
            let again = Again::after(self.live.now, RESEND_NANOS);
            let notice = encoded(&what.notice(number));
            let telling = Telling { to, watch, notice, until, again };
            self.send_telling(number, &telling);
            self.live.wake_at(again.at);
            let far = &mut self.live.far_mounts;
            far.telling.insert(number, telling);
            let lookers = far.looked.get_mut(&watch).map(|looked| &mut looked.lookers);
            let found = lookers.into_iter().flatten().find(|one| one.by == to);
            found.into_iter().for_each(|one| one.told = number);
        }
        waits
    }

    fn send_telling(&mut self, number: u64, telling: &Telling) {
        let (from, (host, mount)) = (self.live.address.0, telling.to);
        if let Some(to) = self.relay_of(host) {
            self.io.send(to, &Message::Tell { from, number, mount, notice: &telling.notice });
        }
    }

    /// Another service has something to tell a mount of this host, or one of its was told.
    pub(crate) fn take_word_of_mounts(&mut self, hands: &dyn Opens, word: &Message<'_>) {
        match *word {
            Message::Tell { from, number, mount, notice } => {
                self.relay(hands, ShardIndex(from), (number, mount), notice);
            }
            Message::Carried { number } => {
                self.carried(number);
                self.pages_carried(number);
            }
            _ => {}
        }
    }

    /// A mount of another host has carried out what it was told.
    fn carried(&mut self, number: u64) {
        if let Some(telling) = self.live.far_mounts.telling.remove(&number) {
            self.live.far_mounts.end_telling(number, telling.watch);
            self.live.wake(|wait| *wait == Wait::Mounts);
        }
    }

    /// Another service has something to tell a mount of this host.
    fn relay(
        &mut self,
        hands: &dyn Opens,
        from: ShardIndex,
        (number, mount): (u64, u8),
        notice: &[u8],
    ) {
        let far = &mut self.live.far_mounts;
        let Ok(notice) = Notice::take(&mut Reader::new(notice)) else { return };
        if !hands.has_mount(mount) {
            // Its kernel asks nobody any more.
            far.relayed.retain(|known, _| known.0 != mount);
            return self.io.send(from, &Message::Carried { number });
        }
        let key = (mount, from, number);
        if far.relayed.contains_key(&key) || far.relayed_count(mount) >= RELAYED_MAX {
            return;
        }
        let own = self.new_notice();
        self.live.far_mounts.relayed.insert(key, own);
        self.queue_notice(mount, &Notice { number: own, ..notice });
    }

    /// True if a mount of another host looked at a file and may be about to open it.
    pub(crate) fn is_looked_at(&self, inode: Inode) -> bool {
        let looked = self.live.far_mounts.looked.get(&Watch::Attributes(inode));
        let mut lookers = looked.into_iter().flat_map(|looked| &looked.lookers);
        lookers.any(|one| one.until > self.live.steady)
    }

    /// What time brings: who was told and did not answer is told again.
    pub(crate) fn keep_far_mounts(&mut self) {
        let (now, steady) = (self.live.now, self.live.steady);
        let mut telling = core::mem::take(&mut self.live.far_mounts.telling);
        for (&number, one) in &mut telling {
            if one.until <= steady {
                self.live.far_mounts.end_telling(number, one.watch);
            } else if one.again.is_due(now) {
                self.send_telling(number, one);
            }
            self.live.wake_at(one.again.at);
        }
        telling.retain(|_, one| one.until > steady);
        let far = &mut self.live.far_mounts;
        far.telling = telling;
        far.forget_ended(steady);
    }
}
