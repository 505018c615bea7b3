//! The library installs itself in a plain program and beside a running thread, preserves registers,
//! and leaves a program alone whose code may not be changed.
#![expect(unsafe_code, reason = "a child is prepared between fork and exec")]

mod common;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// `cost` checks registers, and prints the answer of a call on the fake descriptor.
fn cost(scratch: &Path) -> Command {
    let program = common::compile("cost", scratch);
    preload::sites::prepare(scratch).expect("tables");
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", common::library()).env("FOREBAY_SITES", scratch);
    // Without an instance the library is active for what counts calls only.
    command.env("FOREBAY_TRACE", scratch.join("counters"));
    command
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    format!("{text}{errors}")
}

#[test]
fn handled_calls_are_answered_and_registers_preserved() {
    let scratch = common::Scratch::new("plain");
    let output = cost(&scratch.0).output().expect("cost");
    assert_eq!(said(&output), "fake read answers 42\n");
}

#[test]
fn a_running_thread_is_not_disturbed() {
    let scratch = common::Scratch::new("threader");
    let other = common::compile_with("threader", &scratch.0, &["-shared", "-fPIC"]);
    // The loader runs the constructors of later libraries first.
    let mut both = OsString::from(common::library());
    both.push(":");
    both.push(other);
    for _ in 0..20 {
        let output = cost(&scratch.0).env("LD_PRELOAD", &both).output().expect("cost");
        assert_eq!(said(&output), "fake read answers 42\n");
    }
}

#[test]
fn a_program_with_immutable_code_runs_unpatched_and_logs_one_line() {
    let scratch = common::Scratch::new("forbidden");
    let mut command = cost(&scratch.0);
    // PR_SET_MDWE (65): no memory becomes executable later. SELinux and systemd have the same
    // restriction.
    let forbid = || {
        // SAFETY: a prctl of numbers only, in the child, which is about to exec.
        match unsafe { libc::prctl(65, 1_u64, 0_u64, 0_u64, 0_u64) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(forbid) };
    let output = match command.output() {
        Ok(output) => said(&output),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            println!("this kernel has no PR_SET_MDWE: nothing tested");
            return;
        }
        Err(error) => panic!("cost: {error}"),
    };
    assert!(output.starts_with("fake read answers -1\n"), "{output}");
    assert_eq!(output.lines().count(), 2, "{output}");
    assert!(output.contains("forebay: calls of this program are not intercepted"), "{output}");
}
