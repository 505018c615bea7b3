//! Before something changes that the kernel behind a mount of this host (of others: `far_mounts`)
//! remembers (`wire::watch`): the mount is told and has its kernel forget it, then the change goes
//! on. Of pages of files: `pages`.
//!
//! A mount waits for such notices by a request that is answered when there are some, and says with
//! the next one which it has carried out. A job that is to change something looks first which
//! mounts watch it (`Opens::watchers`); those that were not told since they said so are, and the
//! job waits (`Wait::Mounts`). It looks anew each time it runs: what was watched again meanwhile is
//! told again.
//!
//! Whose mount asks for the change is not told: his kernel knows, and may hold locks until it is
//! answered.
//!
//! Nobody is waited for beyond the time that he said: a mount that stands still or is dead lets jobs go
//! on when that is over.

use std::collections::{BTreeMap, VecDeque};

use wire::codec::Field;
use wire::hash::entry_key;
use wire::limits::SLOT_BYTES;
use wire::request::{rename, set};
use wire::watch::{Notice, OTHERS, Watch, what};
use wire::{Errno, Header, Inode, Reader, Reply, Request, Writer};

use crate::live::{Ask, Step, Stop, Wait};
use crate::peer::{Action, link};
use crate::service::Service;

/// Most bytes of notices in an answer.
const BYTES_MAX: usize = SLOT_BYTES - 256;
/// How often a job that waits for mounts looks whether their time is over.
const LOOK_NANOS: i64 = 20_000_000;
/// Of so many watches it is remembered that their mounts were told; who forgets tells once more.
const TOLD_MAX: usize = 4096;

/// Something that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changing<'a> {
    /// A name of a directory.
    Name(Inode, &'a [u8]),
    /// The attributes of an inode.
    Attributes(Inode),
}

impl Changing<'_> {
    pub(crate) fn watch(&self) -> Watch {
        match *self {
            Changing::Name(parent, name) => Watch::of_key(entry_key(parent, name)),
            Changing::Attributes(inode) => Watch::Attributes(inode),
        }
    }

    pub(crate) fn notice(&self, number: u64) -> Notice<'_> {
        let (what, inode, name) = match *self {
            Changing::Name(inode, name) => (what::NAME, inode, name),
            Changing::Attributes(inode) => (what::ATTRIBUTES, inode, &[][..]),
        };
        Notice { what, number, inode, name }
    }
}

/// A notice as it is sent.
pub(crate) fn encoded(notice: &Notice<'_>) -> Vec<u8> {
    let mut bytes = vec![0; SLOT_BYTES];
    let mut to = Writer::new(&mut bytes);
    notice.put(&mut to);
    let length = to.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// What a mount was told, and when it said that it watches.
#[derive(Clone, Copy, Debug)]
struct Told {
    word: u64,
    number: u64,
}

/// The mounts of this host, as far as they were told something.
#[derive(Default)]
pub(crate) struct Mounts {
    /// Who waits for notices.
    waiting: BTreeMap<u8, (u64, Header)>,
    queued: BTreeMap<u8, VecDeque<(u64, Vec<u8>)>>,
    told: BTreeMap<(u8, Watch), Told>,
    /// Up to which number each has carried them out.
    done: BTreeMap<u8, u64>,
    /// The last notice.
    last: u64,
}

impl Service {
    /// Before the first change of any of `all`: goes on when no kernel remembers it but the asker's
    /// own.
    pub(crate) fn unwatched(&mut self, ask: &Ask<'_>, all: &[Changing<'_>]) -> Step<()> {
        if !ask.hands.has_mounts() {
            return Ok(());
        }
        let asker = (ask.header.host, ask.header.mount);
        let own = if asker.0 == self.config.host { asker.1 } else { 0 };
        let mut waits = false;
        for one in all {
            let watch = one.watch();
            waits |= self.tell_far_mounts(Some(asker), one);
            let mut watchers = Vec::new();
            let mut each = |mount, word| watchers.push((mount, word));
            ask.hands.watchers(watch, &mut each);
            for (mount, word) in watchers.into_iter().filter(|&(mount, _)| mount != own) {
                if mount == OTHERS {
                    waits |= self.may_be_watched_since_before();
                    continue;
                }
                waits |= !self.is_told(mount, watch, word) && !self.tell_mount(mount, one, word);
            }
        }
        if !waits {
            return Ok(());
        }
        self.live.wake_at(self.live.now.saturating_add(LOOK_NANOS));
        Err(Stop::Wait(Wait::Mounts))
    }

    /// True if a mount has carried out what it was told since it watches.
    fn is_told(&self, mount: u8, watch: Watch, word: u64) -> bool {
        let mounts = &self.live.mounts;
        let done = mounts.done.get(&mount).copied().unwrap_or(0);
        let told = mounts.told.get(&(mount, watch));
        told.is_some_and(|told| told.word == word && told.number <= done)
    }

    /// Tells a mount unless it is told already. False: it is to be waited for.
    fn tell_mount(&mut self, mount: u8, what: &Changing<'_>, word: u64) -> bool {
        let watch = what.watch();
        let mounts = &mut self.live.mounts;
        if mounts.told.get(&(mount, watch)).is_some_and(|told| told.word == word) {
            return false;
        }
        if mounts.told.len() >= TOLD_MAX {
            let done = &mounts.done;
            mounts
                .told
                .retain(|(mount, _), told| done.get(mount).is_none_or(|done| told.number > *done));
        }
        let number = self.new_notice();
        self.live.mounts.told.insert((mount, watch), Told { word, number });
        self.queue_notice(mount, &what.notice(number));
        false
    }

    /// A number for a notice: larger than those of before a restart, too.
    pub(crate) fn new_notice(&mut self) -> u64 {
        let last = &mut self.live.mounts.last;
        *last = (*last + 1).max(self.live.now.unsigned_abs());
        *last
    }

    /// For a mount of this host.
    pub(crate) fn queue_notice(&mut self, mount: u8, notice: &Notice<'_>) {
        let queue = self.live.mounts.queued.entry(mount).or_default();
        queue.push_back((notice.number, encoded(notice)));
        self.send_notices(mount);
    }

    /// True if a mount of this host has yet to take a notice of pages of a file.
    pub(crate) fn has_queued(&self, mount: u8, inode: Inode) -> bool {
        let queue = self.live.mounts.queued.get(&mount);
        let is_it = |bytes: &[u8]| {
            let notice = Notice::take(&mut Reader::new(bytes));
            notice.is_ok_and(|one| one.what == what::BYTES && one.inode == inode)
        };
        queue.into_iter().flatten().any(|(_, bytes)| is_it(bytes))
    }

    /// As `unwatched` for what has changed already, and nobody waits for.
    pub(crate) fn tell_mounts_of(&mut self, ask: &Ask<'_>, inode: Inode) {
        let _ = self.unwatched(ask, &[Changing::Attributes(inode)]);
    }

    /// A mount of this host waits for notices, and has carried out all up to `done`.
    pub(crate) fn notices(&mut self, ask: &Ask<'_>, done: u64) -> Step<()> {
        let mount = ask.header.mount;
        if mount == 0 || ask.header.host != self.config.host {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let mounts = &mut self.live.mounts;
        let known = mounts.done.entry(mount).or_default();
        *known = done.max(*known);
        self.live.far_mounts.relayed_up_to(mount, done, &mut self.io);
        self.pages_dropped(mount, done);
        let mounts = &mut self.live.mounts;
        let before = mounts.waiting.insert(mount, (ask.ticket, *ask.header));
        if let Some((ticket, _)) = before.filter(|(ticket, _)| *ticket != ask.ticket) {
            self.io.reply(ticket, &Reply::Bytes { bytes: &[] });
        }
        self.live.wake(|wait| *wait == Wait::Mounts);
        self.send_notices(mount);
        Ok(())
    }

    fn send_notices(&mut self, mount: u8) {
        let mounts = &mut self.live.mounts;
        let Some(queue) = mounts.queued.get_mut(&mount).filter(|queue| !queue.is_empty()) else {
            return;
        };
        let Some((ticket, _)) = mounts.waiting.remove(&mount) else { return };
        let mut all = Vec::new();
        while let Some((_, bytes)) = queue.front() {
            if all.len() + bytes.len() > BYTES_MAX {
                break;
            }
            all.extend_from_slice(bytes);
            queue.pop_front();
        }
        self.io.reply(ticket, &Reply::Bytes { bytes: &all });
    }

    /// Those who waited by these origins are gone.
    pub(crate) fn forget_mounts(&mut self, is_gone: impl Fn(&Header) -> bool) {
        let mounts = &mut self.live.mounts;
        let gone: Vec<u8> = mounts
            .waiting
            .iter()
            .filter(|(_, (_, header))| is_gone(header))
            .map(|(&mount, _)| mount)
            .collect();
        for mount in gone {
            mounts.waiting.remove(&mount);
            // What it was told and did not take, another of its number takes in its stead.
        }
    }

    /// What time brings: jobs look whether the time of those they wait for is over.
    pub(crate) fn keep_mounts(&mut self) {
        if self.live.jobs.values().any(|job| job.wait == Wait::Mounts) {
            self.live.wake(|wait| *wait == Wait::Mounts);
            self.live.wake_at(self.live.now.saturating_add(LOOK_NANOS));
        }
    }

    /// What a request is about to change here, as far as it says so. What it does at other services,
    /// those look at.
    pub(crate) fn unwatched_for(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        self.unwatched_by(ask, request)?;
        // Behind all waits: who waits comes here again and again, and two who move the same would each be
        // told of the other for ever.
        if let Request::Rename { parent, name, new_parent, new_name, flags } = *request {
            if let Some((replaced, _)) = self.state.entries.get(new_parent, new_name) {
                self.keep_for_mounts(ask, replaced);
            }
            self.note_move(ask, new_parent, new_name);
            if flags & rename::EXCHANGE != 0 {
                self.note_move(ask, parent, name);
            }
        }
        Ok(())
    }

    fn unwatched_by(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        if !ask.hands.has_mounts() {
            return Ok(());
        }
        let child = |parent, name: &[u8]| {
            self.state.entries.get(parent, name).map_or(Inode::NONE, |(inode, _)| inode)
        };
        use Changing::{Attributes, Name};
        match *request {
            Request::Create { parent, name, .. } => {
                if !child(parent, name).is_none() {
                    return Ok(());
                }
                self.unwatched(ask, &[Name(parent, name), Attributes(parent)])
            }
            Request::Link { inode, parent, name } => {
                let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
                self.unwatched(ask, &all)
            }
            Request::Unlink { parent, name } | Request::RemoveDirectory { parent, name } => {
                let inode = child(parent, name);
                let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
                self.unwatched(ask, &all)
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
                self.unwatched(ask, &all)
            }
            // A read waits for nobody.
            Request::SetAttributes { mask, .. } if mask & set::READ != 0 => Ok(()),
            Request::SetAttributes { inode, .. }
            | Request::SetXattr { inode, .. }
            | Request::RemoveXattr { inode, .. }
            | Request::WriteInline { inode, .. }
            | Request::Extend { inode, .. }
            | Request::Append { inode, .. } => self.unwatched(ask, &[Attributes(inode)]),
            _ => Ok(()),
        }
    }

    /// The same of an action of a transaction, of this service or another.
    pub(crate) fn unwatched_for_action(&mut self, ask: &Ask<'_>, action: &Action<'_>) -> Step<()> {
        use Changing::{Attributes, Name};
        match *action {
            Action::Entry { parent, name, set, .. } => {
                self.unwatched(ask, &[Name(parent, name), Attributes(parent)])?;
                if !set.is_none() {
                    self.note_move(ask, parent, name);
                }
                Ok(())
            }
            Action::Links { inode, change } => {
                if change == link::REPLACED {
                    self.keep_for_mounts(ask, inode);
                }
                self.unwatched(ask, &[Attributes(inode)])
            }
            Action::RemoveDirectory { inode, .. } | Action::Moved { inode, .. } => {
                self.unwatched(ask, &[Attributes(inode)])
            }
            Action::Freeze { .. } | Action::Chain { .. } => Ok(()),
        }
    }
}
