//! Writes to a file that are on their way to other hosts.
//!
//! One word of the open inode: 0..14 number of buffers on their way, 15 that daemon recounts, 16..30
//! the start of the daemon of this host that sends them, 31 a thread sleeps on the word. All go
//! through the same daemon, so writes to the same place keep their order; a writer through another
//! daemon waits until none is left. Beside it, the error of one that did not arrive.
//!
//! A writer that is killed between counting a buffer and handing it over leaves the count one too
//! high. The daemon recounts then: while its bit is set no buffer is counted, so those that it finds
//! handed over are at least those that are counted (`bounce::recount_lost_pushes`).

use super::Vnode;
use crate::wait;
use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::hash::mix;

const COUNT: u32 = 0x7fff;
const RECOUNT: u32 = 1 << 15;
const DAEMON_SHIFT: u32 = 16;
const ASLEEP: u32 = 1 << 31;
/// Numbers that fit the word, without 0.
const THROUGH_MAX: u64 = 0x7fff;

/// The daemon start with this number, as the word holds it.
const fn through_bits(through: u64) -> u32 {
    ((mix(through, 0) % THROUGH_MAX) as u32 + 1) << DAEMON_SHIFT
}

const fn through_of(word: u32) -> u32 {
    word & !(COUNT | RECOUNT | ASLEEP)
}

impl Vnode {
    /// True if some writes are on their way.
    #[must_use]
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending.load(SeqCst) & (COUNT | RECOUNT) != 0
    }

    /// Counts one more buffer, sent by the daemon start with this number. False if some are on
    /// their way through another, or too many, or are being recounted.
    #[must_use]
    pub fn begin_push(&self, through: u64) -> bool {
        let through = through_bits(through);
        let one_more = |word: u32| {
            let (count, asleep) = (word & COUNT, word & ASLEEP);
            let is_ours = count == 0 || through_of(word) == through;
            let is_allowed = is_ours && count < COUNT && word & RECOUNT == 0;
            is_allowed.then_some(asleep | through | (count + 1))
        };
        self.pending.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }

    /// The daemon start with this number is about to recount: no buffer is counted until
    /// `end_recount`. False if none is on its way through it.
    pub(crate) fn begin_recount(&self, through: u64) -> bool {
        let mark = |word: u32| {
            let is_ours = word & COUNT != 0 && through_of(word) == through_bits(through);
            is_ours.then_some(word | RECOUNT)
        };
        self.pending.fetch_update(SeqCst, SeqCst, mark).is_ok()
    }

    /// Ends a recount: at most `count` buffers are on their way. `None`: not known.
    pub(crate) fn end_recount(&self, count: Option<u32>) {
        let unmark = |word: u32| {
            let left = count.unwrap_or(COUNT).min(word & COUNT);
            // A thread that gave up the pushes has cleared the mark.
            let is_marked = word & RECOUNT != 0;
            is_marked.then_some(if left == 0 { 0 } else { word & !(RECOUNT | COUNT) | left })
        };
        let _ = self.pending.fetch_update(SeqCst, SeqCst, unmark);
        wait::wake(&self.pending, u32::MAX >> 1);
    }

    /// One buffer arrived, or failed.
    pub fn end_push(&self, outcome: Result<()>) {
        if let Err(errno) = outcome {
            let _ = self.failed.compare_exchange(0, u32::from(errno.0), SeqCst, SeqCst);
        }
        let one_less = |word: u32| match word & COUNT {
            0 => None,
            // During a recount only `end_recount` may let others count again.
            1 if word & RECOUNT == 0 => Some(0),
            _ => Some(word - 1),
        };
        let before = self.pending.fetch_update(SeqCst, SeqCst, one_less);
        if before.is_ok_and(|before| before & COUNT == 1 && before & ASLEEP != 0) {
            wait::wake(&self.pending, u32::MAX >> 1);
        }
    }

    /// Sleeps until no writes are on their way, at most `micros`. True if none are.
    #[must_use]
    pub fn wait_pushed(&self, micros: u64) -> bool {
        let word = self.pending.fetch_or(ASLEEP, SeqCst) | ASLEEP;
        if word & (COUNT | RECOUNT) == 0 {
            let _ = self.pending.compare_exchange(word, 0, SeqCst, SeqCst);
            return true;
        }
        let _ = wait::sleep(&self.pending, word, micros);
        !self.has_pending()
    }

    /// Nobody waits any longer for writes on their way: they are counted as lost.
    pub fn give_up_pushes(&self) {
        self.pending.store(0, SeqCst);
        wait::wake(&self.pending, u32::MAX >> 1);
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

#[cfg(test)]
mod tests {
    use crate::host::{HOST_BYTES, HostSegment};
    use crate::segment::Segment;
    use wire::Inode;
    use wire::errno::Errno;

    fn host() -> HostSegment {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        HostSegment::new(segment).expect("fresh")
    }

    #[test]
    fn pushed_writes_are_counted_for_one_daemon_at_a_time() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("space");
        let vnode = host.vnode(index).expect("open");
        assert!(!vnode.has_pending() && vnode.wait_pushed(0));
        assert!(vnode.begin_push(0) && vnode.begin_push(0));
        assert!(!vnode.begin_push(1), "another daemon waits");
        assert!(!vnode.wait_pushed(1));
        vnode.end_push(Ok(()));
        assert!(vnode.has_pending());
        vnode.end_push(Err(Errno::ENOSPC));
        assert!(vnode.wait_pushed(0));
        // An extra call, as after a wait that was given up, changes nothing.
        vnode.end_push(Err(Errno::EIO));
        assert!(vnode.begin_push(1), "none is on its way");
        assert_eq!(vnode.take_failure(), Err(Errno::ENOSPC));
        assert_eq!(vnode.take_failure(), Ok(()));
        vnode.give_up_pushes();
        assert!(!vnode.has_pending());
    }

    #[test]
    fn a_waiter_is_woken_by_the_last_arrival() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("space");
        let vnode = host.vnode(index).expect("open");
        assert!(vnode.begin_push(3) && vnode.begin_push(3));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let vnode = host.vnode(index).expect("open");
                while !vnode.wait_pushed(60_000_000) {}
            });
            vnode.end_push(Ok(()));
            vnode.end_push(Ok(()));
            waiter.join().expect("it ends");
        });
    }
}
