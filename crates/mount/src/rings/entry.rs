//! The memory of an entry: headers and payload of one request at a time, lent to the kernel between a
//! command and its completion, and ours otherwise. It is never given back to the allocator: the kernel
//! may hold it until the ring is gone.
#![allow(unsafe_code, reason = "memory that the kernel writes")]

use fuse::ring::{HEADERS_BYTES, PAYLOAD_BYTES};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;

/// Memory for one request.
pub(super) struct Entry {
    /// Whose queue it is lent to.
    pub(super) queue: u16,
    /// By which number the request in it is committed.
    pub(super) commit: u64,
    /// It is neither with the kernel nor answered: somebody waits.
    pub(super) is_kept: bool,
    headers: NonNull<u8>,
    payload: NonNull<u8>,
    /// The two, as the kernel is told.
    parts: &'static [libc::iovec; 2],
}

impl Entry {
    pub(super) fn new(queue: u16) -> Entry {
        // Zeros that the system has not made yet: only what is used becomes memory.
        let all = vec![0; PAGE_BYTES + PAGE_BYTES + PAYLOAD_BYTES].leak();
        let begin = all.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        let (headers, payload) = all.split_at_mut(begin + PAGE_BYTES);
        let headers = headers.get_mut(begin..).unwrap_or_default();
        let parts = Box::leak(Box::new([
            libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: HEADERS_BYTES },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: PAYLOAD_BYTES },
        ]));
        let headers = NonNull::from(headers).cast();
        let payload = NonNull::from(payload).cast();
        Entry { queue, commit: 0, is_kept: false, headers, payload, parts }
    }

    /// Where its parts are: an address for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.parts.as_ptr().expose_provenance() as u64
    }

    /// Headers and payload.
    ///
    /// # Safety
    /// The entry is not with the kernel as long as the two are used.
    pub(super) unsafe fn parts(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: each was a slice of at least that length, of memory that is never freed; they do not
        // overlap, and nobody else looks at them, as the caller says. WHY: what the kernel may write at
        // other times can not be held as slices all the time.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.headers.as_ptr(), HEADERS_BYTES),
                std::slice::from_raw_parts_mut(self.payload.as_ptr(), PAYLOAD_BYTES),
            )
        }
    }
}
