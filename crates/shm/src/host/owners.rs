//! Owners of locks, as numbers that are unique in the instance and that both sides compute alike:
//! the client when it takes a lock, the daemon when it releases those of a killed process.
//!
//!   63..48 host, 47 kind (1: an open file), 46..29 entry, 28..0 generation of the entry

use core::sync::atomic::Ordering::SeqCst;

use super::{HostSegment, OfdIndex, ProcessIndex, Tenant, Vnode};

/// Bit of a file's marks: some process of this host may hold a lock on it.
pub const LOCKED_BY_PROCESS: u64 = 1;
/// The same for an open file.
pub const LOCKED_BY_OPEN_FILE: u64 = 2;

const GENERATION_BITS: u32 = 29;
const ENTRY_BITS: u32 = 18;
const OPEN_FILE: u64 = 1 << 47;

const _: () = assert!(super::files::FILE_COUNT <= 1 << ENTRY_BITS);
const _: () = assert!(super::processes::PROCESS_COUNT <= 1 << ENTRY_BITS);

const fn owner(host: u16, entry: u32, generation: u32) -> u64 {
    let entry = (entry & ((1 << ENTRY_BITS) - 1)) as u64;
    let generation = (generation & ((1 << GENERATION_BITS) - 1)) as u64;
    (host as u64) << 48 | entry << GENERATION_BITS | generation
}

impl Vnode {
    /// Records that there may be locks of such owners; called before one is requested.
    pub fn set_locked(&self, by: u64) {
        self.marks.fetch_or(by, SeqCst);
    }

    /// False if no such owner requested a lock since the file is open on this host.
    #[must_use]
    pub fn may_be_locked(&self, by: u64) -> bool {
        self.marks.load(SeqCst) & by != 0
    }
}

impl HostSegment {
    /// Owner of the locks that a process takes by `F_SETLK`.
    #[must_use]
    pub fn owner_of_process(&self, host: u16, process: ProcessIndex) -> u64 {
        owner(host, process.0, self.process_generation(process))
    }

    /// The same, for a table that was read earlier.
    #[must_use]
    pub fn owner_of_tenant(&self, host: u16, tenant: Tenant) -> u64 {
        owner(host, tenant.process.0, tenant.generation)
    }

    /// Owner of the locks of an open file description (`F_OFD_SETLK`, `flock`).
    #[must_use]
    pub fn owner_of_file(&self, host: u16, file: OfdIndex) -> u64 {
        use core::sync::atomic::Ordering::Relaxed;
        let generation = self.file(file).map_or(0, |file| file.generation.load(Relaxed));
        owner(host, file.0, generation) | OPEN_FILE
    }
}
