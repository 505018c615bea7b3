//! What both sides agree on at the start.

use wire::codec::Writer;

use crate::abi::{MINOR, MINOR_MIN, capability};
use crate::request::Init;

/// Bytes of one transfer.
pub const TRANSFER_BYTES: u32 = 1 << 20;
const PAGE_BYTES: u32 = 4096;
/// Requests that nobody waits for, reading ahead for instance, at a time.
const BACKGROUND_MAX: u16 = 64;

/// What is used whenever the kernel has it.
const WANTED: u64 = capability::ASYNC_READ
    | capability::POSIX_LOCKS
    | capability::EXPORT_SUPPORT
    | capability::FLOCK_LOCKS
    | capability::ATOMIC_O_TRUNC
    | capability::BIG_WRITES
    | capability::DONT_MASK
    | capability::DO_READDIRPLUS
    | capability::READDIRPLUS_AUTO
    | capability::ASYNC_DIO
    | capability::PARALLEL_DIROPS
    | capability::POSIX_ACL
    | capability::ABORT_ERROR
    | capability::MAX_PAGES
    | capability::CACHE_SYMLINKS
    | capability::EXPLICIT_INVAL_DATA
    | capability::HANDLE_KILLPRIV_V2
    | capability::SETXATTR_EXT
    | capability::INIT_EXT
    | capability::DIRECT_IO_ALLOW_MMAP;

/// What a mount may use beside that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Requests by rings.
    pub rings: bool,
    /// Reads and writes that pass through to a file of the kernel's.
    pub passthrough: bool,
}

/// The kernel is too old, or speaks another version altogether.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld {
    /// The kernel's version.
    pub major: u32,
    /// And this.
    pub minor: u32,
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreed {
    /// Version 7 and this.
    pub minor: u32,
    /// Bits of `capability`.
    pub capabilities: u64,
    max_readahead: u32,
}

impl Agreed {
    /// What comes of the kernel's first request.
    ///
    /// # Errors
    /// `TooOld`.
    pub fn of(init: &Init, offer: Offer) -> Result<Agreed, TooOld> {
        if init.major != 7 || init.minor < MINOR_MIN {
            return Err(TooOld { major: init.major, minor: init.minor });
        }
        let mut wanted = WANTED;
        if offer.rings {
            wanted |= capability::OVER_IO_URING;
        }
        if offer.passthrough {
            wanted |= capability::PASSTHROUGH;
        }
        Ok(Agreed {
            minor: init.minor.min(MINOR),
            capabilities: init.capabilities & wanted,
            max_readahead: init.max_readahead.max(TRANSFER_BYTES),
        })
    }

    /// True if all of `capability` was agreed on.
    #[must_use]
    pub const fn has(&self, capability: u64) -> bool {
        self.capabilities & capability == capability
    }

    /// Writes the answer to `INIT`.
    pub fn write(&self, to: &mut Writer<'_>) {
        to.u32(7);
        to.u32(self.minor);
        to.u32(self.max_readahead);
        to.u32(self.capabilities as u32);
        to.u16(BACKGROUND_MAX);
        to.u16(BACKGROUND_MAX / 4 * 3);
        to.u32(TRANSFER_BYTES);
        to.u32(1);
        to.u16((TRANSFER_BYTES / PAGE_BYTES) as u16);
        to.u16(0);
        to.u32((self.capabilities >> 32) as u32);
        // Depth of file systems below that reads may pass through to; then what is not used.
        to.u32(u32::from(self.has(capability::PASSTHROUGH)));
        to.raw(&[0; 24]);
    }
}
