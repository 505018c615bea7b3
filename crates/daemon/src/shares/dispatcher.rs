//! The thread that has the requests that wait: they pass the limits of their accounts (`account_line`),
//! then wait for their turn on the way to their daemon (`device`), and go back to their workers.
//! It sleeps while nothing waits and no rule is in force.
//!
//! `shown`: the view of people on it.

pub(super) mod shown;

use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::kept_record::KeptRecord;
use crate::shared::network::message;
use crate::shares::Shares;
use crate::shares::account_line::{AccountLine, LineEntry};
use crate::shares::accounts::{JobAccount, ShareRange};
use crate::shares::caps::{CapPlace, DividedCaps};
use crate::shares::device::{AccountKey, AccountLimits, Device, WayTicket};
use crate::shares::dispatcher::shown::user_of_show;
use crate::shares::inbox::{DispatcherMessage, HeldRequest, KnownDaemons};
use crate::shares::local::{self, LocalBytes};
use crate::shares::pool_limits::{PoolLimits, Way, way_of};
use crate::shares::rule_set::{CommandId, RuleSet, own_user_of};
use crate::shares::spread::Spread;
use net::Urgency;
use qos::division::PERIOD_NANOS;
use qos::entitlement::WINDOW_PERIODS;
use qos::exchange::{CapGrant, CapKey, Message, Token};
use qos::incoming::Incoming;
use qos::rules::{Rule, Scope};
use qos::scheduler::{Limits, Request, Work};
use serde_json::json;
use shm::activity::{Tags, Taken};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::DaemonIndex;

/// An account without requests is forgotten after this time.
const IDLE_NANOS: u64 = 30_000_000_000;
/// People are told of windows of 5 s.
const _: () = assert!(WINDOW_PERIODS as u64 * PERIOD_NANOS == 5_000_000_000);

/// Writes to a part of a file that wait.
struct RangeUse {
    account: AccountKey,
    /// Their user's own account, if they came to its line first.
    own: Option<AccountKey>,
    count: u32,
}

/// Requests that pass the line of a user's own account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnPass {
    /// Those that its limits let pass.
    AsItsLimits,
    /// All: another user waits for them.
    All,
}

/// A request that has not started.
struct WaitingRequest {
    held: HeldRequest,
    key: AccountKey,
    /// Its user's own account, if it came to its line first.
    own: Option<AccountKey>,
    came_at: u64,
}

/// See the module.
pub(crate) struct Dispatcher {
    shared: Arc<Shared>,
    /// Where the rules are kept.
    record: KeptRecord,
    rules: RuleSet,
    accounts: BTreeMap<AccountKey, AccountLine>,
    /// Those whose limits hold back requests.
    lined: BTreeSet<AccountKey>,
    /// The ways to daemons.
    devices: BTreeMap<Way, Device>,
    /// Those on which requests wait.
    busy: BTreeSet<Way>,
    /// Requests that have not started, by number.
    waiting: BTreeMap<u64, WaitingRequest>,
    last_number: u64,
    ranges: BTreeMap<ShareRange, RangeUse>,
    /// Requests on their way that count for an account of their user's own, too.
    on_own: BTreeMap<WayTicket, AccountKey>,
    place: CapPlace,
    divided: DividedCaps,
    pools: PoolLimits,
    /// Other hosts on their way to this daemon, by pool.
    incoming: BTreeMap<u8, Incoming>,
    local: LocalBytes,
    spread: Spread,
    /// Nanoseconds since 1970 at `begun`.
    epoch: u64,
    begun: Instant,
    period_at: u64,
}

impl Dispatcher {
    /// With the rules that `Shares` has.
    pub(crate) fn new(shared: Arc<Shared>, record: KeptRecord) -> Dispatcher {
        let rules = shared.shares.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
        let count = shared.net.router.map.daemon_count();
        let me = shared.net.router.me;
        // The home daemon of the only host has all of a cap.
        let daemons = if shared.net.host_count == count { 1 } else { u32::from(count) };
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(epoch.as_nanos()).unwrap_or(0);
        let spread = match me.0 {
            0 => Spread::of_first(epoch, count, &rules),
            _ => Spread::of_other(epoch),
        };
        Dispatcher {
            shared,
            record,
            rules,
            accounts: BTreeMap::new(),
            lined: BTreeSet::new(),
            devices: BTreeMap::new(),
            busy: BTreeSet::new(),
            waiting: BTreeMap::new(),
            last_number: 0,
            ranges: BTreeMap::new(),
            on_own: BTreeMap::new(),
            place: CapPlace { daemon: u32::from(me.0), daemons },
            divided: DividedCaps::new(epoch, daemons),
            pools: PoolLimits::default(),
            incoming: BTreeMap::new(),
            local: LocalBytes::default(),
            spread,
            epoch,
            begun: Instant::now(),
            period_at: 0,
        }
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
        if self.shared.host.activity.is_some() {
            LocalBytes::begin(&self.shared.shares.activity);
        }
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
            if now >= self.local.look_at && self.limits_bytes() {
                self.look_at_local_bytes(now);
            }
            if now >= self.period_at {
                self.end_period(now);
            }
            self.start_requests(now);
            self.shared.net.sender.flush();
            if self.rules.is_empty() && self.is_idle() {
                self.shares().rest();
            }
        }
    }

    /// True if no request waits or is on its way.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.devices.values().all(|device| device.in_flight() == 0)
    }

    /// True if something changes with time.
    fn has_work(&self) -> bool {
        let is_spread = !self.spread.is_open(self.rules.version);
        let has_state = !self.accounts.is_empty() || !self.divided.is_empty();
        let has_state = has_state || !self.incoming.is_empty();
        has_state || !is_spread || self.limits_bytes() || self.pools.is_in_use()
    }

    /// True if this is the home daemon, and a rule limits bytes.
    fn limits_bytes(&self) -> bool {
        let has_cap = |rule: &Rule| rule.limits().bytes_per_second_max > 0;
        self.shared.host.activity.is_some() && self.rules.rules.all_rules().iter().any(has_cap)
    }

    /// When to wake up without a message; `None`: never.
    fn wake_at(&self) -> Option<Instant> {
        if !self.has_work() {
            return None;
        }
        let now = self.now();
        let lines = self.lined.iter().filter_map(|key| self.accounts.get(key)?.opens_at(now));
        let ways = self.busy.iter().filter_map(|&way| match self.pools.opens_at(now, way) {
            opens_at if opens_at > now => Some(opens_at),
            _ => self.devices.get(&way)?.deadline(),
        });
        let looks = self.limits_bytes().then_some(self.local.look_at);
        let at = lines.chain(ways).chain(looks).fold(self.period_at, u64::min);
        Some(Instant::now() + Duration::from_nanos(at.saturating_sub(now)))
    }

    fn take(&mut self, now: u64, message: DispatcherMessage) {
        match message {
            DispatcherMessage::Held(held) => self.push(now, held),
            DispatcherMessage::Ended(ticket) => self.end(now, ticket),
            DispatcherMessage::Pool(pool, targets) => self.pools.set(pool, &targets),
            DispatcherMessage::Up(peer) => {
                self.spread.note_up(peer.0);
                self.period_at = now;
            }
            DispatcherMessage::Daemons(known) => self.set_daemons(now, &known),
            DispatcherMessage::Peer(from, bytes) => {
                if self.take_peer(now, from, &bytes).is_none() {
                    tracing::warn!(peer = from.0, "malformed message about shares");
                }
            }
            DispatcherMessage::Asked(text, answer) => self.asked(now, &text, answer),
        }
    }

    // ---- requests ----

    /// A request arrives.
    fn push(&mut self, now: u64, held: HeldRequest) {
        // Whatever the job: what is written to the same bytes, or read there, comes after writes that
        // wait. Reads hold up nothing, or a job with a low limit would slow all readers of its input.
        let used = held.range.and_then(|range| self.ranges.get(&range));
        let used = used.map(|used| (used.account, used.own));
        let (key, mut own) = used.unwrap_or_else(|| held.account.keys());
        if let Some(of_other) = own.filter(|(user, _)| *user != held.account.user) {
            // Nobody waits for a limit that another user gave itself.
            self.pass_own(now, of_other, OwnPass::All);
            own = None;
        }
        if let Some(range) = held.range.filter(|_| held.work == Work::Write) {
            let new = RangeUse { account: key, own, count: 0 };
            self.ranges.entry(range).or_insert(new).count += 1;
        }
        self.last_number += 1;
        let entry = LineEntry { token: self.last_number, bytes: held.bytes };
        let moves_bytes = held.work != Work::Metadata;
        let of_user = held.account.own.as_ref().filter(|_| own.is_some());
        let facts = Arc::clone(of_user.unwrap_or(&held.account));
        self.waiting.insert(entry.token, WaitingRequest { held, key, own, came_at: now });
        let first = own.unwrap_or(key);
        self.account(now, first, &facts).arrive(now, entry, moves_bytes);
        self.pass(now, first);
    }

    /// The account of this name; a new one is that of `facts`.
    fn account(&mut self, now: u64, key: AccountKey, facts: &Arc<JobAccount>) -> &mut AccountLine {
        if self.accounts.is_empty() {
            // It slept until now.
            self.period_at = now;
        }
        let (rules, place) = (&self.rules, self.place);
        self.accounts.entry(key).or_insert_with(|| {
            AccountLine::new(now, Arc::clone(facts), limits_of(rules, facts), place)
        })
    }

    /// Requests of an account that its limits let pass go to their ways.
    fn pass(&mut self, now: u64, key: AccountKey) {
        let Some(account) = self.accounts.get_mut(&key) else { return };
        if account.facts.is_own {
            return self.pass_own(now, key, OwnPass::AsItsLimits);
        }
        let mut unscheduled = Vec::new();
        while let Some(entry) = account.pass(now) {
            let Some(one) = self.waiting.get(&entry.token) else { continue };
            let (user, job) = key;
            let HeldRequest { work, bytes, way, .. } = one.held;
            let request = Request { user, job, work, bytes, token: entry.token };
            let limits = account.on_a_way();
            let device = match self.devices.entry(way) {
                Entry::Occupied(known) => Some(known.into_mut()),
                Entry::Vacant(new) => Device::new().ok().map(|device| new.insert(device)),
            };
            if device.is_some_and(|device| device.push(now, limits, request)) {
                self.busy.insert(way);
                if self.pools.arrive(now, way, bytes, self.place) {
                    // The arbiter is to know at once.
                    self.period_at = now;
                }
            } else {
                // The way knows as many users as it can.
                account.passed = account.passed.saturating_sub(1);
                unscheduled.push((way.daemon, entry.token));
            }
        }
        self.note_line(key);
        for (daemon, token) in unscheduled {
            self.start(now, token, 0, None);
            tracing::debug!(daemon = daemon.0, "a request starts without waiting for its share");
        }
    }

    /// Starts what may start.
    fn start_requests(&mut self, now: u64) {
        for key in self.lined.clone() {
            self.pass(now, key);
        }
        let mut busy = std::mem::take(&mut self.busy);
        busy.retain(|&way| {
            while self.pools.opens_at(now, way) <= now
                && let Some(started) = self.devices.get_mut(&way).and_then(|way| way.pop(now))
            {
                let ticket = WayTicket { way, ticket: started.ticket };
                self.pools.start(now, way, started.request.bytes);
                self.start(now, started.request.token, started.device_nanos, Some(ticket));
            }
            self.devices.get(&way).is_some_and(|way| way.deadline().is_some())
        });
        self.busy = busy;
        self.shared.metrics.daemon.qos_waiting.store(self.waiting.len() as u64, Relaxed);
    }

    /// Hands a request back to its worker; without a ticket nobody waits for its end.
    fn start(&mut self, now: u64, token: u64, device_nanos: u64, ticket: Option<WayTicket>) {
        let Some(one) = self.waiting.remove(&token) else { return };
        let WaitingRequest { held, key, own, came_at } = one;
        match (own, ticket) {
            (Some(own), Some(ticket)) => drop(self.on_own.insert(ticket, own)),
            (Some(own), None) => self.leave(own),
            (None, _) => {}
        }
        if let Some(account) = self.accounts.get_mut(&key) {
            account.start(now, came_at, held.bytes, device_nanos);
        }
        if let Some(range) = held.range.filter(|_| held.work == Work::Write)
            && let Some(used) = self.ranges.get_mut(&range)
        {
            used.count -= 1;
            if used.count == 0 {
                self.ranges.remove(&range);
            }
        }
        let metrics = &self.shared.metrics.daemon;
        metrics.qos_requests.fetch_add(1, Relaxed);
        metrics.qos_bytes.fetch_add(held.bytes, Relaxed);
        metrics.qos_urgent.fetch_add(u64::from(held.work == Work::Urgent), Relaxed);
        let HeldRequest { client, slot, worker, .. } = held;
        let micros = u32::try_from(now.saturating_sub(came_at) / 1000).unwrap_or(u32::MAX);
        client.slots.set_held_micros(slot.into(), micros);
        let ticket = ticket.map(|ticket| self.shares().start_ticket(ticket));
        let message = WorkerMessage::Released { client, slot, ticket };
        self.shared.inboxes.send_to_worker(worker, message);
    }

    /// A request that was started is complete.
    fn end(&mut self, now: u64, WayTicket { way, ticket }: WayTicket) {
        if let Some(own) = self.on_own.remove(&WayTicket { way, ticket }) {
            self.leave(own);
        }
        let device = self.devices.get_mut(&way);
        if let Some(key) = device.and_then(|device| device.complete(now, ticket)) {
            self.leave(key);
        }
    }

    /// Requests of a user's own account pass its limits, and come to those of the account that the rules
    /// of the instance give them, as if there were no others: an own rule loosens nothing, for nobody.
    fn pass_own(&mut self, now: u64, own: AccountKey, which: OwnPass) {
        let mut keys = BTreeSet::new();
        while let Some(line) = self.accounts.get_mut(&own)
            && let Some(entry) = match which {
                OwnPass::AsItsLimits => line.pass(now),
                OwnPass::All => line.pass_anyway(now),
            }
        {
            let Some(one) = self.waiting.get(&entry.token) else { continue };
            // Its time at a device counts for the next account.
            line.start(now, one.came_at, entry.bytes, 0);
            let (key, facts) = (one.key, Arc::clone(&one.held.account));
            let moves_bytes = one.held.work != Work::Metadata;
            self.account(now, key, &facts).arrive(now, entry, moves_bytes);
            keys.insert(key);
        }
        self.note_line(own);
        keys.into_iter().for_each(|key| self.pass(now, key));
    }

    /// Notes whether requests of an account wait for its limits.
    fn note_line(&mut self, key: AccountKey) {
        if self.accounts.get(&key).is_some_and(AccountLine::has_line) {
            self.lined.insert(key);
        } else {
            self.lined.remove(&key);
        }
    }

    /// A request of an account is not on its way any more.
    fn leave(&mut self, key: AccountKey) {
        if let Some(account) = self.accounts.get_mut(&key) {
            account.passed = account.passed.saturating_sub(1);
        }
    }

    // ---- bytes without requests ----

    /// Has accounts pay for bytes that their processes moved without a request, and tells these how fast
    /// they may move more.
    fn look_at_local_bytes(&mut self, now: u64) {
        let shared = Arc::clone(&self.shared);
        let Some(activity) = &shared.host.activity else { return };
        let shares = &shared.shares;
        let generation = shares.generation.load(Acquire);
        let rules = &self.rules;
        let is_limited =
            |account: &JobAccount| limits_of(rules, account).0.bytes_per_second_max > 0;
        let writeback = shares.writeback.load(Relaxed);
        let find = |taken: &Taken, operation| {
            if taken.owner.pid == writeback {
                return None;
            }
            let tags = Tags { uid: activity.user_of(taken), ..taken.owner.tags };
            let account = shares.find_account(&tags, operation, None);
            let is_any = is_limited(&account) || account.own.as_deref().is_some_and(is_limited);
            is_any.then(|| Arc::new(account))
        };
        let counted = self.local.look(now, &shares.activity, generation, &find);
        let mut paces = BTreeMap::new();
        for (key, sum) in local::sums_of(&counted) {
            let account = self.account(now, key, &sum.facts);
            let held_nanos = account.note_counted(now, sum.bytes);
            let mib_nanos = local::nanos_of_mib(account.rates().0, sum.active);
            paces.insert(key, (mib_nanos, held_nanos));
        }
        counted.iter().for_each(|one| one.pace_by(&shares.activity, &paces));
    }

    // ---- limits ----

    /// The rules have changed: accounts get the limits of theirs, or none.
    fn renew_accounts(&mut self, now: u64) {
        for account in self.accounts.values_mut() {
            account.set_limits(now, limits_of(&self.rules, &account.facts), self.place);
        }
        self.apply_to_ways(now);
    }

    /// Gives the ways the limits of all accounts as they are now.
    fn apply_to_ways(&mut self, now: u64) {
        for device in self.devices.values_mut() {
            for (&key, account) in &self.accounts {
                if device.knows(key) {
                    device.set_limits(now, key, account.on_a_way());
                }
            }
        }
    }

    // ---- periods ----

    fn end_period(&mut self, now: u64) {
        self.period_at = now + PERIOD_NANOS;
        self.spread_rules(now);
        if !self.waiting.is_empty() {
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
            self.accounts.remove(&key);
            self.lined.remove(&key);
            for device in self.devices.values_mut() {
                device.set_limits(now, key, AccountLimits::usual());
            }
        }
        self.accounts.values_mut().for_each(|account| account.apply_parts(now));
        self.apply_to_ways(now);
        self.report_uses(now);
        self.note_shares(now);
        self.divide_incoming(now);
    }

    /// Tells the daemons of ways on which requests wait what jobs got there.
    fn report_uses(&mut self, now: u64) {
        if self.place.daemons < 2 {
            return;
        }
        let mut all = Vec::new();
        for (way, device) in &mut self.devices {
            all.extend(device.uses_of_period(now).map(|uses| (*way, uses)));
        }
        for (way, uses) in all {
            self.send(way.daemon.0, &Message::Uses(way.pool, uses));
        }
    }

    /// Tells the hosts on their way to this daemon how large their windows are to be.
    fn divide_incoming(&mut self, now: u64) {
        let mut factors = Vec::new();
        self.incoming.retain(|&pool, incoming| {
            factors.extend(
                incoming.divide(now).into_iter().map(|(host, factor)| (host, pool, factor)),
            );
            !incoming.is_empty()
        });
        for (host, pool, factor) in factors {
            if let Ok(host) = u16::try_from(host) {
                self.send(host, &Message::Factor(pool, (factor * 1000.0) as u32));
            }
        }
    }

    /// Notes what accounts got in the period, of that to which they were entitled.
    fn note_shares(&mut self, now: u64) {
        let mut shares: BTreeMap<AccountKey, (u64, u64)> = BTreeMap::new();
        for share in self.devices.values_mut().flat_map(|device| device.end_period(now)) {
            let (got, entitled) = shares.entry(share.key).or_default();
            *got = got.saturating_add(share.got);
            *entitled = entitled.saturating_add(share.entitled);
        }
        for (key, account) in &mut self.accounts {
            if let Some(sums) = account.share.note(shares.get(key).copied()) {
                self.shared.shares.sums.add(&account.facts.job, sums);
            }
        }
        let short = self.accounts.values().filter(|account| account.share.is_short()).count();
        self.shared.metrics.daemon.qos_jobs_short.store(short as u64, Relaxed);
    }

    /// Reports demand to the arbiter; in the arbiter, divides the caps.
    fn report(&mut self, now: u64) {
        let mut reports = Vec::new();
        self.pools.report(now, &mut reports);
        for (&(user, job), account) in &mut self.accounts {
            let (bytes, requests) = (account.end_period(PERIOD_NANOS), account.waiting);
            for (part, token, waiting) in [
                (&mut account.bytes_part, Token::Bytes, bytes),
                (&mut account.operations_part, Token::Operations, requests),
            ] {
                let key = CapKey { user, job, token };
                reports.extend(part.as_mut().and_then(|part| part.report(now, key, waiting)));
            }
        }
        if self.place.daemons < 2 {
            return;
        }
        if !self.spread.is_arbiter() {
            if !reports.is_empty() {
                let reports = Message::Reports(self.rules.version, reports);
                self.send(self.spread.arbiter(), &reports);
            }
            return;
        }
        let own = self.place.daemon;
        self.divided.take_reports(now, own, &reports, true);
        for (daemon, grants) in self.divided.divide(now) {
            match u16::try_from(daemon) {
                Ok(_) if daemon == own => self.take_grants(now, &grants),
                Ok(daemon) => self.send(daemon, &Message::Grants(grants)),
                Err(_) => {}
            }
        }
    }

    fn take_grants(&mut self, now: u64, grants: &[CapGrant]) {
        for grant in grants {
            if let Some(way) = way_of(&grant.key) {
                self.pools.take_grant(now, way, self.place.daemon, grant);
                continue;
            }
            let CapKey { user, job, token } = grant.key;
            let Some(account) = self.accounts.get_mut(&(user, job)) else { continue };
            let part = match token {
                Token::Bytes => &mut account.bytes_part,
                Token::Operations => &mut account.operations_part,
            };
            part.iter_mut().for_each(|part| part.take_grant(now, self.place.daemon, grant));
            account.apply_parts(now);
        }
    }

    // ---- other daemons, and commands ----

    /// Daemons were added, or leave.
    fn set_daemons(&mut self, now: u64, known: &KnownDaemons) {
        let own = self.shared.net.router.me.0;
        let count = u32::from(known.count);
        self.pools.set_left(&known.left);
        // One host with all daemons does not grow.
        if self.place.daemons > 1 && count > self.place.daemons {
            self.place.daemons = count;
            self.divided.grow(count);
            self.accounts.values_mut().for_each(|account| account.grow(self.place));
        }
        if self.spread.set_daemons(now, own, known) {
            tracing::info!(arbiter = known.arbiter, "another daemon keeps the rules");
            // It knows nothing of the grants of the one before, and waits until they have ended.
            self.divided = DividedCaps::new(now, self.place.daemons);
            self.accounts.values_mut().for_each(|it| it.renew_parts(now, self.place));
            self.pools.renew_parts(now, self.place);
            self.apply_to_ways(now);
        }
        self.period_at = now;
    }

    fn send(&self, daemon: u16, what: &Message<'_>) {
        let mut bytes = Vec::new();
        what.encode(&mut bytes);
        self.send_bytes(daemon, &bytes);
    }

    fn send_bytes(&self, daemon: u16, what: &[u8]) {
        let bytes = [&[message::SHARES], what].concat();
        self.shared.net.send(DaemonIndex(daemon), &bytes, Urgency::Now);
    }

    fn take_peer(&mut self, now: u64, from: DaemonIndex, bytes: &[u8]) -> Option<()> {
        let is_arbiter = self.spread.is_arbiter();
        let is_of_arbiter = from.0 == self.spread.arbiter();
        match Message::decode(bytes)? {
            Message::Rules(version, text) if is_arbiter != is_of_arbiter => {
                self.meet_rules(now, from.0, (version, text));
            }
            Message::Has(version) if is_arbiter => self.spread.note_has(from.0, version),
            Message::Command(number, text) if is_arbiter && self.spread.may_decide(now) => {
                let answer = self.execute(text, Some((from.0, number)));
                self.send(from.0, &Message::Outcome(number, &answer));
            }
            Message::Outcome(number, text) => self.spread.answer(number, text),
            Message::Reports(version, reports) if is_arbiter => {
                if self.divided.has_new(&reports) {
                    // Its sender has nothing until it is answered.
                    self.period_at = now;
                }
                let sets_caps = version == self.rules.version;
                self.divided.take_reports(now, u32::from(from.0), &reports, sets_caps);
            }
            Message::Grants(grants) if is_of_arbiter => self.take_grants(now, &grants),
            Message::Uses(pool, uses) => {
                self.incoming.entry(pool).or_default().report(now, u32::from(from.0), uses);
            }
            Message::Factor(pool, thousandths) => {
                let way = self.devices.get_mut(&Way { daemon: from, pool });
                way.into_iter()
                    .for_each(|way| way.set_factor(now, f64::from(thousandths) / 1000.0));
            }
            // One of the two does not know the arbiter yet: what is needed comes again.
            _ => {}
        }
        Some(())
    }

    /// Another daemon has these rules.
    fn meet_rules(&mut self, now: u64, from: u16, sent: (u64, &str)) {
        match self.spread.meet(&self.rules, from, sent) {
            Ok(Some(rules)) => {
                if let Err(error) = self.record.replace(rules.to_record().as_bytes()) {
                    tracing::warn!(%error, "rules are not kept for a restart");
                }
                self.set_rules(rules);
                self.period_at = now;
            }
            Ok(None) => {}
            Err(why) => {
                tracing::error!(from, version = sent.0, why, "rules are not understood");
            }
        }
        if from == self.spread.arbiter() {
            self.send_bytes(from, &Spread::answer_to_rules(&self.rules, sent));
        }
    }

    fn set_rules(&mut self, rules: RuleSet) {
        self.rules = rules.clone();
        self.shares().set_rules(rules);
        let now = self.now();
        self.renew_accounts(now);
        self.local.look_at = now;
        if !self.limits_bytes() {
            self.local.end(&self.shared.shares.activity);
        }
        self.publish();
    }

    fn publish(&self) {
        let count = self.rules.rules.all_rules().len() as u64;
        self.shared.metrics.daemon.qos_rules.store(count, Relaxed);
    }

    /// In the arbiter: sends the rules to those that do not have them. In others: sends it commands.
    fn spread_rules(&mut self, now: u64) {
        let version = self.rules.version;
        let receivers = self.spread.receivers(now, version);
        if !receivers.is_empty() {
            let text = self.rules.rules.to_text();
            let rules = Message::Rules(version, &text);
            receivers.into_iter().for_each(|daemon| self.send(daemon, &rules));
        }
        for command in self.spread.commands_due(now) {
            if !self.spread.is_arbiter() {
                self.send_bytes(self.spread.arbiter(), &command);
            } else if self.spread.may_decide(now)
                && let Some(Message::Command(number, text)) = Message::decode(&command)
            {
                // It was for the arbiter before.
                let answer = self.execute(text, Some((self.shared.net.router.me.0, number)));
                self.spread.answer(number, &answer);
            }
        }
    }

    /// In the arbiter: carries out a command, one of another daemon once; the answer as JSON.
    fn execute(&mut self, text: &str, of_other: Option<CommandId>) -> String {
        let done = |it: &Dispatcher| {
            let warnings = it.rules.warnings(own_user_of(text));
            json!({ "version": it.rules.version, "warnings": warnings }).to_string()
        };
        if of_other.is_some_and(|command| self.rules.has_done(command)) {
            return done(self);
        }
        let mut rules = match self.rules.after(text) {
            Ok(rules) => rules,
            Err(why) => return json!({ "error": why }).to_string(),
        };
        of_other.into_iter().for_each(|command| rules.note_done(command));
        if let Some(why) = self.fault_of_minima(&rules, text) {
            return json!({ "error": why }).to_string();
        }
        if let Err(error) = self.record.replace(rules.to_record().as_bytes()) {
            let path = self.record.path().display();
            return json!({ "error": format!("cannot write {path}: {error}") }).to_string();
        }
        self.set_rules(rules);
        self.spread.decided();
        let now = self.now();
        self.spread_rules(now);
        done(self)
    }

    fn asked(&mut self, now: u64, text: &str, answer: SyncSender<String>) {
        let answer_now = |line: String| {
            let _ = answer.try_send(line);
        };
        match text {
            "show" => answer_now(self.show()),
            _ if let Some(user) = user_of_show(text) => answer_now(self.show_own(user)),
            _ if self.spread.is_arbiter() && self.spread.may_decide(now) => {
                answer_now(self.execute(text, None));
            }
            _ if self.spread.is_arbiter() => {
                let why = "this daemon has just begun to keep the rules: try again";
                answer_now(json!({ "error": why }).to_string());
            }
            // Its own ways may be slower than those of the arbiter.
            _ if let Ok(rules) = self.rules.after(text)
                && let Some(why) = self.fault_of_minima(&rules, text) =>
            {
                answer_now(json!({ "error": why }).to_string());
            }
            _ => {
                self.spread.command(now, text, answer);
                self.spread_rules(now);
            }
        }
    }
}

/// The limits of an account by the rules.
fn limits_of(rules: &RuleSet, account: &JobAccount) -> (Limits, Scope) {
    let owner = account.is_own.then_some(account.user);
    let rule = account.rule.as_ref().and_then(|name| rules.rules.named(owner, name));
    rule.map_or((Limits::default(), Scope::Job), |rule| (rule.limits(), rule.scope()))
}
