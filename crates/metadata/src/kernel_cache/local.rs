//! Invalidation for mounts of this host (of others: `remote`): before a change of something that
//! the kernel behind a mount remembers (`wire::watch`), the mount is notified and has its kernel
//! forget it. Pages of files are in `page_cache`.
//!
//! A mount waits for notices with a request that is answered when there are some, and acknowledges
//! them with the next one. A job that is about to change something reads which mounts watch it
//! (`HostView::watchers`), notifies those that were not notified since they registered, and waits
//! (`Wait::Invalidation`). It checks again each time it runs: a watch registered meanwhile is
//! notified again.
//!
//! The mount that requests the change is not notified: its kernel knows, and may hold locks until
//! the answer.
//!
//! A job waits no longer than the validity that the mount declared: a mount that hangs or is dead
//! delays jobs only until then.

use wire::request::{rename, set};
use wire::watch::{MOUNT_COUNT_MAX, OTHERS};
use wire::{Inode, Request};

use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::peer_messages::{Action, link};
use crate::kernel_cache::KernelCaches;
use crate::kernel_cache::notices::{Changing, POLL_NANOS};

impl KernelCaches {
    /// Before the first change of any of `all`: proceeds when no kernel remembers it but the
    /// requester's own.
    pub(crate) fn await_invalidated(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        all: &[Changing<'_>],
    ) -> Step<()> {
        let mut waits = self.remote.may_be_remembered(cx);
        if !waits && !call.host_view.has_mounts() {
            return Ok(());
        }
        let requester = (call.header.host, call.header.mount);
        let own = if requester.0 == cx.config.host { requester.1 } else { 0 };
        for one in all {
            let watch = one.watch();
            waits |= self.remote.notify_remote_mounts(cx, &mut self.local, Some(requester), one);
            let mut watchers = Vec::new();
            let mut each = |mount, stamp| watchers.push((mount, stamp));
            call.host_view.watchers(watch, &mut each);
            for &(mount, stamp) in watchers.iter().filter(|(mount, _)| *mount != own) {
                if mount == OTHERS {
                    waits |= self.remote.may_be_watched_since_before(cx);
                    continue;
                }
                waits |= !self.local.has_carried_out(mount, watch, stamp)
                    && !self.local.notify_mount(cx, mount, one, stamp);
            }
            if let Changing::Owner(_) = one {
                let has_watch = |mount| watchers.iter().any(|(watcher, _)| *watcher == mount);
                let mounts = (1..=MOUNT_COUNT_MAX as u8).filter(|&mount| mount != own);
                for mount in mounts.filter(|&mount| call.host_view.has_mount(mount)) {
                    waits |= !has_watch(mount) && self.local.notify_of_owner(cx, mount, one);
                }
            }
        }
        if !waits {
            return Ok(());
        }
        cx.wake_at(cx.now.saturating_add(POLL_NANOS));
        Err(Stop::Wait(Wait::Invalidation))
    }

    /// As `await_invalidated` for something that has changed already; nothing waits for it.
    pub(crate) fn notify_mounts_of(&mut self, cx: &mut Context, call: &Call<'_>, inode: Inode) {
        let _ = self.await_invalidated(cx, call, &[Changing::Attributes(inode)]);
    }

    /// Waits for the invalidation of everything that a request is about to change here. Other
    /// services do the same for their part.
    pub(crate) fn await_invalidated_for(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        self.await_request_invalidated(cx, call, request)?;
        // After all waits: a waiting job comes here repeatedly, and two jobs that move the same
        // inode would notify each other forever.
        if let Request::Rename { parent, name, new_parent, new_name, flags } = *request {
            if let Some((replaced, _)) = cx.state.entries.get(new_parent, new_name) {
                self.begin_grace_if_watched(cx, call, replaced);
            }
            self.remote.note_move(cx, call, new_parent, new_name);
            if flags & rename::EXCHANGE != 0 {
                self.remote.note_move(cx, call, parent, name);
            }
        }
        Ok(())
    }

    fn await_request_invalidated(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        if !self.remote.may_be_remembered(cx) && !call.host_view.has_mounts() {
            return Ok(());
        }
        let child = |parent, name: &[u8]| {
            cx.state.entries.get(parent, name).map_or(Inode::NONE, |(inode, _)| inode)
        };
        use Changing::{Attributes, Name, Owner};
        match *request {
            Request::Create { parent, name, .. } => {
                if !child(parent, name).is_none() {
                    return Ok(());
                }
                self.await_invalidated(cx, call, &[Name(parent, name), Attributes(parent)])
            }
            Request::Link { inode, parent, name } => {
                let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
                self.await_invalidated(cx, call, &all)
            }
            Request::Unlink { parent, name } | Request::RemoveDirectory { parent, name } => {
                let inode = child(parent, name);
                let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
                self.await_invalidated(cx, call, &all)
            }
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                let (moved, replaced) = (child(parent, name), child(new_parent, new_name));
                let all = [
                    Name(parent, name),
                    Name(new_parent, new_name),
                    Attributes(parent),
                    Attributes(new_parent),
                    Attributes(moved),
                    Attributes(replaced),
                ];
                self.await_invalidated(cx, call, &all)
            }
            // A read never waits.
            Request::SetAttributes { mask, .. } if mask & set::READ != 0 => Ok(()),
            Request::SetAttributes { inode, mask, .. } if mask & set::UID != 0 => {
                self.await_invalidated(cx, call, &[Owner(inode)])
            }
            Request::SetAttributes { inode, .. }
            | Request::SetXattr { inode, .. }
            | Request::RemoveXattr { inode, .. }
            | Request::WriteInline { inode, .. }
            | Request::Extend { inode, .. }
            | Request::Append { inode, .. } => {
                self.await_invalidated(cx, call, &[Attributes(inode)])
            }
            _ => Ok(()),
        }
    }

    /// The same for an action of a transaction, of this service or another.
    pub(crate) fn await_action_invalidated(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        action: &Action<'_>,
    ) -> Step<()> {
        use Changing::{Attributes, Name};
        match *action {
            Action::Entry { parent, name, set, .. } => {
                self.await_invalidated(cx, call, &[Name(parent, name), Attributes(parent)])?;
                if !set.is_none() {
                    self.remote.note_move(cx, call, parent, name);
                }
                Ok(())
            }
            Action::Links { inode, change } => {
                if change == link::REPLACED {
                    self.begin_grace_if_watched(cx, call, inode);
                }
                self.await_invalidated(cx, call, &[Attributes(inode)])
            }
            Action::RemoveDirectory { inode, .. }
            | Action::Moved { inode, .. }
            | Action::Widen { inode, .. } => self.await_invalidated(cx, call, &[Attributes(inode)]),
            Action::Freeze { .. }
            | Action::Chain { .. }
            | Action::Give { .. }
            | Action::Take { .. }
            | Action::Carry { .. } => Ok(()),
        }
    }
}
