//! The program that the kernel runs in place of a program of the instance. The preload library,
//! which the loader maps into it, starts the real program, so this function never runs.

use std::io::Write;

fn main() -> std::process::ExitCode {
    let line = "forebay-program: programs of an instance are started through it; use: forebay run";
    let _ = writeln!(std::io::stderr(), "{line}");
    std::process::ExitCode::from(127)
}
