//! Test environments: Forebay instances that the benchmark starts, emulated hosts, and CPU quotas.

pub(crate) mod hosts;
pub(crate) mod instance;
pub(crate) mod quota;
