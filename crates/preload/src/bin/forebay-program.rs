//! What the kernel runs in place of a program that lies in the instance: the preload library, which
//! the loader puts into it, starts the wanted program and never comes here.

fn main() -> std::process::ExitCode {
    eprintln!("forebay-program: programs of an instance are started through it; use: forebay run");
    std::process::ExitCode::from(127)
}
