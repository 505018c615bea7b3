//! What the kernel behind a mount remembers (`wire::watch`, `shm::host::watches`), from both sides: a
//! mount watches what it tells its kernel, and programs look whether somebody watches what they change
//! without a message.
//!
//! What shards of other hosts decide they note by themselves (`looks`). Pages of files: `pages`.
//!
//! Bytes are written without a message, too. So who opens a file to write says so in its row, for as long
//! as it is open on this host, and then has the mounts told; whose kernel remembers sizes and times
//! watches first and then looks at the row. A file that only one mount writes to stays that mount's.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::watches::{self, pages};
use shm::host::{HostSegment, Vnode};
use shm::session::Interruptible;
use wire::errno::{Errno, Result};
use wire::limits::SHARD_COUNT;
use wire::watch::Watch;
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::layout::heir;
use crate::posts::opens_soon;
use crate::request::{To, own_credentials};
use crate::walk::Entry;
use crate::{Client, OfdIndex};

/// What was noted for a watch: where, and the word there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Its bucket; others may fall on it, too.
    pub bucket: usize,
    /// The word, another each time.
    pub word: u64,
}

impl Watched {
    /// True if nothing may be remembered under it any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        watches::is_over(self.word)
    }
}

impl Client {
    /// The number of the mount that this process serves, or 0.
    pub(crate) fn mount(&self) -> u8 {
        self.mount.load(Relaxed)
    }

    /// This process, of number `pid` and start `started`, serves a mount from now on.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many mounts.
    pub fn begin_mount(&self, pid: u32, started: u64) -> Result<()> {
        let number = self.host()?.take_mount(pid, started)?;
        self.mount.store(number, Relaxed);
        Ok(())
    }

    /// The mount is gone, and its kernel remembers nothing.
    pub fn end_mount(&self) {
        if let Ok(host) = self.host() {
            host.give_mount(self.mount.swap(0, Relaxed));
        }
    }

    /// The attributes of a file that was just made by `open` for `who`, if its name is not applied yet:
    /// nobody has changed them since. Asks nobody, and answers once. With them, true: nobody writes to
    /// it but by this mount, as in `is_written_here_alone`; of a name that is not applied no other host
    /// knows.
    #[must_use]
    pub fn attributes_of_made(
        &self,
        ofd: OfdIndex,
        name: &[u8],
        who: &Credentials,
    ) -> Option<(Attributes, bool)> {
        let open = self.opened(ofd).ok()?;
        let parent = self.attributes_in_index(open.parent())?;
        let (heir, _) = heir(&parent, who, open.mode());
        let made = open.take_made((heir.uid, heir.gid))?;
        let is_alone = self.may_keep(open.vnode.marks.load(SeqCst));
        self.has_post(&Entry::of(&parent, name)).then_some((made, is_alone))
    }

    /// Notes that the kernel of this mount is about to remember something that `shard` decides, until
    /// `until` (microseconds of `shm::wait::now_micros`). `None`: it must not, as it is about to change
    /// or is decided elsewhere. What is to be remembered is looked at after this.
    #[must_use]
    pub fn watch(&self, watch: Watch, shard: ShardIndex, until: u64) -> Option<Watched> {
        let service = self.service_of(shard)?;
        let watched = self.watch_far(watch, until);
        watched.filter(|_| opens_soon(&service))
    }

    /// The same of what a shard of another host decides, for programs of this host that write without a
    /// message. Whether it may be remembered, that shard says.
    #[must_use]
    pub fn watch_far(&self, watch: Watch, until: u64) -> Option<Watched> {
        let bucket = watches::bucket_of(watch);
        let word = self.host().ok()?.watch(self.mount(), bucket, until).ok()?;
        Some(Watched { bucket, word })
    }

    /// The kernel remembers nothing any more of what was noted, and nothing else that falls there.
    pub fn unwatch(&self, watched: Watched) {
        if let Ok(host) = self.host() {
            host.unwatch(self.mount(), watched.bucket, watched.word);
        }
    }

    /// The word that stands in a bucket now.
    #[must_use]
    pub fn watch_now(&self, bucket: usize) -> Option<Watched> {
        let word = self.host().ok()?.watch_now(self.mount(), bucket).ok()?;
        Some(Watched { bucket, word })
    }

    /// True if nobody writes to a file without a message but by this mount. Looked at after `watch`.
    /// A file that other hosts write to is not in the index.
    #[must_use]
    pub fn is_written_here_alone(&self, inode: Inode) -> bool {
        self.attributes_in_index(inode).is_some() && self.may_keep_of(inode)
    }

    /// True if nobody of this host writes to a file but by this mount.
    pub(crate) fn may_keep_of(&self, inode: Inode) -> bool {
        let Ok(host) = self.host() else { return false };
        let Some(row) = host.vnode_find(inode) else { return true };
        let Ok(vnode) = host.vnode(row) else { return false };
        self.may_keep(vnode.marks.load(SeqCst))
    }

    /// True if a mount but this one remembers something of a directory and a name in it, so that who
    /// makes or removes the name leaves that to the shard.
    #[inline(always)]
    pub(crate) fn is_entry_watched(&self, host: &HostSegment, parent: Inode, key: u128) -> bool {
        host.has_mounts() && self.is_watched(host, parent, key)
    }

    #[cold]
    fn is_watched(&self, host: &HostSegment, parent: Inode, key: u128) -> bool {
        let own = self.mount();
        host.is_watched(Watch::of_key(key), own) || host.is_watched(Watch::Attributes(parent), own)
    }

    /// The same of a file.
    pub(crate) fn is_file_watched(&self, inode: Inode) -> bool {
        let is_watched = |host: &HostSegment| {
            host.has_mounts() && host.is_watched(Watch::Attributes(inode), self.mount())
        };
        self.host().is_ok_and(is_watched)
    }

    /// The same of a file that nobody knows yet.
    #[inline(always)]
    pub(crate) fn note_writer_of_new(&self, vnode: &Vnode) {
        vnode.marks.store(pages::with_writer(0, self.writer()), Relaxed);
    }

    fn writer(&self) -> u8 {
        let mount = self.mount();
        if mount == 0 { pages::SHARED } else { mount }
    }

    /// Says in the row of a file that it is open to be written to: from now on its bytes may change
    /// without a message.
    pub(crate) fn mark_writer(&self, vnode: &Vnode) {
        let marked = |marks| {
            let now = pages::with_writer(marks, self.writer());
            (now != marks).then_some(now)
        };
        let _ = vnode.marks.fetch_update(SeqCst, SeqCst, marked);
    }

    /// A file is open to be written to: kernels that remember anything of it are told.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn note_writer(&self, inode: Inode, vnode: &Vnode) -> Result<()> {
        self.mark_writer(vnode);
        let keeps = self.is_near(inode.shard())? && self.begin_writing(inode, vnode)?;
        if keeps || self.is_file_watched(inode) {
            self.unwatch_file(inode, Some(vnode))
        } else {
            Ok(())
        }
    }

    /// True if nobody of this host writes to a file of these marks but by this mount.
    pub(crate) fn may_keep(&self, marks: u64) -> bool {
        matches!(pages::writer(marks), writer if writer == 0 || writer == self.mount())
    }

    /// Calls `each` with all shards of this host; true: the first one of its service.
    pub fn each_near_shard(&self, each: &mut dyn FnMut(ShardIndex, bool)) {
        let mut seen = [(0, 0); wire::lease::SERVICES_OF_HOST_MAX];
        let mut count = 0;
        for shard in (0..SHARD_COUNT).map(ShardIndex) {
            let Some(service) = self.service_of(shard) else { continue };
            let one = (core::ptr::from_ref(service.by) as usize, service.worker);
            let known = seen.get(..count).unwrap_or_default();
            let is_first = !known.contains(&one);
            if is_first {
                let Some(place) = seen.get_mut(count) else { continue };
                *place = one;
                count += 1;
            }
            each(shard, is_first);
        }
    }

    /// Waits for notices of a service, which says that all up to `done` are carried out, and lets `with`
    /// see them; until `is_over`.
    ///
    /// # Errors
    /// `EINTR` when it is over, and as `call`.
    pub fn await_notices<R>(
        &self,
        shard: ShardIndex,
        done: u64,
        is_over: &AtomicBool,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let request = Request::Notices { done };
        let (to, who) = (To::Shard(shard), own_credentials());
        let by = Interruptible::By(is_over);
        self.call_as(to, &request, &who, &mut None, by)?.with(|reply| match reply {
            Reply::Bytes { bytes } => Ok(with(bytes)),
            _ => Err(Errno::EIO),
        })
    }
}
