//! The thread that provisions space on devices: allocating memory for a part of the arena takes
//! about a second for some GiB, which would block the worker.

use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::target::tiering::lending::Lending;
use config::host_memory::margin_bytes;
use data::Haste;
use net::log_limit::LineLimit;
use rustix::fd::OwnedFd;
use rustix::fs::fstat;
use shm::extents::{page_groups_of, page_sums_of};
use shm::segment::HUGE_PAGE;
use shm::{Access, Segment};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::reply::Extent;

/// Microseconds per MiB of huge pages beyond which small pages serve an urgent writer better,
/// despite their cost. A virtual machine that returns large free blocks to its host takes 2000.
const HUGE_MICROS_MAX: u128 = 600;
/// Idle time after which the thread merges small pages.
const IDLE_TIME: Duration = Duration::from_millis(100);

/// Bytes of a device behind the provisioned part whose page groups are made present if possible.
pub(crate) const PAGE_GROUPS_AHEAD: u64 = 2 << 30;

/// As `PAGE_GROUPS_AHEAD`, of the SSD file, whose checksums are larger.
pub(crate) const PAGE_SUMS_AHEAD: u64 = 256 << 20;

/// A range of a device to provision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProvisionOrder {
    /// `Extent::MEMORY` or `Extent::SSD`.
    pub(crate) tier: u8,
    /// Start of the range.
    pub(crate) place: u64,
    /// Length of the range.
    pub(crate) length: u64,
    /// How urgently it is needed.
    pub(crate) haste: Haste,
}

/// Queue of orders for the thread.
pub(crate) struct ProvisionQueue {
    orders: mpsc::SyncSender<ProvisionOrder>,
}

/// The files in which space is provisioned.
pub(crate) struct ProvisionedFiles {
    /// The arena.
    pub(crate) arena: OwnedFd,
    /// The file of the SSD tier.
    pub(crate) ssd: OwnedFd,
    /// States of the page groups of either.
    pub(crate) page_groups: OwnedFd,
    /// Checksums of the pages of the SSD file.
    pub(crate) page_sums: OwnedFd,
}

impl ProvisionedFiles {
    /// Arena and file of the SSD tier; states of page groups and checksums.
    pub(crate) fn new([arena, ssd]: [OwnedFd; 2], tables: [OwnedFd; 2]) -> ProvisionedFiles {
        let [page_groups, page_sums] = tables;
        ProvisionedFiles { arena, ssd, page_groups, page_sums }
    }
}

/// State of the thread.
pub(crate) struct Provisioner {
    orders: mpsc::Receiver<ProvisionOrder>,
    devices: ProvisionedFiles,
    /// The last huge pages took too long.
    huge_is_slow: bool,
    /// Aligned ranges that are in small pages because they were needed urgently.
    small: Vec<Range<u64>>,
    /// Number of block releases of the arena at that time: released memory must not be merged.
    given_back: u64,
    /// A full device refuses an order for each write that waits.
    refused_lines: LineLimit,
}

/// Creates both ends. A target has at most one order in flight.
pub(crate) fn provision_channel(devices: ProvisionedFiles) -> (ProvisionQueue, Provisioner) {
    let (to, orders) = mpsc::sync_channel(2);
    (
        ProvisionQueue { orders: to },
        Provisioner {
            orders,
            devices,
            huge_is_slow: false,
            small: Vec::new(),
            given_back: 0,
            refused_lines: LineLimit::default(),
        },
    )
}

impl ProvisionQueue {
    /// Submits an order; worker 0 gets the result.
    pub(crate) fn submit_order(&self, inboxes: &Inboxes, order: ProvisionOrder) {
        if self.orders.try_send(order).is_err() {
            let refused = WorkerMessage::Provisioned(Err(Errno::EIO));
            inboxes.send_to_target(refused);
        }
    }
}

impl Provisioner {
    /// Carries out orders until the worker is gone.
    pub(crate) fn run(mut self, inboxes: &Inboxes, lending: &Lending) {
        let begun = || lending.give_backs.load(Relaxed);
        while let Some(order) = self.next(&begun) {
            let outcome = self.carry_out(order);
            if let Err(errno) = outcome
                && let Some(suppressed) = self.refused_lines.admit(Instant::now())
            {
                let ProvisionOrder { tier, place, length, .. } = order;
                tracing::warn!(tier, place, length, %errno, suppressed, "cannot provision space");
            }
            inboxes.send_to_target(WorkerMessage::Provisioned(outcome));
        }
    }

    /// The next order; `None` when the worker is gone. While there is none, merges small pages into
    /// huge ones, because files stay there for long.
    fn next(&mut self, given_back: &dyn Fn() -> u64) -> Option<ProvisionOrder> {
        let mut wait = IDLE_TIME;
        while !self.small.is_empty() {
            match self.orders.recv_timeout(wait) {
                Ok(order) => return Some(order),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.given_back != given_back() => {
                    self.given_back = given_back();
                    self.small.clear();
                }
                Err(RecvTimeoutError::Timeout) => self.enlarge(),
            }
            wait = Duration::ZERO;
        }
        self.orders.recv().ok()
    }

    /// Merges small pages into a huge one, even while they are in use.
    fn enlarge(&mut self) {
        let Some(page) = self.next_small() else { return };
        let pages = Segment::map_part(&self.devices.arena, page, HUGE_PAGE, Access::ReadWrite);
        if let Err(errno) = pages.and_then(|pages| pages.collapse()) {
            tracing::debug!(page, %errno, "cannot merge small pages");
        }
    }

    /// Takes the next huge page's offset out of the small ranges.
    fn next_small(&mut self) -> Option<u64> {
        let range = self.small.last_mut()?;
        let page = range.start;
        range.start = page.saturating_add(HUGE_PAGE as u64);
        if range.start >= range.end {
            self.small.pop();
        }
        Some(page)
    }

    /// Records that an order's memory is in small pages.
    fn note_small(&mut self, order: &ProvisionOrder) {
        let (page, end) = (HUGE_PAGE as u64, order.place.saturating_add(order.length));
        let whole = order.place.next_multiple_of(page)..end / page * page;
        if !whole.is_empty() {
            self.small.push(whole);
        }
    }

    /// Provisions huge pages, unless that would take too long for an urgent order. True if done.
    fn is_made_huge(&mut self, order: ProvisionOrder) -> bool {
        if order.haste != Haste::None && self.huge_is_slow {
            return false;
        }
        let begun = Instant::now();
        let made = make_huge(&self.devices.arena, order);
        let micros = begun.elapsed().as_micros();
        self.huge_is_slow = micros > u128::from(order.length >> 20) * HUGE_MICROS_MAX;
        made.is_ok()
    }

    /// Makes the entries of tables for the space of an order present, and some of those behind it,
    /// so that files still go to the SSD when `/dev/shm` is full.
    fn reserve_tables(&self, order: ProvisionOrder) -> Result<()> {
        let end = order.place.saturating_add(order.length);
        let (space, behind) = (order.place..end, |length: u64| end..end.saturating_add(length));
        let groups = [page_groups_of(&space), page_groups_of(&behind(PAGE_GROUPS_AHEAD))];
        reserve_part(&self.devices.page_groups, groups)?;
        if order.tier == Extent::MEMORY {
            return Ok(());
        }
        let sums = [page_sums_of(&space), page_sums_of(&behind(PAGE_SUMS_AHEAD))];
        reserve_part(&self.devices.page_sums, sums)
    }

    fn carry_out(&mut self, order: ProvisionOrder) -> Result<()> {
        self.reserve_tables(order)?;
        if order.tier != Extent::MEMORY {
            return allocate(&self.devices.ssd, order);
        }
        if !leaves_margin(&self.devices.arena, order.length) {
            return Err(Errno::ENOSPC);
        }
        if order.haste == Haste::Now {
            allocate(&self.devices.arena, order)?;
        } else if self.is_made_huge(order) {
            return Ok(());
        } else {
            write_zeros(&self.devices.arena, order)?;
        }
        self.note_small(&order);
        Ok(())
    }
}

/// True if the file system of the arena has `length` bytes beside those that tables of the instance
/// may need.
fn leaves_margin(arena: &OwnedFd, length: u64) -> bool {
    // Memory without a limit has a size of 0.
    let space = rustix::fs::fstatvfs(arena).ok().filter(|space| space.f_blocks > 0);
    space.is_none_or(|space| {
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        let margin = margin_bytes(bytes(space.f_blocks));
        bytes(space.f_bavail) >= length.saturating_add(margin)
    })
}

/// Makes a part of a table present; the part ahead if possible.
fn reserve_part(table: &OwnedFd, [needed, ahead]: [Range<u64>; 2]) -> Result<()> {
    let length = fstat(table).map_or(0, |stat| stat.st_size.unsigned_abs());
    let part = |part: Range<u64>| part.start as usize..part.end.min(length) as usize;
    if needed.start < length {
        shm::segment::allocate(table, part(needed))?;
    }
    if ahead.start < length {
        let _ = shm::segment::allocate(table, part(ahead));
    }
    Ok(())
}

fn allocate(device: &OwnedFd, order: ProvisionOrder) -> Result<()> {
    let whole = |number| usize::try_from(number).map_err(|_| Errno::EINVAL);
    let (start, length) = (whole(order.place)?, whole(order.length)?);
    shm::segment::allocate(device, start..start.saturating_add(length))
}

/// Provisions a part of the arena with huge pages. They cost a third of zeroed small pages, and the
/// first access of a client then costs nothing.
fn make_huge(arena: &OwnedFd, order: ProvisionOrder) -> Result<()> {
    let (start, length) = (order.place, usize::try_from(order.length).map_err(|_| Errno::EINVAL)?);
    if length == 0 || !start.is_multiple_of(HUGE_PAGE as u64) || !length.is_multiple_of(HUGE_PAGE) {
        return Err(Errno::EINVAL);
    }
    let pages = Segment::map_part(arena, start, length, Access::ReadWrite)?;
    for page in (0..order.length).step_by(HUGE_PAGE) {
        write_zeros(arena, ProvisionOrder { place: start + page, length: 1, ..order })?;
    }
    pages.collapse()
}

/// Provisions a part of the arena with small pages. The first access of a client to pages that were
/// written costs a third of that to pages which `fallocate` only reserved.
fn write_zeros(arena: &OwnedFd, order: ProvisionOrder) -> Result<()> {
    static ZEROS: [u8; 1 << 18] = [0; 1 << 18];
    let mut done = 0;
    while done < order.length {
        let part = (order.length - done).min(ZEROS.len() as u64);
        let zeros = ZEROS.get(..part as usize).unwrap_or(&[]);
        match rustix::io::pwrite(arena, zeros, order.place + done) {
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(count) => done += count as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(shm::segment::errno(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn provisioner_of(length: u64) -> Provisioner {
        let file = || {
            let memory = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC);
            let memory = memory.expect("memory");
            rustix::fs::ftruncate(&memory, length).expect("long");
            memory
        };
        provision_channel(ProvisionedFiles {
            arena: file(),
            ssd: file(),
            page_groups: file(),
            page_sums: file(),
        })
        .1
    }

    #[test]
    fn provisioned_space_is_allocated_and_zero() {
        const HUGE: u64 = HUGE_PAGE as u64;
        let all = 4 * HUGE;
        // Aligned, unaligned, shorter than a huge page; each urgency; either tier.
        for (place, length) in [(0, all), (HUGE, 2 * HUGE), (4096, 2 * HUGE), (HUGE, 65536)] {
            for (tier, haste, huge_is_slow) in [
                (Extent::MEMORY, Haste::None, false),
                (Extent::MEMORY, Haste::None, true),
                (Extent::MEMORY, Haste::Soon, false),
                (Extent::MEMORY, Haste::Soon, true),
                (Extent::MEMORY, Haste::Now, false),
                (Extent::SSD, Haste::None, false),
                (Extent::SSD, Haste::Now, false),
            ] {
                let mut provisioner = provisioner_of(all);
                provisioner.huge_is_slow = huge_is_slow;
                let order = ProvisionOrder { tier, place, length, haste };
                assert_eq!(provisioner.carry_out(order), Ok(()), "{order:?}");
                let device = if tier == Extent::MEMORY {
                    &provisioner.devices.arena
                } else {
                    &provisioner.devices.ssd
                };
                let held = fstat(device).expect("stat").st_blocks.unsigned_abs() * 512;
                assert!(held >= length, "{held} of {order:?}");
                let mut bytes = Vec::new();
                let copy = device.try_clone().expect("a descriptor");
                std::fs::File::from(copy).read_to_end(&mut bytes).expect("read");
                assert!(bytes.len() as u64 == all && bytes.iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn small_pages_become_huge_and_keep_their_bytes() {
        const HUGE: usize = HUGE_PAGE;
        let (to, mut provisioner) = provision_channel(provisioner_of(4 * HUGE as u64).devices);
        provisioner.huge_is_slow = true;
        let tier = Extent::MEMORY;
        let order = |place, length, haste| ProvisionOrder { tier, place, length, haste };
        // Only one huge page is completely inside the first order.
        let first = order(4096, 2 * HUGE as u64, Haste::Soon);
        assert_eq!(provisioner.carry_out(first), Ok(()));
        assert_eq!(provisioner.carry_out(order(3 * HUGE as u64, HUGE as u64, Haste::Now)), Ok(()));
        assert_eq!(
            provisioner.small,
            [HUGE as u64..2 * HUGE as u64, 3 * HUGE as u64..4 * HUGE as u64]
        );
        let pattern: Vec<u8> = (0..4 * HUGE).map(|at| (at % 251) as u8).collect();
        assert_eq!(rustix::io::pwrite(&provisioner.devices.arena, &pattern, 0), Ok(pattern.len()));

        let sent = order(0, 4096, Haste::Now);
        to.orders.send(sent).expect("space");
        let next = provisioner.next(&|| 0).map(|order| order.length);
        assert_eq!(next, Some(4096), "orders come first");
        assert_eq!(provisioner.small.len(), 2);
        while !provisioner.small.is_empty() {
            provisioner.enlarge();
        }
        drop(to);
        assert!(provisioner.next(&|| 0).is_none(), "the worker is gone");
        let mut bytes = vec![0; pattern.len()];
        assert_eq!(rustix::io::pread(&provisioner.devices.arena, &mut bytes, 0), Ok(pattern.len()));
        assert!(bytes == pattern);
    }
}
