//! The program that the kernel runs in place of a program of the instance. The preload library,
//! which the loader maps into it, starts the real program, so this function never runs.
#![expect(clippy::print_stderr, reason = "a program reports its errors there")]

fn main() -> std::process::ExitCode {
    eprintln!("forebay-program: programs of an instance are started through it; use: forebay run");
    std::process::ExitCode::from(127)
}
