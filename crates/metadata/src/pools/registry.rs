//! The registry of pools: the service of shard 0 makes and removes pools, and announces each change to
//! all services until they have acknowledged it; then it answers the request.
//!
//! Invariants
//! 1. The number of a removed pool is given again only after all numbers were given once, and then the
//!    one that was removed first: directories that still name it would use the new pool.

use std::collections::{BTreeMap, BTreeSet};

use wire::limits::SLOT_BYTES;
use wire::pool::{POOL_ID_MAX, PoolTarget, targets};
use wire::{Errno, Reply, ShardIndex, Writer};

use crate::core::config::Group;
use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::job::{Call, RESEND_NANOS, Resend, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::pools::choice::make_pool;
use crate::pools::definition::PoolDefinition;

/// Bytes of one answer to `Request::Pools`: they fit a slot beside the head of a reply.
const LISTED_BYTES_MAX: usize = SLOT_BYTES - 1024;

/// A change of a pool on its way to all services.
#[derive(Debug)]
struct PoolBroadcast {
    left: BTreeSet<u32>,
    resend: Resend,
}

/// Volatile state of the registry.
#[derive(Default)]
pub(crate) struct Registry {
    broadcasts: BTreeMap<u8, PoolBroadcast>,
}

impl Registry {
    /// At a start: announces again what some service may not know.
    pub(crate) fn begin_pools(&mut self, cx: &mut Context) {
        if !cx.state.pools.is_empty() {
            request_reports(cx);
        }
        let unknown = cx.state.pools.iter().filter(|(_, pool)| !pool.is_known);
        let unknown: Vec<u8> = unknown.map(|(&id, _)| id).collect();
        unknown.into_iter().for_each(|id| self.announce(cx, id));
    }

    /// `Request::SetPool`. It runs again when all services know the change, and finds it done.
    pub(crate) fn set_pool(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        name: &[u8],
        targets: &[u8],
    ) -> Step<()> {
        let caller = &call.header.caller;
        if caller.uid != 0 && caller.uid != cx.config.root_uid {
            return Err(Stop::Refused(Errno::EPERM));
        }
        let id = match (find(cx, name), targets.is_empty()) {
            (Some(id), false) if cx.state.pool(id).is_some_and(|one| one.targets != targets) => {
                return Err(Stop::Refused(Errno::EEXIST));
            }
            (Some(id), false) => id,
            (Some(id), true) => {
                self.put_pool(cx, id, name, &[]);
                id
            }
            (None, true) => removed(cx, name).ok_or(Stop::Refused(Errno::ENOENT))?,
            (None, false) => {
                check(cx, targets)?;
                let id = free_id(cx).ok_or(Stop::Refused(Errno::ENOSPC))?;
                self.put_pool(cx, id, name, targets);
                id
            }
        };
        if cx.state.pools.get(&id).is_some_and(|pool| !pool.is_known) {
            return Err(Stop::Wait(Wait::Pools));
        }
        cx.io.reply(call.ticket, &Reply::Number { value: u64::from(id) });
        Ok(())
    }

    fn put_pool(&mut self, cx: &mut Context, id: u8, name: &[u8], targets: &[u8]) {
        let number = cx.new_sequence() + 1;
        let (name, targets) = (name.to_vec(), targets.to_vec());
        let pool = PoolDefinition { number, name, targets, is_known: false };
        cx.put(&pool.record(id));
        self.announce(cx, id);
    }

    /// Services came that know no pools: all pools are set anew.
    pub(crate) fn tell_all(&mut self, cx: &mut Context) {
        let is_here = cx.config.owns(ShardIndex(0));
        let all: Vec<u8> = cx.state.pools.keys().filter(|_| is_here).copied().collect();
        for id in all {
            let Some(pool) = cx.state.pools.get(&id).cloned() else { continue };
            self.put_pool(cx, id, &pool.name, &pool.targets);
        }
    }

    fn announce(&mut self, cx: &mut Context, id: u8) {
        let services = cx.config.map.services(cx.config.workers);
        let left = services.map(|it| Group::of(it).0).collect();
        let resend = Resend::after(cx.now, RESEND_NANOS);
        self.broadcasts.insert(id, PoolBroadcast { left, resend });
        self.send_pool(cx, id);
    }

    fn send_pool(&mut self, cx: &mut Context, id: u8) {
        let Some(PoolDefinition { number, name, targets, .. }) = cx.state.pools.get(&id).cloned()
        else {
            return;
        };
        let Some(broadcast) = self.broadcasts.get(&id) else { return };
        let at = broadcast.resend.at;
        let message = Message::Pool { number, id, name: &name, targets: &targets };
        for group in broadcast.left.clone() {
            cx.send_to_service(group, &message);
        }
        cx.wake_at(at);
    }

    /// A service knows a pool.
    pub(crate) fn pool_known(&mut self, cx: &mut Context, group: u32, number: u64, id: u8) {
        let Some(pool) = cx.state.pools.get(&id).filter(|pool| pool.number == number) else {
            return;
        };
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        if !broadcast.left.remove(&group) || !broadcast.left.is_empty() {
            return;
        }
        let pool = PoolDefinition { is_known: true, ..pool.clone() };
        self.broadcasts.remove(&id);
        cx.put(&pool.record(id));
        cx.wake(|wait| *wait == Wait::Pools);
    }

    /// Timer: announces again what was not acknowledged.
    pub(crate) fn tick_pools(&mut self, cx: &mut Context) {
        let mut due = Vec::new();
        for (&id, broadcast) in &mut self.broadcasts {
            if broadcast.resend.is_due(cx.now) {
                due.push(id);
            }
            cx.timer = cx.timer.min(broadcast.resend.at);
        }
        due.into_iter().for_each(|id| self.send_pool(cx, id));
    }
}

/// `Request::Pools`.
pub(crate) fn list_pools(cx: &mut Context, call: &Call<'_>, after: u8) -> Step<()> {
    let mut bytes = vec![0; LISTED_BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    for (&id, pool) in cx.state.pools.range(after.saturating_add(1)..) {
        let entry = pool.entry(id);
        if pool.is_removed() || after == u8::MAX {
            continue;
        }
        if entry.encoded_bytes() > writer.space_left() {
            break;
        }
        entry.encode(&mut writer);
    }
    let length = writer.len();
    bytes.truncate(length);
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

/// `Message::Pool`: a change that the registry made.
pub(crate) fn take_pool(cx: &mut Context, message: &Message<'_>) {
    let Message::Pool { number, id, name, targets } = *message else { return };
    if cx.state.pools.get(&id).is_none_or(|known| known.number < number) {
        let (name, targets) = (name.to_vec(), targets.to_vec());
        cx.put(&PoolDefinition { number, name, targets, is_known: true }.record(id));
    }
    request_reports(cx);
    let group = cx.config.own_group().0;
    let registry = cx.config.group(ShardIndex(0)).0;
    cx.send_to_service(registry, &Message::PoolKnown { group, number, id });
}

/// The host reports transfers while there are pools, and keeps pools to what they may use.
fn request_reports(cx: &mut Context) {
    for (&id, pool) in &cx.state.pools {
        let one = |one: PoolTarget| (one.target, one.limit());
        let targets = targets(&pool.targets).map(one).collect();
        cx.io.push(Effect::PoolTargets { id, targets });
    }
    let is_requested = cx.state.pools.values().any(|pool| !pool.is_removed());
    cx.io.push(Effect::ReportTransfers { is_requested });
}

/// The pool of this name.
fn find(cx: &Context, name: &[u8]) -> Option<u8> {
    let mut all = cx.state.pools.iter();
    all.find(|(_, pool)| !pool.is_removed() && pool.name == name).map(|(&id, _)| id)
}

/// The pool of this name that was removed last.
fn removed(cx: &Context, name: &[u8]) -> Option<u8> {
    let all = cx.state.pools.iter().filter(|(_, pool)| pool.is_removed() && pool.name == name);
    all.max_by_key(|(_, pool)| pool.number).map(|(&id, _)| id)
}

fn free_id(cx: &Context) -> Option<u8> {
    let never_given = (1..=POOL_ID_MAX).find(|id| !cx.state.pools.contains_key(id));
    let removed = || {
        let all = cx.state.pools.iter().filter(|(_, pool)| pool.is_removed() && pool.is_known);
        all.min_by_key(|(_, pool)| pool.number).map(|(&id, _)| id)
    };
    never_given.or_else(removed)
}

fn check(cx: &Context, bytes: &[u8]) -> Step<()> {
    let count = cx.config.map.daemon_count();
    let is_pool = make_pool(bytes).is_some();
    match is_pool && targets(bytes).all(|one| one.target.0 < count) {
        true => Ok(()),
        false => Err(Stop::Refused(Errno::EINVAL)),
    }
}
