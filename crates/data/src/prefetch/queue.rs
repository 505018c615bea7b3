//! Prefetch requests: files that are brought up before they are read (O18). Their extents in the
//! backing store are filled, those on the SSD are promoted; into memory first, into the SSD where
//! memory has no spare space.
//!
//! A request is for one file, and each target handles its part of it. Requests of a *list* are read
//! in its order, by several readers at a time (a *group*), and are paced: a limited number of
//! unread bytes of a list is here at any time. The first group is left where it is, because its
//! readers get there first. When readers reach a group, which shows in their misses or in the
//! reference bits of what they read, the requests of that and of earlier groups end; and so do
//! those of the next groups that would take longer to bring up than the readers take to reach them
//! (`first_group_in_time`). Requests in progress go on.
//!
//!   none --Request::Prefetch--> waits --its turn--> begun --all extents requested--> none
//!                               waits --its readers are there--> none
//!                               begun --an extent cannot come--> none; the next query gets the
//!                               reason
//!
//! Invariants:
//!  1. `by_inode` names each request once.
//!  2. A request of a list has a `ListPace`.

use crate::admission::stop::Stop;
use crate::admission::work::PrefetchArgs;
use crate::backing::BackedFiles;
use crate::backing::fill::{FillRequest, PREFETCHED_MAX, Purpose};
use crate::effect::{CopyClass, FillJob};
use crate::prefetch::Lower;
use crate::prefetch::unread::UnreadExtents;
use crate::space::pool::Pool;
use placement::extent::Span;
use std::collections::BTreeMap;
use tokens::TokenBucket;
use wire::reply::Extent;
use wire::request::prefetch;
use wire::{Errno, Inode, Layout};

/// Most requests: 32 MiB of them.
const REQUESTS_MAX: usize = 1 << 18;
/// Most lists; one more ends the oldest.
const LISTS_MAX: usize = 64;
/// Files of a list that are brought up at once.
const FILES_MAX: usize = 16;
/// Most extents that are examined in one step.
const LOOKS_MAX: usize = 1024;
/// Unread bytes of a list may take one part in this many of the memory.
const UNREAD_PARTS: u64 = 4;
/// Prefetching leaves one part in this many of the SSD free.
const SSD_FREE_PARTS: u64 = 16;
/// Files whose failure is remembered.
const FAILED_MAX: usize = 1024;
/// A list without requests is remembered for this time.
const LIST_IDLE_MILLIS: u32 = 10_000;
/// Most groups that are left out.
const GROUPS_MAX: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct PrefetchRequest {
    inode: Inode,
    layout: Layout,
    size: u64,
    tier: u8,
    /// The file has been handled up to this offset.
    next: u64,
}

/// Progress of the readers of a list.
#[derive(Clone, Copy, Debug)]
struct ListPace {
    group: u64,
    /// The group that the readers have reached, and when.
    reached: Option<(u64, u32)>,
    /// Mean time from one group to the next.
    step_millis: Option<u32>,
    /// More than the first group was requested.
    has_more: bool,
    created: u64,
    /// When the list was last extended, or its readers last advanced.
    since: u32,
}

/// Number of groups ahead of which one can be brought up in time, for readers that still read their
/// own from the backing store for `read_millis` and take `step_millis` from one group to the next,
/// if bringing one up takes `move_millis`.
///
/// While they read nothing else is moved, then the move begins; so the nearest group `k` in time
/// satisfies `k * step_millis >= read_millis + move_millis`.
fn first_group_in_time(move_millis: u64, read_millis: u64, step_millis: u64) -> u64 {
    (move_millis + read_millis).div_ceil(step_millis.max(1)).clamp(1, GROUPS_MAX)
}

/// Prefetch requests and lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefetchQueue {
    /// By list and index in it; requests without a list by their order of arrival.
    requests: BTreeMap<(u64, u64), PrefetchRequest>,
    by_inode: BTreeMap<Inode, (u64, u64)>,
    lists: BTreeMap<u64, ListPace>,
    failed: BTreeMap<Inode, Errno>,
    /// Number of requests and lists so far.
    count: u64,
    /// The list that was last served.
    last: u64,
    /// Limits the bytes filled for requests.
    limit: TokenBucket,
}

/// Result of working on a request.
enum RequestStep {
    /// All its extents were requested.
    All,
    /// It waits for its shard.
    Waits,
    /// The limit of bytes in flight is reached.
    Full,
    /// There is no space for it.
    NoSpace(Errno),
}

impl PrefetchQueue {
    fn are_some(&self) -> bool {
        !self.requests.is_empty()
    }

    /// True if something is to come, or a list has readers.
    pub(crate) fn has_any(&self) -> bool {
        !self.requests.is_empty() || !self.lists.is_empty()
    }

    fn remove(&mut self, key: (u64, u64)) {
        if let Some(request) = self.requests.remove(&key) {
            self.by_inode.remove(&request.inode);
        }
    }

    /// Ends the requests of a list.
    pub(crate) fn remove_list(&mut self, list: u64) {
        let keys = self.requests.range((list, 0)..=(list, u64::MAX));
        let keys: Vec<_> = keys.map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    fn fail(&mut self, inode: Inode, errno: Errno) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_first();
        }
        self.failed.insert(inode, errno);
    }

    /// The file is removed, or failed with an errno.
    pub(crate) fn end(&mut self, inode: Inode, why: Option<Errno>) {
        if let Some(&key) = self.by_inode.get(&inode) {
            self.remove(key);
        }
        match why {
            Some(errno) => self.fail(inode, errno),
            None => drop(self.failed.remove(&inode)),
        }
    }

    /// The requests of a list that may be worked on now.
    fn next_of(&self, list: u64) -> Vec<(u64, u64)> {
        let all = self.requests.range((list, 0)..=(list, u64::MAX));
        let keys = |skipped: u64| {
            let late = move |(key, _): &(&(u64, u64), &PrefetchRequest)| key.1 >= skipped;
            all.clone().filter(late).map(|(&key, _)| key).take(FILES_MAX).collect::<Vec<_>>()
        };
        match self.lists.get(&list) {
            // Nobody has begun to read. All other groups come before the first one.
            Some(ListPace { reached: None, group, has_more, .. }) => {
                let others = keys(*group);
                if others.is_empty() && *has_more { keys(0) } else { others }
            }
            _ => keys(0),
        }
    }

    /// The reason for which a file did not come, once.
    pub(crate) fn take_failure(&mut self, inode: Inode) -> Option<Errno> {
        self.failed.remove(&inode)
    }

    /// True if the file is to come.
    pub(crate) fn has_file(&self, inode: Inode) -> bool {
        self.by_inode.contains_key(&inode)
    }

    /// Queues a request.
    pub(crate) fn add(
        &mut self,
        args: &PrefetchArgs,
        now: u32,
        unread: &mut UnreadExtents,
    ) -> Result<(), Errno> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Errno::EAGAIN);
        }
        self.count += 1;
        let count = self.count;
        let index = if args.list == 0 { count } else { args.index };
        let key = (args.list, index);
        if self.requests.contains_key(&key) {
            return Err(Errno::EINVAL);
        }
        if args.list != 0 && !self.lists.contains_key(&args.list) {
            self.make_list(args, count, unread);
        }
        if let Some(pace) = self.lists.get_mut(&args.list) {
            pace.has_more |= index >= pace.group;
            pace.since = now;
        }
        let tier = if args.what == prefetch::SSD { Extent::SSD } else { Extent::MEMORY };
        let PrefetchArgs { inode, layout, size, .. } = *args;
        self.requests.insert(key, PrefetchRequest { inode, layout, size, tier, next: 0 });
        self.by_inode.insert(inode, key);
        Ok(())
    }

    /// Sets the rate of fills for requests, in bytes per second; 0: unlimited.
    pub(crate) const fn set_rate_limit(&mut self, bytes_per_second: u64) {
        self.limit = TokenBucket::new(bytes_per_second);
    }

    fn make_list(&mut self, args: &PrefetchArgs, created: u64, unread: &mut UnreadExtents) {
        if self.lists.len() >= LISTS_MAX
            && let Some((&oldest, _)) = self.lists.iter().min_by_key(|(_, pace)| pace.created)
        {
            self.remove_list(oldest);
            self.lists.remove(&oldest);
            unread.forget_list(oldest);
        }
        let pace = ListPace {
            group: args.group.max(1),
            reached: None,
            step_millis: None,
            has_more: false,
            created,
            since: 0,
        };
        self.lists.insert(args.list, pace);
    }

    /// Bytes of the file on this target that are still to come.
    pub(crate) fn bytes_left(&self, pool: &Pool, backed: &BackedFiles, args: &PrefetchArgs) -> u64 {
        let PrefetchArgs { inode, layout, size, what, .. } = *args;
        let request = self.by_inode.get(&inode).and_then(|key| self.requests.get(key));
        let promoted_from = match request {
            Some(request) => (request.tier == Extent::MEMORY).then_some(request.next),
            None => (what == prefetch::MEMORY).then_some(0),
        };
        let on_ssd = |from| {
            let extents = pool.slots().over(inode, from, u64::MAX);
            let extents = extents.filter(|extent| extent.tier != Extent::MEMORY);
            extents.map(|extent| extent.length()).sum::<u64>()
        };
        let to_promote = promoted_from.map_or(0, on_ssd);
        if !backed.cleaning.may_need_fill(inode) {
            return to_promote;
        }
        let end = size.min(backed.fills.end(inode).unwrap_or(u64::MAX));
        let spans = pool.member().spans(inode, layout, (0, end));
        let missing = spans.filter(|span| pool.is_vacant(inode, span));
        to_promote + missing.map(|span| span.end().min(end) - span.start).sum::<u64>()
    }

    /// Works on the requests, as far as the limits allow.
    pub(crate) fn grant(&mut self, unread: &UnreadExtents, lower: &mut Lower<'_>) {
        let pool = &lower.pool;
        if !self.are_some() || pool.is_parked() || !pool.admission.is_empty() {
            return;
        }
        let mut looks = LOOKS_MAX;
        let mut lists: Vec<u64> = self.lists.keys().copied().collect();
        lists.push(0);
        lists.sort_unstable_by_key(|&list| (list <= self.last, list));
        for list in lists {
            let mut waits = false;
            for key in self.next_of(list) {
                if waits && list != 0 {
                    // They are served in order; but the shard can be queried.
                    self.query_request(key, lower);
                    continue;
                }
                match self.grant_one(key, unread, &mut looks, lower) {
                    RequestStep::All => self.remove(key),
                    RequestStep::Waits => waits = true,
                    RequestStep::Full => break,
                    // Readers will free space.
                    RequestStep::NoSpace(Errno::ENOSPC) if list != 0 => break,
                    RequestStep::NoSpace(errno) => {
                        if let Some(request) = self.requests.get(&key) {
                            self.end(request.inode, Some(errno));
                        }
                    }
                }
                self.last = list;
            }
        }
    }

    fn query_request(&self, key: (u64, u64), lower: &mut Lower<'_>) {
        let Lower { backed, out, .. } = lower;
        let inode = self.requests.get(&key).map(|request| request.inode);
        if let Some(inode) = inode.filter(|&inode| backed.cleaning.may_need_fill(inode))
            && backed.fills.end(inode).is_none()
        {
            backed.fills.query_end(inode, out);
        }
    }

    /// Ends lists that have no requests and no unread bytes, and that nobody extends.
    pub(crate) fn end_lists(&mut self, unread: &mut UnreadExtents, lower: &Lower<'_>) {
        let now = lower.pool.now;
        let is_over = |&(&list, pace): &(&u64, &ListPace)| {
            let is_idle = now.wrapping_sub(pace.since) > LIST_IDLE_MILLIS;
            let is_all = self.requests.range((list, 0)..=(list, u64::MAX)).next().is_none();
            is_idle && is_all && bytes_here(list, unread, lower) == 0
        };
        let over: Vec<u64> = self.lists.iter().filter(is_over).map(|(&list, _)| list).collect();
        for list in over {
            self.lists.remove(&list);
            unread.forget_list(list);
        }
    }

    fn grant_one(
        &mut self,
        key: (u64, u64),
        unread: &UnreadExtents,
        looks: &mut usize,
        lower: &mut Lower<'_>,
    ) -> RequestStep {
        let Some(mut request) = self.requests.get(&key).copied() else {
            return RequestStep::All;
        };
        let done = match lower.backed.cleaning.may_need_fill(request.inode) {
            true => self.fill_request(key, &mut request, unread, looks, lower),
            false => promote_request(&mut request, looks, lower),
        };
        if let Some(stored) = self.requests.get_mut(&key) {
            stored.next = request.next;
        }
        done
    }

    fn fill_request(
        &mut self,
        key: (u64, u64),
        request: &mut PrefetchRequest,
        unread: &UnreadExtents,
        looks: &mut usize,
        lower: &mut Lower<'_>,
    ) -> RequestStep {
        let &mut PrefetchRequest { inode, layout, size, next, .. } = request;
        if lower.pool.is_damaged(inode) {
            return RequestStep::NoSpace(Errno::EIO);
        }
        let Some(counts) = lower.backed.fills.end(inode) else {
            lower.backed.fills.query_end(inode, lower.out);
            return RequestStep::Waits;
        };
        for span in lower.pool.member().spans(inode, layout, (next, size.min(counts))) {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return RequestStep::Full;
            }
            let there = lower.pool.slots().over(inode, span.start, span.end()).next();
            let done = match there {
                Some(extent) => promote_extent(inode, request.tier, &extent, lower),
                None if lower.backed.fills.is_filling_at(inode, span.start) => None,
                None => self.fill_span(key, request, (span, counts), unread, lower),
            };
            if let Some(done) = done {
                return done;
            }
            request.next = span.end();
        }
        RequestStep::All
    }

    /// Fills one extent for a request. `None`: it is in flight.
    fn fill_span(
        &mut self,
        key: (u64, u64),
        request: &PrefetchRequest,
        (span, counts): (Span, u64),
        unread: &UnreadExtents,
        lower: &mut Lower<'_>,
    ) -> Option<RequestStep> {
        let list = (key.0 != 0).then_some(key);
        let now = lower.pool.now;
        if lower.backed.fills.prefetch_count() >= PREFETCHED_MAX || !self.limit.is_open(now) {
            return Some(RequestStep::Full);
        }
        if list.is_some() {
            let ahead = bytes_here(key.0, unread, lower);
            let most = lower.pool.memory().bytes_total() / UNREAD_PARTS;
            if ahead + span.length() > most && ahead > 0 {
                return Some(RequestStep::Full);
            }
        }
        let Lower { pool, tiering, backed, out } = lower;
        let reserved = pool.ssd().bytes_total() / SSD_FREE_PARTS;
        let tier = match request.tier {
            Extent::MEMORY if tiering.has_space_to_promote(pool, span.length()) => Extent::MEMORY,
            _ if pool.ssd().bytes_free() >= reserved + span.length() => Extent::SSD,
            _ => return Some(RequestStep::NoSpace(Errno::ENOSPC)),
        };
        let purpose = Purpose { tier: Some(tier), list, is_prefetch: true };
        let (inode, job) = (request.inode, FillJob::default());
        let fill = FillRequest { inode, span, counts, purpose, job };
        match backed.fills.fill_one(pool, tiering, fill, out) {
            Ok(true) => {
                self.limit.take(now, span.length());
                None
            }
            Err(Stop::Refused(errno) | Stop::Full(errno)) => Some(RequestStep::NoSpace(errno)),
            Err(Stop::OverLimit(_)) => Some(RequestStep::NoSpace(Errno::EDQUOT)),
            Ok(false) | Err(_) => Some(RequestStep::Full),
        }
    }

    /// Somebody reads a file, maybe one of a list.
    pub(crate) fn note_reader(&mut self, inode: Inode, lower: &Lower<'_>) {
        if let Some(&(list, index)) = self.by_inode.get(&inode) {
            self.note_reached(list, index, lower);
        }
    }

    /// Readers of a list reached an index.
    pub(crate) fn note_reached(&mut self, list: u64, index: u64, lower: &Lower<'_>) {
        let Some(pace) = self.lists.get_mut(&list) else { return };
        let (group, now) = (index / pace.group, lower.pool.now);
        match pace.reached {
            Some((before, _)) if group <= before => return,
            Some((before, at)) => {
                let steps = u32::try_from(group - before).unwrap_or(u32::MAX);
                let step = now.wrapping_sub(at) / steps;
                pace.step_millis = Some(pace.step_millis.map_or(step, |old| (old + step) / 2));
            }
            None => {}
        }
        (pace.reached, pace.since) = (Some((group, now)), now);
        let ListPace { group: width, step_millis, .. } = *pace;
        let bytes_of = |group: u64| -> u64 {
            let keys = (list, group * width)..(list, (group + 1).saturating_mul(width));
            self.requests.range(keys).map(|(_, request)| request.bytes_left(lower)).sum()
        };
        let (read, next) = (bytes_of(group), bytes_of(group + 1));
        let (rate, limit) = (lower.backed.fills.rate, self.limit);
        let ahead = step_millis.map_or(1, |step| {
            let move_millis = rate.millis_for(next).max(limit.millis_for(next));
            first_group_in_time(move_millis, rate.millis_for(read), step.into())
        });
        let first = (group + ahead).saturating_mul(width);
        let here = (group + 1).saturating_mul(width);
        let late: Vec<(u64, u64)> = (self.requests.range((list, 0)..(list, first)))
            .filter(|&(key, request)| key.1 < here || request.next == 0)
            .map(|(&key, _)| key)
            .collect();
        late.into_iter().for_each(|key| self.remove(key));
    }

    /// Number of requests left in a list, for checks.
    #[cfg(test)]
    pub(crate) fn count_of(&self, list: u64) -> usize {
        self.requests.range((list, 0)..=(list, u64::MAX)).count()
    }

    /// Checks the invariants; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(self.requests.len(), self.by_inode.len());
        for (key, request) in &self.requests {
            assert_eq!(self.by_inode.get(&request.inode), Some(key));
            assert!(key.0 == 0 || self.lists.contains_key(&key.0));
        }
    }
}

impl PrefetchRequest {
    /// Bytes of the request that have not been handled.
    fn bytes_left(&self, lower: &Lower<'_>) -> u64 {
        let end = self.size.min(lower.backed.fills.end(self.inode).unwrap_or(u64::MAX));
        let spans = lower.pool.member().spans(self.inode, self.layout, (self.next, end));
        spans.map(|span| span.end().min(end) - span.start).sum()
    }
}

/// Unread bytes of a list that are here, or on their way.
fn bytes_here(list: u64, unread: &UnreadExtents, lower: &Lower<'_>) -> u64 {
    unread.bytes_of_list(list) + lower.backed.fills.bytes_of_list(list)
}

fn promote_request(
    request: &mut PrefetchRequest,
    looks: &mut usize,
    lower: &mut Lower<'_>,
) -> RequestStep {
    let inode = request.inode;
    let first = |lower: &Lower<'_>, from| lower.pool.slots().over(inode, from, u64::MAX).next();
    while let Some(extent) = first(lower, request.next) {
        *looks = looks.saturating_sub(1);
        if *looks == 0 {
            return RequestStep::Full;
        }
        if let Some(done) = promote_extent(inode, request.tier, &extent, lower) {
            return done;
        }
        request.next = extent.start + extent.length();
    }
    RequestStep::All
}

/// Promotes a local extent, if the request wants that. `None`: it is moving, or stays.
fn promote_extent(
    inode: Inode,
    tier: u8,
    extent: &Extent,
    lower: &mut Lower<'_>,
) -> Option<RequestStep> {
    let Lower { pool, tiering, out, .. } = lower;
    let stays = extent.tier == Extent::MEMORY || tier != Extent::MEMORY;
    tiering.order.cancel_eviction(pool, inode, extent, out);
    if stays || tiering.moves.is_moving(inode, extent.start) {
        return None;
    }
    // An extent on the SSD may stay there.
    if !tiering.has_space_to_promote(pool, extent.length()) {
        return None;
    }
    let class = CopyClass::Ahead;
    if !tiering.moves.may_move_another(pool, class) || !tiering.moves.has_tokens(pool.now) {
        return Some(RequestStep::Full);
    }
    let begins = tiering.begin_move(pool, inode, *extent, (Extent::MEMORY, class), out);
    if begins { None } else { Some(RequestStep::Full) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 8.7 of the paper: moving a set of files takes 64 s, reading one 60 s, processing it
    /// 29 s; it begins with the third.
    #[test]
    fn the_first_group_prefetched_is_the_first_in_time() {
        assert_eq!(first_group_in_time(64, 60, 60 + 29), 2);
        // Bytes that are local already are read at once: the next group is in time if it takes no
        // longer to move.
        assert_eq!(first_group_in_time(29, 0, 29), 1);
        assert_eq!(first_group_in_time(30, 0, 29), 2);
        assert_eq!(first_group_in_time(0, 0, 0), 1);
        assert_eq!(first_group_in_time(1000, 1000, 0), GROUPS_MAX);
    }
}
