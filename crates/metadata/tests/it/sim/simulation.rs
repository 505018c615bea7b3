//! The simulations, and the length of each.

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
        Err(_) => default,
    }
}

/// `TEST_SEED` where it is set. A core depends on cores only, so not on `testkit`.
pub(crate) fn seed(usual: u64) -> u64 {
    variable("TEST_SEED", usual)
}

/// The usual number times `TEST_SCALE`, at least one.
pub(crate) fn rounds(usual: u64) -> u64 {
    ((usual as f64 * variable("TEST_SCALE", 1.0)) as u64).max(1)
}

/// A simulation with its length.
pub(crate) struct Simulation {
    name: &'static str,
    /// Number of seeds; `TEST_SEED` is the first, and `TEST_SCALE` multiplies the number.
    seeds: u64,
    /// Least number of steps of services over all seeds.
    steps_min: u64,
}

pub(crate) const LOCKS: Simulation = simulation("locks", 32, 250_000);
pub(crate) const RENAMES: Simulation = simulation("renames", 36, 330_000);
pub(crate) const MOUNTS: Simulation = simulation("mounts", 40, 35_000);
pub(crate) const LEASES: Simulation = simulation("leases", 160, 125_000);
pub(crate) const SIZES: Simulation = simulation("sizes", 1, 60_000);
pub(crate) const QUOTAS: Simulation = simulation("quotas", 12, 40_000);

const fn simulation(name: &'static str, seeds: u64, steps_min: u64) -> Simulation {
    Simulation { name, seeds, steps_min }
}

impl Simulation {
    /// Runs it with one seed after the other; `play` returns the steps of services. Returns the
    /// number of seeds.
    ///
    /// # Panics
    /// If there were too few steps.
    pub(crate) fn run(&self, mut play: impl FnMut(u64) -> u64) -> u64 {
        let (first, count) = (seed(0), rounds(self.seeds));
        let steps: u64 = (first..first + count)
            .map(|seed| {
                println!("TEST_SEED={seed}");
                play(seed)
            })
            .sum();
        println!("{}: {steps} steps", self.name);
        let is_less = count >= self.seeds && steps < self.steps_min;
        assert!(!is_less, "{}: {steps} steps, and {} are to be", self.name, self.steps_min);
        count
    }
}
