//! Writes to a file that are on their way to other hosts.
//!
//! One word of the open inode: 0..11 number of buffers on their way, 12..15 epoch, 16 that daemon
//! recounts, 17..30 the start of the daemon of this host that sends them (its number and the low bits
//! of the start), 31 a thread sleeps on the word. All go through the same daemon, so writes to the same
//! place keep their order; a writer through another daemon waits until none is left. Beside it, the
//! error of one that did not arrive.
//!
//! Writes that nobody waits for any longer belong to an earlier epoch: when they arrive late, they are
//! not taken for newer ones. A writer that finds a thread asleep waits as well: others that go on
//! writing do not hold it up.
//!
//! A writer that is killed between counting a buffer and handing it over leaves the count one too
//! high. The daemon recounts then: while its bit is set no buffer is counted, so those that it finds
//! handed over are at least those that are counted (`bounce::recount_lost_pushes`).
//!
//! The buffers are memory of the writers' processes and of the daemon. Once the daemon has ended, those
//! that a living process has are sent by it through the next one; those of dead processes are lost
//! (`lose_pushes`). `HostSegment::note_start` tells which starts have ended, and the open files of the
//! living whether one of them wrote (`File::has_pushed`).

use super::{HostSegment, Vnode, VnodeIndex, header};
use crate::sync::AtomicU64;
use crate::wait;
use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::limits::DAEMON_COUNT_MAX;
use wire::{DaemonIndex, client_id};

const COUNT: u32 = 0xfff;
const EPOCH_SHIFT: u32 = 12;
const EPOCH: u32 = 0xf << EPOCH_SHIFT;
const RECOUNT: u32 = 1 << 16;
const THROUGH_SHIFT: u32 = 17;
const ASLEEP: u32 = 1 << 31;
const THROUGH: u32 = ASLEEP - (1 << THROUGH_SHIFT);
/// Low bits of a start number that the word holds: a write is not on its way for so many starts.
const START_BITS: u32 = 4;
const START_MASK: u64 = (1 << START_BITS) - 1;
/// Starts in a word of the header.
const STARTS_EACH: usize = (u64::BITS / START_BITS) as usize;

const _: () = assert!((DAEMON_COUNT_MAX as u32) << START_BITS == (THROUGH >> THROUGH_SHIFT) + 1);
/// Bytes of the header for the starts of all daemons.
pub(super) const STARTS_BYTES: usize = DAEMON_COUNT_MAX as usize / STARTS_EACH * 8;

/// Distinguishes writes on their way from those that were given up before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushEpoch(pub u8);

/// The daemon start with this number (`wire::client_id`), as the word holds it.
const fn through_bits(through: u64) -> u32 {
    let daemon = client_id::issuer(through << client_id::START_SHIFT);
    through_of_start(daemon, through)
}

const fn through_of_start(daemon: DaemonIndex, start: u64) -> u32 {
    let daemon = (daemon.0 % DAEMON_COUNT_MAX) as u32;
    (daemon << START_BITS | (start & START_MASK) as u32) << THROUGH_SHIFT
}

const fn epoch_of(word: u32) -> PushEpoch {
    PushEpoch(((word & EPOCH) >> EPOCH_SHIFT) as u8)
}

/// The word without anything on its way, in the next epoch.
pub(super) const fn next_epoch(word: u32) -> u32 {
    word.wrapping_add(1 << EPOCH_SHIFT) & EPOCH
}

impl Vnode {
    /// True if some writes are on their way.
    #[must_use]
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending.load(SeqCst) & (COUNT | RECOUNT) != 0
    }

    /// Counts one more buffer, sent by the daemon start with this number. `None` if some are on their
    /// way through another, or too many, or are being recounted, or if a thread waits for them.
    #[must_use]
    pub fn begin_push(&self, through: u64) -> Option<PushEpoch> {
        let through = through_bits(through);
        let one_more = |word: u32| {
            let (count, asleep) = (word & COUNT, word & ASLEEP);
            let is_ours = word & THROUGH == through && asleep == 0;
            let is_allowed = (count == 0 || is_ours && count < COUNT) && word & RECOUNT == 0;
            is_allowed.then_some(asleep | through | word & EPOCH | (count + 1))
        };
        self.pending.fetch_update(SeqCst, SeqCst, one_more).ok().map(epoch_of)
    }

    /// The daemon start with this number is about to recount: no buffer is counted until
    /// `end_recount`. `None` if no buffer is on its way through it.
    pub(crate) fn begin_recount(&self, through: u64) -> Option<PushEpoch> {
        let mark = |word: u32| {
            let is_ours = word & COUNT != 0 && word & THROUGH == through_bits(through);
            is_ours.then_some(word | RECOUNT)
        };
        self.pending.fetch_update(SeqCst, SeqCst, mark).ok().map(epoch_of)
    }

    /// Number of buffers that are on their way.
    #[must_use]
    pub fn pushed_count(&self) -> u32 {
        self.pending.load(SeqCst) & COUNT
    }

    /// Ends a recount: of `counted` buffers `left` are on their way. False if some were uncounted since.
    pub(crate) fn end_recount(&self, counted: u32, left: u32) -> bool {
        let end = |word: u32| {
            let ended = match left.min(counted) {
                0 => word & EPOCH,
                left => word & !(RECOUNT | COUNT) | left,
            };
            // A thread that gave up the pushes has cleared the mark.
            (word & RECOUNT == 0 || word & COUNT == counted).then_some(if word & RECOUNT == 0 {
                word
            } else {
                ended
            })
        };
        let is_ended = self.pending.fetch_update(SeqCst, SeqCst, end).is_ok();
        if is_ended {
            wait::wake(&self.pending, u32::MAX >> 1);
        }
        is_ended
    }

    /// Ends a recount without a result, or one of a daemon that has ended.
    pub(crate) fn give_up_recount(&self) {
        let end = |word: u32| {
            let is_any = word & COUNT != 0;
            (word & RECOUNT != 0).then_some(if is_any { word & !RECOUNT } else { word & EPOCH })
        };
        if self.pending.fetch_update(SeqCst, SeqCst, end).is_ok() {
            wait::wake(&self.pending, u32::MAX >> 1);
        }
    }

    /// One buffer arrived, or failed.
    pub fn end_push(&self, epoch: PushEpoch, outcome: Result<()>) {
        if let Err(errno) = outcome {
            self.note_failure(errno);
        }
        let one_less = |word: u32| match word & COUNT {
            0 => None,
            _ if epoch_of(word) != epoch => None,
            // During a recount only `end_recount` may let others count again.
            1 if word & RECOUNT == 0 => Some(word & EPOCH),
            _ => Some(word - 1),
        };
        let before = self.pending.fetch_update(SeqCst, SeqCst, one_less);
        if before.is_ok_and(|before| before & COUNT == 1 && before & ASLEEP != 0) {
            wait::wake(&self.pending, u32::MAX >> 1);
        }
    }

    fn note_failure(&self, errno: Errno) {
        let _ = self.failed.compare_exchange(0, u32::from(errno.0), SeqCst, SeqCst);
    }

    /// Sleeps until no writes are on their way, at most `micros`. True if none are.
    #[must_use]
    pub fn wait_pushed(&self, micros: u64) -> bool {
        let word = self.pending.fetch_or(ASLEEP, SeqCst) | ASLEEP;
        if word & (COUNT | RECOUNT) == 0 {
            let _ = self.pending.compare_exchange(word, word & EPOCH, SeqCst, SeqCst);
            return true;
        }
        let _ = wait::sleep(&self.pending, word, micros);
        !self.has_pending()
    }

    /// Nobody waits any longer for writes on their way: they are counted as lost. Other threads that wait
    /// learn it by the failure.
    pub fn give_up_pushes(&self) {
        let given_up = |word: u32| (word & (COUNT | RECOUNT) != 0).then_some(next_epoch(word));
        if self.pending.fetch_update(SeqCst, SeqCst, given_up).is_ok() {
            self.note_failure(Errno::EIO);
            wait::wake(&self.pending, u32::MAX >> 1);
        }
    }

    /// Reports the failure of a write, once.
    ///
    /// # Errors
    /// The error of the write.
    pub fn take_failure(&self) -> Result<()> {
        if self.failed.load(SeqCst) == 0 {
            return Ok(());
        }
        match u16::try_from(self.failed.swap(0, SeqCst)) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(Errno(errno)),
            Err(_) => Err(Errno::EIO),
        }
    }
}

/// Writes to a file that are on their way through a daemon start that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndedPushes {
    /// The file's open inode.
    pub vnode: VnodeIndex,
    word: u32,
}

impl HostSegment {
    fn starts(&self, daemon: DaemonIndex) -> Result<(&AtomicU64, u32)> {
        let daemon = usize::from(daemon.0 % DAEMON_COUNT_MAX);
        let word = self.segment.word64(header::STARTS + daemon / STARTS_EACH * 8)?;
        Ok((word, (daemon % STARTS_EACH) as u32 * START_BITS))
    }

    /// Records, before a daemon of this host has sessions, which start of it this is: all before have
    /// ended.
    pub fn note_start(&self, daemon: DaemonIndex, start: u64) {
        let Ok((word, shift)) = self.starts(daemon) else { return };
        let noted = |word: u64| Some(word & !(START_MASK << shift) | (start & START_MASK) << shift);
        let _ = word.fetch_update(SeqCst, SeqCst, noted);
    }

    /// A number that changes with each start of a daemon of this host.
    #[must_use]
    pub fn starts_seen(&self) -> u64 {
        let words = (0..STARTS_BYTES).step_by(8).map(|at| self.segment.word64(header::STARTS + at));
        words.fold(0, |all, word| wire::hash::mix(word.map_or(0, |word| word.load(SeqCst)), all))
    }

    fn is_ended(&self, through: u32) -> bool {
        let (daemon, start) = (through >> THROUGH_SHIFT >> START_BITS, through >> THROUGH_SHIFT);
        self.starts(DaemonIndex(daemon as u16)).is_ok_and(|(word, shift)| {
            (word.load(SeqCst) >> shift) & START_MASK != u64::from(start) & START_MASK
        })
    }

    /// Calls `each` for the open inodes with writes on their way through a start that has ended.
    pub fn each_ended(&self, each: &mut dyn FnMut(EndedPushes)) {
        self.vnode_list(&mut |vnode, row| {
            let word = row.pending.load(SeqCst);
            if word & (COUNT | RECOUNT) == 0 || !self.is_ended(word & THROUGH) {
                return;
            }
            if word & RECOUNT != 0 {
                // The daemon that recounted is no more.
                row.give_up_recount();
            }
            let word = word & !RECOUNT;
            if word & COUNT != 0 {
                each(EndedPushes { vnode, word });
            }
        });
    }

    /// No living process has the buffers of these writes, which are lost. Nothing happens if their
    /// number has changed since.
    pub fn lose_pushes(&self, ended: EndedPushes) {
        let Ok(row) = self.vnode(ended.vnode) else { return };
        let lost = |word: u32| (word & !ASLEEP == ended.word & !ASLEEP).then_some(next_epoch(word));
        if row.pending.fetch_update(SeqCst, SeqCst, lost).is_ok() {
            row.note_failure(Errno::EIO);
            wait::wake(&row.pending, u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HOST_BYTES;
    use crate::segment::Segment;
    use std::vec::Vec;
    use wire::Inode;

    fn host() -> HostSegment {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        HostSegment::new(segment).expect("fresh")
    }

    /// The number of a daemon's start.
    fn through(daemon: u16, start: u64) -> u64 {
        client_id::first(DaemonIndex(daemon), start) >> client_id::START_SHIFT
    }

    #[test]
    fn pushed_writes_are_counted_for_one_daemon_at_a_time() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("space");
        let vnode = host.vnode(index).expect("open");
        assert!(!vnode.has_pending() && vnode.wait_pushed(0));
        let epoch = vnode.begin_push(0).expect("none is on its way");
        assert_eq!(vnode.begin_push(0), Some(epoch));
        assert_eq!(vnode.begin_push(through(1, 0)), None, "another daemon waits");
        assert_eq!(vnode.begin_push(1), None, "and another start");
        vnode.end_push(epoch, Ok(()));
        assert!(vnode.has_pending());
        vnode.end_push(epoch, Err(Errno::ENOSPC));
        assert!(vnode.wait_pushed(0));
        // An extra call, as after a wait that was given up, changes nothing.
        vnode.end_push(epoch, Err(Errno::EIO));
        assert!(vnode.begin_push(1).is_some(), "none is on its way");
        assert_eq!(vnode.take_failure(), Err(Errno::ENOSPC));
        assert_eq!(vnode.take_failure(), Ok(()));
        vnode.give_up_pushes();
        assert!(!vnode.has_pending());
        assert_eq!(vnode.take_failure(), Err(Errno::EIO), "others that wait, too");
        vnode.give_up_pushes();
        assert_eq!(vnode.take_failure(), Ok(()), "nothing was on its way");
    }

    #[test]
    fn a_write_that_was_given_up_and_arrives_late_is_not_taken_for_a_newer_one() {
        let host = host();
        let open = || host.vnode_open(Inode(5)).expect("space");
        let index = open();
        let vnode = host.vnode(index).expect("open");
        let older = vnode.begin_push(3).expect("none is on its way");
        vnode.give_up_pushes();
        let newer = vnode.begin_push(3).expect("none is waited for");
        vnode.end_push(older, Ok(()));
        assert!(vnode.has_pending(), "the newer one is on its way");
        // The same after its process closed the file without waiting.
        assert!(host.vnode_close(Inode(5), index).expect("open").last);
        let vnode = host.vnode(open()).expect("open");
        let newest = vnode.begin_push(3).expect("none is waited for");
        vnode.end_push(newer, Ok(()));
        assert!(vnode.has_pending(), "the newest one is on its way");
        vnode.end_push(newest, Ok(()));
        assert!(!vnode.has_pending());
    }

    #[test]
    fn writers_let_a_waiting_thread_go_first() {
        let host = host();
        let vnode = host.vnode(host.vnode_open(Inode(5)).expect("space")).expect("open");
        let epoch = vnode.begin_push(3).expect("none is on its way");
        assert!(!vnode.wait_pushed(1), "one is");
        assert_eq!(vnode.begin_push(3), None, "a thread waits for it");
        vnode.end_push(epoch, Ok(()));
        assert!(vnode.begin_push(3).is_some());
    }

    #[test]
    fn writes_through_an_ended_start_are_found_and_lost_once() {
        let host = host();
        let ended = || {
            let mut all = Vec::new();
            host.each_ended(&mut |one| all.push(one));
            all
        };
        let open = |inode: u64| {
            let index = host.vnode_open(Inode(inode)).expect("space");
            (index, host.vnode(index).expect("open"))
        };
        host.note_start(DaemonIndex(7), 20);
        host.note_start(DaemonIndex(40), 16);
        let ((first, lost), (_, other), (recounted, half)) = (open(5), open(6), open(7));
        let begun = [(lost, 7, 20), (other, 40, 16), (half, 7, 20)].map(|(row, daemon, start)| {
            row.begin_push(through(daemon, start)).expect("none before")
        });
        assert_eq!(ended(), []);
        assert!(half.begin_recount(through(7, 20)).is_some());
        let seen = host.starts_seen();
        host.note_start(DaemonIndex(7), 21);
        assert_ne!(host.starts_seen(), seen);
        let found = ended();
        assert_eq!(found.iter().map(|one| one.vnode).collect::<Vec<_>>(), [first, recounted]);
        assert_eq!(half.begin_push(through(7, 21)), None, "it is not lost yet");
        half.end_push(begun[2], Ok(()));
        assert!(!half.has_pending(), "nobody recounts it any more");
        found.iter().for_each(|&one| host.lose_pushes(one));
        assert!(!lost.has_pending() && other.has_pending());
        assert_eq!((lost.take_failure(), half.take_failure()), (Err(Errno::EIO), Ok(())));
        let newer = lost.begin_push(through(7, 21)).expect("none is on its way");
        found.iter().for_each(|&one| host.lose_pushes(one));
        lost.end_push(begun[0], Ok(()));
        assert!(lost.has_pending(), "the newer one");
        lost.end_push(newer, Ok(()));
        assert!(ended().is_empty() && !lost.has_pending());
    }

    #[test]
    fn a_waiter_is_woken_by_the_last_arrival() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("space");
        let vnode = host.vnode(index).expect("open");
        let epoch = vnode.begin_push(3).expect("none is on its way");
        assert!(vnode.begin_push(3).is_some());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let vnode = host.vnode(index).expect("open");
                while !vnode.wait_pushed(60_000_000) {}
            });
            vnode.end_push(epoch, Ok(()));
            vnode.end_push(epoch, Ok(()));
            waiter.join().expect("it ends");
        });
    }
}
