//! Raw system calls, by instruction, for calls that no crate in use offers and for `preload`, which
//! must not go through libc.
//!
//! libc's wrappers will not do: they set errno, are cancellation points, and their call sites are
//! the ones that `preload` has rewritten, so a call through them would come back to `preload`.

use core::arch::asm;

/// Makes `callN`: a system call of N arguments.
macro_rules! calls {
    ($($name:ident($($arg:ident $reg:tt),*);)*) => {$(
        /// System call `number`. Returns the kernel's rax (negative: minus errno).
        ///
        /// # Safety
        /// The arguments meet the kernel's demands on this call, and memory that it writes is the
        /// caller's.
        #[inline(always)]
        #[must_use]
        // SAFETY: the caller's promise, as above. WHY: what a call does depends on its number
        // alone.
        pub unsafe fn $name(number: i64, $($arg: u64),*) -> i64 {
            let result: i64;
            // SAFETY: the instruction clobbers rax, rcx and r11 only (declared); the effect of the
            // call itself is the caller's promise.
            // WHY: no safe way enters the kernel.
            unsafe {
                asm!("syscall", inlateout("rax") number => result, $(in($reg) $arg,)*
                     lateout("rcx") _, lateout("r11") _, options(nostack));
            }
            result
        }
    )*};
}

calls! {
    call0();
    call1(a "rdi");
    call2(a "rdi", b "rsi");
    call3(a "rdi", b "rsi", c "rdx");
    call4(a "rdi", b "rsi", c "rdx", d "r10");
    call5(a "rdi", b "rsi", c "rdx", d "r10", e "r8");
    call6(a "rdi", b "rsi", c "rdx", d "r10", e "r8", f "r9");
}
