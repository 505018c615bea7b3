//! The first instructions of signal handlers, the state that they interrupt, and calls that they may
//! end.

use core::arch::global_asm;
use core::sync::atomic::AtomicU32;

use crate::arch::x86_64::enter;
use crate::entry::signals;

global_asm!(
    ".text",
    ".p2align 4",
    // Where the kernel enters, with its return address on the stack: number, information, context.
    ".globl forebay_signal",
    ".hidden forebay_signal",
    ".type forebay_signal, @function",
    "forebay_signal:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 32",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "call {arrived}",
    "mov [rsp + 24], rdx",
    "test rax, rax",
    "je 3f",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "test rdx, rdx",
    "mov rdx, [rsp + 16]",
    "jne 2f",
    // As the kernel would have entered it: programs look at the stack.
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "mov r11, rax",
    "xor eax, eax",
    "jmp r11",
    ".cfi_restore_state",
    "2: mov r11, rax",
    "xor eax, eax",
    "call r11",
    "mov rdi, [rsp + 24]",
    "mov rsi, [rsp + 16]",
    "call {handled}",
    "3: mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size forebay_signal, . - forebay_signal",
    ".p2align 4",
    // A system call: number, address of its six arguments, and of a word that says whether signals
    // are deferred. Signals that arrive from its first instruction on find it waiting.
    ".globl forebay_wait",
    ".hidden forebay_wait",
    ".type forebay_wait, @function",
    "forebay_wait:",
    ".cfi_startproc",
    "cmp dword ptr [rdx], 0",
    "jne 4f",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    ".globl forebay_wait_call",
    ".hidden forebay_wait_call",
    "forebay_wait_call:",
    "syscall",
    "ret",
    "4: mov rax, {deferred}",
    "ret",
    ".cfi_endproc",
    ".size forebay_wait, . - forebay_wait",
    arrived = sym signals::arrived,
    handled = sym signals::handled,
    deferred = const DEFERRED,
);

unsafe extern "C" {
    safe fn forebay_signal();
    fn forebay_wait(number: i64, arguments: *const [u64; 6], deferred: *const AtomicU32) -> i64;
    safe fn forebay_wait_call();
}

/// Address of what the kernel calls for each signal that the program handles. Not callable from
/// Rust.
#[must_use]
pub fn signal_entry() -> u64 {
    forebay_signal as *const () as u64
}

/// The answer of `call_waiting` that is none of the kernel's.
pub const DEFERRED: i64 = i64::MIN;

/// A system call that may wait for long: a signal is handled while it waits, as without this
/// library. `DEFERRED`, and no call, if signals have been deferred, as the word says: it would wait
/// with all of them blocked.
///
/// # Safety
/// As for `raw::call6`.
#[must_use]
pub unsafe fn call_waiting(number: i64, arguments: &[u64; 6], deferred: &AtomicU32) -> i64 {
    // SAFETY: the caller's promise, six arguments and the word in memory.
    unsafe { forebay_wait(number, arguments, deferred) }
}

/// The number of the calling thread where glibc keeps it, as `shm::wait` reads it; anything where
/// another library does not.
#[inline]
#[must_use]
pub fn libc_thread() -> u32 {
    let number: u32;
    // WHY: the control block is reached by the thread's segment register alone.
    // SAFETY: a load of four bytes from the control block, which is that long in glibc.
    unsafe {
        core::arch::asm!(
            "mov {number:e}, dword ptr fs:[0x2d0]",
            number = out(reg) number,
            options(nostack, readonly, preserves_flags),
        );
    }
    number
}

const INTERRUPTED: i64 = -(libc::EINTR as i64);
/// Length of the instruction that enters the kernel.
const CALL_BYTES: u64 = 2;
/// The flag that says that a comparison found equality.
const ZERO: u64 = 1 << 6;
/// Where the frame has the slot, and the slot the end of its stack.
const SLOT_WORD: usize = 8;
const TOP_WORD: usize = 1;

/// The state that a signal interrupted, as the kernel saved it for the return.
pub struct Interrupted<'a>(&'a mut libc::ucontext_t);

impl Interrupted<'_> {
    /// Takes the third argument of a handler.
    ///
    /// # Safety
    /// It is that, and the handler has not returned.
    #[must_use]
    pub unsafe fn new<'a>(context: *mut libc::ucontext_t) -> Interrupted<'a> {
        // SAFETY: the caller's promise.
        Interrupted(unsafe { &mut *context })
    }

    fn register(&self, number: i32) -> u64 {
        let value = self.0.uc_mcontext.gregs.get(number as usize);
        value.map_or(0, |value| value.cast_unsigned())
    }

    fn set_register(&mut self, number: i32, value: u64) {
        if let Some(to) = self.0.uc_mcontext.gregs.get_mut(number as usize) {
            *to = value.cast_signed();
        }
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack(&self) -> u64 {
        self.register(libc::REG_RSP)
    }

    /// True if it waits in `call_waiting`, or is about to.
    #[must_use]
    pub fn waits(&self) -> bool {
        let start = forebay_wait as *const () as u64;
        (start..=forebay_wait_call as *const () as u64).contains(&self.address())
    }

    /// Ends that wait with `EINTR`.
    pub fn end_wait(&mut self) {
        let after = forebay_wait_call as *const () as u64 + CALL_BYTES;
        self.set_register(libc::REG_RAX, INTERRUPTED.cast_unsigned());
        self.set_register(libc::REG_RIP, after);
    }

    /// Completes the claim of a stack that has been made and is not used yet, and begins the release
    /// of one again that has not been made: between the two, a call is on its stack.
    pub fn put_on_stack(&mut self) {
        let address = self.address();
        let Some(window) = enter::windows().find(|window| window.contains(address)) else { return };
        match window {
            enter::Window::Claim { switch, end, .. } => {
                let (frame, slot) = (self.register(libc::REG_RDI), self.register(libc::REG_RSI));
                let is_claimed = self.register(libc::REG_EFL) & ZERO != 0 || address >= switch;
                if is_claimed {
                    // SAFETY: between these addresses the registers hold the frame, which is on the
                    // interrupted stack, and the slot that was claimed.
                    // WHY: they are known to the interrupted code only.
                    let top = unsafe {
                        (frame as *mut u64).add(SLOT_WORD).write(slot);
                        (slot as *const u64).add(TOP_WORD).read()
                    };
                    self.set_register(libc::REG_RSP, top);
                    self.set_register(libc::REG_RIP, end);
                }
            }
            enter::Window::Release { start, .. } => {
                // SAFETY: as above; the stack pointer is at the frame.
                let top = unsafe {
                    let slot = (self.stack() as *const u64).add(SLOT_WORD).read();
                    (slot as *const u64).add(TOP_WORD).read()
                };
                // Of a call without a slot, which has no stack to be on.
                if top != 0 {
                    self.set_register(libc::REG_RSP, top);
                    self.set_register(libc::REG_RIP, start);
                }
            }
        }
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.register(libc::REG_RIP)
    }

    /// Shows an unwinder another place until `show_own` is called.
    pub fn show(&mut self, address: u64, stack: u64) {
        // Fields that the kernel does not read again.
        self.set_register(libc::REG_CR2, self.stack());
        self.set_register(libc::REG_ERR, self.address());
        self.set_register(libc::REG_RIP, address);
        self.set_register(libc::REG_RSP, stack);
    }

    /// Ends `show`.
    pub fn show_own(&mut self) {
        self.set_register(libc::REG_RIP, self.register(libc::REG_ERR));
        self.set_register(libc::REG_RSP, self.register(libc::REG_CR2));
    }

    /// True if `address` is on the alternate stack of the thread.
    #[must_use]
    pub fn is_on_alternate(&self, address: u64) -> bool {
        let (start, bytes) = (self.0.uc_stack.ss_sp as u64, self.0.uc_stack.ss_size as u64);
        address >= start && address < start.saturating_add(bytes)
    }

    /// The signals that are blocked after the return.
    #[must_use]
    pub fn mask(&self) -> u64 {
        // SAFETY: the kernel's mask is the first 8 bytes of what libc has space for.
        unsafe { (&raw const self.0.uc_sigmask).cast::<u64>().read() }
    }

    /// Blocks these signals after the return.
    pub fn set_mask(&mut self, mask: u64) {
        // SAFETY: as in `mask`.
        unsafe { (&raw mut self.0.uc_sigmask).cast::<u64>().write(mask) };
    }
}
