//! Killed processes: daemons and programs die at random moments chosen by a seed. Acknowledged data
//! stays, other processes continue, and the resources of the dead are freed.
//!
//! "At a random moment" means while sent requests are not yet answered.

use crate::support::damage::flip;
use crate::support::{Instance, Random, Worker, in_time, wait_for};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use testkit::{content, digest};

/// Expected files: the seed of the contents and the length.
type Known = BTreeMap<String, (u64, u64)>;

/// Requests in flight at once.
const BATCH: u64 = 24;
/// Longest file: covers inline files and files of several extents.
const FILE_BYTES_MAX: u64 = 200_000;

/// A process can attach to restarted daemons 256 times in its life.
const WORKER_ROUNDS: u64 = 200;

/// A request, and its effect on the names once it is acknowledged.
enum Change {
    Put(String, u64, u64),
    Rename(String, String),
    Unlink(String),
}

impl Change {
    fn line(&self) -> String {
        match self {
            Change::Put(name, seed, length) => format!("put {name} {seed} {length}"),
            Change::Rename(from, to) => format!("rename {from} {to}"),
            Change::Unlink(name) => format!("unlink {name}"),
        }
    }

    fn apply(self, known: &mut Known) {
        match self {
            Change::Put(name, seed, length) => {
                known.insert(name, (seed, length));
            }
            Change::Rename(from, to) => {
                if let Some(content) = known.remove(&from) {
                    known.insert(to, content);
                }
            }
            Change::Unlink(name) => {
                known.remove(&name);
            }
        }
    }

    /// Names whose state is unknown if the request failed.
    fn names(&self) -> Vec<&String> {
        match self {
            Change::Put(name, ..) | Change::Unlink(name) => vec![name],
            Change::Rename(from, to) => vec![from, to],
        }
    }
}

/// A change whose names no other change of its batch touches, so that a failed one leaves the rest
/// known.
fn change(random: &mut Random, directory: u64, slot: u64) -> Change {
    let name = format!("/forebay/d{directory}/f{slot}");
    match random.uniform(8) {
        0 => Change::Rename(name.clone(), format!("{name}r")),
        1 => Change::Rename(format!("{name}r"), name),
        2 => Change::Unlink(name),
        _ => {
            let length = random.uniform(FILE_BYTES_MAX) >> random.uniform(16);
            Change::Put(name, random.next() % 100_000, length)
        }
    }
}

fn assert_is(worker: &mut Worker, name: &str, expected: (u64, u64), seed: u64) {
    let answer = worker.ask(&format!("get {name}"));
    let (content_seed, length) = expected;
    let right = format!("ok {length} {}", digest(&content(content_seed, 0, length)));
    assert_eq!(answer, right, "seed {seed}: {name}, {length} bytes of content {content_seed}");
}

/// Sends batches, kills one daemon after the other with requests in flight, and compares.
fn daemons_die(daemons: u64, rounds: u64, seed: u64) {
    let options = ["--local", &daemons.to_string(), "--memory", "64MiB", "--ssd", "0"];
    let instance = Instance::start(&format!("die{daemons}"), &options);
    let mut random = Random::new(seed);
    let mut known = Known::new();
    let mut worker = instance.worker();
    for directory in 0..4 {
        assert_eq!(worker.ask(&format!("mkdir /forebay/d{directory}")), "ok");
    }
    for round in 0..rounds {
        if round % WORKER_ROUNDS == WORKER_ROUNDS - 1 {
            worker = instance.worker();
        }
        let directory = round % 4;
        let victim = instance.daemon(usize::try_from(random.uniform(daemons)).expect("small"));
        let sent_before = random.uniform(BATCH);
        let mut sent: Vec<Change> = Vec::new();
        for slot in 0..BATCH {
            if slot == sent_before {
                // The worker is executing one of the requests sent so far, or has just finished the
                // last one.
                (0..random.uniform(20_000)).for_each(|_| std::hint::spin_loop());
                victim.kill();
            }
            let change = change(&mut random, directory, slot);
            worker.send(&change.line());
            sent.push(change);
        }
        victim.wait();
        instance.start_again();
        let mut open: Vec<String> = Vec::new();
        for change in sent {
            let line = change.line();
            let answer = worker.answer().unwrap_or_else(|| panic!("seed {seed}: ended at {line}"));
            match &*answer {
                "ok" => change.apply(&mut known),
                // There is nothing to rename or unlink.
                "err 2" => {
                    assert!(!matches!(change, Change::Put(..)), "seed {seed}: {line}: {answer}")
                }
                _ => {
                    println!("round {round}: {line}: {answer}");
                    open.extend(change.names().into_iter().cloned());
                }
            }
        }
        settle(&mut worker, &mut known, &open);
        for (name, &expected) in &known {
            assert_is(&mut worker, name, expected, seed);
        }
        assert!(known.values().all(|content| content.1 < 5000) || instance.used() > 0);
        let names = (0..4).flat_map(|number| listed(&mut worker, number)).collect::<Vec<_>>();
        let right: Vec<String> = known.keys().cloned().collect();
        assert_eq!(names, right, "seed {seed}, round {round}: names");
    }
    for name in known.keys() {
        assert_eq!(worker.ask(&format!("unlink {name}")), "ok");
    }
    drop(worker);
    wait_for("all space to be freed", || instance.used() == 0);
}

/// A failed request may have happened or not: removes its names, so that their state is known
/// again.
fn settle(worker: &mut Worker, known: &mut Known, open: &[String]) {
    for name in open {
        let answer = worker.ask(&format!("unlink {name}"));
        assert!(["ok", "err 2"].contains(&&*answer), "unlink {name}: {answer}");
        known.remove(name);
    }
}

fn listed(worker: &mut Worker, number: u64) -> Vec<String> {
    let answer = worker.ask(&format!("list /forebay/d{number}"));
    let names = answer.strip_prefix("ok").unwrap_or_else(|| panic!("list: {answer}"));
    names.split_whitespace().map(|name| format!("/forebay/d{number}/{name}")).collect()
}

/// "Acknowledged operations survive the death of any program and of the daemon"
/// (docs/semantics/durability.md).
#[test]
fn a_killed_daemon_loses_nothing_acknowledged() {
    daemons_die(1, testkit::rounds(10), testkit::seed(1));
}

#[test]
fn one_killed_daemon_of_four_loses_nothing_acknowledged() {
    daemons_die(4, testkit::rounds(10), testkit::seed(2));
}

/// Bytes of a record of the common file; each is appended by one call.
const RECORD_BYTES: u64 = 512;

/// One of several processes that work in one directory: what it made, and its next request.
struct Neighbour {
    worker: Worker,
    number: u64,
    known: Known,
}

impl Neighbour {
    fn new(instance: &Instance, number: u64) -> Neighbour {
        let mut worker = instance.worker();
        assert_eq!(worker.ask("open log /forebay/common/log wac"), "ok");
        Neighbour { worker, number, known: Known::new() }
    }

    /// Sends one more request; the answer is read later.
    fn send(&mut self, random: &mut Random, slot: u64) -> Option<Change> {
        let name = |what: &str| format!("/forebay/common/n{}-{slot}{what}", self.number);
        let change = match random.uniform(5) {
            0 => {
                self.worker.send(&format!("append log {} {RECORD_BYTES}", self.number));
                return None;
            }
            1 => Change::Rename(name(""), name("r")),
            2 => Change::Unlink(name("r")),
            _ => {
                let length = random.uniform(FILE_BYTES_MAX) >> random.uniform(16);
                Change::Put(name(""), random.next() % 100_000, length)
            }
        };
        self.worker.send(&change.line());
        Some(change)
    }
}

#[test]
fn a_killed_program_disturbs_no_other_and_leaks_no_space() {
    let seed = testkit::seed(3);
    let mut random = Random::new(seed);
    let instance = Instance::start("program", &["--local", "2", "--memory", "64MiB", "--ssd", "0"]);
    let mut first = instance.worker();
    assert_eq!(first.ask("mkdir /forebay/common"), "ok");
    let mut neighbours: Vec<Neighbour> = (0..3).map(|one| Neighbour::new(&instance, one)).collect();
    let mut appended = BTreeMap::new();
    for round in 0..testkit::rounds(10) {
        let mut victim = Neighbour::new(&instance, 100 + round);
        let pid = victim.worker.pid();
        let killed_at = random.uniform(BATCH);
        let mut sent: Vec<Vec<Option<Change>>> = neighbours.iter().map(|_| Vec::new()).collect();
        for slot in 0..BATCH {
            if slot <= killed_at {
                victim.send(&mut random, slot);
            }
            if slot == killed_at {
                (0..random.uniform(20_000)).for_each(|_| std::hint::spin_loop());
                crate::support::kill(pid);
            }
            for (one, sent) in neighbours.iter_mut().zip(&mut sent) {
                sent.push(one.send(&mut random, slot));
            }
        }
        drop(victim);
        for (one, sent) in neighbours.iter_mut().zip(sent) {
            for change in sent {
                let answer = one.worker.answer().expect("the worker continues");
                match change {
                    None => {
                        assert_eq!(answer, "ok", "seed {seed}: append");
                        *appended.entry(one.number).or_insert(0) += 1;
                    }
                    Some(change) if answer == "ok" => change.apply(&mut one.known),
                    Some(Change::Put(name, ..)) => panic!("seed {seed}: {name}: {answer}"),
                    Some(_) => assert_eq!(answer, "err 2", "seed {seed}"),
                }
            }
            for (name, &expected) in &one.known {
                assert_is(&mut one.worker, name, expected, seed);
            }
        }
    }
    assert_records(&mut first, &appended, seed);
    drop(neighbours);
    let names = first.ask("list /forebay/common");
    assert!(instance.used() > 0);
    for name in names.split_whitespace().skip(1) {
        assert_eq!(first.ask(&format!("unlink /forebay/common/{name}")), "ok", "seed {seed}");
    }
    assert_eq!(first.ask("rmdir /forebay/common"), "ok");
    // A process that was killed between counting a file and recording it leaves a stale count,
    // which is dropped once no program is left (`reaper`). So no process may query the usage.
    drop(first);
    wait_for("all space to be freed", || {
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("a list");
        let mut states = daemons.iter().map(|daemon| &daemon["state"]);
        states
            .all(|state| state["memory_used"] == 0 && state["memory_free"] == state["memory_total"])
    });
}

/// Every acknowledged record is in the common file once, whole. The record that a killed program
/// was appending may be in any state.
fn assert_records(worker: &mut Worker, appended: &BTreeMap<u64, u64>, seed: u64) {
    assert_eq!(worker.ask("open log /forebay/common/log r"), "ok");
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for record in 0.. {
        let at = record * RECORD_BYTES;
        let answer = worker.ask(&format!("read log {at} {RECORD_BYTES}"));
        if answer.starts_with("ok 0 ") {
            break;
        }
        *found.entry(answer).or_insert(0) += 1;
    }
    for (&number, count) in appended {
        let right = format!("ok {RECORD_BYTES} {}", digest(&content(number, 0, RECORD_BYTES)));
        assert_eq!(found.get(&right), Some(count), "seed {seed}: records of program {number}");
    }
    assert_eq!(worker.ask("close log"), "ok");
}

#[test]
fn locks_of_a_killed_program_are_released() {
    let instance = Instance::start("locks", &["--memory", "16MiB", "--ssd", "0"]);
    let lock = "/forebay/lock";
    for _ in 0..5 {
        let mut holder = instance
            .program(&["flock", "-F", lock, "sh", "-c", "echo $$; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("flock starts");
        let mut printed = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut printed).expect("a pid");
        let try_lock =
            || instance.program(&["flock", "-n", lock, "true"]).status().expect("flock runs");
        assert!(!try_lock().success(), "the lock is held");
        crate::support::kill(printed.trim().parse().expect("a pid"));
        holder.wait().expect("the program ends");
        wait_for("the lock", || try_lock().success());
    }
}

/// "A full instance refuses new data and keeps what it has" (docs/semantics/durability.md).
#[test]
fn a_full_instance_returns_enospc_and_accepts_data_again() {
    let instance = Instance::start("full", &["--memory", "16MiB", "--ssd", "0"]);
    let mut worker = instance.worker();
    for round in 0..3 {
        let mut files = 0;
        let refused = loop {
            let answer = worker.ask(&format!("put /forebay/f{files} {files} 1000000"));
            files += 1;
            if answer != "ok" {
                break answer;
            }
            assert!(files < 30, "16 MiB hold {files} MB");
        };
        // ENOSPC
        assert_eq!(refused, "err 28", "round {round}");
        assert!(files > 10, "only {files} MB fit");
        for file in 0..files - 1 {
            assert_is(&mut worker, &format!("/forebay/f{file}"), (file, 1_000_000), 0);
        }
        for file in 0..files {
            assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
        }
        wait_for("room", || worker.ask("put /forebay/again 1 8000000") == "ok");
        assert_is(&mut worker, "/forebay/again", (1, 8_000_000), 0);
        assert_eq!(worker.ask("unlink /forebay/again"), "ok");
        wait_for("all space to be freed", || instance.used() == 0);
    }
}

/// Changes a byte of a log.
/// Non-empty log files of a daemon and the bytes used in them; the files are longer than their
/// contents.
fn log_files(instance: &Instance) -> Vec<(std::path::PathBuf, u64)> {
    let logs = std::fs::read_dir(instance.data(0)).expect("a directory").flatten();
    let logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
    let files = logs.flat_map(|log| std::fs::read_dir(log.path()).expect("a directory").flatten());
    let files = files.map(|file| {
        let bytes = std::fs::read(file.path()).expect("a log is read");
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
        (file.path(), used)
    });
    files.filter(|(_, used)| *used > 0).collect()
}

#[test]
fn a_damaged_log_is_reported_in_one_line() {
    let seed = testkit::seed(5);
    let mut random = Random::new(seed);
    for round in 0..testkit::rounds(4) {
        let instance =
            Instance::start(&format!("damage{round}"), &["--memory", "16MiB", "--ssd", "0"]);
        let mut worker = instance.worker();
        for file in 0..30 {
            assert_eq!(worker.ask(&format!("put /forebay/f{file} {file} 900")), "ok");
        }
        drop(worker);
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        for (path, used) in log_files(&instance) {
            let mut bytes = std::fs::read(&path).expect("a log is read");
            let at = usize::try_from(random.uniform(used)).expect("within the log");
            flip(&mut bytes, at);
            std::fs::write(&path, bytes).expect("written");
        }
        let output = instance.try_start();
        let printed = crate::support::text(&output.stderr);
        let log = instance.daemon_log(0);
        assert!(!log.contains("panicked"), "seed {seed}, round {round}: {log}");
        if output.status.success() {
            // A start that succeeds has all that was acknowledged: nothing is lost in silence.
            let mut worker = instance.worker();
            for file in 0..30 {
                let answer = worker.ask(&format!("get /forebay/f{file}"));
                let right = format!("ok 900 {}", digest(&content(file, 0, 900)));
                assert_eq!(answer, right, "seed {seed}, round {round}: f{file}");
            }
        } else {
            let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
            assert_eq!(errors.len(), 1, "seed {seed}, round {round}: {log}");
            // Damage of the last record is as if it were cut off.
            let kinds = ["corrupt record, file=", "cut off, or an older copy, file="];
            for line in [errors[0], &printed] {
                let is_told = kinds.iter().any(|kind| line.contains(kind));
                assert!(is_told, "seed {seed}, round {round}: {line}");
            }
        }
    }
}

#[test]
fn calls_wait_for_a_hanging_daemon_in_bounded_time() {
    let options = ["--local", "2", "--memory", "16MiB", "--ssd", "0", "--timeout", "1s"];
    let instance = Instance::start("silent", &options);
    let mut worker = instance.worker();
    let names: Vec<String> = (0..4).map(|number| format!("/forebay/d{number}/file")).collect();
    for (number, name) in (0..).zip(&names) {
        assert_eq!(worker.ask(&format!("mkdir /forebay/d{number}")), "ok");
        assert_eq!(worker.ask(&format!("put {name} {number} 50000")), "ok");
    }
    let daemon = instance.daemon(1);
    daemon.stop();
    let mut refused = 0;
    for name in &names {
        let answer = in_time(name, || worker.ask(&format!("put {name} 77 60000")));
        // EIO
        assert!(["ok", "err 5"].contains(&&*answer), "{name}: {answer}");
        refused += u32::from(answer != "ok");
    }
    assert!(refused > 0, "no file is on the stopped daemon");
    daemon.go_on();
    for (number, name) in (10..).zip(&names) {
        wait_for("the daemon", || worker.ask(&format!("put {name} {number} 70000")) == "ok");
        assert_is(&mut worker, name, (number, 70_000), 0);
    }
}

/// A program that has reached only one daemon maps a file of all four while they are dead.
#[test]
fn mmap_waits_for_daemons_that_restart() {
    let instance = Instance::start("crashmaps", &["--local", "4", "--stripe-size", "64KiB"]);
    assert_eq!(instance.worker().ask("put /forebay/f 3 2000000"), "ok");
    let script = "import mmap, sys\n\
        file = open('/forebay/f', 'rb')\n\
        print('open', flush=True)\n\
        sys.stdin.readline()\n\
        print('maps', flush=True)\n\
        sys.stdout.buffer.write(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))\n";
    let mut command = instance.program(&["python3", "-c", script]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it opens the file");
    for daemon in [0, 1, 2, 3].map(|index| instance.daemon(index)) {
        daemon.kill();
        daemon.wait();
    }
    writeln!(child.stdin.take().expect("a pipe")).expect("it reads");
    output.read_line(&mut line).expect("it continues");
    assert_eq!(line, "open\nmaps\n");
    instance.start_again();
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).expect("it ends");
    assert!(child.wait().expect("it ends").success());
    assert!(bytes == content(3, 0, 2_000_000), "{} bytes", bytes.len());
}
