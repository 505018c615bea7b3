//! Faults of the world, and the effect of each.

use super::{CLIENT, CLIENTS, REGISTRY, What, World};
use crate::backing::OWNER;
use crate::clients::Client;
use crate::faults::Fault;
use crate::host::Host;
use replicas::change::Change;
use replicas::operation::Object;
use replicas::placement::UnitIndex;
use replicas::table::CopyState;
use testkit::world::{HostFault, MILLI};
use wire::DaemonIndex;

impl World {
    fn host_fault(&mut self, fault: HostFault) {
        match fault {
            HostFault::Kill(index) => self.stop(index),
            HostFault::Start(index) => {
                if self.hosts[usize::from(index)].node.is_none() {
                    self.start(index);
                }
            }
            HostFault::Cut(index) => {
                let peers = (0..self.setup.daemons).chain([REGISTRY, OWNER]);
                let clients = (0..CLIENTS as u16).map(|it| CLIENT + it);
                self.network.cut_off(index, peers.chain(clients));
            }
            HostFault::OneWay(from, to) => self.network.cut(from, to),
            HostFault::Heal => self.network.heal(),
            HostFault::Pause(index, length) => {
                self.hosts[usize::from(index)].paused_until = self.events.now() + length;
            }
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Host(fault) => self.host_fault(fault),
            Fault::Unheard(index) => self.network.cut_off(index, [REGISTRY].into_iter()),
            Fault::Slow(index, length) => {
                self.hosts[usize::from(index)].slow_until = self.events.now() + length;
            }
            Fault::Flip => self.flip(),
            Fault::KillClient(index) => {
                self.clients_begun += 1;
                self.clients[index] = Client::new(self.clients_begun);
            }
            Fault::Flood(client, index, length) => {
                for _ in 0..150 {
                    self.begin_any(client);
                }
                self.hosts[usize::from(index)].echoes_until = self.events.now() + length / 4;
            }
            Fault::Lose(first, second) => {
                let is_whole = self.is_whole();
                for index in [first, second].into_iter().filter(|_| is_whole) {
                    self.lose(index);
                }
            }
            Fault::RestartAndLose(first, second, length) if self.is_whole() => {
                // It is not missed.
                self.beat(first);
                self.stop(first);
                self.push(length, What::Fault(HostFault::Start(first).into()));
                // Perhaps after all know of the start, and before all copies were compared.
                let later = length + (50 + self.random.uniform(150).cast_signed()) * MILLI;
                self.push(later, What::Fault(Fault::LoseNow(second)));
            }
            Fault::RestartAndLose(..) => {}
            Fault::LoseNow(index) => self.lose(index),
            Fault::Lend(index, cells) => {
                self.lent.insert(index, cells);
            }
            Fault::Return(first, second) => {
                let before = self.registry.table.version;
                for index in [first, second] {
                    self.registry.apply(&Change::Leave { daemon: DaemonIndex(index) });
                }
                self.publish(before);
            }
        }
    }

    /// Whether every unit has its copies.
    fn is_whole(&self) -> bool {
        let mut units = self.registry.table.units();
        units.all(|(_, it)| it.in_sync() >= usize::from(it.goal))
    }

    fn lose(&mut self, index: u16) {
        self.stop(index);
        let host = &mut self.hosts[usize::from(index)];
        host.store.clear();
        host.kept.clear();
        host.is_empty = true;
    }

    fn flip(&mut self) {
        let index = self.random.uniform(self.setup.daemons.into()) as usize;
        let places: Vec<(UnitIndex, Object)> = self.hosts[index].store.keys().copied().collect();
        if places.is_empty() {
            return;
        }
        let place = places[self.random.uniform(places.len() as u64) as usize];
        let is_whole = |world: &World| {
            let unit = world.registry.table.unit(place.0).expect("a unit");
            unit.with(CopyState::InSync).count() >= usize::from(unit.goal)
        };
        let is_sound = |host: &Host| {
            host.store.get(&place).is_none_or(|cells| cells.iter().all(|it| !it.is_flipped))
        };
        if is_whole(self) && self.hosts.iter().all(is_sound) {
            let cells = self.hosts[index].store.get_mut(&place).expect("it is there");
            let count = cells.len() as u64;
            if count > 0 {
                cells[self.random.uniform(count) as usize].is_flipped = true;
            }
        }
    }
}
