//! Whether this memory agrees with the logs of this host's services, where these may go on at other
//! daemons: then others open, truncate and write files of which the memory of this host learns nothing.
//!
//! For each service there is the epoch of its owners in which the memory agreed with its log last. If the
//! next owner is of the next epoch and on this host, nobody else was in between.
//!
//! Layout: `SERVICES_OF_HOST_MAX` words u64, by the number of a service modulo that. 0: never; so a fresh
//! memory agrees with no log but the first.

use super::watches::pages;
use super::{HostSegment, Vnode, releases};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;
use wire::errno::Result;
use wire::lease::SERVICES_OF_HOST_MAX;
use wire::watch::MOUNT_COUNT_MAX;

const START: usize = releases::END;
pub(super) const END: usize = START + SERVICES_OF_HOST_MAX * 8;

const _: () = assert!(START.is_multiple_of(8));

impl Vnode {
    /// Whether its service has lost it: `HostSegment::note_lost`.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.marks.load(SeqCst) & pages::LOST != 0
    }
}

impl HostSegment {
    fn agreed_word(&self, service: usize) -> Result<&AtomicU64> {
        self.segment.word64(START + service % SERVICES_OF_HOST_MAX * 8)
    }

    /// The epoch in which this memory agreed with the log of a service last, by its number among all of
    /// the instance; 0: never.
    #[must_use]
    pub fn agreed_epoch(&self, service: usize) -> u64 {
        self.agreed_word(service).map_or(0, |word| word.load(SeqCst))
    }

    /// This memory agrees with the log of a service, in this epoch of its owners.
    pub fn note_agreed(&self, service: usize, epoch: u64) {
        let _ = self.agreed_word(service).map(|word| word.store(epoch, SeqCst));
    }

    /// Files of a service may have been written that nobody counted here: their pages are read again when
    /// they are opened, and all mounts drop those that they have (`set_behind`). The numbers of writers
    /// become larger than `writers`.
    pub fn doubt_pages(&self, service: usize, writers: u64) {
        self.raise_writers_ever(writers);
        let mounts = (1..=MOUNT_COUNT_MAX as u8).filter(|&number| self.has_mount(number));
        mounts.for_each(|number| self.set_behind(number, service, true));
    }

    /// Hosts that write to an open file may not know that kernels of this one cache pages of it: before
    /// these cache any anew, they say so, where other hosts write (`add_remote_use`).
    pub fn forget_entered(&self, inode: Inode) {
        self.entries_of(inode).for_each(|vnode| {
            vnode.marks.fetch_and(!pages::ENTERED, SeqCst);
        });
    }

    /// The service of a file that may be open on this host has lost it, with changes that no other daemon
    /// had: fsync and close find that out, as they have something to report to it, by a message.
    pub fn note_lost(&self, inode: Inode) {
        self.entries_of(inode).for_each(|vnode| {
            vnode.marks.fetch_or(pages::LOST, SeqCst);
            let _ = vnode.dirty_end.compare_exchange(0, 1, SeqCst, SeqCst);
        });
    }

    /// Calls `each` with the files that are open on this host.
    pub fn open_files(&self, each: &mut dyn FnMut(Inode)) {
        self.vnode_list(&mut |_, vnode| {
            let inode = Inode(vnode.inode.load(SeqCst));
            if !inode.is_none() {
                each(inode);
            }
        });
    }
}

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use super::*;
    use crate::host::{HOST_BYTES, TruncateEpoch};
    use crate::segment::Segment;

    fn host() -> HostSegment {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        HostSegment::new(segment).expect("a segment")
    }

    #[test]
    fn after_a_service_was_elsewhere_mounts_drop_pages_and_no_count_of_writers_is_as_before() {
        let host = host();
        let (service, file) = (SERVICES_OF_HOST_MAX + 3, Inode(7));
        assert_eq!(host.agreed_epoch(service), 0);
        host.note_agreed(service, 5);
        assert_eq!((host.agreed_epoch(service), host.agreed_epoch(service + 1)), (5, 0));
        let mount = host.take_mount(1, 1).expect("a number");
        host.begin_writing(file);
        host.doubt_pages(service, 100);
        assert!(host.is_behind(mount));
        assert_eq!(host.writers_ever(file), 101);
        host.set_behind(mount, service, false);
        assert!(!host.is_behind(mount), "of this service alone");
    }

    /// Size, unreported end, and truncate epoch of the file.
    fn state(host: &HostSegment, file: Inode) -> (u64, u64, Option<u64>) {
        let size =
            host.vnode_find(file).and_then(|entry| host.vnode(entry).ok()).map(|it| it.size());
        let epoch = host.truncate_epoch(file).map(TruncateEpoch::number);
        (size.expect("open"), host.unreported(file), epoch)
    }

    #[test]
    fn an_open_file_has_no_size_from_before_a_truncation_elsewhere_and_keeps_what_is_unreported() {
        let (host, file) = (host(), Inode(7));
        let entry = host.vnode_open(file).expect("space");
        let vnode = || host.vnode(entry).expect("a row");
        let write =
            |end| vnode().note_written(vnode().truncate_epoch(), end).expect("not truncated");
        write(1000);
        host.note_reported(file, 1000);
        // It grew elsewhere, or did not change: what is known here may be too small.
        host.settle_size(file, 1000, false);
        host.settle_size(file, 5000, false);
        assert_eq!(state(&host, file), (1000, 0, Some(0)));
        // It was truncated, and then written here.
        write(300);
        host.settle_size(file, 10, false);
        assert_eq!(state(&host, file), (300, 300, Some(2)));
        // An unreported size is no reason to begin anew.
        host.settle_size(file, 10, false);
        assert_eq!(state(&host, file), (300, 300, Some(2)));
        // This host was told of the beginning of a truncation only, or of nothing.
        host.begin_remote_truncate(file);
        host.settle_size(file, 10, false);
        assert_eq!(state(&host, file), (10, 0, Some(4)));
        write(400);
        host.settle_size(file, 20, true);
        assert_eq!(state(&host, file), (20, 0, Some(6)));
        // The service has lost it: there is something to report, what was written last if possible.
        host.note_lost(file);
        assert_eq!((host.unreported(file), vnode().is_lost()), (1, true));
        write(50);
        host.note_lost(file);
        assert_eq!(host.unreported(file), 50);
        vnode().marks.fetch_or(pages::ENTERED | pages::EVER, SeqCst);
        host.forget_entered(file);
        assert_eq!(vnode().marks.load(SeqCst), pages::EVER | pages::LOST);
        let mut open = (0, Inode::NONE);
        host.open_files(&mut |inode| open = (open.0 + 1, inode));
        assert_eq!(open, (1, file));
    }
}
