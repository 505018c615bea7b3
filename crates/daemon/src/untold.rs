//! What programs of this host wrote and told no shard of, told where room is short.
//!
//! Who writes over a file in place tells that when he closes it. Until then its shard takes it for what
//! lies below and has nothing to save, though all its pieces may be other bytes than there. So before a
//! service says that saving makes no more room, the home daemon of each host tells what is untold there.
//! Growing files are told of as well: that does no harm, and only their shards know which are which.
//!
//! Not here: what is told of a process that was killed (`reaper`), and for who asks (`sizes`).

use crate::reply::ReplyTo;
use crate::shared::Shared;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::{Inode, Request};

/// Between two times that all is told: a file that is written to is untold again at once, and it is
/// enough that its shard heard once that it is changed.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Untold(Mutex<Telling>);

#[derive(Default)]
struct Telling {
    /// When it began last.
    at: Option<Instant>,
    /// As many as were not answered, and are not lost, have one more of it.
    answers: Arc<()>,
}

impl Shared {
    /// Tells what is untold on this host. True if there is something of that, or was until a moment ago:
    /// more may be saved than services know now.
    pub(crate) fn tell_untold_for_room(&self) -> bool {
        let Some(Untold(telling)) =
            self.untold.as_ref().filter(|_| self.router.me.0 == self.host_number)
        else {
            return false;
        };
        let mut files = Vec::new();
        self.host.vnode_list(&mut |_, vnode| {
            let (inode, size) = (Inode(vnode.inode.load(SeqCst)), vnode.dirty_end.load(SeqCst));
            if size != 0 && !inode.is_none() {
                files.push((inode, size));
            }
        });
        let mut telling = telling.lock().unwrap_or_else(PoisonError::into_inner);
        let is_under_way = Arc::strong_count(&telling.answers) > 1;
        let is_rested = telling.at.is_none_or(|at| at.elapsed() >= PAUSE);
        if files.is_empty() || is_under_way || !is_rested {
            return is_under_way || !files.is_empty();
        }
        telling.at = Some(Instant::now());
        let answers = Arc::clone(&telling.answers);
        drop(telling);
        for (inode, size) in files {
            let to = ReplyTo::Untold(Arc::clone(&answers));
            let header = self.own_header(inode.shard());
            self.hand_in(&header, &Request::Extend { inode, size }, to);
        }
        true
    }
}
