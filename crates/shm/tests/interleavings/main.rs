//! The protocols under a scheduler that tries orders of steps, and deaths between any two of them:
//! see `shm::sync::model`, also for the limits of this (it cannot show orders weaker than
//! sequentially consistent). Run by `make test`.

mod activity;
mod bounce;
mod extents;
mod host;
mod index;
mod leases;
mod local_ops;
mod open_sequence;
mod releases;
mod requests;
mod slots;
mod support;
