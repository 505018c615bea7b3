//! Faults of a world: messages are lost, duplicated and reordered, and services are killed at any
//! effect of any step and return later.

use std::collections::BTreeMap;

use super::{Cut, HostState, Input, Random, World};
use wire::DaemonIndex;

/// Frequencies of faults, and when killed services return.
pub(crate) struct Faults {
    /// Percentage of lost messages.
    lost: usize,
    /// One in this many steps is the last of its service.
    steps_per_truncate: usize,
    /// How long a service stays down.
    pauses_nanos: &'static [i64],
    /// When each service returns.
    back: BTreeMap<usize, i64>,
    /// Half of them return at another daemon.
    moves: bool,
}

impl Faults {
    pub(crate) fn new(
        lost: usize,
        steps_per_truncate: usize,
        pauses_nanos: &'static [i64],
    ) -> Faults {
        Faults { lost, steps_per_truncate, pauses_nanos, back: BTreeMap::new(), moves: false }
    }

    /// With services that return at other daemons.
    pub(crate) fn moving(self) -> Faults {
        Faults { moves: true, ..self }
    }

    /// Sometimes ends the next step, of any service, early.
    pub(crate) fn maybe_cut(&self, world: &mut World, random: &mut Random) {
        if random.uniform(self.steps_per_truncate) == 0 {
            let (effects, replies) = (random.uniform(8), random.chance(50));
            world.cut = Some(Cut { effects, replies });
        }
    }

    /// One of the messages on their way arrives, or not.
    pub(crate) fn deliver(&self, world: &mut World, random: &mut Random) {
        let Some((to, bytes)) = world.take_message(random, self.lost) else { return };
        self.maybe_cut(world, random);
        world.step(to, Input::Peer { message: &bytes });
    }

    /// Schedules the return of services killed since; returns their number.
    pub(crate) fn note_killed(&mut self, world: &World, random: &mut Random) -> u64 {
        let before = self.back.len();
        for &at in &world.dead {
            self.back.entry(at).or_insert_with(|| {
                world.now + self.pauses_nanos[random.uniform(self.pauses_nanos.len())]
            });
        }
        (self.back.len() - before) as u64
    }

    /// Time passes: killed services return, and timers run.
    pub(crate) fn pass(&mut self, world: &mut World, random: &mut Random, nanos: i64) {
        world.now += nanos;
        let now = world.now;
        for (at, _) in self.back.extract_if(.., |_, when| *when <= now) {
            match self.moves && random.chance(50) {
                true => world.move_to(at, DaemonIndex(random.uniform(world.seats.len()) as u16)),
                false => world.crash(at),
            }
        }
        for at in 0..world.seats.len() {
            if world.is_due(at) {
                self.maybe_cut(world, random);
                world.step(at, Input::Tick);
                world.cut = None;
            }
            world.answer_data(at, Ok(()));
        }
    }

    /// All services return, and pending work is completed.
    pub(crate) fn end(&mut self, world: &mut World) {
        core::mem::take(&mut self.back).into_keys().for_each(|at| world.crash(at));
        world.settle();
    }
}

impl World {
    /// As `crash`, but its log is replayed at another daemon, whose host has memory and clock of its
    /// own.
    pub(crate) fn move_to(&mut self, at: usize, daemon: DaemonIndex) {
        let seat = &mut self.seats[at];
        (seat.config.daemon, seat.config.host) = (daemon, daemon.0);
        seat.host_view = HostState::default();
        self.crash(at);
    }

    /// True if a timer of a service is due.
    pub(crate) fn is_due(&self, at: usize) -> bool {
        self.seats[at].service.deadline().is_some_and(|when| when <= self.now)
    }

    /// Runs due timers, and targets answer.
    pub(crate) fn do_what_is_due(&mut self) {
        for at in 0..self.seats.len() {
            if self.is_due(at) {
                self.step(at, Input::Tick);
            }
            self.answer_data(at, Ok(()));
        }
    }

    /// Takes one of the messages on their way, or a copy; `None` if there is none, or it is lost
    /// with the given percentage.
    pub(crate) fn take_message(
        &mut self,
        random: &mut Random,
        lost: usize,
    ) -> Option<(usize, Vec<u8>)> {
        if self.queue.is_empty() {
            return None;
        }
        let place = random.uniform(self.queue.len());
        let (is_lost, is_doubled) = (random.chance(lost), random.chance(4));
        let word = match is_doubled {
            true => self.queue[place].clone(),
            false => self.queue.swap_remove(place),
        };
        (!is_lost).then_some(word)
    }
}
