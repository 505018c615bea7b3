//! Access of a metadata service to shared memory during a step: the index, the host segment, the ledger
//! of the target, and whether a client still waits for its reply.

use crate::members::Members;
use crate::shard::tickets::Tickets;
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use crate::target::space::ledger::AccountLedger;
use crate::units::Units;
use metadata::{HostMarks, HostView, LackingUnits, SingleFiles, TargetPresence};
use shm::host::{HostSegment, TruncateEpoch};
use shm::index::Index;
use wire::watch::Watch;
use wire::{DaemonIndex, Inode};

/// Whether the target of this number takes new files.
pub(crate) type PresenceOf<'a> = &'a dyn Fn(u32) -> TargetPresence;

/// Access of a service to shared memory during a step.
pub(crate) struct LiveHostView<'a> {
    pub(crate) index: &'a Index,
    pub(crate) host: &'a HostSegment,
    pub(crate) ledger: &'a AccountLedger,
    pub(crate) tickets: &'a Tickets,
    pub(crate) units: Option<&'a Units>,
    pub(crate) members: Option<&'a Members>,
    pub(crate) presence: PresenceOf<'a>,
}

/// The view of a service that this daemon took over: no host with programs. To it, those of this host
/// are as those of others, which register what they have open and are told what they remember.
pub(crate) struct NoHostView<'a> {
    pub(crate) tickets: &'a Tickets,
    pub(crate) units: Option<&'a Units>,
    pub(crate) members: Option<&'a Members>,
    pub(crate) presence: PresenceOf<'a>,
}

impl HostView for NoHostView<'_> {
    fn is_awaited(&self, ticket: u64) -> bool {
        is_awaited(self.tickets, ticket)
    }

    fn lacking_units(&self) -> Option<LackingUnits> {
        self.units.map(Units::lacking)
    }

    fn allow_single_files(&self) -> SingleFiles {
        self.members.map_or(SingleFiles::Allowed, Members::allow_single_files)
    }

    fn target_presence(&self, target: u32) -> TargetPresence {
        (self.presence)(target)
    }
}

impl HostMarks for NoHostView<'_> {
    fn mark_deleted(&mut self, _: Inode) -> bool {
        false
    }
}

/// Whether a target takes new files. Without failure domains nobody agrees which daemons are alive: one
/// that is not connected is taken to be away.
pub(crate) fn target_presence(shared: &Shared, target: u32) -> TargetPresence {
    let Ok(daemon) = u16::try_from(target).map(DaemonIndex) else { return TargetPresence::Gone };
    let net = &shared.net;
    match &shared.members {
        Some(members) => members.target_presence(daemon),
        None if daemon == net.router.me || net.sender.is_connected(daemon) => TargetPresence::Here,
        None => TargetPresence::Away,
    }
}

/// False if the sender of the request is gone.
fn is_awaited(tickets: &Tickets, ticket: u64) -> bool {
    match tickets.destination(ticket) {
        Some(ReplyTo::Slot { client, slot }) => client.slots.is_awaited(usize::from(*slot)),
        _ => true,
    }
}

impl HostView for LiveHostView<'_> {
    fn is_awaited(&self, ticket: u64) -> bool {
        is_awaited(self.tickets, ticket)
    }

    fn unreported(&self, inode: Inode) -> Option<u64> {
        Some(self.host.unreported(inode))
    }

    fn truncate_epoch(&self, inode: Inode) -> Option<u64> {
        self.host.truncate_epoch(inode).map(TruncateEpoch::number)
    }

    fn lacking_units(&self) -> Option<LackingUnits> {
        self.units.map(Units::lacking)
    }

    fn allow_single_files(&self) -> SingleFiles {
        self.members.map_or(SingleFiles::Allowed, Members::allow_single_files)
    }

    fn target_presence(&self, target: u32) -> TargetPresence {
        (self.presence)(target)
    }

    fn space_used(&self, account: u64) -> u64 {
        self.ledger.used_by(account)
    }

    fn each_space(&self, each: &mut dyn FnMut(u64, u64)) {
        self.ledger.each_used(each);
    }

    fn is_counted(&self) -> bool {
        self.ledger.is_counted()
    }

    fn has_mounts(&self) -> bool {
        self.host.has_mounts()
    }

    fn has_mount(&self, mount: u8) -> bool {
        self.host.has_mount(mount)
    }

    fn has_writer(&self, inode: Inode) -> bool {
        self.host.has_writer(inode)
    }

    fn is_open(&self, inode: Inode) -> bool {
        self.host.is_open(inode)
    }

    fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        self.host.watchers(watch, each);
    }

    fn page_cache_mounts(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        self.host.page_cache_mounts(inode, each);
    }

    fn page_cache_files(&self, mount: u8, each: &mut dyn FnMut(Inode)) {
        self.host.page_cache_files(mount, each);
    }

    fn behind_mounts(&self, service: usize, each: &mut dyn FnMut(u8)) {
        self.host.behind_mounts(service, each);
    }

    fn had_pages(&self, inode: Inode) -> bool {
        self.host.had_pages(inode)
    }

    fn writers_ever(&self, inode: Inode) -> u64 {
        self.host.writers_ever(inode)
    }

    fn agreed_epoch(&self, service: usize) -> u64 {
        self.host.agreed_epoch(service)
    }

    fn open_files(&self, each: &mut dyn FnMut(Inode)) {
        self.host.open_files(each);
    }
}

impl HostMarks for LiveHostView<'_> {
    fn mark_deleted(&mut self, inode: Inode) -> bool {
        self.index.forget_inode(inode);
        self.host.mark_deleted(inode)
    }

    fn hide(&self, inode: Inode) -> bool {
        self.index.forget_inode(inode);
        self.host.is_open(inode)
    }

    fn end_truncate(&mut self, inode: Inode) {
        self.host.end_truncate(inode);
    }

    fn watch_for_others(&self, watch: Watch, nanos: i64) -> bool {
        self.host.watch_for_others(watch, nanos).is_ok()
    }

    fn begin_writing(&self, inode: Inode) -> u64 {
        self.host.begin_writing(inode)
    }

    fn add_remote_use(&self, inode: Inode, more: u8) {
        self.host.add_remote_use(inode, more);
    }

    fn set_behind(&self, mount: u8, service: usize, is_behind: bool) {
        self.host.set_behind(mount, service, is_behind);
    }

    fn mark_remote_use(&self, inode: Inode, others: u8) {
        self.host.mark_remote_use(inode, others);
    }

    fn note_agreed(&self, service: usize, epoch: u64) {
        self.host.note_agreed(service, epoch);
    }

    fn doubt_pages(&self, service: usize, writers: u64) {
        self.host.doubt_pages(service, writers);
    }

    fn forget_entered(&self, inode: Inode) {
        self.host.forget_entered(inode);
    }

    fn note_lost(&self, inode: Inode) {
        self.host.note_lost(inode);
    }

    fn settle_size(&self, inode: Inode, size: u64, is_truncated: bool) {
        self.host.settle_size(inode, size, is_truncated);
    }
}
