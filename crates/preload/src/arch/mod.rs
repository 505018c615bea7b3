//! Selects the architecture. Raw system calls, the frame, stubs and jumps are in one directory
//! each.
//!
//! A port supplies: `Frame`, `raw::{call0..call6}`, `enter::{entry, entry_selected, after}`,
//! `stub::{emit, jump}`, `signal` with `libc_thread`, `text_length`, memory functions that leave
//! wide vector registers alone, and its part of `scan`.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "preload rewrites machine code and knows only x86_64 Linux so far; for another machine add \
     crates/preload/src/arch/<machine>.rs with the items that arch/mod.rs lists"
);

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use x86_64::*;
