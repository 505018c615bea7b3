//! The target of a new file in a directory with a pool: the one with the largest
//! `max_perf / (open_count + 1)` (`qos::pool`; S7, section 5 of the Sunway paper).
//!
//! Open files are those that this service created in the pool and that are open on some host: each
//! choice looks at some of them. They are volatile: after a restart counting begins anew.
//!
//!   created --seen open--> open --seen closed--> forgotten
//!      '------5 s later, never seen open------------^
//!
//! Invariants
//! 1. The same creations and closes in the same order choose the same targets.

use std::collections::{BTreeMap, VecDeque};

use qos::pool::Pool;
use wire::attributes::placement;
use wire::{Inode, Layout};

use crate::core::context::Context;
use crate::core::effect::HostView;
use crate::pools::definition::PoolDefinition;

/// Open files that a choice looks at: with up to so many, it knows all.
const LOOKED_AT: usize = 64;
/// Open files that are counted. Beyond, the oldest count as closed.
const OBJECTS_MAX: usize = 65_536;
/// How long a file counts that was not seen open: its creator opens it after the reply, or was killed.
const UNSEEN_NANOS: i64 = 5_000_000_000;

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
}

/// Volatile state: pools in use, and their open files.
#[derive(Default)]
pub(crate) struct Pools {
    live: BTreeMap<u8, LivePool>,
    objects: VecDeque<PoolObject>,
}

impl Pools {
    /// Completes the layout of a new regular file: its target, if its directory has a pool.
    pub(crate) fn place(&mut self, cx: &Context, host_view: &dyn HostView, layout: &mut Layout) {
        let Some(definition) = cx.state.pool(layout.pool) else {
            layout.pool = 0;
            return;
        };
        self.forget_closed(cx, host_view);
        let chosen = self.live_pool(layout.pool, definition).and_then(Pool::choose);
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

    /// The pool as it is defined now, with the open files of its targets.
    fn live_pool(&mut self, id: u8, definition: &PoolDefinition) -> Option<&mut Pool> {
        let number = definition.number;
        if self.live.get(&id).is_none_or(|live| live.number != number) {
            let members = PoolDefinition::members(&definition.targets);
            let mut pool = Pool::new(&members).ok()?;
            let mut open: BTreeMap<u32, u64> = BTreeMap::new();
            for object in self.objects.iter().filter(|object| object.pool == id) {
                *open.entry(object.target).or_default() += 1;
            }
            open.into_iter().for_each(|(target, count)| pool.recount(target, count));
            self.live.insert(id, LivePool { number, pool });
        }
        self.live.get_mut(&id).map(|live| &mut live.pool)
    }
}
