//! The protocols under a scheduler that tries orders of steps and deaths between any two of them:
//! see `shm::sync::model`, also for what this can not show (orders weaker than sequentially
//! consistent). Run by `make interleavings`.

mod clean;
mod early;
mod granules;
mod host;
mod index;
mod leases;
mod pins;
mod posts;
mod releases;
mod requests;
mod sinking;
mod slots;
mod stage;
mod support;
mod turns;
