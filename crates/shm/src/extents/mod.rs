//! Extents as a process that maps the target reads and writes them: where an extent is (`table`),
//! how a client finds it without a message (`hints`), its bytes (`arena`), what keeps it in place
//! during a copy (`hazards`), and the copy itself (`io`, of which `at_once` is the part that most copies
//! need; `ssd` and `sums` with checks of the SSD).

mod arena;
mod at_once;
mod further;
mod hazards;
mod hints;
mod io;
mod ssd;
mod sums;
mod table;
mod windows;

pub use arena::Arena;
pub use at_once::MemoryTarget;
pub use hazards::{HAZARD_COUNT, HAZARDS_BYTES, HazardGuard, HazardPointers, SessionHazards};
pub use hints::{ExtentHints, extent_hints_bytes};
pub use io::{Copied, Moved, Target};
pub use ssd::{check_extent, set_write_limit};
pub use sums::{DamageReport, PageSums, SUM_PAGE_BYTES, page_sums_bytes, page_sums_of};
pub use table::*;
pub use windows::reset_windows_after_fork;
