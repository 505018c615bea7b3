//! The clock of a host: it differs from the others' by up to 1000 s, and runs up to a fiftieth too fast
//! or too slow.

use super::SECOND;
use crate::Random;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: i64,
    /// Parts per thousand that it is fast.
    fast: i64,
}

impl Clock {
    /// Any clock.
    #[must_use]
    pub const fn new(random: &mut Random) -> Clock {
        let offset = random.uniform(1000 * SECOND as u64).cast_signed();
        Clock { offset, fast: random.uniform(40).cast_signed() - 20 }
    }

    /// Its time at a time of the world, both in nanoseconds.
    #[must_use]
    pub const fn at(&self, now: i64) -> i64 {
        self.offset + now + now / 1000 * self.fast
    }
}

#[test]
fn clocks_differ_and_drift_within_their_bounds() {
    let mut random = Random::new(1);
    let mut fastest = 0;
    for _ in 0..1000 {
        let clock = Clock::new(&mut random);
        let (start, passed) = (clock.at(0), clock.at(1000 * SECOND) - clock.at(0));
        assert!((0..1000 * SECOND).contains(&start));
        assert!((980 * SECOND..1020 * SECOND).contains(&passed), "{passed}");
        fastest = passed.max(fastest);
    }
    assert!(fastest > 1015 * SECOND);
}
