//! Results of a run: values with their medians, the performance targets, the reference that later
//! runs are compared with, and the history of runs as lines of JSON and as a plot.

pub(crate) mod history;
pub(crate) mod plot;
pub(crate) mod reference;
pub(crate) mod report;
pub(crate) mod targets;
