//! The jump into a program, as the kernel makes it after exec.

use core::arch::asm;

/// Jumps to `entry` with stack pointer `stack`, with registers as the ABI requires at a program's
/// start.
///
/// # Safety
/// The stack holds what a program finds there; `entry` is its code or its loader's. Nothing of the
/// calling thread is used again.
pub unsafe fn begin(stack: u64, entry: u64) -> ! {
    // SAFETY: the caller's promise. rdx is zero: there is no function to register with atexit.
    unsafe {
        asm!(
            "mov rsp, rdi",
            "xor edx, edx",
            "xor ebp, ebp",
            "jmp rsi",
            in("rdi") stack,
            in("rsi") entry,
            options(noreturn)
        );
    }
}
