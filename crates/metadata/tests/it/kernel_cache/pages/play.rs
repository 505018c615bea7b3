//! How a game goes on: chance chooses what happens next. In some games service 0 moves: it is at another
//! daemon at times. Then programs of its first owner's host wait for it, or go on with the files that
//! they have open, and those of other hosts go on.

use super::{Game, HOSTS, USERS, User, play};
use crate::sim::HostState;
use metadata::Input;
use wire::reply::opened;
use wire::{DaemonIndex, Inode};

/// The host of the first owner of service 0.
const HOME: u16 = HOSTS[0];
/// Messages on their way in a game in which service 0 moves.
const MESSAGES_MAX: usize = 40;

/// Where service 0 is.
#[derive(Default)]
pub(super) struct Moves {
    /// The epoch of its owners; 0: it stays.
    epoch: u64,
    /// The memory of the first owner's host while the service is at another daemon.
    memory: Option<HostState>,
    /// How often it came back.
    returns: u64,
}

impl Game {
    fn deliver(&mut self) {
        if self.world.queue.is_empty() {
            return;
        }
        let place = self.random.uniform(self.world.queue.len());
        let (to, bytes) = match self.random.uniform(10) {
            0 => return drop(self.world.queue.swap_remove(place)),
            1 => self.world.queue[place].clone(),
            _ => self.world.queue.swap_remove(place),
        };
        self.world.step(to, Input::Peer { message: &bytes });
    }

    fn pass_time(&mut self) {
        self.world.now += self.random.uniform(1_000_000) as i64;
        for at in 0..HOSTS.len() {
            if self.world.seats[at].service.deadline().is_some_and(|when| when <= self.world.now) {
                self.world.step(at, Input::Tick);
            }
        }
    }

    pub(super) fn play(&mut self, steps: u64) {
        for step in 0..steps {
            self.play_step(step);
        }
    }

    fn play_step(&mut self, step: u64) {
        self.writers = [2, 30, 6][(step / 3000) as usize % 3];
        match self.random.uniform(1000) {
            0 => {
                let at = self.random.uniform(HOSTS.len());
                let is_away = self.moves.memory.is_some();
                match (at, self.moves.epoch) {
                    // A successor waits anew.
                    (0, 1..) if is_away && !self.random.chance(10) => {}
                    (0, 1..) => self.begin_epoch(is_away),
                    _ => self.world.crash(at),
                }
            }
            1 => {
                let by = USERS[self.random.uniform(USERS.len())];
                if let Some(mount) = self.mounts.get_mut(&by) {
                    mount.stands_still_until = self.world.now + 20_000_000;
                }
            }
            2..=150 if self.tasks.len() < 12 => self.begin(),
            151..=550 => self.step_task(),
            551..=700 => self.deliver(),
            701..=950 => self.listen(),
            _ => self.pass_time(),
        }
    }

    /// Service 0 goes on elsewhere, or at home, from its log.
    fn begin_epoch(&mut self, is_away: bool) {
        self.moves.epoch += 1;
        let epoch = self.moves.epoch;
        let here = std::mem::take(&mut self.world.seats[0].host_view);
        let memory = self.moves.memory.take().unwrap_or(here);
        if is_away {
            let successor = DaemonIndex(2 + self.random.uniform(2) as u16);
            self.world.away.insert(0);
            self.world.succeed(0, successor, epoch, 0);
            self.moves.memory = Some(memory);
        } else {
            self.world.away.remove(&0);
            self.world.come_back(epoch, memory);
        }
    }

    /// Service 0 is elsewhere for as long as a kernel remembers something, and longer.
    fn play_moving(&mut self, steps: u64) {
        // Files of that service, and of the other one of its host: that of another host would not reach
        // mounts there while this one is away.
        let mut of_services = [None; 2];
        for number in 0..100 {
            let directory = format!("m{number}");
            let made =
                self.world.root().directory(Inode::ROOT, directory.as_bytes()).expect("made");
            let file = self.world.root().file(made.inode, b"f").expect("made").inode;
            let owner = self.world.owner(file.shard());
            of_services.get_mut(owner).into_iter().for_each(|of_service| *of_service = Some(file));
        }
        self.files = of_services.into_iter().flatten().collect();
        assert_eq!(self.files.len(), 2, "a hundred directories are at all services");
        self.moves.epoch = 1;
        self.shared[&HOME].borrow_mut().agreed.insert(0, 1);
        for step in 0..steps {
            let is_away = self.moves.memory.is_some();
            if is_away {
                self.world.now += self.random.uniform(1_000_000) as i64;
            }
            // Time runs fast, so messages do: a host that is not heard of for 4.5 s is not waited for.
            while self.world.queue.len() > MESSAGES_MAX {
                self.deliver();
            }
            if self.random.uniform(if is_away { 12_000 } else { 6000 }) == 0 {
                self.begin_epoch(!is_away);
                self.moves.returns += u64::from(is_away);
            }
            self.play_step(step);
        }
    }

    /// Whether a program or mount waits for a shard that is at another daemon, which it takes for one of
    /// its host.
    pub(super) fn is_away_from(&self, by: User, inode: Inode) -> bool {
        self.moves.memory.is_some() && by.0 == HOME && self.world.owner(inode.shard()) == 0
    }

    /// Whether a mount may read pages from before a write. A mount of the first owner's host may that is
    /// not waited for, until it has dropped them; and one of another host that maps a file which programs
    /// of that host have open to write, until it is told.
    pub(super) fn may_be_old(&self, by: User, inode: Inode) -> bool {
        if self.moves.epoch == 0 || by.1 == 0 || self.world.owner(inode.shard()) != 0 {
            return false;
        }
        let (home, is_away) = (self.shared[&HOME].borrow(), self.moves.memory.is_some());
        if by.0 == HOME {
            return is_away || home.behind.contains(&(by.1, 0));
        }
        let is_beside = self.row(by, inode).others & opened::OTHERS_WRITE != 0;
        is_beside && (is_away || home.agreed.get(&0) != Some(&self.moves.epoch))
    }
}

#[test]
fn no_read_returns_old_data_when_a_service_is_back_from_another_daemon() {
    let first = crate::sim::simulation::seed(1);
    let (mut all, mut returns) = ([0; 4], 0);
    for seed in first..first + crate::sim::simulation::rounds(20) {
        let counts = play(seed, |game| {
            game.play_moving(80_000);
            returns += game.moves.returns;
        });
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    let [from_pages, cached, mapped, written] = all;
    eprintln!(
        "{returns} returns, {from_pages} reads from pages, {cached} kept over an open, {mapped} maps, \
         {written} writes"
    );
    assert!(
        returns > 20 && from_pages > 1000 && cached > 20 && mapped > 100 && written > 1000,
        "much of everything"
    );
}
