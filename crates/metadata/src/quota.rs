//! Quotas on the side that uses: what this service, and the target beside it, may have in use for an
//! account of which something is limited. Where nothing is limited one look at an empty table is all.
//!
//! For each account and resource there is a *purse*: usage may grow up to its allowance without asking.
//! Who needs more asks the coordinator (`bank`), which answers with another allowance, or denies. What is
//! not used it collects again when somebody else needs it.
//!
//! Invariants
//! 1. Usage grows to its allowance and no further, except by root and by files that change owners.
//! 2. What the coordinator has in its books for this purse is no less than the allowance. So an allowance
//!    that was sent before a collection and comes after it does not count (`Purse::floor`), nor does one
//!    for an earlier life of this service (`Asked::token`).

use std::collections::BTreeMap;

use wire::attributes::ATTRIBUTES_BYTES;
use wire::codec::Writer;
use wire::quota::{Account, Owner};
use wire::request::removed;
use wire::{DaemonIndex, Errno, Reply, ShardIndex};

use crate::coding::Put;
use crate::directory::RESEND_NANOS;
use crate::effect::{Effect, Opens};
use crate::live::{Ask, Fact, Step, Stop, Wait};
use crate::peer::Message;
use crate::record::Record;
use crate::service::Service;
use crate::usage::{limit_of, limits, resource};

/// Accounts in one message about usage.
const USAGES_MAX: usize = 1024;
/// The worker beside whose service a daemon's target is.
const WORKER_OF_TARGET: usize = placement::map::WORKER_OF_TARGET;

/// A question for more.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    wanted: u64,
    sent: i64,
}

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
struct Purse {
    allowance: u64,
    /// Of the coordinator's words the last that took something away.
    floor: u64,
    asked: Option<Asked>,
}

/// All purses of a service, by account and resource.
#[derive(Default)]
pub(crate) struct Purses(BTreeMap<(u64, u8), Purse>);

impl Service {
    /// Sends a word about quotas to the service of a group, this one included.
    pub(crate) fn tell_service(&mut self, group: u32, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        if group == self.config.own_group().0 {
            return self.live.own_messages.push_back(bytes);
        }
        let (to, worker) = (DaemonIndex((group >> 8) as u16), group as u8);
        self.io.push(Effect::Service { to, worker, bytes });
    }

    fn is_limited(&self, account: u64, kind: u8) -> bool {
        let known = self.state.limited.get(&account);
        known.is_some_and(|limited| limited.flags & limit_of(kind) != 0)
    }

    /// True if targets count what they hold by accounts.
    pub(crate) fn counts_space(&self) -> bool {
        self.state.limited.contains_key(&Account::ALL.0)
    }

    /// True if the target is beside this service.
    fn has_target(&self) -> bool {
        self.config.worker == WORKER_OF_TARGET
    }

    fn used(&self, account: u64, kind: u8, hands: &dyn Opens) -> u64 {
        match kind {
            resource::INODES => self.state.usage.of(account).inodes,
            resource::INLINE => self.state.usage.of(account).bytes,
            _ if self.has_target() => hands.space_used(account),
            _ => 0,
        }
    }

    fn allowance(&self, account: u64, kind: u8) -> u64 {
        self.live.purses.0.get(&(account, kind)).map_or(0, |purse| purse.allowance)
    }

    /// May an inode more be in use? Goes on when it may; root is not asked.
    pub(crate) fn draw_inode(&mut self, ask: &Ask<'_>, owner: Owner) -> Step<()> {
        if self.state.limited.is_empty() || ask.header.who.uid == 0 {
            return Ok(());
        }
        self.draw(ask, owner, resource::INODES, 1)
    }

    /// May so many bytes of inline contents more be in use?
    pub(crate) fn draw_inline(&mut self, ask: &Ask<'_>, owner: Owner, bytes: u64) -> Step<()> {
        if self.state.limited.is_empty() || bytes == 0 {
            return Ok(());
        }
        self.draw(ask, owner, resource::INLINE, bytes)
    }

    fn draw(&mut self, ask: &Ask<'_>, owner: Owner, kind: u8, amount: u64) -> Step<()> {
        for Account(account) in owner.accounts() {
            if !self.is_limited(account, kind) {
                continue;
            }
            let used = self.used(account, kind, ask.hands);
            if used.saturating_add(amount) <= self.allowance(account, kind) {
                continue;
            }
            if ask.facts.contains(&Fact::Denied(account, kind)) {
                return Err(Stop::Refused(Errno::EDQUOT));
            }
            let token = self.ask_for_more((account, kind), used, amount);
            return Err(Stop::Wait(Wait::Share(token)));
        }
        Ok(())
    }

    /// The target needs so many bytes more for an account than it may have in use.
    pub(crate) fn draw_space(&mut self, account: u64, wanted: u64, hands: &dyn Opens) {
        if !hands.is_counted() {
            // It asks again when it knows what is used.
            return;
        }
        let used = self.used(account, resource::SPACE, hands);
        let allowance = self.allowance(account, resource::SPACE);
        let is_limited = self.is_limited(account, resource::SPACE);
        if !is_limited || used.saturating_add(wanted) <= allowance {
            return self.allow_target(account, false);
        }
        self.ask_for_more((account, resource::SPACE), used, wanted);
    }

    /// Asks the coordinator for more, unless it is being asked.
    fn ask_for_more(&mut self, key: (u64, u8), used: u64, wanted: u64) -> u64 {
        if let Some(asked) = self.live.purses.0.get(&key).and_then(|purse| purse.asked) {
            return asked.token;
        }
        let asked = Asked { token: self.new_sequence(), wanted, sent: self.live.now };
        self.live.purses.0.entry(key).or_default().asked = Some(asked);
        self.send_draw(key, used, &asked);
        asked.token
    }

    fn send_draw(&mut self, (account, kind): (u64, u8), used: u64, asked: &Asked) {
        let group = self.config.own_group().0;
        let &Asked { token, wanted, .. } = asked;
        let message = Message::Draw { group, token, account, resource: kind, used, wanted };
        self.tell_service(self.config.group(ShardIndex(0)).0, &message);
        self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
    }

    /// Tells the target what it may have in use.
    fn allow_target(&mut self, account: u64, denied: bool) {
        let allowance = match self.is_limited(account, resource::SPACE) {
            true => Some(self.allowance(account, resource::SPACE)),
            false => None,
        };
        if self.has_target() {
            self.io.push(Effect::Allow { account, allowance, denied });
        }
    }

    /// At a start: the target counts as it did, and nothing is allowed beyond what is used.
    pub(crate) fn begin_quotas(&mut self) {
        if !self.has_target() {
            return;
        }
        if self.state.limited.contains_key(&Account::ALL.0) {
            self.io.push(Effect::Count);
        }
        let accounts: Vec<u64> = self.state.limited.keys().copied().collect();
        for account in accounts {
            if self.is_limited(account, resource::SPACE) {
                self.allow_target(account, false);
            }
        }
    }

    /// A word about quotas came.
    pub(crate) fn take_quota(&mut self, message: &Message<'_>, hands: &dyn Opens) {
        match *message {
            Message::Limit { number, account, flags } => {
                self.limit(number, account, flags, hands);
            }
            Message::Drawn { token, number, account, resource: kind, allowance, granted } => {
                self.drawn(token, number, (account, kind), allowance, granted != 0);
            }
            Message::Collect { number, account, limit, trims } => {
                self.collect(number, account, limit, trims != 0, hands);
            }
            Message::AskUsage { token, from } => self.tell_usage(token, from, hands),
            _ => self.take_at_bank(message),
        }
    }

    /// What is limited of an account from now on: allowances begin with what is used.
    fn limit(&mut self, number: u64, account: u64, flags: u8, hands: &dyn Opens) {
        let known = self.state.limited.get(&account).copied();
        if known.is_none_or(|known| known.number < number) {
            self.put(&Record::PutLimited { account, number, flags });
            for kind in resource::ALL {
                self.begin_purse(number, (account, kind), hands);
            }
        }
        if self.has_target() && flags & limits::COUNTED != 0 {
            self.io.push(Effect::Count);
        }
        let waits_for_target = flags & (limits::COUNTED | limits::SPACE) != 0;
        if self.has_target() && waits_for_target && !hands.is_counted() {
            // Asked again until it has looked at all that it holds.
            return;
        }
        let may = |kind| self.allowance(account, kind).max(self.used(account, kind, hands));
        let [inodes, inline, space] = resource::ALL.map(may);
        let group = self.config.own_group().0;
        let message = Message::Limited { group, number, account, inodes, inline, space };
        self.tell_service(self.config.group(ShardIndex(0)).0, &message);
    }

    fn begin_purse(&mut self, number: u64, key: (u64, u8), hands: &dyn Opens) {
        let (account, kind) = key;
        let asked = self.live.purses.0.get(&key).and_then(|purse| purse.asked);
        if self.is_limited(account, kind) {
            let allowance = self.used(account, kind, hands);
            self.live.purses.0.insert(key, Purse { allowance, floor: number, asked });
        } else {
            self.live.purses.0.remove(&key);
            if let Some(asked) = asked {
                self.live.wake(|wait| *wait == Wait::Share(asked.token));
            }
        }
        if kind == resource::SPACE {
            self.allow_target(account, false);
        }
    }

    /// The coordinator answered.
    fn drawn(&mut self, token: u64, number: u64, key: (u64, u8), allowance: u64, is_granted: bool) {
        let Some(purse) = self.live.purses.0.get_mut(&key) else { return };
        if purse.asked.is_none_or(|asked| asked.token != token) || number < purse.floor {
            return;
        }
        purse.asked = None;
        purse.allowance = allowance;
        if !is_granted {
            for job in self.live.jobs.values_mut() {
                if job.wait == Wait::Share(token) {
                    job.facts.push(Fact::Denied(key.0, key.1));
                }
            }
        }
        self.live.wake(|wait| *wait == Wait::Share(token));
        if key.1 == resource::SPACE {
            self.allow_target(key.0, !is_granted);
        }
    }

    /// Says what is used, and gives back what is not, if that is wanted.
    fn collect(&mut self, number: u64, account: u64, limit: u8, trims: bool, hands: &dyn Opens) {
        if limit == limits::SPACE && self.has_target() && !hands.is_counted() {
            // It has more in use than it knows. What it may have stays.
            return;
        }
        if trims {
            // Before somebody is denied.
            self.give_kept();
        }
        let is_freeing = !self.state.removals.is_empty() || self.is_freeing();
        let mut told = [(0, 0); resource::ALL.len()];
        for (kind, told) in resource::ALL.into_iter().zip(&mut told) {
            if limit_of(kind) != limit {
                continue;
            }
            let used = self.used(account, kind, hands);
            if trims {
                let purse = self.live.purses.0.entry((account, kind)).or_default();
                purse.floor = purse.floor.max(number);
                purse.allowance = purse.allowance.min(used);
                if kind == resource::SPACE {
                    self.allow_target(account, false);
                }
            }
            *told = (used, self.allowance(account, kind).max(used));
        }
        let [inodes, inline, space] = told;
        let (first, second) =
            if limit == limits::INODES { (inodes, (0, 0)) } else { (inline, space) };
        let message = Message::Collected {
            group: self.config.own_group().0,
            number,
            account,
            limit,
            used: first.0,
            may: first.1,
            space_used: second.0,
            space_may: second.1,
            freeing: u8::from(is_freeing),
        };
        self.tell_service(self.config.group(ShardIndex(0)).0, &message);
    }

    /// Usage of accounts from `from` on.
    fn tell_usage(&mut self, token: u64, from: u64, hands: &dyn Opens) {
        if self.has_target() && !hands.is_counted() {
            // Asked again.
            return;
        }
        let mut rows: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let own = self.state.usage.iter_from(from).take(USAGES_MAX + 1);
        rows.extend(own.map(|(account, used)| (account, (used.inodes, used.bytes))));
        if self.has_target() {
            hands.each_space(&mut |account, bytes| {
                if account >= from {
                    rows.entry(account).or_default().1 += bytes;
                }
            });
        }
        // Those up to there are all.
        let end = rows.keys().nth(USAGES_MAX).copied().unwrap_or(u64::MAX);
        let mut encoded = Vec::new();
        for (account, (inodes, space)) in rows.range(..end) {
            account.append_to(&mut encoded);
            inodes.append_to(&mut encoded);
            space.append_to(&mut encoded);
        }
        let group = self.config.own_group().0;
        let message = Message::AreUsages { group, token, end, rows: &encoded };
        self.tell_service(self.config.group(ShardIndex(0)).0, &message);
    }

    /// What was asked and not answered is asked again.
    pub(crate) fn keep_purses(&mut self, hands: &dyn Opens) {
        let now = self.live.now;
        let late = |purse: &Purse| {
            purse.asked.filter(|asked| asked.sent.saturating_add(RESEND_NANOS) <= now)
        };
        let purses = self.live.purses.0.iter();
        let again: Vec<_> = purses.filter_map(|(&key, purse)| Some((key, late(purse)?))).collect();
        for (key, asked) in again {
            if let Some(asked) = self.live.purses.0.get_mut(&key).and_then(|one| one.asked.as_mut())
            {
                asked.sent = now;
            }
            self.send_draw(key, self.used(key.0, key.1, hands), &asked);
        }
        if self.live.purses.0.values().any(|purse| purse.asked.is_some()) {
            self.live.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }

    /// Accounts that may not make files by posts, `room` of which may come before this is asked again:
    /// they have less left, or the first piece of such a file would not be asked for.
    pub fn each_tight(&self, room: u64, each: &mut dyn FnMut(Account)) {
        for (&account, limited) in &self.state.limited {
            let left = || {
                let used = self.state.usage.of(account).inodes;
                self.allowance(account, resource::INODES).saturating_sub(used)
            };
            let is_tight = limited.flags & limits::SPACE != 0
                || limited.flags & limits::INODES != 0 && left() < room;
            if is_tight {
                each(Account(account));
            }
        }
    }

    /// Inodes of an account, and bytes of their inline contents, in this service.
    #[must_use]
    pub fn usage_of(&self, account: Account) -> (u64, u64) {
        let used = self.state.usage.of(account.0);
        (used.inodes, used.bytes)
    }

    /// True if something of some account may be limited.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.state.limited.is_empty()
    }

    /// Tells whose files are.
    pub(crate) fn tell_owners(&mut self, ask: &Ask<'_>, inodes: &[u8]) -> Step<()> {
        let mut bytes = vec![0; inodes.len() / 8 * Owner::BYTES];
        let mut writer = Writer::new(&mut bytes);
        for inode in removed(inodes) {
            let found = self.state.inodes.get(inode).map(|node| &node.attributes);
            let owner = found.map_or(Owner::GONE, |found| found.owner());
            writer.u32(owner.uid);
            writer.u32(owner.project);
            writer.u64(found.map_or(0, |found| found.changed.cast_unsigned()));
        }
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
        Ok(())
    }
}

/// Owners are told from attributes.
const _: () = assert!(Owner::BYTES < ATTRIBUTES_BYTES);
