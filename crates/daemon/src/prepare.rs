//! The thread that makes devices hold space: giving memory to a part of the arena takes a second
//! for some GiB, and the worker has other things to do.

use crate::inbox::Note;
use crate::shared::Shared;
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use std::sync::{Arc, mpsc};
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// What a device is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    /// `Piece::MEMORY` or `Piece::SSD`.
    pub(crate) tier: u8,
    /// Where.
    pub(crate) place: u64,
    /// How much.
    pub(crate) length: u64,
    /// Does a request wait for it?
    pub(crate) is_awaited: bool,
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
}

/// Both sides. A target has at most one order under way.
pub(crate) fn preparer(arena: OwnedFd, ssd: OwnedFd) -> (Preparer, Orders) {
    let (to, orders) = mpsc::sync_channel(2);
    (Preparer { orders: to }, Orders { orders, arena, ssd })
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
    pub(crate) fn run(self, shared: &Arc<Shared>) {
        while let Ok(order) = self.orders.recv() {
            let outcome = self.carry_out(order);
            if let Err(errno) = outcome {
                let Preparation { tier, place, length, .. } = order;
                tracing::warn!(tier, place, length, %errno, "a device holds no more");
            }
            shared.tell(placement::map::WORKER_OF_TARGET, Note::Preallocated(outcome));
        }
    }

    fn carry_out(&self, order: Preparation) -> Result<()> {
        if order.tier == Piece::MEMORY && !order.is_awaited {
            return write_zeros(&self.arena, order);
        }
        let device = if order.tier == Piece::MEMORY { &self.arena } else { &self.ssd };
        loop {
            match rustix::fs::fallocate(device, FallocateFlags::empty(), order.place, order.length)
            {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(shm::segment::errno(error)),
            }
        }
    }
}

/// Gives memory to a part of the arena that nobody waits for. A client's first touch of pages that
/// were written costs a third of that of pages which `fallocate` only reserved.
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
