//! Tools that all suites share: worker processes that start each phase together (`workers`), loads that
//! go on (`loads`), one group of tests on one file system (`run`), other programs, waiting for a quiet
//! machine, and Ctrl-C.
//!
//! `runner` decides which suite runs when.

pub(crate) mod interrupt;
pub(crate) mod loads;
pub(crate) mod programs;
pub(crate) mod quiet;
pub(crate) mod run;
pub(crate) mod workers;
