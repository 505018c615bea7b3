//! What chance does to a world: words are lost, doubled and overtaken, and services are killed at any
//! effect of any step and come back later.

use std::collections::BTreeMap;

use super::{Cut, Input, Random, World};

/// How often, and when those come back that were killed.
pub(crate) struct Faults {
    /// So many of a hundred words are lost.
    lost: usize,
    /// One of so many steps is the last of its service.
    steps_per_cut: usize,
    /// How long a service stays away.
    pauses_nanos: &'static [i64],
    /// When each comes back.
    back: BTreeMap<usize, i64>,
}

impl Faults {
    pub(crate) fn new(lost: usize, steps_per_cut: usize, pauses_nanos: &'static [i64]) -> Faults {
        Faults { lost, steps_per_cut, pauses_nanos, back: BTreeMap::new() }
    }

    /// Now and then the next step of whoever it is ends early.
    pub(crate) fn maybe_cut(&self, world: &mut World, random: &mut Random) {
        if random.below(self.steps_per_cut) == 0 {
            let (effects, replies) = (random.below(8), random.chance(50));
            world.cut = Some(Cut { effects, replies });
        }
    }

    /// One of the words on their way arrives, or not.
    pub(crate) fn deliver(&self, world: &mut World, random: &mut Random) {
        let Some((to, bytes)) = world.take_word(random, self.lost) else { return };
        self.maybe_cut(world, random);
        world.step(to, Input::Peer { message: &bytes });
    }

    /// Who was killed since is to come back after a while; how many those are.
    pub(crate) fn note_killed(&mut self, world: &World, random: &mut Random) -> u64 {
        let before = self.back.len();
        for &at in &world.dead {
            self.back.entry(at).or_insert_with(|| {
                world.now + self.pauses_nanos[random.below(self.pauses_nanos.len())]
            });
        }
        (self.back.len() - before) as u64
    }

    /// Time passes: who is to come back does, and what is due is done.
    pub(crate) fn pass(&mut self, world: &mut World, random: &mut Random, nanos: i64) {
        world.now += nanos;
        let now = world.now;
        self.back.extract_if(.., |_, when| *when <= now).for_each(|(at, _)| world.crash(at));
        for at in 0..world.seats.len() {
            if world.is_due(at) {
                self.maybe_cut(world, random);
                world.step(at, Input::Tick);
                world.cut = None;
            }
            world.answer_data(at, Ok(()));
        }
    }

    /// Everybody comes back, and what is under way comes to its end.
    pub(crate) fn end(&mut self, world: &mut World) {
        core::mem::take(&mut self.back).into_keys().for_each(|at| world.crash(at));
        world.settle();
    }
}

impl World {
    /// A service has something to do now.
    pub(crate) fn is_due(&self, at: usize) -> bool {
        self.seats[at].service.deadline().is_some_and(|when| when <= self.now)
    }

    /// What is due is done, and targets answer.
    pub(crate) fn do_what_is_due(&mut self) {
        for at in 0..self.seats.len() {
            if self.is_due(at) {
                self.step(at, Input::Tick);
            }
            self.answer_data(at, Ok(()));
        }
    }

    /// Takes one of the words on their way, or a copy; `None` if there is none, or it is lost, as so many
    /// of a hundred are.
    pub(crate) fn take_word(
        &mut self,
        random: &mut Random,
        lost: usize,
    ) -> Option<(usize, Vec<u8>)> {
        if self.queue.is_empty() {
            return None;
        }
        let place = random.below(self.queue.len());
        let (is_lost, is_doubled) = (random.chance(lost), random.chance(4));
        let word = match is_doubled {
            true => self.queue[place].clone(),
            false => self.queue.swap_remove(place),
        };
        (!is_lost).then_some(word)
    }
}
