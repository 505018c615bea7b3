//! The directories of a running instance are removed, as session managers and cleaners of temporary
//! directories do. Daemons make the run directory again, commands find them, and nothing that a
//! living daemon uses is removed by a command that fails.

use crate::support::{Instance, Worker, text, wait_for};
use std::fs;
use std::path::PathBuf;
use std::process::Output;

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn run_directory(instance: &Instance) -> PathBuf {
    instance.dir.path().join(format!("forebay-{}/{}", user(), instance.name))
}

fn shared_memory(instance: &Instance) -> PathBuf {
    format!("/dev/shm/forebay-{}-{}", user(), instance.name).into()
}

fn forebay(instance: &Instance, word: &str) -> Output {
    instance.command(word).output().expect("forebay runs")
}

fn put_and_get(worker: &mut Worker, name: &str) {
    assert_eq!(worker.ask(&format!("put /forebay/{name} 1 100000")), "ok");
    assert!(worker.ask(&format!("get /forebay/{name}")).starts_with("ok 100000 "));
}

fn remove_run_directory(instance: &Instance) {
    // A daemon that answers has read the records.
    assert!(forebay(instance, "status").status.success());
    let gone = instance.dir.path().join("gone");
    // At once: the daemons make it again while it is emptied, too.
    fs::rename(run_directory(instance), &gone).expect("renamed");
    fs::remove_dir_all(gone).expect("removed");
}

#[test]
fn a_run_directory_that_is_removed_is_made_again() {
    let instance = Instance::start("logout", &["--local", "2"]);
    let mut worker = instance.worker();
    put_and_get(&mut worker, "before");
    let before = forebay(&instance, "status");
    remove_run_directory(&instance);
    put_and_get(&mut worker, "without");
    let again = instance.try_start();
    assert!(text(&again.stdout).contains("already running"), "{}", text(&again.stderr));
    // One that has other things to do does not answer in the time of one status.
    wait_for("both daemons in the status", || {
        text(&forebay(&instance, "status").stdout).matches("alive").count() == 2
    });
    assert!(text(&before.stdout).contains("alive"));
    // New programs attach, and a daemon that is killed comes back and finds the other.
    let mut other = instance.worker();
    assert!(other.ask("get /forebay/before").starts_with("ok 100000 "));
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    wait_for("the restarted daemon is connected", || {
        instance.daemon_log(1).matches("peer connected").count() >= 1
    });
    put_and_get(&mut other, "after");
    assert!(instance.worker().ask("get /forebay/without").starts_with("ok 100000 "));
}

#[test]
fn an_instance_without_its_run_directory_is_stopped() {
    let instance = Instance::start("stopped", &["--local", "2"]);
    let daemons = [instance.daemon(0), instance.daemon(1)];
    remove_run_directory(&instance);
    let stopped = forebay(&instance, "stop");
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    daemons.iter().for_each(|daemon| daemon.wait());
    assert!(!shared_memory(&instance).exists() && !instance.data(0).exists());
    // A new one of the same name, for the end of this test.
    instance.start_again();
    put_and_get(&mut instance.worker(), "new");
}

#[test]
fn a_start_elsewhere_removes_nothing_of_a_living_daemon() {
    let instance = Instance::start("elsewhere", &[]);
    put_and_get(&mut instance.worker(), "kept");
    let other = tempfile::tempdir().expect("a directory");
    let there = |word: &str| {
        let mut command = instance.command(word);
        command.env("XDG_RUNTIME_DIR", other.path());
        let output = command.output().expect("forebay runs");
        (output.status.code(), text(&output.stderr))
    };
    let (code, errors) = there("start");
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("daemons of an instance"), "{errors}");
    let (code, errors) = there("stop");
    let place = format!("XDG_RUNTIME_DIR={}", instance.dir.path().display());
    assert!(code == Some(3) && errors.contains(&place), "{errors}");
    assert!(instance.worker().ask("get /forebay/kept").starts_with("ok 100000 "));
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    assert!(instance.worker().ask("get /forebay/kept").starts_with("ok 100000 "));
}

#[test]
fn an_instance_whose_shared_memory_is_removed_goes_on_and_says_so() {
    let instance = Instance::start("ipc", &["--local", "2"]);
    let mut worker = instance.worker();
    put_and_get(&mut worker, "before");
    fs::remove_dir_all(shared_memory(&instance)).expect("removed");
    remove_run_directory(&instance);
    put_and_get(&mut worker, "without");
    wait_for("the notice", || {
        let status = text(&forebay(&instance, "status").stdout);
        status.matches("files in /dev/shm were removed").count() == 2
    });
    let mut other = instance.worker();
    assert!(other.ask("get /forebay/before").starts_with("ok 100000 "));
    put_and_get(&mut other, "after");
    // A daemon without its memory does not start as an empty one.
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    let refused = instance.try_start();
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("is gone"), "{}", text(&refused.stderr));
    assert!(instance.data(0).exists(), "daemon 0 lives");
}
