//! Memory, SSD and other nodes' memory: demotion, promotion, spill, admission, pinning, lending.

mod demotion;
mod disks;
mod fairness;
mod full_tiers;
mod lending;
mod lending_hosts;
mod pinning;
mod preallocation;
mod promotion;
mod removals;
mod removed_space;
mod small_files;
mod spill;
mod waiting_writers;
