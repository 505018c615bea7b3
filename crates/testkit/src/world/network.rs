//! Links between hosts: cut in one direction or both, late, and lossy. A link keeps the order of its
//! messages, as a connection does.

use super::MILLI;
use crate::Random;
use std::collections::BTreeMap;

/// See the module. Hosts are numbers.
#[derive(Default)]
pub struct Network {
    cuts: Vec<(u16, u16)>,
    /// When the last message of a link arrives.
    arrivals: BTreeMap<(u16, u16), i64>,
    loss_percent: u64,
}

impl Network {
    /// From now on so many messages of a hundred are lost.
    pub const fn lose(&mut self, percent: u64) {
        self.loss_percent = percent;
    }

    /// Nothing passes from one to the other any more.
    pub fn cut(&mut self, from: u16, to: u16) {
        self.cuts.push((from, to));
    }

    /// Nothing passes between a host and the others, in either direction.
    pub fn cut_off(&mut self, host: u16, others: impl Iterator<Item = u16>) {
        for other in others {
            self.cuts.extend([(host, other), (other, host)]);
        }
    }

    /// Messages pass from one to the other again, if only this link was cut.
    pub fn mend(&mut self, from: u16, to: u16) {
        self.cuts.retain(|&cut| cut != (from, to));
    }

    /// All links work again.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Whether nothing passes from one to the other.
    #[must_use]
    pub fn is_cut(&self, from: u16, to: u16) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Whether the next message is lost, whatever the link.
    pub const fn loses(&self, random: &mut Random) -> bool {
        random.uniform(100) < self.loss_percent
    }

    /// After which time a message arrives that is sent now: less than a tenth of a millisecond more than
    /// `slowest`, unless one before it is later.
    pub fn delay(
        &mut self,
        (from, to): (u16, u16),
        now: i64,
        slowest: i64,
        random: &mut Random,
    ) -> i64 {
        let delay = MILLI / 10 + random.uniform(slowest.cast_unsigned()).cast_signed();
        let last = self.arrivals.entry((from, to)).or_default();
        *last = (now + delay).max(*last);
        *last - now
    }
}

#[test]
fn messages_of_a_link_keep_their_order() {
    let (mut network, mut random) = (Network::default(), Random::new(3));
    let (mut last, mut other) = (0, 0);
    for now in (0..1000).map(|it| it * MILLI / 10) {
        let arrival = now + network.delay((1, 2), now, 5 * MILLI, &mut random);
        assert!(arrival >= last && arrival >= now + MILLI / 10);
        last = arrival;
        let back = now + network.delay((2, 1), now, MILLI, &mut random);
        other += u64::from(back < last);
    }
    assert!(other > 0, "the way back is another one");
}

#[test]
fn cuts_have_a_direction_and_losses_a_share() {
    let (mut network, mut random) = (Network::default(), Random::new(3));
    network.cut(1, 2);
    network.cut_off(5, [1, 2].into_iter());
    let cut = [(1, 2), (5, 1), (2, 5)].map(|(from, to)| network.is_cut(from, to));
    assert_eq!((cut, network.is_cut(2, 1)), ([true; 3], false));
    network.mend(1, 2);
    assert!(!network.is_cut(1, 2) && network.is_cut(5, 2));
    network.heal();
    assert!(!network.is_cut(5, 2));
    assert!(!network.loses(&mut random));
    network.lose(20);
    let lost = (0..10_000).filter(|_| network.loses(&mut random)).count();
    assert!((1800..2200).contains(&lost), "{lost}");
}
