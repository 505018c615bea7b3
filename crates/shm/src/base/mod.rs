//! The foundation of every protocol of this crate: mappings of shared memory, atomics that the
//! model checker can step through, waiting, queues, signals and system calls. No protocol lives here.

#[cfg(feature = "interleavings")]
pub mod sync;
#[cfg(not(feature = "interleavings"))]
pub(crate) mod sync;

pub mod segment;

pub mod wait;

pub mod signals;

pub mod faults;

pub mod once;

pub(crate) mod kept;

pub(crate) mod ticket_queue;

pub mod scratch;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod raw;
