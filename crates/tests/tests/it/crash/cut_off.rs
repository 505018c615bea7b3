//! A program that is executed with open files of the instance while its daemon stands still: it cannot
//! attach, and each call on them is EIO, never the kernel's answer for what it has behind their numbers.

use crate::support::mounted::has_fuse;
use crate::support::{Instance, in_time, text};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/cut_off.py");
/// EIO.
const FAILS: &str = "5";

/// Descriptors 3, 4 and 5 are open when the program begins.
const SHELL: &str = "seq 9 >$1/in; echo first >$1/out; exec 3<$1/in 4>>$1/out 5<$1; \
    python=$(python3 -c 'import sys; print(sys.executable)'); \
    echo open; read line; exec $python $2 $3 $1/in";

fn begins_cut_off(instance: &Instance, mut command: Command, kind: &str) {
    command.args([PROGRAM, kind]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = |last: &str| {
        in_time(last, || {
            let mut lines = Vec::new();
            let mut line = String::new();
            while output.read_line(&mut line).expect("it prints") > 0 && line.trim() != last {
                lines.push(line.trim().to_owned());
                line.clear();
            }
            lines
        })
    };
    assert!(lines("open").is_empty());
    let daemon = instance.daemon(0);
    daemon.stop();
    writeln!(input).expect("it begins");
    let answers = lines("waits");
    daemon.go_on();
    assert_eq!(answers.last().map(String::as_str), Some("reused 0"), "{answers:?}");
    let (_, calls) = answers.split_last().expect("answers");
    assert!(calls.len() > 20, "{calls:?}");
    let others: Vec<_> =
        calls.iter().filter(|call| !call.ends_with(&format!(" {FAILS}"))).collect();
    assert!(others.is_empty(), "not EIO: {others:?}");

    writeln!(input).expect("it goes on");
    let later: Vec<_> =
        ["read 0", "write 0", "reused 0", "child 0", "orphaned 5"].map(str::to_owned).into();
    assert_eq!(lines("program 0"), later);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("it prints");
    assert_eq!(rest, "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "the file, from its offset");
    assert!(child.wait().expect("it ends").success());
    let found = instance.program(&["cat", &format!("{}/out", at(instance))]).output();
    assert_eq!(text(&found.expect("it runs").stdout), "first\nkept");
}

fn at(instance: &Instance) -> String {
    text(instance.prefix().as_os_str().as_encoded_bytes())
}

const OPTIONS: [&str; 6] = ["--memory", "64MiB", "--ssd", "0", "--timeout", "1s"];

#[test]
fn files_inherited_while_a_daemon_stands_still_fail_with_eio_preloaded() {
    let instance = Instance::start_to_mount("cutoff", &OPTIONS);
    let command = instance.program(&["sh", "-c", SHELL, "sh", &at(&instance)]);
    begins_cut_off(&instance, command, "with-directory");
}

#[test]
fn files_inherited_while_a_daemon_stands_still_fail_with_eio() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start_to_mount("cutoff", &OPTIONS);
    let command = instance.program_by_default(&["sh", "-c", SHELL, "sh", &at(&instance)]);
    begins_cut_off(&instance, command, "files");
}
