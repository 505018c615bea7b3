//! The quota coordinator: the service of shard 0 has the limits of all accounts, and in its ledger
//! the share that each service may have in use (`grants`). The shares of an account never exceed
//! its limit, so the limit holds whatever is lost or restarts.
//!
//! A request for more (draw) gets what it needs and a part of the rest: large shares far from the
//! limit, one unit close to it. If too little is left, all services are asked to return their
//! unused shares (a
//! *reclaim round*), and only then the draw is denied.
//!
//! Invariants
//! 1. The shares of an account are at most its limit, unless they are in use already.
//! 2. A share in the log is no less than what its service may use: it is put before an allowance is
//!    sent, and reduced only when the service has said that it uses no more. Until it may have said
//!    so, nothing is granted: an answer is never about an older allowance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::codec::Field;
use wire::quota::{Account, AccountUsage, Limits, USAGES_MAX};
use wire::{Errno, Reader, Reply, Request, ShardIndex};

use crate::core::config::Group;
use crate::core::context::Context;
use crate::core::job::{Call, Fact, RESEND_NANOS, Resend, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::core::record::Record;
use crate::quota::usage::{Quota, ShareKey, limit_of, limits, resource};

/// How long a round waits for a service that does not answer before a draw is denied: longer than
/// the response of a busy daemon. Its share is not given to others.
const RECLAIM_ROUND_NANOS: i64 = 1_000_000_000;
/// While space is being freed, a draw is not denied for this time,
const FREEING_NANOS: i64 = 1_000_000_000;
/// and is retried at this interval.
const FREEING_PAUSE_NANOS: i64 = 2_000_000;
/// Interval of the checks whether soft limits are exceeded.
const POLL_NANOS: i64 = 500_000_000;

/// A pending request of a service for a larger share.
#[derive(Clone, Copy, Debug)]
struct Draw {
    group: u32,
    token: u64,
    account: u64,
    resource: u8,
    used: u64,
    more: u64,
    since: i64,
    again_at: i64,
    /// Set after a reclaim round: whether space is being freed.
    collected: Option<bool>,
}

impl Draw {
    const fn key(&self) -> ShareKey {
        (self.account, self.resource, self.group)
    }
}

/// A round in which services return their unused shares.
#[derive(Debug)]
struct ReclaimRound {
    number: u64,
    left: BTreeSet<u32>,
    is_freeing: bool,
    begun: i64,
    sent: i64,
}

/// Announcement of the limits of an account to all services.
#[derive(Debug)]
struct LimitBroadcast {
    left: BTreeSet<u32>,
    resend: Resend,
}

/// A query of usage to all services.
#[derive(Debug)]
struct UsageQuery {
    from: u64,
    left: BTreeSet<u32>,
    /// Inodes and bytes by account.
    entries: BTreeMap<u64, (u64, u64)>,
    end: u64,
    sent: i64,
}

/// Volatile state of the coordinator.
#[derive(Default)]
pub(crate) struct Coordinator {
    draws: VecDeque<Draw>,
    rounds: BTreeMap<(u64, u8), ReclaimRound>,
    broadcasts: BTreeMap<u64, LimitBroadcast>,
    /// Usage as the services reported it last.
    used: BTreeMap<ShareKey, u64>,
    usage_queries: BTreeMap<u64, UsageQuery>,
    polled: i64,
}

impl Coordinator {
    /// At a start: announces limits again that some service may not know.
    pub(crate) fn begin_coordinator(&mut self, cx: &mut Context) {
        let unknown = cx.state.quotas.iter().filter(|(_, quota)| !quota.is_known);
        let unknown: Vec<u64> = unknown.map(|(&account, _)| account).collect();
        unknown.into_iter().for_each(|account| self.broadcast(cx, account));
        cx.wake_at(cx.now);
    }

    /// `Request::SetQuota`.
    pub(crate) fn set_quota(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        let Request::SetQuota { account, space_soft, space_hard, inodes_soft, inodes_hard, grace } =
            *request
        else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let caller = &call.header.caller;
        if caller.uid != 0 && caller.uid != cx.config.root_uid {
            return Err(Stop::Refused(Errno::EPERM));
        }
        let exceeds = |soft: u64, hard: u64| hard != 0 && soft > hard;
        if Account(account) == Account::user(0)
            || !Account(account).is_valid()
            || exceeds(space_soft, space_hard)
            || exceeds(inodes_soft, inodes_hard)
        {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let limits = Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace };
        let old = cx.state.quotas.get(&account).copied();
        if old.map_or(Limits::default(), |old| old.limits) != limits {
            self.put_limits(cx, account, old, limits);
        }
        let is_known = |account| cx.state.quotas.get(&account).is_none_or(|one| one.is_known);
        if !is_known(account) || (limits.limits_space() && !is_known(Account::ALL.0)) {
            return Err(Stop::Wait(Wait::Limits));
        }
        cx.io.reply(call.ticket, &Reply::Done {});
        Ok(())
    }

    fn put_limits(&mut self, cx: &mut Context, account: u64, old: Option<Quota>, limits: Limits) {
        if limits.limits_space() {
            self.count_all(cx);
        }
        let number = new_grant_number(cx);
        let (space_since, inodes_since) =
            old.map_or((0, 0), |old| (old.space_since, old.inodes_since));
        let quota = Quota { number, limits, space_since, inodes_since, is_known: false };
        cx.put(&quota.record(account));
        for kind in resource::ALL {
            if quota.flags() & limit_of(kind) == 0 {
                drop_shares(cx, account, kind);
            }
        }
        self.broadcast(cx, account);
    }

    /// Makes all targets count their usage from now on.
    fn count_all(&mut self, cx: &mut Context) {
        let all = Account::ALL.0;
        if !cx.state.quotas.contains_key(&all) {
            let number = new_grant_number(cx);
            let limits = Limits::default();
            let quota = Quota { number, limits, space_since: 0, inodes_since: 0, is_known: false };
            cx.put(&quota.record(all));
            self.broadcast(cx, all);
        }
    }

    /// Services came that know no limits: all limits are set anew.
    pub(crate) fn tell_all(&mut self, cx: &mut Context) {
        let is_here = is_coordinator(cx);
        let accounts: Vec<u64> = cx.state.quotas.keys().filter(|_| is_here).copied().collect();
        for account in accounts {
            let number = new_grant_number(cx);
            let Some(before) = cx.state.quotas.get(&account).copied() else { continue };
            cx.put(&Quota { number, is_known: false, ..before }.record(account));
            self.broadcast(cx, account);
        }
    }

    fn broadcast(&mut self, cx: &mut Context, account: u64) {
        let left = all_groups(cx);
        let resend = Resend::after(cx.now, RESEND_NANOS);
        self.broadcasts.insert(account, LimitBroadcast { left, resend });
        self.send_limit(cx, account);
    }

    fn send_limit(&mut self, cx: &mut Context, account: u64) {
        let Some(quota) = cx.state.quotas.get(&account).copied() else { return };
        let Some(broadcast) = self.broadcasts.get(&account) else { return };
        let (number, at) = (quota.number, broadcast.resend.at);
        let counted = if account == Account::ALL.0 { limits::COUNTED } else { 0 };
        let message = Message::Limit { number, account, flags: quota.flags() | counted };
        for group in broadcast.left.clone() {
            cx.send_to_service(group, &message);
        }
        cx.wake_at(at);
    }

    /// A service knows the limits, and reports its allowances.
    fn limit_known(
        &mut self,
        cx: &mut Context,
        group: u32,
        number: u64,
        account: u64,
        may: [u64; 3],
    ) {
        let Some(quota) = cx.state.quotas.get(&account).copied() else { return };
        let Some(broadcast) = self.broadcasts.get_mut(&account) else {
            return;
        };
        if quota.number != number || !broadcast.left.remove(&group) {
            return;
        }
        let is_over = broadcast.left.is_empty();
        for (kind, may) in resource::ALL.into_iter().zip(may) {
            if quota.flags() & limit_of(kind) != 0 {
                put_share(cx, (account, kind, group), may);
            }
        }
        if !is_over {
            return;
        }
        self.broadcasts.remove(&account);
        cx.put(&Quota { is_known: true, ..quota }.record(account));
        cx.wake(|wait| *wait == Wait::Limits);
        self.serve(cx, account, limits::INODES);
        self.serve(cx, account, limits::SPACE);
    }

    fn shares(cx: &Context, account: u64, kind: u8) -> impl Iterator<Item = (ShareKey, u64)> + '_ {
        let shares = cx.state.shares.range((account, kind, 0)..=(account, kind, u32::MAX));
        shares.map(|(&key, &amount)| (key, amount))
    }

    /// Takes a message for the coordinator.
    pub(crate) fn take_for_coordinator(&mut self, cx: &mut Context, message: &Message<'_>) {
        if !is_coordinator(cx) {
            return;
        }
        match *message {
            Message::Limited { group, number, account, inodes, inline, space } => {
                self.limit_known(cx, group, number, account, [inodes, inline, space]);
            }
            Message::Draw { group, token, account, resource, used, more } => {
                let (since, again_at) = (cx.now, i64::MIN);
                self.take_draw(
                    cx,
                    Draw {
                        group,
                        token,
                        account,
                        resource,
                        used,
                        more,
                        since,
                        again_at,
                        collected: None,
                    },
                );
            }
            Message::Collected { .. } => self.collected(cx, message),
            Message::AreUsages { group, token, end, entries } => {
                self.take_usage(cx, group, token, end, entries);
            }
            _ => {}
        }
    }

    fn take_draw(&mut self, cx: &mut Context, draw: Draw) {
        let limit = limit_of(draw.resource);
        self.used.insert(draw.key(), draw.used);
        let quota = cx.state.quotas.get(&draw.account);
        if quota.is_none_or(|quota| quota.flags() & limit == 0) {
            // The service will learn that the account is not limited any more.
            return;
        }
        let share = cx.state.shares.get(&draw.key()).copied().unwrap_or(0);
        if draw.used > share {
            // Caused by root, or by a change of owners.
            put_share(cx, draw.key(), draw.used);
        }
        let draws = &mut self.draws;
        match draws.iter_mut().find(|one| one.token == draw.token && one.group == draw.group) {
            Some(known) => known.used = draw.used,
            None => draws.push_back(draw),
        }
        self.serve(cx, draw.account, limit);
    }

    /// Answers draws under a limit of an account, in order of arrival.
    fn serve(&mut self, cx: &mut Context, account: u64, limit: u8) {
        loop {
            let now = cx.now;
            // Until all services have reported their usage, the rest is unknown.
            let is_known = cx.state.quotas.get(&account).is_some_and(|quota| quota.is_known);
            if !is_known || self.rounds.contains_key(&(account, limit)) {
                return;
            }
            let is_next = |one: &Draw| {
                one.account == account && limit_of(one.resource) == limit && one.again_at <= now
            };
            let Some(at) = self.draws.iter().position(is_next) else { return };
            let Some(&draw) = self.draws.get(at) else { return };
            if let Some(allowance) = affordable(cx, &draw) {
                self.draws.remove(at);
                answer_draw(cx, &draw, allowance, true);
                continue;
            }
            match draw.collected {
                None => return self.begin_round(cx, account, limit),
                Some(true) if now < draw.since.saturating_add(FREEING_NANOS) => {
                    let again_at = now.saturating_add(FREEING_PAUSE_NANOS);
                    if let Some(draw) = self.draws.get_mut(at) {
                        (draw.collected, draw.again_at) = (None, again_at);
                    }
                    cx.wake_at(again_at);
                }
                Some(_) => {
                    self.draws.remove(at);
                    let share = cx.state.shares.get(&draw.key()).copied().unwrap_or(0);
                    answer_draw(cx, &draw, share, false);
                }
            }
        }
    }

    /// Begins a reclaim round of an account.
    fn begin_round(&mut self, cx: &mut Context, account: u64, limit: u8) {
        let number = new_grant_number(cx);
        let (begun, left) = (cx.now, all_groups(cx));
        let round = ReclaimRound { number, left, is_freeing: false, begun, sent: begun };
        self.rounds.insert((account, limit), round);
        self.send_round(cx, account, limit);
    }

    fn send_round(&mut self, cx: &mut Context, account: u64, limit: u8) {
        let Some(round) = self.rounds.get(&(account, limit)) else { return };
        let message = Message::Collect { number: round.number, account, limit, trims: 1 };
        for group in round.left.clone() {
            cx.send_to_service(group, &message);
        }
        cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
    }

    fn collected(&mut self, cx: &mut Context, message: &Message<'_>) {
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
        let reports: &[(u8, u64, u64)] = match limit {
            limits::INODES => &[(resource::INODES, used, may)],
            _ => &[(resource::INLINE, used, may), (resource::SPACE, space_used, space_may)],
        };
        for &(kind, used, _) in reports {
            self.used.insert((account, kind, group), used);
        }
        self.note_soft_limit(cx, account, limit);
        let Some(round) = self.rounds.get_mut(&(account, limit)) else {
            return;
        };
        if round.number != number || !round.left.remove(&group) {
            return;
        }
        round.is_freeing |= freeing != 0;
        let is_over = round.left.is_empty();
        let quota = cx.state.quotas.get(&account);
        if quota.is_some_and(|quota| quota.flags() & limit != 0) {
            for &(kind, _, may) in reports {
                put_share(cx, (account, kind, group), may);
            }
        }
        if is_over {
            self.end_round(cx, account, limit);
        }
    }

    fn end_round(&mut self, cx: &mut Context, account: u64, limit: u8) {
        let Some(round) = self.rounds.remove(&(account, limit)) else {
            return;
        };
        for draw in &mut self.draws {
            let is_of = draw.account == account && limit_of(draw.resource) == limit;
            // A later draw may depend on space freed since.
            if is_of && draw.since <= round.begun {
                draw.collected = Some(round.is_freeing);
            }
        }
        self.serve(cx, account, limit);
    }

    /// Updates the time since when a soft limit is exceeded.
    fn note_soft_limit(&mut self, cx: &mut Context, account: u64, limit: u8) {
        let Some(quota) = cx.state.quotas.get(&account).copied() else { return };
        let (soft, _, since) = quota.class(limit);
        let kinds = resource::ALL.into_iter().filter(|&kind| limit_of(kind) == limit);
        let used = &self.used;
        let of = |kind| used.range((account, kind, 0)..=(account, kind, u32::MAX));
        // After a start, the services that have not reported yet may use most of it.
        let services = all_groups(cx).len();
        if kinds.clone().any(|kind| of(kind).count() < services) {
            return;
        }
        let sum = kinds.flat_map(of).fold(0u64, |sum, (_, &used)| sum.saturating_add(used));
        let is_over = soft != 0 && sum > soft;
        if is_over == (since != 0) {
            return;
        }
        let since = if is_over { cx.now.max(1).cast_unsigned() } else { 0 };
        let quota = match limit {
            limits::INODES => Quota { inodes_since: since, ..quota },
            _ => Quota { space_since: since, ..quota },
        };
        cx.put(&quota.record(account));
    }

    /// Timer of the coordinator.
    pub(crate) fn tick_coordinator(&mut self, cx: &mut Context) {
        if !is_coordinator(cx) {
            return;
        }
        let now = cx.now;
        let mut due = Vec::new();
        for (&account, broadcast) in &mut self.broadcasts {
            if broadcast.resend.is_due(now) {
                due.push(account);
            }
            cx.timer = cx.timer.min(broadcast.resend.at);
        }
        due.into_iter().for_each(|account| self.send_limit(cx, account));
        self.tick_reclaim_rounds(cx);
        let waiting = self.draws.iter();
        let waiting: BTreeSet<(u64, u8)> =
            waiting.map(|draw| (draw.account, limit_of(draw.resource))).collect();
        waiting.into_iter().for_each(|(account, limit)| self.serve(cx, account, limit));
        let later = self.draws.iter().map(|draw| draw.again_at);
        if let Some(at) = later.filter(|&at| at > now).min() {
            cx.wake_at(at);
        }
        self.tick_usage_queries(cx);
        self.poll(cx);
    }

    fn tick_reclaim_rounds(&mut self, cx: &mut Context) {
        let now = cx.now;
        let (mut over, mut resend) = (Vec::new(), Vec::new());
        for (&key, round) in &mut self.rounds {
            if round.begun.saturating_add(RECLAIM_ROUND_NANOS) <= now {
                over.push(key);
            } else if round.sent.saturating_add(RESEND_NANOS) <= now {
                round.sent = now;
                resend.push(key);
            }
        }
        over.into_iter().for_each(|(account, limit)| self.end_round(cx, account, limit));
        resend.into_iter().for_each(|(account, limit)| self.send_round(cx, account, limit));
        if !self.rounds.is_empty() {
            cx.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }

    /// Periodically queries usage under soft limits; once the grace period is over, reclaims every
    /// unused share.
    fn poll(&mut self, cx: &mut Context) {
        let now = cx.now;
        let has_soft = |quota: &Quota| quota.limits.space_soft | quota.limits.inodes_soft != 0;
        let quotas = cx.state.quotas.iter().filter(|(_, quota)| has_soft(quota));
        let quotas: Vec<(u64, Quota)> = quotas.map(|(&account, &quota)| (account, quota)).collect();
        if quotas.is_empty() {
            return;
        }
        let due = self.polled.saturating_add(POLL_NANOS);
        if now < due {
            return cx.wake_at(due);
        }
        self.polled = now;
        cx.wake_at(now.saturating_add(POLL_NANOS));
        for (account, quota) in quotas {
            for limit in [limits::INODES, limits::SPACE] {
                let (soft, ..) = quota.class(limit);
                let is_late = quota.is_expired(limit, now)
                    && sum_of_shares(cx, account, limit) > soft
                    && !self.rounds.contains_key(&(account, limit));
                if soft == 0 || !quota.is_known {
                    continue;
                }
                if is_late {
                    self.begin_round(cx, account, limit);
                    continue;
                }
                let message = Message::Collect { number: 0, account, limit, trims: 0 };
                for group in all_groups(cx) {
                    cx.send_to_service(group, &message);
                }
            }
        }
    }

    /// `Request::Quotas`.
    pub(crate) fn quotas(&mut self, cx: &mut Context, call: &Call<'_>, from: u64) -> Step<()> {
        self.count_all(cx);
        if cx.state.quotas.get(&Account::ALL.0).is_some_and(|all| !all.is_known) {
            return Err(Stop::Wait(Wait::Limits));
        }
        for fact in call.facts {
            if let Fact::Usage(entries) = fact {
                cx.io.reply(call.ticket, &Reply::Bytes { bytes: entries });
                return Ok(());
            }
        }
        let token = cx.new_sequence();
        let (left, entries, sent) = (all_groups(cx), BTreeMap::new(), cx.now);
        let usage_query = UsageQuery { from, left, entries, end: u64::MAX, sent };
        self.usage_queries.insert(token, usage_query);
        self.send_usage_query(cx, token);
        Err(Stop::Wait(Wait::Usage(token)))
    }

    fn send_usage_query(&mut self, cx: &mut Context, token: u64) {
        let Some(usage_query) = self.usage_queries.get(&token) else { return };
        let message = Message::AskUsage { token, from: usage_query.from };
        for group in usage_query.left.clone() {
            cx.send_to_service(group, &message);
        }
        cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
    }

    fn tick_usage_queries(&mut self, cx: &mut Context) {
        let now = cx.now;
        let jobs = &cx.jobs;
        let is_awaited = |token| jobs.values().any(|job| job.wait == Wait::Usage(token));
        self.usage_queries.retain(|&token, _| is_awaited(token));
        let mut due = Vec::new();
        for (&token, usage_query) in &mut self.usage_queries {
            if usage_query.sent.saturating_add(RESEND_NANOS) <= now {
                usage_query.sent = now;
                due.push(token);
            }
        }
        due.into_iter().for_each(|token| self.send_usage_query(cx, token));
        if !self.usage_queries.is_empty() {
            cx.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }

    fn take_usage(&mut self, cx: &mut Context, group: u32, token: u64, end: u64, entries: &[u8]) {
        let Some(usage_query) = self.usage_queries.get_mut(&token) else {
            return;
        };
        if !usage_query.left.remove(&group) {
            return;
        }
        let mut reader = Reader::new(entries);
        let mut next = || u64::take(&mut reader).ok();
        while let (Some(account), Some(inodes), Some(space)) = (next(), next(), next()) {
            let entry = usage_query.entries.entry(account).or_default();
            *entry = (entry.0.saturating_add(inodes), entry.1.saturating_add(space));
        }
        usage_query.end = usage_query.end.min(end);
        if !usage_query.left.is_empty() {
            return;
        }
        let Some(usage_query) = self.usage_queries.remove(&token) else {
            return;
        };
        let fact = Fact::Usage(report(cx, usage_query));
        for (&id, job) in &mut cx.jobs {
            if job.wait == Wait::Usage(token) {
                job.facts.push(fact.clone());
                cx.woken.insert(id);
            }
        }
    }
}

/// Encoded entries of accounts with usage or limits, as many as fit an answer.
fn report(cx: &Context, usage_query: UsageQuery) -> Vec<u8> {
    let UsageQuery { from, mut entries, end, .. } = usage_query;
    for (&account, quota) in cx.state.quotas.range(from..) {
        if !quota.limits.is_none() {
            entries.entry(account).or_default();
        }
    }
    let mut bytes = Vec::new();
    for (&account, &(inodes, space)) in entries.range(..end).take(USAGES_MAX) {
        let entry = AccountUsage { inodes, space, ..AccountUsage::of(Account(account)) };
        let quota = cx.state.quotas.get(&account);
        let entry = quota.map_or(entry, |quota| quota.report_entry(entry));
        bytes.extend_from_slice(&entry.encoded());
    }
    bytes
}

fn answer_draw(cx: &mut Context, draw: &Draw, allowance: u64, is_granted: bool) {
    let &Draw { group, token, account, resource, .. } = draw;
    let number = new_grant_number(cx);
    put_share(cx, draw.key(), allowance);
    let granted = u8::from(is_granted);
    let message = Message::Drawn { token, number, account, resource, allowance, granted };
    cx.send_to_service(group, &message);
}

/// The new share for a draw, if its need can be met: the need and a part of the rest.
fn affordable(cx: &Context, draw: &Draw) -> Option<u64> {
    let limit = limit_of(draw.resource);
    let cap = cx.state.quotas.get(&draw.account)?.cap(limit, cx.now);
    let own = cx.state.shares.get(&draw.key()).copied().unwrap_or(0);
    let others = sum_of_shares(cx, draw.account, limit).saturating_sub(own);
    let most = cap.saturating_sub(others);
    let needed = draw.used.saturating_add(draw.more);
    let spare = most.checked_sub(needed)?;
    let services = u64::from(cx.config.map.daemon_count()) * cx.config.workers as u64;
    Some(own.max(needed.saturating_add(spare / (2 * services.max(1)))))
}

/// Sum of the shares under a limit in the ledger.
fn sum_of_shares(cx: &Context, account: u64, limit: u8) -> u64 {
    let kinds = resource::ALL.into_iter().filter(|&kind| limit_of(kind) == limit);
    let amounts =
        kinds.flat_map(|kind| Coordinator::shares(cx, account, kind)).map(|(_, amount)| amount);
    amounts.fold(0, u64::saturating_add)
}

fn put_share(cx: &mut Context, key: ShareKey, amount: u64) {
    let (account, resource, group) = key;
    if cx.state.shares.get(&key).copied().unwrap_or(0) != amount {
        cx.put(&Record::PutShare { account, resource, group, amount });
    }
}

/// A new number; 0 is none.
fn new_grant_number(cx: &mut Context) -> u64 {
    cx.new_sequence() + 1
}

fn drop_shares(cx: &mut Context, account: u64, kind: u8) {
    let keys: Vec<ShareKey> = Coordinator::shares(cx, account, kind).map(|(key, _)| key).collect();
    for (account, resource, group) in keys {
        cx.put(&Record::PutShare { account, resource, group, amount: 0 });
    }
}

fn is_coordinator(cx: &Context) -> bool {
    cx.config.owns(ShardIndex(0))
}

fn all_groups(cx: &Context) -> BTreeSet<u32> {
    cx.config.map.services(cx.config.workers).map(|it| Group::of(it).0).collect()
}
