//! Real programs, preloaded, on mounts, and both at once.

mod accelerated;
mod address_space;
mod mounted;
mod readme;
mod reported;
mod suites;
mod ways;
