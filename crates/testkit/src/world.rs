//! Virtual worlds: what simulations of daemons have in common. Time passes from event to event, each
//! host has a clock of its own, messages are late or lost, and a plan of faults follows from the seed.
//! A world of one crate adds its processes, and what has to hold.

mod campaign;
mod clock;
mod events;
mod network;
mod plan;

pub use campaign::campaign;
pub use clock::Clock;
pub use events::Events;
pub use network::Network;
pub use plan::{HostFault, Plan};

/// Nanoseconds of a millisecond.
pub const MILLI: i64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: i64 = 1_000 * MILLI;
