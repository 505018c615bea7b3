//! Negotiation at the start.

use wire::codec::Writer;

use crate::abi::{MINOR, MINOR_MIN, capability};
use crate::request::Init;

/// Maximum length of one transfer.
pub const TRANSFER_BYTES: u32 = 1 << 20;
const PAGE_BYTES: u32 = 4096;
/// Maximum number of concurrent requests without a waiter, such as readahead.
const BACKGROUND_MAX: u16 = 64;

/// Capabilities that are used whenever the kernel has them. Not `ATOMIC_O_TRUNC`, which saves a request
/// of an open that truncates: without a write-back cache the kernel sends that open while it writes
/// back what mappings stored before, and these bytes reappear in the file. A truncation of its own
/// waits for them. It also fails for a file that is being executed before any byte is lost.
const CAPABILITIES: u64 = capability::ASYNC_READ
    | capability::POSIX_LOCKS
    | capability::EXPORT_SUPPORT
    | capability::FLOCK_LOCKS
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

/// Capabilities that a mount may use beside those.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Requests by rings.
    pub rings: bool,
    /// Reads and writes that pass through to another file inside the kernel.
    pub passthrough: bool,
}

/// The kernel is too old, or has another major version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld {
    /// The kernel's version.
    pub major: u32,
    /// The kernel's minor version.
    pub minor: u32,
}

/// Result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreed {
    /// The minor version of version 7.
    pub minor: u32,
    /// Bits of `capability`.
    pub capabilities: u64,
    max_readahead: u32,
}

impl Agreed {
    /// Negotiates on the kernel's first request.
    ///
    /// # Errors
    /// `TooOld`.
    pub fn of(init: &Init, offer: Offer) -> Result<Agreed, TooOld> {
        if init.major != 7 || init.minor < MINOR_MIN {
            return Err(TooOld { major: init.major, minor: init.minor });
        }
        let mut mask = CAPABILITIES;
        if offer.rings {
            mask |= capability::OVER_IO_URING;
        }
        if offer.passthrough {
            mask |= capability::PASSTHROUGH;
        }
        Ok(Agreed {
            minor: init.minor.min(MINOR),
            capabilities: init.capabilities & mask,
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
        // Depth of stacked file systems that reads may pass through to; then unused fields.
        to.u32(u32::from(self.has(capability::PASSTHROUGH)));
        to.raw(&[0; 24]);
    }
}
