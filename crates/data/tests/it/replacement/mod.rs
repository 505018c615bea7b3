//! Replacement policies on traces: how many reads find their extent in memory, and how much was
//! moved for that. `cargo test -p data --test it replacement -- --nocapture` prints the table of
//! docs/decisions. Nothing here is timed: the counts are the same on every machine.
//!
//! Reading order: `trace` (what programs do), `replay` (a memory that is filled and emptied as a
//! target's is), `policies` (the policies compared with `data::tiering::clock::ClockPolicy`).

mod policies;

mod replay;

mod trace;

use policies::{ByFiles, Frequency, Marked, Order, S3Fifo, TracedPolicy};
use replay::{Cost, replay};
use trace::{Step, TRACES};

/// A policy's name and its constructor.
type Entrant = (&'static str, fn() -> Box<dyn TracedPolicy>);

const ENTRANTS: [Entrant; 7] = [
    ("waves", || Box::new(Marked::new(false))),
    ("waves, open files last", || Box::new(Marked::new(true))),
    ("LRU", || Box::<Order>::default()),
    ("LFU", || Box::<Frequency>::default()),
    ("S3-FIFO", || Box::<S3Fifo>::default()),
    ("ONFS", || Box::new(ByFiles::new(true))),
    ("ONFS without Tco/Toc", || Box::new(ByFiles::new(false))),
];

fn cost_of(entrant: &Entrant, steps: &[Step]) -> Cost {
    replay(entrant.1().as_mut(), steps)
}

/// Prints the table. The policy in use never turns a writer away, and of all reads at most one in
/// eight misses that would hit with the best of the others, which see each use.
#[test]
fn the_policy_in_use_is_close_to_the_best_on_every_trace() {
    for (name, trace) in TRACES {
        let steps = trace();
        let costs: Vec<Cost> = ENTRANTS.iter().map(|entrant| cost_of(entrant, &steps)).collect();
        println!("{name}: {} reads, {} extents allocated", costs[0].reads, costs[0].made);
        for ((name, _), cost) in ENTRANTS.iter().zip(&costs) {
            let hits = 100.0 * (1.0 - cost.missed as f64 / cost.reads as f64);
            println!(
                "  {name}: {hits:.1} % of the reads, {} demoted, {} promoted, {} turned away",
                cost.demoted, cost.promoted, cost.refused
            );
        }
        let best = costs.iter().map(|cost| cost.missed).min().unwrap_or(0);
        let used = costs[0];
        assert_eq!(used.refused, 0, "{name}: a writer was turned away");
        assert!(used.missed <= best + used.reads / 8, "{name}: {used:?}, the best {best}");
    }
}
