//! Coherence of kernel caches behind mounts: names and attributes (`names`), pages of files
//! (`pages`). Simulated with several hosts.

mod names;
mod page_orders;
mod pages;
