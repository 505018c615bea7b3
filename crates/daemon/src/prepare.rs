//! The thread that makes devices hold space: giving memory to a part of the arena takes a second
//! for some GiB, and the worker has other things to do.

use crate::inbox::Note;
use crate::shared::Shared;
use data::Haste;
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use shm::segment::HUGE_PAGE;
use shm::{Access, Segment};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// Microseconds for a MiB of huge pages beyond which small ones serve a writer in haste better, with
/// all that they cost him. A virtual machine that gives large free blocks back to its host takes 2000.
const HUGE_MICROS_MAX: u128 = 600;
/// Without orders for so long, the thread has time for what it made in small pages.
const REST: Duration = Duration::from_millis(100);

/// What a device is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    /// `Piece::MEMORY` or `Piece::SSD`.
    pub(crate) tier: u8,
    /// Where.
    pub(crate) place: u64,
    /// How much.
    pub(crate) length: u64,
    /// How soon it is needed.
    pub(crate) haste: Haste,
}

/// The way to the thread.
pub(crate) struct Preparer {
    orders: mpsc::SyncSender<Preparation>,
}

/// The thread's side.
pub(crate) struct Orders {
    orders: mpsc::Receiver<Preparation>,
    arena: OwnedFd,
    ssd: OwnedFd,
    /// What the last huge pages cost.
    huge_is_slow: bool,
    /// Whole huge pages' room that is in small pages since its memory was needed soon.
    small: Vec<Range<u64>>,
    /// So often the arena had given memory back then: what is not held any more is to become no page.
    given_back: u64,
}

/// Both sides. A target has at most one order under way.
pub(crate) fn preparer(arena: OwnedFd, ssd: OwnedFd) -> (Preparer, Orders) {
    let (to, orders) = mpsc::sync_channel(2);
    (
        Preparer { orders: to },
        Orders { orders, arena, ssd, huge_is_slow: false, small: Vec::new(), given_back: 0 },
    )
}

impl Preparer {
    /// Hands an order in; the answer comes to the target's worker.
    pub(crate) fn prepare(&self, shared: &Shared, order: Preparation) {
        if self.orders.try_send(order).is_err() {
            let refused = Note::Preallocated(Err(Errno::EIO));
            shared.tell(placement::map::WORKER_OF_TARGET, refused);
        }
    }
}

impl Orders {
    /// Carries orders out until the worker is gone.
    pub(crate) fn run(mut self, shared: &Arc<Shared>) {
        let begun = || shared.lend.give_backs.load(Relaxed);
        while let Some(order) = self.next(&begun) {
            let outcome = self.carry_out(order);
            if let Err(errno) = outcome {
                let Preparation { tier, place, length, .. } = order;
                tracing::warn!(tier, place, length, %errno, "a device holds no more");
            }
            shared.tell(placement::map::WORKER_OF_TARGET, Note::Preallocated(outcome));
        }
    }

    /// The next order; `None` when the worker is gone. While there is none, what is in small pages
    /// becomes huge: files lie there for long.
    fn next(&mut self, given_back: &dyn Fn() -> u64) -> Option<Preparation> {
        let mut patience = REST;
        while !self.small.is_empty() {
            match self.orders.recv_timeout(patience) {
                Ok(order) => return Some(order),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.given_back != given_back() => {
                    self.given_back = given_back();
                    self.small.clear();
                }
                Err(RecvTimeoutError::Timeout) => self.enlarge(),
            }
            patience = Duration::ZERO;
        }
        self.orders.recv().ok()
    }

    /// Makes a huge page of small ones, whatever they hold and whoever uses them.
    fn enlarge(&mut self) {
        let Some(page) = self.next_small() else { return };
        let pages = Segment::map_part(&self.arena, page, HUGE_PAGE, Access::ReadWrite);
        if let Err(errno) = pages.and_then(|pages| pages.collapse()) {
            tracing::debug!(page, %errno, "memory stays in small pages");
        }
    }

    /// Takes the next page's place out of what is small.
    fn next_small(&mut self) -> Option<u64> {
        let range = self.small.last_mut()?;
        let page = range.start;
        range.start = page.saturating_add(HUGE_PAGE as u64);
        if range.start >= range.end {
            self.small.pop();
        }
        Some(page)
    }

    /// Notes that an order's memory is in small pages.
    fn note_small(&mut self, order: &Preparation) {
        let (page, end) = (HUGE_PAGE as u64, order.place.saturating_add(order.length));
        let whole = order.place.next_multiple_of(page)..end / page * page;
        if !whole.is_empty() {
            self.small.push(whole);
        }
    }

    /// Gives huge pages to a part of the arena, unless that takes too long for who needs it soon.
    fn is_made_huge(&mut self, order: Preparation) -> bool {
        if order.haste != Haste::None && self.huge_is_slow {
            return false;
        }
        let begun = Instant::now();
        let made = make_huge(&self.arena, order);
        let micros = begun.elapsed().as_micros();
        self.huge_is_slow = micros > u128::from(order.length >> 20) * HUGE_MICROS_MAX;
        made.is_ok()
    }

    fn carry_out(&mut self, order: Preparation) -> Result<()> {
        if order.tier != Piece::MEMORY {
            return reserve(&self.ssd, order);
        }
        if order.haste == Haste::Now {
            reserve(&self.arena, order)?;
        } else if self.is_made_huge(order) {
            return Ok(());
        } else {
            write_zeros(&self.arena, order)?;
        }
        self.note_small(&order);
        Ok(())
    }
}

fn reserve(device: &OwnedFd, order: Preparation) -> Result<()> {
    loop {
        match rustix::fs::fallocate(device, FallocateFlags::empty(), order.place, order.length) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(shm::segment::errno(error)),
        }
    }
}

/// Gives huge pages to a part of the arena. They cost a third of small ones that are zeroed, and a
/// client's first touch costs nothing then.
fn make_huge(arena: &OwnedFd, order: Preparation) -> Result<()> {
    let (start, length) = (order.place, usize::try_from(order.length).map_err(|_| Errno::EINVAL)?);
    if length == 0 || !start.is_multiple_of(HUGE_PAGE as u64) || !length.is_multiple_of(HUGE_PAGE) {
        return Err(Errno::EINVAL);
    }
    let pages = Segment::map_part(arena, start, length, Access::ReadWrite)?;
    for page in (0..order.length).step_by(HUGE_PAGE) {
        write_zeros(arena, Preparation { place: start + page, length: 1, ..order })?;
    }
    pages.collapse()
}

/// Gives small pages to a part of the arena. A client's first touch of pages that were written costs
/// a third of that of pages which `fallocate` only reserved.
fn write_zeros(arena: &OwnedFd, order: Preparation) -> Result<()> {
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

    fn orders(length: u64) -> Orders {
        let file = || {
            let memory = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC);
            let memory = memory.expect("memory");
            rustix::fs::ftruncate(&memory, length).expect("long");
            memory
        };
        preparer(file(), file()).1
    }

    #[test]
    fn what_was_ordered_is_held_and_zero() {
        const HUGE: u64 = HUGE_PAGE as u64;
        let all = 4 * HUGE;
        // Aligned, not aligned, shorter than a huge page; in all kinds of haste; either tier.
        for (place, length) in [(0, all), (HUGE, 2 * HUGE), (4096, 2 * HUGE), (HUGE, 65536)] {
            for (tier, haste, huge_is_slow) in [
                (Piece::MEMORY, Haste::None, false),
                (Piece::MEMORY, Haste::None, true),
                (Piece::MEMORY, Haste::Soon, false),
                (Piece::MEMORY, Haste::Soon, true),
                (Piece::MEMORY, Haste::Now, false),
                (Piece::SSD, Haste::None, false),
                (Piece::SSD, Haste::Now, false),
            ] {
                let mut orders = orders(all);
                orders.huge_is_slow = huge_is_slow;
                let order = Preparation { tier, place, length, haste };
                assert_eq!(orders.carry_out(order), Ok(()), "{order:?}");
                let device = if tier == Piece::MEMORY { &orders.arena } else { &orders.ssd };
                let held = rustix::fs::fstat(device).expect("stat").st_blocks.unsigned_abs() * 512;
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
        let (to, mut orders) = preparer(orders(4 * HUGE as u64).arena, orders(4096).ssd);
        orders.huge_is_slow = true;
        let tier = Piece::MEMORY;
        let order = |place, length, haste| Preparation { tier, place, length, haste };
        // Only one huge page lies whole in the first.
        let first = order(4096, 2 * HUGE as u64, Haste::Soon);
        assert_eq!(orders.carry_out(first), Ok(()));
        assert_eq!(orders.carry_out(order(3 * HUGE as u64, HUGE as u64, Haste::Now)), Ok(()));
        assert_eq!(orders.small, [HUGE as u64..2 * HUGE as u64, 3 * HUGE as u64..4 * HUGE as u64]);
        let pattern: Vec<u8> = (0..4 * HUGE).map(|at| (at % 251) as u8).collect();
        assert_eq!(rustix::io::pwrite(&orders.arena, &pattern, 0), Ok(pattern.len()));

        let asked = order(0, 4096, Haste::Now);
        to.orders.send(asked).expect("room");
        let next = orders.next(&|| 0).map(|order| order.length);
        assert_eq!(next, Some(4096), "orders come first");
        assert_eq!(orders.small.len(), 2);
        while !orders.small.is_empty() {
            orders.enlarge();
        }
        drop(to);
        assert!(orders.next(&|| 0).is_none(), "the worker is gone");
        let mut bytes = vec![0; pattern.len()];
        assert_eq!(rustix::io::pread(&orders.arena, &mut bytes, 0), Ok(pattern.len()));
        assert!(bytes == pattern);
    }
}
