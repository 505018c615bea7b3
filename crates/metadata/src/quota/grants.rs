//! Quota grants: what this service, and the target beside it, may have in use for an account with
//! limited resources. Where nothing is limited, the cost is one check of an empty table.
//!
//! For each account and resource there is a *grant*: usage may grow up to its allowance without
//! asking. A request that needs more draws on the coordinator (`coordinator`), which answers with
//! another allowance, or denies. The coordinator reclaims unused allowance when another service
//! needs it.
//!
//! Invariants
//! 1. Usage grows to its allowance and no further, except by root and by files that change owners.
//! 2. The coordinator's share in the ledger is no less than the allowance. So an allowance that was
//!    sent before a reclaim round and arrives after it does not count (`Grant::floor`), nor does
//!    one for an earlier life of this service (`OutstandingDraw::token`).

use std::collections::BTreeMap;

use wire::attributes::ATTRIBUTES_BYTES;
use wire::quota::{Account, Owner};
use wire::{Errno, ShardIndex};

use crate::core::coding::Put;
use crate::core::context::Context;
use crate::core::effect::{Effect, HostView};
use crate::core::job::{Call, Fact, RESEND_NANOS, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::core::record::Record;
use crate::kernel_cache::grace::GraceFiles;
use crate::quota::usage::{limit_of, limits, resource};

/// Most accounts in one message about usage.
const USAGES_MAX: usize = 1024;
/// The worker whose service has the daemon's target beside it.
const WORKER_OF_TARGET: usize = placement::map::WORKER_OF_TARGET;

/// A request to the coordinator that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct OutstandingDraw {
    token: u64,
    more: u64,
    sent: i64,
}

/// The grant of an account and resource; see the module.
#[derive(Clone, Copy, Default, Debug)]
struct Grant {
    allowance: u64,
    /// Number of the coordinator's last message that reduced the allowance; older grants are
    /// ignored.
    floor: u64,
    outstanding: Option<OutstandingDraw>,
}

/// All grants of a service, by account and resource.
#[derive(Default)]
pub(crate) struct Grants(BTreeMap<(u64, u8), Grant>);

impl Grants {
    /// See `Service::each_tight`.
    pub(crate) fn each_tight(&self, cx: &Context, headroom: u64, each: &mut dyn FnMut(Account)) {
        for (&account, limited) in &cx.state.limited {
            let left = || {
                let used = cx.state.usage.of(account).inodes;
                self.allowance(account, resource::INODES).saturating_sub(used)
            };
            let is_tight = limited.flags & limits::SPACE != 0
                || limited.flags & limits::INODES != 0 && left() < headroom;
            if is_tight {
                each(Account(account));
            }
        }
    }

    fn allowance(&self, account: u64, kind: u8) -> u64 {
        self.0.get(&(account, kind)).map_or(0, |grant| grant.allowance)
    }

    /// Proceeds when one more inode may be in use; root is exempt.
    pub(crate) fn draw_inode(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        owner: Owner,
    ) -> Step<()> {
        if cx.state.limited.is_empty() || call.header.caller.uid == 0 {
            return Ok(());
        }
        self.draw(cx, call, owner, resource::INODES, 1)
    }

    /// Proceeds when this many more bytes of inline contents may be in use.
    pub(crate) fn draw_inline(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        owner: Owner,
        bytes: u64,
    ) -> Step<()> {
        if cx.state.limited.is_empty() || bytes == 0 {
            return Ok(());
        }
        self.draw(cx, call, owner, resource::INLINE, bytes)
    }

    fn draw(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        owner: Owner,
        kind: u8,
        amount: u64,
    ) -> Step<()> {
        for Account(account) in owner.accounts() {
            if !is_limited(cx, account, kind) {
                continue;
            }
            let used = used(cx, account, kind, call.host_view);
            if used.saturating_add(amount) <= self.allowance(account, kind) {
                continue;
            }
            if call.facts.contains(&Fact::Denied(account, kind)) {
                return Err(Stop::Refused(Errno::EDQUOT));
            }
            let token = self.request_more(cx, (account, kind), used, amount);
            return Err(Stop::Wait(Wait::Grant(token)));
        }
        Ok(())
    }

    /// The target needs `more` bytes for an account beyond its allowance.
    pub(crate) fn draw_space(
        &mut self,
        cx: &mut Context,
        account: u64,
        more: u64,
        host_view: &dyn HostView,
    ) {
        if !host_view.is_counted() {
            // The target asks again when it has counted its usage.
            return;
        }
        let used = used(cx, account, resource::SPACE, host_view);
        let allowance = self.allowance(account, resource::SPACE);
        let is_limited = is_limited(cx, account, resource::SPACE);
        if !is_limited || used.saturating_add(more) <= allowance {
            return self.allow_target(cx, account, false);
        }
        self.request_more(cx, (account, resource::SPACE), used, more);
    }

    /// Requests more from the coordinator, unless a request is outstanding. Returns its token.
    fn request_more(&mut self, cx: &mut Context, key: (u64, u8), used: u64, more: u64) -> u64 {
        if let Some(outstanding) = self.0.get(&key).and_then(|grant| grant.outstanding) {
            return outstanding.token;
        }
        let outstanding = OutstandingDraw { token: cx.new_sequence(), more, sent: cx.now };
        self.0.entry(key).or_default().outstanding = Some(outstanding);
        send_draw(cx, key, used, &outstanding);
        outstanding.token
    }

    /// Sends the target its allowance.
    fn allow_target(&mut self, cx: &mut Context, account: u64, denied: bool) {
        let allowance = match is_limited(cx, account, resource::SPACE) {
            true => Some(self.allowance(account, resource::SPACE)),
            false => None,
        };
        if has_target(cx) {
            cx.io.push(Effect::Allow { account, allowance, denied });
        }
    }

    /// At a start: the target counts as before, and nothing is allowed beyond the current usage.
    pub(crate) fn begin_quotas(&mut self, cx: &mut Context) {
        if !has_target(cx) {
            return;
        }
        if cx.state.limited.contains_key(&Account::ALL.0) {
            cx.io.push(Effect::Count);
        }
        let accounts: Vec<u64> = cx.state.limited.keys().copied().collect();
        for account in accounts {
            if is_limited(cx, account, resource::SPACE) {
                self.allow_target(cx, account, false);
            }
        }
    }

    /// Takes a message about quotas.
    pub(crate) fn take_quota(
        &mut self,
        cx: &mut Context,
        grace: &mut GraceFiles,
        message: &Message<'_>,
        host_view: &dyn HostView,
    ) {
        match *message {
            Message::Limit { number, account, flags } => {
                self.limit(cx, number, account, flags, host_view);
            }
            Message::Drawn { token, number, account, resource: kind, allowance, granted } => {
                self.drawn(cx, token, number, (account, kind), allowance, granted != 0);
            }
            Message::Collect { .. } => self.report_usage(cx, grace, message, host_view),
            Message::AskUsage { token, from } => answer_usage(cx, token, from, host_view),
            _ => {}
        }
    }

    /// The limited resources of an account changed: allowances begin with the current usage.
    fn limit(
        &mut self,
        cx: &mut Context,
        number: u64,
        account: u64,
        flags: u8,
        host_view: &dyn HostView,
    ) {
        let known = cx.state.limited.get(&account).copied();
        if known.is_none_or(|known| known.number < number) {
            cx.put(&Record::PutLimited { account, number, flags });
            for kind in resource::ALL {
                self.begin_grant(cx, number, (account, kind), host_view);
            }
        }
        if has_target(cx) && flags & limits::COUNTED != 0 {
            cx.io.push(Effect::Count);
        }
        let waits_for_target = flags & (limits::COUNTED | limits::SPACE) != 0;
        if has_target(cx) && waits_for_target && !host_view.is_counted() {
            // The coordinator asks again until the target has counted its usage.
            return;
        }
        let may = |kind| self.allowance(account, kind).max(used(cx, account, kind, host_view));
        let [inodes, inline, space] = resource::ALL.map(may);
        let group = cx.config.own_group().0;
        let message = Message::Limited { group, number, account, inodes, inline, space };
        cx.send_to_service(cx.config.group(ShardIndex(0)).0, &message);
    }

    fn begin_grant(
        &mut self,
        cx: &mut Context,
        number: u64,
        key: (u64, u8),
        host_view: &dyn HostView,
    ) {
        let (account, kind) = key;
        let outstanding = self.0.get(&key).and_then(|grant| grant.outstanding);
        if is_limited(cx, account, kind) {
            let allowance = used(cx, account, kind, host_view);
            self.0.insert(key, Grant { allowance, floor: number, outstanding });
        } else {
            self.0.remove(&key);
            if let Some(outstanding) = outstanding {
                cx.wake(|wait| *wait == Wait::Grant(outstanding.token));
            }
        }
        if kind == resource::SPACE {
            self.allow_target(cx, account, false);
        }
    }

    /// The coordinator answered.
    fn drawn(
        &mut self,
        cx: &mut Context,
        token: u64,
        number: u64,
        key: (u64, u8),
        allowance: u64,
        is_granted: bool,
    ) {
        let Some(grant) = self.0.get_mut(&key) else { return };
        if grant.outstanding.is_none_or(|outstanding| outstanding.token != token)
            || number < grant.floor
        {
            return;
        }
        grant.outstanding = None;
        grant.allowance = allowance;
        if !is_granted {
            for job in cx.jobs.values_mut() {
                if job.wait == Wait::Grant(token) {
                    job.facts.push(Fact::Denied(key.0, key.1));
                }
            }
        }
        cx.wake(|wait| *wait == Wait::Grant(token));
        if key.1 == resource::SPACE {
            self.allow_target(cx, key.0, !is_granted);
        }
    }

    /// Reports usage, and with `trims` returns the unused allowance.
    fn report_usage(
        &mut self,
        cx: &mut Context,
        grace: &mut GraceFiles,
        message: &Message<'_>,
        host_view: &dyn HostView,
    ) {
        let Message::Collect { number, account, limit, trims } = *message else { return };
        let trims = trims != 0;
        if limit == limits::SPACE && has_target(cx) && !host_view.is_counted() {
            // The target has more in use than it has counted. Its allowance stays.
            return;
        }
        if trims {
            // Last resort before a draw is denied.
            grace.release_grace_files(cx);
        }
        let is_freeing = !cx.state.removals.is_empty() || cx.is_freeing();
        let mut reports = [(0, 0); resource::ALL.len()];
        for (kind, reports) in resource::ALL.into_iter().zip(&mut reports) {
            if limit_of(kind) != limit {
                continue;
            }
            let used = used(cx, account, kind, host_view);
            if trims {
                let grant = self.0.entry((account, kind)).or_default();
                grant.floor = grant.floor.max(number);
                grant.allowance = grant.allowance.min(used);
                if kind == resource::SPACE {
                    self.allow_target(cx, account, false);
                }
            }
            *reports = (used, self.allowance(account, kind).max(used));
        }
        let [inodes, inline, space] = reports;
        let (first, second) =
            if limit == limits::INODES { (inodes, (0, 0)) } else { (inline, space) };
        let message = Message::Collected {
            group: cx.config.own_group().0,
            number,
            account,
            limit,
            used: first.0,
            may: first.1,
            space_used: second.0,
            space_may: second.1,
            freeing: u8::from(is_freeing),
        };
        cx.send_to_service(cx.config.group(ShardIndex(0)).0, &message);
    }

    /// Timer: resends outstanding draws.
    pub(crate) fn tick_grants(&mut self, cx: &mut Context, host_view: &dyn HostView) {
        let now = cx.now;
        let late = |grant: &Grant| {
            grant
                .outstanding
                .filter(|outstanding| outstanding.sent.saturating_add(RESEND_NANOS) <= now)
        };
        let grants = self.0.iter();
        let due: Vec<_> = grants.filter_map(|(&key, grant)| Some((key, late(grant)?))).collect();
        for (key, outstanding) in due {
            if let Some(outstanding) = self.0.get_mut(&key).and_then(|one| one.outstanding.as_mut())
            {
                outstanding.sent = now;
            }
            send_draw(cx, key, used(cx, key.0, key.1, host_view), &outstanding);
        }
        if self.0.values().any(|grant| grant.outstanding.is_some()) {
            cx.wake_at(now.saturating_add(RESEND_NANOS));
        }
    }
}

/// Reports the usage of accounts from `from` on.
fn answer_usage(cx: &mut Context, token: u64, from: u64, host_view: &dyn HostView) {
    if has_target(cx) && !host_view.is_counted() {
        // The coordinator asks again.
        return;
    }
    let mut entries: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let own = cx.state.usage.iter_from(from).take(USAGES_MAX + 1);
    entries.extend(own.map(|(account, used)| (account, (used.inodes, used.bytes))));
    if has_target(cx) {
        host_view.each_space(&mut |account, bytes| {
            if account >= from {
                entries.entry(account).or_default().1 += bytes;
            }
        });
    }
    // The report is complete up to there.
    let end = entries.keys().nth(USAGES_MAX).copied().unwrap_or(u64::MAX);
    let mut encoded = Vec::new();
    for (account, (inodes, space)) in entries.range(..end) {
        account.append_to(&mut encoded);
        inodes.append_to(&mut encoded);
        space.append_to(&mut encoded);
    }
    let group = cx.config.own_group().0;
    let message = Message::AreUsages { group, token, end, entries: &encoded };
    cx.send_to_service(cx.config.group(ShardIndex(0)).0, &message);
}

fn send_draw(
    cx: &mut Context,
    (account, kind): (u64, u8),
    used: u64,
    outstanding: &OutstandingDraw,
) {
    let group = cx.config.own_group().0;
    let &OutstandingDraw { token, more, .. } = outstanding;
    let message = Message::Draw { group, token, account, resource: kind, used, more };
    cx.send_to_service(cx.config.group(ShardIndex(0)).0, &message);
    cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
}

fn used(cx: &Context, account: u64, kind: u8, host_view: &dyn HostView) -> u64 {
    match kind {
        resource::INODES => cx.state.usage.of(account).inodes,
        resource::INLINE => cx.state.usage.of(account).bytes,
        _ if has_target(cx) => host_view.space_used(account),
        _ => 0,
    }
}

/// True if the target is beside this service, and was from the beginning: one that moved has none.
fn has_target(cx: &Context) -> bool {
    cx.config.worker == WORKER_OF_TARGET && cx.config.first == cx.config.daemon
}

/// True if targets count their usage by account.
pub(crate) fn counts_space(cx: &Context) -> bool {
    cx.state.limited.contains_key(&Account::ALL.0)
}

fn is_limited(cx: &Context, account: u64, kind: u8) -> bool {
    let known = cx.state.limited.get(&account);
    known.is_some_and(|limited| limited.flags & limit_of(kind) != 0)
}

/// Owners are read from attributes.
const _: () = assert!(Owner::BYTES < ATTRIBUTES_BYTES);
