//! The thread that owns the scheduler: takes requests that wait, and hands them back to their workers in
//! their turn. It sleeps while nothing waits and no rule is in force.

use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::message;
use crate::shares::Shares;
use crate::shares::accounts::{JobAccount, ShareRange};
use crate::shares::caps::{CapPart, CapPlace, DividedCaps};
use crate::shares::inbox::{DispatcherMessage, HeldRequest};
use crate::shares::rule_set::RuleSet;
use crate::shares::spread::Spread;
use net::Urgency;
use qos::division::PERIOD_NANOS;
use qos::exchange::{CapGrant, CapKey, Message, Token};
use qos::rules::Scope;
use qos::scheduler::{Limits, Options, OptionsError, Request, Scheduler, Ticket, Work};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::DaemonIndex;

/// Sizes of the scheduler. At 100 Gb/s and 100 us, five transfers of 256 KiB fill the way; 24 leave room
/// for several peers. Slots and buffers of the sessions bound the requests.
const OPTIONS: Options = Options {
    depth: 32,
    large_bytes: 128 << 10,
    large_in_flight_max: 24,
    requests_max: 1 << 20,
    requests_user_max: 1 << 20,
    metadata_percent: 50,
};
/// A request that takes longer, as to a daemon that is down, no longer keeps others from starting.
const OVERDUE_NANOS: u64 = 100_000_000;
/// An account without requests is forgotten after this time.
const IDLE_NANOS: u64 = 30_000_000_000;

/// A job as the dispatcher sees it.
struct KeptAccount {
    facts: Arc<JobAccount>,
    /// As the rule says.
    limits: Limits,
    scope: Scope,
    /// As the scheduler has them.
    applied: Limits,
    bytes: Option<CapPart>,
    operations: Option<CapPart>,
    /// Requests that wait, and their bytes.
    waiting: u64,
    bytes_waiting: u64,
    /// Time in which requests waited at the ends of periods.
    throttled_nanos: u64,
    used_at: u64,
}

/// Writes to a part of a file that wait.
struct RangeUse {
    account: (u32, u64),
    count: u32,
}

/// A request that was started.
struct StartedRequest {
    at: u64,
    ticket: Ticket,
    /// The number of its account's requests on their way is limited.
    is_counted: bool,
}

/// See the module.
pub(crate) struct Dispatcher {
    shared: Arc<Shared>,
    /// Where the rules are kept.
    file: PathBuf,
    rules: RuleSet,
    scheduler: Scheduler,
    accounts: BTreeMap<(u32, u64), KeptAccount>,
    held: BTreeMap<u64, (HeldRequest, (u32, u64))>,
    held_last: u64,
    ranges: BTreeMap<ShareRange, RangeUse>,
    /// Started requests in their order, with their times.
    started: VecDeque<StartedRequest>,
    place: CapPlace,
    divided: DividedCaps,
    spread: Spread,
    /// Nanoseconds since 1970 at `begun`.
    epoch: u64,
    begun: Instant,
    period_at: u64,
}

impl Dispatcher {
    /// With the rules that `Shares` has.
    ///
    /// # Errors
    /// Never, with these sizes.
    pub(crate) fn new(shared: Arc<Shared>, file: PathBuf) -> Result<Dispatcher, OptionsError> {
        let rules = shared.shares.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
        let count = shared.net.router.map.daemon_count();
        let me = shared.net.router.me;
        // The home daemon of the only host has all of a cap.
        let daemons = if shared.net.host_count == count { 1 } else { u32::from(count) };
        let spread = if me.0 == 0 { Spread::new(count) } else { Spread::default() };
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Dispatcher {
            shared,
            file,
            rules,
            scheduler: Scheduler::new(OPTIONS)?,
            accounts: BTreeMap::new(),
            held: BTreeMap::new(),
            held_last: 0,
            ranges: BTreeMap::new(),
            started: VecDeque::new(),
            place: CapPlace { daemon: u32::from(me.0), daemons },
            divided: DividedCaps::new(daemons),
            spread,
            epoch: u64::try_from(epoch.as_nanos()).unwrap_or(0),
            begun: Instant::now(),
            period_at: 0,
        })
    }

    fn shares(&self) -> &Shares {
        &self.shared.shares
    }

    /// Nanoseconds since 1970, never back: grants of an earlier start have lower numbers.
    fn now(&self) -> u64 {
        self.epoch + u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(0)
    }

    /// Runs until the daemon ends.
    pub(crate) fn run(mut self) {
        let mut taken = VecDeque::new();
        self.publish();
        loop {
            let until = self.wake_at();
            let inbox = Arc::clone(&self.shares().inbox);
            inbox.take(until, &mut taken);
            if self.shared.stopping.load(Relaxed) {
                return;
            }
            let now = self.now();
            for message in taken.drain(..) {
                self.take(now, message);
            }
            if now >= self.period_at {
                self.end_period(now);
            }
            self.start_requests(now);
            self.shared.net.sender.flush();
            if self.rules.is_empty() && self.scheduler.queued() + self.scheduler.in_flight() == 0 {
                self.shares().rest();
            }
        }
    }

    /// True if something changes with time.
    fn has_work(&self) -> bool {
        let is_spread = self.place.daemon != 0 || !self.spread.is_open(self.rules.version);
        !self.accounts.is_empty() || !self.divided.is_empty() || !is_spread
    }

    /// When to wake up without a message; `None`: never.
    fn wake_at(&self) -> Option<Instant> {
        if !self.has_work() {
            return None;
        }
        let waits = self.scheduler.queued() > 0;
        let overdue = self.started.front().map(|one| one.at + OVERDUE_NANOS).filter(|_| waits);
        let times = [Some(self.period_at), self.scheduler.deadline().filter(|_| waits), overdue];
        let at = times.into_iter().flatten().min().unwrap_or(0);
        Some(Instant::now() + Duration::from_nanos(at.saturating_sub(self.now())))
    }

    fn take(&mut self, now: u64, message: DispatcherMessage) {
        match message {
            DispatcherMessage::Held(held) => self.push(now, held),
            DispatcherMessage::Ended(ticket) => {
                self.scheduler.complete(now, ticket);
            }
            DispatcherMessage::Up(peer) => {
                self.spread.note_has(peer.0, 0);
                self.spread.send_at_once();
            }
            DispatcherMessage::Peer(from, bytes) => {
                if self.take_peer(now, from, &bytes).is_none() {
                    tracing::warn!(peer = from.0, "malformed message about shares");
                }
            }
            DispatcherMessage::Asked(text, answer) => self.asked(&text, answer),
        }
    }

    // ---- requests ----

    /// A request arrives.
    fn push(&mut self, now: u64, held: HeldRequest) {
        let own = (held.account.user, held.account.number);
        // Whatever the job: what is written to the same bytes, or read there, comes after writes that
        // wait. Reads hold up nothing, or a job with a low limit would slow all readers of its input.
        let used = held.range.and_then(|range| self.ranges.get(&range));
        let key = used.map_or(own, |used| used.account);
        self.note_arrival(now, key, &held);
        self.held_last += 1;
        let (work, bytes) = (held.work, held.bytes);
        let request = Request { user: key.0, job: key.1, work, bytes, token: self.held_last };
        if self.scheduler.push(now, request).is_err() {
            // Not reached: the sessions have fewer slots.
            tracing::warn!("too many requests wait for their share");
            return self.release(held, None);
        }
        if let Some(range) = held.range.filter(|_| held.work == Work::Write) {
            self.ranges.entry(range).or_insert(RangeUse { account: key, count: 0 }).count += 1;
        }
        if let Some(account) = self.accounts.get_mut(&key) {
            account.waiting += 1;
            account.bytes_waiting += bytes;
        }
        self.held.insert(self.held_last, (held, key));
    }

    /// Counts a request for the account that it is charged to.
    fn note_arrival(&mut self, now: u64, key: (u32, u64), held: &HeldRequest) {
        if !self.accounts.contains_key(&key) {
            if self.accounts.is_empty() {
                // It slept until now.
                self.period_at = now;
            }
            let (limits, scope) = limits_of(&self.rules, &held.account);
            let account = KeptAccount {
                facts: Arc::clone(&held.account),
                limits,
                scope,
                applied: Limits::default(),
                bytes: CapPart::new(now, limits.bytes_per_second_max, self.place),
                operations: CapPart::new(now, limits.operations_per_second_max, self.place),
                waiting: 0,
                bytes_waiting: 0,
                throttled_nanos: 0,
                used_at: now,
            };
            self.accounts.insert(key, account);
            self.apply_limits(now, key);
        }
        let Some(account) = self.accounts.get_mut(&key) else { return };
        account.used_at = now;
        account.bytes.iter_mut().for_each(|part| part.note(held.bytes));
        account.operations.iter_mut().for_each(|part| part.note(1));
    }

    /// Starts what may start.
    fn start_requests(&mut self, now: u64) {
        self.end_overdue(now);
        while let Some(started) = self.scheduler.pop(now) {
            let Some((held, key)) = self.held.remove(&started.token) else { continue };
            let mut is_counted = false;
            if let Some(account) = self.accounts.get_mut(&key) {
                is_counted = account.limits.in_flight_max > 0;
                account.waiting = account.waiting.saturating_sub(1);
                account.bytes_waiting = account.bytes_waiting.saturating_sub(held.bytes);
            }
            if let Some(range) = held.range.filter(|_| held.work == Work::Write)
                && let Some(used) = self.ranges.get_mut(&range)
            {
                used.count -= 1;
                if used.count == 0 {
                    self.ranges.remove(&range);
                }
            }
            self.started.push_back(StartedRequest { at: now, ticket: started.ticket, is_counted });
            let metrics = &self.shared.metrics.daemon;
            metrics.qos_requests.fetch_add(1, Relaxed);
            metrics.qos_bytes.fetch_add(held.bytes, Relaxed);
            self.release(held, Some(started.ticket));
        }
        let waiting = u64::from(self.scheduler.queued());
        self.shared.metrics.daemon.qos_waiting.store(waiting, Relaxed);
    }

    /// Requests that take long no longer count as on their way.
    fn end_overdue(&mut self, now: u64) {
        while self.started.front().is_some_and(|one| now >= one.at + OVERDUE_NANOS) {
            let Some(one) = self.started.pop_front() else { return };
            if !one.is_counted {
                self.scheduler.complete(now, one.ticket);
            }
        }
    }

    fn release(&self, held: HeldRequest, ticket: Option<Ticket>) {
        let HeldRequest { client, slot, worker, .. } = held;
        let ticket = ticket.map(|ticket| self.shares().start_ticket(ticket));
        let message = WorkerMessage::Released { client, slot, ticket };
        self.shared.inboxes.send_to_worker(worker, message);
    }

    // ---- limits ----

    /// Gives the scheduler the limits of an account as they are now.
    fn apply_limits(&mut self, now: u64, key: (u32, u64)) {
        let Some(account) = self.accounts.get_mut(&key) else { return };
        let rate = |part: &Option<CapPart>| part.as_ref().map_or(0, |part| part.per_second(now));
        let bytes = rate(&account.bytes);
        let minimum = account.limits.bytes_per_second_min;
        let limits = Limits {
            bytes_per_second_max: bytes,
            operations_per_second_max: rate(&account.operations),
            // The part of this daemon may be less than the minimum of all.
            bytes_per_second_min: if bytes > 0 { minimum.min(bytes) } else { minimum },
            ..account.limits
        };
        if limits == account.applied {
            return;
        }
        account.applied = limits;
        let weight = limits.weight;
        let set = if account.scope == Scope::User {
            let of_user = Limits { weight, ..Limits::default() };
            let of_all = Limits { weight: Limits::default().weight, ..limits };
            let set = self.scheduler.set_user(now, key.0, of_user);
            set.and_then(|()| self.scheduler.set_job(now, key.0, key.1, of_all))
        } else {
            self.scheduler.set_job(now, key.0, key.1, limits)
        };
        if let Err(error) = set {
            tracing::warn!(uid = key.0, job = account.facts.job, %error, "limits not applied");
        }
    }

    /// The rules have changed: accounts get the limits of theirs, or none.
    fn renew_accounts(&mut self, now: u64) {
        let keys: Vec<_> = self.accounts.keys().copied().collect();
        for key in keys {
            let Some(account) = self.accounts.get_mut(&key) else { continue };
            let (limits, scope) = limits_of(&self.rules, &account.facts);
            if account.scope == Scope::User && scope != Scope::User {
                // The defaults are always possible.
                let _ = self.scheduler.set_user(now, key.0, Limits::default());
            }
            (account.limits, account.scope) = (limits, scope);
            for (part, cap) in [
                (&mut account.bytes, limits.bytes_per_second_max),
                (&mut account.operations, limits.operations_per_second_max),
            ] {
                if part.as_ref().map_or(0, |part| part.cap) != cap {
                    *part = CapPart::new(now, cap, self.place);
                }
            }
            self.apply_limits(now, key);
        }
    }

    // ---- periods ----

    fn end_period(&mut self, now: u64) {
        self.period_at = now + PERIOD_NANOS;
        if self.place.daemon == 0 {
            self.spread_rules(now);
        }
        if self.scheduler.queued() > 0 {
            self.shared.host.segment.note_throttled(shm::wait::now_micros());
        }
        self.report(now);
        let mut idle = Vec::new();
        let mut throttled = 0;
        for (&key, account) in &mut self.accounts {
            if account.waiting > 0 {
                account.used_at = now;
                account.throttled_nanos += PERIOD_NANOS;
                throttled += PERIOD_NANOS / 1000;
            } else if now > account.used_at.saturating_add(IDLE_NANOS) {
                idle.push(key);
            }
        }
        self.shared.metrics.daemon.qos_throttled_us.fetch_add(throttled, Relaxed);
        for key in idle {
            if let Some(account) = self.accounts.remove(&key) {
                // The defaults are always possible, and free the scheduler's row.
                let _ = self.scheduler.set_job(now, key.0, key.1, Limits::default());
                if account.scope == Scope::User {
                    let _ = self.scheduler.set_user(now, key.0, Limits::default());
                }
            }
        }
        let keys: Vec<_> = self.accounts.keys().copied().collect();
        keys.into_iter().for_each(|key| self.apply_limits(now, key));
    }

    /// Reports demand to daemon 0; in daemon 0, divides the caps.
    fn report(&mut self, now: u64) {
        if self.place.daemons < 2 {
            return;
        }
        let mut reports = Vec::new();
        for (&(user, job), account) in &mut self.accounts {
            let (bytes, requests) = (account.bytes_waiting, account.waiting);
            for (part, token, waiting) in [
                (&mut account.bytes, Token::Bytes, bytes),
                (&mut account.operations, Token::Operations, requests),
            ] {
                let key = CapKey { user, job, token };
                reports.extend(part.as_mut().and_then(|part| part.report(now, key, waiting)));
            }
        }
        if self.place.daemon != 0 {
            if !reports.is_empty() {
                self.send(0, &Message::Reports(self.rules.version, reports));
            }
            return;
        }
        self.divided.take_reports(now, 0, &reports, true);
        for (daemon, grants) in self.divided.divide(now) {
            match u16::try_from(daemon) {
                Ok(0) => self.take_grants(now, &grants),
                Ok(daemon) => self.send(daemon, &Message::Grants(grants)),
                Err(_) => {}
            }
        }
    }

    fn take_grants(&mut self, now: u64, grants: &[CapGrant]) {
        for grant in grants {
            let CapKey { user, job, token } = grant.key;
            let Some(account) = self.accounts.get_mut(&(user, job)) else { continue };
            let part = match token {
                Token::Bytes => &mut account.bytes,
                Token::Operations => &mut account.operations,
            };
            part.iter_mut().for_each(|part| part.take_grant(now, self.place.daemon, grant));
            self.apply_limits(now, (user, job));
        }
    }

    // ---- other daemons, and commands ----

    fn send(&self, daemon: u16, what: &Message<'_>) {
        let mut bytes = vec![message::SHARES];
        what.encode(&mut bytes);
        self.shared.net.send(DaemonIndex(daemon), &bytes, Urgency::Now);
    }

    fn take_peer(&mut self, now: u64, from: DaemonIndex, bytes: &[u8]) -> Option<()> {
        let is_first = self.place.daemon == 0;
        match Message::decode(bytes)? {
            Message::Rules(version, text) if !is_first && from.0 == 0 => {
                if version > self.rules.version {
                    self.take_rules(version, text);
                }
                self.send(0, &Message::Has(self.rules.version));
            }
            Message::Has(version) if is_first => self.spread.note_has(from.0, version),
            Message::Command(number, text) if is_first => {
                let answer = self.execute(text);
                self.send(from.0, &Message::Outcome(number, &answer));
            }
            Message::Outcome(number, text) if from.0 == 0 => self.spread.answer(number, text),
            Message::Reports(version, reports) if is_first => {
                if self.divided.is_empty() && self.accounts.is_empty() {
                    self.period_at = now;
                }
                let sets_caps = version == self.rules.version;
                self.divided.take_reports(now, u32::from(from.0), &reports, sets_caps);
            }
            Message::Grants(grants) if from.0 == 0 => self.take_grants(now, &grants),
            _ => return None,
        }
        Some(())
    }

    fn take_rules(&mut self, version: u64, text: &str) {
        match RuleSet::from_message(version, text) {
            Ok(rules) => {
                if let Err(error) = rules.store(&self.file) {
                    tracing::warn!(%error, "rules are not kept for a restart");
                }
                self.set_rules(rules);
            }
            Err(why) => tracing::error!(version, why, "rules of daemon 0 are not understood"),
        }
    }

    fn set_rules(&mut self, rules: RuleSet) {
        self.rules = rules.clone();
        self.shares().set_rules(rules);
        let now = self.now();
        self.renew_accounts(now);
        self.publish();
    }

    fn publish(&self) {
        let count = self.rules.rules.all_rules().len() as u64;
        self.shared.metrics.daemon.qos_rules.store(count, Relaxed);
    }

    /// In daemon 0: sends the rules to those that do not have them.
    fn spread_rules(&mut self, now: u64) {
        let version = self.rules.version;
        let text = self.rules.rules.to_text();
        for daemon in self.spread.receivers(now, version) {
            self.send(daemon, &Message::Rules(version, &text));
        }
    }

    /// In daemon 0: carries out a command; the answer as JSON.
    fn execute(&mut self, text: &str) -> String {
        let rules = match self.rules.after(text) {
            Ok(rules) => rules,
            Err(why) => return json!({ "error": why }).to_string(),
        };
        if let Err(error) = rules.store(&self.file) {
            let path = self.file.display();
            return json!({ "error": format!("cannot write {path}: {error}") }).to_string();
        }
        let version = rules.version;
        self.set_rules(rules);
        self.spread.send_at_once();
        let now = self.now();
        self.spread_rules(now);
        json!({ "version": version }).to_string()
    }

    fn asked(&mut self, text: &str, answer: SyncSender<String>) {
        let answer_now = |line: String| {
            let _ = answer.try_send(line);
        };
        match text {
            "show" => answer_now(self.show()),
            _ if self.place.daemon == 0 => answer_now(self.execute(text)),
            _ => {
                let mut bytes = vec![message::SHARES];
                bytes.extend_from_slice(&self.spread.command(text, answer));
                self.shared.net.send(DaemonIndex(0), &bytes, Urgency::Now);
            }
        }
    }

    /// Rules, and the jobs whose requests this daemon started lately, as JSON.
    fn show(&self) -> String {
        let rules = self.rules.rules.all_rules().iter().map(|rule| {
            let text = rule.to_string();
            json!({ "name": rule.name(), "rule": text.strip_prefix("start ").unwrap_or(&text) })
        });
        let usage = |key: &(u32, u64)| self.scheduler.job_usage(key.0, key.1).unwrap_or_default();
        let total: u64 = self.accounts.keys().map(|key| usage(key).device_nanos).sum();
        let jobs = self.accounts.iter().map(|(key, account)| {
            let used = usage(key);
            let limit = |rate: u64| (rate > 0).then_some(rate);
            json!({
                "user": key.0,
                "job": account.facts.job,
                "rule": account.facts.rule,
                "waiting": account.waiting,
                "bytes_waiting": account.bytes_waiting,
                "requests": used.requests,
                "bytes": used.bytes,
                "wait_s": used.wait_nanos as f64 / 1e9,
                "wait_max_s": used.wait_nanos_max as f64 / 1e9,
                "throttled_s": account.throttled_nanos as f64 / 1e9,
                "share": used.device_nanos as f64 / total.max(1) as f64,
                "bytes_per_second_here": limit(account.applied.bytes_per_second_max),
                "operations_per_second_here": limit(account.applied.operations_per_second_max),
            })
        });
        let (rules, jobs): (Vec<_>, Vec<_>) = (rules.collect(), jobs.collect());
        json!({
            "version": self.rules.version,
            "rules": rules,
            "waiting": self.scheduler.queued(),
            "jobs": jobs,
        })
        .to_string()
    }
}

/// The limits of an account by the rules.
fn limits_of(rules: &RuleSet, account: &JobAccount) -> (Limits, Scope) {
    let rule = account
        .rule
        .as_ref()
        .and_then(|name| rules.rules.all_rules().iter().find(|rule| rule.name() == name));
    rule.map_or((Limits::default(), Scope::Job), |rule| (rule.limits(), rule.scope()))
}
