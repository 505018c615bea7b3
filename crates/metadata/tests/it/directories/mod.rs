//! Directories over several services: wide ones, moves of one below another, and leases.

mod chains;
mod leases;
mod wide;
