//! Tests of the whole target: against plain models, by scripts, and single cases by subject.

mod bounded;

mod checks;
mod fairness;

mod fill;

mod migration;

mod model;

mod pinned;

mod rate;

mod script;

mod spill;
