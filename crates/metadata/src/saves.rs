//! Who waits until what he wrote is saved in the backing directory: parked requests, and the numbers by
//! which the writer says for whom it is. And who waits for room, which saving makes: he is inode `NONE`.
//!
//! A request that has to wait gets the next number, which is the inode's from then on. The writer is
//! told inodes with their numbers before it looks at them, and says with the same number what came of
//! them: so nobody is told that all is saved by a look from before his request. Who asked after that
//! look is looked at anew when it is said: what he waits for may lie below by then.
//!
//! Nothing of this is logged. Who waits asks again at least every two seconds (`Service::news_nanos`),
//! so a service that starts again learns of him; and an inode is forgotten when nobody asked for twice as
//! long.

use std::collections::BTreeMap;

use wire::below::Wanted;
use wire::{Errno, Inode, Reply};

use crate::effect::Opens;
use crate::live::{Ask, Kind, Step, Stop, Wait};
use crate::service::Service;
use crate::unsaved::listed;

/// Inodes beyond which those that nobody waits for any more are looked for.
const WANTS_KEPT: usize = 1024;

/// What is waited for. It is forgotten at a restart.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    wants: BTreeMap<Inode, Want>,
    /// The last number.
    last: u64,
    /// How often the writer did something, as far as that is known.
    moved: u64,
    /// What the writer said of that last.
    told: u64,
    /// The writer waits for the next number.
    is_awaited: bool,
    /// Wants from which on old ones are dropped.
    prune_at: usize,
    /// When somebody found no room last, there was something to save.
    makes_room: bool,
}

#[derive(Clone, Copy, Debug)]
struct Want {
    number: u64,
    /// Nobody waits any more unless he asked again by then.
    until: i64,
}

impl Service {
    /// Waits until what an inode is now lies below.
    pub(crate) fn await_saved(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        if self.config.backing && !self.is_saved(inode)? {
            let number = self.want(inode);
            return Err(Stop::Wait(Wait::Saved(inode, number)));
        }
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    /// True if that is known here. Of what was renamed to another service only the writer knows.
    fn is_saved(&self, inode: Inode) -> Result<bool, Errno> {
        let node = self.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
        if node.attributes.links == 0 {
            return Ok(true);
        }
        let below = self.state.below.get(&inode);
        let (Some(now), false) =
            (below.and_then(|below| below.now.as_ref()), self.state.changed.contains(&inode))
        else {
            return Ok(false);
        };
        let entry = self.state.entries.get(now.parent, &now.name);
        let is_its_name = entry.is_some_and(|found| found.0 == inode);
        Ok(is_its_name && self.state.unsaved.get(now.parent, &now.name).is_none())
    }

    fn want(&mut self, inode: Inode) -> u64 {
        let until = self.live.now.saturating_add(2 * self.news_nanos());
        self.drop_old_wants(self.live.saves.prune_at.max(WANTS_KEPT));
        let saves = &mut self.live.saves;
        // Also after a restart another one than the writer has heard of.
        saves.last = (saves.last + 1).max(self.live.now.cast_unsigned());
        saves.wants.insert(inode, Want { number: saves.last, until });
        let number = saves.last;
        if saves.is_awaited {
            saves.is_awaited = false;
            self.live.wake(|wait| *wait == Wait::Wanted);
        }
        number
    }

    /// Somebody finds no room: what is to be saved at some time is to be saved now. Nobody is told when
    /// that is done.
    pub(crate) fn hurry_saves(&mut self, hands: &dyn Opens) {
        self.live.saves.makes_room = self.config.backing && self.has_to_save(hands);
        if self.live.saves.makes_room {
            self.want(Inode::NONE);
        }
    }

    /// True if there will be room, as far as was known when somebody found none last, when more is saved;
    /// and a number that is another when more was.
    #[must_use]
    pub fn saves_for_room(&self) -> (bool, u64) {
        (self.live.saves.makes_room, self.live.saves.moved)
    }

    /// If there are more than so many.
    fn drop_old_wants(&mut self, count: usize) {
        let (now, saves) = (self.live.now, &mut self.live.saves);
        if saves.wants.len() > count {
            saves.wants.retain(|_, want| want.until > now);
            saves.prune_at = 2 * saves.wants.len();
        }
    }

    /// The writer waits until somebody waits for him.
    pub(crate) fn await_wanted(&mut self, ask: &Ask<'_>, seen: u64, moved: u64) -> Step<()> {
        let saves = &mut self.live.saves;
        if saves.told != moved {
            saves.told = moved;
            saves.moved = saves.moved.wrapping_add(1);
        }
        if saves.last == seen {
            saves.is_awaited = true;
            return Err(Stop::Wait(Wait::Wanted));
        }
        self.tell_wait(ask.ticket, Wait::Wanted);
        Ok(())
    }

    /// Answers who waited long enough.
    pub(crate) fn tell_wait(&mut self, ticket: u64, wait: Wait) {
        let saves = &self.live.saves;
        let value = if wait == Wait::Wanted { saves.last } else { saves.moved };
        self.io.reply(ticket, &Reply::Number { value });
    }

    pub(crate) fn list_wanted(&mut self, ask: &Ask<'_>) {
        self.drop_old_wants(0);
        let wants = &self.live.saves.wants;
        let all = wants.iter().map(|(&inode, want)| Wanted { inode, number: want.number });
        let bytes = listed(Wanted::BYTES, all);
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &bytes });
    }

    /// What the writer says of an inode; `errno` 0: it is saved.
    pub(crate) fn tell_settled(&mut self, inode: Inode, number: u64, errno: Errno) {
        let is_refused = errno != Errno(0);
        let wants = &mut self.live.saves.wants;
        if wants.get(&inode).is_some_and(|want| want.number <= number || is_refused) {
            wants.remove(&inode);
        }
        let of_it = |wait: &Wait| matches!(*wait, Wait::Saved(of, _) if of == inode);
        let jobs = self.live.jobs.iter().filter(|(_, job)| of_it(&job.wait));
        let all: Vec<(u64, Wait)> = jobs.map(|(&id, job)| (id, job.wait)).collect();
        for (id, wait) in all {
            if !is_refused && !matches!(wait, Wait::Saved(_, asked) if asked <= number) {
                self.live.woken.insert(id);
                continue;
            }
            let Some(job) = self.live.jobs.remove(&id) else { continue };
            self.live.woken.remove(&id);
            let Kind::Request { ticket, .. } = job.kind else { continue };
            match is_refused {
                true => self.io.reply(ticket, &Reply::Refused { errno: refusal(errno) }),
                false => self.io.reply(ticket, &Reply::Done {}),
            }
        }
    }
}

/// What programs know of a close or a sync.
fn refusal(errno: Errno) -> Errno {
    if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) { errno } else { Errno::EIO }
}
