//! The target of a new file in a directory with a pool: the one with the largest
//! `max_perf / (open_count + 1)` (`qos::pool`; S7, section 5 of the Sunway paper).
//!
//! Open files are those that this service created in the pool and that are open on some host: each
//! choice looks at some of them. They are volatile: after a restart counting begins anew.
//!
//!   created --seen open--> open --seen closed--> forgotten
//!      '------5 s later, never seen open------------^
//!
//! Targets whose daemons are down get no new files while one of the pool is up; those of daemons that
//! leave the instance, or left it, get none. A pool of which all left chooses nothing: its directories
//! are as if they had none.
//!
//! Slow targets (`qos::slow`) get no new files, and are told that they are slow, again and again: what is
//! read of them moves away (`data::migration`). A target's performance is corrected by its rates where
//! they are its own and not those of its clients: upwards whenever it is faster than known, downwards
//! while it is slower than its peers and no longer.
//!
//! Invariants
//! 1. The same creations, closes and reports in the same order choose the same targets, while
//!    the same daemons are there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qos::pool::Pool;
use qos::slow::{Diagnosis, Finding};
use wire::attributes::placement;
use wire::pool::targets;
use wire::{Inode, Layout};

use crate::core::context::Context;
use crate::core::effect::{Effect, HostView, TargetPresence};
use crate::pools::definition::PoolDefinition;
use crate::pools::rates::{EndedSpan, Rates, TransferReport};

/// Open files that a choice looks at: with up to so many, it knows all.
const LOOKED_AT: usize = 64;
/// Open files that are counted. Beyond, the oldest count as closed.
const OBJECTS_MAX: usize = 65_536;
/// How long a file counts that was not seen open: its creator opens it after the reply, or was killed.
const UNSEEN_NANOS: i64 = 5_000_000_000;
/// How often the presence of a pool's targets is asked for: the network takes longer to see a death, and
/// a thousand targets are not asked for with each file.
const PRESENCE_NANOS: i64 = 10_000_000;

/// A file that was created in a pool.
#[derive(Clone, Copy, Debug)]
struct PoolObject {
    inode: Inode,
    pool: u8,
    target: u32,
    is_seen: bool,
    until: i64,
}

/// A pool with the number of the definition that it was made of.
#[derive(Debug)]
struct LivePool {
    number: u64,
    pool: Pool,
    diagnosis: Diagnosis,
    /// When it is asked again which of its targets are there.
    presence_at: i64,
}

impl LivePool {
    /// Takes up which targets get new files.
    fn see_presence(&mut self, now: i64, host_view: &dyn HostView) {
        if now < self.presence_at {
            return;
        }
        self.presence_at = now.saturating_add(PRESENCE_NANOS);
        let ask = |target: u32| (target, host_view.target_presence(target));
        let all: Vec<(u32, TargetPresence)> = self.diagnosis.targets().map(ask).collect();
        let some_here = all.iter().any(|(_, presence)| *presence == TargetPresence::Here);
        for (target, presence) in all {
            // Where none is here, a file waits for the daemon of its target, as one without a pool does.
            let is_up = match presence {
                TargetPresence::Here => true,
                TargetPresence::Away => !some_here,
                TargetPresence::Gone => false,
            };
            self.pool.set_up(target, is_up);
        }
    }
}

/// Volatile state: pools in use, their open files, and the rates of their targets.
#[derive(Default)]
pub(crate) struct Pools {
    live: BTreeMap<u8, LivePool>,
    objects: VecDeque<PoolObject>,
    rates: Rates,
}

impl Pools {
    /// Completes the layout of a new regular file: its target, if its directory has a pool.
    pub(crate) fn place(
        &mut self,
        cx: &mut Context,
        host_view: &dyn HostView,
        layout: &mut Layout,
    ) {
        self.forget_closed(cx, host_view);
        let chosen = self.live_pool(cx, layout.pool).and_then(|live| {
            live.see_presence(cx.now, host_view);
            let findings = live.diagnosis.retry(cx.now);
            note_findings(cx, layout.pool, live, &findings);
            live.pool.choose()
        });
        match chosen.and_then(|target| u16::try_from(target).ok()) {
            Some(target) => (layout.placement, layout.place) = (placement::LOCAL, target),
            None => layout.pool = 0,
        }
    }

    /// The file that was placed last has this number.
    pub(crate) fn note_created(&mut self, cx: &Context, inode: Inode, layout: &Layout) {
        if layout.pool == 0 {
            return;
        }
        if self.objects.len() >= OBJECTS_MAX
            && let Some(oldest) = self.objects.pop_front()
        {
            self.close(&oldest);
        }
        let (pool, target) = (layout.pool, u32::from(layout.place));
        let until = cx.now.saturating_add(UNSEEN_NANOS);
        self.objects.push_back(PoolObject { inode, pool, target, is_seen: false, until });
    }

    /// Looks at some of the open files, the one longest not looked at first.
    fn forget_closed(&mut self, cx: &Context, host_view: &dyn HostView) {
        for _ in 0..self.objects.len().min(LOOKED_AT) {
            let Some(mut object) = self.objects.pop_front() else { return };
            let is_open =
                host_view.is_open(object.inode) || cx.state.hosts.contains_key(&object.inode);
            object.is_seen |= is_open;
            if is_open || (!object.is_seen && cx.now < object.until) {
                self.objects.push_back(object);
            } else {
                self.close(&object);
            }
        }
    }

    fn close(&mut self, object: &PoolObject) {
        if let Some(live) = self.live.get_mut(&object.pool) {
            live.pool.close(object.target);
        }
    }

    /// A pool may have changed: nothing is known of the targets of another one.
    pub(crate) fn renew(&mut self, cx: &mut Context, id: u8) {
        let number = cx.state.pool(id).map(|pool| pool.number);
        if self.live.get(&id).is_some_and(|live| Some(live.number) != number)
            && let Some(mut live) = self.live.remove(&id)
        {
            let findings = live.diagnosis.forget();
            note_findings(cx, id, &mut live, &findings);
        }
    }

    /// `Message::Transfers`: what the processes of a host moved.
    pub(crate) fn take_transfers(&mut self, cx: &mut Context, report: &TransferReport<'_>) {
        let state = &cx.state;
        let counts_own = |pool: u8| {
            let all = state.pool(pool).map(|pool| PoolDefinition::members(&pool.targets));
            all.unwrap_or_default().iter().all(|(target, _)| report.is_own(*target))
        };
        let placed = |inode: Inode| {
            let layout = state.inodes.get(inode)?.attributes.layout;
            let target = u32::from(layout.place);
            let counts = layout.pool != 0
                && layout.placement == placement::LOCAL
                && (!report.is_own(target) || counts_own(layout.pool));
            counts.then_some((layout.pool, target))
        };
        if let Some(ended) = self.rates.take(cx.now, report, placed) {
            self.end_span(cx, &ended);
        }
    }

    fn end_span(&mut self, cx: &mut Context, span: &EndedSpan) {
        let pools: BTreeSet<u8> = span.keys().map(|(pool, _)| *pool).collect();
        for id in pools {
            let Some(live) = self.live_pool(cx, id) else { continue };
            let sample = |target| span.get(&(id, target)).copied().unwrap_or_default();
            let findings = live.diagnosis.add_span(cx.now, sample);
            for ((_, target), sample) in span.range((id, 0)..=(id, u32::MAX)) {
                let seen = sample.bytes_per_second as u64;
                let is_suspect = live.diagnosis.is_suspect(*target);
                if !is_suspect {
                    live.pool.set_well(*target);
                }
                let is_faster = live.pool.bytes_per_second(*target).is_some_and(|now| seen > now);
                if is_faster || is_suspect {
                    live.pool.observe(*target, seen);
                }
            }
            note_findings(cx, id, live, &findings);
            let all = live.diagnosis.targets();
            let (slow, others): (Vec<u32>, Vec<u32>) =
                all.partition(|target| live.diagnosis.is_slow(*target));
            let others: Vec<u32> =
                others.into_iter().filter(|target| live.pool.is_up(*target)).collect();
            for target in slow {
                cx.io.push(Effect::LeaveTarget { target, others: others.clone() });
            }
        }
    }

    /// The pool as it is defined now, with the open files of its targets.
    fn live_pool(&mut self, cx: &Context, id: u8) -> Option<&mut LivePool> {
        let definition = cx.state.pool(id)?;
        let number = definition.number;
        if self.live.get(&id).is_none_or(|live| live.number != number) {
            let members = PoolDefinition::members(&definition.targets);
            let mut pool = make_pool(&definition.targets)?;
            let mut open: BTreeMap<u32, u64> = BTreeMap::new();
            for object in self.objects.iter().filter(|object| object.pool == id) {
                *open.entry(object.target).or_default() += 1;
            }
            open.into_iter().for_each(|(target, count)| pool.recount(target, count));
            let diagnosis = Diagnosis::new(&members);
            let presence_at = i64::MIN;
            self.live.insert(id, LivePool { number, pool, diagnosis, presence_at });
        }
        self.live.get_mut(&id)
    }
}

/// The pool of encoded targets; `None` if it is not possible.
pub(crate) fn make_pool(targets_bytes: &[u8]) -> Option<Pool> {
    let limits = targets(targets_bytes).map(|one| (u32::from(one.target.0), one.limit()));
    let mut pool = Pool::new(&limits.collect::<Vec<_>>()).ok()?;
    for one in targets(targets_bytes).filter(|one| one.is_measured) {
        pool.set_measured(u32::from(one.target.0), one.max_perf);
    }
    Some(pool)
}

fn note_findings(cx: &mut Context, id: u8, live: &mut LivePool, findings: &[Finding]) {
    for finding in findings {
        let Finding { target, is_slow, bytes_per_second, peers_bytes_per_second } = *finding;
        if is_slow {
            live.pool.set_slow(target);
        } else {
            live.pool.set_well(target);
        }
        let pool = cx.state.pool(id).map(|pool| pool.name.clone()).unwrap_or_default();
        let (rate, peers) = (bytes_per_second as u64, peers_bytes_per_second as u64);
        cx.io.push(Effect::TargetHealth { id, pool, target, is_slow, rate, peers });
    }
}
