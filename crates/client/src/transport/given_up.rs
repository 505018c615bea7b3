//! Requests that were given up: a daemon that stalled may still carry them out, after later ones of
//! this process that wait in other slots.
//!
//! A daemon takes all requests of a session that wait for a worker at a time, in any order, and the
//! next ones after these. So once any request to the same worker is answered, none that was given up
//! before can be carried out any more after a later one.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use wire::ShardIndex;
use wire::errno::{Errno, Result};
use wire::limits::SHARD_COUNT;

/// Requests of this process to each shard that were given up.
pub(crate) struct GivenUp {
    shards: [GivenUpCounts; SHARD_COUNT as usize],
}

/// Those of one shard.
struct GivenUpCounts {
    all: AtomicU64,
    /// The first ones, which are over.
    over: AtomicU64,
}

impl GivenUp {
    pub(crate) const fn new() -> GivenUp {
        let shards = [const { GivenUpCounts { all: AtomicU64::new(0), over: AtomicU64::new(0) } };
            SHARD_COUNT as usize];
        GivenUp { shards }
    }

    /// Notes the outcome of a request that changes something.
    pub(crate) fn note<T>(&self, shard: ShardIndex, outcome: &Result<T>) {
        if let (Err(Errno::EIO), Some(counts)) = (outcome, self.shards.get(usize::from(shard.0))) {
            counts.all.fetch_add(1, SeqCst);
        }
    }

    /// Before a request that must not be overtaken: `ask` asks the shard for anything, if requests
    /// were given up that may not be over.
    ///
    /// # Errors
    /// `EIO` if it does not answer.
    pub(crate) fn settle(&self, shard: ShardIndex, ask: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(counts) = self.shards.get(usize::from(shard.0)) else { return Ok(()) };
        let all = counts.all.load(SeqCst);
        if counts.over.load(SeqCst) >= all {
            return Ok(());
        }
        match ask() {
            Err(Errno::EIO) => Err(Errno::EIO),
            // A refusal is an answer.
            _ => {
                counts.over.fetch_max(all, SeqCst);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_is_asked_until_it_has_answered() {
        let (given_up, shard) = (GivenUp::new(), ShardIndex(3));
        let is_asked = |answer| {
            let mut is_asked = false;
            let settled = given_up.settle(shard, || {
                is_asked = true;
                answer
            });
            assert_eq!(settled.is_err(), is_asked && answer == Err(Errno::EIO));
            is_asked
        };
        given_up.note(shard, &Ok(()));
        given_up.note(shard, &Err::<(), _>(Errno::EAGAIN));
        given_up.note(ShardIndex(4), &Err::<(), _>(Errno::EIO));
        assert!(!is_asked(Ok(())), "nothing was given up");
        given_up.note(shard, &Err::<(), _>(Errno::EIO));
        assert!(is_asked(Err(Errno::EIO)), "it does not answer");
        assert!(is_asked(Err(Errno::ESTALE)), "it does not know the file");
        assert!(!is_asked(Ok(())));
    }
}
