//! Runs in which messages are changed on their way, and what voters stored before they start again:
//! whatever the bytes, a node returns.

use super::{Host, What, World};
use cluster::node::{Node, Settings};
use testkit::Random;
use testkit::world::{MILLI, SECOND};
use wire::DaemonIndex;

/// The numbers of a message of the consensus begin behind the two kinds.
const NUMBERS_START: usize = 2;
/// Bytes of the membership are long: changes there alone would reach nothing else.
const HEAD_BYTES: usize = 100;

/// A number at which sums and comparisons go wrong.
fn odd_number(random: &mut Random, now: u64) -> u64 {
    match random.uniform(8) {
        0 => 0,
        1 => u64::MAX - random.uniform(3),
        2 => 1 << random.uniform(64),
        3 => random.uniform(9),
        4 => now.wrapping_sub(1 + random.uniform(2)),
        5 | 6 => now.wrapping_add(1 + random.uniform(2)),
        _ => random.next(),
    }
}

fn change(bytes: &mut Vec<u8>, start: usize, random: &mut Random) {
    for _ in 0..1 + random.uniform(3) {
        let length = if random.uniform(2) == 0 { bytes.len() } else { bytes.len().min(HEAD_BYTES) };
        match random.uniform(4) {
            // Mostly numbers in their places.
            0..=2 if length >= start + 8 => {
                let places = (length - start - 8) as u64;
                let place = random.uniform(places + 1) as usize;
                let is_aligned = random.uniform(3) > 0;
                let at = start + if is_aligned { place / 8 * 8 } else { place };
                let field: &mut [u8] = &mut bytes[at..at + 8];
                let now = u64::from_le_bytes(field.try_into().expect("8 bytes"));
                field.copy_from_slice(&odd_number(random, now).to_le_bytes());
            }
            _ if length > 0 => {
                let at = random.uniform(length as u64) as usize;
                bytes[at] = if at < start { random.uniform(24) as u8 } else { random.next() as u8 };
            }
            _ => {}
        }
    }
    if random.uniform(8) == 0 {
        bytes.truncate(bytes.len() - random.uniform(1 + bytes.len() as u64 / 9) as usize);
    }
}

impl World {
    fn on_their_way(&self) -> Vec<(u16, u16, Vec<u8>)> {
        let message = |what: &What| match what {
            What::Message { from, to, bytes } => Some((*from, *to, bytes.clone())),
            _ => None,
        };
        self.events.iter().filter_map(message).collect()
    }

    /// Runs for a while, and then delivers changed messages between those that are sent.
    pub(crate) fn run_with_changed_messages(mut self, count: u64) {
        self.until(3 * SECOND);
        self.is_honest = false;
        for _ in 0..count {
            self.until(self.events.now() + 25 * MILLI);
            let sent = self.on_their_way();
            for (from, to, bytes) in &sent {
                let other = &sent[self.random.uniform(sent.len() as u64) as usize].2;
                let mut bytes = bytes.clone();
                // Messages of others, with the names of these two.
                if (bytes.first(), other.first()) == (Some(&0), Some(&0)) {
                    bytes =
                        [&other[..NUMBERS_START], &bytes[NUMBERS_START..18], &other[18..]].concat();
                }
                change(&mut bytes, NUMBERS_START, &mut self.random);
                let now = self.clock(*to);
                self.with(*to, |node, out| {
                    // Refused or not: it returns.
                    let _ = node.receive(DaemonIndex(*from), &bytes, now, out);
                });
            }
            let index = self.random.uniform(self.count().into()) as u16;
            self.start_with_changed_files(index);
        }
    }

    /// Another process of the host starts from changed files of the voter, or refuses them.
    fn start_with_changed_files(&mut self, index: u16) {
        let now = self.clock(index);
        let host: &Host = &self.hosts[usize::from(index)];
        let Some((mut base, mut tail)) = host.disk.consensus.clone() else { return };
        let settings = Settings {
            own: DaemonIndex(index),
            incarnation: host.disk.incarnation + 1,
            domain: 0,
            began: 1,
            voters: super::voters(&self.setup),
            seed: 1,
        };
        // The numbers of both begin behind the daemon of the name.
        if self.random.uniform(2) == 0 {
            change(&mut base, 2, &mut self.random);
        } else {
            change(&mut tail, 2, &mut self.random);
        }
        let first = super::initial(&self.setup);
        let Ok(mut node) = Node::restore(settings, Some((&base, &tail)), first, now) else {
            return;
        };
        let mut out = Vec::new();
        node.start(now, &mut out);
        for tick in 0..40 {
            node.tick(now + tick * super::TICK, &mut out);
        }
        for (from, _, bytes) in self.on_their_way().iter().filter(|it| it.1 == index) {
            let _ = node.receive(DaemonIndex(*from), bytes, now + SECOND, &mut out);
        }
    }
}
