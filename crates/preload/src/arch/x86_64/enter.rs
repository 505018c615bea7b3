//! The way from a stub into Rust and back: two entries that every stub calls through its area.
//!
//! At `forebay_enter`: `[rsp]` is the stub, `[rsp + 8]` the application's address behind its
//! `syscall`, and the application's own rsp is rsp + 144 (two slots and the red zone). It answers
//! in rcx: 0 pass, 1 done (rax is the result), above: make a process, see `dispatch::Answer`.
//! Numbers outside `select::SELECTED` are turned away before anything is saved.
//! At `forebay_after` (behind a native fork) the same, with the number in rcx and result in rax.
//!
//! The frame description (`.cfi`) says that the caller is the application's call site, not the
//! stub: debuggers and the unwinding of pthread_cancel see no stub.

use core::arch::global_asm;

use crate::{dispatch, select};

global_asm!(
    ".macro FOREBAY_SAVE",
    "mov [rsp + 8], rdi",
    "mov [rsp + 16], rsi",
    "mov [rsp + 24], rdx",
    "mov [rsp + 32], r10",
    "mov [rsp + 40], r8",
    "mov [rsp + 48], r9",
    "lea r11, [rbp + 152]",
    "mov [rsp + 64], r11",
    "mov r11, [rbp + 16]",
    "mov [rsp + 72], r11",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps [rsp + 80 + 16 * \\n], xmm\\n",
    ".endr",
    ".endm",
    ".macro FOREBAY_RESTORE",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps xmm\\n, [rsp + 80 + 16 * \\n]",
    ".endr",
    "mov rdi, [rsp + 8]",
    "mov rsi, [rsp + 16]",
    "mov rdx, [rsp + 24]",
    "mov r10, [rsp + 32]",
    "mov r8, [rsp + 40]",
    "mov r9, [rsp + 48]",
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
    "push rbp",
    ".cfi_def_cfa rsp, 152",
    ".cfi_offset rbp, -152",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "lea rsp, [rsp - {frame}]",
    "and rsp, -16",
    "mov [rsp], rax",
    "mov [rsp + 56], rcx",
    "FOREBAY_SAVE",
    "mov rdi, rsp",
    "call {enter}",
    "mov rcx, rax",
    "FOREBAY_RESTORE",
    "mov rax, [rsp + 56]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [rsp]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 144",
    ".cfi_restore rbp",
    "ret",
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
    "lea rsp, [rsp - {frame}]",
    "and rsp, -16",
    "mov [rsp], rax",
    "FOREBAY_SAVE",
    "mov rdi, rsp",
    "mov rsi, rcx",
    "call {after}",
    "FOREBAY_RESTORE",
    "mov rax, [rsp]",
    "lea rsp, [rbp - 8]",
    "popfq",
    "pop rbp",
    ".cfi_def_cfa rsp, 144",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size forebay_after, . - forebay_after",
    limit = const select::LIMIT,
    selected = sym select::SELECTED,
    frame = const super::FRAME_BYTES,
    enter = sym dispatch::enter,
    after = sym dispatch::after,
);

unsafe extern "C" {
    safe fn forebay_enter();
    safe fn forebay_after();
}

/// Address of the entry that stubs call before a system call. Not callable from Rust.
#[must_use]
pub fn entry() -> u64 {
    forebay_enter as *const () as u64
}

/// Address of the entry that stubs call behind a native fork. Not callable from Rust.
#[must_use]
pub fn after() -> u64 {
    forebay_after as *const () as u64
}
