//! Which hosts have files open, and what becomes of files that lost their last name.
//!
//! This host's open files are in shared memory (`Opens`); other hosts register here. A file
//! without a name goes when it is open nowhere; until then it is an orphan.

use wire::{Inode, Reply};

use crate::effect::Opens;
use crate::live::{Ask, Step};
use crate::locks;
use crate::record::Record;
use crate::service::Service;
use crate::state::encode_hosts;

impl Service {
    pub(crate) fn open(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let attributes = self.quiet_attributes(inode)?;
        self.register_host(inode, ask.header.host);
        self.io.reply(ask.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    pub(crate) fn close(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        self.forget_host(inode, ask.header.host);
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
    pub(crate) fn register_host(&mut self, inode: Inode, host: u16) {
        if host == self.config.host {
            return;
        }
        let mut hosts = self.state.hosts.get(&inode).cloned().unwrap_or_default();
        if !hosts.contains(&host) {
            hosts.push(host);
            self.put_hosts(inode, &hosts);
        }
    }

    fn forget_host(&mut self, inode: Inode, host: u16) {
        let Some(hosts) = self.state.hosts.get(&inode) else { return };
        let left: Vec<u16> = hosts.iter().copied().filter(|&other| other != host).collect();
        if left.len() != hosts.len() {
            self.put_hosts(inode, &left);
        }
        if self.state.orphans.contains(&inode) {
            self.live.unlinked.push(inode);
        }
    }

    fn put_hosts(&mut self, inode: Inode, hosts: &[u16]) {
        let mut bytes = self.io.buffer();
        encode_hosts(hosts, &mut bytes);
        self.put(&Record::PutHosts { inode, hosts: &bytes });
        self.io.recycle(bytes);
    }

    /// A host is gone, with its open files, its locks, and what it waited for.
    pub(crate) fn host_gone(&mut self, host: u16) {
        let all = &self.state.hosts;
        let opened: Vec<Inode> =
            all.iter().filter(|(_, hosts)| hosts.contains(&host)).map(|(&i, _)| i).collect();
        for inode in opened {
            self.forget_host(inode, host);
        }
        for waiters in self.live.waiters.values_mut() {
            waiters.retain(|waiter| waiter.lock.host != host);
        }
        self.live.waiters.retain(|_, waiters| !waiters.is_empty());
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
            self.refuse_waiters(inode);
            if !self.live.watchers.is_empty() {
                self.live.watchers.remove(&inode);
            }
            if attributes.is_regular() && !attributes.is_inline() {
                self.give_back(inode, attributes.layout);
            }
        }
    }

    /// Keeps those locks of an inode that `keep` accepts, and lets others have their turn.
    pub(crate) fn keep_locks(&mut self, inode: Inode, keep: impl Fn(&locks::Lock) -> bool) {
        let Some(held) = self.state.locks.get(&inode) else { return };
        let left: Vec<locks::Lock> = held.iter().copied().filter(keep).collect();
        if left.len() != held.len() {
            self.put_locks(inode, &left);
            self.grant(inode);
        }
    }
}
