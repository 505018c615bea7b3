//! The handler sees the file system calls that real programs make through stdio, fts, opendir and
//! their own children. With strace, each call's count must equal strace's; without it, each of the
//! calls that a program needs must be seen.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[rustfmt::skip]
const COUNTED: [(&str, usize); 16] = [
    ("read", 0), ("write", 1), ("openat", 257), ("newfstatat", 262), ("getdents64", 217),
    ("lseek", 8), ("unlink", 87), ("unlinkat", 263), ("rename", 82), ("fcntl", 72), ("dup2", 33),
    ("fchmod", 91), ("statx", 332), ("access", 21), ("pread64", 17), ("ioctl", 16),
];

/// Commands to run in a directory with some files, and calls that must be seen.
const PROGRAMS: [(&str, &[&str]); 13] = [
    ("find tree -size +0", &["openat", "newfstatat", "getdents64"]),
    ("grep -r text tree", &["openat", "read", "getdents64"]),
    ("sort tree/a/1", &["openat", "read", "write"]),
    ("sed -i s/text/other/ tree/a/2", &["openat", "read", "write", "rename"]),
    ("tar cf out.tar tree", &["openat", "read", "write", "newfstatat", "getdents64"]),
    ("gcc -c one.c -o one.o", &["openat", "read", "write"]),
    ("python3 -c \"print(len(open('tree/a/1').read()))\"", &["openat", "read", "write"]),
    ("bash -c 'echo hello > redirected; cat < redirected >> twice'", &["openat", "read", "dup2"]),
    ("cp -r tree copied && rm -r copied", &["openat", "getdents64", "unlinkat"]),
    ("du -s tree", &["newfstatat", "getdents64"]),
    ("md5sum tree/a/1", &["openat", "read"]),
    ("ls -lR tree", &["getdents64", "write"]),
    ("echo tree/*/1 | wc -c", &["getdents64", "write", "read"]),
];

fn prepare(directory: &Path) {
    for sub in ["a", "b"] {
        let directory = directory.join("tree").join(sub);
        std::fs::create_dir_all(&directory).expect("tree");
        for name in 0..5 {
            let text = format!("line of text {name}\n").repeat(500);
            std::fs::write(directory.join(name.to_string()), text).expect("file");
        }
    }
    std::fs::write(directory.join("one.c"), "int main(void) { return 0; }\n").expect("source");
}

/// Counts per number, as the handler saw them.
///
/// Here and under strace a program gets the same addresses and maps the same files: some (grep)
/// read /proc/self/maps, in a number of parts that depends on its length.
fn seen(command: &str, directory: &Path, tables: &Path) -> BTreeMap<&'static str, u64> {
    let counters = directory.join("counters");
    let _ = std::fs::remove_file(&counters);
    let words = shell(command);
    let done = Command::new(words[0])
        .args(&words[1..])
        .current_dir(directory)
        .env("PATH", search_path())
        .env("LD_PRELOAD", common::library())
        .env("FOREBAY_SITES", tables)
        .env("FOREBAY_TRACE", &counters)
        .output()
        .expect("sh");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    let bytes = std::fs::read(&counters).expect("counters");
    COUNTED
        .iter()
        .map(|&(name, number)| {
            let at = number * 8;
            (name, u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")))
        })
        .collect()
}

/// Counts per name, as strace sees them from the first call after the constructor on; `None`
/// without strace.
fn traced(command: &str, directory: &Path, tables: &Path) -> Option<BTreeMap<&'static str, u64>> {
    let log = directory.join("strace");
    let names: Vec<&str> = COUNTED.iter().map(|(name, _)| *name).collect();
    let done = Command::new("strace")
        .args(["-ff", "-o"])
        .arg(&log)
        .args(["-E", &format!("LD_PRELOAD={}", common::library().display())])
        .args(["-E", &format!("FOREBAY_SITES={}", tables.display())])
        .args(["-E", &format!("FOREBAY_TRACE={}", directory.join("counters").display())])
        .args(["-e", &format!("trace={},execve,rt_sigprocmask", names.join(","))])
        .args(shell(command))
        .current_dir(directory)
        .env("PATH", search_path())
        .output()
        .ok()?;
    assert!(done.status.success(), "strace: {}", String::from_utf8_lossy(&done.stderr));
    let mut counts: BTreeMap<&'static str, u64> = names_of_zero();
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("strace.")) {
            continue;
        }
        for (name, count) in count_log(&std::fs::read_to_string(&path).expect("log")) {
            *counts.entry(name).or_default() += count;
        }
        std::fs::remove_file(path).expect("remove");
    }
    Some(counts)
}

/// PATH with the real python3 first: a version manager's shim is a script whose many pipe reads
/// depend on timing.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let executable = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    match executable.as_deref().map(|name| Path::new(name.trim()).parent()) {
        Ok(Some(directory)) => format!("{}:{path}", directory.display()),
        _ => path,
    }
}

/// A shell at fixed addresses, where the system permits that.
fn shell(command: &str) -> Vec<&str> {
    let mut words = vec!["setarch", "-R", "/bin/sh", "-c", command];
    let fixed = Command::new("setarch").args(["-R", "true"]).output();
    if !fixed.is_ok_and(|output| output.status.success()) {
        words.drain(..2);
    }
    words
}

fn names_of_zero() -> BTreeMap<&'static str, u64> {
    COUNTED.iter().map(|(name, _)| (*name, 0)).collect()
}

/// Counts one process's calls, leaving out those between an execve and the end of the constructor,
/// which is the second of two pairs of mask changes, one pair per library. A call that the kernel
/// restarts after a signal is one call: it does not pass the handler twice.
fn count_log(log: &str) -> BTreeMap<&'static str, u64> {
    let mut counts = names_of_zero();
    let mut masks = usize::MAX;
    for line in log.lines() {
        let call = line.split('(').next().unwrap_or_default();
        if call == "execve" && line.ends_with("= 0") {
            masks = 0;
        } else if call == "rt_sigprocmask" && masks < 4 {
            masks += 1;
        } else if masks >= 4
            && !line.contains("ERESTART")
            && let Some((name, _)) = COUNTED.iter().find(|(name, _)| *name == call)
        {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

#[test]
fn every_call_of_real_programs_is_seen() {
    let scratch = common::Scratch::new("coverage");
    let tables = scratch.join("tables");
    std::fs::create_dir(&tables).expect("tables");
    preload::sites::prepare(&tables).expect("tables");
    for (command, needed) in PROGRAMS {
        // The number of reads and writes on a pipe depends on scheduling, so the counts of a
        // command with one may vary between runs: the two counts must agree in one of a few tries.
        let mut differing = None;
        for _ in 0..TRIES {
            differing = compare(command, needed, &scratch, &tables);
            if differing.is_none() {
                break;
            }
        }
        assert_eq!(differing, None, "{command}: seen by us, and by strace");
    }
}

const TRIES: u32 = 5;

type Counts = BTreeMap<&'static str, u64>;

/// Runs a command once counted by the library and once under strace; returns the counts if they
/// differ.
fn compare(
    command: &str,
    needed: &[&str],
    scratch: &common::Scratch,
    tables: &Path,
) -> Option<(Counts, Counts)> {
    // Each run gets an identical tree, so that both do the same.
    let runs = ["counted", "tracing"].map(|name| scratch.join(name));
    for run in &runs {
        let _ = std::fs::remove_dir_all(run);
        std::fs::create_dir(run).expect("run");
        prepare(run);
    }
    let seen = seen(command, &runs[0], tables);
    for name in needed {
        assert!(seen[name] > 0, "{command}: no {name} seen, {seen:?}");
    }
    let truth = traced(command, &runs[1], tables)?;
    (seen != truth).then_some((seen, truth))
}
