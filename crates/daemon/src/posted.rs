//! Posts of clients (`shm::posts`): taken from shared memory and handed to the metadata service, before
//! any step that could see them.
//!
//! The gate is open between steps only. Its opening is a promise that posts can be carried out, so
//! room in the log for all that can come is reserved first.

use crate::reply::ReplyTo;
use crate::shard::Shard;
use crate::shared::Shared;
use metadata::{Input, Posted};
use shm::host::VnodeIndex;
use shm::posts::{POST_COUNT, PostId, Tentative};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use store::For;
use wire::codec::Reader;
use wire::post::POST_BYTES_MAX;
use wire::{Inode, Post, Request, ShardIndex};

/// Bytes that the records of one post take in the log at most.
const RECORD_BYTES_MAX: u64 = 1024;
/// Posts of one step: their records fit what is reserved for a step.
const STEP_POSTS_MAX: usize = 192;
/// Fewer inode numbers left than this are filled up: more than all sessions' slots of a moment.
const NUMBERS_MIN: u64 = 4096;

const _: () = assert!(STEP_POSTS_MAX as u64 * RECORD_BYTES_MAX <= crate::shard::STEP_BYTES_MAX);

/// A post as it was read.
struct Taken {
    id: PostId,
    bytes: [u8; POST_BYTES_MAX],
    length: usize,
}

impl Taken {
    fn post(&self) -> Option<Post<'_>> {
        let bytes = self.bytes.get(..self.length)?;
        Post::decode(&mut Reader::new(bytes)).ok()
    }

    fn is_create(&self) -> bool {
        matches!(self.post(), Some(Post::Create { .. }))
    }
}

impl Shard {
    /// Applies what clients posted, between two steps. True if there was anything.
    pub(crate) fn take_posts(&mut self, shared: &Shared) -> bool {
        if !shared.posts.has_any(self.worker) || self.reserve(For::Any).is_err() {
            return false;
        }
        let came = self.settle_posts(shared, Tentative::Leave);
        if !self.reaps.is_empty() || came && self.is_tighter(shared) {
            self.close_gate(shared);
            self.open_gate(shared);
        }
        self.send_replies(shared);
        came
    }

    /// Nothing is posted from here on, and what was is applied.
    pub(crate) fn close_gate(&mut self, shared: &Shared) {
        shared.posts.close_gate(self.worker);
        self.settle_posts(shared, Tentative::Refuse);
        for inode in std::mem::take(&mut self.reaps) {
            let header = shared.own_header(inode.shard());
            let ticket = self.ticket(ReplyTo::Nobody);
            let request = Request::Reap { inode };
            self.step_closed(shared, Input::Request { ticket, header: &header, request });
        }
    }

    /// Clients may post again, if all that they could post can be carried out.
    pub(crate) fn open_gate(&mut self, shared: &Shared) {
        let room = room_of_posts(shared);
        let has_room = self.service.takes_posts(room) && self.reserve_more(room, For::Any).is_ok();
        if has_room {
            let mut tight = Vec::new();
            self.service.each_tight(most_posts(shared), &mut |account| tight.push(account));
            shared.posts.open_gate(self.worker, &tight);
            self.tight_count = tight.len();
        }
        // After it: who gets a reply may post at once.
        self.send_replies(shared);
    }

    /// True if some account has not enough left any more for all that could be posted.
    fn is_tighter(&self, shared: &Shared) -> bool {
        let mut count = 0;
        if self.service.has_limits() {
            self.service.each_tight(most_posts(shared), &mut |_| count += 1);
        }
        count > self.tight_count
    }

    /// Sees to it that clients have inode numbers of a shard.
    pub(crate) fn keep_numbers(&mut self, shared: &Shared, shard: ShardIndex) {
        if shared.posts.numbers_left(shard) < NUMBERS_MIN {
            self.step_closed(shared, Input::GrantNumbers { shard });
        }
    }

    fn settle_posts(&mut self, shared: &Shared, tentative: Tentative) -> bool {
        if !shared.posts.has_any(self.worker) {
            return false;
        }
        let (creates, others): (Vec<Taken>, Vec<Taken>) =
            self.collect(shared, tentative).into_iter().partition(Taken::is_create);
        self.apply(shared, &creates);
        if !others.is_empty() {
            // A file may have been made and closed while the first look passed by.
            let mut more = self.collect(shared, tentative);
            more.retain(Taken::is_create);
            self.apply(shared, &more);
            self.apply(shared, &others);
        }
        shared.posts.settle(self.worker);
        let any = !creates.is_empty() || !others.is_empty();
        if any {
            self.posted_at = Some(Instant::now());
        }
        any
    }

    fn collect(&self, shared: &Shared, tentative: Tentative) -> Vec<Taken> {
        let mut all = Vec::new();
        shared.posts.collect(self.worker, tentative, &mut |id| {
            let mut taken = Taken { id, bytes: [0; POST_BYTES_MAX], length: 0 };
            taken.length = shared.posts.read(id, &mut taken.bytes).unwrap_or(0);
            all.push(taken);
        });
        all
    }

    fn apply(&mut self, shared: &Shared, all: &[Taken]) {
        for some in all.chunks(STEP_POSTS_MAX) {
            // The room was promised when the gate was opened.
            if self.reserve(For::Freeing).is_err() {
                tracing::error!(worker = self.worker, "no room in the log for what was posted");
                return;
            }
            self.apply_step(shared, some);
        }
    }

    fn apply_step(&mut self, shared: &Shared, some: &[Taken]) {
        let mut posts = Vec::with_capacity(some.len());
        let mut done = Vec::with_capacity(some.len());
        for taken in some {
            match taken.post() {
                // It is looked at again with the next post or step.
                Some(Post::Close { inode, .. }) if !self.service.is_quiet(inode) => continue,
                Some(post) => posts.push(Posted { post, written: written(shared, &post) }),
                None => tracing::warn!(session = taken.id.session, "a post makes no sense"),
            }
            done.push(taken.id);
        }
        self.step_closed(shared, Input::Posted { posts: &posts });
        for id in done {
            shared.posts.finish(id);
        }
        for posted in posts {
            match posted.post {
                Post::Close { inode, row } => self.count_out(shared, inode, row, posted.written),
                Post::Create { .. } => self.keep_numbers(shared, posted.post.inode().shard()),
                Post::Unlink { .. } => {}
            }
        }
    }

    /// The opening that a `Close` took over is over.
    fn count_out(&mut self, shared: &Shared, inode: Inode, row: u32, written: u64) {
        let index = VnodeIndex(row);
        let Ok(vnode) = shared.host.vnode(index) else { return };
        if vnode.inode.load(SeqCst) != inode.0 {
            return;
        }
        if written != 0 {
            let _ = vnode.dirty_end.compare_exchange(written, 0, SeqCst, SeqCst);
        }
        let closed = shared.host.vnode_close(inode, index);
        if closed.is_ok_and(|closed| closed.last && closed.deleted) {
            self.reaps.push(inode);
        }
    }
}

/// How many posts there could be at once.
fn most_posts(shared: &Shared) -> u64 {
    shared.posts.sessions_most() * POST_COUNT as u64
}

/// Bytes in the log for all that could be posted at once.
pub(crate) fn room_of_posts(shared: &Shared) -> u64 {
    most_posts(shared).saturating_mul(RECORD_BYTES_MAX)
}

/// What a `Close` has to tell.
fn written(shared: &Shared, post: &Post<'_>) -> u64 {
    let Post::Close { inode, row } = *post else { return 0 };
    let Ok(vnode) = shared.host.vnode(VnodeIndex(row)) else { return 0 };
    let is_it = vnode.inode.load(SeqCst) == inode.0;
    if is_it { vnode.dirty_end.load(SeqCst) } else { 0 }
}
