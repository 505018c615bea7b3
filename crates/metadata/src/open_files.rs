//! Which hosts have files open, and what becomes of files that lost their last name.
//!
//! This host's open files are in shared memory (`Opens`); other hosts register here. A file
//! without a name goes when it is open nowhere; until then it is an orphan.
//!
//! What a host says of its first and last openings may overtake each other. So each word carries a
//! number that the host drew (`shm::host`): one of a close ends no opening of a larger one.

use wire::codec::{Malformed, Reader};
use wire::reply::opened;
use wire::request::open;
use wire::{Inode, Reply};

use crate::coding::Put;
use crate::effect::{Effect, IndexOp, Opens};
use crate::live::{Ask, Step};
use crate::record::Record;
use crate::service::Service;

/// Another host that has a file open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    pub(crate) host: u16,
    /// The largest number that came with one of its openings; 0: it made the file.
    pub(crate) turn: u64,
    /// One of them may write.
    pub(crate) writes: bool,
    /// Kernels behind mounts there may keep pages of it (`pages`).
    pub(crate) keeps: bool,
}

/// Bits of an encoded turn: `writes`, `keeps`. No host draws so many.
const WRITES: u64 = 1 << 63;
const KEEPS: u64 = 1 << 62;

impl Opening {
    /// What the host does with the file, as others see it.
    const fn uses(self) -> u8 {
        let writes = if self.writes { opened::OTHERS_WRITE } else { 0 };
        writes | if self.keeps { opened::OTHERS_KEEP } else { 0 }
    }
}

/// Appends openings: two bytes of host, eight of turn each.
pub(crate) fn encode(openings: &[Opening], to: &mut Vec<u8>) {
    for opening in openings {
        opening.host.append_to(to);
        let writes = if opening.writes { WRITES } else { 0 };
        let keeps = if opening.keeps { KEEPS } else { 0 };
        (opening.turn | writes | keeps).append_to(to);
    }
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Opening>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut openings = Vec::new();
    while !reader.rest().is_empty() {
        let (host, turn) = (reader.u16()?, reader.u64()?);
        let (writes, keeps) = (turn & WRITES != 0, turn & KEEPS != 0);
        openings.push(Opening { host, turn: turn & !(WRITES | KEEPS), writes, keeps });
    }
    Ok(openings)
}

impl Service {
    pub(crate) fn open(&mut self, ask: &Ask<'_>, inode: Inode, turn: u64, uses: u8) -> Step<()> {
        self.settle_size(ask, inode)?;
        let attributes = self.quiet_attributes(inode)?;
        let (host, writers) = (ask.header.host, ask.hands.writers_ever(inode));
        let (writes, keeps) = (uses & open::WRITES != 0, uses & open::MAPS != 0);
        self.register_host(ask.hands, inode, Opening { host, turn, writes, keeps });
        let writers = self.tell_of_open(ask, inode, uses)?.unwrap_or(writers);
        let mut others = self.others_use(ask, inode);
        if uses & open::PAGES != 0 && others & opened::OTHERS_WRITE == 0 {
            self.register_host(ask.hands, inode, Opening { host, turn, writes, keeps: true });
            // Who began to write before it was noted is there by now.
            others = self.others_use(ask, inode);
            if others & opened::OTHERS_WRITE == 0 {
                others |= opened::MAY_KEEP;
            }
        }
        self.io.reply(ask.ticket, &Reply::Opened { attributes, writers, others });
        Ok(())
    }

    pub(crate) fn close(&mut self, ask: &Ask<'_>, inode: Inode, turn: u64) -> Step<()> {
        self.forget_host(inode, ask.header.host, turn);
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    pub(crate) fn reap(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        if self.state.orphans.contains(&inode) {
            self.live.unlinked.push(inode);
        }
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    /// Notes that another host has a file open.
    pub(crate) fn register_host(&mut self, hands: &dyn Opens, inode: Inode, opening: Opening) {
        if opening.host == self.config.host {
            return;
        }
        let mut hosts = self.state.hosts.get(&inode).cloned().unwrap_or_default();
        let (before, now) = match hosts.iter_mut().find(|known| known.host == opening.host) {
            Some(known) => {
                let before = *known;
                known.turn = known.turn.max(opening.turn);
                known.writes |= opening.writes;
                known.keeps |= opening.keeps;
                if *known == before {
                    return;
                }
                (before.uses(), known.uses())
            }
            None => {
                hosts.push(opening);
                (0, opening.uses())
            }
        };
        if now != before {
            hands.count_others_use(inode, now & !before);
        }
        self.put_hosts(inode, &hosts);
        if let Some(node) = self.state.inodes.get(inode)
            && self.is_written_elsewhere(&node.attributes)
        {
            // Who wants to know how long it is asks from now on.
            self.io.index(IndexOp::ForgetInode(inode));
        }
    }

    /// A host says that it has a file open no longer; what it opened later counts.
    fn forget_host(&mut self, inode: Inode, host: u16, turn: u64) {
        let Some(hosts) = self.state.hosts.get(&inode) else { return };
        let stays = |known: &Opening| known.host != host || known.turn > turn;
        let left: Vec<Opening> = hosts.iter().copied().filter(stays).collect();
        if left.len() != hosts.len() {
            let gone = hosts.iter().filter(|known| !stays(known)).map(|known| known.uses());
            let gone: Vec<u8> = gone.filter(|&uses| uses != 0).collect();
            self.put_hosts(inode, &left);
            for less in gone {
                self.io.push(Effect::UncountUse { inode, less });
            }
            self.forget_sizes(host, inode);
        }
        if self.state.orphans.contains(&inode) {
            self.live.unlinked.push(inode);
        }
    }

    /// Other hosts that have a file open, as far as they told.
    pub fn hosts_of(&self, inode: Inode) -> impl Iterator<Item = u16> {
        self.state.hosts.get(&inode).into_iter().flatten().map(|opening| opening.host)
    }

    /// What other hosts than one do with a file.
    pub(crate) fn uses_but(&self, inode: Inode, host: u16) -> impl Iterator<Item = (u16, u8)> {
        let hosts = self.state.hosts.get(&inode).into_iter().flatten();
        hosts.filter(move |known| known.host != host).map(|known| (known.host, known.uses()))
    }

    fn put_hosts(&mut self, inode: Inode, hosts: &[Opening]) {
        let mut bytes = self.io.buffer();
        encode(hosts, &mut bytes);
        self.put(&Record::PutHosts { inode, hosts: &bytes });
        self.io.recycle(bytes);
    }

    /// A host is gone, with its open files, its locks, and what it waited for.
    pub(crate) fn host_gone(&mut self, host: u16) {
        let all = &self.state.hosts;
        let is_its = |hosts: &[Opening]| hosts.iter().any(|known| known.host == host);
        let opened: Vec<Inode> =
            all.iter().filter(|(_, hosts)| is_its(hosts)).map(|(&inode, _)| inode).collect();
        for inode in opened {
            self.forget_host(inode, host, u64::MAX);
        }
        self.refuse_all(|waiter| waiter.lock.host == host);
        self.live.far_mounts.host_gone(host);
        self.live.pages.host_gone(host);
        let held = &self.state.locks;
        let locked: Vec<Inode> = held
            .iter()
            .filter(|(_, all)| all.iter().any(|lock| lock.host == host))
            .map(|(&inode, _)| inode)
            .collect();
        for inode in locked {
            self.keep_locks(inode, |lock| lock.host != host);
        }
    }

    /// Takes a name away from an inode of this service that is no directory.
    pub(crate) fn drop_link(&mut self, inode: Inode) {
        let Some(node) = self.state.inodes.get(inode) else { return };
        let mut attributes = node.attributes;
        if attributes.links <= 1 {
            // `settle_unlinked` decides whether it goes or stays as an orphan.
            self.live.unlinked.push(inode);
            return;
        }
        attributes.links -= 1;
        attributes.changed = self.stamp(attributes.changed);
        self.put(&Record::PutAttributes { attributes });
    }

    /// Removes the inodes that lost their last name in this step, or keeps them as orphans.
    pub(crate) fn settle_unlinked(&mut self, opens: &mut dyn Opens) {
        while let Some(inode) = self.live.unlinked.pop() {
            let Some(node) = self.state.inodes.get(inode) else { continue };
            let mut attributes = node.attributes;
            let is_open = self.state.hosts.contains_key(&inode)
                || self.live.busy.contains_key(&inode)
                || self.is_kept(inode)
                || opens.mark_deleted(inode);
            if is_open {
                if attributes.links != 0 {
                    attributes.links = 0;
                    attributes.changed = self.stamp(attributes.changed);
                    self.put(&Record::PutAttributes { attributes });
                }
                continue;
            }
            self.put(&Record::DeleteInode { inode });
            self.live.kept.forget(inode);
            self.refuse_waiters(inode);
            if attributes.is_regular() && !attributes.is_inline() {
                self.give_back(inode, attributes.layout);
            }
        }
    }
}
