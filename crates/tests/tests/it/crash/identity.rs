//! Files of an instance that are missing, empty, damaged, old, or of another instance when its daemon is
//! restarted: the start names the file, nothing is removed, and with the file back everything is there.

use crate::support::damage::flip;
use crate::support::{Instance, profile, text, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SETTINGS: [&str; 8] =
    ["--local", "1", "--memory", "16MiB", "--ssd", "16MiB", "--domains", "auto"];

/// Directory of the run files of an instance.
fn run(instance: &Instance) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    instance.dir.path().join(format!("forebay-{user}/{}", instance.name))
}

/// Directory of the shared memory of its daemons.
fn memory(instance: &Instance) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    PathBuf::from(format!("/dev/shm/forebay-{user}-{}/h0", instance.name))
}

fn started() -> Instance {
    let instance = Instance::start("identity", &SETTINGS);
    let script = "head -c 3000000 /dev/zero | tr '\\0' x >/forebay/big; echo small >/forebay/small";
    let wrote = instance.program(&["sh", "-c", script]).output().expect("forebay runs");
    assert!(wrote.status.success(), "{}", text(&wrote.stderr));
    let mut rule = Command::new(profile().join("forebay"));
    rule.args(["qos", "set", "--name", &instance.name, "other", "jobid={other}", "bw=5M"]);
    rule.env("XDG_RUNTIME_DIR", instance.dir.path()).env("FOREBAY_DIR", instance.dir.path());
    let ruled = rule.output().expect("forebay runs");
    assert!(ruled.status.success(), "{}", text(&ruled.stderr));
    // The only voter stores the first membership when it begins.
    let voted = ["members.base", "members.tail"].map(|it| instance.data(0).join(it));
    wait_for("the voter's files", || voted.iter().all(|it| it.exists()));
    instance
}

fn end_daemon(instance: &Instance) {
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
}

fn contents(instance: &Instance) -> String {
    let script = "tr -d x </forebay/big | wc -c; wc -c </forebay/big; cat /forebay/small";
    text(&instance.program(&["sh", "-c", script]).output().expect("forebay runs").stdout)
}

/// Files whose loss or change must be noticed.
fn files(instance: &Instance) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = ["secret", "instance.json", "host.json"]
        .iter()
        .map(|name| run(instance).join(name))
        .collect();
    for directory in [instance.data(0), instance.data(0).join("log0"), memory(instance)] {
        let found = fs::read_dir(&directory).expect("a directory").flatten().map(|it| it.path());
        // The lock is made anew, `.new` is space for the next record, and counters of jobs (`activity`)
        // are no reason to refuse a start.
        let is_state = |path: &PathBuf| {
            let is_temporary = path.extension().is_some_and(|it| it == "lock" || it == "new");
            path.is_file() && !is_temporary && !path.ends_with("activity")
        };
        all.extend(found.filter(is_state));
    }
    assert!(all.len() > 15, "{all:?}");
    all
}

/// A start fails, names the file, and leaves everything where it was.
fn refuses(instance: &Instance, file: &Path, what: &str) {
    let output = instance.try_start();
    let said = text(&output.stderr);
    let name = file.file_name().expect("a name").to_string_lossy();
    assert!(!output.status.success(), "{name} {what}: nothing is noticed");
    assert!(said.contains(&*name), "{name} {what}: not named: {said}");
}

/// `forebay check` tells that the file is damaged.
fn is_named_by_a_check(instance: &Instance, file: &Path) {
    let output = instance.command("check").output().expect("forebay runs");
    let said = text(&output.stdout);
    let named = format!("corrupt record, file={}", file.display());
    assert_eq!(output.status.code(), Some(4), "{said} {}", text(&output.stderr));
    assert!(said.contains(&named), "{named}: {said}");
}

/// "A start finds every file of the earlier one, or fails and names it" (docs/semantics/durability.md).
#[test]
fn a_file_that_is_missing_empty_or_of_another_instance_is_named() {
    let (instance, other) = (started(), started());
    end_daemon(&instance);
    let files = files(&instance);
    for file in &files {
        let aside = file.with_extension("aside");
        fs::rename(file, &aside).expect("moved");
        refuses(&instance, file, "missing");
        fs::write(file, "").expect("written");
        refuses(&instance, file, "empty");
        let theirs = file.to_string_lossy().replace(&instance.name, &other.name);
        let base = instance.dir.path().to_string_lossy().into_owned();
        let theirs = theirs.replace(&base, &other.dir.path().to_string_lossy());
        // A record of a command is that of this name, whichever instance wrote it; the secret decides.
        if file.extension().is_none_or(|it| it != "json") {
            fs::copy(&theirs, file).expect("copied");
            let output = instance.try_start();
            let said = text(&output.stderr);
            assert!(!output.status.success(), "{}: another instance's is taken", file.display());
            assert!(said.contains("of another instance"), "{}: {said}", file.display());
        }
        fs::rename(&aside, file).expect("moved back");
    }
    instance.start_again();
    assert_eq!(contents(&instance), "0\n3000000\nsmall\n");
}

/// Each record, the log, the state of the consensus and the rules, with a byte changed or the end cut
/// off.
#[test]
fn a_damaged_file_is_named() {
    let instance = started();
    end_daemon(&instance);
    let log = instance.data(0).join("log0/log-00000001");
    let starts = [instance.data(0).join("starts"), memory(&instance).join("d0.starts")];
    let replaced = ["members.base", "members.tail", "qos"].map(|it| instance.data(0).join(it));
    for file in starts.iter().chain([&log]).chain(&replaced) {
        let whole = fs::read(file).expect("read");
        let end = whole.iter().rposition(|byte| *byte != 0).expect("contents") + 1;
        for at in [0, 40, end / 2, end - 1] {
            let mut bytes = whole.clone();
            flip(&mut bytes, at);
            fs::write(file, &bytes).expect("written");
            refuses(&instance, file, "damaged");
            if replaced.contains(file) {
                is_named_by_a_check(&instance, file);
            }
            fs::write(file, &whole[..at]).expect("written");
            refuses(&instance, file, "cut");
        }
        fs::write(file, &whole).expect("written");
    }
    let checked = instance.command("check").output().expect("forebay runs");
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stdout));
    let ssd =
        fs::OpenOptions::new().write(true).open(instance.data(0).join("ssd")).expect("opened");
    let length = ssd.metadata().expect("its length").len();
    ssd.set_len(length - 4096).expect("cut");
    refuses(&instance, &instance.data(0).join("ssd"), "cut");
    ssd.set_len(length).expect("grown");
    refuses(&instance, &instance.data(0).join("ssd"), "without its owner");
}

/// After a power failure the memory is gone: the start says so, whatever is left of the records on disk.
#[test]
fn a_start_after_a_power_failure_says_that_the_memory_is_gone() {
    let instance = started();
    end_daemon(&instance);
    fs::remove_dir_all(memory(&instance)).expect("removed");
    let output = instance.try_start();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("memory of the instance is gone"), "{said}");
    for left in ["", "12345"] {
        fs::write(instance.data(0).join("starts"), left).expect("written");
        refuses(&instance, &instance.data(0).join("starts"), "lost in the failure");
    }
    // A `--dir` in memory is gone, too: no empty instance takes its place.
    fs::remove_dir_all(instance.data(0)).expect("removed");
    refuses(&instance, &instance.data(0).join("starts"), "lost with its directory");
    assert!(!memory(&instance).join("d0.arena").exists(), "an empty instance was made");
}
