//! The number of the calling thread, without a system call where the C library is known to keep it.
//!
//! The system call costs 60 to 160 ns, and a read of 8 KiB takes a microsecond. The C library keeps
//! the number in the thread's control block at an undocumented offset, so it is trusted only after
//! it was compared with the kernel's, once in each process (`trust_libc`). Every caller of this
//! crate came out of the C library, which needs that block itself. A child of vfork shares it:
//! until exec it goes by the number of its parent, which is suspended.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// 1: the number in the control block is the kernel's.
static IS_TRUSTED: AtomicU32 = AtomicU32::new(0);

fn by_kernel() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// The number as glibc keeps it: `struct pthread.tid`, at this offset since 2.4.
#[cfg(target_arch = "x86_64")]
fn by_libc() -> u32 {
    let number: u32;
    // WHY: the control block is reached by the thread's segment register alone.
    // SAFETY: a load of four bytes; the caller came out of the C library, whose control block
    // begins where the register points and is more than 0x2d4 bytes long. Nothing is changed.
    unsafe {
        core::arch::asm!(
            "mov {number:e}, dword ptr fs:[0x2d0]",
            number = out(reg) number,
            options(nostack, readonly, preserves_flags),
        );
    }
    number
}

#[cfg(not(target_arch = "x86_64"))]
const fn by_libc() -> u32 {
    0
}

/// Compares the C library's number with the kernel's; from then on the former is used if they
/// agree. Must be called by a thread that the C library made.
pub fn trust_libc() {
    IS_TRUSTED.store(u32::from(by_libc() == by_kernel()), Relaxed);
}

/// The calling thread's number, as stored in owner words. Never zero.
#[must_use]
#[inline]
pub fn thread_id() -> u32 {
    if IS_TRUSTED.load(Relaxed) != 0 {
        let number = by_libc();
        if number != 0 {
            return number;
        }
    }
    by_kernel()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_the_number_that_the_kernel_knows() {
        trust_libc();
        let threads = [(); 8].map(|()| std::thread::spawn(|| (thread_id(), by_kernel())));
        for thread in threads {
            let (ours, kernels) = thread.join().expect("no panic");
            assert_eq!(ours, kernels);
        }
        assert_eq!(thread_id(), by_kernel());
    }
}
