//! Memory is lent to an instance and taken back: what is free is given back at once, files move to the
//! SSD,
//! what can not be given back is said, and bytes stay what they were, also when daemons die meanwhile.

mod support;

use serde_json::Value;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use support::{Instance, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

/// What a command says with `--json`, and its exit code.
fn said(instance: &Instance, word: &str, words: &[&str]) -> (Value, i32) {
    let output = instance.command(word).arg("--json").args(words).output().expect("it runs");
    let answer = serde_json::from_slice(&output.stdout);
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (answer, output.status.code().unwrap_or(-1))
}

/// The only daemon, as a command shows it.
fn daemon(answer: &Value) -> Value {
    answer["nodes"][0]["daemons"][0].clone()
}

fn state(instance: &Instance, name: &str) -> u64 {
    let state = &instance.status()["daemons"][0]["state"];
    state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
}

/// Bytes that the system holds for the arena.
fn resident(instance: &Instance) -> u64 {
    let user = rustix::process::geteuid().as_raw();
    let arena = format!("/dev/shm/forebay-{user}-{}/h0/d0.arena", instance.name);
    let arena = std::fs::metadata(PathBuf::from(arena)).expect("the arena");
    arena.blocks() * 512
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "Memory that is taken back is the node's again when the command ends" (docs/semantics.md).
#[test]
fn what_is_taken_back_is_the_nodes_again() {
    let options = ["--memory", "64MiB", "--ssd", "512MiB", "--room", "0"];
    let instance = Instance::start("reclaim", &options);
    let mut worker = instance.worker();
    for file in 0..3 {
        assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} {}", 8 * MIB)), "ok");
    }
    wait_for("memory made ready", || resident(&instance) == 64 * MIB);

    // Free memory alone: nothing moves.
    let (answer, code) = said(&instance, "reclaim", &["32MiB", "here"]);
    let one = daemon(&answer);
    assert_eq!(code, 0, "{answer}");
    assert_eq!((&one["allowance"], &one["given_back"]), (&(32 * MIB).into(), &(32 * MIB).into()));
    assert_eq!(resident(&instance), 32 * MIB);
    assert_eq!(state(&instance, "bytes_sunk"), 0);
    assert_eq!(state(&instance, "memory_given_back"), 32 * MIB);

    // All: files move.
    let (answer, code) = said(&instance, "reclaim", &["all"]);
    assert_eq!((code, &daemon(&answer)["held"]), (0, &0.into()), "{answer}");
    assert_eq!(resident(&instance), 0);
    assert_eq!(state(&instance, "bytes_sunk"), 24 * MIB);
    assert_eq!(instance.status()["daemons"][0]["state"]["memory_reason"], "set");

    // Who writes now writes to the SSD, and it stays so for a daemon that is started again.
    let daemon_before = instance.daemon(0);
    assert_eq!(worker.ask(&format!("put /forebay/f3 3 {}", 8 * MIB)), "ok");
    daemon_before.kill();
    daemon_before.wait();
    instance.start_again();
    for file in 0..4 {
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right(file, 8 * MIB));
    }
    assert_eq!((state(&instance, "memory_allowance"), resident(&instance)), (0, 0));

    // Lent again, memory takes what comes.
    let (answer, code) = said(&instance, "lend", &["50%", "here"]);
    assert_eq!((code, &daemon(&answer)["allowance"]), (0, &(32 * MIB).into()), "{answer}");
    assert_eq!(worker.ask(&format!("put /forebay/f4 4 {}", 8 * MIB)), "ok");
    assert!(state(&instance, "memory_used") >= 8 * MIB);
    assert_eq!(worker.ask("get /forebay/f4"), right(4, 8 * MIB));
    for file in 0..5 {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
    }
    wait_for("all space back", || instance.used() == 0);
}

#[test]
fn what_can_not_be_given_back_is_said() {
    let instance = Instance::start("keeps", &["--memory", "32MiB", "--ssd", "0"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 8 * MIB)), "ok");
    let (answer, code) = said(&instance, "reclaim", &["all", "--timeout", "20s"]);
    let one = daemon(&answer);
    assert_eq!((code, &one["held"]), (1, &(8 * MIB).into()), "{answer}");
    assert_eq!(one["why"], "no SSD, and no other node, has room for the files in it");
    assert_eq!(resident(&instance), 8 * MIB, "what is free is given back all the same");
    // There is no room for more, until the file goes.
    assert_eq!(worker.ask(&format!("put /forebay/g 1 {}", 8 * MIB)), "err 28");
    assert_eq!(worker.ask("get /forebay/f"), right(1, 8 * MIB));
    assert_eq!(worker.ask("unlink /forebay/f"), "ok");
    assert_eq!(worker.ask("unlink /forebay/g"), "ok");
    wait_for("the rest", || resident(&instance) == 0);
}

/// Maps a file and says so; ends when it is told.
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
fn what_is_mapped_is_given_back_when_it_is_mapped_no_more() {
    let options = ["--memory", "32MiB", "--ssd", "256MiB", "--room", "0"];
    let instance = Instance::start("keepsmap", &options);
    let mut program = instance.program(&["python3", "-c", MAPPER]);
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("it runs");
    let mut line = [0; 7];
    let output = program.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut line).expect("a line");
    let (answer, code) = said(&instance, "reclaim", &["all"]);
    let one = daemon(&answer);
    assert_eq!((code, &one["held"]), (1, &(4 * MIB).into()), "{answer}");
    assert_eq!(one["why"], "programs have the files in it mapped, or use them");
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    wait_for("the rest", || resident(&instance) == 0);
    let (answer, code) = said(&instance, "reclaim", &["all", "here"]);
    assert_eq!((code, &daemon(&answer)["held"]), (0, &0.into()), "{answer}");
}

#[test]
fn words_that_make_no_sense_are_refused() {
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
            command = std::process::Command::new(support::profile().join("forebay"));
            command.arg(word);
        }
        let output = command.args(&words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{word} {words:?}: {}", text(&output.stderr));
    }
    // A range needs an SSD.
    let mut command = std::process::Command::new(support::profile().join("forebay"));
    command.args(["start", "--name", "lend-range", "--memory", "0..64MiB", "--ssd", "0"]);
    let output = command.env("XDG_RUNTIME_DIR", instance.place.path()).output().expect("it runs");
    assert!(text(&output.stderr).contains("that is no range"), "{}", text(&output.stderr));
}

/// A job's control group may have what is not lent; where its limit can not be set, that is said.
#[test]
fn a_jobs_limit_leaves_out_what_is_lent() {
    let instance = Instance::start("jobgroup", &["--memory", "64MiB", "--ssd", "0"]);
    let memory = std::fs::read_to_string("/proc/meminfo").expect("it tells");
    let all = memory.lines().next().and_then(|line| line.split_whitespace().nth(1));
    let all = all.and_then(|kib| kib.parse::<u64>().ok()).expect("a total") * 1024;
    let group = instance.place.path().join("group");
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
        let (answer, code) = said(&instance, word, &[amount, "here", "--job-group", path]);
        assert_eq!((code, limit()), (0, (all - lent * MIB).to_string()), "{answer}");
        assert_eq!(answer["job_limit"], all - lent * MIB);
    }
    let (answer, code) = said(&instance, "lend", &["auto", "here", "--job-group", path]);
    assert_eq!(code, 2, "{answer}");
    std::fs::remove_file(group.join("memory.max")).expect("removed");
    let (answer, code) = said(&instance, "lend", &["all", "here", "--job-group", path]);
    assert_eq!(code, 1, "{answer}");
    std::fs::create_dir(group.join("memory.max")).expect("what can not be written");
    let (answer, code) = said(&instance, "lend", &["all", "here", "--job-group", path]);
    assert_eq!((code, answer["job_limit"]["not"].is_string()), (0, true), "{answer}");
    wait_for("the bound alone", || state(&instance, "memory_allowance") == 64 * MIB);
}

/// The memory goes to and fro while programs write, read and remove, and while daemons die.
#[test]
fn bytes_stay_what_they_were_while_memory_comes_and_goes() {
    let options = [
        "--memory", "32MiB", "--ssd", "512MiB", "--room", "50", "--idle", "1ms", "--chunk", "1MiB",
    ];
    let instance = Instance::start("tofro", &options);
    let seed = support::setting("TEST_SEED", 1);
    let mut random = support::Random::new(seed);
    let mut worker = instance.worker();
    let mut known = std::collections::BTreeMap::new();
    for round in 0..support::setting("TEST_ROUNDS", 24) {
        let amount = format!("{}MiB", random.below(34));
        let lend = instance.command("lend").arg(&amount).stdout(Stdio::null()).spawn();
        let mut told = Vec::new();
        for _ in 0..10 {
            let file = random.below(16);
            let line = match known.get(&file) {
                Some(&(contents, length)) if random.below(2) == 0 => {
                    told.push(right(contents, length));
                    format!("get /forebay/f{file}")
                }
                Some(_) if random.below(4) == 0 => {
                    known.remove(&file);
                    told.push("ok".to_owned());
                    format!("unlink /forebay/f{file}")
                }
                _ => {
                    let length = random.below(4 * MIB) >> random.below(6);
                    let contents = random.next() % 100_000;
                    known.insert(file, (contents, length));
                    told.push("ok".to_owned());
                    format!("put /forebay/f{file} {contents} {length}")
                }
            };
            worker.tell(&line);
        }
        if round % 4 == 3 {
            let victim = instance.daemon(0);
            victim.kill();
            victim.wait();
            instance.start_again();
        }
        for wanted in told {
            assert_eq!(worker.answer(), Some(wanted), "seed {seed}, round {round}");
        }
        // It may have met the kill.
        lend.expect("it runs").wait().expect("it ends");
        for (file, &(contents, length)) in &known {
            let answer = worker.ask(&format!("get /forebay/f{file}"));
            assert_eq!(answer, right(contents, length), "seed {seed}, round {round}, file {file}");
        }
    }
    let (answer, code) = said(&instance, "reclaim", &["all"]);
    assert_eq!((code, resident(&instance)), (0, 0), "{answer}");
    for (file, &(contents, length)) in &known {
        assert_eq!(worker.ask(&format!("get /forebay/f{file}")), right(contents, length));
    }
}
