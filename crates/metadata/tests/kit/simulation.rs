//! The simulations, and how long each of them is.

/// One of them.
pub(crate) struct Simulation {
    name: &'static str,
    /// How many seeds it plays; `SEED` is the first, and `SEEDS` changes how many.
    seeds: u64,
    /// Steps of services that these make at least.
    steps_min: u64,
}

pub(crate) const LOCKS: Simulation = simulation("locks", 128, 1_000_000);
pub(crate) const RENAMES: Simulation = simulation("renames", 108, 1_000_000);
pub(crate) const MOUNTS: Simulation = simulation("mounts", 40, 35_000);
pub(crate) const LEASES: Simulation = simulation("leases", 320, 250_000);
pub(crate) const SIZES: Simulation = simulation("sizes", 1, 60_000);
pub(crate) const QUOTAS: Simulation = simulation("quotas", 12, 40_000);

const fn simulation(name: &'static str, seeds: u64, steps_min: u64) -> Simulation {
    Simulation { name, seeds, steps_min }
}

impl Simulation {
    /// Plays it with one seed after the other; `play` says how many steps services made. Returns how many
    /// seeds that were.
    ///
    /// # Panics
    /// If there were fewer steps than are to be.
    pub(crate) fn run(&self, mut play: impl FnMut(u64) -> u64) -> u64 {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let (first, seeds) = (number("SEED").unwrap_or(0), number("SEEDS"));
        let count = seeds.unwrap_or(self.seeds);
        let steps: u64 = (first..first + count)
            .map(|seed| {
                println!("SEED={seed}");
                play(seed)
            })
            .sum();
        println!("{}: {steps} steps", self.name);
        let is_less = seeds.is_none() && steps < self.steps_min;
        assert!(!is_less, "{}: {steps} steps, and {} are to be", self.name, self.steps_min);
        count
    }
}
