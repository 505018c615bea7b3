//! Bytes of a file that were written and are on their way to other hosts.
//!
//! One word of the file's row: 0..15 how many buffers are on their way, 16..30 through which start of
//! which daemon of this host, 31 somebody sleeps on the word. All are on their way through the same,
//! so what is written twice keeps its order; who writes through another waits until none is left.
//! Beside it, why one did not arrive.

use super::Vnode;
use crate::wait;
use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::hash::mix;

const COUNT: u32 = 0xffff;
const DAEMON_SHIFT: u32 = 16;
const ASLEEP: u32 = 1 << 31;
/// Numbers that fit the word, without 0.
const THROUGH_MAX: u64 = 0x7fff;

impl Vnode {
    /// True if something is on its way.
    #[must_use]
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending.load(SeqCst) & COUNT != 0
    }

    /// One buffer more, through what this number stands for: a start of a daemon. False if some are on
    /// their way through another, or too many.
    #[must_use]
    pub fn begin_push(&self, through: u64) -> bool {
        let through = ((mix(through, 0) % THROUGH_MAX) as u32 + 1) << DAEMON_SHIFT;
        let one_more = |word: u32| {
            let (count, asleep) = (word & COUNT, word & ASLEEP);
            let is_ours = count == 0 || word & !COUNT & !ASLEEP == through;
            (is_ours && count < COUNT).then_some(asleep | through | (count + 1))
        };
        self.pending.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }

    /// One buffer arrived, or did not and why.
    pub fn end_push(&self, outcome: Result<()>) {
        if let Err(errno) = outcome {
            let _ = self.failed.compare_exchange(0, u32::from(errno.0), SeqCst, SeqCst);
        }
        let one_less = |word: u32| match word & COUNT {
            0 => None,
            1 => Some(0),
            _ => Some(word - 1),
        };
        let before = self.pending.fetch_update(SeqCst, SeqCst, one_less);
        if before.is_ok_and(|before| before & COUNT == 1 && before & ASLEEP != 0) {
            wait::wake(&self.pending, u32::MAX >> 1);
        }
    }

    /// Sleeps until nothing is on its way, at most `micros`. True if nothing is.
    #[must_use]
    pub fn wait_pushed(&self, micros: u64) -> bool {
        let word = self.pending.fetch_or(ASLEEP, SeqCst) | ASLEEP;
        if word & COUNT == 0 {
            let _ = self.pending.compare_exchange(word, 0, SeqCst, SeqCst);
            return true;
        }
        let _ = wait::sleep(&self.pending, word, micros);
        !self.has_pending()
    }

    /// Nobody waits any longer for what is on its way: it is counted as lost.
    pub fn give_up_pushes(&self) {
        self.pending.store(0, SeqCst);
        wait::wake(&self.pending, u32::MAX >> 1);
    }

    /// Why something did not arrive, told once.
    ///
    /// # Errors
    /// That.
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
    fn what_is_on_its_way_is_counted_for_one_daemon_at_a_time() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("room");
        let vnode = host.vnode(index).expect("open");
        assert!(!vnode.has_pending() && vnode.wait_pushed(0));
        assert!(vnode.begin_push(0) && vnode.begin_push(0));
        assert!(!vnode.begin_push(1), "another daemon waits");
        assert!(!vnode.wait_pushed(1));
        vnode.end_push(Ok(()));
        assert!(vnode.has_pending());
        vnode.end_push(Err(Errno::ENOSPC));
        assert!(vnode.wait_pushed(0));
        // One too many, as after a wait that was given up, changes nothing.
        vnode.end_push(Err(Errno::EIO));
        assert!(vnode.begin_push(1), "none is on its way");
        assert_eq!(vnode.take_failure(), Err(Errno::ENOSPC));
        assert_eq!(vnode.take_failure(), Ok(()));
        vnode.give_up_pushes();
        assert!(!vnode.has_pending());
    }

    #[test]
    fn who_waits_is_woken_by_the_last() {
        let host = host();
        let index = host.vnode_open(Inode(5)).expect("room");
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
