//! Sinking (`data::sink`): when it is looked for cool pieces, and the thread that copies what moves.
//!
//! A piece that is mapped stays as long as its file is open on this host: who has a mapping reaches the
//! bytes without looking at the piece table, and keeps the file open.

use crate::inbox::Note;
use crate::rise::Rises;
use crate::shared::{Guest, Shared};
use crate::target::{Devices, TargetLoop, micros_until};
use data::sink::MOVES_MAX;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use shm::piece_io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// Between two looks for cool pieces: while some are found, and at most while none are.
const PAUSE: Duration = Duration::from_millis(5);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// Bytes that are copied at a time: they stay in a processor's cache on their way.
const BUFFER_BYTES: usize = 256 << 10;
/// Where direct I/O wants its bytes, and its places: pieces and what is defined of them are whole pages.
const DIRECT_BYTES: usize = 4096;

/// A copy of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) ticket: u64,
    pub(crate) from: Piece,
    pub(crate) to: Piece,
}

/// Why a piece is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It moves.
    Moves,
    /// It is dropped, if it is clean.
    IsDropped,
}

/// What the worker keeps of it.
pub(crate) struct Sinker {
    copies: mpsc::SyncSender<Copy>,
    /// Hidden since the last look at the pins.
    hidden: Vec<(Inode, u32, Why)>,
    pub(crate) rises: Rises,
    pause: Duration,
    look_at: Option<Instant>,
}

/// The thread's side.
pub(crate) struct Copies {
    copies: mpsc::Receiver<Copy>,
    /// The SSD file without the kernel's cache, where that can be had. Copies that make room for programs
    /// would take as much memory there as they free, until it is written; and are faster so.
    direct: Option<OwnedFd>,
}

/// Both sides.
pub(crate) fn sinker(ssd: &Path) -> (Sinker, Copies) {
    let (to, copies) = mpsc::sync_channel(MOVES_MAX);
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let direct = rustix::fs::open(ssd, flags, Mode::empty()).ok();
    let (hidden, rises) = (Vec::new(), Rises::default());
    let sinker = Sinker { copies: to, hidden, rises, pause: PAUSE, look_at: None };
    (sinker, Copies { copies, direct })
}

impl Sinker {
    /// Hands a copy in; the answer comes to the target's worker.
    pub(crate) fn copy(&self, shared: &Shared, copy: Copy) {
        if self.copies.try_send(copy).is_err() {
            let ticket = copy.ticket;
            let refused = Note::Copied { ticket, outcome: Err(Errno::EIO) };
            shared.tell(placement::map::WORKER_OF_TARGET, refused);
        }
    }

    /// Looks for cool pieces at once.
    pub(crate) fn look_soon(&mut self) {
        (self.look_at, self.pause) = (None, PAUSE);
    }

    /// Hides a piece until its pins were looked at.
    pub(crate) fn hide(&mut self, devices: &Devices, slot: u32, why: Why) {
        if let Some((inode, _)) = devices.table.get(slot) {
            self.hidden.push((inode, slot, why));
        }
        assert_eq!(devices.table.hide(slot), Ok(()), "a slot beyond the piece table");
    }

    /// Adds to what is pinned what was hidden and stays: what is mapped, and what was to be dropped and
    /// has been changed by those who pinned it before.
    pub(crate) fn add_staying(&mut self, shared: &Shared, devices: &Devices, to: &mut Vec<u32>) {
        for (inode, slot, why) in self.hidden.drain(..) {
            let is_changed = why == Why::IsDropped && !devices.states.is_clean(slot);
            let is_open = || shared.host.vnode_find(inode).is_some();
            let is_mapped = devices.states.is_mapped(slot)
                && (is_open() || devices.states.forget_mapping(slot).is_err());
            if is_changed || is_mapped {
                to.push(slot);
            }
        }
    }
}

impl Copies {
    /// Carries copies out until the worker is gone.
    pub(crate) fn run(self, shared: &Arc<Shared>, devices: &Devices) {
        let mut buffer = vec![0; BUFFER_BYTES + DIRECT_BYTES];
        let first = buffer.as_ptr().align_offset(DIRECT_BYTES);
        let buffer = buffer.get_mut(first..).unwrap_or_default();
        let buffer = buffer.get_mut(..BUFFER_BYTES).unwrap_or_default();
        while let Ok(Copy { ticket, from, to }) = self.copies.recv() {
            let target = devices.target();
            let begun = Instant::now();
            let direct = self
                .direct
                .as_ref()
                .filter(|_| to.tier == Piece::SSD && shared.lend.is_giving_back());
            let direct = direct.map(|ssd| piece_io::Target { ssd: ssd.as_fd(), ..target });
            let direct = direct.map(|direct| direct.copy(&from, &to, buffer));
            let outcome = match direct {
                Some(Ok(())) => Ok(()),
                // The device may want larger pages.
                Some(Err(_)) | None => target.copy(&from, &to, buffer),
            };
            if to.tier == Piece::SSD {
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                shared.space.sunk_micros.fetch_add(micros, Relaxed);
            }
            if let Err(errno) = outcome {
                tracing::warn!(tier = to.tier, place = to.place, %errno, "a piece could not be moved");
            }
            shared.tell(placement::map::WORKER_OF_TARGET, Note::Copied { ticket, outcome });
        }
    }
}

impl TargetLoop {
    /// Lets pieces sink, if it is time. Microseconds until it is.
    pub(crate) fn keep_sinking(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        let moved = self.target.moved();
        shared.space.bytes_sunk.store(moved.bytes_sunk, Relaxed);
        shared.space.bytes_risen.store(moved.bytes_risen, Relaxed);
        shared.space.bytes_pinned.store(self.target.resident_bytes(), Relaxed);
        shared.space.moves_cancelled.store(moved.cancelled, Relaxed);
        if !self.target.is_sinking() {
            (self.sinker.look_at, self.sinker.pause) = (None, PAUSE);
            return None;
        }
        let now = Instant::now();
        let look_at = *self.sinker.look_at.get_or_insert(now);
        if look_at <= now {
            let began = self.sink(shared, guests);
            let tokens = Duration::from_millis(self.target.move_wait_millis().into());
            let pause = match began {
                true => PAUSE,
                false if tokens.is_zero() => (self.sinker.pause * 2).min(PAUSE_MAX),
                false => tokens.clamp(PAUSE, PAUSE_MAX),
            };
            (self.sinker.look_at, self.sinker.pause) = (Some(now + pause), pause);
        }
        self.sinker.look_at.map(micros_until)
    }

    fn sink(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> bool {
        let millis = shared.begun.elapsed().as_millis() as u32;
        let devices = Arc::clone(&self.devices);
        let mut was_used = |slot| devices.states.take_use(slot);
        let mut began = false;
        self.act(shared, guests, |target, effects| {
            began = target.sink(millis, &mut was_used, effects);
        });
        began
    }

    /// A copy ended: there may be room for another.
    pub(crate) fn copied(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        ticket: u64,
        outcome: Result<()>,
    ) {
        self.step(shared, guests, data::Input::Copied { ticket, outcome });
        self.sinker.look_at = None;
    }
}
