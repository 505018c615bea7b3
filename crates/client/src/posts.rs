//! Operations completed by this process (B1): creating, removing and closing files of shards of this
//! host without waiting for anybody. The protocol and why it holds: `shm::posts`.
//!
//! Each is an attempt: where something stands against it, or is not known, the caller sends a message
//! as for any other shard, and the daemon decides.

use core::sync::atomic::{Ordering::SeqCst, fence};
use rustix::time::ClockId;
use shm::index::Hit;
use shm::posts::Draft;
use wire::attributes::{extra, flag, mode};
use wire::codec::{Malformed, Writer};
use wire::errno::Result;
use wire::quota::Owner;
use wire::request::{ANY_CUTS, made};
use wire::{Attributes, Credentials, Errno, Inode, Layout, Post, ShardIndex};

use crate::Client;
use crate::layout::File;
use crate::open_files::Counted;
use crate::walk::{Entry, Last, Looked, Service, Walk};

/// How often the gate is looked at: a step of the worker takes a few microseconds.
const LOOKS: u32 = 64;

/// The key of a name among those that have posts; the index uses the other half.
pub(crate) const fn post_key(key: u128) -> u64 {
    (key >> 64) as u64
}

fn encode(draft: &mut Draft<'_>, post: &Post<'_>) -> Result<()> {
    draft.write(|bytes| {
        let mut writer = Writer::new(bytes);
        post.encode(&mut writer);
        writer.finish().map_err(|Malformed| Errno::E2BIG)
    })
}

/// Nanoseconds since 1970.
pub(crate) fn now_nanos() -> i64 {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// True once the worker takes posts; false if it is busy for longer than a step takes.
pub(crate) fn opens_soon(service: &Service<'_>) -> bool {
    (0..LOOKS).any(|_| {
        let is_open = service.by.posts.is_open(service.worker);
        if !is_open {
            core::hint::spin_loop();
        }
        is_open
    })
}

impl Client {
    /// True if there is a post about a name that is not applied.
    pub(crate) fn has_post(&self, entry: &Entry) -> bool {
        fence(SeqCst);
        let key = post_key(entry.key);
        self.service_of(entry.shard)
            .is_some_and(|service| service.by.posts.is_pending(service.worker, key))
    }

    /// True if there may be posts to a shard of this host that are not applied.
    pub(crate) fn may_have_posts(&self, shard: ShardIndex) -> bool {
        self.service_of(shard).is_some_and(|service| service.by.posts.has_any(service.worker))
    }

    /// Makes the last name of a walk a new regular file. `who` makes it, with `mode` as in `made`.
    /// It is counted in.
    pub(crate) fn post_create(
        &self,
        walk: &Walk<'_>,
        mode: u32,
        layout: Layout,
        who: &Credentials,
    ) -> Option<Counted> {
        let parent = walk.parent;
        if walk.last != Last::Name || walk.found != Looked::Absent || parent.links == 0 {
            return None;
        }
        // What it hands down only the shard knows.
        if parent.has(extra::DEFAULT_ACL) {
            return None;
        }
        let shard = walk.entry.shard;
        let service = self.service_of(shard)?;
        let posts = &service.by.posts;
        let whose = Owner { uid: who.uid, project: parent.project };
        let takes_it = || posts.is_open_to(service.worker, whose);
        if !(takes_it() || opens_soon(&service) && takes_it()) {
            return None;
        }
        // First: a number that is taken and not used is lost.
        let mut draft = posts.claim(service.by.welcome.session, service.worker)?;
        let inode = Inode::new(shard, posts.take_number(shard)?);
        let mut file = File { inode, layout, good_for: ANY_CUTS };
        if file.is_inline() && self.target_of(&file, 0).is_ok_and(|to| self.local_number(to) != 0) {
            // Its first bytes lie on this host: see `layout_of_child`.
            file.layout.flags &= !flag::INLINE;
        }
        let mode = mode_of_new(made::masked(mode), who);
        let now = now_nanos();
        let attributes = Attributes::of_new(inode, mode, (whose, who.gid), now, file.layout);
        let spread = parent.layout.spread;
        let post = Post::Create { parent: parent.inode, spread, attributes, name: walk.name };
        encode(&mut draft, &post).ok()?;
        let host = self.host().ok()?;
        // Before anybody can see it: whoever removes it must find it open.
        let vnode = host.vnode_open(inode).ok()?;
        // Nobody else knows it yet, so nobody's kernel remembers it.
        self.note_writer_of_new(host.vnode(vnode).ok()?);
        let key = walk.entry.key;
        let may = draft.announce(post_key(key)) == Ok(true)
            && takes_it()
            && service.index.entry_in(parent.inode, key) == Hit::Absent
            && self.is_there(parent.inode)
            && !self.is_entry_watched(host, parent.inode, key);
        if commit(&service, draft, may) {
            self.recent.note(self.mount(), parent.inode, now);
            return Some(Counted { file, mode, vnode, made_at: now });
        }
        let _ = host.vnode_close(inode, vnode);
        None
    }

    /// True if a directory exists, as far as that is known without a message. Where it is another
    /// host's, its removal freezes it here, which closes the gate, only after its lease was recalled.
    fn is_there(&self, directory: Inode) -> bool {
        match self.service_of(directory.shard()) {
            Some(service) => service.index.links(directory).is_some_and(|links| links != 0),
            None => self.leased(directory, &mut Attributes::default()),
        }
    }

    /// Removes the last name of a walk, the only one of `file`, which is open nowhere on this host.
    pub(crate) fn post_unlink(&self, walk: &Walk<'_>, file: &Attributes) -> bool {
        self.try_post_unlink(walk, file).unwrap_or(false)
    }

    fn try_post_unlink(&self, walk: &Walk<'_>, file: &Attributes) -> Option<bool> {
        let parent = walk.parent;
        if walk.last != Last::Name || !file.is_regular() || file.links != 1 {
            return None;
        }
        let service = self.service_of(walk.entry.shard)?;
        let of_inode = self.service_of(file.inode.shard())?;
        let is_one = core::ptr::eq(service.by, of_inode.by) && service.worker == of_inode.worker;
        let host = self.host().ok()?;
        if !is_one || host.vnode_find(file.inode).is_some() || !opens_soon(&service) {
            return None;
        }
        let mut draft = service.by.posts.claim(service.by.welcome.session, service.worker)?;
        let (inode, spread) = (file.inode, parent.layout.spread);
        let now = now_nanos();
        let (at, name) = (now.cast_unsigned(), walk.name);
        let post = Post::Unlink { parent: parent.inode, spread, inode, at, name };
        encode(&mut draft, &post).ok()?;
        let key = walk.entry.key;
        let is_there = |hit: Hit| matches!(hit, Hit::Found(found, _) if found == inode);
        let may = draft.announce(post_key(key)) == Ok(true)
            && service.by.posts.is_open(service.worker)
            && is_there(service.index.entry(key))
            && service.index.links(inode) == Some(1)
            && host.vnode_find(inode).is_none()
            && !self.is_entry_watched(host, parent.inode, key)
            && !self.is_file_watched(inode);
        let done = commit(&service, draft, may);
        if done {
            self.recent.note(self.mount(), parent.inode, now);
        }
        Some(done)
    }

    /// Leaves what was written to a file, and the counting out of its row, to the shard.
    pub(crate) fn post_close(&self, inode: Inode, row: u32) -> bool {
        let Some(service) = self.service_of(inode.shard()) else { return false };
        // Else there may be no room for what it tells.
        if !opens_soon(&service) {
            return false;
        }
        let session = service.by.welcome.session;
        let Some(mut draft) = service.by.posts.claim(session, service.worker) else {
            return false;
        };
        if encode(&mut draft, &Post::Close { inode, row }).is_err() {
            return false;
        }
        // The slot is ours, so showing it can not fail.
        let shown = draft.commit_at_once().is_ok();
        nudge(&service);
        shown
    }
}

/// Commits if nothing stands against it. False: withdrawn.
fn commit(service: &Service<'_>, draft: Draft<'_>, may: bool) -> bool {
    let done = may && draft.commit();
    if done {
        nudge(service);
    }
    done
}

/// A post is there that the worker may have to be woken for.
fn nudge(service: &Service<'_>) {
    let Service { by, worker, .. } = *service;
    let _ = by.bells.nudge(worker, || by.posts.waiting(by.welcome.session, worker));
}

/// The set-group-id bit is only for who is in the group.
fn mode_of_new(mode: u32, who: &Credentials) -> u32 {
    let is_kept = who.is_privileged() || mode & 0o010 == 0 || who.is_in_group(who.gid);
    if is_kept { mode } else { mode & !mode::SET_GID }
}
