//! The memory of a host, as far as services read and mark it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::holdings::Holdings;
use super::shared::Shared;
use metadata::{HostMarks, HostView, LackingUnits, SingleFiles, TargetPresence};
use wire::Inode;
use wire::watch::{OTHERS, Watch};

/// The open inode of a file in a host segment: unreported size, and truncate epoch, which counts
/// beginnings and ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Row {
    pub(crate) unreported: u64,
    pub(crate) truncate_epoch: u64,
}

/// State of a host that a service reads and marks.
#[derive(Default)]
pub(crate) struct HostState {
    /// Files that its processes have open.
    pub(crate) open: BTreeSet<Inode>,
    /// Tickets of requests of killed processes.
    pub(crate) killed: BTreeSet<u64>,
    /// Open inodes, where the test has any.
    pub(crate) vnodes: BTreeMap<Inode, Row>,
    pub(crate) watched: Rc<RefCell<Watched>>,
    pub(crate) holdings: Holdings,
    pub(crate) pages: Rc<RefCell<Shared>>,
    /// Units that lack copies, where files have some.
    pub(crate) lacking: Option<LackingUnits>,
    /// Whether files may have one copy; `None`: nothing forbids it.
    pub(crate) single_files: Option<SingleFiles>,
    /// Targets that are not here.
    pub(crate) absent: BTreeMap<u32, TargetPresence>,
}

/// Watches of mounts of a host, or with `OTHERS` those of other hosts: a stamp, and the expiry.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) now: i64,
    /// The mounts of the host.
    pub(crate) mounts: BTreeSet<u8>,
    pub(crate) holder_messages: BTreeMap<(u8, Watch), (u64, i64)>,
}

impl HostState {
    /// A truncation begins or ends: the unreported size is from before it.
    pub(super) fn count_truncate(&mut self, inode: Inode) {
        if let Some(row) = self.vnodes.get_mut(&inode) {
            *row = Row { unreported: 0, truncate_epoch: row.truncate_epoch + 1 };
        }
    }
}

impl HostView for HostState {
    fn lacking_units(&self) -> Option<LackingUnits> {
        self.lacking.clone()
    }
    fn allow_single_files(&self) -> SingleFiles {
        self.single_files.unwrap_or(SingleFiles::Allowed)
    }
    fn target_presence(&self, target: u32) -> TargetPresence {
        self.absent.get(&target).copied().unwrap_or(TargetPresence::Here)
    }
    fn is_awaited(&self, ticket: u64) -> bool {
        !self.killed.contains(&ticket)
    }
    fn unreported(&self, inode: Inode) -> Option<u64> {
        self.vnodes.get(&inode).map(|row| row.unreported)
    }
    fn truncate_epoch(&self, inode: Inode) -> Option<u64> {
        self.vnodes.get(&inode).map(|row| row.truncate_epoch)
    }
    fn is_open(&self, inode: Inode) -> bool {
        self.open.contains(&inode)
    }
    fn has_mounts(&self) -> bool {
        !self.watched.borrow().holder_messages.is_empty()
    }
    fn has_mount(&self, mount: u8) -> bool {
        self.watched.borrow().mounts.contains(&mount)
    }
    fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        let watched = self.watched.borrow();
        for (&(mount, other), &(word, until)) in &watched.holder_messages {
            if other == watch && until > watched.now {
                each(mount, word);
            }
        }
    }
    fn has_writer(&self, inode: Inode) -> bool {
        self.pages.borrow().has_writer(inode)
    }
    fn page_cache_mounts(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        self.pages.borrow().page_cache_mounts(inode, each);
    }
    fn page_cache_files(&self, mount: u8, each: &mut dyn FnMut(Inode)) {
        let pages = self.pages.borrow();
        let cached = pages.rows.iter().filter(|(_, row)| row.cachers & 1 << mount != 0);
        cached.for_each(|(&inode, _)| each(inode));
    }
    fn behind_mounts(&self, service: usize, each: &mut dyn FnMut(u8)) {
        let pages = self.pages.borrow();
        let behind = pages.behind.iter().filter(|(_, one)| *one == service);
        behind.for_each(|&(mount, _)| each(mount));
    }
    fn had_pages(&self, inode: Inode) -> bool {
        self.pages.borrow().had_pages(inode)
    }
    fn writers_ever(&self, inode: Inode) -> u64 {
        self.pages.borrow().writers_ever(inode)
    }
    fn agreed_epoch(&self, service: usize) -> u64 {
        self.pages.borrow().agreed.get(&service).copied().unwrap_or(0)
    }
    fn open_files(&self, each: &mut dyn FnMut(Inode)) {
        let rows: BTreeSet<Inode> = self.pages.borrow().rows.keys().copied().collect();
        let all = rows.into_iter().chain(self.vnodes.keys().copied());
        all.collect::<BTreeSet<_>>().into_iter().for_each(each);
    }
    fn space_used(&self, account: u64) -> u64 {
        self.holdings.used.get(&account).copied().unwrap_or(0)
    }
    fn each_space(&self, each: &mut dyn FnMut(u64, u64)) {
        self.holdings.used.iter().for_each(|(&account, &bytes)| each(account, bytes));
    }
    fn is_counted(&self) -> bool {
        self.holdings.counts
    }
}

impl HostMarks for HostState {
    fn mark_deleted(&mut self, inode: Inode) -> bool {
        self.open.contains(&inode)
    }
    fn watch_for_others(&self, watch: Watch, nanos: i64) -> bool {
        let mut watched = self.watched.borrow_mut();
        let until = watched.now + nanos;
        watched.holder_messages.insert((OTHERS, watch), (0, until));
        true
    }
    fn begin_writing(&self, inode: Inode) -> u64 {
        self.pages.borrow_mut().begin_writing(inode)
    }
    fn add_remote_use(&self, inode: Inode, more: u8) {
        self.pages.borrow_mut().count(inode, more);
    }
    fn set_behind(&self, mount: u8, service: usize, is_behind: bool) {
        let behind = &mut self.pages.borrow_mut().behind;
        let _ = match is_behind {
            true => behind.insert((mount, service)),
            false => behind.remove(&(mount, service)),
        };
    }
    fn mark_remote_use(&self, inode: Inode, others: u8) {
        self.pages.borrow_mut().mark(inode, others);
    }
    fn note_agreed(&self, service: usize, epoch: u64) {
        self.pages.borrow_mut().agreed.insert(service, epoch);
    }
    fn doubt_pages(&self, service: usize, writers: u64) {
        let mounts = &self.watched.borrow().mounts;
        mounts
            .iter()
            .filter(|&&mount| mount != 0)
            .for_each(|&it| self.set_behind(it, service, true));
        self.pages.borrow_mut().raise_writers(writers);
    }
    fn forget_entered(&self, inode: Inode) {
        if let Some(row) = self.pages.borrow_mut().rows.get_mut(&inode) {
            row.is_entered = false;
        }
    }
    fn note_lost(&self, inode: Inode) {
        self.pages.borrow_mut().lost.insert(inode);
    }
    fn settle_size(&self, inode: Inode, size: u64, is_truncated: bool) {
        self.pages.borrow_mut().settled.insert(inode, (size, is_truncated));
    }
    fn end_truncate(&mut self, inode: Inode) {
        self.count_truncate(inode);
    }
}
