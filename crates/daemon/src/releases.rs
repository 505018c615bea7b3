//! Locks of the dead: their shards are told that they end, and again until they have answered, since a
//! lock outlives the daemon that keeps it.
//!
//! Told of are files that somebody of this host may have locked. A lock that is there was granted, and
//! none is while the shard is away: what waits here is no more than there were processes and open files
//! on this host when the shard went.

use crate::inbox::PartAnswer;
use crate::reply::ReplyTo;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::errno::Errno;
use wire::{Inode, Request};

/// A file, and the owner of locks of it that is dead.
pub(crate) type Dead = (Inode, u64);

/// What was not answered yet.
#[derive(Default)]
pub(crate) struct Releases {
    /// True: it is on its way.
    open: Mutex<BTreeMap<Dead, bool>>,
}

impl Releases {
    fn open(&self) -> MutexGuard<'_, BTreeMap<Dead, bool>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody is dead who may hold locks of a file.
    pub(crate) fn add(&self, dead: Dead) {
        self.open().entry(dead).or_insert(false);
    }

    /// True if all was answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.open().is_empty()
    }

    /// Tells what is not on its way.
    pub(crate) fn tell(&self, shared: &Shared) {
        let waiting = |(dead, is_told): (&Dead, &mut bool)| {
            (!std::mem::replace(is_told, true)).then_some(*dead)
        };
        let due: Vec<Dead> = self.open().iter_mut().filter_map(waiting).collect();
        for (inode, owner) in due {
            let header = shared.own_header(inode.shard());
            let to = ReplyTo::Release { dead: (inode, owner) };
            shared.hand_in(&header, &Request::Release { inode, owner }, to);
        }
    }

    /// A shard has answered, or will not.
    pub(crate) fn answered(&self, dead: Dead, answer: PartAnswer) {
        match answer {
            // There is no such file any more, or never was.
            PartAnswer::Ended(Ok(()) | Err(Errno::ESTALE | Errno::EINVAL)) => {
                self.open().remove(&dead);
            }
            // The lock may be there still.
            PartAnswer::Again(_) | PartAnswer::Ended(Err(_)) => {
                self.open().insert(dead, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shard_could_not_do_is_told_again() {
        let releases = Releases::default();
        let dead = (Inode(5), 7);
        for answer in [PartAnswer::Again(1), PartAnswer::Ended(Err(Errno::EIO))] {
            releases.add(dead);
            releases.answered(dead, answer);
            assert_eq!(releases.open().get(&dead), Some(&false));
        }
        for outcome in [Ok(()), Err(Errno::ESTALE), Err(Errno::EINVAL)] {
            releases.add(dead);
            releases.answered(dead, PartAnswer::Ended(outcome));
            assert!(releases.is_empty());
        }
    }
}
