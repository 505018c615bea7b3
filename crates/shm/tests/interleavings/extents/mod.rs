//! Extents under concurrent reads, writes and moves.

mod clean;
mod demotion;
mod hazards;
mod pages;
mod preallocated;
