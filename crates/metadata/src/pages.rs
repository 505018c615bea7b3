//! Pages of files that kernels behind mounts keep, where hosts meet: at the shard of the file.
//!
//! It knows which other hosts may write to a file and which may keep pages of it (`open_files`), and
//! sees the row that its own host has of it. A host keeps pages only of what no other host writes to, as
//! its open is answered; who makes a mapping where others write may come to keep some all the same. So
//! 1. who begins to write is counted (`Opens::begin_writing`), and is answered after all others dropped
//!    their pages and noted that somebody writes: what they read from then on they drop at once;
//! 2. who writes where others may keep pages asks to have them dropped behind his bytes (`Unwatch`);
//! 3. who comes to keep pages where others write is answered after they noted that.
//!
//! Pages of a file that is closed nobody reads. Who opens it again finds by the count whether anybody
//! began to write since.
//!
//! A host is told by a message to a service of it (`Message::Pages`), which notes it in the row of
//! the file, tells the mounts, and answers when they have carried it out. It is sent again until it is
//! answered. A mount that does not carry it out for as long as a kernel may remember anything is told,
//! and not waited for, until it does something; so is a host that does not answer.
//!
//! After a restart all of that is in the log and in shared memory; who waits asks again.

use std::collections::{BTreeMap, BTreeSet};

use wire::reply::opened;
use wire::request::open;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, what};
use wire::{Inode, Reply, ShardIndex};

use crate::directory::RESEND_NANOS;
use crate::effect::Opens;
use crate::live::{Again, Ask, Step, Stop, Wait};
use crate::mounts::Changing;
use crate::peer::Message;
use crate::service::Service;

/// Nobody is waited for longer.
const PATIENCE: i64 = VALID_NANOS + MARGIN_NANOS;
/// How often a job that waits looks whether that is over.
const LOOK_NANOS: i64 = 20_000_000;
/// A request that nobody sends again is forgotten then.
const FORGOTTEN_NANOS: i64 = 60_000_000_000;
/// Notices about pages that wait for one mount at a time; the sender of others tries again.
const NOTICES_MAX: usize = 4096;

/// In `Message::Pages::told`, besides bits of `opened`: its kernels drop their pages.
pub(crate) const DROP: u8 = 0x80;

/// Who begins to write by a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begins {
    /// The asker, so he is counted.
    Writer,
    /// Nobody, or somebody who counted himself.
    Nobody,
}

/// A request, by its origin and number, and the file that it is about.
type Asked = (Inode, (u64, u64));

/// A host that is told something of a file.
#[derive(Clone, Copy, Debug)]
struct Telling {
    host: u16,
    inode: Inode,
    /// This mount of it knows.
    but: u8,
    told: u8,
    until: i64,
    is_late: bool,
    again: Again,
}

/// What is told for one request.
#[derive(Clone, Debug)]
struct Round {
    numbers: Vec<u64>,
    /// How often somebody had begun to write before.
    writers: Option<u64>,
    since: i64,
}

/// A mount of this host that is told to drop pages, for a service that wants to know.
#[derive(Clone, Copy, Debug)]
struct Notified {
    /// The number of its notice.
    notice: u64,
    until: i64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pages {
    telling: BTreeMap<u64, Telling>,
    rounds: BTreeMap<Asked, Round>,
    /// Hosts that did not answer.
    silent: BTreeSet<u16>,
    /// By mount, the service that wants to know, and its number.
    notified: BTreeMap<(u8, ShardIndex, u64), Notified>,
    /// Mounts that carried nothing out in time.
    late: BTreeSet<u8>,
}

impl Pages {
    /// A host is gone, with its mounts.
    pub(crate) fn host_gone(&mut self, host: u16) {
        self.telling.retain(|_, telling| telling.host != host);
        self.silent.remove(&host);
    }

    fn is_waited_for(&self, number: u64, now: i64) -> bool {
        let telling = self.telling.get(&number);
        telling.is_some_and(|one| one.until > now && !self.silent.contains(&one.host))
    }

    /// True if a host that does not answer will do all of that anyway, once it hears of anything.
    fn is_told_already(&self, new: &Telling) -> bool {
        let covers = |one: &Telling| {
            (one.host, one.inode, one.but) == (new.host, new.inode, new.but)
                && new.told & !one.told == 0
        };
        self.silent.contains(&new.host) && self.telling.values().any(covers)
    }

    fn notified_for(&self, from: ShardIndex, number: u64) -> bool {
        self.notified.keys().any(|&(_, to, known)| (to, known) == (from, number))
    }
}

impl Service {
    /// What other hosts than the asker's do with a file.
    pub(crate) fn others_use(&self, ask: &Ask<'_>, inode: Inode) -> u8 {
        let mut others = self.uses_but(inode, ask.header.host).fold(0, |all, (_, uses)| all | uses);
        if ask.header.host != self.config.host {
            others |= if ask.hands.has_writer(inode) { opened::OTHERS_WRITE } else { 0 };
            others |= if ask.hands.had_pages(inode) { opened::OTHERS_KEEP } else { 0 };
        }
        others
    }

    /// A file is opened, and noted to be: goes on when those know that have to. How often somebody had
    /// begun to write before, if the opener may.
    pub(crate) fn tell_of_open(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        uses: u8,
    ) -> Step<Option<u64>> {
        if uses & (open::WRITES | open::MAPS) == 0 {
            return Ok(None);
        }
        let to_keepers = match uses & open::WRITES {
            0 => 0,
            _ => DROP | opened::OTHERS_WRITE,
        };
        let to_writers = if uses & open::MAPS != 0 { opened::OTHERS_KEEP } else { 0 };
        let begins = if to_keepers == 0 { Begins::Nobody } else { Begins::Writer };
        self.tell_others(ask, inode, begins, (to_keepers, to_writers))
    }

    /// The sender is about to write without having said so, or did.
    pub(crate) fn unwatch(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let host = ask.header.host;
        let is_near = host == self.config.host;
        let writes = match is_near {
            true => ask.hands.has_writer(inode),
            false => self.writers_but(inode, u16::MAX).any(|writer| writer == host),
        };
        let told = DROP | if writes { opened::OTHERS_WRITE } else { 0 };
        // Who is of this host counts himself.
        let begins = if writes || is_near { Begins::Nobody } else { Begins::Writer };
        self.tell_others(ask, inode, begins, (told, 0))?;
        let value = u64::from(self.others_use(ask, inode));
        self.io.reply(ask.ticket, &Reply::Number { value });
        Ok(())
    }

    /// Tells those who keep pages of a file, and those who write to it.
    fn tell_others(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        begins: Begins,
        told: (u8, u8),
    ) -> Step<Option<u64>> {
        let asked = (inode, (ask.header.origin, ask.header.sequence));
        if !self.live.pages.rounds.contains_key(&asked) {
            // Counted after it was noted who writes, and before it is looked who keeps pages.
            let before = (begins == Begins::Writer).then(|| ask.hands.begin_writing(inode));
            let numbers = self.tell_hosts(ask, inode, told);
            let round = Round { numbers, writers: before, since: self.live.steady };
            self.live.pages.rounds.insert(asked, round);
        }
        // From now on it may be written elsewhere (`sizes`). Who is told both is waited for once.
        let attributes = match told.0 & DROP {
            0 => Ok(()),
            _ => self.unwatched(ask, &[Changing::Attributes(inode)]),
        };
        if !self.is_round_over(asked) {
            return Err(Stop::Wait(Wait::Mounts));
        }
        attributes?;
        Ok(self.live.pages.rounds.remove(&asked).and_then(|round| round.writers))
    }

    fn is_round_over(&mut self, asked: Asked) -> bool {
        let (now, pages) = (self.live.steady, &self.live.pages);
        let Some(round) = pages.rounds.get(&asked) else { return true };
        let is_over = !round.numbers.iter().any(|&number| pages.is_waited_for(number, now));
        if !is_over {
            self.live.wake_at(self.live.now.saturating_add(LOOK_NANOS));
        }
        is_over
    }

    /// The numbers under which hosts are told.
    fn tell_hosts(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        (keepers, writers): (u8, u8),
    ) -> Vec<u64> {
        let (by, own) = (ask.header.host, self.config.host);
        let mut all = Vec::new();
        for (host, uses) in self.uses_but(inode, own) {
            let told = if uses & opened::OTHERS_KEEP != 0 { keepers } else { 0 };
            let told = told | if uses & opened::OTHERS_WRITE != 0 { writers } else { 0 };
            all.push((host, told));
        }
        if by != own {
            // Its row is at hand.
            ask.hands.mark_others_use(inode, (keepers | writers) & !DROP);
        }
        let mut has_keepers = false;
        ask.hands.page_keepers(inode, &mut |_| has_keepers = true);
        all.push((own, if has_keepers { keepers & DROP } else { 0 }));
        let mut numbers = Vec::new();
        for (host, told) in all {
            // Of the asker's own host its row says who writes and who keeps pages.
            let told = if host == by { told & DROP } else { told };
            let but = if host == by { ask.header.mount } else { 0 };
            if told != 0 {
                numbers.extend(self.tell_host_of_pages(host, inode, but, told));
            }
        }
        numbers
    }

    fn tell_host_of_pages(&mut self, host: u16, inode: Inode, but: u8, told: u8) -> Option<u64> {
        let again = Again::after(self.live.now, RESEND_NANOS);
        let until = self.live.steady.saturating_add(PATIENCE);
        let telling = Telling { host, inode, but, told, until, is_late: false, again };
        if self.live.pages.is_told_already(&telling) {
            return None;
        }
        let number = self.new_notice();
        self.live.pages.telling.insert(number, telling);
        self.send_pages(number, &telling);
        self.live.wake_at(again.at);
        Some(number)
    }

    fn send_pages(&mut self, number: u64, telling: &Telling) {
        let Telling { host, inode, but, told, .. } = *telling;
        let message = Message::Pages { from: self.live.address.0, number, inode, but, told };
        if host != self.config.host {
            if let Some(to) = self.relay_of(host) {
                self.io.send(to, &message);
            }
            return;
        }
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.live.own_messages.push_back(bytes);
    }

    /// A host has carried out what it was told.
    pub(crate) fn pages_carried(&mut self, number: u64) {
        if let Some(telling) = self.live.pages.telling.remove(&number) {
            self.live.pages.silent.remove(&telling.host);
            self.live.wake(|wait| *wait == Wait::Mounts);
        }
    }

    /// A service says what other hosts do with a file that is perhaps open on this one.
    pub(crate) fn take_pages(&mut self, hands: &dyn Opens, message: &Message<'_>) {
        let Message::Pages { from, number, inode, but, told } = *message else { return };
        let from = ShardIndex(from);
        if !self.config.owns(from) {
            hands.mark_others_use(inode, told & !DROP);
        }
        self.live.pages.notified.retain(|&(mount, ..), _| hands.has_mount(mount));
        let mut mounts = Vec::new();
        if told & DROP != 0 {
            hands.page_keepers(inode, &mut |mount| mounts.push(mount));
        }
        mounts.retain(|&mount| mount != but && hands.has_mount(mount));
        for mount in mounts {
            let key = (mount, from, number);
            let is_late = self.live.pages.late.contains(&mount);
            if self.live.pages.notified.contains_key(&key)
                || is_late && self.has_queued(mount, inode)
            {
                continue;
            }
            let all = (mount, ShardIndex(0), 0)..=(mount, ShardIndex(u16::MAX), u64::MAX);
            if self.live.pages.notified.range(all).count() >= NOTICES_MAX {
                return;
            }
            let notice = self.new_notice();
            let until = self.live.steady.saturating_add(PATIENCE);
            if !is_late {
                self.live.pages.notified.insert(key, Notified { notice, until });
            }
            self.queue_notice(
                mount,
                &Notice { what: what::BYTES, number: notice, inode, name: &[] },
            );
            self.live.wake_at(self.live.now.saturating_add(PATIENCE));
        }
        self.answer_pages(from, number);
    }

    /// Says that something is carried out, if it is.
    fn answer_pages(&mut self, to: ShardIndex, number: u64) {
        if self.live.pages.notified_for(to, number) {
            return;
        }
        match self.config.owns(to) {
            true => self.pages_carried(number),
            false => self.io.send(to, &Message::Carried { number }),
        }
    }

    /// A mount of this host has carried out all notices up to `done`.
    pub(crate) fn pages_dropped(&mut self, mount: u8, done: u64) {
        self.live.pages.late.remove(&mount);
        self.end_notified(|key, one| key.0 == mount && one.notice <= done);
    }

    fn end_notified(&mut self, is_over: impl Fn(&(u8, ShardIndex, u64), &Notified) -> bool) {
        let mut over = Vec::new();
        self.live.pages.notified.retain(|key, one| {
            let is_over = is_over(key, one);
            over.extend(is_over.then_some((key.1, key.2)));
            !is_over
        });
        over.into_iter().for_each(|(from, number)| self.answer_pages(from, number));
    }

    /// What time brings: who did not answer is told again, and waited for no longer than anybody.
    pub(crate) fn keep_pages(&mut self) {
        let (now, steady) = (self.live.now, self.live.steady);
        let pages = &mut self.live.pages;
        pages.rounds.retain(|_, round| steady.saturating_sub(round.since) < FORGOTTEN_NANOS);
        let late = pages.notified.iter().filter(|(_, one)| one.until <= steady);
        let late: Vec<u8> = late.map(|(key, _)| key.0).collect();
        pages.late.extend(late);
        self.end_notified(|_, one| one.until <= steady);
        if let Some(until) = self.live.pages.notified.values().map(|one| one.until).min() {
            self.live.wake_at(now.saturating_add(until.saturating_sub(steady)));
        }
        let mut telling = core::mem::take(&mut self.live.pages.telling);
        for (&number, one) in &mut telling {
            if one.until <= steady && !one.is_late {
                one.is_late = true;
                self.live.pages.silent.insert(one.host);
            }
            if one.again.is_due(now) {
                self.send_pages(number, one);
            }
            self.live.wake_at(one.again.at);
        }
        self.live.pages.telling = telling;
    }
}
