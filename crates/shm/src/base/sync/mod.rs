//! The primitives under the protocols of this crate: atomic words, raw copies, sleeping, yielding,
//! time, and whether a thread is alive. `real` has the plain versions; with the feature
//! `interleavings`, `model` puts a scheduling point before each operation, so that
//! tests/interleavings can try the orders in which threads may run, and deaths between any two
//! steps.

#[cfg(not(feature = "interleavings"))]
mod thread;
#[cfg(not(feature = "interleavings"))]
pub use thread::{thread_id, trust_libc};

#[cfg(not(feature = "interleavings"))]
mod stream;
#[cfg(not(feature = "interleavings"))]
pub(crate) use stream::copy_past_cache;

#[cfg(not(feature = "interleavings"))]
mod ended;
#[cfg(not(feature = "interleavings"))]
pub use ended::is_dead;

#[cfg(not(feature = "interleavings"))]
mod real;
#[cfg(not(feature = "interleavings"))]
pub use real::*;

#[cfg(feature = "interleavings")]
pub mod model;
#[cfg(feature = "interleavings")]
pub use model::*;

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Woken, or the word had changed already.
    Changed,
    /// Timed out.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}
