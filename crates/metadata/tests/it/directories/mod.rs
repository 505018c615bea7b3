//! Directories over several services: wide ones, moves of one below another, leases, and copies of their
//! files.

mod chains;
mod copies;
mod leases;
mod wide;
mod widening;
