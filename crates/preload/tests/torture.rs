//! A program that does everything delicate about calls, processes, signals and cancellation prints
//! the same with the library (swept, and from prepared tables) as without it.

mod common;

use std::process::Command;

/// Rounds: races appear only sometimes.
const ROUNDS: usize = 3;

#[test]
fn the_torture_program_passes_with_and_without_the_library() {
    let scratch = common::Scratch::new("torture");
    let program = common::compile("torture", &scratch.0);
    preload::sites::prepare(&scratch.0).expect("tables");
    let run = |preload: bool, tables: bool| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "100"]).arg(&program).current_dir(&scratch.0);
        if preload {
            command.env("LD_PRELOAD", common::library());
            // Without an instance the library is active for what counts calls only.
            command.env("FOREBAY_TRACE", scratch.join("counters"));
        }
        if tables {
            command.env("FOREBAY_SITES", &scratch.0);
        }
        let output = command.output().expect("torture");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "preload={preload} tables={tables}\n{text}\n{errors}");
        assert_eq!(errors, "");
        text
    };
    let plain = run(false, false);
    assert_eq!(plain.lines().count(), 17, "{plain}");
    for _ in 0..ROUNDS {
        assert_eq!(run(true, true), plain);
    }
    assert_eq!(run(true, false), plain);
}

#[test]
fn the_library_interposes_nothing_and_borrows_no_memory_functions() {
    // The dynamic symbol table, by the linker's own tool.
    let output = Command::new("nm").arg("-D").arg(common::library()).output().expect("nm");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        let mut words = line.split_whitespace().rev();
        let name = words.next().unwrap_or_default().split('@').next().unwrap_or_default();
        let kind = words.next().unwrap_or_default();
        assert!(kind == "U" || kind == "w", "the library exports {line}");
        let ours = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
        assert!(!ours.contains(&name), "the library uses libc's {name}");
    }
}
