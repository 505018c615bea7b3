//! Quotas on the side that decides: the service of shard 0 keeps the limits of all accounts, and in its
//! books how much each service may have in use (`quota`). What the books say of one account is never
//! more than its limit, so the limit holds whatever is lost or restarts.
//!
//! Who asks for more gets what it needs and a part of what is left: large shares far from the limit, one
//! unit close to it. If too little is left, all services are asked to give back what they do not use (a
//! *round*), and only then somebody is denied.
//!
//! Invariants
//! 1. The shares of an account are at most its limit, unless they are what is in use already.
//! 2. A share in the log is no less than what its service may use: it is put before an allowance is sent,
//!    and made less only when the service has said that it uses no more. While it may say so, nothing is
//!    granted: an answer is never about an older allowance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::codec::Field;
use wire::quota::{Account, Limits, ROWS_MAX, Row};
use wire::{Errno, Reader, Reply, Request, ShardIndex};

use crate::config::Group;
use crate::directory::RESEND_NANOS;
use crate::live::{Again, Ask, Fact, Step, Stop, Wait};
use crate::peer::Message;
use crate::record::Record;
use crate::service::Service;
use crate::usage::{Quota, ShareKey, limit_of, limits, resource};

/// How long a service that does not answer is waited for before somebody is denied: longer than a busy
/// daemon takes. What it has is not given to others.
const ROUND_NANOS: i64 = 1_000_000_000;
/// While space is on its way back somebody is not denied for so long,
const FREEING_NANOS: i64 = 1_000_000_000;
/// and this is when it is looked at again.
const FREEING_PAUSE_NANOS: i64 = 2_000_000;
/// How often it is looked whether soft limits are exceeded.
const POLL_NANOS: i64 = 500_000_000;

/// Somebody wants more.
#[derive(Clone, Copy, Debug)]
struct Asker {
    group: u32,
    token: u64,
    account: u64,
    resource: u8,
    used: u64,
    wanted: u64,
    since: i64,
    again_at: i64,
    /// A round is over, and whether space is on its way back.
    collected: Option<bool>,
}

impl Asker {
    const fn key(&self) -> ShareKey {
        (self.account, self.resource, self.group)
    }
}

/// What is not used is being given back.
#[derive(Debug)]
struct Round {
    number: u64,
    left: BTreeSet<u32>,
    is_freeing: bool,
    begun: i64,
    sent: i64,
}

/// Services are told what is limited.
#[derive(Debug)]
struct Spread {
    left: BTreeSet<u32>,
    again: Again,
}

/// Usage is being asked for.
#[derive(Debug)]
struct Gathering {
    from: u64,
    left: BTreeSet<u32>,
    /// Inodes and bytes by account.
    rows: BTreeMap<u64, (u64, u64)>,
    end: u64,
    sent: i64,
}

/// What the coordinator has under way.
#[derive(Default)]
pub(crate) struct Bank {
    askers: VecDeque<Asker>,
    rounds: BTreeMap<(u64, u8), Round>,
    spreads: BTreeMap<u64, Spread>,
    /// What services said that they use.
    used: BTreeMap<ShareKey, u64>,
    gatherings: BTreeMap<u64, Gathering>,
    polled: i64,
}

impl Service {
    fn all_groups(&self) -> BTreeSet<u32> {
        let daemons = 0..self.config.map.daemon_count();
        let workers = self.config.workers;
        let group = |daemon, worker| Group::new(wire::DaemonIndex(daemon), worker).0;
        daemons.flat_map(|one| (0..workers).map(move |worker| group(one, worker))).collect()
    }

    fn is_bank(&self) -> bool {
        self.config.owns(ShardIndex(0))
    }

    /// At a start: who may not know of limits is told again.
    pub(crate) fn begin_bank(&mut self) {
        let unknown = self.state.quotas.iter().filter(|(_, quota)| !quota.is_known);
        let unknown: Vec<u64> = unknown.map(|(&account, _)| account).collect();
        unknown.into_iter().for_each(|account| self.spread(account));
        self.live.wake_at(self.live.now);
    }

    /// `Request::SetQuota`.
    pub(crate) fn set_quota(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::SetQuota { account, space_soft, space_hard, inodes_soft, inodes_hard, grace } =
            *request
        else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let who = &ask.header.who;
        if who.uid != 0 && who.uid != self.config.root_uid {
            return Err(Stop::Refused(Errno::EPERM));
        }
        let is_above = |soft: u64, hard: u64| hard != 0 && soft > hard;
        if Account(account) == Account::user(0)
            || !Account(account).is_valid()
            || is_above(space_soft, space_hard)
            || is_above(inodes_soft, inodes_hard)
        {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let limits = Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace };
        let old = self.state.quotas.get(&account).copied();
        if old.map_or(Limits::default(), |old| old.limits) != limits {
            self.put_limits(account, old, limits);
        }
        let is_known = |account| self.state.quotas.get(&account).is_none_or(|one| one.is_known);
        if !is_known(account) || (limits.limits_space() && !is_known(Account::ALL.0)) {
            return Err(Stop::Wait(Wait::Limits));
        }
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    fn put_limits(&mut self, account: u64, old: Option<Quota>, limits: Limits) {
        if limits.limits_space() {
            self.count_all();
        }
        let number = self.new_number_of_bank();
        let (space_since, inodes_since) =
            old.map_or((0, 0), |old| (old.space_since, old.inodes_since));
        let quota = Quota { number, limits, space_since, inodes_since, is_known: false };
        self.put(&quota.record(account));
        for kind in resource::ALL {
            if quota.flags() & limit_of(kind) == 0 {
                self.drop_shares(account, kind);
            }
        }
        self.spread(account);
    }

    fn drop_shares(&mut self, account: u64, kind: u8) {
        let keys: Vec<ShareKey> = self.shares(account, kind).map(|(key, _)| key).collect();
        for (account, resource, group) in keys {
            self.put(&Record::PutShare { account, resource, group, amount: 0 });
        }
    }

    /// All targets count from now on.
    fn count_all(&mut self) {
        let all = Account::ALL.0;
        if !self.state.quotas.contains_key(&all) {
            let number = self.new_number_of_bank();
            let limits = Limits::default();
            let quota = Quota { number, limits, space_since: 0, inodes_since: 0, is_known: false };
            self.put(&quota.record(all));
            self.spread(all);
        }
    }

    /// 0 is no number.
    fn new_number_of_bank(&mut self) -> u64 {
        self.new_sequence() + 1
    }

    fn spread(&mut self, account: u64) {
        let left = self.all_groups();
        let again = Again::after(self.live.now, RESEND_NANOS);
        self.live.bank.spreads.insert(account, Spread { left, again });
        self.send_limit(account);
    }

    fn send_limit(&mut self, account: u64) {
        let Some(quota) = self.state.quotas.get(&account).copied() else { return };
        let Some(spread) = self.live.bank.spreads.get(&account) else { return };
        let (number, at) = (quota.number, spread.again.at);
        let counted = if account == Account::ALL.0 { limits::COUNTED } else { 0 };
        let message = Message::Limit { number, account, flags: quota.flags() | counted };
        for group in spread.left.clone() {
            self.tell_service(group, &message);
        }
        self.live.wake_at(at);
    }

    /// A service knows what is limited, and says what it may have in use.
    fn limited(&mut self, group: u32, number: u64, account: u64, may: [u64; 3]) {
        let Some(quota) = self.state.quotas.get(&account).copied() else { return };
        let Some(spread) = self.live.bank.spreads.get_mut(&account) else { return };
        if quota.number != number || !spread.left.remove(&group) {
            return;
        }
        let is_over = spread.left.is_empty();
        for (kind, may) in resource::ALL.into_iter().zip(may) {
            if quota.flags() & limit_of(kind) != 0 {
                self.put_share((account, kind, group), may);
            }
        }
        if !is_over {
            return;
        }
        self.live.bank.spreads.remove(&account);
        self.put(&Quota { is_known: true, ..quota }.record(account));
        self.live.wake(|wait| *wait == Wait::Limits);
        self.serve(account, limits::INODES);
        self.serve(account, limits::SPACE);
    }

    fn put_share(&mut self, key: ShareKey, amount: u64) {
        let (account, resource, group) = key;
        if self.state.shares.get(&key).copied().unwrap_or(0) != amount {
            self.put(&Record::PutShare { account, resource, group, amount });
        }
    }

    fn shares(&self, account: u64, kind: u8) -> impl Iterator<Item = (ShareKey, u64)> + '_ {
        let shares = self.state.shares.range((account, kind, 0)..=(account, kind, u32::MAX));
        shares.map(|(&key, &amount)| (key, amount))
    }

    /// What comes under a limit in the books.
    fn sum_of_shares(&self, account: u64, limit: u8) -> u64 {
        let kinds = resource::ALL.into_iter().filter(|&kind| limit_of(kind) == limit);
        let amounts = kinds.flat_map(|kind| self.shares(account, kind)).map(|(_, amount)| amount);
        amounts.fold(0, u64::saturating_add)
    }

    /// A word for the coordinator came.
    pub(crate) fn take_at_bank(&mut self, message: &Message<'_>) {
        if !self.is_bank() {
            return;
        }
        match *message {
            Message::Limited { group, number, account, inodes, inline, space } => {
                self.limited(group, number, account, [inodes, inline, space]);
            }
            Message::Draw { group, token, account, resource, used, wanted } => {
                let (since, again_at) = (self.live.now, i64::MIN);
                self.asked(Asker {
                    group,
                    token,
                    account,
                    resource,
                    used,
                    wanted,
                    since,
                    again_at,
                    collected: None,
                });
            }
            Message::Collected { .. } => self.collected(message),
            Message::AreUsages { group, token, end, rows } => {
                self.gathered(group, token, end, rows);
            }
            _ => {}
        }
    }

    fn asked(&mut self, asker: Asker) {
        let limit = limit_of(asker.resource);
        self.live.bank.used.insert(asker.key(), asker.used);
        let quota = self.state.quotas.get(&asker.account);
        if quota.is_none_or(|quota| quota.flags() & limit == 0) {
            // It will hear that it is not limited any more.
            return;
        }
        let share = self.state.shares.get(&asker.key()).copied().unwrap_or(0);
        if asker.used > share {
            // Root's doing, or that of who changed owners.
            self.put_share(asker.key(), asker.used);
        }
        let askers = &mut self.live.bank.askers;
        match askers.iter_mut().find(|one| one.token == asker.token && one.group == asker.group) {
            Some(known) => known.used = asker.used,
            None => askers.push_back(asker),
        }
        self.serve(asker.account, limit);
    }

    /// Answers who asked for more of what comes under a limit of an account, in turn.
    fn serve(&mut self, account: u64, limit: u8) {
        loop {
            let now = self.live.now;
            let bank = &self.live.bank;
            // Until all have said what they use nobody knows what is left.
            let is_known = self.state.quotas.get(&account).is_some_and(|quota| quota.is_known);
            if !is_known || bank.rounds.contains_key(&(account, limit)) {
                return;
            }
            let is_next = |one: &Asker| {
                one.account == account && limit_of(one.resource) == limit && one.again_at <= now
            };
            let Some(at) = bank.askers.iter().position(is_next) else { return };
            let Some(&asker) = bank.askers.get(at) else { return };
            if let Some(allowance) = self.affordable(&asker) {
                self.live.bank.askers.remove(at);
                self.answer_asker(&asker, allowance, true);
                continue;
            }
            match asker.collected {
                None => return self.begin_round(account, limit),
                Some(true) if now < asker.since.saturating_add(FREEING_NANOS) => {
                    let again_at = now.saturating_add(FREEING_PAUSE_NANOS);
                    if let Some(asker) = self.live.bank.askers.get_mut(at) {
                        (asker.collected, asker.again_at) = (None, again_at);
                    }
                    self.live.wake_at(again_at);
                }
                Some(_) => {
                    self.live.bank.askers.remove(at);
                    let share = self.state.shares.get(&asker.key()).copied().unwrap_or(0);
                    self.answer_asker(&asker, share, false);
                }
            }
        }
    }

    /// What somebody may have in use from now on, if it is enough for him: a part of what is left beyond.
    fn affordable(&self, asker: &Asker) -> Option<u64> {
        let limit = limit_of(asker.resource);
        let cap = self.state.quotas.get(&asker.account)?.cap(limit, self.live.now);
        let own = self.state.shares.get(&asker.key()).copied().unwrap_or(0);
        let others = self.sum_of_shares(asker.account, limit).saturating_sub(own);
        let most = cap.saturating_sub(others);
        let needed = asker.used.saturating_add(asker.wanted);
        let spare = most.checked_sub(needed)?;
        let services = u64::from(self.config.map.daemon_count()) * self.config.workers as u64;
        Some(own.max(needed.saturating_add(spare / (2 * services.max(1)))))
    }

    fn answer_asker(&mut self, asker: &Asker, allowance: u64, is_granted: bool) {
        let &Asker { group, token, account, resource, .. } = asker;
        let number = self.new_number_of_bank();
        self.put_share(asker.key(), allowance);
        let granted = u8::from(is_granted);
        let message = Message::Drawn { token, number, account, resource, allowance, granted };
        self.tell_service(group, &message);
    }

    /// Has all services give back what they do not use of an account.
    fn begin_round(&mut self, account: u64, limit: u8) {
        let number = self.new_number_of_bank();
        let (begun, left) = (self.live.now, self.all_groups());
        let round = Round { number, left, is_freeing: false, begun, sent: begun };
        self.live.bank.rounds.insert((account, limit), round);
        self.send_round(account, limit);
    }

    fn send_round(&mut self, account: u64, limit: u8) {
        let Some(round) = self.live.bank.rounds.get(&(account, limit)) else { return };
        let message = Message::Collect { number: round.number, account, limit, trims: 1 };
        for group in round.left.clone() {
            self.tell_service(group, &message);
        }
        self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
    }

    fn collected(&mut self, message: &Message<'_>) {
        let Message::Collected {
            group,
            number,
            account,
            limit,
            used,
            may,
            space_used,
            space_may,
            freeing,
        } = *message
        else {
            return;
        };
        let told: &[(u8, u64, u64)] = match limit {
            limits::INODES => &[(resource::INODES, used, may)],
            _ => &[(resource::INLINE, used, may), (resource::SPACE, space_used, space_may)],
        };
        for &(kind, used, _) in told {
            self.live.bank.used.insert((account, kind, group), used);
        }
        self.look_at_soft(account, limit);
        let Some(round) = self.live.bank.rounds.get_mut(&(account, limit)) else { return };
        if round.number != number || !round.left.remove(&group) {
            return;
        }
        round.is_freeing |= freeing != 0;
        let is_over = round.left.is_empty();
        let quota = self.state.quotas.get(&account);
        if quota.is_some_and(|quota| quota.flags() & limit != 0) {
            for &(kind, _, may) in told {
                self.put_share((account, kind, group), may);
            }
        }
        if is_over {
            self.end_round(account, limit);
        }
    }

    fn end_round(&mut self, account: u64, limit: u8) {
        let Some(round) = self.live.bank.rounds.remove(&(account, limit)) else { return };
        for asker in &mut self.live.bank.askers {
            let is_of = asker.account == account && limit_of(asker.resource) == limit;
            // What came later may be about what was freed since.
            if is_of && asker.since <= round.begun {
                asker.collected = Some(round.is_freeing);
            }
        }
        self.serve(account, limit);
    }

    /// Notes since when a soft limit is exceeded.
    fn look_at_soft(&mut self, account: u64, limit: u8) {
        let Some(quota) = self.state.quotas.get(&account).copied() else { return };
        let (soft, _, since) = quota.class(limit);
        let kinds = resource::ALL.into_iter().filter(|&kind| limit_of(kind) == limit);
        let used = &self.live.bank.used;
        let of = |kind| used.range((account, kind, 0)..=(account, kind, u32::MAX));
        // After a start those who did not say it yet may use most of it.
        let services = self.all_groups().len();
        if kinds.clone().any(|kind| of(kind).count() < services) {
            return;
        }
        let sum = kinds.flat_map(of).fold(0u64, |sum, (_, &used)| sum.saturating_add(used));
        let is_over = soft != 0 && sum > soft;
        if is_over == (since != 0) {
            return;
        }
        let since = if is_over { self.live.now.max(1).cast_unsigned() } else { 0 };
        let quota = match limit {
            limits::INODES => Quota { inodes_since: since, ..quota },
            _ => Quota { space_since: since, ..quota },
        };
        self.put(&quota.record(account));
    }

    /// What time brings at the coordinator.
    pub(crate) fn keep_bank(&mut self) {
        if !self.is_bank() {
            return;
        }
        let now = self.live.now;
        let mut due = Vec::new();
        for (&account, spread) in &mut self.live.bank.spreads {
            if spread.again.is_due(now) {
                due.push(account);
            }
            self.live.timer = self.live.timer.min(spread.again.at);
        }
        due.into_iter().for_each(|account| self.send_limit(account));
        self.keep_rounds();
        let waiting = self.live.bank.askers.iter();
        let waiting: BTreeSet<(u64, u8)> =
            waiting.map(|asker| (asker.account, limit_of(asker.resource))).collect();
        waiting.into_iter().for_each(|(account, limit)| self.serve(account, limit));
        let later = self.live.bank.askers.iter().map(|asker| asker.again_at);
        if let Some(at) = later.filter(|&at| at > now).min() {
            self.live.wake_at(at);
        }
        self.keep_gatherings();
        self.poll();
    }

    fn keep_rounds(&mut self) {
        let now = self.live.now;
        let (mut over, mut again) = (Vec::new(), Vec::new());
        for (&key, round) in &mut self.live.bank.rounds {
            if round.begun.saturating_add(ROUND_NANOS) <= now {
                over.push(key);
            } else if round.sent.saturating_add(RESEND_NANOS) <= now {
                round.sent = now;
                again.push(key);
            }
        }
        over.into_iter().for_each(|(account, limit)| self.end_round(account, limit));
        again.into_iter().for_each(|(account, limit)| self.send_round(account, limit));
        if !self.live.bank.rounds.is_empty() {
            self.live.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }

    /// Asks now and then what is used of what has a soft limit; once its time is over, nobody keeps more
    /// than he uses.
    fn poll(&mut self) {
        let now = self.live.now;
        let has_soft = |quota: &Quota| quota.limits.space_soft | quota.limits.inodes_soft != 0;
        let quotas = self.state.quotas.iter().filter(|(_, quota)| has_soft(quota));
        let quotas: Vec<(u64, Quota)> = quotas.map(|(&account, &quota)| (account, quota)).collect();
        if quotas.is_empty() {
            return;
        }
        let due = self.live.bank.polled.saturating_add(POLL_NANOS);
        if now < due {
            return self.live.wake_at(due);
        }
        self.live.bank.polled = now;
        self.live.wake_at(now.saturating_add(POLL_NANOS));
        for (account, quota) in quotas {
            for limit in [limits::INODES, limits::SPACE] {
                let (soft, ..) = quota.class(limit);
                let is_late = quota.is_expired(limit, now)
                    && self.sum_of_shares(account, limit) > soft
                    && !self.live.bank.rounds.contains_key(&(account, limit));
                if soft == 0 || !quota.is_known {
                    continue;
                }
                if is_late {
                    self.begin_round(account, limit);
                    continue;
                }
                let message = Message::Collect { number: 0, account, limit, trims: 0 };
                for group in self.all_groups() {
                    self.tell_service(group, &message);
                }
            }
        }
    }

    /// `Request::Quotas`.
    pub(crate) fn quotas(&mut self, ask: &Ask<'_>, from: u64) -> Step<()> {
        self.count_all();
        if self.state.quotas.get(&Account::ALL.0).is_some_and(|all| !all.is_known) {
            return Err(Stop::Wait(Wait::Limits));
        }
        for fact in ask.facts {
            if let Fact::Usage(rows) = fact {
                self.io.reply(ask.ticket, &Reply::Bytes { bytes: rows });
                return Ok(());
            }
        }
        let token = self.new_sequence();
        let (left, rows, sent) = (self.all_groups(), BTreeMap::new(), self.live.now);
        let gathering = Gathering { from, left, rows, end: u64::MAX, sent };
        self.live.bank.gatherings.insert(token, gathering);
        self.send_gathering(token);
        Err(Stop::Wait(Wait::Usage(token)))
    }

    fn send_gathering(&mut self, token: u64) {
        let Some(gathering) = self.live.bank.gatherings.get(&token) else { return };
        let message = Message::AskUsage { token, from: gathering.from };
        for group in gathering.left.clone() {
            self.tell_service(group, &message);
        }
        self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
    }

    fn keep_gatherings(&mut self) {
        let now = self.live.now;
        let jobs = &self.live.jobs;
        let is_awaited = |token| jobs.values().any(|job| job.wait == Wait::Usage(token));
        self.live.bank.gatherings.retain(|&token, _| is_awaited(token));
        let mut due = Vec::new();
        for (&token, gathering) in &mut self.live.bank.gatherings {
            if gathering.sent.saturating_add(RESEND_NANOS) <= now {
                gathering.sent = now;
                due.push(token);
            }
        }
        due.into_iter().for_each(|token| self.send_gathering(token));
        if !self.live.bank.gatherings.is_empty() {
            self.live.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }

    fn gathered(&mut self, group: u32, token: u64, end: u64, rows: &[u8]) {
        let Some(gathering) = self.live.bank.gatherings.get_mut(&token) else { return };
        if !gathering.left.remove(&group) {
            return;
        }
        let mut reader = Reader::new(rows);
        let mut next = || u64::take(&mut reader).ok();
        while let (Some(account), Some(inodes), Some(space)) = (next(), next(), next()) {
            let row = gathering.rows.entry(account).or_default();
            *row = (row.0.saturating_add(inodes), row.1.saturating_add(space));
        }
        gathering.end = gathering.end.min(end);
        if !gathering.left.is_empty() {
            return;
        }
        let Some(gathering) = self.live.bank.gatherings.remove(&token) else { return };
        let fact = Fact::Usage(self.report(gathering));
        for (&id, job) in &mut self.live.jobs {
            if job.wait == Wait::Usage(token) {
                job.facts.push(fact.clone());
                self.live.woken.insert(id);
            }
        }
    }

    /// Encoded rows of what is used or limited, as many as fit an answer.
    fn report(&self, gathering: Gathering) -> Vec<u8> {
        let Gathering { from, mut rows, end, .. } = gathering;
        for (&account, quota) in self.state.quotas.range(from..) {
            if !quota.limits.is_none() {
                rows.entry(account).or_default();
            }
        }
        let mut bytes = Vec::new();
        for (&account, &(inodes, space)) in rows.range(..end).take(ROWS_MAX) {
            let row = Row { inodes, space, ..Row::of(Account(account)) };
            let quota = self.state.quotas.get(&account);
            let row = quota.map_or(row, |quota| quota.row(row));
            bytes.extend_from_slice(&row.encoded());
        }
        bytes
    }
}
