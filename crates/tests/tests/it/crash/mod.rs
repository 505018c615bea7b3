//! Killed processes, instances that go away, and bad input.

mod bad_input;
mod both_ways;
mod checksums;
mod cut_off;
mod disk_full;
mod identity;
mod instance_gone;
mod namespaces;
mod orphans;
mod processes;
mod salvage;
mod shared_memory;
mod starter;
