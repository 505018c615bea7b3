//! Numbers of operations and bytes of a job are exact, also of processes that were killed: by job,
//! process and file, compared with what the programs did.

use super::support::mounted::{Mounted, has_fuse};
use super::support::world::World;
use super::support::{Instance, TIMEOUT, in_time};
use serde_json::Value;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

const OPTIONS: [&str; 6] = ["--local", "4", "--memory", "256MiB", "--ssd", "0"];

fn instance(name: &str) -> Instance {
    Instance::start(name, &OPTIONS)
}

/// `forebay run --job JOB -- sh -c SCRIPT`.
fn job(instance: &Instance, job: &str, script: &str) -> Command {
    let mut command = instance.command("run");
    command.args(["--job", job, "--", "sh", "-c", script]);
    command
}

fn run(instance: &Instance, name: &str, script: &str) -> Output {
    let output = job(instance, name, script).output().expect("forebay runs");
    assert!(output.status.success(), "{script}: {output:?}");
    output
}

/// `forebay job WORDS --name NAME --json`.
fn ask(instance: &Instance, words: &[&str]) -> Option<Value> {
    let mut command = instance.command("status");
    let program = command.get_program().to_owned();
    let variables: Vec<_> = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    command = Command::new(program);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.arg("job").args(words).args(["--name", &instance.name, "--json"]).output();
    let output = output.expect("forebay runs");
    output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn show(instance: &Instance, job: &str) -> Value {
    ask(instance, &["show", job]).unwrap_or_else(|| panic!("no job {job}"))
}

/// Number and bytes of a direction of all files of a job.
fn moved(profile: &Value, direction: &str) -> (u64, u64) {
    let files = profile["files"].as_array().expect("files").iter().map(|file| &file[direction]);
    let other = format!("other_{direction}");
    let processes = profile["processes"].as_array().expect("processes").iter();
    let others = processes.map(|process| &process[&other]);
    let of = |one: &Value, name: &str| one[name].as_u64().unwrap_or(0);
    files
        .chain(others)
        .fold((0, 0), |(number, bytes), one| (number + of(one, "number"), bytes + of(one, "bytes")))
}

/// Operations of a class of all processes of a job.
fn operations(profile: &Value, class: &str, field: &str) -> u64 {
    let processes = profile["processes"].as_array().expect("processes").iter();
    processes.map(|process| process["operations"][class][field].as_u64().expect("a number")).sum()
}

/// The processes that run a program.
fn programs<'a>(profile: &'a Value, name: &str) -> Vec<&'a Value> {
    let processes = profile["processes"].as_array().expect("processes").iter();
    processes.filter(|process| process["program"] == name).collect()
}

#[test]
fn each_process_with_a_file_of_its_own_is_counted() {
    let instance = instance("counted-own");
    // Ranks as a launcher sets them, at the same time.
    let script = "for rank in 0 1 2 3; do
        SLURM_PROCID=$rank dd if=/dev/zero of=/forebay/f$rank bs=8192 count=100 2>/dev/null & done
        wait";
    run(&instance, "own", script);
    let profile = show(&instance, "own");
    assert_eq!(moved(&profile, "writes"), (400, 400 * 8192), "{profile}");
    assert_eq!((moved(&profile, "reads").0, operations(&profile, "write", "number")), (0, 400));
    let ranks = programs(&profile, "dd");
    let mut numbers: Vec<_> = ranks.iter().map(|process| process["rank"].as_u64()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(0), Some(1), Some(2), Some(3)], "{profile}");
    let uid = u64::from(rustix::process::geteuid().as_raw());
    assert!(ranks.iter().all(|process| process["uid"] == uid && process["ended"].is_u64()));
    let files = profile["files"].as_array().expect("files");
    assert_eq!(files.len(), 4, "{profile}");
    for file in files {
        let writes = &file["writes"];
        assert_eq!(
            (&writes["number"], &writes["consecutive"], &writes["misaligned"]),
            (&100.into(), &99.into(), &0.into()),
            "{file}"
        );
        // 8192 bytes are in the bin from 1 to 10 KiB.
        assert_eq!(writes["sizes"][2], 100, "{file}");
        assert_eq!((&writes["lowest"], &writes["highest"]), (&0.into(), &819_200.into()), "{file}");
    }
    let listed = ask(&instance, &["list"]).expect("a list");
    let jobs = listed["jobs"].as_array().expect("jobs");
    let own = jobs.iter().find(|job| job["job"] == "own").unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(
        (&own["bytes_written"], &own["running"]),
        (&(400 * 8192).into(), &0.into()),
        "{own}"
    );
}

#[test]
fn processes_that_share_a_file_are_counted_apart() {
    let instance = instance("counted-shared");
    let script = "for rank in 0 1 2; do
        SLURM_PROCID=$rank dd if=/dev/zero of=/forebay/f bs=4096 count=50 seek=$((rank * 50)) \
            conv=notrunc 2>/dev/null & done
        wait
        SLURM_PROCID=7 dd if=/forebay/f of=/dev/null bs=4096 skip=50 count=30 2>/dev/null";
    run(&instance, "shared", script);
    let profile = show(&instance, "shared");
    assert_eq!(moved(&profile, "writes"), (150, 150 * 4096), "{profile}");
    assert_eq!(moved(&profile, "reads"), (30, 30 * 4096), "{profile}");
    let files = profile["files"].as_array().expect("files");
    let inodes: std::collections::BTreeSet<_> =
        files.iter().map(|file| file["inode"].as_u64().expect("a number")).collect();
    assert_eq!((inodes.len(), files.len()), (1, 4), "{profile}");
    let reads = files.iter().map(|file| &file["reads"]).find(|reads| reads.is_object());
    let reads = reads.unwrap_or_else(|| panic!("{profile}"));
    assert_eq!(
        (&reads["lowest"], &reads["highest"]),
        (&204_800.into(), &327_680.into()),
        "{reads}"
    );
}

#[test]
fn operations_are_counted_by_class_through_fork_and_exec() {
    let instance = instance("counted-classes");
    // Builtins of the shell, a forked child of it, and programs that it executes.
    let script = "cd /forebay && : >a && : >b && ( : >c; [ -e missing1 ] || [ -e missing2 ] || : )
        mkdir d && mv a d/a && rm b && rmdir d 2>/dev/null; exec ls >/dev/null";
    run(&instance, "classes", script);
    let profile = show(&instance, "classes");
    assert_eq!(operations(&profile, "rename", "number"), 1, "{profile}");
    assert!(operations(&profile, "stat", "absent") >= 2, "{profile}");
    // Three files, and the directory.
    assert_eq!(operations(&profile, "create", "number"), 4, "{profile}");
    // `b`; and the directory, which is not empty.
    assert_eq!(operations(&profile, "unlink", "number"), 2, "{profile}");
    assert_eq!(operations(&profile, "unlink", "failures"), 1, "{profile}");
    for program in ["sh", "mkdir", "mv", "rm", "ls"] {
        assert!(!programs(&profile, program).is_empty(), "{program}: {profile}");
    }
    let list = programs(&profile, "ls")[0];
    assert!(list["operations"]["read_directory"]["number"].as_u64() >= Some(1), "{list}");
    assert_eq!(list["operations"]["create"]["number"], 0, "those of the shell are its own");
}

#[test]
fn two_jobs_at_once_do_not_mix() {
    let instance = instance("counted-two");
    let script = |count: u32| {
        format!(
            "for number in 1 2 3; do dd if=/dev/zero of=/forebay/$0$number bs=1024 count={count} \
             2>/dev/null; done"
        )
    };
    let start = |name: &str, count: u32| {
        job(&instance, name, &script(count).replace("$0", name)).spawn().expect("forebay runs")
    };
    let children = [start("one", 10), start("two", 70)];
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    for (name, count) in [("one", 30), ("two", 210)] {
        let profile = show(&instance, name);
        assert_eq!(moved(&profile, "writes"), (count, count * 1024), "{profile}");
        assert_eq!(programs(&profile, "dd").len(), 3, "{profile}");
    }
    assert!(ask(&instance, &["show", "three"]).is_none(), "no such job");
}

/// Waits until a job has written so many times.
fn await_writes(instance: &Instance, job: &str, number: u64) -> Value {
    let begun = Instant::now();
    loop {
        if let Some(profile) = ask(instance, &["show", job])
            && moved(&profile, "writes").0 == number
        {
            return profile;
        }
        assert!(begun.elapsed() < TIMEOUT, "{number} writes of {job} are not counted");
        std::thread::yield_now();
    }
}

#[test]
fn counts_of_a_running_and_of_a_killed_process_are_kept() {
    let instance = instance("counted-killed");
    let script = "exec dd of=/forebay/k bs=4096 iflag=fullblock 2>/dev/null";
    let mut child: Child =
        job(&instance, "killed", script).stdin(Stdio::piped()).spawn().expect("forebay runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&vec![7; 50 * 4096]).expect("written");
    let profile = await_writes(&instance, "killed", 50);
    assert_eq!(profile["ended"], Value::Null, "{profile}");
    let running = programs(&profile, "dd")[0]["pid"].as_i64().expect("a pid");
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(running).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    in_time("the end of a killed program", || child.wait().expect("it ends"));
    drop(input);
    let profile = show(&instance, "killed");
    assert_eq!(moved(&profile, "writes"), (50, 50 * 4096), "{profile}");
    assert!(profile["ended"].is_u64(), "{profile}");
}

#[test]
fn programs_on_a_mount_are_counted_for_their_jobs() {
    if !has_fuse() {
        return;
    }
    let instance = instance("counted-mount");
    let mounted = Mounted::new(&instance, "m");
    // Direct I/O, so that each write is a request of its own.
    let script = "dd if=/dev/zero of=\"$0\" bs=65536 count=20 oflag=direct 2>/dev/null; exit $?";
    let mut programs: Vec<Child> = ["left", "right"]
        .into_iter()
        .zip(1..)
        .map(|(job, rank)| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(mounted.path(job));
            command.env("FOREBAY_JOB", job).env("PMI_RANK", rank.to_string()).spawn().expect("sh")
        })
        .collect();
    for program in &mut programs {
        assert!(program.wait().expect("it ends").success());
    }
    for (job, rank) in [("left", 1), ("right", 2)] {
        let profile = show(&instance, job);
        assert_eq!(moved(&profile, "writes"), (20, 20 * 65_536), "{profile}");
        let writer = programs_of_mount(&profile);
        assert_eq!(writer["rank"], rank, "{profile}");
        assert_eq!(operations(&profile, "create", "number"), 1, "{profile}");
    }
}

/// The process `dd`, as the mount counted it.
fn programs_of_mount(profile: &Value) -> &Value {
    let all = programs(profile, "dd");
    let [one] = all[..] else { panic!("{profile}") };
    assert_eq!(one["by"], "mount", "{profile}");
    one
}

#[test]
fn a_job_on_two_hosts_is_one_job() {
    let Some(world) = World::started(&[]) else { return };
    for (host, rank) in [("a", "0"), ("b", "1")] {
        let script = "SLURM_PROCID=$0 dd if=/dev/zero of=/forebay/f bs=4096 count=25 seek=$(($0 * 25)) \
                      conv=notrunc 2>/dev/null";
        world.ok(host, &["run", "--job", "both", "--", "sh", "-c", script, rank]);
    }
    let text = world.ok("a", &["job", "show", "both", "--json"]);
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(moved(&profile, "writes"), (50, 50 * 4096), "{profile}");
    let all = programs(&profile, "dd");
    let mut ranks: Vec<_> = all.iter().map(|process| process["rank"].as_u64()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [Some(0), Some(1)], "{profile}");
    let inodes: std::collections::BTreeSet<_> = profile["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter(|file| file["writes"]["number"] == 25)
        .map(|file| file["inode"].as_u64())
        .collect();
    assert_eq!(inodes.len(), 1, "one file by its inode number: {profile}");
    let report = world.ok("a", &["report", "both", "--now", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["profile"]["hosts"].as_array().map(Vec::len), Some(2), "{report}");
    world.end();
}
