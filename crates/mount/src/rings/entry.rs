//! The memory of a ring entry: headers and payload of one request at a time. The kernel owns it
//! between a command and its completion, this program otherwise. It is never freed, because the
//! kernel may use it until the ring is gone.
#![expect(unsafe_code, reason = "memory that the kernel writes")]

use fuse::ring::{HEADERS_BYTES, PAYLOAD_BYTES};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;

/// Memory of one entry.
pub(super) struct Entry {
    /// The queue that it belongs to.
    pub(super) queue: u16,
    /// Number by which the request in it is committed.
    pub(super) commit: u64,
    /// Its request waits: the entry is not with the kernel, and the request is not answered.
    pub(super) is_waiting: bool,
    headers: NonNull<u8>,
    payload: NonNull<u8>,
    /// Headers and payload, in the form that the kernel takes.
    parts: &'static [libc::iovec; 2],
}

impl Entry {
    pub(super) fn new(queue: u16) -> Entry {
        // Zeroed lazily by the system: only pages that are used occupy memory.
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
        Entry { queue, commit: 0, is_waiting: false, headers, payload, parts }
    }

    /// Address of `parts`, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.parts.as_ptr().expose_provenance() as u64
    }

    /// Headers and payload.
    ///
    /// # Safety
    /// The kernel must not own the entry while the slices are in use.
    pub(super) unsafe fn parts(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: each was a slice of at least that length, of memory that is never freed; they do
        // not overlap, and nothing else accesses them, as the caller guarantees.
        // WHY: memory that the kernel writes at other times cannot be held as slices permanently.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.headers.as_ptr(), HEADERS_BYTES),
                std::slice::from_raw_parts_mut(self.payload.as_ptr(), PAYLOAD_BYTES),
            )
        }
    }
}
