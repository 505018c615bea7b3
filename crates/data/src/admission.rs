//! Requests on their way in: `work` is a request after parsing, `job` is one that is not answered
//! yet, `queue` holds those that wait for space, `bounded` those whose jobs have reached their bounds on
//! dirty bytes, `stop` says why one gets no extents, and `job_shares` whose work begins next.
//!
//! All of it is data: `target::shortage` decides which request waits, proceeds, or is refused.

pub(crate) mod work;

pub(crate) mod job;

pub(crate) mod stop;

pub(crate) mod job_shares;

pub(crate) mod bounded;

pub mod queue;
