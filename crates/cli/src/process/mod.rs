//! Processes: checking a program before it runs, starting daemons, identifying and ending them,
//! running commands on other hosts, querying a daemon over its socket, the reason for its
//! end, and the progress line.

pub(crate) mod ending;

pub(crate) mod identity;

pub(crate) mod spawn;

pub(crate) mod ssh;

pub(crate) mod slurm;

pub(crate) mod program;

pub(crate) mod query;

pub(crate) mod progress;

pub(crate) use identity::{ProcessIdentity, end, limit, wait_or_end};
