//! Measurements that need more than worker processes in a directory: third-party benchmarks,
//! emulated hosts, instruction counts.
//!
//! Phases of worker processes are in `worker`; `runner` decides which suite runs when.
//!
//! Reading order: `external`, `io500`, `profile`; over several hosts `remote`, `socket` (its
//! plain-TCP reference), `scaling`, `two_mounts`, `shares`, `followers`, `replicas`, `growth`.

pub(crate) mod external;
pub(crate) mod followers;
pub(crate) mod growth;
pub(crate) mod io500;
pub(crate) mod profile;
pub(crate) mod remote;
pub(crate) mod replicas;
pub(crate) mod scaling;
pub(crate) mod shares;
pub(crate) mod socket;
pub(crate) mod two_mounts;
