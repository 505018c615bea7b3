//! Small files: their first extents are preallocated (`data::space::preallocation`). Programs see
//! each other's files, nothing acknowledged is lost with a daemon, and unused preallocated space is
//! freed.

use crate::support::{Instance, Worker, text, wait_for};
use testkit::{content, digest};

const LENGTH: u64 = 3901;

fn name(program: usize, file: u64) -> String {
    format!("/forebay/p{program}.{file}")
}

/// Sends each program the commands to write its files; the answers are read later.
fn send(programs: &mut [Worker], files: std::ops::Range<u64>) {
    for file in files {
        for (number, program) in programs.iter_mut().enumerate() {
            program.send(&format!("put {} {} {LENGTH}", name(number, file), file + 1));
        }
    }
}

fn all_is_done(programs: &mut [Worker], files: std::ops::Range<u64>) {
    for file in files {
        for program in programs.iter_mut() {
            assert_eq!(program.answer().as_deref(), Some("ok"), "file {file}");
        }
    }
}

/// Each program finds the files that the others wrote.
fn check(programs: &mut [Worker], files: std::ops::Range<u64>) {
    for file in files {
        let right = format!("ok {LENGTH} {}", digest(&content(file + 1, 0, LENGTH)));
        for writer in 0..programs.len() {
            let reader = (writer + 1) % programs.len();
            let path = name(writer, file);
            assert_eq!(programs[reader].ask(&format!("get {path}")), right, "{path}");
        }
    }
}

fn requests(instance: &Instance) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("a list").clone();
    daemons.iter().map(|one| one["state"]["requests"].as_u64().expect("a number")).sum()
}

fn remove_all(programs: &mut [Worker], files: std::ops::Range<u64>) {
    for file in files {
        for (number, program) in programs.iter_mut().enumerate() {
            assert_eq!(program.ask(&format!("unlink {}", name(number, file))), "ok");
        }
    }
}

fn small_files(daemons: &str) {
    let options = ["--local", daemons, "--memory", "32MiB", "--ssd", "0"];
    let instance = Instance::start(&format!("small{daemons}"), &options);
    let mut programs = [instance.worker(), instance.worker()];
    let mut end = 400;
    send(&mut programs, 0..end);
    all_is_done(&mut programs, 0..end);
    check(&mut programs, 0..end);
    // One request for each file was for its first extent.
    assert!(requests(&instance) < 2 * end, "{} requests", requests(&instance));
    for round in 0..testkit::rounds(4) {
        let victim = instance.daemon(round as usize % daemons.parse::<usize>().expect("a number"));
        send(&mut programs, end..end + 50);
        if round % 2 == 0 {
            // Everything that succeeds while the daemon is stopped, programs do by themselves.
            victim.stop();
            send(&mut programs, end + 50..end + 70);
        } else {
            send(&mut programs, end + 50..end + 70);
        }
        victim.kill();
        victim.wait();
        instance.start_again();
        all_is_done(&mut programs, end..end + 70);
        end += 70;
        check(&mut programs, 0..end);
    }
    wait_for("the space of the files", || instance.used() == 2 * end * 4096);
    remove_all(&mut programs, 0..end);
    wait_for("all space to be freed", || instance.used() == 0);
}

#[test]
fn programs_see_each_others_small_files_and_none_is_lost_with_a_daemon() {
    small_files("1");
}

#[test]
fn small_files_survive_where_names_and_bytes_are_on_two_daemons() {
    small_files("2");
}

/// A child writes to a file that its parent created and has not written yet, and vice versa.
#[test]
fn parents_and_children_write_to_one_new_file() {
    let instance = Instance::start("fork", &["--memory", "32MiB", "--ssd", "0"]);
    let script = "cd /forebay; i=0; while [ $i -lt 100 ]; do exec 3>f$i; (printf child >&3); \
                  printf parent >&3; (printf again >&3); exec 3>&-; i=$((i + 1)); done; cat f*";
    let output = instance.program(&["sh", "-c", script]).output().expect("the shell runs");
    assert_eq!(text(&output.stdout), "childparentagain".repeat(100), "{}", text(&output.stderr));
}

/// Unused preallocated extents do not keep space from a writer.
#[test]
fn a_full_instance_holds_no_space_for_future_files() {
    const MEMORY: u64 = 16 << 20;
    let instance =
        Instance::start("vain", &["--memory", "16MiB", "--ssd", "0", "--stripe-size", "64KiB"]);
    let mut programs = [instance.worker(), instance.worker()];
    for round in 0..3 {
        send(&mut programs, 0..100);
        all_is_done(&mut programs, 0..100);
        let [first, _] = &mut programs;
        assert_eq!(first.ask("open big /forebay/big wc"), "ok");
        let refused = (0..).find_map(|block: u64| {
            let answer = first.ask(&format!("write big 1 {} 65536", block << 16));
            (answer != "ok").then_some(answer)
        });
        assert_eq!(refused.as_deref(), Some("err 28"), "round {round}");
        // Between the extents of the large file there is space for small ones.
        let fitted = (0..).find(|file| {
            let answer = first.ask(&format!("put /forebay/more{file} 1 100"));
            assert!(["ok", "err 28"].contains(&&*answer), "round {round}: {answer}");
            answer != "ok"
        });
        assert_eq!(instance.used(), MEMORY, "round {round}");
        for file in 0..=fitted.unwrap_or(0) {
            assert_eq!(first.ask(&format!("unlink /forebay/more{file}")), "ok");
        }
        assert_eq!(first.ask("close big"), "ok");
        assert_eq!(first.ask("unlink /forebay/big"), "ok");
        check(&mut programs, 0..100);
        remove_all(&mut programs, 0..100);
        wait_for("all space to be freed", || instance.used() == 0);
    }
}
