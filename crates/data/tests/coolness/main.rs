//! Policies of coolness on traces: how many reads find their piece in memory, and how much was moved for
//! it. `make coolness` prints the table of ARCHITECTURE.md. Nothing here is timed: the counts are the
//! same on every machine.
//!
//! Reading order: `trace` (what programs do), `replay` (a memory that fills and is emptied as a target's
//! is), `policies` (what is compared with `data::coolness::Waves`).

mod policies;

mod replay;

mod trace;

use policies::{ByFiles, Frequency, Marked, Order, S3Fifo, Teller};
use replay::{Cost, replay};
use trace::{Step, TRACES};

/// A policy's name and how it is made.
type Entrant = (&'static str, fn() -> Box<dyn Teller>);

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

/// The table. No writer is ever turned away by the policy that is used, and of all reads no more than one
/// in eight finds its piece gone that the best of the others, which are told of each use, would have.
#[test]
fn the_policy_that_is_used_is_near_the_best_on_every_trace() {
    for (name, trace) in TRACES {
        let steps = trace();
        let costs: Vec<Cost> = ENTRANTS.iter().map(|entrant| cost_of(entrant, &steps)).collect();
        println!("{name}: {} reads, {} pieces made", costs[0].reads, costs[0].made);
        for ((name, _), cost) in ENTRANTS.iter().zip(&costs) {
            let hits = 100.0 * (1.0 - cost.missed as f64 / cost.reads as f64);
            println!(
                "  {name}: {hits:.1} % of the reads, {} sank, {} rose, {} turned away",
                cost.sank, cost.rose, cost.turned_away
            );
        }
        let best = costs.iter().map(|cost| cost.missed).min().unwrap_or(0);
        let used = costs[0];
        assert_eq!(used.turned_away, 0, "{name}: a writer was turned away");
        assert!(used.missed <= best + used.reads / 8, "{name}: {used:?}, the best {best}");
    }
}
