//! Files that are to be brought up before they are read (O18): their pieces that lie below are filled,
//! those on the SSD rise. Memory comes first, the SSD where memory has no room to spare.
//!
//! A wish is of one file, and this target sees to what it has of it. Wishes of a *list* are read in its
//! order, by so many readers at a time (a *group*), and are paced. So much of a list that nobody has read
//! yet is here at most. The first group is left where it is, as its readers are there first. When readers
//! come to a group, seen by what they miss or by the marks of what they read, the wishes of that and of
//! earlier groups end, and those of the next ones, too, of which bringing them up would take longer than
//! it takes the readers to come there (`first_in_time`): what was begun goes on.
//!
//!   none --Request::Rise--> waits --its turn--> begun --all pieces asked for--> none
//!                           waits --its readers are there--> none
//!                           begun --a piece can not come--> none, and who asks is told why
//!
//! Invariants:
//!  1. `by_inode` names each wish once.
//!  2. A wish of a list has a `Pace`.

use crate::effect::{Answer, Effect};
use crate::fill::Purpose;
use crate::target::{Stop, Target};
use std::collections::BTreeMap;
use tokens::TokenBucket;
use wire::reply::Piece;
use wire::request::rise;
use wire::{Errno, Inode, Layout};

/// Most wishes: 32 MiB of them.
const WISHES_MAX: usize = 1 << 18;
/// Most lists; of one more the oldest ends.
const LISTS_MAX: usize = 64;
/// Files that are brought up at once.
const FILES_MAX: usize = 16;
/// Pieces of wishes that are filled at once: twice as many as there are threads below.
const FILLS_MAX: usize = 8;
/// Most pieces that are looked at in one step.
const LOOKS_MAX: usize = 1024;
/// Of a list so much may be here that nobody read yet: one part in so many of the memory.
const UNREAD_PARTS: u64 = 4;
/// What wishes bring up leaves so much of the SSD free: one part in so many.
const SSD_FREE_PARTS: u64 = 16;
/// Files of which it is remembered why they did not come.
const FAILED_MAX: usize = 1024;
/// A list is remembered for so long while nothing of it is to come.
const LIST_MILLIS: u32 = 10_000;
/// No more groups than that are left out.
const GROUPS_MAX: u64 = 64;

/// What `Request::Rise` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) inode: Inode,
    pub(crate) what: u8,
    pub(crate) layout: Layout,
    pub(crate) size: u64,
    /// 0: none.
    pub(crate) list: u64,
    pub(crate) index: u64,
    pub(crate) group: u64,
    /// The list may be wrong.
    pub(crate) is_guess: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    inode: Inode,
    layout: Layout,
    size: u64,
    tier: u8,
    /// What lies before was seen to.
    next: u64,
}

/// How readers get on with a list.
#[derive(Clone, Copy, Debug)]
struct Pace {
    group: u64,
    /// The group that they came to, and when.
    reached: Option<(u64, u32)>,
    /// From one group to the next, on average.
    step_millis: Option<u32>,
    /// More than the first group was named.
    has_more: bool,
    born: u64,
    /// When it was last added to, or its readers went on.
    since: u32,
}

/// What comes from below in a millisecond, while something does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    bytes: u64,
    millis: u64,
    since: Option<u32>,
}

impl Rate {
    /// Milliseconds after which old measures count half.
    const MEMORY_MILLIS: u64 = 8000;

    pub(crate) fn begins(&mut self, now: u32) {
        self.since.get_or_insert(now);
    }

    /// So many bytes came; `is_last`: nothing more is under way.
    pub(crate) fn came(&mut self, bytes: u64, is_last: bool, now: u32) {
        let Some(since) = self.since.take() else { return };
        self.bytes += bytes;
        self.millis += u64::from(now.wrapping_sub(since));
        self.since = (!is_last).then_some(now);
        if self.millis > Rate::MEMORY_MILLIS {
            (self.bytes, self.millis) = (self.bytes / 2, self.millis / 2);
        }
    }

    fn millis_for(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.millis) / self.bytes.max(1)
    }
}

/// How many groups ahead one can be brought up in time, of readers who still read their own from below
/// for `read_millis` and take `step_millis` from one group to the next, if it takes `move_millis`.
///
/// While they read nothing else is moved, then it begins; so for the nearest group `k` that is in time
/// `k * step_millis >= read_millis + move_millis`.
fn first_in_time(move_millis: u64, read_millis: u64, step_millis: u64) -> u64 {
    (move_millis + read_millis).div_ceil(step_millis.max(1)).clamp(1, GROUPS_MAX)
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// By list and place in it; those of no list by when they came.
    wishes: BTreeMap<(u64, u64), Wish>,
    by_inode: BTreeMap<Inode, (u64, u64)>,
    lists: BTreeMap<u64, Pace>,
    failed: BTreeMap<Inode, Errno>,
    /// Of wishes and lists that came.
    count: u64,
    /// The list that had its turn last.
    last: u64,
    pub(crate) rate: Rate,
    /// What comes from below for wishes.
    limit: TokenBucket,
}

/// What came of working on a wish.
enum Done {
    /// All of its pieces are asked for.
    All,
    /// It waits for its shard.
    Waits,
    /// As much is under way as may be.
    Full,
    /// There is no room for it.
    NoRoom(Errno),
}

impl Wishes {
    pub(crate) fn are_some(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// True if something is to come, or readers of a list are.
    pub(crate) fn is_busy(&self) -> bool {
        !self.wishes.is_empty() || !self.lists.is_empty()
    }

    fn remove(&mut self, key: (u64, u64)) {
        if let Some(wish) = self.wishes.remove(&key) {
            self.by_inode.remove(&wish.inode);
        }
    }

    /// Nothing more of a list is to come.
    pub(crate) fn remove_list(&mut self, list: u64) {
        let keys = self.wishes.range((list, 0)..=(list, u64::MAX));
        let keys: Vec<_> = keys.map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    fn fail(&mut self, inode: Inode, errno: Errno) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_first();
        }
        self.failed.insert(inode, errno);
    }

    /// The file is gone, or can not be had for this reason.
    pub(crate) fn end(&mut self, inode: Inode, why: Option<Errno>) {
        if let Some(&key) = self.by_inode.get(&inode) {
            self.remove(key);
        }
        match why {
            Some(errno) => self.fail(inode, errno),
            None => drop(self.failed.remove(&inode)),
        }
    }

    /// What may be worked on now, of a list.
    fn next_of(&self, list: u64) -> Vec<(u64, u64)> {
        let all = self.wishes.range((list, 0)..=(list, u64::MAX));
        let keys = |skipped: u64| {
            let late = move |(key, _): &(&(u64, u64), &Wish)| key.1 >= skipped;
            all.clone().filter(late).map(|(&key, _)| key).take(FILES_MAX).collect::<Vec<_>>()
        };
        match self.lists.get(&list) {
            // Nobody has begun to read. All else is here before the first group is brought up.
            Some(Pace { reached: None, group, has_more, .. }) => {
                let others = keys(*group);
                if others.is_empty() && *has_more { keys(0) } else { others }
            }
            _ => keys(0),
        }
    }
}

impl Target {
    /// Answers how much of a file is still to come, and wishes for it, or gives it up.
    pub(crate) fn wish(&mut self, asked: &Asked, out: &mut Vec<Effect>) -> Answer {
        if asked.what == rise::DROP {
            return self.drop_file(asked, out);
        }
        let inode = asked.inode;
        if let Some(errno) = self.wishes.failed.remove(&inode) {
            return Answer::Refused(errno);
        }
        let left = self.left(asked);
        if asked.is_guess && !self.guess(asked.list, inode) {
            return Answer::Number(left);
        }
        if asked.what == rise::ASK || left == 0 || self.wishes.by_inode.contains_key(&inode) {
            return Answer::Number(left);
        }
        if self.wishes.wishes.len() >= WISHES_MAX {
            return Answer::Refused(Errno::EAGAIN);
        }
        self.wishes.count += 1;
        let count = self.wishes.count;
        let index = if asked.list == 0 { count } else { asked.index };
        let key = (asked.list, index);
        if self.wishes.wishes.contains_key(&key) {
            return Answer::Refused(Errno::EINVAL);
        }
        if asked.list != 0 && !self.wishes.lists.contains_key(&asked.list) {
            self.make_list(asked, count);
        }
        let now = self.moves.now();
        if let Some(pace) = self.wishes.lists.get_mut(&asked.list) {
            pace.has_more |= index >= pace.group;
            pace.since = now;
        }
        let tier = if asked.what == rise::SSD { Piece::SSD } else { Piece::MEMORY };
        let Asked { layout, size, .. } = *asked;
        self.wishes.wishes.insert(key, Wish { inode, layout, size, tier, next: 0 });
        self.wishes.by_inode.insert(inode, key);
        Answer::Number(left)
    }

    /// So many bytes a second come from below for wishes; 0: as fast as they can.
    pub fn set_wish_rate(&mut self, bytes_per_second: u64) {
        self.wishes.limit = TokenBucket::new(bytes_per_second);
    }

    fn make_list(&mut self, asked: &Asked, born: u64) {
        if self.wishes.lists.len() >= LISTS_MAX
            && let Some((&oldest, _)) = self.wishes.lists.iter().min_by_key(|(_, pace)| pace.born)
        {
            self.wishes.remove_list(oldest);
            self.end_list(oldest);
        }
        let pace = Pace {
            group: asked.group.max(1),
            reached: None,
            step_millis: None,
            has_more: false,
            born,
            since: 0,
        };
        self.wishes.lists.insert(asked.list, pace);
    }

    fn end_list(&mut self, list: u64) {
        self.wishes.lists.remove(&list);
        self.ahead.end_list(list);
    }

    /// Bytes of a file that this target has and that are still to come.
    pub(crate) fn left(&self, asked: &Asked) -> u64 {
        let Asked { inode, layout, size, what, .. } = *asked;
        let wish = self.wishes.by_inode.get(&inode).and_then(|key| self.wishes.wishes.get(key));
        let lifted_from = match wish {
            Some(wish) => (wish.tier == Piece::MEMORY).then_some(wish.next),
            None => (what == rise::MEMORY).then_some(0),
        };
        let on_ssd = |from| {
            let pieces = self.slots.over(inode, from, u64::MAX);
            let pieces = pieces.filter(|piece| piece.tier != Piece::MEMORY);
            pieces.map(|piece| piece.length()).sum::<u64>()
        };
        let to_lift = lifted_from.map_or(0, on_ssd);
        if !self.may_lie_below(inode) {
            return to_lift;
        }
        let end = size.min(self.fills.end(inode).unwrap_or(u64::MAX));
        let missing = |span: &placement::piece::Span| {
            self.slots.over(inode, span.start, span.end()).next().is_none()
        };
        let spans = self.member.spans(inode, layout, (0, end)).filter(missing);
        to_lift + spans.map(|span| span.end().min(end) - span.start).sum::<u64>()
    }

    /// Sees to wishes, as far as may be under way.
    pub(crate) fn grant(&mut self, out: &mut Vec<Effect>) {
        if !self.wishes.are_some() || self.is_waiting() || !self.admission.is_empty() {
            return;
        }
        let mut looks = LOOKS_MAX;
        let mut lists: Vec<u64> = self.wishes.lists.keys().copied().collect();
        lists.push(0);
        lists.sort_unstable_by_key(|&list| (list <= self.wishes.last, list));
        for list in lists {
            let mut waits = false;
            for key in self.wishes.next_of(list) {
                if waits && list != 0 {
                    // In order; but its shard may be asked.
                    self.ask_wished(key, out);
                    continue;
                }
                match self.grant_one(key, &mut looks, out) {
                    Done::All => self.wishes.remove(key),
                    Done::Waits => waits = true,
                    Done::Full => break,
                    // Readers make room.
                    Done::NoRoom(Errno::ENOSPC) if list != 0 => break,
                    Done::NoRoom(errno) => {
                        if let Some(wish) = self.wishes.wishes.get(&key) {
                            self.wishes.end(wish.inode, Some(errno));
                        }
                    }
                }
                self.wishes.last = list;
            }
        }
    }

    fn ask_wished(&mut self, key: (u64, u64), out: &mut Vec<Effect>) {
        let inode = self.wishes.wishes.get(&key).map(|wish| wish.inode);
        if let Some(inode) = inode.filter(|&inode| self.may_lie_below(inode))
            && self.fills.end(inode).is_none()
        {
            self.ask_end(inode, out);
        }
    }

    /// Lists end of which nothing is to come and nothing is unread, and that nobody adds to.
    pub(crate) fn end_lists(&mut self) {
        let now = self.moves.now();
        let is_over = |&(&list, pace): &(&u64, &Pace)| {
            let is_idle = now.wrapping_sub(pace.since) > LIST_MILLIS;
            let is_all = self.wishes.wishes.range((list, 0)..=(list, u64::MAX)).next().is_none();
            let is_read = self.ahead.unread_bytes(list) + self.fills.bytes_of_list(list) == 0;
            is_idle && is_all && is_read
        };
        let over: Vec<u64> =
            self.wishes.lists.iter().filter(is_over).map(|(&list, _)| list).collect();
        over.into_iter().for_each(|list| self.end_list(list));
    }

    fn grant_one(&mut self, key: (u64, u64), looks: &mut usize, out: &mut Vec<Effect>) -> Done {
        let Some(mut wish) = self.wishes.wishes.get(&key).copied() else { return Done::All };
        let done = match self.may_lie_below(wish.inode) {
            true => self.fill_wished(key, &mut wish, looks, out),
            false => self.lift_wished(&mut wish, looks, out),
        };
        if let Some(stored) = self.wishes.wishes.get_mut(&key) {
            stored.next = wish.next;
        }
        done
    }

    fn fill_wished(
        &mut self,
        key: (u64, u64),
        wish: &mut Wish,
        looks: &mut usize,
        out: &mut Vec<Effect>,
    ) -> Done {
        let &mut Wish { inode, layout, size, next, .. } = wish;
        if self.is_damaged(inode) {
            return Done::NoRoom(Errno::EIO);
        }
        let Some(counts) = self.fills.end(inode) else {
            self.ask_end(inode, out);
            return Done::Waits;
        };
        for span in self.member.spans(inode, layout, (next, size.min(counts))) {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return Done::Full;
            }
            let done = match self.first_over(inode, span.start, span.end()) {
                Some(piece) => self.lift(inode, wish.tier, &piece, out),
                None if self.fills.is_filled(inode, span.start) => None,
                None => self.fill_span(key, wish, (span, counts), out),
            };
            if let Some(done) = done {
                return done;
            }
            wish.next = span.end();
        }
        Done::All
    }

    /// Has one piece filled for a wish. `None`: it is under way.
    fn fill_span(
        &mut self,
        key: (u64, u64),
        wish: &Wish,
        (span, counts): (placement::piece::Span, u64),
        out: &mut Vec<Effect>,
    ) -> Option<Done> {
        let list = (key.0 != 0).then_some(key);
        let now = self.moves.now();
        if self.fills.wished_count() >= FILLS_MAX || !self.wishes.limit.is_open(now) {
            return Some(Done::Full);
        }
        if list.is_some() {
            let ahead = self.ahead.unread_bytes(key.0) + self.fills.bytes_of_list(key.0);
            if ahead + span.length() > self.memory.bytes_total() / UNREAD_PARTS && ahead > 0 {
                return Some(Done::Full);
            }
        }
        let kept = self.ssd.bytes_total() / SSD_FREE_PARTS;
        let tier = match wish.tier {
            Piece::MEMORY if self.has_room_to_rise(span.length()) => Piece::MEMORY,
            _ if self.ssd.bytes_free() >= kept + span.length() => Piece::SSD,
            _ => return Some(Done::NoRoom(Errno::ENOSPC)),
        };
        let purpose = Purpose { tier: Some(tier), list, is_wish: true };
        match self.fill_one(wish.inode, span, counts, purpose, out) {
            Ok(true) => {
                self.wishes.limit.take(now, span.length());
                None
            }
            Err(Stop::Refused(errno) | Stop::Full(errno)) => Some(Done::NoRoom(errno)),
            Err(Stop::Beyond(_)) => Some(Done::NoRoom(Errno::EDQUOT)),
            Ok(false) | Err(_) => Some(Done::Full),
        }
    }

    fn first_over(&self, inode: Inode, start: u64, end: u64) -> Option<Piece> {
        self.slots.over(inode, start, end).next()
    }

    fn lift_wished(&mut self, wish: &mut Wish, looks: &mut usize, out: &mut Vec<Effect>) -> Done {
        while let Some(piece) = self.first_over(wish.inode, wish.next, u64::MAX) {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return Done::Full;
            }
            if let Some(done) = self.lift(wish.inode, wish.tier, &piece, out) {
                return done;
            }
            wish.next = piece.start + piece.length();
        }
        Done::All
    }

    /// Brings a piece that is here to memory, if that is wished for. `None`: it is on its way, or stays.
    fn lift(
        &mut self,
        inode: Inode,
        tier: u8,
        piece: &Piece,
        out: &mut Vec<Effect>,
    ) -> Option<Done> {
        let stays = piece.tier == Piece::MEMORY || tier != Piece::MEMORY;
        self.end_drop(inode, piece, out);
        if stays || self.is_moving(inode, piece.start) {
            return None;
        }
        // What is on the SSD already may stay there.
        if !self.has_room_to_rise(piece.length()) {
            return None;
        }
        if !self.may_move_another() || !self.has_tokens() {
            return Some(Done::Full);
        }
        let begins = self.begin_move(inode, *piece, Piece::MEMORY, out);
        if begins { None } else { Some(Done::Full) }
    }

    /// Somebody reads what a list names there.
    pub(crate) fn reached_file(&mut self, inode: Inode) {
        if let Some(&(list, index)) = self.wishes.by_inode.get(&inode) {
            self.reached(list, index);
        }
    }

    /// Readers of a list came to a place in it.
    pub(crate) fn reached(&mut self, list: u64, index: u64) {
        let Some(pace) = self.wishes.lists.get_mut(&list) else { return };
        let (group, now) = (index / pace.group, self.moves.now());
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
        let Pace { group: width, step_millis, .. } = *pace;
        let bytes_of = |target: &Target, group: u64| -> u64 {
            let keys = (list, group * width)..(list, (group + 1).saturating_mul(width));
            target.wishes.wishes.range(keys).map(|(_, wish)| target.wish_bytes(wish)).sum()
        };
        let (read, next) = (bytes_of(self, group), bytes_of(self, group + 1));
        let (rate, limit) = (self.wishes.rate, self.wishes.limit);
        let ahead = step_millis.map_or(1, |step| {
            let move_millis = rate.millis_for(next).max(limit.millis_for(next));
            first_in_time(move_millis, rate.millis_for(read), step.into())
        });
        let first = (group + ahead).saturating_mul(width);
        let here = (group + 1).saturating_mul(width);
        let late: Vec<(u64, u64)> = (self.wishes.wishes.range((list, 0)..(list, first)))
            .filter(|&(key, wish)| key.1 < here || wish.next == 0)
            .map(|(&key, _)| key)
            .collect();
        late.into_iter().for_each(|key| self.wishes.remove(key));
    }

    /// What of a wish was not seen to.
    fn wish_bytes(&self, wish: &Wish) -> u64 {
        let end = wish.size.min(self.fills.end(wish.inode).unwrap_or(u64::MAX));
        let spans = self.member.spans(wish.inode, wish.layout, (wish.next, end));
        spans.map(|span| span.end().min(end) - span.start).sum()
    }

    /// How many wishes of a list are left, for checks.
    #[cfg(test)]
    pub(crate) fn wishes_of(&self, list: u64) -> usize {
        self.wishes.wishes.range((list, 0)..=(list, u64::MAX)).count()
    }

    /// Holds the invariants, for tests.
    #[cfg(test)]
    pub(crate) fn check_wishes(&self) {
        let Wishes { wishes, by_inode, lists, .. } = &self.wishes;
        assert_eq!(wishes.len(), by_inode.len());
        for (key, wish) in wishes {
            assert_eq!(by_inode.get(&wish.inode), Some(key));
            assert!(key.0 == 0 || lists.contains_key(&key.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 8.7 of the paper: moving a set of files takes 64 s, reading one 60 s, processing it
    /// 29 s; it begins with the third.
    #[test]
    fn the_start_group_is_the_first_that_is_in_time() {
        assert_eq!(first_in_time(64, 60, 60 + 29), 2);
        // What is here already is read at once: the next is in time if it takes no longer to move.
        assert_eq!(first_in_time(29, 0, 29), 1);
        assert_eq!(first_in_time(30, 0, 29), 2);
        assert_eq!(first_in_time(0, 0, 0), 1);
        assert_eq!(first_in_time(1000, 1000, 0), GROUPS_MAX);
    }

    #[test]
    fn the_rate_is_of_the_time_in_which_something_came() {
        let mut rate = Rate::default();
        rate.begins(100);
        rate.came(1000, false, 110);
        rate.begins(105);
        rate.came(1000, true, 120);
        rate.begins(500);
        rate.came(2000, true, 520);
        assert_eq!(rate.millis_for(1000), 10);
    }
}
