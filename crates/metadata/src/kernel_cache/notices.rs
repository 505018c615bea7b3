//! Notices to mounts of this host: queued, sent with the answer to a mount's request for them, and
//! acknowledged by its next one. `local` decides when a notice is needed and which jobs wait for it.

use std::collections::{BTreeMap, VecDeque};

use wire::codec::Field;
use wire::hash::entry_key;
use wire::limits::SLOT_BYTES;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, Watch, what};
use wire::{Header, Inode, Reader, Reply, Writer};

use crate::core::context::Context;
use crate::core::job::{Call, Wait};

/// Most bytes of notices in an answer.
const BYTES_MAX: usize = SLOT_BYTES - 256;
/// Interval at which a waiting job checks whether the validity of the watches is over.
pub(crate) const POLL_NANOS: i64 = 20_000_000;
/// Most remembered notices; a forgotten one is sent again.
const SENT_NOTICES_MAX: usize = 4096;

/// Object of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changing<'a> {
    /// A name of a directory.
    Name(Inode, &'a [u8]),
    /// The attributes of an inode.
    Attributes(Inode),
    /// The attributes of an inode, its owner among them.
    Owner(Inode),
}

impl Changing<'_> {
    pub(crate) fn watch(&self) -> Watch {
        match *self {
            Changing::Name(parent, name) => Watch::of_key(entry_key(parent, name)),
            Changing::Attributes(inode) | Changing::Owner(inode) => Watch::Attributes(inode),
        }
    }

    pub(crate) fn notice(&self, number: u64) -> Notice<'_> {
        let (what, inode, name) = match *self {
            Changing::Name(inode, name) => (what::NAME, inode, name),
            Changing::Attributes(inode) => (what::ATTRIBUTES, inode, &[][..]),
            Changing::Owner(inode) => (what::OWNER, inode, &[][..]),
        };
        Notice { what, number, inode, name }
    }
}

/// A notice in encoded form.
pub(crate) fn encoded(notice: &Notice<'_>) -> Vec<u8> {
    let mut bytes = vec![0; SLOT_BYTES];
    let mut to = Writer::new(&mut bytes);
    notice.put(&mut to);
    let length = to.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// The last notice of a watch: its number, and the stamp of the watch.
#[derive(Clone, Copy, Debug)]
struct SentNotice {
    stamp: u64,
    number: u64,
    /// The owner changes, too.
    is_of_owner: bool,
}

/// The stamp of a notice to a mount without a watch. No watch has it: its time would be over.
const NO_WATCH: u64 = 0;

/// Notification state of the mounts of this host.
#[derive(Default)]
pub(crate) struct LocalMounts {
    /// Mounts that wait for notices, with their requests.
    waiting: BTreeMap<u8, (u64, Header)>,
    queued: BTreeMap<u8, VecDeque<(u64, Vec<u8>)>>,
    sent: BTreeMap<(u8, Watch), SentNotice>,
    /// The largest number of a notice that is not in `sent` any more.
    forgotten: u64,
    /// By mount, the last notice that it has carried out.
    done: BTreeMap<u8, u64>,
    /// Number of the last notice.
    last: u64,
}

impl LocalMounts {
    /// True if a mount has carried out a notice since it registered this watch.
    pub(crate) fn has_carried_out(&self, mount: u8, watch: Watch, stamp: u64) -> bool {
        let done = self.done.get(&mount).copied().unwrap_or(0);
        let sent = self.sent.get(&(mount, watch));
        sent.is_some_and(|sent| sent.stamp == stamp && sent.number <= done)
    }

    /// Notifies a mount unless that is done already. Returns false: the job has to wait for it.
    pub(crate) fn notify_mount(
        &mut self,
        cx: &mut Context,
        mount: u8,
        what: &Changing<'_>,
        stamp: u64,
    ) -> bool {
        let watch = what.watch();
        if self.sent.get(&(mount, watch)).is_some_and(|sent| sent.stamp == stamp) {
            return false;
        }
        if self.sent.len() >= SENT_NOTICES_MAX {
            let LocalMounts { sent, done, forgotten, .. } = self;
            sent.retain(|(mount, _), sent| {
                let is_kept = done.get(mount).is_none_or(|done| sent.number > *done);
                *forgotten = (*forgotten).max(if is_kept { 0 } else { sent.number });
                is_kept
            });
        }
        let number = self.new_notice(cx);
        let is_of_owner = matches!(what, Changing::Owner(_));
        self.sent.insert((mount, watch), SentNotice { stamp, number, is_of_owner });
        self.queue_notice(cx, mount, &what.notice(number));
        false
    }

    /// The owner of an inode changes. A kernel compares the owner that it learned with a name for as long
    /// as it remembers the name, also after a notice that other attributes change, which ended the watch:
    /// notifies a mount that had one since it can have looked the name up. True: the job has to wait.
    pub(crate) fn notify_of_owner(
        &mut self,
        cx: &mut Context,
        mount: u8,
        what: &Changing<'_>,
    ) -> bool {
        // Numbers are times.
        let since = cx.now.saturating_sub(VALID_NANOS + MARGIN_NANOS).unsigned_abs();
        let done = self.done.get(&mount).copied().unwrap_or(0);
        match self.sent.get(&(mount, what.watch())) {
            Some(sent) if sent.number < since => false,
            Some(sent) if sent.is_of_owner => sent.number > done,
            None if self.forgotten < since => false,
            _ => !self.notify_mount(cx, mount, what, NO_WATCH),
        }
    }

    /// A number for a notice, larger than those from before a restart.
    pub(crate) fn new_notice(&mut self, cx: &Context) -> u64 {
        let last = &mut self.last;
        *last = (*last + 1).max(cx.now.unsigned_abs());
        *last
    }

    /// Queues a notice for a mount of this host.
    pub(crate) fn queue_notice(&mut self, cx: &mut Context, mount: u8, notice: &Notice<'_>) {
        let queue = self.queued.entry(mount).or_default();
        queue.push_back((notice.number, encoded(notice)));
        self.send_notices(cx, mount);
    }

    /// True if a notice about pages of a file is still queued for a mount of this host.
    pub(crate) fn has_queued(&self, mount: u8, inode: Inode) -> bool {
        let queue = self.queued.get(&mount);
        let is_it = |bytes: &[u8]| {
            let notice = Notice::take(&mut Reader::new(bytes));
            notice.is_ok_and(|one| one.what == what::BYTES && one.inode == inode)
        };
        queue.into_iter().flatten().any(|(_, bytes)| is_it(bytes))
    }

    pub(crate) fn send_notices(&mut self, cx: &mut Context, mount: u8) {
        let Some(queue) = self.queued.get_mut(&mount).filter(|queue| !queue.is_empty()) else {
            return;
        };
        let Some((ticket, _)) = self.waiting.remove(&mount) else { return };
        let mut all = Vec::new();
        while let Some((_, bytes)) = queue.front() {
            if all.len() + bytes.len() > BYTES_MAX {
                break;
            }
            all.extend_from_slice(bytes);
            queue.pop_front();
        }
        cx.io.reply(ticket, &Reply::Bytes { bytes: &all });
    }

    /// The waiting requests that `is_gone` accepts are gone.
    pub(crate) fn forget_mounts(&mut self, is_gone: impl Fn(&Header) -> bool) {
        let gone: Vec<u8> = self
            .waiting
            .iter()
            .filter(|(_, (_, header))| is_gone(header))
            .map(|(&mount, _)| mount)
            .collect();
        for mount in gone {
            self.waiting.remove(&mount);
            // Its queued notices go to another mount with the same number.
        }
    }

    /// A mount of this host waits for notices.
    pub(crate) fn await_notices(&mut self, cx: &mut Context, call: &Call<'_>) {
        let mount = call.header.mount;
        let before = self.waiting.insert(mount, (call.ticket, *call.header));
        if let Some((ticket, _)) = before.filter(|(ticket, _)| *ticket != call.ticket) {
            cx.io.reply(ticket, &Reply::Bytes { bytes: &[] });
        }
        cx.wake(|wait| *wait == Wait::Invalidation);
        self.send_notices(cx, mount);
    }

    /// A mount has carried out all notices up to `done`.
    pub(crate) fn carried_out(&mut self, mount: u8, done: u64) {
        let known = self.done.entry(mount).or_default();
        *known = done.max(*known);
    }
}

/// Timer: waiting jobs check whether the watches are still valid.
pub(crate) fn tick_waiting_jobs(cx: &mut Context) {
    if cx.jobs.values().any(|job| job.wait == Wait::Invalidation) {
        cx.wake(|wait| *wait == Wait::Invalidation);
        cx.wake_at(cx.now.saturating_add(POLL_NANOS));
    }
}
