//! Metadata services: which daemon and worker serve a shard, and whether that is on this host.
//!
//! Where services may go on at other daemons, what is read here counts while the daemon has the lease of
//! the service (`shm::local_ops::ServedUntil`): without it everything is unknown, and the daemon is
//! asked, which waits or knows better. One that has left this host for good is remote from then on. A
//! process that changes which files are open here asks afterwards whether the service had the lease
//! (`Transport::answers_here`): if not, it tells the shard, as for a remote one. The shard that is here
//! still knows that already.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

use placement::map::worker_of_shard;
use shm::index::{Hit, Index};
use shm::local_ops::ServedUntil;
use wire::errno::Result;
use wire::lease::service;
use wire::{Attributes, DaemonIndex, Inode, ShardIndex};

use crate::transport::Transport;
use crate::transport::attachment::Attachment;

/// How often the gate is polled: a step of the worker takes a few microseconds.
const GATE_POLLS_MAX: u32 = 64;

/// True once the worker accepts local operations; false if it is busy for longer than a step takes, or
/// its daemon does not serve the service now.
pub(crate) fn gate_opens_soon(service: &Service<'_>) -> bool {
    let is_open = (0..GATE_POLLS_MAX).any(|_| {
        let is_open = service.by.op_log.is_open(service.worker);
        if !is_open {
            core::hint::spin_loop();
        }
        is_open
    });
    is_open && service.until.holds()
}

impl Transport {
    /// True if local operations on a shard of this host may be pending.
    pub(crate) fn may_have_local_ops(&self, shard: ShardIndex) -> bool {
        self.service_of(shard).is_some_and(|service| service.by.op_log.has_any(service.worker))
    }
}

/// Key of a name in the log of local operations; the index uses the other half.
pub(crate) const fn op_key(key: u128) -> u64 {
    (key >> 64) as u64
}

/// A metadata service of this host, as it can be read without a message.
#[derive(Clone, Copy)]
pub(crate) struct Service<'a> {
    pub(crate) by: &'a Attachment,
    pub(crate) worker: usize,
    index: &'a Index,
    /// Until when what is read here is the service's word. Taken before anything is read.
    pub(crate) until: ServedUntil,
    /// Attachment and worker in one word, for `Attachments::served_by`.
    pub(crate) name: u32,
}

impl<'a> Service<'a> {
    /// The service of a worker, with its packed number.
    #[inline]
    pub(crate) fn of(by: &'a Attachment, worker: usize, name: u32) -> Option<Service<'a>> {
        let until = by.op_log.served(worker).until();
        let is_here = until != ServedUntil::ELSEWHERE;
        is_here.then_some(Service { by, worker, index: by.index(worker)?, until, name })
    }

    /// Looks an entry with this key up in `directory`.
    #[inline]
    pub(crate) fn entry(&self, directory: Inode, key: u128) -> Hit {
        // Tested first: an applied operation is in the index before it stops being pending.
        if self.by.op_log.is_pending(self.worker, op_key(key)) {
            return Hit::Unknown;
        }
        self.applied_entry(directory, key)
    }

    /// As `entry`, whatever operation on the name is pending.
    #[inline]
    pub(crate) fn applied_entry(&self, directory: Inode, key: u128) -> Hit {
        let hit = self.index.entry_in(directory, key);
        if self.until.holds() { hit } else { Hit::Unknown }
    }

    /// The attributes of an inode, if they are known.
    pub(crate) fn inode(&self, inode: Inode) -> Option<Attributes> {
        self.index.inode(inode).filter(|_| self.until.holds())
    }

    /// As `inode`, into the caller's variable. False if unknown; then the variable may hold anything.
    #[inline]
    pub(crate) fn read_inode(&self, inode: Inode, to: &mut Attributes) -> bool {
        self.index.read_inode(inode, to) && self.until.holds()
    }

    /// The number of names of an inode, if known.
    pub(crate) fn links(&self, inode: Inode) -> Option<u32> {
        self.index.links(inode).filter(|_| self.until.holds())
    }

    /// As `Index::directory_version`.
    #[inline]
    pub(crate) fn directory_version(&self) -> Option<u64> {
        self.index.directory_version().filter(|_| self.until.holds())
    }
}

impl Transport {
    /// The service of a shard, if it is on this host.
    #[inline]
    pub(crate) fn service_of(&self, shard: ShardIndex) -> Option<Service<'_>> {
        let state = self.attachments.generation();
        let Some(name) = self.attachments.cached_service(shard, state) else {
            return self.find_service(shard, state);
        };
        let (by, worker) = self.attachments.served_by(name)?;
        Service::of(by, worker, name)
    }

    #[cold]
    fn find_service(&self, shard: ShardIndex, state: u32) -> Option<Service<'_>> {
        let owner = self.attached_home()?.map.owner(shard);
        let by = match self.attached_local(owner) {
            Some(attachment) => attachment,
            None => self.attach_local(owner).ok()??,
        };
        let worker = worker_of_shard(shard, by.workers());
        let name = self.attachments.cache_service(shard, state, by, worker)?;
        Service::of(by, worker, name)
    }

    /// True if the shard of a file is on this host, so that opening it costs no message.
    pub(crate) fn is_of_this_host(&self, inode: Inode) -> bool {
        self.is_local_shard(inode.shard()) == Ok(true)
    }

    /// True if the shard is served on this host.
    ///
    /// # Errors
    /// `EIO` if no daemon of the host is reachable.
    #[inline]
    pub(crate) fn is_local_shard(&self, shard: ShardIndex) -> Result<bool> {
        if self.service_of(shard).is_some() {
            return Ok(true);
        }
        self.is_local_owner(shard)
    }

    #[cold]
    fn is_local_owner(&self, shard: ShardIndex) -> Result<bool> {
        let owner = self.home()?.map.owner(shard);
        Ok(self.is_local_daemon(owner)? && !self.has_left(shard, owner))
    }

    /// True if the service of a shard is known to have left this host for good.
    fn has_left(&self, shard: ShardIndex, owner: DaemonIndex) -> bool {
        self.attached_local(owner).is_some_and(|by| {
            let word = by.op_log.served(worker_of_shard(shard, by.workers()));
            word.until() == ServedUntil::ELSEWHERE
        })
    }

    /// True if the service of a shard is served on this host now. To be asked after a change of what is
    /// open on this host: a service that leaves later has seen it.
    #[inline]
    pub(crate) fn answers_here(&self, shard: ShardIndex) -> bool {
        self.service_of(shard).is_some_and(|service| {
            service.until == ServedUntil::ALWAYS || self.answers_here_now(shard)
        })
    }

    #[cold]
    fn answers_here_now(&self, shard: ShardIndex) -> bool {
        fence(SeqCst);
        self.service_of(shard).is_some_and(|service| service.until.holds())
    }

    pub(crate) fn service_number(&self, shard: ShardIndex) -> Option<usize> {
        let home = self.attached_home()?;
        let name = home.map.service(shard, home.workers());
        Some(service(name.first, name.worker.into()))
    }
}
