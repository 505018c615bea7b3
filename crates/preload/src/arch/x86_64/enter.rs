//! The path from a stub into Rust and back: two entries that every stub calls through its area.
//!
//! At `forebay_enter`: `[rsp]` is the stub, `[rsp + 8]` the application's address after its
//! `syscall`, and the application's own rsp is rsp + 144 (two slots and the red zone). It answers
//! in rcx: 0 pass, 1 done (rax is the result), above: create a process, see `dispatch::StubAnswer`.
//! Numbers outside `select::SELECTED` return before anything is saved; `forebay_enter_selected` is
//! for stubs whose number is known to be inside, and
//! to create no process. At `forebay_after` (after a native fork) the same,
//! with the number in rcx and the result in rax.
//!
//! The frame is on the application's stack, the handler's work on a stack of `call_stack`. Claiming
//! one is here, where it takes eleven instructions; its owner is the thread's number plus one. A slot
//! that has deferred signals restores the mask at the end, back on the application's stack: their
//! handlers run there, as if they had arrived after the call. A signal that arrives between the claim
//! and the switch, or between the switch back and the release (`windows`), finds the call on its stack.
//!
//! The frame description (`.cfi`) names the application's call site as the caller, not the stub:
//! debuggers and the unwinding of pthread_cancel see no stub.

use core::arch::global_asm;

use crate::entry::call_stack;
use crate::entry::dispatch;
use crate::entry::select;

global_asm!(
    ".macro FOREBAY_SAVE",
    "mov [rsp + 8], rdi",
    "mov [rsp + 16], rsi",
    "mov [rsp + 24], rdx",
    "mov [rsp + 32], r10",
    "mov [rsp + 40], r8",
    "mov [rsp + 48], r9",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movups [rsp + 80 + 16 * \\n], xmm\\n",
    ".endr",
    ".endm",
    ".macro FOREBAY_RESTORE",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movups xmm\\n, [rsp + 80 + 16 * \\n]",
    ".endr",
    "mov rdi, [rsp + 8]",
    "mov rsi, [rsp + 16]",
    "mov rdx, [rsp + 24]",
    "mov r10, [rsp + 32]",
    "mov r8, [rsp + 40]",
    "mov r9, [rsp + 48]",
    ".endm",
    // Leaves the frame in rdi, and switches to a stack; the slot is in the frame. The named addresses
    // are those of `windows`.
    ".macro FOREBAY_CLAIM name",
    "mov rdi, rsp",
    "mov ecx, dword ptr fs:[0x2d0]",
    "lea rsi, [rip + {calls}]",
    "mov eax, ecx",
    "and eax, {slots} - 1",
    "shl eax, 6",
    "add rsi, rax",
    "inc ecx",
    "xor eax, eax",
    "lock cmpxchg dword ptr [rsi], ecx",
    "forebay_claimed_\\name:",
    "jne 5f",
    "forebay_switch_\\name:",
    "mov [rdi + 64], rsi",
    "mov rsp, [rsi + 8]",
    "forebay_switched_\\name:",
    "6:",
    ".endm",
    // Where that was not free; `below`: from rbp down to the frame. Signals are blocked until the
    // call is on its stack, because no unwinder passes through `claim`, and a handler that ran
    // before would take the slot for that of a call which ended.
    ".macro FOREBAY_CLAIM_SLOW below",
    "5: and rsp, -16",
    "sub rsp, 16",
    "mov eax, {sigprocmask}",
    "xor edi, edi",
    "lea rsi, [rip + {blocked}]",
    "mov rdx, rsp",
    "mov r10d, 8",
    "syscall",
    "mov rdi, rsp",
    "call {claim}",
    "lea rdi, [rbp - \\below]",
    "mov rsi, rsp",
    "test rax, rax",
    "je 91f",
    "mov [rdi + 64], rax",
    "mov rsp, [rax + 8]",
    "jmp 92f",
    "91: lea rax, [rip + {no_slot}]",
    "mov [rdi + 64], rax",
    "92: mov eax, {sigprocmask}",
    "mov edi, {setmask}",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "lea rdi, [rbp - \\below]",
    "jmp 6b",
    ".endm",
    // Back to the frame, which is so far below rbp: the slot is free.
    ".macro FOREBAY_RELEASE name, below",
    "forebay_release_\\name:",
    "lea rsp, [rbp - \\below]",
    "forebay_releasing_\\name:",
    "mov r11, [rsp + 64]",
    "cmp dword ptr [r11 + 4], 0",
    "jne 7f",
    "mov dword ptr [r11], 0",
    "forebay_released_\\name:",
    "8:",
    ".endm",
    // Signals have waited for the end of the call.
    ".macro FOREBAY_RELEASE_DEFERRED",
    "7: mov [rsp + 72], rax",
    "mov rax, [r11 + 16]",
    "mov [rsp + 64], rax",
    "mov dword ptr [r11 + 4], 0",
    "mov dword ptr [r11 + 32], 0",
    "mov dword ptr [r11], 0",
    "mov eax, {sigprocmask}",
    "mov edi, {setmask}",
    "lea rsi, [rsp + 64]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov rax, [rsp + 72]",
    "jmp 8b",
    ".endm",
    // The number in rax, the flags in rcx.
    ".macro FOREBAY_HANDLE name, handler",
    "push rbp",
    ".cfi_def_cfa rsp, 152",
    ".cfi_offset rbp, -152",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, {frame}",
    "mov [rsp], rax",
    "mov [rsp + 56], rcx",
    "FOREBAY_SAVE",
    "FOREBAY_CLAIM \\name",
    "call \\handler",
    "FOREBAY_RELEASE \\name, {frame}",
    "mov rcx, rax",
    "FOREBAY_RESTORE",
    "mov rax, [rsp + 56]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [rsp]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 144",
    ".cfi_restore rbp",
    "ret",
    ".cfi_restore_state",
    "FOREBAY_CLAIM_SLOW {frame}",
    "FOREBAY_RELEASE_DEFERRED",
    ".cfi_def_cfa rsp, 144",
    ".cfi_restore rbp",
    ".endm",
    ".text",
    ".p2align 5",
    ".globl forebay_enter",
    ".hidden forebay_enter",
    ".type forebay_enter, @function",
    "forebay_enter:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -136",
    "mov r11, rax",
    "lahf",
    "seto al",
    "mov rcx, rax",
    "mov rax, r11",
    "cmp rax, {limit}",
    "jae 2f",
    "lea r11, [rip + {selected}]",
    "cmp byte ptr [r11 + rax], 0",
    "je 2f",
    "FOREBAY_HANDLE enter, {enter}",
    "2:",
    "mov r11, rax",
    "mov rax, rcx",
    "add al, 0x7f",
    "sahf",
    "mov rax, r11",
    "mov ecx, 0",
    "ret",
    ".cfi_endproc",
    ".size forebay_enter, . - forebay_enter",
    ".p2align 5",
    ".globl forebay_enter_selected",
    ".hidden forebay_enter_selected",
    ".type forebay_enter_selected, @function",
    "forebay_enter_selected:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -136",
    "mov r11, rax",
    "lahf",
    "seto al",
    "mov rcx, rax",
    "mov rax, r11",
    "FOREBAY_HANDLE selected, {enter_selected}",
    ".cfi_endproc",
    ".size forebay_enter_selected, . - forebay_enter_selected",
    ".p2align 5",
    ".globl forebay_after",
    ".hidden forebay_after",
    ".type forebay_after, @function",
    "forebay_after:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -136",
    "push rbp",
    ".cfi_def_cfa rsp, 152",
    ".cfi_offset rbp, -152",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "pushfq",
    "sub rsp, {frame}",
    "mov [rsp], rax",
    "FOREBAY_SAVE",
    "mov [rsp + 72], rcx",
    "FOREBAY_CLAIM after",
    "mov rsi, [rdi + 72]",
    "call {after}",
    "FOREBAY_RELEASE after, ({frame}+8)",
    "FOREBAY_RESTORE",
    "mov rax, [rsp]",
    "lea rsp, [rbp - 8]",
    "popfq",
    "pop rbp",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 144",
    ".cfi_restore rbp",
    "ret",
    ".cfi_restore_state",
    "FOREBAY_CLAIM_SLOW ({frame}+8)",
    "FOREBAY_RELEASE_DEFERRED",
    ".cfi_endproc",
    ".size forebay_after, . - forebay_after",
    limit = const select::LIMIT,
    selected = sym select::SELECTED,
    frame = const super::FRAME_BYTES,
    calls = sym call_stack::CALLS,
    slots = const call_stack::SLOTS,
    no_slot = sym call_stack::NO_SLOT,
    claim = sym call_stack::claim,
    blocked = sym call_stack::ALL,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    setmask = const libc::SIG_SETMASK,
    enter = sym dispatch::enter,
    enter_selected = sym dispatch::enter_selected,
    after = sym dispatch::after,
);

unsafe extern "C" {
    safe fn forebay_enter();
    safe fn forebay_enter_selected();
    safe fn forebay_after();
    safe fn forebay_claimed_enter();
    safe fn forebay_switch_enter();
    safe fn forebay_switched_enter();
    safe fn forebay_release_enter();
    safe fn forebay_releasing_enter();
    safe fn forebay_released_enter();
    safe fn forebay_claimed_selected();
    safe fn forebay_switch_selected();
    safe fn forebay_switched_selected();
    safe fn forebay_release_selected();
    safe fn forebay_releasing_selected();
    safe fn forebay_released_selected();
    safe fn forebay_claimed_after();
    safe fn forebay_switch_after();
    safe fn forebay_switched_after();
    safe fn forebay_release_after();
    safe fn forebay_releasing_after();
    safe fn forebay_released_after();
}

/// A few instructions in which a slot is claimed and its stack is not in use.
#[derive(Clone, Copy, Debug)]
pub(super) enum Window {
    /// From the claim, whose success the flags tell before `switch`, to the use of the stack at `end`.
    Claim { claimed: u64, switch: u64, end: u64 },
    /// From the return to the frame, which may be made again at `start`, to the release before `end`.
    Release { start: u64, returned: u64, end: u64 },
}

impl Window {
    /// True for the address of an instruction in it that is about to run.
    pub(super) fn contains(&self, address: u64) -> bool {
        match *self {
            Window::Claim { claimed, end, .. } => (claimed..end).contains(&address),
            Window::Release { returned, end, .. } => (returned..end).contains(&address),
        }
    }
}

/// The windows of the three entries.
pub(super) fn windows() -> impl Iterator<Item = Window> {
    let claim = |[claimed, switch, end]: [extern "C" fn(); 3]| Window::Claim {
        claimed: claimed as *const () as u64,
        switch: switch as *const () as u64,
        end: end as *const () as u64,
    };
    let release = |[start, returned, end]: [extern "C" fn(); 3]| Window::Release {
        start: start as *const () as u64,
        returned: returned as *const () as u64,
        end: end as *const () as u64,
    };
    [
        claim([forebay_claimed_enter, forebay_switch_enter, forebay_switched_enter]),
        claim([forebay_claimed_selected, forebay_switch_selected, forebay_switched_selected]),
        claim([forebay_claimed_after, forebay_switch_after, forebay_switched_after]),
        release([forebay_release_enter, forebay_releasing_enter, forebay_released_enter]),
        release([forebay_release_selected, forebay_releasing_selected, forebay_released_selected]),
        release([forebay_release_after, forebay_releasing_after, forebay_released_after]),
    ]
    .into_iter()
}

/// Address of the entry that stubs call before a system call. Not callable from Rust.
#[must_use]
pub fn entry() -> u64 {
    forebay_enter as *const () as u64
}

/// The same for a number that is selected and creates no process.
#[must_use]
pub fn entry_selected() -> u64 {
    forebay_enter_selected as *const () as u64
}

/// Address of the entry that stubs call after a native fork. Not callable from Rust.
#[must_use]
pub fn after() -> u64 {
    forebay_after as *const () as u64
}
