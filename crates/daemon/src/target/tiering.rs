//! Where extents are: moves between memory, SSD and the memory of other nodes, and how much memory
//! there is. The policies are in `data::tiering`; here are their timers, and the threads that move
//! bytes and measure.
//!
//! Reading order: `demotion`, `promotion`, `watermarks`, `eviction`, `spill` (memory of other nodes),
//! `lending` and `node_memory` (memory lent to this daemon).

pub(crate) mod demotion;
pub(crate) mod eviction;
pub(crate) mod lending;
pub(crate) mod node_memory;
pub(crate) mod promotion;
pub(crate) mod spill;
pub(crate) mod watermarks;
