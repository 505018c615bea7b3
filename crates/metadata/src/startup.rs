//! The first step after a replay: creates the root, and resumes all unfinished work.

use wire::attributes::{flag, mode, spread};
use wire::quota::Owner;
use wire::reply::opened;
use wire::{Attributes, Inode, Layout, ShardIndex};

use crate::core::context::Context;
use crate::core::effect::{Effect, HostMarks};
use crate::core::record::Record;
use crate::core::state::{Pending, ShardCounters};
use crate::files::Files;
use crate::files::contents::NOBODY;
use crate::files::openings::{Opening, put_hosts};
use crate::files::removal::resend_removals;
use crate::kernel_cache::page_cache::service_number;
use crate::namespace::local_ops::renew_grants;
use crate::service::Service;

/// The numbers that an owner skips after another one are in its log: a copy of it has them, too.
fn put_skipped(cx: &mut Context) {
    let (shards, grants) = (cx.state.shards.clone(), cx.state.grants.clone());
    for (shard, ShardCounters { inode_next, place_next }) in shards {
        cx.put(&Record::PutShard { shard, inode_next, place_next });
    }
    for (shard, end) in grants {
        cx.put(&Record::PutGrant { shard, end });
    }
    for (shard, next) in cx.state.backed_inode_next.clone() {
        cx.put(&Record::PutBackedNext { shard, next });
    }
    let sequence_next = cx.state.sequence_next;
    cx.put(&Record::PutCounter { sequence_next });
}

impl Service {
    /// Where services move, after the replay at the first owner, in this `epoch` of its owners, and
    /// before programs of its host see anything of the service. Unless that host's memory agrees with the
    /// log, as it does where this daemon was the owner before, it takes up what happened elsewhere:
    /// 1. kernels behind its mounts take no page for current, and other hosts may have written to each
    ///    open file;
    /// 2. it knows which files other hosts may write to, and cache, and those hosts are told before
    ///    kernels of this one cache anything anew;
    /// 3. no open file has a size from before a truncation.
    pub fn meet_host(&mut self, epoch: u64, host_view: &dyn HostMarks) {
        let Service { files, .. } = self;
        let service = service_number(&files.cx);
        if host_view.agreed_epoch(service) + 1 == epoch {
            return host_view.note_agreed(service, epoch);
        }
        let writers = files.caches.pages.return_in(epoch);
        host_view.doubt_pages(service, writers);
        let (state, own) = (&files.cx.state, files.cx.config.host);
        for (&inode, hosts) in &state.hosts {
            for uses in hosts.iter().filter(|known| known.host != own).map(|known| known.uses()) {
                host_view.add_remote_use(inode, uses);
                host_view.mark_remote_use(inode, uses);
            }
        }
        let mut open = Vec::new();
        host_view.open_files(&mut |inode| open.push(inode));
        open.retain(|inode| files.cx.config.owns(inode.shard()));
        for &inode in &open {
            // Also for a mount that is about to open it, and asked before for the number of its writers.
            host_view.mark_remote_use(inode, opened::OTHERS_WRITE);
            host_view.forget_entered(inode);
        }
        // Those that targets truncate are counted when they are asked again.
        let pending = state.pending.values().filter(|one| one.kind == Pending::TRUNCATE);
        let truncating: Vec<Inode> = pending.map(|one| one.inode).collect();
        for inode in open.into_iter().filter(|inode| !truncating.contains(inode)) {
            let Some(node) = state.inodes.get(inode) else {
                host_view.note_lost(inode);
                continue;
            };
            if !node.attributes.is_regular() {
                continue;
            }
            let mut hosts = state.hosts.get(&inode).into_iter().flatten();
            let is_uncounted = hosts.any(|known| known.host == own);
            host_view.settle_size(inode, node.attributes.size, is_uncounted);
        }
    }

    /// Before the service leaves this host for good: the next owner knows what it has open. Programs
    /// that wait here for a truncation go on, and are told of it again where that matters
    /// (`size_coherence`).
    pub(crate) fn report_openings(
        &mut self,
        open: &[Inode],
        open_sequence: u64,
        host_view: &mut dyn HostMarks,
    ) {
        let cx = &mut self.files.cx;
        let host = cx.config.host;
        for &inode in open {
            if !cx.config.owns(inode.shard()) || cx.state.inodes.get(inode).is_none() {
                continue;
            }
            let (writes, caches) = (host_view.has_writer(inode), host_view.had_pages(inode));
            let mut hosts = cx.state.hosts.get(&inode).cloned().unwrap_or_default();
            hosts.retain(|known| known.host != host);
            hosts.push(Opening { host, open_sequence, writes, caches });
            put_hosts(cx, inode, &hosts);
        }
        for pending in cx.state.pending.values().filter(|one| one.kind == Pending::TRUNCATE) {
            host_view.end_truncate(pending.inode);
        }
    }

    /// After that the service stays: this host's open files are in its memory alone, and its programs
    /// wait for truncations again.
    pub(crate) fn stay(&mut self) {
        self.forget_own_openings();
        let cx = &mut self.files.cx;
        let pending = cx.state.pending.values().filter(|one| one.kind == Pending::TRUNCATE);
        let again: Vec<_> = pending.map(|one| (one.inode, one.size)).collect();
        again.into_iter().for_each(|(inode, size)| {
            cx.io.push(Effect::BeginTruncate { inode, size });
        });
    }

    /// This host's own openings are in its memory, which `meet_host` told of the truncations that these
    /// stand for.
    fn forget_own_openings(&mut self) {
        let cx = &mut self.files.cx;
        let own = cx.config.host;
        let is_own = |hosts: &Vec<Opening>| hosts.iter().any(|known| known.host == own);
        let found = cx.state.hosts.iter().filter(|(_, hosts)| is_own(hosts));
        let found: Vec<_> = found.map(|(&inode, hosts)| (inode, hosts.clone())).collect();
        for (inode, mut hosts) in found {
            hosts.retain(|known| known.host != own);
            put_hosts(cx, inode, &hosts);
            cx.unlinked.extend(cx.state.orphans.get(&inode));
        }
    }

    /// Resumes the work that the log shows as unfinished.
    pub(crate) fn start(&mut self) {
        let now = self.files.cx.now;
        self.files.leases.begin_leases(&mut self.files.cx);
        self.files.caches.remote.begin_remote_mounts(&mut self.files.cx);
        self.is_started = true;
        if self.has_skipped {
            put_skipped(&mut self.files.cx);
        }
        // A service that was killed may not have told its clients, and one that comes back not at all.
        renew_grants(&mut self.files.cx);
        self.files.cx.sequence_next = self.files.cx.state.sequence_next;
        // Never a number from before the restart.
        self.files.cx.dirty_generation = now.cast_unsigned();
        if self.files.cx.config.owns(ShardIndex(0))
            && self.files.cx.state.inodes.get(Inode::ROOT).is_none()
        {
            self.make_root();
        }
        self.forget_own_openings();
        self.files.caches.drop_pages_from_elsewhere(&mut self.files.cx);
        self.transactions.resume(&mut self.files);
        let tokens: Vec<u64> = self.files.cx.state.pending.keys().copied().collect();
        for token in tokens {
            self.files.request_on_targets(token, NOBODY);
        }
        self.files.sizes.begin_sizes(&mut self.files.cx);
        self.files.grants.begin_quotas(&mut self.files.cx);
        self.coordinator.begin_coordinator(&mut self.files.cx);
        self.registry.begin_pools(&mut self.files.cx);
        resend_removals(&mut self.files.cx);
        for &directory in self.files.cx.state.tallies.keys() {
            if !self.files.cx.config.owns(directory.shard()) {
                self.files.directories.send_tally(directory);
            }
        }
        let Files { cx, directories, .. } = &mut self.files;
        directories.widening.resume(cx);
        self.files.cx.wake_at(now);
    }

    fn make_root(&mut self) {
        let now = self.files.cx.now;
        let config = &self.files.cx.config;
        let layout = Layout {
            // The service that imports the entries of a directory owns all of them.
            spread: if config.backing { spread::HOME } else { config.spread },
            placement: config.placement,
            stripe_log2: config.stripe_log2_of(config.stripe_log2, config.stripe_log2),
            flags: config.root_flags & (flag::POSIX | flag::WRITEBACK),
            pool: 0,
            copies: 0,
            place: 0,
        };
        let mode = mode::DIRECTORY | config.root_mode & mode::PERMISSIONS;
        let owner = (Owner { uid: config.root_uid, project: 0 }, config.root_gid);
        let new = Attributes::of_new(Inode::ROOT, mode, owner, now, layout);
        let attributes = Attributes { parent: Inode::ROOT, links: 2, ..new };
        debug_assert_eq!(layout.flags & flag::INLINE, 0);
        self.files.cx.put(&Record::PutInode {
            attributes,
            nameless: 0,
            target: &[],
            contents: &[],
            xattrs: &[],
            tallies: &[],
        });
    }
}
