//! Coherence of kernel caches behind mounts: names and attributes (`names`, `owners`), pages of files
//! (`pages`). Simulated with several hosts.

mod names;
mod owners;
mod page_orders;
mod pages;
