//! x86_64: the frame that a stub passes to the handler, and the modules that create and use it.
//!
//! A stub preserves what the kernel preserves across `syscall`: everything but rax, rcx and r11.
//! rcx and r11 are therefore free in stubs, and carry the verdict and addresses.

pub mod raw;

pub mod stub;

pub mod enter;

mod memory;

mod begin;

pub mod signal;

pub use begin::begin;
pub use memory::text_length;
pub use signal::{Interrupted, call_waiting, libc_thread, signal_entry};

#[cfg(target_feature = "avx")]
compile_error!(
    "preload must be built without AVX (no -C target-cpu=native): stubs save only xmm registers, \
     so the handler must not write the upper halves"
);

/// A system call as the application made it, on the application's stack.
///
/// `enter` depends on the layout. Only `result` is read back: a handler that wants other arguments
/// makes the call itself and answers `Done`, because the kernel preserves argument registers and
/// the code after the call relies on that.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    /// On entry the system call's number (rax); after `Done`, and in `after`, the result.
    pub rax: u64,
    /// rdi, rsi, rdx, r10, r8, r9: the six arguments in the kernel's order.
    pub args: [u64; 6],
    /// Condition flags in the form of `lahf` and `seto` (unspecified in `after`).
    pub flags: u64,
    /// The slot of `call_stack`, then the mask to restore.
    slot: u64,
    /// The verdict, while signals are delivered; the number, in `after`.
    kept: u64,
    /// xmm0 to xmm15. Upper halves are not saved, because no instruction of the handler writes
    /// them.
    vectors: [[u64; 2]; 16],
}

/// Size of the frame; `enter` reserves it on the stack.
pub const FRAME_BYTES: usize = 336;
const _: () = assert!(size_of::<Frame>() == FRAME_BYTES);
const _: () = assert!(core::mem::offset_of!(Frame, slot) == 64);
const _: () = assert!(core::mem::offset_of!(Frame, vectors) == 80);

impl Frame {
    /// A frame built by hand, for tests of handlers.
    #[must_use]
    pub fn new(number: u64, args: [u64; 6]) -> Self {
        Self { rax: number, args, flags: 0, slot: 0, kept: 0, vectors: [[0; 2]; 16] }
    }

    /// The system call's number, before a verdict.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u64 {
        self.rax
    }
}
