//! An instance that was started in another mount namespace with another root, where paths differ
//! from those of this process: it is found, works and is stopped like any other.

use crate::support::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const START: &str = "mount --rbind / \"$2\" && exec chroot \"$2\" \"$1/forebay\" start --local 2";

fn directory_of_programs() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this test");
    own.parent().and_then(Path::parent).expect("target/<profile>/deps").to_owned()
}

fn run(dir: &Path, program: &Path, words: &[&str]) -> Output {
    Command::new(program)
        .args(words)
        .env("FOREBAY_NAME", format!("fbn{}", std::process::id()))
        .env("FOREBAY_DIR", dir)
        .env("XDG_RUNTIME_DIR", dir)
        .env("FOREBAY_MEMORY", "32MiB")
        .env("FOREBAY_SSD", "0")
        .output()
        .expect("it runs")
}

fn ok(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_instance_of_another_mount_namespace_is_found_and_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let (programs, other) = (directory_of_programs(), dir.path().join("other"));
    std::fs::create_dir(&other).expect("a directory");
    let unshare = Path::new("unshare");
    if !run(dir.path(), unshare, &["--mount", "true"]).status.success() {
        skip("mount namespaces are not permitted here (root is needed)");
        return;
    }
    let (from, to) = (programs.to_string_lossy(), other.to_string_lossy());
    ok(&run(dir.path(), unshare, &["--mount", "sh", "-c", START, "sh", &from, &to]));
    let forebay = programs.join("forebay");
    let forebay = |words: &[&str]| run(dir.path(), &forebay, words);
    let status = ok(&forebay(&["status"]));
    assert_eq!(status.matches("alive").count(), 2, "{status}");
    let text = ok(&forebay(&["run", "--", "sh", "-c", "echo x >/forebay/a; cat /forebay/a"]));
    assert_eq!(text, "x\n");
    let pids: Vec<&str> = status
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "alive");
            words.nth(1)
        })
        .collect();
    assert_eq!(pids.len(), 2, "{status}");
    ok(&forebay(&["stop"]));
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "left behind: {stat}");
    }
}

#[test]
fn a_program_in_another_pid_namespace_uses_the_mount_or_is_refused_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let unshare = Path::new("unshare");
    let words = ["--pid", "--fork", "--kill-child"];
    if !run(dir.path(), unshare, &[&words[..], &["true"]].concat()).status.success() {
        skip("process namespaces are not permitted here (root is needed)");
        return;
    }
    let forebay = directory_of_programs().join("forebay");
    let numbers = &format!("numbers{}", std::process::id());
    let start = ["start", "--name", numbers];
    ok(&run(dir.path(), &forebay, &start));
    let path = forebay.to_string_lossy();
    let inside = |access: &str, script: &str| {
        let program = ["run", "--name", numbers, "--access", access, "--", "sh", "-c", script];
        run(dir.path(), unshare, &[&words[..], &[&path[..]], &program].concat())
    };
    let reported = inside("preload", "echo x >/forebay/a");
    let text = String::from_utf8_lossy(&reported.stderr).into_owned();
    // Where there is no mount, nothing but the refusal remains.
    let has_mount = Path::new("/dev/fuse").exists();
    let written = inside("auto", "echo inside >/forebay/b");
    let seen = ["run", "--name", numbers, "--", "cat", "/forebay/b"];
    let seen = run(dir.path(), &forebay, &seen);
    let same = ["run", "--name", numbers, "--", "sh", "-c", "echo x >/forebay/a; cat /forebay/a"];
    let here = run(dir.path(), &forebay, &same);
    ok(&run(dir.path(), &forebay, &["stop", "--name", numbers]));
    assert!(!reported.status.success() && text.contains("not supported"), "{text}");
    assert_eq!(ok(&here), "x\n");
    if has_mount {
        ok(&written);
        assert_eq!(ok(&seen), "inside\n");
    }
}

/// Starts with more memory than /dev/shm has, and with what the refusal advises.
const SMALL: &str = r#"
mount -t tmpfs -o size=64M shm /dev/shm || exit 77
"$0" start --name small --memory 1GiB --ssd 0 2>&1 && exit 1
"$0" start --name small --memory 48MiB --ssd 0 >/dev/null &&
    "$0" run --name small -- sh -c 'echo x >/forebay/a; cat /forebay/a' &&
        "$0" stop --name small >/dev/null
"#;

#[test]
fn a_small_dev_shm_is_refused_with_the_size_that_fits() {
    let dir = tempfile::tempdir().expect("a directory");
    let forebay = directory_of_programs().join("forebay");
    let words = ["--mount", "sh", "-c", SMALL, &*forebay.to_string_lossy()];
    let output = run(dir.path(), Path::new("unshare"), &words);
    if matches!(output.status.code(), Some(77)) || !output.stderr.is_empty() {
        skip("mount namespaces are not permitted here (root is needed)");
        return;
    }
    let expected = "forebay start: too much memory: 1.0 GiB for 1 daemon: this host has 64 MiB free \
                    of 64 MiB in /dev/shm, for tables, too: give --memory 48MiB, or mount /dev/shm \
                    larger (--shm-size)\nx\n";
    assert_eq!(ok(&output), expected);
}
