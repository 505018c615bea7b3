//! Memory is lent to an instance and reclaimed: free memory is given back at once, files move to
//! the SSD, memory that cannot be given back is reported, and contents are unchanged, also when
//! daemons die meanwhile.

use crate::support::{Instance, text, wait_for};
use serde_json::Value;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

/// Output of a command with `--json`, and its exit code.
fn printed(instance: &Instance, word: &str, words: &[&str]) -> (Value, i32) {
    let output = instance.command(word).arg("--json").args(words).output().expect("it runs");
    let answer = serde_json::from_slice(&output.stdout);
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (answer, output.status.code().unwrap_or(-1))
}

/// The only daemon in the output of a command.
fn daemon(answer: &Value) -> Value {
    answer["nodes"][0]["daemons"][0].clone()
}

fn state(instance: &Instance, name: &str) -> u64 {
    let state = &instance.status()["daemons"][0]["state"];
    state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
}

/// Bytes of memory that the kernel has allocated for the arena.
fn pinned(instance: &Instance) -> u64 {
    let user = rustix::process::geteuid().as_raw();
    let arena = format!("/dev/shm/forebay-{user}-{}/h0/d0.arena", instance.name);
    let arena = std::fs::metadata(PathBuf::from(arena)).expect("the arena");
    arena.blocks() * 512
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "Reclaimed memory belongs to the node again when the command ends"
/// (docs/semantics/durability.md).
#[test]
fn reclaimed_memory_belongs_to_the_node_again() {
    let options = ["--memory", "64MiB", "--ssd", "512MiB", "--demote-low-watermark", "0"];
    let instance = Instance::start("reclaim", &options);
    let mut worker = instance.worker();
    for file in 0..3 {
        assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} {}", 8 * MIB)), "ok");
    }
    wait_for("memory to be prepared", || pinned(&instance) == 64 * MIB);

    // Only free memory: nothing moves.
    let (answer, code) = printed(&instance, "reclaim", &["32MiB", "here"]);
    let one = daemon(&answer);
    assert_eq!(code, 0, "{answer}");
    assert_eq!((&one["allowance"], &one["released"]), (&(32 * MIB).into(), &(32 * MIB).into()));
    assert_eq!(pinned(&instance), 32 * MIB);
    assert_eq!(state(&instance, "bytes_demoted"), 0);
    wait_for("the counter to follow", || state(&instance, "memory_released") == 32 * MIB);

    // All of it: files move.
    let (answer, code) = printed(&instance, "reclaim", &["all"]);
    assert_eq!((code, &daemon(&answer)["held"]), (0, &0.into()), "{answer}");
    assert_eq!(pinned(&instance), 0);
    wait_for("the counter to follow", || state(&instance, "bytes_demoted") == 24 * MIB);
    assert_eq!(instance.status()["daemons"][0]["state"]["memory_reason"], "set");

    // New writes go to the SSD, also after a restart of the daemon.
    let daemon_before = instance.daemon(0);
    assert_eq!(worker.ask(&format!("put /forebay/f3 3 {}", 8 * MIB)), "ok");
    daemon_before.kill();
    daemon_before.wait();
    instance.start_again();
    for file in 0..4 {
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right(file, 8 * MIB));
    }
    assert_eq!((state(&instance, "memory_allowance"), pinned(&instance)), (0, 0));

    // Lent again: memory takes new data.
    let (answer, code) = printed(&instance, "lend", &["50%", "here"]);
    assert_eq!((code, &daemon(&answer)["allowance"]), (0, &(32 * MIB).into()), "{answer}");
    assert_eq!(worker.ask(&format!("put /forebay/f4 4 {}", 8 * MIB)), "ok");
    wait_for("memory to be used", || state(&instance, "memory_used") >= 8 * MIB);
    assert_eq!(worker.ask("get /forebay/f4"), right(4, 8 * MIB));
    for file in 0..5 {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
    }
    wait_for("all space to be freed", || instance.used() == 0);
}

#[test]
fn reclaim_reports_what_cannot_be_given_back() {
    let instance = Instance::start("keeps", &["--memory", "32MiB", "--ssd", "0"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 8 * MIB)), "ok");
    let (answer, code) = printed(&instance, "reclaim", &["all", "--timeout", "20s"]);
    let one = daemon(&answer);
    assert_eq!((code, &one["held"]), (1, &(8 * MIB).into()), "{answer}");
    assert_eq!(one["why"], "neither an SSD nor another node has space for its files");
    assert_eq!(pinned(&instance), 8 * MIB, "free memory is given back all the same");
    // There is no space for more until the file is removed.
    assert_eq!(worker.ask(&format!("put /forebay/g 1 {}", 8 * MIB)), "err 28");
    assert_eq!(worker.ask("get /forebay/f"), right(1, 8 * MIB));
    assert_eq!(worker.ask("unlink /forebay/f"), "ok");
    assert_eq!(worker.ask("unlink /forebay/g"), "ok");
    wait_for("the rest", || pinned(&instance) == 0);
}

/// Maps a file and reports it; ends when told to.
const MAPPER: &str = "
import mmap, os, sys
fd = os.open('/forebay/mapped', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 4 << 20)
m = mmap.mmap(fd, 4 << 20)
m[:] = b'a' * (4 << 20)
print('mapped', flush=True)
sys.stdin.readline()
";

#[test]
fn mapped_memory_is_given_back_after_it_is_unmapped() {
    let options = ["--memory", "32MiB", "--ssd", "256MiB", "--demote-low-watermark", "0"];
    let instance = Instance::start("keepsmap", &options);
    let mut program = instance.program(&["python3", "-c", MAPPER]);
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("it runs");
    let mut line = [0; 7];
    let output = program.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut line).expect("a line");
    let (answer, code) = printed(&instance, "reclaim", &["all"]);
    let one = daemon(&answer);
    assert_eq!((code, &one["held"]), (1, &(4 * MIB).into()), "{answer}");
    assert_eq!(one["why"], "programs use or map its files");
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    wait_for("the rest", || pinned(&instance) == 0);
    let (answer, code) = printed(&instance, "reclaim", &["all", "here"]);
    assert_eq!((code, &daemon(&answer)["held"]), (0, &0.into()), "{answer}");
}

/// `lend auto` tells the allowance that it leads to, not the one before.
#[test]
fn lent_by_what_is_idle_the_answer_is_measured() {
    let instance = Instance::start("lendauto", &["--memory", "64MiB", "--ssd", "128MiB"]);
    for _ in 0..2 {
        let (answer, code) = printed(&instance, "lend", &["25%", "here"]);
        assert_eq!((code, &daemon(&answer)["allowance"]), (0, &(16 * MIB).into()), "{answer}");
        let (answer, code) = printed(&instance, "reclaim", &["all", "here"]);
        assert_eq!((code, &daemon(&answer)["allowance"]), (0, &0.into()), "{answer}");
        for _ in 0..2 {
            let (answer, code) = printed(&instance, "lend", &["auto"]);
            let one = daemon(&answer);
            assert_eq!(code, 0, "{answer}");
            assert_ne!(one["reason"], "unknown", "{answer}");
            let is_short = ["pressure", "available"].iter().any(|word| one["reason"] == **word);
            assert!(is_short || one["allowance"].as_u64() > Some(0), "{answer}");
        }
    }
}

#[test]
fn invalid_amounts_of_lend_and_reclaim_are_refused() {
    let instance = Instance::start("lendwords", &["--memory", "32MiB", "--ssd", "0"]);
    for (word, words, code) in [
        ("lend", vec!["1GiB..2GiB"], 2),
        ("lend", vec!["much"], 2),
        ("reclaim", vec!["auto"], 2),
        ("reclaim", vec!["1GiB", "nowhere"], 1),
        ("lend", vec!["1GiB", "--name", "nothing-of-that-name"], 3),
    ] {
        let mut command = instance.command(word);
        if words.contains(&"--name") {
            command = std::process::Command::new(crate::support::profile().join("forebay"));
            command.arg(word);
        }
        let output = command.args(&words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{word} {words:?}: {}", text(&output.stderr));
    }
    // A range needs an SSD.
    let mut command = std::process::Command::new(crate::support::profile().join("forebay"));
    command.args(["start", "--name", "lend-range", "--memory", "0..64MiB", "--ssd", "0"]);
    let output = command.env("XDG_RUNTIME_DIR", instance.dir.path()).output().expect("it runs");
    assert!(text(&output.stderr).contains("that is not a range"), "{}", text(&output.stderr));
}

/// A job's control group gets the memory that is not lent; a limit that cannot be set is reported.
#[test]
fn the_limit_of_a_jobs_control_group_excludes_lent_memory() {
    let instance = Instance::start("jobgroup", &["--memory", "64MiB", "--ssd", "0"]);
    let memory = std::fs::read_to_string("/proc/meminfo").expect("it reports");
    let all = memory.lines().next().and_then(|line| line.split_whitespace().nth(1));
    let all = all.and_then(|kib| kib.parse::<u64>().ok()).expect("a total") * 1024;
    let group = instance.dir.path().join("group");
    std::fs::create_dir(&group).expect("a directory");
    let path = group.to_str().expect("text");
    let limit = || std::fs::read_to_string(group.join("memory.max")).expect("a limit");
    std::fs::write(group.join("memory.max"), "max\n").expect("written");
    std::fs::write(group.join("memory.current"), "4096\n").expect("written");
    for (word, amount, lent) in [
        ("lend", "64MiB", 64),
        ("lend", "32MiB", 32),
        ("reclaim", "16MiB", 16),
        ("reclaim", "all", 0),
    ] {
        let (answer, code) = printed(&instance, word, &[amount, "here", "--job-group", path]);
        assert_eq!((code, limit()), (0, (all - lent * MIB).to_string()), "{answer}");
        assert_eq!(answer["job_limit"], all - lent * MIB);
    }
    let (answer, code) = printed(&instance, "lend", &["auto", "here", "--job-group", path]);
    assert_eq!(code, 2, "{answer}");
    std::fs::remove_file(group.join("memory.max")).expect("removed");
    let (answer, code) = printed(&instance, "lend", &["all", "here", "--job-group", path]);
    assert_eq!(code, 1, "{answer}");
    std::fs::create_dir(group.join("memory.max")).expect("what cannot be written");
    let (answer, code) = printed(&instance, "lend", &["all", "here", "--job-group", path]);
    assert_eq!((code, answer["job_limit"]["unchanged"].is_string()), (0, true), "{answer}");
    wait_for("the limit alone", || state(&instance, "memory_allowance") == 64 * MIB);
}

/// Memory is lent and reclaimed while programs write, read and remove, and while daemons die.
#[test]
fn contents_survive_while_memory_is_lent_and_reclaimed() {
    let options = [
        "--memory",
        "32MiB",
        "--ssd",
        "512MiB",
        "--demote-low-watermark",
        "50",
        "--demote-idle-age",
        "1ms",
        "--stripe-size",
        "1MiB",
    ];
    let instance = Instance::start("tofro", &options);
    let seed = testkit::seed(1);
    let mut random = crate::support::Random::new(seed);
    let mut worker = instance.worker();
    let mut known = std::collections::BTreeMap::new();
    for round in 0..testkit::rounds(12) {
        let amount = format!("{}MiB", random.uniform(34));
        let lend = instance.command("lend").arg(&amount).stdout(Stdio::null()).spawn();
        let mut reported = Vec::new();
        for _ in 0..10 {
            let file = random.uniform(16);
            let line = match known.get(&file) {
                Some(&(contents, length)) if random.uniform(2) == 0 => {
                    reported.push(right(contents, length));
                    format!("get /forebay/f{file}")
                }
                Some(_) if random.uniform(4) == 0 => {
                    known.remove(&file);
                    reported.push("ok".to_owned());
                    format!("unlink /forebay/f{file}")
                }
                _ => {
                    let length = random.uniform(4 * MIB) >> random.uniform(6);
                    let contents = random.next() % 100_000;
                    known.insert(file, (contents, length));
                    reported.push("ok".to_owned());
                    format!("put /forebay/f{file} {contents} {length}")
                }
            };
            worker.send(&line);
        }
        if round % 4 == 3 {
            let victim = instance.daemon(0);
            victim.kill();
            victim.wait();
            instance.start_again();
        }
        for expected in reported {
            assert_eq!(worker.answer(), Some(expected), "seed {seed}, round {round}");
        }
        // It may have met the kill.
        lend.expect("it runs").wait().expect("it ends");
        for (file, &(contents, length)) in &known {
            let answer = worker.ask(&format!("get /forebay/f{file}"));
            assert_eq!(answer, right(contents, length), "seed {seed}, round {round}, file {file}");
        }
    }
    let (answer, code) = printed(&instance, "reclaim", &["all"]);
    assert_eq!((code, pinned(&instance)), (0, 0), "{answer}");
    for (file, &(contents, length)) in &known {
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right(contents, length));
    }
}
