//! An instance that was started in another mount namespace and below another root, from which its
//! programs' paths are others: it is known, works and is stopped like any.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const START: &str = "mount --rbind / \"$2\" && exec chroot \"$2\" \"$1/forebay\" start --local 2";

fn directory_of_programs() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this test");
    own.parent().and_then(Path::parent).expect("target/<profile>/deps").to_owned()
}

fn run(place: &Path, program: &Path, words: &[&str]) -> Output {
    Command::new(program)
        .args(words)
        .env("FOREBAY_NAME", format!("fbn{}", std::process::id()))
        .env("FOREBAY_DIR", place)
        .env("XDG_RUNTIME_DIR", place)
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
fn an_instance_of_another_mount_namespace_is_known_and_stopped() {
    let place = tempfile::tempdir().expect("a directory");
    let (programs, other) = (directory_of_programs(), place.path().join("other"));
    std::fs::create_dir(&other).expect("a directory");
    let unshare = Path::new("unshare");
    if !run(place.path(), unshare, &["--mount", "true"]).status.success() {
        eprintln!("skipped: mount namespaces are not permitted here (root is needed)");
        return;
    }
    let (from, to) = (programs.to_string_lossy(), other.to_string_lossy());
    ok(&run(place.path(), unshare, &["--mount", "sh", "-c", START, "sh", &from, &to]));
    let forebay = programs.join("forebay");
    let forebay = |words: &[&str]| run(place.path(), &forebay, words);
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
fn a_program_with_process_numbers_of_its_own_is_told_at_once() {
    let place = tempfile::tempdir().expect("a directory");
    let unshare = Path::new("unshare");
    let words = ["--pid", "--fork", "--kill-child"];
    if !run(place.path(), unshare, &[&words[..], &["true"]].concat()).status.success() {
        eprintln!("skipped: namespaces of processes are not permitted here (root is needed)");
        return;
    }
    let forebay = directory_of_programs().join("forebay");
    let start = ["start", "--name", "numbers"];
    ok(&run(place.path(), &forebay, &start));
    let path = forebay.to_string_lossy();
    let inside = [&path[..], "run", "--name", "numbers", "--", "sh", "-c", "echo x >/forebay/a"];
    let told = run(place.path(), unshare, &[&words[..], &inside].concat());
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    let same = ["run", "--name", "numbers", "--", "sh", "-c", "echo x >/forebay/a; cat /forebay/a"];
    let here = run(place.path(), &forebay, &same);
    ok(&run(place.path(), &forebay, &["stop", "--name", "numbers"]));
    assert!(!told.status.success() && text.contains("not supported"), "{text}");
    assert_eq!(ok(&here), "x\n");
}
